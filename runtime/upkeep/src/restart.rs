//! The time that a restart would take: the speeds of the last opening, and the time of the calls since the checkpoint.

use reprise_base::Lsn;

/// Bytes from which on the speed of a part is right for any length.
const SPEED_BYTES_MIN: u64 = 4 << 20;
/// Factor by which a part may be longer than a measured one whose speed is used for it. The fixed cost of a shorter part distorts its
/// speed.
const ALIKE_MAX: u64 = 2;
/// Bytes by which the log's index may be wrong about the length of a stretch.
const INDEX_ERROR_MAX: u64 = 512 << 10;

/// One part of the last opening.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpeningPart {
    /// Bytes that the part read.
    pub bytes: u64,
    /// Time that the part took.
    pub seconds: f64,
}

impl OpeningPart {
    /// Returns the seconds for `bytes` at the speed of this part, and `None` if the opening had too few bytes to tell.
    pub(crate) fn seconds_for(self, bytes: u64) -> Option<f64> {
        let is_known = self.bytes >= SPEED_BYTES_MIN || bytes <= self.bytes.saturating_mul(ALIKE_MAX);
        match bytes {
            0 => Some(0.0),
            _ => is_known.then(|| bytes as f64 * self.seconds / self.bytes as f64),
        }
    }

    /// Returns `bytes`, or all that the part read if the log's index can't tell the two apart.
    pub(crate) fn bytes_near(self, bytes: u64) -> u64 {
        match bytes > self.bytes + INDEX_ERROR_MAX {
            true => bytes,
            false => bytes.min(self.bytes),
        }
    }
}

/// Measurements of the last opening.
#[derive(Clone, Copy, Debug)]
pub struct OpeningSpeeds {
    /// The rows of the checkpoint, and their indexes.
    pub load: OpeningPart,
    /// The log behind the checkpoint.
    pub replay: OpeningPart,
    /// All of the log that is kept.
    pub check: OpeningPart,
    /// Files, threads and modules. None until the opening is over.
    pub other_seconds: Option<f64>,
    /// LSN from which this run's engine threads ran the calls in the log.
    pub own_log_from: Lsn,
}

impl Default for OpeningSpeeds {
    fn default() -> Self {
        Self {
            load: OpeningPart::default(),
            replay: OpeningPart::default(),
            check: OpeningPart::default(),
            other_seconds: None,
            own_log_from: Lsn(u64::MAX),
        }
    }
}

impl OpeningSpeeds {
    /// Records that the opening took `seconds` in all.
    pub(crate) fn record_end(&mut self, seconds: f64) {
        let parts = self.load.seconds + self.replay.seconds + self.check.seconds;
        self.other_seconds = Some((seconds - parts).max(0.0));
    }
}

/// Time that a restart would take now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RestartCost {
    /// Bytes of rows in the newest checkpoint.
    pub load_bytes: u64,
    /// None until an opening has loaded about as much.
    pub load_seconds: Option<f64>,
    /// Bytes of log behind the newest checkpoint.
    pub replay_bytes: u64,
    /// None on a standby until an opening has replayed about as much.
    pub replay_seconds: Option<f64>,
    /// Bytes of log that is kept, all of which is checked.
    pub check_bytes: u64,
    /// None until an opening has checked about as much. It is little then, and counts as nothing.
    pub check_seconds: Option<f64>,
    /// The rest of this run's opening: files, threads, modules. None until the opening is over.
    pub other_seconds: Option<f64>,
    /// A checkpoint is begun when a restart would take longer.
    pub target_seconds: Option<f64>,
}

impl RestartCost {
    /// Returns the time of all parts, and `None` while loading, replay or the rest is not known.
    pub fn seconds(&self) -> Option<f64> {
        let parts = [self.load_seconds, self.replay_seconds, self.other_seconds];
        parts.iter().all(Option::is_some).then(|| self.known_seconds())
    }

    /// Returns the time of the parts that are known.
    pub fn known_seconds(&self) -> f64 {
        let parts = [
            self.load_seconds,
            self.replay_seconds,
            self.check_seconds,
            self.other_seconds,
        ];
        parts.into_iter().flatten().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_part_tells_nothing_of_a_long_one() {
        let part = |bytes, seconds| OpeningPart { bytes, seconds };
        let short = part(30 << 10, 0.001);
        assert_eq!(short.seconds_for(30 << 10), Some(0.001));
        assert_eq!(short.seconds_for(60 << 10), Some(0.002));
        assert_eq!(short.seconds_for(61 << 10), None);
        assert_eq!(part(4 << 20, 0.5).seconds_for(400 << 20), Some(50.0));
        assert_eq!(OpeningPart::default().seconds_for(1), None);
        assert_eq!(OpeningPart::default().seconds_for(0), Some(0.0));
    }

    #[test]
    fn an_opening_without_a_log_has_a_speed_for_an_error_of_the_index() {
        let empty = OpeningPart {
            bytes: 1 << 10,
            seconds: 0.001,
        };
        let first_deployment = empty.bytes_near(69 << 10);
        assert_eq!(empty.seconds_for(first_deployment), Some(0.001));
        assert_eq!(empty.bytes_near(100), 100);
        assert_eq!(empty.bytes_near(1 << 20), 1 << 20);
    }

    #[test]
    fn the_parts_of_an_opening_are_all_of_it() {
        let part = |bytes, seconds| OpeningPart { bytes, seconds };
        let mut speeds = OpeningSpeeds {
            replay: part(300 << 10, 0.5),
            check: part(400 << 10, 0.25),
            ..OpeningSpeeds::default()
        };
        assert_eq!(speeds.other_seconds, None);
        speeds.record_end(1.0);
        assert_eq!(speeds.other_seconds, Some(0.25));
        assert_eq!(speeds.replay.seconds_for(300 << 10), Some(0.5));
    }
}
