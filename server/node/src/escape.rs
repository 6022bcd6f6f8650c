//! Texts of others, as they may be shown: a terminal obeys nothing in them, and they make no line that was not written here.

use std::borrow::Cow;

/// Characters of the class Cf (Unicode 17), which change the display of others, or are invisible.
const FORMATS: [(char, char); 21] = [
    ('\u{ad}', '\u{ad}'),
    ('\u{600}', '\u{605}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{6dd}', '\u{6dd}'),
    ('\u{70f}', '\u{70f}'),
    ('\u{890}', '\u{891}'),
    ('\u{8e2}', '\u{8e2}'),
    ('\u{180e}', '\u{180e}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{202a}', '\u{202e}'),
    ('\u{2060}', '\u{2064}'),
    ('\u{2066}', '\u{206f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{fff9}', '\u{fffb}'),
    ('\u{110bd}', '\u{110bd}'),
    ('\u{110cd}', '\u{110cd}'),
    ('\u{13430}', '\u{1343f}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0001}', '\u{e0001}'),
    ('\u{e0020}', '\u{e007f}'),
];

/// Returns whether a character is shown by its number: control and format characters, and separators of lines and paragraphs.
fn is_hidden(c: char) -> bool {
    match c {
        ' '..='~' => false,
        '\u{2028}' | '\u{2029}' => true,
        c => c.is_control() || FORMATS.iter().any(|(first, last)| (*first..=*last).contains(&c)),
    }
}

/// Returns a text on one line, whose hidden characters are escaped as in Rust. A second call changes nothing.
pub fn escaped(text: &str) -> Cow<'_, str> {
    replaced(text, is_hidden, |out, c| out.extend(c.escape_default()))
}

/// Escapes what `escaped` does, but for the ends of lines.
pub fn escaped_lines(text: &str) -> Cow<'_, str> {
    let is_replaced = |c| c != '\n' && is_hidden(c);
    replaced(text, is_replaced, |out, c| out.extend(c.escape_default()))
}

/// Escapes hidden characters of a JSON document, which stand in its strings alone, but for white space between them. The document stays
/// the same one.
pub fn escaped_json(text: &str) -> Cow<'_, str> {
    let is_replaced = |c| !matches!(c, '\n' | '\t') && is_hidden(c);
    replaced(text, is_replaced, |out, c| {
        if c == '\r' {
            return out.push(' ');
        }
        let mut units = [0; 2];
        for unit in c.encode_utf16(&mut units) {
            out.push_str(&format!("\\u{unit:04x}"));
        }
    })
}

fn replaced(text: &str, is_replaced: impl Fn(char) -> bool, put: impl Fn(&mut String, char)) -> Cow<'_, str> {
    let Some(first) = text.find(&is_replaced) else {
        return Cow::Borrowed(text);
    };
    let (plain, rest) = text.split_at(first);
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(plain);
    for c in rest.chars() {
        match is_replaced(c) {
            true => put(&mut out, c),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An escape of a terminal, its 8-bit form, a forged line, a text that runs backwards, a character that is not seen.
    const HOSTILE: &str = "a\u{1b}[2Jb\u{9b}2Jc\nready: d\re\u{202e}f\u{200b}g\u{2028}h\u{2029}i\u{e0041}j\u{7f}\t";

    #[test]
    fn no_hidden_character_is_shown_and_words_of_people_are() {
        let shown = escaped(HOSTILE);
        assert!(!shown.contains(is_hidden), "{shown:?}");
        assert!(
            shown.starts_with("a\\u{1b}[2Jb\\u{9b}2Jc\\nready: d\\re\\u{202e}f"),
            "{shown}"
        );
        assert_eq!(escaped(&shown), shown);
        let words = "Z\u{fc}rich \u{4e2d}\u{6587} e\u{301} \u{939}\u{93f}\u{928}\u{94d}\u{926}\u{940} \\ \" \u{1f600}";
        assert_eq!(escaped(words), words);
    }

    #[test]
    fn a_text_of_several_lines_keeps_its_lines_alone() {
        assert_eq!(escaped_lines("a\nb\u{1b}c\rd"), "a\nb\\u{1b}c\\rd");
    }

    #[test]
    fn a_json_document_stays_the_same() {
        let document = format!("\r\n\t{}", serde_json::json!({ "text": HOSTILE }));
        let shown = escaped_json(&document);
        assert!(
            !shown.trim_start().contains(is_hidden) && !shown.contains('\r'),
            "{shown:?}"
        );
        let read: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        assert_eq!(read["text"], HOSTILE);
    }
}
