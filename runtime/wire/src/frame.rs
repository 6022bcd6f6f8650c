//! Messages between a primary and its standbys: one frame at a time, each with its checksum.

use reprise_base::{Epoch, Lsn, Safety, limits::BLOCK_BYTES_MAX};

use crate::{FORMAT_VERSION, History, WireError, check, corrupt, crc32c, crc32c_behind, u16_at, u32_at, u64_at};

mod comparison;
mod epochs;
mod sync_update;

pub use comparison::{
    COMPARED_TABLES_MAX, ComparePoint, ComparedTable, ComparisonOutcome, ComparisonResult, TableDigests,
};
pub use epochs::{EpochSeen, Epochs};
pub use sync_update::{MemberSeen, STANDING_MAX, SetPart, SyncUpdate};

/// Both sides speak the same one.
pub const SHIP_PROTOCOL: u16 = 8;
/// Before the body of each frame: checksum and kind.
pub const FRAME_HEADER_BYTES: usize = 8;
/// Longest name of a standby, in bytes.
pub const STANDBY_NAME_BYTES_MAX: usize = reprise_base::NODE_NAME_BYTES_MAX;
/// Longest text in a frame, in bytes: a reason, or an address.
pub const FRAME_TEXT_BYTES_MAX: usize = 512;
/// Bytes of a file in one frame at most.
pub const FILE_CHUNK_BYTES_MAX: usize = 1 << 20;
/// Longest path of a file, in bytes.
pub const FILE_PATH_BYTES_MAX: usize = 255;
/// Bytes of a group's frame before its records.
pub const GROUP_HEAD_BYTES: usize = FRAME_HEADER_BYTES + 32;
/// Longest frame, in bytes: a group.
pub const FRAME_BYTES_MAX: usize = GROUP_HEAD_BYTES + BLOCK_BYTES_MAX;
/// Longest frame that a standby sends, in bytes.
pub const STANDBY_FRAME_BYTES_MAX: usize = 1 << 10;

const _: () = assert!(HELLO_BYTES + 1 + STANDBY_NAME_BYTES_MAX <= STANDBY_FRAME_BYTES_MAX);
const _: () = assert!(FILE_HEAD_BYTES + 1 + FILE_PATH_BYTES_MAX + FILE_CHUNK_BYTES_MAX <= FRAME_BYTES_MAX);
const _: () = assert!(STANDBY_NAME_BYTES_MAX <= u8::MAX as usize);
const _: () = assert!(FILE_PATH_BYTES_MAX <= u8::MAX as usize);

/// The checksum covers all bytes of a frame from here on.
const CHECKED_AT: usize = 4;
const HELLO_BYTES: usize = FRAME_HEADER_BYTES + 62;
const WELCOME_BYTES: usize = FRAME_HEADER_BYTES + 18;
const REFUSED_BYTES: usize = FRAME_HEADER_BYTES;
const FILE_HEAD_BYTES: usize = FRAME_HEADER_BYTES + 44;
const FILES_END_BYTES: usize = FRAME_HEADER_BYTES + 18;
const HEARTBEAT_BYTES: usize = FRAME_HEADER_BYTES + 32;
const PROGRESS_BYTES: usize = FRAME_HEADER_BYTES + 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Hello = 1,
    Welcome = 2,
    Refused = 3,
    File = 4,
    FilesEnd = 5,
    Group = 6,
    Heartbeat = 7,
    Progress = 8,
    Epochs = 9,
    Standing = 10,
    Named = 11,
    Digests = 12,
    Compared = 13,
}

/// A standby's request to its primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// The log behind its position, for as long as the connection lasts.
    Log = 0,
    /// The files to begin with; it has none.
    Files = 1,
    /// The answer whether the primary has the history at its position, and nothing more.
    Fork = 2,
}

