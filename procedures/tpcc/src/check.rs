//! The consistency conditions 1 to 12 (clause 3.3.2), worked out by scans.

use reprise_procedure::prelude::*;

use crate::{
    CUSTOMERS, DISTRICTS, FIRST_NEW_ORDER,
    columns::{CustomerSums, LineSums},
    missing,
    tables::{Customer, District, History, NewOrder, Order, OrderLine, Warehouse},
};

/// One condition's verdict.
#[derive(Clone, Debug, PartialEq, Eq, ProcedureStruct)]
pub struct Condition {
    pub condition: i32,
    pub passed: bool,
    /// What holds, or the first thing that does not.
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

/// Checks one warehouse, or one district of it. The conditions of the specification speak of a database at rest; that
/// of number 11 (2,100 orders that do not wait) is about the population, and deliveries since are counted on top of it.
#[procedure(all_partitions, read_only)]
pub fn check(tx: &Txn, w_id: i16, d_id: Option<i8>) -> Result<Vec<Condition>, Abort> {
    let warehouse =
        Warehouse::get(tx, w_id).ok_or_else(|| missing("there is no such warehouse"))?;
    let mut verdicts = Verdicts::default();
    let districts = match d_id {
        Some(d_id) => d_id..=d_id,
        None => 1..=DISTRICTS,
    };
    let mut sums: Vec<Sums> = districts.map(|d_id| Sums::new(w_id, d_id)).collect();
    let mut w_paid = 0;
    for payment in History::scan(tx) {
        if payment.h_w_id == w_id {
            w_paid += payment.h_amount;
        }
        sums.iter_mut().for_each(|sums| sums.add_payment(&payment));
    }
    verdicts.hold(
        8,
        warehouse.w_ytd == w_paid,
        "w_ytd",
        [w_id as i64, warehouse.w_ytd, w_paid],
    );
    let mut ytd = 0;
    for d_id in 1..=DISTRICTS {
        let district =
            District::get(tx, (w_id, d_id)).ok_or_else(|| missing("there is no such district"))?;
        ytd += district.d_ytd;
        if let Some(sums) = sums.iter_mut().find(|sums| sums.d_id == d_id) {
            sums.check(tx, &district, &mut verdicts);
        }
    }
    verdicts.hold(
        1,
        warehouse.w_ytd == ytd,
        "w_ytd",
        [w_id as i64, warehouse.w_ytd, ytd],
    );
    Ok(verdicts.into_list())
}

/// The first failure of each condition.
#[derive(Default)]
struct Verdicts {
    failures: [Option<String>; 12],
}

impl Verdicts {
    fn hold(&mut self, condition: usize, passed: bool, what: &str, numbers: [i64; 3]) {
        let Some(failure) = self.failures.get_mut(condition - 1) else {
            return;
        };
        if !passed && failure.is_none() {
            let [at, found, expected] = numbers;
            *failure = Some(format!("{what} of {at} is {found}, not {expected}"));
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

/// What one district's customers paid and got, by customer.
struct Sums {
    w_id: i16,
    d_id: i8,
    /// All payments that were made in this district.
    taken: i64,
    paid: Vec<i64>,
    delivered: Vec<i64>,
}

impl Sums {
    fn new(w_id: i16, d_id: i8) -> Self {
        Self {
            w_id,
            d_id,
            taken: 0,
            paid: vec![0; CUSTOMERS as usize + 1],
            delivered: vec![0; CUSTOMERS as usize + 1],
        }
    }

    fn add_payment(&mut self, payment: &History) {
        if (payment.h_w_id, payment.h_d_id) == (self.w_id, self.d_id) {
            self.taken += payment.h_amount;
        }
        if (payment.h_c_w_id, payment.h_c_d_id) == (self.w_id, self.d_id)
            && let Some(paid) = self.paid.get_mut(payment.h_c_id as usize)
        {
            *paid += payment.h_amount;
        }
    }

    fn check(&mut self, tx: &Txn, district: &District, verdicts: &mut Verdicts) {
        let key = (self.w_id, self.d_id);
        let at = self.d_id as i64;
        verdicts.hold(
            9,
            district.d_ytd == self.taken,
            "d_ytd of district",
            [at, district.d_ytd, self.taken],
        );
        let waiting = NewOrder::scan(tx).prefix(key);
        let least = waiting.iter().next().map(|row| row.no_o_id);
        let (waiting_count, greatest) = (
            waiting.count() as i64,
            NewOrder::scan(tx)
                .prefix(key)
                .reverse()
                .first()
                .map(|row| row.no_o_id),
        );
        let last = district.d_next_o_id as i64 - 1;
        if let (Some(least), Some(greatest)) = (least, greatest) {
            let span = greatest as i64 - least as i64 + 1;
            verdicts.hold(
                2,
                greatest as i64 == last,
                "the greatest no_o_id of district",
                [at, greatest as i64, last],
            );
            verdicts.hold(
                3,
                span == waiting_count,
                "the span of no_o_id of district",
                [at, span, waiting_count],
            );
        }
        let orders = self.check_orders(tx, verdicts, last);
        let deliveries = self.check_customers(tx, verdicts);
        let expected = FIRST_NEW_ORDER as i64 - 1 + deliveries;
        let settled = orders - waiting_count;
        verdicts.hold(
            11,
            settled == expected,
            "orders that do not wait of district",
            [at, settled, expected],
        );
    }

    /// Walks orders, their lines and the new orders side by side; the number of orders.
    fn check_orders(&mut self, tx: &Txn, verdicts: &mut Verdicts, last: i64) -> i64 {
        let key = (self.w_id, self.d_id);
        let mut lines = OrderLine::scan(tx)
            .prefix(key)
            .columns::<LineSums>()
            .iter()
            .peekable();
        let mut waiting = NewOrder::scan(tx).prefix(key).iter().peekable();
        let (mut orders, mut greatest, mut lines_expected) = (0, 0, 0);
        for order in Order::scan(tx).prefix(key) {
            let at = order.o_id as i64;
            orders += 1;
            greatest = at;
            lines_expected += order.o_ol_cnt as i64;
            while waiting.next_if(|row| row.no_o_id < order.o_id).is_some() {
                verdicts.hold(5, false, "orders of new order", [at, 0, 1]);
            }
            let is_waiting = waiting.next_if(|row| row.no_o_id == order.o_id).is_some();
            let is_undelivered = order.o_carrier_id.is_none();
            verdicts.hold(
                5,
                is_waiting == is_undelivered,
                "new orders of order",
                [at, is_waiting as i64, is_undelivered as i64],
            );
            let mut count = 0;
            while let Some(line) = lines.next_if(|line| line.ol_o_id <= order.o_id) {
                let is_open = line.ol_delivery_d.is_none();
                count += (line.ol_o_id == order.o_id) as i64;
                verdicts.hold(
                    7,
                    is_open == is_undelivered,
                    "open lines of order",
                    [at, is_open as i64, is_undelivered as i64],
                );
                if let Some(sum) = self.delivered.get_mut(order.o_c_id as usize)
                    && !is_open
                {
                    *sum += line.ol_amount;
                }
            }
            verdicts.hold(
                6,
                count == order.o_ol_cnt as i64,
                "lines of order",
                [at, count, order.o_ol_cnt as i64],
            );
        }
        let stray = waiting.next().is_some();
        let at = self.d_id as i64;
        verdicts.hold(
            5,
            !stray,
            "new orders without order of district",
            [at, stray as i64, 0],
        );
        verdicts.hold(
            2,
            greatest == last,
            "the greatest o_id of district",
            [at, greatest, last],
        );
        self.check_line_count(tx, verdicts, lines_expected);
        orders
    }

    fn check_line_count(&self, tx: &Txn, verdicts: &mut Verdicts, expected: i64) {
        let found = OrderLine::scan(tx).prefix((self.w_id, self.d_id)).count() as i64;
        let numbers = [self.d_id as i64, found, expected];
        verdicts.hold(4, found == expected, "order lines of district", numbers);
    }

    /// Compares each customer's account; the number of their deliveries.
    fn check_customers(&self, tx: &Txn, verdicts: &mut Verdicts) -> i64 {
        let mut deliveries = 0;
        for customer in Customer::scan_by_name(tx)
            .prefix((self.w_id, self.d_id))
            .columns::<CustomerSums>()
        {
            let at = customer.c_id as usize;
            let delivered = self.delivered.get(at).copied().unwrap_or(0);
            let balance = delivered - self.paid.get(at).copied().unwrap_or(0);
            let turnover = customer.c_balance + customer.c_ytd_payment;
            deliveries += customer.c_delivery_cnt as i64;
            verdicts.hold(
                10,
                customer.c_balance == balance,
                "c_balance of customer",
                [at as i64, customer.c_balance, balance],
            );
            verdicts.hold(
                12,
                turnover == delivered,
                "c_balance + c_ytd_payment of customer",
                [at as i64, turnover, delivered],
            );
        }
        deliveries
    }
}
