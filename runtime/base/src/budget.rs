//! Bytes that may be held at once: a budget, and the grants taken from it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// A limit on bytes that several owners share. A part also charges its bytes to the whole. Any thread may take bytes.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU64,
    used: AtomicU64,
    peak: AtomicU64,
    share: Option<Share>,
}

#[derive(Debug)]
struct Share {
    whole: Arc<Budget>,
    /// Bytes of the whole that this part never takes.
    kept_back: u64,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self::make(limit, None))
    }

    /// A part of `whole` with a limit of its own, which leaves `kept_back` bytes of it to others.
    pub fn part_of(whole: &Arc<Self>, limit: u64, kept_back: u64) -> Arc<Self> {
        let whole = Arc::clone(whole);
        Arc::new(Self::make(limit, Some(Share { whole, kept_back })))
    }

    fn make(limit: u64, share: Option<Share>) -> Self {
        Self {
            limit: AtomicU64::new(limit),
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            share,
        }
    }

    /// Bytes that may be used at once.
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Sets the limit for grants from now on.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Relaxed);
    }

    /// Bytes that are used now.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// The most that was ever used at once.
    pub fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }

    /// Takes bytes, or nothing if that would pass a limit.
    pub fn try_take(self: &Arc<Self>, bytes: u64) -> Option<Grant> {
        self.try_add(bytes, 0).then(|| Grant {
            budget: Arc::clone(self),
            bytes,
        })
    }

    /// Takes bytes whatever the limits are: for work that must not stop, such as undo.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Grant {
        self.add(bytes);
        Grant {
            budget: Arc::clone(self),
            bytes,
        }
    }

    /// True if this many bytes could be taken now.
    pub fn has_room(&self, bytes: u64) -> bool {
        bytes <= self.room()
    }

    /// Bytes that could be taken now.
    pub fn room(&self) -> u64 {
        self.room_beside(0)
    }

    fn room_beside(&self, kept_back: u64) -> u64 {
        let here = self.limit().saturating_sub(self.used().saturating_add(kept_back));
        let of_whole = self
            .share
            .as_ref()
            .map_or(u64::MAX, |share| share.whole.room_beside(share.kept_back));
        here.min(of_whole)
    }

    fn try_add(&self, bytes: u64, kept_back: u64) -> bool {
        if !self.try_add_here(bytes, kept_back) {
            return false;
        }
        let Some(share) = &self.share else {
            return true;
        };
        let taken = share.whole.try_add(bytes, share.kept_back);
        if !taken {
            self.used.fetch_sub(bytes, Relaxed);
        }
        taken
    }

    fn try_add_here(&self, bytes: u64, kept_back: u64) -> bool {
        let limit = self.limit().saturating_sub(kept_back);
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
        match self.used.try_update(Relaxed, Relaxed, add) {
            Ok(before) => {
                self.peak.fetch_max(before + bytes, Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    /// Takes bytes as `take` does, without a grant: `give_back` follows. Takes no lock, so that a signal handler may call it.
    pub fn add(&self, bytes: u64) {
        let before = self.used.fetch_add(bytes, Relaxed);
        self.peak.fetch_max(before.saturating_add(bytes), Relaxed);
        if let Some(share) = &self.share {
            share.whole.add(bytes);
        }
    }

    /// Gives back what `add` took.
    pub fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
        if let Some(share) = &self.share {
            share.whole.give_back(bytes);
        }
    }
}

/// Bytes taken of a budget, given back with the drop.
#[derive(Debug)]
pub struct Grant {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Grant {
    /// Bytes that it holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The budget that the grant charges.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Takes more bytes. False, with nothing taken, if that would pass a limit.
    pub fn try_grow(&mut self, bytes: u64) -> bool {
        let taken = self.budget.try_add(bytes, 0);
        self.bytes += if taken { bytes } else { 0 };
        taken
    }

    /// Takes more, whatever the limits are.
    pub fn grow(&mut self, bytes: u64) {
        self.budget.add(bytes);
        self.bytes += bytes;
    }

    /// Gives some bytes back. It panics if there are fewer.
    pub fn shrink(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "no more is given back than was taken");
        self.budget.give_back(bytes);
        self.bytes -= bytes;
    }

    /// Changes the grant to `bytes`, whatever the limits are.
    pub fn resize(&mut self, bytes: u64) {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.grow(more),
            None => self.shrink(self.bytes - bytes),
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.give_back(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_beyond_the_limit_is_refused_and_a_drop_returns_its_bytes() {
        let budget = Budget::new(100);
        let mut first = budget.try_take(60).expect("there is room");
        assert!(budget.try_take(41).is_none() && !first.try_grow(u64::MAX));
        let second = budget.try_take(40).expect("there is room");
        assert!(!budget.has_room(1));
        drop(second);
        first.shrink(50);
        assert_eq!((budget.used(), budget.peak(), first.bytes()), (10, 100, 10));
        first.resize(200);
        assert_eq!(budget.used(), 200);
        drop(first);
        assert_eq!((budget.used(), budget.peak()), (0, 200));
    }

    #[test]
    fn a_part_is_held_to_its_own_limit_and_to_what_the_whole_keeps_back() {
        let whole = Budget::new(100);
        let data = Budget::part_of(&whole, u64::MAX, 20);
        let other = Budget::part_of(&whole, 15, 0);
        let rows = data.try_take(80).expect("there is room");
        assert!(data.try_take(1).is_none() && !data.has_room(1));
        assert!(other.try_take(16).is_none());
        let few = other.try_take(15).expect("what is kept back is there");
        assert_eq!((data.used(), other.used(), whole.used()), (80, 15, 95));
        let more = data.take(30);
        assert_eq!(whole.used(), 125);
        drop((rows, few, more));
        assert_eq!((data.used(), other.used(), whole.used()), (0, 0, 0));
    }

    #[test]
    fn threads_that_take_at_once_do_not_pass_the_limit() {
        let whole = Budget::new(1_000);
        let part = Budget::part_of(&whole, 900, 0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let grant = part.try_take(300);
                        assert!(whole.used() <= 1_000);
                        drop(grant);
                    }
                });
            }
        });
        assert_eq!((part.used(), whole.used()), (0, 0));
        assert!(part.peak() <= 900);
    }
}
