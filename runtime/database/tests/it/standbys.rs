//! A primary and its standbys, over TCP on this machine.

use std::sync::{Arc, Mutex};

use crate::common::{checkpointer, close, config, digest_now, files, fill, fill_bank, open, take, transfer};
use crate::following::{
    ACCEPTING, Cluster, FORCED, Primary, beside, bootstrap, document, follow_primary, link, service, serving,
    start_primary, start_standby, wait_seen, wait_streaming, wait_until,
};
use reprise_backup::DirHandle;
use reprise_base::{Epoch, Joiner, NodeProcess, Role, Safety};
use reprise_database::{Database, LogPolicy, NODE_NAME, ServeStandbys, ServeStandbysError};
use reprise_observe::Notice;
use reprise_router::{LossCause, LostRecords, NodePhase, ReplicationError, StandbyPhase};
use reprise_ship::{Link, LinkError};

#[test]
fn a_primary_hands_out_tickets_and_files_that_open() {
    let (dir, to) = (
        tempfile::tempdir().expect("a directory"),
        tempfile::tempdir().expect("a directory"),
    );
    let database = Arc::new(open(dir.path(), 2).0);
    assert!(database.router().replication().is_none());
    database.serve_standbys(serving("http://p:1")).expect("served");
    let again = database.serve_standbys(serving("http://p:1"));
    assert!(matches!(again, Err(ServeStandbysError::Served)), "{again:?}");
    fill_bank(&database, 200);
    let digest = digest_now(&database);
    let info = service(&database).info();
    assert_eq!(
        (info.role, info.safety, info.standbys.len()),
        (Role::Primary, Safety::LocalSync, 0)
    );
    assert_eq!(
        (info.primary.as_deref(), info.acked, info.committed),
        (Some("http://p:1"), info.durable, info.durable)
    );
    assert!(matches!(
        service(&database).join(&"a b".into()),
        Err(ReplicationError::Name(_))
    ));
    assert!(
        matches!(service(&database).promote(FORCED), Err(ReplicationError::IsPrimary(epoch)) if epoch == info.epoch)
    );
    // The server takes a checkpoint if it has none. A checkpoint that is nearly as new as the log is good enough.
    let own = to.path().join("s1");
    bootstrap(&database, "s1", &own);
    assert_eq!(checkpointer(&database).list().len(), 1);
    transfer(&database, 1);
    bootstrap(&database, "s2", &to.path().join("s2"));
    assert_eq!(checkpointer(&database).list().len(), 1);
    let used = Link::bootstrap(
        &link(&database, "s1"),
        &DirHandle::beside(&own).expect("a name"),
        beside(),
    )
    .err();
    assert!(matches!(used, Some(LinkError::Staging(_))), "{used:?}");
    // The checkpoints lie behind the kept log, and release none of it.
    (0..3).for_each(|round| {
        transfer(&database, round);
        take(&database);
    });
    let mut told: Vec<Notice> = Vec::new();
    let is_told = |told: &[Notice], what: &str| {
        told.iter()
            .any(|notice| matches!(notice, Notice::Standby { what: w, .. } if w.contains(what)))
    };
    wait_until("both are lost, and the end of a connection is told", || {
        told.extend(database.router().notices().take().notices);
        let held = service(&database).info().standbys;
        let states: Vec<_> = held.iter().map(|s| (&*s.name, s.state)).collect();
        states == [("s1", StandbyPhase::Lost), ("s2", StandbyPhase::Lost)] && is_told(&told, "connection is over")
    });
    assert!(is_told(&told, "gets its first files"), "{told:?}");
    database.close().expect("close");
    // The directory opens as any data directory does, with the rows of the checkpoint.
    let (copy, report) = open(&own, 1);
    assert!(report.checkpoint.is_some());
    assert_eq!(digest_now(&copy), digest);
    copy.close().expect("close");
}

