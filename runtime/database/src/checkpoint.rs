//! Takes checkpoints beside the running engine, keeps the newest ones, and lets go of the log behind them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use reprise_abi::{ModuleSchema, TableSchema, describe::write_json};
use reprise_base::{Lsn, PartitionId};
use reprise_checkpoint::{
    CheckpointError, CheckpointSize, CheckpointWriter, Checkpoints, checkpoint_name,
};
use reprise_env::Clock;
use reprise_log::Log;
use reprise_partition::{CallBatch, Copied};
use reprise_router::{
    CheckpointInfo, CheckpointService, CheckpointState, CopyStart, Exported, Router, TakeError,
};
use reprise_wire::{
    CHECKPOINT_RAW_BYTES_MAX, CheckpointBlockKind, CheckpointDatabase, CheckpointHeader,
    CheckpointKeyRef, CheckpointModuleRef, CheckpointPartition, Genesis,
};

use crate::CheckpointConfig;

/// Pages of rows on their way from the engine threads to the writer: bounds memory while the disk is slow.
const PAGES_IN_FLIGHT_MAX: usize = 64;
/// How often a writer that waits looks whether the node stops.
const LOOK: Duration = Duration::from_millis(50);
/// How often the schedule is looked at.
const SCHEDULE_LOOK: Duration = Duration::from_millis(200);
/// Log that has grown by less is no reason for another checkpoint.
const GROWN_BYTES_MIN: u64 = 4096;
/// Keys copied under one hold of their lock.
const KEYS_AT_ONCE: usize = 1_000;
/// Bytes of keys after which a block is written.
const KEYS_BLOCK_BYTES: usize = 256 << 10;
/// Failures remembered.
const FAILURES_MAX: usize = 8;

const _: () = assert!(KEYS_BLOCK_BYTES + (5 << 20) < CHECKPOINT_RAW_BYTES_MAX);

/// Speeds of the last opening, in bytes a second; those of before any was measured are modest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speeds {
    pub load: f64,
    pub replay: f64,
}

impl Default for Speeds {
    fn default() -> Self {
        Self {
            load: 100e6,
            replay: 30e6,
        }
    }
}

pub(crate) struct Checkpointer {
    router: Router,
    log: Arc<Log<Box<CallBatch>>>,
    files: Checkpoints,
    clock: Arc<dyn Clock>,
    genesis: Genesis,
    settings_hash: u64,
    config: CheckpointConfig,
    pub speeds: Mutex<Speeds>,
    state: Mutex<State>,
    is_stopping: AtomicBool,
    stop: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
    this: Weak<Self>,
}

#[derive(Default)]
struct State {
    running: Option<CheckpointInfo>,
    begun: Option<Instant>,
    published: BTreeMap<Lsn, CheckpointInfo>,
    failed: Vec<CheckpointInfo>,
}

impl Checkpointer {
    pub fn new(
        router: Router,
        log: Arc<Log<Box<CallBatch>>>,
        files: Checkpoints,
        clock: Arc<dyn Clock>,
        genesis: Genesis,
        settings_hash: u64,
        config: CheckpointConfig,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            router,
            log,
            files,
            clock,
            genesis,
            settings_hash,
            config,
            speeds: Mutex::default(),
            state: Mutex::default(),
            is_stopping: AtomicBool::new(false),
            stop: Condvar::new(),
            threads: Mutex::default(),
            this: this.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }

    /// Notes a checkpoint of an earlier run.
    pub fn note(&self, info: CheckpointInfo) {
        self.lock().published.insert(info.lsn, info);
    }

    /// Begins to take checkpoints by the schedule, if there is one.
    pub fn start_schedule(&self) {
        if self.config.every.is_zero() && self.config.log_bytes == 0 {
            return;
        }
        if let Some(this) = self.this.upgrade() {
            self.spawn("checkpoint-schedule", move || this.run_schedule());
        }
    }

    fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> bool {
        let spawned = thread::Builder::new().name(name.to_owned()).spawn(run);
        let mut threads = self.threads.lock().expect("held for a push");
        threads.retain(|thread| !thread.is_finished());
        spawned.map(|thread| threads.push(thread)).is_ok()
    }

