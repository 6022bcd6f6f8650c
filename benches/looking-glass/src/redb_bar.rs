//! New-Order and Payment over `redb`, a published B-tree store: rows under their keys, one write transaction a call.

use anyhow::{Context, Result};
use redb::{
    Builder, Database, Durability, ReadableTable, TableDefinition, WriteTransaction, backends::InMemoryBackend,
};
use reprise_abi::{
    ColumnSet, HostOps, IndexTarget, LogLevel, OpError, Plans, RowHandle, RowLayout, RowTaker, ScanBatch, ScanRequest,
    random::TxnRandom,
};
use reprise_base::TxnId;
use reprise_procedure::native::NativeExit;

use crate::{digest::RowsDigest, txn::SECRET, work::Call};

type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;
type Opened<'t> = redb::Table<'t, &'static [u8], &'static [u8]>;

/// Commits of a group: the last of each is one that redb makes durable, in memory.
const GROUP: u64 = 32;
/// Redb's cache, which holds everything.
const CACHE_BYTES: usize = 4 << 30;

/// The keys of a table, each in a table of redb's: the primary key with the rows, the others with primary keys.
struct KeyedTable {
    layout: RowLayout,
    /// Columns, and where in the list of redb's tables.
    keys: Vec<(Vec<u16>, usize)>,
}

/// A database of redb's with the tables of `tpcc`.
pub struct RedbBar {
    db: Database,
    tables: Vec<KeyedTable>,
    definitions: Vec<Definition>,
    plans: Vec<Plans>,
    commits: u64,
    /// Keys of rows that have none.
    next_row: u64,
}

impl RedbBar {
    /// An empty one, in memory.
    ///
    /// # Errors
    /// Redb makes none.
    pub fn open() -> Result<Self> {
        let db = Builder::new()
            .set_cache_size(CACHE_BYTES)
            .create_with_backend(InMemoryBackend::new())
            .context("make a database of redb's")?;
        let (mut tables, mut definitions) = (Vec::new(), Vec::new());
        for table in &tpcc::MODULE.schema().tables {
            let mut keys = vec![table.primary_key.clone()];
            keys.extend(table.indexes.iter().map(|index| index.columns.clone()));
            let mut placed = Vec::new();
            for (at, columns) in keys.into_iter().enumerate() {
                let name: &'static str = Box::leak(format!("{}/{at}", table.name).into_boxed_str());
                placed.push((columns, definitions.len()));
                definitions.push(Definition::new(name));
            }
            tables.push(KeyedTable {
                layout: RowLayout::of_table(table),
                keys: placed,
            });
        }
        let plans = tables.iter().map(|_| Plans::default()).collect();
        Ok(Self {
            db,
            tables,
            definitions,
            plans,
            commits: 0,
            next_row: 0,
        })
    }

    /// Runs a call.
    ///
    /// # Errors
    /// It does not commit.
    #[inline]
    pub fn run(&mut self, call: &Call) -> Result<(), String> {
        let text_of = |error: &dyn std::fmt::Display| error.to_string();
        let mut txn = self.db.begin_write().map_err(|error| text_of(&error))?;
        self.commits += 1;
        let durability = match self.commits % GROUP {
            0 => Durability::Immediate,
            _ => Durability::None,
        };
        txn.set_durability(durability).map_err(|error| text_of(&error))?;
        let mut ops = RedbOps {
            txn: &txn,
            bar: &self.tables,
            definitions: &self.definitions,
            plans: &mut self.plans,
            next_row: &mut self.next_row,
            open: self.definitions.iter().map(|_| None).collect(),
            handles: Vec::new(),
            call,
            row: Vec::new(),
            random: None,
        };
        let ended = tpcc::MODULE.call(call.procedure, &mut ops);
        drop(ops);
        match ended {
            Ok(NativeExit::Done) => txn.commit().map_err(|error| text_of(&error)),
            other => Err(format!("{other:?}")),
        }
    }

