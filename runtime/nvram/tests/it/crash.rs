//! Regions as crashes leave them: cut before every drain, with any of the loose words lost.

use std::{collections::BTreeMap, sync::Arc};

use crate::OWNER;
use proptest::prelude::*;
use reprise_base::{Epoch, Lsn, PlacedBytes};
use reprise_nvram::{
    Event, FlushPolicy, ObjectWriter, RecordingMemory, Region, RegionError, RingFull, RingReader, RingWriter,
};

const BYTES: usize = 512 << 10;
const ENTRIES: u32 = 64;

fn made(policy: FlushPolicy, rings: u32) -> (Arc<RecordingMemory>, Vec<(RingWriter, RingReader)>) {
    let memory = Arc::new(RecordingMemory::new(BYTES));
    let region =
        Region::format(memory.clone(), OWNER, rings, ENTRIES, (Epoch::new(1, 0), Lsn(0))).expect("there is room");
    (memory, region.rings(policy))
}

fn recovered(image: Vec<u8>) -> Result<Vec<(u64, Vec<u8>)>, RegionError> {
    let region = Region::open(Arc::new(RecordingMemory::from_image(image)))?.expect("it was made");
    let records = region.recover()?.records;
    Ok(records.into_iter().map(|record| (record.lsn.0, record.bytes)).collect())
}

/// A step of a writer.
#[derive(Clone, Debug)]
enum Step {
    Record(usize),
    /// A batch of transactions, persistent at its end.
    Batch(Vec<Txn>),
    Persist,
    /// The reader copies all persistent records and frees them.
    Free,
}

/// The rows that a transaction changes, by their bytes.
#[derive(Clone, Debug)]
struct Txn {
    rows: Vec<usize>,
    /// The number of rows at which it rolls back, and the number that it rolls back to.
    taken_back: Option<(usize, usize)>,
    commits: bool,
}

fn txn() -> impl Strategy<Value = Txn> {
    let rows = prop::collection::vec(1usize..300, 0..6);
    let taken_back = prop::option::of((0usize..6, 0usize..6));
    (rows, taken_back, any::<bool>()).prop_map(|(rows, taken_back, commits)| Txn {
        rows,
        taken_back,
        commits,
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0usize..400).prop_map(Step::Record),
        3 => prop::collection::vec(txn(), 1..4).prop_map(Step::Batch),
        4 => Just(Step::Persist),
        2 => Just(Step::Free),
    ];
    prop::collection::vec(step, 1..60)
}

fn payload(lsn: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (lsn as usize * 31 + at) as u8).collect()
}

/// After which drain a record was acknowledged, and until which it was not freed yet.
struct Life {
    bytes: Vec<u8>,
    acknowledged: Option<usize>,
    freed: usize,
}

struct Run {
    memory: Arc<RecordingMemory>,
    writer: RingWriter,
    objects: Option<ObjectWriter>,
    reader: RingReader,
    lives: BTreeMap<u64, Life>,
    drains: usize,
    lsn: u64,
    unacknowledged: Vec<u64>,
}

impl Run {
    fn new(policy: FlushPolicy) -> Self {
        let (memory, mut rings) = made(policy, 1);
        memory.take_events();
        memory.keep_drain_points();
        let (writer, reader) = rings.pop().expect("one ring");
        let lives = BTreeMap::new();
        Self {
            objects: writer.objects(),
            memory,
            writer,
            reader,
            lives,
            drains: 0,
            lsn: 1,
            unacknowledged: Vec::new(),
        }
    }

    fn count_drains(&mut self) {
        let events = self.memory.take_events();
        self.drains += events.iter().filter(|event| **event == Event::Drain).count();
    }

