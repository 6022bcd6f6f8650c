//! The list of running and waiting calls: each batch on its way, its calls and their progress. The sender fills it once for each batch. The
//! thread that runs the batch only records the current call.

use std::sync::{
    Arc, Mutex, OnceLock,
    atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
};

use reprise_base::{PartitionId, TxnId};
use reprise_txn::{CallEnds, EndReason, ModuleId};

use crate::batch::CallSlot;

/// Calls on their way.
pub struct Calls {
    /// Milliseconds that a call may run if its procedure declares no time; 0: no limit.
    time_max_ms: AtomicU32,
    /// The next call's id.
    next: AtomicU64,
    shelves: [Mutex<Shelf>; SHELVES],
}

/// Lists over which batches are spread, so that the threads that send them seldom wait for each other.
const SHELVES: usize = 16;

/// Attempts to read a consistent state of a running thread. After this many changes in between, the reader assumes that it does not run.
const LOOKS_MAX: usize = 10_000;

#[derive(Default)]
struct Shelf {
    tracks: Vec<Option<Arc<Track>>>,
    free: Vec<usize>,
}

/// A batch on its way.
pub(crate) struct Track {
    /// Id of its first call. The ids of the others follow.
    first: u64,
    count: u32,
    partition: Option<PartitionId>,
    accepted_ns: u64,
    /// Runs of calls of one procedure: the position behind the last one, then the module and the procedure.
    kinds: Vec<(u32, ModuleId, u16)>,
    pub ends: Arc<CallEnds>,
    /// Number of calls that have begun, and the id of the last of them. The id is 0 while a thread changes both.
    begun: AtomicU32,
    txn_id: AtomicU64,
    /// Ids of all calls. The thread sets them once the last call has run.
    ran: OnceLock<Box<[TxnId]>>,
}

/// Keeps a batch in the list.
pub(crate) struct Ticket {
    calls: Arc<Calls>,
    pub track: Arc<Track>,
    shelf: usize,
    place: usize,
}

/// How far a call got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallStep {
    /// Its procedure runs.
    Running,
    /// The call has not begun.
    Queued,
    /// The call has run. The rest of its batch still runs, or its record is on its way to the disk.
    Committing,
}

/// A call on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallInfo {
    /// Id with which an operator may end the call.
    pub call_id: u64,
    /// None before the call begins, and from its end to that of its batch.
    pub txn_id: Option<TxnId>,
    /// The version that runs it.
    pub module: ModuleId,
    /// Its number in the module.
    pub procedure: u16,
    /// None for a call over several partitions.
    pub partition: Option<PartitionId>,
    /// Time since the server accepted the call.
    pub age_ns: u64,
    /// How far it got.
    pub phase: CallStep,
}

impl Calls {
    /// Returns the milliseconds that a call may run if its procedure declares no time; 0: no limit.
    pub fn time_max_ms(&self) -> u32 {
        self.time_max_ms.load(Ordering::Relaxed)
    }

    /// Sets `time_max_ms` for calls that begin from now on.
    pub fn set_time_max_ms(&self, time_max_ms: u32) {
        self.time_max_ms.store(time_max_ms, Ordering::Relaxed);
    }

    /// Lists a batch until its ticket is dropped.
    pub(crate) fn enter(
        self: &Arc<Self>,
        partition: Option<PartitionId>,
        calls: &[CallSlot],
        accepted_ns: u64,
    ) -> Ticket {
        let mut kinds: Vec<(u32, ModuleId, u16)> = Vec::with_capacity(1);
        for (at, call) in calls.iter().enumerate() {
            match kinds.last_mut() {
                Some((end, module, procedure)) if (*module, *procedure) == (call.module, call.procedure) => *end += 1,
                _ => kinds.push((at as u32 + 1, call.module, call.procedure)),
            }
        }
        let first = self.next.fetch_add(calls.len() as u64, Ordering::Relaxed);
        let track = Arc::new(Track {
            first,
            count: calls.len() as u32,
            partition,
            accepted_ns,
            kinds,
            ends: Arc::default(),
            begun: AtomicU32::new(0),
            txn_id: AtomicU64::new(0),
            ran: OnceLock::new(),
        });
        let shelf = first as usize % SHELVES;
        let place = self.shelves[shelf].lock().expect("held for a push").put(track.clone());
        Ticket {
            calls: self.clone(),
            track,
            shelf,
            place,
        }
    }

