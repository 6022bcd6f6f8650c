//! What a standby was told of who is in sync, beside its log: one that may lack what was answered is not promoted unawares.

use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};

use reprise_base::{Epoch, Lsn, check_node_name};
use reprise_env::{Disk, DiskError};
use reprise_log::Position;
use reprise_router::{LostRange, OutOfSync};
use reprise_ship::StandingSeen;
use reprise_wire::InSync;
use serde::{Deserialize, Serialize};

use crate::{cutting, expected, small_file};

/// In the data directory of a standby, until it is the primary.
pub const STANDING_NAME: &str = "standing.json";
/// How often at most it is kept how far the primary is, in nanoseconds.
const KEPT_EVERY_NS: u64 = 1_000_000_000;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Laggard {
    name: String,
    lsn: u64,
}

/// As it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    /// Of the primary that told it.
    epoch: u32,
    in_sync: bool,
    /// In sync, as one of those of whom a quorum is waited for: others may have more.
    of_quorum: bool,
    /// What was durable here by then.
    lsn: u64,
    /// What was durable there, as far as it told.
    primary_lsn: u64,
    laggards: Vec<Laggard>,
}

struct State {
    /// None: no primary told anything.
    kept: Option<Kept>,
    /// Who was out of sync with this server when it was a primary last.
    own: Vec<OutOfSync>,
    kept_ns: u64,
}

/// What the primary told, on the disk and in memory.
pub(crate) struct Synced {
    root: Arc<dyn Disk>,
    state: Mutex<State>,
    /// Somebody may be kept as in sync with this server itself.
    may_have_led: AtomicBool,
}

/// None: there is no such file, or one that can't be read, which is the same: a standby that was told nothing is out of sync.
fn load(root: &dyn Disk) -> Option<Kept> {
    let bytes = small_file::read(root, STANDING_NAME).ok().flatten()?;
    let kept: Kept = serde_json::from_slice(&bytes).ok()?;
    let are_names = kept
        .laggards
        .iter()
        .all(|laggard| check_node_name(&laggard.name).is_ok());
    are_names.then_some(kept)
}

/// What was told holds for this log no longer.
pub(crate) fn forget(root: &dyn Disk) -> Result<(), DiskError> {
    small_file::remove(root, STANDING_NAME)?;
    root.sync_dir()
}

/// Before the first files of a standby get their place in this directory: what an earlier log of it was told is nothing to that one, and whoever was in
/// sync with this server may lack what is in it.
pub fn forget_earlier_log(root: &dyn Disk) -> Result<(), DiskError> {
    forget(root)?;
    cutting::end_level(root)?;
    expected::end_reign(root)
}

