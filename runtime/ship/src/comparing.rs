//! LSNs at which a primary and its standbys compare their tables: named to them, with what the primary found there.
//!
//! A standby makes its digests when its replay comes to the LSN, so it has to know before. It replays nothing before the primary says
//! that it is committed; so an LSN is named before that is said of it. While the mark is written, `limit` keeps what is told behind it.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
};

use reprise_base::{Lsn, PartitionId, limits::TABLES_MAX};
use reprise_env::{Connection, NetError};
use reprise_wire::{COMPARED_TABLES_MAX, ComparedTable, Frame, Named, RangesFound, Sought, TableDigests};

use crate::connection::send;

/// Searches that a standby may ask for on one connection.
const SEARCHES_MAX: u32 = 64;

/// What a primary found at a named LSN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// All tables, on all partitions.
    Tables(Vec<ComparedTable>),
    /// What was sought: a digest of each range, and rows with their numbers.
    Ranges {
        digests: Vec<u64>,
        rows: Vec<(u64, Vec<u8>)>,
    },
}

/// What a standby wants the primary to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    connection: u64,
    pub sought: Sought,
}

/// The newest LSN that was named.
#[derive(Default)]
struct State {
    named: Option<Named>,
    /// Of it; 0: none was named.
    number: u64,
    /// Only this connection hears of it.
    is_for: Option<u64>,
    /// It has not heard of all yet.
    is_owed: bool,
    found: Option<Arc<Found>>,
    /// A mark is being written, and everything before this lies before it.
    floor: Option<Lsn>,
    searches: VecDeque<Search>,
}

/// LSNs that a primary names, and what its standbys ask for.
#[derive(Default)]
pub struct Comparisons(Mutex<State>);

/// What a connection was told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TellingOf {
    named: u64,
    found: u64,
    searches: u32,
}

enum Untold {
    Named(Named),
    Found(u64, Arc<Found>),
}

impl Comparisons {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("held for a look or a store")
    }

    /// A mark is about to be written behind `filled`; nothing else is meanwhile.
    pub fn begin_naming(&self, filled: Lsn) {
        self.lock().floor = Some(filled);
    }

    /// The mark is written: what lies before `lsn` is compared, or what a standby sought there. Its number.
    pub fn name(&self, lsn: Lsn, search: Option<Search>) -> u64 {
        let mut state = self.lock();
        state.number += 1;
        state.floor = None;
        state.found = None;
        state.is_for = search.map(|search| search.connection);
        state.is_owed = search.is_some();
        state.named = Some(Named {
            number: state.number,
            lsn,
            sought: search.map(|search| search.sought),
        });
        state.number
    }

    /// It was not written.
    pub fn cancel_naming(&self) {
        self.lock().floor = None;
    }

    /// What was found at the LSN of that number.
    pub fn tell(&self, number: u64, found: Found) {
        let mut state = self.lock();
        if state.number == number {
            state.found = Some(Arc::new(found));
        }
    }

    /// A standby that searches waits for what was found at the newest LSN: another one takes its place.
    pub fn is_owed(&self) -> bool {
        self.lock().is_owed
    }

    /// The next thing that a standby wants to be looked for.
    pub fn next_search(&self) -> Option<Search> {
        self.lock().searches.pop_front()
    }

    /// What standbys may be told to be committed, of what is.
    pub(crate) fn limit(&self, committed: Lsn) -> Lsn {
        self.lock().floor.map_or(committed, |floor| committed.min(floor))
    }

    /// False where that is nothing that could be looked at, or was asked for too often. What the connection asked for before is given up.
    pub(crate) fn ask(&self, connection: u64, sought: Sought, partitions: u16, telling: &mut TellingOf) -> bool {
        telling.searches += 1;
        let is_there = sought.partition < PartitionId(partitions) && usize::from(sought.table) < TABLES_MAX;
        if !is_there || telling.searches > SEARCHES_MAX {
            return false;
        }
        let mut state = self.lock();
        state.searches.retain(|search| search.connection != connection);
        state.searches.push_back(Search { connection, sought });
        true
    }

    /// The connection is over, or has heard of all.
    fn owe_no_more(&self, connection: u64) {
        let mut state = self.lock();
        state.is_owed &= state.is_for != Some(connection);
    }

    /// The connection is over.
    pub(crate) fn forget(&self, connection: u64) {
        self.owe_no_more(connection);
        self.lock().searches.retain(|search| search.connection != connection);
    }

    pub(crate) fn newest(&self) -> u64 {
        self.lock().number
    }

    fn untold(&self, connection: u64, telling: &TellingOf) -> Option<Untold> {
        let state = self.lock();
        if state.is_for.is_some_and(|other| other != connection) {
            return None;
        }
        match (state.named, &state.found) {
            (Some(named), _) if telling.named != named.number => Some(Untold::Named(named)),
            (Some(named), Some(found)) if telling.found != named.number => {
                Some(Untold::Found(named.number, found.clone()))
            }
            _ => None,
        }
    }

    /// Tells a standby what it does not know yet. True where there was anything.
    pub(crate) fn tell_standby(
        &self,
        number: u64,
        connection: &mut Connection,
        telling: &mut TellingOf,
    ) -> Result<bool, NetError> {
        let Some(untold) = self.untold(number, telling) else {
            return Ok(false);
        };
        match untold {
            Untold::Named(named) => {
                send(connection, &Frame::Named(named))?;
                telling.named = named.number;
            }
            Untold::Found(of, found) => {
                send_found(connection, of, &found)?;
                telling.found = of;
                self.owe_no_more(number);
            }
        }
        Ok(true)
    }
}

