//! The standbys that a primary expects, beside its log: what they lack is held for them after a restart, too.

use std::sync::{Arc, Mutex};

use reprise_base::{Lsn, check_node_name};
use reprise_env::{Disk, DiskError};
use reprise_router::OutOfSync;
use reprise_ship::Expected;
use serde::{Deserialize, Serialize};

use crate::small_file;

pub(crate) const EXPECTED_NAME: &str = "standbys.json";

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Stored {
    name: String,
    /// From here on it needs the log.
    lsn: u64,
    /// Its log was durable up to here.
    persisted: u64,
    in_sync: bool,
    counted: bool,
    /// In sync when the reign that the list is of ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    was_in_sync: bool,
}

/// The list, or why what is there is none. Nobody where there is no such file.
fn read(root: &dyn Disk) -> Result<Result<Vec<Stored>, String>, DiskError> {
    let Some(bytes) = small_file::read(root, EXPECTED_NAME)? else {
        return Ok(Ok(Vec::new()));
    };
    let wrong = |error: String| format!("{EXPECTED_NAME} can't be read: {error}");
    let standbys = serde_json::from_slice::<Vec<Stored>>(&bytes).map_err(|error| wrong(error.to_string()));
    Ok(standbys.and_then(|standbys| {
        let names = standbys.iter().try_for_each(|standby| check_node_name(&standby.name));
        names.map_err(wrong).map(|()| standbys)
    }))
}

fn write(root: &dyn Disk, standbys: &[Stored]) -> Result<(), DiskError> {
    let text = serde_json::to_vec(standbys).expect("names and numbers");
    small_file::replace(root, EXPECTED_NAME, &text)
}

/// Nobody where there is no such file. Err: why it can't be read.
pub(crate) fn load(root: &dyn Disk) -> Result<Vec<Expected>, String> {
    let read = read(root).map_err(|error| error.to_string())??;
    let standbys = read.into_iter().map(|standby| Expected {
        name: standby.name.into(),
        from: Lsn(standby.lsn),
        persisted: Lsn(standby.persisted),
        is_in_sync: standby.in_sync,
        is_counted: standby.counted,
    });
    Ok(standbys.collect())
}

/// Who was out of sync with this server when it was the primary last, and from which LSN on; nobody where the list can't be read.
pub(crate) fn laggards(root: &dyn Disk) -> Vec<OutOfSync> {
    // What can't be read is told when standbys are taken.
    let standbys = read(root).unwrap_or(Ok(Vec::new())).unwrap_or_default().into_iter();
    let out = standbys.filter(|standby| !standby.in_sync && !standby.was_in_sync);
    out.map(|standby| OutOfSync {
        from: Lsn(standby.persisted),
        name: standby.name,
    })
    .collect()
}

pub(crate) fn save(root: &dyn Disk, standbys: &[Expected]) -> Result<(), DiskError> {
    let expected = standbys.iter().map(|standby| Stored {
        name: standby.name.to_string(),
        lsn: standby.from.0,
        persisted: standby.persisted.0,
        in_sync: standby.is_in_sync,
        counted: standby.is_counted,
        was_in_sync: false,
    });
    write(root, &expected.collect::<Vec<_>>())
}

/// What was saved last, of a primary. Who may take over looks elsewhere first, where there is a lease.
pub(crate) struct Keeping {
    root: Arc<dyn Disk>,
    saved: Mutex<Vec<Expected>>,
}

impl Keeping {
    /// `saved`: as it was read.
    pub fn new(root: Arc<dyn Disk>, saved: Vec<Expected>) -> Self {
        let saved = Mutex::new(saved);
        Self { root, saved }
    }

