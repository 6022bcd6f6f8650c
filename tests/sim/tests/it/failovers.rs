//! A bounded run of failovers, and known bugs of replication that it has to catch.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Instant,
};

use reprise_test_sim::{FailoverMutant, FailoverOptions, FailoverStats, Found, run_failovers};

use crate::{counts_text, run_seeds};

/// However fast the machine is.
const SEEDS_MAX: u64 = 200;
/// With fewer something may not have happened yet.
const SEEDS_TOLD: u64 = 60;
/// Events that do not occur in every such run.
const RARE: [&str; 3] = ["lease_refused", "deployed_again", "restored"];
/// Seeds that found a fault once, with that fault.
const FOUND_ONCE: [(u64, &str); 23] = [
    (20_060, "a start that was refused left its epoch in the log"),
    (20_590, "a node whose promotion failed still counted as in sync"),
    (
        41_539,
        "an unknown record of the lease was taken for one that was not written",
    ),
    (501_703, "one server used an epoch twice"),
    (503_788, "one server used an epoch twice"),
    (513_439, "a taker that failed stayed in the record of the lease"),
    (
        526_275,
        "a primary acknowledged by a standby that came back from a later one",
    ),
    (616_327, "the judge expected a server to show what it had not heard of"),
    (3_157, "two servers used one epoch under the lease"),
    (20_868, "the judge took a write that was given up for a lost one"),
    (
        623_188,
        "a former primary wrote its old list into the record of the lease",
    ),
    (634_522, "a retired primary gave its place a second time"),
    (663_387, "a cut log was said to hold no acknowledged write"),
    (
        102,
        "a checkpoint of a former primary showed writes that no standby had",
    ),
    (115, "an accepted loss was forgotten at the second try"),
    (921_030, "a standby stayed bound to an epoch that two servers led"),
    (
        921_140,
        "a primary whose log failed after its promotion was refused as a standby",
    ),
    (
        921_346,
        "a standby in the first set of a new primary lacked what was acknowledged",
    ),
    (
        921_860,
        "a server opened as the primary of an epoch that another one led",
    ),
    (930_650, "a retired primary showed older rows than a read asked for"),
    (
        930_242,
        "a server that began anew answered for the member that had its name",
    ),
    (
        9_003_152,
        "a promotion at quorum named no loss beside a primary that had been promoted with one",
    ),
    (
        9_003_460,
        "the judge took a late answer of an earlier reign for that of a second primary",
    ),
];
/// Seeds that are searched for a mutant whose own seed no longer catches it.
const MUTANT_SEEDS: u64 = 300;

#[test]
fn no_seed_of_failovers_finds_anything() {
    let mut total = FailoverStats::default();
    run_seeds(SEEDS_MAX, |seed| {
        let stats = run_failovers(seed, FailoverOptions::default()).unwrap_or_else(|found| panic!("{found}"));
        total.add(&stats);
    });
    println!("{}", counts_text(&total.list()));
    if total.seeds >= SEEDS_TOLD {
        let is_missing = |(name, count): &(&str, u64)| *count == 0 && !RARE.contains(name);
        let never: Vec<_> = total.list().into_iter().filter(is_missing).collect();
        assert!(never.is_empty(), "never: {never:?}");
    }
}

#[test]
fn seeds_that_found_something_once_find_nothing() {
    for (seed, fault) in FOUND_ONCE {
        if let Err(found) = run_failovers(seed, FailoverOptions::default()) {
            panic!("{found}\nOnce this seed found: {fault}");
        }
    }
}

#[test]
fn a_seed_of_failovers_does_the_same_each_time() {
    for seed in 1..5 {
        let stats = || {
            format!(
                "{:?}",
                run_failovers(seed, FailoverOptions::default()).expect("finds nothing")
            )
        };
        assert_eq!(stats(), stats(), "seed {seed}");
    }
}

/// Messages of promises that a mutant breaks: what clients rely on is gone, two answer at one time, or a log is wrong.
const BROKEN: [&str; 4] = [
    "lost: ",
    "not in the log of the newest",
    "two primaries at one time",
    "saw up to",
];
/// A disk that takes back what it synced may leave damage in the middle of the log, or in `node.json`.
const DAMAGE: [&str; 2] = ["the log is damaged", "node.json can't be read"];

fn is_caught(mutant: FailoverMutant, found: &Found) -> bool {
    let has = |texts: &[&str]| texts.iter().any(|text| found.what.contains(text));
    has(&BROKEN) || (mutant.harms_disks() && has(&DAMAGE))
}

/// Checks that a seed catches a mutant, and finds nothing without it.
fn check_mutant(mutant: FailoverMutant, seed: u64) -> Result<(), String> {
    let begun = Instant::now();
    let armed = FailoverOptions {
        mutant: Some(mutant),
        ..FailoverOptions::default()
    };
    // A change of the product may move the seeds: then others catch it, and one of them takes the place of the old one.
    let mut seeds = [seed].into_iter().chain(0..MUTANT_SEEDS);
    let found = seeds.find_map(|seed| {
        run_failovers(seed, armed)
            .err()
            .filter(|found| is_caught(mutant, found))
    });
    let search = format!("cargo xtask sim --failovers --mutant {mutant:?} --from {MUTANT_SEEDS} --seeds 1000");
    let found = found.ok_or_else(|| format!("{mutant:?} lives: search on with {search}"))?;
    let unarmed = FailoverOptions {
        as_for: Some(mutant),
        ..FailoverOptions::default()
    };
    let without = run_failovers(found.seed, unarmed);
    println!("{mutant:?}, {:.1} s: {found}", begun.elapsed().as_secs_f64());
    without.map_or_else(|without| Err(format!("without {mutant:?}, too: {without}")), |_| Ok(()))
}

#[test]
fn bugs_of_replication_are_caught() {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut wrong = Vec::new();
        while let Some((mutant, .., seed)) = FailoverMutant::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
            wrong.extend(check_mutant(*mutant, *seed).err());
        }
        wrong
    };
    let wrong: Vec<String> = thread::scope(|scope| {
        let halves = [scope.spawn(work), scope.spawn(work)];
        let joined = halves
            .into_iter()
            .flat_map(|half| half.join().expect("a check does not panic"));
        joined.collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A former primary that has not asked the new one yet loads a checkpoint with more records than are known to be committed. No reader sees
/// it.
#[test]
fn a_former_primarys_checkpoint_is_hidden_until_it_is_committed() {
    holds(102, FailoverMutant::LyingStandby);
}

/// A promotion that accepts a loss fails on its disk, and is asked for again.
#[test]
fn a_promotion_that_is_asked_for_again_tells_the_loss_that_was_accepted() {
    holds(115, FailoverMutant::KeepsLostInSync);
}

/// A primary shows a record to a reader, and its limit then falls into the turn of the record. It steps down, and a read that asked for the record
/// sees it.
#[test]
fn a_retired_primary_shows_what_it_showed_before() {
    holds(173, FailoverMutant::ComparesLengths);
}

fn holds(seed: u64, as_for: FailoverMutant) {
    let options = FailoverOptions {
        as_for: Some(as_for),
        ..FailoverOptions::default()
    };
    run_failovers(seed, options).unwrap_or_else(|found| panic!("{found}"));
}
