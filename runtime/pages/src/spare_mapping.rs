//! Huge pages that a thread makes ready in advance. The kernel takes longer to clear one than many transactions take.
//!
//! The thread begins with the first request. It keeps one piece ready, or a few if one was not enough. The process holds this memory
//! without using it yet. If no piece is ready, the caller makes its own.
//!
//! A reserve (`keep_ready`) is a number of further pieces, which are made before that call returns. Pieces taken from it are replaced while
//! no caller takes any. A thread that clears memory takes its share of the machine's memory bandwidth, and callers would wait for it.

use std::{
    ptr::NonNull,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    time::Duration,
};

use crate::{HUGE_BYTES, PAGE_BYTES, array::map, mappings};

/// Number of pieces that are ready at most. One is enough for one growing table, because the kernel clears a piece much faster than the table fills
/// it. Several arrays may reach their ends together, so each request without a ready piece raises the number by one.
const READY_MAX: usize = 6;
/// Time without a taken piece after which the reserve is filled again.
const IDLE: Duration = Duration::from_millis(20);
/// Time between two pieces of the reserve: several times the time to make one, because other threads may work although they take none.
const REST: Duration = Duration::from_millis(2);

/// A mapping of `HUGE_BYTES` zero bytes that no array uses, in memory already if the kernel allowed it.
pub(crate) struct SpareMapping {
    base: NonNull<u8>,
}

// SAFETY: the mapping belongs to the holder of the piece, on any thread.
unsafe impl Send for SpareMapping {}

impl SpareMapping {
    /// Makes a piece. None: the system has no memory left.
    fn new() -> Option<Self> {
        let piece = Self { base: map(HUGE_BYTES)? };
        // SAFETY: the range is the mapping just made, and the advice does not change its contents.
        unsafe { libc::madvise(piece.base.as_ptr().cast(), HUGE_BYTES, libc::MADV_HUGEPAGE) };
        // The piece is touched by writes. `MADV_POPULATE_WRITE` would hold the process's lock on its mappings while the kernel clears. Any
        // thread that maps or protects memory, like its allocator, would wait for that.
        for at in (0..HUGE_BYTES).step_by(PAGE_BYTES) {
            // SAFETY: the byte lies in the mapping, which no other code knows yet, and is zero already.
            unsafe { piece.base.add(at).write_volatile(0) };
        }
        Some(piece)
    }

    /// Hands the mapping over.
    pub fn into_base(self) -> NonNull<u8> {
        let base = self.base;
        std::mem::forget(self);
        base
    }
}

impl Drop for SpareMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone and ends here.
        unsafe { libc::munmap(self.base.as_ptr().cast(), HUGE_BYTES) };
        mappings::count_gone();
    }
}

struct Maker {
    ready: Mutex<Vec<SpareMapping>>,
    /// Number of pieces that are kept ready at any time.
    wanted: AtomicUsize,
    /// Number of pieces that are kept ready while there is no other work.
    reserve: AtomicUsize,
    wake: SyncSender<()>,
}

static MAKER: OnceLock<Option<Maker>> = OnceLock::new();

/// Returns a ready piece. None if there is none, or if another thread is making one.
pub(crate) fn take() -> Option<SpareMapping> {
    let maker = MAKER.get_or_init(start).as_ref()?;
    let piece = maker.ready.try_lock().ok()?.pop();
    if piece.is_none() {
        let wanted = maker.wanted.load(Relaxed);
        maker.wanted.store((wanted + 1).min(READY_MAX), Relaxed);
    }
    match maker.wake.try_send(()) {
        Ok(()) | Err(TrySendError::Full(())) => {} // the thread wakes or is awake
        Err(TrySendError::Disconnected(())) => {}  // the thread has ended, so mappings are made on demand
    }
    piece
}

/// Starts the thread. None: the system has no thread left.
#[cold]
#[allow(
    clippy::disallowed_methods,
    reason = "what the thread does shows in nothing but time"
)]
fn start() -> Option<Maker> {
    let (wake, woken) = sync_channel(1);
    let maker = std::thread::Builder::new().name("pages".into());
    let maker = maker.spawn(move || make(&woken));
    maker.ok().map(|_| Maker {
        ready: Mutex::new(Vec::with_capacity(READY_MAX)),
        wanted: AtomicUsize::new(0),
        reserve: AtomicUsize::new(0),
        wake,
    })
}

