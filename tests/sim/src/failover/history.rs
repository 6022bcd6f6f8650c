//! The logs of all nodes as one tree. A place in it is an LSN with the history up to there, and stands for everything before it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
};

use reprise_base::Lsn;
use reprise_database::{Group, GroupSink};
use reprise_env::{Disk, SimDisk};
use reprise_log::{LogOutline, LogReader};
use reprise_wire::{History, RecordRef, Records};

use crate::{
    model::{At, Model, Tables, difference},
    op::Op,
    tree::LOG,
};

/// Behind a record: its LSN, and the history with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub lsn: u64,
    pub history: u32,
}

struct Rec {
    /// History of all records before it.
    before: u32,
    call: Option<usize>,
    txn: u64,
    /// Epoch of the primary that wrote it.
    epoch: u32,
    /// Calls up to here that left a mark.
    marks: usize,
}

/// A call of a client; its number is its place in the list.
pub struct Sent {
    pub op: Op,
    pub key: Option<String>,
}

#[derive(Default)]
pub struct Histories {
    records: BTreeMap<Place, Rec>,
    pub calls: Vec<Sent>,
    by_args: BTreeMap<Vec<u8>, usize>,
    /// Places of a call's records: more than one if logs parted.
    of_call: Vec<Vec<Place>>,
    /// A violation found by code that can't return an error.
    pub wrong: Option<String>,
}

/// Histories, shared with the threads of all nodes.
pub type Shared = Arc<Mutex<Histories>>;

/// One log: by LSN the history behind each record.
#[derive(Clone, Debug, Default)]
pub struct Path(Vec<u32>);

impl Path {
    pub fn has(&self, place: Place) -> bool {
        self.0.get(place.lsn as usize) == Some(&place.history)
    }

    pub fn place_at(&self, lsn: u64) -> Option<Place> {
        let history = *self.0.get(lsn as usize)?;
        Some(Place { lsn, history })
    }

    pub fn end(&self) -> Lsn {
        Lsn(self.0.len() as u64)
    }

    /// Behind the last record.
    pub fn head(&self) -> Option<Place> {
        let history = *self.0.last()?;
        let lsn = self.0.len() as u64 - 1;
        Some(Place { lsn, history })
    }

    fn before(&self, lsn: u64) -> u32 {
        lsn.checked_sub(1).map_or(0, |last| self.0[last as usize])
    }
}

/// A log of a process, as it grows.
pub struct Tape {
    histories: Shared,
    path: Mutex<Path>,
}

pub fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().expect("one thread")
}

impl Tape {
    /// Reads the tape of a log on this disk. Unless `is_first`, all of it must be known.
    pub fn of(histories: &Shared, disk: &SimDisk, is_first: bool) -> Result<Arc<Self>, String> {
        let folder: Arc<dyn Disk> = Arc::new(disk.folder(LOG));
        let wrong = |error: reprise_log::LogError| format!("a log that is not open: {error}");
        let path = match LogOutline::of(&folder).map_err(wrong)? {
            Some(outline) => {
                let start = outline.report.start;
                let before = outline
                    .history_at(start)
                    .map_err(wrong)?
                    .ok_or("a log without a beginning")?;
                let mut path = lock(histories).path_to(start.0, before.0)?;
                let (mut reader, _) = LogReader::open(folder, start).map_err(wrong)?;
                while let Some(block) = reader.next_block().map_err(wrong)? {
                    let mut all = lock(histories);
                    all.add(&mut path, block.records, block.epoch.count(), is_first)?;
                }
                path
            }
            None => Path::default(),
        };
        Ok(Arc::new(Self {
            histories: histories.clone(),
            path: Mutex::new(path),
        }))
    }

    pub fn path(&self) -> Path {
        lock(&self.path).clone()
    }
}

impl GroupSink for Tape {
    fn take(&self, group: &Group<'_>) {
        let (mut path, mut all) = (lock(&self.path), lock(&self.histories));
        let added = match path.end() == group.first {
            true => all.add(&mut path, group.records, group.end.epoch.count(), true),
            false => Err(format!("a group of LSN {} comes behind {}", group.first, path.end())),
        };
        let end = path.before(path.end().0);
        let added = match added {
            Ok(()) if end != group.end.history.0 => Err(format!("a group to {} has another history", group.end.lsn)),
            added => added,
        };
        if let (Err(wrong), None) = (added, &all.wrong) {
            all.wrong = Some(wrong);
        }
    }
}

impl Histories {
    /// A call that is about to be sent: its number, by which its arguments can be told.
    pub fn call(&mut self, op: Op, key: Option<String>) -> usize {
        let number = self.calls.len();
        self.by_args.insert(args(&op, number), number);
        self.calls.push(Sent { op, key });
        self.of_call.push(Vec::new());
        number
    }

    /// Returns the path before `end` with this history. The history of an existing record is known.
    fn path_to(&self, end: u64, history: u32) -> Result<Path, String> {
        let (mut path, mut at) = (vec![0; end as usize], history);
        for lsn in (0..end).rev() {
            path[lsn as usize] = at;
            let place = Place { lsn, history: at };
            let rec = self.records.get(&place).ok_or_else(|| unknown(place))?;
            at = rec.before;
        }
        Ok(Path(path))
    }

