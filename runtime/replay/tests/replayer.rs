//! A replayer beside the messages that its sites serve meanwhile. Windows of any size have the effect of each record by itself, in log
//! order, and the earliest record that can't be replayed is reported.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize},
    },
    thread::JoinHandle,
};

use crossbeam_channel::Sender;
use reprise_abi::{ColumnSchema, Field, IndexKind, ScalarType, TableSchema};
use reprise_base::{Lsn, MemoryLedger, PartitionId, SiteId, TxnId};
use reprise_env::{RealClock, RealThreads};
use reprise_host::{InvalidModule, StartTime};
use reprise_observe::{RecentLines, Registry};
use reprise_partition::{Coordinator, ExecContext, LogSettings, NoLog, PublishedStats, Shared, Site, SiteMessage};
use reprise_replay::{RecoverFrom, ReplayError, Replayer, Window};
use reprise_storage::{Rid, Store, TableId};
use reprise_txn::{Candidate, Compiler};
use reprise_wire::{
    Change, ChangesRef, ChangesRun, CheckpointRows, CommandRef, PartitionList, PartitionSet, PatchWriter, RecordBatch,
    RecordRef, count_records,
};

const PARTITIONS: u16 = 3;
const SITES: u16 = 2;
const TABLES: u16 = 2;

struct NoCompiler;

impl Compiler for NoCompiler {
    fn compile(&self, _: &str, _: &Arc<[u8]>, _: &StartTime) -> Result<Candidate, InvalidModule> {
        Err(InvalidModule::new("no compiler"))
    }

    fn settings_hash(&self) -> u64 {
        0
    }
}

fn schema(number: u16) -> TableSchema {
    let column = |name: &str| ColumnSchema::new(name, ScalarType::I64);
    TableSchema {
        primary_kind: IndexKind::Hash,
        ..TableSchema::new(format!("t{number}"), vec![column("id"), column("n")], &[0])
    }
}

fn with_tables(store: &mut Store) {
    for number in 0..TABLES {
        store.create_table(schema(number)).expect("a table");
    }
}

/// Sites on threads of their own, with empty tables.
struct Sites {
    shared: Arc<Shared>,
    inboxes: Vec<Sender<SiteMessage>>,
    threads: Vec<JoinHandle<()>>,
}

impl Sites {
    fn start() -> Self {
        let shared = Arc::new(Shared {
            deployed: Default::default(),
            generation: AtomicU64::new(0),
            memory: MemoryLedger::unlimited(),
            clock: Arc::new(RealClock::new()),
            threads: Arc::new(RealThreads),
            secret: [1, 2],
            partitions_count: PARTITIONS,
            sites_count: SITES,
            waiting: (0..PARTITIONS).map(|_| AtomicUsize::new(0)).collect(),
            waiting_max: usize::MAX,
            multi_tick: AtomicU64::new(0),
            replay_failed: Default::default(),
            copying: AtomicUsize::new(0),
            binaries: Mutex::default(),
            records_max: AtomicUsize::new(usize::MAX),
            lines: Arc::new(RecentLines::new()),
            notices: Default::default(),
            logging: LogSettings::default(),
            calls: Arc::default(),
            gate: Arc::default(),
            coordinator: Coordinator::new(PARTITIONS, SITES),
            published: PublishedStats::new(PARTITIONS, SITES),
            underway: Default::default(),
            key_clock: reprise_partition::KeyClock::new(Arc::new(RealClock::new())),
            principals: Default::default(),
        });
        let (mut inboxes, mut threads) = (Vec::new(), Vec::new());
        for id in 0..SITES {
            let (sender, inbox) = crossbeam_channel::unbounded();
            let shared = shared.clone();
            threads.push(std::thread::spawn(move || {
                let tools = ExecContext::new(shared, Box::new(NoLog), Registry::new().recorder());
                Site::new(SiteId(id), tools, inbox).run();
            }));
            inboxes.push(sender);
        }
        let sites = Self {
            shared,
            inboxes,
            threads,
        };
        (0..PARTITIONS).for_each(|id| sites.on(id, with_tables));
        sites
    }

