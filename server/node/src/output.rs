//! The output of verbs, and their exit status. Everything passes through here: texts of others are escaped, and a closed output ends a verb
//! without a panic.

use std::{
    fmt::Display,
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use comfy_table::{Table, presets};
use serde::Serialize;

use crate::{
    escape::{escaped, escaped_json, escaped_lines},
    server_output::{self, Line},
};

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub enum VerbFailure {
    /// Bad usage: exit status 2.
    #[error("{0}")]
    Usage(String),
    /// The server refused; it said why.
    #[error("{}", describe_problem(.0))]
    Problem(Box<reprise_api::Problem>),
    #[error(transparent)]
    Other(#[from] anyhow::Error),
    /// The server can't continue, but can after a restart: exit status 75, EX_TEMPFAIL of sysexits.h.
    #[error("{0}")]
    Again(String),
    /// Everything is printed already; only the exit status says no.
    #[error("")]
    No,
}

impl From<io::Error> for VerbFailure {
    fn from(error: io::Error) -> Self {
        Self::Other(error.into())
    }
}

pub type VerbResult = Result<(), VerbFailure>;

pub fn usage(text: impl Into<String>) -> VerbFailure {
    VerbFailure::Usage(text.into())
}

/// Prints a failure and says with which status to end, once all is printed.
pub fn finish(outcome: VerbResult, is_json: bool) -> ExitCode {
    let status = outcome.err().map_or(0, |failure| print_failure(&failure, is_json));
    server_output::drain();
    ExitCode::from(status)
}

/// Prints a failure; the exit status.
pub fn print_failure(failure: &VerbFailure, is_json: bool) -> u8 {
    match failure {
        VerbFailure::No => {}
        VerbFailure::Problem(problem) if is_json && !server_output::is_started() => {
            // A reader that is gone needs no error.
            let _ = print_json(problem);
        }
        VerbFailure::Other(error) if is_closed_pipe(error) => return 0,
        VerbFailure::Other(error) => print_error(&escaped(&chain(error))),
        other => print_error(&other.to_string()),
    }
    match failure {
        VerbFailure::Usage(_) => 2,
        VerbFailure::Again(_) => 75,
        _ => 1,
    }
}

/// Says why a verb, or the server, ends.
fn print_error(text: &str) {
    match server_output::is_started() {
        true => {
            let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
            server_output::say(Line::error("failed", first).and_lines(rest.lines()));
        }
        false => print_note(&format!("error: {text}")),
    }
}

/// Returns an error and its causes on one line. It leaves out a cause that its error contains already.
fn chain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(|cause| cause.to_string()) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// The reader of our output has seen enough (`| head`).
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Prints one JSON document on standard output.
pub fn print_json(value: &impl Serialize) -> io::Result<()> {
    print_document(&serde_json::to_string_pretty(value).map_err(io::Error::other)?)
}

/// Prints one line of JSON.
pub fn print_json_line(value: &impl Serialize) -> io::Result<()> {
    print_document(&serde_json::to_string(value).map_err(io::Error::other)?)
}

fn print_document(json: &str) -> io::Result<()> {
    io::stdout()
        .lock()
        .write_all(format!("{}\n", escaped_json(json)).as_bytes())
}

/// Prints a text of one line or several.
pub fn print_text(text: &str) -> io::Result<()> {
    print_data(&escaped_lines(text))
}

/// Prints one line, whatever is in it.
pub fn print_line(text: &str) -> io::Result<()> {
    print_data(&escaped(text))
}

/// Prints rows as they are stored, for a file or another program.
pub fn print_rows(text: &str) -> io::Result<()> {
    match io::stdout().is_terminal() {
        true => print_text(&text.replace("\r\n", "\n")),
        false => print_data(text),
    }
}

fn print_data(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Prints a line on standard error beside the result.
pub fn print_note(text: &str) {
    let text = format!("{}\n", escaped_lines(text));
    let _ = io::stderr().lock().write_all(text.as_bytes()); // the result does not depend on this line
}

/// Columns under upper-case headings, without lines: easy to read and to cut.
pub struct TextTable(Table);

impl TextTable {
    pub fn add_row(&mut self, cells: impl IntoIterator<Item = impl Display>) {
        self.0
            .add_row(cells.into_iter().map(|cell| escaped(&cell.to_string()).into_owned()));
    }
}

pub fn table(header: &[&str]) -> TextTable {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.iter().map(|name| escaped(name).to_uppercase()));
    TextTable(table)
}

/// Names and values, one pair a line.
pub fn print_pairs(pairs: &[(&str, String)]) -> io::Result<()> {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<_> = pairs
        .iter()
        .map(|(name, value)| format!("{name:width$}  {}", escaped(value)))
        .collect();
    print_text(&lines.join("\n"))
}

/// Columns of a terminal that text is cut to, between words.
const TEXT_WIDTH: usize = 100;

/// Returns text in lines that fit, each indented by `indent` spaces, and all but the first by four more.
pub fn wrapped(text: &str, indent: usize) -> String {
    let mut lines = vec![" ".repeat(indent)];
    for word in escaped(text).split(' ') {
        let line = lines.last_mut().expect("one at least");
        let is_new = line.trim().is_empty();
        if !is_new && line.chars().count() + 1 + word.chars().count() > TEXT_WIDTH {
            lines.push(format!("{}{word}", " ".repeat(indent + 4)));
            continue;
        }
        if !is_new {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.join("\n")
}

pub fn print_table(table: &TextTable) -> io::Result<()> {
    // Every cell begins with a space; the first column needs none.
    let trim = |line: String| line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned();
    let lines: Vec<_> = table.0.lines().map(trim).collect();
    print_text(&lines.join("\n"))
}

/// A refusal of the server in words: what, why, and each mistake on a line.
fn describe_problem(problem: &reprise_api::Problem) -> String {
    let slug = problem.type_uri.strip_prefix("/problems/");
    let mut text = match slug {
        Some(slug) => format!("{slug} ({}): {}", problem.status, problem.detail),
        None => format!("{} {}: {}", problem.status, problem.title, problem.detail),
    };
    text = escaped(&text).into_owned();
    let mut push = |line: String| {
        text.push_str("\n  ");
        text.push_str(&escaped(&line));
    };
    for error in &problem.errors {
        let at = if error.pointer.is_empty() {
            "arguments"
        } else {
            &error.pointer
        };
        push(format!("{at}: {}", error.message));
    }
    for conflict in &problem.conflicts {
        let dot = if conflict.item.is_empty() { "" } else { "." };
        push(format!(
            "{}{dot}{}: {}; {}",
            conflict.table, conflict.item, conflict.message, conflict.way_on
        ));
    }
    let said = |value: &Option<String>| value.clone().filter(|value| !problem.detail.contains(value.as_str()));
    if let Some(code) = said(&problem.code) {
        push(format!("code: {code}"));
    }
    if let Some(message) = said(&problem.message) {
        push(format!("message: {message}"));
    }
    if let Some(reason) = said(&problem.reason) {
        push(format!("reason: {reason}"));
    }
    for name in &problem.backtrace {
        push(format!("in {name}"));
    }
    text
}

/// Bytes for people: three digits and a unit.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{count} B"),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

/// A number with its thousands apart.
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A line on standard error with the progress of long work. It prints nothing without a terminal.
pub enum ProgressLine {
    Hidden,
    Verb(indicatif::ProgressBar),
    /// Progress of a server, whose work does not wait for a terminal.
    Server,
}

impl ProgressLine {
    pub fn new() -> Self {
        if server_output::is_started() {
            return Self::Server;
        }
        if !io::stderr().is_terminal() {
            return Self::Hidden;
        }
        let bar = indicatif::ProgressBar::new_spinner();
        bar.set_style(indicatif::ProgressStyle::default_spinner());
        Self::Verb(bar)
    }

    pub fn show(&self, text: String) {
        match self {
            Self::Hidden => {}
            Self::Verb(bar) => {
                bar.set_message(escaped(&text).into_owned());
                bar.tick();
            }
            Self::Server => server_output::show_progress(&text),
        }
    }

    pub fn clear(&self) {
        match self {
            Self::Hidden => {}
            Self::Verb(bar) => bar.finish_and_clear(),
            Self::Server => server_output::show_progress(""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
    }

    #[test]
    fn long_text_is_cut_between_words() {
        let text = wrapped(&["a_parameter: i64"; 30].join(", "), 2);
        assert!(text.lines().all(|line| line.len() <= TEXT_WIDTH), "{text}");
        assert!(text.lines().count() > 4 && text.starts_with("  a_parameter"), "{text}");
        assert_eq!(wrapped("short", 0), "short");
    }

    #[test]
    fn no_text_of_a_module_makes_a_line_or_moves_a_terminal() {
        let hostile = "x\nforged\u{1b}[2J\u{202e}";
        let mut shown = table(&["name", hostile]);
        shown.add_row(["a", hostile]);
        assert_eq!(shown.0.lines().count(), 2, "{}", shown.0);
        let mut problem = reprise_api::Problem::new(reprise_api::ProblemKind::ProcedureAborted, hostile);
        (problem.code, problem.backtrace) = (Some(hostile.into()), vec![hostile.into()]);
        let text = [shown.0.to_string(), describe_problem(&problem), wrapped(hostile, 2)].join("\n");
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
        assert!(
            text.lines().all(|line| !line.trim_start().starts_with("forged")),
            "{text}"
        );
    }

    #[test]
    fn a_problem_says_everything_once() {
        let mut problem =
            reprise_api::Problem::new(reprise_api::ProblemKind::ProcedureAborted, "the procedure said no");
        problem.code = Some("insufficient_funds".into());
        problem.message = Some("said no".into());
        let text = describe_problem(&problem);
        assert_eq!(
            text,
            "procedure-aborted (422): the procedure said no\n  code: insufficient_funds"
        );
    }
}
