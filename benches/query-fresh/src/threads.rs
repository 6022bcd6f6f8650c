//! Processor time by what its threads are for: a figure that other work on the machine touches little.

use std::fs;

use anyhow::{Context, Result};

use crate::standby::PREFIX;

/// Nanoseconds that threads have run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// The primary's engine threads, its log's and its shipping's.
    pub primary_ns: u64,
    /// All standbys' but their readers'.
    pub standbys_ns: u64,
    /// Both ends' threads of connections, whose names do not tell which.
    pub net_ns: u64,
}

impl Spent {
    /// Returns the time since `before`; of threads that have ended, nothing.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            primary_ns: self.primary_ns.saturating_sub(before.primary_ns),
            standbys_ns: self.standbys_ns.saturating_sub(before.standbys_ns),
            net_ns: self.net_ns.saturating_sub(before.net_ns),
        }
    }
}

/// Names of threads that are neither side's: the load, the readers on standbys, the sampler.
const OTHERS: [&str; 4] = ["main", "reprise-", "reads", "sampler"];

/// Returns the time that the threads of this process have run until now; nothing if the system does not report it.
pub fn spent() -> Spent {
    let mut sum = Spent::default();
    let Ok(threads) = fs::read_dir("/proc/self/task") else {
        return sum;
    };
    for thread in threads.flatten() {
        // A thread may end meanwhile.
        let (Ok(name), Ok(text)) = (
            fs::read_to_string(thread.path().join("comm")),
            fs::read_to_string(thread.path().join("schedstat")),
        ) else {
            continue;
        };
        let ns = first_number(&text);
        let to = match &*name {
            name if name.starts_with("net-") => &mut sum.net_ns,
            name if name.starts_with(&format!("{PREFIX}reader")) => continue,
            name if name.starts_with(PREFIX) => &mut sum.standbys_ns,
            name if OTHERS.iter().any(|other| name.starts_with(other)) => continue,
            _ => &mut sum.primary_ns,
        };
        *to += ns.unwrap_or(0);
    }
    sum
}

/// Returns the time that this thread has run until now.
pub fn ran_ns() -> Result<u64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").context("read this thread's processor time")?;
    first_number(&text).context("this system tells no processor time of a thread")
}

fn first_number(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}