    fn replayer(&self) -> Replayer {
        let remember = Arc::new(|_| {});
        Replayer::new(
            self.shared.clone(),
            self.inboxes.clone(),
            Arc::new(NoCompiler),
            remember,
        )
    }

    /// Runs a job on the partition's site, as any message between two batches of replay. Returns the job's result.
    fn on<T: Send + 'static>(&self, partition: u16, job: impl FnOnce(&mut Store) -> T + Send + 'static) -> T {
        let (answer, answered) = crossbeam_channel::bounded(1);
        let id = PartitionId(partition);
        let job = SiteMessage::Job(Box::new(move |site| {
            answer.send(job(&mut site.partition(id).store)).expect("somebody waits");
        }));
        self.inboxes[id.site(SITES).index()].send(job).expect("the site runs");
        answered.recv().expect("the site answers")
    }

    fn digests(&self) -> Vec<u64> {
        (0..PARTITIONS).map(|id| self.on(id, |store| store.digest())).collect()
    }

    fn stop(self) {
        for inbox in &self.inboxes {
            inbox.send(SiteMessage::Stop).expect("the site runs");
        }
        self.threads
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
    }
}

fn row(id: i64, n: i64) -> Vec<u8> {
    let mut store = Store::new();
    with_tables(&mut store);
    store.layout(TableId(0)).build(&[Field::Int(id), Field::Int(n)])
}

/// Insertions of the rows with ids from 1 on, in order.
fn insert(table: u16, id: i64, n: i64) -> Vec<u8> {
    insert_numbered(table, id as u64 - 1, id, n)
}

fn insert_numbered(table: u16, number: u64, id: i64, n: i64) -> Vec<u8> {
    let (row, mut out) = (row(id, n), Vec::new());
    let row = &row[..];
    Change::Insert { table, number, row }.encode(&mut out);
    out
}

fn write(table: u16, id: i64, n: i64) -> Vec<u8> {
    let mut out = Vec::new();
    let mut patch = PatchWriter::begin(&mut out, table, id as u64 - 1, 1);
    patch.column(1, Some(&n.to_le_bytes()));
    patch.finish();
    out
}

/// A record with each partition's changes.
fn changes(tick: u64, parts: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let partitions: Vec<_> = parts.iter().map(|(id, _)| PartitionId(*id)).collect();
    let (origin, set, body) = match parts {
        [(id, changes)] => (*id, PartitionSet::One(PartitionId(*id)), changes.clone()),
        _ => {
            let mut body = Vec::new();
            for (id, changes) in parts {
                body.push(*id as u8);
                assert!(changes.len() < 128, "a length of one byte");
                body.push(changes.len() as u8);
                body.extend_from_slice(changes);
            }
            let list = PartitionSet::Several(PartitionList::new(&partitions));
            (TxnId::MULTI_PARTITION, list, body)
        }
    };
    let record = ChangesRef {
        procedure: 1,
        ..ChangesRef::new(TxnId::new(tick, origin), set, &body)
    };
    let mut out = Vec::new();
    RecordRef::Changes(record).encode(&mut out);
    out
}

fn command(tick: u64, origin: u16) -> Vec<u8> {
    let command = CommandRef {
        procedure: 1,
        ..CommandRef::new(
            TxnId::new(tick, origin),
            PartitionSet::One(PartitionId(origin)),
            b"arguments",
        )
    };
    let mut out = Vec::new();
    RecordRef::Command(command).encode(&mut out);
    out
}

