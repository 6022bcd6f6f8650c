//! A standby's first files: whole or not at all, beside the records that are logged meanwhile.

use crate::common;
use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    Around, DATABASE, LogTaker, Primary, Running, TestLog, append, append_all, around, wait_until, words_of,
};
use reprise_backup::DirHandle;
use reprise_base::{Epoch, Lsn, Role, Safety};
use reprise_env::{Connection, Disk, RealDisk, RealThreads, SimDisk, Step};
use reprise_log::{Log, LogConfig, Position, parse_segment_name};
use reprise_ship::{BootstrapReceiver, Link, LinkConfig, LinkError, LogBeside, STANDBY_LIMITS, StandbyStage};
use reprise_wire::{
    FORMAT_VERSION, FileChunk, FilesEnd, Frame, GroupFrame, Hello, History, Progress, SHIP_PROTOCOL, StandbyRefusal,
    Wants, Welcome,
};
use sha2::{Digest, Sha256};

/// A file of its own for the committed position.
const COMMITTED: &str = "committed";

fn beside() -> LogBeside {
    LogBeside {
        threads: Arc::new(RealThreads),
        keep_committed: |root, committed| {
            let file = root.create(COMMITTED)?;
            file.write_at(0, &committed.0.to_le_bytes())
        },
    }
}

fn write_checkpoint(primary: &Primary, bytes: &[u8]) {
    let file = primary.checkpoints.disk.create("checkpoint-of-words.ckpt");
    file.expect("create").write_at(0, bytes).expect("write");
}

fn open(dir: &Path, around: &Around) -> Arc<TestLog> {
    let disk = Arc::new(RealDisk::open(dir.join("log")).expect("open"));
    let config = LogConfig {
        role: Role::Standby,
        expected_database_id: Some(DATABASE),
        ..LogConfig::new(DATABASE)
    };
    let opened = Log::open(disk, around.clock.clone(), config, Box::new(|_, _, ()| {}));
    Arc::new(opened.expect("it opens").0)
}

#[test]
fn a_new_standby_gets_its_files_and_goes_on_behind_them() {
    let around = around();
    let primary = Primary::start(&SimDisk::new(), &around, 1 << 20);
    let bytes: Vec<u8> = (0..3_500_000u32).map(|n| (n / 7) as u8).collect();
    write_checkpoint(&primary, &bytes);
    append_all(&primary.log, "w", 30);
    assert!(primary.log.wait_durable(Lsn(30), common::WAIT_MAX));
    let place = tempfile::tempdir().expect("make directory");
    let target = DirHandle::beside(&place.path().join("s1")).expect("a name");
    let mut coming = Link::bootstrap(&primary.link(&around, "s1"), &target, beside()).expect("connect");
    // There is no checkpoint yet: it waits, longer than a peer is silent.
    let until = Instant::now() + Duration::from_millis(3_500);
    while Instant::now() < until {
        coming.step().expect("no error");
        thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(primary.status("s1").state, StandbyStage::Joining);
    primary.checkpoints.lsn.store(20, Ordering::Release);
    let whole = coming.run(&|| true).expect("no error").expect("whole");
    assert_eq!((whole.files, whole.epoch), (2, Epoch::new(1, 0)));
    // The standby has the records that arrived while the checkpoint did.
    assert!(whole.bytes > bytes.len() as u64 && (20..=30).contains(&whole.lsn.0));
    let dir = place.path().join("s1");
    assert_eq!(
        std::fs::read(dir.join("checkpoints/checkpoint-of-words.ckpt")).expect("read"),
        bytes
    );
    // The slot with its name keeps the records that it lacks.
    let is_held = |from: Lsn| (Lsn(20)..=whole.lsn).contains(&from);
    wait_until("it is held", || primary.status("s1").held_from.is_some_and(is_held));
    assert!(is_held(primary.log.slots()[0].from));
    let log = open(&dir, &around);
    let history = primary.log.history_at(whole.lsn).expect("read").expect("held");
    let expected = Position {
        epoch: Epoch::new(1, 0),
        lsn: whole.lsn,
        history,
    };
    assert_eq!(log.received(), Some(expected));
    let running = Running::start(&primary.link(&around, "s1"), &LogTaker::new(&log));
    let end = append(&primary.log, "last");
    wait_until("it has all", || log.durable() == end);
    assert_eq!(words_of(&log, Lsn(20)), words_of(&primary.log, Lsn(20)));
    running.stop().expect("no error");
    // A directory that holds something is left alone.
    let again = Link::bootstrap(&primary.link(&around, "s1"), &target, beside())
        .err()
        .expect("refused");
    assert!(matches!(again, LinkError::Staging(_)) && again.is_final(), "{again}");
}

/// Bytes enough that most of them are not on their way when the first part has arrived.
const LARGE_BYTES: usize = 64 << 20;

/// A primary of 30 words, with a large checkpoint of the first 20.
fn start(around: &Around) -> Primary {
    let primary = Primary::start(&SimDisk::new(), around, 1 << 20);
    write_checkpoint(&primary, &vec![7; LARGE_BYTES]);
    append_all(&primary.log, "w", 30);
    assert!(primary.log.wait_durable(Lsn(30), common::WAIT_MAX));
    primary.checkpoints.lsn.store(20, Ordering::Release);
    primary
}

/// Between two parts: the longer, the more have come, so that a slow disk is done with the log before the last one.
struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(Duration::from_millis(1))
    }
}

