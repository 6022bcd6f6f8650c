//! The standbys by name, and how far each one is.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use reprise_base::{
    Joiner, Lsn, Safety, Watermark,
    limits::{STANDBY_SILENT_NS, STANDBYS_MAX},
};
use reprise_log::ReplicationSlot;
use reprise_wire::{Progress, STANDING_MAX, SetPart, StandbyRefusal};

use crate::{
    connection::SILENCE_MAX,
    freshness::{FreshnessPoint, FreshnessSummary},
    join_check::JoinRefusal,
    member::{ComparedStatus, Member, NO_LOG, StandbyEntry, StandbyStage, StandbyStatus},
    primary_report::ReportedMember,
    safety::{
        ACK_WAIT_NS, Commits, ENTER_LAG_NS, RETURN_WAIT_NS, SafetyHook, SafetyMember, SafetyStatus, SyncState,
        needed_of, safety_status,
    },
    source::ShippedLog,
    views::ViewSamples,
};

// The statuses of all standbys fit into a frame.
const _: () = assert!(STANDBYS_MAX <= STANDING_MAX);

/// A caller that asked for more than the server's level.
struct Wait {
    level: Safety,
    end: Lsn,
    until_ns: u64,
    hook: SafetyHook,
}

/// The set of standbys, as the primary tells it to one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyncSet {
    pub number: u64,
    pub in_sync: bool,
    pub set: SetPart,
    /// The others.
    pub members: Vec<ReportedMember>,
}

pub(crate) struct StandbyTableState {
    pub standbys: BTreeMap<Arc<str>, StandbyEntry>,
    /// Number of the newest sync status: it grows with each change.
    pub sync_number: u64,
    /// Number of the first sync status that says that all standbys which leave now are out of sync.
    pub left: u64,
    /// The operator had a standby forgotten that counts. That is done once enough of the remaining standbys have everything before this. The highest
    /// LSN: not known yet.
    pub forgot_at: Lsn,
    waits: Vec<Wait>,
    /// How far this server was, by time.
    views: ViewSamples,
    /// The stand of the server's level that the gate has.
    safety_status: SafetyStatus,
}

impl StandbyTableState {
    pub fn members(&self) -> Vec<SafetyMember> {
        self.standbys.values().map(StandbyEntry::member).collect()
    }

    /// Returns the other standbys that are out of sync. Each has everything before its LSN.
    fn laggards(&self, name: &str) -> Vec<(Arc<str>, Lsn)> {
        let is_out =
            |(other, standby): &(&Arc<str>, &StandbyEntry)| &***other != name && !standby.is_reported_in_sync();
        let laggards = self.standbys.iter().filter(is_out);
        laggards
            .map(|(name, standby)| (Arc::clone(name), standby.lacks_from))
            .collect()
    }

    fn others(&self, name: &str) -> Vec<ReportedMember> {
        let others = self.standbys.iter().filter(|(other, _)| ***other != *name);
        others
            .map(|(name, standby)| ReportedMember {
                name: name.clone(),
                url: standby.url.clone().unwrap_or_default(),
                from: standby.lacks_from,
                is_in_sync: standby.is_reported_in_sync(),
                set: standby.part(),
            })
            .collect()
    }

    /// Records that standbys leave. Each connected standby saves that before commits continue without them.
    fn record_leaving(&mut self) {
        self.sync_number += 1;
        self.left = self.sync_number;
    }
}

pub(crate) struct StandbyTable {
    state: Mutex<StandbyTableState>,
    /// The server's level.
    level: Safety,
    commits: Arc<dyn Commits>,
    /// By a number of standbys, less one: that number of standbys persisted everything before it.
    acked: Vec<Arc<Watermark>>,
}

