//! Counts of events in a run.

macro_rules! stats {
    ($stats:ident: $($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts of events.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $stats { $($(#[$doc])* pub $name: u64),* }
        impl $stats {
            pub fn add(&mut self, other: &Self) { $(self.$name += other.$name;)* }
            pub fn list(&self) -> Vec<(&'static str, u64)> { vec![$((stringify!($name), self.$name)),*] }
        }
    };
}
pub(crate) use stats;

stats! {
    Stats:
    seeds, lives, calls, commits, repeats, steps, crashes, closes, checkpoints, loaded_checkpoints, passed_over,
    released_logs, harms, refusals, log_failures, full_disks, refused_calls, checks, upgrades, torn_tails,
    auto_switches, backups, failed_backups, verified_backups, restores, divergences, quarantines,
    /// Crashes of lives whose changes went to NVRAM as they were made.
    inserted_crashes,
    /// Lives whose standby gets the other form.
    shipped_apart,
    ended, standbys, standby_checks, standby_restarts, promotions, failovers, deposed, cuts,
}
