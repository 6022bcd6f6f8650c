//! A server that follows a primary: its tickets, and its first files.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, Weak, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use reprise_api::{JoinRequest, JoinTicket, ProblemKind, StandbyProcess, U64};
use reprise_backup::{DirHandle, DirTree, RealTree};
use reprise_base::{Epoch, Lsn, NodeProcess};
use reprise_client::{Client, ClientError};
use reprise_database::{
    ClosedDirectory, CutBack, CutError, CutInfo, Database, FollowPrimary, NodeFile, Position, ServeStandbys,
    TicketError, VIEW_NAME, cut_back, forget_earlier_log, keep_committed, stored_partitions,
};
use reprise_env::{Clock, Net, RealClock, RealDisk, RealThreads};
use reprise_log::database_id;
use reprise_net_rdma::RdmaNet;
use reprise_net_tls::{Identity, TlsNet};
use reprise_router::{HandOverPoint, StandbyTicket as Ticket};
use reprise_ship::{BootstrapSummary, ForkAnswer, Link, LinkConfig, LinkError, LogBeside, StandbyFiles};

use crate::{
    config::replication::{ReplicationSettings, Transport},
    directory::clear_useless,
    output::{ProgressLine, VerbFailure, VerbResult, bytes},
    remote, server_output,
};

mod search;

/// The folder of the first files until all of them have their place.
pub const ARRIVED: &str = "bootstrap";
/// The folder that keeps records which the primary does not have.
pub const CUTS: &str = "cuts";
/// Time for which a primary is asked about the fork of the histories while it can't answer yet.
const FORK_TRIES: Duration = Duration::from_secs(10);
/// The folders in this order: a directory with a log has everything.
pub const FOLDERS: [&str; 2] = ["checkpoints", "log"];
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Time that a standby waits for an answer before it checks whether it must end.
const ASK_TIME: Duration = Duration::from_secs(1);
/// Longest wait for a primary that steps down. The primary's own limit is lower.
const STEP_DOWN_TIME: Duration = Duration::from_secs(25);
/// Time between two tries to reach the primary. The second constant is the time of tries while there are no files.
const TRY_EVERY: Duration = Duration::from_millis(500);
const FIRST_TRIES: Duration = Duration::from_secs(60);

/// The remedy for a lack of RDMA.
pub const TCP_ON_REQUEST: &str = "with --transport tcp, on both sides, it goes without";

/// Returns the transport of the log, by the settings. Err: it is not available; no other is tried in its place.
pub fn net_of(settings: &ReplicationSettings, own: Option<&Arc<Identity>>) -> Result<Arc<dyn Net>, VerbFailure> {
    let is_used = settings.standby_of.value.is_some() || settings.ship_listen.value.is_some();
    if settings.transport.value == Transport::Tcp || !is_used {
        return Ok(Arc::new(TlsNet::new(own.cloned())));
    }
    if own.is_some() {
        server_output::warning(
            "rdma",
            "RDMA is not encrypted: standbys get every row in plain, in spite of tls-cert",
        );
    }
    let found = RdmaNet::of_this_machine(settings.rdma_device.value.as_deref());
    let (net, card) = found.map_err(|error| anyhow::anyhow!("transport rdma: {error}; {TCP_ON_REQUEST}"))?;
    server_output::info("rdma", format!("standbys are connected over RDMA: {card}"));
    Ok(Arc::new(net))
}

/// Asks for tickets on threads of its own, so that an unreachable primary does not delay the server's end.
struct TicketAsker {
    primary: Arc<Primary>,
    /// The answer to the running request. The next request takes a late ticket, and the primary refuses one that is too old.
    answer: Option<mpsc::Receiver<Result<Ticket, TicketError>>>,
}

impl TicketAsker {
    fn ask(&mut self) -> Result<Ticket, TicketError> {
        let passing = |reason: &str| TicketError {
            reason: reason.into(),
            is_final: false,
        };
        let answer = match self.answer.take() {
            Some(answer) => answer,
            None => self.begin().map_err(|error| passing(&error.to_string()))?,
        };
        match answer.recv_timeout(ASK_TIME) {
            Ok(ticket) => ticket,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                self.answer = Some(answer);
                Err(passing("the primary does not answer"))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(passing("the question to the primary failed")),
        }
    }

