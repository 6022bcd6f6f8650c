//! One log replayed three ways on one thread: changes put in place as a standby does, replay arrays, and the procedures that made the log. The maker
//! of the log measures the last way. Beside that, the cost of reading a row that no reader read since it was replayed.

use std::{
    fs,
    hint::black_box,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use reprise_abi::RowLayout;
use reprise_base::Lsn;
use reprise_database::Database;
use reprise_driver::{Around, BenchError, run_in};
use reprise_env::RealDisk;
use reprise_log::LogReader;
use reprise_storage::{LastWrites, PartitionRedo, Store, TableId};
use reprise_wire::RawRecords;

use crate::{arrays::ReplayArrays, threads::ran_ns, ways::options};

/// Bytes of log that a standby replays at once.
const WINDOW_BYTES: usize = 256 << 10;
/// Name of the file with the LSN at which the run begins after the load.
const BEGIN_NAME: &str = "run-begins-at";
/// Rows that are read.
const READS: usize = 200_000;

/// The findings, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replayed {
    pub transactions: u64,
    pub changes: u64,
    /// Rows that were changed and are still there: each is built once at least, whenever that is.
    pub rows: u64,
    pub log_bytes: u64,
    /// Time of a transaction.
    pub redo_ns: f64,
    pub arrays_ns: f64,
    /// Time of a read by row number: in place; built from its changes and installed; installed before.
    pub plain_read_ns: f64,
    pub first_read_ns: f64,
    pub later_read_ns: f64,
    /// Changes between a row that is read and what it is built on, on average.
    pub chain: f64,
}

/// A log that a run left, and how fast the run was.
pub struct Made {
    pub dir: PathBuf,
    pub engine_ns: Option<u64>,
    pub txn_per_s: f64,
}

/// Notes where the run begins.
struct NoteBegin<'a>(&'a Path);

impl Around for NoteBegin<'_> {
    fn filled(&self, database: &Arc<Database>) -> Result<(), BenchError> {
        let begin = database.router().view().0.to_string();
        let path = self.0.join(BEGIN_NAME);
        fs::write(&path, begin).map_err(|error| BenchError::Failed(format!("write {}: {error}", path.display())))
    }
}

/// Runs the workload on one partition, its changes logged under `dir`.
pub fn make_log(run: &crate::ways::Run<'_>, dir: &Path) -> Result<Made> {
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    let options = options(run, Some(dir.to_owned()));
    let report = run_in(&options, &NoteBegin(dir), &|_| {})?;
    Ok(Made {
        dir: dir.to_owned(),
        engine_ns: report.engine_ns_per_call,
        txn_per_s: report.txn_per_s,
    })
}

/// A piece of the log, and where the changes of its transactions lie in it.
#[derive(Default)]
struct Window {
    bytes: Vec<u8>,
    /// Whole records one behind the other, with the format of their segment.
    blocks: Vec<(usize, usize)>,
    /// Changes of transactions.
    changes: Vec<(u32, usize, usize)>,
}

impl Window {
    fn push(&mut self, records: &[u8]) -> Result<()> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(records);
        self.blocks.push((start, self.bytes.len()));
        let records = &self.bytes[start..];
        for record in RawRecords::new(records) {
            let record = record?;
            let place = |changes: &[u8]| {
                let at = changes.as_ptr() as usize - self.bytes.as_ptr() as usize;
                (at, at + changes.len())
            };
            if let Some((_, changes)) = record.plain_changes() {
                let (from, to) = place(changes);
                self.changes.push(((start + record.start) as u32, from, to));
                continue;
            }
            let decoded = record.decode()?;
            let groups: Vec<_> = decoded.groups().map(|(_, changes)| place(changes)).collect();
            let at = (start + record.start) as u32;
            self.changes.extend(groups.into_iter().map(|(from, to)| (at, from, to)));
        }
        Ok(())
    }
}

