//! A primary and its standbys, in one directory.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use reprise_test_crash::{Launch, Server, Spawned};

/// Servers that take standbys, each in a directory of its name.
pub struct Cluster {
    dir: tempfile::TempDir,
}

impl Cluster {
    pub fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        Ok(Self { dir })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn launch(&self, name: &str, args: &[&str]) -> Launch {
        let own = ["--name", name, "--ship-listen", "127.0.0.1:0"];
        Launch::new(&self.path(name)).args(&own).args(args)
    }

    pub fn primary(&self, name: &str, args: &[&str]) -> Result<Server> {
        Server::start(&self.launch(name, &["--partitions", "2"]).args(args))
    }

    pub fn standby_launch(&self, name: &str, of: &Server, args: &[&str]) -> Launch {
        let url = format!("http://{}", of.address);
        self.launch(name, &["--standby-of", &url]).args(args)
    }

    pub fn standby(&self, name: &str, of: &Server, args: &[&str]) -> Result<Server> {
        Server::start(&self.standby_launch(name, of, args))
    }
}

/// Starts a server that must end by itself, and returns its output.
pub fn refusal(launch: &Launch) -> Result<String> {
    let mut process = Spawned::start(launch)?;
    let status = process.wait()?;
    ensure!(!status.success(), "it started");
    Ok(process.errors())
}
