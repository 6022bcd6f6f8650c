//! Reads of a standby on threads of their own. Each sees one prefix of the primary's log to its end, however long it takes, while the
//! replay continues beneath it. Each read is compared with a model of the primary's writes, by LSN.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::common::{call, config, digest_now, wasm};
use crate::following::{Primary, bootstrap, follow_primary, serving, wait_seen, wait_streaming, wait_until};
use reprise_abi::{Field, IndexKind, RowLayout, TablePlacement, value::push_varint};
use reprise_base::{Lsn, MemoryKind};
use reprise_database::{Database, LogPolicy, ReadersConfig};
use reprise_router::{Failure, ReplyOutcome, RowFilter, RowsError, RowsRequest};

const REGISTERS: i64 = 300;
const READERS: ReadersConfig = ReadersConfig {
    threads: 3,
    view_time_max: Duration::from_secs(60),
    view_fuel_max: 100_000_000,
    view_bytes_max: 1 << 30,
};
/// Reads of one call that takes long.
const LONG: usize = 100_000;
/// How long something is tried that time decides.
const TRIED: Duration = Duration::from_secs(60);

/// True once it holds.
fn comes_true(mut holds: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + TRIED;
    while Instant::now() < until {
        if holds() {
            return true;
        }
    }
    false
}

struct Pair {
    _dir: tempfile::TempDir,
    primary: Arc<Database>,
    standby: Arc<Database>,
}

impl Pair {
    fn new(modules: &[&str], policy: LogPolicy, readers: &ReadersConfig) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let place = |name: &str| dir.path().join(name);
        let with = |name: &str, sites| {
            let mut config = config(&place(name), sites);
            config.log = policy;
            config
        };
        let primary = Arc::new(Database::open(with("a", 2)).expect("open"));
        primary.recover().expect("recover");
        for module in modules {
            primary.router().deploy(module, &wasm(module)).expect("deploy");
        }
        primary.serve_standbys(serving("http://a:1")).expect("served");
        let of: Primary = Arc::new(Mutex::new(Some(primary.clone())));
        bootstrap(&primary, "b", &place("b"));
        let standby = Arc::new(Database::open_standby(with("b", 3)).expect("open"));
        standby.set_readers(*readers);
        standby.recover().expect("recover");
        standby.follow_primary(follow_primary(&of, "b")).expect("it follows");
        wait_streaming(&primary, "b");
        Self {
            _dir: dir,
            primary,
            standby,
        }
    }

    fn check_equal(&self) {
        wait_seen(&self.primary, &self.standby);
        let digests = [&self.primary, &self.standby].map(|database| digest_now(database));
        assert_eq!(digests[0], digests[1]);
    }

    /// Nothing is kept for views, of which one at most is open.
    fn wait_no_views(&self) {
        let router = self.standby.router();
        wait_until("the views are closed", || router.open_views() <= 1);
        wait_until("their rows are gone", || {
            router.memory().kind(MemoryKind::Views).used() == 0
        });
    }
}

fn ids(ids: impl ExactSizeIterator<Item = i64>) -> Vec<u8> {
    let mut args = Vec::new();
    push_varint(&mut args, ids.len() as u32);
    ids.for_each(|id| args.extend_from_slice(&id.to_le_bytes()));
    args
}

/// The values of a list, as a result has them.
fn values(mut bytes: &[u8]) -> Vec<Option<i64>> {
    let mut values = Vec::new();
    while bytes[0] & 0x80 != 0 {
        bytes = &bytes[1..]; // of its length
    }
    bytes = &bytes[1..];
    while let Some((tag, rest)) = bytes.split_first() {
        bytes = rest;
        values.push((*tag == 1).then(|| {
            let (value, rest) = bytes.split_first_chunk().expect("8 bytes");
            bytes = rest;
            i64::from_le_bytes(*value)
        }));
    }
    values
}

/// The primary's writes, in their order.
#[derive(Default)]
struct Written(Mutex<Vec<(Lsn, BTreeMap<i64, Option<i64>>)>>);

impl Written {
    /// All registers as they are behind the record at an LSN.
    fn at(&self, lsn: Lsn) -> BTreeMap<i64, i64> {
        let mut registers = BTreeMap::new();
        for (written, values) in self.0.lock().expect("the model").iter() {
            if *written <= lsn {
                for (id, value) in values {
                    match value {
                        Some(value) => _ = registers.insert(*id, *value),
                        None => _ = registers.remove(id),
                    }
                }
            }
        }
        registers
    }

