//! Promises of standbys: no earlier primary is followed, until the promise is taken back.

use crate::common::{close, transfer};
use crate::following::{ACCEPTING, Cluster, service, wait_seen, wait_until};
use reprise_base::Epoch;
use reprise_database::Database;
use reprise_router::{PromiseQuestion, ReplicationError, StandbyPhase};

fn question(epoch: u32, is_withdrawn: bool) -> PromiseQuestion {
    PromiseQuestion {
        epoch: Epoch(epoch),
        name: "x".into(),
        url: None,
        is_withdrawn,
    }
}

fn wait_bound(standby: &Database) {
    wait_until("it follows no longer", || {
        let own = service(standby).own().expect("a standby");
        let error = own.error.unwrap_or_default();
        own.state == StandbyPhase::Lost && error.contains("promised epoch 5 to x")
    });
}

#[test]
fn standby_that_promised_follows_no_earlier_primary_until_that_is_taken_back() {
    let (cluster, primary) = Cluster::with_bank(200);
    let standby = cluster.standby_of(&primary, "s1");
    let end = standby.received().expect("a standby").lsn;
    let refused = service(&standby).promise(&question(u32::MAX, false));
    assert!(matches!(refused, Err(ReplicationError::Unavailable(_))), "{refused:?}");
    let known = service(&standby).promise(&question(1, false)).expect("it tells");
    assert_eq!((known.epoch, known.end), (Epoch(1), end), "it is no promise");
    let answer = service(&standby).promise(&question(5, false)).expect("promised");
    assert_eq!((&*answer.name, answer.epoch, answer.end), ("s1", Epoch(1), end));
    wait_bound(&standby);
    transfer(&primary, 1);
    // Also behind a restart.
    close(standby);
    let standby = cluster.open_standby("s1");
    wait_bound(&standby);
    let taken = PromiseQuestion {
        name: "y".into(),
        ..question(5, true)
    };
    service(&standby).promise(&taken).expect("it has no promise");
    wait_bound(&standby);
    service(&standby).promise(&question(5, true)).expect("taken back");
    wait_seen(&primary, &standby);
    close(standby);
    close(primary);
}

/// A standby that promised asks the server that it promised. One that led is no ground to follow the primary before it.
#[test]
fn server_that_led_does_not_agree_that_it_did_not() {
    let (cluster, primary) = Cluster::with_bank(200);
    let standby = cluster.standby_of(&primary, "s1");
    let asked = |database: &Database, epoch| service(database).promise(&question(epoch, true));
    asked(&standby, 1).expect("another server leads in that epoch");
    close(primary);
    let promoted = service(&standby).promote(ACCEPTING).expect("promoted");
    let leads = asked(&standby, promoted.epoch.0);
    assert!(matches!(leads, Err(ReplicationError::IsPrimary(_))), "{leads:?}");
    transfer(&standby, 1);
    close(standby);
    cluster.no_primary();
    let again = cluster.open_standby("s1");
    let led = asked(&again, promoted.epoch.0);
    assert!(matches!(led, Err(ReplicationError::Unavailable(_))), "{led:?}");
    asked(&again, promoted.epoch.0 + 1).expect("it did not");
    close(again);
}