    fn add(&mut self, path: &mut Path, records: &[u8], epoch: u32, may_be_new: bool) -> Result<(), String> {
        for record in Records::new(records) {
            let (_, record, bytes) = record.map_err(|error| error.to_string())?;
            let lsn = path.end().0;
            let before = path.before(lsn);
            let history = History(before).then(bytes).0;
            let place = Place { lsn, history };
            if !self.records.contains_key(&place) {
                if !may_be_new {
                    return Err(unknown(place));
                }
                self.add_new(path, place, (&record, epoch))?;
            }
            path.0.push(history);
        }
        Ok(())
    }

    fn add_new(&mut self, path: &Path, place: Place, (record, epoch): (&RecordRef<'_>, u32)) -> Result<(), String> {
        let (call, txn) = match record {
            RecordRef::Command(command) => {
                let call = self.by_args.get(command.args).copied();
                (
                    Some(call.ok_or("a log holds a call that nobody sent")?),
                    command.txn_id.0,
                )
            }
            _ => (None, 0),
        };
        let before = path.before(place.lsn);
        let known = place.lsn.checked_sub(1).map_or(0, |lsn| {
            let former = Place { lsn, history: before };
            self.records.get(&former).map_or(0, |rec| rec.marks)
        });
        let is_mark = |call: usize| !matches!(self.calls[call].op, Op::Announce { .. });
        let marks = known + usize::from(call.is_some_and(is_mark));
        if let Some(call) = call {
            if let Some(twice) = self.of_call[call].iter().find(|former| path.has(**former)) {
                return Err(format!("call {call} ran twice in one log: {twice:?} and {place:?}"));
            }
            self.of_call[call].push(place);
        }
        let rec = Rec {
            before,
            call,
            txn,
            epoch,
            marks,
        };
        self.records.insert(place, rec);
        Ok(())
    }

    /// Returns the place of a call's record in this log.
    pub fn place_in(&self, call: usize, path: &Path) -> Option<Place> {
        self.of_call[call].iter().find(|place| path.has(**place)).copied()
    }

    /// Returns the epoch of the primary that wrote the record.
    pub fn epoch_of(&self, place: Place) -> u32 {
        self.records.get(&place).map_or(0, |rec| rec.epoch)
    }

    pub fn has_record(&self, call: usize) -> bool {
        !self.of_call[call].is_empty()
    }

    /// Returns the tables at a place.
    pub fn tables(&self, at: Option<Place>, partitions: u16) -> Result<Tables, String> {
        let path = match at {
            Some(at) => self.path_to(at.lsn + 1, at.history)?,
            None => Path::default(),
        };
        let mut model = Model::new(partitions);
        for (lsn, history) in path.0.iter().enumerate() {
            let (lsn, history) = (lsn as u64, *history);
            let rec = &self.records[&Place { lsn, history }];
            let Some(call) = rec.call else { continue };
            let applied = model.apply(&At {
                op: &self.calls[call].op,
                nonce: nonce(call),
                txn: rec.txn,
                is_second: false,
                random: 0,
            });
            applied.map_err(|code| format!("call {call} aborts with {code} in the model"))?;
        }
        Ok(model.tables)
    }

    /// Finds the place whose tables these are, by their items and marks. None: the beginning.
    pub fn find(&self, found: &Tables, partitions: u16) -> Result<Option<Place>, String> {
        let calls: BTreeSet<i64> = found.marks.keys().map(|(_, nonce)| *nonce).collect();
        let mut first = None;
        let places = calls
            .iter()
            .flat_map(|nonce| self.of_call.get(*nonce as usize - 1).into_iter().flatten());
        let heads = places.filter(|place| self.records[place].marks == calls.len());
        let mut heads: Vec<Option<Place>> = heads.map(|place| Some(*place)).collect();
        if calls.is_empty() {
            heads.push(None);
        }
        for head in heads {
            let tables = self.tables(head, partitions)?;
            let expected = Tables {
                items: tables.items,
                marks: tables.marks,
                ..Tables::default()
            };
            match difference(&expected, found) {
                None => return Ok(head),
                Some(what) => first = Some(what),
            }
        }
        let what = first.unwrap_or_else(|| format!("no log begins with the {} calls that it shows", calls.len()));
        Err(format!("a read shows what no log ever held: {what}"))
    }

    /// The last call up to there that a read would show. None: there is none.
    pub fn visible(&self, place: Place) -> Option<Place> {
        let mut at = place;
        loop {
            let rec = self.records.get(&at)?;
            let is_mark = |call: usize| !matches!(self.calls[call].op, Op::Announce { .. });
            if rec.call.is_some_and(is_mark) {
                return Some(at);
            }
            let lsn = at.lsn.checked_sub(1)?;
            at = Place {
                lsn,
                history: rec.before,
            };
        }
    }

    /// Returns whether the first place lies on the way to the second.
    pub fn is_before(&self, first: Place, second: Place) -> bool {
        let path = self.path_to(second.lsn + 1, second.history);
        path.is_ok_and(|path| path.has(first))
    }
}

fn unknown(place: Place) -> String {
    format!("a log holds a record that no primary wrote: {place:?}")
}

/// The number that a call writes to be recognised.
pub fn nonce(call: usize) -> i64 {
    call as i64 + 1
}

pub fn args(op: &Op, call: usize) -> Vec<u8> {
    let mut args = Vec::new();
    op.encode(nonce(call), &mut args);
    args
}
