//! Redo of votes on one thread, without log and threads:
//! `redo [MiB of a window [votes [counts [windows of a view]]]]`.
//!
//! Nanoseconds a vote for two parts: demultiplexing its changes by table, and applying them. Also the number of writes of counts that are left. With
//! views, the run opens one before each window. It then closes the view that it opened the given number of windows before.

use std::{error::Error, time::Instant};

use reprise_abi::{ColumnSchema, Field, IndexKind, ScalarType, TableSchema};
use reprise_storage::{LastWrites, PartitionRedo, Store, TableId, ViewId};
use reprise_wire::{Change, PatchWriter};

use crate::Args;

use ScalarType::{I32, I64, Text};

const VOTES: usize = 4_000_000;
const COUNTS: u64 = 2_600;
/// Bytes of a record before its changes.
const HEAD_BYTES: usize = 21;

fn spread(n: u64) -> u64 {
    let mixed = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 29
}

fn schema(name: &str, columns: &[(&str, ScalarType)], kind: IndexKind) -> TableSchema {
    let columns = columns.iter().map(|(name, ty)| ColumnSchema::new(*name, *ty));
    TableSchema {
        primary_kind: kind,
        ..TableSchema::new(name, columns.collect(), &[0, 1])
    }
}

fn store(counted: u64) -> Store {
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
    for n in 0..counted {
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
fn push_vote(store: &Store, window: &mut Vec<u8>, n: u64, counts: u64) -> usize {
    window.resize(window.len() + HEAD_BYTES, 0);
    let start = window.len();
    let phone = 20_000_000_000 + (spread(n) % 80_000_000_000) as i64;
    let row = store.layout(TableId(0)).build(&[
        Field::Int(phone),
        Field::Int(n as i64),
        Field::Int(3),
        Field::Text("NY"),
    ]);
    let insert = Change::Insert {
        table: 0,
        number: n,
        row: &row,
    };
    insert.encode(window);
    let count = spread(n + 7) % counts;
    let mut patch = PatchWriter::begin(window, 1, count, 1);
    patch.column(3, Some(&n.to_le_bytes()));
    patch.finish();
    start
}

pub fn run(mut args: Args) -> Result<(), Box<dyn Error>> {
    let mut number = || args.next().map(|text| text.parse::<u64>()).transpose();
    let window_bytes = (number()?.unwrap_or(4) as usize) << 20;
    let votes_max = number()?.map_or(VOTES, |votes| votes as usize);
    let counts = number()?.unwrap_or(COUNTS);
    let windows = number()?;
    let mut view = 0;
    let mut store = store(counts);
    let (mut last, mut redo) = (LastWrites::default(), PartitionRedo::default());
    let (mut elapsed_ns, mut applied, mut left, mut votes) = (0, 0, 0, 0);
    while votes < votes_max {
        let (mut window, mut starts) = (Vec::with_capacity(window_bytes + 128), Vec::new());
        while window.len() < window_bytes {
            starts.push(push_vote(&store, &mut window, (votes + starts.len()) as u64, counts));
        }
        let begun = Instant::now();
        last.begin(window.len());
        let schema = store.redo_schema();
        let ends = starts[1..].iter().map(|start| start - HEAD_BYTES);
        for (start, end) in starts.iter().zip(ends.chain([window.len()])) {
            let pushed = redo.push(&schema, &window, *start as u32, *start..end, &mut last);
            pushed.expect("just written");
        }
        elapsed_ns += begun.elapsed().as_nanos();
        left += redo.len() - starts.len();
        let begun = Instant::now();
        if let Some(windows) = windows {
            view += 1;
            store.open_view(ViewId(view), 0, 1 << 30);
            if view > windows {
                store.close_view(ViewId(view - windows));
            }
        }
        let growth_times = (votes_max - votes) as f64 / starts.len() as f64;
        redo.apply(&mut store, &window, growth_times.max(1.0)).expect("fits");
        applied += begun.elapsed().as_nanos();
        votes += starts.len();
    }
    let each = |ns: u128| ns as f64 / votes as f64;
    println!(
        "{votes} votes: demultiplexed {:.1} ns, applied {:.1} ns; of each count {:.3} left",
        each(elapsed_ns),
        each(applied),
        left as f64 / votes as f64
    );
    Ok(())
}
