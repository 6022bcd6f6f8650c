//! A network that is late, breaks and parts, and RDMA cards that lose and swap completions, by seeds. At any time the standby's log is the
//! beginning of the primary's, and all of it once there is a network again. Some of its records are in another form.

use std::sync::Arc;

use crate::common::{Around, LogTaker, Primary, TestLog, append_apart, append_with, open_log, stream};
use reprise_base::{Lsn, Role};
use reprise_env::{Clock, NetFaults, SimClock, SimDisk, SimNet, Step, Stepper};
use reprise_net_rdma::{
    SteppedNet,
    fake::{CardFault, FakeCard},
};
use reprise_ship::{LinkError, LogReceiver, StandbyStage};
use reprise_wire::{RecordKind, RecordRef, TwoForms};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Connects as often as it has to.
struct Following {
    streaming: Option<LogReceiver>,
    connections: u32,
}

impl Following {
    /// Returns whether anything was done.
    fn step(&mut self, primary: &Primary, around: &Around, taker: &Arc<LogTaker>) -> bool {
        let Some(streaming) = &mut self.streaming else {
            self.streaming = match stream(&primary.link(around, "s1"), taker) {
                Ok(streaming) => Some(streaming),
                Err(LinkError::Net(_)) => return false,
                Err(error) => panic!("{error}"),
            };
            self.connections += 1;
            return true;
        };
        match streaming.step() {
            Ok(step) => step == Step::Done,
            Err(error) => {
                assert!(!error.is_final(), "{error}");
                self.streaming = None;
                true
            }
        }
    }
}

/// The network of a seed.
trait Network {
    /// The environment of the primary (`a`), and of the standby (`b`).
    fn around(&self, host: &str, listen: &'static str, clock: &Arc<SimClock>, stepper: &Stepper) -> Around;
    /// Returns whether anything came.
    fn deliver(&self) -> bool;
    /// One of 8 mishaps, by number.
    fn trouble(&self, number: u64, random: &mut Random);
    /// Ends all mishaps.
    fn heal(&self);
}

impl Network for SimNet {
    fn around(&self, host: &str, listen: &'static str, clock: &Arc<SimClock>, stepper: &Stepper) -> Around {
        Around {
            net: Arc::new(self.host(host)),
            clock: clock.clone(),
            threads: Arc::new(stepper.clone()),
            listen,
        }
    }

    fn deliver(&self) -> bool {
        SimNet::deliver(self)
    }

    fn trouble(&self, number: u64, random: &mut Random) {
        match number {
            0 => self.break_between("a", "b"),
            1 => self.part("a", "b"),
            2 => self.cut("b", "a"),
            3..7 => SimNet::heal(self, "a", "b"),
            _ => {
                let most = [50, 500, 50_000][random.below(3) as usize];
                let breaks_per_mille = random.below(20);
                self.set_faults(NetFaults {
                    delay_us: (10, most),
                    breaks_per_mille,
                });
            }
        }
    }

    fn heal(&self) {
        SimNet::heal(self, "a", "b");
        self.set_faults(NetFaults::default());
    }
}

/// Cards whose completions are lost and swapped, whose keys are wrong, and that fall silent.
struct Cards(FakeCard, SteppedNet);

impl Network for Cards {
    fn around(&self, _: &str, listen: &'static str, clock: &Arc<SimClock>, stepper: &Stepper) -> Around {
        Around {
            net: Arc::new(self.1.clone()),
            clock: clock.clone(),
            threads: Arc::new(stepper.clone()),
            listen,
        }
    }

    fn deliver(&self) -> bool {
        false
    }

    fn trouble(&self, number: u64, random: &mut Random) {
        let at = self.0.immediates() + random.below(20);
        match number {
            0 => self.1.break_all(),
            1 => self.0.fault(CardFault::LoseReceived(at)),
            2 | 3 => self.0.fault(CardFault::SwapReceived(at)),
            4 => self.0.fault(CardFault::WrongKey(at)),
            5 => self.0.fault(CardFault::Unanswered(at)),
            _ => {}
        }
    }

