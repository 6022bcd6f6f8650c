//! The layers of the architecture, held to the manifests.

use std::collections::BTreeMap;

use crate::workspace::Package;

/// Crates of `runtime/` and `server/` from the bottom up. A crate depends on rows above its own in this table, or on
/// crates named before it in its row.
const LAYERS: &[&[&str]] = &[
    &["base", "abi", "pages", "unify", "failover"],
    &["wire", "env", "observe", "host", "nvram", "net-rdma", "net-tls"],
    &["storage", "log"],
    &["txn", "checkpoint"],
    &["partition", "replay", "backup", "ship"],
    &["router", "recovery"],
    &["upkeep", "database"],
    &["codec", "catalog", "http"],
    &["node"],
];

/// Dependencies that a crate must not have, although its layer would allow them.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("storage", &["log"]),
    ("log", &["ship", "partition"]),
    ("txn", &["log"]),
    ("host", &["storage"]),
    ("http", &["partition", "log", "storage", "host"]),
];

/// The only crates of ours that these may depend on.
const ALLOWED: &[(&str, &[&str])] = &[
    ("sdk/procedure", &["reprise-abi", "reprise-procedure-macros"]),
    ("sdk/procedure-macros", &[]),
    ("sdk/api", &[]),
    ("sdk/build", &[]),
    ("sdk/client", &["reprise-api", "reprise-pem"]),
    ("sdk/pem", &[]),
    ("procedures/", &["reprise-procedure"]),
];

pub fn complaints(packages: &[Package]) -> Vec<String> {
    let positions = positions();
    let folders: BTreeMap<_, _> = packages
        .iter()
        .map(|package| (package.name.as_str(), package.folder.as_str()))
        .collect();
    let mut complaints = Vec::new();
    for package in packages {
        for dependency in &package.dependencies {
            let folder = folders.get(dependency.as_str()).copied().unwrap_or("");
            if let Some(rule) = broken_rule(package, dependency, folder, &positions) {
                complaints.push(format!("{} must not depend on {dependency}: {rule}", package.folder));
            }
        }
        let is_layered = package.folder.starts_with("runtime/") || package.folder.starts_with("server/");
        if is_layered && !positions.contains_key(short(&package.name)) {
            complaints.push(format!("{} has no place in the table of layers", package.folder));
        }
    }
    complaints
}

/// The place of each crate: row, then place in the row.
fn positions() -> BTreeMap<&'static str, (usize, usize)> {
    let row = |(row, names): (usize, &&'static [&'static str])| {
        let places = names.iter().enumerate().map(move |(place, name)| (*name, (row, place)));
        places.collect::<Vec<_>>()
    };
    LAYERS.iter().enumerate().flat_map(row).collect()
}

/// A package's name as headers and docs say it.
pub fn short(name: &str) -> &str {
    name.strip_prefix("reprise-").unwrap_or(name)
}

fn broken_rule(
    package: &Package,
    dependency: &str,
    dependency_folder: &str,
    positions: &BTreeMap<&str, (usize, usize)>,
) -> Option<&'static str> {
    let is_product = package.folder.starts_with("runtime/") || package.folder.starts_with("server/");
    if is_product && dependency_folder.starts_with("procedures/") {
        return Some("the product knows no guest");
    }
    if is_product && dependency_folder.starts_with("benches/") {
        return Some("the product knows no benchmark");
    }
    if dependency == "reprise-node" && !package.folder.starts_with("tests/") {
        return Some("nothing depends on the binary");
    }
    let (name, dependency) = (short(&package.name), short(dependency));
    if FORBIDDEN
        .iter()
        .any(|(from, to)| *from == name && to.contains(&dependency))
        && is_product
    {
        return Some("forbidden by name in docs/ARCHITECTURE.md");
    }
    let allowed = ALLOWED
        .iter()
        .find(|(folder, _)| *folder == package.folder || is_inside(&package.folder, folder));
    if let Some((_, allowed)) = allowed
        && !allowed.iter().any(|allowed| short(allowed) == dependency)
    {
        return Some("its folder depends on less");
    }
    match (positions.get(name), positions.get(dependency)) {
        (Some(own), Some(other)) if is_product && own <= other => Some("dependencies go down the table of layers"),
        _ => None,
    }
}

fn is_inside(folder: &str, parent: &str) -> bool {
    parent.ends_with('/') && folder.starts_with(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_edge(folder: &str, name: &str, dependency: &str, dependency_folder: &str) -> Vec<String> {
        let package = |name: &str, folder: &str, dependencies: &[&str]| Package {
            name: name.into(),
            folder: folder.into(),
            dependencies: dependencies.iter().map(|name| (*name).to_owned()).collect(),
            ..Package::default()
        };
        complaints(&[
            package(name, folder, &[dependency]),
            package(dependency, dependency_folder, &[]),
        ])
    }

    #[test]
    fn edges_go_down() {
        let good = check_edge("runtime/txn", "reprise-txn", "reprise-storage", "runtime/storage");
        assert_eq!(good, [""; 0]);
        for (name, dependency) in [
            ("storage", "txn"),
            ("storage", "log"),
            ("txn", "log"),
            ("host", "storage"),
            ("base", "base"),
            ("log", "partition"),
        ] {
            let folder = |name: &str| format!("runtime/{name}");
            let bad = check_edge(
                &folder(name),
                &format!("reprise-{name}"),
                &format!("reprise-{dependency}"),
                &folder(dependency),
            );
            assert_eq!(bad.len(), 1, "{name} -> {dependency}: {bad:?}");
        }
    }

    #[test]
    fn guests_know_their_sdk_only_and_no_crate_knows_guests() {
        assert_eq!(
            check_edge("procedures/bank", "bank", "reprise-procedure", "sdk/procedure"),
            [""; 0]
        );
        assert_eq!(
            check_edge("procedures/bank", "bank", "reprise-abi", "runtime/abi").len(),
            1
        );
        assert_eq!(
            check_edge("server/http", "reprise-http", "bank", "procedures/bank").len(),
            1
        );
        assert_eq!(
            check_edge("server/http", "reprise-http", "reprise-host", "runtime/host").len(),
            1
        );
    }

    #[test]
    fn a_new_crate_needs_a_place() {
        assert_eq!(
            check_edge("runtime/new", "reprise-new", "reprise-base", "runtime/base").len(),
            1
        );
    }
}
