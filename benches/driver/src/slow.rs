//! Persistent memory that takes longer to be written, as the paper emulates it. The thread that flushes a line of the cache spins behind it for that
//! time (NV-Logging, section 6.1). Reads take no longer.

use std::{
    hint::spin_loop,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use reprise_nvram::{LINE_BYTES, Memory, OpenMemory, Persistence, PmemError};

/// Spins for the extra time of a write: `line` for each line of the cache that it touches.
pub fn spin_for_lines(line: Duration, at: u64, bytes: u64) {
    if line.is_zero() || bytes == 0 {
        return;
    }
    let line_bytes = LINE_BYTES as u64;
    let lines = (at + bytes).div_ceil(line_bytes) - at / line_bytes;
    let began = Instant::now();
    let long = line.saturating_mul(u32::try_from(lines).unwrap_or(u32::MAX));
    while began.elapsed() < long {
        spin_loop();
    }
}

/// Regions whose lines take longer to be written.
pub struct SlowRegions {
    pub regions: Arc<dyn OpenMemory>,
    pub line: Duration,
}

struct SlowMemory {
    memory: Arc<dyn Memory>,
    line: Duration,
}

impl OpenMemory for SlowRegions {
    fn open(&self, path: &Path, bytes: Option<u64>) -> Result<Arc<dyn Memory>, PmemError> {
        let (memory, line) = (self.regions.open(path, bytes)?, self.line);
        Ok(Arc::new(SlowMemory { memory, line }))
    }
}

impl Memory for SlowMemory {
    fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.memory.write(at, bytes);
        spin_for_lines(self.line, at as u64, bytes.len() as u64);
    }

    fn store(&self, at: usize, word: u64) {
        self.store_all(at, &[word]);
    }

    fn store_all(&self, at: usize, words: &[u64]) {
        self.memory.store_all(at, words);
        spin_for_lines(self.line, at as u64, words.len() as u64 * 8);
    }

    fn load(&self, at: usize) -> u64 {
        self.memory.load(at)
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        self.memory.read(at, into);
    }

    fn drain(&self) {
        self.memory.drain();
    }

    fn persistence(&self) -> Persistence {
        self.memory.persistence()
    }
}

#[cfg(test)]
mod tests {
    use reprise_nvram::RecordingMemory;

    use super::*;

    struct Fake;

    impl OpenMemory for Fake {
        fn open(&self, _: &Path, bytes: Option<u64>) -> Result<Arc<dyn Memory>, PmemError> {
            Ok(Arc::new(RecordingMemory::new(bytes.unwrap_or(4096) as usize)))
        }
    }

    #[test]
    fn each_line_that_is_written_takes_longer() {
        let line = Duration::from_micros(200);
        let slow = SlowRegions {
            regions: Arc::new(Fake),
            line,
        };
        let memory = slow.open(Path::new("region"), None).expect("memory");
        for (at, bytes, lines) in [(0, 1, 1), (0, 64, 1), (60, 8, 2), (64, 640, 10)] {
            let began = Instant::now();
            memory.write(at, &vec![7; bytes]);
            assert!(began.elapsed() >= line * lines, "{bytes} bytes at {at}");
        }
        let began = Instant::now();
        memory.store_all(128, &[1; 9]);
        assert!(began.elapsed() >= line * 2);
        let mut back = [0; 8];
        memory.read(128, &mut back);
        assert_eq!((u64::from_le_bytes(back), memory.load(192)), (1, 1));
    }
}
