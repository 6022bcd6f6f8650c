//! The transport over simulated cards: the requests that it posts, and its actions when cards and peers do what they must not.

use std::{
    io::{Read, Write as _},
    net::{IpAddr, Ipv4Addr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use reprise_env::{Connection, Listener, Net, NetError, NetLimits, RealNet};
use reprise_net_rdma::{
    Ask, Card, GREETING_BYTES, Greeting, MemorySpan, PIECES_MAX, PieceHead, QueuePair, RING_AT, RING_BYTES_MAX,
    RING_BYTES_MIN, RdmaNet, RemoteMemory, VerbsError, Write,
    fake::{CardFault, FakeCard, LIMITS, PostedWrite},
    make_ready, piece_bytes_max, read,
};

const SECOND: Duration = Duration::from_secs(1);
/// Longest time to connect, to accept, and for a frame that must come. A busy machine needs some of it.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Limits of the end that gets long frames.
const LONG: NetLimits = NetLimits {
    frame_bytes: 8 << 20,
    sent_bytes: 1 << 10,
    ..LIMITS
};

struct Ends {
    card: FakeCard,
    net: RdmaNet,
    listener: Listener,
    /// Sends long frames.
    near: Connection,
    far: Connection,
}

fn listen(card: &FakeCard, limits: NetLimits) -> (RdmaNet, Listener) {
    let net = RdmaNet::new(Arc::new(card.clone()));
    let listener = net.listen("127.0.0.1:0", limits).expect("a port is free");
    (net, listener)
}

fn ends() -> Ends {
    ends_that_send_within(LIMITS.send_time)
}

fn ends_that_send_within(send_time: Duration) -> Ends {
    let card = FakeCard::new();
    let (net, listener) = listen(&card, NetLimits { send_time, ..LIMITS });
    let limits = NetLimits { send_time, ..LONG };
    let far = net
        .connect(&listener.address, WAIT_MAX, limits)
        .expect("somebody listens");
    let near = listener.accepted.recv_timeout(WAIT_MAX).expect("accepted");
    assert_eq!(net.path().as_deref(), Some("a fake card at 127.0.0.1"));
    card.take_posted();
    Ends {
        card,
        net,
        listener,
        near,
        far,
    }
}

fn frame(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + number * 13 + (at >> 9)) as u8).collect()
}

fn next(connection: &Connection) -> Option<Vec<u8>> {
    connection.frames.recv_timeout(5 * SECOND).ok()
}