/// The first frame: who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello<'a> {
    pub protocol: u16,
    pub wants: Wants,
    /// Version of the log's format, which the standby writes.
    pub format: u32,
    /// Id of the database. Zero from a standby that has no files yet, and so are the next two.
    pub database_id: [u8; 16],
    pub partitions: u16,
    pub position: (Epoch, Lsn, History),
    /// The ticket that the primary issued for this connection.
    pub ticket: [u8; 16],
    pub name: &'a str,
}

/// The primary's answer, if it takes the standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome<'a> {
    pub epoch: Epoch,
    /// Everything before it is durable on the primary.
    pub durable: Lsn,
    /// Level that the primary's writes wait for.
    pub safety: Safety,
    /// URL of the primary for clients; empty if the primary does not know its own.
    pub primary: &'a str,
}

/// Why a standby is not taken, or not any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandbyRefusal {
    /// The ticket is not known, too old, or another name's.
    Ticket = 1,
    /// The name can't be taken.
    Name = 2,
    /// Another database's.
    Database = 3,
    /// Another version of the protocol or of the log's format.
    Version = 4,
    /// Another number of them.
    Partitions = 5,
    /// The log that it lacks is gone: it needs the files.
    Gone = 6,
    /// The standby holds records that the primary does not have.
    Diverged = 7,
    /// A temporary refusal: there are too many standbys, or the server stops.
    Unavailable = 8,
    /// Another connection of its name took this one's place.
    Replaced = 9,
}

impl StandbyRefusal {
    const ALL: [Self; 9] = [
        Self::Ticket,
        Self::Name,
        Self::Database,
        Self::Version,
        Self::Partitions,
        Self::Gone,
        Self::Diverged,
        Self::Unavailable,
        Self::Replaced,
    ];
}

/// Says so, and ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusalMessage<'a> {
    pub refusal: StandbyRefusal,
    pub reason: &'a str,
}

/// A part of a file. The parts of a file come in order, and files one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileChunk<'a> {
    /// `folder/name`.
    pub path: &'a str,
    pub offset: u64,
    /// SHA-256 of the whole file, with its last part.
    pub sum: Option<[u8; 32]>,
    pub bytes: &'a [u8],
}

/// All files were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesEnd {
    pub count: u32,
    pub epoch: Epoch,
    /// Behind the last record that they hold: the log is kept from here on.
    pub lsn: Lsn,
}

/// The records of one group commit, or what of them the standby lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupFrame<'a> {
    pub epoch: Epoch,
    /// LSN of the first record.
    pub first: Lsn,
    /// Behind the last one.
    pub end: Lsn,
    /// History of all records before `end`.
    pub history: History,
    pub records: &'a [u8],
}

/// Sent by the primary every so often, busy or idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// `sent_ns` of the newest progress that had arrived on this connection before `durable` was read; 0: there was none. A standby that
    /// shows everything before `durable` has everything that was durable when it sent that progress.
    pub echo_ns: u64,
    /// Everything before it is durable on the primary.
    pub durable: Lsn,
    /// Everything before it may be read: the safety level is met.
    pub committed: Lsn,
    /// Bytes of log from the standby's view, as the primary knows it, to its own end.
    pub behind_bytes: u64,
}

/// Sent by the standby as it gets on, and as an answer to each heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The standby's clock as it was sent, in nanoseconds since some moment of its own. A heartbeat returns it; it says nothing to the primary.
    pub sent_ns: u64,
    /// Everything before it got there.
    pub received: Lsn,
    /// Everything before it is durable there.
    pub persisted: Lsn,
    /// Everything before it is in its tables.
    pub replayed: Lsn,
    /// Readers there see everything before it.
    pub view: Lsn,
    /// Bytes of records behind `received` for which there is room: further groups are begun while fewer are on their way.
    pub room_bytes: u64,
    /// Epoch of the primary that the standby follows: the other fields count for that epoch alone.
    pub epoch: Epoch,
    /// Number of the newest standing that it keeps on its disk; 0: none of this connection.
    pub saved_status: u64,
}

