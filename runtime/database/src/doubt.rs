//! The doubts of a promotion by force: what it can't exclude, by the answers of the other standbys. The rules are `reprise_failover`'s; this file
//! gives its nodes their names.

use std::sync::Arc;

use reprise_base::{Epoch, Lsn, Safety};
use reprise_failover::{Basis, Doubt, LogEnd, NodeId, NodeSet, Promise, SyncStatus};
use reprise_router::{PeerMember, PeerStatus, PromiseAnswer};

/// The primary, which a promotion by force does not ask.
const PRIMARY: NodeId = NodeId(0);
/// A server that began anew under the name of a member. The records of the member are gone, so the server's answer does not stand for the member.
const NEWCOMER: NodeId = NodeId(u64::MAX);

/// Returns the newest word of a primary.
pub(crate) fn newest<'a>(own: &'a PromiseAnswer, others: &'a [PromiseAnswer]) -> Option<&'a PeerStatus> {
    let all = [own].into_iter().chain(others);
    all.filter_map(|answer| answer.status.as_ref())
        .max_by_key(|status| (status.epoch.count(), status.number))
}

/// The names of servers, each of which is a node.
struct NodeNames<'a> {
    names: Vec<&'a str>,
    /// The server that is to lead.
    own: &'a str,
    /// Epoch of the last record that it has.
    written: Epoch,
}

impl<'a> NodeNames<'a> {
    fn node(&mut self, name: &'a str) -> NodeId {
        let found = self.names.iter().position(|known| *known == name);
        let at = found.unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        });
        NodeId(at as u64 + 1)
    }

    fn set(&mut self, members: &'a [PeerMember], is_in: impl Fn(&PeerMember) -> bool) -> NodeSet {
        let members = members.iter().filter(|member| is_in(member));
        members.map(|member| self.node(&member.name)).collect()
    }

    /// Returns the primary's word as the rules take it. `quorum` counts standbys that are away, the other levels do not.
    fn status(&mut self, status: &'a PeerStatus, level: Safety) -> SyncStatus {
        let members = &status.members;
        let (current, next) = match level {
            Safety::Quorum => (
                self.set(members, |member| member.is_counted),
                self.set(members, |member| member.is_counted_next),
            ),
            _ => {
                let in_sync = self.set(members, |member| member.is_in_sync);
                (in_sync.clone(), in_sync)
            }
        };
        // A standby that came to be in sync, or has a record of the epoch, has everything with which the epoch began.
        let is_in_sync = |member: &PeerMember| member.name == self.own && member.is_in_sync;
        let has_record = self.written == status.epoch || self.written.is_after(status.epoch);
        let has_beginning = has_record || members.iter().any(is_in_sync);
        SyncStatus {
            begins: if has_beginning { Lsn(0) } else { Lsn(u64::MAX) },
            epoch: status.epoch,
            primary: PRIMARY,
            number: status.number,
            next: (next != current).then_some(next),
            current,
        }
    }

    /// Returns the node for which an answer stands.
    fn author(&mut self, answer: &'a PromiseAnswer) -> NodeId {
        match answer.has_been_in_sync {
            true => self.node(&answer.name),
            false => NEWCOMER,
        }
    }

    fn promise(&mut self, answer: &'a PromiseAnswer, level: Safety) -> Promise {
        Promise {
            from: self.author(answer),
            epoch: Epoch::default(),
            end: end(answer),
            status: answer.status.as_ref().map(|status| self.status(status, level)),
            rival: Epoch::default(),
            fork: answer.end,
        }
    }
}

fn end(answer: &PromiseAnswer) -> LogEnd {
    LogEnd {
        epoch: answer.epoch,
        lsn: answer.end,
    }
}

/// The answers that a promotion by force is checked against.
pub(crate) struct PromiseAnswers<'a> {
    /// Level that the primary's writes waited for.
    pub level: Safety,
    /// The primary has heard this server a moment ago, and has not continued without it.
    pub is_heard: bool,
    /// Epoch of the last record that this server has.
    pub written: Epoch,
    /// This server's own answer.
    pub own: &'a PromiseAnswer,
    pub others: &'a [PromiseAnswer],
    /// The last primary by the lease's record, before this server's claim.
    pub recorded: Option<(Epoch, &'a str)>,
}

