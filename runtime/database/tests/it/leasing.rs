//! The choice of the primary by a lease, in a simulated store: it can be out of reach for one server or for all.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::Command,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::common::{begin, close, config, fill_bank, i64s, submit};
use crate::following::{
    ACCEPTING, FORCED, Primary, bootstrap, document, follow_primary, nvram, service, serving, set_document,
    wait_in_sync, wait_until,
};
use reprise_base::{Role, Safety};
use reprise_database::{
    Database, DatabaseConfig, Environment, FollowPrimary, LeaseConfig, LeaseError, NodeFile, OpenError, PeerAnswer,
    ServeStandbys, SimLeases, forget_earlier_log,
};
use reprise_env::{DiskError, DiskFile, DiskFilter, FilteredDisk, RealClock, RealDisk};
use reprise_router::{
    LeaseStatus, NodePhase, PromiseQuestion, PromoteOptions, ReplicationError, ReplyOutcome, StandbyPhase,
};

/// A machine that is busy prolongs it in time all the same.
const TTL: Duration = Duration::from_secs(5);
/// Time to live at which the limit of a hand-over, 3 s, ends before the lease.
const LONG_TTL: Duration = Duration::from_secs(10);
/// Longest time for which a disk is held. A test that fails ends all the same.
const HELD_MAX: Duration = Duration::from_secs(40);

/// The disk of a log. Its writes wait while it is held.
#[derive(Default)]
struct HeldDisk {
    is_held: AtomicBool,
}

impl DiskFilter for HeldDisk {
    fn write_durable_at(&self, file: &dyn DiskFile, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let until = Instant::now() + HELD_MAX;
        while self.is_held.load(Ordering::Acquire) && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
        file.write_durable_at(offset, bytes)
    }
}

fn leased(name: &str) -> ServeStandbys {
    ServeStandbys {
        has_lease: true,
        ..serving(&format!("http://{name}:1"))
    }
}

struct Cluster {
    dirs: tempfile::TempDir,
    leases: Arc<SimLeases>,
    primary: Primary,
    /// The logs of all are written to regions first.
    on_nvram: bool,
    level: Safety,
    ttl: Duration,
    /// The standbys that can be asked for a promise, by URL.
    peers: Arc<Mutex<BTreeMap<String, Weak<Database>>>>,
}

impl Cluster {
    fn new(on_nvram: bool) -> Self {
        Self {
            dirs: tempfile::tempdir().expect("a directory"),
            leases: SimLeases::new(Arc::new(RealClock::new())),
            primary: Primary::default(),
            on_nvram,
            level: Safety::TwoSafe,
            ttl: TTL,
            peers: Arc::default(),
        }
    }

    fn config(&self, name: &str, sites: u16) -> DatabaseConfig {
        let config = config(&self.place(name), sites);
        match self.on_nvram {
            true => DatabaseConfig {
                device: nvram(self.place(&format!("{name}.region"))),
                ..config
            },
            false => config,
        }
    }

    fn place(&self, name: &str) -> PathBuf {
        self.dirs.path().join(name)
    }

    fn lease(&self, name: &str) -> LeaseConfig {
        LeaseConfig {
            store: self.leases.store(name),
            name: name.into(),
            url: Some(format!("http://{name}:1").into()),
            ttl: self.ttl,
        }
    }

    fn set_primary(&self, primary: &Arc<Database>) {
        *self.primary.lock().expect("test") = Some(primary.clone());
    }

    fn try_start(&self, name: &str) -> Result<Arc<Database>, LeaseError> {
        let primary = Arc::new(Database::open_any(self.config(name, 2)).expect("open"));
        primary.set_safety(self.level).expect("once");
        primary.serve_standbys(leased(name)).expect("served");
        primary.keep_lease(self.lease(name))?;
        primary.recover().expect("recover");
        self.set_primary(&primary);
        Ok(primary)
    }

    fn start(&self, name: &str) -> Arc<Database> {
        self.try_start(name).expect("it has the lease")
    }

    fn open_standby(&self, name: &str) -> Arc<Database> {
        self.follow(name, Database::open_standby(self.config(name, 3)).expect("open"))
    }

