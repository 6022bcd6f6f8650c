use reprise_env::{SimDisk, sim::FaultPlan};
use reprise_ship::{Member, ReportedMember};
use reprise_wire::{History, SetPart};

use super::*;

fn node(disk: &SimDisk) -> Arc<NodeFile> {
    NodeFile::open(Arc::new(disk.clone())).expect("an empty one")
}

fn standby(name: &str, lsn: u64, is_in_sync: bool) -> Member {
    Member {
        name: name.into(),
        from: Lsn(lsn),
        persisted: Lsn(lsn),
        is_in_sync,
        is_counted: false,
        url: None,
        node: None,
    }
}

fn at(epoch: u32, lsn: u64) -> Option<Position> {
    Some(Position {
        epoch: Epoch::new(epoch, 0),
        lsn: Lsn(lsn),
        history: History(0),
    })
}

fn standing(epoch: u32, safety: Safety, in_sync: bool) -> SyncReport {
    SyncReport {
        epoch: Epoch::new(epoch, 0),
        safety,
        number: 1,
        in_sync,
        set: SetPart::default(),
        members: vec![ReportedMember {
            name: "s2".into(),
            url: "http://s2:1".into(),
            from: Lsn(40),
            is_in_sync: false,
            set: SetPart::default(),
        }],
    }
}

fn beat(epoch: u32, durable: u64, echo_ns: u64) -> BeatSeen {
    BeatSeen {
        epoch: Epoch::new(epoch, 0),
        echo_ns: Some(echo_ns),
        came_ns: 2_000_000_000,
        durable: Lsn(durable),
        committed: Lsn(durable),
        behind_bytes: 0,
    }
}

const HEARD_NS: u64 = 7_000_000_000;
const LATE_NS: u64 = HEARD_NS + IN_SYNC_NS + 1;

#[test]
fn standby_stands_for_its_member_once_it_was_in_sync_until_its_log_begins_again_or_loses_records() {
    let node = node(&SimDisk::new());
    let has_been = |synced: &SyncStatusStore| synced.status().is_some_and(|status| status.has_been_in_sync);
    let save_status = |synced: &SyncStatusStore, epoch, is_in| {
        synced
            .keep(&standing(epoch, Safety::Quorum, is_in), Lsn(50))
            .expect("kept");
        has_been(synced)
    };
    let synced = SyncStatusStore::open(node.clone(), at(2, 50));
    assert!(!has_been(&synced) && !save_status(&synced, 2, false));
    assert!(save_status(&synced, 2, true) && save_status(&synced, 2, false) && save_status(&synced, 3, false));
    // Also after a restart, and behind a primary that it did not hear yet; a log that lost records is another one.
    for (log, stands) in [(at(3, 50), true), (at(4, 60), true), (at(3, 49), false)] {
        assert_eq!(has_been(&SyncStatusStore::open(node.clone(), log)), stands, "{log:?}");
    }
    forget_earlier_log(&node).expect("kept");
    let synced = SyncStatusStore::open(node, None);
    assert!(!has_been(&synced) && !save_status(&synced, 4, false) && save_status(&synced, 4, true));
}

#[test]
fn saved_status_survives_a_restart_and_holds_for_its_log_alone() {
    let node = node(&SimDisk::new());
    let open = |log| SyncStatusStore::open(node.clone(), log);
    // Restarts the standby, which then hears its old primary.
    let open_and_hear = |log| {
        let synced = open(log);
        let epoch = synced.epoch().count();
        synced.record_heartbeat(&beat(epoch, 50, HEARD_NS));
        synced
    };
    let first = open(at(2, 50));
    assert_eq!(first.in_sync(HEARD_NS), None, "nothing was told");
    let lost = first.behind(Lsn(50), LossCause::NeverTold);
    assert_eq!(
        (lost.epoch, lost.from, lost.known_to),
        (Epoch::new(0, 0), Lsn(50), None)
    );
    assert!(!lost.is_proven());
    first.keep(&standing(2, Safety::TwoSafe, true), Lsn(50)).expect("kept");
    first.record_heartbeat(&beat(2, 50, HEARD_NS));
    assert_eq!(first.in_sync(HEARD_NS), Some(true));
    assert_eq!(first.unheard(HEARD_NS), None);
    for (log, is_in_sync) in [
        (at(2, 50), true),
        (at(1, 60), true),
        (at(2, 49), false),
        (at(3, 60), false),
    ] {
        assert_eq!(open_and_hear(log).in_sync(HEARD_NS), Some(is_in_sync), "{log:?}");
        // Before it hears a primary, it does not know whether it is still in sync.
        assert_eq!(open(log).in_sync(HEARD_NS), (!is_in_sync).then_some(false), "{log:?}");
        assert_eq!(open(log).laggards()[0].from, Lsn(40));
    }
    // The primary had to refuse it.
    first.lose().expect("kept");
    assert_eq!(open_and_hear(at(2, 60)).in_sync(HEARD_NS), Some(false));
    first.keep(&standing(3, Safety::TwoSafe, false), Lsn(60)).expect("kept");
    first.record_heartbeat(&beat(3, 75, HEARD_NS));
    let lost = open(at(3, 60)).behind(Lsn(60), LossCause::OutOfSync);
    assert_eq!(
        (lost.epoch, lost.from, lost.known_to),
        (Epoch::new(3, 0), Lsn(60), Some(Lsn(75)))
    );
    assert!(lost.is_proven());
    first.forget().expect("removed");
    assert!(open(at(3, 60)).laggards().is_empty());
}

