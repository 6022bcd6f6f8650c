//! Rewinds a directory that has records which its new primary lacks. It keeps a copy of these records, then cuts them off, before the
//! directory is opened.

use std::sync::Arc;

use reprise_backup::{DirHandle, DirTree, StagingDir, StagingError};
use reprise_base::{Epoch, Lsn, Safety};
use reprise_checkpoint::{CheckpointError, Checkpoints};
use reprise_env::{Disk, DiskError};
use reprise_log::{EpochStart, LogError, LogOutline, Position};
use reprise_router::CutRecords;
use reprise_ship::{ForkAnswer, Member, committed_by, waits_for_each};
use serde::{Deserialize, Serialize};

use crate::{
    device::RegionNote,
    membership,
    membership::StoredMember,
    node_file::{DirHealth, NodeDocument, NodeFile},
    shown_limit, small_file,
};

/// The file that describes the records in the directory of a cut.
const CUT_NAME: &str = "cut.json";
/// Number of points at which the histories are compared at most.
const QUESTIONS_MAX: usize = 64;

/// Records that were cut off, in a directory of their own with a readable log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutInfo {
    /// Name of the directory.
    pub name: String,
    /// Count of the epoch of the last record that was cut.
    pub epoch: u32,
    /// Writer of that epoch.
    pub writer: u16,
    /// LSN of the first record that was cut.
    pub from: u64,
    /// Behind the last one.
    pub to: u64,
    /// A write among the records may have been answered as committed. Its level was 1-safe, or the primary was alone, or the standby may not be the
    /// promoted one.
    pub acknowledged: bool,
    /// Time of the cut, in microseconds since 1970.
    pub cut_us: i64,
}

impl CutInfo {
    pub(crate) fn to_records(&self) -> CutRecords {
        CutRecords {
            name: self.name.clone(),
            epoch: Epoch::new(self.epoch, self.writer),
            from: Lsn(self.from),
            to: Lsn(self.to),
            may_be_acknowledged: self.acknowledged,
            cut_us: self.cut_us,
        }
    }
}

/// The result for the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CutBack {
    /// The primary has all records of the directory.
    Nothing,
    Cut(CutInfo),
    /// No usable part is left. The standby is bootstrapped anew.
    Anew(CutInfo),
}

