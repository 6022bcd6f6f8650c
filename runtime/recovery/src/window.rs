//! A piece of the log that holds nothing but changes, told apart by table.

use reprise_base::{Lsn, PartitionId, limits::BLOCK_BYTES_MAX};
use reprise_pages::fetch;
use reprise_replay::{Keyed, Redo};
use reprise_storage::{ApplyError, Found, LastWrites, REDO_WINDOW_BYTES_MAX, RedoList};
use reprise_txn::ModuleId;
use reprise_wire::{Change, Changes, ChangesRef, PartitionSet, RawRecords};

use crate::{LANE_WINDOW_BYTES, RecoveryError};

/// Blocks of the log, one behind the other, as they lie there.
#[derive(Default)]
pub(crate) struct Window {
    pub bytes: Vec<u8>,
    /// From which byte on they lie at which position.
    starts: Vec<(usize, Lsn)>,
    pub records_count: u64,
}

impl Window {
    pub fn push(&mut self, lsn: Lsn, records: &[u8], records_count: u64) {
        self.starts.push((self.bytes.len(), lsn));
        self.bytes.extend_from_slice(records);
        self.records_count += records_count;
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.starts.clear();
        self.records_count = 0;
    }

    /// The blocks again, each with its position.
    pub fn blocks(&self) -> impl Iterator<Item = (Lsn, &[u8])> {
        let ends = self.starts.iter().skip(1).map(|(at, _)| *at);
        let ends = ends.chain([self.bytes.len()]);
        let starts = self.starts.iter();
        starts
            .zip(ends)
            .map(|((at, lsn), end)| (*lsn, &self.bytes[*at..end]))
    }

    /// How many more such windows the log has behind it, which ends at `log_end`; 0 where that is not known.
    pub fn windows_behind(&self, log_end: Lsn) -> f64 {
        let last = self.starts.last().map_or(0, |(at, lsn)| lsn.0 + (self.bytes.len() - at) as u64);
        log_end.0.saturating_sub(last) as f64 / self.bytes.len().max(1) as f64
    }

    fn lsn_of(&self, at: usize) -> Lsn {
        let block = self.starts.partition_point(|(start, _)| *start <= at) - 1;
        let (start, lsn) = self.starts[block];
        Lsn(lsn.0 + (at - start) as u64)
    }

    /// The record that begins at a byte, for a message.
    pub fn redo_at(&self, at: usize) -> Option<Redo> {
        let lsn = self.lsn_of(at);
        let record = RawRecords::new(&self.bytes[at..]).next()?.ok()?;
        let changes = record.changes().ok()?;
        Some(Redo {
            lsn,
            end: Lsn(lsn.0 + record.end as u64),
            txn_id: changes.txn_id,
            module_id: ModuleId(changes.module_id),
            procedure: changes.procedure,
        })
    }
}

/// The thread that read the log had the bytes before: they are asked for so far ahead.
const FETCH_AHEAD_BYTES: usize = 768;

/// A window and one block more.
const _: () = assert!(BLOCK_BYTES_MAX + LANE_WINDOW_BYTES < REDO_WINDOW_BYTES_MAX);

/// What a window holds of one table of one partition, in the order of the log.
pub(crate) struct TableChanges {
    pub partition: PartitionId,
    pub table: u16,
    pub changes: RedoList,
}

/// What a partition has seen at the end of a window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub tick: u64,
    pub end: Lsn,
}

/// A call with an idempotency key.
pub(crate) struct KeyedCall {
    pub redo: Redo,
    pub keyed: Keyed,
    /// None: it was of several.
    pub partition: Option<PartitionId>,
}

/// A window, read.
#[derive(Default)]
pub(crate) struct Sorted {
    pub window: Window,
    pub tables: Vec<TableChanges>,
    /// By partition.
    pub seen: Vec<Seen>,
    pub multi_tick: u64,
    pub keyed: Vec<KeyedCall>,
    /// Lists of an earlier window, for their memory.
    spares: Vec<RedoList>,
    /// Position in `tables` + 1, by partition and table.
    places: Vec<u32>,
    last: LastWrites,
}

