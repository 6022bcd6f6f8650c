//! Seats that customers buy, and the revenue of each event.

use reprise_procedure::prelude::*;

use crate::tables::{Customer, Event, Hold, Order, Purchase, Seat, SeatState};

/// The answer of `checkout`.
#[derive(Clone, Debug, PartialEq, ProcedureStruct)]
pub struct OrderView {
    pub order: Uuid,
    pub seats: i32,
    pub amount: Decimal<2>,
}

/// The answer of `revenue` for each event.
#[derive(Clone, Debug, PartialEq, ProcedureStruct)]
pub struct Revenue {
    pub event: i64,
    pub name: String,
    pub orders: i64,
    pub amount: Decimal<2>,
}

/// Buys the seats of a hold. The event may lie on one partition and the customer on another; both change, or neither.
#[procedure(partition_by(event, customer))]
pub fn checkout(tx: &Txn, event: i64, customer: i64, hold: Uuid, payment: &str) -> Result<OrderView, Abort> {
    let Some(held) = Hold::get(tx, (event, hold)) else {
        abort!("unknown_hold", "event {event} has no hold {hold}");
    };
    if held.customer != customer {
        abort!("not_yours", "hold {hold} is not customer {customer}'s");
    }
    if held.until < tx.now() {
        abort!("too_late", "hold {hold} ended at {}", held.until);
    }
    let Some(mut buyer) = Customer::get(tx, customer) else {
        abort!("unknown_customer", "there is no customer {customer}");
    };
    let Some(on_sale) = Event::get(tx, event) else {
        abort!("unknown_event", "there is no event {event}");
    };
    let order = tx.new_uuid();
    let held_seats = Seat::scan_by_holder(tx).prefix((event, Some(hold)));
    let seats = held_seats.update(|seat| (seat.state, seat.holder) = (SeatState::Sold, Some(order)))? as i32;
    let amount = on_sale.price * i64::from(seats);
    held.delete(tx);
    Order::insert(
        tx,
        &Order {
            event,
            order,
            customer,
            seats,
            amount,
            payment: payment.to_owned(),
            at: tx.now(),
        },
    )?;
    Purchase::insert(
        tx,
        &Purchase {
            customer,
            order,
            event,
            seats,
            amount,
        },
    )?;
    buyer.spent += amount;
    buyer.update(tx)?;
    Ok(OrderView { order, seats, amount })
}

/// The orders of an event, the oldest first.
#[procedure(partition_by(event), read_only)]
pub fn orders_of_event(tx: &Txn, event: i64) -> Result<Vec<OrderView>, Abort> {
    let orders = Order::scan(tx).prefix((event,)).into_iter();
    Ok(orders
        .map(|order| OrderView {
            order: order.order,
            seats: order.seats,
            amount: order.amount,
        })
        .collect())
}

/// Returns the purchases of a customer, the newest first.
#[procedure(partition_by(customer), read_only)]
pub fn purchases(tx: &Txn, customer: i64) -> Result<Vec<Purchase>, Abort> {
    let bought = Purchase::scan(tx).prefix((customer,)).reverse().into_iter();
    Ok(bought.map(|purchase| purchase.into_inner()).collect())
}

/// Returns the revenue of each event, over all partitions.
#[procedure(all_partitions, read_only)]
pub fn revenue(tx: &Txn) -> Result<Vec<Revenue>, Abort> {
    let mut events = Vec::new();
    for event in Event::scan(tx) {
        let orders: Vec<_> = Order::scan(tx).prefix((event.event,)).into_iter().collect();
        events.push(Revenue {
            event: event.event,
            name: event.name.clone(),
            orders: orders.len() as i64,
            amount: orders.iter().map(|order| order.amount).sum(),
        });
    }
    Ok(events)
}
