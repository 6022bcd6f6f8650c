//! The primary's last word on the sync set, beside the log of a standby. Without it an operator could unknowingly promote a standby that lacks an
//! answered write.

use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};

use reprise_base::{Epoch, Lsn, Safety, check_node_name};
use reprise_env::DiskError;
use reprise_log::Position;
use reprise_router::{LaggingStandby, LossCause, LostRecords};
use reprise_ship::{BeatSeen, IN_SYNC_NS, SyncReport};
use serde::{Deserialize, Serialize};

use crate::{
    cutting, membership,
    node_file::{DirHealth, NodeDocument, NodeFile},
};

/// Shortest time between two saves of the primary's position, in nanoseconds.
const KEPT_EVERY_NS: u64 = 1_000_000_000;

/// Another standby of the same primary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OtherStandby {
    pub name: String,
    /// URL at which other servers reach it; empty: it is not known.
    pub url: String,
    /// It has everything before this LSN.
    pub lsn: u64,
    pub in_sync: bool,
    /// It is in the set that `quorum` counts on.
    pub counted: bool,
    /// It is in the set to which a change is under way.
    pub counted_next: bool,
}

/// The primary's last word on the sync set, as the document of a standby has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredStatus {
    /// Count of the epoch of the primary that sent it.
    pub epoch: u32,
    /// Writer of that epoch.
    pub writer: u16,
    /// Level that the primary's writes waited for.
    pub safety: String,
    /// Grows within an epoch.
    pub number: u64,
    pub in_sync: bool,
    /// A primary told this standby to be in sync since its log began. So it has everything that it ever confirmed under its name.
    pub has_been_in_sync: bool,
    /// This standby is in the set that `quorum` counts on.
    pub counted: bool,
    /// This standby is in the set to which a change is under way.
    pub counted_next: bool,
    /// The end of the records that were durable here by then.
    lsn: u64,
    /// The end of the records that were durable on the primary, by its last report.
    primary_lsn: u64,
    pub others: Vec<OtherStandby>,
}

impl StoredStatus {
    pub fn describe(&self) -> String {
        let part = if self.in_sync { "in sync" } else { "out of sync" };
        let (level, epoch) = (&self.safety, self.epoch);
        format!("it was {part} with the primary of epoch {epoch} at {level}, by that primary's last word")
    }

    /// Returns the epoch of the primary that sent it.
    pub fn epoch(&self) -> Epoch {
        Epoch::new(self.epoch, self.writer)
    }

    /// Checks the names in it, and that of the level.
    pub fn check(&self) -> Result<(), String> {
        self.others.iter().try_for_each(|other| check_node_name(&other.name))?;
        match Safety::from_name(&self.safety) {
            Some(_) => Ok(()),
            None => Err(format!("{:?} is no safety level", self.safety)),
        }
    }
}

struct SyncStoreState {
    /// None: no primary sent a status.
    kept: Option<StoredStatus>,
    /// The newest status is on disk.
    is_kept: bool,
    /// Time at which this process had sent the newest report that a primary of this epoch has heard.
    heard: Option<(Epoch, u64)>,
    /// The servers that were out of sync with this server when it was a primary last.
    own: Vec<LaggingStandby>,
    kept_ns: u64,
}

impl SyncStoreState {
    /// Returns a reason if its primary may have continued without this standby, which it had told to be in sync.
    fn unheard(&self, now_ns: u64) -> Option<LossCause> {
        if !self.is_kept {
            return Some(LossCause::NotKept);
        }
        let epoch = self.kept.as_ref().map(StoredStatus::epoch);
        let Some((_, heard_ns)) = self.heard.filter(|(heard, _)| Some(*heard) == epoch) else {
            return Some(LossCause::Unheard(None));
        };
        let silent_ns = now_ns.saturating_sub(heard_ns);
        (silent_ns > IN_SYNC_NS).then_some(LossCause::Unheard(Some(silent_ns / 1_000)))
    }
}

/// The primary's last word, on the disk and in memory.
pub(crate) struct SyncStatusStore {
    node: Arc<NodeFile>,
    state: Mutex<SyncStoreState>,
    /// A standby may be saved as in sync with this server itself.
    may_have_led: AtomicBool,
}

