//! Rows that a deployment destroys, and the consent to it; plans, which cost nothing; migrations, which have names.

use std::path::Path;

use crate::common::{
    self, Consenting, call, config, digest_now,
    parts::{B, K, Parts, TABLE, module},
    recovered, take,
};
use crate::schema::module_over;
use reprise_database::{Database, DatabaseConfig};
use reprise_router::{Consent, DeployError, InstallError, LogBody, PlanSummary, ReplyOutcome};

const NULLABLE: &str = r#"{"name":"n","type":"i64","nullable":true}"#;

fn open(dir: &Path) -> Database {
    recovered(DatabaseConfig {
        partitions: 2,
        ..config(dir, 2)
    })
}

fn put(database: &Database, k: i64) {
    let outcome = call(database, "m", "put", &k.to_le_bytes()).outcome;
    assert_eq!(outcome, ReplyOutcome::Committed);
}

/// Returns the items that the deployment would destroy without consent.
fn refused(database: &Database, wasm: &[u8], given: &[&str]) -> Vec<String> {
    let before = digest_now(database);
    let given: Vec<_> = given
        .iter()
        .map(|text| Consent::parse(text).expect("a consent"))
        .collect();
    let refusal = database.router().deploy_with("m", wasm, &given).err();
    assert_eq!(digest_now(database), before, "a refusal leaves nothing");
    match refusal {
        Some(DeployError::Install(InstallError::Consent { plan, .. })) => missing(&plan, &given),
        other => panic!("{other:?}"),
    }
}

fn missing(plan: &PlanSummary, given: &[Consent]) -> Vec<String> {
    plan.missing(given).map(ToString::to_string).collect()
}

fn planned(database: &Database, wasm: &[u8]) -> PlanSummary {
    common::publish_counts(database);
    database.router().plan_deploy("m", wasm).expect("planned").summary
}

