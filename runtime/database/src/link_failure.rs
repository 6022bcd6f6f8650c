//! The reasons for which a standby has no connection to its primary.

use reprise_ship::LinkError;
use reprise_wire::Refusal;

use crate::linking::TicketError;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("ask the primary for a ticket: {0}")]
    Ticket(#[from] TicketError),
    #[error(transparent)]
    Link(#[from] LinkError),
}

impl Failure {
    /// The primary does not hold what is here.
    pub fn is_of_another_history(&self) -> bool {
        let Self::Link(LinkError::Refused { refusal, .. }) = self else {
            return false;
        };
        matches!(refusal, Refusal::Diverged | Refusal::Database)
    }

    /// The primary was reached, and does not take this standby: what it answers from then on may not come here. One that stops, or gives its place
    /// away, says so to those that it took, and answers nothing more.
    pub fn is_refusal(&self, was_taken: bool) -> bool {
        match self {
            Self::Link(LinkError::Refused { refusal, .. }) => match refusal {
                Refusal::Ticket => false,
                Refusal::Unavailable => !was_taken,
                _ => true,
            },
            _ => false,
        }
    }

    /// Whether a later try can't succeed. A primary that gives no ticket may give one later: after a token is entered, or a promotion ends.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Ticket(_) => false,
            Self::Link(error) => error.is_final(),
        }
    }
}
