//! One connection of a standby, from its greeting to its end.

use std::{fmt, sync::Arc, time::Duration};

use crossbeam_channel::{Receiver, Sender, TryRecvError};
use reprise_base::Lsn;
use reprise_env::{Connection, DiskError, NetError, Step, Work};
use reprise_log::{DestageDemand, LogError, Position};
use reprise_wire::{
    ComparisonOutcome, ComparisonResult, EpochSeen, Epochs, Frame, Heartbeat, Hello, Progress, RefusalMessage,
    StandbyRefusal, Wants, Welcome, WireError,
};

use crate::{
    comparisons::SentComparisons,
    connection::{COMMITTED_BEAT, HEARTBEAT, SILENCE_MAX, send, wait},
    files::{BootstrapSender, SendStep},
    join_check::{JoinRefusal, check_epoch, check_greeting, check_position, gone, may_be_cut},
    member::{ComparedStatus, StandbyStage},
    sent_status::SentStatus,
    shipper::{ShipEvent, ShipperInner},
    stream::LogStream,
};

/// Patience while the other end writes and syncs files: it may be silent for longer.
const FILES_SILENCE_MAX: Duration = Duration::from_secs(60);

/// Why a connection is over.
#[derive(Debug)]
pub(crate) enum SessionEnd {
    Refused(JoinRefusal),
    /// The primary sent what the standby asked for.
    Done,
    /// The standby learned where the histories part.
    Told,
    Silent,
    /// The standby did not say in time that it saved the sync status.
    NotNoted,
    Net(NetError),
    Wire(WireError),
    /// The standby stops.
    Left,
    /// A frame that is not of its turn.
    Turn,
    Log(LogError),
    Disk(DiskError),
}

impl fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(verdict) => f.write_str(&verdict.reason),
            Self::Done => f.write_str("it has its first files"),
            Self::Told => f.write_str("it was told where the histories part"),
            Self::Silent => f.write_str("it was not heard for too long"),
            Self::NotNoted => f.write_str("it did not keep in time who is out of sync"),
            Self::Net(error) => error.fmt(f),
            Self::Wire(error) => write!(f, "a frame of it is damaged: {error}"),
            Self::Left => f.write_str("it stops"),
            Self::Turn => f.write_str("it sent a frame that was not of its turn"),
            Self::Log(error) => write!(f, "the primary's log: {error}"),
            Self::Disk(error) => error.fmt(f),
        }
    }
}

impl From<NetError> for SessionEnd {
    fn from(error: NetError) -> Self {
        Self::Net(error)
    }
}

impl From<WireError> for SessionEnd {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

impl From<LogError> for SessionEnd {
    fn from(error: LogError) -> Self {
        Self::Log(error)
    }
}

impl From<DiskError> for SessionEnd {
    fn from(error: DiskError) -> Self {
        Self::Disk(error)
    }
}

enum Stage {
    Greeting,
    Files {
        sending: BootstrapSender,
        beaten_ns: u64,
        /// Records logged meanwhile, once the standby takes them.
        live: Option<LiveLog>,
    },
    Log {
        stream: LogStream,
        is_streaming: bool,
        /// The last sync status that the session sent.
        sent_status: SentStatus,
        comparing: SentComparisons,
        _following: Option<DestageDemand>,
    },
    /// The session said its last word. The standby ends the connection, or its time is over.
    Leaving {
        until_ns: u64,
    },
}

/// The log behind its files, sent beside the checkpoint.
struct LiveLog {
    stream: LogStream,
    _following: Option<DestageDemand>,
}

/// Time in which the session still reads input. Without it, the standby would not get the last word.
const LEAVE_TIME: Duration = Duration::from_secs(1);

pub(crate) struct Session {
    shipper: Arc<ShipperInner>,
    number: u64,
    connection: Connection,
    woken: (Sender<()>, Receiver<()>),
    heard_ns: u64,
    /// Name of the standby, once it was let in.
    name: Option<Arc<str>>,
    stage: Stage,
}

impl Session {
    pub fn new(shipper: Arc<ShipperInner>, number: u64, connection: Connection) -> Self {
        let (wake, woken) = crossbeam_channel::bounded(1);
        Self {
            heard_ns: shipper.clock.monotonic_ns(),
            shipper,
            number,
            connection,
            woken: (wake, woken),
            name: None,
            stage: Stage::Greeting,
        }
    }

