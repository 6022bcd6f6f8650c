//! Inputs of the five transactions (clauses 2.4.1 to 2.8.1), drawn by the client as the specification has it.

use reprise_abi::Field;
use reprise_txn::partition_of_field;

use crate::{
    BenchError,
    random::{Random, below},
};

const DISTRICTS: u32 = tpcc::DISTRICTS as u32;
const CUSTOMERS: u32 = tpcc::CUSTOMERS as u32;
const ITEMS: u32 = tpcc::ITEMS as u32;
const LAST_NAMES: u32 = 1_000;
pub const LINES_MAX: usize = tpcc::LINES_MAX as usize;
/// Weights in a hundred from which each transaction is drawn on its own, in the order of `Kind`.
const MIX: [u32; 5] = [45, 43, 4, 4, 4];
/// Shares in a hundred, by the specification.
pub const REMOTE_LINES: u32 = 1;
const REMOTE_PAYMENTS: u32 = 15;
pub const ROLLED_BACK: u32 = 1;
const BY_LAST_NAME: u32 = 60;

/// Which transaction; the position in `PROCEDURES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    NewOrder,
    Payment,
    OrderStatus,
    Delivery,
    StockLevel,
}

/// One transaction's inputs.
#[derive(Clone, Copy, Debug)]
pub enum Input {
    NewOrder(OrderInput),
    Payment(PaymentInput),
    OrderStatus { w_id: i16, d_id: i8, customer: Customer },
    Delivery { w_id: i16, o_carrier_id: i8 },
    StockLevel { w_id: i16, d_id: i8, threshold: i16 },
}

/// A customer as the terminal's user names them.
#[derive(Clone, Copy, Debug)]
pub enum Customer {
    Id(i32),
    /// A number from 0 to 999 (`tpcc::last_name`).
    LastName(u16),
}

#[derive(Clone, Copy, Debug)]
pub struct PaymentInput {
    pub w_id: i16,
    pub d_id: i8,
    pub c_w_id: i16,
    pub c_d_id: i8,
    pub customer: Customer,
    /// Cents.
    pub h_amount: i64,
}

#[derive(Clone, Copy, Debug)]
pub struct OrderInput {
    pub w_id: i16,
    pub d_id: i8,
    pub c_id: i32,
    pub line_count: u8,
    pub i_ids: [i32; LINES_MAX],
    pub supply_w_ids: [i16; LINES_MAX],
    pub quantities: [i8; LINES_MAX],
}

impl Input {
    pub fn kind(&self) -> Kind {
        match self {
            Self::NewOrder(_) => Kind::NewOrder,
            Self::Payment(_) => Kind::Payment,
            Self::OrderStatus { .. } => Kind::OrderStatus,
            Self::Delivery { .. } => Kind::Delivery,
            Self::StockLevel { .. } => Kind::StockLevel,
        }
    }
}

/// Draws inputs. The run's constants of `NURand` come from its seed.
#[derive(Clone, Debug)]
pub struct Inputs {
    warehouses: u32,
    /// Percent of New-Orders and of Payments that touch a second partition; None is the specification's shares of
    /// remote warehouses, wherever these lie.
    remote_percent: Option<u8>,
    /// For `remote_percent`: of each warehouse, those on other partitions.
    elsewhere: Vec<Vec<i16>>,
    last_name_c: u32,
    customer_c: u32,
    item_c: u32,
}

impl Inputs {
    pub fn new(warehouses: u32, partitions: u16, remote_percent: Option<u8>, seed: u64) -> Result<Self, BenchError> {
        let mut random = Random::new(seed ^ 0x7470_6363);
        let mut inputs = Self {
            warehouses,
            remote_percent,
            elsewhere: Vec::new(),
            last_name_c: run_constant(&mut random),
            customer_c: draw(&mut random, 1_024),
            item_c: draw(&mut random, 8_192),
        };
        if remote_percent.is_some_and(|percent| percent > 0) {
            let home = |w_id: i16| partition_of_field(&Field::Int(w_id as i64), partitions);
            let all = 1..=warehouses as i16;
            let others = |w_id: i16| all.clone().filter(|other| home(*other) != home(w_id)).collect();
            inputs.elsewhere = all.clone().map(others).collect();
            if inputs.elsewhere.iter().any(Vec::is_empty) {
                let text = "no warehouse lies on another partition: leave --remote out, or take --partitions 2 and enough --warehouses";
                return Err(BenchError::Usage(text.into()));
            }
        }
        Ok(inputs)
    }

