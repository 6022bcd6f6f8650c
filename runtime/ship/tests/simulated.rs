//! On a network that is late, breaks and parts, by seeds: the standby's log is at any time the beginning of the primary's, and all of
//! it once there is a network again.

mod common;

use std::sync::Arc;

use common::{Around, LogTaker, Primary, append_with, open_log, stream, words_of};
use reprise_base::{Lsn, Role};
use reprise_env::{NetFaults, SimClock, SimDisk, SimNet, Step, Stepper};
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

/// How many connections it took.
fn run(seed: u64) -> u32 {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let clock = Arc::new(SimClock::at_us(1_000_000));
    let (net, stepper) = (SimNet::new(seed, clock.clone()), Stepper::new(seed, clock.clone()));
    let at = |host: &str, listen| Around {
        net: Arc::new(net.host(host)),
        clock: clock.clone(),
        threads: Arc::new(stepper.clone()),
        listen,
    };
    let (here, there) = (at("a", "a:0"), at("b", ""));
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
            15 => net.break_between("a", "b"),
            16 => net.part("a", "b"),
            17 => net.cut("b", "a"),
            18..22 => net.heal("a", "b"),
            22 => {
                let most = [50, 500, 50_000][random.below(3) as usize];
                let breaks_per_mille = random.below(20);
                net.set_faults(NetFaults {
                    delay_us: (10, most),
                    breaks_per_mille,
                });
            }
            23 => clock.advance_us(random.below(200_000) as i64),
            _ => turn(&mut random, &mut following),
        }
    }
    net.heal("a", "b");
    net.set_faults(NetFaults::default());
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
    stepper.forget();
    connections
}

#[test]
fn a_standby_gets_all_of_it_whatever_the_network_does() {
    let connections: u32 = (1..60).map(run).sum();
    assert!(connections > 100, "{connections}");
}