impl StandbyTable {
    pub fn new(level: Safety, commits: Arc<dyn Commits>) -> Self {
        Self {
            state: Mutex::new(StandbyTableState {
                standbys: BTreeMap::new(),
                // 0 is none.
                sync_number: 1,
                left: 0,
                forgot_at: Lsn(0),
                waits: Vec::new(),
                views: ViewSamples::default(),
                safety_status: safety_status(level, true, &[]),
            }),
            level,
            commits,
            acked: (0..STANDBYS_MAX).map(|_| Arc::default()).collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, StandbyTableState> {
        self.state.lock().expect("nothing panics under this lock")
    }

    /// Gives the gate the present safety status.
    fn set(&self, state: &mut StandbyTableState) -> Option<Arc<str>> {
        if !self.level.asks_standbys() {
            return None;
        }
        let now = state.status_of(self.level);
        self.commits.set(&now);
        let before = std::mem::replace(&mut state.safety_status, now);
        let is_alone = before.limit.is_some() && state.safety_status.limit.is_none();
        match (&before.refusal, &state.safety_status.refusal) {
            (None, Some(reason)) => Some(format!("a standby was lost while this waited: {reason}").into()),
            _ if is_alone => {
                Some("the last standby that was in sync was lost while this waited: this server goes on alone".into())
            }
            _ => None,
        }
    }

    /// Returns the stand of a call that asks for a level. A standby in sync has what was answered, unless the server's own level is quorum.
    fn status_of_call(&self, level: Safety, members: &[SafetyMember]) -> SafetyStatus {
        let mut asked = safety_status(level, false, members);
        if level == Safety::Quorum && self.level != Safety::Quorum {
            let in_sync = safety_status(Safety::TwoSafe, true, members).limit;
            asked.limit = asked.limit.min(in_sync.or(asked.limit));
        }
        asked
    }

    /// Notifies waiting callers of a change, outside of the lock.
    fn notify_callers(&self, mut state: MutexGuard<'_, StandbyTableState>) {
        let given_up = self.set(&mut state);
        let mut ended = Vec::new();
        if !state.waits.is_empty() {
            let members = state.members();
            for wait in std::mem::take(&mut state.waits) {
                let stand = self.status_of_call(wait.level, &members);
                match stand.refusal {
                    _ if stand.limit.is_none_or(|limit| limit >= wait.end) => ended.push((wait.hook, Ok(()))),
                    Some(reason) => ended.push((wait.hook, Err(reason))),
                    None => state.waits.push(wait),
                }
            }
        }
        drop(state);
        if let Some(reason) = given_up {
            self.commits.leave_open(&reason);
        }
        if self.level.asks_standbys() {
            self.commits.release();
        }
        for (hook, outcome) in ended {
            hook(outcome);
        }
    }

    /// Has the gate know the server's level from the start.
    pub fn begin_commits(&self) {
        self.notify_callers(self.lock());
    }

    /// Whether calls can have a level now. Err: why not.
    pub fn check_level(&self, level: Safety) -> Result<(), Arc<str>> {
        let now = self.status_of_call(level, &self.lock().members());
        now.refusal.map_or(Ok(()), Err)
    }

    /// Calls `hook` once the records before `end` have a level, or the wait for that ends.
    pub fn when_safe(&self, level: Safety, end: Lsn, now_ns: u64, hook: SafetyHook) {
        let mut state = self.lock();
        let until_ns = now_ns + ACK_WAIT_NS;
        state.waits.push(Wait {
            level,
            end,
            until_ns,
            hook,
        });
        self.notify_callers(state);
    }

    /// Returns the level that writes have now.
    pub fn reached(&self) -> Safety {
        self.lock().safety_status.reached
    }

    /// Everything before it has the server's level, once it is durable here.
    pub fn limit(&self) -> Option<Lsn> {
        self.lock().safety_status.limit
    }

    /// Ends waits that took too long.
    pub fn expire(&self, now_ns: u64) {
        let reason: Arc<str> = "its standbys did not say in time that they have it".into();
        self.commits.expire(now_ns, now_ns.saturating_sub(ACK_WAIT_NS), &reason);
        let mut state = self.lock();
        let (late, waits) = std::mem::take(&mut state.waits)
            .into_iter()
            .partition(|wait| wait.until_ns <= now_ns);
        state.waits = waits;
        drop(state);
        let late: Vec<Wait> = late;
        for wait in late {
            (wait.hook)(Err(reason.clone()));
        }
    }

    /// Lets standbys become in sync. True if one is to leave: `end_leaving` follows once that is recorded.
    pub fn tick(&self, now_ns: u64, log: &dyn ShippedLog) -> bool {
        let mut state = self.lock();
        let enters = state.views.at(now_ns.saturating_sub(ENTER_LAG_NS));
        let patience = state.views.at(now_ns.saturating_sub(ACK_WAIT_NS));
        let (mut is_leaving, mut is_entering, mut is_new) = (false, false, false);
        for standby in state.standbys.values_mut() {
            let is_away = standby.connection == 0 && standby.awaited_until_ns <= now_ns;
            standby.is_awaited = standby.heard_ns == 0 && now_ns < standby.awaited_until_ns;
            standby.is_silent = now_ns.saturating_sub(standby.heard_ns) > STANDBY_SILENT_NS;
            let is_behind = standby.connection != 0 && patience.is_some_and(|lsn| standby.persisted < lsn);
            let may_enter = standby.is_streaming() && !standby.has_difference();
            match standby.sync {
                SyncState::Out if may_enter && enters.is_some_and(|lsn| standby.persisted >= lsn) => {
                    // The end of the answered records is not known yet.
                    standby.sync = SyncState::Entering(Lsn(u64::MAX));
                    is_entering = true;
                }
                SyncState::Entering(_) if is_behind => standby.stay_out(),
                SyncState::In if is_away || is_behind => {
                    standby.leave();
                    is_new = true;
                }
                _ => {}
            }
            is_leaving |= standby.sync == SyncState::Leaving;
        }
        if is_new {
            state.record_leaving();
        }
        if is_entering || state.forgot_at == Lsn(u64::MAX) {
            self.set(&mut state);
            // From now on no caller learns of later records before these standbys have them.
            let answered = log.answered_max();
            state.forgot_at = state.forgot_at.min(answered);
            for standby in state.standbys.values_mut() {
                if standby.sync == SyncState::Entering(Lsn(u64::MAX)) {
                    standby.sync = SyncState::Entering(answered);
                    standby.enter_if_there(self.level);
                }
            }
        }
        state.advance_joining(self.level);
        self.notify_callers(state);
        is_leaving
    }

    /// Returns the time at which enough of the standbys that the level counts on still followed this primary, by the monotonic clock. None: that
    /// is not known.
    pub fn confirmed_ns(&self) -> Option<u64> {
        let state = self.lock();
        let counted = state.standbys.values().filter(|standby| standby.is_counted);
        let mut heard: Vec<u64> = counted.map(|standby| standby.followed_ns).collect();
        heard.sort_unstable_by(|a, b| b.cmp(a));
        let needed = needed_of(self.level, heard.len());
        heard.get(needed - 1).copied().filter(|heard_ns| *heard_ns != 0)
    }

    /// Returns the number of the newest sync status.
    pub fn sync_number(&self) -> u64 {
        self.lock().sync_number
    }

    /// Returns the sync status that the standby gets. None: this connection does not speak for it.
    pub fn status_for(&self, name: &str, connection: u64) -> Option<SyncSet> {
        let state = self.lock();
        let own = state.standbys.get(name).filter(|own| own.connection == connection)?;
        Some(SyncSet {
            number: state.sync_number,
            in_sync: own.is_reported_in_sync(),
            set: own.part(),
            members: state.others(name),
        })
    }

    /// Returns the other standbys that are out of sync.
    pub fn laggards(&self, name: &str) -> Vec<(Arc<str>, Lsn)> {
        self.lock().laggards(name)
    }

    /// Records that `kept` is certainly saved. From now on the primary tells each standby that is in sync there that it is. After a restart the
    /// primary still waits for such a standby, or records that it is out.
    pub fn record_saved(&self, kept: &[Member]) {
        let mut state = self.lock();
        state.record_counted(kept);
        let (mut is_new, next) = (false, state.sync_number + 1);
        for kept in kept.iter().filter(|kept| kept.is_in_sync) {
            let standby = state.standbys.get_mut(&kept.name);
            if let Some(standby) = standby.filter(|standby| standby.sync == SyncState::In && !standby.is_kept_in) {
                (standby.is_kept_in, standby.reported_in, is_new) = (true, next, true);
            }
        }
        state.sync_number += u64::from(is_new);
    }

    /// Ends the wait of commits for the standbys that leave, as `kept` says. Each connected standby must have saved that they leave.
    pub fn end_leaving(&self, kept: &[Member], now_ns: u64) {
        let mut state = self.lock();
        // Until then the standby takes itself for in sync, if it does not know.
        let is_awaited = |standby: &StandbyEntry| {
            standby.sync == SyncState::Leaving && !standby.gets_status() && standby.awaited_until_ns > now_ns
        };
        if state.standbys.values().any(is_awaited) || !state.is_leaving_confirmed(self.level) {
            return;
        }
        // A standby may have begun to leave since that was saved.
        let is_kept_in = |name: &str| kept.iter().any(|kept| &*kept.name == name && kept.is_in_sync);
        let mut forgotten = Vec::new();
        state.standbys.retain(|name, standby| {
            let has_left = standby.sync == SyncState::Leaving && !is_kept_in(name);
            if has_left {
                standby.sync = SyncState::Out;
            }
            let is_forgotten = has_left && standby.is_forgotten && standby.connection == 0;
            if is_forgotten {
                forgotten.push(standby.hold.take());
            }
            !is_forgotten
        });
        self.notify_callers(state);
        drop(forgotten); // the drop may delete segments, so it runs outside of the lock
    }

    /// Calls `change` with the standby, if this connection speaks for it.
    fn with<R>(&self, name: &str, connection: u64, change: impl FnOnce(&mut StandbyEntry) -> R) -> Option<R> {
        let mut state = self.lock();
        let standby = state.standbys.get_mut(name);
        Some(change(standby.filter(|standby| standby.connection == connection)?))
    }

    /// Records a standby of an earlier run, which is not here yet.
    pub fn expect(&self, expected: &Member, hold: Option<(Arc<ReplicationSlot>, Lsn)>, now_ns: u64) {
        let mut state = self.lock();
        if state.standbys.len() < STANDBYS_MAX {
            let error = "it has not come back since this server was started";
            state
                .standbys
                .entry(Arc::clone(&expected.name))
                .or_insert_with(|| StandbyEntry {
                    state: StandbyStage::Lost,
                    persisted: expected.persisted,
                    lacks_from: expected.persisted,
                    sync: if expected.is_in_sync {
                        SyncState::In
                    } else {
                        SyncState::Out
                    },
                    is_kept_in: expected.is_in_sync,
                    is_counted: expected.is_counted,
                    url: expected.url.clone(),
                    node: expected.node,
                    awaited_until_ns: now_ns + RETURN_WAIT_NS,
                    is_awaited: true,
                    hold,
                    error: Some(error.into()),
                    ..StandbyEntry::new(0)
                });
        }
    }

    /// Returns the standbys to expect after a restart, by name. Such a standby has a slot, counts, or has a URL and may be promoted. A standby that
    /// leaves is out of sync.
    pub fn expected(&self) -> Vec<Member> {
        let state = self.lock();
        let expected = state.standbys.iter().filter_map(|(name, standby)| {
            let held = standby.hold.as_ref().map(|(_, from)| *from);
            let is_counted = standby.is_counted || standby.is_confirmed;
            let kept = held.or(is_counted.then_some(standby.persisted));
            Some(Member {
                name: Arc::clone(name),
                from: kept.or(standby.url.is_some().then_some(NO_LOG))?,
                persisted: standby.counted_to(),
                is_in_sync: standby.sync == SyncState::In,
                is_counted,
                url: standby.url.clone(),
                node: standby.node,
            })
        });
        expected.collect()
    }

    /// Checks whether a standby may have its name. Err: another server has it, or the writer of its epochs.
    pub fn check_name(&self, joiner: &Joiner, now_ns: u64) -> Result<(), String> {
        self.lock().check_name(joiner, self.level, now_ns)
    }

    /// Has `connection` speak for the standby from now on. Another server that takes a name which is free by now begins out of sync.
    pub fn begin(&self, joiner: &Joiner, connection: u64, now_ns: u64) -> Result<(), JoinRefusal> {
        self.check_name(joiner, now_ns)
            .map_err(|reason| JoinRefusal::new(StandbyRefusal::Unavailable, reason))?;
        let name = &joiner.name;
        let mut state = self.lock();
        let standbys = &mut state.standbys;
        if !standbys.contains_key(name) && standbys.len() >= STANDBYS_MAX {
            let reason = format!("this primary knows {STANDBYS_MAX} standbys already, and takes no more");
            return Err(JoinRefusal::new(StandbyRefusal::Unavailable, reason));
        }
        let is_new = standbys.get(name).is_none_or(|known| known.url != joiner.url);
        let standby = standbys
            .entry(name.clone())
            .or_insert_with(|| StandbyEntry::new(connection));
        let node = joiner.process.map(|process| process.node);
        let is_other = standby.node.zip(node).is_some_and(|(known, node)| known != node);
        standby.node = node.or(standby.node);
        standby.connection = connection;
        standby.state = StandbyStage::Joining;
        (standby.saved_status, standby.is_forgotten) = (0, false);
        (standby.process, standby.url, standby.heard_ns) = (joiner.process, joiner.url.clone(), now_ns);
        let has_left = is_other && standby.begin_again();
        if has_left {
            state.record_leaving();
        }
        state.sync_number += u64::from(is_new);
        self.notify_callers(state);
        Ok(())
    }

    pub fn record_heard(&self, name: &str, connection: u64, now_ns: u64) {
        self.with(name, connection, |standby| standby.heard_ns = now_ns);
    }

    pub fn speaks(&self, name: &str, connection: u64) -> bool {
        self.with(name, connection, |_| ()).is_some()
    }

    pub fn set_state(&self, name: &str, connection: u64, state: StandbyStage) {
        self.with(name, connection, |standby| standby.state = state);
    }

    /// Records that the standby gets the log behind `position`.
    pub fn begin_log(&self, name: &str, connection: u64, position: Lsn) {
        let has_left = self.with(name, connection, |standby| {
            standby.state = StandbyStage::CatchingUp;
            standby.shipped = position;
            standby.progress = Progress::default();
            let has_lost = position < standby.persisted;
            if has_lost {
                (standby.persisted, standby.lacks_from) = (position, standby.lacks_from.min(position));
                if standby.sync != SyncState::Out {
                    standby.leave();
                }
            }
            standby.freshness.begin();
            standby.error = None;
            has_lost
        });
        let mut state = self.lock();
        if has_left == Some(true) {
            state.record_leaving();
        }
        self.notify_callers(state);
    }

    /// Records that the standby begins anew: the log and rows that it had are gone.
    pub fn begin_files(&self, name: &str, connection: u64) {
        let has_left = self.with(name, connection, StandbyEntry::begin_again);
        let mut state = self.lock();
        if has_left == Some(true) {
            state.record_leaving();
        }
        self.notify_callers(state);
    }

    /// Keeps the log for the standby from `from` on, instead of the log that was kept before.
    pub fn set_hold(&self, name: &str, connection: u64, hold: Arc<ReplicationSlot>, from: Lsn) {
        let before = self.with(name, connection, |standby| standby.hold.replace((hold, from)));
        drop(before); // the drop may delete segments, so it runs outside of the lock
    }

    pub fn record_shipped(&self, name: &str, connection: u64, lsn: Lsn) {
        self.with(name, connection, |standby| standby.shipped = lsn);
    }

    /// Returns the slot that may move, because its standby needs no earlier log.
    pub fn record_progress(
        &self,
        name: &str,
        connection: u64,
        progress: &Progress,
        now_ns: u64,
    ) -> Option<Arc<ReplicationSlot>> {
        let mut state = self.lock();
        let standby = state
            .standbys
            .get_mut(name)
            .filter(|standby| standby.connection == connection)?;
        (standby.progress, standby.heard_ns, standby.followed_ns) = (*progress, now_ns, now_ns);
        standby.freshness.record(now_ns, progress);
        let persisted = progress.persisted;
        let is_more = persisted > standby.persisted;
        standby.persisted = standby.persisted.max(persisted);
        standby.saved_status = standby.saved_status.max(progress.saved_status);
        standby.enter_if_there(self.level);
        let hold = standby.release_before(persisted);
        let mut all = [Lsn(0); STANDBYS_MAX];
        for (at, standby) in state.standbys.values().enumerate() {
            all[at] = standby.progress.persisted;
        }
        all.sort_unstable_by(|a, b| b.cmp(a));
        match is_more {
            true => self.notify_callers(state),
            false => drop(state),
        }
        for (mark, lsn) in self.acked.iter().zip(all) {
            mark.raise(lsn.0);
        }
        hold
    }

    /// Records that a standby has the log before `persisted`, and no rows yet. Its slot may move, and nothing else follows from that.
    pub fn record_joining(&self, name: &str, connection: u64, persisted: Lsn) -> Option<Arc<ReplicationSlot>> {
        self.with(name, connection, |standby| standby.release_before(persisted))?
    }

    /// Records a comparison. A standby whose tables differ leaves the sync set: commits must not wait for one that can't be promoted.
    pub fn record_comparison(&self, name: &str, connection: u64, compared: ComparedStatus) {
        let has_left = self.with(name, connection, |standby| standby.record_comparison(compared));
        let mut state = self.lock();
        if has_left == Some(true) {
            state.record_leaving();
        }
        self.notify_callers(state);
    }

    pub fn is_any_leaving(&self) -> bool {
        let state = self.lock();
        state
            .standbys
            .values()
            .any(|standby| standby.sync == SyncState::Leaving)
    }

    pub fn is_followed(&self) -> bool {
        self.lock().standbys.values().any(StandbyEntry::is_streaming)
    }

    /// Ends the connection. A standby that has not said that it leaves takes itself for in sync for a while.
    pub fn end(&self, name: &str, connection: u64, error: &str, has_left: bool) {
        self.with(name, connection, |standby| {
            standby.state = StandbyStage::Lost;
            standby.connection = 0;
            standby.awaited_until_ns = match has_left {
                true => 0,
                false => standby.heard_ns + SILENCE_MAX.as_nanos() as u64,
            };
            if matches!(standby.sync, SyncState::Entering(_)) {
                standby.stay_out();
            }
            standby.error = Some(error.into());
        });
        self.notify_callers(self.lock());
    }

    /// True if `forget` finds it.
    pub fn is_lost(&self, name: &str) -> bool {
        self.lock().standbys.get(name).is_some_and(StandbyEntry::is_lost)
    }

    /// Removes a standby from the expected ones. If commits wait for it, this happens once it is saved. False: it is not known, or connected.
    pub fn forget(&self, name: &str) -> bool {
        let mut state = self.lock();
        let Some(standby) = state.standbys.get_mut(name).filter(|standby| standby.is_lost()) else {
            return false;
        };
        if standby.is_confirmed {
            return false; // the standby counts in a moment
        }
        let is_counted = standby.is_counted && self.level == Safety::Quorum;
        let is_out = matches!(standby.sync, SyncState::Entering(_) | SyncState::Out);
        let gone = if is_out && !is_counted {
            state.sync_number += 1;
            state.standbys.remove(name)
        } else {
            // Commits wait for the standby, or count on it: the other standbys know first that it goes.
            standby.is_forgotten = true;
            if standby.sync != SyncState::Leaving {
                standby.leave();
                state.record_leaving();
            }
            if is_counted {
                state.forgot_at = Lsn(u64::MAX);
            }
            None
        };
        self.notify_callers(state);
        drop(gone); // the drop may delete segments, so it runs outside of the lock
        true
    }

    /// Records how far this server is, for the standbys' freshness. It does so more often while standbys advance.
    pub fn record_view(&self, now_ns: u64, log: &dyn ShippedLog) {
        self.lock().views.record(now_ns, log.durable());
    }

    pub fn sample(&self, now: (u64, i64), log: &dyn ShippedLog) {
        let mut state = self.lock();
        let StandbyTableState { standbys, views, .. } = &mut *state;
        for standby in standbys.values_mut() {
            standby
                .freshness
                .sample(now, views, |view| log.bytes_between(view, Lsn(u64::MAX)));
        }
    }

    /// Returns the names of standbys whose slot was released since the last call.
    pub fn take_released(&self) -> Vec<Arc<str>> {
        let mut gone = Vec::new();
        for (name, standby) in &mut self.lock().standbys {
            if let Some((hold, _)) = standby.hold.take_if(|(hold, _)| hold.is_released()) {
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
        let state = self.lock();
        state.standbys.get(name).map(|standby| standby.freshness.history())
    }

    pub fn statuses(&self, log: &dyn ShippedLog) -> Vec<StandbyStatus> {
        let durable = log.durable();
        let status = |(name, standby): (&Arc<str>, &StandbyEntry)| {
            let view = standby.progress.view;
            StandbyStatus {
                name: Arc::clone(name),
                state: standby.state,
                shipped: standby.shipped,
                persisted: standby.persisted,
                replayed: standby.progress.replayed,
                view,
                is_in_sync: standby.knows_in(),
                freshness: standby.freshness.score(),
                lag: standby.freshness.lag(),
                lag_bytes: if view < durable {
                    log.bytes_between(view, durable)
                } else {
                    0
                },
                lag_records: durable.0.saturating_sub(view.0),
                compared: standby.compared.clone(),
                held_from: standby.hold.as_ref().map(|(_, from)| *from),
                error: standby.error.clone(),
            }
        };
        let state = self.lock();
        let known = state.standbys.iter().filter(|(_, standby)| !standby.is_forgotten);
        known.map(status).collect()
    }
}

#[cfg(test)]
mod tests;
