//! Promotions while the disk of the standby takes nothing, or no descriptor is left.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use crate::common::{call_i64, close, digest_now, transfer};
use crate::following::{
    ACCEPTING, Cluster, bootstrap, follow_primary, service, wait_in_sync, wait_seen, wait_streaming, wait_until,
};
use reprise_base::Role;
use reprise_database::{Database, Environment, OpenError};
use reprise_env::{Disk, DiskError, DiskErrorKind, DiskFile, DiskFilter, FilteredDisk};
use reprise_router::ReplicationError;

/// The disk of a standby. It can refuse the saves of its document, and the writes of its log.
#[derive(Default)]
struct Faults {
    saves: Mutex<Saves>,
    is_log_broken: AtomicBool,
}

#[derive(Default)]
struct Saves {
    /// Saves until the first that is refused. None: no save is refused.
    left: Option<u32>,
    refused: u32,
}

struct Document(Arc<Faults>);

struct Segments(Arc<Faults>);

impl DiskFilter for Document {
    fn create(&self, disk: &dyn Disk, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        let mut saves = self.0.saves.lock().expect("held to count");
        match (saves.left, name) {
            (Some(0), "node.json.tmp") => {
                saves.refused += 1;
                let (kind, why) = match saves.refused % 2 {
                    0 => (DiskErrorKind::Full, "no space is left"),
                    _ => (DiskErrorKind::Io, "too many open files"),
                };
                return Err(DiskError::new("create", name, kind, why));
            }
            (Some(left), "node.json.tmp") => saves.left = Some(left - 1),
            _ => {}
        }
        disk.create(name)
    }
}

impl DiskFilter for Segments {
    fn write_durable_at(&self, file: &dyn DiskFile, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        match self.0.is_log_broken.load(Ordering::Acquire) {
            true => Err(DiskError::new(
                "write",
                "segment",
                DiskErrorKind::Io,
                "the disk is gone",
            )),
            false => file.write_durable_at(offset, bytes),
        }
    }
}

impl Faults {
    fn refuse_after(&self, saves: u32) {
        *self.saves.lock().expect("held to count") = Saves {
            left: Some(saves),
            refused: 0,
        };
    }

    /// Ends the faults, and returns how many saves were refused.
    fn end(&self) -> u32 {
        std::mem::take(&mut *self.saves.lock().expect("held to count")).refused
    }
}

/// A primary with accounts, and its standby `s1` on such a disk, which takes standbys once it leads.
fn prepare() -> (Cluster, Arc<Database>, Arc<Database>, Arc<Faults>) {
    let (cluster, primary) = Cluster::with_bank(50);
    bootstrap(&primary, "s1", &cluster.place("s1"));
    let (config, faults) = (cluster.config("s1", 2), Arc::new(Faults::default()));
    let mut around = Environment::real(&config).expect("a directory");
    let folders = around.folders.as_mut().expect("there is a log");
    folders.root = Arc::new(FilteredDisk::new(
        folders.root.clone(),
        Arc::new(Document(faults.clone())),
    ));
    folders.log = Arc::new(FilteredDisk::new(
        folders.log.clone(),
        Arc::new(Segments(faults.clone())),
    ));
    let standby = Arc::new(Database::open_standby_in(config, around).expect("open"));
    let follow = follow_primary(&cluster.primary, "s1");
    standby.follow_primary(follow).expect("it follows");
    standby.recover().expect("recover");
    let serving = cluster.serving("http://s1:1");
    standby.serve_standbys(serving).expect("once it leads");
    wait_streaming(&primary, "s1");
    wait_in_sync(&standby);
    wait_seen(&primary, &standby);
    (cluster, primary, standby, faults)
}

#[test]
fn standby_stays_one_or_leads_when_a_save_of_its_promotion_is_refused() {
    for saves in 0.. {
        let (cluster, primary, standby, faults) = prepare();
        faults.refuse_after(saves);
        let promoted = service(&standby).promote(ACCEPTING);
        let refused = faults.end();
        if let Err(error) = promoted {
            let ReplicationError::Unavailable(reason) = &error else {
                panic!("{error:?}");
            };
            assert!(reason.contains("too many open files"), "{reason}");
            assert_eq!(standby.router().role(), Role::Standby);
            assert!(call_i64(&standby, "bank", "balance", &[1]).is_ok());
            transfer(&primary, 1);
            wait_seen(&primary, &standby);
            assert_eq!(cluster.document("s1")["follows"], true, "save {saves}");
            service(&standby).promote(ACCEPTING).expect("there is room again");
        }
        assert_eq!(standby.router().role(), Role::Primary);
        transfer(&standby, 2);
        cluster.set_primary(&standby);
        let further = cluster.standby_of(&standby, "s2");
        transfer(&standby, 3);
        wait_seen(&standby, &further);
        let (epoch, digest) = (service(&standby).info().epoch, digest_now(&standby));
        [further, standby, primary].into_iter().for_each(close);
        let again = cluster.start("s1");
        assert!(service(&again).info().epoch.is_after(epoch));
        assert_eq!(digest_now(&again), digest);
        close(again);
        if refused == 0 {
            assert!(saves >= 2, "a promotion saves before it leads and after it");
            return;
        }
    }
}

/// A start without a primary is refused on a standby's directory. That holds after a promotion that failed, too.
#[test]
fn promotion_that_fails_for_the_log_leaves_the_directory_of_a_standby() {
    let (cluster, primary, standby, faults) = prepare();
    faults.is_log_broken.store(true, Ordering::Release);
    transfer(&primary, 1);
    wait_until("its disk is gone", || standby.router().status().log_error.is_some());
    let failed = service(&standby)
        .promote(ACCEPTING)
        .expect_err("records are not durable");
    assert!(failed.to_string().contains("is not durable"), "{failed}");
    assert_eq!(standby.router().role(), Role::Standby);
    assert!(call_i64(&standby, "bank", "balance", &[1]).is_ok());
    let document = cluster.document("s1");
    assert_eq!(document["follows"], true, "{document}");
    assert!(document["led"]["claimed"].is_null(), "{document}");
    let _ = standby.close(); // its log has failed
    drop(standby);
    let refused = Database::open(cluster.config("s1", 2)).err();
    assert!(matches!(refused, Some(OpenError::IsStandby)), "{refused:?}");
    let standby = cluster.open_standby("s1");
    wait_seen(&primary, &standby);
    service(&standby).promote(ACCEPTING).expect("promoted");
    transfer(&standby, 2);
    close(standby);
    close(primary);
}