    fn begin(&self) -> io::Result<mpsc::Receiver<Result<Ticket, TicketError>>> {
        let (sender, answer) = mpsc::sync_channel(1);
        let primary = self.primary.clone();
        let ask = move || {
            let ticket = primary.ticket().map_err(|error| ticket_error(&error));
            let _ = sender.send(ticket.and_then(|ticket| read_ticket(&ticket, &*primary.net))); // the server may have ended
        };
        thread::Builder::new().name("standby-ticket".into()).spawn(ask)?;
        Ok(answer)
    }
}

/// The primary, as its standby asks it.
pub struct Primary {
    net: Arc<dyn Net>,
    client: Client,
    url: String,
    name: String,
    pub token: Option<String>,
    pub ca_cert: Option<PathBuf>,
    /// The successor that the primary named when it handed over, or that the lease names.
    successor: Mutex<Option<String>>,
    /// The database that follows. It knows to which server it gave a promise, and which one the lease names as the primary.
    pub database: OnceLock<Weak<Database>>,
    /// URL of this server for its clients.
    own_url: Option<Arc<str>>,
    /// This process, once it has a directory.
    process: Option<NodeProcess>,
    /// Longest time of a round in which the other standbys are asked for a promise.
    pub round_max: Duration,
}

impl Primary {
    /// Returns the standby's settings. None for a server that follows no primary.
    pub fn of(settings: &ReplicationSettings, net: &Arc<dyn Net>, name: &str) -> Result<Option<Self>, VerbFailure> {
        let Some(url) = settings.standby_of.value.clone() else {
            return Ok(None);
        };
        let token = settings.standby_token.value.as_ref();
        let ca_cert = settings.standby_ca_cert.value.as_deref();
        Ok(Some(Self {
            net: net.clone(),
            client: remote::client(&url, token.map(|secret| secret.0.as_str()), ca_cert)?,
            url,
            name: name.to_owned(),
            token: token.map(|secret| secret.0.clone()),
            ca_cert: ca_cert.map(PathBuf::from),
            successor: Mutex::default(),
            database: OnceLock::new(),
            own_url: None,
            process: None,
            round_max: ASK_TIME,
        }))
    }

    /// Names the process on the data directory from now on.
    pub fn begin_process(&mut self, dir: &Path) -> VerbResult {
        let begun = node_of(dir).and_then(|node| Ok(node.begin_process()?));
        self.process = Some(begun.context("begin as a standby")?);
        Ok(())
    }

    /// Sets the URL at which clients reach this server.
    pub fn with_url(self, own_url: Option<Arc<str>>) -> Self {
        Self { own_url, ..self }
    }

    /// Has the primary hand over to this server.
    fn step_down(&self) -> Result<HandOverPoint, Arc<str>> {
        let answer = self.ask(|client| client.step_down(&self.name, self.own_url.as_deref(), STEP_DOWN_TIME));
        let answer = answer.map_err(|error| error.to_string())?;
        Ok(HandOverPoint {
            epoch: Epoch::new(answer.epoch, answer.epoch_writer),
            lsn: Lsn(answer.lsn.0),
        })
    }

    /// Gets a ticket, which is valid for a minute.
    fn ticket(&self) -> Result<JoinTicket, ClientError> {
        let asked = JoinRequest {
            name: self.name.clone(),
            process: self.process.map(|process| StandbyProcess {
                node: U64(process.node),
                starts: U64(process.starts),
                nonce: U64(process.nonce),
            }),
            url: self.own_url.as_deref().map(str::to_owned),
        };
        self.ask(|client| client.join(&asked))
    }

