//! Each component against a published one, so that none counts as built slow: instructions of the same operations.

use std::{
    collections::HashMap,
    hint::black_box,
    sync::{Arc, Mutex, RwLock},
};

use anyhow::{Context, Result, ensure};
use redb::{Builder, ReadableDatabase, TableDefinition, backends::InMemoryBackend};
use reprise_abi::ScalarType;
use reprise_bench_figures::callgrind;
use tempfile::TempDir;

use crate::{
    callgrind::CallgrindCounts,
    chart::{Stack, StackChart, StackClaim},
    latch::Latch,
    lock::{LockId, Locks, Mode, TxnLocks},
    log::{Chain, Log, RecordKind, Site},
    page::{Page, PageKind},
    parts::{LATCHES, LSNS, MAIN_LOG, POOL, SMALL_PAGES, TREE_KEYS, page_bytes},
    pool::Pool,
    tree::{Rid, Tree},
    work::Kind,
};

/// Limit of a component's instructions, as a multiple of a published one's.
pub const TIMES_MAX: f64 = 2.0;
/// Operations that are counted.
const OPERATIONS: u64 = 2_000;
/// Keys of a tree before the first operation, and pages of a pool.
const KEYS: u64 = 20_000;
const PAGES: u32 = 1_000;
/// Locks and latches that one operation takes.
const TAKEN: u64 = 10;
/// Bytes before and after a change, in a log record.
const CHANGED: [u8; 100] = [7; 100];

const TREE: u32 = LATCHES | POOL | SMALL_PAGES | TREE_KEYS;
const PINNED: u32 = LATCHES | POOL | SMALL_PAGES;
const LOGGED: u32 = LATCHES | LSNS | MAIN_LOG;

/// An operation by its number. Both sides answer alike.
type Operation = Box<dyn FnMut(u64) -> u64>;

/// A component and a published one.
pub struct Component {
    /// In figures and flags.
    pub name: &'static str,
    /// The published one.
    pub published: &'static str,
    ours: fn() -> Result<Operation>,
    theirs: fn() -> Result<Operation>,
}

/// All components that have a published counterpart.
pub const COMPONENTS: [Component; 6] = [
    Component {
        name: "latch",
        published: "std RwLock",
        ours: latch,
        theirs: std_latch,
    },
    Component {
        name: "locks",
        published: "std HashMap",
        ours: locks,
        theirs: std_locks,
    },
    Component {
        name: "log",
        published: "std Vec",
        ours: log,
        theirs: std_log,
    },
    Component {
        name: "pin",
        published: "std HashMap",
        ours: pin,
        theirs: std_pin,
    },
    Component {
        name: "look-up",
        published: "redb",
        ours: look_up,
        theirs: redb_look_up,
    },
    Component {
        name: "insert",
        published: "redb",
        ours: insert,
        theirs: redb_insert,
    },
];

/// Numbers below a bound in an order that looks random, each once where the bound is `KEYS`.
fn scattered(number: u64, bound: u64) -> u64 {
    number * 7_919 % bound
}

fn key(number: u64) -> Vec<u8> {
    let mut key = Vec::new();
    reprise_abi::key::push_i16(&mut key, 1);
    reprise_abi::key::push_i32(&mut key, number as i32);
    key
}

fn rid(number: u64) -> Rid {
    Rid {
        page: number as u32,
        slot: 0,
    }
}

fn latch() -> Result<Operation> {
    let latch = Latch::default();
    Ok(Box::new(move |number| {
        for _ in 0..TAKEN {
            black_box(&latch).lock_shared();
            latch.unlock_shared();
            black_box(&latch).lock_exclusive();
            latch.unlock_exclusive();
        }
        number
    }))
}

fn std_latch() -> Result<Operation> {
    let latch = RwLock::new(());
    Ok(Box::new(move |number| {
        for _ in 0..TAKEN {
            drop(black_box(&latch).read());
            drop(black_box(&latch).write());
        }
        number
    }))
}

fn locks() -> Result<Operation> {
    let locks = Locks::<LATCHES>::default();
    Ok(Box::new(move |number| {
        let mut held = TxnLocks::new(number + 1);
        let mut taken = 0;
        for at in 0..TAKEN {
            let id = LockId::row(1, scattered(number * TAKEN + at, KEYS));
            taken += u64::from(locks.acquire(&mut held, id, Mode::Exclusive).is_ok());
        }
        locks.release(&mut held);
        taken
    }))
}

