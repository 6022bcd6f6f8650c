//! A site's partitions, and the messages that have to wait for one of them (deferred). A message waits while its partition is away, behind
//! a barrier, or behind a transaction of its own stream that runs over several partitions. All other messages continue.
//!
//! A partition's messages keep their order with one exception: messages of other streams pass a waiting transaction.

use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    sync::Arc,
};

use crossbeam_channel::Receiver;
use reprise_base::{PartitionId, SiteId};

use crate::{
    batch::CallBatch,
    coordinator::Arrival,
    rendezvous::{MultiPartitionTxn, Stream, TxnPartitions},
    shared::Shared,
    site::Partition,
};

pub(crate) struct PartitionTable {
    site: SiteId,
    sites_count: u16,
    partitions_count: u16,
    /// The slots, by `PartitionId / sites_count`.
    slots: Vec<PartitionSlot>,
    away_count: usize,
    /// Number of waiting messages in all slots.
    deferred_count: usize,
    /// Partitions that come back, and rendezvous that need partitions of this site.
    pub arrivals: Receiver<Arrival>,
    /// Slots with a waiting message that may continue.
    ready: VecDeque<usize>,
}

struct PartitionSlot {
    id: PartitionId,
    /// None while the partition is away.
    partition: Option<Box<Partition>>,
    /// Streams with a waiting transaction.
    streams: BTreeMap<Stream, StreamQueue>,
    /// Streams whose next message may continue.
    ready: VecDeque<Stream>,
    /// The barrier that the partition waits for. No stream waits once the partition is prepared for it.
    barrier: Option<Barrier>,
    /// Messages that arrived while the partition was away or a barrier waited, in order. Admission bounds their number
    /// (`WAITING_TXNS_MAX`).
    deferred: VecDeque<DeferredMessage>,
}

struct Barrier {
    txn: Arc<MultiPartitionTxn>,
    is_prepared: bool,
}

/// Waiting messages of one stream, in order.
#[derive(Default)]
struct StreamQueue {
    messages: VecDeque<DeferredMessage>,
    /// Number of first messages, transactions over the same partitions, that the partition is prepared for and that have not run.
    prepared: usize,
}

/// A partition on its way from its site to the thread that runs a transaction over it, or back.
pub(crate) struct Handoff {
    pub partition: Box<Partition>,
    pub home: SiteId,
    /// The transactions that the partition was prepared for and that ran while it was away.
    pub done: Arc<[Arc<MultiPartitionTxn>]>,
}

pub(crate) enum DeferredMessage {
    Batch(Box<CallBatch>),
    Multi(Arc<MultiPartitionTxn>),
}

impl DeferredMessage {
    fn stream(&self) -> Option<Stream> {
        match self {
            Self::Batch(batch) => batch.stream,
            Self::Multi(txn) => txn.stream,
        }
    }
}

/// The action for a message whose turn has come.
pub(crate) enum Due {
    Run(Box<CallBatch>),
    /// The partition is prepared for this transaction.
    Prepared(Arc<MultiPartitionTxn>),
}

impl StreamQueue {
    /// Returns the next transaction, if the partition can be prepared for it now. Behind others it can be only if they are over the same
    /// partitions: then all of these reach them in the same order.
    fn prepare_next(&mut self) -> Option<Arc<MultiPartitionTxn>> {
        let Some(DeferredMessage::Multi(next)) = self.messages.get(self.prepared) else {
            return None;
        };
        if let (true, Some(DeferredMessage::Multi(first))) = (self.prepared > 0, self.messages.front())
            && first.touched != next.touched
        {
            return None;
        }
        self.prepared += 1;
        Some(next.clone())
    }
}

impl PartitionSlot {
    /// True if no message of this slot has to wait.
    #[inline]
    fn is_open(&self) -> bool {
        self.partition.is_some() && self.streams.is_empty() && self.barrier.is_none() && self.deferred.is_empty()
    }

    fn hand_over(&mut self, home: SiteId) -> Handoff {
        Handoff {
            partition: self.partition.take().expect("asked for while it is at home"),
            home,
            done: Arc::default(),
        }
    }
}

