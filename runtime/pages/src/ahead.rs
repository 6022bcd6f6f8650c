//! Huge pages made ready by a thread of their own: clearing one takes the kernel longer than many transactions take.
//!
//! The thread begins with the first piece that is asked for and keeps one ready, or a few where one was not enough: memory that
//! the process holds and nobody uses yet. Whoever finds none ready has its own made, as if there were no thread.

use std::{
    ptr::NonNull,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
};

use crate::{HUGE_BYTES, PAGE_BYTES, map};

/// Pieces that wait at most. One is enough for a table that grows, as the kernel clears one much faster than it is filled;
/// several arrays may come to their ends together, so each piece that was asked for in vain raises the number by one.
const READY_MAX: usize = 6;

/// A mapping of `HUGE_BYTES` zero bytes that nobody uses, in memory already where the kernel let it.
pub(crate) struct Piece {
    base: NonNull<u8>,
}

// SAFETY: the mapping belongs to whoever holds the piece, on whatever thread.
unsafe impl Send for Piece {}

impl Piece {
    /// None: the system has no memory left.
    fn new() -> Option<Self> {
        let piece = Self {
            base: map(HUGE_BYTES)?,
        };
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
    }
}

struct Maker {
    ready: Mutex<Vec<Piece>>,
    /// Pieces that are kept ready now.
    wanted: AtomicUsize,
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
        wake,
    })
}

fn make(woken: &Receiver<()>) {
    while woken.recv().is_ok() {
        while let Some(maker) = MAKER.get().and_then(Option::as_ref) {
            let count = |pieces: &Vec<Piece>| pieces.len();
            let ready = maker.ready.lock().map_or(READY_MAX, |ready| count(&ready));
            if ready >= maker.wanted.load(Relaxed) {
                break;
            }
            let Some(piece) = Piece::new() else {
                break;
            };
            if let Ok(mut ready) = maker.ready.lock() {
                ready.push(piece);
            }
        }
    }
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
