//! The calls of a run, the same for every bar: the load, then New-Order and Payment in turn, as the paper ran them.

use anyhow::{Context, Result};
use reprise_driver::{Random, TPCC_LINES_MAX, TpccCustomer, TpccInput, TpccOrder, TpccPayment, encode_tpcc};

/// Items and stocks that a part of a warehouse has.
const ITEMS_OF_PART: i32 = tpcc::ITEMS / tpcc::DISTRICTS as i32;
/// Lines of an order.
pub const LINES: usize = 10;
/// Distance of the ids of consecutive transactions: one tick, on partition 0.
const ID_STEP: u64 = 1 << 10;

/// How large a run is.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Warehouses.
    pub warehouses: i16,
    /// Parts of each warehouse, ten at most: a district with its customers, and a tenth of the items.
    pub parts: i8,
    /// Transactions, half of them New-Orders.
    pub transactions: usize,
    /// Seed of the inputs.
    pub seed: u64,
}

impl Scale {
    /// The paper's: 40,000 transactions on five warehouses.
    pub const PAPER: Self = Self {
        warehouses: 5,
        parts: tpcc::DISTRICTS,
        transactions: 40_000,
        seed: 1,
    };

    /// A run of a second or two.
    pub const TINY: Self = Self {
        warehouses: 1,
        parts: 1,
        transactions: 200,
        seed: 1,
    };
}

impl Scale {
    /// A run that callgrind counts in a second or two.
    pub const SHORT: Self = Self {
        transactions: 40,
        ..Self::TINY
    };

    /// Frames that hold all pages, of whatever size.
    pub fn frames(&self) -> usize {
        let parts = self.warehouses as usize * self.parts as usize + self.parts as usize;
        4_000 * parts + self.transactions + 2_000
    }
}

/// Which of the two transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Orders ten items.
    NewOrder,
    /// Pays for one customer.
    Payment,
}

/// A call of a procedure.
#[derive(Clone, Debug)]
pub struct Call {
    /// In the module.
    pub procedure: usize,
    /// Id of the transaction.
    pub txn_id: u64,
    /// Encoded.
    pub args: Vec<u8>,
}

/// The calls of a run.
pub struct Calls {
    /// The calls that fill the tables.
    pub load: Vec<Call>,
    /// The calls that are counted, with their kinds.
    pub run: Vec<(Kind, Call)>,
    /// The inputs of `run`, for the typed kernel.
    pub inputs: Vec<TpccInput>,
}

impl Calls {
    /// Draws the calls of a run.
    ///
    /// # Errors
    /// The module lacks a procedure.
    pub fn draw(scale: Scale) -> Result<Self> {
        let mut maker = Maker { last_id: 1 << 40 };
        let mut load = Vec::new();
        for part in 0..scale.parts as i32 {
            let mut args = Vec::new();
            args.extend((part * ITEMS_OF_PART + 1).to_le_bytes());
            args.extend(((part + 1) * ITEMS_OF_PART).to_le_bytes());
            load.push(maker.call("load_item_range", args)?);
        }
        for w_id in 1..=scale.warehouses {
            for part in 1..=scale.parts {
                let mut args = w_id.to_le_bytes().to_vec();
                args.push(part as u8);
                load.push(maker.call("load_warehouse", args)?);
            }
        }
        let mut draw = Draw(Random::new(scale.seed));
        let (mut run, mut inputs) = (Vec::new(), Vec::new());
        // In blocks of one kind, each at most a twentieth of the run.
        let block = (scale.transactions / 20).max(1);
        for at in 0..scale.transactions {
            let kind = Kind::ALL[at / block % 2];
            let (procedure, input) = match kind {
                Kind::NewOrder => ("new_order", draw.new_order(scale)),
                Kind::Payment => ("payment", draw.payment(scale)),
            };
            let mut args = Vec::new();
            encode_tpcc(&input, &mut args);
            run.push((kind, maker.call(procedure, args)?));
            inputs.push(input);
        }
        Ok(Self { load, run, inputs })
    }

    /// The load, and then the run.
    pub fn all(&self) -> impl Iterator<Item = &Call> {
        self.load.iter().chain(self.run.iter().map(|(_, call)| call))
    }
}

struct Maker {
    last_id: u64,
}

impl Maker {
    fn call(&mut self, procedure: &str, args: Vec<u8>) -> Result<Call> {
        self.last_id += ID_STEP;
        let at = tpcc::MODULE.procedure_index(procedure);
        Ok(Call {
            procedure: at.with_context(|| format!("tpcc has no procedure {procedure}"))?,
            txn_id: self.last_id,
            args,
        })
    }
}

struct Draw(Random);

impl Draw {
    fn below(&mut self, bound: u32) -> u32 {
        ((self.0.next_u64() >> 32) * bound as u64 >> 32) as u32
    }

    /// A number from 1 to `count`, some more often than others (clause 2.1.6).
    fn skewed(&mut self, spread: u32, count: u32) -> i32 {
        1 + ((self.below(spread + 1) | self.below(count)) % count) as i32
    }

    fn place(&mut self, scale: Scale) -> (i16, i8) {
        let w_id = 1 + self.below(scale.warehouses as u32) as i16;
        (w_id, 1 + self.below(scale.parts as u32) as i8)
    }

    /// Ten lines, from the stock of the home warehouse.
    fn new_order(&mut self, scale: Scale) -> TpccInput {
        let (w_id, d_id) = self.place(scale);
        let items = scale.parts as u32 * ITEMS_OF_PART as u32;
        let mut order = TpccOrder {
            w_id,
            d_id,
            c_id: self.skewed(1_023, tpcc::CUSTOMERS as u32),
            line_count: LINES as u8,
            i_ids: [0; TPCC_LINES_MAX],
            supply_w_ids: [w_id; TPCC_LINES_MAX],
            quantities: [0; TPCC_LINES_MAX],
        };
        for line in 0..LINES {
            order.i_ids[line] = self.skewed(8_191, items);
            order.quantities[line] = 1 + self.below(10) as i8;
        }
        TpccInput::NewOrder(order)
    }

    /// By id, of a customer of the home district.
    fn payment(&mut self, scale: Scale) -> TpccInput {
        let (w_id, d_id) = self.place(scale);
        TpccInput::Payment(TpccPayment {
            w_id,
            d_id,
            c_w_id: w_id,
            c_d_id: d_id,
            customer: TpccCustomer::Id(self.skewed(1_023, tpcc::CUSTOMERS as u32)),
            h_amount: 100 + self.below(499_901) as i64,
        })
    }
}
