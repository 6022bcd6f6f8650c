//! A standby's end. It asks the primary for the log behind its position, and hands the groups to its `Taker`.

use std::{fmt, sync::Arc, time::Duration};

use crossbeam_channel::{Receiver, Sender, TryRecvError};
use reprise_backup::StagingError;
use reprise_base::{Epoch, Lsn, WatermarkWaiter};
use reprise_env::{Clock, Connection, DiskError, Net, NetError, Step};
use reprise_log::{AppendError, AppendOutcome, Group, LogError, Position, UnavailableKind};
use reprise_wire::{
    ComparePoint, ComparisonOutcome, ComparisonResult, FORMAT_VERSION, Frame, GroupFrame, Heartbeat, Hello, Progress,
    RefusalMessage, SHIP_PROTOCOL, StandbyRefusal, SyncUpdate, TableDigests, Wants, WireError,
};

use crate::{
    connection::{HEARTBEAT, SILENCE_MAX, STANDBY_LIMITS, send, wait},
    primary_report::{BeatSeen, ReportedMember, SyncReport, WelcomeSeen},
};

/// Shortest time between two reports that have nothing more on the disk.
pub(crate) const REPORT_NS: u64 = 1_000_000;
/// Limit of the frames that one step takes.
const STEP_FRAMES_MAX: usize = 64;
/// How long the standby reports nothing to a new primary, while it does not know whether there is a later one.
const KNOWN_WAIT_NS: u64 = 1_000_000_000;

/// A hook that runs once something is durable.
pub type PersistedHook = Box<dyn FnOnce() + Send>;

/// The log that takes the groups of a primary.
pub trait Taker: Send + Sync {
    /// Returns the position behind the received records.
    fn position(&self) -> Position;
    /// Appends a group behind that position. May wait, within bounds; less than the peer's patience, which is 3 s.
    fn place(&self, group: &Group<'_>) -> Result<AppendOutcome, AppendError>;
    fn progress(&self) -> StandbyProgress;
    /// The primary has taken this standby: nothing was heard on this connection before.
    fn on_welcome(&self, _: &WelcomeSeen) {}
    /// Takes the primary's report that it is there, and how far it is.
    fn on_heartbeat(&self, beat: &BeatSeen);
    /// Saves the primary's sync status. True once it is on the disk; false if it can't be saved.
    fn save_sync_report(&self, standing: &SyncReport) -> bool;
    /// Checks whether the standby may report to this primary: the primary may answer what the standby acknowledges. Err: why it must not.
    fn check_primary(&self, _: &WelcomeSeen) -> Result<(), String> {
        Ok(())
    }
    /// Whether the knowledge of `check_primary` is of `since_ns` or later, by the taker's clock, or can't be. The question makes the taker read the store.
    fn knows_since(&self, _since_ns: u64) -> bool {
        true
    }
    /// Returns the comparer of tables. None: nothing is compared.
    fn compares(&self) -> Option<&dyn Compares> {
        None
    }
    /// Has `hook` run once everything before `lsn` is durable. None: it is durable now, or the next report finds out.
    fn when_persisted(&self, lsn: Lsn, hook: PersistedHook) -> Option<WatermarkWaiter>;
}

/// A standby's report on a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparedOwn {
    pub number: u64,
    /// Everything before it was compared.
    pub lsn: Lsn,
    /// The difference; none: all tables are equal.
    pub difference: Option<String>,
}

/// The comparer of a standby's tables with its primary's.
pub trait Compares {
    /// A connection begins: no more comes about LSNs that were named on the one before.
    fn begin(&self);
    /// Takes an LSN that the primary names before it says that the LSN is committed. The tables are compared there.
    fn on_compare_point(&self, named: &ComparePoint);
    /// Takes the primary's digests. False: more tables than there are.
    fn on_digests(&self, found: &TableDigests<'_>) -> bool;
    /// Takes the next report on a comparison; each once.
    fn take_compared(&self) -> Option<ComparedOwn>;
}

/// How far a standby is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StandbyProgress {
    pub persisted: Lsn,
    pub replayed: Lsn,
    pub view: Lsn,
    /// Bytes of records for which there is room behind what was received.
    pub room_bytes: u64,
}

