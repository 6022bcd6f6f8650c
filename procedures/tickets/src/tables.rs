//! The stored tables. All rows of an event are on the partition of its number, all rows of a customer on that of the customer's.

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

/// Seats that nobody else can take until a time.
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

/// A customer, and what the customer's orders come to.
#[table(name = "customers", primary_key(customer), partition_by = customer)]
#[derive(Clone, Debug, PartialEq)]
pub struct Customer {
    pub customer: i64,
    pub name: String,
    pub email: String,
    pub spent: Decimal<2>,
}

/// Whose an address is. A table of its own, since an index is unique within a partition: it lies where the address says.
#[table(name = "addresses", primary_key(email), partition_by = email)]
#[derive(Clone, Debug, PartialEq)]
pub struct Address {
    pub email: String,
    pub customer: i64,
}

/// What a customer bought, beside the customer: the newest last.
#[table(name = "purchases", primary_key(customer, order), partition_by = customer)]
#[derive(Clone, Debug, PartialEq, ProcedureStruct)]
pub struct Purchase {
    pub customer: i64,
    pub order: Uuid,
    pub event: i64,
    pub seats: i32,
    pub amount: Decimal<2>,
}
