//! A small file system of its own, where that is permitted.

use std::{
    ffi::CString,
    fs::{self, File},
    io::{self, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use reprise_test_crash::skip;

/// A mounted tmpfs. Unmounted with this.
pub struct Mount {
    pub path: PathBuf,
}

impl Mount {
    /// None, with the reason printed, where mounting is not permitted.
    pub fn tmpfs(path: &Path, bytes: usize) -> Result<Option<Self>> {
        fs::create_dir_all(path).context("create the mount point")?;
        match mount(path, 0, bytes) {
            Ok(()) => Ok(Some(Self { path: path.to_owned() })),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENODEV)) => {
                skip(
                    "a disk of limited size",
                    &format!("a tmpfs can't be mounted here: {error}"),
                );
                Ok(None)
            }
            Err(error) => Err(error).context("mount a tmpfs"),
        }
    }

    pub fn resize(&self, bytes: usize) -> Result<()> {
        mount(&self.path, libc::MS_REMOUNT, bytes).context("give the tmpfs another size")
    }

    pub fn make_read_only(&self, bytes: usize) -> Result<()> {
        mount(&self.path, libc::MS_REMOUNT | libc::MS_RDONLY, bytes).context("mount the tmpfs read-only")
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let Ok(path) = CString::new(self.path.as_os_str().as_bytes()) else {
            return; // it could not have been mounted
        };
        // SAFETY: the pointer is valid for the length of the call.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

fn mount(path: &Path, flags: libc::c_ulong, bytes: usize) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let options = CString::new(format!("size={bytes}"))?;
    // SAFETY: all pointers are valid strings for the length of the call.
    let result = unsafe {
        libc::mount(
            c"tmpfs".as_ptr(),
            path.as_ptr(),
            c"tmpfs".as_ptr(),
            flags,
            options.as_ptr().cast(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Writes a file until the disk is full.
pub fn fill(path: &Path) -> Result<()> {
    let mut file = File::create(path).context("create the filler")?;
    for size in [1 << 20, 1 << 12] {
        loop {
            match file.write_all(&vec![7; size]) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => break,
                Err(error) => return Err(error).context("fill the disk"),
            }
        }
    }
    Ok(())
}
