//! TPC-C's typed kernel: the transactions over plain typed arrays, without keys, log, isolation or sandbox. It does all that the specification asks
//! of a transaction. It reads and returns every text that the transaction retrieves, and looks for the brand in both texts. It works on an order with
//! an unused item to its last line, and then undoes it.

use std::{collections::VecDeque, hint::black_box};

use super::{
    ROLLED_BACK,
    inputs::{Customer as Named, Input, OrderInput, PaymentInput},
};
use crate::{kernel::Kernel, random::Random};

const DISTRICTS: usize = tpcc::DISTRICTS as usize;
const CUSTOMERS: usize = tpcc::CUSTOMERS as usize;
const ITEMS: usize = tpcc::ITEMS as usize;
const LAST_NAMES: usize = 1_000;
const LINES_MAX: usize = tpcc::LINES_MAX as usize;
const DATA_BYTES: usize = 500;
const WORD: &[u8; 8] = b"ORIGINAL";

/// Street twice, city, state and zip.
type Address = [u8; 71];

struct Warehouse {
    tax: i64,
    ytd: i64,
    name: [u8; 10],
    address: Address,
}

struct District {
    tax: i64,
    ytd: i64,
    name: [u8; 10],
    address: Address,
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
    since: u64,
    first: [u8; 16],
    last: [u8; 16],
    phone: [u8; 16],
    address: Address,
    data: [u8; DATA_BYTES],
}

#[derive(Clone, Copy)]
struct Order {
    customer: u16,
    entered: u64,
    carrier: i8,
    first_line: u32,
    line_count: u8,
}

#[derive(Clone, Copy)]
struct Line {
    item: u32,
    supply: u16,
    quantity: u8,
    amount: i64,
    delivered: u64,
    #[cfg_attr(not(test), expect(dead_code, reason = "written as a database would; tests read it"))]
    dist: [u8; 24],
}

#[cfg_attr(not(test), expect(dead_code, reason = "written as a database would; tests read it"))]
struct History {
    customer: (u16, u8, u16),
    amount: i64,
    at: u64,
    data: [u8; 24],
}

struct Item {
    price: i64,
    name: [u8; 24],
    data: Data,
}