    fn note(&mut self, bytes: Vec<u8>) {
        self.lives.insert(
            self.lsn,
            Life {
                bytes,
                acknowledged: None,
                freed: usize::MAX,
            },
        );
        self.unacknowledged.push(self.lsn);
        self.lsn += 1;
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Record(bytes) => {
                let bytes = payload(self.lsn, *bytes);
                if self.writer.records(Lsn(self.lsn), 1, &bytes, &[]).is_ok() {
                    self.note(bytes);
                }
            }
            Step::Batch(txns) => self.batch(txns),
            Step::Persist => self.persist(),
            Step::Free => {
                while let Some(record) = self.reader.next_record().expect("nothing is damaged") {
                    self.reader.free(&record);
                    self.count_drains();
                    if let Some(life) = self.lives.get_mut(&record.lsn.0) {
                        assert_eq!(life.bytes, record.bytes);
                        // Its place is free from the drain on that has just been.
                        life.freed = self.drains - 1;
                    }
                }
            }
        }
    }

    fn persist(&mut self) {
        self.writer.persist();
        self.count_drains();
        for lsn in self.unacknowledged.drain(..) {
            self.lives.get_mut(&lsn).expect("noted").acknowledged = Some(self.drains);
        }
    }

    /// Writes a batch like an engine thread: each transaction's changes when they are made, then the records of all that committed.
    fn batch(&mut self, txns: &[Txn]) {
        self.persist();
        if let Some(objects) = &mut self.objects {
            objects.begin_batch();
        }
        let (mut records, mut placed) = (Vec::new(), Vec::new());
        for (n, txn) in txns.iter().enumerate() {
            let (changes, pieces) = self.run(n, txn);
            if txn.commits {
                records.extend(b"head");
                let base = records.len() as u32;
                records.extend(changes);
                let at = |piece: PlacedBytes| PlacedBytes {
                    at: piece.at + base,
                    ..piece
                };
                placed.extend(pieces.into_iter().map(at));
            }
        }
        records.extend(b"end");
        if self.writer.records(Lsn(self.lsn), 1, &records, &placed).is_ok() {
            self.note(records);
        }
        self.persist();
    }

    /// A transaction's changes, and which of them went to the region before its commit.
    fn run(&mut self, n: usize, txn: &Txn) -> (Vec<u8>, Vec<PlacedBytes>) {
        let (mut changes, mut ends, mut placed) = (Vec::new(), Vec::new(), Vec::new());
        let begun_at = self.objects.as_ref().map_or(0, ObjectWriter::place);
        let mut is_on = true;
        for (at, bytes) in txn.rows.iter().enumerate() {
            let row = payload(self.lsn * 7 + n as u64 * 3 + at as u64, *bytes);
            if let Some(objects) = self.objects.as_mut().filter(|_| is_on) {
                match objects.insert(&row) {
                    Some(place) => placed.push(PlacedBytes {
                        at: changes.len() as u32,
                        bytes: row.len() as u32,
                        place,
                    }),
                    None => {
                        objects.take_back(begun_at);
                        placed.clear();
                        is_on = false;
                    }
                }
            }
            changes.extend(row);
            ends.push(changes.len());
            if let Some((_, to)) = txn.taken_back.filter(|(behind, to)| *behind == at && *to < ends.len()) {
                ends.truncate(to);
                changes.truncate(ends.last().copied().unwrap_or(0));
                placed.truncate(to);
                if let Some(objects) = self.objects.as_mut().filter(|_| is_on) {
                    let last: Option<&PlacedBytes> = placed.last();
                    objects.take_back(last.map_or(begun_at, |last| ObjectWriter::behind(last.place, last.bytes)));
                }
            }
        }
        if let Some(objects) = self.objects.as_mut().filter(|_| is_on && !txn.commits) {
            objects.take_back(begun_at);
        }
        self.count_drains();
        (changes, placed)
    }

    /// Checks the image before drain `n`. It must have the records acknowledged by then, and a prefix of the others or none.
    fn judge(&self, n: usize, found: &[(u64, Vec<u8>)]) {
        let found: BTreeMap<u64, &Vec<u8>> = found.iter().map(|(lsn, bytes)| (*lsn, bytes)).collect();
        for (lsn, bytes) in &found {
            assert_eq!(self.lives[lsn].bytes, **bytes, "{lsn}");
        }
        for (lsn, life) in &self.lives {
            let is_acknowledged = life.acknowledged.is_some_and(|drain| drain <= n);
            let may_be_freed = life.freed <= n;
            assert!(
                !is_acknowledged || may_be_freed || found.contains_key(lsn),
                "record {lsn} is lost before drain {n}"
            );
        }
        // A ring's order leaves nothing behind a missing record, except for freed ones.
        if let (Some(least), Some(most)) = (found.keys().next(), found.keys().last()) {
            assert_eq!(
                found.len(),
                self.lives.range(least..=most).count(),
                "a hole before drain {n}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn a_crash_leaves_what_was_acknowledged(steps in steps(), policy in prop::sample::select(&FlushPolicy::ALL), seed in any::<u64>()) {
        let mut run = Run::new(policy);
        steps.iter().for_each(|step| run.step(step));
        run.step(&Step::Persist);
        let mut random = seed | 1;
        let mut coin = |share: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % 100 < share
        };
        for n in 0.. {
            for share in [0, 50, 95, 100] {
                let Some(image) = run.memory.image_before_drain(n, || coin(share)) else {
                    prop_assert_eq!(n, run.drains);
                    return Ok(());
                };
                run.judge(n, &recovered(image).expect("it opens"));
            }
        }
    }
}

