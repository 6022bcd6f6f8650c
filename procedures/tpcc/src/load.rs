//! The initial population (clause 4.3.3), in pieces that are transactions of their own.

use reprise_procedure::prelude::*;

use crate::{
    CUSTOMERS, DISTRICTS, FIRST_NEW_ORDER, ITEMS, LINES_MAX, LINES_MIN, ORDERS,
    tables::{Customer, District, History, Item, NewOrder, Order, OrderLine, Stock, Warehouse},
    text::{Draw, last_name},
};

/// Customers of a district that have the last names 0 to 999, one each; the others draw theirs.
const NAMED_IN_ORDER: i32 = 1_000;
/// Rows of one host call.
const ROWS_AT_ONCE: usize = 100;
const WAREHOUSE_YTD: i64 = 30_000_000;
const DISTRICT_YTD: i64 = 3_000_000;
const CREDIT_LIMIT: i64 = 5_000_000;
/// The first payment of each customer.
const FIRST_PAYMENT: i64 = 1_000;

/// The answer of a loading call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ProcedureStruct)]
pub struct Loaded {
    pub rows: i64,
}

/// Makes the items from `first` to `last`, both included, of the 100,000.
#[procedure(all_partitions, time_max_ms = 60_000)]
pub fn load_item_range(tx: &Txn, first: i32, last: i32) -> Result<Loaded, Abort> {
    if first < 1 || last < first || last > ITEMS {
        return Err(Abort::new("invalid_range", "items have numbers from 1 to 100000"));
    }
    let mut draw = Draw::new(tx);
    for i_id in first..=last {
        let item = Item {
            i_id,
            i_im_id: draw.number(1, 10_000) as i32,
            i_price: draw.number(100, 10_000),
            i_name: draw.text(14, 24),
            i_data: draw.data(),
        };
        Item::insert(tx, &item)?;
    }
    Ok(Loaded {
        rows: (last - first + 1) as i64,
    })
}

/// Makes one of the ten parts of a warehouse: the district of that number with its customers and orders, and a tenth of the stock. The
/// first part also makes the warehouse itself.
#[procedure(partition_by(w_id), time_max_ms = 60_000)]
pub fn load_warehouse(tx: &Txn, w_id: i16, part: i8) -> Result<Loaded, Abort> {
    if w_id < 1 || !(1..=DISTRICTS).contains(&part) {
        return Err(Abort::new(
            "invalid_part",
            "a warehouse has a number from 1 on, and parts from 1 to 10",
        ));
    }
    let mut loader = Loader {
        tx,
        draw: Draw::new(tx),
        now: tx.now(),
        rows: 0,
    };
    if part == 1 {
        loader.warehouse(w_id)?;
    }
    loader.stocks(w_id, part)?;
    loader.district(w_id, part)?;
    loader.customers(w_id, part)?;
    loader.orders(w_id, part)?;
    Ok(Loaded { rows: loader.rows })
}

struct Loader<'t, 'h> {
    tx: &'t Txn<'h>,
    draw: Draw<'t, 'h>,
    now: Timestamp,
    rows: i64,
}

impl Loader<'_, '_> {
    fn warehouse(&mut self, w_id: i16) -> Result<(), Abort> {
        let draw = &mut self.draw;
        let row = Warehouse {
            w_id,
            w_tax: draw.number(0, 2_000) as i16,
            w_ytd: WAREHOUSE_YTD,
            w_name: draw.text(6, 10),
            w_street_1: draw.text(10, 20),
            w_street_2: draw.text(10, 20),
            w_city: draw.text(10, 20),
            w_state: draw.state(),
            w_zip: draw.zip(),
        };
        Warehouse::insert(self.tx, &row)?;
        self.rows += 1;
        Ok(())
    }

    fn stocks(&mut self, w_id: i16, part: i8) -> Result<(), Abort> {
        let count = ITEMS / DISTRICTS as i32;
        let first = (part as i32 - 1) * count + 1;
        let mut rows = Vec::with_capacity(ROWS_AT_ONCE);
        for s_i_id in first..first + count {
            rows.push(self.stock(w_id, s_i_id));
            if rows.len() == ROWS_AT_ONCE || s_i_id == first + count - 1 {
                Stock::insert_many(self.tx, &rows)?;
                rows.clear();
            }
        }
        self.rows += count as i64;
        Ok(())
    }

    fn stock(&mut self, w_id: i16, s_i_id: i32) -> Stock {
        let draw = &mut self.draw;
        Stock {
            s_w_id: w_id,
            s_i_id,
            s_quantity: draw.number(10, 100) as i16,
            s_order_cnt: 0,
            s_remote_cnt: 0,
            s_ytd: 0,
            s_dist_01: draw.text(24, 24),
            s_dist_02: draw.text(24, 24),
            s_dist_03: draw.text(24, 24),
            s_dist_04: draw.text(24, 24),
            s_dist_05: draw.text(24, 24),
            s_dist_06: draw.text(24, 24),
            s_dist_07: draw.text(24, 24),
            s_dist_08: draw.text(24, 24),
            s_dist_09: draw.text(24, 24),
            s_dist_10: draw.text(24, 24),
            s_data: draw.data(),
        }
    }

