use std::sync::mpsc;

use reprise_env::SimClock;
use reprise_txn::ModuleId;

use super::*;
use crate::outcome::ReplyOutcome;

type Told = mpsc::Receiver<Result<(), Arc<str>>>;

fn wait_for(gate: &CommitGate, end: u64) -> Told {
    let (sender, answers) = mpsc::channel();
    gate.when_committed(Lsn(end), move |outcome| _ = sender.send(outcome));
    answers
}

#[test]
fn caller_that_arrives_during_answers_is_answered_after_them() {
    let gate = Arc::new(CommitGate::default());
    gate.keep(Lsn(0));
    gate.set_limit(Some(Lsn(5)), true, Shortage::default());
    let (sender, answers) = mpsc::channel();
    let (inner, hook_sender) = (gate.clone(), sender.clone());
    gate.when_committed(Lsn(7), move |_| {
        // Another thread may do the same at this moment.
        let later = hook_sender.clone();
        inner.when_committed(Lsn(8), move |outcome| _ = later.send((8, outcome.is_ok())));
        inner.release();
        let _ = hook_sender.send((7, true));
    });
    gate.set_limit(Some(Lsn(9)), true, Shortage::default());
    gate.release();
    assert_eq!(answers.try_iter().collect::<Vec<_>>(), [(7, true), (8, true)]);
    // Waits that the gate gives up end in the same order.
    let (inner, hook_sender) = (gate.clone(), sender);
    gate.when_committed(Lsn(11), move |outcome| {
        let later = hook_sender.clone();
        inner.when_committed(Lsn(9), move |outcome| _ = later.send((9, outcome.is_ok())));
        let _ = hook_sender.send((11, outcome.is_ok()));
    });
    gate.leave_open(&"nobody waits any more".into());
    assert_eq!(answers.try_iter().collect::<Vec<_>>(), [(11, false), (9, true)]);
    assert!(wait_for(&gate, 9).try_recv().is_ok(), "nobody answers now");
}

#[test]
fn reads_that_wait_are_run_again_once_standbys_are_missing_and_writes_wait() {
    let gate = CommitGate::default();
    gate.keep(Lsn(0));
    gate.set_limit(Some(Lsn(5)), true, Shortage::default());
    let (sender, answers) = mpsc::channel();
    let wait = |name: &'static str, end: u64, records: u32, outcome: ReplyOutcome| {
        let mut batch = CallBatch::new(None);
        batch.push(ModuleId(0), 0, b"", None);
        (batch.calls[0].outcome, batch.records) = (outcome, records);
        batch.is_table_read = name == "table read";
        let sender = sender.clone();
        let done = move |batch: Box<CallBatch>| _ = sender.send((name, batch.calls[0].outcome.clone()));
        batch.done = Some(Box::new(done));
        gate.complete(Lsn(end), Ok(()), Box::new(batch));
    };
    let aborted = || {
        ReplyOutcome::Failed(Box::new(reprise_txn::Failure::Aborted {
            code: "no".into(),
            message: String::new(),
        }))
    };
    wait("read", 7, 0, ReplyOutcome::Committed);
    wait("write", 8, 1, ReplyOutcome::Committed);
    wait("abort", 8, 0, aborted());
    wait("table read", 8, 0, ReplyOutcome::Waiting);
    gate.release();
    assert!(answers.try_recv().is_err(), "standbys are here");
    let reads: Option<Arc<str>> = Some("two are gone".into());
    let writes = None;
    gate.set_limit(Some(Lsn(6)), true, Shortage { writes, reads });
    gate.release();
    let refused = ReplyOutcome::StandbyUnavailable("two are gone".into());
    let all: Vec<_> = answers.try_iter().collect();
    assert_eq!(all, [("read", ReplyOutcome::Superseded), ("table read", refused)]);
    // Rows that a read saw stay committed, whatever becomes of the limit.
    let limit = gate.read_limit(Lsn(8)).expect("standbys are missing");
    assert_eq!((limit.end, gate.acknowledged()), (Lsn(6), Lsn(6)));
    gate.set_limit(Some(Lsn(3)), true, Shortage::default());
    assert_eq!(gate.committed(Lsn(9)), Lsn(6));
    gate.set_limit(Some(Lsn(8)), true, Shortage::default());
    gate.release();
    let all: Vec<_> = answers.try_iter().collect();
    assert_eq!(all, [("write", ReplyOutcome::Committed), ("abort", aborted())]);
}

