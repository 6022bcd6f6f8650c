//! Seeds of the simulation, as many as asked for.
#![forbid(unsafe_code)]

use std::{
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use clap::Parser;
use reprise_test_sim::{FailoverMutant, FailoverOptions, FailoverStats, Found, Options, Stats, run, run_failovers};

/// Runs seeds of the simulation; the first that finds something is printed, and ends it with status 1.
#[derive(Parser)]
#[command(name = "sim")]
struct Cli {
    /// How many seeds
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Seeds that run at once, each in one thread
    #[arg(long, default_value_t = 1)]
    threads: u64,
    /// Three nodes and the network between them instead of one: failovers at every step
    #[arg(long)]
    failovers: bool,
    /// A known bug that is armed, with `--failovers`
    #[arg(long, value_parser = mutant_of)]
    mutant: Option<FailoverMutant>,
    /// The known bug under whose settings seeds run, with `--failovers`; it is not armed
    #[arg(long, value_parser = mutant_of)]
    as_for: Option<FailoverMutant>,
    /// Go on after a seed that finds something
    #[arg(long)]
    keep_going: bool,
    /// Tell what happens
    #[arg(long)]
    verbose: bool,
}

fn mutant_of(name: &str) -> Result<FailoverMutant, String> {
    FailoverMutant::from_name(name).ok_or_else(|| "no known bug has this name".to_owned())
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.failovers {
        true => {
            let options = FailoverOptions {
                mutant: cli.mutant,
                as_for: cli.as_for,
                is_verbose: cli.verbose,
            };
            let add = |total: &mut FailoverStats, one: &FailoverStats| total.add(one);
            run_all(&cli, |seed| run_failovers(seed, options), (add, FailoverStats::list))
        }
        false => {
            let options = Options {
                mutant: None,
                is_verbose: cli.verbose,
            };
            let add = |total: &mut Stats, one: &Stats| total.add(one);
            run_all(&cli, |seed| run(seed, options), (add, Stats::list))
        }
    }
}

/// Runs the seeds; how what happened in them is added up and listed.
fn run_all<S: Default + Copy + Send>(
    cli: &Cli,
    run: impl Fn(u64) -> Result<S, Found> + Sync,
    (add, list): (fn(&mut S, &S), fn(&S) -> Vec<(&'static str, u64)>),
) -> ExitCode {
    let begun = Instant::now();
    let (next, is_over) = (AtomicU64::new(cli.from), AtomicBool::new(false));
    let total = Mutex::new((S::default(), 0u64, 0u64));
    let work = || {
        while !is_over.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= cli.from + cli.seeds {
                return;
            }
            let ran = run(seed);
            let mut total = total.lock().expect("held to count");
            match ran {
                Ok(stats) => {
                    add(&mut total.0, &stats);
                    total.2 += 1;
                }
                Err(found) => {
                    println!("{found}");
                    total.1 += 1;
                    is_over.store(!cli.keep_going, Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        (0..cli.threads.max(1)).for_each(|_| drop(scope.spawn(work)));
    });
    let (stats, found, whole) = *total.lock().expect("all are over");
    let seconds = begun.elapsed().as_secs_f64();
    let listed = list(&stats).into_iter().map(|(name, count)| format!("{name} {count}"));
    println!("{}", listed.collect::<Vec<_>>().join(", "));
    println!(
        "{:.0} seeds a minute, {found} found something",
        whole as f64 / seconds * 60.0
    );
    match found {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
