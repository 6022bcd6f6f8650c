//! The SDK inside this program: the sources of its crates, which every new crate gets. So it needs no source tree, and builds later with
//! the same program that deploys it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::Context;
use rust_embed::{EmbeddedFile, RustEmbed};
use toml::{Table, Value};

/// The folder of the SDK in a crate.
pub const FOLDER: &str = ".reprise/sdk";

const WORKSPACE: &str = include_str!("../../../../Cargo.toml");

/// A crate of the SDK.
struct KitCrate {
    /// Its folder in the copy.
    name: &'static str,
    manifest: &'static str,
    /// The files of its folder `src`.
    sources: fn() -> Vec<(String, EmbeddedFile)>,
}

macro_rules! kit_crate {
    ($name:literal, $sources:literal, $manifest:literal) => {{
        #[derive(RustEmbed)]
        #[folder = $sources]
        struct Sources;
        KitCrate {
            name: $name,
            manifest: include_str!($manifest),
            sources: || {
                let file = |name: std::borrow::Cow<'static, str>| Some((name.to_string(), Sources::get(&name)?));
                Sources::iter().filter_map(file).collect()
            },
        }
    }};
}

/// The crates that a module needs, then `fuel` with the crates of the engine, which run a module's tests as wasm.
const CRATES: [KitCrate; 9] = [
    kit_crate!("abi", "../../runtime/abi/src", "../../../../runtime/abi/Cargo.toml"),
    kit_crate!(
        "procedure",
        "../../sdk/procedure/src",
        "../../../../sdk/procedure/Cargo.toml"
    ),
    kit_crate!(
        "procedure-macros",
        "../../sdk/procedure-macros/src",
        "../../../../sdk/procedure-macros/Cargo.toml"
    ),
    kit_crate!("fuel", "../../sdk/fuel/src", "../../../../sdk/fuel/Cargo.toml"),
    kit_crate!("host", "../../runtime/host/src", "../../../../runtime/host/Cargo.toml"),
    kit_crate!("base", "../../runtime/base/src", "../../../../runtime/base/Cargo.toml"),
    kit_crate!("env", "../../runtime/env/src", "../../../../runtime/env/Cargo.toml"),
    kit_crate!(
        "pages",
        "../../runtime/pages/src",
        "../../../../runtime/pages/Cargo.toml"
    ),
    kit_crate!(
        "unify",
        "../../runtime/unify/src",
        "../../../../runtime/unify/Cargo.toml"
    ),
];

/// A file of the SDK, by its path in the crate that has it.
pub struct KitFile {
    pub path: PathBuf,
    pub bytes: Vec<u8>,
}

/// All files of the SDK.
pub fn files() -> anyhow::Result<Vec<KitFile>> {
    let mut files = Vec::new();
    for own in &CRATES {
        let mut push = |name: String, bytes: Vec<u8>| {
            let path = Path::new(FOLDER).join(own.name).join(name);
            files.push(KitFile { path, bytes });
        };
        push("Cargo.toml".to_owned(), manifest(own.manifest, WORKSPACE)?.into_bytes());
        for (name, file) in (own.sources)() {
            push(format!("src/{name}"), file.data.into_owned());
        }
    }
    Ok(files)
}

/// Returns a crate's manifest without the workspace around it. The values of the workspace are written into it, and the crates of the SDK
/// lie beside it.
fn manifest(own: &str, workspace: &str) -> anyhow::Result<String> {
    let mut own: Table = own.parse().context("read a manifest of the SDK")?;
    let workspace: Table = workspace.parse().context("read the manifest of the workspace")?;
    let of_workspace = |part: &str, name: &str| {
        let found = workspace.get("workspace").and_then(|all| all.get(part)?.get(name));
        found
            .cloned()
            .with_context(|| format!("the workspace has no {part}.{name}"))
    };
    for part in ["lints", "dev-dependencies"] {
        own.remove(part);
    }
    if let Some(package) = own.get_mut("package").and_then(Value::as_table_mut) {
        for (name, value) in package.iter_mut().filter(|(_, value)| is_inherited(value)) {
            *value = of_workspace("package", name)?;
        }
    }
    if let Some(dependencies) = own.get_mut("dependencies").and_then(Value::as_table_mut) {
        for (name, value) in dependencies.iter_mut().filter(|(_, value)| is_inherited(value)) {
            *value = of_workspace("dependencies", name)?;
            if let Some(path) = value.get_mut("path") {
                let folder = path.as_str().and_then(|path| Path::new(path).file_name());
                let folder = folder.context("a path without a name")?.to_string_lossy();
                *path = Value::String(format!("../{folder}"));
            }
        }
    }
    Ok(own.to_string())
}