    /// Has an opened standby follow the primary.
    fn follow(&self, name: &str, standby: Database) -> Arc<Database> {
        let standby = Arc::new(standby);
        standby.set_safety(self.level).expect("once");
        standby.serve_standbys(leased(name)).expect("once it is promoted");
        standby.keep_lease(self.lease(name)).expect("once");
        let peers = self.peers.clone();
        let ask = move |url: &String, question: &PromiseQuestion| -> PeerAnswer {
            let peer = peers.lock().expect("test").get(url).and_then(Weak::upgrade);
            let answer = service(&*peer.ok_or("it is away")?).promise(question);
            answer.map_err(|error| error.to_string().into())
        };
        let config = FollowPrimary {
            ask_peers: Arc::new(move |urls, question| urls.iter().map(|url| ask(url, question)).collect()),
            ..follow_primary(&self.primary, name)
        };
        standby.follow_primary(config).expect("it follows");
        standby.recover().expect("recover");
        let url = format!("http://{name}:1");
        self.peers.lock().expect("test").insert(url, Arc::downgrade(&standby));
        standby
    }

    fn standby_of(&self, primary: &Database, name: &str) -> Arc<Database> {
        bootstrap(primary, name, &self.place(name));
        let standby = self.open_standby(name);
        self.wait_recorded(name, &standby);
        standby
    }

    fn wait_recorded(&self, name: &str, standby: &Database) {
        wait_in_sync(standby);
        wait_until("it is recorded as in sync", || {
            self.in_sync().contains(&name.to_owned())
        });
    }

    fn in_sync(&self) -> Vec<String> {
        self.leases.record().map_or_else(Vec::new, |record| record.in_sync)
    }
}

fn open_account(database: &Database, account: i64) -> ReplyOutcome {
    let reply = submit(database, &[("open", None, i64s(&[account, 1]))]);
    reply.get(0).outcome.clone()
}

fn has_account(database: &Database, account: i64) -> bool {
    let reply = submit(database, &[("balance", None, i64s(&[account]))]);
    *reply.get(0).outcome == ReplyOutcome::Committed
}

fn state(database: &Database) -> LeaseStatus {
    service(database).info().lease.expect("it takes part").state
}

fn prepared(cluster: &Cluster) -> Arc<Database> {
    let primary = cluster.start("p");
    fill_bank(&primary, 100);
    primary
}

#[test]
fn a_standby_in_sync_takes_over_from_a_primary_that_lost_its_lease_and_answers_nothing_then() {
    [false, true].into_iter().for_each(takes_over);
}

fn takes_over(on_nvram: bool) {
    let cluster = Cluster::new(on_nvram);
    let old = prepared(&cluster);
    let new = cluster.standby_of(&old, "s1");
    assert_eq!((state(&old), state(&new)), (LeaseStatus::Held, LeaseStatus::Elsewhere));
    assert_eq!(new.leased_primary().as_deref(), Some("http://p:1"));
    assert_eq!(open_account(&old, 1_000), ReplyOutcome::Committed);
    cluster.leases.set_away("p", true);
    wait_until("the standby takes over", || new.router().role() == Role::Primary);
    assert!(cluster.in_sync().is_empty(), "nobody has what it may answer alone");
    // The old one has lost the standby that has everything, and can't record that.
    assert_eq!(state(&old), LeaseStatus::Over);
    assert_ne!(open_account(&old, 2_000), ReplyOutcome::Committed);
    assert_eq!(open_account(&new, 2_001), ReplyOutcome::Committed);
    assert!(has_account(&new, 1_000) && !has_account(&new, 2_000));
    cluster.leases.set_away("p", false);
    wait_until("the old one hears of it", || old.router().role() == Role::Standby);
    assert_eq!(old.router().primary_url().as_deref(), Some("http://s1:1"));
    wait_until(
        "it shows nothing that only it has",
        || matches!(old.router().phase(), NodePhase::Failed { report } if report.contains("s1 has the lease")),
    );
    close(old);
    let refused = Database::open(cluster.config("p", 1));
    assert!(
        matches!(&refused, Err(OpenError::SteppedDown { successor, .. }) if successor == "s1"),
        "{:?}",
        refused.err()
    );
    assert_eq!(state(&new), LeaseStatus::Held);
    new.close().expect("close");
    assert!(cluster.leases.holder().is_none(), "it gave the lease back");
}

