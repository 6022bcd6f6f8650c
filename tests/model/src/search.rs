//! A search through all states, the nearest first.

use std::{
    collections::{HashSet, VecDeque},
    fmt,
    hash::{Hash, Hasher},
    rc::Rc,
    time::{Duration, Instant},
};

use crate::{
    acts::Act,
    world::{Bounds, NODES_MAX, Setting, World},
};

/// The findings of a search.
pub struct Report {
    pub states: usize,
    /// Steps from the first state to the furthest.
    pub depth: usize,
    pub time: Duration,
    /// All states within the bounds were seen.
    pub is_complete: bool,
    /// A property that does not hold, and the steps that lead there.
    pub fault: Option<(String, Vec<Act>)>,
    /// States in which some node leads and may acknowledge.
    pub led: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (states, depth) = (self.states, self.depth);
        let end = if self.is_complete { "all" } else { "so far" };
        write!(
            f,
            "{states} states, {depth} steps deep, {end}, {:.1} s",
            self.time.as_secs_f64()
        )
    }
}

/// Two multiplications a word: a state is known by 128 bits.
#[derive(Default)]
struct Digest(u64, u64);

impl Hasher for Digest {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_u16(&mut self, value: u16) {
        self.write_u64(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.1 = (self.1.rotate_left(41) ^ value ^ (self.0 >> 29)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

fn digest(value: &impl Hash) -> (u64, u64) {
    let mut digest = Digest::default();
    value.hash(&mut digest);
    (digest.0, digest.1)
}

/// A state, and the digests of its hosts.
struct Known {
    world: World,
    hosts: [(u64, u64); NODES_MAX],
}

impl Known {
    fn new(world: World, before: Option<&Self>) -> Self {
        let of_host = |node: usize| match before {
            Some(before) if Rc::ptr_eq(&before.world.hosts[node], &world.hosts[node]) => before.hosts[node],
            _ => digest(&*world.hosts[node]),
        };
        let mut hosts = [(0, 0); NODES_MAX];
        world.nodes().for_each(|node| hosts[node] = of_host(node));
        Self { world, hosts }
    }

    fn digest(&self) -> (u64, u64) {
        digest(&(self.hosts, self.world.around()))
    }
}

/// Searches from the first state on, until a property is broken, all states are known, or the bound is reached.
pub fn search(setting: Setting, bounds: Bounds) -> Report {
    let begun = Instant::now();
    let first = World::new(setting);
    let first = Known::new(first, None);
    let mut known = HashSet::from([first.digest()]);
    // The step that found each state, and from which one.
    let mut found: Vec<(u32, Option<Act>)> = vec![(0, None)];
    let mut queue = VecDeque::from([(first, 0_u32, 0_usize)]);
    let (mut depth, mut led, mut fault) = (0, 0, None);
    let mut is_complete = true;
    'search: while let Some((from, number, steps)) = queue.pop_front() {
        let world = &from.world;
        depth = depth.max(steps);
        led += usize::from(world.nodes().any(|node| world.ackable(setting, node).is_some()));
        for next in world.next(setting, bounds) {
            let fresh = Known::new(next.world, Some(&from));
            if !known.insert(fresh.digest()) {
                continue;
            }
            found.push((number, Some(next.act)));
            let own = (found.len() - 1) as u32;
            if let Some(broken) = next.fault.or_else(|| fresh.world.fault(setting)) {
                fault = Some((broken, path(&found, own)));
                is_complete = false;
                break 'search;
            }
            queue.push_back((fresh, own, steps + 1));
        }
        if known.len() > bounds.states {
            is_complete = false;
            break;
        }
    }
    Report {
        states: known.len(),
        depth,
        time: begun.elapsed(),
        is_complete,
        fault,
        led,
    }
}

fn path(found: &[(u32, Option<Act>)], mut at: u32) -> Vec<Act> {
    let mut acts = Vec::new();
    while let (before, Some(act)) = found[at as usize] {
        acts.push(act);
        at = before;
    }
    acts.reverse();
    acts
}
