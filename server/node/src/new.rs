//! `reprise new`: a procedure crate that builds and passes its own test, with the SDK in it.

pub mod kit;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use reprise_abi::schema::is_valid_name;

use crate::{
    cli::{NewArgs, Output},
    output::{VerbFailure, VerbResult, print_json, print_text, usage},
};

const LIB: &str = include_str!("new/lib.rs.txt");
const MANIFEST: &str = include_str!("new/Cargo.toml.txt");
const README: &str = include_str!("new/README.md.txt");
const CARGO_CONFIG: &str = include_str!("new/config.toml.txt");

/// Names that Rust or Cargo keep for themselves.
const RESERVED: [&str; 42] = [
    "abstract",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "const",
    "continue",
    "core",
    "crate",
    "do",
    "dyn",
    "else",
    "enum",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "proc_macro",
    "pub",
    "ref",
    "return",
    "self",
    "static",
    "std",
    "struct",
    "super",
    "test",
    "trait",
];

pub fn run(args: &NewArgs, output: Output) -> VerbResult {
    check_name(&args.name)?;
    let sdk = match args.sdk.as_deref() {
        Some(given) => find_sdk(given)?,
        None => Path::new(kit::FOLDER).join("procedure"),
    };
    let dir = args.dir.join(&args.name);
    let files = [
        ("Cargo.toml", fill(MANIFEST, &args.name, &sdk)),
        ("README.md", fill(README, &args.name, &sdk)),
        (".cargo/config.toml", CARGO_CONFIG.to_owned()),
        (".gitignore", "/target\n".to_owned()),
        ("src/lib.rs", fill(LIB, &args.name, &sdk)),
    ];
    let is_taken = fs::read_dir(&dir).is_ok_and(|mut entries| entries.next().is_some()) || dir.is_file();
    if is_taken {
        return Err(VerbFailure::Other(anyhow::anyhow!(
            "{} exists already; nothing was changed",
            dir.display()
        )));
    }
    for folder in ["src", ".cargo"] {
        fs::create_dir_all(dir.join(folder)).with_context(|| format!("create {}", dir.display()))?;
    }
    for (name, text) in files {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    if args.sdk.is_none() {
        kit::put(&dir)?;
    }
    match output {
        Output::Json => print_json(&serde_json::json!({ "name": args.name, "dir": dir, "sdk": sdk }))?,
        Output::Text => print_text(&format!(
            "created {0}; next steps:\n  cd {0}\n  cargo test\n  reprise build\n  reprise module deploy target/procedures/{1}.wasm",
            dir.display(),
            args.name
        ))?,
    }
    Ok(())
}

fn check_name(name: &str) -> VerbResult {
    if !is_valid_name(name) {
        return Err(usage(format!(
            "{name:?} is not a name for a module. A name has at most 63 of a to z, 0 to 9 and _, and begins with a letter"
        )));
    }
    if RESERVED.contains(&name) || ["true", "try", "type", "unsafe", "use", "where", "while", "yield"].contains(&name) {
        return Err(usage(format!("{name} is a keyword of Rust; take another name")));
    }
    Ok(())
}

fn find_sdk(path: &Path) -> Result<PathBuf, VerbFailure> {
    if !path.join("Cargo.toml").is_file() {
        return Err(usage(format!(
            "{} has no Cargo.toml: give --sdk the folder sdk/procedure",
            path.display()
        )));
    }
    Ok(path
        .canonicalize()
        .with_context(|| format!("resolve {}", path.display()))?)
}

fn fill(template: &str, name: &str, sdk: &Path) -> String {
    // A TOML string and a JSON string escape the same characters.
    let quoted = serde_json::Value::from(sdk.to_string_lossy()).to_string();
    template.replace("{{name}}", name).replace("{{sdk}}", &quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_before_any_write() {
        assert!(check_name("orders_2").is_ok());
        for bad in ["", "Orders", "my-crate", "2fast", "fn", "while", "../up", "a b"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
