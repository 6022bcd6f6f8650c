//! Single operations, repeated: to count their instructions.

use std::hint::black_box;

use reprise_abi::{ColumnSet, Field, IndexKind, ScalarType, ScanFlags, key::push_i32};
use reprise_storage::{AfterImage, Range, Rid, Store, TableId};
use reprise_wire::ChangesBuffer;

use super::{Random, key, set_i32, table};

use ScalarType::{Bytes, I32, I64, Text};

/// Keys in the tables that look-ups are made in.
const KEYS: usize = 10_000;

const OPERATIONS: &[(&str, fn(usize))] = &[
    ("empty", empty),
    ("get-hash", |count| get(IndexKind::Hash, count)),
    ("get-dense", |count| get(IndexKind::Dense, count)),
    ("get-ordered", |count| get(IndexKind::Ordered, count)),
    ("get-absent", get_absent),
    ("multi-get", multi_get),
    ("insert-hash", insert_hash),
    ("insert-in-order", insert_in_order),
    ("update", update),
    ("add", add),
    ("vote", |count| vote(IndexKind::Hash, count, false)),
    ("vote-logged", |count| vote(IndexKind::Hash, count, true)),
    ("vote-ordered", |count| vote(IndexKind::Ordered, count, false)),
    ("new-order", |count| new_order(count, false)),
    ("new-order-logged", |count| new_order(count, true)),
];

pub fn run(name: &str, count: usize) {
    match OPERATIONS.iter().find(|(known, _)| *known == name) {
        Some((_, operation)) => {
            let start = std::time::Instant::now();
            operation(count);
            println!("{name}: {count} in {:?}, set-up included", start.elapsed());
        }
        None => OPERATIONS.iter().for_each(|(name, _)| println!("{name}")),
    }
}

fn empty(count: usize) {
    let mut store = Store::new();
    for _ in 0..count {
        store.begin();
        black_box(store.commit());
    }
}

/// Rows of 300 bytes under a key of two integers, 1 and a number.
struct Stock {
    store: Store,
    table: TableId,
}

impl Stock {
    fn new(kind: IndexKind, count: usize) -> Self {
        let mut store = Store::new();
        let columns = [I32, I32, I64, I32, Bytes];
        let created = store.create_table(table("stock", &columns, &[0, 1], kind, &[]));
        let table = created.expect("table is valid");
        let mut stock = Self { store, table };
        for number in 0..count {
            let row = stock.row(number);
            stock.store.begin();
            stock.store.insert(table, &row).expect("fresh key");
            stock.store.commit();
        }
        stock
    }

    fn row(&self, number: usize) -> Vec<u8> {
        self.store.layout(self.table).build(&[
            Field::Int(1),
            Field::Int(number as i64),
            Field::Int(0),
            Field::Int(10),
            Field::Bytes(&[b's'; 276]),
        ])
    }

    fn key(number: usize) -> [u8; 8] {
        let ordered = |value: usize| (value as u32 ^ 1 << 31) as u64;
        (ordered(1) << 32 | ordered(number)).to_be_bytes()
    }

    fn find(&self, number: usize) -> Rid {
        let found = self.store.get(self.table, 0, &Self::key(number));
        found.expect("row exists")
    }
}

fn get(kind: IndexKind, count: usize) {
    let stock = Stock::new(kind, KEYS);
    for at in 0..count {
        let found = stock.store.get_row(stock.table, 0, &Stock::key(at * 7919 % KEYS));
        black_box(found.expect("row exists").1[16]);
    }
}

fn get_absent(count: usize) {
    let stock = Stock::new(IndexKind::Hash, KEYS);
    for at in 0..count {
        assert_eq!(stock.store.get(stock.table, 0, &Stock::key(KEYS + at)), None);
    }
}

fn multi_get(count: usize) {
    let stock = Stock::new(IndexKind::Dense, KEYS);
    for at in 0..count / 10 {
        let keys: [_; 10] = std::array::from_fn(|i| Stock::key((at * 10 + i) * 7919 % KEYS));
        let mut sum = 0;
        let visit = |found: Option<(Rid, &[u8])>| sum += found.expect("row exists").1[16] as u32;
        stock.store.multi_get(
            stock.table,
            0,
            keys.iter().map(|key| &key[..]),
            reprise_abi::ReadSpan::ALL,
            visit,
        );
        black_box(sum);
    }
}

fn insert_hash(count: usize) {
    let mut store = Store::new();
    let schema = table("t", &[I64, I32, I32], &[0, 1], IndexKind::Hash, &[]);
    let id = store.create_table(schema).expect("table is valid");
    let mut random = Random(1);
    let mut row = [0; 16];
    store.begin();
    for _ in 0..count {
        row[..8].copy_from_slice(&random.next().to_le_bytes());
        store.insert(id, &row).expect("fresh key");
    }
    store.commit();
}

fn insert_in_order(count: usize) {
    let mut store = Store::new();
    let schema = table("t", &[I32, I32, I32, I64], &[0, 1, 2], IndexKind::Ordered, &[]);
    let id = store.create_table(schema).expect("table is valid");
    let mut row = [0; 20];
    store.begin();
    for at in 0..count {
        set_i32(&mut row, 8, at as i32);
        store.insert(id, &row).expect("fresh key");
    }
    store.commit();
}

