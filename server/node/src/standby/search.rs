//! The search of a standby for its primary. It may be the server that got a promise, the holder of the lease, the server that the operator named,
//! or a successor.

use std::sync::Weak;

use reprise_api::ProblemKind;
use reprise_base::Role;
use reprise_client::{Client, ClientError};
use reprise_database::PromisedPrimary;

use super::{ASK_TIME, Primary};
use crate::remote;

impl Primary {
    /// Asks the primary. A server that handed over names its successor, which is then asked.
    pub(super) fn ask<T>(&self, question: impl Fn(&Client) -> Result<T, ClientError>) -> Result<T, ClientError> {
        let database = self.database.get().and_then(Weak::upgrade);
        let leased = database.as_ref().and_then(|database| database.leased_primary());
        if let Some(promised) = database.and_then(|database| database.promised_primary())
            && let Some(answer) = self.ask_promised(&promised, &question)
            && (answer.is_ok() || leased.is_none())
        {
            return answer;
        }
        if let Some(url) = leased
            && let Some(successor) = self.record_successor(Some(&url))
        {
            let client = remote::client(&successor, self.token.as_deref(), self.ca_cert.as_deref());
            if let (true, Ok(client)) = (successor == url, client) {
                return question(&client);
            }
        }
        let answer = question(&self.client);
        let successor = match &answer {
            Err(ClientError::Problem(problem)) if problem.kind() == Some(ProblemKind::NotPrimary) => {
                self.record_successor(problem.primary.as_deref())
            }
            // The successor may be gone by now.
            Err(ClientError::Connect { .. } | ClientError::Http(_)) => self.record_successor(None),
            _ => None,
        };
        match successor.map(|url| remote::client(&url, self.token.as_deref(), self.ca_cert.as_deref())) {
            Some(Ok(client)) => question(&client),
            _ => answer,
        }
    }

    /// Asks the server that got the promise. None: the server that the operator named is to be asked.
    ///
    /// Both may lead. This standby may follow the named one if its epoch is after the promised one, and then the operator's word decides. A
    /// named one of an earlier epoch would refuse a standby that has followed the promised one, and the standby would end its search.
    fn ask_promised<T>(
        &self,
        promised: &PromisedPrimary,
        question: impl Fn(&Client) -> Result<T, ClientError>,
    ) -> Option<Result<T, ClientError>> {
        let named = self.client.status_within(ASK_TIME).ok();
        let named = named.filter(|status| status.role == Role::Primary.name());
        let named_epoch = named.and_then(|status| status.epoch);
        if named_epoch > Some(promised.epoch.count()) || !self.is_as_safe(&promised.url) {
            return None;
        }
        let client = remote::client(&promised.url, self.token.as_deref(), self.ca_cert.as_deref()).ok()?;
        let is_named_deposed = promised.is_followed && named_epoch.is_some();
        // It may lead in an earlier epoch alone, whose records this standby does not have.
        let status = client.status_within(ASK_TIME).ok();
        let leads_in = status
            .filter(|status| status.role == Role::Primary.name())
            .and_then(|status| status.epoch);
        if leads_in < Some(promised.epoch.count()) && !is_named_deposed {
            return None;
        }
        let answer = question(&client);
        (answer.is_ok() || is_named_deposed).then_some(answer)
    }

    /// True if the token may go to this URL: never in the clear if it was encrypted before.
    pub fn is_as_safe(&self, url: &str) -> bool {
        url.starts_with("https:") || !self.url.starts_with("https:")
    }

    /// Records the successor that a server named. Returns the last one that was named.
    fn record_successor(&self, named: Option<&str>) -> Option<String> {
        let named =
            named.filter(|url| *url != self.url && Some(*url) != self.own_url.as_deref() && self.is_as_safe(url));
        let mut successor = self.successor.lock().expect("held for a copy");
        if let Some(url) = named {
            *successor = Some(url.to_owned());
        }
        successor.clone()
    }
}
