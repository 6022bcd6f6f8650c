//! Promises of both networks, and the faults of the simulated one.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{RecvTimeoutError, TryRecvError};
use reprise_env::{Connection, Net, NetError, NetFaults, NetLimits, RealNet, SimClock, SimNet};

const LIMITS: NetLimits = NetLimits {
    frame_bytes: 64 << 10,
    sent_bytes: 64 << 10,
    frames_waiting: 4,
    send_time: Duration::from_millis(500),
};
const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(20);

fn real_pair() -> (Connection, Connection) {
    real_pair_that_sends_within(LONG)
}

fn real_pair_that_sends_within(send_time: Duration) -> (Connection, Connection) {
    let limits = NetLimits { send_time, ..LIMITS };
    let listener = RealNet.listen("127.0.0.1:0", limits).expect("a port is free");
    let client = RealNet
        .connect(&listener.address, LONG, limits)
        .expect("somebody listens");
    (client, listener.accepted.recv_timeout(LONG).expect("a connection"))
}

fn sim(seed: u64) -> (Arc<SimClock>, SimNet) {
    let clock = Arc::new(SimClock::at_us(0));
    (clock.clone(), SimNet::new(seed, clock))
}

fn sim_pair(net: &SimNet) -> (Connection, Connection) {
    let listener = net.host("b").listen("b:0", LIMITS).expect("free");
    let client = net
        .host("a")
        .connect(&listener.address, SECOND, LIMITS)
        .expect("somebody listens");
    (client, listener.accepted.try_recv().expect("a connection"))
}

fn pass(clock: &SimClock, net: &SimNet, us: i64) {
    clock.advance_us(us);
    while net.deliver() {}
}

