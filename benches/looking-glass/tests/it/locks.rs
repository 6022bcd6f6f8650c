//! Locks: conflicts, conversions, deadlocks, and threads that count under them.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use reprise_bench_looking_glass::{
    lock::{LockError, LockId, Locks, Mode, TxnLocks},
    parts::{LATCHES, LOCKS},
};

use crate::{Numbers, engine};

#[test]
fn holders_in_modes_that_disagree_conflict_until_one_is_gone() {
    let locks = Locks::<LOCKS>::default();
    let (mut one, mut other) = (TxnLocks::new(1), TxnLocks::new(2));
    let row = LockId::row(3, 4);
    let take = |held: &mut TxnLocks, id, mode| locks.acquire(held, id, mode);
    take(&mut one, LockId::table(3), Mode::IntentExclusive).expect("free");
    take(&mut other, LockId::table(3), Mode::IntentExclusive).expect("intents agree");
    take(&mut one, row, Mode::Shared).expect("free");
    take(&mut other, row, Mode::Shared).expect("shared");
    assert_eq!(take(&mut one, row, Mode::Exclusive), Err(LockError::Held));
    assert_eq!(take(&mut other, LockId::table(3), Mode::Shared), Err(LockError::Held));
    take(&mut other, LockId::row(3, 5), Mode::Exclusive).expect("another row");
    locks.release(&mut other);
    let take = |held: &mut TxnLocks, id, mode| locks.acquire(held, id, mode);
    take(&mut one, row, Mode::Exclusive).expect("the only holder");
    assert_eq!(take(&mut other, row, Mode::Shared), Err(LockError::Held));
    locks.release(&mut one);
    assert_eq!(locks.sizes(), (0, 0));
}

#[test]
fn one_of_two_that_wait_for_each_other_gives_way() {
    let engine = engine::<{ LOCKS | LATCHES }>(64, 1);
    let (shared, barrier) = (engine.share(), Barrier::new(2));
    let granted = AtomicU64::new(0);
    thread::scope(|scope| {
        for (own, other) in [(1, 2), (2, 1)] {
            let (shared, barrier, granted) = (&shared, &barrier, &granted);
            scope.spawn(move || {
                let engine = shared.get();
                let (locks, mut held) = (&engine.locks, TxnLocks::new(own));
                let mut take = |id| locks.acquire(&mut held, LockId::row(0, id), Mode::Exclusive);
                take(own).expect("free");
                barrier.wait();
                if take(other).is_ok() {
                    granted.fetch_add(1, Ordering::Relaxed);
                }
                locks.release(&mut held);
            });
        }
    });
    assert_eq!(granted.into_inner(), 1, "the other one was rolled back");
    assert_eq!(engine.locks.sizes(), (0, 0));
}

#[test]
fn two_readers_that_both_want_to_write_are_a_deadlock() {
    let engine = engine::<{ LOCKS | LATCHES }>(64, 1);
    let (shared, barrier) = (engine.share(), Barrier::new(2));
    let granted = AtomicU64::new(0);
    thread::scope(|scope| {
        for owner in [1, 2] {
            let (shared, barrier, granted) = (&shared, &barrier, &granted);
            scope.spawn(move || {
                let engine = shared.get();
                let (locks, mut held) = (&engine.locks, TxnLocks::new(owner));
                let mut take = |mode| locks.acquire(&mut held, LockId::row(0, 9), mode);
                take(Mode::Shared).expect("shared");
                barrier.wait();
                granted.fetch_add(take(Mode::Exclusive).is_ok() as u64, Ordering::Relaxed);
                locks.release(&mut held);
            });
        }
    });
    assert_eq!(granted.into_inner(), 1);
}

#[test]
fn threads_lose_no_change_that_they_make_under_locks() {
    const ROWS: usize = 6;
    let engine = engine::<{ LOCKS | LATCHES }>(64, 1);
    let shared = engine.share();
    let rows: [AtomicU64; ROWS] = Default::default();
    let done: u64 = thread::scope(|scope| {
        let run = |thread: u64| {
            let (shared, rows) = (&shared, &rows);
            move || {
                let engine = shared.get();
                let locks = &engine.locks;
                let (mut numbers, mut done) = (Numbers(thread), 0);
                for txn in 0..400 {
                    let mut held = TxnLocks::new(thread << 32 | txn);
                    let mut take = |row: u64| {
                        locks.acquire(&mut held, LockId::table(0), Mode::IntentExclusive)?;
                        locks.acquire(&mut held, LockId::row(0, row), Mode::Exclusive)
                    };
                    let (from, to) = (numbers.below(ROWS as u64), numbers.below(ROWS as u64));
                    if take(from).and_then(|()| take(to)).is_ok() {
                        for row in [from, to] {
                            // Two steps, between which another thread would be seen.
                            let before = rows[row as usize].load(Ordering::Relaxed);
                            thread::yield_now();
                            rows[row as usize].store(before + 1, Ordering::Relaxed);
                        }
                        done += 2;
                    }
                    locks.release(&mut held);
                }
                done
            }
        };
        let threads: Vec<_> = (1..=4).map(|thread| scope.spawn(run(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it ends")).sum()
    });
    let sum: u64 = rows.iter().map(|row| row.load(Ordering::Relaxed)).sum();
    assert_eq!(sum, done);
    assert!(done > 1_000, "most transactions are not rolled back: {done}");
    assert_eq!(engine.locks.sizes(), (0, 0));
}
