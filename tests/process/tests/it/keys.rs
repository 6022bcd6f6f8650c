//! Keyed calls with an act between try and retry: each is done once, and answered with its first outcome.

use std::{env, fs, path::Path};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Launch, Server, procedure_wasm};
use reprise_test_process::{Cluster, balance, json_of, promote, wait_reached};
use serde_json::Value;

/// Tokens `one` and `two`, by their digests.
const ONE: &str = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
const TWO: &str = "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3";
const AS_ONE: (&str, &str) = ("authorization", "Bearer one");
const AS_TWO: (&str, &str) = ("authorization", "Bearer two");

const BEGIN: i64 = 1_000_000;

/// Payments before each act: 10, or as many as `REPRISE_KEYED_CALLS` says.
fn calls() -> usize {
    let asked = env::var("REPRISE_KEYED_CALLS").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(10)
}

/// Payments of 1 from account 1 to account 2, each under a key of its own, with the answer to the first request.
#[derive(Default)]
struct Payments(Vec<Value>);

impl Payments {
    fn send(server: &Server, number: usize, who: &[(&str, &str)]) -> Result<Value> {
        let key = format!("payment-{number}");
        let headers = [who, &[("idempotency-key", &*key)]].concat();
        let body = br#"{"from": 1, "to": 2, "amount": 1}"#;
        let answer = server.until_known("POST", "/v1/call/bank/transfer", &headers, body)?;
        ensure!(answer.status == 200, "payment {number}: {}", answer.text());
        Ok(answer.json())
    }

    fn make(&mut self, server: &Server, count: usize, who: &[(&str, &str)]) -> Result<()> {
        for _ in 0..count {
            let answer = Self::send(server, self.0.len(), who)?;
            self.0.push(answer);
        }
        Ok(())
    }

    fn repeat(&self, server: &Server, who: &[(&str, &str)]) -> Result<()> {
        for (number, first) in self.0.iter().enumerate() {
            let again = Self::send(server, number, who)?;
            ensure!(
                again == *first,
                "payment {number} was answered {first} and then {again}"
            );
        }
        Ok(())
    }
}

fn open(server: &Server, who: &[(&str, &str)]) -> Result<()> {
    let put = server.request("PUT", "/v1/modules/bank", who, &procedure_wasm("bank")?)?;
    ensure!(put.status == 201, "{}", put.text());
    for account in [1, 2] {
        let body = format!(r#"{{"account": {account}, "balance": {BEGIN}}}"#);
        let opened = server.until_known("POST", "/v1/call/bank/open", who, body.as_bytes())?;
        ensure!(opened.status == 200, "{}", opened.text());
    }
    Ok(())
}

fn token(name: &str, scope: &str, sha256: &str) -> String {
    let scope = if scope.is_empty() {
        String::new()
    } else {
        format!("scope = \"{scope}\"\n")
    };
    format!("[[tokens]]\nname = \"{name}\"\nrole = \"admin\"\n{scope}sha256 = \"{sha256}\"\n")
}

fn exchange(server: &mut Server, data: &Path, tokens: &[String], told: &str) -> Result<()> {
    fs::write(data.join("reprise.toml"), tokens.concat()).context("write configuration")?;
    server.process().signal(libc::SIGHUP)?;
    server.wait_said(told)
}

#[test]
fn keys_outlive_the_rotation_of_a_token() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    fs::create_dir_all(&data)?;
    fs::write(data.join("reprise.toml"), token("app", "", ONE))?;
    let mut server = Server::start(&Launch::new(&data))?;
    open(&server, &[AS_ONE])?;
    let mut payments = Payments::default();
    payments.make(&server, calls(), &[AS_ONE])?;

    // Both tokens of one name for a while: no request is refused.
    let both = [token("app", "", ONE), token("app", "", TWO)];
    exchange(&mut server, &data, &both, "token app (admin): 1 added, 2 in all")?;
    payments.repeat(&server, &[AS_TWO])?;
    payments.make(&server, calls(), &[AS_TWO])?;
    payments.repeat(&server, &[AS_ONE])?;
    exchange(&mut server, &data, &both[1..], "token app (admin): 1 removed, 1 left")?;
    payments.repeat(&server, &[AS_TWO])?;

    // A token of another name that names the scope.
    let other = [token("app-next", "app", ONE), token("app", "", TWO)];
    exchange(
        &mut server,
        &data,
        &other,
        "token app-next (admin, scope app) is now valid",
    )?;
    payments.repeat(&server, &[AS_ONE])?;
    server.kill()?;
    let server = Server::start(&Launch::new(&data))?;
    payments.repeat(&server, &[AS_ONE])?;
    payments.repeat(&server, &[AS_TWO])?;
    let read = server.request("POST", "/v1/call/bank/balance", &[AS_ONE], br#"{"account": 2}"#)?;
    ensure!(
        read.json()["result"]["balance"].as_str() == Some(&*(BEGIN + 2 * calls() as i64).to_string()),
        "{}",
        read.text()
    );
    // The caller's name is in the log.
    let lsn = payments.0[calls()]["lsn"].as_str().context("a string")?;
    let record = server.request("GET", &format!("/v1/log/{lsn}"), &[AS_TWO], b"")?.json();
    ensure!(record["principal"] == "app", "{record}");
    Ok(())
}

#[test]
fn keys_outlive_a_deployment_a_failover_and_a_restore() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut a = cluster.primary("a", &["--safety", "2-safe"])?;
    let mut b = cluster.standby("b", &a, &["--safety", "2-safe"])?;
    wait_reached(&a, &[], ("2-safe", &[&b]))?;
    open(&a, &[])?;
    let mut payments = Payments::default();
    payments.make(&a, calls(), &[])?;
    // Another version: the same module with an empty custom section behind it.
    let next = [procedure_wasm("bank")?, vec![0, 2, 1, b'x']].concat();
    let put = a.request("PUT", "/v1/modules/bank", &[], &next)?;
    ensure!(put.json()["version"] == 2, "{}", put.text());
    payments.repeat(&a, &[])?;
    a.kill()?;
    promote(&b)?;
    payments.repeat(&b, &[])?;
    payments.make(&b, calls(), &[])?;
    b.kill()?;
    let (from, to) = (cluster.path("b"), cluster.path("restored"));
    let (from, to) = (from.to_str().context("UTF-8")?, to.to_str().context("UTF-8")?);
    let last = payments.0.last().context("one")?["lsn"].as_str().context("a string")?;
    json_of(&["restore", "--data-dir", from, "--to", to, "--lsn", last])?;
    let server = Server::start(&Launch::new(Path::new(to)))?;
    payments.repeat(&server, &[])?;
    let found = balance(&server, 2)?;
    ensure!(found == Some(BEGIN + 2 * calls() as i64), "{found:?}");
    Ok(())
}
