//! Tables of a standby, compared with its primary's at named LSNs.

use crate::following;
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    thread,
    time::Duration,
};

use crate::common::{close, config, fill, fill_bank, open, recovered, take, transfer, wasm};
use crate::following::{Cluster, bootstrap, service, serving, wait_in_sync, wait_seen, wait_streaming, wait_until};
use reprise_abi::{Field, RowLayout, TableSchema};
use reprise_base::{Lsn, Role};
use reprise_checkpoint::Checkpoints;
use reprise_database::{Database, DatabaseConfig, DirHealth, LogPolicy, NodeFile, OpenError, ServeStandbys};
use reprise_env::RealDisk;
use reprise_host::describe;
use reprise_router::{ComparedInfo, NodePhase, RowsRequest, StandbyInfo};
use reprise_wire::{CheckpointBlockKind, CheckpointPartition, CheckpointRows, push_checkpoint_row};

fn comparing(url: &str) -> ServeStandbys {
    ServeStandbys {
        compare_every: Duration::from_millis(10),
        ..serving(url)
    }
}

/// A primary that compares all the time.
fn start(cluster: &Cluster, log: LogPolicy, sites: u16) -> Arc<Database> {
    cluster.no_primary();
    let dir = cluster.place("p");
    let database = Arc::new(recovered(DatabaseConfig {
        log,
        ..config(&dir, sites)
    }));
    database.serve_standbys(comparing("http://p:1")).expect("served");
    cluster.set_primary(&database);
    database
}

fn seen(primary: &Database, name: &str) -> Option<StandbyInfo> {
    let all = service(primary).info().standbys;
    all.into_iter().find(|standby| standby.name == name)
}

/// Waits until all tables were compared behind the primary's present end, and are equal. Both servers must say so.
fn wait_equal(primary: &Database, standby: &Database, name: &str) {
    let end = primary.router().view();
    let is_new = |told: Option<ComparedInfo>| {
        let Some(told) = told else { return false };
        assert_eq!(told.difference, None, "{name}");
        told.lsn >= end
    };
    wait_until("all tables are compared", || {
        assert!(!matches!(standby.router().phase(), NodePhase::Failed { .. }));
        let own = service(standby).own().expect("a standby");
        is_new(own.compared) && is_new(seen(primary, name).and_then(|seen| seen.compared))
    });
}

#[test]
fn equal_nodes_stay_equal_under_load_with_checkpoints_deployments_and_restarts() {
    for (log, sites) in [
        (LogPolicy::Command, 1),
        (LogPolicy::Physiological, 2),
        (LogPolicy::Both, 3),
    ] {
        let cluster = Cluster::new();
        let mut primary = start(&cluster, log, sites);
        fill_bank(&primary, 200);
        let mut standby = cluster.standby_of(&primary, "s1");
        let next = AtomicI64::new(10_000);
        for round in 0..3 {
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Acquire) {
                        let first = next.fetch_add(20, Ordering::AcqRel);
                        fill(&primary, first, 20);
                        transfer(&primary, first);
                    }
                });
                let ends = Ends(&is_over);
                wait_equal(&primary, &standby, "s1");
                take(&primary);
                wait_equal(&primary, &standby, "s1");
                let module = ["voter", "edges", "tatp"][round];
                primary
                    .router()
                    .deploy(module, &wasm(module))
                    .expect("a module beside it");
                take(&standby);
                wait_equal(&primary, &standby, "s1");
                drop(ends);
            });
            match round {
                0 => {
                    close(standby);
                    standby = cluster.open_standby("s1");
                    wait_streaming(&primary, "s1");
                }
                1 => {
                    cluster.no_primary();
                    close(primary);
                    primary = start(&cluster, log, sites);
                    wait_streaming(&primary, "s1");
                    wait_in_sync(&standby);
                }
                _ => {}
            }
        }
        wait_seen(&primary, &standby);
        standby.close().expect("close");
        primary.close().expect("close");
    }
}

#[test]
fn no_comparison_if_it_is_off_and_no_mark_without_a_standby() {
    let cluster = Cluster::new();
    let primary = start(&cluster, LogPolicy::Command, 2);
    fill_bank(&primary, 200);
    let end = primary.router().view();
    thread::sleep(Duration::from_millis(200));
    assert_eq!(primary.router().view(), end, "nobody follows");
    close(primary);
    let primary = cluster.start("p");
    let standby = cluster.standby_of(&primary, "s1");
    let end = primary.router().view();
    thread::sleep(Duration::from_millis(200));
    let own = service(&standby).own().expect("a standby");
    assert_eq!((primary.router().view(), own.compared), (end, None));
    standby.close().expect("close");
    primary.close().expect("close");
}

