//! The order of a table's indexes in the store.

use reprise_abi::{IndexSchema, TableSchema};

/// Returns the declared indexes in the order in which the changed table has them. Stored indexes keep their order among each other, and new
/// ones have their declared places. Modules find indexes by their names, so the declared order means nothing to them. A change of the order
/// alone has no step and prepares no table. If the schema took the declared order then, the positions in it would name other indexes of
/// the store.
pub(crate) fn indexes_in_stored_order(stored: &TableSchema, declared: &TableSchema) -> Vec<IndexSchema> {
    let declared_form = |known: &IndexSchema| {
        let mut indexes = declared.indexes.iter();
        indexes.find(|index| index.name == known.name).cloned()
    };
    let is_stored = |index: &IndexSchema| stored.indexes.iter().any(|known| known.name == index.name);
    let mut kept = stored.indexes.iter().filter_map(declared_form);
    let indexes = declared.indexes.iter().map(|index| match is_stored(index) {
        true => kept.next().expect("a declared index has a name of its own"),
        false => index.clone(),
    });
    indexes.collect()
}

#[cfg(test)]
mod tests {
    use reprise_abi::{ColumnSchema, ScalarType};

    use super::*;
    use crate::evolve::{plan_change, plan_change_of_empty, plan_logged_change, plan_return};

    /// A table with these indexes, each over the column of its name.
    fn table(indexes: &str) -> TableSchema {
        let names = ["id", "a", "b", "c"];
        let columns = names.map(|name| ColumnSchema::new(name, ScalarType::I64));
        let at = |name: &str| names.iter().position(|known| *known == name).expect("a column") as u16;
        let indexes = indexes.split_whitespace();
        TableSchema {
            indexes: indexes
                .map(|name| IndexSchema::new(name, &[at(name)], name == "b"))
                .collect(),
            ..TableSchema::new("t", columns.into(), &[0])
        }
    }

    fn names_of(schema: &TableSchema) -> String {
        let names: Vec<_> = schema.indexes.iter().map(|index| &*index.name).collect();
        names.join(" ")
    }

    #[test]
    fn stored_indexes_keep_their_order_whatever_the_declared_order_is() {
        for (stored, declared, expected) in [
            ("a b", "b a", "a b"),
            ("a b c", "c a b", "a b c"),
            ("a b", "c b a", "c a b"),
            ("a b", "b c a", "a c b"),
            ("a b c", "c a", "a c"),
            ("a", "c b", "c b"),
            ("", "b a", "b a"),
        ] {
            let change = plan_change(&table(stored), &table(declared)).expect("no conflict");
            assert_eq!(names_of(&change.schema), expected, "{stored} to {declared}");
            let sources: Vec<_> = change.indexes.iter().map(|kept| kept.map(usize::from)).collect();
            let places = expected
                .split_whitespace()
                .map(|name| stored.split_whitespace().position(|known| known == name));
            assert_eq!(sources, places.collect::<Vec<_>>(), "{stored} to {declared}");
            let all = [0, 1, 2, 3].map(Some);
            let logged = plan_logged_change(&table(stored), &table(declared), &all).expect("as it was logged");
            assert_eq!(logged.schema, change.schema, "{stored} to {declared}");
        }
    }

    #[test]
    fn another_order_of_indexes_alone_changes_nothing() {
        let stored = table("a b");
        let declared = table("b a");
        let all = [0, 1, 2, 3].map(Some);
        for change in [
            plan_change(&stored, &declared),
            plan_change_of_empty(&stored, &declared, None),
            plan_return(&stored, &declared, &all),
            plan_logged_change(&stored, &declared, &all),
        ] {
            let change = change.expect("no conflict");
            assert!(change.is_noop(), "{:?}", change.steps);
            assert_eq!(change.schema, stored);
        }
    }

    #[test]
    fn changed_index_keeps_its_place() {
        let mut declared = table("b a");
        declared.indexes[1].columns = vec![3];
        let change = plan_change(&table("a b"), &declared).expect("no conflict");
        assert_eq!((names_of(&change.schema).as_str(), change.steps.len()), ("a b", 1));
        assert_eq!(change.indexes, [None, Some(1)]);
    }
}