    fn write(&self, primary: &Database, of: &[(i64, Option<i64>)]) {
        let mut args = ids(of.iter().map(|(id, _)| *id).collect::<Vec<_>>().into_iter());
        push_varint(&mut args, of.len() as u32);
        for (_, value) in of {
            args.push(value.is_some() as u8);
            if let Some(value) = value {
                args.extend_from_slice(&value.to_le_bytes());
            }
        }
        args.push(0);
        let mut held = self.0.lock().expect("the model");
        let answer = call(primary, "registers", "write", &args);
        assert_eq!(answer.outcome, ReplyOutcome::Committed);
        held.push((answer.lsn, of.iter().copied().collect()));
    }

    fn fill(&self, primary: &Database) {
        let all: Vec<_> = (0..REGISTERS).map(|id| (id, Some(id))).collect();
        all.chunks(50).for_each(|some| self.write(primary, some));
    }

    /// Updates, deletions and insertions, of one partition or of several.
    fn write_some(&self, primary: &Database, round: i64) {
        let count = 1 + round % 7;
        let some: BTreeMap<_, _> = (0..count)
            .map(|at| {
                let id = (round * 31 + at * at * 17) % REGISTERS;
                (id, ((round + at) % 5 > 0).then_some(round * 1_000 + at))
            })
            .collect();
        self.write(primary, &some.into_iter().collect::<Vec<_>>());
    }
}

/// Writes until `is_over`, and at least so much.
fn write_until(pair: &Pair, written: &Written, rounds_min: i64, is_over: &AtomicBool) {
    let mut round = 0;
    while round < rounds_min || !is_over.load(Ordering::Acquire) {
        written.write_some(&pair.primary, round);
        round += 1;
    }
}

/// A read of each register, again and again. True: the replay advanced while it ran.
fn read_long(pair: &Pair, written: &Written) -> bool {
    let args = ids((0..LONG as i64)
        .map(|at| at % REGISTERS)
        .collect::<Vec<_>>()
        .into_iter());
    let router = pair.standby.router();
    let (answer, views) = thread::scope(|scope| {
        let read = scope.spawn(|| call(&pair.standby, "registers", "read", &args));
        let mut views = Vec::new();
        while !read.is_finished() {
            views.push(router.view());
            thread::sleep(Duration::from_millis(1));
        }
        (read.join().expect("an answer"), views)
    });
    assert_eq!(answer.outcome, ReplyOutcome::Committed);
    let expected = written.at(answer.lsn);
    let found = values(&answer.result);
    assert_eq!(found.len(), LONG);
    for (at, value) in found.into_iter().enumerate() {
        let id = at as i64 % REGISTERS;
        assert_eq!(value, expected.get(&id).copied(), "register {id}, read number {at}");
    }
    // The last look may have come behind the answer.
    let before = &views[..views.len().saturating_sub(1)];
    before.iter().any(|view| view.0 > answer.lsn.0 + 1)
}

/// Reads all registers, and single ones, as long as the others work. Returns the values that it saw.
fn read_short(pair: &Pair, is_over: &AtomicBool) -> Vec<(Lsn, BTreeMap<i64, i64>)> {
    let (mut seen, mut last) = (Vec::new(), Lsn(0));
    while !is_over.load(Ordering::Acquire) || seen.is_empty() {
        let answer = call(&pair.standby, "registers", "all", &[]);
        assert_eq!(answer.outcome, ReplyOutcome::Committed);
        assert!(answer.lsn >= last, "a later read sees no less");
        last = answer.lsn;
        let start = answer.result.len() % 16;
        let entries = answer.result[start..].as_chunks::<16>().0.iter().map(|entry| {
            let (id, value) = entry.split_at(8);
            let number = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            (number(id), number(value))
        });
        seen.push((answer.lsn, entries.collect()));
    }
    seen
}

/// All registers on one page, and the last record that it shows. Time may end a page before its last row; then the next one is taken.
fn registers_page(database: &Database) -> (Lsn, BTreeMap<i64, i64>) {
    let whole_page = || {
        let request = RowsRequest {
            limit: 1_000,
            ..RowsRequest::default()
        };
        let page = database.router().table_rows(request).expect("a page");
        page.next_cursor.is_none().then_some(page)
    };
    let page = std::iter::repeat_with(whole_page)
        .flatten()
        .next()
        .expect("a whole page");
    let layout = RowLayout::of_table(&page.schema);
    let number = |row: &[u8], column| match layout.field(row, column) {
        Field::Int(number) => number,
        other => panic!("{other:?}"),
    };
    let rows = page.rows.iter().map(|row| (number(row, 0), number(row, 1)));
    (page.lsn, rows.collect())
}