#[test]
fn standby_at_quorum_takes_over_by_the_lease_when_another_one_promises_and_not_alone() {
    let cluster = Cluster {
        level: Safety::Quorum,
        ..Cluster::new(false)
    };
    let old = cluster.start("p");
    let (one, other) = (cluster.standby_of(&old, "s1"), cluster.standby_of(&old, "s2"));
    fill_bank(&old, 100);
    wait_until("both count", || {
        let members = document(&cluster.place("s1")).to_string();
        members.matches("\"counted\":true").count() >= 2
    });
    assert_eq!(open_account(&old, 1_000), ReplyOutcome::Committed);
    *cluster.primary.lock().expect("test") = None;
    let peers = std::mem::take(&mut *cluster.peers.lock().expect("test"));
    close(old);
    let tries = || service(&one).info().lease.is_some_and(|lease| lease.holder.is_some());
    wait_until("it tries", tries);
    thread::sleep(2 * TTL);
    for standby in [&one, &other] {
        assert_eq!(standby.router().role(), Role::Standby, "the other one may have more");
    }
    assert_eq!(cluster.in_sync().len(), 2, "both may try");
    *cluster.peers.lock().expect("test") = peers;
    let leads = |database: &Database| database.router().role() == Role::Primary;
    wait_until("one of them takes over", || leads(&one) || leads(&other));
    let (new, follower) = if leads(&one) { (one, other) } else { (other, one) };
    cluster.set_primary(&new);
    wait_until("the other one follows", || {
        open_account(&new, 1_001) == ReplyOutcome::Committed
    });
    assert!(has_account(&new, 1_000));
    let recorded = cluster.leases.record().expect("one is there").epoch;
    assert_eq!(Some(recorded), new.router().status().epoch.map(|epoch| epoch.count()));
    close(follower);
    new.close().expect("close");
}

#[test]
fn a_lease_that_was_taken_and_not_told_of_is_taken_again() {
    let cluster = Cluster::new(false);
    let old = prepared(&cluster);
    let new = cluster.standby_of(&old, "s1");
    cluster.leases.lose_answer("s1");
    cluster.leases.set_away("p", true);
    wait_until("the standby takes over", || new.router().role() == Role::Primary);
    assert_eq!(cluster.leases.record().expect("one is there").primary, "s1");
    wait_until("it answers", || open_account(&new, 2_000) == ReplyOutcome::Committed);
    new.close().expect("close");
    old.close().expect("close");
}

#[test]
fn failed_takeover_leaves_the_lease_to_its_former_holder() {
    let cluster = Cluster::new(false);
    let old = prepared(&cluster);
    let new = cluster.standby_of(&old, "s1");
    let gone = cluster.standby_of(&old, "s2");
    close(gone);
    wait_until("it is told who left", || {
        open_account(&old, 1_000);
        service(&new)
            .info()
            .out_of_sync
            .iter()
            .any(|standby| standby.name == "s2")
    });
    // A directory has the place of the file that is to be written.
    let in_the_way = cluster.place("s1").join("node.json.tmp");
    std::fs::create_dir(&in_the_way).expect("made");
    *cluster.primary.lock().expect("test") = None;
    close(old);
    let failed = service(&new).promote(FORCED).expect_err("nothing can be kept");
    assert!(failed.to_string().contains("can't be kept here"), "{failed}");
    wait_until("the record is as before", || {
        let record = cluster.leases.record().expect("one is there");
        cluster.leases.holder().is_none() && record.primary == "p" && record.in_sync == ["s1"]
    });
    std::fs::remove_dir(&in_the_way).expect("removed");
    wait_until("it takes over", || new.router().role() == Role::Primary);
    new.close().expect("close");
}

