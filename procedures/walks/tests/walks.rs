//! Random walks give the same rows natively, in wasm, on one to three partitions, in a replay, and by redo of their changes. The rows are
//! those of a model that takes a scan's rows first.
#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, VecDeque},
    path::Path,
    sync::mpsc,
};

use reprise_database::{Database, LogPolicy};
use reprise_procedure::{
    abi::value::{ValueReader, push_varint},
    testkit::{TestDb, TestError},
};
use reprise_router::{BatchBuilder, ReplyOutcome};

const IDS: u8 = 24;
const RANKS: u8 = 6;
const PLACES: u8 = 4;
const REFUSED: &str = "the row of steps was changed by this call after it was read";

/// Place, id, rank, sum.
type Row = [i64; 4];

/// A row as it was seen: its number, and its last change then.
#[derive(Clone, Copy)]
struct Seen {
    row: u32,
    change: u32,
}

#[derive(Default)]
struct Model {
    partitions: i64,
    /// Rows by their numbers, which are never used again.
    rows: BTreeMap<u32, Row>,
    rows_made: u32,
    /// Numbers that each partition gave out.
    numbers: BTreeMap<i64, i64>,
}

/// The undo of a write.
enum Undo {
    Row(u32, Option<Row>),
    Number(i64),
}

/// One call of the model.
struct Walk<'m> {
    model: &'m mut Model,
    place: Option<i64>,
    held: Vec<Seen>,
    scans: Vec<VecDeque<(Row, Seen)>>,
    savepoints: Vec<usize>,
    undo: Vec<Undo>,
    changes: u32,
    changed: BTreeMap<u32, u32>,
    seen: Vec<i64>,
}

/// The result of a step.
#[derive(PartialEq)]
enum Step {
    Done,
    /// A deleted row would be written: such steps are left out.
    Dead,
    /// An older copy would be written.
    Old,
}

impl<'m> Walk<'m> {
    fn new(model: &'m mut Model, place: Option<i64>) -> Self {
        Self {
            model,
            place,
            held: Vec::new(),
            scans: Vec::new(),
            savepoints: Vec::new(),
            undo: Vec::new(),
            changes: 0,
            changed: BTreeMap::new(),
            seen: Vec::new(),
        }
    }

    fn change_of(&self, row: u32) -> u32 {
        self.changed.get(&row).copied().unwrap_or(0)
    }

    fn put(&mut self, row: u32, value: Option<Row>) -> Option<Row> {
        let before = match value {
            Some(value) => self.model.rows.insert(row, value),
            None => self.model.rows.remove(&row),
        };
        if before.is_some() {
            self.changes += 1;
            self.changed.insert(row, self.changes);
        }
        before
    }

    fn write(&mut self, row: u32, value: Option<Row>) {
        let before = self.put(row, value);
        self.undo.push(Undo::Row(row, before));
    }

    fn key(&self, which: u8) -> (i64, i64) {
        let place = self.place.unwrap_or(i64::from(which / IDS % PLACES));
        (place, i64::from(which % IDS))
    }

    fn find(&self, (place, id): (i64, i64)) -> Option<u32> {
        let mut rows = self.model.rows.iter();
        rows.find(|(_, row)| row[..2] == [place, id]).map(|(number, _)| *number)
    }

    fn held_at(&self, which: u8) -> Option<(usize, Seen, Option<Row>)> {
        let at = usize::from(which).checked_rem(self.held.len())?;
        let seen = self.held[at];
        Some((at, seen, self.model.rows.get(&seen.row).copied()))
    }

    fn show(&mut self, row: Row, seen: Seen) {
        self.seen.extend(row);
        self.held.push(seen);
    }

