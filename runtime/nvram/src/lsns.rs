//! LSNs for sites that write to logs of their own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use reprise_base::Lsn;

/// Nothing of this site is on its way.
const IDLE: u64 = u64::MAX;

#[repr(align(64))]
struct LsnSlot(AtomicU64);

/// The global LSN (NV-Logging, section 4.2): one counter, and what each site has taken of it and not yet made persistent.
pub struct LsnSource {
    next: LsnSlot,
    /// Per site the least LSN that it took and that is not persistent, or a number below it.
    in_flight: Box<[LsnSlot]>,
    is_closed: AtomicBool,
}

impl LsnSource {
    /// A source that gives out `next` first, to this many sites.
    pub fn new(next: Lsn, sites: usize) -> Self {
        let idle = |_| LsnSlot(AtomicU64::new(IDLE));
        Self {
            next: LsnSlot(AtomicU64::new(next.0)),
            in_flight: (0..sites).map(idle).collect(),
            is_closed: AtomicBool::new(false),
        }
    }

    /// The LSN that will be given out next.
    pub fn next(&self) -> Lsn {
        Lsn(self.next.0.load(SeqCst))
    }

    /// Takes `count` LSNs in a row for `site`; the first of them. Called by the site's own thread. None: it is closed, and nothing was taken.
    pub fn reserve(&self, site: usize, count: u64) -> Option<Lsn> {
        let mine = &self.in_flight[site].0;
        if mine.load(SeqCst) == IDLE {
            // Stored before LSNs are taken: a thread that reads between the two must see that LSNs are in flight.
            mine.store(self.next.0.load(SeqCst), SeqCst);
            // Checked after the store: either the closing thread sees that this site takes LSNs, or this site sees that it is closed.
            if self.is_closed.load(SeqCst) {
                mine.store(IDLE, SeqCst);
                return None;
            }
        }
        Some(Lsn(self.next.0.fetch_add(count, SeqCst)))
    }

    /// Stops sites from taking LSNs until `open`. A site may still be taking one now; none is once `is_idle`.
    pub fn close(&self) {
        self.is_closed.store(true, SeqCst);
    }

    /// Ends what `close` began.
    pub fn open(&self) {
        self.is_closed.store(false, SeqCst);
    }

    /// True if no site has taken an LSN that is not persistent.
    pub fn is_idle(&self) -> bool {
        self.in_flight.iter().all(|slot| slot.0.load(SeqCst) == IDLE)
    }

    /// Marks that the site's earlier LSNs are persistent below `lsn`, and not from there on.
    pub fn persisted_before(&self, site: usize, lsn: Lsn) {
        self.in_flight[site].0.store(lsn.0, SeqCst);
    }

    /// All that `site` took is persistent.
    pub fn persisted(&self, site: usize) {
        self.in_flight[site].0.store(IDLE, SeqCst);
    }

    /// All records below this LSN are persistent: the least that any site took and has not persisted.
    pub fn durable(&self) -> Lsn {
        // The counter is read first: LSNs taken after that do not matter.
        let next = self.next.0.load(SeqCst);
        let least = self.in_flight.iter().map(|slot| slot.0.load(SeqCst)).min();
        Lsn(next.min(least.unwrap_or(IDLE)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::*;

    #[test]
    fn durable_is_the_least_that_is_on_its_way() {
        let source = LsnSource::new(Lsn(10), 3);
        assert_eq!(source.durable(), Lsn(10));
        assert_eq!(source.reserve(0, 2), Some(Lsn(10)));
        assert_eq!(source.reserve(1, 1), Some(Lsn(12)));
        assert_eq!(source.reserve(0, 1), Some(Lsn(13)));
        assert_eq!(source.durable(), Lsn(10));
        source.persisted(0);
        assert_eq!(source.durable(), Lsn(12));
        source.persisted(1);
        assert_eq!(source.durable(), Lsn(14));
        assert_eq!(source.reserve(2, 5), Some(Lsn(14)));
        source.persisted_before(2, Lsn(17));
        assert_eq!(source.durable(), Lsn(17));
        source.persisted(2);
        assert_eq!(source.durable(), Lsn(19));
    }

    #[test]
    fn lsns_taken_before_the_end_lie_before_it_and_none_follow() {
        for round in 0..200 {
            let source = LsnSource::new(Lsn(0), 3);
            let takes = |site: usize| {
                let mut end = 0;
                while let Some(lsn) = source.reserve(site, 1 + site as u64) {
                    end = lsn.0 + 1 + site as u64;
                    source.persisted(site);
                }
                end
            };
            std::thread::scope(|scope| {
                let takers = [0, 1, 2].map(|site| scope.spawn(move || takes(site)));
                (0..round * 10).for_each(|_| std::hint::spin_loop());
                source.close();
                while !source.is_idle() {
                    std::thread::yield_now();
                }
                let end = source.next();
                let ends = takers.map(|taker| taker.join().expect("it ends"));
                assert_eq!(ends.into_iter().max(), Some(end.0), "round {round}");
                assert_eq!((source.next(), source.durable()), (end, end));
                assert_eq!(source.reserve(0, 1), None);
                source.open();
                assert_eq!(source.reserve(0, 1), Some(end));
            });
        }
    }

    /// A site sets a flag when its LSN is persistent. `durable` may never name an LSN beyond one whose flag is not set.
    #[test]
    fn durable_is_never_too_far() {
        const COUNT: usize = 200_000;
        let source = LsnSource::new(Lsn(0), 2);
        let done: Vec<AtomicBool> = (0..COUNT).map(|_| AtomicBool::new(false)).collect();
        std::thread::scope(|scope| {
            for site in 0..2 {
                let (source, done) = (&source, &done);
                scope.spawn(move || {
                    loop {
                        let lsn = source.reserve(site, 1).expect("open").0 as usize;
                        if lsn >= COUNT {
                            return source.persisted(site);
                        }
                        done[lsn].store(true, SeqCst);
                        source.persisted(site);
                    }
                });
            }
            let mut seen = 0;
            while seen < COUNT {
                let durable = (source.durable().0 as usize).min(COUNT);
                assert!(
                    done[seen..durable].iter().all(|flag| flag.load(Relaxed)),
                    "below {durable}"
                );
                seen = seen.max(durable);
            }
        });
    }
}
