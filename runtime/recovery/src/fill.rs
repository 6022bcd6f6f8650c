//! Rows and indexes of all partitions out of a checkpoint, by as many threads as there are cores.
//!
//! A table of a partition is one task; each of its indexes is another, once the rows are there. A thread that finds neither
//! reads and decompresses ahead of one that fills a table.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
    mem,
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use crossbeam_channel::{Receiver, Sender, bounded};
use reprise_base::PartitionId;
use reprise_checkpoint::{Blocks, CheckpointError, CheckpointReader};
use reprise_partition::Partition;
use reprise_storage::{IndexLoad, LoadError, Store, TableLoad};
use reprise_wire::{CheckpointBlockKind, CheckpointEntry};

use crate::load::{LoadOutcome, broken, error_of, table_of};

/// Bytes of rows for which another thread is worth its start.
const THREAD_BYTES: u64 = 4 << 20;
/// Blocks read ahead of the thread that takes their rows.
const AHEAD_BLOCKS: usize = 8;

/// Fills the partitions, which are all of the database and empty. Errors go to `outcome`; bytes of rows are counted in
/// `loaded`, half when they are copied and half as their indexes are there.
pub(crate) fn fill(
    partitions: &mut [Box<Partition>],
    reader: &CheckpointReader,
    loaded: &AtomicU64,
    outcome: &LoadOutcome,
    cores: usize,
) {
    let threads = load_threads(cores, reader.size().row_bytes);
    let pool = Pool {
        reader,
        loaded,
        outcome,
        queue: Mutex::new(Queue {
            tasks: tasks(partitions, reader),
            running: 0,
        }),
        woken: Condvar::new(),
    };
    thread::scope(|scope| {
        (1..threads).for_each(|_| {
            scope.spawn(|| pool.work());
        });
        pool.work();
    });
}

/// Threads that load so many bytes of rows, on so many cores.
pub fn load_threads(cores: usize, row_bytes: u64) -> u64 {
    (cores as u64).min(1 + row_bytes / THREAD_BYTES)
}

/// Loads about so many bytes of rows into tables of nobody's, indexes and all, on this thread: to see how long it takes. Each table
/// has the part in it that it has of the whole partition, the one with the most rows. The bytes that it was.
pub fn load_sample(reader: &CheckpointReader, bytes_max: u64) -> Result<u64, CheckpointError> {
    let mut store = Store::new();
    for json in reader.tables() {
        let created = store.push_table(table_of(reader, json)?);
        created.map_err(|_| broken(reader, "table", "one that can be made", "another"))?;
    }
    let (partition, sampled) = sample_blocks(reader.entries(), reader.tables().len(), bytes_max);
    let mut blocks = reader.blocks();
    let mut bytes = 0;
    for (mut load, numbers) in store.loads().into_iter().zip(sampled) {
        for number in numbers {
            let raw = blocks.read(number)?;
            bytes += raw.len() as u64;
            let taken = load.rows(raw, reader.header().version);
            taken.map_err(|error| broken(reader, "rows", "those of the table", &error.to_string()))?;
        }
        let (_, next_number) = reader.partition(partition).tables[load.id().0 as usize];
        for index in load.finish(next_number).unwrap_or_default() {
            let built = index.build();
            built.map_err(|error| broken(reader, "index", "unlike keys", &error.to_string()))?;
        }
    }
    Ok(bytes)
}

