//! One site's ring: entries of 8 bytes, each with a state bit and where its object lies; objects of whole cache lines.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use reprise_base::{Lsn, PlacedBytes};

use crate::{
    LINE_BYTES, Memory,
    layout::{EntryState, Geometry, crc_of, freed_word},
    object::{FlushPolicy, ObjectWriter, commit_bytes, push_commit, read_commit},
};

/// Bytes before an object's payload: LSN 8, sequence number 8, length 4, checksum 4, kind 1, unused 3, number of its records 4.
const OBJECT_HEADER_BYTES: usize = 32;

/// The kind of an object with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum ObjectKind {
    /// Whole records.
    Records = 1,
    /// Records of which parts lie in objects before it.
    Commit = 5,
}

impl ObjectKind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Records, Self::Commit]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// Why nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum RingFull {
    #[error("the ring is full until the server has copied older records to disk")]
    ForNow,
    #[error("records of {bytes} bytes do not fit into half of a ring of {ring_bytes} bytes")]
    Forever { bytes: u64, ring_bytes: u64 },
}

/// State that a ring's writer and reader share.
pub(crate) struct RingState {
    pub memory: Arc<dyn Memory>,
    pub geometry: Geometry,
    pub ring: u32,
    /// Bytes of objects written since the region was made, with the bytes skipped at the ring's end. Only the writer uses it.
    pub place: AtomicU64,
    /// Entries below it are persistent, with their objects.
    persisted: AtomicU64,
    pub persisted_place: AtomicU64,
    /// Entries below it, and objects below the other, may be overwritten.
    freed: AtomicU64,
    pub freed_place: AtomicU64,
}

impl RingState {
    pub fn new(memory: Arc<dyn Memory>, geometry: Geometry, ring: u32) -> Self {
        Self {
            memory,
            geometry,
            ring,
            place: AtomicU64::new(0),
            persisted: AtomicU64::new(0),
            persisted_place: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            freed_place: AtomicU64::new(0),
        }
    }
}

/// How much of a ring waits to be copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingFill {
    /// That are in use.
    pub entries: u64,
    /// That there are.
    pub entries_max: u64,
    /// Bytes of objects.
    pub bytes: u64,
    /// That there are for objects.
    pub bytes_max: u64,
}

impl RingFill {
    /// True once half of the ring is in use.
    pub fn is_half_full(&self) -> bool {
        self.entries > self.entries_max / 2 || self.bytes > self.bytes_max / 2
    }
}

impl RingState {
    #[inline]
    fn fill(&self) -> RingFill {
        // Freed bytes were persistent before: reading in this order, no difference falls below zero.
        let (freed, freed_place) = (
            self.freed.load(Ordering::Acquire),
            self.freed_place.load(Ordering::Acquire),
        );
        RingFill {
            entries: self.persisted.load(Ordering::Acquire).saturating_sub(freed),
            entries_max: self.geometry.entries as u64,
            bytes: self.persisted_place.load(Ordering::Acquire).saturating_sub(freed_place),
            bytes_max: self.geometry.objects_bytes,
        }
    }
}

/// Reads a ring's fill level, from any thread.
#[derive(Clone)]
pub struct RingGauge(Arc<RingState>);

impl RingGauge {
    /// How full the ring is.
    pub fn fill(&self) -> RingFill {
        self.0.fill()
    }
}

/// The one writer of a ring: the site's engine thread.
pub struct RingWriter {
    shared: Arc<RingState>,
    policy: FlushPolicy,
    sequence: u64,
    /// Entries that are not set yet, from `sequence - unset.len()` on, by their words.
    unset: Vec<u64>,
    /// An object, made here before it goes to the region.
    scratch: Vec<u8>,
}

