//! Rows by many keys in one call are the rows by one key each.

use crate::bed::{Procedure, deployed};
use reprise_abi::{
    ColumnPlan, ColumnSet, FixedSlots, Handles, HostOps, IndexTarget, OpError, RowHandle, ScanFlags, ScanRequest,
    calls::{EqualKeys, HANDLE_NONE, PackedItems, look_up_rows, scan_rows},
};
use reprise_base::{PartitionId, TxnId};
use reprise_storage::Store;
use reprise_txn::{Deployed, Failure, ModuleId, Outcome, TxnInput, TxnScratch, run_multi, run_single};

const SCHEMA: &str = r#"{"abi":1,
  "tables":[{"name":"t","columns":[{"name":"k","type":"u32"},{"name":"v","type":"u32"}],
    "primary_key":["k"],"placement":"local"}],
  "procedures":[{"name":"p","params":[],"returns":"unit","partitioning":"all"}]}"#;

fn packed(items: &[Vec<u8>]) -> Vec<u8> {
    let with_length = |item: &Vec<u8>| [&(item.len() as u32).to_le_bytes()[..], item].concat();
    items.iter().flat_map(with_length).collect()
}

/// Returns the handle of each key's row, after a comparison with look-ups of one key each.
fn check_gets(
    ops: &mut dyn HostOps,
    target: IndexTarget,
    packed: PackedItems<'_>,
    keys: &[Vec<u8>],
) -> Result<Vec<RowHandle>, OpError> {
    let mut found = Vec::new();
    ops.multi_get(target, packed, &mut |handle, row| found.push((handle, row.to_vec())))?;
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
    Ok(found.into_iter().map(|(handle, _)| handle).collect())
}

fn procedure(ops: &mut dyn HostOps) -> Result<(), OpError> {
    let layout = reprise_abi::RowLayout::from_types([(reprise_abi::ScalarType::U32, false); 2].into_iter());
    let row = |k: u32| layout.build(&[reprise_abi::Field::Uint(k.into()), reprise_abi::Field::Uint(7)]);
    let rows: Vec<_> = (0..100).map(|at| row(at * 3)).collect();
    let bytes = packed(&rows);
    let first = ops.multi_insert(0, PackedItems::new(&bytes, 100).expect("whole items"))?;
    assert_eq!(first, 0);
    let twice = packed(&[row(1), row(6), row(2)]);
    let refused = ops.multi_insert(0, PackedItems::new(&twice, 3).expect("whole items"));
    assert_eq!(refused, Err(OpError::DuplicateKey { index: 0 }));

    let target = IndexTarget { table: 0, index: 0 };
    let keys: Vec<_> = (0..10_u32).map(|k| k.to_be_bytes().to_vec()).collect();
    let bytes = packed(&keys);
    let keys_packed = PackedItems::new(&bytes, 10).expect("whole items");
    let found = check_gets(ops, target, keys_packed, &keys)?;
    let there: Vec<_> = found.iter().map(|handle| *handle != HANDLE_NONE).collect();
    // Key 1 was inserted before the key that was taken; key 2 after it was not.
    let expected = [true, true, false, true, false, false, true, false, false, true];
    assert_eq!(there, expected);
    let nowhere = ops.multi_get(IndexTarget { table: 1, index: 0 }, keys_packed, &mut |_, _| ());
    assert!(matches!(nowhere, Err(OpError::Guest(_))));
    Ok(())
}

