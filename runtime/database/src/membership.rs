//! The standbys that a primary expects. It holds the log that they lack for them, after a restart, too.

use std::sync::{Arc, Mutex};

use reprise_base::{Epoch, Lsn, Role};
use reprise_env::DiskError;
use reprise_router::{LaggingStandby, PeerMember, StandbyPhase};
use reprise_ship::{Member, NO_LOG};
use serde::{Deserialize, Serialize};

use crate::{
    database::Database,
    node_file::{NodeDocument, NodeFile},
};

/// A member of the cluster, and where it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberAddress {
    pub name: String,
    pub url: String,
}

/// The answer of a member that has this database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberAnswer {
    pub member: MemberAddress,
    pub is_primary: bool,
    /// Epoch in which the member leads, or that of the last record that it has.
    pub epoch: Epoch,
    /// URL of the primary that it follows.
    pub primary: Option<String>,
}

/// A standby, as the document of its primary has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredMember {
    pub name: String,
    /// The primary keeps its log for the standby from this LSN on. That of `NO_LOG`: it keeps none.
    lsn: u64,
    /// LSN up to which the standby's log was durable; 0: it is not known.
    persisted: u64,
    in_sync: bool,
    counted: bool,
    /// True if the standby was in sync when the epoch of this list ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    was_in_sync: bool,
    /// URL at which the standby was reached last. None: it is not known, or an operator had this server lead since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    /// Identity of the standby's directory, in hexadecimal digits. None: it told none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<String>,
}

impl StoredMember {
    /// Makes a standby of which only the name and `from` are known: it needs the log from there.
    fn unknown(name: &str, from: Lsn) -> Self {
        Self {
            name: name.to_owned(),
            lsn: from.0,
            persisted: 0,
            in_sync: false,
            counted: false,
            was_in_sync: false,
            url: None,
            node: None,
        }
    }

    fn of(standby: &Member) -> Self {
        Self {
            name: standby.name.to_string(),
            lsn: standby.from.0,
            persisted: standby.persisted.0,
            in_sync: standby.is_in_sync,
            counted: standby.is_counted,
            was_in_sync: false,
            url: standby.url.as_deref().map(str::to_owned),
            node: standby.node.map(|node| format!("{node:016x}")),
        }
    }

    fn to_member(&self) -> Member {
        Member {
            name: self.name.as_str().into(),
            from: Lsn(self.lsn),
            persisted: Lsn(self.persisted),
            is_in_sync: self.in_sync,
            is_counted: self.counted,
            url: self.url.as_deref().map(Into::into),
            node: self.node.as_ref().and_then(|node| u64::from_str_radix(node, 16).ok()),
        }
    }

    /// Returns the address at which a start asks whether another server leads.
    pub fn address(&self) -> Option<MemberAddress> {
        let url = self.url.as_deref().filter(|url| !url.is_empty())?;
        Some(MemberAddress {
            name: self.name.clone(),
            url: url.to_owned(),
        })
    }

    /// Has the next start not ask the standby.
    pub fn forget_address(&mut self) {
        self.url = None;
    }

    pub fn describe(&self) -> String {
        let part = match (self.in_sync, self.counted) {
            (true, _) => "in sync",
            (false, true) => "out of sync, and it counts",
            (false, false) => "out of sync",
        };
        match self.persisted {
            0 => format!("{}: {part}", self.name),
            lsn => format!("{}: {part}, had everything before LSN {lsn}", self.name),
        }
    }

    /// Takes the standby for out of sync: it has what another level asked for.
    pub fn leave_sync(&mut self) {
        self.in_sync = false;
    }

    /// Ends the epoch in which it was in sync.
    fn end(&mut self) {
        self.was_in_sync |= self.in_sync;
        (self.in_sync, self.persisted) = (false, 0);
    }

    fn is_ended(&self) -> bool {
        !self.in_sync && self.persisted == 0
    }
}

impl Database {
    /// Returns the standbys that this primary has no connection to, where another primary may be found among them. None: this server does not
    /// lead, or a lease decides who does.
    pub fn lost_members(&self) -> Option<Vec<MemberAddress>> {
        let info = self.router.replication()?.info();
        if info.role != Role::Primary || info.lease.is_some() {
            return None;
        }
        // A standby that has another name since then is still listed under its old one.
        let is_other = |member: &MemberAddress| Some(&*member.url) != info.primary.as_deref();
        let is_lost = |member: &MemberAddress| {
            let known = info.standbys.iter().find(|standby| standby.name == member.name);
            known.is_some_and(|standby| standby.state == StandbyPhase::Lost)
        };
        let members = self.node()?.read(NodeDocument::members_to_ask);
        Some(members.into_iter().filter(is_lost).filter(is_other).collect())
    }
}