#[derive(Debug, thiserror::Error)]
pub enum CutError {
    #[error("ask the primary where the histories part: {0}")]
    Ask(Arc<str>),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("keep what is cut: {0}")]
    Staging(#[from] StagingError),
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// The directory of a database that no process has open.
pub struct ClosedDirectory {
    pub root: Arc<dyn Disk>,
    pub node: Arc<NodeFile>,
    pub log: Arc<dyn Disk>,
    pub checkpoints: Arc<dyn Disk>,
    /// The tree with the directories of records that were cut off.
    pub cuts: Arc<dyn DirTree>,
}

/// Asks the primary whether it has this history, and for its epochs.
pub type AskFork<'a> = &'a mut dyn FnMut(Position) -> Result<ForkAnswer, Arc<str>>;

/// Returns the points at which the histories may part, the furthest first. Each is in an epoch that both logs have. One primary wrote each
/// epoch.
fn candidates(own: &[EpochStart], own_end: Lsn, theirs: &ForkAnswer) -> Vec<Lsn> {
    let end = |all: &[EpochStart], at: usize, last: Lsn| all.get(at + 1).map_or(last, |next| next.start);
    let mut found: Vec<Lsn> = Vec::new();
    let mut add = |lsn: Lsn| {
        if found.last().is_none_or(|last| lsn < *last) {
            found.push(lsn);
        }
    };
    for (at, epoch) in own.iter().enumerate().rev() {
        let Some(there) = theirs.epochs.iter().position(|start| start.epoch == epoch.epoch) else {
            continue;
        };
        add(end(own, at, own_end).min(end(&theirs.epochs, there, theirs.durable)));
        add(epoch.start.max(theirs.epochs[there].start));
    }
    found
}

/// Returns the furthest LSN before which both histories are the same. None: there is no such LSN.
fn find_fork(outline: &LogOutline, first: &ForkAnswer, ask: AskFork<'_>) -> Result<Option<Lsn>, CutError> {
    for lsn in candidates(&outline.epochs(), outline.end.lsn, first)
        .into_iter()
        .take(QUESTIONS_MAX)
    {
        let Some(history) = outline.history_at(lsn)? else {
            continue;
        };
        let epoch = outline.end.epoch;
        if ask(Position { epoch, lsn, history }).map_err(CutError::Ask)?.is_same {
            return Ok(Some(lsn));
        }
    }
    Ok(None)
}

/// Cuts off the records that the primary does not have. After an interruption, a second run ends in the same state.
pub fn cut_back(directory: &ClosedDirectory, ask: AskFork<'_>, now_us: i64) -> Result<CutBack, CutError> {
    if RegionNote::load(&*directory.root).ok().flatten().is_some() {
        // NVRAM may hold more records. The opening reports the next step.
        return Ok(CutBack::Nothing);
    }
    let _lock = directory.log.lock()?;
    let Some(outline) = LogOutline::of(&directory.log)? else {
        return Ok(CutBack::Nothing);
    };
    let first = ask(outline.end).map_err(CutError::Ask)?;
    let checkpoints = Checkpoints::new(directory.checkpoints.clone());
    let stored = checkpoints.list()?;
    if first.is_same {
        // Checkpoints beyond the log's end go, because the primary sends its own.
        for beyond in stored.into_iter().rev().filter(|lsn| *lsn > outline.end.lsn) {
            checkpoints.remove(beyond)?;
        }
        return Ok(CutBack::Nothing);
    }
    let fork = find_fork(&outline, &first, ask)?;
    let node = &directory.node;
    // The standby is out of sync from here on, whatever an earlier primary said. It has shown no record of the new history.
    node.change(|document| (document.status, document.follows) = (None, true))?;
    let start = outline.report.start;
    let usable = fork.filter(|fork| {
        let begins = start == Lsn(0) || stored.iter().any(|lsn| (start..=*fork).contains(lsn));
        *fork > start && begins
    });
    let from = fork.unwrap_or(start).max(start);
    let cut = keep(directory, &outline, from, now_us)?;
    node.change(end_level)?;
    shown_limit::cut_to(&*directory.root, usable.unwrap_or(Lsn(0)))?;
    let Some(fork) = usable else {
        node.set_health(DirHealth::MustBootstrap(format!(
            "no checkpoint lies before LSN {from}, where this log and the primary's part; the log is kept in cuts"
        )))?;
        return Ok(CutBack::Anew(cut));
    };
    for beyond in stored.into_iter().rev().filter(|lsn| *lsn > fork) {
        checkpoints.remove(beyond)?;
    }
    outline.rewind_to(fork)?;
    Ok(CutBack::Cut(cut))
}

/// Returns the epoch of the record at this LSN.
fn epoch_at(epochs: &[EpochStart], lsn: Lsn) -> Epoch {
    let begun = epochs.iter().rev().find(|epoch| epoch.start <= lsn);
    begun.map_or(Epoch::default(), |epoch| epoch.epoch)
}

/// Copies the records that are cut to a directory. It appears whole or not at all.
fn keep(directory: &ClosedDirectory, outline: &LogOutline, from: Lsn, now_us: i64) -> Result<CutInfo, CutError> {
    let (epoch, to) = (outline.end.epoch, outline.end.lsn);
    let cut = CutInfo {
        name: format!("epoch-{epoch}-{:04x}-lsn-{from}-to-{to}", epoch.writer()),
        epoch: epoch.count(),
        writer: epoch.writer(),
        from: from.0,
        to: to.0,
        acknowledged: may_be_acknowledged(&directory.node, from, (epoch_at(&outline.epochs(), from), epoch)),
        cut_us: now_us,
    };
    directory.cuts.prepare()?;
    if !directory.cuts.is_free(&cut.name)? {
        // An earlier run was interrupted after this step.
        return Ok(cut);
    }
    let staging = StagingDir::begin(&DirHandle::new(directory.cuts.clone(), &cut.name))?;
    outline.copy_from(from, &*staging.folder("log")?)?;
    let text = serde_json::to_vec_pretty(&cut).expect("names and numbers");
    small_file::replace(&*staging.place().root()?, CUT_NAME, &text)?;
    staging.publish()?;
    Ok(cut)
}

/// The epochs in which this directory was the primary: their counts, because it wrote all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Leadership {
    /// Safety level of the last epoch. Empty: the directory never led.
    safety: String,
    /// First of the epochs, up to the last one, in which this directory was always the primary, under this level.
    first_epoch: u32,
    last_epoch: u32,
    /// First of the epochs, up to the last one, between which no other server led as far as this directory knows. The level may differ.
    since: u32,
    /// End of the log when the primary last removed a standby. That standby may have all records before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    forgot_at: Option<u64>,
    /// True if the log, or a part of it, was lost since. The directory may then lack writes that it acknowledged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_over: bool,
    /// An epoch for which this server has asked for the lease since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claimed: Option<u32>,
    /// An operator accepted a loss for the claim, so the directory may lack what the primary before it acknowledged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    claim_loses: bool,
}

