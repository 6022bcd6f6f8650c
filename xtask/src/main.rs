//! The command line of `cargo xtask`.
//! Owns: the names of the commands and their flags.
//! Does not: do the work; that is the library.
//! Invariants: exit status 0 = done, 1 = failed, 2 = bad usage.
//! Called by: people, the Makefile, continuous integration.
#![forbid(unsafe_code)]

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use reprise_build::ToolchainChoice;
use xtask::{
    cost, coverage, evaluation, fuzz, lines, package, quick, root,
    stages::{self, Stage},
    tasks, tidy, words,
};

/// One command per task of the project.
#[derive(Parser)]
#[command(name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build guest crates to wasm: procedures/* into target/procedures/NAME.wasm, or a crate of your own
    #[command(after_help = "Examples:\n  cargo xtask wasm\n  cargo xtask wasm --manifest-path ../shop")]
    Wasm {
        /// A crate outside of this workspace (its directory or Cargo.toml); the result goes to its own target/procedures
        #[arg(long, value_name = "DIR")]
        manifest_path: Option<PathBuf>,
        /// Directory of the .wasm files
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Use this way of building instead of the first that works
        #[arg(long, value_enum)]
        toolchain: Option<ToolchainChoice>,
        /// Only these crates of procedures/
        names: Vec<String>,
    },
    /// Clippy over everything with warnings as errors, then tidy
    #[command(after_help = "Example:\n  cargo xtask check")]
    Check,
    /// Build and run the tests, stage by stage; without a stage all of them
    #[command(after_help = "Example:\n  cargo xtask test unit sim")]
    Test { stages: Vec<Stage> },
    /// Test what a change in these crates most likely breaks; without a crate: the crates that differ from the main branch
    #[command(after_help = "Examples:\n  cargo xtask quick\n  cargo xtask quick storage http")]
    Quick {
        /// By package (reprise-log), folder (runtime/log) or short name (log)
        crates: Vec<String>,
    },
    /// Count the instructions of calls under callgrind and compare them with benches/cost/instructions.txt
    #[command(after_help = "Example:\n  cargo xtask cost")]
    Cost {
        /// Write the counts to the list
        #[arg(long)]
        bless: bool,
    },
    /// Count code, tests and comments of each crate
    #[command(after_help = "Example:\n  cargo xtask lines")]
    Lines,
    /// Measure sentences, comments and names by the rules of the house language
    #[command(after_help = "Example:\n  cargo xtask words")]
    Words,
    /// Hold the tree to its rules: layers, lengths, headers, banned calls, the architecture page
    #[command(after_help = "Example:\n  cargo xtask tidy")]
    Tidy {
        /// Take off the list of ratchets what keeps its rule now, and write the counts that have fallen
        #[arg(long)]
        bless: bool,
    },
    /// Kill the server under load again and again and look for lost or repeated transactions
    #[command(
        after_help = "Examples:\n  cargo xtask crash --cycles 1000\n  cargo xtask crash --workload tpcc --cycles 20\n  cargo xtask crash --workload schemas --cycles 2000"
    )]
    Crash {
        /// kill -9 and restart this many times
        #[arg(long, default_value_t = 1_000)]
        cycles: u32,
        /// Repeat the run of this seed
        #[arg(long)]
        seed: Option<u64>,
        /// Form of the servers' log: command, physiological, auto, both, or (mixed) another at each start
        #[arg(long, value_name = "KIND")]
        log: Option<String>,
        /// Device that a commit waits for: file, nvram (a region in a file), or (mixed) either at each start
        #[arg(long, value_name = "KIND")]
        device: Option<String>,
        /// Load tpcc, tpcb or tatp, or change tables meanwhile (schemas), in place of bank and voter together
        #[arg(long)]
        workload: Option<String>,
    },
    /// Lose the primary of three servers under load again and again, and look for lost or repeated transactions
    #[command(
        after_help = "Examples:\n  cargo xtask failover --by-hand 100\n  cargo xtask failover --by-hand 100 --safety quorum\n  cargo xtask failover --by-lease 100\n  cargo xtask failover --rdma --by-hand 10 --by-lease 10"
    )]
    Failover {
        /// Flags of the failovers: --by-hand N, --by-lease N, --safety LEVEL, --device KIND, --seed S, --rdma (in a virtual machine)
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Cut the power of a loaded server in a virtual machine, and open what may be left of its disk
    #[command(after_help = "Example:\n  cargo xtask power --seconds 20 --points 0")]
    Power {
        /// Flags of the power test: --seconds N, --points N, --seed S, --log KIND
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Cut the power of a loaded server on an emulated NVDIMM in a virtual machine, again and again
    #[command(after_help = "Example:\n  cargo xtask nvdimm --kills 50")]
    Nvdimm {
        /// Flags of the test: --kills N, --seed S
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Measure single calls beside 20 plans of a deployment over 3 million rows, in turn with calls alone
    #[command(after_help = "Example:\n  cargo xtask plans")]
    Plans,
    /// Live ordinarily at speed: calls, deployments, rotated tokens, checkpoints, backups, a standby that leaves and comes
    #[command(after_help = "Example:\n  cargo xtask life --seconds 3600")]
    Life {
        /// How long
        #[arg(long, default_value_t = 3_600)]
        seconds: u64,
    },
    /// Fill the memory of a control group with votes, kill the server, and open it again there
    #[command(after_help = "Example:\n  cargo xtask full --mib 700")]
    Full {
        /// Memory of the group
        #[arg(long, default_value_t = 700)]
        mib: u64,
    },
    /// List the tests that the last `make test` left out
    #[command(after_help = "Example:\n  cargo xtask skipped")]
    Skipped,
    /// Run the engine on a disk that fails, crashes and rots, in one thread, by seeds
    #[command(
        after_help = "Examples:\n  cargo xtask sim --seeds 100000 --threads 2\n  cargo xtask sim --from 4711 --seeds 1 --verbose"
    )]
    Sim {
        /// Flags of the simulation: --seeds N, --from SEED, --threads N, --keep-going, --verbose
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Print which lines of the engine the seeds of the simulation reach, by crate
    #[command(after_help = "Example:\n  cargo xtask sim-coverage --seeds 2000 --threads 2")]
    SimCoverage {
        /// How many seeds
        #[arg(long, default_value_t = 1_000)]
        seeds: u64,
        /// Seeds that run at once
        #[arg(long, default_value_t = 1)]
        threads: u64,
        /// How many chains of deployments
        #[arg(long, default_value_t = 300)]
        chains: u64,
    },
    /// Run chains of deployments that change tables, with checkpoints and kills, beside a model
    #[command(
        after_help = "Examples:\n  cargo xtask schemas --chains 10000\n  cargo xtask schemas --chains 1 --seed 4711 --verbose"
    )]
    Schemas {
        /// Flags of the chains: --chains N, --seed FIRST, --verbose
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Fuzz a decoder with coverage; the corpus in fuzz/corpus grows
    #[command(after_help = "Examples:\n  cargo xtask fuzz records --seconds 60\n  cargo xtask fuzz records --merge")]
    Fuzz {
        /// One of `TARGETS` in tests/fuzz-targets
        target: String,
        /// How long
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Also build the targets that need the host of wasm or HTTP
        #[arg(long)]
        engine: bool,
        /// Keep the smallest corpus that covers the same, and nothing else
        #[arg(long)]
        merge: bool,
    },
    /// Benchmarks: the arguments go to `reprise-bench`
    #[command(after_help = "Example:\n  cargo xtask bench voter --seconds 5")]
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Draw a paper's figures with measurements of this machine, as CSV and SVG; the arguments behind it go to the measurements
    #[command(
        after_help = "Examples:\n  cargo xtask figures command-logging --figure 3\n  cargo xtask figures looking-glass\n  cargo xtask figures nvram\n  cargo xtask figures nvram --short\n  cargo xtask figures nvram --figure 12 --nvram /mnt/pmem0\n  cargo xtask figures query-fresh --figure 7\n  cargo xtask figures peers --figure voter\n  cargo xtask figures rdma 5"
    )]
    Figures {
        /// Paper: command-logging, Rethinking Main Memory OLTP Recovery's 3 to 9 and 11, and its bytes; looking-glass, OLTP Through the
        /// Looking Glass's 1, 5, 6, 7 and 8; nvram, NV-Logging's 9, 11, 12 and 13; query-fresh, its table 1
        /// and figures 6 to 12 over TCP on the loopback; rdma, Query Fresh's 6 and 11 over TCP and RDMA in a virtual machine (seconds);
        /// peers, this server beside PostgreSQL, Redis, Valkey and SQLite
        #[arg(value_parser = ["command-logging", "looking-glass", "nvram", "peers", "query-fresh", "rdma"])]
        paper: String,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Draw the papers' figures into docs/figures, and write docs/EVALUATION.md from them
    #[command(
        after_help = "Examples:\n  cargo xtask evaluation\n  cargo xtask evaluation looking-glass query-fresh-7\n  cargo xtask evaluation --quick\n  cargo xtask evaluation --page"
    )]
    Evaluation {
        /// Papers (looking-glass, command-logging, nv-logging, query-fresh, peers) or figures (looking-glass-5) [default: all]
        names: Vec<String>,
        /// Short runs into target/figures: whether everything works, and no figure
        #[arg(long)]
        quick: bool,
        /// Draw nothing: write the page from the figures in docs/figures
        #[arg(long, conflicts_with_all = ["names", "quick"])]
        page: bool,
    },
    /// Build target/package/reprise and reprise-bench: optimised as a whole, and by a profile of the sample workloads
    #[command(after_help = "Example:\n  cargo xtask package")]
    Package {
        /// Leave the profile out: half the time, and no llvm-profdata needed
        #[arg(long)]
        without_profile: bool,
    },
    /// Build the web console (npm ci, npm run build) where there is one
    #[command(after_help = "Example:\n  cargo xtask console")]
    Console,
}