/// Forgets the status of an earlier log, before the first files of a standby get their place in this directory. No status of the earlier log holds
/// for the new one. A standby that was in sync with this server may lack records of the new log.
pub fn forget_earlier_log(node: &NodeFile) -> Result<(), DiskError> {
    node.change(|document| {
        forget_log(document);
        (document.health, document.follows) = (DirHealth::Good, true);
    })
}

pub(crate) fn forget_log(document: &mut NodeDocument) {
    document.status = None;
    document.forget_safety();
    cutting::end_level(document);
    membership::end_members(&mut document.members);
}

impl SyncStatusStore {
    /// Opens the status that was saved for the log that is here now. A log that lost records since, or has records of a later epoch, is another one.
    pub fn open(node: Arc<NodeFile>, log: Option<Position>) -> Self {
        let mut kept = node.read(|document| document.status.clone());
        if let (Some(kept), Some(at)) = (&mut kept, log) {
            let has_all = at.lsn.0 >= kept.lsn;
            kept.in_sync &= has_all && at.epoch.allows(kept.epoch());
            kept.has_been_in_sync &= has_all;
        }
        let state = SyncStoreState {
            kept,
            is_kept: true,
            heard: None,
            own: membership::laggards(&node),
            kept_ns: 0,
        };
        let may_have_led = AtomicBool::new(membership::may_have_led(&node));
        Self {
            node,
            state: Mutex::new(state),
            may_have_led,
        }
    }

