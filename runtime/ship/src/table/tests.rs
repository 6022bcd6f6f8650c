use reprise_base::Epoch;
use reprise_log::{EpochStart, Following, GroupSink, LogError, LogReader};
use reprise_wire::History;

use super::*;

/// What was answered; nobody asks for more.
struct Answered(Lsn);

impl ShippedLog for Answered {
    fn database_id(&self) -> [u8; 16] {
        unreachable!()
    }
    fn epoch(&self) -> Epoch {
        unreachable!()
    }
    fn durable(&self) -> Lsn {
        self.0
    }
    fn copied(&self) -> Lsn {
        self.0
    }
    fn filled(&self) -> Lsn {
        self.0
    }
    fn answered_max(&self) -> Lsn {
        self.0
    }
    fn history_at(&self, _: Lsn) -> Result<Option<History>, LogError> {
        unreachable!()
    }
    fn epochs(&self) -> Vec<EpochStart> {
        unreachable!()
    }
    fn reader(&self, _: Lsn) -> Result<LogReader, LogError> {
        unreachable!()
    }
    fn hold(&self, _: &str, _: Lsn) -> Result<Hold, LogError> {
        unreachable!()
    }
    fn bytes_between(&self, _: Lsn, _: Lsn) -> u64 {
        0
    }
    fn add_sink(&self, _: Arc<dyn GroupSink>) {}
    fn follow(&self) -> Option<Following> {
        None
    }
}

struct NoCommits;

impl Commits for NoCommits {
    fn set(&self, _: &Stand) {}
    fn release(&self) {}
    fn give_up(&self, _: &Arc<str>) {}
    fn expire(&self, _: u64, _: u64, _: &Arc<str>) {}
    fn committed(&self, durable: Lsn) -> Lsn {
        durable
    }
}

/// A primary with standbys that get each group as it is sealed, by name and connection.
struct Around {
    table: Table,
    now_ns: u64,
}

impl Around {
    fn new(level: Safety) -> Self {
        Self {
            table: Table::new(level, Arc::new(NoCommits)),
            now_ns: 0,
        }
    }

    fn begin(&self, name: &str, connection: u64) {
        self.table.begin(name, connection).expect("taken");
        self.table.begin_log(name, connection, Lsn(0));
        self.table.set_state(name, connection, StandbyState::Streaming);
    }

    fn persist(&self, name: &str, connection: u64, lsn: u64) {
        let progress = Progress {
            persisted: Lsn(lsn),
            noted: self.table.standing(),
            ..Progress::default()
        };
        self.table.note_progress(name, connection, &progress, self.now_ns);
    }

    /// A second later: everything before `seen` has been durable for some time, and so much was answered by now.
    fn tick(&mut self, seen: u64, answered: u64) {
        self.now_ns += 1_000_000_000;
        self.table.note_view(self.now_ns - 500_000_000, &Answered(Lsn(seen)));
        self.table.tick(self.now_ns, &Answered(Lsn(answered)));
    }

    fn keep(&self) {
        self.table.note_kept(&self.table.expected());
    }

    fn is_told_in(&self, name: &str, connection: u64) -> bool {
        let told = self.table.told(name, connection).expect("it speaks for it");
        told.in_sync
    }

    fn laggards(&self, name: &str) -> Vec<Arc<str>> {
        let laggards = self.table.laggards(name).into_iter();
        laggards.map(|(name, _)| name).collect()
    }
}

#[test]
fn a_standby_is_told_that_it_is_in_sync_once_that_is_kept() {
    let mut around = Around::new(Safety::TwoSafe);
    around.begin("s1", 1);
    around.begin("s2", 2);
    around.persist("s1", 1, 7);
    around.persist("s2", 2, 7);
    around.tick(7, 7);
    let standing = around.table.standing();
    assert!(around.table.expected().iter().all(|standby| standby.is_in_sync));
    assert!(!around.is_told_in("s1", 1), "a start of the primary would not know it");
    assert_eq!(around.laggards("s1"), ["s2".into()]);
    around.keep();
    assert!(around.is_told_in("s1", 1) && around.laggards("s1").is_empty());
    let is_in_sync = |around: &Around| {
        let statuses = around.table.statuses(&Answered(Lsn(7)));
        statuses.iter().all(|status| status.is_in_sync)
    };
    assert!(
        !is_in_sync(&around),
        "none has noted it: a promotion would ask for more"
    );
    around.persist("s1", 1, 7);
    around.persist("s2", 2, 7);
    assert!(is_in_sync(&around));
    assert_eq!(around.table.standing(), standing + 1, "all are told");
    around.keep();
    assert_eq!(around.table.standing(), standing + 1, "that is known");
    // It lost what it had: in sync again, that is kept again.
    around.table.begin_log("s1", 1, Lsn(3));
    assert!(!around.is_told_in("s1", 1));
    around.persist("s1", 1, 3);
    around.persist("s2", 2, 7);
    around.table.end_leaving(&[]);
    around.table.set_state("s1", 1, StandbyState::Streaming);
    around.persist("s1", 1, 7);
    around.tick(7, 7);
    assert!(around.table.expected().iter().all(|standby| standby.is_in_sync));
    assert!(!around.is_told_in("s1", 1));
    around.keep();
    assert!(around.is_told_in("s1", 1));
}

#[test]
fn nothing_is_answered_that_one_lacks_which_comes_to_be_very_safe() {
    let mut around = Around::new(Safety::VerySafe);
    around.begin("b", 1);
    around.persist("b", 1, 100);
    around.tick(100, 100);
    around.keep();
    assert_eq!(around.table.limit(), Some(Lsn(100)));
    // Another one comes, while there is more here than either has.
    around.begin("d", 2);
    around.persist("d", 2, 100);
    around.tick(100, 110);
    around.persist("b", 1, 150);
    assert_eq!(around.table.limit(), Some(Lsn(100)), "what d has");
    around.persist("d", 2, 110);
    around.keep();
    assert!(around.is_told_in("d", 2));
    assert_eq!(around.table.limit(), Some(Lsn(110)), "it has all that was answered");
    // One that goes before it is in sync keeps nobody waiting.
    around.begin("e", 3);
    around.persist("e", 3, 100);
    around.tick(100, 120);
    around.persist("d", 2, 150);
    assert_eq!(around.table.limit(), Some(Lsn(100)));
    around.table.end("e", 3, "gone");
    assert_eq!(around.table.limit(), Some(Lsn(150)));
}
