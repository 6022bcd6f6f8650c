//! Groups as they were sealed, for whoever sends them on: so many bytes, the oldest of which give way. Who comes too late for one reads it
//! from the log's files.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use crossbeam_channel::Sender;
use reprise_base::Lsn;
use reprise_log::{Group, GroupSink, Position};
use reprise_wire::{GROUP_HEAD_BYTES, GroupFrame};

/// A sealed group.
pub(crate) struct Sealed {
    first: Lsn,
    pub end: Position,
    version: u32,
    pub records: Box<[u8]>,
    head: OnceLock<[u8; GROUP_HEAD_BYTES]>,
}

impl Sealed {
    fn of(group: &Group<'_>) -> Self {
        Self {
            first: group.first,
            end: group.end,
            version: group.version,
            records: group.records.into(),
            head: OnceLock::new(),
        }
    }

    /// Of its frame: made once, by whoever is the first to send it.
    pub fn head(&self) -> &[u8; GROUP_HEAD_BYTES] {
        self.head.get_or_init(|| {
            let frame = GroupFrame {
                epoch: self.end.epoch,
                first: self.first,
                end: self.end.lsn,
                history: self.end.history,
                format: self.version,
                records: &self.records,
            };
            frame.head()
        })
    }
}

/// What the ring has for who has everything before an LSN.
pub(crate) enum Found {
    Group(Arc<Sealed>),
    /// Nothing was sealed behind it since the ring has been filled.
    Nothing,
    /// The group in which it lies is not, or no longer, here.
    Missing,
}

pub(crate) struct Ring {
    bytes_max: usize,
    state: Mutex<State>,
    /// Nobody reads: nothing is copied. Looked at for each group.
    has_readers: AtomicBool,
}

#[derive(Default)]
struct State {
    groups: VecDeque<Arc<Sealed>>,
    bytes: usize,
    readers: Vec<(u64, Sender<()>)>,
}

impl Ring {
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            state: Mutex::default(),
            has_readers: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }

    /// From here on groups are kept, and `wake` is told of each.
    pub fn add_reader(&self, number: u64, wake: Sender<()>) {
        let mut state = self.lock();
        state.readers.push((number, wake));
        self.has_readers.store(true, Ordering::SeqCst);
    }

    pub fn remove_reader(&self, number: u64) {
        let mut state = self.lock();
        state.readers.retain(|(known, _)| *known != number);
        if state.readers.is_empty() {
            self.has_readers.store(false, Ordering::SeqCst);
            state.groups = VecDeque::new();
            state.bytes = 0;
        }
    }

    pub fn wake_all(&self) {
        self.lock().wake();
    }

    /// The group that begins at `from`.
    pub fn find(&self, from: Lsn) -> Found {
        let state = self.lock();
        let Some(last) = state.groups.back() else {
            return Found::Nothing;
        };
        if last.end.lsn == from {
            return Found::Nothing;
        }
        let at = state.groups.partition_point(|group| group.first < from);
        match state.groups.get(at).filter(|group| group.first == from) {
            Some(group) => Found::Group(Arc::clone(group)),
            None => Found::Missing,
        }
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.lock().bytes
    }
}

impl State {
    fn wake(&self) {
        for (_, wake) in &self.readers {
            let _ = wake.try_send(()); // full: it is awake already
        }
    }
}

impl GroupSink for Ring {
    fn take(&self, group: &Group<'_>) {
        if !self.has_readers.load(Ordering::SeqCst) {
            return;
        }
        let sealed = Arc::new(Sealed::of(group));
        let mut given_up = Vec::new();
        let mut state = self.lock();
        if state.readers.is_empty() {
            return;
        }
        state.bytes += sealed.records.len();
        state.groups.push_back(sealed);
        while state.bytes > self.bytes_max {
            let oldest = state.groups.pop_front().expect("it has bytes");
            state.bytes -= oldest.records.len();
            given_up.push(oldest);
        }
        state.wake();
        drop(state);
        drop(given_up); // memory is given back outside of the lock
    }
}

#[cfg(test)]
mod tests {
    use reprise_base::Epoch;
    use reprise_wire::{FORMAT_VERSION, History};

    use super::*;

    fn take(ring: &Ring, first: u64, end: u64, bytes: usize) {
        ring.take(&Group {
            first: Lsn(first),
            end: Position {
                epoch: Epoch(1),
                lsn: Lsn(end),
                history: History(7),
            },
            version: FORMAT_VERSION,
            records: &vec![1; bytes],
        });
    }

    fn found(ring: &Ring, from: u64) -> &'static str {
        match ring.find(Lsn(from)) {
            Found::Group(_) => "group",
            Found::Nothing => "nothing",
            Found::Missing => "missing",
        }
    }

    #[test]
    fn the_oldest_groups_give_way_and_nothing_is_kept_for_nobody() {
        let ring = Ring::new(1_000);
        take(&ring, 0, 5, 100);
        assert_eq!((ring.bytes(), found(&ring, 0)), (0, "nothing"));
        let (wake, woken) = crossbeam_channel::bounded(1);
        ring.add_reader(1, wake);
        for first in 1..5 {
            take(&ring, first * 5, first * 5 + 5, 300);
        }
        assert_eq!((ring.bytes(), woken.len()), (900, 1));
        let at = |from| found(&ring, from);
        assert_eq!(
            [at(5), at(10), at(12), at(20), at(25)],
            ["missing", "group", "missing", "group", "nothing"]
        );
        // One that is too large for it leaves nothing in it.
        take(&ring, 25, 30, 1_001);
        assert_eq!((ring.bytes(), at(20), at(25)), (0, "nothing", "nothing"));
        take(&ring, 30, 31, 10);
        assert_eq!((at(25), at(30)), ("missing", "group"));
        ring.remove_reader(1);
        take(&ring, 31, 32, 10);
        assert_eq!((ring.bytes(), at(31)), (0, "nothing"));
    }
}