/// The parts that a connection to a primary needs.
#[derive(Clone)]
pub struct LinkConfig {
    pub net: Arc<dyn Net>,
    pub clock: Arc<dyn Clock>,
    /// The address at which the primary takes standbys.
    pub address: String,
    /// SHA-256 of the certificate that it shows there; none: it is not encrypted.
    pub certificate: Option<[u8; 32]>,
    /// Ticket that the primary gave out for this name, less than a minute ago.
    pub ticket: [u8; 16],
    pub name: String,
    pub connect_time: Duration,
}

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("the primary refuses: {reason}")]
    Refused { refusal: StandbyRefusal, reason: String },
    #[error("connect to the primary: {0}")]
    Net(#[from] NetError),
    /// This standby is to follow another primary now.
    #[error("{0}")]
    Superseded(String),
    #[error("the primary was not heard for too long")]
    Silent,
    #[error("a frame of the primary is damaged: {0}")]
    Wire(#[from] WireError),
    #[error("the primary sent {0}, which was not its turn")]
    Turn(&'static str),
    #[error("a group is not placed: {0}")]
    Place(#[from] AppendError),
    #[error("the log among the first files: {0}")]
    Log(#[from] LogError),
    #[error("the file {path}: {what}")]
    File { path: String, what: String },
    #[error(transparent)]
    Staging(#[from] StagingError),
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl LinkError {
    /// True if another attempt would end the same way: an operator has to act.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Refused { refusal, .. } => match refusal {
                StandbyRefusal::Ticket | StandbyRefusal::Unavailable | StandbyRefusal::Replaced => false,
                StandbyRefusal::Name
                | StandbyRefusal::Database
                | StandbyRefusal::Version
                | StandbyRefusal::Partitions
                | StandbyRefusal::Gone
                | StandbyRefusal::Diverged => true,
            },
            // Closed: a promotion begins or the node stops, and either may fail.
            Self::Place(AppendError::Log(error)) | Self::Log(error) => match error {
                LogError::Unavailable { kind, .. } => !matches!(
                    kind,
                    UnavailableKind::Full | UnavailableKind::Stalled | UnavailableKind::Closed
                ),
                _ => true,
            },
            Self::Staging(_) | Self::Disk(_) => true,
            _ => false,
        }
    }
}

/// A connection that was made, and whose greeting was sent.
pub struct Link {
    pub(crate) connection: Connection,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) heard_ns: u64,
}

impl Link {
    pub(crate) fn connect(
        config: &LinkConfig,
        wants: Wants,
        from: Option<(&StandbyFiles, Position)>,
    ) -> Result<Self, LinkError> {
        let (address, time) = (&config.address, config.connect_time);
        let mut connection = match config.certificate {
            Some(certificate) => config.net.connect_encrypted(address, certificate, time, STANDBY_LIMITS),
            None => config.net.connect(address, time, STANDBY_LIMITS),
        }?;
        let (known, position) = from.map_or((StandbyFiles::default(), Position::default()), |(known, at)| {
            (*known, at)
        });
        let hello = Hello {
            protocol: SHIP_PROTOCOL,
            wants,
            format: FORMAT_VERSION,
            database_id: known.database_id,
            partitions: known.partitions,
            position: (position.epoch, position.lsn, position.history),
            ticket: config.ticket,
            name: &config.name,
        };
        send(&mut connection, &Frame::Hello(hello))?;
        Ok(Self {
            connection,
            heard_ns: config.clock.monotonic_ns(),
            clock: Arc::clone(&config.clock),
        })
    }

    /// Connects, to have the groups behind the taker's position placed.
    pub fn stream(
        config: &LinkConfig,
        database_id: [u8; 16],
        partitions: u16,
        taker: Arc<dyn Taker>,
    ) -> Result<LogReceiver, LinkError> {
        let known = StandbyFiles {
            database_id,
            partitions,
        };
        let link = Self::connect(config, Wants::Log, Some((&known, taker.position())))?;
        let (wake, woken) = crossbeam_channel::bounded(1);
        Ok(LogReceiver {
            link,
            taker,
            wake,
            woken,
            waiter: None,
            welcome: None,
            reported: Progress::default(),
            reported_ns: None,
            welcome_ns: 0,
            saved_status: 0,
        })
    }

    /// Returns the next frame. None: it has not come yet.
    pub(crate) fn next(&mut self, silence_max: Duration) -> Result<Option<Vec<u8>>, LinkError> {
        let now_ns = self.clock.monotonic_ns();
        match self.connection.frames.try_recv() {
            Ok(bytes) => {
                self.heard_ns = now_ns;
                Ok(Some(bytes))
            }
            Err(TryRecvError::Disconnected) => Err(NetError::Closed.into()),
            Err(TryRecvError::Empty) => match now_ns.saturating_sub(self.heard_ns) > silence_max.as_nanos() as u64 {
                true => Err(LinkError::Silent),
                false => Ok(None),
            },
        }
    }
}

/// Returns a frame's group in the form that a log takes.
pub(crate) fn group_of<'a>(frame: &GroupFrame<'a>) -> Group<'a> {
    Group {
        first: frame.first,
        end: Position {
            epoch: frame.epoch,
            lsn: frame.end,
            history: frame.history,
        },
        records: frame.records,
    }
}

/// A standby's description of its files.
#[derive(Clone, Copy, Default)]
pub struct StandbyFiles {
    pub database_id: [u8; 16],
    pub partitions: u16,
}

