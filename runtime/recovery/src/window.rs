//! A piece of the log that holds nothing but changes, told apart by table.

use std::ops::Range;

use reprise_base::{Lsn, PartitionId, limits::BLOCK_BYTES_MAX};
use reprise_log::{LogBlock, LogError, LogReader, StretchBlock, StretchEnd};
use reprise_pages::prefetch_line;
use reprise_replay::{IdempotentOutcome, Redo};
use reprise_storage::{ApplyError, Found, LastWrites, REDO_WINDOW_BYTES_MAX, RedoList};
use reprise_txn::ModuleId;
use reprise_wire::{Changes, ChangesRef, PartitionSet, RawRecords, RecordRef, WireError};

use crate::{RecoverFrom, RecoveryError, feed::LANE_WINDOW_BYTES};

/// Blocks of the log, in memory that is used again.
#[derive(Default)]
pub(crate) struct Window {
    /// At least `used` bytes; what lies between the blocks' records does not count.
    buffer: Vec<u8>,
    used: usize,
    blocks: Vec<Block>,
    /// Of changes.
    pub records_count: u64,
}

struct Block {
    /// Of the first record.
    lsn: Lsn,
    records: Range<usize>,
    /// Of the format of its segment.
    version: u32,
}

impl Window {
    /// Adds a copy of a block's records, `records_count` of them changes.
    pub fn push(&mut self, block: &LogBlock<'_>, records_count: u64) {
        let end = self.used + block.records.len();
        if self.buffer.len() < end {
            self.buffer.resize(end.next_power_of_two(), 0);
        }
        self.buffer[self.used..end].copy_from_slice(block.records);
        let records = self.used..end;
        let (lsn, version) = (block.lsn, block.version);
        let block = Block { lsn, records, version };
        self.note(block, records_count);
    }

    /// Reads blocks into an empty window, as long as they are such as `count` counts the changes of; false when there is no more.
    pub fn read(
        &mut self,
        reader: &mut LogReader,
        room: usize,
        mut count: impl FnMut(&StretchBlock<'_>) -> Option<u64>,
    ) -> Result<bool, LogError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let end = reader.read_blocks(&mut buffer, room, |block| {
            let counted = count(block);
            counted.is_some_and(|count| {
                let records = block.place.clone();
                let (lsn, version) = (block.lsn, block.version);
                let block = Block { lsn, records, version };
                self.note(block, count);
                true
            })
        });
        self.buffer = buffer;
        Ok(end? == StretchEnd::Full)
    }

    fn note(&mut self, block: Block, count: u64) {
        self.used = block.records.end;
        self.records_count += count;
        self.blocks.push(block);
    }

    pub fn clear(&mut self) {
        self.used = 0;
        self.blocks.clear();
        self.records_count = 0;
    }

    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.used]
    }

    pub fn blocks(&self) -> impl Iterator<Item = LogBlock<'_>> {
        let blocks = self.blocks.iter();
        blocks.map(|block| LogBlock {
            lsn: block.lsn,
            records: &self.buffer[block.records.clone()],
            version: block.version,
        })
    }

    /// Behind its last record.
    pub fn end(&self) -> Lsn {
        let last = self.blocks.last();
        last.map_or(Lsn(0), |block| Lsn(block.lsn.0 + block.records.len() as u64))
    }

    /// How many more such windows the log has behind it, which ends at `log_end`; 0 where that is not known.
    pub fn windows_behind(&self, log_end: Lsn) -> f64 {
        log_end.0.saturating_sub(self.end().0) as f64 / self.used.max(1) as f64
    }

    fn block_of(&self, at: usize) -> &Block {
        let after = self.blocks.partition_point(|block| block.records.start <= at);
        &self.blocks[after - 1]
    }

    fn lsn_of(&self, at: usize) -> Lsn {
        let block = self.block_of(at);
        Lsn(block.lsn.0 + (at - block.records.start) as u64)
    }

    /// The record that begins at a byte, for a message.
    pub fn redo_at(&self, at: usize) -> Option<Redo> {
        let lsn = self.lsn_of(at);
        let version = self.block_of(at).version;
        let record = RawRecords::new(&self.bytes()[at..], version).next()?.ok()?;
        let changes = record.changes().ok()?;
        Some(redo_of(lsn, Lsn(lsn.0 + record.end as u64), &changes))
    }
}

