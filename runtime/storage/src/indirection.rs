//! The indirection array: from record id to the place of the row. Indexes hold record ids, so that a row may move without a change to any
//! index. Later, rows may also live in the log (Query Fresh, section 4: the replay arrays).

use std::sync::Arc;

use reprise_base::Budget;
use reprise_pages::{Pages, prefetch_line};

use crate::{
    arena::Location,
    chunked::{ChunkedArray, GrowthRule},
};

/// A row's name inside its table on this machine. It is never logged, hashed or shown, because replay may give another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rid(pub u32);

const NOT_LIVE: u64 = 1 << 63;
/// No row has this id.
pub(crate) const NO_RID: u32 = u32::MAX;

/// Number of slots at most: the last value ends the free list.
const RIDS_MAX: usize = NO_RID as usize;

pub(crate) struct Indirection {
    /// The `Location` of each id, or `NOT_LIVE |` the next free id of the piece.
    places: ChunkedArray<u64>,
    /// The first free id of the first piece in the list of pieces with free ids, or `NO_RID`.
    free: u32,
    /// The free ids of each piece.
    ids: Vec<FreeIds>,
    /// Pieces whose memory was released: all of their ids are free.
    gone: Vec<u32>,
}

/// The free ids of one piece, and its neighbours in the list of pieces that have some.
#[derive(Clone, Copy)]
struct FreeIds {
    count: u32,
    /// The last freed id, unless the piece is the first of the list.
    head: u32,
    previous: u32,
    next: u32,
}

/// No piece has this number.
const NO_PIECE: u32 = u32::MAX;

impl FreeIds {
    const NONE: Self = Self {
        count: 0,
        head: NO_RID,
        previous: NO_PIECE,
        next: NO_PIECE,
    };
}

fn piece_of(rid: u32) -> u32 {
    rid >> ChunkedArray::<u64>::SHIFT
}

impl Default for Indirection {
    fn default() -> Self {
        Self {
            places: ChunkedArray::default(),
            free: NO_RID,
            ids: Vec::new(),
            gone: Vec::new(),
        }
    }
}

impl Indirection {
    #[inline]
    pub fn is_full(&self) -> bool {
        self.free == NO_RID && self.places.len() >= RIDS_MAX
    }

    /// True if the next id takes no memory.
    #[inline(always)]
    pub fn has_memory(&self) -> bool {
        self.places.spare() > 0 || self.free != NO_RID
    }

    /// Takes memory for the next id. False if it is refused.
    pub fn make_memory(&mut self) -> bool {
        self.has_memory() || self.grow(GrowthRule::Judged)
    }

    /// Takes memory for some more ids: of a released piece, or else behind all others.
    #[cold]
    fn grow(&mut self, growth: GrowthRule) -> bool {
        let Some(piece) = self.gone.last().copied() else {
            return self.places.try_grow();
        };
        let first = piece << ChunkedArray::<u64>::SHIFT;
        let end = first + ChunkedArray::<u64>::CHUNK as u32;
        let fill = |places: &mut Pages<u64>| {
            let next = (first + 1..end).chain([NO_RID]);
            places.extend(next.map(|next| NOT_LIVE | u64::from(next)));
        };
        if !self.places.refill(piece as usize, growth, fill) {
            return false;
        }
        self.gone.pop();
        self.ids[piece as usize].count = end - first;
        self.link(piece, first);
        true
    }

    /// Lists a piece first. `head` is its first free id.
    fn link(&mut self, piece: u32, head: u32) {
        let next = match std::mem::replace(&mut self.free, head) {
            NO_RID => NO_PIECE,
            free => {
                let before = piece_of(free);
                let ids = &mut self.ids[before as usize];
                (ids.head, ids.previous) = (free, piece);
                before
            }
        };
        let ids = &mut self.ids[piece as usize];
        (ids.previous, ids.next) = (NO_PIECE, next);
    }

    /// Undoes `link`.
    #[cold]
    fn unlink(&mut self, piece: u32) {
        let FreeIds { previous, next, .. } = self.ids[piece as usize];
        match previous {
            NO_PIECE => self.free = self.ids.get(next as usize).map_or(NO_RID, |ids| ids.head),
            previous => self.ids[previous as usize].next = next,
        }
        if let Some(ids) = self.ids.get_mut(next as usize) {
            ids.previous = previous;
        }
    }

    /// Counts its memory in `budget` from now on.
    pub fn count_in(&mut self, budget: &Arc<Budget>) {
        self.places.count_in(budget);
    }

    /// False if `count` more ids might be too many.
    pub fn has_room(&self, count: usize) -> bool {
        self.places.len() + count <= RIDS_MAX
    }

    /// True if ids of removed rows are given out next, or before the array has grown by `count`.
    pub fn has_free(&self, count: usize) -> bool {
        self.free != NO_RID || self.spare_is_short(count)
    }

    #[inline(always)]
    fn spare_is_short(&self, count: usize) -> bool {
        !self.gone.is_empty() && self.places.spare() < count
    }

    /// The `next` variant that uses ids of released pieces before the array grows.
    #[inline(always)]
    pub fn ready_next(&mut self) -> Rid {
        if self.free == NO_RID && self.spare_is_short(1) {
            self.grow(GrowthRule::Forced);
        }
        self.next()
    }