    /// Has the database receive and replay the primary's records until it is promoted. It comes before the database's recovery, because
    /// records arrive meanwhile.
    pub fn follow(self, database: &Arc<Database>) -> anyhow::Result<()> {
        let (name, url) = (self.name.clone(), self.url.clone());
        let net = self.net.clone();
        let asked = Arc::new(self);
        // Only this object follows.
        let _ = asked.database.set(Arc::downgrade(database));
        let peers = asked.clone();
        let mut asker = TicketAsker {
            primary: asked.clone(),
            answer: None,
        };
        let follow = FollowPrimary {
            net,
            name,
            primary: Some(url.into()),
            ticket: Box::new(move || asker.ask()),
            step_down: Arc::new(move || asked.step_down()),
            ask_peers: Arc::new(move |urls, question| peers.ask_peers(urls, question)),
        };
        database.follow_primary(follow).context("follow the primary")
    }

    /// Puts the first files into a directory that has none. If that fails, none of them stays.
    pub fn bootstrap(&self, dir: &Path) -> VerbResult {
        self.bootstrap_within(dir, FIRST_TRIES)
    }

    /// The `bootstrap` variant that ends after this time of tries.
    fn bootstrap_within(&self, dir: &Path, tries: Duration) -> VerbResult {
        install_files(dir)
            .with_context(|| format!("put the first files of a standby in their place in {}", dir.display()))?;
        if has_files(dir).with_context(|| format!("list {}", dir.display()))? {
            return Ok(());
        }
        let begun = Instant::now();
        let progress = ProgressLine::new();
        let mut is_reported = false;
        loop {
            let why = match self.try_bootstrap(dir)? {
                Ok(come) => {
                    progress.clear();
                    let live = match come.live {
                        0 => String::new(),
                        live => format!(", and {live} records that it logged meanwhile"),
                    };
                    let come = bytes(come.bytes);
                    let text = format!("{come} came from the primary at {}{live}", self.url);
                    server_output::info("standby_begun", text);
                    return Ok(());
                }
                Err(why) => why,
            };
            if begun.elapsed() > tries {
                progress.clear();
                return Err(VerbFailure::Again(format!("begin as a standby of {}: {why}", self.url)));
            }
            let waits = format!("waiting for the primary at {}: {why}", self.url);
            if !is_reported {
                is_reported = true;
                let text = format!("{waits}. It is tried for {} s", tries.as_secs());
                server_output::warning("primary_away", text);
            }
            progress.show(waits);
            thread::sleep(TRY_EVERY);
        }
    }

    /// Tries once. The inner error may pass.
    fn try_bootstrap(&self, dir: &Path) -> Result<Result<BootstrapSummary, String>, VerbFailure> {
        let ticket = match self.ticket() {
            Ok(ticket) => ticket,
            Err(ClientError::Problem(problem)) if problem.status < 500 => return Err(VerbFailure::Problem(problem)),
            Err(error @ (ClientError::Url { .. } | ClientError::Trust(_) | ClientError::Protocol(_))) => {
                return Err(remote::failure(error));
            }
            Err(error) => return Ok(Err(error.to_string())),
        };
        match self.receive(&ticket, dir) {
            Ok(come) => Ok(Ok(come)),
            Err(error) => match error.downcast_ref::<LinkError>() {
                Some(passing) if !passing.is_final() => Ok(Err(passing.to_string())),
                _ => Err(error.into()),
            },
        }
    }

    /// Returns the settings of one connection.
    fn link(&self, ticket: &JoinTicket) -> Result<LinkConfig, TicketError> {
        let read = read_ticket(ticket, &*self.net)?;
        Ok(LinkConfig {
            net: self.net.clone(),
            clock: Arc::new(RealClock::default()),
            address: read.ship_address,
            certificate: read.certificate,
            ticket: read.ticket,
            name: self.name.clone(),
            connect_time: CONNECT_TIME,
        })
    }

    /// Asks whether the primary has the records of a log here. It asks again for some seconds while the primary can't answer yet.
    fn ask_fork(&self, known: &StandbyFiles, position: Position) -> Result<ForkAnswer, Arc<str>> {
        let begun = Instant::now();
        loop {
            let ticket = self.ticket().map_err(|error| error.to_string())?;
            let link = self.link(&ticket).map_err(|error| error.to_string())?;
            match Link::fork(&link, known, position) {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_final() || begun.elapsed() > FORK_TRIES => return Err(error.to_string().into()),
                Err(_) => thread::sleep(TRY_EVERY),
            }
        }
    }

