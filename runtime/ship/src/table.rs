//! The standbys by name, and how far each one is.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use reprise_base::{Lsn, Watermark};
use reprise_log::Hold;
use reprise_wire::{Progress, Refusal};

use crate::{
    freshness::{Freshness, FreshnessPoint, FreshnessSummary},
    judge::Verdict,
    source::ShippedLog,
    views::Views,
};

/// Standbys that a primary knows, connected or lost.
pub(crate) const STANDBYS_MAX: usize = 16;

/// What a standby is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandbyState {
    /// It gets a checkpoint.
    Joining,
    /// It gets log that was written before.
    CatchingUp,
    /// It gets each group as it is sealed.
    Streaming,
    /// There is no connection.
    Lost,
}

/// A standby, as its primary sees it.
#[derive(Clone, Debug)]
pub struct StandbyStatus {
    pub name: Arc<str>,
    pub state: StandbyState,
    /// Everything before it was sent.
    pub shipped: Lsn,
    /// As the standby told last: none is more than `shipped`.
    pub persisted: Lsn,
    pub replayed: Lsn,
    pub view: Lsn,
    /// From 0 to 1; None: not measured.
    pub freshness: Option<f64>,
    /// Age of the oldest record of the primary that readers there do not see; 0: they see all.
    pub lag_us: u64,
    pub lag_bytes: u64,
    pub lag_records: u64,
    /// The log is kept for it from here on. None: it is not, or not any more.
    pub held_from: Option<Lsn>,
    /// Why the last connection ended, or what is wrong.
    pub error: Option<Arc<str>>,
}

struct Standby {
    state: StandbyState,
    /// Whose word counts; 0: nobody's.
    connection: u64,
    shipped: Lsn,
    progress: Progress,
    hold: Option<(Arc<Hold>, Lsn)>,
    freshness: Freshness,
    error: Option<Arc<str>>,
}

impl Standby {
    fn new(connection: u64) -> Self {
        Self {
            state: StandbyState::Joining,
            connection,
            shipped: Lsn(0),
            progress: Progress::default(),
            hold: None,
            freshness: Freshness::default(),
            error: None,
        }
    }
}

pub(crate) struct Table {
    standbys: Mutex<BTreeMap<Arc<str>, Standby>>,
    /// By how many standbys, less one: so many persisted everything before it.
    acked: Vec<Arc<Watermark>>,
}