pub(crate) fn load(node: &NodeFile) -> Vec<Member> {
    node.read(|document| document.members.iter().map(StoredMember::to_member).collect())
}

/// Returns the standbys that were out of sync with this server when it led last, and from which LSN on.
pub(crate) fn laggards(node: &NodeFile) -> Vec<LaggingStandby> {
    let is_out = |member: &&StoredMember| !member.in_sync && !member.was_in_sync;
    let lagging = |member: &StoredMember| LaggingStandby {
        from: Lsn(member.persisted),
        name: member.name.clone(),
    };
    node.read(|document| document.members.iter().filter(is_out).map(lagging).collect())
}

/// Returns the standbys that count, and were out of sync with this server when it led last.
pub(crate) fn counted_away(node: &NodeFile) -> Vec<String> {
    let is_away = |member: &&StoredMember| member.counted && !member.in_sync;
    let name = |member: &StoredMember| member.name.clone();
    node.read(|document| document.members.iter().filter(is_away).map(name).collect())
}

pub(crate) fn save(node: &NodeFile, standbys: &[Member]) -> Result<(), DiskError> {
    node.change(|document| document.members = standbys.iter().map(StoredMember::of).collect())
}

/// The list that a primary saved last. With a lease, a standby that may take over reads the store first.
pub(crate) struct Membership {
    node: Arc<NodeFile>,
    saved: Mutex<Vec<Member>>,
}

impl Membership {
    /// Makes the list from `saved`, which was read from the document.
    pub fn new(node: Arc<NodeFile>, saved: Vec<Member>) -> Self {
        let saved = Mutex::new(saved);
        Self { node, saved }
    }

    /// Saves the list. While the lease store does not have it (`is_recorded` is false), a leaving standby still counts, and callers wait
    /// for a new one already. The next start must know both.
    pub fn save(&self, standbys: &[Member], is_recorded: bool) -> Result<(), DiskError> {
        let mut saved = self.saved.lock().expect("nothing panics under this lock");
        let mut next = standbys.to_vec();
        if !is_recorded {
            let was_in = |name: &str| saved.iter().any(|before| *before.name == *name && before.is_in_sync);
            next.iter_mut()
                .for_each(|standby| standby.is_in_sync |= was_in(&standby.name));
            let comes = |standby: &&Member| standby.is_in_sync && !was_in(&standby.name);
            if next.iter().find(comes).is_none() {
                return Ok(());
            }
        }
        save(&self.node, &next)?;
        *saved = next;
        Ok(())
    }
}

/// Records, for a server that becomes the primary, that no standby is in sync with it and that their positions are not known. They may have
/// followed another primary. The server holds the log for them as before, and for its `siblings`: the other standbys of the former primary.
/// Without that, the next checkpoint would release log that they still need. A sibling may be promoted, too, so the server asks it at the
/// address that the former primary told. The server saves this before its first answer, because its next start relies on it.
pub(crate) fn begin_epoch(document: &mut NodeDocument, siblings: &[LaggingStandby]) {
    let members = &mut document.members;
    for member in &mut *members {
        member.end();
        member.was_in_sync = false;
    }
    for sibling in siblings {
        match members.iter_mut().find(|member| member.name == sibling.name) {
            Some(member) if member.lsn == NO_LOG.0 => member.lsn = sibling.from.0,
            Some(_) => {}
            None => members.push(StoredMember::unknown(&sibling.name, sibling.from)),
        }
    }
    let told = document.status.iter().flat_map(|status| &status.others);
    for other in told.filter(|other| !other.url.is_empty()) {
        let found = members.iter_mut().find(|member| member.name == other.name);
        if let Some(member) = found {
            member.url = Some(other.url.clone());
        }
    }
}

/// Makes these standbys count, and no others.
pub(crate) fn count_on(members: &mut Vec<StoredMember>, set: &[PeerMember]) {
    let is_in = |name: &str| set.iter().any(|member| member.name == name);
    members
        .iter_mut()
        .for_each(|member| member.counted = is_in(&member.name));
    for counted in set {
        if members.iter().all(|member| member.name != counted.name) {
            members.push(StoredMember {
                counted: true,
                url: Some(counted.url.clone()).filter(|url| !url.is_empty()),
                ..StoredMember::unknown(&counted.name, counted.from)
            });
        }
    }
}

/// Records, for a server that takes the log of another primary, that its standbys may lack writes which that primary acknowledged. None is
/// in sync, and their positions are not known. A standby that was in sync does not lag behind this server.
pub(crate) fn end_reign(node: &NodeFile) -> Result<(), DiskError> {
    node.change(|document| end_members(&mut document.members))
}

pub(crate) fn end_members(members: &mut [StoredMember]) {
    members.iter_mut().for_each(StoredMember::end);
}

