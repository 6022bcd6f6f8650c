//! The server's part of a call over HTTP: read, parse, encode, coalesce, hand over, answer. One thread serves all connections, and its
//! instructions alone count. The engine and the client have threads of their own.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use anyhow::{Context, Result, ensure};
use reprise_bench_figures::callgrind;
use reprise_catalog::Catalog;
use reprise_database::{
    BatchLimits, CheckpointConfig, CommitMode, Database, DatabaseConfig, DeviceConfig, LogPolicy, RedoConfig,
};
use reprise_driver::NativeCode;
use reprise_http::{AppState, Auth, HttpOptions};
use reprise_txn::Candidate;
use tokio::{net::TcpListener, runtime::Runtime, sync::oneshot};

/// Each kind of call with the header lines of its requests, but for the key.
const KINDS: [(&str, &str); 2] = [("http_vote", ""), ("http_keyed_vote", "reprise-timeout-ms: 60000\r\n")];
/// Calls that wait at once, each on a connection of its own: they travel together.
const CONNECTIONS: usize = 16;
const WARMED_ROUNDS: usize = 20;

/// A kind of call, with the header lines of its requests.
#[derive(Clone, Copy)]
pub struct Kind {
    name: &'static str,
    lines: &'static str,
}

impl Kind {
    /// The kind with this name.
    pub fn find(name: &str) -> Option<Self> {
        let found = KINDS.into_iter().find(|(known, _)| *known == name);
        found.map(|(name, lines)| Self { name, lines })
    }

    fn request(self, procedure: &str, args: &str, number: u64) -> Vec<u8> {
        let (bytes, lines) = (args.len(), self.lines);
        let key = match lines.is_empty() {
            true => String::new(),
            false => format!("idempotency-key: cost-{number:020}\r\n"),
        };
        format!(
            "POST /v1/call/voter/{procedure} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {bytes}\r\n{key}{lines}\r\n{args}"
        )
        .into_bytes()
    }
}

/// Prints how many calls were measured.
pub fn run(kind: Kind, count: usize) -> Result<()> {
    let dir = tempfile::tempdir().context("create a temporary directory")?;
    let database = open()?;
    let state = AppState::new(
        database.clone(),
        Catalog::open(dir.path())?.catalog,
        Auth::open(),
        HttpOptions::default(),
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
    let address = listener.local_addr()?;
    let server = runtime.spawn(reprise_http::serve(listener, state, std::future::pending()));
    let mut rounds = Rounds::start(kind, address);
    (0..WARMED_ROUNDS).for_each(|_| rounds.serve(&runtime));
    callgrind::start();
    let measured_rounds = count.div_ceil(CONNECTIONS);
    for _ in 0..measured_rounds {
        let answered = rounds.begin()?;
        measured_answers(&runtime, answered);
    }
    rounds.end()?;
    server.abort();
    database.close()?;
    println!("{}: {} calls", kind.name, measured_rounds * CONNECTIONS);
    Ok(())
}

/// The threads of the engine run beside this one. Without a log each call is answered once it has run.
fn open() -> Result<Arc<Database>> {
    let database = Database::open(DatabaseConfig {
        dir: None,
        partitions: 1,
        sites: 1,
        log: LogPolicy::None,
        redo: RedoConfig::default(),
        device: DeviceConfig::File,
        commit: CommitMode::Async,
        batch_limits: BatchLimits::default(),
        segment_bytes: 1 << 20,
        checkpoints: CheckpointConfig::BY_HAND,
        memory_max_bytes: u64::MAX,
    })?;
    database.recover()?;
    let schema = voter::MODULE.schema();
    let candidate = Candidate {
        name: "voter".into(),
        hash: [0; 32],
        wasm_bytes: 0,
        description: Arc::default(),
        schema,
        code: Arc::new(NativeCode(&voter::MODULE)),
    };
    database.router().deploy_candidate(candidate, &Arc::default(), &[])?;
    Ok(Arc::new(database))
}

/// The region that callgrind collects: the serving of requests that lie in the sockets already, to the last answer.
#[inline(never)]
fn measured_answers(runtime: &Runtime, answered: oneshot::Receiver<()>) {
    let _ = runtime.block_on(answered); // a client that failed says why at the end
}

/// A client that sends a call on each connection and then reads all answers, again and again.
struct Rounds {
    begun: Sender<oneshot::Sender<()>>,
    sent: Receiver<()>,
    client: thread::JoinHandle<Result<()>>,
}

impl Rounds {
    fn start(kind: Kind, address: SocketAddr) -> Self {
        let (begun, begins) = channel();
        let (sends, sent) = channel();
        let client = thread::spawn(move || send_calls(kind, address, &begins, &sends));
        Self { begun, sent, client }
    }

    /// Returns once the requests lie in the sockets.
    fn begin(&mut self) -> Result<oneshot::Receiver<()>> {
        let (answers, answered) = oneshot::channel();
        let is_sent = self.begun.send(answers).is_ok() && self.sent.recv().is_ok();
        ensure!(is_sent, "the client failed");
        Ok(answered)
    }

    fn serve(&mut self, runtime: &Runtime) {
        if let Ok(answered) = self.begin() {
            let _ = runtime.block_on(answered); // as above
        }
    }

    fn end(self) -> Result<()> {
        drop(self.begun);
        self.client.join().expect("the client does not panic")
    }
}

fn send_calls(
    kind: Kind,
    address: SocketAddr,
    begins: &Receiver<oneshot::Sender<()>>,
    sends: &Sender<()>,
) -> Result<()> {
    let connect = |_| TcpStream::connect(address);
    let mut connections = (0..CONNECTIONS).map(connect).collect::<Result<Vec<_>, _>>()?;
    let mut phone = 2_010_000_000_u64;
    while let Ok(answers) = begins.recv() {
        let is_first = phone == 2_010_000_000;
        for connection in &mut connections {
            phone += 1;
            let (procedure, args) = match is_first {
                true => ("initialize", r#"{"contestants":["Ada","Bruno"]}"#.to_owned()),
                false => (
                    "vote",
                    format!(r#"{{"phone_number":"{phone}","contestant_number":1,"max_votes_per_phone":"2"}}"#),
                ),
            };
            connection.write_all(&kind.request(procedure, &args, phone))?;
        }
        let _ = sends.send(()); // the server waits for it
        connections.iter_mut().try_for_each(read_answer)?;
        let _ = answers.send(()); // as above
    }
    Ok(())
}

/// Reads one answer, which comes as a whole.
fn read_answer(connection: &mut TcpStream) -> Result<()> {
    let mut answer = [0; 4096];
    let bytes = connection.read(&mut answer)?;
    let text = String::from_utf8_lossy(&answer[..bytes]);
    let is_done = text.starts_with("HTTP/1.1 200 ") && text.ends_with('}');
    ensure!(is_done, "the server answered {text:?}");
    Ok(())
}
