//! The preparer thread: has the next segment ready before the flusher needs it, so that a full disk is met here.

use std::{
    sync::{Arc, MutexGuard},
    time::Duration,
};

use reprise_base::limits::BLOCK_BYTES_MAX;
use reprise_env::{Disk, DiskError, DiskErrorKind, DiskFile, Step, Work};
use reprise_wire::SEGMENT_HEADER_BYTES;

use crate::{
    error::LogError,
    index::{RECYCLE_NAME, SPARE_NAME},
    state::{LogShared, LogState, Spare, no_room},
};

/// After a failure, time until the next try.
pub(crate) const RETRY_AFTER: Duration = Duration::from_millis(500);

pub(crate) struct Preparer<P> {
    shared: Arc<LogShared<P>>,
    /// Time of its last failure. Only a stepped preparer has it.
    failed_at_ns: u64,
}

/// Bytes of room that a segment has at least, if the disk has as many and the configured size is not smaller.
const SPARE_ROOM_MIN: u64 = 1 << 20;
/// Unit of a segment's room, if the disk decides on it.
const ROOM_STEP: u64 = 4 << 10;

/// The next action of the preparer.
enum PrepareAction {
    /// Prepare a spare, in place of one that is too small and that no block counts on.
    Prepare(WantedRoom, Option<Spare>),
    Wait,
    Over,
}

/// Room that the next spare should have.
#[derive(Clone, Copy)]
struct WantedRoom {
    /// Bytes for a waiting block; 0 if there is none.
    needed: u64,
    /// A segment as large as the log would have it.
    wished: u64,
}

/// The result of an attempt: a spare, or the reason why there is none. Both, if there is a spare that is too small for a waiting
/// block.
struct PrepareResult {
    spare: Option<Spare>,
    error: Option<DiskError>,
}

impl PrepareResult {
    fn whole(spare: Spare) -> Self {
        Self {
            spare: Some(spare),
            error: None,
        }
    }

    fn none(error: DiskError) -> Self {
        Self {
            spare: None,
            error: Some(error),
        }
    }
}

impl<P: Send + 'static> Work for Preparer<P> {
    fn run(self: Box<Self>) {
        while let Some((wanted, smaller)) = self.next_request() {
            let prepared = self.prepare(wanted, smaller);
            self.publish(wanted, prepared);
        }
    }

    fn step(&mut self) -> Step {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let now_ns = shared.clock.monotonic_ns();
        let waited_ns = now_ns.saturating_sub(self.failed_at_ns);
        let has_waited = state.spare_error.is_none() || waited_ns as u128 >= RETRY_AFTER.as_nanos();
        match next(&mut state, has_waited) {
            PrepareAction::Wait => Step::Idle,
            PrepareAction::Over => Step::Over,
            PrepareAction::Prepare(wanted, smaller) => {
                drop(state);
                self.failed_at_ns = now_ns;
                let prepared = self.prepare(wanted, smaller);
                self.publish(wanted, prepared);
                Step::Done
            }
        }
    }
}

fn next<P>(state: &mut LogState<P>, has_waited: bool) -> PrepareAction {
    if state.is_closing || state.stopped.is_some() {
        return PrepareAction::Over;
    }
    // A block that begins the old spare has to rename it first.
    let is_name_free = state.spare.is_some() == state.is_spare_named;
    let is_free = is_name_free && state.spare_is_free();
    let wanted = WantedRoom {
        needed: state.spare_wanted,
        wished: state.spare_wish,
    };
    if wanted.room() == 0 || !has_waited || !is_free {
        return PrepareAction::Wait;
    }
    let smaller = state.spare.take();
    state.is_spare_growing = smaller.is_some();
    state.spare_wish = 0;
    PrepareAction::Prepare(wanted, smaller)
}

impl<P> LogState<P> {
    /// Why the longest block would be refused, though shorter ones are taken.
    pub fn lack_of_room(&self) -> Option<LogError> {
        let error = self.spare_error.as_ref();
        error.filter(|_| !self.fits(BLOCK_BYTES_MAX)).map(no_room)
    }
}

impl WantedRoom {
    /// The larger of the two.
    fn room(self) -> u64 {
        self.needed.max(self.wished)
    }
}

