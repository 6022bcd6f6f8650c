//! A standby that compiles what its primary has deployed: it shows what lies before, and says what its replay waits for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crate::{
    common::{Line, call_i64, close, config, digest_now, fill_bank, recovered, transfer, wasm},
    following::wait_until,
};
use reprise_base::{MemoryKind, limits::COMPILE_BYTES_EACH};
use reprise_database::{AppendOutcome, Database, Environment};
use reprise_host::{InvalidModule, StartTime};
use reprise_test_crash::copy_dir;
use reprise_txn::{Candidate, Compiler};

const ACCOUNTS: i64 = 50;

/// The database's own compiler, which does not return until it is released.
struct Slow {
    own: Arc<dyn Compiler>,
    is_stuck: Arc<AtomicBool>,
}

impl Compiler for Slow {
    fn compile(&self, name: &str, wasm: &Arc<[u8]>, time: &StartTime) -> Result<Candidate, InvalidModule> {
        self.own.compile(name, wasm, time)
    }

    fn restore(&self, name: &str, wasm: &Arc<[u8]>) -> Result<Candidate, InvalidModule> {
        while self.is_stuck.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(1));
        }
        self.own.restore(name, wasm)
    }

    fn settings_hash(&self) -> u64 {
        self.own.settings_hash()
    }
}

#[test]
fn standby_shows_records_before_a_deployment_while_it_compiles() {
    let dirs = tempfile::tempdir().expect("a directory");
    let places = ["primary", "standby"].map(|name| dirs.path().join(name));
    let primary = recovered(config(&places[0], 2));
    fill_bank(&primary, ACCOUNTS);
    close(primary);
    copy_dir(&places[0], &places[1]).expect("copied");
    let line = Arc::new(Line::default());
    let primary = Database::open(config(&places[0], 2)).expect("open");
    primary.add_group_sink(line.clone());
    primary.recover().expect("recover");
    let is_stuck = Arc::new(AtomicBool::new(false));
    let mut around = Environment::real(&config(&places[1], 3)).expect("a directory");
    around.compiler = Arc::new(Slow {
        own: around.compiler,
        is_stuck: is_stuck.clone(),
    });
    let standby = Database::open_standby_in(config(&places[1], 3), around).expect("open");
    standby.recover().expect("recover");
    is_stuck.store(true, Ordering::Release);
    (0..5).for_each(|round| transfer(&primary, round));
    let before = primary.router().view();
    primary.router().deploy("voter", &wasm("voter")).expect("deploy");
    (5..9).for_each(|round| transfer(&primary, round));
    while let Some(sent) = line.0.lock().expect("the line").pop_front() {
        assert_eq!(standby.place(&sent.get()), Ok(AppendOutcome::New));
    }
    let router = standby.router();
    wait_until("it compiles", || router.replay_waits_for().is_some());
    let said = router.replay_waits_for();
    assert_eq!(said.as_deref(), Some("waits for the compilation of voter version 1"));
    wait_until("what lies before is shown", || router.view() == before);
    assert!(call_i64(&standby, "bank", "balance", &[0]).is_ok());
    assert!(!router.deployed().current.contains_key("voter"));
    is_stuck.store(false, Ordering::Release);
    let end = primary.router().view();
    wait_until("it has all", || router.view() == end);
    assert_eq!(router.replay_waits_for(), None);
    assert!(router.deployed().current.contains_key("voter"));
    assert_eq!(digest_now(&standby), digest_now(&primary));
}

/// A start compiles what is in service as a deployment does, and its memory is in the ledger.
#[test]
fn compilation_at_an_opening_is_counted_in_the_memory() {
    let dirs = tempfile::tempdir().expect("a directory");
    let place = dirs.path().join("one");
    let database = recovered(config(&place, 2));
    fill_bank(&database, ACCOUNTS);
    close(database);
    let database = recovered(config(&place, 2));
    assert!(call_i64(&database, "bank", "balance", &[0]).is_ok());
    let modules = database.router().memory().kind(MemoryKind::Modules);
    let compiling = wasm("bank").len() as u64 * COMPILE_BYTES_EACH;
    assert!(
        modules.peak() >= compiling && modules.used() < compiling,
        "{} of {compiling}, {} now",
        modules.peak(),
        modules.used()
    );
    close(database);
}
