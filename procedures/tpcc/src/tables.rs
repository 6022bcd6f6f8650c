//! The nine tables (clause 1.3). Rows of fixed columns first: text moves no number.

use reprise_procedure::prelude::*;

#[table(name = "warehouse", primary_key(w_id), hash, partition_by = w_id)]
#[derive(Clone, Debug, PartialEq)]
pub struct Warehouse {
    pub w_id: i16,
    /// Ten-thousandths.
    pub w_tax: i16,
    /// Cents.
    pub w_ytd: i64,
    pub w_name: SmallText<10>,
    pub w_street_1: SmallText<20>,
    pub w_street_2: SmallText<20>,
    pub w_city: SmallText<20>,
    pub w_state: SmallText<2>,
    pub w_zip: SmallText<9>,
}

#[table(name = "district", primary_key(d_w_id, d_id), hash, partition_by = d_w_id)]
#[derive(Clone, Debug, PartialEq)]
pub struct District {
    pub d_w_id: i16,
    pub d_id: i8,
    pub d_tax: i16,
    pub d_next_o_id: i32,
    pub d_ytd: i64,
    pub d_name: SmallText<10>,
    pub d_street_1: SmallText<20>,
    pub d_street_2: SmallText<20>,
    pub d_city: SmallText<20>,
    pub d_state: SmallText<2>,
    pub d_zip: SmallText<9>,
}

#[table(
    name = "customer", primary_key(c_w_id, c_d_id, c_id), dense, partition_by = c_w_id,
    index(name, c_w_id, c_d_id, c_last, c_first)
)]
#[derive(Clone, Debug, PartialEq)]
pub struct Customer {
    pub c_w_id: i16,
    pub c_d_id: i8,
    pub c_id: i32,
    pub c_discount: i16,
    pub c_payment_cnt: i32,
    pub c_delivery_cnt: i32,
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
    /// `GC` or `BC`: good or bad credit.
    pub c_credit: SmallText<2>,
    pub c_data: String,
}

/// Has no key, as the specification has it: payments in the order of their making.
#[table(name = "history", partition_by = h_w_id)]
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    pub h_c_id: i32,
    pub h_c_d_id: i8,
    pub h_c_w_id: i16,
    pub h_d_id: i8,
    pub h_w_id: i16,
    pub h_date: Timestamp,
    pub h_amount: i64,
    pub h_data: SmallText<24>,
}

#[table(name = "new_order", primary_key(no_w_id, no_d_id, no_o_id), partition_by = no_w_id)]
#[derive(Clone, Debug, PartialEq)]
pub struct NewOrder {
    pub no_w_id: i16,
    pub no_d_id: i8,
    pub no_o_id: i32,
}

#[table(
    name = "orders", primary_key(o_w_id, o_d_id, o_id), partition_by = o_w_id,
    index(customer, o_w_id, o_d_id, o_c_id, o_id)
)]
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    pub o_w_id: i16,
    pub o_d_id: i8,
    pub o_id: i32,
    pub o_c_id: i32,
    pub o_entry_d: Timestamp,
    /// None until delivered.
    pub o_carrier_id: Option<i8>,
    pub o_ol_cnt: i8,
    pub o_all_local: bool,
}

#[table(name = "order_line", primary_key(ol_w_id, ol_d_id, ol_o_id, ol_number), partition_by = ol_w_id)]
#[derive(Clone, Debug, PartialEq)]
pub struct OrderLine {
    pub ol_w_id: i16,
    pub ol_d_id: i8,
    pub ol_o_id: i32,
    pub ol_number: i8,
    pub ol_i_id: i32,
    pub ol_supply_w_id: i16,
    /// None until delivered.
    pub ol_delivery_d: Option<Timestamp>,
    pub ol_quantity: i8,
    pub ol_amount: i64,
    pub ol_dist_info: SmallText<24>,
}

#[table(name = "item", primary_key(i_id), dense, replicated)]
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    pub i_id: i32,
    pub i_im_id: i32,
    pub i_price: i64,
    pub i_name: SmallText<24>,
    pub i_data: SmallText<50>,
}

#[table(name = "stock", primary_key(s_w_id, s_i_id), dense, partition_by = s_w_id)]
#[derive(Clone, Debug, PartialEq)]
pub struct Stock {
    pub s_w_id: i16,
    pub s_i_id: i32,
    pub s_quantity: i16,
    pub s_order_cnt: i32,
    pub s_remote_cnt: i32,
    pub s_ytd: i64,
    pub s_dist_01: SmallText<24>,
    pub s_dist_02: SmallText<24>,
    pub s_dist_03: SmallText<24>,
    pub s_dist_04: SmallText<24>,
    pub s_dist_05: SmallText<24>,
    pub s_dist_06: SmallText<24>,
    pub s_dist_07: SmallText<24>,
    pub s_dist_08: SmallText<24>,
    pub s_dist_09: SmallText<24>,
    pub s_dist_10: SmallText<24>,
    pub s_data: SmallText<50>,
}