impl RingWriter {
    pub(crate) fn new(shared: Arc<RingState>, policy: FlushPolicy) -> Self {
        Self {
            shared,
            policy,
            sequence: 0,
            unset: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Returns the writer for objects of transactions before they commit. None if the policy has none. It is called once, on this writer's
    /// thread.
    pub fn objects(&self) -> Option<ObjectWriter> {
        let writer = || ObjectWriter::new(Arc::clone(&self.shared), self.policy);
        self.policy.is_on_insert().then(writer)
    }

    /// Writes `count` whole records, the first with `lsn`, except the bytes that its [`ObjectWriter`] has `placed` since the last
    /// `persist`, in growing order. After a crash all of them are there or none. They are persistent after the next
    /// [`RingWriter::persist`].
    pub fn records(&mut self, lsn: Lsn, count: u32, bytes: &[u8], placed: &[PlacedBytes]) -> Result<(), RingFull> {
        let place = self.room_for(bytes.len(), placed)?;
        let (kind, shared) = (kind_of(placed), &*self.shared);
        let object = &mut self.scratch;
        object.clear();
        object.extend_from_slice(&lsn.0.to_le_bytes());
        object.extend_from_slice(&self.sequence.to_le_bytes());
        object.extend_from_slice(&(payload_bytes(bytes.len(), placed) as u32).to_le_bytes());
        object.extend_from_slice(&[0; 4]);
        object.extend_from_slice(&[kind as u8, 0, 0, 0]);
        object.extend_from_slice(&count.to_le_bytes());
        match kind {
            ObjectKind::Records => object.extend_from_slice(bytes),
            ObjectKind::Commit => push_commit(&shared.geometry, bytes, placed, object),
        }
        // The checksum covers all bytes, with zeros in its own place.
        let sum = crc_of(object);
        object[20..24].copy_from_slice(&sum.to_le_bytes());
        // Whole lines: memory takes them without having read them.
        object.resize(object.len().next_multiple_of(LINE_BYTES), 0);
        shared
            .memory
            .write(shared.geometry.object_at(shared.ring, place), object);
        self.unset.push(shared.geometry.entry(self.sequence, place));
        shared.place.store(place + object.len() as u64, Ordering::Relaxed);
        self.sequence += 1;
        Ok(())
    }

    /// Checks whether `records` has room for this many bytes, of which some are `placed`. Room that is there stays until it is used.
    pub fn check_room(&self, bytes: usize, placed: &[PlacedBytes]) -> Result<(), RingFull> {
        self.room_for(bytes, placed).map(drop)
    }

    /// Checks whether two calls of `records`, of `bytes` and then `then` bytes, have room. Room that is there stays until it is used.
    pub fn check_room_for_two(&self, bytes: usize, then: usize) -> Result<(), RingFull> {
        let (shared, second) = (&*self.shared, OBJECT_HEADER_BYTES + LINE_BYTES);
        self.room_for(bytes + second + then, &[])?;
        let entries = self.sequence + 2 - shared.freed.load(Ordering::Acquire);
        match entries <= shared.geometry.entries as u64 {
            true => Ok(()),
            false => Err(RingFull::ForNow),
        }
    }

    /// Bytes of records that one call of `records` takes, at most.
    pub fn bytes_max(&self) -> u64 {
        // Bytes skipped at the ring's end count, too.
        self.shared.geometry.objects_bytes / 4 - OBJECT_HEADER_BYTES as u64
    }

    /// Makes all that was written persistent: the objects first, then their state bits. One wait for each, whatever their number.
    pub fn persist(&mut self) {
        if self.unset.is_empty() {
            return;
        }
        let shared = &*self.shared;
        shared.memory.drain();
        let first = self.sequence - self.unset.len() as u64;
        // The writes go around the ring's end at most once, or more often if one group takes all entries.
        let mut done = 0;
        while done < self.unset.len() {
            let sequence = first + done as u64;
            let left = shared.geometry.entries as u64 - sequence % shared.geometry.entries as u64;
            let run = &self.unset[done..self.unset.len().min(done + left as usize)];
            shared
                .memory
                .store_all(shared.geometry.entry_at(shared.ring, sequence), run);
            done += run.len();
        }
        self.unset.clear();
        shared.memory.drain();
        let place = shared.place.load(Ordering::Relaxed);
        shared.persisted_place.store(place, Ordering::Release);
        shared.persisted.store(self.sequence, Ordering::Release);
    }

    /// Entries and bytes that are persistent and not freed.
    #[inline]
    pub fn fill(&self) -> RingFill {
        self.shared.fill()
    }

    /// The place of an object with this many bytes of records.
    fn room_for(&self, bytes: usize, placed: &[PlacedBytes]) -> Result<u64, RingFull> {
        let shared = &*self.shared;
        let (need, ring_bytes) = (
            object_bytes(payload_bytes(bytes, placed)),
            shared.geometry.objects_bytes,
        );
        let now = shared.place.load(Ordering::Relaxed);
        let place = place_for(now, need, ring_bytes);
        // Objects before it take their own part.
        if place + need - now > ring_bytes * 3 / 4 || placed.is_empty() && place + need - now > ring_bytes / 2 {
            return Err(RingFull::Forever {
                bytes: need,
                ring_bytes,
            });
        }
        let has_entry = self.sequence - shared.freed.load(Ordering::Acquire) < shared.geometry.entries as u64;
        let has_lines = place + need - shared.freed_place.load(Ordering::Acquire) <= ring_bytes;
        match has_entry && has_lines {
            true => Ok(place),
            false => Err(RingFull::ForNow),
        }
    }
}

fn kind_of(placed: &[PlacedBytes]) -> ObjectKind {
    match placed.is_empty() {
        true => ObjectKind::Records,
        false => ObjectKind::Commit,
    }
}

fn payload_bytes(records: usize, placed: &[PlacedBytes]) -> usize {
    match kind_of(placed) {
        ObjectKind::Records => records,
        ObjectKind::Commit => commit_bytes(records, placed),
    }
}

fn object_bytes(payload: usize) -> u64 {
    (OBJECT_HEADER_BYTES + payload).next_multiple_of(LINE_BYTES) as u64
}

/// The place of an object of `bytes` at or behind `place`: it does not wrap around the ring's end.
pub(crate) fn place_for(place: u64, bytes: u64, ring_bytes: u64) -> u64 {
    match place % ring_bytes + bytes <= ring_bytes {
        true => place,
        false => place.next_multiple_of(ring_bytes),
    }
}

/// An object's header.
#[derive(Clone, Copy, Debug)]
struct ObjectHeader {
    lsn: Lsn,
    bytes: usize,
    kind: ObjectKind,
    /// Records that it is.
    count: u32,
}

/// A record as a ring holds it, or several that were written together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RingRecord {
    /// LSN of the first record.
    pub lsn: Lsn,
    /// Records that it is: 1, or as many as were written together.
    pub count: u32,
    /// Encoded, one record behind the other.
    pub bytes: Vec<u8>,
    /// The position up to which the ring can be freed once the record is safe elsewhere.
    pub(crate) end: RingPosition,
}

/// A place of a ring between two objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RingPosition {
    pub sequence: u64,
    pub place: u64,
}

