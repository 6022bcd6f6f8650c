//! The state of all nodes.

use std::{fmt, rc::Rc};

use reprise_base::{Epoch, Lsn, Safety};
use reprise_failover::{Config, Document, LeaseRecord, Mode, Node, NodeEvent, NodeId, NodeStanding, OpenAs};

use crate::{
    ghost::{Allowed, Ghost},
    mutant::Mutant,
};

/// Nodes of a cluster at most. Node 0 leads at first.
pub const NODES_MAX: usize = 4;
/// Pairs of nodes at most.
const PAIRS_MAX: usize = NODES_MAX * (NODES_MAX - 1) / 2;

/// A setting of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Setting {
    pub level: Safety,
    pub has_lease: bool,
    pub nodes: usize,
    pub mutant: Option<Mutant>,
}

const fn setting(level: Safety, has_lease: bool) -> Setting {
    Setting {
        level,
        has_lease,
        nodes: 3,
        mutant: None,
    }
}

/// Every level, without a lease and with one.
pub const SETTINGS: [Setting; 8] = [
    setting(Safety::OneSafe, false),
    setting(Safety::OneSafe, true),
    setting(Safety::TwoSafe, false),
    setting(Safety::TwoSafe, true),
    setting(Safety::Quorum, false),
    setting(Safety::Quorum, true),
    setting(Safety::VerySafe, false),
    setting(Safety::VerySafe, true),
];

/// Four nodes, where the standbys that acknowledge a write need not be those that stay once others are forgotten.
pub const LARGE_SETTINGS: [Setting; 2] = [
    Setting {
        nodes: 4,
        ..setting(Safety::Quorum, false)
    },
    Setting {
        nodes: 4,
        ..setting(Safety::Quorum, true)
    },
];

impl Setting {
    /// Whether this mutant is armed.
    pub fn is(self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lease = if self.has_lease {
            "with a lease"
        } else {
            "without a lease"
        };
        write!(f, "{} nodes, {} {lease}", self.nodes, self.level)
    }
}

/// How far it is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Entries that are written.
    pub entries: u8,
    /// Crashes, cuts of the network, answers of the store that are lost, leases that run out.
    pub faults: u8,
    /// Acts of an operator.
    pub acts: u8,
    /// Reigns.
    pub epochs: u32,
    /// States, after which the search ends.
    pub states: usize,
}

/// A record of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    pub epoch: Epoch,
    /// Unlike that of all other entries.
    pub serial: u8,
}

/// A server, or its data directory where it is down.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    pub node: Option<Node>,
    /// The durable document, then the documents that may be on the disk.
    pub disk: Vec<Document>,
    pub log: Vec<Entry>,
    /// Entries that are durable.
    pub durable: usize,
    /// The epoch of the primary whose history its log has.
    pub aligned: Option<Epoch>,
    /// Its primary heard it lately, so the primary has not gone on without it.
    pub is_heard: bool,
    /// The reports of each standby, each with its epoch: the commit path goes by them.
    pub reported: [(Epoch, usize); NODES_MAX],
}

impl Host {
    pub fn end(&self) -> Lsn {
        Lsn(self.log.len() as u64)
    }

    /// Entries that two logs have alike from their beginning on.
    pub fn fork(&self, other: &Self) -> usize {
        self.log.iter().zip(&other.log).take_while(|(a, b)| a == b).count()
    }

    /// Returns the epoch in which the node is the primary for certain.
    pub fn leads_in(&self) -> Option<Epoch> {
        let node = self.node.as_ref().filter(|node| node.leads())?;
        match &node.durable().standing {
            NodeStanding::Primary(reign) => Some(reign.epoch),
            _ => None,
        }
    }
}

/// The store of leases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Store {
    pub holder: Option<NodeId>,
    pub record: Option<LeaseRecord>,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub hosts: Vec<Rc<Host>>,
    pub store: Store,
    /// Pairs that do not reach each other, by `pair`.
    pub cuts: [bool; PAIRS_MAX],
    pub faults: u8,
    pub acts: u8,
    pub written: u8,
    pub ghost: Ghost,
}

pub fn id(node: usize) -> NodeId {
    NodeId(node as u64 + 1)
}

