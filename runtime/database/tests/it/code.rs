//! Compiled code. It is kept over restarts, never believed after a change, and removed once no module needs it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::{Instant, SystemTime},
};

use crate::common::{Consenting, bank, checkpointer, config, files, fill, open, recovered, take, wasm};
use reprise_database::Database;

/// Modules without tables, each of its own code: `p(n)` answers nothing.
fn module(number: usize) -> Vec<u8> {
    let description = r#"{"abi":1,"tables":[],"procedures":[
        {"name":"p","params":[],"returns":"unit","read_only":true,"partitioning":"all"}]}"#;
    let section: String = description.bytes().map(|byte| format!("\\{byte:02x}")).collect();
    let text = format!(
        r#"(module (memory (export "memory") 1)
            (func (export "reprise_call_p") (param i32) (result i32)
                (drop (i32.add (local.get 0) (i32.const {number}))) (i32.const 0))
            (@custom "reprise.describe" "{section}"))"#
    );
    wat::parse_str(text).expect("a module")
}

/// File of compiled code -> (when it was written, bytes).
fn kept(dir: &Path) -> BTreeMap<PathBuf, (SystemTime, Vec<u8>)> {
    let of = |path: PathBuf| {
        let written = fs::metadata(&path).and_then(|file| file.modified()).expect("a file");
        let bytes = fs::read(&path).expect("a file");
        (path, (written, bytes))
    };
    files(dir, "code").into_iter().map(of).collect()
}

fn is_ready(database: &Database) -> Vec<bool> {
    let deployed = database.router().deployed();
    deployed.versions.iter().map(|module| module.code.is_ready()).collect()
}

#[test]
fn a_restart_compiles_nothing_and_believes_no_file_that_was_changed() {
    let (dir, database) = bank(2, 10);
    let bytes = kept(dir.path());
    assert_eq!(bytes.len(), 1);
    database.close().expect("closed");

    // The file itself is unchanged, not replaced by another.
    let (database, _) = open(dir.path(), 2);
    fill(&database, 10, 10);
    assert_eq!(kept(dir.path()), bytes);
    database.close().expect("closed");

    let (path, (_, whole)) = bytes.first_key_value().expect("one");
    let forged = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        bytes
    };
    let middle = whole.len() / 2;
    for (at, bytes) in [
        forged(&|bytes| bytes[middle] ^= 1),
        forged(&|bytes| bytes[20] ^= 1),
        forged(&|bytes| bytes.truncate(middle)),
        forged(&|bytes| bytes.clear()),
    ]
    .into_iter()
    .enumerate()
    {
        fs::write(path, bytes).expect("written");
        let (database, report) = open(dir.path(), 2);
        assert!(report.commands >= 20);
        fill(&database, 100 + 10 * at as i64, 10);
        assert!(kept(dir.path())[path].1 == *whole, "it was compiled anew");
        database.close().expect("closed");
    }

    // Whole, but made under another database's secret.
    let other = tempfile::tempdir().expect("a folder");
    let (database, _) = open(other.path(), 2);
    database.router().deploy("bank", &wasm("bank")).expect("deployed");
    database.close().expect("closed");
    let foreign = kept(other.path());
    assert_eq!(
        foreign.keys().next().and_then(|path| path.file_name()),
        path.file_name()
    );
    fs::write(path, &foreign.values().next().expect("one").1).expect("written");
    let (database, _) = open(dir.path(), 2);
    assert_eq!(&kept(dir.path())[path].1, whole);
    database.close().expect("closed");
}

#[test]
fn modules_out_of_service_hold_no_code_and_unnamed_ones_are_not_compiled() {
    let dir = tempfile::tempdir().expect("a folder");
    let (database, _) = open(dir.path(), 2);
    for number in 0..3 {
        database.router().deploy("m", &module(number)).expect("deployed");
    }
    database.router().deploy("gone", &module(3)).expect("deployed");
    database.router().remove_consenting("gone").expect("removed");
    assert_eq!(is_ready(&database), [false, false, true, false]);
    database.close().expect("closed");

    // Only one of the four is needed by a restart from the log, and from a checkpoint.
    for checkpoint in [false, true] {
        fs::remove_dir_all(dir.path().join("code")).expect("removed");
        let (database, _) = open(dir.path(), 2);
        assert_eq!(is_ready(&database)[..3], [false, false, true]);
        assert_eq!(kept(dir.path()).len(), 1);
        let versions = &database.router().deployed().versions;
        for (version, number) in versions.iter().zip(0..) {
            assert_eq!(version.wasm_bytes, module(number).len() as u64);
            let found = checkpointer(&database).module_bytes(version);
            assert!(
                found.expect("read") == module(number),
                "a checkpoint and the log have their bytes"
            );
        }
        if !checkpoint {
            take(&database);
        }
        database.close().expect("closed");
    }

    // One that is put back is compiled again, and what no opening needs goes.
    let (database, _) = open(dir.path(), 2);
    database.router().deploy("m", &module(0)).expect("deployed");
    assert_eq!(kept(dir.path()).len(), 2);
    take(&database);
    database.close().expect("closed");
    let (database, _) = open(dir.path(), 2);
    assert_eq!(kept(dir.path()).len(), 1);
    database.close().expect("closed");
}

#[test]
fn a_version_that_the_log_calls_is_compiled_for_the_replay() {
    let dir = tempfile::tempdir().expect("a folder");
    let (database, _) = open(dir.path(), 1);
    let bank = wasm("bank");
    database.router().deploy("bank", &bank).expect("deployed");
    fill(&database, 0, 10);
    // Other bytes, the same code.
    let newer = [&bank[..], &[0, 2, 1, b'x']].concat();
    database.router().deploy("bank", &newer).expect("deployed");
    fill(&database, 10, 10);
    assert_eq!(is_ready(&database), [false, true]);
    database.close().expect("closed");
    let (database, report) = open(dir.path(), 2);
    assert_eq!(report.commands, 20);
    assert_eq!(is_ready(&database), [false, true]);
    database.close().expect("closed");
}

/// Figures: `cargo test --release -p reprise-database --test it -- restart_with_ten --nocapture`.
#[test]
fn restart_with_ten_modules_takes_their_code_from_disk() {
    let dir = tempfile::tempdir().expect("a folder");
    let (database, _) = open(dir.path(), 2);
    for sample in ["bank", "voter", "tpcc", "tatp", "tpcb"] {
        for copy in ["a", "b"] {
            let mut bytes = wasm(sample);
            if copy == "b" {
                bytes.extend_from_slice(b"\x00\x09\x04name\x00\x02\x01b"); // other names: another module to the compiler
            }
            let deployed = database.router().deploy(&format!("{sample}_{copy}"), &bytes);
            deployed.expect("deployed");
        }
    }
    take(&database);
    database.close().expect("closed");
    let seconds = |dir: &Path| {
        let begun = Instant::now();
        let database = recovered(config(dir, 2));
        let taken = begun.elapsed().as_secs_f64();
        database.close().expect("closed");
        taken
    };
    fs::remove_dir_all(dir.path().join("code")).expect("removed");
    let cold = seconds(dir.path());
    let before = kept(dir.path());
    assert_eq!(before.len(), 10);
    let warm = seconds(dir.path());
    println!(
        "ten modules: {:.0} ms compiled anew, {:.0} ms by kept code",
        cold * 1e3,
        warm * 1e3
    );
    assert_eq!(kept(dir.path()), before, "nothing was compiled");
}
