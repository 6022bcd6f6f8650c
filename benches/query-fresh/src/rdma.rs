//! Figures 6 and 11 over TCP and over RDMA, from what `tests/hardware/rdma-figures` measured in a virtual machine.

use anyhow::{Context, Result, ensure};
use reprise_bench_figures::{Chart, Point};

/// The columns of the measurements.
const HEADER: &str = "figure,transport,standbys,standby_log,connections,txn_per_s,p50_us,p99_us";

const NOTES: [&str; 3] = [
    "Emulated: processors, cards (soft-RoCE) and network are software in a virtual machine. Only ratios between the series say anything.",
    "TPC-C's full mix over HTTP. The primary ships changes at 2-safe, and 0 standbys is the primary by itself.",
    "Each point is one run.",
];

/// One measurement.
struct Row<'a> {
    figure: &'a str,
    transport: &'a str,
    standbys: f64,
    txn_per_s: f64,
    p50_us: f64,
}

impl<'a> Row<'a> {
    fn parse(line: &'a str) -> Result<Self> {
        let fields: Vec<_> = line.split(',').collect();
        ensure!(fields.len() == 8, "{line}: not eight fields");
        let number = |at: usize| fields[at].parse().with_context(|| format!("{line}: {}", fields[at]));
        Ok(Self {
            figure: fields[0],
            transport: fields[1],
            standbys: number(2)?,
            txn_per_s: number(5)?,
            p50_us: number(6)?,
        })
    }
}

/// Draws the figures from the output of the virtual machine.
///
/// # Errors
/// The output has no measurements, or a line that is none.
pub fn charts(output: &str, conditions: &str) -> Result<Vec<Chart>> {
    let lines = output.lines().skip_while(|line| line.trim() != HEADER).skip(1);
    let lines = lines.map(str::trim).filter(|line| !line.is_empty());
    let rows: Vec<_> = lines.map(Row::parse).collect::<Result<_>>()?;
    ensure!(!rows.is_empty(), "the virtual machine measured nothing");
    let chart = |number: &str, what: &str, y: &'static str, value: fn(&Row<'_>) -> f64| {
        let title = format!("Figure {number} over TCP and RDMA: {what}, by standbys");
        let mut chart = Chart::new(
            format!("query-fresh-{number}-rdma"),
            &title,
            ["standbys", y],
            conditions,
        );
        chart.notes = NOTES.map(str::to_owned).into();
        let own = rows.iter().filter(|row| row.figure == number);
        chart.points = own
            .map(|row| Point::of(row.transport, row.standbys, std::iter::once(value(row))))
            .collect();
        chart
    };
    Ok(vec![
        chart("6", "the primary", "transactions a second", |row| row.txn_per_s),
        chart("11", "a commit by itself", "median us", |row| row.p50_us),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_become_points_and_other_lines_are_refused() {
        let output = format!(
            "booting\n{HEADER}\n6,tcp,1,file,16,900.5,1,2\n11,tcp,1,file,1,80,700,900\n11,rdma,1,file,1,90,600,800\n"
        );
        let charts = charts(&output, "a test").expect("drawn");
        let points: Vec<_> = charts.iter().map(|chart| chart.points.len()).collect();
        assert_eq!(points, [1, 2]);
        assert_eq!((charts[0].points[0].y[0], charts[1].points[1].y[0]), (900.5, 600.0));
        assert_eq!(charts[1].name, "query-fresh-11-rdma");
        for wrong in [String::new(), format!("{HEADER}\n"), format!("{HEADER}\nfailed: x\n")] {
            assert!(super::charts(&wrong, "a test").is_err(), "{wrong}");
        }
    }
}
