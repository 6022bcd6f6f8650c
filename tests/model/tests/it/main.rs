//! All properties of the failover, in all settings.

use std::thread;

use reprise_test_model::{Bounds, LARGE_SETTINGS, Mutant, SETTINGS, Setting, search, walk};

/// Runs `check` in each of the settings, two at a time.
fn in_all(settings: &[Setting], check: impl Fn(Setting) -> Result<(), String> + Sync) {
    let faults: Vec<String> = thread::scope(|scope| {
        let halves = settings.chunks(settings.len() / 2).map(|half| {
            let check = &check;
            scope.spawn(move || {
                half.iter()
                    .filter_map(|setting| check(*setting).err())
                    .collect::<Vec<_>>()
            })
        });
        let halves: Vec<_> = halves.collect();
        let joined = halves
            .into_iter()
            .map(|half| half.join().expect("a check does not panic"));
        joined.flatten().collect()
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_state_near_the_first_one_keeps_the_properties() {
    let bounds = Bounds {
        entries: 2,
        faults: 1,
        acts: 1,
        epochs: 3,
        states: 40_000,
    };
    in_all(&SETTINGS, |setting| {
        let report = search(setting, bounds);
        println!("{setting}: {report}");
        match report.fault {
            None => Ok(()),
            Some((fault, acts)) => Err(format!("{setting}: {fault}\n{acts:#?}")),
        }
    });
}

#[test]
fn walks_at_random_keep_the_properties() {
    let bounds = Bounds {
        entries: 4,
        faults: 2,
        acts: 4,
        epochs: 6,
        states: 0,
    };
    in_all(&[&SETTINGS[..], &LARGE_SETTINGS].concat(), |setting| {
        let found = (0..1_000).find_map(|seed| Some((seed, walk(setting, bounds, seed, 60)?)));
        match found {
            None => Ok(()),
            Some((seed, (fault, acts))) => Err(format!("{setting}, seed {seed}: {fault}\n{acts:#?}")),
        }
    });
}

#[test]
fn every_mutant_of_the_driver_is_caught() {
    let bounds = Bounds {
        entries: 4,
        faults: 3,
        acts: 3,
        epochs: 6,
        states: 0,
    };
    // A change of the model may move the walks: then others catch it.
    let survives = |(mutant, level, has_lease, seed): &(Mutant, _, bool, u64)| {
        let setting = mutant.setting(*level, *has_lease);
        let caught = [*seed]
            .into_iter()
            .chain(0..40_000)
            .find(|seed| walk(setting, bounds, *seed, 60).is_some());
        println!("{mutant:?}: {caught:?}");
        caught.is_none()
    };
    let survivors: Vec<_> = Mutant::ALL.iter().filter(|mutant| survives(mutant)).collect();
    assert!(survivors.is_empty(), "{survivors:?}");
}
