//! Rows whose texts are borrowed, rows put down one by one, and results of them.
use reprise_procedure::{advanced::*, prelude::*, testkit::TestDb};

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

/// Reads by many keys, and passes over a key that does not exist.
#[procedure(all_partitions)]
pub fn names(tx: &Txn, ids: ListRef<i32>) -> Result<Reply<Vec<Name<'static>>>, Abort> {
    let found = Named::multi_read(tx, ids.iter());
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
    assert_eq!((row.name, row.name.as_str().len()), (again.name, 2 * id as usize));
    Ok(Some(Reply::of(&shown(&again))))
}

/// Copies items with other numbers and prices. Their texts stay at the places from which they were read.
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

/// Found by keys that differ in length.
#[table(name = "words", primary_key(word), replicated)]
#[derive(Clone, Debug, PartialEq)]
pub struct Word {
    pub word: String,
    pub meaning: String,
}

#[columns(Word)]
pub struct Meaning<'r> {
    pub meaning: TextRef<'r, 8>,
}

/// Writes the words down, each with itself twice as its meaning, and reads them and one more.
#[procedure(all_partitions)]
pub fn meanings(tx: &Txn, words: Vec<String>) -> Result<Vec<Option<String>>, Abort> {
    for word in &words {
        let meaning = word.repeat(2);
        Word::insert(
            tx,
            &Word {
                word: word.clone(),
                meaning,
            },
        )?;
    }
    let keys = words.iter().map(String::as_str).chain(["unknown"]);
    let found = Meaning::multi_read(tx, keys.clone());
    let meanings: Vec<_> = found
        .iter()
        .map(|row| row.map(|row| row.meaning.as_str().to_owned()))
        .collect();
    let whole = Word::multi_get(tx, keys)
        .into_iter()
        .map(|row| row.map(|row| row.into_inner().meaning));
    assert!(whole.eq(meanings.iter().cloned()));
    Ok(meanings)
}

/// Returns each list's numbers.
#[procedure(all_partitions, read_only)]
pub fn numbers(_tx: &Txn, bytes: ListRef<i8>, words: ListRef<u16>, reals: ListRef<f64>) -> Result<Vec<f64>, Abort> {
    assert_eq!(
        (bytes.len(), bytes.is_empty(), bytes.get(bytes.len())),
        (bytes.iter().count(), bytes.get(0).is_none(), None)
    );
    let bytes = bytes.iter().map(f64::from);
    Ok(bytes.chain(words.iter().map(f64::from)).chain(reals.iter()).collect())
}

reprise_procedure::module! { tables: [Item, Word], procedures: [fill, names, name, copy, prices, meanings, numbers] }

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
    let copied: Vec<_> = (0..30).map(|number| expected(100 + number, number)).collect();
    let ids: Vec<i32> = (100..130).collect();
    assert_eq!(db.call::<Vec<OwnedName>>("names", (ids,)), Ok(copied));
    assert!(db.call::<()>("copy", (30,)).is_err(), "the keys are taken");
}

#[test]
fn keys_of_any_length_find_rows_of_any_length() {
    let mut db = filled();
    let words: Vec<String> = ["a", "some", "a longer one"].map(String::from).to_vec();
    let expected = words.iter().map(|word| Some(word.repeat(2))).chain([None]);
    assert_eq!(
        db.call::<Vec<Option<String>>>("meanings", (words.clone(),)),
        Ok(expected.collect())
    );
}

#[test]
fn lists_are_read_where_they_lie() {
    let mut db = filled();
    let lists = (vec![-3_i8, 4], vec![60_000_u16], vec![0.5, -1.5]);
    assert_eq!(
        db.call::<Vec<f64>>("numbers", lists),
        Ok(vec![-3.0, 4.0, 60_000.0, 0.5, -1.5])
    );
    let many = (vec![1_i8; 300], vec![2_u16; 127], vec![3.0; 128]);
    let all = [vec![1.0; 300], vec![2.0; 127], vec![3.0; 128]].concat();
    assert_eq!(db.call::<Vec<f64>>("numbers", many), Ok(all));
    let empty = (Vec::<i8>::new(), Vec::<u16>::new(), Vec::<f64>::new());
    assert_eq!(db.call::<Vec<f64>>("numbers", empty), Ok(vec![]));
}

#[test]
fn keys_whose_number_is_not_known_ahead_are_counted_first() {
    let odd = |tx: &Txn| {
        let ids = (0..40).filter(|id| id % 2 == 1);
        let found = Price::multi_read(tx, ids.clone());
        assert!(found.iter().len() == 20 && found.iter().flatten().count() == 15);
        let names = Whole::multi_read(tx, ids);
        let ids: Vec<i32> = names.iter().flatten().map(|row| row.id).collect();
        assert_eq!(ids, (1..30).step_by(2).collect::<Vec<_>>());
        Ok(())
    };
    filled().run(odd).unwrap();
}

#[test]
fn rows_come_alike_one_by_one_and_all_at_once() {
    let scan = |tx: &Txn| {
        let rows = || Item::scan(tx).batch_bytes(64).iter();
        let mut one_by_one = Vec::new();
        for row in rows() {
            one_by_one.push(row.into_inner());
        }
        let mut at_once = Vec::new();
        rows().for_each(|row| at_once.push(row.into_inner()));
        assert!(one_by_one.len() == 30);
        assert_eq!(one_by_one, at_once);
        Ok(())
    };
    filled().run(scan).unwrap();
}

#[test]
fn a_text_is_seen_with_what_lies_behind_it_where_it_is_as_short_as_usual() {
    let look = |tx: &Txn| {
        for id in 0..12 {
            let mut room = RowRoom::new();
            let row = Named::get_in(tx, id, &mut room).unwrap();
            let (name, length) = ("ab".repeat(id as usize), 2 * id as usize);
            assert_eq!(row.name.as_str(), name);
            match row.name.in_place() {
                Some(bytes) => assert_eq!(bytes[..length], *name.as_bytes()),
                None => assert!(length > 8, "{name}"),
            }
        }
        assert_eq!(TextRef::<8>::from("short").in_place(), None);
        Ok(())
    };
    filled().run(look).unwrap();
}
