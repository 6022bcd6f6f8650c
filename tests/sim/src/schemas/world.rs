//! One life of a database whose modules are descriptions, on a simulated disk.

use std::sync::{Arc, Mutex};

use reprise_abi::RowLayout;
use reprise_base::Lsn;
use reprise_database::{
    BatchLimits, CheckpointConfig, CommitMode, Database, DatabaseConfig, DeviceConfig, Environment, LogPolicy,
    RedoConfig, SampleRate,
};
use reprise_env::{
    SimClock, SimDisk, Stepper, Threads,
    sim::{CrashPolicy, FaultRandom},
};
use reprise_router::{BatchBuilder, BatchReply, LogSearch, ReplyOutcome, Router, RowsRequest};
use reprise_upkeep::CheckpointPhase;

use super::{
    model::{Model, Write, form},
    module::{DescribedCompiler, PROCEDURES},
};
use crate::tree::folders;

pub struct Life {
    pub disk: SimDisk,
    stepper: Stepper,
    database: Option<Database>,
}

impl Life {
    pub fn open(disk: &SimDisk, partitions: u16, sites: u16, log: u64, now_us: i64, seed: u64) -> Result<Self, String> {
        let clock = Arc::new(SimClock::at_us(now_us));
        let stepper = Stepper::new(seed, clock.clone());
        let threads: Arc<dyn Threads> = Arc::new(stepper.clone());
        let around = Environment {
            clock,
            threads,
            folders: Some(folders(disk)),
            nvram: Arc::new(reprise_nvram::MapRegions::default()),
            compiler: Arc::new(DescribedCompiler),
            sampling: SampleRate::default(),
            part_bytes: 40,
            redo_window_bytes: 1 << 10,
            file_part_bytes: 1 << 10,
            entropy: Box::new(|| Ok([7; 16])),
        };
        let config = DatabaseConfig {
            dir: None,
            partitions,
            sites,
            log: match log {
                0 => LogPolicy::Command,
                1 => LogPolicy::Both,
                _ => LogPolicy::Physiological,
            },
            redo: RedoConfig::default(),
            device: DeviceConfig::File,
            commit: CommitMode::Sync,
            batch_limits: BatchLimits::default(),
            segment_bytes: 64 << 10,
            checkpoints: CheckpointConfig::BY_HAND,
            memory_max_bytes: u64::MAX,
        };
        let mut life = Self {
            disk: disk.clone(),
            stepper,
            database: None,
        };
        let database = Database::open_in(config, around).map_err(|error| format!("open: {error}"))?;
        let recovered = database.recover();
        life.database = Some(database);
        recovered.map_err(|error| format!("recover: {error}"))?;
        Ok(life)
    }

    fn database(&self) -> &Database {
        self.database.as_ref().expect("there until dropped")
    }

    pub fn router(&self) -> &Router {
        self.database().router()
    }

    /// Makes the call, which is expected to commit.
    pub fn call(&self, write: &Write) -> Result<(), String> {
        let deployed = self.router().deployed();
        let module = &deployed.current[&write.module];
        let mut batch = BatchBuilder::new(deployed.clone(), self.router());
        let encode = |out: &mut Vec<u8>| {
            out.extend_from_slice(&write.args());
            Ok::<(), ()>(())
        };
        let number = PROCEDURES
            .iter()
            .position(|name| *name == write.procedure())
            .expect("one of them");
        batch.push(module, number, None, encode).expect("encoded");
        let reply: Arc<Mutex<Option<BatchReply>>> = Arc::default();
        let place = reply.clone();
        self.router().submit(
            batch,
            Box::new(move |reply| *place.lock().expect("one thread") = Some(reply)),
        );
        let reply = loop {
            // The callback takes the lock, too.
            let taken = reply.lock().expect("one thread").take();
            match taken {
                Some(reply) => break reply,
                None => self.stepper.help(),
            }
        };
        match reply.get(0).outcome {
            ReplyOutcome::Committed => Ok(()),
            other => Err(format!("{write:?}: {other:?}")),
        }
    }

