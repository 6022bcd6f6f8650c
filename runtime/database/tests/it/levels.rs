//! The safety level of a cluster: the first primary sets it, and it outlives restarts and promotions.

use std::sync::Arc;

use reprise_backup::{Point, restore};
use reprise_base::Safety;
use reprise_database::{Database, OpenError};
use reprise_router::{DeployError, LogRefusal, PromoteOptions, ReplyOutcome};

use crate::common::{
    close, fill_bank, i64s,
    parts::{Parts, TABLE, module},
    submit,
};
use crate::following::{
    Cluster, FORCED, bootstrap, document, follow_primary, service, wait_in_sync, wait_seen, wait_until,
};

fn open(cluster: &Cluster, name: &str) -> Database {
    Database::open(cluster.config(name, 2)).expect("open")
}

fn level(database: &Database) -> Safety {
    database.router().safety().0
}

/// The levels of the cluster and of the start, where they differ.
fn refusal(cluster: &Cluster, name: &str, asked: Safety) -> Option<(Safety, Safety)> {
    match open(cluster, name).set_safety(asked) {
        Err(OpenError::OtherSafety { cluster, asked }) => Some((cluster, asked)),
        other => {
            other.expect("set");
            None
        }
    }
}

#[test]
fn first_start_sets_the_level_of_a_cluster_and_later_ones_keep_it() {
    let cluster = Cluster::new();
    let first = open(&cluster, "p");
    first.set_safety(None::<Safety>).expect("none");
    first.recover().expect("recover");
    assert_eq!(level(&first), Safety::LocalSync);
    first.close().expect("close");
    drop(first);
    assert_eq!(refusal(&cluster, "p", Safety::TwoSafe), None);
    assert_eq!(cluster.document("p")["safety"], "2-safe");
    let refused = open(&cluster, "p").set_safety(Safety::Quorum).expect_err("another one");
    let text = refused.to_string();
    for part in ["2-safe", "quorum", "--change-safety"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(cluster.document("p")["safety"], "2-safe", "nothing was changed");
    let silent = open(&cluster, "p");
    silent.set_safety(None::<Safety>).expect("that of the cluster");
    assert_eq!(level(&silent), Safety::TwoSafe);
    drop(silent);
    let changed = open(&cluster, "p");
    changed.change_safety(Safety::Quorum).expect("saved");
    changed.set_safety(Safety::Quorum).expect("the cluster's");
    drop(changed);
    assert_eq!(
        refusal(&cluster, "p", Safety::TwoSafe),
        Some((Safety::Quorum, Safety::TwoSafe))
    );
    // A backup is a cluster of its own.
    restore(&cluster.place("p"), &cluster.place("r"), Point::End).expect("restored");
    assert_eq!(refusal(&cluster, "r", Safety::OneSafe), None);
}

/// The primary `p`, at this level.
fn lead(cluster: &Cluster, level: Safety) -> Arc<Database> {
    let primary = Arc::new(open(cluster, "p"));
    primary.set_safety(level).expect("set");
    primary.recover().expect("recover");
    primary.serve_standbys(cluster.serving("http://p:1")).expect("served");
    cluster.set_primary(&primary);
    primary
}

/// A primary at 2-safe, and a standby whose own start asks for less.
fn follow(cluster: &Cluster) -> (Arc<Database>, Arc<Database>) {
    let primary = lead(cluster, Safety::TwoSafe);
    bootstrap(&primary, "s1", &cluster.place("s1"));
    let standby = Arc::new(Database::open_standby(cluster.config("s1", 3)).expect("open"));
    standby
        .set_safety(Safety::OneSafe)
        .expect("what the primary says counts");
    standby
        .serve_standbys(cluster.serving("http://s1:1"))
        .expect("once it is promoted");
    standby
        .follow_primary(follow_primary(&cluster.primary, "s1"))
        .expect("it follows");
    standby.recover().expect("recover");
    wait_in_sync(&standby);
    (primary, standby)
}

#[test]
fn promoted_standby_leads_at_the_level_of_its_cluster() {
    for is_forced in [true, false] {
        let cluster = Cluster::new();
        let (primary, standby) = follow(&cluster);
        assert_eq!(service(&standby).info().safety, Safety::TwoSafe, "as it was told");
        wait_seen(&primary, &standby);
        if is_forced {
            close(primary);
            cluster.no_primary();
        }
        let promoted = service(&standby).promote(PromoteOptions { is_forced, ..FORCED });
        promoted.expect("promoted");
        wait_until("it leads", || service(&standby).info().safety == Safety::TwoSafe);
        assert_eq!(level(&standby), Safety::TwoSafe);
        let document = document(&cluster.place("s1"));
        assert_eq!(
            (&document["safety"], &document["led"]["safety"]),
            (&"2-safe".into(), &"2-safe".into())
        );
        close(standby);
        assert_eq!(
            refusal(&cluster, "s1", Safety::OneSafe),
            Some((Safety::TwoSafe, Safety::OneSafe))
        );
        // Without its log it has no part in the cluster.
        cluster.node("s1").begin_again("it is told to").expect("saved");
        assert_eq!(cluster.node("s1").document().safety(), None);
    }
}

/// The lost primary answered nothing without the other standby, and the new one does not either. So the other one can be promoted later.
#[test]
fn standby_that_counts_at_very_safe_counts_after_a_promotion() {
    let cluster = Cluster::new();
    let primary = lead(&cluster, Safety::VerySafe);
    let (one, two) = (cluster.standby_of(&primary, "s1"), cluster.standby_of(&primary, "s2"));
    one.serve_standbys(cluster.serving("http://s1:1"))
        .expect("once it is promoted");
    wait_until("s1 knows that s2 counts", || {
        let others = cluster.document("s1")["status"]["others"].clone();
        others[0]["name"] == "s2" && others[0]["counted"] == true
    });
    cluster.no_primary();
    close(two);
    close(primary);
    let promoted = service(&one).promote(FORCED).expect("promoted");
    assert_eq!(promoted.may_be_lost, None);
    let members = cluster.document("s1")["members"].clone();
    assert!(members[0]["name"] == "s2" && members[0]["counted"] == true, "{members}");
    let refused = service(&one).check_safety(Safety::VerySafe).expect_err("s2 is away");
    assert!(
        refused.contains("needs 1 of 1 standbys, and 0 are in sync"),
        "{refused}"
    );
    close(one);
}

/// A standby that is away would be promoted by very-safe, and name no loss of what was answered without it at the other level.
#[test]
fn cluster_leaves_very_safe_once_no_standby_that_counts_is_away() {
    for is_forgotten in [false, true] {
        let cluster = Cluster::new();
        let primary = lead(&cluster, Safety::VerySafe);
        close(cluster.standby_of(&primary, "s1"));
        wait_until("it is recorded as out of sync", || {
            cluster.document("p")["members"][0]["in_sync"] == false
        });
        if is_forgotten {
            service(&primary).forget("s1").expect("it is lost");
            wait_until("that is saved", || cluster.document("p")["members"].is_null());
        }
        cluster.no_primary();
        close(primary);
        let again = open(&cluster, "p");
        again.change_safety(Safety::VerySafe).expect("it is the cluster's");
        let changed = again.change_safety(Safety::TwoSafe);
        match is_forgotten {
            true => changed.expect("no standby goes by very-safe"),
            false => {
                let reason = changed.expect_err("s1 is away").to_string();
                assert!(reason.contains(": s1. Start them"), "{reason}");
                assert_eq!(cluster.document("p")["safety"], "very-safe", "nothing was changed");
            }
        }
    }
}

/// The migration fails whenever it runs. The refusal says that the server did not run it.
#[test]
fn deployment_begins_nothing_when_the_level_refuses_its_record() {
    let cluster = Cluster::new();
    let primary = lead(&cluster, Safety::Quorum);
    let standby = cluster.standby_of(&primary, "s1");
    fill_bank(&primary, 10);
    close(standby);
    wait_until("writes are refused", || {
        let reply = submit(&primary, &[("open", None, i64s(&[70, 1]))]);
        let outcome = reply.get(0).outcome;
        matches!(outcome, ReplyOutcome::StandbyUnavailable(_))
    });
    let failing = module(&Parts {
        migration: Some("never"),
        body: "unreachable",
        ..TABLE
    });
    match primary.router().deploy("m", &failing).err() {
        Some(DeployError::Log(LogRefusal::StandbyUnavailable(_))) => {}
        other => panic!("{other:?}"),
    }
    assert!(!primary.router().deployed().current.contains_key("m"));
    cluster.no_primary();
    close(primary);
}
