//! `reprise token`: a token is made, let in, exchanged for another one and withdrawn, by the command line alone.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::{Command, Output},
};

use anyhow::{Result, ensure};
use reprise_test_crash::{Launch, Server, binary, procedure_wasm};

fn token(data: &Path, args: &[&str]) -> Result<Output> {
    let mut command = Command::new(binary()?);
    command.arg("token").args(args).arg("--data-dir").arg(data);
    Ok(command.output()?)
}

fn made(data: &Path, args: &[&str]) -> Result<String> {
    let output = token(data, args)?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success() && told.contains("SIGHUP"), "{told}");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn refused(data: &Path, args: &[&str], status: i32, why: &str) -> Result<()> {
    let output = token(data, args)?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(status) && told.contains(why), "{told}");
    Ok(())
}

#[test]
fn a_token_is_made_exchanged_and_revoked_by_the_command_line() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let ops = made(&data, &["new", "ops", "--role", "admin"])?;
    let first = made(&data, &["new", "app", "--role", "write"])?;
    let mut server = Server::start(&Launch::new(&data))?;
    let status = |server: &Server, token: &str| -> Result<u16> {
        let bearer = format!("Bearer {token}");
        Ok(server
            .request("GET", "/v1/tables", &[("authorization", bearer.as_str())], b"")?
            .status)
    };
    ensure!(status(&server, &ops)? == 200 && status(&server, &first)? == 200 && status(&server, "x")? == 401);

    let second = made(&data, &["new", "app", "--role", "write"])?;
    server.process().signal(libc::SIGHUP)?;
    server.wait_said("token app (write): 1 added, 2 in all")?;
    ensure!(status(&server, &first)? == 200 && status(&server, &second)? == 200);
    let list = token(&data, &["list", "--output", "json"])?;
    let list: serde_json::Value = serde_json::from_slice(&list.stdout)?;
    ensure!(list["tokens"].as_array().map(Vec::len) == Some(3), "{list}");
    let digest = list["tokens"][1]["sha256"].as_str().unwrap_or_default();
    ensure!(!list.to_string().contains(&first), "{list}");
    // A script whose variable is empty: the new token stays.
    refused(&data, &["revoke", "app", "--sha256", ""], 2, "--sha256 is empty")?;
    let revoked = token(&data, &["revoke", "app", "--sha256", &digest.to_ascii_uppercase()])?;
    ensure!(revoked.status.success());
    server.process().signal(libc::SIGHUP)?;
    server.wait_said("token app (write): 1 removed, 1 left")?;
    ensure!(status(&server, &first)? == 401 && status(&server, &second)? == 200 && status(&server, &ops)? == 200);

    refused(&data, &["revoke", "app", "--sha256", digest], 1, "no token named app")?;
    refused(&data, &["new", "app", "--role", "read"], 1, "differ in role")?;
    refused(&data, &["new", "x", "--role", "root"], 1, "root")?;
    refused(&data, &["new", "x"], 2, "--role")?;
    ensure!(token(&data, &["revoke", "app"])?.status.success());
    refused(&data, &["revoke", "ops"], 1, "last token")?;
    ensure!(status(&server, &ops)? == 200);
    let (ended, said) = server.terminate()?;
    ensure!(ended.success(), "{said}");
    Ok(())
}

/// Tokens `ops` (admin) and `app` (write, with these grants), by their digests.
fn write_tokens(data: &Path, grants: &str) -> Result<()> {
    fs::create_dir_all(data)?;
    let ops = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
    let app = "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3";
    let text = format!(
        "[[tokens]]\nname = \"ops\"\nrole = \"admin\"\nsha256 = \"{ops}\"\n\
         [[tokens]]\nname = \"app\"\nrole = \"write\"\ngrants = [{grants}]\nsha256 = \"{app}\"\n"
    );
    Ok(fs::write(data.join("reprise.toml"), text)?)
}

