//! Walks at random, deeper than a search comes.

use crate::{
    acts::Act,
    world::{Bounds, Setting, World},
};

/// A step, and its number among steps of the same name.
pub type Choice = (Act, usize);

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

/// Walks `steps` steps. Returns a property that does not hold, and the fewest of these steps that still show it.
pub fn walk(setting: Setting, bounds: Bounds, seed: u64, steps: usize) -> Option<(String, Vec<Choice>)> {
    let mut random = Random(seed);
    let mut world = World::new(setting);
    let mut path = Vec::new();
    for _ in 0..steps {
        let mut next = world.next(setting, bounds);
        if next.is_empty() {
            break;
        }
        let chosen = random.below(next.len());
        let act = next[chosen].act;
        path.push((act, next[..chosen].iter().filter(|other| other.act == act).count()));
        let next = next.swap_remove(chosen);
        if let Some(fault) = next.fault.or_else(|| next.world.fault(setting)) {
            return Some(shrink(setting, bounds, path, fault));
        }
        world = next.world;
    }
    let stays = !world.recovers(setting);
    stays.then(|| ("5: no node can lead any more".into(), path))
}

/// Takes the same steps. Returns the fault to which they lead, if they are possible.
pub fn replay(setting: Setting, bounds: Bounds, path: &[Choice]) -> Option<String> {
    let mut world = World::new(setting);
    for (act, which) in path {
        let next = world
            .next(setting, bounds)
            .into_iter()
            .filter(|next| next.act == *act)
            .nth(*which)?;
        if let Some(fault) = next.fault.or_else(|| next.world.fault(setting)) {
            return Some(fault);
        }
        world = next.world;
    }
    None
}

fn shrink(setting: Setting, bounds: Bounds, mut path: Vec<Choice>, mut fault: String) -> (String, Vec<Choice>) {
    let property = fault[..1].to_owned();
    'again: loop {
        for length in (1..=4).rev() {
            for at in (0..path.len().saturating_sub(length - 1)).rev() {
                let mut fewer = path.clone();
                fewer.drain(at..at + length);
                if let Some(found) = replay(setting, bounds, &fewer).filter(|found| found.starts_with(&property)) {
                    (path, fault) = (fewer, found);
                    continue 'again;
                }
            }
        }
        return (fault, path);
    }
}