pub fn index(node: NodeId) -> usize {
    node.0 as usize - 1
}

/// Returns the number of the connection between two nodes.
pub fn pair(a: usize, b: usize) -> usize {
    let (low, high) = (a.min(b), a.max(b));
    high * (high - 1) / 2 + low
}

impl World {
    /// Node 0 has led for a while, and the others are in sync with it.
    pub fn new(setting: Setting) -> Self {
        let host = |node: usize| {
            let document = match node {
                0 => Document::first(setting.level),
                _ => Document::standby(setting.level),
            };
            Host {
                node: None,
                disk: vec![document],
                log: Vec::new(),
                durable: 0,
                aligned: None,
                is_heard: false,
                reported: [(Epoch::default(), 0); NODES_MAX],
            }
        };
        let mut world = Self {
            hosts: (0..setting.nodes).map(|node| Rc::new(host(node))).collect(),
            store: Store::default(),
            cuts: [false; PAIRS_MAX],
            faults: 0,
            acts: 0,
            written: 0,
            ghost: Ghost::default(),
        };
        for node in world.nodes() {
            let open_as = if node == 0 { OpenAs::Primary } else { OpenAs::Standby };
            world.open(setting, node, open_as);
        }
        world.settle(setting);
        world
    }

    pub fn nodes(&self) -> std::ops::Range<usize> {
        0..self.hosts.len()
    }

    /// Returns each pair of nodes.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        self.nodes().flat_map(|b| (0..b).map(move |a| (a, b)))
    }

    pub fn host_mut(&mut self, node: usize) -> &mut Host {
        Rc::make_mut(&mut self.hosts[node])
    }

    /// Returns all but the hosts.
    pub fn around(&self) -> impl std::hash::Hash + '_ {
        (
            &self.store,
            self.cuts,
            self.faults,
            self.acts,
            self.written,
            &self.ghost,
        )
    }

    pub fn reach(&self, a: usize, b: usize) -> bool {
        !self.cuts[pair(a, b)]
    }

    /// Opens the data directory of a host that is down.
    pub fn open(&mut self, setting: Setting, node: usize, open_as: OpenAs) {
        let host = self.host_mut(node);
        let config = Config {
            id: id(node),
            level: setting.level,
            has_lease: setting.has_lease,
        };
        let document = host.disk[0].clone();
        let end = host.end();
        host.node = Node::open(config, document, open_as, end).ok();
        self.note_saves(node);
    }

    /// Whatever the node wants to be saved may be on the disk from now on.
    fn note_saves(&mut self, node: usize) {
        let host = self.host_mut(node);
        let Some(running) = &host.node else { return };
        if host
            .disk
            .last()
            .is_some_and(|last| last.version != running.document().version)
        {
            host.disk.push(running.document().clone());
        }
    }

    /// Has a node take an event. False: it refused, or nothing came of it.
    pub fn feed(&mut self, node: usize, event: NodeEvent) -> bool {
        let Some(running) = &mut self.host_mut(node).node else {
            return false;
        };
        if running.on(event).is_err() {
            return false;
        }
        self.note_saves(node);
        self.note_decision(node);
        true
    }

    /// The document that was written last is durable.
    pub fn save(&mut self, node: usize) {
        let host = self.host_mut(node);
        let Some(document) = host.disk.pop() else { return };
        host.disk = vec![document.clone()];
        self.feed(node, NodeEvent::Saved(document));
    }

    fn note_decision(&mut self, node: usize) {
        let Some(running) = &self.hosts[node].node else { return };
        if let NodeStanding::Claiming {
            epoch,
            allowed: Some(lost),
            follower,
        } = &running.document().standing
        {
            let status = follower.status.as_ref();
            let members = status.map(|status| status.current.iter().collect()).unwrap_or_default();
            let is_blind = matches!(running.mode(), Mode::Promoting(promotion) if promotion.request.given.is_some());
            let allowed = Allowed {
                epoch: *epoch,
                members,
                lost_from: lost.map(|lost| lost.from.map_or(0, |from| from.0 as usize)),
                is_blind,
            };
            self.ghost.note(allowed);
        }
    }
}