    /// The digest of all rows.
    ///
    /// # Errors
    /// Redb does not read them.
    pub fn digest(&self) -> Result<RowsDigest> {
        let (txn, mut digest) = (self.db.begin_write()?, RowsDigest::default());
        for (number, table) in self.tables.iter().enumerate() {
            let rows = txn.open_table(self.definitions[table.keys[0].1])?;
            for entry in rows.iter()? {
                digest.add(number, entry?.1.value());
            }
        }
        Ok(digest)
    }
}

/// A transaction of redb's as a procedure sees it.
struct RedbOps<'t> {
    txn: &'t WriteTransaction,
    bar: &'t [KeyedTable],
    definitions: &'t [Definition],
    plans: &'t mut [Plans],
    next_row: &'t mut u64,
    open: Vec<Option<Opened<'t>>>,
    /// Table and key of each row that was seen.
    handles: Vec<(u16, Vec<u8>)>,
    call: &'t Call,
    row: Vec<u8>,
    random: Option<TxnRandom>,
}

fn guest(message: impl Into<String>) -> OpError {
    OpError::Guest(message.into())
}

fn of_redb(error: impl std::fmt::Display) -> OpError {
    guest(error.to_string())
}

impl<'t> RedbOps<'t> {
    fn table(&self, table: u16) -> Result<&'t KeyedTable, OpError> {
        let found = self.bar.get(table as usize);
        found.ok_or_else(|| guest(format!("table {table} is not declared")))
    }

    fn opened(&mut self, at: usize) -> Result<&mut Opened<'t>, OpError> {
        if self.open[at].is_none() {
            self.open[at] = Some(self.txn.open_table(self.definitions[at]).map_err(of_redb)?);
        }
        self.open[at].as_mut().ok_or_else(|| guest("a table is open"))
    }

    /// Copies a row to `row`. False where there is none.
    fn read(&mut self, table: u16, key: &[u8]) -> Result<bool, OpError> {
        let at = self.table(table)?.keys[0].1;
        let mut row = std::mem::take(&mut self.row);
        row.clear();
        let found = self.opened(at)?.get(key).map_err(of_redb);
        let copied = found.map(|found| found.map(|found| row.extend_from_slice(found.value())));
        let is_there = copied?.is_some();
        self.row = row;
        Ok(is_there)
    }

    fn behind(&self, handle: RowHandle) -> Result<(u16, Vec<u8>), OpError> {
        let found = self.handles.get(handle as usize).cloned();
        found.ok_or_else(|| guest(format!("row handle {handle} was never given out")))
    }

    fn key_of(&mut self, table: &KeyedTable, columns: &[u16], row: &[u8]) -> Vec<u8> {
        let mut key = Vec::new();
        table.layout.push_key(row, columns, &mut key);
        if columns.is_empty() {
            *self.next_row += 1;
            key.extend(self.next_row.to_be_bytes());
        }
        key
    }

    fn push_handle(&mut self, table: u16, key: Vec<u8>) -> RowHandle {
        self.handles.push((table, key));
        self.handles.len() as RowHandle - 1
    }
}

const NOT_HERE: &str = "this bar runs New-Order and Payment by key";

