//! A switch-over. A primary gives its place to one of its standbys, which then has everything. A standby asks for that before it becomes the primary.

use std::{sync::Arc, time::Duration};

use reprise_base::{Epoch, Lsn, Role};
use reprise_env::DiskError;
use reprise_log::LogError;
use reprise_router::{
    HandOverPoint, LaggingStandby, LossCause, LostRecords, NodePhase, PeerMember, PromoteOptions, PromotionResult,
    ReplicationError,
};
use reprise_ship::{StandbyStage, StandbyStatus};
use serde::{Deserialize, Serialize};

use crate::{
    cutting::{self, ReachedEpoch},
    lease_rules::ByHand,
    lease_store::Holder,
    membership,
    primary_connection::PrimaryConnection,
    shown_limit,
    standby_service::{NodeReplication, StandbyService},
};

/// Longest time in which a successor has to get the last records. Its caller waits longer.
const HAND_OVER_MAX: Duration = Duration::from_secs(10);
/// Longest wait for other standbys that are in sync, so that calls which wait for them get their answers.
const OTHERS_MAX: Duration = Duration::from_millis(500);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The place that this node gave away, as its document has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HandedOver {
    pub successor: String,
    pub url: Option<String>,
    /// Count of the epoch that ended.
    pub epoch: u32,
    /// Writer of that epoch.
    pub writer: u16,
    pub lsn: u64,
}

/// The hand-over, and its time by the clock that counts suspended time.
#[derive(Clone, Debug)]
pub(crate) struct HandOverRecord {
    note: HandedOver,
    pub since_ns: u64,
    /// Standbys that were out of sync with this server by then.
    pub laggards: Vec<LaggingStandby>,
}

impl HandOverRecord {
    fn to_point(&self) -> HandOverPoint {
        HandOverPoint {
            epoch: Epoch::new(self.note.epoch, self.note.writer),
            lsn: Lsn(self.note.lsn),
        }
    }
}

fn unavailable(reason: String) -> ReplicationError {
    ReplicationError::Unavailable(reason.into())
}

fn not_stopped(reason: String) -> ReplicationError {
    ReplicationError::PrimaryNotStopped(reason.into())
}

/// Checks whether the standby can take over. Err: the stage of the standby.
fn check_successor(status: Option<&StandbyStatus>, name: &str) -> Result<(), ReplicationError> {
    match status {
        Some(status) if status.state == StandbyStage::Streaming => Ok(()),
        Some(status) => {
            let state = match status.state {
                StandbyStage::Joining | StandbyStage::CatchingUp => "has not caught up",
                StandbyStage::Streaming | StandbyStage::Lost => "is lost",
            };
            Err(unavailable(format!("the standby {name} {state}")))
        }
        None => Err(unavailable(format!("this server has no standby of the name {name}"))),
    }
}

impl NodeReplication {
    pub(crate) fn stepped(&self) -> Option<HandOverRecord> {
        self.stepped.lock().expect("held for a short time").clone()
    }

    /// Gives this primary's place away.
    pub(crate) fn give_place(&self, name: &str, url: Option<Arc<str>>) -> Result<HandOverPoint, ReplicationError> {
        let _stepping = self.stepping.lock().expect("nothing panics while it steps down");
        if let Some(stepped) = self.stepped() {
            return match stepped.note.successor == name {
                true => Ok(stepped.to_point()),
                false => Err(ReplicationError::NotPrimary(self.router.primary_url())),
            };
        }
        match self.router.role() {
            Role::Primary => {}
            Role::Standby => return Err(ReplicationError::NotPrimary(self.router.primary_url())),
            Role::ReadOnly => return Err(unavailable("this server is read-only".into())),
        }
        let serving = self.served()?;
        let status = |name| {
            serving
                .shipper
                .standbys()
                .into_iter()
                .find(|status| &*status.name == name)
        };
        check_successor(status(name).as_ref(), name)?;
        self.leasing.get().map_or(Ok(()), |leasing| leasing.check_hand_over())?;
        let paused = self.log.pause(&format!("this server gives its place to {name}"));
        let end = paused.map_err(|error| unavailable(error.to_string()))?;
        let given = self
            .hand_over(&serving, name, end)
            .and_then(|()| self.record(name, url.as_deref(), end));
        match given {
            Ok(stepped) => {
                self.wait_for_others(&serving, end);
                self.leave(&stepped, url);
                serving.shipper.dismiss(true);
                if let Some(leasing) = self.leasing.get() {
                    leasing.hand_over(name);
                }
                Ok(stepped.to_point())
            }
            Err(error) => {
                // The caller gets the first reason; a log that has failed reports its own.
                let _ = self.log.resume(None);
                Err(error)
            }
        }
    }

