//! The database as one map a table, one call after the other.

use std::collections::{BTreeMap, BTreeSet};

use reprise_abi::Field;
use reprise_base::PartitionId;
use reprise_txn::partition_of_field;

use crate::{
    module::LATER,
    op::{Op, Ret},
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Item {
    pub value: i64,
    pub note_bytes: i64,
    pub total: i64,
    pub later: i64,
}

/// Everything that is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    pub items: BTreeMap<i64, Item>,
    /// Place and call, to its transaction.
    pub marks: BTreeMap<(i64, i64), u64>,
    pub announcements: BTreeMap<i64, (u64, i64)>,
    pub settings: BTreeMap<i64, i64>,
    /// Draws by partition, the oldest first.
    pub draws: BTreeMap<u16, Vec<(i64, u64)>>,
}

/// A call at its place in the order.
pub struct At<'a> {
    pub op: &'a Op,
    pub nonce: i64,
    pub txn: u64,
    pub is_second: bool,
    /// The number that the database drew, which the model can't know.
    pub random: u64,
}

pub struct Model {
    pub tables: Tables,
    partitions: u16,
}

impl Model {
    pub fn new(partitions: u16) -> Self {
        Self {
            tables: Tables::default(),
            partitions,
        }
    }

    pub fn place(&self, id: i64) -> PartitionId {
        partition_of_field(&Field::Int(id), self.partitions)
    }

    /// Returns the answer of the call, or the code of its abort.
    pub fn apply(&mut self, at: &At<'_>) -> Result<Ret, &'static str> {
        match at.op {
            Op::Put { abort: true, .. } => Err("asked_to"),
            Op::Put { ids, values, note, .. } => Ok(self.put(at, ids, values, *note)),
            Op::Add { id, amount } => self.add(at, *id, *amount),
            Op::Sweep { id, below, limit } => Ok(self.sweep(at, *id, *below, *limit)),
            Op::Draw { id } => Ok(self.draw(at, *id)),
            Op::Announce { value } => Ok(self.announce(at, *value)),
            Op::Read { ids } => Ok(Ret::Values(ids.iter().map(|id| self.value(*id)).collect())),
        }
    }

    fn value(&self, id: i64) -> Option<i64> {
        self.tables.items.get(&id).map(|item| item.value)
    }

    fn mark(&mut self, at: &At<'_>, id: i64) {
        self.tables.marks.insert((id, at.nonce), at.txn);
    }

    fn later(at: &At<'_>) -> i64 {
        if at.is_second { at.nonce } else { LATER }
    }

    fn put(&mut self, at: &At<'_>, ids: &[i64], values: &[Option<i64>], note: u32) -> Ret {
        let mut before = Vec::new();
        for (id, value) in ids.iter().zip(values) {
            self.mark(at, *id);
            before.push(self.value(*id));
            match value {
                None => drop(self.tables.items.remove(id)),
                Some(value) => {
                    let item = Item {
                        value: *value,
                        note_bytes: note as i64,
                        total: self.tables.items.get(id).map_or(0, |item| item.total),
                        later: Self::later(at),
                    };
                    self.tables.items.insert(*id, item);
                }
            }
        }
        Ret::Values(before)
    }

    fn add(&mut self, at: &At<'_>, id: i64, amount: i64) -> Result<Ret, &'static str> {
        let before = self.value(id).unwrap_or(0);
        if before + amount < 0 {
            return Err("negative");
        }
        self.mark(at, id);
        let Some(item) = self.tables.items.get_mut(&id) else {
            let fresh = Item {
                value: amount,
                later: Self::later(at),
                ..Item::default()
            };
            self.tables.items.insert(id, fresh);
            return Ok(Ret::Number(amount));
        };
        if amount % 3 == 0 {
            item.value += amount;
        }
        item.total += amount;
        Ok(Ret::Number(item.total))
    }

    fn sweep(&mut self, at: &At<'_>, id: i64, below: i64, limit: u32) -> Ret {
        self.mark(at, id);
        let place = self.place(id);
        let items = self.tables.items.iter();
        let small = items.filter(|(id, item)| item.value < below && self.place(**id) == place);
        let small: BTreeSet<_> = small.map(|(id, item)| (item.value, *id)).collect();
        let ids: Vec<_> = small.into_iter().take(limit as usize).map(|(_, id)| id).collect();
        self.tables.items.retain(|id, _| !ids.contains(id));
        Ret::Ids(ids)
    }

    fn draw(&mut self, at: &At<'_>, id: i64) -> Ret {
        self.mark(at, id);
        let place = self.place(id);
        let draws = self.tables.draws.entry(place.0).or_default();
        draws.push((at.nonce, at.random));
        if at.nonce % 3 == 0 {
            draws.remove(0);
        }
        Ret::Number(at.random as i64)
    }

    fn announce(&mut self, at: &At<'_>, value: i64) -> Ret {
        let tables = &mut self.tables;
        tables.announcements.insert(at.nonce, (at.txn, value));
        match value % 4 {
            0 => tables.settings.remove(&(value % 5)),
            _ => tables.settings.insert(value % 5, at.nonce),
        };
        Ret::Nothing
    }
}

/// Returns a short text of the differences between two states of the tables.
pub fn difference(expected: &Tables, found: &Tables) -> Option<String> {
    fn of<K: Ord + std::fmt::Debug + Clone, V: PartialEq + std::fmt::Debug>(
        table: &str,
        expected: &BTreeMap<K, V>,
        found: &BTreeMap<K, V>,
    ) -> Option<String> {
        let keys: BTreeSet<_> = expected.keys().chain(found.keys()).collect();
        let differs = |key: &&&K| expected.get(key) != found.get(key);
        let key = keys.iter().find(differs)?;
        let (should, is) = (expected.get(key), found.get(key));
        Some(format!("{table} {key:?}: expected {should:?}, found {is:?}"))
    }
    of("items", &expected.items, &found.items)
        .or_else(|| of("marks", &expected.marks, &found.marks))
        .or_else(|| of("announcements", &expected.announcements, &found.announcements))
        .or_else(|| of("settings", &expected.settings, &found.settings))
        .or_else(|| of("draws", &expected.draws, &found.draws))
}
