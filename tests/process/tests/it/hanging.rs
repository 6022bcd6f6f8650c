//! A disk of the backups that hangs, as a network disk does whose server is gone. Backups alone wait for it, and the server still ends.

use std::{
    ffi::CString,
    fs::{self, File},
    io,
    os::{fd::AsRawFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Launch, Server, skip};
use reprise_test_process::{check, open_accounts};

/// A file system whose server answers nothing. It ends with this.
struct HangingDisk {
    path: PathBuf,
    /// The kernel waits for answers here. Once it is closed, each access to the disk fails.
    _answers: File,
}

impl HangingDisk {
    /// Mounts it on a directory. None, with the reason printed, where that is not permitted.
    fn mount(path: &Path) -> Result<Option<Self>> {
        let answers = File::options().read(true).write(true).open("/dev/fuse");
        let mounted = answers.and_then(|answers| mount(path, &answers).map(|()| answers));
        match mounted {
            Ok(answers) => Ok(Some(Self {
                path: path.to_owned(),
                _answers: answers,
            })),
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EPERM | libc::EACCES | libc::ENOENT | libc::ENXIO | libc::ENODEV)
                ) =>
            {
                skip(
                    "a disk that hangs",
                    &format!("a file system of FUSE can't be mounted here: {error}"),
                );
                Ok(None)
            }
            Err(error) => Err(error).context("mount a file system of FUSE"),
        }
    }
}

impl Drop for HangingDisk {
    fn drop(&mut self) {
        let Ok(path) = CString::new(self.path.as_os_str().as_bytes()) else {
            return; // it could not have been mounted
        };
        // SAFETY: the pointer is valid for the length of the call.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

fn mount(path: &Path, answers: &File) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let fd = answers.as_raw_fd();
    let options = CString::new(format!("fd={fd},rootmode=40000,user_id=0,group_id=0"))?;
    // SAFETY: all pointers are valid strings for the length of the call.
    let result = unsafe {
        libc::mount(
            c"hanging".as_ptr(),
            path.as_ptr(),
            c"fuse".as_ptr(),
            0,
            options.as_ptr().cast(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[test]
fn backups_alone_wait_when_their_disk_hangs_and_the_server_still_ends() -> Result<()> {
    /// Places for operations on backups, and requests beyond them.
    const PLACES: usize = 4;
    const BEYOND: usize = 2;
    let dir = tempfile::tempdir()?;
    let place = dir.path().join("disk");
    fs::create_dir(&place)?;
    let backups = place.join("backups");
    let backups = backups.to_str().context("a path in UTF-8")?;
    let launch = Launch::new(&dir.path().join("data")).args(&["--backup-dir", backups]);
    let server = Server::start(&launch)?;
    let mut tally = open_accounts(&server, 2)?;
    let Some(disk) = HangingDisk::mount(&place)? else {
        return Ok(());
    };
    let mut lists = Vec::new();
    for _ in 0..PLACES + BEYOND {
        let mut connection = server.connect()?;
        connection.send("GET", "/v1/backups", &[], b"")?;
        lists.push(connection);
    }
    thread::sleep(Duration::from_millis(500)); // they take their places
    for (method, path, status) in [
        ("POST", "/v1/checkpoints", 202),
        ("POST", "/v1/replication/promote", 409),
        ("DELETE", "/v1/replication/standbys/b", 404),
        ("DELETE", "/v1/tables/bank.none", 404),
    ] {
        let answer = server.request(method, path, &[], b"")?;
        ensure!(answer.status == status, "{method} {path}: {}", answer.text());
    }
    let mut connection = server.connect()?;
    ensure!(tally.batch(&mut connection, 10)?, "the connection was cut");
    ensure!(tally.refused.is_empty(), "{:?}", tally.problems);
    let mut problems = Vec::new();
    for mut list in lists {
        let answer = list.receive().map_err(|cut| cut.error)?;
        problems.push(answer.json()["type"].as_str().unwrap_or_default().to_owned());
    }
    problems.sort();
    let (beyond, waiting) = problems.split_at(BEYOND);
    let are_all = |found: &[String], problem: &str| found.iter().all(|found| found == problem);
    ensure!(
        are_all(beyond, "/problems/overloaded") && are_all(waiting, "/problems/unavailable"),
        "{problems:?}"
    );
    // Four threads still wait for the disk.
    let (status, errors) = server.terminate()?;
    ensure!(status.code() == Some(0), "{status}: {errors}");
    drop(disk);
    check(&Server::start(&launch)?, &[tally])
}
