//! An open database: its parts, and the order in which they begin and end.

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam_channel::Sender;
use reprise_backup::{ArchiveBounds, ArchiveError, ArchiveSource, DirHandle, DirTree};
use reprise_base::{MemoryKind, MemoryLedger, Role};
use reprise_checkpoint::Checkpoints;
use reprise_env::{DiskError, ThreadHandle};
use reprise_log::{DrainReport, Log, LogError, NvramBufferStatus, OpenReport};
use reprise_observe::Registry;
use reprise_partition::{CallBatch, LogPolicy, Shared, Site, SiteMessage};
use reprise_recovery::{RecoveryError, make_ready};
use reprise_replay::{Divergence, RecoverFrom, ReplayError};
use reprise_router::{NodePhase, Router, RouterConfig};
use reprise_txn::Compiler;
use reprise_upkeep::{Backups, Checkpointer, EngineHandles, LogMissing};

use crate::{
    config::DatabaseConfig,
    cutting::{self, CutInfo},
    device::NvramInUse,
    environment::{Environment, Folders},
    error::OpenError,
    membership,
    memory::{check_memory, keep_memory_ready},
    node_file::{DirHealth, DirectoryUse, NodeFile, check_opening, record_region},
    opened_log::{keep_code, new_genesis, open_log, shared, start_sites},
    report::{QuarantinedProcedure, ReadOnly, RecoveryReport},
    shown_limit,
    standby::StandbyParts,
    standby_service::NodeReplication,
};

/// The parts beside the engine.
#[derive(Default)]
pub(crate) struct Upkeep {
    /// When the opening began.
    begun: Option<Instant>,
    /// The part for which the directory was opened.
    part: Option<DirectoryUse>,
    /// The part of the opening that the check of the log took.
    pub check_seconds: f64,
    pub backups: OnceLock<Arc<Backups>>,
    pub is_read_only: AtomicBool,
    /// None without a log.
    pub folders: Option<Folders>,
    /// The document of the directory. None without a log.
    pub node: Option<Arc<NodeFile>>,
    /// Procedures that take no calls, and for which the log has no record yet.
    pub quarantine: Mutex<Vec<QuarantinedProcedure>>,
    /// Bytes of memory that are made ready before the database takes calls.
    pub memory_ready: AtomicU64,
    /// The region before the log's files, if there is one.
    pub nvram: Option<NvramInUse>,
    /// Records of an earlier region that the files lacked.
    pub drained: DrainReport,
    /// The standby's parts, if it was opened as a standby.
    pub standby: Option<StandbyParts>,
    /// The records that were cut off this directory's log.
    pub cuts: OnceLock<Vec<CutInfo>>,
    /// The service of standbys.
    pub replication: OnceLock<Arc<NodeReplication>>,
}

impl Upkeep {
    fn begun(part: DirectoryUse) -> Self {
        Self {
            begun: Some(Instant::now()),
            part: Some(part),
            ..Self::default()
        }
    }
}

/// The engine's parts over one directory.
pub struct Database {
    pub(crate) router: Router,
    pub(crate) shared: Arc<Shared>,
    pub(crate) inboxes: Vec<Sender<SiteMessage>>,
    pub(crate) compiler: Arc<dyn Compiler>,
    pub(crate) log: Option<Arc<Log<Box<CallBatch>>>>,
    pub(crate) opened: Option<OpenReport>,
    /// The checkpointer. None without a log.
    pub(crate) checkpointer: Option<Arc<Checkpointer>>,
    pub(crate) files: Option<Checkpoints>,
    pub(crate) recover_from: RecoverFrom,
    /// See `Environment`.
    pub(crate) redo_window_bytes: usize,
    pub(crate) file_part_bytes: usize,
    pub(crate) upkeep: Upkeep,
    pub(crate) sites: Mutex<Vec<Box<dyn ThreadHandle>>>,
}

