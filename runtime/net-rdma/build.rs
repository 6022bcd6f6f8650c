//! Gives the linker a library `ibverbs` without any function. The functions that the crate `ibverbs` declares are in `src/library.rs`, so no
//! program needs rdma-core to start.

use std::{env, fs, path::PathBuf};

/// An archive without members.
const EMPTY: &str = "!<arch>\n";

fn main() {
    let dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names a directory"));
    fs::write(dir.join("libibverbs.a"), EMPTY).expect("cargo's directory can be written");
    println!("cargo::rustc-link-search=native={}", dir.display());
    println!("cargo::rerun-if-changed=build.rs");
}
