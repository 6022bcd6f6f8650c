//! TLS: clients, the command line and standbys over it, and what becomes of those who do not speak it.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    ops::Range,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use reprise_api::ProblemKind;
use reprise_client::{Client, ClientError};
use reprise_test_crash::{Etcd, Launch, Server, Spawned, free_address, has_etcd, procedure_wasm, run_verb, skip};
use serde_json::{Value, json};

use crate::reload::{ONE, TWO, token};

/// A wait that ends only by a mistake.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Certificate {
    dir: PathBuf,
}

impl Certificate {
    /// Makes a certificate of a server on this machine, signed by itself.
    pub fn new(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let own = Self { dir: dir.to_owned() };
        own.renew()?;
        Ok(own)
    }

    fn renew(&self) -> Result<()> {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into(), "localhost".into()])?;
        fs::write(self.path("cert.pem"), made.cert.pem())?;
        Ok(fs::write(self.path("key.pem"), made.signing_key.serialize_pem())?)
    }

    /// Replaces it by one that is valid from one year to another, and may sign others where `signs` says so, as
    /// `openssl req -x509` makes them.
    fn renew_for(&self, name: &str, years: Range<i32>, signs: bool) -> Result<()> {
        let mut params = rcgen::CertificateParams::new(vec![name.into()])?;
        params.not_before = rcgen::date_time_ymd(years.start, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.end, 1, 1);
        if signs {
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        }
        let key = rcgen::KeyPair::generate()?;
        fs::write(self.path("cert.pem"), params.self_signed(&key)?.pem())?;
        Ok(fs::write(self.path("key.pem"), key.serialize_pem())?)
    }

    /// Replaces it by one without a common name, which etcd's gateway refuses beside a password.
    fn drop_common_name(&self) -> Result<()> {
        let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".into()])?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(rcgen::DnType::OrganizationName, "reprise");
        let key = rcgen::KeyPair::generate()?;
        fs::write(self.path("cert.pem"), params.self_signed(&key)?.pem())?;
        Ok(fs::write(self.path("key.pem"), key.serialize_pem())?)
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    pub fn client(&self, server: &Server) -> Result<Client> {
        let trusted = fs::read(self.path("cert.pem"))?;
        Ok(Client::trusting(&url(server), None, Some(&trusted))?)
    }

    /// Listens by it, and answers.
    pub fn serve(&self, data_dir: &Path, args: &[&str]) -> Result<Server> {
        let (cert, key) = (self.path("cert.pem"), self.path("key.pem"));
        let args = [&["--tls-cert", &cert, "--tls-key", &key], args].concat();
        let server = Spawned::start(&Launch::new(data_dir).args(&args))?.listen()?;
        let client = self.client(&server)?;
        wait("it is ready", || {
            Ok(client.readiness().is_ok_and(|readiness| readiness.ready))
        })?;
        Ok(server)
    }
}

fn url(server: &Server) -> String {
    format!("https://{}", server.address)
}

