//! The hot set makes a used instance equal to a fresh one, at 30 ns per page and without a system call.
//!
//! After start-up the memory is copied (its pages that are not zero) and write-protected as a whole. The first write to a page faults. The
//! handler makes that page writable and records it. After each call every recorded page is rewritten from the copy. So a page is either
//! protected and equal to the copy, or recorded and rewritten, and no state survives. A call that writes more pages than the list holds
//! opens the memory from its beginning up to the highest page that it writes. That part is then rewritten as a whole, which costs only that
//! procedure some microseconds. Opened memory is counted at once, so the ledger has the memory of a call while it runs.

use std::{
    ptr,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use reprise_base::{Budget, Grant};
use reprise_pages::Mappings;

use crate::{
    memory::{PAGE_BYTES, Protection, protect},
    page,
};

/// Number of pages that stay writable between calls at most. Each costs about 30 ns per call.
const HOT_PAGES_MAX: usize = 64;
/// Limit for all sets together, beyond the `HOT_PAGES_LEAST` of each. The budget of mappings limits them in any case.
const HOT_PAGES_ALL_MAX: usize = 16 << 10;
/// Number of hot pages that each set may have, however many sets there are.
const HOT_PAGES_LEAST: usize = 4;
/// Number of hot pages above which the set is discarded often. Each set is discarded from time to time, so that a page which was touched
/// once does not cost for ever.
const HOT_PAGES_CHEAP: usize = 16;
/// Number of calls after which an expensive set is discarded. Over these, 8 us per page are about 2 ns per page.
const COOLING_CALLS: u32 = 4096;
/// Number of calls for a cheap set, which may hold pages that other procedures of the module once touched.
const COOLING_CALLS_CHEAP: u32 = 32 << 10;
/// Number of calls for which an opened memory stays open before pages are watched again.
const OPEN_CALLS: u32 = 64;
/// Mappings of a writable piece between two that are not.
const PIECE_MAPPINGS: usize = 2;
/// Bytes of a piece in which start-up is watched, because it touches many pages once.
const CHUNK_BYTES: usize = 64 << 10;
/// Bytes by which an open memory is opened further: each step costs a fault.
const OPEN_STEP_BYTES: usize = 1 << 20;

/// Number of existing sets.
static SETS: AtomicUsize = AtomicUsize::new(0);

const MODE_OFF: u8 = 0;
const MODE_STARTING: u8 = 1;
const MODE_WATCHED: u8 = 2;
const MODE_OPEN: u8 = 3;

/// The part that the signal handler shares with the engine thread. The handler runs on that thread, in the middle of guest code or of a
/// host call. So relaxed atomics suffice: they only keep the compiler from caching across the fault.
pub(crate) struct PageWatch {
    base: AtomicUsize,
    bytes: AtomicUsize,
    mode: AtomicU8,
    hot_count: AtomicUsize,
    hot_pages: [AtomicU32; HOT_PAGES_MAX],
    /// A flag for each chunk, set when start-up writes there.
    chunks: Box<[AtomicU8]>,
    /// The mappings of pages and chunks that are writable on their own.
    mappings: Mappings,
    /// Bytes from the beginning that are writable in an open memory. While the instance starts, it has the bytes of the chunks.
    opened: AtomicUsize,
    /// The budget that counts them. It also counts bytes that the instance's owner counts: the opened part bounds the bytes that may be
    /// written.
    guests: Option<Arc<Budget>>,
    /// Bytes that are counted there.
    counted: AtomicU64,
}

impl Drop for PageWatch {
    fn drop(&mut self) {
        self.count_nothing();
    }
}

impl PageWatch {
    /// Makes a watch. `guests` counts all memory that the guest may have written.
    pub fn new(memory_bytes_max: usize, guests: Option<Arc<Budget>>) -> Arc<Self> {
        Arc::new(Self {
            opened: AtomicUsize::new(0),
            guests,
            counted: AtomicU64::new(0),
            base: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            mode: AtomicU8::new(MODE_OFF),
            hot_count: AtomicUsize::new(0),
            hot_pages: [const { AtomicU32::new(0) }; HOT_PAGES_MAX],
            chunks: (0..memory_bytes_max.div_ceil(CHUNK_BYTES))
                .map(|_| AtomicU8::new(0))
                .collect(),
            mappings: Mappings::take(0),
        })
    }

    /// Handles a write to a protected page. False if the fault is none of ours. Async-signal-safe: no allocation, no lock, no panic; the
    /// only call is `mprotect`.
    pub fn on_fault(&self, address: usize) -> bool {
        let base = self.base.load(Relaxed);
        let Some(offset) = address.checked_sub(base).filter(|o| *o < self.bytes.load(Relaxed)) else {
            return false;
        };
        match self.mode.load(Relaxed) {
            MODE_STARTING => self.open_chunk(offset / CHUNK_BYTES),
            MODE_WATCHED => self.heat(offset / PAGE_BYTES),
            MODE_OPEN => self.open_to(step_end(offset)),
            _ => false,
        }
    }

    /// Watches a memory that serves a single call and is not restored. It is counted as it is written. If the machine can't protect it, all
    /// of it is counted.
    ///
    /// # Safety
    /// That of `HotSet::watch_start`.
    pub unsafe fn watch_once(&self, base: *mut u8, bytes: usize) {
        self.base.store(base as usize, Relaxed);
        self.bytes.store(bytes, Relaxed);
        self.mode.store(MODE_OPEN, Relaxed);
        let has_room = bytes > 0 && self.mappings.try_add_spare(PIECE_MAPPINGS);
        if !has_room || protect(base, bytes, Protection::Read).is_err() {
            self.record_opened(bytes);
        }
    }

    /// Makes the memory up to `end` writable for the host between two calls, when there is no signal handler. False: the machine refuses.
    pub fn open_for_host(&self, end: usize) -> bool {
        end <= self.opened.load(Relaxed) || self.open_to(step_end(end))
    }

    /// Makes the whole memory writable for its next owner. False: the machine refuses.
    pub fn end(&self) -> bool {
        self.mode.store(MODE_OFF, Relaxed);
        let bytes = self.bytes.load(Relaxed);
        bytes == 0 || self.allow_writes(0, bytes)
    }

    /// Records that this many bytes may be written from now on.
    fn record_opened(&self, end: usize) {
        let more = end.saturating_sub(self.opened.fetch_max(end, Relaxed)) as u64;
        if let Some(guests) = self.guests.as_ref().filter(|_| more > 0) {
            guests.add(more);
            self.counted.fetch_add(more, Relaxed);
        }
    }

    fn count_nothing(&self) {
        let counted = self.counted.swap(0, Relaxed);
        if let Some(guests) = &self.guests {
            guests.give_back(counted);
        }
    }

    fn open_chunk(&self, chunk: usize) -> bool {
        let Some(flag) = self.chunks.get(chunk) else {
            return false;
        };
        flag.store(1, Relaxed);
        if self.mappings.try_add_spare(PIECE_MAPPINGS) && self.allow_writes(chunk * CHUNK_BYTES, CHUNK_BYTES) {
            self.record_opened(self.opened.load(Relaxed) + CHUNK_BYTES);
            return true;
        }
        for flag in &self.chunks {
            flag.store(1, Relaxed);
        }
        self.open_to(usize::MAX)
    }

    /// Opens the memory from its beginning up to `end`, or to its own end. At its own end, mappings are only merged.
    fn open_to(&self, end: usize) -> bool {
        let bytes = self.bytes.load(Relaxed);
        let end = end.min(bytes);
        let is_open = self.allow_writes(0, end);
        if is_open {
            self.record_opened(end);
        }
        if is_open && end == bytes {
            self.mappings.give_back();
        }
        is_open
    }

    fn heat(&self, page: usize) -> bool {
        let count = self.hot_count.load(Relaxed);
        let slot = self.hot_pages.get(count).filter(|_| count < hot_pages_max());
        if let Some(slot) = slot.filter(|_| self.mappings.try_add_spare(PIECE_MAPPINGS)) {
            slot.store(page as u32, Relaxed);
            self.hot_count.store(count + 1, Relaxed);
            if self.allow_writes(page * PAGE_BYTES, PAGE_BYTES) {
                return true;
            }
        }
        self.mode.store(MODE_OPEN, Relaxed);
        // The list is full. Without a spare mapping, the rest of the memory can't stay closed.
        match self.mappings.try_add_spare(PIECE_MAPPINGS) {
            true => self.open_to(step_end(page * PAGE_BYTES)),
            false => self.open_to(usize::MAX),
        }
    }

    fn allow_writes(&self, offset: usize, bytes: usize) -> bool {
        let base = self.base.load(Relaxed) as *mut u8;
        let bytes = bytes.min(self.bytes.load(Relaxed) - offset);
        protect(base.wrapping_add(offset), bytes, Protection::ReadWrite).is_ok()
    }
}

/// Returns the end of the step of an open memory that has the byte at `offset`.
fn step_end(offset: usize) -> usize {
    (offset / OPEN_STEP_BYTES + 1) * OPEN_STEP_BYTES
}

/// Returns the number of hot pages that one set may have now. Each splits a mapping, and the kernel limits a process's mappings.
fn hot_pages_max() -> usize {
    let sets = SETS.load(Relaxed).max(1);
    (HOT_PAGES_ALL_MAX / sets).clamp(HOT_PAGES_LEAST, HOT_PAGES_MAX)
}

impl Drop for HotSet {
    fn drop(&mut self) {
        SETS.fetch_sub(1, Relaxed);
    }
}

/// The pages of a started memory that are not zero.
#[derive(Default)]
struct Image {
    /// Page numbers, ascending.
    pages: Vec<u32>,
    data: Vec<u8>,
}

impl Image {
    fn page(&self, number: u32) -> Option<&[u8]> {
        let index = self.pages.binary_search(&number).ok()?;
        Some(&self.data[index * PAGE_BYTES..][..PAGE_BYTES])
    }
}

/// Restores one instance's memory after each call.
pub(crate) struct HotSet {
    watch: Arc<PageWatch>,
    base: *mut u8,
    bytes: usize,
    image: Image,
    /// The bytes from which each hot page is rewritten; null for a page of zeros. It is parallel to `watch.hot_pages`, and may be shorter.
    sources: Vec<*const u8>,
    calls: u32,
    /// The buffer that the host writes before a call: its pages are always hot. Offset and bytes.
    kept: (usize, usize),
    /// True if its pages are writable.
    kept_open: bool,
    /// The grant that counts its memory.
    counted: Option<Grant>,
}

impl HotSet {
    /// Watches a memory that holds only the module's data, before any guest code runs in it.
    ///
    /// # Safety
    /// `base..base + bytes` is a page-aligned memory that stays mapped while the set lives, and only the thread that runs
    /// the owning store writes to it.
    pub unsafe fn watch_start(
        watch: &Arc<PageWatch>,
        base: *mut u8,
        bytes: usize,
        data: &[(u32, u32)],
    ) -> Result<Self, std::io::Error> {
        watch.base.store(base as usize, Relaxed);
        watch.bytes.store(bytes, Relaxed);
        for (start, end) in data.iter().filter(|(start, end)| start < end) {
            for chunk in *start as usize / CHUNK_BYTES..=(*end as usize - 1) / CHUNK_BYTES {
                watch.chunks[chunk].store(1, Relaxed);
            }
        }
        if bytes > 0 {
            protect(base, bytes, Protection::Read)?;
        }
        watch.mode.store(MODE_STARTING, Relaxed);
        SETS.fetch_add(1, Relaxed);
        Ok(Self {
            watch: watch.clone(),
            base,
            bytes,
            image: Image::default(),
            sources: Vec::with_capacity(HOT_PAGES_MAX),
            calls: 0,
            kept: (0, 0),
            kept_open: false,
            counted: None,
        })
    }

    /// Returns the bytes of the pages that are not zero after start-up. They are in the memory, and once more in the copy.
    pub fn image_bytes(&self) -> usize {
        self.image.data.len()
    }

    /// Counts its memory with `grant`, which covers the present bytes. Hot pages are added as they come.
    pub fn count_in(&mut self, grant: Grant) {
        self.counted = Some(grant);
    }

    /// Takes the copy to which every later call returns, and protects the memory.
    ///
    /// The host may write to the `kept` bytes (offset and length), which lie in the memory, with `write_kept`.
    pub fn take_image(&mut self, kept: (usize, usize)) -> Result<(), std::io::Error> {
        assert!(kept.1 <= self.bytes && kept.0 <= self.bytes - kept.1);
        self.kept = kept;
        for (chunk, flag) in self.watch.chunks.iter().enumerate() {
            if flag.load(Relaxed) == 0 {
                continue;
            }
            let start = chunk * CHUNK_BYTES;
            let end = (start + CHUNK_BYTES).min(self.bytes);
            let mut zeros_from = start;
            for offset in (start..end).step_by(PAGE_BYTES) {
                // SAFETY: the page lies in the memory (contract of `watch_start`), and no guest runs now.
                let page = unsafe { std::slice::from_raw_parts(self.base.add(offset), PAGE_BYTES) };
                if page.iter().any(|byte| *byte != 0) {
                    self.image.pages.push((offset / PAGE_BYTES) as u32);
                    self.image.data.extend_from_slice(page);
                    // Pages that were written and are zero again would stay in memory, and no budget would count them.
                    self.release(zeros_from, offset);
                    zeros_from = offset + PAGE_BYTES;
                }
            }
            self.release(zeros_from, end);
        }
        self.image.pages.shrink_to_fit();
        self.image.data.shrink_to_fit();
        self.close()
    }

    /// Writes to the start of the kept bytes between two calls, when there is no signal handler. Err: the machine does not make them
    /// writable. The memory is then unusable.
    #[inline]
    pub fn write_kept(&mut self, bytes: &[u8]) -> Result<(), std::io::Error> {
        assert!(bytes.len() <= self.kept.1);
        if !self.kept_open {
            self.open_all()?;
        }
        let target = self.base.wrapping_add(self.kept.0);
        // SAFETY: the kept bytes lie in the memory (`take_image`) and are writable; `bytes` is not the guest's.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        Ok(())
    }

    /// Makes all of the memory writable. It takes one mapping (vm.max_map_count) and the memory itself.
    #[cold]
    pub fn open_all(&mut self) -> Result<(), std::io::Error> {
        self.watch.mode.store(MODE_OPEN, Relaxed);
        protect(self.base, self.bytes, Protection::ReadWrite)?;
        self.watch.record_opened(self.bytes);
        self.watch.mappings.give_back();
        self.kept_open = true;
        Ok(())
    }

    /// Gives up the copy of a memory that equals it. Returns the watch of the memory for a single call.
    pub fn serve_once(&self) -> Arc<PageWatch> {
        self.watch.mode.store(MODE_OPEN, Relaxed);
        self.watch.clone()
    }

    /// Makes the memory equal to the image again. The caller does so after every call into the guest, however that ended. Err: the machine
    /// let it neither be watched nor be written. The memory is then unusable.
    #[inline]
    pub fn reset(&mut self) -> Result<(), std::io::Error> {
        if self.watch.mode.load(Relaxed) == MODE_OPEN {
            return self.reset_open();
        }
        let count = self.reset_hot(0);
        self.calls += 1;
        if self.calls >= COOLING_CALLS && (count > HOT_PAGES_CHEAP || self.calls >= COOLING_CALLS_CHEAP) {
            self.close_or_open()?;
        }
        Ok(())
    }

    /// Rewrites the hot pages behind the first `from` bytes. Returns the number of hot pages.
    #[inline]
    fn reset_hot(&mut self, from: usize) -> usize {
        let count = self.watch.hot_count.load(Relaxed);
        if count > self.sources.len() {
            self.resolve_sources(count);
        }
        for (slot, source) in self.watch.hot_pages.iter().zip(&self.sources) {
            let offset = slot.load(Relaxed) as usize * PAGE_BYTES;
            if offset < from {
                continue;
            }
            let page = self.base.wrapping_add(offset);
            // SAFETY: a hot page lies in the memory and is writable (`PageWatch::heat`). Its source is null, or a page of the image, which is
            // never changed while anything refers to it.
            unsafe {
                match source.is_null() {
                    true => page::zero(page),
                    false => page::copy(*source, page),
                }
            }
        }
        count
    }

    #[cold]
    fn resolve_sources(&mut self, count: usize) {
        let known = self.sources.len();
        for slot in &self.watch.hot_pages[known..count] {
            let source = self.image.page(slot.load(Relaxed));
            self.sources.push(source.map_or(ptr::null(), <[u8]>::as_ptr));
        }
        if let Some(grant) = &mut self.counted {
            grant.grow(((count - known) * PAGE_BYTES) as u64);
        }
    }

    /// Copies the image back to the open part, any page of which may have been written, and drops every other page of it. Behind that part
    /// it rewrites the hot pages.
    #[cold]
    fn reset_open(&mut self) -> Result<(), std::io::Error> {
        let opened = self.watch.opened.load(Relaxed);
        self.reset_hot(opened);
        let mut done = 0;
        for (page, data) in self.image.pages.iter().zip(self.image.data.chunks_exact(PAGE_BYTES)) {
            let offset = *page as usize * PAGE_BYTES;
            if offset >= opened {
                break;
            }
            self.drop_range(done, offset);
            // SAFETY: the page lies in the open part of the memory, which is writable.
            unsafe { ptr::copy_nonoverlapping(data.as_ptr(), self.base.add(offset), PAGE_BYTES) };
            done = offset + PAGE_BYTES;
        }
        self.drop_range(done, opened);
        self.calls += 1;
        if self.calls >= OPEN_CALLS {
            self.close_or_open()?;
        }
        Ok(())
    }

    /// Makes `start..end` read as zeros.
    fn drop_range(&self, start: usize, end: usize) {
        if !self.release(start, end) {
            // SAFETY: the range lies in the open part of the memory, which is writable.
            unsafe { ptr::write_bytes(self.base.add(start), 0, end - start) };
        }
    }

    /// Releases the memory of pages, which read as zeros then. False: the kernel refused, and they are unchanged.
    fn release(&self, start: usize, end: usize) -> bool {
        if start == end {
            return true;
        }
        // SAFETY: the range lies in the memory; an anonymous private page that is dropped reads as zeros afterwards.
        unsafe { libc::madvise(self.base.add(start).cast(), end - start, libc::MADV_DONTNEED) == 0 }
    }

    #[cold]
    fn close_or_open(&mut self) -> Result<(), std::io::Error> {
        self.calls = 0;
        match self.close() {
            Ok(()) => Ok(()),
            // Without protection no page is watched, so each must count as written.
            Err(_) => self.open_all(),
        }
    }

    /// Protects the whole memory, which must equal the image, and drops the hot pages.
    fn close(&mut self) -> Result<(), std::io::Error> {
        self.kept_open = false;
        if self.bytes > 0 {
            protect(self.base, self.bytes, Protection::Read)?;
        }
        self.watch.mappings.give_back();
        self.watch.opened.store(0, Relaxed);
        self.watch.count_nothing();
        if let Some(grant) = &mut self.counted {
            grant.shrink((self.sources.len() * PAGE_BYTES) as u64);
        }
        self.sources.clear();
        self.watch.hot_count.store(0, Relaxed);
        self.watch.mode.store(MODE_WATCHED, Relaxed);
        let (start, bytes) = self.kept;
        let pages = start / PAGE_BYTES..(start + bytes).div_ceil(PAGE_BYTES);
        self.kept_open = bytes > 0 && pages.into_iter().all(|page| self.watch.heat(page));
        Ok(())
    }
}
