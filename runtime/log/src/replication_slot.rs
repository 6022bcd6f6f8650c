//! Release of the log's oldest segments, and replication slots: a slot keeps the segments that a standby still needs.

use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};

use reprise_base::Lsn;
use reprise_env::{Disk, DiskErrorKind};

use crate::{
    error::LogError,
    index::{LogIndex, RECYCLE_NAME, segment_name},
    log::Log,
    reader::Durable,
};

/// A replication slot: keeps the log's files from an LSN on, until it advances or is dropped.
#[must_use = "dropped, nothing is kept any more"]
pub struct ReplicationSlot {
    releaser: Arc<SegmentReleaser>,
    number: u64,
    name: Arc<str>,
    is_released: Arc<AtomicBool>,
}

/// A replication slot, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicationSlotInfo {
    /// Name of its standby.
    pub name: Arc<str>,
    /// Records from here on are kept.
    pub from: Lsn,
    /// Bytes of log that only this slot keeps, about.
    pub bytes: u64,
}

struct SlotEntry {
    number: u64,
    name: Arc<str>,
    from: Lsn,
    is_released: Arc<AtomicBool>,
}

/// Releases segments one at a time: a crash between two of them leaves a log without gaps.
pub(crate) struct SegmentReleaser {
    disk: Arc<dyn Disk>,
    index: Arc<LogIndex>,
    durable: Arc<Durable>,
    state: Mutex<SlotsState>,
}

struct SlotsState {
    /// Checkpoints need no record before it.
    released: Lsn,
    bytes_max: u64,
    slots: Vec<SlotEntry>,
    next_number: u64,
    /// A segment that is out of the index, and perhaps still on the disk.
    releasing: Option<u64>,
    /// Set before another process may use the directory.
    is_closed: bool,
}

impl SlotsState {
    /// All records from here on are kept.
    fn kept_from(&self) -> Lsn {
        let starts = self.slots.iter().map(|slot| slot.from);
        starts.fold(self.released, Lsn::min)
    }

    fn find(&mut self, number: u64) -> Option<&mut SlotEntry> {
        self.slots.iter_mut().find(|slot| slot.number == number)
    }
}