impl Database {
    pub(crate) fn open_as(config: DatabaseConfig, around: Environment, part: DirectoryUse) -> Result<Self, OpenError> {
        let (mut upkeep, role) = (Upkeep::begun(part), part.role());
        upkeep.node = check_opening(&config, &around, part)?;
        let memory = MemoryLedger::new(config.memory_max_bytes);
        around.compiler.count_in(&memory);
        let opened = match config.log {
            LogPolicy::None => None,
            _ => Some(open_log(&config, &around, &memory, role, upkeep.node.as_deref())?),
        };
        let mut gate = Arc::default();
        let (genesis, log, report, files) = match opened {
            Some(opened) => {
                (upkeep.nvram, upkeep.drained, gate) = (opened.nvram, opened.drained, opened.gate);
                upkeep.check_seconds = opened.check_seconds;
                let (log, report, files) = (opened.log, opened.report, opened.files);
                (opened.genesis, Some(log), Some(report), Some(files))
            }
            None => (new_genesis(&config, &around)?, None, None, None),
        };
        record_region(upkeep.node.as_ref(), upkeep.nvram.as_ref())?;
        keep_code(&around, &genesis);
        let (settings_hash, registry) = (around.compiler.settings_hash(), Arc::new(Registry::new()));
        let shared = shared(&config, &around, genesis.secret, (memory, gate));
        log.iter().for_each(|log| attach_writes(log, &shared, &registry));
        let followed = log.as_ref().filter(|_| role == Role::Standby);
        upkeep.standby = followed.map(|log| StandbyParts::new(log, &shared));
        let (inboxes, sites) = start_sites(&config, &shared, &registry, log.as_deref(), role)?;
        let router = Router::new(RouterConfig {
            shared: shared.clone(),
            inboxes: inboxes.clone(),
            log: log.clone(),
            compiler: around.compiler.clone(),
            registry,
            commit: config.commit.name(),
            nvram: upkeep.nvram.as_ref().map(NvramInUse::describe),
            database_id: genesis.database_id,
            settings_hash,
            idempotency: shared.memory.kind(MemoryKind::Idempotency).clone(),
        });
        let checkpointer = log.clone().zip(files.clone()).map(|(log, files)| {
            let engine = EngineHandles {
                router: router.clone(),
                log,
                files,
                shared: shared.clone(),
                genesis,
                settings_hash,
            };
            Checkpointer::new(engine, config.checkpoints)
        });
        Ok(Self {
            router,
            shared,
            inboxes,
            compiler: around.compiler,
            log,
            opened: report,
            checkpointer,
            files,
            recover_from: config.redo.from,
            redo_window_bytes: around.redo_window_bytes,
            file_part_bytes: around.file_part_bytes,
            upkeep: Upkeep {
                folders: around.folders,
                ..upkeep
            },
            sites: Mutex::new(sites),
        })
    }