/// An epoch names 16 bits of the identity of its writer.
#[test]
fn server_whose_epochs_would_have_the_writer_of_the_primary_is_turned_away() {
    let (cluster, primary) = Cluster::with_bank(1);
    let writer: u64 = service(&primary).info().epoch.writer().into();
    let join = |node| {
        let process = Some(NodeProcess {
            node,
            starts: 1,
            nonce: node,
        });
        let joiner = Joiner {
            process,
            ..Joiner::from("s1")
        };
        service(&primary).join(&joiner).map(drop)
    };
    for node in [writer, writer | 1 << 32] {
        let refused = join(node);
        assert!(
            matches!(&refused, Err(ReplicationError::Unavailable(reason)) if reason.contains("the same writer as those of this primary")),
            "{refused:?}"
        );
    }
    join(!writer).expect("it has another writer");
    cluster.no_primary();
    close(primary);
}

#[test]
fn a_server_without_a_log_takes_no_standbys() {
    let database = Database::open(reprise_database::DatabaseConfig {
        log: LogPolicy::None,
        ..config(std::path::Path::new("/nowhere"), 1)
    });
    let database = Arc::new(database.expect("open"));
    let refused = database.serve_standbys(serving(""));
    assert!(matches!(refused, Err(ServeStandbysError::NoLog)), "{refused:?}");
    let busy = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let dir = tempfile::tempdir().expect("a directory");
    let database = Arc::new(open(dir.path(), 1).0);
    let refused = database.serve_standbys(ServeStandbys {
        listen: busy.local_addr().expect("bound").to_string(),
        ..serving("")
    });
    assert!(matches!(refused, Err(ServeStandbysError::Ship(_))), "{refused:?}");
    database.close().expect("close");
}

#[test]
fn a_standby_follows_comes_back_after_breaks_and_becomes_the_primary() {
    let dirs = tempfile::tempdir().expect("a directory");
    let place = |name: &str| dirs.path().join(name);
    let first = start_primary(&place("p"), "http://p:1");
    fill_bank(&first, 200);
    for name in ["s1", "s2"] {
        bootstrap(&first, name, &place(name));
    }
    let primary: Primary = Arc::new(Mutex::new(Some(first)));
    let now = |primary: &Primary| primary.lock().expect("test").clone().expect("a primary");
    let standbys = ["s1", "s2"].map(|name| start_standby(&place(name), &primary, name));
    let again = standbys[0].follow_primary(follow_primary(&primary, "s1"));
    assert!(matches!(again, Err(ServeStandbysError::NoStandby)), "{again:?}");
    assert!(matches!(
        now(&primary).follow_primary(follow_primary(&primary, "x")),
        Err(ServeStandbysError::NoStandby)
    ));
    for round in 0..3 {
        // While they follow, while a checkpoint is taken, and while they can't.
        (0..20).for_each(|n| transfer(&now(&primary), round * 100 + n));
        take(&now(&primary));
        (0..20).for_each(|n| transfer(&now(&primary), round * 100 + 50 + n));
        for standby in &standbys {
            wait_seen(&now(&primary), standby);
            let (expected, found) = (now(&primary).router().digest(), standby.router().digest());
            assert_eq!(found.expect("ready"), expected.expect("ready"));
        }
        let old = primary.lock().expect("test").take().expect("a primary");
        ["s1", "s2"].iter().for_each(|name| wait_streaming(&old, name));
        let all = service(&old).info().standbys;
        let seen: Vec<_> = all.iter().map(|s| (&*s.name, s.error.clone())).collect();
        assert_eq!(seen, [("s1", None), ("s2", None)]);
        close(old);
        wait_until("they know that it is gone", || {
            standbys
                .iter()
                .all(|s| service(s).own().is_some_and(|own| own.state == StandbyPhase::Lost))
        });
        // A new opening: another epoch at another port.
        let next = start_primary(&place("p"), "http://p:2");
        assert_eq!(service(&next).info().epoch.count(), round as u32 + 2);
        *primary.lock().expect("test") = Some(next);
    }
    wait_until("they follow", || service(&now(&primary)).info().standbys.len() == 2);
    fill(&now(&primary), 1_000, 50);
    wait_seen(&now(&primary), &standbys[0]);
    wait_seen(&now(&primary), &standbys[1]);
    check_own(&standbys[0]);
    // The primary is gone for good. Its acknowledged writes are on the standby, which takes others as its standbys.
    let [one, two] = standbys;
    one.serve_standbys(serving("http://s1:1")).expect("once it is promoted");
    assert!(
        matches!(service(&one).join(&"s2".into()), Err(ReplicationError::NotPrimary(Some(url))) if &*url == "http://p:2")
    );
    let old = primary.lock().expect("test").take().expect("a primary");
    let digest = digest_now(&old);
    close(old);
    let promoted = service(&one).promote(ACCEPTING).expect("promoted");
    assert_eq!((promoted.epoch.count(), digest_now(&one)), (5, digest));
    assert!(matches!(
        service(&one).promote(FORCED),
        Err(ReplicationError::IsPrimary(epoch)) if epoch == promoted.epoch
    ));
    fill(&one, 2_000, 50);
    *primary.lock().expect("test") = Some(one.clone());
    wait_seen(&one, &two);
    assert_eq!(digest_now(&two), digest_now(&one));
    wait_until("its primary is known", || {
        two.router().primary_url().as_deref() == Some("http://s1:1")
    });
    let info = service(&one).info();
    assert_eq!((info.role, &*info.standbys[0].name), (Role::Primary, "s2"));
    assert!(service(&one).freshness("s2").is_some() && service(&one).freshness("s1").is_none());
    two.close().expect("close");
    one.close().expect("close");
}

