//! Standbys that get each transaction in another form than their primary's log has it.

use std::{sync::Arc, time::Duration};

use crate::common::{
    close, config, digest_now, fill, fill_bank, i64s, records, recovered, submit, take, transfer, wasm,
};
use crate::following::{
    ACCEPTING, Cluster, bootstrap, nvram, service, serving, wait_in_sync, wait_seen, wait_streaming, wait_until,
};
use reprise_base::Lsn;
use reprise_database::{Database, DatabaseConfig, LogPolicy, ServeStandbys, ServeStandbysError, ShipForm};
use reprise_router::{LogEntry, NodePhase, ReplyOutcome};

fn shipping(ship: ShipForm) -> ServeStandbys {
    ServeStandbys {
        compare_every: Duration::from_millis(10),
        ship,
        ..serving("http://p:1")
    }
}

fn start(cluster: &Cluster, log: LogPolicy, ship: ShipForm) -> Arc<Database> {
    cluster.no_primary();
    let database = Arc::new(recovered(DatabaseConfig {
        log,
        ..config(&cluster.place("p"), 2)
    }));
    database.serve_standbys(shipping(ship)).expect("served");
    assert_eq!(service(&database).info().ship, ship.name());
    cluster.set_primary(&database);
    database
}

/// The kinds of the records of transactions from an LSN on, with their transactions.
fn forms(database: &Database, from: Lsn) -> Vec<(Lsn, &'static str, u64)> {
    let is_call = |entry: &LogEntry| ["command", "changes"].contains(&entry.kind);
    let called = records(database, Some(from)).into_iter().filter(is_call);
    called
        .filter_map(|entry| Some((entry.lsn, entry.kind, entry.txn_id?.0)))
        .collect()
}

/// Waits until every table was compared behind the primary's present end, and all are equal.
fn wait_equal(primary: &Database, standby: &Database) {
    let end = primary.router().view();
    wait_until("all tables are compared", || {
        assert!(!matches!(standby.router().phase(), NodePhase::Failed { .. }));
        let compared = service(standby).own().expect("a standby").compared;
        compared.is_some_and(|told| {
            assert_eq!(told.difference, None);
            told.lsn >= end
        })
    });
}

/// Calls of all sorts: of one partition and of two, aborts, under a key.
fn work(primary: &Database, round: i64) {
    fill(primary, 1_000 + round * 100, 20);
    transfer(primary, round);
    let key = format!("key {round}");
    let reply = submit(primary, &[("open", Some(&key), i64s(&[100_000 + round, 7]))]);
    assert_eq!(*reply.get(0).outcome, ReplyOutcome::Committed);
}

/// The kinds of what both have from an LSN on: same places, same transactions.
fn check_forms(primary: &Database, standby: &Database, from: Lsn, kinds: [&str; 2]) {
    wait_seen(primary, standby);
    let (here, there) = (forms(primary, from), forms(standby, from));
    assert!(!here.is_empty());
    assert_eq!(here.len(), there.len());
    for ((own, theirs), kinds) in here.iter().zip(&there).zip(std::iter::repeat(kinds)) {
        assert_eq!((own.0, own.2), (theirs.0, theirs.2));
        assert_eq!([own.1, theirs.1], kinds);
    }
}