pub fn wait(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while !is_so()? {
        ensure!(Instant::now() < until, "never: {what}");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn balance(client: &Client, account: u32) -> Result<Value> {
    let called = client.call("bank", "balance", &json!({"account": account}))?;
    Ok(serde_json::to_value(&called.answer)?["result"]["balance"].clone())
}

/// Says a request in plain, and reads all that is answered.
fn say(server: &Server, bytes: &[u8]) -> Result<String> {
    let mut stream = TcpStream::connect(&server.address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(bytes)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).context("the end of the answer")?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[test]
fn clients_come_by_tls_and_by_nothing_else() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let certificate = Certificate::new(&dir.path().join("tls"))?;
    let data = dir.path().join("data");
    fs::create_dir_all(&data)?;
    fs::write(data.join("reprise.toml"), "[http]\nheader_wait_s = 5\n")?;
    let server = certificate.serve(&data, &[])?;
    let client = certificate.client(&server)?;
    client.deploy_module("bank", procedure_wasm("bank")?, &[])?;
    client.call("bank", "open", &json!({"account": 1, "balance": 10}))?;
    ensure!(balance(&client, 1)? == "10");
    // A client that does not know the certificate sends nothing.
    match Client::new(&url(&server), None)?.modules() {
        Err(ClientError::Trust(why)) => ensure!(why.contains("name the certificate that signed it"), "{why}"),
        other => bail!("{other:?}"),
    }
    // Plain HTTP gets an answer with the remedy. A client that speaks neither, or says nothing, is disconnected.
    let told = say(&server, b"GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n")?;
    ensure!(told.starts_with("HTTP/1.1 400") && told.contains("https://"), "{told}");
    ensure!(
        say(&server, &[0x16; 600]).is_ok_and(|told| !told.contains("HTTP")),
        "no TLS"
    );
    let begun = Instant::now();
    let silent: Vec<_> = (0..50).map(|_| TcpStream::connect(&server.address)).collect();
    ensure!(balance(&client, 1)? == "10", "others are served meanwhile");
    for stream in silent {
        let mut stream = stream?;
        stream.set_read_timeout(Some(PATIENCE))?;
        ensure!(matches!(stream.read(&mut [0; 16]), Ok(0) | Err(_)));
    }
    ensure!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    // The command line.
    let trusted = certificate.path("cert.pem");
    let shown = run_verb(&["module", "list", "--url", &url(&server), "--ca-cert", &trusted])?;
    ensure!(String::from_utf8_lossy(&shown.stdout).contains("bank"), "{shown:?}");
    let shown = run_verb(&["module", "list", "--url", &url(&server)])?;
    ensure!(
        !shown.status.success() && String::from_utf8_lossy(&shown.stderr).contains("does not trust the certificate"),
        "{shown:?}"
    );
    // A page of this server comes from https.
    ensure!(page(&certificate, &server, "https")? == 200 && page(&certificate, &server, "http")? == 403);
    Ok(())
}

/// The status that a page of this address gets by `scheme`, asked by another program's TLS.
fn page(certificate: &Certificate, server: &Server, scheme: &str) -> Result<u16> {
    const ASK: &str = "const [ca, url, origin] = process.argv.slice(1);\n\
        const options = {ca: require('fs').readFileSync(ca), headers: {origin}};\n\
        require('https').get(url, options, (answer) => console.log(answer.resume().statusCode));";
    let origin = format!("{scheme}://{}", server.address);
    let asked = Command::new("node")
        .args(["-e", ASK, &certificate.path("cert.pem")])
        .args([format!("{}/v1/tables", url(server)), origin])
        .output()
        .context("node")?;
    let (told, said) = (
        String::from_utf8_lossy(&asked.stdout),
        String::from_utf8_lossy(&asked.stderr),
    );
    told.trim().parse().with_context(|| said.into_owned())
}

#[test]
fn a_certificate_is_exchanged_while_the_server_runs_and_wrong_files_change_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let certificate = Certificate::new(&dir.path().join("tls"))?;
    let mut server = certificate.serve(&dir.path().join("data"), &[])?;
    let before = certificate.client(&server)?;
    before.status()?;
    fs::write(certificate.path("key.pem"), "no key")?;
    server.process().signal(libc::SIGHUP)?;
    server.wait_said("the server keeps its certificate: ")?;
    certificate.client(&server)?.status()?;
    certificate.renew()?;
    server.process().signal(libc::SIGHUP)?;
    server.wait_said("new connections get the new certificate")?;
    certificate.client(&server)?.status()?;
    before.status().context("a connection that was open stays so")?;
    // A certificate that clients would refuse replaces nothing; the same certificate again is no change.
    let taken = certificate.client(&server)?;
    for (years, told) in [
        (2001..2002, " is expired: it ended "),
        (2200..2201, " is not valid yet: it begins in "),
    ] {
        certificate.renew_for("127.0.0.1", years, false)?;
        server.process().signal(libc::SIGHUP)?;
        server.wait_said(&format!("cert.pem{told}"))?;
        taken.status()?;
    }
    fs::write(certificate.path("cert.pem"), "-----BEGIN CERTIFICATE-----\nAAAA\n")?;
    server.process().signal(libc::SIGHUP)?;
    server.wait_said("cert.pem: is no PEM file: the line `-----END CERTIFICATE-----` is missing")?;
    Ok(())
}

/// A reload comes into force whole, or not at all.
#[test]
fn reload_with_wrong_certificate_changes_no_token() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let certificate = Certificate::new(&dir.path().join("tls"))?;
    let data = dir.path().join("data");
    fs::create_dir_all(&data)?;
    let config = data.join("reprise.toml");
    fs::write(&config, token("first", "admin", ONE))?;
    let mut server = certificate.serve(&data, &[])?;
    let trusted = fs::read(certificate.path("cert.pem"))?;
    let as_one = Client::trusting(&url(&server), Some("one"), Some(&trusted))?;
    let as_two = Client::trusting(&url(&server), Some("two"), Some(&trusted))?;
    as_one.status()?;
    fs::write(&config, token("second", "read", TWO))?;
    let key = fs::read(certificate.path("key.pem"))?;
    fs::write(certificate.path("key.pem"), "no key")?;
    server.process().signal(libc::SIGHUP)?;
    server.wait_said("nothing changed: the server keeps its certificate: ")?;
    as_one.status().context("the token is still valid")?;
    ensure!(as_two.status().is_err(), "the token came into force");
    fs::write(certificate.path("key.pem"), key)?;
    server.process().signal(libc::SIGHUP)?;
    server.wait_said("token second (read) is now valid")?;
    as_two.status()?;
    ensure!(as_one.status().is_err(), "it was withdrawn");
    Ok(())
}

