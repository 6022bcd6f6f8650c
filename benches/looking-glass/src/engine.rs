//! The paged engine: tables of rows in heaps, indexes as B-trees, and who works on them.

use std::{cell::Cell, marker::PhantomData};

use anyhow::{Result, ensure};
use reprise_abi::{ModuleSchema, RowLayout, ScalarType, TableSchema, key::push_bytes};
use tempfile::TempDir;

use crate::{
    digest::RowsDigest,
    heap::Heap,
    latch::LatchedCell,
    lock::Locks,
    log::Chain,
    parts::{LATCHES, has, is_whole},
    pool::Pool,
    tree::{Rid, Tree},
};

/// How much room an engine has, and how it writes its log.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Frames of the pool; without the pool, pages at most.
    pub frames: usize,
    /// Commits of a group.
    pub group: u32,
}

/// An index of a table.
pub struct Index {
    /// Columns of the key, in its order; in an index that is not unique, also those that tell its rows apart.
    pub columns: Vec<u16>,
    /// No two rows have one key.
    pub is_unique: bool,
    /// A row's place follows its columns in the key.
    pub has_place: bool,
    /// Its entries.
    pub tree: Tree,
}

/// A table.
pub struct Table {
    /// The module's name for it.
    pub name: String,
    /// Layout of its rows.
    pub layout: RowLayout,
    /// Its rows.
    pub heap: Heap,
    /// The primary key, if it has one, and the others. None: the table has no primary key.
    pub indexes: Vec<Option<Index>>,
}

/// A transaction as the table of sessions has it.
pub(crate) struct SessionEntry {
    /// 0: the entry is free.
    pub txn: u64,
    /// Calls that it made.
    pub calls: u64,
}

/// An engine of the parts `P`.
pub struct Engine<const P: u32> {
    /// Its pages and its log.
    pub pool: Pool<P>,
    /// Its lock table.
    pub locks: Locks<P>,
    pub(crate) sessions: LatchedCell<Vec<SessionEntry>, P>,
    pub(crate) directory: Tree,
    /// In the order of the module.
    pub tables: Vec<Table>,
    /// Without latches, an engine stays on one thread: `share` says so.
    one_thread: PhantomData<Cell<()>>,
    _folder: TempDir,
}

/// An engine with latches, which threads may share.
pub struct SharedEngine<'e, const P: u32>(&'e Engine<P>);

// SAFETY: `Engine::share` makes one of builds with latches alone, in which all that changes lies behind latches or atomics.
unsafe impl<const P: u32> Sync for SharedEngine<'_, P> {}

impl<'e, const P: u32> SharedEngine<'e, P> {
    /// The engine, on this thread.
    pub fn get(&self) -> &'e Engine<P> {
        self.0
    }
}

impl<const P: u32> Engine<P> {
    /// An empty engine with a module's tables.
    ///
    /// # Errors
    /// The room is too small, or a file cannot be made.
    pub fn create(schema: &ModuleSchema, room: Room) -> Result<Self> {
        const { assert!(is_whole(P), "parts that need others which are not there") };
        ensure!(schema.tables.len() < 1 << 8, "fewer than 256 tables");
        let folder = tempfile::tempdir()?;
        let pool = Pool::create(folder.path(), room.frames, room.group)?;
        let chain = &mut Chain::default();
        let directory = Tree::create(&pool, chain, u16::MAX, vec![(ScalarType::Text, false)]);
        let mut tables = Vec::new();
        for (number, table) in schema.tables.iter().enumerate() {
            tables.push(Table::create(&pool, chain, number as u16, table));
        }
        for (number, table) in tables.iter().enumerate() {
            for index in 0..table.indexes.len() {
                let place = Rid {
                    page: number as u32,
                    slot: index as u16,
                };
                directory.insert(&pool, chain, &directory_key(&table.name, index as u16), place);
            }
        }
        Ok(Self {
            pool,
            locks: Locks::default(),
            sessions: LatchedCell::new(Vec::new()),
            directory,
            tables,
            one_thread: PhantomData,
            _folder: folder,
        })
    }