#[test]
fn frames_arrive_whole_in_order_and_up_to_the_end() {
    let (mut client, mut server) = real_pair();
    let sending = thread::spawn(move || {
        for n in 0..500u32 {
            let rest = vec![n as u8; n as usize * 100];
            client.sender.send(&[&n.to_le_bytes(), &[], &rest]).expect("sent");
        }
        client.frames.recv_timeout(LONG)
    });
    for n in 0..500u32 {
        let frame = server.frames.recv_timeout(LONG).expect("a frame");
        assert_eq!(frame.len(), 4 + n as usize * 100);
        assert_eq!(frame[..4], n.to_le_bytes());
    }
    server.sender.send(&[b"done"]).expect("sent");
    assert_eq!(sending.join().expect("no panic").as_deref(), Ok(&b"done"[..]));
    assert_eq!(server.frames.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
    let ended = (0..100).map(|_| server.sender.send(&[&[0; 1000]])).find(Result::is_err);
    assert_eq!(ended, Some(Err(NetError::Closed)));
}

#[test]
fn a_peer_that_reads_nothing_is_given_up() {
    let (mut client, _server) = real_pair_that_sends_within(LIMITS.send_time);
    let frame = vec![0; 60 << 10];
    let refused = (0..2_000).map(|_| client.sender.send(&[&frame])).find(Result::is_err);
    assert_eq!(refused, Some(Err(NetError::TimedOut)));
    assert_eq!(client.sender.send(&[b"more"]), Err(NetError::Closed));
}

/// An address where connections are taken for as long as the test runs.
fn listening() -> String {
    let listener = RealNet.listen("127.0.0.1:0", LIMITS).expect("a port is free");
    let address = listener.address.clone();
    thread::spawn(move || {
        // The whole listener is this thread's: a closure that names one field of it takes no more than that, and the rest closes here.
        let open = listener;
        let taken: Vec<_> = open.accepted.iter().collect();
        drop(taken);
    });
    address
}

/// A stranger connects and sends nothing, whatever he receives.
#[test]
fn a_connection_that_is_dropped_ends_though_its_peer_stays() {
    let listener = RealNet.listen("127.0.0.1:0", LIMITS).expect("a port is free");
    let mut peer = TcpStream::connect(&listener.address).expect("somebody listens");
    let mut taken = listener.accepted.recv_timeout(LONG).expect("a connection");
    taken.sender.send(&[b"the last word"]).expect("it is there");
    drop(taken);
    // The last frame still arrives.
    let mut told = Vec::new();
    peer.read_to_end(&mut told).expect("up to the end");
    assert!(told.ends_with(b"the last word"), "{told:?}");
    let until = Instant::now() + LONG;
    while peer.write_all(b"x").is_ok() {
        assert!(Instant::now() < until, "somebody still reads");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_listener_takes_so_many_connections_at_once_and_others_when_they_end() {
    let listener = RealNet.listen("127.0.0.1:0", LIMITS).expect("a port is free");
    let address = listener.address.clone();
    let connecting = thread::spawn(move || {
        let connect = |_| TcpStream::connect(&address).expect("the kernel keeps it");
        (0..200).map(connect).collect::<Vec<_>>()
    });
    let mut taken = vec![listener.accepted.recv_timeout(LONG).expect("the first one")];
    while let Ok(connection) = listener.accepted.recv_timeout(SECOND) {
        taken.push(connection);
    }
    assert!((1..200).contains(&taken.len()), "{} at once", taken.len());
    let first = taken.len();
    drop(taken);
    let more = (first..200).map(|_| listener.accepted.recv_timeout(LONG).map(drop));
    assert!(
        more.into_iter().all(|taken| taken.is_ok()),
        "others wait for their turn"
    );
    connecting.join().expect("no panic");
}

#[test]
fn frames_that_are_too_long_are_refused_by_both_ends() {
    let (mut client, server) = real_pair();
    let (bytes, max) = (LIMITS.frame_bytes + 1, LIMITS.frame_bytes);
    assert_eq!(
        client.sender.send(&[&vec![0; bytes]]),
        Err(NetError::TooLarge { bytes, max })
    );
    client.sender.send(&[b"goes on"]).expect("sent");
    assert_eq!(server.frames.recv_timeout(LONG).as_deref(), Ok(&b"goes on"[..]));
    // Each end has limits of its own.
    let roomy = NetLimits {
        sent_bytes: bytes,
        ..LIMITS
    };
    let mut client = RealNet.connect(&listening(), SECOND, roomy).expect("somebody listens");
    // The other end ends it once it has read how long the frame is, perhaps before all of it was sent.
    let sent = client.sender.send(&[&vec![0; bytes]]);
    assert!(matches!(sent, Ok(()) | Err(NetError::Closed)), "{sent:?}");
    assert_eq!(client.frames.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
    // A peer that keeps to no limit.
    use std::io::{Read, Write};
    let listener = RealNet.listen("127.0.0.1:0", LIMITS).expect("a port is free");
    let mut stream = std::net::TcpStream::connect(&listener.address).expect("somebody listens");
    let server = listener.accepted.recv_timeout(LONG).expect("a connection");
    stream.write_all(&u32::MAX.to_le_bytes()).expect("sent");
    assert_eq!(server.frames.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
    stream.set_read_timeout(Some(LONG)).expect("set");
    assert!(matches!(stream.read(&mut [0; 8]), Ok(0) | Err(_)));
}

#[test]
fn connection_fails_without_a_listener() {
    let listener = RealNet.listen("127.0.0.1:0", LIMITS).expect("a port is free");
    let address = listener.address.clone();
    assert!(RealNet.listen(&address, LIMITS).is_err());
    drop(listener);
    let refused = (0..200).find_map(|_| {
        thread::sleep(Duration::from_millis(10));
        RealNet.connect(&address, SECOND, LIMITS).err()
    });
    assert!(matches!(refused, Some(NetError::Unreachable(_))), "{refused:?}");
    assert!(matches!(
        RealNet.connect("no such host:1", SECOND, LIMITS),
        Err(NetError::Unreachable(_))
    ));
    let (_, net) = sim(1);
    let refused = net.host("a").connect("b:1", SECOND, LIMITS).err();
    assert!(matches!(refused, Some(NetError::Unreachable(_))));
}

#[test]
fn simulated_frames_are_late_and_in_order() {
    let (clock, net) = sim(7);
    net.set_faults(NetFaults {
        delay_us: (100, 1_000),
        breaks_per_mille: 0,
    });
    let (mut client, server) = sim_pair(&net);
    for n in 0..4u8 {
        client.sender.send(&[&[n]]).expect("sent");
    }
    pass(&clock, &net, 99);
    assert_eq!(server.frames.try_recv(), Err(TryRecvError::Empty));
    pass(&clock, &net, 4_000);
    let got: Vec<_> = server.frames.try_iter().collect();
    assert_eq!(got, [[0], [1], [2], [3]]);
    drop(client);
    pass(&clock, &net, 1);
    assert_eq!(server.frames.try_recv(), Err(TryRecvError::Disconnected));
}

#[test]
fn two_connections_overtake_each_other() {
    let overtakes = (0..20).filter(|seed| {
        let (clock, net) = sim(*seed);
        net.set_faults(NetFaults {
            delay_us: (10, 1_000),
            breaks_per_mille: 0,
        });
        let (mut first, first_end) = sim_pair(&net);
        let (mut second, second_end) = sim_pair(&net);
        first.sender.send(&[b"first"]).expect("sent");
        second.sender.send(&[b"second"]).expect("sent");
        loop {
            pass(&clock, &net, 10);
            match (first_end.frames.is_empty(), second_end.frames.is_empty()) {
                (true, true) => {}
                (is_first_missing, _) => return is_first_missing,
            }
        }
    });
    assert!((1..20).contains(&overtakes.count()));
}

#[test]
fn a_cut_holds_up_and_a_break_ends() {
    let (clock, net) = sim(3);
    let (mut client, mut server) = sim_pair(&net);
    net.cut("a", "b");
    client.sender.send(&[b"held up"]).expect("nobody notices");
    server.sender.send(&[b"other way"]).expect("sent");
    pass(&clock, &net, 10_000_000);
    assert!(server.frames.is_empty());
    assert_eq!(client.frames.try_recv().as_deref(), Ok(&b"other way"[..]));
    let listener = net.host("b").listen("b:0", LIMITS).expect("free");
    assert_eq!(
        net.host("a").connect(&listener.address, SECOND, LIMITS).err(),
        Some(NetError::TimedOut)
    );
    net.heal("a", "b");
    pass(&clock, &net, 1_000);
    assert_eq!(server.frames.try_recv().as_deref(), Ok(&b"held up"[..]));
    client.sender.send(&[b"lost"]).expect("sent");
    net.break_between("a", "b");
    pass(&clock, &net, 1_000);
    assert_eq!(server.frames.try_recv(), Err(TryRecvError::Disconnected));
    assert_eq!(client.sender.send(&[b"more"]), Err(NetError::Closed));
}

#[test]
fn a_killed_host_takes_its_connections_with_it() {
    let (clock, net) = sim(4);
    let (mut client, _server) = sim_pair(&net);
    let listener = net.host("b").listen("b:0", LIMITS).expect("free");
    net.kill("b");
    pass(&clock, &net, 1_000);
    assert_eq!(client.frames.try_recv(), Err(TryRecvError::Disconnected));
    assert_eq!(client.sender.send(&[b"more"]), Err(NetError::Closed));
    assert!(net.host("a").connect(&listener.address, SECOND, LIMITS).is_err());
}

#[test]
fn bytes_in_flight_are_bounded() {
    let (_, net) = sim(5);
    let (mut client, _server) = sim_pair(&net);
    let frame = vec![0; 60 << 10];
    let refused = (0..1_000).map(|_| client.sender.send(&[&frame])).find(Result::is_err);
    assert_eq!(refused, Some(Err(NetError::TimedOut)));
}

#[test]
fn frames_break_connections_by_the_seed() {
    let run = |seed| {
        let (_, net) = sim(seed);
        net.set_faults(NetFaults {
            delay_us: (0, 0),
            breaks_per_mille: 20,
        });
        let (mut client, _server) = sim_pair(&net);
        (0..1_000)
            .take_while(|_| client.sender.send(&[b"frame"]).is_ok())
            .count()
    };
    assert_eq!(run(1), run(1));
    assert!((0..20).map(run).any(|count| count < 200));
}
