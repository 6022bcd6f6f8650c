//! TPC-C over plain typed arrays: no undo, no log, no keys, no sandbox. What the machine allows; the database is measured
//! against it. Inputs are those of the driver, so both do the same work.

use std::{collections::VecDeque, hint::black_box, time::Instant};

use anyhow::{Result, ensure};
use reprise_driver::{
    Random,
    tpcc::inputs::{Customer as Named, Input, Inputs, Kind, OrderInput},
};

const DISTRICTS: usize = tpcc::DISTRICTS as usize;
const CUSTOMERS: usize = tpcc::CUSTOMERS as usize;
const ITEMS: usize = tpcc::ITEMS as usize;
const LAST_NAMES: usize = 1_000;
const DATA_BYTES: usize = 500;
/// Inputs drawn ahead of each stretch that is timed: short, so that other work of the machine meets few of them.
const STRETCH: usize = 2_000;
const MIX_STRETCHES: usize = 300;
const STRETCHES: usize = 100;
/// Rows of one district that all stretches together stay below. Their memory is touched before, once.
const LINES_MAX: usize = 700_000;
const ORDERS_MAX: usize = 70_000;
const SEED: u64 = 1;

struct Warehouse {
    tax: i64,
    ytd: i64,
    name: [u8; 10],
}

struct District {
    tax: i64,
    ytd: i64,
    name: [u8; 10],
    /// By order number, from 1.
    orders: Vec<Order>,
    lines: Vec<Line>,
    waiting: VecDeque<u32>,
    history: Vec<History>,
    /// Customers by last name, in order of their first names.
    named: Vec<Vec<u16>>,
}

struct Customer {
    discount: i64,
    balance: i64,
    ytd_payment: i64,
    payments: u32,
    deliveries: u32,
    /// Number of the last order, from 1.
    last_order: u32,
    is_bad: bool,
    first: [u8; 16],
    data: [u8; DATA_BYTES],
}

#[derive(Clone, Copy, Default)]
struct Order {
    customer: u16,
    entered: u64,
    carrier: i8,
    first_line: u32,
    line_count: u8,
}

#[derive(Clone, Copy, Default)]
struct Line {
    item: u32,
    supply: u16,
    quantity: u8,
    amount: i64,
    delivered: u64,
    dist: [u8; 24],
}

#[derive(Clone, Copy, Default)]
struct History {
    customer: (u16, u8, u16),
    amount: i64,
    at: u64,
    data: [u8; 24],
}

struct Item {
    price: i64,
    name: [u8; 24],
    is_original: bool,
}

struct Stock {
    quantity: i32,
    ytd: i64,
    orders: u32,
    remote: u32,
    is_original: bool,
    dist: [[u8; 24]; DISTRICTS],
}

struct Kernel {
    now: u64,
    warehouses: Vec<Warehouse>,
    districts: Vec<District>,
    customers: Vec<Customer>,
    items: Vec<Item>,
    stocks: Vec<Stock>,
}

fn text<const N: usize>(random: &mut Random) -> [u8; N] {
    std::array::from_fn(|_| b'a' + (random.next_u64() >> 32) as u8 % 26)
}

fn number(random: &mut Random, below: usize) -> usize {
    (random.next_u64() >> 33) as usize % below
}

/// An empty array whose memory is there already.
fn touched<T: Copy + Default>(capacity: usize) -> Vec<T> {
    let mut rows = vec![T::default(); capacity];
    black_box(rows.as_mut_slice()).fill(T::default());
    rows.clear();
    rows
}

impl Kernel {
    fn new(warehouses: usize, random: &mut Random) -> Self {
        let mut kernel = Self {
            now: 0,
            warehouses: Vec::new(),
            districts: Vec::new(),
            customers: Vec::new(),
            items: (0..ITEMS).map(|_| item(random)).collect(),
            stocks: (0..warehouses * ITEMS).map(|_| stock(random)).collect(),
        };
        for _ in 0..warehouses {
            kernel.warehouses.push(Warehouse {
                tax: number(random, 2_001) as i64,
                ytd: 30_000_000,
                name: text(random),
            });
            for _ in 0..DISTRICTS {
                kernel.add_district(random);
            }
        }
        kernel
    }

