//! The columns that each transaction reads or writes of wide rows: no others cross the sandbox's wall.

use reprise_procedure::{advanced::*, prelude::*, table};

use crate::tables::{Customer, District, Item, Order, OrderLine, Stock, Warehouse};

#[columns(Warehouse)]
pub struct WarehouseTax {
    pub w_tax: i16,
}

#[columns(Warehouse)]
pub struct WarehouseAddress<'r> {
    pub w_ytd: i64,
    pub w_name: TextRef<'r, 10>,
    pub w_street_1: TextRef<'r, 20>,
    pub w_street_2: TextRef<'r, 20>,
    pub w_city: TextRef<'r, 20>,
    pub w_state: TextRef<'r, 2>,
    pub w_zip: TextRef<'r, 9>,
}

#[columns(Warehouse)]
pub struct WarehouseYtd {
    pub w_ytd: i64,
}

#[columns(District)]
pub struct DistrictTax {
    pub d_tax: i16,
    pub d_next_o_id: i32,
}

#[columns(District)]
pub struct DistrictNext {
    pub d_next_o_id: i32,
}

#[columns(District)]
pub struct DistrictAddress<'r> {
    pub d_ytd: i64,
    pub d_name: TextRef<'r, 10>,
    pub d_street_1: TextRef<'r, 20>,
    pub d_street_2: TextRef<'r, 20>,
    pub d_city: TextRef<'r, 20>,
    pub d_state: TextRef<'r, 2>,
    pub d_zip: TextRef<'r, 9>,
}

#[columns(District)]
pub struct DistrictYtd {
    pub d_ytd: i64,
}

#[columns(Customer)]
pub struct CustomerNumber {
    pub c_id: i32,
}

#[columns(Customer)]
pub struct CustomerCredit<'r> {
    pub c_discount: i16,
    pub c_last: TextRef<'r, 16>,
    pub c_credit: TextRef<'r, 2>,
}

/// All but `c_data`, by far the longest.
#[columns(Customer)]
pub struct CustomerAccount<'r> {
    pub c_id: i32,
    pub c_discount: i16,
    pub c_payment_cnt: i32,
    pub c_since: Timestamp,
    pub c_credit_lim: i64,
    pub c_balance: i64,
    pub c_ytd_payment: i64,
    pub c_first: TextRef<'r, 16>,
    pub c_middle: TextRef<'r, 2>,
    pub c_last: TextRef<'r, 16>,
    pub c_street_1: TextRef<'r, 20>,
    pub c_street_2: TextRef<'r, 20>,
    pub c_city: TextRef<'r, 20>,
    pub c_state: TextRef<'r, 2>,
    pub c_zip: TextRef<'r, 9>,
    pub c_phone: TextRef<'r, 16>,
    pub c_credit: TextRef<'r, 2>,
}

#[columns(Customer)]
pub struct CustomerPaid {
    pub c_payment_cnt: i32,
    pub c_balance: i64,
    pub c_ytd_payment: i64,
}

#[columns(Customer)]
pub struct CustomerData {
    pub c_payment_cnt: i32,
    pub c_balance: i64,
    pub c_ytd_payment: i64,
    pub c_data: String,
}

#[columns(Customer)]
pub struct CustomerName<'r> {
    pub c_id: i32,
    pub c_balance: i64,
    pub c_first: TextRef<'r, 16>,
    pub c_middle: TextRef<'r, 2>,
    pub c_last: TextRef<'r, 16>,
}

#[columns(Customer)]
pub struct CustomerDelivered {
    pub c_delivery_cnt: i32,
    pub c_balance: i64,
}

#[columns(Customer)]
pub struct CustomerSums {
    pub c_id: i32,
    pub c_delivery_cnt: i32,
    pub c_balance: i64,
    pub c_ytd_payment: i64,
}

#[columns(Item)]
pub struct ItemSold<'r> {
    pub i_price: i64,
    pub i_name: TextRef<'r, 24>,
    pub i_data: TextRef<'r, 50>,
}

/// The columns that a delivery writes: no index depends on them.
#[columns(Order)]
pub struct OrderDelivered {
    pub o_carrier_id: Option<i8>,
}

