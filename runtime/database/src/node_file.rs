//! The document of a node: its identity, its part in the cluster and what it knows of the others. Stored in one file and replaced whole.

use std::sync::{Arc, Mutex, MutexGuard};

use reprise_base::{Epoch, Lsn, NodeProcess, Role, Safety, check_node_name};
use reprise_env::{Disk, DiskError, DiskErrorKind, entropy};
use reprise_failover::NodeId;
use reprise_log::parse_segment_name;
use serde::{Deserialize, Serialize};

use crate::{
    config::{DatabaseConfig, check},
    cutting::{self, Leadership},
    device::NvramInUse,
    environment::Environment,
    error::OpenError,
    hand_over::HandedOver,
    membership::{MemberAddress, MemberAnswer, StoredMember},
    promising::StoredPromise,
    small_file,
    sync_status::{StoredStatus, forget_log},
};

/// Name of the file in the data directory.
pub const NODE_NAME: &str = "node.json";
/// Number of the document's format. Others are refused.
const FORMAT: u32 = 6;

/// Fitness of a directory's rows and log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DirHealth {
    #[default]
    Good,
    /// The tables of this standby were not those of its primary. The text says where.
    TablesDiffer(String),
    /// A rewind left no log that can be used: the standby fetches its first files again. The text says why.
    MustBootstrap(String),
}

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeDocument {
    format: u32,
    /// Grows with each save.
    version: u64,
    /// Identity of the data directory in hexadecimal digits. A start draws it, and the first save keeps it. A restored backup draws another one.
    pub node: String,
    /// Starts in which the node took part in replication.
    pub starts: u64,
    pub health: DirHealth,
    /// Safety level of the cluster: the first primary with a level sets it, and each primary tells its standbys. None: none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    safety: Option<String>,
    /// Id of the NVRAM region that the directory used last, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) region: Option<String>,
    /// Highest epoch of another primary that a member told when this node was to start as the primary; 0: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) told_epoch: u32,
    /// Highest epoch for which this node asked its peers for promises; 0: none. A withdrawal of an earlier question may still come to them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) asked: u32,
    /// The epochs that this node led, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) led: Option<Leadership>,
    /// The standbys of this node, as it knew them when it led last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) members: Vec<StoredMember>,
    /// The node began to follow a primary, and has not led since. Another node may lead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) follows: bool,
    /// The primary's last word on the sync set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<StoredStatus>,
    /// The promises that this node gave, the lowest epoch first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) promises: Vec<StoredPromise>,
    /// This node gave its place away, and has not led since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) handed_over: Option<HandedOver>,
}

impl NodeDocument {
    pub fn identity(&self) -> &str {
        match self.node.is_empty() {
            true => "none yet",
            false => &self.node,
        }
    }

    /// Returns the epoch with this count that the node writes.
    pub(crate) fn own_epoch(&self, count: u32) -> Epoch {
        epoch_of(&self.node, count)
    }

    /// Returns the safety level of the cluster.
    pub fn safety(&self) -> Option<Safety> {
        Safety::from_name(self.safety.as_ref()?)
    }

    /// Records the safety level of the cluster. A primary without a level tells none.
    pub(crate) fn record_safety(&mut self, level: Safety) {
        if level >= Safety::OneSafe {
            self.safety = Some(level.name().to_owned());
        }
    }

    /// Forgets the level with the log: the next primary tells its own.
    pub(crate) fn forget_safety(&mut self) {
        self.safety = None;
    }

    /// Describes the part of the node in its cluster.
    pub fn part(&self) -> String {
        let promise = self.promises.last().map(|promise| format!("; {}", promise.describe()));
        let part = match (&self.handed_over, &self.status, &self.led) {
            (Some(handed_over), ..) => format!(
                "it gave its place to {} in epoch {}, at LSN {}",
                handed_over.successor, handed_over.epoch, handed_over.lsn
            ),
            (None, Some(status), _) => status.describe(),
            (None, None, Some(led)) => led.describe(),
            (None, None, None) => "it knows of no other server".to_owned(),
        };
        part + &promise.unwrap_or_default()
    }