fn send_found(connection: &mut Connection, number: u64, found: &Found) -> Result<(), NetError> {
    match found {
        Found::Tables(tables) => {
            let last = tables.len().div_ceil(COMPARED_TABLES_MAX).max(1) - 1;
            for at in 0..=last {
                let part = tables.chunks(COMPARED_TABLES_MAX).nth(at).unwrap_or_default();
                let packed = TableDigests::pack(part);
                let digests = TableDigests::new(number, at == last, &packed);
                send(connection, &Frame::Digests(digests))?;
            }
            Ok(())
        }
        Found::Ranges { digests, rows } => {
            let digests = RangesFound::pack_digests(digests);
            let rows = RangesFound::pack_rows(rows.iter().map(|(number, row)| (*number, &**row)));
            send(
                connection,
                &Frame::RangesFound(RangesFound::new(number, &digests, &rows)),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sought(partition: u16, table: u16) -> Sought {
        Sought {
            partition: PartitionId(partition),
            table,
            first: 0,
            shift: 10,
            count: 1024,
        }
    }

    #[test]
    fn nothing_behind_a_mark_is_told_to_be_committed_before_it_is_named() {
        let comparisons = Comparisons::default();
        assert_eq!(comparisons.limit(Lsn(9)), Lsn(9));
        comparisons.begin_naming(Lsn(5));
        assert_eq!((comparisons.limit(Lsn(9)), comparisons.limit(Lsn(4))), (Lsn(5), Lsn(4)));
        comparisons.cancel_naming();
        assert_eq!(comparisons.limit(Lsn(9)), Lsn(9));
        comparisons.begin_naming(Lsn(5));
        let number = comparisons.name(Lsn(6), None);
        assert_eq!(comparisons.limit(Lsn(9)), Lsn(9));
        let mut telling = TellingOf::default();
        let Some(Untold::Named(named)) = comparisons.untold(1, &telling) else {
            panic!("it is named first");
        };
        assert_eq!((named.number, named.lsn, named.sought), (number, Lsn(6), None));
        telling.named = named.number;
        assert!(comparisons.untold(1, &telling).is_none());
        comparisons.tell(number + 1, Found::Tables(Vec::new())); // of no LSN
        assert!(comparisons.untold(1, &telling).is_none());
        comparisons.tell(number, Found::Tables(Vec::new()));
        assert!(matches!(comparisons.untold(1, &telling), Some(Untold::Found(of, _)) if of == number));
        telling.found = number;
        assert!(comparisons.untold(1, &telling).is_none());
    }

    #[test]
    fn a_standby_asks_for_what_there_is_and_not_without_an_end() {
        let (comparisons, mut telling) = (Comparisons::default(), TellingOf::default());
        assert!(!comparisons.ask(1, sought(4, 0), 4, &mut telling));
        assert!(!comparisons.ask(1, sought(0, TABLES_MAX as u16), 4, &mut telling));
        assert!(comparisons.ask(1, sought(0, 0), 4, &mut telling));
        assert!(comparisons.ask(1, sought(1, 0), 4, &mut telling));
        assert!(comparisons.ask(2, sought(2, 0), 4, &mut TellingOf::default()));
        // The last word of each counts, and nobody waits for who is gone.
        let next = comparisons.next_search().expect("asked");
        assert_eq!(next.sought, sought(1, 0));
        let number = comparisons.name(Lsn(6), Some(next));
        comparisons.tell(number, Found::Tables(Vec::new()));
        assert!(
            comparisons.untold(2, &TellingOf::default()).is_none(),
            "it is told who asked"
        );
        assert!(comparisons.untold(1, &TellingOf::default()).is_some());
        assert!(comparisons.is_owed());
        comparisons.owe_no_more(2);
        assert!(comparisons.is_owed(), "it is another one that waits");
        comparisons.owe_no_more(1);
        assert!(!comparisons.is_owed());
        comparisons.forget(2);
        assert_eq!(comparisons.next_search(), None);
        let asked = (0..2 * SEARCHES_MAX).filter(|_| comparisons.ask(1, sought(0, 0), 4, &mut telling));
        assert_eq!(asked.count() as u32, SEARCHES_MAX - 4);
    }
}
