//! Events and their seats.

use reprise_procedure::prelude::*;

use crate::tables::{Event, Seat, SeatState};

/// Seats that an event has at most.
const SEATS_MAX: i64 = 10_000;

/// The answer of `event`.
#[derive(Clone, Debug, PartialEq, ProcedureStruct)]
pub struct EventView {
    pub name: String,
    pub starts: Timestamp,
    pub price: Decimal<2>,
    pub free: i32,
}

/// The answer of `seats` for each seat.
#[derive(Clone, Debug, PartialEq, ProcedureStruct)]
pub struct SeatView {
    pub row: String,
    pub number: i16,
    pub state: SeatState,
}

/// Puts an event on sale with `rows` rows, named A, B and so on, of `seats_per_row` seats.
#[procedure(partition_by(event))]
pub fn create_event(
    tx: &Txn,
    event: i64,
    name: &str,
    starts: Timestamp,
    price: Decimal<2>,
    rows: i16,
    seats_per_row: i16,
) -> Result<i32, Abort> {
    let seats = i64::from(rows) * i64::from(seats_per_row);
    if rows < 1 || seats_per_row < 1 || seats > SEATS_MAX {
        abort!(
            "bad_size",
            "an event has 1 to {SEATS_MAX} seats, not {rows} rows of {seats_per_row}"
        );
    }
    if price < Decimal::from_whole(0) {
        abort!("bad_price", "a seat can't cost {price}");
    }
    if Event::exists(tx, event) {
        abort!("event_exists", "there is an event {event} already");
    }
    let free = seats as i32;
    Event::insert(
        tx,
        &Event {
            event,
            name: name.to_owned(),
            starts,
            price,
            free,
        },
    )?;
    for row in 0..rows {
        let name = row_name(row);
        let seats = (1..=seats_per_row).map(|number| Seat {
            event,
            row: name,
            number,
            state: SeatState::Free,
            holder: None,
        });
        Seat::insert_many(tx, &seats.collect::<Vec<_>>())?;
    }
    Ok(free)
}

/// A to Z, then AA to ZZ and so on.
fn row_name(row: i16) -> SmallText<4> {
    let mut letters = Vec::new();
    let mut left = i32::from(row) + 1;
    while left > 0 {
        letters.push(b'A' + ((left - 1) % 26) as u8);
        left = (left - 1) / 26;
    }
    letters.reverse();
    SmallText::new(&String::from_utf8_lossy(&letters)).expect("10,000 rows have names of three letters")
}

/// An event.
#[procedure(partition_by(event), read_only)]
pub fn event(tx: &Txn, event: i64) -> Result<EventView, Abort> {
    let Some(found) = Event::get(tx, event) else {
        abort!("unknown_event", "there is no event {event}");
    };
    let found = found.into_inner();
    Ok(EventView {
        name: found.name,
        starts: found.starts,
        price: found.price,
        free: found.free,
    })
}

/// All seats of an event, row by row.
#[procedure(partition_by(event), read_only)]
pub fn seats(tx: &Txn, event: i64) -> Result<Vec<SeatView>, Abort> {
    let seats = Seat::scan(tx).prefix((event,)).into_iter();
    Ok(seats
        .map(|seat| SeatView {
            row: seat.row.to_string(),
            number: seat.number,
            state: seat.state,
        })
        .collect())
}
