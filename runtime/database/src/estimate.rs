//! How long a restart would take: what it would load and replay, by the speeds that were measured here.

use reprise_base::Lsn;
use reprise_checkpoint::{CheckpointSize, Checkpoints};
use reprise_observe::Totals;
use reprise_partition::Shared;
use reprise_recovery::load_sample;
use reprise_router::{Speed, SpeedSource};

use crate::report::RecoveryReport;

/// Bytes from which on a speed is believed that an opening had.
const OPENING_BYTES_MIN: u64 = 4 << 20;
/// Bytes of log from which on the engine threads' own speed is believed.
const RUNNING_BYTES_MIN: u64 = 64 << 10;
/// The speed of an opening is right for a checkpoint of so many times its size, or of that part of it.
const ALIKE: u64 = 2;
/// Bytes of rows that are loaded for the sake of measuring.
const SAMPLE_BYTES: u64 = 8 << 20;

/// What was measured. None of it is assumed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Speeds {
    pub load: Option<Speed>,
    /// Bytes of rows whose loading at an opening told `load`.
    opened_bytes: Option<u64>,
    /// Of commands, run again.
    pub commands: Option<Speed>,
    /// Of changes, put in place.
    pub changes: Option<Speed>,
}

impl Speeds {
    /// Takes over what the opening had to do, where that was enough to tell.
    pub fn note_opening(&mut self, report: &RecoveryReport, replay_seconds: f64) {
        let of = |bytes: u64, seconds: f64| {
            (bytes >= OPENING_BYTES_MIN).then(|| Speed {
                bytes_per_s: bytes as f64 / seconds.max(1e-3),
                measured: SpeedSource::Opening,
            })
        };
        let loaded = report.checkpoint.as_ref();
        self.opened_bytes = loaded
            .map(|c| c.row_bytes)
            .filter(|bytes| *bytes >= OPENING_BYTES_MIN)
            .or(self.opened_bytes);
        self.load = loaded.and_then(|c| of(c.row_bytes, c.seconds)).or(self.load);
        let other_bytes = report.log_bytes.saturating_sub(report.redo_bytes);
        let other_seconds = replay_seconds - report.redo_seconds;
        self.commands = of(other_bytes, other_seconds).or(self.commands);
        self.changes = of(report.redo_bytes, report.redo_seconds).or(self.changes);
    }

    /// The speed of replay of a log of so many bytes, `changes_bytes` of which lie in stretches of changes alone, long enough that
    /// all cores apply them. `running` is the speed of the engine threads, to whom a command is the same work at replay. A kind that
    /// was not measured counts as the other one where it is little.
    pub fn replay(&self, bytes: u64, changes_bytes: u64, running: Option<Speed>) -> Option<Speed> {
        let changes_bytes = changes_bytes.min(bytes);
        let speeds = [self.commands.or(running), self.changes.or(running)];
        let parts = [bytes - changes_bytes, changes_bytes];
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

    /// The speed at which the engine threads made the log since `before`, or since the start where that was too little: replaying a
    /// command is running it once more. Calls that left no record are not replayed.
    pub fn speed(self, before: Self, sites: u16) -> Option<Speed> {
        let since = Self {
            bytes: self.bytes - before.bytes,
            redo_ns: self.redo_ns - before.redo_ns,
        };
        let taken = if since.bytes >= RUNNING_BYTES_MIN { since } else { self };
        (taken.bytes >= RUNNING_BYTES_MIN && taken.redo_ns > 0).then(|| Speed {
            bytes_per_s: taken.bytes as f64 / (taken.redo_ns as f64 / 1e9) * sites as f64,
            measured: SpeedSource::Running,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_record_has_its_own_speed() {
        let speed = |bytes_per_s, measured| Some(Speed { bytes_per_s, measured });
        const MIB: u64 = 1 << 20;
        let running = speed(MIB as f64, SpeedSource::Running);
        let mut speeds = Speeds::default();
        assert_eq!(speeds.replay(50 * MIB, 40 * MIB, running), running);
        assert_eq!(speeds.replay(50 * MIB, 40 * MIB, None), None);
        let report = RecoveryReport {
            log_bytes: 50 * MIB,
            redo_bytes: 40 * MIB,
            redo_seconds: 0.5,
            ..RecoveryReport::default()
        };
        speeds.note_opening(&report, 1.5);
        let seconds = |bytes: u64, changes: u64| {
            let speed = speeds.replay(bytes * MIB, changes * MIB, running);
            (bytes * MIB) as f64 / speed.expect("measured").bytes_per_s
        };
        // 80 MiB a second of changes, 10 of commands, whatever the server is set to log.
        assert_eq!((seconds(80, 80), seconds(80, 0)), (1.0, 8.0));
        assert_eq!((seconds(90, 80), seconds(50, 40)), (2.0, 1.5));
        // What is too short tells nothing, and what was known stays.
        speeds.note_opening(&RecoveryReport::default(), 0.1);
        let opening = |mib: u64| speed((mib * MIB) as f64, SpeedSource::Opening);
        assert_eq!(speeds.replay(8 * MIB, 8 * MIB, None), opening(80));
        // A little of what was not measured counts as the rest, or as the engine runs it.
        speeds.commands = None;
        assert_eq!(speeds.replay(8 * MIB, 7 * MIB, None), opening(80));
        assert_eq!(speeds.replay(16 * MIB, 8 * MIB, None), None);
        let mixed = speeds.replay(9 * MIB, 8 * MIB, running).expect("measured");
        assert_eq!(mixed.measured, SpeedSource::Running);
        assert_eq!((9 * MIB) as f64 / mixed.bytes_per_s, 1.1);
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
        let per_s = |made: Made, before: Made| made.speed(before, 2).map(|speed| speed.bytes_per_s);
        let start = Made::default();
        assert_eq!(per_s(made(RUNNING_BYTES_MIN - 1, 1_000), start), None);
        assert_eq!(per_s(made(1_000_000, 1_000_000_000), start), Some(2e6));
        let checkpoint = made(1_000_000, 1_000_000_000);
        assert_eq!(per_s(made(2_000_000, 1_100_000_000), checkpoint), Some(2e7));
        assert_eq!(per_s(made(1_000_001, 1_000_000_000), checkpoint), Some(2_000_002.0));
    }
}
