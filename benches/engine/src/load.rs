//! Loading rows and building indexes, on one thread:
//! `load [MiB of rows]`.
//!
//! For each kind of table: nanoseconds a row and MB of row bytes a second. The parts are copying the rows in, building each index, and both. Each
//! part is the best of a few rounds.

use std::{error::Error, time::Instant};

use reprise_abi::{ColumnSchema, Field, IndexKind, IndexSchema, RowLayout, ScalarType, TableSchema};
use reprise_storage::{Store, TableId};
use reprise_wire::push_checkpoint_row;

use crate::Args;

use ScalarType::{I16, I32, I64, Text, U8};

const BLOCK_BYTES: usize = 256 << 10;
/// The best one counts: the system is slow to hand out memory the first time.
const ROUNDS: usize = 3;

struct Kind {
    name: &'static str,
    columns: &'static [ScalarType],
    key: &'static [u16],
    kind: IndexKind,
    index: &'static [u16],
    row: fn(&RowLayout, u64) -> Vec<u8>,
}

fn spread(n: u64) -> u64 {
    let mixed = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 29
}

const KINDS: [Kind; 5] = [
    Kind {
        name: "votes: 22 bytes, hash of 12",
        columns: &[I64, I32, I32, Text],
        key: &[0, 1],
        kind: IndexKind::Hash,
        index: &[],
        row: |layout, n| {
            let phone = 20_000_000_000 + (spread(n) % 80_000_000_000) as i64;
            layout.build(&[
                Field::Int(phone),
                Field::Int(n as i64),
                Field::Int(3),
                Field::Text("NY"),
            ])
        },
    },
    Kind {
        name: "lines: ten runs, tree of 8",
        columns: &[I16, U8, I32, U8, I32, I32, I64, I64, Text],
        key: &[0, 1, 2, 3],
        kind: IndexKind::Ordered,
        index: &[],
        row: |layout, n| {
            let (order, line) = (n / 10, n % 10);
            layout.build(&[
                Field::Int(1),
                Field::Uint(order % 10),
                Field::Int((order / 10) as i64),
                Field::Uint(line),
                Field::Int(spread(n) as i32 as i64),
                Field::Int(1),
                Field::Int(n as i64),
                Field::Int(5),
                Field::Text("abcdefghijklmnopqrstuvwx"),
            ])
        },
    },
    Kind {
        name: "strangers: tree of 8, no order",
        columns: &[I64, I64, I64],
        key: &[0],
        kind: IndexKind::Ordered,
        index: &[],
        row: |layout, n| layout.build(&[Field::Int(spread(n) as i64), Field::Int(1), Field::Int(2)]),
    },
    Kind {
        name: "stock: 300 bytes, dense",
        columns: &[I16, I32, I64, I64, Text],
        key: &[0, 1],
        kind: IndexKind::Dense,
        index: &[],
        row: |layout, n| {
            let data = "abcdefghijkl".repeat(22);
            let (w, i) = (n / 100_000, n % 100_000);
            layout.build(&[
                Field::Int(w as i64),
                Field::Int(i as i64),
                Field::Int(9),
                Field::Int(10),
                Field::Text(&data),
            ])
        },
    },
    Kind {
        name: "customers: 530 bytes, dense, names",
        columns: &[I16, U8, I32, Text, Text, Text],
        key: &[0, 1, 2],
        kind: IndexKind::Dense,
        index: &[0, 1, 3, 4],
        row: |layout, n| {
            let last = format!("{:08}", spread(n) % 1000);
            let first = format!("{:012}", spread(n + 1) % 1_000_000_000);
            let data = "abcdefghij".repeat(48);
            layout.build(&[
                Field::Int((n / 30_000) as i64),
                Field::Uint(n / 3_000 % 10),
                Field::Int((n % 3_000) as i64),
                Field::Text(&last),
                Field::Text(&first),
                Field::Text(&data),
            ])
        },
    },
];

fn schema(kind: &Kind) -> TableSchema {
    let columns = kind
        .columns
        .iter()
        .enumerate()
        .map(|(at, ty)| ColumnSchema::new(format!("c{at}"), *ty));
    let index = IndexSchema::new("i", kind.index, false);
    TableSchema {
        primary_kind: kind.kind,
        indexes: if kind.index.is_empty() { vec![] } else { vec![index] },
        ..TableSchema::new("t", columns.collect(), kind.key)
    }
}

pub fn run(mut args: Args) -> Result<(), Box<dyn Error>> {
    let mib = args.next().map_or(Ok(64), |text| text.parse::<usize>())?;
    for kind in &KINDS {
        measure(kind, mib << 20);
    }
    Ok(())
}

fn measure(kind: &Kind, total: usize) {
    let mut store = Store::new();
    store.create_table(schema(kind)).expect("a table");
    let layout = store.layout(TableId(0)).clone();
    let (mut blocks, mut raw, mut count, mut bytes) = (Vec::new(), Vec::new(), 0, 0);
    while bytes < total {
        let row = (kind.row)(&layout, count);
        push_checkpoint_row(&mut raw, &row, count);
        (count, bytes) = (count + 1, bytes + row.len());
        if raw.len() >= BLOCK_BYTES {
            blocks.push(std::mem::take(&mut raw));
        }
    }
    blocks.push(raw);
    let rounds: Vec<Vec<f64>> = (0..ROUNDS).map(|_| load(kind, &blocks)).collect();
    let best = |part: usize| rounds.iter().map(|round| round[part]).fold(f64::MAX, f64::min);
    let parts: Vec<f64> = (0..rounds[0].len()).map(best).collect();
    let speed = |seconds: f64| format!("{:.0}", bytes as f64 / 1e6 / seconds);
    let ns = |seconds: &f64| format!("{:.1}", seconds * 1e9 / count as f64);
    println!(
        "{:36} {count:9} rows, ns a row: {:20} MB/s: rows {:>5}, indexes {:>10}, all {:>5}",
        kind.name,
        parts.iter().map(ns).collect::<Vec<_>>().join(" "),
        speed(parts[0]),
        parts[1..].iter().map(|s| speed(*s)).collect::<Vec<_>>().join(" "),
        speed(parts.iter().sum()),
    );
}

/// Seconds of the rows, then of each index.
fn load(kind: &Kind, blocks: &[Vec<u8>]) -> Vec<f64> {
    let mut store = Store::new();
    store.create_table(schema(kind)).expect("a table");
    let begun = Instant::now();
    let mut load = store.loads().pop().expect("one table");
    for raw in blocks {
        load.rows(raw).expect("rows of the table");
    }
    let mut parts = vec![begun.elapsed().as_secs_f64()];
    for index in load.finish(u64::MAX).expect("free numbers") {
        let begun = Instant::now();
        index.build().expect("unlike keys");
        parts.push(begun.elapsed().as_secs_f64());
    }
    parts
}
