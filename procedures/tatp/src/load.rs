//! Filling: one subscriber with everything that belongs to it, from the transaction's random numbers.

use reprise_procedure::prelude::*;

use crate::{
    START_TIMES,
    tables::{AccessInfo, CallForwarding, SpecialFacility, Subscriber, SubscriberNumber},
};

/// `s_id` in 15 digits.
pub fn sub_nbr_of(s_id: i32) -> SmallText<15> {
    let mut rest = s_id.unsigned_abs();
    let mut digits = [b'0'; 15];
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    text(&digits)
}

/// The numbers that a call of `load_numbers` takes at most.
const NUMBERS_MAX: i32 = 10_000;

/// Gives each subscriber from `first` to `last` its number. A subscriber that has a number keeps it.
#[procedure(all_partitions, time_max_ms = 60_000)]
pub fn load_numbers(tx: &Txn, first: i32, last: i32) -> Result<(), Abort> {
    let is_range = first >= 1 && first <= last && last - first < NUMBERS_MAX;
    if !is_range {
        abort!(
            "bad_range",
            "subscribers are numbered from 1, and a call takes at most {NUMBERS_MAX}"
        );
    }
    for s_id in first..=last {
        let sub_nbr = sub_nbr_of(s_id);
        if !SubscriberNumber::exists(tx, sub_nbr) {
            SubscriberNumber::insert(tx, &SubscriberNumber { sub_nbr, s_id })?;
        }
    }
    Ok(())
}

/// Makes a subscriber with 1 to 4 accesses, 1 to 4 facilities, and 0 to 3 forwardings of each; there already: changes nothing.
#[procedure(partition_by(s_id))]
pub fn load_subscriber(tx: &Txn, s_id: i32) -> Result<(), Abort> {
    if s_id < 1 {
        abort!("bad_s_id", "subscribers are numbered from 1");
    }
    if Subscriber::exists(tx, s_id) {
        return Ok(());
    }
    Subscriber::insert(tx, &subscriber(tx, s_id))?;
    for ai_type in some_of_four(tx) {
        let bytes = tx.random().to_le_bytes();
        let row = AccessInfo {
            s_id,
            ai_type,
            data1: bytes[0],
            data2: bytes[1],
            data3: letters(tx),
            data4: letters(tx),
        };
        AccessInfo::insert(tx, &row)?;
    }
    for sf_type in some_of_four(tx) {
        let bytes = tx.random().to_le_bytes();
        let row = SpecialFacility {
            s_id,
            sf_type,
            is_active: tx.random_below(100) < 85,
            error_cntrl: bytes[0],
            data_a: bytes[1],
            data_b: letters(tx),
        };
        SpecialFacility::insert(tx, &row)?;
        load_forwardings(tx, s_id, sf_type)?;
    }
    Ok(())
}

fn load_forwardings(tx: &Txn, s_id: i32, sf_type: u8) -> Result<(), Abort> {
    let mut left = tx.random_below(4);
    for (at, start_time) in (0_u64..).zip(START_TIMES) {
        // Each of the hours that are left is as likely as the others to be among the forwardings that are left.
        if tx.random_below(3 - at) >= left {
            continue;
        }
        left -= 1;
        let row = CallForwarding {
            s_id,
            sf_type,
            start_time,
            end_time: start_time + 1 + tx.random_below(8) as u8,
            numberx: digits(tx),
        };
        CallForwarding::insert(tx, &row)?;
    }
    Ok(())
}

/// 1 to 4 of the numbers 1 to 4, ascending.
fn some_of_four(tx: &Txn) -> impl Iterator<Item = u8> {
    let mut left = 1 + tx.random_below(4);
    let mut chosen = 0_u8;
    for number in 1..=4_u8 {
        if tx.random_below(5 - u64::from(number)) < left {
            chosen |= 1 << number;
            left -= 1;
        }
    }
    (1..=4).filter(move |number| chosen & 1 << number != 0)
}

fn letters<const N: usize>(tx: &Txn) -> SmallText<N> {
    let bits = tx.random().to_le_bytes();
    let mut out = [b'A'; N];
    for (letter, bits) in out.iter_mut().zip(bits) {
        *letter += bits % 26;
    }
    text(&out)
}

fn digits(tx: &Txn) -> SmallText<15> {
    let mut rest = tx.random();
    let mut out = [b'0'; 15];
    for digit in &mut out {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    text(&out)
}

fn text<const N: usize>(ascii: &[u8; N]) -> SmallText<N> {
    let text = core::str::from_utf8(ascii).unwrap_or_default();
    SmallText::new(text).unwrap_or_default()
}

fn subscriber(tx: &Txn, s_id: i32) -> Subscriber {
    let (bits, hexes) = (tx.random(), tx.random());
    let mut bytes = [0; 10];
    for byte in &mut bytes {
        *byte = tx.random() as u8;
    }
    Subscriber {
        s_id,
        sub_nbr: sub_nbr_of(s_id),
        bit_1: bits & 1 << 0 != 0,
        bit_2: bits & 1 << 1 != 0,
        bit_3: bits & 1 << 2 != 0,
        bit_4: bits & 1 << 3 != 0,
        bit_5: bits & 1 << 4 != 0,
        bit_6: bits & 1 << 5 != 0,
        bit_7: bits & 1 << 6 != 0,
        bit_8: bits & 1 << 7 != 0,
        bit_9: bits & 1 << 8 != 0,
        bit_10: bits & 1 << 9 != 0,
        hex_1: (hexes & 15) as u8,
        hex_2: (hexes >> 4 & 15) as u8,
        hex_3: (hexes >> 8 & 15) as u8,
        hex_4: (hexes >> 12 & 15) as u8,
        hex_5: (hexes >> 16 & 15) as u8,
        hex_6: (hexes >> 20 & 15) as u8,
        hex_7: (hexes >> 24 & 15) as u8,
        hex_8: (hexes >> 28 & 15) as u8,
        hex_9: (hexes >> 32 & 15) as u8,
        hex_10: (hexes >> 36 & 15) as u8,
        byte2_1: bytes[0],
        byte2_2: bytes[1],
        byte2_3: bytes[2],
        byte2_4: bytes[3],
        byte2_5: bytes[4],
        byte2_6: bytes[5],
        byte2_7: bytes[6],
        byte2_8: bytes[7],
        byte2_9: bytes[8],
        byte2_10: bytes[9],
        msc_location: 1 + tx.random_below(u64::from(u32::MAX)) as u32,
        vlr_location: 1 + tx.random_below(u64::from(u32::MAX)) as u32,
    }
}