#[columns(Order)]
pub struct OrderCustomer {
    pub o_c_id: i32,
}

#[columns(Order)]
pub struct OrderShown {
    pub o_id: i32,
    pub o_entry_d: Timestamp,
    pub o_carrier_id: Option<i8>,
}

/// A whole line, with the text of the stock that it comes from.
#[columns(OrderLine)]
pub struct NewLine<'r> {
    pub ol_w_id: i16,
    pub ol_d_id: i8,
    pub ol_o_id: i32,
    pub ol_number: i8,
    pub ol_i_id: i32,
    pub ol_supply_w_id: i16,
    pub ol_delivery_d: Option<Timestamp>,
    pub ol_quantity: i8,
    pub ol_amount: i64,
    pub ol_dist_info: TextRef<'r, 24>,
}

#[columns(OrderLine)]
pub struct LineAmount {
    pub ol_amount: i64,
}

#[columns(OrderLine)]
pub struct LineDelivery {
    pub ol_delivery_d: Option<Timestamp>,
}

#[columns(OrderLine)]
pub struct LineItem {
    pub ol_i_id: i32,
}

#[columns(OrderLine)]
pub struct LineShown {
    pub ol_i_id: i32,
    pub ol_supply_w_id: i16,
    pub ol_delivery_d: Option<Timestamp>,
    pub ol_quantity: i8,
    pub ol_amount: i64,
}

#[columns(OrderLine)]
pub struct LineSums {
    pub ol_o_id: i32,
    pub ol_delivery_d: Option<Timestamp>,
    pub ol_amount: i64,
}

#[columns(Stock)]
pub struct StockQuantity {
    pub s_quantity: i16,
}

#[columns(Stock)]
#[derive(Clone, Copy)]
pub struct StockTaken {
    pub s_quantity: i16,
    pub s_order_cnt: i32,
    pub s_remote_cnt: i32,
    pub s_ytd: i64,
}

/// The columns of a stock that an order reads: the text of its own district takes the place of the first one's.
#[columns(Stock)]
pub struct StockSold<'r> {
    pub s_quantity: i16,
    pub s_order_cnt: i32,
    pub s_remote_cnt: i32,
    pub s_ytd: i64,
    pub s_dist_01: TextRef<'r, 24>,
    pub s_data: TextRef<'r, 50>,
}

impl StockSold<'_> {
    #[inline]
    pub fn taken(&self) -> StockTaken {
        StockTaken {
            s_quantity: self.s_quantity,
            s_order_cnt: self.s_order_cnt,
            s_remote_cnt: self.s_remote_cnt,
            s_ytd: self.s_ytd,
        }
    }
}

macro_rules! of_district {
    ($($name:ident $dist:ident $d_id:literal)*) => {
        $(
            #[allow(dead_code)] // read as `StockSold`
            #[columns(Stock)]
            struct $name<'r> {
                s_quantity: i16,
                s_order_cnt: i32,
                s_remote_cnt: i32,
                s_ytd: i64,
                $dist: TextRef<'r, 24>,
                s_data: TextRef<'r, 50>,
            }
        )*

        /// Reads the stocks with their `S_DIST_xx` of this district; None for one that there is not.
        #[inline(never)]
        pub fn stocks_of<'r>(
            tx: &Txn,
            d_id: i8,
            keys: impl Iterator<Item = (i16, i32)>,
        ) -> FoundRows<StockSold<'r>> {
            let columns = match d_id {
                $($d_id => const { SameLayout::of::<$name>() },)*
                _ => const { SameLayout::of::<StockSold>() },
            };
            table::multi_read_alike::<_, _, 0>(tx, columns, keys)
        }
    };
}
of_district! {
    StockOf2 s_dist_02 2
    StockOf3 s_dist_03 3
    StockOf4 s_dist_04 4
    StockOf5 s_dist_05 5
    StockOf6 s_dist_06 6
    StockOf7 s_dist_07 7
    StockOf8 s_dist_08 8
    StockOf9 s_dist_09 9
    StockOf10 s_dist_10 10
}
