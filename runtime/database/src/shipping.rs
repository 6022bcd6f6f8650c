//! A database that ships its log to standbys, and whoever is asked about them.

use std::sync::{Arc, Mutex, MutexGuard};

use reprise_base::Lsn;
use reprise_checkpoint::checkpoint_name;
use reprise_env::{Disk, Net, entropy};
use reprise_log::{Log, LogError};
use reprise_observe::{Notice, NoticeKind};
use reprise_partition::{CallBatch, Shared};
use reprise_router::{
    CheckpointService, CheckpointState, JoinTicket, Promoted, ReplicationError, ReplicationInfo, ReplicationService,
    Router, StandbyInfo, StandbyState,
};
use reprise_ship::{
    CheckpointSource, ChosenCheckpoint, FreshnessPoint, ShipError, ShipEvent, Shipper, ShipperConfig, StandbyStatus,
};

use crate::{checkpoint::Checkpointer, database::Database};

/// With more log behind it, another checkpoint is taken before a standby begins with one.
const BEHIND_BYTES_MAX: u64 = 64 << 20;
/// Sealed groups that are kept for standbys that are a little behind, in bytes.
const RING_BYTES: usize = 16 << 20;

/// How a primary takes standbys.
pub struct ServeStandbys {
    pub net: Arc<dyn Net>,
    /// `host:port` to listen at; port 0: any that is free.
    pub listen: String,
    /// `host:port` under which standbys find it, where that is another one.
    pub ship_address: Option<String>,
    /// URL of this server for its clients, which standbys tell theirs.
    pub url: Option<Arc<str>>,
    /// Bytes of log that are kept at most for a standby that lags or is lost.
    pub hold_bytes_max: u64,
}

/// Why a database takes no standbys.
#[derive(Debug, thiserror::Error)]
pub enum ServeStandbysError {
    #[error("a server without a log has nothing to send to standbys")]
    NoLog,
    #[error("standbys are served already")]
    Served,
    #[error(transparent)]
    Ship(#[from] ShipError),
    #[error(transparent)]
    Log(#[from] LogError),
}

/// This node's part in replication, as the router's callers see it.
pub(crate) struct Replication {
    log: Arc<Log<Box<CallBatch>>>,
    router: Router,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    serving: Option<Serving>,
}

#[derive(Clone)]
struct Serving {
    shipper: Arc<Shipper>,
    ship_address: String,
    url: Option<Arc<str>>,
}

impl Database {
    /// Takes standbys from now on. Once.
    pub fn serve_standbys(&self, config: ServeStandbys) -> Result<(), ServeStandbysError> {
        let (Some(log), Some(checkpointer)) = (&self.log, &self.checkpointer) else {
            return Err(ServeStandbysError::NoLog);
        };
        let replication = Arc::new(Replication {
            log: log.clone(),
            router: self.router.clone(),
            state: Mutex::default(),
        });
        if self.upkeep.replication.set(replication.clone()).is_err() {
            return Err(ServeStandbysError::Served);
        }
        log.set_hold_bytes_max(config.hold_bytes_max)?;
        let folders = self.upkeep.folders.as_ref().ok_or(ServeStandbysError::NoLog)?;
        let source = Checkpoints {
            checkpointer: checkpointer.clone(),
            disk: folders.checkpoints.clone(),
            awaited: Mutex::default(),
        };
        let serving = serve(&self.shared, log.clone(), source, config)?;
        replication.lock().serving = Some(serving);
        let service: Arc<dyn ReplicationService> = replication;
        self.router.set_replication(Arc::downgrade(&service));
        Ok(())
    }

    /// How fresh a standby was, a point a second for the last hour. None: there is no standby of that name.
    pub fn freshness(&self, name: &str) -> Option<Vec<FreshnessPoint>> {
        self.upkeep.replication.get()?.serving()?.shipper.freshness(name)
    }
}

fn serve(
    shared: &Arc<Shared>,
    log: Arc<Log<Box<CallBatch>>>,
    checkpoints: Checkpoints,
    config: ServeStandbys,
) -> Result<Serving, ShipError> {
    let telling = shared.clone();
    let shipper = Shipper::start(ShipperConfig {
        net: config.net,
        clock: shared.clock.clone(),
        threads: shared.threads.clone(),
        log,
        checkpoints: Arc::new(checkpoints),
        listen: config.listen,
        primary: config.url.as_deref().unwrap_or_default().to_owned(),
        partitions: shared.partitions_count,
        ring_bytes: RING_BYTES,
        entropy: Box::new(entropy),
        tell: Box::new(move |event| telling.notices.tell(NoticeKind::Standby, || notice(event))),
    })?;
    Ok(Serving {
        ship_address: config.ship_address.unwrap_or_else(|| shipper.address().to_owned()),
        shipper: Arc::new(shipper),
        url: config.url,
    })
}

fn notice(event: ShipEvent) -> Notice {
    let (name, what) = match event {
        ShipEvent::Connected { name, peer, position } => {
            let at = position.map_or("gets its first files".into(), |lsn| format!("is at LSN {lsn}"));
            (name.to_string(), format!("connected from {peer}, {at}"))
        }
        ShipEvent::Ended { name, reason } => (name.to_string(), format!("its connection is over: {reason}")),
        ShipEvent::TurnedAway { peer, reason } => (String::new(), format!("{peer}: {reason}")),
        ShipEvent::HoldLetGo { name } => {
            let what = "the log that it lacks is kept no longer, since it would be too much: it begins anew";
            (name.to_string(), what.into())
        }
    };
    Notice::Standby { name, what }
}

impl Replication {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("held for a look or a store")
    }

    fn serving(&self) -> Option<Serving> {
        self.lock().serving.clone()
    }

    /// Ends all connections.
    pub fn stop(&self) {
        if let Some(serving) = self.serving() {
            serving.shipper.stop();
        }
    }
}

impl ReplicationService for Replication {
    fn info(&self) -> ReplicationInfo {
        let serving = self.serving();
        let durable = self.log.durable();
        let standbys = serving.as_ref().map(|serving| serving.shipper.standbys());
        ReplicationInfo {
            role: self.router.status().role,
            epoch: self.log.epoch(),
            safety: match self.router.status().commit {
                "async" => "local-async",
                _ => "local-sync",
            },
            primary: serving.as_ref().and_then(|serving| serving.url.clone()),
            ship_address: serving.map(|serving| serving.ship_address),
            durable,
            // No standby is waited for.
            acked: durable,
            committed: durable,
            standbys: standbys.unwrap_or_default().into_iter().map(info_of).collect(),
        }
    }

