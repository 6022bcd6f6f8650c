//! Where a site keeps its partitions: at home, or away in a gathering while their messages are parked. The others of the
//! site go on. A partition's messages keep their order: those parked run before any that arrives after its return.

use std::{collections::VecDeque, sync::Arc};

use crossbeam_channel::{Receiver, Sender};
use reprise_base::{PartitionId, SiteId};

use crate::{batch::CallBatch, gather::Gathering, site::Partition};

pub(crate) struct Home {
    sites_count: u16,
    /// By `PartitionId / sites_count`.
    places: Vec<Place>,
    away_count: usize,
    /// What other sites send back.
    pub returns: Receiver<Traveller>,
    way_back: Sender<Traveller>,
    /// Places whose partition came home to parked messages.
    due: VecDeque<usize>,
}

struct Place {
    id: PartitionId,
    /// None while it is away.
    partition: Option<Box<Partition>>,
    /// What is to be done once it is back, in order. As many as admission lets in (`WAITING_TXNS_MAX`).
    parked: VecDeque<Parked>,
}

/// A partition away from home. What was parked for it when it left travels along, so that one gathering can follow another
/// without a detour over its site.
pub(crate) struct Traveller {
    pub partition: Box<Partition>,
    pub luggage: Luggage,
}

pub(crate) struct Luggage {
    pub parked: VecDeque<Parked>,
    pub home: Sender<Traveller>,
}

pub(crate) enum Parked {
    Batch(Box<CallBatch>),
    Gather(Arc<Gathering>),
}

impl Parked {
    pub fn is_gather(&mut self) -> bool {
        matches!(self, Self::Gather(_))
    }
}

impl Home {
    /// Fresh partitions: those `p` with `p % sites_count == site`.
    pub fn new(site: SiteId, partitions_count: u16, sites_count: u16) -> Self {
        let (way_back, returns) = crossbeam_channel::unbounded();
        let fresh = (site.0..partitions_count).step_by(sites_count as usize);
        let place = |id| Place {
            id: PartitionId(id),
            partition: Some(Box::new(Partition::new(PartitionId(id)))),
            parked: VecDeque::new(),
        };
        Self {
            sites_count,
            places: fresh.map(place).collect(),
            away_count: 0,
            returns,
            way_back,
            due: VecDeque::new(),
        }
    }

    fn index(&self, id: PartitionId) -> usize {
        (id.0 / self.sites_count) as usize
    }

    pub fn is_complete(&self) -> bool {
        self.away_count == 0
    }

    /// None while the partition is away.
    #[inline]
    pub fn get(&mut self, id: PartitionId) -> Option<&mut Partition> {
        let index = self.index(id);
        let partition = self.places[index].partition.as_deref_mut()?;
        assert_eq!(partition.id, id);
        Some(partition)
    }

    /// Those at home.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Partition> {
        self.places
            .iter_mut()
            .filter_map(|place| place.partition.as_deref_mut())
    }

    /// Keeps a batch until its partition is back. Err: it is at home.
    pub fn park(&mut self, batch: Box<CallBatch>, id: PartitionId) -> Result<(), Box<CallBatch>> {
        let index = self.index(id);
        let place = &mut self.places[index];
        if place.partition.is_some() {
            return Err(batch);
        }
        place.parked.push_back(Parked::Batch(batch));
        Ok(())
    }

    /// Takes this site's touched partitions out to be brought; for those away, the gathering waits its turn.
    pub fn take_touched(&mut self, gathering: &Arc<Gathering>) -> Vec<Traveller> {
        let mut taken = Vec::new();
        for place in self
            .places
            .iter_mut()
            .filter(|place| gathering.touched.contains(place.id))
        {
            match place.partition.take() {
                Some(partition) => taken.push(Traveller {
                    partition,
                    luggage: Luggage {
                        parked: std::mem::take(&mut place.parked),
                        home: self.way_back.clone(),
                    },
                }),
                None => place.parked.push_back(Parked::Gather(gathering.clone())),
            }
        }
        self.away_count += taken.len();
        taken
    }

    /// Takes a partition back, if it is one of this site's.
    pub fn put(&mut self, traveller: Traveller) -> Result<(), Traveller> {
        if !traveller.luggage.home.same_channel(&self.way_back) {
            return Err(traveller);
        }
        let index = self.index(traveller.partition.id);
        let place = &mut self.places[index];
        assert!(place.partition.is_none(), "a partition is in one place");
        place.partition = Some(traveller.partition);
        // What it left with came before what was parked since.
        let mut parked = traveller.luggage.parked;
        parked.append(&mut place.parked);
        place.parked = parked;
        self.away_count -= 1;
        if !place.parked.is_empty() {
            self.due.push_back(index);
        }
        Ok(())
    }

    /// The next parked message whose partition is at home.
    pub fn take_due(&mut self) -> Option<Due> {
        while let Some(&index) = self.due.front() {
            let place = &mut self.places[index];
            let next = match place.partition.is_some() {
                true => place.parked.pop_front(),
                false => None, // gone again, to a gathering that was parked
            };
            match next {
                None => drop(self.due.pop_front()),
                Some(Parked::Batch(batch)) => return Some(Due::Batch(batch)),
                Some(Parked::Gather(gathering)) => {
                    self.away_count += 1;
                    let traveller = Traveller {
                        partition: place.partition.take().expect("looked at above"),
                        luggage: Luggage {
                            parked: std::mem::take(&mut place.parked),
                            home: self.way_back.clone(),
                        },
                    };
                    return Some(Due::Bring(gathering, traveller));
                }
            }
        }
        None
    }
}

/// Parked work whose time has come.
pub(crate) enum Due {
    Batch(Box<CallBatch>),
    Bring(Arc<Gathering>, Traveller),
}