    /// Cuts off the records that the primary does not have, before anything is opened. If the primary can't be asked, nothing changes: it
    /// will refuse the standby later.
    pub fn cut_back(&self, dir: &Path) -> VerbResult {
        clear_useless(dir).with_context(|| format!("clear {}", dir.display()))?;
        if !dir.join("log").exists() {
            return Ok(());
        }
        let directory = closed_directory(dir).with_context(|| format!("open {}", dir.display()))?;
        let partitions = stored_partitions(dir).context("look at the log's first record")?;
        let id = database_id(&*directory.log).context("look at the log")?;
        let (Some(partitions), Some(database_id)) = (partitions, id) else {
            return Ok(());
        };
        let known = StandbyFiles {
            database_id,
            partitions,
        };
        let now_us = RealClock::default().now_us();
        match cut_back(&directory, &mut |position| self.ask_fork(&known, position), now_us) {
            Ok(CutBack::Nothing) => {}
            Ok(CutBack::Cut(cut)) => server_output::warning("cut_back", describe_cut(dir, &cut)),
            Ok(CutBack::Anew(cut)) => {
                let text = describe_cut(dir, &cut);
                server_output::warning(
                    "cut_back",
                    format!("{text}. No checkpoint lies before that: it begins anew"),
                );
                clear_useless(dir).with_context(|| format!("clear {}", dir.display()))?;
            }
            // The other reasons are reported once the server follows.
            Err(CutError::Ask(reason)) => {
                let text = format!("whether all of this log is the primary's is not known yet: {reason}");
                server_output::info("cut_back", text);
            }
            Err(error) => {
                return Err(anyhow::Error::from(error)
                    .context("cut back to the primary's log")
                    .into());
            }
        }
        Ok(())
    }

    fn receive(&self, ticket: &JoinTicket, dir: &Path) -> anyhow::Result<BootstrapSummary> {
        let config = self.link(ticket)?;
        let place = DirHandle::new(Arc::new(RealTree(dir.to_owned())), ARRIVED);
        let beside = LogBeside {
            threads: Arc::new(RealThreads),
            keep_committed,
        };
        let come = Link::bootstrap(&config, &place, beside)?.run(&|| true)?;
        install_files(dir)?;
        come.context("the primary sent nothing")
    }
}

/// The folders of a directory that is not open.
fn closed_directory(dir: &Path) -> anyhow::Result<ClosedDirectory> {
    Ok(ClosedDirectory {
        node: node_of(dir)?,
        root: Arc::new(RealDisk::create(dir)?),
        log: Arc::new(RealDisk::create(dir.join("log"))?),
        checkpoints: Arc::new(RealDisk::create(dir.join("checkpoints"))?),
        cuts: cuts_of(dir),
    })
}

