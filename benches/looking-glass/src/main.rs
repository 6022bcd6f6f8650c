//! Draws figures 1, 5, 6, 7 and 8 of "OLTP Through the Looking Glass" with counts of this build. Also draws its components beside published ones.
//! Owns: the order of the counts and the drawings, the flags.
//! Does not: run a transaction itself; hold a figure that was not counted.
//! Invariants: a run whose check fails draws nothing.
//! Called by: people, `cargo xtask figures looking-glass`, its own tests.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use reprise_bench_figures::{load, processor};
use reprise_bench_looking_glass::{
    bars::{ADDING, REMOVAL, builds},
    callgrind::{self, CallgrindCounts},
    chart::StackChart,
    components::{self, COMPONENTS},
    figures::{BarResult, Evaluation, check_repeat},
    run::{Bar, Report, counted_transactions, run},
    work::{Calls, Kind, Scale},
};

/// Draws the breakdown of "OLTP Through the Looking Glass"
#[derive(Parser)]
#[command(name = "reprise-bench-looking-glass", version)]
struct Args {
    /// Which: 1, 5, 6, 7, 8, components (beside published ones) [default: all]
    #[arg(long = "figure")]
    figures: Vec<String>,
    /// Folder for NAME.csv and NAME.svg
    #[arg(long, value_name = "DIR", default_value = "target/figures")]
    out: PathBuf,
    /// A run of seconds on a part of a warehouse: whether it works, and no figure
    #[arg(long)]
    short: bool,
    /// Counts of each bar at full length; they may differ by 0.1 %
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10))]
    runs: u32,
    /// Folder of NAME.wasm; without it, wasm is not timed
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// The build, for the figures' captions
    #[arg(long, default_value = concat!("reprise ", env!("CARGO_PKG_VERSION")))]
    build: String,
    /// Runs one bar and prints the digest of its rows: what a count runs under callgrind
    #[arg(long, hide = true)]
    bar: Option<String>,
}

/// Runs of each bar outside of callgrind, for its processor time.
const TIMED_ROUNDS: u32 = 3;
/// Figures that share the counts of the bars.
const FIGURES: [&str; 5] = ["1", "5", "6", "7", "8"];
const COMPONENTS_FIGURE: &str = "components";

fn main() -> Result<()> {
    let args = Args::parse();
    let scale = if args.short { Scale::SHORT } else { Scale::PAPER };
    if let Some(bar) = &args.bar {
        let printed = match bar.strip_prefix("component:") {
            Some(name) => components::run(name)?.to_string(),
            None => run(&parse_bar(bar)?, &Calls::draw(scale)?, scale)?.digest.to_string(),
        };
        println!("{printed}");
        return Ok(());
    }
    let is_known = |asked: &&String| FIGURES.contains(&asked.as_str()) || *asked == COMPONENTS_FIGURE;
    let unknown = args.figures.iter().find(|asked| !is_known(asked));
    ensure!(
        unknown.is_none(),
        "there is no figure {} here: 1, 5, 6, 7, 8 and components are",
        unknown.map_or("", String::as_str)
    );
    let is_asked = |name: &str| args.figures.is_empty() || args.figures.iter().any(|asked| asked == name);
    if is_asked(COMPONENTS_FIGURE) {
        draw_components(&args)?;
    }
    if !FIGURES.into_iter().any(is_asked) {
        return Ok(());
    }
    let evaluation = evaluate(&args, scale)?;
    print!("{}", evaluation.table()?);
    let charts: [StackChart; 5] = [
        evaluation.figure_1()?,
        evaluation.figure_5_or_6(Kind::Payment)?,
        evaluation.figure_5_or_6(Kind::NewOrder)?,
        evaluation.figure_7()?,
        evaluation.figure_8()?,
    ];
    for (name, chart) in FIGURES.into_iter().zip(charts) {
        if is_asked(name) {
            chart.write(&args.out)?;
        }
    }
    Ok(())
}

/// Counts each component beside its published counterpart, one after the other.
fn draw_components(args: &Args) -> Result<()> {
    let mut counted = Vec::new();
    for component in &COMPONENTS {
        let (_, counts) = count_bar(&format!("component:{}", component.name), false)?;
        counted.push(counts);
    }
    let what = if args.short { "; a short run: no figure" } else { "" };
    let conditions = format!("{}; {}{what}.", processor(), args.build);
    components::chart(&counted, conditions, args.short)?.write(&args.out)
}

fn bar_text(bar: &Bar) -> String {
    match bar {
        Bar::Paged(parts) => parts.to_string(),
        Bar::Ours => "ours".into(),
        Bar::Wasm(path) => format!("wasm:{}", path.display()),
        Bar::Redb => "redb".into(),
        Bar::Kernel => "kernel".into(),
    }
}

fn parse_bar(text: &str) -> Result<Bar> {
    Ok(match text.split_once(':') {
        Some(("wasm", path)) => Bar::Wasm(path.into()),
        _ if text == "ours" => Bar::Ours,
        _ if text == "redb" => Bar::Redb,
        _ if text == "kernel" => Bar::Kernel,
        _ => Bar::Paged(
            text.parse()
                .context("a bar is a number of parts, ours, wasm:PATH, redb, or kernel")?,
        ),
    })
}