fn std_locks() -> Result<Operation> {
    let table = Mutex::new(HashMap::<(u64, u64), Vec<(u64, Mode)>>::new());
    Ok(Box::new(move |owner| {
        let (mut held, mut taken) = (Vec::new(), 0);
        for at in 0..TAKEN {
            let id = (1, scattered(owner * TAKEN + at, KEYS));
            let mut table = table.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let queue = table.entry(id).or_default();
            let is_free = |(other, mode): &(u64, Mode)| *other == owner || mode.is_compatible(Mode::Exclusive);
            if queue.iter().all(is_free) {
                queue.push((owner, Mode::Exclusive));
                held.push(id);
                taken += 1;
            }
        }
        let mut table = table.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for id in held {
            if let Some(queue) = table.get_mut(&id) {
                queue.retain(|(other, _)| *other != owner);
                if queue.is_empty() {
                    table.remove(&id);
                }
            }
        }
        taken
    }))
}

fn log() -> Result<Operation> {
    let folder = tempfile::tempdir()?;
    let log = Log::<LOGGED>::create(folder.path(), 1)?;
    let (folder, mut chain) = (Kept(folder), Chain::default());
    Ok(Box::new(move |number| {
        let site = Site {
            kind: RecordKind::Commit,
            page: number as u32,
            slot: 0,
            extra: number,
        };
        black_box(&folder);
        log.append(&mut chain, site, &CHANGED, &CHANGED);
        number
    }))
}

fn std_log() -> Result<Operation> {
    let log = Mutex::new(Vec::<u8>::with_capacity(64 << 20));
    let mut last = 0;
    Ok(Box::new(move |number| {
        let mut log = log.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let lsn = log.len() as u64;
        let [before, after] = [CHANGED.len() as u32; 2].map(u32::to_le_bytes);
        log.extend_from_slice(&last_and_site(last, number));
        log.extend_from_slice(&before);
        log.extend_from_slice(&after);
        log.extend_from_slice(&CHANGED);
        log.extend_from_slice(&CHANGED);
        last = lsn;
        number
    }))
}

/// The head of a record: the one before it, its transaction, and its place.
fn last_and_site(last: u64, number: u64) -> [u8; 32] {
    let mut head = [0; 32];
    for (place, value) in head.chunks_exact_mut(8).zip([last, number, number, 1]) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    head
}

