//! The model by hand: `reprise-model`, or `reprise-model --walks COUNT`.
//! Owns: the bounds of searches and walks that are longer than those of the tests.
//! Does not: decide what is a fault; that is the library.
//! Invariants: none.
//! Called by: people.

use std::{process::ExitCode, time::Instant};

use reprise_test_model::{Bounds, LARGE_SETTINGS, SETTINGS, Setting, search, walk};

/// Bounds of a search by hand.
const DEEP: Bounds = Bounds {
    entries: 3,
    faults: 2,
    acts: 2,
    epochs: 4,
    states: 5_000_000,
};
const WALKED: Bounds = Bounds {
    entries: 4,
    faults: 2,
    acts: 4,
    epochs: 6,
    states: 0,
};
const STEPS: usize = 60;

/// Returns the property that does not hold, and how to come there.
fn check(setting: Setting, walks: Option<u64>) -> Option<String> {
    let begun = Instant::now();
    let Some(walks) = walks else {
        let report = search(setting, DEEP);
        println!("{setting}: {report}");
        return report.fault.map(|(fault, acts)| format!("{fault}\n{acts:#?}"));
    };
    let found = (0..walks).find_map(|seed| Some((seed, walk(setting, WALKED, seed, STEPS)?)));
    println!(
        "{setting}: {walks} walks of {STEPS} steps, {:.1} s",
        begun.elapsed().as_secs_f64()
    );
    found.map(|(seed, (fault, acts))| format!("seed {seed}: {fault}\n{acts:#?}"))
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let walks = match &args[..] {
        [] => None,
        [flag, count] if flag == "--walks" && count.parse::<u64>().is_ok() => count.parse().ok(),
        _ => {
            println!("usage: reprise-model [--walks COUNT]");
            return ExitCode::from(2);
        }
    };
    let settings = SETTINGS
        .into_iter()
        .chain(LARGE_SETTINGS.into_iter().filter(|_| walks.is_some()));
    let faults: Vec<_> = settings.filter_map(|setting| check(setting, walks)).collect();
    faults.iter().for_each(|fault| println!("{fault}"));
    ExitCode::from(u8::from(!faults.is_empty()))
}
