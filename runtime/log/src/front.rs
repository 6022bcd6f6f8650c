//! The NVRAM buffer in front of the log's files (NV-Logging, section 4). Records that an engine thread appends are persistent in its
//! site's ring before the call returns, without a lock and without another thread. The destage thread copies them to the files later.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use reprise_base::{Lsn, Watermark, limits::BLOCK_BYTES_MAX};
use reprise_env::Started;
use reprise_nvram::{FlushPolicy, Full, LsnSource, ObjectWriter, Region, RegionMarks, RingFill, RingGauge, RingWriter};
use reprise_wire::{BLOCK_HEADER_BYTES, ChangesRun, RecordBatch, RecordRef};

use crate::{
    copier::Copier,
    error::{LogError, UnavailableKind},
    log::Log,
    state::Shared,
};

/// Interval at which a thread checks again for a record that another site is just persisting.
const LOOK: Duration = Duration::from_micros(20);

/// A void record.
pub(crate) const VOID_BYTES: usize = 2;

/// Times at which records are copied from the rings to the log's files. Readers of the files also cause it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontConfig {
    /// Entries in all rings together.
    pub copy_at_entries: u64,
    /// When changes go to the region.
    pub flush: FlushPolicy,
}

/// Progress and fill level of the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontStatus {
    /// By site.
    pub rings: Vec<RingFill>,
    /// Records that the log's files do not have yet.
    pub records_waiting: u64,
}

/// State shared by the sites' appenders, the destage thread and the threads that wait for it.
pub(crate) struct Front {
    pub lsns: LsnSource,
    pub marks: RegionMarks,
    /// Behind the last record that was appended.
    pub filled: Arc<Watermark>,
    /// Everything before it is durable in the log's files, and its room in the rings is free.
    copied: AtomicU64,
    /// Set when a ring is full enough to be copied, or has any record while a subscriber ships records.
    pub is_due: AtomicBool,
    /// Number of subscriptions that ship records as they are copied.
    followers: AtomicUsize,
    /// Entries of one ring from which a copy is due.
    copy_at_entries: u64,
    gauges: Vec<RingGauge>,
    /// On a standby all writers, to which its groups are appended; on a primary those that no site has taken.
    writers: Mutex<Vec<Option<RingWriter>>>,
    state: Mutex<FrontState>,
    /// The destage thread waits here.
    pub work: Condvar,
    /// Threads that wait for the destage thread, or for room.
    grew: Condvar,
    copier: Mutex<Option<Box<dyn Started>>>,
}

pub(crate) struct FrontState {
    /// LSN up to which a thread waits for the files.
    pub wanted: Lsn,
    pub is_closing: bool,
    /// The destage thread has ended.
    pub is_over: bool,
}

