//! The write-ahead log: records in segments of memory, found by LSN, and written to a file in groups of commits.
//!
//! An LSN is the place of a record in the log. Each record names the one before it of the same transaction, so that a
//! transaction is rolled back along its chain. A record that only repeats (`is_redo_only`) is passed over there.

use std::{collections::VecDeque, fs::File, os::unix::fs::FileExt, path::Path};

use anyhow::{Context, Result};

use crate::{
    latch::LatchedCell,
    parts::{DISK_LOG, LSNS, MAIN_LOG, has},
};

/// Bytes of a segment; no record lies in two.
const SEGMENT_BYTES: u64 = 1 << 20;
const HEAD_BYTES: usize = 36;
/// The first LSN. Zero is none.
const FIRST_LSN: u64 = 8;

/// The change that a record repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// A transaction began.
    Begin = 1,
    /// A transaction committed.
    Commit,
    /// A transaction was rolled back.
    Abort,
    /// A page was formatted; its kind and level.
    Format,
    /// A page as a whole: front and slots.
    Image,
    /// A page got a successor.
    Link,
    /// A row was put into a slot.
    Put,
    /// Bytes of a row of equal length: before and after.
    Change,
    /// A row of another length, at the same place: before and after.
    Replace,
    /// A row moves to another page: as it was.
    Move,
    /// A row was hidden.
    Hide,
    /// A row was shown again.
    Show,
    /// The row of a slot lies elsewhere; where.
    Forward,
    /// A row that moved on is no longer at its former place.
    Clear,
    /// An entry was put into a node: its key, and what stands behind it.
    NodeInsert,
    /// An entry was taken out of a node, as it was.
    NodeRemove,
}

impl RecordKind {
    fn from_byte(byte: u8) -> Option<Self> {
        const ALL: [RecordKind; 16] = [
            RecordKind::Begin,
            RecordKind::Commit,
            RecordKind::Abort,
            RecordKind::Format,
            RecordKind::Image,
            RecordKind::Link,
            RecordKind::Put,
            RecordKind::Change,
            RecordKind::Replace,
            RecordKind::Move,
            RecordKind::Hide,
            RecordKind::Show,
            RecordKind::Forward,
            RecordKind::Clear,
            RecordKind::NodeInsert,
            RecordKind::NodeRemove,
        ];
        ALL.get((byte as usize).checked_sub(1)?).copied()
    }
}

/// The place and kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Kind of the change.
    pub kind: RecordKind,
    /// Page that changed; 0 for none.
    pub page: u32,
    /// Slot of the page.
    pub slot: u16,
    /// `Change`: offset in the row. `NodeInsert`, `NodeRemove`: number of the tree. Else the table, and the home of the row, packed.
    pub extra: u64,
}

/// A record as it is read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its place.
    pub lsn: u64,
    /// Place of the change.
    pub site: Site,
    /// The transaction.
    pub txn: u64,
    /// LSN of the transaction's record before; 0 for none.
    pub previous: u64,
    /// A roll back passes over it.
    pub is_redo_only: bool,
    /// Bytes before the change.
    pub before: Vec<u8>,
    /// Bytes after the change.
    pub after: Vec<u8>,
}

/// The records of one transaction, as the next one is linked to them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chain {
    /// The transaction.
    pub txn: u64,
    /// LSN of its last record.
    pub last: u64,
    /// A roll back passes over the records that follow.
    pub is_redo_only: bool,
}

/// How far a log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogProgress {
    /// LSN of the next record.
    pub next: u64,
    /// The file holds every record before this LSN.
    pub durable: u64,
    /// How often a group was written.
    pub writes: u64,
}

struct LogState {
    /// Segments in memory; the first one is number `first`.
    segments: VecDeque<Box<[u8]>>,
    first: u64,
    /// The next LSN.
    next: u64,
    /// The file holds everything before.
    durable: u64,
    /// Commits since the last write.
    commits: u32,
    /// Writes of a group.
    writes: u64,
}