    /// Waits until the standby has everything before `end`. The files here must have it first, because the standby gets it from them.
    fn hand_over(&self, serving: &StandbyService, name: &str, end: Lsn) -> Result<(), ReplicationError> {
        if self.log.wait_copied(end, HAND_OVER_MAX).is_err() {
            return Err(unavailable("the last records can't be written here".into()));
        }
        let clock = &self.shared.clock;
        let until_ns = clock.monotonic_ns() + HAND_OVER_MAX.as_nanos() as u64;
        loop {
            let statuses = serving.shipper.standbys();
            let status = statuses.iter().find(|status| &*status.name == name);
            if status.is_some_and(|status| status.persisted >= end) {
                return Ok(());
            }
            check_successor(status, name)?;
            if clock.monotonic_ns() >= until_ns {
                return Err(unavailable(format!(
                    "the standby {name} did not get the last records in time"
                )));
            }
            self.shared.threads.sleep(POLL_INTERVAL);
        }
    }

    fn wait_for_others(&self, serving: &StandbyService, end: Lsn) {
        let clock = &self.shared.clock;
        let until_ns = clock.monotonic_ns() + OTHERS_MAX.as_nanos() as u64;
        let lacks = |status: &StandbyStatus| status.is_in_sync && status.persisted < end;
        while serving.shipper.standbys().iter().any(lacks) && clock.monotonic_ns() < until_ns {
            self.shared.threads.sleep(POLL_INTERVAL);
        }
    }

    /// Records the hand-over: from now on the directory opens as no primary's.
    fn record(&self, name: &str, url: Option<&str>, end: Lsn) -> Result<HandOverRecord, ReplicationError> {
        let epoch = self.log.epoch();
        let note = HandedOver {
            successor: name.to_owned(),
            url: url.map(str::to_owned),
            epoch: epoch.count(),
            writer: epoch.writer(),
            lsn: end.0,
        };
        let written = self.node.change(|document| document.handed_over = Some(note.clone()));
        written.map_err(|error| unavailable(format!("that it gives its place away can't be saved: {error}")))?;
        let laggards = self.serving().map(|serving| serving.shipper.laggards(name));
        let laggards = laggards.unwrap_or_default().into_iter();
        Ok(HandOverRecord {
            note,
            since_ns: self.shared.clock.boot_ns(),
            laggards: laggards
                .map(|(name, from)| LaggingStandby {
                    name: name.to_string(),
                    from,
                })
                .collect(),
        })
    }

    /// Makes this server one that stepped down: readers see everything before its end, and it sends writers to the successor.
    fn leave(&self, stepped: &HandOverRecord, url: Option<Arc<str>>) {
        let HandOverPoint { epoch, lsn } = stepped.to_point();
        *self.stepped.lock().expect("held for a store") = Some(stepped.clone());
        self.router.raise_view(lsn);
        self.router.set_primary_url(url);
        self.router.set_role(Role::Standby);
        let successor = &stepped.note.successor;
        self.report(format!(
            "this server stepped down for {successor}: epoch {epoch} ends at LSN {lsn}. Start it again with --standby-of the new primary"
        ));
    }

    /// Makes this server a primary no longer, because another server has the lease, or had it. Readers have no use for records that only this one
    /// has.
    pub(crate) fn depose(&self, holder: Option<&Holder>) {
        let _stepping = self.stepping.lock().expect("nothing panics while it steps down");
        if self.stepped().is_some() || self.router.role() != Role::Primary {
            return;
        }
        let (name, url) = match holder {
            Some(holder) => (&*holder.name, holder.url.as_deref()),
            None => ("another server", None),
        };
        // A log that takes nothing already ends at its last record.
        let paused = self.log.pause(&format!("{name} is the primary now"));
        let end = paused.unwrap_or_else(|_| self.log.filled());
        match self.record(name, url, end) {
            Ok(stepped) => *self.stepped.lock().expect("held for a store") = Some(stepped),
            // The log takes nothing all the same, until the operator starts this server again. It then asks the lease.
            Err(error) => self.report(error.to_string()),
        }
        let report = format!(
            "{name} has the lease and is the primary: this server was deposed. Start it again with --standby-of the new primary: what only this one has \
             is cut off and kept"
        );
        self.router.set_primary_url(url.map(Into::into));
        self.router.set_role(Role::Standby);
        self.router.set_phase(NodePhase::Failed { report: report.clone() });
        self.shared.gate.leave_open(&report.as_str().into());
        if let Some(serving) = self.serving() {
            serving.shipper.dismiss(true);
        }
        self.report(report);
    }

