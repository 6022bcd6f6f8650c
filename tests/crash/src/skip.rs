//! Tests that this machine can't run: counted, and shown when all tests are done.

use std::{env, fs::OpenOptions, io::Write};

/// Leaves a test out, and says why: one line of the list that `cargo xtask skipped` prints.
///
/// # Panics
/// With `CI=true`: continuous integration leaves no test out.
pub fn skip(test: &str, why: &str) {
    let is_ci = env::var_os("CI").is_some_and(|value| value == "true");
    assert!(!is_ci, "{test} can't run here: {why}");
    let line = format!("{test}: {}\n", why.replace('\n', " "));
    print!("SKIPPED {line}");
    let own = env::current_exe().expect("a test has a program");
    let target = own.ancestors().nth(3).expect("a test lies in target/PROFILE/deps");
    let list = target.join("skipped-tests.txt");
    let file = OpenOptions::new().create(true).append(true).open(list);
    let mut file = file.expect("the list of skipped tests can be written");
    file.write_all(line.as_bytes())
        .expect("the list of skipped tests can be written");
}
