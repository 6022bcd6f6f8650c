//! `auto`, as procedures become slower and faster.

use std::sync::atomic::Ordering;

use super::{Life, Run};
use crate::module::NAME;

impl Run {
    /// Calls take no time, or more than their log does.
    pub(super) fn change_pace(&mut self, world: &Life) {
        let pace_us = [0, 0, 1, 100][self.below(4) as usize];
        world.pace_us.store(pace_us, Ordering::Relaxed);
        self.look_at_choices(world);
    }

    /// Counts the choices of `auto` since the last look.
    pub(super) fn look_at_choices(&mut self, world: &Life) {
        let deployed = world.router().deployed();
        let Some(module) = deployed.current.get(NAME) else {
            return;
        };
        let numbers = 0..module.schema.procedures.len() as u16;
        let is_changes = |number| {
            let (_, why) = world.router().explain_log(module, number);
            why.is_some_and(|why| why.starts_with("physiological"))
        };
        let choices: Vec<_> = numbers.map(is_changes).collect();
        let before = self.choices.iter().chain(std::iter::repeat(&false));
        self.stats.auto_switches += choices.iter().zip(before).filter(|(now, before)| now != before).count() as u64;
        self.choices = choices;
    }
}