    /// Takes the place again, in a new epoch, because no other server took it. If the successor did take over, its answers are not here.
    pub(crate) fn take_place_again(
        &self,
        stepped: &HandOverRecord,
        options: PromoteOptions,
    ) -> Result<PromotionResult, ReplicationError> {
        let successor = &stepped.note.successor;
        let HandOverPoint { epoch, lsn } = stepped.to_point();
        if !options.is_forced {
            return Err(not_stopped(format!(
                "this server stepped down for {successor}, which may be the primary: start this one with --standby-of it. Where {successor} did \
                 not take over, or is stopped for good, promote with force (--force; without a lease --accept-loss, too)"
            )));
        }
        let _stepping = self.stepping.lock().expect("nothing panics while it steps down");
        if self.stepped().is_none_or(|now| now.note != stepped.note) {
            // Another thread was faster.
            return Err(ReplicationError::IsPrimary(self.log.epoch()));
        }
        if matches!(self.router.phase(), NodePhase::Failed { .. }) {
            return Err(unavailable(format!(
                "{successor} took the place of this server: start it again"
            )));
        }
        let lost = LostRecords {
            epoch,
            from: lsn,
            known_to: Some(lsn),
            cause: LossCause::SteppedDown,
        };
        let lost = match self.leasing.get() {
            Some(leasing) => {
                let by = ByHand {
                    given: None,
                    accepts_loss: options.accepts_loss,
                    is_checked_later: false,
                };
                leasing.take_by_hand(by, lost)?
            }
            // Only the successor knows whether it took over.
            None if !options.accepts_loss => return Err(ReplicationError::OutOfSync(lost)),
            None => Some(lost),
        };
        // The successor's epoch, if it took over, was the next one.
        let successors = self.node.own_epoch(0).behind(epoch);
        let at_least = self.granted_epoch().behind(successors).behind(self.promises.bound());
        let leasing = self.leasing.get();
        let raised = leasing.map_or(Ok(()), |leasing| leasing.raise_epoch(at_least));
        let bound = raised.and_then(|()| self.promises.begin_leading(at_least));
        let begun = bound.and_then(|()| self.begin_again(at_least));
        self.promises.end_leading();
        if let Some(leasing) = leasing {
            match &begun {
                Ok(_) => leasing.record_promotion(),
                Err(error) => leasing.abandon_takeover(&error.to_string()),
            }
        }
        Ok(PromotionResult {
            epoch: begun?,
            lsn: self.log.filled(),
            has_stepped_down: false,
            may_be_lost: lost,
        })
    }

    /// Saves the level before this server answers anything in this epoch.
    pub(crate) fn keep_level(&self, epoch: Epoch) -> Result<(), DiskError> {
        cutting::keep_level(&self.node, self.safety(), epoch.count())
    }

    /// Returns the epoch in which this server opens as the primary. No server had it before, even one that shipped records and never wrote them.
    pub(crate) fn opening_epoch(&self) -> Epoch {
        let opened = self.log.epoch().count();
        let unused = cutting::unused_count(&self.node);
        let heard = cutting::count_behind_heard(&self.node);
        let least = self.node.own_epoch(opened.max(unused).max(heard));
        let promised = self.promises.bound();
        match promised.count() {
            0 => least,
            _ => least.behind(promised),
        }
    }

    pub(crate) fn reached(&self) -> ReachedEpoch {
        cutting::reached(&self.node, self.log.written_epoch())
    }

    /// Begins an epoch of the primary, `at_least` this one. It is saved before this server ships anything, and before it asks for a lease.
    pub(crate) fn open_epoch(&self, at_least: Epoch) -> Result<(), LogError> {
        self.log.raise_epoch(at_least)?;
        Ok(self.keep_level(self.log.epoch())?)
    }

    /// Ends the sync status of earlier epochs, before this server ships anything. The caller knows that no other server is the primary.
    pub(crate) fn open_reign(&self) -> Result<(), LogError> {
        membership::open_reign(&self.node)?;
        // The limit that this server showed as a standby means nothing from now on. If the file stays, reads show less.
        let _ = shown_limit::forget(&*self.root);
        Ok(())
    }