#[test]
fn certificate_that_may_sign_others_is_taken_when_its_client_names_it_and_for_its_names_and_time_alone() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let certificate = Certificate::new(&dir.path().join("tls"))?;
    for (name, years, expected) in [
        ("127.0.0.1", 2020..2200, None),
        ("127.0.0.1", 2001..2002, Some("expired")),
        ("10.9.8.7", 2020..2200, Some("not valid for name")),
    ] {
        certificate.renew_for(name, years, true)?;
        let (cert, key) = (certificate.path("cert.pem"), certificate.path("key.pem"));
        let data = dir.path().join(format!("{name}{}", expected.is_some()));
        let launch = Launch::new(&data).args(&["--tls-cert", &cert, "--tls-key", &key]);
        let mut server = Spawned::start(&launch)?.listen()?;
        let asked = run_verb(&["module", "list", "--url", &url(&server), "--ca-cert", &cert])?;
        let said = String::from_utf8_lossy(&asked.stderr).into_owned();
        match expected {
            None => ensure!(asked.status.success(), "{said}"),
            Some(why) => ensure!(!asked.status.success() && said.contains(why), "{name}: {said}"),
        }
        if expected == Some("expired") {
            server.wait_said("warning: the certificate is expired: it ended ")?;
        }
        // No client named this certificate.
        let asked = run_verb(&["module", "list", "--url", &url(&server)])?;
        ensure!(!asked.status.success(), "{name}");
    }
    Ok(())
}

