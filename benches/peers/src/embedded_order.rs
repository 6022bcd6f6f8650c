//! New-Order on SQLite: its tables, rows and statements.

use anyhow::{Context, Result, bail};

use crate::{
    calls::Outcome,
    orders::{CUSTOMERS, DISTRICTS, FIRST_ORDER, Order},
    sqlite::{Database, Statement, Value},
};

pub const SCHEMA: &str = "
CREATE TABLE warehouse (w_id INTEGER PRIMARY KEY, w_tax INTEGER NOT NULL, w_filler TEXT);
CREATE TABLE district (d_w_id INTEGER, d_id INTEGER, d_tax INTEGER NOT NULL, d_next_o_id INTEGER NOT NULL, d_filler TEXT,
  PRIMARY KEY (d_w_id, d_id)) WITHOUT ROWID;
CREATE TABLE customer (c_w_id INTEGER, c_d_id INTEGER, c_id INTEGER, c_discount INTEGER NOT NULL, c_last TEXT NOT NULL,
  c_credit TEXT NOT NULL, c_filler TEXT, PRIMARY KEY (c_w_id, c_d_id, c_id)) WITHOUT ROWID;
CREATE TABLE item (i_id INTEGER PRIMARY KEY, i_price INTEGER NOT NULL, i_name TEXT NOT NULL, i_data TEXT NOT NULL);
CREATE TABLE stock (s_w_id INTEGER, s_i_id INTEGER, s_quantity INTEGER NOT NULL, s_order_cnt INTEGER NOT NULL,
  s_remote_cnt INTEGER NOT NULL, s_ytd INTEGER NOT NULL, s_dist TEXT NOT NULL, s_data TEXT NOT NULL,
  PRIMARY KEY (s_w_id, s_i_id)) WITHOUT ROWID;
CREATE TABLE orders (o_w_id INTEGER, o_d_id INTEGER, o_id INTEGER, o_c_id INTEGER NOT NULL, o_entry_d INTEGER NOT NULL,
  o_carrier_id INTEGER, o_ol_cnt INTEGER NOT NULL, o_all_local INTEGER NOT NULL, PRIMARY KEY (o_w_id, o_d_id, o_id)) WITHOUT ROWID;
CREATE INDEX orders_of_customer ON orders (o_w_id, o_d_id, o_c_id, o_id);
CREATE TABLE new_order (no_w_id INTEGER, no_d_id INTEGER, no_o_id INTEGER, PRIMARY KEY (no_w_id, no_d_id, no_o_id)) WITHOUT ROWID;
CREATE TABLE order_line (ol_w_id INTEGER, ol_d_id INTEGER, ol_o_id INTEGER, ol_number INTEGER, ol_i_id INTEGER NOT NULL,
  ol_supply_w_id INTEGER NOT NULL, ol_delivery_d INTEGER, ol_quantity INTEGER NOT NULL, ol_amount INTEGER NOT NULL,
  ol_dist_info TEXT NOT NULL, PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number)) WITHOUT ROWID;";

/// The statements of a call, in the order in which they run.
pub const STATEMENTS: [&str; 8] = [
    "SELECT w_tax FROM warehouse WHERE w_id = ?",
    "UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = ? AND d_id = ? RETURNING d_next_o_id - 1, d_tax",
    "SELECT c_discount, c_last, c_credit FROM customer WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
    "INSERT INTO orders VALUES (?, ?, ?, ?, unixepoch(), NULL, ?, ?)",
    "INSERT INTO new_order VALUES (?, ?, ?)",
    "SELECT i_price, i_name, i_data FROM item WHERE i_id = ?",
    "UPDATE stock SET s_quantity = s_quantity - ?3 + (s_quantity < ?3 + 10) * 91, s_ytd = s_ytd + ?3,
       s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + ?4
     WHERE s_w_id = ?1 AND s_i_id = ?2 RETURNING s_quantity, substr(s_dist, ?5 * 24 - 23, 24), s_data",
    "INSERT INTO order_line VALUES (?, ?, ?, ?, ?, ?, NULL, ?, ?, ?)",
];