/// Any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    Hello(Hello<'a>),
    Welcome(Welcome<'a>),
    Refused(RefusalMessage<'a>),
    File(FileChunk<'a>),
    FilesEnd(FilesEnd),
    Group(GroupFrame<'a>),
    Heartbeat(Heartbeat),
    Progress(Progress),
    Epochs(Epochs<'a>),
    Standing(SyncUpdate<'a>),
    Named(ComparePoint),
    Digests(TableDigests<'a>),
    Compared(ComparisonResult<'a>),
}

/// The head of a frame on its way: its fields one behind the other.
struct FrameFields(Vec<u8>);

impl FrameFields {
    fn new(kind: Kind) -> Self {
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(&[0, 0, 0, 0, kind as u8, 0, 0, 0]);
        Self(out)
    }

    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    fn epoch(&mut self, epoch: Epoch) -> &mut Self {
        self.u32(epoch.count()).u16(epoch.writer())
    }

    /// Returns the frame with the checksum of its bytes and of `tail` behind them.
    fn seal(mut self, tail: &[u8]) -> Vec<u8> {
        let crc = crc32c_behind(crc32c(&self.0[CHECKED_AT..]), tail);
        self.0[..CHECKED_AT].copy_from_slice(&crc.to_le_bytes());
        self.0
    }
}

impl GroupFrame<'_> {
    /// The frame without its records, which follow it. Made without an allocation.
    pub fn head(&self) -> [u8; GROUP_HEAD_BYTES] {
        assert!(
            !self.records.is_empty() && self.records.len() <= BLOCK_BYTES_MAX,
            "a group's records"
        );
        let mut head = [0; GROUP_HEAD_BYTES];
        head[CHECKED_AT] = Kind::Group as u8;
        let mut put = |at: usize, field: &[u8]| head[at..at + field.len()].copy_from_slice(field);
        put(8, &self.epoch.count().to_le_bytes());
        put(12, &self.history.0.to_le_bytes());
        put(16, &self.first.0.to_le_bytes());
        put(24, &self.end.0.to_le_bytes());
        put(32, &(FORMAT_VERSION as u16).to_le_bytes());
        put(34, &self.epoch.writer().to_le_bytes());
        put(36, &(self.records.len() as u32).to_le_bytes());
        let crc = crc32c_behind(crc32c(&head[CHECKED_AT..]), self.records);
        head[..CHECKED_AT].copy_from_slice(&crc.to_le_bytes());
        head
    }
}

impl FileChunk<'_> {
    /// The frame without the file's bytes, which follow it.
    pub fn head(&self) -> Vec<u8> {
        assert!(
            !self.path.is_empty() && self.path.len() <= FILE_PATH_BYTES_MAX,
            "a file's path"
        );
        assert!(self.bytes.len() <= FILE_CHUNK_BYTES_MAX, "a file's part");
        let mut out = FrameFields::new(Kind::File);
        out.u64(self.offset);
        out.u16(u16::from(self.sum.is_some())).u16(self.path.len() as u16);
        out.put(&self.sum.unwrap_or_default()).put(self.path.as_bytes());
        out.seal(self.bytes)
    }
}

impl Frame<'_> {
    /// All bytes of it.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello(hello) => hello.encode(),
            Self::Welcome(welcome) => {
                let mut out = FrameFields::new(Kind::Welcome);
                out.epoch(welcome.epoch).u64(welcome.durable.0);
                put_text(&mut out, welcome.safety as u16, welcome.primary);
                out.seal(&[])
            }
            Self::Refused(refused) => {
                let mut out = FrameFields::new(Kind::Refused);
                put_text(&mut out, refused.refusal as u16, refused.reason);
                out.seal(&[])
            }
            Self::File(chunk) => [&chunk.head(), chunk.bytes].concat(),
            Self::FilesEnd(end) => {
                let mut out = FrameFields::new(Kind::FilesEnd);
                out.u32(end.count).epoch(end.epoch).u64(end.lsn.0);
                out.seal(&[])
            }
            Self::Group(group) => [&group.head()[..], group.records].concat(),
            Self::Heartbeat(beat) => beat.encode(),
            Self::Progress(progress) => progress.encode(),
            Self::Epochs(epochs) => epochs.encode(),
            Self::Standing(standing) => standing.encode(),
            Self::Named(named) => named.encode(),
            Self::Digests(digests) => digests.encode(),
            Self::Compared(compared) => compared.encode(),
        }
    }
}

/// Two bytes of number, two of length, the text.
fn put_text(out: &mut FrameFields, number: u16, text: &str) {
    let end = text.floor_char_boundary(FRAME_TEXT_BYTES_MAX);
    out.u16(number).u16(end as u16).put(&text.as_bytes()[..end]);
}

impl Hello<'_> {
    fn encode(&self) -> Vec<u8> {
        assert!(self.name.len() <= STANDBY_NAME_BYTES_MAX, "a standby's name");
        let (epoch, lsn, history) = self.position;
        let mut out = FrameFields::new(Kind::Hello);
        out.u16(self.protocol).u16(self.wants as u16).u32(self.format);
        out.put(&self.database_id).put(&self.ticket);
        out.epoch(epoch).u32(history.0).u64(lsn.0).u16(self.partitions);
        out.put(&[0, self.name.len() as u8]).put(self.name.as_bytes());
        out.seal(&[])
    }
}

impl Heartbeat {
    fn encode(&self) -> Vec<u8> {
        let mut out = FrameFields::new(Kind::Heartbeat);
        out.u64(self.echo_ns).u64(self.durable.0);
        out.u64(self.committed.0).u64(self.behind_bytes);
        out.seal(&[])
    }
}

impl Progress {
    fn encode(&self) -> Vec<u8> {
        let mut out = FrameFields::new(Kind::Progress);
        out.u64(self.sent_ns);
        out.u64(self.received.0).u64(self.persisted.0);
        out.u64(self.replayed.0).u64(self.view.0).u64(self.room_bytes);
        out.epoch(self.epoch).u16(0).u64(self.saved_status);
        out.seal(&[])
    }
}

impl<'a> Frame<'a> {
    /// Reads a whole frame; its checksum is right, and each field is one that an encoder may write.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        if bytes.len() < FRAME_HEADER_BYTES || bytes.len() > FRAME_BYTES_MAX {
            let expected = format!("{FRAME_HEADER_BYTES} to {FRAME_BYTES_MAX} bytes");
            return Err(corrupt("length of a frame", expected, bytes.len()));
        }
        check("checksum of a frame", crc32c(&bytes[CHECKED_AT..]), u32_at(bytes, 0))?;
        check(
            "bytes behind a frame's kind",
            [0; 3].escape_ascii().to_string(),
            bytes[5..8].escape_ascii().to_string(),
        )?;
        match bytes[4] {
            kind if kind == Kind::Hello as u8 => Hello::decode(bytes).map(Self::Hello),
            kind if kind == Kind::Welcome as u8 => Welcome::decode(bytes).map(Self::Welcome),
            kind if kind == Kind::Refused as u8 => RefusalMessage::decode(bytes).map(Self::Refused),
            kind if kind == Kind::File as u8 => FileChunk::decode(bytes).map(Self::File),
            kind if kind == Kind::FilesEnd as u8 => {
                check("length of the end of files", FILES_END_BYTES, bytes.len())?;
                Ok(Self::FilesEnd(FilesEnd {
                    count: u32_at(bytes, 8),
                    epoch: epoch_at(bytes, 12),
                    lsn: Lsn(u64_at(bytes, 18)),
                }))
            }
            kind if kind == Kind::Group as u8 => GroupFrame::decode(bytes).map(Self::Group),
            kind if kind == Kind::Heartbeat as u8 => Heartbeat::decode(bytes).map(Self::Heartbeat),
            kind if kind == Kind::Progress as u8 => Progress::decode(bytes).map(Self::Progress),
            kind if kind == Kind::Epochs as u8 => Epochs::decode(bytes).map(Self::Epochs),
            kind if kind == Kind::Standing as u8 => SyncUpdate::decode(bytes).map(Self::Standing),
            kind if kind == Kind::Named as u8 => ComparePoint::decode(bytes).map(Self::Named),
            kind if kind == Kind::Digests as u8 => TableDigests::decode(bytes).map(Self::Digests),
            kind if kind == Kind::Compared as u8 => ComparisonResult::decode(bytes).map(Self::Compared),
            kind => Err(corrupt("kind of a frame", "1 to 13", kind)),
        }
    }
}