#[test]
fn mark_passes_when_earlier_calls_are_answered_although_no_standby_has_it() {
    let gate = CommitGate::default();
    gate.keep(Lsn(0));
    gate.set_limit(Some(Lsn(0)), false, Shortage::default());
    let mark = |end: u64| {
        let (sender, passed) = mpsc::channel();
        let mut batch = Box::new(CallBatch::new(None));
        batch.records = 1;
        batch.done = Some(Box::new(move |_| _ = sender.send(())));
        gate.complete(Lsn(end), Ok(()), batch);
        passed
    };
    assert!(mark(3).try_recv().is_ok(), "there is no earlier call");
    assert_eq!(gate.committed(Lsn(9)), Lsn(0), "and nothing is committed by it");
    let (early, passed, late) = (wait_for(&gate, 5), mark(6), wait_for(&gate, 7));
    gate.release();
    assert!(early.try_recv().is_err() && passed.try_recv().is_err());
    gate.set_limit(Some(Lsn(5)), true, Shortage::default());
    gate.release();
    assert!(early.try_recv().is_ok() && passed.try_recv().is_ok() && late.try_recv().is_err());
    assert_eq!(gate.acknowledged(), Lsn(5));
    let passed = mark(8);
    gate.leave_open(&"no standby comes".into());
    assert!(late.try_recv().is_ok() && passed.try_recv().is_ok());
}

#[test]
fn primary_is_in_doubt_when_counted_standbys_are_silent_and_it_has_no_lease() {
    let clock = Arc::new(SimClock::at_us(5_000_000));
    let doubt_of = |level, is_leased: bool| {
        let gate = CommitGate::default();
        gate.set_level(level);
        if is_leased {
            let lease = LeaseClock::new(clock.clone());
            lease.set_until(u64::MAX);
            assert!(gate.set_lease(Arc::new(lease)));
        }
        let now_ns = clock.boot_ns();
        let never = gate.doubt(&*clock);
        gate.record_confirmed(now_ns - STANDBY_SILENT_NS);
        let fresh = gate.doubt(&*clock);
        clock.advance_us(1);
        let silent = gate.doubt(&*clock);
        let reads: Option<Arc<str>> = Some("gone".into());
        gate.set_limit(
            Some(Lsn(0)),
            false,
            Shortage {
                writes: reads.clone(),
                reads,
            },
        );
        gate.record_confirmed(clock.boot_ns() - 7);
        let short = gate.doubt(&*clock).map(|doubt| (doubt.age_ns, doubt.is_known));
        (never.is_some(), fresh.is_some(), silent.is_some(), short)
    };
    for level in [Safety::Quorum, Safety::VerySafe] {
        assert_eq!(doubt_of(level, false), (true, false, true, Some((7, true))), "{level}");
        assert_eq!(doubt_of(level, true), (false, false, false, None), "{level}");
    }
    assert_eq!(doubt_of(Safety::TwoSafe, false), (false, false, false, None));
}

#[test]
fn nothing_is_answered_alone_once_the_lease_is_over_and_all_of_it_when_it_is_back() {
    let clock = Arc::new(SimClock::at_us(1));
    let lease = Arc::new(LeaseClock::new(clock.clone()));
    let gate = CommitGate::default();
    assert!(gate.set_lease(lease.clone()) && !gate.set_lease(lease.clone()));
    gate.keep(Lsn(5));
    assert!(gate.refusal().is_some(), "it never had one");
    lease.set_until(clock.monotonic_ns() + 1_000_000);
    assert!(gate.refusal().is_none() && lease.is_valid());
    assert!(wait_for(&gate, 7).try_recv().is_ok_and(|outcome| outcome.is_ok()));
    clock.advance_us(1_000);
    assert_eq!(lease.left_ns(), 0);
    assert!(gate.refusal().is_some());
    let waits = wait_for(&gate, 9);
    gate.release();
    assert!(waits.try_recv().is_err(), "another server may be the primary");
    assert_eq!(gate.committed(Lsn(9)), Lsn(7), "what was answered is");
    // A client that repeats a call is not told that it committed.
    assert!(gate.is_beyond(Lsn(8)) && gate.is_beyond(Lsn(6)));
    // A standby in sync has it: that needs no lease.
    gate.set_limit(Some(Lsn(9)), true, Shortage::default());
    assert!(gate.is_beyond(Lsn(9)) && !gate.is_beyond(Lsn(8)));
    assert!(gate.refusal().is_none());
    gate.release();
    assert!(waits.try_recv().is_ok_and(|outcome| outcome.is_ok()));
    gate.set_limit(None, false, Shortage::default());
    let waits = wait_for(&gate, 11);
    assert!(waits.try_recv().is_err());
    // A standby that is lost, or that becomes in sync, has it. The server that takes over does not know of that.
    gate.set_limit(Some(Lsn(12)), false, Shortage::default());
    gate.release();
    assert!(waits.try_recv().is_err() && gate.refusal().is_some() && gate.is_beyond(Lsn(10)));
    lease.set_until(clock.monotonic_ns() + 1_000_000);
    gate.release();
    assert!(waits.try_recv().is_ok_and(|outcome| outcome.is_ok()));
}

#[test]
fn a_lease_ends_while_the_machine_is_suspended() {
    let clock = Arc::new(SimClock::at_us(1));
    let lease = LeaseClock::new(clock.clone());
    lease.set_until(clock.boot_ns() + 1_000_000);
    assert!(lease.is_valid());
    clock.suspend_us(1_000);
    assert!(!lease.is_valid());
}
