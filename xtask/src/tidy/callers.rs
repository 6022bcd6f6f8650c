//! The statement "Called by" of each crate's header, held to the manifests: it names the product's crates that depend on this one, and no
//! others.

use std::collections::BTreeSet;

use super::{Source, layers::short};
use crate::workspace::Package;

const START: &str = "//! Called by: ";
/// Says that too many do to be named.
const EVERYTHING: &str = "everything.";

pub fn check(packages: &[Package], sources: &[Source]) -> Vec<String> {
    let product = packages.iter().filter(|package| package.is_product());
    product
        .filter_map(|package| complaint(package, packages, sources))
        .collect()
}

fn complaint(package: &Package, packages: &[Package], sources: &[Source]) -> Option<String> {
    let path = format!("{}/src/lib.rs", package.folder);
    let source = sources.iter().find(|source| source.path == path)?;
    let said = statement(&source.text)?;
    if said == EVERYTHING {
        return None;
    }
    let product = || packages.iter().filter(|other| other.is_product());
    let crates: BTreeSet<_> = product().map(|other| short(&other.name)).collect();
    let callers = product().filter(|other| other.dependencies.contains(&package.name));
    let callers: BTreeSet<_> = callers.map(|other| short(&other.name)).collect();
    let named: BTreeSet<_> = said
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| crates.contains(word))
        .collect();
    let list = |names: BTreeSet<&str>| names.into_iter().collect::<Vec<_>>().join(", ");
    let lacking = list(callers.difference(&named).copied().collect());
    let wrong = list(named.difference(&callers).copied().collect());
    match (lacking.as_str(), wrong.as_str()) {
        ("", "") => None,
        (lacking, "") => Some(format!("{path}: `Called by` does not name {lacking}")),
        ("", wrong) => Some(format!(
            "{path}: `Called by` names {wrong}, which does not depend on it"
        )),
        (lacking, wrong) => Some(format!(
            "{path}: `Called by` does not name {lacking}, and names {wrong}, which does not depend on it"
        )),
    }
}

/// The header's statement, on one line.
fn statement(text: &str) -> Option<String> {
    let header = text.lines().take_while(|line| line.starts_with("//!"));
    let mut lines = header.skip_while(|line| !line.starts_with(START));
    let first = lines.next()?.strip_prefix(START)?;
    let more = lines
        .take_while(|line| line.len() > 3)
        .filter_map(|line| line.strip_prefix("//! "));
    Some([first].into_iter().chain(more).collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(called_by: &str) -> Vec<String> {
        let package = |name: &str, folder: &str, dependencies: &[&str]| Package {
            name: name.into(),
            folder: folder.into(),
            dependencies: dependencies.iter().map(|name| (*name).to_owned()).collect(),
            ..Package::default()
        };
        let packages = [
            package("reprise-log", "runtime/log", &[]),
            package("reprise-partition", "runtime/partition", &["reprise-log"]),
            package("reprise-http", "server/http", &[]),
            package("reprise-test-sim", "tests/sim", &["reprise-log"]),
        ];
        let source = Source {
            path: "runtime/log/src/lib.rs".into(),
            text: format!("//! It is.\n//! Owns: a.\n//! Called by: {called_by}\n//!\n//! `http` more.\n\nmod a;\n"),
        };
        check(&packages, &[source])
    }

    #[test]
    fn callers_are_those_of_the_manifests() {
        for good in ["`partition` (append).", "the tests,\n//! `partition`.", "everything."] {
            assert_eq!(complaints(good), [""; 0], "{good}");
        }
        assert_eq!(
            complaints("people."),
            ["runtime/log/src/lib.rs: `Called by` does not name partition"]
        );
        assert_eq!(
            complaints("`partition`,\n//! `http`."),
            ["runtime/log/src/lib.rs: `Called by` names http, which does not depend on it"]
        );
    }
}
