//! Hosts of their own on this machine, in network namespaces, where that is permitted, and the wires between them, which can be cut.

use std::{
    fs::File,
    io::ErrorKind,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::{self, Command},
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use anyhow::{Context, Result, bail, ensure};
use reprise_test_crash::skip;

static MADE: AtomicU32 = AtomicU32::new(0);

/// Hosts around a hub that forwards between them. All of it goes with this.
pub struct Network {
    hub: String,
    hosts: Vec<String>,
}

impl Network {
    /// None, with the reason printed, where network namespaces are not permitted or iproute2 is missing.
    pub fn of(hosts: usize) -> Result<Option<Self>> {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = |what: &str| format!("reprise-{}-{number}-{what}", process::id());
        let mut made = Self {
            hub: name("hub"),
            hosts: Vec::new(),
        };
        if let Err(error) = ip(&["netns", "add", &made.hub]) {
            skip("servers on hosts of their own", &format!("{error:#}"));
            made.hub.clear();
            return Ok(None);
        }
        made.in_hub(&["link", "set", "lo", "up"])?;
        // The setting belongs to the hub's namespace alone.
        on_thread(&namespace(&made.hub), || {
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("let the hub forward")
        })??;
        for host in 0..hosts {
            let own = name(&host.to_string());
            ip(&["netns", "add", &own])?;
            made.hosts.push(own.clone());
            let port = port_of(host);
            let ends = [
                "link", "add", &port, "type", "veth", "peer", "name", "wire", "netns", &own,
            ];
            made.in_hub(&ends)?;
            made.in_hub(&["address", "add", &format!("10.213.{host}.1/24"), "dev", &port])?;
            made.in_hub(&["link", "set", &port, "up"])?;
            let at = |args: &[&str]| ip(&[&["-n", &own][..], args].concat());
            at(&["link", "set", "lo", "up"])?;
            at(&["address", "add", &format!("{}/24", made.address(host)), "dev", "wire"])?;
            at(&["link", "set", "wire", "up"])?;
            at(&["route", "add", "default", "via", &format!("10.213.{host}.1")])?;
        }
        Ok(Some(made))
    }

    pub fn address(&self, host: usize) -> String {
        format!("10.213.{host}.2")
    }

    /// Returns the namespace for `Launch::in_network`.
    pub fn namespace(&self, host: usize) -> PathBuf {
        namespace(&self.hosts[host])
    }

    /// Runs this on a thread that reaches the hosts over their wires; so do the threads that it starts.
    pub fn at_hub<T: Send>(&self, run: impl FnOnce() -> T + Send) -> Result<T> {
        on_thread(&namespace(&self.hub), run)
    }

    /// Runs this on a thread of the host's, whatever becomes of its wire.
    pub fn at<T: Send>(&self, host: usize, run: impl FnOnce() -> T + Send) -> Result<T> {
        on_thread(&self.namespace(host), run)
    }

    /// Cuts the wire, so that nothing goes to the host or comes from it.
    pub fn cut(&self, host: usize) -> Result<()> {
        self.in_hub(&["link", "set", &port_of(host), "down"])
    }

    /// Lets nothing go to the host any more, without a word. The packets that it sends arrive.
    pub fn deafen(&self, host: usize) -> Result<()> {
        self.in_hub(&["route", "add", "blackhole", &format!("{}/32", self.address(host))])
    }

    /// Ends a cut and a deafness.
    pub fn mend(&self, host: usize) -> Result<()> {
        let _ = self.in_hub(&["route", "del", "blackhole", &format!("{}/32", self.address(host))]); // there may be none
        self.in_hub(&["link", "set", &port_of(host), "up"])
    }

    fn in_hub(&self, args: &[&str]) -> Result<()> {
        ip(&[&["-n", &self.hub][..], args].concat())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in self.hosts.iter().chain([&self.hub]).filter(|name| !name.is_empty()) {
            let _ = ip(&["netns", "del", name]); // the next run has other names
        }
    }
}

fn port_of(host: usize) -> String {
    format!("port{host}")
}

fn namespace(name: &str) -> PathBuf {
    Path::new("/run/netns").join(name)
}

fn enter(namespace: &Path) -> Result<()> {
    let file = File::open(namespace).context("open the network namespace")?;
    // SAFETY: the descriptor is open; the call changes this thread alone.
    let result = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
    ensure!(result == 0, "enter the namespace: {}", std::io::Error::last_os_error());
    Ok(())
}

fn on_thread<T: Send>(namespace: &Path, run: impl FnOnce() -> T + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter(namespace)?;
            Ok(run())
        });
        thread.join().expect("it does not panic beyond the test's own")
    })
}

/// Runs iproute2's `ip`.
fn ip(args: &[&str]) -> Result<()> {
    let found = ["/usr/sbin/ip", "/sbin/ip"]
        .into_iter()
        .find(|path| Path::new(path).exists());
    let output = match Command::new(found.unwrap_or("ip")).args(args).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!("iproute2's `ip` is missing"),
        output => output.context("run ip")?,
    };
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {}: {}", args.join(" "), error.trim());
    Ok(())
}
