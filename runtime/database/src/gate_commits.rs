//! The server's safety level: what it needs of the database, and the gate at which callers wait for it.

use std::sync::Arc;

use reprise_base::{Lsn, Role, Safety};
use reprise_env::DiskError;
use reprise_partition::{CommitGate, Shortage};
use reprise_router::ViewAge;
use reprise_ship::{Commits, SafetyStatus};

use crate::{
    cutting, database::Database, error::OpenError, membership, node_file::NodeFile, shown_limit,
    standby_service::NodeReplication,
};

/// The gate, as the shipper moves it.
pub(crate) struct GateCommits(pub Arc<CommitGate>);

impl Commits for GateCommits {
    fn set(&self, stand: &SafetyStatus) {
        let is_backed = stand.reached.asks_standbys();
        let shortage = Shortage {
            writes: stand.refusal.clone(),
            reads: stand.missing.clone(),
        };
        self.0.set_limit(stand.limit, is_backed, shortage);
    }

    fn release(&self) {
        self.0.release();
    }

    fn leave_open(&self, reason: &Arc<str>) {
        self.0.leave_open(reason);
    }

    fn expire(&self, now_ns: u64, before_ns: u64, reason: &Arc<str>) {
        self.0.expire(now_ns, before_ns, reason);
    }

    fn confirm(&self, boot_ns: u64) {
        self.0.record_confirmed(boot_ns);
    }

    fn committed(&self, durable: Lsn) -> Lsn {
        self.0.committed(durable)
    }
}

impl Database {
    /// Has answers wait for standbys, as the level of the cluster says. A standby's answers wait once it is the primary. The first primary of a
    /// cluster that asks for a level sets it. Each later one has to ask for that level, or for none. Before `recover`.
    ///
    /// # Errors
    /// The cluster has another level, the level can't be had here, or it can't be saved.
    pub fn set_safety(&self, asked: impl Into<Option<Safety>>) -> Result<(), OpenError> {
        let (asked, role) = (asked.into(), self.router.role());
        let cluster = self.cluster_safety().filter(|_| role != Role::ReadOnly);
        if let (Some(cluster), Some(asked), Role::Primary) = (cluster, asked, role)
            && cluster != asked
        {
            return Err(OpenError::OtherSafety { cluster, asked });
        }
        let Some(level) = cluster.or(asked) else {
            return Ok(());
        };
        self.check_safety(level).map_err(OpenError::Config)?;
        self.shared.gate.set_level(level);
        if role == Role::Primary {
            self.record_safety(level)?;
            self.keep_commits();
        }
        Ok(())
    }

    /// Gives the cluster another level. This server is its primary. The call comes before `set_safety` asks for the level.
    ///
    /// # Errors
    /// The level can't be had here, a standby that is away still goes by very-safe, or the level can't be saved.
    pub fn change_safety(&self, level: Safety) -> Result<(), OpenError> {
        self.check_safety(level).map_err(OpenError::Config)?;
        self.check_leaving_very_safe(level)?;
        Ok(self.record_safety(level)?)
    }

    /// Checks that no standby which is away goes by very-safe while the cluster has another level. At very-safe the last word of its primary is
    /// enough for a promotion that names no loss. At another level the primary answers writes without the standby.
    fn check_leaving_very_safe(&self, level: Safety) -> Result<(), OpenError> {
        if self.cluster_safety() != Some(Safety::VerySafe) || level == Safety::VerySafe {
            return Ok(());
        }
        let away = self.node().map_or_else(Vec::new, |node| membership::counted_away(node));
        match away.is_empty() {
            true => Ok(()),
            false => Err(OpenError::Config(format!(
                "standbys that are away could be promoted by very-safe, the level that they heard last: {}. Start them before the level changes, or \
                 have them forgotten (reprise replication forget NAME)",
                away.join(", ")
            ))),
        }
    }

    /// Has this standby lead at the level of its cluster, whatever its own start asked for.
    pub(crate) fn adopt_safety(&self) {
        if let Some(level) = self.cluster_safety() {
            self.shared.gate.set_level(level);
        }
    }

