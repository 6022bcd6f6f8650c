//! Pages by number. With the buffer pool, a page lies in a frame. A page table finds it, a pin keeps it there, and a clock chooses which unpinned one
//! makes room. The pool writes a changed page back after its log. Without the pool, each page has its own place.

use std::{
    cell::UnsafeCell,
    fs::File,
    ops,
    os::unix::fs::FileExt,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

use anyhow::{Result, ensure};

use crate::{
    latch::{Latch, LatchedCell},
    log::{Chain, Log, RecordKind, Site, create_file},
    page::{Page, PageKind},
    parts::{LATCHES, LSNS, POOL, has, page_bytes},
};

const NONE: u32 = u32::MAX;
/// Fewest frames: a split holds four pages.
pub const FRAMES_MIN: usize = 8;

/// Room for one page, and who uses it.
struct Frame {
    latch: Latch,
    pins: AtomicU32,
    /// Used since the clock passed.
    is_used: AtomicBool,
    is_dirty: AtomicBool,
    page: UnsafeCell<Page>,
}

/// Which frame holds a page: chains by the hash of its number.
struct PageTable {
    buckets: Vec<u32>,
    /// By frame: the page in it, and the next frame of its chain.
    numbers: Vec<u32>,
    chain: Vec<u32>,
    /// Frames in use, and where the clock's hand stands.
    used: usize,
    hand: usize,
    /// Pages that were given back.
    free: Vec<u32>,
}

/// The pages of one engine, and the log that goes before them.
pub struct Pool<const P: u32> {
    frames: Box<[Frame]>,
    table: LatchedCell<PageTable, P>,
    volume: Option<File>,
    next_page: AtomicU32,
    /// Before a changed page is written, its records are.
    pub log: Log<P>,
}

/// A page that is read.
pub struct ReadPage<'p, const P: u32> {
    pool: &'p Pool<P>,
    frame: &'p Frame,
    /// Number of the page.
    pub number: u32,
}

/// A page that is changed.
pub struct WritePage<'p, const P: u32> {
    pool: &'p Pool<P>,
    frame: &'p Frame,
    /// Number of the page.
    pub number: u32,
}

impl<const P: u32> Pool<P> {
    /// An empty pool of `frames` frames (without the buffer pool: pages at most), its volume and log in `folder`.
    ///
    /// # Errors
    /// Too few frames, or a file cannot be made.
    pub fn create(folder: &Path, frames: usize, group: u32) -> Result<Self> {
        ensure!(frames >= FRAMES_MIN, "a pool has at least {FRAMES_MIN} frames");
        let volume = has(P, POOL).then(|| create_file(&folder.join("volume"))).transpose()?;
        let frame = |_| Frame {
            latch: Latch::default(),
            pins: AtomicU32::new(0),
            is_used: AtomicBool::new(false),
            is_dirty: AtomicBool::new(false),
            page: UnsafeCell::new(Page::new(0)),
        };
        let tracked = if has(P, POOL) { frames } else { 0 };
        Ok(Self {
            frames: (0..frames).map(frame).collect(),
            table: LatchedCell::new(PageTable {
                buckets: vec![NONE; tracked.next_power_of_two()],
                numbers: vec![NONE; tracked],
                chain: vec![NONE; tracked],
                used: 0,
                hand: 0,
                free: Vec::new(),
            }),
            volume,
            // Page 0 is none.
            next_page: AtomicU32::new(1),
            log: Log::create(folder, group)?,
        })
    }

