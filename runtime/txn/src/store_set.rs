//! The stores that a transaction holds, ascending by partition: one, or several.

use reprise_base::PartitionId;
use reprise_storage::{AfterImage, Store, WriteError};
use reprise_wire::ChangesRef;

use crate::scratch::TxnScratch;

/// See the module's header. Positions are those among the held stores.
pub(crate) trait StoreSet {
    /// True if there is one store. The transaction then finds and writes its rows without checking their store.
    const IS_ONE: bool;

    fn count(&self) -> usize;
    fn store(&self, at: usize) -> &Store;
    fn store_mut(&mut self, at: usize) -> &mut Store;
    fn partition(&self, at: usize) -> PartitionId;
    /// Returns the position of a partition among the held ones.
    fn position(&self, partition: PartitionId) -> Option<usize>;
    /// Returns the bytes that were written on all stores together, undo included.
    fn written_bytes(&self) -> usize;
    /// Makes a change on one store.
    fn change<T>(
        &mut self,
        at: usize,
        change: impl FnOnce(&mut Store) -> Result<T, WriteError>,
    ) -> Result<T, WriteError>;
    /// Counts the written bytes anew, because some were rolled back.
    fn count_written(&mut self);

    /// Keeps the transaction's changes of each partition on which it changed a row.
    fn take_changes(&mut self, images: AfterImage, frame: &mut TxnScratch);

    /// Returns all stores, for code that reads several at once.
    fn all(&self) -> Vec<&Store> {
        (0..self.count()).map(|at| self.store(at)).collect()
    }

    fn partitions(&self) -> impl Iterator<Item = PartitionId> {
        (0..self.count()).map(|at| self.partition(at))
    }
}

/// The store of the only partition.
pub(crate) struct One<'a> {
    pub store: &'a mut Store,
    pub partition: PartitionId,
}

impl StoreSet for One<'_> {
    const IS_ONE: bool = true;

    #[inline(always)]
    fn count(&self) -> usize {
        1
    }

    #[inline(always)]
    fn store(&self, _: usize) -> &Store {
        self.store
    }

    #[inline(always)]
    fn store_mut(&mut self, _: usize) -> &mut Store {
        self.store
    }

    #[inline(always)]
    fn partition(&self, _: usize) -> PartitionId {
        self.partition
    }

    #[inline(always)]
    fn position(&self, partition: PartitionId) -> Option<usize> {
        (partition == self.partition).then_some(0)
    }

    #[inline(always)]
    fn written_bytes(&self) -> usize {
        self.store.write_set_bytes()
    }

    #[inline(always)]
    fn change<T>(
        &mut self,
        _: usize,
        change: impl FnOnce(&mut Store) -> Result<T, WriteError>,
    ) -> Result<T, WriteError> {
        change(self.store)
    }

    fn count_written(&mut self) {}

    #[inline]
    fn take_changes(&mut self, images: AfterImage, frame: &mut TxnScratch) {
        frame.inserting.end(self.store, images);
        frame.changed_rows = self.store.take_changes(images, &mut frame.changes);
    }
}

/// The stores of several partitions.
pub(crate) struct Several<'a, 's> {
    stores: &'a mut [(PartitionId, &'s mut Store)],
    written: usize,
}

impl<'a, 's> Several<'a, 's> {
    pub fn new(stores: &'a mut [(PartitionId, &'s mut Store)]) -> Self {
        Self { stores, written: 0 }
    }
}

impl StoreSet for Several<'_, '_> {
    const IS_ONE: bool = false;

    fn count(&self) -> usize {
        self.stores.len()
    }

    fn store(&self, at: usize) -> &Store {
        self.stores[at].1
    }

    fn store_mut(&mut self, at: usize) -> &mut Store {
        self.stores[at].1
    }

    fn partition(&self, at: usize) -> PartitionId {
        self.stores[at].0
    }

    fn position(&self, partition: PartitionId) -> Option<usize> {
        self.stores.binary_search_by_key(&partition, |(id, _)| *id).ok()
    }

    fn written_bytes(&self) -> usize {
        self.written
    }

    fn change<T>(
        &mut self,
        at: usize,
        change: impl FnOnce(&mut Store) -> Result<T, WriteError>,
    ) -> Result<T, WriteError> {
        let store = &mut *self.stores[at].1;
        let before = store.write_set_bytes();
        let changed = change(store)?;
        self.written += store.write_set_bytes() - before;
        Ok(changed)
    }

    fn count_written(&mut self) {
        self.written = self.stores.iter().map(|(_, store)| store.write_set_bytes()).sum();
    }

    fn take_changes(&mut self, images: AfterImage, frame: &mut TxnScratch) {
        for (at, (_, store)) in self.stores.iter().enumerate() {
            frame.insert_objects(at, store);
        }
        for (at, (id, store)) in self.stores.iter_mut().enumerate() {
            frame.group.clear();
            frame.changed_rows += store.write_set(images, &mut frame.group);
            if !frame.group.is_empty() {
                let group = &frame.group;
                frame.changes.other(|out| ChangesRef::push_group(out, *id, group));
                if frame.inserting.is_on && store.is_captured(images) {
                    let base = frame.changes.len() - frame.group.len();
                    frame.inserting.end_store(at, base);
                }
            }
        }
    }
}