impl Leadership {
    /// Returns the last epoch in which the directory led; 0: it never did.
    pub fn last_epoch(&self) -> u32 {
        self.last_epoch
    }

    /// Whether the directory led at another level last.
    pub fn has_other_level(&self, level: Safety) -> bool {
        !self.safety.is_empty() && self.safety != level.name()
    }

    /// Returns whether a primary of this epoch began to lead beside the directory, or after it. `own` is an epoch of the directory. It replaced
    /// the primaries of earlier epochs, or began the database.
    pub fn is_rival(&self, epoch: Epoch, own: Epoch) -> bool {
        epoch.count() > self.last_epoch || (epoch.writer() != own.writer() && epoch.count() >= self.since)
    }

    pub fn describe(&self) -> String {
        match self.safety.is_empty() {
            true => "it asked to lead, and did not".to_owned(),
            false => format!("it led in epoch {}, at {}", self.last_epoch, self.safety),
        }
    }
}

/// Records that no epoch up to `last` is used again, and that none of them justifies leading.
pub(crate) fn retire_epochs(document: &mut NodeDocument, last: u32) {
    let led = document.led.get_or_insert_default();
    (led.is_over, led.claimed, led.claim_loses) = (true, None, false);
    led.last_epoch = led.last_epoch.max(last);
}

/// Returns the count of the first epoch after all in which this directory led with standbys, and all for which it asked its peers. In the last one,
/// standbys may have received records that were never written here.
pub(crate) fn unused_count(node: &NodeFile) -> u32 {
    let last = node.read(|document| {
        let led = document.led.as_ref().map(Leadership::last_epoch);
        led.max(Some(document.asked).filter(|asked| *asked > 0))
    });
    last.map_or(0, |last| last.saturating_add(1))
}

/// Returns the count of the first epoch after that of the last primary that this directory followed. It is not before an epoch for which
/// the directory began to lead.
pub(crate) fn count_behind_heard(node: &NodeFile) -> u32 {
    node.read(|document| {
        let heard = document.status.as_ref().map(|status| status.epoch.saturating_add(1));
        let claimed = document.led.as_ref().and_then(|led| led.claimed);
        heard.max(claimed).unwrap_or_default()
    })
}

/// True if this directory may have led in an epoch: it led in it or after it, or began a promotion for it.
pub(crate) fn may_have_led(node: &NodeFile, epoch: Epoch) -> bool {
    let may = |led: &Leadership| led.last_epoch >= epoch.count() || led.claimed >= Some(epoch.count());
    node.read(|document| document.led.as_ref().is_some_and(may))
}

/// Saves the epoch and the level before the server acknowledges a write in that epoch.
pub(crate) fn keep_level(node: &NodeFile, level: Safety, epoch: u32) -> Result<(), DiskError> {
    let goes_on = |led: &Leadership| {
        !led.is_over
            && led.safety == level.name()
            && led.last_epoch <= epoch
            && epoch <= led.last_epoch.saturating_add(1)
    };
    node.change(|document| {
        let led = document.led.take();
        let followed = std::mem::take(&mut document.follows);
        if led.as_ref().is_some_and(|led| led.has_other_level(level)) {
            document.members.iter_mut().for_each(StoredMember::leave_sync);
        }
        document.led = Some(Leadership {
            safety: level.name().to_owned(),
            first_epoch: led
                .as_ref()
                .filter(|led| goes_on(led))
                .map_or(epoch, |led| led.first_epoch),
            last_epoch: epoch,
            since: led
                .as_ref()
                .filter(|led| !led.is_over && !followed)
                .map_or(epoch, |led| led.since),
            forgot_at: led.and_then(|led| led.forgot_at),
            is_over: false,
            claimed: None,
            claim_loses: false,
        });
    })
}

