//! Which standbys a commit waits for, by safety level (Query Fresh, section 2.1).

use std::sync::Arc;

use reprise_base::{Lsn, Safety, limits::STANDBYS_MAX};
use reprise_failover::{NodeId, NodeSet, limit, needed};

use crate::{connection::SILENCE_MAX, member::Member};

// The standby's time is over first.
const _: () = assert!(IN_SYNC_NS + IN_SYNC_NS / 5 <= SILENCE_MAX.as_nanos() as u64);

/// How long the primary waits for a standby that has not persisted what was there before. A call that waited this long ends, too.
pub(crate) const ACK_WAIT_NS: u64 = 5_000_000_000;
/// How long a standby that was in sync remains so after its primary heard it last. No primary continues sooner without a silent standby
/// (`SILENCE_MAX`). A fifth is left for clocks that run apart.
pub const IN_SYNC_NS: u64 = 2_500_000_000;
/// Time that standbys in sync have to come back after the primary's start.
pub(crate) const RETURN_WAIT_NS: u64 = 3_000_000_000;
/// A standby that is at most this far behind becomes in sync.
pub(crate) const ENTER_LAG_NS: u64 = 200_000_000;

/// The gate that keeps callers until their records are where the server's safety level wants them. Nothing in here may wait.
pub trait Commits: Send + Sync {
    /// Sets the present safety status. Called in order. It releases no caller.
    fn set(&self, stand: &SafetyStatus);
    /// Releases the callers whose records are where they are wanted.
    fn release(&self);
    /// Leaves open all calls that wait.
    fn leave_open(&self, reason: &Arc<str>);
    /// Leaves open the calls that wait since before `before_ns`, and those whose client waits no longer.
    fn expire(&self, now_ns: u64, before_ns: u64, reason: &Arc<str>);
    /// Records that enough standbys had been heard at that moment, by the clock that counts suspended time.
    fn confirm(&self, boot_ns: u64);
    /// Returns the end of the committed records among those that are `durable` here.
    fn committed(&self, durable: Lsn) -> Lsn;
}

/// Called once, when records have a level, or with the reason why that wait ended.
pub type SafetyHook = Box<dyn FnOnce(Result<(), Arc<str>>) + Send>;

/// The records that have a level, and why others can't have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SafetyStatus {
    /// Everything before it has the level, once it is durable here. None: the level asks for nothing more.
    pub limit: Option<Lsn>,
    /// Why writes can't have it.
    pub refusal: Option<Arc<str>>,
    /// Why reads do not wait for it: standbys are missing that the limit waits for.
    pub missing: Option<Arc<str>>,
    /// The level that writes reach.
    pub reached: Safety,
}

/// Whether a commit waits for a standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncState {
    /// It is too far behind, or away.
    Out,
    /// Commits wait for it from now on. It is in sync once it has everything before this, which was answered earlier.
    Entering(Lsn),
    /// It has everything that was answered.
    In,
    /// The standby is lost or does not persist. Commits wait for it until that is recorded.
    Leaving,
}

/// A standby, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SafetyMember {
    pub persisted: Lsn,
    pub sync: SyncState,
    pub is_connected: bool,
    /// It was in sync once: quorum and very-safe count on it.
    pub is_counted: bool,
    /// The standby was here since this server's start, and is gone or silent.
    pub is_missing: bool,
    /// The standby may still come back after this server's start.
    pub is_awaited: bool,
}

impl SafetyMember {
    fn is_here(&self) -> bool {
        self.is_connected && self.sync == SyncState::In
    }
}

/// Returns the safety status of calls that ask for a level. A server's own 2-safe lets the primary continue alone. A call that asks for 2-safe wants a
/// standby to have its record.
pub(crate) fn safety_status(level: Safety, is_servers: bool, members: &[SafetyMember]) -> SafetyStatus {
    match level {
        Safety::LocalAsync | Safety::LocalSync | Safety::OneSafe => SafetyStatus {
            limit: None,
            refusal: None,
            missing: None,
            reached: level,
        },
        Safety::TwoSafe => two_safe(is_servers, members),
        Safety::Quorum | Safety::VerySafe => counted(level, members),
    }
}

/// Returns the end of the records that a primary of this level, with these standbys, certainly committed. None: it committed all that was durable
/// there.
pub fn committed_by(level: Safety, standbys: &[Member]) -> Option<Lsn> {
    let member = |standby: &Member| SafetyMember {
        persisted: standby.persisted,
        sync: if standby.is_in_sync {
            SyncState::In
        } else {
            SyncState::Out
        },
        is_connected: false,
        is_counted: standby.is_counted,
        is_missing: false,
        is_awaited: false,
    };
    let members: Vec<_> = standbys.iter().take(STANDBYS_MAX).map(member).collect();
    safety_status(level, true, &members).limit
}

