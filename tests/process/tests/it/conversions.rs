//! A primary killed while a deployment or a rollback converts a table: it serves the former version or the new one, nothing half.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Launch, Server};
use reprise_test_http::table_module;
use reprise_test_process::json_of;
use serde_json::json;

const MODULE: &str = "/v1/modules/wide";
/// Rows that one call inserts.
const FILLED: u64 = 10_000;
const FILLS: u64 = 12;
/// Longest deployment that may end before the first look at it.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// Table `t` with this second column; `fill(from)` inserts rows with 7 there.
fn version(column: &str, bytes: u64) -> Vec<u8> {
    let fill =
        r#"{"name":"fill","params":[{"name":"from","type":"i64"}],"returns":"unit","partitioning":{"by":["from"]}}"#;
    let code = format!(
        r#"(func (export "reprise_call_fill") (param i32) (result i32) (local $left i32)
                (call $args_read (i32.const 0))
                (i64.store (i32.const 8) (i64.const 7))
                (local.set $left (i32.const {FILLED}))
                (loop $next
                    (drop (call $insert (i32.const 0) (i64.const {row})))
                    (i64.store (i32.const 0) (i64.add (i64.load (i32.const 0)) (i64.const 1)))
                    (local.set $left (i32.sub (local.get $left) (i32.const 1)))
                    (br_if $next (local.get $left)))
                (i32.const 0))"#,
        row = (8 + bytes) << 32
    );
    table_module(column, fill, &code)
}

fn narrow() -> Vec<u8> {
    version(r#""name":"a","type":"i32""#, 4)
}

fn wide() -> Vec<u8> {
    version(r#""name":"b","was":"a","type":"i64""#, 8)
}

fn fill(server: &Server, from: u64) -> Result<()> {
    let answer = server.call("wide/fill", &json!({"from": from}).to_string())?;
    ensure!(answer.status == 200, "{} {}", answer.status, answer.text());
    Ok(())
}

/// Checks that all rows are there, in one of both shapes. Returns true if it is the wide one.
fn is_wide(server: &Server, rows: u64) -> Result<bool> {
    let table = server.get("/v1/tables/t")?.json();
    ensure!(table["rows"] == rows, "{} of {rows}", table["rows"]);
    let page = server.get("/v1/tables/t/rows?limit=1000")?.json();
    let page = page["rows"].as_array().context("rows")?;
    let is_wide = !page[0]["b"].is_null();
    let expected = |id: usize| match is_wide {
        true => json!({"id": id.to_string(), "b": "7"}),
        false => json!({"id": id.to_string(), "a": 7}),
    };
    for (id, row) in page.iter().enumerate() {
        ensure!(*row == expected(id), "{row} for {}", expected(id));
    }
    Ok(is_wide)
}

/// Waits until the deployment copies rows, or is over. Returns how many rows it had copied.
fn wait_copying(server: &Server) -> Result<u64> {
    let until = Instant::now() + LOOK_MAX;
    let mut has_begun = false;
    while Instant::now() < until {
        let deployment = server.get("/v1/status")?.json()["deployment"].clone();
        let rows = deployment["rows"].as_u64().unwrap_or(0);
        if rows > 0 || has_begun && deployment.is_null() {
            return Ok(rows);
        }
        has_begun |= !deployment.is_null();
        if !has_begun {
            thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(0)
}

#[test]
fn primary_killed_in_a_conversion_serves_one_of_both_versions() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data")).args(&["--partitions", "1"]);
    let mut server = Server::start(&launch)?;
    server.consenting("PUT", MODULE, &narrow())?;
    let mut rows = 0;
    while rows < FILLS * FILLED {
        fill(&server, rows)?;
        rows += FILLED;
    }
    let url = format!("http://{}", server.address);
    json_of(&["checkpoint", "take", "--url", &url])?;
    let (mut was_wide, mut cut, mut done) = (false, 0, 0);
    for round in 0..6 {
        let mut connection = server.connect()?;
        match was_wide {
            false => connection.send("PUT", MODULE, &[], &wide())?,
            true => connection.send("POST", &format!("{MODULE}/rollback"), &[], b"")?,
        }
        cut += u32::from(wait_copying(&server)? > 0);
        thread::sleep(Duration::from_millis(3 * round));
        server.kill()?;
        server = Server::start(&launch)?;
        let is_now = is_wide(&server, rows)?;
        done += u32::from(is_now != was_wide);
        was_wide = is_now;
        // The module in service is the one that knows the rows.
        fill(&server, rows)?;
        rows += FILLED;
        if round == 2 && !was_wide {
            let answer = server.consenting("PUT", MODULE, &wide())?;
            ensure!(answer.status == 200, "{}", answer.text());
            was_wide = is_wide(&server, rows)?;
            ensure!(was_wide);
        }
    }
    println!("{cut} of 6 conversions were cut, {done} had taken place");
    server.terminate()?;
    Ok(())
}
