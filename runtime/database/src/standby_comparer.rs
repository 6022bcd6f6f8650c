//! A standby compares its tables with its primary's at LSNs that the primary names. If a table differs, the standby stops its replay and
//! serves no more reads.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use crossbeam_channel::{Receiver, TryRecvError, unbounded};
use reprise_base::{Lsn, PartitionId, limits::TABLES_MAX};
use reprise_partition::{Job, PartitionDigest, Shared};
use reprise_router::{ComparedInfo, digests_at_mark};
use reprise_ship::{ComparedOwn, Compares};
use reprise_wire::{ComparePoint, ComparedTable, TableDigests};

/// Number of named LSNs that wait for their comparison at most. The standby skips further ones.
const PENDING_MAX: usize = 2;

/// A standby's part in comparisons.
pub(crate) struct StandbyComparer {
    shared: Arc<Shared>,
    state: Mutex<ComparerState>,
}

#[derive(Default)]
struct ComparerState {
    /// The oldest first.
    pending: VecDeque<PendingComparison>,
    results: VecDeque<ComparedOwn>,
    /// The last comparison's result. After a difference the standby compares no more tables.
    last: Option<ComparedInfo>,
}

/// A named LSN.
struct PendingComparison {
    named: ComparePoint,
    own: Own,
    theirs: Theirs,
}

enum Own {
    /// The replay has not reached the LSN yet.
    Waiting,
    Made {
        from: Receiver<PartitionDigest>,
        found: Vec<PartitionDigest>,
    },
    Done(Vec<ComparedTable>),
    /// The standby can't make digests for this LSN.
    Void,
}

/// The primary's tables.
struct Theirs {
    tables: Vec<ComparedTable>,
    is_whole: bool,
}

impl StandbyComparer {
    pub fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            shared,
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, ComparerState> {
        self.state.lock().expect("nothing panics under this lock")
    }

    /// Returns the result of the last comparison, if there was one.
    pub fn info(&self) -> Option<ComparedInfo> {
        self.lock().last.clone()
    }

    /// Returns the job that makes digests at a mark which the replay reached, with all partitions held.
    pub fn at_mark(&self, end: Lsn) -> Option<Job> {
        let mut state = self.lock();
        let pending = state.pending.iter_mut().find(|pending| pending.named.lsn == end)?;
        let (to, from) = unbounded();
        let found = Vec::new();
        pending.own = Own::Made { from, found };
        Some(digests_at_mark(to))
    }

    /// Compares the tables once both sides have them. Returns a difference, once.
    pub fn compare(&self, view: Lsn) -> Option<String> {
        let mut state = self.lock();
        let partitions = self.shared.partitions_count;
        for pending in &mut state.pending {
            pending.gather(partitions, view);
        }
        let at = state.pending.iter().position(PendingComparison::is_ready)?;
        let pending = state.pending.drain(..=at).next_back().expect("as found");
        let Own::Done(own) = pending.own else {
            return None;
        };
        let difference = compare_tables(pending.named.lsn, &own, &pending.theirs.tables, |table| {
            self.name_of(table)
        });
        state.record_result(pending.named, difference.clone(), self.shared.clock.now_us());
        difference
    }

    fn name_of(&self, table: u16) -> String {
        let deployed = self.shared.deployed.load();
        let schema = deployed.tables.get(usize::from(table));
        schema.map_or_else(|| format!("number {table}"), |schema| schema.full_name())
    }
}

