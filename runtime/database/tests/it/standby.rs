//! A standby that gets its primary's groups in this process. At every moment it shows a former state of the primary. The tests also cover
//! its refusals and its promotion.

use crate::common;
use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use crate::common::{
    Consenting, Line, Sent, close, config, digest_now, fill_bank, i64s, recovered, submit, transfer, wasm,
};
use crate::following::wait_until;
use reprise_base::{Epoch, Lsn, Role, TxnId};
use reprise_database::{AppendError, AppendOutcome, Database, Group, LogPolicy, OpenError, Position, RedoConfig};
use reprise_router::{DeployError, LogBody, NodePhase, NotPrimary, ReplicationError, ReplyOutcome, RowsRequest};
use reprise_test_crash::copy_dir;
use reprise_txn::{ModuleId, Quarantine};
use reprise_wire::{CheckpointMark, CommandRef, PartitionSet, QuarantineRef, RecordBatch, RecordRef};

const WAIT_MAX: Duration = Duration::from_secs(60);
const ACCOUNTS: i64 = 200;
/// Places all that lies on the line.
fn feed(line: &Line, standby: &Database) {
    while let Some(sent) = pop(line) {
        assert_eq!(standby.place(&sent.get()), Ok(AppendOutcome::New));
    }
}

fn pop(line: &Line) -> Option<Sent> {
    line.0.lock().expect("the line").pop_front()
}

struct Pair {
    dir: tempfile::TempDir,
    primary: Database,
    standby: Database,
    line: Arc<Line>,
    policy: LogPolicy,
}

const PRIMARY_SITES: u16 = 2;
const STANDBY_SITES: u16 = 3;

fn open_primary(dir: &Path, policy: LogPolicy) -> (Database, Arc<Line>) {
    let mut config = config(dir, PRIMARY_SITES);
    config.log = policy;
    let primary = Database::open(config).expect("open the primary");
    let line = Arc::new(Line::default());
    primary.add_group_sink(line.clone());
    primary.recover().expect("recover the primary");
    (primary, line)
}

fn open_standby(dir: &Path, policy: LogPolicy) -> Database {
    let mut config = config(dir, STANDBY_SITES);
    config.log = policy;
    let standby = Database::open_standby(config).expect("open the standby");
    standby.recover().expect("recover the standby");
    standby
}

impl Pair {
    /// Accounts 0 to 199 with 100 each, on both.
    fn new(policy: LogPolicy) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let place = dir.path().join("primary");
        let (primary, _) = open_primary(&place, policy);
        fill_bank(&primary, ACCOUNTS);
        close(primary);
        copy_dir(&place, &dir.path().join("standby")).expect("copied");
        let (primary, line) = open_primary(&place, policy);
        let standby = open_standby(&dir.path().join("standby"), policy);
        Self {
            dir,
            primary,
            standby,
            line,
            policy,
        }
    }

    /// Waits until the standby shows all that the primary has.
    fn catch_up(&self) {
        feed(&self.line, &self.standby);
        let end = self.primary.router().view();
        let (tell, told) = mpsc::channel();
        let hook = Box::new(move || _ = tell.send(()));
        let waiter = self.standby.router().when_in_view(Lsn(end.0 - 1), hook);
        if waiter.is_some() {
            told.recv_timeout(WAIT_MAX).expect("the standby replays");
        }
        assert_eq!(self.standby.router().view(), end);
    }

    fn check_equal(&self) {
        self.catch_up();
        let digests = [&self.primary, &self.standby].map(digest_now);
        assert_eq!(digests[0], digests[1]);
    }

    fn standby_dir(&self) -> std::path::PathBuf {
        self.dir.path().join("standby")
    }

    fn restart_standby(self) -> Self {
        self.standby.close().expect("close");
        let place = self.standby_dir();
        let Self {
            dir,
            primary,
            standby,
            line,
            policy,
        } = self;
        drop(standby);
        let standby = open_standby(&place, policy);
        Self {
            dir,
            primary,
            standby,
            line,
            policy,
        }
    }
}