    fn step(&mut self, what: u8, which: u8) -> Step {
        match what {
            0 => self.insert(which),
            1 if self.scans.len() > 20 => return Step::Dead,
            1 => self.scan(which),
            2 => self.go_on(which),
            3 | 4 | 5 | 10 => return self.by_row(what, which),
            6 => self.add_by_key(which),
            7 => self.savepoints.push(self.undo.len()),
            8 => self.roll_back(which),
            9 => self.get(which),
            12 => self.number(),
            13 | 14 => self.over_range(what, which),
            _ => {
                if let Some(at) = usize::from(which).checked_rem(self.scans.len()) {
                    self.scans.swap_remove(at);
                }
            }
        }
        Step::Done
    }

    fn insert(&mut self, which: u8) {
        let (place, id) = self.key(which);
        let is_new = self.find((place, id)).is_none();
        if is_new {
            self.model.rows_made += 1;
            self.write(self.model.rows_made, Some([place, id, i64::from(which % RANKS), 0]));
        }
        self.seen.push(is_new.into());
    }

    fn scan(&mut self, which: u8) {
        let (is_by_rank, is_reverse) = (which / 2 % 2 == 1, which / 4 % 2 == 1);
        let of_one = (!is_by_rank && which % 2 == 1).then(|| self.key(which).0);
        let partitions = self.model.partitions;
        let is_wanted = |row: &Row| match (of_one, self.place) {
            (Some(place), _) => row[0] == place,
            (None, Some(place)) => row[0] % partitions == place % partitions,
            (None, None) => true,
        };
        let rows = self.model.rows.iter().filter(|(_, row)| is_wanted(row));
        let mut rows: Vec<_> = rows
            .map(|(number, row)| {
                (
                    *row,
                    Seen {
                        row: *number,
                        change: self.change_of(*number),
                    },
                )
            })
            .collect();
        rows.sort_by_key(|(row, _)| (if is_by_rank { row[2] } else { 0 }, row[0], row[1]));
        if is_reverse {
            rows.reverse();
        }
        if is_reverse && is_by_rank {
            rows.truncate(5);
        }
        self.scans.push(rows.into());
    }

    fn go_on(&mut self, which: u8) {
        let Some(at) = usize::from(which).checked_rem(self.scans.len()) else {
            return;
        };
        match self.scans[at].pop_front() {
            Some((row, seen)) => self.show(row, seen),
            None => {
                self.seen.push(-1);
                self.scans.swap_remove(at);
            }
        }
    }

    /// Updates, deletes, adds to or reads again a row that was seen.
    fn by_row(&mut self, what: u8, which: u8) -> Step {
        let Some((at, seen, row)) = self.held_at(which) else {
            return Step::Done;
        };
        let Some(mut row) = row else {
            return Step::Dead;
        };
        let is_current = self.change_of(seen.row) == seen.change;
        match what {
            3 if !is_current => return Step::Old,
            3 => {
                row[2] = i64::from(which % RANKS);
                self.write(seen.row, Some(row));
                self.seen.push(1);
            }
            4 => {
                self.held.swap_remove(at);
                self.write(seen.row, None);
                return Step::Done;
            }
            5 => {
                row[3] += 1;
                self.write(seen.row, Some(row));
                self.seen.push(row[3]);
            }
            _ => self.seen.push(row[2]),
        }
        if is_current || what == 10 {
            self.held[at].change = self.change_of(seen.row);
        }
        Step::Done
    }

    fn add_by_key(&mut self, which: u8) {
        let sum = self.find(self.key(which)).map(|number| {
            let mut row = self.model.rows[&number];
            row[3] += 1;
            self.write(number, Some(row));
            row[3]
        });
        self.seen.push(sum.unwrap_or(-1));
    }