/// Describes the first table that differs, by partition. None: all are equal.
fn compare_tables(
    lsn: Lsn,
    own: &[ComparedTable],
    theirs: &[ComparedTable],
    name_of: impl Fn(u16) -> String,
) -> Option<String> {
    let mut both: BTreeMap<(PartitionId, u16), (Option<ComparedTable>, Option<ComparedTable>)> = BTreeMap::new();
    for table in own {
        both.entry((table.partition, table.table)).or_default().0 = Some(*table);
    }
    for table in theirs {
        both.entry((table.partition, table.table)).or_default().1 = Some(*table);
    }
    let ((partition, table), found) = both.into_iter().find(|(_, (own, theirs))| own != theirs)?;
    let name = name_of(table);
    let what = format!("at LSN {lsn} table {name} on partition {partition} is not as the primary has it");
    Some(match found {
        (Some(own), Some(theirs)) if own.schema != theirs.schema => format!("{what}: its schema is another one"),
        (Some(own), Some(theirs)) if own.rows != theirs.rows => {
            format!("{what} ({} rows here, {} there)", own.rows, theirs.rows)
        }
        (Some(_), Some(_)) => what,
        (Some(_), None) => format!("{what}: there is no such table there"),
        (None, _) => format!("{what}: there is no such table here"),
    })
}

/// Returns the tables of all partitions, in the form of a frame.
pub(crate) fn tables_of(found: &[PartitionDigest]) -> Vec<ComparedTable> {
    let tables = found.iter().flat_map(|part| {
        part.tables.iter().map(|table| ComparedTable {
            partition: part.partition,
            table: table.table,
            schema: table.schema,
            rows: table.rows,
            digest: table.digest,
        })
    });
    tables.collect()
}

/// Takes the digests that the partitions have sent. Some: all are here, or no more will come.
pub(crate) fn gather(
    from: &Receiver<PartitionDigest>,
    found: &mut Vec<PartitionDigest>,
    partitions: u16,
) -> Option<Result<Vec<PartitionDigest>, ()>> {
    loop {
        match from.try_recv() {
            Ok(part) => found.push(part),
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) if found.len() == usize::from(partitions) => {
                return Some(Ok(std::mem::take(found)));
            }
            Err(TryRecvError::Disconnected) => return Some(Err(())),
        }
    }
}

impl PendingComparison {
    fn gather(&mut self, partitions: u16, view: Lsn) {
        match &mut self.own {
            Own::Made { from, found } => {
                if let Some(all) = gather(from, found, partitions) {
                    self.own = all.map_or(Own::Void, |all| Own::Done(tables_of(&all)));
                }
            }
            Own::Waiting if view >= self.named.lsn => self.own = Own::Void, // the replay passed the LSN before the primary named it
            _ => {}
        }
    }

    fn is_ready(&self) -> bool {
        match self.own {
            Own::Void => true,
            Own::Done(_) => self.theirs.is_whole,
            Own::Waiting | Own::Made { .. } => false,
        }
    }
}

impl ComparerState {
    fn is_over(&self) -> bool {
        self.last.as_ref().is_some_and(|last| last.difference.is_some())
    }

    /// Records the result of a comparison of all tables.
    fn record_result(&mut self, named: ComparePoint, difference: Option<String>, at_us: i64) {
        self.last = Some(ComparedInfo {
            lsn: named.lsn,
            at_us,
            difference: difference.as_deref().map(Into::into),
        });
        self.results.push_back(ComparedOwn {
            number: named.number,
            lsn: named.lsn,
            difference,
        });
        if self.is_over() {
            self.pending.clear();
        }
    }

    fn record_point(&mut self, named: &ComparePoint) {
        // The primary sends its digests at the newest LSN alone. Digests that are missing for an earlier LSN never come.
        self.pending.retain(|pending| pending.theirs.is_whole);
        let is_later = self.pending.back().is_none_or(|last| last.named.lsn < named.lsn);
        if !self.is_over() && is_later && self.pending.len() < PENDING_MAX {
            self.pending.push_back(PendingComparison {
                named: *named,
                own: Own::Waiting,
                theirs: Theirs {
                    tables: Vec::new(),
                    is_whole: false,
                },
            });
        }
    }
}

impl Compares for StandbyComparer {
    fn begin(&self) {
        let mut state = self.lock();
        state.pending.clear();
        state.results.clear();
        if let Some(last) = state.last.clone().filter(|last| last.difference.is_some()) {
            state.results.push_back(ComparedOwn {
                number: 0,
                lsn: last.lsn,
                difference: last.difference.as_deref().map(Into::into),
            });
        }
    }