/// Checks whether a directory has the files with which a standby begins. A start that was refused leaves empty folders.
fn has_files(dir: &Path) -> io::Result<bool> {
    for folder in FOLDERS {
        let entries = match fs::read_dir(dir.join(folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        if entries.count() > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

fn node_of(dir: &Path) -> anyhow::Result<Arc<NodeFile>> {
    Ok(NodeFile::open(Arc::new(RealDisk::create(dir)?))?)
}

/// Returns the folder of records that were cut off.
pub fn cuts_of(dir: &Path) -> Arc<dyn DirTree> {
    Arc::new(RealTree(dir.join(CUTS)))
}

fn describe_cut(dir: &Path, cut: &CutInfo) -> String {
    let acknowledged = match cut.acknowledged {
        true => ", some of which may have been answered as committed,",
        false => ", none of which was answered as committed,",
    };
    let kept = dir.join(CUTS).join(&cut.name);
    format!(
        "the records from LSN {} to {}{acknowledged} are not the primary's: they are cut off, and kept in {} (reprise log dump)",
        cut.from,
        cut.to,
        kept.display()
    )
}

/// Takes standbys if the settings say so: at once, or once this server is the primary. They get its name, and its URL for clients.
pub fn serve_standbys(
    database: &Arc<Database>,
    (settings, net): (&ReplicationSettings, Arc<dyn Net>),
    (name, url): (&str, Option<Arc<str>>),
) -> VerbResult {
    let Some(listen) = settings.ship_listen.value.clone() else {
        return Ok(());
    };
    let served = database.serve_standbys(ServeStandbys {
        name: name.to_owned(),
        net,
        listen: listen.clone(),
        ship_address: None,
        url,
        hold_bytes_max: settings.hold_max.value,
        compare_every: Duration::from_secs(settings.compare_every.value),
        ship: settings.ship.value,
        has_lease: settings.lease_etcd.value.is_some(),
    });
    Ok(served.with_context(|| format!("take standbys at {listen}"))?)
}

/// Returns the error as one that another try may resolve, if the primary can't be reached or refuses for now.
fn ticket_error(error: &ClientError) -> TicketError {
    let is_final = match error {
        ClientError::Problem(problem) => problem.status < 500 && problem.kind() != Some(ProblemKind::NotPrimary),
        ClientError::Url { .. } => true,
        ClientError::Trust(_) | ClientError::Connect { .. } | ClientError::Http(_) | ClientError::Protocol(_) => false,
    };
    TicketError {
        reason: error.to_string().into(),
        is_final,
    }
}

/// Reads a ticket for this transport.
fn read_ticket(ticket: &JoinTicket, net: &dyn Net) -> Result<Ticket, TicketError> {
    let own = net.transport();
    if ticket.transport != own {
        let theirs = &ticket.transport;
        return Err(TicketError {
            reason: format!("the primary ships its log over {theirs}, and this standby takes it over {own}: start both with the same --transport").into(),
            is_final: true,
        });
    }
    let unreadable = || TicketError {
        reason: "the primary's ticket is not made of hexadecimal digits".into(),
        is_final: false,
    };
    Ok(Ticket {
        ticket: bytes_of(&ticket.ticket).ok_or_else(unreadable)?,
        ship_address: ticket.ship_address.clone(),
        transport: own,
        certificate: match &ticket.certificate {
            Some(hex) => Some(bytes_of(hex).ok_or_else(unreadable)?),
            None => None,
        },
        database_id: bytes_of(&ticket.database_id).ok_or_else(unreadable)?,
        partitions: ticket.partitions,
    })
}

fn bytes_of<const N: usize>(hex: &str) -> Option<[u8; N]> {
    let is_hex = hex.len() == 2 * N && hex.bytes().all(|digit| digit.is_ascii_hexdigit());
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    is_hex.then_some(bytes)
}

/// Moves complete files to the places from which they are opened, also after a start that was interrupted meanwhile.
fn install_files(dir: &Path) -> anyhow::Result<()> {
    let arrived = dir.join(ARRIVED);
    if !arrived.exists() {
        return Ok(());
    }
    if arrived.join("log").exists() {
        forget_earlier_log(&*node_of(dir)?)?;
    }
    for name in [VIEW_NAME].into_iter().chain(FOLDERS) {
        let (from, to) = (arrived.join(name), dir.join(name));
        if from.exists() {
            fs::rename(from, to)?;
            fs::File::open(dir)?.sync_all()?;
        }
    }
    Ok(fs::remove_dir_all(&arrived)?)
}

/// Returns the name that other nodes get: `--name`, or the host's and the port.
pub fn name_of(settings: &ReplicationSettings, port: u16) -> String {
    let own = || {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let host: String = host.trim().chars().filter(is_plain).take(48).collect();
        match host.is_empty() {
            true => format!("server-{port}"),
            false => format!("{host}-{port}"),
        }
    };
    settings.name.value.clone().unwrap_or_else(own)
}

#[cfg(test)]
impl Primary {
    /// Returns the primary at a URL. Its rounds are long, because a busy machine answers late.
    pub fn at(url: &str) -> Self {
        Self {
            net: Arc::new(reprise_env::RealNet),
            client: remote::client(url, None, None).unwrap_or_else(|_| panic!("a client")),
            url: url.to_owned(),
            name: "s".into(),
            token: None,
            ca_cert: None,
            successor: Mutex::default(),
            database: OnceLock::new(),
            own_url: None,
            process: None,
            round_max: Duration::from_secs(30),
        }
    }
}

#[cfg(test)]
mod tests {
    use reprise_env::RealNet;

    use super::*;

    #[test]
    fn a_primary_with_another_transport_is_named_and_nothing_is_tried() {
        let mut ticket = JoinTicket {
            ticket: "00".repeat(16),
            ship_address: "h:1".into(),
            transport: "tcp".into(),
            certificate: Some("ff".repeat(32)),
            database_id: "11".repeat(16),
            partitions: 2,
        };
        let read = read_ticket(&ticket, &RealNet).expect("a ticket");
        assert_eq!((read.certificate, read.database_id), (Some([255; 32]), [17; 16]));
        ticket.certificate = Some("f".into());
        assert!(read_ticket(&ticket, &RealNet).is_err_and(|error| !error.is_final));
        ticket.transport = "rdma".into();
        let error = read_ticket(&ticket, &RealNet).expect_err("refused");
        assert!(error.is_final && error.reason.contains("over rdma"), "{error}");
    }

    /// A supervisor starts the server again (`RestartForceExitStatus=75`).
    #[test]
    fn new_standby_ends_with_status_75_when_no_primary_answers_in_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        drop(listener); // no server listens there from now on
        let primary = Primary::at(&url);
        let Err(failure) = primary.bootstrap_within(dir.path(), Duration::ZERO) else {
            panic!("nobody answers");
        };
        assert!(
            matches!(&failure, VerbFailure::Again(why) if why.contains(&url)),
            "{failure}"
        );
        assert_eq!(crate::output::print_failure(&failure, false), 75);
        assert!(!dir.path().join("log").exists());
    }

    #[test]
    fn a_ticket_is_16_bytes() {
        assert_eq!(
            bytes_of::<16>("000102030405060708090a0b0c0d0e0f"),
            Some(std::array::from_fn(|at| at as u8))
        );
        for bad in [
            "",
            "00",
            "zz0102030405060708090a0b0c0d0e0f",
            "+00102030405060708090a0b0c0d0e0f",
        ] {
            assert_eq!(bytes_of::<16>(bad), None, "{bad}");
        }
    }

    #[test]
    fn files_get_their_place_also_where_that_was_cut_off() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |path: &str| dir.path().join(path);
        let own = r#"{"format":6,"version":7,"node":"01","starts":3,"health":"good","status":{"epoch":1,"writer":1,"safety":"2-safe","number":1,
            "in_sync":true,"has_been_in_sync":true,"counted":true,"counted_next":true,"lsn":7,"primary_lsn":7,"others":[]},"members":[{"name":"s1","lsn":7,"persisted":7,"in_sync":true,"counted":false}]}"#;
        fs::write(at("node.json"), own).expect("write");
        let document = || -> serde_json::Value {
            serde_json::from_slice(&fs::read(at("node.json")).expect("there")).expect("a document")
        };
        install_files(dir.path()).expect("nothing to do");
        assert!(document()["status"].is_object());
        for made in ["bootstrap/checkpoints", "bootstrap/log"] {
            fs::create_dir_all(at(made)).expect("make");
        }
        fs::write(at("bootstrap/view"), [0; 16]).expect("write");
        // The machine stops after the first folder got its place.
        fs::rename(at("bootstrap/checkpoints"), at("checkpoints")).expect("rename");
        install_files(dir.path()).expect("it goes on");
        assert!(at("checkpoints").exists() && at("log").exists() && !at("bootstrap").exists());
        assert!(at("view").exists(), "else what is not committed would be shown");
        // The document comes from an earlier log.
        let kept = document();
        assert!(kept.get("status").is_none() && kept["version"] == 8, "{kept}");
        let member = &kept["members"][0];
        assert!(member["in_sync"] == false && member["was_in_sync"] == true, "{kept}");
    }
}
