//! Runs procedures natively, in milliseconds, with a fixed clock and seed: the test kit of a module.
//!
//! The database is in memory, on several partitions like a server's. A call reads and writes the rows of its own partitions, and
//! `scan_local` sees only their rows. Only a call on all partitions writes a replicated table.

mod call_scope;
mod placement;
mod session;
mod store;

use std::fmt;

use reprise_abi::{
    HostOps, LogLevel, ModuleSchema, OpError, ProcedureSchema, TXN_ORIGIN_BITS, TXN_ORIGIN_SEVERAL, TablePlacement,
    key::KEY_BYTES_MAX, value::ValueReader,
};

use self::{call_scope::CallScope, session::TestSession, store::TestStore};
use crate::{
    module::Abort,
    native::{NativeExit, NativeFault, NativeModule, with_txn},
    scratch::Scratch,
    txn::Txn,
    value::{Args, Decode},
};

/// 2024-01-01T00:00:00Z in microseconds: the clock of every new test database.
pub const START_US: i64 = 1_704_067_200_000_000;
/// Partitions of every new test database: many, so that a row is seldom on the right one by chance.
pub const PARTITIONS: u16 = 7;

/// Why a call did not commit. Nothing of it stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestError {
    /// The procedure rolled back.
    Aborted(Abort),
    /// A mistake in the procedure that would trap or be refused on the server, with the reason.
    Fault(String),
}

impl TestError {
    /// The code of an abort; none for a fault.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Aborted(abort) => Some(&abort.code),
            Self::Fault(_) => None,
        }
    }
}

impl fmt::Display for TestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aborted(abort) => write!(f, "aborted: {abort}"),
            Self::Fault(reason) => write!(f, "fault: {reason}"),
        }
    }
}

impl std::error::Error for TestError {}

impl From<NativeFault> for TestError {
    fn from(fault: NativeFault) -> Self {
        Self::Fault(match fault {
            NativeFault::Panic(message) => format!("panicked: {message}"),
            NativeFault::Host(OpError::Guest(message)) => message,
            NativeFault::Host(OpError::Limit { limit, max }) => {
                format!("limit {limit} of {max} exceeded")
            }
            NativeFault::Host(OpError::KeyTooLong { key }) => {
                format!("{key} is longer than {KEY_BYTES_MAX} bytes: over HTTP this is invalid-arguments")
            }
            NativeFault::Host(OpError::Ended(ended)) => format!("ended ({ended:?})"),
            NativeFault::Host(OpError::DuplicateKey { index }) => {
                format!("duplicate key in index {index}")
            }
        })
    }
}

/// A procedure whose result is an `R`. `#[procedure]` implements it, for `PROCEDURE::call`.
pub trait Returns<R> {}

/// A line that a procedure logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Its level.
    pub level: LogLevel,
    /// Text of the line.
    pub text: String,
}

/// A module's wasm, which runs its calls in place of the native code. `reprise-fuel` has one.
pub trait Guest {
    /// Returns the description of the module.
    fn schema(&self) -> &ModuleSchema;
    /// Runs a procedure in the transaction of `ops`; behind all procedures, what runs at a deployment.
    fn call(&mut self, index: usize, ops: &mut dyn HostOps) -> GuestEnd;
}

/// The end of a call of a [`Guest`].
pub struct GuestEnd {
    /// Err: the reason why the call was ended.
    pub exit: Result<NativeExit, String>,
    /// Fuel that it burned.
    pub fuel: u64,
}

/// A database for tests.
pub struct TestDb {
    module: &'static NativeModule,
    guest: Option<Box<dyn Guest>>,
    /// Fuel of the last call.
    fuel: u64,
    schema: ModuleSchema,
    /// Stores by partition.
    stores: Vec<TestStore>,
    now_us: i64,
    seed: u64,
    txn_count: u64,
    log: Vec<LogLine>,
    caller: Option<String>,
}

impl TestDb {
    /// An empty database with the module's tables.
    ///
    /// # Panics
    /// When the module's description is one that a server would refuse.
    pub fn new(module: &'static NativeModule) -> Self {
        let schema = module.schema();
        if let Err(reason) = store::check(&schema) {
            panic!("this module can't be deployed: {reason}");
        }
        Self {
            module,
            guest: None,
            fuel: 0,
            stores: stores(&schema, PARTITIONS),
            schema,
            now_us: START_US,
            seed: 0,
            txn_count: 0,
            log: Vec::new(),
            caller: None,
        }
    }

