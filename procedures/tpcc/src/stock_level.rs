//! Stock-Level (clause 2.8): how many items of a district's last 20 orders run low, read-only.

use reprise_procedure::{advanced::distinct, prelude::*};

use crate::{
    LINES_MAX,
    columns::{DistrictTax, LineItem, StockQuantity},
    missing,
    tables::OrderLine,
};

/// Orders that are looked at.
const ORDERS: i32 = 20;
/// Bytes of a line in the answer of the scan.
const LINE_BYTES: usize = 8 + 4;

/// The number of distinct items in the last 20 orders whose stock is below the threshold.
#[procedure(partition_by(w_id), read_only)]
pub fn stock_level(tx: &Txn, w_id: i16, d_id: i8, threshold: i16) -> Result<i32, Abort> {
    let district = DistrictTax::get(tx, (w_id, d_id));
    let next = district
        .ok_or_else(|| missing("there is no such district"))?
        .d_next_o_id;
    let lines = OrderLine::scan(tx).range((w_id, d_id, next - ORDERS)..(w_id, d_id, next));
    let lines_max = ORDERS as usize * LINES_MAX as usize;
    let lines = lines.columns::<LineItem>().batch_bytes(lines_max * LINE_BYTES);
    let items = distinct(lines.iter().map(|line| line.ol_i_id), lines_max);
    let stocks = StockQuantity::multi_read(tx, items.iter().map(|i_id| (w_id, *i_id)));
    let is_low = |stock: Option<Row<StockQuantity>>| stock.is_some_and(|stock| stock.s_quantity < threshold);
    Ok(stocks.iter().map(|stock| is_low(stock) as i32).sum())
}
