use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::atomic::{AtomicUsize, Ordering},
};

use reprise_database::{
    BatchLimits, CheckpointConfig, CommitMode, Database, DatabaseConfig, DeviceConfig, LogPolicy, RecoverFrom,
    RedoConfig,
};
use serde_json::{Value, json};

use super::*;

/// Limit of a round in which peers give no answer.
const SILENT_ROUND: Duration = Duration::from_secs(1);
/// Time of a whole round on a busy machine. The silent and slow peers hold a round without a limit for longer.
const ROUND_PATIENCE: Duration = Duration::from_secs(40);
/// A wait that ends only by a mistake.
const PATIENCE: Duration = Duration::from_secs(120);

/// The answer of a server that is no server of ours.
type Answer = fn(&mut TcpStream, &str) -> io::Result<()>;

/// A standby with a database, so that it knows the id of its own.
struct Asking {
    primary: Arc<Primary>,
    database: Arc<Database>,
    _dir: tempfile::TempDir,
}

impl Asking {
    fn new(change: impl FnOnce(&mut Primary)) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let database = Database::open(DatabaseConfig {
            dir: Some(dir.path().join("data")),
            partitions: 1,
            sites: 1,
            log: LogPolicy::Command,
            redo: RedoConfig {
                from: RecoverFrom::default(),
                ..RedoConfig::default()
            },
            device: DeviceConfig::File,
            commit: CommitMode::Sync,
            batch_limits: BatchLimits::default(),
            segment_bytes: reprise_base::limits::SEGMENT_BYTES,
            checkpoints: CheckpointConfig::BY_HAND,
            memory_max_bytes: u64::MAX,
        });
        let database = Arc::new(database.expect("open"));
        let mut primary = Primary::at("http://127.0.0.1:1");
        change(&mut primary);
        let _ = primary.database.set(Arc::downgrade(&database));
        Self {
            primary: Arc::new(primary),
            database,
            _dir: dir,
        }
    }

    fn id(&self) -> String {
        hex(&self.database.router().status().database_id)
    }

    /// Asks, and checks that the round ends in time.
    fn ask(&self, urls: &[String]) -> Vec<Result<PromiseAnswer, String>> {
        let question = PromiseQuestion {
            epoch: Epoch::new(2, 0),
            name: "b".into(),
            url: None,
            is_withdrawn: false,
        };
        let begun = Instant::now();
        let answers = self.primary.ask_peers(urls, &question);
        assert!(begun.elapsed() < ROUND_PATIENCE, "{:?}", begun.elapsed());
        answers
            .into_iter()
            .map(|answer| answer.map_err(|error| error.to_string()))
            .collect()
    }

    fn refusal(&self, url: &str) -> String {
        self.ask(&[url.to_owned()]).remove(0).expect_err("no answer")
    }
}

/// Serves one path. The other one gets the answer of a server with this database.
fn serve(id: &str, path: &'static str, answer: Answer) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let (status, promises) = (status(id).to_string(), Arc::new(AtomicUsize::new(0)));
    let counted = promises.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (status, promises) = (status.clone(), promises.clone());
            thread::spawn(move || serve_connection(stream, &status, &promises, (path, answer)));
        }
    });
    (url, counted)
}

fn serve_connection(
    mut stream: TcpStream,
    status: &str,
    promises: &AtomicUsize,
    (path, answer): (&str, Answer),
) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(asked) = read_request(&mut reader)? {
        promises.fetch_add(usize::from(asked.contains("/promise")), Ordering::SeqCst);
        match (asked.contains(path), asked.contains("/status")) {
            (true, _) => answer(&mut stream, status)?,
            (false, true) => send(&mut stream, status)?,
            (false, false) => send(&mut stream, &promise("c").to_string())?,
        }
    }
    Ok(())
}

/// Reads a request, and returns its first line.
fn read_request(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let (mut first, mut bytes) = (String::new(), 0);
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.to_ascii_lowercase().split_once(':') {
            Some(("content-length", length)) => bytes = length.trim().parse().expect("a number"),
            Some(_) => {}
            None => break,
        }
    }
    reader.read_exact(&mut vec![0; bytes])?;
    Ok(Some(first))
}

fn head(bytes: usize) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {bytes}\r\n\r\n")
}

fn send(stream: &mut TcpStream, body: &str) -> io::Result<()> {
    stream.write_all((head(body.len()) + body).as_bytes())
}

/// Sends one byte a second, longer than a test lasts.
fn trickle(stream: &mut TcpStream, text: &str) -> io::Result<()> {
    for byte in text.bytes() {
        stream.write_all(&[byte])?;
        thread::sleep(Duration::from_secs(1));
    }
    Ok(())
}