    fn lock(&self) -> MutexGuard<'_, SyncStoreState> {
        self.state.lock().expect("nothing panics under this lock")
    }

    fn save(&self, kept: &StoredStatus) -> Result<(), DiskError> {
        self.node.change(|document| {
            document.status = Some(kept.clone());
            if let Some(level) = Safety::from_name(&kept.safety) {
                document.record_safety(level);
            }
        })
    }

    /// Saves a status that the primary sent. Err: it can't be saved, and the status that was saved before holds.
    pub fn keep(&self, standing: &SyncReport, persisted: Lsn) -> Result<(), DiskError> {
        let mut state = self.lock();
        let has_been_in_sync = state.kept.as_ref().is_some_and(|kept| kept.has_been_in_sync);
        let kept = StoredStatus {
            epoch: standing.epoch.count(),
            writer: standing.epoch.writer(),
            safety: standing.safety.name().to_owned(),
            number: standing.number,
            in_sync: standing.in_sync,
            has_been_in_sync: has_been_in_sync || standing.in_sync,
            counted: standing.set.is_in,
            counted_next: standing.set.is_in_next,
            lsn: persisted.0,
            primary_lsn: state.kept.as_ref().map_or(0, |kept| kept.primary_lsn),
            others: standing
                .members
                .iter()
                .map(|member| OtherStandby {
                    name: member.name.to_string(),
                    url: member.url.to_string(),
                    lsn: member.from.0,
                    in_sync: member.is_in_sync,
                    counted: member.set.is_in,
                    counted_next: member.set.is_in_next,
                })
                .collect(),
        };
        // From now on the new status counts if it is the worse one, because the write may or may not reach the disk.
        if let Some(before) = &mut state.kept {
            before.in_sync &= kept.in_sync;
        }
        state.is_kept = false;
        self.save(&kept)?;
        (state.kept, state.is_kept) = (Some(kept), true);
        Ok(())
    }

    /// Records a heartbeat: the primary has heard this standby, and reports its position. While this standby is out of sync, it saves that now and then.
    pub fn record_heartbeat(&self, beat: &BeatSeen) {
        let mut state = self.lock();
        if let Some(echo_ns) = beat.echo_ns {
            state.heard = Some((beat.epoch, echo_ns));
        }
        let is_due = beat.came_ns.saturating_sub(state.kept_ns) >= KEPT_EVERY_NS;
        let Some(kept) = state.kept.as_mut().filter(|kept| kept.primary_lsn < beat.durable.0) else {
            return;
        };
        kept.primary_lsn = beat.durable.0;
        if !kept.in_sync && is_due {
            let kept = kept.clone();
            state.kept_ns = beat.came_ns;
            // Without it, less is known of the records that may be lost.
            let _ = self.save(&kept);
        }
    }

    /// Returns the primary's newest word. None: it sent none, or may have continued without this standby by now.
    pub fn in_sync(&self, now_ns: u64) -> Option<bool> {
        let state = self.lock();
        match state.kept.as_ref()?.in_sync {
            true => state.unheard(now_ns).is_none().then_some(true),
            false => Some(false),
        }
    }

    /// Returns the other standbys that are out of sync by the primary's word. If no primary sent one, returns the servers that were out of sync with
    /// this server itself.
    pub fn laggards(&self) -> Vec<LaggingStandby> {
        let state = self.lock();
        let Some(kept) = &state.kept else {
            return state.own.clone();
        };
        let out = kept.others.iter().filter(|other| !other.in_sync);
        out.map(|other| LaggingStandby {
            name: other.name.clone(),
            from: Lsn(other.lsn),
        })
        .collect()
    }

    /// Returns the other standbys of the primary that this standby follows, and the LSN from which on each may need the log. The primary last
    /// reported the position of a standby in sync when it came in sync. The log that this server still has, from `oldest` on, is enough for it.
    pub fn siblings(&self, oldest: Lsn) -> Vec<LaggingStandby> {
        let mut siblings = self.laggards();
        let state = self.lock();
        let others = state.kept.iter().flat_map(|kept| &kept.others);
        siblings.extend(others.filter(|other| other.in_sync).map(|other| LaggingStandby {
            name: other.name.clone(),
            from: Lsn(other.lsn).max(oldest),
        }));
        siblings
    }

    /// Returns the primary's last word.
    pub fn status(&self) -> Option<StoredStatus> {
        self.lock().kept.clone()
    }

    /// Returns the epoch of the last primary that sent a status; count 0: none did.
    pub fn epoch(&self) -> Epoch {
        let state = self.lock();
        state.kept.as_ref().map(StoredStatus::epoch).unwrap_or_default()
    }

    /// Returns the level that the primary's writes waited for, by its last word.
    pub fn level(&self) -> Option<Safety> {
        Safety::from_name(&self.lock().kept.as_ref()?.safety)
    }

    /// Returns why the primary may have continued without this standby, which it had told to be in sync. None: it has not.
    pub fn unheard(&self, now_ns: u64) -> Option<LossCause> {
        self.lock().unheard(now_ns)
    }

    /// Records that the primary turned this standby away: it may answer records that do not come here. Err: that can't be saved.
    pub fn lose(&self) -> Result<(), DiskError> {
        let mut state = self.lock();
        let Some(kept) = state.kept.as_mut().filter(|kept| kept.in_sync) else {
            return Ok(());
        };
        kept.in_sync = false;
        let kept = kept.clone();
        self.save(&kept)
    }

    /// Returns the records that may be lost if everything before `end` is here.
    pub fn behind(&self, end: Lsn, cause: LossCause) -> LostRecords {
        let state = self.lock();
        let known = state.kept.as_ref();
        LostRecords {
            epoch: known.map(StoredStatus::epoch).unwrap_or_default(),
            from: end,
            known_to: known.map(|kept| end.max(Lsn(kept.primary_lsn))),
            cause,
        }
    }

    /// Ends the sync status of this server as a primary, before it takes a record of another primary. A standby that was in sync with this server may
    /// lack the record. That matters also if this server later starts as the primary again, without a promotion. Err: that can't be saved, and the
    /// server must not take the record.
    pub fn end_reign(&self) -> Result<(), DiskError> {
        if self.may_have_led.load(Ordering::Relaxed) {
            membership::end_reign(&self.node)?;
            self.may_have_led.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Forgets the primary's word, because this server is the primary now.
    pub fn forget(&self) -> Result<(), DiskError> {
        let mut state = self.lock();
        (state.kept, state.own) = (None, Vec::new());
        drop(state);
        self.node.change(|document| document.status = None)
    }
}

#[cfg(test)]
mod tests;
