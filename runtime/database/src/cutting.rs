//! A directory with records that its new primary does not have: what is too much is kept aside, then cut off, before the directory is opened.

use std::sync::Arc;

use reprise_backup::{Place, Staging, StagingError, Tree};
use reprise_base::{Epoch, Lsn, Safety};
use reprise_checkpoint::{CheckpointError, Checkpoints};
use reprise_env::{Disk, DiskError, DiskErrorKind};
use reprise_log::{EpochStart, LogError, Outline, Position};
use reprise_router::CutRecords;
use reprise_ship::{Expected, ForkAnswer, committed_by, waits_for_each};
use serde::{Deserialize, Serialize};

use crate::{device::RegionNote, expected, shown, small_file, synced};

/// In the directory: its log and checkpoints are of no use, and go before it is bootstrapped.
pub const BEGINS_ANEW_NAME: &str = "begins-anew";
/// In the directory of what was cut.
const CUT_NAME: &str = "cut.json";
/// The safety level under which the directory was a primary's last, and in which epochs.
const LEVEL_NAME: &str = "safety.json";
/// Places at which the histories are compared at most.
const QUESTIONS_MAX: usize = 64;

/// What was cut off, in a directory of its own with a log that can be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutInfo {
    /// Of the directory.
    pub name: String,
    /// Of the last record that was cut.
    pub epoch: u32,
    /// Of the first record that was cut.
    pub from: u64,
    /// Behind the last one.
    pub to: u64,
    /// Some of it may have been answered as committed: under 1-safe, by a primary alone, or with a standby that may not be the promoted one.
    pub acknowledged: bool,
    /// When, in microseconds since 1970.
    pub cut_us: i64,
}

impl CutInfo {
    pub(crate) fn told(&self) -> CutRecords {
        CutRecords {
            name: self.name.clone(),
            epoch: Epoch(self.epoch),
            from: Lsn(self.from),
            to: Lsn(self.to),
            may_be_acknowledged: self.acknowledged,
            cut_us: self.cut_us,
        }
    }
}

/// What became of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CutBack {
    /// All that it holds is the primary's, too.
    Nothing,
    Cut(CutInfo),
    /// Nothing of use is left: it is bootstrapped anew.
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

/// Where a database lies that no process has open.
pub struct ClosedDirectory {
    pub root: Arc<dyn Disk>,
    pub log: Arc<dyn Disk>,
    pub checkpoints: Arc<dyn Disk>,
    /// What was cut lies in directories of it.
    pub cuts: Arc<dyn Tree>,
}

/// Asks the primary whether it has this history, and for its epochs.
pub type AskFork<'a> = &'a mut dyn FnMut(Position) -> Result<ForkAnswer, Arc<str>>;

/// Where the histories may part, the furthest first: each lies in an epoch that both have. Of one epoch one primary wrote, unless two took the
/// same number: then they part where it begins, or before.
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

