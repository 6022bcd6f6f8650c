//! The decision whether a joiner may have its name, and whether its epochs can be told from those of other servers.

use std::sync::Arc;

use reprise_base::{Epoch, Joiner, Safety};
use reprise_failover::NodeId;

use crate::{member::StandbyEntry, table::StandbyTableState};

/// Says why a server is refused whose epochs would have the writer of another one. An epoch would then not tell which of the two wrote it.
fn same_writer(other: &str) -> String {
    format!(
        "its identity gives its epochs the same writer as those of {other}. Start it in a new, empty data directory, which draws another identity"
    )
}

/// Checks that the epochs of a joiner can be told from those of this primary, which writes in `own`.
pub(crate) fn check_writer(joiner: &Joiner, own: Epoch) -> Result<(), String> {
    let writer = joiner.process.map(|process| NodeId(process.node).writer());
    match writer == Some(own.writer()) {
        true => Err(same_writer("this primary")),
        false => Ok(()),
    }
}

impl StandbyEntry {
    /// Returns why another directory may not have its name at a level that counts standbys. The directory that counts can be promoted by the last
    /// word of its primary. That promotion would name no loss of writes that were answered with the help of the other directory.
    fn refuses_directory(&self, joiner: &Joiner, level: Safety) -> Option<String> {
        let (name, process) = (&joiner.name, joiner.process?);
        let counts = level.counts_standbys() && (self.is_counted || self.is_confirmed);
        let node = self.node.filter(|node| counts && *node != process.node)?;
        Some(format!(
            "the directory with identity {node:016x} counts under this name, and can be promoted by the last word of its primary. Start that \
             directory, have it forgotten (reprise replication forget {name}), or give this server another --name"
        ))
    }
}

impl StandbyTableState {
    /// Checks whether a standby may have its name. Err: another server has it, or the epochs of another standby have the same writer.
    pub fn check_name(&self, joiner: &Joiner, level: Safety, now_ns: u64) -> Result<(), String> {
        let Some(process) = joiner.process else {
            return Ok(());
        };
        let known = self.standbys.get(&joiner.name);
        let refusal = known.and_then(|known| {
            let by_process = known.refuses(process, now_ns);
            by_process.or_else(|| known.refuses_directory(joiner, level))
        });
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        let writer = NodeId(process.node).writer();
        let is_alike = |(name, standby): &(&Arc<str>, &StandbyEntry)| {
            let node = standby.node.filter(|node| *node != process.node);
            **name != joiner.name && node.is_some_and(|node| NodeId(node).writer() == writer)
        };
        match self.standbys.iter().find(is_alike) {
            Some((name, _)) => Err(same_writer(&format!("the standby {name}"))),
            None => Ok(()),
        }
    }
}
