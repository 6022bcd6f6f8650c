//! Tables with every column type: the macros' codec against the contract's own, and every operation on the test kit.
use reprise_procedure::{
    abi::{Field, IndexKind, RowLayout, ScalarType, TablePlacement},
    key::WholeKey,
    prelude::*,
    scratch::Scratch,
    table::{IndexOf, ReadRow, Table},
    testkit::{TestDb, TestError},
};

#[table(
    name = "everything",
    primary_key(id, label),
    index(by_kind, kind, score),
    unique(by_code, code, id),
    partition_by = id
)]
#[derive(Clone, Debug, PartialEq)]
pub struct Everything {
    pub id: i64,
    pub label: String,
    pub flag: bool,
    pub kind: i8,
    pub small: Option<i16>,
    pub number: Option<u32>,
    pub score: f64,
    pub price: Decimal<2>,
    pub note: Option<String>,
    pub blob: Vec<u8>,
    pub short: SmallText<8>,
    pub at: Timestamp,
    pub code: Uuid,
    #[column(default = 7)]
    pub later: u64,
    #[column(default = "none")]
    pub remark: String,
}

/// A table without a primary key. A scan finds its rows in the order of insertion.
#[table(name = "journal", local)]
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub text: String,
}

#[table(name = "by_hash", primary_key(id), hash, replicated)]
#[derive(Clone, Debug, PartialEq)]
pub struct Hashed {
    pub id: u32,
    pub value: i32,
}

#[table(name = "by_array", primary_key(group, id), dense, replicated)]
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    pub group: i16,
    pub id: u32,
    pub value: i32,
}

#[procedure(partition_by(id))]
fn write_hashed(tx: &Txn, id: u32) -> Result<(), Abort> {
    Hashed::insert(tx, &Hashed { id, value: 0 })?;
    Ok(())
}

#[procedure(partition_by(id))]
fn write_elsewhere(tx: &Txn, id: i64) -> Result<(), Abort> {
    Everything::insert(tx, &sample(id + 1, "x"))?;
    Ok(())
}

#[procedure(partition_by(id, others))]
fn write_several(tx: &Txn, id: i64, written: i64, others: Vec<i32>) -> Result<(), Abort> {
    assert!(others.len() < 3, "as the test passes them");
    Everything::insert(tx, &sample(id, "x"))?;
    Everything::insert(tx, &sample(written, "x"))?;
    Ok(())
}

#[procedure(all_partitions, read_only)]
fn write_in_a_read(tx: &Txn) -> Result<(), Abort> {
    Line::insert(tx, &Line { text: String::new() })?;
    Ok(())
}

#[procedure(any_partition, read_only)]
fn echo(_tx: &Txn, text: &str, maybe: Option<i8>, list: Vec<Pair>, bytes: &[u8]) -> Echo {
    Echo {
        text: text.into(),
        maybe,
        list,
        bytes: bytes.into(),
    }
}

#[derive(Clone, Debug, PartialEq, ProcedureStruct)]
pub struct Pair {
    pub left: u8,
    pub right: Side,
}

#[derive(Clone, Copy, Debug, PartialEq, ProcedureEnum)]
pub enum Side {
    FarLeft,
    FarRight,
}

#[derive(Clone, Debug, PartialEq, ProcedureStruct)]
pub struct Echo {
    pub text: String,
    pub maybe: Option<i8>,
    pub list: Vec<Pair>,
    pub bytes: Bytes,
}

reprise_procedure::module! {
    tables: [Everything, Line, Hashed, Dense],
    procedures: [write_hashed, write_elsewhere, write_several, write_in_a_read, echo],
}

