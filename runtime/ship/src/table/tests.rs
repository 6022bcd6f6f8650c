use reprise_base::Epoch;
use reprise_log::{DestageDemand, EpochStart, GroupSink, LogError, LogReader};
use reprise_wire::History;

use reprise_base::NodeProcess;

use super::*;

/// The end of the answered records. No test asks for more.
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
    fn hold(&self, _: &str, _: Lsn) -> Result<ReplicationSlot, LogError> {
        unreachable!()
    }
    fn bytes_between(&self, _: Lsn, _: Lsn) -> u64 {
        0
    }
    fn add_sink(&self, _: Arc<dyn GroupSink>) {}
    fn follow(&self) -> Option<DestageDemand> {
        None
    }
}

struct NoCommits;

impl Commits for NoCommits {
    fn set(&self, _: &SafetyStatus) {}
    fn release(&self) {}
    fn leave_open(&self, _: &Arc<str>) {}
    fn expire(&self, _: u64, _: u64, _: &Arc<str>) {}
    fn confirm(&self, _: u64) {}
    fn committed(&self, durable: Lsn) -> Lsn {
        durable
    }
}

/// A primary with standbys that get each group as it is sealed, by name and connection.
struct Around {
    table: StandbyTable,
    now_ns: u64,
}

impl Around {
    fn new(level: Safety) -> Self {
        Self {
            table: StandbyTable::new(level, Arc::new(NoCommits)),
            now_ns: 0,
        }
    }

    fn begin(&self, name: &str, connection: u64) {
        self.table.begin(&name.into(), connection, 1).expect("taken");
        self.table.begin_log(name, connection, Lsn(0));
        self.table.set_state(name, connection, StandbyStage::Streaming);
    }

    fn persist(&self, name: &str, connection: u64, lsn: u64) {
        let progress = Progress {
            persisted: Lsn(lsn),
            saved_status: self.table.sync_number(),
            ..Progress::default()
        };
        self.table.record_progress(name, connection, &progress, self.now_ns);
    }

    /// A second later: everything before `seen` has been durable for some time, and so much was answered by now.
    fn tick(&mut self, seen: u64, answered: u64) {
        self.now_ns += 1_000_000_000;
        self.table.record_view(self.now_ns - 500_000_000, &Answered(Lsn(seen)));
        self.table.tick(self.now_ns, &Answered(Lsn(answered)));
    }

    /// Returns the names of the standbys that `quorum` counts on.
    fn counted(&self) -> Vec<String> {
        let standbys = self.table.expected().into_iter();
        let counted = standbys.filter(|standby| standby.is_counted);
        counted.map(|standby| standby.name.to_string()).collect()
    }

    /// Standby `s1` keeps the newest sync status, and the leaving standbys go if they may.
    fn end_leaving(&mut self, answered: u64) {
        self.tick(7, answered);
        let persisted = self.table.statuses(&Answered(Lsn(answered)));
        let own = persisted.iter().find(|status| &*status.name == "s1");
        self.persist("s1", 1, own.map_or(0, |own| own.persisted.0));
        self.table.end_leaving(&[], u64::MAX);
    }

    fn keep(&self) {
        self.table.record_saved(&self.table.expected());
    }

