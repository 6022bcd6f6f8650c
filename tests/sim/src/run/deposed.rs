//! A primary from which another server took over comes back. Its own records are kept aside and cut off, and the rest is a standby's.

use std::sync::Arc;

use reprise_base::Lsn;
use reprise_database::{ClosedDirectory, CutBack, NodeFile, Position, cut_back};
use reprise_env::{Disk, SimDisk, sim::CrashPolicy};
use reprise_log::LogOutline;
use reprise_ship::ForkAnswer;

use super::{Run, standby::Line};
use crate::{
    tree::{CHECKPOINTS, LOG, ROOT, SimTree},
    world::{Settings, bring_home},
};

/// Cuts off the records that the log of the new primary does not have.
fn cut(old: &SimDisk, new: &LogOutline, now_us: i64) -> Result<CutBack, String> {
    let node = NodeFile::open(Arc::new(old.folder(ROOT))).map_err(|error| error.to_string())?;
    let directory = ClosedDirectory {
        root: Arc::new(old.folder(ROOT)),
        node,
        log: Arc::new(old.folder(LOG)),
        checkpoints: Arc::new(old.folder(CHECKPOINTS)),
        cuts: Arc::new(SimTree::new(old)),
    };
    let mut ask = |position: Position| {
        let there = new
            .history_at(position.lsn)
            .map_err(|error| Arc::from(error.to_string()))?;
        Ok(ForkAnswer {
            is_same: there == Some(position.history),
            durable: new.end.lsn,
            epochs: new.epochs(),
        })
    };
    cut_back(&directory, &mut ask, now_us).map_err(|error| format!("cut back: {error}"))
}

impl Run {
    /// The disk of the primary that was; the new one's, whose log parts from it at `fork` at the latest.
    pub(super) fn check_deposed(&mut self, old: &SimDisk, new: &SimDisk, fork: Lsn) -> Result<(), String> {
        let theirs: Arc<dyn Disk> = Arc::new(new.folder(LOG));
        let theirs = LogOutline::of(&theirs).map_err(|error| error.to_string())?;
        let theirs = theirs.ok_or("the new primary has no log")?;
        let settings = Settings {
            quarantines: false,
            ..self.settings
        };
        let seed = self.random.next_u64();
        let begun = old.ops_count();
        bring_home(old, settings, self.now_us, seed)?;
        let first = cut(old, &theirs, self.now_us)?;
        // After an interruption at any point, a second run ends in the same state.
        let ops = begun + self.below((old.ops_count() - begun) as u64 + 1) as usize;
        let image = old.crash_image(ops, &CrashPolicy::Random(self.random.next_u64()));
        bring_home(&image, settings, self.now_us, seed)?;
        let again = cut(&image, &theirs, self.now_us)?;
        self.note(|| format!("deposed at {fork}: {first:?}, interrupted after operation {ops}: {again:?}"));
        self.stats.deposed += 1;
        match (&first, &again) {
            (CutBack::Cut(cut), CutBack::Cut(_) | CutBack::Nothing) if Lsn(cut.from) == fork => self.stats.cuts += 1,
            (CutBack::Anew(_), CutBack::Anew(_)) => return Ok(()),
            (CutBack::Nothing, CutBack::Nothing) => {}
            other => {
                return Err(format!(
                    "a deposed primary came to {other:?}, its successor began at {fork}"
                ));
            }
        }
        let world = self.open_standby(&image, settings, Arc::<Line>::default(), 0)?.world;
        let view = world.router().view();
        if view > fork {
            return Err(format!(
                "a deposed primary still has {view}, its successor began at {fork}"
            ));
        }
        let second_from = self.ledger.second_from;
        let version = self.look_at_versions(&world);
        let checked = match self.ledger.is_doubtful {
            true => Ok(()),
            false => self.check_restored(&world, view, version.is_some()),
        };
        self.ledger.second_from = second_from;
        checked.map_err(|what| format!("a deposed primary at LSN {view}: {what}"))
    }
}