fn epoch_at(bytes: &[u8], at: usize) -> Epoch {
    Epoch::new(u32_at(bytes, at), u16_at(bytes, at + 4))
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("as many bytes as asked for")
}

/// Checks that there are at least `head` bytes.
fn check_head(what: &'static str, head: usize, bytes: &[u8]) -> Result<(), WireError> {
    match bytes.len() >= head {
        true => Ok(()),
        false => Err(corrupt(what, format!("{head} bytes or more"), bytes.len())),
    }
}

fn text(bytes: &[u8]) -> Result<&str, WireError> {
    std::str::from_utf8(bytes).map_err(|_| corrupt("text of a frame", "UTF-8", bytes.escape_ascii()))
}

/// The number and the text that lie at the frame's end, from `at` on.
fn text_at(bytes: &[u8], at: usize) -> Result<(u16, &str), WireError> {
    check_head("length of a frame with text", at + 4, bytes)?;
    let (number, length) = (u16_at(bytes, at), usize::from(u16_at(bytes, at + 2)));
    if length > FRAME_TEXT_BYTES_MAX {
        return Err(corrupt(
            "length of a text",
            format!("at most {FRAME_TEXT_BYTES_MAX}"),
            length,
        ));
    }
    check("length of a frame with text", at + 4 + length, bytes.len())?;
    Ok((number, text(&bytes[at + 4..])?))
}

