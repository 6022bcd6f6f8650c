//! Idempotency keys: which outcomes the server keeps, for how long, in which scope, and how it acts without room.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    common::{begin, config, i64s, take, wasm},
    following::wait_until,
};
use reprise_database::{Database, Environment, LogPolicy};
use reprise_env::{Clock, RealClock};
use reprise_observe::Notice;
use reprise_router::{BatchBuilder, CallKey, Lookup, ReplyOutcome, ScopedKey};

/// The system's clocks, of which each is moved by itself.
struct Moved {
    real: RealClock,
    wall_us: AtomicI64,
    passed_us: AtomicU64,
}

impl Clock for Moved {
    fn now_us(&self) -> i64 {
        self.real.now_us() + self.wall_us.load(Ordering::Relaxed)
    }
    fn monotonic_ns(&self) -> u64 {
        self.real.monotonic_ns() + 1_000 * self.passed_us.load(Ordering::Relaxed)
    }
}

const KEEP: Duration = Duration::from_secs(3600);

struct World {
    database: Database,
    clock: Arc<Moved>,
}

impl World {
    fn open(dir: &Path, log: LogPolicy, ahead: Duration) -> Self {
        let mut config = config(dir, 2);
        config.log = log;
        let clock = Arc::new(Moved {
            real: RealClock::new(),
            wall_us: AtomicI64::new(ahead.as_micros() as i64),
            passed_us: AtomicU64::new(0),
        });
        let mut around = Environment::real(&config).expect("a directory");
        around.clock = clock.clone();
        let database = Database::open_in(config, around).expect("open");
        database.set_idempotency_keep(KEEP);
        database.recover().expect("recover");
        database.router().deploy("bank", &wasm("bank")).expect("deploy");
        Self { database, clock }
    }