/// Waits until the standby shows nothing, and says why.
fn wait_failed(standby: &Database, what: &str) {
    wait_until("it says so", || match standby.router().phase() {
        NodePhase::Failed { report } => report.contains(what),
        _ => false,
    });
}

/// A guard that ends the load, also if the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The damage to the first row of a table.
#[derive(Clone, Copy, Debug)]
enum Harm {
    /// A bit of its last column is another one.
    Flip,
    Lose,
}

/// Writes the newest checkpoint of a directory anew, with a row of the table harmed under checksums that hold. The row as it was.
fn harm(dir: &Path, table: &str, harm: Harm) -> (TableSchema, Vec<u8>) {
    let files = Checkpoints::new(Arc::new(RealDisk::create(dir.join("checkpoints")).expect("a folder")));
    let lsn = *files.list().expect("a list").last().expect("a checkpoint");
    let reader = files.open(lsn).expect("whole");
    let schema_of = |json: &Vec<u8>| describe::from_json(json).expect("whole").tables.remove(0);
    let at = reader
        .tables()
        .iter()
        .position(|json| schema_of(json).name == table)
        .expect("a table");
    let schema = schema_of(&reader.tables()[at]);
    let layout = RowLayout::of_table(&schema);
    let mut blocks = reader.blocks();
    let mut writer = files.begin(*reader.header()).expect("begun");
    let mut harmed = None;
    let first = reader
        .entries()
        .iter()
        .find(|entry| entry.kind == CheckpointBlockKind::Rows && usize::from(entry.table) == at);
    let home = first.expect("rows of it").partition;
    for (number, entry) in reader.entries().iter().enumerate() {
        let mut raw = blocks.read(number).expect("whole").to_vec();
        let mut count = entry.items_count;
        if entry.kind == CheckpointBlockKind::Index {
            continue;
        }
        if entry.kind == CheckpointBlockKind::Partition && entry.partition == home {
            let mut state = CheckpointPartition::decode(&raw).expect("whole");
            state.tables[at].0 -= u64::from(matches!(harm, Harm::Lose));
            raw.clear();
            state.encode(&mut raw);
        }
        if entry.kind == CheckpointBlockKind::Rows && usize::from(entry.table) == at && harmed.is_none() {
            let rows: Vec<_> = CheckpointRows::new(&raw)
                .map(|row| row.expect("whole"))
                .map(|(row, number)| (row.to_vec(), number))
                .collect();
            let mut changed = Vec::new();
            for (row, number) in rows {
                if harmed.is_none() {
                    harmed = Some(row.clone());
                    count -= u32::from(matches!(harm, Harm::Lose));
                    if let Harm::Flip = harm {
                        let mut row = row.clone();
                        let slot = layout.columns.last().expect("a column");
                        row[slot.offset as usize] ^= 1;
                        push_checkpoint_row(&mut changed, &row, number);
                    }
                } else {
                    push_checkpoint_row(&mut changed, &row, number);
                }
            }
            raw = changed;
        }
        writer
            .block(entry.kind, entry.partition, entry.table, count, &raw)
            .expect("written");
    }
    drop(blocks);
    writer.finish().expect("finished");
    writer.publish().expect("published");
    (schema, harmed.expect("a row"))
}

/// The row of an account as a page of its table has it.
fn row_of(database: &Database, schema: &TableSchema, id: i64) -> Option<Vec<u8>> {
    let router = database.router();
    let deployed = router.deployed();
    let table = deployed.tables.iter().position(|table| table.name == schema.name);
    let mut prefix = Vec::new();
    reprise_abi::key::push_i64(&mut prefix, id);
    let request = RowsRequest {
        table: table.expect("a table") as u16,
        limit: 2,
        prefix,
        ..RowsRequest::default()
    };
    router.table_rows(request).expect("a page").rows.pop()
}

