//! The process's memory by kind, and its limit.

use std::sync::{Arc, Mutex};

use crate::{
    budget::{Budget, Grant},
    limits::{
        GUESTS_BYTES_PART, IDEMPOTENCY_BYTES_DEFAULT, IDEMPOTENCY_BYTES_PART, MEMORY_KEPT_BACK_BYTES_MIN,
        MEMORY_KEPT_BACK_PART, ON_THEIR_WAY_BYTES_MIN, ON_THEIR_WAY_BYTES_PART, REQUESTS_BYTES_MAX, RESULTS_BYTES_MAX,
        TEXTS_BYTES_MAX,
    },
    named_enum,
};

named_enum! {
    /// The purpose of memory. The names are those of metrics and of the status.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[repr(u8)]
    pub enum MemoryKind {
        /// Rows of tables, with what finds them by number.
        Rows => "rows",
        /// Indexes of tables.
        Indexes => "indexes",
        /// Memory that rolls back transactions that are not durable.
        Undo => "undo",
        /// Rows copied for a checkpoint and not yet written.
        Snapshots => "snapshots",
        /// Rows as open views of a standby still see them.
        Views => "views",
        /// Remembered outcomes of calls with idempotency keys.
        Idempotency => "idempotency",
        /// Requests that are read, and calls that wait, with their arguments.
        Requests => "requests",
        /// Answers made and not yet taken by their clients.
        Answers => "answers",
        /// Buffers of open connections, whether or not they ask for something.
        Connections => "connections",
        /// Instances of modules, with their images.
        Guests => "guests",
        /// Modules: their bytes, their compiled code, and the descriptions of modules and tables.
        Modules => "modules",
        /// Pages made ready for rows and indexes.
        Ready => "ready",
    }
}

impl MemoryKind {
    /// True for a kind that grows with the data, and stops before the reserved part.
    const fn is_data(self) -> bool {
        matches!(self, Self::Rows | Self::Indexes)
    }
}

/// The budgets of all kinds, parts of one whole. Before `enforce`, no budget refuses bytes because of the whole: recovery must load
/// every acknowledged transaction, and checks `is_over` itself.
#[derive(Debug)]
pub struct MemoryLedger {
    whole: Arc<Budget>,
    /// Bytes of kinds that their owner counts itself, see `publish`.
    published: Mutex<Vec<(MemoryKind, Grant)>>,
    kinds: [Arc<Budget>; MemoryKind::ALL.len()],
    /// Parts of the answers.
    results: Arc<Budget>,
    texts: Arc<Budget>,
    /// Part of the guests.
    kept_guests: Arc<Budget>,
    max_bytes: u64,
}

/// Bytes of `max_bytes` that requests, results or texts may take, `most` at most.
const fn on_their_way(max_bytes: u64, most: u64) -> u64 {
    let part = max_bytes / ON_THEIR_WAY_BYTES_PART;
    let part = if part < most { part } else { most };
    if part > ON_THEIR_WAY_BYTES_MIN {
        part
    } else {
        ON_THEIR_WAY_BYTES_MIN
    }
}

/// Bytes of `max_bytes` that are reserved for deletes, undo and recovery: a tenth, at least the minimum, at most half.
pub const fn memory_kept_back(max_bytes: u64) -> u64 {
    let tenth = max_bytes / MEMORY_KEPT_BACK_PART;
    let kept = if tenth > MEMORY_KEPT_BACK_BYTES_MIN {
        tenth
    } else {
        MEMORY_KEPT_BACK_BYTES_MIN
    };
    if max_bytes == u64::MAX {
        0
    } else if kept > max_bytes / 2 {
        max_bytes / 2
    } else {
        kept
    }
}

