//! A server in a virtual machine whose commits wait for an emulated NVDIMM, by cache lines: its power goes, and what it answered is there.

use std::path::Path;

use reprise_test_crash::{binary, procedure_wasm, skip};
use reprise_test_hardware::{NvdimmConfig, Processors, is_available, run_nvdimm};

#[test]
fn acknowledged_writes_on_an_nvdimm_survive_power_failures() {
    const NAME: &str = "acknowledged_writes_on_an_nvdimm_survive_power_failures";
    if let Err(why) = is_available() {
        return skip(NAME, &why);
    }
    let _processor = Processors::one();
    // The programs that the machine starts are built here.
    binary().expect("the server");
    procedure_wasm("bank").expect("a module");
    let program = Path::new(env!("CARGO_BIN_EXE_nvdimm"));
    // Each kind of log, each flush policy and each kind of region loses its power once.
    let report = run_nvdimm(program, &NvdimmConfig { kills: 3, seed: 1 });
    let report = report.unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.kills == 3 && report.answered > 20, "{report:?}");
    assert_eq!(report.starts.len(), 2, "{report:?}");
}