impl Front {
    /// Panics when another thread panicked inside.
    pub fn lock(&self) -> MutexGuard<'_, FrontState> {
        self.state.lock().expect("the front's state is whole")
    }

    pub fn copied(&self) -> Lsn {
        Lsn(self.copied.load(Ordering::Acquire))
    }

    /// Records that the files have everything before `end`, and that its room is free.
    pub fn note_copied(&self, end: Lsn) {
        let state = self.lock();
        self.copied.store(end.0, Ordering::Release);
        drop(state);
        self.grew.notify_all();
    }

    pub fn note_over(&self) {
        // Also after a panic inside: no thread may wait any longer.
        let mut state = match self.state.lock() {
            Ok(state) => state,
            Err(poisoned) => poisoned.into_inner(),
        };
        state.is_over = true;
        drop(state);
        self.grew.notify_all();
    }

    /// Wakes the destage thread if a ring is full enough, or if a subscriber wants each record.
    #[inline]
    pub fn wake_if_due(&self, fill: RingFill) {
        let is_due = fill.entries >= self.copy_at_entries || fill.is_half_full() || self.is_followed();
        // Loaded after the new mark is stored: the thread that clears the flag reads the mark next.
        if is_due && !self.is_due.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    #[inline]
    pub fn is_followed(&self) -> bool {
        self.followers.load(Ordering::SeqCst) > 0
    }

    #[cold]
    fn wake(&self) {
        if !self.is_due.swap(true, Ordering::SeqCst) {
            drop(self.lock());
            self.work.notify_one();
        }
    }

    /// Waits until the files have everything before `end`, which is persistent.
    pub fn copy_to<P>(&self, shared: &Shared<P>, end: Lsn, timeout: Duration) -> Result<(), LogError> {
        if self.copied() >= end {
            return Ok(());
        }
        let mut state = self.lock();
        state.wanted = state.wanted.max(end);
        self.work.notify_one();
        let began_ns = shared.clock.monotonic_ns();
        while self.copied() < end {
            let waited = Duration::from_nanos(shared.clock.monotonic_ns() - began_ns);
            let left = timeout.checked_sub(waited).filter(|left| !left.is_zero());
            let (false, Some(left)) = (state.is_over, left) else {
                drop(state);
                return Err(shared.refusal().unwrap_or_else(|| stalled(timeout)));
            };
            (state, _) = shared.threads.wait_on((&self.state, &self.grew), state, left);
        }
        Ok(())
    }

    /// Waits, within bounds, until `judge` finds what it needs in the rings, while the destage thread makes room. Err: also if a
    /// hand-over begins meanwhile.
    #[cold]
    pub fn wait_for_room<P, T>(
        &self,
        shared: &Shared<P>,
        mut judge: impl FnMut() -> Result<Option<T>, LogError>,
    ) -> Result<T, LogError> {
        let wait_max = shared.config.append_wait_max;
        let began_ns = shared.clock.monotonic_ns();
        let mut state = self.lock();
        loop {
            if let Some(found) = judge()? {
                return Ok(found);
            }
            if let Some(error) = shared.refusal_of_pause() {
                return Err(error);
            }
            let waited = Duration::from_nanos(shared.clock.monotonic_ns() - began_ns);
            let left = wait_max.checked_sub(waited).filter(|left| !left.is_zero());
            let (false, Some(left)) = (state.is_over, left) else {
                drop(state);
                return Err(shared.refusal().unwrap_or_else(|| stalled(wait_max)));
            };
            state.wanted = state.wanted.max(self.lsns.durable());
            self.work.notify_one();
            (state, _) = shared.threads.wait_on((&self.state, &self.grew), state, left);
        }
    }

    /// Stops giving out LSNs until [`Front::resume`]. Returns their end; all before it are persistent. Err: a site does not
    /// finish its commit.
    pub fn pause<P>(&self, shared: &Shared<P>) -> Result<Lsn, LogError> {
        self.lsns.close();
        // Threads that wait for room are refused now.
        drop(self.lock());
        self.grew.notify_all();
        let wait_max = shared.config.append_wait_max;
        let began_ns = shared.clock.monotonic_ns();
        while !self.lsns.is_idle() {
            if (shared.clock.monotonic_ns() - began_ns) as u128 > wait_max.as_nanos() {
                self.resume();
                let reason = format!("a site did not end its commit within {wait_max:?}");
                return Err(LogError::unavailable(UnavailableKind::Stalled, reason));
            }
            shared.threads.sleep(LOOK);
        }
        Ok(self.lsns.next())
    }

    pub fn resume(&self) {
        self.lsns.open();
    }

    pub fn filled(&self) -> Lsn {
        Lsn(self.filled.get())
    }

    /// See the member.
    pub fn writers(&self) -> MutexGuard<'_, Vec<Option<RingWriter>>> {
        self.writers.lock().expect("nothing panics in here")
    }

    /// Bytes of records that one ring takes at once, at most.
    pub fn bytes_max(writer: &RingWriter) -> usize {
        writer.bytes_max().min((BLOCK_BYTES_MAX - BLOCK_HEADER_BYTES) as u64) as usize
    }

    /// Room in bytes while each ring keeps half of its own: records that are already on their way fit into that half.
    pub fn room_bytes(&self) -> u64 {
        let room = |fill: RingFill| match fill.is_half_full() {
            true => 0,
            false => fill.bytes_max / 2 - fill.bytes,
        };
        self.gauges.iter().map(|gauge| room(gauge.fill())).sum()
    }

    pub fn status(&self) -> FrontStatus {
        FrontStatus {
            rings: self.gauges.iter().map(RingGauge::fill).collect(),
            records_waiting: self.filled.get().saturating_sub(self.copied().0),
        }
    }
}

