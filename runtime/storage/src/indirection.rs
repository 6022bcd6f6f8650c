//! The indirection array: record id -> where the row lies. Indexes hold record ids, so that a row may move, and later
//! live in the log (Query Fresh, section 4: the replay arrays), without a change to any index.

use std::sync::Arc;

use reprise_base::Budget;
use reprise_pages::prefetch_line;

use crate::{arena::Location, chunked::Chunked};

/// A row's name inside its table on this machine. It is never logged, hashed or shown: replay may give another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rid(pub u32);

const NOT_LIVE: u64 = 1 << 63;
/// No row has this id.
pub(crate) const NO_RID: u32 = u32::MAX;

/// Slots at most: the last value ends the free list.
const RIDS_MAX: usize = NO_RID as usize;

pub(crate) struct Indirection {
    /// A `Location`, or `NOT_LIVE | next free`.
    places: Chunked<u64>,
    free: u32,
}

impl Default for Indirection {
    fn default() -> Self {
        Self {
            places: Chunked::default(),
            free: NO_RID,
        }
    }
}

impl Indirection {
    pub fn is_full(&self) -> bool {
        self.free == NO_RID && self.places.len() >= RIDS_MAX
    }

    /// True where the next id takes no memory.
    #[inline(always)]
    pub fn has_memory(&self) -> bool {
        self.places.spare() > 0 || self.free != NO_RID
    }

    /// Sees to memory for the next id; false where it is refused.
    pub fn make_memory(&mut self) -> bool {
        self.has_memory() || self.places.try_grow()
    }

    /// Counts the memory from now on in `budget`.
    pub fn count_in(&mut self, budget: &Arc<Budget>) {
        self.places.count_in(budget);
    }

    /// False where `count` more ids might be too many.
    pub fn has_room(&self, count: usize) -> bool {
        self.places.len() + count <= RIDS_MAX
    }

    /// True where ids of rows that went are given out next.
    pub fn has_free(&self) -> bool {
        self.free != NO_RID
    }

    /// The id that the next `take` gives out.
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
        let rid = self.next();
        if self.free == NO_RID {
            self.places.push(place.0);
        } else {
            let entry = &mut self.places[rid.0];
            self.free = *entry as u32;
            *entry = place.0;
        }
        rid
    }

    /// New ids for rows at these places, where none is free; the first one, the others following it.
    #[inline]
    pub fn append(&mut self, places: &[Location]) -> Rid {
        debug_assert!(self.free == NO_RID, "free ids are given out first");
        let first = Rid(self.places.len() as u32);
        self.places.extend(places.iter().map(|place| place.0));
        first
    }

    #[inline]
    pub fn get(&self, rid: Rid) -> Option<Location> {
        if rid.0 as usize >= self.places.len() {
            return None;
        }
        let place = self.places[rid.0];
        (place & NOT_LIVE == 0).then_some(Location(place))
    }

    /// Prefetches what `get` reads.
    #[inline]
    pub fn touch(&self, rid: Rid) {
        if (rid.0 as usize) < self.places.len() {
            prefetch_line(&self.places[rid.0]);
        }
    }

    /// Where the place of a row stands that an index named, prefetched: for `live_at`.
    #[inline(always)]
    pub fn prefetch_slot_of(&self, rid: Rid) -> &u64 {
        let slot = &self.places[rid.0];
        prefetch_line(slot);
        slot
    }

    /// As `live`, of a row whose place stands in `slot`.
    #[inline(always)]
    pub fn live_at(slot: &u64) -> Location {
        assert!(slot & NOT_LIVE == 0, "an index names live rows only");
        Location(*slot)
    }

    /// Prefetches what the next ones that `take` gives out will be written to, a few ahead.
    #[inline]
    pub fn touch_end(&self) {
        self.places.touch_end();
    }

    /// Where a row lies that is known to be live.
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

    /// Takes the row away but keeps the id from being given out again, until `release`.
    pub fn bury(&mut self, rid: Rid) {
        self.places[rid.0] = NOT_LIVE;
    }

    /// Makes a buried id free. Freed ids are given out last first.
    pub fn release(&mut self, rid: Rid) {
        debug_assert!(self.places[rid.0] == NOT_LIVE, "only buried ids are released");
        self.places[rid.0] = NOT_LIVE | self.free as u64;
        self.free = rid.0;
    }

    /// Behind the greatest id given out so far.
    pub fn end(&self) -> u32 {
        self.places.len() as u32
    }

    /// Live rows from `first` on, in the order of their ids.
    pub fn rids_from(&self, first: Rid) -> impl Iterator<Item = Rid> + '_ {
        (first.0..self.places.len() as u32)
            .map(Rid)
            .filter(|rid| self.get(*rid).is_some())
    }

    pub fn memory_bytes(&self) -> usize {
        self.places.memory_bytes()
    }
}
