//! How far a standby has shown the log of its primary, kept beside its own log: it shows as much after a restart, and no more before its
//! primary says what is committed.

use std::sync::Arc;

use reprise_base::Lsn;
use reprise_env::{Disk, DiskError, DiskErrorKind, DiskFile};

/// An LSN and its complement, each of 8 bytes: a write that was cut is known by them.
pub const NAME: &str = "view";
const BYTES: usize = 16;

/// None: this directory follows no primary yet. What can't be read was nothing.
pub(crate) fn load(root: &dyn Disk) -> Result<Option<Lsn>, DiskError> {
    let file = match root.open_read(NAME) {
        Ok(file) => file,
        Err(error) if error.kind == DiskErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = [0; BYTES];
    let read = file.read_at(0, &mut bytes)?;
    let (words, _) = bytes.as_chunks::<8>();
    let [lsn, complement] = [words[0], words[1]].map(u64::from_le_bytes);
    Ok(Some(Lsn(if read == BYTES && complement == !lsn { lsn } else { 0 })))
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

    pub fn store(&self, view: Lsn) -> Result<(), DiskError> {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&view.0.to_le_bytes());
        bytes[8..].copy_from_slice(&(!view.0).to_le_bytes());
        self.0.write_at(0, &bytes)
    }
}

/// For a new directory, before it is opened: everything before an LSN may be shown, and the rest once a primary says that it is committed.
pub fn keep_committed(root: &dyn Disk, committed: Lsn) -> Result<(), DiskError> {
    let file = ShownFile::open(root)?;
    file.store(committed)?;
    file.0.sync()
}

/// Nothing is left of what was shown behind `end`: what comes there is another log's, and whole transactions are shown.
pub(crate) fn cut_to(root: &dyn Disk, end: Lsn) -> Result<(), DiskError> {
    if load(root)?.is_none_or(|shown| shown <= end) {
        return Ok(());
    }
    keep_committed(root, end)
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

    #[test]
    fn a_view_reads_back_and_what_was_cut_is_nothing() {
        let disk = SimDisk::new();
        assert_eq!(load(&disk), Ok(None));
        let file = ShownFile::open(&disk).expect("opened");
        assert_eq!(load(&disk), Ok(Some(Lsn(0))), "nothing was written yet");
        for lsn in [0, 7, u64::MAX] {
            file.store(Lsn(lsn)).expect("stored");
            assert_eq!(load(&disk), Ok(Some(Lsn(lsn))));
        }
        file.0.write_at(3, &[1]).expect("damaged");
        assert_eq!(load(&disk), Ok(Some(Lsn(0))));
        let again = ShownFile::open(&disk).expect("opened");
        again.store(Lsn(9)).expect("stored");
        assert_eq!(load(&disk), Ok(Some(Lsn(9))));
        for (end, left) in [(12, 9), (4, 4), (7, 4), (0, 0)] {
            cut_to(&disk, Lsn(end)).expect("cut");
            assert_eq!(load(&disk), Ok(Some(Lsn(left))), "cut to {end}");
        }
        forget(&disk).expect("removed");
        forget(&disk).expect("there is none");
        cut_to(&disk, Lsn(0)).expect("nothing was shown");
        assert_eq!(load(&disk), Ok(None));
    }
}
