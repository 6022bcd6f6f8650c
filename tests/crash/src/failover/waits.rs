//! Waits between the steps of a failover.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{NAMES, Nodes, PATIENCE, replication};
use crate::model::number;

impl Nodes {
    pub(super) fn wait_in_sync(&self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let told = replication(self.node(self.primary)?)?;
            let standbys = told["standbys"].as_array().map(Vec::as_slice).unwrap_or_default();
            let count = standbys
                .iter()
                .filter(|standby| standby["state"] == "streaming" && standby["in_sync"] == true)
                .count();
            let recorded = told["lease"]["in_sync"].as_array().map_or(0, Vec::len);
            let is_recorded = self.etcd.is_none() || recorded == 2;
            let [one, other] = self.standbys();
            let is_there = count == 2 && is_recorded && told["reached"] == self.safety.as_str();
            if is_there && self.knows_it(one)? && self.knows_it(other)? {
                return Ok(());
            }
            ensure!(Instant::now() < until, "the standbys are not in sync: {told}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The standby was told that it is in sync.
    fn knows_it(&self, standby: usize) -> Result<bool> {
        Ok(replication(self.node(standby)?)?["standbys"][0]["in_sync"] == true)
    }

    /// Waits until the standby beside the troubled one is in sync and knows it. Otherwise no server has all acknowledged writes when the
    /// primary is lost. A server that is deposed by now is lost already.
    pub(super) fn wait_backed(&self, troubled: usize) -> Result<()> {
        if self.safety == "1-safe" {
            return Ok(());
        }
        let until = Instant::now() + PATIENCE;
        let [one, other] = self.standbys();
        let left = if one == troubled { other } else { one };
        let name = NAMES[left];
        loop {
            let told = replication(self.node(self.primary)?)?;
            let standbys = told["standbys"].as_array().map(Vec::as_slice).unwrap_or_default();
            let is_in_sync = standbys
                .iter()
                .any(|standby| standby["name"] == name && standby["in_sync"] == true);
            let recorded = told["lease"]["in_sync"]
                .as_array()
                .map(Vec::as_slice)
                .unwrap_or_default();
            let is_recorded = self.etcd.is_none() || recorded.iter().any(|recorded| recorded == name);
            let is_backed = is_in_sync && is_recorded && self.knows_it(left).unwrap_or(false);
            if is_backed || told["role"] != "primary" {
                return Ok(());
            }
            ensure!(Instant::now() < until, "{name} is not in sync: {told}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the standbys' disks have all that a paused primary sent: they report the same twice.
    pub(super) fn wait_arrived(&self) -> Result<()> {
        let (mut before, until) = (Vec::<Value>::new(), Instant::now() + PATIENCE);
        loop {
            thread::sleep(Duration::from_millis(200));
            let mut now = Vec::new();
            for node in self.standbys() {
                if let Some(server) = &self.servers[node] {
                    now.push(replication(server)?["durable_lsn"].clone());
                }
            }
            if now == before {
                return Ok(());
            }
            ensure!(Instant::now() < until, "it does not end: {before:?}, then {now:?}");
            before = now;
        }
    }

    /// Waits until the node has everything before `end` on its disk.
    pub(super) fn wait_durable(&self, node: usize, end: i64) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let own = number(&replication(self.node(node)?)?["durable_lsn"]).context("an LSN")?;
            if own >= end {
                return Ok(());
            }
            ensure!(Instant::now() < until, "{} has {own}, not {end}", NAMES[node]);
            thread::sleep(Duration::from_millis(10));
        }
    }
}
