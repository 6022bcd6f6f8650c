//! The rows of a table in slotted pages. A row keeps its place: when it outgrows its page, its slot says where it went.

use std::{
    ops::Range,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{
    log::{Chain, RecordKind, Site},
    page::PageKind,
    parts::{MAIN_LOG, has},
    pool::{Pool, WritePage},
    tree::Rid,
};

/// The pages of one table, in a chain; new rows go to the last one.
pub struct Heap {
    table: u16,
    first: u32,
    last: AtomicU32,
}

impl Heap {
    /// An empty heap, of one page.
    pub fn create<const P: u32>(pool: &Pool<P>, chain: &mut Chain, table: u16) -> Self {
        let first = pool.allocate(chain, PageKind::Heap, 0).number;
        Self {
            table,
            first,
            last: AtomicU32::new(first),
        }
    }

    /// Appends a row; its place. None for one that is too long for a page.
    #[inline(never)]
    pub fn insert<const P: u32>(&self, pool: &Pool<P>, chain: &mut Chain, row: &[u8]) -> Option<Rid> {
        let mut page = self.last_page(pool);
        if !page.fits(row.len()) {
            page = self.append_page(page, chain);
        }
        let slot = page.count();
        if !page.insert(slot, row, &[]) {
            return None;
        }
        let rid = Rid {
            page: page.number,
            slot: slot as u16,
        };
        page.append(chain, self.site(RecordKind::Put, rid, rid), &[], row);
        Some(rid)
    }

    #[inline]
    fn site(&self, kind: RecordKind, at: Rid, home: Rid) -> Site {
        Site {
            kind,
            page: at.page,
            slot: at.slot,
            extra: (self.table as u64) << 48 | home.pack(),
        }
    }

    fn last_page<'p, const P: u32>(&self, pool: &'p Pool<P>) -> WritePage<'p, P> {
        loop {
            let page = pool.write(self.last.load(Ordering::Acquire));
            // Another thread may have linked a page behind it.
            if page.next() == 0 {
                return page;
            }
        }
    }

    fn append_page<'p, const P: u32>(&self, mut page: WritePage<'p, P>, chain: &mut Chain) -> WritePage<'p, P> {
        let next = page.pool().allocate(chain, PageKind::Heap, 0);
        page.set_next(next.number);
        let link = Rid {
            page: page.number,
            slot: 0,
        };
        let to = Rid {
            page: next.number,
            slot: 0,
        };
        page.append(chain, self.site(RecordKind::Link, link, to), &[], &[]);
        self.last.store(next.number, Ordering::Release);
        next
    }

    /// Shows a row to `see`. None where there is none, or where it was removed.
    #[inline]
    pub fn see<const P: u32, R>(&self, pool: &Pool<P>, home: Rid, see: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let page = pool.read(home.page);
        let slot = home.slot as usize;
        if !page.is_forward(slot) {
            return (page.is_taken(slot) && !page.is_hidden(slot)).then(|| see(page.record(slot)));
        }
        let to = Rid::from_bytes(page.record(slot));
        drop(page);
        let page = pool.read(to.page);
        let slot = to.slot as usize;
        (!page.is_hidden(slot)).then(|| see(page.record(slot)))
    }

    fn place<'p, const P: u32>(&self, pool: &'p Pool<P>, home: Rid) -> (WritePage<'p, P>, Rid) {
        let page = pool.write(home.page);
        if !page.is_forward(home.slot as usize) {
            return (page, home);
        }
        let to = Rid::from_bytes(page.record(home.slot as usize));
        drop(page);
        (pool.write(to.page), to)
    }

    /// Writes a row anew. False where it is too long for a page; then nothing has changed.
    #[inline(never)]
    pub fn write<const P: u32>(&self, pool: &Pool<P>, chain: &mut Chain, home: Rid, row: &[u8]) -> bool {
        let (mut page, at) = self.place(pool, home);
        let slot = at.slot as usize;
        if page.record(slot).len() == row.len() {
            write_in_place(&mut page, chain, at, row);
            return true;
        }
        let before = page.record(slot).to_vec();
        if page.replace(slot, row, false) {
            page.append(chain, self.site(RecordKind::Replace, at, home), &before, row);
            return true;
        }
        drop(page);
        self.move_row(pool, chain, home, at, row, &before)
    }

    /// Moves a row to a page that has room.
    #[inline(never)]
    fn move_row<const P: u32>(
        &self,
        pool: &Pool<P>,
        chain: &mut Chain,
        home: Rid,
        at: Rid,
        row: &[u8],
        before: &[u8],
    ) -> bool {
        // A roll back writes the row as it was; what follows repeats alone.
        let move_site = self.site(RecordKind::Move, Rid { page: 0, slot: 0 }, home);
        pool.log.append(chain, move_site, before, &[]);
        let is_redo_only = std::mem::replace(&mut chain.is_redo_only, true);
        let moved = self.insert(pool, chain, row);
        if let Some(to) = moved {
            let mut page = pool.write(home.page);
            let fits = page.replace(home.slot as usize, &to.bytes(), true);
            assert!(fits, "every record has room for a forward");
            page.append(chain, self.site(RecordKind::Forward, home, home), &[], &to.bytes());
            drop(page);
            if at != home {
                let mut page = pool.write(at.page);
                page.clear(at.slot as usize);
                page.append(chain, self.site(RecordKind::Clear, at, home), &[], &[]);
            }
        }
        chain.is_redo_only = is_redo_only;
        moved.is_some()
    }

    /// Hides a row, or shows it again. False where it is so already.
    pub fn set_hidden<const P: u32>(&self, pool: &Pool<P>, chain: &mut Chain, home: Rid, is_hidden: bool) -> bool {
        let (mut page, at) = self.place(pool, home);
        if page.is_hidden(at.slot as usize) == is_hidden {
            return false;
        }
        page.set_hidden(at.slot as usize, is_hidden);
        let kind = if is_hidden { RecordKind::Hide } else { RecordKind::Show };
        page.append(chain, self.site(kind, at, home), &[], &[]);
        true
    }

    /// Puts back bytes of a row where they were.
    pub fn put_back<const P: u32>(&self, pool: &Pool<P>, chain: &mut Chain, home: Rid, offset: usize, before: &[u8]) {
        let (mut page, at) = self.place(pool, home);
        let mut row = page.record(at.slot as usize).to_vec();
        row[offset..offset + before.len()].copy_from_slice(before);
        write_in_place(&mut page, chain, at, &row);
    }

    /// Shows every row.
    pub fn each<const P: u32>(&self, pool: &Pool<P>, mut see: impl FnMut(&[u8])) {
        let mut number = self.first;
        while number != 0 {
            let page = pool.read(number);
            for slot in page.taken() {
                if !page.is_forward(slot) && !page.is_hidden(slot) {
                    see(page.record(slot));
                }
            }
            number = page.next();
        }
    }
}