    /// Returns the id that the next `take` gives out.
    #[inline]
    pub fn next(&self) -> Rid {
        if self.free == NO_RID {
            Rid(self.places.len() as u32)
        } else {
            Rid(self.free)
        }
    }

    #[inline]
    pub fn take(&mut self, place: Location) -> Rid {
        if self.free == NO_RID {
            return self.take_new(place);
        }
        let rid = Rid(self.free);
        let entry = &mut self.places[rid.0];
        self.free = *entry as u32;
        *entry = place.0;
        let piece = piece_of(rid.0);
        self.ids[piece as usize].count -= 1;
        if self.free == NO_RID {
            self.unlink(piece);
        }
        rid
    }

    #[inline(always)]
    fn take_new(&mut self, place: Location) -> Rid {
        let rid = Rid(self.places.len() as u32);
        self.places.push(place.0);
        rid
    }

    /// Gives new ids to rows at these places, if no id is free. Returns the first one; the others follow it.
    #[inline]
    pub fn append(&mut self, places: &[Location]) -> Rid {
        debug_assert!(self.free == NO_RID, "free ids are given out first");
        let first = Rid(self.places.len() as u32);
        self.places.extend(places.iter().map(|place| place.0));
        first
    }

    #[inline]
    pub fn get(&self, rid: Rid) -> Option<Location> {
        let place = *self.places.find(rid.0)?;
        (place & NOT_LIVE == 0).then_some(Location(place))
    }

    /// Prefetches the memory that `get` reads.
    #[inline]
    pub fn touch(&self, rid: Rid) {
        self.places.find(rid.0).into_iter().for_each(prefetch_line);
    }

    /// Prefetches and returns the slot with the place of a row that an index named, for `live_at`.
    #[inline(always)]
    pub fn prefetch_slot_of(&self, rid: Rid) -> &u64 {
        let slot = &self.places[rid.0];
        prefetch_line(slot);
        slot
    }

    /// The `live` variant for a row whose place is in `slot`.
    #[inline(always)]
    pub fn live_at(slot: &u64) -> Location {
        assert!(slot & NOT_LIVE == 0, "an index names live rows only");
        Location(*slot)
    }

    /// Prefetches the slots of the next ids that `take` gives out, a few ahead.
    #[inline]
    pub fn touch_end(&self) {
        self.places.touch_end();
    }

    /// Returns the place of a row that is known to be live.
    #[inline(always)]
    pub fn live(&self, rid: Rid) -> Location {
        let place = self.places[rid.0];
        assert!(place & NOT_LIVE == 0, "an index names live rows only");
        Location(place)
    }

    #[inline]
    pub fn set(&mut self, rid: Rid, place: Location) {
        self.places[rid.0] = place.0;
    }

    /// Removes the row, but does not give out the id again until `release`.
    pub fn bury(&mut self, rid: Rid) {
        self.places[rid.0] = NOT_LIVE;
    }

    /// Makes a buried id free. The ids of a piece are given out in reverse order of their release.
    pub fn release(&mut self, rid: Rid) {
        debug_assert!(self.places[rid.0] == NOT_LIVE, "only buried ids are released");
        let piece = piece_of(rid.0);
        if piece as usize >= self.ids.len() {
            self.ids.resize(piece as usize + 1, FreeIds::NONE);
        }
        let ids = &mut self.ids[piece as usize];
        ids.count += 1;
        let count = ids.count as usize;
        if count == 1 {
            self.places[rid.0] = NOT_LIVE | u64::from(NO_RID);
            self.link(piece, rid.0);
        } else if ids.previous == NO_PIECE {
            self.places[rid.0] = NOT_LIVE | u64::from(self.free);
            self.free = rid.0;
        } else {
            self.places[rid.0] = NOT_LIVE | u64::from(ids.head);
            ids.head = rid.0;
        }
        if count == ChunkedArray::<u64>::CHUNK {
            self.give_back(piece);
        }
    }

    /// Releases the memory of a piece whose ids are all free, unless it is the first or the last one.
    #[cold]
    fn give_back(&mut self, piece: u32) {
        let end = (piece as usize + 1) << ChunkedArray::<u64>::SHIFT;
        // Near the end of all ids, every free id must stay usable.
        if piece == 0 || end > self.places.len() || self.places.len() > RIDS_MAX / 2 {
            return;
        }
        self.unlink(piece);
        self.ids[piece as usize] = FreeIds::NONE;
        self.places.release(piece as usize);
        self.gone.push(piece);
    }

    /// Returns the id behind the greatest one ever given out.
    pub fn end(&self) -> u32 {
        self.places.len() as u32
    }

    /// Returns the live rows from `first` on, in the order of their ids.
    pub fn rids_from(&self, first: Rid) -> impl Iterator<Item = Rid> + '_ {
        (first.0..self.places.len() as u32)
            .map(Rid)
            .filter(|rid| self.get(*rid).is_some())
    }

    pub fn memory_bytes(&self) -> usize {
        let beside = self.ids.capacity() * size_of::<FreeIds>() + self.gone.capacity() * size_of::<u32>();
        self.places.memory_bytes() + beside
    }
}
