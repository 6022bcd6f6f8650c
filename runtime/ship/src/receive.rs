//! A standby's first files. They are received into a new directory, which appears whole or not at all. The records that the primary logs meanwhile
//! come beside them.

use std::{sync::Arc, time::Duration};

use crossbeam_channel::never;
use reprise_backup::{DirHandle, StagingDir};
use reprise_base::{Epoch, Lsn};
use reprise_env::{Disk, DiskFile, Step};
use reprise_wire::{FileChunk, FilesEnd, Frame, Heartbeat, Progress, Wants};
use sha2::{Digest, Sha256};

use crate::{
    connection::{HEARTBEAT, send, wait},
    link::{Link, LinkConfig, LinkError, REPORT_NS, group_of},
    standby_log::{LogBeside, LogComing},
};

/// Patience with a primary that searches for a checkpoint.
const FILES_SILENCE_MAX: Duration = Duration::from_secs(20);
/// Limit of the files that come.
const FILES_MAX: usize = 16;
/// The folders of the files; those of the log come first.
const CHECKPOINTS: &str = "checkpoints";
const LOG: &str = "log";

/// The contents of a new directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootstrapSummary {
    pub files: u32,
    pub bytes: u64,
    /// Epoch of the primary.
    pub epoch: Epoch,
    /// The log continues here.
    pub lsn: Lsn,
    /// Records of it that came beside the files.
    pub live: u64,
}

/// Files of a primary, coming in.
pub struct BootstrapReceiver {
    link: Link,
    beside: LogBeside,
    /// Declared before the directory that it lies in: a drop closes it first.
    log: Option<LogComing>,
    staging: Option<StagingDir>,
    incoming: Option<IncomingFile>,
    done: Vec<Arc<dyn DiskFile>>,
    paths: Vec<String>,
    bytes: u64,
    /// Epoch of the primary, once it took this standby.
    epoch: Option<Epoch>,
    reported: Progress,
    reported_ns: u64,
    whole: Option<BootstrapSummary>,
}

struct IncomingFile {
    path: String,
    file: Arc<dyn DiskFile>,
    offset: u64,
    sum: Sha256,
}

impl Link {
    /// Connects, to have the first files put into `place`: a directory that does not exist yet, or is empty.
    pub fn bootstrap(
        config: &LinkConfig,
        place: &DirHandle,
        beside: LogBeside,
    ) -> Result<BootstrapReceiver, LinkError> {
        let staging = StagingDir::begin(place)?;
        let link = Self::connect(config, Wants::Files, None)?;
        Ok(BootstrapReceiver {
            link,
            beside,
            log: None,
            staging: Some(staging),
            incoming: None,
            done: Vec::new(),
            paths: Vec::new(),
            bytes: 0,
            epoch: None,
            reported: Progress::default(),
            reported_ns: 0,
            whole: None,
        })
    }
}

impl BootstrapReceiver {
    /// Bytes that have come.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the contents of the new directory, once it exists.
    pub fn whole(&self) -> Option<BootstrapSummary> {
        self.whole
    }

    /// Takes a frame, if one has come. `Over` once the directory is there.
    pub fn step(&mut self) -> Result<Step, LinkError> {
        if self.whole.is_some() {
            return Ok(Step::Over);
        }
        let Some(bytes) = self.link.next(FILES_SILENCE_MAX)? else {
            return Ok(Step::Idle);
        };
        match Frame::decode(&bytes)? {
            Frame::Refused(refused) => {
                return Err(LinkError::Refused {
                    refusal: refused.refusal,
                    reason: refused.reason.to_owned(),
                });
            }
            Frame::Welcome(welcome) if self.epoch.is_none() => self.epoch = Some(welcome.epoch),
            Frame::File(chunk) if self.epoch.is_some() => self.take(&chunk)?,
            Frame::Heartbeat(beat) if self.epoch.is_some() => self.record_heartbeat(&beat)?,
            Frame::Group(group) => match &mut self.log {
                Some(log) => log.place(&group_of(&group))?,
                None => return Err(LinkError::Turn("a group")),
            },
            Frame::FilesEnd(end) if self.epoch.is_some() && self.incoming.is_none() => {
                self.whole = Some(self.publish(&end)?);
                return Ok(Step::Over);
            }
            _ => return Err(LinkError::Turn("a frame")),
        }
        self.report_if_due()?;
        Ok(Step::Done)
    }

    /// Runs until the directory is there. None: `goes_on` said no, and nothing of it stays.
    pub fn run(mut self, goes_on: &dyn Fn() -> bool) -> Result<Option<BootstrapSummary>, LinkError> {
        while goes_on() {
            match self.step()? {
                Step::Over => return Ok(self.whole),
                Step::Done => {}
                Step::Idle => wait(&self.link.connection.frames, &never(), HEARTBEAT),
            }
        }
        Ok(None)
    }