/// `count` records that insert rows and write them, of one partition and of two, with their effects by partition.
fn history(count: u64) -> Vec<(Vec<u8>, Vec<(u16, Vec<u8>)>)> {
    let mut state = 7u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 33) % below
    };
    let mut known = [[0i64; TABLES as usize]; PARTITIONS as usize];
    let mut part = |id: u16, tick: u64| {
        let table = next(TABLES as u64) as u16;
        let rows = &mut known[id as usize][table as usize];
        if *rows < 3 || next(4) == 0 {
            *rows += 1;
            return (id, insert(table, *rows, 0));
        }
        (id, write(table, 1 + next(*rows as u64) as i64, tick as i64))
    };
    let records = (1..=count).map(|tick| {
        let parts = match tick % 5 {
            0 => vec![part(0, tick), part(1 + (tick / 5 % 2) as u16, tick)],
            _ => vec![part((tick % PARTITIONS as u64) as u16, tick)],
        };
        (changes(tick, &parts), parts)
    });
    records.collect()
}

fn window_of(replayer: &mut Replayer, lsn: u64, records: &[u8]) -> Window {
    let mut window = replayer.window().expect("the sites run");
    let end = lsn + u64::from(count_records(records).unwrap_or(1));
    window.push(Lsn(lsn)..Lsn(end), records);
    window
}

#[test]
fn windows_of_any_size_come_to_what_each_record_does() {
    replayed_in_windows(&history(599), &[1, 7, 100, 600]);
}

/// Such batches are demultiplexed before their sites reach them, and their tables lent.
#[test]
fn large_windows_come_to_what_each_record_does() {
    replayed_in_windows(&history(60_000), &[5_000, 60_000]);
}

/// The record of a transaction, cut into parts: each change for itself, and without what makes them count unless `is_whole`.
fn in_parts(record: &[u8], part_bytes: usize, is_whole: bool) -> Vec<Vec<u8>> {
    let Ok(RecordRef::Changes(whole)) = RecordRef::decode(record) else {
        panic!("a record of changes");
    };
    let run = ChangesRun::new(whole, None, None, part_bytes);
    let encoded = |push: &dyn Fn(&mut RecordBatch)| {
        let mut batch = RecordBatch::default();
        push(&mut batch);
        batch.bytes().to_vec()
    };
    let parts = (0..run.parts()).map(|number| encoded(&|batch| run.push_part(number, batch)));
    let last = is_whole.then(|| encoded(&|batch| run.push_last(batch)));
    parts.chain(last).collect()
}

/// Several of the history's transactions as one: all that they do to each partition.
fn merged(history: &[(Vec<u8>, Vec<(u16, Vec<u8>)>)], tick: u64) -> Vec<u8> {
    let mut by_partition = std::collections::BTreeMap::<u16, Vec<u8>>::new();
    for (id, changes) in history.iter().flat_map(|(_, parts)| parts) {
        by_partition.entry(*id).or_default().extend_from_slice(changes);
    }
    let ids: Vec<_> = by_partition.keys().map(|id| PartitionId(*id)).collect();
    let mut groups = Vec::new();
    for (id, changes) in &by_partition {
        ChangesRef::push_group(&mut groups, PartitionId(*id), changes);
    }
    let (origin, partitions, changes) = match &ids[..] {
        [one] => (one.0, PartitionSet::One(*one), &by_partition[&one.0]),
        _ => (
            TxnId::MULTI_PARTITION,
            PartitionSet::Several(PartitionList::new(&ids)),
            &groups,
        ),
    };
    let mut out = Vec::new();
    RecordRef::Changes(ChangesRef {
        procedure: 1,
        ..ChangesRef::new(TxnId::new(tick, origin), partitions, changes)
    })
    .encode(&mut out);
    out
}

