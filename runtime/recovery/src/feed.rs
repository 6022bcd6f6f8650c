//! The walk over the log: its reader, from the position at which recovery begins to the log's end, a window at a time.

use reprise_base::Lsn;
use reprise_log::{LogError, LogReader, StretchEnd};
use reprise_replay::{Replayer, Window};

use crate::RecoveryError;

/// Feeds `replayer` the records of `reader`, about `window_bytes` at a time, up to `until`. Calls `show` now and then with the
/// position reached. This thread reads and checks, while the sites replay. Err: something failed, here or in the log.
pub fn feed(
    replayer: &mut Replayer,
    mut reader: LogReader,
    window_bytes: usize,
    until: Option<Lsn>,
    mut show: impl FnMut(&Replayer, Lsn),
) -> Result<(), RecoveryError> {
    loop {
        let mut window = replayer.window()?;
        let has_more = read_window(&mut reader, window_bytes, Lsn(u64::MAX), &mut window)?;
        let end = window.end();
        replayer.feed(window, until)?;
        if end > Lsn(0) {
            show(replayer, end);
        }
        if !has_more || until.is_some_and(|until| until <= end) {
            return Ok(());
        }
    }
}

/// Fills an empty window with about `bytes` of the next blocks, which end at or before `limit`. False if they were the last blocks that can
/// be read now.
pub fn read_window(reader: &mut LogReader, bytes: usize, limit: Lsn, window: &mut Window) -> Result<bool, LogError> {
    let mut is_beyond = false;
    let end = window.fill(|buffer, note| {
        reader.read_blocks(buffer, bytes, |block| {
            is_beyond = block.end > limit;
            if !is_beyond {
                note(block.lsn..block.end, block.place.clone());
            }
            !is_beyond
        })
    })?;
    if end != StretchEnd::Refused {
        return Ok(end == StretchEnd::Full);
    }
    if is_beyond {
        return Ok(false);
    }
    // The reader begins within a block.
    if reader.block_end()?.is_some_and(|end| end > limit) {
        return Ok(false);
    }
    if let Some(block) = reader.next_block()? {
        window.push(block.lsn..block.end, block.records);
    }
    Ok(true)
}
