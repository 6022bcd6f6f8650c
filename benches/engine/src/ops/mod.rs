//! Nanoseconds per storage operation, single thread: `ops [rows [part]]`.
//!
//! Each line is the best and the median of slices of about 2,000 operations, undo, digest and commit included.
//!
//! Instructions: `ops one OPERATION COUNT` runs one operation so often and nothing else after its set-up (without an
//! operation, it names them). Under `valgrind --tool=callgrind`, the counts of two runs, subtracted and divided by the
//! difference of their `COUNT`s, are the instructions of one.

mod one;

use std::{error::Error, hint::black_box, time::Instant};

use reprise_abi::{
    ColumnSchema, Field, IndexKind, IndexSchema, RowLayout, ScalarType, ScanFlags, TableSchema,
    key::{push_bytes, push_i32},
};
use reprise_storage::{Range, Rid, ScanPosition, Store, TableId, Visit};

use crate::Args;

use ScalarType::{Bytes, I32, I64, Text};

const SLICE: usize = 2_000;

fn table(name: &str, columns: &[ScalarType], key: &[u16], kind: IndexKind, indexes: &[(&[u16], bool)]) -> TableSchema {
    TableSchema {
        primary_kind: kind,
        indexes: indexes
            .iter()
            .enumerate()
            .map(|(at, (columns, unique))| IndexSchema::new(format!("i{at}"), columns, *unique))
            .collect(),
        ..TableSchema::new(
            name,
            columns
                .iter()
                .enumerate()
                .map(|(at, ty)| ColumnSchema::new(format!("c{at}"), *ty))
                .collect(),
            key,
        )
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ mixed >> 31
    }
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Runs `count` operations in slices and prints the time of one.
fn time(name: &str, count: usize, mut op: impl FnMut(usize)) {
    let mut slices = Vec::new();
    for slice in 0..count / SLICE {
        let start = Instant::now();
        for at in 0..SLICE {
            op(slice * SLICE + at);
        }
        slices.push(start.elapsed().as_nanos() as f64 / SLICE as f64);
    }
    slices.sort_by(f64::total_cmp);
    println!(
        "{name:<58} best {:7.1} ns   median {:7.1} ns",
        slices[0],
        slices[slices.len() / 2]
    );
}

fn key(parts: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut key = Vec::new();
    parts(&mut key);
    key
}

fn set_i32(row: &mut [u8], at: usize, value: i32) {
    row[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Contestants, areas and votes, the first two with their rows.
fn voter_tables(store: &mut Store) -> [TableId; 3] {
    let mut create = |name, columns: &[ScalarType], key: &[u16], kind| {
        store
            .create_table(table(name, columns, key, kind, &[]))
            .expect("table is valid")
    };
    let contestants = create("contestants", &[I32, I64], &[0], IndexKind::Ordered);
    let areas = create("areas", &[I32, Text], &[0], IndexKind::Hash);
    let votes = create("votes", &[I64, I32, I32, Text], &[0, 1], IndexKind::Ordered);
    store.begin();
    for contestant in 0..12 {
        let fields = [Field::Int(contestant), Field::Int(0)];
        let row = store.layout(contestants).build(&fields);
        store.insert(contestants, &row).expect("fresh key");
    }
    for area in 200..500 {
        let row = store.layout(areas).build(&[Field::Int(area), Field::Text("MA")]);
        store.insert(areas, &row).expect("fresh key");
    }
    store.commit();
    [contestants, areas, votes]
}

/// The storage part of one vote: contestant, the phone's last vote, insert, area code, count.
fn voter(rows: usize) {
    let mut store = Store::new();
    let [contestants, areas, votes] = voter_tables(&mut store);
    let mut random = Random(1);
    let template = store
        .layout(votes)
        .build(&[Field::Int(0), Field::Int(0), Field::Int(3), Field::Text("MA")]);
    let mut vote = |_| {
        let phone = (200 + random.below(300)) as i64 * 10_000_000 + random.below(10_000_000) as i64;
        let contestant = random.below(12) as i32;
        store.begin();
        let mut key = [0; 4];
        key.copy_from_slice(&(contestant as u32 ^ 1 << 31).to_be_bytes());
        let chosen = store.get(contestants, 0, &key).expect("contestant exists");
        let prefix = (phone as u64 ^ 1 << 63).to_be_bytes();
        let range = Range::new(&prefix, &prefix, ScanFlags(ScanFlags::REVERSE));
        let last = store.first(votes, 0, &range).expect("votes are ordered");
        let sequence = match last.and_then(|rid| store.row(votes, rid)) {
            Some(row) => i32::from_le_bytes(row[8..12].try_into().expect("4 bytes")) + 1,
            None => 0,
        };
        key.copy_from_slice(&((phone / 10_000_000) as u32 ^ 1 << 31).to_be_bytes());
        let area = store.get(areas, 0, &key).expect("area exists");
        black_box(store.row(areas, area));
        let mut row = template.clone();
        row[..8].copy_from_slice(&phone.to_le_bytes());
        set_i32(&mut row, 8, sequence);
        set_i32(&mut row, 12, contestant);
        store.insert(votes, &row).expect("fresh key");
        store.add(contestants, chosen, 1, 1).expect("count fits");
        black_box(store.commit());
    };
    time("voter: a vote, the first tenth of the rows", rows / 10, &mut vote);
    time("voter: a vote, the rest", rows - rows / 10, &mut vote);
    let stats = store.stats(votes);
    let bytes = (stats.row_bytes + stats.index_bytes) as f64 / stats.rows as f64;
    println!("voter: {} votes of about {bytes:.1} bytes", stats.rows);
}

/// Rows of about 300 bytes under a key of three integers, with a text index.
struct Customers {
    store: Store,
    table: TableId,
    layout: RowLayout,
    count: usize,
}

const NAMES: [&str; 10] = [
    "BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING",
];

impl Customers {
    fn new(count: usize, kind: IndexKind) -> Self {
        let mut store = Store::new();
        let columns = [I32, I32, I32, Text, Text, I64, I32, Bytes];
        let schema = table("customer", &columns, &[0, 1, 2], kind, &[(&[0, 1, 3, 4], false)]);
        let id = store.create_table(schema).expect("table is valid");
        let layout = store.layout(id).clone();
        Self {
            store,
            table: id,
            layout,
            count,
        }
    }

    fn ids(number: usize) -> [i32; 3] {
        [
            number as i32 / 30_000,
            number as i32 / 3_000 % 10,
            number as i32 % 3_000,
        ]
    }

    fn row(&self, number: usize, random: &mut Random) -> Vec<u8> {
        let [w, d, c] = Self::ids(number);
        let mut name = || NAMES[random.below(10) as usize];
        let last = format!("{}{}{}", name(), name(), name());
        self.layout.build(&[
            Field::Int(w as i64),
            Field::Int(d as i64),
            Field::Int(c as i64),
            Field::Text(&last),
            Field::Text("first name"),
            Field::Int(-10),
            Field::Int(0),
            Field::Bytes(&[b'x'; 230]),
        ])
    }

    fn key(number: usize) -> Vec<u8> {
        key(|out| Self::ids(number).into_iter().for_each(|id| push_i32(out, id)))
    }

    fn find(&self, number: usize) -> Rid {
        self.store
            .get(self.table, 0, &Self::key(number))
            .expect("customer exists")
    }
}

fn customers(count: usize, kind: IndexKind) {
    let mut random = Random(2);
    let mut c = Customers::new(count, kind);
    let name = format!("{kind:?}").to_lowercase();
    let rows: Vec<Vec<u8>> = (0..count).map(|number| c.row(number, &mut random)).collect();
    time(
        &format!("customer ({name}): insert 300 bytes, text index"),
        count,
        |at| {
            c.store.begin();
            c.store.insert(c.table, &rows[at]).expect("fresh key");
            c.store.commit();
        },
    );
    time(&format!("customer ({name}): get random, read the row"), count, |_| {
        let rid = c.find(random.below(c.count as u64) as usize);
        black_box(c.store.row(c.table, rid).expect("row is live")[20]);
    });
    time(
        &format!("customer ({name}): get random, update, no key changed"),
        count,
        |_| {
            let rid = c.find(random.below(c.count as u64) as usize);
            let mut row = c.store.row(c.table, rid).expect("row is live").to_vec();
            set_i32(&mut row, 20, 7);
            c.store.begin();
            c.store.update(c.table, rid, &row).expect("row fits");
            c.store.commit();
        },
    );
    time(&format!("customer ({name}): get random, add"), count, |_| {
        let rid = c.find(random.below(c.count as u64) as usize);
        c.store.begin();
        c.store.add(c.table, rid, 5, 1).expect("sum fits");
        c.store.commit();
    });
    scan_names(&c, &name, &mut random);
    let stats = c.store.stats(c.table);
    let per_row = |bytes: f64| bytes / stats.rows as f64;
    println!(
        "customer ({name}): row {:.1}, indexes {:.1}, held {:.1} bytes a row",
        per_row(stats.row_bytes as f64),
        per_row(stats.index_bytes as f64),
        per_row(c.store.memory_bytes() as f64)
    );
}

/// Customers of one district with one last name: a prefix of the text index.
fn scan_names(c: &Customers, name: &str, random: &mut Random) {
    time(&format!("customer ({name}): scan by last name"), c.count / 10, |_| {
        let [w, d, _] = Customers::ids(random.below(c.count as u64) as usize);
        let mut name = || NAMES[random.below(10) as usize];
        let last = format!("{}{}{}", name(), name(), name());
        let prefix = key(|out| {
            push_i32(out, w);
            push_i32(out, d);
            push_bytes(out, last.as_bytes());
        });
        let range = Range::new(&prefix, &prefix, ScanFlags(0));
        let mut position = ScanPosition::default();
        let visit = |_, row: &[u8]| {
            black_box(row[0]);
            Visit::Next
        };
        c.store
            .scan(c.table, 1, &range, &mut position, visit)
            .expect("index is ordered");
    });
}

/// Order lines: ten districts take turns, each appends ten lines to an order.
fn order_lines(count: usize) {
    let mut store = Store::new();
    let columns = [I32, I32, I32, I32, I32, I64, Text];
    let schema = table("order_line", &columns, &[0, 1, 2, 3], IndexKind::Ordered, &[]);
    let lines = store.create_table(schema).expect("table is valid");
    let template = store.layout(lines).build(&[
        Field::Int(0),
        Field::Int(0),
        Field::Int(0),
        Field::Int(0),
        Field::Int(9),
        Field::Int(5),
        Field::Text("abcdefghijklmnopqrstuvwx"),
    ]);
    let mut random = Random(3);
    let mut orders = [0; 10];
    time("order_line: ten inserts and a commit", count / 10, |_| {
        let district = random.below(10) as usize;
        orders[district] += 1;
        store.begin();
        for line in 0..10 {
            let mut row = template.clone();
            set_i32(&mut row, 4, district as i32);
            set_i32(&mut row, 8, orders[district]);
            set_i32(&mut row, 12, line);
            store.insert(lines, &row).expect("fresh key");
        }
        store.commit();
    });
    time("order_line: scan one order (ten rows)", count / 10, |_| {
        let district = random.below(10) as usize;
        let order = 1 + random.below(orders[district] as u64) as i32;
        let prefix = key(|out| [0, district as i32, order].into_iter().for_each(|id| push_i32(out, id)));
        let range = Range::new(&prefix, &prefix, ScanFlags(0));
        let mut position = ScanPosition::default();
        let mut rows = 0;
        let visit = |_, row: &[u8]| {
            rows += row[16] as usize;
            Visit::Next
        };
        store
            .scan(lines, 0, &range, &mut position, visit)
            .expect("index is ordered");
        black_box(rows);
    });
    let stats = store.stats(lines);
    println!(
        "order_line: held {:.1} bytes a row",
        store.memory_bytes() as f64 / stats.rows as f64
    );
}

fn small_ops() {
    let mut store = Store::new();
    let schema = table("small", &[I64, I64], &[0], IndexKind::Ordered, &[]);
    let small = store.create_table(schema).expect("table is valid");
    store.begin();
    for id in 0..1000 {
        let row = store.layout(small).build(&[Field::Int(id), Field::Int(0)]);
        store.insert(small, &row).expect("fresh key");
    }
    store.commit();
    let mut random = Random(4);
    time("empty transaction", 400_000, |_| {
        store.begin();
        black_box(store.commit());
    });
    time("small: get of 1,000", 400_000, |_| {
        let key = (random.below(1000) ^ 1 << 63).to_be_bytes();
        black_box(store.get(small, 0, &key));
    });
    time("small: insert, delete, rollback", 400_000, |at| {
        let row = store
            .layout(small)
            .build(&[Field::Int(at as i64 + 1000), Field::Int(0)]);
        store.begin();
        let rid = store.insert(small, &row).expect("fresh key");
        store.delete(small, rid).expect("row is live");
        store.rollback();
    });
    time("digest: all 1,000 rows", 4_000, |_| {
        black_box(store.digest());
    });
}

pub fn run(mut args: Args) -> Result<(), Box<dyn Error>> {
    let first = args.next();
    if first.as_deref() == Some("one") {
        let name = args.next().unwrap_or_default();
        one::run(&name, args.next().map_or(Ok(0), |count| count.parse())?);
        return Ok(());
    }
    let rows = first.map_or(Ok(1_000_000), |rows| rows.parse())?;
    let only = args.next();
    let wants = |name: &str| only.as_deref().is_none_or(|only| only == name);
    if wants("small") {
        small_ops();
    }
    if wants("voter") {
        voter(rows);
    }
    if wants("order_line") {
        order_lines(rows);
    }
    if wants("customer") {
        customers(rows.min(300_000), IndexKind::Ordered);
        customers(rows.min(300_000), IndexKind::Hash);
        customers(rows.min(300_000), IndexKind::Dense);
    }
    Ok(())
}