/// True if `end_reign` has something to change.
pub(crate) fn may_have_led(node: &NodeFile) -> bool {
    node.read(|document| !document.members.iter().all(StoredMember::is_ended))
}

/// Records, for a server that opens as the primary, that no standby is in sync because of an earlier epoch. A standby that is not in sync
/// lags behind.
pub(crate) fn open_reign(node: &NodeFile) -> Result<(), DiskError> {
    node.change(|document| {
        document
            .members
            .iter_mut()
            .for_each(|member| member.was_in_sync = false);
        // The server follows no primary any more.
        (document.status, document.follows) = (None, false);
    })
}

#[cfg(test)]
mod tests {
    use reprise_env::SimDisk;

    use super::*;

    fn node() -> Arc<NodeFile> {
        NodeFile::open(Arc::new(SimDisk::new())).expect("an empty one")
    }

    /// Parses a list with one word for each standby: `+` if it is in sync, then the LSN that it needs and has.
    fn list(words: &str) -> Vec<Member> {
        let standby = |word: &str| {
            let (name, lsn) = word.trim_start_matches('+').split_once('@').expect("NAME@LSN");
            let lsn = Lsn(lsn.parse().expect("a number"));
            Member {
                name: name.into(),
                from: lsn,
                persisted: lsn,
                is_in_sync: word.starts_with('+'),
                is_counted: true,
                url: None,
                node: None,
            }
        };
        words.split_whitespace().map(standby).collect()
    }

    #[test]
    fn standby_in_sync_in_an_epoch_that_ended_is_neither_in_sync_nor_a_laggard_until_the_next_one() {
        let node = node();
        end_reign(&node).expect("there is no list");
        open_reign(&node).expect("there is no list");
        save(&node, &list("+s1@9 s2@7")).expect("saved");
        assert_eq!(load(&node), list("+s1@9 s2@7"));
        let out = || -> Vec<(String, u64)> {
            let out = laggards(&node).into_iter();
            out.map(|laggard| (laggard.name, laggard.from.0)).collect()
        };
        assert_eq!(out(), [("s2".to_owned(), 7)]);
        open_reign(&node).expect("nothing is to be done");
        assert!(
            load(&node)[0].is_in_sync && may_have_led(&node),
            "its own epoch goes on"
        );
        for again in [false, true] {
            end_reign(&node).expect("saved");
            assert_eq!(out(), [("s2".to_owned(), 0)], "{again}");
            let left = load(&node);
            let is_ended = |standby: &Member| !standby.is_in_sync && standby.persisted == Lsn(0);
            assert!(left.iter().all(is_ended) && left[0].is_counted, "{left:?}");
            assert_eq!(
                (left[0].from, left[1].from),
                (Lsn(9), Lsn(7)),
                "the log is held as before"
            );
            assert!(!may_have_led(&node));
        }
        let both = [("s1".to_owned(), 0), ("s2".to_owned(), 0)];
        let ended = node.document().members;
        open_reign(&node).expect("saved");
        assert_eq!(out(), both);
        // A promotion makes the same change, and keeps reporting a standby that lags behind.
        node.change(|document| document.members = ended).expect("saved");
        let laggard = LaggingStandby {
            name: "s3".into(),
            from: Lsn(5),
        };
        node.change(|document| begin_epoch(document, &[laggard]))
            .expect("saved");
        assert_eq!(out(), [both[0].clone(), both[1].clone(), ("s3".to_owned(), 0)]);
        assert_eq!(load(&node)[2].from, Lsn(5));
        // The server kept no log for it when it led last.
        let known = Member {
            from: NO_LOG,
            ..list("s3@1").remove(0)
        };
        save(&node, &[known]).expect("saved");
        let sibling = LaggingStandby {
            name: "s3".into(),
            from: Lsn(8),
        };
        node.change(|document| begin_epoch(document, &[sibling]))
            .expect("saved");
        assert_eq!((load(&node).len(), load(&node)[0].from), (1, Lsn(8)));
    }

    #[test]
    fn standby_that_leaves_or_comes_is_in_sync_until_the_store_has_that() {
        let node = node();
        let keeping = Membership::new(node.clone(), list("s1@1 s2@1"));
        for (members, is_recorded, kept) in [
            ("+s1@1 s2@1", false, "+s1@1 s2@1"),
            ("+s1@1 +s2@1", true, "+s1@1 +s2@1"),
            ("s1@1 +s2@1", false, "+s1@1 +s2@1"),
            ("s1@1 +s2@1 +s3@1", false, "+s1@1 +s2@1 +s3@1"),
            ("s1@1 +s2@1", true, "s1@1 +s2@1"),
        ] {
            keeping.save(&list(members), is_recorded).expect("saved");
            assert_eq!(load(&node), list(kept), "{members}");
        }
    }
}