/// A new file, to read and write.
pub(crate) fn create_file(path: &Path) -> Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    options.open(path).with_context(|| format!("create {}", path.display()))
}

/// The log of one engine.
pub struct Log<const P: u32> {
    state: LatchedCell<LogState, P>,
    file: Option<File>,
    /// Commits of a group.
    group: u32,
}

impl<const P: u32> Log<P> {
    /// An empty log, with its file in `folder` where the build writes one.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(folder: &Path, group: u32) -> Result<Self> {
        let file = has(P, DISK_LOG).then(|| create_file(&folder.join("log"))).transpose()?;
        Ok(Self {
            state: LatchedCell::new(LogState {
                segments: VecDeque::new(),
                first: 0,
                next: FIRST_LSN,
                durable: FIRST_LSN,
                commits: 0,
                writes: 0,
            }),
            file,
            group: group.max(1),
        })
    }

    /// Appends a record to a transaction's chain; its LSN. Nothing, in a build without LSNs.
    #[inline]
    pub fn append(&self, chain: &mut Chain, site: Site, before: &[u8], after: &[u8]) -> u64 {
        if const { !has(P, LSNS) } {
            return 0;
        }
        match const { has(P, MAIN_LOG) } {
            true => self.append_record(chain, site, before, after),
            false => {
                let mut state = self.state.lock();
                state.next += 1;
                chain.last = state.next;
                chain.last
            }
        }
    }

    #[inline(never)]
    fn append_record(&self, chain: &mut Chain, site: Site, before: &[u8], after: &[u8]) -> u64 {
        let bytes = HEAD_BYTES + before.len() + after.len();
        let head = head(site, chain, before.len(), after.len());
        let mut state = self.state.lock();
        let (lsn, room) = state.room(bytes);
        room[..HEAD_BYTES].copy_from_slice(&head);
        room[HEAD_BYTES..HEAD_BYTES + before.len()].copy_from_slice(before);
        room[HEAD_BYTES + before.len()..bytes].copy_from_slice(after);
        chain.last = lsn;
        lsn
    }

    /// Counts a commit towards the group, and writes the group that it fills.
    #[inline]
    pub fn end_of_commit(&self) {
        if const { has(P, DISK_LOG) } {
            let mut state = self.state.lock();
            state.commits += 1;
            if state.commits >= self.group {
                self.write(&mut state);
            }
        }
    }

    /// Writes everything before an LSN to the file, that LSN's record included.
    pub fn force(&self, lsn: u64) {
        if const { has(P, DISK_LOG) } {
            let mut state = self.state.lock();
            if lsn >= state.durable {
                self.write(&mut state);
            }
        }
    }

    /// Writes the records that are not yet in the file, and gives up the segments that are.
    #[inline(never)]
    fn write(&self, state: &mut LogState) {
        let Some(file) = &self.file else {
            return;
        };
        while state.durable < state.next {
            let number = state.durable / SEGMENT_BYTES;
            let end = state.next.min((number + 1) * SEGMENT_BYTES);
            let segment = &state.segments[(number - state.first) as usize];
            let (from, to) = (state.durable - number * SEGMENT_BYTES, end - number * SEGMENT_BYTES);
            let written = file.write_all_at(&segment[from as usize..to as usize], state.durable);
            written.expect("the log's file takes what is written");
            state.durable = end;
        }
        file.sync_data().expect("the log's file is kept");
        (state.commits, state.writes) = (0, state.writes + 1);
        while state.first < state.next / SEGMENT_BYTES && state.segments.len() > 1 {
            state.segments.pop_front();
            state.first += 1;
        }
    }

    /// How far the log is.
    pub fn progress(&self) -> LogProgress {
        let state = self.state.lock();
        LogProgress {
            next: state.next,
            durable: state.durable,
            writes: state.writes,
        }
    }

    /// A record, from memory or from the file. None where there is none.
    pub fn read(&self, lsn: u64) -> Option<Record> {
        let state = self.state.lock();
        if lsn < FIRST_LSN || lsn + HEAD_BYTES as u64 > state.next {
            return None;
        }
        let mut head = [0; HEAD_BYTES];
        self.copy(&state, lsn, &mut head)?;
        let (mut record, lengths) = parse(lsn, &head)?;
        record.before = vec![0; lengths.0];
        record.after = vec![0; lengths.1];
        let data = lsn + HEAD_BYTES as u64;
        self.copy(&state, data, &mut record.before)?;
        self.copy(&state, data + lengths.0 as u64, &mut record.after)?;
        Some(record)
    }

    fn copy(&self, state: &LogState, from: u64, out: &mut [u8]) -> Option<()> {
        let number = from / SEGMENT_BYTES;
        match number.checked_sub(state.first) {
            Some(at) => {
                let offset = (from % SEGMENT_BYTES) as usize;
                let segment = state.segments.get(at as usize)?;
                out.copy_from_slice(segment.get(offset..offset + out.len())?);
                Some(())
            }
            None => self.file.as_ref()?.read_exact_at(out, from).ok(),
        }
    }

    /// The record behind one, or the first one (`None`).
    pub fn next(&self, after: Option<&Record>) -> Option<Record> {
        let Some(record) = after else {
            return self.read(FIRST_LSN);
        };
        let end = record.lsn + padded(HEAD_BYTES + record.before.len() + record.after.len());
        let next_segment = (end / SEGMENT_BYTES + 1) * SEGMENT_BYTES;
        self.read(end).or_else(|| self.read(next_segment))
    }
}