    #[inline]
    pub fn next(&self, random: &mut Random) -> Input {
        let mut chosen = draw(random, 100);
        let mut kind = 0;
        while chosen >= MIX[kind] {
            chosen -= MIX[kind];
            kind += 1;
        }
        let kind = [
            Kind::NewOrder,
            Kind::Payment,
            Kind::OrderStatus,
            Kind::Delivery,
            Kind::StockLevel,
        ][kind];
        self.of_kind(kind, random)
    }

    /// Inputs of one kind of transaction, for any of the warehouses.
    pub fn of_kind(&self, kind: Kind, random: &mut Random) -> Input {
        let w_id = 1 + draw(random, self.warehouses) as i16;
        let d_id = 1 + draw(random, DISTRICTS) as i8;
        match kind {
            Kind::NewOrder => Input::NewOrder(self.order(w_id, d_id, random)),
            Kind::Payment => self.payment(w_id, d_id, random),
            Kind::OrderStatus => Input::OrderStatus {
                w_id,
                d_id,
                customer: self.customer(random),
            },
            Kind::Delivery => Input::Delivery {
                w_id,
                o_carrier_id: 1 + draw(random, 10) as i8,
            },
            Kind::StockLevel => Input::StockLevel {
                w_id,
                d_id,
                threshold: 10 + draw(random, 11) as i16,
            },
        }
    }

    fn order(&self, w_id: i16, d_id: i8, random: &mut Random) -> OrderInput {
        let line_count = tpcc::LINES_MIN as u32 + draw(random, 11);
        let mut order = OrderInput {
            w_id,
            d_id,
            c_id: self.customer_id(random),
            line_count: line_count as u8,
            i_ids: [0; LINES_MAX],
            supply_w_ids: [w_id; LINES_MAX],
            quantities: [0; LINES_MAX],
        };
        for line in 0..line_count as usize {
            order.i_ids[line] = 1 + (nurand(random, 8_191, ITEMS) + self.item_c).rem_euclid(ITEMS) as i32;
            let bits = random.next_u64();
            order.quantities[line] = 1 + below(bits as u32, 10) as i8;
            if self.remote_percent.is_none() && below((bits >> 32) as u32, 100) < REMOTE_LINES {
                order.supply_w_ids[line] = self.other_warehouse(w_id, random);
            }
        }
        if let Some(percent) = self.remote_percent
            && draw(random, 100) < percent as u32
        {
            let line = draw(random, line_count) as usize;
            order.supply_w_ids[line] = self.warehouse_elsewhere(w_id, random);
        }
        if draw(random, 100) < ROLLED_BACK {
            order.i_ids[line_count as usize - 1] = ITEMS as i32 + 1;
        }
        order
    }

    fn payment(&self, w_id: i16, d_id: i8, random: &mut Random) -> Input {
        let percent = self.remote_percent.map_or(REMOTE_PAYMENTS, |percent| percent as u32);
        let (mut c_w_id, mut c_d_id) = (w_id, d_id);
        if draw(random, 100) < percent {
            c_w_id = match self.remote_percent {
                None => self.other_warehouse(w_id, random),
                Some(_) => self.warehouse_elsewhere(w_id, random),
            };
            c_d_id = 1 + draw(random, DISTRICTS) as i8;
        }
        Input::Payment(PaymentInput {
            w_id,
            d_id,
            c_w_id,
            c_d_id,
            customer: self.customer(random),
            h_amount: 100 + draw(random, 499_901) as i64,
        })
    }

    fn customer(&self, random: &mut Random) -> Customer {
        if draw(random, 100) >= BY_LAST_NAME {
            return Customer::Id(self.customer_id(random));
        }
        let number = (draw(random, 256) | draw(random, LAST_NAMES)) + self.last_name_c;
        Customer::LastName((number % LAST_NAMES) as u16)
    }

    fn customer_id(&self, random: &mut Random) -> i32 {
        1 + ((nurand(random, 1_023, CUSTOMERS) + self.customer_c) % CUSTOMERS) as i32
    }

    /// Any other warehouse, or the same where it is the only one.
    fn other_warehouse(&self, w_id: i16, random: &mut Random) -> i16 {
        if self.warehouses == 1 {
            return w_id;
        }
        let other = 1 + draw(random, self.warehouses - 1) as i16;
        other + (other >= w_id) as i16
    }

