//! A primary that starts asks the standbys that it had whether one of them was promoted since.

use std::{
    path::PathBuf,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use reprise_api::Status;
use reprise_base::hex;
use reprise_client::ClientError;
use reprise_database::{LogPolicy, MemberAddress, MemberAnswer, NodeFile};
use reprise_env::RealDisk;
use reprise_log::database_id;

use crate::{
    config::ServeConfig,
    output::{Failure, Outcome},
    remote, server_output,
};

/// Longest wait for all answers. A start is delayed by this time only if a member neither answers nor refuses the connection.
const ANSWERS_WAIT_MAX: Duration = Duration::from_secs(2);

/// The credential with which members are asked: that of a standby, because each server of a cluster may become one.
struct Asker {
    token: Option<String>,
    ca_cert: Option<PathBuf>,
    /// This server's clients are encrypted, so its token does not travel in the clear either.
    is_encrypted: bool,
    /// Id of the database in hexadecimal digits.
    database_id: String,
}

/// Checks that no standby of this directory leads by now. A lease decides that by itself. A member that does not answer counts as one that
/// does not lead: it may be lost for good.
///
/// # Errors
/// A member leads, or follows a primary, in a later epoch than the last one of this directory.
pub fn check(config: &ServeConfig, is_encrypted: bool) -> Outcome {
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
    let asker = Arc::new(Asker {
        token: settings.standby_token.value.as_ref().map(|secret| secret.0.clone()),
        ca_cert: settings.standby_ca_cert.value.clone(),
        is_encrypted,
        database_id: hex(&id),
    });
    let answers = ask_all(&asker, members)?;
    node.check_answers(&answers)
        .map_err(|error| Failure::Other(error.into()))
}

/// Asks all members at once. The threads of those that do not answer in time end by themselves.
fn ask_all(asker: &Arc<Asker>, members: Vec<MemberAddress>) -> Result<Vec<MemberAnswer>, Failure> {
    let (sender, told) = mpsc::channel();
    let until = Instant::now() + ANSWERS_WAIT_MAX;
    let mut silent = members.clone();
    for member in members {
        let (asker, sender) = (asker.clone(), sender.clone());
        let ask = move || {
            let answer = asker.ask(&member);
            let _ = sender.send((member, answer)); // the start may have gone on
        };
        let asking = thread::Builder::new().name("ask-member".into()).spawn(ask);
        asking.context("start a thread")?;
    }
    drop(sender);
    let mut answers = Vec::new();
    while let Ok((member, answer)) = told.recv_timeout(until.saturating_duration_since(Instant::now())) {
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
    let told = format!("whether {name} at {url} leads by now is not known: {reason}");
    server_output::warning("member_unknown", told);
}

impl Asker {
    /// Asks one member. None: the server at this address has another database.
    fn ask(&self, member: &MemberAddress) -> Result<Option<MemberAnswer>, String> {
        let is_safe = member.url.starts_with("https:") || !self.is_encrypted;
        let token = self.token.as_deref().filter(|_| is_safe);
        let client = remote::client(&member.url, token, self.ca_cert.as_deref()).map_err(|error| error.to_string())?;
        let status = client.status().map_err(|error| self.reason(&error))?;
        if status.database_id != self.database_id {
            return Ok(None);
        }
        let Status { role, epoch, .. } = status;
        // A standby whose primary is not known answers all the same.
        let primary = client.replication().ok().and_then(|told| told.primary);
        Ok(Some(MemberAnswer {
            member: member.clone(),
            is_primary: role == "primary",
            epoch: epoch.unwrap_or(0),
            primary,
        }))
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
