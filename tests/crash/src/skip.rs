//! Tests that this machine can't run: counted, and shown when all tests are done.

use std::{env, fs::OpenOptions, io::Write};

/// Says that a test is left out, and why. `cargo xtask skipped` counts these lines; where there must be none, it fails.
pub fn skip(test: &str, why: &str) {
    let line = format!("{test}: {}\n", why.replace('\n', " "));
    print!("SKIPPED {line}");
    let own = env::current_exe().expect("a test has a program");
    let target = own
        .ancestors()
        .find(|dir| dir.ends_with("release"))
        .and_then(|dir| dir.parent());
    let list = target
        .expect("tests are built in target/release")
        .join("skipped-tests.txt");
    let file = OpenOptions::new().create(true).append(true).open(list);
    let mut file = file.expect("the list of skipped tests can be written");
    file.write_all(line.as_bytes())
        .expect("the list of skipped tests can be written");
}