    fn heal(&self) {}
}

/// Appends a record that is the same everywhere, or one that standbys get in the other form; its end.
fn append_any(log: &TestLog, number: u64, random: &mut Random) -> Lsn {
    let bytes = random.below(900) as usize;
    match random.below(4) {
        0 => append_apart(log, number, bytes, TwoForms::CommandHere),
        1 => append_apart(log, number, bytes, TwoForms::ChangesHere),
        _ => append_with(log, &format!("w{number}"), bytes),
    }
}

/// The records of a log, by what does not depend on their form; and their kinds.
fn records_of(log: &TestLog) -> (Vec<(Lsn, String)>, Vec<RecordKind>) {
    let mut reader = log.reader(Lsn(0)).expect("reader");
    let (mut records, mut kinds) = (Vec::new(), Vec::new());
    while let Some(found) = reader.next_record().expect("read") {
        let text = match found.record {
            RecordRef::Deploy(deploy) => format!("{} {}", deploy.name, deploy.wasm.len()),
            RecordRef::Command(command) => format!("{} {}", command.txn_id, command.args.len()),
            // An insertion of this many bytes, with the parts around its row.
            RecordRef::Changes(changes) => {
                let mut read = reprise_wire::Changes::new(changes.changes).map(|change| change.expect("whole"));
                match read.next() {
                    Some(reprise_wire::Change::Insert { row, .. }) => format!("{} {}", changes.txn_id, row.len()),
                    other => panic!("nobody wrote {other:?}"),
                }
            }
            other => panic!("nobody wrote {other:?}"),
        };
        records.push((found.lsn, text));
        kinds.push(found.record.kind());
    }
    (records, kinds)
}

/// The results of a seed.
#[derive(Default)]
struct Found {
    connections: u32,
    /// Records that the standby has in another form.
    apart: usize,
    /// Number of records that it has in their logged form, although they were shipped in another form.
    from_files: usize,
}

impl std::iter::Sum for Found {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, next| Self {
            connections: sum.connections + next.connections,
            apart: sum.apart + next.apart,
            from_files: sum.from_files + next.from_files,
        })
    }
}

fn run(seed: u64) -> Found {
    let clock = Arc::new(SimClock::at_us(1_000_000));
    let stepper = Stepper::new(seed, clock.clone());
    let net = SimNet::new(seed, clock.clone());
    let found = run_over(&net, seed, (&clock, &stepper));
    stepper.forget();
    found
}

/// Runs a seed over RDMA.
fn run_over_cards(seed: u64) -> Found {
    let clock = Arc::new(SimClock::at_us(1_000_000));
    let stepper = Stepper::new(seed, clock.clone());
    let card = FakeCard::new();
    let net = SteppedNet::new(Arc::new(card.clone()), clock.clone(), Arc::new(stepper.clone()));
    let found = run_over(&Cards(card.clone(), net), seed, (&clock, &stepper));
    stepper.forget();
    assert_eq!(
        card.open(),
        0,
        "reproduce: seed {seed}: queue pairs were not given back"
    );
    found
}

fn run_over(net: &dyn Network, seed: u64, (clock, stepper): (&Arc<SimClock>, &Stepper)) -> Found {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (here, there) = (
        net.around("a", "a:0", clock, stepper),
        net.around("b", "", clock, stepper),
    );
    let primary = Primary::start(&SimDisk::new(), &here, 2 << 10);
    let disk = SimDisk::new();
    let log = open_log(&disk, Role::Standby, (clock.clone(), there.threads.clone()));
    let taker = LogTaker::new(&log);
    let mut following = Following {
        streaming: None,
        connections: 0,
    };
    let (mut appended, mut end) = (0, Lsn(0));
    let turn = |random: &mut Random, following: &mut Following| {
        let is_moved = stepper.step() | net.deliver() | following.step(&primary, &there, &taker);
        if !is_moved {
            clock.advance_us(50 + random.below(3_000) as i64);
        }
        let (has, sent) = (log.durable(), primary.log.durable());
        assert!(has <= primary.log.filled() && sent <= primary.log.filled());
    };
    while appended < 400 {
        match random.below(100) {
            0..15 => {
                end = append_any(&primary.log, appended, &mut random);
                appended += 1;
            }
            number @ 15..23 => net.trouble(number - 15, &mut random),
            23 => clock.advance_us(random.below(200_000) as i64),
            _ => turn(&mut random, &mut following),
        }
    }
    net.heal();
    let mut turns = 0;
    while log.durable() < end || primary.status("s1").persisted < end {
        turn(&mut random, &mut following);
        turns += 1;
        assert!(turns < 2_000_000, "reproduce: seed {seed}: it does not catch up");
    }
    let ((here, own), (there, theirs)) = (records_of(&primary.log), records_of(&log));
    assert_eq!(there, here, "reproduce: seed {seed}");
    assert_eq!(primary.shipper.acked(1).map(|mark| mark.get()), Some(end.0));
    let mut found = Found {
        connections: following.connections,
        ..Found::default()
    };
    for (own, theirs) in own.iter().zip(&theirs).filter(|(own, _)| **own != RecordKind::Deploy) {
        found.apart += usize::from(own != theirs);
        found.from_files += usize::from(own == theirs);
    }
    // Whatever form each has, both have one history, also as it is read from the files.
    let received = log.received().expect("a standby's");
    assert_eq!(
        primary.log.history_at(end),
        Ok(Some(received.history)),
        "reproduce: seed {seed}"
    );
    drop(following);
    stepper.kill();
    drop((primary, taker, log));
    let again = Stepper::new(seed, clock.clone());
    let log = open_log(&disk, Role::Standby, (clock.clone(), Arc::new(again.clone())));
    assert_eq!(log.received(), Some(received), "reproduce: seed {seed}");
    again.kill();
    drop(log);
    again.forget();
    found
}