fn sample(id: i64, label: &str) -> Everything {
    Everything {
        id,
        label: label.into(),
        flag: id % 2 == 0,
        kind: (id % 3) as i8 - 1,
        small: (id % 2 == 0).then_some(-5),
        number: None,
        score: id as f64 / 2.0,
        price: Decimal::from_units(id as i128 * 199),
        note: (id % 3 == 0).then(|| "n\0te".into()),
        blob: vec![0xff; id as usize % 5],
        short: SmallText::new("short").unwrap(),
        at: Timestamp(id * 1_000),
        code: Uuid((id as u128).to_be_bytes()),
        later: u64::MAX,
        remark: String::new(),
    }
}

fn encode(row: &Everything) -> Vec<u8> {
    let mut bytes = vec![0; row.row_bytes()];
    row.write_row(&mut bytes);
    bytes
}

#[test]
fn rows_are_those_of_the_contract() {
    let layout = RowLayout::of_table(&Everything::INFO.schema());
    for id in 0..12 {
        let row = sample(id, "label");
        let bytes = encode(&row);
        assert_eq!(layout.validate(&bytes), Ok(()));
        assert_eq!(layout.field(&bytes, 0), Field::Int(id));
        assert_eq!(layout.field(&bytes, 1), Field::Text("label"));
        assert_eq!(layout.field(&bytes, 5), Field::Null);
        assert_eq!(layout.field(&bytes, 7), Field::Decimal(id as i128 * 199));
        assert_eq!(layout.field(&bytes, 10), Field::Text("short"));
        let fields: Vec<_> = (0..15).map(|column| layout.field(&bytes, column)).collect();
        assert_eq!(layout.build(&fields), bytes);
        assert_eq!(Everything::read_row(&bytes), Some(row));
    }
}

#[test]
fn cut_or_forged_rows_are_refused_without_a_panic() {
    let bytes = encode(&sample(6, "label"));
    for length in 0..bytes.len() {
        let _ = Everything::read_row(&bytes[..length]);
    }
    for at in 0..bytes.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut forged = bytes.clone();
            forged[at] = value;
            let _ = Everything::read_row(&forged);
        }
    }
}

#[test]
fn keys_are_those_of_the_contract() {
    fn key<const I: u16, T: IndexOf<I>>(key: impl WholeKey<T::Columns>) -> Vec<u8> {
        let mut out = Scratch::new();
        key.push_whole(&mut out);
        out.as_slice().to_vec()
    }
    let layout = RowLayout::of_table(&Everything::INFO.schema());
    for (id, label) in [(-5, ""), (0, "a\0b"), (i64::MAX, "ä"), (i64::MIN, "\0")] {
        let mut row = sample(3, label);
        row.id = id;
        row.score = -(id as f64);
        let bytes = encode(&row);
        let expected = |columns: &[u16]| {
            let mut out = Vec::new();
            layout.push_key(&bytes, columns, &mut out);
            out
        };
        assert_eq!(key::<0, Everything>((id, label)), expected(&[0, 1]));
        assert_eq!(key::<1, Everything>((row.kind, row.score)), expected(&[3, 6]));
        assert_eq!(key::<2, Everything>((row.code, id)), expected(&[12, 0]));
    }
}