/// A transaction in parts has the effect of one record, in any windows. Parts without an end, and everything between them, have none.
#[test]
fn transactions_in_parts_come_to_what_one_record_does() {
    let history = history(600);
    let mut stores: Vec<_> = (0..PARTITIONS).map(|_| Store::new()).collect();
    stores.iter_mut().for_each(with_tables);
    for (id, changes) in history.iter().flat_map(|(_, parts)| parts) {
        stores[*id as usize].apply(changes).expect("fits");
    }
    let expected: Vec<_> = stores.iter().map(Store::digest).collect();
    let mut records = Vec::new();
    let mut count = 0;
    for (at, txns) in history.chunks(7).enumerate() {
        let tick = 7 * at as u64 + 7;
        let record = merged(txns, tick);
        match at % 3 {
            0 => records.push(record),
            _ => records.extend(in_parts(&record, [1, 60, 200][at % 3], true)),
        }
        count += 1;
        // One that was given up, by a process that died or by a disk that was full, once without a part behind it.
        let again = merged(&history[..5], tick + 1);
        records.extend(in_parts(&again, [1, 60, 100][at % 3], false));
        if at % 4 == 0 {
            records.push(vec![1, 10]);
        }
    }
    for size in [1, 2, 5, 40, 10_000] {
        for cuts in [false, true] {
            let sites = Sites::start();
            let mut replayer = sites.replayer();
            let (reached, told) = crossbeam_channel::unbounded();
            if cuts {
                replayer.begin_snapshot_points(Arc::new(move |end| reached.send(end).expect("somebody waits")));
            }
            let mut lsn = 512;
            for window in records.chunks(size) {
                let bytes = window.concat();
                let fed = window_of(&mut replayer, lsn, &bytes);
                lsn += window.len() as u64;
                replayer.feed(fed, None).expect("its own log");
                if cuts {
                    replayer.snapshot_point(|_, send| send()).expect("its own log");
                }
                let is_open = replayer.open_since().is_some();
                let last = window.last().expect("a chunk has records");
                assert_eq!(
                    is_open,
                    RecordRef::decode(last).is_ok_and(|last| !last.facts().standalone)
                );
            }
            replayer.drain().expect("its own log");
            assert_eq!(replayer.replayed(), count, "windows of {size}");
            assert_eq!(sites.digests(), expected, "windows of {size}");
            // No reader sees a position between two parts.
            let shown = replayer.open_since().unwrap_or(Lsn(lsn));
            assert!((0..PARTITIONS).all(|id| replayer.position(PartitionId(id)) == shown));
            let ends: Vec<_> = told
                .try_iter()
                .map(|end| end.expect("it replays").0 as usize - 512)
                .collect();
            assert!(ends.is_sorted());
            for end in ends.into_iter().filter(|end| *end < records.len()) {
                let is_inside = |at: usize| match RecordRef::decode(&records[at]) {
                    Ok(RecordRef::Part(part)) => part.number > 0,
                    Ok(RecordRef::Changes(changes)) => changes.parts > 0,
                    _ => false,
                };
                assert!(!is_inside(end), "a cut before record {end}");
            }
            drop(replayer);
            sites.stop();
        }
    }
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let record = merged(&history(12), 9);
    let parts = in_parts(&record, 1, true);
    assert!(parts.len() > 6);
    let refused = |records: &[Vec<u8>], at: u64| {
        let (fed, _) = fed(records, RecoverFrom::default());
        match fed.expect_err("it is not as it was written") {
            ReplayError::Malformed { lsn, error } => {
                assert_eq!(lsn, Lsn(512 + at), "{error}");
                assert_eq!(error.what, "parts of a transaction before it");
            }
            other => panic!("{other}"),
        }
    };
    let last = parts.last().expect("a record").clone();
    // One is missing, is there twice, or at another place; the first one, or all of them, are missing.
    refused(&[&parts[..2], &parts[3..]].concat(), 2);
    refused(&[&parts[..3], &parts[2..]].concat(), 3);
    refused(&parts[1..], 0);
    refused(std::slice::from_ref(&last), 0);
    refused(&[parts[0].clone(), last], 1);
    // Whole, it is taken.
    assert!(fed(&parts, RecoverFrom::default()).0.is_ok());
}

