//! A transaction on the paged engine: begin, the host calls of a procedure, commit or roll back.

use reprise_abi::{Plans, RowHandle, random::TxnRandom};
use reprise_procedure::native::{NativeExit, NativeFault, NativeModule};

use crate::{
    engine::{Engine, SessionEntry, directory_key},
    lock::{LockError, LockId, Mode, TxnLocks},
    log::{Chain, RecordKind, Site},
    parts::{DIRECTORY, LOCKS, LSNS, MAIN_LOG, SESSIONS, has},
    tree::Rid,
};

/// The stream of random numbers starts from this and the transaction's id.
pub const SECRET: [u64; 2] = [1, 2];

/// How a transaction ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxnEnd {
    /// Everything that it wrote stays.
    Committed,
    /// The procedure gave up, with this code; nothing of it stays.
    Aborted(String),
    /// It was rolled back for the sake of others, and may run again.
    Locked(LockError),
    /// It could not run, and nothing of it stays; why.
    Failed(String),
}

#[derive(Clone, Copy)]
pub(crate) struct Handle {
    pub table: u16,
    pub rid: Rid,
}

/// Rows of a scan that were not yet taken.
pub(crate) struct Cursor {
    pub table: u16,
    pub rows: std::vec::IntoIter<(Rid, Vec<u8>)>,
    pub next: Option<(Rid, Vec<u8>)>,
}

/// A thread's room for its transactions, one after the other.
pub struct Worker<'e, const P: u32> {
    pub(crate) engine: &'e Engine<P>,
    pub(crate) held: TxnLocks,
    pub(crate) chain: Chain,
    session: usize,
    pub(crate) txn_id: u64,
    pub(crate) args: Vec<u8>,
    pub(crate) result: Vec<u8>,
    pub(crate) abort: String,
    pub(crate) refused: Option<LockError>,
    pub(crate) handles: Vec<Handle>,
    pub(crate) cursors: Vec<Option<Cursor>>,
    pub(crate) savepoints: Vec<u64>,
    pub(crate) row: Vec<u8>,
    pub(crate) key: Vec<u8>,
    pub(crate) random: Option<TxnRandom>,
    /// By table and index: found in the directory by this transaction.
    directory: Vec<bool>,
    pub(crate) plans: Vec<Plans>,
}

/// Indexes of a table that the directory's cache has room for.
const CACHED_INDEXES: usize = 8;

impl<'e, const P: u32> Worker<'e, P> {
    /// Makes a worker for an engine's transactions.
    pub fn new(engine: &'e Engine<P>) -> Self {
        let tables = engine.tables.len();
        Self {
            engine,
            held: TxnLocks::new(0),
            chain: Chain::default(),
            session: 0,
            txn_id: 0,
            args: Vec::new(),
            result: Vec::new(),
            abort: String::new(),
            refused: None,
            handles: Vec::new(),
            cursors: Vec::new(),
            savepoints: Vec::new(),
            row: Vec::new(),
            key: Vec::new(),
            random: None,
            directory: vec![false; tables * CACHED_INDEXES],
            plans: (0..tables).map(|_| Plans::default()).collect(),
        }
    }

    /// Runs a procedure as a transaction: from its begin to its commit or roll back.
    #[inline]
    pub fn run(&mut self, module: &NativeModule, procedure: usize, txn_id: u64, args: &[u8]) -> TxnEnd {
        self.begin(txn_id, args);
        match module.call(procedure, self) {
            Ok(NativeExit::Done) => {
                self.commit();
                TxnEnd::Committed
            }
            Ok(NativeExit::Aborted) => self.rollback(|worker| TxnEnd::Aborted(std::mem::take(&mut worker.abort))),
            Err(fault) => self.rollback(|worker| match (worker.refused, fault) {
                (Some(refused), _) => TxnEnd::Locked(refused),
                (None, NativeFault::Host(error)) => TxnEnd::Failed(format!("{error:?}")),
                (None, NativeFault::Panic(message)) => TxnEnd::Failed(message),
            }),
        }
    }

