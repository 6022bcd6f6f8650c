//! Transactions' changes, redone as replay does it: a window of them, table by table.

use reprise_storage::{LastWrites, PartitionRedo, RedoError, Store};

/// Redoes transactions as one window: how many changes were left to apply, or the earliest error with the position of its
/// transaction.
pub fn redo_by_table(store: &mut Store, log: &[Vec<u8>]) -> Result<usize, RedoError> {
    let window = log.concat();
    let (mut redo, mut last) = (PartitionRedo::default(), LastWrites::default());
    last.begin(window.len());
    let schema = store.redo_schema();
    let (mut start, mut pushed) = (0, Ok(()));
    for (txn, changes) in (0..).zip(log) {
        let place = start..start + changes.len();
        start = place.end;
        pushed = redo.push(&schema, &window, txn, place, &mut last);
        if pushed.is_err() {
            break;
        }
    }
    let left = redo.len();
    redo.apply(store, &window, 1.0)?;
    assert!(redo.is_empty());
    pushed.map(|()| left)
}