/// The numbers of blocks of about so many bytes, by table, and the partition that they are of: of one alone, for on another one the
/// same keys may be again. A table's blocks are its first ones, for as many bytes as its part of the partition.
fn sample_blocks(entries: &[CheckpointEntry], tables: usize, bytes_max: u64) -> (PartitionId, Vec<Vec<usize>>) {
    let rows = || {
        entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.kind == CheckpointBlockKind::Rows)
    };
    let mut by_partition = BTreeMap::<PartitionId, u64>::new();
    for (_, entry) in rows() {
        *by_partition.entry(entry.partition).or_default() += u64::from(entry.raw_bytes);
    }
    let largest = by_partition
        .into_iter()
        .max_by_key(|(id, bytes)| (*bytes, Reverse(*id)));
    let (partition, all_bytes) = largest.unwrap_or((PartitionId(0), 0));
    let mut of_table = vec![Vec::new(); tables];
    for (number, entry) in rows().filter(|(_, entry)| entry.partition == partition) {
        of_table[entry.table as usize].push(number);
    }
    // Blocks are whole: what one table took too much, the next ones take less.
    let (mut seen, mut taken) = (0u64, 0u64);
    for numbers in &mut of_table {
        let bytes_of = |number: &usize| u64::from(entries[*number].raw_bytes);
        seen += numbers.iter().map(bytes_of).sum::<u64>();
        let due = (u128::from(seen) * u128::from(bytes_max.min(all_bytes)) / u128::from(all_bytes.max(1))) as u64;
        let enough = numbers.iter().position(|number| {
            let is_enough = taken >= due;
            taken += if is_enough { 0 } else { bytes_of(number) };
            is_enough
        });
        numbers.truncate(enough.unwrap_or(numbers.len()));
    }
    (partition, of_table)
}

/// The tables, the largest last.
fn tasks<'s>(partitions: &'s mut [Box<Partition>], reader: &CheckpointReader) -> VecDeque<Task<'s>> {
    let tables = reader.tables().len();
    let mut blocks = vec![(0u64, Vec::new()); tables * partitions.len()];
    for (number, entry) in reader.entries().iter().enumerate() {
        if entry.kind == CheckpointBlockKind::Rows {
            let (bytes, numbers) = &mut blocks[entry.partition.index() * tables + entry.table as usize];
            *bytes += entry.raw_bytes as u64;
            numbers.push(number);
        }
    }
    let mut blocks = blocks.into_iter();
    let mut found = Vec::new();
    for partition in partitions {
        let id = partition.id;
        let state = &reader.partition(id).tables;
        for (load, (_, next_number)) in partition.store.loads().into_iter().zip(state) {
            let (bytes, blocks) = blocks.next().expect("as many as tables on all partitions");
            found.push(TableTask {
                partition: id,
                load,
                blocks,
                bytes,
                next_number: *next_number,
            });
        }
    }
    found.sort_by_key(|task| task.bytes);
    found.into_iter().map(Task::Table).collect()
}

enum Task<'s> {
    Table(TableTask<'s>),
    Index(IndexTask<'s>),
    Ahead(AheadTask),
}

struct TableTask<'s> {
    partition: PartitionId,
    load: TableLoad<'s>,
    /// By number, in the order in which they were written.
    blocks: Vec<usize>,
    bytes: u64,
    next_number: u64,
}

struct IndexTask<'s> {
    load: IndexLoad<'s>,
    /// For messages: partition, table, index.
    place: (PartitionId, u16, usize),
    /// Bytes of rows that count as loaded with it.
    share: u64,
}

/// Blocks that one thread reads for another.
struct AheadTask {
    blocks: Vec<usize>,
    ahead: Arc<Mutex<ReadAhead>>,
    to: Sender<Result<Vec<u8>, CheckpointError>>,
}

/// Progress of the thread that reads blocks ahead of a table's own thread, which stops it and reads the rest.
#[derive(Default)]
struct ReadAhead {
    /// Position of the block that nobody has begun.
    next: usize,
    is_taken_over: bool,
}

struct Queue<'s> {
    /// Taken from the back.
    tasks: VecDeque<Task<'s>>,
    /// Threads that may yet add tasks.
    running: usize,
}

struct Pool<'r, 's> {
    reader: &'r CheckpointReader,
    loaded: &'r AtomicU64,
    outcome: &'r LoadOutcome,
    queue: Mutex<Queue<'s>>,
    woken: Condvar,
}

