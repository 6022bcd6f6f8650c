//! The workload `tpcc`: the full mix of TPC-C over any number of warehouses. Where it differs from the specification is said by
//! `Tpcc::liberties` and in `docs/BENCHMARKS.md`.

mod check;
mod inputs;
mod kernel;
mod reads;
mod wire;

use std::{cell::Cell, collections::BTreeMap, time::Instant};

use reprise_procedure::native::NativeModule;

use self::inputs::Inputs;
pub use self::{
    inputs::{Customer, Input, LINES_MAX, OrderInput, PaymentInput, REMOTE_LINES, ROLLED_BACK as ROLLED_BACK_PERCENT},
    kernel::TypedTpcc,
    reads::Reads,
    wire::encode,
};
use crate::{
    BenchError, OnProgress, Progress,
    control::{Arg, Control, ManyCalls},
    kernel::Kernel,
    measure::Tally,
    options::Options,
    random::Random,
    workload::Workload,
};

pub(crate) const NAME: &str = "tpcc";

const PROCEDURES: [&str; 5] = ["new_order", "payment", "order_status", "delivery", "stock_level"];
/// An outcome is the procedure's own, or this one.
const ROLLED_BACK: usize = 5;
/// Warehouses of one partition alone where `--warehouses` says nothing: with one no line and no payment is remote.
const WAREHOUSES_MIN: u32 = 2;
/// Items of one loading call.
const ITEMS_PER_CALL: u64 = 10_000;
/// The outcome of a call that loads a part a second time: the data directory has it already.
const ALREADY_THERE: &str = "duplicate_key";

pub(crate) struct Tpcc {
    asked_warehouses: Option<u32>,
    remote_percent: Option<u8>,
    seed: u64,
    warehouses: u32,
    inputs: Option<Inputs>,
    loaded: Loaded,
}

/// The result of filling the tables.
#[derive(Clone, Copy, Debug, Default)]
struct Loaded {
    rows: u64,
    seconds: f64,
}

impl Tpcc {
    fn place(&mut self, partitions: u16) -> Result<(), BenchError> {
        let default = WAREHOUSES_MIN.max(partitions.into());
        self.warehouses = self.asked_warehouses.unwrap_or(default);
        let inputs = Inputs::new(self.warehouses, partitions, self.remote_percent, self.seed)?;
        self.inputs = Some(inputs);
        Ok(())
    }

    fn load(&self, control: &mut dyn Control, on_progress: OnProgress<'_>) -> Result<(), BenchError> {
        let items = tpcc::ITEMS as u64;
        let parts = tpcc::DISTRICTS as u64;
        // Rows of a part that are certain: stocks, customers, their payments, orders, those that wait, ten lines each.
        let of_part = items / parts + 3 * 3_000 + 900 + 30_000;
        let total = items + self.warehouses as u64 * parts * of_part;
        let done = Cell::new(0);
        let show = |more: u64| {
            on_progress(Progress::Loading {
                done: done.get() + more,
                total,
            })
        };
        show(0);
        let range = |call: u64| {
            let first = (call * ITEMS_PER_CALL) as i32;
            vec![
                ("first", Arg::I32(first + 1)),
                ("last", Arg::I32(first + ITEMS_PER_CALL as i32)),
            ]
        };
        let on_items = |calls: u64| show(calls * ITEMS_PER_CALL);
        control.call_many(&ManyCalls {
            tolerated: ALREADY_THERE,
            on_done: &on_items,
            ..ManyCalls::new("load_item_range", items / ITEMS_PER_CALL, &range)
        })?;
        done.set(items);
        for part in 1..=tpcc::DISTRICTS {
            let of_warehouse = |call: u64| vec![("w_id", Arg::I16(call as i16 + 1)), ("part", Arg::I8(part))];
            let on_parts = |calls: u64| show(calls * of_part);
            let count = self.warehouses as u64;
            control.call_many(&ManyCalls {
                tolerated: ALREADY_THERE,
                on_done: &on_parts,
                ..ManyCalls::new("load_warehouse", count, &of_warehouse)
            })?;
            done.set(done.get() + count * of_part);
        }
        Ok(())
    }

    /// Every table has as many rows as the population has at least.
    fn check_loaded(&self, control: &mut dyn Control) -> Result<u64, BenchError> {
        let (warehouses, mut rows) = (self.warehouses as u64, 0);
        for (table, each) in [
            ("warehouse", 1),
            ("district", 10),
            ("customer", 30_000),
            ("stock", 100_000),
            ("orders", 30_000),
        ] {
            let expected = each * warehouses;
            let found = control.checked_row_count(table, &|rows| rows >= expected)?;
            rows += found;
            if found < expected {
                let text = format!("{table} has {found} rows after loading, not {expected}");
                return Err(BenchError::Failed(text));
            }
        }
        for table in ["item", "history", "new_order", "order_line"] {
            rows += control.row_count(table)?;
        }
        Ok(rows)
    }
}

