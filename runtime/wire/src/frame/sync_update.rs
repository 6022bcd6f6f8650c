//! The set of standbys, as a primary tells it to each of them.

use reprise_base::Lsn;

use super::{FRAME_HEADER_BYTES, FRAME_TEXT_BYTES_MAX, FrameFields, Kind, STANDBY_NAME_BYTES_MAX, check_head, text};
use crate::{WireError, check, corrupt, u16_at, u32_at, u64_at};

/// Standbys in one frame at most.
pub const STANDING_MAX: usize = 16;

const STANDING_HEAD_BYTES: usize = FRAME_HEADER_BYTES + 16;
/// Bytes of each standby before its name and its URL.
const STANDING_ENTRY_BYTES: usize = 12;
/// Bits of a standby's flags: it is in sync; it is in the set, and in the next one.
const IN_SYNC: u8 = 1;
const IN_SET: u8 = 2;
const IN_NEXT: u8 = 4;
const FLAGS: u8 = IN_SYNC | IN_SET | IN_NEXT;

/// The part of a standby in the set that `quorum` and `very-safe` count on, and in the set to which a change is under way. Both count until then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetPart {
    pub is_in: bool,
    pub is_in_next: bool,
}

fn flags_of(is_in_sync: bool, set: SetPart) -> u8 {
    let flag = |is: bool, bit: u8| if is { bit } else { 0 };
    flag(is_in_sync, IN_SYNC) | flag(set.is_in, IN_SET) | flag(set.is_in_next, IN_NEXT)
}

fn read_flags(flags: u8) -> (bool, SetPart) {
    let has = |bit| flags & bit != 0;
    let set = SetPart {
        is_in: has(IN_SET),
        is_in_next: has(IN_NEXT),
    };
    (has(IN_SYNC), set)
}

/// A standby, as its primary reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberSeen<'a> {
    pub name: &'a str,
    /// URL at which other servers reach it; empty: the primary does not know it.
    pub url: &'a str,
    /// LSN before which it has everything. It may lack later records.
    pub from: Lsn,
    pub is_in_sync: bool,
    pub set: SetPart,
}

/// The set of standbys. The primary sends it first, and whenever another standby is in sync, or one is no longer. The standby saves it, and says so
/// (`noted`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncUpdate<'a> {
    /// Later ones have larger numbers, as long as the primary runs.
    pub number: u64,
    /// The receiving standby has everything that was acknowledged under the primary's level. At quorum it is one of the standbys that are
    /// asked, and others may have more.
    pub in_sync: bool,
    /// The part of the standby to which it is sent.
    pub set: SetPart,
    entries: &'a [u8],
}

impl<'a> SyncUpdate<'a> {
    /// Packs the other standbys for a frame: at most 16.
    pub fn pack<'b>(members: impl Iterator<Item = MemberSeen<'b>>) -> Vec<u8> {
        let mut packed = Vec::new();
        for member in members.take(STANDING_MAX) {
            assert!(member.name.len() <= STANDBY_NAME_BYTES_MAX, "a standby's name");
            let url = &member.url[..member.url.floor_char_boundary(FRAME_TEXT_BYTES_MAX)];
            packed.extend_from_slice(&member.from.0.to_le_bytes());
            packed.push(flags_of(member.is_in_sync, member.set));
            packed.push(member.name.len() as u8);
            packed.extend_from_slice(&(url.len() as u16).to_le_bytes());
            packed.extend_from_slice(member.name.as_bytes());
            packed.extend_from_slice(url.as_bytes());
        }
        packed
    }

    /// `entries` were packed.
    pub fn new(number: u64, in_sync: bool, set: SetPart, entries: &'a [u8]) -> Self {
        Self {
            number,
            in_sync,
            set,
            entries,
        }
    }

    /// Returns the other standbys, in the order of the primary.
    pub fn members(&self) -> impl Iterator<Item = MemberSeen<'a>> + use<'a> {
        let mut rest = self.entries;
        std::iter::from_fn(move || {
            let (member, behind) = member_at(rest).ok()??;
            rest = behind;
            Some(member)
        })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = FrameFields::new(Kind::Standing);
        out.u64(self.number).u16(flags_of(self.in_sync, self.set).into());
        out.u16(self.members().count() as u16).u32(0);
        out.put(self.entries);
        out.seal(&[])
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        check_head("length of a standing", STANDING_HEAD_BYTES, bytes)?;
        let flags = u16_at(bytes, 16);
        if flags > u16::from(FLAGS) {
            return Err(corrupt("flags of a standing", "0 to 7", flags));
        }
        let (in_sync, set) = read_flags(flags as u8);
        check("bytes before a standing's standbys", 0, u32_at(bytes, 20))?;
        let entries = &bytes[STANDING_HEAD_BYTES..];
        let (mut rest, mut count) = (entries, 0_u16);
        while let Some((_, behind)) = member_at(rest)? {
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
            set,
            entries,
        })
    }
}

/// Returns the first of them, and what follows. None: there is nothing more.
fn member_at(entries: &[u8]) -> Result<Option<(MemberSeen<'_>, &[u8])>, WireError> {
    const WHAT: &str = "length of a standing's standby";
    if entries.is_empty() {
        return Ok(None);
    }
    check_head(WHAT, STANDING_ENTRY_BYTES, entries)?;
    let (flags, name_bytes) = (entries[8], usize::from(entries[9]));
    let url_bytes = usize::from(u16_at(entries, 10));
    if flags > FLAGS {
        return Err(corrupt("flags of a standing's standby", "0 to 7", flags));
    }
    let (is_in_sync, set) = read_flags(flags);
    if !(1..=STANDBY_NAME_BYTES_MAX).contains(&name_bytes) {
        let expected = format!("1 to {STANDBY_NAME_BYTES_MAX}");
        return Err(corrupt("length of a name", expected, name_bytes));
    }
    if url_bytes > FRAME_TEXT_BYTES_MAX {
        let expected = format!("at most {FRAME_TEXT_BYTES_MAX}");
        return Err(corrupt("length of a URL", expected, url_bytes));
    }
    check_head(WHAT, STANDING_ENTRY_BYTES + name_bytes + url_bytes, entries)?;
    let (name, rest) = entries[STANDING_ENTRY_BYTES..].split_at(name_bytes);
    let (url, rest) = rest.split_at(url_bytes);
    let member = MemberSeen {
        name: text(name)?,
        url: text(url)?,
        from: Lsn(u64_at(entries, 0)),
        is_in_sync,
        set,
    };
    Ok(Some((member, rest)))
}