/// While it exists, records are copied to the log's files as soon as they are persistent, because a shipper sends them on.
pub struct Following(Arc<Front>);

impl Following {
    fn new(front: &Arc<Front>) -> Self {
        front.followers.fetch_add(1, Ordering::SeqCst);
        // For the records appended before.
        front.wake();
        Self(Arc::clone(front))
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.0.followers.fetch_sub(1, Ordering::SeqCst);
    }
}

fn stalled(waited: Duration) -> LogError {
    let reason = format!("the disk behind the NVRAM took nothing for {waited:?}");
    LogError::unavailable(UnavailableKind::Stalled, reason)
}

/// Appends a site's records to the NVRAM buffer.
pub struct NvramAppender<P> {
    front: Arc<Front>,
    shared: Arc<Shared<P>>,
    site: usize,
    writer: RingWriter,
    bytes_max: usize,
}

impl<P: Send + 'static> NvramAppender<P> {
    /// For the changes of transactions before their records are appended; None where those go to the region with their records. On this
    /// appender's thread, and once.
    pub fn objects(&self) -> Option<ObjectWriter> {
        self.writer.objects()
    }

    /// Appends encoded records, one or several, but for what of them was placed in the region before: after a crash all of them are there or
    /// none. They are persistent when it returns;
    /// the LSN of the first one, the others follow without gaps. Waits, within bounds, while the ring is full. Err: nothing was
    /// appended.
    #[inline]
    pub fn append(&mut self, records: &RecordBatch) -> Result<Lsn, LogError> {
        assert!(!records.is_empty(), "append of no record");
        if let Some(error) = self.shared.refusal() {
            return Err(error);
        }
        let (bytes, placed, front) = (records.bytes(), records.placed(), &*self.front);
        if bytes.len() > self.bytes_max || self.writer.judge(bytes.len(), placed).is_err() {
            self.wait_for_room(bytes.len(), |writer| writer.judge(bytes.len(), placed))?;
        }
        // LSNs are taken only when there is room: the destage thread waits for each LSN that was given out.
        let start = self.reserve(u64::from(records.count()))?;
        let written = self.writer.records(start, records.count(), bytes, placed);
        written.expect("it was judged, and what was free stays free");
        self.writer.persist();
        front.filled.raise(start.0 + u64::from(records.count()));
        front.lsns.persisted(self.site);
        front.wake_if_due(self.writer.fill());
        Ok(start)
    }

    /// Appends a transaction in parts, each persistent before the next. They have consecutive LSNs, and the destage thread makes room
    /// for parts that do not fit. All are persistent when it returns the LSN of the first. Err: the appended parts count for nothing,
    /// and the other LSNs are void.
    pub fn append_run(&mut self, run: &ChangesRun<'_>) -> Result<Lsn, LogError> {
        if let Some(error) = self.shared.refusal() {
            return Err(error);
        }
        let judged = self.run_bytes(run);
        if judged > self.bytes_max {
            let (bytes, max) = (judged, self.bytes_max);
            return Err(LogError::TooLong { bytes, max });
        }
        let count = u64::from(run.records());
        let (mut records, mut start, mut done) = (RecordBatch::default(), Lsn(0), 0);
        for number in 0..=run.parts() {
            records.clear();
            match number < run.parts() {
                true => run.push_part(number, &mut records),
                false => run.push_last(&mut records),
            }
            // Each part leaves room for the records that would make the rest void.
            let (bytes, rest) = (records.bytes().len(), VOID_BYTES * run.records() as usize);
            let has_room = self.writer.judge_two(bytes, rest).is_ok();
            let made = match has_room {
                true => Ok(()),
                false => self.wait_for_room(bytes, |writer| writer.judge_two(bytes, rest)),
            };
            if let Err(error) = made {
                if done > 0 {
                    self.append_void(Lsn(start.0 + done), count - done);
                }
                return Err(error);
            }
            if number == 0 {
                start = self.reserve(count)?;
            }
            let next = done + u64::from(records.count());
            self.persist_at(Lsn(start.0 + done), &records, next == count);
            done = next;
        }
        Ok(start)
    }

    /// Takes `count` LSNs; the first. Err: none are given out during a hand-over.
    #[inline]
    fn reserve(&self, count: u64) -> Result<Lsn, LogError> {
        self.front.lsns.reserve(self.site, count).ok_or_else(|| {
            let reason = "this server gave its place away, or was about to";
            let paused = || LogError::unavailable(UnavailableKind::Stalled, reason);
            self.shared.refusal().unwrap_or_else(paused)
        })
    }

    /// Bytes that a run asks a ring for at once, at most.
    fn run_bytes(&self, run: &ChangesRun<'_>) -> usize {
        run.append_bytes_max() + VOID_BYTES * run.records() as usize
    }

    /// Makes LSNs of a run void that have no record.
    fn append_void(&mut self, lsn: Lsn, count: u64) {
        let mut records = RecordBatch::default();
        (0..count).for_each(|_| records.push(&RecordRef::Void));
        self.persist_at(lsn, &records, true);
    }

    /// Makes records with these LSNs persistent, for which there is room; `is_last`: the site took no others.
    fn persist_at(&mut self, lsn: Lsn, records: &RecordBatch, is_last: bool) {
        let (front, end) = (&*self.front, Lsn(lsn.0 + u64::from(records.count())));
        let written = self.writer.records(lsn, records.count(), records.bytes(), &[]);
        written.expect("it was judged, and what was free stays free");
        self.writer.persist();
        front.filled.raise(end.0);
        match is_last {
            true => front.lsns.persisted(self.site),
            false => front.lsns.persisted_before(self.site, end),
        }
        front.wake_if_due(self.writer.fill());
    }

    /// Waits until `judge` finds room for this many bytes.
    #[cold]
    fn wait_for_room(&self, bytes: usize, judge: impl Fn(&RingWriter) -> Result<(), Full>) -> Result<(), LogError> {
        let max = self.bytes_max;
        if bytes > max {
            return Err(LogError::TooLong { bytes, max });
        }
        self.front.wait_for_room(&self.shared, || match judge(&self.writer) {
            Ok(()) => Ok(Some(())),
            Err(Full::ForNow) => Ok(None),
            Err(Full::Forever { .. }) => Err(LogError::TooLong { bytes, max }),
        })
    }

    /// Bytes of records that one append takes, at most: a quarter of the site's ring, and one block of the files.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Why appends are refused now, if they are. Costs one load while all is well.
    #[inline]
    pub fn refusal(&self) -> Option<LogError> {
        self.shared.refusal()
    }
}

