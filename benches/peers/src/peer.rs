//! Peers: how their servers are started and filled, how they are loaded, and how their rows are added up.

use std::{path::Path, sync::Arc};

use anyhow::Result;

use crate::{
    calls::Inputs,
    load::{Load, Measured, Way},
};

/// When an acknowledged call survives a power failure: the groups of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Before its answer.
    Commit,
    /// About a second after its answer, at the latest.
    Second,
    /// Never.
    None,
}

impl Durability {
    pub const ALL: [Self; 3] = [Self::Commit, Self::Second, Self::None];

    /// The group's name in a figure.
    pub fn name(self) -> &'static str {
        match self {
            Self::Commit => "durable at each commit",
            Self::Second => "durable within a second",
            Self::None => "not durable",
        }
    }
}

/// Settings of a server's start.
pub struct Start<'a> {
    /// A folder of its own, which exists.
    pub dir: &'a Path,
    pub inputs: &'a Arc<Inputs>,
    pub durability: Durability,
    pub connections: usize,
}

/// A peer whose program or library is on this machine.
pub trait Installed {
    /// The name of its series.
    fn name(&self) -> &'static str;

    /// Name and version, for the figures' captions.
    fn version(&self) -> &str;

    /// The ways in which calls can be sent to it. The first is plain.
    fn ways(&self) -> &'static [Way] {
        &[Way::Plain, Way::Ahead]
    }

    /// True where it has such a durability.
    fn offers(&self, _: Durability) -> bool {
        true
    }

    /// Starts it and fills the tables of the workload.
    ///
    /// # Errors
    /// It did not start, or refused what fills its tables.
    fn start(&self, start: &Start<'_>) -> Result<Box<dyn Running>>;
}

/// A peer with a workload's rows. It ends with this.
pub trait Running {
    /// Runs the load.
    ///
    /// # Errors
    /// A call failed.
    fn run(&mut self, load: &Load, way: Way) -> Result<Measured>;

    /// Adds up its rows, in the order of `Workload::sums`.
    ///
    /// # Errors
    /// The rows can't be read.
    fn totals(&mut self) -> Result<Vec<i64>>;
}

/// A peer that is not on this machine, and the command that installs it.
pub struct Missing {
    pub name: &'static str,
    pub install: &'static str,
}
