//! A reserve: memory that exists before it is needed. The test is alone in its process, because each process has one reserve.

use std::time::{Duration, Instant};

use reprise_pages::{HUGE_BYTES, PAGE_BYTES, Pages, keep_ready, ready_bytes};

/// Faults of this thread that the kernel had to give a page for.
fn faults() -> i64 {
    // SAFETY: a struct of integers, for which zeros are a value; the kernel fills it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is ours and of the kind that the call fills.
    let asked = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    assert_eq!(asked, 0);
    usage.ru_minflt
}

fn fill_one() -> Pages<u8> {
    let mut pages = Pages::<u8>::ready(HUGE_BYTES).filled_with_zeros();
    (0..HUGE_BYTES).step_by(PAGE_BYTES).for_each(|at| pages[at] = 1);
    pages
}

#[test]
fn arrays_take_from_the_reserve_which_comes_back_behind_them() {
    const PIECES: usize = 24;
    assert_eq!(ready_bytes(), 0);
    keep_ready(PIECES * HUGE_BYTES - 1, 2).expect("48 MiB are there");
    assert_eq!(ready_bytes(), PIECES * HUGE_BYTES);

    // An array may come while the thread has the list, and is made as without a reserve: hence not all are asked of it.
    let before = faults();
    let taken: Vec<_> = (0..PIECES / 2).map(|_| fill_one()).collect();
    let faults = faults() - before;
    let in_vain = (PIECES / 4 * HUGE_BYTES / PAGE_BYTES) as i64;
    assert!(faults < in_vain, "{faults} faults for {PIECES} pieces that were ready");
    drop(taken);

    let until = Instant::now() + Duration::from_secs(60);
    while ready_bytes() < PIECES * HUGE_BYTES {
        assert!(Instant::now() < until, "{} bytes after a minute", ready_bytes());
        std::thread::sleep(Duration::from_millis(10));
    }

    // To ask for as much again makes nothing.
    keep_ready(HUGE_BYTES, 2).expect("they are there");
    assert_eq!(ready_bytes(), PIECES * HUGE_BYTES);
}
