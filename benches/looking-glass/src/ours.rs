//! Our own engine, as the server runs it on one partition: without router, log or second thread.

use std::sync::Arc;

use anyhow::{Result, bail};
use reprise_base::{PartitionId, TxnId};
use reprise_driver::NativeCode;
use reprise_host::{CompiledModule, Engine, Limits};
use reprise_storage::Store;
use reprise_txn::{
    Candidate, Code, Deployed, DeploymentRules, Executors, HeldCounts, Module, Outcome, TxnInput, TxnScratch, apply,
    outline, prepare, run_single,
};

use crate::{digest::RowsDigest, txn::SECRET, work::Call};

/// A partition's store with the module `tpcc`.
pub struct Ours {
    store: Store,
    module: Arc<Module>,
    executors: Executors,
    scratch: TxnScratch,
}

impl Ours {
    /// With the module as compiled into this program, or as wasm.
    ///
    /// # Errors
    /// The wasm is no module that an empty store takes.
    pub fn open(wasm: Option<&[u8]>) -> Result<Self> {
        let (hash, schema, code): (_, _, Arc<dyn Code>) = match wasm {
            None => ([0; 32], tpcc::MODULE.schema(), Arc::new(NativeCode(&tpcc::MODULE))),
            Some(wasm) => {
                let code = CompiledModule::compile(&Engine::new(Limits::default()), wasm)?;
                (code.hash(), code.schema().clone(), Arc::new(code))
            }
        };
        let candidate = Candidate {
            name: "tpcc".into(),
            hash,
            wasm_bytes: 0,
            description: Arc::default(),
            schema,
            code,
        };
        let (mut store, before) = (Store::new(), Deployed::default());
        let stores = [&store];
        let outline = outline(&before, &candidate, DeploymentRules::Deployment(&HeldCounts(&stores)));
        let Ok(steps) = prepare(outline, &stores, &|_| true) else {
            bail!("the module does not fit an empty store");
        };
        let deployed = apply(&before, candidate, steps, TxnId(1), &mut [&mut store]).next;
        Ok(Self {
            store,
            module: deployed.current["tpcc"].clone(),
            executors: Executors::default(),
            scratch: TxnScratch::default(),
        })
    }

    /// Runs a call. False where it did not commit.
    #[inline]
    pub fn run(&mut self, call: &Call) -> bool {
        let input = TxnInput {
            txn_id: TxnId(call.txn_id),
            secret: SECRET,
            partitions_count: 1,
            module: &self.module,
            procedure: call.procedure,
            args: &call.args,
            caller: None,
        };
        let Ok(executor) = self.executors.get(&self.module) else {
            return false;
        };
        let outcome = run_single(&mut self.store, PartitionId(0), &input, executor, &mut self.scratch);
        matches!(outcome, Outcome::Commit(_))
    }

    /// The digest of all rows.
    pub fn digest(&self) -> RowsDigest {
        let mut digest = RowsDigest::default();
        for (number, table) in tpcc::MODULE.schema().tables.iter().enumerate() {
            let stored = self.store.table_id(&format!("tpcc.{}", table.name));
            let Some(stored) = stored else { continue };
            for rid in self.store.sorted_rids(stored) {
                if let Some(row) = self.store.row(stored, rid) {
                    digest.add(number, row);
                }
            }
        }
        digest
    }
}
