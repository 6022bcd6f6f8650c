//! Rules that the tree does not keep everywhere yet. A list names each place that breaks one, with a count. Counts only fall.

use std::collections::BTreeMap;

/// The list: a line for each place, `RULE COUNT PLACE`.
pub const LIST: &str = "xtask/ratchets.txt";

/// A place that breaks a rule.
#[derive(Debug)]
pub struct Finding {
    pub rule: &'static str,
    /// A file, and a function or a word in it.
    pub place: String,
    pub count: usize,
    /// Description of the count, and its limit.
    pub limit: &'static str,
}

/// Counts by rule and place.
type Counts = BTreeMap<(String, String), usize>;

/// Complaints of places that stand not in the list, or with a lower count, and of entries that no place needs.
pub fn check(findings: &[Finding], list: &str) -> Vec<String> {
    let known = parse(list);
    let mut complaints = Vec::new();
    for finding in findings {
        let (rule, place, count) = (finding.rule, &finding.place, finding.count);
        match known.get(&(rule.to_owned(), place.clone())) {
            None => complaints.push(format!("{place}: {count} {}", finding.limit)),
            Some(max) if count > *max => complaints.push(format!("{place}: {rule} has grown from {max} to {count}")),
            Some(_) => {}
        }
    }
    let found = found(findings);
    for (rule, place) in known.keys().filter(|key| !found.contains_key(*key)) {
        complaints.push(format!(
            "{place}: keeps the rule {rule} now; run `cargo xtask tidy --bless` to take it off {LIST}"
        ));
    }
    complaints
}

/// The list without the places that keep the rule, and with the counts that have fallen.
pub fn shrunk(findings: &[Finding], list: &str) -> String {
    let found = found(findings);
    let mut out = String::new();
    for ((rule, place), max) in parse(list) {
        if let Some(count) = found.get(&(rule.clone(), place.clone())) {
            out.push_str(&format!("{rule} {} {place}\n", max.min(*count)));
        }
    }
    out
}

/// The highest count of each place: two functions of a file may have one name.
fn found(findings: &[Finding]) -> Counts {
    let mut counts = Counts::new();
    for finding in findings {
        let slot = counts.entry((finding.rule.to_owned(), finding.place.clone()));
        let count = slot.or_default();
        *count = finding.count.max(*count);
    }
    counts
}

fn parse(list: &str) -> Counts {
    let entry = |line: &str| {
        let (rule, rest) = line.split_once(' ')?;
        let (count, place) = rest.split_once(' ')?;
        Some(((rule.to_owned(), place.to_owned()), count.parse().ok()?))
    };
    list.lines().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(count: usize) -> Finding {
        Finding {
            rule: "long-function",
            place: "a/src/b.rs long".into(),
            count,
            limit: "lines; at most 70",
        }
    }

    #[test]
    fn counts_of_the_list_only_fall() {
        assert_eq!(check(&[finding(80)], ""), ["a/src/b.rs long: 80 lines; at most 70"]);
        assert_eq!(check(&[finding(80)], "long-function 80 a/src/b.rs long\n"), [""; 0]);
        assert_eq!(check(&[finding(75)], "long-function 80 a/src/b.rs long\n"), [""; 0]);
        assert_eq!(check(&[finding(80)], "long-function 79 a/src/b.rs long\n").len(), 1);
        assert_eq!(check(&[], "long-function 80 a/src/b.rs long\n").len(), 1);
    }

    #[test]
    fn blessing_shrinks_the_list() {
        let list = "long-function 90 a/src/b.rs long\nlong-function 75 a/src/c.rs gone\n";
        assert_eq!(
            shrunk(&[finding(80), finding(72)], list),
            "long-function 80 a/src/b.rs long\n"
        );
        assert_eq!(shrunk(&[finding(80)], ""), "");
    }
}
