//! A cursor shows rows, order and contents as they were when it was opened, whatever the transaction does meanwhile: random
//! transactions against a model that takes a scan's rows first.

use std::{cmp::Reverse, collections::BTreeMap};

use crate::bed::{Random, deployed, run};
use reprise_abi::{
    ColumnPlan, ColumnSet, Field, Handles, HostOps, IndexTarget, OpError, RowHandle, RowLayout, ScalarType, ScanFlags,
    ScanRequest,
};
use reprise_base::{
    MemoryKind, MemoryLedger,
    limits::{MEMORY_MAX_LIMIT, WRITE_SET_BYTES_MAX},
};
use reprise_storage::{Store, TableId};
use reprise_txn::{Deployed, Failure, Outcome, TxnScratch};

/// Tables with a key and without, placed by `w`, and a replicated one; each with an index that many rows share a key of.
const SCHEMA: &str = r#"{"abi":1,"tables":[
    {"name":"keyed","columns":[{"name":"w","type":"u32"},{"name":"k","type":"u32"},{"name":"v","type":"u32"},{"name":"n","type":"u32"}],
     "primary_key":["w","k"],"indexes":[{"name":"by_v","columns":["v"],"unique":false}],"placement":{"by":"w"}},
    {"name":"copied","columns":[{"name":"w","type":"u32"},{"name":"k","type":"u32"},{"name":"v","type":"u32"},{"name":"n","type":"u32"}],
     "primary_key":["w","k"],"indexes":[{"name":"by_v","columns":["v"],"unique":false}],"placement":"replicated"},
    {"name":"keyless","columns":[{"name":"w","type":"u32"},{"name":"k","type":"u32"},{"name":"v","type":"u32"},{"name":"n","type":"u32"}],
     "primary_key":[],"indexes":[{"name":"by_v","columns":["v"],"unique":false}],"placement":{"by":"w"}}],
  "procedures":[{"name":"p","params":[],"returns":"unit","partitioning":"all"}]}"#;
const COPIED: u16 = 1;
const KEYLESS: u16 = 2;
const ROW_BYTES: usize = 16;

struct Bench {
    stores: Vec<Store>,
    deployed: Deployed,
    frame: TxnScratch,
}

impl Bench {
    fn new(partitions: usize) -> Self {
        let mut stores: Vec<_> = (0..partitions).map(|_| Store::new()).collect();
        let deployed = deployed(SCHEMA, &mut stores);
        Self {
            stores,
            deployed,
            frame: TxnScratch::default(),
        }
    }

    /// On all partitions, or on this one alone.
    fn run(&mut self, only: Option<u16>, body: impl FnMut(&mut dyn HostOps) -> Result<(), OpError>) -> Outcome {
        run(&mut self.stores, &self.deployed, &mut self.frame, only, body)
    }

    fn digests(&self) -> Vec<u64> {
        self.stores.iter().map(Store::digest).collect()
    }
}

fn layout() -> RowLayout {
    RowLayout::from_types([(ScalarType::U32, false); 4].into_iter())
}

type Row = [u32; 4];

fn encoded(row: Row) -> Vec<u8> {
    layout().build(&row.map(|value| Field::Uint(value.into())))
}

fn decoded(bytes: &[u8]) -> Row {
    let layout = layout();
    [0, 1, 2, 3].map(|column| match layout.field(bytes, column) {
        Field::Uint(value) => value as u32,
        other => panic!("{other:?}"),
    })
}

/// A row by table and the order of insertion.
type Id = (u16, u32);

#[derive(Clone, Copy)]
struct Seen {
    handle: RowHandle,
    id: Id,
    /// The row's last change when it was read.
    change: u32,
}

struct Open {
    cursor: u32,
    rest: std::vec::IntoIter<(Id, Row, u32)>,
    table: u16,
}

/// The transaction as it should be.
struct Model {
    partitions: u32,
    rows: BTreeMap<Id, Row>,
    changes: u32,
    changed: BTreeMap<Id, u32>,
    journal: Vec<(Id, Option<Row>)>,
}

impl Model {
    fn change_of(&self, id: Id) -> u32 {
        self.changed.get(&id).copied().unwrap_or(0)
    }