/// Why there is no record at a position.
pub(crate) enum NoRecord {
    /// Nothing that is persistent.
    End,
    Damaged,
}

/// The one reader of a ring: it copies the records to the disk and frees them.
pub struct RingReader {
    shared: Arc<RingState>,
    at: RingPosition,
    object: Vec<u8>,
}

impl RingReader {
    pub(crate) fn new(shared: Arc<RingState>) -> Self {
        Self {
            shared,
            at: RingPosition::default(),
            object: Vec::new(),
        }
    }

    /// Returns the next persistent record, in the ring's order; Ok(None) if there is none yet. Err: the region was damaged at this sequence
    /// number.
    pub fn next_record(&mut self) -> Result<Option<RingRecord>, u64> {
        if self.at.sequence >= self.shared.persisted.load(Ordering::Acquire) {
            return Ok(None);
        }
        match self.step() {
            Ok(record) => Ok(Some(record)),
            Err(NoRecord::End | NoRecord::Damaged) => Err(self.at.sequence),
        }
    }

    /// Searches this ring.
    pub fn gauge(&self) -> RingGauge {
        RingGauge(self.shared.clone())
    }

    /// Gives the room of `record`, and of all before it, back to the writer. All of them are safe elsewhere.
    pub fn free(&mut self, record: &RingRecord) {
        let shared = &*self.shared;
        let RingPosition { sequence, place } = record.end;
        shared
            .memory
            .store(shared.geometry.freed_at(shared.ring), freed_word(sequence));
        shared.memory.drain();
        shared.freed_place.store(place, Ordering::Release);
        shared.freed.store(sequence, Ordering::Release);
    }

