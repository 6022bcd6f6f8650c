//! Figure 10 of "Rethinking Main Memory OLTP Recovery" in our form: commands against changes, where standbys follow.

use anyhow::Result;
use reprise_bench_figures::Chart;

use crate::{
    figures::Settings,
    ways::{Run, Way},
};

/// Percent of New-Orders and Payments that touch two partitions.
const REMOTE: [u8; 6] = [0, 1, 5, 10, 50, 100];
const REMOTE_SHORT: [u8; 2] = [0, 100];
/// Fewest partitions between which a transaction can go.
const PARTITIONS_MIN: u16 = 2;

const NOTES: [&str; 4] = [
    "The paper has three servers with 12 sites each, and three copies of each partition. Here a primary and its standbys share one machine.",
    "TPC-C's full mix at 2-safe. Standbys run commands again, or put changes in place. The paper runs New-Orders alone.",
    "The share is that of New-Orders and Payments that touch two partitions of the primary.",
    "The paper's series without a log has no counterpart: standbys follow the log.",
];

impl Settings {
    /// Throughput with standbys, by the share of transactions on two partitions.
    pub fn command_logging_10(&self) -> Result<Vec<Chart>> {
        let partitions = self.sites_max().max(PARTITIONS_MIN);
        let standbys = self.standbys.last().copied().unwrap_or(1);
        let shares: &[u8] = if self.is_short { &REMOTE_SHORT } else { &REMOTE };
        let ways = [Way::LOGICAL.named("command"), Way::QUERY_FRESH.named("physiological")];
        let mut runs = Vec::new();
        for share in shares {
            for way in ways {
                let run = Run {
                    partitions,
                    sites: partitions,
                    warehouses: self.warehouses.map(|warehouses| warehouses.max(partitions.into())),
                    remote_percent: Some(*share),
                    ..self.run(way, standbys)
                };
                runs.push((way.name.to_owned(), usize::from(*share), run));
            }
        }
        let measured = self.measure(&runs)?;
        let title =
            format!("Figure 10: throughput with {standbys} standbys, by the share of transactions on two partitions");
        let axes = ("percent on two partitions", "transactions a second");
        let mut chart = self.chart("10", &title, axes, &NOTES);
        chart.name = "command-logging-10".into();
        chart.points = Self::points(&runs, &measured, |_, measured| measured.report.txn_per_s);
        chart.paper = vec![
            chart.claim(
                "command to physiological, none distributed, times",
                (2.0, 2.0),
                ("command", "physiological"),
                &|x| x == 0.0,
            ),
            chart.claim(
                "the same, 5 percent distributed, times",
                (1.2, 1.2),
                ("command", "physiological"),
                &|x| x == 5.0,
            ),
            chart.claim(
                "the same, beyond 10 percent, times",
                (1.0, 1.0),
                ("command", "physiological"),
                &|x| x > 10.0,
            ),
        ];
        Ok(vec![chart])
    }
}
