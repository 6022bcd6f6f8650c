//! Runs a module's tests as wasm, with the fuel and the limits of a server.
//! Owns: the compiled module behind a `TestDb`.
//! Does not: build a module (`reprise build`), keep rows (`reprise_procedure::testkit`), count time.
//! Invariants: a call burns the same fuel here and on a server; a module that is not the one of the source runs nothing.
//! Called by: the tests of modules.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

use std::{fs, path::Path};

use reprise_abi::{HostOps, ModuleSchema};
use reprise_host::{CompiledModule, Engine, GuestExit, Instance, InvalidModule, Limits};
use reprise_procedure::{
    native::NativeExit,
    testkit::{Guest, GuestEnd},
};

/// A module that `reprise build` made, as a server runs it.
pub struct WasmGuest {
    module: CompiledModule,
    instance: Instance,
}

impl WasmGuest {
    /// Compiles the module in this file.
    ///
    /// # Errors
    /// The reason why the file can't be read, or why a server would refuse it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, String> {
        let path = path.as_ref();
        let wasm = fs::read(path).map_err(|error| format!("{}: {error}. Run `reprise build` first", path.display()))?;
        Self::compile(&wasm, Limits::default()).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn compile(wasm: &[u8], limits: Limits) -> Result<Self, InvalidModule> {
        let module = CompiledModule::compile(&Engine::new(limits), wasm)?;
        Ok(Self {
            instance: Instance::new(&module),
            module,
        })
    }
}

impl Guest for WasmGuest {
    fn schema(&self) -> &ModuleSchema {
        self.module.schema()
    }

    fn call(&mut self, index: usize, ops: &mut dyn HostOps) -> GuestEnd {
        let args_bytes = ops.args().len();
        let outcome = self.instance.call(index, args_bytes, ops);
        GuestEnd {
            exit: match outcome.kind {
                Ok(GuestExit::Returned) => Ok(NativeExit::Done),
                Ok(GuestExit::Aborted) => Ok(NativeExit::Aborted),
                Err(fault) => Err(match fault.limit {
                    Some(limit) => format!("limit {limit} of {} reached", fault.max),
                    None => fault.to_string(),
                }),
            },
            fuel: outcome.fuel_used,
        }
    }
}

#[cfg(test)]
mod tests {
    use bank::{balance, open, total, transfer};
    use reprise_procedure::testkit::{TestDb, TestError};

    use super::*;

    /// The samples that `cargo xtask wasm` builds.
    const MODULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/procedures");

    fn wasm(limits: Limits) -> WasmGuest {
        let bytes = fs::read(format!("{MODULES}/bank.wasm")).expect("build it with `cargo xtask wasm`");
        WasmGuest::compile(&bytes, limits).expect("a module")
    }

    #[test]
    fn calls_run_as_wasm_with_the_same_outcomes_and_with_fuel() {
        let mut native = TestDb::new(&bank::MODULE);
        let mut guest = TestDb::new(&bank::MODULE).with_guest(wasm(Limits::default()));
        let mut fuel = Vec::new();
        for db in [&mut native, &mut guest] {
            for account in 0..20 {
                assert_eq!(open::call(db, account, 100), Ok(()));
            }
            assert_eq!(transfer::call(db, 1, 2, 30).map(|moved| moved.to_balance), Ok(130));
            fuel.push(db.fuel());
            let refused = transfer::call(db, 1, 2, 71).expect_err("too much");
            assert_eq!(refused.code(), Some("insufficient_funds"));
            assert_eq!(open::call(db, 1, 1).expect_err("taken").code(), Some("account_exists"));
            assert_eq!(balance::call(db, 1).map(|found| found.balance), Ok(70));
            assert_eq!(total::call(db).map(|found| found.sum), Ok(2_000));
            fuel.push(db.fuel());
        }
        assert_eq!(fuel[..2], [0, 0], "natively");
        let [transfer, total] = fuel[2..] else {
            panic!("{fuel:?}")
        };
        assert!(transfer > 0 && total > transfer, "{transfer}, {total}");
    }

    #[test]
    fn call_that_burns_too_much_ends_and_leaves_nothing() {
        let limits = Limits {
            fuel_max: 16_384,
            ..Limits::default()
        };
        let mut db = TestDb::new(&bank::MODULE).with_guest(wasm(limits));
        for account in 0..4_000 {
            assert_eq!(open::call(&mut db, account, 1), Ok(()));
        }
        let ended = total::call(&mut db).expect_err("4,000 rows");
        assert_eq!(ended, TestError::Fault("limit fuel of 16384 reached".to_owned()));
        assert!(db.fuel() >= 16_384);
        assert_eq!(balance::call(&mut db, 1).map(|found| found.balance), Ok(1));
    }

    #[test]
    #[should_panic(expected = "built from another source")]
    fn wasm_of_another_source_is_refused() {
        _ = TestDb::new(&tpcb::MODULE).with_guest(wasm(Limits::default()));
    }

    #[test]
    fn file_that_is_no_module_is_named() {
        let error = WasmGuest::open("nowhere.wasm").err().expect("there is none");
        assert!(
            error.contains("nowhere.wasm") && error.contains("reprise build"),
            "{error}"
        );
        let error = WasmGuest::open("src/lib.rs").err().expect("a text");
        assert!(error.starts_with("src/lib.rs: "), "{error}");
    }
}