impl<'s> Pool<'_, 's> {
    fn lock(&self) -> MutexGuard<'_, Queue<'s>> {
        self.queue.lock().expect("nothing panics under this lock")
    }

    fn work(&self) {
        while let Some(task) = self.take() {
            let done = match task {
                Task::Table(task) => self.fill_table(task),
                Task::Index(task) => self.build(task),
                Task::Ahead(task) => self.read_ahead(&task),
            };
            if let Err(error) = done {
                self.outcome.fail(error.into());
            }
            self.lock().running -= 1;
            self.woken.notify_all();
        }
    }

    /// The next task; none when there is nothing left to do, or no use in it.
    fn take(&self) -> Option<Task<'s>> {
        let mut queue = self.lock();
        loop {
            if self.outcome.has_failed() {
                return None;
            }
            if let Some(task) = queue.tasks.pop_back() {
                queue.running += 1;
                return Some(task);
            }
            if queue.running == 0 {
                return None;
            }
            queue = self.woken.wait(queue).expect("as above");
        }
    }

    fn note_loaded(&self, bytes: u64) {
        self.loaded.fetch_add(bytes, Ordering::Relaxed);
    }

    fn fill_table(&self, mut task: TableTask<'s>) -> Result<(), CheckpointError> {
        let table = task.load.id();
        let version = self.reader.header().version;
        let mut source = Source::new(self.reader, task.blocks);
        self.lock().tasks.push_front(Task::Ahead(source.ahead()));
        self.woken.notify_one();
        while let Some(number) = source.advance()? {
            if self.outcome.has_failed() {
                return Ok(());
            }
            let entry = &self.reader.entries()[number];
            let rows = task.load.rows(source.raw(), version).map_err(|error| match error {
                LoadError::Block(error) => self.reader.corrupt(entry, error),
                LoadError::Row(error) => {
                    let error = error_of("row", "one that fits its table", &error.to_string());
                    self.reader.corrupt(entry, error)
                }
                LoadError::Number(number) => {
                    let error = error_of("number of a row", "one that no other row has", &number.to_string());
                    self.reader.corrupt(entry, error)
                }
            })?;
            if rows != entry.items_count {
                let (expected, found) = (entry.items_count.to_string(), rows.to_string());
                return Err(self
                    .reader
                    .corrupt(entry, error_of("rows of the block", &expected, &found)));
            }
            self.note_loaded(entry.raw_bytes as u64 / 2);
            task.bytes -= entry.raw_bytes as u64 / 2;
        }
        let Some(indexes) = task.load.finish(task.next_number) else {
            return Err(broken(
                self.reader,
                "number of the next row",
                "a free one",
                "one that is taken",
            ));
        };
        let shares = indexes.len().max(1) as u64;
        let mut queue = self.lock();
        for (number, load) in indexes.into_iter().enumerate() {
            let share = match number {
                0 => task.bytes - task.bytes / shares * (shares - 1),
                _ => task.bytes / shares,
            };
            let place = (task.partition, table.0, number);
            queue.tasks.push_back(Task::Index(IndexTask { load, place, share }));
        }
        Ok(())
    }

    fn build(&self, task: IndexTask<'s>) -> Result<(), CheckpointError> {
        task.load.build().map_err(|error| {
            let (partition, table, index) = task.place;
            let what = format!("index {index} of table {table} on partition {}", partition.0);
            broken(self.reader, &what, "rows that it can hold", &error.to_string())
        })?;
        self.note_loaded(task.share);
        Ok(())
    }

    /// Reads for another thread until that has what it needs.
    fn read_ahead(&self, task: &AheadTask) -> Result<(), CheckpointError> {
        let from = {
            let mut ahead = task.ahead.lock().expect("held for a step");
            ahead.is_taken_over = true;
            ahead.next
        };
        let mut blocks = self.reader.blocks();
        for number in task.blocks.iter().skip(from) {
            let read = blocks.read(*number).map(|_| ());
            let is_over = read.is_err();
            // The other thread tells of errors; it may have given up.
            if task.to.send(read.map(|()| blocks.take())).is_err() || is_over {
                break;
            }
        }
        Ok(())
    }
}