/// Reads pages of all registers, as long as the others work. Returns the values that it saw.
fn read_pages(pair: &Pair, is_over: &AtomicBool) -> Vec<(Lsn, BTreeMap<i64, i64>)> {
    let (mut seen, mut last) = (Vec::new(), Lsn(0));
    while !is_over.load(Ordering::Acquire) || seen.is_empty() {
        let page = registers_page(&pair.standby);
        assert!(page.0 >= last, "a later page shows no less");
        last = page.0;
        seen.push(page);
    }
    seen
}

#[test]
fn a_long_read_sees_its_view_to_the_end_and_the_replay_goes_on() {
    for policy in [LogPolicy::Command, LogPolicy::Physiological] {
        let pair = Pair::new(&["registers"], policy, &READERS);
        let (written, is_over) = (Written::default(), AtomicBool::new(false));
        written.fill(&pair.primary);
        let seen = thread::scope(|scope| {
            scope.spawn(|| write_until(&pair, &written, 3_000, &is_over));
            let short = scope.spawn(|| read_short(&pair, &is_over));
            let pages = scope.spawn(|| read_pages(&pair, &is_over));
            let went_on = comes_true(|| read_long(&pair, &written));
            is_over.store(true, Ordering::Release);
            assert!(went_on, "the replay stood still beneath long reads");
            let pages = pages.join().expect("pages");
            [short.join().expect("short reads"), pages].concat()
        });
        for (lsn, registers) in seen {
            assert_eq!(registers, written.at(lsn), "at LSN {lsn}");
        }
        pair.check_equal();
        pair.wait_no_views();
    }
}

#[test]
fn a_standby_may_give_its_reads_less_fuel_than_the_primary_has() {
    let little = ReadersConfig {
        view_fuel_max: 16 << 10,
        ..READERS
    };
    let pair = Pair::new(&["registers"], LogPolicy::Command, &little);
    let written = Written::default();
    written.fill(&pair.primary);
    wait_seen(&pair.primary, &pair.standby);
    let args = |count: usize| {
        ids((0..count as i64)
            .map(|at| at % REGISTERS)
            .collect::<Vec<_>>()
            .into_iter())
    };
    let read = |database: &Database, count| call(database, "registers", "read", &args(count)).outcome;
    assert_eq!(read(&pair.primary, LONG), ReplyOutcome::Committed);
    assert_eq!(read(&pair.standby, 10), ReplyOutcome::Committed);
    let refused = read(&pair.standby, LONG);
    let Some(Failure::Limit { limit, max, .. }) = refused.failure() else {
        panic!("{refused:?}");
    };
    assert_eq!((&limit[..], *max), ("fuel", 16 << 10));
}

#[test]
fn a_view_ends_by_its_time_or_its_bytes_and_answers_nothing_wrong() {
    let short = ReadersConfig {
        view_time_max: Duration::from_millis(1),
        ..READERS
    };
    let small = ReadersConfig {
        view_bytes_max: 2_000,
        ..READERS
    };
    for (readers, why) in [(short, "view-time-max-ms"), (small, "view-memory-max")] {
        let pair = Pair::new(&["registers"], LogPolicy::Command, &readers);
        let (written, is_over) = (Written::default(), AtomicBool::new(false));
        written.fill(&pair.primary);
        wait_seen(&pair.primary, &pair.standby);
        let args = ids((0..LONG as i64)
            .map(|at| at % REGISTERS)
            .collect::<Vec<_>>()
            .into_iter());
        thread::scope(|scope| {
            scope.spawn(|| write_until(&pair, &written, 100, &is_over));
            let is_ended = comes_true(|| {
                let answer = call(&pair.standby, "registers", "read", &args);
                match &answer.outcome {
                    ReplyOutcome::TooStale(reason) => {
                        assert!(reason.contains(why), "{reason}");
                        true
                    }
                    outcome => {
                        assert_eq!(*outcome, ReplyOutcome::Committed);
                        let expected = written.at(answer.lsn);
                        let all = values(&answer.result).into_iter().enumerate();
                        for (at, value) in all {
                            assert_eq!(value, expected.get(&(at as i64 % REGISTERS)).copied());
                        }
                        false
                    }
                }
            });
            is_over.store(true, Ordering::Release);
            assert!(is_ended, "no view was over for {why}");
        });
        pair.check_equal();
        pair.wait_no_views();
    }
}