    fn write(&mut self, id: Id, row: Option<Row>) {
        let before = match row {
            Some(row) => self.rows.insert(id, row),
            None => self.rows.remove(&id),
        };
        self.journal.push((id, before));
        if before.is_some() {
            self.changes += 1;
            self.changed.insert(id, self.changes);
        }
    }

    fn roll_back(&mut self, len: usize) {
        for (id, before) in self.journal.split_off(len).into_iter().rev() {
            if before.is_some() {
                self.changes += 1;
                self.changed.insert(id, self.changes);
            }
            match before {
                Some(row) => self.rows.insert(id, row),
                None => self.rows.remove(&id),
            };
        }
    }

    fn of_key(&self, table: u16, row: Row) -> Option<Id> {
        let mut rows = self.rows.range((table, 0)..(table + 1, 0));
        rows.find(|(_, other)| other[..2] == row[..2]).map(|(id, _)| *id)
    }

    /// Returns the present rows of a scan, from a lower bound of `v` if the index is by it.
    fn scan(&self, table: u16, index: u16, reverse: bool, limit: u32, from: Option<u32>) -> Vec<(Id, Row, u32)> {
        let rows = self.rows.range((table, 0)..(table + 1, 0));
        let wanted = rows.filter(|(_, row)| from.is_none_or(|from| row[2] >= from));
        let mut rows: Vec<_> = wanted.map(|(id, row)| (*id, *row, self.change_of(*id))).collect();
        let key = |row: &Row| {
            let by_v = if index == 1 { row[2] } else { 0 };
            if table == KEYLESS {
                (by_v, 0, 0)
            } else {
                (by_v, row[0], row[1])
            }
        };
        let store = |row: &Row| if table == COPIED { 0 } else { row[0] % self.partitions };
        match reverse {
            false => rows.sort_by_key(|(id, row, _)| (key(row), store(row), id.1)),
            true => rows.sort_by_key(|(id, row, _)| (Reverse(key(row)), store(row), Reverse(id.1))),
        }
        if limit > 0 {
            rows.truncate(limit as usize);
        }
        rows
    }
}

/// A random transaction, which compares all that it is shown with the model.
struct Play<'o> {
    ops: &'o mut dyn HostOps,
    random: Random,
    model: Model,
    seen: Vec<Seen>,
    open: Vec<Open>,
    savepoints: Vec<(u32, usize)>,
    inserted: u32,
    /// Rows of this `w` alone, and scans of the call's own rows.
    only: Option<u32>,
    /// How many rows a buffer takes.
    batches: Random,
}

