//! The sample module `tpcc`: the nine tables and five transactions of TPC-C (revision 5.11), its loader and its conditions.
//! Owns: the schema (clause 1), the transactions (clause 2), the initial population (4.3.3), the conditions (3.3.2).
//! Does not: choose inputs. Callers draw them (NURand, mixes, remote warehouses); every procedure gets all as arguments.
//! Invariants: the twelve consistency conditions hold after every transaction; an aborted one leaves nothing.
//! Called by: users of the sample, the driver (`reprise-bench tpcc`), benchmarks.
//!
//! Money is whole cents in an `i64`, rates are whole ten-thousandths in an `i16`: both exact. A total, with its two factors
//! of ten-thousandths, is rounded half up to a cent once, at the end.
//!
//! Columns are no wider than their range needs, so that the keys of orders, order lines, new orders and customers are at most eight bytes.
//! An index holds such keys in place. `w_id` goes up to 32,767 warehouses, and `d_id` and `ol_number` are one byte each.
//!
//! Items are on every partition, all other rows with their warehouse, and a history row with the paid one (`h_w_id`).
//!
//! `check` checks a warehouse in one transaction. Long runs are checked in pieces, so that no limit of a transaction bounds the rows of a
//! run. `check_orders` takes a range of a district's orders. [`judge`], on the caller's side, puts together the results of the pieces and
//! the payments.
#![deny(unsafe_code)]

pub mod check;
mod columns;
pub mod delivery;
pub mod judge;
pub mod load;
pub mod new_order;
pub mod order_status;
pub mod payment;
pub mod stock_level;
pub mod tables;
mod text;

use reprise_procedure::prelude::*;

pub use text::{LAST_NAME_C_LOAD, last_name};

/// Districts of a warehouse (clause 1.2.1).
pub const DISTRICTS: i8 = 10;
/// Customers of a district.
pub const CUSTOMERS: i32 = 3_000;
/// Items, and stocks of a warehouse.
pub const ITEMS: i32 = 100_000;
/// Orders of a district in the initial population; those from `FIRST_NEW_ORDER` on wait for delivery.
pub const ORDERS: i32 = 3_000;
pub const FIRST_NEW_ORDER: i32 = 2_101;
/// Lines of an order.
pub const LINES_MIN: i8 = 5;
pub const LINES_MAX: i8 = 15;
/// Ten-thousandths in one: the unit of taxes and discounts.
pub const RATE_ONE: i64 = 10_000;

/// A row that the population or an earlier transaction must have made is not there.
#[cold]
fn missing(what: &'static str) -> Abort {
    Abort::new("not_found", what)
}

reprise_procedure::module! {
    tables: [
        tables::Warehouse, tables::District, tables::Customer, tables::History, tables::NewOrder,
        tables::Order, tables::OrderLine, tables::Item, tables::Stock,
    ],
    procedures: [
        load::load_item_range, load::load_warehouse, new_order::new_order, payment::payment, delivery::delivery,
        order_status::order_status, stock_level::stock_level, check::check, check::check_warehouse,
        check::check_orders, check::check_customers,
    ],
}
