//! The things that a deployment destroys, and the consent to exactly these.

use std::fmt;

use reprise_abi::schema::is_valid_name;
use reprise_base::named_enum;
use reprise_storage::Conflict;

/// Consent to destroy one thing: `drop-column:ledger.payouts.bank_reference`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consent {
    /// The kind of thing that would be destroyed.
    pub kind: ConsentKind,
    /// Its full name, the module's first.
    pub name: String,
}

named_enum! {
    /// Kinds of things that a deployment can destroy.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ConsentKind {
        /// The values of a column: `MODULE.TABLE.COLUMN`.
        DropColumn = 1 => "drop-column",
        /// A table with its rows: `MODULE.TABLE`. A deployment drops no table today.
        DropTable = 2 => "drop-table",
        /// A procedure that clients may call: `MODULE.PROCEDURE`.
        DropProcedure = 3 => "drop-procedure",
        /// The owner of a table that has rows: `MODULE.TABLE`.
        AbandonTable = 4 => "abandon-table",
    }
}

impl ConsentKind {
    /// Returns the kind behind its number in the log.
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Returns the form of its names.
    fn form(self) -> &'static str {
        match self {
            Self::DropColumn => "MODULE.TABLE.COLUMN",
            Self::DropTable | Self::AbandonTable => "MODULE.TABLE",
            Self::DropProcedure => "MODULE.PROCEDURE",
        }
    }
}

impl Consent {
    /// Returns consent of this kind to the thing with these names.
    pub(crate) fn to(kind: ConsentKind, names: &[&str]) -> Self {
        Self {
            kind,
            name: names.join("."),
        }
    }

    /// True if it is consent to the thing that `needed` names.
    pub fn covers(&self, needed: &Self) -> bool {
        let own_name = needed.name.split_once('.').map(|(_, name)| name);
        let is_procedure = needed.kind == ConsentKind::DropProcedure && own_name == Some(&*self.name);
        self.kind == needed.kind && (self.name == needed.name || is_procedure)
    }

    /// Parses `KIND:NAME`. Err: why the text is no consent.
    pub fn parse(text: &str) -> Result<Self, String> {
        let kinds = ConsentKind::ALL.map(|kind| format!("{kind}:{}", kind.form()));
        let unknown = || format!("{text:?} is not a consent; write one of {}", kinds.join(", "));
        let (word, name) = text.split_once(':').ok_or_else(unknown)?;
        let kind = word.parse::<ConsentKind>().map_err(|_| unknown())?;
        let names: Vec<_> = name.split('.').collect();
        // A procedure's own name is enough, because the request names the module.
        let is_procedure = kind == ConsentKind::DropProcedure && names.len() == 1;
        let is_whole = is_procedure || names.len() == kind.form().split('.').count();
        match is_whole && names.iter().all(|name| is_valid_name(name)) {
            true => Ok(Self::to(kind, &names)),
            false => Err(format!(
                "{text:?} does not name one thing in full: write {word}:{}, without wildcards",
                kind.form()
            )),
        }
    }
}

impl fmt::Display for Consent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.name)
    }
}

/// One thing that a deployment destroys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestroyedItem {
    /// The consent that it needs.
    pub consent: Consent,
    /// Values of a column, or rows of a table; 0 for a procedure.
    pub count: u64,
    /// False: `count` is an upper bound, because the values were not counted.
    pub is_exact: bool,
}

impl DestroyedItem {
    /// Returns the refusal for lack of consent to this.
    pub fn as_conflict(&self) -> Conflict {
        let names: Vec<_> = self.consent.name.split('.').collect();
        let (table, item, what) = match (self.consent.kind, &names[..]) {
            (ConsentKind::DropColumn, [module, table, column]) => (format!("{module}.{table}"), *column, "column"),
            (ConsentKind::DropProcedure, [.., procedure]) => (String::new(), *procedure, "procedure"),
            _ => (self.consent.name.clone(), "", "table"),
        };
        let most = if self.is_exact { "" } else { "at most " };
        let (stored, declared) = match self.consent.kind {
            ConsentKind::DropColumn => (format!("{most}{} values", self.count), "no such column"),
            ConsentKind::DropProcedure => ("a procedure that clients may call".to_owned(), "no such procedure"),
            ConsentKind::DropTable => (format!("{most}{} rows", self.count), "no such table"),
            ConsentKind::AbandonTable => (format!("{most}{} rows", self.count), "by no module in service"),
        };
        let way_on = format!("keep it, or consent to the loss: allow={}", self.consent);
        super::conflict(&table, item, what, &stored, declared, &way_on)
    }
}

impl fmt::Display for DestroyedItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.consent.kind {
            ConsentKind::DropColumn => "value",
            ConsentKind::DropTable | ConsentKind::AbandonTable => "row",
            ConsentKind::DropProcedure => return write!(f, "{}", self.consent),
        };
        let (most, plural) = (
            if self.is_exact { "" } else { "at most " },
            if self.count == 1 { "" } else { "s" },
        );
        write!(f, "{} ({most}{} {what}{plural})", self.consent, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consent_is_read_back_as_it_is_written() {
        for text in [
            "drop-column:ledger.payouts.bank_reference",
            "drop-table:ledger.payouts",
            "drop-procedure:ledger.settle",
            "abandon-table:ledger.payouts",
        ] {
            assert_eq!(
                Consent::parse(text).map(|consent| consent.to_string()),
                Ok(text.to_owned())
            );
        }
    }

    #[test]
    fn consent_covers_what_it_names_alone() {
        let covers = |given: &str, needed: &str| {
            let [given, needed] = [given, needed].map(|text| Consent::parse(text).expect(text));
            given.covers(&needed)
        };
        assert!(covers("drop-column:a.b.c", "drop-column:a.b.c"));
        assert!(covers("drop-procedure:settle", "drop-procedure:a.settle"));
        assert!(!covers("drop-column:a.b.c", "drop-column:a.b.d"));
        assert!(!covers("drop-procedure:b.settle", "drop-procedure:a.settle"));
        assert!(!covers("drop-table:a.b", "abandon-table:a.b"));
    }

    #[test]
    fn consent_is_refused_when_it_names_no_single_thing() {
        for text in [
            "",
            "all",
            "drop-column:",
            "drop-column:ledger.payouts.*",
            "drop-column:payouts.bank_reference",
            "drop-table:payouts",
            "drop-procedure:*",
            "drop-index:ledger.payouts.by_merchant",
        ] {
            let why = Consent::parse(text).expect_err(text);
            assert!(why.contains("drop-"), "{why}");
        }
    }
}
