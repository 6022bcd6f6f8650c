//! Draws figures 1, 5, 6, 7 and 8 of "OLTP Through the Looking Glass" with what is counted here.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use reprise_bench_figures::processor;
use reprise_bench_looking_glass::{
    bars::{ADDING, REMOVAL, builds},
    callgrind,
    chart::StackChart,
    figures::{BarResult, Evaluation, check_repeat},
    run::{Bar, run},
    work::{Calls, Kind, Scale},
};

/// Draws the breakdown of "OLTP Through the Looking Glass"
#[derive(Parser)]
#[command(name = "reprise-bench-looking-glass", version)]
struct Args {
    /// Which: 1, 5, 6, 7, 8 [default: all]
    #[arg(long = "figure")]
    figures: Vec<u32>,
    /// Folder for NAME.csv and NAME.svg
    #[arg(long, value_name = "DIR", default_value = "target/figures")]
    out: PathBuf,
    /// A run of seconds on a part of a warehouse: whether it works, and no figure
    #[arg(long)]
    short: bool,
    /// Counts of each bar; they may differ by 0.1 %
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=10))]
    runs: u32,
    /// Folder of NAME.wasm; without it, no bar of wasm
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// The build, for the figures' captions
    #[arg(long, default_value = concat!("reprise ", env!("CARGO_PKG_VERSION")))]
    build: String,
    /// Runs one bar and prints the digest of its rows: what a count runs under callgrind
    #[arg(long, hide = true)]
    bar: Option<String>,
}

const FIGURES: [u32; 5] = [1, 5, 6, 7, 8];

fn main() -> Result<()> {
    let args = Args::parse();
    let scale = if args.short { Scale::TINY } else { Scale::PAPER };
    if let Some(bar) = &args.bar {
        let report = run(&parse_bar(bar)?, &Calls::draw(scale)?, scale)?;
        println!("{}", report.digest);
        return Ok(());
    }
    let unknown = args.figures.iter().find(|asked| !FIGURES.contains(asked));
    ensure!(
        unknown.is_none(),
        "there is no figure {unknown:?} here: 1, 5, 6, 7 and 8 are"
    );
    let evaluation = evaluate(&args, scale)?;
    print!("{}", evaluation.table()?);
    let charts: [StackChart; 5] = [
        evaluation.figure_1()?,
        evaluation.figure_5_or_6(Kind::Payment)?,
        evaluation.figure_5_or_6(Kind::NewOrder)?,
        evaluation.figure_7()?,
        evaluation.figure_8()?,
    ];
    for (number, chart) in FIGURES.into_iter().zip(charts) {
        if args.figures.is_empty() || args.figures.contains(&number) {
            chart.write(&args.out)?;
        }
    }
    Ok(())
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

/// Runs every bar, counts it, and holds its rows against ours.
fn evaluate(args: &Args, scale: Scale) -> Result<Evaluation> {
    let calls = Calls::draw(scale)?;
    let of_kind = |kind| calls.run.iter().filter(|(of, _)| *of == kind).count() as u64;
    let mut evaluation = Evaluation {
        builds: BTreeMap::new(),
        others: Vec::new(),
        transactions: Kind::ALL.map(of_kind),
        conditions: conditions(args, scale),
    };
    let ours = measure(args, &Bar::Ours, &calls, scale, None)?;
    let digest = ours.report.digest.to_string();
    evaluation.others.push(("ours, native".into(), ours));
    if let Some(modules) = &args.modules {
        let bar = Bar::Wasm(modules.join("tpcc.wasm"));
        let wasm = measure(args, &bar, &calls, scale, Some(&digest))?;
        evaluation.others.push(("ours, wasm".into(), wasm));
    }
    let redb = measure(args, &Bar::Redb, &calls, scale, Some(&digest))?;
    evaluation.others.push(("redb".into(), redb));
    // The kernel has no rows: it counts its orders and payments itself.
    let kernel = measure(args, &Bar::Kernel, &calls, scale, None)?;
    evaluation.others.push(("typed kernel".into(), kernel));
    for parts in builds(&REMOVAL).into_iter().chain(builds(&ADDING)) {
        if !evaluation.builds.contains_key(&parts) {
            let measured = measure(args, &Bar::Paged(parts), &calls, scale, Some(&digest))?;
            evaluation.builds.insert(parts, measured);
        }
    }
    Ok(evaluation)
}

fn conditions(args: &Args, scale: Scale) -> String {
    let what = if args.short { "; a short run: no figure" } else { "" };
    format!(
        "{}; {}; {} transactions, half New-Order, {} warehouses of {} parts, seed {}; {} counts each{what}.",
        processor(),
        args.build,
        scale.transactions,
        scale.warehouses,
        scale.parts,
        scale.seed,
        args.runs
    )
}

/// Runs a bar in this process for its time, and under callgrind for its instructions.
fn measure(args: &Args, bar: &Bar, calls: &Calls, scale: Scale, digest: Option<&str>) -> Result<BarResult> {
    let begun = Instant::now();
    let report = run(bar, calls, scale).with_context(|| format!("run {bar:?}"))?;
    let found = report.digest.to_string();
    let expected = digest.unwrap_or(&found).trim();
    ensure!(found.trim() == expected, "{bar:?} left other rows than our engine");
    let mut counted = None;
    for _ in 0..args.runs {
        let again = count(args, bar, expected)?;
        match &counted {
            None => counted = Some(again),
            Some(first) => check_repeat(bar, first, &again)?,
        }
    }
    eprintln!("{}: {:.0} s", bar_text(bar), begun.elapsed().as_secs_f64());
    Ok(BarResult {
        counted: counted.context("one count at least")?,
        report,
    })
}

fn count(args: &Args, bar: &Bar, digest: &str) -> Result<[callgrind::CallgrindCounts; 2]> {
    let folder = tempfile::tempdir()?;
    let text = bar_text(bar);
    let mut words: Vec<&OsStr> = vec!["--bar".as_ref(), text.as_ref()];
    if args.short {
        words.push("--short".as_ref());
    }
    let program = std::env::current_exe()?;
    let (printed, counted) = callgrind::count(Path::new(&program), &words, folder.path())?;
    ensure!(printed.trim() == digest, "{text} left other rows under callgrind");
    Ok(counted)
}