/// The outcome of one call, its result as integers, and its LSN.
fn call(database: &Database, procedure: &str, key: Option<&str>, args: &[i64]) -> (ReplyOutcome, Vec<i64>, Lsn) {
    let reply = submit(database, &[(procedure, key, i64s(args))]);
    let reply = reply.get(0);
    let result = reply
        .result
        .chunks_exact(8)
        .map(|bytes| i64::from_le_bytes(bytes.try_into().expect("8 bytes")));
    (reply.outcome.clone(), result.collect(), reply.lsn)
}

fn balance(database: &Database, account: i64) -> i64 {
    let (outcome, result, _) = call(database, "balance", None, &[account]);
    assert_eq!(outcome, ReplyOutcome::Committed);
    result[0]
}

#[test]
fn tables_are_equal_at_one_lsn_and_each_read_sees_a_prefix() {
    for policy in [LogPolicy::Command, LogPolicy::Physiological, LogPolicy::Both] {
        let pair = Pair::new(policy);
        pair.check_equal();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                (0..150).for_each(|round| transfer(&pair.primary, round));
                is_over.store(true, Ordering::Release);
            });
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    feed(&pair.line, &pair.standby);
                }
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    let (mut seen, mut last) = (0u64, Lsn(0));
                    while !is_over.load(Ordering::Acquire) || seen < 20 {
                        let (outcome, total, lsn) = call(&pair.standby, "total", None, &[]);
                        assert_eq!(
                            (outcome, &total[..]),
                            (ReplyOutcome::Committed, &[ACCOUNTS, 100 * ACCOUNTS][..])
                        );
                        assert!(lsn >= last, "a later read sees no less: {lsn} after {last}");
                        let page = page(&pair.standby);
                        assert!(page.1 >= lsn && page.0 == 100 * ACCOUNTS, "{page:?} after {lsn}");
                        (seen, last) = (seen + 1, page.1);
                    }
                });
            }
        });
        pair.check_equal();
        assert_eq!(pair.standby.router().status().role, Role::Standby);
        let positions = pair.standby.standby_positions().expect("a standby");
        let all = [
            positions.received,
            positions.persisted,
            positions.replayed,
            positions.view,
        ];
        assert_eq!(all, [pair.primary.router().view(); 4]);
        let (_, _, lsn) = call(&pair.standby, "total", None, &[]);
        assert_eq!(lsn, call(&pair.primary, "total", None, &[]).2);
    }
}

/// Sum of all balances on one page over all partitions, and the page's LSN.
fn page(database: &Database) -> (i64, Lsn) {
    let request = RowsRequest {
        limit: 1000,
        ..RowsRequest::default()
    };
    let page = database.router().table_rows(request).expect("a page");
    // Both columns are fixed integers: the balance is the last one.
    let balance = |row: &Vec<u8>| i64::from_le_bytes(*row.last_chunk().expect("8 bytes"));
    (page.rows.iter().map(balance).sum(), page.lsn)
}

#[test]
fn writes_are_turned_away_before_anything_runs() {
    let pair = Pair::new(LogPolicy::Command);
    let router = pair.standby.router();
    let before = (router.digest().expect("a digest"), router.view());
    for url in [None, Some(Arc::from("http://primary:8080"))] {
        router.set_primary_url(url.clone());
        for (procedure, args) in [("open", [900, 1].as_slice()), ("transfer", &[1, 2, 3])] {
            let (outcome, _, _) = call(&pair.standby, procedure, Some("key"), args);
            assert_eq!(outcome, ReplyOutcome::NotPrimary(url.clone()));
        }
        let expected = NotPrimary { primary: url };
        let refused = |result: Result<(), DeployError>| match result {
            Err(DeployError::NotPrimary(found)) => assert_eq!(found, expected),
            other => panic!("{other:?}"),
        };
        refused(router.deploy("voter", &wasm("voter")).map(drop));
        refused(router.deploy("bank", &wasm("bank")).map(drop));
        refused(router.plan_deploy("voter", &wasm("voter")).map(drop));
        refused(router.remove("bank", &[]).map(drop));
        refused(router.drop_table("bank.accounts").map(drop));
    }
    assert_eq!((router.digest().expect("a digest"), router.view()), before);
    assert_eq!(router.idempotency().stats().keys, 0);
}

