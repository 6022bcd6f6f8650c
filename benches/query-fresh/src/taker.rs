//! A standby whose replay and acknowledgements are other than the product's; the connection, the log and its device are the product's.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use crossbeam_channel::{Receiver, Sender};
use reprise_base::{Lsn, WatermarkWaiter};
use reprise_database::{AppendError, AppendOutcome, Database, Group, Position};
use reprise_env::{Step, Work};
use reprise_ship::{BeatSeen, LogReceiver, OnTheWay, PersistedHook, StandbyProgress, SyncReport, Taker};

use crate::arrays::ReplayArrays;

/// When a standby tells its primary that it has a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledges {
    /// Once it came.
    Received,
    /// Once it is in its log.
    Persisted,
    /// Once it is in its log and replayed.
    Replayed,
}

/// The use that a standby makes of its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replays {
    /// It keeps the log alone.
    Nothing,
    /// It notes where the newest change of each row lies.
    Arrays,
    /// The product's way: changes are put in place, commands run again.
    Tables,
}

/// Groups on their way to the thread of replay arrays.
struct Piece {
    end: Lsn,
    records: Vec<u8>,
}

/// The progress of the thread of replay arrays.
struct Noted {
    /// Everything before it is in the arrays.
    end: AtomicU64,
    has_failed: AtomicBool,
}

pub struct WayTaker {
    database: Arc<Database>,
    acknowledges: Acknowledges,
    replays: Replays,
    /// For replay arrays.
    pieces: Option<Sender<Piece>>,
    noted: Arc<Noted>,
    on_the_way: Mutex<OnTheWay>,
}

impl WayTaker {
    /// And the work of its replay arrays' thread, where it has them.
    pub fn new(
        database: Arc<Database>,
        replays: Replays,
        acknowledges: Acknowledges,
    ) -> (Arc<Self>, Option<Box<dyn Work + Send>>) {
        let begins = database.received().map_or(0, |position| position.lsn.0);
        let noted = Arc::new(Noted {
            end: AtomicU64::new(begins),
            has_failed: AtomicBool::new(false),
        });
        let (pieces, thread) = match replays {
            Replays::Arrays => {
                let (pieces, come) = crossbeam_channel::unbounded();
                let thread = Noting {
                    arrays: ReplayArrays::default(),
                    place: 0,
                    come,
                    noted: noted.clone(),
                };
                (Some(pieces), Some(Box::new(thread) as Box<dyn Work + Send>))
            }
            Replays::Nothing | Replays::Tables => (None, None),
        };
        let taker = Self {
            database,
            acknowledges,
            replays,
            pieces,
            noted,
            on_the_way: Mutex::default(),
        };
        (Arc::new(taker), thread)
    }

    fn durable(&self) -> Lsn {
        self.database.router().durable()
    }

    /// Everything before it is replayed and durable; of a standby that replays nothing, durable.
    pub fn view(&self) -> Lsn {
        match self.replays {
            Replays::Nothing => self.durable(),
            Replays::Arrays => self.durable().min(Lsn(self.noted.end.load(Ordering::Acquire))),
            Replays::Tables => self.database.router().view(),
        }
    }

    /// Something could not be noted.
    pub fn has_failed(&self) -> bool {
        self.noted.has_failed.load(Ordering::Acquire)
    }
}

impl Taker for WayTaker {
    fn position(&self) -> Position {
        self.database.received().unwrap_or_default()
    }

    fn place(&self, group: &Group<'_>) -> Result<AppendOutcome, AppendError> {
        let placed = self.database.place(group)?;
        if placed == AppendOutcome::New {
            let bytes = group.records.len() as u64;
            let mut on_the_way = self.on_the_way.lock().expect("held to count");
            on_the_way.record_group(group.end.lsn, bytes);
            drop(on_the_way);
            if let Some(pieces) = &self.pieces {
                let _ = pieces.send(Piece {
                    end: group.end.lsn,
                    records: group.records.to_vec(),
                }); // the thread may have ended
            }
        }
        Ok(placed)
    }

    fn progress(&self) -> StandbyProgress {
        let (view, durable) = (self.view(), self.durable());
        let mut on_the_way = self.on_the_way.lock().expect("held to count");
        StandbyProgress {
            persisted: match self.acknowledges {
                Acknowledges::Received => self.position().lsn,
                Acknowledges::Persisted => durable,
                Acknowledges::Replayed => view.min(durable),
            },
            replayed: view,
            view,
            room_bytes: on_the_way.room_bytes(durable, None),
        }
    }

    fn on_heartbeat(&self, _: &BeatSeen) {}

    fn save_sync_report(&self, _: &SyncReport) -> bool {
        true // this standby is never promoted
    }

    fn when_persisted(&self, lsn: Lsn, hook: PersistedHook) -> Option<WatermarkWaiter> {
        match self.acknowledges {
            Acknowledges::Received => None,
            Acknowledges::Persisted => self.database.when_durable(lsn, hook),
            Acknowledges::Replayed => self.database.router().when_in_view(Lsn(lsn.0.saturating_sub(1)), hook),
        }
    }
}

/// The thread that notes changes in replay arrays.
struct Noting {
    arrays: ReplayArrays,
    place: u64,
    come: Receiver<Piece>,
    noted: Arc<Noted>,
}

impl Noting {
    /// False: nothing can be noted any more.
    fn add_piece(&mut self, piece: &Piece) -> bool {
        let noted = self.arrays.add_records(self.place, &piece.records);
        self.place += piece.records.len() as u64;
        match noted {
            Ok(_) => self.noted.end.store(piece.end.0, Ordering::Release),
            Err(_) => self.noted.has_failed.store(true, Ordering::Release),
        }
        noted.is_ok()
    }
}

impl Work for Noting {
    fn run(mut self: Box<Self>) {
        while let Ok(piece) = self.come.recv() {
            if !self.add_piece(&piece) {
                return;
            }
        }
    }

    fn step(&mut self) -> Step {
        match self.come.try_recv() {
            Ok(piece) if self.add_piece(&piece) => Step::Done,
            Err(crossbeam_channel::TryRecvError::Empty) => Step::Idle,
            _ => Step::Over,
        }
    }
}

/// The thread that takes what comes.
pub struct Taking {
    pub streaming: LogReceiver,
    pub is_over: Arc<AtomicBool>,
}

impl Work for Taking {
    fn run(self: Box<Self>) {
        let Self { mut streaming, is_over } = *self;
        // A connection that ends early leaves the standby out of sync, which the run finds.
        let _ = streaming.run(&|| !is_over.load(Ordering::Acquire));
    }

    fn step(&mut self) -> Step {
        match self.is_over.load(Ordering::Acquire) {
            true => Step::Over,
            false => self.streaming.step().unwrap_or(Step::Over),
        }
    }
}
