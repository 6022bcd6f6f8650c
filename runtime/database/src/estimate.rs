//! How long a restart would take: what it would load and replay, by the speeds that were measured here.

use reprise_base::Lsn;
use reprise_checkpoint::{CheckpointSize, Checkpoints};
use reprise_env::Clock;
use reprise_partition::LogRule;
use reprise_recovery::load_sample;
use reprise_router::{MetricsSnapshot, Speed, SpeedSource};

use crate::RecoveryReport;

/// Bytes from which on a speed is believed that an opening had.
const OPENING_BYTES_MIN: u64 = 4 << 20;
/// Bytes of log from which on the engine threads' own speed is believed.
const RUNNING_BYTES_MIN: u64 = 64 << 10;
/// Bytes of rows that are loaded for the sake of measuring.
const SAMPLE_BYTES: u64 = 8 << 20;

/// What was measured. None of it is assumed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Speeds {
    pub load: Option<Speed>,
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
        self.load = loaded.and_then(|c| of(c.row_bytes, c.seconds)).or(self.load);
        let other_bytes = report.log_bytes.saturating_sub(report.redo_bytes);
        let other_seconds = replay_seconds - report.redo_seconds;
        self.commands = of(other_bytes, other_seconds).or(self.commands);
        self.changes = of(report.redo_bytes, report.redo_seconds).or(self.changes);
    }

    /// The speed of replay of what is logged by `rule`; `running` is that of the engine threads, to whom a command is the same work
    /// at replay. Procedures that declare something else are not told apart; where the log may hold either kind, commands count.
    pub fn replay(&self, rule: LogRule, running: Option<Speed>) -> Option<Speed> {
        match rule {
            LogRule::Physiological => self.changes.or(running),
            LogRule::Command | LogRule::Auto | LogRule::Both | LogRule::None => {
                self.commands.or(running)
            }
        }
    }

    /// Loads some of a checkpoint into tables that are thrown away, unless an opening has told the speed.
    pub fn sample(
        &mut self,
        files: &Checkpoints,
        lsn: Lsn,
        size: CheckpointSize,
        clock: &dyn Clock,
    ) {
        if self.load.is_some() {
            return;
        }
        // One that can't be read is not found out here: the next opening says so, and how it went on.
        let Ok(reader) = files.open(lsn) else {
            return;
        };
        let begun_ns = clock.monotonic_ns();
        let Ok(bytes) = load_sample(&reader, SAMPLE_BYTES) else {
            return;
        };
        let seconds = (clock.monotonic_ns() - begun_ns) as f64 / 1e9;
        if bytes > 0 && seconds > 0.0 {
            let threads = reprise_recovery::load_threads(size.row_bytes) as f64;
            self.load = Some(Speed {
                bytes_per_s: bytes as f64 / seconds * threads,
                measured: SpeedSource::Sample,
            });
        }
    }
}

/// The speed at which the engine threads made the log: replaying a command is running it once more.
pub(crate) fn running_speed(metrics: &MetricsSnapshot, sites: u16) -> Option<Speed> {
    let busy_s = metrics.run.mean() * metrics.run.len() as f64 / 1e9;
    let bytes = metrics.totals.log_bytes;
    (bytes >= RUNNING_BYTES_MIN && busy_s > 0.0).then(|| Speed {
        bytes_per_s: bytes as f64 / busy_s * sites as f64,
        measured: SpeedSource::Running,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_log_has_its_own_speed() {
        let speed = |bytes_per_s| Speed {
            bytes_per_s,
            measured: SpeedSource::Running,
        };
        let running = Some(speed(1e6));
        let mut speeds = Speeds::default();
        assert_eq!(speeds.replay(LogRule::Physiological, running), running);
        let report = RecoveryReport {
            log_bytes: 50 << 20,
            redo_bytes: 40 << 20,
            redo_seconds: 0.5,
            ..RecoveryReport::default()
        };
        speeds.note_opening(&report, 1.5);
        let of = |rule| speeds.replay(rule, running).map(|speed| speed.bytes_per_s);
        assert_eq!(of(LogRule::Physiological), Some((80 << 20) as f64));
        assert_eq!(of(LogRule::Command), Some((10 << 20) as f64));
        assert_eq!(of(LogRule::Auto), of(LogRule::Command));
        // What is too short tells nothing, and what was known stays.
        speeds.note_opening(&RecoveryReport::default(), 0.1);
        assert_eq!(speeds.replay(LogRule::Physiological, None).map(|s| s.bytes_per_s), Some((80 << 20) as f64));
    }
}
