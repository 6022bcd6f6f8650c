//! One checkpoint on its way to the disk, a piece at a time. Each piece waits for the things that it needs.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering},
    thread::available_parallelism,
    time::Duration,
};

use crossbeam_channel::{Receiver, Select, TryRecvError};
use reprise_base::{Lsn, PartitionId};
use reprise_checkpoint::{CheckpointError, CheckpointReader, CheckpointSize, CheckpointWriter};
use reprise_env::{Step, Work};
use reprise_observe::{Notice, NoticeKind};
use reprise_partition::CopyMessage;
use reprise_recovery::check_descriptions;
use reprise_router::{CopyStart, Deployed, ExportedKey, Module};
use reprise_storage::stored_json;
use reprise_wire::{
    CHECKPOINT_RAW_BYTES_MAX, CheckpointBlockKind, CheckpointDatabase, CheckpointFormerRef, CheckpointHeader,
    CheckpointKeyRef, CheckpointModuleRef, CheckpointPartition, CheckpointPrincipals, CheckpointQuarantine, Genesis,
};

use crate::{checkpoint_history::CheckpointHistory, engine::EngineHandles, retention::Retention};

/// Interval at which a waiting writer checks whether the node stops.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Keys copied under one hold of their lock.
const KEYS_AT_ONCE: usize = 1_000;
/// Bytes of keys after which a block is written.
const KEYS_BLOCK_BYTES: usize = 256 << 10;

/// Factor of the rest after each piece of work: a seventeenth of a core at most, while calls wait.
const REST_FACTOR: u32 = 16;
/// Read back at a time.
const BACK_BYTES: usize = 1 << 20;
/// Maximum time of a piece that counts: the rest was the disk.
const PIECE_MAX: Duration = Duration::from_millis(4);

const _: () = assert!(KEYS_BLOCK_BYTES + (5 << 20) < CHECKPOINT_RAW_BYTES_MAX);

/// The writing of one checkpoint, on a thread of its own.
pub(crate) struct CheckpointJob {
    history: Arc<CheckpointHistory>,
    retention: Arc<Retention>,
    start: CopyStart,
    /// Gone once all rows are here, or never will be.
    pages: Option<Receiver<CopyMessage>>,
    answered: Receiver<()>,
    writer: Option<CheckpointWriter>,
    /// Reader of the file that was written, as a recovery would read it.
    back: Option<CheckpointReader>,
    size: CheckpointSize,
    /// Partitions whose rows are not all here.
    left: usize,
    stage: CheckpointStage,
    /// Time to rest after the last write.
    rest: Duration,
    /// The threads here have to share the cores with the engine's.
    is_crowded: bool,
}

/// The next stage of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckpointStage {
    Descriptions,
    Rows,
    /// Waits until earlier calls are answered. Before that, its rows could still be rolled back.
    Answered,
    /// The log durable up to it.
    Durable,
    /// Former modules, keys, the index, the trailer.
    Keys,
    /// Reads the file back, from this block on.
    Back(usize),
    /// The name.
    End,
}

impl CheckpointJob {
    pub fn make(
        history: Arc<CheckpointHistory>,
        retention: Arc<Retention>,
        start: CopyStart,
        pages: Receiver<CopyMessage>,
        answered: Receiver<()>,
    ) -> Box<dyn Work> {
        Box::new(Self {
            left: start.partitions.len(),
            rest: Duration::ZERO,
            is_crowded: is_crowded(history.engine.shared.sites_count),
            history,
            retention,
            start,
            pages: Some(pages),
            answered,
            writer: None,
            back: None,
            size: CheckpointSize::default(),
            stage: CheckpointStage::Descriptions,
        })
    }

    fn engine(&self) -> &EngineHandles {
        &self.history.engine
    }

    /// Does the work that is possible now. Returns the size of the checkpoint once it is published.
    fn advance(&mut self) -> Result<(Step, Option<CheckpointSize>), CheckpointError> {
        let step = match self.stage {
            CheckpointStage::Descriptions => self.begin()?,
            CheckpointStage::Rows => self.take_rows()?,
            CheckpointStage::Answered => self.go_on_if(self.answered.try_recv().is_ok(), CheckpointStage::Durable)?,
            CheckpointStage::Durable => {
                self.engine().log.want_copied(self.start.lsn);
                let is_durable = self.engine().log.copied() >= self.start.lsn;
                self.go_on_if(is_durable, CheckpointStage::Keys)?
            }
            CheckpointStage::Keys => self.finish()?,
            CheckpointStage::Back(number) => self.read_back(number)?,
            CheckpointStage::End => return Ok((Step::Over, Some(self.publish()?))),
        };
        Ok((step, None))
    }

