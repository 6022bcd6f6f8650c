//! The population, the conditions after a random mix, and that each condition is found broken when it is.
use std::collections::BTreeSet;

use crate::fixture::*;
use reprise_procedure::{
    prelude::*,
    testkit::{TestDb, TestError},
};
use tpcc::{
    MODULE,
    check::{CustomerHeld, OrdersHeld, WarehouseHeld},
    judge::{Condition, DistrictCase, Payment, Payments},
    load::Loaded,
    tables::*,
};

/// The conditions that do not hold, each district's taken together.
fn check(db: &mut TestDb) -> BTreeSet<i32> {
    let payments = payments(db);
    let warehouse: WarehouseHeld = db.call("check_warehouse", (1_i16,)).unwrap();
    let mut failed = BTreeSet::new();
    for d_id in 1..=10_i8 {
        let mut case = DistrictCase::new(1, d_id);
        for (from, to) in DistrictCase::ranges(warehouse.districts[d_id as usize - 1].d_next_o_id) {
            let held: OrdersHeld = db.call("check_orders", (1_i16, d_id, from, to)).unwrap();
            case.add(&held);
        }
        let customers: Vec<CustomerHeld> = db.call("check_customers", (1_i16, d_id)).unwrap();
        let verdicts = case.judge(&warehouse, &customers, &payments);
        let conditions: Vec<i32> = verdicts.iter().map(|verdict| verdict.condition).collect();
        assert_eq!(conditions, (1..=12).collect::<Vec<_>>());
        failed.extend(
            verdicts
                .iter()
                .filter(|verdict| !verdict.passed)
                .map(|verdict| verdict.condition),
        );
    }
    // A check in one transaction has the same result.
    let whole: Vec<Condition> = db.call("check", (1_i16, None::<i8>)).unwrap();
    let whole = whole
        .iter()
        .filter(|verdict| !verdict.passed)
        .map(|verdict| verdict.condition);
    assert_eq!(whole.collect::<BTreeSet<_>>(), failed);
    failed
}

fn payments(db: &mut TestDb) -> Payments {
    let mut payments = Payments::new(1);
    db.run(|tx| {
        for row in History::scan(tx) {
            payments.add(&Payment::of(&row));
        }
        Ok(())
    })
    .unwrap();
    payments
}

/// One warehouse as the loader makes it.
fn loaded() -> TestDb {
    let mut db = TestDb::new(&MODULE);
    for first in (1..=100_000).step_by(50_000) {
        let made: Loaded = db.call("load_item_range", (first, first + 49_999)).unwrap();
        assert_eq!(made.rows, 50_000);
    }
    let mut rows = 0;
    for part in 1..=10_i8 {
        rows += db.call::<Loaded>("load_warehouse", (1_i16, part)).unwrap().rows;
    }
    let tables = [
        "warehouse",
        "district",
        "customer",
        "history",
        "new_order",
        "orders",
        "order_line",
        "stock",
    ];
    assert_eq!(rows as usize, tables.iter().map(|table| db.count(table)).sum::<usize>());
    db
}

struct Lcg(u64);

