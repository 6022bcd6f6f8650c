//! The TATP module on the test kit.
#![allow(clippy::unwrap_used)]

use reprise_procedure::{testkit::TestDb, value::Args};
use tatp::{Change, MODULE, SubscriberCheck, sub_nbr_of};

fn loaded(subscribers: i32) -> TestDb {
    let mut db = TestDb::new(&MODULE);
    db.call::<()>("load_numbers", (1, subscribers)).unwrap();
    for s_id in 1..=subscribers {
        db.call::<()>("load_subscriber", (s_id,)).unwrap();
    }
    db
}

fn change(db: &mut TestDb, procedure: &str, args: impl Args) -> Change {
    db.call(procedure, args).unwrap()
}

fn counted(db: &mut TestDb, subscribers: i32) -> SubscriberCheck {
    db.call("check", (1, subscribers)).unwrap()
}

/// The first subscriber and facility with (or without) a forwarding at 8.
fn facility(db: &mut TestDb, is_forwarded: bool) -> (i32, u8) {
    db.run(|tx| {
        let has = |s_id, sf| tatp::SpecialFacility::exists(tx, (s_id, sf));
        let forwarded = |s_id, sf| tatp::CallForwarding::exists(tx, (s_id, sf, 8));
        let mut pairs = (1..=100).flat_map(|s_id| (1..=4_u8).map(move |sf| (s_id, sf)));
        let found = pairs.find(|&(s_id, sf)| has(s_id, sf) && forwarded(s_id, sf) == is_forwarded);
        Ok(found.unwrap())
    })
    .unwrap()
}

#[test]
fn the_population_has_the_shares_of_the_description() {
    const COUNT: i64 = 2_000;
    let mut db = loaded(COUNT as i32);
    let found = counted(&mut db, COUNT as i32);
    assert_eq!((found.subscribers, found.broken), (COUNT, 0));
    let near = |count: i64, mean: f64| {
        let found = count as f64 / COUNT as f64;
        assert!((found / mean - 1.0).abs() < 0.05, "{found} of {mean}");
    };
    near(found.access_infos, 2.5);
    near(found.special_facilities, 2.5);
    near(found.call_forwardings, 2.5 * 1.5);
    let active = (1..=COUNT as i32).flat_map(|s_id| (1..=4_u8).map(move |sf| (s_id, sf)));
    let active = db.run(|tx| {
        let facilities = active.filter_map(|key| tatp::SpecialFacility::get(tx, key));
        Ok(facilities.filter(|facility| facility.is_active).count())
    });
    near(active.unwrap() as i64, 2.5 * 0.85);
    // Loading again changes nothing.
    db.call::<()>("load_subscriber", (1,)).unwrap();
    db.call::<()>("load_numbers", (1, 5)).unwrap();
    assert_eq!(counted(&mut db, COUNT as i32), found);
}

#[test]
fn numbers_have_fifteen_digits() {
    assert_eq!(sub_nbr_of(1), "000000000000001");
    assert_eq!(sub_nbr_of(i32::MAX), "000002147483647");
}

#[test]
fn forwardings_come_and_go_once() {
    let mut db = loaded(100);
    let (s_id, sf_type) = facility(&mut db, false);
    let before = counted(&mut db, 100);
    let number = sub_nbr_of(s_id);
    let (number, numberx) = (number.as_str(), "123456789012345");
    let insert = (s_id, number, sf_type, 8_u8, 12_u8, numberx);
    assert_eq!(change(&mut db, "insert_call_forwarding", insert), Change::Done);
    assert_eq!(change(&mut db, "insert_call_forwarding", insert), Change::Exists);
    let after = counted(&mut db, 100);
    assert_eq!(after.call_forwardings, before.call_forwardings + 1);
    db.run(|tx| {
        let mut row = tatp::SpecialFacility::get(tx, (s_id, sf_type)).unwrap();
        row.is_active = true;
        row.update(tx)?;
        Ok(())
    })
    .unwrap();
    let asked = |db: &mut TestDb, start: u8, end: u8| {
        let args = (s_id, sf_type, start, end);
        let found: Vec<String> = db.call("get_new_destination", args).unwrap();
        found.contains(&numberx.to_owned())
    };
    assert!(asked(&mut db, 8, 11) && asked(&mut db, 16, 1));
    assert!(!asked(&mut db, 8, 12), "it has ended");
    assert!(!asked(&mut db, 0, 1), "it has not begun");
    let delete = (s_id, number, sf_type, 8_u8);
    assert_eq!(change(&mut db, "delete_call_forwarding", delete), Change::Done);
    assert_eq!(change(&mut db, "delete_call_forwarding", delete), Change::NotFound);
    assert_eq!(counted(&mut db, 100), before);
}

