//! Harness of the process tests: their load, and their checks of the rows.
//! Owns: the load that every test puts on a server, its record of the answers, mounts for full and read-only disks, hosts in network
//! namespaces whose wires can be cut, control groups with little memory.
//! Does not: start processes or speak HTTP itself (`reprise-test-crash` does).
//! Invariants: a mount ends with its handle; a write that a test recorded as refused must never be seen again.
//! Called by: the tests beside it; `cargo xtask full`; `cargo xtask plans`; `cargo xtask life`.

mod cluster;
mod forge;
mod full;
mod group;
mod life;
mod load;
mod look;
mod mount;
mod network;
mod openings;
mod plans;
mod verbs;

pub use cluster::{Cluster, refusal};
pub use forge::{forge_args, forge_migration, forge_stand_in};
pub use full::{FullReport, run_full};
pub use group::Group;
pub use life::{LifeReport, run_life};
pub use load::{Load, Tally, open_accounts, prepare};
pub use look::{balance, check, check_by_promtool, snapshot, verify};
pub use mount::{Mount, fill};
pub use network::Network;
pub use openings::{
    Headers, Openings, PATIENCE, durable_lsn, is_awaited, lsn, open_until_known, promote, replication, take_checkpoint,
    wait_reached,
};
pub use plans::{PlansConfig, PlansReport, run_plans};
pub use verbs::{json_of, refused, replication_status, status_of, switch_over};
