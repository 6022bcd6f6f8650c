//! The prose of a Markdown page: sentences with their words, and lines that are too wide.

/// Words of a sentence at most.
pub const WORDS_MAX: usize = 25;
/// Columns of a line at most, outside of code, tables and link targets.
const LINE_MAX: usize = 100;
/// Columns of a table row at most.
const ROW_MAX: usize = 240;

/// Words and phrases that hide the actor of a sentence. Lower case; each stands between two word ends.
const BANNED: [&str; 14] = [
    "nobody",
    "somebody",
    "anybody",
    "whoever",
    "that one",
    "those that",
    "is told",
    "is looked at",
    "so many",
    "so far",
    "so long",
    "comes to",
    "lets go",
    "goes on",
];

/// The measures of one page.
#[derive(Debug, Default)]
pub struct Page {
    /// The words of each sentence. A table cell, a list item and a paragraph each end a sentence.
    pub sentences: Vec<usize>,
    pub long_lines: usize,
    pub long_rows: usize,
    pub banned_words: usize,
}

impl Page {
    /// Measures a page. Code blocks and headings are no prose; a code span is one word.
    pub fn of(text: &str) -> Self {
        let mut page = Self::default();
        let (mut block, mut in_code) = (String::new(), false);
        for line in text.lines() {
            let trimmed = line.trim();
            let is_fence = trimmed.starts_with("```");
            if is_fence || in_code {
                page.end_block(&mut block);
                in_code ^= is_fence;
            } else if trimmed.starts_with('|') {
                page.end_block(&mut block);
                page.add_row(trimmed);
            } else {
                page.long_lines += usize::from(shown(line).chars().count() > LINE_MAX);
                page.add_line(trimmed, &mut block);
            }
        }
        page.end_block(&mut block);
        page
    }

    pub fn long_sentences(&self) -> usize {
        self.sentences.iter().filter(|words| **words > WORDS_MAX).count()
    }

    fn add_line(&mut self, line: &str, block: &mut String) {
        let item = item(line);
        let is_apart = line.is_empty() || line.starts_with('#') || line.starts_with("<!--");
        if is_apart || item.is_some() {
            self.end_block(block);
        }
        if !is_apart {
            block.push_str(item.unwrap_or(line));
            block.push(' ');
        }
    }

    fn add_row(&mut self, row: &str) {
        self.long_rows += usize::from(row.chars().count() > ROW_MAX);
        for cell in shown(&without_code(row)).replace("\\|", " ").split('|') {
            self.end_block(&mut cell.to_owned());
        }
    }

    fn end_block(&mut self, block: &mut String) {
        let text = shown(&without_code(block));
        block.clear();
        self.sentences.extend(sentences(&text));
        let words: Vec<_> = text.split(|c: char| !c.is_alphanumeric()).collect();
        let text = format!(" {} ", words.join(" ").to_lowercase());
        self.banned_words += BANNED
            .iter()
            .map(|banned| text.matches(&format!(" {banned} ")).count())
            .sum::<usize>();
    }
}

/// The text of a list item behind its mark.
fn item(line: &str) -> Option<&str> {
    let numbered = || {
        let (number, text) = line.split_once(". ")?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then_some(text)
    };
    line.strip_prefix("- ")
        .or_else(|| line.strip_prefix("* "))
        .or_else(numbered)
}

/// The text with the word `code` in place of each code span.
fn without_code(text: &str) -> String {
    let mut out = String::new();
    for (number, part) in text.split('`').enumerate() {
        out.push_str(if number % 2 == 0 { part } else { "code" });
    }
    out
}

/// The text without the targets of links.
fn shown(text: &str) -> String {
    let mut parts = text.split("](");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push(']');
        out.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    out
}

/// The words of each sentence. It ends where a space or nothing follows the mark, or the bracket behind the mark.
fn sentences(text: &str) -> Vec<usize> {
    let (mut counts, mut words) = (Vec::new(), 0);
    for word in text.split_whitespace() {
        words += usize::from(word.contains(char::is_alphanumeric));
        let bare = word.trim_end_matches([')', ']', '*', '"', '\'', '_']);
        if bare.ends_with(['.', '?', '!']) {
            counts.push(words);
            words = 0;
        }
    }
    counts.push(words);
    counts.retain(|words| *words > 0);
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_end_at_marks_cells_items_and_blank_lines() {
        let page = "# A heading of five words\n\nOne two; three:\nfour. Five `six. seven` eight\n\n\
            - Nine (ten.)\n- [eleven twelve](a/b.md#c.) at 1.5 s?\n2. thirteen\n\n```sh\nnot read. at all\n```\n\n\
            | a b | `c \\| d` e. f |\n| --- | --- |\n";
        assert_eq!(Page::of(page).sentences, [4, 3, 2, 5, 1, 2, 2, 1]);
    }

    #[test]
    fn lines_and_rows_are_measured_by_what_a_reader_sees() {
        let long = "a".repeat(101);
        let widths = |text: &str| {
            let page = Page::of(text);
            (page.long_lines, page.long_rows)
        };
        assert_eq!(widths(&long), (1, 0));
        assert_eq!(widths(&long[1..]), (0, 0));
        assert_eq!(widths(&format!("see [it]({long}), then")), (0, 0));
        assert_eq!(widths(&format!("```\n{long}\n```\n| {long} |\n")), (0, 0));
        assert_eq!(widths(&format!("| {long} | {long} | {long} |")), (0, 1));
    }

    #[test]
    fn banned_words_are_found_as_words_of_prose_alone() {
        let banned = |text: &str| Page::of(text).banned_words;
        assert_eq!(banned("Nobody **lets go**,\nand it goes\non."), 3);
        assert_eq!(banned("`nobody`\n```\nnobody\n```\nForgoes one."), 0);
    }

    #[test]
    fn sentences_of_more_than_25_words_are_long() {
        let sentence = |words: usize| format!("{}.", vec!["word"; words].join(" "));
        let page = Page::of(&format!("{} {}", sentence(25), sentence(26)));
        assert_eq!(page.long_sentences(), 1);
    }
}
