//! The stored tables. An event's number chooses the partition of all its rows, and a customer's number that of the customer's rows.

use reprise_procedure::prelude::*;

/// An event, and how many of its seats are free.
#[table(name = "events", primary_key(event), partition_by = event)]
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub event: i64,
    pub name: String,
    pub starts: Timestamp,
    pub price: Decimal<2>,
    pub free: i32,
}

/// The states of a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ProcedureEnum, ColumnEnum)]
pub enum SeatState {
    Free,
    Held,
    Sold,
}

/// A seat of an event.
#[table(
    name = "seats",
    primary_key(event, row, number),
    index(state, event, state, row, number),
    index(holder, event, holder),
    partition_by = event
)]
#[derive(Clone, Debug, PartialEq)]
pub struct Seat {
    pub event: i64,
    pub row: SmallText<4>,
    pub number: i16,
    pub state: SeatState,
    /// The hold or the order that has it.
    pub holder: Option<Uuid>,
}

/// Seats that no other customer can take until a time.
#[table(name = "holds", primary_key(event, hold), index(until, event, until), partition_by = event)]
#[derive(Clone, Debug, PartialEq)]
pub struct Hold {
    pub event: i64,
    pub hold: Uuid,
    pub customer: i64,
    pub until: Timestamp,
}

/// Seats that were bought.
#[table(name = "orders", primary_key(event, order), index(customer, event, customer), partition_by = event)]
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    pub event: i64,
    pub order: Uuid,
    pub customer: i64,
    pub seats: i32,
    pub amount: Decimal<2>,
    pub payment: String,
    pub at: Timestamp,
}

/// A customer, and the sum of the customer's orders.
#[table(name = "customers", primary_key(customer), partition_by = customer)]
#[derive(Clone, Debug, PartialEq)]
pub struct Customer {
    pub customer: i64,
    pub name: String,
    pub email: String,
    pub spent: Decimal<2>,
}

/// The customer of an e-mail address. A table of its own, because an index is unique within one partition alone. The address chooses the
/// partition.
#[table(name = "addresses", primary_key(email), partition_by = email)]
#[derive(Clone, Debug, PartialEq)]
pub struct Address {
    pub email: String,
    pub customer: i64,
}

/// The orders of a customer, on the customer's partition, the newest last.
#[table(name = "purchases", primary_key(customer, order), partition_by = customer)]
#[derive(Clone, Debug, PartialEq, ProcedureStruct)]
pub struct Purchase {
    pub customer: i64,
    pub order: Uuid,
    pub event: i64,
    pub seats: i32,
    pub amount: Decimal<2>,
}
