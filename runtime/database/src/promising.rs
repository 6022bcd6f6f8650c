//! Promises: a standby that is to lead asks the other standbys to follow no earlier primary any more, and to tell how far they are. Without the
//! promise, the old primary could go on to answer with their help.

use std::sync::{Arc, Mutex, MutexGuard, atomic::Ordering};

use reprise_base::{Epoch, Lsn, Role, Safety};
use reprise_env::DiskError;
use reprise_failover::{NodeId, NodeSet, is_read_quorum};
use reprise_router::{LossCause, LostRange, PeerMember, PeerStatus, PromiseAnswer, PromiseQuestion, ReplicationError};
use serde::{Deserialize, Serialize};

use crate::{cutting, node_file::NodeFile, shipping::Replication};

/// A promise of an epoch that is further ahead than this is refused: no later one could be drawn after it.
const EPOCHS_AHEAD_MAX: u32 = 1 << 20;

/// Asks the server at a URL. May block, for about a second. Err: it can't be reached, or why it does not promise.
pub type AskPeer = Arc<dyn Fn(&str, &PromiseQuestion) -> Result<PromiseAnswer, Arc<str>> + Send + Sync>;

/// A promise, as the document of the server has it that gave it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredPromise {
    /// The server follows no primary before this epoch.
    epoch: u32,
    /// In this epoch it follows this server alone.
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    /// The promise that this one replaced. It holds again if this one is taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<Box<StoredPromise>>,
}

impl StoredPromise {
    /// Returns the first epoch that this server may lead in itself.
    pub fn next_epoch(&self) -> u32 {
        self.epoch.saturating_add(1)
    }

    pub fn describe(&self) -> String {
        format!("it promised epoch {} to {}", self.epoch, self.name)
    }
}

/// The promise that a server gave last.
pub(crate) struct Promises {
    node: Arc<NodeFile>,
    /// It restricts from the moment when it is asked for, also if it can't be saved.
    newest: Mutex<Option<StoredPromise>>,
}

impl Promises {
    pub fn open(node: Arc<NodeFile>) -> Self {
        let newest = Mutex::new(node.read(|document| document.promise.clone()));
        Self { node, newest }
    }

    fn lock(&self) -> MutexGuard<'_, Option<StoredPromise>> {
        self.newest.lock().expect("nothing panics under this lock")
    }

    /// Returns the epoch before which no primary is followed.
    pub fn bound(&self) -> Epoch {
        Epoch(self.lock().as_ref().map_or(0, |promise| promise.epoch))
    }

    fn newest(&self) -> Option<StoredPromise> {
        self.lock().clone()
    }

    /// Returns the URL of the server that was promised an epoch behind `followed`: it may lead by now.
    pub fn promised_primary(&self, followed: Epoch) -> Option<String> {
        let newest = self.lock();
        newest
            .as_ref()
            .filter(|promise| promise.epoch > followed.0)?
            .url
            .clone()
    }

    /// Checks whether the primary of an epoch, at this URL, may be followed.
    pub fn check(&self, epoch: Epoch, url: &str) -> Result<(), String> {
        let newest = self.lock();
        let Some(promise) = &*newest else { return Ok(()) };
        let is_it = promise
            .url
            .as_deref()
            .is_none_or(|promised| url.is_empty() || promised == url);
        match epoch.0 > promise.epoch || (epoch.0 == promise.epoch && is_it) {
            true => Ok(()),
            false => Err(format!(
                "that primary is of epoch {epoch}, and this standby promised epoch {} to {}: it follows no earlier primary any more",
                promise.epoch, promise.name
            )),
        }
    }

    fn give(&self, promise: StoredPromise) -> Result<(), ReplicationError> {
        let mut newest = self.lock();
        let mut before = None;
        if let Some(known) = &*newest {
            let is_same = (known.epoch, &known.name) == (promise.epoch, &promise.name);
            if known.epoch >= promise.epoch && !is_same {
                let reason = format!("this server promised epoch {} to {} before", known.epoch, known.name);
                return Err(ReplicationError::Unavailable(reason.into()));
            }
            before = match is_same {
                true => known.before.clone(),
                false => Some(Box::new(StoredPromise {
                    before: None,
                    ..known.clone()
                })),
            };
        }
        *newest = Some(StoredPromise { before, ..promise });
        let saved = self.save(newest.as_ref());
        saved.map_err(|error| ReplicationError::Unavailable(format!("a promise can't be saved: {error}").into()))
    }

    /// The server that got the promise does not lead in its epoch.
    fn withdraw(&self, epoch: Epoch, name: &str) -> Result<(), ReplicationError> {
        let mut newest = self.lock();
        if let Some(known) = newest.take_if(|known| known.epoch == epoch.0 && known.name == name) {
            *newest = known.before.map(|before| *before);
            let saved = self.save(newest.as_ref());
            return saved.map_err(|error| ReplicationError::Unavailable(error.to_string().into()));
        }
        Ok(())
    }

    fn save(&self, promise: Option<&StoredPromise>) -> Result<(), DiskError> {
        self.node.change(|document| document.promise = promise.cloned())
    }
}

