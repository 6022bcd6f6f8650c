//! An etcd of one server, for these tests.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::{Connection, ports::free_port};

/// Longest wait. Only a mistake makes a wait end by it.
const PATIENCE: Duration = Duration::from_secs(60);

/// An etcd that ends when this is dropped.
pub struct Etcd {
    dir: PathBuf,
    /// Ports for clients, and for other servers, of which there are none.
    ports: (u16, u16),
    /// Certificate and key, from the first start after `secure` on.
    tls: Option<(PathBuf, PathBuf)>,
    child: Option<Child>,
}

/// The only user of a secured etcd who may write the server's keys, in the form of a URL.
const USER: &str = "reprise:p%40ss%3Aword";
const PASSWORD: &str = "p@ss:word";
/// `/reprise/`, and the first key without that prefix, in the form of the gateway.
const KEYS: (&str, &str) = ("L3JlcHJpc2Uv", "L3JlcHJpc2Uw");

/// Checks that there is an etcd to run.
pub fn has_etcd() -> Result<(), String> {
    let asked = Command::new("etcd").arg("--version").stdin(Stdio::null()).output();
    match asked.is_ok_and(|output| output.status.success()) {
        true => Ok(()),
        false => Err("there is no etcd here (Debian: etcd-server)".into()),
    }
}

impl Etcd {
    /// Starts an etcd with its files in this directory.
    pub fn start(dir: &Path) -> Result<Self> {
        let mut etcd = Self {
            dir: dir.to_owned(),
            ports: (free_port()?, free_port()?),
            tls: None,
            child: None,
        };
        etcd.go_on()?;
        Ok(etcd)
    }

    /// Returns the URL for clients, with user and password if it is secured.
    pub fn url(&self) -> String {
        let (port, is_secured) = (self.ports.0, self.tls.is_some());
        match is_secured {
            true => format!("https://{USER}@127.0.0.1:{port}"),
            false => format!("http://127.0.0.1:{port}"),
        }
    }

    /// Restarts it with TLS, client certificates and a password. Server and clients have one self-signed certificate.
    pub fn secure(&mut self, certificate: &Path, key: &Path) -> Result<()> {
        let mut plain = Connection::open(&format!("127.0.0.1:{}", self.ports.0))?;
        let keys = json!({"permType": "READWRITE", "key": KEYS.0, "range_end": KEYS.1});
        for (path, body) in [
            ("user/add", json!({"name": "root", "password": "root"})),
            ("role/add", json!({"name": "root"})),
            ("user/grant", json!({"user": "root", "role": "root"})),
            ("user/add", json!({"name": "reprise", "password": PASSWORD})),
            ("role/add", json!({"name": "reprise"})),
            ("role/grant", json!({"name": "reprise", "perm": keys})),
            ("user/grant", json!({"user": "reprise", "role": "reprise"})),
            ("enable", json!({})),
        ] {
            let path = format!("/v3/auth/{path}");
            let answer = plain.request("POST", &path, &[], body.to_string().as_bytes());
            let answer = answer.map_err(|cut| cut.error)?;
            ensure!(answer.status == 200, "{path}: {}", answer.text());
        }
        self.kill()?;
        self.tls = Some((certificate.to_owned(), key.to_owned()));
        self.go_on()
    }

    /// Starts it again on its files.
    pub fn go_on(&mut self) -> Result<()> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let (clients, peers) = (
            format!("{scheme}://127.0.0.1:{}", self.ports.0),
            format!("http://127.0.0.1:{}", self.ports.1),
        );
        let mut command = Command::new("etcd");
        command.args(["--name", "e", "--logger", "zap", "--log-level", "error", "--data-dir"]);
        command.arg(&self.dir);
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("e={peers}")]);
        if let Some((certificate, key)) = &self.tls {
            command.arg("--cert-file").arg(certificate).arg("--key-file").arg(key);
            command
                .arg("--client-cert-auth")
                .arg("--trusted-ca-file")
                .arg(certificate);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().context("start etcd")?);
        let until = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(("127.0.0.1", self.ports.0)).is_err() {
            ensure!(Instant::now() < until, "etcd does not listen at {clients}");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Kills it with `kill -9`.
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
