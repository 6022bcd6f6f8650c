//! The sync status that the primary sends to a standby, and the time that the standby has to save it.

use std::time::Duration;

use reprise_env::Connection;
use reprise_wire::{Frame, MemberSeen, Progress, SyncUpdate};

use crate::{connection::send, session::SessionEnd, shipper::ShipperInner};

/// Time in which a standby saves a sync status, beside the way there and back. A standby that takes longer is disconnected.
const NOTE_TIME: Duration = Duration::from_secs(2);

/// A sync status that was sent.
#[derive(Clone, Copy)]
pub(crate) struct SentStatus {
    number: u64,
    /// Time since which the standby has not confirmed that it saved one. None: it owes no confirmation.
    since_ns: Option<u64>,
    /// When the standby was welcomed.
    welcomed_ns: u64,
    /// How long the standby took to answer that: a frame there and one back take no longer. None: it has not answered.
    round_trip_ns: Option<u64>,
}

impl SentStatus {
    pub fn new(welcomed_ns: u64) -> Self {
        Self {
            number: 0,
            since_ns: None,
            welcomed_ns,
            round_trip_ns: None,
        }
    }

    pub fn record_progress(&mut self, progress: &Progress, now_ns: u64) {
        let round_trip_ns = now_ns.saturating_sub(self.welcomed_ns);
        self.round_trip_ns.get_or_insert(round_trip_ns);
        if progress.saved_status >= self.number {
            self.since_ns = None;
        }
    }

    /// Sends the connection's standby which standbys are in sync, if that has changed since this connection sent it last.
    pub fn send_if_changed(
        &mut self,
        shipper: &ShipperInner,
        name: &str,
        number: u64,
        connection: &mut Connection,
        now_ns: u64,
    ) -> Result<(), SessionEnd> {
        if self.number != shipper.table.sync_number()
            && let Some(now) = shipper.table.status_for(name, number)
        {
            let members = now.members.iter().map(|member| MemberSeen {
                name: &member.name,
                url: &member.url,
                from: member.from,
                is_in_sync: member.is_in_sync,
                set: member.set,
            });
            let packed = SyncUpdate::pack(members);
            let standing = SyncUpdate::new(now.number, now.in_sync, now.set, &packed);
            send(connection, &Frame::Standing(standing))?;
            self.number = now.number;
            self.since_ns.get_or_insert(now_ns);
        }
        match self.is_late(now_ns) {
            true => Err(SessionEnd::NotNoted),
            false => Ok(()),
        }
    }

    /// Whether the standby takes too long. Before its first answer the silence of the connection counts.
    fn is_late(&self, now_ns: u64) -> bool {
        let (Some(since_ns), Some(round_trip_ns)) = (self.since_ns, self.round_trip_ns) else {
            return false;
        };
        now_ns.saturating_sub(since_ns) > NOTE_TIME.as_nanos() as u64 + round_trip_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn standby_on_a_late_wire_has_the_way_there_and_back_to_keep_a_standing() {
        let mut sent = SentStatus::new(10 * SECOND_NS);
        (sent.number, sent.since_ns) = (7, Some(10 * SECOND_NS));
        assert!(!sent.is_late(13 * SECOND_NS), "it has not answered the welcome");
        sent.record_progress(&Progress::default(), 12 * SECOND_NS);
        assert!(!sent.is_late(14 * SECOND_NS) && sent.is_late(14 * SECOND_NS + 1));
        let noted = Progress {
            saved_status: 7,
            ..Progress::default()
        };
        sent.record_progress(&noted, 14 * SECOND_NS);
        assert!(!sent.is_late(60 * SECOND_NS), "it owes nothing");
        sent.since_ns = Some(60 * SECOND_NS);
        assert!(!sent.is_late(64 * SECOND_NS) && sent.is_late(64 * SECOND_NS + 1));
    }
}