#[test]
fn missing_rows_are_an_answer() {
    let mut db = loaded(3);
    let other = sub_nbr_of(2);
    let other = other.as_str();
    for (unknown_nbr, home) in [("000000000000004", 2), ("2", 2), ("0000000000000002", 2), ("", 2)] {
        assert_eq!(
            change(&mut db, "update_location", (home, unknown_nbr, 5_u32)),
            Change::NotFound
        );
        assert_eq!(db.call::<Option<i32>>("find_subscriber", (unknown_nbr,)).unwrap(), None);
    }
    // The number finds the row. The value that routes the call must name the row's partition.
    assert_eq!(change(&mut db, "update_location", (2, other, 7_u32)), Change::Done);
    for home in [1, 10] {
        assert!(db.call::<Change>("update_location", (home, other, 8_u32)).is_err());
    }
    let location = db.run(|tx| Ok(tatp::Subscriber::get(tx, 2).unwrap().vlr_location));
    assert_eq!(location.unwrap(), 7);
    assert_eq!(db.call::<Option<i32>>("find_subscriber", (other,)).unwrap(), Some(2));
    for sf_type in [0_u8, 5, 255] {
        let insert = (2, other, sf_type, 8_u8, 9_u8, "1");
        assert_eq!(change(&mut db, "insert_call_forwarding", insert), Change::NotFound);
        let update = (2, true, sf_type, 1_u8);
        assert_eq!(change(&mut db, "update_subscriber_data", update), Change::NotFound);
    }
    let refused = |db: &mut TestDb, start: u8, numberx: &str| {
        let insert = (2, other, 1_u8, start, 9_u8, numberx);
        let refused = db.call::<Change>("insert_call_forwarding", insert);
        refused.unwrap_err().code().unwrap().to_owned()
    };
    assert_eq!(refused(&mut db, 7, "1"), "bad_start_time");
    assert_eq!(refused(&mut db, 8, "1234567890123456"), "bad_number");
    assert_eq!(
        db.call::<()>("load_subscriber", (0,)).unwrap_err().code(),
        Some("bad_s_id")
    );
    for range in [(0, 5), (5, 4), (1, 10_001)] {
        let refused = db.call::<()>("load_numbers", range).unwrap_err();
        assert_eq!(refused.code(), Some("bad_range"));
    }
}

#[test]
fn mismatched_rows_are_seen() {
    let mut db = loaded(20);
    assert_eq!(counted(&mut db, 20).broken, 0);
    db.run(|tx| {
        tatp::SubscriberNumber::get(tx, sub_nbr_of(7)).unwrap().delete(tx);
        Ok(())
    })
    .unwrap();
    assert_eq!(counted(&mut db, 20).broken, 1, "a number is gone");
    db.run(|tx| {
        tatp::Subscriber::get(tx, 9).unwrap().delete(tx);
        Ok(())
    })
    .unwrap();
    assert_eq!(counted(&mut db, 20).broken, 2, "a subscriber is gone");
}

#[test]
fn an_update_changes_both_rows_or_none() {
    let mut db = loaded(100);
    let (s_id, sf_type) = facility(&mut db, false);
    let rows = |db: &mut TestDb| {
        let read = db.run(|tx| {
            let subscriber = tatp::Subscriber::get(tx, s_id).unwrap();
            let facility = tatp::SpecialFacility::get(tx, (s_id, sf_type)).unwrap();
            Ok((subscriber.bit_1, facility.data_a))
        });
        read.unwrap()
    };
    let (bit, data) = rows(&mut db);
    let update = (s_id, !bit, sf_type, !data);
    assert_eq!(change(&mut db, "update_subscriber_data", update), Change::Done);
    assert_eq!(rows(&mut db), (!bit, !data));
    assert_eq!(
        change(&mut db, "update_subscriber_data", (s_id, bit, 9_u8, data)),
        Change::NotFound
    );
    assert_eq!(rows(&mut db), (!bit, !data));
}
