//! Idempotency keys: what is remembered for how long, in which scope, and what happens where there is no room.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use crate::common::{begin, config, i64s, take, wasm};
use reprise_database::{Database, Environment, LogPolicy};
use reprise_env::{Clock, RealClock};
use reprise_router::{Lookup, ReplyOutcome, ScopedKey};

/// The system's time, and some more.
struct Ahead(RealClock, AtomicI64);

impl Clock for Ahead {
    fn now_us(&self) -> i64 {
        self.0.now_us() + self.1.load(Ordering::Relaxed)
    }
    fn monotonic_ns(&self) -> u64 {
        self.0.monotonic_ns()
    }
}

const KEEP: Duration = Duration::from_secs(3600);

struct World {
    database: Database,
    clock: Arc<Ahead>,
}

impl World {
    fn open(dir: &Path, log: LogPolicy, ahead: Duration) -> Self {
        let mut config = config(dir, 2);
        config.log = log;
        let clock = Arc::new(Ahead(RealClock::new(), AtomicI64::new(ahead.as_micros() as i64)));
        let mut around = Environment::real(&config).expect("a directory");
        around.clock = clock.clone();
        let database = Database::open_in(config, around).expect("open");
        database.set_idempotency_keep(KEEP);
        database.recover().expect("recover");
        database.router().deploy("bank", &wasm("bank")).expect("deploy");
        Self { database, clock }
    }

    fn pass(&self, time: Duration) {
        self.clock.1.fetch_add(time.as_micros() as i64, Ordering::Relaxed);
    }

    /// The outcome of one call, and whether it was remembered.
    fn call(&self, scope: &str, key: &str, procedure: &str, args: &[i64]) -> (ReplyOutcome, bool) {
        let key = (!key.is_empty()).then_some(key);
        let reply = begin(&self.database, scope, &[("bank", procedure, key, i64s(args))]);
        let reply = reply.recv().expect("a reply");
        let reply = reply.get(0);
        (reply.outcome.clone(), reply.replayed)
    }

    /// Its transaction, where something is kept.
    fn kept(&self, scope: &str, key: &str) -> Option<u64> {
        match self.database.router().idempotency().look_up(ScopedKey { scope, key }) {
            Lookup::Kept(outcome) => Some(outcome.txn_id.0),
            Lookup::Running | Lookup::Unknown => None,
        }
    }

    fn keys(&self) -> u64 {
        self.database.router().idempotency().stats().keys
    }
}

const RAN: (ReplyOutcome, bool) = (ReplyOutcome::Committed, false);
const REMEMBERED: (ReplyOutcome, bool) = (ReplyOutcome::Committed, true);

#[test]
fn nothing_is_kept_of_calls_that_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let world = World::open(dir.path(), LogPolicy::Command, Duration::ZERO);
    assert_eq!(world.call("", "", "open", &[1, 100]), RAN);
    assert_eq!(world.call("", "k", "balance", &[1]), RAN);
    assert_eq!(world.call("", "k", "balance", &[1]), RAN);
    assert_eq!((world.keys(), world.kept("", "k")), (0, None));
    // So a reader takes no key that a writer is about to use.
    assert_eq!(world.call("", "k", "open", &[2, 100]), RAN);
    assert_eq!(world.call("", "k", "open", &[2, 100]), REMEMBERED);
}

#[test]
fn nothing_is_kept_of_calls_that_fail() {
    let dir = tempfile::tempdir().expect("a directory");
    let world = World::open(dir.path(), LogPolicy::Command, Duration::ZERO);
    for number in 0..100 {
        let (outcome, replayed) = world.call("", &format!("k{number}"), "transfer", &[1, 2, 5]);
        assert!(matches!(outcome, ReplyOutcome::Failed(_)) && !replayed, "{outcome:?}");
    }
    let stats = world.database.router().idempotency().stats();
    assert_eq!((stats.keys, stats.bytes), (0, 0));
    // Their keys are free.
    assert_eq!(world.call("", "k1", "open", &[1, 100]), RAN);
}

