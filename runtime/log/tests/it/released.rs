//! A reader on its way to its first record, while the log releases segments that it has passed.

use std::sync::{Arc, Mutex};

use crate::common::{WAIT_MAX, config, encode, words_in};
use reprise_base::Lsn;
use reprise_env::{DiskError, DiskFile, DiskFilter, FilteredDisk, RealClock, SimDisk};
use reprise_log::{Log, LogError};

type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// Something happens behind the next read.
struct BehindRead(Hook);

impl DiskFilter for BehindRead {
    fn read_at(&self, file: &dyn DiskFile, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        let read = file.read_at(offset, buffer);
        let hook = self.0.lock().expect("test").take();
        hook.into_iter().for_each(|hook| hook());
        read
    }
}

fn append(log: &Log<()>, word: &str) -> Lsn {
    let start = log.appender().append(&encode(&[word]), None).map_err(|error| error.0);
    let end = Lsn(start.expect("append").0 + 1);
    assert!(log.wait_durable(end, WAIT_MAX));
    end
}

/// Wherever the reader is: released records are no damage.
#[test]
fn a_reader_outlives_a_release_of_what_it_has_passed_over() {
    let mut jumped = 0;
    for blocks in 1..10 {
        let (disk, hook) = (SimDisk::new(), Hook::default());
        let complete = Box::new(|_: Lsn, _: Result<(), &LogError>, ()| {});
        let hooked = Arc::new(FilteredDisk::new(
            Arc::new(disk.clone()),
            Arc::new(BehindRead(hook.clone())),
        ));
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
