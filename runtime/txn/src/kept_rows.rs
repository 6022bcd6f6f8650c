//! Rows that open cursors keep. A cursor shows rows, order and contents as they were when it was opened.
//!
//! A cursor keeps nothing until the transaction writes its table. Then it keeps the list of rows that it has still to show, in their order.
//! Before one of these rows changes, it also keeps the row's bytes. Both count in the limit of the write set and in the memory's ledger.
//! A migration has no limit of the write set for them. The transaction drops them with the cursor.

use std::{collections::BTreeMap, sync::Arc};

use reprise_abi::{OpError, RowHandle, RowTaker, ScanBatch};
use reprise_base::{Grant, MemoryKind, MemoryLedger};
use reprise_storage::{Rid, Store, TableId};

use crate::{
    module::TableBinding,
    rowmap::{RowMap, row_key},
    scan::{Cursor, ScanMerge, scan_error, show},
    scratch::{Handle, TxnScratch},
};

/// Rows of one store that one descent of the index finds.
const ROWS_AT_ONCE: usize = 128;
/// Bytes that a kept row takes beside its own: an estimate.
const IMAGE_BYTES: usize = 64;
/// Bytes that a transaction takes from the ledger at once.
const COUNTED_STEP_BYTES: usize = 64 << 10;

/// The rest of a cursor whose table was written after it was opened.
#[derive(Default)]
pub(crate) struct CursorRest {
    /// The held store of each row and its place there, in the order of the scan.
    rows: Vec<(u16, Rid)>,
    /// Number of rows that the cursor has shown.
    shown: usize,
    /// The rows that it has still to show. The bits stand for the lowest six bits of a row's place.
    ahead: RowMap<u64>,
}

impl CursorRest {
    fn memory_bytes(&self) -> usize {
        self.rows.len() * size_of::<(u16, Rid)>() + self.ahead.memory_bytes()
    }

    fn push(&mut self, table: TableId, store: u16, rid: Rid) {
        self.rows.push((store, rid));
        let (word, bit) = word_of(table, store, rid);
        *self.ahead.entry(word) |= bit;
    }

    fn is_ahead(&self, table: TableId, store: u16, rid: Rid) -> bool {
        let (word, bit) = word_of(table, store, rid);
        self.ahead.get(word).is_some_and(|bits| bits & bit != 0)
    }

    fn pass(&mut self, table: TableId, (store, rid): (u16, Rid)) {
        self.shown += 1;
        let (word, bit) = word_of(table, store, rid);
        *self.ahead.entry(word) &= !bit;
    }
}

fn word_of(table: TableId, store: u16, rid: Rid) -> (u64, u64) {
    let word = Rid(rid.0 >> u64::BITS.ilog2());
    (row_key(store, table, word), 1 << (rid.0 % u64::BITS))
}

/// Rows as they were before they were changed.
#[derive(Default)]
pub(crate) struct Images {
    /// Images by row, and by the number of cursors opened before. The nth cursor sees the first image from n on.
    rows: BTreeMap<(u64, u32), Box<[u8]>>,
    bytes: usize,
}

impl Images {
    fn of(&self, row: u64, opened: u32) -> Option<&[u8]> {
        let mut images = self.rows.range((row, opened)..=(row, u32::MAX));
        images.next().map(|(_, image)| &**image)
    }

    fn keep(&mut self, row: u64, opened: u32, image: &[u8]) {
        self.bytes += image.len() + IMAGE_BYTES;
        self.rows.insert((row, opened), image.into());
    }
}

/// Working memory of a transaction that the ledger counts by steps. Without a ledger it counts nothing.
#[derive(Default)]
pub(crate) struct StepGrant {
    ledger: Option<Arc<MemoryLedger>>,
    counted: Option<Grant>,
}

impl StepGrant {
    pub fn counted_in(ledger: &Arc<MemoryLedger>) -> Self {
        Self {
            ledger: Some(Arc::clone(ledger)),
            counted: None,
        }
    }