#[test]
fn a_standby_gets_all_of_it_whatever_the_network_does() {
    let found: Found = (1..60).map(run).sum();
    assert!(found.connections > 100, "{}", found.connections);
    assert!(
        found.apart > 1_000 && found.from_files > 1_000,
        "{}, {}",
        found.apart,
        found.from_files
    );
}

#[test]
fn a_standby_gets_all_of_it_whatever_completions_do() {
    let found: Found = (1..60).map(run_over_cards).sum();
    assert!(found.connections > 200, "{}", found.connections);
    assert!(
        found.apart > 1_000 && found.from_files > 1_000,
        "{}, {}",
        found.apart,
        found.from_files
    );
}

/// A wire that takes a second one way: a heartbeat returns a time of two seconds before, and the sync set is saved as late.
#[test]
fn standby_on_a_wire_that_takes_a_second_streams_and_knows_how_old_it_is() {
    let clock = Arc::new(SimClock::at_us(1_000_000));
    let (stepper, net) = (Stepper::new(1, clock.clone()), SimNet::new(1, clock.clone()));
    net.set_faults(NetFaults {
        delay_us: (1_000_000, 1_000_000),
        breaks_per_mille: 0,
    });
    let (here, there) = (
        net.around("a", "a:0", &clock, &stepper),
        net.around("b", "", &clock, &stepper),
    );
    let primary = Primary::start(&SimDisk::new(), &here, 1 << 20);
    let log = open_log(&SimDisk::new(), Role::Standby, (clock.clone(), there.threads.clone()));
    let taker = LogTaker::new(&log);
    let mut following = Following {
        streaming: None,
        connections: 0,
    };
    let until_ns = clock.boot_ns() + 20_000_000_000;
    for number in 0_u64.. {
        if clock.boot_ns() >= until_ns {
            break;
        }
        if number.is_multiple_of(100) {
            append_with(&primary.log, &format!("w{number}"), 10);
        }
        if !(stepper.step() | net.deliver() | following.step(&primary, &there, &taker)) {
            clock.advance_us(1_000);
        }
    }
    assert_eq!(following.connections, 1, "{:?}", primary.status("s1").error);
    assert_eq!(primary.status("s1").state, StandbyStage::Streaming);
    let beats = taker.beats.lock().expect("test").clone();
    let mut ages = beats.iter().filter_map(|beat| Some(beat.came_ns - beat.echo_ns?));
    assert!(ages.clone().count() > 100 && ages.clone().all(|age_ns| age_ns >= 2_000_000_000));
    assert!(ages.next_back().is_some_and(|age_ns| age_ns < 2_200_000_000));
    // The machine is suspended, so the last beat is older by that time.
    let heard_ns = beats.last().and_then(|beat| beat.echo_ns).expect("it was heard");
    clock.suspend_us(5_000_000);
    assert!(clock.boot_ns() - heard_ns >= 7_000_000_000 && clock.monotonic_ns() - heard_ns < 3_000_000_000);
    drop(following);
    stepper.kill();
    drop((primary, taker, log));
    stepper.forget();
}
