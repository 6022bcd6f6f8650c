//! LSNs at which a primary and its standbys compare their tables. The primary names them, with the digests that it found there.
//!
//! A standby makes its digests when its replay reaches the LSN, so it has to know the LSN before. It replays nothing before the primary says that it
//! is committed. The primary therefore names an LSN before it says that the LSN is committed. While the mark is written, `limit` keeps the committed
//! LSN that standbys learn behind it.

use std::sync::{Arc, Mutex, MutexGuard};

use reprise_base::Lsn;
use reprise_env::{Connection, NetError};
use reprise_wire::{COMPARED_TABLES_MAX, ComparePoint, ComparedTable, Frame, TableDigests};

use crate::connection::send;

/// The newest LSN that was named.
#[derive(Default)]
struct ComparisonsState {
    named: Option<ComparePoint>,
    /// Number of the comparison; 0: there is none.
    number: u64,
    /// All tables, on all partitions, as the primary found them there.
    found: Option<Arc<Vec<ComparedTable>>>,
    /// The end of the log while a mark is being written behind it.
    floor: Option<Lsn>,
}

/// LSNs that a primary names.
#[derive(Default)]
pub struct Comparisons(Mutex<ComparisonsState>);

/// The comparisons that a connection has sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SentComparisons {
    named: u64,
    found: u64,
}

enum UnsentNews {
    Named(ComparePoint),
    Found(u64, Arc<Vec<ComparedTable>>),
}

impl Comparisons {
    fn lock(&self) -> MutexGuard<'_, ComparisonsState> {
        self.0.lock().expect("held for a read or a store")
    }

    /// Announces that a mark is about to be written behind `filled`. No other mark is written meanwhile.
    pub fn begin_naming(&self, filled: Lsn) {
        self.lock().floor = Some(filled);
    }

    /// Records that the mark is written: tables are compared before `lsn`. Returns the number of the comparison.
    pub fn name(&self, lsn: Lsn) -> u64 {
        let mut state = self.lock();
        state.number += 1;
        state.floor = None;
        state.found = None;
        let number = state.number;
        state.named = Some(ComparePoint { number, lsn });
        number
    }

    /// Records that the mark was not written.
    pub fn cancel_naming(&self) {
        self.lock().floor = None;
    }

    /// Takes the tables' digests at the LSN with that number.
    pub fn add_digests(&self, number: u64, found: Vec<ComparedTable>) {
        let mut state = self.lock();
        if state.number == number {
            state.found = Some(Arc::new(found));
        }
    }

    /// Returns the committed LSN that the primary may tell its standbys.
    pub(crate) fn limit(&self, committed: Lsn) -> Lsn {
        self.lock().floor.map_or(committed, |floor| committed.min(floor))
    }

    pub(crate) fn newest(&self) -> u64 {
        self.lock().number
    }

    fn unsent(&self, telling: &SentComparisons) -> Option<UnsentNews> {
        let state = self.lock();
        match (state.named, &state.found) {
            (Some(named), _) if telling.named != named.number => Some(UnsentNews::Named(named)),
            (Some(named), Some(found)) if telling.found != named.number => {
                Some(UnsentNews::Found(named.number, found.clone()))
            }
            _ => None,
        }
    }

    /// Sends a standby the news of comparisons. True if there was any.
    pub(crate) fn send_news(
        &self,
        connection: &mut Connection,
        telling: &mut SentComparisons,
    ) -> Result<bool, NetError> {
        let Some(untold) = self.unsent(telling) else {
            return Ok(false);
        };
        match untold {
            UnsentNews::Named(named) => {
                send(connection, &Frame::Named(named))?;
                telling.named = named.number;
            }
            UnsentNews::Found(of, found) => {
                send_found(connection, of, &found)?;
                telling.found = of;
            }
        }
        Ok(true)
    }
}

fn send_found(connection: &mut Connection, number: u64, tables: &[ComparedTable]) -> Result<(), NetError> {
    let last = tables.len().div_ceil(COMPARED_TABLES_MAX).max(1) - 1;
    for at in 0..=last {
        let part = tables.chunks(COMPARED_TABLES_MAX).nth(at).unwrap_or_default();
        let packed = TableDigests::pack(part);
        let digests = TableDigests::new(number, at == last, &packed);
        send(connection, &Frame::Digests(digests))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_behind_a_mark_is_told_to_be_committed_before_it_is_named() {
        let comparisons = Comparisons::default();
        assert_eq!(comparisons.limit(Lsn(9)), Lsn(9));
        comparisons.begin_naming(Lsn(5));
        assert_eq!((comparisons.limit(Lsn(9)), comparisons.limit(Lsn(4))), (Lsn(5), Lsn(4)));
        comparisons.cancel_naming();
        assert_eq!(comparisons.limit(Lsn(9)), Lsn(9));
        comparisons.begin_naming(Lsn(5));
        let number = comparisons.name(Lsn(6));
        assert_eq!(comparisons.limit(Lsn(9)), Lsn(9));
        let mut telling = SentComparisons::default();
        let Some(UnsentNews::Named(named)) = comparisons.unsent(&telling) else {
            panic!("it is named first");
        };
        assert_eq!((named.number, named.lsn), (number, Lsn(6)));
        telling.named = named.number;
        assert!(comparisons.unsent(&telling).is_none());
        comparisons.add_digests(number + 1, Vec::new()); // of no LSN
        assert!(comparisons.unsent(&telling).is_none());
        comparisons.add_digests(number, Vec::new());
        assert!(matches!(comparisons.unsent(&telling), Some(UnsentNews::Found(of, _)) if of == number));
        telling.found = number;
        assert!(comparisons.unsent(&telling).is_none());
    }
}
