//! Huge pages made ready by a thread of their own: clearing one takes the kernel longer than many transactions take.
//!
//! The thread begins with the first piece that is asked for and keeps one ready, or a few where one was not enough: memory that
//! the process holds and nobody uses yet. Whoever finds none ready has its own made, as if there were no thread.
//!
//! A reserve (`keep_ready`) is as many pieces more as somebody asked for, made before that call returns. What is taken of it comes
//! back while nobody takes any: a thread that clears memory has one core's share of the machine's, and so has who waits for it.

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

/// Pieces that wait at most. One is enough for a table that grows, as the kernel clears one much faster than it is filled;
/// several arrays may come to their ends together, so each piece that was asked for in vain raises the number by one.
const READY_MAX: usize = 6;
/// The reserve is made whole again when nobody took a piece for so long.
const IDLE: Duration = Duration::from_millis(20);
/// Between two pieces of it: several times what making one takes, for others may work although they take none.
const REST: Duration = Duration::from_millis(2);

/// A mapping of `HUGE_BYTES` zero bytes that nobody uses, in memory already where the kernel let it.
pub(crate) struct Piece {
    base: NonNull<u8>,
}

// SAFETY: the mapping belongs to whoever holds the piece, on whatever thread.
unsafe impl Send for Piece {}

impl Piece {
    /// None: the system has no memory left.
    fn new() -> Option<Self> {
        let piece = Self { base: map(HUGE_BYTES)? };
        // SAFETY: the range is the mapping just made, and the advice does not change its contents.
        unsafe { libc::madvise(piece.base.as_ptr().cast(), HUGE_BYTES, libc::MADV_HUGEPAGE) };
        // By writes of its own: `MADV_POPULATE_WRITE` holds the process's lock on its mappings while the kernel clears, and any
        // thread that maps or protects memory, as its allocator does, would wait for that.
        for at in (0..HUGE_BYTES).step_by(PAGE_BYTES) {
            // SAFETY: the byte lies in the mapping, which nobody else knows yet, and is zero already.
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

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone and ends here.
        unsafe { libc::munmap(self.base.as_ptr().cast(), HUGE_BYTES) };
        mappings::note_gone();
    }
}

struct Maker {
    ready: Mutex<Vec<Piece>>,
    /// Pieces that are kept ready now, whatever else there is to do.
    wanted: AtomicUsize,
    /// Pieces that are kept ready where there is nothing else to do.
    reserve: AtomicUsize,
    wake: SyncSender<()>,
}

static MAKER: OnceLock<Option<Maker>> = OnceLock::new();

/// A piece that is ready; none where there is none, or where its making is in the way.
pub(crate) fn take() -> Option<Piece> {
    let maker = MAKER.get_or_init(start).as_ref()?;
    let piece = maker.ready.try_lock().ok()?.pop();
    if piece.is_none() {
        let wanted = maker.wanted.load(Relaxed);
        maker.wanted.store((wanted + 1).min(READY_MAX), Relaxed);
    }
    match maker.wake.try_send(()) {
        Ok(()) | Err(TrySendError::Full(())) => {} // it wakes, or is awake
        Err(TrySendError::Disconnected(())) => {}  // nobody makes any more: all is as without it
    }
    piece
}

/// None: the system has no thread to give.
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

    /// Makes one piece more. False: the system has no memory left, or something panicked.
    fn make_one(&self) -> bool {
        let Some(piece) = Piece::new() else {
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
    /// The system gave no more than so many bytes.
    Memory(usize),
    /// It gave no thread that would make more.
    Thread,
}

/// Holds `bytes` of memory ready for arrays (`Pages::ready`), made by `threads` threads before this returns, and made again behind what
/// is taken of it while nobody takes any. The last call's number holds; to ask for less gives nothing back.
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
        drop(helpers); // the scope waits for them
    });
    // Not before: the thread would make some of them, too.
    maker.reserve.store(pieces, Relaxed);
    if pieces > 0 {
        // Behind the reserve comes what there would be without it, at once.
        maker.wanted.store(READY_MAX, Relaxed);
        let _ = maker.wake.try_send(()); // it looks again what is to be kept
    }
    match is_refused.into_inner() {
        true => Err(NotReady::Memory(maker.ready() * HUGE_BYTES)),
        false => Ok(()),
    }
}

/// Bytes of memory that are ready now, and nobody's.
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
        // The first one is asked for in vain, most likely; later ones come from the thread.
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
