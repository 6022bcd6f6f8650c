//! Scripts that once made the server hold memory which nothing counted. While each of them runs, `/healthz` answers. At its end, the resident
//! size has grown by little more than the ledger of `--memory-max` says.

use std::{
    fmt, fs,
    io::Write,
    net::TcpStream,
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Connection, Launch, Server, skip};

/// With this limit, requests and texts of answers may take 32 MiB each, and kept instances 13 MiB.
const MEMORY_MAX: &str = "256MiB";
/// Growth that no ledger can count. Pages of the program become resident when they first run. New threads have stacks. The allocator keeps
/// freed memory in an arena for each processor. Most scripts below once took 100 MiB or more beside the ledger.
const FLOOR_BYTES: u64 = 48 << 20;
/// Room for the arena of each processor beyond two.
const ARENA_BYTES: u64 = 16 << 20;
/// Time for the server to do what the script asked of it.
const SETTLE: Duration = Duration::from_millis(1_500);
/// Time for memory that is about to be freed. It is shorter than the 60 s for which the server keeps an answer that is not read.
const PATIENCE: Duration = Duration::from_secs(20);
/// Versions of one module are deployed for this long.
const DEPLOY_TIME: Duration = Duration::from_secs(5);

/// Descriptors that the test and the server need for the connections below.
const FILES_MAX: u64 = 4_096;
const HEADS: usize = 1_500;
const READERS: usize = 40;
const CALLS: i64 = 24;

struct MemoryCase {
    name: &'static str,
    /// Partitions, and as many engine threads.
    partitions: &'static str,
    /// Runs the script. The connections that it leaves stay open until the memory was read.
    run: fn(&Server) -> Result<Vec<TcpStream>>,
}

const fn case(name: &'static str, partitions: &'static str, run: fn(&Server) -> Result<Vec<TcpStream>>) -> MemoryCase {
    MemoryCase { name, partitions, run }
}

const CASES: [MemoryCase; 6] = [
    case("unread lists of tables", "1", unread_lists),
    case("unread descriptions of a module's API", "1", unread_descriptions),
    case(UNFINISHED_HEADS, "1", unfinished_heads),
    case("versions of one module", "1", deploy_versions),
    case("idempotency keys", "2", use_keys),
    case("instances with large memories", "8", call_large_instances),
];
const UNFINISHED_HEADS: &str = "unfinished heads";

#[test]
fn memory_grows_by_what_the_ledger_counts() -> Result<()> {
    let hard_limit = raise_files_max()?;
    for case in &CASES {
        // A server keeps some descriptors for its files, and gives half of the others to one address.
        if case.name == UNFINISHED_HEADS && hard_limit < FILES_MAX {
            skip(case.name, "fewer than 4,096 files may be open");
            continue;
        }
        check_case(case).with_context(|| case.name.to_owned())?;
    }
    Ok(())
}

fn check_case(case: &MemoryCase) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let args = ["--partitions", case.partitions, "--sites", case.partitions];
    let launch = Launch::new(&dir.path().join("data")).args(&args);
    let mut server = Server::start(&launch.args(&["--memory-max", MEMORY_MAX]))?;
    let process = server.process().id();
    warm_up(&server)?;
    let idle = MemoryReading::take(process, &server)?;
    let is_over = AtomicBool::new(false);
    let (grown, health) = thread::scope(|scope| {
        let prober = scope.spawn(|| probe_health(&server.address, &is_over));
        let grown = (case.run)(&server).and_then(|_open| wait_counted(process, &server, &idle));
        is_over.store(true, Ordering::Relaxed);
        (grown, prober.join().expect("the prober does not panic"))
    });
    let (answers, p99) = (health.latencies.len(), health.p99());
    println!("{}: /healthz answered {answers} times, p99 {p99:?}", case.name);
    println!("{}: {}", case.name, grown?);
    ensure!(server.process().is_running(), "{}", server.process().errors());
    ensure!(health.failures.is_empty(), "/healthz: {:?}", health.failures);
    ensure!(!health.latencies.is_empty(), "/healthz was never asked");
    Ok(())
}

