//! The decision whether a standby may have the log. If it may not, the primary sends the reason.

use reprise_base::{Epoch, Joiner, Lsn, check_node_name};
use reprise_log::{LogError, Position};
use reprise_wire::{FORMAT_VERSION, Hello, Progress, SHIP_PROTOCOL, StandbyRefusal, Wants};

use crate::{source::ShippedLog, tickets::Tickets};

/// Why the primary refuses a standby.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JoinRefusal {
    pub refusal: StandbyRefusal,
    pub reason: String,
}

impl JoinRefusal {
    pub fn new(refusal: StandbyRefusal, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self { refusal, reason }
    }
}

/// Checks the greeting alone: the standby's name and ticket, and its protocol.
pub(crate) fn check_greeting(hello: &Hello<'_>, tickets: &Tickets, now_ns: u64) -> Result<Joiner, JoinRefusal> {
    if hello.protocol != SHIP_PROTOCOL {
        let reason = format!(
            "this primary speaks protocol {SHIP_PROTOCOL}, the standby {}",
            hello.protocol
        );
        return Err(JoinRefusal::new(StandbyRefusal::Version, reason));
    }
    check_node_name(hello.name).map_err(|reason| JoinRefusal::new(StandbyRefusal::Name, reason))?;
    tickets.redeem(&hello.ticket, hello.name, now_ns).ok_or_else(|| {
        JoinRefusal::new(
            StandbyRefusal::Ticket,
            "the ticket is not one of this primary's for that name, or it is older than a minute, or used",
        )
    })
}

/// Compares a standby's position with the log. None: it wants files. Otherwise the position to continue at.
pub(crate) fn check_position(
    hello: &Hello<'_>,
    log: &dyn ShippedLog,
    partitions: u16,
) -> Result<Option<Position>, JoinRefusal> {
    if hello.format != FORMAT_VERSION {
        let found = hello.format;
        let reason =
            format!("this primary writes format version {FORMAT_VERSION}, the standby {found}: run the same program");
        return Err(JoinRefusal::new(StandbyRefusal::Version, reason));
    }
    if hello.wants == Wants::Files {
        return Ok(None);
    }
    if hello.database_id != log.database_id() {
        let reason = "the standby's files are another database's";
        return Err(JoinRefusal::new(StandbyRefusal::Database, reason));
    }
    if hello.partitions != partitions {
        let reason = format!(
            "the primary has {partitions} partitions, the standby {}",
            hello.partitions
        );
        return Err(JoinRefusal::new(StandbyRefusal::Partitions, reason));
    }
    let (epoch, lsn, history) = hello.position;
    if epoch.is_after(log.epoch()) {
        let reason = format!(
            "the standby has seen epoch {epoch}, this server is of epoch {}: it was deposed",
            log.epoch()
        );
        return Err(JoinRefusal::new(StandbyRefusal::Diverged, reason));
    }
    if is_forked(epoch, lsn, log) {
        return Err(diverged(
            lsn,
            log,
            "an epoch begins before it there that its records are not of",
        ));
    }
    let copied = log.copied(); // before the look, so that no record comes between
    let known = match log.history_at(lsn) {
        Ok(known) => known,
        Err(error) => return Err(unreadable(&error)),
    };
    match known {
        Some(known) if known == history => Ok(Some(Position { epoch, lsn, history })),
        Some(_) => Err(diverged(lsn, log, "other records lie before it there than here")),
        // The standby has what the primary sent while it wrote the record here. Once the files have the record, the two can be compared.
        None if lsn > copied && lsn <= log.filled() => {
            let reason = format!("the standby is at LSN {lsn}, which is not in the primary's files yet");
            Err(JoinRefusal::new(StandbyRefusal::Unavailable, reason))
        }
        None if lsn > copied => Err(diverged(lsn, log, "it is beyond what this primary holds")),
        None => Err(gone(lsn)),
    }
}

/// Whether records before the LSN are of an epoch behind the standby's, or of another one with its count. The epoch of a standby without
/// records of it is this primary's own.
fn is_forked(epoch: Epoch, lsn: Lsn, log: &dyn ShippedLog) -> bool {
    let epochs = log.epochs();
    let is_known = epoch == log.epoch() || epochs.iter().any(|start| start.epoch == epoch);
    let mut before = epochs.iter().filter(|start| start.start < lsn);
    before.any(|start| start.epoch.is_after(epoch) || (!is_known && start.epoch.count() == epoch.count()))
}

fn unreadable(error: &LogError) -> JoinRefusal {
    JoinRefusal::new(
        StandbyRefusal::Unavailable,
        format!("the primary's log can't be read: {error}"),
    )
}

fn diverged(lsn: Lsn, log: &dyn ShippedLog, why: &str) -> JoinRefusal {
    let durable = log.durable();
    let reason = format!(
        "the standby is at LSN {lsn}, the primary at {durable}: {why}. Start it again: what is too much is kept aside and cut off"
    );
    JoinRefusal::new(StandbyRefusal::Diverged, reason)
}