/// The furthest LSN before which both have the same. None: none is known.
fn find_fork(outline: &Outline, first: &ForkAnswer, ask: AskFork<'_>) -> Result<Option<Lsn>, CutError> {
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

/// Cuts off what the primary that is asked does not have. Interrupted, the same again comes to the same.
pub fn cut_back(directory: &ClosedDirectory, ask: AskFork<'_>, now_us: i64) -> Result<CutBack, CutError> {
    if RegionNote::load(&*directory.root).ok().flatten().is_some() {
        // More may lie in NVRAM: the opening says what to do first.
        return Ok(CutBack::Nothing);
    }
    let _lock = directory.log.lock()?;
    let Some(outline) = Outline::of(&directory.log)? else {
        return Ok(CutBack::Nothing);
    };
    let first = ask(outline.end).map_err(CutError::Ask)?;
    let checkpoints = Checkpoints::new(directory.checkpoints.clone());
    let stored = checkpoints.list()?;
    if first.is_same {
        // What a log had that ended later: the primary sends its own.
        for beyond in stored.into_iter().rev().filter(|lsn| *lsn > outline.end.lsn) {
            checkpoints.remove(beyond)?;
        }
        return Ok(CutBack::Nothing);
    }
    let fork = find_fork(&outline, &first, ask)?;
    // It is behind from here on, whatever it was told, and has shown nothing of what comes instead.
    synced::forget(&*directory.root)?;
    let start = outline.report.start;
    let usable = fork.filter(|fork| {
        let begins = start == Lsn(0) || stored.iter().any(|lsn| (start..=*fork).contains(lsn));
        *fork > start && begins
    });
    let from = fork.unwrap_or(start).max(start);
    let cut = keep(directory, &outline, from, now_us)?;
    end_level(&*directory.root)?;
    shown::cut_to(&*directory.root, usable.unwrap_or(Lsn(0)))?;
    let Some(fork) = usable else {
        small_file::replace(&*directory.root, BEGINS_ANEW_NAME, b"the log was kept in cuts\n")?;
        return Ok(CutBack::Anew(cut));
    };
    for beyond in stored.into_iter().rev().filter(|lsn| *lsn > fork) {
        checkpoints.remove(beyond)?;
    }
    outline.cut_to(fork)?;
    Ok(CutBack::Cut(cut))
}

/// Of the record at this LSN.
fn epoch_at(epochs: &[EpochStart], lsn: Lsn) -> Epoch {
    let begun = epochs.iter().rev().find(|epoch| epoch.start <= lsn);
    begun.map_or(Epoch(0), |epoch| epoch.epoch)
}

/// Copies what is cut to a directory that appears whole or not at all.
fn keep(directory: &ClosedDirectory, outline: &Outline, from: Lsn, now_us: i64) -> Result<CutInfo, CutError> {
    let (epoch, to) = (outline.end.epoch, outline.end.lsn);
    let cut = CutInfo {
        name: format!("epoch-{}-lsn-{from}-to-{to}", epoch.0),
        epoch: epoch.0,
        from: from.0,
        to: to.0,
        acknowledged: may_be_acknowledged(&*directory.root, from, (epoch_at(&outline.epochs(), from), epoch)),
        cut_us: now_us,
    };
    directory.cuts.prepare()?;
    if !directory.cuts.is_free(&cut.name)? {
        // It was interrupted behind this.
        return Ok(cut);
    }
    let staging = Staging::begin(&Place::new(directory.cuts.clone(), &cut.name))?;
    outline.copy_from(from, &*staging.folder("log")?)?;
    let text = serde_json::to_vec_pretty(&cut).expect("names and numbers");
    small_file::replace(&*staging.place().root()?, CUT_NAME, &text)?;
    staging.publish()?;
    Ok(cut)
}

#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Level {
    /// Empty: it never was a primary's.
    safety: String,
    /// From this epoch to the last one every primary was this directory, under this level.
    first_epoch: u32,
    last_epoch: u32,
    /// Its log's end when a standby was forgotten last, which may have all before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    forgot_at: Option<u64>,
    /// The log, or a part of it, went since: the directory may lack what it answered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_over: bool,
    /// An epoch for which the lease was asked since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claimed: Option<u32>,
}

impl Level {
    /// None: there is no such file. Err: what was answered under it is not known.
    fn load(root: &dyn Disk) -> Result<Option<Self>, DiskError> {
        let Some(bytes) = small_file::read(root, LEVEL_NAME)? else {
            return Ok(None);
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            let message = format!(
                "{error}. It tells in which epochs this directory was the primary: where no other server has its database, remove it; else begin \
                 as a standby in an empty directory"
            );
            DiskError::new("read", LEVEL_NAME, DiskErrorKind::Io, &message)
        })
    }

    fn save(&self, root: &dyn Disk) -> Result<(), DiskError> {
        let text = serde_json::to_vec(self).expect("a name and numbers");
        small_file::replace(root, LEVEL_NAME, &text)
    }
}

/// Behind every epoch in which this directory was that of a primary with standbys. Of the last one they may have what was never written here.
pub(crate) fn unused_epoch(root: &dyn Disk) -> Result<Epoch, DiskError> {
    let level = Level::load(root)?;
    Ok(level.map_or(Epoch(0), |level| Epoch(level.last_epoch).next()))
}

/// Kept before anything is answered under it.
pub(crate) fn keep_level(root: &dyn Disk, level: Safety, epoch: Epoch) -> Result<(), DiskError> {
    let known = Level::load(root)?;
    let goes_on = |known: &Level| {
        !known.is_over && known.safety == level.name() && known.last_epoch <= epoch.0 && epoch.0 <= known.last_epoch + 1
    };
    let next = Level {
        safety: level.name().to_owned(),
        first_epoch: known
            .as_ref()
            .filter(|known| goes_on(known))
            .map_or(epoch.0, |known| known.first_epoch),
        last_epoch: epoch.0,
        forgot_at: known.as_ref().and_then(|known| known.forgot_at),
        is_over: false,
        claimed: None,
    };
    match known.as_ref() == Some(&next) {
        true => Ok(()),
        false => next.save(root),
    }
}

