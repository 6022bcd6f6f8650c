//! Each figure is drawn: a short run of every scheme, whose workload checks what it left.

use reprise_bench_figures::check::FigureProgram;

const PROGRAM: FigureProgram = FigureProgram {
    executable: env!("CARGO_BIN_EXE_reprise-bench-nvram"),
    flags: &["--sites", "1"],
    folder_flags: &["--nvram"],
    prefix: "nv-logging-",
    drawn: "paper ",
    may_be_zero: false,
};

const SCHEMES: [&str; 6] = [
    "nv-disk",
    "nv-disk-decentralised",
    "distributed",
    "nv-logging-commit",
    "nv-logging-insert",
    "nv-logging-insert-fence",
];

#[test]
fn writes_insertions_and_every_scheme_are_drawn() {
    PROGRAM.check_drawn(
        &["9", "11", "16"],
        &[
            ("9", &["memcpy", "mmap", "file-system"]),
            ("11", &["nv-disk", "nv-logging"]),
            ("16", &SCHEMES),
        ],
    );
}

#[test]
fn time_of_every_scheme_is_divided() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_str().expect("text");
    let args = [
        "--short", "--sites", "1", "--figure", "15", "--out", path, "--nvram", path,
    ];
    PROGRAM.run(&args).expect("drawn");
    let csv = std::fs::read_to_string(dir.path().join("nv-logging-15.csv")).expect("a file");
    for scheme in SCHEMES {
        let line = csv
            .lines()
            .find_map(|line| line.strip_prefix(&format!("TPC-B,{scheme},")));
        let cells = line.expect(scheme).split(',').step_by(2);
        let medians: Vec<f64> = cells.map(|cell| cell.parse().expect("a number")).collect();
        let [us, database, log, waiting, _] = medians[..] else {
            panic!("{medians:?}");
        };
        let sum = database + log + waiting;
        assert!(
            us > 0.0 && database > 0.0 && (99.0..=101.0).contains(&sum),
            "{scheme}: {medians:?}"
        );
    }
}

#[test]
#[ignore = "takes a minute; the test beside it runs the same schemes"]
fn throughput_of_every_workload_is_drawn() {
    PROGRAM.check_drawn(
        &["12", "13"],
        &[("12-sites-1", &SCHEMES), ("13-tatp", &SCHEMES), ("13-tpcb", &SCHEMES)],
    );
}

#[test]
fn missing_figures_are_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_str().expect("text");
    let told = PROGRAM
        .run(&["--figure", "10", "--out", path, "--nvram", path])
        .expect_err("no such figure");
    assert!(told.contains("there is no figure 10 here"), "{told}");
    assert_eq!(
        std::fs::read_dir(dir.path()).expect("a folder").count(),
        0,
        "something is left"
    );
    let told = PROGRAM
        .run(&["--short", "--out", path, "--nvram", "/proc/nowhere"])
        .expect_err("no such folder");
    assert!(told.contains("create /proc/nowhere"), "{told}");
}