fn main() -> ExitCode {
    let done = match Cli::parse().task {
        Task::Wasm {
            manifest_path,
            out,
            toolchain,
            names,
        } => tasks::wasm(&root(), manifest_path.as_deref(), names, out.as_deref(), toolchain),
        Task::Check => tasks::check(&root()),
        Task::Test { stages } => stages::test(&root(), &stages),
        Task::Quick { crates } => quick::quick(&root(), &crates),
        Task::Cost { bless } => cost::cost(&root(), bless),
        Task::Lines => lines::print(&root()),
        Task::Words => words::print(&root()),
        Task::Tidy { bless } => tidy::run(&root(), bless),
        Task::Crash {
            cycles,
            seed,
            log,
            device,
            workload,
        } => {
            let further = [("--log", log), ("--device", device), ("--workload", workload)];
            tasks::crash(&root(), cycles, seed, &further)
        }
        Task::Failover { args } => tasks::failover(&root(), &args),
        Task::Power { args } => tasks::hardware(&root(), "power", &args),
        Task::Nvdimm { args } => tasks::hardware(&root(), "nvdimm", &args),
        Task::Plans => tasks::plans(&root()),
        Task::Life { seconds } => tasks::life(&root(), seconds),
        Task::Full { mib } => tasks::full(&root(), mib),
        Task::Skipped => {
            tasks::skipped(&root());
            Ok(())
        }
        Task::Sim { args } => tasks::sim(&root(), "sim", &args),
        Task::SimCoverage { seeds, threads, chains } => coverage::sim(&root(), seeds, threads, chains),
        Task::Schemas { args } => tasks::sim(&root(), "schemas", &args),
        Task::Fuzz {
            target,
            seconds,
            engine,
            merge,
        } => fuzz::run(&root(), &target, seconds, engine, merge),
        Task::Bench { args } => tasks::bench(&root(), &args),
        Task::Figures { paper, args } => tasks::figures(&root(), &paper, &args),
        Task::Evaluation { page: true, .. } => evaluation::write_page(&root(), false),
        Task::Evaluation { names, quick, .. } => evaluation::draw(&root(), &names, quick),
        Task::Package { without_profile } => {
            let built = package::build(&root(), !without_profile);
            built.map(|paths| paths.iter().for_each(|path| println!("{}", path.display())))
        }
        Task::Console => tasks::console(&root()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