/// Runs once the code that the scripts run, so that its pages are resident before.
fn warm_up(server: &Server) -> Result<()> {
    deploy(server, "warm", &keyed_module()?)?;
    let called = server.call("warm/nothing", r#"{"k": 1}"#)?;
    ensure!(called.status == 200, "{}", called.text());
    for path in ["/v1/tables", "/v1/modules/warm/openapi.json", "/metrics"] {
        let answer = server.get(path)?;
        ensure!(answer.status == 200, "{path}: {}", answer.text());
    }
    Ok(())
}

/// Bytes of one moment, or their growth.
struct MemoryReading {
    resident: u64,
    ledger: u64,
}

impl MemoryReading {
    fn take(process: u32, server: &Server) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok());
        let metrics = server.get("/metrics")?.text();
        let kinds = metrics.lines().filter(|line| line.starts_with("reprise_memory_bytes{"));
        let bytes = kinds.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        let ledger: f64 = bytes.sum();
        ensure!(ledger > 0.0, "no kind of memory: {metrics}");
        Ok(Self {
            resident: kib.context("the resident size")? << 10,
            ledger: ledger as u64,
        })
    }
}

impl fmt::Display for MemoryReading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [resident, ledger] = [self.resident >> 20, self.ledger >> 20];
        write!(f, "grown by {resident} MiB, of which the ledger counts {ledger} MiB")
    }
}

/// Waits until the growth since `idle` is within its bound, and returns it.
fn wait_counted(process: u32, server: &Server, idle: &MemoryReading) -> Result<MemoryReading> {
    thread::sleep(SETTLE);
    let until = Instant::now() + PATIENCE;
    let processors = thread::available_parallelism().map_or(2, usize::from) as u64;
    let floor = FLOOR_BYTES + processors.saturating_sub(2) * ARENA_BYTES;
    loop {
        let now = MemoryReading::take(process, server)?;
        let grown = MemoryReading {
            resident: now.resident.saturating_sub(idle.resident),
            ledger: now.ledger.saturating_sub(idle.ledger),
        };
        if grown.resident <= grown.ledger + grown.ledger / 2 + floor {
            return Ok(grown);
        }
        ensure!(Instant::now() < until, "{grown}");
        thread::sleep(Duration::from_millis(500));
    }
}

#[derive(Default)]
struct HealthReport {
    latencies: Vec<Duration>,
    failures: Vec<String>,
}

impl HealthReport {
    fn p99(&self) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() * 99 / 100).copied().unwrap_or_default()
    }
}

/// Asks `/healthz` over a new connection each time until the script is over. A slow answer is no failure: the machine may be busy.
fn probe_health(address: &str, is_over: &AtomicBool) -> HealthReport {
    let mut report = HealthReport::default();
    while !is_over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let ask = || -> Result<u16> {
            let mut connection = Connection::open(address)?;
            let answer = connection.get("/healthz").map_err(|cut| cut.error)?;
            Ok(answer.status)
        };
        match ask() {
            Ok(200) => report.latencies.push(begun.elapsed()),
            Ok(status) => report.failures.push(format!("status {status}")),
            Err(error) => report.failures.push(format!("{error:#}")),
        }
        thread::sleep(Duration::from_millis(20));
    }
    report
}

/// `listing_memory`: readers ask for lists of 4 MiB and read nothing.
fn unread_lists(server: &Server) -> Result<Vec<TcpStream>> {
    for number in 0..4 {
        deploy(server, &format!("wide{number}"), &wide_module()?)?;
    }
    hold_answers(server, "/v1/tables")
}

/// `openapi_starves_http`: readers ask for a long document and read nothing.
fn unread_descriptions(server: &Server) -> Result<Vec<TcpStream>> {
    deploy(server, "procs", &long_module()?)?;
    hold_answers(server, "/v1/modules/procs/openapi.json")
}

