//! The preparer thread: has the next segment ready before the flusher needs it, so that a full disk is met here.

use std::{
    sync::{Arc, MutexGuard},
    time::Duration,
};

use reprise_env::{Disk, DiskError, DiskErrorKind, DiskFile, Step, Work};
use reprise_wire::SEGMENT_HEADER_BYTES;

use crate::{
    index::{RECYCLE_NAME, SPARE_NAME},
    state::{Shared, Spare, State},
};

/// After a failure, time until the next try.
pub(crate) const RETRY_AFTER: Duration = Duration::from_millis(500);

pub(crate) struct Preparer<P> {
    shared: Arc<Shared<P>>,
    /// When it failed last; only where the preparer is stepped.
    failed_at_ns: u64,
}

/// What the preparer does next.
enum Next {
    /// The room wanted, and a spare that is too small for it and that no block counts on.
    Prepare(u64, Option<Spare>),
    Wait,
    Over,
}

impl<P: Send + 'static> Work for Preparer<P> {
    fn run(self: Box<Self>) {
        while let Some((room, smaller)) = self.next_request() {
            let prepared = self.prepare(room, smaller);
            self.publish(prepared);
        }
    }

    fn step(&mut self) -> Step {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let now_ns = shared.clock.monotonic_ns();
        let waited_ns = now_ns.saturating_sub(self.failed_at_ns);
        let has_waited = state.spare_error.is_none() || waited_ns as u128 >= RETRY_AFTER.as_nanos();
        match next(&mut state, has_waited) {
            Next::Wait => Step::Idle,
            Next::Over => Step::Over,
            Next::Prepare(room, smaller) => {
                drop(state);
                self.failed_at_ns = now_ns;
                let prepared = self.prepare(room, smaller);
                self.publish(prepared);
                Step::Done
            }
        }
    }
}

fn next<P>(state: &mut State<P>, has_waited: bool) -> Next {
    if state.is_closing || state.stopped.is_some() {
        return Next::Over;
    }
    // A block that begins the old spare has to rename it first.
    let is_name_free = state.spare.is_some() == state.is_spare_named;
    let is_free = is_name_free && state.spare_is_free();
    match state.spare_wanted > 0 && has_waited && is_free {
        true => Next::Prepare(state.spare_wanted, state.spare.take()),
        false => Next::Wait,
    }
}

impl<P: Send + 'static> Preparer<P> {
    pub fn new(shared: Arc<Shared<P>>) -> Self {
        Self {
            shared,
            failed_at_ns: 0,
        }
    }

    fn publish(&self, prepared: Result<Spare, DiskError>) {
        let mut state = self.shared.lock();
        match prepared {
            Ok(spare) => {
                if spare.room >= state.spare_wanted {
                    state.spare_wanted = 0;
                }
                state.spare = Some(spare);
                state.is_spare_named = true;
                state.spare_error = None;
                self.shared.clear_refusal(&state);
            }
            Err(error) => {
                state.is_spare_named = false;
                state.spare_error = Some(error);
            }
        }
        drop(state);
        self.shared.space.notify_all();
    }

    /// Waits for a request; none when the log ends.
    fn next_request(&self) -> Option<(u64, Option<Spare>)> {
        let shared = &*self.shared;
        let mut state = shared.lock();
        let mut has_waited = state.spare_error.is_none();
        loop {
            match next(&mut state, has_waited) {
                Next::Prepare(room, smaller) => return Some((room, smaller)),
                Next::Over => return None,
                Next::Wait => (state, has_waited) = wait(shared, state, has_waited),
            }
        }
    }

    fn prepare(&self, room: u64, smaller: Option<Spare>) -> Result<Spare, DiskError> {
        let disk = &*self.shared.disk;
        let file = match smaller {
            Some(spare) => spare.file,
            None => open_spare(disk)?,
        };
        let bytes = (room + SEGMENT_HEADER_BYTES as u64).max(file.len()?);
        match file.preallocate(bytes).and_then(|()| disk.sync_dir()) {
            Ok(()) => Ok(Spare {
                room: bytes - SEGMENT_HEADER_BYTES as u64,
                file,
            }),
            Err(error) => {
                // Others need the space more than half a file does. The first error tells more than one of this.
                let _ = disk.remove(SPARE_NAME);
                Err(error)
            }
        }
    }
}

fn wait<'a, P>(
    shared: &Shared<P>,
    state: MutexGuard<'a, State<P>>,
    has_waited: bool,
) -> (MutexGuard<'a, State<P>>, bool) {
    if has_waited {
        let waited = shared.prepare.wait(state);
        return (waited.expect("the log's state is whole"), true);
    }
    let still = |state: &mut State<P>| !state.is_closing && state.stopped.is_none();
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