    fn tracks(&self) -> Vec<Arc<Track>> {
        let shelves = self.shelves.iter();
        let of = |shelf: &Mutex<Shelf>| -> Vec<_> {
            let shelf = shelf.lock().expect("held for a copy");
            shelf.tracks.iter().flatten().cloned().collect()
        };
        shelves.flat_map(of).collect()
    }

    /// Returns the calls on their way, the first accepted first, and how many there are in all.
    pub fn list(&self, now_ns: u64, limit: usize) -> (Vec<CallInfo>, u64) {
        let mut tracks = self.tracks();
        tracks.sort_unstable_by_key(|track| (track.accepted_ns, track.first));
        let (mut listed, count) = (Vec::new(), tracks.iter().map(|track| u64::from(track.count)).sum());
        for track in tracks {
            if listed.len() >= limit {
                break;
            }
            let mut own = track.list(now_ns);
            own.sort_unstable_by_key(|call| (call.phase, call.call_id));
            listed.extend(own.into_iter().take(limit - listed.len()));
        }
        (listed, count)
    }

    /// Ends a call by its own id or its transaction's id, unless it has run. Returns its phase before, or None if there is no such call.
    pub fn cancel(&self, id: u64, now_ns: u64) -> Option<CallInfo> {
        self.tracks().into_iter().find_map(|track| {
            let of_call = id.checked_sub(track.first).filter(|at| *at < u64::from(track.count));
            let at = of_call.map(|at| at as u32).or_else(|| track.find(TxnId(id)))?;
            let call = track.info(at, now_ns)?;
            if call.phase != CallStep::Committing {
                track.ends.end(at);
            }
            Some(call)
        })
    }
}

impl Default for Calls {
    /// Makes a list without a time limit.
    fn default() -> Self {
        Self {
            time_max_ms: AtomicU32::new(0),
            next: AtomicU64::new(1),
            shelves: Default::default(),
        }
    }
}