#[test]
fn a_read_waits_for_an_lsn_until_it_is_replayed() {
    let pair = Pair::new(LogPolicy::Physiological);
    let (_, _, lsn) = call(&pair.primary, "open", None, &[500, 7]);
    let router = pair.standby.router();
    assert!(!router.is_in_view(lsn));
    let (tell, told) = mpsc::channel();
    let waiter = router.when_in_view(lsn, Box::new(move || _ = tell.send(())));
    assert!(waiter.is_some());
    assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
    feed(&pair.line, &pair.standby);
    told.recv_timeout(WAIT_MAX).expect("told");
    assert!(router.is_in_view(lsn));
    assert_eq!(balance(&pair.standby, 500), 7);
}

#[test]
fn deployments_removals_and_dropped_tables_are_replayed_between_reads() {
    for policy in [LogPolicy::Command, LogPolicy::Physiological] {
        let pair = Pair::new(policy);
        let names =
            |database: &Database| -> Vec<String> { database.router().deployed().current.keys().cloned().collect() };
        let check = |expected: &[&str]| {
            transfer(&pair.primary, 3);
            pair.check_equal();
            assert_eq!(names(&pair.standby), expected);
            let versions = [&pair.primary, &pair.standby].map(|database| database.router().deployed().versions.len());
            assert_eq!(versions[0], versions[1]);
            let (_, total, _) = call(&pair.standby, "total", None, &[]);
            assert_eq!(total, [ACCOUNTS, 100 * ACCOUNTS]);
        };
        let router = pair.primary.router();
        router.deploy("contacts", &wasm("contacts1")).expect("deploy");
        check(&["bank", "contacts"]);
        router
            .deploy_consenting("contacts", &wasm("contacts2"))
            .expect("deploy the next version");
        router.deploy("voter", &wasm("voter")).expect("deploy");
        check(&["bank", "contacts", "voter"]);
        router.remove_consenting("contacts").expect("remove");
        check(&["bank", "voter"]);
        let deployed = router.deployed();
        let tables = deployed
            .tables
            .iter()
            .filter(|table| table.owner == "contacts" && !table.is_dropped());
        for table in tables {
            router.drop_table(&table.full_name()).expect("drop");
        }
        check(&["bank", "voter"]);
    }
}

#[test]
fn a_restarted_standby_goes_on_where_it_was() {
    for policy in [LogPolicy::Command, LogPolicy::Physiological] {
        let mut pair = Pair::new(policy);
        for round in 0..4 {
            (0..5).for_each(|i| transfer(&pair.primary, round * 5 + i));
            // Records received and not replayed yet are there after the restart.
            feed(&pair.line, &pair.standby);
            pair = pair.restart_standby();
            assert_eq!(pair.standby.router().role(), Role::Standby);
        }
        transfer(&pair.primary, 99);
        pair.check_equal();
        // The groups of before are known.
        transfer(&pair.primary, 100);
        let sent = pop(&pair.line).expect("a group");
        assert_eq!(pair.standby.place(&sent.get()), Ok(AppendOutcome::New));
        assert_eq!(pair.standby.place(&sent.get()), Ok(AppendOutcome::Known));
        pair.check_equal();
    }
}

