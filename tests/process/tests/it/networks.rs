//! A primary and its standbys on hosts of their own, whose wires are cut.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use reprise_test_crash::{Answer, Launch, Server, procedure_wasm};
use reprise_test_process::{Headers, Network, Openings, PATIENCE, durable_lsn, open_until_known};
use serde_json::Value;

/// A standby ends within this, whatever became of its primary: it waits for nothing longer than some seconds, on a machine however busy.
const STOP_MAX: Duration = Duration::from_secs(60);
/// A server that others can reach asks for a token: `one`, by its digest.
const CONFIG: &str = "[[tokens]]\nname = \"test\"\nrole = \"admin\"\n\
    sha256 = \"7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed\"\n";
const TOKEN: &str = "one";
const AUTHORIZED: Headers = &[("authorization", "Bearer one")];

struct Cluster<'n> {
    dir: tempfile::TempDir,
    network: &'n Network,
}

impl<'n> Cluster<'n> {
    fn new(network: &'n Network) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("reprise.toml"), CONFIG)?;
        Ok(Self { dir, network })
    }

    fn launch(&self, host: usize, safety: &str, args: &[&str]) -> Launch {
        let name = ["a", "b", "c"][host];
        let config = self.dir.path().join("reprise.toml").to_string_lossy().into_owned();
        let any = format!("{}:0", self.network.address(host));
        let own = [
            "--config",
            &config,
            "--name",
            name,
            "--ship-listen",
            &any,
            "--safety",
            safety,
        ];
        Launch::new(&self.dir.path().join(name))
            .listen(&any)
            .in_network(&self.network.namespace(host))
            .args(&[&own[..], args].concat())
    }

    fn primary(&self, host: usize, safety: &str) -> Result<Server> {
        Server::start(&self.launch(host, safety, &["--partitions", "2"]))
    }

    fn standby(&self, host: usize, of: &Server, safety: &str) -> Result<Server> {
        let url = format!("http://{}", of.address);
        Server::start(&self.launch(host, safety, &["--standby-of", &url, "--standby-token", TOKEN]))
    }
}

fn replication(server: &Server) -> Result<Value> {
    reprise_test_process::replication(server, AUTHORIZED)
}

fn wait_reached(server: &Server, level: &str, in_sync: &[&Server]) -> Result<()> {
    reprise_test_process::wait_reached(server, AUTHORIZED, (level, in_sync))
}

fn deploy(server: &Server) -> Result<()> {
    let deployed = server.until_known("PUT", "/v1/modules/bank", AUTHORIZED, &procedure_wasm("bank")?)?;
    ensure!(matches!(deployed.status, 200 | 201), "{}", deployed.text());
    Ok(())
}