    #[cold]
    fn rollback(&mut self, ended: impl FnOnce(&mut Self) -> TxnEnd) -> TxnEnd {
        let ended = ended(self);
        match self.roll_back() {
            Ok(()) => ended,
            Err(text) => TxnEnd::Failed(format!("{text}: {ended:?}")),
        }
    }

    /// Begins a transaction.
    #[inline(never)]
    pub fn begin(&mut self, txn_id: u64, args: &[u8]) {
        self.txn_id = txn_id;
        self.args.clear();
        self.args.extend_from_slice(args);
        self.result.clear();
        self.refused = None;
        self.handles.clear();
        self.cursors.clear();
        self.savepoints.clear();
        self.random = None;
        if const { has(P, DIRECTORY) } {
            self.directory.fill(false);
        }
        if const { has(P, SESSIONS) } {
            self.open_session();
        }
        self.held = TxnLocks::new(txn_id);
        self.chain = Chain {
            txn: txn_id,
            last: 0,
            is_redo_only: false,
        };
        self.log_end(RecordKind::Begin);
    }

    fn open_session(&mut self) {
        let mut sessions = self.engine.sessions.lock();
        let free = sessions.iter().position(|entry| entry.txn == 0);
        let entry = SessionEntry {
            txn: self.txn_id,
            calls: 0,
        };
        self.session = match free {
            Some(at) => {
                sessions[at] = entry;
                at
            }
            None => {
                sessions.push(entry);
                sessions.len() - 1
            }
        };
    }

    /// Notes a call of this transaction in its session, in a build that has sessions.
    #[inline(always)]
    pub(crate) fn count_call(&mut self) {
        if const { has(P, SESSIONS) } {
            self.count_call_in_session();
        }
    }

    #[inline(never)]
    fn count_call_in_session(&mut self) {
        let mut sessions = self.engine.sessions.lock();
        let entry = &mut sessions[self.session];
        assert!(
            entry.txn == self.txn_id,
            "a call belongs to the transaction of its session"
        );
        entry.calls += 1;
    }

    fn close_session(&mut self) {
        if const { has(P, SESSIONS) } {
            let mut sessions = self.engine.sessions.lock();
            sessions[self.session].txn = 0;
        }
    }

    fn log_end(&mut self, kind: RecordKind) {
        if const { has(P, LSNS) } {
            let site = Site {
                kind,
                page: 0,
                slot: 0,
                extra: 0,
            };
            let pool = &self.engine.pool;
            pool.log.append(&mut self.chain, site, &[], &[]);
        }
    }

    /// Commits: what the transaction wrote stays, and its locks go.
    #[inline(never)]
    pub fn commit(&mut self) {
        self.log_end(RecordKind::Commit);
        let pool = &self.engine.pool;
        pool.log.end_of_commit();
        self.release();
    }

    fn release(&mut self) {
        if const { has(P, LOCKS) } {
            self.engine.locks.release(&mut self.held);
        }
        self.close_session();
    }

    /// Rolls the transaction back.
    ///
    /// # Errors
    /// The build keeps no records, and the transaction may have written.
    pub fn roll_back(&mut self) -> Result<(), String> {
        let undone = self.undo_to(0);
        self.log_end(RecordKind::Abort);
        self.release();
        undone
    }

    /// Takes back what the transaction wrote after an LSN.
    pub(crate) fn undo_to(&mut self, mark: u64) -> Result<(), String> {
        if const { !has(P, MAIN_LOG) } {
            return Err("a build without log records rolls nothing back".into());
        }
        let pool = &self.engine.pool;
        let mut at = self.chain.last;
        while at > mark {
            let record = pool.log.read(at);
            let record = record.ok_or_else(|| format!("the log has no record at {at}"))?;
            at = record.previous;
            if record.is_redo_only {
                continue;
            }
            self.chain.last = record.previous;
            self.chain.is_redo_only = true;
            let undone = self.undo(record.site, &record.before, &record.after);
            self.chain.is_redo_only = false;
            undone?;
        }
        Ok(())
    }

