//! Two-phase locking: a table of locks, their queues, conversions, and a search for deadlocks when a transaction must wait.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, Thread},
};

use crate::{
    latch::LatchedCell,
    parts::{LATCHES, has},
};

const NONE: u32 = u32::MAX;
const BUCKETS: usize = 1 << 14;

/// How a lock is held (Gray and Reuter, 7.8.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// Something below is read.
    IntentShared,
    /// Something below is changed.
    IntentExclusive,
    /// Read as a whole.
    Shared,
    /// Read as a whole, and something below is changed.
    SharedIntentExclusive,
    /// Changed.
    Exclusive,
}

use Mode::{Exclusive, IntentExclusive, IntentShared, Shared, SharedIntentExclusive};

impl Mode {
    /// Two transactions may hold a lock in these modes at once.
    #[inline]
    pub fn is_compatible(self, other: Self) -> bool {
        // By mode, a bit for each mode beside it.
        const TABLE: [u8; 5] = [0b01111, 0b00011, 0b00101, 0b00001, 0];
        TABLE[self as usize] >> other as u8 & 1 == 1
    }

    /// The weakest mode that allows what both allow.
    #[inline]
    pub fn with(self, other: Self) -> Self {
        match (self, other) {
            (Exclusive, _) | (_, Exclusive) => Exclusive,
            (SharedIntentExclusive, _) | (_, SharedIntentExclusive) => SharedIntentExclusive,
            (Shared, IntentExclusive) | (IntentExclusive, Shared) => SharedIntentExclusive,
            (Shared, _) | (_, Shared) => Shared,
            (IntentExclusive, _) | (_, IntentExclusive) => IntentExclusive,
            (IntentShared, IntentShared) => IntentShared,
        }
    }
}

/// The name of a lock: a kind with the number of its table or tree, and which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockId {
    /// Kind and number.
    space: u64,
    /// Page, row, or the hash of a key.
    item: u64,
}

impl LockId {
    /// A table.
    pub fn table(table: u16) -> Self {
        Self {
            space: 1 << 32 | table as u64,
            item: 0,
        }
    }

    /// A page of a table.
    pub fn page(table: u16, page: u32) -> Self {
        Self {
            space: 2 << 32 | table as u64,
            item: page.into(),
        }
    }

    /// A row, by its place.
    pub fn row(table: u16, place: u64) -> Self {
        Self {
            space: 3 << 32 | table as u64,
            item: place,
        }
    }

    /// A key of a tree. Two keys of one hash share a lock.
    pub fn key(tree: u16, key: &[u8]) -> Self {
        let mut hash = key.len() as u64;
        let (words, rest) = key.as_chunks::<8>();
        for word in words {
            hash = fold(hash, u64::from_le_bytes(*word));
        }
        hash = fold(hash, rest.iter().fold(0, |word, byte| word << 8 | *byte as u64));
        Self {
            space: 4 << 32 | tree as u64,
            item: hash,
        }
    }

    #[inline]
    fn bucket(self) -> usize {
        (fold(self.space, self.item) >> 20) as usize % BUCKETS
    }
}

#[inline]
fn fold(state: u64, word: u64) -> u64 {
    let product = (state ^ 0x2d35_8dcc_aa6c_78a5) as u128 * (word ^ 0x8bb8_4b93_962e_acc9) as u128;
    product as u64 ^ (product >> 64) as u64
}

/// Why a lock was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockError {
    /// Transactions wait for each other; this one gives way.
    Deadlock,
    /// Another transaction holds it, and in a build for one thread nothing could come of waiting.
    Held,
}

/// A transaction that waits, as another one wakes it.
struct Waiter {
    is_granted: AtomicBool,
    thread: Thread,
}

/// A transaction's hold or wish.
struct Request {
    owner: u64,
    mode: Mode,
    /// Not yet given: `mode` is the mode held meanwhile, unless `is_new`.
    wish: Option<Mode>,
    is_new: bool,
    head: u32,
    /// In the queue of the lock, and in the list of the owner.
    next: u32,
    own_next: u32,
    waiter: Option<Arc<Waiter>>,
}

struct Head {
    id: LockId,
    /// In the chain of the bucket.
    next: u32,
    first: u32,
}

struct LockTable {
    buckets: Vec<u32>,
    heads: Vec<Head>,
    free_head: u32,
    requests: Vec<Request>,
    free_request: u32,
    /// Transactions that wait, each with its request.
    waiting: HashMap<u64, u32>,
}

/// The locks of one engine.
pub struct Locks<const P: u32>(LatchedCell<LockTable, P>);

/// The locks of one transaction.
#[derive(Debug)]
pub struct TxnLocks {
    owner: u64,
    first: u32,
}