fn open(server: &Server, account: u64) -> Result<Answer> {
    let body = format!(r#"{{"account": {account}, "balance": 1}}"#);
    server.request("POST", "/v1/call/bank/open", AUTHORIZED, body.as_bytes())
}

fn has_account(server: &Server, account: u64) -> Result<bool> {
    let body = format!(r#"{{"account": {account}}}"#);
    let answer = server.request("POST", "/v1/call/bank/balance", AUTHORIZED, body.as_bytes())?;
    Ok(answer.status == 200)
}

/// Waits until readers of a standby see all that is durable on its primary.
fn wait_shown(primary: &Server, standby: &Server) -> Result<()> {
    let last = (durable_lsn(primary, AUTHORIZED)? - 1).to_string();
    let fresh = [("reprise-min-lsn", &*last), ("reprise-max-wait-ms", "60000")];
    let headers = [AUTHORIZED, &fresh].concat();
    let shown = standby.request("POST", "/v1/call/bank/total", &headers, b"{}")?;
    ensure!(shown.status == 200, "{}", shown.text());
    Ok(())
}

fn check_accounts(server: &Server, answered: &[u64]) -> Result<()> {
    for account in answered {
        ensure!(
            has_account(server, *account)?,
            "{account} was answered, of {}",
            answered.len()
        );
    }
    Ok(())
}

/// Promotes a server. At quorum it needs `accepts_loss` if it can't know whether others have more.
fn promote(server: &Server, accepts_loss: bool) -> Result<()> {
    let path = format!("/v1/replication/promote?force=true&accept_loss={accepts_loss}");
    let answer = server.request("POST", &path, AUTHORIZED, b"")?;
    ensure!(answer.status == 200, "{}", answer.text());
    Ok(())
}

/// The primary's own clients still reach it, and it runs their calls. It answers none of them, and the others have every write answered
/// before.
#[test]
fn a_primary_at_quorum_whose_wire_is_cut_answers_nothing_and_comes_back_as_a_standby() -> Result<()> {
    let Some(network) = Network::of(3)? else {
        return Ok(());
    };
    network.at_hub(|| {
        let cluster = Cluster::new(&network)?;
        let mut a = cluster.primary(0, "quorum")?;
        let b = cluster.standby(1, &a, "quorum")?;
        let c = cluster.standby(2, &a, "quorum")?;
        wait_reached(&a, "quorum", &[&b, &c])?;
        deploy(&a)?;
        let load = network.at(0, || Openings::start(&a.address, AUTHORIZED))?;
        load.wait(200)?;
        network.cut(0)?;
        let alone = network.at(0, || {
            let until = Instant::now() + PATIENCE;
            while replication(&a)?["reached"] == "quorum" {
                ensure!(Instant::now() < until, "it does not notice");
                thread::sleep(Duration::from_millis(10));
            }
            open(&a, 9_000_000)
        })??;
        ensure!(alone.status != 200, "alone it answers {}", alone.text());
        let answered = load.end();

        // The others' operator: no one else may still follow the old primary.
        let asked = Instant::now();
        c.terminate()?;
        ensure!(asked.elapsed() < STOP_MAX, "it ends after {:?}", asked.elapsed());
        promote(&b, true)?;
        let c = cluster.standby(2, &b, "quorum")?;
        wait_reached(&b, "quorum", &[&c])?;
        check_accounts(&b, &answered)?;
        let written = open_until_known(&b, 8_000_000, AUTHORIZED)?;
        ensure!(written.status == 200, "{}", written.text());

        // The old primary does not know of the new one. Without its wire, no standby confirms its writes.
        network.mend(0)?;
        let deposed = open(&a, 9_000_001)?;
        ensure!(deposed.status != 200, "deposed it answers {}", deposed.text());
        a.kill()?;
        let a = cluster.standby(0, &b, "quorum")?;
        wait_reached(&b, "quorum", &[&a, &c])?;
        wait_shown(&b, &a)?;
        check_accounts(&a, &answered)?;
        ensure!(
            has_account(&a, 8_000_000)? && !has_account(&a, 9_000_001)?,
            "it has the new primary's"
        );
        Ok(())
    })?
}

/// A wire that carries one way alone ends no connection: the primary hears of it because nothing is confirmed any more.
#[test]
fn a_2_safe_primary_goes_on_without_a_standby_that_hears_nothing_and_takes_it_back() -> Result<()> {
    let Some(network) = Network::of(2)? else {
        return Ok(());
    };
    network.at_hub(|| {
        let cluster = Cluster::new(&network)?;
        let mut a = cluster.primary(0, "2-safe")?;
        let b = cluster.standby(1, &a, "2-safe")?;
        wait_reached(&a, "2-safe", &[&b])?;
        deploy(&a)?;
        let load = Openings::start(&a.address, AUTHORIZED);
        load.wait(200)?;
        for cut in [Network::deafen, Network::cut] {
            cut(&network, 1)?;
            wait_reached(&a, "1-safe", &[])?;
            load.wait(200)?;
            network.mend(1)?;
            wait_reached(&a, "2-safe", &[&b])?;
            load.wait(200)?;
        }
        a.kill()?;
        let answered = load.end();
        promote(&b, false)?;
        check_accounts(&b, &answered)
    })?
}