    /// A page, to be read.
    #[inline]
    pub fn read(&self, number: u32) -> ReadPage<'_, P> {
        let frame = self.pin(number, false);
        if const { has(P, LATCHES) } {
            frame.latch.lock_shared();
        }
        ReadPage {
            pool: self,
            frame,
            number,
        }
    }

    /// A page, to be changed.
    #[inline]
    pub fn write(&self, number: u32) -> WritePage<'_, P> {
        self.latched_for_write(number, false)
    }

    #[inline]
    fn latched_for_write(&self, number: u32, is_new: bool) -> WritePage<'_, P> {
        let frame = self.pin(number, is_new);
        if const { has(P, LATCHES) } {
            frame.latch.lock_exclusive();
        }
        WritePage {
            pool: self,
            frame,
            number,
        }
    }

    /// A new page of a kind.
    pub fn allocate(&self, chain: &mut Chain, kind: PageKind, level: u8) -> WritePage<'_, P> {
        let freed = self.table.lock().free.pop();
        let number = freed.unwrap_or_else(|| self.next_page.fetch_add(1, Ordering::Relaxed));
        let mut page = self.latched_for_write(number, true);
        if page.bytes().len() != page_bytes(P) {
            *page = Page::new(page_bytes(P));
        }
        page.format(kind, level);
        let site = Site {
            kind: RecordKind::Format,
            page: number,
            slot: level.into(),
            extra: kind as u64,
        };
        page.append(chain, site, &[], &[]);
        page
    }

    /// Gives a page back, which no page names any more.
    pub fn free(&self, mut page: WritePage<'_, P>, chain: &mut Chain) {
        let number = page.number;
        page.format(PageKind::Free, 0);
        let site = Site {
            kind: RecordKind::Format,
            page: number,
            slot: 0,
            extra: PageKind::Free as u64,
        };
        page.append(chain, site, &[], &[]);
        drop(page);
        self.table.lock().free.push(number);
    }

    /// Pages that were ever made.
    pub fn pages(&self) -> u32 {
        self.next_page.load(Ordering::Relaxed) - 1
    }

    /// The frame of a page, which stays in it until it is unpinned.
    #[inline]
    fn pin(&self, number: u32, is_new: bool) -> &Frame {
        match const { has(P, POOL) } {
            true => self.pin_in_pool(number, is_new),
            false => self.frames.get(number as usize).expect("room for every page"),
        }
    }

    #[inline(never)]
    fn pin_in_pool(&self, number: u32, is_new: bool) -> &Frame {
        let mut table = self.table.lock();
        let at = match table.find(number) {
            Some(at) => at,
            None => self.bring_in(&mut table, number, is_new),
        };
        let frame = &self.frames[at];
        match const { has(P, LATCHES) } {
            true => frame.pins.fetch_add(1, Ordering::Relaxed),
            false => {
                let pins = frame.pins.load(Ordering::Relaxed);
                frame.pins.store(pins + 1, Ordering::Relaxed);
                pins
            }
        };
        frame.is_used.store(true, Ordering::Relaxed);
        frame
    }

    #[inline]
    fn unpin(&self, frame: &Frame) {
        if const { !has(P, POOL) } {
            return;
        }
        match const { has(P, LATCHES) } {
            true => frame.pins.fetch_sub(1, Ordering::Release),
            false => {
                let pins = frame.pins.load(Ordering::Relaxed);
                frame.pins.store(pins - 1, Ordering::Relaxed);
                pins
            }
        };
    }

    /// Puts a page into a frame, from the volume unless it is new.
    #[inline(never)]
    fn bring_in(&self, table: &mut PageTable, number: u32, is_new: bool) -> usize {
        let at = match table.used < self.frames.len() {
            true => {
                table.used += 1;
                table.used - 1
            }
            false => self.make_room(table),
        };
        table.put(at, number);
        // SAFETY: the frame has no pin, and gets one under the table's latch alone, which this thread holds.
        let page = unsafe { &mut *self.frames[at].page.get() };
        if page.bytes().len() != page_bytes(P) {
            *page = Page::new(page_bytes(P));
        }
        if let (Some(volume), false) = (&self.volume, is_new) {
            let read = volume.read_exact_at(page.bytes_mut(), place(number, P));
            read.expect("the volume has every page that was written");
        }
        at
    }

    /// A frame whose page may go: by the clock, written back if it was changed.
    fn make_room(&self, table: &mut PageTable) -> usize {
        let turns = 2 * self.frames.len() + 1;
        let victim = (0..turns).find_map(|_| {
            let at = table.hand;
            table.hand = (at + 1) % self.frames.len();
            let frame = &self.frames[at];
            let is_free = frame.pins.load(Ordering::Acquire) == 0;
            (is_free && !frame.is_used.swap(false, Ordering::Relaxed)).then_some(at)
        });
        let at = victim.expect("a pool has more frames than one transaction pins");
        self.write_back(at, table.numbers[at]);
        table.take_out(at);
        at
    }

    fn write_back(&self, at: usize, number: u32) {
        let frame = &self.frames[at];
        if let (true, Some(volume)) = (frame.is_dirty.swap(false, Ordering::Relaxed), &self.volume) {
            // SAFETY: as in `bring_in`.
            let page = unsafe { &*frame.page.get() };
            self.log.force(page.lsn());
            let written = volume.write_all_at(page.bytes(), place(number, P));
            written.expect("the volume takes what is written");
        }
    }

    /// Writes every changed page back. No page is pinned.
    pub fn flush(&self) {
        let table = self.table.lock();
        for (at, number) in table.numbers.iter().enumerate().take(table.used) {
            self.write_back(at, *number);
        }
    }

    /// Pages that have been changed since they were written back.
    pub fn dirty(&self) -> usize {
        let frames = self.frames.iter();
        frames.filter(|frame| frame.is_dirty.load(Ordering::Relaxed)).count()
    }
}