impl PromiseAnswers<'_> {
    /// Returns why a loss can't be excluded if this server leads, and the names of the servers that this is about. None: nothing is lost.
    pub fn doubt(&self) -> Option<(Doubt, Arc<str>)> {
        let mut names = NodeNames {
            names: Vec::new(),
            own: &self.own.name,
            written: self.written,
        };
        let node = names.author(self.own);
        let status = self.own.status.as_ref().map(|status| names.status(status, self.level));
        let promises: Vec<_> = self
            .others
            .iter()
            .map(|answer| names.promise(answer, self.level))
            .collect();
        let all = || [self.own].into_iter().chain(self.others);
        let claims = all().flat_map(|answer| &answer.promises);
        let rivals: Vec<_> = claims
            .map(|(epoch, name)| Epoch::new(epoch.count(), names.node(name).writer()))
            .collect();
        let newest_status = newest(self.own, self.others);
        let is_other = |(epoch, name): &(Epoch, &str)| {
            *name != self.own.name && newest_status.is_none_or(|status| status.epoch.writer() != epoch.writer())
        };
        let recorded = self.recorded.filter(is_other);
        let basis = Basis {
            node,
            level: self.level,
            status: status.as_ref(),
            led: false,
            end: end(self.own),
            is_heard: self.is_heard,
            promises: &promises,
            teller: None,
            rivals: &rivals,
            recorded: recorded.map(|(epoch, name)| Epoch::new(epoch.count(), names.node(name).writer())),
        };
        let doubt = basis.doubt()?;
        let has_answered = |name: &str| all().any(|answer| answer.name == name && answer.has_been_in_sync);
        let mut found: Vec<&str> = match doubt {
            Doubt::AnotherHasMore => {
                let further = self
                    .others
                    .iter()
                    .filter(|answer| end(answer).is_further_than(basis.end));
                further.map(|answer| &*answer.name).collect()
            }
            Doubt::TooFewAnswers => {
                let members = newest_status.into_iter().flat_map(|status| &status.members);
                let names = members
                    .filter(|member| counts(member, self.level))
                    .map(|member| &*member.name);
                names.filter(|name| !has_answered(name)).collect()
            }
            Doubt::Rival => {
                let claims = all().flat_map(|answer| &answer.promises);
                let claims = claims.map(|(epoch, name)| (*epoch, &**name)).chain(recorded);
                let later = claims.filter(|(epoch, _)| newest_status.is_none_or(|status| epoch.is_after(status.epoch)));
                later.map(|(_, name)| name).filter(|name| !has_answered(name)).collect()
            }
            Doubt::NeverTold | Doubt::OutOfSync | Doubt::Unheard => Vec::new(),
        };
        found.sort_unstable();
        found.dedup();
        Some((doubt, found.join(", ").into()))
    }
}

