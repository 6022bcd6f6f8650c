//! Bytes <-> types for stored data, log segments, blocks and records, and for the messages of nodes.
//! Owns: every size, tag and check of these formats; `docs/FORMAT.md` describes them byte by byte.
//! Does not: read or write files, hold state, decide what a damaged byte means for recovery.
//! Invariants: each value has exactly one valid form; any bytes decode to a value or a `WireError`, never a panic.
//! Called by: `log` (segments, blocks), `storage`, `txn`, `partition`, `router` (encode records), `recovery`, `replay`, `checkpoint`,
//! `upkeep`, `database`, `backup`, `node` (decode them), `ship` (frames).
#![forbid(unsafe_code)]

mod batch;
mod block;
mod body;
mod buffer;
mod caller;
mod changes;
mod checkpoint;
mod control;
mod deploy;
mod facts;
mod frame;
mod part;
mod partitions;
mod reader;
mod record;
mod segment;
mod stand_in;

pub use batch::{RecordBatch, TwoForms};
pub use block::{BLOCK_HEADER_BYTES, BlockHeader, BlockKind, MEMORY_UNIT_BYTES, block_bytes, seal_block};
pub use buffer::{ChangesBuffer, PatchRoom};
pub use caller::{CheckpointPrincipals, KeyRef, PrincipalRef};
pub use changes::{Change, ChangeSink, Changes, ChangesRef, KeyedRef, PatchColumns, PatchWriter, groups_of};
pub use checkpoint::{
    CHECKPOINT_BLOCK_HEADER_BYTES, CHECKPOINT_HEADER_BYTES, CHECKPOINT_RAW_BYTES_MAX, CHECKPOINT_TRAILER_BYTES,
    CheckpointBlock, CheckpointBlockKind, CheckpointDatabase, CheckpointEntry, CheckpointFormerRef, CheckpointHeader,
    CheckpointKeyRef, CheckpointKeys, CheckpointModuleRef, CheckpointOrigin, CheckpointPartition, CheckpointQuarantine,
    CheckpointRows, CheckpointTrailer, INDEX_BLOCK_ENTRIES, push_checkpoint_row,
};
pub use control::{ControlRef, SUBJECT_BYTES_MAX};
pub use deploy::{DeployRef, DestroyedList, DestroyedRef, MigrationRef, PLAN_BYTES_MAX, SourceList};
pub use facts::{PairWalk, RecordEffect, RecordFacts, RecordScope};
pub use frame::{
    COMPARED_TABLES_MAX, ComparePoint, ComparedTable, ComparisonOutcome, ComparisonResult, EpochSeen, Epochs,
    FILE_CHUNK_BYTES_MAX, FILE_PATH_BYTES_MAX, FRAME_BYTES_MAX, FRAME_HEADER_BYTES, FRAME_TEXT_BYTES_MAX, FileChunk,
    FilesEnd, Frame, GROUP_HEAD_BYTES, GroupFrame, Heartbeat, Hello, MemberSeen, Progress, RefusalMessage,
    SHIP_PROTOCOL, STANDBY_FRAME_BYTES_MAX, STANDBY_NAME_BYTES_MAX, STANDING_MAX, SetPart, StandbyRefusal, SyncUpdate,
    TableDigests, Wants, Welcome,
};
pub use part::{ChangesRun, PartRef};
pub use partitions::{PartitionList, PartitionSet};
pub use record::{
    CheckpointMark, CommandRef, DropTableRef, Genesis, QUARANTINE_TEXT_BYTES_MAX, QuarantineRef, RawRecord, RawRecords,
    RecordKind, RecordRef, Records, RemoveRef, count_records,
};
pub use segment::{FORMAT_VERSION, History, SEGMENT_HEADER_BYTES, SegmentHeader, tag_at};
pub use stand_in::{RecordCounts, STAND_IN_HEAD_BYTES_MAX, is_stand_in};

/// Bytes that are not a value of the format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: expected {expected}, found {found}")]
pub struct WireError {
    pub what: &'static str,
    pub expected: String,
    pub found: String,
}

/// Returns the error for wrong bytes: `what` is `found`, and `expected` should be there.
#[cold]
pub fn corrupt(what: &'static str, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> WireError {
    WireError {
        what,
        expected: expected.to_string(),
        found: found.to_string(),
    }
}

/// Checks that `what` is `expected`. Err: it is `found`.
pub fn check<T: PartialEq + std::fmt::Display>(what: &'static str, expected: T, found: T) -> Result<(), WireError> {
    if expected == found {
        Ok(())
    } else {
        Err(corrupt(what, expected, found))
    }
}

/// CRC-32C (Castagnoli), as in iSCSI.
fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Returns the CRC-32C of more bytes, behind those whose checksum is `before`.
fn crc32c_behind(before: u32, bytes: &[u8]) -> u32 {
    let state = u64::from(!before);
    let mut digest = crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, state);
    digest.update(bytes);
    digest.finalize() as u32
}

/// The `crc32c_behind` variant for zeros, in a time that hardly depends on their number.
fn crc32c_behind_zeros(before: u32, bytes: u32) -> u32 {
    let (algorithm, state) = (crc_fast::CrcAlgorithm::Crc32Iscsi, u64::from(!before));
    !(crc_fast::checksum_combine(algorithm, state, 0, bytes.into()) as u32)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}
