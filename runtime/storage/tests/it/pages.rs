//! Pages of a scan against its rows one by one.

use crate::common;
use proptest::prelude::*;
use reprise_abi::{Field, ScalarType, ScanFlags};
use reprise_storage::{Range, Rid, ScanPosition, Store, TableId, Visit};

/// Keys of one word, of two, and of any width.
fn store_of_three_indexes() -> (Store, TableId) {
    let columns = [
        ("a", ScalarType::I64, false),
        ("b", ScalarType::I64, false),
        ("c", ScalarType::Text, false),
    ];
    let schema = common::table("t", &columns, &[0], &[("by_b", &[1], false), ("by_c", &[2], false)]);
    let mut store = Store::new();
    let table = store.create_table(schema).expect("a table");
    (store, table)
}

fn by_rows(store: &Store, table: TableId, index: u16, range: &Range<'_>) -> Vec<Rid> {
    let (mut rids, mut position) = (Vec::new(), ScanPosition::default());
    let on_row = |rid, _: &[u8]| {
        rids.push(rid);
        Visit::Next
    };
    store
        .scan(table, index, range, &mut position, on_row)
        .expect("an ordered index");
    assert!(position.is_end());
    rids
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    /// Pages of all sizes; between two of them a row goes, maybe the one at which the next page begins.
    #[test]
    fn pages_are_the_rows_one_by_one(
        numbers in prop::collection::btree_set(0..2_000i64, 0..400),
        bounds in any::<[u16; 2]>(),
        flags in 0..8u32,
        sizes in prop::collection::vec(0..90usize, 1..8),
        index in 0..3u16,
        goes in any::<Option<u8>>(),
    ) {
        let (mut store, table) = store_of_three_indexes();
        store.begin();
        for number in &numbers {
            let text = format!("a text of which the first bytes are alike {:03}", number % 50);
            let row = store.layout(table).build(&[Field::Int(*number), Field::Int(number % 37), Field::Text(&text)]);
            store.insert(table, &row).expect("new");
        }
        let key = |bound: u16| match index {
            0 => (u64::from(bound % 2_100) ^ 1 << 63).to_be_bytes().to_vec(),
            1 => (u64::from(bound % 40) ^ 1 << 63).to_be_bytes().to_vec(),
            _ => format!("a text of which the first bytes are alike {:03}", bound % 60).into_bytes(),
        };
        let (lower, upper) = (key(bounds[0]), key(bounds[1]));
        let range = Range::new(&lower, &upper, ScanFlags(flags));
        prop_assume!(range.flags.is_known());
        let mut expected = by_rows(&store, table, index, &range);
        let (mut position, mut found) = (ScanPosition::default(), Vec::new());
        for size in sizes.iter().cycle().take(4_000) {
            let mut page = vec![Rid(u32::MAX); *size];
            let count = store.scan_page(table, index, &range, &mut position, &mut page).expect("an ordered index");
            prop_assert!(count == *size || position.is_end());
            found.extend_from_slice(&page[..count]);
            prop_assert_eq!(position.is_end(), found.len() == expected.len());
            if position.is_end() {
                break;
            }
            if let Some(ahead) = goes
                && let Some(gone) = expected.get(found.len() + ahead as usize % 3).copied()
                && expected.len() > found.len() + 4
            {
                store.delete(table, gone).expect("live");
                expected.retain(|rid| *rid != gone);
            }
            if sizes.iter().all(|size| *size == 0) {
                return Ok(());
            }
        }
        prop_assert_eq!(found, expected);
        store.rollback();
    }
}