/// How many partitions there are, and how many tables on each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape<'a> {
    pub partitions: u16,
    pub tables: u16,
    /// By table: `TableRedo::overwritable`.
    pub overwritable: &'a [u64],
}

impl Shape<'_> {
    pub fn count(self) -> usize {
        self.partitions as usize * self.tables as usize
    }

    #[inline]
    pub fn place(self, partition: PartitionId, table: u16) -> usize {
        partition.index() * self.tables as usize + table as usize
    }
}

impl Sorted {
    /// Forgets all but its memory.
    pub fn clear(&mut self) {
        self.window.clear();
        let lists = self.tables.drain(..).map(|table| table.changes);
        self.spares.extend(lists);
        self.seen.clear();
        self.multi_tick = 0;
        self.keyed.clear();
    }

    /// Reads `self.window`. An error leaves what lies before it.
    pub fn sort(&mut self, shape: Shape<'_>) -> Result<(), Stop> {
        self.seen.resize(shape.partitions as usize, Seen::default());
        self.places.clear();
        self.places.resize(shape.count(), 0);
        self.last.begin(self.window.bytes.len());
        let window = std::mem::take(&mut self.window);
        let sorted = self.sort_all(&window, shape);
        self.window = window;
        sorted
    }

    fn sort_all(&mut self, window: &Window, shape: Shape<'_>) -> Result<(), Stop> {
        for (lsn, block) in window.blocks() {
            self.sort_block(window, lsn, block, shape)?;
        }
        Ok(())
    }

    fn sort_block(
        &mut self,
        window: &Window,
        block_lsn: Lsn,
        block: &[u8],
        shape: Shape<'_>,
    ) -> Result<(), Stop> {
        let place_of = |part: &[u8]| part.as_ptr() as usize - window.bytes.as_ptr() as usize;
        let block_at = place_of(block);
        let mut lsn = block_lsn;
        for record in RawRecords::new(block) {
            let ahead = record.as_ref().map_or(0, |record| record.start) + FETCH_AHEAD_BYTES;
            block.get(ahead).into_iter().for_each(fetch);
            let malformed = |error| Stop::Error(RecoveryError::Malformed { lsn, error });
            let record = record.map_err(malformed)?;
            let changes = record.changes().map_err(malformed)?;
            let redo = Redo {
                lsn,
                end: Lsn(block_lsn.0 + record.end as u64),
                txn_id: changes.txn_id,
                module_id: ModuleId(changes.module_id),
                procedure: changes.procedure,
            };
            self.note_seen(shape, &redo, &changes)?;
            let record_at = (block_at + record.start) as u32;
            for (partition, group) in changes.groups() {
                check_partition(shape, redo.lsn, partition)?;
                let group_at = place_of(group);
                let mut walk = Changes::new(group);
                let mut offset = 0;
                while let Some(change) = walk.next() {
                    let change = change.map_err(malformed)?;
                    let table = change.table();
                    if table >= shape.tables {
                        let count = shape.tables as usize;
                        return Err(Stop::Misfit(redo, ApplyError::Table { table, count }));
                    }
                    let (start, end) = (offset, walk.offset());
                    offset = end;
                    let found = Found {
                        txn: record_at,
                        at: (group_at + start) as u32,
                        end: (group_at + end) as u32,
                    };
                    self.add(shape, partition, found, &change);
                }
            }
            lsn = redo.end;
        }
        Ok(())
    }