/// A folder that lives as long as what lies in it.
struct Kept(#[expect(dead_code, reason = "held until it is dropped")] TempDir);

fn pin() -> Result<Operation> {
    let folder = tempfile::tempdir()?;
    let pool = Pool::<PINNED>::create(folder.path(), PAGES as usize, 1)?;
    let chain = &mut Chain::default();
    let numbers: Vec<u32> = (0..PAGES)
        .map(|_| pool.allocate(chain, PageKind::Heap, 0).number)
        .collect();
    let folder = Kept(folder);
    Ok(Box::new(move |number| {
        black_box(&folder);
        let page = numbers[scattered(number, PAGES.into()) as usize];
        pool.read(page).bytes().len() as u64
    }))
}

fn std_pin() -> Result<Operation> {
    let page = |number| (number, Arc::new(RwLock::new(Page::new(page_bytes(PINNED)))));
    let table: Mutex<HashMap<u32, Arc<RwLock<Page>>>> = Mutex::new((1..=PAGES).map(page).collect());
    Ok(Box::new(move |number| {
        let page = 1 + scattered(number, PAGES.into()) as u32;
        let table = table.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(page) = table.get(&page).cloned() else {
            return 0;
        };
        drop(table);
        let page = page.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        page.bytes().len() as u64
    }))
}

/// A tree of the even numbers.
fn tree() -> Result<(Kept, Pool<TREE>, Tree)> {
    let folder = tempfile::tempdir()?;
    let pool = Pool::create(folder.path(), 4_000, 1)?;
    let chain = &mut Chain::default();
    let tree = Tree::create(
        &pool,
        chain,
        0,
        vec![(ScalarType::I16, false), (ScalarType::I32, false)],
    );
    for number in 0..KEYS {
        let number = 2 * scattered(number, KEYS);
        tree.insert(&pool, chain, &key(number), rid(number));
    }
    Ok((Kept(folder), pool, tree))
}

fn look_up() -> Result<Operation> {
    let (folder, pool, tree) = tree()?;
    Ok(Box::new(move |number| {
        black_box(&folder);
        let found = tree.find(&pool, &key(2 * scattered(number, KEYS)));
        found.map_or(u64::MAX, |rid| rid.page.into())
    }))
}

fn insert() -> Result<Operation> {
    let (folder, pool, tree) = tree()?;
    Ok(Box::new(move |number| {
        black_box(&folder);
        let number = 2 * scattered(number, KEYS) + 1;
        u64::from(tree.insert(&pool, &mut Chain::default(), &key(number), rid(number)))
    }))
}

const ROWS: TableDefinition<'static, &'static [u8], u64> = TableDefinition::new("rows");

fn redb_of_even_numbers() -> Result<redb::Database> {
    let db = Builder::new().create_with_backend(InMemoryBackend::new())?;
    let txn = db.begin_write()?;
    let mut rows = txn.open_table(ROWS)?;
    for number in 0..KEYS {
        let number = 2 * scattered(number, KEYS);
        rows.insert(&key(number)[..], number)?;
    }
    drop(rows);
    txn.commit()?;
    Ok(db)
}

fn redb_look_up() -> Result<Operation> {
    let db = redb_of_even_numbers()?;
    let rows = db.begin_read()?.open_table(ROWS)?;
    Ok(Box::new(move |number| {
        black_box(&db);
        let found = rows.get(&key(2 * scattered(number, KEYS))[..]);
        found.ok().flatten().map_or(u64::MAX, |found| found.value())
    }))
}

fn redb_insert() -> Result<Operation> {
    // A table borrows its transaction, and a closure holds no pair of that kind: both live as long as the program.
    let db: &'static redb::Database = Box::leak(Box::new(redb_of_even_numbers()?));
    let txn: &'static redb::WriteTransaction = Box::leak(Box::new(db.begin_write()?));
    let mut rows = txn.open_table(ROWS)?;
    Ok(Box::new(move |number| {
        let number = 2 * scattered(number, KEYS) + 1;
        let before = rows.insert(&key(number)[..], number);
        u64::from(before.is_ok_and(|before| before.is_none()))
    }))
}

/// The region that callgrind collects.
#[inline(never)]
fn measured_transactions_of_component(operation: &mut Operation) -> u64 {
    (0..OPERATIONS).fold(0, |sum, number| sum.wrapping_add(operation(number)))
}

/// Runs both sides: ours is dumped as the first kind, theirs as the second.
///
/// # Errors
/// They answer differently.
pub fn run(name: &str) -> Result<u64> {
    let found = COMPONENTS.iter().find(|component| component.name == name);
    let component = found.with_context(|| format!("there is no component {name}"))?;
    let mut answers = Vec::new();
    for (kind, side) in Kind::ALL.into_iter().zip([component.ours, component.theirs]) {
        let mut operation = side()?;
        callgrind::start();
        answers.push(measured_transactions_of_component(&mut operation));
        callgrind::stop();
        callgrind::dump(kind.dump_name());
    }
    ensure!(
        answers[0] == answers[1],
        "{name} and {} answer differently: {answers:?}",
        component.published
    );
    Ok(answers[0])
}

/// The figure of all components, each with its counts.
///
/// # Errors
/// A component takes more than `TIMES_MAX` times the instructions of its published counterpart, in a run that is not short.
pub fn chart(counted: &[[CallgrindCounts; 2]], conditions: String, is_short: bool) -> Result<StackChart> {
    let per_operation = |counts: &CallgrindCounts| counts.total as f64 / OPERATIONS as f64;
    let (mut stacks, mut claims) = (Vec::new(), Vec::new());
    for (component, counts) in COMPONENTS.iter().zip(counted) {
        let [ours, theirs] = [&counts[0], &counts[1]].map(per_operation);
        let times = ours / theirs;
        ensure!(
            is_short || times <= TIMES_MAX,
            "{} takes {times:.2} times the instructions of {}: {ours:.0} and {theirs:.0}",
            component.name,
            component.published
        );
        stacks.push(Stack {
            name: component.name.into(),
            portions: vec![("ours".into(), times)],
            cells: vec![format!("{ours:.0}"), format!("{theirs:.0}"), component.published.into()],
        });
        claims.push(StackClaim {
            text: format!("{} to {}, times", component.name, component.published),
            paper: None,
            ours: times,
        });
    }
    let row = |name: &str| (name.to_owned(), String::new());
    Ok(StackChart {
        name: "looking-glass-components".into(),
        title: "Components of the paged engine against published ones".into(),
        unit: "instructions of ours for one of theirs",
        stacks,
        rows: vec![row("ours"), row("theirs"), row("published")],
        claims,
        notes: vec![
            conditions,
            format!(
                "Instructions of one operation, from {OPERATIONS}. An operation of latch and locks takes {TAKEN} of them."
            ),
            "latch, locks, log and pin stand beside the standard library: its map and its vector lie in a Mutex."
                .into(),
            format!(
                "Trees have {KEYS} keys of two columns. A log record has 200 bytes of changes. Pages are in memory."
            ),
        ],
    })
}