/// `half_heads_memory`: heads without an end.
fn unfinished_heads(server: &Server) -> Result<Vec<TcpStream>> {
    let head = format!(
        "GET /v1/status HTTP/1.1\r\nhost: localhost\r\nx-a: {}",
        "a".repeat(30 << 10)
    );
    (0..HEADS).map(|_| send(server, &head)).collect()
}

/// `versions_memory`: one version after another, each with a long description, until the memory is full or the time is over.
fn deploy_versions(server: &Server) -> Result<Vec<TcpStream>> {
    let (begun, wasm) = (Instant::now(), long_module()?);
    deploy(server, "procs", &wasm)?;
    for version in 0.. {
        let next = [&wasm[..], &custom_section("version", format!("{version}").as_bytes())].concat();
        let answer = server.request("PUT", "/v1/modules/procs", &[], &next)?;
        ensure!(matches!(answer.status, 200 | 201 | 507), "{}", answer.text());
        if answer.status == 507 || begun.elapsed() > DEPLOY_TIME {
            break;
        }
    }
    Ok(Vec::new())
}

/// `keys_of_one_token`: one client takes all the room for idempotency keys that it gets.
fn use_keys(server: &Server) -> Result<Vec<TcpStream>> {
    const BATCH: u64 = 3_000;
    deploy(server, "keyed", &keyed_module()?)?;
    for batch in 0..20 {
        let line = |number: u64| {
            format!(
                r#"{{"module":"keyed","procedure":"nothing","args":{{"k":{number}}},"idempotency_key":"{number:0>250}"}}"#
            ) + "\n"
        };
        let lines: String = (batch * BATCH..(batch + 1) * BATCH).map(line).collect();
        let answer = server.request("POST", "/v1/batch", &[], lines.as_bytes())?;
        ensure!(answer.status == 200, "{} {}", answer.status, answer.text());
        if answer.text().contains("memory-exhausted") {
            break;
        }
    }
    Ok(Vec::new())
}

