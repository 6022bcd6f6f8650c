//! Visibility: a procedure sees the rows of its call's partitions, through a cursor as they were when it was opened.
use reprise_procedure::{
    prelude::*,
    testkit::{TestDb, TestError},
};

#[table(name = "seats", primary_key(event, number), index(cost, price), partition_by = event)]
#[derive(Clone, Debug, PartialEq)]
pub struct Seat {
    pub event: i64,
    pub number: i32,
    pub price: i64,
    pub held: i32,
}

/// A table without a primary key, whose rows are on the call's partition.
#[table(name = "notes", local)]
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    pub text: String,
}

#[table(name = "rules", primary_key(id), replicated)]
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub id: i64,
    pub value: i64,
}

#[procedure(partition_by(event))]
fn fill(tx: &Txn, event: i64, seats: i32) -> Result<(), Abort> {
    for number in 0..seats {
        let price = i64::from(number % 10);
        Seat::insert(
            tx,
            &Seat {
                event,
                number,
                price,
                held: 0,
            },
        )?;
    }
    Note::insert(
        tx,
        &Note {
            text: format!("filled {event}"),
        },
    )?;
    Ok(())
}

/// Reads seat 0 of an event in one of the ways that there are.
#[procedure(partition_by(event))]
fn read(tx: &Txn, event: i64, of: i64, way: i32) -> i64 {
    match way {
        0 => Seat::get(tx, (of, 0)).map_or(-1, |seat| seat.price),
        1 => Seat::exists(tx, (of, 0)) as i64,
        2 => Seat::find(tx, (of, 0)).is_some() as i64,
        3 => Seat::multi_get(tx, [(event, 0), (of, 0)]).len() as i64,
        4 => Seat::add_held(tx, (of, 0), 1).map_or(-1, i64::from),
        5 => Seat::scan(tx).prefix((of,)).count() as i64,
        6 => Seat::scan(tx).range((of, 0)..(of, 5)).iter().count() as i64,
        _ => Seat::scan(tx).prefix((of, 0)).first().is_some() as i64,
    }
}

/// Reads without a word of where.
#[procedure(partition_by(event))]
fn look(tx: &Txn, event: i64, way: i32) -> i64 {
    assert!(event >= 0, "as the test passes it");
    match way {
        0 => Seat::count(tx) as i64,
        1 => Seat::scan(tx).iter().count() as i64,
        2 => Seat::scan_by_cost(tx).prefix(3).iter().count() as i64,
        3 => Seat::count_local(tx) as i64,
        4 => Seat::scan_local(tx).iter().count() as i64,
        5 => Seat::scan_local_by_cost(tx).prefix(3).iter().count() as i64,
        6 => Note::scan(tx).count() as i64,
        _ => Rule::count(tx) as i64,
    }
}

#[procedure(all_partitions)]
fn rule(tx: &Txn, id: i64) -> Result<i64, Abort> {
    Rule::insert(tx, &Rule { id, value: id })?;
    Ok(Seat::count(tx) as i64)
}

/// Raises each price, in the order of prices.
#[procedure(partition_by(event))]
fn raise(tx: &Txn, event: i64, by: i64) -> Result<i32, Abort> {
    let mut raised = 0;
    for mut seat in Seat::scan_local_by_cost(tx) {
        assert_eq!(seat.event, event, "the test has one event on each partition");
        seat.price += by;
        seat.update(tx)?;
        raised += 1;
    }
    Ok(raised)
}

reprise_procedure::module! {
    tables: [Seat, Note, Rule],
    procedures: [fill, read, look, rule, raise],
}

fn refusal<R: std::fmt::Debug>(result: Result<R, TestError>) -> String {
    match result {
        Err(TestError::Fault(reason)) => reason,
        other => panic!("{other:?} instead of a fault"),
    }
}