    /// Has `bytes` of memory ready for the growth of the tables before the database takes calls; 0: none. It refuses more bytes than the
    /// machine has left.
    pub fn set_memory_ready(&self, bytes: u64) -> Result<(), OpenError> {
        check_memory(bytes)?;
        self.upkeep.memory_ready.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Sets the time for which the outcomes of calls with idempotency keys are kept. It comes before `recover`.
    pub fn set_idempotency_keep(&self, keep: Duration) {
        self.router.idempotency().set_keep(keep);
    }

    /// Makes and lists backups in `tree`, of at most `bytes_max` together. The caller does so once.
    pub fn serve_backups(&self, tree: Arc<dyn DirTree>, bytes_max: u64) {
        let (Some(folders), Some(checkpointer)) = (&self.upkeep.folders, &self.checkpointer) else {
            return;
        };
        let backups = Backups::new(tree, bytes_max, folders.checkpoints.clone(), checkpointer.clone());
        assert!(self.upkeep.backups.set(backups).is_ok(), "backups are served once");
    }

    /// Copies checkpoints and log into an archive at `place` before they are removed. The caller does so once, before the database takes
    /// calls.
    pub fn archive_to(&self, place: &DirHandle, bounds: ArchiveBounds) -> Result<(), ArchiveError> {
        let (Some(log), Some(checkpointer), Some(folders)) = (&self.log, &self.checkpointer, &self.upkeep.folders)
        else {
            return Ok(()); // a database without a log has no log to release
        };
        let origin = ArchiveSource {
            log: folders.log.clone(),
            checkpoints: folders.checkpoints.clone(),
            database_id: log.database_id(),
            start: log.start(),
        };
        checkpointer.open_archive(place, bounds, origin)
    }

    /// Publishes the records that were cut off the directory's log. The caller does so once.
    pub fn set_cuts(&self, cuts: Vec<CutInfo>) {
        let is_first = self.upkeep.cuts.set(cuts).is_ok();
        assert!(is_first, "cuts are told once");
    }

    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Returns the part that takes checkpoints, lists them, and estimates a restart.
    pub fn checkpointer(&self) -> Result<&Arc<Checkpointer>, LogMissing> {
        self.checkpointer.as_ref().ok_or(LogMissing)
    }

    /// Returns the part that makes and lists backups, once they are served.
    pub fn backups(&self) -> Result<&Arc<Backups>, LogMissing> {
        self.upkeep.backups.get().ok_or(LogMissing)
    }

    /// Returns the id that was drawn when the database was made. All its servers have it. None without a log.
    pub fn database_id(&self) -> Option<[u8; 16]> {
        self.log.as_ref().map(|log| log.database_id())
    }

    /// Replays the log, then opens the database for calls. A standby continues to replay. After an error the phase says why, and the
    /// database never takes calls.
    pub fn recover(&self) -> Result<RecoveryReport, OpenError> {
        if let Some(standby) = &self.upkeep.standby {
            return self.recover_standby(standby);
        }
        self.open_reign().map_err(|error| self.fail(error.into()))?;
        match self.replay(None) {
            Ok(report) => {
                self.extend_leadership().map_err(|error| self.fail(error))?;
                self.make_ready_for_calls()?;
                self.router.set_phase(NodePhase::Ready);
                if let Some(checkpointer) = &self.checkpointer {
                    checkpointer.start_schedule();
                }
                Ok(report)
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Begins the epoch of a primary without standbys. A primary with standbys began its epoch when it took them, and a primary with a lease
    /// when it took the lease.
    fn open_reign(&self) -> Result<(), DiskError> {
        let is_served = self.upkeep.replication.get().is_some_and(|own| own.serving().is_some());
        let begins = self.upkeep.part == Some(DirectoryUse::Primary) && !is_served;
        match self.root().zip(self.node()).filter(|_| begins) {
            None => Ok(()),
            Some((root, node)) => {
                membership::open_reign(node)?;
                // The saved limit of records that the standby showed has no effect from now on. If it stays, the next standby shows less.
                let _ = shown_limit::forget(root);
                Ok(())
            }
        }
    }

    /// Extends the leadership of this directory over the records that a recovery without a server appends. The log has a new epoch with each
    /// opening.
    fn extend_leadership(&self) -> Result<(), OpenError> {
        let is_recovery = self.upkeep.part == Some(DirectoryUse::Recovery);
        let (Some(node), Some(log)) = (self.node().filter(|_| is_recovery), &self.log) else {
            return Ok(());
        };
        let written = log.written_epoch();
        match node.change(|document| cutting::extend_leadership(document, written))? {
            Some(count) => Ok(log.raise_epoch(node.own_epoch(count))?),
            None => Ok(()),
        }
    }

    /// The `recover` variant for reading alone. If a record does not replay, the database serves the records before it. The log takes no
    /// writes, and no checkpoint is taken.
    pub fn recover_read_only(&self) -> Result<ReadOnly, OpenError> {
        self.upkeep.is_read_only.store(true, Ordering::Release);
        let mut divergence: Option<Box<Divergence>> = None;
        let report = loop {
            let until = divergence.as_ref().map(|found| found.lsn);
            match self.replay(until) {
                Ok(report) => break report,
                // The partitions may be beyond the record that diverged, because another one replayed ahead of it.
                Err(OpenError::Recovery(RecoveryError::Replay(ReplayError::Diverged(found))))
                    if until.is_none_or(|until| found.lsn < until) =>
                {
                    divergence = Some(found);
                    self.start_over()?;
                }
                Err(error) => return Err(self.fail(error)),
            }
        };
        let differed = self.node().and_then(|node| match node.health() {
            DirHealth::TablesDiffer(what) => Some(what),
            DirHealth::Good | DirHealth::MustBootstrap(_) => None,
        });
        let reason = match (&divergence, &differed) {
            (None, None) => "the server was started to be read alone".to_owned(),
            (None, Some(what)) => {
                format!("the server is read-only, and its tables, a standby's, were not as its primary's: {what}")
            }
            (Some(found), _) => format!(
                "the server is read-only, with the tables as of before LSN {}: the replay of {}.{} diverged there",
                found.lsn, found.module, found.procedure
            ),
        };
        if let Some(log) = &self.log {
            log.refuse(&reason);
        }
        self.make_ready_for_calls()?;
        self.router.set_phase(NodePhase::Ready);
        Ok(ReadOnly {
            report,
            divergence,
            differed,
        })
    }

    /// The `recover` variant that may put these procedures (`MODULE.PROCEDURE`) out of service. If the replay of one diverges, it leaves
    /// service for good, and its changes come from the log, if that holds them. Returns the procedures put out of service.
    pub fn recover_with_quarantine(
        &self,
        names: &[String],
    ) -> Result<(RecoveryReport, Vec<QuarantinedProcedure>), OpenError> {
        let mut taken: Vec<QuarantinedProcedure> = Vec::new();
        loop {
            let found = match self.recover() {
                Ok(report) => return Ok((report, taken)),
                Err(OpenError::Recovery(RecoveryError::Replay(ReplayError::Diverged(found)))) => found,
                Err(error) => return Err(error),
            };
            let new = QuarantinedProcedure::of(&found);
            let is_known = self.distrusted()?.contains(&(found.module_id, found.procedure_number));
            // The procedure was quarantined before and diverges all the same, because the log does not hold its changes.
            if is_known || !names.contains(&new.name()) {
                return Err(OpenError::Recovery(RecoveryError::Replay(ReplayError::Diverged(found))));
            }
            let mut list = self.upkeep.quarantine.lock().expect("held for a push");
            list.push(new.clone());
            taken.push(new);
            drop(list);
            self.start_over()?;
        }
    }

    /// Returns the settings hash of the newest part of the log at the opening, if it is not this program's.
    pub fn other_settings_hash(&self) -> Option<u64> {
        self.opened.as_ref().and_then(|opened| opened.other_settings_hash)
    }

    /// Returns the records that came to the log's files from an NVRAM region, before the replay.
    pub fn drained(&self) -> DrainReport {
        self.upkeep.drained
    }

    /// Returns how full the rings before the log's files are. None if there are none.
    pub fn front_status(&self) -> Option<NvramBufferStatus> {
        self.log.as_ref().and_then(|log| log.nvram_status())
    }

    pub(crate) fn fail(&self, error: OpenError) -> OpenError {
        self.router.set_phase(NodePhase::Failed {
            report: error.to_string(),
        });
        error
    }

    /// Makes everything ready for calls. The caller opens the database for them by setting the phase.
    pub(crate) fn make_ready_for_calls(&self) -> Result<(), OpenError> {
        self.make_code_ready().map_err(|error| self.fail(error))?;
        let ready_bytes = self.upkeep.memory_ready.load(Ordering::Relaxed);
        let made = keep_memory_ready(ready_bytes);
        made.map_err(|error| self.fail(error.into()))?;
        self.shared.memory.publish(MemoryKind::Ready, ready_bytes);
        self.shared.count_binaries();
        self.begin_quarantine()?;
        let is_standby = self.router.role() == Role::Standby;
        if !is_standby {
            // All acknowledged records are in the tables, so from now on the data may grow up to the limit.
            self.shared.memory.enforce();
        }
        for inbox in &self.inboxes {
            let begin = SiteMessage::Job(Box::new(match is_standby {
                true => Site::serve,
                false => Site::retain_undo,
            }));
            inbox
                .send(begin)
                .map_err(|_| RecoveryError::from(ReplayError::Stopped))?;
        }
        if let (Some(checkpointer), Some(begun)) = (&self.checkpointer, self.upkeep.begun) {
            checkpointer.record_opened(begun.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// Compiles all modules in service, so that no call waits for a compiler. It drops code that neither they nor the log need.
    fn make_code_ready(&self) -> Result<(), OpenError> {
        let deployed = self.shared.deployed.load();
        let modules: Vec<_> = deployed.current.values().collect();
        let codes: Vec<_> = modules.iter().map(|module| &*module.code).collect();
        make_ready(&codes, &*self.shared.threads).map_err(|(number, reason)| OpenError::Module {
            name: modules[number].name.clone(),
            reason,
        })?;
        self.compiler.delete_unused_code();
        Ok(())
    }

    /// Lets the engine threads finish their messages, writes out their records and seals the log.
    pub fn close(&self) -> Result<(), LogError> {
        if let Some(replication) = self.upkeep.replication.get() {
            replication.stop();
        }
        if let Some(backups) = self.upkeep.backups.get() {
            backups.stop();
        }
        self.stop_readers();
        if let Some(standby) = &self.upkeep.standby {
            standby.stop(self.router.view()); // `stop` waits for the sites
        }
        self.router.stop();
        let sites = std::mem::take(&mut *self.sites.lock().expect("held to take"));
        for site in sites {
            site.join(); // a panic of a site ends the process earlier
        }
        if let Some(checkpointer) = &self.checkpointer {
            checkpointer.stop();
        }
        let closed = self.close_log();
        if let (Some(nvram), Some(status)) = (&self.upkeep.nvram, self.front_status()) {
            let released = nvram.release(&status, closed.is_ok());
            return closed.and(released.map_err(LogError::from));
        }
        closed
    }

    fn close_log(&self) -> Result<(), LogError> {
        match &self.log {
            Some(log) => match log.close() {
                // The database is read-only: its log takes no writes, and took none.
                Err(LogError::Unavailable { .. }) if self.upkeep.is_read_only.load(Ordering::Acquire) => Ok(()),
                closed => closed,
            },
            None => Ok(()),
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Callers that need the result call `close` themselves.
        let _ = self.close();
    }
}

/// Has the log's writes count in the metrics, and in the costs of its records.
fn attach_writes(log: &Log<Box<CallBatch>>, shared: &Shared, registry: &Registry) {
    shared.logging.set_writes(log.stats());
    registry.attach_flush(log.stats());
}