#[test]
fn standbys_get_the_other_form_and_both_sides_restart_fall_back_to_files_and_change_places() {
    for (log, ship, kinds) in [
        (LogPolicy::Command, ShipForm::Changes, ["command", "changes"]),
        (LogPolicy::Physiological, ShipForm::Command, ["changes", "command"]),
    ] {
        let cluster = Cluster::new();
        let mut primary = start(&cluster, log, ship);
        fill_bank(&primary, 200);
        let mut standby = cluster.standby_of(&primary, "s1");
        let from = primary.router().view();
        (0..3).for_each(|round| work(&primary, round));
        wait_equal(&primary, &standby);
        check_forms(&primary, &standby, from, kinds);
        // A deployment, a checkpoint on either side, and its restart.
        primary.router().deploy("voter", &wasm("voter")).expect("deploy");
        take(&primary);
        take(&standby);
        work(&primary, 3);
        wait_seen(&primary, &standby);
        close(standby);
        // The missing records come from the primary's files, in their form.
        let from = primary.router().view();
        (4..6).for_each(|round| work(&primary, round));
        standby = cluster.open_standby("s1");
        wait_streaming(&primary, "s1");
        wait_equal(&primary, &standby);
        check_forms(&primary, &standby, from, [kinds[0], kinds[0]]);
        let from = primary.router().view();
        work(&primary, 6);
        wait_equal(&primary, &standby);
        check_forms(&primary, &standby, from, kinds);
        // The primary's restart, from its own log.
        cluster.no_primary();
        close(primary);
        primary = start(&cluster, log, ship);
        wait_streaming(&primary, "s1");
        wait_in_sync(&standby);
        work(&primary, 7);
        wait_equal(&primary, &standby);
        // The standby takes over; the old primary wrote on, is cut back, and follows.
        let digest = digest_now(&primary);
        wait_seen(&primary, &standby);
        wait_in_sync(&standby);
        standby.serve_standbys(shipping(ship)).expect("once it is the primary");
        service(&standby).promote(ACCEPTING).expect("promoted");
        assert_eq!(digest_now(&standby), digest);
        // A key that was replayed, from changes or from a command, answers again.
        let again = submit(&standby, &[("open", Some("key 2"), i64s(&[100_002, 7]))]);
        assert_eq!(*again.get(0).outcome, ReplyOutcome::Committed);
        assert_eq!(digest_now(&standby), digest);
        work(&primary, 8);
        close(primary);
        cluster.set_primary(&standby);
        let cut = cluster.cut_back("p").expect("a fork");
        assert!(!format!("{cut:?}").is_empty());
        let former = cluster.open_standby("p");
        wait_streaming(&standby, "p");
        work(&standby, 9);
        wait_equal(&standby, &former);
        close(former);
        // Both directories open by themselves, each in its own role.
        standby.close().expect("close");
        let digest_of = |name: &str, sites| {
            let opened = Database::open_any(config(&cluster.place(name), sites)).expect("open");
            opened.recover().expect("recover");
            let digest = digest_now(&opened);
            opened.close().expect("close");
            digest
        };
        assert_eq!(digest_of("p", 1), digest_of("s1", 3));
    }
}

#[test]
fn nothing_is_captured_while_no_standby_is_there() {
    let cluster = Cluster::new();
    let primary = start(&cluster, LogPolicy::Command, ShipForm::Changes);
    fill_bank(&primary, 200);
    bootstrap(&primary, "s1", &cluster.place("s1"));
    let before = primary.router().view();
    work(&primary, 0);
    let standby = cluster.open_standby("s1");
    wait_streaming(&primary, "s1");
    check_forms(&primary, &standby, before, ["command", "command"]);
    standby.close().expect("close");
    primary.close().expect("close");
}

#[test]
fn a_standby_in_nvram_takes_either_form() {
    let cluster = Cluster::on_nvram(&["s1"]);
    let primary = start(&cluster, LogPolicy::Command, ShipForm::Changes);
    fill_bank(&primary, 200);
    let mut standby = cluster.standby_of(&primary, "s1");
    let from = primary.router().view();
    for round in 0..3 {
        work(&primary, round);
        wait_equal(&primary, &standby);
        check_forms(&primary, &standby, from, ["command", "changes"]);
        close(standby);
        standby = cluster.open_standby("s1");
        wait_streaming(&primary, "s1");
        wait_in_sync(&standby);
    }
    service(&standby).promote(ACCEPTING).expect("promoted");
    standby.close().expect("close");
    primary.close().expect("close");
}

#[test]
fn form_that_cannot_be_shipped_separately_is_refused() {
    let cluster = Cluster::on_nvram(&["n"]);
    let both = DatabaseConfig {
        log: LogPolicy::Both,
        ..config(&cluster.place("b"), 1)
    };
    let on_nvram = DatabaseConfig {
        device: nvram(cluster.region("n")),
        ..config(&cluster.place("n"), 1)
    };
    for (config, why) in [(both, "both forms"), (on_nvram, "NVRAM")] {
        let database = recovered(config);
        let database = Arc::new(database);
        for ship in [ShipForm::Changes, ShipForm::Command] {
            let refused = database.serve_standbys(shipping(ship)).expect_err("refused");
            assert!(matches!(refused, ServeStandbysError::Form(_)) && refused.to_string().contains(why));
            assert!(database.ship_as(ship).is_err());
        }
        database.serve_standbys(shipping(ShipForm::AsLogged)).expect("as it is");
        database.close().expect("close");
    }
}
