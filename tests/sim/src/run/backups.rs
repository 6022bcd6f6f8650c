//! Backups, made while the database runs and of what a crash left; restores of them, and of the database, to any point.

use std::{collections::BTreeMap, sync::Arc};

use reprise_backup::{DirHandle, Point, create_backup_in, restore_in, verify_backup_in};
use reprise_base::Lsn;
use reprise_env::{
    SimDisk,
    sim::{CrashPolicy, FaultPlan},
};
use reprise_log::verify;
use reprise_upkeep::BackupPhase;

use super::{Life, Run};
use crate::{
    ledger::Fate,
    module::NAME,
    tree::{DataDir, LOG, SimTree},
};

const PREFIX: &str = "backup-";
/// Backups kept on the disk: each is a copy of everything.
const KEPT_MAX: usize = 3;

/// Backups that the server reported: by id, the number of disk operations in this life. None for those of earlier lives.
#[derive(Default)]
pub struct Told(BTreeMap<String, Option<usize>>);

impl Run {
    /// Begins a backup, or removes one.
    pub(super) fn back_up(&mut self, world: &Life) {
        let Ok(service) = world.database().backups() else {
            return;
        };
        let published = service
            .list()
            .into_iter()
            .filter(|info| info.state == BackupPhase::Published);
        let ids: Vec<_> = published.map(|info| info.id).collect();
        if ids.len() >= KEPT_MAX {
            let id = &ids[self.below(ids.len() as u64) as usize];
            let removed = service.remove(id);
            self.note(|| format!("remove backup {id}: {removed:?}"));
            self.told.0.remove(id);
            self.removed.push(id.clone());
            return;
        }
        let begun = service.create(false);
        self.note(|| format!("backup: {:?}", begun.as_ref().map(|info| &info.id)));
        self.stats.backups += begun.is_ok() as u64;
    }

    /// Records the published backups in the server's list.
    pub(super) fn look_at_backups(&mut self, world: &Life) {
        let Ok(service) = world.database().backups() else {
            return;
        };
        for info in service.list() {
            match info.state {
                BackupPhase::Published => {
                    let ops = world.disk.ops_count();
                    self.told.0.entry(info.id).or_insert(Some(ops));
                }
                BackupPhase::Failed => self.stats.failed_backups += 1,
                BackupPhase::Running => {}
            }
        }
    }