#[test]
fn gaps_damage_and_old_epochs_are_refused_and_nothing_is_changed() {
    let pair = Pair::new(LogPolicy::Command);
    transfer(&pair.primary, 1);
    let first = pop(&pair.line).expect("a group");
    transfer(&pair.primary, 2);
    let second = pop(&pair.line).expect("a group");
    let before = pair.standby.received().expect("a standby");
    let gap = pair.standby.place(&second.get());
    assert!(matches!(gap, Err(AppendError::Gap { .. })), "{gap:?}");
    for at in [0, first.records.len() / 2, first.records.len() - 1] {
        let mut damaged = first.clone();
        damaged.records[at] ^= 0x40;
        let refused = pair.standby.place(&damaged.get());
        assert!(matches!(refused, Err(AppendError::OtherHistory { .. })), "{refused:?}");
    }
    let mut old = first.clone();
    old.end.epoch = Epoch::new(first.end.epoch.count() - 1, first.end.epoch.writer());
    // The standby's newest records are of that epoch: it is refused once it has newer ones.
    assert_eq!(pair.standby.received(), Some(before));
    assert_eq!(pair.standby.place(&first.get()), Ok(AppendOutcome::New));
    let refused = pair.standby.place(&Group {
        first: first.end.lsn,
        ..old.get()
    });
    assert!(matches!(refused, Err(AppendError::OldEpoch { .. })), "{refused:?}");
    assert_eq!(pair.standby.place(&second.get()), Ok(AppendOutcome::New));
    while let Some(sent) = pop(&pair.line) {
        pair.standby.place(&sent.get()).expect("placed");
    }
    pair.check_equal();
}

#[test]
fn a_directory_that_was_not_bootstrapped_is_refused_and_stays_empty() {
    let dir = tempfile::tempdir().expect("a directory");
    for place in [dir.path().to_path_buf(), dir.path().join("none")] {
        let refused = Database::open_standby(config(&place, 2)).map(drop);
        assert!(matches!(refused, Err(OpenError::NotBootstrapped(_))), "{refused:?}");
    }
    assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 0);
    fs::create_dir(dir.path().join("log")).expect("a folder");
    let refused = Database::open_standby(config(dir.path(), 2)).map(drop);
    assert!(matches!(refused, Err(OpenError::NotBootstrapped(_))), "{refused:?}");
    assert_eq!(fs::read_dir(dir.path().join("log")).expect("a folder").count(), 0);
    let none = Database::open_standby(reprise_database::DatabaseConfig {
        log: LogPolicy::None,
        ..config(dir.path(), 2)
    });
    assert!(matches!(none.map(drop), Err(OpenError::Config(_))));
}

#[test]
fn a_promoted_standby_takes_writes_in_a_new_epoch_and_keeps_every_outcome() {
    for policy in [LogPolicy::Command, LogPolicy::Physiological] {
        let pair = Pair::new(policy);
        let keyed = call(&pair.primary, "transfer", Some("k1"), &[1, 2, 5]);
        let over_all = call(&pair.primary, "transfer", Some("k2"), &[3, 4, 6]);
        (0..5).for_each(|round| transfer(&pair.primary, round));
        feed(&pair.line, &pair.standby);
        let received = pair.standby.received().expect("a standby");
        let refused = pair.primary.promote();
        assert!(
            matches!(refused, Err(ReplicationError::IsPrimary(epoch)) if epoch == received.epoch),
            "{refused:?}"
        );
        // The promotion begins at once, and first replays the received records.
        let promoted = pair.standby.promote().expect("promoted");
        assert_eq!(
            (promoted.epoch.count(), promoted.lsn),
            (received.epoch.count() + 1, received.lsn)
        );
        let refused = pair.standby.promote();
        assert!(
            matches!(refused, Err(ReplicationError::IsPrimary(epoch)) if epoch == promoted.epoch),
            "{refused:?}"
        );
        let digests = [&pair.primary, &pair.standby].map(digest_now);
        assert_eq!(digests[0], digests[1]);

        // A group of the old primary is refused, and so is one that would follow.
        transfer(&pair.primary, 50);
        let late = pop(&pair.line).expect("a group");
        let refused = pair.standby.place(&late.get());
        assert!(matches!(refused, Err(AppendError::Log(_))), "{refused:?}");

        let again = call(&pair.standby, "transfer", Some("k1"), &[1, 2, 5]);
        assert_eq!(again, keyed);
        assert_eq!(call(&pair.standby, "transfer", Some("k2"), &[3, 4, 6]), over_all);
        let (outcome, _, lsn) = call(&pair.standby, "open", None, &[700, 1]);
        assert_eq!((outcome, lsn), (ReplyOutcome::Committed, promoted.lsn));
        let (outcome, _, _) = call(&pair.standby, "transfer", Some("k3"), &[1, 2, 1]);
        assert_eq!(outcome, ReplyOutcome::Committed);
        pair.standby.router().deploy("voter", &wasm("voter")).expect("deploy");
        (0..5).for_each(|round| transfer(&pair.standby, round));
        let status = pair.standby.router().status();
        assert_eq!((status.role, status.epoch), (Role::Primary, Some(promoted.epoch)));
        assert_eq!(pair.standby.standby_positions(), None);
    }
}

