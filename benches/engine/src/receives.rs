//! The work of a standby in NVRAM on a group between its arrival over RDMA and its acknowledgement. The product (`copied`) takes it out of
//! the card's ring, checks it, and writes it into the region's ring. Beside it, `in-place` has a card's ring that is itself persistent
//! memory: the group is checked and flushed there. Its copy to the log's device comes after the acknowledgement.
//!
//! `receives [BYTES] [GROUPS]`. Both ways take turns, on memory that is taken for persistent.

use std::{
    error::Error,
    ffi::{CString, c_char, c_int, c_void},
    hint::black_box,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use libloading::Library;
use reprise_base::{Epoch, Lsn, TxnId};
use reprise_nvram::{FlushPolicy, Memory, Owner, Pmem, PmemOptions, Region, RingWriter};
use reprise_wire::{Frame, GroupFrame, History, RawRecords, RecordBatch, RecordRef, RemoveRef};

use crate::Args;

const RING_BYTES: usize = 4 << 20;
const REGION_BYTES: u64 = 64 << 20;

type MapFile = unsafe extern "C" fn(*const c_char, usize, c_int, u32, *mut usize, *mut c_int) -> *mut c_void;

/// A ring that a card writes, in a file that is taken for persistent memory.
struct PersistentRing {
    base: *mut u8,
    flush: unsafe extern "C" fn(*const c_void, usize),
    drain: unsafe extern "C" fn(),
    _library: Library,
}

impl PersistentRing {
    fn map(path: &Path) -> Result<Self, Box<dyn Error>> {
        let name = CString::new(path.as_os_str().as_encoded_bytes())?;
        // SAFETY: libpmem's own names and types; the library is kept beside its functions.
        unsafe {
            let library = Library::new("libpmem.so.1")?;
            let map: MapFile = *library.get(b"pmem_map_file\0")?;
            let base = map(name.as_ptr(), RING_BYTES, 1, 0o600, &mut 0, &mut 0);
            if base.is_null() {
                return Err("the ring can't be mapped".into());
            }
            Ok(Self {
                base: base.cast(),
                flush: *library.get(b"pmem_flush\0")?,
                drain: *library.get(b"pmem_drain\0")?,
                _library: library,
            })
        }
    }

    /// Writes a frame as a card does: into the caches.
    fn arrive(&mut self, at: usize, frame: &[u8]) {
        assert!(at + frame.len() <= RING_BYTES);
        // SAFETY: within the mapping, to which no other thread has a reference.
        unsafe { self.base.add(at).copy_from_nonoverlapping(frame.as_ptr(), frame.len()) };
    }

    fn get(&self, at: usize, bytes: usize) -> &[u8] {
        assert!(at + bytes <= RING_BYTES);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.base.add(at), bytes) }
    }

    #[inline(never)]
    fn flush_in_place(&self, at: usize, bytes: usize) {
        assert!(at + bytes <= RING_BYTES);
        // SAFETY: within the mapping.
        unsafe {
            (self.flush)(self.base.add(at).cast(), bytes);
            (self.drain)();
        }
    }
}

#[inline(never)]
fn copy_out(ring: &[u8], at: usize, bytes: usize) -> Vec<u8> {
    let mut frame = vec![0; bytes];
    frame.copy_from_slice(&ring[at..at + bytes]);
    frame
}

/// The frame's checksum, the history behind it, and its records one by one.
#[inline(never)]
fn check_frame(frame: &[u8], before: History) -> Result<(History, u32), Box<dyn Error>> {
    let Frame::Group(group) = Frame::decode(frame)? else {
        return Err("another frame".into());
    };
    let history = before.then(group.records);
    let mut count = 0;
    for record in RawRecords::new(group.records) {
        record?;
        count += 1;
    }
    Ok((history, count))
}

#[inline(never)]
fn into_region(writer: &mut RingWriter, lsn: Lsn, count: u32, records: &[u8]) -> Result<(), Box<dyn Error>> {
    writer.records(lsn, count, records, &[])?;
    writer.persist();
    Ok(())
}

/// Returns a group of short records, of about `bytes` bytes.
fn frame_of(bytes: usize) -> Vec<u8> {
    let name = "n".repeat(40);
    let mut records = RecordBatch::default();
    while records.bytes().len() < bytes {
        let txn_id = TxnId::new(1, 0);
        records.push(&RecordRef::Remove(RemoveRef {
            txn_id,
            name: &name,
            destroyed: Default::default(),
        }));
    }
    let group = GroupFrame {
        epoch: Epoch::new(1, 0),
        first: Lsn(0),
        end: Lsn(u64::from(records.count())),
        history: History::default(),
        records: records.bytes(),
    };
    [&group.head()[..], records.bytes()].concat()
}

fn in_memory(name: &str) -> PathBuf {
    format!("/dev/shm/reprise-receives-{name}-{}", std::process::id()).into()
}

pub fn run(mut args: Args) -> Result<(), Box<dyn Error>> {
    let bytes = args.next().map_or(Ok(4_096), |text| text.parse::<usize>())?;
    let groups = args.next().map_or(Ok(20_000), |text| text.parse::<u64>())?;
    let (region_path, ring_path) = (in_memory("region"), in_memory("ring"));
    let memory: Arc<dyn Memory> = Arc::new(Pmem::open(&PmemOptions {
        path: region_path.clone(),
        bytes: Some(REGION_BYTES),
        assume_persistent: true,
    })?);
    let mut persistent = PersistentRing::map(&ring_path)?;
    std::fs::remove_file(region_path)?;
    std::fs::remove_file(ring_path)?;
    let frame = frame_of(bytes);
    let records_at = frame.len()
        - match Frame::decode(&frame)? {
            Frame::Group(group) => group.records.len(),
            _ => return Err("another frame".into()),
        };
    let region = Region::format(memory, Owner::default(), 1, 80_000, (Epoch::new(1, 0), Lsn(0)))?;
    let (mut writer, mut reader) = region.rings(FlushPolicy::OnCommit).remove(0);
    let mut volatile = vec![0_u8; RING_BYTES];
    let (mut copied_ns, mut in_place_ns, mut lsn) = (0, 0, 0);
    for group in 0..groups as usize {
        let at = (group * frame.len().next_multiple_of(64)) % (RING_BYTES - frame.len()) & !63;
        volatile[at..at + frame.len()].copy_from_slice(&frame);
        let began = Instant::now();
        let own = copy_out(&volatile, at, frame.len());
        let (history, count) = check_frame(&own, History::default())?;
        into_region(&mut writer, Lsn(lsn), count, &own[records_at..])?;
        copied_ns += began.elapsed().as_nanos();
        black_box(history);
        lsn += u64::from(count);
        persistent.arrive(at, &frame);
        let began = Instant::now();
        let (history, _) = check_frame(persistent.get(at, frame.len()), History::default())?;
        persistent.flush_in_place(at, frame.len());
        in_place_ns += began.elapsed().as_nanos();
        black_box(history);
        let taken = reader.next_record().map_err(|entry| format!("damaged at {entry}"))?;
        reader.free(&taken.ok_or("it was persisted")?);
    }
    let each = |ns: u128| ns / u128::from(groups);
    println!(
        "{} bytes: copied {} ns, in place {} ns: {:.2} x",
        frame.len(),
        each(copied_ns),
        each(in_place_ns),
        in_place_ns as f64 / copied_ns as f64
    );
    Ok(())
}
