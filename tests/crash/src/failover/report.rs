//! Counts of events in a run of failovers.

use std::fmt;

use crate::model::Counts;

#[derive(Clone, Debug, Default)]
pub struct FailoverReport {
    pub failovers: u32,
    pub killed: u32,
    /// Primaries that were paused, and continued when another one was the primary.
    pub paused: u32,
    pub stopped: u32,
    /// Primaries that were asked to step down.
    pub switched: u32,
    /// Standbys that were paused when the primary was lost.
    pub standbys_paused: u32,
    pub standbys_killed: u32,
    pub etcd_restarted: u32,
    /// Logs that were cut back.
    pub cuts: u64,
    /// Standbys that ended to be started again, since they were ahead of the one that took over.
    pub ended_ahead: u64,
    /// Times from the command that promotes to the answer of a first write, in seconds.
    pub promotions_s: Vec<f64>,
    pub counts: Counts,
    pub seconds: f64,
}

impl fmt::Display for FailoverReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "failovers     {} in {:.1} s: {} killed, {} paused, {} stopped, {} switched over",
            self.failovers, self.seconds, self.killed, self.paused, self.stopped, self.switched
        )?;
        writeln!(
            f,
            "standbys      {} paused and {} killed meanwhile; {} logs cut back; {} ended ahead; etcd restarted {} times",
            self.standbys_paused, self.standbys_killed, self.cuts, self.ended_ahead, self.etcd_restarted
        )?;
        let mut promotions_s = self.promotions_s.clone();
        promotions_s.sort_by(f64::total_cmp);
        if let (Some(longest_s), Some(median_s)) = (promotions_s.last(), promotions_s.get(promotions_s.len() / 2)) {
            let count = promotions_s.len();
            writeln!(
                f,
                "promotions    {count} asked for: {median_s:.3} s in the median, {longest_s:.3} s at most, up to a first write's answer"
            )?;
        }
        write!(
            f,
            "calls         {} acknowledged (each there exactly once), {} unknown of which {} had taken place, {} refused",
            self.counts.acknowledged, self.counts.unknown, self.counts.found, self.counts.refused
        )
    }
}
