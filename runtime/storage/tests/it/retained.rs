//! Undo that outlives the commit: writes that are not durable can be taken back, turn by turn.

use reprise_abi::{ColumnSchema, Field, IndexSchema, RowLayout, ScalarType, TableSchema};
use reprise_storage::{Store, TableId};

const TABLE: TableId = TableId(0);

fn store() -> Store {
    let mut store = Store::new();
    let schema = TableSchema {
        indexes: vec![IndexSchema::new("by_text", &[1], false)],
        ..TableSchema::new(
            "t",
            vec![
                ColumnSchema::new("id", ScalarType::I64),
                ColumnSchema::new("text", ScalarType::Text),
            ],
            &[0],
        )
    };
    store.create_table(schema).expect("a table");
    store.retain_undo();
    store
}

/// Inserts, or updates, or (without a text) deletes.
fn write(store: &mut Store, id: i64, text: Option<&str>) {
    let layout = RowLayout::of_table(store.schema(TABLE));
    let mut key = Vec::new();
    reprise_abi::key::push_i64(&mut key, id);
    let found = store.get(TABLE, 0, &key);
    store.begin();
    match (found, text) {
        (None, Some(text)) => {
            let row = layout.build(&[Field::Int(id), Field::Text(text)]);
            store.insert(TABLE, &row).expect("a new row");
        }
        (Some(rid), Some(text)) => {
            let row = layout.build(&[Field::Int(id), Field::Text(text)]);
            store.update(TABLE, rid, &row).expect("a live row");
        }
        (Some(rid), None) => store.delete(TABLE, rid).expect("a live row"),
        (None, None) => {}
    }
    store.commit();
}

/// A seeded walk: the same seed makes the same writes.
fn turn(store: &mut Store, seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for _ in 0..20 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let text = "x".repeat((state >> 20) as usize % 40);
        let id = (state % 30) as i64;
        write(store, id, (!state.is_multiple_of(5)).then_some(text.as_str()));
    }
}

/// The last transaction's changes are sealed apart from earlier ones, or taken back alone.
#[test]
fn the_last_transaction_is_left_out_of_a_seal() {
    for seed in 1..200 {
        let mut store = store();
        turn(&mut store, seed);
        store.seal(100);
        let before = store.digest();
        turn(&mut store, seed + 1);
        let sealed = store.digest();
        write(&mut store, (seed % 30) as i64, (seed % 3 > 0).then_some("the last one"));
        let after = store.digest();
        store.seal_before_last(200);
        match seed % 4 {
            // Alone, at once or after it was sealed.
            0 => store.unwind_unsealed(),
            1 => {
                store.seal(300);
                store.release_undo(200);
                store.unwind();
            }
            // The last turn goes with the one before it.
            2 => {
                store.release_undo(100);
                store.unwind();
            }
            _ => {
                store.seal(300);
                store.release_undo(300);
                store.unwind();
            }
        }
        let expected = [sealed, sealed, before, after][(seed % 4) as usize];
        assert_eq!(store.digest(), expected, "seed {seed}");
        // The store continues.
        turn(&mut store, seed + 2);
        store.seal(400);
        store.release_undo(400);
    }
}

#[test]
fn unwinding_ends_at_the_last_durable_turn() {
    for durable in 0..=8u64 {
        let mut store = store();
        let mut expected = store.digest();
        for number in 1..=8 {
            turn(&mut store, number);
            store.seal(number * 100);
            if number == durable {
                expected = store.digest();
            }
            store.release_undo(durable.min(number.saturating_sub(2)) * 100);
        }
        turn(&mut store, 99); // not sealed
        store.release_undo(durable * 100);
        store.unwind();
        assert_eq!(store.digest(), expected, "durable up to turn {durable}");
        // The remaining rows are whole: a turn can write to them, and be taken back again.
        turn(&mut store, 7);
        store.unwind_unsealed();
        assert_eq!(store.digest(), expected);
    }
}

#[test]
fn a_rollback_leaves_earlier_transactions_of_the_turn() {
    let mut store = store();
    write(&mut store, 1, Some("kept"));
    let kept = store.digest();
    store.begin();
    let row = RowLayout::of_table(store.schema(TABLE)).build(&[Field::Int(2), Field::Text("gone")]);
    store.insert(TABLE, &row).expect("a new row");
    store.rollback();
    assert_eq!(store.digest(), kept);
}

#[test]
fn settled_turns_give_their_memory_back() {
    let mut store = store();
    let mut after_warm_up = 0;
    for number in 1..=200u64 {
        turn(&mut store, number);
        store.seal(number);
        store.release_undo(number);
        if number == 100 {
            after_warm_up = store.memory_bytes();
        }
    }
    assert!(
        store.memory_bytes() <= after_warm_up + 4096,
        "{} bytes",
        store.memory_bytes()
    );
}