#[test]
fn a_promoted_directory_restarts_as_a_primary() {
    let pair = Pair::new(LogPolicy::Command);
    (0..5).for_each(|round| transfer(&pair.primary, round));
    feed(&pair.line, &pair.standby);
    let promoted = pair.standby.promote().expect("promoted");
    (5..9).for_each(|round| transfer(&pair.standby, round));
    let digest = digest_now(&pair.standby);
    pair.standby.close().expect("close");
    let Pair {
        dir, standby, primary, ..
    } = pair;
    drop((standby, primary));
    let reopened = recovered(config(&dir.path().join("standby"), 1));
    assert_eq!(digest_now(&reopened), digest);
    let status = reopened.router().status();
    assert_eq!(
        (status.role, status.epoch.map(|epoch| epoch.count())),
        (Role::Primary, Some(promoted.epoch.count() + 1))
    );
    assert_eq!(call(&reopened, "open", None, &[800, 1]).0, ReplyOutcome::Committed);
}

#[test]
fn a_standby_opened_as_a_primary_is_one_in_a_new_epoch() {
    let pair = Pair::new(LogPolicy::Physiological);
    transfer(&pair.primary, 1);
    pair.check_equal();
    let (received, digest) = (
        pair.standby.received().expect("a standby"),
        pair.standby.router().digest(),
    );
    pair.standby.close().expect("close");
    let Pair {
        dir, standby, primary, ..
    } = pair;
    drop((standby, primary));
    let opened = recovered(config(&dir.path().join("standby"), 2));
    let epoch = opened.router().status().epoch.map(|epoch| epoch.count());
    assert_eq!(epoch, Some(received.epoch.count() + 1));
    assert_eq!(opened.router().digest(), digest);
    transfer(&opened, 2);
}

/// Makes a group of one record of this primary's epoch that follows the standby's last record.
fn forged(standby: &Database, record: &RecordRef<'_>) -> Sent {
    let received = standby.received().expect("a standby");
    let records = RecordBatch::of(record).bytes().to_vec();
    Sent {
        first: received.lsn,
        end: Position {
            lsn: Lsn(received.lsn.0 + 1),
            history: received.history.then(&records),
            epoch: received.epoch,
        },
        records,
    }
}

