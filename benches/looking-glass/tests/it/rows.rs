//! After the same calls, every build has the rows of our engine. A call that is rolled back leaves none.

use std::{sync::Mutex, thread};

use reprise_bench_looking_glass::{
    bars::{ADDING, REMOVAL, builds},
    digest::RowsDigest,
    lock::LockError,
    ours::Ours,
    parts::{ALL, LATCHES, LOCKS, LSNS, MAIN_LOG, SMALL_PAGES},
    run::{Bar, run as run_bar},
    txn::{TxnEnd, Worker},
    work::{Call, Calls, Kind, Scale},
};

use crate::{engine, run, tiny};

fn ours(calls: &Calls, more: &[Call]) -> RowsDigest {
    let mut ours = Ours::open(None).expect("the module fits");
    for call in calls.all().chain(more) {
        assert!(ours.run(call), "a call of the run commits");
    }
    ours.digest()
}

#[test]
fn every_engine_has_our_rows_after_the_same_calls() {
    let calls = tiny();
    let expected = ours(&calls, &[]);
    assert!(expected.rows() > 50_000);
    let builds = [ALL, 0, builds(&REMOVAL)[4], builds(&ADDING)[4]];
    for bar in builds.map(Bar::Paged).into_iter().chain([Bar::Redb]) {
        let report = run_bar(&bar, &calls, Scale::TINY).expect("a run");
        assert_eq!(report.digest, expected, "{bar:?}");
    }
}

/// The transactions beside the two, so that deliveries and reads run here too.
fn others(calls: &Calls) -> Vec<Call> {
    let last = calls.run.last().map_or(0, |(_, call)| call.txn_id);
    let district = |w_id: i16, d_id: u8| [&w_id.to_le_bytes()[..], &[d_id]].concat();
    let named = [district(1, 1), vec![1], 7_i32.to_le_bytes().to_vec(), vec![0]].concat();
    let stock = [district(1, 1), 15_i16.to_le_bytes().to_vec()].concat();
    let all = [
        ("delivery", district(1, 3)),
        ("order_status", named),
        ("stock_level", stock),
        ("delivery", district(1, 4)),
    ];
    let call = |at: usize, name: &str, args: Vec<u8>| Call {
        procedure: tpcc::MODULE.procedure_index(name).expect("a procedure"),
        txn_id: last + (at as u64 + 1) * 1_024,
        args,
    };
    let calls = all.into_iter().enumerate();
    calls.map(|(at, (name, args))| call(at, name, args)).collect()
}

#[test]
fn all_five_transactions_of_tpcc_run_as_on_ours() {
    let calls = tiny();
    let others = others(&calls);
    let engine = engine::<ALL>(Scale::TINY.frames(), 8);
    let mut worker = Worker::new(&engine);
    for call in calls.all().chain(&others) {
        assert_eq!(run(&mut worker, call), TxnEnd::Committed);
    }
    engine.check().expect("a whole engine");
    assert_eq!(engine.digest(), ours(&calls, &others));
}

/// The order of the tiny run, with an item that there is not.
fn unknown_item(calls: &Calls) -> Call {
    let (_, call) = calls
        .run
        .iter()
        .find(|(kind, _)| *kind == Kind::NewOrder)
        .expect("orders");
    let mut call = call.clone();
    let last = 2 + 1 + 4 + 1 + 9 * 4;
    call.args[last..last + 4].copy_from_slice(&200_000_i32.to_le_bytes());
    call
}

#[test]
fn an_order_of_an_unknown_item_leaves_nothing() {
    const RECORDS: u32 = MAIN_LOG | LSNS | SMALL_PAGES;
    let calls = tiny();
    let engine = engine::<RECORDS>(Scale::TINY.frames(), 8);
    let mut worker = Worker::new(&engine);
    for call in &calls.load {
        assert_eq!(run(&mut worker, call), TxnEnd::Committed);
    }
    let before = engine.digest();
    let ended = run(&mut worker, &unknown_item(&calls));
    assert_eq!(ended, TxnEnd::Aborted("item_not_found".into()));
    engine.check().expect("a whole engine");
    assert_eq!(engine.digest(), before);
}

#[test]
fn a_build_without_records_says_that_it_rolls_nothing_back() {
    let calls = tiny();
    let engine = engine::<0>(Scale::TINY.frames(), 8);
    let mut worker = Worker::new(&engine);
    for call in &calls.load {
        assert_eq!(run(&mut worker, call), TxnEnd::Committed);
    }
    let TxnEnd::Failed(text) = run(&mut worker, &unknown_item(&calls)) else {
        panic!("it cannot be rolled back");
    };
    assert!(text.contains("without log records"), "{text}");
}

#[test]
fn a_transaction_that_meets_a_lock_gives_way_and_runs_after_it() {
    const LOCKED: u32 = LOCKS | MAIN_LOG | LSNS;
    let calls = tiny();
    let engine = engine::<LOCKED>(Scale::TINY.frames(), 8);
    let mut worker = Worker::new(&engine);
    for call in &calls.load {
        assert_eq!(run(&mut worker, call), TxnEnd::Committed);
    }
    let before = engine.digest();
    let (_, payment) = calls
        .run
        .iter()
        .find(|(kind, _)| *kind == Kind::Payment)
        .expect("payments");
    let (_, order) = &calls.run[0];
    worker.begin(payment.txn_id, &payment.args);
    tpcc::MODULE.call(payment.procedure, &mut worker).expect("it runs");
    let mut second = Worker::new(&engine);
    assert_eq!(
        run(&mut second, order),
        TxnEnd::Locked(LockError::Held),
        "the warehouse is locked"
    );
    worker.roll_back().expect("records");
    assert_eq!(engine.digest(), before, "neither left anything");
    assert_eq!(run(&mut second, order), TxnEnd::Committed);
    engine.check().expect("a whole engine, without locks");
}

#[test]
fn threads_run_transactions_that_wait_for_each_other() {
    const THREADED: u32 = ALL & !reprise_bench_looking_glass::parts::DISK_LOG;
    const { assert!(THREADED & LATCHES != 0 && THREADED & LOCKS != 0) };
    let calls = tiny();
    let engine = engine::<THREADED>(Scale::TINY.frames(), 8);
    let mut worker = Worker::new(&engine);
    for call in &calls.load {
        assert_eq!(run(&mut worker, call), TxnEnd::Committed);
    }
    let before = engine.digest().rows();
    let shared = engine.share();
    let next = Mutex::new(calls.run.iter());
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut worker = Worker::new(shared.get());
                loop {
                    let taken = next.lock().expect("no thread fails").next();
                    let Some((_, call)) = taken else { return };
                    loop {
                        match run(&mut worker, call) {
                            TxnEnd::Committed => break,
                            TxnEnd::Locked(LockError::Deadlock) => {}
                            other => panic!("{other:?}"),
                        }
                    }
                }
            });
        }
    });
    engine.check().expect("a whole engine");
    let (orders, payments) = (100, 100);
    assert_eq!(engine.digest().rows(), before + orders * 12 + payments);
}