/// A bar, with its name where it is no build.
type NamedBar = (Option<&'static str>, Bar);

/// Every bar.
fn bars(args: &Args) -> Vec<NamedBar> {
    let mut bars = vec![(Some("ours native"), Bar::Ours)];
    if let Some(modules) = &args.modules {
        bars.push((Some("ours wasm"), Bar::Wasm(modules.join("tpcc.wasm"))));
    }
    bars.extend([(Some("redb"), Bar::Redb), (Some("typed kernel"), Bar::Kernel)]);
    let mut parts = builds(&REMOVAL);
    parts.extend(builds(&ADDING));
    parts.sort_unstable();
    parts.dedup();
    bars.extend(parts.into_iter().map(|parts| (None, Bar::Paged(parts))));
    bars
}

/// Runs every bar alone for its time, then all under callgrind, and holds the rows of each run against ours.
fn evaluate(args: &Args, scale: Scale) -> Result<Evaluation> {
    let load = load();
    let (calls, bars) = (Calls::draw(scale)?, bars(args));
    let reports = time_all(&bars, &calls, scale, if args.short { 1 } else { TIMED_ROUNDS })?;
    let of_kind = |kind| calls.run.iter().filter(|(of, _)| *of == kind).count() as u64;
    let counted = counted_transactions(&calls);
    let mut evaluation = Evaluation {
        builds: BTreeMap::new(),
        others: Vec::new(),
        transactions: Kind::ALL.map(of_kind),
        counted,
        load,
        conditions: conditions(args, scale, counted.iter().sum()),
    };
    let counted = count_all(args, &bars, &reports)?;
    for (((name, bar), report), counted) in bars.into_iter().zip(reports).zip(counted) {
        let result = BarResult { counted, report };
        match (name, bar) {
            (None, Bar::Paged(parts)) => drop(evaluation.builds.insert(parts, result)),
            (name, _) => evaluation.others.push((name.unwrap_or_default().to_owned(), result)),
        }
    }
    Ok(evaluation)
}

/// Runs all bars in turn, some rounds, and holds the rows of each run against ours. A bar's time is the least of its rounds: other
/// work of the machine only adds to it.
fn time_all(bars: &[NamedBar], calls: &Calls, scale: Scale, rounds: u32) -> Result<Vec<Report>> {
    let mut reports: Vec<Report> = Vec::new();
    for round in 0..rounds {
        for (at, (_, bar)) in bars.iter().enumerate() {
            let report = run(bar, calls, scale).with_context(|| format!("run {bar:?}"))?;
            let has_our_rows = at == 0 || *bar == Bar::Kernel || reports[0].digest == report.digest;
            ensure!(has_our_rows, "{bar:?} left other rows than our engine");
            match reports.get_mut(at) {
                None => reports.push(report),
                Some(first) => first.keep_least_time(&report),
            }
            eprintln!("{}: ran, round {} of {rounds}", bar_text(bar), round + 1);
        }
    }
    Ok(reports)
}

/// The counts of each bar: as often as asked, on as many threads as there are processors.
fn count_all(args: &Args, bars: &[NamedBar], reports: &[Report]) -> Result<Vec<[CallgrindCounts; 2]>> {
    let (next, threads) = (AtomicUsize::new(0), thread::available_parallelism()?.get());
    let done = Mutex::new(BTreeMap::new());
    let work = || -> Result<()> {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((_, bar)) = bars.get(at) else {
                return Ok(());
            };
            let digest = reports[at].digest.to_string();
            // Valgrind does not run what wasmtime compiles: the bar of wasm has its time alone.
            let first = match bar {
                Bar::Wasm(_) => Default::default(),
                _ => count(args, bar, digest.trim())?,
            };
            if !matches!(bar, Bar::Wasm(_)) {
                for _ in 1..args.runs {
                    check_repeat(bar, &first, &count(args, bar, digest.trim())?)?;
                }
                if !args.short {
                    check_short_counts(bar)?;
                }
            }
            eprintln!("{}: counted", bar_text(bar));
            done.lock().expect("no thread panics").insert(at, first);
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut ended = threads
            .into_iter()
            .map(|thread| thread.join().expect("no thread panics"));
        ended.try_for_each(|result| result)
    })?;
    Ok(done.into_inner().expect("no thread panics").into_values().collect())
}

fn conditions(args: &Args, scale: Scale, counted: u64) -> String {
    let what = if args.short { "; a short run: no figure" } else { "" };
    format!(
        "{}; {}; seed {}; {} transactions, half New-Order, warehouses: {}, of {} parts each; {counted} of them counted; runs of each count: {}{what}.",
        processor(),
        args.build,
        scale.seed,
        scale.transactions,
        scale.warehouses,
        scale.parts,
        args.runs
    )
}

fn count(args: &Args, bar: &Bar, digest: &str) -> Result<[CallgrindCounts; 2]> {
    let (printed, counted) = count_run(bar, args.short)?;
    ensure!(printed == digest, "{bar:?} left other rows under callgrind");
    Ok(counted)
}

/// Counts a short run twice: what makes two counts differ (addresses, seeds of hashes) does so at any length.
fn check_short_counts(bar: &Bar) -> Result<()> {
    let [(rows, one), (others, other)] = [count_run(bar, true)?, count_run(bar, true)?];
    ensure!(rows == others, "two short runs of {bar:?} left different rows");
    check_repeat(bar, &one, &other)
}

/// Runs a bar under callgrind: the digest that it printed, and its counts.
fn count_run(bar: &Bar, is_short: bool) -> Result<(String, [CallgrindCounts; 2])> {
    count_bar(&bar_text(bar), is_short)
}

/// Runs this program with `--bar` under callgrind: what it printed, and its counts.
fn count_bar(text: &str, is_short: bool) -> Result<(String, [CallgrindCounts; 2])> {
    let folder = tempfile::tempdir()?;
    let mut words: Vec<&OsStr> = vec!["--bar".as_ref(), text.as_ref()];
    if is_short {
        words.push("--short".as_ref());
    }
    let program = std::env::current_exe()?;
    let (printed, counted) = callgrind::count(Path::new(&program), &words, folder.path())?;
    Ok((printed.trim().to_owned(), counted))
}