fn is_inherited(value: &Value) -> bool {
    value.get("workspace").is_some()
}

/// The state of the SDK's copy in the crate in `dir`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KitState {
    /// None of its own: it takes it from elsewhere.
    None,
    Same,
    Other,
}

pub fn read_kit(dir: &Path) -> anyhow::Result<KitState> {
    if !dir.join(FOLDER).is_dir() {
        return Ok(KitState::None);
    }
    for file in files()? {
        match fs::read(dir.join(&file.path)) {
            Ok(bytes) if bytes == file.bytes => {}
            Ok(_) => return Ok(KitState::Other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(KitState::Other),
            Err(error) => return Err(error).with_context(|| format!("read {}", file.path.display())),
        }
    }
    Ok(KitState::Same)
}

/// Puts the SDK into the crate in `dir`, in place of another one. Beside it until it is whole.
pub fn put(dir: &Path) -> anyhow::Result<()> {
    let (folder, new, old) = (
        dir.join(FOLDER),
        dir.join(".reprise/sdk.new"),
        dir.join(".reprise/sdk.old"),
    );
    for left in [&new, &old] {
        remove_all(left)?;
    }
    for file in files()? {
        let path = new.join(file.path.strip_prefix(FOLDER).context("a file elsewhere")?);
        let parent = path.parent().context("a file has a folder")?;
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
        fs::write(&path, file.bytes).with_context(|| format!("write {}", path.display()))?;
    }
    if folder.exists() {
        fs::rename(&folder, &old).with_context(|| format!("rename {}", folder.display()))?;
    }
    fs::rename(&new, &folder).with_context(|| format!("rename to {}", folder.display()))?;
    remove_all(&old)
}

fn remove_all(dir: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_stand_alone() {
        for KitCrate {
            name, manifest: own, ..
        } in CRATES
        {
            let text = manifest(own, WORKSPACE).expect("make a manifest");
            assert!(!text.contains("workspace"), "{name}: {text}");
            let parsed: Table = text.parse().expect("read it");
            assert_eq!(parsed["package"]["edition"].as_str(), Some("2024"));
            for (_, dependency) in parsed
                .get("dependencies")
                .and_then(Value::as_table)
                .into_iter()
                .flatten()
            {
                if let Some(path) = dependency.get("path").and_then(Value::as_str) {
                    let folder = path.strip_prefix("../").expect("it lies beside");
                    assert!(CRATES.iter().any(|other| other.name == folder), "{folder}");
                }
            }
        }
    }

    #[test]
    fn a_kit_of_another_version_is_seen_and_replaced() {
        let dir = tempfile::tempdir().expect("make a folder");
        assert_eq!(read_kit(dir.path()).expect("look"), KitState::None);
        put(dir.path()).expect("put");
        assert_eq!(read_kit(dir.path()).expect("look"), KitState::Same);
        let lib = dir.path().join(FOLDER).join("procedure/src/lib.rs");
        assert!(lib.is_file());
        fs::write(&lib, "// older").expect("write");
        fs::write(dir.path().join(FOLDER).join("gone.rs"), "").expect("write");
        assert_eq!(read_kit(dir.path()).expect("look"), KitState::Other);
        put(dir.path()).expect("put again");
        assert_eq!(read_kit(dir.path()).expect("look"), KitState::Same);
        assert!(!dir.path().join(FOLDER).join("gone.rs").exists());
        assert_eq!(fs::read_dir(dir.path().join(".reprise")).expect("list").count(), 1);
    }
}
