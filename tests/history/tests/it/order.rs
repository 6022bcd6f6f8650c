//! Histories replayed in the order of transaction ids, which is the order of the log, against a map.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use reprise_base::{Lsn, TxnId};
use reprise_database::{Database, LogPolicy};
use reprise_router::{BatchBuilder, LogBody, LogEntry, LogSearch, ReplyOutcome};
use reprise_test_history::{Client, Done, Local, Mix, Model, Op, Ret, deploy, history_of, open};

const REGISTERS: u64 = 200;

fn clients(database: &Database, seed: u64, calls: usize, several: u64) -> Vec<(Local, Vec<Op>)> {
    let client = |number| {
        // Few registers are fought for, many are there to be scanned.
        let registers = if number % 2 == 0 { 12 } else { REGISTERS };
        let ops = Mix::new(seed, number, registers, several).take(calls);
        (Local(database.router().clone()), ops.collect())
    };
    (0..6).map(client).collect()
}

fn all_of(database: &Database) -> Model {
    let answer = Local(database.router().clone()).call(&[Op::All]).remove(0).0;
    let Ret::Rows(rows) = answer else {
        unreachable!("`all` answers with rows");
    };
    assert!(
        rows.is_sorted_by(|a, b| a.0 < b.0),
        "a scan of all partitions is in order"
    );
    Model(rows.into_iter().collect())
}

/// Runs the committed calls one by one in the order of ids. Each call must have seen the same as then.
fn check_ids(history: &[Done], reproduce: &str) -> Model {
    let mut serial: Vec<&Done> = history.iter().filter(|done| done.ret != Ret::Aborted).collect();
    serial.sort_unstable_by_key(|done| done.txn_id);
    let mut model = Model::default();
    for done in serial {
        assert_eq!(model.apply(&done.op), done.ret, "{reproduce}: {done:?}");
    }
    model
}

fn log_of(database: &Database) -> Vec<LogEntry> {
    let (mut entries, mut from) = (Vec::new(), Some(Lsn(0)));
    while from.is_some() {
        let query = LogSearch {
            from,
            limit: 500,
            kind: Some("command".into()),
            ..LogSearch::default()
        };
        let page = database.router().log_records(query).expect("a readable log");
        entries.extend(page.records);
        from = page.next.filter(|next| *next < page.end);
    }
    entries
}

/// Checks that the log holds each committed write once. In its order, every write must have the answer that it had.
fn check_log(database: &Database, history: &[Done], reproduce: &str) {
    let is_write = |done: &&Done| matches!(done.op, Op::Write { .. } | Op::Rotate(_));
    let committed = history.iter().filter(|done| done.ret != Ret::Aborted);
    let writes: BTreeMap<TxnId, &Done> = committed.filter(is_write).map(|done| (done.txn_id, done)).collect();
    let (mut model, mut logged) = (Model::default(), BTreeSet::new());
    let mut newest: BTreeMap<u16, TxnId> = BTreeMap::new();
    for entry in log_of(database) {
        let LogBody::Command { args, .. } = entry.body else {
            continue;
        };
        let txn_id = entry.txn_id.expect("a transaction");
        let done = writes[&txn_id];
        let mut encoded = Vec::new();
        done.op.encode(&mut encoded);
        assert_eq!(encoded, args, "{reproduce}: {done:?}");
        assert_eq!(
            model.apply(&done.op),
            done.ret,
            "{reproduce}: {done:?} in the log's order"
        );
        assert!(logged.insert(txn_id), "{reproduce}: {txn_id} is logged twice");
        for partition in entry.partitions.expect("a call") {
            let before = newest.insert(partition, txn_id);
            assert!(
                before < Some(txn_id),
                "{reproduce}: ids of partition {partition} go back"
            );
        }
    }
    assert_eq!(
        logged.len(),
        writes.len(),
        "{reproduce}: a committed write is not logged"
    );
}

#[test]
fn a_random_mix_is_serial_in_the_order_of_ids_and_of_the_log_and_replays_on_any_number_of_sites() {
    for (seed, partitions, sites, several) in [(1, 6, 3, 50), (2, 5, 2, 10)] {
        let reproduce = format!("seed {seed}");
        let dir = tempfile::tempdir().expect("a directory");
        let database = open(Some(dir.path()), partitions, sites, LogPolicy::Command);
        deploy(&database);
        let history = history_of(clients(&database, seed, 700, several), 6);
        let model = check_ids(&history, &reproduce);
        assert_eq!(all_of(&database), model, "{reproduce}");
        check_log(&database, &history, &reproduce);
        assert_eq!(database.router().status().waiting, 0);
        let digest = database.router().digest().expect("ready");
        database.close().expect("close");
        for sites in [1, 2, 3] {
            let database = open(Some(dir.path()), partitions, sites, LogPolicy::Command);
            assert_eq!(
                database.router().digest().expect("ready"),
                digest,
                "{reproduce}, {sites}"
            );
            assert_eq!(all_of(&database), model, "{reproduce}, {sites} sites");
            database.close().expect("close");
        }
    }
}

/// Calls of a batch at most, and clients, in the storm.
const STORM_BATCH: usize = 8;
const STORM_CLIENTS: usize = 6;
/// Bound of the calls for which a batch waits. For some rounds these are all that the other clients have on their way, and as many more
/// that reach the stats meanwhile. A batch that starves sees all of the storm's 24,000 calls.
const WAITED_FOR_MAX: u64 = 32 * (STORM_BATCH * STORM_CLIENTS) as u64;

