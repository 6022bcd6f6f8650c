//! New-Order (clause 2.4): an order of 5 to 15 lines, each from the stock of a warehouse.

use reprise_procedure::{advanced::*, prelude::*};

use crate::{
    LINES_MAX, RATE_ONE,
    columns::{CustomerCredit, DistrictNext, DistrictTax, ItemSold, NewLine, StockTaken, WarehouseTax, stocks_of},
    missing,
    tables::{Customer, NewOrder, Order},
};

/// The word in the data of items and stocks of the brand (clause 2.4.2.2).
const ORIGINAL: &str = "ORIGINAL";

/// The fields that the terminal shows of an order beside its inputs (clause 2.4.3.3).
#[derive(Clone, Debug, ProcedureResult)]
pub struct Ordered<'r> {
    pub o_id: i32,
    pub o_entry_d: Timestamp,
    pub c_last: TextRef<'r, 16>,
    pub c_credit: TextRef<'r, 2>,
    pub c_discount: i16,
    pub w_tax: i16,
    pub d_tax: i16,
    /// Cents.
    pub total_amount: i64,
    pub lines: Vec<OrderedLine<'r>>,
}

/// One line of it.
#[derive(Clone, Debug, Default, ProcedureResult)]
pub struct OrderedLine<'r> {
    pub i_name: TextRef<'r, 24>,
    pub s_quantity: i16,
    /// `B` where item and stock are of the brand, else `G`.
    pub brand_generic: SmallText<1>,
    pub i_price: i64,
    pub ol_amount: i64,
}

/// The lines of an order, where its arguments lie.
#[derive(Clone, Copy)]
struct Lines<'a> {
    i_ids: ListRef<'a, i32>,
    supply_w_ids: ListRef<'a, i16>,
    quantities: ListRef<'a, i8>,
}

#[derive(Clone, Copy)]
struct Line {
    i_id: i32,
    supply_w_id: i16,
    quantity: i8,
}

impl<'a> Lines<'a> {
    #[inline(always)]
    fn new(
        i_ids: ListRef<'a, i32>,
        supply_w_ids: ListRef<'a, i16>,
        quantities: ListRef<'a, i8>,
    ) -> Result<Self, Abort> {
        let count = i_ids.len();
        let fits = (1..=LINES_MAX as usize).contains(&count)
            && supply_w_ids.len() == count
            && quantities.len() == count
            && quantities.iter().fold(1, i8::min) > 0;
        match fits {
            true => Ok(Self {
                i_ids,
                supply_w_ids,
                quantities,
            }),
            false => Err(invalid_order()),
        }
    }

    #[inline(always)]
    fn len(&self) -> usize {
        self.i_ids.len()
    }

    #[inline(always)]
    fn iter(&self) -> impl ExactSizeIterator<Item = Line> + Clone + use<'a> {
        let lines = self
            .i_ids
            .iter()
            .zip(self.supply_w_ids.iter())
            .zip(self.quantities.iter());
        lines.map(|((i_id, supply_w_id), quantity)| Line {
            i_id,
            supply_w_id,
            quantity,
        })
    }
}

#[cold]
fn invalid_order() -> Abort {
    Abort::new(
        "invalid_order",
        "an order has 1 to 15 lines, each with an item, a supplying warehouse and a quantity of 1 to 127",
    )
}

/// Orders items for a customer. An item that there is not rolls all back with the code `item_not_found`, after every other
/// line was worked on (clause 2.4.2.3).
#[procedure(partition_by(w_id, supply_w_ids), prefetch(Customer(w_id, d_id, c_id)))]
pub fn new_order(
    tx: &Txn,
    w_id: i16,
    d_id: i8,
    c_id: i32,
    i_ids: ListRef<i32>,
    supply_w_ids: ListRef<i16>,
    quantities: ListRef<i8>,
) -> Result<Reply<Ordered<'static>>, Abort> {
    let lines = Lines::new(i_ids, supply_w_ids, quantities)?;
    let warehouse = WarehouseTax::get(tx, w_id).ok_or_else(|| missing("there is no such warehouse"))?;
    let district = DistrictTax::get(tx, (w_id, d_id));
    let district = district.ok_or_else(|| missing("there is no such district"))?;
    let mut room = RowRoom::new();
    let customer = CustomerCredit::get_in(tx, (w_id, d_id, c_id), &mut room);
    let customer = customer.ok_or_else(|| missing("there is no such customer"))?;
    let o_id = district.d_next_o_id;
    let next = DistrictNext { d_next_o_id: o_id + 1 };
    next.write(tx, district.handle())?;

    let o_entry_d = tx.now();
    let order = Order {
        o_w_id: w_id,
        o_d_id: d_id,
        o_id,
        o_c_id: c_id,
        o_entry_d,
        o_carrier_id: None,
        o_ol_cnt: lines.len() as i8,
        o_all_local: supply_w_ids
            .iter()
            .fold(true, |all, supply_w_id| all & (supply_w_id == w_id)),
    };
    Order::insert(tx, &order)?;
    NewOrder::insert(
        tx,
        &NewOrder {
            no_w_id: w_id,
            no_d_id: d_id,
            no_o_id: o_id,
        },
    )?;
    let items = ItemSold::multi_read(tx, i_ids.iter());
    let (shown, sum) = order_lines(tx, &order, lines, &items)?;
    let taxes = warehouse.w_tax as i64 + district.d_tax as i64;
    let factors = (RATE_ONE - customer.c_discount as i64) * (RATE_ONE + taxes);
    Ok(Reply::of(&Ordered {
        o_id,
        o_entry_d,
        c_last: customer.c_last,
        c_credit: customer.c_credit,
        c_discount: customer.c_discount,
        w_tax: warehouse.w_tax,
        d_tax: district.d_tax,
        total_amount: (sum * factors + RATE_ONE * RATE_ONE / 2) / (RATE_ONE * RATE_ONE),
        lines: shown,
    }))
}

