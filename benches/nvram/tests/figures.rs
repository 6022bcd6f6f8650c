//! Each figure is drawn: a short run of every scheme, whose workload checks what it left.

use std::{fs, path::Path, process::Command};

/// Runs the program; what it printed, or told.
fn figures(args: &[&str]) -> Result<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(env!("CARGO_BIN_EXE_reprise-bench-nvram"));
    command.arg("--modules").arg(root.join("target/procedures")).args(args);
    let output = command.output().expect("it starts");
    let told = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(told(&output.stdout)),
        false => Err(told(&output.stderr)),
    }
}

const SCHEMES: [&str; 6] = [
    "nv-disk",
    "nv-disk-decentralised",
    "distributed",
    "nv-logging-commit",
    "nv-logging-insert",
    "nv-logging-insert-fence",
];

/// Draws figures shortly on one engine thread, and looks for these files and their series.
fn check_drawn(asked: &[&str], expected: &[(&str, &[&str])]) {
    let dir = tempfile::tempdir().expect("a directory");
    let (out, nvram) = (dir.path().join("figures"), dir.path().join("nvram"));
    fs::create_dir(&nvram).expect("a directory");
    let (out_text, nvram_text) = (out.to_str().expect("text"), nvram.to_str().expect("text"));
    let mut args = vec![
        "--short", "--sites", "1", "--build", "a test", "--out", out_text, "--nvram", nvram_text,
    ];
    asked.iter().for_each(|figure| args.extend(["--figure", *figure]));
    let printed = figures(&args).expect("drawn");
    assert_eq!(printed.lines().count(), 2 * expected.len(), "{printed}");
    for (name, series) in expected {
        let read = |ending: &str| fs::read_to_string(out.join(format!("nv-logging-{name}.{ending}"))).expect("a file");
        let (csv, svg) = (read("csv"), read("svg"));
        assert!(
            csv.contains("a short run: no figure") && csv.contains("; a test;"),
            "{csv}"
        );
        assert!(svg.contains("paper ") && !svg.contains("NaN"), "{svg}");
        for series in *series {
            let line = csv.lines().find_map(|line| line.strip_prefix(&format!("{series},")));
            let median = line.and_then(|line| line.split(',').nth(1)?.parse::<f64>().ok());
            assert!(median.is_some_and(|median| median > 0.0), "{series}: {csv}");
        }
    }
    assert_eq!(fs::read_dir(&nvram).expect("a folder").count(), 0, "something is left");
}

#[test]
fn writes_insertions_and_every_scheme_are_drawn() {
    check_drawn(
        &["9", "11", "13-tpcb"],
        &[
            ("9", &["memcpy", "mmap", "file-system"]),
            ("11", &["nv-disk", "nv-logging"]),
            ("13-tpcb", &SCHEMES),
        ],
    );
}

#[test]
#[ignore = "takes a minute; the test beside it draws the same schemes under TPC-B"]
fn tpcc_and_both_parts_of_figure_13_are_drawn() {
    check_drawn(
        &["12", "13"],
        &[("12-sites-1", &SCHEMES), ("13-tatp", &SCHEMES), ("13-tpcb", &SCHEMES)],
    );
}

#[test]
fn missing_figures_are_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_str().expect("text");
    let told = figures(&["--figure", "10", "--out", path, "--nvram", path]).expect_err("no such figure");
    assert!(told.contains("there is no figure 10 here"), "{told}");
    assert_eq!(
        fs::read_dir(dir.path()).expect("a folder").count(),
        0,
        "something is left"
    );
    let told = figures(&["--short", "--out", path, "--nvram", "/proc/nowhere"]).expect_err("no such folder");
    assert!(told.contains("create /proc/nowhere"), "{told}");
}
