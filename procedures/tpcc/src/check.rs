//! Facts for the consistency conditions 1 to 12 (clause 3.3.2), in pieces that each fit one transaction.

use reprise_procedure::prelude::*;

use crate::{
    CUSTOMERS, DISTRICTS,
    columns::{CustomerSums, LineSums},
    judge::{Condition, DistrictCase, Payment, Payments},
    missing,
    tables::{Customer, District, History, NewOrder, Order, OrderLine, Warehouse},
};

/// Orders that one call of `check_orders` is given with ease: some fifty thousand lines.
pub const CHECKED_ORDERS: i32 = 5_000;

/// A warehouse's account, and those of its districts from the first on.
#[derive(Clone, Debug, Default, PartialEq, Eq, ProcedureStruct)]
pub struct WarehouseHeld {
    pub w_ytd: i64,
    pub districts: Vec<DistrictHeld>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ProcedureStruct)]
pub struct DistrictHeld {
    pub d_ytd: i64,
    pub d_next_o_id: i32,
}

/// The rows in a range of a district's order numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, ProcedureStruct)]
pub struct OrdersHeld {
    pub orders: i64,
    /// The greatest `o_id`, or 0 if there is none.
    pub greatest: i32,
    /// The sum of `o_ol_cnt`.
    pub lines_expected: i64,
    pub lines: i64,
    /// New orders, and the least and the greatest of their numbers, or 0 if there are none.
    pub waiting: i64,
    pub waiting_least: i32,
    pub waiting_greatest: i32,
    /// Deliveries to customers, those with nothing left out.
    pub delivered: Vec<Delivered>,
    /// The first failure of each condition that a single order breaks.
    pub failures: Vec<Failure>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ProcedureStruct)]
pub struct Delivered {
    pub c_id: i32,
    pub amount: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, ProcedureStruct)]
pub struct Failure {
    pub condition: i32,
    pub detail: String,
}

/// A customer's account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ProcedureStruct)]
pub struct CustomerHeld {
    pub c_id: i32,
    pub deliveries: i32,
    pub balance: i64,
    pub ytd_payment: i64,
}

/// Judges one warehouse, or one district of it, by all of its rows in one transaction. What a long run leaves passes a
/// transaction's limits; the pieces below have none of the run's length.
#[procedure(all_partitions, read_only, time_max_ms = 60_000)]
pub fn check(tx: &Txn, w_id: i16, d_id: Option<i8>) -> Result<Vec<Condition>, Abort> {
    let warehouse = check_warehouse(tx, w_id)?;
    let warehouses = (1..i16::MAX).take_while(|w_id| Warehouse::exists(tx, *w_id)).count() as i16;
    let mut payments = Payments::new(warehouses.max(w_id));
    for row in History::scan(tx) {
        payments.add(&Payment::of(&row));
    }
    let mut conditions: Vec<Condition> = Vec::new();
    let districts = d_id.map_or(1..=DISTRICTS, |d_id| d_id..=d_id);
    for d_id in districts {
        let place = usize::try_from(d_id - 1)
            .ok()
            .and_then(|at| warehouse.districts.get(at));
        let district = place.ok_or_else(|| missing("there is no such district"))?;
        let mut case = DistrictCase::new(w_id, d_id);
        for (from, to) in DistrictCase::ranges(district.d_next_o_id) {
            case.add(&check_orders(tx, w_id, d_id, from, to));
        }
        let verdicts = case.judge(&warehouse, &check_customers(tx, w_id, d_id), &payments);
        match conditions.is_empty() {
            true => conditions = verdicts,
            // The first failure of each is reported.
            false => conditions
                .iter_mut()
                .zip(verdicts)
                .filter(|(told, new)| told.passed && !new.passed)
                .for_each(|(told, new)| *told = new),
        }
    }
    Ok(conditions)
}

/// The accounts of a warehouse and its districts.
#[procedure(partition_by(w_id), read_only)]
pub fn check_warehouse(tx: &Txn, w_id: i16) -> Result<WarehouseHeld, Abort> {
    let warehouse = Warehouse::get(tx, w_id);
    let warehouse = warehouse.ok_or_else(|| missing("there is no such warehouse"))?;
    let mut held = WarehouseHeld {
        w_ytd: warehouse.w_ytd,
        districts: Vec::new(),
    };
    for d_id in 1..=DISTRICTS {
        let district = District::get(tx, (w_id, d_id));
        let district = district.ok_or_else(|| missing("there is no such district"))?;
        held.districts.push(DistrictHeld {
            d_ytd: district.d_ytd,
            d_next_o_id: district.d_next_o_id,
        });
    }
    Ok(held)
}