    #[inline]
    fn add(
        &mut self,
        shape: Shape<'_>,
        partition: PartitionId,
        found: Found,
        change: &Change<'_>,
    ) {
        let table = change.table();
        let place = &mut self.places[shape.place(partition, table)];
        if *place == 0 {
            let mut changes = self.spares.pop().unwrap_or_default();
            changes.begin(self.tables.len() as u32, shape.overwritable[table as usize]);
            self.tables.push(TableChanges {
                partition,
                table,
                changes,
            });
            *place = self.tables.len() as u32;
        }
        let list = &mut self.tables[*place as usize - 1].changes;
        list.push(found, change, &mut self.last);
    }

    #[inline]
    fn note_seen(
        &mut self,
        shape: Shape<'_>,
        redo: &Redo,
        changes: &ChangesRef<'_>,
    ) -> Result<(), Stop> {
        let tick = redo.txn_id.tick();
        if let (PartitionSet::One(id), None) = (&changes.partitions, &changes.keyed) {
            check_partition(shape, redo.lsn, *id)?;
            self.seen[id.index()].note(tick, redo.end);
            return Ok(());
        }
        let one = match &changes.partitions {
            PartitionSet::One(id) => Some(*id),
            PartitionSet::Several(_) | PartitionSet::All => None,
        };
        for id in (0..shape.partitions).map(PartitionId) {
            if changes.partitions.contains(id) {
                self.seen[id.index()].note(tick, redo.end);
            }
        }
        match &changes.partitions {
            PartitionSet::One(id) => check_partition(shape, redo.lsn, *id)?,
            PartitionSet::Several(list) => list
                .iter()
                .try_for_each(|id| check_partition(shape, redo.lsn, id))?,
            PartitionSet::All => {}
        }
        if one.is_none() {
            self.multi_tick = self.multi_tick.max(tick);
        }
        if let Some(keyed) = &changes.keyed {
            let keyed = Keyed {
                key: keyed.key.into(),
                fingerprint: keyed.fingerprint,
                result: keyed.result.into(),
            };
            self.keyed.push(KeyedCall {
                redo: *redo,
                keyed,
                partition: one,
            });
        }
        Ok(())
    }
}

impl Seen {
    pub fn note(&mut self, tick: u64, end: Lsn) {
        self.tick = self.tick.max(tick);
        self.end = self.end.max(end);
    }
}

/// Why a window can't be read to its end.
pub(crate) enum Stop {
    Error(RecoveryError),
    /// A change that fits no table.
    Misfit(Redo, ApplyError),
}

fn check_partition(shape: Shape<'_>, lsn: Lsn, partition: PartitionId) -> Result<(), Stop> {
    if partition.0 < shape.partitions {
        return Ok(());
    }
    Err(Stop::Error(RecoveryError::Partition {
        lsn,
        partition: partition.0,
        found: shape.partitions,
    }))
}

#[cfg(test)]
mod tests {
    use reprise_base::TxnId;
    use reprise_wire::RecordRef;

    use super::*;

