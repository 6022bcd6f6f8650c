//! Recovery: the newest checkpoint that can be loaded, then the log behind it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use reprise_backup::{OtherHistory, check_history, settled_id};
use reprise_base::{Lsn, Role, TxnId};
use reprise_checkpoint::{CheckpointReader, Checkpoints, checkpoint_name};
use reprise_log::Log;
use reprise_partition::{CallBatch, TxnPartitions};
use reprise_recovery::{LogSchemas, RecoveryError, described_in, feed, load, reset};
use reprise_replay::{KeyedOutcome, ReplayError, Replayer};
use reprise_router::{CallDigests, CommittedOutcome, NodePhase, RecoveryStage, Router, ScopedKey};
use reprise_txn::TablePast;
use reprise_upkeep::{CheckpointInfo, CheckpointPhase, OpeningPart, OpeningSpeeds};

use crate::{
    database::Database,
    error::OpenError,
    report::{LoadedCheckpoint, RecoveryReport},
};

const PROGRESS_EVERY: Duration = Duration::from_millis(20);
/// Bytes of log after which progress is published.
const PROGRESS_BYTES: u64 = 256 << 10;

impl Database {
    /// Replays the log. It leaves out the records from `until` on.
    pub(crate) fn replay(&self, until: Option<Lsn>) -> Result<RecoveryReport, OpenError> {
        let mut replayer = self.replayer();
        let (report, _) = self.replay_with(&mut replayer, until)?;
        if self.log.is_some() && !self.upkeep.is_read_only.load(Ordering::Acquire) {
            self.check_clock(&mut replayer)?;
        }
        Ok(report)
    }

    /// Compares the wall clock of a primary with the newest transaction of its log. A standby does not: the clock of its primary gave the
    /// times.
    fn check_clock(&self, replayer: &mut Replayer) -> Result<(), RecoveryError> {
        let newest = Arc::new(AtomicU64::new(0));
        let found = newest.clone();
        replayer.gather(
            TxnPartitions::All,
            Box::new(move |held| {
                let ticks = held.partitions.iter().map(|partition| partition.clock.last_tick());
                found.store(ticks.max().unwrap_or_default(), Ordering::Release);
            }),
        )?;
        replayer.drain()?;
        let newest = TxnId::new(newest.load(Ordering::Acquire), TxnId::MULTI_PARTITION);
        self.router.check_start_clock(newest);
        Ok(())
    }

    /// The `replay` variant with a replayer that can continue. Returns the position to continue at.
    pub(crate) fn replay_with(
        &self,
        replayer: &mut Replayer,
        until: Option<Lsn>,
    ) -> Result<(RecoveryReport, Lsn), OpenError> {
        let begun = Instant::now();
        let mut report = RecoveryReport::default();
        let (Some(log), Some(opened)) = (&self.log, &self.opened) else {
            return Ok((report, Lsn(0)));
        };
        report.torn_bytes = opened.found.torn.as_ref().map_or(0, |torn| torn.bytes);
        report.other_settings_hash = opened.other_settings_hash;
        (report.checked_bytes, report.check_seconds) = (opened.found.bytes, self.upkeep.check_seconds);
        let start = self.load_newest(&mut report)?;
        let until = until.map(|until| until.max(start));
        let end = log.durable();
        report.log_bytes = log.bytes_behind(start);
        let replay_begun = Instant::now();
        replayer.set_log_end(until.map_or(end, |until| until.min(end)));
        replayer.set_quarantine(self.distrusted()?);
        let mut shown = 0;
        let mut show = |replayer: &Replayer, reached: Lsn| {
            let done = log.bytes_between(start, reached);
            if done - shown >= PROGRESS_BYTES {
                shown = done;
                self.router.set_phase(NodePhase::Recovering {
                    step: RecoveryStage::Log,
                    replayed: replayer.replayed(),
                    bytes_done: done,
                    bytes_total: report.log_bytes,
                });
            }
        };
        replayer.set_from(self.recover_from);
        let fed = feed(replayer, log.reader(start)?, self.redo_window_bytes, until, &mut show);
        fed.map_err(|error| match error {
            RecoveryError::Log(error) => OpenError::Log(error),
            error => error.into(),
        })?;
        replayer.drain().map_err(RecoveryError::from)?;
        report.commands = replayer.replayed();
        report.keys = self.router.idempotency().stats().keys as usize;
        report.module_versions = self.shared.deployed.load().versions.len();
        report.replay_seconds = replay_begun.elapsed().as_secs_f64();
        self.record_speeds(&report, end);
        report.seconds = begun.elapsed().as_secs_f64();
        Ok((report, start.max(replayer.fed())))
    }

