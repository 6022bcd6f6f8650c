//! The files that a standby begins with: a checkpoint, and of the log the block before it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use reprise_base::{Epoch, Lsn};
use reprise_env::{Connection, Disk, DiskError, DiskErrorKind, DiskFile, DiskLock};
use reprise_log::{CopyRange, LogError, ReplicationSlot};
use reprise_wire::{FileChunk, FilesEnd, Frame, StandbyRefusal};
use sha2::{Digest, Sha256};

use crate::{
    connection::send,
    join_check::JoinRefusal,
    session::SessionEnd,
    source::{CheckpointSource, ChosenCheckpoint, ShippedLog},
};

/// A standby's first files on their way.
pub(crate) struct BootstrapSender {
    /// None until a checkpoint is there.
    files: Option<BootstrapFiles>,
    part_bytes: usize,
}

struct BootstrapFiles {
    waiting: Vec<OutgoingFile>,
    count: u32,
    end: (Epoch, Lsn),
}

struct OutgoingFile {
    path: String,
    file: Arc<dyn DiskFile>,
    bytes: u64,
    offset: u64,
    sum: Sha256,
}

/// The result of one step of it.
pub(crate) enum SendStep {
    /// There is no checkpoint yet.
    Nothing,
    Part,
    /// All files; their end is not sent yet.
    Files,
    All,
}

impl BootstrapSender {
    pub fn new(part_bytes: usize) -> Self {
        Self {
            files: None,
            part_bytes,
        }
    }

    /// There is a checkpoint.
    pub fn has_begun(&self) -> bool {
        self.files.is_some()
    }

    /// The LSN behind the log's files, once the files are chosen.
    pub fn log_end(&self) -> Option<Lsn> {
        self.files.as_ref().map(|files| files.end.1)
    }

    /// Chooses the files, or sends a part of one. It sends their end once the standby `takes_log`. `keep` gets the slot that holds the log for the
    /// standby.
    pub fn step(
        &mut self,
        (log, checkpoints): (&dyn ShippedLog, &dyn CheckpointSource),
        (name, connection, takes_log): (&str, &mut Connection, bool),
        keep: impl FnOnce(Arc<ReplicationSlot>, Lsn),
    ) -> Result<SendStep, SessionEnd> {
        let Some(files) = &mut self.files else {
            let chosen = checkpoints.choose().map_err(|reason| unavailable(&reason))?;
            let Some(chosen) = chosen else {
                return Ok(SendStep::Nothing);
            };
            self.files = Some(BootstrapFiles::begin(log, chosen, name, keep)?);
            return Ok(SendStep::Part);
        };
        let Some(outgoing) = files.waiting.last_mut() else {
            if !takes_log {
                return Ok(SendStep::Files);
            }
            let (epoch, lsn) = files.end;
            let count = files.count;
            send(connection, &Frame::FilesEnd(FilesEnd { count, epoch, lsn }))?;
            return Ok(SendStep::All);
        };
        if outgoing.send_part(connection, self.part_bytes)? {
            files.waiting.pop();
        }
        Ok(SendStep::Part)
    }
}

fn unavailable(reason: &str) -> SessionEnd {
    SessionEnd::Refused(JoinRefusal::new(
        StandbyRefusal::Unavailable,
        format!("the files to begin with: {reason}"),
    ))
}

impl BootstrapFiles {
    fn begin(
        log: &dyn ShippedLog,
        chosen: ChosenCheckpoint,
        name: &str,
        keep: impl FnOnce(Arc<ReplicationSlot>, Lsn),
    ) -> Result<Self, SessionEnd> {
        // Also the record before it, which goes into the files.
        let before = Lsn(chosen.lsn.0.saturating_sub(1));
        let hold = log.hold(name, before).or_else(|_| log.hold(name, chosen.lsn))?;
        let stub = stub(log, chosen.lsn)?;
        hold.advance(chosen.lsn)?;
        keep(Arc::new(hold), chosen.lsn);
        // A file that is open can be read to its end, even if another thread has removed it. The files go from the back of the list. The log's files
        // go first, so that the log can continue.
        let checkpoint = OutgoingFile::new(format!("checkpoints/{}", chosen.name), chosen.file)?;
        let mut waiting = vec![checkpoint];
        for (name, file) in stub.files {
            waiting.push(OutgoingFile::new(format!("log/{name}"), file)?);
        }
        Ok(Self {
            count: waiting.len() as u32,
            waiting,
            end: (log.epoch(), stub.end),
        })
    }
}

