//! Group commit: makes appended records durable, in the order of their positions; reads them back.
//! Owns: the segment files, the thread that writes them, the `durable` watermark and its waiters; with NVRAM, the rings before the
//! files and the destage thread that copies them.
//! Does not: know what a record means, send it anywhere (a sink does), decide what is replayed; it never retries a failed write.
//! Invariants: durable <= written <= filled, each only grows; a block is written once, one at a time; an accepted append has its place
//! on preallocated space, so a full disk refuses and never loses.
//! Called by: `partition` (append), `recovery` (open, read), `router` (read, positions), `ship` (groups, replication slots), `upkeep`,
//! `database`, `backup`, `node` (files).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod append;
mod copier;
mod copy;
mod cursor;
mod cut;
mod delay;
mod drain;
mod error;
mod flush;
mod front;
mod group;
mod hold;
mod index;
mod log;
mod pause;
mod placing;
mod prepare;
mod reader;
mod receive;
mod returns;
mod scan;
mod state;
mod stretch;

pub use append::Appender;
pub use copy::{CopyRange, LogCopy};
pub use cut::{EpochStart, Outline};
pub use drain::{Drained, recovered_records};
pub use error::{Damage, LogError, UnavailableKind};
pub use front::{Following, FrontConfig, FrontStatus, NvramAppender};
pub use group::{Group, GroupSink, Position};
pub use hold::{Hold, HoldInfo};
pub use index::{parse_segment_name, segment_name};
pub use log::{Complete, Log, LogConfig, OpenReport, Positions};
pub use reader::{LogBlock, LogReader, LogRecord, OwnedRecord, RecordPage, RecordPlace};
pub use receive::{PlaceError, Placed, Receiver};
pub use scan::{SegmentReport, TornTail, VerifyReport, database_id, start_of_segment, verify};
pub use stretch::{StretchBlock, StretchEnd};