fn replayed_in_windows(history: &[(Vec<u8>, Vec<(u16, Vec<u8>)>)], sizes: &[usize]) {
    let mut stores: Vec<_> = (0..PARTITIONS).map(|_| Store::new()).collect();
    stores.iter_mut().for_each(with_tables);
    for (id, changes) in history.iter().flat_map(|(_, parts)| parts) {
        stores[*id as usize].apply(changes).expect("fits");
    }
    let expected: Vec<_> = stores.iter().map(Store::digest).collect();
    for size in sizes.iter().copied() {
        let sites = Sites::start();
        let mut replayer = sites.replayer();
        let mut lsn = 512;
        for records in history.chunks(size) {
            let bytes: Vec<u8> = records.iter().flat_map(|(record, _)| record.clone()).collect();
            let window = window_of(&mut replayer, lsn, &bytes);
            lsn += records.len() as u64;
            replayer.feed(window, None).expect("its own log");
        }
        replayer.drain().expect("its own log");
        assert_eq!(replayer.replayed(), history.len() as u64);
        assert!((0..PARTITIONS).all(|id| replayer.position(PartitionId(id)) == Lsn(lsn)));
        assert_eq!(sites.digests(), expected, "windows of {size}");
        drop(replayer);
        sites.stop();
    }
}

/// Replayed rows can be read, and copied for a checkpoint, while replay continues; it continues after a drain, too.
#[test]
fn replay_goes_on_beside_readers_and_a_checkpoint() {
    let sites = Sites::start();
    let mut replayer = sites.replayer();
    let begin: Vec<u8> = (1..=100)
        .flat_map(|id| changes(id, &[(0, insert(0, id as i64, 0))]))
        .collect();
    let window = window_of(&mut replayer, 0, &begin);
    replayer.feed(window, None).expect("new rows");
    replayer.drain().expect("new rows");
    sites.on(0, |store| drop(store.begin_snapshot()));
    let mut seen = 0;
    for tick in 101..2_000u64 {
        let record = changes(tick, &[(0, write(0, 1 + (tick % 100) as i64, tick as i64))]);
        let window = window_of(&mut replayer, tick - 1, &record);
        replayer.feed(window, None).expect("a row that is there");
        if tick % 50 == 0 {
            let sum = sites.on(0, |store| {
                store.copy_snapshot(64);
                let rids = store.rids_from(TableId(0), Rid(0));
                let values = rids.map(|rid| store.row(TableId(0), rid).expect("live")[8..16].to_vec());
                let values = values.map(|bytes| i64::from_le_bytes(bytes.try_into().expect("eight bytes")));
                values.sum::<i64>()
            });
            assert!(sum >= seen, "what was replayed stays");
            seen = sum;
        }
    }
    replayer.drain().expect("rows that are there");
    let copied = sites.on(0, |store| {
        while !store.copy_snapshot(1 << 10) {}
        let pages = store.take_snapshot_pages();
        store.end_snapshot();
        let rows = pages.iter().flat_map(|page| CheckpointRows::new(&page.bytes));
        rows.map(|row| row.expect("just written").0[8..].to_vec())
            .collect::<Vec<_>>()
    });
    assert!(seen > 0);
    assert_eq!(copied.len(), 100);
    assert!(
        copied.iter().all(|n| n == &[0; 8]),
        "as it was when the snapshot was begun"
    );
    drop(replayer);
    sites.stop();
}

fn fed(records: &[Vec<u8>], from: RecoverFrom) -> (Result<(), ReplayError>, u64) {
    let sites = Sites::start();
    let mut replayer = sites.replayer();
    replayer.set_from(from);
    let window = window_of(&mut replayer, 512, &records.concat());
    let fed = replayer.feed(window, None);
    let done = fed.and_then(|()| replayer.drain());
    let replayed = replayer.replayed();
    drop(replayer);
    sites.stop();
    (done, replayed)
}