    pub fn checkpoint(&self) -> Result<(), String> {
        let checkpointer = self.database().checkpointer().map_err(|error| error.to_string())?;
        let begun = checkpointer.take().map_err(|error| error.to_string())?;
        loop {
            let all = checkpointer.list();
            let found = all.into_iter().find(|info| info.lsn == begun.lsn);
            match found.map(|info| (info.state, info.error)) {
                Some((CheckpointPhase::Published, None)) => return Ok(()),
                Some((CheckpointPhase::Running, _)) => self.stepper.help(),
                other => return Err(format!("checkpoint: {other:?}")),
            }
        }
    }

    /// The tables are those of the model, and so are the modules in service.
    pub fn matches(&self, model: &Model) -> Result<bool, String> {
        let deployed = self.router().deployed();
        let found = deployed
            .current
            .iter()
            .map(|(name, module)| (name, &module.schema.tables));
        let in_service = found.eq(model.modules.iter());
        Ok(in_service && self.tables()? == model.stored())
    }

    /// Returns the columns and the stored rows of each table, by full name.
    fn tables(&self) -> Result<Vec<(String, Vec<Vec<u8>>)>, String> {
        let deployed = self.router().deployed();
        let mut tables = Vec::new();
        for (id, schema) in deployed.tables() {
            let request = RowsRequest {
                table: id.0,
                index: 0,
                limit: 1_000,
                cursor: None,
                prefix: Vec::new(),
                ..RowsRequest::default()
            };
            let page = self
                .router()
                .table_rows(request)
                .map_err(|error| format!("{error:?}"))?;
            let mut rows = page.rows;
            let layout = RowLayout::of_table(schema);
            for row in &rows {
                layout
                    .validate(row)
                    .map_err(|error| format!("a row of {}: {error}", schema.full_name()))?;
            }
            rows.sort();
            tables.push((form(schema), rows));
        }
        tables.sort();
        Ok(tables)
    }

    /// Checks that rows in the log are of the tables with which they are shown, whatever happened to these since. All are known if the log
    /// begins with the database.
    pub fn check_log(&self) -> Result<(), String> {
        let query = LogSearch {
            limit: 1_000,
            kind: Some("changes".into()),
            ..LogSearch::default()
        };
        let page = self.router().log_records(query).map_err(|error| error.to_string())?;
        for entry in page.records {
            for row in entry.rows {
                let Some(table) = row.table else {
                    if page.oldest == Lsn(0) {
                        return Err(format!("table {} at LSN {} is not known", row.table_id, entry.lsn));
                    }
                    continue;
                };
                let checked = row
                    .row
                    .map_or(Ok(()), |bytes| RowLayout::of_table(&table).validate(&bytes));
                checked.map_err(|error| format!("{} at LSN {}: {error}", table.full_name(), entry.lsn))?;
            }
        }
        Ok(())
    }

    pub fn difference(&self, model: &Model) -> Result<String, String> {
        let (found, expected) = (self.tables()?, model.stored());
        let lacking: Vec<_> = expected.iter().filter(|table| !found.contains(table)).collect();
        let strange: Vec<_> = found.iter().filter(|table| !expected.contains(table)).collect();
        let in_service: Vec<_> = self.router().deployed().current.keys().cloned().collect();
        Ok(format!(
            "the model has {lacking:?}, the database {strange:?}; in service {in_service:?}, expected {:?}",
            model.modules.keys().collect::<Vec<_>>()
        ))
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.database = None;
        self.stepper.kill();
        self.stepper.forget();
    }
}

pub fn crash_policy(random: &mut FaultRandom) -> CrashPolicy {
    match random.below(4) {
        0 => CrashPolicy::LoseAll,
        1 => CrashPolicy::KeepAll,
        2 => CrashPolicy::TornAfter(random.below(4) as usize),
        _ => CrashPolicy::Random(random.next_u64()),
    }
}
