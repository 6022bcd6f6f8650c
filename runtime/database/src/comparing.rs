//! A standby's tables compared with its primary's at LSNs that the primary names. Where they differ it shows nothing more, and looks for the
//! first row that does: by digests of fewer and fewer row numbers, each at a further LSN, until a range is one row. Then its replay ends.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use crossbeam_channel::{Receiver, TryRecvError, unbounded};
use reprise_abi::TableSchema;
use reprise_base::{Lsn, PartitionId, limits::TABLES_MAX};
use reprise_partition::{Job, PartitionDigest, Shared};
use reprise_router::{ComparedInfo, ComparedPart, digests_at_mark};
use reprise_ship::{ComparedOwn, Compares};
use reprise_storage::{
    DIGEST_RANGES_MAX, DigestPlan, Digested, NumberRanges, RangeDigests, TableDigest, TableId, name_difference,
};
use reprise_wire::{COMPARED_RANGES_MAX, ComparedTable, Named, RangesFound, Sought, TableDigests};

const _: () = assert!(DIGEST_RANGES_MAX as usize <= COMPARED_RANGES_MAX);

/// LSNs that were named and are not compared yet, at most: further ones are passed over.
const PENDING_MAX: usize = 2;
/// How long the row is looked for that differs, in nanoseconds.
const SEARCH_NS_MAX: u64 = 60_000_000_000;
/// After so long the primary is asked once more, in nanoseconds: nothing came of it, or it said nothing.
const AGAIN_NS: u64 = 500_000_000;
const SILENCE_NS: u64 = 5_000_000_000;
/// Bits of a row number that one step of the search tells.
const STEP_BITS: u8 = 10;
const _: () = assert!(1 << STEP_BITS == DIGEST_RANGES_MAX);

/// What came of comparing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub what: String,
    /// The row was found, or is not looked for any longer.
    pub is_final: bool,
}

/// A standby's part in comparisons.
pub(crate) struct Comparison {
    shared: Arc<Shared>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The oldest first.
    pending: VecDeque<Pending>,
    told: VecDeque<ComparedOwn>,
    last: Option<ComparedInfo>,
    search: Option<Search>,
    /// Nothing is compared any more.
    is_over: bool,
}

/// A named LSN.
struct Pending {
    named: Named,
    own: Own,
    theirs: Theirs,
}

enum Own {
    /// The replay is not there yet.
    Waiting,
    Made {
        from: Receiver<PartitionDigest>,
        found: Vec<PartitionDigest>,
    },
    Done(Vec<PartitionDigest>),
    /// Not to be had.
    Void,
}

/// What the primary found.
enum Theirs {
    Waiting(Vec<ComparedTable>),
    Tables(Vec<ComparedTable>),
    Ranges(RangeDigests),
}

/// The row that differs is looked for.
struct Search {
    /// What is known.
    what: String,
    sought: Sought,
    until_ns: u64,
    /// When the primary was asked last.
    asked_ns: u64,
    /// When it is asked once more.
    again_ns: Option<u64>,
}

/// What two lists of digests come to.
enum Verdict {
    Equal,
    /// And where to look.
    Differs(String, Option<Sought>),
}

