//! Rows by many keys in one call are the rows by one key each.

use std::sync::Arc;

use reprise_abi::{
    HostOps, OpError, Target,
    calls::{HANDLE_NONE, Packed},
};
use reprise_base::{PartitionId, TxnId};
use reprise_host::{CallEnd, CallOutcome, Fault, describe};
use reprise_storage::Store;
use reprise_txn::{
    Candidate, Code, Deployed, Executor, Frame, ModuleId, Outcome, TxnInput, apply, plan,
    run_single,
};

const SCHEMA: &str = r#"{"abi":1,
  "tables":[{"name":"t","columns":[{"name":"k","type":"u32"},{"name":"v","type":"u32"}],
    "primary_key":["k"],"placement":"local"}],
  "procedures":[{"name":"p","params":[],"returns":"unit","partitioning":"all"}]}"#;

struct NoCode;

impl Code for NoCode {
    fn instantiate(&self) -> Result<Box<dyn Executor>, String> {
        Err("runs in the test".into())
    }
}

/// A procedure written against the host calls.
struct Procedure<F>(F);

impl<F: FnMut(&mut dyn HostOps) -> Result<(), OpError>> Executor for Procedure<F> {
    fn call(&mut self, _: usize, ops: &mut dyn HostOps) -> CallOutcome {
        let ended = (self.0)(ops).map(|()| CallEnd::Returned);
        CallOutcome {
            kind: ended.map_err(|error| Fault::guest(format!("{error:?}"))),
            fuel_used: 0,
        }
    }
}

fn packed(items: &[Vec<u8>]) -> Vec<u8> {
    let with_length = |item: &Vec<u8>| [&(item.len() as u32).to_le_bytes()[..], item].concat();
    items.iter().flat_map(with_length).collect()
}

fn procedure(ops: &mut dyn HostOps) -> Result<(), OpError> {
    let layout =
        reprise_abi::RowLayout::from_types([(reprise_abi::ScalarType::U32, false); 2].into_iter());
    let row = |k: u32| {
        layout.build(&[
            reprise_abi::Field::Uint(k.into()),
            reprise_abi::Field::Uint(7),
        ])
    };
    let rows: Vec<_> = (0..100).map(|at| row(at * 3)).collect();
    let bytes = packed(&rows);
    let first = ops.multi_insert(0, Packed::new(&bytes, 100).expect("whole items"))?;
    assert_eq!(first, 0);
    let twice = packed(&[row(1), row(6), row(2)]);
    let refused = ops.multi_insert(0, Packed::new(&twice, 3).expect("whole items"));
    assert_eq!(refused, Err(OpError::DuplicateKey { index: 0 }));

    let target = Target { table: 0, index: 0 };
    let keys: Vec<_> = (0..10_u32).map(|k| k.to_be_bytes().to_vec()).collect();
    let bytes = packed(&keys);
    let mut found = Vec::new();
    let keys_packed = Packed::new(&bytes, 10).expect("whole items");
    ops.multi_get(target, keys_packed, &mut |handle, row| {
        found.push((handle, row.to_vec()))
    })?;
    assert_eq!(found.len(), keys.len());
    for (key, (handle, many)) in keys.iter().zip(&found) {
        match ops.get(target, key)? {
            Some((_, one)) => {
                assert_eq!(one, many);
                assert_eq!(ops.row(*handle)?, many);
            }
            None => assert!(*handle == HANDLE_NONE && many.is_empty()),
        }
    }
    let there: Vec<_> = found
        .iter()
        .map(|(handle, _)| *handle != HANDLE_NONE)
        .collect();
    // Key 1 was inserted before the key that was taken; key 2 after it was not.
    let expected = [
        true, true, false, true, false, false, true, false, false, true,
    ];
    assert_eq!(there, expected);
    let nowhere = ops.multi_get(Target { table: 1, index: 0 }, keys_packed, &mut |_, _| ());
    assert!(matches!(nowhere, Err(OpError::Guest(_))));
    Ok(())
}

#[test]
fn many_keys_find_what_each_finds() {
    let mut store = Store::new();
    let schema = describe::from_json(SCHEMA.as_bytes()).expect("a description");
    let candidate = Candidate {
        name: "m".into(),
        hash: [0; 32],
        wasm_bytes: 0,
        schema,
        code: Arc::new(NoCode),
    };
    let before = Deployed::default();
    let steps = plan(&before, &candidate, &[&store]).expect("no conflict");
    let deployed = apply(&before, candidate, steps, TxnId(1), &mut [&mut store]);
    let input = TxnInput {
        txn_id: TxnId(2),
        secret: [0; 2],
        partitions_count: 1,
        module: deployed.module(ModuleId(0)).expect("deployed"),
        procedure: 0,
        args: &[],
    };
    let (mut executor, mut frame) = (Procedure(procedure), Frame::default());
    let outcome = run_single(
        &mut store,
        PartitionId(0),
        &input,
        &mut executor,
        &mut frame,
    );
    assert!(matches!(outcome, Outcome::Commit(_)), "{outcome:?}");
}