    fn writer(&mut self) -> &mut CheckpointWriter {
        self.writer
            .as_mut()
            .expect("made by the first stage, taken by the last")
    }

    fn begin(&mut self) -> Result<Step, CheckpointError> {
        let mut writer = self.engine().files.begin(CheckpointHeader {
            database_id: self.engine().genesis.database_id,
            lsn: self.start.lsn,
            settings_hash: self.engine().settings_hash,
            txn_id: self.start.txn_id,
            memory_bytes: self.engine().shared.memory.data_bytes(),
        })?;
        write_descriptions(&mut writer, &self.start)?;
        self.writer = Some(writer);
        self.stage = CheckpointStage::Rows;
        Ok(Step::Done)
    }

    fn take_rows(&mut self) -> Result<Step, CheckpointError> {
        let abandoned = |reason: &str| Err(CheckpointError::GivenUp(reason.to_owned()));
        if self.history.is_stopping() {
            return abandoned("the node stops");
        }
        let pages = self.pages.as_ref().expect("taken until the last page");
        match pages.try_recv() {
            Ok(CopyMessage::Done(_)) => self.left -= 1,
            Ok(CopyMessage::Page(partition, page)) => {
                let kind = CheckpointBlockKind::Rows;
                let begun_ns = self.engine().shared.clock.monotonic_ns();
                let writer = self.writer();
                writer.block(kind, partition, page.table, page.rows, &page.bytes)?;
                let size = writer.size();
                self.history.record_progress(size);
                let spent_ns = self.engine().shared.clock.monotonic_ns() - begun_ns;
                self.rest = Duration::from_nanos(spent_ns).min(PIECE_MAX) * REST_FACTOR;
            }
            Err(TryRecvError::Empty) => return Ok(Step::Idle),
            Err(TryRecvError::Disconnected) => {
                return abandoned("the engine has stopped, or has no memory left for the copy");
            }
        }
        if self.left > 0 {
            return Ok(Step::Done);
        }
        self.pages = None;
        let tables = self.start.partitions.iter().flat_map(|partition| &partition.tables);
        let expected: u64 = tables.map(|table| table.rows).sum();
        let found = self.writer().size().rows;
        if found != expected {
            return abandoned(&format!("{found} rows were copied of {expected}"));
        }
        self.stage = CheckpointStage::Answered;
        Ok(Step::Done)
    }

    fn go_on_if(&mut self, is_so: bool, next: CheckpointStage) -> Result<Step, CheckpointError> {
        if is_so {
            self.stage = next;
            return Ok(Step::Done);
        }
        let stopped = match self.history.is_stopping() {
            true => Some("the node stops".into()),
            false if self.engine().log.is_stopped() => self.engine().log.refusal(),
            false => None,
        };
        let Some(reason) = stopped else {
            return Ok(Step::Idle);
        };
        let what = match self.stage {
            CheckpointStage::Answered => "earlier calls are answered",
            _ => "the log is durable up to it",
        };
        Err(CheckpointError::GivenUp(format!("{reason}, before {what}")))
    }

    fn finish(&mut self) -> Result<Step, CheckpointError> {
        let mut writer = self.writer.take().expect("taken by this stage alone");
        self.write_former(&mut writer)?;
        let keys = self.write_keys(&mut writer)?;
        write_database(&mut writer, &self.start, &self.engine().genesis, keys)?;
        self.size = writer.finish()?;
        let back = writer.read_back()?;
        check_descriptions(&back)?;
        (self.writer, self.back) = (Some(writer), Some(back));
        self.stage = CheckpointStage::Back(0);
        Ok(Step::Done)
    }

