//! A standby beside a life's primary, fed by hand: late, twice, out of order, damaged; on a disk that fails and crashes. What it shows is what
//! the primary was at some moment, and it takes over.

use std::{
    cell::Cell,
    sync::{Arc, Mutex},
};

use reprise_base::{Lsn, Role, limits::PART_BYTES};
use reprise_database::{AppendError, AppendOutcome, Group, GroupSink, LogPolicy, Position, ShipForm};
use reprise_env::{
    SimDisk,
    sim::{CrashPolicy, FaultPlan},
};
use reprise_router::{BatchReply, LogSearch, NodePhase, ReplyOutcome};

use super::{Life, Run};
use crate::{
    mutant::Mutant,
    op::Op,
    world::{Settings, World},
};

/// Calls of its own on a promoted standby have numbers from here on.
const OWN_NONCE: i64 = 1 << 40;

#[derive(Clone)]
struct Sent {
    first: Lsn,
    end: Position,
    records: Vec<u8>,
}

impl Sent {
    fn get(&self) -> Group<'_> {
        Group {
            first: self.first,
            end: self.end,
            records: &self.records,
        }
    }

    /// Moves the group behind the existing records.
    fn behind(&mut self, before: &Position) {
        let count = self.end.lsn.0 - self.first.0;
        self.first = before.lsn;
        self.end.lsn = Lsn(before.lsn.0 + count);
        self.end.history = before.history.then(&self.records);
    }
}

/// All groups of a life, in order.
#[derive(Default)]
pub(super) struct Line(Mutex<Vec<Sent>>);

impl GroupSink for Line {
    fn take(&self, group: &Group<'_>) {
        self.0.lock().expect("one thread").push(Sent {
            first: group.first,
            end: group.end,
            records: group.records.to_vec(),
        });
    }
}

impl Line {
    /// The first one that is not wholly before `lsn`.
    fn behind(&self, lsn: Lsn) -> Option<Sent> {
        let sent = self.0.lock().expect("one thread");
        sent.iter().find(|sent| sent.end.lsn > lsn).cloned()
    }

    fn any(&self, random: u64) -> Option<Sent> {
        let sent = self.0.lock().expect("one thread");
        let at = random as usize % sent.len().max(1);
        sent.get(at).cloned()
    }
}

/// See the module's header.
pub(super) struct Standby {
    pub(super) world: Life,
    line: Arc<Line>,
    settings: Settings,
    /// Records of a group that it never gets.
    lost: Cell<u64>,
}

impl Standby {
    fn position(&self) -> Position {
        let received = self.world.database().received();
        received.expect("it is a standby")
    }

    fn received(&self) -> Lsn {
        self.position().lsn
    }
}

impl Standby {
    /// Returns whether there are only parts of a given-up transaction behind the view. The next record of the primary drops them.
    fn has_parts_alone_up_to(&self, received: Lsn) -> bool {
        let router = self.world.router();
        let mut from = router.view();
        while from < received {
            let query = LogSearch {
                from: Some(from),
                limit: 100,
                ..LogSearch::default()
            };
            let Ok(page) = router.log_records(query) else {
                return false;
            };
            let are_parts = page.records.iter().all(|entry| entry.kind == "part");
            let Some(last) = page.records.last().filter(|_| are_parts) else {
                return false;
            };
            from = Lsn(last.lsn.0 + 1);
        }
        true
    }
}

impl Run {
    /// Some lives have one. Its directory is the primary's as that was opened.
    pub(super) fn begin_standby(&mut self, world: &Life) -> Result<(), String> {
        self.standby = None;
        let is_for_others = self.options.mutant.is_some_and(|mutant| mutant != Mutant::LostGroup);
        if is_for_others || self.below(2) == 0 {
            return Ok(());
        }
        let line = Arc::new(Line::default());
        world.database().add_group_sink(line.clone());
        let ship = match self.settings.log {
            _ if self.settings.nvram.is_some() => ShipForm::AsLogged,
            LogPolicy::Both => ShipForm::AsLogged,
            _ => [ShipForm::AsLogged, ShipForm::Changes, ShipForm::Command][self.below(3) as usize],
        };
        let shipped = world.database().ship_as(ship);
        shipped.map_err(|refused| format!("ship {}: {refused}", ship.name()))?;
        self.stats.shipped_apart += u64::from(ship != ShipForm::AsLogged);
        self.note(|| format!("ships {}", ship.name()));
        let disk = world.disk.copy();
        let settings = Settings {
            quarantines: false,
            redo: self.settings.redo,
            nvram: self.standby_region(),
            ..self.settings
        };
        self.stats.standbys += 1;
        self.standby = Some(self.open_standby(&disk, settings, line, 0)?);
        Ok(())
    }

    /// Chooses the first place of a standby's groups: one of two regions, or its files. The mutants harm files.
    fn standby_region(&mut self) -> Option<u64> {
        if self.options.mutant.is_some() {
            return None;
        }
        Some(self.below(4)).filter(|region| *region < 2)
    }

