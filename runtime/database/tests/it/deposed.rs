//! A primary whose place another server took by force, and a standby beyond the beginning of its new primary. The surplus records are kept,
//! and cut off.

use std::sync::Arc;

use crate::common::{
    close, config, copy_log, digest_now, fill, fill_bank, i64s, put_log, recovered, submit, take, transfer,
};
use crate::following::{
    ACCEPTING, Cluster, FORCED, bootstrap, follow_primary, service, wait_in_sync, wait_seen, wait_streaming, wait_until,
};
use reprise_base::{Lsn, Safety};
use reprise_database::{
    CutBack, CutError, CutInfo, Database, DirHealth, NodeFile, OpenError, ServeStandbys, list_cuts,
};
use reprise_env::RealDisk;
use reprise_log::LogReader;
use reprise_router::{NodePhase, ReplicationError, ReplyOutcome};

/// A standby that took over by force, from a primary that then continued by itself.
struct Parted {
    cluster: Cluster,
    new: Arc<Database>,
    /// The point at which the histories part.
    fork: Lsn,
}

/// Makes the two servers. The old primary does `alone` when its standby has left.
fn part(alone: impl FnOnce(&Arc<Database>)) -> Parted {
    let (cluster, old) = Cluster::with_bank(200);
    take(&old);
    let new = cluster.standby_of(&old, "s1");
    transfer(&old, 1);
    wait_seen(&old, &new);
    let promoted = service(&new).promote(ACCEPTING).expect("promoted");
    alone(&old);
    old.close().expect("close");
    cluster.set_primary(&new);
    new.serve_standbys(cluster.serving("http://s1:1")).expect("served");
    // The old primary has used this key, too.
    let reply = submit(&new, &[("open", Some("k"), i64s(&[9_000, 5]))]);
    assert_eq!(*reply.get(0).outcome, ReplyOutcome::Committed);
    fill(&new, 10_000, 10);
    Parted {
        cluster,
        new,
        fork: promoted.lsn,
    }
}

impl Parted {
    /// Checks that the server follows, and has everything that the new primary has.
    fn check_follows(&self, name: &str) -> Arc<Database> {
        let standby = self.cluster.open_standby(name);
        transfer(&self.new, 5);
        wait_seen(&self.new, &standby);
        assert_eq!(digest_now(&standby), digest_now(&self.new));
        standby
    }

    /// Checks that the kept directory can be read by itself, and holds all records that were cut.
    fn check_kept(&self, cut: &CutInfo) {
        let disk = RealDisk::open(self.cluster.place("p").join("cuts").join(&cut.name).join("log"));
        let disk = Arc::new(disk.expect("kept"));
        let (mut reader, report) = LogReader::open(disk, Lsn(0)).expect("read");
        assert_eq!((report.damage, report.end), (None, Lsn(cut.to)));
        let mut count = 0;
        while let Some(record) = reader.next_record().expect("whole") {
            count += u64::from(record.lsn >= Lsn(cut.from));
        }
        assert_eq!(count, cut.to - cut.from);
        assert_eq!(list_cuts(&self.cluster.cuts("p")), std::slice::from_ref(cut));
    }
}