    /// A checkpoint that can't be read back must not replace one that can.
    fn read_back(&mut self, number: usize) -> Result<Step, CheckpointError> {
        if self.history.is_stopping() {
            return Err(CheckpointError::GivenUp("the node stops".into()));
        }
        let begun_ns = self.engine().shared.clock.monotonic_ns();
        let back = self.back.as_ref().expect("made by the stage before");
        let next = back.check_stored(number, BACK_BYTES)?;
        self.stage = match next < back.entries().len() {
            true => CheckpointStage::Back(next),
            false => CheckpointStage::End,
        };
        let spent_ns = self.engine().shared.clock.monotonic_ns() - begun_ns;
        self.rest = Duration::from_nanos(spent_ns).min(PIECE_MAX) * REST_FACTOR;
        Ok(Step::Done)
    }

    fn publish(&mut self) -> Result<CheckpointSize, CheckpointError> {
        self.back = None;
        let writer = self.writer.take().expect("put back by the stages before");
        writer.publish()?;
        Ok(self.size)
    }

    /// Sleeps until there may be something to do, for one poll interval at most.
    fn wait(&self) {
        let mut select = Select::new();
        match (self.stage, &self.pages) {
            (CheckpointStage::Rows, Some(pages)) => {
                select.recv(pages);
            }
            (CheckpointStage::Durable, _) => {
                // Whether they are is seen by the next step.
                let _ = self.engine().log.wait_copied(self.start.lsn, POLL_INTERVAL);
                return;
            }
            _ => {
                select.recv(&self.answered);
            }
        }
        let _ = select.ready_timeout(POLL_INTERVAL); // the next step checks for a message
    }

    /// While calls wait and cores are few, compressing must not take them: the engine's threads come first.
    fn rest(&mut self) {
        let rest = std::mem::take(&mut self.rest);
        let calls = self.engine().shared.waiting.iter();
        if self.is_crowded && calls.map(|calls| calls.load(Ordering::Relaxed)).sum::<usize>() > 0 {
            self.engine().shared.threads.sleep(rest);
        }
    }

    /// Copies the bytes of versions out of service from their present place, because the log behind an earlier checkpoint is released after
    /// this one.
    fn write_former(&self, writer: &mut CheckpointWriter) -> Result<(), CheckpointError> {
        let mut raw = Vec::new();
        for module in self.start.deployed.kept_former() {
            let wasm = match self.engine().find_bytes(&self.start.deployed, &module.hash) {
                Ok(wasm) => wasm,
                Err(reason) => {
                    let notices = &self.engine().shared.notices;
                    notices.publish(NoticeKind::Checkpoint, || Notice::FormerLost {
                        module: module.name.clone(),
                        version: module.version,
                        reason,
                    });
                    continue; // a disk that lost these files must not end all checkpoints
                }
            };
            raw.clear();
            CheckpointFormerRef {
                hash: module.hash,
                wasm: &wasm,
            }
            .encode(&mut raw);
            writer.block(CheckpointBlockKind::Former, PartitionId(0), 0, 1, &raw)?;
        }
        Ok(())
    }

    fn write_keys(&self, writer: &mut CheckpointWriter) -> Result<u64, CheckpointError> {
        let lsn: Lsn = self.start.lsn;
        let (mut after, mut total) = (None, 0u64);
        let (mut raw, mut count) = (Vec::new(), 0u32);
        let kind = CheckpointBlockKind::Keys;
        loop {
            let keys = self.engine().router.idempotency().export(after, KEYS_AT_ONCE);
            let Some(last) = keys.last() else {
                break;
            };
            after = Some((last.kept_us, last.outcome.txn_id));
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
        }
        if count > 0 {
            writer.block(kind, PartitionId(0), 0, count, &raw)?;
        }
        Ok(total + count as u64)
    }
}

/// Beside each site another thread brings calls, and both of them are busy when it matters.
fn is_crowded(sites: u16) -> bool {
    let cores = available_parallelism().map_or(1, |cores| cores.get());
    cores <= 2 * sites as usize
}

impl Work for CheckpointJob {
    fn run(mut self: Box<Self>) {
        loop {
            match self.step() {
                Step::Done => self.rest(),
                Step::Idle => self.wait(),
                Step::Over => return,
            }
        }
    }

