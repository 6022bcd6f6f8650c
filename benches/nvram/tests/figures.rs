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

#[test]
fn figures_are_drawn_with_every_scheme() {
    let dir = tempfile::tempdir().expect("a directory");
    let (out, nvram) = (dir.path().join("figures"), dir.path().join("nvram"));
    fs::create_dir(&nvram).expect("a directory");
    let places = [
        "--out",
        out.to_str().expect("text"),
        "--nvram",
        nvram.to_str().expect("text"),
    ];
    // Figure 12 draws the same schemes as 13, under TPC-C, whose loading takes minutes.
    let short = ["--short", "--sites", "1", "--build", "a test"];
    let asked = ["--figure", "9", "--figure", "11", "--figure", "13"];
    let printed = figures(&[&places[..], &short, &asked].concat()).expect("drawn");
    let names = [
        "nv-logging-9",
        "nv-logging-11",
        "nv-logging-13-tatp",
        "nv-logging-13-tpcb",
    ];
    assert_eq!(printed.lines().count(), 2 * names.len(), "{printed}");
    for name in names {
        let read = |ending: &str| fs::read_to_string(out.join(name).with_extension(ending)).expect("a file");
        let (csv, svg) = (read("csv"), read("svg"));
        assert!(
            csv.contains("a short run: no figure") && csv.contains("; a test;"),
            "{csv}"
        );
        assert!(svg.contains("paper ") && !svg.contains("NaN"), "{svg}");
        let series = match name {
            "nv-logging-9" => vec!["memcpy", "mmap", "file-system"],
            "nv-logging-11" => vec!["nv-disk", "nv-logging"],
            _ => vec![
                "nv-disk",
                "nv-disk-decentralised",
                "distributed",
                "nv-logging-commit",
                "nv-logging-insert",
                "nv-logging-insert-fence",
            ],
        };
        for series in series {
            let line = csv.lines().find_map(|line| line.strip_prefix(&format!("{series},")));
            let median = line.and_then(|line| line.split(',').nth(1)?.parse::<f64>().ok());
            assert!(median.is_some_and(|median| median > 0.0), "{series}: {csv}");
        }
    }
    assert_eq!(fs::read_dir(&nvram).expect("a folder").count(), 0, "something is left");
}

#[test]
fn what_there_is_not_is_said() {
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
