//! Clients over TLS that read late or not at all. The server sends each answer to its last byte, and ends the connections of the others.

use std::{
    fs, io,
    io::{Read, Write},
    net::{Shutdown, SocketAddrV4, TcpListener, TcpStream},
    ops::RangeInclusive,
    os::fd::{AsRawFd, FromRawFd},
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use reprise_client::Client;
use reprise_test_crash::Server;
use serde_json::json;

use crate::tls::{Certificate, wait};

/// Steps of `STEP_BYTES` that an answer has. The kernel takes about 100 KiB for a narrow connection, and TLS keeps up to 64 KiB more. So some
/// of these answers end in the buffer of TLS.
const STEPS: RangeInclusive<usize> = 2..=12;
/// Bytes of a result for each step. Its base64 in the answer has 32 KiB.
const STEP_BYTES: usize = 24 << 10;
/// Bytes from the server after which its answer has begun. The handshake has less.
const HANDSHAKE_BYTES_MAX: usize = 8 << 10;
/// Largest segment and receive buffer of a narrow connection in bytes. The server's kernel sizes its send buffer by the segment.
const SEGMENT_BYTES: libc::c_int = 536;
const RECEIVE_BYTES: libc::c_int = 4_096;

/// A module with a procedure for each of `STEPS`, which returns zeros. A varint of their number stands before them.
fn module() -> Result<Vec<u8>> {
    let procedures = STEPS.map(|steps| {
        let name = procedure(steps);
        format!(r#"{{"name":"{name}","params":[],"returns":"bytes","read_only":true,"partitioning":"any"}}"#)
    });
    let procedures = procedures.collect::<Vec<_>>().join(",");
    let description = format!(r#"{{"abi":1,"tables":[],"procedures":[{procedures}]}}"#).replace('"', "\\\"");
    let functions = STEPS.map(|steps| {
        let (name, bytes) = (procedure(steps), steps * STEP_BYTES);
        let varint = bytes & 127 | 128 | (bytes >> 7 & 127 | 128) << 8 | bytes >> 14 << 16;
        let slice = (bytes + 3) << 32;
        format!(
            r#"(func (export "reprise_call_{name}") (param i32) (result i32)
                (i32.store (i32.const 0) (i32.const {varint}))
                (call $result_write (i64.const {slice}))
                (i32.const 0))"#
        )
    });
    let functions: String = functions.collect();
    let text = format!(
        r#"(module (@custom "reprise.describe" "{description}")
            (import "reprise1" "result_write" (func $result_write (param i64)))
            (memory (export "memory") 16 16)
            {functions})"#
    );
    Ok(wat::parse_str(text)?)
}

fn procedure(steps: usize) -> String {
    format!("steps_{steps}")
}

/// Starts a server with these settings and the module, and makes a client of it.
fn serve(dir: &Path, certificate: &Certificate, settings: &str) -> Result<(Server, Client)> {
    let data = dir.join("data");
    fs::create_dir_all(&data)?;
    fs::write(data.join("reprise.toml"), settings)?;
    let server = certificate.serve(&data, &[])?;
    let client = certificate.client(&server)?;
    client.deploy_module("sizes", module()?, &[])?;
    Ok((server, client))
}

/// Connects with a small segment and a small receive buffer. Both must be set before the connection begins.
fn connect_narrow(address: &str) -> Result<TcpStream> {
    let address: SocketAddrV4 = address.parse()?;
    // SAFETY: a plain system call.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    ensure!(socket >= 0, "make a socket: {}", io::Error::last_os_error());
    // SAFETY: the descriptor is open, and nothing else owns it.
    let stream = unsafe { TcpStream::from_raw_fd(socket) };
    set_option(&stream, libc::IPPROTO_TCP, libc::TCP_MAXSEG, SEGMENT_BYTES)?;
    set_option(&stream, libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BYTES)?;
    let to = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(address.ip().octets()),
        },
        sin_zero: [0; 8],
    };
    // SAFETY: the descriptor is open, and the pointer is valid for the length of the call.
    let result = unsafe {
        libc::connect(
            stream.as_raw_fd(),
            (&raw const to).cast(),
            size_of::<libc::sockaddr_in>() as libc::socklen_t,
        )
    };
    ensure!(result == 0, "connect: {}", io::Error::last_os_error());
    Ok(stream)
}

