//! The description parser: takes what the writer writes, refuses everything else with its place.
use reprise_abi::{IndexKind, Partitioning, PrefetchPart, ScalarType, TablePlacement, Type};
use reprise_host::describe::{from_json, to_json};

const GOOD: &str = r#"{"abi":1,"tables":[{"name":"t","columns":[{"name":"id","type":"i64","nullable":false},{"name":"amount","type":"decimal(2)","nullable":true},{"name":"note","type":"text","nullable":false,"default":"03616263"}],"primary_key":["id"],"primary_kind":"hash","indexes":[{"name":"by_note","columns":["note","id"],"unique":true}],"placement":{"by":"id"}},{"name":"u","columns":[{"name":"a","type":"uuid","nullable":false}],"primary_key":[],"primary_kind":"ordered","indexes":[],"placement":"replicated"}],"procedures":[{"name":"p","params":[{"name":"id","type":"i64"},{"name":"tags","type":{"list":{"option":"text"}}}],"returns":{"struct":[{"name":"outcome","type":{"enum":["Yes, \"sir\"","no"]}},{"name":"rest","type":{"option":"bytes"}}],"name":"Answer"},"read_only":false,"partitioning":{"by":["id"]},"fuel_max":16384,"aborts":[{"code":"late","docs":"Too late."},{"code":"no"}],"prefetch":[{"table":"t","key":["id"]},{"table":"t","key":[-5]}]},{"name":"q","params":[],"returns":"unit","read_only":true,"partitioning":"any"}]}"#;

#[test]
fn the_writer_and_the_parser_agree() {
    let schema = from_json(GOOD.as_bytes()).unwrap();
    assert_eq!(to_json(&schema), GOOD);
    assert_eq!(schema.tables[0].columns[1].ty, ScalarType::Decimal { scale: 2 });
    assert_eq!(schema.tables[0].columns[2].default.as_deref(), Some(&b"\x03abc"[..]));
    assert_eq!(schema.tables[0].primary_kind, IndexKind::Hash);
    assert_eq!(schema.tables[0].indexes[0].columns, [2, 0]);
    assert_eq!(schema.tables[0].placement, TablePlacement::By(0));
    assert_eq!(schema.procedures[0].partitioning, Partitioning::By(vec![0]));
    assert_eq!(schema.procedures[0].prefetch[0].key, [PrefetchPart::Param(0)]);
    assert_eq!(schema.procedures[0].prefetch[1].key, [PrefetchPart::Int(-5)]);
    assert_eq!(schema.procedures[1].returns, Type::Unit);
}

/// Replaces a piece of the good description and expects this refusal.
#[track_caller]
fn check_refused(piece: &str, forged: &str, expected: &str) {
    assert!(GOOD.contains(piece), "{piece}");
    let refused = from_json(GOOD.replacen(piece, forged, 1).as_bytes()).unwrap_err();
    assert_eq!(refused.to_string(), format!("description: {expected}"));
}