impl HostOps for RedbOps<'_> {
    fn args(&self) -> &[u8] {
        &self.call.args
    }

    fn set_result(&mut self, bytes: &[u8]) -> Result<(), OpError> {
        std::hint::black_box(bytes.to_vec());
        Ok(())
    }

    fn get(&mut self, target: IndexTarget, key: &[u8]) -> Result<Option<(RowHandle, &[u8])>, OpError> {
        if target.index != 0 {
            return Err(guest(NOT_HERE));
        }
        if !self.read(target.table, key)? {
            return Ok(None);
        }
        let handle = self.push_handle(target.table, key.to_vec());
        Ok(Some((handle, &self.row[..])))
    }

    fn row(&mut self, handle: RowHandle) -> Result<&[u8], OpError> {
        let (table, key) = self.behind(handle)?;
        match self.read(table, &key)? {
            true => Ok(&self.row),
            false => Err(guest("the row was deleted")),
        }
    }

    fn insert(&mut self, table: u16, row: &[u8]) -> Result<RowHandle, OpError> {
        let found = self.table(table)?;
        let key = self.key_of(found, &found.keys[0].0, row);
        for (number, (columns, at)) in found.keys.iter().enumerate() {
            let is_new = match number {
                0 => self.opened(*at)?.insert(&key[..], row).map_err(of_redb)?.is_none(),
                _ => {
                    let other = self.key_of(found, columns, row);
                    self.opened(*at)?
                        .insert(&other[..], &key[..])
                        .map_err(of_redb)?
                        .is_none()
                }
            };
            if !is_new {
                return Err(guest(format!("duplicate key in index {number} of table {table}")));
            }
        }
        Ok(self.push_handle(table, key))
    }

    fn update(&mut self, _: RowHandle, _: &[u8]) -> Result<(), OpError> {
        Err(guest(NOT_HERE))
    }

    fn table_of_handle(&self, handle: RowHandle) -> Option<u16> {
        self.handles.get(handle as usize).map(|(table, _)| *table)
    }

    fn patch(&mut self, table: u16, handle: RowHandle, columns: ColumnSet, values: &[u8]) -> Result<(), OpError> {
        let (_, key) = self.behind(handle)?;
        let found = self.table(table)?;
        let is_key = |column: &u16| *column < 64 && columns.0 >> column & 1 == 1;
        if found.keys.iter().any(|(columns, _)| columns.iter().any(is_key)) || !self.read(table, &key)? {
            return Err(guest(NOT_HERE));
        }
        let plan = self.plans[table as usize].of(&found.layout, columns);
        let misfit = |_| guest("the values do not fit the columns");
        if plan.is_fixed() {
            plan.check(values).map_err(misfit)?;
            plan.write(&mut self.row, values);
        } else {
            let old = std::mem::take(&mut self.row);
            found
                .layout
                .patch_row(columns, &old, values, &mut self.row)
                .map_err(misfit)?;
        }
        let row = std::mem::take(&mut self.row);
        self.opened(found.keys[0].1)?
            .insert(&key[..], &row[..])
            .map_err(of_redb)?;
        self.row = row;
        Ok(())
    }

    fn delete(&mut self, _: RowHandle) -> Result<(), OpError> {
        Err(guest(NOT_HERE))
    }

    fn add(&mut self, _: RowHandle, _: u16, _: i64) -> Result<i64, OpError> {
        Err(guest(NOT_HERE))
    }

    fn scan(&mut self, _: &ScanRequest<'_>, _: &mut RowTaker<'_>) -> Result<ScanBatch, OpError> {
        Err(guest(NOT_HERE))
    }

    fn scan_next(&mut self, _: u32, _: &mut RowTaker<'_>) -> Result<ScanBatch, OpError> {
        Err(guest(NOT_HERE))
    }

    fn count(&mut self, _: &ScanRequest<'_>) -> Result<u64, OpError> {
        Err(guest(NOT_HERE))
    }

    fn savepoint(&mut self) -> Result<u32, OpError> {
        Err(guest(NOT_HERE))
    }

    fn rollback_to(&mut self, _: u32) -> Result<(), OpError> {
        Err(guest(NOT_HERE))
    }

    fn now_us(&self) -> i64 {
        TxnId(self.call.txn_id).time_us()
    }

    fn txn_id(&self) -> u64 {
        self.call.txn_id
    }

    fn random_u64(&mut self) -> u64 {
        let txn_id = self.call.txn_id;
        self.random
            .get_or_insert_with(|| TxnRandom::new(SECRET, txn_id))
            .next_u64()
    }

    fn log(&mut self, _: LogLevel, _: &str) -> Result<(), OpError> {
        Ok(())
    }

    fn abort(&mut self, _: &str, _: &str) {}
}