impl Maker {
    fn ready(&self) -> usize {
        self.ready.lock().map_or(usize::MAX, |ready| ready.len())
    }

    /// Makes one more piece. False: the system has no memory left, or a thread panicked.
    fn make_one(&self) -> bool {
        let Some(piece) = SpareMapping::new() else {
            return false;
        };
        let kept = self.ready.lock().map(|mut ready| ready.push(piece));
        kept.is_ok()
    }
}

fn make(woken: &Receiver<()>) {
    let mut wait = IDLE;
    loop {
        let maker = MAKER.get().and_then(Option::as_ref);
        let is_whole = maker.is_none_or(|maker| maker.ready() >= maker.reserve.load(Relaxed));
        let asked = match is_whole {
            true => woken.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => woken.recv_timeout(wait),
        };
        let maker = MAKER.get().and_then(Option::as_ref);
        wait = match asked {
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => match maker.is_some_and(Maker::make_one) {
                true => REST,
                false => IDLE,
            },
            Ok(()) => {
                while maker.is_some_and(|maker| maker.ready() < maker.wanted.load(Relaxed) && maker.make_one()) {}
                IDLE
            }
        };
    }
}

/// Why memory could not be made ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// The system gave only this many bytes.
    Memory(usize),
    /// The system gave no thread that would make more.
    Thread,
}

/// Keeps `bytes` of memory ready for arrays (`Pages::ready`), which `threads` threads make before this returns. Taken pieces are replaced
/// while no caller takes any. The number of the last call holds; a smaller number releases nothing.
pub fn keep_ready(bytes: usize, threads: usize) -> Result<(), NotReady> {
    let maker = MAKER.get_or_init(start).as_ref().ok_or(NotReady::Thread)?;
    let pieces = bytes.div_ceil(HUGE_BYTES);
    let missing = pieces.saturating_sub(maker.ready());
    let begun = AtomicUsize::new(0);
    let is_refused = AtomicBool::new(false);
    let make = || {
        while !is_refused.load(Relaxed) && begun.fetch_add(1, Relaxed) < missing {
            if !maker.make_one() {
                is_refused.store(true, Relaxed);
            }
        }
    };
    #[allow(clippy::disallowed_methods, reason = "what the threads do shows in nothing but time")]
    std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads)
            .filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, make).ok())
            .collect();
        make();
        drop(helpers); // the scope waits for the helpers
    });
    // The reserve is stored after the pieces are made, because the thread would make some of them, too.
    maker.reserve.store(pieces, Relaxed);
    if pieces > 0 {
        // After the reserve, the thread makes at once the pieces that it would make without one.
        maker.wanted.store(READY_MAX, Relaxed);
        let _ = maker.wake.try_send(()); // the thread checks again how many mappings to keep
    }
    match is_refused.into_inner() {
        true => Err(NotReady::Memory(maker.ready() * HUGE_BYTES)),
        false => Ok(()),
    }
}

/// Returns the bytes of memory that are ready now and unused.
pub fn ready_bytes() -> usize {
    let maker = MAKER.get().and_then(Option::as_ref);
    let pieces = maker.and_then(|maker| maker.ready.lock().ok().map(|ready| ready.len()));
    pieces.unwrap_or(0) * HUGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pages;

    #[test]
    fn pieces_are_made_ahead_and_zero() {
        // The first request most likely finds none; later pieces come from the thread.
        let mut found = 0;
        for _ in 0..1_000_000 {
            if let Some(piece) = take() {
                found += 1;
                drop(piece);
            }
            let mut pages = Pages::<u64>::ready(HUGE_BYTES / 8).filled_with_zeros();
            assert_eq!(pages.as_ptr().align_offset(HUGE_BYTES), 0);
            assert!(pages[..1_000].iter().all(|word| *word == 0));
            pages[HUGE_BYTES / 8 - 1] = 7;
            if found > 3 {
                return;
            }
            std::thread::yield_now();
        }
        panic!("no piece was made ahead");
    }
}
