//! Changes that go to NVRAM as they are made. The parts of a commit in the region and in its record are together the transaction's changes.
//! This holds whatever was rolled back, changed twice or without room meanwhile.

use std::sync::Arc;

use crate::bed::{Random, deployed, run};
use reprise_abi::{ColumnSet, Field, HostOps, IndexTarget, OpError, RowLayout, ScalarType};
use reprise_base::{Epoch, Lsn, PlacedBytes};
use reprise_nvram::{Event, FlushPolicy, Owner, RecordingMemory, Region, RingReader, RingWriter};
use reprise_storage::{AfterImage, Store};
use reprise_txn::{Deployed, Outcome, TxnScratch};

const SCHEMA: &str = r#"{"abi":1,"tables":[
    {"name":"keyed","columns":[{"name":"w","type":"u32"},{"name":"k","type":"u32"},{"name":"v","type":"u64"},{"name":"t","type":"text"}],
     "primary_key":["w","k"],"indexes":[],"placement":{"by":"w"}}],
  "procedures":[{"name":"p","params":[],"returns":"unit","partitioning":"all"}]}"#;
const TABLE: u16 = 0;
const ROWS: u32 = 40;

fn layout() -> RowLayout {
    let types = [ScalarType::U32, ScalarType::U32, ScalarType::U64, ScalarType::Text];
    RowLayout::from_types(types.into_iter().map(|ty| (ty, false)))
}

fn row(w: u32, k: u32, v: u64, text: &str) -> Vec<u8> {
    layout().build(&[
        Field::Uint(w.into()),
        Field::Uint(k.into()),
        Field::Uint(v),
        Field::Text(text),
    ])
}

fn key(w: u32, k: u32) -> Vec<u8> {
    [w.to_be_bytes(), k.to_be_bytes()].concat()
}

struct Bench {
    stores: Vec<Store>,
    deployed: Deployed,
    frame: TxnScratch,
    memory: Arc<RecordingMemory>,
    writer: RingWriter,
    reader: RingReader,
}

impl Bench {
    fn new(partitions: usize, region_bytes: usize) -> Self {
        let mut stores: Vec<_> = (0..partitions).map(|_| Store::new()).collect();
        let deployed = deployed(SCHEMA, &mut stores);
        let memory = Arc::new(RecordingMemory::new(region_bytes));
        let region =
            Region::format(memory.clone(), Owner::default(), 1, 64, (Epoch::new(1, 0), Lsn(0))).expect("there is room");
        let (writer, reader) = region.rings(FlushPolicy::OnInsert).remove(0);
        let mut frame = TxnScratch::default();
        frame.set_objects(writer.objects());
        Self {
            stores,
            deployed,
            frame,
            memory,
            writer,
            reader,
        }
    }

    /// On all partitions, or on this one alone.
    fn run(&mut self, only: Option<u16>, body: impl FnMut(&mut dyn HostOps) -> Result<(), OpError>) -> Outcome {
        self.frame.set_capture(Some(AfterImage::Changed));
        self.frame.insert_changes();
        run(&mut self.stores, &self.deployed, &mut self.frame, only, body)
    }

    /// Takes a committed transaction's changes into its batch, as the engine thread does.
    fn take(&self, records: &mut Vec<u8>, placed: &mut Vec<PlacedBytes>) {
        records.extend(b"head");
        let base = records.len() as u32;
        records.extend(self.frame.changes());
        let at = |piece: &PlacedBytes| PlacedBytes {
            at: piece.at + base,
            ..*piece
        };
        placed.extend(self.frame.placed().iter().map(at));
    }

    /// Commits a batch, and reads it from the ring.
    fn commit(&mut self, lsn: u64, records: &[u8], placed: &[PlacedBytes]) {
        self.writer
            .records(Lsn(lsn), 1, records, placed)
            .expect("there is room");
        self.writer.persist();
        let record = self.reader.next_record().expect("whole").expect("persistent");
        assert_eq!(record.bytes, records, "batch {lsn}");
        self.reader.free(&record);
    }
}

