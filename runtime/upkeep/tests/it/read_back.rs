//! A checkpoint that can't be read back, or whose writing panics, is reported as failed: the earlier ones stay, and the next one is
//! taken.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use crate::common::{
    Consenting, checkpointer, close, config, digest_now, files, fill, fill_bank, open, take, try_take,
};
use reprise_database::{Database, Environment};
use reprise_env::{DiskError, DiskFile, DiskFilter, FilteredDisk};
use reprise_router::{DeployError, InstallError};
use reprise_upkeep::CheckpointPhase;

const HONEST: u8 = 0;
const FLIPS_A_BIT: u8 = 1;
const PANICS: u8 = 2;

/// Files are written as it says.
struct Written(AtomicU8);

impl DiskFilter for Written {
    fn write_at(&self, file: &dyn DiskFile, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        match self.0.load(Ordering::Acquire) {
            HONEST => file.write_at(offset, bytes),
            FLIPS_A_BIT => {
                let mut bytes = bytes.to_vec();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 4;
                file.write_at(offset, &bytes)
            }
            _ => panic!("the disk is out of its mind"),
        }
    }
}

#[test]
fn unreadable_checkpoint_replaces_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = config(dir.path(), 2);
    let how = Arc::new(Written(AtomicU8::new(HONEST)));
    let mut around = Environment::real(&config).expect("folders");
    let folders = around.folders.as_mut().expect("folders");
    folders.checkpoints = Arc::new(FilteredDisk::new(folders.checkpoints.clone(), how.clone()));
    let database = Database::open_in(config, around).expect("open");
    database.recover().expect("recover");
    fill_bank(&database, 500);
    let good = [take(&database), take(&database)];
    let names = || {
        files(dir.path(), "checkpoints")
            .iter()
            .map(|path| path.display().to_string())
            .collect::<Vec<_>>()
    };
    let kept = names();
    for (bad, reason) in [
        (FLIPS_A_BIT, "checksum"),
        (PANICS, "out of its mind"),
        (FLIPS_A_BIT, "checksum"),
    ] {
        how.0.store(bad, Ordering::Release);
        fill(&database, 100 * checkpointer(&database).list().len() as i64 + 1000, 10);
        let failed = try_take(&database);
        assert_eq!(failed.state, CheckpointPhase::Failed);
        let told = failed.error.expect("a reason");
        assert!(told.contains(reason), "{told}");
        let last = checkpointer(&database).last_failure().expect("told");
        assert_eq!(last.error, told);
        assert_eq!(names(), kept, "older ones stay, and nothing is beside them");
    }
    how.0.store(HONEST, Ordering::Release);
    let next = take(&database);
    assert!(next.lsn > good[1].lsn);
    let digest = digest_now(&database);
    close(database);
    let (database, report) = open(dir.path(), 1);
    assert_eq!(report.checkpoint.expect("loaded").lsn, next.lsn);
    assert_eq!(digest_now(&database), digest);
}

/// A description of little less than a MiB that leaves all defaults out. Written out, it would be longer.
#[test]
fn a_description_that_is_longer_written_out_is_kept_as_it_was_sent() {
    let columns: Vec<_> = (0..256)
        .map(|at| format!(r#"{{"name":"c{at}","type":"i64"}}"#))
        .collect();
    let columns = columns.join(",");
    let table =
        |at: usize| format!(r#"{{"name":"t{at}","columns":[{columns}],"primary_key":["c0"],"placement":"local"}}"#);
    let module = |tables: usize| {
        let tables: Vec<_> = (0..tables).map(table).collect();
        let json = format!(
            r#"{{"abi":1,"tables":[{}],"procedures":[{{"name":"p","params":[],"partitioning":"all"}}]}}"#,
            tables.join(",")
        );
        (wide_module(&json), json)
    };
    let dir = tempfile::tempdir().expect("a directory");
    let (database, _) = open(dir.path(), 2);
    let (too_wide, json) = module(110);
    assert!(json.len() < 1 << 20);
    let refused = database
        .router()
        .deploy("wide", &too_wide)
        .err()
        .expect("more than a MiB, written out");
    assert!(
        matches!(refused, DeployError::Install(InstallError::Conflicts(_))),
        "{refused}"
    );
    let (wide, json) = module(60);
    database.router().deploy("wide", &wide).expect("deploy");
    database
        .router()
        .remove_consenting("wide")
        .expect("out of service: known by its description alone");
    take(&database);
    take(&database);
    close(database);
    let (database, report) = open(dir.path(), 2);
    assert!(
        report.checkpoint.is_some() && report.passed_over.is_empty(),
        "{:?}",
        report.passed_over
    );
    let deployed = database.router().deployed();
    assert_eq!(*deployed.versions[0].description, *json.as_bytes());
    assert!(deployed.versions[0].schema.tables.is_empty(), "its procedures are kept");
}

fn wide_module(json: &str) -> Vec<u8> {
    let section: String = json.bytes().map(|byte| format!("\\{byte:02x}")).collect();
    let text = format!(
        r#"(module (memory (export "memory") 1) (func (export "reprise_call_p") (param i32) (result i32) i32.const 0)
            (@custom "reprise.describe" "{section}"))"#
    );
    wat::parse_str(text).expect("a module")
}