/// Records, before `reprise recover` appends to the log of a primary, that this directory leads in one more epoch at its level. Returns the count of
/// that epoch. No write is acknowledged in it, so the next start still goes by the standbys of the epoch before. Without this, that start would
/// take every durable record for committed. None: nothing is changed, because the recorded epochs end before `written`, the last one of the log.
pub(crate) fn extend_leadership(document: &mut NodeDocument, written: Epoch) -> Option<u32> {
    let led = document.led.as_mut()?;
    if led.is_over || led.safety.is_empty() || written.count() > led.last_epoch {
        return None;
    }
    led.last_epoch = led.last_epoch.saturating_add(1);
    Some(led.last_epoch)
}

/// Records, before the primary removes a standby, that it acknowledges writes without it from then on. `end` is the end of the primary's
/// log.
pub(crate) fn keep_forgetting(node: &NodeFile, end: Lsn) -> Result<(), DiskError> {
    node.change(|document| {
        // Without an epoch, the document says nothing about acknowledged writes either.
        if let Some(led) = &mut document.led {
            led.forgot_at = led.forgot_at.max(Some(end.0));
        }
    })
}

/// Records, before a part of the log is lost, that the epochs of this directory no longer justify leading again.
pub(crate) fn end_level(document: &mut NodeDocument) {
    if let Some(led) = &mut document.led {
        (led.is_over, led.claimed, led.claim_loses) = (true, None, false);
    }
}

/// Records that this server asks to lead in an epoch, and returns it. It is `at_least` or a later one. Until the level is saved, no other
/// entry says that the server may lead. This directory never uses an earlier epoch again.
pub(crate) fn claim(document: &mut NodeDocument, at_least: u32) -> u32 {
    let led = document.led.get_or_insert_with(|| Leadership {
        first_epoch: 1,
        ..Leadership::default()
    });
    let epoch = at_least.max(led.last_epoch.saturating_add(1));
    led.claimed = Some(epoch);
    epoch
}

/// Does as `claim` for a server that asks for the lease. `loses`: an operator accepts a loss. The server asks its peers for no epoch twice.
pub(crate) fn claim_lease(document: &mut NodeDocument, at_least: u32, loses: bool) -> u32 {
    let unasked = document.asked.saturating_add(1);
    let epoch = claim(document, at_least.max(unasked));
    if let Some(led) = &mut document.led {
        led.claim_loses = loses;
    }
    epoch
}

/// Records that this server does not lead in the epoch that it claimed.
pub(crate) fn drop_claim(document: &mut NodeDocument) {
    if let Some(led) = &mut document.led {
        (led.claimed, led.claim_loses) = (None, false);
    }
}

/// Returns the epoch in which a promotion begins, `at_least` or a later one. An epoch for which the server asked for the lease stays
/// recorded.
pub(crate) fn begin_leading(document: &mut NodeDocument, at_least: u32) -> u32 {
    let asked = document.led.as_ref().and_then(|led| led.claimed);
    document.follows = false;
    let epoch = claim(document, at_least);
    if let Some(led) = &mut document.led {
        (led.claimed, led.since) = (asked.or(led.claimed), epoch);
    }
    epoch
}

/// Whether this directory led at another level last. What that waited for is not what this one waits for.
pub(crate) fn led_at_other_level(node: &NodeFile, level: Safety) -> bool {
    node.read(|document| document.led.as_ref().is_some_and(|led| led.has_other_level(level)))
}

/// Records that this directory replaces the primaries of the epochs before this one.
pub(crate) fn replace_primaries(document: &mut NodeDocument, epoch: Epoch) {
    if let Some(led) = &mut document.led {
        led.since = epoch.count();
    }
}

