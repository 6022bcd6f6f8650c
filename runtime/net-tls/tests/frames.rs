//! Frames over TLS, and peers that are not who they should be.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use reprise_env::{Connection, Net, NetError, NetLimits, RealNet};
use reprise_net_tls::{Identity, IdentityError, TlsNet};

const SECOND: Duration = Duration::from_secs(1);
/// Longest time to connect, and to send. A busy machine needs some of it.
const LONG: Duration = Duration::from_secs(20);
const LIMITS: NetLimits = NetLimits {
    frame_bytes: 1 << 20,
    sent_bytes: 1 << 20,
    frames_waiting: 4,
    send_time: LONG,
};

struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let files = Self {
            dir: tempfile::tempdir().expect("a directory"),
        };
        files.renew();
        files
    }

    /// Another certificate and key in the same files.
    fn renew(&self) {
        let made = rcgen::generate_simple_self_signed(vec!["db.example".into()]).expect("a certificate");
        std::fs::write(self.certificate(), made.cert.pem()).expect("written");
        std::fs::write(self.key(), made.signing_key.serialize_pem()).expect("written");
    }

    fn certificate(&self) -> PathBuf {
        self.dir.path().join("cert.pem")
    }

    fn key(&self) -> PathBuf {
        self.dir.path().join("key.pem")
    }

    fn read(&self) -> Arc<Identity> {
        Arc::new(Identity::read(&self.certificate(), &self.key()).expect("read"))
    }
}

fn next(connection: &Connection) -> Option<Vec<u8>> {
    connection.frames.recv_timeout(5 * SECOND).ok()
}

#[test]
fn frames_of_all_lengths_go_both_ways_at_once() {
    let net = TlsNet::new(Some(Files::new().read()));
    let listener = net.listen("127.0.0.1:0", LIMITS).expect("listens");
    let certificate = net.certificate().expect("it has one");
    let connected = TlsNet::default().connect_encrypted(&listener.address, certificate, LONG, LIMITS);
    let mut far = connected.expect("connected");
    let mut near = listener.accepted.recv_timeout(5 * SECOND).expect("accepted");
    let lengths = [0, 1, 3, 65_531, 65_532, 65_533, 131_072, 1 << 20];
    let frame = |length: usize| -> Vec<u8> { (0..length).map(|at| (at * 7 % 251) as u8).collect() };
    std::thread::scope(|scope| {
        for connection in [&mut far, &mut near] {
            let Connection { sender, frames, .. } = connection;
            let frames = frames.clone();
            scope.spawn(move || {
                for length in lengths {
                    let bytes = frame(length);
                    let (one, two) = bytes.split_at(length / 3);
                    sender.send(&[one, two]).expect("sent");
                }
            });
            scope.spawn(move || {
                for length in lengths {
                    assert_eq!(
                        frames.recv_timeout(5 * SECOND).expect("it comes"),
                        frame(length),
                        "{length}"
                    );
                }
            });
        }
    });
    let too_long = vec![0; (1 << 20) + 1];
    assert!(matches!(near.sender.send(&[&too_long]), Err(NetError::TooLarge { .. })));
    // Bytes sent right before the end arrive too.
    near.sender.send(&[b"last"]).expect("sent");
    drop(near);
    assert_eq!(next(&far).as_deref(), Some(&b"last"[..]));
    assert_eq!(next(&far), None);
}

#[test]
fn nothing_on_the_wire_can_be_read() {
    let net = TlsNet::new(Some(Files::new().read()));
    let listener = net.listen("127.0.0.1:0", LIMITS).expect("listens");
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = proxy.local_addr().expect("an address").to_string();
    let to = listener.address.clone();
    let seen = std::thread::spawn(move || {
        let (mut from, _) = proxy.accept().expect("accepted");
        let mut on = TcpStream::connect(to).expect("connected");
        let (mut back, mut answer) = (on.try_clone().expect("a clone"), from.try_clone().expect("a clone"));
        std::thread::spawn(move || std::io::copy(&mut back, &mut answer));
        let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            seen.extend_from_slice(&buffer[..read]);
            on.write_all(&buffer[..read]).expect("on its way");
        }
        seen
    });
    let certificate = net.certificate().expect("it has one");
    let mut far = TlsNet::default()
        .connect_encrypted(&address, certificate, LONG, LIMITS)
        .expect("connected");
    far.sender.send(&[b"the secret of the house"]).expect("sent");
    let near = listener.accepted.recv_timeout(5 * SECOND).expect("accepted");
    assert_eq!(next(&near).as_deref(), Some(&b"the secret of the house"[..]));
    drop((far, near));
    let seen = seen.join().expect("no panic");
    assert!(seen.len() > 100 && !seen.windows(6).any(|bytes| bytes == b"secret"));
}

#[test]
fn peer_with_another_certificate_gets_nothing() {
    let (files, other) = (Files::new(), Files::new());
    let own = files.read();
    let net = TlsNet::new(Some(own.clone()));
    let listener = net.listen("127.0.0.1:0", LIMITS).expect("listens");
    let connect = |certificate| {
        TlsNet::default()
            .connect_encrypted(&listener.address, certificate, LONG, LIMITS)
            .map(|_| ())
    };
    let told = connect(other.read().fingerprint()).expect_err("refused");
    assert!(told.to_string().contains("/v1/replication/join"), "{told}");
    // Another one in the same files holds from the next connection on.
    let before = own.fingerprint();
    files.renew();
    assert!(own.reload().expect("read"));
    assert!(!own.reload().expect("read"), "the same again");
    assert!(connect(before).is_err());
    connect(own.fingerprint()).expect("the new one");
    // Files that are wrong change nothing.
    std::fs::write(files.key(), "no key").expect("written");
    let told = own.reload().expect_err("refused").to_string();
    assert!(told.contains("key.pem") && told.contains("no private key"), "{told}");
    connect(own.fingerprint()).expect("as before");
}

