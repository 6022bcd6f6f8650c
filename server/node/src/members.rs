//! A primary without a lease asks its standbys whether one of them leads, too: before it starts, and once a second those that it lost.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, Weak, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use reprise_api::Status;
use reprise_base::{Epoch, hex};
use reprise_client::{Client, ClientError};
use reprise_database::{Database, LogPolicy, MemberAddress, MemberAnswer, NodeFile};
use reprise_env::RealDisk;
use reprise_log::database_id;
use reprise_router::PrimaryBeside;

use crate::{
    config::{ServeConfig, replication::ReplicationSettings},
    output::{VerbFailure, VerbResult},
    remote, server_output,
};

/// Longest wait for all answers. A start is delayed by this time only if a member neither answers nor refuses the connection.
const ANSWERS_WAIT_MAX: Duration = Duration::from_secs(2);
/// Period in which a primary asks the standbys that it lost.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Name of the server that this one followed before it led, in texts.
const FORMER_PRIMARY: &str = "the former primary";

/// Role of a server that leads, as its status names it.
const PRIMARY: &str = "primary";

/// The credential with which members are asked: that of a standby, because each server of a cluster may become one.
struct Asker {
    token: Option<String>,
    ca_cert: Option<PathBuf>,
    /// This server's clients are encrypted, so its token does not travel in the clear either.
    is_encrypted: bool,
    /// Id of the database in hexadecimal digits.
    database_id: String,
    /// The clients that were made, by URL.
    clients: Mutex<BTreeMap<String, Client>>,
}

/// Checks that no standby of this directory leads by now. A lease decides that by itself. A member that does not answer counts as one that
/// does not lead: it may be lost for good.
///
/// # Errors
/// A member leads, or follows a primary, in a later epoch than the last one of this directory.
pub fn check(config: &ServeConfig, is_encrypted: bool) -> VerbResult {
    let settings = &config.replication;
    let is_decided = settings.standby_of.value.is_some() || settings.lease_etcd.value.is_some() || config.read_only;
    let dir = &config.place.data_dir.value;
    if is_decided || config.log.log.value == LogPolicy::None || !dir.join("log").exists() {
        return Ok(());
    }
    let root = RealDisk::create(dir).with_context(|| format!("open {}", dir.display()))?;
    // The opening reports a document that can't be read.
    let Ok(node) = NodeFile::open(Arc::new(root)) else {
        return Ok(());
    };
    let members = node.document().members_to_ask();
    if members.is_empty() {
        return Ok(());
    }
    let log = RealDisk::create(dir.join("log")).context("open the log's folder")?;
    let Some(id) = database_id(&log).context("look at the log")? else {
        return Ok(());
    };
    let asker = Arc::new(Asker::of(settings, is_encrypted, &id));
    let mut answers = ask_all(&asker, members)?;
    if node.check_answers(&answers).is_ok() {
        return Ok(());
    }
    // The start is refused. The refusal names the primary, if a standby can still tell it.
    for answer in answers.iter_mut().filter(|answer| !answer.is_primary) {
        answer.primary = asker.primary_of(&answer.member);
    }
    node.check_answers(&answers)
        .map_err(|error| VerbFailure::Other(error.into()))
}

/// Watches, as long as the database is open, whether another server leads beside this primary. The router knows the finding.
pub fn watch(database: &Arc<Database>, settings: &ReplicationSettings, is_encrypted: bool) -> io::Result<()> {
    let takes_part = settings.standby_of.value.is_some() || settings.ship_listen.value.is_some();
    if !takes_part || settings.lease_etcd.value.is_some() {
        return Ok(());
    }
    let asker = Asker::of(settings, is_encrypted, &database.router().status().database_id);
    let former = settings.standby_of.value.clone().map(|url| MemberAddress {
        name: FORMER_PRIMARY.to_owned(),
        url,
    });
    let database = Arc::downgrade(database);
    let work = move || {
        while let Some(asked) = members_to_watch(&database, former.as_ref()) {
            asker.keep_clients_of(&asked);
            let found = other_primary(&asker, &asked);
            if let (Some(found), Some(database)) = (found, database.upgrade()) {
                database.router().set_other_primary(found);
            }
            thread::sleep(ASK_EVERY);
        }
    };
    thread::Builder::new().name("members".into()).spawn(work)?;
    Ok(())
}

/// Returns the servers to ask now. None: the database is closed.
fn members_to_watch(database: &Weak<Database>, former: Option<&MemberAddress>) -> Option<Vec<MemberAddress>> {
    let lost = database.upgrade()?.lost_members();
    Some(lost.map_or(Vec::new(), |lost| lost.into_iter().chain(former.cloned()).collect()))
}

/// Returns the primary among these servers. None: it is not known, because a server did not answer.
fn other_primary(asker: &Asker, asked: &[MemberAddress]) -> Option<Option<PrimaryBeside>> {
    let mut is_known = true;
    for member in asked {
        match asker.status(member) {
            Ok(Some(status)) if status.role == PRIMARY => {
                return Some(Some(PrimaryBeside {
                    name: member.name.clone(),
                    url: member.url.clone(),
                    epoch: epoch_of(&status),
                }));
            }
            Ok(_) => {}
            Err(_) => is_known = false,
        }
    }
    is_known.then_some(None)
}