/// The text of a stock's district, all of which are alike.
const DISTRICT_INFO: &str = "ssssssssssssssssssssssss";

/// Fills the tables that an order reads.
///
/// # Errors
/// A statement failed.
pub fn fill(database: &Database, warehouses: u32, items: u32) -> Result<()> {
    let numbers =
        |name: &str, last: i64| format!("{name}(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM {name} WHERE n < {last})");
    let with = format!(
        "WITH RECURSIVE {}, {}, {}, {}",
        numbers("w", warehouses.into()),
        numbers("d", DISTRICTS.into()),
        numbers("c", CUSTOMERS.into()),
        numbers("i", items.into())
    );
    let (short, long, data) = ("-".repeat(80), "-".repeat(500), "d".repeat(38));
    let dist = DISTRICT_INFO.repeat(DISTRICTS as usize);
    for insert in [
        format!("INSERT INTO warehouse SELECT w.n, w.n * 37 % 2001, '{short}' FROM w"),
        format!("INSERT INTO district SELECT w.n, d.n, d.n * 41 % 2001, {FIRST_ORDER}, '{short}' FROM w, d"),
        format!("INSERT INTO customer SELECT w.n, d.n, c.n, c.n % 5001, 'BARBARBAR', 'GC', '{long}' FROM w, d, c"),
        format!("INSERT INTO item SELECT n, 100 + n % 9901, 'nnnnnnnnnnnnnnnnnnn', '{data}' FROM i"),
        format!("INSERT INTO stock SELECT w.n, i.n, 10 + i.n % 91, 0, 0, 0, '{dist}', '{data}' FROM w, i"),
    ] {
        database.exec(&format!("{with} {insert}"))?;
    }
    Ok(())
}

/// Places an order by `STATEMENTS`; the caller ends the transaction.
///
/// # Errors
/// A statement failed, or a row is missing that the tables begin with.
pub fn place(statements: &[Statement], order: &Order) -> Result<Outcome> {
    let [warehouse, district, customer, insert, wait, item, take, insert_line] = statements else {
        bail!("an order takes eight statements");
    };
    let [w, d, c] = [
        i64::from(order.warehouse),
        i64::from(order.district),
        i64::from(order.customer),
    ]
    .map(Value::Integer);
    let warehouse_tax = warehouse.run(&[w])?.context("there is no such warehouse")?;
    let [order_id, district_tax] = district.row(&[w, d])?.context("there is no such district")?;
    let discount = customer.run(&[w, d, c])?.context("there is no such customer")?;
    let id = Value::Integer(order_id);
    let is_local = order.lines().iter().all(|line| line.supplier == order.warehouse);
    let count = Value::Integer(order.lines().len() as i64);
    insert.run(&[w, d, id, c, count, Value::Integer(is_local.into())])?;
    wait.run(&[w, d, id])?;
    let mut total = 0;
    for (number, line) in (1..).zip(order.lines()) {
        let [supplier, item_id, quantity] =
            [i64::from(line.supplier), i64::from(line.item), i64::from(line.quantity)].map(Value::Integer);
        let Some(price) = item.run(&[item_id])? else {
            return Ok(Outcome::Rejected);
        };
        let is_remote = Value::Integer((line.supplier != order.warehouse).into());
        take.run(&[supplier, item_id, quantity, is_remote, d])?
            .context("there is no such stock")?;
        let amount = i64::from(line.quantity) * price;
        total += amount;
        let (number, amount, info) = (
            Value::Integer(number),
            Value::Integer(amount),
            Value::Text(DISTRICT_INFO),
        );
        insert_line.run(&[w, d, id, number, item_id, supplier, quantity, amount, info])?;
    }
    let with_taxes = total * (10_000 - discount) * (10_000 + warehouse_tax + district_tax);
    std::hint::black_box((with_taxes + 50_000_000) / 100_000_000);
    Ok(Outcome::Done)
}