    /// Describes the standbys that the node knows.
    pub fn members(&self) -> impl Iterator<Item = String> {
        self.members.iter().map(StoredMember::describe)
    }

    /// Returns the members that a start as the primary asks whether another server leads. Empty if such a start is refused without that.
    pub fn members_to_ask(&self) -> Vec<MemberAddress> {
        if self.handed_over.is_some() || self.follows {
            return Vec::new();
        }
        self.members.iter().filter_map(StoredMember::address).collect()
    }

    fn check_answers(&self, answers: &[MemberAnswer]) -> Result<(), OpenError> {
        let own = self.own_epoch(0);
        let is_rival = |answer: &&MemberAnswer| match &self.led {
            Some(led) => led.is_rival(answer.epoch, own),
            None => answer.epoch.count() > 0,
        };
        let Some(later) = answers
            .iter()
            .filter(is_rival)
            .max_by_key(|answer| (answer.is_primary, answer.epoch.count()))
        else {
            return Ok(());
        };
        Err(OpenError::AnotherLeads {
            name: later.member.name.clone(),
            url: later.member.url.clone(),
            part: if later.is_primary {
                "leads"
            } else {
                "has records of a primary"
            },
            epoch: later.epoch,
            primary: match (later.is_primary, &later.primary) {
                (false, Some(primary)) => primary.clone(),
                (false, None) => "URL".to_owned(),
                (true, _) => later.member.url.clone(),
            },
        })
    }

    /// True if the node led last, and has followed no primary since. Its log may have acknowledged records that no other log has.
    pub fn is_primary(&self) -> bool {
        let has_log = self.health == DirHealth::Good;
        has_log && self.led.is_some() && self.handed_over.is_none() && !self.follows
    }

    /// Describes a start that names no primary.
    pub fn as_primary(&self, has_log: bool) -> String {
        match (&self.health, &self.handed_over) {
            (DirHealth::TablesDiffer(_), _) => "is refused: its tables were not its primary's".to_owned(),
            (DirHealth::MustBootstrap(_), _) => "is refused: it has no log that can be used".to_owned(),
            (DirHealth::Good, Some(handed_over)) => {
                format!("is refused: it gave its place to {}", handed_over.successor)
            }
            (DirHealth::Good, None) if self.follows => {
                "is refused: it is a standby's directory. With a lease, the lease decides".to_owned()
            }
            (DirHealth::Good, None) if !has_log => "makes a new database".to_owned(),
            (DirHealth::Good, None) => "leads, in a new epoch. With a lease, the lease decides".to_owned(),
        }
    }

    /// Describes a start that names a primary.
    pub fn as_standby(&self, has_log: bool) -> String {
        match &self.health {
            DirHealth::TablesDiffer(_) => "is refused: its tables were not its primary's".to_owned(),
            DirHealth::MustBootstrap(_) => {
                "removes the log and the checkpoints, and fetches the first files".to_owned()
            }
            DirHealth::Good if !has_log => "fetches the first files".to_owned(),
            DirHealth::Good => "cuts off what the primary does not have, keeps that aside, and follows".to_owned(),
        }
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let document: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if document.format != FORMAT {
            return Err(format!(
                "it has format {}, and this program reads format {FORMAT}",
                document.format
            ));
        }
        document
            .members
            .iter()
            .try_for_each(|member| check_node_name(&member.name))?;
        if let Some(status) = &document.status {
            status.check()?;
        }
        if let (Some(name), None) = (&document.safety, document.safety()) {
            return Err(format!("{name:?} is no safety level"));
        }
        Ok(document)
    }
}

/// The document of one data directory, in memory and on its disk.
pub struct NodeFile {
    root: Arc<dyn Disk>,
    /// The newest document that is durable for certain.
    durable: Mutex<NodeDocument>,
    /// Held for a whole save. True: a save failed, so the file may hold a newer document than `durable`.
    saving: Mutex<bool>,
}

