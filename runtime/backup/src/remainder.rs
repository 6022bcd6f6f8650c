//! Directories that a killed process left in a tree: a new one that was not complete, and a backup whose removal did not end.

use std::ffi::OsString;

use reprise_env::{DiskError, DiskErrorKind};

use crate::{manifest::is_place, tree::DirTree};

/// Returns the name of a new directory until it is complete and gets the name `target`.
pub(crate) fn partial_name(target: &str) -> String {
    format!(".{target}.partial")
}

/// Returns the name that an incomplete directory was to get. None: the name is not one of `partial_name`.
pub fn partial_target(name: &str) -> Option<&str> {
    name.strip_prefix('.')?.strip_suffix(".partial")
}

/// Removes a directory that a killed process left: an incomplete one, or a backup without its manifest. Returns whether it did. Links,
/// directories with other files, and directories that a process holds stay.
pub fn remove_remainder(tree: &dyn DirTree, name: &str) -> Result<bool, DiskError> {
    let is_remainder = match partial_target(name) {
        Some(_) => tree.entries(name)?.is_some(),
        None => is_half_removed(tree, name)?,
    };
    if !is_remainder {
        return Ok(false);
    }
    // A process locks the directory that it makes or removes.
    let _held = match tree.open(name)?.lock() {
        Err(error) if error.kind == DiskErrorKind::Locked => return Ok(false),
        held => held?,
    };
    tree.remove(name)?;
    tree.sync()?;
    Ok(true)
}

/// Returns true if a directory has no manifest, and has files of a backup alone. Every other file may be one of the operator.
fn is_half_removed(tree: &dyn DirTree, name: &str) -> Result<bool, DiskError> {
    let Some(folders) = tree.entries(name)? else {
        return Ok(false);
    };
    for folder in folders {
        let Some(folder @ ("log" | "checkpoints")) = folder.to_str() else {
            return Ok(false);
        };
        let Some(files) = tree.entries(&format!("{name}/{folder}"))? else {
            return Ok(false);
        };
        let is_of_backup = |file: &OsString| {
            let file = file.to_str();
            file.is_some_and(|file| is_place(&format!("{folder}/{file}")))
        };
        if !files.iter().all(is_of_backup) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path};

    use super::*;
    use crate::{manifest::MANIFEST_NAME, tree::RealTree};

    const SEGMENT: &str = "log/log-0000000000000000.seg";

    /// Makes a directory with these files.
    fn make(dir: &Path, files: &[&str]) {
        fs::create_dir_all(dir).expect("made");
        for file in files {
            let path = dir.join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, b"x").expect("written");
        }
    }

    #[test]
    fn remainder_is_removed_and_every_other_directory_stays() {
        let root = tempfile::tempdir().expect("a directory");
        let (at, tree) = (|name: &str| root.path().join(name), RealTree(root.path().to_owned()));
        make(&at(".backup-1.partial"), &[SEGMENT, MANIFEST_NAME, "other"]);
        make(&at("backup-2"), &[SEGMENT]);
        make(&at("backup-3"), &[]);
        for name in [".backup-1.partial", "backup-2", "backup-3"] {
            assert!(remove_remainder(&tree, name).expect("looked at"), "{name}");
            assert!(!at(name).exists(), "{name}");
        }
        assert!(!remove_remainder(&tree, "backup-2").expect("looked at"), "it is gone");
        make(&at("backup-4"), &[SEGMENT, MANIFEST_NAME]);
        make(&at("backup-5"), &[SEGMENT, "notes"]);
        make(&at("backup-6"), &["log/notes"]);
        make(&at("elsewhere"), &[SEGMENT]);
        symlink(at("elsewhere"), at("backup-7")).expect("linked");
        symlink(at("elsewhere"), at(".backup-8.partial")).expect("linked");
        make(&at("backup-9"), &[]);
        symlink(at("elsewhere/log"), at("backup-9/log")).expect("linked");
        fs::write(at("backup-10"), b"x").expect("written");
        let others = [
            "backup-4",
            "backup-5",
            "backup-6",
            "backup-7",
            ".backup-8.partial",
            "backup-9",
            "backup-10",
        ];
        for name in others {
            assert!(!remove_remainder(&tree, name).expect("looked at"), "{name}");
            assert!(fs::symlink_metadata(at(name)).is_ok(), "{name}");
        }
        assert!(at("elsewhere").join(SEGMENT).exists());
    }

    #[test]
    fn directory_that_a_process_holds_stays() {
        let root = tempfile::tempdir().expect("a directory");
        let tree = RealTree(root.path().to_owned());
        make(&root.path().join(".backup-1.partial"), &[SEGMENT]);
        let held = tree.open(".backup-1.partial").expect("opened").lock().expect("locked");
        assert!(!remove_remainder(&tree, ".backup-1.partial").expect("looked at"));
        drop(held);
        assert!(remove_remainder(&tree, ".backup-1.partial").expect("looked at"));
    }
}
