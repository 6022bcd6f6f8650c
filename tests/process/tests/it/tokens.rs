//! `reprise token`: a token is made, let in, exchanged for another one and withdrawn, by the command line alone.

use std::{
    path::Path,
    process::{Command, Output},
};

use anyhow::{Result, ensure};
use reprise_test_crash::{Launch, Server, binary};

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
    let revoked = token(&data, &["revoke", "app", "--sha256", digest])?;
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
