//! Where a site keeps its partitions and the messages that have to wait for one: while it is away, behind a strict gathering,
//! or behind a job of their own stream that other partitions have not announced yet. All others go on.
//!
//! A partition's messages keep their order but for this: what is not of a waiting job's stream passes it.

use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    sync::Arc,
};

use crossbeam_channel::Receiver;
use reprise_base::{PartitionId, SiteId};

use crate::{
    batch::CallBatch,
    desk::Arrival,
    gather::{Gathering, Stream, Touched},
    shared::Shared,
    site::Partition,
};

pub(crate) struct Home {
    site: SiteId,
    sites_count: u16,
    partitions_count: u16,
    /// By `PartitionId / sites_count`.
    places: Vec<Place>,
    away_count: usize,
    /// Messages that wait, in all places.
    kept_count: usize,
    /// Partitions that come back, and meetings to bring some to.
    pub arrivals: Receiver<Arrival>,
    /// Places where something that waited may go on.
    ready: VecDeque<usize>,
}

struct Place {
    id: PartitionId,
    /// None while it is away.
    partition: Option<Box<Partition>>,
    /// Streams with a job that waits.
    streams: BTreeMap<Stream, Waiting>,
    /// Streams whose next message may go on.
    ready: VecDeque<Stream>,
    /// A strict gathering: no stream waits when the partition is brought to it.
    fence: Option<Arc<Gathering>>,
    /// What came while the partition was away or a fence waited, in order. As many as admission lets in (`WAITING_TXNS_MAX`).
    parked: VecDeque<Parked>,
}

/// What waits of one stream, in order.
#[derive(Default)]
struct Waiting {
    messages: VecDeque<Parked>,
    /// The first messages, jobs over the same partitions, that were announced and have not run.
    announced: usize,
}

/// A partition away from home. To a strict gathering it takes along what was parked for it, so that one can follow another
/// without a detour over its site.
pub(crate) struct Traveller {
    pub partition: Box<Partition>,
    pub luggage: Luggage,
}

pub(crate) struct Luggage {
    pub parked: VecDeque<Parked>,
    pub home: SiteId,
    /// Announced jobs that were run while it was away.
    pub done: Arc<[Arc<Gathering>]>,
}

pub(crate) enum Parked {
    Batch(Box<CallBatch>),
    Gather(Arc<Gathering>),
}

impl Luggage {
    /// The strict gathering that comes next for its partition, if that is what comes next.
    pub fn take_next_strict(&mut self) -> Option<Arc<Gathering>> {
        let is_strict = |message: &mut Parked| matches!(message, Parked::Gather(next) if next.stream.is_none());
        match self.parked.pop_front_if(is_strict)? {
            Parked::Gather(next) => Some(next),
            Parked::Batch(_) => unreachable!("it was looked at"),
        }
    }
}

impl Parked {
    fn stream(&self) -> Option<Stream> {
        match self {
            Self::Batch(batch) => batch.stream,
            Self::Gather(gathering) => gathering.stream,
        }
    }
}

/// What a site is to do with a message whose turn has come.
pub(crate) enum Due {
    Run(Box<CallBatch>),
    /// The partition is ready for this job.
    Announce(Arc<Gathering>),
    Bring(Arc<Gathering>, Traveller),
}

impl Waiting {
    /// The next job, if it can be announced now: behind announced ones only if they are of the same partitions, which thus
    /// come upon them in the same order.
    fn announce_next(&mut self) -> Option<Arc<Gathering>> {
        let Some(Parked::Gather(next)) = self.messages.get(self.announced) else {
            return None;
        };
        if let (true, Some(Parked::Gather(first))) = (self.announced > 0, self.messages.front())
            && first.touched != next.touched
        {
            return None;
        }
        self.announced += 1;
        Some(next.clone())
    }
}

impl Place {
    /// Nothing keeps a message from being done at once.
    #[inline]
    fn is_open(&self) -> bool {
        self.partition.is_some() && self.streams.is_empty() && self.fence.is_none() && self.parked.is_empty()
    }

    fn leave(&mut self, home: SiteId, parked: VecDeque<Parked>) -> Traveller {
        Traveller {
            partition: self.partition.take().expect("asked for while it is at home"),
            luggage: Luggage {
                parked,
                home,
                done: Arc::default(),
            },
        }
    }
}