#[test]
fn a_record_that_does_not_replay_stops_reads_and_promotion_by_name() {
    let stranger = |partitions, digest| CommandRef {
        txn_id: TxnId(1 << 40),
        partitions,
        module_id: 0,
        procedure: 0,
        digest,
        principal: 0,
        keyed: None,
        args: &[0; 16],
    };
    let one = |id| PartitionSet::One(reprise_base::PartitionId(id));
    for (record, expected) in [
        (stranger(one(1), 5), "replay diverges at LSN"),
        (stranger(one(77), 5), "names partition 77"),
        (stranger(PartitionSet::All, 5), "replay diverges at LSN"),
    ] {
        let pair = Pair::new(LogPolicy::Command);
        transfer(&pair.primary, 1);
        pair.check_equal();
        let sent = forged(&pair.standby, &RecordRef::Command(record));
        let before = pair.standby.router().view();
        assert_eq!(pair.standby.place(&sent.get()), Ok(AppendOutcome::New));
        let router = pair.standby.router();
        wait_until("the replay stops", || {
            matches!(router.phase(), NodePhase::Failed { .. })
        });
        let NodePhase::Failed { report } = router.phase() else {
            unreachable!("looked at above");
        };
        assert!(report.contains(expected), "{report}");
        assert_eq!(router.view(), before);
        let (outcome, _, _) = call(&pair.standby, "total", None, &[]);
        assert!(matches!(outcome, ReplyOutcome::Unavailable(_)), "{outcome:?}");
        match pair.standby.promote() {
            Err(ReplicationError::Unavailable(reason)) => assert!(reason.contains(expected), "{reason}"),
            other => panic!("{other:?}"),
        }
        // A second request has the same answer. It is still a standby, and its log continues.
        assert!(matches!(pair.standby.promote(), Err(ReplicationError::Unavailable(_))));
        assert_eq!(router.role(), Role::Standby);
        let mark = RecordRef::Checkpoint(CheckpointMark {
            txn_id: TxnId(2 << 40),
            key_clock_us: 0,
        });
        let sent = forged(&pair.standby, &mark);
        assert_eq!(pair.standby.place(&sent.get()), Ok(AppendOutcome::New));
        pair.standby.close().expect("close");
    }
}

#[test]
fn a_quarantine_of_what_there_is_not_stops_the_replay_by_name() {
    for (module_id, procedure, expected) in [
        (77, 0, "keeps module number 77 from running, which there is not"),
        (0, 999, "keeps procedure number 999 of module bank from running"),
    ] {
        let pair = Pair::new(LogPolicy::Command);
        pair.check_equal();
        let record = RecordRef::Quarantine(QuarantineRef {
            txn_id: TxnId(1 << 60),
            module_id,
            procedure,
            diverged: Lsn(5),
            what: "forged",
        });
        let sent = forged(&pair.standby, &record);
        assert_eq!(pair.standby.place(&sent.get()), Ok(AppendOutcome::New));
        let router = pair.standby.router();
        wait_until("the replay stops", || {
            matches!(router.phase(), NodePhase::Failed { .. })
        });
        let NodePhase::Failed { report } = router.phase() else {
            unreachable!("looked at above");
        };
        assert!(report.contains(expected), "{report}");
    }
}