/// The last epoch that a directory reached as a primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReachedEpoch {
    pub epoch: u32,
    /// The epoch for which it asked for the lease, which it may have got.
    pub claimed: Option<u32>,
}

impl ReachedEpoch {
    /// True if the directory has the records that the primary of this epoch began with: it was that primary, or may have become it since.
    pub fn has(self, epoch: u32) -> bool {
        epoch <= self.epoch || self.claimed == Some(epoch)
    }
}

/// Returns the last epoch of the log's records, or the last recorded one if it is later. The recorded one does not count if a part of the
/// log was lost since.
pub(crate) fn reached(node: &NodeFile, written: Epoch) -> ReachedEpoch {
    node.read(|document| {
        let led = document.led.as_ref();
        let kept = led.filter(|led| !led.is_over);
        ReachedEpoch {
            epoch: kept.map_or(0, |led| led.last_epoch).max(written.count()),
            claimed: led.filter(|led| !led.claim_loses).and_then(|led| led.claimed),
        }
    })
}

/// True if this directory was the primary in the epoch `end` of this count. An operator who has it lead does not make it an earlier primary.
pub(crate) fn was_primary(node: &NodeFile, end: u32) -> bool {
    let was = |led: &Leadership| !led.is_over && end <= led.last_epoch;
    node.read(|document| document.led.as_ref().is_some_and(was))
}

/// Returns the LSN before which a log that ends in an epoch of this count is committed for certain. It applies if this directory was the primary and
/// its callers waited for standbys. None: all durable records are committed, or the document does not say.
pub(crate) fn committed_as_primary(node: &NodeFile, end: u32) -> Option<Lsn> {
    let level = node.read(|document| {
        let led = document.led.as_ref().filter(|led| end <= led.last_epoch)?;
        Safety::from_name(&led.safety).filter(|level| level.asks_standbys())
    });
    committed_by(level?, &membership::load(node))
}

/// Returns the limit of `committed_as_primary` for a log that ends in this epoch. None if another primary wrote the end since this
/// directory led. An end before the last epoch that this directory led in is older than that leadership, even if another primary wrote it.
pub(crate) fn committed_at_end(node: &NodeFile, end: Epoch) -> Option<Lsn> {
    let led_last = node.read(|document| document.led.as_ref().map_or(0, Leadership::last_epoch));
    let is_covered = end.count() < led_last || node.own_epoch(end.count()) == end;
    is_covered.then(|| committed_as_primary(node, end.count())).flatten()
}

/// Returns whether an acknowledged write may be among the cut records. None is, if two things hold. This directory was the primary of all these
/// epochs, and each of its answers waited for every standby that may have been promoted. The promoted standby then has every acknowledged write. The
/// directory does not know which standby it was, because a promotion may have been forced.
fn may_be_acknowledged(node: &NodeFile, from: Lsn, (first, last): (Epoch, Epoch)) -> bool {
    let is_own = |epoch: Epoch| node.own_epoch(epoch.count()) == epoch;
    let of_all = |led: &Leadership| led.first_epoch <= first.count() && last.count() <= led.last_epoch;
    let known = node.read(|document| document.led.clone()).filter(of_all);
    let Some(known) = known.filter(|_| is_own(first) && is_own(last)) else {
        return true;
    };
    let Some(level) = Safety::from_name(&known.safety) else {
        return true;
    };
    let standbys = membership::load(node);
    // 0: the records that the standby has are not known.
    let is_known = |standby: &Member| (Lsn(1)..=from).contains(&standby.persisted);
    let may_be_a_forgotten_one = known.forgot_at.is_some_and(|lsn| from.0 <= lsn);
    may_be_a_forgotten_one || !waits_for_each(level, &standbys) || !standbys.iter().all(is_known)
}

/// Returns all cuts ever made, by name. It leaves out a cut that it can't read.
pub fn list_cuts(cuts: &Arc<dyn DirTree>) -> Vec<CutInfo> {
    let mut names = cuts.list().unwrap_or_default();
    names.sort_unstable();
    let read = |name: &String| {
        let root = cuts.open(name).ok()?;
        let bytes = small_file::read(&*root, CUT_NAME).ok().flatten()?;
        serde_json::from_slice(&bytes).ok()
    };
    names
        .iter()
        .filter(|name| !name.starts_with('.'))
        .filter_map(read)
        .collect()
}

