//! Lengths of functions, by indentation: the tree is formatted, so a body ends at a brace below its `fn`.

use std::collections::BTreeMap;

use super::{FUNCTION_LINES_MAX, OFFENDERS, Source, is_test_file, without_tests};

/// `path function` to its lines, for the functions that are too long.
type Lengths = BTreeMap<String, usize>;

pub fn check(sources: &[Source], offenders: &str) -> Vec<String> {
    let (known, found) = (parse(offenders), long_functions(sources));
    let mut complaints = Vec::new();
    for (function, lines) in &found {
        match known.get(function) {
            None => complaints.push(format!("{function}: {lines} lines; at most {FUNCTION_LINES_MAX}")),
            Some(max) if lines > max => complaints.push(format!("{function}: has grown from {max} to {lines} lines")),
            Some(_) => {}
        }
    }
    for function in known.keys().filter(|function| !found.contains_key(*function)) {
        complaints.push(format!(
            "{function}: is short now; run `cargo xtask tidy --bless` to take it off {OFFENDERS}"
        ));
    }
    complaints
}

/// The list without what has become short, and with the lengths that have shrunk.
pub fn shrunk(sources: &[Source], offenders: &str) -> String {
    let found = long_functions(sources);
    let mut out = String::new();
    for (function, max) in parse(offenders) {
        if let Some(lines) = found.get(&function) {
            out.push_str(&format!("{function} {}\n", max.min(*lines)));
        }
    }
    out
}

fn parse(offenders: &str) -> Lengths {
    let entry = |line: &str| {
        let (function, lines) = line.trim().rsplit_once(' ')?;
        Some((function.to_owned(), lines.parse().ok()?))
    };
    offenders.lines().filter_map(entry).collect()
}

fn long_functions(sources: &[Source]) -> Lengths {
    let mut long = Lengths::new();
    for source in sources
        .iter()
        .filter(|source| source.path.ends_with(".rs") && !is_test_file(&source.path))
    {
        for (name, lines) in functions(without_tests(&source.text)) {
            if lines > FUNCTION_LINES_MAX {
                let slot = long.entry(format!("{} {name}", source.path)).or_default();
                *slot = lines.max(*slot);
            }
        }
    }
    long
}

/// Name and length of each function, from its `fn` line to its closing brace.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else {
            continue;
        };
        let indent = line.len() - line.trim_start().len();
        let closes = |line: &&str| line.trim_end() == format!("{}}}", " ".repeat(indent));
        // A declaration without a body ends with a semicolon, a one-liner with its brace.
        if line.trim_end().ends_with([';', '}']) {
            continue;
        }
        let declares = |line: &&str| line.starts_with(&format!("{})", " ".repeat(indent))) && line.ends_with(';');
        let end = lines[start..].iter().position(|line| closes(line) || declares(line));
        if let Some(length) = end.filter(|length| closes(&lines[start + length])) {
            found.push((name, length + 1));
        }
    }
    found
}

fn function_name(line: &str) -> Option<String> {
    let mut words = line.trim_start().split(' ');
    let qualifier = |word: &str| {
        word.starts_with("pub")
            || ["const", "async", "unsafe", "extern", "\"C\"", "in", "crate)", "super)"].contains(&word)
    };
    let first = words.find(|word| !qualifier(word))?;
    if first != "fn" {
        return None;
    }
    let name: String = words
        .next()?
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(lines: usize) -> Source {
        let body = "        step();\n".repeat(lines - 2);
        let text =
            format!("impl X {{\n    pub(crate) const fn long<T>(&self) {{\n{body}    }}\n    fn short() {{}}\n}}\n");
        Source {
            path: "a/src/b.rs".into(),
            text,
        }
    }

    #[test]
    fn a_function_is_measured_from_fn_to_brace() {
        assert_eq!(functions(&source(5).text), [("long".to_owned(), 5)]);
        assert_eq!(
            functions("    fn declared(&self);\nfn a(\n    b: u8,\n) {\n}\n"),
            [("a".to_owned(), 4)]
        );
        let declared = "    fn declared(\n        &self,\n    ) -> u8;\n    fn b() {\n    }\n";
        assert_eq!(functions(declared), [("b".to_owned(), 2)]);
    }

    #[test]
    fn the_list_of_offenders_only_shrinks() {
        let long = [source(80)];
        assert_eq!(check(&[source(70)], ""), [""; 0]);
        assert_eq!(check(&long, "").len(), 1);
        assert_eq!(check(&long, "a/src/b.rs long 80\n"), [""; 0]);
        assert_eq!(check(&long, "a/src/b.rs long 79\n").len(), 1);
        assert_eq!(check(&[source(20)], "a/src/b.rs long 80\n").len(), 1);
        assert_eq!(
            shrunk(&long, "a/src/b.rs long 90\na/src/c.rs gone 75\n"),
            "a/src/b.rs long 80\n"
        );
        assert_eq!(shrunk(&long, ""), "");
    }

    #[test]
    fn tests_may_be_long() {
        let mut source = source(80);
        source.path = "tests/x/src/lib.rs".into();
        assert_eq!(check(&[source], ""), [""; 0]);
    }
}