impl NodeFile {
    /// Reads the document of a directory; a directory without the file has an empty one.
    ///
    /// # Errors
    /// The file can't be read, is damaged, or has another format. No part of the directory is known then.
    pub fn open(root: Arc<dyn Disk>) -> Result<Arc<Self>, OpenError> {
        let bytes = small_file::read(&*root, NODE_NAME)?;
        let document = bytes.map_or(Ok(NodeDocument::default()), |bytes| NodeDocument::parse(&bytes));
        let document = document.map_err(|reason| OpenError::NodeUnknown { reason })?;
        Ok(Arc::new(Self::of(root, document)))
    }

    /// Does as `open` for a directory that is only read: a document that can't be read counts as an empty one.
    pub fn open_to_read(root: Arc<dyn Disk>) -> Arc<Self> {
        match Self::open(root.clone()) {
            Ok(file) => file,
            Err(_) => Arc::new(Self::of(root, NodeDocument::default())),
        }
    }

    fn of(root: Arc<dyn Disk>, document: NodeDocument) -> Self {
        Self {
            root,
            durable: Mutex::new(document),
            saving: Mutex::new(false),
        }
    }

    /// Draws the identity of a directory that has none, so that its first epochs carry it. The next save keeps it.
    fn draw_identity(&self) -> Result<(), DiskError> {
        let mut document = self.lock();
        if document.node.is_empty() {
            document.node = format!("{:016x}", draw()?);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, NodeDocument> {
        self.durable.lock().expect("held for a copy or a store")
    }

    /// Returns the newest durable document.
    pub fn document(&self) -> NodeDocument {
        self.lock().clone()
    }

    /// Returns what `read` finds in the newest durable document.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&NodeDocument) -> R) -> R {
        read(&self.lock())
    }

    /// Replaces the document with the result of `change`. It is durable at the end. Meanwhile other readers use the old one.
    ///
    /// # Errors
    /// The file can't be written. The old document counts, and the file may hold either one.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut NodeDocument) -> R) -> Result<R, DiskError> {
        let mut is_unsure = self.saving.lock().expect("nothing panics while it saves");
        let before = self.document();
        let mut next = before.clone();
        let changed = change(&mut next);
        if next == before && !*is_unsure {
            return Ok(changed);
        }
        if next.node.is_empty() {
            next.node = format!("{:016x}", draw()?);
        }
        (next.format, next.version) = (FORMAT, before.version + 1);
        let text = serde_json::to_vec_pretty(&next).expect("names, texts and numbers");
        *is_unsure = true;
        small_file::replace(&*self.root, NODE_NAME, &text)?;
        *is_unsure = false;
        *self.lock() = next;
        Ok(changed)
    }

    /// Begins a process that takes part in replication, and returns it. The document counts its start.
    ///
    /// # Errors
    /// The document can't be saved, or no number can be drawn.
    pub fn begin_process(&self) -> Result<NodeProcess, DiskError> {
        let starts = self.change(|document| {
            document.starts += 1;
            document.starts
        })?;
        let node = self.read(|document| u64::from_str_radix(&document.node, 16).unwrap_or_default());
        Ok(NodeProcess {
            node,
            starts,
            nonce: draw()?,
        })
    }

    /// Returns an empty document for a directory whose own one can't be read. It is saved with the first change.
    pub fn replace(root: Arc<dyn Disk>) -> Arc<Self> {
        let file = Self::of(root, NodeDocument::default());
        *file.saving.lock().expect("nobody has it yet") = true;
        Arc::new(file)
    }

    /// Checks by the answers of the members whether this node may lead again: a standby may have been promoted since it led last. If so, the
    /// document keeps the epoch, so that an operator who has this node lead all the same gets a later one.
    ///
    /// # Errors
    /// A member leads in an epoch that is later or was taken beside this node, or has records of such an epoch's primary. Or this node can't save
    /// the document.
    pub fn check_answers(&self, answers: &[MemberAnswer]) -> Result<(), OpenError> {
        let checked = self.read(|document| document.check_answers(answers));
        if checked.is_err() {
            let highest = answers.iter().map(|answer| answer.epoch.count()).max().unwrap_or(0);
            self.change(|document| document.told_epoch = document.told_epoch.max(highest))?;
        }
        checked
    }