    /// Empties every partition and forgets every module.
    pub(crate) fn start_over(&self) -> Result<(), OpenError> {
        self.router.idempotency().clear();
        Ok(reset(&mut self.replayer())?)
    }

    pub(crate) fn replayer(&self) -> Replayer {
        let router = self.router.clone();
        let remember = Arc::new(move |outcome: KeyedOutcome| restore_key(&router, outcome));
        Replayer::new(
            self.shared.clone(),
            self.inboxes.clone(),
            self.compiler.clone(),
            remember,
        )
    }

    /// Records the speeds of an opening that replayed the log up to `end`.
    fn record_speeds(&self, report: &RecoveryReport, end: Lsn) {
        let Some(checkpointer) = &self.checkpointer else {
            return;
        };
        let part = |bytes, seconds| OpeningPart { bytes, seconds };
        let loaded = report.checkpoint;
        let loaded = loaded.map(|loaded| part(loaded.row_bytes, loaded.seconds - loaded.compile_seconds));
        let mut speeds = OpeningSpeeds {
            load: loaded.unwrap_or_default(),
            replay: part(report.log_bytes, report.replay_seconds),
            check: part(report.checked_bytes, report.check_seconds),
            ..OpeningSpeeds::default()
        };
        if self.router.role() != Role::Standby {
            speeds.own_log_from = end;
        }
        checkpointer.record_speeds(speeds);
    }