/// Takes every line from stock. Returns the shown part of the lines and the sum of their amounts.
#[inline(never)]
fn order_lines<'r>(
    tx: &Txn,
    order: &Order,
    lines: Lines<'_>,
    items: &'r FoundRows<ItemSold<'r>>,
) -> Result<(Vec<OrderedLine<'r>>, i64), Abort> {
    let keys = lines.iter().map(|line| (line.supply_w_id, line.i_id));
    let stocks = stocks_of(tx, order.o_d_id, keys);
    let mut rows = Inserts::<NewLine>::with_room_for(lines.len());
    let mut taken = Updates::<StockTaken>::with_room_for(lines.len());
    let (mut sum, mut lacking) = (0, None);
    let found = lines.iter().zip(items.iter()).zip(stocks.iter()).enumerate();
    let shown = found.map(|(at, ((line, item), stock))| {
        let (Some(item), Some(stock)) = (&item, stock) else {
            lacking = lacking.or(Some(item.is_none()));
            return OrderedLine::default();
        };
        // An item that the order has twice was changed since it was read: through the handle that it had first.
        let (mut now, mut handle) = (stock.taken(), stock.handle());
        let earlier = lines
            .iter()
            .take(at)
            .position(|other| place_of(&other) == place_of(&line));
        if let Some(first) = earlier {
            now = without_earlier(now, lines, at, order.o_w_id);
            handle = stocks
                .iter()
                .nth(first)
                .flatten()
                .map_or(handle, |stock| stock.handle());
        }
        take_from(&mut now, line, order.o_w_id);
        taken.push(handle, &now);
        let ol_amount = line.quantity as i64 * item.i_price;
        sum += ol_amount;
        rows.push(&NewLine {
            ol_w_id: order.o_w_id,
            ol_d_id: order.o_d_id,
            ol_o_id: order.o_id,
            ol_number: at as i8 + 1,
            ol_i_id: line.i_id,
            ol_supply_w_id: line.supply_w_id,
            ol_delivery_d: None,
            ol_quantity: line.quantity,
            ol_amount,
            ol_dist_info: stock.s_dist_01,
        });
        let is_brand = item.i_data.contains(ORIGINAL) && stock.s_data.contains(ORIGINAL);
        OrderedLine {
            i_name: item.i_name,
            s_quantity: now.s_quantity,
            brand_generic: brand(is_brand),
            i_price: item.i_price,
            ol_amount,
        }
    });
    let shown = shown.collect();
    let (written, inserted) = (taken.write(tx), rows.insert(tx));
    written?;
    inserted?;
    match lacking {
        None => Ok((shown, sum)),
        Some(true) => Err(Abort::new("item_not_found", "Item number is not valid")),
        Some(false) => Err(missing("there is no such stock")),
    }
}

/// Returns the stock that lines before the one at `at` leave.
#[cold]
#[inline(never)]
fn without_earlier(mut stock: StockTaken, lines: Lines<'_>, at: usize, w_id: i16) -> StockTaken {
    let Some(line) = lines.iter().nth(at) else {
        return stock;
    };
    let same = lines.iter().take(at).filter(|other| place_of(other) == place_of(&line));
    same.for_each(|other| take_from(&mut stock, other, w_id));
    stock
}

fn place_of(line: &Line) -> (i32, i16) {
    (line.i_id, line.supply_w_id)
}

#[inline(always)]
fn brand(is_brand: bool) -> SmallText<1> {
    let text = if is_brand { "B" } else { "G" };
    SmallText::new(text).unwrap_or_default()
}

/// Stock that would fall below 10 is filled up by 91 (clause 2.4.2.2).
#[inline(always)]
fn take_from(stock: &mut StockTaken, line: Line, w_id: i16) {
    let quantity = line.quantity as i16;
    let filled = if stock.s_quantity >= quantity + 10 { 0 } else { 91 };
    stock.s_quantity += filled - quantity;
    stock.s_ytd += quantity as i64;
    stock.s_order_cnt += 1;
    stock.s_remote_cnt += (line.supply_w_id != w_id) as i32;
}
