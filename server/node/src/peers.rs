//! Questions of a standby to the other standbys of its primary.

use std::{io, thread};

use reprise_base::{Epoch, Lsn};
use reprise_database::PeerAnswer;
use reprise_router::{PeerMember, PeerStatus, PromiseAnswer, PromiseQuestion};

use crate::{
    remote,
    standby::{ASK_TIME, Primary},
};

impl Primary {
    /// Asks other standbys for a promise, all at once: silent ones cost the time of one.
    pub fn ask_peers<'a>(&'a self, urls: &'a [String], asked: &'a PromiseQuestion) -> Vec<PeerAnswer> {
        thread::scope(|scope| {
            let ask = |url: &'a String| thread::Builder::new().spawn_scoped(scope, move || self.ask_peer(url, asked));
            let asking: Vec<_> = urls.iter().map(ask).collect();
            let answer = |thread: io::Result<thread::ScopedJoinHandle<'_, PeerAnswer>>| match thread.map(|it| it.join())
            {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err("the question ended in a panic".into()),
                Err(error) => Err(format!("start a thread: {error}").into()),
            };
            asking.into_iter().map(answer).collect()
        })
    }

    fn ask_peer(&self, url: &str, asked: &PromiseQuestion) -> PeerAnswer {
        if !self.is_as_safe(url) {
            return Err(format!("{url} is not asked: the token would go there in the clear").into());
        }
        let client = remote::client(url, self.token.as_deref(), self.ca_cert.as_deref());
        let client = client.map_err(|_| format!("{url} is no URL of a server"))?;
        let asked = reprise_api::PromiseRequest {
            epoch: asked.epoch.0,
            name: asked.name.clone(),
            url: asked.url.as_deref().map(str::to_owned),
            withdrawn: asked.is_withdrawn,
        };
        let answer = client.promise(&asked, ASK_TIME).map_err(|error| error.to_string())?;
        Ok(PromiseAnswer {
            name: answer.name,
            epoch: Epoch(answer.epoch),
            end: Lsn(answer.end_lsn.0),
            has_been_in_sync: answer.has_been_in_sync,
            promises: answer
                .promises
                .into_iter()
                .map(|promise| (Epoch(promise.epoch), promise.name))
                .collect(),
            status: answer.status.map(|status| PeerStatus {
                epoch: Epoch(status.epoch),
                number: status.number.0,
                members: status
                    .members
                    .into_iter()
                    .map(|member| PeerMember {
                        name: member.name,
                        url: member.url,
                        from: Lsn(member.from_lsn.0),
                        is_in_sync: member.in_sync,
                        is_counted: member.counted,
                        is_counted_next: member.counted_next,
                    })
                    .collect(),
            }),
        })
    }
}