    /// Records that a standby begins to lead, in the returned epoch: no standby is in sync with it. Nothing else has changed if that fails.
    pub(crate) fn begin_promotion(
        &self,
        siblings: &[LaggingStandby],
        set: Option<&[PeerMember]>,
        at_least: Epoch,
    ) -> Result<Epoch, ReplicationError> {
        let begun = self.node.change(|document| {
            membership::begin_epoch(document, siblings);
            if let Some(set) = set {
                membership::count_on(&mut document.members, set);
            }
            document.handed_over = None;
            let count = cutting::begin_leading(document, at_least.count());
            document.own_epoch(count)
        });
        begun.map_err(|error| unavailable(format!("the beginning of a promotion can't be saved here: {error}")))
    }

    /// Records that this server is a standby as before, because its promotion failed and nothing was acknowledged in its epoch. Otherwise a start
    /// without a primary would lead. A lease that it asked for keeps its claim until that is given up.
    pub(crate) fn abandon_promotion(&self) {
        let abandoned = self.node.change(|document| {
            document.follows = true;
            if self.leasing.get().is_none() {
                cutting::drop_claim(document);
            }
        });
        if let Err(error) = abandoned {
            self.report(format!("that the promotion failed can't be saved here: {error}"));
        }
    }

    /// Begins the epoch of a server that takes standbys from now on. If the server opens with a lease, this waits until no other server has the
    /// lease.
    pub(crate) fn begin_serving(&self, is_promoted: bool, has_lease: bool) -> Result<(), LogError> {
        let at_least = match (is_promoted, has_lease) {
            (true, _) => self.log.epoch(),
            (false, false) => self.opening_epoch(),
            (false, true) => return Ok(()),
        };
        self.open_epoch(at_least)?;
        self.open_reign()
    }

    /// Makes a server that stepped down the primary again, in an epoch of at least `at_least`.
    fn begin_again(&self, at_least: Epoch) -> Result<Epoch, ReplicationError> {
        let forgotten = self.node.change(|document| {
            document.handed_over = None;
            cutting::replace_primaries(document, at_least);
        });
        forgotten.map_err(|error| unavailable(format!("that it takes its place again can't be saved: {error}")))?;
        let resumed = self.log.resume(Some(at_least));
        let epoch = resumed.map_err(|error| unavailable(error.to_string()))?;
        if let Err(error) = self.keep_level(epoch) {
            // A log that has failed reports its own reason.
            let _ = self.log.pause("its safety level can't be kept");
            return Err(unavailable(format!("the safety level can't be kept here: {error}")));
        }
        *self.stepped.lock().expect("held for a store") = None;
        self.router.set_primary_url(None);
        self.router.set_role(Role::Primary);
        if let Some(serving) = self.serving() {
            serving.shipper.dismiss(false);
        }
        Ok(epoch)
    }

    /// Asks the primary that this standby follows to step down, and waits until all records are here.
    pub(crate) fn succeed(&self, linked: Option<&PrimaryConnection>) -> Result<HandOverPoint, ReplicationError> {
        let force = "stop it by other means, then promote with force (--force)";
        let Some(linked) = linked else {
            return Err(not_stopped(format!(
                "this server follows nobody, so no primary can be asked to step down: {force}"
            )));
        };
        let handed_over = linked.ask_step_down();
        let handed_over = handed_over
            .map_err(|reason| not_stopped(format!("the old primary did not step down ({reason}): {force}")))?;
        let clock = &self.shared.clock;
        let until_ns = clock.monotonic_ns() + HAND_OVER_MAX.as_nanos() as u64;
        loop {
            let received = self.log.received().map(|position| position.lsn).unwrap_or_default();
            if received >= handed_over.lsn {
                return match received == handed_over.lsn {
                    true => Ok(handed_over),
                    false => Err(not_stopped(format!(
                        "the old primary stepped down at LSN {}, and this standby is at LSN {received}: its log is another one; {force}",
                        handed_over.lsn
                    ))),
                };
            }
            if clock.monotonic_ns() >= until_ns {
                return Err(unavailable(format!(
                    "the old primary stepped down at LSN {}, and this standby is at LSN {received}: it lacks the last records",
                    handed_over.lsn
                )));
            }
            self.shared.threads.sleep(POLL_INTERVAL);
        }
    }
}