    /// Waits for the end of the connection. None: it is over.
    fn leave(&mut self, until_ns: u64) -> Option<bool> {
        match self.connection.frames.try_recv() {
            Ok(_) => Some(true),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => (self.shipper.clock.monotonic_ns() < until_ns).then_some(false),
        }
    }

    fn go_on(&mut self) -> Result<bool, SessionEnd> {
        let now_ns = self.shipper.clock.monotonic_ns();
        if self.shipper.is_stopping() {
            let verdict = JoinRefusal::new(StandbyRefusal::Unavailable, "the primary stops");
            return Err(SessionEnd::Refused(verdict));
        }
        if self.shipper.is_dismissed() {
            let verdict = JoinRefusal::new(
                StandbyRefusal::Unavailable,
                "this server gave its place as the primary away",
            );
            return Err(SessionEnd::Refused(verdict));
        }
        if let Some(name) = &self.name
            && !self.shipper.table.speaks(name, self.number)
        {
            let verdict = JoinRefusal::new(StandbyRefusal::Replaced, "another connection of that name was made");
            return Err(SessionEnd::Refused(verdict));
        }
        let is_heard = self.take_frames(now_ns)?;
        if matches!(self.stage, Stage::Greeting) && self.shipper.gives_way(self.number) {
            return Err(SessionEnd::Silent);
        }
        let silence_max = match self.stage {
            Stage::Files { .. } => FILES_SILENCE_MAX,
            Stage::Greeting | Stage::Log { .. } | Stage::Leaving { .. } => SILENCE_MAX,
        };
        if now_ns.saturating_sub(self.heard_ns) > silence_max.as_nanos() as u64 {
            return Err(SessionEnd::Silent);
        }
        Ok(self.send(now_ns)? || is_heard)
    }

    /// Takes the frames that have come. True if there were any.
    fn take_frames(&mut self, now_ns: u64) -> Result<bool, SessionEnd> {
        let mut is_heard = false;
        loop {
            let bytes = match self.connection.frames.try_recv() {
                Ok(bytes) => bytes,
                Err(TryRecvError::Empty) => return Ok(is_heard),
                Err(TryRecvError::Disconnected) => return Err(SessionEnd::Net(NetError::Closed)),
            };
            is_heard = true;
            self.heard_ns = now_ns;
            match (Frame::decode(&bytes)?, &mut self.stage) {
                (Frame::Hello(hello), Stage::Greeting) => self.greet(&hello, now_ns)?,
                (Frame::Progress(progress), Stage::Files { .. }) => self.on_joining(&progress)?,
                (
                    Frame::Progress(progress),
                    Stage::Log {
                        stream, sent_status, ..
                    },
                ) => {
                    check_epoch(&progress, self.shipper.log.epoch()).map_err(SessionEnd::Refused)?;
                    let shipped = stream.take_posted(&self.shipper.ring);
                    stream.record_progress(&progress)?;
                    sent_status.record_progress(&progress, now_ns);
                    self.shipper.table.record_shipped(self.name(), self.number, shipped);
                    self.on_progress(&progress, now_ns)?;
                }
                (Frame::Compared(compared), Stage::Log { .. }) => {
                    record_comparison(&self.shipper, (&self.name, self.number), &compared)?;
                }
                (Frame::Refused(_), Stage::Log { .. }) => return Err(SessionEnd::Left),
                _ => return Err(SessionEnd::Turn),
            }
        }
    }

    fn on_progress(&self, progress: &Progress, now_ns: u64) -> Result<(), SessionEnd> {
        let (table, log, name) = (&self.shipper.table, &*self.shipper.log, self.name());
        table.record_view(now_ns, log);
        if let Some(hold) = table.record_progress(name, self.number, progress, now_ns) {
            hold.advance(progress.persisted)?;
        }
        Ok(())
    }