    fn add_district(&mut self, random: &mut Random) {
        let mut district = District {
            tax: number(random, 2_001) as i64,
            ytd: 3_000_000,
            name: text(random),
            orders: touched(ORDERS_MAX),
            lines: touched(LINES_MAX),
            waiting: VecDeque::with_capacity(ORDERS_MAX),
            history: touched(ORDERS_MAX),
            named: vec![Vec::new(); LAST_NAMES],
        };
        let first_customer = self.customers.len();
        for c in 0..CUSTOMERS {
            self.customers.push(customer(random));
            let name = if c < LAST_NAMES {
                c
            } else {
                number(random, LAST_NAMES)
            };
            district.named[name].push(c as u16);
        }
        let customers = &mut self.customers[first_customer..];
        for named in &mut district.named {
            named.sort_by_key(|c| customers[*c as usize].first);
        }
        for o in 0..tpcc::ORDERS as usize {
            let (is_waiting, count) = (
                o + 1 >= tpcc::FIRST_NEW_ORDER as usize,
                5 + number(random, 11),
            );
            // Any order of customers will do: 1,009 and 3,000 have no common factor.
            let customer = o * 1_009 % CUSTOMERS;
            customers[customer].last_order = o as u32 + 1;
            district.orders.push(Order {
                customer: customer as u16,
                entered: 0,
                carrier: !is_waiting as i8,
                first_line: district.lines.len() as u32,
                line_count: count as u8,
            });
            for _ in 0..count {
                district.lines.push(Line {
                    item: number(random, ITEMS) as u32,
                    supply: 0,
                    quantity: 5,
                    amount: if is_waiting {
                        number(random, 999_999) as i64
                    } else {
                        0
                    },
                    delivered: !is_waiting as u64,
                    dist: text(random),
                });
            }
            if is_waiting {
                district.waiting.push_back(o as u32);
            }
        }
        self.districts.push(district);
    }

    fn run(&mut self, input: &Input) -> i64 {
        self.now += 1;
        match input {
            Input::NewOrder(order) => self.new_order(order),
            Input::Payment {
                w_id,
                d_id,
                c_w_id,
                c_d_id,
                customer,
                h_amount,
            } => self.payment((*w_id, *d_id), (*c_w_id, *c_d_id), *customer, *h_amount),
            Input::OrderStatus {
                w_id,
                d_id,
                customer,
            } => self.order_status(*w_id, *d_id, *customer),
            Input::Delivery { w_id, o_carrier_id } => self.delivery(*w_id, *o_carrier_id),
            Input::StockLevel {
                w_id,
                d_id,
                threshold,
            } => self.stock_level(*w_id, *d_id, *threshold),
        }
    }

    /// The total, or 0 where an item is unknown: then nothing is changed, for there is no undo here.
    fn new_order(&mut self, input: &OrderInput) -> i64 {
        let count = input.line_count as usize;
        if input.i_ids[count - 1] as usize > ITEMS {
            return 0;
        }
        let w = input.w_id as usize - 1;
        let at = district_at(input.w_id, input.d_id);
        let district = &mut self.districts[at];
        let customer = &mut self.customers[at * CUSTOMERS + input.c_id as usize - 1];
        let first_line = district.lines.len() as u32;
        let mut sum = 0;
        for line in 0..count {
            let (i, supply) = (
                input.i_ids[line] as usize - 1,
                input.supply_w_ids[line] as usize - 1,
            );
            let (item, stock) = (&self.items[i], &mut self.stocks[supply * ITEMS + i]);
            let quantity = input.quantities[line] as i32;
            stock.quantity += if stock.quantity >= quantity + 10 {
                -quantity
            } else {
                91 - quantity
            };
            stock.ytd += quantity as i64;
            stock.orders += 1;
            stock.remote += (supply != w) as u32;
            let amount = item.price * quantity as i64;
            sum += amount;
            black_box((item.name, item.is_original && stock.is_original));
            district.lines.push(Line {
                item: i as u32,
                supply: supply as u16,
                quantity: quantity as u8,
                amount,
                delivered: 0,
                dist: stock.dist[input.d_id as usize - 1],
            });
        }
        district.waiting.push_back(district.orders.len() as u32);
        district.orders.push(Order {
            customer: input.c_id as u16 - 1,
            entered: self.now,
            carrier: 0,
            first_line,
            line_count: count as u8,
        });
        customer.last_order = district.orders.len() as u32;
        sum * (10_000 - customer.discount) * (10_000 + self.warehouses[w].tax + district.tax)
            / 100_000_000
    }

