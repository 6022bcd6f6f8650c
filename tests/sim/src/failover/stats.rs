//! Counts of events in runs of failovers.

use crate::run::stats::stats;

stats! {
    FailoverStats:
    seeds, lives, deaths, kills,
    /// Power failures of all nodes at once.
    power_failures,
    pauses, disk_faults, checkpoints, acknowledged, unknown, refused, not_primary, repeats, reads,
    /// Acknowledged by a primary that was alone, under a level that asks for standbys.
    alone,
    switch_overs, forced,
    /// Forced while the old primary went on.
    isolated,
    by_lease, lease_refused, primary_restarts, cuts, begun_anew,
    /// Standbys whose disk was replaced by an older copy.
    restored,
    /// They came beside a standby's first files.
    live_records,
    stuck, deployed_again,
    /// Facts that clients were told, and that the level or a forced promotion gave up.
    lost,
}