    /// Sets the number of partitions, at least one; a procedure should do the same on any number.
    ///
    /// # Panics
    /// If a procedure was called already.
    pub fn with_partitions(mut self, partitions: u16) -> Self {
        assert!(
            self.txn_count == 0,
            "the number of partitions is chosen before the first call"
        );
        self.stores = stores(&self.schema, partitions.max(1));
        self
    }

    /// Runs calls as wasm from now on, with fuel and the limits of a server.
    ///
    /// # Panics
    /// If the wasm is not that of this module's source.
    pub fn with_guest(mut self, guest: impl Guest + 'static) -> Self {
        assert!(
            *guest.schema() == self.schema,
            "the wasm was built from another source: run `reprise build` first"
        );
        self.guest = Some(Box::new(guest));
        self
    }

    /// Returns the fuel that the last call burned, or the largest part of the last migration. 0 without [`Self::with_guest`]. It is the
    /// same on every server.
    pub fn fuel(&self) -> u64 {
        self.fuel
    }

    /// Another stream of random numbers.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Moves the clock: by default every transaction happens at [`START_US`].
    pub fn set_now_us(&mut self, now_us: i64) {
        self.now_us = now_us;
    }

    /// Names the caller of the calls that follow ([`Txn::caller`]): by default there is none, as on a server without tokens.
    pub fn set_caller(&mut self, name: Option<&str>) {
        self.caller = name.map(str::to_owned);
    }

    /// The module as it describes itself to the host.
    pub fn schema(&self) -> &ModuleSchema {
        &self.schema
    }

    /// All logged lines, of aborted transactions too.
    pub fn log(&self) -> &[LogLine] {
        &self.log
    }

    /// Rows of a table.
    ///
    /// # Panics
    /// When the module has no such table.
    pub fn count(&self, table: &str) -> usize {
        let position = self.schema.tables.iter().position(|schema| schema.name == table);
        let position = position.unwrap_or_else(|| panic!("the module has no table {table}"));
        let mut stores = self.stores.iter();
        match self.schema.tables[position].placement {
            TablePlacement::Replicated => stores.next().map_or(0, |first| first.rows_count(position)),
            TablePlacement::Local | TablePlacement::By(_) => stores.map(|store| store.rows_count(position)).sum(),
        }
    }

    /// Calls a procedure by name, through the same encoding of arguments and result as a call over HTTP.
    pub fn call<R: for<'a> Decode<'a>>(&mut self, procedure: &str, args: impl Args) -> Result<R, TestError> {
        let mut encoded = Scratch::new();
        args.encode_args(&mut encoded);
        self.call_encoded(procedure, &encoded)
    }

    /// Calls like `call`, with encoded arguments: used by `PROCEDURE::call`.
    #[doc(hidden)]
    pub fn call_encoded<R: for<'a> Decode<'a>>(&mut self, procedure: &str, args: &Scratch) -> Result<R, TestError> {
        let result = self.run_call(procedure, args.as_slice())?;
        let mut reader = ValueReader::new(&result);
        let value = R::decode(&mut reader).and_then(|value| reader.finish().map(|()| value));
        value.map_err(|error| TestError::Fault(format!("the result of {procedure} is of another type: {error}")))
    }

    fn run_call(&mut self, procedure: &str, args: &[u8]) -> Result<Vec<u8>, TestError> {
        let unknown = || TestError::Fault(format!("the module has no procedure {procedure}"));
        let index = self.module.procedure_index(procedure).ok_or_else(unknown)?;
        let declared = self.schema.procedures[index].clone();
        check_args(&declared, args)?;
        let scope = CallScope {
            held: placement::of_call(&declared, args, self.stores.len()),
            read_only: declared.read_only,
            writes_replicated: false,
            tables_seen: self.schema.tables.len(),
            tables_written: self.schema.tables.len(),
            fuel_max: declared.fuel_max,
        };
        let (module, mut guest) = (self.module, self.guest.take());
        let mut session = self.begin(args, scope);
        let outcome = session.run(module, guest.as_deref_mut(), index);
        let fuel = session.fuel;
        session.end(outcome.is_ok());
        (self.guest, self.fuel) = (guest, fuel);
        outcome
    }