impl MemoryLedger {
    /// A ledger whose limit of `max_bytes` holds once it is enforced.
    pub fn new(max_bytes: u64) -> Arc<Self> {
        let whole = Budget::new(u64::MAX);
        let kept_back = memory_kept_back(max_bytes);
        let part = |kind: MemoryKind| {
            let kept_back = if kind.is_data() { kept_back } else { 0 };
            let limit = match kind {
                MemoryKind::Requests => on_their_way(max_bytes, REQUESTS_BYTES_MAX),
                MemoryKind::Idempotency if max_bytes == u64::MAX => IDEMPOTENCY_BYTES_DEFAULT,
                MemoryKind::Idempotency => max_bytes / IDEMPOTENCY_BYTES_PART,
                _ => u64::MAX,
            };
            Budget::part_of(&whole, limit, kept_back)
        };
        let kinds = MemoryKind::ALL.map(part);
        let answers = |most| Budget::part_of(&kinds[MemoryKind::Answers as usize], on_their_way(max_bytes, most), 0);
        Arc::new(Self {
            results: answers(RESULTS_BYTES_MAX),
            texts: answers(TEXTS_BYTES_MAX),
            kept_guests: Budget::part_of(&kinds[MemoryKind::Guests as usize], max_bytes / GUESTS_BYTES_PART, 0),
            kinds,
            published: Mutex::default(),
            whole,
            max_bytes,
        })
    }

    /// Counts, and refuses nothing.
    pub fn unlimited() -> Arc<Self> {
        Self::new(u64::MAX)
    }

    /// The limit, in bytes.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Enforces the limit from now on.
    pub fn enforce(&self) {
        self.whole.set_limit(self.max_bytes);
    }

    /// The budget of one purpose.
    pub fn kind(&self, kind: MemoryKind) -> &Arc<Budget> {
        &self.kinds[kind as usize]
    }

    /// The part of the answers for results as procedures returned them. The engine thread that runs a call takes from it.
    pub fn results(&self) -> &Arc<Budget> {
        &self.results
    }

    /// The part of the answers for texts made of results. It is separate: a thread that waits for room for a text already holds its
    /// result, and must never wait for results.
    pub fn texts(&self) -> &Arc<Budget> {
        &self.texts
    }

    /// The part of the guests for instances that stay between calls, on all engine threads together. An instance beyond it serves one
    /// call.
    pub fn kept_guests(&self) -> &Arc<Budget> {
        &self.kept_guests
    }

    /// Sets the bytes of a kind that its owner counts as a whole, whatever the limits are. Replaces the bytes that were set before.
    pub fn publish(&self, kind: MemoryKind, bytes: u64) {
        let mut published = self.published.lock().expect("held for a store");
        match published.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, grant)) => grant.resize(bytes),
            None => published.push((kind, self.kind(kind).take(bytes))),
        }
    }

    /// All kinds together.
    pub fn used(&self) -> u64 {
        self.whole.used()
    }

    /// The most that was held at once, in bytes.
    pub fn peak(&self) -> u64 {
        self.whole.peak()
    }

    /// Returns the bytes of rows and indexes, which a restart needs at least.
    pub fn data_bytes(&self) -> u64 {
        let data = MemoryKind::ALL.into_iter().filter(|kind| kind.is_data());
        data.map(|kind| self.kind(kind).used()).sum()
    }

    /// True if more is held than the limit, the reserved part included.
    pub fn is_over(&self) -> bool {
        self.used() > self.max_bytes
    }

    /// True if descriptions of modules may grow by `bytes`. A deployment that helps against full memory has half of the reserved part.
    pub fn has_room_to_describe(&self, bytes: u64) -> bool {
        let kept = memory_kept_back(self.max_bytes) / 2;
        self.used().saturating_add(bytes).saturating_add(kept) <= self.max_bytes
    }

    /// True if rows or indexes may grow by `bytes`.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.kind(MemoryKind::Rows).has_room(bytes)
    }
}

