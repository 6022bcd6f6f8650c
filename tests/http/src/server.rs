//! The server's process.

use std::{
    env,
    io::{BufRead, BufReader},
    net::TcpStream,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use reqwest::{Method, blocking::Client};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    documented,
    probe::probe,
    wire::{Answer, connect},
};

/// Waits that end only by a mistake: long enough for a machine that is busy with other things.
const START_WAIT_MAX: Duration = Duration::from_secs(180);
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(180);
const ROWS_WAIT_MAX: Duration = Duration::from_secs(180);
/// Time below the one for which any server of these tests keeps a silent connection. The client does not use a connection again that the
/// server is about to close.
const IDLE_MAX: Duration = Duration::from_millis(500);
/// Cores of a server whose memory is measured, or fewer: each has a thread with memory of its own.
const MEASURED_CORES_MAX: usize = 4;

/// How a server is to be started.
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// Configures the tokens `secret-read`, `secret-write` and `secret-admin`.
    pub tokens: bool,
    pub partitions: Option<u16>,
    /// Further lines of the configuration file, before its tables.
    pub settings: &'static str,
    /// Lets `Server::refuse_writes` work.
    pub survives_file_limit: bool,
    /// Its memory depends on neither the number of cores nor the machine's huge pages.
    pub is_measured: bool,
}

pub struct Server {
    child: Child,
    pub url: String,
    pub address: String,
    options: Options,
    client: Client,
    dir: TempDir,
}

/// SHA-256 of `secret-read`, `secret-write` and `secret-admin`.
const TOKENS: [(&str, &str); 3] = [
    (
        "read",
        "63a662e556ca381cc29a45bfd129614662e33851ecb06a2a366ee2c1f6049148",
    ),
    (
        "write",
        "d6879f21a9bfe403be3197718a55b326d69502a741282ced1381830b9c8364a4",
    ),
    (
        "admin",
        "3ca2a2f7307bf53f8bc35f40f2cc5d617de1fa8e40515c6fe7dcbbef8960dceb",
    ),
];