#[test]
fn a_deployment_waits_for_views_and_the_reads_behind_it_see_it() {
    let pair = Pair::new(&["registers"], LogPolicy::Command, &READERS);
    let (written, is_over) = (Written::default(), AtomicBool::new(false));
    written.fill(&pair.primary);
    thread::scope(|scope| {
        scope.spawn(|| write_until(&pair, &written, 200, &is_over));
        let long = scope.spawn(|| (0..3).for_each(|_| _ = read_long(&pair, &written)));
        pair.primary.router().deploy("bank", &wasm("bank")).expect("deploy");
        wait_seen(&pair.primary, &pair.standby);
        assert!(pair.standby.router().deployed().current.contains_key("bank"));
        let total = call(&pair.standby, "bank", "total", &[]);
        assert_eq!(total.outcome, ReplyOutcome::Committed);
        long.join().expect("long reads");
        is_over.store(true, Ordering::Release);
    });
    pair.check_equal();
    pair.wait_no_views();
}

#[test]
fn a_promotion_ends_the_views_and_takes_writes() {
    let pair = Pair::new(&["registers"], LogPolicy::Command, &READERS);
    let written = Written::default();
    written.fill(&pair.primary);
    wait_seen(&pair.primary, &pair.standby);
    let args = ids((0..LONG as i64)
        .map(|at| at % REGISTERS)
        .collect::<Vec<_>>()
        .into_iter());
    thread::scope(|scope| {
        let reads: Vec<_> = (0..6)
            .map(|_| scope.spawn(|| call(&pair.standby, "registers", "read", &args).outcome))
            .collect();
        thread::sleep(Duration::from_millis(20));
        pair.standby.promote().expect("promoted");
        for read in reads {
            let outcome = read.join().expect("an answer");
            assert!(
                matches!(outcome, ReplyOutcome::Committed | ReplyOutcome::Unavailable(_)),
                "{outcome:?}"
            );
        }
    });
    pair.wait_no_views();
    written.write(&pair.standby, &[(1, Some(77)), (2, None)]);
    let answer = call(&pair.standby, "registers", "read", &ids([1, 2, 3].into_iter()));
    assert_eq!(values(&answer.result), [Some(77), None, Some(3)]);
}

/// All pages of a table in the order of an index, each row as it is stored.
fn pages(database: &Database, request: &RowsRequest) -> Result<Vec<Vec<u8>>, RowsError> {
    let (mut request, mut rows) = (request.clone(), Vec::new());
    loop {
        let page = database.router().table_rows(request.clone())?;
        rows.extend(page.rows);
        request.cursor = page.next_cursor;
        if request.cursor.is_none() {
            return Ok(rows);
        }
    }
}

/// Reads every table in the order of every index, from either end, in pages of one row and of several. The standby must return the same as
/// the primary.
fn check_pages(pair: &Pair, with_filter: bool) {
    let deployed = pair.primary.router().deployed();
    for (table, schema) in deployed.tables() {
        for (index, reverse, limit) in
            (0..=schema.indexes.len() as u16).flat_map(|index| [(index, false, 1), (index, true, 3), (index, false, 7)])
        {
            let [first, second] = [&pair.primary, &pair.standby].map(|database| {
                let deployed = database.router().deployed();
                let filter = RowFilter {
                    passes: Arc::new(|row| row.iter().map(|byte| u64::from(*byte)).sum::<u64>() % 2 == 0),
                };
                let request = RowsRequest {
                    table: table.0,
                    schema: Some(deployed.tables[table.0 as usize].clone()),
                    index,
                    limit,
                    reverse,
                    filter: with_filter.then_some(filter),
                    ..RowsRequest::default()
                };
                match pages(database, &request) {
                    Err(RowsError::Unordered) => Vec::new(),
                    // Rows without an order come as they lie on each server.
                    Ok(mut rows) if index == 0 && schema.primary_kind != IndexKind::Ordered => {
                        rows.sort();
                        rows
                    }
                    Ok(rows) => rows,
                    Err(error) => panic!("{error}"),
                }
            });
            assert_eq!(
                first,
                second,
                "{} by index {index}, {limit} a page, reverse {reverse}",
                schema.full_name()
            );
        }
    }
}

/// A page of a replicated table comes from the copy that its cursor names. Another copy has other positions.
fn check_copy(primary: &Database) {
    let (router, deployed) = (primary.router(), primary.router().deployed());
    let mut tables = deployed.tables();
    let (table, _) = tables
        .find(|(_, schema)| schema.placement == TablePlacement::Replicated)
        .expect("a replicated table");
    let request = RowsRequest {
        table: table.0,
        index: 1,
        limit: 1,
        ..RowsRequest::default()
    };
    let page = router.table_rows(request.clone()).expect("a page");
    let mut cursor = page.next_cursor.expect("there are more rows");
    let partition = cursor.len() - 2;
    cursor[partition..].fill(0xff);
    let of_no_copy = RowsRequest {
        cursor: Some(cursor),
        ..request
    };
    assert!(matches!(
        router.table_rows(of_no_copy).err(),
        Some(RowsError::BadCursor)
    ));
}

