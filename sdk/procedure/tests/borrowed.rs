//! Rows whose texts are borrowed, rows put down one by one, and results of them.
#![allow(clippy::unwrap_used)]

use reprise_procedure::{prelude::*, table::RowRoom, testkit::TestDb};

#[table(name = "items", primary_key(id), replicated)]
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    pub id: i32,
    pub name: String,
    pub price: i64,
    pub note: Option<SmallText<4>>,
}

/// Room for short names: longer ones go over the heap.
#[columns(Item)]
pub struct Named<'r> {
    pub id: i32,
    pub name: TextRef<'r, 8>,
    pub note: Option<TextRef<'r, 4>>,
}

#[columns(Item)]
pub struct Whole<'r> {
    pub id: i32,
    pub name: TextRef<'r, 8>,
    pub price: i64,
    pub note: Option<TextRef<'r, 4>>,
}

#[columns(Item)]
pub struct Price {
    pub price: i64,
}

#[derive(Clone, Debug, ProcedureResult)]
pub struct Name<'r> {
    pub id: i32,
    pub name: TextRef<'r, 8>,
    pub note: Option<TextRef<'r, 4>>,
}

#[derive(Clone, Debug, PartialEq, ProcedureStruct)]
pub struct OwnedName {
    pub id: i32,
    pub name: String,
    pub note: Option<String>,
}

fn shown<'r>(row: &Row<Named<'r>>) -> Name<'r> {
    Name {
        id: row.id,
        name: row.name,
        note: row.note,
    }
}

#[procedure(all_partitions)]
pub fn fill(tx: &Txn, count: i32) -> Result<(), Abort> {
    let mut rows = Inserts::<Item>::with_room_for(1);
    for id in 0..count {
        let note = (id % 2 == 0)
            .then_some("note")
            .map(|text| SmallText::new(text).unwrap_or_default());
        rows.push(&Item {
            id,
            name: "ab".repeat(id as usize),
            price: 1,
            note,
        });
    }
    rows.insert(tx)?;
    Ok(())
}

/// By many keys; one that there is not is passed over.
#[procedure(all_partitions)]
pub fn names(tx: &Txn, ids: Vec<i32>) -> Result<Reply<Vec<Name<'static>>>, Abort> {
    let found = Named::multi_read(tx, ids);
    let names: Vec<_> = found.iter().flatten().map(|row| shown(&row)).collect();
    Ok(Reply::of(&names))
}

#[procedure(all_partitions)]
pub fn name(tx: &Txn, id: i32) -> Result<Option<Reply<Name<'static>>>, Abort> {
    let mut room = (RowRoom::new(), RowRoom::new());
    let Some(row) = Named::get_in(tx, id, &mut room.0) else {
        return Ok(None);
    };
    let again = Named::read_in(tx, row.handle(), &mut room.1);
    assert_eq!(
        (row.name, row.name.as_str().len()),
        (again.name, 2 * id as usize)
    );
    Ok(Some(Reply::of(&shown(&again))))
}

/// Items with other numbers and prices, their texts taken from where they were read.
#[procedure(all_partitions)]
pub fn copy(tx: &Txn, count: i32) -> Result<(), Abort> {
    let found = Whole::multi_read(tx, 0..count);
    let mut rows = Inserts::<Whole>::with_room_for(1);
    let mut prices = Updates::<Price>::with_room_for(1);
    for row in found.iter().flatten() {
        rows.push(&Whole {
            id: 100 + row.id,
            name: row.name,
            price: 7,
            note: row.note,
        });
        prices.push(
            row.handle(),
            &Price {
                price: row.price + row.id as i64,
            },
        );
    }
    prices.write(tx)?;
    rows.insert(tx)?;
    Ok(())
}

#[procedure(all_partitions, read_only)]
pub fn prices(tx: &Txn) -> Result<Vec<i64>, Abort> {
    Ok(Item::scan(tx).into_iter().map(|item| item.price).collect())
}

reprise_procedure::module! { tables: [Item], procedures: [fill, names, name, copy, prices] }

fn expected(id: i32, number: i32) -> OwnedName {
    let note = (number % 2 == 0).then(|| "note".into());
    OwnedName {
        id,
        name: "ab".repeat(number as usize),
        note,
    }
}

fn filled() -> TestDb {
    let mut db = TestDb::new(&MODULE);
    db.call::<()>("fill", (30,)).unwrap();
    db
}

#[test]
fn borrowed_texts_of_any_length_reach_the_result() {
    let mut db = filled();
    let all: Vec<_> = (0..30).map(|id| expected(id, id)).collect();
    let ids: Vec<i32> = (0..40).collect();
    assert_eq!(db.call::<Vec<OwnedName>>("names", (ids,)), Ok(all.clone()));
    for id in 0..31 {
        let found = db.call::<Option<OwnedName>>("name", (id,)).unwrap();
        assert_eq!(found.as_ref(), all.get(id as usize));
    }
}

#[test]
fn rows_put_down_one_by_one_are_inserted_and_written_together() {
    let mut db = filled();
    db.call::<()>("copy", (30,)).unwrap();
    let prices: Vec<i64> = (0..30).map(|id| 1 + id).chain([7; 30]).collect();
    assert_eq!(db.call::<Vec<i64>>("prices", ()), Ok(prices));
    let copied: Vec<_> = (0..30)
        .map(|number| expected(100 + number, number))
        .collect();
    let ids: Vec<i32> = (100..130).collect();
    assert_eq!(db.call::<Vec<OwnedName>>("names", (ids,)), Ok(copied));
    assert!(db.call::<()>("copy", (30,)).is_err(), "the keys are taken");
}
