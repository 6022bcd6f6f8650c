//! The server's safety level: what it needs of the database, and the gate at which callers wait for it.

use std::sync::Arc;

use reprise_base::{Epoch, Lsn, Role, Safety};
use reprise_partition::CommitGate;
use reprise_ship::{Commits, Stand};

use crate::{cutting, database::Database, error::OpenError, expected, node_file::NodeFile, shown};

/// The gate, as whoever knows the standbys moves it.
pub(crate) struct Committing(pub Arc<CommitGate>);

impl Commits for Committing {
    fn set(&self, stand: &Stand) {
        let is_backed = stand.reached.asks_standbys();
        self.0.set_limit(stand.limit, is_backed, stand.refusal.clone());
    }

    fn release(&self) {
        self.0.release();
    }

    fn give_up(&self, reason: &Arc<str>) {
        self.0.give_up(reason);
    }

    fn expire(&self, now_ns: u64, before_ns: u64, reason: &Arc<str>) {
        self.0.expire(now_ns, before_ns, reason);
    }

    fn committed(&self, durable: Lsn) -> Lsn {
        self.0.committed(durable)
    }
}

impl Database {
    /// Has answers wait for standbys, as `level` says; of a standby, once it is the primary. Once, before `recover`.
    pub fn set_safety(&self, level: Safety) -> Result<(), OpenError> {
        let refuse = |reason: String| Err(OpenError::Config(reason));
        let status = self.router.status();
        if self.log.is_none() || status.commit == "async" {
            return refuse(format!(
                "the safety level {level} has a write durable here before it is answered: it takes a log, and --commit sync"
            ));
        }
        assert!(self.shared.gate.set_level(level), "the safety level is set once");
        if self.router.role() == Role::Primary {
            self.keep_commits();
        }
        Ok(())
    }

    /// What was asked for; else what `--commit` says.
    pub(crate) fn safety(&self) -> Safety {
        self.router.safety().0
    }

    /// From here on answers wait. What is known to be committed may be shown. Until standbys are taken there is none.
    pub(crate) fn keep_commits(&self) {
        let level = self.safety();
        let is_kept = level.asks_standbys() || self.shared.gate.is_leased();
        let (true, Some(log)) = (is_kept, &self.log) else {
            return;
        };
        let gate = &self.shared.gate;
        if self.upkeep.standby.is_none() && self.awaits_somebody() {
            // They may come back; whoever takes them knows for how long they are waited for.
            gate.set_limit(Some(Lsn(0)), false, None);
        }
        if level.asks_standbys() && level != Safety::TwoSafe {
            let reason = format!("the safety level {level} needs a standby, and none is here");
            gate.set_limit(Some(Lsn(0)), false, Some(reason.into()));
        }
        gate.keep(self.known_committed(level, log.durable()));
    }

    /// As far as this server knew before it was the primary: standbys may lack what lies behind.
    fn known_committed(&self, level: Safety, durable: Lsn) -> Lsn {
        let known = match (&self.upkeep.standby, self.root().zip(self.node())) {
            _ if !level.asks_standbys() => None,
            (Some(standby), _) => standby.told_committed(),
            (None, Some((root, node))) => {
                let before = Epoch(self.log.as_ref().map_or(0, |log| log.epoch().0.saturating_sub(1)));
                match cutting::was_primary(node, before) || level == Safety::TwoSafe {
                    true => cutting::committed_as_primary(node, before),
                    // It was a standby last; what can't be read is shown by nobody.
                    false => shown::load(root).map_or(Some(Lsn(0)), |shown| shown.map(|shown| shown.limit)),
                }
            }
            (None, None) => None,
        };
        known.unwrap_or(durable).min(durable)
    }

    /// A standby was in sync when this database was a primary last.
    fn awaits_somebody(&self) -> bool {
        let is_in_sync = |node: &Arc<NodeFile>| expected::load(node).iter().any(|standby| standby.is_in_sync);
        self.node().is_some_and(is_in_sync)
    }
}
