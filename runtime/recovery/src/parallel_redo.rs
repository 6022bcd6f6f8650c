//! A stretch of the log that holds nothing but changes, applied by as many threads as there are cores while all partitions
//! are held.
//!
//! The threads read it themselves, a window at a time, one thread at a time: what a thread has read it checks and tells apart by
//! table while the bytes are near its core. Each table of each partition takes its changes in the order of the windows, on
//! whatever thread is free. A thread rather applies than reads on, so that windows do not pile up.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, atomic::Ordering},
    thread,
};

use reprise_base::Lsn;
use reprise_log::{LogError, LogReader};
use reprise_partition::ExclusivePartitions;
use reprise_replay::{Redo, misfit, remember};
use reprise_storage::{LastWrites, TableRedo};

use crate::{
    Outcome, RecoverFrom, RecoveryError,
    window::{KeyedCall, Seen, Shape, Sorted, Stop, Window, changes_count},
};

/// Windows that were read and not applied by all tables yet, at most, beside one for each thread: what they take is memory that the
/// tables do not have.
const WINDOWS_BESIDE: u64 = 2;
/// Ready tables among which a thread looks for one that it had before.
const LOOKED_AT_MAX: usize = 64;

/// Where the windows come from.
pub(crate) struct Source {
    pub reader: LogReader,
    /// Records from there on are left out.
    pub until: Option<Lsn>,
    pub from: RecoverFrom,
    /// Bytes of a window.
    pub room: usize,
    /// Where the log probably ends; 0: not known.
    pub log_end: Lsn,
}

impl Source {
    /// Reads the next window; false where that was the last one.
    fn read(&mut self, window: &mut Window) -> Result<bool, LogError> {
        let (until, from) = (self.until, self.from);
        window.read(&mut self.reader, self.room, |block| {
            let end = block.lsn.0 + block.records.len() as u64;
            if until.is_some_and(|until| until.0 < end) {
                return None;
            }
            let known = block.changes.map(u64::from);
            known.or_else(|| changes_count(block.records, block.version, from))
        })
    }
}

/// What the threads share.
pub(crate) struct ParallelRedo {
    state: Mutex<State>,
    woken: Condvar,
    /// None once it was taken back.
    source: Mutex<Option<Source>>,
    log_end: Lsn,
}

#[derive(Default)]
struct State {
    /// Read before the lane was there.
    first: Option<Window>,
    /// A thread reads.
    is_reading: bool,
    /// There is nothing more to read.
    is_read_out: bool,
    /// Nothing more is taken: something failed.
    is_stopped: bool,
    /// All that was begun is done.
    is_over: bool,
    /// Windows begun, handed to the tables, and done with.
    begun: u64,
    handed: u64,
    done: u64,
    /// Told apart before a window in front of it was: the first one is number `handed`.
    early: VecDeque<Option<Sorted>>,
    tables: Vec<TableQueue>,
    /// Tables with something to do that no thread has.
    ready: VecDeque<usize>,
    /// Memory that was used before.
    spares: Vec<Sorted>,
    /// What was read lies before it.
    read_to: Lsn,
    read_error: Option<LogError>,
    /// Records that were applied.
    records: u64,
    end: End,
}

/// What is known once all is applied.
#[derive(Default)]
struct End {
    /// Of log.
    bytes: u64,
    seen: Vec<Seen>,
    multi_tick: u64,
    keyed: Vec<KeyedCall>,
    failures: Vec<Failure>,
}

/// A record that could not be applied.
enum Failure {
    Error(RecoveryError),
    Misfit(Redo, String),
}

impl Failure {
    fn lsn(&self) -> Lsn {
        match self {
            Self::Misfit(redo, _) => redo.lsn,
            Self::Error(RecoveryError::Malformed { lsn, .. } | RecoveryError::Partition { lsn, .. }) => *lsn,
            Self::Error(_) => Lsn(0),
        }
    }
}