/// The accounts of a district's customers.
#[procedure(partition_by(w_id), read_only, time_max_ms = 60_000)]
pub fn check_customers(tx: &Txn, w_id: i16, d_id: i8) -> Vec<CustomerHeld> {
    let customers = Customer::scan_by_name(tx).prefix((w_id, d_id));
    let customers = customers.columns::<CustomerSums>().iter();
    let held = customers.map(|customer| CustomerHeld {
        c_id: customer.c_id,
        deliveries: customer.c_delivery_cnt,
        balance: customer.c_balance,
        ytd_payment: customer.c_ytd_payment,
    });
    held.collect()
}

/// Walks the orders of a district from number `from` to `to`, their lines and the new orders side by side.
#[procedure(partition_by(w_id), read_only, time_max_ms = 60_000)]
pub fn check_orders(tx: &Txn, w_id: i16, d_id: i8, from: i32, to: i32) -> OrdersHeld {
    let range = || (w_id, d_id, from)..=(w_id, d_id, to);
    let mut walk = Walk::new();
    let mut lines = OrderLine::scan(tx)
        .range(range())
        .columns::<LineSums>()
        .iter()
        .peekable();
    let mut waiting = NewOrder::scan(tx).range(range()).iter().peekable();
    for order in Order::scan(tx).range(range()) {
        while let Some(row) = waiting.next_if(|row| row.no_o_id < order.o_id) {
            walk.stray(row.no_o_id);
        }
        let is_waiting = waiting.next_if(|row| row.no_o_id == order.o_id).is_some();
        walk.order(&order, is_waiting);
        let mut count = 0;
        while let Some(line) = lines.next_if(|line| line.ol_o_id <= order.o_id) {
            count += (line.ol_o_id == order.o_id) as i64;
            walk.line(&order, &line);
        }
        walk.hold(
            6,
            count == order.o_ol_cnt as i64,
            "lines of order",
            [order.o_id as i64, count, order.o_ol_cnt as i64],
        );
    }
    waiting.for_each(|row| walk.stray(row.no_o_id));
    let least = NewOrder::scan(tx).range(range()).first();
    let greatest = NewOrder::scan(tx).range(range()).reverse().first();
    let number = |row: Option<Row<NewOrder>>| row.map_or(0, |row| row.no_o_id);
    OrdersHeld {
        lines: OrderLine::scan(tx).range(range()).count() as i64,
        waiting: NewOrder::scan(tx).range(range()).count() as i64,
        waiting_least: number(least),
        waiting_greatest: number(greatest),
        ..walk.into_held()
    }
}

/// The results of a walk.
struct Walk {
    held: OrdersHeld,
    delivered: Vec<i64>,
}

impl Walk {
    fn new() -> Self {
        Self {
            held: OrdersHeld::default(),
            delivered: vec![0; CUSTOMERS as usize + 1],
        }
    }

    /// Notes the first failure of a condition.
    fn hold(&mut self, condition: i32, passed: bool, what: &str, [at, found, expected]: [i64; 3]) {
        let failures = &mut self.held.failures;
        if !passed && failures.iter().all(|failure| failure.condition != condition) {
            let detail = format!("{what} {at} is {found}, not {expected}");
            failures.push(Failure { condition, detail });
        }
    }

    /// A new order without its order.
    fn stray(&mut self, o_id: i32) {
        self.hold(5, false, "orders of new order", [o_id as i64, 0, 1]);
    }

    fn order(&mut self, order: &Order, is_waiting: bool) {
        self.held.orders += 1;
        self.held.greatest = order.o_id;
        self.held.lines_expected += order.o_ol_cnt as i64;
        let is_undelivered = order.o_carrier_id.is_none();
        let numbers = [order.o_id as i64, is_waiting as i64, is_undelivered as i64];
        self.hold(5, is_waiting == is_undelivered, "new orders of order", numbers);
    }

    fn line(&mut self, order: &Order, line: &LineSums) {
        let (is_open, is_undelivered) = (line.ol_delivery_d.is_none(), order.o_carrier_id.is_none());
        let numbers = [order.o_id as i64, is_open as i64, is_undelivered as i64];
        self.hold(7, is_open == is_undelivered, "open lines of order", numbers);
        if let Some(sum) = self.delivered.get_mut(order.o_c_id as usize)
            && !is_open
        {
            *sum += line.ol_amount;
        }
    }

    fn into_held(self) -> OrdersHeld {
        let delivered = (0..).zip(self.delivered).filter(|(_, amount)| *amount != 0);
        OrdersHeld {
            delivered: delivered.map(|(c_id, amount)| Delivered { c_id, amount }).collect(),
            ..self.held
        }
    }
}