    fn bytes(&self) -> u64 {
        self.counted.as_ref().map_or(0, Grant::bytes)
    }

    /// True if the ledger was asked for memory since the last release.
    #[inline]
    pub fn is_taken(&self) -> bool {
        self.counted.is_some()
    }

    /// Raises the counted bytes to `bytes`, as memory that a call needs to end well, like undo. Err: the limit of memory, if it is checked
    /// and no memory is left.
    pub fn raise(&mut self, bytes: usize, is_limited: bool) -> Result<(), u64> {
        let bytes = whole_steps(bytes);
        let (Some(ledger), false) = (&self.ledger, self.bytes() >= bytes) else {
            return Ok(());
        };
        let budget = ledger.kind(MemoryKind::Undo);
        let counted = self.counted.get_or_insert_with(|| budget.take(0));
        let added = bytes - counted.bytes();
        match is_limited {
            true if !counted.try_grow(added) => return Err(ledger.max_bytes()),
            true => {}
            false => counted.resize(bytes),
        }
        Ok(())
    }

    /// Lowers the counted bytes to `bytes`, if there are more.
    pub fn lower(&mut self, bytes: usize) {
        let bytes = whole_steps(bytes);
        if let Some(counted) = &mut self.counted {
            counted.resize(bytes.min(counted.bytes()));
        }
    }

    /// Gives all counted bytes back.
    pub fn release(&mut self) {
        self.counted = None;
    }
}

/// The rows that all open cursors keep.
#[derive(Default)]
pub(crate) struct KeptRows {
    images: Images,
    /// Bytes that the cursors keep themselves.
    bytes: usize,
    /// The memory of all of it.
    memory: StepGrant,
}

impl KeptRows {
    pub fn counted_in(ledger: &Arc<MemoryLedger>) -> Self {
        Self {
            memory: StepGrant::counted_in(ledger),
            ..Self::default()
        }
    }

    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes + self.images.bytes
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.images = Images::default();
        self.bytes = 0;
        self.memory.release();
    }

    /// Drops the rows that a cursor kept. With the last open cursor, it drops everything.
    pub fn forget(&mut self, kept: Option<&CursorRest>, is_last: bool) {
        if is_last {
            return self.clear();
        }
        self.bytes -= kept.map_or(0, CursorRest::memory_bytes);
        let bytes = self.bytes();
        self.memory.lower(bytes);
    }

    /// Counts the kept bytes, and `more` bytes that will follow. Err: the limit of memory, if it is checked and no memory is left.
    pub fn count(&mut self, more: usize, is_limited: bool) -> Result<(), u64> {
        let bytes = self.bytes() + more;
        self.memory.raise(bytes, is_limited)
    }
}

fn whole_steps(bytes: usize) -> u64 {
    bytes.next_multiple_of(COUNTED_STEP_BYTES) as u64
}

/// The row that is about to be written, by the stored number of its table: a row of a held store, or a new one.
#[derive(Clone, Copy)]
pub(crate) struct WriteTarget {
    pub table: TableId,
    pub store: u16,
    pub rid: Option<Rid>,
}

/// Before a change, lets the open cursors of the table keep the rows that they have still to show. `bytes` count in the limit of the write
/// set already.
#[cold]
pub(crate) fn keep_before(
    frame: &mut TxnScratch,
    stores: &[&Store],
    written: WriteTarget,
    bytes: usize,
) -> Result<(), OpError> {
    let mut cursors = std::mem::take(&mut frame.cursors);
    let mut is_shown = false;
    for cursor in cursors.iter_mut().flatten() {
        let first = cursor.first_store;
        let scans = first..first + cursor.positions.len() as u16;
        if cursor.stored != written.table || !scans.contains(&written.store) {
            continue;
        }
        if cursor.kept.is_none() {
            let kept = rest_of(frame, stores, cursor, bytes)?;
            frame.kept.bytes += kept.memory_bytes();
            cursor.kept = Some(Box::new(kept));
        }
        if let (Some(rid), Some(kept)) = (written.rid, &cursor.kept)
            && kept.is_ahead(written.table, written.store, rid)
        {
            let row = row_key(written.store, written.table, rid);
            is_shown |= frame.kept.images.of(row, cursor.opened).is_none();
        }
    }
    frame.cursors = cursors;
    if let Some(rid) = written.rid.filter(|_| is_shown)
        && let Some(image) = stores[written.store as usize].row(written.table, rid)
    {
        let row = row_key(written.store, written.table, rid);
        frame.kept.images.keep(row, frame.opened, image);
    }
    frame.count_kept(0)?;
    frame.check_written(bytes)
}