    /// Records that a start without a primary leads, in a new epoch, whatever another node may have answered.
    pub fn make_primary(&self) -> Result<(), DiskError> {
        self.change(|document| {
            let heard = document.status.as_ref().map_or(0, |status| status.epoch);
            // The successor's epoch, if it took over, was the next one.
            let handed_over = document
                .handed_over
                .take()
                .map_or(0, |handed_over| handed_over.epoch.saturating_add(1));
            let promised = std::mem::take(&mut document.promises);
            let promised = promised.last().map_or(0, StoredPromise::next_count);
            let answered = std::mem::take(&mut document.told_epoch);
            cutting::retire_epochs(document, heard.max(handed_over).max(promised).max(answered));
            (document.status, document.follows) = (None, false);
            document.members.iter_mut().for_each(StoredMember::forget_address);
        })
    }

    /// Records that the log and the checkpoints of this directory go. They go after that.
    pub fn begin_again(&self, why: &str) -> Result<(), DiskError> {
        self.change(|document| {
            forget_log(document);
            document.health = DirHealth::MustBootstrap(why.to_owned());
        })
    }

    /// Returns the epoch with this count that the node writes.
    pub(crate) fn own_epoch(&self, count: u32) -> Epoch {
        self.read(|document| document.own_epoch(count))
    }

    /// Records whether the rows and the log of the directory can be used.
    pub fn set_health(&self, health: DirHealth) -> Result<(), DiskError> {
        self.change(|document| document.health = health)
    }

    pub fn health(&self) -> DirHealth {
        self.read(|document| document.health.clone())
    }
}

/// Returns the epoch with this count that the node with this identity writes. A node without an identity has the writer 0.
pub(crate) fn epoch_of(node: &str, count: u32) -> Epoch {
    let node = u64::from_str_radix(node, 16).unwrap_or_default();
    Epoch::new(count, NodeId(node).writer())
}

/// The part for which a directory is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectoryUse {
    Primary,
    /// Opens a standby's directory too: a lease decides whether it leads, or it takes no calls.
    AnyPrimary,
    /// Opens a primary's directory to replay its log and take a checkpoint. Afterwards the directory has the same part in its cluster.
    Recovery,
    Standby,
    ReadOnly,
}

impl DirectoryUse {
    pub fn role(self) -> Role {
        match self {
            Self::Primary | Self::AnyPrimary | Self::Recovery => Role::Primary,
            Self::Standby => Role::Standby,
            Self::ReadOnly => Role::ReadOnly,
        }
    }
}

/// Checks the configuration, and returns the document of the directory.
///
/// # Errors
/// The document says that the directory is not to be opened in this role, or it can't be read.
pub(crate) fn check_opening(
    config: &DatabaseConfig,
    around: &Environment,
    part: DirectoryUse,
) -> Result<Option<Arc<NodeFile>>, OpenError> {
    let role = part.role();
    check(config)?;
    let Some(root) = around.folders.as_ref().map(|folders| folders.root.clone()) else {
        return Ok(None);
    };
    if role == Role::ReadOnly {
        return Ok(Some(NodeFile::open_to_read(root)));
    }
    let node = NodeFile::open(root)?;
    node.draw_identity()?;
    let document = node.document();
    match (document.health, document.handed_over) {
        (DirHealth::TablesDiffer(what), _) => Err(OpenError::Differs { what }),
        (DirHealth::MustBootstrap(why), _) if role == Role::Primary => Err(OpenError::MustBootstrap { why }),
        (_, Some(handed_over)) if role == Role::Primary => Err(OpenError::SteppedDown {
            successor: handed_over.successor,
            url: handed_over.url,
            lsn: Lsn(handed_over.lsn),
        }),
        _ if document.follows && part == DirectoryUse::Primary => Err(OpenError::IsStandby),
        _ if document.follows && part == DirectoryUse::Recovery => Err(OpenError::RecoverStandby),
        _ if document.follows && role == Role::Primary && !has_log(around)? => Err(OpenError::MustBootstrap {
            why: "it is a standby's, and its log is gone".to_owned(),
        }),
        _ => Ok(Some(node)),
    }
}