/// The log of a primary, coming in.
pub struct LogReceiver {
    link: Link,
    taker: Arc<dyn Taker>,
    wake: Sender<()>,
    woken: Receiver<()>,
    /// The end of the received records when it was set.
    waiter: Option<(Lsn, Option<WatermarkWaiter>)>,
    welcome: Option<WelcomeSeen>,
    reported: Progress,
    /// None: nothing was reported.
    reported_ns: Option<u64>,
    welcome_ns: u64,
    /// Number of the newest sync status that is kept.
    saved_status: u64,
}

impl fmt::Debug for LogReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Streaming({})", self.link.connection.peer)
    }
}

impl LogReceiver {
    /// Returns the primary's URL for clients, if its welcome has one.
    pub fn primary(&self) -> Option<&str> {
        let welcome = self.welcome.as_ref()?;
        Some(&*welcome.primary).filter(|url| !url.is_empty())
    }

    /// True once the primary has taken this standby.
    pub fn is_welcome(&self) -> bool {
        self.welcome.is_some()
    }

    /// Places the received groups, and reports how far it is. Waits for nothing but the taker.
    pub fn step(&mut self) -> Result<Step, LinkError> {
        let mut is_anything = false;
        for _ in 0..STEP_FRAMES_MAX {
            let Some(bytes) = self.link.next(SILENCE_MAX)? else {
                break;
            };
            is_anything = true;
            self.take(Frame::decode(&bytes)?)?;
        }
        let is_reported = self.report_if_due()? | self.send_comparisons()?;
        self.watch();
        match is_anything || is_reported {
            true => Ok(Step::Done),
            false => Ok(Step::Idle),
        }
    }

    /// Runs until the connection ends, or `goes_on` says no.
    pub fn run(&mut self, goes_on: &dyn Fn() -> bool) -> Result<(), LinkError> {
        while goes_on() {
            if self.step()? == Step::Idle {
                self.wait();
            }
        }
        Ok(())
    }

    /// Tells the primary that this standby leaves: the primary need not wait for it to come back.
    pub fn leave(&mut self) {
        let refused = RefusalMessage {
            refusal: StandbyRefusal::Unavailable,
            reason: "the standby stops",
        };
        // The primary may be gone.
        let _ = send(&mut self.link.connection, &Frame::Refused(refused));
    }

    /// Sleeps until there is about something to do. For threads of their own.
    pub fn wait(&self) {
        wait(&self.link.connection.frames, &self.woken, HEARTBEAT);
    }

    fn take(&mut self, frame: Frame<'_>) -> Result<(), LinkError> {
        match frame {
            Frame::Refused(refused) => Err(LinkError::Refused {
                refusal: refused.refusal,
                reason: refused.reason.to_owned(),
            }),
            Frame::Welcome(welcome) if self.welcome.is_none() => {
                let seen = WelcomeSeen {
                    epoch: welcome.epoch,
                    primary: welcome.primary.to_owned(),
                    safety: welcome.safety,
                };
                self.taker.on_welcome(&seen);
                self.welcome = Some(seen);
                self.welcome_ns = self.link.clock.monotonic_ns();
                if let Some(compares) = self.taker.compares() {
                    compares.begin();
                }
                self.report().map(drop)
            }
            Frame::Group(group) if self.welcome.is_some() => self.place(&group),
            Frame::Heartbeat(beat) => self.on_beat(&beat),
            Frame::Standing(standing) => self.on_sync_update(&standing),
            Frame::Group(_) => Err(LinkError::Turn("a group")),
            Frame::Named(_) | Frame::Digests(_) => self.on_comparison(frame),
            Frame::Hello(_) | Frame::Progress(_) | Frame::Compared(_) => Err(LinkError::Turn("a standby's frame")),
            Frame::Welcome(_) | Frame::File(_) | Frame::FilesEnd(_) | Frame::Epochs(_) => {
                Err(LinkError::Turn("a file, or a welcome"))
            }
        }
    }

    fn place(&mut self, group: &GroupFrame<'_>) -> Result<(), LinkError> {
        match self.taker.place(&group_of(group))? {
            AppendOutcome::New | AppendOutcome::Known => Ok(()),
        }
    }

    fn on_beat(&mut self, beat: &Heartbeat) -> Result<(), LinkError> {
        let Some(welcome) = &self.welcome else {
            return Err(LinkError::Turn("a heartbeat"));
        };
        let came_ns = self.link.clock.monotonic_ns();
        self.taker.on_heartbeat(&BeatSeen {
            epoch: welcome.epoch,
            echo_ns: Some(beat.echo_ns).filter(|echo_ns| *echo_ns > 0),
            came_ns,
            durable: beat.durable,
            committed: beat.committed,
            behind_bytes: beat.behind_bytes,
        });
        self.report().map(drop)
    }