/// Checks whether the standby may cut off its records that are not here: it was not written to in a later epoch.
pub(crate) fn may_be_cut(hello: &Hello<'_>, verdict: &JoinRefusal, log: &dyn ShippedLog) -> bool {
    verdict.refusal == StandbyRefusal::Diverged && !hello.position.0.is_after(log.epoch())
}

/// Refuses the word of a standby for another primary's epoch.
pub(crate) fn check_epoch(progress: &Progress, own: Epoch) -> Result<(), JoinRefusal> {
    match progress.epoch == own {
        true => Ok(()),
        false => {
            let reason = format!("it speaks of epoch {}, and this primary's is {own}", progress.epoch);
            Err(JoinRefusal::new(StandbyRefusal::Unavailable, reason))
        }
    }
}

/// Returns the refusal of a standby that needs log which is not kept any more.
pub(crate) fn gone(lsn: Lsn) -> JoinRefusal {
    let reason = format!("the log from LSN {lsn} on is gone here: the standby begins anew in an empty directory");
    JoinRefusal::new(StandbyRefusal::Gone, reason)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use reprise_base::Epoch;
    use reprise_log::{DestageDemand, EpochStart, GroupSink, LogReader, ReplicationSlot};
    use reprise_wire::History;

    use super::*;

    /// In the files to LSN 10, kept from 5 on. One more record is durable in NVRAM alone, and 2 more are being written.
    struct Written;

    impl ShippedLog for Written {
        fn database_id(&self) -> [u8; 16] {
            [7; 16]
        }

        fn epoch(&self) -> Epoch {
            Epoch::new(2, 0)
        }

        fn durable(&self) -> Lsn {
            Lsn(11)
        }

        fn copied(&self) -> Lsn {
            Lsn(10)
        }

        fn filled(&self) -> Lsn {
            Lsn(13)
        }

        fn answered_max(&self) -> Lsn {
            Lsn(10)
        }

        fn history_at(&self, lsn: Lsn) -> Result<Option<History>, LogError> {
            Ok((5..=10).contains(&lsn.0).then_some(History(77)))
        }

        fn epochs(&self) -> Vec<EpochStart> {
            vec![EpochStart {
                epoch: Epoch::new(2, 0),
                start: Lsn(6),
                history: History(77),
            }]
        }

        fn reader(&self, _: Lsn) -> Result<LogReader, LogError> {
            unreachable!("nothing is read to check")
        }

        fn hold(&self, _: &str, _: Lsn) -> Result<ReplicationSlot, LogError> {
            unreachable!("nothing is held to check")
        }

        fn bytes_between(&self, _: Lsn, _: Lsn) -> u64 {
            0
        }

        fn add_sink(&self, _: Arc<dyn GroupSink>) {}

        fn follow(&self) -> Option<DestageDemand> {
            None
        }
    }

    #[test]
    fn a_position_is_compared_where_it_can_be() {
        let checked_of = |epoch: Epoch, lsn, history| {
            let hello = Hello {
                protocol: SHIP_PROTOCOL,
                wants: Wants::Log,
                format: FORMAT_VERSION,
                database_id: [7; 16],
                partitions: 4,
                position: (epoch, Lsn(lsn), History(history)),
                ticket: [0; 16],
                name: "s1",
            };
            let checked = check_position(&hello, &Written, 4);
            checked
                .map(|position| position.map(|at| at.lsn.0))
                .map_err(|verdict| verdict.refusal)
        };
        let checked = |count, lsn, history| checked_of(Epoch::new(count, 0), lsn, history);
        assert_eq!(checked(2, 10, 77), Ok(Some(10)));
        assert_eq!(checked(1, 5, 77), Ok(Some(5)));
        assert_eq!(checked(1, 5, 78), Err(StandbyRefusal::Diverged));
        assert_eq!(checked(1, 4, 77), Err(StandbyRefusal::Gone));
        assert_eq!(checked(3, 10, 77), Err(StandbyRefusal::Diverged));
        // Its records are of other epochs, whatever the sums say.
        assert_eq!(checked(1, 7, 77), Err(StandbyRefusal::Diverged));
        assert_eq!(checked_of(Epoch::new(2, 1), 10, 77), Err(StandbyRefusal::Diverged));
        assert_eq!(checked_of(Epoch::new(2, 1), 6, 77), Ok(Some(6)));
        // A record that was sent before it was durable here may have arrived there: that passes.
        assert_eq!(checked(2, 11, 77), Err(StandbyRefusal::Unavailable));
        assert_eq!(checked(2, 13, 77), Err(StandbyRefusal::Unavailable));
        assert_eq!(checked(2, 14, 77), Err(StandbyRefusal::Diverged));
    }
}