/// The contents of a run of `[handle][len][columns]`: the columns, and the rows that the handles name.
fn told(ops: &mut dyn HostOps, mut run: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, OpError> {
    let mut told = Vec::new();
    while let Some((header, rest)) = run.split_first_chunk::<8>() {
        let header = u64::from_le_bytes(*header);
        let (columns, rest) = rest.split_at((header >> 32) as usize);
        let row = match header as u32 {
            HANDLE_NONE => Vec::new(),
            handle => ops.row(handle)?.to_vec(),
        };
        told.push((columns.to_vec(), row));
        run = rest;
    }
    Ok(told)
}

/// A scan from its beginning to its end, in buffers of this many bytes, by columns or by whole rows.
fn scanned(
    ops: &mut dyn HostOps,
    request: &ScanRequest<'_>,
    plan: &ColumnPlan,
    bytes: usize,
    by_rows: bool,
) -> Result<Vec<Vec<(Vec<u8>, Vec<u8>)>>, OpError> {
    let (mut out, mut batches) = (vec![0; bytes], Vec::new());
    let (mut batch, mut filled) = match by_rows {
        true => scan_rows(plan, &mut out, |visit| ops.scan(request, visit))?,
        false => ops.scan_columns(request, plan, &mut out)?,
    };
    loop {
        let rows = told(ops, &out[..filled])?;
        assert_eq!(rows.len(), batch.rows as usize);
        batches.push(rows);
        if batch.cursor == 0 {
            return Ok(batches);
        }
        let cursor = batch.cursor;
        (batch, filled) = match by_rows {
            true => scan_rows(plan, &mut out, |visit| ops.scan_next(cursor, visit))?,
            false => ops.scan_next_columns(cursor, plan, &mut out)?,
        };
    }
}

fn columns_by_both_ways(ops: &mut dyn HostOps) -> Result<(), OpError> {
    let types = [(reprise_abi::ScalarType::U32, false); 2];
    let layout = reprise_abi::RowLayout::from_types(types.into_iter());
    for k in 0..100_u32 {
        let fields = [k.into(), (7 * k).into()].map(reprise_abi::Field::Uint);
        ops.insert(0, &layout.build(&fields))?;
    }
    let target = IndexTarget { table: 0, index: 0 };
    let key = |k: u32| k.to_be_bytes();
    for set in [0b01, 0b10, 0b11] {
        let plan = ColumnPlan::new(&layout, ColumnSet(set));
        let each = 8 + plan.fixed_bytes();
        for (lower, upper, limit) in [
            (0, 99, 0),
            (0, 99, 1),
            (3, 72, 0),
            (3, 72, 40),
            (5, 36, 32),
            (9, 8, 0),
            (200, 300, 1),
        ] {
            for (flags, rows) in [(0, 100), (4, 100), (3, 1), (4, 32), (0, 33), (7, 7)] {
                let request = ScanRequest {
                    target,
                    flags: ScanFlags(flags),
                    limit,
                    lower: &key(lower),
                    upper: &key(upper),
                };
                let bytes = rows * each + 3;
                let expected = scanned(ops, &request, &plan, bytes, true)?;
                let found = scanned(ops, &request, &plan, bytes, false)?;
                assert_eq!(found, expected, "{set} {lower}..{upper} {limit} {flags} {rows}");
            }
        }
        let keys: Vec<_> = (60..140_u32).rev().map(|k| key(k).to_vec()).collect();
        let bytes = packed(&keys);
        let keys = PackedItems::to_end(&bytes).expect("whole items");
        let mut out = vec![0; 80 * each];
        let needed = look_up_rows(ops, target, keys, &plan, &mut out)?;
        let expected = told(ops, &out[..needed])?;
        out.fill(1);
        assert_eq!(ops.multi_get_columns(target, keys, &plan, &mut out)?, needed);
        assert_eq!(told(ops, &out[..needed])?, expected);
        let short = ops.multi_get_columns(target, keys, &plan, &mut out[..each - 1])?;
        assert_eq!(short, needed, "what it takes is said where there is no room");
        let unpacked: Vec<u8> = (60..140_u32).rev().flat_map(|k| key(k).to_vec()).collect();
        let found = in_slots(ops, target, (&unpacked, 80), &plan)?;
        assert_eq!(told(ops, &found)?, expected);
    }
    let plan = ColumnPlan::new(&layout, ColumnSet(1));
    let forged = ScanRequest {
        target,
        flags: ScanFlags(64),
        limit: 0,
        lower: &[],
        upper: &[],
    };
    assert!(matches!(
        ops.scan_columns(&forged, &plan, &mut []),
        Err(OpError::Guest(_))
    ));
    assert!(matches!(
        ops.scan_next_columns(9, &plan, &mut []),
        Err(OpError::Guest(_))
    ));
    Ok(())
}

#[test]
fn columns_of_many_rows_are_those_of_whole_rows() {
    check(columns_by_both_ways);
}

#[test]
fn many_keys_find_what_each_finds() {
    check(procedure);
}

/// The results of `multi_get_slots`, in the form of `multi_get_columns`.
fn in_slots(
    ops: &mut dyn HostOps,
    target: IndexTarget,
    (keys, count): (&[u8], usize),
    plan: &ColumnPlan,
) -> Result<Vec<u8>, OpError> {
    let each = 8 + plan.fixed_bytes() + 3;
    let mut out = vec![1; count * each];
    let slots = FixedSlots::new(plan, &mut out, count).expect("slots");
    let keys = EqualKeys::new(keys, count).expect("keys of one length");
    assert_eq!(ops.multi_get_slots(target, keys, slots)?, 0);
    let row = |slot: &[u8]| {
        let bytes = u32::from_le_bytes(slot[4..8].try_into().expect("4 bytes"));
        slot[..8 + bytes as usize].to_vec()
    };
    Ok(out.chunks(each).flat_map(row).collect())
}

/// Rows of warehouses 0, 1, 3 and 4; those of partition 2 of three are not held.
fn several_by_both_ways(ops: &mut dyn HostOps) -> Result<(), OpError> {
    let types = [(reprise_abi::ScalarType::U32, false); 3];
    let layout = reprise_abi::RowLayout::from_types(types.into_iter());
    let row = |w: u32, k: u32| layout.build(&[w, k, 100 * w + k].map(|x| reprise_abi::Field::Uint(x.into())));
    let key = |w: u32, k: u32| [w.to_be_bytes(), k.to_be_bytes()].concat();
    let held = [0, 1, 3, 4];
    let rows: Vec<_> = (0..200).map(|at| row(held[at % 4], at as u32 / 4)).collect();
    let bytes = packed(&rows);
    ops.multi_insert(0, PackedItems::new(&bytes, 200).expect("whole items"))?;

    let target = IndexTarget { table: 0, index: 0 };
    let keys: Vec<_> = (0..90_u32)
        .map(|at| key(held[at as usize / 4 % 4], at * 7 % 60))
        .collect();
    let bytes = packed(&keys);
    let keys_packed = PackedItems::new(&bytes, 90).expect("whole items");
    let found = check_gets(ops, target, keys_packed, &keys)?;
    let there = found.iter().filter(|handle| **handle != HANDLE_NONE).count();
    assert!((60..90).contains(&there), "{there}");

    let columns = ColumnSet(0b100);
    let plan = ColumnPlan::new(&layout, columns);
    let mut out = vec![0; 90 * (8 + plan.fixed_bytes())];
    let needed = look_up_rows(ops, target, keys_packed, &plan, &mut out)?;
    let expected = told(ops, &out[..needed])?;
    assert_eq!(ops.multi_get_columns(target, keys_packed, &plan, &mut out)?, needed);
    assert_eq!(told(ops, &out[..needed])?, expected);
    let in_slots = in_slots(ops, target, (&keys.concat(), 90), &plan)?;
    assert_eq!(told(ops, &in_slots)?, expected);

    let beyond = [(key(2, 0), key(2, 50)), (key(0, 3), key(4, 9))];
    for (lower, upper) in &beyond {
        let request = ScanRequest {
            target,
            flags: ScanFlags(0),
            limit: 0,
            lower,
            upper,
        };
        let refused = ops.count(&request);
        assert!(matches!(refused, Err(OpError::Guest(_))), "{refused:?}");
        let refused = ops.scan(&request, &mut |_, _| true);
        assert!(matches!(refused, Err(OpError::Guest(_))), "{refused:?}");
    }
    assert!(ops.get(target, &beyond[0].0).is_err() && ops.exists(target, &beyond[0].0).is_err());
    for (lower, upper) in [(key(3, 5), key(3, 40)), (key(1, 0), key(1, 50)), (key(0, 3), key(4, 9))] {
        for (limit, rows) in [(0, 100), (1, 100), (0, 7), (20, 9)] {
            let request = ScanRequest {
                target,
                flags: ScanFlags(ScanFlags::LOCAL),
                limit,
                lower: &lower,
                upper: &upper,
            };
            let bytes = rows * (8 + plan.fixed_bytes());
            let expected = scanned(ops, &request, &plan, bytes, true)?;
            assert_eq!(scanned(ops, &request, &plan, bytes, false)?, expected);
        }
    }

    let handles: Vec<_> = found.into_iter().filter(|handle| *handle != HANDLE_NONE).collect();
    let values: Vec<_> = (0..handles.len() as u32)
        .flat_map(|at| (5_000 + at).to_le_bytes())
        .collect();
    ops.multi_patch(0, Handles::Numbers(&handles), columns, 4, &values)?;
    for (at, handle) in handles.iter().enumerate() {
        let expected = 5_000 + at as u64;
        let now = ops.row(*handle)?;
        assert_eq!(layout.field(now, 2), reprise_abi::Field::Uint(expected));
    }
    let moved = ops.multi_patch(0, Handles::Numbers(&handles[..1]), ColumnSet(1), 4, &[1, 0, 0, 0]);
    let stays = layout.field(ops.row(handles[0])?, 0) == reprise_abi::Field::Uint(1);
    assert!(moved.is_err() || stays, "a row does not leave its partition");
    Ok(())
}

const SEVERAL: &str = r#"{"abi":1,
  "tables":[{"name":"t","columns":[{"name":"w","type":"u32"},{"name":"k","type":"u32"},{"name":"v","type":"u32"}],
    "primary_key":["w","k"],"placement":{"by":"w"}}],
  "procedures":[{"name":"p","params":[],"returns":"unit","partitioning":"all"}]}"#;