impl SegmentReleaser {
    pub fn new(disk: Arc<dyn Disk>, index: Arc<LogIndex>, durable: Arc<Durable>) -> Self {
        let state = SlotsState {
            released: Lsn(0),
            bytes_max: u64::MAX,
            slots: Vec::new(),
            next_number: 0,
            releasing: None,
            is_closed: false,
        };
        Self {
            disk,
            index,
            durable,
            state: Mutex::new(state),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SlotsState> {
        self.state.lock().expect("nothing panics while segments go")
    }

    /// Stops all releases.
    pub fn close(&self) {
        self.lock().is_closed = true;
    }

    /// Bytes of log that are released together with `slot`, unless another slot keeps them.
    fn bytes_of(&self, slot: &SlotEntry, released: Lsn) -> u64 {
        self.index.bytes_between(slot.from, released, self.durable.get())
    }

    /// Releases the slots that lag most until no other keeps more bytes than allowed.
    fn release_lagging_slots(&self, state: &mut SlotsState) {
        let (bytes_max, released) = (state.bytes_max, state.released);
        state.slots.retain(|slot| {
            let is_kept = self.bytes_of(slot, released) <= bytes_max;
            if !is_kept {
                slot.is_released.store(true, Ordering::Release);
            }
            is_kept
        });
    }

    /// Oldest first, each step durable.
    fn release(&self, state: &mut SlotsState) -> Result<usize, LogError> {
        if state.is_closed {
            return Ok(0);
        }
        self.release_lagging_slots(state);
        let (disk, until) = (&*self.disk, state.kept_from());
        let mut count = 0;
        loop {
            // A segment whose release failed goes first, or the log would have a gap.
            state.releasing = state.releasing.take().or_else(|| self.index.take_oldest_before(until));
            let Some(place) = state.releasing else {
                return Ok(count);
            };
            let name = segment_name(place);
            let is_taken = disk.list()?.iter().any(|name| name == RECYCLE_NAME);
            let gone = match is_taken {
                true => disk.remove(&name),
                false => disk.rename(&name, RECYCLE_NAME),
            };
            match gone {
                Err(error) if error.kind == DiskErrorKind::NotFound => {}
                gone => gone?,
            }
            disk.sync_dir()?;
            state.releasing = None;
            count += 1;
        }
    }
}

impl ReplicationSlot {
    /// Name of its standby.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True once it kept more bytes than slots may: its records may be gone.
    pub fn is_released(&self) -> bool {
        self.is_released.load(Ordering::Acquire)
    }

    /// Moves the slot forward to `from`; no effect if it is there already. Returns the number of segments that this released.
    pub fn advance(&self, from: Lsn) -> Result<usize, LogError> {
        let mut state = self.releaser.lock();
        let Some(slot) = state.find(self.number).filter(|slot| slot.from < from) else {
            return Ok(0);
        };
        slot.from = from;
        self.releaser.release(&mut state)
    }
}

impl Drop for ReplicationSlot {
    fn drop(&mut self) {
        let mut state = self.releaser.lock();
        state.slots.retain(|slot| slot.number != self.number);
        // A failed release is retried at a later checkpoint, or at the next opening.
        let _ = self.releaser.release(&mut state);
    }
}

impl<P: Send + 'static> Log<P> {
    /// Creates a slot that keeps the records from `from` on. Refused if some of them are gone already.
    pub fn create_slot(&self, name: &str, from: Lsn) -> Result<ReplicationSlot, LogError> {
        let releaser = &self.releaser;
        let mut state = releaser.lock();
        let (start, end) = (self.start(), self.durable());
        if from < start || from > end {
            return Err(LogError::OutOfRange { lsn: from, start, end });
        }
        let (number, name): (_, Arc<str>) = (state.next_number, name.into());
        let is_released = Arc::new(AtomicBool::new(false));
        state.next_number += 1;
        state.slots.push(SlotEntry {
            number,
            name: name.clone(),
            from,
            is_released: is_released.clone(),
        });
        Ok(ReplicationSlot {
            releaser: Arc::clone(releaser),
            number,
            name,
            is_released,
        })
    }

    /// Sets the limit of a slot. A slot that keeps more bytes of log is released: a standby that never returns must not fill the disk.
    pub fn set_slot_bytes_max(&self, bytes: u64) -> Result<(), LogError> {
        let mut state = self.releaser.lock();
        state.bytes_max = bytes;
        self.releaser.release(&mut state).map(drop)
    }

    /// All slots.
    pub fn slots(&self) -> Vec<ReplicationSlotInfo> {
        let state = self.releaser.lock();
        let info = |slot: &SlotEntry| ReplicationSlotInfo {
            name: slot.name.clone(),
            from: slot.from,
            bytes: self.releaser.bytes_of(slot, state.released),
        };
        state.slots.iter().map(info).collect()
    }

    /// Names of the files that the next `release_before` of this LSN no longer needs, oldest first. It includes files that slots keep,
    /// and no file that an earlier release has named.
    pub fn releasable_before(&self, lsn: Lsn) -> Vec<String> {
        let index = &self.shared.index;
        let before = index.oldest_before(self.releaser.lock().released).len();
        let places = index.oldest_before(lsn).into_iter().skip(before);
        places.map(segment_name).collect()
    }

    /// Releases segments that end before `lsn`, and returns how many were released now; segments that a slot keeps follow with the
    /// slot. The first becomes the next spare, others are removed.
    pub fn release_before(&self, lsn: Lsn) -> Result<usize, LogError> {
        let mut state = self.releaser.lock();
        state.released = state.released.max(lsn);
        self.releaser.release(&mut state)
    }
}
