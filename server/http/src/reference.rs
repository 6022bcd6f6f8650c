//! `docs/REFERENCE.md`: limits, errors and metrics, as the program has them.

use std::{fmt::Write, path::PathBuf};

use reprise_abi::{
    key::KEY_BYTES_MAX,
    row::{COLUMNS_MAX, ROW_BYTES_MAX},
    schema::NAME_BYTES_MAX,
    types::DECIMAL_SCALE_MAX,
    value::{ARGS_BYTES_MAX, RESULT_BYTES_MAX},
};
use reprise_base::limits::{
    ABORT_CODE_BYTES_MAX, ABORT_MESSAGE_BYTES_MAX, CALL_TIME_MAX_MS, CURSORS_MAX, DEPLOY_TIME_MAX_S, FUEL_MAX,
    GUEST_LOG_BYTES_MAX, GUEST_MEMORY_BYTES_MAX, GUEST_STACK_BYTES_MAX, GUEST_TABLE_ELEMENTS_MAX, HANDLES_MAX,
    IDEMPOTENCY_KEEP_DEFAULT, IDEMPOTENCY_KEY_BYTES_MAX, INDEXES_MAX, MIGRATION_HANDLES_MAX, MODULE_BYTES_MAX,
    MODULES_MAX, PARTITIONS_MAX, PROCEDURES_MAX, ROW_OPS_MAX, SAVEPOINTS_MAX, SITES_MAX, STANDBYS_MAX, TABLES_MAX,
    WAITING_TXNS_MAX, WRITE_SET_BYTES_MAX,
};

use crate::{
    limits::{
        BATCH_IDLE_MAX, BODY_WAIT_MAX, CALL_BODY_BYTES_MAX, CONNECTIONS_MAX, DOWNLOADS_MAX, EVENT_STREAMS_MAX,
        HEADER_BYTES_MAX, HEADER_WAIT_MAX, HEADERS_MAX, ID_BYTES_MAX, LIST_LIMIT_MAX, LOG_LIMIT_MAX,
        PROCEDURE_LOG_LIMIT_MAX, READ_WAIT_MAX, ROWS_LIMIT_MAX, WRITE_WAIT_MAX,
    },
    metrics, problems,
};

fn bytes(count: usize) -> String {
    match count {
        count if count >= 1 << 20 && count.is_multiple_of(1 << 20) => format!("{} MiB", count >> 20),
        count if count >= 1 << 10 && count.is_multiple_of(1 << 10) => format!("{} KiB", count >> 10),
        count => format!("{count} bytes"),
    }
}

fn count(number: u64) -> String {
    let digits = number.to_string();
    let grouped = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|part| String::from_utf8_lossy(part).into_owned());
    grouped.collect::<Vec<_>>().join(",")
}

fn seconds(time: std::time::Duration) -> String {
    format!("{} s", count(time.as_secs()))
}