impl TxnLocks {
    /// None yet, of a transaction with a number of its own.
    pub fn new(owner: u64) -> Self {
        Self { owner, first: NONE }
    }
}

impl<const P: u32> Default for Locks<P> {
    fn default() -> Self {
        Self(LatchedCell::new(LockTable {
            buckets: vec![NONE; BUCKETS],
            heads: Vec::new(),
            free_head: NONE,
            requests: Vec::new(),
            free_request: NONE,
            waiting: HashMap::new(),
        }))
    }
}

impl<const P: u32> Locks<P> {
    /// Takes a lock, or makes its mode stronger; waits until it is given.
    ///
    /// # Errors
    /// The transaction cannot have it, and is to be rolled back.
    #[inline(never)]
    pub fn acquire(&self, held: &mut TxnLocks, id: LockId, mode: Mode) -> Result<(), LockError> {
        let mut table = self.0.lock();
        let head = table.head(id);
        let request = match table.own_request(head, held.owner) {
            Some(at) => {
                let wish = table.requests[at as usize].mode.with(mode);
                if wish == table.requests[at as usize].mode {
                    return Ok(());
                }
                table.requests[at as usize].wish = Some(wish);
                at
            }
            None => table.push_request(head, held, mode),
        };
        if table.grant(request) {
            return Ok(());
        }
        if const { !has(P, LATCHES) } {
            table.take_back(request, held);
            return Err(LockError::Held);
        }
        table.waiting.insert(held.owner, request);
        if table.is_deadlocked(held.owner) {
            table.waiting.remove(&held.owner);
            table.take_back(request, held);
            return Err(LockError::Deadlock);
        }
        let waiter = Arc::new(Waiter {
            is_granted: AtomicBool::new(false),
            thread: thread::current(),
        });
        table.requests[request as usize].waiter = Some(waiter.clone());
        drop(table);
        while !waiter.is_granted.load(Ordering::Acquire) {
            thread::park();
        }
        Ok(())
    }

    /// Gives up all locks of a transaction at once.
    pub fn release(&self, held: &mut TxnLocks) {
        if held.first == NONE {
            return;
        }
        let mut table = self.0.lock();
        while held.first != NONE {
            let at = held.first;
            held.first = table.requests[at as usize].own_next;
            let head = table.requests[at as usize].head;
            table.unlink(at);
            table.grant_waiting(head);
        }
    }

    /// Locks that a transaction holds or waits for, and transactions that wait.
    pub fn sizes(&self) -> (usize, usize) {
        let table = self.0.lock();
        let free = std::iter::successors(Some(table.free_head).filter(|at| *at != NONE), |at| {
            Some(table.heads[*at as usize].next).filter(|at| *at != NONE)
        });
        (table.heads.len() - free.count(), table.waiting.len())
    }
}

impl LockTable {
    /// The lock of this name, made if there is none.
    #[inline]
    fn head(&mut self, id: LockId) -> u32 {
        let bucket = id.bucket();
        let mut at = self.buckets[bucket];
        while at != NONE {
            let head = &self.heads[at as usize];
            if head.id == id {
                return at;
            }
            at = head.next;
        }
        let head = Head {
            id,
            next: self.buckets[bucket],
            first: NONE,
        };
        let at = match self.free_head {
            NONE => {
                self.heads.push(head);
                self.heads.len() as u32 - 1
            }
            free => {
                self.free_head = self.heads[free as usize].next;
                self.heads[free as usize] = head;
                free
            }
        };
        self.buckets[bucket] = at;
        at
    }

