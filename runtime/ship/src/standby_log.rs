//! The log of a standby that gets its first files. It takes groups while the checkpoint comes, so the primary need not keep them for it.

use std::{collections::VecDeque, sync::Arc};

use reprise_base::{Lsn, Role};
use reprise_env::{Clock, Disk, DiskError, Threads};
use reprise_log::{AppendError, AppendOutcome, Group, GroupAppender, Log, LogConfig, LogError, Position, verify};

/// Bytes of records that may be on their way to a standby's disk, before the primary waits.
const ROOM_BYTES: u64 = 6 << 20;

/// Appended groups that may not be durable yet.
#[derive(Default)]
pub struct OnTheWay {
    /// Ends and bytes of records.
    groups: VecDeque<(Lsn, u64)>,
    bytes: u64,
}

impl OnTheWay {
    /// Records that a group with `bytes` bytes of records was appended.
    pub fn record_group(&mut self, end: Lsn, bytes: u64) {
        self.groups.push_back((end, bytes));
        self.bytes += bytes;
    }

    /// Returns the bytes for which there is room. Everything before `persisted` is durable now. `log_room`: the log's own room, if it has a bound.
    pub fn room_bytes(&mut self, persisted: Lsn, log_room: Option<u64>) -> u64 {
        while let Some((_, bytes)) = self.groups.pop_front_if(|(end, _)| *end <= persisted) {
            self.bytes -= bytes;
        }
        let room = log_room.map_or(ROOM_BYTES, |room| room.min(ROOM_BYTES));
        room.saturating_sub(self.bytes)
    }
}

/// Saves in a new directory that everything before an LSN may be shown, and nothing behind it before a primary says so.
pub type KeepCommitted = fn(&dyn Disk, Lsn) -> Result<(), DiskError>;

/// The parts that the log of the first files needs.
#[derive(Clone)]
pub struct LogBeside {
    pub threads: Arc<dyn Threads>,
    pub keep_committed: KeepCommitted,
}

/// The log, open.
pub(crate) struct LogComing {
    log: Log<()>,
    receiver: GroupAppender<()>,
    on_the_way: OnTheWay,
    committed: Lsn,
}

impl LogComing {
    /// Opens the log as far as it has come.
    pub fn open(disk: Arc<dyn Disk>, clock: Arc<dyn Clock>, threads: Arc<dyn Threads>) -> Result<Self, LogError> {
        let found = verify(&*disk)?;
        // The log continues with the settings that its primary wrote. A server that opens the directory later has settings of its own.
        let newest = found.segments.last().map(|newest| newest.settings_hash);
        let config = LogConfig {
            settings_hash: newest.unwrap_or_default(),
            role: Role::Standby,
            ..LogConfig::new([0; 16])
        };
        let (log, _) = Log::open_on(disk, clock, threads, config, Box::new(|_, _, ()| {}))?;
        Ok(Self {
            receiver: log.group_appender(),
            on_the_way: OnTheWay::default(),
            // A primary's checkpoint shows the records that are durable there. Only the primary says which of them are committed.
            committed: Lsn(0),
            log,
        })
    }

    pub fn place(&mut self, group: &Group<'_>) -> Result<(), AppendError> {
        if self.receiver.append(group)? == AppendOutcome::New {
            self.on_the_way.record_group(group.end.lsn, group.records.len() as u64);
        }
        Ok(())
    }

    pub fn record_committed(&mut self, committed: Lsn) {
        self.committed = self.committed.max(committed);
    }

    pub fn received(&self) -> Position {
        self.log.received().expect("it is a standby's")
    }

    pub fn persisted(&self) -> Lsn {
        self.log.durable()
    }

    pub fn room_bytes(&mut self) -> u64 {
        self.on_the_way.room_bytes(self.log.durable(), None)
    }

    /// Makes all of it durable. Returns its end, and the end of its committed records.
    pub fn close(self) -> Result<(Position, Lsn), LogError> {
        let received = self.received();
        self.log.close()?;
        Ok((received, self.committed.min(received.lsn)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_comes_back_with_what_is_durable() {
        let mut on_the_way = OnTheWay::default();
        assert_eq!(on_the_way.room_bytes(Lsn(0), None), ROOM_BYTES);
        assert_eq!(on_the_way.room_bytes(Lsn(0), Some(7)), 7);
        on_the_way.record_group(Lsn(3), 100);
        on_the_way.record_group(Lsn(5), ROOM_BYTES);
        assert_eq!(on_the_way.room_bytes(Lsn(2), None), 0, "more than there is room for");
        assert_eq!(on_the_way.room_bytes(Lsn(3), None), 0);
        assert_eq!(on_the_way.room_bytes(Lsn(5), Some(u64::MAX)), ROOM_BYTES);
    }
}
