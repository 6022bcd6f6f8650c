//! The forms of the log: the server's choice, what standbys get, and what one transaction leaves.

use reprise_base::named_enum;
use reprise_wire::TwoForms;

named_enum! {
    /// The server's choice of the log's form.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub enum LogPolicy {
        /// The command, unless the procedure says otherwise.
        #[default]
        Command => "command",
        /// The changed rows, unless the procedure says otherwise.
        Physiological => "physiological",
        /// The form that costs less by measurement, unless the procedure says otherwise.
        Auto => "auto",
        /// Each transaction in both forms, whatever its procedure declares. It serves to compare them.
        Both => "both",
        /// There is no log.
        None => "none",
    }
}

named_enum! {
    /// The form in which standbys get a transaction, whatever form this server's own log has.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub enum ShipForm {
        /// The form of the log.
        #[default]
        AsLogged => "as-logged",
        /// Changes, which name rows by their numbers. Replay searches no index for an update, and runs no procedure.
        Changes => "changes",
        /// The command. Replay runs it again and compares its digest.
        Command => "command",
    }
}

/// The form of a transaction in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogForm {
    /// The command, which replay runs again.
    Command,
    /// The rows that it changed.
    Changes,
    /// Both, in one append.
    Both,
    /// One form here, and the other form for standbys.
    Apart(TwoForms),
    /// Neither: there is no log.
    Nothing,
}

impl LogForm {
    /// Returns the form for a server whose standbys get `shipped`.
    #[inline]
    pub fn shipped_as(self, shipped: ShipForm) -> Self {
        match (self, shipped) {
            (Self::Command, ShipForm::Changes) => Self::Apart(TwoForms::CommandHere),
            (Self::Changes, ShipForm::Command) => Self::Apart(TwoForms::ChangesHere),
            _ => self,
        }
    }

    /// True if the log or the standbys need the changes of a transaction.
    #[inline]
    pub fn has_changes(self) -> bool {
        matches!(self, Self::Changes | Self::Both | Self::Apart(_))
    }
}