    /// The engine for several threads, in a build with latches; any other does not compile.
    pub fn share(&self) -> SharedEngine<'_, P> {
        const { assert!(has(P, LATCHES), "threads share an engine with latches") };
        SharedEngine(self)
    }

    /// The digest of all rows. No transaction runs.
    pub fn digest(&self) -> RowsDigest {
        let mut digest = RowsDigest::default();
        for (number, table) in self.tables.iter().enumerate() {
            table.heap.each(&self.pool, |row| digest.add(number, row));
        }
        digest
    }

    /// Checks every tree: its order, and that each entry names a row of its key, and each row has its entries. No
    /// transaction runs.
    ///
    /// # Errors
    /// The first fault that is found.
    pub fn check(&self) -> Result<(), String> {
        for table in &self.tables {
            let mut rows = 0;
            table.heap.each(&self.pool, |_| rows += 1);
            for index in table.indexes.iter().flatten() {
                let (entries, _) = index.tree.check(&self.pool)?;
                let name = &table.name;
                if entries != rows {
                    return Err(format!("{name} has {rows} rows and an index of {entries} entries"));
                }
                let (mut key, mut wrong) = (Vec::new(), 0);
                index.tree.scan(&self.pool, &[], &mut |entry, rid| {
                    key.clear();
                    let seen = table
                        .heap
                        .see(&self.pool, rid, |row| index.push_key(&table.layout, row, rid, &mut key));
                    wrong += (seen.is_none() || key != entry) as usize;
                    true
                });
                if wrong > 0 {
                    return Err(format!("{wrong} entries of {name} name other rows"));
                }
            }
        }
        let sessions = self.sessions.lock();
        if let Some(open) = sessions.iter().find(|entry| entry.txn != 0) {
            return Err(format!(
                "the session of {} is open, after {} calls",
                open.txn, open.calls
            ));
        }
        let (locks, waiting) = self.locks.sizes();
        match locks + waiting {
            0 => Ok(()),
            _ => Err(format!("{locks} locks are held, {waiting} transactions wait")),
        }
    }

    pub(crate) fn tree(&self, number: u64) -> Option<&Tree> {
        let index = self
            .tables
            .get((number >> 8) as usize)?
            .indexes
            .get((number & 0xff) as usize)?;
        index.as_ref().map(|index| &index.tree)
    }
}

/// The key of an index in the directory.
pub(crate) fn directory_key(table: &str, index: u16) -> Vec<u8> {
    let mut key = Vec::new();
    push_bytes(&mut key, format!("{table}/{index}").as_bytes());
    key
}

impl Table {
    fn create<const P: u32>(pool: &Pool<P>, chain: &mut Chain, number: u16, schema: &TableSchema) -> Self {
        let heap = Heap::create(pool, chain, number);
        let mut indexes = vec![(schema.primary_key.clone(), true)];
        indexes.extend(schema.indexes.iter().map(|index| (index.columns.clone(), index.unique)));
        let mut made = Vec::new();
        for (at, (mut columns, is_unique)) in indexes.into_iter().enumerate() {
            if at == 0 && columns.is_empty() {
                made.push(None);
                continue;
            }
            let more = schema.primary_key.iter().filter(|column| !columns.contains(column));
            let more: Vec<u16> = more.copied().collect();
            if !is_unique {
                columns.extend(&more);
            }
            let has_place = !is_unique && schema.primary_key.is_empty();
            let of_column = |column: &u16| {
                let column = &schema.columns[*column as usize];
                (column.ty, column.nullable)
            };
            let mut types: Vec<_> = columns.iter().map(of_column).collect();
            if has_place {
                types.extend([(ScalarType::U32, false), (ScalarType::U16, false)]);
            }
            made.push(Some(Index {
                columns,
                is_unique,
                has_place,
                tree: Tree::create(pool, chain, number << 8 | at as u16, types),
            }));
        }
        Self {
            name: schema.name.clone(),
            layout: RowLayout::of_table(schema),
            heap,
            indexes: made,
        }
    }
}

impl Index {
    /// Appends the key of a row.
    pub fn push_key(&self, layout: &RowLayout, row: &[u8], rid: Rid, out: &mut Vec<u8>) {
        layout.push_key(row, &self.columns, out);
        if self.has_place {
            out.extend(rid.page.to_be_bytes());
            out.extend(rid.slot.to_be_bytes());
        }
    }
}