#[test]
fn several_partitions_answer_for_many_rows_as_for_each() {
    let mut stores = [Store::new(), Store::new(), Store::new()];
    let deployed = deployed(SEVERAL, &mut stores);
    let (mut executor, mut frame) = (Procedure(several_by_both_ways), TxnScratch::default());
    let [first, second, _] = &mut stores;
    let held = &mut [(PartitionId(0), first), (PartitionId(1), second)];
    let outcome = run_multi(held, &input(&deployed, 3), &mut executor, &mut frame);
    assert!(matches!(outcome, Outcome::Commit(_)), "{outcome:?}");
}

fn input(deployed: &Deployed, partitions_count: u16) -> TxnInput<'_> {
    TxnInput {
        txn_id: TxnId(2),
        secret: [0; 2],
        partitions_count,
        module: deployed.module(ModuleId(0)).expect("deployed"),
        procedure: 0,
        args: &[],
        caller: None,
    }
}

/// On one partition, and over several whose rows lie on the first.
fn check(procedure: fn(&mut dyn HostOps) -> Result<(), OpError>) {
    let (mut executor, mut frame) = (Procedure(procedure), TxnScratch::default());
    let mut stores = [Store::new()];
    let one = deployed(SCHEMA, &mut stores);
    let outcome = run_single(
        &mut stores[0],
        PartitionId(0),
        &input(&one, 1),
        &mut executor,
        &mut frame,
    );
    assert!(matches!(outcome, Outcome::Commit(_)), "{outcome:?}");
    let mut stores = [Store::new(), Store::new()];
    let both = deployed(SCHEMA, &mut stores);
    let ids = [0, 1].map(PartitionId).into_iter();
    let mut held: Vec<_> = ids.zip(&mut stores).collect();
    let outcome = run_multi(&mut held, &input(&both, 2), &mut executor, &mut frame);
    assert!(matches!(outcome, Outcome::Commit(_)), "{outcome:?}");
}

