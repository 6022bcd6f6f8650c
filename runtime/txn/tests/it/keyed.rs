//! A write by a row's key has the effect and the digest of a write by its handle.

use crate::bed::{Procedure, deployed};
use reprise_abi::{Field, HostOps, IndexTarget, OpError, RowLayout, ScalarType};
use reprise_base::{PartitionId, TxnId};
use reprise_storage::Store;
use reprise_txn::{Commit, Failure, ModuleId, Outcome, TxnInput, TxnScratch, run_multi, run_single};

type Body = fn(&mut dyn HostOps) -> Result<(), OpError>;

/// One table with a point index of this kind, placed so; procedures 0, and 1 that only reads.
fn schema(kind: &str, placement: &str) -> String {
    format!(
        r#"{{"abi":1,
          "tables":[{{"name":"t","columns":[{{"name":"w","type":"u32"}},{{"name":"k","type":"u32"}},{{"name":"v","type":"u32"}}],
            "primary_key":["w","k"],"primary_kind":"{kind}","placement":{placement}}}],
          "procedures":[{{"name":"p","params":[],"returns":"unit","partitioning":"all"}},
            {{"name":"q","params":[],"returns":"unit","partitioning":"all","read_only":true}}]}}"#
    )
}

const TARGET: IndexTarget = IndexTarget { table: 0, index: 0 };
const V: u16 = 2;

fn key(w: u32, k: u32) -> Vec<u8> {
    [w.to_be_bytes(), k.to_be_bytes()].concat()
}

fn fill(ops: &mut dyn HostOps) -> Result<(), OpError> {
    let layout = RowLayout::from_types([(ScalarType::U32, false); 3].into_iter());
    for at in 0..40_u32 {
        // Some keys are close together and some are alone, as a dense index tells them apart.
        let k = if at % 8 == 0 { at * 100_000 } else { at };
        let fields = [at % 2, k, at].map(|value| Field::Uint(value.into()));
        ops.insert(0, &layout.build(&fields))?;
    }
    Ok(())
}

fn keys() -> impl Iterator<Item = Vec<u8>> {
    (0..40_u32).flat_map(|at| [key(at % 2, at), key(at % 2, at * 100_000)])
}

fn by_handle(ops: &mut dyn HostOps) -> Result<(), OpError> {
    fill(ops)?;
    for (key, delta) in keys().zip(1..) {
        if let Some((handle, _)) = ops.get(TARGET, &key)? {
            ops.add(handle, V, delta)?;
        }
    }
    Ok(())
}

fn by_key(ops: &mut dyn HostOps) -> Result<(), OpError> {
    fill(ops)?;
    let layout = RowLayout::from_types([(ScalarType::U32, false); 3].into_iter());
    for (key, delta) in keys().zip(1..) {
        let before = ops.get(TARGET, &key)?.map(|(_, row)| match layout.field(row, V) {
            Field::Uint(value) => value as i64,
            other => panic!("{other:?}"),
        });
        assert_eq!(ops.exists(TARGET, &key)?, before.is_some());
        let after = ops.add_by_key(TARGET, &key, V, delta)?;
        assert_eq!(after, before.map(|value| value + delta));
        if let Some((handle, _)) = ops.get(TARGET, &key)? {
            assert_eq!(ops.add(handle, V, 0)?, after.unwrap_or(0));
        }
    }
    Ok(())
}

/// The `by_key` variant without the looks that leave writes.
fn by_key_alone(ops: &mut dyn HostOps) -> Result<(), OpError> {
    fill(ops)?;
    for (key, delta) in keys().zip(1..) {
        let is_there = ops.exists(TARGET, &key)?;
        assert_eq!(ops.add_by_key(TARGET, &key, V, delta)?.is_some(), is_there);
    }
    assert_eq!(ops.add_by_key(TARGET, &[0; 7], V, 1), Ok(None), "half a key");
    assert_eq!(ops.exists(TARGET, &[0; 7]), Ok(false));
    Ok(())
}