    fn district(&mut self, w_id: i16, d_id: i8) -> Result<(), Abort> {
        let draw = &mut self.draw;
        let row = District {
            d_w_id: w_id,
            d_id,
            d_tax: draw.number(0, 2_000) as i16,
            d_next_o_id: ORDERS + 1,
            d_ytd: DISTRICT_YTD,
            d_name: draw.text(6, 10),
            d_street_1: draw.text(10, 20),
            d_street_2: draw.text(10, 20),
            d_city: draw.text(10, 20),
            d_state: draw.state(),
            d_zip: draw.zip(),
        };
        District::insert(self.tx, &row)?;
        self.rows += 1;
        Ok(())
    }

    fn customers(&mut self, w_id: i16, d_id: i8) -> Result<(), Abort> {
        for c_id in 1..=CUSTOMERS {
            let row = self.customer(w_id, d_id, c_id);
            Customer::insert(self.tx, &row)?;
            let payment = History {
                h_c_id: c_id,
                h_c_d_id: d_id,
                h_c_w_id: w_id,
                h_d_id: d_id,
                h_w_id: w_id,
                h_date: self.now,
                h_amount: FIRST_PAYMENT,
                h_data: self.draw.text(12, 24),
            };
            History::insert(self.tx, &payment)?;
        }
        self.rows += 2 * CUSTOMERS as i64;
        Ok(())
    }

    fn customer(&mut self, w_id: i16, d_id: i8, c_id: i32) -> Customer {
        let draw = &mut self.draw;
        let name = match c_id <= NAMED_IN_ORDER {
            true => c_id as u32 - 1,
            false => draw.last_name_number(),
        };
        let is_bad = draw.number(1, 10) == 1;
        Customer {
            c_w_id: w_id,
            c_d_id: d_id,
            c_id,
            c_discount: draw.number(0, 5_000) as i16,
            c_payment_cnt: 1,
            c_delivery_cnt: 0,
            c_since: self.now,
            c_credit_lim: CREDIT_LIMIT,
            c_balance: -FIRST_PAYMENT,
            c_ytd_payment: FIRST_PAYMENT,
            c_first: draw.text(8, 16),
            c_middle: SmallText::new("OE").unwrap_or_default(),
            c_last: last_name(name),
            c_street_1: draw.text(10, 20),
            c_street_2: draw.text(10, 20),
            c_city: draw.text(10, 20),
            c_state: draw.state(),
            c_zip: draw.zip(),
            c_phone: draw.digits(),
            c_credit: SmallText::new(if is_bad { "BC" } else { "GC" }).unwrap_or_default(),
            c_data: draw.long(),
        }
    }

    fn orders(&mut self, w_id: i16, d_id: i8) -> Result<(), Abort> {
        let customers = self.draw.permutation(CUSTOMERS);
        let mut lines = Vec::with_capacity(LINES_MAX as usize);
        for (o_id, o_c_id) in (1..=ORDERS).zip(customers) {
            let is_delivered = o_id < FIRST_NEW_ORDER;
            let carrier = self.draw.number(1, 10) as i8;
            let order = Order {
                o_w_id: w_id,
                o_d_id: d_id,
                o_id,
                o_c_id,
                o_entry_d: self.now,
                o_carrier_id: is_delivered.then_some(carrier),
                o_ol_cnt: self.draw.number(LINES_MIN as i64, LINES_MAX as i64) as i8,
                o_all_local: true,
            };
            Order::insert(self.tx, &order)?;
            lines.clear();
            for number in 1..=order.o_ol_cnt {
                lines.push(self.line(&order, number, is_delivered));
            }
            OrderLine::insert_many(self.tx, &lines)?;
            if !is_delivered {
                let waiting = NewOrder {
                    no_w_id: w_id,
                    no_d_id: d_id,
                    no_o_id: o_id,
                };
                NewOrder::insert(self.tx, &waiting)?;
            }
            self.rows += 1 + order.o_ol_cnt as i64 + !is_delivered as i64;
        }
        Ok(())
    }

    fn line(&mut self, order: &Order, number: i8, is_delivered: bool) -> OrderLine {
        let draw = &mut self.draw;
        OrderLine {
            ol_w_id: order.o_w_id,
            ol_d_id: order.o_d_id,
            ol_o_id: order.o_id,
            ol_number: number,
            ol_i_id: draw.number(1, ITEMS as i64) as i32,
            ol_supply_w_id: order.o_w_id,
            ol_delivery_d: is_delivered.then_some(self.now),
            ol_quantity: 5,
            ol_amount: if is_delivered { 0 } else { draw.number(1, 999_999) },
            ol_dist_info: draw.text(24, 24),
        }
    }
}
