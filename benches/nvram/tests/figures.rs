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
