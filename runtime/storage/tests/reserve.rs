//! A store that grows into memory that was made ready before: the kernel has none to give it. Alone in its process, for there is one
//! reserve in each.

#[path = "it/common/mod.rs"]
mod common;

use common::*;
use reprise_abi::{Field, ScalarType};
use reprise_pages::{HUGE_BYTES, PAGE_BYTES, keep_ready};
use reprise_storage::Store;

/// Returns the number of pages that the kernel gave this process's threads, by its own count.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux has it");
    let behind_name = &stat[stat.rfind(')').expect("a name in brackets") + 2..];
    let minor = behind_name.split(' ').nth(7).expect("an eighth number");
    minor.parse().expect("a number")
}

#[test]
fn rows_and_indexes_grow_into_the_reserve() {
    const ROWS: i64 = 400_000;
    // The reserve is larger than the rows and the index, so it does not matter when taken memory comes back.
    keep_ready(96 * HUGE_BYTES, 2).expect("192 MiB are there");
    let mut store = Store::new();
    let columns = [("key", ScalarType::I64, false), ("text", ScalarType::Text, false)];
    let table = store.create_table(table("rows", &columns, &[0], &[])).expect("a table");
    let text = "x".repeat(150);
    let before = faults();
    for key in 0..ROWS {
        let row = store.layout(table).build(&[Field::Int(key), Field::Text(&text)]);
        store.begin();
        store.insert(table, &row).expect("a fresh key");
        store.commit();
    }
    let (faults, grown) = (faults() - before, store.memory_bytes() as u64);
    assert!(grown > 64 << 20, "{grown} bytes");
    // The first pieces of each array are of ordinary pages.
    assert!(
        faults < grown / PAGE_BYTES as u64 / 3,
        "{faults} faults for {grown} bytes"
    );
}
