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
        let window_end = read_window(&mut reader, window_bytes, Lsn(u64::MAX), &mut window)?;
        let end = window.end();
        replayer.feed(window, until)?;
        if end > Lsn(0) {
            show(replayer, end);
        }
        if window_end != WindowEnd::Full || until.is_some_and(|until| until <= end) {
            return Ok(());
        }
    }
}

/// The reason why a window has no more blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowEnd {
    /// There may be more to read.
    Full,
    /// The log ends, as far as it is durable.
    LogEnd,
    /// The next block ends beyond the limit. A longer log changes nothing; a later limit does.
    Limit,
}

/// Fills an empty window with about `bytes` of the next blocks, which end at or before `limit`.
pub fn read_window(
    reader: &mut LogReader,
    bytes: usize,
    limit: Lsn,
    window: &mut Window,
) -> Result<WindowEnd, LogError> {
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
        return Ok(match end {
            StretchEnd::Full => WindowEnd::Full,
            _ => WindowEnd::LogEnd,
        });
    }
    if is_beyond {
        return Ok(WindowEnd::Limit);
    }
    // The reader begins within a block.
    if reader.block_end()?.is_some_and(|end| end > limit) {
        return Ok(WindowEnd::Limit);
    }
    if let Some(block) = reader.next_block()? {
        window.push(block.lsn..block.end, block.records);
    }
    Ok(WindowEnd::Full)
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use reprise_base::TxnId;
    use reprise_env::{RealClock, SimDisk};
    use reprise_log::{Log, LogConfig};
    use reprise_wire::{RecordBatch, RecordRef, RemoveRef};

    use super::*;

    #[test]
    fn window_says_whether_the_log_or_the_limit_ends_it() {
        let mut records = RecordBatch::default();
        for name in ["a", "b"] {
            records.push(&RecordRef::Remove(RemoveRef {
                txn_id: TxnId::new(1, 0),
                name,
                destroyed: Default::default(),
            }));
        }
        let config = LogConfig::new(*b"a log in a test!");
        let complete = Box::new(|_: Lsn, _: Result<(), &LogError>, (): ()| {});
        let log = Log::open(Arc::new(SimDisk::new()), Arc::new(RealClock::new()), config, complete);
        let (log, _) = log.expect("open");
        let start = log.appender().append(&records, None).map_err(|(error, _)| error);
        let (start, end) = (start.expect("append"), Lsn(log.filled().0));
        assert_eq!(end.0, start.0 + 2);
        assert!(log.wait_durable(end, Duration::from_secs(60)));
        let mut reader = log.reader(start).expect("a reader");
        for (limit, expected) in [
            (start.0, WindowEnd::Limit),
            // The limit lies within the block, which is durable as a whole.
            (start.0 + 1, WindowEnd::Limit),
            (end.0, WindowEnd::LogEnd),
            (u64::MAX, WindowEnd::LogEnd),
        ] {
            let mut window = Window::default();
            let found = read_window(&mut reader, 1 << 16, Lsn(limit), &mut window).expect("read");
            assert_eq!(found, expected, "limit {limit}");
            assert_eq!(window.is_empty(), limit != end.0, "limit {limit}");
        }
        log.close().expect("closed");
    }
}
