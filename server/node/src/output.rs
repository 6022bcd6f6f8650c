//! What is printed, and with which exit status.

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use comfy_table::{Table, presets};
use serde::Serialize;

/// Why a verb did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Bad usage: exit status 2.
    #[error("{0}")]
    Usage(String),
    /// The server refused; it said why.
    #[error("{}", describe_problem(.0))]
    Problem(Box<reprise_api::Problem>),
    #[error(transparent)]
    Other(#[from] anyhow::Error),
    /// The server can't go on, and does once it is started again: exit status 75, EX_TEMPFAIL of sysexits.h.
    #[error("{0}")]
    Again(String),
    /// Everything is printed already; only the exit status says no.
    #[error("")]
    No,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Other(error.into())
    }
}

pub type Outcome = Result<(), Failure>;

pub fn usage(text: impl Into<String>) -> Failure {
    Failure::Usage(text.into())
}

/// Prints a failure and says with which status to end.
pub fn finish(outcome: Outcome, is_json: bool) -> ExitCode {
    let failure = match outcome {
        Ok(()) => return ExitCode::SUCCESS,
        Err(failure) => failure,
    };
    ExitCode::from(tell(&failure, is_json))
}

/// Prints a failure; the exit status.
pub fn tell(failure: &Failure, is_json: bool) -> u8 {
    match failure {
        Failure::No => {}
        Failure::Problem(problem) if is_json => {
            // A reader that went away has its answer: there is nobody to tell.
            let _ = print_json(problem);
        }
        Failure::Other(error) if is_closed_pipe(error) => return 0,
        Failure::Other(error) => eprintln!("error: {}", chain(error)),
        other => eprintln!("error: {other}"),
    }
    match failure {
        Failure::Usage(_) => 2,
        Failure::Again(_) => 75,
        _ => 1,
    }
}

/// An error and what it came from on one line; a cause that its error has told already is left out.
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

/// One JSON document on standard output.
pub fn print_json(value: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(value).map_err(io::Error::other)?;
    text.push(b'\n');
    io::stdout().lock().write_all(&text)
}

/// One line of JSON.
pub fn print_json_line(value: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(value).map_err(io::Error::other)?;
    text.push(b'\n');
    io::stdout().lock().write_all(&text)
}

pub fn print_text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// What a person should know beside the result, on standard error.
pub fn print_aside(text: &str) {
    // Who closed it does not read it.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Columns under upper-case headings, without lines: easy to read and to cut.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.iter().map(|name| name.to_uppercase()));
    table
}

/// Names and values, one pair a line.
pub fn print_pairs(pairs: &[(&str, String)]) -> io::Result<()> {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<_> = pairs
        .iter()
        .map(|(name, value)| format!("{name:width$}  {value}"))
        .collect();
    print_text(&lines.join("\n"))
}

/// Columns of a terminal that text is cut to, between words.
const TEXT_WIDTH: usize = 100;

/// Text in lines that fit, each behind so many spaces, all but the first behind four more.
pub fn wrapped(text: &str, indent: usize) -> String {
    let mut lines = vec![" ".repeat(indent)];
    for word in text.split(' ') {
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

pub fn print_table(table: &Table) -> io::Result<()> {
    // Every cell begins with a space; the first column needs none.
    let trim = |line: String| line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned();
    let lines: Vec<_> = table.lines().map(trim).collect();
    print_text(&lines.join("\n"))
}

/// A refusal of the server in words: what, why, and each mistake on a line.
fn describe_problem(problem: &reprise_api::Problem) -> String {
    let slug = problem.type_uri.strip_prefix("/problems/");
    let mut text = match slug {
        Some(slug) => format!("{slug} ({}): {}", problem.status, problem.detail),
        None => format!("{} {}: {}", problem.status, problem.title, problem.detail),
    };
    let mut push = |line: String| {
        text.push_str("\n  ");
        text.push_str(&line);
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

/// A line on standard error that shows how far long work is; nothing where nobody looks.
pub struct ProgressLine(Option<indicatif::ProgressBar>);

impl ProgressLine {
    pub fn new() -> Self {
        if !io::stderr().is_terminal() {
            return Self(None);
        }
        let bar = indicatif::ProgressBar::new_spinner();
        bar.set_style(indicatif::ProgressStyle::default_spinner());
        Self(Some(bar))
    }

    pub fn show(&self, text: String) {
        if let Some(bar) = &self.0 {
            bar.set_message(text);
            bar.tick();
        }
    }

    pub fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
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