/// Checks a standby's report about itself.
fn check_own(standby: &Database) {
    wait_until("it is fresh", || {
        let own = service(standby).own().expect("a standby");
        let is_fresh = own.freshness == Some(1.0) && own.is_lag_known && own.lag_us < 1_000_000;
        own.state == StandbyPhase::Streaming && is_fresh && own.in_sync == Some(true)
    });
    let info = service(standby).info();
    assert_eq!(
        (info.role, info.epoch.count(), info.ship_address),
        (Role::Standby, 4, None)
    );
    assert_eq!((info.primary.as_deref(), info.standbys.len()), (Some("http://p:2"), 1));
    wait_until("a second is over", || {
        service(standby)
            .freshness(&info.standbys[0].name)
            .is_some_and(|told| !told.points.is_empty())
    });
    assert!(service(standby).freshness("nobody").is_none());
    let own = &info.standbys[0];
    assert_eq!((own.lag_bytes, own.lag_records, own.error.clone()), (0, 0, None));
    assert_eq!(
        (own.view, own.persisted, own.shipped),
        (info.durable, info.durable, info.durable)
    );
    assert_eq!(info.acked, info.committed);
}

#[test]
fn standby_knows_lagging_standbys_and_is_promoted_out_of_sync_if_the_loss_is_accepted() {
    let (cluster, primary) = Cluster::with_bank(200);
    let (one, two) = (cluster.standby_of(&primary, "s1"), cluster.standby_of(&primary, "s2"));
    wait_until("nobody is out of sync", || service(&one).info().out_of_sync.is_empty());
    wait_seen(&primary, &two);
    let behind = two.router().view();
    close(two);
    fill(&primary, 1_000, 5);
    let laggards = |standby: &Database| -> Vec<_> {
        let told = service(standby).info().out_of_sync;
        told.into_iter().map(|laggard| (laggard.name, laggard.from)).collect()
    };
    wait_until("the other one is told", || {
        laggards(&one) == [("s2".to_owned(), behind)]
    });
    wait_seen(&primary, &one);
    let end = service(&one).info().durable;
    // After a restart the same holds, without any server to ask.
    cluster.no_primary();
    close(one);
    let one = cluster.open_standby("s1");
    assert_eq!(laggards(&one), [("s2".to_owned(), behind)]);
    assert_eq!(
        service(&one).own().expect("a standby").in_sync,
        None,
        "by now it may be"
    );
    // A standby without a status, like a copy of its files, is promoted only by an operator who accepts the risk.
    close(one);
    let mut document = cluster.document("s1");
    document
        .as_object_mut()
        .expect("an object")
        .remove("status")
        .expect("it was saved");
    cluster.set_document("s1", &document);
    let one = cluster.open_standby("s1");
    let refused = service(&one).promote(FORCED).expect_err("refused");
    let expected = LostRecords {
        epoch: Epoch::new(0, 0),
        from: end,
        known_to: None,
        cause: LossCause::NeverTold,
    };
    assert!(
        matches!(&refused, ReplicationError::OutOfSync(range) if *range == expected),
        "{refused:?}"
    );
    assert_eq!(one.router().role(), Role::Standby);
    let promoted = service(&one).promote(ACCEPTING).expect("promoted");
    assert_eq!((promoted.lsn, promoted.may_be_lost), (end, Some(expected)));
    assert!(service(&one).info().out_of_sync.is_empty());
    primary.close().expect("close");
    one.close().expect("close");
}