    /// `is_recorded`: those who may take over know it. Until then a standby that leaves has not left, and callers wait already for one that comes: a
    /// start after this one is to know of both.
    pub fn save(&self, standbys: &[Expected], is_recorded: bool) -> Result<(), DiskError> {
        let mut saved = self.saved.lock().expect("nothing panics under this lock");
        let mut next = standbys.to_vec();
        if !is_recorded {
            let was_in = |name: &str| saved.iter().any(|before| *before.name == *name && before.is_in_sync);
            next.iter_mut()
                .for_each(|standby| standby.is_in_sync |= was_in(&standby.name));
            let comes = |standby: &&Expected| standby.is_in_sync && !was_in(&standby.name);
            if next.iter().find(comes).is_none() {
                return Ok(());
            }
        }
        save(&*self.root, &next)?;
        *saved = next;
        Ok(())
    }
}

/// Of a server that becomes the primary: they may have gone other ways since it was one. None is in sync, nothing is known of what they have, and the
/// log is held for them as before. Those that its primary told to be out of sync are expected, too. Before anything is answered: the next start
/// goes by this.
pub(crate) fn begin_reign(root: &dyn Disk, laggards: &[OutOfSync]) -> Result<(), DiskError> {
    change(root, |standbys| {
        for standby in &mut *standbys {
            standby.end();
            standby.was_in_sync = false;
        }
        for laggard in laggards {
            if standbys.iter().all(|standby| standby.name != laggard.name) {
                standbys.push(Stored {
                    name: laggard.name.clone(),
                    lsn: laggard.from.0,
                    persisted: 0,
                    in_sync: false,
                    counted: false,
                    was_in_sync: false,
                });
            }
        }
    })
}

/// Of a server that takes the log of another primary: they may lack what that one answered. None is in sync, and nothing is known of what they have of
/// it; whoever was in sync is no laggard of this server's.
pub(crate) fn end_reign(root: &dyn Disk) -> Result<(), DiskError> {
    change(root, |standbys| standbys.iter_mut().for_each(Stored::end))
}

/// Whether `end_reign` may have something to do.
pub(crate) fn may_have_led(root: &dyn Disk) -> bool {
    let is_ended = |standby: &Stored| !standby.in_sync && standby.persisted == 0;
    match read(root) {
        Ok(Ok(standbys)) => !standbys.iter().all(is_ended),
        Ok(Err(_)) => false, // garbage stays
        Err(_) => true,
    }
}

/// Of a server that is opened as the primary: nobody is in sync because of an earlier reign, and who is not is a laggard.
pub(crate) fn open_reign(root: &dyn Disk) -> Result<(), DiskError> {
    change(root, |standbys| {
        standbys.iter_mut().for_each(|standby| standby.was_in_sync = false);
    })
}

impl Stored {
    /// The reign ends in which it was in sync.
    fn end(&mut self) {
        self.was_in_sync |= self.in_sync;
        (self.in_sync, self.persisted) = (false, 0);
    }
}

/// Writes the list where `change` makes another one of it. Garbage stays: it is told when standbys are taken.
fn change(root: &dyn Disk, change: impl FnOnce(&mut Vec<Stored>)) -> Result<(), DiskError> {
    let Ok(mut standbys) = read(root)? else {
        return Ok(());
    };
    let before = standbys.clone();
    change(&mut standbys);
    match standbys == before {
        true => Ok(()),
        false => write(root, &standbys),
    }
}

#[cfg(test)]
mod tests {
    use reprise_env::SimDisk;

    use super::*;

    #[test]
    fn a_list_reads_back_and_garbage_is_said() {
        let disk = SimDisk::new();
        assert_eq!(load(&disk), Ok(Vec::new()));
        let standby = |name: &str, from, is_in_sync| Expected {
            name: name.into(),
            from: Lsn(from),
            persisted: Lsn(from / 2),
            is_in_sync,
            is_counted: true,
        };
        begin_reign(&disk, &[]).expect("nobody is expected");
        let standbys = [standby("s1", 7, false), standby("s2", u64::MAX, true)];
        save(&disk, &standbys).expect("saved");
        assert_eq!(load(&disk), Ok(standbys.to_vec()));
        begin_reign(&disk, &[]).expect("saved");
        let left = load(&disk).expect("read");
        assert!(
            left.iter()
                .all(|standby| standby.persisted == Lsn(0) && !standby.is_in_sync)
        );
        assert_eq!(
            left.iter().map(|standby| standby.from.0).collect::<Vec<_>>(),
            [7, u64::MAX]
        );
        let stranger = r#"[{"name":"a/b","lsn":1,"persisted":1,"in_sync":false,"counted":false}]"#;
        for (garbage, what) in [("[", "EOF"), (stranger, "letters, digits")] {
            small_file::replace(&disk, EXPECTED_NAME, garbage.as_bytes()).expect("saved");
            let error = load(&disk).expect_err("refused");
            assert!(error.contains(what) && error.contains(EXPECTED_NAME), "{error}");
        }
    }

