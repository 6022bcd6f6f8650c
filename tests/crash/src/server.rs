//! The server's process, and the binary's other verbs.

use std::{
    env, fs,
    io::{self, BufRead, BufReader, Read},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    client::{KNOWN_REST, KNOWN_WAIT_MAX, misses_standbys},
    http::{Answer, Connection},
};

/// Waits that end only by a mistake: long enough for a machine that is busy with other things.
const START_WAIT_MAX: Duration = Duration::from_secs(180);
const SAID_WAIT_MAX: Duration = Duration::from_secs(180);
const END_WAIT_MAX: Duration = Duration::from_secs(180);

/// How a server is to be started.
#[derive(Clone)]
pub struct Launch {
    pub data_dir: PathBuf,
    /// Port 0: any that is free.
    pub listen: String,
    /// Behind `serve --data-dir … --listen …`.
    pub args: Vec<String>,
    /// Its limit of open files, if not ours.
    pub files_max: Option<u64>,
    /// Lets `Server::refuse_file_writes` work.
    pub survives_file_limit: bool,
    /// The control group that it begins in, if not ours.
    pub group: Option<PathBuf>,
    /// The directory that it stands in.
    pub working_dir: PathBuf,
    /// The file of the network namespace that it runs in, if not ours.
    pub network: Option<PathBuf>,
    /// Its standard error, in place of a pipe that is read.
    pub errors_to: Option<Arc<OwnedFd>>,
}

impl Launch {
    pub fn new(data_dir: &Path) -> Self {
        Self {
            data_dir: data_dir.to_owned(),
            listen: "127.0.0.1:0".into(),
            args: Vec::new(),
            files_max: None,
            survives_file_limit: false,
            group: None,
            working_dir: "/".into(),
            network: None,
            errors_to: None,
        }
    }

    /// Sends its standard error to a file. The test reads none of it.
    pub fn errors_to(mut self, file: impl Into<OwnedFd>) -> Self {
        self.errors_to = Some(Arc::new(file.into()));
        self
    }

    pub fn in_network(mut self, namespace: &Path) -> Self {
        self.network = Some(namespace.to_owned());
        self
    }

    pub fn standing_in(mut self, dir: &Path) -> Self {
        self.working_dir = dir.to_owned();
        self
    }

    pub fn listen(mut self, address: &str) -> Self {
        self.listen = address.to_owned();
        self
    }

    pub fn in_group(mut self, group: &Path) -> Self {
        self.group = Some(group.to_owned());
        self
    }

    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    pub fn files_max(mut self, files_max: u64) -> Self {
        self.files_max = Some(files_max);
        self
    }

    pub fn survives_file_limit(mut self) -> Self {
        self.survives_file_limit = true;
        self
    }
}

/// A process that may not listen yet. It ends with this.
pub struct Spawned {
    child: Child,
    /// Behind a lock only so that threads may share the server.
    lines: Mutex<mpsc::Receiver<String>>,
    errors: Arc<Mutex<String>>,
    /// Ends when the process has closed its standard error.
    reader: Option<thread::JoinHandle<()>>,
}

/// A process that listens. It ends with this.
pub struct Server {
    process: Spawned,
    pub address: String,
}

