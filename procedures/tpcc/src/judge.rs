//! The consistency conditions 1 to 12 (clause 3.3.2), put together from the answers of the pieces of `check` and from the payments. It runs
//! on the caller's side, or in `check` itself. The conditions of the specification are about a database at rest. Condition 11 (2,100 orders
//! that do not wait) is about the population, and later deliveries are counted on top of it.

use reprise_procedure::prelude::*;

use crate::{
    CUSTOMERS, DISTRICTS, FIRST_NEW_ORDER,
    check::{CHECKED_ORDERS, CustomerHeld, DistrictHeld, OrdersHeld, WarehouseHeld},
    tables::History,
};

/// One condition's verdict.
#[derive(Clone, Debug, PartialEq, Eq, ProcedureStruct)]
pub struct Condition {
    pub condition: i32,
    pub passed: bool,
    /// The condition that holds, or the first failure.
    pub detail: String,
}

const DETAILS: [&str; 12] = [
    "w_ytd is the sum of d_ytd",
    "d_next_o_id - 1 is the greatest o_id and the greatest no_o_id",
    "the new orders of a district are numbered without gaps",
    "the sum of o_ol_cnt is the number of order lines",
    "an order has no carrier exactly when it is a new order",
    "an order has o_ol_cnt lines",
    "a line is undelivered exactly when its order has no carrier",
    "w_ytd is the sum of the warehouse's history",
    "d_ytd is the sum of the district's history",
    "c_balance is what was delivered less what was paid",
    "orders that do not wait are the first 2100 and those delivered since",
    "c_balance and c_ytd_payment together are what was delivered",
];

/// A row of the history.
#[derive(Clone, Copy, Debug)]
pub struct Payment {
    pub h_w_id: i64,
    pub h_d_id: i64,
    pub h_c_w_id: i64,
    pub h_c_d_id: i64,
    pub h_c_id: i64,
    pub h_amount: i64,
}

impl Payment {
    pub fn of(row: &History) -> Self {
        Self {
            h_w_id: row.h_w_id.into(),
            h_d_id: row.h_d_id.into(),
            h_c_w_id: row.h_c_w_id.into(),
            h_c_d_id: row.h_c_d_id.into(),
            h_c_id: row.h_c_id.into(),
            h_amount: row.h_amount,
        }
    }
}

/// The history, added up row by row: its length bounds nothing.
pub struct Payments {
    /// Amounts by district.
    taken: Vec<i64>,
    /// Amounts by customer.
    paid: Vec<i64>,
    /// Payments of places that do not exist.
    strays: i64,
}

impl Payments {
    pub fn new(warehouses: i16) -> Self {
        let districts = warehouses as usize * DISTRICTS as usize;
        Self {
            taken: vec![0; districts],
            paid: vec![0; districts * CUSTOMERS as usize],
            strays: 0,
        }
    }

    pub fn add(&mut self, payment: &Payment) {
        let taken = district_at(payment.h_w_id, payment.h_d_id).and_then(|at| self.taken.get_mut(at));
        let paid = customer_at(payment.h_c_w_id, payment.h_c_d_id, payment.h_c_id).and_then(|at| self.paid.get_mut(at));
        match (taken, paid) {
            (Some(taken), Some(paid)) => {
                *taken += payment.h_amount;
                *paid += payment.h_amount;
            }
            _ => self.strays += 1,
        }
    }

    fn taken(&self, w_id: i16, d_id: i8) -> i64 {
        let at = district_at(w_id.into(), d_id.into());
        at.and_then(|at| self.taken.get(at)).copied().unwrap_or(0)
    }

    fn paid(&self, w_id: i16, d_id: i8, c_id: i32) -> i64 {
        let at = customer_at(w_id.into(), d_id.into(), c_id.into());
        at.and_then(|at| self.paid.get(at)).copied().unwrap_or(0)
    }
}

fn district_at(w_id: i64, d_id: i64) -> Option<usize> {
    let is_one = (1..=DISTRICTS as i64).contains(&d_id) && w_id >= 1;
    is_one.then(|| ((w_id - 1) * DISTRICTS as i64 + d_id - 1) as usize)
}

fn customer_at(w_id: i64, d_id: i64, c_id: i64) -> Option<usize> {
    let is_one = (1..=CUSTOMERS as i64).contains(&c_id);
    let district = district_at(w_id, d_id).filter(|_| is_one)?;
    Some(district * CUSTOMERS as usize + c_id as usize - 1)
}

/// One district's case: give `add` what `check_orders` answers to each of `ranges`, then ask for the verdicts.
pub struct DistrictCase {
    w_id: i16,
    d_id: i8,
    orders: OrdersHeld,
    delivered: Vec<i64>,
    failures: [Option<String>; 12],
}

impl DistrictCase {
    pub fn new(w_id: i16, d_id: i8) -> Self {
        Self {
            w_id,
            d_id,
            orders: OrdersHeld::default(),
            delivered: vec![0; CUSTOMERS as usize + 1],
            failures: Default::default(),
        }
    }

    /// Ranges of order numbers, both ends included, that together are all numbers.
    pub fn ranges(d_next_o_id: i32) -> impl Iterator<Item = (i32, i32)> {
        let mut from = Some(i32::MIN);
        std::iter::from_fn(move || {
            let first = from?;
            let to = first.max(0).saturating_add(CHECKED_ORDERS);
            let to = if to >= d_next_o_id { i32::MAX } else { to };
            from = to.checked_add(1);
            Some((first, to))
        })
    }