    /// The customer's position in `customers`.
    fn find(&self, at: usize, named: Named) -> Option<usize> {
        let c = match named {
            Named::Id(c_id) => c_id as usize - 1,
            Named::LastName(name) => {
                let customers = &self.districts[at].named[name as usize];
                *customers.get(customers.len().div_ceil(2).checked_sub(1)?)? as usize
            }
        };
        Some(at * CUSTOMERS + c)
    }

    fn payment(&mut self, place: (i16, i8), home: (i16, i8), named: Named, amount: i64) -> i64 {
        let Some(c) = self.find(district_at(home.0, home.1), named) else {
            return 0;
        };
        let warehouse = &mut self.warehouses[place.0 as usize - 1];
        let district = &mut self.districts[district_at(place.0, place.1)];
        let customer = &mut self.customers[c];
        warehouse.ytd += amount;
        district.ytd += amount;
        customer.balance -= amount;
        customer.ytd_payment += amount;
        customer.payments += 1;
        if customer.is_bad {
            let numbers = [
                c as i64,
                home.0 as i64,
                home.1 as i64,
                place.0 as i64,
                place.1 as i64,
                amount,
            ];
            customer.data.copy_within(..DATA_BYTES - 48, 48);
            for (room, number) in customer.data.chunks_exact_mut(8).zip(numbers) {
                room.copy_from_slice(&number.to_le_bytes());
            }
        }
        let mut data = [b' '; 24];
        data[..10].copy_from_slice(&warehouse.name);
        data[14..].copy_from_slice(&district.name);
        district.history.push(History {
            customer: (home.0 as u16, home.1 as u8, (c % CUSTOMERS) as u16),
            amount,
            at: self.now,
            data,
        });
        customer.balance
    }

    fn order_status(&self, w_id: i16, d_id: i8, named: Named) -> i64 {
        let at = district_at(w_id, d_id);
        let Some(c) = self.find(at, named) else {
            return 0;
        };
        let (district, customer) = (&self.districts[at], &self.customers[c]);
        let Some(order) = (customer.last_order as usize)
            .checked_sub(1)
            .map(|o| &district.orders[o])
        else {
            return 0;
        };
        let lines = lines_of(order).map(|line| {
            let line = &district.lines[line];
            black_box((line.item, line.supply, line.delivered));
            line.amount + line.quantity as i64
        });
        lines.sum::<i64>() + order.entered as i64 + order.carrier as i64 + customer.balance
    }

    fn delivery(&mut self, w_id: i16, carrier: i8) -> i64 {
        let mut delivered = 0;
        for d_id in 1..=DISTRICTS as i8 {
            let at = district_at(w_id, d_id);
            let district = &mut self.districts[at];
            let Some(o) = district.waiting.pop_front() else {
                continue;
            };
            let order = &mut district.orders[o as usize];
            order.carrier = carrier;
            let mut sum = 0;
            for line in lines_of(order) {
                let line = &mut district.lines[line];
                line.delivered = self.now;
                sum += line.amount;
            }
            let customer = &mut self.customers[at * CUSTOMERS + order.customer as usize];
            customer.balance += sum;
            customer.deliveries += 1;
            delivered += 1;
        }
        delivered
    }

    fn stock_level(&self, w_id: i16, d_id: i8, threshold: i16) -> i64 {
        let district = &self.districts[district_at(w_id, d_id)];
        let orders = &district.orders[district.orders.len() - 20..];
        let first = orders[0].first_line as usize;
        let mut items: Vec<u32> = district.lines[first..]
            .iter()
            .map(|line| line.item)
            .collect();
        items.sort_unstable();
        items.dedup();
        let stocks = &self.stocks[(w_id as usize - 1) * ITEMS..];
        let low = items
            .iter()
            .filter(|item| stocks[**item as usize].quantity < threshold as i32);
        low.count() as i64
    }

