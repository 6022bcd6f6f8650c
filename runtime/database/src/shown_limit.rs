//! The file that says how far a standby has shown its primary's log. It lies beside the standby's own log. After a restart the standby
//! shows as much again, and no more until its primary reports what is committed.

use std::sync::Arc;

use reprise_base::Lsn;
use reprise_env::{Disk, DiskError, DiskErrorKind, DiskFile};

/// The file holds an LSN and a check word, each of 8 bytes, so that an interrupted write is recognized. The word is the LSN's complement.
/// It is the LSN itself if a checkpoint beyond the LSN is a primary's.
pub const NAME: &str = "view";
const BYTES: usize = 16;

/// The limit of the records that a directory has shown, or may show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShownLimit {
    /// The records before this LSN, and no others.
    pub limit: Lsn,
    /// True if a checkpoint beyond the limit is a primary's, which has records that were durable there. A standby's checkpoint has
    /// committed records alone.
    pub hides_checkpoint: bool,
}

impl ShownLimit {
    fn words(self) -> [u64; 2] {
        let lsn = self.limit.0;
        [lsn, if self.hides_checkpoint { lsn } else { !lsn }]
    }
}

/// Reads the file. None: this directory follows no primary yet. A file that can't be read counts as a limit of 0, and hides checkpoints.
pub(crate) fn load(root: &dyn Disk) -> Result<Option<ShownLimit>, DiskError> {
    let file = match root.open_read(NAME) {
        Ok(file) => file,
        Err(error) if error.kind == DiskErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = [0; BYTES];
    let read = file.read_at(0, &mut bytes)?;
    let (words, _) = bytes.as_chunks::<8>();
    let words = [words[0], words[1]].map(u64::from_le_bytes);
    let known = [false, true].map(|hides_checkpoint| ShownLimit {
        limit: Lsn(words[0]),
        hides_checkpoint,
    });
    let found = known.into_iter().find(|known| read == BYTES && known.words() == words);
    Ok(Some(found.unwrap_or(ShownLimit {
        limit: Lsn(0),
        hides_checkpoint: true,
    })))
}

/// The open file. The system decides when a write becomes durable. An older value only shows less.
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

    pub fn store(&self, shown: ShownLimit) -> Result<(), DiskError> {
        let words = shown.words().map(u64::to_le_bytes);
        self.0.write_at(0, words.as_flattened())
    }
}

/// Saves the limit durably.
pub(crate) fn keep(root: &dyn Disk, shown: ShownLimit) -> Result<(), DiskError> {
    let file = ShownFile::open(root)?;
    file.store(shown)?;
    file.0.sync()
}

/// Saves the limit of a new directory with a primary's checkpoint, before the directory is opened. Records before `committed` may be shown,
/// and the rest once a primary reports them as committed.
pub fn keep_committed(root: &dyn Disk, committed: Lsn) -> Result<(), DiskError> {
    let shown = ShownLimit {
        limit: committed,
        hides_checkpoint: true,
    };
    keep(root, shown)
}

/// Lowers the limit to `end`, because the records behind it will come from another log. Readers see whole transactions only.
pub(crate) fn cut_to(root: &dyn Disk, end: Lsn) -> Result<(), DiskError> {
    match load(root)?.filter(|shown| shown.limit > end) {
        None => Ok(()),
        Some(shown) => keep(root, ShownLimit { limit: end, ..shown }),
    }
}

/// Removes the file: from now on this directory is a primary's.
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

    fn shown(limit: u64) -> ShownLimit {
        ShownLimit {
            limit: Lsn(limit),
            hides_checkpoint: false,
        }
    }

    fn hiding(limit: u64) -> ShownLimit {
        ShownLimit {
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
                let left = ShownLimit {
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
