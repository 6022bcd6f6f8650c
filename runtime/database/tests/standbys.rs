//! A primary and its standbys, over TCP on this machine.

mod common;

use std::{path::Path, sync::Arc, time::Duration};

use common::{config, fill, open, take, transfer, wasm};
use reprise_backup::Place;
use reprise_base::Role;
use reprise_database::{Database, LogPolicy, ServeStandbys, ServeStandbysError};
use reprise_env::{RealClock, RealNet};
use reprise_observe::Notice;
use reprise_router::{ReplicationError, ReplicationService, StandbyState};
use reprise_ship::{Link, LinkConfig, LinkError};

fn serving(url: &str) -> ServeStandbys {
    ServeStandbys {
        net: Arc::new(RealNet),
        listen: "127.0.0.1:0".into(),
        ship_address: None,
        url: Some(url.into()),
        hold_bytes_max: 1 << 30,
    }
}

fn service(database: &Database) -> Arc<dyn ReplicationService> {
    database.router().replication().expect("it is served")
}

fn link(database: &Database, name: &str) -> LinkConfig {
    let ticket = service(database).join(name).expect("a ticket");
    LinkConfig {
        net: Arc::new(RealNet),
        clock: Arc::new(RealClock::new()),
        address: ticket.ship_address,
        ticket: ticket.ticket,
        name: name.into(),
        connect_time: Duration::from_secs(5),
    }
}

fn bootstrap(primary: &Database, name: &str, dir: &Path) {
    let place = Place::beside(dir).expect("a name");
    let coming = Link::bootstrap(&link(primary, name), &place).expect("connect");
    let whole = coming.run(&|| true).expect("no error").expect("whole");
    assert_eq!(whole.files, 2);
}

#[test]
fn a_primary_hands_out_tickets_and_files_that_open() {
    let (dir, to) = (
        tempfile::tempdir().expect("a directory"),
        tempfile::tempdir().expect("a directory"),
    );
    let (database, _) = open(dir.path(), 2);
    assert!(database.router().replication().is_none());
    database.serve_standbys(serving("http://p:1")).expect("served");
    let again = database.serve_standbys(serving("http://p:1"));
    assert!(matches!(again, Err(ServeStandbysError::Served)), "{again:?}");
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    fill(&database, 0, 200);
    let digest = database.router().digest().expect("ready");
    let info = service(&database).info();
    assert_eq!(
        (info.role, info.safety, info.standbys.len()),
        (Role::Primary, "local-sync", 0)
    );
    assert_eq!(
        (info.primary.as_deref(), info.acked, info.committed),
        (Some("http://p:1"), info.durable, info.durable)
    );
    assert!(matches!(service(&database).join("a b"), Err(ReplicationError::Name(_))));
    assert!(matches!(service(&database).promote(), Err(ReplicationError::IsPrimary(epoch)) if epoch == info.epoch));
    // A checkpoint is taken where there is none; one that is nearly as new as the log is good enough.
    let own = to.path().join("s1");
    bootstrap(&database, "s1", &own);
    assert_eq!(database.router().checkpoints().len(), 1);
    transfer(&database, 1);
    bootstrap(&database, "s2", &to.path().join("s2"));
    assert_eq!(database.router().checkpoints().len(), 1);
    let used = Link::bootstrap(&link(&database, "s1"), &Place::beside(&own).expect("a name")).err();
    assert!(matches!(used, Some(LinkError::Staging(_))), "{used:?}");
    // What was taken lies behind the log that is held: checkpoints let go of none of it.
    (0..3).for_each(|round| {
        transfer(&database, round);
        take(&database);
    });
    let held = service(&database).info().standbys;
    let states: Vec<_> = held.iter().map(|s| (&*s.name, s.state)).collect();
    assert_eq!(states, [("s1", StandbyState::Lost), ("s2", StandbyState::Lost)]);
    let told = database.router().notices().take().notices;
    let is_told = |what: &str| {
        told.iter()
            .any(|notice| matches!(notice, Notice::Standby { what: w, .. } if w.contains(what)))
    };
    assert!(
        is_told("gets its first files") && is_told("connection is over"),
        "{told:?}"
    );
    database.close().expect("close");
    // It opens as any data directory does, with what the checkpoint holds.
    let (copy, report) = open(&own, 1);
    assert!(report.checkpoint.is_some());
    assert_eq!(copy.router().digest().expect("ready"), digest);
    copy.close().expect("close");
}

#[test]
fn a_server_without_a_log_takes_no_standbys() {
    let database = Database::open(reprise_database::DatabaseConfig {
        log: LogPolicy::None,
        ..config(Path::new("/nowhere"), 1)
    });
    let database = database.expect("open");
    let refused = database.serve_standbys(serving(""));
    assert!(matches!(refused, Err(ServeStandbysError::NoLog)), "{refused:?}");
    let busy = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let dir = tempfile::tempdir().expect("a directory");
    let (database, _) = open(dir.path(), 1);
    let refused = database.serve_standbys(ServeStandbys {
        listen: busy.local_addr().expect("bound").to_string(),
        ..serving("")
    });
    assert!(matches!(refused, Err(ServeStandbysError::Ship(_))), "{refused:?}");
    database.close().expect("close");
}
