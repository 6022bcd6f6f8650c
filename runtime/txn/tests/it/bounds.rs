//! The limits of one transaction, on one partition and over several, and the far higher ceiling at a replay.
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::bed::{Procedure, deployed};
use reprise_abi::{
    EndReason, Field, HostOps, IndexTarget, OpError, RowLayout, ScalarType, ScanFlags, ScanRequest,
    calls::{HANDLE_NONE, PackedItems},
};
use reprise_base::{PartitionId, TxnId, limits::WRITE_SET_BYTES_MAX};
use reprise_env::Clock;
use reprise_storage::{Rid, Store, TableId};
use reprise_txn::{CallEnds, Failure, ModuleId, Outcome, TxnInput, TxnScratch, run_multi, run_single};

/// A table of rows placed by `w` without a key, so that only the row says where it belongs, and a table of texts.
const SCHEMA: &str = r#"{"abi":1,
  "tables":[
    {"name":"keyless","columns":[{"name":"w","type":"i64"}],"primary_key":[],"placement":{"by":"w"}},
    {"name":"texts","columns":[{"name":"k","type":"u32"},{"name":"n","type":"i64"},{"name":"text","type":"bytes"}],
     "primary_key":["k"],"placement":"local"}],
  "procedures":[{"name":"p","params":[],"returns":"unit","partitioning":"all"}]}"#;
const KEYLESS: u16 = 0;
const TEXTS: u16 = 1;

/// How a procedure ends on partition 0 of two, and over both; the rows of each table that it left.
fn run(
    frame: &mut TxnScratch,
    mut procedure: impl FnMut(&mut dyn HostOps) -> Result<(), OpError>,
) -> [(Outcome, u64); 2] {
    [false, true].map(|several| {
        let mut stores = [Store::new(), Store::new()];
        let deployed = deployed(SCHEMA, &mut stores);
        let input = TxnInput {
            txn_id: TxnId(2),
            secret: [0; 2],
            partitions_count: 2,
            module: deployed.module(ModuleId(0)).unwrap(),
            procedure: 0,
            args: &[],
            caller: None,
        };
        let mut executor = Procedure(&mut procedure);
        let outcome = match several {
            false => run_single(&mut stores[0], PartitionId(0), &input, &mut executor, frame),
            true => {
                let ids = [0, 1].map(PartitionId).into_iter();
                let mut held: Vec<_> = ids.zip(&mut stores).collect();
                run_multi(&mut held, &input, &mut executor, frame)
            }
        };
        let (mut rows, tables) = (0, [KEYLESS, TEXTS].map(TableId));
        for store in &stores {
            rows += tables
                .iter()
                .map(|table| store.rids_from(*table, Rid(0)).count())
                .sum::<usize>();
        }
        (outcome, rows as u64)
    })
}

fn text_row(k: u32, bytes: usize) -> Vec<u8> {
    let types = [
        (ScalarType::U32, false),
        (ScalarType::I64, false),
        (ScalarType::Bytes, false),
    ];
    let layout = RowLayout::from_types(types.into_iter());
    layout.build(&[Field::Uint(k.into()), Field::Int(0), Field::Bytes(&vec![7; bytes])])
}

fn limit_of(outcome: &Outcome) -> Option<&str> {
    match outcome {
        Outcome::Fail(Failure::Limit { limit, .. }) => Some(limit),
        _ => None,
    }
}

const ROW_BYTES: usize = 512 << 10;
const ROWS_TOO_MANY: u32 = (WRITE_SET_BYTES_MAX / ROW_BYTES) as u32 + 2;

#[test]
fn writes_have_a_bound_in_bytes() {
    let inserts = |ops: &mut dyn HostOps| {
        for k in 0..ROWS_TOO_MANY {
            ops.insert(TEXTS, &text_row(k, ROW_BYTES))?;
        }
        Ok(())
    };
    // A short value written into a long row keeps the row as it was, to be put back.
    let patches = |ops: &mut dyn HostOps| {
        let handle = ops.insert(TEXTS, &text_row(1, ROW_BYTES))?;
        for k in 0..2 * ROWS_TOO_MANY {
            ops.update(handle, &text_row(1, ROW_BYTES + k as usize))?;
        }
        Ok(())
    };
    let additions = |ops: &mut dyn HostOps| {
        let handle = ops.insert(TEXTS, &text_row(1, 1))?;
        for _ in 0..WRITE_SET_BYTES_MAX / 32 + 1 {
            ops.add(handle, 1, 1)?;
        }
        Ok(())
    };
    // Writes that are taken back count no more.
    let taken_back = |ops: &mut dyn HostOps| {
        let savepoint = ops.savepoint()?;
        for k in 0..2 * ROWS_TOO_MANY {
            ops.insert(TEXTS, &text_row(k, ROW_BYTES))?;
            ops.rollback_to(savepoint)?;
        }
        Ok(())
    };
    let mut frame = TxnScratch::default();
    for (outcome, rows) in [
        run(&mut frame, inserts),
        run(&mut frame, patches),
        run(&mut frame, additions),
    ]
    .concat()
    {
        assert_eq!((limit_of(&outcome), rows), (Some("write_set"), 0), "{outcome:?}");
    }
    for (outcome, _) in run(&mut frame, taken_back) {
        assert!(matches!(outcome, Outcome::Commit(_)), "{outcome:?}");
    }
    frame.begin_replay();
    for (outcome, rows) in run(&mut frame, inserts) {
        assert!(
            matches!(outcome, Outcome::Commit(_)),
            "a replay is given more: {outcome:?}"
        );
        assert_eq!(rows, u64::from(ROWS_TOO_MANY));
    }
}