    /// Takes the progress of a standby that gets its first files. It counts for nothing yet, because the standby has log and no rows.
    fn on_joining(&mut self, progress: &Progress) -> Result<(), SessionEnd> {
        self.shipper.table.record_heard(self.name(), self.number, self.heard_ns);
        // The standby only says that it is there: the log's files have not come.
        if progress.received == Lsn(0) {
            return Ok(());
        }
        check_epoch(progress, self.shipper.log.epoch()).map_err(SessionEnd::Refused)?;
        let end = match &self.stage {
            Stage::Files {
                sending, live: None, ..
            } => Some(sending.log_end()),
            _ => None,
        };
        let begun = match end {
            Some(end) => Some(self.begin_live(progress.received, end)?),
            None => None,
        };
        let Stage::Files { live, .. } = &mut self.stage else {
            return Err(SessionEnd::Turn);
        };
        if begun.is_some() {
            *live = begun;
        }
        let (shipper, name) = (&*self.shipper, self.name.as_deref().unwrap_or_default());
        if let Some(live) = live {
            let shipped = live.stream.take_posted(&shipper.ring);
            live.stream.record_progress(progress)?;
            shipper.table.record_shipped(name, self.number, shipped);
        }
        if let Some(hold) = shipper.table.record_joining(name, self.number, progress.persisted) {
            hold.advance(progress.persisted)?;
        }
        Ok(())
    }

    /// Begins to send groups beside the files: the standby has the log up to the end of its files.
    fn begin_live(&mut self, received: Lsn, end: Option<Lsn>) -> Result<LiveLog, SessionEnd> {
        if end != Some(received) {
            let reason = format!("the standby tells of LSN {received}, where the files that it was sent do not end");
            return Err(SessionEnd::Refused(JoinRefusal::new(StandbyRefusal::Diverged, reason)));
        }
        let log = Arc::clone(&self.shipper.log);
        let history = log.history_at(received)?;
        let position = Position {
            epoch: log.epoch(),
            lsn: received,
            history: history.ok_or_else(|| SessionEnd::Refused(gone(received)))?,
        };
        self.read_ring()?;
        Ok(LiveLog {
            stream: LogStream::new(position, self.number),
            _following: log.follow(),
        })
    }

    /// Has the standby get groups as they are sealed.
    fn read_ring(&mut self) -> Result<(), SessionEnd> {
        let ring = &self.shipper.ring;
        let poster = match ring.buffer() {
            Some(buffer) => Some(self.connection.sender.share(buffer)?),
            None => None,
        };
        ring.add_reader(self.number, self.woken.0.clone(), poster);
        Ok(())
    }

    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    fn greet(&mut self, hello: &Hello<'_>, now_ns: u64) -> Result<(), SessionEnd> {
        let shipper = Arc::clone(&self.shipper);
        let joiner = check_greeting(hello, &shipper.tickets, now_ns).map_err(SessionEnd::Refused)?;
        shipper.record_greeting(self.number);
        if hello.wants == Wants::Fork {
            return self.send_fork(hello);
        }
        let begun = shipper.table.begin(&joiner, self.number, now_ns);
        begun.map_err(SessionEnd::Refused)?;
        self.name = Some(hello.name.into());
        let position = check_position(hello, &*shipper.log, shipper.partitions).map_err(SessionEnd::Refused)?;
        match position {
            Some(position) => self.keep_log(position)?,
            None => shipper.table.begin_files(hello.name, self.number),
        }
        let welcome = Welcome {
            epoch: shipper.log.epoch(),
            durable: shipper.log.durable(),
            safety: shipper.safety,
            primary: &shipper.primary,
        };
        send(&mut self.connection, &Frame::Welcome(welcome))?;
        self.stage = match position {
            None => Stage::Files {
                sending: BootstrapSender::new(shipper.file_part_bytes),
                beaten_ns: 0,
                live: None,
            },
            Some(position) => Stage::Log {
                stream: LogStream::new(position, self.number),
                is_streaming: false,
                sent_status: SentStatus::new(now_ns),
                comparing: SentComparisons::default(),
                _following: shipper.log.follow(),
            },
        };
        (shipper.report)(ShipEvent::Connected {
            name: self.name().into(),
            peer: self.connection.peer.clone(),
            position: position.map(|position| position.lsn),
        });
        Ok(())
    }