#[test]
fn grants_restrict_a_token_to_what_they_name() -> Result<()> {
    const OPS: (&str, &str) = ("authorization", "Bearer one");
    const APP: (&str, &str) = ("authorization", "Bearer two");
    const LINES: &[u8] = b"{\"module\":\"bank\",\"procedure\":\"balance\",\"args\":{\"account\":1}}\n\
        {\"module\":\"bank\",\"procedure\":\"total\",\"args\":{}}\n\
        {\"module\":\"bank\",\"procedure\":\"total\",\"args\":{},\"idempotency_key\":\"k\"}\n\
        {\"module\":\"unheard_of\",\"procedure\":\"p\",\"args\":{}}\n\
        {\"module\":\"bank\",\"procedure\":\"balance\",\"args\":{\"account\":1}}\n";
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    write_tokens(&data, r#""bank.open", "bank.balance", "voter""#)?;
    let mut server = Server::start(&Launch::new(&data))?;
    for module in ["bank", "voter"] {
        let put = server.request(
            "PUT",
            &format!("/v1/modules/{module}"),
            &[OPS],
            &procedure_wasm(module)?,
        )?;
        ensure!(put.status == 201, "{}", put.text());
    }
    let ask = |server: &Server, method: &str, path: &str, body: &str| {
        server
            .request(method, path, &[APP], body.as_bytes())
            .map(|answer| answer.status)
    };
    for (method, path, body, status) in [
        ("POST", "/v1/call/bank/open", r#"{"account": 1, "balance": 5}"#, 200),
        ("POST", "/v1/call/bank/balance", r#"{"account": 1}"#, 200),
        ("POST", "/v1/call/b%61nk/total", "{}", 403),
        ("POST", "/v1/call/bank/total", "{}", 403),
        ("POST", "/v1/call/unheard_of/p", "{}", 403),
        ("POST", "/v1/call/voter/results", "{}", 200),
        ("GET", "/v1/tables/bank.accounts/rows", "", 403),
        ("GET", "/v1/tables/accounts", "", 403),
        ("GET", "/v1/tables", "", 403),
        ("GET", "/v1/modules/voter", "", 200),
        ("GET", "/v1/modules/bank", "", 403),
        ("DELETE", "/v1/modules/voter", "", 403),
        ("GET", "/v1/log", "", 403),
        ("GET", "/metrics", "", 403),
        ("GET", "/v1/events", "", 403),
        ("GET", "/v1/status", "", 200),
        ("GET", "/healthz", "", 200),
    ] {
        // Twice: the server knows the head of a call again.
        for _ in 0..2 {
            let is_second_open = path.ends_with("/open");
            let answered = ask(&server, method, path, body)?;
            ensure!(
                answered == status || (is_second_open && answered == 422),
                "{method} {path}: {answered}"
            );
        }
    }
    let json = ("content-type", "application/x-ndjson");
    let batch = server.request("POST", "/v1/batch", &[APP, json], LINES)?.text();
    let told: Vec<bool> = batch.lines().map(|line| line.contains("/problems/forbidden")).collect();
    ensure!(told == [false, true, true, true, false], "{batch}");
    ensure!(!batch.contains("in service"), "it names what is not granted: {batch}");
    let keyed = ("idempotency-key", "k1");
    let opened = server.request(
        "POST",
        "/v1/call/bank/open",
        &[APP, keyed],
        br#"{"account": 2, "balance": 5}"#,
    )?;
    ensure!(opened.status == 200 && ask(&server, "GET", "/v1/idempotency/k1", "")? == 200);
    // It sends the rest of its body when it may not call that any more.
    let mut half = TcpStream::connect(&server.address)?;
    half.write_all(
        format!(
            "POST /v1/call/bank/open HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer two\r\nconnection: close\r\n\
             expect: 100-continue\r\ncontent-length: 28\r\n\r\n",
            server.address
        )
        .as_bytes(),
    )?;
    let mut told = [0; 12];
    half.read_exact(&mut told)?;
    ensure!(told == *b"HTTP/1.1 100", "its body is awaited: {told:?}");
    write_tokens(&data, r#""bank.accounts""#)?;
    server.process().signal(libc::SIGHUP)?;
    server.wait_said("token app (write on bank.accounts) is now valid")?;
    ensure!(ask(&server, "GET", "/v1/tables/bank.accounts/rows", "")? == 200);
    ensure!(ask(&server, "POST", "/v1/call/bank/balance", r#"{"account": 1}"#)? == 403);
    ensure!(
        ask(&server, "GET", "/v1/idempotency/k1", "")? == 404,
        "its procedure is not granted"
    );
    half.write_all(br#"{"account": 3, "balance": 5}"#)?;
    let mut told = String::new();
    half.read_to_string(&mut told)?;
    ensure!(told.contains("HTTP/1.1 403"), "{told}");
    write_tokens(&data, r#""bank.*""#)?;
    server.process().signal(libc::SIGHUP)?;
    server.wait_said("a grant must be MODULE, MODULE.PROCEDURE or MODULE.TABLE, not \"bank.*\"")?;
    ensure!(
        ask(&server, "GET", "/v1/tables/bank.accounts/rows", "")? == 200,
        "nothing changed"
    );
    Ok(())
}
