//! Changes of the set that `quorum` counts on: a standby joins it, or the operator has it forgotten. While a change is under way, both sets count. It
//! is complete once no promotion can miss the new set, because enough standbys know of it (`reprise_failover::is_confirmed`).

use reprise_base::Safety;
use reprise_failover::{NodeId, NodeSet, is_confirmed};
use reprise_wire::SetPart;

use crate::{
    member::{Member, StandbyEntry},
    safety::{SafetyMember, SafetyStatus, SyncState, safety_status},
    table::StandbyTableState,
};

impl StandbyEntry {
    /// Returns its part in the set, and in the one to which a change is under way.
    pub fn part(&self) -> SetPart {
        SetPart {
            is_in: self.is_counted,
            is_in_next: (self.is_counted && !self.is_forgotten) || self.joins.is_some(),
        }
    }

    fn has_saved(&self, number: u64) -> bool {
        self.connection != 0 && self.saved_status >= number
    }
}

impl StandbyTableState {
    fn parts(&self) -> impl Iterator<Item = (&StandbyEntry, SetPart)> {
        self.standbys.values().map(|standby| (standby, standby.part()))
    }

    fn is_changing(&self) -> bool {
        self.parts().any(|(_, part)| part.is_in != part.is_in_next)
    }

    /// Whether enough standbys know of the change that the sync status of this number told first.
    fn is_confirmed(&self, number: u64) -> bool {
        let standbys: Vec<_> = self.parts().collect();
        let set = |is: &dyn Fn(SetPart) -> bool| -> NodeSet {
            let members = (0..).zip(&standbys).filter(|(_, (_, part))| is(*part));
            members.map(|(at, _)| NodeId(at)).collect()
        };
        let (from, to) = (set(&|part| part.is_in), set(&|part| part.is_in_next));
        let knows = |node: NodeId| standbys[node.0 as usize].0.has_saved(number);
        is_confirmed(Safety::Quorum, &from, &to, &knows)
    }

    /// Checks whether enough standbys know which standbys leave.
    pub fn is_leaving_confirmed(&self, level: Safety) -> bool {
        let mut all = self.standbys.values();
        let do_all_know = all.all(|standby| !standby.gets_status() || standby.saved_status >= self.left);
        let is_forgotten = |(standby, part): (&StandbyEntry, SetPart)| part.is_in && standby.is_forgotten;
        let is_smaller = level == Safety::Quorum && self.parts().any(is_forgotten);
        do_all_know && (!is_smaller || (self.is_confirmed(self.left) && self.has_enough()))
    }

    /// Checks whether enough of the standbys that stay have what was answered with the help of the leaving ones. Enough is the number that a write
    /// asks for.
    fn has_enough(&self) -> bool {
        let next = self.next_members();
        let stays = next.iter().any(|member| member.is_counted);
        !stays || safety_status(Safety::Quorum, true, &next).limit >= Some(self.forgot_at)
    }

    fn next_members(&self) -> Vec<SafetyMember> {
        self.parts().map(|(standby, part)| next_member(standby, part)).collect()
    }

    /// Has one standby join the set that has everything; it counts once enough of the others know, and that is saved.
    pub fn advance_joining(&mut self, level: Safety) {
        if level != Safety::Quorum {
            return;
        }
        if !self.is_changing() {
            let next = self.sync_number + 1;
            let comes = self
                .standbys
                .values_mut()
                .find(|standby| standby.is_there() && !standby.is_counted);
            if let Some(standby) = comes {
                standby.joins = Some(next);
                self.sync_number = next;
            }
        }
        let joins = self.standbys.values().find_map(|standby| standby.joins);
        if joins.is_some_and(|number| self.is_confirmed(number)) {
            for standby in self.standbys.values_mut() {
                standby.is_confirmed |= standby.joins.is_some();
            }
        }
    }

    /// Records that a standby counts from now on if it is saved as one that does.
    pub fn record_counted(&mut self, kept: &[Member]) {
        for kept in kept.iter().filter(|kept| kept.is_counted) {
            let Some(standby) = self.standbys.get_mut(&kept.name).filter(|standby| standby.is_confirmed) else {
                continue;
            };
            (standby.is_counted, standby.is_confirmed, standby.joins) = (true, false, None);
            if standby.is_there() {
                standby.sync = SyncState::In;
            }
            self.sync_number += 1;
        }
    }

    /// Returns the stand of writes of the server's level now.
    pub fn status_of(&self, level: Safety) -> SafetyStatus {
        let now = safety_status(level, true, &self.members());
        if level != Safety::Quorum || !self.is_changing() {
            return now;
        }
        let next = safety_status(level, true, &self.next_members());
        SafetyStatus {
            limit: now.limit.min(next.limit),
            refusal: now.refusal.or(next.refusal),
            missing: now.missing.or(next.missing),
            reached: match now.reached {
                Safety::Quorum => next.reached,
                reached => reached,
            },
        }
    }
}

fn next_member(standby: &StandbyEntry, part: SetPart) -> SafetyMember {
    let member = standby.member();
    SafetyMember {
        is_counted: part.is_in_next,
        sync: match standby.joins {
            Some(_) => SyncState::In,
            None => member.sync,
        },
        ..member
    }
}