    /// Deletes or moves on the rows of some ids of a place, or of some ranks.
    fn over_range(&mut self, what: u8, which: u8) {
        let (ids, ranks) = (
            i64::from(which % IDS)..i64::from(which % IDS) + 1 + i64::from(which / 32),
            i64::from(which % RANKS)..i64::from(which % RANKS) + 1 + i64::from(which / 128),
        );
        let (of_one, partitions) = (self.key(which).0, self.model.partitions);
        let is_wanted = |row: &Row| match (which % 2, self.place) {
            (0, _) => row[0] == of_one && ids.contains(&row[1]),
            (_, Some(place)) => row[0] % partitions == place % partitions && ranks.contains(&row[2]),
            (_, None) => ranks.contains(&row[2]),
        };
        let rows = self.model.rows.iter().filter(|(_, row)| is_wanted(row));
        let rows: Vec<_> = rows.map(|(number, row)| (*number, *row)).collect();
        for (number, [place, id, rank, sum]) in &rows {
            let next = [*place, *id, (rank + 1) % i64::from(RANKS), *sum];
            self.write(*number, (what == 14).then_some(next));
        }
        self.seen.push(rows.len() as i64);
    }

    fn number(&mut self) {
        let Some(place) = self.place else {
            return;
        };
        let partition = place % self.model.partitions;
        let count = self.model.numbers.entry(partition).or_default();
        *count += 1;
        self.seen.push(*count << 10 | partition);
        self.undo.push(Undo::Number(partition));
    }

    fn roll_back(&mut self, which: u8) {
        if let Some(at) = usize::from(which).checked_rem(self.savepoints.len()) {
            self.savepoints.truncate(at + 1);
            self.undo_to(self.savepoints[at]);
        }
    }

    fn undo_to(&mut self, len: usize) {
        for undo in self.undo.split_off(len).into_iter().rev() {
            let (row, before) = match undo {
                Undo::Row(row, before) => (row, before),
                Undo::Number(partition) => {
                    *self.model.numbers.entry(partition).or_default() -= 1;
                    continue;
                }
            };
            let is_change = before.is_some();
            self.put(row, before);
            if is_change {
                self.changes += 1;
                self.changed.insert(row, self.changes);
            }
        }
    }

    fn get(&mut self, which: u8) {
        match self.find(self.key(which)) {
            Some(row) => {
                let change = self.change_of(row);
                self.show(self.model.rows[&row], Seen { row, change });
            }
            None => self.seen.push(-1),
        }
    }
}

struct Random(u64);

impl Random {
    fn byte(&mut self) -> u8 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as u8
    }
}

/// A call, and its expected result: the numbers that it sees, or none if it writes an older copy.
struct Call {
    place: Option<i64>,
    script: Vec<u8>,
    expected: Option<Vec<i64>>,
}

fn call(model: &mut Model, random: &mut Random) -> Call {
    let place = (!random.byte().is_multiple_of(3)).then(|| i64::from(random.byte() % PLACES));
    let (mut walk, mut script) = (Walk::new(model, place), Vec::new());
    let mut is_refused = false;
    for _ in 0..random.byte() {
        // More that is inserted and walked than taken away.
        let what = match random.byte() % 26 {
            15..20 => 0,
            20..25 => 2,
            25 => 9,
            what => what,
        };
        let which = random.byte();
        match walk.step(what, which) {
            Step::Dead => continue,
            Step::Old if random.byte() < 250 => continue,
            Step::Old => is_refused = true,
            Step::Done => {}
        }
        script.extend([what, which]);
        if is_refused {
            break;
        }
    }
    let expected = match is_refused {
        true => {
            walk.undo_to(0);
            None
        }
        false => {
            while !walk.scans.is_empty() {
                walk.go_on(0);
            }
            Some(walk.seen)
        }
    };
    Call {
        place,
        script,
        expected,
    }
}

fn calls(seed: u64, partitions: u16, count: usize) -> (Vec<Call>, Vec<Row>) {
    let mut model = Model {
        partitions: partitions.into(),
        ..Model::default()
    };
    let mut random = Random(seed);
    let calls = (0..count).map(|_| call(&mut model, &mut random)).collect();
    (calls, model.rows.into_values().collect())
}

fn natively(db: &mut TestDb, call: &Call) -> Result<Vec<i64>, TestError> {
    match call.place {
        Some(place) => db.call("walk", (place, &call.script[..])),
        None => db.call("walk_all", (&call.script[..],)),
    }
}

