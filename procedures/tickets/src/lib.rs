//! The sample module `tickets`: seats of events that are held for some minutes and then bought or released. The guide's tutorial.
//! Owns: the tables below, and the procedures over them.
//! Does not: take payments; a buyer's reference to one is stored with the order.
//! Invariants: a seat is free, or of one hold, or of one order; an event's free seats are its free rows; a customer has spent the sum of
//! the orders; an address is of one customer.
//! Called by: users of the sample, its web page, the tutorial's test.
#![deny(unsafe_code)]

mod customers;
mod events;
mod holds;
mod orders;
mod tables;

pub use crate::{customers::*, events::*, holds::*, orders::*, tables::*};

reprise_procedure::module! {
    tables: [Event, Seat, Hold, Order, Customer, Address, Purchase],
    procedures: [
        create_event, event, seats, hold, release, expire, checkout, orders_of_event, register, change_email, customer, purchases,
        revenue,
    ],
}
