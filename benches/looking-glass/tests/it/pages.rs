//! The buffer pool and the heap: eviction, pins, the log before a page, rows that outgrow their page.

use reprise_bench_looking_glass::{
    heap::Heap,
    log::{Chain, LogProgress},
    page::PageKind,
    parts::{ALL, POOL, SMALL_PAGES},
    pool::FRAMES_MIN,
    tree::Rid,
};

use crate::{Numbers, engine};

const FRAMES: usize = 2 * FRAMES_MIN;

#[test]
fn changed_pages_are_written_back_and_found_again() {
    let engine = engine::<{ POOL | SMALL_PAGES }>(64, 1);
    let (pool, chain) = (&engine.pool, &mut Chain::default());
    let mut numbers = Vec::new();
    for byte in 0..200 {
        let mut page = pool.allocate(chain, PageKind::Heap, 0);
        assert!(page.insert(0, &[byte; 100], &[]));
        numbers.push((page.number, byte));
    }
    let mut random = Numbers(1);
    for turn in 0..1_000 {
        let (number, byte) = &mut numbers[random.below(200) as usize];
        let mut page = pool.write(*number);
        assert_eq!(page.record(0), [*byte; 100], "turn {turn}");
        *byte = turn as u8;
        page.record_mut(0).fill(*byte);
        page.stamp(0);
    }
    for (number, byte) in &numbers {
        assert_eq!(pool.read(*number).record(0), [*byte; 100]);
    }
    pool.flush();
    assert_eq!(pool.dirty(), 0);
}

#[test]
fn a_pinned_page_keeps_its_frame() {
    let engine = engine::<POOL>(64, 1);
    let (pool, chain) = (&engine.pool, &mut Chain::default());
    let mut page = pool.allocate(chain, PageKind::Heap, 0);
    assert!(page.insert(0, b"pinned", &[]));
    let held: Vec<_> = (0..FRAMES).map(|_| pool.allocate(chain, PageKind::Heap, 0)).collect();
    for _ in 0..300 {
        drop(pool.allocate(chain, PageKind::Heap, 0));
    }
    assert_eq!(page.record(0), b"pinned");
    assert!(held.iter().all(|page| page.count() == 0));
}

#[test]
fn a_page_goes_after_its_log() {
    let engine = engine::<ALL>(64, 1_000_000);
    let (pool, chain) = (&engine.pool, &mut Chain::default());
    let heap = Heap::create(pool, chain, 0);
    for _ in 0..2_000 {
        heap.insert(pool, chain, &[7; 500]).expect("it fits a page");
    }
    let LogProgress { durable, writes, .. } = pool.log.progress();
    assert!(writes > 0, "no commit came, but pages were written back");
    assert!(durable > 100 * 8_192, "{durable}");
    pool.flush();
    let durable = pool.log.progress().durable;
    for number in 1..=pool.pages() {
        assert!(pool.read(number).lsn() < durable, "page {number}");
    }
}

#[test]
fn a_row_that_outgrows_its_page_is_found_at_its_place() {
    let engine = engine::<SMALL_PAGES>(4_000, 1);
    let (pool, chain) = (&engine.pool, &mut Chain::default());
    let heap = Heap::create(pool, chain, 0);
    let mut model: Vec<(Rid, Vec<u8>)> = Vec::new();
    let mut random = Numbers(3);
    for turn in 0..3_000_u64 {
        let row = vec![turn as u8; 1 + random.below(900) as usize];
        match random.below(4) {
            0 => {
                let rid = heap.insert(pool, chain, &row).expect("it fits a page");
                model.push((rid, row));
            }
            1 if model.len() > 20 => {
                let (rid, _) = model.swap_remove(random.below(model.len() as u64) as usize);
                assert!(heap.set_hidden(pool, chain, rid, true));
            }
            _ if !model.is_empty() => {
                let at = random.below(model.len() as u64) as usize;
                assert!(heap.write(pool, chain, model[at].0, &row));
                model[at].1 = row;
            }
            _ => {}
        }
    }
    for (rid, row) in &model {
        assert_eq!(heap.see(pool, *rid, <[u8]>::to_vec).as_ref(), Some(row));
    }
    let mut found = Vec::new();
    heap.each(pool, |row| found.push(row.to_vec()));
    let mut expected: Vec<_> = model.into_iter().map(|(_, row)| row).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected, "each row is met once");
    assert!(heap.insert(pool, chain, &[0; 9_000]).is_none(), "longer than a page");
}