    /// Runs the module's migration (`#[on_deploy]`) over the present rows, as rows of version `from_version`, in one transaction on each
    /// partition. Err: why a server would leave the version before in service; no change stays.
    pub fn deploy_over(&mut self, from_version: u32) -> Result<(), TestError> {
        if self.module.on_deploy.is_none() {
            return Err(TestError::Fault(
                "the module runs nothing when it is deployed".to_owned(),
            ));
        }
        let (module, partitions, args) = (self.module, self.stores.len(), from_version.to_le_bytes());
        let mut guest = self.guest.take();
        let (mut outcome, mut fuel) = (Ok(()), 0);
        for partition in 0..partitions {
            let scope = CallScope::migration(partition, &self.schema);
            let mut session = self.begin(&args, scope);
            outcome = session
                .run(module, guest.as_deref_mut(), module.procedures.len())
                .map(drop);
            fuel = session.fuel.max(fuel);
            if outcome.is_err() {
                break;
            }
        }
        (self.guest, self.fuel) = (guest, fuel);
        let outcome = outcome.and_then(|()| self.check_replicated());
        for store in &mut self.stores {
            if outcome.is_err() {
                store.undo_to(0);
            }
            store.forget_undo();
            if outcome.is_ok() {
                let behind = self.schema.tables.len()..;
                behind
                    .zip(&self.schema.retiring)
                    .for_each(|(table, _)| store.clear(table));
            }
        }
        outcome
    }

    /// Runs code in a transaction of its own, on all partitions: commits on `Ok`, rolls back on `Err`. It may also fill tables that are
    /// retiring, for a test of what runs at a deployment.
    pub fn run<R>(&mut self, body: impl FnOnce(&Txn<'_>) -> Result<R, Abort>) -> Result<R, TestError> {
        let tables = self.schema.tables.len() + self.schema.retiring.len();
        let scope = CallScope {
            held: (0..self.stores.len()).collect(),
            read_only: false,
            writes_replicated: false,
            tables_seen: tables,
            tables_written: tables,
            fuel_max: None,
        };
        let mut session = self.begin(&[], scope);
        let outcome = match with_txn(&mut session, body) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(abort)) => Err(TestError::Aborted(abort)),
            Err(fault) => Err(fault.into()),
        };
        session.end(outcome.is_ok());
        outcome
    }

    /// Each partition holds the same rows of a replicated table, as a server demands it of a migration.
    fn check_replicated(&self) -> Result<(), TestError> {
        let tables = self.schema.tables.iter().enumerate();
        let mut replicated = tables.filter(|(_, table)| table.placement == TablePlacement::Replicated);
        let differs = replicated.find(|(number, _)| {
            let mut rows = self.stores.iter().map(|store| store.sorted_rows(*number));
            let first = rows.next();
            rows.any(|others| Some(others) != first)
        });
        match differs {
            None => Ok(()),
            Some((_, table)) => Err(TestError::Fault(format!(
                "the rows of {}, which is replicated, differ between partitions",
                table.name
            ))),
        }
    }

    fn begin<'a>(&'a mut self, args: &'a [u8], scope: CallScope) -> TestSession<'a> {
        self.txn_count += 1;
        let origin = match scope.held[..] {
            [partition] => partition as u64,
            _ => TXN_ORIGIN_SEVERAL,
        };
        TestSession::new(
            &mut self.stores,
            &mut self.log,
            args,
            scope,
            call_scope::Moment {
                now_us: self.now_us,
                txn_id: self.txn_count << TXN_ORIGIN_BITS | origin,
                seed: self.seed,
                caller: self.caller.as_deref(),
            },
        )
    }
}

fn check_args(procedure: &ProcedureSchema, args: &[u8]) -> Result<(), TestError> {
    let mut reader = ValueReader::new(args);
    let fits = procedure.params.iter().try_for_each(|param| reader.skip(&param.ty));
    fits.and_then(|()| reader.finish())
        .map_err(|error| TestError::Fault(format!("the arguments are not those of {}: {error}", procedure.name)))
}

fn stores(schema: &ModuleSchema, partitions: u16) -> Vec<TestStore> {
    (0..partitions)
        .map(|_| TestStore::new(schema.tables.iter().chain(&schema.retiring)))
        .collect()
}
