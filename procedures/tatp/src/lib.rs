//! The sample module `tatp`: the home location register of the TATP benchmark, with its seven transactions.
//! Owns: the tables `subscriber`, `access_info`, `special_facility`, `call_forwarding`, `subscriber_number` and the procedures
//!   on them.
//! Does not: know partitions; everything of a subscriber lies where the subscriber lies, and the numbers everywhere.
//! Invariants: every row belongs to a subscriber; a forwarding belongs to a special facility; each subscriber has one number.
//! Called by: users of the sample, the driver, benchmarks.
//!
//! Names, columns and distributions are those of the TATP benchmark description, version 1.0. A look-up that finds nothing and a key that
//! is taken are answers, not aborts: the benchmark counts on both. Where the description finds the subscriber by `sub_nbr`, so do the
//! procedures, through the unique key of `subscriber_number`. Such a call is sent to the partition of `home`, which no procedure reads. The
//! caller believes the subscriber to be there: `home` is a number's `s_id` as `find_subscriber` returned it. A subscriber on another
//! partition is not found.
#![deny(unsafe_code)]

mod load;
mod tables;

use reprise_procedure::{advanced::*, prelude::*};

pub use load::{load_numbers, load_subscriber, sub_nbr_of};
pub use tables::{AccessInfo, CallForwarding, SpecialFacility, Subscriber, SubscriberNumber};
use tables::{Activity, Bit, DataA, Location};

/// Hours at which a forwarding can begin.
pub const START_TIMES: [u8; 3] = [0, 8, 16];
pub const SF_TYPES: core::ops::RangeInclusive<u8> = 1..=4;
pub const AI_TYPES: core::ops::RangeInclusive<u8> = 1..=4;

/// The answer of `get_access_data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ProcedureResult)]
pub struct AccessData {
    pub data1: u8,
    pub data2: u8,
    pub data3: SmallText<3>,
    pub data4: SmallText<5>,
}

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ProcedureEnum)]
pub enum Change {
    Done,
    /// The row that it needs is not there.
    NotFound,
    /// The row that it makes is there already.
    Exists,
}

/// The answer of `check`: rows, and rows that break a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ProcedureStruct)]
pub struct SubscriberCheck {
    pub subscribers: i64,
    pub access_infos: i64,
    pub special_facilities: i64,
    pub call_forwardings: i64,
    pub broken: i64,
}

/// The subscriber's row.
#[procedure(partition_by(s_id), read_only, prefetch(Subscriber(s_id)))]
pub fn get_subscriber_data(tx: &Txn, s_id: i32) -> Option<Subscriber> {
    Subscriber::get(tx, s_id).map(Row::into_inner)
}

/// Returns the numbers to which calls of an active facility are forwarded between `start_time` and `end_time`.
#[procedure(partition_by(s_id), read_only, prefetch(SpecialFacility(s_id, sf_type)))]
pub fn get_new_destination(tx: &Txn, s_id: i32, sf_type: u8, start_time: u8, end_time: u8) -> Vec<SmallText<15>> {
    let facility = Activity::get(tx, (s_id, sf_type));
    if !facility.is_some_and(|facility| facility.is_active) {
        return Vec::new();
    }
    let mut destinations = Vec::new();
    for start in START_TIMES {
        if start > start_time {
            break;
        }
        if let Some(forwarding) = CallForwarding::get(tx, (s_id, sf_type, start))
            && end_time < forwarding.end_time
        {
            destinations.push(forwarding.numberx);
        }
    }
    destinations
}

/// The data of one access of a subscriber.
#[procedure(partition_by(s_id), read_only, prefetch(AccessInfo(s_id, ai_type)))]
pub fn get_access_data(tx: &Txn, s_id: i32, ai_type: u8) -> Option<AccessData> {
    let info = AccessInfo::get(tx, (s_id, ai_type))?;
    Some(AccessData {
        data1: info.data1,
        data2: info.data2,
        data3: info.data3,
        data4: info.data4,
    })
}

/// Changes a bit of the subscriber and a byte of its facility. It changes both, or nothing if there is no such facility.
#[procedure(partition_by(s_id), prefetch(Subscriber(s_id)))]
pub fn update_subscriber_data(tx: &Txn, s_id: i32, bit_1: bool, sf_type: u8, data_a: u8) -> Result<Change, Abort> {
    let Some(subscriber) = Subscriber::find(tx, s_id) else {
        return Ok(Change::NotFound);
    };
    let Some(facility) = SpecialFacility::find(tx, (s_id, sf_type)) else {
        return Ok(Change::NotFound);
    };
    Bit { bit_1 }.write(tx, subscriber.handle())?;
    DataA { data_a }.write(tx, facility.handle())?;
    Ok(Change::Done)
}

/// Returns the id of the subscriber that has a number.
#[procedure(partition_by(sub_nbr), read_only)]
pub fn find_subscriber(tx: &Txn, sub_nbr: &str) -> Option<i32> {
    id_of(tx, sub_nbr)
}