#[test]
fn pages_of_tables_of_each_kind_are_the_same_as_on_the_primary() {
    for policy in [LogPolicy::Command, LogPolicy::Physiological] {
        let pair = Pair::new(&["voter"], policy, &READERS);
        let mut names = vec![5];
        (0..5).for_each(|name| names.extend([1, b'a' + name]));
        let initialized = call(&pair.primary, "voter", "initialize", &names);
        assert_eq!(initialized.outcome, ReplyOutcome::Committed);
        for vote in 0..300_i64 {
            let phone = (2_000_000_000 + vote * 77_000_001 % 7_000_000_000).to_le_bytes();
            let args = [&phone[..], &(1 + vote as i32 % 5).to_le_bytes(), &2_i64.to_le_bytes()].concat();
            assert_eq!(
                call(&pair.primary, "voter", "vote", &args).outcome,
                ReplyOutcome::Committed
            );
        }
        wait_seen(&pair.primary, &pair.standby);
        check_pages(&pair, false);
        check_pages(&pair, true);
        check_copy(&pair.primary);
        pair.wait_no_views();
    }
}

#[test]
fn pages_of_tables_are_read_by_readers() {
    let pair = Pair::new(&["registers"], LogPolicy::Physiological, &READERS);
    let written = Written::default();
    written.fill(&pair.primary);
    wait_seen(&pair.primary, &pair.standby);
    let router = pair.standby.router();
    wait_until("the last window's view is gone", || router.open_views() == 0);
    let page = registers_page(&pair.standby);
    assert_eq!(page.1, written.at(page.0));
    assert_eq!(router.open_views(), 1, "it is kept until the next window");
    // Its order is the queue's: a page behind a write that its client saw shows it.
    written.write(&pair.primary, &[(5, Some(-5))]);
    wait_seen(&pair.primary, &pair.standby);
    assert_eq!(registers_page(&pair.standby).1[&5], -5);
    let bad = |request: RowsRequest| router.table_rows(request).err().expect("refused").to_string();
    let table = RowsRequest {
        table: 99,
        limit: 1,
        ..RowsRequest::default()
    };
    assert!(bad(table).contains("no such table"));
    let cursor = RowsRequest {
        cursor: Some(vec![1, 2, 3]),
        limit: 1,
        ..RowsRequest::default()
    };
    assert!(bad(cursor).contains("cursor"));
    pair.standby.promote().expect("promoted");
    assert_eq!(registers_page(&pair.standby).1[&5], -5);
    assert_eq!(router.open_views(), 0);
}

/// Makes a script of this many steps. Each step has an operation and its operands.
fn script(random: &mut u64, steps: usize) -> Vec<u8> {
    let mut next = || {
        *random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (*random >> 40) as u8
    };
    (0..2 * steps).map(|_| next()).collect()
}

fn walk_args(place: Option<i64>, script: &[u8]) -> Vec<u8> {
    let mut args = place.map_or_else(Vec::new, |place| place.to_le_bytes().to_vec());
    push_varint(&mut args, script.len() as u32);
    args.extend_from_slice(script);
    args
}

#[test]
fn reads_of_scripts_answer_on_the_standby_what_they_answer_on_the_primary() {
    let pair = Pair::new(&["walks"], LogPolicy::Command, &READERS);
    let mut random = 7;
    for round in 0..60 {
        for place in 0..4 {
            let place = (place + round) % 5;
            let place = (place < 4).then_some(place);
            let procedure = if place.is_some() { "walk" } else { "walk_all" };
            let args = walk_args(place, &script(&mut random, 40));
            call(&pair.primary, "walks", procedure, &args); // refused where it would write an old copy
        }
        wait_seen(&pair.primary, &pair.standby);
        for place in [None, Some(round % 4)] {
            let procedure = if place.is_some() { "look" } else { "look_all" };
            let args = walk_args(place, &script(&mut random, 60));
            let [first, second] =
                [&pair.primary, &pair.standby].map(|database| call(database, "walks", procedure, &args));
            assert_eq!(first.outcome, ReplyOutcome::Committed);
            assert_eq!(
                (first.outcome, first.result),
                (second.outcome, second.result),
                "round {round}"
            );
        }
        if round % 10 == 0 {
            check_pages(&pair, round % 20 == 0);
        }
    }
    pair.wait_no_views();
}
