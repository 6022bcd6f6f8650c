//! A line of the server's output, as text and as JSON.

use reprise_base::named_enum;
use reprise_codec::rfc3339;
use serde_json::Value;

use crate::escape::{escaped, escaped_json};

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Only where `RUST_LOG` asks for it.
    Debug,
    Info,
    /// An operator should read it.
    Warning,
    /// An operator must act.
    Error,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }

    /// The beginning of a text of this level.
    fn prefix(self) -> &'static str {
        match self {
            Self::Debug | Self::Info => "",
            Self::Warning => "warning: ",
            Self::Error => "error: ",
        }
    }
}

named_enum! {
    /// How lines are written.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum LogFormat {
        /// The time and words.
        #[default]
        Text => "text",
        /// An object each.
        Json => "json",
    }
}

/// Something that the server says.
#[derive(Clone, Debug)]
pub struct Line {
    pub level: Level,
    /// The kind of thing that happened, in snake case.
    pub event: &'static str,
    pub message: String,
    /// Members of the object in JSON; the message has them in words.
    pub fields: Vec<(&'static str, Value)>,
    /// Further lines of a report.
    pub more: Vec<String>,
}

impl Line {
    pub fn new(level: Level, event: &'static str, message: impl Into<String>) -> Self {
        Self {
            level,
            event,
            message: message.into(),
            fields: Vec::new(),
            more: Vec::new(),
        }
    }

    pub fn info(event: &'static str, message: impl Into<String>) -> Self {
        Self::new(Level::Info, event, message)
    }

    pub fn warning(event: &'static str, message: impl Into<String>) -> Self {
        Self::new(Level::Warning, event, message)
    }

    pub fn error(event: &'static str, message: impl Into<String>) -> Self {
        Self::new(Level::Error, event, message)
    }

    /// Adds a member.
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// Adds further lines.
    pub fn and_lines(mut self, lines: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.more.extend(lines.into_iter().map(Into::into));
        self
    }

    /// Returns about how many bytes it holds.
    pub fn bytes(&self) -> usize {
        let fields = self.fields.len() * size_of::<(&str, Value)>();
        size_of::<Self>() + self.message.len() + fields + self.more.iter().map(String::len).sum::<usize>()
    }

    /// Returns the line as it is written, with its end. `time_us`: when the thing happened.
    pub fn written(&self, format: LogFormat, time_us: i64) -> String {
        let time = rfc3339(time_us);
        match format {
            LogFormat::Text => self.text(&time),
            LogFormat::Json => self.json(&time),
        }
    }

    /// Returns the words alone, with their end.
    pub fn bare(&self) -> String {
        format!("{}\n", escaped(&self.message))
    }

    fn text(&self, time: &str) -> String {
        let mut text = format!("{time} {}{}\n", self.level.prefix(), escaped(&self.message));
        for line in &self.more {
            text.push_str(&format!("{time} {}\n", escaped(line)));
        }
        text
    }

    fn json(&self, time: &str) -> String {
        let fixed = [
            ("time", Value::from(time)),
            ("level", self.level.name().into()),
            ("event", self.event.into()),
            ("message", self.message.as_str().into()),
        ];
        let mut members: Vec<_> = fixed.into_iter().chain(self.fields.iter().cloned()).collect();
        if !self.more.is_empty() {
            members.push(("lines", self.more.clone().into()));
        }
        let members: Vec<_> = members
            .iter()
            .map(|(name, value)| format!("{}:{value}", Value::from(*name)))
            .collect();
        format!("{}\n", escaped_json(&format!("{{{}}}", members.join(","))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_whatever_is_in_it() {
        let line = Line::warning("trap", "trap in m.p: x\n2026-01-01T00:00:00.000000Z ready")
            .with("procedure", "m.p\u{1b}")
            .and_lines(["  in \u{202e}f"]);
        assert_eq!(
            line.written(LogFormat::Text, 0),
            "1970-01-01T00:00:00.000000Z warning: trap in m.p: x\\n2026-01-01T00:00:00.000000Z ready\n\
             1970-01-01T00:00:00.000000Z   in \\u{202e}f\n"
        );
        let json = line.written(LogFormat::Json, 0);
        assert_eq!(json.matches('\n').count(), 1, "{json}");
        assert!(
            json.starts_with(r#"{"time":"1970-01-01T00:00:00.000000Z","level":"warning","event":"trap","message":"#),
            "{json}"
        );
        let read: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(read["message"], line.message);
        assert_eq!(
            (&read["procedure"], &read["lines"][0]),
            (&"m.p\u{1b}".into(), &"  in \u{202e}f".into())
        );
    }
}