impl Comparison {
    pub fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            shared,
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }

    /// The last one, if there was one.
    pub fn info(&self) -> Option<ComparedInfo> {
        self.lock().last.clone()
    }

    /// The replay comes to a mark: what is to be done there, with all partitions held.
    pub fn at_mark(&self, end: Lsn) -> Option<Job> {
        let mut state = self.lock();
        let pending = state.pending.iter_mut().find(|pending| pending.named.lsn == end)?;
        let part = match pending.named.sought {
            None => ComparedPart {
                partition: None,
                plan: DigestPlan::Tables,
            },
            Some(sought) => part_of(&sought),
        };
        let (to, from) = unbounded();
        let found = Vec::new();
        pending.own = Own::Made { from, found };
        Some(digests_at_mark(part, to))
    }

    /// Compares what is there by now. Some: tables differ, or more is known of that.
    pub fn compare(&self, view: Lsn) -> Option<Difference> {
        let mut state = self.lock();
        if state.is_over {
            return None;
        }
        let now_ns = self.shared.clock.monotonic_ns();
        let wanted = usize::from(self.shared.partitions_count);
        state
            .pending
            .iter_mut()
            .for_each(|pending| pending.gather(wanted, view));
        let found = self.compare_next(&mut state, now_ns);
        found.or_else(|| state.go_on_searching(now_ns))
    }

    fn compare_next(&self, state: &mut State, now_ns: u64) -> Option<Difference> {
        let at = state.pending.iter().position(Pending::is_ready)?;
        let pending = state.pending.drain(..=at).next_back().expect("as found");
        let Own::Done(own) = pending.own else {
            if let Some(search) = &mut state.search {
                search.again_ns = Some(now_ns + AGAIN_NS);
            }
            return None;
        };
        match (pending.theirs, &mut state.search) {
            (Theirs::Tables(theirs), None) => {
                let verdict = compare_tables(pending.named.lsn, (&own, &theirs), |table| self.name_of(table));
                let at_us = self.shared.clock.now_us();
                state.note(pending.named, verdict, (now_ns, at_us))
            }
            (Theirs::Ranges(theirs), Some(search)) => {
                let own = own.into_iter().find_map(|part| match part.found {
                    Digested::Ranges(own) => Some(own),
                    Digested::Tables(_) => None,
                });
                let deployed = self.shared.deployed.load();
                let schema = deployed.tables.get(usize::from(search.sought.table));
                let both = (&own.unwrap_or_default(), &theirs);
                let next = narrow((&search.what, search.sought), both, schema.map(|schema| &**schema));
                state.note_narrowed(next, now_ns)
            }
            _ => None,
        }
    }

    fn name_of(&self, table: u16) -> String {
        let deployed = self.shared.deployed.load();
        let schema = deployed.tables.get(usize::from(table));
        schema.map_or_else(|| format!("number {table}"), |schema| schema.full_name())
    }
}

/// The first table that differs, by partition.
fn compare_tables(
    lsn: Lsn,
    (own, theirs): (&[PartitionDigest], &[ComparedTable]),
    name_of: impl Fn(u16) -> String,
) -> Verdict {
    let mut both: BTreeMap<(PartitionId, u16), (Option<ComparedTable>, Option<ComparedTable>)> = BTreeMap::new();
    for part in own {
        let Digested::Tables(tables) = &part.found else {
            continue;
        };
        for table in tables {
            both.entry((part.partition, table.table)).or_default().0 = Some(on(part.partition, table));
        }
    }
    for table in theirs {
        both.entry((table.partition, table.table)).or_default().1 = Some(*table);
    }
    let Some(((partition, table), found)) = both.into_iter().find(|(_, (own, theirs))| own != theirs) else {
        return Verdict::Equal;
    };
    let name = name_of(table);
    let what = format!("at LSN {lsn} table {name} on partition {partition} is not as the primary has it");
    match found {
        (Some(own), Some(theirs)) if own.schema == theirs.schema => {
            let numbers = own.next_number.max(theirs.next_number);
            let shift = (64 - numbers.leading_zeros() as u8).saturating_sub(STEP_BITS);
            let sought = Sought {
                partition,
                table,
                first: 0,
                shift,
                count: DIGEST_RANGES_MAX,
            };
            let rows = match own.rows == theirs.rows {
                true => String::new(),
                false => format!(" ({} rows here, {} there)", own.rows, theirs.rows),
            };
            Verdict::Differs(what + &rows, Some(sought))
        }
        (Some(_), Some(_)) => Verdict::Differs(format!("{what}: its schema is another one"), None),
        (Some(_), None) => Verdict::Differs(format!("{what}: there is no such table there"), None),
        (None, _) => Verdict::Differs(format!("{what}: there is no such table here"), None),
    }
}