#[test]
fn a_loss_is_told_where_the_store_did_not_answer_first() {
    let cluster = Cluster::new(false);
    let old = prepared(&cluster);
    let new = cluster.standby_of(&old, "s1");
    close(new);
    wait_until("it goes on alone", || cluster.in_sync().is_empty());
    close(old);
    *cluster.primary.lock().expect("test") = None;
    let new = cluster.open_standby("s1");
    cluster.leases.lose_answer("s1");
    let refused = service(&new).promote(ACCEPTING).expect_err("no answer");
    assert!(matches!(refused, ReplicationError::Unavailable(_)), "{refused:?}");
    let promoted = service(&new).promote(FORCED).expect("the record names it");
    assert!(promoted.may_be_lost.is_some(), "{promoted:?}");
    new.close().expect("close");
}

#[test]
fn a_primary_without_the_store_answers_with_its_standbys_and_alone_while_its_lease_lasts() {
    [false, true].into_iter().for_each(answers_without_the_store);
}

fn answers_without_the_store(on_nvram: bool) {
    let cluster = Cluster::new(on_nvram);
    let primary = prepared(&cluster);
    let standby = cluster.standby_of(&primary, "s1");
    cluster.leases.set_all_away(true);
    wait_until("its lease is over", || state(&primary) == LeaseStatus::Over);
    assert_eq!(primary.router().role(), Role::Primary);
    let lease = service(&primary).info().lease.expect("it takes part");
    assert!(lease.error.is_some() && lease.left_us == 0, "{lease:?}");
    assert_eq!(open_account(&primary, 1_000), ReplyOutcome::Committed);
    // A lease that has ended can't be given away. Whichever server asks, this one stays the primary.
    let refused = service(&primary).step_down("s1", None).expect_err("refused");
    assert!(
        refused.to_string().contains("lease of this server is over"),
        "{refused}"
    );
    let refused = service(&standby).promote(PromoteOptions::default());
    assert!(matches!(&refused, Err(ReplicationError::Unavailable(_))), "{refused:?}");
    assert_eq!(primary.router().role(), Role::Primary);
    // The standby leaves. That can't be recorded, so the primary begins nothing that no other server would know.
    close(standby);
    let is_lost = || {
        service(&primary)
            .info()
            .standbys
            .iter()
            .all(|standby| standby.state == StandbyPhase::Lost)
    };
    wait_until("it is lost", is_lost);
    // A caller gets the loss of the lease as its error.
    let mut account = 1_100;
    wait_until("nobody is answered", || {
        account += 1;
        let refused = open_account(&primary, account);
        assert_ne!(refused, ReplyOutcome::Committed);
        matches!(refused, ReplyOutcome::LeaseLost(reason) if reason.contains("lost its lease"))
    });
    assert_eq!(cluster.in_sync(), ["s1"]);
    cluster.leases.set_all_away(false);
    wait_until("that is recorded", || cluster.in_sync().is_empty());
    // A call that waited when the primary began to continue alone gets an unknown outcome.
    let mut alone = 2_000;
    wait_until("it goes on alone", || {
        alone += 1;
        open_account(&primary, alone) == ReplyOutcome::Committed
    });
    // Alone and without the store: as long as the lease lasts.
    cluster.leases.set_all_away(true);
    wait_until("its lease is over", || state(&primary) == LeaseStatus::Over);
    let refused = open_account(&primary, 1_003);
    assert!(
        matches!(&refused, ReplyOutcome::LeaseLost(reason) if reason.contains("lost its lease")),
        "{refused:?}"
    );
    assert!(has_account(&primary, alone), "what was answered is read");
    cluster.leases.set_all_away(false);
    wait_until("it has the lease again", || state(&primary) == LeaseStatus::Held);
    assert_eq!(open_account(&primary, 1_003), ReplyOutcome::Committed);
    // A standby that is out of sync takes over by no lease. An operator who accepts the loss can promote it.
    *cluster.primary.lock().expect("test") = None;
    close(primary);
    let standby = cluster.open_standby("s1");
    thread::sleep(3 * TTL);
    assert_eq!(
        (standby.router().role(), state(&standby)),
        (Role::Standby, LeaseStatus::Free)
    );
    assert_eq!(
        service(&standby).own().expect("a standby").in_sync,
        None,
        "nobody could tell it"
    );
    let refused = service(&standby).promote(FORCED).expect_err("refused");
    assert!(matches!(refused, ReplicationError::OutOfSync(_)), "{refused:?}");
    let promoted = service(&standby).promote(ACCEPTING).expect("promoted");
    let lost = promoted.may_be_lost.expect("it lacks what was answered");
    assert_eq!(lost.from, promoted.lsn);
    assert!(has_account(&standby, 1_000) && !has_account(&standby, alone));
    assert_eq!(open_account(&standby, 3_000), ReplyOutcome::Committed);
    standby.close().expect("close");
}

