//! The scope of one call in the test kit.

use reprise_abi::ModuleSchema;

/// Tables and partitions that a call may read and write.
pub struct CallScope {
    /// Its partitions, ascending.
    pub held: Vec<usize>,
    pub read_only: bool,
    /// A migration writes its partition's rows of a replicated table alone.
    pub writes_replicated: bool,
    /// Number of tables that it sees: the module's, and behind them retiring ones, for a migration and for code that sets a test up.
    pub tables_seen: usize,
    /// Number of these tables that it writes.
    pub tables_written: usize,
    /// Fuel that it may burn, if it is not that of every call.
    pub fuel_max: Option<u64>,
}

/// Caller, time and random seed of a transaction.
pub struct Moment<'a> {
    pub caller: Option<&'a str>,
    pub now_us: i64,
    pub txn_id: u64,
    pub seed: u64,
}

impl CallScope {
    /// The scope of a migration, on one partition.
    pub fn migration(partition: usize, schema: &ModuleSchema) -> Self {
        Self {
            tables_seen: schema.tables.len() + schema.retiring.len(),
            tables_written: schema.tables.len(),
            held: vec![partition],
            read_only: false,
            writes_replicated: true,
            fuel_max: None,
        }
    }

    /// Names its partitions.
    pub fn runs_on(&self) -> String {
        match &self.held[..] {
            [only] => format!("partition {only} alone"),
            held => {
                let names: Vec<String> = held.iter().map(usize::to_string).collect();
                format!("partitions {}", names.join(", "))
            }
        }
    }
}