    fn run_schedule(&self) {
        let mut last = Instant::now();
        while !self.is_stopping.load(Ordering::Acquire) {
            let state = self.lock();
            drop(self.stop.wait_timeout(state, SCHEDULE_LOOK));
            if self.is_stopping.load(Ordering::Acquire) {
                return;
            }
            let behind = self.newest().unwrap_or(self.log.start());
            let grown = self.log.filled().0.saturating_sub(behind.0);
            let is_time = !self.config.every.is_zero() && last.elapsed() >= self.config.every;
            let is_long = self.config.log_bytes > 0 && grown >= self.config.log_bytes;
            if grown < GROWN_BYTES_MIN || !(is_time || is_long) {
                continue;
            }
            last = Instant::now();
            // A failure is in the list, and told by the writer; the next time comes.
            let _ = CheckpointService::take(self);
        }
    }

    /// Gives up what is under way and ends the threads.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.stop.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock().expect("held to take"));
        for thread in threads {
            let _ = thread.join(); // what it did is in the list
        }
    }

    /// Writes the checkpoint that has begun. On a thread of its own.
    fn run(&self, start: CopyStart, pages: Receiver<Copied>, told: Receiver<()>) {
        let lsn = start.lsn;
        let written = self.write(&start, pages, &told);
        let retired = match &written {
            Ok(_) => self.retire(lsn),
            Err(_) => Ok(()),
        };
        let mut state = self.lock();
        let begun = state.begun.take();
        let Some(mut info) = state.running.take() else {
            return;
        };
        info.seconds = begun.map(|begun| begun.elapsed().as_secs_f64());
        match written {
            Ok(size) => {
                (info.rows, info.row_bytes) = (size.rows, size.row_bytes);
                info.file_bytes = size.file_bytes;
                info.state = CheckpointState::Published;
                info.error = retired.err().map(|error| error.to_string());
                state.published.insert(lsn, info);
            }
            Err(error) => {
                info.state = CheckpointState::Failed;
                info.error = Some(error.to_string());
                state.failed.insert(0, info);
                state.failed.truncate(FAILURES_MAX);
            }
        }
    }

    fn write(
        &self,
        start: &CopyStart,
        pages: Receiver<Copied>,
        told: &Receiver<()>,
    ) -> Result<CheckpointSize, CheckpointError> {
        let mut writer = self.files.begin(CheckpointHeader {
            database_id: self.genesis.database_id,
            lsn: start.lsn,
            settings_hash: self.settings_hash,
            txn_id: start.txn_id,
        })?;
        write_descriptions(&mut writer, start)?;
        self.write_rows(&mut writer, start, &pages)?;
        drop(pages);
        // Not before: what it holds could yet be taken back.
        self.wait_until(|| told.recv_timeout(LOOK).is_ok(), "earlier calls are answered")?;
        let durable = || self.log.wait_durable(start.lsn, LOOK);
        self.wait_until(durable, "the log is durable up to it")?;
        let keys = self.write_keys(&mut writer, start.lsn)?;
        write_database(&mut writer, start, &self.genesis, keys)?;
        writer.publish()
    }

    fn wait_until(&self, mut is_so: impl FnMut() -> bool, what: &str) -> Result<(), CheckpointError> {
        while !is_so() {
            let stopped = match self.is_stopping.load(Ordering::Acquire) {
                true => Some("the node stops".into()),
                false if self.log.appender().is_stopped() => self.log.refusal(),
                false => None,
            };
            if let Some(reason) = stopped {
                let reason = format!("{reason}, before {what}");
                return Err(CheckpointError::GivenUp(reason));
            }
        }
        Ok(())
    }

    fn write_rows(
        &self,
        writer: &mut CheckpointWriter,
        start: &CopyStart,
        pages: &Receiver<Copied>,
    ) -> Result<(), CheckpointError> {
        let given_up = |reason: &str| Err(CheckpointError::GivenUp(reason.to_owned()));
        let mut left = start.partitions.len();
        while left > 0 {
            if self.is_stopping.load(Ordering::Acquire) {
                return given_up("the node stops");
            }
            match pages.recv_timeout(LOOK) {
                Ok(Copied::Done(_)) => left -= 1,
                Ok(Copied::Page(partition, page)) => {
                    let kind = CheckpointBlockKind::Rows;
                    writer.block(kind, partition, page.table, page.rows, &page.bytes)?;
                    self.note_progress(writer.size());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return given_up("the engine has stopped"),
            }
        }
        let tables = start.partitions.iter().flat_map(|partition| &partition.tables);
        let expected: u64 = tables.map(|table| table.rows).sum();
        let found = writer.size().rows;
        if found != expected {
            return given_up(&format!("{found} rows were copied of {expected}"));
        }
        Ok(())
    }

    fn note_progress(&self, size: CheckpointSize) {
        if let Some(info) = &mut self.lock().running {
            (info.rows, info.row_bytes) = (size.rows, size.row_bytes);
            info.file_bytes = size.file_bytes;
        }
    }

    fn write_keys(&self, writer: &mut CheckpointWriter, lsn: Lsn) -> Result<u64, CheckpointError> {
        let (mut from, mut total) = (0, 0u64);
        let (mut raw, mut count) = (Vec::new(), 0u32);
        let kind = CheckpointBlockKind::Keys;
        loop {
            let (keys, next) = self.router.idempotency().export(from, KEYS_AT_ONCE);
            let is_end = next == from || next.saturating_sub(from) < KEYS_AT_ONCE as u64;
            from = next;
            // Later ones come with the log.
            for key in keys.iter().filter(|key| key.outcome.lsn < lsn) {
                push_key(key, &mut raw);
                count += 1;
                if raw.len() >= KEYS_BLOCK_BYTES {
                    writer.block(kind, PartitionId(0), 0, count, &raw)?;
                    total += count as u64;
                    count = 0;
                    raw.clear();
                }
            }
            if is_end {
                break;
            }
        }
        if count > 0 {
            writer.block(kind, PartitionId(0), 0, count, &raw)?;
        }
        Ok(total + count as u64)
    }

    /// Removes checkpoints beyond those kept, then the log that only they needed: in this order a crash between the two
    /// leaves each checkpoint with its log.
    fn retire(&self, newest: Lsn) -> Result<(), CheckpointError> {
        let keep = self.config.keep.max(1);
        let stored = self.files.list()?;
        let older = stored.iter().filter(|lsn| **lsn <= newest).count();
        for lsn in stored.iter().take(older.saturating_sub(keep)) {
            self.files.remove(*lsn)?;
            self.lock().published.remove(lsn);
        }
        let kept = &stored[older.saturating_sub(keep)..older];
        // With fewer, the log from the beginning is the way back from a damaged one.
        if kept.len() == keep {
            let released = self.log.release_before(kept[0]);
            released.map_err(|error| CheckpointError::GivenUp(error.to_string()))?;
        }
        Ok(())
    }
}

