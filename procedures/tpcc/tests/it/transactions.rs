//! Each transaction against outcomes worked out by hand.
use crate::fixture::*;
use reprise_procedure::{
    prelude::*,
    testkit::{START_US, TestDb, TestError},
};
use tpcc::{delivery::Delivered, tables::*};

/// Lines as (item, quantity), all from the home warehouse.
fn order(db: &mut TestDb, w_id: i16, d_id: i8, c_id: i32, lines: &[(i32, i8)]) -> Result<Ordered, TestError> {
    let supplied: Vec<_> = lines.iter().map(|(i_id, quantity)| (*i_id, w_id, *quantity)).collect();
    order_from(db, w_id, d_id, c_id, &supplied)
}

fn order_from(db: &mut TestDb, w_id: i16, d_id: i8, c_id: i32, lines: &[(i32, i16, i8)]) -> Result<Ordered, TestError> {
    let i_ids: Vec<i32> = lines.iter().map(|line| line.0).collect();
    let supply_w_ids: Vec<i16> = lines.iter().map(|line| line.1).collect();
    let quantities: Vec<i8> = lines.iter().map(|line| line.2).collect();
    db.call("new_order", (w_id, d_id, c_id, i_ids, supply_w_ids, quantities))
}

fn read<R>(db: &mut TestDb, read: impl FnOnce(&Txn) -> R) -> R {
    db.run(|tx| Ok(read(tx))).unwrap()
}

fn stock_of(db: &mut TestDb, w_id: i16, i_id: i32) -> (i16, i64, i32, i32) {
    let row = read(db, |tx| Stock::get(tx, (w_id, i_id)).unwrap().into_inner());
    (row.s_quantity, row.s_ytd, row.s_order_cnt, row.s_remote_cnt)
}

fn counts(db: &TestDb) -> [usize; 4] {
    ["orders", "new_order", "order_line", "history"].map(|table| db.count(table))
}

#[test]
fn an_order_takes_from_stock_and_is_written_down() {
    let mut db = small();
    let ordered = order(&mut db, 1, 2, 3, &[(1, 3), (2, 10), (3, 1), (2, 4), (50, 10)]).unwrap();
    // 3 x 1.00 + 10 x 2.00 + 1 x 3.00 + 4 x 2.00 + 10 x 50.00 = 534.00; less 20 %, plus 10 % and 5 % tax = 491.28.
    assert_eq!(ordered.total_amount, 49_128);
    assert_eq!((ordered.o_id, ordered.o_entry_d), (1, Timestamp(START_US)));
    assert_eq!((&*ordered.c_last, &*ordered.c_credit), ("BARBARBAR", "GC"));
    assert_eq!((ordered.c_discount, ordered.w_tax, ordered.d_tax), (2_000, 1_000, 500));
    let shown: Vec<_> = ordered
        .lines
        .iter()
        .map(|line| {
            (
                &*line.i_name,
                line.s_quantity,
                &*line.brand_generic,
                line.i_price,
                line.ol_amount,
            )
        })
        .collect();
    // The second take of item 2 sees 10 left, which is below 4 + 10: the stock is filled up by 91.
    let expected = [
        ("item 1", 17, "G", 100, 300),
        ("item 2", 10, "B", 200, 2_000),
        ("item 3", 19, "G", 300, 300),
        ("item 2", 97, "B", 200, 800),
        ("item 50", 10, "G", 5_000, 50_000),
    ];
    assert_eq!(shown, expected);
    assert_eq!(stock_of(&mut db, 1, 2), (97, 14, 2, 0));
    assert_eq!(stock_of(&mut db, 1, 50), (10, 10, 1, 0));
    assert_eq!(stock_of(&mut db, 2, 2), (20, 0, 0, 0));
    assert_eq!(counts(&db), [1, 1, 5, 0]);
    read(&mut db, |tx| {
        assert_eq!(District::get(tx, (1, 2)).unwrap().d_next_o_id, 2);
        assert_eq!(District::get(tx, (1, 1)).unwrap().d_next_o_id, 1);
        assert!(NewOrder::exists(tx, (1, 2, 1)));
        let order = Order::get(tx, (1, 2, 1)).unwrap();
        assert_eq!(
            (order.o_c_id, order.o_carrier_id, order.o_ol_cnt, order.o_all_local),
            (3, None, 5, true)
        );
        let line = OrderLine::get(tx, (1, 2, 1, 4)).unwrap();
        assert_eq!(
            (line.ol_i_id, line.ol_supply_w_id, line.ol_quantity, line.ol_amount),
            (2, 1, 4, 800)
        );
        assert_eq!((line.ol_delivery_d, &*line.ol_dist_info), (None, "dist 02"));
    });
    assert_eq!(order(&mut db, 1, 2, 1, &[(7, 1)]).unwrap().o_id, 2);
}

