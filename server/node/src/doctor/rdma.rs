//! Checks whether standbys can be connected over RDMA: cards and ports, the card that would be used, and the missing parts.

use reprise_net_rdma::{CardSeen, RdmaNet, VerbsError, cards_seen};

use super::{Finding, Machine};
use crate::{output::bytes, standby::TCP_ON_REQUEST};

const SUBJECT: &str = "rdma";
/// The bit of `CAP_IPC_LOCK`, which lifts any limit of locked memory.
const LOCKS_ANY: u64 = 1 << 14;
/// Bytes that a primary locks for each standby: the groups on their way to all of them, and the connection's ring. A standby locks its
/// ring.
const PRIMARY_LOCKS: u64 = 25 << 20;
const STANDBY_LOCKS: u64 = 5 << 20;

pub fn examine(machine: &Machine) -> Vec<Finding> {
    let seen = cards_seen();
    let used = match &seen {
        Ok(cards) if !cards.is_empty() => Some(RdmaNet::of_this_machine(None).map(|(_, card)| card)),
        _ => None,
    };
    check_cards(machine, seen, used)
}

/// Checks the cards. `used`: the one that is used if neither a card nor an address is named, if any.
fn check_cards(
    machine: &Machine,
    seen: Result<Vec<CardSeen>, VerbsError>,
    used: Option<Result<String, VerbsError>>,
) -> Vec<Finding> {
    let known = machine.names("sys/class/infiniband");
    let cards = match seen {
        Err(error) if known.is_empty() => {
            return vec![Finding::good(SUBJECT, format!("no device ({error}): {TCP_ON_REQUEST}"))];
        }
        Err(error) => return vec![unusable(error.to_string())],
        Ok(cards) if cards.is_empty() => {
            return vec![Finding::good(SUBJECT, format!("no device: {TCP_ON_REQUEST}"))];
        }
        Ok(cards) => cards,
    };
    let mut findings: Vec<Finding> = cards.iter().flat_map(of_card).collect();
    findings.extend(used.map(|used| match used {
        Ok(card) => Finding::good(
            SUBJECT,
            format!("default card, unless you name another or listen on its address: {card}"),
        ),
        Err(error) => unusable(error.to_string()),
    }));
    findings.extend(locked_memory(machine));
    findings
}

fn unusable(found: String) -> Finding {
    Finding::warning(SUBJECT, found, TCP_ON_REQUEST)
}

fn of_card(card: &CardSeen) -> Vec<Finding> {
    let name = &card.name;
    match &card.ports {
        Err(error) => vec![unusable(format!("{name}: {error}"))],
        Ok(ports) if ports.is_empty() => vec![Finding::warning(
            SUBJECT,
            format!("{name}: no port is up"),
            format!("bring the port up (`rdma link show`, `ip link set DEVICE up`); {TCP_ON_REQUEST}"),
        )],
        Ok(ports) => {
            let line = |port| Finding::good(SUBJECT, format!("{name} {port}"));
            ports.iter().map(line).collect()
        }
    }
}

/// Checks the limit of locked memory, because each connection has memory that must not be swapped.
fn locked_memory(machine: &Machine) -> Option<Finding> {
    let limits = machine.read("proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    let limit: u64 = line.split_whitespace().next()?.parse().ok()?; // or "unlimited"
    let status = machine.read("proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = effective.and_then(|rights| u64::from_str_radix(rights.trim(), 16).ok());
    if limit >= PRIMARY_LOCKS || rights.is_some_and(|rights| rights & LOCKS_ANY != 0) {
        return None;
    }
    let (primary, standby) = (bytes(PRIMARY_LOCKS), bytes(STANDBY_LOCKS));
    Some(Finding::warning(
        SUBJECT,
        format!(
            "a process may lock {} of memory: a primary needs {primary} for each standby, and a standby needs {standby}",
            bytes(limit)
        ),
        format!(
            "run `ulimit -l unlimited` before the server starts, or set LimitMEMLOCK=infinity in its systemd unit; {TCP_ON_REQUEST}"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{State, tests::machine},
        *,
    };

    fn findings(machine: &Machine, seen: Result<Vec<CardSeen>, VerbsError>) -> Vec<(State, String)> {
        let used = Some(Ok("rxe0 port 1".to_owned()));
        let findings = check_cards(machine, seen, used).into_iter();
        findings.map(|finding| (finding.state, finding.found)).collect()
    }

    fn card(ports: Result<Vec<String>, VerbsError>) -> Result<Vec<CardSeen>, VerbsError> {
        let name = "rxe0".to_owned();
        Ok(vec![CardSeen { name, ports }])
    }

    fn failed(reason: &str) -> VerbsError {
        let reason = reason.to_owned();
        VerbsError::Failed {
            what: "open the RDMA card",
            reason,
        }
    }

    #[test]
    fn each_missing_part_is_one_line() {
        let (_dir, without) = machine(&[]);
        let (_dir, with) = machine(&[("sys/class/infiniband/rxe0/node_type", "1")]);
        let no_library = VerbsError::NoLibrary {
            reason: "no such file".into(),
        };
        type Case<'a> = (&'a Machine, Result<Vec<CardSeen>, VerbsError>, State, &'a str);
        let cases: [Case<'_>; 6] = [
            (
                &without,
                Err(no_library.clone()),
                State::Good,
                "no device (rdma-core can't be loaded (no such file): install it (Debian: libibverbs1 ibverbs-providers))",
            ),
            (&with, Err(no_library), State::Warning, "rdma-core can't be loaded"),
            (&without, Ok(Vec::new()), State::Good, "no device: with --transport tcp"),
            (
                &without,
                Err(VerbsError::NoDevice("this kernel has no RDMA".into())),
                State::Good,
                "no device (this kernel has no RDMA)",
            ),
            (
                &with,
                Err(VerbsError::NoDevice("rdma-core has no driver for rxe0".into())),
                State::Warning,
                "no driver for rxe0",
            ),
            (
                &with,
                card(Err(failed("permission denied"))),
                State::Warning,
                "rxe0: open the RDMA card: permission denied",
            ),
        ];
        for (machine, seen, state, text) in cases {
            let findings = findings(machine, seen);
            assert!(findings[0].0 == state && findings[0].1.contains(text), "{findings:?}");
        }
    }

    #[test]
    fn ports_are_told_and_what_is_used_and_what_may_be_locked() {
        let few = "Max locked memory         8388608              8388608              bytes";
        let plain = "CapEff:\t0000000000000000";
        let (_dir, user) = machine(&[("proc/self/limits", few), ("proc/self/status", plain)]);
        let (_dir, root) = machine(&[
            ("proc/self/limits", few),
            ("proc/self/status", "CapEff:\t000001ffffffffff"),
        ]);
        let ports = || {
            card(Ok(vec![
                "port 1, GID 1 (10.0.0.1), MTU 1024, Ethernet (RoCE v2)".into(),
            ]))
        };
        let lines = findings(&user, ports());
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(
            lines[0].1.starts_with("rxe0 port 1, GID 1") && lines[1].1.starts_with("default card"),
            "{lines:?}"
        );
        assert!(
            lines[2].0 == State::Warning && lines[2].1.starts_with("a process may lock 8.0 MiB of memory"),
            "{lines:?}"
        );
        assert_eq!(findings(&root, ports()).len(), 2);
        assert!(findings(&user, card(Ok(Vec::new())))[0].1.contains("no port is up"));
    }
}