/// Without the record, a lease that was given back would be taken by a standby that the record names, or by none.
#[test]
fn hand_over_keeps_the_lease_while_its_record_is_refused() {
    for is_writable_later in [true, false] {
        let cluster = Cluster {
            ttl: LONG_TTL,
            ..Cluster::new(false)
        };
        let primary = prepared(&cluster);
        let standbys = ["s1", "s2"].map(|name| cluster.standby_of(&primary, name));
        wait_until("both are recorded", || cluster.in_sync() == ["s1", "s2"]);
        let has_lease = || cluster.leases.holder().is_some_and(|holder| holder.name == "p");
        cluster.leases.set_unwritable("p", true);
        thread::scope(|scope| {
            let stepping = scope.spawn(|| service(&primary).step_down("s1", None));
            wait_until("it stepped down", || primary.router().role() == Role::Standby);
            thread::sleep(Duration::from_millis(300));
            assert!(has_lease(), "it gave the lease back without the record");
            cluster.leases.set_unwritable("p", !is_writable_later);
            stepping.join().expect("no panic").expect("it gave its place away");
        });
        if is_writable_later {
            let record = cluster.leases.record().expect("there is one");
            assert!(!has_lease());
            assert!(record.primary == "s1" || record.in_sync == ["s1"], "{record:?}");
        } else {
            wait_until("the lease ends by itself", || !has_lease());
        }
        let leads = |database: &Arc<Database>| database.router().role() == Role::Primary;
        wait_until("a standby takes over", || standbys.iter().any(leads));
        standbys.into_iter().for_each(close);
        close(primary);
    }
}

#[test]
fn server_that_may_not_have_the_lease_does_not_begin_as_the_primary() {
    [false, true].into_iter().for_each(begins_with_the_lease_alone);
}

fn begins_with_the_lease_alone(on_nvram: bool) {
    let cluster = Cluster::new(on_nvram);
    let primary = prepared(&cluster);
    let standby = cluster.standby_of(&primary, "s1");
    let forced = service(&standby).promote(FORCED).expect_err("refused");
    assert!(
        matches!(&forced, ReplicationError::PrimaryNotStopped(reason) if reason.contains("p has the lease")),
        "{forced:?}"
    );
    // A switch-over gives the lease with the place.
    let asked = PromoteOptions {
        is_forced: false,
        accepts_loss: false,
    };
    let promoted = service(&standby).promote(asked).expect("promoted");
    assert!(promoted.has_stepped_down && promoted.may_be_lost.is_none());
    wait_until("it has the lease", || state(&standby) == LeaseStatus::Held);
    assert_eq!(open_account(&standby, 1_000), ReplyOutcome::Committed);
    close(primary);
    let mut document = document(&cluster.place("p"));
    document.as_object_mut().expect("an object").remove("handed_over");
    set_document(&cluster.place("p"), &document);
    // The standby has shown no more yet.
    let view = cluster.place("p").join("view");
    std::fs::write(&view, [0; 16]).expect("written");
    let held = cluster.try_start("p").err();
    assert!(
        matches!(&held, Some(LeaseError::Held(holder)) if holder.name == "s1"),
        "{held:?}"
    );
    assert!(view.exists(), "it is no primary");
    close(standby);
    let behind = cluster.try_start("p").err();
    assert!(
        matches!(&behind, Some(LeaseError::Behind { primary }) if primary == "s1"),
        "{behind:?}"
    );
    // The last primary has it again when it comes back.
    let again = cluster.start("s1");
    assert!(has_account(&again, 1_000));
    again.close().expect("close");
}

/// A standby takes over then, and shows everything.
#[test]
fn the_last_primary_does_not_begin_in_an_old_copy_of_its_directory() {
    [false, true].into_iter().for_each(begins_in_no_old_copy);
}