impl Shelf {
    fn put(&mut self, track: Arc<Track>) -> usize {
        match self.free.pop() {
            Some(place) => {
                self.tracks[place] = Some(track);
                place
            }
            None => {
                self.tracks.push(Some(track));
                self.tracks.len() - 1
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut shelf = self.calls.shelves[self.shelf].lock().expect("held for a store");
        shelf.tracks[self.place] = None;
        shelf.free.push(self.place);
    }
}

impl Track {
    /// Records that the call at this position begins.
    #[inline]
    pub fn begin(&self, at: u32, txn_id: TxnId) {
        self.txn_id.store(0, Ordering::Release);
        self.begun.store(at + 1, Ordering::Release);
        self.txn_id.store(txn_id.0, Ordering::Release);
    }

    /// Records that all calls have run.
    pub fn record_ran(&self, calls: &[CallSlot]) {
        let ids = calls.iter().map(|call| call.txn_id).collect();
        let is_first = self.ran.set(ids).is_ok();
        assert!(is_first, "a batch runs once");
    }

    /// Returns the position and the id of the running call.
    fn running(&self) -> Option<(u32, TxnId)> {
        if self.ran.get().is_some() {
            return None;
        }
        for _ in 0..LOOKS_MAX {
            let id = self.txn_id.load(Ordering::Acquire);
            let begun = self.begun.load(Ordering::Acquire);
            if begun == 0 {
                return None;
            }
            if id != 0 && id == self.txn_id.load(Ordering::Acquire) {
                return Some((begun - 1, TxnId(id)));
            }
            std::hint::spin_loop(); // the other thread writes it within a few instructions
        }
        None
    }

    fn find(&self, id: TxnId) -> Option<u32> {
        if let Some(ids) = self.ran.get() {
            return ids
                .iter()
                .position(|other| *other == id && id.0 != 0)
                .map(|at| at as u32);
        }
        self.running().filter(|(_, running)| *running == id).map(|(at, _)| at)
    }

    fn info(&self, at: u32, now_ns: u64) -> Option<CallInfo> {
        self.list(now_ns).into_iter().nth(at as usize)
    }

    /// Returns all calls, by position.
    fn list(&self, now_ns: u64) -> Vec<CallInfo> {
        let running = self.running();
        let ran = self.ran.get();
        let state = |at: u32| match (ran, running) {
            (Some(ids), _) => (CallStep::Committing, Some(ids[at as usize])),
            (None, Some((current, id))) if at == current => (CallStep::Running, Some(id)),
            (None, Some((current, _))) if at < current => (CallStep::Committing, None),
            _ => (CallStep::Queued, None),
        };
        let mut kinds = self.kinds.iter();
        let mut kind = kinds.next();
        (0..self.count)
            .map_while(|at| {
                if kind.is_some_and(|(end, ..)| at >= *end) {
                    kind = kinds.next();
                }
                let (phase, txn_id) = state(at);
                kind.map(|&(_, module, procedure)| CallInfo {
                    call_id: self.first + u64::from(at),
                    txn_id: txn_id.filter(|id| id.0 != 0),
                    module,
                    procedure,
                    partition: self.partition,
                    age_ns: now_ns.saturating_sub(self.accepted_ns),
                    phase,
                })
            })
            .collect()
    }
}

/// The time until which a client waits for a call to begin and to end. It also holds which came first: the beginning, or the deadline.
#[derive(Debug)]
pub struct Deadline {
    /// Time of the node's clock.
    ns: u64,
    state: AtomicU8,
}

const WAITS: u8 = 0;
const BEGUN: u8 = 1;
const EXPIRED: u8 = 2;

impl Deadline {
    /// Makes a deadline at a moment of the node's clock.
    pub fn new(ns: u64) -> Arc<Self> {
        let state = AtomicU8::new(WAITS);
        Arc::new(Self { ns, state })
    }

    /// Returns the moment, by the node's clock.
    pub fn ns(&self) -> u64 {
        self.ns
    }

    /// Keeps the call from beginning from now on. False: it has begun, and the caller ends it like any running call.
    pub fn expire(&self) -> bool {
        self.turn(EXPIRED)
    }

    /// Records that the call begins. False: the deadline has passed, so the call must not begin.
    fn begin(&self) -> bool {
        self.turn(BEGUN)
    }

    fn turn(&self, to: u8) -> bool {
        let turned = self
            .state
            .compare_exchange(WAITS, to, Ordering::AcqRel, Ordering::Acquire);
        turned.is_ok() || turned == Err(to)
    }
}

/// Returns the deadline of the call at a position. `deadlines` is ascending by position. A call that it does not name has none.
pub(crate) fn deadline_of(deadlines: &[(u32, Arc<Deadline>)], at: u32) -> Option<&Deadline> {
    match deadlines {
        [] => None,
        some => some
            .binary_search_by_key(&at, |(call, _)| *call)
            .ok()
            .map(|found| &*some[found].1),
    }
}

/// Returns why a call must not begin, if there is a reason.
#[inline]
pub(crate) fn ended_before(
    ends: &CallEnds,
    at: u32,
    deadline: Option<&Deadline>,
    now_ns: impl Fn() -> u64,
) -> Option<EndReason> {
    if ends.has(at) {
        return Some(EndReason::Cancelled);
    }
    let is_over = |deadline: &Deadline| now_ns() >= deadline.ns || !deadline.begin();
    deadline.is_some_and(is_over).then_some(EndReason::Deadline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::CallBatch;

    #[test]
    fn calls_are_listed_found_and_ended() {
        let calls = Arc::new(Calls::default());
        let mut batch = CallBatch::new(Some(PartitionId(3)));
        for procedure in [7, 7, 8] {
            batch.push(ModuleId(1), procedure, &[], None);
        }
        let ticket = calls.enter(batch.partition, &batch.calls, 1_000);
        let other = calls.enter(None, &batch.calls[..1], 500);
        let shown = |limit: usize| -> Vec<_> {
            let (listed, count) = calls.list(3_000, limit);
            assert_eq!(count, 4);
            listed
                .iter()
                .map(|call| (call.call_id, call.procedure, call.age_ns, call.phase, call.txn_id))
                .collect()
        };
        use CallStep::{Committing, Queued, Running};
        assert_eq!(shown(2), [(4, 7, 2_500, Queued, None), (1, 7, 2_000, Queued, None)]);
        ticket.track.begin(0, TxnId(50));
        ticket.track.begin(1, TxnId(51));
        let begun = [
            (4, 7, 2_500, Queued, None),
            (2, 7, 2_000, Running, Some(TxnId(51))),
            (3, 8, 2_000, Queued, None),
            (1, 7, 2_000, Committing, None),
        ];
        assert_eq!(shown(9), begun);
        let cancelled = calls.cancel(51, 3_000).expect("it runs");
        assert_eq!((cancelled.call_id, cancelled.phase), (2, Running));
        assert!(ticket.track.ends.has(1) && !ticket.track.ends.has(2));
        assert_eq!(calls.cancel(3, 3_000).map(|call| call.phase), Some(Queued));
        assert_eq!(calls.cancel(9, 3_000), None);
        batch
            .calls
            .iter_mut()
            .zip(50..)
            .for_each(|(call, id)| call.txn_id = TxnId(id));
        ticket.track.record_ran(&batch.calls);
        assert_eq!(
            calls.cancel(52, 3_000).map(|call| (call.call_id, call.phase)),
            Some((3, Committing))
        );
        drop(ticket);
        assert_eq!(calls.list(3_000, 9).1, 1);
        drop(other);
        assert_eq!(calls.list(3_000, 9), (Vec::new(), 0));
    }

    #[test]
    fn deadlines_are_those_of_the_calls_that_have_one() {
        let deadlines = [(1, Deadline::new(500)), (4, Deadline::new(600))];
        let found: Vec<_> = (0..6)
            .map(|at| deadline_of(&deadlines, at).map_or(0, Deadline::ns))
            .collect();
        assert_eq!(found, [0, 500, 0, 0, 600, 0]);
        let (ends, deadline) = (CallEnds::default(), Deadline::new(500));
        assert_eq!(
            ended_before(&ends, 0, Some(&deadline), || 500),
            Some(EndReason::Deadline)
        );
        assert_eq!(ended_before(&ends, 0, Some(&deadline), || 499), None);
        ends.end(0);
        assert_eq!(ended_before(&ends, 0, None, || 0), Some(EndReason::Cancelled));
    }

    #[test]
    fn a_call_begins_or_expires_and_never_both() {
        let ends = CallEnds::default();
        let (begun, expired) = (Deadline::new(500), Deadline::new(500));
        assert_eq!(ended_before(&ends, 0, Some(&begun), || 499), None);
        assert!(!begun.expire());
        assert!(expired.expire() && expired.expire());
        assert_eq!(
            ended_before(&ends, 0, Some(&expired), || 499),
            Some(EndReason::Deadline)
        );
        for _ in 0..1_000 {
            let deadline = Deadline::new(500);
            let (began, expired) = std::thread::scope(|scope| {
                let other = scope.spawn(|| deadline.expire());
                (deadline.begin(), other.join().expect("no panic"))
            });
            assert_ne!(began, expired);
        }
    }
}
