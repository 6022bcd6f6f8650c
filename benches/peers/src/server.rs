//! A peer's server as a process of our own: a free port, its files, its end.

use std::{
    fs::{self, File},
    io::Read,
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

const START_WAIT_MAX: Duration = Duration::from_secs(60);
const END_WAIT_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);
/// Bytes of a server's output that an error shows.
const SHOWN_MAX: usize = 2_000;

/// A running process. It ends with this.
pub struct Server {
    child: Child,
    pub port: u16,
    output: PathBuf,
    end_signal: i32,
}

/// A port that was free a moment ago.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("look for a free port")?;
    Ok(listener.local_addr()?.port())
}

/// A connection that sends each request at once.
pub fn connect(port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A connection that is not measured, and the bytes that it received.
pub struct SetupConnection {
    pub stream: TcpStream,
    pub received: Vec<u8>,
}

impl SetupConnection {
    pub fn open(port: u16) -> Result<Self> {
        Ok(Self {
            stream: connect(port)?,
            received: Vec::new(),
        })
    }

    /// Waits for more bytes. False: the server closed the connection.
    pub fn receive(&mut self) -> Result<bool> {
        let mut piece = [0; 4096];
        let read = self.stream.read(&mut piece)?;
        self.received.extend_from_slice(&piece[..read]);
        Ok(read > 0)
    }
}

/// Position of a program in the folders of PATH, or in these first.
pub fn find_program(name: &str, first: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = first.iter().cloned().chain(std::env::split_paths(&path));
    folders
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

/// The first line that a program prints.
pub fn first_line(program: &Path, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).output();
    let output = output.with_context(|| format!("run {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

impl Server {
    /// Starts it and waits until `is_ready`. Its output goes to a file in `dir`; `end_signal` asks it to end.
    ///
    /// # Errors
    /// It ended, or is not ready in time.
    pub fn start(
        command: &mut Command,
        dir: &Path,
        port: u16,
        end_signal: i32,
        is_ready: &dyn Fn(u16) -> bool,
    ) -> Result<Self> {
        let output = dir.join("output");
        let file = File::create(&output).with_context(|| format!("create {}", output.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn();
        let child = child.with_context(|| format!("start {}", command.get_program().display()))?;
        let mut server = Self {
            child,
            port,
            output,
            end_signal,
        };
        let until = Instant::now() + START_WAIT_MAX;
        while !is_ready(port) {
            let ended = server.child.try_wait()?;
            if ended.is_some() || Instant::now() > until {
                let program = command.get_program().display();
                bail!("{program} is not ready ({ended:?}): {}", server.printed());
            }
            thread::sleep(POLL);
        }
        Ok(server)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The end of its output.
    fn printed(&self) -> String {
        let text = fs::read(&self.output).unwrap_or_default();
        let shown = &text[text.len().saturating_sub(SHOWN_MAX)..];
        String::from_utf8_lossy(shown).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SAFETY: a plain system call on a child that is not yet waited for.
        let _ = unsafe { libc::kill(self.child.id() as libc::pid_t, self.end_signal) }; // it may have ended by itself
        let until = Instant::now() + END_WAIT_MAX;
        while Instant::now() < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(POLL);
        }
        let _ = self.child.kill(); // waited for below
        let _ = self.child.wait();
    }
}
