//! The consistency conditions, asked for in pieces: what all of it takes of memory is a number a district and a customer.

use serde_json::Value;
use tpcc::{
    check::{CustomerHeld, Delivered, DistrictHeld, Failure, OrdersHeld, WarehouseHeld},
    judge::{DistrictCase, Payment, Payments},
};

use crate::{
    BenchError,
    control::{Arg, Control, integer},
};

const PAYMENT_COLUMNS: [&str; 6] = ["h_w_id", "h_d_id", "h_c_w_id", "h_c_d_id", "h_c_id", "h_amount"];

/// Judges every warehouse that there is; how many there are.
pub(super) fn conditions(control: &mut dyn Control) -> Result<i16, BenchError> {
    let count = control.checked_row_count("warehouse", &|rows| rows > 0)?;
    let warehouses = i16::try_from(count).ok().filter(|count| *count > 0);
    let warehouses = warehouses.ok_or_else(|| BenchError::Failed(format!("there are {count} warehouses")))?;
    let payments = payments(control, warehouses)?;
    for w_id in 1..=warehouses {
        let held = control.call("check_warehouse", &[("w_id", Arg::I16(w_id))])?;
        let warehouse = warehouse_of(&held)?;
        for d_id in 1..=tpcc::DISTRICTS {
            check_district(control, (w_id, d_id), &warehouse, &payments)?;
        }
    }
    Ok(warehouses)
}

fn payments(control: &mut dyn Control, warehouses: i16) -> Result<Payments, BenchError> {
    let mut payments = Payments::new(warehouses);
    control.visit_integers("history", &PAYMENT_COLUMNS, &mut |row| {
        payments.add(&Payment {
            h_w_id: row[0],
            h_d_id: row[1],
            h_c_w_id: row[2],
            h_c_d_id: row[3],
            h_c_id: row[4],
            h_amount: row[5],
        });
    })?;
    Ok(payments)
}

fn check_district(
    control: &mut dyn Control,
    (w_id, d_id): (i16, i8),
    warehouse: &WarehouseHeld,
    payments: &Payments,
) -> Result<(), BenchError> {
    let place = [("w_id", Arg::I16(w_id)), ("d_id", Arg::I8(d_id))];
    let mut case = DistrictCase::new(w_id, d_id);
    for (from, to) in DistrictCase::ranges(warehouse.districts[d_id as usize - 1].d_next_o_id) {
        let range = [("from", Arg::I32(from)), ("to", Arg::I32(to))];
        let held = control.call("check_orders", &[&place[..], &range].concat())?;
        case.add(&orders_of(&held)?);
    }
    let customers = list(&control.call("check_customers", &place)?, |row| {
        Ok(CustomerHeld {
            c_id: integer(row, "c_id")? as i32,
            deliveries: integer(row, "deliveries")? as i32,
            balance: integer(row, "balance")?,
            ytd_payment: integer(row, "ytd_payment")?,
        })
    })?;
    let verdicts = case.judge(warehouse, &customers, payments);
    match verdicts.iter().find(|verdict| !verdict.passed) {
        None => Ok(()),
        Some(failed) => Err(BenchError::Checks(format!(
            "condition {} does not hold in district {d_id} of warehouse {w_id}: {}",
            failed.condition, failed.detail
        ))),
    }
}

fn warehouse_of(held: &Value) -> Result<WarehouseHeld, BenchError> {
    let districts = list(&held["districts"], |district| {
        Ok(DistrictHeld {
            d_ytd: integer(district, "d_ytd")?,
            d_next_o_id: integer(district, "d_next_o_id")? as i32,
        })
    })?;
    match districts.len() == tpcc::DISTRICTS as usize {
        true => Ok(WarehouseHeld {
            w_ytd: integer(held, "w_ytd")?,
            districts,
        }),
        false => Err(BenchError::Failed(format!("a warehouse was answered as {held}"))),
    }
}

fn orders_of(held: &Value) -> Result<OrdersHeld, BenchError> {
    let number = |member| integer(held, member);
    Ok(OrdersHeld {
        orders: number("orders")?,
        greatest: number("greatest")? as i32,
        lines_expected: number("lines_expected")?,
        lines: number("lines")?,
        waiting: number("waiting")?,
        waiting_least: number("waiting_least")? as i32,
        waiting_greatest: number("waiting_greatest")? as i32,
        delivered: list(&held["delivered"], |row| {
            Ok(Delivered {
                c_id: integer(row, "c_id")? as i32,
                amount: integer(row, "amount")?,
            })
        })?,
        failures: list(&held["failures"], |row| {
            Ok(Failure {
                condition: integer(row, "condition")? as i32,
                detail: row["detail"].as_str().unwrap_or_default().into(),
            })
        })?,
    })
}

fn list<T>(value: &Value, read: impl Fn(&Value) -> Result<T, BenchError>) -> Result<Vec<T>, BenchError> {
    let rows = value.as_array();
    let rows = rows.ok_or_else(|| BenchError::Failed(format!("a list was answered as {value}")))?;
    rows.iter().map(read).collect()
}
