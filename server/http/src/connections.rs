//! Places of connections: so many in all, so many of one address, and some that only probes and control get, so that whoever
//! takes all others can still be seen, and stopped.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::{PROBE_PLACES, PROBE_PLACES_PER_PEER_MAX};

#[derive(Clone)]
pub struct Places {
    all: Arc<Semaphore>,
    probes: Arc<Semaphore>,
    count: u32,
    per_peer_max: u32,
    peers: Arc<Mutex<HashMap<IpAddr, Held>>>,
}

/// What one address holds.
#[derive(Default)]
struct Held {
    places: u32,
    probes: u32,
}

/// A connection's place, given back with the drop.
pub struct Place {
    /// For probes and control alone.
    pub is_probe: bool,
    peer: IpAddr,
    places: Places,
    _permit: OwnedSemaphorePermit,
}

impl Places {
    pub fn new(count: u32, per_peer_max: u32) -> Self {
        Self {
            all: Arc::new(Semaphore::new(count as usize)),
            probes: Arc::new(Semaphore::new(PROBE_PLACES as usize)),
            count,
            per_peer_max,
            peers: Arc::default(),
        }
    }

    /// Waits until a connection that arrives may have some place.
    pub async fn until_free(&self) {
        tokio::select! {
            permit = self.all.acquire() => drop(permit),
            permit = self.probes.acquire() => drop(permit),
        }
    }

    /// A place for a connection of `peer`, or one for probes; none where it has its share of both.
    pub fn take(&self, peer: IpAddr) -> Option<Place> {
        let peer = peer.to_canonical();
        let mut peers = self.lock();
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
        drop(peers);
        permit.map(|permit| Place {
            is_probe,
            peer,
            places: self.clone(),
            _permit: permit,
        })
    }

    /// Waits until every connection has ended.
    pub async fn until_all_free(&self) {
        let _ = self.all.acquire_many(self.count).await; // never closed
        let _ = self.probes.acquire_many(PROBE_PLACES).await;
    }

    /// Connections that are open.
    pub fn taken(&self) -> usize {
        let free = self.all.available_permits() + self.probes.available_permits();
        (self.count + PROBE_PLACES) as usize - free
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Held>> {
        self.peers.lock().expect("no code panics under this lock")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut peers = self.places.lock();
        let Some(held) = peers.get_mut(&self.peer) else {
            return;
        };
        match self.is_probe {
            true => held.probes -= 1,
            false => held.places -= 1,
        }
        if held.places + held.probes == 0 {
            peers.remove(&self.peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_takes_no_more_than_its_share_and_probes_always_come_in() {
        let places = Places::new(4, 2);
        let [a, b, c] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        let kind = |place: &Option<Place>| place.as_ref().map(|place| place.is_probe);
        let mut held: Vec<_> = (0..2).map(|_| places.take(a)).collect();
        assert!(held.iter().all(|place| kind(place) == Some(false)));
        let probes: Vec<_> = (0..PROBE_PLACES_PER_PEER_MAX).map(|_| places.take(a)).collect();
        assert!(probes.iter().all(|place| kind(place) == Some(true)));
        assert_eq!(kind(&places.take(a)), None);
        held.extend((0..2).map(|_| places.take(b)));
        assert!(held.iter().all(|place| kind(place) == Some(false)));
        assert_eq!(kind(&places.take(c)), Some(true), "all places are taken");
        drop(held.pop());
        assert_eq!(kind(&places.take(c)), Some(false));
        drop((held, probes));
        assert_eq!(places.taken(), 0);
        assert!(places.lock().is_empty());
    }
}