fn counts(member: &PeerMember, level: Safety) -> bool {
    match level {
        Safety::Quorum => member.is_counted || member.is_counted_next,
        _ => member.is_in_sync,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `NAME EPOCH END`, then the standbys that count, and are in sync unless they begin with `-`, by the newest word that it knows. `NAME=EPOCH` is
    /// a promise. `NAME*` began anew. The last record is of epoch 5. A last text `NAME@EPOCH` is the lease's record, of a server that has told nothing.
    fn answer(text: &str) -> PromiseAnswer {
        let mut words = text.split_whitespace();
        let word = words.next().expect("a name");
        let name = word.trim_end_matches('*').to_owned();
        let mut number = || {
            words
                .next()
                .and_then(|word| word.parse::<u64>().ok())
                .expect("a number")
        };
        let (epoch, end) = (Epoch::new(number() as u32, 0), Lsn(number()));
        let (promises, members): (Vec<_>, Vec<_>) = words.partition(|word| word.contains('='));
        let promise = |word: &str| {
            let (name, epoch) = word.split_once('=').expect("a promise");
            (Epoch::new(epoch.parse().expect("a number"), 0), name.to_owned())
        };
        let members: Vec<_> = members
            .into_iter()
            .map(|name| PeerMember {
                name: name.trim_start_matches('-').to_owned(),
                url: format!("http://{name}:1"),
                from: Lsn(0),
                is_in_sync: !name.starts_with('-'),
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
            has_been_in_sync: status.is_some() && !word.ends_with('*'),
            name,
            epoch,
            end,
            status,
            promises: promises.into_iter().map(promise).collect(),
        }
    }

    fn doubt(level: Safety, is_heard: bool, texts: &[&str]) -> String {
        let recorded = texts.last().and_then(|text| text.split_once('@'));
        let mut answers = texts.iter().filter(|text| !text.contains('@')).map(|text| answer(text));
        let own = answers.next().expect("its own");
        let others: Vec<_> = answers.collect();
        let answers = PromiseAnswers {
            level,
            is_heard,
            written: Epoch::new(5, 0),
            own: &own,
            others: &others,
            recorded: recorded.map(|(name, epoch)| (Epoch::new(epoch.parse().expect("a number"), 9), name)),
        };
        match answers.doubt() {
            None => "none".into(),
            Some((doubt, names)) => format!("{doubt:?} {names}").trim_end().to_owned(),
        }
    }

    #[test]
    fn quorum_loses_nothing_by_the_furthest_of_enough_standbys() {
        for (answers, expected) in [
            // Either of the two may be the one with an answered record: both have to be asked.
            (&["b 1 7 b c", "c 1 7 b c"][..], "none"),
            (&["b 1 7 b c", "c 1 6 b c"], "none"),
            (&["b 1 7 b c", "c 1 8 b c"], "AnotherHasMore c"),
            (&["b 1 9 b c", "c 2 8 b c"], "AnotherHasMore c"),
            (&["b 1 7 b c"], "TooFewAnswers c"),
            (&["b 1 7"], "NeverTold"),
            (&["b 1 7 b"], "none"),
            // It began anew, and had everything before.
            (&["b 1 7 b c", "c 1 3"], "TooFewAnswers c"),
            (&["b 1 7 b c", "c 1 8"], "AnotherHasMore c"),
            (&["b 1 7 b -c", "c* 1 3 b -c"], "TooFewAnswers c"),
            (&["c* 1 7 b -c", "b 1 3 b -c"], "TooFewAnswers c"),
            (&["b 1 7 b -c d", "c* 1 3 b -c d", "d 1 7 b -c d"], "none"),
            // Two of three have it: two are enough.
            (&["b 1 7 b c d", "c 1 7 b c d"], "none"),
            (&["b 1 7 b c d"], "TooFewAnswers c, d"),
            // One that counts no more is no part of a quorum, by the newest word.
            (&["b 1 7 b c", "x 1 3 b c"], "TooFewAnswers c"),
            (&["b 1 9 b c", "c 1 7 b c d e"], "none"),
            (&["b 1 7 b c", "c 1 7 b c", "d 1 6 c"], "none"),
            // The primary of epoch 9 took over what others have. A standby that lacks it alone counts, and is not enough.
            (&["c 9 4 -c"], "OutOfSync"),
            (&["c 9 4 c"], "none"),
            (&["c 5 4 -c"], "none"),
            // A rival would need one of those who answered.
            (&["b 1 7 b c x=2", "c 1 7 b c"], "none"),
            // It was promoted without them, with an accepted loss.
            (&["c 1 7 c", "a@2"], "Rival a"),
            (&["c 1 7 c", "a@1"], "none"),
            (&["c 1 7 c a=2", "a@3"], "none"),
            (&["c 1 7 c", "a 1 7 c", "a@2"], "none"),
            (&["c 1 7 c", "c@2"], "none"),
        ] {
            assert_eq!(doubt(Safety::Quorum, false, answers), expected, "{answers:?}");
        }
    }

    #[test]
    fn two_safe_loses_nothing_if_every_standby_in_sync_answers_and_no_other_one_may_lead() {
        for (answers, is_heard, expected) in [
            (&["b 1 7 b"][..], true, "none"),
            (&["b 1 7 b"], false, "Unheard"),
            (&["b 1 7 b c", "c 1 7 b c"], true, "none"),
            (&["b 1 7 b c", "c 1 7 b c"], false, "Unheard"),
            // It may have been promoted.
            (&["b 1 7 b c"], true, "TooFewAnswers c"),
            (&["b 1 7 b c", "c 1 9 b c"], true, "AnotherHasMore c"),
            // By a later word this one is out of sync, and by an earlier one it was.
            (&["b 1 7 b c", "c 1 8 c"], true, "AnotherHasMore c"),
            (&["b 1 8 b c", "c 1 7 c"], true, "none"),
            (&["b 1 7 c", "c 1 7 c"], true, "OutOfSync"),
            (&["b 1 7"], true, "NeverTold"),
            // A standby promised a later epoch to x, and then one to b.
            (&["b 1 7 b c", "c 1 7 b c x=2 b=3"], true, "Rival x"),
            (&["b 1 7 b c x=2", "c 1 7 b c"], true, "Rival x"),
            (&["b 1 7 b c", "c 1 7 b c x=1 b=3"], true, "none"),
            (&["b 1 7 b c", "c 1 7 b c x=2 b=3", "x 1 5 x"], true, "none"),
        ] {
            assert_eq!(doubt(Safety::TwoSafe, is_heard, answers), expected, "{answers:?}");
        }
    }

    #[test]
    fn other_levels_trust_the_standbys_that_each_write_waits_for() {
        for (level, answers, expected) in [
            (Safety::VerySafe, &["b 1 7 b c"][..], "none"),
            (Safety::VerySafe, &["b 1 7 c"], "OutOfSync"),
            (Safety::VerySafe, &["b 1 7 b c", "c 1 8 b c"], "AnotherHasMore c"),
            (Safety::OneSafe, &["b 1 7 b c", "c 1 7 b c"], "OutOfSync"),
            (Safety::OneSafe, &["b 1 7 b c", "c 1 8 b c"], "AnotherHasMore c"),
            (Safety::LocalSync, &["b 1 7 b"], "OutOfSync"),
        ] {
            assert_eq!(doubt(level, true, answers), expected, "{level} {answers:?}");
        }
    }
}
