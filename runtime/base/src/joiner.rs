//! A server that asks to follow a primary.

use std::sync::Arc;

/// A process on a data directory. It tells two servers of one name apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeProcess {
    /// Identity of the directory.
    pub node: u64,
    /// Starts on that directory in which it took part in replication: a later process has more.
    pub starts: u64,
    /// Drawn by the process: a copy of the directory has another one.
    pub nonce: u64,
}

/// A standby, as it names itself when it asks for a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joiner {
    /// Name in the primary's list.
    pub name: Arc<str>,
    /// None: it does not say, and takes the place of any standby of its name.
    pub process: Option<NodeProcess>,
    /// URL at which clients and other servers reach it, if it knows.
    pub url: Option<Arc<str>>,
}

impl From<&str> for Joiner {
    fn from(name: &str) -> Self {
        Self {
            name: name.into(),
            process: None,
            url: None,
        }
    }
}
