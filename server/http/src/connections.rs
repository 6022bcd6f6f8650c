//! Places of connections: a number for all, a number for each address, and some for probes and control alone. So when one client takes all
//! other places, an operator can still see it and stop it. A connection can't hold one of these last places by saying nothing. A silent
//! connection leaves for the next one that arrives, the longest silent first.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::limits::{LEAVE_WAIT_MAX, PROBE_PLACES, PROBE_PLACES_PER_PEER_MAX};

#[derive(Clone)]
pub struct ConnectionSlots {
    all: Arc<Semaphore>,
    probes: Arc<Semaphore>,
    count: u32,
    per_peer_max: u32,
    taken: Arc<Mutex<ConnectionCounts>>,
    /// Notified when a place for probes is returned.
    left: Arc<Notify>,
}

#[derive(Default)]
struct ConnectionCounts {
    peers: HashMap<IpAddr, PeerConnections>,
    /// Connections with a place for probes that sent no request yet, in the order of their arrival.
    silent: VecDeque<Silent>,
    next_number: u64,
}

struct Silent {
    number: u64,
    peer: IpAddr,
    leave: Arc<Notify>,
}

/// The places that one address holds.
#[derive(Default)]
struct PeerConnections {
    places: u32,
    probes: u32,
}

/// A connection's place, given back with the drop.
pub struct ConnectionSlot {
    /// The probe of a place for probes and control alone.
    probe: Option<Probe>,
    peer: IpAddr,
    places: ConnectionSlots,
    permit: Option<OwnedSemaphorePermit>,
}

struct Probe {
    number: u64,
    leave: Arc<Notify>,
}

impl ConnectionSlots {
    pub fn new(count: u32, per_peer_max: u32) -> Self {
        Self {
            all: Arc::new(Semaphore::new(count as usize)),
            probes: Arc::new(Semaphore::new(PROBE_PLACES as usize)),
            count,
            per_peer_max,
            taken: Arc::default(),
            left: Arc::default(),
        }
    }

    /// Waits until a connection that arrives may have some place.
    pub async fn until_free(&self) {
        if !self.lock().silent.is_empty() {
            return;
        }
        tokio::select! {
            permit = self.all.acquire() => drop(permit),
            permit = self.probes.acquire() => drop(permit),
        }
    }

    /// Takes a place for a connection of `peer`, or one for probes. None if the peer has its share of both, and all of these connections
    /// are being answered.
    pub async fn take(&self, peer: IpAddr) -> Option<ConnectionSlot> {
        let peer = peer.to_canonical();
        loop {
            let place = self.try_take(peer);
            if place.is_some() || !self.ask_to_leave(peer) {
                return place;
            }
            let _ = timeout(LEAVE_WAIT_MAX, self.left.notified()).await; // the caller tries again in both cases
        }
    }

    /// Ends the longest silent connection. If `peer` has its share, it ends one of that peer. False if no connection is silent.
    fn ask_to_leave(&self, peer: IpAddr) -> bool {
        let mut taken = self.lock();
        let has_share = taken
            .peers
            .get(&peer)
            .is_some_and(|held| held.probes >= PROBE_PLACES_PER_PEER_MAX);
        let first = taken.silent.iter().position(|silent| !has_share || silent.peer == peer);
        let silent = first.and_then(|first| taken.silent.remove(first));
        silent.is_some_and(|silent| {
            silent.leave.notify_one();
            true
        })
    }

    fn try_take(&self, peer: IpAddr) -> Option<ConnectionSlot> {
        let mut taken = self.lock();
        let ConnectionCounts {
            peers,
            silent,
            next_number,
        } = &mut *taken;
        let held = peers.entry(peer).or_default();
        let all = (held.places < self.per_peer_max).then(|| self.all.clone().try_acquire_owned().ok());
        let (permit, is_probe) = match all.flatten() {
            Some(permit) => (Some(permit), false),
            None if held.probes < PROBE_PLACES_PER_PEER_MAX => (self.probes.clone().try_acquire_owned().ok(), true),
            None => (None, true),
        };
        match (&permit, is_probe) {
            (Some(_), false) => held.places += 1,
            (Some(_), true) => held.probes += 1,
            (None, _) if held.places + held.probes == 0 => _ = peers.remove(&peer),
            (None, _) => {}
        }
        let permit = permit?;
        let probe = is_probe.then(|| {
            let (number, leave) = (*next_number, Arc::default());
            *next_number += 1;
            silent.push_back(Silent {
                number,
                peer,
                leave: Arc::clone(&leave),
            });
            Probe { number, leave }
        });
        Some(ConnectionSlot {
            probe,
            peer,
            places: self.clone(),
            permit: Some(permit),
        })
    }

