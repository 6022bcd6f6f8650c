//! Payment (clause 2.5): an amount from a customer to a warehouse and its district.

use reprise_procedure::{advanced::*, prelude::*};

use crate::{
    columns::{
        CustomerAccount, CustomerData, CustomerNumber, CustomerPaid, DistrictAddress, DistrictYtd, WarehouseAddress,
        WarehouseYtd,
    },
    missing,
    tables::{Customer, History},
};

/// Longest `C_DATA`, in bytes, and how much of it is shown.
const DATA_BYTES_MAX: usize = 500;
const DATA_BYTES_SHOWN: usize = 200;
/// Room for the customers of one last name, of whom there are three on average, and what each takes of it.
const NAMED_ROOM: usize = 30;
const NAMED_BYTES: usize = 12;

/// The fields that the terminal shows of a payment beside its inputs (clause 2.5.3.4).
#[derive(Clone, Debug, ProcedureResult)]
pub struct Paid<'r> {
    pub h_date: Timestamp,
    pub w_street_1: TextRef<'r, 20>,
    pub w_street_2: TextRef<'r, 20>,
    pub w_city: TextRef<'r, 20>,
    pub w_state: TextRef<'r, 2>,
    pub w_zip: TextRef<'r, 9>,
    pub d_street_1: TextRef<'r, 20>,
    pub d_street_2: TextRef<'r, 20>,
    pub d_city: TextRef<'r, 20>,
    pub d_state: TextRef<'r, 2>,
    pub d_zip: TextRef<'r, 9>,
    pub c_id: i32,
    pub c_first: TextRef<'r, 16>,
    pub c_middle: TextRef<'r, 2>,
    pub c_last: TextRef<'r, 16>,
    pub c_street_1: TextRef<'r, 20>,
    pub c_street_2: TextRef<'r, 20>,
    pub c_city: TextRef<'r, 20>,
    pub c_state: TextRef<'r, 2>,
    pub c_zip: TextRef<'r, 9>,
    pub c_phone: TextRef<'r, 16>,
    pub c_since: Timestamp,
    pub c_credit: TextRef<'r, 2>,
    pub c_credit_lim: i64,
    pub c_discount: i16,
    pub c_balance: i64,
    /// The first 200 characters, of a customer with bad credit.
    pub c_data: Option<String>,
}

/// Pays `h_amount` cents. The customer is named by number, or by last name (of several the one in the middle).
#[allow(clippy::too_many_arguments)] // they are the specification's
#[procedure(partition_by(w_id, c_w_id))]
pub fn payment(
    tx: &Txn,
    w_id: i16,
    d_id: i8,
    c_w_id: i16,
    c_d_id: i8,
    c_id: Option<i32>,
    c_last: Option<&str>,
    h_amount: i64,
) -> Result<Reply<Paid<'static>>, Abort> {
    if h_amount <= 0 {
        return Err(Abort::new("invalid_amount", "a payment is of at least one cent"));
    }
    let mut room = (RowRoom::new(), RowRoom::new(), RowRoom::new());
    let warehouse = WarehouseAddress::get_in(tx, w_id, &mut room.0);
    let mut warehouse = warehouse.ok_or_else(|| missing("there is no such warehouse"))?;
    let district = DistrictAddress::get_in(tx, (w_id, d_id), &mut room.1);
    let mut district = district.ok_or_else(|| missing("there is no such district"))?;
    let mut customer = match (c_id, c_last) {
        (Some(c_id), None) => CustomerAccount::get_in(tx, (c_w_id, c_d_id, c_id), &mut room.2),
        name => middle_of(tx, c_w_id, c_d_id, name)?.map(|handle| CustomerAccount::read_in(tx, handle, &mut room.2)),
    }
    .ok_or_else(no_customer)?;
    warehouse.w_ytd += h_amount;
    WarehouseYtd { w_ytd: warehouse.w_ytd }.write(tx, warehouse.handle())?;
    district.d_ytd += h_amount;
    DistrictYtd { d_ytd: district.d_ytd }.write(tx, district.handle())?;
    customer.c_balance -= h_amount;
    customer.c_ytd_payment += h_amount;
    customer.c_payment_cnt += 1;
    let mut c_data = None;
    if customer.c_credit == "BC" {
        let place = [c_d_id as i64, c_w_id as i64, d_id as i64, w_id as i64];
        c_data = Some(note_payment(tx, &customer, place, h_amount)?);
    } else {
        let paid = CustomerPaid {
            c_payment_cnt: customer.c_payment_cnt,
            c_balance: customer.c_balance,
            c_ytd_payment: customer.c_ytd_payment,
        };
        paid.write(tx, customer.handle())?;
    }
    let row = History {
        h_c_id: customer.c_id,
        h_c_d_id: c_d_id,
        h_c_w_id: c_w_id,
        h_d_id: d_id,
        h_w_id: w_id,
        h_date: tx.now(),
        h_amount,
        h_data: history_data(warehouse.w_name.as_bytes(), district.d_name.as_bytes()),
    };
    History::insert(tx, &row)?;
    let paid = shown(row.h_date, &warehouse, &district, &customer, c_data);
    Ok(Reply::of(&paid))
}