impl Workload for Tpcc {
    type Call = Input;
    const NAME: &'static str = NAME;
    const PROCEDURES: &'static [&'static str] = &PROCEDURES;
    const OUTCOMES: &'static [&'static str] = &[
        "ordered",
        "paid",
        "order_shown",
        "delivered",
        "stock_counted",
        "item_not_found",
    ];

    fn new(options: &Options) -> Result<Self, BenchError> {
        options.check_sizes(&["--warehouses", "--remote"])?;
        if options
            .warehouses
            .is_some_and(|count| count == 0 || count > i16::MAX as u32)
        {
            return Err(BenchError::Usage("--warehouses takes a number from 1 to 32767".into()));
        }
        Ok(Self {
            asked_warehouses: options.warehouses,
            remote_percent: options.remote_percent,
            seed: options.seed,
            warehouses: 1,
            inputs: None,
            loaded: Loaded::default(),
        })
    }

    fn native() -> &'static NativeModule {
        &tpcc::MODULE
    }

    fn prepare(&mut self, control: &mut dyn Control, on_progress: OnProgress<'_>) -> Result<(), BenchError> {
        self.place(control.partitions())?;
        let begun = Instant::now();
        self.load(control, on_progress)?;
        let seconds = begun.elapsed().as_secs_f64();
        let rows = self.check_loaded(control)?;
        self.loaded = Loaded { rows, seconds };
        Ok(())
    }

    #[inline]
    fn generate(&self, random: &mut Random) -> Input {
        self.inputs.as_ref().expect("prepared").next(random)
    }

    #[inline]
    fn procedure(call: &Input) -> usize {
        call.kind() as usize
    }

    fn encode(call: &Input, out: &mut Vec<u8>) {
        wire::encode(call, out);
    }

    fn write_json(call: &Input, out: &mut Vec<u8>) {
        wire::write_json(call, out);
    }

    #[inline]
    fn outcome(call: &Input, _: &[u8]) -> usize {
        call.kind() as usize
    }

    #[inline]
    fn outcome_json(call: &Input, _: &[u8]) -> usize {
        call.kind() as usize
    }

    fn outcome_of_abort(code: &str) -> Option<usize> {
        (code == "item_not_found").then_some(ROLLED_BACK)
    }

    fn figures(&self, window: &Tally, seconds: f64) -> BTreeMap<String, f64> {
        let new_orders = window.procedures[0];
        let rolled_back = window.outcomes[ROLLED_BACK] as f64 * 100.0 / new_orders.max(1) as f64;
        let round = |value: f64, parts: f64| (value * parts).round() / parts;
        BTreeMap::from([
            (
                "new_orders_per_minute".to_owned(),
                round(new_orders as f64 * 60.0 / seconds, 1.0),
            ),
            ("rolled_back_percent".to_owned(), round(rolled_back, 100.0)),
            ("warehouses".to_owned(), self.warehouses as f64),
            ("loaded_rows".to_owned(), self.loaded.rows as f64),
            ("load_s".to_owned(), round(self.loaded.seconds, 1_000.0)),
        ])
    }

    fn liberties(&self) -> Vec<String> {
        let mut list = [
            "no keying and think times: new_orders_per_minute is no tpmC, and far above the 12.86 that a warehouse's terminals can ask for",
            "no terminals: w_id and d_id are drawn for each call, where the specification gives each terminal its own warehouse and district",
            "Delivery runs at once, as one transaction over ten districts: no queue, no result file",
            "the driver draws each transaction by itself, Payment at 43 % and the last three at 4 %. These are the specification's minima, without \
             a deck of cards",
            "condition 11 counts the deliveries since the load on top of the 2,100 orders that do not wait",
            "the load's time, the 90 % response times and eight hours of growth are not held to the specification's bounds",
        ]
        .map(String::from)
        .to_vec();
        if self.warehouses == 1 {
            list.push("one warehouse: no order line and no payment is remote".into());
        }
        if let Some(percent) = self.remote_percent {
            list.push(format!("--remote: {percent} % of New-Orders and Payments touch another partition, in place of the specification's shares of remote warehouses"));
        }
        list
    }

    fn kernel(&mut self, partitions: u16) -> Result<Option<Box<dyn Kernel<Input>>>, BenchError> {
        self.place(partitions)?;
        let random = &mut Random::new(self.seed);
        Ok(Some(Box::new(kernel::Warehouses::new(
            self.warehouses as usize,
            random,
        ))))
    }

    fn check_state(&self, control: &mut dyn Control) -> Result<Vec<String>, BenchError> {
        let warehouses = check::conditions(control)?;
        Ok(vec![format!("conditions 1 to 12 hold in {warehouses} warehouses")])
    }

    fn check(&self, _: &mut dyn Control, _: u64, whole: &Tally) -> Result<Vec<String>, BenchError> {
        Ok(vec![format!(
            "{} orders were rolled back for an item that there is not",
            whole.outcomes[ROLLED_BACK]
        )])
    }
}