#[cfg(test)]
mod tests {
    use reprise_env::SimDisk;
    use reprise_ship::Member;
    use reprise_wire::History;

    use super::*;

    fn epochs(text: &str) -> Vec<EpochStart> {
        let read = |word: &str| {
            let (epoch, start) = word.split_once('@').expect("EPOCH@START");
            EpochStart {
                epoch: Epoch::new(epoch.parse().expect("a number"), 0),
                start: Lsn(start.parse().expect("a number")),
                history: History(0),
            }
        };
        text.split_whitespace().map(read).collect()
    }

    #[test]
    fn histories_part_within_an_epoch_that_both_have_or_where_it_begins() {
        for (own, end, theirs, durable, expected) in [
            // The new primary took over at 70, of 100.
            ("1@0", 100, "1@0 2@70", 80, vec![70, 0]),
            ("1@0 3@50", 100, "1@0 3@50 4@70 5@75", 80, vec![70, 50, 0]),
            // The directory was opened as a primary of the same epoch meanwhile.
            ("1@0 2@90", 100, "1@0 2@70", 80, vec![80, 70, 0]),
            ("1@0 2@70", 100, "1@0 2@70", 80, vec![80, 70, 0]),
            // Logs that begin at other LSNs.
            ("3@50", 100, "2@10 3@40 4@60", 80, vec![60, 50]),
            ("1@0 2@10", 100, "5@60 6@70", 80, vec![]),
        ] {
            let theirs = ForkAnswer {
                is_same: false,
                durable: Lsn(durable),
                epochs: epochs(theirs),
            };
            let found: Vec<u64> = candidates(&epochs(own), Lsn(end), &theirs)
                .iter()
                .map(|lsn| lsn.0)
                .collect();
            assert_eq!(found, expected, "{own} against {:?}", theirs.epochs);
        }
    }

    #[test]
    fn cut_records_may_be_acknowledged_unless_commits_waited_for_standbys() {
        let node = NodeFile::open(Arc::new(SimDisk::new())).expect("an empty one");
        let standby = |is_in_sync, from| Member {
            name: "s1".into(),
            from: Lsn(0),
            persisted: Lsn(from),
            is_in_sync,
            is_counted: true,
            url: None,
            node: None,
        };
        let never_in_sync = |from| Member {
            is_counted: false,
            ..standby(false, from)
        };
        let nothing_known = (Epoch::new(3, 0), Epoch::new(3, 0));
        assert!(may_be_acknowledged(&node, Lsn(5), nothing_known));
        node.change(|document| document.follows = true)
            .expect("the first save draws the identity");
        let own = (node.own_epoch(3), node.own_epoch(3));
        let of_another = Epoch::new(3, !own.0.writer());
        for (level, standbys, expected) in [
            (Safety::OneSafe, vec![standby(true, 5)], true),
            (Safety::TwoSafe, vec![], true),
            (Safety::TwoSafe, vec![standby(true, 5)], false),
            (Safety::TwoSafe, vec![standby(true, 6)], true),
            (Safety::TwoSafe, vec![standby(false, 5)], true),
            (Safety::TwoSafe, vec![standby(true, 5), standby(true, 4)], false),
            // An operator may have promoted the second standby by force, and the first one acknowledged records that the second lacks.
            (Safety::TwoSafe, vec![standby(true, 5), standby(false, 4)], true),
            (Safety::Quorum, vec![standby(false, 5)], false),
            (Safety::Quorum, vec![standby(true, 5), standby(true, 5)], true),
            (Safety::VerySafe, vec![standby(false, 5), standby(true, 5)], false),
            (Safety::VerySafe, vec![standby(true, 5), never_in_sync(2)], true),
            (Safety::Quorum, vec![standby(true, 5), never_in_sync(2)], true),
        ] {
            keep_level(&node, level, 3).expect("kept");
            membership::save(&node, &standbys).expect("saved");
            assert_eq!(
                may_be_acknowledged(&node, Lsn(5), own),
                expected,
                "{level} {standbys:?}"
            );
            assert!(
                may_be_acknowledged(&node, Lsn(5), (of_another, of_another)),
                "another primary of that count wrote them"
            );
        }
    }

