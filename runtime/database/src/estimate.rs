//! How long a restart would take: what it would load and replay, by the speeds that were measured here.

use reprise_base::Lsn;
use reprise_checkpoint::{CheckpointSize, Checkpoints};
use reprise_log::Log;
use reprise_observe::Totals;
use reprise_partition::{CallBatch, Shared};
use reprise_recovery::load_sample;
use reprise_router::{Speed, SpeedSource};
use reprise_txn::{Compiler, Deployed};

use crate::{
    report::RecoveryReport,
    timed::{TakenUp, TimedCompiler},
};

/// Bytes from which on a speed is believed that an opening had.
const OPENING_BYTES_MIN: u64 = 4 << 20;
/// Bytes of log from which on the engine threads' own speed is believed.
const RUNNING_BYTES_MIN: u64 = 64 << 10;
/// The speed of an opening is right for a checkpoint of so many times its size, or of that part of it.
const ALIKE: u64 = 2;
/// Bytes of rows that are loaded, and of log that are read, for the sake of measuring.
const SAMPLE_BYTES: u64 = 8 << 20;

/// What was measured. None of it is assumed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Speeds {
    pub load: Option<Speed>,
    /// Bytes of rows whose loading at an opening told `load`.
    opened_bytes: Option<u64>,
    /// Of commands, run again.
    pub commands: Option<Speed>,
    /// Of changes, put in place.
    pub changes: Option<Speed>,
    /// The same of this run's opening, and of how many bytes: believed for about as many where nothing else is known.
    opened: [Option<(u64, Speed)>; 2],
    /// Where the log began that the opening replayed, if it held transactions.
    replayed_from: Option<Lsn>,
    /// Of the log that is kept, looked at block by block.
    pub check: Option<Speed>,
    /// What of this run's opening these tell.
    named_seconds: f64,
    /// What it took to take modules up again.
    modules: TakenUp,
    /// What an opening takes that hangs on nothing of these. None until it is over.
    other_seconds: Option<f64>,
}

impl Speeds {
    /// Takes over what the opening had to do, where that was enough to tell.
    pub fn note_opening(&mut self, from: Lsn, report: &RecoveryReport) {
        let of = |bytes: u64, seconds: f64| {
            (bytes > 0).then(|| Speed {
                bytes_per_s: bytes as f64 / seconds.max(1e-6),
                measured: SpeedSource::Opening,
            })
        };
        if let Some(loaded) = report.checkpoint.as_ref().filter(|loaded| loaded.row_bytes > 0) {
            // The next restart loads just that, until there is a newer one, which is measured then.
            self.opened_bytes = Some(loaded.row_bytes);
            self.load = of(loaded.row_bytes, loaded.seconds - loaded.compile_seconds);
        }
        let command_bytes = report.log_bytes.saturating_sub(report.redo_bytes);
        let replay_seconds = (report.replay_seconds - report.replay_modules_seconds).max(0.0);
        self.replayed_from = (report.commands > 0).then_some(from);
        let parts = [
            (command_bytes, replay_seconds - report.redo_seconds),
            (report.redo_bytes, report.redo_seconds),
        ];
        self.opened = parts.map(|(bytes, seconds)| Some((bytes, of(bytes, seconds)?)));
        let [commands, changes] = self.opened.map(|opened| {
            let (_, speed) = opened.filter(|(bytes, _)| *bytes >= OPENING_BYTES_MIN)?;
            Some(speed)
        });
        self.commands = commands.or(self.commands);
        self.changes = changes.or(self.changes);
        if report.checked_bytes >= OPENING_BYTES_MIN {
            self.check = of(report.checked_bytes, report.check_seconds);
        }
        // What was too little to tell a speed is part of the rest.
        let check_seconds = self.check.map_or(0.0, |_| report.check_seconds);
        let loaded = report.checkpoint.filter(|loaded| loaded.row_bytes > 0);
        let load_seconds = loaded.map_or(0.0, |loaded| loaded.seconds - loaded.compile_seconds);
        let replay_seconds = self.replayed_from.map_or(0.0, |_| replay_seconds);
        self.named_seconds = load_seconds + replay_seconds + check_seconds;
    }

    /// The opening is over, after so many seconds in all, and took these modules up.
    pub fn note_opened(&mut self, seconds: f64, modules: TakenUp) {
        self.modules = modules;
        self.other_seconds = Some((seconds - self.named_seconds - modules.seconds()).max(0.0));
    }

    /// The opening replayed transactions behind `lsn`, and would again.
    pub fn has_replayed(&self, lsn: Lsn) -> bool {
        self.replayed_from == Some(lsn)
    }