/// `images_memory`: a start function fills 64 MiB, on each engine thread. There is no room for all of them.
fn call_large_instances(server: &Server) -> Result<Vec<TcpStream>> {
    deploy(server, "large", &large_module()?)?;
    let mut statuses = Vec::new();
    for key in 0..CALLS {
        let answer = server.call("large/p", &format!(r#"{{"k": {key}}}"#))?;
        ensure!(matches!(answer.status, 200 | 503 | 504 | 507), "{}", answer.text());
        statuses.push(answer.status);
    }
    ensure!(statuses.contains(&200), "no call is answered: {statuses:?}");
    Ok(Vec::new())
}

fn deploy(server: &Server, name: &str, wasm: &[u8]) -> Result<()> {
    let answer = server.request("PUT", &format!("/v1/modules/{name}"), &[], wasm)?;
    ensure!(answer.status == 201, "deploy {name}: {}", answer.text());
    Ok(())
}

/// Asks for a long answer several times on each of many connections, and reads none. The kernel takes the first part of what it is sent.
fn hold_answers(server: &Server, path: &str) -> Result<Vec<TcpStream>> {
    let one = server.get(path)?;
    let bytes = one.body.len();
    ensure!(one.status == 200 && bytes > 512 << 10, "{path}: {bytes} bytes");
    let requests = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").repeat(4);
    (0..READERS).map(|_| send(server, &requests)).collect()
}

/// Sends a text over a connection of its own. The server may refuse it before its end.
fn send(server: &Server, text: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(&server.address)?;
    keep_receive_buffer_small(&stream)?;
    stream.set_write_timeout(Some(Duration::from_secs(1)))?;
    let _ = stream.write_all(text.as_bytes()); // refused: its connection is closed
    Ok(stream)
}

/// Keeps the kernel from taking an answer for a client that does not read.
fn keep_receive_buffer_small(stream: &TcpStream) -> Result<()> {
    let bytes: libc::c_int = 4_096;
    // SAFETY: the descriptor is open, and the pointer is valid for the length of the call.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            (&raw const bytes).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    ensure!(result == 0, "bound a buffer: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Lets this process open as many files as the connections need, and returns its hard limit.
fn raise_files_max() -> Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is valid for the length of the call.
    let read = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit.rlim_cur = limit.rlim_cur.max(FILES_MAX.min(limit.rlim_max));
    // SAFETY: the pointer is valid for the length of the call.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    ensure!(read == 0 && set == 0, "limit: {}", std::io::Error::last_os_error());
    Ok(limit.rlim_max)
}

/// Appends a description to a module.
fn described(text: &str, description: &str) -> Result<Vec<u8>> {
    let section = custom_section("reprise.describe", description.as_bytes());
    Ok([wat::parse_str(text)?, section].concat())
}

fn custom_section(name: &str, data: &[u8]) -> Vec<u8> {
    let body = [&leb128(name.len())[..], name.as_bytes(), data].concat();
    [&[0_u8][..], &leb128(body.len()), &body].concat()
}

fn leb128(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 128 {
        bytes.push(number as u8 | 128);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn procedure(name: &str, params: &str, read_only: bool, by: &str) -> String {
    format!(
        r#"{{"name":"{name}","params":[{params}],"returns":"unit","read_only":{read_only},"partitioning":{{"by":["{by}"]}}}}"#
    )
}

fn module_of(text: &str, procedures: &str) -> Result<Vec<u8>> {
    described(text, &format!(r#"{{"abi":1,"tables":[],"procedures":[{procedures}]}}"#))
}

/// A procedure that changes nothing and may have an idempotency key.
fn keyed_module() -> Result<Vec<u8>> {
    let text = r#"(module (memory (export "memory") 1)
        (func (export "reprise_call_nothing") (param i32) (result i32) (i32.const 0)))"#;
    module_of(text, &procedure("nothing", r#"{"name":"k","type":"i64"}"#, false, "k"))
}

/// A start function that fills the whole memory.
fn large_module() -> Result<Vec<u8>> {
    let text = r#"(module (memory (export "memory") 1024 1024)
        (func $start (memory.fill (i32.const 0) (i32.const 90) (i32.const 67108863)))
        (start $start)
        (func (export "reprise_call_p") (param i32) (result i32) (i32.const 0)))"#;
    module_of(text, &procedure("p", r#"{"name":"k","type":"i64"}"#, true, "k"))
}

/// 200 procedures of 120 parameters: a description of more than half a megabyte.
fn long_module() -> Result<Vec<u8>> {
    let export = |at: u32| format!(r#"(func (export "reprise_call_p{at}") (param i32) (result i32) (i32.const 0))"#);
    let exports: String = (0..200).map(export).collect();
    let param = |at: u32| format!(r#"{{"name":"a{at}","type":"i8"}}"#);
    let params = (0..120).map(param).collect::<Vec<_>>().join(",");
    let procedures = (0..200).map(|at| procedure(&format!("p{at}"), &params, true, "a0"));
    module_of(
        &format!(r#"(module (memory (export "memory") 1) {exports})"#),
        &procedures.collect::<Vec<_>>().join(","),
    )
}

/// 88 tables of 256 columns.
fn wide_module() -> Result<Vec<u8>> {
    let column = |at: u32| format!(r#"{{"name":"c{at}","type":"i8"}}"#);
    let columns = (0..256).map(column).collect::<Vec<_>>().join(",");
    let table =
        |at: u32| format!(r#"{{"name":"t{at}","columns":[{columns}],"primary_key":["c0"],"placement":{{"by":"c0"}}}}"#);
    let tables = (0..88).map(table).collect::<Vec<_>>().join(",");
    described(
        r#"(module (memory (export "memory") 1))"#,
        &format!(r#"{{"abi":1,"tables":[{tables}],"procedures":[]}}"#),
    )
}
