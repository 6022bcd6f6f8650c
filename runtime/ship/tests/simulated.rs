//! On a network that is late, breaks and parts, and over RDMA cards that lose and swap completions, by seeds: the standby's log is at any time
//! the beginning of the primary's, and all of it once there is a network again.

mod common;

use std::sync::Arc;

use common::{Around, LogTaker, Primary, append_with, open_log, stream, words_of};
use reprise_base::{Lsn, Role};
use reprise_env::{NetFaults, SimClock, SimDisk, SimNet, Step, Stepper};
use reprise_net_rdma::{
    SteppedNet,
    fake::{FakeCard, Fault},
};
use reprise_ship::{LinkError, Streaming};

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
    streaming: Option<Streaming>,
    connections: u32,
}

impl Following {
    /// True where anything was done.
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

/// What a seed runs over.
trait Network {
    /// As the primary has it (`a`), and the standby (`b`).
    fn around(&self, host: &str, listen: &'static str, clock: &Arc<SimClock>, stepper: &Stepper) -> Around;
    /// True where anything came.
    fn deliver(&self) -> bool;
    /// One of 8 mishaps, by number.
    fn trouble(&self, number: u64, random: &mut Random);
    /// It goes wrong no more.
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
            1 => self.0.fault(Fault::LoseReceived(at)),
            2 | 3 => self.0.fault(Fault::SwapReceived(at)),
            4 => self.0.fault(Fault::WrongKey(at)),
            5 => self.0.fault(Fault::Unanswered(at)),
            _ => {}
        }
    }

    fn heal(&self) {}
}

/// How many connections it took.
fn run(seed: u64) -> u32 {
    let clock = Arc::new(SimClock::at_us(1_000_000));
    let stepper = Stepper::new(seed, clock.clone());
    let net = SimNet::new(seed, clock.clone());
    let connections = run_over(&net, seed, (&clock, &stepper));
    stepper.forget();
    connections
}

/// The same over RDMA.
fn run_over_cards(seed: u64) -> u32 {
    let clock = Arc::new(SimClock::at_us(1_000_000));
    let stepper = Stepper::new(seed, clock.clone());
    let card = FakeCard::new();
    let net = SteppedNet::new(Arc::new(card.clone()), clock.clone(), Arc::new(stepper.clone()));
    let connections = run_over(&Cards(card.clone(), net), seed, (&clock, &stepper));
    stepper.forget();
    assert_eq!(
        card.open(),
        0,
        "reproduce: seed {seed}: queue pairs were not given back"
    );
    connections
}

fn run_over(net: &dyn Network, seed: u64, (clock, stepper): (&Arc<SimClock>, &Stepper)) -> u32 {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (here, there) = (
        net.around("a", "a:0", clock, stepper),
        net.around("b", "", clock, stepper),
    );
    let primary = Primary::start(&SimDisk::new(), &here, 2 << 10);
    let log = open_log(&SimDisk::new(), Role::Standby, (clock.clone(), there.threads.clone()));
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
                end = append_with(&primary.log, &format!("w{appended}"), random.below(900) as usize);
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
    assert_eq!(
        words_of(&log, Lsn(0)),
        words_of(&primary.log, Lsn(0)),
        "reproduce: seed {seed}"
    );
    assert_eq!(primary.shipper.acked(1).map(|mark| mark.get()), Some(end.0));
    let connections = following.connections;
    drop(following);
    stepper.kill();
    drop((primary, taker, log));
    connections
}

#[test]
fn a_standby_gets_all_of_it_whatever_the_network_does() {
    let connections: u32 = (1..60).map(run).sum();
    assert!(connections > 100, "{connections}");
}

#[test]
fn a_standby_gets_all_of_it_whatever_completions_do() {
    let connections: u32 = (1..60).map(run_over_cards).sum();
    assert!(connections > 200, "{connections}");
}