/// The records of changes in a block, where it holds nothing else that counts: commands only whose changes follow and are to be
/// applied in their place.
pub(crate) fn changes_count(records: &[u8], version: u32, from: RecoverFrom) -> Option<u64> {
    let mut count = 0;
    let mut command = None;
    for record in RawRecords::new(records, version) {
        let record = record.ok()?;
        if record.is_changes() {
            count += 1;
            if let Some(txn_id) = command.take()
                && record.changes().ok()?.txn_id != txn_id
            {
                return None;
            }
            continue;
        }
        if from == RecoverFrom::Command || command.is_some() {
            return None;
        }
        match record.decode().ok()? {
            RecordRef::Command(found) => command = Some(found.txn_id),
            _ => return None,
        }
    }
    command.is_none().then_some(count)
}

/// What was read is no longer all in the nearest cache: it is asked for so far ahead.
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
    pub keyed: IdempotentOutcome,
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

    /// Tells apart what `self.window` holds. An error leaves what lies before it.
    pub fn sort(&mut self, shape: Shape<'_>, last: &mut LastWrites) -> Result<(), Stop> {
        self.seen.resize(shape.partitions as usize, Seen::default());
        self.places.clear();
        self.places.resize(shape.count(), 0);
        last.begin(self.window.bytes().len());
        let window = std::mem::take(&mut self.window);
        let sorted = self.sort_all(&window, shape, last);
        self.window = window;
        sorted
    }

    fn sort_all(&mut self, window: &Window, shape: Shape<'_>, last: &mut LastWrites) -> Result<(), Stop> {
        for block in window.blocks() {
            self.sort_block(window, &block, (shape, last))?;
        }
        Ok(())
    }

    fn sort_block(
        &mut self,
        window: &Window,
        block: &LogBlock<'_>,
        (shape, last): (Shape<'_>, &mut LastWrites),
    ) -> Result<(), Stop> {
        let place_of = |part: &[u8]| part.as_ptr() as usize - window.buffer.as_ptr() as usize;
        let block_at = place_of(block.records);
        let mut lsn = block.lsn;
        for record in RawRecords::new(block.records, block.version) {
            let ahead = record.as_ref().map_or(0, |record| record.start) + FETCH_AHEAD_BYTES;
            block.records.get(ahead).into_iter().for_each(prefetch_line);
            let record = record.map_err(|error| Stop::Error(RecoveryError::Malformed { lsn, error }))?;
            let end = Lsn(block.lsn.0 + record.end as u64);
            let mut group = Group {
                window,
                shape,
                partition: PartitionId(0),
                record_at: (block_at + record.start) as u32,
                at: 0,
            };
            if let Some((txn_id, changes)) = record.plain_changes() {
                group.partition = PartitionId(txn_id.origin());
                group.at = place_of(changes);
                check_partition(shape, lsn, group.partition)?;
                self.seen[group.partition.index()].note(txn_id.tick(), end);
                self.sort_group(&group, changes, last)?;
            } else if record.is_changes() {
                let changes = record.changes();
                let changes = changes.map_err(|error| Stop::Error(RecoveryError::Malformed { lsn, error }))?;
                self.note_seen(shape, &redo_of(lsn, end, &changes), &changes)?;
                for (partition, bytes) in changes.groups() {
                    check_partition(shape, lsn, partition)?;
                    group.partition = partition;
                    group.at = place_of(bytes);
                    self.sort_group(&group, bytes, last)?;
                }
            } // else a command whose changes follow
            lsn = end;
        }
        Ok(())
    }

    /// Adds a partition's changes of a record to their tables' lists. Most are insertions and patches, which go there as they are
    /// read.
    #[inline(always)]
    fn sort_group(&mut self, group: &Group<'_>, bytes: &[u8], last: &mut LastWrites) -> Result<(), Stop> {
        let mut walk = Changes::new(bytes);
        let mut offset = 0;
        loop {
            let mut found = Found {
                txn: group.record_at,
                at: (group.at + offset) as u32,
                end: 0,
            };
            if let Some((table, row)) = walk.next_row() {
                found.end = (group.at + walk.offset()) as u32;
                self.list(group, table, last)?.push_row(found, row.len());
            } else if let Some((table, name, columns)) = walk.next_patch() {
                found.end = (group.at + walk.offset()) as u32;
                let list = self.list(group, table, last)?;
                list.push_patch(found, name, columns, last);
            } else if let Some(change) = walk.next() {
                let change = change.map_err(|error| group.malformed(error))?;
                found.end = (group.at + walk.offset()) as u32;
                let list = self.list(group, change.table(), last)?;
                list.push(found, &change, last);
            } else {
                return Ok(());
            }
            offset = walk.offset();
        }
    }

    /// The list of a table.
    #[inline(always)]
    fn list(&mut self, group: &Group<'_>, table: u16, last: &mut LastWrites) -> Result<&mut RedoList, Stop> {
        if table >= group.shape.tables {
            return Err(group.without_table(table));
        }
        let place = group.shape.place(group.partition, table);
        if self.places[place] == 0 {
            self.begin_list(group, table, last);
        }
        Ok(&mut self.tables[self.places[place] as usize - 1].changes)
    }

    #[cold]
    fn begin_list(&mut self, group: &Group<'_>, table: u16, last: &mut LastWrites) {
        let mut changes = self.spares.pop().unwrap_or_default();
        changes.begin(last.list(), group.shape.overwritable[table as usize]);
        self.tables.push(TableChanges {
            partition: group.partition,
            table,
            changes,
        });
        self.places[group.shape.place(group.partition, table)] = self.tables.len() as u32;
    }

    #[inline]
    fn note_seen(&mut self, shape: Shape<'_>, redo: &Redo, changes: &ChangesRef<'_>) -> Result<(), Stop> {
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
            PartitionSet::Several(list) => list.iter().try_for_each(|id| check_partition(shape, redo.lsn, id))?,
            PartitionSet::All => {}
        }
        if one.is_none() {
            self.multi_tick = self.multi_tick.max(tick);
        }
        if let Some(keyed) = &changes.keyed {
            let keyed = IdempotentOutcome {
                scope: keyed.scope.into(),
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

/// A partition's changes of one record, and where they lie in the window.
struct Group<'a> {
    window: &'a Window,
    shape: Shape<'a>,
    partition: PartitionId,
    record_at: u32,
    at: usize,
}

impl Group<'_> {
    #[cold]
    fn malformed(&self, error: WireError) -> Stop {
        let lsn = self.window.lsn_of(self.record_at as usize);
        Stop::Error(RecoveryError::Malformed { lsn, error })
    }

    #[cold]
    fn without_table(&self, table: u16) -> Stop {
        let count = self.shape.tables as usize;
        let redo = self.window.redo_at(self.record_at as usize);
        Stop::Misfit(redo.expect("the record was read"), ApplyError::Table { table, count })
    }
}

fn redo_of(lsn: Lsn, end: Lsn, changes: &ChangesRef<'_>) -> Redo {
    Redo {
        lsn,
        end,
        txn_id: changes.txn_id,
        module_id: ModuleId(changes.module_id),
        procedure: changes.procedure,
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
    use reprise_wire::FORMAT_VERSION;
    use reprise_wire::{Change, CommandRef};

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
            let block = LogBlock {
                lsn: Lsn(*lsn),
                records,
                version: FORMAT_VERSION,
            };
            sorted.window.push(&block, 1);
        }
        let done = sorted.sort(SHAPE, &mut LastWrites::default());
        (sorted, done)
    }

    /// With their records' places in the window.
    fn changes_of(sorted: &Sorted, place: usize) -> impl Iterator<Item = (u32, Change<'_>)> {
        let TableChanges { table, changes, .. } = &sorted.tables[place];
        let bytes = sorted.window.bytes();
        (0..changes.len()).map(move |at| (changes.txn(at), changes.change(bytes, at, *table)))
    }

    #[test]
    fn changes_are_told_apart_by_partition_and_table_in_their_order() {
        let first = record(0, &[insert(2, b"a"), insert(0, b"b"), insert(2, b"c")]);
        let second = [record(1, &[insert(2, b"d")]), record(0, &[insert(2, b"e")])].concat();
        let (sorted, done) = sort(&[(512, first), (4_096, second.clone())]);
        assert!(done.is_ok());
        let rows = |place: usize| {
            let changes = changes_of(&sorted, place);
            let rows = changes.map(|(record, change)| match change {
                Change::Insert { row, .. } => (sorted.window.redo_at(record as usize), row),
                _ => panic!("insertions alone"),
            });
            let rows = rows.map(|(redo, row)| (redo.expect("a record").lsn.0, row[0]));
            rows.collect::<Vec<_>>()
        };
        let places: Vec<_> = sorted.tables.iter().map(|t| (t.partition.0, t.table)).collect();
        assert_eq!(places, [(0, 2), (0, 0), (1, 2)]);
        let at = 4_096 + record(1, &[insert(2, b"d")]).len() as u64;
        assert_eq!(rows(0), [(512, b'a'), (512, b'c'), (at, b'e')]);
        assert_eq!((rows(1), rows(2)), (vec![(512, b'b')], vec![(4_096, b'd')]));
        let end = Lsn(4_096 + second.len() as u64);
        assert_eq!((sorted.seen[0].end, sorted.seen[1].end), (end, Lsn(at)));
    }

    #[test]
    fn commands_are_passed_over_where_their_changes_follow() {
        let command = |origin: u16| {
            let command = CommandRef {
                txn_id: TxnId::new(7, origin),
                partitions: PartitionSet::One(PartitionId(origin)),
                module_id: 0,
                procedure: 1,
                digest: 0,
                idempotency_key: None,
                idempotency_scope: &[],
                args: b"arguments",
            };
            let mut out = Vec::new();
            RecordRef::Command(command).encode(&mut out);
            out
        };
        let changes = |origin: u16| record(origin, &[insert(2, b"row")]);
        let count = |records: &[Vec<u8>], from| changes_count(&records.concat(), FORMAT_VERSION, from);
        let pairs = [command(0), changes(0), changes(1), command(1), changes(1)];
        assert_eq!(count(&pairs, RecoverFrom::Changes), Some(3));
        assert_eq!(count(&pairs, RecoverFrom::Command), None);
        assert_eq!(count(&[changes(0)], RecoverFrom::Command), Some(1));
        let not_alone = [
            vec![command(0)],
            vec![changes(0), command(0)],
            vec![command(0), changes(1)],
            vec![command(0), command(0), changes(0)],
        ];
        for records in not_alone {
            assert_eq!(count(&records, RecoverFrom::Changes), None);
        }
        let (sorted, done) = sort(&[(512, pairs.concat())]);
        assert!(done.is_ok());
        let second = 512 + pairs[..3].concat().len() as u64 + command(1).len() as u64;
        let at = changes_of(&sorted, 1).last().expect("of partition 1").0;
        let redo = sorted.window.redo_at(at as usize).expect("a record");
        assert_eq!((redo.lsn, redo.end), (Lsn(second), sorted.seen[1].end));
        assert_eq!(sorted.tables.iter().map(|table| table.changes.len()).sum::<usize>(), 3);
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
            lsn: at, partition: 2, ..
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
                for (record, _) in changes_of(&sorted, place) {
                    assert!(sorted.window.redo_at(record as usize).is_some());
                }
            }
        }
    }
}