impl Pause {
    fn take(&mut self) {
        thread::sleep(self.0);
        self.0 = (2 * self.0).min(Duration::from_millis(200));
    }
}

#[test]
fn log_written_during_the_first_files_is_sent_beside_them() {
    let around = around();
    let primary = start(&around);
    let place = tempfile::tempdir().expect("make directory");
    let dir = place.path().join("s1");
    let target = DirHandle::beside(&dir).expect("a name");
    let mut coming = Link::bootstrap(&primary.link(&around, "s1"), &target, beside()).expect("connect");
    let take = |coming: &mut BootstrapReceiver| {
        if coming.step().expect("no error") == Step::Idle {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(coming.whole(), None, "the checkpoint is still on its way");
    };
    while coming.bytes() < 2 << 20 {
        take(&mut coming);
    }
    append_all(&primary.log, "live", 10);
    assert!(primary.log.wait_durable(Lsn(40), common::WAIT_MAX));
    // The primary need not keep it any more, before the checkpoint has come.
    let mut pause = Pause::default();
    while primary.status("s1").held_from != Some(Lsn(40)) {
        take(&mut coming);
        pause.take();
    }
    let status = primary.status("s1");
    assert_eq!((status.state, status.shipped), (StandbyStage::Joining, Lsn(40)));
    // The standby has log and no rows, so it counts for nothing.
    assert_eq!(
        (status.persisted, status.view, status.is_in_sync),
        (Lsn(0), Lsn(0), false)
    );
    assert_eq!(primary.shipper.acked(1).map(|mark| mark.get()), Some(0));
    let whole = coming.run(&|| true).expect("no error").expect("whole");
    assert_eq!((whole.files, whole.lsn, whole.live), (2, Lsn(40), 20));
    let committed = std::fs::read(dir.join(COMMITTED)).expect("it is kept");
    assert_eq!(committed, 40u64.to_le_bytes());
    let log = open(&dir, &around);
    assert_eq!(log.received().map(|received| received.lsn), Some(Lsn(40)));
    assert_eq!(words_of(&log, Lsn(20)), words_of(&primary.log, Lsn(20)));
}

#[test]
fn interrupted_transfer_leaves_nothing() {
    let around = around();
    let primary = start(&around);
    let place = tempfile::tempdir().expect("make directory");
    let target = DirHandle::beside(&place.path().join("s1")).expect("a name");
    let mut coming = Link::bootstrap(&primary.link(&around, "s1"), &target, beside()).expect("connect");
    let held_from = || primary.find("s1").and_then(|status| status.held_from);
    let mut pause = Pause::default();
    while held_from() != Some(Lsn(30)) {
        coming.step().expect("no error");
        assert_eq!(coming.whole(), None, "the checkpoint is still on its way");
        pause.take();
    }
    drop(coming);
    assert_eq!(std::fs::read_dir(place.path()).expect("a folder").count(), 0);
    wait_until("it is lost", || primary.status("s1").state == StandbyStage::Lost);
    // The standby begins anew, from a checkpoint before the log that was held for it. Its earlier status is gone with its files.
    assert_eq!(primary.status("s1").shipped, Lsn(30));
    let coming = Link::bootstrap(&primary.link(&around, "s1"), &target, beside()).expect("connect");
    let whole = coming.run(&|| true).expect("no error").expect("whole");
    assert!((20..=30).contains(&whole.lsn.0), "{whole:?}");
}

/// A whole file in one frame.
fn send_file(connection: &mut Connection, path: &str, bytes: &[u8]) {
    let chunk = FileChunk {
        path,
        offset: 0,
        sum: Some(Sha256::digest(bytes).into()),
        bytes,
    };
    connection.sender.send(&[&chunk.head(), bytes]).expect("sent");
}

/// The only segment of a log of words.
fn segment(words: u32, around: &Around) -> (String, Vec<u8>) {
    let disk = SimDisk::new();
    let log = common::open_log(&disk, Role::Primary, (around.clock.clone(), around.threads.clone()));
    append_all(&log, "w", words);
    log.close().expect("close");
    let mut names = disk.list().expect("list").into_iter();
    let name = names.find(|name| parse_segment_name(name).is_some());
    let name = name.expect("a segment");
    let bytes = disk.bytes(&name).expect("its bytes");
    (name, bytes)
}

#[test]
fn a_primary_that_sends_other_things_is_left() {
    let around = around();
    let (name, bytes) = segment(5, &around);
    let path = format!("log/{name}");
    let group = |first: u64, records: &'static [u8]| {
        Frame::Group(GroupFrame {
            epoch: Epoch::new(1, 0),
            first: Lsn(first),
            end: Lsn(first + 1),
            history: History(0).then(records),
            records,
        })
    };
    let end = |count: u32| {
        Frame::FilesEnd(FilesEnd {
            count,
            epoch: Epoch::new(1, 0),
            lsn: Lsn(5),
        })
    };
    type Say<'a> = Box<dyn Fn(&mut Connection) + 'a>;
    let say = |connection: &mut Connection, frame: Frame<'_>| connection.sender.send(&[&frame.encode()]).expect("sent");
    let log = |connection: &mut Connection| send_file(connection, &path, &bytes);
    let checkpoint = |connection: &mut Connection| send_file(connection, "checkpoints/c.ckpt", b"rows");
    let cases: [(Say<'_>, &str, bool); 6] = [
        (
            Box::new(|c| say(c, group(0, b"early"))),
            "which was not its turn",
            false,
        ),
        (
            Box::new(|c| {
                log(c);
                checkpoint(c);
                say(c, group(5, b"forged"));
            }),
            "are not those that were sent",
            false,
        ),
        (
            Box::new(|c| {
                log(c);
                checkpoint(c);
                send_file(c, "log/more.log", b"more");
            }),
            "the log had come whole before it",
            false,
        ),
        (
            Box::new(|c| {
                send_file(c, &path, &[1; 300]);
                checkpoint(c);
            }),
            "the log among the first files",
            true,
        ),
        (Box::new(|c| say(c, end(0))), "not all files have come", false),
        (
            Box::new(|c| {
                log(c);
                say(c, end(1));
            }),
            "not all files have come",
            false,
        ),
    ];
    let place = tempfile::tempdir().expect("make directory");
    let listening = around
        .net
        .listen("127.0.0.1:0", reprise_ship::SHIP_LIMITS)
        .expect("a port is free");
    for (say_all, what, is_final) in cases {
        let link = LinkConfig {
            net: around.net.clone(),
            clock: around.clock.clone(),
            address: listening.address.clone(),
            certificate: None,
            ticket: [0; 16],
            name: "s1".into(),
            connect_time: Duration::from_secs(2),
        };
        let target = DirHandle::beside(&place.path().join("s1")).expect("a name");
        let coming = Link::bootstrap(&link, &target, beside()).expect("connect");
        let mut connection = listening.accepted.recv_timeout(common::WAIT_MAX).expect("it connects");
        let welcome = Welcome {
            epoch: Epoch::new(1, 0),
            durable: Lsn(0),
            safety: Safety::OneSafe,
            primary: "",
        };
        say(&mut connection, Frame::Welcome(welcome));
        say_all(&mut connection);
        let error = coming.run(&|| true).expect_err("it is over");
        assert!(error.to_string().contains(what), "{what}: {error}");
        assert_eq!(error.is_final(), is_final, "{error}");
        assert_eq!(std::fs::read_dir(place.path()).expect("a folder").count(), 0, "{what}");
    }
}

fn next(connection: &Connection) -> Vec<u8> {
    connection.frames.recv_timeout(common::WAIT_MAX).expect("a frame")
}

#[test]
fn a_standby_that_tells_of_another_log_gets_no_more() {
    let around = around();
    let primary = start(&around);
    for (received, epoch) in [(19, 1), (21, 1), (20, 2)] {
        let link = primary.link(&around, "s1");
        let connected = link.net.connect(&link.address, Duration::from_secs(2), STANDBY_LIMITS);
        let mut connection = connected.expect("somebody listens");
        let hello = Hello {
            protocol: SHIP_PROTOCOL,
            wants: Wants::Files,
            format: FORMAT_VERSION,
            database_id: [0; 16],
            partitions: 0,
            position: (Epoch::new(0, 0), Lsn(0), History(0)),
            ticket: link.ticket,
            name: "s1",
        };
        connection.sender.send(&[&Frame::Hello(hello).encode()]).expect("sent");
        while !matches!(Frame::decode(&next(&connection)).expect("a frame"), Frame::File(_)) {}
        let progress = Progress {
            received: Lsn(received),
            persisted: Lsn(received),
            room_bytes: 1 << 20,
            epoch: Epoch::new(epoch, 0),
            ..Progress::default()
        };
        connection
            .sender
            .send(&[&Frame::Progress(progress).encode()])
            .expect("sent");
        let refusal = loop {
            match Frame::decode(&next(&connection)).expect("a frame") {
                Frame::Refused(refused) => break refused.refusal,
                Frame::File(_) => {}
                other => panic!("{other:?}"),
            }
        };
        let expected = if epoch == 1 {
            StandbyRefusal::Diverged
        } else {
            StandbyRefusal::Unavailable
        };
        assert_eq!(refusal, expected);
        assert_eq!(primary.status("s1").held_from, Some(Lsn(20)));
    }
}