#[test]
fn a_deposed_primary_keeps_what_only_it_has_aside_and_follows() {
    let parted = part(|old| {
        let reply = submit(old, &[("open", Some("k"), i64s(&[7_000, 1]))]);
        assert_eq!(*reply.get(0).outcome, ReplyOutcome::Committed);
        fill(old, 5_000, 50);
        // No server may load this checkpoint any more.
        take(old);
        transfer(old, 3);
    });
    let cut = match parted.cluster.cut_back("p").expect("asked") {
        CutBack::Cut(cut) => cut,
        other => panic!("{other:?}"),
    };
    assert_eq!((Lsn(cut.from), cut.epoch, cut.cut_us), (parted.fork, 1, 77));
    assert!(cut.acknowledged, "nobody was waited for: {cut:?}");
    parted.check_kept(&cut);
    // A second cut finds nothing to do.
    assert_eq!(parted.cluster.cut_back("p").expect("asked"), CutBack::Nothing);
    let old = parted.check_follows("p");
    // The key is the new primary's, and so it stays when the old one takes over again.
    wait_in_sync(&old);
    let promoted = service(&old).promote(ACCEPTING).expect("promoted");
    assert_eq!(promoted.epoch.count(), 4);
    let lost = promoted.may_be_lost.expect("its primary alone answered");
    assert_eq!((lost.from, lost.is_proven()), (promoted.lsn, false));
    let reply = submit(&old, &[("open", Some("k"), i64s(&[9_000, 5]))]);
    assert_eq!(*reply.get(0).outcome, ReplyOutcome::Committed);
    let reply = submit(
        &old,
        &[("balance", None, i64s(&[7_000])), ("balance", None, i64s(&[9_000]))],
    );
    assert_ne!(*reply.get(0).outcome, ReplyOutcome::Committed);
    assert_eq!(*reply.get(1).outcome, ReplyOutcome::Committed);
}

#[test]
fn a_deposed_primary_that_was_opened_by_itself_meanwhile_has_another_epoch_of_the_same_number() {
    let parted = part(|old| fill(old, 5_000, 5));
    for opening in 0..2 {
        let again = recovered(config(&parted.cluster.place("p"), 1));
        fill(&again, 6_000 + 100 * opening, 20);
        close(again);
    }
    let cut = match parted.cluster.cut_back("p").expect("asked") {
        CutBack::Cut(cut) => cut,
        other => panic!("{other:?}"),
    };
    assert_eq!((Lsn(cut.from), cut.epoch), (parted.fork, 3));
    parted.check_kept(&cut);
    parted.check_follows("p");
}

#[test]
fn primary_of_a_later_epoch_is_not_rewound() {
    let parted = part(|old| fill(old, 5_000, 5));
    for opening in 0..3 {
        let again = recovered(config(&parted.cluster.place("p"), 1));
        fill(&again, 6_000 + 100 * opening, 20);
        again.close().expect("close");
    }
    let refused = parted.cluster.cut_back("p");
    assert!(
        matches!(&refused, Err(CutError::Ask(reason)) if reason.contains("it was deposed")),
        "{refused:?}"
    );
    assert!(list_cuts(&parted.cluster.cuts("p")).is_empty());
}

/// A standby that got more than the new primary, and follows it.
struct Beyond {
    cluster: Cluster,
    new: Arc<Database>,
    other: Arc<Database>,
    fork: Lsn,
}

fn be_beyond() -> Beyond {
    let (cluster, old) = Cluster::with_bank(200);
    let new = cluster.standby_of(&old, "s1");
    let other = cluster.standby_of(&old, "p2");
    wait_seen(&old, &new);
    let promoted = service(&new).promote(ACCEPTING).expect("promoted");
    fill(&old, 5_000, 20);
    wait_seen(&old, &other);
    assert!(other.parted().is_none(), "it follows");
    old.close().expect("close");
    new.serve_standbys(cluster.serving("http://s1:1")).expect("served");
    fill(&new, 10_000, 10);
    cluster.set_primary(&new);
    wait_until("it can't follow any more", || other.parted().is_some());
    let fork = promoted.lsn;
    Beyond {
        cluster,
        new,
        other,
        fork,
    }
}

