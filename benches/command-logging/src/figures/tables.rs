//! Tables of what the paper of command logging has as text.

use anyhow::Result;
use reprise_bench_figures::{Drawing, Table, TableClaim, TableGroup, TableRow};
use reprise_database::LogPolicy;
use reprise_driver::Report;

use super::{Settings, title_of};
use crate::runs::{LOGS, Run};

/// Bytes that the device gets of each record when records are cut.
const CUT_BYTES: usize = 100;

impl Settings {
    /// Bytes of the log for each transaction: the table that the paper has as text.
    pub(super) fn bytes(&self) -> Result<Vec<Drawing>> {
        let workloads = ["voter", "tpcc"];
        let logs = &LOGS[1..];
        let of_workload = |workload: &'static str| logs.iter().map(move |(_, log)| self.run(workload, *log, 1));
        let runs: Vec<_> = workloads.into_iter().flat_map(of_workload).collect();
        let reports = self.measure(&runs)?;
        let bytes = |report: &Report| report.log_bytes as f64 / report.committed.max(1) as f64;
        let mut rows = reports
            .iter()
            .map(|reports| reports.iter().map(bytes).collect::<Vec<_>>());
        let mut groups = Vec::new();
        for workload in workloads {
            groups.push(TableGroup {
                name: title_of(workload).to_owned(),
                rows: logs
                    .iter()
                    .zip(&mut rows)
                    .map(|((name, _), bytes)| row(name, bytes))
                    .collect(),
            });
        }
        let of = |group: usize, at: usize| groups[group].rows[at].cells[0].clone();
        let times = of(1, 1)
            .iter()
            .zip(of(1, 0))
            .map(|(changes, command)| changes / command)
            .collect();
        let claims = vec![
            number("Voter, command, bytes", [55.0, 55.0], of(0, 0)),
            number("Voter, physiological, bytes", [81.0, 81.0], of(0, 1)),
            number("TPC-C, command, bytes", [50.0, 170.0], of(1, 0)),
            number("TPC-C, physiological to command, times", [10.0, 10.0], times),
        ];
        let notes = [
            "TPC-C: the mean of the full mix, in which each fifth call writes nothing or little.",
            "Records with their headers, from the first of the measured window to its last.",
        ];
        let title = "Section V-C3: bytes of the log for each committed transaction";
        Ok(vec![self.table("bytes", title, &["bytes"], groups, claims, &notes)])
    }

    /// The physiological log whose device gets at most 100 bytes of each record: the experiment that the paper has as text.
    pub(super) fn cut(&self) -> Result<Vec<Drawing>> {
        let of = |log: LogPolicy, record_bytes_max: Option<usize>| Run {
            record_bytes_max,
            ..self.run("tpcc", log, 1)
        };
        let runs = [
            of(LogPolicy::Command, None),
            of(LogPolicy::Physiological, None),
            of(LogPolicy::Physiological, Some(CUT_BYTES)),
        ];
        let rates: Vec<Vec<f64>> = self
            .measure(&runs)?
            .iter()
            .map(|reports| reports.iter().map(|report| report.txn_per_s).collect())
            .collect();
        let times = |one: usize, other: usize| rates[one].iter().zip(&rates[other]).map(|(a, b)| a / b).collect();
        let claims = vec![
            number("cut to whole, times", [1.01, 1.01], times(2, 1)),
            number("command to cut, times", [1.5, 1.5], times(0, 2)),
        ];
        let names = ["command", "physiological", "physiological-cut"];
        let groups = vec![TableGroup {
            name: "TPC-C".to_owned(),
            rows: names
                .iter()
                .zip(&rates)
                .map(|(name, rates)| row(name, rates.clone()))
                .collect(),
        }];
        let notes = [
            "TPC-C's full mix in a closed loop without a generator. One partition on one engine thread.",
            "physiological-cut: of each transaction's record the device gets 100 bytes. Such a log can't be read.",
        ];
        let title = "Section V-C4: throughput with the physiological log, whole and cut";
        Ok(vec![self.table(
            "cut",
            title,
            &["transactions a second"],
            groups,
            claims,
            &notes,
        )])
    }

    fn table(
        &self,
        name: &str,
        title: &str,
        columns: &'static [&'static str],
        groups: Vec<TableGroup>,
        claims: Vec<TableClaim>,
        notes: &[&str],
    ) -> Drawing {
        Drawing::Bars(Table {
            name: format!("command-logging-{name}"),
            title: title.to_owned(),
            columns,
            groups,
            claims,
            notes: notes.iter().map(|note| (*note).to_owned()).collect(),
            conditions: self.conditions.clone(),
        })
    }
}

fn row(name: &str, rounds: Vec<f64>) -> TableRow {
    TableRow {
        name: name.to_owned(),
        cells: vec![rounds],
    }
}

/// A number of ours, beside the paper's least and most.
fn number(text: &str, [least, most]: [f64; 2], ours: Vec<f64>) -> TableClaim {
    TableClaim {
        text: text.to_owned(),
        paper: Some((least, most)),
        ours,
    }
}