impl Play<'_> {
    fn step(&mut self) -> Result<(), OpError> {
        match self.random.below(16) {
            0..4 => self.insert(),
            4 | 5 => self.scan(),
            6..9 => self.go_on(),
            9 => self.update(),
            10 => self.patch(),
            11 => self.delete(),
            12 => self.add(),
            13 => self.get(),
            14 => self.savepoint_or_back(),
            _ => self.reread_or_close(),
        }
    }

    fn row(&mut self) -> Row {
        let w = self.random.below(6);
        [
            self.only.unwrap_or(w),
            self.random.below(40),
            self.random.below(8),
            self.random.below(1_000),
        ]
    }

    fn insert(&mut self) -> Result<(), OpError> {
        let (table, row) = (self.table(), self.row());
        let taken = table != KEYLESS && self.model.of_key(table, row).is_some();
        match self.ops.insert(table, &encoded(row)) {
            Ok(handle) => {
                assert!(!taken);
                let id = (table, self.inserted);
                self.inserted += 1;
                self.model.write(id, Some(row));
                self.seen.push(Seen { handle, id, change: 0 });
                Ok(())
            }
            Err(OpError::DuplicateKey { .. }) if taken => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn table(&mut self) -> u16 {
        match (self.random.below(3) as u16, self.only) {
            (COPIED, Some(_)) => 0,
            (table, _) => table,
        }
    }

    fn scan(&mut self) -> Result<(), OpError> {
        if self.open.len() > 8 {
            return Ok(());
        }
        let (table, index) = (self.table(), self.random.below(2) as u16);
        let (reverse, limit) = (self.random.below(2) == 1, self.random.below(3) * self.random.below(12));
        let from = (index == 1 && self.random.below(2) == 1).then(|| self.random.below(8));
        let lower = from.map_or(Vec::new(), |from| from.to_be_bytes().to_vec());
        let mut flags = if reverse { ScanFlags::REVERSE } else { 0 };
        if self.only.is_some() {
            flags |= ScanFlags::LOCAL;
        }
        let request = ScanRequest {
            target: IndexTarget { table, index },
            flags: ScanFlags(flags),
            limit,
            lower: &lower,
            upper: &[],
        };
        let rest = self.model.scan(table, index, reverse, limit, from);
        assert_eq!(self.ops.count(&request)?, rest.len() as u64);
        let open = Open {
            cursor: 0,
            rest: rest.into_iter(),
            table,
        };
        self.read(open, Some(&request))
    }

    fn go_on(&mut self) -> Result<(), OpError> {
        if self.open.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.open.len() as u32) as usize;
        let open = self.open.swap_remove(at);
        self.read(open, None)
    }

    /// Reads some rows of a scan that begins or continues.
    fn read(&mut self, mut open: Open, request: Option<&ScanRequest<'_>>) -> Result<(), OpError> {
        let rows_max = self.batches.below(5) as usize;
        let mut found = Vec::new();
        let batch = if self.batches.below(2) == 0 {
            let mut visit = |handle, row: &[u8]| {
                let is_room = found.len() < rows_max;
                is_room.then(|| found.push((handle, decoded(row)))).is_some()
            };
            match request {
                Some(request) => self.ops.scan(request, &mut visit)?,
                None => self.ops.scan_next(open.cursor, &mut visit)?,
            }
        } else {
            let (layout, mut out) = (layout(), vec![0; rows_max * (8 + ROW_BYTES)]);
            let plan = ColumnPlan::new(&layout, ColumnSet(0b1111));
            let (batch, filled) = match request {
                Some(request) => self.ops.scan_columns(request, &plan, &mut out)?,
                None => self.ops.scan_next_columns(open.cursor, &plan, &mut out)?,
            };
            for shown in out[..filled].chunks(8 + ROW_BYTES) {
                let handle = u32::from_le_bytes(shown[..4].try_into().expect("4 bytes"));
                found.push((handle, decoded(&shown[8..])));
            }
            batch
        };
        assert_eq!(batch.rows as usize, found.len());
        for (handle, row) in found {
            let (id, expected, change) = open.rest.next().expect("no more rows than there were");
            assert_eq!(row, expected);
            self.seen.push(Seen { handle, id, change });
        }
        match batch.cursor {
            0 => assert_eq!(open.rest.len(), 0, "all rows that there were"),
            cursor => self.open.push(Open { cursor, ..open }),
        }
        Ok(())
    }

    /// Some handle of a live row, and whether its copy may be written back.
    fn some_row(&mut self) -> Option<(usize, Seen, Row, bool)> {
        if self.seen.is_empty() {
            return None;
        }
        let at = self.random.below(self.seen.len() as u32) as usize;
        let seen = self.seen[at];
        let row = self.model.rows.get(&seen.id)?;
        Some((at, seen, *row, self.model.change_of(seen.id) == seen.change))
    }

    /// Notes a write under a handle: the copy of one that was current is so still.
    fn written(&mut self, at: usize, is_current: bool) {
        if is_current {
            self.seen[at].change = self.model.change_of(self.seen[at].id);
        }
    }

    /// Now and then, that a copy which is too old is refused; the transaction has ended then.
    fn check_refusal(&mut self, result: impl FnOnce(&mut Self) -> Result<(), OpError>) -> Result<(), OpError> {
        if self.random.below(40) > 0 {
            return Ok(());
        }
        match result(self) {
            Err(OpError::Guest(told)) if told.contains("was changed by this call after it was read") => {
                Err(OpError::Guest("ended by an old copy".into()))
            }
            other => panic!("{other:?} of an old copy"),
        }
    }

    fn update(&mut self) -> Result<(), OpError> {
        let Some((at, seen, row, is_current)) = self.some_row() else {
            return Ok(());
        };
        let mut changed = self.row();
        changed[..2].copy_from_slice(&row[..2]);
        if seen.id.0 != COPIED && self.random.below(2) == 0 {
            // To another key of the same place.
            changed[1] = self.random.below(40);
        }
        if !is_current {
            return self.check_refusal(|play| play.ops.update(seen.handle, &encoded(changed)));
        }
        let holder = self.model.of_key(seen.id.0, changed);
        let taken = seen.id.0 != KEYLESS && holder.is_some_and(|holder| holder != seen.id);
        match self.ops.update(seen.handle, &encoded(changed)) {
            Err(OpError::DuplicateKey { .. }) if taken => return Ok(()),
            result => result?,
        }
        assert!(!taken);
        self.model.write(seen.id, Some(changed));
        self.written(at, true);
        Ok(())
    }

    /// Writes one column of a row, or of several.
    fn patch(&mut self) -> Result<(), OpError> {
        let Some((at, seen, mut row, is_current)) = self.some_row() else {
            return Ok(());
        };
        let (column, value) = (2 + self.random.below(2) as usize, self.random.below(8));
        let (columns, bytes) = (ColumnSet(1 << column), value.to_le_bytes());
        if !is_current {
            return self.check_refusal(|play| play.ops.patch(seen.id.0, seen.handle, columns, &bytes));
        }
        // A batch may name one row twice, through one handle.
        let times = 1 + self.random.below(2) as usize;
        let (handles, values) = (vec![seen.handle; times], bytes.repeat(times));
        self.ops
            .multi_patch(seen.id.0, Handles::Numbers(&handles), columns, 4, &values)?;
        row[column] = value;
        (0..times).for_each(|_| self.model.write(seen.id, Some(row)));
        self.written(at, true);
        Ok(())
    }

    fn delete(&mut self) -> Result<(), OpError> {
        let Some((_, seen, ..)) = self.some_row() else {
            return Ok(());
        };
        self.ops.delete(seen.handle)?;
        self.model.write(seen.id, None);
        Ok(())
    }

    fn add(&mut self) -> Result<(), OpError> {
        let Some((at, seen, mut row, is_current)) = self.some_row() else {
            return Ok(());
        };
        row[3] += 1;
        let by_key = seen.id.0 != KEYLESS && self.random.below(2) == 0;
        let sum = match by_key {
            true => {
                let key = [row[0].to_be_bytes(), row[1].to_be_bytes()].concat();
                let target = IndexTarget {
                    table: seen.id.0,
                    index: 0,
                };
                self.ops.add_by_key(target, &key, 3, 1)?.expect("the row is there")
            }
            false => self.ops.add(seen.handle, 3, 1)?,
        };
        assert_eq!(sum, row[3] as i64);
        self.model.write(seen.id, Some(row));
        self.written(at, is_current && !by_key);
        Ok(())
    }

    fn get(&mut self) -> Result<(), OpError> {
        let (table, row) = (self.table(), self.row());
        if table == KEYLESS {
            return Ok(());
        }
        let expected = self.model.of_key(table, row);
        let key = [row[0].to_be_bytes(), row[1].to_be_bytes()].concat();
        let found = self.ops.get(IndexTarget { table, index: 0 }, &key)?;
        let found = found.map(|(handle, row)| (handle, decoded(row)));
        assert_eq!(found.map(|(_, row)| row), expected.map(|id| self.model.rows[&id]));
        if let (Some((handle, _)), Some(id)) = (found, expected) {
            let change = self.model.change_of(id);
            self.seen.push(Seen { handle, id, change });
        }
        Ok(())
    }

    fn savepoint_or_back(&mut self) -> Result<(), OpError> {
        if self.savepoints.is_empty() || self.random.below(2) == 0 {
            let savepoint = self.ops.savepoint()?;
            self.savepoints.truncate(savepoint as usize);
            self.savepoints.push((savepoint, self.model.journal.len()));
            return Ok(());
        }
        let at = self.random.below(self.savepoints.len() as u32) as usize;
        let (savepoint, len) = self.savepoints[at];
        self.savepoints.truncate(at + 1);
        self.ops.rollback_to(savepoint)?;
        self.model.roll_back(len);
        Ok(())
    }

    fn reread_or_close(&mut self) -> Result<(), OpError> {
        if !self.open.is_empty() && self.random.below(3) == 0 {
            let at = self.random.below(self.open.len() as u32) as usize;
            let open = self.open.swap_remove(at);
            assert_eq!(self.ops.table_of_cursor(open.cursor), Some(open.table));
            return self.ops.scan_close(open.cursor);
        }
        let Some((at, seen, row, _)) = self.some_row() else {
            return Ok(());
        };
        assert_eq!(decoded(self.ops.row(seen.handle)?), row);
        self.written(at, true);
        Ok(())
    }
}

