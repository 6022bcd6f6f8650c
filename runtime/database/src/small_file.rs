//! Small files beside the log: read as a whole, and replaced as a whole.

use reprise_env::{Disk, DiskError, DiskErrorKind};

/// Bytes of such a file at most.
const BYTES_MAX: u64 = 1 << 20;

/// Reads a file. None: there is no such file.
pub(crate) fn read(disk: &dyn Disk, name: &str) -> Result<Option<Vec<u8>>, DiskError> {
    let file = match disk.open_read(name) {
        Ok(file) => file,
        Err(error) if error.kind == DiskErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; file.len()?.min(BYTES_MAX) as usize];
    let read = file.read_at(0, &mut bytes)?;
    bytes.truncate(read);
    Ok(Some(bytes))
}

/// Replaces a file. After a crash, either the old or the new file is there. When the call returns, the new one is durable.
pub(crate) fn replace(disk: &dyn Disk, name: &str, bytes: &[u8]) -> Result<(), DiskError> {
    let temporary = format!("{name}.tmp");
    remove(disk, &temporary)?;
    let file = disk.create(&temporary)?;
    file.write_at(0, bytes)?;
    file.sync()?;
    disk.rename(&temporary, name)?;
    disk.sync_dir()
}

/// Removes the file, if it is there.
pub(crate) fn remove(disk: &dyn Disk, name: &str) -> Result<(), DiskError> {
    match disk.remove(name) {
        Err(error) if error.kind != DiskErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
