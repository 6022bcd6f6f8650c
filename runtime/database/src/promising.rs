//! Promises. A standby that is to lead asks the other standbys to follow no earlier primary any more, and to report how far they are. Without the
//! promise, the old primary could still answer with their help.

use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};

use reprise_base::{Epoch, Lsn, Role, Safety, limits::STANDBYS_MAX};
use reprise_env::DiskError;
use reprise_failover::Doubt;
use reprise_router::{
    LossCause, LostRecords, PeerMember, PeerStatus, PromiseAnswer, PromiseQuestion, ReplicationError,
};
use serde::{Deserialize, Serialize};

use crate::{
    cutting,
    doubt::{PromiseAnswers, newest},
    node_file::NodeFile,
    standby_service::NodeReplication,
};

/// A promise of an epoch that is further ahead than this is refused: no later one could be drawn after it.
const EPOCHS_AHEAD_MAX: u32 = 1 << 20;
/// Epochs that a promotion draws at most, where others promised the one that it asks for.
const DRAWS_MAX: u32 = 3;
/// Promises that a server keeps at most. It gives no further one until it follows a primary of a later epoch.
const PROMISES_MAX: usize = 64;

/// The answer of a server that is asked for a promise. Err: it can't be reached, or why it does not promise.
pub type PeerAnswer = Result<PromiseAnswer, Arc<str>>;
/// Asks the servers at these URLs, all at once, and returns their answers in the same order. May block, for about a second.
pub type AskPeers = Arc<dyn Fn(&[String], &PromiseQuestion) -> Vec<PeerAnswer> + Send + Sync>;

/// A promise, as the document of the server has it that gave it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredPromise {
    /// The server follows no primary before the epoch of this count.
    epoch: u32,
    /// In this epoch it follows its writer alone.
    writer: u16,
    /// Name of that server.
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
}

impl StoredPromise {
    fn epoch(&self) -> Epoch {
        Epoch::new(self.epoch, self.writer)
    }

    /// Returns the count of the first epoch that this server may lead in itself.
    pub fn next_count(&self) -> u32 {
        self.epoch.saturating_add(1)
    }

    pub fn describe(&self) -> String {
        format!("it promised epoch {} to {}", self.epoch, self.name)
    }
}

/// The promises that a server gave and that may hold, the lowest epoch first. The last one restricts. The others tell which servers may have led
/// since.
pub(crate) struct Promises {
    node: Arc<NodeFile>,
    /// A promise restricts from the moment when it is asked for, also if it can't be saved.
    given: Mutex<Vec<StoredPromise>>,
    /// This server begins to lead, and promises nothing. Changed under the lock of `given`.
    leads: AtomicBool,
}