#[test]
fn a_crash_while_a_region_is_made_leaves_a_blank_one_or_a_whole_one() {
    let memory = Arc::new(RecordingMemory::new(BYTES));
    memory.keep_drain_points();
    let region = Region::format(memory.clone(), OWNER, 2, ENTRIES, (Epoch::new(1, 0), Lsn(0))).expect("there is room");
    let (mut writer, _) = region.rings(FlushPolicy::OnCommit).remove(0);
    writer.records(Lsn(1), 1, b"old", &[]).expect("there is room");
    writer.persist();
    // Made anew over an old one: nothing of it may come back, whatever is lost.
    Region::format(memory.clone(), OWNER, 1, ENTRIES, (Epoch::new(1, 0), Lsn(0))).expect("there is room");
    for n in 0.. {
        let mut turn = 0;
        for pattern in 0..8 {
            let coin = || {
                turn += 1;
                (turn * 7 + pattern) % (pattern + 2) == 0
            };
            let Some(image) = memory.image_before_drain(n, coin) else {
                return;
            };
            let opened = Region::open(Arc::new(RecordingMemory::from_image(image))).expect("never damaged");
            let records = opened.map_or(0, |region| region.recover().expect("never damaged").records.len());
            assert!(records <= 1, "{records} records before drain {n}");
        }
    }
}

#[test]
fn every_flipped_bit_is_refused_or_without_effect() {
    let (memory, mut rings) = made(FlushPolicy::OnInsert, 2);
    for (ring, (writer, _)) in rings.iter_mut().enumerate() {
        let mut objects = writer.objects().expect("on insert");
        for n in 0..5u64 {
            let record = payload(n, 40 + n as usize);
            // Some with parts that were written before.
            let pieces = [(4u32, 10u32), (14, 20)].into_iter().take(n as usize % 3);
            let piece = |(at, bytes): (u32, u32)| PlacedBytes {
                at,
                bytes,
                place: objects
                    .insert(&record[at as usize..][..bytes as usize])
                    .expect("there is room"),
            };
            let placed: Vec<_> = pieces.map(piece).collect();
            writer
                .records(Lsn(1 + n * 2 + ring as u64), 1, &record, &placed)
                .expect("there is room");
            writer.persist();
        }
    }
    let image = memory.image(|| true);
    let whole = recovered(image.clone()).expect("it opens");
    assert_eq!(whole.len(), 10);
    let mut refused = 0;
    for at in 0..image.len() {
        // The test flips bits of all written bytes, and of a sample of the others.
        if image[at] == 0 && at % 97 != 0 {
            continue;
        }
        for bit in 0..8 {
            let memory = RecordingMemory::from_image(image.clone());
            memory.flip(at, bit);
            let opened = Region::open(Arc::new(memory));
            match opened.and_then(|region| region.map(|region| region.recover()).transpose()) {
                Err(_) => refused += 1,
                Ok(found) => {
                    let found = found.expect("a flipped bit makes no blank region").records;
                    let found: Vec<_> = found.into_iter().map(|record| (record.lsn.0, record.bytes)).collect();
                    assert_eq!(found, whole, "byte {at}, bit {bit}");
                }
            }
        }
    }
    assert!(refused > 1_000, "{refused}");
}

