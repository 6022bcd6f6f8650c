//! Group commit: makes appended records durable, in the order of their positions; reads them back.
//! Owns: the segment files, the thread that writes them, the `durable` watermark and its waiters; with NVRAM, the rings before the files
//! and the destage thread that copies them.
//! Does not: know the meaning of a record, send it anywhere (a sink does), decide about replay; it never retries a failed write.
//! Invariants: durable <= written <= filled, each only grows; a block is written once, one at a time; an accepted append has its place on
//! preallocated space, so a full disk refuses and never loses.
//! Called by: `partition` (append), `recovery` (open, read), `router` (read, positions), `ship` (groups, replication slots), `upkeep`,
//! `database`, `backup`, `node` (files).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod append;
mod copy;
mod cursor;
mod delay;
mod destage;
mod drain;
mod error;
mod flush;
mod group;
mod group_append;
mod index;
mod log;
mod nvram_append;
mod nvram_appender;
mod nvram_buffer;
mod pause;
mod prepare;
mod reader;
mod replication_slot;
mod returns;
mod rewind;
mod scan;
mod state;
mod stretch;

pub use append::Appender;
pub use copy::{CopyRange, LogCopy};
pub use drain::{DrainReport, recovered_records};
pub use error::{Damage, LogError, UnavailableKind};
pub use group::{Group, GroupSink, Position};
pub use group_append::{AppendError, AppendOutcome, GroupAppender};
pub use index::{parse_segment_name, segment_name};
pub use log::{Complete, Log, LogConfig, OpenReport, Positions};
pub use nvram_appender::NvramAppender;
pub use nvram_buffer::{DestageDemand, NvramBufferConfig, NvramBufferStatus};
pub use reader::{LogBlock, LogReader, OwnedRecord, PageBounds, ReadRecord, RecordPage, RecordPlace};
pub use replication_slot::{ReplicationSlot, ReplicationSlotInfo};
pub use rewind::{EpochStart, LogOutline};
pub use scan::{SegmentReport, TornTail, VerifyReport, database_id, start_of_segment, verify};
pub use stretch::{StretchBlock, StretchEnd};