fn status(id: &str) -> Value {
    json!({
        "role": "standby", "epoch": 1, "phase": {"name": "ready"}, "log": "command", "device": "file", "commit": "sync", "partitions": 1,
        "sites": 1, "committed_lsn": "1", "durable_lsn": "1", "started_at": "", "uptime_s": 1, "version": "", "database_id": id,
        "settings_hash": "", "idempotency_keys": 0, "idempotency_bytes": 0, "idempotency_bytes_max": 0, "idempotency_keep_s": 0, "waiting": 0,
        "memory": {"kept_back_bytes": 0, "used_bytes": 0, "peak_bytes": 0, "kinds": []},
    })
}

fn promise(member: &str) -> Value {
    let member =
        json!({"name": member, "url": "", "from_lsn": "0", "in_sync": true, "counted": true, "counted_next": true});
    json!({
        "name": "c", "epoch": 1, "end_lsn": "7", "has_been_in_sync": true, "promises": [{"epoch": 2, "name": "b"}],
        "status": {"epoch": 1, "number": "3", "members": [member]},
    })
}

#[test]
fn round_ends_within_its_time_when_peers_are_silent_or_slow() {
    let asking = Asking::new(|primary| primary.round_max = SILENT_ROUND);
    let id = asking.id();
    let (good, _) = serve(&id, "/none", send);
    let slow: [(&str, Answer); 4] = [
        ("/status", |_, _| {
            thread::sleep(Duration::from_secs(60));
            Ok(())
        }),
        ("/status", |stream, text| trickle(stream, &(head(text.len()) + text))),
        ("/promise", |stream, text| trickle(stream, &(head(text.len()) + text))),
        ("/promise", |stream, text| {
            stream.write_all(head(text.len()).as_bytes())?;
            trickle(stream, text)
        }),
    ];
    // A server that accepts no connection: the backlog of its listener takes it.
    let deaf = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut urls: Vec<_> = slow
        .into_iter()
        .map(|(path, answer)| serve(&id, path, answer).0)
        .collect();
    urls.push(format!("http://{}", deaf.local_addr().expect("bound")));
    urls.push(good);
    let begun = Instant::now();
    // On a busy machine the good peer may be late, too. A later round has its answer.
    let answer = loop {
        let mut answers = asking.ask(&urls);
        let good = answers.pop().expect("the last one");
        assert!(answers.iter().all(Result::is_err), "{answers:?}");
        if good.is_ok() || begun.elapsed() > PATIENCE {
            break good.expect("it answers");
        }
    };
    assert_eq!((&*answer.name, answer.end), ("c", Lsn(7)));
}

#[test]
fn answer_that_is_too_long_is_refused_and_others_count() {
    let asking = Asking::new(|_| {});
    let id = asking.id();
    let (long, _) = serve(&id, "/promise", |stream, _| send(stream, &" ".repeat(10 << 20)));
    let (good, _) = serve(&id, "/none", send);
    let mut answers = asking.ask(&[long, good]);
    let answer = answers.pop().expect("the last one").expect("it answers");
    assert_eq!((&*answer.name, answer.end), ("c", Lsn(7)));
    let too_long = answers.remove(0).expect_err("10 MiB");
    assert!(too_long.contains("more than"), "{too_long}");
}

/// The address of a lost standby may be another cluster's by now.
#[test]
fn server_of_another_database_is_not_asked_for_a_promise() {
    let asking = Asking::new(|_| {});
    let (url, promises) = serve("ff", "/none", send);
    let refused = asking.refusal(&url);
    assert!(refused.contains("has another database"), "{refused}");
    assert_eq!(promises.load(Ordering::SeqCst), 0);
}

/// A promotion saves the names of the newest status. A start refuses a document with a name that is none.
#[test]
fn answer_with_a_name_that_no_server_has_or_with_too_many_is_refused() {
    let asking = Asking::new(|_| {});
    let id = asking.id();
    let (bad, _) = serve(&id, "/promise", |stream, _| {
        send(stream, &promise("../c\u{1b}[2J").to_string())
    });
    let refused = asking.refusal(&bad);
    assert!(refused.contains("the name of a server has"), "{refused}");
    let (many, _) = serve(&id, "/promise", |stream, _| {
        let mut answer = promise("c");
        let member = answer["status"]["members"][0].clone();
        answer["status"]["members"] = vec![member; STANDBYS_MAX + 1].into();
        send(stream, &answer.to_string())
    });
    let refused = asking.refusal(&many);
    assert!(refused.contains("more than 16 standbys"), "{refused}");
}

/// A lookup of a name or a file on a network may hang. Here no process writes into a pipe.
#[test]
fn certificate_file_that_can_not_be_read_delays_no_round() {
    let dir = tempfile::tempdir().expect("a directory");
    let pipe = dir.path().join("ca.pem");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
    let asking = Asking::new(|primary| {
        primary.ca_cert = Some(pipe.clone());
        primary.round_max = SILENT_ROUND;
    });
    let refused = asking.refusal("http://127.0.0.1:1");
    assert!(refused.contains("does not answer within 1 s"), "{refused}");
    fs::write(&pipe, "").expect("the thread that reads it ends");
}
