//! A short run of what `cargo xtask failover` does for long.

use crate::{check_loss, tell};
use reprise_test_crash::{By, FailoverConfig, has_etcd, run_failovers, run_forced, skip};

/// Its first primary stands still.
const NVRAM_SEED: u64 = 29;
const FORCED_SEED: u64 = 38;

fn config(failovers: u32, seed: u64, safety: &str) -> FailoverConfig {
    FailoverConfig {
        safety: safety.into(),
        keeps: safety != "1-safe",
        ..FailoverConfig::new(By::Hand, failovers, seed)
    }
}

#[test]
fn nothing_answered_at_2_safe_is_lost_by_failovers_by_hand() {
    tell(run_failovers(&config(5, 1, "2-safe")));
}

#[test]
fn nothing_that_a_quorum_answered_is_lost_by_failovers_by_hand() {
    tell(run_failovers(&config(5, 2, "quorum")));
}

#[test]
fn nothing_answered_at_2_safe_or_by_a_quorum_is_lost_by_failovers_by_lease() {
    const NAME: &str = "nothing_answered_at_2_safe_or_by_a_quorum_is_lost_by_failovers_by_lease";
    if let Err(why) = has_etcd() {
        return skip(NAME, &why);
    }
    for safety in ["2-safe", "quorum"] {
        let by_lease = FailoverConfig {
            by: By::Lease,
            ..config(3, 4, safety)
        };
        tell(run_failovers(&by_lease));
    }
}

/// Each server's log is in NVRAM. A standby takes over from a primary that stands still beyond its lease, and that primary finds itself
/// deposed.
#[test]
fn nothing_answered_from_nvram_is_lost_by_failovers_by_lease() {
    const NAME: &str = "nothing_answered_from_nvram_is_lost_by_failovers_by_lease";
    if let Err(why) = has_etcd() {
        return skip(NAME, &why);
    }
    let in_nvram = FailoverConfig {
        device: "nvram".into(),
        ..FailoverConfig::new(By::Lease, 2, NVRAM_SEED)
    };
    assert!(tell(run_failovers(&in_nvram)).paused > 0, "choose another seed");
}

/// In the second round both standbys stand still until a primary at 2-safe is alone.
#[test]
fn promotion_by_force_names_each_acknowledged_write_that_it_loses() {
    let levels = ["1-safe", "2-safe", "quorum", "very-safe"];
    let lost = std::thread::scope(|scope| {
        let runs = levels
            .map(|safety| scope.spawn(move || tell(run_forced(&FailoverConfig::forced(2, safety, FORCED_SEED))).lost));
        runs.map(|run| run.join().expect("each loss was named"))
    });
    assert!(lost.into_iter().sum::<u64>() > 0, "choose another seed");
}

/// A write at 1-safe that is acknowledged before a standby has it may be lost with the primary.
#[test]
fn a_loss_at_1_safe_is_noticed() {
    check_loss(run_failovers(&config(20, 3, "1-safe")), "failover");
}