/// Writes a row of the length that it has. Of the bytes that differ, the old ones and the new ones go to the log.
#[inline]
fn write_in_place<const P: u32>(page: &mut WritePage<'_, P>, chain: &mut Chain, at: Rid, row: &[u8]) {
    let slot = at.slot as usize;
    let span = match const { has(P, MAIN_LOG) } {
        true => difference(page.record(slot), row),
        false => 0..row.len(),
    };
    let site = Site {
        kind: RecordKind::Change,
        page: at.page,
        slot: at.slot,
        extra: span.start as u64,
    };
    let pool = page.pool();
    let lsn = pool
        .log
        .append(chain, site, &page.record(slot)[span.clone()], &row[span.clone()]);
    page.record_mut(slot)[span.clone()].copy_from_slice(&row[span]);
    page.stamp(lsn);
}

/// The bytes from the first to the last that differ, of two rows of one length.
#[inline]
fn difference(old: &[u8], new: &[u8]) -> Range<usize> {
    let (old_words, _) = old.as_chunks::<8>();
    let (new_words, _) = new.as_chunks::<8>();
    let same = old_words.iter().zip(new_words).take_while(|(a, b)| a == b).count() * 8;
    let start = same + old[same..].iter().zip(&new[same..]).take_while(|(a, b)| a == b).count();
    let (_, old_words) = old[start..].as_rchunks::<8>();
    let (_, new_words) = new[start..].as_rchunks::<8>();
    let same = old_words.iter().rev().zip(new_words.iter().rev());
    let same = same.take_while(|(a, b)| a == b).count() * 8;
    let end = old.len() - same;
    let tail = old[start..end].iter().rev().zip(new[start..end].iter().rev());
    start..end - tail.take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_reaches_from_the_first_to_the_last_byte_that_differs() {
        for length in [0, 1, 7, 8, 30, 64] {
            let old = vec![1; length];
            assert!(difference(&old, &old).is_empty(), "{length}");
            for first in 0..length {
                for last in first..length {
                    let mut new = old.clone();
                    (new[first], new[last]) = (2, 2);
                    assert_eq!(difference(&old, &new), first..last + 1, "{length}");
                }
            }
        }
    }
}
