//! The gate of commits, while several threads use it.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use reprise_base::Lsn;
use reprise_partition::{CommitGate, Shortage};

#[test]
fn standbys_may_be_missed_while_others_are_answered() {
    let gate = Arc::new(CommitGate::default());
    gate.keep(Lsn(0));
    gate.set_limit(Some(Lsn(5)), true, Shortage::default());
    let (sender, told) = mpsc::channel();
    let inner = gate.clone();
    gate.when_committed(Lsn(7), move |_| {
        // A thread of the shipper may do the same at this moment: no lock of the gate is held, before and behind it.
        let reads = Some("a standby is missing".into());
        let shortage = Shortage { writes: None, reads };
        inner.set_limit(Some(Lsn(9)), true, shortage);
        inner.release();
        let _ = sender.send(inner.committed(Lsn(9)));
    });
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        gate.set_limit(Some(Lsn(9)), true, Shortage::default());
        gate.release();
        let _ = done.send(());
    });
    let ended = ended.recv_timeout(Duration::from_secs(20));
    assert!(ended.is_ok(), "the gate waits for itself");
    assert_eq!(told.try_recv(), Ok(Lsn(9)));
}
