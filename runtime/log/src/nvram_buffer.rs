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
use reprise_env::ThreadHandle;
use reprise_nvram::{FlushPolicy, LsnSource, Region, RegionMarks, RingFill, RingGauge, RingWriter};
use reprise_wire::BLOCK_HEADER_BYTES;

use crate::{
    destage::Destager,
    error::{LogError, UnavailableKind},
    log::Log,
    nvram_appender::NvramAppender,
    state::LogShared,
};

/// Interval at which a thread checks again for a record that another site is just persisting.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// A void record.
pub(crate) const VOID_BYTES: usize = 2;

/// Times at which records are copied from the rings to the log's files. Readers of the files also cause it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvramBufferConfig {
    /// Entries in all rings together.
    pub copy_at_entries: u64,
    /// When changes go to the region.
    pub flush: FlushPolicy,
}

/// Progress and fill level of the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvramBufferStatus {
    /// The fill of each site's ring.
    pub rings: Vec<RingFill>,
    /// Records that the log's files do not have yet.
    pub records_waiting: u64,
}

/// State shared by the sites' appenders, the destage thread and the threads that wait for it.
pub(crate) struct NvramBuffer {
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
    /// On a standby: all writers, to which its groups are appended. On a primary: the writers that no site has taken.
    writers: Mutex<Vec<Option<RingWriter>>>,
    state: Mutex<NvramBufferState>,
    /// The destage thread waits here.
    pub work: Condvar,
    /// Threads that wait for the destage thread, or for room.
    grew: Condvar,
    destager: Mutex<Option<Box<dyn ThreadHandle>>>,
}

pub(crate) struct NvramBufferState {
    /// LSN up to which a thread waits for the files.
    pub wanted: Lsn,
    pub is_closing: bool,
    /// The destage thread has ended.
    pub is_over: bool,
}