/// Writes an account with bad credit, and this payment into its data. Returns the part of the data that is shown.
fn note_payment(
    tx: &Txn,
    customer: &Row<CustomerAccount<'_>>,
    place: [i64; 4],
    h_amount: i64,
) -> Result<String, Abort> {
    let mut data = CustomerData::read(tx, customer.handle());
    data.c_payment_cnt = customer.c_payment_cnt;
    data.c_balance = customer.c_balance;
    data.c_ytd_payment = customer.c_ytd_payment;
    data.c_data = noted(customer.c_id, &data.c_data, place, h_amount);
    data.update(tx)?;
    Ok(cut(&data.c_data, DATA_BYTES_SHOWN).to_owned())
}

#[inline]
fn shown<'r>(
    h_date: Timestamp,
    warehouse: &WarehouseAddress<'r>,
    district: &DistrictAddress<'r>,
    customer: &CustomerAccount<'r>,
    c_data: Option<String>,
) -> Paid<'r> {
    Paid {
        h_date,
        w_street_1: warehouse.w_street_1,
        w_street_2: warehouse.w_street_2,
        w_city: warehouse.w_city,
        w_state: warehouse.w_state,
        w_zip: warehouse.w_zip,
        d_street_1: district.d_street_1,
        d_street_2: district.d_street_2,
        d_city: district.d_city,
        d_state: district.d_state,
        d_zip: district.d_zip,
        c_id: customer.c_id,
        c_first: customer.c_first,
        c_middle: customer.c_middle,
        c_last: customer.c_last,
        c_street_1: customer.c_street_1,
        c_street_2: customer.c_street_2,
        c_city: customer.c_city,
        c_state: customer.c_state,
        c_zip: customer.c_zip,
        c_phone: customer.c_phone,
        c_since: customer.c_since,
        c_credit: customer.c_credit,
        c_credit_lim: customer.c_credit_lim,
        c_discount: customer.c_discount,
        c_balance: customer.c_balance,
        c_data,
    }
}

/// Returns the customer at place n/2 rounded up, among those with a last name in order of their first names (clause 2.5.2.2). An error if
/// the caller named a customer in no way, or in two.
pub fn middle_of(tx: &Txn, w_id: i16, d_id: i8, name: (Option<i32>, Option<&str>)) -> Result<Option<RowHandle>, Abort> {
    let (None, Some(c_last)) = name else {
        return Err(Abort::new(
            "invalid_customer",
            "name the customer either by c_id or by c_last",
        ));
    };
    let of_name = Customer::scan_by_name(tx).prefix((w_id, d_id, c_last));
    let numbers = of_name.columns::<CustomerNumber>();
    let numbers = numbers.batch_bytes(NAMED_BYTES * NAMED_ROOM).iter();
    let mut handles = Vec::with_capacity(NAMED_ROOM);
    handles.extend(numbers.map(|customer| customer.handle()));
    let middle = handles.len().div_ceil(2).checked_sub(1);
    Ok(middle.and_then(|at| handles.get(at)).copied())
}

#[cold]
pub fn no_customer() -> Abort {
    missing("there is no such customer")
}

/// Returns `C_DATA` with this payment before its former text.
fn noted(c_id: i32, c_data: &str, place: [i64; 4], h_amount: i64) -> String {
    let mut data = String::with_capacity(DATA_BYTES_MAX + 64);
    push_number(&mut data, c_id as i64);
    for number in place.into_iter().chain([h_amount]) {
        data.push(' ');
        push_number(&mut data, number);
    }
    data.push('|');
    data.push_str(c_data);
    let length = cut(&data, DATA_BYTES_MAX).len();
    data.truncate(length);
    data
}

/// Writes a number in decimal. `format!` would cost the guest several kilobytes.
fn push_number(out: &mut String, number: i64) {
    if number < 0 {
        out.push('-');
    }
    let number = number.unsigned_abs();
    let mut divisor = 1;
    while number / divisor >= 10 {
        divisor *= 10;
    }
    while divisor > 0 {
        out.push((b'0' + (number / divisor % 10) as u8) as char);
        divisor /= 10;
    }
}

/// Returns at most `bytes_max` bytes of whole characters.
fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or("")
}

/// `W_NAME`, four spaces, `D_NAME`.
fn history_data(w_name: &[u8], d_name: &[u8]) -> SmallText<24> {
    let mut bytes = [b' '; 24];
    let start = w_name.len() + 4;
    let end = start + d_name.len();
    if let Some(room) = bytes.get_mut(..w_name.len()) {
        room.copy_from_slice(w_name);
    }
    if let Some(room) = bytes.get_mut(start..end) {
        room.copy_from_slice(d_name);
    }
    let text = bytes.get(..end).and_then(|text| std::str::from_utf8(text).ok());
    text.and_then(SmallText::new).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(value: i64) -> String {
        let mut text = String::new();
        push_number(&mut text, value);
        text
    }

    #[test]
    fn numbers_are_decimal() {
        for value in [0, 7, 10, 109, -5, i64::MAX, i64::MIN] {
            assert_eq!(number(value), value.to_string());
        }
    }

    #[test]
    fn names_are_joined_and_cuts_keep_characters() {
        assert_eq!(history_data(b"abcdef", b"ghijklmnop").as_str(), "abcdef    ghijklmnop");
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut("abc", 5), "abc");
    }
}