    fn is_told_in(&self, name: &str, connection: u64) -> bool {
        let status = self.table.status_for(name, connection).expect("it speaks for it");
        status.in_sync
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
    let standing = around.table.sync_number();
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
    assert_eq!(around.table.sync_number(), standing + 1, "all are told");
    around.keep();
    assert_eq!(around.table.sync_number(), standing + 1, "that is known");
    // It lost what it had: in sync again, that is kept again.
    around.table.begin_log("s1", 1, Lsn(3));
    assert!(!around.is_told_in("s1", 1));
    around.persist("s1", 1, 3);
    around.persist("s2", 2, 7);
    around.table.end_leaving(&[], u64::MAX);
    around.table.set_state("s1", 1, StandbyStage::Streaming);
    around.persist("s1", 1, 7);
    around.tick(7, 7);
    assert!(around.table.expected().iter().all(|standby| standby.is_in_sync));
    assert!(!around.is_told_in("s1", 1));
    around.keep();
    assert!(around.is_told_in("s1", 1));
}

#[test]
fn no_write_is_answered_that_a_standby_entering_very_safe_lacks() {
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
    // A standby that goes before it is in sync keeps no caller waiting.
    around.begin("e", 3);
    around.persist("e", 3, 100);
    around.tick(100, 120);
    around.persist("d", 2, 150);
    assert_eq!(around.table.limit(), Some(Lsn(100)));
    around.table.end("e", 3, "gone", true);
    assert_eq!(around.table.limit(), Some(Lsn(150)));
}

#[test]
fn name_is_one_servers_until_it_was_silent_for_a_while() {
    const SECOND_NS: u64 = 1_000_000_000;
    let around = Around::new(Safety::TwoSafe);
    let table = &around.table;
    let joiner = |node, starts, nonce| Joiner {
        process: Some(NodeProcess { node, starts, nonce }),
        ..Joiner::from("s1")
    };
    let own = joiner(7, 2, 70);
    table.begin(&own, 1, SECOND_NS).expect("nobody has it");
    let at = |seconds| seconds * SECOND_NS;
    // Its own process comes back. A later one comes once the connection was silent.
    table.begin(&own, 2, at(1)).expect("its own");
    let later = joiner(7, 3, 71);
    assert!(table.check_name(&later, at(1)).is_err() && table.check_name(&later, at(2)).is_ok());
    for other in [joiner(8, 9, 72), joiner(7, 2, 73), joiner(7, 1, 74)] {
        assert!(table.check_name(&other, at(60)).is_err(), "it is connected");
    }
    table.end("s1", 2, "gone", true);
    table.check_name(&later, at(1)).expect("its connection is over");
    for other in [joiner(8, 9, 72), joiner(7, 2, 73)] {
        let refused = table.begin(&other, 3, at(10)).expect_err("it was heard lately");
        assert_eq!(refused.refusal, StandbyRefusal::Unavailable);
        table.check_name(&other, at(11)).expect("it is free");
    }
    // A standby that does not say who it is takes the name, as one of an older program would.
    table.check_name(&"s1".into(), at(1)).expect("taken");
}

#[test]
fn primary_continues_without_a_standby_once_the_standby_knows() {
    const SILENCE_NS: u64 = SILENCE_MAX.as_nanos() as u64;
    let mut around = Around::new(Safety::TwoSafe);
    for has_left in [false, true] {
        around.begin("s1", 1);
        around.persist("s1", 1, 7);
        around.tick(7, 7);
        around.keep();
        assert_eq!(around.table.limit(), Some(Lsn(7)));
        around.table.record_heard("s1", 1, around.now_ns);
        let heard_ns = around.now_ns;
        around.table.end("s1", 1, "its connection was reset", has_left);
        let is_leaving = |now_ns| around.table.tick(now_ns, &Answered(Lsn(7)));
        // A connection that is reset says nothing to the standby of what comes.
        assert_eq!(is_leaving(heard_ns + SILENCE_NS - 1), has_left);
        assert!(is_leaving(heard_ns + SILENCE_NS));
        around.table.end_leaving(&[], heard_ns + SILENCE_NS);
        assert_eq!(around.table.limit(), None, "it goes on alone");
        around.now_ns = heard_ns + SILENCE_NS;
    }
}

/// Its connection breaks after the primary has begun to continue without it, and before it knows.
#[test]
fn primary_waits_for_a_leaving_standby_that_only_greets_until_its_time_is_over() {
    let mut around = Around::new(Safety::TwoSafe);
    around.begin("s1", 1);
    around.persist("s1", 1, 7);
    around.tick(7, 7);
    around.keep();
    around.table.record_heard("s1", 1, around.now_ns);
    around.table.begin_log("s1", 1, Lsn(3)); // it lost records, and leaves
    around.table.end("s1", 1, "its connection was reset", false);
    let until_ns = around.now_ns + SILENCE_MAX.as_nanos() as u64;
    around.table.begin(&"s1".into(), 2, around.now_ns).expect("taken");
    around.table.end_leaving(&[], until_ns - 1);
    assert_eq!(around.table.limit(), Some(Lsn(3)), "it takes itself for in sync");
    around.table.begin_log("s1", 2, Lsn(3));
    around.table.end_leaving(&[], until_ns - 1);
    assert_eq!(
        around.table.limit(),
        Some(Lsn(3)),
        "it gets the status, and has not saved it"
    );
    around.persist("s1", 2, 3);
    around.table.end_leaving(&[], until_ns - 1);
    assert_eq!(around.table.limit(), None, "it knows");
}

/// Three standbys that count at `quorum`, and have everything before 7.
fn quorum_of_three() -> Around {
    let mut around = Around::new(Safety::Quorum);
    let names = [("s1", 1), ("s2", 2), ("s3", 3)];
    for (name, connection) in names {
        around.begin(name, connection);
        around.persist(name, connection, 7);
    }
    // One after the other joins the set, and enough of the others know of each before it counts.
    for round in 0..3 {
        around.tick(7, 7);
        around.tick(7, 7);
        assert_eq!(around.counted().len(), round, "none knows of it yet");
        for (name, connection) in names {
            around.persist(name, connection, 7);
        }
        around.tick(7, 7);
        assert_eq!(around.counted().len(), round + 1);
        around.keep();
    }
    assert_eq!(around.table.limit(), Some(Lsn(7)));
    around
}

#[test]
fn quorum_forgets_a_standby_once_enough_of_the_others_know() {
    let mut around = quorum_of_three();
    // Two of three have every answered record: with two away, no set without the third one is safe.
    around.table.end("s2", 2, "gone", true);
    around.table.end("s3", 3, "gone", true);
    around.tick(7, 7);
    assert!(around.table.forget("s3"));
    around.end_leaving(7);
    assert_eq!(around.counted(), ["s1", "s2", "s3"]);
    around.begin("s2", 4);
    around.persist("s2", 4, 7);
    around.end_leaving(7);
    assert_eq!(around.counted(), ["s1", "s2"]);
}

#[test]
fn quorum_forgets_a_standby_once_enough_of_the_others_have_what_it_has() {
    let mut around = quorum_of_three();
    around.persist("s2", 2, 9);
    around.persist("s3", 3, 9);
    assert_eq!(around.table.limit(), Some(Lsn(9)));
    around.table.end("s2", 2, "gone", true);
    around.table.end("s3", 3, "gone", true);
    around.tick(7, 9);
    assert!(around.table.forget("s2") && around.table.forget("s3"));
    around.end_leaving(9);
    assert_eq!(around.counted(), ["s1", "s2", "s3"], "s1 lacks what was answered");
    around.persist("s1", 1, 9);
    around.end_leaving(9);
    assert_eq!(around.counted(), ["s1"]);
}

fn compared(lsn: u64, difference: Option<&str>) -> ComparedStatus {
    ComparedStatus {
        lsn: Lsn(lsn),
        at_us: 1,
        difference: difference.map(Into::into),
    }
}

#[test]
fn standby_is_out_of_sync_from_a_difference_until_an_equal_comparison() {
    let mut around = Around::new(Safety::TwoSafe);
    for (name, connection) in [("s1", 1), ("s2", 2)] {
        around.begin(name, connection);
        around.persist(name, connection, 7);
    }
    around.tick(7, 7);
    around.keep();
    around.table.record_comparison("s2", 2, compared(5, None));
    assert!(around.is_told_in("s1", 1) && around.is_told_in("s2", 2));
    around.table.record_comparison("s2", 2, compared(6, Some("a row")));
    assert!(!around.is_told_in("s2", 2), "the standby is told");
    assert_eq!(around.laggards("s1"), ["s2".into()], "so are the others");
    around.persist("s1", 1, 9);
    assert_eq!(
        around.table.limit(),
        Some(Lsn(7)),
        "commits wait until the standby knows"
    );
    around.persist("s2", 2, 8);
    around.end_leaving(9);
    assert_eq!(around.table.limit(), Some(Lsn(9)), "they count on s1 alone");
    // The standby still receives the log, and a connection does not change what was found.
    around.table.end("s2", 2, "its connection was reset", false);
    around.begin("s2", 3);
    around.persist("s1", 1, 20);
    around.persist("s2", 3, 20);
    around.tick(20, 20);
    around.keep();
    assert!(!around.is_told_in("s2", 3));
    assert!(
        !around
            .table
            .expected()
            .iter()
            .any(|known| &*known.name == "s2" && known.is_in_sync)
    );
    // Its tables are equal again.
    around.table.record_comparison("s2", 3, compared(19, None));
    around.tick(20, 20);
    around.persist("s2", 3, 20);
    around.keep();
    assert!(around.is_told_in("s2", 3));
    // Another directory begins without the difference.
    around.table.record_comparison("s2", 3, compared(20, Some("a row")));
    around.end_leaving(20);
    around.table.begin_files("s2", 3);
    around.table.begin_log("s2", 3, Lsn(0));
    around.table.set_state("s2", 3, StandbyStage::Streaming);
    around.persist("s1", 1, 20);
    around.persist("s2", 3, 20);
    around.end_leaving(20);
    around.tick(20, 20);
    around.persist("s2", 3, 20);
    around.keep();
    assert!(around.is_told_in("s2", 3));
}

#[test]
fn standby_with_a_difference_helps_no_write_at_quorum() {
    let mut around = quorum_of_three();
    around.table.record_comparison("s2", 2, compared(6, Some("a row")));
    around.persist("s1", 1, 9);
    around.persist("s2", 2, 9);
    assert_eq!(around.table.limit(), Some(Lsn(7)), "two of three, and s3 has less");
    around.tick(7, 9);
    around.table.end_leaving(&[], u64::MAX);
    around.persist("s3", 3, 9);
    assert_eq!(around.table.limit(), Some(Lsn(9)));
    assert!(around.table.check_level(Safety::Quorum).is_ok());
    around.table.end("s3", 3, "gone", true);
    around.tick(7, 9);
    around.table.end_leaving(&[], u64::MAX);
    assert!(
        around.table.check_level(Safety::Quorum).is_err(),
        "one of three is in sync"
    );
    assert_eq!(around.counted(), ["s1", "s2", "s3"], "it counts as one that is away");
}

#[test]
fn a_standby_that_only_greets_confirms_no_primary() {
    let mut around = Around::new(Safety::Quorum);
    around.begin("s1", 1);
    around.persist("s1", 1, 7);
    around.tick(7, 7);
    around.persist("s1", 1, 7); // it knows that it joins
    around.tick(7, 7);
    around.keep();
    let followed_ns = around.table.confirmed_ns();
    assert!(followed_ns.is_some() && around.counted() == ["s1"]);
    around.tick(7, 7);
    around.table.record_heard("s1", 1, around.now_ns);
    around.begin("s1", 2);
    assert_eq!(
        around.table.confirmed_ns(),
        followed_ns,
        "it follows another one by now"
    );
}

/// A standby as it names itself. The nonce of its process is its identity.
fn joiner(name: &str, node: u64) -> Joiner {
    Joiner {
        process: Some(NodeProcess {
            node,
            starts: 1,
            nonce: node,
        }),
        ..Joiner::from(name)
    }
}

/// The list that a primary of this level saves of `s1`, identity 1, once it is in sync.
fn kept_in_sync(level: Safety) -> Member {
    let mut around = Around::new(level);
    around.table.begin(&joiner("s1", 1), 1, 1).expect("taken");
    around.table.begin_log("s1", 1, Lsn(0));
    around.table.set_state("s1", 1, StandbyStage::Streaming);
    // At quorum it knows that it joins before it counts.
    for _ in 0..2 {
        around.persist("s1", 1, 7);
        around.tick(7, 7);
    }
    around.persist("s1", 1, 7);
    around.tick(7, 7);
    around.keep();
    let mut kept = around.table.expected();
    assert!(kept[0].is_in_sync && kept[0].is_counted && kept[0].node == Some(1));
    kept.remove(0)
}

/// A restored or emptied directory under the name of a standby, when the primary was restarted.
#[test]
fn another_directory_does_not_take_a_name_over_as_in_sync() {
    for level in [Safety::TwoSafe, Safety::Quorum, Safety::VerySafe] {
        let kept = kept_in_sync(level);
        for (node, is_in_sync) in [(1, true), (2, false)] {
            let table = Around::new(level).table;
            table.expect(&kept, None, 1);
            let begun = table.begin(&joiner("s1", node), 2, 1);
            if level.counts_standbys() && !is_in_sync {
                let refused = begun.expect_err("the other one may be promoted");
                assert_eq!(refused.refusal, StandbyRefusal::Unavailable, "it asks again");
                let reason = "the directory with identity 0000000000000001 counts under this name";
                assert!(refused.reason.contains(reason), "{}", refused.reason);
                continue;
            }
            begun.expect("taken");
            table.begin_log("s1", 2, Lsn(7));
            assert_eq!(table.expected()[0].is_in_sync, is_in_sync, "{level}");
        }
    }
}

#[test]
fn another_directory_has_the_name_of_a_counted_one_once_that_is_forgotten() {
    for level in [Safety::Quorum, Safety::VerySafe] {
        let table = Around::new(level).table;
        table.expect(&kept_in_sync(level), None, 1);
        assert!(table.forget("s1"));
        let new = joiner("s1", 2);
        table.check_name(&new, 1).expect_err("it still counts");
        table.end_leaving(&[], u64::MAX);
        table.begin(&new, 2, 1).expect("the name is free");
        assert!(
            table.expected().is_empty(),
            "{level}: it begins as one that never counted"
        );
    }
}

#[test]
fn server_whose_epochs_would_have_the_writer_of_another_standby_is_turned_away() {
    let table = Around::new(Safety::TwoSafe).table;
    table.begin(&joiner("s1", 0x1_0007), 1, 1).expect("taken");
    let refused = table.check_name(&joiner("s2", 0x2_0007), 1).expect_err("one writer");
    assert!(
        refused.contains("the same writer as those of the standby s1"),
        "{refused}"
    );
    table.check_name(&joiner("s2", 0x1_0008), 1).expect("another writer");
    table
        .check_name(&joiner("s2", 0x1_0007), 1)
        .expect("the same directory has another name");
}

/// The sibling of a promoted standby, whose log is gone here. It may be promoted, too, so its primary asks it.
#[test]
fn standby_for_which_no_log_is_kept_is_expected_until_it_is_forgotten() {
    let table = Around::new(Safety::TwoSafe).table;
    let sibling = Member {
        name: "s1".into(),
        from: Lsn(40),
        persisted: Lsn(0),
        is_in_sync: false,
        is_counted: false,
        url: Some("http://s1:1".into()),
        node: None,
    };
    let without_url = Member {
        name: "s2".into(),
        url: None,
        ..sibling.clone()
    };
    for member in [&sibling, &without_url] {
        table.expect(member, None, 1);
    }
    let kept = Member {
        from: NO_LOG,
        ..sibling
    };
    assert_eq!(table.expected(), [kept], "no server can ask s2");
    assert!(table.forget("s1") && table.expected().is_empty());
}
