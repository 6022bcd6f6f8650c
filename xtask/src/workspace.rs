//! The packages of the workspace, as cargo knows them.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::tasks::cargo;

/// A package of the workspace.
#[derive(Default)]
pub struct Package {
    pub name: String,
    /// From the root.
    pub folder: String,
    /// Names of the workspace's packages that it is built with.
    pub dependencies: Vec<String>,
    /// Dependencies of its tests only.
    pub dev_dependencies: Vec<String>,
    pub has_library: bool,
    /// Programs with unit tests.
    pub tested_programs: Vec<String>,
    /// Cargo builds unit tests of its library or of a program.
    pub has_unit_tests: bool,
    pub has_integration_tests: bool,
}

impl Package {
    /// Whether the server or its users' crates have it in them: no guest, test or tool.
    pub fn is_product(&self) -> bool {
        ["runtime/", "server/", "sdk/"]
            .iter()
            .any(|part| self.folder.starts_with(part))
    }

    /// Whether it, or its tests, are built with the package of this name.
    pub fn depends_on(&self, name: &str) -> bool {
        let all = self.dependencies.iter().chain(&self.dev_dependencies);
        all.into_iter().any(|dependency| dependency == name)
    }
}

/// Prints `cargo metadata` with these further arguments.
///
/// # Errors
/// The message of cargo, if it prints nothing.
pub fn metadata(root: &Path, args: &[&str]) -> Result<Value> {
    let mut command = cargo(root);
    command
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(args);
    let output = command.output().context("start cargo metadata")?;
    serde_json::from_slice(&output.stdout).with_context(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("read cargo metadata: {}", said.trim())
    })
}

/// All packages of the workspace.
///
/// # Errors
/// The message of cargo, if it prints nothing.
pub fn packages(root: &Path) -> Result<Vec<Package>> {
    let metadata = metadata(root, &["--no-deps"])?;
    let workspace = metadata["workspace_root"]
        .as_str()
        .context("metadata without its root")?;
    let packages = metadata["packages"].as_array().context("metadata without packages")?;
    let names: Vec<_> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let package = |package: &Value| {
        let manifest = package["manifest_path"].as_str()?;
        let folder = Path::new(manifest).parent()?.strip_prefix(workspace).ok()?;
        let ours = |is_dev: bool| {
            let all = package["dependencies"].as_array().into_iter().flatten();
            let kind = all.filter(move |dependency| (dependency["kind"].as_str() == Some("dev")) == is_dev);
            let ours = kind.filter_map(|dependency| dependency["name"].as_str());
            ours.filter(|name| names.contains(name)).map(str::to_owned).collect()
        };
        let targets = package["targets"].as_array()?;
        let of_kind = |kinds: &[&str]| {
            let of_kind = |target: &&Value| kinds.iter().any(|kind| target["kind"][0] == *kind);
            targets.iter().filter(of_kind).collect::<Vec<_>>()
        };
        let libraries = of_kind(&["lib", "cdylib", "proc-macro"]);
        let programs = of_kind(&["bin"]).into_iter().filter(|target| target["test"] == true);
        let programs = programs.filter_map(|target| target["name"].as_str());
        let tested_programs: Vec<_> = programs.map(str::to_owned).collect();
        Some(Package {
            name: package["name"].as_str()?.to_owned(),
            folder: folder.to_string_lossy().into_owned(),
            dependencies: ours(false),
            dev_dependencies: ours(true),
            has_library: !libraries.is_empty(),
            has_unit_tests: !tested_programs.is_empty() || libraries.iter().any(|target| target["test"] == true),
            tested_programs,
            has_integration_tests: !of_kind(&["test"]).is_empty(),
        })
    };
    Ok(packages.iter().filter_map(package).collect())
}
