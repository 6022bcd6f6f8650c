//! The shop: no other customer gets held seats, bought seats are paid for, and seats of an ended hold are free again.

// A test ends where something is not there.
#![allow(clippy::unwrap_used)]

use reprise_procedure::{
    prelude::*,
    testkit::{START_US, TestDb},
};
use tickets::*;

fn shop() -> TestDb {
    let mut db = TestDb::new(&MODULE);
    let starts = Timestamp(START_US) + Duration::from_days(30);
    let price = "12.50".parse().unwrap();
    assert_eq!(create_event::call(&mut db, 1, "Concert", starts, price, 3, 4), Ok(12));
    register::call(&mut db, 7, "Ada", "ada@example.org").unwrap();
    register::call(&mut db, 8, "Ben", "ben@example.org").unwrap();
    db
}

fn code<T: std::fmt::Debug>(result: Result<T, reprise_procedure::testkit::TestError>) -> String {
    result.unwrap_err().code().expect("an abort").to_owned()
}

/// Returns the free, held and sold seats of event 1 by the rows, and the free seats by the event.
fn counts(db: &mut TestDb) -> [i64; 4] {
    let all = seats::call(db, 1).unwrap();
    let of = |state| all.iter().filter(|seat| seat.state == state).count() as i64;
    let free = i64::from(event::call(db, 1).unwrap().free);
    [of(SeatState::Free), of(SeatState::Held), of(SeatState::Sold), free]
}

#[test]
fn a_hold_is_bought_once() {
    let mut db = shop();
    let held = hold::call(&mut db, 1, 7, 3).unwrap();
    assert_eq!(
        (held.seats.join(" "), held.amount),
        ("A1 A2 A3".to_owned(), "37.50".parse().unwrap())
    );
    assert_eq!(counts(&mut db), [9, 3, 0, 9]);
    assert_eq!(code(checkout::call(&mut db, 1, 8, held.hold, "p-1")), "not_yours");

    let bought = checkout::call(&mut db, 1, 7, held.hold, "p-1").unwrap();
    assert_eq!((bought.seats, bought.amount), (3, held.amount));
    assert_eq!(code(checkout::call(&mut db, 1, 7, held.hold, "p-1")), "unknown_hold");
    assert_eq!(counts(&mut db), [9, 0, 3, 9]);
    assert_eq!(customer::call(&mut db, 7).unwrap().spent, held.amount);
    assert_eq!(purchases::call(&mut db, 7).unwrap()[0].order, bought.order);
    assert_eq!(orders_of_event::call(&mut db, 1).unwrap(), [bought]);
    assert_eq!(revenue::call(&mut db).unwrap()[0].amount, held.amount);
}

#[test]
fn held_seats_belong_to_one_buyer_until_they_end() {
    let mut db = shop();
    let first = hold::call(&mut db, 1, 7, 10).unwrap();
    assert_eq!(code(hold::call(&mut db, 1, 8, 3)), "sold_out");
    assert_eq!(hold::call(&mut db, 1, 8, 2).unwrap().seats.join(" "), "C3 C4");
    assert_eq!(release::call(&mut db, 1, first.hold), Ok(10));
    assert_eq!(code(release::call(&mut db, 1, first.hold)), "unknown_hold");
    assert_eq!(counts(&mut db), [10, 2, 0, 10]);

    // Ten minutes later the other two are free again, too, once the next customer asks.
    db.set_now_us(START_US + 11 * 60_000_000);
    assert_eq!(hold::call(&mut db, 1, 7, 12).unwrap().seats.len(), 12);
    db.set_now_us(START_US + 22 * 60_000_000);
    assert_eq!(expire::call(&mut db, 1), Ok(12));
    assert_eq!(counts(&mut db), [12, 0, 0, 12]);

    db.set_now_us(START_US + 31 * 86_400_000_000);
    assert_eq!(code(hold::call(&mut db, 1, 7, 1)), "too_late");
}

#[test]
fn an_address_is_of_one_customer() {
    let mut db = shop();
    assert_eq!(
        code(register::call(&mut db, 9, "Eve", "ada@example.org")),
        "email_taken"
    );
    assert_eq!(code(customer::call(&mut db, 9)), "unknown_customer");
    assert_eq!(
        code(change_email::call(&mut db, 7, "ada@example.org", "ben@example.org")),
        "email_taken"
    );
    change_email::call(&mut db, 7, "ada@example.org", "ada@new.example.org").unwrap();
    register::call(&mut db, 9, "Eve", "ada@example.org").unwrap();
    assert_eq!(customer::call(&mut db, 7).unwrap().email, "ada@new.example.org");
    assert_eq!(
        code(change_email::call(&mut db, 7, "ada@example.org", "x@y")),
        "another_email"
    );
}

#[test]
fn invalid_arguments_are_refused() {
    let mut db = shop();
    let (now, price) = (Timestamp(START_US), Decimal::from_whole(1));
    assert_eq!(
        code(create_event::call(&mut db, 1, "Again", now, price, 1, 1)),
        "event_exists"
    );
    assert_eq!(
        code(create_event::call(&mut db, 2, "None", now, price, 0, 5)),
        "bad_size"
    );
    assert_eq!(
        code(create_event::call(&mut db, 2, "Huge", now, price, 30_000, 30_000)),
        "bad_size"
    );
    assert_eq!(
        code(create_event::call(
            &mut db,
            2,
            "Gift",
            now,
            "-0.01".parse().unwrap(),
            1,
            1
        )),
        "bad_price"
    );
    assert_eq!(
        create_event::call(&mut db, 2, "Many rows", now, price, 10_000, 1),
        Ok(10_000)
    );
    assert_eq!(
        seats::call(&mut db, 2)
            .unwrap()
            .iter()
            .filter(|seat| seat.row.len() == 3)
            .count(),
        10_000 - 26 - 26 * 26
    );
    for count in [0, -1, 21] {
        assert_eq!(code(hold::call(&mut db, 1, 7, count)), "bad_count");
    }
    assert_eq!(code(hold::call(&mut db, 9, 7, 1)), "unknown_event");
}
