//! The columns that each transaction reads or writes of wide rows: no others cross the sandbox's wall.

use reprise_procedure::prelude::*;

use crate::tables::{Customer, District, Item, Order, OrderLine, Stock, Warehouse};

#[columns(Warehouse)]
pub struct WarehouseTax {
    pub w_tax: i16,
}

#[columns(Warehouse)]
pub struct WarehouseAddress {
    pub w_ytd: i64,
    pub w_name: SmallText<10>,
    pub w_street_1: SmallText<20>,
    pub w_street_2: SmallText<20>,
    pub w_city: SmallText<20>,
    pub w_state: SmallText<2>,
    pub w_zip: SmallText<9>,
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
pub struct DistrictAddress {
    pub d_ytd: i64,
    pub d_name: SmallText<10>,
    pub d_street_1: SmallText<20>,
    pub d_street_2: SmallText<20>,
    pub d_city: SmallText<20>,
    pub d_state: SmallText<2>,
    pub d_zip: SmallText<9>,
}

#[columns(District)]
pub struct DistrictYtd {
    pub d_ytd: i64,
}

#[columns(Customer)]
pub struct CustomerCredit {
    pub c_discount: i16,
    pub c_last: SmallText<16>,
    pub c_credit: SmallText<2>,
}

/// All but `c_data`, by far the longest.
#[columns(Customer)]
pub struct CustomerAccount {
    pub c_id: i32,
    pub c_discount: i16,
    pub c_payment_cnt: i32,
    pub c_since: Timestamp,
    pub c_credit_lim: i64,
    pub c_balance: i64,
    pub c_ytd_payment: i64,
    pub c_first: SmallText<16>,
    pub c_middle: SmallText<2>,
    pub c_last: SmallText<16>,
    pub c_street_1: SmallText<20>,
    pub c_street_2: SmallText<20>,
    pub c_city: SmallText<20>,
    pub c_state: SmallText<2>,
    pub c_zip: SmallText<9>,
    pub c_phone: SmallText<16>,
    pub c_credit: SmallText<2>,
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
pub struct CustomerName {
    pub c_id: i32,
    pub c_balance: i64,
    pub c_first: SmallText<16>,
    pub c_middle: SmallText<2>,
    pub c_last: SmallText<16>,
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
pub struct ItemSold {
    pub i_price: i64,
    pub i_name: SmallText<24>,
    pub i_data: SmallText<50>,
}

#[columns(Order)]
pub struct OrderCarrier {
    pub o_c_id: i32,
    pub o_carrier_id: Option<i8>,
}

#[columns(Order)]
pub struct OrderShown {
    pub o_id: i32,
    pub o_entry_d: Timestamp,
    pub o_carrier_id: Option<i8>,
}

#[columns(OrderLine)]
pub struct LineDelivery {
    pub ol_delivery_d: Option<Timestamp>,
    pub ol_amount: i64,
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

/// What an order of one district reads of a stock.
pub struct StockSold {
    pub taken: Row<StockTaken>,
    pub s_dist: SmallText<24>,
    pub s_data: SmallText<50>,
}

/// Reads the stocks with their `S_DIST_xx` of this district; None for one that there is not.
pub fn stocks_of(
    tx: &Txn,
    d_id: i8,
    keys: impl Iterator<Item = (i16, i32)>,
) -> Vec<Option<StockSold>> {
    match d_id {
        1 => sold::<StockOf1>(tx, keys),
        2 => sold::<StockOf2>(tx, keys),
        3 => sold::<StockOf3>(tx, keys),
        4 => sold::<StockOf4>(tx, keys),
        5 => sold::<StockOf5>(tx, keys),
        6 => sold::<StockOf6>(tx, keys),
        7 => sold::<StockOf7>(tx, keys),
        8 => sold::<StockOf8>(tx, keys),
        9 => sold::<StockOf9>(tx, keys),
        _ => sold::<StockOf10>(tx, keys),
    }
}

trait OfDistrict: Sized {
    fn read(tx: &Txn, keys: impl Iterator<Item = (i16, i32)>) -> Vec<Option<Row<Self>>>;
    fn into_sold(row: Row<Self>) -> StockSold;
}

fn sold<T: OfDistrict>(tx: &Txn, keys: impl Iterator<Item = (i16, i32)>) -> Vec<Option<StockSold>> {
    T::read(tx, keys)
        .into_iter()
        .map(|row| row.map(T::into_sold))
        .collect()
}

macro_rules! of_district {
    ($($name:ident $dist:ident)*) => {$(
        #[columns(Stock)]
        struct $name {
            s_quantity: i16,
            s_order_cnt: i32,
            s_remote_cnt: i32,
            s_ytd: i64,
            $dist: SmallText<24>,
            s_data: SmallText<50>,
        }
        impl OfDistrict for $name {
            fn read(tx: &Txn, keys: impl Iterator<Item = (i16, i32)>) -> Vec<Option<Row<Self>>> {
                Self::multi_get(tx, keys)
            }
            fn into_sold(row: Row<Self>) -> StockSold {
                let taken = StockTaken {
                    s_quantity: row.s_quantity,
                    s_order_cnt: row.s_order_cnt,
                    s_remote_cnt: row.s_remote_cnt,
                    s_ytd: row.s_ytd,
                };
                StockSold {
                    taken: Row::at(row.handle(), taken),
                    s_dist: row.$dist,
                    s_data: row.s_data,
                }
            }
        }
    )*};
}
of_district! {
    StockOf1 s_dist_01
    StockOf2 s_dist_02
    StockOf3 s_dist_03
    StockOf4 s_dist_04
    StockOf5 s_dist_05
    StockOf6 s_dist_06
    StockOf7 s_dist_07
    StockOf8 s_dist_08
    StockOf9 s_dist_09
    StockOf10 s_dist_10
}
