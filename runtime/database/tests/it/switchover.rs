//! A primary that gives its place to a standby, and one that does not.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::common::{close, digest_now, fill, fill_bank, i64s, submit, transfer, wasm};
use crate::following::{ACCEPTING, Cluster, FORCED, service, wait_seen, wait_streaming, wait_until};
use reprise_base::{Epoch, Lsn, Role};
use reprise_database::{Database, OpenError};
use reprise_router::{LossCause, LostRecords, PromiseQuestion, PromoteOptions, ReplicationError, ReplyOutcome};

const ASKED: PromoteOptions = PromoteOptions {
    is_forced: false,
    accepts_loss: false,
};

/// Opens accounts one by one until the server takes no more. Returns the acknowledged ones.
fn open_until_refused(database: &Database, from: i64, is_over: &AtomicBool) -> Vec<i64> {
    let mut answered = Vec::new();
    for account in from.. {
        let reply = submit(database, &[("open", None, i64s(&[account, 1]))]);
        match reply.get(0).outcome {
            ReplyOutcome::Committed => answered.push(account),
            ReplyOutcome::NotPrimary(url) => {
                assert_eq!(url.as_deref(), Some("http://s1:1"));
                break;
            }
            // While the last records are on their way.
            ReplyOutcome::Unavailable(reason) => assert!(reason.contains("gives its place to s1"), "{reason}"),
            other => panic!("{other:?}"),
        }
        if is_over.load(Ordering::Relaxed) {
            panic!("it was never refused");
        }
    }
    answered
}

fn accounts(database: &Database, answered: &[i64]) -> usize {
    // No more at once than may wait.
    let count = |some: &[i64]| {
        let calls: Vec<_> = some
            .iter()
            .map(|account| ("balance", None, i64s(&[*account])))
            .collect();
        let reply = submit(database, &calls);
        (0..reply.len())
            .filter(|index| *reply.get(*index).outcome == ReplyOutcome::Committed)
            .count()
    };
    answered.chunks(1_000).map(count).sum()
}

/// Nodes whose log is written to NVRAM first.
const ON_NVRAM: [&[&str]; 4] = [&[], &["p"], &["s1"], &["p", "s1", "s2"]];

#[test]
fn promoted_standby_has_all_acknowledged_writes_and_the_old_primary_follows_it() {
    ON_NVRAM.into_iter().for_each(switches_over);
}

fn switches_over(on_nvram: &[&str]) {
    let cluster = Cluster::on_nvram(on_nvram);
    let old = cluster.start("p");
    fill_bank(&old, 200);
    let new = cluster.standby_of(&old, "s1");
    let other = cluster.standby_of(&old, "s2");
    wait_seen(&old, &new);
    let is_over = AtomicBool::new(false);
    let seen = old.router().view();
    let (answered, promoted) = thread::scope(|scope| {
        let writers: Vec<_> = (1..4)
            .map(|writer| {
                let (old, is_over) = (&old, &is_over);
                scope.spawn(move || open_until_refused(old, writer * 1_000_000, is_over))
            })
            .collect();
        thread::sleep(Duration::from_millis(300));
        // The disk may stand still for some time.
        let until = Instant::now() + Duration::from_secs(60);
        while old.router().view().0 <= seen.0 + 20 && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        let promoted = service(&new).promote(ASKED).expect("promoted");
        let answered = writers
            .into_iter()
            .map(|writer| writer.join().expect("refused at last"));
        (answered.flatten().collect::<Vec<_>>(), promoted)
    });
    is_over.store(true, Ordering::Relaxed);
    assert!(promoted.has_stepped_down && answered.len() > 10, "{promoted:?}");
    assert_eq!(promoted.epoch.count(), 2);
    assert_eq!(accounts(&new, &answered), answered.len());
    // The old primary serves its rows, says that it gets older, and sends writers on.
    assert_eq!(
        (old.router().role(), old.router().view()),
        (Role::Standby, promoted.lsn)
    );
    assert_eq!(digest_now(&old), digest_now(&new));
    let own = service(&old).own().expect("it says how old it is");
    thread::sleep(Duration::from_millis(5));
    assert!(service(&old).own().expect("older").lag_us > own.lag_us);
    // A second request has the same answer. It steps down for no other standby, and does not become the primary again by itself.
    let again = service(&old).step_down("s1", None).expect("said once more");
    assert_eq!(again.lsn, promoted.lsn);
    let refused = service(&old).step_down("s2", None);
    assert!(
        matches!(&refused, Err(ReplicationError::NotPrimary(Some(url))) if &**url == "http://s1:1"),
        "{refused:?}"
    );
    let refused = service(&old).promote(ASKED);
    assert!(
        matches!(refused, Err(ReplicationError::PrimaryNotStopped(_))),
        "{refused:?}"
    );
    close(old);
    let opened = Database::open(cluster.config("p", 1));
    assert!(
        matches!(&opened, Err(OpenError::SteppedDown { successor, lsn, .. }) if successor == "s1" && *lsn == promoted.lsn),
        "{:?}",
        opened.err()
    );
    // The old primary continues as a standby from its position, and so does the other one.
    cluster.set_primary(&new);
    new.serve_standbys(cluster.serving("http://s1:1")).expect("served");
    let old = cluster.open_standby("p");
    transfer(&new, 1);
    for standby in [&old, &other] {
        wait_seen(&new, standby);
        assert_eq!(digest_now(standby), digest_now(&new));
    }
    // And back again: it asks the one that took over.
    wait_streaming(&new, "p");
    // Its note is gone, and it opens as a primary later.
    let back = service(&old).promote(ASKED).expect("promoted");
    assert!(back.has_stepped_down && back.epoch.count() == 3, "{back:?}");
    transfer(&old, 2);
    [old, new, other].into_iter().for_each(close);
    let old = cluster.start("p");
    assert_eq!(service(&old).info().epoch.count(), 4);
    old.close().expect("close");
}

