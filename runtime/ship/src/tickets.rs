//! Tickets. A standby that was authenticated in another way shows one, once, within a minute.

use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use reprise_base::Joiner;

/// How long a ticket holds.
const HOLDS: Duration = Duration::from_secs(60);
/// Limit of the tickets that no standby has shown yet: beyond it the oldest is void.
const TICKETS_MAX: usize = 64;

struct IssuedTicket {
    ticket: [u8; 16],
    joiner: Joiner,
    until_ns: u64,
}

#[derive(Default)]
pub(crate) struct Tickets(Mutex<Vec<IssuedTicket>>);

impl Tickets {
    fn lock(&self) -> MutexGuard<'_, Vec<IssuedTicket>> {
        self.0.lock().expect("held for a short time")
    }

    pub fn issue(&self, ticket: [u8; 16], joiner: Joiner, now_ns: u64) {
        let mut issued = self.lock();
        issued.retain(|issued| issued.until_ns > now_ns);
        if issued.len() >= TICKETS_MAX {
            issued.remove(0);
        }
        issued.push(IssuedTicket {
            ticket,
            joiner,
            until_ns: now_ns + HOLDS.as_nanos() as u64,
        });
    }

    /// Returns the standby to which the ticket was given, if it has this name. The ticket is used up then, also if it comes too late or with another
    /// name.
    pub fn redeem(&self, ticket: &[u8; 16], name: &str, now_ns: u64) -> Option<Joiner> {
        let mut issued = self.lock();
        let at = issued.iter().position(|issued| is_same(&issued.ticket, ticket))?;
        let found = issued.remove(at);
        (found.until_ns > now_ns && *found.joiner.name == *name).then_some(found.joiner)
    }
}

/// Compares in a time that does not depend on the place of a difference.
fn is_same(one: &[u8; 16], other: &[u8; 16]) -> bool {
    one.iter().zip(other).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_holds_once_for_its_name_and_a_minute() {
        let tickets = Tickets::default();
        let is_good = |ticket: &[u8; 16], name: &str, now_ns| tickets.redeem(ticket, name, now_ns).is_some();
        let minute = HOLDS.as_nanos() as u64;
        for byte in 0..4 {
            tickets.issue([byte; 16], "s1".into(), 0);
        }
        assert!(is_good(&[0; 16], "s1", minute - 1));
        assert!(!is_good(&[0; 16], "s1", 1));
        assert!(!is_good(&[1; 16], "s2", 1) && !is_good(&[1; 16], "s1", 1));
        assert!(!is_good(&[2; 16], "s1", minute));
        assert!(!is_good(&[9; 16], "s1", 1));
        for number in 0..TICKETS_MAX as u8 {
            tickets.issue([100 + number; 16], "s1".into(), 2);
        }
        assert!(!is_good(&[3; 16], "s1", 3), "the oldest gave way");
        assert!(is_good(&[100; 16], "s1", 3));
    }
}
