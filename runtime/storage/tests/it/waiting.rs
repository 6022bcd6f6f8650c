//! Reads beside writes that are not acknowledged: one that meets none of them shows the rows as they were when all was acknowledged.

use std::collections::BTreeMap;

use reprise_abi::{ColumnSchema, Field, IndexKind, IndexSchema, Placement, RowLayout, ScalarType, TableSchema, key};
use reprise_storage::{Range, ScanPosition, ShownRow, Store, StoreAtView, TableId, Visit};

const TABLE: TableId = TableId(0);
const BY_TAG: u16 = 1;
const BY_GROUP: u16 = 2;
const IDS: i64 = 24;

/// By id: a unique tag, and a group.
type Rows = BTreeMap<i64, (i64, i64)>;

fn store(kind: IndexKind) -> Store {
    let column = |name: &str| ColumnSchema {
        variants: Vec::new(),
        was: None,
        name: name.into(),
        ty: ScalarType::I64,
        nullable: false,
        default: None,
    };
    let index = |name: &str, column, unique| IndexSchema {
        name: name.into(),
        columns: vec![column],
        unique,
    };
    let mut store = Store::new();
    let schema = TableSchema {
        owner: String::new(),
        shared: false,
        was: None,
        name: "t".into(),
        columns: vec![column("id"), column("tag"), column("of_group")],
        primary_key: vec![0],
        primary_kind: kind,
        indexes: vec![index("by_tag", 1, true), index("by_group", 2, false)],
        placement: Placement::Local,
    };
    store.create_table(schema).expect("a table");
    store.retain_undo();
    store
}

fn key_of(id: i64) -> Vec<u8> {
    let mut bytes = Vec::new();
    key::push_i64(&mut bytes, id);
    bytes
}

