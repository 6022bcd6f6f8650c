//! What happened in runs of failovers, counted.

use crate::run::stats::stats;

stats! {
    FailoverStats:
    seeds, lives, deaths, kills,
    /// Of all nodes at once.
    power_failures,
    pauses, disk_faults, checkpoints, acknowledged, unknown, refused, not_primary, repeats, reads,
    /// Acknowledged by a primary that was alone, under a level that asks for standbys.
    alone,
    switch_overs, forced,
    /// Forced while the old primary went on.
    isolated,
    by_lease, lease_refused, primary_restarts, cuts, begun_anew,
    /// They came beside a standby's first files.
    live_records,
    stuck, deployed_again,
    /// What clients were told, and was given up as the level, or whoever forced it, says.
    lost,
}
