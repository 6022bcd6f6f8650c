//! A module without code over stores of the test, and procedures that are closures over the host calls.

use std::sync::Arc;

use reprise_abi::{HostOps, OpError};
use reprise_base::{PartitionId, TxnId};
use reprise_host::{CallOutcome, Fault, GuestExit, describe};
use reprise_storage::Store;
use reprise_txn::{
    Candidate, Code, Deployed, DeploymentRules, Executor, HeldCounts, ModuleId, Outcome, TxnInput, TxnScratch, apply,
    outline, prepare, run_multi, run_single,
};

/// Code that nothing runs.
pub struct NoCode;

impl Code for NoCode {
    fn instantiate(&self) -> Result<Box<dyn Executor>, String> {
        Err("runs in the test".into())
    }
}

/// A procedure written against the host calls. An error of them ends it as it ends a guest.
pub struct Procedure<F>(pub F);

impl<F: FnMut(&mut dyn HostOps) -> Result<(), OpError>> Executor for Procedure<F> {
    fn call(&mut self, _: usize, ops: &mut dyn HostOps) -> CallOutcome {
        let kind = match (self.0)(ops) {
            Ok(()) => Ok(GuestExit::Returned),
            Err(OpError::Limit { limit, max }) => Err(Fault::limit(limit, max)),
            Err(OpError::Ended(ended)) => Err(Fault::ended(ended)),
            Err(OpError::KeyTooLong { key }) => Err(Fault::key_too_long(&key)),
            Err(error) => Err(Fault::guest(format!("{error:?}"))),
        };
        CallOutcome { kind, fuel_used: 0 }
    }
}

/// The module `m` that this text describes, deployed on new stores.
pub fn deployed(schema: &str, stores: &mut [Store]) -> Deployed {
    let candidate = Candidate {
        name: "m".into(),
        hash: [0; 32],
        description: schema.as_bytes().into(),
        wasm_bytes: 0,
        schema: describe::from_json(schema.as_bytes()).expect("a description"),
        code: Arc::new(NoCode),
    };
    let before = Deployed::default();
    let all: Vec<_> = stores.iter().collect();
    let outline = outline(&before, &candidate, DeploymentRules::Deployment(&HeldCounts(&all)));
    let steps = prepare(outline, &all, &|_| true).expect("no conflict");
    let mut stores: Vec<_> = stores.iter_mut().collect();
    apply(&before, candidate, steps, TxnId(1), &mut stores).next
}

/// Runs a procedure on all partitions, or on this one alone.
pub fn run(
    stores: &mut [Store],
    deployed: &Deployed,
    frame: &mut TxnScratch,
    only: Option<u16>,
    body: impl FnMut(&mut dyn HostOps) -> Result<(), OpError>,
) -> Outcome {
    let input = TxnInput {
        txn_id: TxnId(2),
        secret: [0; 2],
        partitions_count: stores.len() as u16,
        module: deployed.module(ModuleId(0)).expect("deployed"),
        procedure: 0,
        args: &[],
        caller: None,
    };
    let mut executor = Procedure(body);
    match only {
        Some(at) => run_single(&mut stores[at as usize], PartitionId(at), &input, &mut executor, frame),
        None => {
            let mut held: Vec<_> = (0..).map(PartitionId).zip(stores).collect();
            run_multi(&mut held, &input, &mut executor, frame)
        }
    }
}

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound as u64) as u32
    }
}