#[test]
fn caller_of_a_standby_that_takes_over_is_asked_to_retry() {
    let (cluster, old) = Cluster::with_bank(50);
    let new = cluster.standby_of(&old, "s1");
    new.serve_standbys(cluster.serving("http://s1:1"))
        .expect("once it is the primary");
    wait_seen(&old, &new);
    let asks = AtomicBool::new(false);
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            loop {
                asks.store(true, Ordering::Relaxed);
                match service(&new).join(&"s2".into()) {
                    Ok(_) => break,
                    Err(ReplicationError::NotPrimary(_) | ReplicationError::Unavailable(_)) => {}
                    Err(other) => panic!("a standby takes it for the last word: {other}"),
                }
            }
        });
        wait_until("it asks", || asks.load(Ordering::Relaxed));
        service(&new).promote(ASKED).expect("promoted");
        asking.join().expect("served at last");
    });
    [old, new].into_iter().for_each(close);
}

#[test]
fn a_primary_that_can_not_be_asked_or_says_no_keeps_its_place() {
    ON_NVRAM[..2].iter().for_each(|on_nvram| keeps_its_place(on_nvram));
}

fn keeps_its_place(on_nvram: &[&str]) {
    let cluster = Cluster::on_nvram(on_nvram);
    let old = cluster.start("p");
    fill_bank(&old, 200);
    let new = cluster.standby_of(&old, "s1");
    wait_seen(&old, &new);
    let refusal = |reason: &str| {
        let refused = service(&new).promote(ASKED).expect_err("refused");
        let text = refused.to_string();
        assert!(matches!(refused, ReplicationError::PrimaryNotStopped(_)), "{refused:?}");
        assert!(text.contains(reason) && text.contains("--force"), "{text}");
        assert_eq!(
            (old.router().role(), new.router().role()),
            (Role::Primary, Role::Standby)
        );
        // Both servers keep working.
        transfer(&old, 3);
        wait_seen(&old, &new);
    };
    // No server is there.
    cluster.no_primary();
    refusal("nobody answers");
    cluster.set_primary(&old);
    // The primary can't record its successor.
    let in_the_way = cluster.place("p").join("node.json.tmp");
    std::fs::create_dir_all(in_the_way.join("x")).expect("made");
    refusal("gives its place away can't be saved");
    std::fs::remove_dir_all(&in_the_way).expect("removed");
    let unknown = service(&old).step_down("nobody", None);
    assert!(
        matches!(&unknown, Err(ReplicationError::Unavailable(reason)) if reason.contains("no standby of the name nobody")),
        "{unknown:?}"
    );
    let standby = service(&new).step_down("p", None);
    assert!(matches!(standby, Err(ReplicationError::NotPrimary(_))), "{standby:?}");
    // A lost standby takes over from no server.
    new.close().expect("close");
    wait_until("it is lost", || {
        service(&old).info().standbys[0].state == reprise_router::StandbyPhase::Lost
    });
    let lost = service(&old).step_down("s1", None);
    assert!(
        matches!(&lost, Err(ReplicationError::Unavailable(reason)) if reason.contains("is lost")),
        "{lost:?}"
    );
    fill(&old, 5_000, 10);
    old.close().expect("close");
}

#[test]
fn a_primary_whose_successor_did_not_take_over_takes_its_place_again_in_a_new_epoch() {
    ON_NVRAM.into_iter().for_each(takes_its_place_again);
}