/// A piece of the good description, what stands in its place, and what refuses it.
const FORGED: &str = r#""abi":1 => "abi":2 => abi: version 2 is not supported, only 1 is
"abi":1 => "abi":"1" => abi: version "1" is not supported, only 1 is
"abi":1, =>  => member abi is missing
"abi":1, => "abi":1,"extra":0, => unknown member "extra"
{"name":"t", => {"name":"T", => tables[0].name: "T" is not a table's name (name or module.name; each [a-z][a-z0-9_]*, 63 bytes)
{"name":"u", => {"name":"t", => tables: "t" twice
"name":"q" => "name":"p" => procedures: "p" twice
"name":"amount" => "name":"id" => tables[0].columns: "id" twice
"type":"i64" => "type":"i65" => tables[0].columns[0].type: not a column type
"type":"i64" => "type":"unit" => tables[0].columns[0].type: not a column type
decimal(2) => decimal(39) => tables[0].columns[1].type: not a column type
decimal(2) => decimal(02) => tables[0].columns[1].type: not a column type
03616263 => 0361626 => tables[0].columns[2].default: not hexadecimal
03616263 => 0361626g => tables[0].columns[2].default: not hexadecimal
03616263 => 04616263 => tables[0].columns[2].default: not a value of the column's type: value malformed at byte 1
03616263 => 0361626300 => tables[0].columns[2].default: not a value of the column's type: value malformed at byte 4
"primary_key":["id"] => "primary_key":["no"] => tables[0].primary_key[0]: no column "no"
"primary_key":["id"] => "primary_key":["amount"] => tables[0].primary_key: column amount is nullable
"primary_key":["id"] => "primary_key":["id","id"] => tables[0].primary_key[1]: column id twice
"hash" => "heap" => tables[0].primary_kind: "heap" is none of ordered, hash, dense
["note","id"] => [] => tables[0].indexes[0].columns: 0 items, expected 1 to 3
{"by":"id"} => {"by":"amount"} => tables[0].placement.by: partition column amount is nullable
{"by":"id"} => "everywhere" => tables[0].placement: expected {"by": column}, "replicated" or "local"
{"by":["id"]} => {"by":[]} => procedures[0].partitioning.by: 0 items, expected 1 to 2
{"by":["id"]} => {"by":["tags"]} => procedures[0].partitioning.by[0]: a partitioning parameter must be a scalar or a list of scalars
{"by":["id"]} => "any" => procedures[0].partitioning: "any" is for read-only procedures
"returns":"unit" => "returns":{"list":"unit"} => procedures[1].returns.list: items of a list must take at least one byte
"returns":"unit" => "returns":{"struct":[]} => procedures[1].returns.struct: 0 items, expected 1 to 256
"returns":"unit" => "returns":{"enum":[""]} => procedures[1].returns.enum[0]: a variant has 1 to 63 bytes
"returns":"unit" => "returns":{"enum":["a","a"]} => procedures[1].returns.enum: "a" twice
"returns":"unit" => "returns":{"map":"i8"} => procedures[1].returns: unknown type "map"
"returns":"unit" => "returns":7 => procedures[1].returns: not a type
"fuel_max":16384 => "fuel_max":16383 => procedures[0].fuel_max: expected a number from 16384 to 1000000000000
"fuel_max":16384 => "fuel_max":1000000000001 => procedures[0].fuel_max: expected a number from 16384 to 1000000000000
"fuel_max":16384 => "fuel_max":"a lot" => procedures[0].fuel_max: expected a number from 16384 to 1000000000000
"code":"no" => "code":"late" => procedures[0].aborts: "late" twice
"code":"no" => "code":"" => procedures[0].aborts[1].code: a code has 1 to 128 bytes
{"code":"no"} => {"docs":"no"} => procedures[0].aborts[1]: member code is missing
"name":"Answer" => "name":"an answer" => procedures[0].returns.name: not the name of a type ([A-Za-z][A-Za-z0-9_]*, 63 bytes)
"returns":"unit" => "returns":{"option":"i8","name":"Answer"} => procedures[1].returns: not a type
"read_only":true => "read_only":1 => procedures[1].read_only: expected true or false"#;

#[test]
fn forged_descriptions_are_refused_with_their_place() {
    for line in FORGED.lines() {
        let [piece, forged, expected] = line.split(" => ").collect::<Vec<_>>().try_into().expect("three fields");
        check_refused(piece, forged, expected);
    }
}

#[test]
fn retiring_tables_may_be_gone_and_are_the_modules_own() {
    const OLD: &str = r#"{"name":"old","columns":[{"name":"id","type":"i64"},{"name":"note","type":"text","nullable":true}],"primary_key":["id"],"placement":{"by":"id"}}"#;
    let with = |on_deploy: bool, tables: &str| {
        let end = format!(r#"],"on_deploy":{on_deploy},"retiring":[{tables}]}}"#);
        from_json(format!("{}{end}", GOOD.strip_suffix("]}").unwrap()).as_bytes())
    };
    let good = with(true, OLD).unwrap();
    assert_eq!((good.tables.len(), good.retiring.len()), (2, 1));
    assert_eq!(from_json(to_json(&good).as_bytes()), Ok(good));
    let refused = |on_deploy, tables: &str| with(on_deploy, tables).unwrap_err().to_string();
    assert!(refused(false, OLD).contains("nothing would see them"));
    assert!(refused(true, &format!("{OLD},{OLD}")).contains("\"old\" twice"));
    let not_null = OLD.replace("true", "false");
    assert_eq!(
        refused(true, &not_null),
        "description: retiring[0].columns[1]: a column that may be gone is nullable or has a default"
    );
    for forged in [
        OLD.replace(r#""name":"old""#, r#""name":"m.old""#),
        OLD.replacen(r#""columns""#, r#""shared":true,"columns""#, 1),
        OLD.replacen(r#""columns""#, r#""was":"older","columns""#, 1),
        OLD.replacen(
            r#""placement""#,
            r#""indexes":[{"name":"i","columns":["id"]}],"placement""#,
            1,
        ),
    ] {
        assert!(refused(true, &forged).contains("the module's own"), "{forged}");
    }
}

#[test]
fn depth_and_counts_are_bounded() {
    let nested = |depth: usize| {
        let ty = format!("{}\"i8\"{}", r#"{"option":"#.repeat(depth), "}".repeat(depth));
        GOOD.replacen(r#""returns":"unit""#, &format!(r#""returns":{ty}"#), 1)
    };
    assert!(from_json(nested(8).as_bytes()).is_ok());
    assert!(
        from_json(nested(9).as_bytes())
            .unwrap_err()
            .reason
            .contains("deeper than 8")
    );
    for depth in [100, 127, 128, 10_000, 100_000] {
        assert!(from_json(nested(depth).as_bytes()).is_err());
        assert!(from_json("[".repeat(depth).as_bytes()).is_err());
    }
    let many = |count: usize| {
        let tables: Vec<_> = (0..count)
            .map(|n| format!(r#"{{"name":"t{n}","columns":[{{"name":"a","type":"i8"}}],"placement":"local"}}"#))
            .collect();
        format!(r#"{{"abi":1,"tables":[{}],"procedures":[]}}"#, tables.join(","))
    };
    assert_eq!(from_json(many(4_096).as_bytes()).unwrap().tables.len(), 4_096);
    assert!(
        from_json(many(4_097).as_bytes())
            .unwrap_err()
            .reason
            .contains("4097 items")
    );
    assert!(
        from_json(&vec![b' '; 2 << 20])
            .unwrap_err()
            .reason
            .contains("longer than")
    );
}

#[test]
fn damaged_descriptions_never_panic() {
    let mut random = reprise_abi::random::TxnRandom::new([8, 8], 8);
    for length in 0..GOOD.len() {
        assert!(from_json(&GOOD.as_bytes()[..length]).is_err());
    }
    for _ in 0..20_000 {
        let mut bad = GOOD.as_bytes().to_vec();
        for _ in 0..1 + random.next_u64() % 4 {
            let at = random.next_u64() as usize % bad.len();
            match random.next_u64() % 3 {
                0 => bad[at] = random.next_u64() as u8,
                1 => drop(bad.remove(at)),
                _ => bad[at] = br#"{}[]",:0e"#[random.next_u64() as usize % 9],
            }
        }
        if let Ok(schema) = from_json(&bad) {
            assert_eq!(from_json(to_json(&schema).as_bytes()), Ok(schema));
        }
    }
}

#[test]
fn prefetch_keys_that_no_row_can_have_are_refused() {
    let prefetch = r#"{"table":"t","key":["id"]}"#;
    let check = |forged: &str, expected: &str| {
        check_refused(prefetch, forged, &format!("procedures[0].prefetch[0].{expected}"));
    };
    check(r#"{"table":"x","key":["id"]}"#, "table: no table \"x\"");
    check(r#"{"table":"t","key":["name"]}"#, "key[0]: no parameter \"name\"");
    check(
        r#"{"table":"t","key":["tags"]}"#,
        "key[0]: parameter \"tags\" has not the column's type",
    );
    check(r#"{"table":"t","key":["id",1]}"#, "key: 2 items, expected 1 to 1");
    check(r#"{"table":"t","key":[1.5]}"#, "key[0]: expected a string");
}