/// Some operations, most of them on rows of their own; at times back to a savepoint.
fn act(random: &mut Random, ops: &mut dyn HostOps, only: Option<u16>, partitions: u32) -> Result<(), OpError> {
    let target = IndexTarget { table: TABLE, index: 0 };
    let mut savepoints = Vec::new();
    let mut next = random.below(ROWS);
    for _ in 0..random.below(12) {
        let w = match only {
            // A value of this partition: its number modulo theirs.
            Some(at) => u32::from(at) + partitions * random.below(2),
            None => random.below(2 * partitions),
        };
        // A row of its own, mostly; else one that was changed already.
        next = if random.below(20) == 0 { next } else { (next + 1) % ROWS };
        let text = "x".repeat(random.below(150) as usize);
        let found = ops.get(target, &key(w, next))?.map(|(handle, _)| handle);
        match (found, random.below(6)) {
            (None, 0) => {
                let rows = [
                    row(w, next, 1, &text),
                    row(w, next + 1_000 + random.below(1 << 20), 2, &text),
                ];
                for row in rows {
                    ops.insert(TABLE, &row)?;
                }
            }
            (None, _) => _ = ops.insert(TABLE, &row(w, next, 7, &text))?,
            (Some(handle), 0) => ops.delete(handle)?,
            (Some(handle), 1) => ops.update(handle, &row(w, next, 3, &text))?,
            (Some(handle), 2) => {
                let v = u64::from(random.below(1000)).to_le_bytes();
                ops.patch(TABLE, handle, ColumnSet(1 << 2), &v)?;
            }
            (Some(handle), _) => _ = ops.add(handle, 2, 5)?,
        }
        match random.below(6) {
            0 => savepoints.push(ops.savepoint()?),
            1 if !savepoints.is_empty() => {
                let at = random.below(savepoints.len() as u32) as usize;
                ops.rollback_to(savepoints[at])?;
                savepoints.truncate(at + 1);
            }
            _ => {}
        }
    }
    match random.below(5) {
        0 => Err(OpError::Guest("given up".into())),
        _ => Ok(()),
    }
}

#[test]
fn commit_names_and_holds_its_changes() {
    // A large region has room for all changes, a small one does not.
    for (region_bytes, seed) in [(4 << 20, 1), (4 << 20, 2), (110 << 10, 3), (110 << 10, 4)] {
        let (mut random, mut bench, partitions) = (Random(seed), Bench::new(3, region_bytes), 3);
        let (mut whole, mut in_region, mut failed) = (0, 0, 0);
        for batch in 0..300 {
            let (mut records, mut placed) = (Vec::new(), Vec::new());
            bench.frame.begin_running();
            for _ in 0..1 + random.below(30) {
                let only = [None, Some(0), Some(1), Some(2)][random.below(4) as usize];
                let outcome = bench.run(only, |ops| act(&mut random, ops, only, partitions));
                match outcome {
                    Outcome::Commit(_) => {
                        bench.take(&mut records, &mut placed);
                        let pieces: u32 = bench.frame.placed().iter().map(|piece| piece.bytes).sum();
                        whole += bench.frame.changes().len();
                        in_region += pieces as usize;
                    }
                    Outcome::Fail(_) => failed += 1,
                }
            }
            records.extend(b"end");
            bench.commit(batch, &records, &placed);
        }
        assert!(failed > 300, "{failed}");
        let least = if region_bytes > 1 << 20 {
            whole * 6 / 10
        } else {
            whole / 20
        };
        assert!(in_region > least && in_region < whole, "{in_region} of {whole}");
    }
}

/// The places of the written objects.
fn written(bench: &Bench) -> Vec<usize> {
    let events = bench.memory.take_events().into_iter();
    let place = |event| match event {
        Event::Write { at, .. } => Some(at),
        _ => None,
    };
    events.filter_map(place).collect()
}

#[test]
fn rollbacks_give_their_room_back() {
    let mut bench = Bench::new(1, 1 << 20);
    bench.frame.begin_running();
    bench.memory.take_events();
    let insert = |ops: &mut dyn HostOps, k: u32| ops.insert(TABLE, &row(0, k, 1, "text")).map(drop);
    let failed = bench.run(Some(0), |ops| {
        (0..3).try_for_each(|k| insert(ops, k))?;
        Err(OpError::Guest("given up".into()))
    });
    assert!(matches!(failed, Outcome::Fail(_)));
    let first = written(&bench);
    assert_eq!(first.len(), 3, "each when it is made");
    let committed = bench.run(Some(0), |ops| {
        insert(ops, 5)?;
        let savepoint = ops.savepoint()?;
        insert(ops, 6)?;
        insert(ops, 7)?;
        ops.rollback_to(savepoint)?;
        insert(ops, 8)
    });
    assert!(matches!(committed, Outcome::Commit(_)));
    let places = written(&bench);
    assert_eq!(places, [first[0], first[1], first[2], first[1]]);
    assert_eq!(bench.frame.placed().len(), 2);
    let (mut records, mut placed) = (Vec::new(), Vec::new());
    bench.take(&mut records, &mut placed);
    bench.commit(0, &records, &placed);
    // Objects that a batch left without a commit are free when the next batch begins.
    bench.run(Some(0), |ops| insert(ops, 20));
    let left = written(&bench);
    bench.frame.begin_running();
    bench.run(Some(0), |ops| insert(ops, 21));
    let again: Vec<_> = written(&bench);
    assert_eq!(again, left[left.len() - 1..]);
}