fn padded(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(8)
}

#[inline]
fn head(site: Site, chain: &Chain, before: usize, after: usize) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[0] = site.kind as u8;
    head[1] = chain.is_redo_only as u8;
    head[2..4].copy_from_slice(&site.slot.to_le_bytes());
    head[4..8].copy_from_slice(&site.page.to_le_bytes());
    head[8..16].copy_from_slice(&chain.txn.to_le_bytes());
    head[16..24].copy_from_slice(&chain.last.to_le_bytes());
    head[24..32].copy_from_slice(&site.extra.to_le_bytes());
    head[32..34].copy_from_slice(&(before as u16).to_le_bytes());
    head[34..36].copy_from_slice(&(after as u16).to_le_bytes());
    head
}

fn parse(lsn: u64, head: &[u8; HEAD_BYTES]) -> Option<(Record, (usize, usize))> {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
    let short = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let record = Record {
        lsn,
        site: Site {
            kind: RecordKind::from_byte(head[0])?,
            page: (word(4) & 0xffff_ffff) as u32,
            slot: short(2),
            extra: word(24),
        },
        txn: word(8),
        previous: word(16),
        is_redo_only: head[1] == 1,
        before: Vec::new(),
        after: Vec::new(),
    };
    Some((record, (short(32) as usize, short(34) as usize)))
}

impl LogState {
    /// Room for a record in the last segment, or in a new one.
    #[inline]
    fn room(&mut self, bytes: usize) -> (u64, &mut [u8]) {
        let padded = padded(bytes);
        let left = SEGMENT_BYTES - self.next % SEGMENT_BYTES;
        if self.segments.is_empty() || left < padded || self.next.is_multiple_of(SEGMENT_BYTES) {
            self.begin_segment(left < padded);
        }
        let (lsn, offset) = (self.next, (self.next % SEGMENT_BYTES) as usize);
        self.next += padded;
        let at = self.segments.len() - 1;
        (lsn, &mut self.segments[at][offset..offset + padded as usize])
    }

    #[cold]
    fn begin_segment(&mut self, skips: bool) {
        if skips {
            self.next = self.next.next_multiple_of(SEGMENT_BYTES);
        }
        self.segments
            .push_back(vec![0; SEGMENT_BYTES as usize].into_boxed_slice());
    }
}