impl<P: Send + 'static> Log<P> {
    /// Puts the rings of `region`, one for each site, before the log's files. The region is empty and of the log's epoch. Later
    /// records are appended only through [`Log::nvram_appender`]. A standby's groups go there too, and its sites append nothing until
    /// it is promoted. Called once, before any site appends.
    pub fn put_front(&self, region: Region, config: FrontConfig) -> Result<(), LogError> {
        let (geometry, marks) = (*region.geometry(), region.marks());
        let (writers, readers): (Vec<_>, Vec<_>) = region.rings(config.flush).into_iter().unzip();
        let filled = self.filled();
        let sites = u64::from(geometry.rings);
        let front = Arc::new(Front {
            lsns: LsnSource::new(filled, writers.len()),
            marks: marks.clone(),
            filled: Arc::new(Watermark::new(filled.0)),
            copied: AtomicU64::new(filled.0),
            is_due: AtomicBool::new(false),
            followers: AtomicUsize::new(0),
            copy_at_entries: (config.copy_at_entries / sites).max(1),
            gauges: readers.iter().map(|reader| reader.gauge()).collect(),
            writers: Mutex::new(writers.into_iter().map(Some).collect()),
            state: Mutex::new(FrontState {
                wanted: Lsn(0),
                is_closing: false,
                is_over: false,
            }),
            work: Condvar::new(),
            grew: Condvar::new(),
            copier: Mutex::new(None),
        });
        let copier = Copier::new(Arc::clone(&self.shared), Arc::clone(&front), readers, marks);
        let thread = self
            .shared
            .threads
            .start("log-copier", Box::new(move || Box::new(copier)));
        let thread = thread.map_err(|error| {
            let reason = format!("start thread log-copier: {error}");
            LogError::unavailable(UnavailableKind::Failed, reason)
        })?;
        *front.copier.lock().expect("nothing panics in here") = Some(thread);
        assert!(self.front.set(front).is_ok(), "a log has one front");
        self.shared.lock().is_fronted = true;
        Ok(())
    }

    /// Makes the appender of `site`; once for each site. None if the log has no NVRAM buffer.
    pub fn nvram_appender(&self, site: usize) -> Option<NvramAppender<P>> {
        let front = self.front.get()?;
        let writer = front.writers()[site].take();
        let writer = writer.expect("each site takes its own once");
        Some(NvramAppender {
            front: Arc::clone(front),
            shared: Arc::clone(&self.shared),
            site,
            bytes_max: Front::bytes_max(&writer),
            writer,
        })
    }

    /// The buffer's progress and fill level. None if the log has no NVRAM buffer.
    pub fn front_status(&self) -> Option<FrontStatus> {
        self.front.get().map(|front| front.status())
    }

    /// Everything before it is durable in the log's files.
    pub fn copied(&self) -> Lsn {
        Lsn(self.shared.durable.lsn.get())
    }

    /// Waits until everything before `end` is durable in the log's files, too. Err: the time is over, or they are not written any more.
    pub fn wait_copied(&self, end: Lsn, timeout: Duration) -> Result<(), LogError> {
        if let Some(front) = self.front.get() {
            return front.copy_to(&self.shared, end, timeout);
        }
        match self.shared.wait_durable(end, timeout) {
            true => Ok(()),
            false => Err(self.shared.refusal().unwrap_or_else(|| stalled(timeout))),
        }
    }

    /// Copies all records to the log's files as soon as they are persistent, while the result exists. None without NVRAM: records go
    /// to the files anyway.
    pub fn follow(&self) -> Option<Following> {
        self.front.get().map(Following::new)
    }

    /// Requests that everything before `end` is copied to the log's files, without waiting for it.
    pub fn want_copied(&self, end: Lsn) {
        if let Some(front) = self.front.get().filter(|front| front.copied() < end) {
            let mut state = front.lock();
            state.wanted = state.wanted.max(end);
            drop(state);
            front.work.notify_one();
        }
    }

    /// Copies persistent records to the log's files, for a reader of the files.
    pub(crate) fn copy_front(&self) -> Result<(), LogError> {
        match self.front.get() {
            None => Ok(()),
            Some(front) => front.copy_to(&self.shared, front.lsns.durable(), self.shared.config.append_wait_max),
        }
    }

    pub(crate) fn wait_persistent(&self, front: &Front, end: Lsn, timeout: Duration) -> bool {
        let began_ns = self.shared.clock.monotonic_ns();
        while front.lsns.durable() < end {
            let waited = self.shared.clock.monotonic_ns() - began_ns;
            if waited as u128 >= timeout.as_nanos() {
                return false;
            }
            self.shared.threads.sleep(LOOK);
        }
        true
    }

    /// Copies everything, and ends the destage thread. Nothing is appended any more.
    pub(crate) fn close_front(&self) {
        let Some(front) = self.front.get() else {
            return;
        };
        front.lock().is_closing = true;
        front.work.notify_one();
        let copier = front.copier.lock().expect("nothing panics in here").take();
        if let Some(copier) = copier {
            copier.join();
        }
    }
}
