//! The questions of replication: how far standbys are, who leads, and the requests of servers to each other.

use std::time::Duration;

use reprise_api::{
    EpochPromise, JoinRequest, JoinTicket, PromiseRequest, Promotion, Replication, Status, StepDownRequest, SteppedDown,
};

use crate::{answers::read_short, client::Client, error::ClientError};

/// Longest wait for a ticket. A primary that can give one gives it at once.
const JOIN_WAIT_MAX: Duration = Duration::from_secs(5);

impl Client {
    /// The `status` question that waits at most `wait_max` for its answer.
    pub fn status_within(&self, wait_max: Duration) -> Result<Status, ClientError> {
        let request = self.http.get(self.at(&["v1", "status"]));
        read_short(self.send(request.timeout(wait_max))?)
    }

    /// The primary, and the progress of each standby.
    pub fn replication(&self) -> Result<Replication, ClientError> {
        self.get(&["v1", "replication"])
    }

    /// The `replication` question that waits at most `wait_max` for its answer.
    pub fn replication_within(&self, wait_max: Duration) -> Result<Replication, ClientError> {
        let request = self.http.get(self.at(&["v1", "replication"]));
        read_short(self.send(request.timeout(wait_max))?)
    }

    /// Makes the server, a standby, the primary: the old one is asked to step down first, unless `force`. With that, one that is out of sync is
    /// promoted where `accept_loss` says so. Returns once it takes writes.
    pub fn promote(&self, force: bool, accept_loss: bool) -> Result<Promotion, ClientError> {
        let mut url = self.at(&["v1", "replication", "promote"]);
        if force {
            url.query_pairs_mut().append_pair("force", "true");
        }
        if accept_loss {
            url.query_pairs_mut().append_pair("accept_loss", "true");
        }
        self.json(self.http.post(url))
    }

    /// Asks a primary to hand over to a standby of this name, whose clients reach it at `url`. Err also if it does not answer within
    /// `wait_max`: its state is not known then.
    pub fn step_down(&self, name: &str, url: Option<&str>, wait_max: Duration) -> Result<SteppedDown, ClientError> {
        let asked = StepDownRequest {
            name: name.to_owned(),
            url: url.map(str::to_owned),
        };
        let request = self.http.post(self.at(&["v1", "replication", "step-down"]));
        read_short(self.send(request.timeout(wait_max).json(&asked))?)
    }

    /// Asks a standby to promise an epoch to a server that will lead. It waits at most `wait_max`.
    pub fn promise(&self, asked: &PromiseRequest, wait_max: Duration) -> Result<EpochPromise, ClientError> {
        let request = self.http.post(self.at(&["v1", "replication", "promise"]));
        read_short(self.send(request.timeout(wait_max).json(asked))?)
    }

    /// Forgets a standby that is lost and will not come back.
    pub fn forget_standby(&self, name: &str) -> Result<(), ClientError> {
        self.send(self.http.delete(self.at(&["v1", "replication", "standbys", name])))
            .map(drop)
    }

    /// Asks a primary to let a standby of this name connect.
    pub fn join(&self, asked: &JoinRequest) -> Result<JoinTicket, ClientError> {
        let request = self.http.post(self.at(&["v1", "replication", "join"]));
        read_short(self.send(request.timeout(JOIN_WAIT_MAX).json(asked))?)
    }
}