/// Where to look next. Err: what was found.
fn narrow(
    (what, sought): (&str, Sought),
    (own, theirs): (&RangeDigests, &RangeDigests),
    schema: Option<&TableSchema>,
) -> Result<Sought, String> {
    let count = usize::from(sought.count);
    let digest_at = |found: &RangeDigests, at: usize| found.digests.get(at).copied().unwrap_or_default();
    let Some(at) = (0..count).find(|at| digest_at(own, *at) != digest_at(theirs, *at)) else {
        let first = sought.first;
        let last = u128::from(first) + (u128::from(sought.count) << sought.shift) - 1;
        return Err(format!(
            "{what}; the row that differed, of those with numbers {first} to {last}, was written or removed before it was found"
        ));
    };
    let first = sought.first.saturating_add((at as u64) << sought.shift);
    if sought.shift > 0 {
        let shift = sought.shift.saturating_sub(STEP_BITS);
        let count = 1 << sought.shift.min(STEP_BITS);
        return Ok(Sought {
            first,
            shift,
            count,
            ..sought
        });
    }
    let row_of = |found: &RangeDigests| -> Result<Option<Vec<u8>>, ()> {
        let row = found.rows.iter().find(|(number, _)| *number == first);
        match row {
            Some((_, row)) => Ok(Some(row.clone())),
            None if digest_at(found, at) == 0 => Ok(None),
            None => Err(()), // others took the room
        }
    };
    let (Ok(own), Ok(theirs)) = (row_of(own), row_of(theirs)) else {
        return Ok(Sought {
            first,
            count: 1,
            ..sought
        });
    };
    let named = schema.map(|schema| name_difference(schema, first, (own.as_deref(), theirs.as_deref())));
    let named = named.map_or_else(|| format!("row number {first}"), |named| named.to_string());
    Err(format!("{what}: {named}"))
}

/// A table's digest, with the partition that it is of.
pub(crate) fn on(partition: PartitionId, table: &TableDigest) -> ComparedTable {
    ComparedTable {
        partition,
        table: table.table,
        schema: table.schema,
        rows: table.rows,
        next_number: table.next_number,
        digest: table.digest,
    }
}

/// Of what digests are made for a search.
pub(crate) fn part_of(sought: &Sought) -> ComparedPart {
    ComparedPart {
        partition: Some(sought.partition),
        plan: DigestPlan::Ranges(NumberRanges {
            table: TableId(sought.table),
            first: sought.first,
            shift: sought.shift,
            count: sought.count,
        }),
    }
}

/// Takes what has come from the partitions. Some: all is there, or no more comes.
pub(crate) fn gather(
    from: &Receiver<PartitionDigest>,
    found: &mut Vec<PartitionDigest>,
    wanted: usize,
) -> Option<Result<Vec<PartitionDigest>, ()>> {
    loop {
        match from.try_recv() {
            Ok(part) => found.push(part),
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) if found.len() == wanted => return Some(Ok(std::mem::take(found))),
            Err(TryRecvError::Disconnected) => return Some(Err(())),
        }
    }
}

impl Pending {
    fn gather(&mut self, partitions: usize, view: Lsn) {
        let wanted = if self.named.sought.is_some() { 1 } else { partitions };
        match &mut self.own {
            Own::Made { from, found } => {
                if let Some(all) = gather(from, found, wanted) {
                    self.own = all.map_or(Own::Void, Own::Done);
                }
            }
            Own::Waiting if view >= self.named.lsn => self.own = Own::Void, // it was replayed before it was named
            _ => {}
        }
    }

    fn is_ready(&self) -> bool {
        match self.own {
            Own::Void => true,
            Own::Done(_) => !matches!(self.theirs, Theirs::Waiting(_)),
            Own::Waiting | Own::Made { .. } => false,
        }
    }
}

impl State {
    fn tell(&mut self, (number, lsn): (u64, Lsn), difference: Option<String>, sought: Option<Sought>) {
        self.told.push_back(ComparedOwn {
            number,
            lsn,
            sought,
            difference,
        });
    }

    /// All tables were compared.
    fn note(&mut self, named: Named, verdict: Verdict, (now_ns, at_us): (u64, i64)) -> Option<Difference> {
        let (what, sought) = match verdict {
            Verdict::Equal => (None, None),
            Verdict::Differs(what, sought) => (Some(what), sought),
        };
        self.last = Some(ComparedInfo {
            lsn: named.lsn,
            at_us,
            difference: what.as_deref().map(Into::into),
        });
        self.tell((named.number, named.lsn), what.clone(), sought);
        let what = what?;
        self.pending.clear();
        self.is_over = sought.is_none();
        self.search = sought.map(|sought| Search {
            what: what.clone(),
            sought,
            until_ns: now_ns + SEARCH_NS_MAX,
            asked_ns: now_ns,
            again_ns: None,
        });
        Some(Difference {
            what,
            is_final: sought.is_none(),
        })
    }