#[test]
fn reads_beyond_the_calls_partitions_are_refused_by_name() {
    for partitions in [2, 3, 7] {
        let mut db = TestDb::new(&MODULE).with_partitions(partitions);
        db.call::<()>("fill", (0_i64, 20)).unwrap();
        db.call::<()>("fill", (1_i64, 20)).unwrap();
        for way in 0..8 {
            assert!(db.call::<i64>("read", (1_i64, 1_i64, way)).is_ok(), "way {way}");
            let reason = refusal(db.call::<i64>("read", (1_i64, 0_i64, way)));
            let told = "the row of seats belongs to partition 0, the call runs on partition 1 alone";
            assert_eq!(reason, told, "way {way}");
        }
        for way in 0..3 {
            let reason = refusal(db.call::<i64>("look", (1_i64, way)));
            assert!(
                reason.contains("does not hold event") && reason.contains("scan_local"),
                "{reason}"
            );
        }
        let seen = (3..8).map(|way| db.call::<i64>("look", (1_i64, way)).unwrap());
        assert_eq!(seen.collect::<Vec<_>>(), [20, 20, 2, 1, 0]);
        assert_eq!(db.call::<i64>("rule", (5_i64,)), Ok(40));
        assert_eq!(
            db.call::<i64>("look", (1_i64, 7)),
            Ok(1),
            "a replicated table is everywhere"
        );
        assert_eq!((db.count("rules"), db.count("seats")), (1, 40));
    }
}

#[test]
fn one_partition_holds_everything() {
    let mut db = TestDb::new(&MODULE).with_partitions(1);
    db.call::<()>("fill", (0_i64, 20)).unwrap();
    db.call::<()>("fill", (1_i64, 20)).unwrap();
    assert!((0..8).all(|way| db.call::<i64>("read", (1_i64, 0_i64, way)).is_ok()));
    let seen = (0..7).map(|way| db.call::<i64>("look", (1_i64, way)).unwrap());
    assert_eq!(seen.collect::<Vec<_>>(), [40, 40, 4, 40, 40, 4, 2]);
}

#[test]
fn a_loop_over_an_index_meets_each_row_once() {
    let mut db = TestDb::new(&MODULE);
    db.call::<()>("fill", (1_i64, 500)).unwrap();
    assert_eq!(db.call::<i32>("raise", (1_i64, 1000_i64)), Ok(500));
    db.run(|tx| {
        assert!(
            Seat::scan(tx)
                .into_iter()
                .all(|seat| seat.price == 1000 + i64::from(seat.number % 10))
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_cursor_shows_what_there_was_and_an_older_copy_is_not_written_back() {
    let mut db = TestDb::new(&MODULE);
    db.call::<()>("fill", (1_i64, 300)).unwrap();
    db.run(|tx| {
        let mut rows = Seat::scan(tx).batch_bytes(64).iter();
        let first = rows.next().unwrap();
        Seat::get(tx, (1, 5)).unwrap().delete(tx);
        Seat::insert(
            tx,
            &Seat {
                event: 1,
                number: 1000,
                price: 0,
                held: 0,
            },
        )?;
        Seat::add_held(tx, (1, 6), 9);
        let rest: Vec<_> = rows.collect();
        assert_eq!(
            (first.number, rest.len()),
            (0, 299),
            "one was deleted, another one is new"
        );
        assert_eq!((rest[4].number, rest[5].held), (5, 0));
        rest[6].update(tx)?;
        Ok(())
    })
    .unwrap();
    let stale = db.run(|tx| {
        let before = Seat::get(tx, (1, 8)).unwrap();
        Seat::add_held(tx, (1, 8), 1);
        before.update(tx)?;
        Ok(())
    });
    assert!(refusal(stale).contains("the row of seats was changed by this call after it was read"));
    db.run(|tx| {
        let (mut one, mut other) = (Seat::get(tx, (1, 8)).unwrap(), Seat::get(tx, (1, 8)).unwrap());
        one.add(tx, Seat::HELD, 1);
        one.update(tx)?;
        one.update(tx)?;
        other.add(tx, Seat::HELD, 1);
        other.refresh(tx);
        assert_eq!(other.held, 2);
        other.update(tx)?;
        Ok(())
    })
    .unwrap();
}