    /// What a restart takes beside its three parts: files and threads, and the modules that are in service now.
    pub fn rest_seconds(&self, deployed: &Deployed) -> Option<f64> {
        let bytes: u64 = deployed.current.values().filter_map(|module| module.wasm_bytes).sum();
        let per_byte = self.modules.seconds() / self.modules.bytes.max(1) as f64;
        Some(self.other_seconds? + bytes as f64 * per_byte)
    }

    /// The speed of replay of a log of so many bytes, `changes_bytes` of which lie in stretches of changes alone, long enough that
    /// all cores apply them. `running` is the speed of the engine threads, to whom a command is the same work at replay. A kind that
    /// was not measured counts as the other one where it is little.
    pub fn replay(&self, bytes: u64, changes_bytes: u64, running: Running) -> Option<Speed> {
        let changes_bytes = changes_bytes.min(bytes);
        let parts = [bytes - changes_bytes, changes_bytes];
        let speed = |kind: usize, known: Option<Speed>| {
            let alike = self.opened[kind].filter(|(opened, _)| parts[kind] <= opened.saturating_mul(ALIKE));
            let opened = alike.map(|(_, speed)| speed);
            known.or(running.long).or(opened).or(running.any)
        };
        let speeds = [speed(0, self.commands), speed(1, self.changes)];
        if bytes == 0 {
            return speeds[0].or(speeds[1]);
        }
        let (mut seconds, mut measured) = (0.0, SpeedSource::Opening);
        for (kind, part) in parts.into_iter().enumerate().filter(|(_, part)| *part > 0) {
            let other = speeds[1 - kind].filter(|_| part < OPENING_BYTES_MIN);
            let speed = speeds[kind].or(other)?;
            seconds += part as f64 / speed.bytes_per_s;
            if speed.measured == SpeedSource::Running {
                measured = speed.measured;
            }
        }
        Some(Speed {
            bytes_per_s: bytes as f64 / seconds,
            measured,
        })
    }

    /// Loads some of a new checkpoint into tables that are thrown away, unless an opening loaded about as much: what was right for
    /// few rows is not for many.
    pub fn sample(&mut self, files: &Checkpoints, lsn: Lsn, size: CheckpointSize, shared: &Shared) {
        let is_alike = |opened: u64| (opened / ALIKE..=opened.saturating_mul(ALIKE)).contains(&size.row_bytes);
        if self.opened_bytes.is_some_and(is_alike) {
            return;
        }
        // One that can't be read is not found out here: the next opening says so, and how it went on.
        let Ok(reader) = files.open(lsn) else {
            return;
        };
        let begun_ns = shared.clock.monotonic_ns();
        let Ok(bytes) = load_sample(&reader, SAMPLE_BYTES) else {
            return;
        };
        let seconds = (shared.clock.monotonic_ns() - begun_ns) as f64 / 1e9;
        self.note_sample(
            bytes,
            seconds,
            reprise_recovery::load_threads(shared.threads.cores(), size.row_bytes),
        );
    }

    /// Reads some of the log, unless an opening did: its check does the same.
    pub fn sample_check(&mut self, log: &Log<Box<CallBatch>>, shared: &Shared) {
        let is_known = |speed: Speed| speed.measured == SpeedSource::Opening;
        let start = log.start();
        if self.check.is_some_and(is_known) || log.bytes_behind(start) < OPENING_BYTES_MIN {
            return;
        }
        let begun_ns = shared.clock.monotonic_ns();
        // What can't be read, or was let go of meanwhile, is told elsewhere.
        let Ok(mut reader) = log.reader(start) else {
            return;
        };
        let mut bytes = 0;
        while let (true, Ok(Some(record))) = (bytes < SAMPLE_BYTES, reader.next_record()) {
            bytes += record.bytes.len() as u64;
        }
        let seconds = (shared.clock.monotonic_ns() - begun_ns) as f64 / 1e9;
        if bytes > 0 && seconds > 0.0 {
            self.check = Some(Speed {
                bytes_per_s: bytes as f64 / seconds,
                measured: SpeedSource::Sample,
            });
        }
    }