    /// Ranges come in their order.
    pub fn add(&mut self, held: &OrdersHeld) {
        let sums = &mut self.orders;
        sums.orders += held.orders;
        sums.greatest = if held.orders > 0 { held.greatest } else { sums.greatest };
        sums.lines_expected += held.lines_expected;
        sums.lines += held.lines;
        if held.waiting > 0 {
            let is_first = sums.waiting == 0;
            sums.waiting_least = if is_first {
                held.waiting_least
            } else {
                sums.waiting_least
            };
            sums.waiting_greatest = held.waiting_greatest;
            sums.waiting += held.waiting;
        }
        for delivered in &held.delivered {
            if let Some(sum) = self.delivered.get_mut(delivered.c_id as usize) {
                *sum += delivered.amount;
            }
        }
        for failure in &held.failures {
            self.fail(failure.condition as usize, || failure.detail.clone());
        }
    }

    /// The verdicts on this district, and on its warehouse's account.
    pub fn judge(
        mut self,
        warehouse: &WarehouseHeld,
        customers: &[CustomerHeld],
        payments: &Payments,
    ) -> Vec<Condition> {
        let own = warehouse
            .districts
            .get(self.d_id as usize - 1)
            .copied()
            .unwrap_or_default();
        self.check_warehouse(warehouse, payments);
        self.check_orders(&own);
        let taken = payments.taken(self.w_id, self.d_id);
        self.hold(
            9,
            own.d_ytd == taken,
            "d_ytd of district",
            [self.d_id as i64, own.d_ytd, taken],
        );
        let deliveries = self.check_customers(customers, payments);
        let settled = self.orders.orders - self.orders.waiting;
        let expected = FIRST_NEW_ORDER as i64 - 1 + deliveries;
        let numbers = [self.d_id as i64, settled, expected];
        self.hold(11, settled == expected, "orders that do not wait of district", numbers);
        self.into_list()
    }

    fn check_warehouse(&mut self, warehouse: &WarehouseHeld, payments: &Payments) {
        let (at, found) = (self.w_id as i64, warehouse.w_ytd);
        let ytd = warehouse.districts.iter().map(|district| district.d_ytd).sum();
        self.hold(1, found == ytd, "w_ytd of warehouse", [at, found, ytd]);
        let paid = (1..=DISTRICTS).map(|d_id| payments.taken(self.w_id, d_id)).sum();
        self.hold(8, found == paid, "w_ytd of warehouse", [at, found, paid]);
        let strays = payments.strays;
        self.hold(
            8,
            strays == 0,
            "payments that belong nowhere, seen from warehouse",
            [at, strays, 0],
        );
    }

    fn check_orders(&mut self, district: &DistrictHeld) {
        let (at, last) = (self.d_id as i64, district.d_next_o_id as i64 - 1);
        let orders = self.orders.clone();
        let greatest = orders.greatest as i64;
        self.hold(
            2,
            greatest == last,
            "the greatest o_id of district",
            [at, greatest, last],
        );
        if orders.waiting > 0 {
            let (least, greatest) = (orders.waiting_least as i64, orders.waiting_greatest as i64);
            let span = greatest - least + 1;
            self.hold(
                2,
                greatest == last,
                "the greatest no_o_id of district",
                [at, greatest, last],
            );
            self.hold(
                3,
                span == orders.waiting,
                "the span of no_o_id of district",
                [at, span, orders.waiting],
            );
        }
        let numbers = [at, orders.lines, orders.lines_expected];
        self.hold(
            4,
            orders.lines == orders.lines_expected,
            "order lines of district",
            numbers,
        );
    }

    /// Compares each customer's account; the number of their deliveries.
    fn check_customers(&mut self, customers: &[CustomerHeld], payments: &Payments) -> i64 {
        for customer in customers {
            let at = customer.c_id as i64;
            let delivered = self.delivered.get(customer.c_id as usize).copied().unwrap_or(0);
            let balance = delivered - payments.paid(self.w_id, self.d_id, customer.c_id);
            let turnover = customer.balance + customer.ytd_payment;
            self.hold(
                10,
                customer.balance == balance,
                "c_balance of customer",
                [at, customer.balance, balance],
            );
            let numbers = [at, turnover, delivered];
            self.hold(
                12,
                turnover == delivered,
                "c_balance + c_ytd_payment of customer",
                numbers,
            );
        }
        customers.iter().map(|customer| customer.deliveries as i64).sum()
    }

    fn hold(&mut self, condition: usize, passed: bool, what: &str, [at, found, expected]: [i64; 3]) {
        if !passed {
            self.fail(condition, || format!("{what} {at} is {found}, not {expected}"));
        }
    }

    /// Keeps the first failure of a condition.
    fn fail(&mut self, condition: usize, detail: impl FnOnce() -> String) {
        if let Some(failure) = self.failures.get_mut(condition - 1) {
            failure.get_or_insert_with(detail);
        }
    }

    fn into_list(self) -> Vec<Condition> {
        let list = self.failures.into_iter().zip(DETAILS).zip(1..);
        let condition = |((failure, detail), condition): ((Option<String>, &str), i32)| Condition {
            condition,
            passed: failure.is_none(),
            detail: failure.unwrap_or_else(|| detail.to_owned()),
        };
        list.map(condition).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_leave_no_number_out() {
        for next in [i32::MIN, -5, 1, 3_001, 5_001, 5_002, 1_000_000] {
            let ranges: Vec<_> = DistrictCase::ranges(next).collect();
            assert_eq!(ranges.first().map(|range| range.0), Some(i32::MIN));
            assert_eq!(ranges.last().map(|range| range.1), Some(i32::MAX));
            assert!(ranges.windows(2).all(|two| two[0].1 + 1 == two[1].0), "{ranges:?}");
            let pages = next.max(0) as usize / CHECKED_ORDERS as usize;
            assert!(ranges.len() <= pages + 1, "{next}: {ranges:?}");
        }
    }
}