#[test]
fn a_total_is_rounded_half_up_once() {
    let mut db = small();
    db.run(|tx| {
        let mut item = Item::get(tx, 1).unwrap();
        item.i_price = 101;
        item.update(tx)?;
        let mut customer = Customer::get(tx, (1, 1, 1)).unwrap();
        customer.c_discount = 5_000;
        customer.update(tx)?;
        let mut warehouse = Warehouse::get(tx, 1).unwrap();
        warehouse.w_tax = 0;
        warehouse.update(tx)?;
        let mut district = District::get(tx, (1, 1)).unwrap();
        district.d_tax = 0;
        district.update(tx)?;
        Ok(())
    })
    .unwrap();
    assert_eq!(order(&mut db, 1, 1, 1, &[(1, 1)]).unwrap().total_amount, 51);
}

#[test]
fn an_unused_item_rolls_everything_back() {
    let mut db = small();
    order(&mut db, 1, 1, 1, &[(5, 2)]).unwrap();
    let before = (counts(&db), stock_of(&mut db, 1, 5), stock_of(&mut db, 1, 6));
    let error = order(&mut db, 1, 1, 1, &[(5, 2), (6, 1), (51, 1)]).unwrap_err();
    assert_eq!(error.code(), Some("item_not_found"));
    assert_eq!(before, (counts(&db), stock_of(&mut db, 1, 5), stock_of(&mut db, 1, 6)));
    assert_eq!(order(&mut db, 1, 1, 1, &[(5, 2)]).unwrap().o_id, 2);
}

#[test]
fn orders_that_make_no_sense_are_refused() {
    let mut db = small();
    let mut refused = |w_id, d_id, c_id, lines: &[(i32, i8)], code: &str| {
        assert_eq!(order(&mut db, w_id, d_id, c_id, lines).unwrap_err().code(), Some(code));
    };
    refused(1, 1, 1, &[], "invalid_order");
    refused(1, 1, 1, &[(1, 0)], "invalid_order");
    refused(1, 1, 1, &[(1, -1)], "invalid_order");
    refused(1, 1, 1, &[(1, 1); 16], "invalid_order");
    refused(3, 1, 1, &[(1, 1)], "not_found");
    refused(1, 3, 1, &[(1, 1)], "not_found");
    refused(1, 1, 4, &[(1, 1)], "not_found");
    let unequal = db.call::<Ordered>(
        "new_order",
        (1_i16, 1_i8, 1_i32, vec![1_i32, 2], vec![1_i16], vec![1_i8, 1]),
    );
    assert_eq!(unequal.unwrap_err().code(), Some("invalid_order"));
    assert_eq!(counts(&db), [0; 4]);
}

fn pay(
    db: &mut TestDb,
    (w_id, d_id): (i16, i8),
    (c_w_id, c_d_id): (i16, i8),
    c_id: Option<i32>,
    c_last: Option<&str>,
    h_amount: i64,
) -> Result<Paid, TestError> {
    db.call("payment", (w_id, d_id, c_w_id, c_d_id, c_id, c_last, h_amount))
}