/// Returns the rows that a cursor has still to show.
fn rest_of(frame: &mut TxnScratch, stores: &[&Store], cursor: &Cursor, bytes: usize) -> Result<CursorRest, OpError> {
    let (mut kept, mut left) = (
        CursorRest::default(),
        cursor.left.map_or(usize::MAX, |left| left as usize),
    );
    let first = cursor.first_store;
    let range = cursor.request.range();
    if let [position] = &cursor.positions[..] {
        let (store, mut position) = (stores[first as usize], position.clone());
        let mut rids = [Rid(0); ROWS_AT_ONCE];
        while left > 0 && !position.is_end() {
            let page = &mut rids[..ROWS_AT_ONCE.min(left)];
            let found = store.scan_page(cursor.stored, cursor.index, &range, &mut position, page);
            let found = found.map_err(scan_error)?;
            rids[..found]
                .iter()
                .for_each(|rid| kept.push(cursor.stored, first, *rid));
            left -= found;
            frame.check_kept(bytes, kept.memory_bytes(), found)?;
        }
        return Ok(kept);
    }
    let scanned = &stores[first as usize..first as usize + cursor.positions.len()];
    let mut merge = ScanMerge::new(scanned, cursor.stored, cursor.index, range, cursor.positions.clone())?;
    while left > 0
        && let Some((at, rid)) = merge.peek()
    {
        kept.push(cursor.stored, first + at as u16, rid);
        left -= 1;
        if kept.rows.len() % ROWS_AT_ONCE == 0 {
            frame.check_kept(bytes, kept.memory_bytes(), ROWS_AT_ONCE)?;
        }
        merge.advance(at, scanned[at])?;
    }
    Ok(kept)
}

/// Continues a cursor that keeps its rest.
#[cold]
pub(crate) fn run_kept(
    stores: &[&Store],
    binding: &TableBinding,
    frame: &mut TxnScratch,
    mut cursor: Cursor,
    visit: &mut RowTaker<'_>,
) -> Result<ScanBatch, OpError> {
    let mut rows = 0;
    let Some(kept) = &mut cursor.kept else {
        return Ok(ScanBatch { cursor: 0, rows });
    };
    while let Some((store, rid)) = kept.rows.get(kept.shown).copied() {
        let table = cursor.table;
        let handle = Handle { table, store, rid };
        let row = row_key(store, cursor.stored, rid);
        let image = frame.kept.images.of(row, cursor.opened).map(<[u8]>::to_vec);
        let taken = match &image {
            Some(image) => show(frame, binding, handle, image, visit)?,
            None => {
                let row = stores[store as usize].row(cursor.stored, rid);
                show(
                    frame,
                    binding,
                    handle,
                    row.expect("a row without an image was not changed"),
                    visit,
                )?
            }
        };
        if !taken {
            let cursor = frame.push_cursor(cursor)?;
            return Ok(ScanBatch { cursor, rows });
        }
        if image.is_some() {
            frame.changed.show_old(frame.handles.len() as RowHandle - 1);
        }
        kept.pass(cursor.stored, (store, rid));
        rows += 1;
    }
    frame.drop_cursor(&cursor);
    Ok(ScanBatch { cursor: 0, rows })
}
