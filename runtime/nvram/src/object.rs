//! Objects of running transactions: each changed row's bytes, in the ring before its transaction commits (NV-Logging, section 4.3). They
//! have no entry of their own. The commit object behind them has their places, and their positions in its records.

use std::sync::{Arc, atomic::Ordering};

use reprise_base::{PlacedBytes, named_enum};

use crate::{
    LINE_BYTES,
    layout::{Geometry, crc_of},
    ring::{NoRecord, RingState, place_for},
};

named_enum! {
    /// When a transaction's changes go to the region, and become persistent (NV-Logging, section 4.3).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub enum FlushPolicy {
        /// All of them at the commit.
        #[default]
        OnCommit => "commit",
        /// Each on its way when it is made, without a wait; the commit waits for all.
        OnInsert => "insert",
        /// Each when it is made, and the transaction waits for it: the paper's flush-on-insert.
        OnInsertFence => "insert-fence",
    }
}

impl FlushPolicy {
    /// Changes go to the region when they are made.
    pub fn is_on_insert(self) -> bool {
        self != Self::OnCommit
    }
}

/// Divisor of a ring's objects: a batch's transactions take at most this part before its commit. Another quarter is left for the
/// commit object, and as much again for the bytes skipped at the ring's end.
const PART: u64 = 4;

/// Writes the objects of running transactions. Beside the ring's [`crate::RingWriter`], on the same thread.
pub struct ObjectWriter {
    shared: Arc<RingState>,
    policy: FlushPolicy,
    /// An object, filled up to whole lines.
    lines: Vec<u8>,
}

impl ObjectWriter {
    pub(crate) fn new(shared: Arc<RingState>, policy: FlushPolicy) -> Self {
        Self {
            shared,
            policy,
            lines: Vec::new(),
        }
    }

    /// The earliest place of the next object.
    #[inline]
    pub fn place(&self) -> u64 {
        self.shared.place.load(Ordering::Relaxed)
    }

    /// Begins a batch. Objects that no commit names are free again.
    #[inline]
    pub fn begin_batch(&mut self) {
        let persisted = self.shared.persisted_place.load(Ordering::Relaxed);
        self.shared.place.store(persisted, Ordering::Relaxed);
    }

    /// Writes an object, of one byte at least; its place. None: there is no room for it before its batch's commit.
    #[inline]
    pub fn insert(&mut self, bytes: &[u8]) -> Option<u64> {
        let shared = &*self.shared;
        let (need, ring_bytes) = (lines_of(bytes.len()), shared.geometry.objects_bytes);
        let place = place_for(self.place(), need, ring_bytes);
        let end = place + need;
        let is_too_much = end - shared.persisted_place.load(Ordering::Relaxed) > ring_bytes / PART;
        if is_too_much || end - shared.freed_place.load(Ordering::Acquire) > ring_bytes {
            return None;
        }
        // Whole lines: memory takes them without having read them.
        self.lines.clear();
        self.lines.extend_from_slice(bytes);
        self.lines.resize(need as usize, 0);
        let at = shared.geometry.object_at(shared.ring, place);
        shared.memory.write(at, &self.lines);
        if self.policy == FlushPolicy::OnInsertFence {
            shared.memory.drain();
        }
        shared.place.store(end, Ordering::Relaxed);
        Some(place)
    }

    /// Releases the room of objects from `place` on (NV-Logging, section 4.4), which no commit will name.
    #[inline]
    pub fn take_back(&mut self, place: u64) {
        assert!(place <= self.place() && place >= self.shared.persisted_place.load(Ordering::Relaxed));
        self.shared.place.store(place, Ordering::Relaxed);
    }

    /// The place behind an object of `bytes` bytes that was written at `place`.
    pub fn behind(place: u64, bytes: u32) -> u64 {
        place + lines_of(bytes as usize)
    }
}

/// Bytes of the whole lines that `bytes` bytes take.
fn lines_of(bytes: usize) -> u64 {
    bytes.next_multiple_of(LINE_BYTES) as u64
}

/// Bytes of a commit object's payload before its list.
const COMMIT_HEAD_BYTES: usize = 12;
/// Bytes of an object in that list: its line, its length, its place in the records.
const LISTED_BYTES: usize = 12;

/// The payload of the commit object of `records`, of which `placed` were written before.
pub(crate) fn commit_bytes(records: usize, placed: &[PlacedBytes]) -> usize {
    let before: usize = placed.iter().map(|piece| piece.bytes as usize).sum();
    COMMIT_HEAD_BYTES + placed.len() * LISTED_BYTES + records - before
}

/// Appends it.
pub(crate) fn push_commit(geometry: &Geometry, records: &[u8], placed: &[PlacedBytes], out: &mut Vec<u8>) {
    out.extend_from_slice(&(placed.len() as u32).to_le_bytes());
    out.extend_from_slice(&(records.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc_of(records).to_le_bytes());
    for piece in placed {
        let line = (piece.place % geometry.objects_bytes / LINE_BYTES as u64) as u32;
        for word in [line, piece.bytes, piece.at] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }
    let mut at = 0;
    for piece in placed {
        out.extend_from_slice(&records[at..piece.at as usize]);
        at = piece.end() as usize;
    }
    out.extend_from_slice(&records[at..]);
}

/// Puts the records of a commit object together, at the end of `records`.
pub(crate) fn read_commit(shared: &RingState, payload: &[u8], records: &mut Vec<u8>) -> Result<(), NoRecord> {
    let word = |at: usize| {
        Some(u32::from_le_bytes(
            payload.get(at..at + 4)?.try_into().expect("4 bytes"),
        ))
    };
    let (count, bytes, sum) = match (word(0), word(4), word(8)) {
        (Some(count), Some(bytes), Some(sum)) => (count as usize, bytes as usize, sum),
        _ => return Err(NoRecord::Damaged),
    };
    // Each byte of them lies in the ring.
    if bytes as u64 > shared.geometry.objects_bytes {
        return Err(NoRecord::Damaged);
    }
    let list = payload[COMMIT_HEAD_BYTES..].as_chunks::<LISTED_BYTES>().0;
    let list = list.get(..count).ok_or(NoRecord::Damaged)?;
    let mut rest = &payload[COMMIT_HEAD_BYTES + count * LISTED_BYTES..];
    let begin = records.len();
    for listed in list {
        let word = |at: usize| u32::from_le_bytes(listed[at..at + 4].try_into().expect("4 bytes")) as usize;
        let (place, placed, at) = (word(0) as u64 * LINE_BYTES as u64, word(4), word(8));
        let between = at.checked_sub(records.len() - begin).ok_or(NoRecord::Damaged)?;
        records.extend_from_slice(rest.split_off(..between).ok_or(NoRecord::Damaged)?);
        let from = records.len();
        if place + placed as u64 > shared.geometry.objects_bytes || from - begin + placed > bytes {
            return Err(NoRecord::Damaged);
        }
        records.resize(from + placed, 0);
        let at = shared.geometry.object_at(shared.ring, place);
        shared.memory.read(at, &mut records[from..]);
    }
    records.extend_from_slice(rest);
    match records.len() - begin == bytes && crc_of(&records[begin..]) == sum {
        true => Ok(()),
        false => Err(NoRecord::Damaged),
    }
}