/// The answers to a promotion, and who gave a promise.
#[derive(Default)]
pub(crate) struct Asked {
    pub answers: Vec<PromiseAnswer>,
    /// URLs of the servers that were asked and may have promised.
    urls: Vec<String>,
}

fn newest<'a>(own: &'a PromiseAnswer, answers: &'a [PromiseAnswer]) -> Option<&'a PeerStatus> {
    let all = [own].into_iter().chain(answers);
    all.filter_map(|answer| answer.status.as_ref())
        .max_by_key(|status| (status.epoch, status.number))
}

/// Returns why something may be lost that was answered at `quorum`, if a server with the answer `own` leads by these answers.
fn lost_at_quorum(own: &PromiseAnswer, answers: &[PromiseAnswer]) -> Option<LossCause> {
    if answers.iter().any(|answer| answer.is_further_than(own.epoch, own.end)) {
        return Some(LossCause::AnotherHasMore);
    }
    let Some(status) = newest(own, answers) else {
        return Some(LossCause::NeverTold);
    };
    let set = |is: fn(&PeerMember) -> bool| -> NodeSet {
        let members = (1..).zip(&status.members);
        members
            .filter(|(_, member)| is(member))
            .map(|(number, _)| NodeId(number))
            .collect()
    };
    let has_answered = |node: NodeId| {
        let name = node.0.checked_sub(1).map(|at| &status.members[at as usize].name);
        let mut names = [own].into_iter().chain(answers).map(|answer| &answer.name);
        name.is_some_and(|name| names.any(|answered| answered == name))
    };
    // While a change is under way, both sets count.
    let sets = [set(|member| member.is_counted), set(|member| member.is_counted_next)];
    let suffices = |set: &NodeSet| is_read_quorum(Safety::Quorum, set, NodeId(0), &has_answered);
    (!sets.iter().all(suffices)).then_some(LossCause::Quorum)
}

impl Replication {
    /// Tells how far this server is, as its answer.
    fn answer(&self) -> PromiseAnswer {
        let (name, status) = (self.name.get().cloned().unwrap_or_default(), self.synced.status());
        let (epoch, end) = match self.log.received() {
            Some(received) => (received.epoch, received.lsn),
            None => (self.log.written_epoch(), self.log.filled()),
        };
        let told = status.map(|status| {
            let others = status.others.iter().map(|other| PeerMember {
                name: other.name.clone(),
                url: other.url.clone(),
                from: Lsn(other.lsn),
                is_counted: other.counted,
                is_counted_next: other.counted_next,
            });
            let own = PeerMember {
                name: name.clone(),
                url: String::new(),
                from: Lsn(0),
                is_counted: status.counted,
                is_counted_next: status.counted_next,
            };
            PeerStatus {
                epoch: Epoch(status.epoch),
                number: status.number,
                members: others.chain([own]).collect(),
            }
        });
        PromiseAnswer {
            name,
            epoch: epoch.max(told.as_ref().map_or(Epoch(0), |status| status.epoch)),
            end,
            status: told,
        }
    }

