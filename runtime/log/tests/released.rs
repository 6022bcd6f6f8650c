//! A reader on its way to its first record, under which the log lets go of what it has passed over.

mod common;

use std::sync::{Arc, Mutex};

use common::{WAIT_MAX, config, encode, words_in};
use reprise_base::Lsn;
use reprise_env::{Disk, DiskError, DiskFile, DiskLock, RealClock, SimDisk};
use reprise_log::{Log, LogError};

type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A disk on which something happens behind the next read of a file that is opened to be read.
struct Hooked(SimDisk, Hook);

struct HookedFile(Arc<dyn DiskFile>, Hook);

impl Disk for Hooked {
    fn create(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.0.create(name)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.0.open(name)
    }

    fn open_read(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        let file = self.0.open_read(name)?;
        Ok(Arc::new(HookedFile(file, self.1.clone())))
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        self.0.list()
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.0.remove(name)
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        self.0.sync_dir()
    }

    fn lock(&self) -> Result<DiskLock, DiskError> {
        self.0.lock()
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}

impl DiskFile for HookedFile {
    fn len(&self) -> Result<u64, DiskError> {
        self.0.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        let read = self.0.read_at(offset, buffer);
        let hook = self.1.lock().expect("test").take();
        hook.into_iter().for_each(|hook| hook());
        read
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.0.write_at(offset, bytes)
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.0.write_durable_at(offset, bytes)
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.0.sync()
    }

    fn preallocate(&self, bytes: u64) -> Result<(), DiskError> {
        self.0.preallocate(bytes)
    }
}

fn append(log: &Log<()>, word: &str) -> Lsn {
    let start = log.appender().append(&encode(&[word]), None).map_err(|error| error.0);
    let end = Lsn(start.expect("append").0 + 1);
    assert!(log.wait_durable(end, WAIT_MAX));
    end
}

/// Wherever it is on its way: what was let go is no damage.
#[test]
fn a_reader_outlives_a_release_of_what_it_has_passed_over() {
    let mut jumped = 0;
    for blocks in 1..10 {
        let (disk, hook) = (SimDisk::new(), Hook::default());
        let complete = Box::new(|_: Lsn, _: Result<(), &LogError>, ()| {});
        let hooked = Arc::new(Hooked(disk.clone(), hook.clone()));
        let (log, _) = Log::open(hooked, Arc::new(RealClock::new()), config(), complete).expect("open");
        let log = Arc::new(log);
        let ends: Vec<_> = (0..blocks)
            .map(|number| append(&log, &format!("w{number}*3000")))
            .collect();
        let end = *ends.last().expect("some");
        let mut reader = log.reader(end).expect("reader");
        let running = log.clone();
        *hook.lock().expect("test") = Some(Box::new(move || {
            for number in 0..6 {
                append(&running, &format!("n{number}*9000"));
            }
            running.release_before(end).expect("release");
        }));
        let words = words_in(&mut reader);
        assert_eq!(
            words,
            ["n0*9000", "n1*9000", "n2*9000", "n3*9000", "n4*9000", "n5*9000"],
            "{blocks} blocks"
        );
        jumped += u64::from(log.start() > Lsn(0));
        drop(reader);
        log.close().expect("close");
    }
    assert!(jumped > 0, "nothing was let go");
}