    /// The requests of a lock, in the order of their coming.
    fn queue(&self, head: u32) -> impl Iterator<Item = u32> + '_ {
        let present = |at: u32| (at != NONE).then_some(at);
        let first = present(self.heads[head as usize].first);
        std::iter::successors(first, move |at| present(self.requests[*at as usize].next))
    }

    #[inline]
    fn own_request(&self, head: u32, owner: u64) -> Option<u32> {
        self.queue(head).find(|at| self.requests[*at as usize].owner == owner)
    }

    /// Appends a wish to a lock's queue, and to its owner's list.
    #[inline]
    fn push_request(&mut self, head: u32, held: &mut TxnLocks, mode: Mode) -> u32 {
        let request = Request {
            owner: held.owner,
            mode,
            wish: Some(mode),
            is_new: true,
            head,
            next: NONE,
            own_next: held.first,
            waiter: None,
        };
        let at = match self.free_request {
            NONE => {
                self.requests.push(request);
                self.requests.len() as u32 - 1
            }
            free => {
                self.free_request = self.requests[free as usize].next;
                self.requests[free as usize] = request;
                free
            }
        };
        let last = self.queue(head).last();
        match last {
            None => self.heads[head as usize].first = at,
            Some(last) => self.requests[last as usize].next = at,
        }
        held.first = at;
        at
    }

    /// Transactions in the way of a wish: holders in modes that are not compatible, and, for a new one, those before it that wait.
    fn blockers(&self, request: u32) -> impl Iterator<Item = u64> + '_ {
        let wishing = &self.requests[request as usize];
        let wish = wishing.wish.unwrap_or(wishing.mode);
        let mut is_behind = false;
        self.queue(wishing.head).filter_map(move |at| {
            is_behind |= at == request;
            let other = &self.requests[at as usize];
            let holds = !other.is_new && !other.mode.is_compatible(wish);
            let waits_before = wishing.is_new && !is_behind && other.wish.is_some();
            (at != request && (holds || waits_before)).then_some(other.owner)
        })
    }

    /// Gives a lock if nothing stands in the way.
    #[inline]
    fn grant(&mut self, request: u32) -> bool {
        if self.blockers(request).next().is_some() {
            return false;
        }
        let granted = &mut self.requests[request as usize];
        granted.mode = granted.wish.take().unwrap_or(granted.mode);
        granted.is_new = false;
        true
    }

    /// Gives a lock to those of its queue who can have it now: conversions first.
    fn grant_waiting(&mut self, head: u32) {
        if self.heads[head as usize].first == NONE {
            return self.drop_head(head);
        }
        for is_new in [false, true] {
            let waiting = |request: &Request| request.wish.is_some() && request.is_new == is_new;
            let wishes: Vec<u32> = self
                .queue(head)
                .filter(|at| waiting(&self.requests[*at as usize]))
                .collect();
            for at in wishes {
                if !self.grant(at) {
                    continue;
                }
                let granted = &mut self.requests[at as usize];
                let (owner, waiter) = (granted.owner, granted.waiter.take());
                self.waiting.remove(&owner);
                if let Some(waiter) = waiter {
                    waiter.is_granted.store(true, Ordering::Release);
                    waiter.thread.unpark();
                }
            }
        }
    }

    /// Whether a chain of waits leads from a transaction back to it.
    fn is_deadlocked(&self, owner: u64) -> bool {
        let (mut open, mut seen) = (vec![owner], Vec::new());
        while let Some(next) = open.pop() {
            let Some(request) = self.waiting.get(&next) else {
                continue;
            };
            for blocker in self.blockers(*request) {
                if blocker == owner {
                    return true;
                }
                if !seen.contains(&blocker) {
                    seen.push(blocker);
                    open.push(blocker);
                }
            }
        }
        false
    }

    /// Forgets a wish that is not fulfilled; what was held stays.
    fn take_back(&mut self, request: u32, held: &mut TxnLocks) {
        let wishing = &mut self.requests[request as usize];
        wishing.wish = None;
        let head = wishing.head;
        if wishing.is_new {
            held.first = wishing.own_next;
            self.unlink(request);
        }
        self.grant_waiting(head);
    }

    /// Takes a request out of its queue.
    fn unlink(&mut self, request: u32) {
        let (head, next) = {
            let request = &self.requests[request as usize];
            (request.head, request.next)
        };
        let before = self.queue(head).take_while(|at| *at != request).last();
        match before {
            None => self.heads[head as usize].first = next,
            Some(before) => self.requests[before as usize].next = next,
        }
        let freed = &mut self.requests[request as usize];
        (freed.next, freed.waiter) = (self.free_request, None);
        self.free_request = request;
    }

    fn drop_head(&mut self, head: u32) {
        let bucket = self.heads[head as usize].id.bucket();
        let next = self.heads[head as usize].next;
        if self.buckets[bucket] == head {
            self.buckets[bucket] = next;
        } else {
            let mut before = self.buckets[bucket];
            while self.heads[before as usize].next != head {
                before = self.heads[before as usize].next;
            }
            self.heads[before as usize].next = next;
        }
        self.heads[head as usize].next = self.free_head;
        self.free_head = head;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODES: [Mode; 5] = [IntentShared, IntentExclusive, Shared, SharedIntentExclusive, Exclusive];

    #[test]
    fn modes_agree_with_each_other() {
        for one in MODES {
            for other in MODES {
                assert_eq!(one.is_compatible(other), other.is_compatible(one), "{one:?} {other:?}");
                let both = one.with(other);
                assert_eq!(both, other.with(one));
                for third in MODES {
                    let allowed = one.is_compatible(third) && other.is_compatible(third);
                    assert!(allowed || !both.is_compatible(third), "{one:?} {other:?} {third:?}");
                }
            }
        }
        assert!(IntentShared.is_compatible(SharedIntentExclusive) && !Shared.is_compatible(IntentExclusive));
    }
}