#[test]
fn a_standby_that_is_beyond_where_its_new_primary_begins_is_cut_back() {
    let Beyond {
        cluster,
        new,
        other,
        fork,
    } = be_beyond();
    // While it runs it can only report it, and its operator may start it again.
    let phase = other.router().phase();
    assert!(
        matches!(&phase, NodePhase::Failed { report } if report.contains("start this one again with --standby-of")),
        "it shows nothing, and says what to do: {phase:?}"
    );
    other.close().expect("close");
    // The server has shown all its records, but none of the records that replace them.
    let view = cluster.place("p2").join("view");
    let shown = u64::MAX / 2;
    std::fs::write(&view, [shown.to_le_bytes(), (!shown).to_le_bytes()].concat()).expect("written");
    let cut = cluster.cut_back("p2").expect("asked");
    assert!(matches!(&cut, CutBack::Cut(cut) if Lsn(cut.from) == fork), "{cut:?}");
    let left = std::fs::read(&view).expect("there");
    assert_eq!(left[..8], fork.0.to_le_bytes(), "as far as the fork");
    Parted { cluster, new, fork }.check_follows("p2");
}

#[test]
fn a_standby_that_parted_from_the_wrong_primary_shows_all_again_once_it_is_the_primary() {
    let beyond = be_beyond();
    let other = &beyond.other;
    service(other).promote(ACCEPTING).expect("promoted");
    assert_eq!(other.router().phase(), NodePhase::Ready);
    let reply = submit(
        other,
        &[("balance", None, i64s(&[5_000])), ("open", None, i64s(&[9_999, 1]))],
    );
    assert_eq!(
        *reply.get(0).outcome,
        ReplyOutcome::Committed,
        "the new primary lacks it"
    );
    assert_eq!(*reply.get(1).outcome, ReplyOutcome::Committed);
}

#[test]
fn new_primary_whose_port_is_taken_takes_standbys_once_it_is_free() {
    let parted = part(|_| {});
    let standby = parted.cluster.standby_of(&parted.new, "s2");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let serving = ServeStandbys {
        listen: taken.local_addr().expect("bound").to_string(),
        ..parted.cluster.serving("http://s2:1")
    };
    standby.serve_standbys(serving).expect("later");
    wait_seen(&parted.new, &standby);
    service(&standby).promote(ACCEPTING).expect("promoted");
    let refused = service(&standby)
        .join(&"s3".into())
        .expect_err("it can't listen")
        .to_string();
    assert!(
        refused.contains("can't take standbys") && refused.contains("listen"),
        "{refused}"
    );
    drop(taken);
    service(&standby).join(&"s3".into()).expect("it is tried again");
}

#[test]
fn without_a_checkpoint_before_the_cut_nothing_of_use_is_left() {
    let parted = part(|old| {
        // These records are far more than the log keeps behind the checkpoints.
        for round in 0..6 {
            (0..100).for_each(|n| transfer(old, round * 100 + n));
            take(old);
        }
    });
    let cut = match parted.cluster.cut_back("p").expect("asked") {
        CutBack::Anew(cut) => cut,
        other => panic!("{other:?}"),
    };
    let health = parted.cluster.node("p").health();
    assert!(
        matches!(health, DirHealth::MustBootstrap(_)) && Lsn(cut.from) >= parted.fork,
        "{cut:?}, {health:?}"
    );
    parted.check_kept(&cut);
    let refused = Database::open(config(&parted.cluster.place("p"), 2)).map(drop);
    let reason = refused.expect_err("it is nobody's primary").to_string();
    assert!(reason.contains("--standby-of"), "{reason}");
}

pub fn open_at_quorum(cluster: &Cluster) -> Arc<Database> {
    open_at(Safety::Quorum, cluster, "p")
}

fn open_at(level: Safety, cluster: &Cluster, name: &str) -> Arc<Database> {
    let primary = Database::open(config(&cluster.place(name), 2)).expect("open");
    primary.change_safety(level).expect("saved");
    primary.set_safety(level).expect("set");
    primary.recover().expect("recover");
    let primary = Arc::new(primary);
    primary
        .serve_standbys(cluster.serving(&format!("http://{name}:1")))
        .expect("served");
    primary
}

#[test]
fn writes_that_waited_for_a_standby_are_not_marked_as_answered() {
    let cluster = Cluster::new();
    let old = open_at_quorum(&cluster);
    old.close().expect("close");
    // The level is kept beside the log, for a later rewind.
    let kept = cluster.document("p");
    assert_eq!(kept["led"]["safety"], "quorum", "{kept}");
}

