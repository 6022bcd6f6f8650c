//! A standby takes its primary's log while it is recovered, and shows no more of it than one that was recovered before.

use std::sync::Arc;

use crate::common::{close, config, fill, fill_bank, recovered, take, transfer};
use crate::following::{
    ACCEPTING, Cluster, FORCED, bootstrap, follow_primary, service, wait_in_sync, wait_seen, wait_until,
};
use reprise_base::{Lsn, Safety};
use reprise_database::Database;
use reprise_env::{Clock, RealClock};
use reprise_observe::Notice;
use reprise_router::{NodePhase, ReplicationError};
use reprise_test_crash::copy_dir;

/// A primary of 200 accounts.
fn start(cluster: &Cluster, level: Safety) -> Arc<Database> {
    let primary = Arc::new(Database::open(cluster.config("p", 2)).expect("open"));
    primary.set_safety(level).expect("a level");
    primary.recover().expect("recover");
    primary.serve_standbys(cluster.serving("http://p:1")).expect("served");
    cluster.set_primary(&primary);
    fill_bank(&primary, 200);
    primary
}

/// Opens a standby that follows, and has replayed nothing of its own log yet.
fn follow_first(cluster: &Cluster, name: &str) -> Arc<Database> {
    let standby = Arc::new(Database::open_standby(cluster.config(name, 3)).expect("open"));
    let follows = standby.follow_primary(follow_primary(&cluster.primary, name));
    follows.expect("it follows");
    standby
}

fn received(database: &Database) -> Lsn {
    database.received().expect("a standby").lsn
}

fn digest(database: &Database) -> String {
    format!("{:?}", database.router().digest().expect("ready"))
}

#[test]
fn a_standby_takes_its_primary_s_log_while_it_is_recovered() {
    let cluster = Cluster::new();
    let primary = start(&cluster, Safety::TwoSafe);
    bootstrap(&primary, "s1", &cluster.place("s1"));
    for round in 0..2 {
        let standby = follow_first(&cluster, "s1");
        (0..20).for_each(|n| transfer(&primary, 100 * round + n));
        wait_in_sync(&standby);
        // The primary waits for this standby as for any other that has the log on its disk.
        (20..40).for_each(|n| transfer(&primary, 100 * round + n));
        let end = primary.router().view();
        wait_until("it has all", || received(&standby) >= end);
        assert_eq!(standby.router().view(), Lsn(0), "nobody reads yet");
        assert!(!matches!(standby.router().phase(), NodePhase::Ready));
        let refused = service(&standby).promote(FORCED);
        assert!(matches!(refused, Err(ReplicationError::Unavailable(_))), "{refused:?}");
        standby.recover().expect("recover");
        wait_seen(&primary, &standby);
        assert_eq!(digest(&standby), digest(&primary));
        // The standby continues, also behind a checkpoint of its own.
        transfer(&primary, 1);
        wait_seen(&primary, &standby);
        take(&standby);
        transfer(&primary, 2);
        wait_seen(&primary, &standby);
        assert_eq!(digest(&standby), digest(&primary));
        standby.close().expect("close");
    }
    primary.close().expect("close");
}

#[test]
fn records_during_recovery_are_shown_once_committed() {
    let cluster = Cluster::new();
    let primary = start(&cluster, Safety::OneSafe);
    bootstrap(&primary, "s1", &cluster.place("s1"));
    let standby = follow_first(&cluster, "s1");
    fill(&primary, 1_000, 20);
    let end = primary.router().view();
    wait_until("it has all, and knows it", || {
        received(&standby) >= end && service(&standby).info().committed >= end
    });
    assert_eq!(standby.router().view(), Lsn(0));
    // The primary is gone before it can say anything to a recovered standby. Its earlier word counts.
    cluster.no_primary();
    close(primary);
    standby.recover().expect("recover");
    wait_until("it shows what it was told", || standby.router().view() >= end);
    standby.close().expect("close");
    // Opened again without a report of more commits, it shows as much.
    let again = follow_first(&cluster, "s1");
    again.recover().expect("recover");
    assert!(again.router().view() >= end);
    again.close().expect("close");
}

#[test]
fn a_primary_that_does_not_hold_what_is_here_says_so_while_it_is_recovered() {
    let cluster = Cluster::new();
    let old = start(&cluster, Safety::OneSafe);
    let new = cluster.standby_of(&old, "s1");
    service(&new).promote(ACCEPTING).expect("promoted");
    fill(&old, 5_000, 5);
    close(old);
    new.serve_standbys(cluster.serving("http://s1:1")).expect("served");
    fill(&new, 6_000, 50);
    cluster.set_primary(&new);
    let parted = follow_first(&cluster, "p");
    wait_until("it is refused", || {
        matches!(parted.router().phase(), NodePhase::Failed { .. })
    });
    parted.recover().expect("recover");
    let phase = parted.router().phase();
    assert!(
        matches!(&phase, NodePhase::Failed { report } if report.contains("shows nothing")),
        "it stays hidden: {phase:?}"
    );
    // The server shows its records once it is their primary.
    service(&parted).promote(ACCEPTING).expect("promoted");
    assert_eq!(parted.router().phase(), NodePhase::Ready);
    fill(&parted, 7_000, 5);
    parted.close().expect("close");
    new.close().expect("close");
}

const DAY_US: i64 = 86_400_000_000;

/// The system's clocks, with the wall clock two days ahead.
struct AheadClock(RealClock);

impl Clock for AheadClock {
    fn now_us(&self) -> i64 {
        self.0.now_us() + 2 * DAY_US
    }
    fn monotonic_ns(&self) -> u64 {
        self.0.monotonic_ns()
    }
}

/// The operator mends the clock while the server is stopped.
#[test]
fn clock_jump_is_counted_when_a_primary_opens_a_log_of_later_transactions() {
    let root = tempfile::tempdir().expect("a directory");
    let place = root.path().join("p");
    let open_ahead = || {
        let database = Database::open_changed(config(&place, 2), |around| {
            around.clock = Arc::new(AheadClock(RealClock::new()));
        });
        let database = database.expect("open");
        database.recover().expect("recover");
        database
    };
    let database = open_ahead();
    fill_bank(&database, 10);
    close(database);
    copy_dir(&place, &root.path().join("s")).expect("copied");
    let database = open_ahead();
    assert_eq!(database.router().clock_jumps(), 0, "the clock is as it was");
    close(database);
    let database = recovered(config(&place, 2));
    assert_eq!(database.router().clock_jumps(), 1);
    let told = database.router().notices().take().notices;
    let is_back = |notice: &Notice| matches!(notice, Notice::ClockJumped { by_us } if *by_us < -DAY_US);
    assert!(told.iter().any(is_back), "{told:?}");
    close(database);
    // The clock of its primary gave the times to a standby.
    let standby = Database::open_standby(config(&root.path().join("s"), 3)).expect("open");
    standby.recover().expect("recover");
    assert_eq!(standby.router().clock_jumps(), 0);
    close(standby);
}