#[test]
fn settings_that_make_no_certificate_are_refused_at_the_start() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let certificate = Certificate::new(&dir.path().join("tls"))?;
    let data = dir.path().join("data").display().to_string();
    let (cert, key) = (certificate.path("cert.pem"), certificate.path("key.pem"));
    let missing = certificate.path("none.pem");
    for (args, told) in [
        (vec!["--tls-cert", &cert], "tls-key"),
        (vec!["--tls-key", &key], "tls-cert"),
        (vec!["--tls-cert", &missing, "--tls-key", &key], "none.pem"),
        (vec!["--tls-cert", &key, "--tls-key", &key], "holds no certificate"),
        (vec!["--tls-cert", &cert, "--tls-key", &cert], "holds no private key"),
        (vec!["--standby-ca-cert", &cert], "standby-of"),
    ] {
        let started = run_verb(&[&["serve", "--data-dir", &data, "--listen", "127.0.0.1:0"], &args[..]].concat())?;
        let said = String::from_utf8_lossy(&started.stderr).into_owned();
        ensure!(!started.status.success() && said.contains(told), "{args:?}: {said}");
        ensure!(!Path::new(&data).join("log").exists(), "{args:?} left something behind");
    }
    Ok(())
}

#[test]
fn a_standby_follows_by_tls_and_takes_over() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let certificate = Certificate::new(&dir.path().join("tls"))?;
    let ship = ["--ship-listen", "127.0.0.1:0", "--partitions", "2"];
    let mut a = certificate.serve(&dir.path().join("a"), &[&ship[..], &["--name", "a"]].concat())?;
    let to_a = certificate.client(&a)?;
    to_a.deploy_module("bank", procedure_wasm("bank")?, &[])?;
    to_a.call("bank", "open", &json!({"account": 1, "balance": 10}))?;
    // A client without the certificate believes nothing of the primary.
    let (of, trusted) = (url(&a), certificate.path("cert.pem"));
    let data = dir.path().join("c").display().to_string();
    let refused = run_verb(&[
        "serve",
        "--data-dir",
        &data,
        "--listen",
        "127.0.0.1:0",
        "--standby-of",
        &of,
        "--name",
        "c",
    ])?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(
        !refused.status.success() && said.contains("does not trust the certificate"),
        "{said}"
    );
    let follow = ["--standby-of", &of, "--standby-ca-cert", &trusted, "--name", "b"];
    let b = certificate.serve(&dir.path().join("b"), &[&ship[..2], &follow].concat())?;
    let to_b = certificate.client(&b)?;
    let streams = |client: &Client| {
        let told = client.replication()?;
        let standby = told.standbys.first();
        let is_so = standby.is_some_and(|standby| standby.state == reprise_api::StandbyState::Streaming);
        ensure!(!is_so || standby.is_some_and(|standby| standby.encrypted), "{told:?}");
        Ok(is_so && standby.is_some_and(|standby| standby.in_sync == Some(true)))
    };
    wait("it streams", || Ok(streams(&to_a)? && streams(&to_b)?))?;
    // Writes go to the primary, by TLS as well.
    to_b.call("bank", "open", &json!({"account": 2, "balance": 20}))?;
    wait("it shows the write", || {
        Ok(balance(&to_b, 2).is_ok_and(|told| told == "20"))
    })?;
    // Another certificate: connections stay, and the next one is made with it.
    certificate.renew()?;
    a.process().signal(libc::SIGHUP)?;
    a.wait_said("new connections get the new certificate")?;
    drop(b);
    let b = certificate.serve(&dir.path().join("b"), &[&ship[..2], &follow].concat())?;
    let (to_a, to_b) = (certificate.client(&a)?, certificate.client(&b)?);
    wait("it streams again", || Ok(streams(&to_a)? && streams(&to_b)?))?;
    a.kill()?;
    match to_b.call("bank", "open", &json!({"account": 3, "balance": 30})) {
        Err(ClientError::Connect { .. }) => {}
        Err(error) => ensure!(error.kind() == Some(ProblemKind::NotPrimary), "{error}"),
        Ok(_) => bail!("it is no primary"),
    }
    to_b.promote(true, true)?;
    to_b.call("bank", "open", &json!({"account": 3, "balance": 30}))?;
    ensure!(balance(&to_b, 1)? == "10" && balance(&to_b, 2)? == "20");
    Ok(())
}

