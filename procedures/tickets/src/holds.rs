//! Seats that are held, for some minutes.

use reprise_procedure::prelude::*;

use crate::tables::{Event, Hold, Seat, SeatState};

/// How long a hold lasts.
const HOLD_MINUTES: i64 = 10;
/// Seats that one hold has at most.
const SEATS_MAX: i32 = 20;

/// The answer of `hold`.
#[derive(Clone, Debug, PartialEq, ProcedureStruct)]
pub struct HoldView {
    pub hold: Uuid,
    pub until: Timestamp,
    pub seats: Vec<String>,
    pub amount: Decimal<2>,
}

/// Holds the first free seats of an event, as many as are asked for, or none.
#[procedure(partition_by(event))]
pub fn hold(tx: &Txn, event: i64, customer: i64, count: i32) -> Result<HoldView, Abort> {
    if !(1..=SEATS_MAX).contains(&count) {
        abort!("bad_count", "1 to {SEATS_MAX} seats are held at once, not {count}");
    }
    let Some(on_sale) = Event::get(tx, event) else {
        abort!("unknown_event", "there is no event {event}");
    };
    if on_sale.starts <= tx.now() {
        abort!("too_late", "event {event} began at {}", on_sale.starts);
    }
    let_go(tx, event)?;
    let free = Seat::scan_by_state(tx)
        .prefix((event, SeatState::Free))
        .limit(count as u32);
    let mut seats: Vec<_> = free.into_iter().collect();
    if seats.len() < count as usize {
        abort!("sold_out", "{} seats are free, {count} were asked for", seats.len());
    }
    let (hold, until) = (tx.new_uuid(), tx.now() + Duration::from_mins(HOLD_MINUTES));
    for seat in &mut seats {
        (seat.state, seat.holder) = (SeatState::Held, Some(hold));
        seat.update(tx)?;
    }
    Event::add_free(tx, event, -i64::from(count));
    Hold::insert(
        tx,
        &Hold {
            event,
            hold,
            customer,
            until,
        },
    )?;
    Ok(HoldView {
        hold,
        until,
        seats: seats
            .iter()
            .map(|seat| format!("{}{}", seat.row, seat.number))
            .collect(),
        amount: on_sale.price * i64::from(count),
    })
}

/// Gives a hold's seats back. Answers how many.
#[procedure(partition_by(event))]
pub fn release(tx: &Txn, event: i64, hold: Uuid) -> Result<i64, Abort> {
    if !Hold::delete(tx, (event, hold)) {
        abort!("unknown_hold", "event {event} has no hold {hold}");
    }
    free_seats(tx, event, hold)
}

/// Gives the seats of all holds back whose time is over. Answers how many; to be called now and then.
#[procedure(partition_by(event))]
pub fn expire(tx: &Txn, event: i64) -> Result<i64, Abort> {
    let_go(tx, event)
}

fn let_go(tx: &Txn, event: i64) -> Result<i64, Abort> {
    let mut seats = 0;
    for over in Hold::scan_by_until(tx).prefix((event,)).to(tx.now()) {
        seats += free_seats(tx, event, over.hold)?;
        over.delete(tx);
    }
    Ok(seats)
}

fn free_seats(tx: &Txn, event: i64, hold: Uuid) -> Result<i64, Abort> {
    let held = Seat::scan_by_holder(tx).prefix((event, Some(hold)));
    let freed = held.update(|seat| (seat.state, seat.holder) = (SeatState::Free, None))? as i64;
    Event::add_free(tx, event, freed);
    Ok(freed)
}
