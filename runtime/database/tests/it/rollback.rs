//! The way back over tables that have changed since. They become the former ones, also at a replay, or nothing is changed.

use crate::{
    common::{
        Consenting, checkpointer, close, digest_now,
        parts::{self, Parts},
        publish_counts, take,
    },
    following::{ACCEPTING, Cluster, service, wait_seen},
    schema::{module, module_over, open, put},
};
use reprise_abi::{Field, RowLayout};
use reprise_database::Database;
use reprise_router::{Conflict, DeployError, InstallError, RowsRequest};

const FIRST: &str = r#"{"name":"k","type":"i64","nullable":false},{"name":"b","type":"i32","nullable":false},
    {"name":"e","type":"u8","nullable":false,"variants":["a","b","c","d","e","f"]}"#;
const BY_B: &str = r#"{"name":"by_b","columns":["b"],"unique":false}"#;
/// A column with another name and a wider type, one more variant, and a new column.
const SECOND: &str = r#"{"name":"k","type":"i64","nullable":false},{"name":"amount","was":"b","type":"i64","nullable":false},
    {"name":"e","type":"u8","nullable":false,"variants":["a","b","c","d","e","f","g"]},
    {"name":"c","type":"i64","nullable":false,"default":"0700000000000000"}"#;
const BY_AMOUNT: &str = r#"{"name":"by_amount","columns":["amount"],"unique":false}"#;
/// The new column goes and its name is another one's.
const THIRD: &str = r#"{"name":"k","type":"i64","nullable":false},{"name":"sum","was":"amount","type":"i64","nullable":false},
    {"name":"e","type":"u8","nullable":false,"variants":["a","b","c","d","e","f","g"]},
    {"name":"b","type":"i64","nullable":false,"default":"0900000000000000"}"#;

fn first() -> Vec<u8> {
    module(FIRST, BY_B, 13)
}

fn second() -> Vec<u8> {
    module(SECOND, BY_AMOUNT, 25)
}

fn third() -> Vec<u8> {
    module_over(r#""u","was":"t","shared":true"#, THIRD, "", 25)
}

fn deploy(database: &Database, wasm: &[u8]) {
    if let Err(error) = database.router().deploy_consenting("a", wasm) {
        panic!("{error}: {error:?}");
    }
}

/// The conflicts of a deployment, which changes nothing, and whose plan says the same.
fn conflicts(database: &Database, wasm: &[u8]) -> Vec<Conflict> {
    let digest = digest_now(database);
    publish_counts(database);
    let planned = database.router().plan_deploy("a", wasm).expect("planned").summary;
    let refused = match database.router().deploy_consenting("a", wasm).err() {
        Some(DeployError::Install(InstallError::Conflicts(conflicts))) => conflicts,
        other => panic!("{other:?}"),
    };
    assert_eq!(planned.conflicts, refused);
    assert_eq!(planned.way_back, None);
    assert_eq!(digest_now(database), digest);
    refused
}

/// Values of the second column, in key order.
fn values(database: &Database) -> Vec<i64> {
    let layout = RowLayout::of_table(&database.router().deployed().tables[0]);
    let request = RowsRequest {
        limit: 100,
        ..RowsRequest::default()
    };
    let page = database.router().table_rows(request).expect("rows");
    let value = |row: &Vec<u8>| match layout.field(row, 1) {
        Field::Int(value) => value,
        other => panic!("{other:?}"),
    };
    page.rows.iter().map(value).collect()
}

#[test]
fn renamed_and_wider_columns_go_back_with_their_values_also_behind_a_replay_and_a_checkpoint() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    deploy(&database, &first());
    (1..=3).for_each(|k| put(&database, "a", k));
    let digest = digest_now(&database);
    publish_counts(&database);
    let forward = database.router().plan_deploy("a", &second()).expect("planned").summary;
    let way_back = forward.way_back.expect("a version is in service");
    assert_eq!(way_back.conflicts, []);
    assert_eq!(
        way_back.needs,
        ["a.t.amount fits i32 in every row", "a.t.e is g in no row"]
    );
    assert_eq!(way_back.drops, ["a.t.c"]);
    deploy(&database, &second());
    let there = digest_now(&database);
    let planned = database.router().plan_deploy("a", &first()).expect("planned").summary;
    assert_eq!(planned.conflicts, []);
    assert_eq!(planned.tables[0].steps[0].item, "b", "{planned:?}");
    deploy(&database, &first());
    assert_eq!(digest_now(&database), digest);
    assert_eq!(values(&database), [5, 5, 5]);
    // To the second one, and over the third one's other names of column and table.
    deploy(&database, &second());
    assert_eq!(digest_now(&database), there);
    deploy(&database, &third());
    assert_eq!(database.router().deployed().tables[0].name, "u");
    deploy(&database, &first());
    assert_eq!(digest_now(&database), digest);
    assert_eq!(database.router().deployed().versions.len(), 6);
    database.close().expect("close");
    // All of it from the log, and behind a checkpoint.
    let database = open(dir.path());
    assert_eq!(digest_now(&database), digest);
    deploy(&database, &third());
    put(&database, "a", 9);
    take(&database);
    database.close().expect("close");
    let database = open(dir.path());
    let found = conflicts(&database, &first());
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].stored, "i64: 1 row beyond i32 there, as the one with k=9");
    deploy(&database, &second());
    assert_eq!(values(&database)[..3], [5, 5, 5]);
}