#[test]
fn records_of_all_rings_come_back_in_lsn_order_and_holes_are_told() {
    let (memory, mut rings) = made(FlushPolicy::OnCommit, 3);
    for lsn in [3u64, 4, 6, 7, 9] {
        let (writer, _) = &mut rings[(lsn % 3) as usize];
        writer
            .records(Lsn(lsn), 1, &lsn.to_le_bytes(), &[])
            .expect("there is room");
        writer.persist();
    }
    let region = Region::open(Arc::new(RecordingMemory::from_image(memory.image(|| true))))
        .expect("ours")
        .expect("made");
    let found = region.recover().expect("whole");
    assert_eq!(
        found.records.iter().map(|record| record.lsn.0).collect::<Vec<_>>(),
        [3, 4, 6, 7, 9]
    );
    assert_eq!(found.void, [Lsn(5)..Lsn(6), Lsn(8)..Lsn(9)]);
}

#[test]
fn a_full_ring_refuses_and_goes_on_once_it_was_freed() {
    let (_, mut rings) = made(FlushPolicy::OnCommit, 1);
    let (writer, reader) = &mut rings[0];
    let mut lsn = 0;
    for _ in 0..20 {
        while writer.records(Lsn(lsn), 1, &payload(lsn, 100), &[]).is_ok() {
            lsn += 1;
        }
        assert_eq!(writer.records(Lsn(lsn), 1, b"", &[]), Err(RingFull::ForNow));
        writer.persist();
        let fill = writer.fill();
        assert_eq!((fill.entries, fill.entries_max), (ENTRIES as u64, ENTRIES as u64));
        let mut last = None;
        while let Some(record) = reader.next_record().expect("whole") {
            assert_eq!(record.bytes, payload(record.lsn.0, 100));
            last = Some(record);
        }
        reader.free(&last.expect("the ring was full"));
    }
    assert_eq!(lsn, 20 * ENTRIES as u64);
    let huge = vec![0; BYTES];
    assert!(matches!(
        writer.records(Lsn(lsn), 1, &huge, &[]),
        Err(RingFull::Forever { .. })
    ));
    writer
        .records(Lsn(lsn), 1, b"small", &[])
        .expect("nothing is left of the huge one");
}

#[test]
fn regions_that_are_not_ours_are_refused() {
    let open = |image: Vec<u8>| {
        let opened = Region::open(Arc::new(RecordingMemory::from_image(image)));
        opened.map(|region| region.map(|region| *region.owner()))
    };
    let (memory, _) = made(FlushPolicy::OnCommit, 1);
    let image = memory.image(|| true);
    assert_eq!(open(image.clone()), Ok(Some(OWNER)));
    assert_eq!(open(vec![0; BYTES]), Ok(None));
    assert_eq!(open(vec![1; BYTES]), Err(RegionError::Foreign));
    // A disk image, another database's file: they may begin with zeros.
    for at in [8, 120, 1024, 4104, 30_000, BYTES / 2, BYTES - 1] {
        let mut other = vec![0; BYTES];
        other[at] = 9;
        assert_eq!(open(other), Err(RegionError::NotBlank), "byte {at}");
    }
    let large = 80 << 20;
    assert_eq!(open(vec![0; large]), Ok(None));
    let mut large = vec![0; large];
    *large.last_mut().expect("a byte") = 1;
    assert_eq!(open(large), Err(RegionError::NotBlank));
    let mut longer = image.clone();
    longer.resize(BYTES + 4096, 0);
    let (made, found) = (BYTES as u64, BYTES as u64 + 4096);
    assert_eq!(open(longer), Err(RegionError::Size { made, found }));
    assert!(matches!(open(vec![0; 4096]), Err(RegionError::TooSmall { .. })));
    let mut newer = image;
    for found in [2, 4] {
        newer[8] = found;
        let refused = open(newer.clone()).expect_err("another layout");
        assert_eq!(refused, RegionError::Version { found: found.into() });
        assert!(
            refused
                .to_string()
                .contains("and this program reads 3 alone. Nothing was changed")
        );
    }
}

