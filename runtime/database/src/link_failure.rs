//! The reasons for which a standby has no connection to its primary.

use reprise_ship::LinkError;
use reprise_wire::StandbyRefusal;

use crate::primary_connection::TicketError;

/// Why a standby has no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkFailure {
    #[error("ask the primary for a ticket: {0}")]
    Ticket(#[from] TicketError),
    #[error(transparent)]
    Link(#[from] LinkError),
}

impl LinkFailure {
    /// True if the primary does not hold the records of this standby.
    pub fn is_of_another_history(&self) -> bool {
        let Self::Link(LinkError::Refused { refusal, .. }) = self else {
            return false;
        };
        matches!(refusal, StandbyRefusal::Diverged | StandbyRefusal::Database)
    }

    /// True if a primary answered and does not take this standby. Its later writes may then not reach this standby. A primary that stops or
    /// hands over tells its connected standbys so, and acknowledges no more writes: that is no refusal to them (`was_taken`).
    pub fn is_refusal(&self, was_taken: bool) -> bool {
        match self {
            Self::Link(LinkError::Refused { refusal, .. }) => match refusal {
                StandbyRefusal::Ticket => false,
                StandbyRefusal::Unavailable => !was_taken,
                _ => true,
            },
            _ => false,
        }
    }

    /// True if no later attempt can succeed. A primary that gives no ticket may give one later: after an operator enters a token, or when a
    /// promotion ends.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Ticket(_) => false,
            Self::Link(error) => error.is_final(),
        }
    }
}