    pub(crate) fn cluster_safety(&self) -> Option<Safety> {
        self.node()?.read(|document| document.safety())
    }

    fn record_safety(&self, level: Safety) -> Result<(), DiskError> {
        let record = |node: &Arc<NodeFile>| node.change(|document| document.record_safety(level));
        self.node().map_or(Ok(()), record)
    }

    pub(crate) fn check_safety(&self, level: Safety) -> Result<(), String> {
        match self.log.is_none() || self.router.status().commit == "async" {
            true => Err(format!(
                "the safety level {level} has a write durable here before it is answered: it takes a log, and --commit sync"
            )),
            false => Ok(()),
        }
    }

    /// Returns the level that was asked for; without one, the level of `--commit`.
    pub(crate) fn safety(&self) -> Safety {
        self.router.safety().0
    }

    /// Makes answers wait from now on. Reads show the records that are known to be committed. Until the shipper takes standbys, there is no standby.
    pub(crate) fn keep_commits(&self) {
        let level = self.safety();
        let is_kept = level.asks_standbys() || self.shared.gate.is_leased();
        let (true, Some(log)) = (is_kept, &self.log) else {
            return;
        };
        let gate = &self.shared.gate;
        if self.upkeep.standby.is_none() && self.awaits_standby() {
            // The standbys may come back. The shipper, which takes them, knows how long calls wait for them.
            gate.set_limit(Some(Lsn(0)), false, Shortage::default());
        }
        if level.asks_standbys() && level != Safety::TwoSafe {
            // The shipper sets later how long reads wait for standbys.
            let reason: Arc<str> = format!("the safety level {level} needs a standby, and none is here").into();
            let (writes, reads) = (Some(Arc::clone(&reason)), Some(reason));
            gate.set_limit(Some(Lsn(0)), false, Shortage { writes, reads });
        }
        gate.keep(self.known_committed(level, log.durable()));
    }

    /// Returns the end of the records that this server knew to be committed before it was the primary. Standbys may lack later ones.
    fn known_committed(&self, level: Safety, durable: Lsn) -> Lsn {
        let known = match (&self.upkeep.standby, self.root().zip(self.node())) {
            _ if !level.asks_standbys() => None,
            (Some(standby), _) => standby.reported_committed(),
            (None, Some((root, node))) => {
                let before = self.log.as_ref().map_or(0, |log| log.epoch().count().saturating_sub(1));
                match cutting::was_primary(node, before) || level == Safety::TwoSafe {
                    true => cutting::committed_as_primary(node, before),
                    // The server was a standby last. If the file can't be read, no record counts as shown.
                    false => shown_limit::load(root).map_or(Some(Lsn(0)), |shown| shown.map(|shown| shown.limit)),
                }
            }
            (None, None) => None,
        };
        known.unwrap_or(durable).min(durable)
    }

    /// True if a standby was in sync when this database was a primary last.
    fn awaits_standby(&self) -> bool {
        let is_in_sync = |node: &Arc<NodeFile>| membership::load(node).iter().any(|standby| standby.is_in_sync);
        self.node().is_some_and(is_in_sync)
    }
}

impl NodeReplication {
    /// Returns the level of this server. A standby has the level of its cluster, if its primary has told it.
    pub(crate) fn safety(&self) -> Safety {
        let cluster = match self.router.role() {
            Role::Standby => self.node.read(|document| document.safety()),
            Role::Primary | Role::ReadOnly => None,
        };
        cluster.unwrap_or_else(|| self.router.safety().0)
    }

    /// Returns the age of a primary that may be deposed. It shows the rows that were committed when enough standbys last followed it.
    pub(crate) fn doubtful_age(&self, view: Lsn) -> Option<ViewAge> {
        let gate = &self.shared.gate;
        let doubt = gate.doubt(&*self.shared.clock)?;
        (self.router.role() == Role::Primary).then(|| ViewAge {
            view: gate.committed(view),
            lag_us: doubt.age_ns / 1000,
            is_lag_known: doubt.is_known,
            freshness: None,
        })
    }
}