/// Ends a primary at quorum with a call that no other server may have. Returns the end of the records that others are known to have. Its
/// checkpoint may hold the call, too.
pub fn end_with_a_waiting_write(cluster: &Cluster, is_in_checkpoint: bool) -> Lsn {
    let old = open_at_quorum(cluster);
    cluster.set_primary(&old);
    bootstrap(&old, "s1", &cluster.place("s1"));
    let standby = cluster.open_standby("s1");
    wait_in_sync(&standby);
    fill_bank(&old, 10);
    let acknowledged = old.router().view();
    fill(&old, 7_000, 1);
    if is_in_checkpoint {
        take(&old);
    }
    standby.close().expect("close");
    old.close().expect("close");
    cluster.no_primary();
    drop(old);
    // The document is as if the standby had been lost before it had the last record.
    let mut document = cluster.document("p");
    document["members"] = serde_json::json!([{
        "name": "s1", "lsn": acknowledged.0, "persisted": acknowledged.0, "in_sync": true, "counted": true
    }]);
    cluster.set_document("p", &document);
    acknowledged
}

/// A primary at quorum, and its standby that has all that was written.
fn follow_at_quorum() -> (Cluster, Arc<Database>, Arc<Database>) {
    let cluster = Cluster::new();
    let old = open_at_quorum(&cluster);
    cluster.set_primary(&old);
    let standby = cluster.standby_of(&old, "s1");
    fill_bank(&old, 10);
    wait_seen(&old, &standby);
    (cluster, old, standby)
}

#[test]
fn only_standby_that_counts_at_quorum_is_promoted_without_a_loss() {
    let (cluster, old, standby) = follow_at_quorum();
    let end = old.router().view();
    old.close().expect("close");
    let serving = cluster.serving("http://s1:1");
    standby.serve_standbys(serving).expect("once it leads");
    let promoted = service(&standby)
        .promote(FORCED)
        .expect("nothing was answered without it");
    assert_eq!((promoted.lsn, promoted.may_be_lost), (end, None));
}

#[test]
fn a_primary_that_is_started_again_shows_nothing_that_waited_for_others_until_they_have_it() {
    let cluster = Cluster::new();
    let acknowledged = end_with_a_waiting_write(&cluster, false);
    let again = open_at_quorum(&cluster);
    let info = service(&again).info();
    assert!(info.durable > acknowledged);
    assert_eq!(info.committed, acknowledged, "nobody else may have more");
    cluster.set_primary(&again);
    let standby = cluster.open_standby("s1");
    wait_in_sync(&standby);
    wait_until("the standby has it", || {
        service(&again).info().committed >= info.durable
    });
    let reply = submit(&again, &[("balance", None, i64s(&[7_000]))]);
    assert_eq!(*reply.get(0).outcome, ReplyOutcome::Committed);
}

#[test]
fn a_primary_that_is_started_as_a_standby_shows_nothing_that_waited_for_others() {
    let cluster = Cluster::new();
    let acknowledged = end_with_a_waiting_write(&cluster, false);
    let again = cluster.open_standby("p");
    let reply = submit(
        &again,
        &[("balance", None, i64s(&[7_000])), ("balance", None, i64s(&[5]))],
    );
    assert_ne!(
        *reply.get(0).outcome,
        ReplyOutcome::Committed,
        "nobody else may have it"
    );
    assert_eq!(*reply.get(1).outcome, ReplyOutcome::Committed);
    // A promotion decides on all that is there.
    let serving = cluster.serving("http://p:1");
    again.serve_standbys(serving).expect("once it leads");
    service(&again).promote(ACCEPTING).expect("promoted");
    let info = service(&again).info();
    assert!(
        info.durable > acknowledged && again.router().view() == acknowledged,
        "{info:?}"
    );
    // A standby that was in sync with an earlier primary here may have gone another way since. The next start must assume so.
    let kept = cluster.document("p");
    let member = &kept["members"][0];
    assert!(member["in_sync"] == false && member["persisted"] == 0, "{kept}");
}

