//! Ids and positions.

use std::fmt;

use crate::named_enum;

/// A transaction's id: its time and its place in the serial order of its partition.
///
/// The upper 54 bits are ticks of 1/8 microsecond since 2024-01-01T00:00:00Z, the lower 10 the partition that gave the id
/// out, or [`TxnId::MULTI_PARTITION`]. Ids grow along each partition's order and are unique over all partitions and
/// restarts (paper A, section II-B: ids from timestamps).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TxnId(pub u64);

/// Microseconds between 1970 and the epoch of transaction ids.
const TXN_EPOCH_US: i64 = 1_704_067_200_000_000;
const ORIGIN_BITS: u32 = 10;
const TICK_BITS: u32 = u64::BITS - ORIGIN_BITS;
const TICKS_PER_US: u64 = 8;
/// Ticks above the last one that a wall clock gives. They are for the ids of transactions under a clock that reads later times.
const COUNTED_TICKS: u64 = 1 << 48;
/// Microseconds between the epoch of ids and the last time that they tell: 2094-03-29T06:30:41Z.
const ID_TIME_MAX_US: i64 = (((1_u64 << TICK_BITS) - COUNTED_TICKS) / TICKS_PER_US) as i64;

impl TxnId {
    /// Origin of the ids of multi-partition transactions, deployments and removals.
    pub const MULTI_PARTITION: u16 = (1 << ORIGIN_BITS) - 1;

    /// Makes the id of a tick and its origin: a partition's number, or [`Self::MULTI_PARTITION`]. It panics if they do not fit 54 and 10
    /// bits.
    pub fn new(tick: u64, origin: u16) -> Self {
        assert!(origin <= Self::MULTI_PARTITION && tick >> TICK_BITS == 0);
        Self(tick << ORIGIN_BITS | origin as u64)
    }

    /// Its time, in eighths of a microsecond since 2024-01-01.
    pub const fn tick(self) -> u64 {
        self.0 >> ORIGIN_BITS
    }

    /// The source of the number: a partition's number, or [`Self::MULTI_PARTITION`].
    pub const fn origin(self) -> u16 {
        self.0 as u16 & Self::MULTI_PARTITION
    }

    /// The transaction's time in microseconds since 1970: what `now` answers.
    pub const fn time_us(self) -> i64 {
        (self.tick() / TICKS_PER_US) as i64 + TXN_EPOCH_US
    }

    /// The first tick of the microsecond `unix_us`: 0 for times before the epoch, and one tick of March 2094 for all times from then on.
    ///
    /// A wall clock that reads a later time, rightly or not, never leads to a tick that an id cannot hold. Ids still grow then, because each
    /// is at least one tick above the last one. The time of a transaction, which `now` answers, stays in March 2094. 2^48 ids are left for
    /// each partition.
    pub fn tick_at(unix_us: i64) -> u64 {
        let us = unix_us.saturating_sub(TXN_EPOCH_US).clamp(0, ID_TIME_MAX_US);
        us as u64 * TICKS_PER_US
    }
}

/// A source of growing ticks: the clock's tick if it is ahead, otherwise the next one.
#[derive(Clone, Copy, Debug, Default)]
pub struct TxnClock {
    last_tick: u64,
}

impl TxnClock {
    /// Never gives out `tick` or less again.
    pub fn advance_past(&mut self, tick: u64) {
        self.last_tick = self.last_tick.max(tick);
    }

    /// The last tick that was given out or passed.
    pub fn last_tick(&self) -> u64 {
        self.last_tick
    }

    /// Returns the next id of `origin`. The wall clock reads `unix_us` microseconds since 1970. It panics after the last tick, to which no
    /// wall clock leads (`TxnId::tick_at`).
    #[inline]
    pub fn next(&mut self, unix_us: i64, origin: u16) -> TxnId {
        self.last_tick = (self.last_tick + 1).max(TxnId::tick_at(unix_us));
        TxnId::new(self.last_tick, origin)
    }
}

/// A record's number in the log, from 0, dense in the order of commits; a watermark `w` covers all records with `lsn < w`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

/// One reign of one primary: how many there were, as far as its writer knew, and that writer. Records are written under the epoch of their
/// primary, and it never falls along the log. Two promotions that know nothing of each other draw the same count; the writer tells them apart.
/// Count 0: before the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Epoch {
    count: u32,
    writer: u16,
}

