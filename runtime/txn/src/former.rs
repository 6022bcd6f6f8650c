//! The module versions out of service whose bytes stay on disk, so that a rollback finds them.

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc};

use reprise_base::{
    TxnId,
    limits::{FORMER_BYTES_MAX, VERSIONS_KEPT_MAX},
};

use crate::module::{Deployed, Module};

impl Deployed {
    /// Returns the versions out of service whose bytes are kept, the one that left service last first. Of each module these are the
    /// newest versions with different bytes. No two have the same bytes, and none has those of a version in service.
    pub fn kept_former(&self) -> Vec<&Arc<Module>> {
        let in_service: BTreeSet<_> = self.current.values().map(|module| module.hash).collect();
        let mut found: Vec<(TxnId, &Arc<Module>)> = Vec::new();
        for name in self.versions.iter().map(|module| &module.name).collect::<BTreeSet<_>>() {
            let mut hashes = BTreeSet::new();
            // A version leaves service when the next one comes. The list does not show removals, so a removed version counts from its own
            // deployment.
            let mut left: Option<TxnId> = None;
            for module in self.versions.iter().rev().filter(|module| module.name == *name) {
                let left = left.replace(module.installed_by).unwrap_or(module.installed_by);
                if hashes.insert(module.hash) {
                    found.push((left, module));
                }
                if hashes.len() == VERSIONS_KEPT_MAX {
                    break;
                }
            }
        }
        found.sort_by_key(|(left, module)| Reverse((left.tick(), module.id)));
        let (mut bytes, mut hashes) = (0, in_service);
        let distinct = found.into_iter().filter(|(_, module)| hashes.insert(module.hash));
        let fitting = distinct.take_while(|(_, module)| {
            bytes += module.wasm_bytes;
            bytes <= FORMER_BYTES_MAX
        });
        fitting.map(|(_, module)| module).collect()
    }

    /// Returns true if the bytes of this version are kept: a module can be rolled back to it.
    pub fn keeps_bytes_of(&self, module: &Module) -> bool {
        let mut kept = self.current.values().chain(self.kept_former());
        kept.any(|kept| kept.hash == module.hash)
    }
}

#[cfg(test)]
mod tests {
    use reprise_observe::ModuleMeters;

    use super::*;
    use crate::{Code, Executor, module::ModuleId};

    struct NoCode;

    impl Code for NoCode {
        fn instantiate(&self) -> Result<Box<dyn Executor>, String> {
            Err("no code".into())
        }
    }

    /// Deploys versions in this order: name, first byte of the hash, MiB.
    fn deployed(versions: &[(&str, u8, u64)]) -> Deployed {
        let mut deployed = Deployed::default();
        for (at, (name, hash, mib)) in versions.iter().enumerate() {
            let module = Arc::new(Module {
                id: ModuleId(at as u32),
                name: (*name).to_owned(),
                version: 1 + deployed.versions.iter().filter(|module| module.name == *name).count() as u32,
                hash: [*hash; 32],
                wasm_bytes: mib << 20,
                installed_by: TxnId::new(at as u64 + 1, TxnId::MULTI_PARTITION),
                schema: Default::default(),
                description: Arc::default(),
                tables: Vec::new(),
                prefetch: Vec::new(),
                results: Vec::new(),
                meters: ModuleMeters::new(0),
                code: Arc::new(NoCode),
            });
            deployed.versions.push(module.clone());
            deployed.current.insert((*name).to_owned(), module);
        }
        deployed
    }

    fn kept(deployed: &Deployed) -> String {
        let kept = deployed.kept_former().into_iter();
        kept.map(|module| format!("{}{} ", module.name, module.version))
            .collect()
    }

    #[test]
    fn five_newest_versions_are_kept_when_bytes_differ() {
        let seven: Vec<_> = (1..=7).map(|hash| ("a", hash, 1)).collect();
        assert_eq!(kept(&deployed(&seven)), "a6 a5 a4 a3 ");
        assert!(!deployed(&seven).keeps_bytes_of(&deployed(&seven).versions[1]));
        // A module that goes back and forth between two versions has two, however often it does so.
        let back: Vec<_> = [1, 2, 3, 2, 3, 2, 3, 2].map(|hash| ("a", hash, 1)).to_vec();
        assert_eq!(kept(&deployed(&back)), "a7 a1 ");
        assert!(
            deployed(&back)
                .versions
                .iter()
                .all(|module| deployed(&back).keeps_bytes_of(module))
        );
        let mut removed = deployed(&[("a", 1, 1), ("b", 1, 1), ("a", 2, 1)]);
        removed.current.clear();
        assert_eq!(kept(&removed), "a2 a1 ", "one of two with the same bytes");
    }

    #[test]
    fn oldest_out_of_service_is_not_kept_when_bytes_end() {
        let versions = [
            ("a", 1, 16),
            ("b", 2, 16),
            ("a", 3, 16),
            ("a", 4, 16),
            ("b", 5, 16),
            ("b", 6, 16),
            ("b", 7, 16),
        ];
        // The versions left service in the order a1, a2, b1, b2, b3.
        assert_eq!(kept(&deployed(&versions)), "b3 b2 b1 a2 ");
    }
}
