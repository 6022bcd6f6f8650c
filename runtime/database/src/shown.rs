//! How far a standby has shown the log of its primary, kept beside its own log: it shows as much after a restart, and no more before its
//! primary says what is committed.

use std::sync::Arc;

use reprise_base::Lsn;
use reprise_env::{Disk, DiskError, DiskErrorKind, DiskFile};

/// An LSN and a check word, each of 8 bytes: a write that was cut is known by them. The word is the LSN's complement; the LSN again, where a checkpoint
/// beyond it is a primary's.
pub const NAME: &str = "view";
const BYTES: usize = 16;

/// The records that a directory has shown of its log, or may show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Everything before it, and no more.
    pub limit: Lsn,
    /// A checkpoint beyond the limit is a primary's: it has what was durable there. A standby's has what is committed.
    pub hides_checkpoint: bool,
}

impl Shown {
    fn words(self) -> [u64; 2] {
        let lsn = self.limit.0;
        [lsn, if self.hides_checkpoint { lsn } else { !lsn }]
    }
}

/// None: this directory follows no primary yet. What can't be read was nothing, and hides what it may.
pub(crate) fn load(root: &dyn Disk) -> Result<Option<Shown>, DiskError> {
    let file = match root.open_read(NAME) {
        Ok(file) => file,
        Err(error) if error.kind == DiskErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = [0; BYTES];
    let read = file.read_at(0, &mut bytes)?;
    let (words, _) = bytes.as_chunks::<8>();
    let words = [words[0], words[1]].map(u64::from_le_bytes);
    let known = [false, true].map(|hides_checkpoint| Shown {
        limit: Lsn(words[0]),
        hides_checkpoint,
    });
    let found = known.into_iter().find(|known| read == BYTES && known.words() == words);
    Ok(Some(found.unwrap_or(Shown {
        limit: Lsn(0),
        hides_checkpoint: true,
    })))
}

/// The file, open. What is written is durable when the system gets to it: an older value shows less, and nothing wrong.
pub(crate) struct ShownFile(Arc<dyn DiskFile>);

impl ShownFile {
    pub fn open(root: &dyn Disk) -> Result<Self, DiskError> {
        match root.open(NAME) {
            Err(error) if error.kind == DiskErrorKind::NotFound => {
                let file = root.create(NAME)?;
                root.sync_dir()?;
                Ok(Self(file))
            }
            opened => Ok(Self(opened?)),
        }
    }

    pub fn store(&self, shown: Shown) -> Result<(), DiskError> {
        let words = shown.words().map(u64::to_le_bytes);
        self.0.write_at(0, words.as_flattened())
    }
}

/// Durably.
pub(crate) fn keep(root: &dyn Disk, shown: Shown) -> Result<(), DiskError> {
    let file = ShownFile::open(root)?;
    file.store(shown)?;
    file.0.sync()
}

/// For a new directory with a primary's checkpoint, before it is opened: everything before an LSN may be shown, and the rest once a primary says that it
/// is committed.
pub fn keep_committed(root: &dyn Disk, committed: Lsn) -> Result<(), DiskError> {
    let shown = Shown {
        limit: committed,
        hides_checkpoint: true,
    };
    keep(root, shown)
}

/// Nothing is left of what was shown behind `end`: what comes there is another log's, and whole transactions are shown.
pub(crate) fn cut_to(root: &dyn Disk, end: Lsn) -> Result<(), DiskError> {
    match load(root)?.filter(|shown| shown.limit > end) {
        None => Ok(()),
        Some(shown) => keep(root, Shown { limit: end, ..shown }),
    }
}

/// This directory is a primary's from now on.
pub(crate) fn forget(root: &dyn Disk) -> Result<(), DiskError> {
    match root.remove(NAME) {
        Err(error) if error.kind == DiskErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => root.sync_dir(),
    }
}

#[cfg(test)]
mod tests {
    use reprise_env::SimDisk;

    use super::*;

    fn shown(limit: u64) -> Shown {
        Shown {
            limit: Lsn(limit),
            hides_checkpoint: false,
        }
    }

    fn hiding(limit: u64) -> Shown {
        Shown {
            hides_checkpoint: true,
            ..shown(limit)
        }
    }

    #[test]
    fn a_view_reads_back_and_what_was_cut_is_nothing() {
        let disk = SimDisk::new();
        assert_eq!(load(&disk), Ok(None));
        let file = ShownFile::open(&disk).expect("opened");
        assert_eq!(load(&disk), Ok(Some(hiding(0))), "nothing was written yet");
        for lsn in [0, 7, u64::MAX] {
            for stored in [shown(lsn), hiding(lsn)] {
                file.store(stored).expect("stored");
                assert_eq!(load(&disk), Ok(Some(stored)));
            }
        }
        file.0.write_at(3, &[1]).expect("damaged");
        assert_eq!(load(&disk), Ok(Some(hiding(0))));
        let again = ShownFile::open(&disk).expect("opened");
        for stored in [shown(9), hiding(9)] {
            again.store(stored).expect("stored");
            assert_eq!(load(&disk), Ok(Some(stored)));
            for (end, left) in [(12, 9), (4, 4), (7, 4), (0, 0)] {
                cut_to(&disk, Lsn(end)).expect("cut");
                let left = Shown {
                    limit: Lsn(left),
                    ..stored
                };
                assert_eq!(load(&disk), Ok(Some(left)), "cut to {end}");
            }
        }
        keep_committed(&disk, Lsn(5)).expect("kept");
        assert_eq!(load(&disk), Ok(Some(hiding(5))));
        forget(&disk).expect("removed");
        forget(&disk).expect("there is none");
        cut_to(&disk, Lsn(0)).expect("nothing was shown");
        assert_eq!(load(&disk), Ok(None));
    }
}