fn place(number: u32, parts: u32) -> u64 {
    number as u64 * page_bytes(parts) as u64
}

impl PageTable {
    #[inline]
    fn bucket(&self, number: u32) -> usize {
        let hash = number.wrapping_mul(0x9e37_79b1);
        (hash >> 7) as usize & (self.buckets.len() - 1)
    }

    #[inline]
    fn find(&self, number: u32) -> Option<usize> {
        let mut at = self.buckets[self.bucket(number)];
        while at != NONE {
            if self.numbers[at as usize] == number {
                return Some(at as usize);
            }
            at = self.chain[at as usize];
        }
        None
    }

    fn put(&mut self, at: usize, number: u32) {
        let bucket = self.bucket(number);
        self.numbers[at] = number;
        self.chain[at] = self.buckets[bucket];
        self.buckets[bucket] = at as u32;
    }

    fn take_out(&mut self, at: usize) {
        let bucket = self.bucket(self.numbers[at]);
        let mut before = self.buckets[bucket];
        if before == at as u32 {
            self.buckets[bucket] = self.chain[at];
        } else {
            while self.chain[before as usize] != at as u32 {
                before = self.chain[before as usize];
            }
            self.chain[before as usize] = self.chain[at];
        }
        self.numbers[at] = NONE;
    }
}

impl<'p, const P: u32> WritePage<'p, P> {
    /// Appends a record of what was done to this page, and stamps it.
    #[inline]
    pub fn append(&mut self, chain: &mut Chain, site: Site, before: &[u8], after: &[u8]) {
        let lsn = self.pool.log.append(chain, site, before, after);
        self.stamp(lsn);
    }

    /// The pool that the page is of.
    #[inline(always)]
    pub fn pool(&self) -> &'p Pool<P> {
        self.pool
    }

    /// Notes the last change of this page.
    #[inline]
    pub fn stamp(&mut self, lsn: u64) {
        if const { has(P, LSNS) } {
            self.set_lsn(lsn);
        }
        if const { has(P, POOL) } {
            self.frame.is_dirty.store(true, Ordering::Relaxed);
        }
    }
}

impl<const P: u32> ops::Deref for ReadPage<'_, P> {
    type Target = Page;

    #[inline(always)]
    fn deref(&self) -> &Page {
        // SAFETY: the latch is held, so no thread changes the page. In a build without latches, the one thread holds no `WritePage` of a page that it
        // reads. With latches it would wait for itself, which every test would show.
        unsafe { &*self.frame.page.get() }
    }
}

impl<const P: u32> ops::Deref for WritePage<'_, P> {
    type Target = Page;

    #[inline(always)]
    fn deref(&self) -> &Page {
        // SAFETY: as below.
        unsafe { &*self.frame.page.get() }
    }
}

impl<const P: u32> ops::DerefMut for WritePage<'_, P> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Page {
        // SAFETY: the latch is held exclusively; without latches as in `ReadPage`.
        unsafe { &mut *self.frame.page.get() }
    }
}

impl<const P: u32> Drop for ReadPage<'_, P> {
    #[inline]
    fn drop(&mut self) {
        if const { has(P, LATCHES) } {
            self.frame.latch.unlock_shared();
        }
        self.pool.unpin(self.frame);
    }
}

impl<const P: u32> Drop for WritePage<'_, P> {
    #[inline]
    fn drop(&mut self) {
        if const { has(P, LATCHES) } {
            self.frame.latch.unlock_exclusive();
        }
        self.pool.unpin(self.frame);
    }
}