#[test]
fn a_payment_moves_money_everywhere() {
    let mut db = small();
    let paid = pay(&mut db, (1, 2), (2, 1), Some(3), None, 12_345).unwrap();
    assert_eq!((paid.c_id, paid.c_balance, paid.c_data), (3, -13_345, None));
    assert_eq!(
        (&*paid.w_street_1, &*paid.d_zip, &*paid.c_phone),
        ("street 1", "123411111", "0123456789012345")
    );
    assert_eq!(
        (paid.c_credit_lim, paid.c_since, paid.h_date),
        (5_000_000, Timestamp(5), Timestamp(START_US))
    );
    read(&mut db, |tx| {
        assert_eq!(Warehouse::get(tx, 1).unwrap().w_ytd, 30_012_345);
        assert_eq!(Warehouse::get(tx, 2).unwrap().w_ytd, 30_000_000);
        assert_eq!(District::get(tx, (1, 2)).unwrap().d_ytd, 3_012_345);
        assert_eq!(District::get(tx, (2, 1)).unwrap().d_ytd, 3_000_000);
        let customer = Customer::get(tx, (2, 1, 3)).unwrap();
        assert_eq!(
            (customer.c_balance, customer.c_ytd_payment, customer.c_payment_cnt),
            (-13_345, 13_345, 2)
        );
        assert_eq!(customer.c_data, "data");
        let history = History::scan(tx).first().unwrap().into_inner();
        let expected = History {
            h_c_id: 3,
            h_c_d_id: 1,
            h_c_w_id: 2,
            h_d_id: 2,
            h_w_id: 1,
            h_date: Timestamp(START_US),
            h_amount: 12_345,
            h_data: text("house    part"),
        };
        assert_eq!(history, expected);
    });
    for (c_id, c_last) in [(None, None), (Some(1), Some("BARBARBAR"))] {
        let error = pay(&mut db, (1, 1), (1, 1), c_id, c_last, 1).unwrap_err();
        assert_eq!(error.code(), Some("invalid_customer"));
    }
    for (c_id, c_last) in [(Some(9), None), (None, Some("NOBODY")), (None, Some(""))] {
        let error = pay(&mut db, (1, 1), (1, 1), c_id, c_last, 1).unwrap_err();
        assert_eq!(error.code(), Some("not_found"));
    }
    assert_eq!(
        pay(&mut db, (1, 1), (1, 1), Some(1), None, 0).unwrap_err().code(),
        Some("invalid_amount")
    );
    assert_eq!(db.count("history"), 1);
}

#[test]
fn bad_credit_notes_the_payment_in_at_most_500_bytes() {
    let mut db = small();
    db.run(|tx| {
        for (c_id, data) in [(1, "old".to_owned()), (2, "x".repeat(499))] {
            let mut customer = Customer::get(tx, (1, 1, c_id)).unwrap();
            (customer.c_credit, customer.c_data) = (text("BC"), data);
            customer.update(tx)?;
        }
        Ok(())
    })
    .unwrap();
    let paid = pay(&mut db, (2, 2), (1, 1), Some(1), None, 500).unwrap();
    assert_eq!(paid.c_data.as_deref(), Some("1 1 1 2 2 500|old"));
    assert_eq!((paid.c_balance, &*paid.c_credit), (-1_500, "BC"));
    let paid = pay(&mut db, (1, 1), (1, 1), Some(2), None, 500).unwrap();
    assert_eq!(paid.c_data.map(|data| data.len()), Some(200));
    read(&mut db, |tx| {
        let customer = Customer::get(tx, (1, 1, 2)).unwrap();
        assert_eq!(
            (customer.c_data.len(), customer.c_payment_cnt, customer.c_ytd_payment),
            (500, 2, 1_500)
        );
        assert!(customer.c_data.starts_with("2 1 1 1 1 500|xxx"));
    });
}

#[test]
fn of_several_with_a_name_the_middle_one_by_first_name_is_meant() {
    let mut db = small();
    db.run(|tx| {
        // The order by first name is 3 (a), 1 (b), 2 (c). In the other district all have the same one.
        for (c_id, first) in [(1, "b"), (2, "c"), (3, "a")] {
            let mut customer = Customer::get(tx, (1, 1, c_id)).unwrap();
            customer.c_first = text(first);
            customer.update(tx)?;
        }
        let other = Customer {
            c_first: text("d"),
            ..customer(1, 1, 4)
        };
        Customer::insert(tx, &other)?;
        let lone = Customer {
            c_last: text("BARBARBARX"),
            ..customer(1, 1, 5)
        };
        Customer::insert(tx, &lone)?;
        Ok(())
    })
    .unwrap();
    // The place for a, b, c, d is 4 / 2 = 2: b. The place for three is 3 / 2 rounded up: the second.
    assert_eq!(
        pay(&mut db, (1, 1), (1, 1), None, Some("BARBARBAR"), 1).unwrap().c_id,
        1
    );
    assert_eq!(
        pay(&mut db, (1, 1), (1, 1), None, Some("BARBARBARX"), 1).unwrap().c_id,
        5
    );
    assert_eq!(
        pay(&mut db, (1, 1), (1, 2), None, Some("BARBARBAR"), 1).unwrap().c_id,
        2
    );
}

