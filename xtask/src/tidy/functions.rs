//! Lengths of functions, by indentation: the tree is formatted, so a body ends at a brace below its `fn`.

use super::{Source, product, ratchet::Finding};

/// Lines of a function at most.
const LINES_MAX: usize = 70;

/// Functions that are too long.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in product(sources) {
        let long = functions(text).into_iter().filter(|(_, lines)| *lines > LINES_MAX);
        findings.extend(long.map(|(name, lines)| Finding {
            rule: "long-function",
            place: format!("{path} {name}"),
            count: lines,
            limit: "lines; at most 70",
        }));
    }
    findings
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

/// The name of the function that begins on this line.
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
    fn functions_over_the_limit_are_found() {
        assert_eq!(check(&[source(70)]).len(), 0);
        assert_eq!(check(&[source(71)])[0].place, "a/src/b.rs long");
    }

    #[test]
    fn tests_may_be_long() {
        let mut source = source(80);
        source.path = "tests/x/src/lib.rs".into();
        assert_eq!(check(&[source]).len(), 0);
    }
}
