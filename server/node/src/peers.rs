//! Questions of a standby to the other standbys of its primary.

use std::sync::Arc;

use reprise_base::{Epoch, Lsn};
use reprise_router::{PeerMember, PeerStatus, PromiseAnswer, PromiseQuestion};

use crate::{
    remote,
    standby::{ASK_TIME, Primary},
};

impl Primary {
    /// Asks another standby for a promise.
    pub fn ask_peer(&self, url: &str, asked: &PromiseQuestion) -> Result<PromiseAnswer, Arc<str>> {
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
        let told = client.promise(&asked, ASK_TIME).map_err(|error| error.to_string())?;
        Ok(PromiseAnswer {
            name: told.name,
            epoch: Epoch(told.epoch),
            end: Lsn(told.end_lsn.0),
            has_been_in_sync: told.has_been_in_sync,
            promises: told
                .promises
                .into_iter()
                .map(|promise| (Epoch(promise.epoch), promise.name))
                .collect(),
            status: told.status.map(|status| PeerStatus {
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