#[test]
fn commands_are_passed_over_where_their_changes_are_asked_for() {
    let pair = |tick| [command(tick, 0), changes(tick, &[(0, insert(0, tick as i64, 0))])];
    let both = [pair(1), pair(2)].concat();
    let (done, replayed) = fed(&both, RecoverFrom::Changes);
    assert!(done.is_ok());
    assert_eq!(replayed, 2);
    // No module was deployed. The replay finds that out when it runs a command.
    let is_diverged = |found: &ReplayError, lsn: u64| matches!(found, ReplayError::Diverged(at) if at.lsn == Lsn(lsn));
    let (done, _) = fed(&both, RecoverFrom::Command);
    assert!(is_diverged(&done.expect_err("no module"), 512));
    // One without its changes is run.
    let alone = [&both[..], &[command(3, 0), changes(4, &[(0, insert(0, 4, 0))])]].concat();
    let (done, _) = fed(&alone, RecoverFrom::Changes);
    assert!(is_diverged(&done.expect_err("no module"), 512 + both.len() as u64));
}

#[test]
fn the_earliest_record_that_does_not_fit_is_told() {
    let good: Vec<_> = (1..200)
        .map(|tick| {
            let insert = insert_numbered(0, (tick - 1) / 3, tick as i64, 0);
            changes(tick, &[((tick % 3) as u16, insert)])
        })
        .collect();
    let at = |count: usize| Lsn(512 + count as u64);
    let with = |count: usize, bad: &[u8], later: &[u8]| {
        let mut records = good.clone();
        records.insert(150, later.to_vec());
        records.insert(count, bad.to_vec());
        fed(&records, RecoverFrom::Command).0.expect_err("it does not fit")
    };
    let other = changes(500, &[(1, insert(0, 1, 0))]);
    let again = changes(501, &[(0, insert(0, 3, 0))]);
    let (unknown, stranger) = (
        changes(502, &[(0, insert(9, 1, 0))]),
        changes(503, &[(7, insert(0, 1, 0))]),
    );
    let mut cut = changes(504, &[(0, insert(0, 900, 0))]);
    let length = cut.len();
    cut[length - 17] = 99; // of a row's length
    for count in [3, 30, 149] {
        for (bad, later) in [(&again, &other), (&other, &again), (&unknown, &stranger)] {
            let found = with(count, bad, later);
            assert!(
                matches!(&found, ReplayError::Diverged(found) if found.lsn == at(count)),
                "{found}"
            );
        }
        let found = with(count, &stranger, &again);
        assert!(matches!(found, ReplayError::Partition { lsn, partition: 7, .. } if lsn == at(count)));
        let found = with(count, &cut, &stranger);
        assert!(
            matches!(found, ReplayError::Malformed { lsn, .. } if lsn == at(count)),
            "{found}"
        );
    }
}

/// A row does not fit in each of two tables. Several threads apply the tables, and the earlier row is reported.
#[test]
fn the_earliest_of_two_lent_tables_is_told() {
    let good: Vec<_> = (1..20_000_u64)
        .map(|tick| {
            let insert = insert_numbered((tick % 2) as u16, (tick - 1) / 2, tick as i64, 0);
            changes(tick, &[(0, insert)])
        })
        .collect();
    let again = |table: u16| changes(30_000, &[(0, insert(table, 2 - i64::from(table), 0))]);
    for (first, second) in [(0, 1), (1, 0)] {
        let mut records = good.clone();
        records.insert(15_000, again(second));
        records.insert(14_000, again(first));
        let found = fed(&records, RecoverFrom::Command).0.expect_err("it does not fit");
        assert!(
            matches!(&found, ReplayError::Diverged(found) if found.lsn == Lsn(512 + 14_000)),
            "{found}"
        );
    }
}

#[test]
fn any_bytes_are_replayed_or_refused() {
    let whole = [
        changes(1, &[(0, insert(0, 1, 0))]),
        changes(2, &[(0, write(0, 1, 2)), (1, insert(1, 1, 0))]),
    ]
    .concat();
    let sites = Sites::start();
    let mut state = 7u64;
    for _ in 0..2_000 {
        let mut bytes = whole.clone();
        for _ in 0..3 {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] = (state >> 20) as u8;
        }
        let mut replayer = sites.replayer();
        let window = window_of(&mut replayer, 0, &bytes);
        let fed = replayer.feed(window, None);
        let _ = fed.and_then(|()| replayer.drain());
    }
    sites.stop();
}
