//! The log behind a standby's position on its way: from the ring if the ring has it, otherwise from the log's files.

use std::collections::VecDeque;

use reprise_base::Lsn;
use reprise_env::Connection;
use reprise_log::{LogError, LogReader, Position};
use reprise_wire::{Frame, GroupFrame, Heartbeat, Progress, StandbyRefusal};

use crate::{
    connection::{COMMITTED_BEAT, HEARTBEAT, send},
    join_check::{JoinRefusal, gone},
    ring::{GroupBytes, PostedGroups, Ring, RingLookup},
    session::SessionEnd,
    source::ShippedLog,
};

/// Limit of the groups that one step sends, before it handles received frames.
const STEP_GROUPS_MAX: usize = 16;

/// Limit of the bytes on the way to a standby, whatever room it reports. Up to this limit the stream remembers groups that the standby has not
/// reported as received.
const ROOM_BYTES_MAX: u64 = 64 << 20;

pub(crate) struct LogStream {
    /// Number of the connection, as the ring knows its reader.
    number: u64,
    /// Behind the last group that was sent.
    next: Position,
    /// Groups sent and not reported as received: ends and bytes.
    on_the_way: VecDeque<(Lsn, usize)>,
    on_the_way_bytes: u64,
    /// Room in the standby's last report.
    room_bytes: u64,
    view: Lsn,
    /// `sent_ns` of the newest progress.
    echo_ns: u64,
    from: From,
    beaten_ns: Option<u64>,
    /// The last committed LSN that the stream sent.
    committed: Lsn,
    posted: PostedGroups,
}

enum From {
    Ring,
    Files(Option<LogReader>),
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamStep {
    pub is_anything: bool,
    /// It gets groups as they are sealed.
    pub is_streaming: bool,
    pub shipped: Lsn,
}

impl LogStream {
    pub fn new(position: Position, number: u64) -> Self {
        Self {
            number,
            next: position,
            on_the_way: VecDeque::new(),
            on_the_way_bytes: 0,
            room_bytes: 0,
            view: Lsn(0),
            echo_ns: 0,
            from: From::Files(None),
            beaten_ns: None,
            committed: Lsn(0),
            posted: PostedGroups::default(),
        }
    }

    /// Takes the groups that the ring posted and sent for it. Everything before the returned LSN was sent.
    pub fn take_posted(&mut self, ring: &Ring) -> Lsn {
        ring.take_posted(self.number, &mut self.posted);
        while let Some((end, bytes)) = self.posted.groups.pop_front() {
            self.sent(end, bytes);
        }
        self.next.lsn
    }

    /// True while sent records are not committed yet, as far as the standby knows, and so it shows them to no reader.
    pub fn awaits_commit(&self) -> bool {
        self.committed < self.next.lsn
    }

    pub fn record_progress(&mut self, progress: &Progress) -> Result<(), SessionEnd> {
        if progress.received > self.next.lsn {
            let (found, next) = (progress.received, self.next.lsn);
            let reason = format!("the standby tells of LSN {found}, and was sent everything before {next} alone");
            return Err(SessionEnd::Refused(JoinRefusal::new(StandbyRefusal::Diverged, reason)));
        }
        while let Some((end, bytes)) = self.on_the_way.front().copied()
            && end <= progress.received
        {
            self.on_the_way.pop_front();
            self.on_the_way_bytes -= bytes as u64;
        }
        self.room_bytes = progress.room_bytes.min(ROOM_BYTES_MAX);
        (self.view, self.echo_ns) = (progress.view, progress.sent_ns);
        Ok(())
    }

    /// Takes the groups that were posted. If they lack a group that is in the files by now, because the ring had no room for it, it stops the
    /// posting.
    fn catch_up_with(&mut self, log: &dyn ShippedLog, ring: &Ring) {
        // A group is posted before it is written.
        let copied = log.copied();
        if self.take_posted(ring) < copied && self.posted.goes_on {
            ring.stop_posting(self.number);
            self.take_posted(ring);
        }
    }