    fn pass(&self, time: Duration) {
        self.step(time.as_micros() as i64);
        self.clock
            .passed_us
            .fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// Sets the wall clock alone.
    fn step(&self, by_us: i64) {
        self.clock.wall_us.fetch_add(by_us, Ordering::Relaxed);
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
            Lookup::Kept(outcome, _) => Some(outcome.txn_id.0),
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
    // A reader therefore takes no key that a writer is about to use.
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
fn an_outcome_is_kept_for_the_time_of_its_primary_over_restarts_and_no_longer() {
    for log in [LogPolicy::Command, LogPolicy::Physiological] {
        let dir = tempfile::tempdir().expect("a directory");
        let world = World::open(dir.path(), log, Duration::ZERO);
        assert_eq!(world.call("", "old", "open", &[1, 100]), RAN);
        assert_eq!(world.call("", "in a checkpoint", "open", &[2, 100]), RAN);
        take(&world.database);
        assert_eq!(world.call("", "in the log", "transfer", &[1, 2, 5]), RAN);
        let first = world.kept("", "in the log").expect("kept");
        drop(world);

        // The time of the keys has passed by the wall clock, but the primary did not run for that time.
        let world = World::open(dir.path(), log, 9 * KEEP);
        for (key, procedure, args) in [
            ("old", "open", &[1, 100][..]),
            ("in a checkpoint", "open", &[2, 100]),
            ("in the log", "transfer", &[1, 2, 5]),
        ] {
            assert_eq!(world.call("", key, procedure, args), REMEMBERED, "{key}");
        }
        assert_eq!(world.kept("", "in the log"), Some(first));
        world.pass(KEEP / 2);
        take(&world.database);
        drop(world);
        let world = World::open(dir.path(), log, Duration::ZERO);
        world.pass(KEEP / 4);
        assert_eq!(world.kept("", "in the log"), Some(first));
        world.pass(KEEP / 4);
        assert_eq!(world.kept("", "in the log"), None);
        assert_eq!(world.call("", "in the log", "transfer", &[1, 2, 5]), RAN);
        let second = world.kept("", "in the log").expect("kept");
        assert!(second > first, "ids grow, whatever the wall clock says");
        // The other keys went with their time. The kept outcome is the same after a restart.
        assert_eq!(world.keys(), 1);
        take(&world.database);
        drop(world);
        let world = World::open(dir.path(), log, Duration::ZERO);
        assert_eq!((world.keys(), world.kept("", "in the log")), (1, Some(second)));
        assert_eq!(world.call("", "in the log", "transfer", &[1, 2, 5]), REMEMBERED);
    }
}

/// Marks alone give the log the time of its keys. Without the checkpoint of the mark, replay has that time only behind the calls.
#[test]
fn replayed_key_ages_from_the_mark_behind_its_call() {
    for log in [LogPolicy::Command, LogPolicy::Physiological] {
        let dir = tempfile::tempdir().expect("a directory");
        let world = World::open(dir.path(), log, Duration::ZERO);
        world.pass(2 * KEEP);
        let calls = [("first", 1), ("second", 2), ("behind the mark", 3)];
        for (key, account) in &calls[..2] {
            assert_eq!(world.call("", key, "open", &[*account, 100]), RAN);
        }
        let marked = take(&world.database);
        let (key, account) = calls[2];
        assert_eq!(world.call("", key, "open", &[account, 100]), RAN);
        drop(world);
        std::fs::remove_file(dir.path().join("checkpoints").join(&marked.file)).expect("removed");

        let all_are_kept = |world: &World| {
            for (key, account) in calls {
                assert_eq!(world.call("", key, "open", &[account, 100]), REMEMBERED, "{key}");
            }
        };
        let world = World::open(dir.path(), log, Duration::ZERO);
        all_are_kept(&world);
        // A checkpoint gets each key once, in pages of any size, and with the time of the mark.
        let keys = world.database.router().idempotency();
        let (mut after, mut exported) = (None, Vec::new());
        while let Some(key) = keys.export(after, 1).pop() {
            after = Some((key.kept_us, key.outcome.txn_id));
            exported.push(String::from(key.key));
            assert!(exported.len() <= calls.len(), "{exported:?}");
        }
        assert_eq!(exported, calls.map(|(key, _)| key));
        take(&world.database);
        drop(world);
        let world = World::open(dir.path(), log, Duration::ZERO);
        all_are_kept(&world);
        world.pass(KEEP / 2);
        all_are_kept(&world);
        world.pass(KEEP / 2);
        assert_eq!(calls.map(|(key, _)| world.kept("", key)), [None; 3]);
    }
}

#[test]
fn a_wall_clock_that_jumps_forgets_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let world = World::open(dir.path(), LogPolicy::Command, Duration::ZERO);
    let far = 48 * KEEP.as_micros() as i64;
    assert_eq!(world.call("", "before", "open", &[1, 100]), RAN);
    world.step(far);
    // On each partition a call while the clock is wrong.
    for account in 10..20 {
        assert_eq!(world.call("", &format!("far-{account}"), "open", &[account, 100]), RAN);
    }
    world.step(-far);
    assert_eq!(world.call("", "after", "open", &[2, 100]), RAN);
    for (key, account) in [("before", 1), ("far-10", 10), ("far-19", 19), ("after", 2)] {
        assert_eq!(world.call("", key, "open", &[account, 100]), REMEMBERED, "{key}");
    }
    assert_eq!(world.keys(), 12);
    world.pass(KEEP);
    assert_eq!(world.call("", "later", "open", &[3, 100]), RAN);
    assert_eq!(world.keys(), 1, "each went with its time");
}

#[test]
fn a_scope_without_the_key_finds_it_among_those_without_tokens() {
    for log in [LogPolicy::Command, LogPolicy::Physiological] {
        let dir = tempfile::tempdir().expect("a directory");
        let world = World::open(dir.path(), log, Duration::ZERO);
        assert_eq!(world.call("", "k", "open", &[1, 100]), RAN);
        assert_eq!(world.call("ann", "own", "open", &[2, 100]), RAN);
        let check = |world: &World| {
            assert_eq!(world.call("ann", "k", "open", &[1, 100]), REMEMBERED);
            assert_eq!(world.call("bob", "k", "open", &[1, 100]), REMEMBERED);
            assert_eq!(world.kept("ann", "k"), world.kept("", "k"));
            assert_eq!(
                world.call("bob", "k", "open", &[2, 100]).0,
                ReplyOutcome::IdempotencyConflict
            );
            assert_eq!((world.kept("", "own"), world.kept("bob", "own")), (None, None));
            assert_eq!(world.keys(), 2);
        };
        check(&world);
        drop(world);
        let world = World::open(dir.path(), log, Duration::ZERO);
        check(&world);
        // The key is the scope's own once the outcome of the other one is forgotten.
        world.pass(2 * KEEP);
        assert!(matches!(
            world.call("ann", "k", "open", &[1, 100]).0,
            ReplyOutcome::Failed(_)
        ));
    }
}

#[test]
fn a_repeat_is_known_by_what_was_sent_or_by_what_was_encoded() {
    for log in [LogPolicy::Command, LogPolicy::Physiological] {
        let dir = tempfile::tempdir().expect("a directory");
        let world = World::open(dir.path(), log, Duration::ZERO);
        let call = |world: &World, fingerprint: u128, args: Option<&[i64]>| {
            let router = world.database.router();
            let deployed = router.deployed();
            let module = &deployed.current["bank"];
            let (number, _) = module.procedure("open").expect("a procedure");
            let mut batch = BatchBuilder::new(deployed.clone(), router);
            let key = CallKey { key: "k", fingerprint };
            let encode = |out: &mut Vec<u8>| {
                out.extend_from_slice(&i64s(args.ok_or("no such arguments")?));
                Ok::<(), &str>(())
            };
            batch.push(module, number, Some(key), encode).expect("added");
            let (sender, receiver) = std::sync::mpsc::channel();
            router.submit(batch, Box::new(move |reply| _ = sender.send(reply))); // the test may be over
            let reply = receiver.recv().expect("a reply");
            let reply = reply.get(0);
            (reply.outcome.clone(), reply.replayed)
        };
        assert_eq!(call(&world, 1, Some(&[1, 100])), RAN);
        let check = |world: &World| {
            assert_eq!(call(world, 1, Some(&[1, 100])), REMEMBERED);
            assert_eq!(call(world, 1, None), REMEMBERED, "what was sent says enough");
            assert_eq!(call(world, 2, Some(&[1, 100])), REMEMBERED, "sent in another form");
            let conflict = (ReplyOutcome::IdempotencyConflict, false);
            assert_eq!(call(world, 2, Some(&[1, 101])), conflict);
            assert_eq!(call(world, 2, None), conflict);
        };
        check(&world);
        drop(world);
        let world = World::open(dir.path(), log, Duration::ZERO);
        check(&world);
        take(&world.database);
        drop(world);
        check(&World::open(dir.path(), log, Duration::ZERO));
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
    // A refused call left nothing, neither a row nor its key; the same call works without a key.
    assert_eq!(world.kept("", &format!("key-{full}")), None);
    assert_eq!(world.call("", "", "open", &[full, 100]), RAN);
    assert_eq!(world.call("", "first", "open", &[0, 100]), REMEMBERED);
    // The full database opens again with every outcome that it promised.
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
    // Time makes room, although no call could commit meanwhile.
    world.pass(2 * KEEP);
    assert_eq!(world.call("", "another", "open", &[200, 100]), RAN);
    assert_eq!(world.keys(), 1);
}

#[test]
fn keys_of_one_scope_take_at_most_half_of_the_room() {
    let dir = tempfile::tempdir().expect("a directory");
    let world = World::open(dir.path(), LogPolicy::Command, Duration::ZERO);
    let router = world.database.router();
    let keys = router.idempotency();
    assert_eq!(world.call("ann", "first", "open", &[0, 100]), RAN);
    let room = 8 * keys.stats().bytes;
    keys.set_bytes_max(room);
    let refused = (ReplyOutcome::IdempotencyFull, false);
    let is_full = |number: i64| world.call("ann", &format!("{number:05}"), "open", &[number, 100]) == refused;
    assert!((1..100).any(is_full), "the scope gets full");
    assert!(keys.stats().bytes <= room / 2 && keys.stats().refused == 1);
    let told = router.notices().take().notices;
    let scopes = told.iter().filter_map(|notice| match notice {
        Notice::KeysRefused { scope, .. } => Some(scope.as_str()),
        _ => None,
    });
    assert_eq!(scopes.collect::<Vec<_>>(), ["ann"]);
    assert_eq!(
        world.call("bob", "first", "open", &[200, 100]),
        RAN,
        "another scope has room"
    );
    assert_eq!(world.call("ann", "first", "open", &[0, 100]), REMEMBERED);
    // A call that does not commit gives its scope's room back.
    world.pass(2 * KEEP);
    for number in 0..20 {
        let failed = world.call("ann", &format!("{number:05}"), "open", &[0, 100]).0;
        assert!(matches!(failed, ReplyOutcome::Failed(_)), "{failed:?}");
    }
}

#[test]
fn a_call_that_does_not_commit_gives_its_room_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let world = World::open(dir.path(), LogPolicy::Command, Duration::ZERO);
    assert_eq!(world.call("", "k", "open", &[1, 100]), RAN);
    let taken = |world: &World| {
        let stats = world.database.router().idempotency().stats();
        (stats.keys, stats.bytes, stats.refused)
    };
    let before = taken(&world);
    assert!(matches!(
        world.call("", "again", "open", &[1, 100]).0,
        ReplyOutcome::Failed(_)
    ));
    assert_eq!(taken(&world), before);
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
            // The boundary between a scope and a key counts.
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

/// The deployment keeps the description of a version of long ago. The version's code and its binding to tables go with its last call.
#[test]
fn kept_outcomes_hold_no_version_that_is_out_of_service() {
    let dir = tempfile::tempdir().expect("a directory");
    let world = World::open(dir.path(), LogPolicy::Command, Duration::ZERO);
    assert_eq!(world.call("", "k", "open", &[1, 100]), RAN);
    let router = world.database.router();
    let first = Arc::downgrade(&router.deployed().current["bank"]);
    // One more section makes another version.
    let mut next = wasm("bank");
    next.extend_from_slice(b"\x00\x02\x01b");
    router.deploy("bank", &next).expect("deploy");
    wait_until("nobody holds the first version", || {
        world.call("", "", "total", &[]);
        first.upgrade().is_none()
    });
    assert_eq!(world.call("", "k", "open", &[1, 100]), REMEMBERED);
    let kept = router.idempotency().look_up(ScopedKey { scope: "", key: "k" });
    let Lookup::Kept(outcome, _) = kept else {
        panic!("it is kept");
    };
    let ran = router
        .deployed()
        .module(outcome.module)
        .cloned()
        .expect("it is described");
    assert_eq!(
        (ran.version, &*ran.schema.procedures[outcome.procedure].name),
        (1, "open")
    );
}
