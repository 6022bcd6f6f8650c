//! Promises of standbys: no earlier primary is followed, until the promise is taken back.

use std::sync::Arc;

use crate::common::{close, transfer};
use crate::following::{ACCEPTING, Cluster, FORCED, service, wait_seen, wait_until};
use reprise_base::Epoch;
use reprise_database::Database;
use reprise_router::{PromiseQuestion, ReplicationError, StandbyPhase};

fn question(epoch: u32, is_withdrawn: bool) -> PromiseQuestion {
    PromiseQuestion {
        epoch: Epoch::new(epoch, 0),
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
    assert_eq!((known.epoch.count(), known.end), (1, end), "it is no promise");
    let answer = service(&standby).promise(&question(5, false)).expect("promised");
    assert_eq!((&*answer.name, answer.epoch.count(), answer.end), ("s1", 1, end));
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
    let leads = asked(&standby, promoted.epoch.count());
    assert!(matches!(leads, Err(ReplicationError::IsPrimary(_))), "{leads:?}");
    transfer(&standby, 1);
    close(standby);
    cluster.no_primary();
    let again = cluster.open_standby("s1");
    let led = asked(&again, promoted.epoch.count());
    assert!(matches!(led, Err(ReplicationError::Unavailable(_))), "{led:?}");
    asked(&again, promoted.epoch.count() + 1).expect("it did not");
    close(again);
}

/// A withdrawal of the first question may come late. It must not take back a promise that was given to the second one.
#[test]
fn no_epoch_is_asked_for_twice() {
    let (cluster, primary) = Cluster::with_bank(200);
    let standby = cluster.standby_of(&primary, "s1");
    close(primary);
    let refused = service(&standby).promote(FORCED);
    assert!(matches!(refused, Err(ReplicationError::OutOfSync(_))), "{refused:?}");
    // Also behind a restart.
    close(standby);
    let standby = cluster.open_standby("s1");
    let promoted = service(&standby).promote(ACCEPTING).expect("promoted");
    assert_eq!(promoted.epoch.count(), 3);
    close(standby);
    cluster.no_primary();
}

/// Each of the two knows the same highest epoch, so both draw the count behind it.
#[test]
fn two_promotions_that_know_nothing_of_each_other_take_epochs_of_different_writers() {
    let (cluster, primary) = Cluster::with_bank(200);
    let standbys = ["s1", "s2"].map(|name| cluster.standby_of(&primary, name));
    close(primary);
    let promote = |standby: &Arc<Database>| service(standby).promote(ACCEPTING).expect("promoted").epoch;
    let [one, two] = standbys.each_ref().map(promote);
    assert_eq!(one.count(), two.count());
    assert!(one != two && !one.allows(two) && !two.allows(one), "{one:?} {two:?}");
    for (standby, epoch) in standbys.iter().zip([one, two]) {
        transfer(standby, 1);
        assert_eq!(standby.router().status().epoch, Some(epoch));
    }
    standbys.into_iter().for_each(close);
    cluster.no_primary();
}
