//! Transactions' changes, redone as recovery does it: a window of them, table by table.

use reprise_storage::{ApplyError, Found, LastWrites, RedoList, Store, TableRedo};
use reprise_wire::Changes;

/// Redoes transactions as one window, the last table first: how many changes were left to apply, or the earliest error with the
/// position of its transaction.
pub fn redo_by_table(store: &mut Store, log: &[Vec<u8>]) -> Result<usize, (u32, ApplyError)> {
    let window = log.concat();
    let mut redos = store.redos();
    let mut last = LastWrites::default();
    last.begin(window.len());
    let mut lists: Vec<_> = redos.iter().map(|redo| list_of(last.list(), redo)).collect();
    let mut start = 0;
    for (txn, changes) in (0..).zip(log) {
        let mut walk = Changes::new(&window[start..start + changes.len()]);
        let mut at = start;
        while let Some(Ok(change)) = walk.next() {
            let end = start + walk.offset();
            let found = Found {
                txn,
                at: at as u32,
                end: end as u32,
            };
            at = end;
            if let Some(list) = lists.get_mut(change.table() as usize) {
                list.push(found, &change, &mut last);
            }
        }
        start += changes.len();
    }
    let done = redos.iter_mut().zip(&lists).rev();
    let errors = done.filter_map(|(redo, list)| redo.apply(&window, list).err());
    match errors.min_by_key(|(txn, _)| *txn) {
        None => Ok(lists.iter().map(RedoList::len).sum()),
        Some(error) => Err(error),
    }
}

fn list_of(number: u32, redo: &TableRedo<'_>) -> RedoList {
    let mut list = RedoList::default();
    list.begin(number, redo.overwritable());
    list
}
