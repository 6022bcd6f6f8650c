//! The number of partitions of a database, before it is opened.

use std::{path::Path, sync::Arc};

use reprise_checkpoint::Checkpoints;
use reprise_env::{Disk, RealDisk};
use reprise_log::parse_segment_name;
use reprise_wire::{BLOCK_HEADER_BYTES, Records, SEGMENT_HEADER_BYTES};

use crate::{error::OpenError, opened_log::newest_genesis};

/// Bytes that hold the first record.
const LOOKED_AT_BYTES: usize = 4096;

/// Returns the number of partitions of the database under `dir`. None if there is no database yet. It reads the first record alone; the
/// opening checks the rest of the log.
pub fn stored_partitions(dir: &Path) -> Result<Option<u16>, OpenError> {
    let Ok(disk) = RealDisk::open(dir.join("log")) else {
        return Ok(None);
    };
    let names = disk.list()?;
    let Some(first) = names.iter().find(|name| parse_segment_name(name).is_some()) else {
        return Ok(None);
    };
    let mut buffer = vec![0; LOOKED_AT_BYTES];
    let read = disk.open_read(first)?.read_at(0, &mut buffer)?;
    let payload = buffer[..read]
        .get(SEGMENT_HEADER_BYTES + BLOCK_HEADER_BYTES..)
        .unwrap_or_default();
    let first = Records::new(payload).next().and_then(Result::ok);
    if let Some(genesis) = first.and_then(|(_, record, _)| record.genesis()) {
        return Ok(Some(genesis.partitions));
    }
    // The log's beginning was released, so the checkpoints have the number.
    let Ok(disk) = RealDisk::open(dir.join("checkpoints")) else {
        return Ok(None);
    };
    let newest = newest_genesis(&Checkpoints::new(Arc::new(disk)))?;
    Ok(newest.map(|genesis| genesis.partitions))
}
