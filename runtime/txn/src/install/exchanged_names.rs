//! Declarations that exchange names: each of several columns, or tables, says that it was the next one, and the last one was the first.
//!
//! A former name counts only if the declaration no longer has it. So such a deployment would change nothing, and its empty plan would not say
//! why.

use std::collections::BTreeMap;

use reprise_abi::TableSchema;
use reprise_storage::Conflict;

use super::conflict;

const WAY_ON: &str = "a deployment exchanges no names. Give one of them a name that is new, and the others theirs in later deployments; if they \
     have their names already, leave `was` out";

/// Returns the tables and columns of a module that exchange names.
pub(super) fn check_exchanged_names(module: &str, tables: &[TableSchema]) -> Vec<Conflict> {
    let is_own = |table: &&TableSchema| table.owner.is_empty() || table.owner == module;
    let own: Vec<_> = tables.iter().filter(is_own).collect();
    let refuse = |table: &str, item: &str, what, was: &str| {
        let (full, declared) = (format!("{module}.{table}"), format!("was {was}"));
        conflict(&full, item, what, "one of this name", &declared, WAY_ON)
    };
    let names = own.iter().map(|table| (&*table.name, table.was.as_deref()));
    let exchanged = exchanged_names(names).into_iter();
    let mut conflicts: Vec<_> = exchanged.map(|(name, was)| refuse(name, "", "table", was)).collect();
    for table in own {
        let names = table
            .columns
            .iter()
            .map(|column| (&*column.name, column.was.as_deref()));
        let exchanged = exchanged_names(names).into_iter();
        conflicts.extend(exchanged.map(|(name, was)| refuse(&table.name, name, "column", was)));
    }
    conflicts
}

/// Returns the names that take each other's places, with the former name of each.
fn exchanged_names<'a>(names: impl Iterator<Item = (&'a str, Option<&'a str>)>) -> Vec<(&'a str, &'a str)> {
    let former: BTreeMap<&str, &str> = names.filter_map(|(name, was)| Some((name, was?))).collect();
    let is_exchanged = |(name, was): &(&'a str, &'a str)| {
        let mut at = *was;
        // A name that was itself says nothing. A longer way ends, or comes back, after as many steps as there are names.
        for _ in 1..former.len() {
            match former.get(at) {
                Some(_) if at == *name => return false,
                Some(was) if was == name => return true,
                Some(was) => at = *was,
                None => return false,
            }
        }
        false
    };
    let pairs = former.iter().map(|(name, was)| (*name, *was));
    pairs.filter(is_exchanged).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_exchanged_when_their_former_names_lead_back_to_them() {
        for (names, expected) in [
            ("a=b b=a", "a b"),
            ("a=b b=c c=a d", "a b c"),
            ("a=b b=a c=d d=c", "a b c d"),
            // The way leads into a circle in which it does not lie.
            ("x=a a=b b=a", "a b"),
            ("a=b", ""),
            ("a=b b", ""),
            ("a=b b=c", ""),
            ("a=b b=c c", ""),
            ("a=a", ""),
            ("a=a b=a", ""),
        ] {
            let pairs = names.split(' ').map(|pair| {
                pair.split_once('=')
                    .map_or((pair, None), |(name, was)| (name, Some(was)))
            });
            let found: Vec<_> = exchanged_names(pairs).into_iter().map(|(name, _)| name).collect();
            assert_eq!(found.join(" "), expected, "{names}");
        }
    }
}