#[rustfmt::skip]
fn limits() -> Vec<(&'static str, &'static str, String)> {
    vec![
        ("One transaction", "fuel: about one unit for each turn of a loop and each call of a function, unless `fuel_max` or `--view-fuel-max` \
         sets another limit", count(FUEL_MAX)),
        ("", "time, unless the procedure or `--call-time-max-ms` sets another limit", format!("{} ms", count(CALL_TIME_MAX_MS.into()))),
        ("", "memory of its module", bytes(GUEST_MEMORY_BYTES_MAX)),
        ("", "stack", bytes(GUEST_STACK_BYTES_MAX)),
        ("", "elements of a table of functions", count(GUEST_TABLE_ELEMENTS_MAX)),
        ("", "arguments, encoded", bytes(ARGS_BYTES_MAX)),
        ("", "result, encoded", bytes(RESULT_BYTES_MAX)),
        ("", "rows that it writes", bytes(WRITE_SET_BYTES_MAX)),
        ("", "rows visited and host calls", count(ROW_OPS_MAX)),
        ("", "rows held at once", count(HANDLES_MAX as u64)),
        ("", "cursors open at once", count(CURSORS_MAX as u64)),
        ("", "savepoints", count(SAVEPOINTS_MAX as u64)),
        ("", "lines written with `log`", bytes(GUEST_LOG_BYTES_MAX)),
        ("", "code of an abort", bytes(ABORT_CODE_BYTES_MAX)),
        ("", "message of an abort", bytes(ABORT_MESSAGE_BYTES_MAX)),
        ("A deployment", "time, unless `--deploy-time-max-s` sets another limit", format!("{} s", count(DEPLOY_TIME_MAX_S.into()))),
        ("", "rows that its migration visits on a partition", count(MIGRATION_HANDLES_MAX as u64)),
        ("Schema", "modules in service", count(MODULES_MAX as u64)),
        ("", "bytes of a module", bytes(MODULE_BYTES_MAX)),
        ("", "procedures of a module", count(PROCEDURES_MAX as u64)),
        ("", "tables", count(TABLES_MAX as u64)),
        ("", "columns of a table", count(COLUMNS_MAX as u64)),
        ("", "indexes of a table", count(INDEXES_MAX as u64)),
        ("", "bytes of a row", bytes(ROW_BYTES_MAX)),
        ("", "bytes of a key", bytes(KEY_BYTES_MAX)),
        ("", "bytes of a name", bytes(NAME_BYTES_MAX)),
        ("", "digits after a decimal's point", count(DECIMAL_SCALE_MAX.into())),
        ("Server", "partitions", count(PARTITIONS_MAX.into())),
        ("", "engine threads", count(SITES_MAX.into())),
        ("", "standbys that a primary knows, lost ones included", count(STANDBYS_MAX as u64)),
        ("", "calls that wait for one partition", count(WAITING_TXNS_MAX as u64)),
        ("", "bytes of an idempotency key", bytes(IDEMPOTENCY_KEY_BYTES_MAX)),
        ("", "time for which the server keeps its outcome, unless `--idempotency-keep-s` sets another", seconds(IDEMPOTENCY_KEEP_DEFAULT)),
        ("HTTP", "connections, unless `connections_max` sets another limit", count(CONNECTIONS_MAX.into())),
        ("", "request line and headers", bytes(HEADER_BYTES_MAX)),
        ("", "headers", count(HEADERS_MAX as u64)),
        ("", "body of a call, line of a batch", bytes(CALL_BODY_BYTES_MAX)),
        ("", "id of a call in a batch", bytes(ID_BYTES_MAX)),
        ("", "wait for the next request's headers (`header_wait_s`)", seconds(HEADER_WAIT_MAX)),
        ("", "wait for the next piece of a body (`body_wait_s`)", seconds(BODY_WAIT_MAX)),
        ("", "wait for the next call of a batch (`batch_idle_s`)", seconds(BATCH_IDLE_MAX)),
        ("", "wait for a client to take its answer (`write_wait_s`)", seconds(WRITE_WAIT_MAX)),
        ("", "wait for `Reprise-Min-Lsn`", seconds(READ_WAIT_MAX)),
        ("", "rows of a page", count(ROWS_LIMIT_MAX.into())),
        ("", "modules or tables of a page", count(LIST_LIMIT_MAX as u64)),
        ("", "records of a page of the log", count(LOG_LIMIT_MAX as u64)),
        ("", "lines of a page of what procedures logged", count(PROCEDURE_LOG_LIMIT_MAX as u64)),
        ("", "streams of events", count(EVENT_STREAMS_MAX as u64)),
        ("", "downloads of backup files at once", count(DOWNLOADS_MAX as u64)),
    ]
}

fn text() -> Result<String, std::fmt::Error> {
    let plain = |text: &str| text.replace("<code>", "`").replace("</code>", "`").replace('|', "\\|");
    let mut out = String::from(
        "# Limits, errors, metrics\n\n\
         The program writes this page: `BLESS=1 cargo test --release --workspace --lib the_reference`.\n\
         A test fails if the page is out of date.\n\n\
         ## Limits\n\n\
         If a transaction exceeds one of the first limits, the server rolls it back and answers\n\
         `limit-exceeded`.\n\n\
         | of | what | at most |\n| --- | --- | --- |\n",
    );
    for (of, what, most) in limits() {
        writeln!(out, "| {of} | {what} | {most} |")?;
    }
    out.push_str("\n## Errors\n\n`GET /problems/{slug}` serves a page for each, which also says what to do.\n\n| slug | status | means | \
     safe to repeat? |\n| --- | --- | --- | --- |\n");
    for (slug, status, means, repeat) in problems::described() {
        writeln!(out, "| `{slug}` | {status} | {} | {} |", plain(means), plain(repeat))?;
    }
    out.push_str(
        "\n## Metrics\n\n\
         `GET /metrics` serves these for Prometheus. Counters and histograms begin at zero with the\n\
         server, so use their differences.\n\n\
         | name | kind | is |\n| --- | --- | --- |\n",
    );
    for (name, kind, what) in metrics::described() {
        writeln!(out, "| `{name}` | {kind} | {} |", plain(what))?;
    }
    Ok(out)
}

/// `BLESS=1` rewrites the page.
#[test]
fn the_reference_is_what_the_program_has() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/REFERENCE.md");
    let actual = text().expect("memory takes it");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &actual).expect("write the page");
    }
    let stored = std::fs::read_to_string(&path).expect("read the page");
    assert!(
        stored == actual,
        "docs/REFERENCE.md is out of date; run this test with BLESS=1"
    );
}

/// An alert on a metric that there is not never fires.
#[test]
fn the_page_on_operating_names_metrics_that_there_are() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating.md");
    let page = std::fs::read_to_string(&path).expect("read the page");
    let known: Vec<_> = metrics::described().into_iter().map(|(name, ..)| name).collect();
    let words = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let named: Vec<_> = words.filter(|word| word.starts_with("reprise_")).collect();
    assert!(named.len() > 10, "{named:?}");
    for name in named {
        assert!(
            known.iter().any(|known| known == name),
            "docs/operating.md names {name}"
        );
    }
}
