//! Order-Status (clause 2.6): a customer's last order, read-only.

use reprise_procedure::{advanced::*, prelude::*};

use crate::{
    LINES_MAX,
    columns::{CustomerName, LineShown, OrderShown},
    missing,
    payment::{middle_of, no_customer},
    tables::{Order, OrderLine},
};

/// Bytes of a line in the answer of the scan.
const LINE_BYTES: usize = 8 + 24;

/// The fields that the terminal shows beside its inputs (clause 2.6.3.3).
#[derive(Clone, Debug, ProcedureResult)]
pub struct Status<'r> {
    pub c_id: i32,
    pub c_first: TextRef<'r, 16>,
    pub c_middle: TextRef<'r, 2>,
    pub c_last: TextRef<'r, 16>,
    pub c_balance: i64,
    pub o_id: i32,
    pub o_entry_d: Timestamp,
    pub o_carrier_id: Option<i8>,
    pub lines: Vec<StatusLine>,
}

/// One line of the order.
#[derive(Clone, Copy, Debug, ProcedureResult)]
pub struct StatusLine {
    pub ol_i_id: i32,
    pub ol_supply_w_id: i16,
    pub ol_quantity: i8,
    pub ol_amount: i64,
    pub ol_delivery_d: Option<Timestamp>,
}

/// Returns the last order of a customer, who is named as in `payment`.
#[procedure(partition_by(w_id), read_only)]
pub fn order_status(
    tx: &Txn,
    w_id: i16,
    d_id: i8,
    c_id: Option<i32>,
    c_last: Option<&str>,
) -> Result<Reply<Status<'static>>, Abort> {
    let mut room = RowRoom::new();
    let customer = match (c_id, c_last) {
        (Some(c_id), None) => CustomerName::get_in(tx, (w_id, d_id, c_id), &mut room),
        name => middle_of(tx, w_id, d_id, name)?.map(|handle| CustomerName::read_in(tx, handle, &mut room)),
    };
    let customer = customer.ok_or_else(no_customer)?;
    let orders = Order::scan_by_customer(tx).prefix((w_id, d_id, customer.c_id));
    let last = orders.reverse().columns::<OrderShown>().first();
    let order = last.ok_or_else(|| missing("the customer has ordered nothing"))?;
    let lines = OrderLine::scan(tx)
        .prefix((w_id, d_id, order.o_id))
        .columns::<LineShown>();
    let line = |line: Row<LineShown>| StatusLine {
        ol_i_id: line.ol_i_id,
        ol_supply_w_id: line.ol_supply_w_id,
        ol_quantity: line.ol_quantity,
        ol_amount: line.ol_amount,
        ol_delivery_d: line.ol_delivery_d,
    };
    let mut shown = Vec::with_capacity(LINES_MAX as usize);
    shown.extend(lines.batch_bytes(LINES_MAX as usize * LINE_BYTES).iter().map(line));
    Ok(Reply::of(&Status {
        c_id: customer.c_id,
        c_first: customer.c_first,
        c_middle: customer.c_middle,
        c_last: customer.c_last,
        c_balance: customer.c_balance,
        o_id: order.o_id,
        o_entry_d: order.o_entry_d,
        o_carrier_id: order.o_carrier_id,
        lines: shown,
    }))
}