/// Whether a primary of this level, with these standbys, answers only records that every one of them has.
pub fn waits_for_each(level: Safety, standbys: &[Member]) -> bool {
    let counted = standbys.iter().filter(|standby| standby.is_counted).count();
    match level {
        Safety::TwoSafe => !standbys.is_empty() && standbys.iter().all(|standby| standby.is_in_sync),
        Safety::Quorum => counted == standbys.len() && counted == needed_of(level, counted),
        Safety::VerySafe => counted == standbys.len() && counted > 0,
        _ => false,
    }
}

/// How many of the standbys that count have to have a write: at least one.
pub(crate) fn needed_of(level: Safety, counted: usize) -> usize {
    needed(level, counted).max(1)
}

/// Returns the LSN before which the standbys for which `is` holds have what the level asks for. The rule is that of the model.
fn limit_of(level: Safety, members: &[SafetyMember], is: impl Fn(&SafetyMember) -> bool) -> Option<Lsn> {
    // A node is a standby by its position here.
    let set: NodeSet = (0..)
        .zip(members)
        .filter(|(_, member)| is(member))
        .map(|(at, _)| NodeId(at))
        .collect();
    limit(level, &set, &|node| members[node.0 as usize].persisted)
}

fn two_safe(is_servers: bool, members: &[SafetyMember]) -> SafetyStatus {
    let is_waited = |member: &SafetyMember| member.sync != SyncState::Out;
    let limit = limit_of(Safety::TwoSafe, members, is_waited);
    let is_missing = is_servers && members.iter().any(|member| is_waited(member) && member.is_missing);
    let is_backed = members.iter().any(SafetyMember::is_here);
    SafetyStatus {
        limit: if is_servers { limit } else { limit.or(Some(Lsn(0))) },
        missing: is_missing.then(|| "a standby is missing that 2-safe waits for: try again in some seconds".into()),
        refusal: (!is_servers && !is_backed).then(|| "2-safe was asked for, and no standby is in sync now".into()),
        reached: if is_backed { Safety::TwoSafe } else { Safety::OneSafe },
    }
}

/// Returns the least that the standbys persisted which are about to count at very-safe. Commits wait for such a standby before it counts, because the
/// primary then tells it that it has everything that was answered. At quorum other standbys may have more.
fn entering(level: Safety, members: &[SafetyMember]) -> Option<Lsn> {
    let comes = |member: &&SafetyMember| !member.is_counted && matches!(member.sync, SyncState::Entering(_));
    let coming = members.iter().filter(|_| level == Safety::VerySafe).filter(comes);
    coming.map(|member| member.persisted).min()
}