#[derive(Default)]
struct TableQueue {
    /// Windows with the table's place in them.
    windows: VecDeque<(Arc<Sorted>, usize)>,
    /// In `ready`, or with a thread.
    is_claimed: bool,
    /// The thread that had it last: much of the table is near that one's core.
    thread: Option<usize>,
    has_failed: bool,
}

enum Task {
    /// Tell apart what was read.
    Sort(u64, Sorted),
    /// Read a window, and tell it apart.
    Read(u64, Sorted),
    Apply(usize, Arc<Sorted>, usize),
}

/// Marks the lane as stopped if the thread that holds it panics: nobody shall wait for it.
struct Guard<'l>(&'l ParallelRedo);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop();
        }
    }
}

/// What a lane leaves.
pub(crate) struct Left {
    pub reader: LogReader,
    /// Records that were applied.
    pub records: u64,
    /// Memory for another lane.
    pub spares: Vec<Sorted>,
    /// The log could not be read further.
    pub error: Option<LogError>,
}

impl ParallelRedo {
    /// Of a window that was read, and of what comes behind it.
    pub fn new(first: Window, source: Source, spares: Vec<Sorted>) -> Self {
        let state = State {
            spares,
            read_to: first.end(),
            first: Some(first),
            ..State::default()
        };
        Self {
            state: Mutex::new(state),
            woken: Condvar::new(),
            log_end: source.log_end,
            source: Mutex::new(Some(source)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }

    /// Nothing is taken any more. What was begun is done.
    fn stop(&self) {
        if let Ok(mut state) = self.state.lock() {
            state.is_stopped = true;
        }
        self.woken.notify_all();
    }

    /// Behind what was read so far.
    pub fn position(&self) -> Lsn {
        self.lock().read_to
    }

    /// What is left once it was run; none where it was not, or not to its end.
    pub fn leave(&self) -> Option<Left> {
        let mut state = self.lock();
        if !state.is_over {
            return None;
        }
        let source = self.source.lock().ok()?.take()?;
        Some(Left {
            reader: source.reader,
            records: state.records,
            spares: mem::take(&mut state.spares),
            error: state.read_error.take(),
        })
    }

    /// Applies what comes until something else does, or something fails. Every partition is held.
    pub fn run(&self, held: &mut ExclusivePartitions<'_>, outcome: &Outcome, threads: usize) {
        let clock = held.tools.shared.clock.clone();
        let begun_ns = clock.monotonic_ns();
        let stores = held.partitions.iter_mut().map(|part| &mut part.store);
        let mut tables = 0;
        let mut overwritable = Vec::new();
        let redos: Vec<_> = stores
            .flat_map(|store| {
                tables = store.table_count() as u16;
                let redos = store.redos();
                overwritable = redos.iter().map(TableRedo::overwritable).collect();
                redos.into_iter().map(Mutex::new)
            })
            .collect();
        let shape = Shape {
            partitions: held.tools.shared.partitions_count,
            tables,
            overwritable: &overwritable,
        };
        {
            let mut state = self.lock();
            state.tables.resize_with(shape.count(), TableQueue::default);
            state.end.seen.resize(shape.partitions as usize, Seen::default());
        }
        thread::scope(|scope| {
            (1..threads).for_each(|thread| {
                let redos = &redos;
                scope.spawn(move || self.work((thread, threads), shape, redos, outcome));
            });
            self.work((0, threads), shape, &redos, outcome);
        });
        drop(redos);
        let end = {
            let mut state = self.lock();
            state.is_over = true;
            mem::take(&mut state.end)
        };
        outcome.note_lane(end.bytes, clock.monotonic_ns() - begun_ns);
        end.tell(held, outcome);
    }

    fn work(
        &self,
        (thread, threads): (usize, usize),
        shape: Shape<'_>,
        redos: &[Mutex<TableRedo<'_>>],
        outcome: &Outcome,
    ) {
        let _guard = Guard(self);
        let mut last = LastWrites::default();
        while let Some(task) = self.take(thread, threads as u64 + WINDOWS_BESIDE) {
            match task {
                Task::Sort(number, sorted) => self.sort(number, sorted, shape, &mut last, outcome),
                Task::Read(number, mut sorted) => {
                    self.read(&mut sorted.window);
                    self.sort(number, sorted, shape, &mut last, outcome);
                }
                Task::Apply(table, sorted, place) => {
                    let mut redo = redos[table].lock().expect("one thread at a time");
                    let changes = &sorted.tables[place].changes;
                    let coming = 1.0 + sorted.window.windows_behind(self.log_end);
                    redo.expect((changes.growth() as f64 * coming) as u64);
                    let applied = redo.apply(sorted.window.bytes(), changes);
                    drop(redo);
                    let failure = applied.err().and_then(|(record, error)| {
                        let redo = sorted.window.redo_at(record as usize)?;
                        Some(Failure::Misfit(redo, error.to_string()))
                    });
                    let failure = failure.or_else(|| outcome.memory_error().map(Failure::Error));
                    self.put_back(table, sorted, failure);
                }
            }
        }
        self.woken.notify_all();
    }

    /// Reads the next window. What fails is told at the end: what was read before it is applied.
    fn read(&self, window: &mut Window) {
        let read = {
            let mut source = self.source.lock().expect("one thread reads");
            let source = source.as_mut().expect("there while the lane is run");
            let read = source.read(window);
            read.map(|more| (more, source.reader.position()))
        };
        let mut state = self.lock();
        state.is_reading = false;
        match read {
            Ok((more, position)) => {
                state.is_read_out = !more;
                state.read_to = position;
            }
            Err(error) => {
                state.is_read_out = true;
                state.read_error = Some(error);
            }
        }
        drop(state);
        self.woken.notify_all();
    }

    fn sort(&self, number: u64, mut sorted: Sorted, shape: Shape<'_>, last: &mut LastWrites, outcome: &Outcome) {
        let stop = sorted.sort(shape, last).err();
        outcome.count(sorted.window.records_count);
        self.hand(number, sorted, shape, stop);
    }

    /// The next task; none when there will be none. `windows_max` are on their way at most. A table that another thread had last is
    /// taken if there is nothing else to do.
    fn take(&self, thread: usize, windows_max: u64) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.take_table(|last| last.is_none_or(|last| last == thread), thread) {
                return Some(task);
            }
            if let Some(window) = state.first.take() {
                let (number, mut sorted) = state.begin();
                sorted.window = window;
                return Some(Task::Sort(number, sorted));
            }
            let may_read = !state.is_reading && !state.is_read_out && !state.is_stopped;
            if may_read && state.begun - state.done < windows_max {
                state.is_reading = true;
                let (number, sorted) = state.begin();
                return Some(Task::Read(number, sorted));
            }
            if let Some(task) = state.take_table(|_| true, thread) {
                return Some(task);
            }
            let is_idle = state.begun == state.done;
            let is_over = state.is_stopped || state.is_read_out;
            if is_idle && is_over {
                return None;
            }
            state = self.woken.wait(state).expect("as in `lock`");
        }
    }

    /// Hands windows that were read to the tables, in their order.
    fn hand(&self, number: u64, sorted: Sorted, shape: Shape<'_>, stop: Option<Stop>) {
        let mut state = self.lock();
        if let Some(stop) = stop {
            state.fail(match stop {
                Stop::Error(error) => Failure::Error(error),
                Stop::Misfit(redo, error) => Failure::Misfit(redo, error.to_string()),
            });
        }
        let place = (number - state.handed) as usize;
        state.early[place] = Some(sorted);
        while let Some(next) = state.early.front_mut()
            && let Some(sorted) = next.take()
        {
            state.early.pop_front();
            state.handed += 1;
            state.hand(sorted, shape);
        }
        drop(state);
        self.woken.notify_all();
    }

    /// A table's changes of one window are applied.
    fn put_back(&self, table: usize, sorted: Arc<Sorted>, failure: Option<Failure>) {
        let mut state = self.lock();
        state.tables[table].has_failed |= failure.is_some();
        if let Some(failure) = failure {
            state.fail(failure);
        }
        state.release(sorted);
        let queue = &mut state.tables[table];
        if queue.has_failed {
            for (sorted, _) in mem::take(&mut queue.windows) {
                state.release(sorted);
            }
        }
        let queue = &mut state.tables[table];
        queue.is_claimed = !queue.windows.is_empty();
        if queue.is_claimed {
            state.ready.push_back(table);
        }
        drop(state);
        self.woken.notify_all();
    }
}

impl State {
    /// A window with its number.
    fn begin(&mut self) -> (u64, Sorted) {
        let number = self.begun;
        self.begun += 1;
        self.early.push_back(None);
        (number, self.spares.pop().unwrap_or_default())
    }