fn takes_its_place_again(on_nvram: &[&str]) {
    let cluster = Cluster::on_nvram(on_nvram);
    let old = cluster.start("p");
    fill_bank(&old, 200);
    let new = cluster.standby_of(&old, "s1");
    wait_seen(&old, &new);
    let stepped = service(&old).step_down("s1", None).expect("stepped down");
    new.close().expect("close");
    // Nothing tells whether it took over.
    let lost = LostRecords {
        epoch: stepped.epoch,
        from: stepped.lsn,
        known_to: Some(stepped.lsn),
        cause: LossCause::SteppedDown,
    };
    let refused = service(&old).promote(FORCED);
    assert!(
        matches!(&refused, Err(ReplicationError::OutOfSync(range)) if *range == lost),
        "{refused:?}"
    );
    assert_eq!(old.router().role(), Role::Standby);
    let promoted = service(&old).promote(ACCEPTING).expect("again");
    // Behind the one in which its successor would have been the primary.
    assert_eq!(
        (promoted.epoch.count(), promoted.lsn, promoted.may_be_lost),
        (3, stepped.lsn, Some(lost))
    );
    // A later start as a standby knows the level at which it answered in that epoch.
    let kept = cluster.document("p");
    assert_eq!(kept["led"]["last_epoch"], 3, "{kept}");
    fill(&old, 5_000, 10);
    drop(new);
    let new = cluster.open_standby("s1");
    wait_seen(&old, &new);
    assert_eq!(digest_now(&new), digest_now(&old));
    new.close().expect("close");
    close(old);
    assert_eq!(service(&cluster.start("p")).info().epoch.count(), 4);
}

#[test]
fn successor_begins_after_the_epoch_of_the_primary_that_steps_down() {
    let (cluster, old) = Cluster::with_bank(10);
    let new = cluster.standby_of(&old, "s1");
    wait_seen(&old, &new);
    // An epoch of which no record tells.
    service(&old).step_down("s1", None).expect("stepped down");
    let again = service(&old).promote(ACCEPTING).expect("again");
    wait_streaming(&old, "s1");
    let promoted = service(&new).promote(ASKED).expect("promoted");
    assert!(promoted.has_stepped_down, "{promoted:?}");
    assert!(promoted.epoch.is_after(again.epoch), "{promoted:?} behind {again:?}");
}

/// The primary says again that it stepped down, and knows of no later primary.
#[test]
fn place_that_was_given_counts_no_more_once_its_standby_promised_a_later_epoch_to_another_server() {
    let (cluster, old) = Cluster::with_bank(10);
    let new = cluster.standby_of(&old, "s1");
    wait_seen(&old, &new);
    let stepped = service(&old).step_down("s1", None).expect("stepped down");
    let asked = PromiseQuestion {
        epoch: Epoch::new(stepped.epoch.count() + 1, 7),
        name: "s2".into(),
        url: None,
        is_withdrawn: false,
    };
    service(&new).promise(&asked).expect("promised");
    let refused = service(&new).promote(ASKED);
    assert!(
        matches!(&refused, Err(ReplicationError::PrimaryNotStopped(reason)) if reason.contains("promised epoch 2 to s2")),
        "{refused:?}"
    );
    assert_eq!(new.router().role(), Role::Standby);
    let withdrawn = PromiseQuestion {
        is_withdrawn: true,
        ..asked
    };
    service(&new).promise(&withdrawn).expect("s2 does not lead");
    let promoted = service(&new).promote(ASKED).expect("promoted");
    assert!(promoted.has_stepped_down, "{promoted:?}");
    assert!(
        promoted.epoch.is_after(stepped.epoch),
        "{promoted:?} behind {stepped:?}"
    );
}

#[test]
fn primary_that_stepped_down_reports_its_lagging_standbys() {
    let cluster = Cluster::new();
    let old = cluster.start("p");
    old.router().deploy("bank", &wasm("bank")).expect("deploy");
    let new = cluster.standby_of(&old, "s1");
    let behind = cluster.standby_of(&old, "s2");
    fill(&old, 0, 10);
    wait_seen(&old, &behind);
    let lacks_from = behind.router().view();
    behind.close().expect("close");
    wait_until("it is out of sync", || {
        let standbys = service(&old).info().standbys;
        standbys
            .iter()
            .any(|standby| standby.name == "s2" && standby.in_sync == Some(false))
    });
    fill(&old, 1_000, 10);
    service(&new).promote(ASKED).expect("promoted");
    // The new primary may be lost next, and no other server knows.
    let told = service(&old).info().out_of_sync;
    assert!(
        matches!(&told[..], [one] if one.name == "s2" && Lsn(0) < one.from && one.from <= lacks_from),
        "{told:?}, of {lacks_from}"
    );
}

#[test]
fn a_promotion_that_the_disk_did_not_let_end_does_when_it_is_asked_for_again() {
    let cluster = Cluster::new();
    let old = cluster.start("p");
    old.router().deploy("bank", &wasm("bank")).expect("deploy");
    let new = cluster.standby_of(&old, "s1");
    fill(&old, 0, 10);
    wait_seen(&old, &new);
    old.close().expect("close");
    // A directory has the place of the file that is to be written.
    let note = cluster.place("s1").join("node.json.tmp");
    std::fs::create_dir(&note).expect("made");
    let refused = service(&new).promote(ACCEPTING).map(|promoted| promoted.lsn);
    assert!(matches!(refused, Err(ReplicationError::Unavailable(_))), "{refused:?}");
    assert_eq!(new.router().role(), Role::Standby);
    assert_eq!(accounts(&new, &[3]), 1, "it shows what it has");
    std::fs::remove_dir(&note).expect("removed");
    service(&new).promote(ACCEPTING).expect("promoted");
    fill(&new, 1_000, 10);
}
