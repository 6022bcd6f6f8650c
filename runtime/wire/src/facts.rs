//! Facts of a record. A reader asks for these, and matches the kind only if it needs something that one kind alone has.

use reprise_base::{PartitionId, TxnId};

use crate::{Genesis, KeyRef, PartitionSet, RecordRef, changes::groups_of};

/// Effect of a record when the log is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordEffect {
    Nothing,
    /// Modules, tables, or which procedures take calls, change.
    Control,
    /// A checkpoint may begin behind it.
    Mark,
    /// A procedure runs again.
    Call,
    /// Rows are put in place, and nothing runs.
    Rows,
}

/// Extent of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordScope<'a> {
    /// An LSN without a record.
    Nothing,
    /// The database as a whole.
    Database,
    /// The partitions that a call touched.
    Partitions(PartitionSet<'a>),
}

/// Properties that all kinds of records have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordFacts<'a> {
    /// Name of the kind, as the API and the command line show it.
    pub shown_as: &'static str,
    pub effect: RecordEffect,
    pub scope: RecordScope<'a>,
    /// Numbers of the module version and of the procedure that the record names.
    pub procedure: Option<(u32, u16)>,
    pub keyed: Option<KeyRef<'a>>,
    /// Number of the caller's name; 0 without tokens, and of records that no call left.
    pub principal: u32,
    /// False for a part: it counts only if the record of changes follows that ends its transaction.
    pub standalone: bool,
}

impl<'a> RecordRef<'a> {
    /// Properties of the record. A new kind states all of its own here.
    pub fn facts(&self) -> RecordFacts<'a> {
        let of_database = |effect| RecordFacts {
            shown_as: self.kind().name(),
            effect,
            scope: RecordScope::Database,
            procedure: None,
            keyed: None,
            principal: 0,
            standalone: true,
        };
        let of_call = |effect, partitions, procedure| RecordFacts {
            scope: RecordScope::Partitions(partitions),
            procedure: Some(procedure),
            ..of_database(effect)
        };
        match *self {
            Self::Genesis(_) => of_database(RecordEffect::Nothing),
            Self::Void => RecordFacts {
                scope: RecordScope::Nothing,
                ..of_database(RecordEffect::Nothing)
            },
            Self::Checkpoint(_) => of_database(RecordEffect::Mark),
            Self::Principal(_) | Self::Control(_) => of_database(RecordEffect::Nothing),
            Self::Deploy(_) | Self::Remove(_) | Self::DropTable(_) => of_database(RecordEffect::Control),
            Self::Quarantine(found) => RecordFacts {
                procedure: Some((found.module_id, found.procedure)),
                ..of_database(RecordEffect::Control)
            },
            Self::Command(command) => RecordFacts {
                keyed: command.keyed,
                principal: command.principal,
                ..of_call(
                    RecordEffect::Call,
                    command.partitions,
                    (command.module_id, command.procedure),
                )
            },
            Self::Changes(changes) => RecordFacts {
                keyed: changes.keyed.map(|keyed| keyed.call),
                principal: changes.principal,
                ..of_call(
                    RecordEffect::Rows,
                    changes.partitions,
                    (changes.module_id, changes.procedure),
                )
            },
            Self::Part(part) => RecordFacts {
                standalone: false,
                ..of_call(RecordEffect::Rows, part.partitions, (part.module_id, part.procedure))
            },
        }
    }

    /// The description of the database, in the log's first record.
    pub fn genesis(&self) -> Option<Genesis> {
        match self {
            Self::Genesis(genesis) => Some(*genesis),
            _ => None,
        }
    }

    /// Time of the transaction, or of the database's creation.
    pub fn time_us(&self) -> Option<i64> {
        let created_us = self.genesis().map(|genesis| genesis.created_us);
        created_us.or(self.txn_id().map(TxnId::time_us))
    }

    /// The changed rows by partition, as [`crate::ChangesRef::groups`]; nothing if the record puts no rows in place.
    pub fn groups(&self) -> impl Iterator<Item = (PartitionId, &'a [u8])> {
        let (partitions, changes) = match *self {
            Self::Changes(changes) => (changes.partitions, changes.changes),
            Self::Part(part) => (part.partitions, part.changes),
            _ => (PartitionSet::All, &[][..]),
        };
        groups_of(partitions, changes)
    }
}

/// A walk over a log that finds the changes which stand beside their command: replay applies one of the two.
#[derive(Debug, Default)]
pub struct PairWalk {
    /// Transaction of the record before, if that is a command.
    command: Option<TxnId>,
}

