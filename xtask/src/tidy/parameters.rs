//! Parameters of functions. A tuple counts as its elements: it is no way around the limit.

use super::{Source, product, ratchet::Finding};

/// Parameters of a function at most.
const PARAMETERS_MAX: usize = 7;

/// Functions with too many parameters, and parameters that are taken apart at once, by file.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in product(sources) {
        let functions = functions(text);
        let many = functions.iter().map(|(name, parameters)| (name, width(parameters)));
        findings.extend(
            many.filter(|(_, count)| *count > PARAMETERS_MAX)
                .map(|(name, count)| Finding {
                    rule: "parameters",
                    place: format!("{path} {name}"),
                    count,
                    limit: "parameters with the elements of tuples; at most 7",
                }),
        );
        let all = functions.iter().flat_map(|(_, parameters)| parameters);
        let count = all.filter(|parameter| parameter.starts_with('(')).count();
        if count > 0 {
            findings.push(Finding {
                rule: "tuple-parameters",
                place: path.to_owned(),
                count,
                limit: "parameters of the form `(a, b): (A, B)`; name a struct instead",
            });
        }
    }
    findings
}

/// Name and parameters of each function.
fn functions(text: &str) -> Vec<(&str, Vec<&str>)> {
    let starts = text.match_indices("fn ").map(|(at, found)| (at, at + found.len()));
    let starts = starts.filter(|(at, _)| text[..*at].chars().next_back().is_none_or(|c| " (\n".contains(c)));
    starts.filter_map(|(_, name)| function(&text[name..])).collect()
}

/// The function of which this is the text behind its `fn`.
fn function(text: &str) -> Option<(&str, Vec<&str>)> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    let (name, rest) = text.split_at(end);
    let rest = match rest.strip_prefix('<') {
        Some(generics) => &generics[closing(generics)? + 1..],
        None => rest,
    };
    let parameters = rest.strip_prefix('(')?;
    (!name.is_empty()).then_some((name, split(&parameters[..closing(parameters)?])))
}

/// Position of the bracket that closes the one opened right before the text.
fn closing(text: &str) -> Option<usize> {
    depths(text).find(|(_, _, depth)| *depth < 0).map(|(at, _, _)| at)
}

/// The parts of a list between its commas.
fn split(list: &str) -> Vec<&str> {
    let commas = depths(list).filter(|(_, c, depth)| *c == ',' && *depth == 0);
    let ends = commas.map(|(at, _, _)| at).chain([list.len()]);
    let parts = ends.scan(0, |start, end| {
        let part = list[*start..end].trim();
        *start = end + 1;
        Some(part)
    });
    parts.filter(|part| !part.is_empty()).collect()
}

/// Each character with the depth of brackets behind it.
fn depths(text: &str) -> impl Iterator<Item = (usize, char, i32)> {
    let (mut depth, mut before) = (0, ' ');
    text.char_indices().map(move |(at, c)| {
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        before = c;
        (at, c, depth)
    })
}

/// Parameters, each tuple as its elements.
fn width(parameters: &[&str]) -> usize {
    parameters.iter().map(|parameter| type_width(type_of(parameter))).sum()
}

/// The type of a parameter: `self` is its own.
fn type_of(parameter: &str) -> &str {
    let is_path = |at: usize| parameter[..at].ends_with(':') || parameter[at + 1..].starts_with(':');
    let colon = depths(parameter).find(|(at, c, depth)| *c == ':' && *depth == 0 && !is_path(*at));
    colon.map_or(parameter, |(at, _, _)| parameter[at + 1..].trim())
}

fn type_width(of: &str) -> usize {
    let tuple = of.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    let elements = tuple.map(split).filter(|elements| elements.len() > 1);
    elements.map_or(1, |elements| elements.into_iter().map(type_width).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(&'static str, usize)> {
        let source = Source {
            path: "a/src/b.rs".into(),
            text: text.into(),
        };
        let findings = check(&[source]);
        findings.iter().map(|finding| (finding.rule, finding.count)).collect()
    }

    #[test]
    fn elements_of_tuples_are_parameters() {
        assert_eq!(found("fn seven(a: A, b: B, c: C, d: D, e: E, f: F, g: G) {}"), []);
        assert_eq!(
            found(
                "    pub fn eight<'a, F: Fn(A) -> B>(&'a self, b: x::B<C, D>, (c, d): (C, (D, E)), f: F, g: G, h: H) {}"
            ),
            [("parameters", 8), ("tuple-parameters", 1)]
        );
        assert_eq!(
            found("fn f(pair: (A, B), call: impl Fn(A, B) -> (C, D), c: [C; 2], d: D, e: E, f: F, g: G) -> H;"),
            [("parameters", 8)]
        );
        assert_eq!(found("type F = fn (a, b);\n// a fn of (a, b)\n"), []);
    }
}