fn copy(from: PathBuf, to: PathBuf) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().expect("run cp");
    assert!(copied.success(), "{copied}");
}

fn assert_older(refused: Option<LeaseError>, what: &str) {
    assert!(
        matches!(&refused, Some(LeaseError::Older(told)) if told == what),
        "{refused:?}"
    );
}

/// The copy is from within the primary's last epoch.
#[test]
fn primary_does_not_begin_in_a_copy_of_its_directory_that_ends_before_what_it_recorded() {
    let cluster = Cluster::new(false);
    let primary = prepared(&cluster);
    copy(cluster.place("p"), cluster.place("old"));
    let found = primary.router().view();
    assert_eq!(open_account(&primary, 1_000), ReplyOutcome::Committed);
    let recorded = primary.router().view();
    wait_until("the end is recorded", || {
        cluster.leases.record().is_some_and(|record| record.lsn >= recorded.0)
    });
    close(primary);
    std::fs::rename(cluster.place("p"), cluster.place("lost")).expect("renamed");
    copy(cluster.place("old"), cluster.place("p"));
    let what = format!("LSN {recorded} is recorded, and its log ends at LSN {found}");
    assert_older(cluster.try_start("p").err(), &what);
    std::fs::remove_dir_all(cluster.place("p")).expect("removed");
    std::fs::rename(cluster.place("lost"), cluster.place("p")).expect("renamed");
    let primary = cluster.start("p");
    assert!(has_account(&primary, 1_000));
    primary.close().expect("close");
}

fn begins_in_no_old_copy(on_nvram: bool) {
    let cluster = Cluster::new(on_nvram);
    prepared(&cluster).close().expect("close");
    copy(cluster.place("p"), cluster.place("old"));
    if on_nvram {
        copy(cluster.place("p.region"), cluster.place("old.region"));
    }
    let primary = cluster.start("p");
    let standby = cluster.standby_of(&primary, "s1");
    assert_eq!(open_account(&primary, 1_000), ReplyOutcome::Committed);
    close(standby);
    close(primary);
    let in_sync = cluster.in_sync();
    std::fs::rename(cluster.place("p"), cluster.place("lost")).expect("renamed");
    copy(cluster.place("old"), cluster.place("p"));
    if on_nvram {
        copy(cluster.place("old.region"), cluster.place("p.region"));
    }
    // However often it is tried.
    for _ in 0..3 {
        let refused = cluster.try_start("p").err();
        assert_older(refused, "epoch 2 is recorded, and it reaches epoch 1");
    }
    *cluster.primary.lock().expect("test") = None;
    let standby = cluster.open_standby("s1");
    match in_sync.is_empty() {
        false => wait_until("it takes over", || standby.router().role() == Role::Primary),
        // The primary continued alone for a moment, once the standby was closed.
        true => drop(service(&standby).promote(ACCEPTING).expect("promoted")),
    }
    assert!(has_account(&standby, 1_000));
    standby.close().expect("close");
}

/// A directory that is begun anew as a standby's may have only a part of the log when it is started as the primary.
#[test]
fn the_last_primary_does_not_begin_once_its_log_went() {
    let cluster = Cluster::new(false);
    prepared(&cluster).close().expect("close");
    cluster.start("p").close().expect("close");
    cluster.start("p").close().expect("close");
    // The primary wrote nothing in its last epoch, and has everything.
    *cluster.primary.lock().expect("test") = None;
    let standby = cluster.open_standby("p");
    let promoted = service(&standby).promote(FORCED).expect("nobody else was the primary");
    assert_eq!(promoted.may_be_lost, None);
    close(standby);
    let root = Arc::new(RealDisk::open(cluster.place("p")).expect("its directory"));
    forget_earlier_log(&NodeFile::open(root).expect("read")).expect("saved");
    for _ in 0..2 {
        let older = cluster.try_start("p").err();
        assert_older(older, "epoch 4 is recorded, and it reaches epoch 1");
    }
    let standby = cluster.open_standby("p");
    let refused = service(&standby).promote(FORCED).expect_err("it may lack anything");
    assert!(matches!(refused, ReplicationError::OutOfSync(_)), "{refused:?}");
    service(&standby).promote(ACCEPTING).expect("promoted");
    close(standby);
    cluster.start("p").close().expect("close");
}

