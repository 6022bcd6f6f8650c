//! Lists of names in sentences.

/// Names that one sentence lists at most.
const NAMES_SHOWN_MAX: usize = 8;

/// The first of some names, and how many more there are.
pub fn first_names<'n>(names: impl ExactSizeIterator<Item = &'n str>) -> String {
    let more = names.len().saturating_sub(NAMES_SHOWN_MAX);
    let shown: Vec<_> = names.take(NAMES_SHOWN_MAX).collect();
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