#[test]
fn a_delivery_takes_the_oldest_order_of_each_district() {
    let mut db = small();
    order(&mut db, 1, 1, 2, &[(1, 1), (2, 2)]).unwrap();
    order(&mut db, 1, 1, 3, &[(3, 3)]).unwrap();
    order(&mut db, 1, 2, 1, &[(10, 1)]).unwrap();
    order(&mut db, 2, 1, 1, &[(10, 1)]).unwrap();
    db.set_now_us(START_US + 7);
    let expected = |o_ids: [Option<i32>; 2]| {
        let of = |d_id: i8| o_ids.get(d_id as usize - 1).copied().flatten();
        (1..=10)
            .map(|d_id| Delivered { d_id, o_id: of(d_id) })
            .collect::<Vec<_>>()
    };
    assert_eq!(db.call("delivery", (1_i16, 7_i8)), Ok(expected([Some(1), Some(1)])));
    read(&mut db, |tx| {
        let order = Order::get(tx, (1, 1, 1)).unwrap();
        assert_eq!(order.o_carrier_id, Some(7));
        assert_eq!(Order::get(tx, (2, 1, 1)).unwrap().o_carrier_id, None);
        let line = OrderLine::get(tx, (1, 1, 1, 2)).unwrap();
        assert_eq!(line.ol_delivery_d, Some(Timestamp(START_US + 7)));
        assert_eq!(OrderLine::get(tx, (1, 1, 2, 1)).unwrap().ol_delivery_d, None);
        let customer = Customer::get(tx, (1, 1, 2)).unwrap();
        assert_eq!((customer.c_balance, customer.c_delivery_cnt), (-1_000 + 500, 1));
        assert!(!NewOrder::exists(tx, (1, 1, 1)) && NewOrder::exists(tx, (1, 1, 2)));
    });
    assert_eq!(db.call("delivery", (1_i16, 7_i8)), Ok(expected([Some(2), None])));
    assert_eq!(db.call("delivery", (1_i16, 7_i8)), Ok(expected([None, None])));
    assert_eq!(db.count("new_order"), 1);
}

#[test]
fn the_status_is_of_the_last_order() {
    let mut db = small();
    order(&mut db, 1, 1, 2, &[(1, 1)]).unwrap();
    order(&mut db, 1, 1, 2, &[(4, 2), (5, 1)]).unwrap();
    order(&mut db, 1, 1, 3, &[(6, 1)]).unwrap();
    let status: Status = db
        .call("order_status", (1_i16, 1_i8, Some(2_i32), None::<&str>))
        .unwrap();
    assert_eq!((status.o_id, status.o_carrier_id, status.c_balance), (2, None, -1_000));
    let line = |ol_i_id, ol_quantity, ol_amount| StatusLine {
        ol_i_id,
        ol_supply_w_id: 1,
        ol_quantity,
        ol_amount,
        ol_delivery_d: None,
    };
    assert_eq!(status.lines, [line(4, 2, 800), line(5, 1, 500)]);
    let by_name: Status = db
        .call("order_status", (1_i16, 1_i8, None::<i32>, Some("BARBARBAR")))
        .unwrap();
    assert_eq!(by_name, status);
    let error = db.call::<Status>("order_status", (1_i16, 1_i8, Some(1_i32), None::<&str>));
    assert_eq!(error.unwrap_err().code(), Some("not_found"));
}

#[test]
fn low_stock_is_counted_over_the_last_twenty_orders() {
    let mut db = small();
    let level = |db: &mut TestDb, threshold: i16| db.call::<i32>("stock_level", (1_i16, 1_i8, threshold)).unwrap();
    assert_eq!(level(&mut db, 100), 0);
    // Item 9 falls to 15 once, long ago; then twenty orders of items 1 and 2.
    order(&mut db, 1, 1, 1, &[(9, 5)]).unwrap();
    assert_eq!((level(&mut db, 15), level(&mut db, 16)), (0, 1));
    for _ in 0..19 {
        order(&mut db, 1, 1, 1, &[(1, 1), (2, 1), (1, 1)]).unwrap();
    }
    assert_eq!(level(&mut db, 16), 1);
    order(&mut db, 1, 1, 1, &[(3, 10)]).unwrap();
    // Item 9 is out of sight; item 3 stands at 10, items 1 and 2 somewhere between 10 and 101.
    let (ones, twos) = (stock_of(&mut db, 1, 1).0, stock_of(&mut db, 1, 2).0);
    let expected = [ones, twos, 10].iter().filter(|quantity| **quantity < 16).count();
    assert_eq!(level(&mut db, 16), expected as i32);
    assert_eq!((level(&mut db, 10), level(&mut db, 200)), (0, 3));
}
