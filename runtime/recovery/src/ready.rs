//! Code of several modules, made on all cores: before anything waits for it, none of them has to give way to another.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use reprise_env::Threads;
use reprise_txn::Code;

/// Makes each code ready. Err: the number of the first that can't be made ready, and why.
pub fn make_ready(codes: &[&dyn Code], threads: &dyn Threads) -> Result<(), (usize, String)> {
    let left: Vec<_> = codes.iter().enumerate().filter(|(_, code)| !code.is_ready()).collect();
    let workers = threads.cores().min(left.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut failed = None;
        while let Some((number, code)) = left.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(reason) = code.prepare() {
                failed = failed.or(Some((*number, reason)));
            }
        }
        failed
    };
    let failed = thread::scope(|scope| {
        let others: Vec<_> = (1..workers).map(|_| scope.spawn(work)).collect();
        let own = work();
        let others = others.into_iter().filter_map(|other| match other.join() {
            Ok(failed) => failed,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        others.chain(own).min_by_key(|(number, _)| *number)
    });
    match failed {
        Some(failed) => Err(failed),
        None => Ok(()),
    }
}
