//! Delivery (clause 2.7): the oldest new order of every district, all in one transaction.

use reprise_procedure::{advanced::*, prelude::*};

use crate::{
    DISTRICTS, LINES_MAX,
    columns::{CustomerDelivered, LineAmount, LineDelivery, OrderCustomer, OrderDelivered},
    missing,
    tables::{NewOrder, OrderLine},
};

/// Bytes of a line in the answer of the scan.
const LINE_BYTES: usize = 8 + 8;

/// The result for one district: the line of the result file (clause 2.7.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ProcedureStruct)]
pub struct Delivered {
    pub d_id: i8,
    /// The delivered order, or None if no order waited.
    pub o_id: Option<i32>,
}

/// Delivers the oldest waiting order of each district; a district in which none waits is skipped.
#[procedure(partition_by(w_id))]
pub fn delivery(tx: &Txn, w_id: i16, o_carrier_id: i8) -> Result<Vec<Delivered>, Abort> {
    let mut delivered = Vec::with_capacity(DISTRICTS as usize);
    let carried = (o_carrier_id, tx.now());
    for d_id in 1..=DISTRICTS {
        let oldest = NewOrder::scan(tx).prefix((w_id, d_id)).first();
        let o_id = match oldest {
            None => None,
            Some(waiting) => {
                let o_id = waiting.no_o_id;
                waiting.delete(tx);
                deliver(tx, (w_id, d_id, o_id), carried)?;
                Some(o_id)
            }
        };
        delivered.push(Delivered { d_id, o_id });
    }
    Ok(delivered)
}

/// Delivers one order: by which carrier, and when.
fn deliver(tx: &Txn, key: (i16, i8, i32), (o_carrier_id, now): (i8, Timestamp)) -> Result<(), Abort> {
    let order = OrderCustomer::get(tx, key);
    let order = order.ok_or_else(|| missing("a new order is no order"))?;
    let carried = OrderDelivered {
        o_carrier_id: Some(o_carrier_id),
    };
    carried.write(tx, order.handle())?;
    let mut sum = 0;
    let mut delivered = Updates::with_room_for(LINES_MAX as usize);
    let of_order = OrderLine::scan(tx).prefix(key).columns::<LineAmount>();
    for line in of_order.batch_bytes(LINES_MAX as usize * LINE_BYTES).iter() {
        sum += line.ol_amount;
        let now = LineDelivery {
            ol_delivery_d: Some(now),
        };
        delivered.push(line.handle(), &now);
    }
    delivered.write(tx)?;
    let (w_id, d_id, _) = key;
    let customer = CustomerDelivered::get(tx, (w_id, d_id, order.o_c_id));
    let mut customer = customer.ok_or_else(|| missing("the order's customer does not exist"))?;
    customer.c_balance += sum;
    customer.c_delivery_cnt += 1;
    customer.update(tx)?;
    Ok(())
}