    /// Checks the backups after a crash. Those that a client was told of must be there, and each of them must be whole.
    pub(super) fn check_backups(&mut self, image: &SimDisk, ops_at_death: usize) -> Result<(), String> {
        self.told.0.retain(|_, ops| ops.is_none_or(|ops| ops <= ops_at_death));
        self.told.0.values_mut().for_each(|ops| *ops = None);
        let tree = Arc::new(SimTree::new(image));
        let names = reprise_backup::DirTree::list(&*tree).map_err(|error| error.to_string())?;
        if let Some(lost) = self.told.0.keys().find(|id| !names.contains(&format!("{PREFIX}{id}"))) {
            return Err(format!("backup {lost} was there, and is gone"));
        }
        for name in names.iter().filter(|name| name.starts_with(PREFIX)) {
            let id = name.trim_start_matches(PREFIX).to_owned();
            if self.removed.contains(&id) {
                continue; // half of it may be gone
            }
            let place = DirHandle::new(tree.clone(), name);
            let verified = verify_backup_in(&place, &mut |_| true);
            let verified = verified.map_err(|error| format!("{name} after a crash: {error}"))?;
            self.stats.verified_backups += 1;
            self.told.0.insert(id, None);
            match self.below(4) {
                0 => self.check_restore(&place, Some(Lsn(verified.manifest.log_end)), Point::End)?,
                1 => self.check_harmed_backup(image, name)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Makes a backup of the disk after a crash, on a disk that fails and crashes, and checks the restored database.
    pub(super) fn check_copies(&mut self, disk: &SimDisk) -> Result<(), String> {
        let source = DirHandle::new(Arc::new(DataDir(disk.clone())), "");
        let found = verify(&disk.folder(LOG)).map_err(|error| error.to_string())?;
        if found.records == 0 && found.start == Lsn(0) {
            return Ok(()); // its first record is not there yet
        }
        if self.below(2) == 0 {
            let point = Lsn(self.below(found.end.0 + 1));
            return self.check_restore(&source, None, Point::Lsn(point));
        }
        let target = SimDisk::new();
        target.set_faults(FaultPlan {
            sync_error_in: (self.below(3) == 0).then(|| self.random.below(12)),
            write_error_in: (self.below(3) == 0).then(|| self.random.below(12)),
            capacity_bytes: (self.below(4) == 0).then(|| self.random.below(40_000)),
            ..FaultPlan::default()
        });
        let make = |disk: &SimDisk, now_us| {
            let tree = Arc::new(SimTree::new(disk));
            create_backup_in(&source, &DirHandle::new(tree, "backup-1"), now_us)
        };
        let made = make(&target, self.now_us);
        self.note(|| format!("backup of the directory: {:?}", made.as_ref().map(|made| made.log_end)));
        let ops = match made.is_ok() && self.below(2) == 0 {
            true => target.ops_count(),
            false => self.below(target.ops_count() as u64 + 1) as usize,
        };
        let is_told = made.is_ok() && ops == target.ops_count();
        let policy = CrashPolicy::Random(self.random.next_u64());
        let image = target.crash_image(ops, &policy);
        let tree = Arc::new(SimTree::new(&image));
        let place = DirHandle::new(tree.clone(), "backup-1");
        let is_there = reprise_backup::DirTree::open(&*tree, "backup-1").is_ok();
        if is_told && !is_there {
            return Err("a backup that was made is gone".into());
        }
        if !is_there {
            // The new backup takes the place of the crash's remains, or of nothing.
            make(&image, self.now_us).map_err(|error| format!("a backup after a crash: {error}"))?;
        }
        let verified = verify_backup_in(&place, &mut |_| true);
        let verified = verified.map_err(|error| format!("a backup of the directory: {error}"))?;
        self.stats.verified_backups += 1;
        self.check_restore(&place, Some(Lsn(verified.manifest.log_end)), Point::End)
    }

    /// Flips a bit of a backup, which must then be refused and leave nothing.
    fn check_harmed_backup(&mut self, image: &SimDisk, name: &str) -> Result<(), String> {
        let harmed = image.copy();
        let tree = Arc::new(SimTree::new(&harmed));
        let place = DirHandle::new(tree.clone(), name);
        let whole = verify_backup_in(&place, &mut |_| true).map_err(|error| error.to_string())?;
        let files = &whole.manifest.files;
        let at = self.below(files.len() as u64 + 1) as usize;
        let path = files.get(at).map_or("manifest.json", |file| &file.path);
        let (folder, file) = tree
            .file(&format!("{name}/{path}"))
            .ok_or("a file of the manifest is gone")?;
        let bit = self.random.next_u64();
        folder.damage(&file, |bytes| {
            let at = (bit >> 8) as usize % bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << (bit % 8);
            }
        });
        let target = DirHandle::new(tree.clone(), "restored");
        let restored = restore_in(&place, &target, Point::End, self.now_us);
        if verify_backup_in(&place, &mut |_| true).is_ok() || restored.is_ok() {
            return Err(format!("{name}: a flipped bit of {path} is not found"));
        }
        match reprise_backup::DirTree::open(&*tree, "restored") {
            Ok(_) => Err(format!("{name}: something was restored of what is damaged")),
            Err(_) => Ok(()),
        }
    }

    /// Checks that a restored directory holds the calls before `cut` and no others: each whole, with the answer that it gave.
    fn check_restore(&mut self, source: &DirHandle, cut: Option<Lsn>, point: Point) -> Result<(), String> {
        let target = SimDisk::new();
        let tree = Arc::new(SimTree::new(&target));
        let place = DirHandle::new(tree.clone(), "restored");
        let restored = match restore_in(source, &place, point, self.now_us) {
            Ok(restored) => restored,
            Err(error) if matches!(point, Point::Lsn(_)) => {
                self.note(|| format!("not restored to {point:?}: {error}"));
                return Ok(()); // the LSN is probably before the kept log
            }
            Err(error) => return Err(format!("restore to {point:?}: {error}")),
        };
        self.stats.restores += 1;
        let cut = cut.unwrap_or(restored.cut);
        self.note(|| format!("restored to {point:?}, LSN {cut}: {:?}", restored.checkpoint));
        let disk = tree.extract("restored").map_err(|error| error.to_string())?;
        let opened = self.open_on(&disk, 1).map_err(|refused| refused.text());
        let (mut world, _) = opened.map_err(|what| format!("what was restored: {what}"))?;
        let second_from = self.ledger.second_from;
        let version = self.look_at_versions(&world);
        let checked = self.check_restored(&world, cut, version.is_some());
        self.ledger.second_from = second_from;
        checked.map_err(|what| format!("restored to {point:?}, LSN {cut}: {what}"))?;
        world.close()
    }

    pub(super) fn check_restored(&mut self, world: &Life, cut: Lsn, is_deployed: bool) -> Result<(), String> {
        let found = match is_deployed {
            true => self.read_all(world)?.ok_or("the log stopped at once")?,
            false => Default::default(),
        };
        debug_assert!(!is_deployed || world.router().deployed().current.contains_key(NAME));
        let fates: Vec<_> = self.ledger.calls.iter().map(|call| call.fate.clone()).collect();
        self.ledger.resolve(&found);
        let judged = self.ledger.cut_at(cut, &found);
        let seen = self.ledger.take_seen();
        let compared = judged.and_then(|()| self.compare(&found, "the tables"));
        self.ledger.give_seen(seen);
        let calls = self.ledger.calls.iter_mut();
        calls.zip(fates).for_each(|(call, fate): (_, Fate)| call.fate = fate);
        compared
    }
}