/// Quorum and very-safe: standbys count also while they are away.
fn counted(level: Safety, members: &[SafetyMember]) -> SafetyStatus {
    let count_if = |is: &dyn Fn(&SafetyMember) -> bool| {
        let counted = members.iter().filter(|member| member.is_counted);
        counted.filter(|member| is(member)).count()
    };
    let (count, here) = (count_if(&|_| true), count_if(&SafetyMember::is_here));
    let heard = count_if(&|member| member.is_here() && !member.is_missing);
    let awaited = count_if(&|member| member.is_awaited);
    let needed = needed_of(level, count);
    let refusal: Option<Arc<str>> = (here < needed).then(|| match count {
        0 => format!("the safety level {level} needs a standby, and none has been in sync here").into(),
        _ => format!(
            "the safety level {level} needs {needed} of {count} standbys, and {here} are in sync. Start the lost standbys, or forget the standbys \
             that will not come back (reprise replication forget NAME)"
        )
        .into(),
    });
    let limit = limit_of(level, members, |member| member.is_counted);
    let is_silent = heard + awaited < needed;
    let silent = || {
        format!(
            "the safety level {level} needs {needed} of {count} standbys, and {heard} were heard in the last second"
        )
        .into()
    };
    SafetyStatus {
        missing: is_silent.then(|| refusal.clone().unwrap_or_else(silent)),
        limit: limit.map(|limit| entering(level, members).map_or(limit, |entering| limit.min(entering))),
        reached: if refusal.is_none() { level } else { Safety::OneSafe },
        refusal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `+` here, `-` away, `~` silent, `?` awaited after a start, `c` counted, `i` in sync, `e` entering, `l` leaving, `o` out. The number is what
    /// the standby persisted.
    fn members(text: &str) -> Vec<SafetyMember> {
        let member = |word: &str| {
            let has = |c| word.contains(c);
            SafetyMember {
                persisted: Lsn(word
                    .trim_start_matches(|c: char| !c.is_ascii_digit())
                    .parse()
                    .expect("an LSN")),
                sync: match (has('i'), has('e'), has('l')) {
                    (true, ..) => SyncState::In,
                    (_, true, _) => SyncState::Entering(Lsn(100)),
                    (_, _, true) => SyncState::Leaving,
                    _ => SyncState::Out,
                },
                is_connected: has('+') || has('~'),
                is_counted: has('c'),
                is_missing: has('~') || has('-'),
                is_awaited: has('?'),
            }
        };
        text.split_whitespace().map(member).collect()
    }

    fn shown(level: Safety, is_servers: bool, text: &str) -> String {
        let stand = safety_status(level, is_servers, &members(text));
        let limit = stand.limit.map_or("alone".into(), |limit| limit.to_string());
        let refused = if stand.refusal.is_some() { " refused" } else { "" };
        let missing = if stand.missing.is_some() { " missing" } else { "" };
        format!("{limit} {}{refused}{missing}", stand.reached)
    }

    #[test]
    fn commit_waits_for_the_standbys_of_its_level() {
        use Safety::{OneSafe, Quorum, TwoSafe, VerySafe};
        for (level, is_servers, text, expected) in [
            (OneSafe, true, "+ci7", "alone 1-safe"),
            // 2-safe: all that are in sync; alone without any, where it is the server's.
            (TwoSafe, true, "", "alone 1-safe"),
            (TwoSafe, true, "+ci7 +ci9 +o3", "7 2-safe"),
            (TwoSafe, true, "+e7 -co9", "7 1-safe"),
            (TwoSafe, true, "-cl7 +ci9", "7 2-safe missing"),
            (TwoSafe, true, "~ci7 +ci9", "7 2-safe missing"),
            (TwoSafe, true, "-co7 +ci9", "9 2-safe"),
            (TwoSafe, false, "-co7", "0 1-safe refused"),
            (TwoSafe, false, "-ci7", "7 1-safe refused"),
            (TwoSafe, false, "+ci7", "7 2-safe"),
            // Quorum: 1 of 1, 1 of 2, 2 of 3, 2 of 4; a standby that is away has what it had.
            (Quorum, true, "", "0 1-safe refused missing"),
            (Quorum, true, "+o7", "0 1-safe refused missing"),
            (Quorum, true, "+ci7", "7 quorum"),
            (Quorum, true, "+ci7 -co9", "9 quorum"),
            (Quorum, true, "~ci7 -co9", "9 quorum missing"),
            (Quorum, true, "~ci7 +ci9", "9 quorum"),
            (Quorum, true, "?ci7 -co9", "9 1-safe refused"),
            (Quorum, true, "+ci7 -co9 -co8", "8 1-safe refused missing"),
            (Quorum, true, "+ci7 +ci9 -co8 -co1", "8 quorum"),
            // Very safe: all.
            (VerySafe, true, "", "0 1-safe refused missing"),
            (VerySafe, true, "+ci7 +ci9", "7 very-safe"),
            (VerySafe, true, "+ci7 -co9", "7 1-safe refused missing"),
            (VerySafe, false, "+ci7 +o3", "7 very-safe"),
            // Commits wait for a standby that comes, before it counts.
            (VerySafe, true, "+ci7 +e5", "5 very-safe"),
            (VerySafe, false, "+ci7 +e9", "7 very-safe"),
            (VerySafe, true, "+e5", "0 1-safe refused missing"),
            (VerySafe, true, "+ci7 +ce5", "5 1-safe refused missing"),
            (Quorum, true, "+ci7 +e5", "7 quorum"),
        ] {
            assert_eq!(shown(level, is_servers, text), expected, "{level} {text:?}");
        }
    }

    #[test]
    fn primary_counts_as_committed_as_its_level_requires() {
        let standbys = |text: &str| -> Vec<Member> {
            let all = members(text);
            let standby = |member: &SafetyMember| Member {
                name: "s".into(),
                from: Lsn(0),
                persisted: member.persisted,
                is_in_sync: member.sync == SyncState::In,
                is_counted: member.is_counted,
                url: None,
                node: None,
            };
            all.iter().map(standby).collect()
        };
        for (level, text, expected) in [
            (Safety::OneSafe, "ci7", None),
            (Safety::TwoSafe, "ci7 ci9 co3", Some(7)),
            (Safety::TwoSafe, "co7", None),
            (Safety::Quorum, "ci7 co9", Some(9)),
            (Safety::Quorum, "", Some(0)),
            (Safety::VerySafe, "ci7 co5", Some(5)),
        ] {
            let committed = committed_by(level, &standbys(text));
            assert_eq!(committed, expected.map(Lsn), "{level} {text:?}");
        }
    }
}