/// Plays a transaction of this many steps, with buffers by the second seed.
fn play(bench: &mut Bench, only: Option<u16>, seed: u64, batches: u64, steps: u32) -> Outcome {
    println!(
        "seed {seed}, buffers {batches}, partitions {}, only {only:?}",
        bench.stores.len()
    );
    let partitions = bench.stores.len() as u32;
    bench.run(only, |ops| {
        let mut play = Play {
            ops,
            random: Random(seed),
            model: Model {
                partitions,
                rows: BTreeMap::new(),
                changes: 0,
                changed: BTreeMap::new(),
                journal: Vec::new(),
            },
            seen: Vec::new(),
            open: Vec::new(),
            savepoints: Vec::new(),
            inserted: 0,
            only: only.map(u32::from),
            batches: Random(batches),
        };
        for _ in 0..steps {
            play.step()?;
        }
        while let Some(open) = play.open.pop() {
            play.read(open, None)?;
        }
        Ok(())
    })
}

#[test]
fn random_transactions_are_shown_what_there_was() {
    let (mut committed, mut ended) = (0, 0);
    for seed in 0..400 {
        for (partitions, only) in [(1, Some(0)), (1, None), (2, None), (3, None), (3, Some(1))] {
            let mut bench = Bench::new(partitions);
            let before = bench.digests();
            let outcome = play(&mut bench, only, seed, seed + 1_000, 60 + seed as u32 % 200);
            match &outcome {
                Outcome::Commit(_) => committed += 1,
                Outcome::Fail(Failure::Trapped { message, .. }) => {
                    assert!(message.contains("ended by an old copy"), "{message}");
                    assert_eq!(bench.digests(), before, "nothing is left");
                    ended += 1;
                }
                other => panic!("{other:?}"),
            }
            // Run again, as a replay does.
            let mut again = Bench::new(partitions);
            again.frame.begin_replay();
            assert_eq!(
                play(&mut again, only, seed, seed + 1_000, 60 + seed as u32 % 200),
                outcome
            );
            assert_eq!(again.digests(), bench.digests());
        }
    }
    assert!(committed > 100 && ended > 100, "{committed} {ended}");
}

