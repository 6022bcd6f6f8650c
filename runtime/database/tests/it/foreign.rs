//! Files of a program with other numbers, lower and higher: each is refused by an error that names both numbers, and nothing is changed.

use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

use crate::common::{config, files, fill_bank, open, recovered, snapshot, take, transfer};
use reprise_abi::SEMANTICS;
use reprise_backup::{BackupManifest, MANIFEST_NAME, Point, create_backup, restore, verify_backup};
use reprise_database::{Database, DatabaseConfig, DeviceConfig, FlushPolicy, NvramConfig, inspect};
use reprise_test_crash::copy_dir;
use reprise_wire::FORMAT_VERSION;

const FORMAT: (&str, u32) = ("format version", FORMAT_VERSION);
const UNDER: (&str, u32) = ("semantics number", SEMANTICS);

/// Puts a number into a header, under a checksum that holds.
fn forge(path: &Path, at: usize, number: u32, header: Range<usize>, sum_at: usize) {
    let mut bytes = fs::read(path).expect("a file");
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
    bytes[sum_at..sum_at + 4].fill(0);
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes[header]) as u32;
    bytes[sum_at..sum_at + 4].copy_from_slice(&sum.to_le_bytes());
    fs::write(path, bytes).expect("written");
}

fn refusal(config: DatabaseConfig) -> String {
    let refused = Database::open(config).and_then(|database| database.recover());
    refused.expect_err("refused").to_string()
}

/// A database with a checkpoint in the middle of its log.
fn made(config: DatabaseConfig) {
    let database = recovered(config);
    fill_bank(&database, 100);
    take(&database);
    transfer(&database, 1);
    database.close().expect("close");
}

#[test]
fn log_and_checkpoint_are_refused_when_their_numbers_differ() {
    let source = tempfile::tempdir().expect("a directory");
    made(config(source.path(), 1));
    for folder in ["log", "checkpoints"] {
        for (at, (what, own)) in [(8, FORMAT), (12, UNDER)] {
            for number in [own - 1, own + 1] {
                let work = tempfile::tempdir().expect("a directory");
                let (dir, to) = (work.path().join("data"), work.path().join("to"));
                copy_dir(source.path(), &dir).expect("copied");
                let is_spare = |file: &PathBuf| file.ends_with("spare.seg");
                let last = files(&dir, folder)
                    .into_iter()
                    .rfind(|file| !is_spare(file))
                    .expect("a file");
                forge(&last, at, number, 0..508, 508);
                let before = snapshot(&dir);
                let text = format!("has {what} {number}, and this program reads {own} alone");
                let name = last.file_name().and_then(|name| name.to_str()).expect("text");
                let found = refusal(config(&dir, 1));
                assert!(found.contains(&text) && found.contains(name), "{found}");
                let found = create_backup(&dir, &to).expect_err("refused").to_string();
                assert!(found.contains(&text), "{found}");
                let found = restore(&dir, &to, Point::End).expect_err("refused").to_string();
                assert!(found.contains(&text), "{found}");
                assert!(!to.exists());
                let found = match inspect(&dir) {
                    Ok(inspection) => inspection.refused.join("; "),
                    Err(error) => error.to_string(),
                };
                assert!(found.contains(&text), "{found}");
                assert_eq!(snapshot(&dir), before);
            }
        }
    }
}

#[test]
fn backup_is_refused_when_its_format_differs() {
    let work = tempfile::tempdir().expect("a directory");
    let [source, backup, to] = ["data", "backup", "to"].map(|name| work.path().join(name));
    fs::create_dir(&source).expect("a directory");
    made(config(&source, 1));
    let own = create_backup(&source, &backup).expect("made");
    for format in [own.format - 1, own.format + 1] {
        let manifest = BackupManifest { format, ..own.clone() }.encode();
        fs::write(backup.join(MANIFEST_NAME), &manifest).expect("written");
        let before = snapshot(&backup);
        let text = format!("has format {format}, this program reads format {}", own.format);
        let errors = [
            verify_backup(&backup, &mut |_| true).err(),
            restore(&backup, &to, Point::End).err(),
        ];
        for error in errors {
            let found = error.expect("refused").to_string();
            assert!(found.contains(&text), "{found}");
        }
        assert!(!to.exists());
        assert_eq!(snapshot(&backup), before);
        assert_eq!(
            fs::read_to_string(backup.join(MANIFEST_NAME)).expect("a manifest"),
            manifest
        );
    }
}

fn on_nvram(dir: &Path, region: PathBuf) -> DatabaseConfig {
    DatabaseConfig {
        device: DeviceConfig::Nvram(NvramConfig {
            path: region,
            bytes: Some(8 << 20),
            copy_at_entries: 80_000,
            flush: FlushPolicy::OnCommit,
            assume_persistent: true,
        }),
        ..config(dir, 1)
    }
}

#[test]
fn region_in_use_is_refused_when_its_numbers_differ() {
    let work = tempfile::tempdir().expect("a directory");
    let (dir, region) = (work.path().join("data"), work.path().join("region"));
    fs::create_dir(&dir).expect("a directory");
    let database = recovered(on_nvram(&dir, region.clone()));
    fill_bank(&database, 10);
    // A machine that loses its process now finds these.
    let (killed, image) = (work.path().join("killed"), fs::read(&region).expect("a region"));
    copy_dir(&dir, &killed).expect("copied");
    database.close().expect("close");
    for (at, (what, own)) in [(84, FORMAT), (80, UNDER)] {
        for number in [own - 1, own + 1] {
            fs::write(&region, &image).expect("written");
            forge(&region, at, number, 8..112, 12);
            let (before, forged) = (snapshot(&killed), fs::read(&region).expect("a region"));
            for config in [on_nvram(&killed, region.clone()), config(&killed, 1)] {
                let found = refusal(config);
                let text = format!("of {what} {number}, and this program reads {own} alone");
                assert!(found.contains(&text), "{found}");
            }
            assert_eq!(snapshot(&killed), before);
            assert!(fs::read(&region).expect("a region") == forged, "it was changed");
        }
    }
    fs::write(&region, &image).expect("written");
    let database = Database::open(on_nvram(&killed, region)).expect("its own numbers");
    database.recover().expect("recover");
    database.close().expect("close");
    let (database, _) = open(&killed, 1);
    database.close().expect("close");
}
