//! The schemas of a log: its records change them, so each record is decoded with those of its own place.

use std::sync::Arc;

use reprise_abi::{ModuleSchema, TableSchema};
use reprise_checkpoint::{CheckpointError, CheckpointReader};
use reprise_host::stored_descriptions::read_module;
use reprise_partition::Principals;
use reprise_storage::TableId;
use reprise_txn::{
    Candidate, Deployed, DeploymentRules, TablePast, TableSources, apply, apply_drop, outline, prepare, remove,
};
use reprise_wire::{DeployRef, RecordRef};

use crate::load::{RetiredCode, descriptions};

/// A module's description: parsed, and as the JSON that it sent.
pub type Description = (ModuleSchema, Arc<[u8]>);

/// The modules and tables that a log's records made, added one after the other. They can't be run.
#[derive(Default)]
pub struct LogSchemas {
    deployed: Deployed,
    principals: Principals,
    /// True once a record could not be read: later tables and modules are unknown.
    is_lost: bool,
}

impl LogSchemas {
    /// The modules and tables of a checkpoint, without those before it.
    pub fn of_checkpoint(reader: &CheckpointReader) -> Result<Self, CheckpointError> {
        let principals = Principals::default();
        for (number, name) in reader.principals() {
            let _ = principals.define(*number, name); // the opening of the database reports a wrong number
        }
        Ok(Self {
            deployed: descriptions(reader)?,
            principals,
            is_lost: false,
        })
    }

    /// The unknown schemas of a log whose beginning is gone, and that has no checkpoint.
    pub fn unknown() -> Self {
        Self {
            is_lost: true,
            ..Self::default()
        }
    }

    /// The modules and tables up to the last record that was added.
    pub fn deployed(&self) -> &Deployed {
        &self.deployed
    }

    /// Names of callers, up to the last record that was added.
    pub fn principals(&self) -> &Principals {
        &self.principals
    }

    /// Adds the next record. `describe` reads the module's description; None: it can't be read.
    pub fn add_record(&mut self, record: &RecordRef<'_>, describe: impl FnOnce(&DeployRef<'_>) -> Option<Description>) {
        if let RecordRef::Principal(defined) = record {
            let _ = self.principals.define(defined.number, defined.name);
        }
        if self.is_lost {
            return;
        }
        // A log may begin before its checkpoint, which has what came until then.
        let is_new = record.txn_id().is_some_and(|txn_id| self.deployed.past.reaches(txn_id));
        let next = match record {
            _ if !is_new => return,
            RecordRef::Deploy(deploy) => describe(deploy).and_then(|found| self.deploy(deploy, found)),
            RecordRef::DropTable(drop) => {
                let table = self.deployed.table(drop.table);
                table.map(|(id, _)| apply_drop(&self.deployed, id, drop.txn_id, &mut []))
            }
            RecordRef::Remove(removal) => remove(&self.deployed, removal.name),
            _ => return,
        };
        match next {
            Some(next) => self.deployed = next,
            None => self.lose(record),
        }
    }

    fn deploy(&self, deploy: &DeployRef<'_>, description: Description) -> Option<Deployed> {
        let (schema, description) = description;
        if deploy.module_id as usize != self.deployed.versions.len() {
            return None;
        }
        let candidate = Candidate {
            name: deploy.name.to_owned(),
            hash: deploy.hash,
            wasm_bytes: deploy.wasm.len() as u64,
            schema,
            description,
            code: Arc::new(RetiredCode),
        };
        let logged = sources_of(deploy);
        let outline = outline(&self.deployed, &candidate, DeploymentRules::Replay(&logged));
        let plan = prepare(outline, &[], &|_| true).ok()?;
        Some(apply(&self.deployed, candidate, plan, deploy.txn_id, &mut []).next)
    }

    /// Records that from this record on the tables, and the modules that it and later ones deploy, are not known.
    fn lose(&mut self, record: &RecordRef<'_>) {
        self.is_lost = true;
        let txn_id = record.txn_id().expect("what changes schemas is a transaction");
        for table in 0..self.deployed.tables.len() {
            if !self.deployed.tables[table].is_dropped() {
                self.deployed = apply_drop(&self.deployed, TableId(table as u16), txn_id, &mut []);
            }
        }
    }

    /// The history of a checkpoint's tables, if all records up to it were added.
    pub fn past_of(self, reader: &CheckpointReader) -> Option<TablePast> {
        let there = descriptions(reader).ok()?;
        let is_same = |(here, there): (&Arc<TableSchema>, &Arc<TableSchema>)| here == there;
        let is_whole = !self.is_lost
            && self.deployed.tables.len() == there.tables.len()
            && self.deployed.tables.iter().zip(&there.tables).all(is_same);
        is_whole.then_some(self.deployed.past)
    }
}

fn sources_of(deploy: &DeployRef<'_>) -> Vec<TableSources> {
    let tables = deploy.tables.tables().map(|(table, was, columns)| TableSources {
        table: table.to_owned(),
        was: was.to_owned(),
        columns,
    });
    tables.collect()
}

/// A checkpoint's description of a module version that was deployed before it.
pub fn described_in(reader: &CheckpointReader, deploy: &DeployRef<'_>) -> Option<Description> {
    let module = reader.modules().get(deploy.module_id as usize)?.get();
    let schema = read_module(module.description).ok()?;
    (module.hash == deploy.hash).then(|| (schema, module.description.into()))
}