impl CheckpointService for Checkpointer {
    fn take(&self) -> Result<CheckpointInfo, TakeError> {
        if let Some(running) = self.running() {
            return Ok(running);
        }
        let mut state = self.lock();
        if state.begun.is_some() {
            drop(state);
            return self.running().ok_or_else(|| TakeError::Failed("it has just ended".into()));
        }
        state.begun = Some(Instant::now());
        drop(state);
        let begun = self.begin();
        if begun.is_err() {
            self.lock().begun = None;
        }
        begun
    }

    fn list(&self) -> Vec<CheckpointInfo> {
        let running = self.running();
        let state = self.lock();
        let published = state.published.values().rev().cloned();
        running.into_iter().chain(published).chain(state.failed.iter().cloned()).collect()
    }

    fn newest(&self) -> Option<Lsn> {
        self.lock().published.keys().next_back().copied()
    }

    fn restart_seconds(&self) -> Option<f64> {
        let speeds = *self.speeds.lock().expect("held for a look");
        let (loaded, from) = match self.lock().published.values().next_back() {
            Some(newest) => (newest.row_bytes, newest.lsn),
            None => (0, self.log.start()),
        };
        let replayed = self.log.filled().0.saturating_sub(from.0);
        Some(loaded as f64 / speeds.load + replayed as f64 / speeds.replay)
    }
}

