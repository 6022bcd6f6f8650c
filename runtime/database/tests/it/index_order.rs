//! Indexes that a new version declares in another order. Each look-up finds the rows of the index that its module names.

use crate::{
    common::{call, call_i64, close, digest_now, i64s, take},
    following::{Cluster, wait_seen},
    schema::open,
};
use reprise_database::Database;
use reprise_router::{ReplyOutcome, RowsRequest};

/// `k`, `a` and `b` of each row.
const ROWS: [[i64; 3]; 3] = [[1, 10, 20], [2, 10, 21], [3, 11, 10]];
/// A value, and the numbers of rows that have it in `a` and in `b`.
const COUNTS: [(i64, i64, i64); 3] = [(10, 2, 1), (11, 1, 0), (20, 0, 1)];
/// The module that owns the table, and another one that uses it.
const MODULES: [&str; 2] = ["m", "u"];

/// A module over a table with these indexes in this order. `put(k, a, b)` inserts a row. `count_a(key)` and `count_b(key)` count the rows with
/// a key, by the numbers that the indexes `by_a` and `by_b` have in the declaration. `copy(k, key)` inserts a row of such counts on its
/// partition.
fn module(table: &str, indexes: &str) -> Vec<u8> {
    let names: Vec<&str> = indexes.split_whitespace().collect();
    let declared = names.iter().map(|name| match *name {
        "by_a" => r#"{"name":"by_a","columns":["a"],"unique":false}"#,
        "by_b" => r#"{"name":"by_b","columns":["b","k"],"unique":true}"#,
        _ => r#"{"name":"by_both","columns":["a","b"],"unique":false}"#,
    });
    let declared: Vec<&str> = declared.collect();
    let description = format!(
        r#"{{"abi":1,"tables":[{{"name":{table},"columns":[{{"name":"k","type":"i64"}},{{"name":"a","type":"i64"}},
        {{"name":"b","type":"i64"}}],"primary_key":["k"],"indexes":[{}],"placement":{{"by":"k"}}}}],"procedures":[
        {{"name":"put","params":[{{"name":"k","type":"i64"}},{{"name":"a","type":"i64"}},{{"name":"b","type":"i64"}}],
        "returns":"unit","partitioning":{{"by":["k"]}}}},
        {{"name":"copy","params":[{{"name":"k","type":"i64"}},{{"name":"key","type":"i64"}}],
        "returns":"unit","partitioning":{{"by":["k"]}}}},
        {{"name":"count_a","params":[{{"name":"key","type":"i64"}}],"returns":"i64","read_only":true,"partitioning":"all"}},
        {{"name":"count_b","params":[{{"name":"key","type":"i64"}}],"returns":"i64","read_only":true,"partitioning":"all"}}]}}"#,
        declared.join(",")
    );
    let section: String = description.bytes().map(|byte| format!("\\{byte:02x}")).collect();
    // The primary key has number 0. The key of the range is in the arguments.
    let number = |name: &str| names.iter().position(|known| *known == name).expect("declared") as u32 + 1;
    let request = |name: &str, flags: u32, key: u32| -> String {
        let words = [number(name), flags, 0, key, 8, key, 8, 0];
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        bytes.map(|byte| format!("\\{byte:02x}")).collect()
    };
    let text = format!(
        r#"(module
            (import "reprise1" "args_read" (func $args_read (param i32)))
            (import "reprise1" "insert" (func $insert (param i32 i64) (result i64)))
            (import "reprise1" "count" (func $count (param i32) (result i64)))
            (import "reprise1" "result_write" (func $result_write (param i64)))
            (memory (export "memory") 1)
            (data (i32.const 64) "{all_a}")
            (data (i32.const 96) "{all_b}")
            (data (i32.const 128) "{local_a}")
            (data (i32.const 160) "{local_b}")
            (func (export "reprise_call_put") (param i32) (result i32)
                (call $args_read (i32.const 0))
                (drop (call $insert (i32.const 0) (i64.const {row})))
                (i32.const 0))
            (func (export "reprise_call_copy") (param i32) (result i32) (local $a i64) (local $b i64)
                (call $args_read (i32.const 0))
                (local.set $a (call $count (i32.const 128)))
                (local.set $b (call $count (i32.const 160)))
                (i64.store (i32.const 8) (local.get $a))
                (i64.store (i32.const 16) (local.get $b))
                (drop (call $insert (i32.const 0) (i64.const {row})))
                (i32.const 0))
            (func (export "reprise_call_count_a") (param i32) (result i32)
                (call $args_read (i32.const 0))
                (i64.store (i32.const 0) (call $count (i32.const 64)))
                (call $result_write (i64.const {eight}))
                (i32.const 0))
            (func (export "reprise_call_count_b") (param i32) (result i32)
                (call $args_read (i32.const 0))
                (i64.store (i32.const 0) (call $count (i32.const 96)))
                (call $result_write (i64.const {eight}))
                (i32.const 0))
            (@custom "reprise.describe" "{section}"))"#,
        all_a = request("by_a", 0, 0),
        all_b = request("by_b", 0, 0),
        // Flag 8: the rows of the call's own partition. The key follows `k` in the arguments.
        local_a = request("by_a", 8, 8),
        local_b = request("by_b", 8, 8),
        row = 24_u64 << 32,
        eight = 8_u64 << 32,
    );
    wat::parse_str(text).expect("a module")
}