/// The log's windows before and behind where the run begins.
fn windows(dir: &Path) -> Result<(Vec<Window>, Vec<Window>)> {
    let begin = fs::read_to_string(dir.join(BEGIN_NAME)).context("read where the run begins")?;
    let begin = Lsn(begin.trim().parse().context("where the run begins")?);
    let disk = RealDisk::create(dir.join("log")).context("open the log's folder")?;
    let (mut reader, report) = LogReader::open(Arc::new(disk), Lsn(0))?;
    ensure!(report.damage.is_none(), "the log is damaged");
    let (mut load, mut run) = (vec![Window::default()], vec![Window::default()]);
    while let Some(block) = reader.next_block()? {
        let mut lsn = block.lsn;
        let mut cut = block.records.len();
        for record in RawRecords::new(block.records) {
            let record = record?;
            if lsn >= begin {
                cut = record.start;
                break;
            }
            lsn = Lsn(lsn.0 + 1);
        }
        for (windows, records) in [(&mut load, &block.records[..cut]), (&mut run, &block.records[cut..])] {
            if windows.last().is_some_and(|last| last.bytes.len() >= WINDOW_BYTES) {
                windows.push(Window::default());
            }
            if let (Some(window), false) = (windows.last_mut(), records.is_empty()) {
                window.push(records)?;
            }
        }
    }
    Ok((load, run))
}

fn store(workload: &str) -> Result<Store> {
    let module = match workload {
        "voter" => &voter::MODULE,
        _ => &tpcc::MODULE,
    };
    let mut store = Store::new();
    for table in module.schema().tables {
        let name = table.name.clone();
        let created = store.create_table(table);
        ensure!(created.is_ok(), "the table {name} can't be made");
    }
    Ok(store)
}

/// Redoes the windows as a standby does, on one thread.
#[inline(never)]
fn measured_redo(store: &mut Store, windows: &[Window]) -> Result<()> {
    redo(store, windows)
}

#[inline(always)]
fn redo(store: &mut Store, windows: &[Window]) -> Result<()> {
    let (mut redo, mut last) = (PartitionRedo::default(), LastWrites::default());
    for window in windows {
        last.begin(window.bytes.len());
        let schema = store.redo_schema();
        for (txn, from, to) in &window.changes {
            let pushed = redo.push(&schema, &window.bytes, *txn, *from..*to, &mut last);
            pushed.map_err(|found| found.error)?;
        }
        redo.apply(store, &window.bytes, 0.0).map_err(|found| found.error)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_arrays(arrays: &mut ReplayArrays, windows: &[Window]) -> Result<u64> {
    let (mut place, mut transactions) = (0, 0);
    for window in windows {
        for (start, end) in &window.blocks {
            transactions += arrays.add_records(place + *start as u64, &window.bytes[*start..*end])?;
        }
        place += window.bytes.len() as u64;
    }
    Ok(transactions)
}

/// A row to read.
#[derive(Clone, Copy)]
struct Asked {
    table: TableId,
    number: u64,
}

#[inline(never)]
fn measured_plain_reads(store: &Store, asked: &[Asked]) -> u64 {
    let sum = |sum: u64, asked: &Asked| {
        let row = store.numbered_row(asked.table, asked.number).unwrap_or_default();
        sum.wrapping_add(row.first().copied().unwrap_or(0).into())
    };
    asked.iter().fold(0, sum)
}

/// A lazy store: the earlier tables, the arrays, and the rows that readers built.
struct Lazy<'a> {
    before: &'a Store,
    arrays: &'a ReplayArrays,
    log: &'a [u8],
    layouts: Vec<RowLayout>,
    /// By table and number: the newest change when it was built, and the row.
    installed: Vec<Vec<(u32, Box<[u8]>)>>,
    row: Vec<u8>,
}

impl Lazy<'_> {
    #[inline]
    fn read(&mut self, asked: Asked) -> Result<&[u8]> {
        let (table, number) = (asked.table.0 as usize, asked.number);
        let newest = self.arrays.newest(0, table, number);
        let installed = &mut self.installed[table];
        if installed.len() <= number as usize {
            installed.resize_with((number as usize + 1).next_power_of_two(), Default::default);
        }
        if installed[number as usize].0 != newest {
            let before = self.before.numbered_row(asked.table, number);
            let layout = &self.layouts[table];
            self.arrays.build(newest, self.log, layout, before, &mut self.row)?;
            installed[number as usize] = (newest, self.row.as_slice().into());
        }
        Ok(&installed[number as usize].1)
    }
}

