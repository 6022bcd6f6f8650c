//! A standby's first files: received into a new directory, which appears whole or not at all.

use std::{sync::Arc, time::Duration};

use crossbeam_channel::never;
use reprise_backup::{Place, Staging};
use reprise_base::{Epoch, Lsn};
use reprise_env::{Disk, DiskFile, Step};
use reprise_wire::{FileChunk, FilesEnd, Frame, Progress, Wants};
use sha2::{Digest, Sha256};

use crate::{
    connection::{HEARTBEAT, send, wait},
    link::{Link, LinkConfig, LinkError},
};

/// A primary that looks for a checkpoint may be silent for longer.
const FILES_SILENCE_MAX: Duration = Duration::from_secs(20);
/// Files that come, at most.
const FILES_MAX: usize = 16;
/// Where they go.
const FOLDERS: [&str; 2] = ["checkpoints", "log"];

/// What a new directory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bootstrapped {
    pub files: u32,
    pub bytes: u64,
    /// Of the primary.
    pub epoch: Epoch,
    /// The log goes on here.
    pub lsn: Lsn,
}

/// Files of a primary, coming in.
pub struct Bootstrapping {
    link: Link,
    staging: Option<Staging>,
    incoming: Option<Incoming>,
    done: Vec<Arc<dyn DiskFile>>,
    paths: Vec<String>,
    bytes: u64,
    is_welcome: bool,
    whole: Option<Bootstrapped>,
}

struct Incoming {
    path: String,
    file: Arc<dyn DiskFile>,
    offset: u64,
    sum: Sha256,
}

impl Link {
    /// Connects, to have the files to begin with put into `place`: a directory that is not there yet, or empty.
    pub fn bootstrap(config: &LinkConfig, place: &Place) -> Result<Bootstrapping, LinkError> {
        let staging = Staging::begin(place)?;
        let link = Self::connect(config, Wants::Files, None)?;
        Ok(Bootstrapping {
            link,
            staging: Some(staging),
            incoming: None,
            done: Vec::new(),
            paths: Vec::new(),
            bytes: 0,
            is_welcome: false,
            whole: None,
        })
    }
}

impl Bootstrapping {
    /// Bytes that have come.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the new directory holds, once it is there.
    pub fn whole(&self) -> Option<Bootstrapped> {
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
            Frame::Welcome(_) if !self.is_welcome => self.is_welcome = true,
            Frame::File(chunk) if self.is_welcome => self.take(&chunk)?,
            Frame::Heartbeat(_) if self.is_welcome => {
                send(&mut self.link.connection, &Frame::Progress(Progress::default()))?;
            }
            Frame::FilesEnd(end) if self.is_welcome && self.incoming.is_none() => {
                self.whole = Some(self.publish(&end)?);
                return Ok(Step::Over);
            }
            _ => return Err(LinkError::Turn("a frame")),
        }
        Ok(Step::Done)
    }

    /// Until the directory is there. None: `goes_on` said no, and nothing of it stays.
    pub fn run(mut self, goes_on: &dyn Fn() -> bool) -> Result<Option<Bootstrapped>, LinkError> {
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
        send(&mut self.link.connection, &Frame::Progress(Progress::default()))?;
        Ok(())
    }

    fn begin(&mut self, chunk: &FileChunk<'_>) -> Result<Incoming, LinkError> {
        let path = chunk.path;
        let (folder, name) = path.split_once('/').unwrap_or_default();
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
        let is_name = name.bytes().all(is_plain) && !name.is_empty() && !name.starts_with('.');
        if !FOLDERS.contains(&folder) || !is_name || self.paths.iter().any(|known| known == path) {
            return Err(refused(path, "no such file belongs to a database"));
        }
        if self.paths.len() == FILES_MAX {
            return Err(refused(path, "too many files"));
        }
        self.paths.push(path.to_owned());
        let file = self.folder(folder)?.create(name)?;
        Ok(Incoming {
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
    fn publish(&mut self, end: &FilesEnd) -> Result<Bootstrapped, LinkError> {
        if end.count as usize != self.done.len() {
            return Err(refused("", "not all files have come"));
        }
        for file in &self.done {
            file.sync()?;
        }
        for folder in FOLDERS {
            self.folder(folder)?.sync_dir()?;
        }
        self.staging.take().expect("until it is published").publish()?;
        Ok(Bootstrapped {
            files: end.count,
            bytes: self.bytes,
            epoch: end.epoch,
            lsn: end.lsn,
        })
    }
}

fn refused(path: &str, what: &str) -> LinkError {
    let (path, what) = (path.to_owned(), what.to_owned());
    LinkError::File { path, what }
}