/// Parses the number of bytes in a setting: a whole number, or one with KiB, MiB, GiB or TiB behind it.
///
/// # Errors
/// Parses a size with its unit.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let with_unit = units
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (number, shift) = with_unit.unwrap_or((text, 0));
    let number: Option<u64> = number.trim_end().parse().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| {
        format!("{text:?} is no size: write bytes, or a whole number with KiB, MiB, GiB or TiB behind it")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_have_a_unit() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("2GiB"), Ok(2 << 30));
        assert_eq!(parse_size("512 MiB"), Ok(512 << 20));
        for text in ["", "GiB", "1.5GiB", "-1", "2GB", "99999999TiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn data_stops_before_what_is_kept_back_and_the_rest_goes_on() {
        let ledger = MemoryLedger::new(1_000 << 20);
        let rows = ledger.kind(MemoryKind::Rows);
        let loaded = rows.try_take(2_000 << 20).expect("while it is loaded");
        assert!(ledger.is_over());
        drop(loaded);
        ledger.enforce();
        let most = rows.try_take(900 << 20).expect("nine tenths are there");
        assert!(rows.try_take(1).is_none() && !ledger.has_room(1));
        let index = ledger.kind(MemoryKind::Indexes);
        assert!(index.try_take(1).is_none());
        let answer = ledger.kind(MemoryKind::Answers).try_take(100 << 20);
        assert!(answer.is_some() && !ledger.is_over());
        assert_eq!(ledger.data_bytes(), 900 << 20);
        drop((most, answer));
        ledger.publish(MemoryKind::Modules, 7);
        ledger.publish(MemoryKind::Modules, 5);
        assert_eq!((ledger.kind(MemoryKind::Modules).used(), ledger.used()), (5, 5));
        ledger.publish(MemoryKind::Modules, 0);
        assert_eq!((ledger.used(), ledger.peak()), (0, 2_000 << 20));
    }

    #[test]
    fn results_and_texts_are_the_answers() {
        let ledger = MemoryLedger::new(320 << 20);
        ledger.enforce();
        let result = ledger.results().try_take(20 << 20).expect("there is room");
        let text = ledger.texts().take(32 << 20);
        assert_eq!(
            (ledger.kind(MemoryKind::Answers).used(), ledger.used()),
            (52 << 20, 52 << 20)
        );
        assert!(
            ledger.results().try_take(13 << 20).is_none(),
            "more than results may take"
        );
        assert_eq!((ledger.results().room(), ledger.texts().room()), (12 << 20, 0));
        let most = ledger.kind(MemoryKind::Undo).take(260 << 20);
        assert_eq!(ledger.results().room(), 8 << 20, "no more than the whole has");
        assert!(ledger.results().try_take(9 << 20).is_none());
        assert_eq!(ledger.used(), 312 << 20, "what was refused is held nowhere");
        drop((result, text, most));
        assert_eq!((ledger.kind(MemoryKind::Answers).used(), ledger.used()), (0, 0));
    }

    #[test]
    fn kept_guests_are_a_part_of_all_guests() {
        let ledger = MemoryLedger::new(200 << 20);
        ledger.enforce();
        let kept = ledger.kept_guests().try_take(10 << 20).expect("a twentieth");
        assert!(ledger.kept_guests().try_take(1).is_none());
        let in_use = ledger.kind(MemoryKind::Guests).try_take(190 << 20).expect("the rest");
        assert!(ledger.kind(MemoryKind::Guests).try_take(1).is_none());
        drop((kept, in_use));
        assert_eq!(ledger.used(), 0);
    }

    #[test]
    fn requests_in_flight_have_a_part_of_the_limit() {
        let limits = |max_bytes| {
            let ledger = MemoryLedger::new(max_bytes);
            [ledger.kind(MemoryKind::Requests), ledger.results(), ledger.texts()].map(|budget| budget.limit() >> 20)
        };
        assert_eq!(limits(u64::MAX), [256, 256, 288]);
        assert_eq!(limits(1 << 30), [64, 64, 64]);
        assert_eq!(limits(100 << 20), [32, 32, 32]);
    }

    #[test]
    fn a_small_limit_keeps_half_back() {
        assert_eq!(memory_kept_back(1 << 30), (1 << 30) / 10);
        assert_eq!(memory_kept_back(200 << 20), 64 << 20);
        assert_eq!(memory_kept_back(100 << 20), 50 << 20);
        assert_eq!(memory_kept_back(u64::MAX), 0);
    }

    #[test]
    fn kinds_are_listed_where_they_stand() {
        for (at, kind) in MemoryKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at, "{}", kind.name());
        }
    }
}
