//! Processor time of the engine's threads: a figure that other work on the machine touches little, where a rate halves.

use std::fs;

/// The engine's threads are named so, and a number.
const NAME: &str = "site-";

/// Whether a thread of this name is one of the engine's.
pub fn is_engine_thread(name: &str) -> bool {
    name.starts_with(NAME)
}

/// Nanoseconds that the engine threads of this process have run until now. None: the system does not report it.
pub fn ran_ns() -> Option<u64> {
    let threads = fs::read_dir("/proc/self/task").ok()?;
    let mut sum = None;
    for thread in threads.flatten() {
        // A thread may end meanwhile.
        let Ok(name) = fs::read_to_string(thread.path().join("comm")) else {
            continue;
        };
        if is_engine_thread(&name)
            && let Ok(text) = fs::read_to_string(thread.path().join("schedstat"))
            && let Some(ns) = first_number(&text)
        {
            *sum.get_or_insert(0) += ns;
        }
    }
    sum
}

fn first_number(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_the_first_of_three_numbers() {
        assert_eq!(first_number("123456789 42 7\n"), Some(123_456_789));
        assert_eq!((first_number(""), first_number("x 1")), (None, None));
    }

    #[test]
    fn threads_are_found_by_their_name() {
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let site = std::thread::Builder::new().name("site-7".into());
        let site = site.spawn(move || {
            let sum: u64 = (0..100_000u64).map(std::hint::black_box).sum();
            ready.send(sum).expect("the test waits");
            gone.recv().ok();
        });
        is_ready.recv().expect("the thread runs");
        // A kernel without these figures tells nothing of any thread.
        let has_figures = fs::read_to_string("/proc/self/schedstat").is_ok();
        assert_eq!(ran_ns().is_some(), has_figures);
        drop(go);
        site.expect("a thread").join().expect("ends");
    }
}