    /// Sends the groups that there are and for which the standby has room. `beat` is made behind the newest progress.
    pub fn step(
        &mut self,
        (log, ring): (&dyn ShippedLog, &Ring),
        connection: &mut Connection,
        now_ns: u64,
        beat: impl FnOnce() -> Heartbeat,
    ) -> Result<StreamStep, SessionEnd> {
        let before = self.next.lsn;
        self.catch_up_with(log, ring);
        let mut is_anything = self.beat_if_due(log, connection, now_ns, beat)? | (self.next.lsn > before);
        for _ in 0..STEP_GROUPS_MAX {
            let room_bytes = self.room_bytes.saturating_sub(self.on_the_way_bytes);
            if room_bytes == 0 || !self.send_next((log, ring), connection, room_bytes)? {
                break;
            }
            is_anything = true;
        }
        Ok(StreamStep {
            is_anything,
            is_streaming: matches!(self.from, From::Ring),
            shipped: self.next.lsn,
        })
    }

    fn beat_if_due(
        &mut self,
        log: &dyn ShippedLog,
        connection: &mut Connection,
        now_ns: u64,
        beat: impl FnOnce() -> Heartbeat,
    ) -> Result<bool, SessionEnd> {
        let beat = beat();
        let is_more = beat.committed > self.committed && self.awaits_commit();
        let wait = if is_more { COMMITTED_BEAT } else { HEARTBEAT };
        let is_due = |last: u64| now_ns.saturating_sub(last) >= wait.as_nanos() as u64;
        if !self.beaten_ns.is_none_or(is_due) {
            return Ok(false);
        }
        (self.beaten_ns, self.committed) = (Some(now_ns), beat.committed);
        let behind_bytes = match self.view < beat.durable {
            true => log.bytes_between(self.view, beat.durable),
            false => 0,
        };
        let beat = Heartbeat {
            echo_ns: self.echo_ns,
            behind_bytes,
            ..beat
        };
        send(connection, &Frame::Heartbeat(beat))?;
        Ok(true)
    }

    /// Sends the next group. False if there is nothing to send now.
    fn send_next(
        &mut self,
        (log, ring): (&dyn ShippedLog, &Ring),
        connection: &mut Connection,
        room_bytes: u64,
    ) -> Result<bool, SessionEnd> {
        let next = self.next.lsn;
        if self.posted.goes_on {
            // There may be more room by now.
            ring.post_from(self.number, next, room_bytes);
            return Ok(false);
        }
        match ring.find(next) {
            RingLookup::Group(group) => {
                match &group.bytes {
                    GroupBytes::Own(sealed) => connection.sender.send(&[&sealed.head()[..], &sealed.records])?,
                    GroupBytes::Shared(frame) => connection.sender.send_shared(frame)?,
                }
                self.from = From::Ring;
                self.sent(group.end, group.records_bytes());
                Ok(true)
            }
            RingLookup::Nothing | RingLookup::Missing if log.copied() > next => self.send_from_files(log, connection),
            RingLookup::Nothing => {
                self.from = From::Ring;
                ring.post_from(self.number, next, room_bytes);
                Ok(false)
            }
            // Groups sealed before the ring was filled are in the files soon.
            RingLookup::Missing => Ok(false),
        }
    }

    fn sent(&mut self, end: Position, bytes: usize) {
        self.next = end;
        self.on_the_way.push_back((end.lsn, bytes));
        self.on_the_way_bytes += bytes as u64;
    }

    fn send_from_files(&mut self, log: &dyn ShippedLog, connection: &mut Connection) -> Result<bool, SessionEnd> {
        let next = self.next;
        let lost = |error: LogError| match error {
            LogError::OutOfRange { .. } => SessionEnd::Refused(gone(next.lsn)),
            error => SessionEnd::Log(error),
        };
        let reader = match &mut self.from {
            From::Files(Some(reader)) => reader,
            from => {
                *from = From::Files(Some(log.reader(next.lsn).map_err(lost)?));
                let From::Files(Some(reader)) = from else {
                    unreachable!("just set")
                };
                reader
            }
        };
        let Some(block) = reader.next_block().map_err(lost)? else {
            // The next read may find more than this reader does.
            self.from = From::Files(None);
            return Ok(false);
        };
        assert_eq!(block.lsn, next.lsn, "a group follows what was sent");
        let end = Position {
            epoch: block.epoch,
            lsn: block.end,
            history: next.history.then(block.records),
        };
        let frame = GroupFrame {
            epoch: end.epoch,
            first: block.lsn,
            end: end.lsn,
            history: end.history,
            records: block.records,
        };
        connection.sender.send(&[&frame.head(), block.records])?;
        let bytes = block.records.len();
        self.sent(end, bytes);
        Ok(true)
    }
}
