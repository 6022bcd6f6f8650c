//! Checks of the files once the last server of a database is dead: the log's records, and the result of every way of recovery.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    model::{Model, number},
    server::{copy_dir, run_bench, run_verb},
};

/// Checks that every acknowledged transaction has one record (or its command and, right behind, its changes) at the LSN of its answer. A
/// checkpoint has those before the log's beginning. True when the log exists from its first record on.
pub(crate) fn check_log(data_dir: &Path, models: &[Model]) -> Result<bool> {
    let dir = data_dir.to_str().context("a path in UTF-8")?;
    let output = run_verb(&["log", "dump", dir, "--output", "json"])?;
    ensure!(
        output.status.success(),
        "log dump: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut places = std::collections::HashMap::new();
    let (mut start, mut command) = (None, None);
    for line in output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        let record: Value = serde_json::from_slice(line).context("a line of log dump")?;
        start = start.or_else(|| number(&record["lsn"]));
        let (Some(txn_id), Some(lsn)) = (number(&record["txn_id"]), number(&record["lsn"])) else {
            continue; // the genesis
        };
        if record["kind"] == "part" {
            continue; // of the transaction whose record follows, or of none
        }
        let is_twin = command == Some(txn_id) && record["kind"] == "changes";
        command = (record["kind"] == "command").then_some(txn_id);
        ensure!(
            is_twin || places.insert(txn_id as u64, lsn as u64).is_none(),
            "two records of transaction {txn_id}"
        );
    }
    let start = start.context("an empty log")? as u64;
    let kept = models.iter().flat_map(|model| &model.txns);
    for (txn_id, lsn) in kept.filter(|(_, lsn)| *lsn >= start) {
        ensure!(
            places.remove(txn_id) == Some(*lsn),
            "acknowledged was transaction {txn_id} at LSN {lsn}; the log has it there not, or it was acknowledged twice"
        );
    }
    Ok(start == 0)
}

/// Replays copies on every number of sites and from every kind of record, with the checkpoints and without: all make the same.
pub(crate) fn check_digests(data_dir: &Path, copy: &Path, partitions: u64, is_whole: bool) -> Result<()> {
    let mut digests = Vec::new();
    for sites in 1..=partitions.min(3) {
        for from in ["command", "physiological"] {
            copy_dir(data_dir, copy)?;
            // The whole log alone must give the same as a checkpoint and the rest of it.
            if is_whole && (sites > 1 || from == "physiological") {
                let checkpoints = copy.join("checkpoints");
                std::fs::remove_dir_all(checkpoints).context("remove the checkpoints")?;
            }
            let digest = replay(copy, sites, from)?;
            digests.push((sites, from, digest));
            std::fs::remove_dir_all(copy).context("remove the copy")?;
        }
    }
    ensure!(
        digests.windows(2).all(|two| two[0].2 == two[1].2),
        "replays on several numbers of sites, by command and by changes: {digests:?}"
    );
    Ok(())
}

fn replay(dir: &Path, sites: u64, from: &str) -> Result<Value> {
    let dir = dir.to_str().context("a path in UTF-8")?;
    let sites = sites.to_string();
    let words = ["replay", "--output", "json", "--data-dir", dir];
    let further = ["--sites", &sites, "--recover-from", from];
    let output = run_bench(&[&words[..], &further].concat())?;
    ensure!(
        output.status.success(),
        "replay from {from}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let answer: Value = serde_json::from_slice(&output.stdout).context("read the replay's answer")?;
    ensure!(answer["digest"].is_string(), "a replay without a digest: {answer}");
    Ok(answer["digest"].clone())
}
