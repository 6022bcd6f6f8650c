//! Latches: short locks of threads on pages and tables in memory, shared or exclusive, without deadlock detection.

use std::{
    cell::UnsafeCell,
    hint, ops,
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use crate::parts::{LATCHES, has};

const EXCLUSIVE: u32 = 1 << 31;
/// Turns of waiting before the thread gives its turn to another one.
const SPINS: u32 = 64;

/// A latch: how many hold it shared, or that one thread holds it alone.
#[derive(Default)]
pub struct Latch(AtomicU32);

impl Latch {
    /// Waits until no thread holds the latch exclusively.
    #[inline(never)]
    pub fn lock_shared(&self) {
        let mut turn = 0;
        loop {
            let holders = self.0.load(Ordering::Relaxed);
            let is_free = holders & EXCLUSIVE == 0;
            if is_free
                && self
                    .0
                    .compare_exchange_weak(holders, holders + 1, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
            wait(&mut turn);
        }
    }

    /// Gives up a shared hold.
    #[inline]
    pub fn unlock_shared(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Waits until no thread holds the latch.
    #[inline(never)]
    pub fn lock_exclusive(&self) {
        let mut turn = 0;
        while !self.try_lock_exclusive() {
            wait(&mut turn);
        }
    }

    /// Takes the latch if no thread holds it.
    #[inline]
    pub fn try_lock_exclusive(&self) -> bool {
        self.0
            .compare_exchange(0, EXCLUSIVE, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Gives up an exclusive hold.
    #[inline]
    pub fn unlock_exclusive(&self) {
        self.0.store(0, Ordering::Release);
    }
}

#[cold]
fn wait(turn: &mut u32) {
    *turn += 1;
    match turn.is_multiple_of(SPINS) {
        true => thread::yield_now(),
        false => hint::spin_loop(),
    }
}

/// A value that threads share: behind an exclusive latch, or bare in a build for one thread.
pub struct LatchedCell<T, const P: u32> {
    latch: Latch,
    value: UnsafeCell<T>,
}

/// The hold on a latched value.
pub struct LatchedRef<'l, T, const P: u32>(&'l LatchedCell<T, P>);

impl<T, const P: u32> LatchedCell<T, P> {
    /// Puts a value behind a latch.
    pub fn new(value: T) -> Self {
        Self {
            latch: Latch::default(),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the value. The holder takes no second hold of it: in a build without latches, nothing would notice.
    #[inline]
    pub fn lock(&self) -> LatchedRef<'_, T, P> {
        if const { has(P, LATCHES) } {
            self.latch.lock_exclusive();
        }
        LatchedRef(self)
    }
}

impl<T, const P: u32> ops::Deref for LatchedRef<'_, T, P> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the holder is alone. Either it has the latch, or the engine has no latches and stays on one thread. That thread's calls hold each
        // value once (`Engine` is not `Sync`, and `lock` says so).
        unsafe { &*self.0.value.get() }
    }
}

impl<T, const P: u32> ops::DerefMut for LatchedRef<'_, T, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T, const P: u32> Drop for LatchedRef<'_, T, P> {
    #[inline]
    fn drop(&mut self) {
        if const { has(P, LATCHES) } {
            self.0.latch.unlock_exclusive();
        }
    }
}