#[test]
fn plain_peers_slow_ones_and_liars_end_and_leave_the_listener_be() {
    let net = TlsNet::new(Some(Files::new().read()));
    let listener = net.listen("127.0.0.1:0", LIMITS).expect("listens");
    // One client that says nothing, and as many as may shake hands at one time.
    let silent: Vec<_> = (0..16)
        .map(|_| TcpStream::connect(&listener.address).expect("connected"))
        .collect();
    let mut plain = RealNet.connect(&listener.address, SECOND, LIMITS).expect("TCP it is");
    let _ = plain.sender.send(&[&[7; 100]]); // it may be gone by now
    assert_eq!(next(&plain), None, "it ends");
    // A server that speaks no TLS.
    let plain_server = RealNet.listen("127.0.0.1:0", LIMITS).expect("listens");
    let begun = Instant::now();
    let told = TlsNet::default()
        .connect_encrypted(&plain_server.address, [0; 32], SECOND, LIMITS)
        .err();
    assert!(told.is_some() && begun.elapsed() < 20 * SECOND, "{told:?}");
    // The listener drops the silent ones, and takes the next one.
    let certificate = net.certificate().expect("it has one");
    let begun = Instant::now();
    let taken = loop {
        match TlsNet::default().connect_encrypted(&listener.address, certificate, SECOND, LIMITS) {
            Ok(taken) => break taken,
            Err(_) => assert!(begun.elapsed() < 20 * SECOND, "nobody gets in"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    drop((silent, taken));
    // The transport without a certificate is TCP.
    assert!(TlsNet::default().certificate().is_none());
    let told = RealNet.connect_encrypted("127.0.0.1:1", [0; 32], SECOND, LIMITS).err();
    assert!(told.is_some_and(|told| told.to_string().contains("TLS")));
}

/// Connects beside more silent peers than are greeted at one time. Returns the frame that arrives, or `None` if the greeting was late.
fn hello_among_silent_peers() -> Option<Vec<u8>> {
    let net = TlsNet::new(Some(Files::new().read()));
    let listener = net.listen("127.0.0.1:0", LIMITS).expect("listens");
    let certificate = net.certificate().expect("it has one");
    // They stay silent for less than a handshake may take.
    let silent: Vec<_> = (0..40)
        .map(|_| TcpStream::connect(&listener.address).expect("connected"))
        .collect();
    let mut far = TlsNet::default()
        .connect_encrypted(&listener.address, certificate, 2 * SECOND, LIMITS)
        .ok()?;
    far.sender.send(&[b"hello"]).ok()?;
    let near = listener.accepted.recv_timeout(5 * SECOND).ok()?;
    let came = next(&near);
    drop(silent);
    came
}

#[test]
fn the_oldest_silent_peer_gives_way_when_greetings_are_too_many() {
    // A busy machine may delay a greeting, but not each of them.
    let came = (0..5).find_map(|_| hello_among_silent_peers());
    assert_eq!(
        came.as_deref(),
        Some(&b"hello"[..]),
        "the newest peer is greeted at its first try"
    );
}

#[test]
fn a_damaged_byte_ends_the_connection() {
    let net = TlsNet::new(Some(Files::new().read()));
    let listener = net.listen("127.0.0.1:0", LIMITS).expect("listens");
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = proxy.local_addr().expect("an address").to_string();
    let to = listener.address.clone();
    std::thread::spawn(move || {
        let (mut from, _) = proxy.accept().expect("accepted");
        let mut on = TcpStream::connect(to).expect("connected");
        let (mut back, mut answer) = (on.try_clone().expect("a clone"), from.try_clone().expect("a clone"));
        std::thread::spawn(move || std::io::copy(&mut back, &mut answer));
        let mut buffer = [0; 1 << 16];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            // The handshake is short; the frame is not.
            if read > 4096 {
                buffer[2048] ^= 1;
            }
            if on.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
    });
    let certificate = net.certificate().expect("it has one");
    let mut far = TlsNet::default()
        .connect_encrypted(&address, certificate, LONG, LIMITS)
        .expect("connected");
    let near = listener.accepted.recv_timeout(5 * SECOND).expect("accepted");
    far.sender.send(&[&[1; 40_000]]).expect("sent");
    assert_eq!(next(&near), None, "nothing of it is taken");
}

#[test]
fn files_that_are_no_certificate_are_named() {
    let files = Files::new();
    let refused = |certificate: &[u8], key: &[u8]| -> String {
        std::fs::write(files.certificate(), certificate).expect("written");
        std::fs::write(files.key(), key).expect("written");
        Identity::read(&files.certificate(), &files.key())
            .expect_err("refused")
            .to_string()
    };
    let (certificate, key) = (
        std::fs::read(files.certificate()).expect("read"),
        std::fs::read(files.key()).expect("read"),
    );
    assert!(refused(b"", &key).contains("no certificate"));
    assert!(refused(&certificate, b"").contains("no private key"));
    let cut = b"-----BEGIN CERTIFICATE-----\nAAAA\n";
    assert!(refused(cut, &key).contains("cert.pem"));
    let other = Files::new();
    let others = std::fs::read(other.key()).expect("read");
    assert!(
        refused(&certificate, &others).contains("key.pem"),
        "a key of another certificate"
    );
    let missing = Identity::read(&files.dir.path().join("none.pem"), &files.key()).expect_err("refused");
    assert!(matches!(missing, IdentityError::Read { .. }), "{missing}");
}