    /// Takes back one change; what that does is logged to be repeated alone.
    fn undo(&mut self, site: Site, before: &[u8], after: &[u8]) -> Result<(), String> {
        let (engine, chain) = (self.engine, &mut self.chain);
        let (pool, place) = (
            &engine.pool,
            Rid {
                page: site.page,
                slot: site.slot,
            },
        );
        let home = Rid::unpack(site.extra);
        let heap = || {
            let table = engine.tables.get((site.extra >> 48) as usize);
            table
                .map(|table| &table.heap)
                .ok_or("a record of a table that there is not")
        };
        let tree = || engine.tree(site.extra).ok_or("a record of a tree that there is not");
        match site.kind {
            RecordKind::Put => {
                heap()?.set_hidden(pool, chain, place, true);
            }
            RecordKind::Hide => {
                heap()?.set_hidden(pool, chain, home, false);
            }
            RecordKind::Change => engine.tables[0]
                .heap
                .put_back(pool, chain, place, site.extra as usize, before),
            RecordKind::Replace | RecordKind::Move => {
                let fits = heap()?.write(pool, chain, home, before);
                assert!(fits, "a row that was on a page fits on one");
            }
            RecordKind::NodeInsert => {
                tree()?.remove(pool, chain, before);
            }
            RecordKind::NodeRemove => {
                tree()?.insert(pool, chain, before, Rid::from_bytes(after));
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes a lock, in a build that has locks.
    #[inline(always)]
    pub(crate) fn lock(&mut self, id: impl FnOnce() -> LockId, mode: Mode) -> Result<(), reprise_abi::OpError> {
        if const { !has(P, LOCKS) } {
            return Ok(());
        }
        let taken = self.engine.locks.acquire(&mut self.held, id(), mode);
        taken.map_err(|error| self.refuse(error))
    }

    #[cold]
    fn refuse(&mut self, error: LockError) -> reprise_abi::OpError {
        self.refused = Some(error);
        reprise_abi::OpError::Guest(format!("a lock was not given: {error:?}"))
    }

    /// Finds an index in the directory, in a build where each transaction does.
    #[inline(always)]
    pub(crate) fn find_in_directory(&mut self, table: u16, index: u16) -> Result<(), reprise_abi::OpError> {
        match const { has(P, DIRECTORY) } {
            false => Ok(()),
            true => self.search_directory(table, index),
        }
    }

    fn search_directory(&mut self, table: u16, index: u16) -> Result<(), reprise_abi::OpError> {
        let cached = table as usize * CACHED_INDEXES + index as usize;
        if self.directory.get(cached) == Some(&true) {
            return Ok(());
        }
        let engine = self.engine;
        let name = engine
            .tables
            .get(table as usize)
            .map_or("", |table| table.name.as_str());
        let key = directory_key(name, index);
        self.lock(|| LockId::key(engine.directory.number, &key), Mode::Shared)?;
        let found = engine.directory.find(&engine.pool, &key);
        let expected = Rid {
            page: table.into(),
            slot: index,
        };
        if found != Some(expected) {
            return Err(reprise_abi::OpError::Guest(format!(
                "table {table} or its index {index} is not declared"
            )));
        }
        if let Some(cached) = self.directory.get_mut(cached) {
            *cached = true;
        }
        Ok(())
    }

    pub(crate) fn push_handle(&mut self, table: u16, rid: Rid) -> RowHandle {
        self.handles.push(Handle { table, rid });
        self.handles.len() as RowHandle - 1
    }

    /// The encoded result of the last transaction.
    pub fn result(&self) -> &[u8] {
        &self.result
    }
}