    /// Answers a server that is to lead. A server that knows of a later epoch tells so, and promises nothing. A withdrawal takes a promise back, or asks
    /// whether this server leads in the epoch: a server that led in it, or knows of a later one, does not agree.
    pub(crate) fn give_promise(&self, asked: &PromiseQuestion) -> Result<PromiseAnswer, ReplicationError> {
        if self.router.role() != Role::Standby {
            return Err(ReplicationError::IsPrimary(self.log.epoch()));
        }
        if self.claimed.load(Ordering::Acquire) == asked.epoch.0 {
            let reason = format!("this server is about to lead in epoch {}", asked.epoch);
            return Err(ReplicationError::Unavailable(reason.into()));
        }
        if asked.is_withdrawn && self.answer().epoch.next().max(cutting::unused_epoch(&self.node)) > asked.epoch {
            let reason = format!(
                "this server led in epoch {}, or followed a primary of it or a later one",
                asked.epoch
            );
            return Err(ReplicationError::Unavailable(reason.into()));
        }
        if asked.is_withdrawn {
            self.promises.withdraw(asked.epoch, &asked.name)?;
            return Ok(self.answer());
        }
        let known = self.answer().epoch;
        if asked.epoch.0 > known.0.saturating_add(EPOCHS_AHEAD_MAX) {
            let reason = format!(
                "epoch {} is far ahead of the last one that is known here, {known}",
                asked.epoch
            );
            return Err(ReplicationError::Unavailable(reason.into()));
        }
        if known < asked.epoch {
            self.promises.give(StoredPromise {
                epoch: asked.epoch.0,
                name: asked.name.clone(),
                url: asked.url.as_deref().map(str::to_owned),
                before: None,
            })?;
        }
        // Nothing beyond this is acknowledged to an earlier primary.
        Ok(self.answer())
    }

    fn request(&self, epoch: Epoch, is_withdrawn: bool) -> PromiseQuestion {
        PromiseQuestion {
            epoch,
            name: self.name.get().cloned().unwrap_or_default(),
            url: self.own_url(),
            is_withdrawn,
        }
    }

    /// Asks all standbys that this one and the others know, as far as they can be reached.
    fn ask_others(&self, epoch: Epoch) -> Asked {
        let mut asked = Asked::default();
        let Some(ask) = self.peers.get() else { return asked };
        let own = self.answer();
        loop {
            let status = newest(&own, &asked.answers).or(own.status.as_ref());
            let members = status.into_iter().flat_map(|status| &status.members);
            let is_new = |member: &&PeerMember| {
                !member.url.is_empty() && member.name != own.name && !asked.urls.contains(&member.url)
            };
            let Some(url) = members.filter(is_new).map(|member| member.url.clone()).next() else {
                return asked;
            };
            let answer = ask(&url, &self.request(epoch, false));
            asked.urls.push(url);
            asked.answers.extend(answer);
        }
    }

    /// Asks the other standbys for a promise of this epoch, and judges by their answers what may be lost of what was answered at `quorum`.
    pub(crate) fn ask_at_quorum(&self, epoch: Epoch) -> (Asked, Option<LostRange>) {
        self.claimed.store(epoch.0, Ordering::Release);
        let asked = self.ask_others(epoch);
        let own = self.answer();
        let cause = lost_at_quorum(&own, &asked.answers);
        let most: Lsn = asked.answers.iter().map(|answer| answer.end).max().unwrap_or_default();
        let lost = cause.map(|cause| {
            let lost = self.synced.behind(own.end, cause);
            LostRange {
                known_to: lost.known_to.max(Some(most.max(own.end))),
                ..lost
            }
        });
        (asked, lost)
    }

    /// Returns the standbys that count once this server leads: those that counted, by the newest word of a primary. None: the level counts on none.
    pub(crate) fn first_set(&self, asked: &Asked) -> Option<Vec<PeerMember>> {
        let own = self.answer();
        let status = newest(&own, &asked.answers).filter(|_| self.is_told_at_quorum())?;
        let is_in = |member: &&PeerMember| member.is_counted_next && member.name != own.name;
        Some(status.members.iter().filter(is_in).cloned().collect())
    }

    /// Takes a promise back whose server does not lead after all, and did not get to say so. That server is asked.
    pub(crate) fn end_void_promise(&self) {
        let (Some(promise), Some(ask)) = (self.promises.newest(), self.peers.get()) else {
            return;
        };
        let question = self.request(Epoch(promise.epoch), true);
        if promise.url.is_some_and(|url| ask(&url, &question).is_ok()) {
            // Where that can't be saved, it is tried again.
            let _ = self.promises.withdraw(Epoch(promise.epoch), &promise.name);
        }
    }