    pub(super) fn open_standby(
        &mut self,
        disk: &SimDisk,
        settings: Settings,
        line: Arc<Line>,
        lost: u64,
    ) -> Result<Standby, String> {
        disk.set_faults(FaultPlan::default());
        let sites = 1 + self.below(settings.partitions as u64) as u16;
        let seed = self.random.next_u64();
        let opened = World::open(disk, (settings, Role::Standby), sites, self.now_us, seed);
        let (world, report) = opened.map_err(|refused| format!("a standby: {}", refused.text()))?;
        self.note(|| {
            format!(
                "standby opened on {sites} sites, region {:?}: {} commands behind {:?}",
                settings.nvram, report.commands, report.checkpoint
            )
        });
        Ok(Standby {
            world,
            line,
            settings,
            lost: Cell::new(lost),
        })
    }

    pub(super) fn act_on_standby(&mut self, world: &Life) -> Result<(), String> {
        let Some(standby) = self.standby.take() else {
            return Ok(());
        };
        let standby = match self.below(15) {
            0..5 => {
                self.feed(&standby)?;
                standby
            }
            5..8 => {
                for _ in 0..self.below(20) {
                    standby.world.stepper.step();
                }
                standby
            }
            8 => {
                let taken = standby.world.checkpointer().take();
                self.note(|| format!("checkpoint of the standby: {:?}", taken.as_ref().map(|info| info.lsn)));
                standby
            }
            9 => self.restart_standby(standby)?,
            10 if self.fault_percent > 0 => {
                standby.world.disk.set_faults(FaultPlan {
                    sync_error_in: (self.below(2) == 0).then(|| self.random.below(6)),
                    write_error_in: (self.below(3) == 0).then(|| self.random.below(6)),
                    ..FaultPlan::default()
                });
                standby
            }
            _ => {
                self.check_standby(world, &standby)?;
                standby
            }
        };
        let standby = match standby.world.is_log_stopped() {
            true => self.restart_standby(standby)?,
            false => standby,
        };
        self.standby = Some(standby);
        Ok(())
    }

    /// Some groups; now and then one that must not be taken.
    fn feed(&mut self, standby: &Standby) -> Result<(), String> {
        let database = standby.world.database();
        for _ in 0..self.below(6) {
            let received = standby.received();
            let Some(mut next) = standby.line.behind(Lsn(received.0 + standby.lost.get())) else {
                return Ok(());
            };
            let is_mutant = self.options.mutant.is_some();
            if is_mutant && standby.lost.get() == 0 && self.below(3) == 0 {
                standby.lost.set(next.end.lsn.0 - next.first.0);
                continue;
            }
            if is_mutant {
                next.behind(&standby.position());
            }
            let is_odd = self.below(4) == 0 && !is_mutant;
            if let (true, Some(mut odd)) = (is_odd, standby.line.any(self.random.next_u64())) {
                let bit = self.random.next_u64() as usize;
                let is_damaged = odd.first >= received && !odd.records.is_empty();
                if is_damaged {
                    let at = bit % odd.records.len();
                    odd.records[at] ^= 1 << (bit % 8);
                }
                match database.place(&odd.get()) {
                    Ok(AppendOutcome::Known) if odd.end.lsn <= received => {}
                    Err(AppendError::Log(_)) => return Ok(()),
                    Err(_) if odd.end.lsn > received => {}
                    other => return Err(format!("a group to {} came to {other:?} at {received}", odd.end.lsn)),
                }
            }
            match database.place(&next.get()) {
                Ok(AppendOutcome::New) => {}
                Err(AppendError::Log(_)) => return Ok(()), // its disk failed
                other => return Err(format!("the group to {} came to {other:?}", next.end.lsn)),
            }
        }
        Ok(())
    }

    /// Lets the standby replay all that it received; false where its disk failed.
    fn settle_standby(&self, standby: &Standby) -> Result<bool, String> {
        let received = standby.received();
        loop {
            if let NodePhase::Failed { report } = standby.world.router().phase() {
                return Err(format!("the standby stopped: {report}"));
            }
            if standby.world.is_log_stopped() {
                return Ok(false);
            }
            if standby.world.router().view() >= received {
                return Ok(true);
            }
            if !standby.world.stepper.step() {
                // A disk that works again gets the records in NVRAM.
                standby.world.disk.set_faults(FaultPlan::default());
                if standby.has_parts_alone_up_to(received) {
                    return Ok(true);
                }
                standby.world.stepper.help();
            }
        }
    }

    /// Checks that the standby is at some LSN the same as the primary was.
    fn check_standby(&mut self, world: &Life, standby: &Standby) -> Result<(), String> {
        self.quiesce(world)?;
        self.feed(standby)?;
        if self.ledger.is_doubtful || !self.settle_standby(standby)? {
            return Ok(());
        }
        let view = standby.world.router().view();
        let second_from = self.ledger.second_from;
        let version = self.look_at_versions(&standby.world);
        let checked = self.check_restored(&standby.world, view, version.is_some());
        self.ledger.second_from = second_from;
        self.stats.standby_checks += 1;
        checked.map_err(|what| format!("the standby at LSN {view}: {what}"))
    }

