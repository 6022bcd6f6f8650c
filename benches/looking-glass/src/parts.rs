//! The parts of the paged engine, a bit each: a build is a set of them, known at compile time.

/// B-tree keys are compared column by column, by their types; without it, as integers or bytes.
pub const TREE_KEYS: u32 = 1;
/// Each transaction finds its tables and indexes by name in a directory; without it, one cache serves all.
pub const DIRECTORY: u32 = 1 << 1;
/// Pages of 8 KiB; without it, of 32 KiB.
pub const SMALL_PAGES: u32 = 1 << 2;
/// Each transaction opens a session, and each call checks it; without it, one session serves all.
pub const SESSIONS: u32 = 1 << 3;
/// Groups of commits are written to the log's file; without it, records stay in memory.
pub const DISK_LOG: u32 = 1 << 4;
/// Each change makes a log record, from which a transaction is rolled back.
pub const MAIN_LOG: u32 = 1 << 5;
/// Pages and transactions carry the LSN of their last change.
pub const LSNS: u32 = 1 << 6;
/// Strict two-phase locking of tables, pages, rows and keys.
pub const LOCKS: u32 = 1 << 7;
/// Latches on pages and on all that threads share.
pub const LATCHES: u32 = 1 << 8;
/// Pages lie in frames, found by a page table, pinned, replaced and written back; without it, each page has its place.
pub const POOL: u32 = 1 << 9;

/// The engine with everything.
pub const ALL: u32 = (1 << 10) - 1;

/// Whether a set has a part.
#[inline(always)]
pub const fn has(parts: u32, part: u32) -> bool {
    parts & part != 0
}

/// Whether the parts of a set work together: records need LSNs, and the file needs records.
pub const fn is_whole(parts: u32) -> bool {
    let records = !has(parts, MAIN_LOG) || has(parts, LSNS);
    let file = !has(parts, DISK_LOG) || has(parts, MAIN_LOG);
    records && file && parts <= ALL
}

/// Bytes of a page.
pub const fn page_bytes(parts: u32) -> usize {
    if has(parts, SMALL_PAGES) { 8 << 10 } else { 32 << 10 }
}
