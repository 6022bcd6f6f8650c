//! A region of persistent memory with one ring of log entries and log objects for each site (NV-Logging, sections 4 and 5).
//! Owns: the region's layout, the order in which objects and entries become persistent, the rules for their validity after a crash.
//! Does not: know the meaning of a record, write files, wait, start a thread.
//! Invariants: an entry's state bit is persistent only after its objects are; objects need a persistent commit to count; a ring ends at its
//! first invalid entry; nothing is overwritten before it was freed.
//! Called by: `log` (the buffer before its files), `txn` (changes as they are made), `partition` (the sink), `database` (opening), `node`
//! (files).
#![deny(missing_docs)]

mod layout;
mod lsns;
mod memory;
mod object;
mod pmem;
mod recording;
mod recover;
mod region;
mod ring;

pub use layout::{ENTRIES_MAX, ENTRIES_MIN, Geometry, LINE_BYTES, Owner, RINGS_MAX};
pub use lsns::LsnSource;
pub use memory::{Memory, OpenMemory, Persistence};
pub use object::{FlushPolicy, ObjectWriter};
pub use pmem::{MapRegions, Pmem, PmemError, PmemOptions, library};
pub use recording::{Event, RecordingMemory};
pub use recover::{RecoveredRecord, RegionContents};
pub use region::{Region, RegionError, RegionMarks};
pub use ring::{RingFill, RingFull, RingGauge, RingReader, RingRecord, RingWriter};