    fn step(&mut self) -> Step {
        // Whatever goes wrong in here ends this checkpoint alone: the next one can be taken.
        let ended = match catch_unwind(AssertUnwindSafe(|| self.advance())) {
            Ok(Ok((step, None))) => return step,
            Ok(Ok((_, Some(size)))) => Ok(size),
            Ok(Err(error)) => Err(error),
            Err(panic) => Err(CheckpointError::GivenUp(format!(
                "it panicked: {}",
                panic_text(&*panic)
            ))),
        };
        // No thread copies for it any longer, and nothing of a failed checkpoint stays.
        self.pages = None;
        self.back = None;
        self.writer = None;
        self.retention.record_end(self.start.lsn, ended);
        Step::Over
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or(panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("it said nothing")
}

/// Names of the migrations that the module's tables have had, beside the newest version of its name.
fn migrations_of(deployed: &Deployed, module: &Module) -> Vec<u8> {
    let mut names = Vec::new();
    let newest = deployed.versions.iter().rfind(|other| other.name == module.name);
    if newest.is_some_and(|newest| newest.id == module.id) {
        let had = deployed.migrations.get(&module.name).into_iter().flatten();
        had.for_each(|name| CheckpointModuleRef::push_migration(&mut names, name));
    }
    names
}

/// Table origins of a version that is out of service.
fn origins_of(deployed: &Deployed, module: &Module) -> Vec<u8> {
    let mut list = Vec::new();
    for origin in deployed
        .lineage
        .of(module.id)
        .into_iter()
        .flat_map(|origins| origins.iter())
    {
        let origin = origin.as_ref().map(|origin| (origin.table.0, &*origin.columns));
        CheckpointModuleRef::push_origin(&mut list, origin);
    }
    list
}

fn write_descriptions(writer: &mut CheckpointWriter, start: &CopyStart) -> Result<(), CheckpointError> {
    use CheckpointBlockKind::{Module, Partition, Principals, Quarantine, Table};
    let mut raw = Vec::new();
    for (module, bytes) in start.deployed.versions.iter().zip(&start.binaries) {
        raw.clear();
        let in_service = start.deployed.is_current(module.id);
        CheckpointModuleRef {
            module_id: module.id.0,
            version: module.version,
            name: &module.name,
            in_service,
            installed_by: module.installed_by,
            hash: module.hash,
            migrations: &migrations_of(&start.deployed, module),
            origins: &origins_of(&start.deployed, module),
            wasm_bytes: match in_service {
                true => bytes.wasm.len() as u32,
                false => module.wasm_bytes as u32,
            },
            description: &module.description,
            wasm: &bytes.wasm,
        }
        .encode(&mut raw);
        writer.block(Module, PartitionId(0), 0, 1, &raw)?;
    }
    for (number, table) in start.deployed.tables.iter().enumerate() {
        let json = stored_json(table);
        writer.block(Table, PartitionId(0), number as u16, 1, json.as_bytes())?;
    }
    raw.clear();
    for ((module, procedure), why) in &start.deployed.quarantine {
        CheckpointQuarantine {
            module_id: module.0,
            procedure: *procedure,
            diverged: why.diverged,
            what: why.what.clone(),
        }
        .encode(&mut raw);
    }
    if !raw.is_empty() {
        let count = start.deployed.quarantine.len() as u32;
        writer.block(Quarantine, PartitionId(0), 0, count, &raw)?;
    }
    raw.clear();
    for (name, number) in start.principals.iter().zip(1..) {
        CheckpointPrincipals::push(&mut raw, number, name);
    }
    if !raw.is_empty() {
        writer.block(Principals, PartitionId(0), 0, start.principals.len() as u32, &raw)?;
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
        key_clock_us: start.key_clock_us,
    }
    .encode(&mut raw);
    writer.block(CheckpointBlockKind::Database, PartitionId(0), 0, 1, &raw)
}

fn push_key(key: &ExportedKey, raw: &mut Vec<u8>) {
    CheckpointKeyRef {
        key: key.key.as_bytes(),
        scope: key.scope.as_bytes(),
        fingerprint: key.digests.fingerprint,
        args_hash: key.digests.args_hash,
        kept_us: key.kept_us,
        module_id: key.outcome.module.0,
        procedure: key.outcome.procedure as u16,
        txn_id: key.outcome.txn_id,
        lsn: key.outcome.lsn,
        partition: key.outcome.partition,
        result: &key.outcome.result,
    }
    .encode(raw);
}