#[test]
fn deployment_is_refused_until_it_is_consented_to_each_loss() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    let first = Parts {
        tables: &[("t", &[K, B], r#""k""#), ("left", &[K, B], r#""k""#)],
        procedures: &["list"],
        ..TABLE
    };
    database.router().deploy("m", &module(&first)).expect("deployed");
    let other = module(&Parts {
        tables: &[("left", &[K, B], r#""k""#)],
        ..TABLE
    });
    (0..3).for_each(|k| put(&database, k));
    // A module may leave a table without rows, and drop a column of one.
    let second = module(&Parts {
        tables: &[(
            "t",
            &[
                K,
                r#"{"name":"c","type":"i64","nullable":false,"default":"0700000000000000"}"#,
            ],
            r#""k""#,
        )],
        ..TABLE
    });
    let column = "drop-column:m.t.b";
    assert_eq!(
        refused(&database, &second, &[]),
        ["drop-column:m.t.b (3 values)", "drop-procedure:m.list"]
    );
    assert_eq!(
        refused(&database, &second, &["drop-procedure:list"]),
        ["drop-column:m.t.b (3 values)"]
    );
    assert_eq!(
        refused(&database, &second, &[column, "drop-procedure:m.lists"]),
        ["drop-procedure:m.list"]
    );
    let plan = planned(&database, &second);
    assert_eq!(plan.abandoned.len(), 1, "{plan:?}");
    assert_eq!((&*plan.abandoned[0].table, plan.abandoned[0].rows), ("m.left", 0));
    assert_eq!((&*plan.renames[0].from, &*plan.renames[0].to), ("b", "c"));
    let way_back = plan.way_back.expect("a version is in service");
    assert!(way_back.conflicts[0].way_on.contains("default"), "{way_back:?}");
    assert_eq!(way_back.drops, Vec::<String>::new(), "it can't go back at all");

    let given =
        [column, "drop-procedure:m.list", "drop-table:m.nothing"].map(|text| Consent::parse(text).expect("one"));
    let done = database
        .router()
        .deploy_with("m", &second, &given)
        .expect("consented to");
    let lost: Vec<_> = done.destroyed.iter().map(ToString::to_string).collect();
    assert_eq!(lost, ["drop-column:m.t.b (3 values)", "drop-procedure:m.list"]);
    assert_eq!(
        refused(&database, &other, &[column]),
        ["abandon-table:m.t (3 rows)"],
        "a table with rows would have no owner"
    );
    let logged = common::records(&database, None)
        .into_iter()
        .filter_map(|entry| match entry.body {
            LogBody::Deploy { destroyed, .. } => Some(destroyed),
            _ => None,
        });
    assert_eq!(logged.last(), Some(done.destroyed));

    let removal = database.router().remove("m", &[]).err();
    let Some(DeployError::Install(InstallError::Consent { plan, .. })) = removal else {
        panic!("{removal:?}");
    };
    assert_eq!(
        missing(&plan, &[]),
        ["drop-procedure:m.put", "abandon-table:m.t (3 rows)"]
    );
    assert!(
        database.router().deployed().current.contains_key("m"),
        "still in service"
    );
    database.router().remove_consenting("m").expect("removed");
}

#[test]
fn plan_sends_no_barrier_and_counts_rows_as_they_were_published() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    database.router().deploy("m", &module(&TABLE)).expect("deployed");
    (0..9).for_each(|k| put(&database, k));
    let wider = module(&Parts {
        tables: &[("t", &[K, B, NULLABLE], r#""k""#)],
        ..TABLE
    });
    let barriers = database.router().rendezvous().barriers;
    for _ in 0..20 {
        let plan = planned(&database, &wider);
        assert_eq!((plan.tables[0].rows, plan.tables[0].steps[0].item.as_str()), (9, "n"));
        assert!(plan.destroyed.is_empty());
        let way_back = plan.way_back.expect("a version is in service");
        assert_eq!(
            (way_back.conflicts.len(), way_back.drops),
            (0, vec!["m.t.n".to_owned()])
        );
    }
    assert_eq!(
        database.router().rendezvous().barriers,
        barriers,
        "a plan holds nothing"
    );
    database.router().deploy("m", &wider).expect("deployed");
    assert!(database.router().rendezvous().barriers > barriers);
    // A plan reads no rows: of a nullable column there may be as many values. The deployment counts them.
    let plan = planned(&database, &module(&TABLE));
    assert_eq!(missing(&plan, &[]), ["drop-column:m.t.n (at most 9 values)"]);
    database
        .router()
        .deploy("m", &module(&TABLE))
        .expect("all rows have null there");
}

#[test]
fn table_without_rows_takes_any_change() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    database.router().deploy("m", &module(&TABLE)).expect("deployed");
    let changes: [(&[&str], &str, u64); 4] = [
        (&[K, B, r#"{"name":"c","type":"i64","nullable":false}"#], r#""k""#, 24),
        (&[K, r#"{"name":"b","type":"i8","nullable":false}"#], r#""k""#, 9),
        (&[K, B], r#""k","b""#, 16),
        (&[r#"{"name":"k","type":"u64","nullable":false}"#, B], r#""b","k""#, 16),
    ];
    for (columns, key, row_bytes) in changes {
        let changed = module(&Parts {
            tables: &[("t", columns, key)],
            row_bytes,
            ..TABLE
        });
        assert_eq!(planned(&database, &changed).conflicts, []);
        database.router().deploy("m", &changed).expect("there are no rows");
    }
    let back = module(&TABLE);
    database.router().deploy("m", &back).expect("there are no rows");
    put(&database, 1);
    let narrower = module(&Parts {
        tables: &[("t", &[K, r#"{"name":"b","type":"i8","nullable":false}"#], r#""k""#)],
        row_bytes: 9,
        ..TABLE
    });
    let refusal = database.router().deploy("m", &narrower).err();
    assert!(
        matches!(refusal, Some(DeployError::Install(InstallError::Conflicts(_)))),
        "there is a row: {refusal:?}"
    );
    let before = digest_now(&database);
    database.close().expect("closed");
    let database = open(dir.path());
    assert_eq!(digest_now(&database), before);
    assert_eq!(database.router().deployed().current["m"].version, 6);
}

#[test]
fn column_that_is_renamed_alone_is_renamed_by_a_replay() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    database.router().deploy("m", &module(&TABLE)).expect("deployed");
    put(&database, 1);
    let renamed = module(&Parts {
        tables: &[(
            "t",
            &[K, r#"{"name":"c","was":"b","type":"i64","nullable":false}"#],
            r#""k""#,
        )],
        ..TABLE
    });
    database.router().deploy("m", &renamed).expect("nothing is lost");
    put(&database, 2);
    let before = digest_now(&database);
    database.close().expect("closed");
    let database = open(dir.path());
    assert_eq!(digest_now(&database), before);
    put(&database, 3);
}

#[test]
fn migration_runs_once_until_a_rollback_takes_its_name_off() {
    for checkpoint in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let database = open(dir.path());
        let plain = module(&TABLE);
        let migrating = |name, procedures| {
            module(&Parts {
                migration: Some(name),
                procedures,
                ..TABLE
            })
        };
        let ran = |database: &Database, wasm: &[u8]| {
            let migrates = planned(database, wasm).migrates;
            let lsn = database.router().deploy_consenting("m", wasm).expect("deployed").lsn;
            let entry = common::records(database, Some(lsn)).swap_remove(0);
            let LogBody::Deploy { migration, .. } = &entry.body else {
                panic!("no deployment");
            };
            assert_eq!(migration.is_some(), migrates);
            migration.as_ref().map(|found| found.name.clone())
        };
        let had = |database: &Database| {
            let deployed = database.router().deployed();
            let names = deployed.migrations.get("m").into_iter().flatten().cloned();
            names.collect::<Vec<_>>()
        };
        database.router().deploy("m", &plain).expect("deployed");
        (0..5).for_each(|k| put(&database, k));
        assert_eq!(
            ran(&database, &migrating("split-name", &[])).as_deref(),
            Some("split-name")
        );
        assert_eq!(
            ran(&database, &migrating("split-name", &["more"])),
            None,
            "left in the source"
        );
        assert_eq!(
            ran(&database, &migrating("second", &["more"])).as_deref(),
            Some("second")
        );
        assert_eq!(had(&database), ["second", "split-name"]);
        if checkpoint {
            take(&database);
        }
        let before = digest_now(&database);
        database.close().expect("closed");
        let database = open(dir.path());
        assert_eq!(
            (digest_now(&database), had(&database)),
            (before, vec!["second".into(), "split-name".into()])
        );

        assert_eq!(
            ran(&database, &migrating("split-name", &["more"])),
            None,
            "a former version lists it"
        );
        assert_eq!(had(&database), ["split-name"]);
        assert_eq!(
            ran(&database, &migrating("second", &["more"])).as_deref(),
            Some("second")
        );
        assert_eq!(ran(&database, &plain), None);
        assert_eq!(had(&database), Vec::<String>::new(), "the first version lists none");
        assert_eq!(
            ran(&database, &migrating("split-name", &[])).as_deref(),
            Some("split-name")
        );
        // The history of a table's migrations goes with the last table.
        database.router().remove_consenting("m").expect("removed");
        database.router().drop_table("m.t").expect("dropped");
        assert_eq!(had(&database), Vec::<String>::new());
        database.close().expect("closed");
        assert_eq!(had(&open(dir.path())), Vec::<String>::new());
    }
}

#[test]
fn rollback_runs_no_migration_that_the_tables_had_before_its_version() {
    for checkpoint in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut database = open(dir.path());
        let version = |name, procedures| {
            module(&Parts {
                migration: Some(name),
                procedures,
                ..TABLE
            })
        };
        let [a, b, c] = ["a", "b", "c"].map(|name| version(name, &[]));
        let migrates = |database: &Database, wasm: &[u8]| {
            let migrates = planned(database, wasm).migrates;
            database.router().deploy_consenting("m", wasm).expect("deployed");
            migrates
        };
        let had = |database: &Database| {
            let deployed = database.router().deployed();
            let names = deployed.migrations.get("m").into_iter().flatten().cloned();
            names.collect::<Vec<_>>()
        };
        let reopened = |database: Database| {
            if checkpoint {
                take(&database);
            }
            let before = (digest_now(&database), had(&database));
            database.close().expect("closed");
            let database = open(dir.path());
            assert_eq!((digest_now(&database), had(&database)), before);
            database
        };
        assert!(migrates(&database, &a));
        (0..5).for_each(|k| put(&database, k));
        assert!(migrates(&database, &b));
        assert!(migrates(&database, &c));
        database.router().remove_consenting("m").expect("removed");
        assert!(!migrates(&database, &c), "deployed again by file");
        assert_eq!(had(&database), ["a", "b", "c"]);
        database = reopened(database);
        assert!(!migrates(&database, &b), "back to the second version");
        assert_eq!(had(&database), ["a", "b"]);
        database = reopened(database);
        assert!(!migrates(&database, &a), "back to the first version");
        assert_eq!(had(&database), ["a"]);
        assert!(migrates(&database, &c), "the rollback took it off");
        assert_eq!(had(&database), ["a", "c"]);
        database = reopened(database);
        assert!(!migrates(&database, &version("a", &["fix"])), "left in the source");
        assert_eq!(had(&database), ["a", "c"]);
        database.close().expect("closed");
    }
}

#[test]
fn last_user_of_a_shared_table_needs_consent_when_its_owner_has_left() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    let router = database.router();
    let columns = [K, B].join(",");
    let user = |row_bytes| module_over(r#""m.t","shared":true"#, &columns, "", row_bytes);
    let owner = module_over(r#""t","shared":true"#, &columns, "", 16);
    router.deploy("m", &owner).expect("deployed");
    router.deploy("u", &user(16)).expect("deployed");
    (0..2).for_each(|k| put(&database, k));
    let lost = |refusal: Option<DeployError>| match refusal {
        Some(DeployError::Install(InstallError::Consent { plan, .. })) => missing(&plan, &[]),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        lost(router.remove("m", &[]).err()),
        ["drop-procedure:m.put", "drop-procedure:m.size"],
        "its user stays"
    );
    router.remove_consenting("m").expect("removed");
    assert_eq!(
        lost(router.remove("u", &[]).err()),
        [
            "drop-procedure:u.put",
            "drop-procedure:u.size",
            "abandon-table:m.t (2 rows)"
        ]
    );
    assert_eq!(
        lost(router.deploy("u", &module(&TABLE)).err()),
        ["drop-procedure:u.size", "abandon-table:m.t (2 rows)"],
        "a version with a table of its own alone"
    );
    router.deploy("u", &user(24)).expect("it still uses the table");
    router.remove_consenting("u").expect("removed");
    assert!(router.deployed().table("m.t").is_some(), "the rows stay");
}