/// The contents of a table's blocks, in order, read here or by a thread that had nothing else to do.
struct Source<'r> {
    own: Blocks<'r>,
    blocks: Vec<usize>,
    /// Blocks that were handed out.
    done: usize,
    current: Vec<u8>,
    ahead: Arc<Mutex<ReadAhead>>,
    from_other: Receiver<Result<Vec<u8>, CheckpointError>>,
    to_self: Option<Sender<Result<Vec<u8>, CheckpointError>>>,
}

impl<'r> Source<'r> {
    fn new(reader: &'r CheckpointReader, blocks: Vec<usize>) -> Self {
        let (to_self, from_other) = bounded(AHEAD_BLOCKS);
        Self {
            own: reader.blocks(),
            blocks,
            done: 0,
            current: Vec::new(),
            ahead: Arc::default(),
            from_other,
            to_self: Some(to_self),
        }
    }

    /// The work that another thread may take over. Once.
    fn ahead(&mut self) -> AheadTask {
        AheadTask {
            blocks: self.blocks.clone(),
            ahead: self.ahead.clone(),
            to: self.to_self.take().expect("asked once"),
        }
    }

    /// Moves to the next block; its number.
    fn advance(&mut self) -> Result<Option<usize>, CheckpointError> {
        let Some(number) = self.blocks.get(self.done).copied() else {
            return Ok(None);
        };
        self.done += 1;
        let is_taken_over = {
            let mut ahead = self.ahead.lock().expect("held for a step");
            ahead.next += !ahead.is_taken_over as usize;
            ahead.is_taken_over
        };
        self.own.give(mem::take(&mut self.current));
        if !is_taken_over {
            self.own.read(number)?;
            self.current = self.own.take();
            return Ok(Some(number));
        }
        match self.from_other.recv() {
            Ok(raw) => self.current = raw?,
            // It has no block left: it was told of all of them.
            Err(_) => return Ok(None),
        }
        Ok(Some(number))
    }

    fn raw(&self) -> &[u8] {
        &self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample is made as the partition with the most rows is, whichever table comes first.
    #[test]
    fn each_table_has_its_part_in_a_sample() {
        let entry = |partition: u16, table: u16, raw_bytes: u32| CheckpointEntry {
            offset: 0,
            stored_bytes: raw_bytes,
            raw_bytes,
            items_count: 1,
            kind: CheckpointBlockKind::Rows,
            partition: PartitionId(partition),
            table,
        };
        // Partition 1 has 40, 1, 0 and 20 blocks of 100 bytes, partition 0 a few.
        let mut entries = vec![entry(0, 0, 100), entry(0, 3, 100)];
        entries.extend(
            [(0, 40), (1, 1), (3, 20)]
                .into_iter()
                .flat_map(|(table, count)| vec![entry(1, table, 100); count]),
        );
        let counts = |bytes_max: u64| {
            let (partition, blocks) = sample_blocks(&entries, 4, bytes_max);
            assert_eq!(partition, PartitionId(1));
            let all = blocks.iter().flatten();
            assert!(all.clone().all(|number| entries[*number].partition == partition));
            blocks.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(counts(3_000), [20, 1, 0, 9]);
        assert_eq!(counts(300), [2, 1, 0, 0]);
        assert_eq!(counts(u64::MAX), [40, 1, 0, 20]);
        assert_eq!(counts(0), [0, 0, 0, 0]);
        assert_eq!(sample_blocks(&[], 2, 100), (PartitionId(0), vec![vec![], vec![]]));
    }
}
