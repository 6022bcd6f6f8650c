//! The module that the simulation calls, compiled into the program, in two versions; and what makes code of its "bytes".

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use reprise_abi::{HostOps, describe::write_json};
use reprise_env::SimClock;
use reprise_host::{CallOutcome, Fault, GuestExit, InvalidModule, StartTime};
use reprise_procedure::native::{self, NativeFault, NativeModule};
use reprise_txn::{Candidate, Code, Compiler, Executor};
use sha2::{Digest, Sha256};

use crate::mutant::Mutant;

pub const NAME: &str = "sim";
/// The bytes that the log has for each version's wasm.
pub const BYTES: [&[u8]; 2] = [b"native sim 1", b"native sim 2"];
/// The value of the second version's new column in rows of the first.
pub const LATER: i64 = 7;

/// How procedures run: as they are written, or wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Sound,
    /// State survives a call.
    Smuggles,
    /// A repeat of `add` does something else than the first run.
    Drifts,
    /// An aborting call commits.
    KeepsAborts,
    /// `put` writes the first of its items alone.
    TearsWrites,
    /// `add` does not write the value back.
    LosesUpdates,
    /// Now and then a call traps.
    Traps,
}

impl Way {
    pub fn of(mutant: Option<Mutant>) -> Self {
        match mutant {
            Some(Mutant::SmuggledState) => Self::Smuggles,
            Some(Mutant::KeptAbort) => Self::KeepsAborts,
            Some(Mutant::TornWrite) => Self::TearsWrites,
            Some(Mutant::LostUpdate) => Self::LosesUpdates,
            Some(Mutant::TrappingCall) => Self::Traps,
            _ => Self::Sound,
        }
    }
}

thread_local! {
    /// The way in which the present call runs.
    static WAY: Cell<Way> = const { Cell::new(Way::Sound) };
}

fn is(way: Way) -> bool {
    WAY.get() == way
}