impl Spawned {
    pub fn start(launch: &Launch) -> Result<Self> {
        let mut command = Command::new(binary()?);
        command.arg("serve").arg("--data-dir").arg(&launch.data_dir);
        command.args(["--listen", &launch.listen]).args(&launch.args);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(match &launch.errors_to {
            Some(file) => Stdio::from(file.try_clone().context("another standard error")?),
            None => Stdio::piped(),
        });
        // No configuration but ours: neither a reprise.toml of the current directory nor the environment's.
        command.current_dir(&launch.working_dir);
        for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("REPRISE_")) {
            command.env_remove(name);
        }
        if let Some(files_max) = launch.files_max {
            limit_files(&mut command, files_max);
        }
        if launch.survives_file_limit {
            ignore_file_limit(&mut command);
        }
        if let Some(group) = &launch.group {
            join_group(&mut command, group)?;
        }
        if let Some(namespace) = &launch.network {
            join_network(&mut command, namespace)?;
        }
        let mut child = command.spawn().context("start the server")?;
        let stdout = child.stdout.take().context("piped")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line); // read on all the same: a full pipe would block the server
            }
        });
        let errors = Arc::new(Mutex::new(String::new()));
        let kept = errors.clone();
        let stderr = child.stderr.take();
        let reader = stderr.map(|stderr| thread::spawn(move || keep(stderr, &kept)));
        Ok(Self {
            child,
            lines: Mutex::new(lines),
            errors,
            reader,
        })
    }

    /// Waits for `listening on`.
    pub fn listen(mut self) -> Result<Server> {
        let until = Instant::now() + START_WAIT_MAX;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.get_mut().expect("never held").recv_timeout(left) {
                Ok(line) => {
                    let url = line.strip_prefix("listening on ");
                    let address = url.and_then(|url| url.strip_prefix("http://").or(url.strip_prefix("https://")));
                    if let Some(address) = address {
                        let address = address.trim_end_matches('/').to_owned();
                        return Ok(Server { process: self, address });
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    bail!("the server does not listen: {}", self.errors())
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let status = self.wait()?;
                    bail!("the server ended before it listened, {status}: {}", self.errors());
                }
            }
        }
    }

    /// kill -9.
    pub fn kill(&mut self) -> Result<()> {
        let _ = self.child.kill(); // it may have ended by itself
        self.wait().map(drop)
    }

    /// After `SIGSTOP` no thread runs any more when this returns: a busy machine stops the threads some time later.
    pub fn signal(&self, signal: i32) -> Result<()> {
        // SAFETY: a plain system call on a child that is not yet waited for.
        let result = unsafe { libc::kill(self.child.id() as i32, signal) };
        ensure!(result == 0, "signal the server: {}", std::io::Error::last_os_error());
        let until = Instant::now() + END_WAIT_MAX;
        while signal == libc::SIGSTOP && !self.is_stopped()? {
            ensure!(
                Instant::now() < until,
                "the server did not stop within {END_WAIT_MAX:?}"
            );
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// A thread that ended, or a server that did, counts as stopped.
    fn is_stopped(&self) -> Result<bool> {
        for thread in fs::read_dir(format!("/proc/{}/task", self.child.id())).context("read the server's threads")? {
            let Ok(stat) = fs::read_to_string(thread?.path().join("stat")) else {
                continue;
            };
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            if !matches!(state, Some('T' | 'Z' | 'X')) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits for the end; kills what does not end.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let until = Instant::now() + END_WAIT_MAX;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().context("wait for the server")? {
                if let Some(reader) = self.reader.take() {
                    let _ = reader.join(); // it only reads
                }
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(1));
        }
        let _ = self.child.kill(); // reported below
        let _ = self.child.wait();
        bail!("the server did not end within {END_WAIT_MAX:?}: {}", self.errors())
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the server's standard error.
    pub fn errors(&self) -> String {
        self.errors.lock().expect("held to copy").clone()
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts a server and waits until it takes calls.
    pub fn start(launch: &Launch) -> Result<Self> {
        let mut server = Spawned::start(launch)?.listen()?;
        server.wait_ready()?;
        Ok(server)
    }

    pub fn wait_ready(&mut self) -> Result<()> {
        let until = Instant::now() + START_WAIT_MAX;
        let mut last = String::new();
        while Instant::now() < until {
            if let Ok(answer) = self.get("/readyz") {
                if answer.status == 200 {
                    return Ok(());
                }
                last = answer.text();
                // Final: the reason is in there.
                ensure!(!last.contains("\"failed\""), "the server can't be made ready: {last}");
            }
            if !self.process.is_running() {
                let status = self.process.wait()?;
                bail!("the server ended, {status}: {}", self.process.errors());
            }
            thread::sleep(Duration::from_millis(2));
        }
        bail!("the server does not become ready: {last} {}", self.process.errors())
    }

    pub fn connect(&self) -> Result<Connection> {
        Connection::open(&self.address).context("connect")
    }

    pub fn get(&self, path: &str) -> Result<Answer> {
        let answer = self.connect()?.get(path);
        answer.map_err(|cut| cut.error).with_context(|| format!("GET {path}"))
    }

    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Answer> {
        let answer = self.connect()?.request(method, path, headers, body);
        answer
            .map_err(|cut| cut.error)
            .with_context(|| format!("{method} {path}"))
    }

    /// Sends it again while it is open or refused because standbys are missing. It has an idempotency key, or may take place more than once.
    pub fn until_known(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Answer> {
        let until = Instant::now() + KNOWN_WAIT_MAX;
        loop {
            let answer = self.request(method, path, headers, body)?;
            if !misses_standbys(&answer) || Instant::now() >= until {
                return Ok(answer);
            }
            thread::sleep(KNOWN_REST);
        }
    }

    /// Runs one transaction.
    pub fn call(&self, procedure: &str, args: &str) -> Result<Answer> {
        self.request("POST", &format!("/v1/call/{procedure}"), &[], args.as_bytes())
    }

    /// Sends a deployment or a removal, and sends it again with consent if that is missing.
    pub fn consenting(&self, method: &str, path: &str, body: &[u8]) -> Result<Answer> {
        let refused = self.request(method, path, &[], body)?;
        match refused.status {
            409 => self.request(method, &format!("{path}{}", refused.consents()), &[], body),
            _ => Ok(refused),
        }
    }

    /// Installs a sample module.
    pub fn deploy(&self, name: &str) -> Result<()> {
        let answer = self.request("PUT", &format!("/v1/modules/{name}"), &[], &procedure_wasm(name)?)?;
        check_deployed(name, &answer)
    }

    /// The `deploy` variant for slow standbys: it does not install a module that is there again.
    pub fn deploy_until_known(&self, name: &str) -> Result<()> {
        let answer = self.until_known("PUT", &format!("/v1/modules/{name}"), &[], &procedure_wasm(name)?)?;
        check_deployed(name, &answer)
    }

    /// Waits until it has written this text to standard error. The server reports its recovery a little after it is ready.
    pub fn wait_said(&mut self, text: &str) -> Result<()> {
        let until = Instant::now() + SAID_WAIT_MAX;
        while !self.process.errors().contains(text) {
            ensure!(
                Instant::now() < until,
                "the server does not say {text:?}: {}",
                self.process.errors()
            );
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// SIGTERM; the exit status.
    pub fn terminate(mut self) -> Result<(ExitStatus, String)> {
        self.process.signal(libc::SIGTERM)?;
        let status = self.process.wait()?;
        Ok((status, self.process.errors()))
    }

    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Makes every later write of the server to a file fail.
    pub fn refuse_file_writes(&self) -> Result<()> {
        let none = libc::rlimit {
            rlim_cur: 0,
            rlim_max: libc::RLIM_INFINITY,
        };
        let pid = self.process.id() as libc::pid_t;
        // SAFETY: both pointers are valid or null for the length of the call.
        let result = unsafe { libc::prlimit(pid, libc::RLIMIT_FSIZE, &none, std::ptr::null_mut()) };
        ensure!(
            result == 0,
            "limit the server's files: {}",
            std::io::Error::last_os_error()
        );
        Ok(())
    }

    pub fn process(&mut self) -> &mut Spawned {
        &mut self.process
    }
}

fn check_deployed(name: &str, answer: &Answer) -> Result<()> {
    ensure!(
        matches!(answer.status, 200 | 201),
        "deploy {name}: {} {}",
        answer.status,
        answer.text()
    );
    Ok(())
}

fn limit_files(command: &mut Command, files_max: u64) {
    let limit = libc::rlimit {
        rlim_cur: files_max,
        rlim_max: files_max,
    };
    let set = move || {
        // SAFETY: the pointer is valid for the length of the call.
        match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one async-signal-safe call.
    unsafe { command.pre_exec(set) };
}

fn join_group(command: &mut Command, group: &Path) -> Result<()> {
    let procs = fs::File::options()
        .write(true)
        .open(group.join("cgroup.procs"))
        .context("open the control group")?;
    let join = move || {
        // "0" names the writing process.
        // SAFETY: the descriptor is open, the byte exists, and write() is async-signal-safe.
        match unsafe { libc::write(procs.as_raw_fd(), c"0".as_ptr().cast(), 1) } {
            1 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one async-signal-safe call.
    unsafe { command.pre_exec(join) };
    Ok(())
}

fn join_network(command: &mut Command, namespace: &Path) -> Result<()> {
    let namespace = fs::File::open(namespace).context("open the network namespace")?;
    let join = move || {
        // SAFETY: the descriptor is open, and setns() is one system call.
        match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one async-signal-safe call.
    unsafe { command.pre_exec(join) };
    Ok(())
}

fn ignore_file_limit(command: &mut Command) {
    let ignore = || {
        // SAFETY: signal() is async-signal-safe, and an ignored signal stays so over exec.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        Ok(())
    };
    // SAFETY: the closure makes one async-signal-safe call.
    unsafe { command.pre_exec(ignore) };
}

/// Standard error, kept up to a bound and read to its end.
fn keep(mut from: impl Read, to: &Mutex<String>) {
    const KEPT_BYTES_MAX: usize = 1 << 20;
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let mut to = to.lock().expect("held to append");
        if to.len() < KEPT_BYTES_MAX {
            to.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
    }
}

/// The server under test: `REPRISE_BIN`, or the one beside this program.
pub fn binary() -> Result<PathBuf> {
    match env::var_os("REPRISE_BIN") {
        Some(path) => Ok(path.into()),
        None => program_beside("reprise", "reprise-node"),
    }
}

/// A program of this package, built with the same profile.
fn program_beside(name: &str, package: &str) -> Result<PathBuf> {
    let own = env::current_exe().context("find this program")?;
    // A test lies in the folder deps of the profile, the binary `crash` in the profile's.
    let found = own
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file());
    found.with_context(|| format!("build {name} first: cargo build --release -p {package}"))
}

/// A sample module: from `REPRISE_PROCEDURES`, or from target/procedures.
pub fn procedure_wasm(name: &str) -> Result<Vec<u8>> {
    let dir = match env::var_os("REPRISE_PROCEDURES") {
        Some(dir) => PathBuf::from(dir),
        None => {
            let own = env::current_exe().context("find this program")?;
            let dirs = own.ancestors().skip(1).take(3).map(|dir| dir.join("procedures"));
            let found = dirs.into_iter().find(|dir| dir.join("bank.wasm").is_file());
            found.context("build the sample modules first: cargo xtask wasm")?
        }
    };
    let path = dir.join(format!("{name}.wasm"));
    fs::read(&path).with_context(|| format!("read {}: build it with cargo xtask wasm", path.display()))
}

/// Runs another verb of the binary to its end.
pub fn run_verb(args: &[&str]) -> Result<Output> {
    let mut command = Command::new(binary()?);
    command.args(args).current_dir("/");
    command
        .output()
        .with_context(|| format!("run reprise {}", args.join(" ")))
}

/// Runs the load driver to its end.
pub fn run_bench(args: &[&str]) -> Result<Output> {
    let mut command = Command::new(program_beside("reprise-bench", "reprise-driver")?);
    command.args(args).current_dir("/");
    command
        .output()
        .with_context(|| format!("run reprise-bench {}", args.join(" ")))
}

/// Tries to copy a directory whose files come and go.
const COPY_TRIES_MAX: u32 = 100;

/// Makes `to` a copy of a directory, with everything in it. A database may be writing there. The copy begins anew if a file gets its
/// lasting name meanwhile.
pub fn copy_dir(from: &Path, to: &Path) -> Result<()> {
    for _ in 0..COPY_TRIES_MAX {
        match fs::remove_dir_all(to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("empty {}", to.display()));
            }
            _ => {}
        }
        match copy_once(from, to) {
            Err(gone) if gone.kind() == io::ErrorKind::NotFound && from.is_dir() => {}
            done => return done.with_context(|| format!("copy {} to {}", from.display(), to.display())),
        }
    }
    bail!("the files of {} never stay", from.display())
}

fn copy_once(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_once(&entry.path(), &target)?,
            false => _ = fs::copy(entry.path(), target)?,
        }
    }
    Ok(())
}
