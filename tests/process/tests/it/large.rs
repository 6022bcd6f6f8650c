//! A server whose calls change more than a record holds: killed among their parts, and opened again.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use reprise_test_crash::{Launch, Server, copy_dir, run_bench, run_verb};
use serde_json::{Value, json};

/// Rows of a call: some five megabytes.
const ROWS: u64 = 6_000;
const COLUMNS: usize = 100;

/// `put(a, b, from)` inserts rows of 800 bytes from (a, from) on, every second one at b.
fn module() -> Result<Vec<u8>> {
    let columns: Vec<_> = (0..COLUMNS)
        .map(|at| json!({"name": format!("c{at}"), "type": "i64"}))
        .collect();
    let params = ["a", "b", "from"].map(|name| json!({"name": name, "type": "i64"}));
    let description = json!({
        "abi": 1,
        "tables": [{"name": "wide", "columns": columns, "primary_key": ["c0", "c1"], "placement": {"by": "c0"}}],
        "procedures": [{"name": "put", "params": params, "returns": "unit", "read_only": false,
                        "partitioning": {"by": ["a", "b"]}, "time_max_ms": 100_000}],
    });
    let section: String = description
        .to_string()
        .bytes()
        .map(|byte| format!("\\{byte:02x}"))
        .collect();
    let text = format!(
        r#"(module (import "reprise1" "args_read" (func $args_read (param i32)))
            (import "reprise1" "insert" (func $insert (param i32 i64) (result i64)))
            (memory (export "memory") 1)
            (func (export "reprise_call_put") (param i32) (result i32) (local $n i64)
                (call $args_read (i32.const 4096))
                (loop $again
                    (i64.store (i32.const 0) (i64.load
                        (select (i32.const 4104) (i32.const 4096) (i32.wrap_i64 (i64.and (local.get $n) (i64.const 1))))))
                    (i64.store (i32.const 8) (i64.add (i64.load (i32.const 4112)) (local.get $n)))
                    (if (i64.lt_s (call $insert (i32.const 0) (i64.const {})) (i64.const 0)) (then unreachable))
                    (local.set $n (i64.add (local.get $n) (i64.const 1)))
                    (br_if $again (i64.lt_u (local.get $n) (i64.const {ROWS}))))
                i32.const 0)
            (@custom "reprise.describe" "{section}"))"#,
        (8 * COLUMNS as u64) << 32
    );
    Ok(wat::parse_str(text)?)
}

fn rows(server: &Server) -> Result<u64> {
    let table = server.get("/v1/tables/m.wide")?.json();
    table["rows"].as_u64().ok_or_else(|| anyhow::anyhow!("{table}"))
}

/// Calls on three connections until the server is killed; those that were answered.
fn put_until_killed(server: &mut Server, next: &AtomicU64, after: Duration) -> Result<u64> {
    let connections: Vec<_> = (0..3).map(|_| server.connect()).collect::<Result<_>>()?;
    let answered = AtomicU64::new(0);
    thread::scope(|scope| {
        for (at, mut connection) in connections.into_iter().enumerate() {
            let answered = &answered;
            scope.spawn(move || {
                loop {
                    let from = next.fetch_add(1, Ordering::Relaxed) * ROWS;
                    let args = json!({"a": at, "b": at as u64 + from / ROWS % 2, "from": from}).to_string();
                    match connection.request("POST", "/v1/call/m/put", &[], args.as_bytes()) {
                        Ok(answer) if answer.status == 200 => answered.fetch_add(1, Ordering::Relaxed),
                        _ => return,
                    };
                }
            });
        }
        thread::sleep(after);
        server.kill()
    })?;
    Ok(answered.into_inner())
}

#[test]
fn what_was_answered_is_there_after_a_kill_among_parts_and_nothing_by_half() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let next = AtomicU64::new(0);
    let mut answered = 0;
    for round in 0..6u64 {
        let kind = ["physiological", "both", "physiological"][round as usize % 3];
        let sites = ["1", "2"][round as usize % 2];
        let args = ["--partitions", "4", "--sites", sites, "--log", kind];
        let mut server = Server::start(&Launch::new(&data).args(&args))?;
        if round == 0 {
            let answer = server.request("PUT", "/v1/modules/m", &[], &module()?)?;
            ensure!(matches!(answer.status, 200 | 201), "{}", answer.text());
        }
        let found = rows(&server)?;
        ensure!(found % ROWS == 0, "{found} rows in round {round}: a call by half");
        ensure!(
            found >= answered * ROWS,
            "{answered} calls were answered, and {found} rows are there"
        );
        // Those that were not answered may be there, too.
        answered = found / ROWS;
        answered += put_until_killed(&mut server, &next, Duration::from_millis(300 + 170 * round))?;
    }
    check_log(&data, &dir.path().join("copy"))
}

/// The log is whole, holds parts, and comes to the same tables in every way.
fn check_log(data: &std::path::Path, copy: &std::path::Path) -> Result<()> {
    let path = data.to_str().expect("a path in UTF-8");
    let dumped = run_verb(&["log", "dump", path, "--output", "json"])?;
    ensure!(dumped.status.success(), "{}", String::from_utf8_lossy(&dumped.stderr));
    let lines = dumped
        .stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let (mut parts, mut commands) = (0, 0);
    for line in lines {
        let record: Value = serde_json::from_slice(line)?;
        parts += u64::from(record["kind"] == "part");
        commands += u64::from(record["kind"] == "command");
        ensure!(record["kind"] != "part" || record["rows"].is_array(), "{record}");
    }
    ensure!(parts > 10, "{parts} parts");
    let mut digests = Vec::new();
    for (sites, from) in [("1", "physiological"), ("2", "physiological"), ("2", "command")] {
        copy_dir(data, copy)?;
        let dir = copy.to_str().expect("a path in UTF-8");
        let words = [
            "replay",
            "--output",
            "json",
            "--data-dir",
            dir,
            "--sites",
            sites,
            "--recover-from",
            from,
        ];
        let output = run_bench(&words)?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        digests.push(serde_json::from_slice::<Value>(&output.stdout)?["digest"].clone());
        std::fs::remove_dir_all(copy)?;
    }
    ensure!(
        digests.windows(2).all(|two| two[0] == two[1]),
        "{digests:?}, {commands} commands"
    );
    Ok(())
}