#[test]
fn a_standby_that_may_not_follow_says_why_and_shows_nothing() {
    let dirs = tempfile::tempdir().expect("a directory");
    let place = |name: &str| dirs.path().join(name);
    let first = start_primary(&place("p"), "");
    fill_bank(&first, 20);
    bootstrap(&first, "s1", &place("s1"));
    bootstrap(&first, "s2", &place("s2"));
    // The primary of another database, and one whose history has parted.
    let other = start_primary(&place("o"), "");
    close(first);
    let promoted = Database::open_standby(config(&place("s2"), 1)).expect("open");
    promoted.recover().expect("recover");
    promoted.promote().expect("promoted");
    let promoted = Arc::new(promoted);
    fill(&promoted, 500, 5);
    let first = start_primary(&place("p"), "");
    fill(&first, 700, 9);
    promoted.serve_standbys(serving("")).expect("served");
    for (primary, reason) in [(other, "another database"), (promoted, "at LSN")] {
        // One standby is at the position at which the first primary left. The other way begins at that position.
        let standby = match reason {
            "at LSN" => {
                let standby = start_standby(&place("s1"), &Arc::new(Mutex::new(Some(first.clone()))), "s1");
                wait_seen(&first, &standby);
                close(standby);
                start_standby(&place("s1"), &Arc::new(Mutex::new(Some(primary.clone()))), "s1")
            }
            _ => start_standby(&place("s1"), &Arc::new(Mutex::new(Some(primary.clone()))), "s1"),
        };
        wait_until("it was refused", || {
            service(&standby).own().is_some_and(|own| own.error.is_some())
        });
        let own = service(&standby).own().expect("a standby");
        let error = own.error.expect("refused");
        assert!(error.contains(reason), "{error}");
        assert_eq!((own.state, own.freshness), (StandbyPhase::Lost, None));
        assert!(
            standby.parted().is_none(),
            "it never followed: a start would come to the same"
        );
        // Its records may never have been a primary's.
        assert!(standby.router().digest().is_err());
        let phase = standby.router().phase();
        assert!(
            matches!(&phase, NodePhase::Failed { report } if report.contains(reason)),
            "{phase:?}"
        );
        standby.close().expect("close");
        primary.close().expect("close");
    }
    first.close().expect("close");
}