#[test]
fn a_former_primary_that_shows_nothing_yet_can_be_promoted() {
    let cluster = Cluster::new();
    end_with_a_waiting_write(&cluster, true);
    let again = cluster.open_standby("p");
    assert!(
        matches!(again.router().phase(), NodePhase::Recovering { .. }),
        "its checkpoint holds what nobody else may have: {:?}",
        again.router().phase()
    );
    let refused = service(&again).promote(FORCED).expect_err("it takes no standbys");
    assert!(matches!(refused, ReplicationError::Unavailable(_)), "{refused:?}");
    let serving = cluster.serving("http://p:1");
    again.serve_standbys(serving).expect("once it leads");
    let refused = service(&again).promote(FORCED).expect_err("it may lack something");
    assert!(matches!(refused, ReplicationError::OutOfSync(_)), "{refused:?}");
    service(&again).promote(ACCEPTING).expect("promoted");
    assert_eq!(again.router().phase(), NodePhase::Ready);
    // The server leads at the level of its cluster, and no standby is here. It waits for one before it runs the read again.
    let read = [("balance", None, i64s(&[7_000]))];
    assert_eq!(*submit(&again, &read).get(0).outcome, ReplyOutcome::Superseded);
    let reply = submit(&again, &read);
    let outcome = reply.get(0).outcome;
    assert!(matches!(outcome, ReplyOutcome::StandbyUnavailable(_)), "{outcome:?}");
}

#[test]
fn a_new_standby_shows_nothing_of_its_checkpoint_that_is_not_committed() {
    let cluster = Cluster::new();
    let acknowledged = end_with_a_waiting_write(&cluster, true);
    // Each one of its standbys is to have it, and one is away.
    let again = open_at(Safety::VerySafe, &cluster, "p");
    assert_eq!(service(&again).info().committed, acknowledged);
    cluster.set_primary(&again);
    bootstrap(&again, "s2", &cluster.place("s2"));
    let new = cluster.open_standby("s2");
    wait_streaming(&again, "s2");
    assert!(
        matches!(new.router().phase(), NodePhase::Recovering { .. }),
        "s1 may lack what its checkpoint has: {:?}",
        new.router().phase()
    );
    assert_eq!(new.router().view(), acknowledged);
    // The standby knows as much after a restart.
    close(new);
    let new = cluster.open_standby("s2");
    assert!(matches!(new.router().phase(), NodePhase::Recovering { .. }));
    let first = cluster.open_standby("s1");
    wait_in_sync(&first);
    wait_until("it is let in", || new.router().phase() == NodePhase::Ready);
    let reply = submit(&new, &[("balance", None, i64s(&[7_000]))]);
    assert_eq!(*reply.get(0).outcome, ReplyOutcome::Committed);
}

#[test]
fn a_standby_keeps_what_it_may_show_before_anything_comes() {
    let cluster = Cluster::new();
    let acknowledged = end_with_a_waiting_write(&cluster, false);
    let view = cluster.place("p").join("view");
    assert!(!view.exists(), "it was the primary");
    let again = Arc::new(Database::open_standby(config(&cluster.place("p"), 2)).expect("open"));
    again
        .follow_primary(follow_primary(&cluster.primary, "p"))
        .expect("it follows");
    let kept = std::fs::read(&view).expect("kept before it is recovered");
    assert_eq!(kept[..8], acknowledged.0.to_le_bytes());
}

/// The server was a standby. Then it was started as the primary and not promoted.
#[test]
fn a_former_primary_hides_its_checkpoint_also_by_what_it_kept_as_a_standby() {
    let cluster = Cluster::new();
    let acknowledged = end_with_a_waiting_write(&cluster, true);
    let view = cluster.place("p").join("view");
    let [lsn, complement] = [acknowledged.0, !acknowledged.0].map(u64::to_le_bytes);
    std::fs::write(&view, [lsn, complement].concat()).expect("written");
    let again = Arc::new(Database::open_standby(config(&cluster.place("p"), 2)).expect("open"));
    again
        .follow_primary(follow_primary(&cluster.primary, "p"))
        .expect("it follows");
    let kept = std::fs::read(&view).expect("kept");
    assert_eq!(kept, [lsn, lsn].concat(), "also once its log has another one's records");
}

