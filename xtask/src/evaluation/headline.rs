//! The first numbers of the README, from the figures.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

use super::page;

const README: &str = "README.md";
const BEGIN: &str = "<!-- `cargo xtask evaluation` writes these rows. -->\n";
const END: &str = "<!-- End of the written rows. -->\n";
/// The figure of votes beside other databases, and the group of its rows.
const VOTES: &str = "peers-voter";
const DURABLE: &str = "durable at each commit";
/// The figure of TPC-C by log, in a closed loop, and the share of its calls on two partitions that is nearest to the specification's.
const LOGS: &str = "command-logging-9";
const REMOTE: &str = "10";

/// Our ways to call, as the README names them.
const WAYS: [(&str, &str); 4] = [
    ("Reprise", "votes over HTTP, one per request"),
    ("Reprise keyed", "the same, each with an idempotency key"),
    ("Reprise 16 ahead", "the same without keys, 16 sent ahead"),
    ("Reprise batches of 64", "the same in batches of 64"),
];
/// Peers, as the README names them.
const PEERS: [(&str, &str); 2] = [
    ("PostgreSQL", "PostgreSQL with prepared functions"),
    ("Redis", "Redis Functions with `appendfsync always`"),
];

/// Puts the present numbers into the README, if their figure was drawn.
///
/// # Errors
/// A file that cannot be read or written, or a README without a place for the numbers.
pub fn write(root: &Path) -> Result<()> {
    let path = root.join(README);
    let text = fs::read_to_string(&path).context("read README.md")?;
    let written = with_rows(&text, &root.join(super::FIGURES))?;
    if written != text {
        fs::write(&path, written).context("write README.md")?;
        println!("{README}");
    }
    Ok(())
}

/// Returns the README with the present numbers.
fn with_rows(readme: &str, figures: &Path) -> Result<String> {
    let tables = page::tables(figures)?;
    let Some(table) = tables.get(VOTES) else {
        return Ok(readme.to_owned());
    };
    let place = readme
        .split_once(BEGIN)
        .and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = place.context("README.md has no place for the first numbers")?;
    let rows = rows(table)? + &tables.get(LOGS).and_then(|table| log_row(table)).unwrap_or_default();
    Ok(format!("{before}{BEGIN}{rows}{END}{after}"))
}

/// Returns the row of what the command log costs TPC-C.
fn log_row(table: &str) -> Option<String> {
    let rate = |series: &str| {
        let start = format!("{series},{REMOTE},");
        let line = table.lines().find_map(|line| line.strip_prefix(&start))?;
        line.split(',').next()?.parse::<f64>().ok()
    };
    let of_none = rate("command")? / rate("none")?;
    Some(format!(
        "| TPC-C's full mix on both processors with the command log, of its rate without a log | {of_none:.2} x |\n"
    ))
}

/// Returns the calls a second of a series.
fn rate(table: &str, series: &str) -> Option<f64> {
    let start = format!("{DURABLE},{series},");
    let line = table.lines().find_map(|line| line.strip_prefix(&start))?;
    line.split(',').next()?.parse().ok()
}

fn rows(table: &str) -> Result<String> {
    let own = rate(table, WAYS[0].0).context("the figure of votes has no row of ours")?;
    ensure!(own > 0.0, "the figure of votes has no rate of ours");
    let mut rows = String::from("| measured on two cores, with the load generator on them | result |\n| --- | --- |\n");
    for (series, name) in WAYS {
        if let Some(rate) = rate(table, series) {
            rows += &format!("| {name} | {}/s |\n", thousands(rate));
        }
    }
    for (series, name) in PEERS {
        if let Some(rate) = rate(table, series) {
            rows += &format!("| one per request, against {name} | {:.1} x |\n", own / rate);
        }
    }
    Ok(rows)
}

/// Three digits are known, and no more.
fn thousands(rate: f64) -> String {
    let step = 10_f64.powf(rate.max(1.0).log10().floor() - 2.0).max(1.0);
    let rounded = ((rate / step).round() * step) as u64;
    match rounded {
        0..1_000 => rounded.to_string(),
        1_000..1_000_000 => format!("{},{:03}", rounded / 1_000, rounded % 1_000),
        _ => format!(
            "{},{:03},{:03}",
            rounded / 1_000_000,
            rounded / 1_000 % 1_000,
            rounded % 1_000
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_from_the_figure_and_stand_in_their_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let readme = format!("# Head\n\n{BEGIN}old\n{END}| more | rows |\n");
        assert_eq!(with_rows(&readme, folder.path()).expect("as it was"), readme);
        let table = "# Votes\ngroup,series,calls a second,runs\nnot durable,Reprise,1.000,1.000\n\
            durable at each commit,Reprise,61234.5,1 2 3\ndurable at each commit,Reprise batches of 64,1034567.1,1\n\
            durable at each commit,PostgreSQL,10000.000,1\n";
        fs::write(folder.path().join("peers-voter.csv"), table).expect("written");
        let written = with_rows(&readme, folder.path()).expect("rows");
        for expected in [
            "| votes over HTTP, one per request | 61,200/s |\n",
            "| the same in batches of 64 | 1,030,000/s |\n",
            "| one per request, against PostgreSQL with prepared functions | 6.1 x |\n",
            "| more | rows |\n",
        ] {
            assert!(written.contains(expected), "{expected}: {written}");
        }
        assert!(!written.contains("old") && !written.contains("Redis"), "{written}");
        assert_eq!(with_rows(&written, folder.path()).expect("again"), written);
        let table = "series,percent on two partitions,transactions a second,runs\nnone,0,9.000,9\nnone,10,4.000,4\ncommand,10,3.000,3\n";
        fs::write(folder.path().join("command-logging-9.csv"), table).expect("written");
        let written = with_rows(&readme, folder.path()).expect("rows");
        assert!(written.contains("of its rate without a log | 0.75 x |\n"), "{written}");
        assert!(with_rows("# Head\n", folder.path()).is_err());
    }

    #[test]
    fn readme_of_the_tree_has_the_numbers_of_its_figures() {
        let root = crate::root();
        let text = fs::read_to_string(root.join(README)).expect("the README");
        let written = with_rows(&text, &root.join(super::super::FIGURES)).expect("rows");
        assert!(
            text == written,
            "README.md has other numbers than docs/figures: run `cargo xtask evaluation --page`"
        );
    }
}