/// Records the place of the subscriber.
#[procedure(partition_by(home))]
pub fn update_location(tx: &Txn, home: i32, sub_nbr: &str, vlr_location: u32) -> Result<Change, Abort> {
    let _ = home; // for the router
    let subscriber = id_of(tx, sub_nbr).and_then(|s_id| Subscriber::find(tx, s_id));
    let Some(subscriber) = subscriber else {
        return Ok(Change::NotFound);
    };
    Location { vlr_location }.write(tx, subscriber.handle())?;
    Ok(Change::Done)
}

/// Forwards calls of a facility from `start_time` to `end_time`.
#[procedure(partition_by(home))]
pub fn insert_call_forwarding(
    tx: &Txn,
    home: i32,
    sub_nbr: &str,
    sf_type: u8,
    start_time: u8,
    end_time: u8,
    numberx: &str,
) -> Result<Change, Abort> {
    let _ = home; // for the router
    let numberx = SmallText::new(numberx).ok_or_else(too_long)?;
    if !START_TIMES.contains(&start_time) {
        abort!("bad_start_time", "a forwarding begins at 0, 8 or 16");
    }
    let Some(s_id) = id_of(tx, sub_nbr) else {
        return Ok(Change::NotFound);
    };
    // The description reads all facilities of the subscriber; the one that is wanted must be among them.
    let has = |wanted| SpecialFacility::exists(tx, (s_id, wanted));
    let found = SF_TYPES
        .filter(|&wanted| has(wanted))
        .fold(0_u8, |found, one| found | 1 << one);
    if !SF_TYPES.contains(&sf_type) || found & 1 << sf_type == 0 {
        return Ok(Change::NotFound);
    }
    let row = CallForwarding {
        s_id,
        sf_type,
        start_time,
        end_time,
        numberx,
    };
    Ok(match CallForwarding::insert(tx, &row) {
        Ok(_) => Change::Done,
        Err(_) => Change::Exists,
    })
}

/// Takes a forwarding away.
#[procedure(partition_by(home))]
pub fn delete_call_forwarding(tx: &Txn, home: i32, sub_nbr: &str, sf_type: u8, start_time: u8) -> Change {
    let _ = home; // for the router
    let Some(s_id) = id_of(tx, sub_nbr) else {
        return Change::NotFound;
    };
    match CallForwarding::find(tx, (s_id, sf_type, start_time)) {
        None => Change::NotFound,
        Some(forwarding) => {
            forwarding.delete(tx);
            Change::Done
        }
    }
}

/// Looks at all rows of the subscribers from `first` to `last`, at one point in time.
#[procedure(all_partitions, read_only, time_max_ms = 60_000)]
pub fn check(tx: &Txn, first: i32, last: i32) -> SubscriberCheck {
    let mut found = SubscriberCheck::default();
    for s_id in first..=last {
        found.look_at(tx, s_id);
    }
    found
}

impl SubscriberCheck {
    fn look_at(&mut self, tx: &Txn, s_id: i32) {
        let subscriber = Subscriber::get(tx, s_id);
        let is_there = subscriber.is_some();
        if let Some(subscriber) = subscriber {
            self.subscribers += 1;
            self.broken += i64::from(id_of(tx, &subscriber.sub_nbr) != Some(s_id));
        }
        let accesses = AI_TYPES
            .filter(|ai_type| AccessInfo::exists(tx, (s_id, *ai_type)))
            .count() as i64;
        let mut facilities = 0;
        for sf_type in SF_TYPES {
            let has_facility = SpecialFacility::exists(tx, (s_id, sf_type));
            facilities += i64::from(has_facility);
            for start_time in START_TIMES {
                if let Some(row) = CallForwarding::get(tx, (s_id, sf_type, start_time)) {
                    self.call_forwardings += 1;
                    self.broken += i64::from(!has_facility || row.end_time <= start_time);
                }
            }
        }
        self.broken += i64::from(is_there != (accesses > 0) || is_there != (facilities > 0));
        self.access_infos += accesses;
        self.special_facilities += facilities;
    }
}

/// The look-up by number.
#[inline]
fn id_of(tx: &Txn, sub_nbr: &str) -> Option<i32> {
    let number = SmallText::new(sub_nbr)?;
    Some(SubscriberNumber::get(tx, number)?.s_id)
}

#[cold]
fn too_long() -> Abort {
    Abort::new("bad_number", "numberx has at most 15 characters")
}

reprise_procedure::module! {
    tables: [Subscriber, AccessInfo, SpecialFacility, CallForwarding, SubscriberNumber],
    procedures: [
        load_numbers, load_subscriber, get_subscriber_data, get_new_destination, get_access_data, update_subscriber_data,
        find_subscriber, update_location, insert_call_forwarding, delete_call_forwarding, check,
    ],
}