    /// This server does not lead in the epoch that it asked for. A server that does not hear of it follows the next primary all the same.
    pub(crate) fn withdraw(&self, asked: &Asked, epoch: Epoch) {
        self.claimed.store(0, Ordering::Release);
        let Some(ask) = self.peers.get() else { return };
        for url in &asked.urls {
            let _ = ask(url, &self.request(epoch, true));
        }
    }
}

#[cfg(test)]
mod tests {
    use reprise_env::SimDisk;

    use super::*;

    /// `NAME EPOCH END`, then the standbys that count by the newest word that it knows.
    fn answer(text: &str) -> PromiseAnswer {
        let mut words = text.split_whitespace();
        let name = words.next().expect("a name").to_owned();
        let mut number = || {
            words
                .next()
                .and_then(|word| word.parse::<u64>().ok())
                .expect("a number")
        };
        let (epoch, end) = (Epoch(number() as u32), Lsn(number()));
        let members: Vec<_> = words
            .map(|name| PeerMember {
                name: name.to_owned(),
                url: format!("http://{name}:1"),
                from: Lsn(0),
                is_counted: true,
                is_counted_next: true,
            })
            .collect();
        let status = (!members.is_empty()).then_some(PeerStatus {
            epoch,
            number: end.0,
            members,
        });
        PromiseAnswer {
            name,
            epoch,
            end,
            status,
        }
    }

    #[test]
    fn quorum_loses_nothing_by_the_furthest_of_enough_standbys() {
        for (own, others, expected) in [
            // Any of two has what is answered: both have to be asked.
            ("b 1 7 b c", &["c 1 7 b c"][..], None),
            ("b 1 7 b c", &["c 1 6 b c"], None),
            ("b 1 7 b c", &["c 1 8 b c"], Some(LossCause::AnotherHasMore)),
            ("b 1 9 b c", &["c 2 8 b c"], Some(LossCause::AnotherHasMore)),
            ("b 1 7 b c", &[], Some(LossCause::Quorum)),
            ("b 1 7", &[], Some(LossCause::NeverTold)),
            ("b 1 7 b", &[], None),
            // Two of three have it: two are enough.
            ("b 1 7 b c d", &["c 1 7 b c d"], None),
            ("b 1 7 b c d", &[], Some(LossCause::Quorum)),
            // One that counts no more is no part of a quorum, by the newest word.
            ("b 1 7 b c", &["x 1 3 b c"], Some(LossCause::Quorum)),
            ("b 1 9 b c", &["c 1 7 b c d e"], None),
            ("b 1 7 b c", &["c 1 7 b c", "d 1 6 c"], None),
        ] {
            let others: Vec<_> = others.iter().map(|text| answer(text)).collect();
            assert_eq!(lost_at_quorum(&answer(own), &others), expected, "{own}, {others:?}");
        }
    }

    #[test]
    fn promise_holds_after_a_restart_and_is_given_once() {
        let disk = SimDisk::new();
        let open = || Promises::open(NodeFile::open(Arc::new(disk.clone())).expect("read"));
        let promise = |epoch, name: &str| StoredPromise {
            epoch,
            name: name.to_owned(),
            url: Some(format!("http://{name}:1")),
            before: None,
        };
        let promises = open();
        promises.check(Epoch(1), "http://a:1").expect("nothing is promised");
        promises.give(promise(3, "b")).expect("saved");
        promises.give(promise(3, "b")).expect("the same again");
        promises.give(promise(3, "c")).expect_err("it is b's");
        promises.give(promise(2, "c")).expect_err("it is earlier");
        for promises in [promises, open()] {
            assert_eq!(promises.bound(), Epoch(3));
            promises.check(Epoch(2), "http://a:1").expect_err("it is earlier");
            promises.check(Epoch(3), "http://a:1").expect_err("it is b's");
            promises.check(Epoch(3), "http://b:1").expect("b");
            promises.check(Epoch(4), "http://a:1").expect("it is later");
        }
        let promises = open();
        promises.give(promise(5, "c")).expect("it is later");
        promises.withdraw(Epoch(5), "b").expect("it has none");
        assert_eq!(promises.bound(), Epoch(5));
        // Also behind a restart the promise before it holds again.
        open().withdraw(Epoch(5), "c").expect("saved");
        let promises = open();
        assert_eq!(promises.bound(), Epoch(3));
        promises.withdraw(Epoch(3), "b").expect("saved");
        assert_eq!(open().bound(), Epoch(0));
    }
}
