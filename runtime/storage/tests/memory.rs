//! The memory that a vote costs, by the kernel's own count of the pages that this process holds.

#[path = "it/common/mod.rs"]
mod common;

use common::*;
use reprise_abi::{Field, IndexKind, ScalarType};
use reprise_storage::Store;

/// Bytes of memory behind this process but for its files, counted page by page: `statm` may be wrong by some pages a core.
fn resident_bytes() -> usize {
    let Ok(rollup) = std::fs::read_to_string("/proc/self/smaps_rollup") else {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has statm");
        let pages = statm.split(' ').nth(1).expect("a second number");
        return pages.parse::<usize>().expect("a number") * 4096;
    };
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number.expect("what is resident").parse::<usize>().expect("a number") << 10
}

const VOTES: u64 = 1_000_000;
/// Memory that `reprise_pages` makes ready ahead, at most: the process holds it, no table does.
const READY_BYTES_MAX: u64 = 6 * reprise_pages::HUGE_BYTES as u64;

/// Bytes per row of a million votes, counted and as the store estimates them.
fn measure(kind: IndexKind, number: impl Fn(u64) -> u64) -> (f64, f64, f64) {
    let before = resident_bytes();
    let mut store = Store::new();
    let columns = [
        ("phone", ScalarType::I64, false),
        ("sequence", ScalarType::I32, false),
        ("contestant", ScalarType::I32, false),
        ("state", ScalarType::Text, false),
    ];
    let mut schema = table("votes", &columns, &[0, 1], &[]);
    schema.primary_kind = kind;
    let votes = store.create_table(schema).expect("table is valid");
    for vote in 0..VOTES {
        let fields = [
            Field::Int(2_000_000_000 + number(vote) as i64),
            Field::Int(1),
            Field::Int((vote % 6) as i64),
            Field::Text("MA"),
        ];
        let row = store.layout(votes).build(&fields);
        store.begin();
        store.insert(votes, &row).expect("fresh key");
        store.commit();
    }
    let counted = resident_bytes().saturating_sub(before);
    let stats = store.stats(votes);
    let estimate = stats.row_bytes + stats.index_bytes;
    let per_row = |bytes: f64| bytes / VOTES as f64;
    (
        per_row(counted as f64),
        per_row(estimate as f64),
        per_row(store.memory_bytes() as f64),
    )
}

#[test]
fn a_vote_costs_at_most_84_bytes() {
    let ready = READY_BYTES_MAX as f64 / VOTES as f64;
    // An odd multiplier modulo 2^34 gives each vote a phone number of its own, in random order.
    let random = |vote: u64| vote.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 30;
    for (name, kind, is_random) in [
        ("ordered, random", IndexKind::Ordered, true),
        ("ordered, growing", IndexKind::Ordered, false),
        ("hash, random", IndexKind::Hash, true),
    ] {
        let (counted, estimate, held) = measure(kind, |vote| if is_random { random(vote) } else { vote });
        println!("{name}: {counted:.1} bytes a vote, estimate {estimate:.1}, held {held:.1}");
        assert!(
            held <= 84.0 && counted <= 84.0 + ready,
            "{name}: {counted:.1} bytes a vote"
        );
        assert!(
            (-8.0..8.0 + ready).contains(&(counted - held)),
            "{name}: {held:.1} bytes said to be held, {counted:.1} found"
        );
        assert!(
            (held - estimate).abs() < 16.0,
            "{name}: estimate {estimate:.1}, {held:.1} held"
        );
    }
}