macro_rules! version {
    ($name:ident, [$($column:tt)*], [$($field:tt)*], $set:expr, $get:expr) => {
        #[allow(clippy::redundant_closure_call)]
        pub mod $name {
            use reprise_procedure::prelude::*;

            #[table(name = "items", primary_key(id), index(by_value, value, id), partition_by = id)]
            #[derive(Clone, Debug, PartialEq)]
            pub struct Item {
                pub id: i64,
                pub value: i64,
                pub note: Option<String>,
                /// All that was ever added; no index has it.
                pub total: i64,
                $($column)*
            }

            /// A call was here: the proof that it was, once and whole.
            #[table(name = "marks", primary_key(at, nonce), hash, index(by_place, at, nonce), partition_by = at)]
            #[derive(Clone, Debug, PartialEq)]
            pub struct Mark {
                pub at: i64,
                pub nonce: i64,
                pub txn: u64,
            }

            #[table(name = "announcements", primary_key(nonce), replicated)]
            #[derive(Clone, Debug, PartialEq)]
            pub struct Announcement {
                pub nonce: i64,
                pub txn: u64,
                pub value: i64,
            }

            #[table(name = "settings", primary_key(key), replicated)]
            #[derive(Clone, Debug, PartialEq)]
            pub struct Setting {
                pub key: i64,
                pub value: i64,
            }

            #[table(name = "draws", local)]
            #[derive(Clone, Debug, PartialEq)]
            pub struct Draw {
                pub nonce: i64,
                pub random: u64,
            }

            #[derive(Clone, Debug, PartialEq, ProcedureStruct)]
            pub struct ItemOut {
                pub id: i64,
                pub value: i64,
                pub note_bytes: i64,
                pub total: i64,
                pub later: i64,
            }

            #[derive(Clone, Debug, PartialEq, ProcedureStruct)]
            pub struct Triple {
                pub a: i64,
                pub b: i64,
                pub c: i64,
            }

            #[derive(Clone, Debug, PartialEq, ProcedureStruct)]
            pub struct Everywhere {
                pub items: Vec<ItemOut>,
                pub marks: Vec<Triple>,
            }

            #[derive(Clone, Debug, PartialEq, ProcedureStruct)]
            pub struct Here {
                pub announcements: Vec<Triple>,
                pub settings: Vec<Triple>,
                pub draws: Vec<Triple>,
            }

            fn item(id: i64, value: i64, note: u32, nonce: i64) -> Item {
                let note = (note > 0).then(|| "n".repeat(note as usize));
                let mut item = Item { id, value, note, total: 0, $($field)* };
                ($set)(&mut item, nonce);
                item
            }

            fn mark(tx: &Txn, at: i64, nonce: i64) -> Result<(), Abort> {
                let marked = Mark::insert(tx, &Mark { at, nonce, txn: tx.txn_id() });
                marked.map(drop).map_err(|_| Abort::new("twice", "this call was made before"))
            }

            #[procedure(partition_by(ids))]
            pub fn put(
                tx: &Txn,
                ids: Vec<i64>,
                nonce: i64,
                values: Vec<Option<i64>>,
                note: u32,
                abort: bool,
            ) -> Result<Vec<Option<i64>>, Abort> {
                let mut before = Vec::new();
                for (id, value) in ids.iter().zip(values) {
                    mark(tx, *id, nonce)?;
                    let found = Item::get(tx, *id);
                    before.push(found.as_ref().map(|row| row.value));
                    if before.len() > 1 && super::is(super::Way::TearsWrites) {
                        continue;
                    }
                    match (found, value) {
                        (Some(mut row), Some(value)) => {
                            let handle = item(*id, value, note, nonce);
                            (row.value, row.note) = (handle.value, handle.note.clone());
                            ($set)(&mut row, nonce);
                            row.update(tx)?;
                        }
                        (Some(row), None) => row.delete(tx),
                        (None, Some(value)) => {
                            Item::insert(tx, &item(*id, value, note, nonce))?;
                        }
                        (None, None) => {}
                    }
                }
                match abort {
                    false => Ok(before),
                    true => Err(Abort::new("asked_to", "the call asked for its own end")),
                }
            }

            #[procedure(partition_by(id))]
            pub fn add(tx: &Txn, id: i64, nonce: i64, amount: i64) -> Result<i64, Abort> {
                mark(tx, id, nonce)?;
                let amount = amount + i64::from(super::is(super::Way::Drifts));
                let Some(mut row) = Item::get(tx, id) else {
                    if amount < 0 {
                        return Err(Abort::new("negative", "there is nothing to take from"));
                    }
                    Item::insert(tx, &item(id, amount, 0, nonce))?;
                    return Ok(amount);
                };
                if row.value + amount < 0 {
                    return Err(Abort::new("negative", "there is less than is to be taken"));
                }
                if amount % 3 == 0 && !super::is(super::Way::LosesUpdates) {
                    row.value += amount;
                    row.update(tx)?;
                }
                Ok(row.add(tx, Item::TOTAL, amount))
            }

            /// Deletes this partition's items of small value, the smallest first.
            #[procedure(partition_by(id), log = "physiological")]
            pub fn sweep(tx: &Txn, id: i64, nonce: i64, below: i64, limit: u32) -> Result<Vec<i64>, Abort> {
                mark(tx, id, nonce)?;
                let found = Item::scan_local_by_value(tx).range(..(below,)).limit(limit);
                let rows: Vec<_> = found.into_iter().collect();
                let ids = rows.iter().map(|row| row.id).collect();
                rows.into_iter().for_each(|row| row.delete(tx));
                Ok(ids)
            }

            /// Every third takes the oldest away.
            #[procedure(partition_by(id))]
            pub fn draw(tx: &Txn, id: i64, nonce: i64) -> Result<i64, Abort> {
                mark(tx, id, nonce)?;
                let random = tx.random();
                Draw::insert(tx, &Draw { nonce, random })?;
                if nonce % 3 == 0
                    && let Some(oldest) = Draw::scan(tx).first()
                {
                    oldest.delete(tx);
                }
                Ok(random as i64)
            }

            #[procedure(all_partitions)]
            pub fn announce(tx: &Txn, nonce: i64, value: i64) -> Result<(), Abort> {
                let row = Announcement { nonce, txn: tx.txn_id(), value };
                Announcement::insert(tx, &row).map_err(|_| Abort::new("twice", "this call was made before"))?;
                let key = value % 5;
                match (Setting::get(tx, key), value % 4 == 0) {
                    (Some(row), true) => row.delete(tx),
                    (None, true) => {}
                    (Some(mut row), false) => {
                        row.value = nonce;
                        row.update(tx)?;
                    }
                    (None, false) => {
                        Setting::insert(tx, &Setting { key, value: nonce })?;
                    }
                }
                Ok(())
            }

            #[procedure(partition_by(ids), read_only)]
            pub fn read(tx: &Txn, ids: Vec<i64>) -> Vec<Option<i64>> {
                ids.iter().map(|id| Item::get(tx, *id).map(|row| row.value)).collect()
            }

            #[procedure(all_partitions, read_only)]
            pub fn everywhere(tx: &Txn) -> Everywhere {
                let items = Item::scan(tx).into_iter().map(|row| ItemOut {
                    id: row.id,
                    value: row.value,
                    total: row.total,
                    note_bytes: row.note.as_ref().map_or(0, |note| note.len() as i64),
                    later: ($get)(&row),
                });
                let items = items.collect();
                let marks = Mark::scan_by_place(tx).into_iter();
                let marks = marks.map(|row| Triple { a: row.at, b: row.nonce, c: row.txn as i64 });
                Everywhere { items, marks: marks.collect() }
            }

            #[procedure(partition_by(id), read_only)]
            pub fn here(tx: &Txn, id: i64) -> Here {
                let _ = id;
                let announcements = Announcement::scan(tx).into_iter();
                let settings = Setting::scan(tx).into_iter();
                let draws = Draw::scan(tx).into_iter();
                Here {
                    announcements: announcements.map(|row| Triple { a: row.nonce, b: row.txn as i64, c: row.value }).collect(),
                    settings: settings.map(|row| Triple { a: row.key, b: row.value, c: 0 }).collect(),
                    draws: draws.map(|row| Triple { a: row.nonce, b: row.random as i64, c: 0 }).collect(),
                }
            }

            reprise_procedure::module! {
                tables: [Item, Mark, Announcement, Setting, Draw],
                procedures: [put, add, sweep, draw, announce, read, everywhere, here],
            }
        }
    };
}

