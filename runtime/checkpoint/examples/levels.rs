//! What the compression of checkpoints takes and gives, by level:
//! `cargo run --release -p reprise-checkpoint --example levels FOLDER`, the folder being one with checkpoints.
//!
//! Of the newest one's rows, up to 64 MiB: their part that is left, MB of rows a second to make and to read, checksum included.

use std::{path::PathBuf, sync::Arc, time::Instant};

use reprise_checkpoint::Checkpoints;
use reprise_env::RealDisk;
use reprise_wire::CheckpointBlockKind;
use zstd::bulk::{Compressor, Decompressor};

const SAMPLE_BYTES: usize = 64 << 20;
const LEVELS: [i32; 7] = [-7, -5, -3, -1, 1, 2, 3];

fn main() {
    let folder = std::env::args().nth(1).expect("a folder with checkpoints");
    let disk = RealDisk::open(PathBuf::from(folder)).expect("it can be opened");
    let files = Checkpoints::new(Arc::new(disk));
    let newest = files.list().expect("listed").pop().expect("a checkpoint");
    let reader = files.open(newest).expect("a whole one");
    let mut blocks = reader.blocks();
    let (mut sample, mut bytes) = (Vec::new(), 0);
    for (number, entry) in reader.entries().iter().enumerate() {
        if entry.kind == CheckpointBlockKind::Rows && bytes < SAMPLE_BYTES {
            sample.push(blocks.read(number).expect("whole").to_vec());
            bytes += entry.raw_bytes as usize;
        }
    }
    for level in LEVELS {
        measure(level, &sample, bytes);
    }
}

fn measure(level: i32, sample: &[Vec<u8>], bytes: usize) {
    let mut compressor = Compressor::new(level).expect("a level");
    let mut decompressor = Decompressor::new().expect("a decompressor");
    let speed = |begun: Instant| bytes as f64 / 1e6 / begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let stored: Vec<_> = sample
        .iter()
        .map(|raw| compressor.compress(raw).expect("compressed"))
        .collect();
    let made = speed(begun);
    let mut raw = Vec::with_capacity(sample.iter().map(Vec::len).max().unwrap_or(0));
    let begun = Instant::now();
    for block in &stored {
        raw.clear();
        let read = decompressor.decompress_to_buffer(block, &mut raw);
        read.expect("its own frame");
    }
    let left = stored.iter().map(Vec::len).sum::<usize>() as f64 / bytes as f64;
    println!(
        "level {level:>2}: {:.0} % left, made at {made:.0} MB/s, read at {:.0} MB/s",
        left * 100.0,
        speed(begun)
    );
}
