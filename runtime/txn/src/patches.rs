//! Writes some columns of many rows in place.

use reprise_abi::{ColumnSet, Handles, HostOps, OpError};
use reprise_storage::Rid;

use crate::{
    module::TableBinding, ops::write_error, reach::outdated, rowmap::row_key, scratch::TxnScratch, store_set::StoreSet,
    store_txn::StoreTxn,
};

/// Number of rows whose handles are checked before they are written.
const PATCHED_AT_ONCE: usize = 16;

/// New values for a few columns of several rows.
pub(crate) struct Patches<'a> {
    pub table: u16,
    pub handles: Handles<'a>,
    pub columns: ColumnSet,
    pub bytes_each: usize,
    pub values: &'a [u8],
}

impl<'a> Patches<'a> {
    /// Returns the values of `count` rows from a position on.
    #[inline(always)]
    fn values(&self, at: usize, count: usize) -> &'a [u8] {
        &self.values[at * self.bytes_each..(at + count) * self.bytes_each]
    }
}

impl<S: StoreSet> StoreTxn<'_, S> {
    pub fn patch_each(&mut self, patches: &Patches<'_>) -> Result<(), OpError> {
        let mut rows = 0..patches.handles.len();
        rows.try_for_each(|at| {
            let (handle, values) = (patches.handles.at(at), patches.values(at, 1));
            self.patch(patches.table, handle, patches.columns, values)
        })
    }

    /// Writes columns of rows of the only store in place. It checks the limits once, so that no single row can fail.
    #[inline(always)]
    pub fn patch_here(&mut self, patches: &Patches<'_>, binding: &TableBinding) -> Result<(), OpError> {
        let (table, handles) = (patches.table, &patches.handles);
        if !self.frame.count_ops(handles.len()) {
            return self.patch_each(patches);
        }
        let (input, given) = (self.input, self.frame.handles.len());
        let Some(mut patcher) = self.stores.store_mut(0).patcher(binding.table, patches.columns) else {
            self.frame.uncount(handles.len());
            return self.patch_each(patches);
        };
        let frame = &mut *self.frame;
        // A write through a current copy leaves that copy current.
        let note = |frame: &mut TxnScratch, at: usize, rid: Rid| {
            let (row, handle) = (row_key(0, binding.table, rid), handles.at(at));
            let is_current = frame.changed.is_current(row, handle);
            frame.changed.record(row, given, Some(handle));
            is_current
        };
        if handles.len() == 1 {
            let rid = frame.handle_in(table, handles.at(0))?.rid;
            if !note(frame, 0, rid) {
                return Err(outdated(input, table));
            }
            let patched = patcher.patch(rid, patches.values);
            patched.map_err(|error| write_error(error, binding))?;
            return self.check_written(0);
        }
        let (mut rids, mut at) = ([Rid(0); PATCHED_AT_ONCE], 0);
        while at < handles.len() {
            let rids = &mut rids[..PATCHED_AT_ONCE.min(handles.len() - at)];
            let known = frame.rids_in(table, handles, at, rids);
            let mut places = (at..).zip(&rids[..known]);
            if !places.all(|(at, rid)| note(frame, at, *rid)) {
                return Err(outdated(input, table));
            }
            let patched = patcher.patch_run(&rids[..known], patches.values(at, known));
            patched.map_err(|error| write_error(error, binding))?;
            if known < rids.len() {
                frame.handle_in(table, handles.at(at + known))?;
            }
            at += known;
        }
        self.check_written(0)
    }

    /// The `patch_here` variant for rows of several stores. Each run of rows lies on one of them.
    pub fn patch_among(&mut self, patches: &Patches<'_>, binding: &TableBinding) -> Result<(), OpError> {
        let (table, handles) = (patches.table, &patches.handles);
        let (mut at, given) = (0, self.frame.handles.len());
        while at < handles.len() {
            let store = self.frame.handle_in(table, handles.at(at))?.store;
            let frame = &mut *self.frame;
            let patched = self.stores.change(store.into(), |held| {
                let Some(mut patcher) = held.patcher(binding.table, patches.columns) else {
                    return Ok(Ok(false));
                };
                while at < handles.len() {
                    let handle = handles.at(at);
                    let rid = match frame.handle_in(table, handle) {
                        Ok(found) if found.store == store => found.rid,
                        Ok(_) => break,
                        Err(error) => return Ok(Err(error)),
                    };
                    if let Err(error) = frame.count_op() {
                        return Ok(Err(error));
                    }
                    let row = row_key(store, binding.table, rid);
                    if !frame.changed.is_current(row, handle) {
                        return Ok(Err(outdated(self.input, table)));
                    }
                    frame.changed.record(row, given, Some(handle));
                    patcher.patch(rid, patches.values(at, 1))?;
                    at += 1;
                }
                Ok(Ok(true))
            });
            if patched.map_err(|error| write_error(error, binding))?? {
                self.check_written(store.into())?;
            } else {
                self.patch(table, handles.at(at), patches.columns, patches.values(at, 1))?;
                at += 1;
            }
        }
        Ok(())
    }
}
