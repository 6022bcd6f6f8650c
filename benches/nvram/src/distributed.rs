//! Distributed logging (Wang and Johnson, "Scalable Logging through Emerging Non-Volatile Memory", as NV-Logging compares with it in section 6). Each
//! thread has a log with its buffer in NVRAM. The logs have no order between them but a clock in each. An insertion takes its log's lock. The caches
//! keep no order, so it puts barriers between the record, the log's tail and the clock's step. A commit waits until no other log has an older record
//! on its way (passive group commit).

use std::{
    hint::spin_loop,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering, fence},
    },
};

use reprise_nvram::{LINE_BYTES, Memory, OpenMemory, Persistence, PmemError};

/// Logs that there are at most; threads beyond share them.
const LOGS: usize = 64;
/// Behind the region: the logs' tails, a line each.
const TAILS_BYTES: u64 = (LOGS * LINE_BYTES) as u64;
/// Nothing is on its way.
const IDLE: u64 = u64::MAX;

static THREADS: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static LOG: usize = THREADS.fetch_add(1, Ordering::Relaxed) % LOGS;
}

/// Regions that are written as distributed logs are.
pub struct DistributedRegions(pub Arc<dyn OpenMemory>);

#[repr(align(64))]
struct Log {
    /// Bytes inserted.
    tail: Mutex<u64>,
    clock: AtomicU64,
    on_its_way: AtomicU64,
}

struct DistributedMemory {
    memory: Arc<dyn Memory>,
    logs: Box<[Log]>,
}

impl OpenMemory for DistributedRegions {
    fn open(&self, path: &Path, bytes: Option<u64>) -> Result<Arc<dyn Memory>, PmemError> {
        let memory = self.0.open(path, bytes.map(|bytes| bytes + TAILS_BYTES))?;
        let log = |_| Log {
            tail: Mutex::new(0),
            clock: AtomicU64::new(0),
            on_its_way: AtomicU64::new(IDLE),
        };
        Ok(Arc::new(DistributedMemory {
            memory,
            logs: (0..LOGS).map(log).collect(),
        }))
    }
}

impl DistributedMemory {
    fn mine(&self) -> (usize, &Log) {
        let at = LOG.with(|at| *at);
        (at, &self.logs[at])
    }
}

impl Memory for DistributedMemory {
    fn bytes(&self) -> usize {
        self.memory.bytes() - TAILS_BYTES as usize
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let (number, log) = self.mine();
        let mut tail = log.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let now = log.clock.load(Ordering::Relaxed) + 1;
        log.on_its_way.store(now, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.memory.write(at, bytes);
        self.memory.drain();
        *tail += bytes.len() as u64;
        self.memory.store(self.bytes() + number * LINE_BYTES, *tail);
        self.memory.drain();
        log.clock.store(now, Ordering::SeqCst);
        log.on_its_way.store(IDLE, Ordering::SeqCst);
    }

    fn store(&self, at: usize, word: u64) {
        self.memory.store(at, word);
    }

    fn store_all(&self, at: usize, words: &[u64]) {
        self.memory.store_all(at, words);
    }

    fn load(&self, at: usize) -> u64 {
        self.memory.load(at)
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        self.memory.read(at, into);
    }

    fn drain(&self) {
        self.memory.drain();
        let (number, mine) = self.mine();
        let mut newest = mine.clock.load(Ordering::SeqCst);
        for other in self.logs.iter().enumerate().filter(|(at, _)| *at != number) {
            let other = other.1;
            while other.on_its_way.load(Ordering::SeqCst) <= newest {
                spin_loop();
            }
            newest = newest.max(other.clock.load(Ordering::SeqCst));
        }
        // Commits that begin after this one are newer than all that it waited for.
        mine.clock.fetch_max(newest, Ordering::SeqCst);
    }

    fn persistence(&self) -> Persistence {
        self.memory.persistence()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use reprise_nvram::{Event, RecordingMemory};

    use super::*;

    fn memory() -> (Arc<RecordingMemory>, Arc<DistributedMemory>) {
        let recording = Arc::new(RecordingMemory::new(4096 + TAILS_BYTES as usize));
        let log = |_| Log {
            tail: Mutex::new(0),
            clock: AtomicU64::new(0),
            on_its_way: AtomicU64::new(IDLE),
        };
        let memory = DistributedMemory {
            memory: recording.clone(),
            logs: (0..LOGS).map(log).collect(),
        };
        (recording, Arc::new(memory))
    }

    #[test]
    fn an_insertion_has_its_barriers() {
        let (recording, memory) = memory();
        assert_eq!(memory.bytes(), 4096);
        memory.write(128, &[3; 64]);
        let events = recording.take_events();
        assert!(
            matches!(
                events[..],
                [
                    Event::Write { at: 128, bytes: 64 },
                    Event::Drain,
                    Event::Store { word: 64, .. },
                    Event::Drain
                ]
            ),
            "{events:?}"
        );
    }

    #[test]
    fn a_commit_waits_for_what_is_older_elsewhere() {
        let (_, memory) = memory();
        memory.write(0, &[1; 64]);
        let (mine, _) = memory.mine();
        let other = &memory.logs[(mine + 1) % LOGS];
        other.on_its_way.store(1, Ordering::SeqCst);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(20));
                is_over.store(true, Ordering::SeqCst);
                other.clock.store(9, Ordering::SeqCst);
                other.on_its_way.store(IDLE, Ordering::SeqCst);
            });
            memory.drain();
            assert!(is_over.load(Ordering::SeqCst));
        });
        assert_eq!(memory.mine().1.clock.load(Ordering::SeqCst), 9);
    }
}