/// Kept before a standby is forgotten: from then on the primary whose log ends at `end` answers without it.
pub(crate) fn keep_forgetting(root: &dyn Disk, end: Lsn) -> Result<(), DiskError> {
    match Level::load(root)? {
        None => Ok(()), // nothing is known of what was answered, either
        Some(level) => Level {
            forgot_at: level.forgot_at.max(Some(end.0)),
            ..level
        }
        .save(root),
    }
}

/// Kept before a part of the log goes, or all of it: that this directory was the primary is no ground any more to be it again.
pub(crate) fn end_level(root: &dyn Disk) -> Result<(), DiskError> {
    match Level::load(root)? {
        Some(level) if !level.is_over || level.claimed.is_some() => Level {
            is_over: true,
            claimed: None,
            ..level
        }
        .save(root),
        _ => Ok(()),
    }
}

/// Kept before this server asks to be the primary, in this epoch at least: until its level is kept nothing else tells that it may be. In which
/// epoch: none before was this directory's.
pub(crate) fn claim(root: &dyn Disk, at_least: Epoch) -> Result<Epoch, DiskError> {
    let known = Level::load(root)?;
    let unused = known.as_ref().map_or(0, |level| level.last_epoch + 1);
    let epoch = at_least.0.max(unused);
    if known.as_ref().is_some_and(|level| level.claimed == Some(epoch)) {
        return Ok(Epoch(epoch));
    }
    let level = known.unwrap_or_else(|| Level {
        safety: String::new(),
        first_epoch: 1,
        last_epoch: 0,
        forgot_at: None,
        is_over: false,
        claimed: None,
    });
    let claimed = Some(epoch);
    Level { claimed, ..level }.save(root)?;
    Ok(Epoch(epoch))
}

/// How far a directory got as a primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    pub epoch: u32,
    /// It asked for this one, and may have got it.
    claimed: Option<u32>,
}

impl Reached {
    /// Whether it has what a primary of this epoch began with: it was that one, or is it by now.
    pub fn has(self, epoch: u32) -> bool {
        epoch <= self.epoch || self.claimed == Some(epoch)
    }
}

/// As far as its log has records, or, unless a part of that went since, as it kept.
pub(crate) fn reached(root: &dyn Disk, written: Epoch) -> Reached {
    let level = Level::load(root).ok().flatten();
    let kept = level.as_ref().filter(|level| !level.is_over);
    Reached {
        epoch: kept.map_or(0, |level| level.last_epoch).max(written.0),
        claimed: level.and_then(|level| level.claimed),
    }
}

/// Whether this directory was the primary of the log's epoch `end`, as far as it kept that; true where that can't be read.
pub(crate) fn was_primary(root: &dyn Disk, end: Epoch) -> bool {
    match Level::load(root) {
        Ok(level) => level.is_some_and(|level| end.0 <= level.last_epoch),
        Err(_) => true,
    }
}

/// What is committed for certain of a log that ends in this epoch, where this directory was its primary and callers waited for standbys:
/// everything before it. None: all that is durable here, or nothing is known.
pub(crate) fn committed_as_primary(root: &dyn Disk, end: Epoch) -> Option<Lsn> {
    let Ok(level) = Level::load(root) else {
        return Some(Lsn(0));
    };
    let level = level.filter(|level| end.0 <= level.last_epoch)?;
    let level = Safety::from_name(&level.safety).filter(|level| level.asks_standbys())?;
    match expected::load(root) {
        Ok(standbys) => committed_by(level, &standbys),
        Err(_) => Some(Lsn(0)),
    }
}