impl Epoch {
    /// Makes the epoch of a count and a writer.
    pub const fn new(count: u32, writer: u16) -> Self {
        Self { count, writer }
    }

    /// Returns how many reigns the writer knew of, this one included.
    pub const fn count(self) -> u32 {
        self.count
    }

    /// Returns the part of the primary's identity that its epochs carry; 0 of a node that had none yet.
    pub const fn writer(self) -> u16 {
        self.writer
    }

    /// Whether this epoch comes after `other`.
    pub const fn is_after(self, other: Self) -> bool {
        self.count > other.count
    }

    /// Returns the later one of both; this one if neither is.
    pub fn later(self, other: Self) -> Self {
        if other.is_after(self) { other } else { self }
    }

    /// Returns this epoch if it is later than `highest`, else the first one of the same writer that is.
    pub fn behind(self, highest: Self) -> Self {
        let count = self.count.max(highest.count.saturating_add(1));
        Self { count, ..self }
    }

    /// Whether a node that is bound to this epoch may follow the primary of `other`. An operator alone chooses between two primaries of one
    /// count.
    pub fn allows(self, other: Self) -> bool {
        other == self || other.count > self.count
    }

    /// Returns the epoch as a number of 48 bits: the count, then the writer.
    pub const fn to_bits(self) -> u64 {
        (self.count as u64) << 16 | self.writer as u64
    }

    /// Returns the epoch of such a number. None: it has more than 48 bits.
    pub fn from_bits(bits: u64) -> Option<Self> {
        let count = u32::try_from(bits >> 16).ok()?;
        Some(Self::new(count, bits as u16))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.count)
    }
}

named_enum! {
    /// The part that a node plays for its database.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Role {
        /// The server takes writes.
        Primary => "primary",
        /// The server receives the primary's log, replays it, and serves reads.
        Standby => "standby",
        /// The server serves reads of the existing data, and adds nothing.
        ReadOnly => "read-only",
    }
}

/// A slice of the data with its own serial order, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId(pub u16);

/// An engine thread, from 0. Partition `p` runs on site `p % sites`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteId(pub u16);

impl PartitionId {
    /// Its place in an array of all partitions.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The site that runs this partition when there are `sites_count` of them.
    pub fn site(self, sites_count: u16) -> SiteId {
        SiteId(self.0 % sites_count)
    }
}

impl SiteId {
    /// Its place in an array of all sites.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

macro_rules! display_number {
    ($($name:ident)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
display_number!(TxnId Lsn PartitionId SiteId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_grow_when_the_clock_stands_or_goes_back() {
        let mut clock = TxnClock::default();
        let now = TXN_EPOCH_US + 1_000_000;
        let ids: Vec<_> = [now, now, now - 500, now + 1].map(|t| clock.next(t, 3)).to_vec();
        assert!(ids.windows(2).all(|w| w[0] < w[1]));
        assert_eq!(ids[0].time_us(), now);
        assert_eq!(ids[0].origin(), 3);
    }

    #[test]
    fn ids_grow_by_a_tick_when_the_clock_reads_a_time_that_they_can_not_tell() {
        let mut clock = TxnClock::default();
        let too_late = TXN_EPOCH_US + (1_i64 << TICK_BITS) / TICKS_PER_US as i64;
        let ids = [too_late - 1, too_late, i64::MAX].map(|now| clock.next(now, TxnId::MULTI_PARTITION));
        let last_us = TXN_EPOCH_US + ID_TIME_MAX_US;
        assert_eq!((ids[0].tick(), ids[0].time_us()), (TxnId::tick_at(last_us), last_us));
        assert_eq!(ids[0].tick() + COUNTED_TICKS, 1_u64 << TICK_BITS);
        assert!(ids.windows(2).all(|w| w[1].tick() == w[0].tick() + 1));
        assert!(TxnId::tick_at(last_us - 1) < TxnId::tick_at(last_us));
        assert_eq!(TxnId::tick_at(i64::MIN), 0);
    }

    #[test]
    fn a_recovered_clock_never_repeats_an_id() {
        let mut clock = TxnClock::default();
        let last = clock.next(TXN_EPOCH_US + 9_000_000, 0);
        let mut restarted = TxnClock::default();
        restarted.advance_past(last.tick());
        assert!(restarted.next(TXN_EPOCH_US, 0) > last);
    }
}