impl PairWalk {
    /// Takes the next record. Returns true if it holds the changes of the command before it.
    pub fn is_beside(&mut self, record: &RecordRef<'_>) -> bool {
        let (facts, txn_id) = (record.facts(), record.txn_id());
        let command = self.command.take();
        self.command = txn_id.filter(|_| facts.effect == RecordEffect::Call);
        facts.effect == RecordEffect::Rows && command.is_some() && command == txn_id
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use reprise_base::Lsn;

    use super::*;
    use crate::{
        ChangesRef, CheckpointMark, CommandRef, ControlRef, DeployRef, DropTableRef, KeyedRef, PartRef, PrincipalRef,
        QuarantineRef, RecordKind, RemoveRef,
    };

    const TXN: TxnId = TxnId(9 << 10);
    const ONE: PartitionSet<'_> = PartitionSet::One(PartitionId(7));

    fn one_of_each() -> [RecordRef<'static>; RecordKind::ALL.len()] {
        let (module_id, procedure) = (3, 2);
        let call = KeyRef {
            key: b"key",
            scope: b"ci",
            fingerprint: 0,
        };
        let keyed = KeyedRef {
            call,
            args_hash: 0,
            result: b"",
        };
        [
            RecordRef::Genesis(Genesis {
                database_id: [1; 16],
                secret: [1, 2],
                partitions: 8,
                created_us: 5,
            }),
            RecordRef::Deploy(DeployRef {
                txn_id: TXN,
                module_id,
                version: 1,
                name: "m",
                hash: [0; 32],
                wasm: b"",
                tables: Default::default(),
                destroyed: Default::default(),
                migration: None,
            }),
            RecordRef::Remove(RemoveRef {
                txn_id: TXN,
                name: "m",
                destroyed: Default::default(),
            }),
            RecordRef::Command(CommandRef {
                txn_id: TXN,
                partitions: PartitionSet::All,
                module_id,
                procedure,
                digest: 1,
                principal: 0,
                keyed: Some(KeyRef { scope: b"", ..call }),
                args: b"",
            }),
            RecordRef::Changes(ChangesRef {
                txn_id: TXN,
                partitions: ONE,
                module_id,
                procedure,
                digest: 1,
                principal: 9,
                parts: 1,
                keyed: Some(keyed),
                changes: b"changes",
            }),
            RecordRef::Checkpoint(CheckpointMark {
                txn_id: TXN,
                key_clock_us: 1,
            }),
            RecordRef::DropTable(DropTableRef {
                txn_id: TXN,
                table: "m.t",
            }),
            RecordRef::Void,
            RecordRef::Quarantine(QuarantineRef {
                txn_id: TXN,
                module_id,
                procedure,
                diverged: Lsn(1),
                what: "",
            }),
            RecordRef::Part(PartRef {
                txn_id: TXN,
                partitions: ONE,
                module_id,
                procedure,
                number: 0,
                changes: b"changes",
            }),
            RecordRef::Principal(PrincipalRef {
                txn_id: TXN,
                number: 9,
                name: "ci",
            }),
            RecordRef::Control(ControlRef {
                txn_id: TXN,
                took_us: 7,
                principal: "ci",
                operation: "deploy-module",
                outcome: "done",
                subject: "shop",
            }),
        ]
    }

    #[test]
    fn facts_of_each_kind() {
        let records = one_of_each();
        assert_eq!(records.map(|record| record.kind()), RecordKind::ALL);
        let lines = records.map(|record| {
            let facts = record.facts();
            assert_eq!(record.groups().count(), usize::from(facts.effect == RecordEffect::Rows));
            let scope = match facts.scope {
                RecordScope::Partitions(PartitionSet::One(one)) => format!("Partition {one}"),
                other => format!("{other:?}"),
            };
            let key = facts
                .keyed
                .map(|keyed| [keyed.key, keyed.scope].map(String::from_utf8_lossy).join("@"));
            format!(
                "{:<10}  {:<7}  {scope:<15}  {:<14}  {:<6}  {}  {}",
                facts.shown_as,
                format!("{:?}", facts.effect),
                facts
                    .procedure
                    .map_or("-".into(), |(module, at)| format!("module {module}, {at}")),
                key.unwrap_or("-".into()),
                facts.principal,
                if facts.standalone { "standalone" } else { "part" },
            )
        });
        expect![[r#"
            genesis     Nothing  Database         -               -       0  standalone
            deploy      Control  Database         -               -       0  standalone
            remove      Control  Database         -               -       0  standalone
            command     Call     Partitions(All)  module 3, 2     key@    0  standalone
            changes     Rows     Partition 7      module 3, 2     key@ci  9  standalone
            checkpoint  Mark     Database         -               -       0  standalone
            drop_table  Control  Database         -               -       0  standalone
            void        Nothing  Nothing          -               -       0  standalone
            quarantine  Control  Database         module 3, 2     -       0  standalone
            part        Rows     Partition 7      module 3, 2     -       0  part
            principal   Nothing  Database         -               -       0  standalone
            control     Nothing  Database         -               -       0  standalone"#]]
        .assert_eq(&lines.join("\n"));
    }

    #[test]
    fn changes_stand_beside_the_command_right_before_them() {
        let [_, _, remove, command, changes, .., part, _, _] = one_of_each();
        let mut pairs = PairWalk::default();
        let walk = [part, command, changes, changes, command, remove, changes];
        let found = walk.map(|record| pairs.is_beside(&record));
        assert_eq!(found, [false, false, true, false, false, false, false]);
    }
}