    fn own(&self) -> Option<StandbyInfo> {
        None
    }

    fn join(&self, name: &str) -> Result<JoinTicket, ReplicationError> {
        let serving = self.serving().ok_or(ReplicationError::NotServed)?;
        let ticket = serving.shipper.join(name).map_err(|error| match error {
            ShipError::Name(reason) => ReplicationError::Name(reason.into()),
            other => ReplicationError::Unavailable(other.to_string().into()),
        })?;
        Ok(JoinTicket {
            ticket: ticket.ticket,
            ship_address: serving.ship_address,
            database_id: ticket.database_id,
            partitions: ticket.partitions,
        })
    }

    fn promote(&self) -> Result<Promoted, ReplicationError> {
        Err(ReplicationError::IsPrimary(self.log.epoch()))
    }
}

fn info_of(status: StandbyStatus) -> StandbyInfo {
    StandbyInfo {
        name: status.name.to_string(),
        state: match status.state {
            reprise_ship::StandbyState::Joining => StandbyState::Joining,
            reprise_ship::StandbyState::CatchingUp => StandbyState::CatchingUp,
            reprise_ship::StandbyState::Streaming => StandbyState::Streaming,
            reprise_ship::StandbyState::Lost => StandbyState::Lost,
        },
        transport: "tcp",
        shipped: status.shipped,
        persisted: status.persisted,
        replayed: status.replayed,
        view: status.view,
        freshness: status.freshness,
        lag_us: status.lag_us,
        lag_bytes: status.lag_bytes,
        lag_records: status.lag_records,
        error: status.error,
    }
}

/// The database's checkpoints, for standbys to begin with.
struct Checkpoints {
    checkpointer: Arc<Checkpointer>,
    disk: Arc<dyn Disk>,
    /// One that was begun for a standby.
    awaited: Mutex<Option<Lsn>>,
}

impl Checkpoints {
    /// The newest one, where not much was written since.
    fn near(&self) -> Option<Lsn> {
        let newest = self.checkpointer.newest()?;
        (self.checkpointer.log.bytes_behind(newest) <= BEHIND_BYTES_MAX).then_some(newest)
    }

    /// One that was begun for this, once it is published.
    fn awaited(&self) -> Result<Option<Lsn>, String> {
        let mut awaited = self.awaited.lock().expect("held for a look");
        let Some(lsn) = *awaited else {
            let begun = self.checkpointer.try_take();
            *awaited = begun.map_err(|error| error.to_string())?.map(|info| info.lsn);
            return Ok(None);
        };
        let all = self.checkpointer.list();
        let found = all.into_iter().find(|info| info.lsn == lsn);
        if found
            .as_ref()
            .is_some_and(|info| info.state == CheckpointState::Running)
        {
            return Ok(None);
        }
        *awaited = None;
        match found {
            Some(info) if info.state == CheckpointState::Published => Ok(Some(lsn)),
            found => {
                let error = found.and_then(|info| info.error).unwrap_or_else(|| "it is gone".into());
                Err(format!("a checkpoint is needed first: {error}"))
            }
        }
    }
}

impl CheckpointSource for Checkpoints {
    fn choose(&self) -> Result<Option<ChosenCheckpoint>, String> {
        let kept = Box::new(self.checkpointer.keep_all());
        let near = self.near();
        if near.is_some() {
            *self.awaited.lock().expect("held for a store") = None;
        }
        let Some(lsn) = near.map_or_else(|| self.awaited(), |near| Ok(Some(near)))? else {
            return Ok(None);
        };
        let name = checkpoint_name(lsn);
        let file = self.disk.open_read(&name).map_err(|error| error.to_string())?;
        Ok(Some(ChosenCheckpoint { lsn, name, file, kept }))
    }
}
