//! A server in a virtual machine whose commits wait for an emulated NVDIMM, by cache lines: its power goes, and what it answered is there.

use std::path::Path;

use reprise_test_crash::{binary, procedure_wasm, skip};
use reprise_test_hardware::{NvdimmConfig, alone, is_available, run_nvdimm};

#[test]
fn what_was_answered_from_an_nvdimm_outlives_power_failures() {
    const NAME: &str = "what_was_answered_from_an_nvdimm_outlives_power_failures";
    if let Err(why) = is_available() {
        return skip(NAME, &why);
    }
    let _alone = alone();
    // What the machine starts is built here.
    binary().expect("the server");
    procedure_wasm("bank").expect("a module");
    let program = Path::new(env!("CARGO_BIN_EXE_nvdimm"));
    let report = run_nvdimm(program, &NvdimmConfig { kills: 5, seed: 1 });
    let report = report.unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.kills == 5 && report.answered > 20, "{report:?}");
    assert_eq!(report.starts.len(), 2, "{report:?}");
}
