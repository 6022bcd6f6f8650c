//! The newest lines that procedures logged.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
};

use reprise_base::TxnId;

/// Lines and bytes kept at most.
const LINES_MAX: usize = 4096;
const LINES_BYTES_MAX: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecentLine {
    /// Counts all lines since the start, from 0.
    pub number: u64,
    pub txn_id: TxnId,
    pub module: String,
    pub procedure: String,
    /// 0 debug, 1 info, 2 warn, 3 error.
    pub level: u8,
    pub text: String,
}

impl RecentLine {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.module.len() + self.procedure.len() + self.text.len()
    }
}

#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<RecentLine>,
    bytes: usize,
    next_number: u64,
}

/// A bounded ring; the oldest lines make room.
#[derive(Debug, Default)]
pub struct RecentLines(Mutex<Ring>);

impl RecentLines {
    pub fn new() -> Self {
        Self::default()
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.0.lock().expect("nothing panics in here")
    }

    pub fn push(&self, txn_id: TxnId, module: &str, procedure: &str, level: u8, text: String) {
        let mut ring = self.ring();
        let line = RecentLine {
            number: ring.next_number,
            txn_id,
            module: module.to_owned(),
            procedure: procedure.to_owned(),
            level,
            text,
        };
        ring.next_number += 1;
        ring.bytes += line.bytes();
        ring.lines.push_back(line);
        while ring.lines.len() > LINES_MAX || ring.bytes > LINES_BYTES_MAX {
            let Some(oldest) = ring.lines.pop_front() else {
                break;
            };
            ring.bytes -= oldest.bytes();
        }
    }

    /// At most `limit` lines, the newest first.
    pub fn newest(&self, limit: usize) -> Vec<RecentLine> {
        self.ring()
            .lines
            .iter()
            .rev()
            .take(limit)
            .cloned()
            .collect()
    }

    /// At most `limit` lines with that number or a later one, the oldest first: for readers that poll.
    pub fn since(&self, number: u64, limit: usize) -> Vec<RecentLine> {
        let ring = self.ring();
        let lines = ring.lines.iter().filter(|line| line.number >= number);
        lines.take(limit).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_bounded_in_lines_and_bytes() {
        let lines = RecentLines::new();
        for number in 0..10_000u64 {
            lines.push(TxnId(number), "m", "p", 1, "x".repeat(10));
        }
        let newest = lines.newest(3);
        assert_eq!(
            newest.iter().map(|l| l.number).collect::<Vec<_>>(),
            [9999, 9998, 9997]
        );
        assert!(lines.newest(usize::MAX).len() <= LINES_MAX);
        assert_eq!(lines.since(9998, 10).len(), 2);
        lines.push(TxnId(0), "m", "p", 1, "x".repeat(LINES_BYTES_MAX - 1000));
        assert!(lines.ring().bytes <= LINES_BYTES_MAX);
        lines.push(TxnId(0), "m", "p", 1, "x".repeat(2 * LINES_BYTES_MAX));
        assert_eq!(lines.newest(10).len(), 0);
    }
}