#[test]
fn a_standby_whose_row_was_harmed_stops_and_its_rows_are_read_only() {
    for kind in [Harm::Flip, Harm::Lose] {
        let cluster = Cluster::new();
        let primary = start(&cluster, LogPolicy::Physiological, 2);
        primary.router().deploy("bank", &wasm("bank")).expect("deploy");
        (0..25).for_each(|round| fill(&primary, round * 200, 200));
        bootstrap(&primary, "s1", &cluster.place("s1"));
        let (schema, row) = harm(&cluster.place("s1"), "accounts", kind);
        let standby = cluster.open_standby("s1");
        let layout = RowLayout::of_table(&schema);
        let Field::Int(id) = layout.field(&row, schema.primary_key[0]) else {
            panic!("an integer");
        };
        // The standby keeps receiving while others write.
        fill(&primary, 30_000, 50);
        wait_until("the difference is found", || {
            let own = service(&standby).own().expect("a standby");
            own.compared.is_some_and(|told| told.difference.is_some())
        });
        let told = service(&standby).own().and_then(|own| own.compared).expect("told");
        let what = told.difference.expect("it differs");
        let named = format!("at LSN {} table bank.accounts on partition ", told.lsn);
        assert!(what.starts_with(&named), "{what}");
        assert_eq!(what.contains(" rows here, "), matches!(kind, Harm::Lose), "{what}");
        assert!(told.lsn > Lsn(0) && told.at_us > 0);
        wait_failed(&standby, &what);
        wait_until("its primary knows", || {
            let seen = seen(&primary, "s1").and_then(|seen| seen.compared);
            seen.is_some_and(|seen| seen.difference.as_deref() == Some(&*what))
        });
        // The standby serves no reads, and can't be promoted. It takes the log all the same.
        assert!(standby.router().digest().is_err());
        let refused = service(&standby).promote(following::FORCED);
        assert!(refused.is_err() && standby.router().role() == Role::Standby);
        let before = service(&standby).own().expect("a standby").persisted;
        fill(&primary, 20_000, 50);
        wait_until("it takes the log", || {
            service(&standby).own().expect("one").persisted > before
        });
        // A standby that streams is in sync within this time, but no write may count on this one.
        thread::sleep(Duration::from_millis(500));
        assert_eq!(seen(&primary, "s1").and_then(|seen| seen.in_sync), Some(false));
        assert_eq!(service(&standby).own().and_then(|own| own.in_sync), Some(false));
        close(standby);
        // Nor after a restart, as whatever it is opened.
        let dir = cluster.place("s1");
        for opened in [Database::open_standby(config(&dir, 1)), Database::open(config(&dir, 1))] {
            assert!(
                matches!(&opened, Err(OpenError::Differs { what: told }) if **told == *what),
                "refused"
            );
        }
        // The directory can be opened for reading alone, so the row is found beside the primary's.
        let alone = Database::open_read_only(config(&dir, 1)).expect("open");
        let opened = alone.recover_read_only().expect("read alone");
        assert_eq!(opened.differed.as_deref(), Some(&*what));
        assert_eq!(alone.router().role(), Role::ReadOnly);
        let theirs = row_of(&primary, &schema, id);
        assert_eq!(theirs.as_deref(), Some(&row[..]));
        let harmed = row_of(&alone, &schema, id);
        assert_eq!(harmed.is_some(), matches!(kind, Harm::Flip));
        assert_ne!(harmed, theirs);
        assert_eq!(row_of(&alone, &schema, id + 1), row_of(&primary, &schema, id + 1));
        close(alone);
        let root = Arc::new(RealDisk::open(dir.clone()).expect("its directory"));
        let node = NodeFile::open(root).expect("read");
        assert_eq!(node.health(), DirHealth::TablesDiffer(what.to_string()));
        node.set_health(DirHealth::Good).expect("saved");
        let refused = Database::open(config(&dir, 1)).err();
        assert!(matches!(refused, Some(OpenError::IsStandby)), "{refused:?}");
        node.make_primary().expect("saved");
        let (copy, _) = open(&dir, 1);
        copy.close().expect("close");
        primary.close().expect("close");
    }
}

#[test]
fn a_difference_is_told_to_a_primary_that_comes_later() {
    let cluster = Cluster::new();
    let primary = start(&cluster, LogPolicy::Physiological, 1);
    primary.router().deploy("bank", &wasm("bank")).expect("deploy");
    (0..10).for_each(|round| fill(&primary, round * 200, 200));
    bootstrap(&primary, "s1", &cluster.place("s1"));
    harm(&cluster.place("s1"), "accounts", Harm::Flip);
    let standby = cluster.open_standby("s1");
    wait_until("it differs", || {
        service(&standby)
            .own()
            .and_then(|own| own.compared)
            .is_some_and(|told| told.difference.is_some())
    });
    wait_failed(&standby, "accounts");
    cluster.no_primary();
    close(primary);
    assert!(standby.router().digest().is_err(), "nothing is shown meanwhile");
    let primary = start(&cluster, LogPolicy::Physiological, 1);
    wait_until("the new primary is told", || {
        let seen = seen(&primary, "s1").and_then(|seen| seen.compared);
        seen.is_some_and(|seen| seen.difference.is_some())
    });
    standby.close().expect("close");
    primary.close().expect("close");
}