impl Checkpointer {
    fn running(&self) -> Option<CheckpointInfo> {
        let state = self.lock();
        let mut info = state.running.clone()?;
        info.seconds = state.begun.map(|begun| begun.elapsed().as_secs_f64());
        Some(info)
    }

    /// Marks the moment and leaves the rest to a thread.
    fn begin(&self) -> Result<CheckpointInfo, TakeError> {
        let (to, pages) = bounded(PAGES_IN_FLIGHT_MAX);
        let (tell, told) = bounded(1);
        let tell = Box::new(move || {
            let _ = tell.send(()); // the writer may have given up
        });
        let start = self.router.begin_copy(to, tell)?;
        let tables = start.partitions.iter().flat_map(|partition| &partition.tables);
        let info = CheckpointInfo {
            lsn: start.lsn,
            state: CheckpointState::Running,
            began_unix_us: self.clock.now_us(),
            seconds: Some(0.0),
            rows: 0,
            rows_total: tables.map(|table| table.rows).sum(),
            row_bytes: 0,
            file_bytes: 0,
            file: checkpoint_name(start.lsn),
            error: None,
        };
        self.lock().running = Some(info.clone());
        let this = self.this.upgrade();
        let this = this.ok_or_else(|| TakeError::Failed("the node stops".into()))?;
        match self.spawn("checkpoint", move || this.run(start, pages, told)) {
            true => Ok(info),
            false => {
                self.lock().running = None;
                Err(TakeError::Failed("no thread could be started for it".into()))
            }
        }
    }
}

fn write_descriptions(
    writer: &mut CheckpointWriter,
    start: &CopyStart,
) -> Result<(), CheckpointError> {
    use CheckpointBlockKind::{Module, Partition, Table};
    let mut raw = Vec::new();
    for (module, wasm) in start.deployed.versions.iter().zip(&start.binaries) {
        raw.clear();
        CheckpointModuleRef {
            module_id: module.id.0,
            version: module.version,
            name: &module.name,
            in_service: start.deployed.is_current(module.id),
            installed_by: module.installed_by,
            hash: module.hash,
            description: write_json(&module.schema).as_bytes(),
            wasm,
        }
        .encode(&mut raw);
        writer.block(Module, PartitionId(0), 0, 1, &raw)?;
    }
    for (number, table) in start.deployed.tables.iter().enumerate() {
        let json = table_json(table);
        writer.block(Table, PartitionId(0), number as u16, 1, json.as_bytes())?;
    }
    for partition in &start.partitions {
        raw.clear();
        let tables = partition.tables.iter();
        CheckpointPartition {
            last_tick: partition.last_tick,
            last_end: partition.last_end,
            tables: tables.map(|table| (table.rows, table.next_number)).collect(),
        }
        .encode(&mut raw);
        writer.block(Partition, partition.id, 0, 1, &raw)?;
    }
    Ok(())
}

/// A stored table in the words of a module that has it alone.
fn table_json(table: &TableSchema) -> String {
    write_json(&ModuleSchema {
        abi: reprise_abi::ABI_VERSION,
        tables: vec![table.clone()],
        procedures: Vec::new(),
    })
}

fn write_database(
    writer: &mut CheckpointWriter,
    start: &CopyStart,
    genesis: &Genesis,
    keys: u64,
) -> Result<(), CheckpointError> {
    let mut raw = Vec::new();
    CheckpointDatabase {
        genesis: *genesis,
        multi_tick: start.multi_tick,
        modules: start.deployed.versions.len() as u32,
        tables: start.deployed.tables.len() as u16,
        keys,
    }
    .encode(&mut raw);
    writer.block(CheckpointBlockKind::Database, PartitionId(0), 0, 1, &raw)
}

fn push_key(key: &Exported, raw: &mut Vec<u8>) {
    CheckpointKeyRef {
        key: key.key.as_bytes(),
        fingerprint: key.fingerprint.to_bits(),
        module_id: key.outcome.module.id.0,
        procedure: key.outcome.procedure as u16,
        txn_id: key.outcome.txn_id,
        lsn: key.outcome.lsn,
        partition: key.outcome.partition,
        result: &key.outcome.result,
    }
    .encode(raw);
}
