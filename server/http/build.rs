//! Makes the folder of the web console's files, so that the server builds before they do; new files build it again.

use std::{env, fs, path::PathBuf};

fn main() {
    let here = env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets the package's folder");
    let dist = PathBuf::from(here).join("../../web-console/dist");
    fs::create_dir_all(&dist).expect("create folder web-console/dist");
    println!("cargo:rerun-if-changed={}", dist.display());
}