    const SHAPE: Shape<'_> = Shape {
        partitions: 2,
        tables: 3,
        overwritable: &[0, 0b110, 0],
    };

    fn record(origin: u16, changes: &[Change<'_>]) -> Vec<u8> {
        let mut body = Vec::new();
        changes.iter().for_each(|change| change.encode(&mut body));
        let changes = ChangesRef {
            txn_id: TxnId::new(7, origin),
            partitions: PartitionSet::One(PartitionId(origin)),
            module_id: 0,
            procedure: 1,
            digest: 0,
            keyed: None,
            changes: &body,
        };
        let mut out = Vec::new();
        RecordRef::Changes(changes).encode(&mut out);
        out
    }

    fn insert(table: u16, row: &[u8]) -> Change<'_> {
        Change::Insert {
            table,
            number: None,
            row,
        }
    }

    fn sort(blocks: &[(u64, Vec<u8>)]) -> (Sorted, Result<(), Stop>) {
        let mut sorted = Sorted::default();
        for (lsn, records) in blocks {
            sorted.window.push(Lsn(*lsn), records, 1);
        }
        let done = sorted.sort(SHAPE);
        (sorted, done)
    }

    /// With their records' places in the window.
    fn changes(sorted: &Sorted, place: usize) -> impl Iterator<Item = (u32, Change<'_>)> {
        let TableChanges { table, changes, .. } = &sorted.tables[place];
        let bytes = &sorted.window.bytes;
        (0..changes.len()).map(move |at| (changes.txn(at), changes.change(bytes, at, *table)))
    }

    #[test]
    fn changes_are_told_apart_by_partition_and_table_in_their_order() {
        let first = record(0, &[insert(2, b"a"), insert(0, b"b"), insert(2, b"c")]);
        let second = [record(1, &[insert(2, b"d")]), record(0, &[insert(2, b"e")])].concat();
        let (sorted, done) = sort(&[(512, first), (4_096, second.clone())]);
        assert!(done.is_ok());
        let rows = |place: usize| {
            let changes = changes(&sorted, place);
            let rows = changes.map(|(record, change)| match change {
                Change::Insert { row, .. } => (sorted.window.redo_at(record as usize), row),
                _ => panic!("insertions alone"),
            });
            let rows = rows.map(|(redo, row)| (redo.expect("a record").lsn.0, row[0]));
            rows.collect::<Vec<_>>()
        };
        let places: Vec<_> = sorted
            .tables
            .iter()
            .map(|t| (t.partition.0, t.table))
            .collect();
        assert_eq!(places, [(0, 2), (0, 0), (1, 2)]);
        let at = 4_096 + record(1, &[insert(2, b"d")]).len() as u64;
        assert_eq!(rows(0), [(512, b'a'), (512, b'c'), (at, b'e')]);
        assert_eq!((rows(1), rows(2)), (vec![(512, b'b')], vec![(4_096, b'd')]));
        let end = Lsn(4_096 + second.len() as u64);
        assert_eq!((sorted.seen[0].end, sorted.seen[1].end), (end, Lsn(at)));
    }

    #[test]
    fn what_does_not_fit_is_told_with_its_place() {
        let good = record(0, &[insert(1, b"x")]);
        let lsn = 512 + good.len() as u64;
        let with = |bad: Vec<u8>| sort(&[(512, [good.clone(), bad].concat())]);
        let (sorted, done) = with(record(0, &[insert(3, b"x")]));
        assert!(
            matches!(done, Err(Stop::Misfit(redo, ApplyError::Table { table: 3, count: 3 })) if redo.lsn == Lsn(lsn))
        );
        assert_eq!(sorted.tables[0].changes.len(), 1);
        let (_, done) = with(record(2, &[insert(0, b"x")]));
        let Err(Stop::Error(RecoveryError::Partition {
            lsn: at,
            partition: 2,
            ..
        })) = done
        else {
            panic!("a partition that is not there");
        };
        assert_eq!(at, Lsn(lsn));
        let mut cut = record(0, &[insert(0, b"xyz")]);
        let length = cut.len();
        cut[length - 4] = 9;
        let (_, done) = with(cut);
        let Err(Stop::Error(RecoveryError::Malformed { lsn: at, .. })) = done else {
            panic!("a row that is cut off");
        };
        assert_eq!(at, Lsn(lsn));
    }

    #[test]
    fn any_bytes_are_sorted_or_refused() {
        let whole = [
            record(0, &[insert(2, b"row"), insert(0, b"")]),
            record(1, &[insert(1, &[7; 90])]),
        ]
        .concat();
        let mut state = 7u64;
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..3 {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let at = (state >> 33) as usize % bytes.len();
                bytes[at] = (state >> 20) as u8;
            }
            let (sorted, _) = sort(&[(0, bytes)]);
            for place in 0..sorted.tables.len() {
                for (record, _) in changes(&sorted, place) {
                    assert!(sorted.window.redo_at(record as usize).is_some());
                }
            }
        }
    }
}
