//! A log in which one record says something else than it did: whole by every checksum.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use reprise_wire::{
    BLOCK_HEADER_BYTES, BlockHeader, ChangesRef, CommandRef, DeployRef, MigrationRef, RecordRef, Records,
    SEGMENT_HEADER_BYTES, SegmentHeader, is_stand_in, seal_block,
};

/// Lets `change` at the arguments of the first command that `is_it` picks; its LSN. Every block from there on is
/// sealed again.
pub fn forge_args(
    data_dir: &Path,
    mut is_it: impl FnMut(&CommandRef<'_>) -> bool,
    change: impl Fn(&mut [u8]),
) -> Result<u64> {
    forge(data_dir, |record, _| match record {
        RecordRef::Command(command) if is_it(command) => {
            let (mut changed, mut args) = (Vec::new(), command.args.to_vec());
            change(&mut args);
            let args = &args[..];
            RecordRef::Command(CommandRef { args, ..*command }).encode(&mut changed);
            Some(changed)
        }
        _ => None,
    })
}

/// Lets the first deployment that ran something have come to another digest; its LSN.
pub fn forge_migration(data_dir: &Path) -> Result<u64> {
    forge(data_dir, |record, _| match record {
        RecordRef::Deploy(deploy) => {
            let migration = deploy.migration?;
            let digests: Vec<u8> = migration
                .digests()
                .flat_map(|digest| (digest ^ 1).to_le_bytes())
                .collect();
            let (mut changed, migration) = (
                Vec::new(),
                Some(MigrationRef::new(migration.name, migration.plan, &digests)),
            );
            RecordRef::Deploy(DeployRef { migration, ..*deploy }).encode(&mut changed);
            Some(changed)
        }
        _ => None,
    })
}

/// Lets `change` at the bytes of the first record that stands for another one and holds changes that `is_it` picks; its LSN. The history does not
/// have these bytes, so a standby may be forged so and go on.
pub fn forge_stand_in(
    data_dir: &Path,
    is_it: impl Fn(&ChangesRef<'_>) -> bool,
    change: impl Fn(&mut [u8]),
) -> Result<u64> {
    forge(data_dir, |record, bytes| match record {
        RecordRef::Changes(changes) if is_stand_in(bytes) && is_it(changes) => {
            let mut changed = bytes.to_vec();
            change(&mut changed);
            Some(changed)
        }
        _ => None,
    })
}

/// The segments of a log, in order.
fn segments_of(data_dir: &Path) -> Result<Vec<PathBuf>> {
    let listed = fs::read_dir(data_dir.join("log")).context("list the log")?;
    let paths: Result<Vec<_>, _> = listed.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut segments = paths.context("list the log")?;
    segments.retain(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("log-"))
    });
    segments.sort_unstable();
    Ok(segments)
}

/// Puts another record of the same length in the place of the first for which `change` has one; its LSN.
fn forge(data_dir: &Path, mut change: impl FnMut(&RecordRef<'_>, &[u8]) -> Option<Vec<u8>>) -> Result<u64> {
    let (mut chain, mut forged) = (None, None);
    for path in segments_of(data_dir)? {
        let mut bytes = fs::read(&path).context("read the segment")?;
        let segment = SegmentHeader::decode(&bytes).context("the segment's header")?;
        let mut last = chain.unwrap_or(segment.chain);
        let continued = SegmentHeader { chain: last, ..segment }.encode();
        bytes[..continued.len()].copy_from_slice(&continued);
        let mut at = SEGMENT_HEADER_BYTES;
        while let Some(Ok((mut header, _))) = bytes.get(at..).map(BlockHeader::decode) {
            let length = header.block_bytes();
            let block = bytes.get_mut(at..at + length).context("a whole block")?;
            let payload = header.payload(block).context("a whole block")?.to_vec();
            if forged.is_none()
                && let Some((offset, number, record)) = forge_in(&payload, &mut change)?
            {
                let place = BLOCK_HEADER_BYTES + offset;
                block[place..place + record.len()].copy_from_slice(&record);
                forged = Some(header.lsn.0 + number);
            }
            header.chain = last;
            last = seal_block(&header, block);
            at += length;
        }
        chain = Some(last);
        fs::write(&path, &bytes).context("write the segment")?;
    }
    forged.context("no record was picked")
}

/// The record that was picked, as it shall be, behind its place in the block and its number there.
fn forge_in(
    payload: &[u8],
    change: &mut impl FnMut(&RecordRef<'_>, &[u8]) -> Option<Vec<u8>>,
) -> Result<Option<(usize, u64, Vec<u8>)>> {
    for (number, found) in Records::new(payload).enumerate() {
        let (offset, record, bytes) = found.context("a record")?;
        if let Some(changed) = change(&record, bytes) {
            ensure!(changed.len() == bytes.len(), "the record has another length");
            return Ok(Some((offset, number as u64, changed)));
        }
    }
    Ok(None)
}
