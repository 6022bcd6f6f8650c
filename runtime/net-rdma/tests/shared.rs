//! Frames that lie once in memory from which they go to all peers: their posts, their allocations, and the end of their holding.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::Arc,
    time::{Duration, Instant},
};

use reprise_env::{Connection, FrameBuffer, FramePoster, Listener, Net, NetError, NetLimits, SharedFrame};
use reprise_net_rdma::{
    PIECE_HEAD_BYTES, PIECES_MAX, RING_BYTES_MAX, RdmaNet, Write,
    fake::{CardFault, FakeCard, LIMITS},
    piece_bytes_max,
};

const SECOND: Duration = Duration::from_secs(1);
/// Longest time to connect, and to accept.
const CONNECT_MAX: Duration = Duration::from_secs(20);
const BUFFER_BYTES: usize = 16 << 20;
/// Limits of the end that sends groups.
const NEAR: NetLimits = NetLimits {
    send_time: Duration::from_secs(5),
    ..LIMITS
};
const FAR: NetLimits = NetLimits {
    frame_bytes: 8 << 20,
    sent_bytes: 1 << 10,
    frames_waiting: 64,
    ..NEAR
};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts what each thread asks of the system's allocator.
struct Counting;

// SAFETY: all of it is the system's, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

struct Peer {
    near: Connection,
    far: Connection,
    poster: Arc<dyn FramePoster>,
}

struct Ends {
    card: FakeCard,
    buffer: Arc<FrameBuffer>,
    peers: Vec<Peer>,
    _listener: Listener,
}

fn ends(peers: usize) -> Ends {
    let card = FakeCard::new();
    let net = RdmaNet::new(Arc::new(card.clone()));
    let listener = net.listen("127.0.0.1:0", NEAR).expect("a port is free");
    let memory = net.frame_memory(BUFFER_BYTES).expect("memory").expect("RDMA has it");
    let buffer = Arc::new(FrameBuffer::new(memory));
    let connect = |_| {
        let far = net
            .connect(&listener.address, CONNECT_MAX, FAR)
            .expect("somebody listens");
        let mut near = listener.accepted.recv_timeout(CONNECT_MAX).expect("accepted");
        let poster = near.sender.share(&buffer).expect("registered");
        Peer { near, far, poster }
    };
    let peers = (0..peers).map(connect).collect();
    card.take_posted();
    Ends {
        card,
        buffer,
        peers,
        _listener: listener,
    }
}

fn frame(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 5 + number * 11 + (at >> 8)) as u8).collect()
}

