//! Questions of a standby to the other standbys of its primary.

use std::{
    sync::{Arc, Weak, mpsc},
    thread,
    time::{Duration, Instant},
};

use reprise_api::{EpochPromise, PromiseMember};
use reprise_base::{Epoch, Lsn, check_node_name, hex, limits::STANDBYS_MAX};
use reprise_database::PeerAnswer;
use reprise_router::{PeerMember, PeerStatus, PromiseAnswer, PromiseQuestion};

use crate::{remote, standby::Primary};

impl Primary {
    /// Asks other standbys for a promise, all at once. A server that has not answered within the time of all counts as silent. Its thread ends by
    /// itself, and sends no question after that time.
    pub fn ask_peers(self: &Arc<Self>, urls: &[String], asked: &PromiseQuestion) -> Vec<PeerAnswer> {
        let (sender, receiver) = mpsc::channel();
        let until = Instant::now() + self.round_max;
        let round_s = self.round_max.as_secs();
        let silent = |url: &String| Err(format!("{url} does not answer within {round_s} s").into());
        let mut answers: Vec<PeerAnswer> = urls.iter().map(silent).collect();
        for (at, url) in urls.iter().enumerate() {
            let (primary, sender, url, asked) = (self.clone(), sender.clone(), url.clone(), asked.clone());
            let ask = move || {
                let answer = primary.ask_peer(&url, &asked, until);
                let _ = sender.send((at, answer)); // the promotion may have continued without the answer
            };
            if let Err(error) = thread::Builder::new().name("ask-peer".into()).spawn(ask) {
                answers[at] = Err(format!("start a thread: {error}").into());
            }
        }
        drop(sender);
        while let Ok((at, answer)) = receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
            answers[at] = answer;
        }
        answers
    }

    fn ask_peer(&self, url: &str, asked: &PromiseQuestion, until: Instant) -> PeerAnswer {
        if !self.is_as_safe(url) {
            return Err(format!("{url} is not asked: the token would go there in the clear").into());
        }
        let client = remote::client(url, self.token.as_deref(), self.ca_cert.as_deref());
        let client = client.map_err(|_| format!("{url} is no URL of a server"))?;
        let left = || match until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err("its time is over"),
            left => Ok(left),
        };
        // A server of another database would promise, too: it would leave its own primary, and its name could be a member's.
        let status = client.status_within(left()?).map_err(|error| error.to_string())?;
        let own = self.database.get().and_then(Weak::upgrade);
        let own = own.ok_or("this server stops")?.router().status().database_id;
        if status.database_id != hex(&own) {
            return Err(format!("the server at {url} has another database").into());
        }
        let asked = reprise_api::PromiseRequest {
            epoch: asked.epoch.count(),
            epoch_writer: asked.epoch.writer(),
            name: asked.name.clone(),
            url: asked.url.as_deref().map(str::to_owned),
            withdrawn: asked.is_withdrawn,
        };
        let answer = client.promise(&asked, left()?).map_err(|error| error.to_string())?;
        check_names(&answer).map_err(|reason| format!("the answer of {url} can't be used: {reason}"))?;
        Ok(read_answer(answer))
    }
}

/// Checks the names in an answer. They go to the document of this server, which has to be readable at the next start.
fn check_names(answer: &EpochPromise) -> Result<(), String> {
    let members = answer.status.iter().flat_map(|status| &status.members);
    if members.clone().count() > STANDBYS_MAX {
        return Err(format!("it names more than {STANDBYS_MAX} standbys"));
    }
    let promised = answer.promises.iter().map(|promise| &promise.name);
    let mut names = members.map(|member| &member.name).chain(promised).chain([&answer.name]);
    names.try_for_each(|name| check_node_name(name))
}

fn read_answer(answer: EpochPromise) -> PromiseAnswer {
    PromiseAnswer {
        name: answer.name,
        epoch: Epoch::new(answer.epoch, answer.epoch_writer),
        end: Lsn(answer.end_lsn.0),
        has_been_in_sync: answer.has_been_in_sync,
        promises: answer
            .promises
            .into_iter()
            .map(|promise| (Epoch::new(promise.epoch, promise.epoch_writer), promise.name))
            .collect(),
        status: answer.status.map(|status| PeerStatus {
            epoch: Epoch::new(status.epoch, status.epoch_writer),
            number: status.number.0,
            members: status.members.into_iter().map(read_member).collect(),
        }),
    }
}

fn read_member(member: PromiseMember) -> PeerMember {
    PeerMember {
        name: member.name,
        url: member.url,
        from: Lsn(member.from_lsn.0),
        is_in_sync: member.in_sync,
        is_counted: member.counted,
        is_counted_next: member.counted_next,
    }
}

#[cfg(test)]
mod tests;