    /// Takes the smallest module in service up once more, unless an opening took one up.
    pub fn sample_modules(&mut self, compiler: &TimedCompiler, shared: &Shared) {
        if self.modules.bytes > 0 {
            return;
        }
        let deployed = shared.deployed.load();
        let modules = deployed.current.values();
        let Some(smallest) = modules.min_by_key(|module| module.wasm_bytes) else {
            return;
        };
        let binaries = shared.binaries.lock().expect("held for a look");
        let wasm = binaries.get(smallest.id.0 as usize).cloned();
        drop(binaries);
        let Some(wasm) = wasm.filter(|wasm| !wasm.is_empty()) else {
            return; // it goes out of service at this moment
        };
        let begun_ns = shared.clock.monotonic_ns();
        if compiler.restore(&smallest.name, &wasm).is_ok() {
            self.modules = TakenUp {
                bytes: wasm.len() as u64,
                ns: shared.clock.monotonic_ns() - begun_ns,
            };
        }
    }

    /// One thread loaded `bytes` of a checkpoint that `threads` would load.
    fn note_sample(&mut self, bytes: u64, seconds: f64, threads: u64) {
        if bytes > 0 && seconds > 0.0 {
            self.opened_bytes = None;
            self.load = Some(Speed {
                bytes_per_s: bytes as f64 / seconds * threads as f64,
                measured: SpeedSource::Sample,
            });
        }
    }
}

/// The speed of the engine threads: of enough log to believe it, and of whatever there is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Running {
    pub long: Option<Speed>,
    pub any: Option<Speed>,
}

/// Log that was made, and the time that running it took: up to some moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Made {
    bytes: u64,
    redo_ns: u64,
}

impl Made {
    pub fn of(totals: &Totals) -> Self {
        Self {
            bytes: totals.log_bytes,
            redo_ns: totals.redo_ns,
        }
    }

    pub fn is_more_than(self, before: Self) -> bool {
        self.bytes > before.bytes
    }

    pub fn speeds(self, before: Self, sites: u16) -> Running {
        Running {
            long: self.speed(before, sites, RUNNING_BYTES_MIN),
            any: self.speed(before, sites, 1),
        }
    }

