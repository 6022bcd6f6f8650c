//! Results on standard output, progress on standard error.

use std::io::{self, ErrorKind, IsTerminal, Write};

use reprise_driver::BenchError;
use serde::Serialize;

use crate::{args::Output, failed};

pub type Outcome = Result<(), BenchError>;

/// Name and value of a line of the report.
pub type Line = (&'static str, String);

/// Prints a report as one JSON document, or as its lines.
pub fn print(output: Output, report: &impl Serialize, lines: impl FnOnce() -> Vec<Line>) -> Outcome {
    let text = match output {
        Output::Json => serde_json::to_string_pretty(report).map_err(|error| failed("write the report", error))?,
        Output::Text => {
            let lines = lines();
            let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
            let lines = lines.iter().map(|(name, value)| format!("{name:width$}  {value}"));
            lines.collect::<Vec<_>>().join("\n")
        }
    };
    match writeln!(io::stdout().lock(), "{text}") {
        // The reader of the output has seen enough (`| head`).
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| failed("print", error)),
    }
}

/// Bytes for people: a number and a unit.
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
    match (value / 1_000, value % 1_000) {
        (0, rest) => rest.to_string(),
        (thousands, rest) => format!("{},{rest:03}", grouped(thousands)),
    }
}

/// A line on standard error that shows how far long work is, if standard error is a terminal.
pub struct ProgressLine {
    is_shown: bool,
}

impl ProgressLine {
    pub fn new() -> Self {
        let is_shown = io::stderr().is_terminal();
        Self { is_shown }
    }

    pub fn show(&self, text: String) {
        if self.is_shown {
            eprint!("\r\x1b[K{text}");
        }
    }

    pub fn clear(&self) {
        if self.is_shown {
            eprint!("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1_234_067), "1,234,067");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
    }
}
