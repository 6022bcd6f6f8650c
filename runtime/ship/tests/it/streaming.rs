//! TCP on this machine: the groups that each standby gets, the standbys that are refused, and slow, lost or returning standbys.

use crate::common;
use std::{
    net::TcpStream,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use crate::common::{
    Around, DATABASE, LogTaker, PARTITIONS, Primary, Running, TestLog, append, append_all, append_with, around,
    open_log, wait_until, words_of,
};
use reprise_base::{Epoch, Lsn, Role, Safety};
use reprise_env::{Clock, Connection, SimDisk, Threads};
use reprise_ship::{LinkConfig, LinkError, STANDBY_LIMITS, ShipEvent, StandbyStage};
use reprise_wire::{FORMAT_VERSION, Frame, GroupFrame, Hello, History, SHIP_PROTOCOL, StandbyRefusal, Wants};

fn both(around: &Around) -> (Arc<dyn Clock>, Arc<dyn Threads>) {
    (around.clock.clone(), around.threads.clone())
}

fn standby(disk: &SimDisk) -> Arc<TestLog> {
    open_log(disk, Role::Standby, both(&around()))
}

fn refusal_of(ended: Result<(), LinkError>) -> (StandbyRefusal, String, bool) {
    let error = ended.expect_err("refused");
    let is_final = error.is_final();
    match error {
        LinkError::Refused { refusal, reason } => (refusal, reason, is_final),
        other => panic!("{other}"),
    }
}

#[test]
fn two_standbys_get_what_was_written_and_what_is() {
    let around = around();
    let primary = Primary::start_at(Safety::TwoSafe, &SimDisk::new(), &around, 1 << 20);
    append_all(&primary.log, "before", 50);
    let logs = [standby(&SimDisk::new()), standby(&SimDisk::new())];
    let takers = [LogTaker::new(&logs[0]), LogTaker::new(&logs[1])];
    let running: Vec<_> = ["s1", "s2"]
        .iter()
        .zip(&takers)
        .map(|(name, taker)| Running::start(&primary.link(&around, name), taker))
        .collect();
    wait_until("they stream", || {
        let all = primary.shipper.standbys();
        all.len() == 2 && all.iter().all(|status| status.state == StandbyStage::Streaming)
    });
    let mut end = Lsn(0);
    for n in 0..200 {
        end = append(&primary.log, &format!("live{n}"));
        if n % 20 == 0 {
            thread::sleep(Duration::from_millis(5));
        }
    }
    let acked = [primary.shipper.acked(1), primary.shipper.acked(2)].map(|mark| mark.expect("so few"));
    wait_until("both have all", || acked.iter().all(|mark| mark.get() == end.0));
    assert!(primary.shipper.acked(0).is_none() && primary.shipper.acked(17).is_none());
    // The primary waits for both at 2-safe.
    wait_until("both are in sync", || {
        primary.shipper.standbys().iter().all(|status| status.is_in_sync)
    });
    assert_eq!(primary.shipper.committed(), end);
    assert_eq!(
        (primary.shipper.reached(), primary.shipper.acked_limit()),
        (Safety::TwoSafe, Some(end))
    );
    for log in &logs {
        assert_eq!(words_of(log, Lsn(0)), words_of(&primary.log, Lsn(0)));
        assert_eq!(log.received().expect("a standby's").epoch, Epoch::new(1, 0));
    }
    // All is seen, and it is known that it is.
    wait_until("they are fresh", || {
        let all = primary.shipper.standbys();
        all.iter()
            .all(|s| s.freshness == Some(1.0) && (s.lag.us, s.lag_bytes, s.lag_records) == (0, 0, 0))
    });
    let status = primary.status("s1");
    assert_eq!((status.shipped, status.persisted, status.view), (end, end, end));
    assert_eq!((status.held_from, status.error), (Some(end), None));
    wait_until("it was told so", || {
        let beats = takers[0].beats.lock().expect("test");
        let told = beats.last().map(|beat| (beat.epoch, beat.durable, beat.behind_bytes));
        told == Some((Epoch::new(1, 0), end, 0))
    });
    wait_until("a second is over", || {
        primary
            .shipper
            .freshness("s1")
            .is_some_and(|(points, minute)| !points.is_empty() && minute.is_some())
    });
    assert!(primary.shipper.freshness("nobody").is_none());
    running
        .into_iter()
        .for_each(|running| running.stop().expect("no error"));
    primary.shipper.stop();
    primary.log.close().expect("close");
}

/// A standby may have saved its sync status too late to confirm it. A commit that continues without the standby waits until the opposite is
/// saved.
#[test]
fn a_standby_that_may_be_kept_as_in_sync_is_let_go_once_it_is_kept_that_it_left() {
    let around = around();
    let primary = Primary::start_at(Safety::TwoSafe, &SimDisk::new(), &around, 1 << 20);
    append_all(&primary.log, "before", 5);
    let log = standby(&SimDisk::new());
    let taker = LogTaker::new(&log);
    let last_asked = || primary.kept.asked.lock().expect("test").last().copied();
    for is_late in [false, true] {
        primary.kept.is_late.store(is_late, Ordering::Relaxed);
        let running = Running::start(&primary.link(&around, "s1"), &taker);
        wait_until("it is to be kept that it is in sync", || last_asked() == Some(true));
        running.stop().expect("no error");
        wait_until("it is to be kept that it left", || last_asked() == Some(false));
    }
    primary.shipper.stop();
    primary.log.close().expect("close");
}

/// The last sync status sent: whether the standby is in sync, and the standbys that are not.
fn told_last(taker: &LogTaker) -> Option<(bool, Vec<String>)> {
    let standings = taker.standings.lock().expect("test");
    let last = standings.last()?;
    let out = last.members.iter().filter(|member| !member.is_in_sync);
    Some((last.in_sync, out.map(|member| member.name.to_string()).collect()))
}

#[test]
fn commits_go_on_without_a_lost_standby_once_those_that_are_reached_keep_that_it_is_out_of_sync() {
    let around = around();
    let primary = Primary::start_at(Safety::TwoSafe, &SimDisk::new(), &around, 1 << 20);
    let end = append(&primary.log, "first");
    let logs = [standby(&SimDisk::new()), standby(&SimDisk::new())];
    let takers = [LogTaker::new(&logs[0]), LogTaker::new(&logs[1])];
    let first = Running::start(&primary.link(&around, "s1"), &takers[0]);
    let second = Running::start(&primary.link(&around, "s2"), &takers[1]);
    for taker in &takers {
        wait_until("both are told that both are in sync", || {
            told_last(taker) == Some((true, Vec::new()))
        });
        let standings = taker.standings.lock().expect("test");
        assert!(
            !standings[0].in_sync && standings[0].epoch == Epoch::new(1, 0),
            "at first it is not"
        );
    }
    first.stop().expect("no error");
    let next = append(&primary.log, "without s1");
    wait_until("it goes on", || primary.shipper.acked_limit() == Some(next));
    assert_eq!(told_last(&takers[1]), Some((true, vec!["s1".to_owned()])));
    let lacks = takers[1]
        .standings
        .lock()
        .expect("test")
        .last()
        .map(|told| told.members[0].from);
    assert_eq!(lacks, Some(end));
    // The standby is back. Its primary tells it that it lacks something until it has everything.
    let returning = LogTaker::new(&logs[0]);
    let first = Running::start(&primary.link(&around, "s1"), &returning);
    for taker in [&returning, &takers[1]] {
        wait_until("both are in sync again", || {
            told_last(taker) == Some((true, Vec::new()))
        });
    }
    assert!(!returning.standings.lock().expect("test")[0].in_sync);
    // One that is reached and keeps nothing holds the others up, until it is not reached any more.
    takers[1].is_forgetful.store(true, Ordering::Relaxed);
    first.stop().expect("no error");
    append(&primary.log, "held up");
    wait_until("the other one is cut off, too", || {
        let limit = primary.shipper.acked_limit();
        let status = primary.status("s2");
        assert!(status.state == StandbyStage::Lost || limit == Some(next), "{limit:?}");
        status.state == StandbyStage::Lost
    });
    let error = primary.status("s2").error.expect("told");
    assert!(error.contains("did not keep in time"), "{error}");
    let ended = second.thread.join().expect("no panic");
    ended.expect_err("it was cut off");
    wait_until("it is alone", || primary.shipper.acked_limit().is_none());
}

#[test]
fn awaited_standby_is_forgotten_once_that_is_saved() {
    let around = around();
    let primary = Primary::start_at(Safety::TwoSafe, &SimDisk::new(), &around, 1 << 20);
    append(&primary.log, "first");
    let taker = LogTaker::new(&standby(&SimDisk::new()));
    let running = Running::start(&primary.link(&around, "s1"), &taker);
    wait_until("it is in sync", || told_last(&taker) == Some((true, Vec::new())));
    assert!(!primary.shipper.forget("s1"), "it is connected");
    running.stop().expect("no error");
    wait_until("it is lost", || primary.status("s1").state == StandbyStage::Lost);
    assert!(primary.shipper.forget("s1"));
    assert!(primary.find("s1").is_none() && !primary.shipper.forget("s1"), "once");
    wait_until("commits go on without it", || primary.shipper.acked_limit().is_none());
}

#[test]
fn a_primary_is_told_nothing_before_it_is_known_that_no_other_one_followed() {
    let around = around();
    let primary = Primary::start(&SimDisk::new(), &around, 1 << 20);
    append_all(&primary.log, "before", 10);
    let log = standby(&SimDisk::new());
    let taker = LogTaker::new(&log);
    taker.has_later.store(true, Ordering::Relaxed);
    let running = Running::start(&primary.link(&around, "s1"), &taker);
    wait_until("it ends", || running.thread.is_finished());
    let ended = running.stop();
    assert!(matches!(ended, Err(LinkError::Superseded(_))), "{ended:?}");
    wait_until("it is lost", || primary.status("s1").state == StandbyStage::Lost);
    assert_eq!(
        primary.status("s1").persisted,
        Lsn(0),
        "it was told how far the standby is"
    );
}

#[test]
fn a_slow_standby_is_read_for_from_files_and_comes_back_to_the_ring() {
    let around = around();
    // Room for a few groups alone.
    let primary = Primary::start(&SimDisk::new(), &around, 4 << 10);
    append(&primary.log, "first");
    let log = standby(&SimDisk::new());
    let taker = LogTaker::new(&log);
    taker.room_bytes.store(2_000, Ordering::Relaxed);
    let running = Running::start(&primary.link(&around, "s1"), &taker);
    let is_at = |state| {
        primary
            .shipper
            .standbys()
            .first()
            .is_some_and(|status| status.state == state)
    };
    wait_until("it streams", || is_at(StandbyStage::Streaming));
    *taker.slow.lock().expect("test") = Duration::from_millis(100);
    let mut end = Lsn(0);
    for n in 0..100 {
        end = append_with(&primary.log, &format!("w{n}"), 500);
        primary.log.wait_durable(end, common::WAIT_MAX);
        let status = primary.status("s1");
        // No more is on its way than it has room for, and one group.
        assert!(status.shipped.0 <= log.received().expect("a standby's").lsn.0 + 5);
    }
    wait_until("it lags", || is_at(StandbyStage::CatchingUp));
    assert!(primary.status("s1").lag_bytes > 10_000);
    *taker.slow.lock().expect("test") = Duration::ZERO;
    wait_until("it is back", || log.durable() == end && is_at(StandbyStage::Streaming));
    assert_eq!(words_of(&log, Lsn(0)), words_of(&primary.log, Lsn(0)));
    running.stop().expect("no error");
}

#[test]
fn a_standby_comes_back_from_where_it_was_while_the_log_is_held_for_it() {
    let around = around();
    let primary = Primary::start(&SimDisk::new(), &around, 1 << 20);
    let (disk, mut log) = {
        let disk = SimDisk::new();
        (disk.clone(), standby(&disk))
    };
    let mut end = Lsn(0);
    for round in 0..3 {
        let running = Running::start(&primary.link(&around, "s1"), &LogTaker::new(&log));
        for n in 0..40 {
            end = append_with(&primary.log, &format!("r{round}_{n}"), 2_000);
        }
        wait_until("it has all", || {
            primary.find("s1").is_some_and(|status| status.persisted == end)
        });
        running.stop().expect("no error");
        wait_until("it is lost", || primary.status("s1").state == StandbyStage::Lost);
        assert!(primary.status("s1").error.is_some());
        // While the standby is away, the log grows, and a checkpoint would release all of it.
        for n in 0..60 {
            end = append_with(&primary.log, &format!("away{round}_{n}"), 2_000);
        }
        assert!(primary.log.wait_durable(end, common::WAIT_MAX));
        primary.log.release_before(end).expect("release");
        let held = primary.status("s1").held_from.expect("held");
        assert!(primary.log.start() <= held && held < end);
        log.close().expect("close");
        log = standby(&disk);
    }
    // Beyond the bound the log releases the slot, and the shipper reports that.
    primary.log.set_slot_bytes_max(10_000).expect("release");
    let let_go = ShipEvent::HoldLetGo { name: "s1".into() };
    wait_until("it was told", || primary.events.lock().expect("test").contains(&let_go));
    assert_eq!(primary.status("s1").held_from, None);
    let ended = Running::start(&primary.link(&around, "s1"), &LogTaker::new(&log))
        .thread
        .join();
    let (refusal, reason, is_final) = refusal_of(ended.expect("no panic"));
    assert_eq!((refusal, is_final), (StandbyRefusal::Gone, true));
    assert!(reason.contains("begins anew"), "{reason}");
    wait_until("its connection is over", || primary.shipper.is_lost("s1"));
    assert!(primary.shipper.forget("s1") && !primary.shipper.forget("s1"));
}

/// Returns the answer to a greeting.
fn greet(primary: &Primary, around: &Around, change: impl FnOnce(&mut Hello<'_>)) -> (StandbyRefusal, String) {
    let link = primary.link(around, "s1");
    let mut connection = connect(&link);
    let mut hello = Hello {
        protocol: SHIP_PROTOCOL,
        wants: Wants::Log,
        format: FORMAT_VERSION,
        database_id: DATABASE,
        partitions: PARTITIONS,
        position: (Epoch::new(0, 0), Lsn(0), History(0)),
        ticket: link.ticket,
        name: "s1",
    };
    change(&mut hello);
    connection.sender.send(&[&Frame::Hello(hello).encode()]).expect("sent");
    let answer = connection.frames.recv_timeout(common::WAIT_MAX).expect("an answer");
    match Frame::decode(&answer).expect("a frame") {
        Frame::Refused(refused) => (refused.refusal, refused.reason.to_owned()),
        other => panic!("{other:?}"),
    }
}

fn connect(link: &LinkConfig) -> Connection {
    let connected = link.net.connect(&link.address, Duration::from_secs(2), STANDBY_LIMITS);
    connected.expect("somebody listens")
}

#[test]
fn standby_that_does_not_fit_is_refused_with_the_reason() {
    let around = around();
    let primary = Primary::start(&SimDisk::new(), &around, 1 << 20);
    let end = append(&primary.log, "a");
    assert!(primary.log.wait_durable(end, common::WAIT_MAX));
    let position = |lsn, history| (Epoch::new(1, 0), Lsn(lsn), History(history));
    type Change = Box<dyn FnOnce(&mut Hello<'_>)>;
    let mut cases: Vec<(Change, StandbyRefusal, String)> = Vec::new();
    for other in [SHIP_PROTOCOL - 1, SHIP_PROTOCOL + 1] {
        let text = format!("speaks protocol {SHIP_PROTOCOL}, the standby {other}");
        cases.push((
            Box::new(move |hello| hello.protocol = other),
            StandbyRefusal::Version,
            text,
        ));
    }
    for other in [FORMAT_VERSION - 1, FORMAT_VERSION + 1] {
        let text = format!("format version {FORMAT_VERSION}, the standby {other}");
        cases.push((
            Box::new(move |hello| hello.format = other),
            StandbyRefusal::Version,
            text,
        ));
    }
    let others: Vec<(Change, StandbyRefusal, &str)> = vec![
        (
            Box::new(|hello| hello.ticket = [0xaa; 16]),
            StandbyRefusal::Ticket,
            "the ticket",
        ),
        (
            Box::new(|hello| hello.name = "s2"),
            StandbyRefusal::Ticket,
            "for that name",
        ),
        (
            Box::new(|hello| hello.name = "a/b"),
            StandbyRefusal::Name,
            "letters, digits",
        ),
        (
            Box::new(|hello| hello.database_id = [1; 16]),
            StandbyRefusal::Database,
            "another database",
        ),
        (
            Box::new(|hello| hello.partitions = 3),
            StandbyRefusal::Partitions,
            "4 partitions, the standby 3",
        ),
        (
            Box::new(move |hello| hello.position = position(1, 77)),
            StandbyRefusal::Diverged,
            "other records",
        ),
        (
            Box::new(move |hello| hello.position = position(2, 77)),
            StandbyRefusal::Diverged,
            "beyond",
        ),
        (
            Box::new(|hello| hello.position.0 = Epoch::new(2, 0)),
            StandbyRefusal::Diverged,
            "deposed",
        ),
    ];
    cases.extend(
        others
            .into_iter()
            .map(|(change, refusal, text)| (change, refusal, text.to_owned())),
    );
    for (change, expected, text) in cases {
        let (refusal, reason) = greet(&primary, &around, change);
        assert_eq!(refusal, expected, "{reason}");
        assert!(reason.contains(&text), "{reason}");
    }
    assert!(primary.shipper.join(&"".into()).is_err() && primary.shipper.join(&"a b".into()).is_err());
    // One client that says nothing, and one that sends noise.
    let link = primary.link(&around, "s3");
    let silent = connect(&link);
    let mut noisy = connect(&link);
    noisy.sender.send(&[&[7; 100]]).expect("sent");
    for connection in [noisy, silent] {
        let ended = connection.frames.recv_timeout(Duration::from_secs(20));
        assert_eq!(ended, Err(crossbeam_channel::RecvTimeoutError::Disconnected));
    }
    wait_until("all are over", || {
        primary.shipper.standbys().iter().all(|s| s.state == StandbyStage::Lost)
    });
}

/// A stranger who connects again and again, and says nothing.
#[test]
fn silent_connections_give_way_to_a_standby() {
    let around = around();
    let primary = Primary::start(&SimDisk::new(), &around, 1 << 20);
    let link = primary.link(&around, "s1");
    let strangers: Vec<_> = (0..40)
        .map(|_| TcpStream::connect(&link.address).expect("it listens"))
        .collect();
    let log = standby(&SimDisk::new());
    let running = Running::start(&link, &LogTaker::new(&log));
    let end = append(&primary.log, "a");
    wait_until("the standby has it", || log.durable() == end);
    running.stop().expect("no error");
    drop(strangers);
}

/// At quorum none of two standbys knows by itself whether the other one has more, and at 1-safe the primary answers alone.
#[test]
fn a_standby_is_told_the_level_under_which_it_is_in_sync() {
    for level in [Safety::OneSafe, Safety::TwoSafe, Safety::VerySafe, Safety::Quorum] {
        let around = around();
        let primary = Primary::start_at(level, &SimDisk::new(), &around, 1 << 20);
        let log = standby(&SimDisk::new());
        let taker = LogTaker::new(&log);
        let running = Running::start(&primary.link(&around, "s1"), &taker);
        wait_until("it is in sync", || {
            let standings = taker.standings.lock().expect("test");
            standings
                .last()
                .is_some_and(|told| told.in_sync && told.safety == level)
        });
        running.stop().expect("no error");
    }
}

#[test]
fn a_newer_connection_of_a_name_takes_the_place_of_the_older() {
    let around = around();
    let primary = Primary::start(&SimDisk::new(), &around, 1 << 20);
    let (first, second) = (standby(&SimDisk::new()), standby(&SimDisk::new()));
    let old = Running::start(&primary.link(&around, "s1"), &LogTaker::new(&first));
    wait_until("it streams", || {
        primary
            .shipper
            .standbys()
            .first()
            .is_some_and(|s| s.state == StandbyStage::Streaming)
    });
    let new = Running::start(&primary.link(&around, "s1"), &LogTaker::new(&second));
    let (refusal, _, is_final) = refusal_of(old.thread.join().expect("no panic"));
    assert_eq!((refusal, is_final), (StandbyRefusal::Replaced, false));
    let end = append(&primary.log, "a");
    wait_until("the new one has it", || second.durable() == end);
    assert_eq!((first.durable(), primary.shipper.standbys().len()), (Lsn(0), 1));
    new.stop().expect("no error");
}

#[test]
fn a_damaged_or_foreign_frame_ends_the_connection_and_nothing_is_placed() {
    let around = around();
    // A server that pretends to be a primary.
    let listener = fake_primary(&around);
    let log = standby(&SimDisk::new());
    let taker = LogTaker::new(&log);
    let records = {
        let primary = open_log(&SimDisk::new(), Role::Primary, both(&around));
        let end = append(&primary, "a");
        assert!(primary.wait_durable(end, common::WAIT_MAX));
        let mut reader = primary.reader(Lsn(0)).expect("reader");
        reader.next_block().expect("read").expect("a block").records.to_vec()
    };
    let group = GroupFrame {
        epoch: Epoch::new(1, 0),
        first: Lsn(0),
        end: Lsn(1),
        history: History(0).then(&records),
        records: &records,
    };
    let welcome = reprise_wire::Welcome {
        epoch: Epoch::new(1, 0),
        durable: Lsn(0),
        safety: Safety::OneSafe,
        primary: "",
    };
    let flipped = {
        let mut bytes = Frame::Group(group).encode();
        *bytes.last_mut().expect("some") ^= 1;
        bytes
    };
    let gap = GroupFrame {
        first: Lsn(5),
        end: Lsn(6),
        ..group
    };
    let old = GroupFrame {
        history: History(9),
        ..group
    };
    let cases: [(Vec<u8>, &str); 4] = [
        (flipped, "damaged"),
        (Frame::Group(gap).encode(), "does not follow"),
        (Frame::Group(old).encode(), "are not those that were sent"),
        (Frame::Hello(hello_of_unknown()).encode(), "not its turn"),
    ];
    for (bytes, what) in cases {
        let link = LinkConfig {
            net: around.net.clone(),
            clock: around.clock.clone(),
            address: listener.address.clone(),
            certificate: None,
            ticket: [0; 16],
            name: "s1".into(),
            connect_time: Duration::from_secs(2),
        };
        let running = Running::start(&link, &taker);
        let mut connection = listener.accepted.recv_timeout(common::WAIT_MAX).expect("it connects");
        connection
            .sender
            .send(&[&Frame::Welcome(welcome).encode()])
            .expect("sent");
        connection.sender.send(&[&bytes]).expect("sent");
        let error = running.thread.join().expect("no panic").expect_err("it is over");
        assert!(error.to_string().contains(what), "{error}");
        assert!(!error.is_final());
        assert_eq!(log.received().map(|received| received.lsn), Some(Lsn(0)));
    }
}

fn fake_primary(around: &Around) -> reprise_env::Listener {
    let listening = around.net.listen("127.0.0.1:0", reprise_ship::SHIP_LIMITS);
    listening.expect("a port is free")
}

fn hello_of_unknown() -> Hello<'static> {
    Hello {
        protocol: SHIP_PROTOCOL,
        wants: Wants::Log,
        format: FORMAT_VERSION,
        database_id: [0; 16],
        partitions: 0,
        position: (Epoch::new(0, 0), Lsn(0), History(0)),
        ticket: [0; 16],
        name: "x",
    }
}