impl Promises {
    pub fn open(node: Arc<NodeFile>) -> Self {
        let given = Mutex::new(node.read(|document| document.promises.clone()));
        Self {
            node,
            given,
            leads: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<StoredPromise>> {
        self.given.lock().expect("nothing panics under this lock")
    }

    fn newest(&self) -> Option<StoredPromise> {
        self.lock().last().cloned()
    }

    /// Returns the epoch before which this server follows no primary.
    pub fn bound(&self) -> Epoch {
        self.newest().map(|promise| promise.epoch()).unwrap_or_default()
    }

    /// Has this server give no promise until `end_leading`, because it leads in this epoch. Err: it has promised the epoch, or a later one.
    pub fn begin_leading(&self, epoch: Epoch) -> Result<(), ReplicationError> {
        let given = self.lock();
        if let Some(last) = given.last().filter(|last| !epoch.is_after(last.epoch())) {
            let reason = format!("{} meanwhile: promote that server, or try again", last.describe());
            return Err(ReplicationError::Unavailable(reason.into()));
        }
        self.leads.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The server leads, or its promotion failed. A primary promises nothing either.
    pub fn end_leading(&self) {
        let _given = self.lock();
        self.leads.store(false, Ordering::Relaxed);
    }

    fn given_promises(&self) -> Vec<(Epoch, String)> {
        let given = self.lock();
        given
            .iter()
            .map(|promise| (promise.epoch(), promise.name.clone()))
            .collect()
    }

    /// Checks whether this server may follow the primary of an epoch.
    pub fn check(&self, epoch: Epoch) -> Result<(), String> {
        let Some(promise) = self.newest() else { return Ok(()) };
        match promise.epoch().allows(epoch) {
            true => Ok(()),
            false => Err(format!(
                "that primary is of epoch {epoch}, and this standby promised epoch {} to {}: it follows no other primary before a later epoch. If that primary is to stay, start it again",
                promise.epoch, promise.name
            )),
        }
    }

    /// Checks whether a place that a primary gave away in this epoch still counts. It does not once this server promised a later epoch to another
    /// one: that server may lead, and have answered writes.
    pub fn check_place(&self, given: Epoch) -> Result<(), ReplicationError> {
        match self.newest().filter(|promise| promise.epoch().is_after(given)) {
            None => Ok(()),
            Some(StoredPromise { epoch, name, .. }) => {
                let reason = format!(
                    "the old primary stepped down in epoch {given}. Since then this standby has promised epoch {epoch} to {name}, which may lead. \
                     Promote with force (--force)"
                );
                Err(ReplicationError::PrimaryNotStopped(reason.into()))
            }
        }
    }

    /// Gives a promise, unless this server promised that epoch or a later one to another server. `followed` is the epoch of the primary whose history
    /// the log has. A server with a promise of an earlier epoch is no rival any more.
    fn give(&self, promise: StoredPromise, followed: Epoch) -> Result<(), ReplicationError> {
        let refuse = |reason: String| Err(ReplicationError::Unavailable(reason.into()));
        let mut given = self.lock();
        if self.leads.load(Ordering::Relaxed) {
            return refuse("this server is about to lead".to_owned());
        }
        if let Some(last) = given.last() {
            let is_same = (last.epoch(), &last.name) == (promise.epoch(), &promise.name);
            if last.epoch >= promise.epoch && !is_same {
                return Ok(());
            }
        }
        given.retain(|known| known.epoch > followed.count() && known.epoch != promise.epoch);
        if given.len() >= PROMISES_MAX {
            return refuse(format!(
                "this server gave {PROMISES_MAX} promises, and follows no primary of a later epoch yet"
            ));
        }
        given.push(promise);
        match self.save(&given) {
            Ok(()) => Ok(()),
            Err(error) => refuse(format!("a promise can't be saved: {error}")),
        }
    }

    /// Takes a promise back, because its server does not lead in the epoch.
    fn withdraw(&self, epoch: Epoch, name: &str) -> Result<(), ReplicationError> {
        let mut given = self.lock();
        let mut left = given.clone();
        left.retain(|known| (known.epoch(), &*known.name) != (epoch, name));
        if left != *given {
            let saved = self.save(&left);
            saved.map_err(|error| ReplicationError::Unavailable(error.to_string().into()))?;
            *given = left;
        }
        Ok(())
    }

    fn save(&self, given: &[StoredPromise]) -> Result<(), DiskError> {
        self.node.change(|document| document.promises = given.to_vec())
    }
}

/// A server to which this one promised an epoch, and which may lead in it by now.
pub struct PromisedPrimary {
    pub url: String,
    pub epoch: Epoch,
    /// This server has records or a sync status of that epoch. It can't follow the primary of an earlier one any more.
    pub is_followed: bool,
}

/// The answers to a promotion, and the servers that gave a promise.
#[derive(Default)]
pub(crate) struct PromiseRound {
    /// Answers of servers that promised, or that know of a later epoch.
    pub answers: Vec<PromiseAnswer>,
    /// The latest epoch that a server had promised to another one; count 0: none.
    taken: Epoch,
    /// URLs of the servers that were asked and may have promised.
    urls: Vec<String>,
    /// The epoch that they were asked for.
    pub epoch: Epoch,
    /// The loss that the answers do not exclude.
    pub lost: Option<LostRecords>,
}

impl NodeReplication {
    /// Returns how far this server is, as its answer.
    fn answer(&self) -> PromiseAnswer {
        let (name, status) = (self.name.get().cloned().unwrap_or_default(), self.synced.status());
        let (epoch, end) = match self.log.received() {
            Some(received) => (received.epoch, received.lsn),
            None => (self.log.written_epoch(), self.log.filled()),
        };
        let has_been_in_sync = status.as_ref().is_some_and(|status| status.has_been_in_sync);
        let peer_status = status.map(|status| {
            let others = status.others.iter().map(|other| PeerMember {
                name: other.name.clone(),
                url: other.url.clone(),
                from: Lsn(other.lsn),
                is_in_sync: other.in_sync,
                is_counted: other.counted,
                is_counted_next: other.counted_next,
            });
            let own = PeerMember {
                name: name.clone(),
                url: String::new(),
                from: Lsn(0),
                is_in_sync: status.in_sync,
                is_counted: status.counted,
                is_counted_next: status.counted_next,
            };
            PeerStatus {
                epoch: status.epoch(),
                number: status.number,
                members: others.chain([own]).collect(),
            }
        });
        PromiseAnswer {
            name,
            epoch: epoch.later(peer_status.as_ref().map(|status| status.epoch).unwrap_or_default()),
            end,
            has_been_in_sync,
            status: peer_status,
            promises: self.promises.given_promises(),
        }
    }

    /// Answers a server that is to lead. A server that knows of a later epoch says so, and promises nothing. A withdrawal takes a promise back, or
    /// asks whether this server leads in the epoch. A server that led in it, or followed a primary of a later one, does not agree. Another server may
    /// lead in an epoch of the same number.
    pub(crate) fn give_promise(&self, asked: &PromiseQuestion) -> Result<PromiseAnswer, ReplicationError> {
        if self.router.role() != Role::Standby {
            return Err(ReplicationError::IsPrimary(self.log.epoch()));
        }
        if self.claimed.load(Ordering::Acquire) == asked.epoch.count() {
            let reason = format!("this server is about to lead in epoch {}", asked.epoch);
            return Err(ReplicationError::Unavailable(reason.into()));
        }
        let may_have_led = cutting::may_have_led(&self.node, asked.epoch);
        if asked.is_withdrawn && (may_have_led || self.answer().epoch.is_after(asked.epoch)) {
            let reason = format!(
                "this server led in epoch {}, or followed a primary of a later one",
                asked.epoch
            );
            return Err(ReplicationError::Unavailable(reason.into()));
        }
        if asked.is_withdrawn {
            self.promises.withdraw(asked.epoch, &asked.name)?;
            return Ok(self.answer());
        }
        let known = self.answer().epoch;
        if asked.epoch.count() > known.count().saturating_add(EPOCHS_AHEAD_MAX) {
            let reason = format!(
                "epoch {} is far ahead of the last one that is known here, {known}",
                asked.epoch
            );
            return Err(ReplicationError::Unavailable(reason.into()));
        }
        if asked.epoch.is_after(known) {
            let promise = StoredPromise {
                epoch: asked.epoch.count(),
                writer: asked.epoch.writer(),
                name: asked.name.clone(),
                url: asked.url.as_deref().map(str::to_owned),
            };
            self.promises.give(promise, known)?;
            if self.router.role() != Role::Standby {
                // It was promoted meanwhile.
                self.promises.withdraw(asked.epoch, &asked.name)?;
                return Err(ReplicationError::IsPrimary(self.log.epoch()));
            }
        }
        // From now on this server acknowledges nothing more to an earlier primary.
        Ok(self.answer())
    }

    /// Returns the server that got the last promise, unless this one has followed a primary of a later epoch since.
    pub(crate) fn promised_primary(&self) -> Option<PromisedPrimary> {
        let (promise, followed) = (self.promises.newest()?, self.answer().epoch);
        let epoch = promise.epoch();
        (!followed.is_after(epoch)).then_some(PromisedPrimary {
            url: promise.url?,
            epoch,
            is_followed: epoch == followed,
        })
    }

    fn request(&self, epoch: Epoch, is_withdrawn: bool) -> PromiseQuestion {
        PromiseQuestion {
            epoch,
            name: self.name.get().cloned().unwrap_or_default(),
            url: self.own_url(),
            is_withdrawn,
        }
    }

    /// Asks all standbys that this one and the others know, as far as it can reach them. An answer may name further ones, which it asks next.
    fn ask_others(&self, epoch: Epoch) -> PromiseRound {
        let mut asked = PromiseRound::default();
        let Some(ask) = self.peers.get() else { return asked };
        let own = self.answer();
        loop {
            let status = newest(&own, &asked.answers).or(own.status.as_ref());
            let members = status.into_iter().flat_map(|status| &status.members);
            let is_new = |member: &&PeerMember| {
                !member.url.is_empty() && member.name != own.name && !asked.urls.contains(&member.url)
            };
            let left = STANDBYS_MAX.saturating_sub(asked.urls.len());
            let new = members.filter(is_new).take(left);
            let urls: Vec<_> = new.map(|member| member.url.clone()).collect();
            if urls.is_empty() {
                return asked;
            }
            let answers = ask(&urls, &self.request(epoch, false));
            asked.urls.extend(urls);
            for answer in answers.into_iter().flatten() {
                let is_promised = |(promised, name): &(Epoch, String)| *promised == epoch && *name == own.name;
                match !epoch.is_after(answer.epoch) || answer.promises.iter().any(is_promised) {
                    true => asked.answers.push(answer),
                    false => {
                        let promised = answer.promises.iter().map(|(promised, _)| *promised);
                        let last = epoch.count().saturating_add(EPOCHS_AHEAD_MAX);
                        let near = promised.filter(|promised| promised.count() < last);
                        asked.taken = near.fold(asked.taken, Epoch::later);
                    }
                }
            }
        }
    }

    /// Asks the other standbys for a promise of an epoch, `at_least` or a later one. By their answers it decides which acknowledged writes may be
    /// lost. Each epoch is saved before it is asked for, and asked for once. So a withdrawal that comes late takes no later promise back.
    pub(crate) fn collect_promises(&self, at_least: Epoch) -> Result<PromiseRound, ReplicationError> {
        let (mut epoch, mut tries_left) = (at_least, DRAWS_MAX);
        loop {
            let kept = self
                .node
                .change(|document| document.asked = document.asked.max(epoch.count()));
            let unavailable = |error| format!("that this server asks for epoch {epoch} can't be saved here: {error}");
            kept.map_err(|error| ReplicationError::Unavailable(unavailable(error).into()))?;
            self.claimed.store(epoch.count(), Ordering::Release);
            let mut asked = self.ask_others(epoch);
            asked.epoch = epoch;
            tries_left -= 1;
            if epoch.is_after(asked.taken) || tries_left == 0 {
                asked.lost = self.find_losses(&asked.answers);
                return Ok(asked);
            }
            self.withdraw(&asked);
            epoch = epoch.behind(asked.taken);
        }
    }

    fn find_losses(&self, others: &[PromiseAnswer]) -> Option<LostRecords> {
        let own = self.answer();
        let level = self.replicated_level();
        let unheard = self.synced.unheard(self.shared.clock.boot_ns());
        let recorded = self.leasing.get().and_then(|leasing| leasing.primary_before());
        let answers = PromiseAnswers {
            level,
            is_heard: unheard.is_none(),
            written: self
                .log
                .received()
                .map_or(self.log.written_epoch(), |received| received.epoch),
            own: &own,
            others,
            recorded: recorded.as_ref().map(|(epoch, name)| (*epoch, &**name)),
        };
        let (doubt, names) = answers.doubt()?;
        let cause = match doubt {
            Doubt::AnotherHasMore => LossCause::AnotherHasMore(names),
            Doubt::NeverTold => LossCause::NeverTold,
            Doubt::OutOfSync if level.asks_standbys() => LossCause::OutOfSync,
            Doubt::OutOfSync => LossCause::PrimaryAlone(level),
            Doubt::TooFewAnswers => LossCause::TooFewAnswers(names),
            Doubt::Rival => LossCause::Rival(names),
            Doubt::Unheard => unheard.unwrap_or(LossCause::Unheard(None)),
        };
        let mut lost = self.synced.behind(own.end, cause);
        if doubt == Doubt::AnotherHasMore {
            let ends = others.iter().map(|answer| answer.end);
            lost.known_to = ends.chain(lost.known_to).max();
        }
        Some(lost)
    }

    /// Returns the level that the primary's writes waited for, by its last word.
    fn replicated_level(&self) -> Safety {
        self.synced.level().unwrap_or(self.safety())
    }

    /// Whether promises decide if this server may lead, also with a lease: at `quorum` a standby in sync may lack what others have.
    pub(crate) fn is_decided_by_promises(&self) -> bool {
        self.replicated_level() == Safety::Quorum
    }

    /// Returns the standbys that count once this server leads. They counted by the newest word of a primary. None: the level counts on no standbys.
    pub(crate) fn first_set(&self, asked: &PromiseRound) -> Option<Vec<PeerMember>> {
        let own = self.answer();
        let status = newest(&own, &asked.answers).filter(|_| self.replicated_level().counts_standbys())?;
        let is_in = |member: &&PeerMember| member.is_counted_next && member.name != own.name;
        Some(status.members.iter().filter(is_in).cloned().collect())
    }

    /// Takes a promise back whose server does not lead after all, and could not say so. It asks that server.
    pub(crate) fn end_void_promise(&self) {
        let (Some(promise), Some(ask)) = (self.promises.newest(), self.peers.get()) else {
            return;
        };
        let question = self.request(promise.epoch(), true);
        let urls: Vec<_> = promise.url.iter().cloned().collect();
        if ask(&urls, &question).iter().any(Result::is_ok) {
            // A withdrawal that can't be saved is tried again.
            let _ = self.promises.withdraw(promise.epoch(), &promise.name);
        }
    }

    /// Takes back the promises that this server asked for, because it does not lead in the epoch. A server that does not hear of it follows the next
    /// primary all the same.
    pub(crate) fn withdraw(&self, asked: &PromiseRound) {
        self.claimed.store(0, Ordering::Release);
        if let Some(ask) = self.peers.get().filter(|_| !asked.urls.is_empty()) {
            ask(&asked.urls, &self.request(asked.epoch, true));
        }
    }
}

#[cfg(test)]
mod tests {
    use reprise_env::SimDisk;

    use super::*;

    fn writer(name: &str) -> u16 {
        name.as_bytes()[0].into()
    }

    fn epoch(count: u32, name: &str) -> Epoch {
        Epoch::new(count, writer(name))
    }

    #[test]
    fn promise_holds_after_a_restart_and_is_given_once() {
        let disk = SimDisk::new();
        let open = || Promises::open(NodeFile::open(Arc::new(disk.clone())).expect("read"));
        let promise = |epoch, name: &str| StoredPromise {
            epoch,
            writer: writer(name),
            name: name.to_owned(),
            url: Some(format!("http://{name}:1")),
        };
        let promises = open();
        let give = |promises: &Promises, epoch, name| promises.give(promise(epoch, name), Epoch::new(1, 0));
        promises.check(epoch(1, "a")).expect("nothing is promised");
        give(&promises, 3, "b").expect("saved");
        give(&promises, 3, "b").expect("the same again");
        give(&promises, 3, "c").expect("it is b's, and stays so");
        give(&promises, 2, "c").expect("it is earlier");
        for promises in [promises, open()] {
            assert_eq!(promises.bound(), epoch(3, "b"));
            promises.check(epoch(2, "a")).expect_err("it is earlier");
            promises.check(epoch(3, "a")).expect_err("it is b's");
            promises.check(epoch(3, "b")).expect("b");
            promises.check(epoch(4, "a")).expect("it is later");
        }
        let promises = open();
        // Another server took the name, and knows of the same epochs.
        let namesake = StoredPromise {
            writer: !writer("b"),
            ..promise(3, "b")
        };
        promises
            .give(namesake, Epoch::new(1, 0))
            .expect("it is b's, and stays so");
        assert_eq!(promises.bound(), epoch(3, "b"));
        give(&promises, 5, "c").expect("it is later");
        promises.withdraw(epoch(5, "b"), "b").expect("it has none");
        assert_eq!(
            promises.given_promises(),
            [(epoch(3, "b"), "b".to_owned()), (epoch(5, "c"), "c".to_owned())]
        );
        // After a restart, too, the promise before it holds again.
        open().withdraw(epoch(5, "c"), "c").expect("saved");
        let promises = open();
        assert_eq!(promises.bound(), epoch(3, "b"));
        promises.withdraw(epoch(3, "b"), "b").expect("saved");
        assert_eq!(open().bound(), Epoch::default());
    }

    #[test]
    fn a_server_that_begins_to_lead_gives_no_promise_and_one_that_gave_it_does_not_lead() {
        let promises = Promises::open(NodeFile::open(Arc::new(SimDisk::new())).expect("read"));
        let give = |epoch| {
            let promise = StoredPromise {
                epoch,
                writer: 0,
                name: "b".into(),
                url: None,
            };
            promises.give(promise, Epoch::new(1, 0))
        };
        give(5).expect("given");
        promises.begin_leading(epoch(5, "a")).expect_err("b may lead in it");
        promises.begin_leading(epoch(6, "a")).expect("b's is earlier");
        give(7).expect_err("this server leads in 6");
        promises.end_leading();
        give(7).expect("its promotion failed");
    }

    #[test]
    fn promise_is_kept_until_a_later_primary_is_followed_and_their_number_is_bounded() {
        let disk = SimDisk::new();
        let promises = Promises::open(NodeFile::open(Arc::new(disk.clone())).expect("read"));
        let give = |epoch: u32, followed| {
            let promise = StoredPromise {
                epoch,
                writer: 0,
                name: format!("s{epoch}"),
                url: None,
            };
            promises.give(promise, Epoch::new(followed, 0))
        };
        let most = PROMISES_MAX as u32;
        (2..most + 2).for_each(|epoch| give(epoch, 1).expect("there is room"));
        give(most + 2, 1).expect_err("there is none");
        assert_eq!(
            (promises.given_promises().len(), promises.bound()),
            (PROMISES_MAX, Epoch::new(most + 1, 0))
        );
        give(most + 2, most).expect("a later primary was followed");
        assert_eq!(promises.given_promises().len(), 2);
        // A promise that can't be taken back on the disk holds.
        disk.set_faults(reprise_env::sim::FaultPlan {
            read_only: true,
            ..Default::default()
        });
        let name = format!("s{}", most + 2);
        promises
            .withdraw(Epoch::new(most + 2, 0), &name)
            .expect_err("the disk is full");
        assert_eq!(promises.bound(), Epoch::new(most + 2, 0));
    }
}
