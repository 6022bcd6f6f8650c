//! Valid names of servers, and lists of names.

/// Bytes of a server's name, at most.
pub const NODE_NAME_BYTES_MAX: usize = 64;

/// Checks the name of a server among its primary and the standbys, which is in file names, metrics and paths of URLs. Err: the fault of the
/// name.
pub fn check_node_name(name: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_good = (1..=NODE_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain);
    // These two names are steps in a path of a URL.
    match is_good && !matches!(name, "." | "..") {
        true => Ok(()),
        false => Err(format!(
            "the name of a server has 1 to {NODE_NAME_BYTES_MAX} letters, digits, '-', '_' or '.', and is not '.' or '..'"
        )),
    }
}

/// Returns the text that tells which of these names to take.
pub fn take_one_of(names: &[&str]) -> String {
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("take {} or {last}", others.join(", ")),
        _ => format!("take {}", names.concat()),
    }
}

/// Bytes in lower-case hexadecimal, as names of databases and sums are shown.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_into_paths() {
        for good in ["s1", "db-2.eu_west", "...", &"x".repeat(NODE_NAME_BYTES_MAX)] {
            assert_eq!(check_node_name(good), Ok(()));
        }
        for bad in ["", ".", "..", "a b", "a/b", "ü", &"x".repeat(NODE_NAME_BYTES_MAX + 1)] {
            assert!(check_node_name(bad).is_err(), "{bad}");
        }
    }
}