    fn take(&mut self, chunk: &FileChunk<'_>) -> Result<(), LinkError> {
        let mut incoming = match self.incoming.take() {
            Some(incoming) => incoming,
            None => self.begin(chunk)?,
        };
        if (chunk.path, chunk.offset) != (&*incoming.path, incoming.offset) {
            return Err(refused(chunk.path, "it does not follow what came before"));
        }
        incoming.file.write_at(chunk.offset, chunk.bytes)?;
        incoming.sum.update(chunk.bytes);
        incoming.offset += chunk.bytes.len() as u64;
        self.bytes += chunk.bytes.len() as u64;
        let Some(sum) = chunk.sum else {
            self.incoming = Some(incoming);
            return Ok(());
        };
        if <[u8; 32]>::from(incoming.sum.finalize()) != sum {
            return Err(refused(chunk.path, "its checksum is not that of what was sent"));
        }
        self.done.push(incoming.file);
        self.report()
    }

    fn record_heartbeat(&mut self, beat: &Heartbeat) -> Result<(), LinkError> {
        if let Some(log) = &mut self.log {
            log.record_committed(beat.committed);
        }
        self.report()
    }

    /// Returns the present progress. Nothing is received before the log is open. Clocks are compared once it follows.
    fn progress(&mut self) -> Progress {
        let Some(log) = &mut self.log else {
            return Progress::default();
        };
        let (persisted, room_bytes) = (log.persisted(), log.room_bytes());
        Progress {
            received: log.received().lsn,
            persisted,
            room_bytes,
            epoch: self.epoch.unwrap_or_default(),
            ..Progress::default()
        }
    }

    fn report(&mut self) -> Result<(), LinkError> {
        let now_ns = self.link.clock.monotonic_ns();
        let progress = self.progress();
        send(&mut self.link.connection, &Frame::Progress(progress))?;
        (self.reported, self.reported_ns) = (progress, now_ns);
        Ok(())
    }

    /// Reports if that is due. No caller waits for what is durable here, but the primary may wait for room.
    fn report_if_due(&mut self) -> Result<(), LinkError> {
        let now_ns = self.link.clock.monotonic_ns();
        if now_ns.saturating_sub(self.reported_ns) < REPORT_NS {
            return Ok(());
        }
        let now = self.progress();
        match (now.received, now.room_bytes) == (self.reported.received, self.reported.room_bytes) {
            true => Ok(()),
            false => self.report(),
        }
    }

    /// Opens the log, once all its files are here. Groups that the primary logs meanwhile are appended to it.
    fn open_log(&mut self) -> Result<(), LinkError> {
        let (disk, clock) = (self.folder(LOG)?, Arc::clone(&self.link.clock));
        self.log = Some(LogComing::open(disk, clock, Arc::clone(&self.beside.threads))?);
        self.report()
    }

    fn begin(&mut self, chunk: &FileChunk<'_>) -> Result<IncomingFile, LinkError> {
        let path = chunk.path;
        let (folder, name) = path.split_once('/').unwrap_or_default();
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
        let is_name = name.bytes().all(is_plain) && !name.is_empty() && !name.starts_with('.');
        if ![CHECKPOINTS, LOG].contains(&folder) || !is_name || self.paths.iter().any(|known| known == path) {
            return Err(refused(path, "no such file belongs to a database"));
        }
        if self.paths.len() == FILES_MAX {
            return Err(refused(path, "too many files"));
        }
        match (folder, self.log.is_some()) {
            (CHECKPOINTS, false) => self.open_log()?,
            (LOG, true) => return Err(refused(path, "the log had come whole before it")),
            _ => {}
        }
        self.paths.push(path.to_owned());
        let file = self.folder(folder)?.create(name)?;
        Ok(IncomingFile {
            path: path.to_owned(),
            file,
            offset: 0,
            sum: Sha256::new(),
        })
    }

    fn folder(&self, name: &str) -> Result<Arc<dyn Disk>, LinkError> {
        Ok(self.staging.as_ref().expect("until it is published").folder(name)?)
    }

    /// Makes all of it durable, then gives the directory its name.
    fn publish(&mut self, end: &FilesEnd) -> Result<BootstrapSummary, LinkError> {
        let log = self.log.take().filter(|_| end.count as usize == self.done.len());
        let log = log.ok_or_else(|| refused("", "not all files have come"))?;
        let (received, committed) = log.close()?;
        for file in &self.done {
            file.sync()?;
        }
        for folder in [CHECKPOINTS, LOG] {
            self.folder(folder)?.sync_dir()?;
        }
        let staging = self.staging.take().expect("until it is published");
        (self.beside.keep_committed)(&*staging.place().root()?, committed)?;
        staging.publish()?;
        Ok(BootstrapSummary {
            files: end.count,
            bytes: self.bytes,
            epoch: end.epoch,
            lsn: received.lsn,
            live: received.lsn.0 - end.lsn.0.min(received.lsn.0),
        })
    }
}

fn refused(path: &str, what: &str) -> LinkError {
    let (path, what) = (path.to_owned(), what.to_owned());
    LinkError::File { path, what }
}
