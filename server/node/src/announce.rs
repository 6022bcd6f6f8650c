//! Messages of a starting server, about its machine, its files and its log, that an operator must know.

use std::{fs, net::SocketAddr, os::unix::fs::PermissionsExt, path::Path};

use reprise_database::{Database, RecoveryReport};

use crate::{
    output::{bytes, grouped},
    server_output::{self, Line},
};

/// Prints the facts about the NVRAM that an operator must know.
pub fn nvram(database: &Database) {
    let drained = database.drained();
    if drained.records > 0 {
        let (records, void) = (grouped(drained.records), grouped(drained.void));
        let text = format!(
            "copied {records} records from NVRAM to the log's files; {void} LSNs were lost with the last process"
        );
        server_output::info("nvram", text);
    }
    let nvram = database.router().status().nvram;
    if let Some(warning) = nvram.and_then(|(device, _)| device.warning) {
        server_output::warning("nvram", warning);
    }
}

/// Warns that others on the network can read the packets of an unencrypted address.
pub fn listeners(address: SocketAddr) {
    if !address.ip().is_loopback() {
        let text = format!(
            "other machines can reach {address}, and the server encrypts nothing there: others on the network can read tokens and rows. \
             Set a certificate (tls-cert and tls-key), or put a proxy with TLS in front (docs/security.md)"
        );
        server_output::warning("not_encrypted", text);
    }
}

/// Warns about a directory that other users can read. It is not changed, because its owner may share it on purpose.
pub fn readers(dir: &Path) {
    let Ok(metadata) = fs::metadata(dir) else {
        return; // an error shows when the server uses the directory
    };
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let dir = dir.display();
        let text = format!(
            "other users of this machine can read {dir} (mode {mode:o}), which holds rows, arguments and keys: run chmod 700 {dir}"
        );
        server_output::warning("readable", text);
    }
}

pub fn recovery(report: &RecoveryReport) {
    if report.torn_bytes > 0 {
        let torn = bytes(report.torn_bytes);
        let text = format!("removed {torn} of a write that a crash cut off; the server had acknowledged none of it");
        server_output::info("torn_write", text);
    }
    if let Some(other) = report.other_settings_hash {
        let text = format!(
            "a program with other settings ({other:016x}) wrote the log; the replay compared every outcome, and all are equal"
        );
        server_output::info("other_settings", text);
    }
    for reason in &report.passed_over {
        server_output::warning("checkpoint_passed_over", format!("skipped a checkpoint: {reason}"));
    }
    if let Some(loaded) = &report.checkpoint {
        let text = format!(
            "checkpoint {} loaded: {} rows, {} in {:.3} s",
            loaded.lsn,
            grouped(loaded.rows),
            bytes(loaded.row_bytes),
            loaded.seconds
        );
        let line = Line::info("checkpoint_loaded", text).with("lsn", loaded.lsn.to_string());
        server_output::say(line.with("rows", loaded.rows).with("seconds", loaded.seconds));
    }
    let text = format!(
        "ready: {} transactions replayed from {} of log in {:.3} s",
        grouped(report.commands),
        bytes(report.log_bytes),
        report.seconds
    );
    let line = Line::info("ready", text).with("transactions", report.commands);
    server_output::say(line.with("log_bytes", report.log_bytes).with("seconds", report.seconds));
}