    #[test]
    fn a_standby_that_was_forgotten_may_have_been_promoted() {
        let node = NodeFile::open(Arc::new(SimDisk::new())).expect("an empty one");
        keep_forgetting(&node, Lsn(7)).expect("nothing is to be kept");
        let standby = Member {
            name: "s1".into(),
            from: Lsn(3),
            persisted: Lsn(3),
            is_in_sync: true,
            is_counted: true,
            url: None,
            node: None,
        };
        membership::save(&node, &[standby]).expect("saved");
        keep_level(&node, Safety::TwoSafe, 3).expect("kept");
        let is_open = |from| may_be_acknowledged(&node, Lsn(from), (node.own_epoch(3), node.own_epoch(3)));
        assert!(!is_open(5));
        keep_forgetting(&node, Lsn(7)).expect("kept");
        keep_forgetting(&node, Lsn(6)).expect("kept");
        keep_level(&node, Safety::TwoSafe, 4).expect("kept");
        assert!(is_open(5) && is_open(7) && !is_open(8));
    }

    #[test]
    fn records_that_another_primary_may_have_answered_may_be_acknowledged() {
        let node = NodeFile::open(Arc::new(SimDisk::new())).expect("an empty one");
        let standby = Member {
            name: "s1".into(),
            from: Lsn(5),
            persisted: Lsn(5),
            is_in_sync: false,
            is_counted: true,
            url: None,
            node: None,
        };
        membership::save(&node, &[standby]).expect("saved");
        let is_open = |level, epoch, first, last| {
            keep_level(&node, level, epoch).expect("kept");
            may_be_acknowledged(&node, Lsn(5), (node.own_epoch(first), node.own_epoch(last)))
        };
        assert!(!is_open(Safety::Quorum, 3, 3, 3));
        assert!(is_open(Safety::Quorum, 3, 2, 3), "it was another's before");
        assert!(is_open(Safety::Quorum, 3, 3, 4), "it is another's since");
        assert!(!is_open(Safety::Quorum, 4, 3, 4), "it was opened again");
        assert!(is_open(Safety::Quorum, 6, 4, 6), "the fifth was another's");
        assert!(is_open(Safety::VerySafe, 7, 6, 7), "the sixth had another level");
        assert!(is_open(Safety::VerySafe, 7, 6, 7) && reached(&node, Epoch::new(3, 0)).has(7));
        node.change(end_level).expect("kept");
        let over = reached(&node, Epoch::new(3, 0));
        assert!(over.has(3) && !over.has(4) && unused_count(&node) == 8);
        let asked = node.change(|document| claim(document, 9));
        assert_eq!(asked, Ok(9));
        let claimed = reached(&node, Epoch::new(3, 0));
        assert!(claimed.has(9) && !claimed.has(8) && !claimed.has(10));
        node.change(end_level).expect("kept");
        assert_eq!(reached(&node, Epoch::new(3, 0)), over);
        assert!(is_open(Safety::VerySafe, 8, 7, 8), "its log went");
        assert!(reached(&node, Epoch::new(3, 0)).has(8) && !is_open(Safety::VerySafe, 9, 8, 9));
    }

    #[test]
    fn a_log_without_a_record_of_the_last_leadership_shows_what_it_proves() {
        let node = NodeFile::open(Arc::new(SimDisk::new())).expect("an empty one");
        keep_level(&node, Safety::Quorum, 3).expect("kept");
        let own = node.own_epoch(3);
        let foreign = |count| Epoch::new(count, !own.writer());
        for end in [own, foreign(2), node.own_epoch(2)] {
            assert_eq!(
                committed_at_end(&node, end),
                Some(Lsn(0)),
                "{end:?}: no standby confirmed"
            );
        }
        for end in [foreign(3), foreign(4)] {
            assert_eq!(committed_at_end(&node, end), None, "{end:?}: it followed since");
        }
    }