#[test]
fn an_outcome_is_kept_for_its_time_over_restarts_and_no_longer() {
    for log in [LogPolicy::Command, LogPolicy::Physiological] {
        let dir = tempfile::tempdir().expect("a directory");
        let world = World::open(dir.path(), log, Duration::ZERO);
        assert_eq!(world.call("", "old", "open", &[1, 100]), RAN);
        assert_eq!(world.call("", "in a checkpoint", "open", &[2, 100]), RAN);
        take(&world.database);
        assert_eq!(world.call("", "in the log", "transfer", &[1, 2, 5]), RAN);
        let first = world.kept("", "in the log").expect("kept");
        drop(world);

        let world = World::open(dir.path(), log, KEEP / 2);
        for (key, procedure, args) in [
            ("old", "open", &[1, 100][..]),
            ("in a checkpoint", "open", &[2, 100]),
            ("in the log", "transfer", &[1, 2, 5]),
        ] {
            assert_eq!(world.call("", key, procedure, args), REMEMBERED, "{key}");
        }
        assert_eq!(world.kept("", "in the log"), Some(first));
        world.pass(KEEP);
        assert_eq!(world.kept("", "in the log"), None);
        assert_eq!(world.call("", "in the log", "transfer", &[1, 2, 5]), RAN);
        let second = world.kept("", "in the log").expect("kept");
        assert!(second > first);
        // The others went with their time; what is kept is the same after a restart.
        assert_eq!(world.keys(), 1);
        drop(world);
        let world = World::open(dir.path(), log, KEEP / 2 + KEEP);
        assert_eq!((world.keys(), world.kept("", "in the log")), (1, Some(second)));
        assert_eq!(world.call("", "in the log", "transfer", &[1, 2, 5]), REMEMBERED);
    }
}

#[test]
fn new_keys_are_refused_before_their_calls_run_while_there_is_no_room() {
    let dir = tempfile::tempdir().expect("a directory");
    let world = World::open(dir.path(), LogPolicy::Command, Duration::ZERO);
    let keys = world.database.router().idempotency();
    assert_eq!(world.call("", "first", "open", &[0, 100]), RAN);
    let each = keys.stats().bytes;
    keys.set_bytes_max(4 * each);
    let full = (1..100).find(|account| {
        let outcome = world.call("", &format!("key-{account}"), "open", &[*account, 100]);
        outcome == (ReplyOutcome::IdempotencyFull, false)
    });
    let full = full.expect("it gets full");
    assert!(keys.stats().bytes <= 4 * each && keys.stats().refused == 1);
    // What was refused left nothing, neither a row nor its key; the same call goes without a key.
    assert_eq!(world.kept("", &format!("key-{full}")), None);
    assert_eq!(world.call("", "", "open", &[full, 100]), RAN);
    assert_eq!(world.call("", "first", "open", &[0, 100]), REMEMBERED);
    // Full as it is, what was promised opens again, and all of it is there.
    let count = world.keys();
    drop(world);
    let world = World::open(dir.path(), LogPolicy::Command, Duration::ZERO);
    let keys = world.database.router().idempotency();
    keys.set_bytes_max(2 * each);
    assert_eq!(world.keys(), count);
    assert_eq!(
        world.call("", "another", "open", &[200, 100]).0,
        ReplyOutcome::IdempotencyFull
    );
    assert_eq!(world.call("", "first", "open", &[0, 100]), REMEMBERED);
    // Time makes room, though nobody could commit meanwhile.
    world.pass(2 * KEEP);
    assert_eq!(world.call("", "another", "open", &[200, 100]), RAN);
    assert_eq!(world.keys(), 1);
}

#[test]
fn a_call_that_does_not_commit_gives_its_room_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let world = World::open(dir.path(), LogPolicy::Command, Duration::ZERO);
    assert_eq!(world.call("", "k", "open", &[1, 100]), RAN);
    let before = world.database.router().idempotency().stats();
    assert!(matches!(
        world.call("", "again", "open", &[1, 100]).0,
        ReplyOutcome::Failed(_)
    ));
    assert_eq!(world.database.router().idempotency().stats(), before);
}

#[test]
fn keys_of_different_scopes_have_nothing_to_do_with_each_other_over_restarts() {
    for log in [LogPolicy::Command, LogPolicy::Physiological] {
        let dir = tempfile::tempdir().expect("a directory");
        let world = World::open(dir.path(), log, Duration::ZERO);
        assert_eq!(world.call("ann", "k", "open", &[1, 100]), RAN);
        take(&world.database);
        assert_eq!(world.call("bob", "k", "open", &[2, 100]), RAN);
        assert_eq!(world.call("bob", "several", "transfer", &[1, 2, 5]), RAN);
        let check = |world: &World| {
            assert_eq!(world.call("ann", "k", "open", &[1, 100]), REMEMBERED);
            assert_eq!(world.call("bob", "k", "open", &[2, 100]), REMEMBERED);
            assert_eq!(world.call("bob", "several", "transfer", &[1, 2, 5]), REMEMBERED);
            assert_eq!(
                world.call("ann", "k", "open", &[2, 100]).0,
                ReplyOutcome::IdempotencyConflict
            );
            // Where a scope ends and a key begins is no matter of luck.
            assert_eq!(
                (world.kept("an", "nk"), world.kept("", "k"), world.keys()),
                (None, None, 3)
            );
        };
        check(&world);
        drop(world);
        let world = World::open(dir.path(), log, Duration::ZERO);
        check(&world);
        assert_eq!(world.call("", "k", "open", &[3, 100]), RAN);
    }
}
