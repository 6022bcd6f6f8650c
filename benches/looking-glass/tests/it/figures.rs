//! Each figure is drawn by one command, with every build and its rows checked.

use std::{fs, process::Command};

use reprise_bench_looking_glass::components::COMPONENTS;

#[test]
fn figures_are_drawn_of_a_short_run() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_reprise-bench-looking-glass"));
    command
        .args(["--short", "--runs", "1", "--build", "a test", "--out"])
        .arg(dir.path());
    let output = command.output().expect("it starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let printed = String::from_utf8_lossy(&output.stdout);
    for line in [
        "everything",
        "- latching",
        "+ locking",
        "ours native",
        "redb",
        "typed kernel",
    ] {
        assert!(printed.contains(line), "{printed}");
    }
    for number in [1, 5, 6, 7, 8] {
        let name = dir.path().join(format!("looking-glass-{number}"));
        let read = |ending: &str| fs::read_to_string(name.with_extension(ending)).expect("a file");
        let (csv, svg) = (read("csv"), read("svg"));
        assert!(
            csv.contains("a short run: no figure") && csv.contains("Two engines"),
            "{csv}"
        );
        assert!(svg.contains("Figure") && !svg.contains("NaN"), "{svg}");
    }
    check_components(&fs::read_to_string(dir.path().join("looking-glass-components.csv")).expect("a file"));
    let csv = fs::read_to_string(dir.path().join("looking-glass-6.csv")).expect("a file");
    // The build without any part does the paper's work, and nothing for the missing parts.
    let last = |row: &str| -> f64 {
        let line = csv.lines().find_map(|line| line.strip_prefix(row)).expect("a row");
        let cell = line.split(',').nth(2 + 10).expect("a cell for each build");
        cell.parse().expect("a number")
    };
    for (row, count) in [
        ("look-ups", 23.0),
        ("index inserts", 13.0),
        ("creations", 12.0),
        ("updates", 11.0),
        ("locks", 0.0),
        ("latches", 0.0),
        ("pins of pages", 0.0),
        ("log bytes", 0.0),
    ] {
        assert_eq!(last(row), count, "{row}: {csv}");
    }
    assert!(csv.contains("index insertion"), "{csv}");
}

/// Each component has its count beside that of a published one.
fn check_components(csv: &str) {
    for component in &COMPONENTS {
        let claim = format!("\"{} to {}, times\",,,", component.name, component.published);
        let line = csv.lines().find_map(|line| line.strip_prefix(&claim)).expect("a claim");
        let times = line.split(',').next().and_then(|times| times.parse::<f64>().ok());
        assert!(times.is_some_and(|times| times > 0.0), "{claim}: {csv}");
    }
}

#[test]
fn figure_is_refused_when_there_is_none() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reprise-bench-looking-glass"));
    let output = command.args(["--figure", "2"]).output().expect("it starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("there is no figure 2 here"), "{told}");
}