    #[test]
    fn a_claim_with_an_accepted_loss_proves_nothing() {
        let node = NodeFile::open(Arc::new(SimDisk::new())).expect("an empty one");
        let claim = |loses| node.change(|document| claim_lease(document, 4, loses)).expect("saved");
        let written = Epoch::new(3, 0);
        // The operator accepts the loss again after a restart.
        for (loses, is_reached) in [(false, true), (true, false), (false, true)] {
            let epoch = claim(loses);
            assert_eq!(reached(&node, written).has(epoch), is_reached, "{loses}");
        }
        node.change(|document| document.asked = 8).expect("saved");
        assert_eq!(
            (claim(false), unused_count(&node)),
            (9, 9),
            "its peers were asked for 8"
        );
    }

    #[test]
    fn another_level_takes_no_standby_over_as_in_sync() {
        let node = NodeFile::open(Arc::new(SimDisk::new())).expect("an empty one");
        let in_sync = || membership::load(&node)[0].is_in_sync;
        let standby = Member {
            name: "s".into(),
            from: Lsn(0),
            persisted: Lsn(5),
            is_in_sync: true,
            is_counted: true,
            url: None,
            node: None,
        };
        membership::save(&node, &[standby]).expect("saved");
        keep_level(&node, Safety::OneSafe, 2).expect("kept");
        assert!(in_sync());
        keep_level(&node, Safety::OneSafe, 3).expect("kept");
        assert!(in_sync());
        keep_level(&node, Safety::TwoSafe, 4).expect("kept");
        assert!(!in_sync() && membership::load(&node)[0].is_counted);
    }

    #[test]
    fn recovery_extends_the_leadership_that_reaches_the_end_of_the_log() {
        let node = NodeFile::open(Arc::new(SimDisk::new())).expect("an empty one");
        let extend = |count| {
            let extended = node.change(|document| extend_leadership(document, Epoch::new(count, 0)));
            extended.expect("saved")
        };
        assert_eq!(extend(1), None, "it never led with standbys");
        assert!(node.document().led.is_none());
        keep_level(&node, Safety::Quorum, 3).expect("kept");
        let own = (node.own_epoch(3), node.own_epoch(5));
        let standby = Member {
            name: "s1".into(),
            from: Lsn(5),
            persisted: Lsn(5),
            is_in_sync: false,
            is_counted: true,
            url: None,
            node: None,
        };
        membership::save(&node, &[standby]).expect("saved");
        assert_eq!((extend(3), extend(4)), (Some(4), Some(5)));
        assert_eq!(
            committed_at_end(&node, own.1),
            Some(Lsn(5)),
            "by the standbys of epoch 3"
        );
        assert!(!may_be_acknowledged(&node, Lsn(5), own));
        assert_eq!(extend(6), None, "the log has a later epoch");
        assert_eq!(unused_count(&node), 6);
        node.change(end_level).expect("kept");
        assert_eq!(extend(3), None, "its log went");
        assert_eq!(unused_count(&node), 6);
    }

    #[test]
    fn server_that_asked_to_lead_was_no_primary_yet() {
        let node = NodeFile::open(Arc::new(SimDisk::new())).expect("an empty one");
        let ask = |at_least| node.change(|document| claim(document, at_least));
        assert_eq!(ask(4), Ok(4));
        assert!(reached(&node, Epoch::new(3, 0)).has(4) && !reached(&node, Epoch::new(3, 0)).has(5));
        assert!(!was_primary(&node, 1) && committed_as_primary(&node, 1).is_none());
        assert!(may_be_acknowledged(
            &node,
            Lsn(5),
            (node.own_epoch(1), node.own_epoch(4))
        ));
        keep_level(&node, Safety::OneSafe, 5).expect("kept");
        assert!(reached(&node, Epoch::new(3, 0)).has(5) && unused_count(&node) == 6);
        assert_eq!(ask(2), Ok(6), "the next one");
        // A peer or a document can name the highest count there is.
        keep_level(&node, Safety::OneSafe, u32::MAX).expect("kept");
        assert_eq!((unused_count(&node), ask(2)), (u32::MAX, Ok(u32::MAX)));
        node.change(|document| document.status.get_or_insert_default().epoch = u32::MAX)
            .expect("kept");
        assert_eq!(count_behind_heard(&node), u32::MAX);
    }
}