#[test]
fn a_region_that_was_erased_is_blank_whatever_is_left_in_it() {
    let (memory, mut rings) = made(FlushPolicy::OnCommit, 2);
    for (ring, (writer, reader)) in rings.iter_mut().enumerate() {
        writer
            .records(Lsn(ring as u64), 1, &payload(3, 500), &[])
            .expect("there is room");
        writer.persist();
        let record = reader.next_record().expect("whole").expect("persistent");
        reader.free(&record);
    }
    Region::erase(&*memory);
    let open = |image| Region::open(Arc::new(RecordingMemory::from_image(image))).map(|region| region.is_some());
    assert_eq!(open(memory.image(|| true)), Ok(false));
    // Made anew, and cut off: the header is neither the old one nor the new one.
    let mut image = memory.image(|| true);
    image[56] ^= 1;
    assert_eq!(open(image.clone()), Ok(false));
    // The byte is not one of ours.
    image[200] = 1;
    assert_eq!(open(image), Err(RegionError::NotBlank));
}

#[test]
fn numbers_that_can_not_be_are_damage() {
    for (lsn, count) in [
        (u64::MAX, 1),
        (u64::MAX - 1, 2),
        (1 << 48, 1),
        ((1 << 48) - 1, u32::MAX),
    ] {
        let (memory, mut rings) = made(FlushPolicy::OnCommit, 2);
        for (ring, lsn, count) in [(0, 1, 1), (1, lsn, count)] {
            let (writer, _) = &mut rings[ring];
            writer.records(Lsn(lsn), count, b"forged", &[]).expect("there is room");
            writer.persist();
        }
        let damaged = RegionError::Damaged { ring: 1, sequence: 0 };
        assert_eq!(recovered(memory.image(|| true)), Err(damaged), "LSN {lsn}");
    }
}

#[test]
fn a_hole_of_any_length_takes_no_memory() {
    let (memory, mut rings) = made(FlushPolicy::OnCommit, 1);
    let (writer, _) = &mut rings[0];
    for lsn in [1, 1 << 47] {
        writer.records(Lsn(lsn), 1, b"forged", &[]).expect("there is room");
        writer.persist();
    }
    let region = Region::open(Arc::new(RecordingMemory::from_image(memory.image(|| true))));
    let found = region.expect("ours").expect("made").recover().expect("whole");
    assert_eq!(found.void, [Lsn(2)..Lsn(1 << 47)]);
}

#[test]
fn a_commit_that_names_more_than_its_ring_holds_is_damage() {
    const PIECE: u32 = 1000;
    // Each alone, and both together.
    for (pieces, commits, is_damaged) in [(300, 1, false), (300, 2, true), (5000, 1, true)] {
        let (memory, mut rings) = made(FlushPolicy::OnInsert, 1);
        let (writer, _) = &mut rings[0];
        let mut objects = writer.objects().expect("on insert");
        for lsn in 0..commits {
            let place = objects.insert(&[7; PIECE as usize]).expect("there is room");
            let piece = |number: u32| PlacedBytes {
                at: number * PIECE,
                bytes: PIECE,
                place,
            };
            let placed: Vec<_> = (0..pieces).map(piece).collect();
            let records = vec![7; (pieces * PIECE) as usize];
            writer.records(Lsn(lsn), 1, &records, &placed).expect("there is room");
            writer.persist();
        }
        let found = recovered(memory.image(|| true));
        let sequence = commits - 1;
        match is_damaged {
            true => assert_eq!(found, Err(RegionError::Damaged { ring: 0, sequence })),
            false => assert_eq!(found.expect("it fits").len(), 1),
        }
    }
}