#[test]
fn an_addition_moves_no_row_to_another_partition() {
    let row = 4_i64.to_le_bytes();
    for (delta, is_kept) in [(2, true), (1, false)] {
        let add = |ops: &mut dyn HostOps| {
            let layout = RowLayout::from_types([(ScalarType::I64, false)].into_iter());
            let handle = ops.insert(KEYLESS, &layout.build(&[Field::Int(i64::from_le_bytes(row))]))?;
            ops.add(handle, 0, delta).map(|_| ())
        };
        for (outcome, rows) in run(&mut TxnScratch::default(), add) {
            assert_eq!(matches!(outcome, Outcome::Commit(_)), is_kept, "{outcome:?}");
            assert_eq!(rows, u64::from(is_kept));
        }
    }
}

/// A clock that advances by a millisecond with each look.
#[derive(Default)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now_us(&self) -> i64 {
        0
    }
    fn monotonic_ns(&self) -> u64 {
        self.0.fetch_add(1_000_000, Ordering::Relaxed)
    }
}

#[test]
fn long_host_calls_ask_whether_they_may_go_on() {
    let clock: Arc<dyn Clock> = Arc::new(Ticking::default());
    let target = IndexTarget { table: TEXTS, index: 0 };
    let fill =
        |ops: &mut dyn HostOps, rows: u32| (0..rows).try_for_each(|k| ops.insert(TEXTS, &text_row(k, 1)).map(|_| ()));
    let keys: Vec<u8> = (0..60_000_u32)
        .flat_map(|k| [4_u32.to_le_bytes(), k.to_be_bytes()].concat())
        .collect();
    let looks_up = |ops: &mut dyn HostOps| {
        ops.multi_get(target, PackedItems::to_end(&keys).unwrap(), &mut |handle, _| {
            assert_eq!(handle, HANDLE_NONE)
        })
    };
    let all = ScanRequest {
        target,
        flags: ScanFlags(0),
        limit: 0,
        lower: &[],
        upper: &[],
    };
    let counts = |ops: &mut dyn HostOps| {
        fill(ops, 40_000)?;
        ops.count(&all).map(|_| ())
    };
    let scans = |ops: &mut dyn HostOps| {
        fill(ops, 5_000)?;
        ops.scan(&all, &mut |_, _| true).map(|_| ())
    };
    type Run<'p> = &'p dyn Fn(&mut dyn HostOps) -> Result<(), OpError>;
    // Each asks at least this many times. With a shorter time it ends.
    for (procedure, asks) in [
        (&looks_up as Run<'_>, 3_u32),
        (&counts as Run<'_>, 40),
        (&scans as Run<'_>, 8),
    ] {
        let mut frame = TxnScratch::default();
        frame.begin_running();
        frame.watch.begin_batch(&clock, None);
        frame.watch.begin_call(0, asks, 0);
        for (outcome, rows) in run(&mut frame, procedure) {
            assert_eq!((limit_of(&outcome), rows), (Some("time"), 0), "{outcome:?}");
        }
        frame.begin_replay();
        for (outcome, _) in run(&mut frame, procedure) {
            assert!(matches!(outcome, Outcome::Commit(_)), "{outcome:?}");
        }
    }
}

#[test]
fn ended_call_leaves_nothing() {
    let clock: Arc<dyn Clock> = Arc::new(Ticking::default());
    let ends = Arc::new(CallEnds::default());
    let mut frame = TxnScratch::default();
    frame.watch.begin_batch(&clock, Some(&ends));
    frame.watch.begin_call(3, 0, 0);
    let insert_and_wait = |ops: &mut dyn HostOps| {
        ops.insert(TEXTS, &text_row(1, 1))?;
        ends.end(3);
        ops.go_on()
    };
    for (outcome, rows) in run(&mut frame, insert_and_wait) {
        assert_eq!(outcome, Outcome::Fail(Failure::Ended(EndReason::Cancelled)));
        assert_eq!(rows, 0);
    }
}