impl Home {
    /// Fresh partitions: those `p` with `p % sites_count == site`.
    pub fn new(site: SiteId, shared: &Shared) -> Self {
        let (partitions_count, sites_count) = (shared.partitions_count, shared.sites_count);
        let fresh = (site.0..partitions_count).step_by(sites_count as usize);
        let place = |id| Place {
            id: PartitionId(id),
            partition: Some(Box::new(Partition::new(PartitionId(id), &shared.memory))),
            streams: BTreeMap::new(),
            ready: VecDeque::new(),
            fence: None,
            parked: VecDeque::new(),
        };
        Self {
            site,
            sites_count,
            partitions_count,
            places: fresh.map(place).collect(),
            away_count: 0,
            kept_count: 0,
            arrivals: shared.desk.take_door(site),
            ready: VecDeque::new(),
        }
    }

    fn index(&self, id: PartitionId) -> usize {
        (id.0 / self.sites_count) as usize
    }

    /// Every partition is at home, and nothing waits.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.away_count == 0 && self.kept_count == 0 && self.ready.is_empty()
    }

    pub fn has_away(&self) -> bool {
        self.away_count > 0
    }

    /// None while the partition is away.
    #[inline]
    pub fn get(&mut self, id: PartitionId) -> Option<&mut Partition> {
        let index = self.index(id);
        let partition = self.places[index].partition.as_deref_mut()?;
        assert_eq!(partition.id, id);
        Some(partition)
    }

    /// As `get`, to look at it.
    #[inline]
    pub fn peek(&self, id: PartitionId) -> Option<&Partition> {
        self.places[self.index(id)].partition.as_deref()
    }

    /// Those at home.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Partition> {
        self.places
            .iter_mut()
            .filter_map(|place| place.partition.as_deref_mut())
    }

    /// This site's places that a job touches.
    fn touched(&self, touched: &Touched) -> impl Iterator<Item = usize> {
        let places = self.places.iter().enumerate();
        places.filter(|(_, place)| touched.contains(place.id)).map(|(at, _)| at)
    }

    pub fn touched_count(&self, touched: &Touched) -> usize {
        self.touched(touched).count()
    }

    /// Takes a batch for one of this site's partitions. Some: it is to be run now.
    #[inline]
    pub fn take_batch(&mut self, batch: Box<CallBatch>, id: PartitionId) -> Option<Due> {
        let index = self.index(id);
        match self.places[index].is_open() {
            true => Some(Due::Run(batch)),
            false => self.take(index, Parked::Batch(batch)),
        }
    }

    /// Takes a gathering for each of this site's touched partitions.
    pub fn take_gathering(&mut self, gathering: &Arc<Gathering>, on_due: &mut Vec<Due>) {
        let touched: Vec<usize> = self.touched(&gathering.touched).collect();
        let is_whole = touched.len() == gathering.touched.len(self.partitions_count);
        // Jobs of one site need no meeting.
        let is_alone = is_whole && touched.iter().all(|at| self.places[*at].is_open());
        for index in touched {
            let message = Parked::Gather(gathering.clone());
            on_due.extend(match is_alone {
                true => Some(self.bring_strictly(index, gathering.clone())),
                false => self.take(index, message),
            });
        }
    }

    fn take(&mut self, index: usize, message: Parked) -> Option<Due> {
        let place = &mut self.places[index];
        if place.partition.is_some() && place.fence.is_none() && place.parked.is_empty() {
            return self.admit(index, message);
        }
        place.parked.push_back(message);
        self.kept_count += 1;
        None
    }

    /// A message whose turn has come but for streams that wait. Its partition is at home.
    fn admit(&mut self, index: usize, message: Parked) -> Option<Due> {
        let place = &mut self.places[index];
        if let Some(stream) = message.stream()
            && let Some(waiting) = place.streams.get_mut(&stream)
        {
            waiting.messages.push_back(message);
            self.kept_count += 1;
            // While some were run and their turn is to come, the rest waits for that.
            let is_next = waiting.announced + 1 == waiting.messages.len() && waiting.announced > 0;
            return is_next.then(|| waiting.announce_next()).flatten().map(Due::Announce);
        }
        match message {
            Parked::Batch(batch) => Some(Due::Run(batch)),
            Parked::Gather(gathering) => match gathering.stream {
                Some(stream) => {
                    let mut waiting = Waiting::default();
                    waiting.messages.push_back(Parked::Gather(gathering.clone()));
                    waiting.announced = 1;
                    place.streams.insert(stream, waiting);
                    self.kept_count += 1;
                    Some(Due::Announce(gathering))
                }
                None if place.streams.is_empty() => Some(self.bring_strictly(index, gathering)),
                None => {
                    place.fence = Some(gathering);
                    self.kept_count += 1;
                    None
                }
            },
        }
    }

    fn bring_strictly(&mut self, index: usize, gathering: Arc<Gathering>) -> Due {
        let place = &mut self.places[index];
        let parked = std::mem::take(&mut place.parked);
        self.kept_count -= parked.len();
        self.away_count += 1;
        Due::Bring(gathering, place.leave(self.site, parked))
    }

    /// Takes out this site's partitions of a meeting that was called for jobs they announced.
    pub fn take_called(&mut self, touched: &Touched) -> Vec<Traveller> {
        let site = self.site;
        let places = self.places.iter_mut();
        let called = places.filter(|place| touched.contains(place.id));
        let taken: Vec<_> = called.map(|place| place.leave(site, VecDeque::new())).collect();
        self.away_count += taken.len();
        taken
    }

    /// Takes out this site's touched partitions while nothing else of it goes on: nobody misses them.
    pub fn lend(&mut self, touched: &Touched, to: &mut Vec<Box<Partition>>) {
        let places = self.places.iter_mut();
        let lent = places.filter(|place| touched.contains(place.id));
        to.extend(lent.map(|place| {
            let partition = place.partition.take();
            partition.expect("lent by a job, which waits until all are at home")
        }));
    }

    /// Takes those back that are this site's.
    pub fn take_back(&mut self, from: &mut Vec<Box<Partition>>) {
        let (site, sites) = (self.site, self.sites_count);
        for partition in from.extract_if(.., |partition| partition.id.site(sites) == site) {
            let index = self.index(partition.id);
            let place = &mut self.places[index];
            assert!(place.partition.is_none(), "a partition is in one place");
            place.partition = Some(partition);
        }
    }

    /// Takes a partition back, if it is one of this site's.
    pub fn put(&mut self, traveller: Traveller) -> Result<(), Traveller> {
        if traveller.luggage.home != self.site {
            return Err(traveller);
        }
        let index = self.index(traveller.partition.id);
        let place = &mut self.places[index];
        assert!(place.partition.is_none(), "a partition is in one place");
        place.partition = Some(traveller.partition);
        self.away_count -= 1;
        let Luggage { mut parked, done, .. } = traveller.luggage;
        for gathering in done.iter() {
            let stream = gathering.stream.expect("a meeting runs jobs of streams");
            let waiting = place.streams.get_mut(&stream);
            let waiting = waiting.expect("its jobs stay until they have run");
            let first = waiting.messages.pop_front();
            assert!(matches!(&first, Some(Parked::Gather(first)) if Arc::ptr_eq(first, gathering)));
            self.kept_count -= 1;
            waiting.announced -= 1;
            if waiting.announced == 0 {
                place.ready.push_back(stream);
            }
        }
        // What it left with came before what was parked since.
        self.kept_count += parked.len();
        parked.append(&mut place.parked);
        place.parked = parked;
        if !place.ready.is_empty() || !place.parked.is_empty() {
            self.ready.push_back(index);
        }
        Ok(())
    }

    /// The next message whose turn has come.
    pub fn take_due(&mut self) -> Option<Due> {
        while let Some(&index) = self.ready.front() {
            if self.places[index].partition.is_some() {
                if let Some(due) = self.take_due_of_streams(index) {
                    return Some(due);
                }
                let place = &mut self.places[index];
                if place.streams.is_empty()
                    && let Some(fence) = place.fence.take()
                {
                    self.kept_count -= 1;
                    return Some(self.bring_strictly(index, fence));
                }
                if place.fence.is_none()
                    && let Some(message) = place.parked.pop_front()
                {
                    self.kept_count -= 1;
                    if let Some(due) = self.admit(index, message) {
                        return Some(due);
                    }
                    continue;
                }
            }
            self.ready.pop_front(); // gone again, or nothing is left that may go on
        }
        None
    }

    /// The next message of a stream whose jobs have run.
    fn take_due_of_streams(&mut self, index: usize) -> Option<Due> {
        let place = &mut self.places[index];
        while let Some(&stream) = place.ready.front() {
            let Entry::Occupied(mut entry) = place.streams.entry(stream) else {
                place.ready.pop_front(); // it was named twice
                continue;
            };
            let waiting = entry.get_mut();
            if let Some(gathering) = waiting.announce_next() {
                return Some(Due::Announce(gathering));
            }
            if waiting.announced == 0 {
                match waiting.messages.pop_front() {
                    Some(Parked::Batch(batch)) => {
                        self.kept_count -= 1;
                        return Some(Due::Run(batch));
                    }
                    Some(Parked::Gather(_)) => unreachable!("it would have been announced"),
                    None => _ = entry.remove(),
                }
            }
            place.ready.pop_front();
        }
        None
    }
}
