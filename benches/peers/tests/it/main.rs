//! Every peer that this machine has runs the calls, and its rows are checked. One that is missing is named.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

const PEERS: [&str; 5] = ["Reprise", "PostgreSQL", "Redis", "Valkey", "SQLite"];

/// The program's output.
struct Printed {
    succeeded: bool,
    out: String,
    errors: String,
}

fn peers(args: &[&str]) -> Printed {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(env!("CARGO_BIN_EXE_reprise-bench-peers"));
    command.arg("--modules").arg(root.join("target/procedures")).args(args);
    let output = command.output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Printed {
        succeeded: output.status.success(),
        out: text(&output.stdout),
        errors: text(&output.stderr),
    }
}

/// Runs these figures with every peer of this machine, and looks for the rows of each.
fn check_drawn(figures: &[&str]) {
    let dir = tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir()
        .expect("a directory");
    let (out, place) = (dir.path().join("figures"), dir.path().join("place"));
    fs::create_dir(&place).expect("a directory");
    let (out_text, place_text) = (out.to_str().expect("text"), place.to_str().expect("text"));
    let mut args = vec!["--tiny", "--build", "a test", "--out", out_text, "--dir", place_text];
    figures.iter().for_each(|figure| args.extend(["--figure", *figure]));
    let printed = peers(&args);
    print!("{}{}", printed.out, printed.errors);
    let is_missing = |peer: &str| {
        printed
            .out
            .contains(&format!("{peer} is not installed and has no rows: "))
    };
    if PEERS.into_iter().all(is_missing) {
        assert!(printed.errors.contains("no peer is installed"));
        return;
    }
    assert!(printed.succeeded, "{}", printed.errors);
    for name in figures {
        let read = |ending: &str| fs::read_to_string(out.join(format!("peers-{name}.{ending}"))).expect("a file");
        let (csv, svg) = (read("csv"), read("svg"));
        assert!(
            csv.contains("a short run: no figure") && csv.contains("; a test;"),
            "{csv}"
        );
        assert!(!csv.contains("NaN") && !svg.contains("NaN"), "{csv}");
        for peer in PEERS {
            let row = format!("durable at each commit,{peer}");
            let rates = csv.lines().filter(|line| line.contains(&row));
            let rates: Vec<_> = rates
                .filter_map(|line| line.split(',').nth(2)?.parse::<f64>().ok())
                .collect();
            // A cell is empty if no answer fell into the short window.
            let has_rows = csv.lines().any(|line| line.contains(&row));
            assert_eq!(has_rows, !is_missing(peer), "{peer}: {csv}");
            assert!(rates.iter().all(|rate| *rate > 0.0), "{peer}: {csv}");
        }
    }
    assert_eq!(fs::read_dir(&place).expect("a folder").count(), 0, "something is left");
}

#[test]
fn every_installed_peer_runs_the_calls_and_a_missing_one_is_named() {
    check_drawn(&["voter", "transfer"]);
}

#[test]
#[ignore = "takes half a minute; the same code draws votes and transfers in the test beside it"]
fn every_workload_is_drawn() {
    check_drawn(&["zipf", "tpcb", "new-order"]);
}

#[test]
fn figure_is_refused_when_there_is_none() {
    let printed = peers(&["--figure", "tpcc"]);
    assert!(
        !printed.succeeded && printed.errors.contains("there is no figure tpcc here"),
        "{}",
        printed.errors
    );
}