impl PartitionTable {
    /// Makes fresh partitions: each `p` with `p % sites_count == site`.
    pub fn new(site: SiteId, shared: &Shared) -> Self {
        let (partitions_count, sites_count) = (shared.partitions_count, shared.sites_count);
        let fresh = (site.0..partitions_count).step_by(sites_count as usize);
        let slot = |id| PartitionSlot {
            id: PartitionId(id),
            partition: Some(Box::new(Partition::new(PartitionId(id), &shared.memory))),
            streams: BTreeMap::new(),
            ready: VecDeque::new(),
            barrier: None,
            deferred: VecDeque::new(),
        };
        Self {
            site,
            sites_count,
            partitions_count,
            slots: fresh.map(slot).collect(),
            away_count: 0,
            deferred_count: 0,
            arrivals: shared.coordinator.take_door(site),
            ready: VecDeque::new(),
        }
    }

    fn index(&self, id: PartitionId) -> usize {
        (id.0 / self.sites_count) as usize
    }

    /// True if every partition is at home and no message waits.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.away_count == 0 && self.deferred_count == 0 && self.ready.is_empty()
    }

    pub fn has_away(&self) -> bool {
        self.away_count > 0
    }

    /// Returns a partition, or None while it is away.
    #[inline]
    pub fn get(&mut self, id: PartitionId) -> Option<&mut Partition> {
        let index = self.index(id);
        let partition = self.slots[index].partition.as_deref_mut()?;
        assert_eq!(partition.id, id);
        Some(partition)
    }

    /// The `get` variant for reading.
    #[inline]
    pub fn peek(&self, id: PartitionId) -> Option<&Partition> {
        self.slots[self.index(id)].partition.as_deref()
    }

    /// Returns the partitions at home.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Partition> {
        self.slots.iter_mut().filter_map(|slot| slot.partition.as_deref_mut())
    }

    /// Returns this site's slots that a transaction touches.
    fn touched(&self, touched: &TxnPartitions) -> impl Iterator<Item = usize> {
        let slots = self.slots.iter().enumerate();
        slots.filter(|(_, slot)| touched.contains(slot.id)).map(|(at, _)| at)
    }

    pub fn touched_count(&self, touched: &TxnPartitions) -> usize {
        self.touched(touched).count()
    }

    /// Takes a batch for one of this site's partitions. Some: the caller runs it now.
    #[inline]
    pub fn take_batch(&mut self, batch: Box<CallBatch>, id: PartitionId) -> Option<Due> {
        let index = self.index(id);
        match self.slots[index].is_open() {
            true => Some(Due::Run(batch)),
            false => self.take(index, DeferredMessage::Batch(batch)),
        }
    }

    /// True if all partitions of a transaction are here and the transaction could run at once.
    pub fn is_free_for(&self, touched: &TxnPartitions) -> bool {
        let here = self.touched_count(touched);
        here == touched.len(self.partitions_count) && self.touched(touched).all(|at| self.slots[at].is_open())
    }

    /// Takes a transaction for each of this site's touched partitions.
    pub fn take_multi(&mut self, txn: &Arc<MultiPartitionTxn>, on_due: &mut Vec<Due>) {
        for index in self.touched(&txn.touched).collect::<Vec<_>>() {
            on_due.extend(self.take(index, DeferredMessage::Multi(txn.clone())));
        }
    }

    fn take(&mut self, index: usize, message: DeferredMessage) -> Option<Due> {
        let slot = &mut self.slots[index];
        if slot.partition.is_some() && slot.barrier.is_none() && slot.deferred.is_empty() {
            return self.admit(index, message);
        }
        slot.deferred.push_back(message);
        self.deferred_count += 1;
        None
    }

    /// Admits a message whose turn has come unless its stream waits. Its partition is at home.
    fn admit(&mut self, index: usize, message: DeferredMessage) -> Option<Due> {
        let slot = &mut self.slots[index];
        if let Some(stream) = message.stream()
            && let Some(waiting) = slot.streams.get_mut(&stream)
        {
            waiting.messages.push_back(message);
            self.deferred_count += 1;
            // While some prepared transactions run, the rest waits until their turn comes.
            let is_next = waiting.prepared + 1 == waiting.messages.len() && waiting.prepared > 0;
            return is_next.then(|| waiting.prepare_next()).flatten().map(Due::Prepared);
        }
        let txn = match message {
            DeferredMessage::Batch(batch) => return Some(Due::Run(batch)),
            DeferredMessage::Multi(txn) => txn,
        };
        self.deferred_count += 1;
        let Some(stream) = txn.stream else {
            let is_prepared = slot.streams.is_empty();
            let due = is_prepared.then(|| Due::Prepared(txn.clone()));
            slot.barrier = Some(Barrier { txn, is_prepared });
            return due;
        };
        let mut waiting = StreamQueue::default();
        waiting.messages.push_back(DeferredMessage::Multi(txn.clone()));
        waiting.prepared = 1;
        slot.streams.insert(stream, waiting);
        Some(Due::Prepared(txn))
    }

    /// Takes out this site's touched partitions, for a rendezvous or for a transaction on this site alone.
    pub fn hand_over(&mut self, touched: &TxnPartitions) -> Vec<Handoff> {
        let site = self.site;
        let slots = self.slots.iter_mut();
        let called = slots.filter(|slot| touched.contains(slot.id));
        let taken: Vec<_> = called.map(|slot| slot.hand_over(site)).collect();
        self.away_count += taken.len();
        taken
    }

    /// Takes a partition back, if it is one of this site's.
    pub fn put(&mut self, handoff: Handoff) -> Result<(), Handoff> {
        if handoff.home != self.site {
            return Err(handoff);
        }
        let index = self.index(handoff.partition.id);
        let slot = &mut self.slots[index];
        assert!(slot.partition.is_none(), "a partition is in one place");
        slot.partition = Some(handoff.partition);
        self.away_count -= 1;
        for txn in handoff.done.iter() {
            self.deferred_count -= 1;
            let Some(stream) = txn.stream else {
                let barrier = slot.barrier.take();
                assert!(barrier.is_some_and(|barrier| Arc::ptr_eq(&barrier.txn, txn)));
                continue;
            };
            let waiting = slot.streams.get_mut(&stream);
            let waiting = waiting.expect("its transactions stay until they have run");
            let first = waiting.messages.pop_front();
            assert!(matches!(&first, Some(DeferredMessage::Multi(first)) if Arc::ptr_eq(first, txn)));
            waiting.prepared -= 1;
            if waiting.prepared == 0 {
                slot.ready.push_back(stream);
            }
        }
        if !slot.ready.is_empty() || !slot.deferred.is_empty() {
            self.ready.push_back(index);
        }
        Ok(())
    }

    /// Returns the next message whose turn has come.
    pub fn take_due(&mut self) -> Option<Due> {
        while let Some(&index) = self.ready.front() {
            if self.slots[index].partition.is_some() {
                if let Some(due) = self.take_due_of_streams(index) {
                    return Some(due);
                }
                let slot = &mut self.slots[index];
                if let Some(barrier) = &mut slot.barrier {
                    if !barrier.is_prepared && slot.streams.is_empty() {
                        barrier.is_prepared = true;
                        return Some(Due::Prepared(barrier.txn.clone()));
                    }
                } else if let Some(message) = slot.deferred.pop_front() {
                    self.deferred_count -= 1;
                    if let Some(due) = self.admit(index, message) {
                        return Some(due);
                    }
                    continue;
                }
            }
            self.ready.pop_front(); // the entry has gone, or none of its transactions can run
        }
        None
    }

    /// Returns the next message of a stream whose transactions have run.
    fn take_due_of_streams(&mut self, index: usize) -> Option<Due> {
        let slot = &mut self.slots[index];
        while let Some(&stream) = slot.ready.front() {
            let Entry::Occupied(mut entry) = slot.streams.entry(stream) else {
                slot.ready.pop_front(); // the list holds the stream twice
                continue;
            };
            let waiting = entry.get_mut();
            if let Some(txn) = waiting.prepare_next() {
                return Some(Due::Prepared(txn));
            }
            if waiting.prepared == 0 {
                match waiting.messages.pop_front() {
                    Some(DeferredMessage::Batch(batch)) => {
                        self.deferred_count -= 1;
                        return Some(Due::Run(batch));
                    }
                    Some(DeferredMessage::Multi(_)) => unreachable!("the partition would have been prepared for it"),
                    None => _ = entry.remove(),
                }
            }
            slot.ready.pop_front();
        }
        None
    }
}