/// A loop over an index that moves each row ahead of itself, in buffers of `each` rows. Returns the number of turns.
fn raise(ops: &mut dyn HostOps, rows: u32, each: usize) -> Result<u32, OpError> {
    for k in 0..rows {
        ops.insert(0, &encoded([1, k, k % 8, 0]))?;
    }
    let request = ScanRequest {
        target: IndexTarget { table: 0, index: 1 },
        flags: ScanFlags(ScanFlags::LOCAL),
        limit: 0,
        lower: &[],
        upper: &[],
    };
    let (mut turns, mut cursor) = (0, None);
    while cursor != Some(0) {
        let mut found = Vec::new();
        let mut visit = |handle, row: &[u8]| {
            let is_room = found.len() < each;
            is_room.then(|| found.push((handle, decoded(row)))).is_some()
        };
        let batch = match cursor {
            None => ops.scan(&request, &mut visit)?,
            Some(cursor) => ops.scan_next(cursor, &mut visit)?,
        };
        cursor = Some(batch.cursor);
        for (handle, mut row) in found {
            row[2] += 3;
            ops.update(handle, &encoded(row))?;
            turns += 1;
        }
    }
    Ok(turns)
}

#[test]
fn a_loop_meets_each_row_once_whatever_its_buffer() {
    let mut digests = Vec::new();
    for each in [1, 7, 128, 10_000] {
        let mut bench = Bench::new(3);
        let mut turns = 0;
        let outcome = bench.run(Some(1), |ops| {
            turns = raise(ops, 1_000, each)?;
            Ok(())
        });
        assert!(matches!(outcome, Outcome::Commit(_)), "{outcome:?}");
        assert_eq!(turns, 1_000);
        digests.push(bench.digests());
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]));
}

