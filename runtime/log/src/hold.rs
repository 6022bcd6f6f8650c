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
pub struct Hold {
    keeper: Arc<Keeper>,
    number: u64,
    name: Arc<str>,
    is_let_go: Arc<AtomicBool>,
}

/// A replication slot, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldInfo {
    /// Name of its standby.
    pub name: Arc<str>,
    /// Records from here on are kept.
    pub from: Lsn,
    /// Bytes of log that only this slot keeps, about.
    pub bytes: u64,
}

struct Held {
    number: u64,
    name: Arc<str>,
    from: Lsn,
    is_let_go: Arc<AtomicBool>,
}

/// Releases segments one at a time: a crash between two of them leaves a log without gaps.
pub(crate) struct Keeper {
    disk: Arc<dyn Disk>,
    index: Arc<LogIndex>,
    durable: Arc<Durable>,
    state: Mutex<State>,
}

struct State {
    /// Checkpoints need no record before it.
    released: Lsn,
    bytes_max: u64,
    held: Vec<Held>,
    next_number: u64,
    /// A segment that is out of the index, and perhaps still on the disk.
    going: Option<u64>,
    /// Set before another process may use the directory.
    is_closed: bool,
}

impl State {
    /// All records from here on are kept.
    fn kept_from(&self) -> Lsn {
        let held = self.held.iter().map(|held| held.from);
        held.fold(self.released, Lsn::min)
    }

    fn find(&mut self, number: u64) -> Option<&mut Held> {
        self.held.iter_mut().find(|held| held.number == number)
    }
}

impl Keeper {
    pub fn new(disk: Arc<dyn Disk>, index: Arc<LogIndex>, durable: Arc<Durable>) -> Self {
        let state = State {
            released: Lsn(0),
            bytes_max: u64::MAX,
            held: Vec::new(),
            next_number: 0,
            going: None,
            is_closed: false,
        };
        Self {
            disk,
            index,
            durable,
            state: Mutex::new(state),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while segments go")
    }

    /// Stops all releases.
    pub fn close(&self) {
        self.lock().is_closed = true;
    }

    /// Bytes of log that are released together with `slot`, unless another slot keeps them.
    fn bytes_of(&self, held: &Held, released: Lsn) -> u64 {
        self.index.bytes_between(held.from, released, self.durable.get())
    }

    /// Releases the slots that lag most until no other keeps more bytes than allowed.
    fn let_go_of_laggards(&self, state: &mut State) {
        let (bytes_max, released) = (state.bytes_max, state.released);
        state.held.retain(|held| {
            let is_kept = self.bytes_of(held, released) <= bytes_max;
            if !is_kept {
                held.is_let_go.store(true, Ordering::Release);
            }
            is_kept
        });
    }

    /// Oldest first, each step durable.
    fn release(&self, state: &mut State) -> Result<usize, LogError> {
        if state.is_closed {
            return Ok(0);
        }
        self.let_go_of_laggards(state);
        let (disk, until) = (&*self.disk, state.kept_from());
        let mut count = 0;
        loop {
            // A segment whose release failed goes first, or the log would have a gap.
            state.going = state.going.take().or_else(|| self.index.take_oldest_before(until));
            let Some(place) = state.going else {
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
            state.going = None;
            count += 1;
        }
    }
}

impl Hold {
    /// Name of its standby.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True once it kept more bytes than slots may: its records may be gone.
    pub fn is_let_go(&self) -> bool {
        self.is_let_go.load(Ordering::Acquire)
    }

    /// Moves the slot forward to `from`; no effect if it is there already. Returns the number of segments that this released.
    pub fn advance(&self, from: Lsn) -> Result<usize, LogError> {
        let mut state = self.keeper.lock();
        let Some(held) = state.find(self.number).filter(|held| held.from < from) else {
            return Ok(0);
        };
        held.from = from;
        self.keeper.release(&mut state)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.keeper.lock();
        state.held.retain(|held| held.number != self.number);
        // A failed release is retried at a later checkpoint, or at the next opening.
        let _ = self.keeper.release(&mut state);
    }
}

impl<P: Send + 'static> Log<P> {
    /// Creates a slot that keeps the records from `from` on. Refused if some of them are gone already.
    pub fn hold(&self, name: &str, from: Lsn) -> Result<Hold, LogError> {
        let keeper = &self.keeper;
        let mut state = keeper.lock();
        let (start, end) = (self.start(), self.durable());
        if from < start || from > end {
            return Err(LogError::OutOfRange { lsn: from, start, end });
        }
        let (number, name): (_, Arc<str>) = (state.next_number, name.into());
        let is_let_go = Arc::new(AtomicBool::new(false));
        state.next_number += 1;
        state.held.push(Held {
            number,
            name: name.clone(),
            from,
            is_let_go: is_let_go.clone(),
        });
        Ok(Hold {
            keeper: Arc::clone(keeper),
            number,
            name,
            is_let_go,
        })
    }

    /// Sets the limit of a slot. A slot that keeps more bytes of log is released: a standby that never returns must not fill the disk.
    pub fn set_hold_bytes_max(&self, bytes: u64) -> Result<(), LogError> {
        let mut state = self.keeper.lock();
        state.bytes_max = bytes;
        self.keeper.release(&mut state).map(drop)
    }

    /// All slots.
    pub fn holds(&self) -> Vec<HoldInfo> {
        let state = self.keeper.lock();
        let info = |held: &Held| HoldInfo {
            name: held.name.clone(),
            from: held.from,
            bytes: self.keeper.bytes_of(held, state.released),
        };
        state.held.iter().map(info).collect()
    }

    /// Names of the files that the next `release_before` of this LSN no longer needs, oldest first. It includes files that slots keep,
    /// and no file that an earlier release has named.
    pub fn releasable_before(&self, lsn: Lsn) -> Vec<String> {
        let index = &self.shared.index;
        let before = index.oldest_before(self.keeper.lock().released).len();
        let places = index.oldest_before(lsn).into_iter().skip(before);
        places.map(segment_name).collect()
    }

    /// Releases segments that end before `lsn`, and returns how many were released now; segments that a slot keeps follow with the
    /// slot. The first becomes the next spare, others are removed.
    pub fn release_before(&self, lsn: Lsn) -> Result<usize, LogError> {
        let mut state = self.keeper.lock();
        state.released = state.released.max(lsn);
        self.keeper.release(&mut state)
    }
}