#[test]
fn way_back_is_refused_with_a_count_and_a_key_when_values_do_not_fit() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    deploy(&database, &first());
    put(&database, "a", 1);
    deploy(&database, &second());
    // The second version puts other bytes: its amounts are beyond 32 bits.
    (11..=14).for_each(|k| put(&database, "a", k));
    let found = conflicts(&database, &first());
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&*found[0].table, &*found[0].item), ("a.t", "amount"));
    assert!(
        found[0]
            .stored
            .starts_with("i64: 4 rows beyond i32 there, as the one with k=1"),
        "{found:?}"
    );
    assert_eq!(database.router().deployed().current["a"].version, 2);
    database.close().expect("close");
    let database = open(dir.path());
    assert_eq!(conflicts(&database, &first()).len(), 1);
}

#[test]
fn column_without_a_default_is_gone_for_good_and_the_plan_says_so_before() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    let without = r#"{"name":"k","type":"i64","nullable":false}"#;
    deploy(&database, &first());
    (1..=3).for_each(|k| put(&database, "a", k));
    publish_counts(&database);
    let forward = database
        .router()
        .plan_deploy("a", &module(without, "", 8))
        .expect("planned")
        .summary;
    let way_back = forward.way_back.expect("a version is in service");
    let said: Vec<_> = way_back.conflicts.iter().map(|found| &*found.stored).collect();
    assert_eq!(said.len(), 2, "{way_back:?}");
    assert!(said[0].starts_with("3 rows without it, as the one with k="), "{said:?}");
    deploy(&database, &module(without, "", 8));
    let found = conflicts(&database, &first());
    assert!(
        found[0].stored.starts_with("3 rows without it, as the one with k="),
        "{found:?}"
    );
}

#[test]
fn table_whose_former_name_another_one_has_does_not_go_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    deploy(&database, &first());
    put(&database, "a", 1);
    let digest = digest_now(&database);
    let renamed = module_over(r#""u","was":"t""#, FIRST, "", 13);
    deploy(&database, &renamed);
    deploy(&database, &module(FIRST, "", 13)); // a new table of the former name
    let found = conflicts(&database, &first());
    assert_eq!(found[0].stored, "both u, which was t, and another t");
    database.router().remove_consenting("a").expect("removed");
    database.router().drop_table("a.t").expect("dropped");
    deploy(&database, &first());
    assert_eq!(digest_now(&database), digest);
}

/// The version goes back to its own table, beside a new one of that table's former name. Its record lists no change.
#[test]
fn version_that_goes_back_beside_a_table_of_the_former_name_is_replayed() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    deploy(&database, &first());
    put(&database, "a", 1);
    let renamed = module_over(r#""u","was":"t""#, FIRST, "", 13);
    deploy(&database, &renamed);
    deploy(&database, &module(FIRST, "", 13));
    deploy(&database, &renamed);
    let digest = digest_now(&database);
    close(database);
    let database = open(dir.path());
    assert_eq!(digest_now(&database), digest);
    close(database);
}

/// A renamed table has the name of a dropped one. The first version gets the renamed table back with its rows, and the dropped one empty.
#[test]
fn dropped_table_gets_no_rows_of_the_renamed_one_that_has_its_name_when_a_version_goes_back() {
    const COLUMNS: &[&str] = &[parts::K, parts::B];
    let version = |names: &[&str]| {
        let tables: Vec<_> = names.iter().map(|name| (*name, COLUMNS, r#""k""#)).collect();
        parts::module(&Parts {
            tables: &tables,
            ..parts::TABLE
        })
    };
    let rows = |database: &Database, name: &str| {
        let deployed = database.router().deployed();
        let (id, _) = deployed.table(name).expect("it is stored");
        let request = RowsRequest {
            table: id.0,
            limit: 100,
            ..RowsRequest::default()
        };
        database.router().table_rows(request).expect("rows").rows.len()
    };
    for first in [["y", "x"], ["x", "y"]] {
        let dir = tempfile::tempdir().expect("a directory");
        let database = open(dir.path());
        deploy(&database, &version(&first));
        deploy(&database, &version(&["x"]));
        database.router().drop_table("a.y").expect("dropped");
        (1..=2).for_each(|k| put(&database, "a", k));
        deploy(&database, &version(&["y was x"]));
        assert_eq!(rows(&database, "a.y"), 2);
        deploy(&database, &version(&first));
        assert_eq!((rows(&database, "a.x"), rows(&database, "a.y")), (2, 0), "{first:?}");
        let digest = digest_now(&database);
        close(database);
        let database = open(dir.path());
        assert_eq!(digest_now(&database), digest, "{first:?}");
        assert_eq!((rows(&database, "a.x"), rows(&database, "a.y")), (2, 0), "{first:?}");
        close(database);
    }
}

/// The standby knows the places of the first version's columns from the records alone. It opened no checkpoint with the second version.
#[test]
fn standby_that_is_promoted_after_a_rename_goes_back_to_the_version_before() {
    let cluster = Cluster::new();
    let primary = cluster.start("p");
    let standby = cluster.standby_of(&primary, "s");
    deploy(&primary, &first());
    (1..=3).for_each(|k| put(&primary, "a", k));
    let digest = digest_now(&primary);
    deploy(&primary, &second());
    let there = digest_now(&primary);
    wait_seen(&primary, &standby);
    cluster.no_primary();
    close(primary);
    service(&standby).promote(ACCEPTING).expect("promoted");
    assert_eq!(digest_now(&standby), there);
    let deployed = standby.router().deployed();
    let former = deployed.versions.iter().find(|module| module.version == 1);
    let wasm = checkpointer(&standby).module_bytes(former.expect("it is known"));
    let wasm = wasm.expect("its bytes are in the log");
    assert_eq!(wasm, first());
    deploy(&standby, &wasm);
    assert_eq!((digest_now(&standby), values(&standby)), (digest, vec![5, 5, 5]));
}
