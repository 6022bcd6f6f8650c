//! Beginnings of a primary's epochs, for a node that asks for the point at which two histories part.

use reprise_base::{Epoch, Lsn};

use super::{FRAME_HEADER_BYTES, FrameFields, Kind, check_head, epoch_at};
use crate::{History, WireError, check, corrupt, u16_at, u32_at, u64_at};

const EPOCHS_HEAD_BYTES: usize = FRAME_HEADER_BYTES + 16;
const EPOCH_BYTES: usize = 18;
/// Epochs in one frame at most.
const EPOCHS_MAX: usize = 1024;

/// The beginning of an epoch in the primary's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochSeen {
    pub epoch: Epoch,
    /// History of all records before `start`.
    pub history: History,
    /// LSN of its first record.
    pub start: Lsn,
}

/// The answer to a standby that asks for the point at which the histories part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epochs<'a> {
    /// The primary has the same records before the position that was shown.
    pub is_same: bool,
    /// Everything before it is durable on the primary.
    pub durable: Lsn,
    entries: &'a [u8],
}

impl<'a> Epochs<'a> {
    /// The newest epochs of a list, as they are put into a frame: at most 1024.
    pub fn pack(epochs: impl ExactSizeIterator<Item = EpochSeen>) -> Vec<u8> {
        let skipped = epochs.len().saturating_sub(EPOCHS_MAX);
        let mut packed = Vec::with_capacity(EPOCH_BYTES * EPOCHS_MAX.min(epochs.len()));
        for seen in epochs.skip(skipped) {
            packed.extend_from_slice(&seen.epoch.count().to_le_bytes());
            packed.extend_from_slice(&seen.epoch.writer().to_le_bytes());
            packed.extend_from_slice(&seen.history.0.to_le_bytes());
            packed.extend_from_slice(&seen.start.0.to_le_bytes());
        }
        packed
    }

    /// `entries` were packed.
    pub fn new(is_same: bool, durable: Lsn, entries: &'a [u8]) -> Self {
        assert!(
            entries.len().is_multiple_of(EPOCH_BYTES) && entries.len() <= EPOCHS_MAX * EPOCH_BYTES,
            "packed epochs"
        );
        Self {
            is_same,
            durable,
            entries,
        }
    }

    /// The oldest first.
    pub fn epochs(&self) -> impl Iterator<Item = EpochSeen> + use<'a> {
        let (entries, _) = self.entries.as_chunks::<EPOCH_BYTES>();
        entries.iter().map(|entry| EpochSeen {
            epoch: epoch_at(entry, 0),
            history: History(u32_at(entry, 6)),
            start: Lsn(u64_at(entry, 10)),
        })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = FrameFields::new(Kind::Epochs);
        out.u64(self.durable.0).u16(u16::from(self.is_same));
        out.u16((self.entries.len() / EPOCH_BYTES) as u16).u32(0);
        out.put(self.entries);
        out.seal(&[])
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        check_head("length of epochs", EPOCHS_HEAD_BYTES, bytes)?;
        let (is_same, count) = (u16_at(bytes, 16), usize::from(u16_at(bytes, 18)));
        if is_same > 1 || count > EPOCHS_MAX {
            let expected = format!("0 or 1, and at most {EPOCHS_MAX}");
            return Err(corrupt("head of epochs", expected, format!("{is_same}, {count}")));
        }
        check("length of epochs", EPOCHS_HEAD_BYTES + count * EPOCH_BYTES, bytes.len())?;
        check("bytes before epochs", 0, u32_at(bytes, 20))?;
        let epochs = Self {
            is_same: is_same == 1,
            durable: Lsn(u64_at(bytes, 8)),
            entries: &bytes[EPOCHS_HEAD_BYTES..],
        };
        let all: Vec<_> = epochs.epochs().collect();
        // A primary that wrote no record may be followed by another one of the same count.
        let grows = |pair: &[EpochSeen]| {
            let is_older = pair[0].epoch != pair[1].epoch && !pair[0].epoch.is_after(pair[1].epoch);
            is_older && pair[0].start <= pair[1].start
        };
        match all.windows(2).all(grows) {
            true => Ok(epochs),
            false => Err(corrupt(
                "a list of epochs",
                "growing ones",
                format!("{} others", all.len()),
            )),
        }
    }
}
