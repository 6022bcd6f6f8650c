//! An etcd of one server, of the tests' own.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::ports::free_port;

/// Waits that end only by a mistake.
const PATIENCE: Duration = Duration::from_secs(60);

/// It ends with this.
pub struct Etcd {
    dir: PathBuf,
    /// For clients, and for other servers, of which there are none.
    ports: (u16, u16),
    child: Option<Child>,
}

/// The server with the feature `etcd`. Err: it was not built here, or there is no etcd to run.
pub fn etcd_server() -> Result<PathBuf, String> {
    if !Command::new("etcd")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
    {
        return Err("there is no etcd here (Debian: etcd-server)".into());
    }
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/etcd/reprise");
    let path = env::var_os("REPRISE_ETCD_BIN").map_or(built, PathBuf::from);
    path.canonicalize()
        .map_err(|_| "no server with etcd is built: cargo xtask etcd".to_owned())
}

impl Etcd {
    /// With its files in this directory.
    pub fn start(dir: &Path) -> Result<Self> {
        let mut etcd = Self {
            dir: dir.to_owned(),
            ports: (free_port()?, free_port()?),
            child: None,
        };
        etcd.go_on()?;
        Ok(etcd)
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.0)
    }

    /// Starts it where it was.
    pub fn go_on(&mut self) -> Result<()> {
        let (clients, peers) = (self.url(), format!("http://127.0.0.1:{}", self.ports.1));
        let mut command = Command::new("etcd");
        command.args(["--name", "e", "--logger", "zap", "--log-level", "error", "--data-dir"]);
        command.arg(&self.dir);
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("e={peers}")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().context("start etcd")?);
        let until = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(("127.0.0.1", self.ports.0)).is_err() {
            ensure!(Instant::now() < until, "etcd does not listen at {clients}");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// kill -9.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().context("kill etcd")?;
            child.wait().context("wait for etcd")?;
        }
        Ok(())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