impl Synced {
    /// As it was kept for a log that is here by now: one that lost records since, or has some of a later epoch, is another one.
    pub fn open(root: Arc<dyn Disk>, log: Option<Position>) -> Self {
        let mut kept = load(&*root);
        if let (Some(kept), Some(at)) = (&mut kept, log) {
            kept.in_sync &= at.lsn.0 >= kept.lsn && at.epoch.0 <= kept.epoch;
        }
        let state = State {
            kept,
            own: expected::laggards(&*root),
            kept_ns: 0,
        };
        let may_have_led = AtomicBool::new(expected::may_have_led(&*root));
        Self {
            root,
            state: Mutex::new(state),
            may_have_led,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }

    fn save(&self, kept: &Kept) -> Result<(), DiskError> {
        let text = serde_json::to_vec(kept).expect("names and numbers");
        small_file::replace(&*self.root, STANDING_NAME, &text)
    }

    /// The primary told it. Err: it can't be kept, and what was kept before holds.
    pub fn keep(&self, standing: &StandingSeen, persisted: Lsn) -> Result<(), DiskError> {
        let mut state = self.lock();
        let kept = Kept {
            epoch: standing.epoch.0,
            in_sync: standing.in_sync != InSync::No,
            of_quorum: standing.in_sync == InSync::OfQuorum,
            lsn: persisted.0,
            primary_lsn: state.kept.as_ref().map_or(0, |kept| kept.primary_lsn),
            laggards: standing
                .laggards
                .iter()
                .map(|(name, from)| Laggard {
                    name: name.clone(),
                    lsn: from.0,
                })
                .collect(),
        };
        // From here on this one counts where it is the worse: what becomes of the write is not known.
        if let Some(before) = &mut state.kept {
            before.in_sync &= kept.in_sync;
            before.of_quorum |= kept.of_quorum;
        }
        self.save(&kept)?;
        state.kept = Some(kept);
        Ok(())
    }

    /// The primary is so far. It is kept now and then, while this standby is out of sync.
    pub fn note_primary(&self, durable: Lsn, now_ns: u64) {
        let mut state = self.lock();
        let is_due = now_ns.saturating_sub(state.kept_ns) >= KEPT_EVERY_NS;
        let Some(kept) = state.kept.as_mut().filter(|kept| kept.primary_lsn < durable.0) else {
            return;
        };
        kept.primary_lsn = durable.0;
        if !kept.in_sync && is_due {
            let kept = kept.clone();
            state.kept_ns = now_ns;
            // Without it less is known of what may be lost.
            let _ = self.save(&kept);
        }
    }

    /// True where the primary told so last.
    pub fn is_in_sync(&self) -> bool {
        self.lock().kept.as_ref().is_some_and(|kept| kept.in_sync)
    }

    /// Whom the primary told to be out of sync, beside this standby; where none told anything, who was out of sync with this server itself.
    pub fn laggards(&self) -> Vec<OutOfSync> {
        let state = self.lock();
        let Some(kept) = &state.kept else {
            return state.own.clone();
        };
        let laggards = kept.laggards.iter();
        laggards
            .map(|laggard| OutOfSync {
                name: laggard.name.clone(),
                from: Lsn(laggard.lsn),
            })
            .collect()
    }

    /// Of the last primary that told anything; 0: none did.
    pub fn epoch(&self) -> Epoch {
        let state = self.lock();
        state.kept.as_ref().map_or(Epoch(0), |kept| Epoch(kept.epoch))
    }

    /// What was answered, perhaps, and is not here, where everything before `end` is. None: nothing, since this standby is in sync with a primary
    /// that waits for each one that is.
    pub fn may_be_lost(&self, end: Lsn) -> Option<LostRange> {
        let has_all = self
            .lock()
            .kept
            .as_ref()
            .is_some_and(|kept| kept.in_sync && !kept.of_quorum);
        (!has_all).then(|| self.behind(end))
    }

    /// The primary was reached, and turned this standby away: it may answer what does not come here. Err: that can't be kept.
    pub fn lose(&self) -> Result<(), DiskError> {
        let mut state = self.lock();
        let Some(kept) = state.kept.as_mut().filter(|kept| kept.in_sync) else {
            return Ok(());
        };
        kept.in_sync = false;
        let kept = kept.clone();
        self.save(&kept)
    }

    /// The same, whether it is in sync or not.
    pub fn behind(&self, end: Lsn) -> LostRange {
        let state = self.lock();
        let known = state.kept.as_ref();
        LostRange {
            epoch: known.map_or(Epoch(0), |kept| Epoch(kept.epoch)),
            from: end,
            known_to: end.max(Lsn(known.map_or(0, |kept| kept.primary_lsn))),
        }
    }

    /// Before a record of another primary is taken: whoever was in sync with this server may lack it, also where this one is started as the primary
    /// again, and not promoted. Err: that can't be kept, and nothing may be taken.
    pub fn end_reign(&self) -> Result<(), DiskError> {
        if self.may_have_led.load(Ordering::Relaxed) {
            expected::end_reign(&*self.root)?;
            self.may_have_led.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// This server is the primary now.
    pub fn forget(&self) -> Result<(), DiskError> {
        let mut state = self.lock();
        (state.kept, state.own) = (None, Vec::new());
        drop(state);
        forget(&*self.root)
    }
}

#[cfg(test)]
mod tests {
    use reprise_env::{SimDisk, sim::FaultPlan};
    use reprise_wire::History;

    use super::*;

    fn at(epoch: u32, lsn: u64) -> Option<Position> {
        Some(Position {
            epoch: Epoch(epoch),
            lsn: Lsn(lsn),
            history: History(0),
        })
    }

    fn standing(epoch: u32, in_sync: InSync) -> StandingSeen {
        StandingSeen {
            epoch: Epoch(epoch),
            in_sync,
            laggards: vec![("s2".into(), Lsn(40))],
        }
    }

    #[test]
    fn what_was_told_is_there_after_a_restart_and_holds_for_its_log_alone() {
        let disk = SimDisk::new();
        let open = |log| Synced::open(Arc::new(disk.clone()), log);
        let first = open(at(2, 50));
        assert!(!first.is_in_sync(), "nothing was told");
        let lost = first.may_be_lost(Lsn(50)).expect("out of sync");
        assert_eq!((lost.epoch, lost.from, lost.known_to), (Epoch(0), Lsn(50), Lsn(50)));
        first.keep(&standing(2, InSync::Yes), Lsn(50)).expect("kept");
        assert!(first.is_in_sync() && first.may_be_lost(Lsn(50)).is_none());
        for (log, is_in_sync) in [
            (at(2, 50), true),
            (at(1, 60), true),
            (at(2, 49), false),
            (at(3, 60), false),
        ] {
            let again = open(log);
            assert_eq!(again.is_in_sync(), is_in_sync, "{log:?}");
            assert_eq!(again.laggards()[0].from, Lsn(40));
        }
        // At quorum others may have more.
        first.keep(&standing(3, InSync::OfQuorum), Lsn(60)).expect("kept");
        assert!(first.is_in_sync() && open(at(3, 60)).is_in_sync());
        for synced in [&first, &open(at(3, 60))] {
            let lost = synced.may_be_lost(Lsn(60)).expect("it can't know");
            assert_eq!((lost.epoch, lost.from), (Epoch(3), Lsn(60)));
        }
        // Its primary had to turn it away.
        first.keep(&standing(3, InSync::Yes), Lsn(60)).expect("kept");
        assert!(open(at(3, 60)).may_be_lost(Lsn(60)).is_none());
        first.lose().expect("kept");
        assert!(!first.is_in_sync() && !open(at(3, 60)).is_in_sync());
        first.keep(&standing(3, InSync::No), Lsn(60)).expect("kept");
        first.note_primary(Lsn(75), 2_000_000_000);
        let lost = open(at(3, 60)).may_be_lost(Lsn(60)).expect("out of sync");
        assert_eq!((lost.epoch, lost.from, lost.known_to), (Epoch(3), Lsn(60), Lsn(75)));
        first.forget().expect("removed");
        assert!(open(at(3, 60)).laggards().is_empty());
        small_file::replace(&disk, STANDING_NAME, b"{}").expect("written");
        assert!(!open(at(3, 60)).is_in_sync(), "garbage tells nothing");
    }

    #[test]
    fn a_former_primary_tells_who_was_out_of_sync_with_it_until_another_one_tells_more() {
        let disk = SimDisk::new();
        let list = br#"[{"name":"s1","lsn":9,"persisted":9,"in_sync":true,"counted":false},
            {"name":"s2","lsn":7,"persisted":5,"in_sync":false,"counted":false}]"#;
        small_file::replace(&disk, expected::EXPECTED_NAME, list).expect("written");
        let synced = Synced::open(Arc::new(disk.clone()), at(1, 9));
        let told = |synced: &Synced| -> Vec<(String, u64)> {
            let laggards = synced.laggards().into_iter();
            laggards.map(|laggard| (laggard.name, laggard.from.0)).collect()
        };
        assert_eq!(told(&synced), [("s2".to_owned(), 5)]);
        synced.keep(&standing(2, InSync::Yes), Lsn(9)).expect("kept");
        assert_eq!(told(&synced), [("s2".to_owned(), 40)]);
        // Whoever becomes the primary goes on to tell it.
        expected::begin_reign(&disk, &synced.laggards()).expect("saved");
        let list = expected::load(&disk).expect("read");
        let found: Vec<_> = list
            .iter()
            .map(|standby| (&*standby.name, standby.from.0, standby.persisted.0))
            .collect();
        assert_eq!(found, [("s1", 9, 0), ("s2", 7, 0)]);
        small_file::remove(&disk, expected::EXPECTED_NAME).expect("removed");
        expected::begin_reign(&disk, &synced.laggards()).expect("saved");
        let list = expected::load(&disk).expect("read");
        assert_eq!(
            (&*list[0].name, list[0].from, list[0].is_in_sync),
            ("s2", Lsn(40), false)
        );
    }

    #[test]
    fn nobody_is_in_sync_with_a_former_primary_that_takes_another_one_s_records() {
        let disk = SimDisk::new();
        let list = br#"[{"name":"s1","lsn":9,"persisted":9,"in_sync":true,"counted":false}]"#;
        small_file::replace(&disk, expected::EXPECTED_NAME, list).expect("written");
        let are_in_sync = || {
            expected::load(&disk)
                .expect("read")
                .iter()
                .any(|standby| standby.is_in_sync)
        };
        let synced = Synced::open(Arc::new(disk.clone()), at(1, 9));
        synced.keep(&standing(2, InSync::No), Lsn(9)).expect("kept");
        assert!(are_in_sync(), "nothing of it is here");
        let full = FaultPlan {
            read_only: true,
            ..FaultPlan::default()
        };
        disk.set_faults(full.clone());
        synced.end_reign().expect_err("the disk is full");
        disk.set_faults(FaultPlan::default());
        assert!(are_in_sync());
        synced.end_reign().expect("kept");
        assert!(!are_in_sync());
        disk.set_faults(full);
        synced.end_reign().expect("it is kept already");
        // It has told nobody yet, and its primary told nothing that is left: s1 is no laggard because of that.
        disk.set_faults(FaultPlan::default());
        forget_earlier_log(&disk).expect("removed");
        assert!(Synced::open(Arc::new(disk), at(1, 9)).laggards().is_empty());
    }

    #[test]
    fn one_that_can_t_keep_what_it_is_told_is_out_of_sync_where_either_says_so() {
        let disk = SimDisk::new();
        let synced = Synced::open(Arc::new(disk.clone()), at(1, 5));
        synced.keep(&standing(1, InSync::Yes), Lsn(5)).expect("kept");
        disk.set_faults(FaultPlan {
            read_only: true,
            ..FaultPlan::default()
        });
        synced
            .keep(&standing(1, InSync::No), Lsn(6))
            .expect_err("the disk is full");
        assert!(!synced.is_in_sync());
        synced
            .keep(&standing(1, InSync::Yes), Lsn(7))
            .expect_err("the disk is full");
        assert!(!synced.is_in_sync());
    }
}