#[inline(never)]
fn measured_lazy_reads(lazy: &mut Lazy<'_>, asked: &[Asked]) -> Result<u64> {
    let mut sum = 0u64;
    for asked in asked {
        sum = sum.wrapping_add(lazy.read(*asked)?.first().copied().unwrap_or(0).into());
    }
    Ok(sum)
}

/// Every row that was changed is the same both ways.
fn compare(store: &Store, lazy: &mut Lazy<'_>) -> Result<Vec<Asked>> {
    let mut asked = Vec::new();
    for table in store.table_ids() {
        for number in lazy.arrays.changed(0, table.0 as usize) {
            let newest = lazy.arrays.newest(0, table.0 as usize, number);
            let before = lazy.before.numbered_row(table, number);
            let layout = &lazy.layouts[table.0 as usize];
            let is_there = lazy.arrays.build(newest, lazy.log, layout, before, &mut lazy.row)?;
            let expected = store.numbered_row(table, number);
            ensure!(
                expected == is_there.then_some(&lazy.row[..]),
                "row {number} of table {} is another by replay arrays than by redo",
                table.0
            );
            if is_there {
                asked.push(Asked { table, number });
            }
        }
    }
    Ok(asked)
}

/// Returns the rows in random order, at most `READS`.
fn shuffled(mut asked: Vec<Asked>) -> Vec<Asked> {
    let mut random = reprise_driver::Random::new(17);
    for at in (1..asked.len()).rev() {
        asked.swap(at, (random.next_u64() % (at as u64 + 1)) as usize);
    }
    asked.truncate(READS);
    asked
}

/// Processor time of this thread, by which other work of the machine counts little.
struct Timed(u64);

impl Timed {
    fn begin() -> Result<Self> {
        Ok(Self(ran_ns()?))
    }

    /// Nanoseconds of each. The system's count is brought up to date now and then: what took less is a nanosecond in all.
    fn each(self, count: usize) -> Result<f64> {
        Ok((ran_ns()? - self.0).max(1) as f64 / count.max(1) as f64)
    }
}

/// Replays the log under `dir`; `Err` if the two ways reach different rows.
pub fn measure(workload: &str, dir: &Path) -> Result<Replayed> {
    let (load, run) = windows(dir)?;
    let (mut before, mut now) = (store(workload)?, store(workload)?);
    for store in [&mut before, &mut now] {
        redo(store, &load)?;
    }
    drop(load);
    let transactions: usize = run.iter().map(|window| window.changes.len()).sum();
    let timed = Timed::begin()?;
    measured_redo(&mut now, &run)?;
    let redo_ns = timed.each(transactions)?;
    let mut arrays = ReplayArrays::default();
    let timed = Timed::begin()?;
    let added = measured_arrays(&mut arrays, &run)?;
    let arrays_ns = timed.each(transactions)?;
    ensure!(
        added == transactions as u64,
        "{added} transactions noted of {transactions}"
    );

    let log: Vec<u8> = run.iter().flat_map(|window| window.bytes.iter().copied()).collect();
    let layouts = now.table_ids().map(|table| now.layout(table).clone()).collect();
    let tables = now.table_count();
    let mut lazy = Lazy {
        before: &before,
        arrays: &arrays,
        log: &log,
        layouts,
        installed: (0..tables).map(|_| Vec::new()).collect(),
        row: Vec::new(),
    };
    let asked = compare(&now, &mut lazy)?;
    let rows = asked.len();
    let asked = shuffled(asked);
    let timed = Timed::begin()?;
    let plain = black_box(measured_plain_reads(&now, &asked));
    let plain_read_ns = timed.each(asked.len())?;
    let timed = Timed::begin()?;
    let first = measured_lazy_reads(&mut lazy, &asked)?;
    let first_read_ns = timed.each(asked.len())?;
    let timed = Timed::begin()?;
    let later = measured_lazy_reads(&mut lazy, &asked)?;
    let later_read_ns = timed.each(asked.len())?;
    ensure!(plain == first && first == later, "reads come to different rows");
    Ok(Replayed {
        transactions: added,
        changes: arrays.len() as u64,
        rows: rows as u64,
        log_bytes: log.len() as u64,
        redo_ns,
        arrays_ns,
        plain_read_ns,
        first_read_ns,
        later_read_ns,
        chain: arrays.chain(&mut asked.iter().map(|asked| (asked.table.0 as usize, asked.number))),
    })
}