/// A promoted server begins behind all epochs that others had, although it saw nothing of them.
#[test]
fn a_promoted_server_has_an_epoch_of_its_own() {
    [false, true].into_iter().for_each(has_its_own_epoch);
}

fn has_its_own_epoch(on_nvram: bool) {
    let cluster = Cluster::new(on_nvram);
    let primary = prepared(&cluster);
    cluster.standby_of(&primary, "s1").close().expect("close");
    // Many epochs, of which the standby sees none.
    close(primary);
    for account in 1_000..1_003 {
        let primary = cluster.start("p");
        let mut tries = 0;
        wait_until("it goes on alone", || {
            tries += 1;
            open_account(&primary, 100 * account + tries) == ReplyOutcome::Committed
        });
        primary.close().expect("close");
    }
    let last = cluster.leases.record().expect("one is there").epoch;
    assert_eq!(last, 4);
    *cluster.primary.lock().expect("test") = None;
    let standby = cluster.open_standby("s1");
    let promoted = service(&standby).promote(ACCEPTING).expect("promoted");
    assert_eq!(promoted.epoch.count(), last + 1);
    assert_eq!(open_account(&standby, 5_000), ReplyOutcome::Committed);
    close(standby);
    let again = cluster.start("s1");
    assert!(has_account(&again, 5_000));
    assert_eq!(cluster.leases.record().expect("one is there").epoch, last + 2);
    again.close().expect("close");
}

/// A standby in sync that is started as the primary, too.
#[test]
fn a_standby_in_sync_begins_as_the_primary_in_an_epoch_of_its_own() {
    [false, true].into_iter().for_each(begins_in_its_own_epoch);
}

fn begins_in_its_own_epoch(on_nvram: bool) {
    let cluster = Cluster::new(on_nvram);
    let primary = prepared(&cluster);
    let standby = cluster.standby_of(&primary, "s1");
    // The standby would take over between two starts of the primary.
    cluster.leases.set_away("s1", true);
    close(primary);
    // The next epochs of the primary stay empty, and no server uses them again. A standby's log may have records that were shipped and not
    // written.
    for _ in 0..2 {
        cluster.start("p").close().expect("close");
    }
    let recorded = cluster.leases.record().expect("one is there");
    assert_eq!((recorded.in_sync, recorded.epoch), (vec!["s1".to_owned()], 3));
    close(standby);
    cluster.leases.set_away("s1", false);
    let new = cluster.start("s1");
    assert_eq!(cluster.leases.record().expect("one is there").epoch, 4);
    assert_eq!(open_account(&new, 5_000), ReplyOutcome::Committed);
    new.close().expect("close");
}

#[test]
fn standby_in_sync_in_an_earlier_epoch_is_not_in_sync_with_a_new_primary() {
    let cluster = Cluster::new(false);
    let first = prepared(&cluster);
    let second = cluster.standby_of(&first, "s1");
    // Its lease ends, and it does not hear that the other one is the primary.
    cluster.leases.set_away("p", true);
    wait_until("the other one takes over", || second.router().role() == Role::Primary);
    close(first);
    cluster.leases.set_away("p", false);
    cluster.set_primary(&second);
    let first = cluster.open_standby("p");
    wait_until("it is recorded as in sync", || {
        cluster.in_sync().contains(&"p".to_owned())
    });
    wait_in_sync(&first);
    wait_until("it is answered", || {
        open_account(&second, 3_000) == ReplyOutcome::Committed
    });
    cluster.leases.set_away("s1", true);
    first.close().expect("close");
    second.close().expect("close");
    drop((first, second));
    cluster.leases.set_away("s1", false);
    wait_until("its lease is over", || cluster.leases.holder().is_none());
    let first = cluster.start("p");
    assert_eq!(
        cluster.in_sync(),
        Vec::<String>::new(),
        "they were in its earlier reign"
    );
    assert!(has_account(&first, 3_000));
    first.close().expect("close");
}