fn update(count: usize) {
    let mut stock = Stock::new(IndexKind::Hash, KEYS);
    let rid = stock.find(5);
    let mut row = stock.row(5);
    for at in 0..count {
        stock.store.begin();
        set_i32(&mut row, 16, at as i32);
        stock.store.update(stock.table, rid, &row).expect("row fits");
        black_box(stock.store.commit());
    }
}

fn add(count: usize) {
    let mut stock = Stock::new(IndexKind::Hash, KEYS);
    let rid = stock.find(5);
    for _ in 0..count {
        stock.store.begin();
        black_box(stock.store.add(stock.table, rid, 2, 1).expect("sum fits"));
        black_box(stock.store.commit());
    }
}

/// Looks a contestant up, inserts the vote, and adds to the count of contestant and area. In an ordered table it first reads the phone's last
/// vote. If logged, it also puts its changes together.
fn vote(kind: IndexKind, count: usize, is_logged: bool) {
    let mut store = Store::new();
    let mut create = |schema| store.create_table(schema).expect("table is valid");
    let contestants = create(table("contestants", &[I32, Text], &[0], IndexKind::Hash, &[]));
    let votes = create(table("votes", &[I64, I32, I32, Text], &[0, 1], kind, &[]));
    let counts = create(table("counts", &[I32, I32, I64], &[0, 1], IndexKind::Ordered, &[]));
    store.begin();
    for contestant in 0..6 {
        let fields = [Field::Int(contestant), Field::Text("name")];
        let row = store.layout(contestants).build(&fields);
        store.insert(contestants, &row).expect("fresh key");
        for area in 200..500 {
            let fields = [Field::Int(contestant), Field::Int(area), Field::Int(0)];
            let row = store.layout(counts).build(&fields);
            store.insert(counts, &row).expect("fresh key");
        }
    }
    store.commit();
    let fields = [Field::Int(0), Field::Int(1), Field::Int(0), Field::Text("MA")];
    let mut row = store.layout(votes).build(&fields);
    let (mut random, mut changes) = (Random(1), ChangesBuffer::default());
    let ordered = |value: i64| (value as u32 ^ 1 << 31).to_be_bytes();
    for _ in 0..count {
        let area = 200 + random.below(300) as i64;
        let phone = area * 10_000_000_000 + random.below(10_000_000_000) as i64;
        let contestant = random.below(6) as i64;
        store.begin();
        if is_logged {
            store.capture(AfterImage::Changed);
        }
        black_box(store.get_row(contestants, 0, &ordered(contestant)));
        if kind == IndexKind::Ordered {
            let prefix = (phone as u64 ^ 1 << 63).to_be_bytes();
            let range = Range::new(&prefix, &prefix, ScanFlags(ScanFlags::REVERSE));
            black_box(store.first(votes, 0, &range).expect("votes are ordered"));
        }
        row[..8].copy_from_slice(&phone.to_le_bytes());
        set_i32(&mut row, 12, contestant as i32);
        store.insert(votes, &row).expect("fresh key");
        let key = [ordered(contestant), ordered(area)].concat();
        let (rid, _) = store.get_row(counts, 0, &key).expect("row exists");
        store.add(counts, rid, 2, 1).expect("count fits");
        if is_logged {
            black_box(store.take_changes(AfterImage::Changed, &mut changes));
        }
        black_box(store.commit());
    }
}

/// Ten stock rows found and two columns of each written, ten order lines appended.
fn new_order(count: usize, is_logged: bool) {
    let mut stock = Stock::new(IndexKind::Dense, KEYS);
    let columns = [I32, I32, I32, I32, I32, I64];
    let schema = table("order_line", &columns, &[0, 1, 2, 3], IndexKind::Ordered, &[]);
    let lines = stock.store.create_table(schema).expect("table is valid");
    let (mut line, mut random, mut orders) = ([0; 28], Random(1), [0; 10]);
    let mut changes = ChangesBuffer::default();
    for _ in 0..count {
        let district = random.below(10) as usize;
        orders[district] += 1;
        stock.store.begin();
        if is_logged {
            stock.store.capture(AfterImage::Changed);
        }
        for number in 0..10 {
            let item = random.below(KEYS as u64) as usize;
            let found = stock.store.get_row(stock.table, 0, &Stock::key(item));
            let (rid, row) = found.expect("row exists");
            let mut values: [u8; 12] = row[8..20].try_into().expect("12 bytes");
            set_i32(&mut values, 8, number);
            let patched = stock.store.patch(stock.table, rid, ColumnSet(0b1100), &values);
            patched.expect("columns fit");
            set_i32(&mut line, 4, district as i32);
            set_i32(&mut line, 8, orders[district]);
            set_i32(&mut line, 12, number);
            stock.store.insert(lines, &line).expect("fresh key");
        }
        if is_logged {
            black_box(stock.store.take_changes(AfterImage::Changed, &mut changes));
        }
        black_box(stock.store.commit());
    }
    let last = key(|out| [0, 0, orders[0], 9].into_iter().for_each(|id| push_i32(out, id)));
    assert_eq!(stock.store.get(lines, 0, &last).is_some(), orders[0] > 0);
}
