//! Clients of a database in this process, and what all clients have in common.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
};

use reprise_base::TxnId;
use reprise_database::{BatchLimits, CheckpointConfig, CommitMode, Database, DatabaseConfig, DeviceConfig, LogPolicy};
use reprise_router::{BatchBuilder, BatchReply, Failure, ReplyOutcome, Router};

use crate::{
    Done,
    op::{Op, Ret},
};

/// A client that makes calls and waits for them.
pub trait Client {
    /// Runs these calls, sent together; what each answered.
    fn call(&mut self, ops: &[Op]) -> Vec<(Ret, TxnId)>;
}

/// A client in this process.
pub struct Local(pub Router);

impl Client for Local {
    fn call(&mut self, ops: &[Op]) -> Vec<(Ret, TxnId)> {
        self.call_counted(ops, &Arc::default()).0
    }
}

impl Local {
    /// Runs calls; and how many, of all that count in `served`, were answered while these waited. Counted when the engine
    /// answers, so nothing hangs on when this thread runs again.
    pub fn call_counted(&self, ops: &[Op], served: &Arc<AtomicU64>) -> (Vec<(Ret, TxnId)>, u64) {
        let deployed = self.0.deployed();
        let module = &deployed.current["registers"];
        let mut batch = BatchBuilder::new(deployed.clone(), &self.0);
        for op in ops {
            let (number, _) = module.procedure(op.procedure()).expect("one of the module's");
            let encode = |out: &mut Vec<u8>| {
                op.encode(out);
                Ok::<(), ()>(())
            };
            batch.push(module, number, None, encode).expect("encoded");
        }
        let (sender, receiver) = mpsc::channel();
        let (counter, calls) = (served.clone(), ops.len() as u64);
        let done = Box::new(move |reply| {
            let before = counter.fetch_add(calls, Ordering::SeqCst);
            sender.send((reply, before)).expect("received below");
        });
        self.0.submit(batch, done);
        // The count is read after the call is sent. A thread that stands still before that would count calls served ahead of it.
        let sent_at = served.load(Ordering::SeqCst);
        let (reply, answered_at): (BatchReply, u64) = receiver.recv().expect("every call is answered");
        let answer = |at: usize| {
            let call = reply.get(at);
            let ret = match call.outcome {
                ReplyOutcome::Committed => ops[at].decode(call.result).expect("its result"),
                ReplyOutcome::Failed(failure) if matches!(**failure, Failure::Aborted { .. }) => Ret::Aborted,
                other => panic!("{:?} ended with {other:?}", ops[at]),
            };
            (ret, call.txn_id)
        };
        let answers = (0..reply.len()).map(answer).collect();
        (answers, answered_at.saturating_sub(sent_at))
    }
}

/// Lets every client make its calls, `together` at most in one go. Returns the answers that they saw.
pub fn history_of<C: Client + Send>(clients: Vec<(C, Vec<Op>)>, together: usize) -> Vec<Done> {
    let events = AtomicU64::new(0);
    let run = |number: usize, mut client: C, ops: Vec<Op>| {
        let mut seen = Vec::new();
        for (turn, ops) in ops.chunks(together).enumerate() {
            // Shorter ones, too.
            for ops in ops.chunks(1 + (turn + number) % together) {
                let invoked = events.fetch_add(1, Ordering::SeqCst);
                let answers = client.call(ops);
                let returned = events.fetch_add(1, Ordering::SeqCst);
                seen.extend(ops.iter().zip(answers).map(|(op, (ret, txn_id))| Done {
                    client: number,
                    op: op.clone(),
                    ret,
                    txn_id,
                    invoked,
                    returned,
                }));
            }
        }
        seen
    };
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(number, (client, ops))| scope.spawn(move || run(number, client, ops)))
            .collect();
        let seen = threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("no client panics"));
        seen.collect()
    })
}

/// A database over `dir`, or in memory alone; ready.
pub fn open(dir: Option<&Path>, partitions: u16, sites: u16, log: LogPolicy) -> Database {
    let database = Database::open(DatabaseConfig {
        dir: dir.map(PathBuf::from),
        partitions,
        sites,
        log,
        redo: reprise_database::RedoConfig::default(),
        device: DeviceConfig::File,
        commit: CommitMode::Sync,
        batch_limits: BatchLimits::default(),
        segment_bytes: 1 << 20,
        checkpoints: CheckpointConfig::BY_HAND,
        memory_max_bytes: u64::MAX,
    })
    .expect("open");
    database.recover().expect("recover");
    database
}

pub fn registers_wasm() -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("target/procedures/registers.wasm");
    std::fs::read(&path)
        .unwrap_or_else(|error| panic!("read {}: {error}; `cargo xtask wasm` builds it", path.display()))
}

pub fn deploy(database: &Database) {
    let deployed = database.router().deploy("registers", &registers_wasm());
    deployed.expect("deploy");
}