/// The binary under test: `REPRISE_BIN`, or the one beside this test's own.
fn binary() -> PathBuf {
    if let Some(path) = env::var_os("REPRISE_BIN") {
        return path.into();
    }
    let own = env::current_exe().expect("a test knows its own path");
    let path = own
        .ancestors()
        .nth(2)
        .expect("target/release/deps/test")
        .join("reprise");
    assert!(
        path.exists(),
        "build the server first: cargo build --release -p reprise-node"
    );
    path
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(Options::default())
    }

    pub fn start_with(options: Options) -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (child, url) = launch(dir.path(), options).expect("start server");
        Self {
            child,
            address: url.trim_start_matches("http://").to_owned(),
            url,
            options,
            client: client(),
            dir,
        }
        .until_ready()
    }

    /// A server with the module `probe`.
    pub fn with_probe(options: Options) -> Self {
        let server = Self::start_with(options);
        server.put_module("probe", probe()).ok(201);
        server
    }

    /// A connection for requests that no HTTP library would send.
    pub fn connect(&self) -> TcpStream {
        connect(&self.address)
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn until_ready(self) -> Self {
        let started = Instant::now();
        loop {
            let readiness = self.get("/readyz");
            if readiness.status == 200 {
                break;
            }
            assert_eq!(readiness.ok(503)["phase"]["name"], "recovering");
            assert!(started.elapsed() < START_WAIT_MAX, "the server does not become ready");
            std::thread::sleep(Duration::from_millis(5));
        }
        self
    }

    /// Kills the server and starts it again on the same directory.
    pub fn restart(self) -> Self {
        self.restart_unready().until_ready()
    }

    /// The `restart` variant that does not wait until the server is ready.
    pub fn restart_unready(mut self) -> Self {
        self.kill();
        let (child, url) = launch(self.dir.path(), self.options).expect("start server again");
        self.child = child;
        self.address = url.trim_start_matches("http://").to_owned();
        self.url = url;
        self
    }

    /// The `restart` variant with other options.
    pub fn restart_with(mut self, options: Options) -> Self {
        self.options = options;
        self.restart()
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }

    /// Sends SIGTERM and returns the exit status.
    pub fn terminate(mut self) -> Option<i32> {
        // SAFETY: a plain system call on a child that is not yet waited for.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        self.child.wait().expect("wait for server").code()
    }

    /// Makes every later write of the server to a file fail, as on a full disk.
    pub fn refuse_writes(&self) {
        assert!(self.options.survives_file_limit);
        let none = libc::rlimit {
            rlim_cur: 0,
            rlim_max: libc::RLIM_INFINITY,
        };
        let pid = self.child.id() as libc::pid_t;
        // SAFETY: both pointers are valid or null for the length of the call.
        let result = unsafe { libc::prlimit(pid, libc::RLIMIT_FSIZE, &none, std::ptr::null_mut()) };
        assert_eq!(
            result,
            0,
            "limit the server's files: {}",
            std::io::Error::last_os_error()
        );
    }

    /// Memory of the server that is resident: counted page by page, since `statm` may be wrong by some pages a core.
    pub fn resident_bytes(&self) -> u64 {
        assert!(self.options.is_measured);
        let read = |name| std::fs::read_to_string(format!("/proc/{}/{name}", self.child.id()));
        let Ok(text) = read("smaps_rollup") else {
            let text = read("statm").expect("read the server's memory");
            let pages = text.split(' ').nth(1).and_then(|field| field.parse::<u64>().ok());
            return pages.expect("a number of pages") * 4096;
        };
        let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
        let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
        let number = number.and_then(|number| number.parse::<u64>().ok());
        number.expect("a line of what is resident") << 10
    }

    pub fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], Vec::new())
    }

    /// Waits until a table has `rows` rows, and returns its description: a count may be older than the last answer.
    #[track_caller]
    pub fn wait_rows(&self, table: &str, rows: u64) -> Value {
        let started = Instant::now();
        loop {
            let told = self.get(&format!("/v1/tables/{table}")).ok(200);
            if told["rows"] == rows {
                return told;
            }
            assert!(started.elapsed() < ROWS_WAIT_MAX, "not {rows} rows: {told}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn put_module(&self, name: &str, wasm: Vec<u8>) -> Answer {
        self.send(Method::PUT, &format!("/v1/modules/{name}"), &[], wasm)
    }

    /// Sends a deployment, a rollback or a removal. If consent is missing, sends it again with the consents that the refusal names.
    pub fn consenting(&self, method: Method, path: &str, wasm: &[u8]) -> Answer {
        let refused = self.send(method.clone(), path, &[], wasm.to_vec());
        if refused.status != 409 {
            return refused;
        }
        let problem = refused.problem("schema-conflict", 409);
        let missing = problem["plan"]["missing"].as_array().cloned().unwrap_or_default();
        let allow: Vec<_> = missing
            .iter()
            .filter_map(Value::as_str)
            .map(|consent| format!("allow={consent}"))
            .collect();
        let mark = if path.contains('?') { '&' } else { '?' };
        self.send(method, &format!("{path}{mark}{}", allow.join("&")), &[], wasm.to_vec())
    }

    pub fn call(&self, procedure: &str, args: Value) -> Answer {
        self.call_with(procedure, args, &[])
    }

    /// Calls a procedure of the module `probe`.
    pub fn call_with(&self, procedure: &str, args: Value, headers: &[(&str, &str)]) -> Answer {
        let path = format!("/v1/call/probe/{procedure}");
        self.send(Method::POST, &path, headers, args.to_string().into_bytes())
    }

    /// Sends lines; returns the lines of the answer.
    pub fn batch(&self, lines: &str) -> Vec<Value> {
        let answer = self.send(Method::POST, "/v1/batch", &[], lines.as_bytes().to_vec());
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
        answer
            .text()
            .lines()
            .map(|line| serde_json::from_str(line).expect("a JSON line"))
            .collect()
    }

    /// Sends a request. Its answer has a status that the API's description names.
    #[track_caller]
    pub fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Answer {
        let mut request = self
            .client
            .request(method.clone(), format!("{}{path}", self.url))
            .body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = Answer::of(request.send().expect("the server answers"));
        documented::check(&method, path, answer.status);
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn client() -> Client {
    reprise_net_tls::use_ring();
    let builder = Client::builder()
        .timeout(ANSWER_WAIT_MAX)
        .pool_idle_timeout(IDLE_MAX)
        .redirect(reqwest::redirect::Policy::none());
    builder.build().expect("HTTP client")
}

fn launch(dir: &Path, options: Options) -> anyhow::Result<(Child, String)> {
    let config = dir.join("reprise.toml");
    std::fs::write(&config, configuration(options)).context("write configuration")?;
    let mut command = Command::new(binary());
    command
        .arg("serve")
        .arg("--config")
        .arg(&config)
        .arg("--data-dir")
        .arg(dir.join("data"))
        .args(["--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped());
    if let Some(partitions) = options.partitions {
        command.args(["--partitions", &partitions.to_string()]);
    }
    if options.survives_file_limit {
        let ignore = || {
            // SAFETY: signal() is async-signal-safe, and an ignored signal stays so over exec.
            unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: the closure makes one async-signal-safe call.
        unsafe { command.pre_exec(ignore) };
    }
    if options.is_measured {
        command.env("MALLOC_ARENA_MAX", "8");
        // SAFETY: the closure makes system calls alone.
        unsafe { command.pre_exec(level) };
    }
    let mut child = command.spawn().context("spawn server")?;
    let mut lines = BufReader::new(child.stdout.take().context("piped")?).lines();
    let url = loop {
        match lines.next() {
            Some(line) => {
                if let Some(url) = line?.strip_prefix("listening on ") {
                    break url.trim_end_matches('/').to_owned();
                }
            }
            None => bail!("the server ended before it listened: {:?}", child.wait()),
        }
    };
    // The rest of the output is not read, but it must not block the server.
    std::thread::spawn(move || lines.for_each(drop));
    Ok((child, url))
}

/// Leaves few cores to this process and its children, and no huge pages.
fn level() -> std::io::Result<()> {
    // SAFETY: all zero is the empty set, and the pointers are valid for the length of the calls.
    unsafe {
        libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0); // a kernel without them has none to disable
        let mut cores: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        if libc::sched_getaffinity(0, size, &mut cores) != 0 {
            return Ok(()); // more cores than a set has places: left as it is
        }
        let mut kept = 0;
        for core in 0..libc::CPU_SETSIZE as usize {
            match libc::CPU_ISSET(core, &cores) {
                true if kept == MEASURED_CORES_MAX => libc::CPU_CLR(core, &mut cores),
                is_ours => kept += usize::from(is_ours),
            }
        }
        libc::sched_setaffinity(0, size, &cores); // refused: left as it is
    }
    Ok(())
}

fn configuration(options: Options) -> String {
    let mut text = format!("{}\n", options.settings);
    if options.tokens {
        for (role, digest) in TOKENS {
            text.push_str(&format!(
                "[[tokens]]\nname = \"{role}er\"\nrole = \"{role}\"\nsha256 = \"{digest}\"\n"
            ));
        }
    }
    text
}
