//! Who is in sync, as a primary tells its standbys.

use reprise_base::Lsn;

use super::{FRAME_HEADER_BYTES, Kind, Out, STANDBY_NAME_BYTES_MAX, check_head, text, u16_at};
use crate::{WireError, check, corrupt, u32_at, u64_at};

/// Standbys in one frame at most.
pub const STANDING_MAX: usize = 16;

const STANDING_HEAD_BYTES: usize = FRAME_HEADER_BYTES + 16;
/// Of each standby, before its name.
const STANDING_ENTRY_BYTES: usize = 9;

/// A standby that lacks what was answered, perhaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaggardSeen<'a> {
    pub name: &'a str,
    /// It has everything before it, and may lack what lies behind.
    pub from: Lsn,
}

/// Sent by the primary first, and whenever another standby is in sync, or one is no longer: the standby keeps it, and says so (`noted`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing<'a> {
    /// Later ones have larger numbers, as long as the primary runs.
    pub number: u64,
    /// The standby to which it is sent has everything that was answered under the primary's level; at quorum it is one of those that are asked, and
    /// others may have more.
    pub in_sync: bool,
    entries: &'a [u8],
}

impl<'a> Standing<'a> {
    /// The standbys that are out of sync, as they are put into a frame: at most 16.
    pub fn pack<'b>(laggards: impl Iterator<Item = LaggardSeen<'b>>) -> Vec<u8> {
        let mut packed = Vec::new();
        for laggard in laggards.take(STANDING_MAX) {
            assert!(laggard.name.len() <= STANDBY_NAME_BYTES_MAX, "a standby's name");
            packed.extend_from_slice(&laggard.from.0.to_le_bytes());
            packed.push(laggard.name.len() as u8);
            packed.extend_from_slice(laggard.name.as_bytes());
        }
        packed
    }

    /// `entries` were packed.
    pub fn new(number: u64, in_sync: bool, entries: &'a [u8]) -> Self {
        Self {
            number,
            in_sync,
            entries,
        }
    }

    /// Those that are out of sync, in the order of the primary.
    pub fn laggards(&self) -> impl Iterator<Item = LaggardSeen<'a>> + use<'a> {
        let mut rest = self.entries;
        std::iter::from_fn(move || {
            let (laggard, behind) = laggard_at(rest).ok()??;
            rest = behind;
            Some(laggard)
        })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Out::new(Kind::Standing);
        out.u64(self.number).u16(u16::from(self.in_sync));
        out.u16(self.laggards().count() as u16).u32(0);
        out.put(self.entries);
        out.seal(&[])
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        check_head("length of a standing", STANDING_HEAD_BYTES, bytes)?;
        let in_sync = match u16_at(bytes, 16) {
            0 => false,
            1 => true,
            other => return Err(corrupt("whether a standby is in sync", "0 or 1", other)),
        };
        check("bytes before a standing's standbys", 0, u32_at(bytes, 20))?;
        let entries = &bytes[STANDING_HEAD_BYTES..];
        let (mut rest, mut count) = (entries, 0_u16);
        while let Some((_, behind)) = laggard_at(rest)? {
            (rest, count) = (behind, count + 1);
            if usize::from(count) > STANDING_MAX {
                break;
            }
        }
        check("number of a standing's standbys", u16_at(bytes, 18), count)?;
        if usize::from(count) > STANDING_MAX {
            return Err(corrupt(
                "number of a standing's standbys",
                format!("at most {STANDING_MAX}"),
                count,
            ));
        }
        Ok(Self {
            number: u64_at(bytes, 8),
            in_sync,
            entries,
        })
    }
}

/// The first of them, and what follows. None: there is nothing more.
fn laggard_at(entries: &[u8]) -> Result<Option<(LaggardSeen<'_>, &[u8])>, WireError> {
    if entries.is_empty() {
        return Ok(None);
    }
    check_head("length of a standing's standby", STANDING_ENTRY_BYTES, entries)?;
    let length = usize::from(entries[STANDING_ENTRY_BYTES - 1]);
    if !(1..=STANDBY_NAME_BYTES_MAX).contains(&length) {
        let expected = format!("1 to {STANDBY_NAME_BYTES_MAX}");
        return Err(corrupt("length of a name", expected, length));
    }
    check_head("length of a standing's standby", STANDING_ENTRY_BYTES + length, entries)?;
    let (name, rest) = entries[STANDING_ENTRY_BYTES..].split_at(length);
    let (name, from) = (text(name)?, Lsn(u64_at(entries, 0)));
    Ok(Some((LaggardSeen { name, from }, rest)))
}
