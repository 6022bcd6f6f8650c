//! Regions as crashes leave them: cut before every drain, with any of the loose words lost.

use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;
use reprise_base::Lsn;
use reprise_nvram::{FlushPolicy, Full, Owner, Recording, Region, RegionError, RingReader, RingWriter};

const OWNER: Owner = Owner {
    database_id: [7; 16],
    region_id: [8; 16],
    settings_hash: 9,
    semantics: 1,
    format: 4,
};
const BYTES: usize = 512 << 10;
const ENTRIES: u32 = 64;

fn made(policy: FlushPolicy, rings: u32) -> (Arc<Recording>, Vec<(RingWriter, RingReader)>) {
    let memory = Arc::new(Recording::new(BYTES));
    let region = Region::format(memory.clone(), OWNER, rings, ENTRIES, Lsn(0)).expect("there is room");
    (memory, region.rings(policy))
}

fn recovered(image: Vec<u8>) -> Result<Vec<(u64, Vec<u8>)>, RegionError> {
    let region = Region::open(Arc::new(Recording::from_image(image)))?.expect("it was made");
    let records = region.recover()?.records;
    Ok(records.into_iter().map(|record| (record.lsn.0, record.bytes)).collect())
}

/// What a writer does next.
#[derive(Clone, Debug)]
enum Step {
    Record(usize),
    /// Rows, and whether they are committed.
    Rows(Vec<usize>, bool),
    Persist,
    /// The reader copies what is there and frees it.
    Free,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0usize..400).prop_map(Step::Record),
        3 => (prop::collection::vec(0usize..300, 0..6), any::<bool>()).prop_map(|(rows, commits)| Step::Rows(rows, commits)),
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
    memory: Arc<Recording>,
    writer: RingWriter,
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
        memory.cut_at_drains();
        let (writer, reader) = rings.pop().expect("one ring");
        let lives = BTreeMap::new();
        Self {
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
        self.drains += events
            .iter()
            .filter(|event| **event == reprise_nvram::Event::Drain)
            .count();
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
                if self.writer.records(Lsn(self.lsn), 1, &bytes).is_ok() {
                    self.note(bytes);
                }
            }
            Step::Rows(rows, commits) => self.rows(rows, *commits),
            Step::Persist => {
                self.writer.persist();
                self.count_drains();
                for lsn in self.unacknowledged.drain(..) {
                    self.lives.get_mut(&lsn).expect("noted").acknowledged = Some(self.drains);
                }
            }
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

    fn rows(&mut self, rows: &[usize], commits: bool) {
        let mut bytes = Vec::new();
        for row in rows {
            let row = payload(self.lsn + bytes.len() as u64, *row);
            if self.writer.row(&row).is_err() {
                // A full ring: the room for the end of a transaction comes with the next copy.
                self.give_up();
                return self.count_drains();
            }
            bytes.extend(row);
        }
        let is_whole = commits && self.writer.commit(Lsn(self.lsn), b"end").is_ok();
        if is_whole {
            bytes.extend(b"end");
            self.note(bytes);
        } else {
            self.give_up();
        }
        self.count_drains();
    }

    fn give_up(&mut self) {
        while self.writer.abort() == Err(Full::ForNow) {
            self.step(&Step::Persist);
            self.step(&Step::Free);
        }
    }

    /// The image before drain `n` has what was acknowledged by then, and of the others a prefix or none.
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
        // In a ring's order: nothing behind what is not there, but for what was freed.
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
    fn a_crash_leaves_what_was_acknowledged(steps in steps(), on_insert in any::<bool>(), seed in any::<u64>()) {
        let policy = if on_insert { FlushPolicy::OnInsert } else { FlushPolicy::OnCommit };
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
                let Some(image) = run.memory.cut(n, || coin(share)) else {
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
    let memory = Arc::new(Recording::new(BYTES));
    memory.cut_at_drains();
    let region = Region::format(memory.clone(), OWNER, 2, ENTRIES, Lsn(0)).expect("there is room");
    let (mut writer, _) = region.rings(FlushPolicy::OnCommit).remove(0);
    writer.records(Lsn(1), 1, b"old").expect("there is room");
    writer.persist();
    // Made anew over an old one: nothing of it may come back, whatever is lost.
    Region::format(memory.clone(), OWNER, 1, ENTRIES, Lsn(0)).expect("there is room");
    for n in 0.. {
        let mut turn = 0;
        for pattern in 0..8 {
            let coin = || {
                turn += 1;
                (turn * 7 + pattern) % (pattern + 2) == 0
            };
            let Some(image) = memory.cut(n, coin) else { return };
            let opened = Region::open(Arc::new(Recording::from_image(image))).expect("never damaged");
            let records = opened.map_or(0, |region| region.recover().expect("never damaged").records.len());
            assert!(records <= 1, "{records} records before drain {n}");
        }
    }
}

#[test]
fn every_flipped_bit_is_refused_or_without_effect() {
    let (memory, mut rings) = made(FlushPolicy::OnCommit, 2);
    for (ring, (writer, _)) in rings.iter_mut().enumerate() {
        for n in 0..5u64 {
            writer
                .records(Lsn(1 + n * 2 + ring as u64), 1, &payload(n, 40))
                .expect("there is room");
            writer.persist();
        }
    }
    let image = memory.image(|| true);
    let whole = recovered(image.clone()).expect("it opens");
    assert_eq!(whole.len(), 10);
    let mut refused = 0;
    for at in 0..image.len() {
        // All of what is written, and a sample of what is not.
        if image[at] == 0 && at % 97 != 0 {
            continue;
        }
        for bit in 0..8 {
            let memory = Recording::from_image(image.clone());
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
        writer.records(Lsn(lsn), 1, &lsn.to_le_bytes()).expect("there is room");
        writer.persist();
    }
    let region = Region::open(Arc::new(Recording::from_image(memory.image(|| true))))
        .expect("ours")
        .expect("made");
    let found = region.recover().expect("whole");
    assert_eq!(
        found.records.iter().map(|record| record.lsn.0).collect::<Vec<_>>(),
        [3, 4, 6, 7, 9]
    );
    assert_eq!(found.void, [Lsn(5), Lsn(8)]);
}

#[test]
fn a_full_ring_refuses_and_goes_on_once_it_was_freed() {
    let (_, mut rings) = made(FlushPolicy::OnCommit, 1);
    let (writer, reader) = &mut rings[0];
    let mut lsn = 0;
    for _ in 0..20 {
        while writer.records(Lsn(lsn), 1, &payload(lsn, 100)).is_ok() {
            lsn += 1;
        }
        assert_eq!(writer.records(Lsn(lsn), 1, b""), Err(Full::ForNow));
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
    assert!(matches!(writer.records(Lsn(lsn), 1, &huge), Err(Full::Forever { .. })));
    writer
        .records(Lsn(lsn), 1, b"small")
        .expect("nothing is left of the huge one");
}

#[test]
fn regions_that_are_not_ours_are_refused() {
    let open = |image: Vec<u8>| {
        let opened = Region::open(Arc::new(Recording::from_image(image)));
        opened.map(|region| region.map(|region| *region.owner()))
    };
    let (memory, _) = made(FlushPolicy::OnCommit, 1);
    let image = memory.image(|| true);
    assert_eq!(open(image.clone()), Ok(Some(OWNER)));
    assert_eq!(open(vec![0; BYTES]), Ok(None));
    assert_eq!(open(vec![1; BYTES]), Err(RegionError::Foreign));
    let mut longer = image.clone();
    longer.resize(BYTES + 4096, 0);
    let (made, found) = (BYTES as u64, BYTES as u64 + 4096);
    assert_eq!(open(longer), Err(RegionError::Size { made, found }));
    assert!(matches!(open(vec![0; 4096]), Err(RegionError::TooSmall { .. })));
    let mut newer = image;
    newer[8] = 2;
    assert_eq!(open(newer), Err(RegionError::Version { found: 2 }));
}

#[test]
fn objects_are_persistent_before_their_state_bits() {
    use reprise_nvram::Event::{Drain, Store, Write};
    let (memory, mut rings) = made(FlushPolicy::OnCommit, 1);
    memory.take_events();
    let (writer, _) = &mut rings[0];
    for lsn in 0..16 {
        writer.records(Lsn(lsn), 1, &payload(lsn, 50)).expect("there is room");
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
