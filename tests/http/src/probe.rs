//! A module in wasm text that does what the tests need: rows of two integers, and every way to fail.

/// Columns of the table in each version.
const COLUMNS: &str = r#"{"name":"id","type":"i64","nullable":false},{"name":"amount","type":"i64","nullable":false}"#;
const CHANGED: &str = r#"{"name":"id","type":"i64","nullable":false},{"name":"amount","type":"text","nullable":false}"#;
const GROWN: &str = r#"{"name":"id","type":"i64","nullable":false},{"name":"amount","type":"i64","nullable":false},
    {"name":"note","type":"text","nullable":true}"#;

/// The first version.
pub fn probe() -> Vec<u8> {
    build(COLUMNS, "")
}

/// A version whose table has one more column, and one more procedure.
pub fn probe_grown() -> Vec<u8> {
    build(
        GROWN,
        r#",{"name":"extra","params":[],"returns":"unit","read_only":true,"partitioning":"any"}"#,
    )
}

/// A version with a procedure `extra` that takes a `value` of one type and gives nothing of another.
pub fn probe_with(value: &str, returns: &str) -> Vec<u8> {
    let returns = match returns.starts_with('{') {
        true => returns.to_owned(),
        false => format!("\"{returns}\""),
    };
    let value = match value.starts_with('{') {
        true => value.to_owned(),
        false => format!("\"{value}\""),
    };
    let extra = format!(
        r#",{{"name":"extra","params":[{{"name":"value","type":{value}}}],"returns":{returns},"read_only":true,"partitioning":"all"}}"#
    );
    build(COLUMNS, &extra)
}

/// A version whose column `amount` has another type.
pub fn probe_changed() -> Vec<u8> {
    build(CHANGED, "")
}

/// A version whose `put` takes a further, optional parameter.
pub fn probe_put_grown() -> Vec<u8> {
    let note = r#",{"name":"note","type":{"option":"text"}}"#;
    let module = Module {
        put: Some(note),
        ..Module::default()
    };
    module.build()
}

/// A version without `put`.
pub fn probe_without_put() -> Vec<u8> {
    let module = Module {
        put: None,
        ..Module::default()
    };
    module.build()
}

/// A version with a procedure `sign`, which puts a row and answers with the caller's name.
pub fn probe_signed() -> Vec<u8> {
    let sign = |name: &str, partitioning: &str| {
        format!(
            r#",{{"name":"{name}","params":[{{"name":"id","type":"i64"}},{{"name":"amount","type":"i64"}}],"returns":"text","read_only":false,"partitioning":{partitioning}}}"#
        )
    };
    let signs = [sign("sign", r#"{"by":["id"]}"#), sign("sign_all", r#""all""#)].concat();
    let module = Module {
        more_procedures: &signs,
        code: SIGN,
        imports: r#"(import "reprise1" "caller" (func $caller (param i64) (result i32)))"#,
        ..Module::default()
    };
    module.build()
}

/// The name lies behind its length. `sign_all` runs over all partitions.
const SIGN: &str = r#"(func $sign (export "reprise_call_sign") (export "reprise_call_sign_all") (param i32) (result i32)
    (local $length i32)
    (drop (call $put_row))
    (local.set $length (call $caller (call $slice (i32.const 1001) (i32.const 255))))
    (i32.store8 (i32.const 1000) (local.get $length))
    (call $result_write (call $slice (i32.const 1000) (i32.add (local.get $length) (i32.const 1))))
    (i32.const 0))"#;

/// The differences between versions.
struct Module<'a> {
    columns: &'a str,
    /// Further parameters of `put`; none: there is no `put`.
    put: Option<&'a str>,
    more_procedures: &'a str,
    imports: &'a str,
    code: &'a str,
}

impl Default for Module<'_> {
    fn default() -> Self {
        Self {
            columns: COLUMNS,
            put: Some(""),
            more_procedures: "",
            imports: "",
            code: "",
        }
    }
}

fn build(columns: &str, more_procedures: &str) -> Vec<u8> {
    let module = Module {
        columns,
        more_procedures,
        code: match more_procedures.is_empty() {
            true => "",
            false => r#"(func (export "reprise_call_extra") (param i32) (result i32) i32.const 0)"#,
        },
        ..Module::default()
    };
    module.build()
}

impl Module<'_> {
    fn build(&self) -> Vec<u8> {
        build_module(self)
    }
}