#[test]
fn walks_see_the_models_rows_natively() {
    let mut refused = 0;
    for seed in 0..100 {
        for partitions in 1..=3 {
            let mut db = TestDb::new(&walks::MODULE).with_partitions(partitions);
            let (calls, rows) = calls(seed, partitions, 20);
            for (number, call) in calls.iter().enumerate() {
                let found = natively(&mut db, call);
                match &call.expected {
                    Some(expected) => {
                        assert_eq!(found.as_ref(), Ok(expected), "seed {seed}, {partitions}, call {number}")
                    }
                    None => {
                        refused += 1;
                        assert!(
                            matches!(&found, Err(TestError::Fault(told)) if told.contains(REFUSED)),
                            "{found:?}"
                        );
                    }
                }
            }
            assert_eq!(db.count("steps"), rows.len());
        }
    }
    assert!(refused > 100, "{refused}");
}

fn open(dir: &Path, partitions: u16, log: LogPolicy) -> Database {
    reprise_test_history::open(Some(dir), partitions, 2.min(partitions), log)
}

fn wasm() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/procedures/walks.wasm");
    std::fs::read(&path)
        .unwrap_or_else(|error| panic!("read {}: {error}; `cargo xtask wasm` builds it", path.display()))
}

fn in_wasm(database: &Database, call: &Call) -> Result<Vec<i64>, String> {
    let router = database.router();
    let deployed = router.deployed();
    let module = &deployed.current["walks"];
    let mut batch = BatchBuilder::new(deployed.clone(), router);
    let name = if call.place.is_some() { "walk" } else { "walk_all" };
    let (number, _) = module.procedure(name).unwrap();
    let encode = |out: &mut Vec<u8>| {
        out.extend(call.place.iter().flat_map(|place| place.to_le_bytes()));
        push_varint(out, call.script.len() as u32);
        out.extend_from_slice(&call.script);
        Ok::<(), ()>(())
    };
    batch.push(module, number, None, encode).unwrap();
    let (sender, receiver) = mpsc::channel();
    router.submit(batch, Box::new(move |reply| sender.send(reply).unwrap()));
    let reply = receiver.recv().unwrap();
    match reply.get(0).outcome {
        ReplyOutcome::Committed => {
            let mut reader = ValueReader::new(reply.get(0).result);
            let count = reader.list_len().unwrap();
            let rest = &reply.get(0).result[reader.offset()..];
            let seen: Vec<_> = rest
                .as_chunks()
                .0
                .iter()
                .map(|seen| i64::from_le_bytes(*seen))
                .collect();
            assert_eq!(seen.len(), count as usize);
            Ok(seen)
        }
        other => Err(format!("{other:?}")),
    }
}

#[test]
fn walks_see_the_models_rows_in_wasm_and_are_replayed_and_redone() {
    for partitions in 1..=3 {
        let (calls, _) = calls(1_000, partitions, 400);
        let mut digests = Vec::new();
        for log in [LogPolicy::Command, LogPolicy::Physiological, LogPolicy::Both] {
            let dir = tempfile::tempdir().unwrap();
            let database = open(dir.path(), partitions, log);
            database.router().deploy("walks", &wasm()).unwrap();
            for (number, call) in calls.iter().enumerate() {
                let found = in_wasm(&database, call);
                match &call.expected {
                    Some(expected) => assert_eq!(found.as_ref(), Ok(expected), "{partitions}, call {number}"),
                    None => assert!(found.is_err_and(|told| told.contains(REFUSED))),
                }
            }
            digests.push(database.router().digest().unwrap());
            database.close().unwrap();
            digests.push(open(dir.path(), partitions, log).router().digest().unwrap());
        }
        assert!(
            digests.iter().all(|digest| *digest == digests[0]),
            "{partitions}: {digests:?}"
        );
    }
}