    /// Returns the time that it may sleep.
    fn sleep_time(&self) -> Duration {
        match &self.stage {
            Stage::Log { stream, .. } if stream.awaits_commit() => COMMITTED_BEAT,
            _ => HEARTBEAT,
        }
    }

    /// Sends the standby the LSN at which the histories part. It gets nothing else on this connection, and begins with the records that both logs have.
    fn send_fork(&mut self, hello: &Hello<'_>) -> Result<(), SessionEnd> {
        let log = &self.shipper.log;
        let is_same = match check_position(hello, &**log, self.shipper.partitions) {
            Ok(_) => true,
            Err(verdict) if may_be_cut(hello, &verdict, &**log) => false,
            Err(verdict) => return Err(SessionEnd::Refused(verdict)),
        };
        let epochs = log.epochs();
        let packed = Epochs::pack(epochs.iter().map(|start| EpochSeen {
            epoch: start.epoch,
            history: start.history,
            start: start.start,
        }));
        let answer = Epochs::new(is_same, log.copied(), &packed);
        send(&mut self.connection, &Frame::Epochs(answer))?;
        Err(SessionEnd::Told)
    }

    /// Keeps the log behind its position from now on.
    fn keep_log(&mut self, position: Position) -> Result<(), SessionEnd> {
        let (shipper, lsn) = (Arc::clone(&self.shipper), position.lsn);
        let hold = match shipper.log.hold(self.name(), lsn) {
            Err(LogError::OutOfRange { .. }) => return Err(SessionEnd::Refused(gone(lsn))),
            hold => Arc::new(hold?),
        };
        self.read_ring()?;
        shipper.table.begin_log(self.name(), self.number, lsn);
        shipper.table.set_hold(self.name(), self.number, hold, lsn);
        Ok(())
    }

    /// Sends the frames that are due. True if there was anything.
    fn send(&mut self, now_ns: u64) -> Result<bool, SessionEnd> {
        let (shipper, name) = (&*self.shipper, self.name.as_deref().unwrap_or_default());
        let number = self.number;
        match &mut self.stage {
            Stage::Greeting | Stage::Leaving { .. } => Ok(false),
            Stage::Files {
                sending,
                beaten_ns,
                live,
            } => {
                let is_due = now_ns.saturating_sub(*beaten_ns) >= HEARTBEAT.as_nanos() as u64;
                if !is_due && !sending.has_begun() {
                    return Ok(false);
                }
                let (log, checkpoints) = (&*shipper.log, &*shipper.checkpoints);
                let keep = |hold, from| shipper.table.set_hold(name, number, hold, from);
                if let Some(live) = live {
                    let beat = || shipper.beat();
                    let sent = live
                        .stream
                        .step((log, &shipper.ring), &mut self.connection, now_ns, beat)?;
                    shipper.table.record_shipped(name, number, sent.shipped);
                }
                // The beat tells of nothing if there is nothing before the end of its files.
                let takes_log = live.is_some() || sending.log_end() == Some(Lsn(0));
                match sending.step((log, checkpoints), (name, &mut self.connection, takes_log), keep)? {
                    SendStep::Part => Ok(true),
                    SendStep::Files => Ok(false),
                    SendStep::All => Err(SessionEnd::Done),
                    SendStep::Nothing => {
                        // The standby waits. The beat tells it that its primary is there.
                        *beaten_ns = now_ns;
                        send(&mut self.connection, &Frame::Heartbeat(shipper.beat()))?;
                        Ok(false)
                    }
                }
            }
            Stage::Log {
                stream,
                is_streaming,
                sent_status,
                comparing,
                ..
            } => {
                sent_status.send_if_changed(shipper, name, number, &mut self.connection, now_ns)?;
                // The session names LSNs before it tells the committed LSN behind them.
                let beat = shipper.beat();
                let comparisons = &shipper.comparisons;
                let has_sent = comparisons.send_news(&mut self.connection, comparing)?;
                let (from, connection) = ((&*shipper.log, &*shipper.ring), &mut self.connection);
                let sent = stream.step(from, connection, now_ns, || beat)?;
                if sent.is_anything {
                    shipper.table.record_shipped(name, number, sent.shipped);
                }
                if sent.is_streaming != *is_streaming {
                    *is_streaming = sent.is_streaming;
                    let state = match sent.is_streaming {
                        true => StandbyStage::Streaming,
                        false => StandbyStage::CatchingUp,
                    };
                    shipper.table.set_state(name, number, state);
                }
                Ok(sent.is_anything || has_sent)
            }
        }
    }