    fn ask(&mut self, now_ns: u64) {
        let Some(search) = &mut self.search else {
            return;
        };
        (search.asked_ns, search.again_ns) = (now_ns, None);
        let (what, sought) = (search.what.clone(), search.sought);
        let lsn = self.last.as_ref().map_or(Lsn(0), |last| last.lsn);
        self.tell((0, lsn), Some(what), Some(sought));
    }

    fn note_narrowed(&mut self, next: Result<Sought, String>, now_ns: u64) -> Option<Difference> {
        match next {
            Ok(sought) => {
                if let Some(search) = &mut self.search {
                    search.sought = sought;
                }
                self.ask(now_ns);
                None
            }
            Err(what) => Some(self.end(what)),
        }
    }

    /// Nothing more is looked for.
    fn end(&mut self, what: String) -> Difference {
        self.search = None;
        self.pending.clear();
        self.is_over = true;
        if let Some(last) = &mut self.last {
            last.difference = Some(what.as_str().into());
        }
        self.tell_difference();
        Difference { what, is_final: true }
    }

    fn tell_difference(&mut self) {
        if let Some((lsn, what)) = self
            .last
            .as_ref()
            .and_then(|last| Some((last.lsn, last.difference.as_ref()?)))
        {
            let what = what.to_string();
            self.tell((0, lsn), Some(what), None);
        }
    }

    fn note_named(&mut self, named: &Named, now_ns: u64) {
        self.give_up_untold(now_ns);
        let is_wanted = match (&self.search, named.sought) {
            (None, None) => !self.is_over,
            (Some(search), Some(sought)) => search.sought == sought,
            _ => false,
        };
        let is_later = self.pending.back().is_none_or(|last| last.named.lsn < named.lsn);
        if is_wanted && is_later && self.pending.len() < PENDING_MAX {
            self.pending.push_back(Pending {
                named: *named,
                own: Own::Waiting,
                theirs: Theirs::Waiting(Vec::new()),
            });
        }
    }

    /// The primary tells what it found at the newest LSN alone: what has not come for those before will not.
    fn give_up_untold(&mut self, now_ns: u64) {
        let before = self.pending.len();
        self.pending
            .retain(|pending| !matches!(pending.theirs, Theirs::Waiting(_)));
        if let Some(search) = self.search.as_mut().filter(|_| self.pending.len() < before) {
            search.again_ns = Some(now_ns);
        }
    }

    fn go_on_searching(&mut self, now_ns: u64) -> Option<Difference> {
        let search = self.search.as_ref()?;
        if now_ns >= search.until_ns {
            let what = format!("{}; which row it is was not found in time", search.what);
            return Some(self.end(what));
        }
        let is_silent = self.pending.is_empty() && now_ns.saturating_sub(search.asked_ns) >= SILENCE_NS;
        if is_silent || search.again_ns.is_some_and(|again_ns| now_ns >= again_ns) {
            self.ask(now_ns);
        }
        None
    }
}

impl Compares for Comparison {
    fn begin(&self) {
        let mut state = self.lock();
        state.pending.clear();
        state.told.clear();
        match state.search.is_some() {
            true => state.ask(self.shared.clock.monotonic_ns()),
            false => state.tell_difference(),
        }
    }

    fn note_named(&self, named: &Named) {
        let now_ns = self.shared.clock.monotonic_ns();
        self.lock().note_named(named, now_ns);
    }

    fn note_tables(&self, found: &TableDigests<'_>) -> bool {
        let mut state = self.lock();
        let most = usize::from(self.shared.partitions_count) * TABLES_MAX;
        let is_it = |pending: &&mut Pending| pending.named.number == found.number && pending.named.sought.is_none();
        let Some(pending) = state.pending.iter_mut().find(is_it) else {
            return true; // it was passed over
        };
        let Theirs::Waiting(tables) = &mut pending.theirs else {
            return false;
        };
        tables.extend(found.tables());
        if tables.len() > most {
            return false;
        }
        if found.is_last {
            pending.theirs = Theirs::Tables(std::mem::take(tables));
        }
        true
    }