    /// The speed at which the engine threads made the log since `before`, or since the start where that was less than `bytes_min`:
    /// replaying a command is running it once more. Calls that left no record are not replayed.
    fn speed(self, before: Self, sites: u16, bytes_min: u64) -> Option<Speed> {
        let since = Self {
            bytes: self.bytes - before.bytes,
            redo_ns: self.redo_ns - before.redo_ns,
        };
        let taken = if since.bytes >= bytes_min { since } else { self };
        (taken.bytes >= bytes_min && taken.redo_ns > 0).then(|| Speed {
            bytes_per_s: taken.bytes as f64 / (taken.redo_ns as f64 / 1e9) * sites as f64,
            measured: SpeedSource::Running,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::LoadedCheckpoint;

    #[test]
    fn each_kind_of_record_has_its_own_speed() {
        let speed = |bytes_per_s, measured| Some(Speed { bytes_per_s, measured });
        const MIB: u64 = 1 << 20;
        let running = speed(MIB as f64, SpeedSource::Running);
        let (none, at_all) = (
            Running::default(),
            Running {
                long: running,
                any: running,
            },
        );
        let mut speeds = Speeds::default();
        assert_eq!(speeds.replay(50 * MIB, 40 * MIB, at_all), running);
        assert_eq!(speeds.replay(50 * MIB, 40 * MIB, none), None);
        let report = RecoveryReport {
            log_bytes: 50 * MIB,
            redo_bytes: 40 * MIB,
            redo_seconds: 0.5,
            replay_seconds: 1.5,
            ..RecoveryReport::default()
        };
        speeds.note_opening(Lsn(0), &report);
        let seconds = |bytes: u64, changes: u64| {
            let speed = speeds.replay(bytes * MIB, changes * MIB, at_all);
            (bytes * MIB) as f64 / speed.expect("measured").bytes_per_s
        };
        // 80 MiB a second of changes, 10 of commands, whatever the server is set to log.
        assert_eq!((seconds(80, 80), seconds(80, 0)), (1.0, 8.0));
        assert_eq!((seconds(90, 80), seconds(50, 40)), (2.0, 1.5));
        // What is too short tells nothing, and what was known stays.
        speeds.note_opening(Lsn(0), &RecoveryReport::default());
        let opening = |mib: u64| speed((mib * MIB) as f64, SpeedSource::Opening);
        assert_eq!(speeds.replay(8 * MIB, 8 * MIB, none), opening(80));
        // A little of what was not measured counts as the rest, or as the engine runs it.
        speeds.commands = None;
        assert_eq!(speeds.replay(8 * MIB, 7 * MIB, none), opening(80));
        assert_eq!(speeds.replay(16 * MIB, 8 * MIB, none), None);
        let mixed = speeds.replay(9 * MIB, 8 * MIB, at_all).expect("measured");
        assert_eq!(mixed.measured, SpeedSource::Running);
        assert_eq!((9 * MIB) as f64 / mixed.bytes_per_s, 1.1);
    }

    /// What was little of each kind, and of the log, is told all the same, as part of the rest where it tells no speed.
    #[test]
    fn an_opening_of_little_tells_the_next_one() {
        const KIB: u64 = 1 << 10;
        let report = RecoveryReport {
            commands: 9,
            log_bytes: 300 * KIB,
            replay_seconds: 0.024,
            replay_modules_seconds: 0.004,
            checked_bytes: 400 * KIB,
            check_seconds: 0.005,
            checkpoint: Some(LoadedCheckpoint {
                version: reprise_wire::FORMAT_VERSION,
                lsn: Lsn(7),
                rows: 1_000,
                row_bytes: 30 * KIB,
                file_bytes: 20 * KIB,
                seconds: 0.011,
                compile_seconds: 0.01,
            }),
            ..RecoveryReport::default()
        };
        let mut speeds = Speeds::default();
        let modules = TakenUp {
            bytes: 100 * KIB,
            ns: 10_000_000,
        };
        speeds.note_opening(Lsn(7), &report);
        speeds.note_opened(0.06, modules);
        assert!(speeds.has_replayed(Lsn(7)) && !speeds.has_replayed(Lsn(9)));
        let near = |found: Option<f64>, expected: f64| found.is_some_and(|found| (found - expected).abs() < 1e-9);
        let load = speeds.load.map(|speed| (30 * KIB) as f64 / speed.bytes_per_s);
        let replay = speeds
            .replay(300 * KIB, 0, Running::default())
            .map(|speed| (300 * KIB) as f64 / speed.bytes_per_s);
        assert!(near(load, 0.001) && near(replay, 0.02), "{load:?}, {replay:?}");
        // Of ten times as much it tells nothing.
        assert_eq!(speeds.replay(3_000 * KIB, 0, Running::default()), None);
        assert!(
            speeds.check.is_none() && near(speeds.other_seconds, 0.029),
            "{:?}",
            speeds.other_seconds
        );
        // A log that is long enough tells its speed, and is no part of the rest.
        let longer = RecoveryReport {
            checked_bytes: 40 << 20,
            check_seconds: 0.02,
            ..report
        };
        speeds.note_opening(Lsn(7), &longer);
        speeds.note_opened(0.07, modules);
        assert!(near(
            speeds.check.map(|speed| (40 << 20) as f64 / speed.bytes_per_s),
            0.02
        ));
        assert!(near(speeds.other_seconds, 0.019), "{:?}", speeds.other_seconds);
    }

    #[test]
    fn the_speed_of_loading_is_measured_anew_and_a_tiny_checkpoint_tells_nothing_of_a_large_one() {
        let seconds = |speeds: &Speeds, bytes: u64| bytes as f64 / speeds.load.expect("measured").bytes_per_s;
        let mut speeds = Speeds::default();
        // One row, and what it takes to begin.
        speeds.note_sample(31, 0.001, 1);
        let within = |told: f64, truth: f64| told / truth < 2.0 && truth / told < 2.0;
        assert!(within(seconds(&speeds, 31), 0.001));
        // 6.4 MiB that take 50 ms: told as 3.5 minutes by the first one's speed.
        assert!(seconds(&speeds, 6_710_886) > 200.0);
        speeds.note_sample(6_710_886, 0.05, 1);
        assert!(within(seconds(&speeds, 6_710_886), 0.05));
        // Of a large one, a part on one thread.
        speeds.note_sample(8 << 20, 0.06, 2);
        assert!(within(seconds(&speeds, 800 << 20), 3.0));
    }

    #[test]
    fn the_engines_speed_is_of_what_left_records_since_the_checkpoint() {
        let made = |bytes, redo_ns| Made { bytes, redo_ns };
        let per_s = |made: Made, before: Made| made.speed(before, 2, RUNNING_BYTES_MIN).map(|speed| speed.bytes_per_s);
        let start = Made::default();
        assert_eq!(per_s(made(RUNNING_BYTES_MIN - 1, 1_000), start), None);
        assert_eq!(per_s(made(1_000_000, 1_000_000_000), start), Some(2e6));
        let checkpoint = made(1_000_000, 1_000_000_000);
        assert_eq!(per_s(made(2_000_000, 1_100_000_000), checkpoint), Some(2e7));
        assert_eq!(per_s(made(1_000_001, 1_000_000_000), checkpoint), Some(2_000_002.0));
    }
}