    fn warehouse_elsewhere(&self, w_id: i16, random: &mut Random) -> i16 {
        let others = &self.elsewhere[w_id as usize - 1];
        others[draw(random, others.len() as u32) as usize]
    }
}

/// A number below `bound`.
#[inline]
fn draw(random: &mut Random, bound: u32) -> u32 {
    below((random.next_u64() >> 32) as u32, bound)
}

/// `random(0, a) | random(1, count)` less 1: what `NURand(a, 1, count)` adds its constant to (clause 2.1.6).
#[inline]
fn nurand(random: &mut Random, a: u32, count: u32) -> u32 {
    let bits = random.next_u64();
    (below(bits as u32, a + 1) | (1 + below((bits >> 32) as u32, count))) - 1
}

/// The run's constant for last names: 65 to 119 apart from that of the load, neither 96 nor 112 (clause 2.1.6.1).
fn run_constant(random: &mut Random) -> u32 {
    loop {
        let apart = 65 + draw(random, 55);
        if apart != 96 && apart != 112 {
            return tpcc::LAST_NAME_C_LOAD as u32 + apart;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(warehouses: u32, partitions: u16, remote: Option<u8>) -> Vec<Input> {
        let inputs = Inputs::new(warehouses, partitions, remote, 7).expect("enough warehouses");
        let mut random = Random::new(7);
        (0..50_000).map(|_| inputs.next(&mut random)).collect()
    }

    fn share(part: usize, whole: usize) -> f64 {
        part as f64 * 100.0 / whole as f64
    }

    #[test]
    fn the_mix_and_its_shares_are_the_specifications() {
        let inputs = drawn(4, 2, None);
        let count = |kind| inputs.iter().filter(|input| input.kind() == kind).count();
        assert!((44.0..46.0).contains(&share(count(Kind::NewOrder), inputs.len())));
        assert!((42.0..44.0).contains(&share(count(Kind::Payment), inputs.len())));
        for kind in [Kind::OrderStatus, Kind::Delivery, Kind::StockLevel] {
            assert!((3.5..4.5).contains(&share(count(kind), inputs.len())), "{kind:?}");
        }
        let (mut rolled_back, mut lines, mut remote, mut paid_elsewhere, mut by_name) = (0, 0, 0, 0, 0);
        for input in &inputs {
            match input {
                Input::NewOrder(order) => {
                    let count = order.line_count as usize;
                    assert!((5..=15).contains(&count));
                    rolled_back += order.i_ids.contains(&(ITEMS as i32 + 1)) as usize;
                    lines += count;
                    remote += order.supply_w_ids[..count]
                        .iter()
                        .filter(|id| **id != order.w_id)
                        .count();
                    assert!(
                        order.i_ids[..count]
                            .iter()
                            .all(|id| (1..=ITEMS as i32 + 1).contains(id))
                    );
                    assert!(order.quantities[..count].iter().all(|n| (1..=10).contains(n)));
                }
                Input::Payment(payment) => {
                    paid_elsewhere += (payment.w_id != payment.c_w_id) as usize;
                    by_name += matches!(payment.customer, Customer::LastName(_)) as usize;
                }
                _ => {}
            }
        }
        assert!((0.7..1.4).contains(&share(rolled_back, count(Kind::NewOrder))));
        assert!((0.8..1.2).contains(&share(remote, lines)));
        assert!((14.0..16.0).contains(&share(paid_elsewhere, count(Kind::Payment))));
        assert!((58.5..61.5).contains(&share(by_name, count(Kind::Payment))));
    }

    #[test]
    fn a_share_that_is_asked_for_goes_to_other_partitions() {
        let home = |id: i16| partition_of_field(&Field::Int(id as i64), 2);
        let (mut orders, mut crossing) = (0, 0);
        for input in drawn(16, 2, Some(20)) {
            if let Input::NewOrder(order) = input {
                orders += 1;
                let others = order.supply_w_ids[..order.line_count as usize]
                    .iter()
                    .filter(|id| home(**id) != home(order.w_id));
                crossing += (others.count() > 0) as usize;
            }
        }
        assert!((18.5..21.5).contains(&share(crossing, orders)));
        assert!(Inputs::new(4, 1, Some(1), 1).is_err(), "there is one partition");
        assert!(drawn(4, 1, Some(0)).iter().all(|input| match input {
            Input::Payment(payment) => payment.w_id == payment.c_w_id,
            _ => true,
        }));
    }
}
