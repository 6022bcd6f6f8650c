//! `cargo xtask lines`: how much code, tests and comments each crate has.

use std::{collections::BTreeMap, ops::AddAssign, path::Path};

use anyhow::Result;

use crate::tidy;

/// Lines of Rust by what they are. Blank lines and comments of tests are neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    code: usize,
    tests: usize,
    comments: usize,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.code += other.code;
        self.tests += other.tests;
        self.comments += other.comments;
    }
}

/// Prints the lines of each crate, of each part of the tree, and of all.
///
/// # Errors
/// The tree can't be read.
pub fn print(root: &Path) -> Result<()> {
    let mut crates: BTreeMap<String, Count> = BTreeMap::new();
    let sources = tidy::sources(root)?;
    for source in sources.iter().filter(|source| source.path.ends_with(".rs")) {
        *crates.entry(crate_of(&source.path)).or_default() += count(&source.path, &source.text);
    }
    print!("{}", report(&crates));
    Ok(())
}

/// `runtime/log` of `runtime/log/src/lib.rs`, `xtask` of `xtask/tests/it/main.rs`.
pub(crate) fn crate_of(path: &str) -> String {
    let folders = if path.starts_with("xtask/") || path.starts_with("fuzz/") {
        1
    } else {
        2
    };
    path.split('/').take(folders).collect::<Vec<_>>().join("/")
}

fn report(crates: &BTreeMap<String, Count>) -> String {
    let mut out = format!("{:28}{:>9}{:>9}{:>10}\n", "", "code", "tests", "comments");
    let mut line = |name: &str, count: &Count| {
        let Count { code, tests, comments } = count;
        out.push_str(&format!("{name:28}{code:9}{tests:9}{comments:10}\n"));
    };
    let mut parts: BTreeMap<String, Count> = BTreeMap::new();
    let (mut all, mut counted) = (Count::default(), 0);
    for (name, count) in crates {
        line(name, count);
        let part = name.split('/').next().unwrap_or_default();
        *parts.entry(format!("{part}/")).or_default() += *count;
        all += *count;
        if part != "benches" {
            counted += count.code;
        }
    }
    parts.iter().for_each(|(name, count)| line(name, count));
    line("all", &all);
    out.push_str(&format!(
        "\ncode outside of tests and benches/: {counted}\ntests: {}\n",
        all.tests
    ));
    out
}

fn count(path: &str, text: &str) -> Count {
    let mut count = Count::default();
    let is_test_file = path.contains("tests/") || path.ends_with("/tests.rs");
    let (mut is_comment, mut test) = (false, None);
    for line in text.lines() {
        let trimmed = line.trim();
        is_comment = is_comment || trimmed.starts_with("/*");
        let is_comment_line = is_comment || trimmed.starts_with("//");
        if is_comment && trimmed.contains("*/") {
            is_comment = false;
        }
        if test.is_none() && trimmed.starts_with("#[cfg(test)]") || trimmed.starts_with("#[cfg(all(test") {
            test = Some(line.len() - trimmed.len());
        }
        let is_test = is_test_file || test.is_some();
        match (trimmed.is_empty(), is_comment_line, is_test) {
            (true, ..) | (_, true, true) => {}
            (_, true, false) => count.comments += 1,
            (_, false, true) => count.tests += 1,
            (_, false, false) => count.code += 1,
        }
        // The item behind the attribute ends with a semicolon, or with a brace below its first line.
        let indent = line.len() - line.trim_start().len();
        if test == Some(indent) && (trimmed.starts_with('}') || trimmed.ends_with([';', '}'])) {
            test = None;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "//! A file.\n\nfn f() {\n    /* long\n    comment */\n    g(); // called\n}\n\n\
        #[cfg(test)]\nuse x::Y;\n\n#[cfg(test)]\nmod tests {\n    // Why.\n    #[test]\n    fn h() {\n    }\n}\n\nconst A: u8 = 1;\n";

    #[test]
    fn code_tests_and_comments_are_told_apart() {
        let all = count("runtime/a/src/b.rs", FILE);
        assert_eq!((all.code, all.tests, all.comments), (4, 8, 3));
        let all = count("runtime/a/tests/it/b.rs", FILE);
        assert_eq!((all.code, all.tests, all.comments), (0, 12, 0));
    }

    #[test]
    fn benches_are_no_part_of_the_measure() {
        let lines = |code| Count {
            code,
            tests: 1,
            comments: 2,
        };
        let crates = [("benches/a", 5), ("runtime/b", 7), ("xtask", 11)];
        let crates = crates.map(|(name, code)| (name.to_owned(), lines(code)));
        let report = report(&crates.into());
        assert!(report.contains("benches/: 18\ntests: 3\n"), "{report}");
        assert_eq!(crate_of("xtask/tests/it/main.rs"), "xtask");
        assert_eq!(crate_of("tests/sim/tests/it/main.rs"), "tests/sim");
    }
}