/// A text of 26 to 50 characters.
struct Data {
    length: u8,
    text: [u8; 50],
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Taken {
    quantity: i32,
    ytd: i64,
    orders: u32,
    remote: u32,
}

struct Stock {
    taken: Taken,
    data: Data,
    dist: [[u8; 24]; DISTRICTS],
}

/// The line of an order as the terminal shows it.
#[derive(Clone, Copy)]
#[expect(dead_code, reason = "made as a database would make it, for nobody")]
struct Shown {
    name: [u8; 24],
    quantity: i32,
    brand: u8,
    price: i64,
    amount: i64,
}

/// The kernel's data.
pub(super) struct Warehouses {
    now: u64,
    warehouses: Vec<Warehouse>,
    districts: Vec<District>,
    customers: Vec<Customer>,
    items: Vec<Item>,
    stocks: Vec<Stock>,
    /// Earlier stocks of the running order.
    undo: Vec<(usize, Taken)>,
}

fn text<const N: usize>(random: &mut Random) -> [u8; N] {
    std::array::from_fn(|_| b'a' + (random.next_u64() >> 32) as u8 % 26)
}

fn number(random: &mut Random, below: usize) -> usize {
    (random.next_u64() >> 33) as usize % below
}

impl Warehouses {
    pub(super) fn new(warehouses: usize, random: &mut Random) -> Self {
        let mut kernel = Self {
            now: 0,
            warehouses: Vec::new(),
            districts: Vec::new(),
            customers: Vec::new(),
            items: (0..ITEMS).map(|_| item(random)).collect(),
            stocks: (0..warehouses * ITEMS).map(|_| stock(random)).collect(),
            undo: Vec::with_capacity(LINES_MAX),
        };
        for _ in 0..warehouses {
            kernel.warehouses.push(Warehouse {
                tax: number(random, 2_001) as i64,
                ytd: 30_000_000,
                name: text(random),
                address: text(random),
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
            address: text(random),
            orders: Vec::new(),
            lines: Vec::new(),
            waiting: VecDeque::new(),
            history: Vec::new(),
            named: vec![Vec::new(); LAST_NAMES],
        };
        let first_customer = self.customers.len();
        for c in 0..CUSTOMERS {
            self.customers.push(customer(random));
            let name = if c < LAST_NAMES { c } else { number(random, LAST_NAMES) };
            district.named[name].push(c as u16);
        }
        let customers = &mut self.customers[first_customer..];
        for named in &mut district.named {
            named.sort_by_key(|c| customers[*c as usize].first);
        }
        for o in 0..tpcc::ORDERS as usize {
            let (is_waiting, count) = (o + 1 >= tpcc::FIRST_NEW_ORDER as usize, 5 + number(random, 11));
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
                    amount: if is_waiting { number(random, 999_999) as i64 } else { 0 },
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

    /// False where an item is unknown: then nothing has changed.
    fn new_order(&mut self, input: &OrderInput) -> bool {
        let count = input.line_count as usize;
        let at = district_at(input.w_id, input.d_id);
        let district = &mut self.districts[at];
        let first_line = district.lines.len();
        let mut shown = [None; LINES_MAX];
        let (mut sum, mut is_known) = (0, true);
        self.undo.clear();
        for (line, shown) in shown.iter_mut().enumerate().take(count) {
            let (i, supply) = (input.i_ids[line] as usize - 1, input.supply_w_ids[line] as usize - 1);
            let Some(item) = self.items.get(i) else {
                is_known = false;
                continue;
            };
            let stock = &mut self.stocks[supply * ITEMS + i];
            self.undo.push((supply * ITEMS + i, stock.taken));
            let quantity = input.quantities[line];
            stock.take(quantity as i32, supply != input.w_id as usize - 1);
            let amount = item.price * quantity as i64;
            sum += amount;
            let is_brand = item.data.is_original() && stock.data.is_original();
            *shown = Some(Shown {
                name: item.name,
                quantity: stock.taken.quantity,
                brand: if is_brand { b'B' } else { b'G' },
                price: item.price,
                amount,
            });
            district.lines.push(Line {
                item: i as u32,
                supply: supply as u16,
                quantity: quantity as u8,
                amount,
                delivered: 0,
                dist: stock.dist[input.d_id as usize - 1],
            });
        }
        if !is_known {
            district.lines.truncate(first_line);
            for (stock, before) in self.undo.drain(..).rev() {
                self.stocks[stock].taken = before;
            }
            return false;
        }
        district.waiting.push_back(district.orders.len() as u32);
        district.orders.push(Order {
            customer: input.c_id as u16 - 1,
            entered: self.now,
            carrier: 0,
            first_line: first_line as u32,
            line_count: count as u8,
        });
        let customer = &mut self.customers[at * CUSTOMERS + input.c_id as usize - 1];
        customer.last_order = district.orders.len() as u32;
        let taxes = self.warehouses[input.w_id as usize - 1].tax + district.tax;
        let total = sum * (10_000 - customer.discount) * (10_000 + taxes) / 100_000_000;
        black_box((shown, total, customer.last, customer.is_bad));
        true
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

    fn payment(&mut self, input: &PaymentInput) {
        let Some(c) = self.find(district_at(input.c_w_id, input.c_d_id), input.customer) else {
            return;
        };
        let amount = input.h_amount;
        let warehouse = &mut self.warehouses[input.w_id as usize - 1];
        let district = &mut self.districts[district_at(input.w_id, input.d_id)];
        let customer = &mut self.customers[c];
        warehouse.ytd += amount;
        district.ytd += amount;
        customer.balance -= amount;
        customer.ytd_payment += amount;
        customer.payments += 1;
        if customer.is_bad {
            let numbers = [
                c as i64,
                input.c_w_id as i64,
                input.c_d_id as i64,
                input.w_id as i64,
                input.d_id as i64,
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
            customer: (input.c_w_id as u16, input.c_d_id as u8, (c % CUSTOMERS) as u16),
            amount,
            at: self.now,
            data,
        });
        black_box((warehouse.address, district.address, customer.address, customer.first));
        black_box((customer.last, customer.phone, customer.since, customer.balance));
        if customer.is_bad {
            black_box(&customer.data[..200]);
        }
    }

    fn order_status(&self, w_id: i16, d_id: i8, named: Named) {
        let at = district_at(w_id, d_id);
        let Some(c) = self.find(at, named) else {
            return;
        };
        let (district, customer) = (&self.districts[at], &self.customers[c]);
        let Some(order) = (customer.last_order as usize)
            .checked_sub(1)
            .map(|o| &district.orders[o])
        else {
            return;
        };
        for line in &district.lines[lines_of(order)] {
            black_box((line.item, line.supply, line.quantity, line.amount, line.delivered));
        }
        black_box((
            order.entered,
            order.carrier,
            customer.balance,
            customer.first,
            customer.last,
        ));
    }

    fn delivery(&mut self, w_id: i16, carrier: i8) {
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
        }
    }

    fn stock_level(&self, w_id: i16, d_id: i8, threshold: i16) {
        let district = &self.districts[district_at(w_id, d_id)];
        let orders = &district.orders[district.orders.len() - 20..];
        let first = orders[0].first_line as usize;
        let mut items: Vec<u32> = district.lines[first..].iter().map(|line| line.item).collect();
        items.sort_unstable();
        items.dedup();
        let stocks = &self.stocks[(w_id as usize - 1) * ITEMS..];
        let low = items
            .iter()
            .filter(|item| stocks[**item as usize].taken.quantity < threshold as i32);
        black_box(low.count());
    }
}

/// The typed kernel, for callers that draw their own inputs.
pub struct TypedTpcc(Warehouses);

impl TypedTpcc {
    /// Fills all districts of `warehouses` warehouses.
    pub fn new(warehouses: u16, seed: u64) -> Self {
        Self(Warehouses::new(warehouses.into(), &mut Random::new(seed)))
    }

    /// Runs a New-Order or a Payment by its inputs. False where the order was undone for an item that there is not.
    #[inline]
    pub fn run(&mut self, input: &Input) -> bool {
        Kernel::run(&mut self.0, input) != ROLLED_BACK
    }

    /// Orders, order lines and payments of all districts.
    pub fn rows(&self) -> [usize; 3] {
        let districts = self.0.districts.iter();
        districts.fold([0; 3], |[orders, lines, payments], district| {
            [
                orders + district.orders.len(),
                lines + district.lines.len(),
                payments + district.history.len(),
            ]
        })
    }
}

impl Kernel<Input> for Warehouses {
    #[inline]
    fn run(&mut self, input: &Input) -> usize {
        self.now += 1;
        match input {
            Input::NewOrder(order) => {
                if !self.new_order(order) {
                    return ROLLED_BACK;
                }
            }
            Input::Payment(payment) => self.payment(payment),
            Input::OrderStatus { w_id, d_id, customer } => self.order_status(*w_id, *d_id, *customer),
            Input::Delivery { w_id, o_carrier_id } => self.delivery(*w_id, *o_carrier_id),
            Input::StockLevel { w_id, d_id, threshold } => self.stock_level(*w_id, *d_id, *threshold),
        }
        input.kind() as usize
    }
}

impl Stock {
    #[inline]
    fn take(&mut self, quantity: i32, is_remote: bool) {
        let taken = &mut self.taken;
        let filled = if taken.quantity >= quantity + 10 { 0 } else { 91 };
        taken.quantity += filled - quantity;
        taken.ytd += quantity as i64;
        taken.orders += 1;
        taken.remote += is_remote as u32;
    }
}

impl Data {
    fn new(random: &mut Random) -> Self {
        let length = 26 + number(random, 25);
        let mut text = text(random);
        if number(random, 10) == 0 {
            let at = number(random, length - WORD.len() + 1);
            text[at..at + WORD.len()].copy_from_slice(WORD);
        }
        Self {
            length: length as u8,
            text,
        }
    }

    /// True if the text has the brand, as the module looks for it.
    #[inline]
    fn is_original(&self) -> bool {
        memchr::memmem::find(&self.text[..self.length as usize], WORD).is_some()
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
        since: 0,
        first: text(random),
        last: text(random),
        phone: text(random),
        address: text(random),
        data: [b'x'; DATA_BYTES],
    }
}

fn item(random: &mut Random) -> Item {
    Item {
        price: 100 + number(random, 9_901) as i64,
        name: text(random),
        data: Data::new(random),
    }
}

fn stock(random: &mut Random) -> Stock {
    Stock {
        taken: Taken {
            quantity: 10 + number(random, 91) as i32,
            ytd: 0,
            orders: 0,
            remote: 0,
        },
        data: Data::new(random),
        dist: std::array::from_fn(|_| text(random)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tpcc::inputs::{Inputs, Kind};

    /// Accounts agree, as the conditions 1, 4, 8 and 9 have it of the database.
    fn check(kernel: &Warehouses) {
        for (w, warehouse) in kernel.warehouses.iter().enumerate() {
            let districts = &kernel.districts[w * DISTRICTS..(w + 1) * DISTRICTS];
            let ytd: i64 = districts.iter().map(|district| district.ytd).sum();
            assert_eq!(ytd, warehouse.ytd, "w_ytd is the sum of d_ytd");
            for district in districts {
                let paid: i64 = district.history.iter().map(|payment| payment.amount).sum();
                assert_eq!(district.ytd, 3_000_000 + paid, "d_ytd is what was paid");
                let lines = district.orders.iter().map(|order| order.line_count as usize);
                assert_eq!(lines.sum::<usize>(), district.lines.len(), "an order's lines");
            }
        }
    }

    #[test]
    fn a_mix_keeps_the_accounts_and_an_unused_item_leaves_nothing() {
        let mut random = Random::new(3);
        let mut kernel = Warehouses::new(2, &mut random);
        let inputs = Inputs::new(2, 1, None, 3).expect("no remote share is asked for");
        let mut outcomes = [0; ROLLED_BACK + 1];
        for _ in 0..20_000 {
            outcomes[kernel.run(&inputs.next(&mut random))] += 1;
        }
        assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
        check(&kernel);
        let places = |kernel: &Warehouses| {
            let rows = kernel
                .districts
                .iter()
                .map(|one| (one.orders.len(), one.lines.len(), one.waiting.len()));
            (
                rows.collect::<Vec<_>>(),
                kernel.stocks.iter().map(|stock| stock.taken).collect::<Vec<_>>(),
            )
        };
        let before = places(&kernel);
        let Input::NewOrder(mut order) = inputs.of_kind(Kind::NewOrder, &mut random) else {
            panic!("an order");
        };
        // Twice the same item: undone in the order that leaves what was there first.
        order.i_ids[1] = order.i_ids[0];
        order.i_ids[order.line_count as usize - 1] = ITEMS as i32 + 1;
        assert_eq!(kernel.run(&Input::NewOrder(order)), ROLLED_BACK);
        assert!(before == places(&kernel));
        let originals = kernel.stocks.iter().filter(|stock| stock.data.is_original()).count();
        assert!((19_000..21_000).contains(&originals), "{originals} of 200000");
        let line = kernel.districts[0].lines.last().expect("lines");
        let stock = &kernel.stocks[line.supply as usize * ITEMS + line.item as usize];
        assert_eq!(line.dist, stock.dist[0], "the text of the district");
        let last = kernel.districts[0].history.last().expect("payments");
        assert!(last.at > 0 && last.customer.0 > 0 && last.data[10] == b' ');
    }
}