    /// Crashes the standby, or closes it. The records that it had received and not made durable come once more.
    fn restart_standby(&mut self, standby: Standby) -> Result<Standby, String> {
        let Standby {
            mut world,
            line,
            settings,
            lost,
        } = standby;
        let persisted = world
            .database()
            .standby_positions()
            .map(|positions| positions.persisted);
        let policy = CrashPolicy::Random(self.random.next_u64());
        if self.below(3) == 0 {
            world.disk.set_faults(FaultPlan::default());
            let _ = world.close(); // its log may have failed before
        }
        let image = world.disk.crash(&policy);
        self.note(|| format!("the standby ends at {persisted:?}"));
        drop(world);
        self.stats.standby_restarts += 1;
        let settings = Settings {
            nvram: self.standby_region(),
            ..settings
        };
        let standby = self.open_standby(&image, settings, line, lost.get())?;
        match persisted.is_some_and(|persisted| standby.received() < persisted) {
            true => Err(format!("a standby lost what was durable up to {persisted:?}")),
            false => Ok(standby),
        }
    }

    /// Ends the primary's life. Now and then its standby takes over. Returns the disk with which the next life continues then.
    pub(super) fn fail_over(&mut self, former: &Life) -> Result<Option<SimDisk>, String> {
        let Some(standby) = self.standby.take() else {
            return Ok(None);
        };
        if self.below(2) == 0 {
            return Ok(None);
        }
        self.quiesce(former)?;
        self.feed(&standby)?;
        standby.world.disk.set_faults(FaultPlan::default());
        let received = standby.received();
        let promoted = match standby.world.database().promote() {
            Ok(promoted) => promoted,
            Err(_) if standby.world.is_log_stopped() => return Ok(None),
            Err(error) => return Err(format!("promote: {error}")),
        };
        self.note(|| format!("promoted: {promoted:?}"));
        if promoted.lsn != received || standby.world.database().promote().is_ok() {
            return Err(format!("{received} was received, and it was promoted as {promoted:?}"));
        }
        self.stats.promotions += 1;
        let Standby { mut world, .. } = {
            let second_from = self.ledger.second_from;
            let version = self.look_at_versions(&standby.world);
            if !self.ledger.is_doubtful {
                let checked = self.check_restored(&standby.world, promoted.lsn, version.is_some());
                checked.map_err(|what| format!("promoted at {}: {what}", promoted.lsn))?;
            }
            self.ledger.second_from = second_from;
            standby
        };
        if self.options.mutant.is_none() {
            let old = former.disk.crash(&CrashPolicy::Random(self.random.next_u64()));
            self.check_deposed(&old, &world.disk.copy(), promoted.lsn)?;
        }
        if self.below(2) == 0 {
            return self.check_writes(&world, promoted.lsn).map(|()| None);
        }
        let found = match self.look_at_versions(&world) {
            Some(_) => self.read_all(&world)?.ok_or("the log stopped at once")?,
            None => Default::default(),
        };
        self.take_over(promoted.lsn, &found)?;
        let image = match self.below(2) {
            0 => world.disk.crash(&CrashPolicy::Random(self.random.next_u64())),
            _ => {
                world.close()?;
                world.disk.crash(&CrashPolicy::LoseAll)
            }
        };
        Ok(Some(image))
    }

    /// A promoted standby takes writes, from the first LSN of its epoch on.
    fn check_writes(&mut self, world: &Life, lsn: Lsn) -> Result<(), String> {
        // The primary's life continues with its own version.
        let second_from = self.ledger.second_from;
        let version = self.look_at_versions(world);
        self.ledger.second_from = second_from;
        if version.is_none() {
            return Ok(());
        }
        let op = Op::Announce { value: 1 };
        let mut args = Vec::new();
        op.encode(OWN_NONCE, &mut args);
        let mut reply = write_one(world, (op.procedure(), None, args.clone()));
        if matches!(reply.get(0).outcome, ReplyOutcome::LogUnavailable(_)) {
            // Its disk, which failed before, is tried again after half a second.
            world.clock.advance_us(1_000_000);
            while world.stepper.step() {}
            reply = write_one(world, (op.procedure(), None, args));
        }
        let answer = reply.get(0);
        // Parts of it may lie there.
        let is_first = answer.lsn == lsn || self.settings.part_bytes < PART_BYTES && answer.lsn > lsn;
        match *answer.outcome == ReplyOutcome::Committed && is_first {
            true => Ok(()),
            false => Err(format!(
                "a write on a promoted standby: {:?} at {}, not {lsn}",
                answer.outcome, answer.lsn
            )),
        }
    }
}

fn write_one(world: &Life, call: (&str, Option<&str>, Vec<u8>)) -> BatchReply {
    world.submit(&[call], Vec::new());
    loop {
        match world.take_arrived().pop() {
            Some(arrived) => break arrived.reply,
            None => world.stepper.help(),
        }
    }
}