    /// Loads the newest usable checkpoint and returns the LSN at which the log continues. Without a checkpoint, that is the log's
    /// beginning.
    fn load_newest(&self, report: &mut RecoveryReport) -> Result<Lsn, OpenError> {
        let (Some(log), Some(files)) = (&self.log, &self.files) else {
            return Ok(Lsn(0));
        };
        // The log of a standby grows meanwhile.
        let found_end = self.opened.as_ref().map_or(Lsn(0), |opened| opened.found.end);
        let (start, end) = (log.start(), log.durable());
        let mut loaded = None;
        for lsn in files.list()?.into_iter().rev() {
            let name = checkpoint_name(lsn);
            if lsn > found_end && !self.upkeep.is_read_only.load(Ordering::Acquire) {
                return Err(OpenError::BeyondLog {
                    name,
                    lsn,
                    end: found_end,
                });
            }
            if lsn < start || lsn > end {
                let reason = format!("{name} has no place in the log, which holds LSN {start} to {end}");
                report.passed_over.push(reason);
                self.pass_over(lsn);
                continue;
            }
            let usable = match files.open(lsn) {
                Ok(reader) => match check_log_history(log, &reader) {
                    Ok(()) => Ok(Arc::new(reader)),
                    Err(other) => Err(other.to_string()),
                },
                Err(error) if error.is_foreign() => return Err(error.into()),
                Err(error) => Err(error.to_string()),
            };
            let reader = match usable {
                Ok(reader) => reader,
                Err(reason) => {
                    report.passed_over.push(reason);
                    self.pass_over(lsn);
                    continue;
                }
            };
            self.record_found(&reader);
            if loaded.is_none() {
                let past = self.past_of(&reader, log, files);
                match self.load(&reader, past) {
                    Ok(found) => loaded = Some(found),
                    Err(RecoveryError::Checkpoint(error)) => {
                        report.passed_over.push(error.to_string());
                        self.pass_over(lsn);
                        reset(&mut self.replayer())?;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        report.checkpoint = loaded;
        match (loaded, start) {
            (Some(loaded), _) => Ok(loaded.lsn),
            (None, Lsn(0)) => Ok(start),
            (None, start) => Err(OpenError::NoCheckpoint {
                start,
                reasons: report.passed_over.clone(),
            }),
        }
    }

    fn load(&self, reader: &Arc<CheckpointReader>, past: TablePast) -> Result<LoadedCheckpoint, RecoveryError> {
        let begun = Instant::now();
        let bytes = Arc::new(AtomicU64::new(0));
        let size = reader.size();
        let mut replayer = self.replayer();
        let show = || {
            self.router.set_phase(NodePhase::Recovering {
                step: RecoveryStage::Checkpoint,
                replayed: 0,
                bytes_done: bytes.load(Ordering::Relaxed),
                bytes_total: size.row_bytes,
            })
        };
        let mut loaded = None;
        let mut work = || loaded = Some(load(&mut replayer, reader, past.clone(), &bytes));
        self.shared.threads.beside(PROGRESS_EVERY, &show, &mut work);
        let loaded = loaded.ok_or(ReplayError::Stopped)??;
        let keys = loaded.keys.into_iter();
        keys.for_each(|key| restore_key(&self.router, key));
        Ok(LoadedCheckpoint {
            lsn: reader.lsn(),
            rows: size.rows,
            row_bytes: size.row_bytes,
            file_bytes: size.file_bytes,
            seconds: begun.elapsed().as_secs_f64(),
            compile_seconds: loaded.compile_seconds,
        })
    }

    /// Returns the changes of a checkpoint's tables before it. They come from the log's records since its beginning, or since the oldest
    /// checkpoint that has its place in the log.
    fn past_of(&self, reader: &CheckpointReader, log: &Log<Box<CallBatch>>, files: &Checkpoints) -> TablePast {
        let read_past = || {
            let (mut schemas, from) = match log.start() {
                Lsn(0) => (LogSchemas::default(), Lsn(0)),
                start => {
                    let stored = files.list().ok()?;
                    let older = stored.into_iter().filter(|lsn| (start..reader.lsn()).contains(lsn));
                    let oldest = older.filter_map(|lsn| files.open(lsn).ok()).next()?;
                    (LogSchemas::of_checkpoint(&oldest).ok()?, oldest.lsn())
                }
            };
            let known = &self.opened.as_ref()?.found.control;
            for lsn in known.iter().filter(|lsn| (from..reader.lsn()).contains(lsn)) {
                let record = log.record(*lsn).ok()??;
                schemas.add_record(&record.get().record, |deploy| described_in(reader, deploy));
            }
            schemas.past_of(reader)
        };
        read_past().unwrap_or_else(|| TablePast::unknown_before(reader.header().txn_id))
    }

    fn pass_over(&self, lsn: Lsn) {
        if let Some(checkpointer) = &self.checkpointer {
            checkpointer.record_passed_over(lsn);
        }
    }

    fn record_found(&self, reader: &CheckpointReader) {
        let Some(checkpointer) = &self.checkpointer else {
            return;
        };
        let size = reader.size();
        checkpointer.record_found(CheckpointInfo {
            lsn: reader.lsn(),
            state: CheckpointPhase::Published,
            began_unix_us: reader.header().txn_id.time_us(),
            seconds: None,
            rows: size.rows,
            rows_total: size.rows,
            row_bytes: size.row_bytes,
            file_bytes: size.file_bytes,
            file: reader.name().to_owned(),
            error: None,
        });
    }
}

/// Checks that a checkpoint is of the log's history, if the log holds the record before it.
fn check_log_history(log: &Log<Box<CallBatch>>, reader: &CheckpointReader) -> Result<(), OtherHistory> {
    let before = log.record(Lsn(reader.lsn().0.saturating_sub(1)));
    // A log that can't be read says why when it is replayed.
    let before = before.ok().flatten();
    let before = before.and_then(|record| settled_id(&record.get().record));
    check_history(reader.header(), before)
}

/// Restores the outcome of a call with an idempotency key.
fn restore_key(router: &Router, found: KeyedOutcome) {
    let (Ok(scope), Ok(key)) = (str::from_utf8(&found.scope), str::from_utf8(&found.key)) else {
        return; // no client can send this key again, because clients send keys as text
    };
    let outcome = CommittedOutcome {
        module: found.module_id,
        procedure: found.procedure as usize,
        result: found.result.into(),
        txn_id: found.txn_id,
        lsn: found.lsn,
        partition: found.partition,
    };
    let digests = CallDigests {
        fingerprint: found.fingerprint,
        args_hash: found.args_hash,
    };
    let key = ScopedKey { scope, key };
    router.idempotency().restore(key, digests, found.kept_us, outcome);
}
