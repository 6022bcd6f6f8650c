//! Each figure is drawn: a short run with every log, whose workload checks what it left.

use reprise_bench_figures::check::FigureProgram;

const PROGRAM: FigureProgram = FigureProgram {
    executable: env!("CARGO_BIN_EXE_reprise-bench-command-logging"),
    flags: &[],
    folder_flags: &["--dir"],
    prefix: "command-logging-",
    drawn: "paper ",
    may_be_zero: false,
};

const LOGS: [&str; 3] = ["none", "command", "physiological"];

#[test]
fn throughput_latency_and_replay_of_voter_are_drawn() {
    let replay = ["command", "physiological"];
    PROGRAM.check_drawn(&["3", "4", "5"], &[("3", &LOGS), ("4", &LOGS), ("5", &replay)]);
}

#[test]
#[ignore = "loads TPC-C for each log; the same code draws Voter in the test beside it"]
fn bytes_of_both_workloads_and_cut_records_are_drawn() {
    let cut = ["command", "physiological", "physiological-cut"];
    let tables = FigureProgram {
        drawn: "Section V-C",
        ..PROGRAM
    };
    tables.check_drawn(&["bytes", "cut"], &[("bytes", &LOGS[1..]), ("cut", &cut)]);
}

#[test]
#[ignore = "takes a minute; the same code draws Voter in the test beside it"]
fn figures_of_tpcc_are_drawn() {
    PROGRAM.check_drawn(&["6", "8"], &[("6", &LOGS), ("8", &LOGS[1..])]);
}

#[test]
#[ignore = "takes a minute; the same code draws Voter in the test beside it"]
fn distributed_transactions_are_drawn() {
    PROGRAM.check_drawn(&["9", "11"], &[("9", &LOGS), ("11", &["run", "replay"])]);
}

#[test]
fn figure_is_refused_when_there_is_none() {
    let told = PROGRAM.run(&["--figure", "10"]).expect_err("no such figure");
    assert!(told.contains("there is no figure 10 here"), "{told}");
}