    pub(crate) fn position(&self) -> u64 {
        self.at.sequence
    }

    /// Begins at `sequence` instead, wherever its object lies.
    pub(crate) fn seek(&mut self, sequence: u64) {
        self.at = RingPosition { sequence, place: 0 };
    }

    /// Reads the record at the position, and goes behind it.
    pub(crate) fn step(&mut self) -> Result<RingRecord, NoRecord> {
        let before = self.at;
        self.read_record().inspect_err(|_| self.at = before)
    }

    fn read_record(&mut self) -> Result<RingRecord, NoRecord> {
        let header = self.read_object()?;
        let payload = &self.object[OBJECT_HEADER_BYTES..][..header.bytes];
        let mut bytes = Vec::new();
        match header.kind {
            ObjectKind::Records => bytes.extend_from_slice(payload),
            ObjectKind::Commit => read_commit(&self.shared, payload, &mut bytes)?,
        }
        Ok(RingRecord {
            lsn: header.lsn,
            count: header.count,
            bytes,
            end: self.at,
        })
    }

    /// Reads the object at the position, and goes behind it.
    fn read_object(&mut self) -> Result<ObjectHeader, NoRecord> {
        let (memory, geometry, ring) = (&self.shared.memory, &self.shared.geometry, self.shared.ring);
        let sequence = self.at.sequence;
        let offset = match geometry.entry_state(memory.load(geometry.entry_at(ring, sequence)), sequence) {
            EntryState::Set { place } => place,
            EntryState::Unset => return Err(NoRecord::End),
            EntryState::Damaged => return Err(NoRecord::Damaged),
        };
        self.object.resize(OBJECT_HEADER_BYTES, 0);
        memory.read(geometry.object_at(ring, offset), &mut self.object);
        let u64_at = |at: usize| u64::from_le_bytes(self.object[at..at + 8].try_into().expect("8 bytes"));
        let u32_at = |at: usize| u32::from_le_bytes(self.object[at..at + 4].try_into().expect("4 bytes"));
        let (lsn, found, bytes) = (Lsn(u64_at(0)), u64_at(8), u32_at(16) as usize);
        let (sum, count) = (u32_at(20), u32_at(28));
        let kind = ObjectKind::from_byte(self.object[24]).ok_or(NoRecord::Damaged)?;
        if found != sequence || offset + object_bytes(bytes) > geometry.objects_bytes {
            return Err(NoRecord::Damaged);
        }
        self.object.resize(OBJECT_HEADER_BYTES + bytes, 0);
        memory.read(geometry.object_at(ring, offset), &mut self.object);
        self.object[20..24].fill(0);
        if crc_of(&self.object) != sum {
            return Err(NoRecord::Damaged);
        }
        let begins = self.at.place / geometry.objects_bytes * geometry.objects_bytes + offset;
        let begins = match begins < self.at.place {
            true => begins + geometry.objects_bytes,
            false => begins,
        };
        self.at = RingPosition {
            sequence: sequence + 1,
            place: begins + object_bytes(bytes),
        };
        Ok(ObjectHeader {
            lsn,
            bytes,
            kind,
            count,
        })
    }
}
