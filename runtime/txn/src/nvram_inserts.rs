//! The running transaction's changes, which it puts into NVRAM as it makes them (NV-Logging, section 4.3, flush-on-insert). The bytes of
//! each changed row are an object of their own. A rollback frees the objects. A transaction gives its objects up if it changes a row twice,
//! or if NVRAM has no room before it commits. Its record then goes to the log as a whole.

use reprise_base::PlacedBytes;
use reprise_nvram::ObjectWriter;
use reprise_storage::{AfterImage, Store};
use reprise_wire::Changes;

/// See the module's header.
#[derive(Default)]
pub(crate) struct NvramInserts {
    writer: Option<ObjectWriter>,
    /// True if the next transactions put their changes into NVRAM as they make them.
    pub is_wanted: bool,
    /// True if the running transaction does so.
    pub is_on: bool,
    /// The beginning of its objects.
    begun_at: u64,
    /// The state of each held store.
    stores: Vec<StoreInserts>,
    /// The pieces of the last committed transaction's changes that are in the region.
    placed: Vec<PlacedBytes>,
}

/// The pieces of one store's changes that are in the region.
#[derive(Default)]
struct StoreInserts {
    rows: u32,
    bytes: usize,
    placed: Vec<PlacedBytes>,
}

impl NvramInserts {
    pub fn set_writer(&mut self, writer: Option<ObjectWriter>) {
        self.writer = writer;
    }

    /// Begins a batch. Objects that no commit named are free again.
    #[inline]
    pub fn begin_batch(&mut self) {
        if let Some(writer) = &mut self.writer {
            writer.begin_batch();
        }
    }

    /// Begins a transaction on `stores` stores.
    #[inline]
    pub fn begin(&mut self, stores: usize) {
        self.placed.clear();
        let writer = self.writer.as_ref().filter(|_| self.is_wanted);
        self.is_on = writer.is_some();
        if let Some(writer) = writer {
            self.begun_at = writer.place();
            self.stores.resize_with(stores, StoreInserts::default);
            self.stores.iter_mut().for_each(StoreInserts::clear);
        }
    }

    /// Takes the changes that a store captured, or rolled back, since the last call.
    #[inline(never)]
    pub fn take_changes(&mut self, at: usize, store: &Store) {
        let (rows, captured) = store.captured();
        if captured.len() < self.stores[at].bytes {
            self.take_back(at, rows, captured.len());
        }
        let mine = &mut self.stores[at];
        let writer = self.writer.as_mut().expect("it is on");
        let is_one = rows == mine.rows + 1;
        let mut walked = Changes::new(&captured[mine.bytes..]);
        let first = mine.bytes;
        while mine.bytes < captured.len() {
            let end = match is_one {
                true => captured.len(),
                false => {
                    walked.next().expect("there is more").expect("it was just written down");
                    first + walked.offset()
                }
            };
            let object = &captured[mine.bytes..end];
            let Some(place) = writer.insert(object) else {
                return self.cancel();
            };
            mine.placed.push(PlacedBytes {
                at: mine.bytes as u32,
                bytes: object.len() as u32,
                place,
            });
            mine.bytes = end;
        }
        mine.rows = rows;
    }

    /// Frees the objects of changes that a savepoint took back, unless objects of another store lie behind them.
    fn take_back(&mut self, at: usize, rows: u32, bytes: usize) {
        let mine = &mut self.stores[at];
        while mine.placed.pop_if(|last| last.end() as usize > bytes).is_some() {}
        (mine.rows, mine.bytes) = (rows, bytes);
        let last = self.stores.iter().filter_map(|store| store.placed.last());
        let ends = last.map(|last| ObjectWriter::behind(last.place, last.bytes));
        let end = ends.max().unwrap_or(self.begun_at);
        self.writer.as_mut().expect("it is on").take_back(end);
    }

    /// Drops all objects of the transaction.
    #[cold]
    pub fn cancel(&mut self) {
        if self.is_on {
            self.is_on = false;
            self.writer.as_mut().expect("it is on").take_back(self.begun_at);
        }
    }

    /// Commits the transaction on its only store, whose changes become the record's.
    #[inline]
    pub fn end(&mut self, store: &mut Store, images: AfterImage) {
        if self.is_on {
            self.take_changes(0, store);
        }
        if self.is_on && store.is_captured(images) {
            std::mem::swap(&mut self.placed, &mut self.stores[0].placed);
            self.is_on = false;
        }
        self.cancel();
    }

    /// Commits the transaction. The changes that this store captured go into the record from `base` on.
    pub fn end_store(&mut self, at: usize, base: usize) {
        let moved = self.stores[at].placed.drain(..).map(|piece| PlacedBytes {
            at: piece.at + base as u32,
            ..piece
        });
        self.placed.extend(moved);
    }

    /// Returns the pieces of the last committed transaction's changes that are in the region, in growing order.
    #[inline]
    pub fn placed(&self) -> &[PlacedBytes] {
        &self.placed
    }
}

impl StoreInserts {
    fn clear(&mut self) {
        (self.rows, self.bytes) = (0, 0);
        self.placed.clear();
    }
}