/// The server knows of no more committed records than its primary named. This holds, too, if it is started as the primary and not promoted.
#[test]
fn a_standby_that_is_started_as_the_primary_at_quorum_takes_no_more_for_committed_than_it_was_told() {
    let (cluster, old, standby) = follow_at_quorum();
    let told = standby.router().view().0 - 3;
    standby.close().expect("close");
    old.close().expect("close");
    drop(standby);
    // The view is as if the last records had arrived right before it ended.
    let view = cluster.place("s1").join("view");
    std::fs::write(&view, [told.to_le_bytes(), (!told).to_le_bytes()].concat()).expect("written");
    let root = RealDisk::open(cluster.place("s1")).expect("its directory");
    let node = NodeFile::open(Arc::new(root)).expect("read");
    node.make_primary().expect("saved");
    let new = open_at(Safety::Quorum, &cluster, "s1");
    assert_eq!(service(&new).info().committed, Lsn(told));
    assert!(service(&new).info().durable > Lsn(told));
}

#[test]
fn a_promotion_that_can_not_begin_leaves_a_standby_that_follows() {
    let (cluster, primary) = Cluster::with_bank(200);
    let standby = cluster.standby_of(&primary, "s1");
    let blocked = cluster.place("s1").join("node.json.tmp");
    std::fs::create_dir(&blocked).expect("made");
    let failed = service(&standby).promote(ACCEPTING).expect_err("nothing can be saved");
    assert!(matches!(failed, ReplicationError::Unavailable(_)), "{failed:?}");
    // The standby continues as before.
    transfer(&primary, 1);
    wait_seen(&primary, &standby);
    std::fs::remove_dir(&blocked).expect("removed");
    service(&standby).promote(ACCEPTING).expect("promoted");
}

#[test]
fn a_checkpoint_behind_what_is_left_of_a_standby_s_log_goes_before_it_follows() {
    let (cluster, primary) = Cluster::with_bank(100);
    let standby = cluster.standby_of(&primary, "s1");
    wait_seen(&primary, &standby);
    close(standby);
    let older = copy_log(&cluster.place("s1"));
    let standby = cluster.open_standby("s1");
    fill(&primary, 5_000, 50);
    wait_seen(&primary, &standby);
    let checkpoint = cluster.place("s1").join("checkpoints").join(take(&standby).file);
    close(standby);
    put_log(&cluster.place("s1"), &older);
    let alone = Database::open_standby(cluster.config("s1", 1)).expect("open");
    let refused = alone.recover().expect_err("its primary was not asked");
    assert!(matches!(refused, OpenError::BeyondLog { .. }), "{refused}");
    drop(alone);
    assert!(checkpoint.exists());
    assert_eq!(cluster.cut_back("s1").expect("asked"), CutBack::Nothing);
    assert!(!checkpoint.exists());
    let standby = cluster.open_standby("s1");
    wait_seen(&primary, &standby);
    assert_eq!(digest_now(&standby), digest_now(&primary));
}

/// The directory has all that the primary had by then, and may lack what the primary answers since.
#[test]
fn standby_that_heard_nothing_of_its_primary_yet_does_not_open_as_one() {
    let (cluster, primary) = Cluster::with_bank(10);
    bootstrap(&primary, "s1", &cluster.place("s1"));
    cluster.no_primary();
    close(cluster.open_standby("s1"));
    let refused = Database::open(cluster.config("s1", 1)).err();
    assert!(matches!(refused, Some(OpenError::IsStandby)), "{refused:?}");
    close(primary);
}