#[test]
fn objects_are_persistent_before_their_state_bits() {
    use reprise_nvram::Event::{Drain, Store, Write};
    let (memory, mut rings) = made(FlushPolicy::OnCommit, 1);
    memory.take_events();
    let (writer, _) = &mut rings[0];
    for lsn in 0..16 {
        writer
            .records(Lsn(lsn), 1, &payload(lsn, 50), &[])
            .expect("there is room");
    }
    writer.persist();
    let events = memory.take_events();
    assert!(
        events[..16]
            .iter()
            .all(|event| matches!(event, Write { bytes: 128, .. })),
        "{events:?}"
    );
    assert_eq!(events[16], Drain);
    assert!(events[17..33].iter().all(|event| matches!(event, Store { .. })));
    assert_eq!(events[33..], [Drain]);
}

/// On insert, a transaction's objects are written before its commit, and the commit waits once for all of them. By the paper's policy
/// the transaction waits for each object.
#[test]
fn objects_are_written_when_they_are_made() {
    for policy in FlushPolicy::ALL {
        let (memory, mut rings) = made(policy, 1);
        let (writer, _) = &mut rings[0];
        let Some(mut objects) = writer.objects() else {
            assert_eq!(policy, FlushPolicy::OnCommit);
            continue;
        };
        memory.take_events();
        let rows = payload(1, 30);
        let mut placed = Vec::new();
        for at in [0, 10, 20] {
            let place = objects.insert(&rows[at..at + 10]).expect("there is room");
            placed.push(PlacedBytes {
                at: at as u32,
                bytes: 10,
                place,
            });
        }
        let waits = |events: &[Event]| events.iter().filter(|event| **event == Event::Drain).count();
        let events = memory.take_events();
        let written = events
            .iter()
            .filter(|event| matches!(event, Event::Write { bytes: 64, .. }));
        assert_eq!(written.count(), 3);
        assert_eq!(waits(&events), if policy == FlushPolicy::OnInsertFence { 3 } else { 0 });
        // The objects do not count without a commit.
        assert_eq!(recovered(memory.image(|| true)), Ok(Vec::new()));
        writer.records(Lsn(5), 1, &rows, &placed).expect("there is room");
        writer.persist();
        assert_eq!(waits(&memory.take_events()), 2);
        assert_eq!(recovered(memory.image(|| false)), Ok(vec![(5, rows)]));
    }
}

#[test]
fn objects_leave_room_for_their_commit() {
    let (_, mut rings) = made(FlushPolicy::OnInsert, 1);
    let (writer, reader) = &mut rings[0];
    let mut objects = writer.objects().expect("on insert");
    let max = writer.bytes_max() as usize;
    for lsn in 0..40u64 {
        objects.begin_batch();
        let begun_at = objects.place();
        let row = payload(lsn, 1_000 + lsn as usize * 100);
        let mut placed = Vec::new();
        let mut records = payload(lsn, 7);
        // The transaction inserts until the ring has no more room for objects. Its records then take as many bytes as the log takes at
        // once.
        while let Some(place) = objects.insert(&row) {
            placed.push(PlacedBytes {
                at: records.len() as u32,
                bytes: row.len() as u32,
                place,
            });
            records.extend(&row);
        }
        assert!(objects.place() - begun_at > writer.fill().bytes_max / 8, "batch {lsn}");
        records.resize(records.len().max(max), 1);
        records.truncate(max.max(placed.last().map_or(0, |last| last.end() as usize)));
        writer
            .records(Lsn(lsn), 1, &records, &placed)
            .expect("there is room for its commit");
        writer.persist();
        let record = reader.next_record().expect("whole").expect("persistent");
        assert_eq!(record.bytes, records);
        reader.free(&record);
        assert_eq!(writer.fill().bytes, 0);
    }
}