/// Half of the calls touch several partitions; the other half, each of one partition, must get through. The bound is in calls
/// that are served meanwhile, which no machine's speed moves.
#[test]
fn a_storm_of_multi_partition_calls_starves_no_one() {
    let database = open(None, 4, 2, LogPolicy::None);
    deploy(&database);
    let (served, waited_for) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let storm = (0..STORM_CLIENTS).map(|number| {
        let mut mix = Mix::new(9, number, 64, if number < 3 { 100 } else { 0 });
        mix.all_permille = 0;
        let client = Counted {
            local: Local(database.router().clone()),
            served: served.clone(),
            waited_for: waited_for.clone(),
        };
        (client, mix.take(4_000).collect())
    });
    let history = history_of(storm.collect(), STORM_BATCH);
    assert_eq!(history.len(), STORM_CLIENTS * 4_000);
    check_ids(&history, "seed 9");
    assert_eq!(database.router().status().waiting, 0);
    let stats = database.router().rendezvous();
    assert!(stats.rendezvous > 0 && stats.txns >= stats.rendezvous, "{stats:?}");
    let waited_for = waited_for.load(Ordering::SeqCst);
    println!(
        "one batch waited for {waited_for} calls; {} calls in {} rendezvous",
        stats.txns, stats.rendezvous
    );
    assert!(
        waited_for <= WAITED_FOR_MAX,
        "a batch waited while {waited_for} calls were served"
    );
}

/// A client that counts the calls served while a batch waits, at most.
struct Counted {
    local: Local,
    served: Arc<AtomicU64>,
    waited_for: Arc<AtomicU64>,
}

impl Client for Counted {
    fn call(&mut self, ops: &[Op]) -> Vec<(Ret, TxnId)> {
        let (answers, waited_for) = self.local.call_counted(ops, &self.served);
        self.waited_for.fetch_max(waited_for, Ordering::SeqCst);
        answers
    }
}

/// More calls than may wait, of one and of two partitions, while the partitions are busy. Each gets its result or a refusal, and afterwards
/// nothing counts as waiting.
#[test]
fn overload_is_refused_and_nothing_is_left_waiting() {
    let database = open(None, 4, 2, LogPolicy::None);
    deploy(&database);
    let router = database.router();
    let deployed = router.deployed();
    let module = &deployed.current["registers"];
    let (sender, receiver) = std::sync::mpsc::channel();
    let submit = |op: &Op| {
        let mut batch = BatchBuilder::new(deployed.clone(), router);
        let (number, _) = module.procedure(op.procedure()).expect("one of the module's");
        let encode = |out: &mut Vec<u8>| {
            op.encode(out);
            Ok::<(), ()>(())
        };
        batch.push(module, number, None, encode).expect("encoded");
        let sender = sender.clone();
        let done = move |reply: reprise_router::BatchReply| {
            let _ = sender.send(reply.get(0).outcome.clone()); // the test may have failed already
        };
        router.submit(batch, Box::new(done));
    };
    let long: Vec<i64> = (0..100_000).map(|at| at % 2).collect();
    let flood: Vec<Op> = Mix::new(3, 0, 4, 30).take(40_000).collect();
    let (mut most, mut refused) = (0, 0);
    // One turn is enough, unless this thread stands still while the engine's threads go on.
    for _ in 0..20 {
        (0..20).for_each(|_| submit(&Op::Read(long.clone())));
        for op in &flood {
            submit(op);
            most = most.max(router.status().waiting);
        }
        let answers = (0..flood.len() + 20).map(|_| receiver.recv().expect("every call is answered"));
        refused += answers
            .filter(|outcome| matches!(outcome, ReplyOutcome::Overloaded { .. }))
            .count();
        if refused > 0 {
            break;
        }
    }
    assert!(refused > 0, "{most} waited at most");
    assert!(most <= 4 * 5_000, "{most} waited");
    assert_eq!(router.status().waiting, 0);
    all_of(&database);
}

/// Calls that one client sends ahead, a batch each, while others keep the partitions busy. Each sees the results of those before it,
/// whether they are of one partition or of several.
#[test]
fn batches_of_one_stream_keep_their_order() {
    let database = open(None, 4, 2, LogPolicy::None);
    deploy(&database);
    let router = database.router();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let ops: Vec<Op> = Mix::new(11, 0, 8, 40).take(3_000).collect();
    std::thread::scope(|scope| {
        for first in 0..2 {
            let (mut local, is_over) = (Local(router.clone()), &is_over);
            scope.spawn(move || {
                let reads = [Op::Read(vec![first, first + 1]), Op::Read(vec![first])];
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    local.call(&reads);
                }
            });
        }
        let (stream, deployed) = (router.new_stream(), router.deployed());
        let module = &deployed.current["registers"];
        let answers = ops.iter().map(|op| {
            let mut batch = BatchBuilder::new(deployed.clone(), router).in_stream(stream);
            let procedure = module.procedure(op.procedure()).expect("one of the module's").0;
            let encode = |out: &mut Vec<u8>| {
                op.encode(out);
                Ok::<(), ()>(())
            };
            batch.push(module, procedure, None, encode).expect("encoded");
            let (sender, receiver) = std::sync::mpsc::channel();
            let done = move |reply| sender.send(reply).expect("received below");
            router.submit(batch, Box::new(done));
            receiver
        });
        let answers: Vec<_> = answers.collect();
        let mut model = Model::default();
        for (op, answer) in ops.iter().zip(answers) {
            let reply: reprise_router::BatchReply = answer.recv().expect("every call is answered");
            let call = reply.get(0);
            if *call.outcome == ReplyOutcome::Committed {
                let ret = op.decode(call.result).expect("its result");
                assert_eq!(model.apply(op), ret, "{op:?}");
            }
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
