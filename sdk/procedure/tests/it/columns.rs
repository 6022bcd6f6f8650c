//! Reading and writing some columns of rows.
use reprise_procedure::{advanced::*, prelude::*, testkit::TestDb};

#[table(name = "items", primary_key(id), index(by_group, group, id), replicated)]
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    pub id: i32,
    pub name: String,
    pub group: i16,
    pub price: i64,
    pub note: Option<String>,
    pub sold: i64,
}

#[columns(Item)]
#[derive(Clone, Debug, PartialEq)]
pub struct Sale {
    pub price: i64,
    pub sold: i64,
}

#[columns(Item)]
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    pub id: i32,
    pub name: String,
    pub note: Option<String>,
}

#[table(name = "others", primary_key(id), replicated)]
#[derive(Clone, Debug, PartialEq)]
pub struct Other {
    pub id: i32,
}

#[procedure(all_partitions)]
pub fn fill(tx: &Txn, count: i32) -> Result<(), Abort> {
    for id in 0..count {
        let row = Item {
            id,
            name: "item".repeat(id as usize % 60),
            group: (id % 3) as i16,
            price: id as i64 * 10,
            note: (id % 2 == 0).then(|| "note".into()),
            sold: 0,
        };
        Item::insert(tx, &row)?;
    }
    Other::insert(tx, &Other { id: 1 })?;
    Ok(())
}

#[procedure(all_partitions)]
pub fn sell(tx: &Txn, ids: Vec<i32>) -> Result<i64, Abort> {
    let mut rows: Vec<_> = Sale::multi_get(tx, ids).into_iter().flatten().collect();
    let mut sum = 0;
    for row in &mut rows {
        row.sold += 1;
        sum += row.price;
    }
    Sale::update_many(tx, &rows)?;
    Ok(sum)
}

#[procedure(all_partitions)]
pub fn label(tx: &Txn, id: i32, name: String) -> Result<bool, Abort> {
    let Some(mut row) = Label::get(tx, id) else {
        return Ok(false);
    };
    row.name = name;
    row.note = row.note.take().xor(Some("new".into()));
    row.update(tx)?;
    Ok(true)
}

#[procedure(all_partitions)]
pub fn move_to(tx: &Txn, id: i32, to: i32) -> Result<(), Abort> {
    let label = Label {
        id: to,
        name: "moved".into(),
        note: None,
    };
    let row = Item::get(tx, id).ok_or_else(|| Abort::new("none", "no such item"))?;
    label.write(tx, row.handle())?;
    Ok(())
}

#[procedure(all_partitions, read_only)]
pub fn sold_of(tx: &Txn, group: i16) -> Vec<i64> {
    let rows = Item::scan_by_group(tx).prefix((group,)).columns::<Sale>();
    rows.into_iter().map(|row| row.sold).collect()
}

#[procedure(all_partitions, read_only)]
pub fn names(tx: &Txn) -> Vec<String> {
    let rows = Item::scan(tx).columns::<Label>();
    rows.into_iter().map(|row| row.name.clone()).collect()
}

#[procedure(all_partitions)]
pub fn stray(tx: &Txn) -> Result<(), Abort> {
    let other = Other::get(tx, 1).unwrap();
    Sale { price: 0, sold: 0 }.write(tx, other.handle())?;
    Ok(())
}

reprise_procedure::module! {
    tables: [Item, Other],
    procedures: [fill, sell, label, move_to, sold_of, names, stray],
}

fn filled(count: i32) -> TestDb {
    let mut db = TestDb::new(&MODULE);
    db.call::<()>("fill", (count,)).unwrap();
    db
}

fn item(db: &mut TestDb, id: i32) -> Option<Item> {
    db.run(|tx| Ok(Item::get(tx, id).map(Row::into_inner))).unwrap()
}

#[test]
fn chosen_columns_are_read_and_written_and_others_stay() {
    let mut db = filled(9);
    let sum: i64 = db.call("sell", (vec![2, 7, 77],)).unwrap();
    assert_eq!(sum, 90);
    let sold: Vec<i64> = db.call("sold_of", (1_i16,)).unwrap();
    assert_eq!(sold, [0, 0, 1]);
    assert_eq!(
        db.call::<bool>("label", (2, "a much longer name than it was before".to_owned())),
        Ok(true)
    );
    assert_eq!(db.call::<bool>("label", (99, "none".to_owned())), Ok(false));
    let item = item(&mut db, 2).unwrap();
    let expected = Item {
        id: 2,
        name: "a much longer name than it was before".into(),
        group: 2,
        price: 20,
        note: Some("note".into()).xor(Some("new".into())),
        sold: 1,
    };
    assert_eq!(item, expected);
}

#[test]
fn scans_of_columns_go_on_from_call_to_call() {
    let mut db = filled(500);
    let names: Vec<String> = db.call("names", ()).unwrap();
    let expected: Vec<String> = (0..500).map(|id| "item".repeat(id % 60)).collect();
    assert_eq!(names, expected);
}

#[test]
fn a_key_column_moves_the_row_or_meets_a_duplicate() {
    let mut db = filled(3);
    db.call::<()>("move_to", (1, 50)).unwrap();
    let found = [0, 1, 2, 50].map(|id| item(&mut db, id).is_some());
    assert_eq!(found, [true, false, true, true]);
    let taken = db.call::<()>("move_to", (0, 2)).unwrap_err();
    assert!(format!("{taken:?}").contains("duplicate_key"), "{taken:?}");
}

#[test]
fn a_row_of_another_table_is_refused() {
    let mut db = filled(1);
    let refused = db.call::<()>("stray", ()).unwrap_err();
    assert!(format!("{refused:?}").contains("not of table"), "{refused:?}");
}