impl NvramBuffer {
    /// Panics when another thread panicked inside.
    pub fn lock(&self) -> MutexGuard<'_, NvramBufferState> {
        self.state.lock().expect("the nvram's state is whole")
    }

    pub fn copied(&self) -> Lsn {
        Lsn(self.copied.load(Ordering::Acquire))
    }

    /// Records that the files have everything before `end`, and that its room is free.
    pub fn record_copied(&self, end: Lsn) {
        let state = self.lock();
        self.copied.store(end.0, Ordering::Release);
        drop(state);
        self.grew.notify_all();
    }

    pub fn record_end(&self) {
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
    pub fn destage_to<P>(&self, shared: &LogShared<P>, end: Lsn, timeout: Duration) -> Result<(), LogError> {
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
            (state, _) = shared.threads.wait_on(&self.state, &self.grew, state, left);
        }
        Ok(())
    }

    /// Waits, within bounds, until `check` succeeds on the rings, while the destage thread makes room. Err: also if a hand-over begins
    /// meanwhile.
    #[cold]
    pub fn wait_for_room<P, T>(
        &self,
        shared: &LogShared<P>,
        mut check: impl FnMut() -> Result<Option<T>, LogError>,
    ) -> Result<T, LogError> {
        let wait_max = shared.config.append_wait_max;
        let began_ns = shared.clock.monotonic_ns();
        let mut state = self.lock();
        loop {
            if let Some(found) = check()? {
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
            (state, _) = shared.threads.wait_on(&self.state, &self.grew, state, left);
        }
    }

    /// Stops giving out LSNs until [`NvramBuffer::resume`]. Returns their end; all before it are persistent. Err: a site does not
    /// finish its commit.
    pub fn pause<P>(&self, shared: &LogShared<P>) -> Result<Lsn, LogError> {
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
            shared.threads.sleep(POLL_INTERVAL);
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

    pub fn status(&self) -> NvramBufferStatus {
        NvramBufferStatus {
            rings: self.gauges.iter().map(RingGauge::fill).collect(),
            records_waiting: self.filled.get().saturating_sub(self.copied().0),
        }
    }
}

/// While it exists, records are copied to the log's files as soon as they are persistent, because a shipper sends them on.
pub struct DestageDemand(Arc<NvramBuffer>);

impl DestageDemand {
    fn new(nvram: &Arc<NvramBuffer>) -> Self {
        nvram.followers.fetch_add(1, Ordering::SeqCst);
        // The records appended before are copied, too.
        nvram.wake();
        Self(Arc::clone(nvram))
    }
}

impl Drop for DestageDemand {
    fn drop(&mut self) {
        self.0.followers.fetch_sub(1, Ordering::SeqCst);
    }
}

fn stalled(waited: Duration) -> LogError {
    let reason = format!("the disk behind the NVRAM took nothing for {waited:?}");
    LogError::unavailable(UnavailableKind::Stalled, reason)
}

impl<P: Send + 'static> Log<P> {
    /// Puts the rings of `region`, one for each site, before the log's files. The region is empty and of the log's epoch. Later
    /// records are appended only through [`Log::nvram_appender`]. A standby's groups go there too, and its sites append nothing until
    /// it is promoted. Called once, before any site appends.
    pub fn attach_nvram(&self, region: Region, config: NvramBufferConfig) -> Result<(), LogError> {
        let (geometry, marks) = (*region.geometry(), region.marks());
        let (writers, readers): (Vec<_>, Vec<_>) = region.rings(config.flush).into_iter().unzip();
        let filled = self.filled();
        let sites = u64::from(geometry.rings);
        let nvram = Arc::new(NvramBuffer {
            lsns: LsnSource::new(filled, writers.len()),
            marks: marks.clone(),
            filled: Arc::new(Watermark::new(filled.0)),
            copied: AtomicU64::new(filled.0),
            is_due: AtomicBool::new(false),
            followers: AtomicUsize::new(0),
            copy_at_entries: (config.copy_at_entries / sites).max(1),
            gauges: readers.iter().map(|reader| reader.gauge()).collect(),
            writers: Mutex::new(writers.into_iter().map(Some).collect()),
            state: Mutex::new(NvramBufferState {
                wanted: Lsn(0),
                is_closing: false,
                is_over: false,
            }),
            work: Condvar::new(),
            grew: Condvar::new(),
            destager: Mutex::new(None),
        });
        let destager = Destager::new(Arc::clone(&self.shared), Arc::clone(&nvram), readers, marks);
        let thread = self
            .shared
            .threads
            .start("log-copier", Box::new(move || Box::new(destager)));
        let thread = thread.map_err(|error| {
            let reason = format!("start thread log-copier: {error}");
            LogError::unavailable(UnavailableKind::Failed, reason)
        })?;
        *nvram.destager.lock().expect("nothing panics in here") = Some(thread);
        assert!(self.nvram.set(nvram).is_ok(), "a log has one NVRAM buffer");
        self.shared.lock().has_nvram = true;
        Ok(())
    }

    /// Makes the appender of `site`; once for each site. None if the log has no NVRAM buffer.
    pub fn nvram_appender(&self, site: usize) -> Option<NvramAppender<P>> {
        let nvram = self.nvram.get()?;
        let writer = nvram.writers()[site].take();
        let writer = writer.expect("each site takes its own once");
        Some(NvramAppender::new(
            Arc::clone(nvram),
            Arc::clone(&self.shared),
            site,
            writer,
        ))
    }

    /// The buffer's progress and fill level. None if the log has no NVRAM buffer.
    pub fn nvram_status(&self) -> Option<NvramBufferStatus> {
        self.nvram.get().map(|nvram| nvram.status())
    }

    /// Everything before it is durable in the log's files.
    pub fn copied(&self) -> Lsn {
        Lsn(self.shared.durable.lsn.get())
    }

    /// Waits until everything before `end` is durable in the log's files, too. Err: the time is over, or they are not written any more.
    pub fn wait_copied(&self, end: Lsn, timeout: Duration) -> Result<(), LogError> {
        if let Some(nvram) = self.nvram.get() {
            return nvram.destage_to(&self.shared, end, timeout);
        }
        match self.shared.wait_durable(end, timeout) {
            true => Ok(()),
            false => Err(self.shared.refusal().unwrap_or_else(|| stalled(timeout))),
        }
    }

    /// Copies all records to the log's files as soon as they are persistent, while the result exists. None without NVRAM: records go
    /// to the files anyway.
    pub fn follow(&self) -> Option<DestageDemand> {
        self.nvram.get().map(DestageDemand::new)
    }

    /// Requests that everything before `end` is copied to the log's files, without waiting for it.
    pub fn want_copied(&self, end: Lsn) {
        if let Some(nvram) = self.nvram.get().filter(|nvram| nvram.copied() < end) {
            let mut state = nvram.lock();
            state.wanted = state.wanted.max(end);
            drop(state);
            nvram.work.notify_one();
        }
    }

    /// Copies persistent records to the log's files, for a reader of the files.
    pub(crate) fn destage_persistent(&self) -> Result<(), LogError> {
        match self.nvram.get() {
            None => Ok(()),
            Some(nvram) => nvram.destage_to(&self.shared, nvram.lsns.durable(), self.shared.config.append_wait_max),
        }
    }

    pub(crate) fn wait_persistent(&self, nvram: &NvramBuffer, end: Lsn, timeout: Duration) -> bool {
        let began_ns = self.shared.clock.monotonic_ns();
        while nvram.lsns.durable() < end {
            let waited = self.shared.clock.monotonic_ns() - began_ns;
            if waited as u128 >= timeout.as_nanos() {
                return false;
            }
            self.shared.threads.sleep(POLL_INTERVAL);
        }
        true
    }

    /// Copies everything, and ends the destage thread. Nothing is appended any more.
    pub(crate) fn close_nvram(&self) {
        let Some(nvram) = self.nvram.get() else {
            return;
        };
        nvram.lock().is_closing = true;
        nvram.work.notify_one();
        let destager = nvram.destager.lock().expect("nothing panics in here").take();
        if let Some(destager) = destager {
            destager.join();
        }
    }
}
