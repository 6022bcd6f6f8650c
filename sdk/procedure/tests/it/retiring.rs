//! A table that is retiring: what runs at a deployment reads it, and nothing else sees it.
use reprise_procedure::{
    prelude::*,
    testkit::{TestDb, TestError},
};

#[table(name = "items", primary_key(id), partition_by = id)]
pub struct Item {
    pub id: i64,
    pub pieces: i64,
}

#[table(name = "items", primary_key(id), partition_by = id)]
pub struct ItemBefore {
    pub id: i64,
    pub count: Option<String>,
}

#[on_deploy(name = "count")]
fn migrate(tx: &Txn, from_version: u32) -> Result<(), Abort> {
    for before in ItemBefore::scan_local(tx) {
        let pieces = before.count.as_deref().and_then(|count| count.parse().ok());
        let Some(pieces) = pieces else {
            abort!("no_number", "item {} has no number", before.id);
        };
        Item::insert(tx, &Item { id: before.id, pieces })?;
    }
    if from_version == 9 {
        ItemBefore::insert(tx, &ItemBefore { id: 1, count: None })?;
    }
    Ok(())
}

/// Reads a row that it can't see.
#[procedure(partition_by(id))]
fn peek(tx: &Txn, id: i64) -> bool {
    ItemBefore::exists(tx, id)
}

#[procedure(partition_by(id))]
fn put(tx: &Txn, id: i64) -> Result<(), Abort> {
    ItemBefore::insert(tx, &ItemBefore { id, count: None })?;
    Ok(())
}

reprise_procedure::module! { tables: [Item], procedures: [peek, put], on_deploy: migrate, retiring: [ItemBefore] }

fn filled() -> TestDb {
    let mut db = TestDb::new(&MODULE);
    db.run(|tx| {
        for id in 0..30 {
            let count = Some(format!("{}", id * 2));
            ItemBefore::insert(tx, &ItemBefore { id, count })?;
        }
        Ok(())
    })
    .unwrap();
    db
}

#[test]
fn old_rows_are_read_once() {
    let mut db = filled();
    migrate::call(&mut db, 1).unwrap();
    assert_eq!(db.count("items"), 30);
    migrate::call(&mut db, 2).unwrap();
    assert_eq!(db.count("items"), 30);
}

#[test]
fn procedures_do_not_see_it_and_nothing_writes_it() {
    let mut db = filled();
    for refused in [peek::call(&mut db, 3).unwrap_err(), put::call(&mut db, 99).unwrap_err()] {
        let TestError::Fault(message) = refused else {
            panic!("{refused}")
        };
        assert!(message.contains("seen by what runs at a deployment"), "{message}");
    }
    let TestError::Fault(message) = migrate::call(&mut db, 9).unwrap_err() else {
        panic!("a fault")
    };
    assert!(message.contains("writes no table that is retiring"), "{message}");
    assert_eq!(db.count("items"), 0);
}