#[test]
fn kept_rows_of_a_cursor_count_in_the_write_set_and_are_released() {
    let rows = 300_000_u32;
    // Eight bytes a row, and what tells which are ahead: some cursors over all rows fit, and more do not.
    for (cursors, fits) in [(4, true), (60, false)] {
        for partitions in [1, 2] {
            let mut bench = Bench::new(partitions);
            for part in 0..10 {
                let filled = bench.run(None, |ops| {
                    (0..rows / 10).try_for_each(|k| ops.insert(0, &encoded([1, part * rows / 10 + k, 0, 0])).map(drop))
                });
                assert!(matches!(filled, Outcome::Commit(_)));
            }
            let before = bench.digests();
            let target = IndexTarget { table: 0, index: 0 };
            let outcome = bench.run(None, |ops| {
                let request = ScanRequest {
                    target,
                    flags: ScanFlags(0),
                    limit: 0,
                    lower: &[],
                    upper: &[],
                };
                let mut open = Vec::new();
                for _ in 0..cursors {
                    open.push(ops.scan(&request, &mut |_, _| false)?.cursor);
                }
                ops.insert(0, &encoded([1, rows, 0, 0]))?;
                // Given up one by one, as many again fit in their place.
                for cursor in open {
                    ops.scan_close(cursor)?;
                    let again = ops.scan(&request, &mut |_, _| false)?.cursor;
                    ops.add_by_key(target, &[1_u32.to_be_bytes(), 5_u32.to_be_bytes()].concat(), 3, 1)?;
                    ops.scan_close(again)?;
                }
                Ok(())
            });
            match (&outcome, fits) {
                (Outcome::Commit(_), true) => {}
                (Outcome::Fail(Failure::Limit { limit, max, .. }), false) => {
                    assert_eq!((limit.as_str(), *max), ("write_set", WRITE_SET_BYTES_MAX as u64));
                    assert_eq!(bench.digests(), before);
                }
                (other, _) => panic!("{cursors} cursors: {other:?}"),
            }
            // Nothing of it is in the way of the next transaction.
            let next = bench.run(None, |ops| ops.insert(1, &encoded([0; 4])).map(drop));
            assert!(matches!(next, Outcome::Commit(_)), "{next:?}");
            assert_eq!(bench.stores[0].rows_count(TableId(COPIED)), 1);
        }
    }
}

#[test]
fn kept_rows_of_a_cursor_count_in_the_memory_limit() {
    let rows = 300_000_u32;
    for (max_bytes, fits) in [(64 << 20, true), (8 << 20, false)] {
        let memory = MemoryLedger::new(max_bytes);
        memory.enforce();
        let undo = memory.kind(MemoryKind::Undo);
        let mut bench = Bench::new(1);
        bench.frame = TxnScratch::counted_in(&memory);
        for part in 0..10 {
            let filled = bench.run(None, |ops| {
                (0..rows / 10).try_for_each(|k| ops.insert(0, &encoded([1, part * rows / 10 + k, 0, 0])).map(drop))
            });
            assert!(matches!(filled, Outcome::Commit(_)));
        }
        let before = bench.digests();
        let outcome = bench.run(None, |ops| {
            let request = ScanRequest {
                target: IndexTarget { table: 0, index: 0 },
                flags: ScanFlags(0),
                limit: 0,
                lower: &[],
                upper: &[],
            };
            for _ in 0..4 {
                ops.scan(&request, &mut |_, _| false)?;
            }
            assert_eq!(undo.used(), 0, "a cursor keeps nothing before its table is written");
            ops.insert(0, &encoded([1, rows, 0, 0]))?;
            assert!(undo.used() >= 4 * 8 * u64::from(rows), "{}", undo.used());
            Ok(())
        });
        match (&outcome, fits) {
            (Outcome::Commit(_), true) => {}
            (Outcome::Fail(Failure::Limit { limit, max, .. }), false) => {
                assert_eq!((limit.as_str(), *max), (MEMORY_MAX_LIMIT, max_bytes));
                assert_eq!(bench.digests(), before);
            }
            (other, _) => panic!("{other:?}"),
        }
        assert_eq!(undo.used(), 0, "given up at the call's end");
    }
}