impl<'a> Hello<'a> {
    fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        check_head("length of a greeting", HELLO_BYTES, bytes)?;
        let wants = match u16_at(bytes, 10) {
            0 => Wants::Log,
            1 => Wants::Files,
            2 => Wants::Fork,
            other => return Err(corrupt("what a standby wants", "0 to 2", other)),
        };
        let name = &bytes[HELLO_BYTES..];
        check("byte before a name's length", 0, bytes[HELLO_BYTES - 2])?;
        check("length of a name", usize::from(bytes[HELLO_BYTES - 1]), name.len())?;
        if name.len() > STANDBY_NAME_BYTES_MAX {
            let expected = format!("at most {STANDBY_NAME_BYTES_MAX}");
            return Err(corrupt("length of a name", expected, name.len()));
        }
        Ok(Self {
            protocol: u16_at(bytes, 8),
            wants,
            format: u32_at(bytes, 12),
            database_id: bytes_at(bytes, 16),
            ticket: bytes_at(bytes, 32),
            position: (epoch_at(bytes, 48), Lsn(u64_at(bytes, 58)), History(u32_at(bytes, 54))),
            partitions: u16_at(bytes, 66),
            name: text(name)?,
        })
    }
}

impl<'a> Welcome<'a> {
    fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        check_head("length of a welcome", WELCOME_BYTES, bytes)?;
        let (number, primary) = text_at(bytes, 22)?;
        let safety = Safety::ALL.into_iter().find(|level| *level as u16 == number);
        Ok(Self {
            epoch: epoch_at(bytes, 8),
            durable: Lsn(u64_at(bytes, 14)),
            safety: safety.ok_or_else(|| corrupt("safety level in a welcome", "0 to 5", number))?,
            primary,
        })
    }
}