version!(first, [], [], |_: &mut Item, _: i64| {}, |_: &Item| { super::LATER });
version!(
    second,
    [#[column(default = 7)] pub later: i64,],
    [later: super::LATER],
    |item: &mut Item, nonce: i64| item.later = nonce,
    |item: &Item| item.later
);

/// Makes code of [`BYTES`]. It is for the simulation the same as the engine of wasm is for the server.
pub struct NativeCompiler {
    pub way: Way,
    pub clock: Arc<SimClock>,
    /// Microseconds that each call takes.
    pub pace_us: Arc<AtomicU64>,
}

struct NativeCode(&'static NativeModule, Ways);

/// How a module's procedures run.
#[derive(Clone)]
struct Ways {
    way: Way,
    clock: Arc<SimClock>,
    pace_us: Arc<AtomicU64>,
}

impl Compiler for NativeCompiler {
    fn compile(&self, name: &str, wasm: &Arc<[u8]>, _: &StartTime) -> Result<Candidate, InvalidModule> {
        let version = BYTES.iter().position(|bytes| *bytes == &wasm[..]);
        let version = version.ok_or_else(|| InvalidModule::new("no module of the simulation"))?;
        let module: &'static NativeModule = match version {
            0 => &first::MODULE,
            _ => &second::MODULE,
        };
        Ok(Candidate {
            name: name.to_owned(),
            hash: Sha256::digest(wasm).into(),
            wasm_bytes: wasm.len() as u64,
            description: write_json(&module.schema()).into_bytes().into(),
            schema: module.schema(),
            code: Arc::new(NativeCode(
                module,
                Ways {
                    way: self.way,
                    clock: self.clock.clone(),
                    pace_us: self.pace_us.clone(),
                },
            )),
        })
    }

    fn settings_hash(&self) -> u64 {
        0x5e77_1265
    }
}

impl Code for NativeCode {
    fn instantiate(&self) -> Result<Box<dyn Executor>, String> {
        Ok(Box::new(NativeExecutor {
            module: self.0,
            ways: self.1.clone(),
            calls: 0,
        }))
    }
}

struct NativeExecutor {
    module: &'static NativeModule,
    ways: Ways,
    /// State that survives a call, which no module may have.
    calls: u64,
}

impl Executor for NativeExecutor {
    fn call(&mut self, procedure: usize, ops: &mut dyn HostOps) -> CallOutcome {
        self.calls += 1;
        let name = self.module.procedures[procedure].info.name;
        WAY.set(self.ways.way);
        if is(Way::Traps) && self.calls.is_multiple_of(100) {
            let kind = Err(Fault::trap("mutant", "without a reason"));
            return CallOutcome { kind, fuel_used: 0 };
        }
        let pace_us = self.ways.pace_us.load(Ordering::Relaxed);
        self.ways.clock.advance_us(pace_us as i64);
        let kind = match self.module.call(procedure, ops) {
            Ok(native::NativeExit::Done) => {
                if is(Way::Smuggles) && name == "add" {
                    ops.set_result(&self.calls.to_le_bytes()).expect("short enough");
                }
                Ok(GuestExit::Returned)
            }
            Ok(native::NativeExit::Aborted) if is(Way::KeepsAborts) && name == "put" => {
                ops.set_result(&[0]).expect("short enough");
                Ok(GuestExit::Returned)
            }
            Ok(native::NativeExit::Aborted) => Ok(GuestExit::Aborted),
            Err(NativeFault::Host(error)) => Err(Fault::of_op(error)),
            Err(NativeFault::Panic(message)) => Err(Fault::trap("panic", message)),
        };
        CallOutcome { kind, fuel_used: 0 }
    }
}
