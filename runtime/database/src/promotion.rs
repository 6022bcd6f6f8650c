//! A standby becomes the primary: by an operator's word, or by the lease.

use std::sync::{Arc, atomic::Ordering};

use reprise_base::{Epoch, Lsn, Role};
use reprise_env::{Step, Work};
use reprise_router::{LossCause, PeerMember, PromoteOptions, PromotionResult, ReplicationError};

use crate::{
    cutting,
    database::Database,
    lease_rules::{ByHand, LeaseCandidate},
    lease_store::LeaseContents,
    leasing::LeaseManager,
    promising::PromiseRound,
    standby_service::NodeReplication,
};

impl NodeReplication {
    /// Makes this server the primary, because an operator asks for it.
    pub(crate) fn promote_by_hand(&self, options: PromoteOptions) -> Result<PromotionResult, ReplicationError> {
        let database = self.database.upgrade();
        let database = database.ok_or_else(|| ReplicationError::Unavailable("the server stops".into()))?;
        if let Some(stepped) = self.stepped() {
            return self.take_place_again(&stepped, options);
        }
        // Promotions run one after the other. Otherwise a second one that fails could take back the promises by which the first one leads.
        let _promotion = self.promotion.lock().expect("a promotion never panics");
        database.check_promotion()?;
        self.check_level(&database)?;
        let leasing = self.leasing.get();
        let _promoting = leasing.map(|leasing| leasing.begin_promotion());
        // The new epoch is later than every epoch that this server knows.
        let (mut heard, mut given) = (self.synced.epoch(), None);
        if !options.is_forced {
            // If the store did not answer, no server could become the primary once the old one stepped down.
            leasing.map_or(Ok(()), |leasing| leasing.check_store())?;
            let stepped = self.succeed(self.linked.get().map(|linked| &**linked))?;
            self.promises.check_place(stepped.epoch)?;
            heard = heard.later(stepped.epoch);
            given = Some(stepped.epoch);
        }
        let accepts_loss = options.accepts_loss;
        let highest = heard.later(self.promises.bound()).later(self.log.epoch());
        let epoch = self.node.own_epoch(cutting::unused_count(&self.node)).behind(highest);
        let lost = match leasing {
            Some(leasing) => {
                let lost = self.synced.behind(self.received_end(), LossCause::NotRecorded);
                let is_checked_later = options.is_forced && self.is_decided_by_promises();
                let by = ByHand {
                    given,
                    accepts_loss,
                    is_checked_later,
                };
                leasing.take_by_hand(by, lost)?
            }
            None => None,
        };
        let asks = options.is_forced && (leasing.is_none() || self.is_decided_by_promises());
        let promoted = self.lead_with_promises(&database, epoch, asks.then_some(accepts_loss));
        match (&promoted, leasing) {
            (Ok(_), Some(leasing)) => leasing.record_promotion(),
            (Err(error), Some(leasing)) => leasing.abandon_takeover(&error.to_string()),
            (_, None) => {}
        }
        let promoted = promoted?;
        let lost = lost.map(|lost| lost.behind(promoted.lsn));
        Ok(PromotionResult {
            has_stepped_down: !options.is_forced,
            may_be_lost: lost.or(promoted.may_be_lost),
            ..promoted
        })
    }

    /// Makes a standby the primary in an epoch of at least `at_least`. `asks`: it asks the other standbys for their promises first. Some(true): an
    /// operator accepts the loss that their answers do not exclude.
    fn lead_with_promises(
        &self,
        database: &Database,
        at_least: Epoch,
        asks: Option<bool>,
    ) -> Result<PromotionResult, ReplicationError> {
        let at_least = at_least.later(self.granted_epoch());
        let asked = match asks {
            Some(accepts_loss) => {
                let asked = self.collect_promises(at_least)?;
                if let Some(lost) = asked.lost.clone().filter(|_| !accepts_loss) {
                    self.withdraw(&asked);
                    return Err(ReplicationError::OutOfSync(lost));
                }
                asked
            }
            None => PromiseRound::default(),
        };
        let leasing = self.leasing.get();
        if let Err(error) = leasing.map_or(Ok(()), |leasing| leasing.raise_epoch(asked.epoch)) {
            self.withdraw(&asked);
            return Err(error);
        }
        let promoted = self.become_primary(database, at_least.later(asked.epoch), self.first_set(&asked));
        match &promoted {
            Ok(_) => self.claimed.store(0, Ordering::Release),
            Err(_) => self.withdraw(&asked),
        }
        let promoted = promoted?;
        Ok(PromotionResult {
            may_be_lost: asked.lost.map(|lost| lost.behind(promoted.lsn)),
            ..promoted
        })
    }

    /// Makes a standby the primary, whatever others are, in an epoch of at least `at_least`.
    fn become_primary(
        &self,
        database: &Database,
        at_least: Epoch,
        set: Option<Vec<PeerMember>>,
    ) -> Result<PromotionResult, ReplicationError> {
        database.adopt_safety();
        let at_least = at_least.later(self.granted_epoch()).behind(self.log.epoch());
        // Another server may have asked this one since it asked the others.
        self.promises.begin_leading(at_least)?;
        let promoted = self.begin_reign(database, at_least, set);
        self.promises.end_leading();
        promoted
    }