const WITH_TEXT: &str = r#"{"abi":1,
  "tables":[{"name":"t","columns":[{"name":"k","type":"u32"},{"name":"label","type":"text"}],
    "primary_key":["k"],"indexes":[{"name":"by_label","columns":["label"]}],"placement":"local"}],
  "procedures":[{"name":"p","params":[],"returns":"unit","partitioning":"all"}]}"#;

#[test]
fn a_key_that_is_too_long_is_told_by_its_columns() {
    let long = |ops: &mut dyn HostOps| {
        let layout = reprise_abi::RowLayout::from_types(
            [
                (reprise_abi::ScalarType::U32, false),
                (reprise_abi::ScalarType::Text, false),
            ]
            .into_iter(),
        );
        let label = "x".repeat(1_025);
        let row = layout.build(&[reprise_abi::Field::Uint(1), reprise_abi::Field::Text(&label)]);
        ops.insert(0, &row).map(drop)
    };
    let mut stores = [Store::new()];
    let deployed = deployed(WITH_TEXT, &mut stores);
    let (input, mut frame) = (input(&deployed, 1), TxnScratch::default());
    let outcome = run_single(&mut stores[0], PartitionId(0), &input, &mut Procedure(long), &mut frame);
    let Outcome::Fail(Failure::Limit { limit, max, message }) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!((&limit[..], max), ("key_bytes", 1_024));
    assert_eq!(
        message,
        "the key in index by_label of m.t, by its column label, is longer than 1024 bytes"
    );
}