    /// Waits until every connection has ended.
    pub async fn until_all_free(&self) {
        let _ = self.all.acquire_many(self.count).await; // the semaphore is never closed
        let _ = self.probes.acquire_many(PROBE_PLACES).await;
    }

    /// Connections that are open.
    pub fn taken(&self) -> usize {
        let free = self.all.available_permits() + self.probes.available_permits();
        (self.count + PROBE_PLACES) as usize - free
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionCounts> {
        self.taken.lock().expect("no code panics under this lock")
    }
}

impl ConnectionSlot {
    /// True for a place for probes and control alone.
    pub fn is_probe(&self) -> bool {
        self.probe.is_some()
    }

    /// Waits until another connection needs the place. It waits for ever if a request has arrived, or if the place is not one for probes.
    pub async fn until_asked_to_leave(&self) {
        match &self.probe {
            Some(probe) => probe.leave.notified().await,
            None => std::future::pending().await,
        }
    }

    /// A request has come: it is answered.
    pub fn begin_answer(&self) {
        if let Some(probe) = &self.probe {
            self.places.lock().silent.retain(|silent| silent.number != probe.number);
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.begin_answer();
        let mut taken = self.places.lock();
        let Some(held) = taken.peers.get_mut(&self.peer) else {
            return;
        };
        match self.is_probe() {
            true => held.probes -= 1,
            false => held.places -= 1,
        }
        if held.places + held.probes == 0 {
            taken.peers.remove(&self.peer);
        }
        self.permit = None;
        drop(taken);
        if self.is_probe() {
            self.places.left.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_address_takes_no_more_than_its_share_and_probes_always_come_in() {
        let places = ConnectionSlots::new(4, 2);
        let [a, b, c] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        let kind = |place: &Option<ConnectionSlot>| place.as_ref().map(ConnectionSlot::is_probe);
        let mut held: Vec<_> = (0..2).map(|_| places.try_take(a)).collect();
        assert!(held.iter().all(|place| kind(place) == Some(false)));
        let probes: Vec<_> = (0..PROBE_PLACES_PER_PEER_MAX).map(|_| places.try_take(a)).collect();
        assert!(probes.iter().all(|place| kind(place) == Some(true)));
        assert_eq!(kind(&places.try_take(a)), None);
        held.extend((0..2).map(|_| places.try_take(b)));
        assert!(held.iter().all(|place| kind(place) == Some(false)));
        let other = places.take(c).await;
        assert_eq!(kind(&other), Some(true), "all places are taken");

        // A connection with a running answer stays; the first of the others leaves.
        probes[0].as_ref().expect("a place").begin_answer();
        let mut probes: Vec<_> = probes.into_iter().flatten().collect();
        let second = probes.remove(1);
        let leaves = tokio::spawn(async move { second.until_asked_to_leave().await });
        assert_eq!(kind(&places.take(a).await), Some(true));
        leaves.await.expect("asked to leave");

        // If all have a running answer, none leaves.
        probes.push(places.take(a).await.expect("the place that was left again"));
        probes.iter().for_each(ConnectionSlot::begin_answer);
        assert_eq!(kind(&places.take(a).await), None);
        drop(held.pop());
        assert_eq!(kind(&places.take(c).await), Some(false));
        drop((held, probes, other));
        assert_eq!(places.taken(), 0);
        let taken = places.lock();
        assert!(taken.peers.is_empty() && taken.silent.is_empty());
    }
}
