//! Servers with a lease in etcd. A server that can't have the lease says why, and a failed switch-over leaves the primary in place.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Etcd, Launch, Server, Spawned, has_etcd, skip};
use serde_json::Value;

struct Nodes<'a> {
    root: &'a Path,
    etcd: Etcd,
}

impl Nodes<'_> {
    fn launch(&self, name: &str, primary: Option<&Server>) -> Launch {
        let mut args = vec!["--name", name, "--safety", "2-safe", "--ship-listen", "127.0.0.1:0"];
        let etcd = self.etcd.url();
        // The lease is long enough for the steps while etcd is away.
        args.extend(["--lease-etcd", &etcd, "--lease-ttl-ms", "10000", "--partitions", "1"]);
        let url = primary.map(|primary| format!("http://{}", primary.address));
        args.extend(url.iter().flat_map(|url| ["--standby-of", url]));
        Launch::new(&self.root.join(name)).args(&args)
    }
}

fn replication(server: &Server) -> Result<Value> {
    serde_json::from_str(&server.get("/v1/replication")?.text()).context("what is told of standbys")
}

fn wait_until(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    for _ in 0..3_000 {
        if holds()? {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    anyhow::bail!("waited in vain: {what}")
}

const OPEN: &str = "/v1/call/bank/open";

fn args_of(account: u32) -> String {
    format!("{{\"account\": {account}, \"balance\": 1}}")
}

/// Opens an account, under a key if one is given.
fn open_account(server: &Server, account: u32, key: &[(&str, &str)]) -> Result<u16> {
    Ok(server.request("POST", OPEN, key, args_of(account).as_bytes())?.status)
}

/// Opens an account, and tries again while standbys or the lease are missing.
fn open_until_known(server: &Server, account: u32, key: &[(&str, &str)]) -> Result<u16> {
    Ok(server
        .until_known("POST", OPEN, key, args_of(account).as_bytes())?
        .status)
}

fn run(root: &Path) -> Result<()> {
    let etcd = Etcd::start(&root.join("etcd"))?;
    let mut nodes = Nodes { root, etcd };
    let mut a = Server::start(&nodes.launch("a", None))?;
    a.deploy("bank")?;
    let b = Server::start(&nodes.launch("b", Some(&a)))?;
    // Only the record in etcd lets the standby take over.
    wait_until("it is recorded as in sync, and knows it", || {
        let knows_it = replication(&b)?["standbys"][0]["in_sync"] == true;
        Ok(knows_it && replication(&a)?["lease"]["in_sync"][0] == "b")
    })?;
    // While etcd is away, no successor could take the lease that the primary gives away.
    nodes.etcd.kill()?;
    let refused = b.request("POST", "/v1/replication/promote", &[], b"")?;
    let text = refused.text();
    ensure!(refused.status == 503 && text.contains("etcd does not tell"), "{text}");
    let first = [("idempotency-key", "first")];
    let status = open_account(&a, 1, &first)?;
    nodes.etcd.go_on()?;
    // The primary has its lease again if it ended meanwhile.
    ensure!(
        status == 200 || open_until_known(&a, 1, &first)? == 200,
        "it is the primary as before"
    );
    a.kill()?;
    wait_until("it takes over, and has the lease", || {
        let told = replication(&b)?;
        Ok(told["role"] == "primary" && told["lease"]["state"] == "held")
    })?;
    ensure!(open_until_known(&b, 2, &[("idempotency-key", "second")])? == 200);
    ensure!(open_account(&b, 1, &[])? != 200, "it has what was answered");
    // The server starts with its former flags.
    let mut again = Spawned::start(&nodes.launch("a", None))?;
    let (status, told) = (again.wait()?, again.errors());
    ensure!(status.code() == Some(1) && told.contains("error: "), "{status}: {told}");
    ensure!(told.contains("b is the primary at http://"), "{told}");
    b.terminate()?;
    Ok(())
}

#[test]
fn server_without_the_lease_says_why_and_a_switch_over_without_etcd_is_refused() {
    const NAME: &str = "server_without_the_lease_says_why_and_a_switch_over_without_etcd_is_refused";
    if let Err(why) = has_etcd() {
        return skip(NAME, &why);
    }
    let dir = tempfile::tempdir().expect("a directory");
    if let Err(error) = run(dir.path()) {
        panic!("{error:#}");
    }
}
