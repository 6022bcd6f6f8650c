//! Places of rows: the held store for a read, the store for a new row, and the store where a written row has to stay.

use std::ops::Range;

use reprise_abi::{ColumnSet, IndexTarget, OpError, ScalarType, ScanRequest, TablePlacement};
use reprise_base::PartitionId;
use reprise_storage::Rid;

use crate::{
    keyplace::partition_between,
    module::TableBinding,
    ops::{guest, index_of},
    reach::{ReachKind, elsewhere, unplaced},
    route::partition_of_field,
    store_set::StoreSet,
    store_txn::StoreTxn,
};

pub(crate) const MOVED: &str = "a procedure can't move a row to another partition: delete the row and insert it";

/// Search between two keys.
struct Between<'k> {
    kind: ReachKind,
    lower: &'k [u8],
    upper: &'k [u8],
    /// Value of the partition column, if the keys are known to hold it.
    value: Option<u64>,
}

/// True if a write of these columns may change a row's partition.
pub(crate) fn may_move(binding: &TableBinding, columns: ColumnSet) -> bool {
    matches!(binding.placement, TablePlacement::By(at) if at < 64 && columns.0 >> at & 1 == 1)
}

impl<S: StoreSet> StoreTxn<'_, S> {
    /// True if rows may belong to another partition than the first held one.
    #[inline(always)]
    pub fn places_matter(&self, binding: &TableBinding) -> bool {
        self.input.partitions_count > 1 && matches!(binding.placement, TablePlacement::By(_))
    }

    /// Returns the held stores that a read searches, whatever it searches for. Of a replicated table the first has all rows.
    #[inline(always)]
    fn stores_of(&self, binding: &TableBinding) -> Range<usize> {
        match S::IS_ONE || binding.placement == TablePlacement::Replicated {
            true => 0..1,
            false => 0..self.stores.count(),
        }
    }

    /// Returns the held stores on which rows under a key may lie. Err: they lie, or may lie, on a partition that is not held.
    #[inline(always)]
    pub fn readable(
        &mut self,
        target: IndexTarget,
        binding: &TableBinding,
        key: &[u8],
    ) -> Result<Range<usize>, OpError> {
        match self.places_matter(binding) {
            false => Ok(self.stores_of(binding)),
            true => self.place_key(target, binding, key),
        }
    }

    #[inline]
    fn place_key(&mut self, target: IndexTarget, binding: &TableBinding, key: &[u8]) -> Result<Range<usize>, OpError> {
        let place = binding.places[target.index as usize];
        let between = Between {
            kind: ReachKind::Key,
            lower: key,
            upper: key,
            value: place.and_then(|place| place.value(key)),
        };
        self.place(target, binding, &between)
    }

    /// The `readable` variant for the rows of a range.
    #[inline(always)]
    pub fn readable_range(
        &mut self,
        request: &ScanRequest<'_>,
        binding: &TableBinding,
    ) -> Result<Range<usize>, OpError> {
        match self.places_matter(binding) {
            false => Ok(self.stores_of(binding)),
            true => self.place_range(request, binding),
        }
    }

    fn place_range(&mut self, request: &ScanRequest<'_>, binding: &TableBinding) -> Result<Range<usize>, OpError> {
        let (lower, upper) = (request.lower, request.upper);
        let place = binding.places[request.target.index as usize];
        let between = Between {
            kind: ReachKind::of(request.flags),
            lower,
            upper,
            value: place.and_then(|place| place.value_between(lower, upper)),
        };
        self.place(request.target, binding, &between)
    }

    #[inline]
    fn place(
        &mut self,
        target: IndexTarget,
        binding: &TableBinding,
        between: &Between<'_>,
    ) -> Result<Range<usize>, OpError> {
        if between.value.is_some() && between.value == self.home {
            return Ok(0..1);
        }
        self.check_between(target, binding, between)
    }

    fn check_between(
        &mut self,
        target: IndexTarget,
        binding: &TableBinding,
        between: &Between<'_>,
    ) -> Result<Range<usize>, OpError> {
        let TablePlacement::By(column) = binding.placement else {
            return Ok(self.stores_of(binding));
        };
        let (schema, index) = (
            self.stores.store(0).schema(binding.table),
            index_of(binding, target.index)?,
        );
        let keys = (between.lower, between.upper);
        match partition_between(schema, index, column, keys, self.input.partitions_count) {
            Some(home) => {
                let refuse = || elsewhere(self.input, target.table, home, self.stores.partitions());
                let at = self.held(home).ok_or_else(refuse)?;
                if S::IS_ONE {
                    self.home = between.value.or(self.home);
                }
                Ok(at..at + 1)
            }
            None if between.kind == ReachKind::Local || self.holds_all => Ok(0..self.stores.count()),
            None => {
                let table = (target.table, binding);
                Err(unplaced(self.input, table, between.kind, self.stores.partitions()))
            }
        }
    }

    /// Returns the position of a partition among the held ones.
    fn held(&self, partition: PartitionId) -> Option<usize> {
        match self.holds_all {
            true => Some(partition.index()),
            false => self.stores.position(partition),
        }
    }

    /// Checks that a row lies where its partition column says, because later reads find it only there. With several stores, the right one
    /// was chosen before.
    #[inline(always)]
    pub fn check_place(&self, table: u16, binding: &TableBinding, rid: Rid) -> Result<(), OpError> {
        match (S::IS_ONE && self.places_matter(binding), &binding.placement) {
            (true, TablePlacement::By(column)) => self.check_home(table, binding, rid, *column),
            _ => Ok(()),
        }
    }

    fn check_home(&self, table: u16, binding: &TableBinding, rid: Rid, column: u16) -> Result<(), OpError> {
        let store = self.stores.store(0);
        let row = store.row(binding.table, rid).expect("a row just written");
        let field = store.layout(binding.table).field(row, column);
        let home = partition_of_field(&field, self.input.partitions_count);
        match home == self.stores.partition(0) {
            true => Ok(()),
            false => Err(elsewhere(self.input, table, home, self.stores.partitions())),
        }
    }

    /// Returns the held store on which a new row belongs. A row of the only store is checked after it is stored.
    #[inline(always)]
    pub fn home(&self, table: u16, binding: &TableBinding, row: &[u8]) -> Result<usize, OpError> {
        match binding.placement {
            TablePlacement::By(column) if !S::IS_ONE => self.home_among(table, binding, row, column),
            _ => Ok(0),
        }
    }

    fn home_among(&self, table: u16, binding: &TableBinding, row: &[u8], column: u16) -> Result<usize, OpError> {
        let store = self.stores.store(0);
        let (layout, schema) = (store.layout(binding.table), store.schema(binding.table));
        // Any row that is long enough has a value of fixed width. The store checks the rest of the row.
        let is_variable = matches!(schema.columns[column as usize].ty, ScalarType::Text | ScalarType::Bytes);
        if is_variable || row.len() < layout.fixed_bytes() {
            layout.validate(row).map_err(|error| guest(error.to_string()))?;
        }
        let home = partition_of_field(&layout.field(row, column), self.input.partitions_count);
        self.held(home)
            .ok_or_else(|| elsewhere(self.input, table, home, self.stores.partitions()))
    }

    /// Checks that a row stays on its partition if a value was added to its partition column.
    #[cold]
    pub fn check_stays(&self, table: u16, binding: &TableBinding, at: usize, rid: Rid) -> Result<(), OpError> {
        self.check_place(table, binding, rid)?;
        let home = self.home(table, binding, self.stored_row(at, binding.table, rid)?)?;
        match S::IS_ONE || home == at {
            true => Ok(()),
            false => Err(guest(MOVED)),
        }
    }
}