fn build_module(module: &Module<'_>) -> Vec<u8> {
    let (columns, more_procedures) = (module.columns, module.more_procedures);
    let by_id = r#""partitioning":{"by":["id"]}"#;
    let id = r#"{"name":"id","type":"i64"}"#;
    let procedure = |name: &str, params: &str, returns: &str, read_only: bool, partitioning: &str| {
        format!(
            r#"{{"name":"{name}","params":[{params}],"returns":"{returns}","read_only":{read_only},{partitioning}}}"#
        )
    };
    let put = module.put.map(|more| {
        let params = format!(r#"{id},{{"name":"amount","type":"i64"}}{more}"#);
        procedure("put", &params, "unit", false, by_id)
    });
    let others = [
        procedure("echo", id, "i64", true, by_id),
        procedure("stop", id, "unit", false, by_id),
        procedure("trap", id, "unit", false, by_id),
        procedure("spin", id, "unit", false, by_id),
        procedure("flood", id, "bytes", true, by_id),
        procedure(
            "sleepy",
            &format!(r#"{id},{{"name":"turns","type":"i64"}}"#),
            "unit",
            true,
            by_id,
        ),
        procedure("everywhere", id, "i64", true, r#""partitioning":"all""#),
        procedure(
            "text_length",
            &format!(r#"{id},{{"name":"text","type":"text"}}"#),
            "unit",
            true,
            by_id,
        ),
    ];
    let procedures: Vec<String> = put.into_iter().chain(others).collect();
    let description = format!(
        r#"{{"abi":1,"tables":[{{"name":"items","columns":[{columns}],"primary_key":["id"],"primary_kind":"ordered",
        "indexes":[{{"name":"by_amount","columns":["amount"],"unique":false}}],"placement":{{"by":"id"}}}}],
        "procedures":[{}{more_procedures}]}}"#,
        procedures.join(",")
    );
    let custom: String = description
        .replace('\n', " ")
        .replace('\\', "\\\\")
        .replace('"', "\\\"");
    let put_code = match module.put {
        Some(_) => r#"(func (export "reprise_call_put") (param i32) (result i32) (call $put_row))"#,
        None => "",
    };
    let text = WAT
        .replace("DESCRIPTION", &custom)
        .replace("PUT", put_code)
        .replace("EXTRA", module.code)
        .replace("IMPORTS", module.imports);
    wat::parse_str(text).expect("the probe is valid wasm text")
}

/// Arguments lie at 64; a row of two integers is laid out as the two arguments are.
const WAT: &str = r#"(module
  (@custom "reprise.describe" "DESCRIPTION")
  (import "reprise1" "args_read" (func $args_read (param i32)))
  (import "reprise1" "result_write" (func $result_write (param i64)))
  (import "reprise1" "insert" (func $insert (param i32 i64) (result i64)))
  (import "reprise1" "log" (func $log (param i32 i64)))
  (import "reprise1" "abort" (func $abort (param i64 i64)))
  IMPORTS
  (memory (export "memory") 100 100)
  (data (i32.const 0) "duplicatethe id is takennot_todaythis always stops")
  (func $slice (param $at i32) (param $length i32) (result i64)
    (i64.or (i64.extend_i32_u (local.get $at)) (i64.shl (i64.extend_i32_u (local.get $length)) (i64.const 32))))
  (func $put_row (result i32)
    (call $args_read (i32.const 64))
    (if (result i32) (i64.lt_s (call $insert (i32.const 0) (call $slice (i32.const 64) (i32.const 16))) (i64.const 0))
      (then
        (call $abort (call $slice (i32.const 0) (i32.const 9)) (call $slice (i32.const 9) (i32.const 15)))
        (i32.const 1))
      (else (i32.const 0))))
  PUT
  (func (export "reprise_call_echo") (param i32) (result i32)
    (call $args_read (i32.const 64))
    (call $log (i32.const 1) (call $slice (i32.const 0) (i32.const 9)))
    (call $result_write (call $slice (i32.const 64) (i32.const 8)))
    (i32.const 0))
  (func (export "reprise_call_everywhere") (param i32) (result i32)
    (call $args_read (i32.const 64))
    (call $result_write (call $slice (i32.const 64) (i32.const 8)))
    (i32.const 0))
  (func (export "reprise_call_stop") (param i32) (result i32)
    (drop (call $put_row))
    (call $abort (call $slice (i32.const 24) (i32.const 9)) (call $slice (i32.const 33) (i32.const 17)))
    (i32.const 1))
  (func $inner_mistake unreachable)
  (func (export "reprise_call_trap") (param i32) (result i32)
    (drop (call $put_row))
    (call $inner_mistake)
    (i32.const 0))
  (func (export "reprise_call_spin") (param i32) (result i32)
    (drop (call $put_row))
    (loop $again (br $again))
    (i32.const 0))
  (func (export "reprise_call_flood") (param i32) (result i32)
    (call $result_write (call $slice (i32.const 64) (i32.const 5000000)))
    (i32.const 0))
  (func (export "reprise_call_sleepy") (param i32) (result i32)
    (local $left i64)
    (call $args_read (i32.const 64))
    (local.set $left (i64.load (i32.const 72)))
    (loop $again
      (local.set $left (i64.sub (local.get $left) (i64.const 1)))
      (br_if $again (i64.gt_s (local.get $left) (i64.const 0))))
    (i32.const 0))
  (func (export "reprise_call_text_length") (param i32) (result i32) (i32.const 0))
  EXTRA)"#;

/// A module of the table `t`, whose second column is `column`, and of this procedure with its code.
pub fn table_module(column: &str, procedure: &str, code: &str) -> Vec<u8> {
    let description = format!(
        r#"{{"abi":1,"tables":[{{"name":"t","columns":[{{"name":"id","type":"i64"}},{{{column}}}],
            "primary_key":["id"],"placement":{{"by":"id"}}}}],"procedures":[{procedure}]}}"#
    );
    let section: String = description.bytes().map(|byte| format!("\\{byte:02x}")).collect();
    let text = format!(
        r#"(module
            (import "reprise1" "args_read" (func $args_read (param i32)))
            (import "reprise1" "insert" (func $insert (param i32 i64) (result i64)))
            (memory (export "memory") 1)
            {code}
            (@custom "reprise.describe" "{section}"))"#
    );
    wat::parse_str(text).expect("a module")
}