#[test]
fn standby_that_its_primary_did_not_hear_lately_does_not_know_whether_it_is_in_sync() {
    let synced = SyncStatusStore::open(node(&SimDisk::new()), at(2, 50));
    synced.keep(&standing(2, Safety::TwoSafe, true), Lsn(50)).expect("kept");
    assert_eq!(synced.in_sync(HEARD_NS), None, "nothing of it was heard");
    // A beat of an earlier primary says nothing about this primary.
    synced.record_heartbeat(&beat(1, 50, HEARD_NS));
    assert_eq!(synced.in_sync(HEARD_NS), None);
    synced.record_heartbeat(&beat(2, 50, HEARD_NS));
    assert_eq!(synced.in_sync(HEARD_NS + IN_SYNC_NS), Some(true));
    assert_eq!(synced.in_sync(LATE_NS), None);
    let cause = synced.unheard(LATE_NS).expect("it does not know");
    assert_eq!(cause, LossCause::Unheard(Some(IN_SYNC_NS / 1_000)));
    let lost = synced.behind(Lsn(50), cause);
    assert_eq!((lost.known_to, lost.is_proven()), (Some(Lsn(50)), false));
    // The primary reported that it is out of sync: that holds.
    synced
        .keep(&standing(2, Safety::TwoSafe, false), Lsn(50))
        .expect("kept");
    assert_eq!(synced.in_sync(LATE_NS), Some(false));
}

#[test]
fn former_primary_reports_lagging_standbys_until_a_later_primary_reports() {
    let node = node(&SimDisk::new());
    membership::save(&node, &[standby("s1", 9, true), standby("s2", 5, false)]).expect("saved");
    let synced = SyncStatusStore::open(node.clone(), at(1, 9));
    let out_of_sync = |synced: &SyncStatusStore| -> Vec<(String, u64)> {
        let laggards = synced.laggards().into_iter();
        laggards.map(|laggard| (laggard.name, laggard.from.0)).collect()
    };
    assert_eq!(out_of_sync(&synced), [("s2".to_owned(), 5)]);
    synced.keep(&standing(2, Safety::TwoSafe, true), Lsn(9)).expect("kept");
    assert_eq!(out_of_sync(&synced), [("s2".to_owned(), 40)]);
    // A node that becomes the primary keeps reporting the standby.
    let begin = |node: &NodeFile| {
        let begun = node.change(|document| membership::begin_epoch(document, &synced.laggards()));
        begun.expect("saved");
    };
    begin(&node);
    let found = || -> Vec<(String, u64, u64)> {
        let list = membership::load(&node).into_iter();
        list.map(|standby| (standby.name.to_string(), standby.from.0, standby.persisted.0))
            .collect()
    };
    assert_eq!(found(), [("s1".to_owned(), 9, 0), ("s2".to_owned(), 5, 0)]);
    membership::save(&node, &[]).expect("saved");
    begin(&node);
    assert_eq!(found(), [("s2".to_owned(), 40, 0)]);
}

#[test]
fn former_primary_that_takes_another_ones_records_has_no_standby_in_sync() {
    let disk = SimDisk::new();
    let node = node(&disk);
    membership::save(&node, &[standby("s1", 9, true)]).expect("saved");
    let are_in_sync = || membership::load(&node).iter().any(|standby| standby.is_in_sync);
    let synced = SyncStatusStore::open(node.clone(), at(1, 9));
    synced.keep(&standing(2, Safety::TwoSafe, false), Lsn(9)).expect("kept");
    assert!(are_in_sync(), "nothing of it is here");
    let full = FaultPlan {
        read_only: true,
        ..FaultPlan::default()
    };
    disk.set_faults(full.clone());
    synced.end_reign().expect_err("the disk is full");
    disk.set_faults(FaultPlan::default());
    assert!(are_in_sync());
    synced.end_reign().expect("kept");
    assert!(!are_in_sync());
    disk.set_faults(full);
    synced.end_reign().expect("it is kept already");
    // The standby s1 has sent no status yet, and no status of its primary is left. So s1 does not lag behind because of that.
    disk.set_faults(FaultPlan::default());
    forget_earlier_log(&node).expect("removed");
    assert!(SyncStatusStore::open(node, at(1, 9)).laggards().is_empty());
}

#[test]
fn standby_does_not_know_its_status_when_it_cannot_be_saved() {
    let disk = SimDisk::new();
    let synced = SyncStatusStore::open(node(&disk), at(1, 5));
    let status_with = |in_sync| standing(1, Safety::TwoSafe, in_sync);
    let heard = || {
        synced.record_heartbeat(&beat(1, 5, HEARD_NS));
        synced.in_sync(HEARD_NS)
    };
    synced.keep(&status_with(true), Lsn(5)).expect("kept");
    assert_eq!(heard(), Some(true));
    disk.set_faults(FaultPlan {
        read_only: true,
        ..FaultPlan::default()
    });
    // Another standby left, for example. Its primary continues without a standby that did not save the status.
    synced.keep(&status_with(true), Lsn(6)).expect_err("the disk is full");
    assert_eq!(heard(), None);
    assert_eq!(synced.unheard(HEARD_NS), Some(LossCause::NotKept));
    synced.keep(&status_with(false), Lsn(6)).expect_err("the disk is full");
    synced.keep(&status_with(true), Lsn(7)).expect_err("the disk is full");
    assert_eq!(heard(), Some(false), "where either says so");
    disk.set_faults(FaultPlan::default());
    synced.keep(&status_with(true), Lsn(7)).expect("kept");
    assert_eq!(heard(), Some(true));
}