impl Table {
    pub fn new() -> Self {
        Self {
            standbys: Mutex::default(),
            acked: (0..STANDBYS_MAX).map(|_| Arc::default()).collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Standby>> {
        self.standbys.lock().expect("nothing panics under this lock")
    }

    /// Calls `change` with the standby, where it is this connection that speaks for it.
    fn with<R>(&self, name: &str, connection: u64, change: impl FnOnce(&mut Standby) -> R) -> Option<R> {
        let mut standbys = self.lock();
        let standby = standbys
            .get_mut(name)
            .filter(|standby| standby.connection == connection)?;
        Some(change(standby))
    }

    /// A standby of an earlier run is not here yet.
    pub fn expect(&self, name: &Arc<str>, hold: Option<(Arc<Hold>, Lsn)>) {
        let mut standbys = self.lock();
        if standbys.len() < STANDBYS_MAX {
            let error = "it has not come back since this server was started";
            standbys.entry(Arc::clone(name)).or_insert_with(|| Standby {
                state: StandbyState::Lost,
                hold,
                error: Some(error.into()),
                ..Standby::new(0)
            });
        }
    }

    /// What is held, by name.
    pub fn held(&self) -> Vec<(Arc<str>, Lsn)> {
        let standbys = self.lock();
        let held = standbys.iter().filter_map(|(name, standby)| {
            let (_, from) = standby.hold.as_ref()?;
            Some((Arc::clone(name), *from))
        });
        held.collect()
    }

    /// From here on `connection` speaks for the standby.
    pub fn begin(&self, name: &str, connection: u64) -> Result<(), Verdict> {
        let mut standbys = self.lock();
        if !standbys.contains_key(name) && standbys.len() >= STANDBYS_MAX {
            let reason = format!("this primary knows {STANDBYS_MAX} standbys already, and takes no more");
            return Err(Verdict::new(Refusal::Unavailable, reason));
        }
        let standby = standbys.entry(name.into()).or_insert_with(|| Standby::new(connection));
        standby.connection = connection;
        standby.state = StandbyState::Joining;
        Ok(())
    }

    pub fn speaks(&self, name: &str, connection: u64) -> bool {
        self.with(name, connection, |_| ()).is_some()
    }

    pub fn set_state(&self, name: &str, connection: u64, state: StandbyState) {
        self.with(name, connection, |standby| standby.state = state);
    }

    /// It gets what lies behind `position`.
    pub fn begin_log(&self, name: &str, connection: u64, position: Lsn) {
        self.with(name, connection, |standby| {
            standby.state = StandbyState::CatchingUp;
            standby.shipped = position;
            standby.progress = Progress::default();
            standby.freshness.begin();
            standby.error = None;
        });
    }

    /// The log is kept for it from `from` on, instead of what was kept before.
    pub fn set_hold(&self, name: &str, connection: u64, hold: Arc<Hold>, from: Lsn) {
        let before = self.with(name, connection, |standby| standby.hold.replace((hold, from)));
        drop(before); // outside of the lock: segments may go
    }

    pub fn note_shipped(&self, name: &str, connection: u64, lsn: Lsn) {
        self.with(name, connection, |standby| standby.shipped = lsn);
    }

    /// Returns what needs no longer be held, and by which hold.
    pub fn note_progress(&self, name: &str, connection: u64, progress: &Progress, now_ns: u64) -> Option<Arc<Hold>> {
        let mut standbys = self.lock();
        let standby = standbys
            .get_mut(name)
            .filter(|standby| standby.connection == connection)?;
        standby.progress = *progress;
        standby.freshness.note(now_ns, progress);
        let persisted = progress.persisted;
        let hold = standby
            .hold
            .as_mut()
            .filter(|(_, from)| *from < persisted)
            .map(|(hold, from)| {
                *from = persisted;
                Arc::clone(hold)
            });
        let mut all = [Lsn(0); STANDBYS_MAX];
        for (at, standby) in standbys.values().enumerate() {
            all[at] = standby.progress.persisted;
        }
        all.sort_unstable_by(|a, b| b.cmp(a));
        drop(standbys);
        for (mark, lsn) in self.acked.iter().zip(all) {
            mark.raise(lsn.0);
        }
        hold
    }

    /// The connection is over.
    pub fn end(&self, name: &str, connection: u64, error: &str) {
        self.with(name, connection, |standby| {
            standby.state = StandbyState::Lost;
            standby.connection = 0;
            standby.error = Some(error.into());
        });
    }

    /// The standby is not expected any more. False: it is not known, or connected.
    pub fn forget(&self, name: &str) -> bool {
        let mut standbys = self.lock();
        let is_lost = standbys.get(name).is_some_and(|standby| standby.connection == 0);
        let gone = if is_lost { standbys.remove(name) } else { None };
        drop(standbys);
        gone.is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub fn sample(&self, now: (u64, i64), views: &Views, log: &dyn ShippedLog) {
        let mut standbys = self.lock();
        for standby in standbys.values_mut() {
            standby
                .freshness
                .sample(now, views, |view| log.bytes_between(view, Lsn(u64::MAX)));
        }
    }

    /// The names of those whose hold was let go since this was asked last.
    pub fn take_let_go(&self) -> Vec<Arc<str>> {
        let mut gone = Vec::new();
        for (name, standby) in self.lock().iter_mut() {
            if let Some((hold, _)) = standby.hold.take_if(|(hold, _)| hold.is_let_go()) {
                standby.error = Some("the log that it lacked grew beyond what is held, and was let go".into());
                gone.push((Arc::clone(name), hold));
            }
        }
        gone.into_iter().map(|(name, _)| name).collect()
    }

    pub fn acked(&self, count: usize) -> Option<Arc<Watermark>> {
        self.acked.get(count.checked_sub(1)?).cloned()
    }

    pub fn history(&self, name: &str) -> Option<(Vec<FreshnessPoint>, Option<FreshnessSummary>)> {
        self.lock().get(name).map(|standby| standby.freshness.history())
    }

    pub fn statuses(&self, log: &dyn ShippedLog) -> Vec<StandbyStatus> {
        let durable = log.durable();
        let status = |(name, standby): (&Arc<str>, &Standby)| {
            let now = standby.freshness.now();
            let view = standby.progress.view;
            StandbyStatus {
                name: Arc::clone(name),
                state: standby.state,
                shipped: standby.shipped,
                persisted: standby.progress.persisted,
                replayed: standby.progress.replayed,
                view,
                freshness: now.map(|(score, _)| score),
                lag_us: now.map_or(0, |(_, lag_us)| lag_us),
                lag_bytes: if view < durable {
                    log.bytes_between(view, durable)
                } else {
                    0
                },
                lag_records: durable.0.saturating_sub(view.0),
                held_from: standby.hold.as_ref().map(|(_, from)| *from),
                error: standby.error.clone(),
            }
        };
        self.lock().iter().map(status).collect()
    }
}