#[test]
fn a_place_that_was_given_counts_no_more_once_another_server_had_the_lease() {
    let cluster = Cluster::new(false);
    let first = prepared(&cluster);
    let given = cluster.standby_of(&first, "s1");
    let other = cluster.standby_of(&first, "s2");
    let asked = PromoteOptions {
        is_forced: false,
        accepts_loss: false,
    };
    service(&given).promote(asked).expect("the primary gives its place");
    close(given);
    // The promotion is forced, and the server answers alone.
    service(&other).promote(ACCEPTING).expect("promoted");
    wait_until("it answers alone", || {
        open_account(&other, 3_000) == ReplyOutcome::Committed
    });
    close(other);
    // A server that gave its place away reports so again. Another server had it since.
    let given = cluster.open_standby("s1");
    let refused = service(&given).promote(asked);
    assert!(matches!(refused, Err(ReplicationError::OutOfSync(_))), "{refused:?}");
    service(&given).promote(ACCEPTING).expect("whoever asks knows");
    assert!(!has_account(&given, 3_000));
    given.close().expect("close");
    first.close().expect("close");
}

#[test]
fn a_standby_acknowledges_nothing_to_a_primary_that_another_one_followed() {
    let cluster = Cluster::new(false);
    let first = prepared(&cluster);
    let other = cluster.standby_of(&first, "s1");
    let third = cluster.standby_of(&first, "s2");
    close(third);
    // The first one does not hear of it, and its lease ends.
    cluster.leases.set_away("p", true);
    wait_until("its lease is over", || state(&first) == LeaseStatus::Over);
    wait_until("the other one takes over", || other.router().role() == Role::Primary);
    assert_eq!(open_account(&other, 3_000), ReplyOutcome::Committed);
    close(other);
    let third = cluster.open_standby("s2");
    wait_until("it knows better", || {
        let own = service(&third).own().expect("a standby");
        own.error
            .is_some_and(|error| error.contains("s1 has been the primary in epoch 2 since"))
    });
    assert_ne!(open_account(&first, 4_000), ReplyOutcome::Committed);
    third.close().expect("close");
    first.close().expect("close");
}

/// The lease of a standby ends while its disk keeps it from the end of its takeover, and an operator promotes another one.
#[test]
fn server_that_loses_the_lease_while_it_takes_over_is_deposed() {
    let cluster = Cluster::new(false);
    let first = prepared(&cluster);
    bootstrap(&first, "s1", &cluster.place("s1"));
    let (config, disk) = (cluster.config("s1", 3), Arc::new(HeldDisk::default()));
    let mut around = Environment::real(&config).expect("a directory");
    let folders = around.folders.as_mut().expect("there is a log");
    folders.log = Arc::new(FilteredDisk::new(folders.log.clone(), disk.clone()));
    let late = Database::open_standby_in(config, around).expect("open");
    let late = cluster.follow("s1", late);
    cluster.wait_recorded("s1", &late);
    let other = cluster.standby_of(&first, "s2");
    cluster.leases.set_away("s2", true);
    disk.is_held.store(true, Ordering::Release);
    let _waits = begin(&first, "", &[("bank", "open", None, i64s(&[1_000, 1]))]);
    wait_until("a record waits for the disk", || {
        late.standby_positions().is_some_and(|at| at.persisted < at.received)
    });
    cluster.leases.set_away("p", true);
    let holder = || cluster.leases.holder().map(|holder| holder.name);
    wait_until("it has the lease", || holder().as_deref() == Some("s1"));
    cluster.leases.set_away("s1", true);
    wait_until("its lease is over", || holder().is_none());
    cluster.leases.set_away("s2", false);
    service(&other).promote(ACCEPTING).expect("promoted");
    cluster.leases.set_away("s1", false);
    wait_until("it hears of that", || state(&late) == LeaseStatus::Elsewhere);
    assert_eq!(late.router().role(), Role::Standby, "its takeover waits");
    disk.is_held.store(false, Ordering::Release);
    wait_until(
        "it is deposed",
        || matches!(late.router().phase(), NodePhase::Failed { report } if report.contains("s2 has the lease")),
    );
    assert_eq!(late.router().role(), Role::Standby);
    wait_until("the other one answers", || has_account(&other, 1_000));
    cluster.leases.set_away("p", false);
    [late, other, first].into_iter().for_each(close);
}