    fn on_sync_update(&mut self, standing: &SyncUpdate<'_>) -> Result<(), LinkError> {
        let Some(welcome) = &self.welcome else {
            return Err(LinkError::Turn("a standing"));
        };
        let members = standing.members().map(|seen| ReportedMember {
            name: seen.name.into(),
            url: seen.url.into(),
            from: seen.from,
            is_in_sync: seen.is_in_sync,
            set: seen.set,
        });
        let is_kept = self.taker.save_sync_report(&SyncReport {
            epoch: welcome.epoch,
            safety: welcome.safety,
            number: standing.number,
            in_sync: standing.in_sync,
            set: standing.set,
            members: members.collect(),
        });
        if is_kept {
            self.saved_status = standing.number;
        }
        // If the status is not saved, the primary ends the connection, and sends it again.
        self.report().map(drop)
    }

    fn on_comparison(&mut self, frame: Frame<'_>) -> Result<(), LinkError> {
        if self.welcome.is_none() {
            return Err(LinkError::Turn("a comparison"));
        }
        let Some(compares) = self.taker.compares() else {
            return Ok(());
        };
        match frame {
            Frame::Named(named) => compares.on_compare_point(&named),
            Frame::Digests(found) if !compares.on_digests(&found) => {
                return Err(LinkError::Turn("digests of more tables than there are"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the present progress.
    fn progress(&self) -> Progress {
        // First the taker's progress, then how much was received: no progress is beyond that.
        let found = self.taker.progress();
        let received = self.taker.position().lsn;
        Progress {
            sent_ns: self.link.clock.boot_ns(),
            received,
            persisted: found.persisted.min(received),
            replayed: found.replayed.min(received),
            view: found.view.min(received),
            room_bytes: found.room_bytes,
            epoch: self.welcome.as_ref().map_or(Epoch::new(0, 0), |welcome| welcome.epoch),
            saved_status: self.saved_status,
        }
    }

    /// Reports the progress. False: it reported nothing, because it does not know yet whether the primary still is one.
    fn report(&mut self) -> Result<bool, LinkError> {
        let now_ns = self.link.clock.monotonic_ns();
        if let Some(welcome) = &self.welcome {
            let is_first = self.reported_ns.is_none();
            if is_first && now_ns < self.welcome_ns + KNOWN_WAIT_NS && !self.taker.knows_since(self.welcome_ns) {
                return Ok(false);
            }
            self.taker.check_primary(welcome).map_err(LinkError::Superseded)?;
        }
        let progress = self.progress();
        send(&mut self.link.connection, &Frame::Progress(progress))?;
        (self.reported, self.reported_ns) = (progress, Some(now_ns));
        Ok(true)
    }

    /// Reports the progress if that is due. True if it reported.
    fn report_if_due(&mut self) -> Result<bool, LinkError> {
        let now_ns = self.link.clock.monotonic_ns();
        let (now, reported) = (self.progress(), &self.reported);
        // A caller of the primary may wait for what is on the disk here.
        let is_awaited = now.persisted > reported.persisted;
        let is_more =
            (now.received, now.view, now.room_bytes) != (reported.received, reported.view, reported.room_bytes);
        let is_time = self
            .reported_ns
            .is_none_or(|reported_ns| now_ns.saturating_sub(reported_ns) >= REPORT_NS);
        let is_due = self.welcome.is_some() && (is_awaited || is_more && is_time || self.reported_ns.is_none());
        match is_due {
            true => self.report(),
            false => Ok(false),
        }
    }

    /// Sends the results of comparisons. True if there were any.
    fn send_comparisons(&mut self) -> Result<bool, LinkError> {
        if self.welcome.is_none() {
            return Ok(false);
        }
        let Some(compared) = self.taker.compares().and_then(|compares| compares.take_compared()) else {
            return Ok(false);
        };
        let compared = ComparisonResult {
            number: compared.number,
            lsn: compared.lsn,
            outcome: match compared.difference {
                None => ComparisonOutcome::Equal,
                Some(_) => ComparisonOutcome::Differs,
            },
            what: compared.difference.as_deref().unwrap_or_default(),
        };
        send(&mut self.link.connection, &Frame::Compared(compared))?;
        Ok(true)
    }

    /// Has this thread woken once the received records are durable.
    fn watch(&mut self) {
        let persisted = self.taker.progress().persisted;
        if self.waiter.as_ref().is_some_and(|(lsn, _)| *lsn > persisted) {
            return;
        }
        let received = self.taker.position().lsn;
        self.waiter = (received > persisted).then(|| {
            let wake = self.wake.clone();
            let hook = Box::new(move || {
                let _ = wake.try_send(()); // a full channel means that the thread is awake
            });
            (received, self.taker.when_persisted(received, hook))
        });
    }
}