impl<P: Send + 'static> Preparer<P> {
    pub fn new(shared: Arc<LogShared<P>>) -> Self {
        Self {
            shared,
            failed_at_ns: 0,
        }
    }

    fn publish(&self, wanted: WantedRoom, prepared: PrepareResult) {
        let mut state = self.shared.lock();
        match &prepared.spare {
            Some(spare) if spare.room >= state.spare_wanted => state.spare_wanted = 0,
            Some(_) => {}
            None => state.spare_wish = state.spare_wish.max(wanted.wished),
        }
        state.is_spare_growing = false;
        state.is_spare_named = prepared.spare.is_some();
        state.spare = prepared.spare;
        state.spare_error = prepared.error;
        self.shared.clear_refusal(&state);
        drop(state);
        self.shared.space.notify_all();
    }

    /// Waits for a request; none when the log ends.
    fn next_request(&self) -> Option<(WantedRoom, Option<Spare>)> {
        let shared = &*self.shared;
        let mut state = shared.lock();
        let mut has_waited = state.spare_error.is_none();
        loop {
            match next(&mut state, has_waited) {
                PrepareAction::Prepare(wanted, smaller) => return Some((wanted, smaller)),
                PrepareAction::Over => return None,
                PrepareAction::Wait => (state, has_waited) = wait(shared, state, has_waited),
            }
        }
    }

    /// Makes a spare of the wished room, or else of half of the disk's room, or else of the needed room. If the disk has not even that,
    /// shorter records still get a small one.
    fn prepare(&self, wanted: WantedRoom, smaller: Option<Spare>) -> PrepareResult {
        let room = wanted.room();
        let least = wanted.needed.max(SPARE_ROOM_MIN.min(room));
        let (error, fitted) = match self.make(room, smaller) {
            Ok(spare) => return PrepareResult::whole(spare),
            Err(failed) => failed,
        };
        if error.kind != DiskErrorKind::Full {
            return PrepareResult::none(error);
        }
        let half = fitted / 2 / ROOM_STEP * ROOM_STEP;
        let error = match self.make(half.clamp(least, room), None) {
            Ok(spare) => return PrepareResult::whole(spare),
            Err((error, _)) => error,
        };
        let short = SPARE_ROOM_MIN.min(self.shared.config.segment_bytes - SEGMENT_HEADER_BYTES as u64);
        let spare = match short < least && error.kind == DiskErrorKind::Full {
            true => self.make(short, None).ok(),
            false => None,
        };
        PrepareResult {
            spare,
            error: Some(error),
        }
    }

    /// Makes a spare of so much room, or takes its file away again. Err: also the bytes that the disk had for it.
    fn make(&self, room: u64, smaller: Option<Spare>) -> Result<Spare, (DiskError, u64)> {
        let disk = &*self.shared.disk;
        let none = |error| (error, 0);
        let file = match smaller {
            Some(spare) => spare.file,
            None => open_spare(disk).map_err(none)?,
        };
        let bytes = (room + SEGMENT_HEADER_BYTES as u64).max(file.len().map_err(none)?);
        match file.preallocate(bytes).and_then(|()| disk.sync_dir()) {
            Ok(()) => Ok(Spare {
                room: bytes - SEGMENT_HEADER_BYTES as u64,
                file,
            }),
            Err(error) => {
                let fitted = file.len().unwrap_or(0);
                // Others need the space more than half a file does. The first error tells more than one of this.
                let _ = disk.remove(SPARE_NAME);
                Err((error, fitted))
            }
        }
    }
}

fn wait<'a, P>(
    shared: &LogShared<P>,
    state: MutexGuard<'a, LogState<P>>,
    has_waited: bool,
) -> (MutexGuard<'a, LogState<P>>, bool) {
    if has_waited {
        let waited = shared.prepare.wait(state);
        return (waited.expect("the log's state is whole"), true);
    }
    let still = |state: &mut LogState<P>| !state.is_closing && state.stopped.is_none();
    let waited = shared.prepare.wait_timeout_while(state, RETRY_AFTER, still);
    (waited.expect("the log's state is whole").0, true)
}

/// A file for the next segment: one that fell out of the log, else a new one.
fn open_spare(disk: &dyn Disk) -> Result<Arc<dyn DiskFile>, DiskError> {
    match disk.rename(RECYCLE_NAME, SPARE_NAME) {
        Ok(()) => {
            // Its blocks are overwritten next: by then no crash may bring its old name back.
            disk.sync_dir()?;
            disk.open(SPARE_NAME)
        }
        Err(error) if error.kind == DiskErrorKind::NotFound => match disk.create(SPARE_NAME) {
            // Left by a failure whose clean-up failed, too.
            Err(error) if error.kind == DiskErrorKind::Exists => disk.open(SPARE_NAME),
            created => created,
        },
        Err(error) => Err(error),
    }
}