    #[test]
    fn who_was_in_sync_in_a_reign_that_ended_is_neither_in_sync_nor_a_laggard_until_the_next_one() {
        let disk = SimDisk::new();
        end_reign(&disk).expect("there is no list");
        open_reign(&disk).expect("there is no list");
        let list = br#"[{"name":"s1","lsn":9,"persisted":9,"in_sync":true,"counted":true},
            {"name":"s2","lsn":7,"persisted":5,"in_sync":false,"counted":false}]"#;
        small_file::replace(&disk, EXPECTED_NAME, list).expect("written");
        let out = || -> Vec<(String, u64)> {
            let out = laggards(&disk).into_iter();
            out.map(|laggard| (laggard.name, laggard.from.0)).collect()
        };
        assert_eq!(out(), [("s2".to_owned(), 5)]);
        open_reign(&disk).expect("nothing is to be done");
        assert!(load(&disk).expect("read")[0].is_in_sync, "its own reign goes on");
        for again in [false, true] {
            end_reign(&disk).expect("saved");
            assert_eq!(out(), [("s2".to_owned(), 0)], "{again}");
            let left = load(&disk).expect("read");
            let is_ended = |standby: &Expected| !standby.is_in_sync && standby.persisted == Lsn(0);
            assert!(left.iter().all(is_ended) && left[0].is_counted, "{left:?}");
            assert_eq!(
                (left[0].from, left[1].from),
                (Lsn(9), Lsn(7)),
                "the log is held as before"
            );
        }
        let both = [("s1".to_owned(), 0), ("s2".to_owned(), 0)];
        let ended = small_file::read(&disk, EXPECTED_NAME).expect("read").expect("there");
        open_reign(&disk).expect("saved");
        assert_eq!(out(), both);
        // Also where it is promoted.
        small_file::replace(&disk, EXPECTED_NAME, &ended).expect("written");
        begin_reign(&disk, &[]).expect("saved");
        assert_eq!(out(), both);
        small_file::replace(&disk, EXPECTED_NAME, b"[").expect("written");
        end_reign(&disk).expect("told when standbys are taken");
        open_reign(&disk).expect("told when standbys are taken");
        assert_eq!(
            small_file::read(&disk, EXPECTED_NAME).expect("read").as_deref(),
            Some(&b"["[..])
        );
    }

    #[test]
    fn until_it_is_recorded_who_leaves_is_in_sync_and_so_is_who_comes() {
        let disk = SimDisk::new();
        let list = |words: &str| -> Vec<Expected> {
            let standby = |word: &str| Expected {
                name: word.trim_start_matches('+').into(),
                from: Lsn(1),
                persisted: Lsn(1),
                is_in_sync: word.starts_with('+'),
                is_counted: true,
            };
            words.split_whitespace().map(standby).collect()
        };
        let keeping = Keeping::new(Arc::new(disk.clone()), list("s1 s2"));
        for (told, is_recorded, kept) in [
            ("+s1 s2", false, "+s1 s2"),
            ("+s1 +s2", true, "+s1 +s2"),
            ("s1 +s2", false, "+s1 +s2"),
            ("s1 +s2 +s3", false, "+s1 +s2 +s3"),
            ("s1 +s2", true, "s1 +s2"),
        ] {
            keeping.save(&list(told), is_recorded).expect("saved");
            assert_eq!(load(&disk), Ok(list(kept)), "{told}");
        }
    }
}
