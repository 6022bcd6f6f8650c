//! Rows and indexes of all partitions out of a checkpoint, by as many threads as there are cores.
//!
//! A table of a partition is one task; each of its indexes is another, once the rows are there. A thread that finds neither
//! reads and decompresses ahead of one that fills a table.

use std::{
    collections::VecDeque,
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
use reprise_storage::{IndexLoad, LoadError, TableLoad};
use reprise_wire::{CheckpointBlockKind, corrupt};

use crate::load::{LoadOutcome, broken};

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
    let threads = (cores as u64).min(1 + reader.size().row_bytes / THREAD_BYTES);
    let pool = FillPool {
        reader,
        loaded,
        outcome,
        queue: Mutex::new(TaskQueue {
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

/// The tables, the largest last.
fn tasks<'s>(partitions: &'s mut [Box<Partition>], reader: &CheckpointReader) -> VecDeque<FillTask<'s>> {
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
    found.into_iter().map(FillTask::Table).collect()
}

enum FillTask<'s> {
    Table(TableTask<'s>),
    Index(IndexTask<'s>),
    Ahead(AheadTask),
}

struct TableTask<'s> {
    partition: PartitionId,
    load: TableLoad<'s>,
    /// The blocks by number, in the order of writing.
    blocks: Vec<usize>,
    bytes: u64,
    next_number: u64,
}

struct IndexTask<'s> {
    load: IndexLoad<'s>,
    /// The place for messages: partition, table, index.
    place: (PartitionId, u16, usize),
    /// Bytes of rows that count as loaded with it.
    share: u64,
}

/// Blocks that one thread reads for another.
struct AheadTask {
    blocks: Vec<usize>,
    ahead: Arc<Mutex<BlockReadAhead>>,
    to: Sender<Result<Vec<u8>, CheckpointError>>,
}

/// Progress of the thread that reads blocks ahead of a table's own thread, which stops it and reads the rest.
#[derive(Default)]
struct BlockReadAhead {
    /// Position of the first block that no thread has begun.
    next: usize,
    is_taken_over: bool,
}

struct TaskQueue<'s> {
    /// Taken from the back.
    tasks: VecDeque<FillTask<'s>>,
    /// Threads that may yet add tasks.
    running: usize,
}

struct FillPool<'r, 's> {
    reader: &'r CheckpointReader,
    loaded: &'r AtomicU64,
    outcome: &'r LoadOutcome,
    queue: Mutex<TaskQueue<'s>>,
    woken: Condvar,
}

impl<'s> FillPool<'_, 's> {
    fn lock(&self) -> MutexGuard<'_, TaskQueue<'s>> {
        self.queue.lock().expect("nothing panics under this lock")
    }

    fn work(&self) {
        while let Some(task) = self.take() {
            let done = match task {
                FillTask::Table(task) => self.fill_table(task),
                FillTask::Index(task) => self.build(task),
                FillTask::Ahead(task) => self.read_ahead(&task),
            };
            if let Err(error) = done {
                self.outcome.fail(error.into());
            }
            self.lock().running -= 1;
            self.woken.notify_all();
        }
    }

    /// The next task; none when there is nothing left to do, or no use in it.
    fn take(&self) -> Option<FillTask<'s>> {
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

    fn count_loaded(&self, bytes: u64) {
        self.loaded.fetch_add(bytes, Ordering::Relaxed);
    }

    fn fill_table(&self, mut task: TableTask<'s>) -> Result<(), CheckpointError> {
        let table = task.load.id();
        let mut source = TableBlocks::new(self.reader, task.blocks);
        self.lock().tasks.push_front(FillTask::Ahead(source.ahead()));
        self.woken.notify_one();
        while let Some(number) = source.advance()? {
            if self.outcome.has_failed() {
                return Ok(());
            }
            let entry = &self.reader.entries()[number];
            let rows = task.load.rows(source.raw()).map_err(|error| match error {
                LoadError::Block(error) => self.reader.corrupt(entry, error),
                LoadError::Row(error) => {
                    let error = corrupt("row", "one that fits its table", error);
                    self.reader.corrupt(entry, error)
                }
                LoadError::Number(number) => {
                    let error = corrupt("number of a row", "one that no other row has", number);
                    self.reader.corrupt(entry, error)
                }
            })?;
            if rows != entry.items_count {
                let error = corrupt("rows of the block", entry.items_count, rows);
                return Err(self.reader.corrupt(entry, error));
            }
            self.count_loaded(entry.raw_bytes as u64 / 2);
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
            queue.tasks.push_back(FillTask::Index(IndexTask { load, place, share }));
        }
        Ok(())
    }

    fn build(&self, task: IndexTask<'s>) -> Result<(), CheckpointError> {
        task.load.build().map_err(|error| {
            let (partition, table, index) = task.place;
            let what = format!("index {index} of table {table} on partition {}", partition.0);
            broken(self.reader, &what, "rows that it can hold", &error.to_string())
        })?;
        self.count_loaded(task.share);
        Ok(())
    }

    /// Reads for another thread until that thread has the blocks that it needs.
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
struct TableBlocks<'r> {
    own: Blocks<'r>,
    blocks: Vec<usize>,
    /// Blocks that were handed out.
    done: usize,
    current: Vec<u8>,
    ahead: Arc<Mutex<BlockReadAhead>>,
    from_other: Receiver<Result<Vec<u8>, CheckpointError>>,
    to_self: Option<Sender<Result<Vec<u8>, CheckpointError>>>,
}

impl<'r> TableBlocks<'r> {
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
            // The other thread has sent all blocks already.
            Err(_) => return Ok(None),
        }
        Ok(Some(number))
    }

    fn raw(&self) -> &[u8] {
        &self.current
    }
}