fn read(row: &[u8], layout: &RowLayout) -> (i64, (i64, i64)) {
    let int = |at| match layout.field(row, at) {
        Field::Int(value) => value,
        other => panic!("{other:?}"),
    };
    (int(0), (int(1), int(2)))
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// One transaction: some rows are inserted, changed or deleted; one in five is taken back.
fn write(store: &mut Store, rows: &mut Rows, random: &mut Random) {
    let layout = RowLayout::of_table(store.schema(TABLE));
    let mut changed = rows.clone();
    store.begin();
    for _ in 0..1 + random.below(2) {
        let id = random.below(IDS as u64) as i64;
        let value = (random.below(40) as i64, random.below(4) as i64);
        let row = layout.build(&[Field::Int(id), Field::Int(value.0), Field::Int(value.1)]);
        let found = store.get(TABLE, 0, &key_of(id));
        let is_done = match (found, random.below(3)) {
            (None, _) => store.insert(TABLE, &row).is_ok(),
            (Some(rid), 0) => {
                store.delete(TABLE, rid).expect("a live row");
                changed.remove(&id);
                continue;
            }
            (Some(rid), _) => store.update(TABLE, rid, &row).is_ok(),
        };
        if is_done {
            changed.insert(id, value);
        }
    }
    match random.below(5) {
        0 => store.rollback(),
        _ => {
            store.commit();
            *rows = changed;
        }
    }
}

/// Reads, and compares unless a waiting write was met. True: none was.
fn check<T: PartialEq + std::fmt::Debug>(
    store: &mut Store,
    end: u64,
    expected: T,
    read: impl FnOnce(&mut StoreAtView<'_>) -> T,
) -> bool {
    let found = read(&mut store.as_acknowledged(end));
    let is_shown = !store.take_met();
    assert!(!is_shown || found == expected, "{found:?}, expected {expected:?}");
    is_shown
}

fn scan(at: &mut StoreAtView<'_>, index: u16, key: &[u8], layout: &RowLayout) -> Vec<(i64, (i64, i64))> {
    let (mut position, mut shown) = (ScanPosition::default(), Vec::new());
    let range = Range::new(key, key, Default::default());
    while !position.is_end() {
        let on_row = |row: ShownRow<'_>| {
            shown.push(read(row.row, layout));
            Visit::Next
        };
        at.scan(TABLE, index, &range, (&mut position, 3), on_row)
            .expect("in order");
    }
    shown.sort_unstable();
    shown
}

#[test]
fn a_read_that_meets_no_waiting_write_shows_what_is_acknowledged() {
    let (mut shown, mut met) = (0, 0);
    for seed in 1..120 {
        let mut random = Random(seed * 0x9e37_79b9);
        let kind = if seed % 2 == 0 {
            IndexKind::Ordered
        } else {
            IndexKind::Hash
        };
        let mut store = store(kind);
        let layout = RowLayout::of_table(store.schema(TABLE));
        let mut rows = Rows::new();
        // As they were at each end.
        let mut states = vec![rows.clone()];
        let (mut durable, mut acknowledged) = (0, 0);
        for end in 1..40u64 {
            write(&mut store, &mut rows, &mut random);
            store.seal(end);
            states.push(rows.clone());
            durable = durable.max(end.saturating_sub(random.below(3)));
            // Acknowledgements stand still now and then.
            if random.below(6) > 0 {
                acknowledged = acknowledged.max(durable.saturating_sub(random.below(4)));
            }
            store.acknowledge(acknowledged);
            store.settle(durable);
            let now = &states[acknowledged as usize];
            let mut count = |is_shown: bool| if is_shown { shown += 1 } else { met += 1 };
            for id in 0..IDS {
                let expected = now.get(&id).map(|value| (id, *value));
                let key = key_of(id);
                count(check(&mut store, acknowledged, expected, |at| {
                    at.get_row(TABLE, 0, &key).map(|(_, row)| read(row, &layout))
                }));
            }
            for tag in 0..40 {
                let expected = now
                    .iter()
                    .find(|(_, value)| value.0 == tag)
                    .map(|(id, value)| (*id, *value));
                let key = key_of(tag);
                count(check(&mut store, acknowledged, expected, |at| {
                    at.get_row(TABLE, BY_TAG, &key).map(|(_, row)| read(row, &layout))
                }));
            }
            for group in 0..4 {
                let of_group = now.iter().filter(|(_, value)| value.1 == group);
                let expected: Vec<_> = of_group.map(|(id, value)| (*id, *value)).collect();
                let key = key_of(group);
                count(check(&mut store, acknowledged, expected, |at| {
                    scan(at, BY_GROUP, &key, &layout)
                }));
            }
        }
    }
    assert!(shown > 1_000 && met > 1_000, "{shown} {met}");
}

#[test]
fn a_row_that_nobody_wrote_is_shown_and_one_that_waits_is_not() {
    let mut store = store(IndexKind::Hash);
    let layout = RowLayout::of_table(store.schema(TABLE));
    let put = |store: &mut Store, id: i64, group: i64, end: u64| {
        let row = layout.build(&[Field::Int(id), Field::Int(id), Field::Int(group)]);
        let found = store.get(TABLE, 0, &key_of(id));
        store.begin();
        match found {
            None => _ = store.insert(TABLE, &row).expect("a new row"),
            Some(rid) => store.update(TABLE, rid, &row).expect("a live row"),
        }
        store.commit();
        store.seal(end);
    };
    let meets = |store: &mut Store, end: u64, id: i64| {
        store.as_acknowledged(end).get_row(TABLE, 0, &key_of(id));
        store.take_met()
    };
    (1..=20).for_each(|id| put(&mut store, id, 0, id as u64));
    store.acknowledge(20);
    store.settle(20);
    assert!((0..=21).all(|id| !meets(&mut store, 20, id)), "nothing waits");
    put(&mut store, 7, 1, 21);
    put(&mut store, 30, 1, 22);
    for durable in [20, 21, 22] {
        store.settle(durable);
        let met: Vec<i64> = (1..=20).chain([30]).filter(|id| meets(&mut store, 20, *id)).collect();
        assert_eq!(met, [7, 30], "durable up to {durable}");
        assert_eq!((meets(&mut store, 21, 7), meets(&mut store, 21, 30)), (false, true));
    }
    // A row that is not found may have been taken away, by a change of this table.
    assert!(meets(&mut store, 20, 31));
    // What is known as a whole hides all rows, until it is acknowledged.
    store.hold_all(25);
    assert!(meets(&mut store, 24, 1) && !meets(&mut store, 25, 1));
    store.acknowledge(22);
    store.settle(22);
    assert_eq!((meets(&mut store, 25, 7), meets(&mut store, 25, 31)), (false, false));
}