/// Waits until everything of the card was given back.
fn check_given_back(card: &FakeCard) {
    let until = Instant::now() + 5 * SECOND;
    while card.open() > 0 {
        assert!(Instant::now() < until, "{} queue pairs are still open", card.open());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn send_until_over(near: &mut Connection, bytes: usize) -> NetError {
    let until = Instant::now() + 5 * SECOND;
    for number in 0.. {
        if let Err(error) = near.sender.send(&[&frame(number, bytes)]) {
            return error;
        }
        assert!(Instant::now() < until, "it goes on for ever");
        std::thread::sleep(Duration::from_millis(1));
    }
    unreachable!("it counts on")
}

#[test]
fn frames_of_every_length_come_whole_and_in_order() {
    let Ends {
        card,
        mut near,
        mut far,
        ..
    } = ends_that_send_within(WAIT_MAX);
    let piece = piece_bytes_max(RING_BYTES_MAX);
    let mut lengths: Vec<usize> = (0..40).collect();
    lengths.extend([piece - 1, piece, piece + 1, 2 * piece, RING_BYTES_MAX + 5, 8 << 20, 3]);
    lengths.extend((0..200).map(|number| number * 997));
    let expected = lengths.clone();
    let sending = std::thread::spawn(move || {
        for (number, bytes) in lengths.into_iter().enumerate() {
            let whole = frame(number, bytes);
            let (one, other) = whole.split_at(bytes / 3);
            near.sender.send(&[one, &[], other]).expect("sent");
        }
        near
    });
    for (number, bytes) in expected.into_iter().enumerate() {
        let came = next(&far).expect("it comes");
        assert!(came == frame(number, bytes), "frame {number} of {bytes} bytes");
        far.sender.send(&[&(number as u32).to_le_bytes()]).expect("answered");
        if number % 4 == 3 {
            std::thread::yield_now();
        }
    }
    let near = sending.join().expect("it sends");
    let mut answers = 0;
    while let Ok(answer) = near.frames.recv_timeout(10 * SECOND) {
        assert_eq!(answer, (answers as u32).to_le_bytes());
        answers += 1;
        if answers == 247 {
            break;
        }
    }
    assert_eq!(answers, 247);
    drop((near, far));
    check_given_back(&card);
}

#[test]
fn a_frame_is_one_write_and_two_where_the_ring_wraps() {
    const FRAMES: usize = 300;
    const BYTES: usize = 60_000;
    let Ends {
        card, mut near, far, ..
    } = ends();
    for number in 0..FRAMES {
        near.sender.send(&[&frame(number, BYTES)]).expect("sent");
        assert!(next(&far).expect("it comes") == frame(number, BYTES));
    }
    let posted = card.take_posted();
    let sender = posted[0].queue_pair;
    let own: Vec<Write> = posted
        .iter()
        .filter(|posted| posted.queue_pair == sender)
        .map(|posted| posted.write)
        .collect();
    let with_immediate = own.iter().filter(|write| write.immediate.is_some()).count();
    let wraps = FRAMES * (BYTES + 8).next_multiple_of(8) / RING_BYTES_MAX;
    assert_eq!(with_immediate, FRAMES, "one with an immediate value for each frame");
    assert_eq!(own.len(), FRAMES + wraps, "one more where the ring wraps");
    assert!(
        own.iter()
            .all(|write| write.immediate.is_none_or(|value| value == BYTES as u32))
    );
    let signalled = own.iter().filter(|write| write.is_signalled).count();
    assert!(
        signalled <= own.len() / 16 + 1,
        "{signalled} of {} are signalled",
        own.len()
    );
    // A plain write of a word reports the pieces taken.
    let told: Vec<&PostedWrite> = posted.iter().filter(|posted| posted.queue_pair != sender).collect();
    assert!(
        !told.is_empty()
            && told
                .iter()
                .all(|it| it.write.bytes() == 8 && it.write.immediate.is_none())
    );
}

#[test]
fn nothing_is_written_over_that_was_not_taken() {
    let Ends {
        card, mut near, far, ..
    } = ends();
    let bytes = 100_000;
    let begun = Instant::now();
    let mut sent = 0;
    let error = loop {
        match near.sender.send(&[&frame(sent, bytes)]) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 1000, "it is sent more than there is room for");
    };
    assert_eq!(error, NetError::TimedOut);
    assert!(begun.elapsed() >= LIMITS.send_time && begun.elapsed() < 3 * SECOND);
    assert!(sent >= RING_BYTES_MAX / bytes - 1, "{sent} frames had room");
    assert_eq!(near.sender.send(&[b"more"]), Err(NetError::TimedOut), "it is over");
    for number in 0..sent.min(LONG.frames_waiting + 1) {
        assert!(next(&far).expect("it had come") == frame(number, bytes));
    }
    drop((near, far));
    check_given_back(&card);
}

#[test]
fn short_frames_are_bounded_too() {
    let Ends { mut near, far, .. } = ends();
    let mut sent = 0;
    while near.sender.send(&[b"short"]).is_ok() {
        sent += 1;
        assert!(sent < 10_000, "it is sent more than receives are posted");
    }
    assert!(sent >= PIECES_MAX as usize, "{sent}");
    drop(far);
}

#[test]
fn bytes_sent_before_the_end_arrive() {
    let Ends {
        card,
        mut near,
        far,
        net,
        listener,
    } = ends();
    near.sender.send(&[b"the last"]).expect("sent");
    drop(near);
    assert_eq!(next(&far).as_deref(), Some(&b"the last"[..]));
    assert_eq!(next(&far), None);
    drop(far);
    check_given_back(&card);
    // And again.
    let mut again = net
        .connect(&listener.address, WAIT_MAX, LONG)
        .expect("somebody listens");
    let other = listener.accepted.recv_timeout(WAIT_MAX).expect("accepted");
    again.sender.send(&[b"again"]).expect("sent");
    assert_eq!(next(&other).as_deref(), Some(&b"again"[..]));
    drop((again, other));
    check_given_back(&card);
}

#[test]
fn one_half_may_end_before_the_other() {
    let Ends { near, far, .. } = ends();
    let Connection { sender, frames, .. } = near;
    drop(sender);
    assert_eq!(next(&far), None, "nothing comes any more");
    let mut far = far;
    far.sender.send(&[b"an answer"]).expect("the other half is there");
    assert_eq!(frames.recv_timeout(WAIT_MAX).ok().as_deref(), Some(&b"an answer"[..]));
}

/// A completion that is lost or out of order ends the connection: frames before it come, nothing behind it does.
#[test]
fn completions_that_are_lost_or_swapped_are_noticed() {
    for fault in [CardFault::LoseReceived(5), CardFault::SwapReceived(5)] {
        let Ends {
            card, mut near, far, ..
        } = ends();
        card.fault(fault);
        for number in 0..10 {
            // The peer may have noticed already.
            let _ = near.sender.send(&[&frame(number, 500 + number)]);
        }
        let mut came = 0;
        while let Some(next) = next(&far) {
            assert!(next == frame(came, 500 + came), "{fault:?}: frame {came}");
            came += 1;
        }
        assert_eq!(came, 5, "{fault:?}");
        let error = send_until_over(&mut near, 10);
        assert_eq!(error, NetError::Closed, "{fault:?}: the peer ended it");
        let mut far = far;
        let reason = far.sender.send(&[b"x"]).expect_err("it is over").to_string();
        assert!(reason.starts_with("RDMA: piece 5 "), "{reason}");
        drop((near, far));
        check_given_back(&card);
    }
}

#[test]
fn completions_of_own_writes_that_are_lost_end_it_in_time() {
    let Ends {
        card, mut near, far, ..
    } = ends();
    card.lose_sent();
    let reading = std::thread::spawn(move || {
        while next(&far).is_some() {}
        drop(far);
    });
    let begun = Instant::now();
    let mut sent = 0;
    while near.sender.send(&[b"x"]).is_ok() {
        sent += 1;
    }
    assert!(sent >= PIECES_MAX as usize && begun.elapsed() < 4 * SECOND, "{sent}");
    drop(near);
    reading.join().expect("it reads");
    check_given_back(&card);
}

#[test]
fn a_card_that_refuses_a_write_ends_the_connection_on_both_sides() {
    let cases = [
        (CardFault::WrongKey(2), "remote access error"),
        (CardFault::Unanswered(2), "transport retry counter exceeded"),
    ];
    for (fault, named) in cases {
        let Ends {
            card, mut near, far, ..
        } = ends();
        card.fault(fault);
        let reason = send_until_over(&mut near, 100).to_string();
        assert!(reason.contains(named), "{reason}");
        assert!(near.frames.recv_timeout(SECOND).is_err(), "it is over here");
        for number in 0..2 {
            assert!(next(&far).expect("it had come") == frame(number, 100));
        }
        assert_eq!(next(&far), None, "it is over there");
        drop((near, far));
        check_given_back(&card);
    }
}

/// A peer that greets as it should, and then writes anything.
struct Liar {
    pair: Box<dyn QueuePair>,
    theirs: Greeting,
    _stream: TcpStream,
}

impl Liar {
    fn greet(card: &FakeCard, listener: &Listener) -> (Self, Connection) {
        let mut stream = TcpStream::connect(&listener.address).expect("somebody listens");
        let mut pair = card
            .pair(&Ask {
                local: IpAddr::V4(Ipv4Addr::LOCALHOST),
                inbound_bytes: RING_AT + RING_BYTES_MIN,
                writes: 64,
                receives: PIECES_MAX,
            })
            .expect("a pair");
        for _ in 0..PIECES_MAX {
            pair.post_receive().expect("room");
        }
        let own = Greeting {
            pair: pair.address(),
            memory: pair.inbound(),
            ring_bytes: RING_BYTES_MIN as u32,
            pieces_max: PIECES_MAX,
        };
        stream.write_all(&own.encode()).expect("greeted");
        let theirs = read(&mut stream).expect("its greeting");
        let outbound = RING_AT + theirs.ring_bytes as usize;
        pair.connect(&theirs.pair, outbound).expect("connected");
        make_ready(&mut stream).expect("ready");
        let connection = listener.accepted.recv_timeout(WAIT_MAX).expect("accepted");
        let liar = Self {
            pair,
            theirs,
            _stream: stream,
        };
        (liar, connection)
    }

    /// Writes from the start of the outbound ring to `at` of the peer's memory.
    fn write(&self, at: u64, bytes: usize, key: u32, immediate: Option<u32>) {
        let write = Write {
            number: 0,
            own: MemorySpan { at: RING_AT, bytes },
            shared: MemorySpan::default(),
            to: RemoteMemory {
                address: self.theirs.memory.address.wrapping_add(at),
                key,
            },
            immediate,
            is_signalled: true,
        };
        self.pair.post_write(&write).expect("posted");
    }

    fn piece(&self, head: PieceHead, immediate: u32) {
        self.pair.put(RING_AT, &head.encode());
        let bytes = (8 + head.payload).min(self.theirs.ring_bytes as usize);
        self.write(RING_AT as u64, bytes, self.theirs.memory.key, Some(immediate));
    }
}

const HEAD: PieceHead = PieceHead {
    sequence: 0,
    payload: 16,
    is_more: false,
    is_end: false,
};

#[test]
fn a_peer_that_lies_is_left() {
    type Lie = fn(&Liar);
    let cases: [(&str, Lie); 11] = [
        ("says 16 bytes, its write Some(17)", |liar| liar.piece(HEAD, 17)),
        ("piece 0 is not where it belongs, 9 is", |liar| {
            liar.piece(PieceHead { sequence: 9, ..HEAD }, 16);
        }),
        ("says 1073741823 bytes", |liar| {
            let payload = (1 << 30) - 1;
            liar.pair.put(RING_AT, &PieceHead { payload, ..HEAD }.encode());
            liar.write(RING_AT as u64, 8, liar.theirs.memory.key, Some(payload as u32));
        }),
        ("a frame of 1040 bytes is more than 1024", |liar| {
            liar.piece(PieceHead { payload: 1040, ..HEAD }, 1040);
        }),
        ("says 16 bytes, its write Some(0)", |liar| liar.piece(HEAD, 0)),
        // A frame that never ends.
        ("piece 0 of 0 bytes is not full, and says that more follows", |liar| {
            let (payload, is_more) = (0, true);
            liar.piece(
                PieceHead {
                    payload,
                    is_more,
                    ..HEAD
                },
                0,
            );
        }),
        ("piece 0 of 16 bytes is not full, and says that more follows", |liar| {
            liar.piece(PieceHead { is_more: true, ..HEAD }, 16);
        }),
        ("Work Request Flushed Error", |liar| {
            liar.write(RING_AT as u64, 8, liar.theirs.memory.key ^ 1, Some(8));
        }),
        // Behind the end of the memory, and before it.
        ("Work Request Flushed Error", |liar| {
            let behind = u64::from(liar.theirs.ring_bytes);
            liar.write(RING_AT as u64 + behind - 4, 8, liar.theirs.memory.key, None);
        }),
        ("Work Request Flushed Error", |liar| {
            liar.write(u64::MAX, 8, liar.theirs.memory.key, None);
        }),
        ("the peer tells that it took 1000 pieces; 0 were sent", |liar| {
            liar.pair.put(RING_AT, &1000_u64.to_le_bytes());
            liar.write(0, 8, liar.theirs.memory.key, None);
        }),
    ];
    for (named, lie) in cases {
        let card = FakeCard::new();
        let (_net, listener) = listen(&card, LIMITS);
        let (liar, mut connection) = Liar::greet(&card, &listener);
        lie(&liar);
        let reason = send_until_over(&mut connection, 10).to_string();
        assert!(reason.contains(named), "{reason} names not {named}");
        assert_eq!(next(&connection), None, "{named}");
        drop((connection, liar));
        check_given_back(&card);
    }
}

#[test]
fn a_peer_that_goes_on_has_its_time_once_nothing_is_sent_any_more() {
    let card = FakeCard::new();
    let (_net, listener) = listen(&card, LIMITS);
    let (liar, Connection { sender, frames, .. }) = Liar::greet(&card, &listener);
    drop(sender);
    let begun = Instant::now();
    for sequence in 0.. {
        // Each piece behind the last one.
        liar.pair.put(RING_AT, &PieceHead { sequence, ..HEAD }.encode());
        let at = RING_AT as u64 + u64::from(sequence) * 24;
        liar.write(at, 24, liar.theirs.memory.key, Some(16));
        match frames.recv_timeout(SECOND) {
            Ok(frame) => assert_eq!(frame, [0; 16]),
            Err(_) => break,
        }
        assert!(begun.elapsed() < 10 * SECOND, "it goes on for ever");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(begun.elapsed() > SECOND, "what was on its way has some time");
    drop(liar);
    check_given_back(&card);
}

#[test]
fn a_peer_without_receives_ends_it() {
    let card = FakeCard::new();
    let (_net, listener) = listen(&card, LIMITS);
    let (liar, mut connection) = Liar::greet(&card, &listener);
    // The peer says that it took everything, and posts no receive again.
    let mut told = 0_u64;
    let error = loop {
        if let Err(error) = connection.sender.send(&[b"x"]) {
            break error.to_string();
        }
        told += 1;
        liar.pair.put(RING_AT, &told.to_le_bytes());
        liar.write(0, 8, liar.theirs.memory.key, None);
        let mut completions = [Default::default(); 4];
        let _ = liar
            .pair
            .poll(reprise_net_rdma::CompletionQueue::Sent, &mut completions);
    };
    assert!(error.contains("RNR retry counter exceeded"), "{error}");
    // The write that finds none fails behind its posting.
    assert_eq!(told, u64::from(PIECES_MAX) + 1);
}

#[test]
fn a_peer_that_is_gone_is_noticed_at_once() {
    let card = FakeCard::new();
    let (_net, listener) = listen(&card, LIMITS);
    let (liar, mut connection) = Liar::greet(&card, &listener);
    let begun = Instant::now();
    drop(liar);
    assert_eq!(next(&connection), None);
    assert!(begun.elapsed() < 10 * SECOND);
    assert_eq!(connection.sender.send(&[b"x"]), Err(NetError::Closed));
    drop(connection);
    check_given_back(&card);
}

#[test]
fn peer_that_does_not_greet_delays_no_other_peer() {
    let card = FakeCard::new();
    let (net, listener) = listen(&card, LIMITS);
    // More than are greeted at one time: the oldest gives way to the next.
    let silent: Vec<TcpStream> = (0..40)
        .map(|_| TcpStream::connect(&listener.address).expect("accepted"))
        .collect();
    let mut foreign = TcpStream::connect(&listener.address).expect("accepted");
    foreign.write_all(&[7; GREETING_BYTES]).expect("written");
    let mut own_greeting = [0; GREETING_BYTES];
    foreign.read_exact(&mut own_greeting).expect("it greets");
    assert_eq!(
        foreign.read(&mut [0]).expect("it ends"),
        0,
        "bytes that are no greeting end it"
    );
    let connection = net
        .connect(&listener.address, WAIT_MAX, LONG)
        .expect("others are taken");
    drop(listener.accepted.recv_timeout(WAIT_MAX).expect("accepted"));
    drop(connection);
    drop(silent);
    check_given_back(&card);
}

#[test]
fn a_slow_greeting_has_its_time_and_no_more() {
    let card = FakeCard::new();
    let (_net, listener) = listen(&card, LIMITS);
    let mut slow = TcpStream::connect(&listener.address).expect("accepted");
    let begun = Instant::now();
    while slow.write_all(b"R").is_ok() {
        std::thread::sleep(Duration::from_millis(100));
        assert!(begun.elapsed() < 30 * SECOND, "byte by byte it lasts for ever");
    }
    check_given_back(&card);
}

#[test]
fn ends_of_different_transports_do_not_wait_for_each_other() {
    let card = FakeCard::new();
    let net = RdmaNet::new(Arc::new(card.clone()));
    let tcp = RealNet.listen("127.0.0.1:0", LIMITS).expect("a port is free");
    let begun = Instant::now();
    let error = net
        .connect(&tcp.address, WAIT_MAX, LONG)
        .err()
        .expect("it speaks TCP")
        .to_string();
    assert!(error.contains("does it use the transport rdma?"), "{error}");
    assert!(begun.elapsed() < 20 * SECOND);
    let (_net, listener) = listen(&card, LIMITS);
    let plain = RealNet.connect(&listener.address, WAIT_MAX, LIMITS).expect("TCP it is");
    let mut plain = plain;
    let _ = plain.sender.send(&[&[0; 200]]); // refused: a slow machine let the time for a greeting pass
    assert_eq!(next(&plain), None, "it ends");
    check_given_back(&card);
}

#[test]
fn without_a_card_both_ends_are_told() {
    let card = FakeCard::new();
    let (net, listener) = listen(&card, LIMITS);
    let other = RdmaNet::new(Arc::new(FakeCard::new()));
    card.refuse(VerbsError::NoDevice("no card here".into()));
    let told = other.connect(&listener.address, WAIT_MAX, LONG).err().expect("refused");
    assert!(told.to_string().ends_with("no card here"), "{told}");
    let own = net.connect(&listener.address, WAIT_MAX, LONG).err().expect("refused");
    assert_eq!(own.to_string(), "RDMA: no card here");
    let listening = net.listen("127.0.0.1:0", LIMITS).err().expect("refused");
    assert_eq!(listening.to_string(), "RDMA: no card here");
}

#[test]
fn frames_longer_than_agreed_are_refused() {
    let Ends { mut near, mut far, .. } = ends();
    let long = vec![0; LIMITS.frame_bytes + 1];
    assert!(matches!(far.sender.send(&[&long]), Err(NetError::TooLarge { .. })));
    far.sender.send(&[b"it goes on"]).expect("nothing was sent");
    assert_eq!(next(&near).as_deref(), Some(&b"it goes on"[..]));
    near.sender.send(&[b"so does this"]).expect("sent");
    assert_eq!(next(&far).as_deref(), Some(&b"so does this"[..]));
}