#[test]
fn a_quarantine_reaches_a_standby_and_outlives_restart_and_failover() {
    for (policy, takes_checkpoint) in [(LogPolicy::Command, false), (LogPolicy::Physiological, true)] {
        let mut pair = Pair::new(policy);
        let (number, _) = pair.primary.router().deployed().current["bank"]
            .procedure("balance")
            .expect("a procedure");
        let why = Quarantine {
            diverged: Lsn(5),
            what: "it answered otherwise".to_owned(),
        };
        let check = |database: &Database| {
            let (outcome, _, _) = call(database, "balance", None, &[1]);
            assert!(
                matches!(&outcome, ReplyOutcome::Quarantined(why) if why.contains("bank.balance version 1")),
                "{outcome:?}"
            );
            let found = database.quarantine();
            assert_eq!(
                (found.len(), found[0].lsn, found[0].what.as_str()),
                (1, 5, "it answered otherwise")
            );
            assert_eq!(call(database, "total", None, &[]).0, ReplyOutcome::Committed);
        };
        let refused = pair
            .standby
            .router()
            .quarantine(ModuleId(0), number as u16, why.clone());
        assert!(matches!(refused, Err(DeployError::NotPrimary(_))));
        let refused = pair.primary.router().quarantine(ModuleId(9), 0, why.clone());
        assert!(matches!(refused, Err(DeployError::NotFound)));
        let lsn = pair
            .primary
            .router()
            .quarantine(ModuleId(0), number as u16, why)
            .expect("noted");
        check(&pair.primary);
        pair.check_equal();
        check(&pair.standby);
        let entry = pair.standby.router().log_record(lsn).expect("a log").expect("a record");
        let named = entry.procedure.map(|named| named.number as usize);
        assert_eq!(named, Some(number));
        assert!(matches!(entry.body, LogBody::Quarantine { diverged: Lsn(5), .. }));
        if takes_checkpoint {
            // Records in a checkpoint are not replayed.
            common::take(&pair.standby);
        }
        pair = pair.restart_standby();
        check(&pair.standby);
        pair.primary.close().expect("close");
        pair.standby.promote().expect("promoted");
        check(&pair.standby);
        transfer(&pair.standby, 3);
        pair.standby.close().expect("close");
        let opened = recovered(config(&pair.standby_dir(), 2));
        check(&opened);
        // A new version takes calls again.
        let wasm = [&wasm("bank")[..], &[0, 2, 1, b'x']].concat();
        opened.router().deploy("bank", &wasm).expect("deployed");
        assert_eq!(balance(&opened, 1).signum(), 1);
    }
}

#[test]
fn a_checkpoint_of_a_standby_is_a_cut_of_the_replay_and_releases_its_log() {
    for policy in [LogPolicy::Command, LogPolicy::Physiological] {
        let mut pair = Pair::new(policy);
        let keyed = call(&pair.primary, "transfer", Some("k1"), &[1, 2, 5]);
        let is_over = AtomicBool::new(false);
        let taken = thread::scope(|scope| {
            scope.spawn(|| {
                (0..200).for_each(|round| transfer(&pair.primary, round));
                is_over.store(true, Ordering::Release);
            });
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    feed(&pair.line, &pair.standby);
                }
            });
            (0..5).map(|_| common::take(&pair.standby)).collect::<Vec<_>>()
        });
        assert!(taken.windows(2).all(|two| two[0].lsn <= two[1].lsn), "{taken:?}");
        pair.check_equal();
        // All checkpoints until now may have the LSN of the last round. This one has a later LSN.
        transfer(&pair.primary, 300);
        pair.catch_up();
        let last = common::take(&pair.standby);
        assert_eq!(last.lsn, pair.standby.router().view());
        let kept = common::files(&pair.standby_dir(), "checkpoints").len();
        assert_eq!(kept, 2, "older ones are gone");
        transfer(&pair.primary, 500);
        feed(&pair.line, &pair.standby);
        pair = pair.restart_standby();
        let newest = common::checkpointer(&pair.standby).newest();
        assert_eq!(newest, Some(last.lsn));
        pair.check_equal();
        pair.standby.promote().expect("promoted");
        assert_eq!(call(&pair.standby, "transfer", Some("k1"), &[1, 2, 5]), keyed);
        common::take(&pair.standby);
    }
}

#[test]
fn changes_alone_are_applied_where_both_were_logged() {
    let pair = Pair::new(LogPolicy::Both);
    pair.standby.close().expect("close");
    let place = pair.standby_dir();
    let Pair {
        dir,
        primary,
        standby,
        line,
        policy,
    } = pair;
    drop(standby);
    let mut config = config(&place, 1);
    config.redo = RedoConfig {
        from: reprise_database::RecoverFrom::Changes,
        ..RedoConfig::default()
    };
    let standby = Database::open_standby(config).expect("open");
    standby.recover().expect("recover");
    let pair = Pair {
        dir,
        primary,
        standby,
        line,
        policy,
    };
    (0..20).for_each(|round| transfer(&pair.primary, round));
    pair.check_equal();
}