impl Lcg {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Some transactions of each kind; how many orders were rolled back.
fn run_mix(db: &mut TestDb, count: usize) -> usize {
    let mut random = Lcg(11);
    let mut rolled_back = 0;
    for _ in 0..count {
        let d_id = 1 + random.below(10) as i8;
        let c_id = 1 + random.below(3_000) as i32;
        match random.below(10) {
            0..5 => {
                let lines = 5 + random.below(11) as usize;
                let mut i_ids: Vec<i32> = (0..lines).map(|_| 1 + random.below(100_000) as i32).collect();
                if random.below(10) == 0 {
                    i_ids[lines - 1] = 100_001;
                }
                let quantities: Vec<i8> = (0..lines).map(|_| 1 + random.below(10) as i8).collect();
                let outcome =
                    db.call::<Ordered>("new_order", (1_i16, d_id, c_id, i_ids, vec![1_i16; lines], quantities));
                rolled_back += outcome.is_err() as usize;
                let code = outcome.as_ref().err().and_then(TestError::code);
                assert!(outcome.is_ok() || code == Some("item_not_found"), "{outcome:?}");
            }
            5..8 => {
                let amount = 1 + random.below(500_000) as i64;
                let name = tpcc::last_name(random.below(1_000) as u32);
                let (c_id, c_last) = match random.below(2) {
                    0 => (Some(c_id), None),
                    _ => (None, Some(name.as_str())),
                };
                db.call::<Paid>(
                    "payment",
                    (1_i16, d_id, 1_i16, 1 + random.below(10) as i8, c_id, c_last, amount),
                )
                .unwrap();
            }
            8 => {
                db.call::<Vec<tpcc::delivery::Delivered>>("delivery", (1_i16, 3_i8))
                    .unwrap();
            }
            _ => {
                db.call::<Status>("order_status", (1_i16, d_id, Some(c_id), None::<&str>))
                    .unwrap();
                db.call::<i32>("stock_level", (1_i16, d_id, 15_i16)).unwrap();
            }
        }
    }
    rolled_back
}

#[test]
fn the_population_is_as_specified_and_a_mix_keeps_the_conditions() {
    let mut db = loaded();
    let lines = db.count("order_line");
    assert!((285_000..315_000).contains(&lines), "{lines}");
    for (table, rows) in [
        ("item", 100_000),
        ("stock", 100_000),
        ("customer", 30_000),
        ("history", 30_000),
        ("orders", 30_000),
        ("new_order", 9_000),
        ("district", 10),
        ("warehouse", 1),
    ] {
        assert_eq!(db.count(table), rows, "{table}");
    }
    look_at_population(&mut db);
    let again = db.call::<Loaded>("load_warehouse", (1_i16, 4_i8)).unwrap_err();
    assert_eq!(again.code(), Some("duplicate_key"));
    for (first, last) in [(0, 5), (5, 4), (100_000, 100_001)] {
        let error = db.call::<Loaded>("load_item_range", (first, last)).unwrap_err();
        assert_eq!(error.code(), Some("invalid_range"));
    }
    assert_eq!(check(&mut db), [].into());
    let rolled_back = run_mix(&mut db, 3_000);
    assert!(rolled_back > 50);
    assert_eq!(check(&mut db), [].into());
    let nowhere = db.call::<WarehouseHeld>("check_warehouse", (2_i16,)).unwrap_err();
    assert_eq!(nowhere.code(), Some("not_found"));
}

/// Checks the ranges of the random values, and the shares of the marked rows.
fn look_at_population(db: &mut TestDb) {
    db.run(|tx| {
        let (mut originals, mut bad) = (0, 0);
        for i_id in 1..=2_000 {
            let item = Item::get(tx, i_id).unwrap();
            let stock = Stock::get(tx, (1, i_id)).unwrap();
            assert!((14..=24).contains(&item.i_name.len()) && (26..=50).contains(&item.i_data.len()));
            assert!((100..=10_000).contains(&item.i_price) && (1..=10_000).contains(&item.i_im_id));
            assert!((10..=100).contains(&stock.s_quantity) && stock.s_dist_10.len() == 24);
            originals += item.i_data.contains("ORIGINAL") as u32 + stock.s_data.contains("ORIGINAL") as u32;
        }
        assert!((300..500).contains(&originals), "{originals} of 4000");
        for c_id in 1..=1_000 {
            let customer = Customer::get(tx, (1, 5, c_id)).unwrap();
            assert_eq!(customer.c_last, tpcc::last_name(c_id as u32 - 1));
            assert!((300..=500).contains(&customer.c_data.len()) && (8..=16).contains(&customer.c_first.len()));
            assert!(customer.c_phone.len() == 16 && customer.c_phone.bytes().all(|byte| byte.is_ascii_digit()));
            assert!((0..=5_000).contains(&customer.c_discount) && customer.c_zip.ends_with("11111"));
            bad += (customer.c_credit == "BC") as u32;
        }
        assert!((60..150).contains(&bad), "{bad} of 1000");
        let mut customers: Vec<i32> = Order::scan(tx)
            .prefix((1, 5))
            .into_iter()
            .map(|order| order.o_c_id)
            .collect();
        customers.sort_unstable();
        assert_eq!(
            customers,
            (1..=3_000).collect::<Vec<_>>(),
            "every customer has one order"
        );
        Ok(())
    })
    .unwrap();
}

/// Breaks something in an otherwise sound small database and names the conditions that do not hold any more.
fn broken(breaks: impl FnOnce(&Txn) -> Result<(), Abort>) -> Vec<i32> {
    let mut db = loaded_small();
    assert_eq!(check(&mut db), [].into());
    db.run(breaks).unwrap();
    check(&mut db).into_iter().collect()
}

/// A warehouse in whose first district more orders lie than one piece takes.
#[test]
fn pieces_of_a_long_run_are_put_together() {
    const LAST: i32 = 2 * tpcc::check::CHECKED_ORDERS + 7;
    let mut db = loaded_small();
    let deliver = |tx: &Txn| {
        for o_id in 2_102..=LAST {
            Order::insert(tx, &order(1, o_id, true))?;
            OrderLine::insert(tx, &line(1, o_id, true))?;
            NewOrder::insert(
                tx,
                &NewOrder {
                    no_w_id: 1,
                    no_d_id: 1,
                    no_o_id: o_id,
                },
            )?;
        }
        let mut district = District::get(tx, (1, 1)).unwrap();
        district.d_next_o_id = LAST + 1;
        district.update(tx)?;
        Ok(())
    };
    db.run(deliver).unwrap();
    assert_eq!(check(&mut db), [].into());
    let gap = |tx: &Txn| {
        NewOrder::get(tx, (1, 1, LAST - 3)).unwrap().delete(tx);
        Ok(())
    };
    db.run(gap).unwrap();
    assert_eq!(check(&mut db), [3, 5, 11].into());
    let stray = History {
        h_w_id: 2,
        ..payment(1, 1, 0)
    };
    db.run(|tx| History::insert(tx, &stray).map(drop).map_err(Into::into))
        .unwrap();
    assert_eq!(check(&mut db), [3, 5, 8, 11].into());
}

/// One warehouse with ten districts of 2,101 orders each of one line, of which the last waits; no stock, no items.
fn loaded_small() -> TestDb {
    let mut db = TestDb::new(&MODULE);
    db.run(|tx| {
        Warehouse::insert(tx, &warehouse(1))?;
        for d_id in 1..=10 {
            let row = District {
                d_next_o_id: 2_102,
                ..district(1, d_id)
            };
            District::insert(tx, &row)?;
            Customer::insert(tx, &customer(1, d_id, 1))?;
            for (c_id, h_amount) in [(1, 1_000), (2, 2_999_000)] {
                History::insert(tx, &payment(d_id, c_id, h_amount))?;
            }
            let rich = Customer {
                c_balance: -2_999_000,
                c_ytd_payment: 2_999_000,
                ..customer(1, d_id, 2)
            };
            Customer::insert(tx, &rich)?;
            for o_id in 1..=2_101 {
                let is_waiting = o_id == 2_101;
                Order::insert(tx, &order(d_id, o_id, is_waiting))?;
                OrderLine::insert(tx, &line(d_id, o_id, is_waiting))?;
            }
            let waiting = NewOrder {
                no_w_id: 1,
                no_d_id: d_id,
                no_o_id: 2_101,
            };
            NewOrder::insert(tx, &waiting)?;
        }
        Ok(())
    })
    .unwrap();
    db
}

fn payment(d_id: i8, c_id: i32, h_amount: i64) -> History {
    History {
        h_c_id: c_id,
        h_c_d_id: d_id,
        h_c_w_id: 1,
        h_d_id: d_id,
        h_w_id: 1,
        h_date: Timestamp(1),
        h_amount,
        h_data: text("note"),
    }
}

fn order(d_id: i8, o_id: i32, is_waiting: bool) -> Order {
    Order {
        o_w_id: 1,
        o_d_id: d_id,
        o_id,
        o_c_id: 1,
        o_entry_d: Timestamp(1),
        o_carrier_id: (!is_waiting).then_some(1),
        o_ol_cnt: 1,
        o_all_local: true,
    }
}

fn line(d_id: i8, o_id: i32, is_waiting: bool) -> OrderLine {
    OrderLine {
        ol_w_id: 1,
        ol_d_id: d_id,
        ol_o_id: o_id,
        ol_number: 1,
        ol_i_id: 1,
        ol_supply_w_id: 1,
        ol_delivery_d: (!is_waiting).then_some(Timestamp(1)),
        ol_quantity: 5,
        ol_amount: if is_waiting { 500 } else { 0 },
        ol_dist_info: text("info"),
    }
}

#[test]
fn account_totals_are_compared_with_each_other() {
    let ytd = |tx: &Txn| {
        Warehouse::get(tx, 1).unwrap().add(tx, Warehouse::W_YTD, 1);
        Ok(())
    };
    assert_eq!(broken(ytd), [1, 8]);
    let district_ytd = |tx: &Txn| {
        District::get(tx, (1, 3)).unwrap().add(tx, District::D_YTD, 1);
        Ok(())
    };
    assert_eq!(broken(district_ytd), [1, 9]);
    let history = |tx: &Txn| {
        History::scan(tx).first().unwrap().add(tx, History::H_AMOUNT, 1);
        Ok(())
    };
    assert_eq!(broken(history), [8, 9, 10]);
    let balance = |tx: &Txn| {
        Customer::get(tx, (1, 2, 1)).unwrap().add(tx, Customer::C_BALANCE, 1);
        Ok(())
    };
    assert_eq!(broken(balance), [10, 12]);
    let turnover = |tx: &Txn| {
        Customer::get(tx, (1, 2, 1))
            .unwrap()
            .add(tx, Customer::C_YTD_PAYMENT, -1);
        Ok(())
    };
    assert_eq!(broken(turnover), [12]);
    let delivered = |tx: &Txn| {
        OrderLine::get(tx, (1, 1, 1, 1))
            .unwrap()
            .add(tx, OrderLine::OL_AMOUNT, 5);
        Ok(())
    };
    assert_eq!(broken(delivered), [10, 12]);
}

#[test]
fn order_totals_are_compared_with_each_other() {
    let next = |tx: &Txn| {
        District::get(tx, (1, 10)).unwrap().add(tx, District::D_NEXT_O_ID, 1);
        Ok(())
    };
    assert_eq!(broken(next), [2]);
    let gap = |tx: &Txn| {
        let waiting = NewOrder {
            no_w_id: 1,
            no_d_id: 4,
            no_o_id: 2_099,
        };
        NewOrder::insert(tx, &waiting)?;
        Ok(())
    };
    assert_eq!(broken(gap), [3, 5, 11]);
    let stray = |tx: &Txn| {
        let waiting = NewOrder {
            no_w_id: 1,
            no_d_id: 4,
            no_o_id: 2_102,
        };
        NewOrder::insert(tx, &waiting)?;
        Ok(())
    };
    assert_eq!(broken(stray), [2, 5, 11]);
    let lost_line = |tx: &Txn| {
        OrderLine::get(tx, (1, 4, 9, 1)).unwrap().delete(tx);
        Ok(())
    };
    assert_eq!(broken(lost_line), [4, 6]);
    let carrier = |tx: &Txn| {
        let mut order = Order::get(tx, (1, 4, 9)).unwrap();
        order.o_carrier_id = None;
        order.update(tx)?;
        Ok(())
    };
    assert_eq!(broken(carrier), [5, 7]);
    let open = |tx: &Txn| {
        let mut line = OrderLine::get(tx, (1, 4, 9, 1)).unwrap();
        line.ol_delivery_d = None;
        line.update(tx)?;
        Ok(())
    };
    assert_eq!(broken(open), [7]);
    let lost_order = |tx: &Txn| {
        Order::get(tx, (1, 4, 9)).unwrap().delete(tx);
        OrderLine::get(tx, (1, 4, 9, 1)).unwrap().delete(tx);
        Ok(())
    };
    assert_eq!(broken(lost_order), [11]);
}
