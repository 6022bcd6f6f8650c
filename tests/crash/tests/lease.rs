//! Servers by a lease in etcd: who may not have it says why, and a switch-over that can't be done leaves the primary.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Etcd, Launch, Server, Spawned, etcd_server, skip};
use serde_json::Value;

struct Nodes<'a> {
    program: &'a Path,
    root: &'a Path,
    etcd: Etcd,
}

impl Nodes<'_> {
    fn launch(&self, name: &str, primary: Option<&Server>) -> Launch {
        let mut args = vec!["--name", name, "--safety", "2-safe", "--ship-listen", "127.0.0.1:0"];
        let etcd = self.etcd.url();
        args.extend(["--lease-etcd", &etcd, "--lease-ttl-ms", "2000", "--partitions", "1"]);
        let url = primary.map(|primary| format!("http://{}", primary.address));
        args.extend(url.iter().flat_map(|url| ["--standby-of", url]));
        let launch = Launch::new(&self.root.join(name)).args(&args);
        launch.program(self.program)
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

fn open_account(server: &Server, account: u32) -> Result<u16> {
    let args = format!("{{\"account\": {account}, \"balance\": 1}}");
    Ok(server.call("bank/open", &args)?.status)
}

fn run(program: &Path, root: &Path) -> Result<()> {
    let etcd = Etcd::start(&root.join("etcd"))?;
    let mut nodes = Nodes { program, root, etcd };
    let mut a = Server::start(&nodes.launch("a", None))?;
    a.deploy("bank")?;
    let b = Server::start(&nodes.launch("b", Some(&a)))?;
    // Only what etcd knows lets it take over.
    wait_until("it is recorded as in sync", || {
        Ok(replication(&a)?["lease"]["in_sync"][0] == "b")
    })?;
    // Nobody could have the lease behind the one that gives it away.
    nodes.etcd.kill()?;
    let refused = b.request("POST", "/v1/replication/promote", &[], b"")?;
    let text = refused.text();
    ensure!(refused.status == 503 && text.contains("etcd does not tell"), "{text}");
    ensure!(open_account(&a, 1)? == 200, "it is the primary as before");
    nodes.etcd.go_on()?;
    a.kill()?;
    wait_until("it takes over", || Ok(replication(&b)?["role"] == "primary"))?;
    ensure!(open_account(&b, 2)? == 200 && open_account(&b, 1)? != 200);
    // With the flags that it had.
    let mut again = Spawned::start(&nodes.launch("a", None))?;
    let (status, told) = (again.wait()?, again.errors());
    ensure!(status.code() == Some(1) && told.contains("error: "), "{status}: {told}");
    ensure!(told.contains("b is the primary at http://"), "{told}");
    b.terminate()?;
    Ok(())
}

#[test]
fn who_may_not_have_the_lease_says_why_and_a_switch_over_without_etcd_is_refused() {
    const NAME: &str = "who_may_not_have_the_lease_says_why_and_a_switch_over_without_etcd_is_refused";
    let program = match etcd_server() {
        Ok(program) => program,
        Err(why) => return skip(NAME, &why),
    };
    let dir = tempfile::tempdir().expect("a directory");
    if let Err(error) = run(&program, dir.path()) {
        panic!("{error:#}");
    }
}