#[test]
fn log_for_a_lagging_standby_is_held_through_a_restart_until_it_is_forgotten() {
    let dirs = tempfile::tempdir().expect("a directory");
    let place = |name: &str| dirs.path().join(name);
    let first = start_primary(&place("p"), "");
    fill_bank(&first, 200);
    for name in ["s1", "s2"] {
        bootstrap(&first, name, &place(name));
    }
    close(first);
    let next = start_primary(&place("p"), "");
    let lost = service(&next).info().standbys;
    let states: Vec<_> = lost.iter().map(|s| (&*s.name, s.state)).collect();
    assert_eq!(states, [("s1", StandbyPhase::Lost), ("s2", StandbyPhase::Lost)]);
    assert!(
        lost[0]
            .error
            .as_ref()
            .is_some_and(|error| error.contains("has not come back")),
        "{lost:?}"
    );
    // Far more than what two checkpoints keep.
    for round in 0..4 {
        (0..100).for_each(|n| transfer(&next, round * 100 + n));
        take(&next);
    }
    let primary: Primary = Arc::new(Mutex::new(Some(next.clone())));
    let standby = start_standby(&place("s1"), &primary, "s1");
    wait_seen(&next, &standby);
    assert_eq!(digest_now(&standby), digest_now(&next));
    let level = || document(&place("p"))["led"].clone();
    let kept = level();
    for name in ["s1", "nobody"] {
        let refused = service(&next).forget(name);
        assert!(matches!(refused, Err(ReplicationError::Name(_))), "{refused:?}");
    }
    assert_eq!(level(), kept, "nobody was forgotten");
    let segments = || files(&place("p"), "log").len();
    let before = segments();
    service(&next).forget("s2").expect("it is lost");
    assert!(segments() < before, "what was held for it is gone");
    assert_ne!(level(), kept);
    assert_eq!(service(&next).info().standbys.len(), 1);
    let late = start_standby(&place("s2"), &primary, "s2");
    wait_until("it is told", || {
        service(&late).own().is_some_and(|own| own.error.is_some())
    });
    let error = service(&late).own().and_then(|own| own.error).expect("told");
    assert!(error.contains("is gone here"), "{error}");
    [standby, late, next].into_iter().for_each(close);
    // Nothing is known of a directory whose document can't be read.
    std::fs::write(place("p").join(NODE_NAME), "garbage").expect("written");
    let refused = Database::open(config(&place("p"), 2))
        .map(drop)
        .expect_err("refused")
        .to_string();
    for part in [NODE_NAME, "--read-only", "reprise node lead"] {
        assert!(refused.contains(part), "{refused}");
    }
    let alone = Database::open_read_only(config(&place("p"), 2)).expect("open");
    alone.recover_read_only().expect("read alone");
}

/// The sibling was in sync with the former primary. It comes back after the new primary took checkpoints.
#[test]
fn promoted_standby_holds_the_log_for_a_sibling_in_sync() {
    let (cluster, primary) = Cluster::with_bank(200);
    let (one, two) = (cluster.standby_of(&primary, "s1"), cluster.standby_of(&primary, "s2"));
    one.serve_standbys(cluster.serving("http://s1:1"))
        .expect("once it is promoted");
    (0..20).for_each(|n| transfer(&primary, n));
    wait_seen(&primary, &one);
    wait_seen(&primary, &two);
    wait_until("s1 knows that s2 is in sync", || {
        let others = cluster.document("s1")["status"]["others"].clone();
        others[0]["name"] == "s2" && others[0]["in_sync"] == true
    });
    cluster.no_primary();
    close(primary);
    close(two);
    service(&one).promote(ACCEPTING).expect("promoted");
    let known: Vec<_> = service(&one).info().standbys.into_iter().map(|s| s.name).collect();
    assert_eq!(known, ["s2"]);
    // Far more than what two checkpoints keep.
    for round in 0..4 {
        (0..100).for_each(|n| transfer(&one, round * 100 + n));
        take(&one);
    }
    cluster.set_primary(&one);
    let two = cluster.open_standby("s2");
    wait_seen(&one, &two);
    assert_eq!(digest_now(&two), digest_now(&one));
    [two, one].into_iter().for_each(close);
}

/// The primary need not wait for a standby that says so, whose connection else may be broken alone.
#[test]
fn standby_that_stops_says_so_to_its_primary() {
    let (cluster, primary) = Cluster::with_bank(200);
    let standby = cluster.standby_of(&primary, "s1");
    close(standby);
    wait_until("it is lost", || {
        let all = service(&primary).info().standbys;
        all.iter()
            .any(|standby| standby.state == StandbyPhase::Lost && standby.error.as_deref() == Some("it stops"))
    });
    close(primary);
}
