//! Groups on a slow disk: a client that has its answer comes back at once, and the log waits for it.

use std::{
    cell::RefCell,
    sync::{Arc, Mutex},
};

use crate::common::{config, encode};
use reprise_base::Lsn;
use reprise_env::{Clock, DiskError, DiskFile, DiskFilter, FilteredDisk, SimClock, SimDisk, Stepper};
use reprise_log::{Log, LogConfig, LogError};

const WRITE_US: i64 = 120;

/// Each durable write takes `WRITE_US`.
struct Slow(Arc<SimClock>);

impl DiskFilter for Slow {
    fn write_durable_at(&self, file: &dyn DiskFile, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.0.advance_us(WRITE_US);
        file.write_durable_at(offset, bytes)
    }
}

/// A stepped log, and its clients: each append is numbered, and told with how long it took.
struct Bench {
    log: Log<usize>,
    clock: Arc<SimClock>,
    stepper: Stepper,
    told: Arc<Mutex<Vec<usize>>>,
    /// The time of each client's last append.
    since_us: RefCell<Vec<i64>>,
}

impl Bench {
    fn open(clients: usize) -> Self {
        let clock = Arc::new(SimClock::at_us(0));
        let stepper = Stepper::new(7, clock.clone());
        let disk = FilteredDisk::new(Arc::new(SimDisk::new()), Arc::new(Slow(clock.clone())));
        let told = Arc::new(Mutex::new(Vec::new()));
        let teller = told.clone();
        let complete = Box::new(move |_: Lsn, outcome: Result<(), &LogError>, client| {
            outcome.expect("durable");
            teller.lock().expect("test").push(client);
        });
        let config = LogConfig {
            segment_bytes: 1 << 20,
            ..config()
        };
        let threads = Arc::new(stepper.clone());
        let (log, _) = Log::open_on(Arc::new(disk), clock.clone(), threads, config, complete).expect("open");
        // The preparer is done with its first segment.
        (0..100).for_each(|_| _ = stepper.step());
        Self {
            log,
            clock,
            stepper,
            told,
            since_us: RefCell::new(vec![0; clients]),
        }
    }

    fn append(&self, client: usize) {
        self.since_us.borrow_mut()[client] = self.clock.now_us();
        let appended = self.log.appender().append(&encode(&["a"]), Some(client));
        appended.map_err(|e| e.0).expect("taken");
    }

    /// Steps the log for `us` microseconds. Returns the callers that were acknowledged, and the time it took them.
    fn run_us(&self, us: i64) -> Vec<(usize, i64)> {
        for _ in 0..us {
            self.stepper.step();
            self.clock.advance_us(1);
        }
        let now_us = self.clock.now_us();
        let told = std::mem::take(&mut *self.told.lock().expect("test"));
        let took = |client| (client, now_us - self.since_us.borrow()[client]);
        told.into_iter().map(took).collect()
    }

    fn flushes(&self) -> u64 {
        self.log.stats().flushes.get()
    }
}

#[test]
fn client_that_returns_at_once_shares_a_write_with_the_others() {
    const CLIENTS: usize = 64;
    let bench = Bench::open(CLIENTS);
    (0..CLIENTS).for_each(|client| bench.append(client));
    let mut answered = 0;
    let flushes = bench.flushes();
    while answered < 100 * CLIENTS {
        let told = bench.run_us(1);
        for (client, _) in &told {
            bench.append(*client);
            // The log may work while the next one comes back.
            bench.stepper.step();
            let others = std::mem::take(&mut *bench.told.lock().expect("test"));
            answered += others.len();
            others.into_iter().for_each(|client| bench.append(client));
        }
        answered += told.len();
    }
    let writes = bench.flushes() - flushes;
    assert!(writes <= 105, "{writes} writes for 100 rounds of 64");
}

#[test]
fn calls_that_come_on_their_own_are_told_after_one_write() {
    let bench = Bench::open(40);
    let (mut slow, mut told) = (0, 0);
    for round in 0..2_000 {
        // Two clients get their answers together, and neither of them comes back soon.
        bench.append(round % 20);
        bench.append(20 + round % 20);
        bench.run_us(0);
        let mut answers = bench.run_us(40);
        answers.extend(bench.run_us(160));
        told += answers.len();
        slow += answers.iter().filter(|(_, took_us)| *took_us > WRITE_US + 60).count();
    }
    assert_eq!(told, 4_000);
    assert!(slow < 100, "{slow} of {told} waited for others");
}

#[test]
fn waiter_for_durability_is_not_delayed() {
    let bench = Bench::open(8);
    (0..8).for_each(|client| bench.append(client));
    while bench.run_us(1).is_empty() {}
    // Eight have their answers; one is back, and a deployment waits for its record.
    bench.append(0);
    let start = bench.log.appender().append(&encode(&["deployed"]), None);
    let end = Lsn(start.map_err(|e| e.0).expect("taken").0 + 1);
    let before_us = bench.clock.now_us();
    assert!(bench.log.wait_durable(end, std::time::Duration::from_secs(1)));
    let took_us = bench.clock.now_us() - before_us;
    // The stepper moves time in pieces of five milliseconds while all works wait.
    assert!(took_us <= WRITE_US + 10, "{took_us} us");
}