/// Returns the epoch that a server tells; that of count 0 without a log.
fn epoch_of(status: &Status) -> Epoch {
    Epoch::new(status.epoch.unwrap_or(0), status.epoch_writer.unwrap_or(0))
}

/// Asks all members at once. The threads of those that do not answer in time end by themselves.
fn ask_all(asker: &Arc<Asker>, members: Vec<MemberAddress>) -> Result<Vec<MemberAnswer>, VerbFailure> {
    let (sender, receiver) = mpsc::channel();
    let until = Instant::now() + ANSWERS_WAIT_MAX;
    let mut silent = members.clone();
    for member in members {
        let (asker, sender) = (asker.clone(), sender.clone());
        let ask = move || {
            let answer = asker.ask(&member);
            let _ = sender.send((member, answer)); // the start may have continued without the answer
        };
        let asking = thread::Builder::new().name("ask-member".into()).spawn(ask);
        asking.context("start a thread")?;
    }
    drop(sender);
    let mut answers = Vec::new();
    while let Ok((member, answer)) = receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
        silent.retain(|other| *other != member);
        match answer {
            Ok(answer) => answers.extend(answer),
            Err(reason) => warn(&member, &reason),
        }
    }
    for member in silent {
        warn(&member, "it does not answer");
    }
    Ok(answers)
}

fn warn(member: &MemberAddress, reason: &str) {
    let MemberAddress { name, url } = member;
    let text = format!("whether {name} at {url} leads by now is not known: {reason}");
    server_output::warning("member_unknown", text);
}

impl Asker {
    fn of(settings: &ReplicationSettings, is_encrypted: bool, database_id: &[u8; 16]) -> Self {
        Self {
            token: settings.standby_token.value.as_ref().map(|secret| secret.0.clone()),
            ca_cert: settings.standby_ca_cert.value.clone(),
            is_encrypted,
            database_id: hex(database_id),
            clients: Mutex::default(),
        }
    }

    /// Returns the status of a member. None: the server at this address has another database.
    fn status(&self, member: &MemberAddress) -> Result<Option<Status>, String> {
        let client = self.client(&member.url)?;
        let status = client.status_within(ANSWERS_WAIT_MAX);
        let status = status.map_err(|error| self.reason(&error))?;
        Ok((status.database_id == self.database_id).then_some(status))
    }

    /// Asks one member which epoch it knows. None: the server at this address has another database.
    fn ask(&self, member: &MemberAddress) -> Result<Option<MemberAnswer>, String> {
        let Some(status) = self.status(member)? else {
            return Ok(None);
        };
        Ok(Some(MemberAnswer {
            member: member.clone(),
            is_primary: status.role == PRIMARY,
            epoch: epoch_of(&status),
            primary: None,
        }))
    }

    /// Returns the URL of the primary that a member follows, if the member tells it in time.
    fn primary_of(&self, member: &MemberAddress) -> Option<String> {
        let answer = self.client(&member.url).ok()?.replication_within(ANSWERS_WAIT_MAX);
        answer.ok()?.primary
    }

    /// Lets the clients of all other servers go. Each has a thread, and a standby may come back at another address each time.
    fn keep_clients_of(&self, members: &[MemberAddress]) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|url, _| members.iter().any(|member| member.url == *url));
    }

    /// Returns the client of a URL, which is made once as long as the server is asked.
    fn client(&self, url: &str) -> Result<Client, String> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = clients.get(url) {
            return Ok(known.clone());
        }
        let is_safe = url.starts_with("https:") || !self.is_encrypted;
        let token = self.token.as_deref().filter(|_| is_safe);
        let client = remote::client(url, token, self.ca_cert.as_deref()).map_err(|error| error.to_string())?;
        clients.insert(url.to_owned(), client.clone());
        Ok(client)
    }

    fn reason(&self, error: &ClientError) -> String {
        match error {
            ClientError::Problem(problem) if problem.status == 401 => {
                let which = if self.token.is_some() {
                    "the token"
                } else {
                    "a question without a token"
                };
                format!("it refuses {which}. Give this server one of its tokens as REPRISE_STANDBY_TOKEN")
            }
            other => other.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_servers_that_are_asked_now_have_a_client() {
        let asker = Asker {
            token: None,
            ca_cert: None,
            is_encrypted: false,
            database_id: String::new(),
            clients: Mutex::default(),
        };
        let member = |port: u16| MemberAddress {
            name: "b".into(),
            url: format!("http://127.0.0.1:{port}"),
        };
        for port in 1..=3 {
            asker.client(&member(port).url).expect("a URL");
        }
        asker.keep_clients_of(&[member(2), member(4)]);
        let kept: Vec<_> = asker.clients.lock().expect("held for a look").keys().cloned().collect();
        assert_eq!(kept, [member(2).url]);
    }
}