    /// Tells both sides why the session is over. True if the standby is to hear of it.
    fn end(&mut self, end: &SessionEnd) -> bool {
        self.shipper.ring.remove_reader(self.number);
        if let SessionEnd::Refused(verdict) = end {
            let refused = RefusalMessage {
                refusal: verdict.refusal,
                reason: &verdict.reason,
            };
            // The standby may be gone by now.
            let _ = send(&mut self.connection, &Frame::Refused(refused));
        }
        let reason = end.to_string();
        if let Some(name) = &self.name {
            let has_left = matches!(end, SessionEnd::Left);
            self.shipper.table.end(name, self.number, &reason, has_left);
        }
        if matches!(end, SessionEnd::Told) {
            return true;
        }
        let name = self.name.clone();
        let peer = self.connection.peer.clone();
        (self.shipper.report)(match name {
            Some(name) => ShipEvent::Ended { name, reason },
            None => ShipEvent::TurnedAway { peer, reason },
        });
        matches!(end, SessionEnd::Refused(_) | SessionEnd::Done)
    }
}

/// Records a standby's report on a comparison.
fn record_comparison(
    shipper: &ShipperInner,
    (name, number): (&Option<Arc<str>>, u64),
    compared: &ComparisonResult<'_>,
) -> Result<(), SessionEnd> {
    if compared.number > shipper.comparisons.newest() {
        return Err(SessionEnd::Turn);
    }
    let difference = (compared.outcome == ComparisonOutcome::Differs).then(|| compared.what.into());
    let status = ComparedStatus {
        lsn: compared.lsn,
        at_us: shipper.clock.now_us(),
        difference,
    };
    let name = name.as_deref().unwrap_or_default();
    shipper.table.record_comparison(name, number, status);
    Ok(())
}

impl Work for Session {
    fn run(mut self: Box<Self>) {
        loop {
            match self.step() {
                Step::Done => {}
                Step::Idle => wait(&self.connection.frames, &self.woken.1, self.sleep_time()),
                Step::Over => return,
            }
        }
    }

    fn step(&mut self) -> Step {
        if let Stage::Leaving { until_ns } = self.stage {
            return match self.leave(until_ns) {
                Some(true) => Step::Done,
                Some(false) => Step::Idle,
                None => Step::Over,
            };
        }
        match self.go_on() {
            Ok(true) => Step::Done,
            Ok(false) => Step::Idle,
            Err(end) => match self.end(&end) {
                true => {
                    let until_ns = self.shipper.clock.monotonic_ns() + LEAVE_TIME.as_nanos() as u64;
                    self.stage = Stage::Leaving { until_ns };
                    Step::Done
                }
                false => Step::Over,
            },
        }
    }
}

impl ShipperInner {
    pub fn beat(&self) -> Heartbeat {
        let durable = self.log.durable();
        Heartbeat {
            echo_ns: 0,
            durable,
            committed: self.committed(durable),
            behind_bytes: 0,
        }
    }
}
