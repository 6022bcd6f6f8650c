//! A bounded run of the simulation, and known bugs that it has to catch.

use reprise_test_sim::{Mutant, Options, Stats, run};

use crate::{counts_text, run_seeds};

/// However fast the machine is.
const SEEDS_MAX: u64 = 2_000;
/// Number of seeds within which each mutant is caught.
const MUTANT_SEEDS: u64 = 60;

#[test]
fn no_seed_finds_anything() {
    let mut total = Stats::default();
    let time = run_seeds(SEEDS_MAX, |seed| {
        let stats = run(seed, Options::default()).unwrap_or_else(|found| panic!("{found}"));
        total.add(&stats);
    });
    println!(
        "{}; {:.0} seeds a minute",
        counts_text(&total.list()),
        total.seeds as f64 * 60.0 / time.as_secs_f64()
    );
    // The events that the seeds exist for must occur.
    if total.seeds >= 300 {
        let never: Vec<_> = total.list().into_iter().filter(|(_, count)| *count == 0).collect();
        assert!(never.is_empty(), "never: {never:?}");
    }
}

#[test]
fn a_seed_does_the_same_each_time() {
    for seed in 1..8 {
        let stats = || format!("{:?}", run(seed, Options::default()).expect("finds nothing"));
        assert_eq!(stats(), stats(), "seed {seed}");
    }
}

/// Returns the violation that a mutant was caught with.
fn caught(mutant: Mutant) -> String {
    let options = Options {
        mutant: Some(mutant),
        ..Options::default()
    };
    let found = (0..MUTANT_SEEDS).find_map(|seed| run(seed, options).err());
    let found = found.unwrap_or_else(|| panic!("{mutant:?} lives"));
    println!("{mutant:?}: {found}");
    found.what
}

#[test]
fn every_mutant_is_caught() {
    let lives = Mutant::ALL.map(|mutant| std::panic::catch_unwind(|| caught(mutant)).is_err().then_some(mutant));
    let lives: Vec<_> = lives.into_iter().flatten().collect();
    assert!(lives.is_empty(), "not caught: {lives:?}");
}

/// The mutant is caught by its effect, not by a file that can't be read.
#[test]
fn a_mutant_is_caught_by_the_promise_that_it_breaks() {
    let found = [
        (Mutant::ForgedCheckpoint, &["after the opening", "diverges"][..]),
        (Mutant::DriftingCode, &["diverges", "expected"]),
        (Mutant::ForgedDigest, &["diverges"]),
        (Mutant::LostAnswer, &["never answered", "somebody waits"]),
        (Mutant::KeptAbort, &["marks", "items", "expected"]),
        (
            Mutant::LostGroup,
            &["the standby stopped", "the standby at LSN", "promoted at"],
        ),
        (Mutant::ForgottenKey, &["it had been committed", "ran again"]),
        (Mutant::LyingDisk, &["durable is", "expected"]),
        (Mutant::TrappingCall, &["no such answer"]),
    ];
    for (mutant, texts) in found {
        let what = caught(mutant);
        assert!(texts.iter().any(|text| what.contains(text)), "{mutant:?}: {what}");
    }
}