fn set_option(stream: &TcpStream, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> Result<()> {
    // SAFETY: the descriptor is open, and the pointer is valid for the length of the call.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    ensure!(result == 0, "set a socket option: {}", io::Error::last_os_error());
    Ok(())
}

/// Passes one connection on to the server over a narrow one. Once the answer has begun, it reads nothing until `pause` returns.
fn pass_on(listener: TcpListener, server: &str, pause: impl FnOnce()) -> Result<()> {
    let (mut client, _) = listener.accept()?;
    drop(listener); // a second connection is refused
    let mut server = connect_narrow(server)?;
    let (mut requests, mut to_server) = (client.try_clone()?, server.try_clone()?);
    thread::scope(|scope| {
        scope.spawn(move || {
            let _ = io::copy(&mut requests, &mut to_server); // either side may end the connection
            let _ = to_server.shutdown(Shutdown::Write);
        });
        let passed = pass_answer(&mut server, &mut client, pause);
        let _ = client.shutdown(Shutdown::Both); // it ends the other direction, too
        passed
    })
}

fn pass_answer(server: &mut TcpStream, client: &mut TcpStream, pause: impl FnOnce()) -> Result<()> {
    let (mut pause, mut passed, mut part) = (Some(pause), 0, [0; 4_096]);
    loop {
        let bytes = server.read(&mut part)?;
        if bytes == 0 {
            return Ok(());
        }
        client.write_all(&part[..bytes])?;
        passed += bytes;
        if passed > HANDSHAKE_BYTES_MAX
            && let Some(pause) = pause.take()
        {
            pause();
        }
    }
}

/// Calls over a narrow connection that is read late. Returns the characters of the result.
fn call_late(server: &str, certificate: &Certificate, steps: usize, pause: impl FnOnce() + Send) -> Result<usize> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("https://{}", listener.local_addr()?);
    let trusted = fs::read(certificate.path("cert.pem"))?;
    let client = Client::trusting(&url, None, Some(&trusted))?;
    thread::scope(|scope| -> Result<usize> {
        let relay = scope.spawn(move || pass_on(listener, server, pause));
        let called = client.call("sizes", &procedure(steps), &json!({}));
        drop(client); // its connection ends, and the relay with it
        let passed = relay.join().expect("the relay does not panic");
        let called = called.with_context(|| format!("{passed:?}"))?;
        let answer = serde_json::to_value(&called.answer)?;
        Ok(answer["result"].as_str().context("bytes")?.len())
    })
}

/// The bytes that the server counts for its open connections.
fn connection_bytes(client: &Client) -> Result<u64> {
    let kinds = client.status()?.memory.kinds;
    let found = kinds.iter().find(|found| found.kind == "connections");
    Ok(found.map_or(0, |found| found.bytes))
}

#[test]
fn answer_over_tls_arrives_whole_when_its_client_reads_late() -> Result<()> {
    /// Longest time of a call. An answer whose end stays in the server arrives after `header_wait_s`.
    const CALL_MAX: Duration = Duration::from_secs(30);
    let dir = tempfile::tempdir()?;
    let certificate = Certificate::new(&dir.path().join("tls"))?;
    let settings = "[http]\nheader_wait_s = 60\nwrite_wait_s = 60\n";
    let (server, _client) = serve(dir.path(), &certificate, settings)?;
    let (address, certificate) = (server.address.as_str(), &certificate);
    thread::scope(|scope| -> Result<()> {
        let calls = STEPS.map(|steps| {
            scope.spawn(move || {
                let begun = Instant::now();
                let called = call_late(address, certificate, steps, || thread::sleep(Duration::from_secs(1)));
                called.map(|characters| (steps, characters, begun.elapsed()))
            })
        });
        for call in calls.collect::<Vec<_>>() {
            let (steps, characters, elapsed) = call.join().expect("the call does not panic")?;
            ensure!(characters == steps * STEP_BYTES / 3 * 4, "{steps}: {characters}");
            ensure!(elapsed < CALL_MAX, "{steps}: {elapsed:?}");
        }
        Ok(())
    })
}

#[test]
fn connection_over_tls_ends_when_its_client_reads_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let certificate = Certificate::new(&dir.path().join("tls"))?;
    let settings = "[http]\nheader_wait_s = 4\nwrite_wait_s = 2\n";
    let (server, client) = serve(dir.path(), &certificate, settings)?;
    let before = connection_bytes(&client)?;
    let (address, certificate) = (server.address.as_str(), &certificate);
    let (paused, is_over) = (&AtomicUsize::new(0), &AtomicBool::new(false));
    thread::scope(|scope| -> Result<()> {
        for steps in STEPS {
            scope.spawn(move || {
                let mut has_begun = false;
                let pause = || {
                    has_begun = true;
                    paused.fetch_add(1, Ordering::SeqCst);
                    while !is_over.load(Ordering::SeqCst) {
                        thread::sleep(Duration::from_millis(20));
                    }
                };
                let _ = call_late(address, certificate, steps, pause); // the server ended the connection
                paused.fetch_add(usize::from(!has_begun), Ordering::SeqCst);
            });
        }
        let all = STEPS.count();
        let ended = wait("each answer has begun", || Ok(paused.load(Ordering::SeqCst) == all))
            .and_then(|()| wait("the server ends them", || Ok(connection_bytes(&client)? <= before)));
        is_over.store(true, Ordering::SeqCst);
        ended
    })
}