    fn begin_reign(
        &self,
        database: &Database,
        at_least: Epoch,
        set: Option<Vec<PeerMember>>,
    ) -> Result<PromotionResult, ReplicationError> {
        let siblings = self.synced.siblings(self.log.start());
        let epoch = self.begin_promotion(&siblings, set.as_deref(), at_least)?;
        let promoted = database.promote_in(epoch);
        if promoted.is_err() && self.router.role() == Role::Standby {
            self.abandon_promotion();
        }
        let promoted = promoted?;
        if let Some(hiding) = database.hiding() {
            hiding.show_again(&self.router);
        }
        if let Err(error) = self.synced.forget() {
            self.report(format!("the primary's last sync status can't be removed: {error}"));
        }
        if let Some(linked) = self.linked.get() {
            linked.end();
        }
        self.serve_if_waiting();
        Ok(promoted)
    }

    /// Checks whether this standby can take over by itself.
    pub(crate) fn check_takeover(&self) -> Result<(), ReplicationError> {
        let database = self.database.upgrade();
        let database = database.ok_or_else(|| ReplicationError::Unavailable("the server stops".into()))?;
        match self.stepped() {
            Some(_) => Err(ReplicationError::Unavailable("it stepped down".into())),
            None => database.check_promotion().and_then(|()| self.check_level(&database)),
        }
    }

    /// Checks that this server can answer at the cluster's level once it leads, before anything of a promotion begins.
    fn check_level(&self, database: &Database) -> Result<(), ReplicationError> {
        let unavailable = |reason: String| ReplicationError::Unavailable(reason.into());
        let Some(level) = database.cluster_safety() else {
            return Ok(());
        };
        database.check_safety(level).map_err(unavailable)?;
        match level.counts_standbys() && !self.takes_standbys() {
            true => Err(unavailable(format!(
                "the cluster's level is {level}, and this server takes no standbys: it would refuse every write. Start it again with --ship-listen, \
                 then promote it"
            ))),
            false => Ok(()),
        }
    }

    /// Makes a standby that has the lease the primary. At `quorum` the other standbys' promises have to exclude a loss, too.
    pub(crate) fn take_over(&self) -> Result<PromotionResult, ReplicationError> {
        self.check_takeover()?;
        let database = self.database.upgrade();
        let database = database.ok_or_else(|| ReplicationError::Unavailable("the server stops".into()))?;
        let asks = self.is_decided_by_promises().then_some(false);
        self.lead_with_promises(&database, self.node.own_epoch(0).behind(self.synced.epoch()), asks)
    }

    /// Returns the standbys that the record names while this server takes over. A standby may lack records that are here, so none is in sync with
    /// it. Where promises decide, the record only says which standbys may try, so they stay in it.
    pub(crate) fn candidates(&self, seen: &LeaseContents) -> Vec<String> {
        let record = seen.record.as_ref().filter(|_| self.is_decided_by_promises());
        record.map_or_else(Vec::new, |record| record.in_sync.clone())
    }

    /// Returns this server as the rules of the lease take it.
    pub(crate) fn candidate<'a>(&self, name: &'a str) -> LeaseCandidate<'a> {
        let received = self.log.received().map(|position| position.lsn);
        let status = self.synced.status();
        LeaseCandidate {
            name,
            node: self.own_node(),
            reached: self.reached(),
            end: received.unwrap_or_else(|| self.log.filled()),
            needs_promises: self.is_decided_by_promises(),
            follows: self.node.read(|document| document.follows),
            was_in_sync: status.as_ref().is_some_and(|status| status.has_been_in_sync),
            heard: self.log.written_epoch().later(self.synced.epoch()).count(),
        }
    }

    /// Returns the identity of the data directory.
    pub(crate) fn own_node(&self) -> String {
        self.node.read(|document| document.identity().to_owned())
    }

    /// Returns the lowest epoch in which this server can become the primary.
    pub(crate) fn granted_epoch(&self) -> Epoch {
        let count = self.leasing.get().map_or(0, |leasing| leasing.granted_count());
        self.node.own_epoch(count)
    }

    fn received_end(&self) -> Lsn {
        self.log.received().map(|position| position.lsn).unwrap_or_default()
    }
}

/// The work that makes a standby with the lease the primary.
pub(crate) struct Takeover {
    pub leasing: Arc<LeaseManager>,
    pub replication: Arc<NodeReplication>,
}

impl Work for Takeover {
    fn run(mut self: Box<Self>) {
        self.step();
    }

    fn step(&mut self) -> Step {
        let _promoting = self.leasing.begin_promotion();
        // An operator may have promoted this server meanwhile.
        if self.replication.router.role() == Role::Standby {
            match self.replication.take_over() {
                Ok(_) => self.leasing.record_promotion(),
                Err(error) => self.leasing.abandon_takeover(&error.to_string()),
            }
        }
        Step::Over
    }
}
