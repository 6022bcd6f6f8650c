//! Redo of votes on one thread, without log and threads: `cargo run --release -p reprise-storage --example redo [MiB of a window]`.
//!
//! Nanoseconds a vote: telling changes apart, inserting votes, writing counts; and how many writes of counts are left.

use std::time::Instant;

use reprise_abi::{ColumnSchema, Field, IndexKind, Placement, ScalarType, TableSchema};
use reprise_storage::{Found, LastWrites, RedoList, Store, TableId};
use reprise_wire::{Change, Changes, PatchWriter, RowName};

use ScalarType::{I32, I64, Text};

const VOTES: usize = 4_000_000;
const COUNTS: u64 = 2_600;
/// What a record has before its changes.
const HEAD_BYTES: usize = 21;

fn spread(n: u64) -> u64 {
    let mixed = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 29
}

fn schema(name: &str, columns: &[(&str, ScalarType)], kind: IndexKind) -> TableSchema {
    let columns = columns.iter().map(|(name, ty)| ColumnSchema {
        variants: Vec::new(),
        was: None,
        name: (*name).into(),
        ty: *ty,
        nullable: false,
        default: None,
    });
    TableSchema {
        owner: String::new(),
        shared: false,
        was: None,
        name: name.into(),
        columns: columns.collect(),
        primary_key: vec![0, 1],
        primary_kind: kind,
        indexes: Vec::new(),
        placement: Placement::Local,
    }
}

fn store() -> Store {
    let mut store = Store::new();
    let votes = [("phone", I64), ("number", I32), ("contestant", I32), ("state", Text)];
    let counts = [("contestant", I32), ("area", I32), ("state", Text), ("votes", I64)];
    let schemas = [
        schema("votes", &votes, IndexKind::Hash),
        schema("counts", &counts, IndexKind::Dense),
    ];
    for schema in schemas {
        store.create_table(schema).expect("a table");
    }
    store.begin();
    for n in 0..COUNTS {
        let row = store.layout(TableId(1)).build(&[
            Field::Int((n % 6) as i64),
            Field::Int((200 + n / 6) as i64),
            Field::Text("NY"),
            Field::Int(0),
        ]);
        store.insert(TableId(1), &row).expect("new");
    }
    store.commit();
    store
}

/// The changes of a vote behind a record's head; where they begin.
fn push_vote(store: &Store, window: &mut Vec<u8>, n: u64) -> usize {
    window.resize(window.len() + HEAD_BYTES, 0);
    let start = window.len();
    let phone = 2_000_000_0000 + (spread(n) % 8_000_000_0000) as i64;
    let row = store.layout(TableId(0)).build(&[
        Field::Int(phone),
        Field::Int(n as i64),
        Field::Int(3),
        Field::Text("NY"),
    ]);
    let insert = Change::Insert {
        table: 0,
        number: None,
        row: &row,
    };
    insert.encode(window);
    let count = spread(n + 7) % COUNTS;
    let mut key = Vec::new();
    for part in [count % 6, 200 + count / 6] {
        key.extend_from_slice(&(part as u32 ^ 1 << 31).to_be_bytes());
    }
    let mut patch = PatchWriter::begin(window, 1, RowName::Key(&key), 1);
    patch.column(3, Some(&n.to_le_bytes()));
    patch.finish();
    start
}

fn main() {
    let window_bytes = std::env::args().nth(1).and_then(|mib| mib.parse::<usize>().ok());
    let window_bytes = window_bytes.unwrap_or(4) << 20;
    let mut store = store();
    let mut last = LastWrites::default();
    let mut lists = [RedoList::default(), RedoList::default()];
    let (mut told, mut applied, mut counts_left, mut votes) = (0, [0, 0], 0, 0);
    while votes < VOTES {
        let (mut window, mut starts) = (Vec::with_capacity(window_bytes + 128), Vec::new());
        while window.len() < window_bytes {
            starts.push(push_vote(&store, &mut window, (votes + starts.len()) as u64));
        }
        let mut redos = store.redos();
        let begun = Instant::now();
        last.begin(window.len());
        for (list, redo) in lists.iter_mut().zip(&redos) {
            list.begin(last.list(), redo.overwritable());
        }
        let ends = starts[1..].iter().map(|start| start - HEAD_BYTES);
        for (start, end) in starts.iter().zip(ends.chain([window.len()])) {
            let mut walk = Changes::new(&window[*start..end]);
            let mut at = *start;
            while let Some(change) = walk.next() {
                let change = change.expect("just written");
                let found = Found {
                    txn: *start as u32,
                    at: at as u32,
                    end: (start + walk.offset()) as u32,
                };
                at = found.end as usize;
                lists[change.table() as usize].push(found, &change, &mut last);
            }
        }
        told += begun.elapsed().as_nanos();
        for (table, redo) in redos.iter_mut().enumerate() {
            let begun = Instant::now();
            if table == 0 {
                redo.expect((VOTES - votes) as u64);
            }
            redo.apply(&window, &lists[table]).expect("fits");
            applied[table] += begun.elapsed().as_nanos();
        }
        counts_left += lists[1].len();
        votes += starts.len();
    }
    let each = |ns: u128| ns as f64 / votes as f64;
    let [inserted, counted] = applied.map(each);
    println!(
        "{votes} votes: told apart {:.1} ns, inserted {inserted:.1} ns, counted {counted:.1} ns; of each count {:.3} left",
        each(told),
        counts_left as f64 / votes as f64
    );
}