fn owner(indexes: &str) -> Vec<u8> {
    module(r#""t","shared":true"#, indexes)
}

fn user(indexes: &str) -> Vec<u8> {
    module(r#""m.t","shared":true"#, indexes)
}

fn deploy(database: &Database, name: &str, wasm: &[u8]) {
    database.router().deploy(name, wasm).expect("deployed");
}

/// The encoded key of a value, as an argument.
fn key(value: i64) -> i64 {
    let encoded = (value as u64 ^ (1 << 63)).to_be_bytes();
    i64::from_le_bytes(encoded)
}

/// Deploys both modules and inserts the rows.
fn prepare(database: &Database) {
    deploy(database, "m", &owner("by_a by_b"));
    deploy(database, "u", &user("by_b by_a"));
    for row in ROWS {
        let put = call(database, "m", "put", &i64s(&row));
        assert_eq!(put.outcome, ReplyOutcome::Committed);
    }
}

/// Has each module insert a row of counts, which a replay makes again. The first row has this `k`.
fn copy(database: &Database, first: i64) {
    for (module, k) in MODULES.iter().zip(first..) {
        let copied = call(database, module, "copy", &i64s(&[k, key(10)]));
        assert_eq!(copied.outcome, ReplyOutcome::Committed);
    }
}

/// The number of rows that a client finds with a value, by an index.
fn rows_by(database: &Database, index: &str, value: i64) -> i64 {
    let deployed = database.router().deployed();
    let (id, table) = deployed.table("m.t").expect("stored");
    let at = table.indexes.iter().position(|found| found.name == index);
    let request = RowsRequest {
        table: id.0,
        index: at.expect("stored") as u16 + 1,
        limit: 100,
        prefix: key(value).to_le_bytes().to_vec(),
        ..RowsRequest::default()
    };
    let page = database.router().table_rows(request).expect("rows");
    page.rows.len() as i64
}

fn check(database: &Database) {
    for (value, in_a, in_b) in COUNTS {
        for module in MODULES {
            let count = |procedure| call_i64(database, module, procedure, &[key(value)]).expect("committed");
            assert_eq!(["count_a", "count_b"].map(count), [in_a, in_b], "{module}, {value}");
        }
        let count = |index| rows_by(database, index, value);
        assert_eq!(["by_a", "by_b"].map(count), [in_a, in_b], "rows, {value}");
    }
}

#[test]
fn look_ups_are_right_when_only_the_order_of_indexes_changes() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    prepare(&database);
    check(&database);
    let planned = database.router().plan_deploy("m", &owner("by_b by_a"));
    let planned = planned.expect("planned").summary;
    assert_eq!(planned.tables, [], "rows and indexes stay as they are");
    deploy(&database, "m", &owner("by_b by_a"));
    check(&database);
    copy(&database, 100);
    let digest = digest_now(&database);
    close(&database);
    drop(database);

    let database = open(dir.path());
    assert_eq!(digest_now(&database), digest, "from the log");
    check(&database);
    take(&database);
    copy(&database, 110);
    let digest = digest_now(&database);
    close(&database);
    drop(database);

    let database = open(dir.path());
    assert_eq!(digest_now(&database), digest, "from the checkpoint");
    check(&database);
    // A change that makes an index keeps the order of the others, too.
    deploy(&database, "m", &owner("by_both by_b by_a"));
    check(&database);
    copy(&database, 120);
    // Back to the first version, by its bytes.
    deploy(&database, "m", &owner("by_a by_b"));
    check(&database);
    let digest = digest_now(&database);
    close(&database);
    drop(database);
    let database = open(dir.path());
    assert_eq!(digest_now(&database), digest);
    check(&database);
    close(&database);
}

/// A standby begins with the primary's checkpoint, and then replays calls that the primary ran over the tables from before it.
#[test]
fn standby_follows_when_it_begins_behind_another_order_of_indexes() {
    let cluster = Cluster::new();
    let primary = cluster.start("p");
    prepare(&primary);
    deploy(&primary, "m", &owner("by_b by_a"));
    let standby = cluster.standby_of(&primary, "s1");
    copy(&primary, 100);
    wait_seen(&primary, &standby);
    check(&primary);
    assert_eq!(digest_now(&standby), digest_now(&primary));
    close(standby);
    cluster.no_primary();
    close(primary);
}