fn has_log(around: &Environment) -> Result<bool, DiskError> {
    let files = around
        .folders
        .as_ref()
        .map_or(Ok(Vec::new()), |folders| folders.log.list())?;
    Ok(files.iter().any(|name| parse_segment_name(name).is_some()))
}

/// Records the NVRAM region that the directory uses from now on.
pub(crate) fn record_region(node: Option<&Arc<NodeFile>>, nvram: Option<&NvramInUse>) -> Result<(), DiskError> {
    let (Some(node), Some(nvram)) = (node, nvram) else {
        return Ok(());
    };
    let region_id = nvram.region_id()?;
    node.change(|document| document.region = region_id)
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn draw() -> Result<u64, DiskError> {
    let drawn: [u8; 8] = entropy().map_err(|error| {
        let message = format!("no number can be drawn: {error}");
        DiskError::new("write", NODE_NAME, DiskErrorKind::Io, &message)
    })?;
    Ok(u64::from_le_bytes(drawn))
}

#[cfg(test)]
mod tests {
    use reprise_env::{SimDisk, sim::FaultPlan};

    use super::*;

    fn open(disk: &SimDisk) -> Result<Arc<NodeFile>, OpenError> {
        NodeFile::open(Arc::new(disk.clone()))
    }

    #[test]
    fn document_reads_back_and_keeps_its_identity() {
        let disk = SimDisk::new();
        let file = open(&disk).expect("an empty one");
        assert_eq!(file.document(), NodeDocument::default());
        file.change(|_| ()).expect("nothing to save");
        assert!(disk.bytes(NODE_NAME).is_none());
        file.set_health(DirHealth::TablesDiffer("t".into())).expect("saved");
        let node = file.document().node;
        assert_eq!(node.len(), 16);
        let again = open(&disk).expect("read");
        assert_eq!(again.document(), file.document());
        again.set_health(DirHealth::Good).expect("saved");
        let document = open(&disk).expect("read").document();
        assert_eq!((&document.node, document.version), (&node, 2));
        let (first, second) = (again.begin_process(), again.begin_process());
        let (first, second) = (first.expect("saved"), second.expect("saved"));
        assert_eq!(format!("{:016x}", first.node), node);
        assert_eq!((first.node, first.starts, second.starts), (second.node, 1, 2));
        assert_ne!(first.nonce, second.nonce);
    }

    #[test]
    fn node_follows_until_it_begins_to_lead_or_an_operator_has_it_lead() {
        let file = open(&SimDisk::new()).expect("an empty one");
        let begin_leading = || file.change(|document| _ = cutting::begin_leading(document, 3));
        let leads: [&dyn Fn() -> Result<(), DiskError>; 3] = [
            &|| cutting::keep_level(&file, Safety::TwoSafe, 2),
            &begin_leading,
            &|| file.make_primary(),
        ];
        for lead in leads {
            file.change(|document| document.follows = true).expect("saved");
            assert!(file.document().as_primary(true).contains("a standby's directory"));
            lead().expect("saved");
            assert!(file.document().as_primary(true).contains("leads, in a new epoch"));
        }
    }

    #[test]
    fn start_is_refused_by_a_member_that_knows_a_later_epoch_and_the_next_leader_takes_one_behind_it() {
        let disk = SimDisk::new();
        let file = open(&disk).expect("an empty one");
        cutting::keep_level(&file, Safety::TwoSafe, 4).expect("saved");
        cutting::keep_level(&file, Safety::Quorum, 6).expect("started again out of reach, at another level");
        let own = file.own_epoch(0);
        let of = |writer, (is_primary, count)| MemberAnswer {
            epoch: Epoch::new(count, writer),
            member: MemberAddress {
                name: "b".into(),
                url: "http://b:1".into(),
            },
            is_primary,
            primary: Some("http://c:1".into()),
        };
        let ours = |count| of(own.writer(), (false, count));
        let other = |is_primary, count| of(!own.writer(), (is_primary, count));
        for (answers, refused) in [
            (vec![], None),
            // This node took the place of a primary of epoch 3.
            (vec![ours(6), ours(4), other(false, 3), other(true, 3)], None),
            (vec![ours(6), other(true, 6)], Some("b at http://b:1 leads in epoch 6")),
            // It was promoted before this node began its last epochs.
            (vec![other(true, 5)], Some("leads in epoch 5")),
            (vec![other(false, 5)], Some("has records of a primary in epoch 5")),
            (vec![other(false, 6)], Some("has records of a primary in epoch 6")),
            (vec![other(false, 7)], Some("--standby-of http://c:1.")),
            (vec![other(false, 8), other(true, 7)], Some("leads in epoch 7")),
            // This directory is an old copy.
            (vec![ours(7)], Some("has records of a primary in epoch 7")),
        ] {
            let message = file.check_answers(&answers).err().map(|error| error.to_string());
            match (&message, refused) {
                (None, None) => {}
                (Some(message), Some(part)) => assert!(message.contains(part), "{message}"),
                _ => panic!("{answers:?}: {message:?}"),
            }
        }
        let document = open(&disk).expect("read").document();
        assert_eq!(document.told_epoch, 8);
        file.make_primary().expect("saved");
        assert_eq!(cutting::unused_count(&file), 9);
        assert_eq!(file.document().told_epoch, 0);
        // The operator chose: the other primary is replaced.
        cutting::keep_level(&file, Safety::Quorum, 9).expect("saved");
        file.check_answers(&[other(true, 7)]).expect("this node leads");
        let promoted = file.change(|document| cutting::begin_leading(document, 12));
        assert_eq!(promoted, Ok(12));
        cutting::keep_level(&file, Safety::Quorum, 12).expect("saved");
        file.check_answers(&[other(true, 11)])
            .expect("a promotion replaces the primary before");
        file.check_answers(&[other(true, 12)]).expect_err("another promotion");
    }

    #[test]
    fn a_directory_that_gets_first_files_is_a_standbys() {
        let disk = SimDisk::new();
        let file = open(&disk).expect("an empty one");
        crate::forget_earlier_log(&file).expect("saved");
        assert!(
            open(&disk).expect("read").document().follows,
            "a start without a primary is refused"
        );
    }

    #[test]
    fn garbage_and_later_formats_are_refused_but_for_reading() {
        let disk = SimDisk::new();
        for (text, what) in [
            ("{", "EOF"),
            (
                r#"{"format":7,"version":1,"node":"0","starts":0,"health":"good"}"#,
                "format 7",
            ),
            (
                r#"{"format":6,"version":1,"node":"0","starts":0,"health":"good","members":
                [{"name":"a/b","lsn":1,"persisted":1,"in_sync":false,"counted":false}]}"#,
                "letters, digits",
            ),
            (
                r#"{"format":6,"version":1,"node":"0","starts":0,"health":"good","safety":"3-safe"}"#,
                "no safety level",
            ),
        ] {
            small_file::replace(&disk, NODE_NAME, text.as_bytes()).expect("written");
            let error = open(&disk).err().expect("refused").to_string();
            assert!(error.contains(what) && error.contains(NODE_NAME), "{error}");
            let file = NodeFile::open_to_read(Arc::new(disk.clone()));
            assert_eq!(file.document(), NodeDocument::default());
        }
    }

    #[test]
    fn failed_save_leaves_the_old_document_and_the_next_one_is_written_for_certain() {
        let disk = SimDisk::new();
        let file = open(&disk).expect("an empty one");
        file.set_health(DirHealth::MustBootstrap("a".into())).expect("saved");
        let before = file.document();
        disk.set_faults(FaultPlan {
            read_only: true,
            ..FaultPlan::default()
        });
        file.set_health(DirHealth::Good).expect_err("no room");
        assert_eq!(file.document(), before);
        disk.set_faults(FaultPlan::default());
        file.set_health(before.health.clone()).expect("saved");
        assert_eq!(open(&disk).expect("read").health(), before.health);
    }
}