    /// What came before in the log is still applied, so that the earliest failure is found.
    fn fail(&mut self, failure: Failure) {
        self.is_stopped = true;
        self.end.failures.push(failure);
    }

    /// The next window of the ready table that came first among those that `may` be taken, by who had them last.
    fn take_table(&mut self, may: impl Fn(Option<usize>) -> bool, thread: usize) -> Option<Task> {
        let mut first = self.ready.iter().take(LOOKED_AT_MAX);
        let at = first.position(|table| may(self.tables[*table].thread))?;
        let table = self.ready.remove(at)?;
        let queue = &mut self.tables[table];
        queue.thread = Some(thread);
        let next = queue.windows.pop_front();
        let (sorted, place) = next.expect("a ready table has something to do");
        Some(Task::Apply(table, sorted, place))
    }

    fn hand(&mut self, mut sorted: Sorted, shape: Shape<'_>) {
        for (all, seen) in self.end.seen.iter_mut().zip(&sorted.seen) {
            all.note(seen.tick, seen.end);
        }
        self.end.bytes += sorted.window.bytes().len() as u64;
        self.records += sorted.window.records_count;
        self.end.multi_tick = self.end.multi_tick.max(sorted.multi_tick);
        self.end.keyed.append(&mut sorted.keyed);
        let sorted = Arc::new(sorted);
        for (place, changes) in sorted.tables.iter().enumerate() {
            let table = shape.place(changes.partition, changes.table);
            let queue = &mut self.tables[table];
            if queue.has_failed {
                continue;
            }
            queue.windows.push_back((sorted.clone(), place));
            if !mem::replace(&mut queue.is_claimed, true) {
                self.ready.push_back(table);
            }
        }
        self.release(sorted);
    }

    fn release(&mut self, sorted: Arc<Sorted>) {
        if let Some(mut sorted) = Arc::into_inner(sorted) {
            self.done += 1;
            sorted.clear();
            self.spares.push(sorted);
        }
    }
}

impl End {
    fn tell(mut self, held: &mut ExclusivePartitions<'_>, outcome: &Outcome) {
        for partition in held.partitions.iter_mut() {
            let seen = self.seen[partition.id.index()];
            partition.clock.advance_past(seen.tick);
            partition.last_end = partition.last_end.max(seen.end);
        }
        let multi_tick = &held.tools.shared.multi_tick;
        multi_tick.fetch_max(self.multi_tick, Ordering::AcqRel);
        for call in self.keyed {
            match remember(held.tools, &call.redo, call.keyed, call.partition) {
                Ok(replayed) => outcome.remember(replayed),
                Err(divergence) => outcome.fail(divergence.into()),
            }
        }
        self.failures.sort_by_key(Failure::lsn);
        for failure in self.failures {
            outcome.fail(match failure {
                Failure::Error(error) => error,
                Failure::Misfit(redo, what) => misfit(held.tools, &redo, &what).into(),
            });
        }
    }
}