/// False where this directory was the primary of all of these epochs, and each answer of its waited for every standby that may have been promoted since:
/// then whoever was has all that was answered. Which one was is not known here; it may have been promoted by force.
fn may_be_acknowledged(root: &dyn Disk, from: Lsn, (first, last): (Epoch, Epoch)) -> bool {
    let of_all = |level: &Level| level.first_epoch <= first.0 && last.0 <= level.last_epoch;
    let Some(known) = Level::load(root).ok().flatten().filter(of_all) else {
        return true;
    };
    let (Some(level), Ok(standbys)) = (Safety::from_name(&known.safety), expected::load(root)) else {
        return true;
    };
    // 0: what it has is not known.
    let is_known = |standby: &Expected| (Lsn(1)..=from).contains(&standby.persisted);
    let may_be_a_forgotten_one = known.forgot_at.is_some_and(|lsn| from.0 <= lsn);
    may_be_a_forgotten_one || !waits_for_each(level, &standbys) || !standbys.iter().all(is_known)
}

/// All that was ever cut, by name; what can't be read is left out.
pub fn list_cuts(cuts: &Arc<dyn Tree>) -> Vec<CutInfo> {
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
    use reprise_ship::Expected;
    use reprise_wire::History;

    use super::*;

    fn epochs(text: &str) -> Vec<EpochStart> {
        let read = |word: &str| {
            let (epoch, start) = word.split_once('@').expect("EPOCH@START");
            EpochStart {
                epoch: Epoch(epoch.parse().expect("a number")),
                start: Lsn(start.parse().expect("a number")),
                history: History(0),
            }
        };
        text.split_whitespace().map(read).collect()
    }

    #[test]
    fn histories_part_within_an_epoch_that_both_have_or_where_it_begins() {
        for (own, end, theirs, durable, expected) in [
            // Taken over at 70, of 100.
            ("1@0", 100, "1@0 2@70", 80, vec![70, 0]),
            ("1@0 3@50", 100, "1@0 3@50 4@70 5@75", 80, vec![70, 50, 0]),
            // It was opened by itself meanwhile, as the same epoch.
            ("1@0 2@90", 100, "1@0 2@70", 80, vec![80, 70, 0]),
            ("1@0 2@70", 100, "1@0 2@70", 80, vec![80, 70, 0]),
            // Logs that begin elsewhere.
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
    fn what_was_cut_may_have_been_acknowledged_unless_standbys_were_waited_for() {
        let disk = SimDisk::new();
        let standby = |is_in_sync, from| Expected {
            name: "s1".into(),
            from: Lsn(0),
            persisted: Lsn(from),
            is_in_sync,
            is_counted: true,
        };
        let never_in_sync = |from| Expected {
            is_counted: false,
            ..standby(false, from)
        };
        let own = (Epoch(3), Epoch(3));
        assert!(may_be_acknowledged(&disk, Lsn(5), own), "nothing is known");
        for (level, standbys, expected) in [
            (Safety::OneSafe, vec![standby(true, 5)], true),
            (Safety::TwoSafe, vec![], true),
            (Safety::TwoSafe, vec![standby(true, 5)], false),
            (Safety::TwoSafe, vec![standby(true, 6)], true),
            (Safety::TwoSafe, vec![standby(false, 5)], true),
            (Safety::TwoSafe, vec![standby(true, 5), standby(true, 4)], false),
            // The second one may have been promoted by force, and the first one acknowledged what it lacks.
            (Safety::TwoSafe, vec![standby(true, 5), standby(false, 4)], true),
            (Safety::Quorum, vec![standby(false, 5)], false),
            (Safety::Quorum, vec![standby(true, 5), standby(true, 5)], true),
            (Safety::VerySafe, vec![standby(false, 5), standby(true, 5)], false),
            (Safety::VerySafe, vec![standby(true, 5), never_in_sync(2)], true),
            (Safety::Quorum, vec![standby(true, 5), never_in_sync(2)], true),
        ] {
            keep_level(&disk, level, Epoch(3)).expect("kept");
            expected::save(&disk, &standbys).expect("saved");
            assert_eq!(
                may_be_acknowledged(&disk, Lsn(5), own),
                expected,
                "{level} {standbys:?}"
            );
        }
    }

    #[test]
    fn a_standby_that_was_forgotten_may_have_been_promoted() {
        let disk = SimDisk::new();
        keep_forgetting(&disk, Lsn(7)).expect("nothing is to be kept");
        let standby = Expected {
            name: "s1".into(),
            from: Lsn(3),
            persisted: Lsn(3),
            is_in_sync: true,
            is_counted: true,
        };
        expected::save(&disk, &[standby]).expect("saved");
        keep_level(&disk, Safety::TwoSafe, Epoch(3)).expect("kept");
        let is_open = |from| may_be_acknowledged(&disk, Lsn(from), (Epoch(3), Epoch(3)));
        assert!(!is_open(5));
        keep_forgetting(&disk, Lsn(7)).expect("kept");
        keep_forgetting(&disk, Lsn(6)).expect("kept");
        keep_level(&disk, Safety::TwoSafe, Epoch(4)).expect("kept");
        assert!(is_open(5) && is_open(7) && !is_open(8));
    }

    #[test]
    fn what_another_primary_may_have_answered_may_have_been_acknowledged() {
        let disk = SimDisk::new();
        let standby = Expected {
            name: "s1".into(),
            from: Lsn(5),
            persisted: Lsn(5),
            is_in_sync: false,
            is_counted: true,
        };
        expected::save(&disk, &[standby]).expect("saved");
        let is_open = |level, epoch, first, last| {
            keep_level(&disk, level, Epoch(epoch)).expect("kept");
            may_be_acknowledged(&disk, Lsn(5), (Epoch(first), Epoch(last)))
        };
        assert!(!is_open(Safety::Quorum, 3, 3, 3));
        assert!(is_open(Safety::Quorum, 3, 2, 3), "it was another's before");
        assert!(is_open(Safety::Quorum, 3, 3, 4), "it is another's since");
        assert!(!is_open(Safety::Quorum, 4, 3, 4), "it was opened again");
        assert!(is_open(Safety::Quorum, 6, 4, 6), "the fifth was another's");
        assert!(is_open(Safety::VerySafe, 7, 6, 7), "the sixth had another level");
        assert!(is_open(Safety::VerySafe, 7, 6, 7) && reached(&disk, Epoch(3)).has(7));
        end_level(&disk).expect("kept");
        let over = reached(&disk, Epoch(3));
        assert!(over.has(3) && !over.has(4) && unused_epoch(&disk) == Ok(Epoch(8)));
        assert_eq!(claim(&disk, Epoch(9)), Ok(Epoch(9)));
        let claimed = reached(&disk, Epoch(3));
        assert!(claimed.has(9) && !claimed.has(8) && !claimed.has(10));
        end_level(&disk).expect("kept");
        assert_eq!(reached(&disk, Epoch(3)), over);
        assert!(is_open(Safety::VerySafe, 8, 7, 8), "its log went");
        assert!(reached(&disk, Epoch(3)).has(8) && !is_open(Safety::VerySafe, 9, 8, 9));
    }

    #[test]
    fn what_asked_to_be_the_primary_was_none_yet() {
        let disk = SimDisk::new();
        assert_eq!(claim(&disk, Epoch(4)), Ok(Epoch(4)));
        assert!(reached(&disk, Epoch(3)).has(4) && !reached(&disk, Epoch(3)).has(5));
        assert!(!was_primary(&disk, Epoch(1)) && committed_as_primary(&disk, Epoch(1)).is_none());
        assert!(may_be_acknowledged(&disk, Lsn(5), (Epoch(1), Epoch(4))));
        keep_level(&disk, Safety::OneSafe, Epoch(5)).expect("kept");
        assert!(reached(&disk, Epoch(3)).has(5) && unused_epoch(&disk) == Ok(Epoch(6)));
        assert_eq!(claim(&disk, Epoch(2)), Ok(Epoch(6)), "the next one");
    }

    #[test]
    fn a_level_that_can_not_be_read_is_no_ground_to_begin_or_to_show_anything() {
        let disk = SimDisk::new();
        assert_eq!(unused_epoch(&disk), Ok(Epoch(0)));
        assert_eq!(committed_as_primary(&disk, Epoch(3)), None);
        small_file::replace(&disk, LEVEL_NAME, b"{").expect("written");
        let refused = unused_epoch(&disk).expect_err("not known").to_string();
        assert!(
            refused.contains(LEVEL_NAME) && refused.contains("remove it"),
            "{refused}"
        );
        assert!(keep_level(&disk, Safety::Quorum, Epoch(3)).is_err() && keep_forgetting(&disk, Lsn(7)).is_err());
        assert!(was_primary(&disk, Epoch(3)));
        assert_eq!(committed_as_primary(&disk, Epoch(3)), Some(Lsn(0)));
        assert!(may_be_acknowledged(&disk, Lsn(5), (Epoch(3), Epoch(3))));
    }
}