impl<'a> RefusalMessage<'a> {
    fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (number, reason) = text_at(bytes, REFUSED_BYTES)?;
        let refusal = StandbyRefusal::ALL
            .into_iter()
            .find(|refusal| *refusal as u16 == number);
        let refusal = refusal.ok_or_else(|| corrupt("kind of a refusal", "1 to 9", number))?;
        Ok(Self { refusal, reason })
    }
}

impl<'a> FileChunk<'a> {
    fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        check_head("length of a file's part", FILE_HEAD_BYTES, bytes)?;
        let offset = u64_at(bytes, 8);
        let (is_last, length) = (u16_at(bytes, 16), usize::from(u16_at(bytes, 18)));
        let sum = bytes_at(bytes, 20);
        let sum = match is_last {
            0 => check(
                "checksum of an unfinished file",
                0,
                sum.iter().filter(|byte| **byte != 0).count(),
            )
            .map(|()| None)?,
            1 => Some(sum),
            other => return Err(corrupt("end of a file", "0 or 1", other)),
        };
        if !(1..=FILE_PATH_BYTES_MAX).contains(&length) {
            return Err(corrupt(
                "length of a path",
                format!("1 to {FILE_PATH_BYTES_MAX}"),
                length,
            ));
        }
        check_head("length of a file's part", FILE_HEAD_BYTES + length, bytes)?;
        let (path, bytes) = bytes[FILE_HEAD_BYTES..].split_at(length);
        if bytes.len() > FILE_CHUNK_BYTES_MAX {
            let expected = format!("at most {FILE_CHUNK_BYTES_MAX}");
            return Err(corrupt("bytes of a file's part", expected, bytes.len()));
        }
        Ok(Self {
            path: text(path)?,
            offset,
            sum,
            bytes,
        })
    }
}

impl<'a> GroupFrame<'a> {
    fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        check_head("length of a group", GROUP_HEAD_BYTES + 1, bytes)?;
        let (head, records) = bytes.split_at(GROUP_HEAD_BYTES);
        check("format version of a group", FORMAT_VERSION, u16_at(head, 32).into())?;
        check("bytes of a group's records", u32_at(head, 36) as usize, records.len())?;
        let group = Self {
            epoch: Epoch::new(u32_at(head, 8), u16_at(head, 34)),
            history: History(u32_at(head, 12)),
            first: Lsn(u64_at(head, 16)),
            end: Lsn(u64_at(head, 24)),
            records,
        };
        match group.first < group.end {
            true => Ok(group),
            false => Err(corrupt(
                "end of a group",
                format!("more than {}", group.first),
                group.end,
            )),
        }
    }
}

impl Heartbeat {
    fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        check("length of a heartbeat", HEARTBEAT_BYTES, bytes.len())?;
        Ok(Self {
            echo_ns: u64_at(bytes, 8),
            durable: Lsn(u64_at(bytes, 16)),
            committed: Lsn(u64_at(bytes, 24)),
            behind_bytes: u64_at(bytes, 32),
        })
    }
}

impl Progress {
    fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        check("length of a progress", PROGRESS_BYTES, bytes.len())?;
        let progress = Self {
            sent_ns: u64_at(bytes, 8),
            received: Lsn(u64_at(bytes, 16)),
            persisted: Lsn(u64_at(bytes, 24)),
            replayed: Lsn(u64_at(bytes, 32)),
            view: Lsn(u64_at(bytes, 40)),
            room_bytes: u64_at(bytes, 48),
            epoch: epoch_at(bytes, 56),
            saved_status: u64_at(bytes, 64),
        };
        check("bytes behind a progress's epoch", 0, u16_at(bytes, 62))?;
        match progress.persisted.max(progress.replayed).max(progress.view) <= progress.received {
            true => Ok(progress),
            false => Err(corrupt(
                "a standby's progress",
                "nothing beyond what it received",
                format!("{progress:?}"),
            )),
        }
    }
}