    fn note_ranges(&self, found: &RangesFound<'_>) {
        let mut state = self.lock();
        let is_it = |pending: &&mut Pending| pending.named.number == found.number && pending.named.sought.is_some();
        if let Some(pending) = state.pending.iter_mut().find(is_it) {
            pending.theirs = Theirs::Ranges(RangeDigests {
                digests: found.digests().collect(),
                rows: found.rows().map(|(number, row)| (number, row.to_vec())).collect(),
            });
        }
    }

    fn take_compared(&self) -> Option<ComparedOwn> {
        self.lock().told.pop_front()
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
            next_number: 6_000,
            digest,
        }
    }

    fn own(tables: &[ComparedTable]) -> Vec<PartitionDigest> {
        let parts = tables.iter().map(|table| PartitionDigest {
            partition: table.partition,
            found: Digested::Tables(vec![TableDigest {
                table: table.table,
                schema: table.schema,
                rows: table.rows,
                next_number: table.next_number,
                digest: table.digest,
            }]),
        });
        parts.collect()
    }

    fn compare(here: &[ComparedTable], there: &[ComparedTable]) -> Option<(String, Option<Sought>)> {
        match compare_tables(LSN, (&own(here), there), |table| format!("t{table}")) {
            Verdict::Equal => None,
            Verdict::Differs(what, sought) => Some((what, sought)),
        }
    }

    #[test]
    fn the_first_table_that_differs_is_named_and_sought() {
        let all = [table(0, 1, 1), table(1, 1, 2), table(1, 2, 3)];
        assert_eq!(compare(&all, &all), None);
        let reversed: Vec<_> = all.iter().rev().copied().collect();
        assert_eq!(compare(&all, &reversed), None, "in any order");
        let other = [table(0, 1, 1), table(1, 1, 9), table(1, 2, 9)];
        let (what, sought) = compare(&all, &other).expect("they differ");
        assert_eq!(what, "at LSN 40 table t1 on partition 1 is not as the primary has it");
        let sought = sought.expect("rows are looked for");
        assert_eq!((sought.partition, sought.table, sought.first), (PartitionId(1), 1, 0));
        assert!(u64::from(sought.count) << sought.shift >= 6_000 && sought.shift == 3);
        let fewer = ComparedTable {
            rows: 4_999,
            ..other[1]
        };
        let (what, _) = compare(&all, &[other[0], fewer, all[2]]).expect("they differ");
        assert!(what.ends_with("(5000 rows here, 4999 there)"), "{what}");
        // What no row can tell.
        let schema = ComparedTable { schema: 8, ..all[1] };
        for (there, expected) in [
            (vec![all[0], schema, all[2]], "its schema is another one"),
            (all[..2].to_vec(), "there is no such table there"),
            ([&all[..], &[table(3, 1, 1)]].concat(), "there is no such table here"),
            (Vec::new(), "there is no such table there"),
        ] {
            let (what, sought) = compare(&all, &there).expect("they differ");
            assert!(what.ends_with(expected) && sought.is_none(), "{what}");
        }
        // A primary that lies makes nobody panic.
        let huge = ComparedTable {
            next_number: u64::MAX,
            ..all[0]
        };
        let (_, sought) = compare(&all[..1], &[huge]).expect("they differ");
        let sought = sought.expect("rows are looked for");
        assert_eq!(sought.shift, 54);
        let none = RangeDigests::default();
        let gone = narrow(("x", sought), (&none, &none), None).expect_err("all is alike");
        assert!(gone.contains("numbers 0 to 18446744073709551615"), "{gone}");
    }

    /// Digests of the ranges of numbers, where the rows are their numbers.
    fn found(sought: Sought, rows: &[u64], keeps: bool) -> RangeDigests {
        let mut found = RangeDigests {
            digests: vec![0; usize::from(sought.count)],
            rows: Vec::new(),
        };
        for row in rows {
            let at = row
                .checked_sub(sought.first)
                .map(|behind| (behind >> sought.shift) as usize);
            if let Some(sum) = at.and_then(|at| found.digests.get_mut(at)) {
                *sum = sum.wrapping_add(row + 1);
                if keeps && sought.shift == 0 {
                    found.rows.push((*row, row.to_le_bytes().to_vec()));
                }
            }
        }
        found
    }

    #[test]
    fn a_search_ends_at_the_row_however_many_there_are() {
        for (next_number, lost) in [(10, 3), (1024, 0), (6_000, 5_999), (1 << 40, (1 << 39) + 12_345)] {
            let there: Vec<u64> = [1, 7, lost, next_number - 1].to_vec();
            let here: Vec<u64> = there.iter().copied().filter(|row| *row != lost).collect();
            let all = |rows: u64| ComparedTable {
                rows,
                next_number,
                ..table(0, 1, rows)
            };
            let (_, sought) = compare(&[all(3)], &[all(4)]).expect("they differ");
            let (mut sought, mut steps) = (sought.expect("rows are looked for"), 0);
            let told = loop {
                steps += 1;
                let both = (&found(sought, &here, true), &found(sought, &there, true));
                match narrow(("x", sought), both, None) {
                    Ok(next) => sought = next,
                    Err(told) => break told,
                }
            };
            assert_eq!(told, format!("x: row number {lost}"));
            assert!(steps <= 5, "{steps} steps for {next_number}");
        }
        // Where others took the room for rows, the row is asked for alone.
        let sought = Sought {
            partition: PartitionId(0),
            table: 1,
            first: 100,
            shift: 0,
            count: 32,
        };
        let both = (&found(sought, &[101], true), &found(sought, &[101, 110], false));
        let next = narrow(("x", sought), both, None).expect("once more");
        assert_eq!((next.first, next.count), (110, 1));
    }

    #[test]
    fn a_search_asks_again_and_ends_in_time() {
        let named = Named {
            number: 3,
            lsn: LSN,
            sought: None,
        };
        let mut state = State::default();
        let told = state.note(named, Verdict::Equal, (10, 1));
        assert_eq!(told, None);
        let sent = state.told.pop_front().expect("it is told");
        assert_eq!((sent.number, sent.difference, sent.sought), (3, None, None));
        let sought = Sought {
            partition: PartitionId(0),
            table: 1,
            first: 0,
            shift: 10,
            count: 1024,
        };
        let differs = || Verdict::Differs("x".into(), Some(sought));
        let told = state.note(named, differs(), (10, 1)).expect("it differs");
        assert!(!told.is_final && !state.is_over);
        assert_eq!(state.told.pop_front().expect("asked").sought, Some(sought));
        // The primary says nothing: it is asked once more, and once more after a connection that broke.
        assert_eq!(state.go_on_searching(10 + SILENCE_NS - 1), None);
        assert!(state.told.is_empty());
        assert_eq!(state.go_on_searching(10 + SILENCE_NS), None);
        assert_eq!(state.told.pop_front().expect("asked").sought, Some(sought));
        // It named the LSN that was asked for, and then another one before it told what was found at the first.
        let asked_for = Named {
            sought: Some(sought),
            ..named
        };
        state.note_named(&asked_for, 20 + SILENCE_NS);
        assert_eq!(state.pending.len(), 1);
        state.note_named(&named, 20 + SILENCE_NS);
        assert!(state.pending.is_empty());
        assert_eq!(state.go_on_searching(20 + SILENCE_NS), None);
        assert_eq!(state.told.pop_front().expect("asked").sought, Some(sought));
        let ended = state.go_on_searching(10 + SEARCH_NS_MAX).expect("its time is over");
        assert!(ended.is_final && state.is_over && ended.what.contains("was not found in time"));
        assert_eq!(state.told.pop_front().expect("told").sought, None);
        assert_eq!(state.go_on_searching(u64::MAX), None);
        // A difference that no row tells ends it at once.
        let mut state = State::default();
        let told = state
            .note(named, Verdict::Differs("x".into(), None), (10, 1))
            .expect("it differs");
        assert!(told.is_final && state.is_over);
    }
}