/// A standby whose certificate another CA signed is not believed, so its answer is missing. The operator decides.
#[test]
fn promotion_names_a_standby_whose_certificate_is_not_trusted() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let certificate = Certificate::new(&dir.path().join("tls"))?;
    let other = Certificate::new(&dir.path().join("other"))?;
    let level = ["--ship-listen", "127.0.0.1:0", "--safety", "quorum"];
    let first = ["--partitions", "2", "--name", "a"];
    let mut a = certificate.serve(&dir.path().join("a"), &[&level[..], &first].concat())?;
    let (of, trusted) = (url(&a), certificate.path("cert.pem"));
    let follow = ["--standby-of", &of, "--standby-ca-cert", &trusted];
    let b = certificate.serve(&dir.path().join("b"), &[&level[..], &follow, &["--name", "b"]].concat())?;
    let _c = other.serve(&dir.path().join("c"), &[&level[..], &follow, &["--name", "c"]].concat())?;
    let (to_a, to_b) = (certificate.client(&a)?, certificate.client(&b)?);
    wait("both are in sync", || {
        let told = to_a.replication()?.standbys;
        Ok(told.iter().filter(|standby| standby.in_sync == Some(true)).count() == 2)
    })?;
    a.kill()?;
    let begun = Instant::now();
    match to_b.promote(true, false) {
        Err(ClientError::Problem(problem)) => {
            let detail = &problem.detail;
            ensure!(
                problem.status == 409
                    && problem.may_be_lost.is_some()
                    && detail.contains("too few standbys can be asked: c"),
                "{problem:?}"
            );
        }
        other => bail!("{other:?}"),
    }
    ensure!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let promoted = to_b.promote(true, true)?;
    ensure!(promoted.may_be_lost.is_some(), "{promoted:?}");
    Ok(())
}

/// Each operation may ask the second endpoint alone: nothing listens at the first one.
#[test]
fn a_primary_gets_its_lease_from_an_etcd_with_tls_certificates_and_a_password() -> Result<()> {
    const NAME: &str = "a_primary_gets_its_lease_from_an_etcd_with_tls_certificates_and_a_password";
    if let Err(why) = has_etcd() {
        skip(NAME, &why);
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let certificate = Certificate::new(&dir.path().join("tls"))?;
    certificate.drop_common_name()?;
    let (cert, key) = (certificate.path("cert.pem"), certificate.path("key.pem"));
    let mut etcd = Etcd::start(&dir.path().join("etcd"))?;
    etcd.secure(Path::new(&cert), Path::new(&key))?;
    let args = |urls: &str| {
        let args = [
            "--name",
            "a",
            "--safety",
            "2-safe",
            "--ship-listen",
            "127.0.0.1:0",
            "--lease-ca-cert",
            &cert,
            "--lease-etcd",
            urls,
        ];
        args.map(str::to_owned)
    };
    let held = |server: &Server| -> Result<bool> {
        let told = certificate.client(server)?.replication()?;
        Ok(serde_json::to_value(told)?["lease"]["state"] == "held")
    };
    let urls = args(&format!("http://{},{}", free_address()?, etcd.url()));
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let server = certificate.serve(&dir.path().join("data"), &urls)?;
    ensure!(held(&server)?);
    // A restarted etcd knows none of the tokens that it gave out.
    etcd.kill()?;
    wait("the lease is over", || Ok(!held(&server)?))?;
    etcd.go_on()?;
    wait("the lease is held again", || held(&server))?;
    server.terminate()?;
    let urls = args(&etcd.url().replace("reprise:", "reprise:not-"));
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let launch = Launch::new(&dir.path().join("data")).args(&["--tls-cert", &cert, "--tls-key", &key]);
    let mut refused = Spawned::start(&launch.args(&urls))?.listen()?;
    refused.wait_said("authentication failed, invalid user ID or password")?;
    let told = refused.process().errors();
    ensure!(!told.contains("not-p"), "a password is never shown: {told}");
    Ok(())
}