fn next(connection: &Connection) -> Option<Vec<u8>> {
    connection.frames.recv_timeout(10 * SECOND).ok()
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + 20 * SECOND;
    while !holds() {
        assert!(Instant::now() < until, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Posts it, as soon as there is room.
fn post(poster: &dyn FramePoster, frame: &SharedFrame) {
    let until = Instant::now() + 20 * SECOND;
    while !poster.try_post(frame).expect("it goes on") {
        assert!(Instant::now() < until, "there is no room");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Groups of this connection, as they were posted.
fn of_groups(card: &FakeCard) -> Vec<(u32, Write)> {
    let posted = card.take_posted().into_iter();
    let groups = posted.filter(|posted| posted.write.shared.bytes > 0);
    groups.map(|posted| (posted.queue_pair, posted.write)).collect()
}

#[test]
fn a_group_is_one_write_for_each_peer_from_the_same_bytes_and_no_allocation() {
    const GROUPS: usize = 250;
    const BYTES: usize = 60_003;
    let ends = ends(3);
    ends.card.reserve(4 * GROUPS * ends.peers.len());
    let mut allocated = 0;
    for number in 0..GROUPS {
        let group = frame(number, BYTES);
        let (head, records) = group.split_at(40);
        let before = allocations();
        let laid = ends.buffer.lay(&[head, records]).expect("room");
        let are_posted = ends.peers.iter().all(|peer| peer.poster.try_post(&laid) == Ok(true));
        drop(laid);
        allocated += allocations() - before;
        assert!(are_posted, "group {number}");
        for peer in &ends.peers {
            assert!(next(&peer.far).expect("it comes") == group, "group {number}");
        }
    }
    assert_eq!(allocated, 0, "allocations of the thread that commits");
    let writes = of_groups(&ends.card);
    let wraps = GROUPS * (BYTES + PIECE_HEAD_BYTES).next_multiple_of(8) / RING_BYTES_MAX;
    assert_eq!(
        writes.len(),
        3 * (GROUPS + wraps),
        "one for each peer, and one more where its ring wraps"
    );
    let mut by_pair = std::collections::BTreeMap::<u32, Vec<Write>>::new();
    for (pair, write) in writes {
        by_pair.entry(pair).or_default().push(write);
    }
    let places: Vec<Vec<_>> = by_pair
        .values()
        .map(|writes| writes.iter().map(|write| (write.shared, write.immediate)).collect())
        .collect();
    assert!(
        places.len() == 3 && places.iter().all(|place| *place == places[0]),
        "from the same bytes"
    );
    for write in by_pair.values().flatten() {
        assert!(
            write.own.bytes == PIECE_HEAD_BYTES || write.own.bytes == 0,
            "{write:?}: the head alone is its own"
        );
    }
    let signalled = by_pair.values().flatten().filter(|write| write.is_signalled).count();
    assert!(signalled <= 3 * (GROUPS + wraps) / 8, "{signalled} are signalled");
}

#[test]
fn frames_of_every_length_come_whole_among_those_of_the_sender() {
    let Ends { buffer, mut peers, .. } = ends(1);
    let Peer { mut near, far, poster } = peers.remove(0);
    let piece = piece_bytes_max(RING_BYTES_MAX);
    let lengths = [
        1,
        7,
        8,
        4_096,
        piece - 1,
        piece,
        piece + 1,
        3 * piece,
        RING_BYTES_MAX + 5,
        8 << 20,
        3,
    ];
    let sending = std::thread::spawn(move || {
        for (number, bytes) in lengths.into_iter().enumerate() {
            let laid = buffer.lay(&[&frame(number, bytes)]).expect("room");
            if bytes > piece {
                assert_eq!(poster.try_post(&laid), Ok(false), "it is several pieces");
                near.sender.send_shared(&laid).expect("sent");
            } else {
                post(&*poster, &laid);
            }
            near.sender.send(&[b"a ", b"heartbeat"]).expect("sent");
            drop(laid);
            // Sent memory is released once the card confirms it.
            wait_until("all of it was sent", || {
                near.sender.send(&[b"?"]).is_ok() && is_free(&buffer)
            });
        }
    });
    let mut came = Vec::new();
    while let Some(next) = next(&far) {
        if next != b"?" && next != b"a heartbeat" {
            came.push(next);
        }
    }
    sending.join().expect("it sends");
    assert_eq!(came.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
    assert!(
        came.iter()
            .enumerate()
            .all(|(number, came)| *came == frame(number, came.len()))
    );
}

/// All of it can be taken.
fn is_free(buffer: &Arc<FrameBuffer>) -> bool {
    buffer.lay(&[&vec![0; BUFFER_BYTES]]).is_some()
}

#[test]
fn a_frame_is_held_until_the_card_has_sent_it() {
    let ends = ends(1);
    ends.card.lose_sent();
    let peer = &ends.peers[0];
    let laid = ends.buffer.lay(&[&frame(1, 100)]).expect("room");
    post(&*peer.poster, &laid);
    assert!(next(&peer.far).expect("it comes") == frame(1, 100));
    drop(laid);
    std::thread::sleep(Duration::from_millis(200));
    assert!(!is_free(&ends.buffer), "no completion told that it was sent");
    let Ends {
        card, buffer, peers, ..
    } = ends;
    drop(peers);
    wait_until("the pairs are given back", || card.open() == 0);
    wait_until("and what they held", || is_free(&buffer));
}

/// The peer says that it took the frames, while its card does not say so.
#[test]
fn frames_are_held_up_to_a_bound() {
    const BYTES: usize = 60_000;
    let mut ends = ends(1);
    ends.card.lose_sent();
    let peer = &mut ends.peers[0];
    let mut posted = 0;
    let last = 'posted: loop {
        let laid = ends.buffer.lay(&[&frame(posted, BYTES)]).expect("room");
        let until = Instant::now() + SECOND;
        while !peer.poster.try_post(&laid).expect("it goes on") {
            if Instant::now() > until {
                break 'posted laid;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(next(&peer.far).expect("it comes") == frame(posted, BYTES));
        posted += 1;
    };
    assert_eq!(posted, 2 * RING_BYTES_MAX / BYTES);
    // Frames outside the buffer still pass; frames in it wait.
    peer.near.sender.send(&[b"a heartbeat"]).expect("sent");
    assert_eq!(next(&peer.far).as_deref(), Some(&b"a heartbeat"[..]));
    assert_eq!(peer.near.sender.send_shared(&last), Err(NetError::TimedOut));
}

#[test]
fn short_frames_are_bounded_by_the_receives_of_the_peer() {
    let ends = ends(1);
    let peer = &ends.peers[0];
    let laid = ends.buffer.lay(&[b"short"]).expect("room");
    let posted = (0..10_000)
        .take_while(|_| peer.poster.try_post(&laid) == Ok(true))
        .count();
    // The pieces in its channel were taken, and a piece or two on the way there.
    let most = PIECES_MAX as usize + FAR.frames_waiting + 2;
    assert!((PIECES_MAX as usize..=most).contains(&posted), "{posted}");
    assert!(next(&peer.far).is_some());
    post(&*peer.poster, &laid);
}

#[test]
fn failure_is_reported_and_releases_everything() {
    for fault in [
        CardFault::WrongKey(3),
        CardFault::Unanswered(3),
        CardFault::LoseReceived(3),
        CardFault::SwapReceived(3),
    ] {
        let Ends {
            card, buffer, peers, ..
        } = ends(2);
        card.fault(fault);
        let until = Instant::now() + 20 * SECOND;
        let mut broken = [false; 2];
        for number in 0.. {
            let laid = buffer.lay(&[&frame(number, 1_000 + number)]).expect("room");
            for (peer, is_broken) in peers.iter().zip(&mut broken) {
                *is_broken |= peer.poster.try_post(&laid).is_err();
                let _ = peer.far.frames.try_recv();
            }
            if broken.contains(&true) {
                break;
            }
            assert!(Instant::now() < until, "{fault:?} is not noticed");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(broken.contains(&false), "{fault:?}: the other one goes on");
        drop(peers);
        wait_until("the pairs are given back", || card.open() == 0);
        wait_until("and what they held", || is_free(&buffer));
    }
}

#[test]
fn frames_of_another_buffer_are_refused() {
    let (ends, others) = (ends(1), ends(1));
    let laid = others.buffer.lay(&[b"of another"]).expect("room");
    let refused = ends.peers[0].poster.try_post(&laid).expect_err("refused").to_string();
    assert!(refused.contains("a buffer that is not shared"), "{refused}");
    // TCP has no such memory.
    assert!(reprise_env::RealNet.frame_memory(1 << 20).expect("no error").is_none());
}