#[test]
fn the_description_has_what_was_declared() {
    let schema = Everything::INFO.schema();
    assert_eq!(schema.primary_key, [0, 1]);
    assert_eq!(schema.placement, TablePlacement::By(0));
    assert_eq!(schema.indexes[0].columns, [3, 6]);
    assert!(schema.indexes[1].unique && !schema.indexes[0].unique);
    assert!(schema.columns[4].nullable && !schema.columns[3].nullable);
    assert_eq!(schema.columns[7].ty, ScalarType::Decimal { scale: 2 });
    assert_eq!(schema.columns[13].default, Some(7_u64.to_le_bytes().to_vec()));
    assert_eq!(schema.columns[14].default, Some(b"\x04none".to_vec()));
    assert_eq!(Hashed::INFO.schema().primary_kind, IndexKind::Hash);
    assert_eq!(Dense::INFO.schema().primary_kind, IndexKind::Dense);
    let description = reprise_procedure::abi::describe::write_json(&MODULE.schema());
    assert!(
        description.contains(r#""returns":{"struct":[{"name":"text","type":"text"}"#),
        "{description}"
    );
}

fn filled() -> TestDb {
    let mut db = TestDb::new(&MODULE);
    db.run(|tx| {
        for id in 0..500 {
            Everything::insert(tx, &sample(id / 5, &format!("label {:02}", id % 5)))
                .map(drop)
                .or_else(|duplicate| {
                    if duplicate.index_name() == "by_code" {
                        Ok(())
                    } else {
                        Err(duplicate)
                    }
                })?;
        }
        Ok(())
    })
    .unwrap();
    db
}

#[test]
fn scans_go_over_many_batches_in_order() {
    let mut db = filled();
    assert_eq!(
        db.count("everything"),
        100,
        "the unique index by_code takes one of each id"
    );
    db.run(|tx| {
        let all: Vec<_> = Everything::scan(tx).into_iter().map(|row| row.id).collect();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
        let back: Vec<_> = Everything::scan(tx)
            .reverse()
            .limit(70)
            .into_iter()
            .map(|row| row.id)
            .collect();
        assert_eq!(back, (30..100).rev().collect::<Vec<_>>());
        let range = |from, to| Everything::scan(tx).range((from,)..(to,)).into_iter().map(|row| row.id);
        assert_eq!(range(10, 13).collect::<Vec<_>>(), [10, 11, 12]);
        assert_eq!(range(13, 10).count(), 0);
        assert_eq!(Everything::scan(tx).range((95,)..).count(), 5);
        assert_eq!(Everything::scan(tx).range(..=(4,)).limit(3).count(), 3);
        let kind = Everything::scan_by_kind(tx).prefix((1_i8,)).reverse().first().unwrap();
        assert_eq!((kind.kind, kind.id), (1, 98));
        assert_eq!(Everything::count(tx), 100);
        assert!(Everything::scan(tx).prefix((100,)).first().is_none());
        Ok(())
    })
    .unwrap();
}

#[test]
fn point_reads_and_writes() {
    let mut db = filled();
    db.run(|tx| {
        let key = (4_i64, "label 00");
        let mut row = Everything::get(tx, key).unwrap();
        assert_eq!(*row, sample(4, "label 00"));
        row.note = Some("x".repeat(5_000));
        row.update(tx)?;
        assert_eq!(Everything::get(tx, key).unwrap().note.as_ref().unwrap().len(), 5_000);
        assert_eq!(
            Everything::scan(tx).prefix((4,)).first().unwrap().id,
            4,
            "a row longer than the stack buffer"
        );
        assert_eq!(Everything::scan(tx).into_iter().count(), 100);
        assert!(!Everything::exists(tx, (4_i64, "label")));
        let rows = Everything::multi_get(tx, [(1_i64, "label 00"), (-1, ""), (4, "label 00")]);
        let ids: Vec<_> = rows.iter().map(|row| row.as_ref().map(|row| row.id)).collect();
        assert_eq!(ids, [Some(1), None, Some(4)]);
        let mut by_code = Everything::get_by_code(tx, (Uuid(7_u128.to_be_bytes()), 7)).unwrap();
        assert_eq!(by_code.id, 7);
        by_code.later = 5;
        by_code.update(tx)?;
        assert_eq!(by_code.add(tx, Everything::LATER, -3), 2);
        assert_eq!(by_code.later, 2);
        by_code.refresh(tx);
        assert_eq!(by_code.later, 2);
        by_code.delete(tx);
        assert!(Everything::get_by_code(tx, (Uuid(7_u128.to_be_bytes()), 7)).is_none());
        Ok(())
    })
    .unwrap();
    assert_eq!(db.count("everything"), 99);
}

#[test]
fn many_rows_are_inserted_in_one_call_up_to_the_first_taken_key() {
    let mut db = TestDb::new(&MODULE);
    db.run(|tx| {
        let rows: Vec<_> = (0..20).map(|id| sample(id, "many")).collect();
        Everything::insert_many(tx, &rows)?;
        Everything::insert_many(tx, &[])?;
        assert_eq!(*Everything::get(tx, (7_i64, "many")).unwrap(), sample(7, "many"));
        let taken = [sample(20, "many"), sample(3, "many"), sample(21, "many")];
        let error = Everything::insert_many(tx, &taken).unwrap_err();
        assert_eq!(error.index_name(), "primary_key");
        assert!(Everything::exists(tx, (20_i64, "many")));
        assert!(!Everything::exists(tx, (21_i64, "many")));
        Ok(())
    })
    .unwrap();
    assert_eq!(db.count("everything"), 21);
}

#[test]
fn a_duplicate_key_names_its_index_and_can_be_handled() {
    let mut db = filled();
    let taken = db.run(|tx| {
        let row = sample(3, "new");
        let duplicate = Everything::insert(tx, &row).unwrap_err();
        assert_eq!((duplicate.index, duplicate.index_name()), (2, "by_code"));
        let code = format!("code=0x{:032x}, id=3", 3);
        assert_eq!(duplicate.key_text().as_deref(), Some(&code[..]));
        let many = Everything::insert_many(tx, &[sample(3, "new")]).unwrap_err();
        assert_eq!(many.key_text(), None, "the host does not say which row it was");
        Everything::insert(tx, &sample(3, "label 00"))?;
        Ok(())
    });
    let taken = taken.unwrap_err();
    assert_eq!(taken.code(), Some("duplicate_key"));
    let text = taken.to_string();
    assert!(text.ends_with("in primary_key: id=3, label=\"label 00\""), "{text}");
}

#[test]
fn a_text_that_makes_a_key_too_long_ends_the_call() {
    let mut db = TestDb::new(&MODULE);
    let fault = db.run(|tx| {
        Everything::insert(tx, &sample(1, &"x".repeat(1_014)))?;
        Everything::insert(tx, &sample(1, &"x".repeat(1_015)))?;
        Ok(())
    });
    let fault = fault.unwrap_err().to_string();
    assert!(
        fault.contains("the primary key of everything is longer than 1024 bytes"),
        "{fault}"
    );
}

#[test]
fn an_abort_leaves_nothing_and_a_savepoint_can_be_gone_back_to() {
    let mut db = TestDb::new(&MODULE);
    let line = |text: &str| Line { text: text.into() };
    let aborted = db.run(|tx| {
        Line::insert(tx, &line("lost"))?;
        tx.info("logged all the same");
        Err::<(), _>(Abort::new("no", "because"))
    });
    assert_eq!(aborted, Err(TestError::Aborted(Abort::new("no", "because"))));
    assert_eq!((db.count("journal"), db.log().len()), (0, 1));
    db.run(|tx| {
        Line::insert(tx, &line("first"))?;
        let savepoint = tx.savepoint();
        Line::insert(tx, &line("second"))?;
        tx.rollback_to(savepoint);
        Line::insert(tx, &line("third"))?;
        let texts: Vec<_> = Line::scan(tx).into_iter().map(|row| row.into_inner().text).collect();
        assert_eq!(texts, ["first", "third"]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn every_item_of_a_list_parameter_names_a_partition() {
    let mut db = TestDb::new(&MODULE);
    for written in 2..4_i64 {
        let id = 10 * written;
        db.call::<()>("write_several", (id, written, vec![2, 3])).unwrap();
    }
}

#[test]
fn a_dense_table_is_found_by_its_key() {
    let mut db = TestDb::new(&MODULE);
    db.run(|tx| {
        for id in 0..3 {
            let row = Dense {
                group: -1,
                id,
                value: id as i32,
            };
            Dense::insert(tx, &row).unwrap();
            assert!(Dense::insert(tx, &row).is_err());
        }
        assert_eq!(Dense::get(tx, (-1, 2)).unwrap().value, 2);
        assert!(Dense::get(tx, (0, 2)).is_none());
        Ok(())
    })
    .unwrap();
}

#[test]
fn mistakes_are_faults_with_a_reason() {
    let mut db = TestDb::new(&MODULE);
    let fault = |result: Result<(), TestError>, part: &str| match result {
        Err(TestError::Fault(reason)) => assert!(reason.contains(part), "{reason}"),
        other => panic!("{other:?} instead of a fault about {part}"),
    };
    fault(db.call("write_hashed", (1_u32,)), "replicated");
    let elsewhere = "the row of everything belongs to partition 2, the call runs on partition 1 alone";
    fault(db.call("write_elsewhere", (1_i64,)), elsewhere);
    let several = "the row of everything belongs to partition 4, the call runs on partitions 1, 2, 3";
    fault(db.call("write_several", (1_i64, 4_i64, vec![2, 3])), several);
    fault(db.call("write_in_a_read", ()), "read-only");
    fault(db.call("absent", ()), "no procedure");
    fault(db.call("write_hashed", (1_u8,)), "arguments");
    fault(db.run(|_| panic!("oh {}", "no")), "oh no");
    let overflow = db.run(|tx| {
        Hashed::insert(tx, &Hashed { id: 1, value: i32::MAX })?;
        assert!(Hashed::find(tx, 2).is_none());
        let found = Hashed::find(tx, 1).unwrap();
        assert_eq!(found.add(tx, Hashed::VALUE, -1), i32::MAX - 1);
        assert_eq!(found.add(tx, Hashed::VALUE, 1), i32::MAX);
        assert_eq!(Hashed::add_value(tx, 2, 5), None);
        assert_eq!(Hashed::add_value(tx, 1, -9), Some(i32::MAX - 9));
        assert_eq!(Hashed::get(tx, 1).unwrap().value, i32::MAX - 9);
        assert_eq!(Hashed::add_value(tx, 1, 9), Some(i32::MAX));
        Hashed::get(tx, 1).unwrap().add(tx, Hashed::VALUE, 1);
        Ok(())
    });
    fault(overflow, "overflow");
    assert_eq!(db.count("by_hash"), 0);
}

#[test]
fn arguments_and_results_of_every_shape() {
    let mut db = TestDb::new(&MODULE);
    let list = vec![
        Pair {
            left: 1,
            right: Side::FarRight,
        },
        Pair {
            left: 255,
            right: Side::FarLeft,
        },
    ];
    let long = "long ".repeat(100);
    let echo: Echo = db
        .call("echo", (long.as_str(), Some(-1_i8), list.clone(), &b"\0\xff"[..]))
        .unwrap();
    assert_eq!(
        echo,
        Echo {
            text: long,
            maybe: Some(-1),
            list,
            bytes: Bytes(vec![0, 0xff])
        }
    );
}

#[test]
fn caller_is_the_name_that_the_test_sets() {
    let mut db = TestDb::new(&MODULE);
    assert_eq!(db.run(|tx| Ok(tx.caller())), Ok(None));
    let longest = "n".repeat(255);
    for name in ["ci", &longest] {
        db.set_caller(Some(name));
        assert_eq!(db.run(|tx| Ok(tx.caller())), Ok(Some(name.to_owned())));
    }
    db.set_caller(None);
    assert_eq!(db.run(|tx| Ok(tx.caller())), Ok(None));
}

#[test]
fn time_and_randomness_are_fixed_by_clock_and_seed() {
    let draw = |seed| {
        let mut db = TestDb::new(&MODULE).with_seed(seed);
        db.set_now_us(5);
        db.run(|tx| {
            assert_eq!((tx.now(), tx.txn_id()), (Timestamp(5), 1 << 10 | 1_023));
            assert!((0..1_000).all(|_| tx.random_below(3) < 3));
            Ok(tx.random())
        })
        .unwrap()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}
