//! The guide's tutorial, followed to the letter: the commands and files of its pages, run in a fresh directory, end in the working shop.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Launch, Server, binary};
use serde_json::{Value, json};

/// The address that the pages name; the server under test has another one.
const ADDRESS: &str = "http://127.0.0.1:8080";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page(name: &str) -> Result<String> {
    let path = repository().join("docs/guide").join(name);
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// The blocks of this language, one after the other.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let start = format!("```{language}\n");
    let blocks = page.split(&start).skip(1);
    blocks
        .filter_map(|rest| rest.split("```").next())
        .map(str::to_owned)
        .collect()
}

/// Returns the commands that a reader types, except those that run until they are stopped. The server and the folder of files exist
/// already.
fn script(page: &str) -> String {
    let lines = blocks(page, "sh").concat();
    let goes_on = |line: &&str| line.starts_with("reprise serve") || line.starts_with("python3 -m http.server");
    lines
        .lines()
        .filter(|line| !goes_on(line))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// Runs a shell in `dir` that finds our binary and our server. Returns its output.
fn follow(script: &str, dir: &Path, bin: &Path, url: &str) -> Result<String> {
    let own = env::current_exe().context("find this program")?;
    let target = own.ancestors().nth(3).context("a test lies in target/release/deps")?;
    let path = env::join_paths(
        [bin.to_owned()]
            .into_iter()
            .chain(env::split_paths(&env::var_os("PATH").unwrap_or_default())),
    )?;
    let mut command = Command::new("bash");
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        // Cargo's variables describe this test's own workspace, not another crate.
        if text.starts_with("CARGO_") && text != "CARGO_HOME" || text.starts_with("REPRISE_") {
            command.env_remove(&name);
        }
    }
    command
        .args(["-e", "-u", "-x", "-c", &script.replace(ADDRESS, url)])
        .current_dir(dir)
        .stdin(Stdio::null());
    command.env("PATH", path).env("REPRISE_URL", url);
    command
        .env("CARGO_NET_OFFLINE", "true")
        .env("CARGO_TARGET_DIR", target.join("tmp/installed"));
    let output = command.output().context("start bash")?;
    let (said, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(output.status.success(), "{said}{errors}");
    Ok(said.into_owned())
}

fn call(server: &Server, procedure: &str, args: Value) -> Result<Value> {
    let answer = server.call(&format!("tickets/{procedure}"), &args.to_string())?;
    ensure!(answer.status == 200, "{procedure}: {}", answer.text());
    Ok(answer.json()["result"].clone())
}

#[test]
fn the_tutorial_ends_in_the_working_shop() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (bin, data) = (dir.path().join("bin"), dir.path().join("data"));
    fs::create_dir_all(&bin)?;
    symlink(fs::canonicalize(binary()?)?, bin.join("reprise"))?;
    let mut server = Server::start(&Launch::new(&data).args(&["--partitions", "2"]))?;
    server.wait_ready()?;
    let url = format!("http://{}", server.address);

    let first = follow(&script(&page("first-module.md")?), dir.path(), &bin, &url)?;
    for expected in ["2 passed", r#""result":"5""#, r#"shop.hit {"id":"7","times":"3"}"#] {
        ensure!(
            first.replace("\": ", "\":").contains(expected),
            "{expected} is not in:\n{first}"
        );
    }

    // The step that `make run` takes first.
    server.deploy("tickets")?;
    let tickets = page("tickets.md")?;
    let shop = follow(&script(&tickets), &repository(), &bin, &url)?;
    ensure!(shop.contains("held") && shop.contains("tickets.hold"), "{shop}");

    // The page of the shop may ask the server once the configuration names the origin of the page.
    let settings = blocks(&tickets, "toml").concat();
    fs::write(data.join("reprise.toml"), &settings)?;
    server.process().signal(libc::SIGHUP)?;
    server.wait_said("configuration reload")?;
    let origin = settings.split('"').nth(1).context("an origin")?;
    let asked = [("origin", origin), ("access-control-request-method", "POST")];
    let allowed = server.request("OPTIONS", "/v1/call/tickets/hold", &asked, b"")?;
    ensure!(
        allowed.header("access-control-allow-origin") == Some(origin),
        "{}",
        allowed.text()
    );
    let html = fs::read_to_string(repository().join("procedures/tickets/web/index.html")).context("read the page")?;
    ensure!(html.contains("/v1/call/tickets/${procedure}"));

    // The page's actions: hold, pay, see.
    let held = call(&server, "hold", json!({"event": 1, "customer": 7, "count": 2}))?;
    let order = json!({"event": 1, "customer": 7, "hold": held["hold"], "payment": "card"});
    call(&server, "checkout", order)?;
    let seats = call(&server, "seats", json!({"event": 1}))?;
    let sold = seats
        .as_array()
        .context("a list")?
        .iter()
        .filter(|seat| seat["state"] == "sold")
        .count();
    ensure!(sold == 2, "{seats}");
    Ok(())
}