/// The smallest part of a log that continues at an LSN.
struct Stub {
    files: Vec<(String, Arc<dyn DiskFile>)>,
    end: Lsn,
}

fn stub(log: &dyn ShippedLog, lsn: Lsn) -> Result<Stub, SessionEnd> {
    let copy = |until| {
        let memory = MemoryDisk::default();
        let range = CopyRange { from: lsn, until };
        let copied = log.reader(lsn)?.copy(range, &memory, &mut |_| true)?;
        Ok((memory, copied))
    };
    // If the segment with the record before is gone, the first one behind it serves.
    let (memory, copied) = match copy(lsn) {
        Err(LogError::OutOfRange { .. }) => copy(Lsn(lsn.0 + 1))?,
        copied => copied?,
    };
    let mut files = Vec::new();
    for name in copied.files {
        let file = memory.open_read(&name)?;
        files.push((name, file));
    }
    let end = copied.end;
    Ok(Stub { files, end })
}

impl OutgoingFile {
    fn new(path: String, file: Arc<dyn DiskFile>) -> Result<Self, DiskError> {
        Ok(Self {
            path,
            bytes: file.len()?,
            file,
            offset: 0,
            sum: Sha256::new(),
        })
    }

    /// Sends a part of the last file. True behind the last part.
    fn send_part(&mut self, connection: &mut Connection, part_bytes: usize) -> Result<bool, SessionEnd> {
        let left = self.bytes - self.offset;
        let mut part = vec![0; left.min(part_bytes as u64) as usize];
        let read = self.file.read_at(self.offset, &mut part)?;
        if read < part.len() {
            return Err(unavailable(&format!("{} became shorter", self.path)));
        }
        self.sum.update(&part);
        let is_last = left == part.len() as u64;
        let chunk = FileChunk {
            path: &self.path,
            offset: self.offset,
            sum: is_last.then(|| self.sum.finalize_reset().into()),
            bytes: &part,
        };
        connection.sender.send(&[&chunk.head(), &part])?;
        self.offset += part.len() as u64;
        Ok(is_last)
    }
}

/// A folder in memory, for a file of a block: written once, then read.
#[derive(Default)]
struct MemoryDisk(Mutex<BTreeMap<String, Arc<MemoryFile>>>);

#[derive(Default)]
struct MemoryFile(Mutex<Vec<u8>>);

fn no(action: &'static str, name: &str) -> DiskError {
    DiskError::new(action, name, DiskErrorKind::Refused, "a folder in memory")
}

impl MemoryDisk {
    fn find(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        let found = self.0.lock().expect("held for a short time").get(name).cloned();
        let missing = || DiskError::new("open", name, DiskErrorKind::NotFound, "there is no such file");
        found.map(|file| file as Arc<dyn DiskFile>).ok_or_else(missing)
    }
}

impl Disk for MemoryDisk {
    fn create(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        let file = Arc::new(MemoryFile::default());
        self.0
            .lock()
            .expect("held for a store")
            .insert(name.to_owned(), Arc::clone(&file));
        Ok(file)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.find(name)
    }

    fn open_read(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.find(name)
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        Ok(self.0.lock().expect("held for a short time").keys().cloned().collect())
    }

    fn rename(&self, from: &str, _: &str) -> Result<(), DiskError> {
        Err(no("rename", from))
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        Err(no("remove", name))
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn lock(&self) -> Result<DiskLock, DiskError> {
        Err(no("lock", ""))
    }

    fn describe(&self) -> String {
        "memory".into()
    }
}

impl DiskFile for MemoryFile {
    fn len(&self) -> Result<u64, DiskError> {
        Ok(self.0.lock().expect("held for a short time").len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        let bytes = self.0.lock().expect("held for a short time");
        let from = bytes.get(offset as usize..).unwrap_or_default();
        let count = from.len().min(buffer.len());
        buffer[..count].copy_from_slice(&from[..count]);
        Ok(count)
    }

    fn write_at(&self, offset: u64, more: &[u8]) -> Result<(), DiskError> {
        let mut bytes = self.0.lock().expect("held for a store");
        let end = offset as usize + more.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset as usize..end].copy_from_slice(more);
        Ok(())
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.write_at(offset, bytes)
    }

    fn sync(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn preallocate(&self, _: u64) -> Result<(), DiskError> {
        Err(no("preallocate", ""))
    }
}