    /// Accounts agree: the same conditions 1, 8 and 9 that the database is held to.
    fn check(&self) -> Result<()> {
        for (w, warehouse) in self.warehouses.iter().enumerate() {
            let districts = &self.districts[w * DISTRICTS..(w + 1) * DISTRICTS];
            let ytd: i64 = districts.iter().map(|district| district.ytd).sum();
            ensure!(ytd == warehouse.ytd, "w_ytd is not the sum of d_ytd");
            for district in districts {
                let paid: i64 = district.history.iter().map(|payment| payment.amount).sum();
                ensure!(
                    district.ytd == 3_000_000 + paid,
                    "d_ytd is not what was paid"
                );
                let lines: usize = district
                    .orders
                    .iter()
                    .map(|order| order.line_count as usize)
                    .sum();
                ensure!(lines == district.lines.len(), "lines are missing");
                black_box(
                    district
                        .history
                        .last()
                        .map(|payment| (payment.customer, payment.at, payment.data)),
                );
                black_box(district.lines.last().map(|line| line.dist));
            }
        }
        let done: u64 = self
            .customers
            .iter()
            .map(|c| (c.payments + c.deliveries) as u64 + (c.ytd_payment > 0) as u64)
            .sum();
        black_box(done);
        Ok(())
    }
}

fn district_at(w_id: i16, d_id: i8) -> usize {
    (w_id as usize - 1) * DISTRICTS + d_id as usize - 1
}

fn lines_of(order: &Order) -> std::ops::Range<usize> {
    let first = order.first_line as usize;
    first..first + order.line_count as usize
}

fn customer(random: &mut Random) -> Customer {
    Customer {
        discount: number(random, 5_001) as i64,
        balance: -1_000,
        ytd_payment: 1_000,
        payments: 1,
        deliveries: 0,
        last_order: 0,
        is_bad: number(random, 10) == 0,
        first: text(random),
        data: [b'x'; DATA_BYTES],
    }
}

fn item(random: &mut Random) -> Item {
    Item {
        price: 100 + number(random, 9_901) as i64,
        name: text(random),
        is_original: number(random, 10) == 0,
    }
}

fn stock(random: &mut Random) -> Stock {
    Stock {
        quantity: 10 + number(random, 91) as i32,
        ytd: 0,
        orders: 0,
        remote: 0,
        is_original: number(random, 10) == 0,
        dist: std::array::from_fn(|_| text(random)),
    }
}

/// Nanoseconds of each transaction over some stretches, the least and the median.
fn measure(
    kernel: &mut Kernel,
    stretches: usize,
    count: usize,
    mut draw: impl FnMut() -> Input,
) -> (f64, f64) {
    let mut times: Vec<f64> = (0..stretches)
        .map(|_| {
            let inputs: Vec<Input> = (0..count).map(|_| draw()).collect();
            let begun = Instant::now();
            for input in &inputs {
                black_box(kernel.run(input));
            }
            begun.elapsed().as_nanos() as f64 / count as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[0], times[times.len() / 2])
}

pub fn run() -> Result<()> {
    let mut random = Random::new(SEED);
    let mut kernel = Kernel::new(1, &mut random);
    let inputs = Inputs::new(1, 1, None, SEED)?;
    println!(
        "{:<24} {:>10} {:>10} {:>14}",
        "TPC-C, typed arrays", "least ns", "median ns", "median txn/s"
    );
    let line = |name: &str, (least, median): (f64, f64)| {
        println!(
            "{name:<24} {least:>10.0} {median:>10.0} {:>14.0}",
            1e9 / median
        );
    };
    let mix = measure(&mut kernel, MIX_STRETCHES, STRETCH, || {
        inputs.next(&mut random)
    });
    line("full mix", mix);
    let kinds = [
        ("new_order", Kind::NewOrder, STRETCH),
        ("payment", Kind::Payment, STRETCH),
        ("order_status", Kind::OrderStatus, STRETCH),
        // Each takes ten of the orders that the stretches before have left waiting.
        ("delivery", Kind::Delivery, STRETCH / 20),
        ("stock_level", Kind::StockLevel, STRETCH),
    ];
    for (name, kind, count) in kinds {
        let times = measure(&mut kernel, STRETCHES, count, || {
            inputs.of_kind(kind, &mut random)
        });
        line(name, times);
    }
    kernel.check()
}