/// Runs procedures in order, each as the procedure of that number, over this many partitions, all held.
fn run(schema: &str, partitions: u16, calls: &[(usize, Body)]) -> Vec<Result<Commit, Failure>> {
    let mut stores: Vec<_> = (0..partitions).map(|_| Store::new()).collect();
    let deployed = deployed(schema, &mut stores);
    let mut frame = TxnScratch::default();
    let mut outcomes = Vec::new();
    for (procedure, body) in calls {
        let input = TxnInput {
            txn_id: TxnId(2),
            secret: [0; 2],
            partitions_count: partitions,
            module: deployed.module(ModuleId(0)).expect("deployed"),
            procedure: *procedure,
            args: &[],
            caller: None,
        };
        let mut executor = Procedure(body);
        let outcome = match &mut stores[..] {
            [only] => run_single(only, PartitionId(0), &input, &mut executor, &mut frame),
            several => {
                let ids = (0..).map(PartitionId);
                let mut held: Vec<_> = ids.zip(several).collect();
                run_multi(&mut held, &input, &mut executor, &mut frame)
            }
        };
        outcomes.push(match outcome {
            Outcome::Commit(commit) => Ok(commit),
            Outcome::Fail(failure) => Err(failure),
        });
    }
    outcomes
}

fn shapes() -> impl Iterator<Item = (String, u16)> {
    let kinds = ["ordered", "hash", "dense"];
    let placements = [r#"{"by":"w"}"#, r#""local""#, r#""replicated""#];
    kinds.into_iter().flat_map(move |kind| {
        let schemas = placements.into_iter().map(move |placement| schema(kind, placement));
        schemas.flat_map(|schema| [(schema.clone(), 1), (schema, 2)])
    })
}

#[test]
fn a_row_is_added_to_by_its_key_as_by_its_handle() {
    for (schema, partitions) in shapes() {
        let handle = run(&schema, partitions, &[(0, by_handle)]);
        assert!(handle[0].is_ok(), "{schema}: {handle:?}");
        assert_eq!(run(&schema, partitions, &[(0, by_key_alone)]), handle, "{schema}");
        let looked = run(&schema, partitions, &[(0, by_key)]);
        assert!(looked[0].is_ok(), "{schema}: {looked:?}");
    }
}

#[test]
fn a_read_may_ask_for_keys_and_not_add_to_them() {
    let asks: Body = |ops| {
        assert!(ops.exists(TARGET, &key(1, 1))? && !ops.exists(TARGET, &key(0, 1))?);
        assert_eq!(ops.add_by_key(TARGET, &key(0, 1), V, 1)?, None, "nothing is written");
        Ok(())
    };
    let adds: Body = |ops| ops.add_by_key(TARGET, &key(1, 1), V, 1).map(drop);
    for (schema, partitions) in shapes() {
        let ended = run(&schema, partitions, &[(0, fill), (1, asks), (1, adds)]);
        assert!(ended[0].is_ok() && ended[1].is_ok(), "{schema}: {ended:?}");
        let refused = format!("{:?}", ended[2]);
        assert!(refused.contains("read-only"), "{schema}: {refused}");
    }
}

#[test]
fn mistakes_end_the_transaction_and_leave_nothing() {
    let mistakes: [(&str, Body); 5] = [
        ("does not fit", |ops| {
            ops.add_by_key(TARGET, &key(1, 1), V, -2).map(drop)
        }),
        ("part of a key", |ops| {
            ops.add_by_key(TARGET, &key(1, 1), 0, 1).map(drop)
        }),
        ("does not exist", |ops| {
            ops.add_by_key(TARGET, &key(1, 1), 3, 1).map(drop)
        }),
        ("not declared", |ops| {
            ops.add_by_key(IndexTarget { table: 0, index: 1 }, &key(1, 1), V, 1)
                .map(drop)
        }),
        ("not declared", |ops| {
            ops.exists(IndexTarget { table: 1, index: 0 }, &key(1, 1)).map(drop)
        }),
    ];
    for (schema, partitions) in shapes() {
        let untouched = run(&schema, partitions, &[(0, fill)]);
        for (told, mistake) in mistakes {
            let ended = run(&schema, partitions, &[(0, fill), (0, mistake)]);
            let refused = format!("{:?}", ended[1]);
            assert!(
                ended[0] == untouched[0] && refused.contains(told),
                "{schema}: {refused}"
            );
        }
    }
}