    fn on_compare_point(&self, named: &ComparePoint) {
        self.lock().record_point(named);
    }

    fn on_digests(&self, found: &TableDigests<'_>) -> bool {
        let mut state = self.lock();
        let most = usize::from(self.shared.partitions_count) * TABLES_MAX;
        let is_it = |pending: &&mut PendingComparison| pending.named.number == found.number;
        let Some(pending) = state.pending.iter_mut().find(is_it) else {
            return true; // the standby skipped this comparison
        };
        let theirs = &mut pending.theirs;
        if theirs.is_whole {
            return false;
        }
        theirs.tables.extend(found.tables());
        theirs.is_whole = found.is_last;
        theirs.tables.len() <= most
    }

    fn take_compared(&self) -> Option<ComparedOwn> {
        self.lock().results.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LSN: Lsn = Lsn(40);

    fn table(partition: u16, table: u16, digest: u64) -> ComparedTable {
        ComparedTable {
            partition: PartitionId(partition),
            table,
            schema: 7,
            rows: 5_000,
            digest,
        }
    }

    fn compare(here: &[ComparedTable], there: &[ComparedTable]) -> Option<String> {
        compare_tables(LSN, here, there, |table| format!("t{table}"))
    }

    #[test]
    fn the_first_table_that_differs_is_named() {
        let all = [table(0, 1, 1), table(1, 1, 2), table(1, 2, 3)];
        assert_eq!(compare(&all, &all), None);
        let reversed: Vec<_> = all.iter().rev().copied().collect();
        assert_eq!(compare(&all, &reversed), None, "in any order");
        let other = [table(0, 1, 1), table(1, 1, 9), table(1, 2, 9)];
        let what = compare(&all, &other).expect("they differ");
        assert_eq!(what, "at LSN 40 table t1 on partition 1 is not as the primary has it");
        let fewer = ComparedTable {
            rows: 4_999,
            ..other[1]
        };
        let schema = ComparedTable { schema: 8, ..all[1] };
        for (there, expected) in [
            (vec![other[0], fewer, all[2]], "(5000 rows here, 4999 there)"),
            (vec![all[0], schema, all[2]], "its schema is another one"),
            (all[..2].to_vec(), "there is no such table there"),
            ([&all[..], &[table(3, 1, 1)]].concat(), "there is no such table here"),
            (Vec::new(), "there is no such table there"),
        ] {
            let what = compare(&all, &there).expect("they differ");
            assert!(what.ends_with(expected), "{what}");
        }
    }

    #[test]
    fn nothing_is_compared_behind_a_difference_and_untold_lsns_are_given_up() {
        let named = |number, lsn| ComparePoint { number, lsn: Lsn(lsn) };
        let numbers =
            |state: &ComparerState| -> Vec<u64> { state.pending.iter().map(|pending| pending.named.number).collect() };
        let mut state = ComparerState::default();
        state.record_point(&named(1, 40));
        state.record_point(&named(2, 50));
        assert_eq!(numbers(&state), [2], "the primary told nothing of the first");
        state.pending[0].theirs.is_whole = true;
        state.record_point(&named(3, 50));
        assert_eq!(numbers(&state), [2], "no later LSN");
        state.record_point(&named(4, 60));
        state.pending[1].theirs.is_whole = true;
        state.record_point(&named(5, 70));
        assert_eq!(numbers(&state), [2, 4], "a third one is passed over");
        state.record_result(named(2, 50), None, 1);
        assert_eq!(numbers(&state), [2, 4]);
        assert_eq!(state.results.pop_front().and_then(|result| result.difference), None);
        state.record_result(named(4, 60), Some("x".into()), 1);
        let result = state.results.pop_front().expect("it is told");
        assert_eq!((result.number, result.difference.as_deref()), (4, Some("x")));
        state.record_point(&named(6, 80));
        assert!(state.pending.is_empty());
    }
}
