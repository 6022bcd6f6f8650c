//! Lines of `tracing`, from our HTTP and from libraries, as lines of the server's output. `RUST_LOG` chooses which.

use std::fmt;

use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter, Layer,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use super::{Level, Line, say};

pub fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::registry().with(ToOutput.with_filter(filter)).init();
}

struct ToOutput;

/// The fields of an event, in words.
#[derive(Default)]
struct Fields {
    message: String,
    others: String,
    /// The module of a library's line that came by the `log` crate.
    target: Option<String>,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field.name(), format!("{value:?}"));
    }
}

impl Fields {
    fn put(&mut self, name: &str, value: String) {
        match name {
            "message" => self.message = value,
            "log.target" => self.target = Some(value),
            name if name.starts_with("log.") => {}
            name => self.others.push_str(&format!(" {name}={value}")),
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for ToOutput {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let level = match *metadata.level() {
            tracing::Level::ERROR => Level::Error,
            tracing::Level::WARN => Level::Warning,
            tracing::Level::INFO => Level::Info,
            _ => Level::Debug,
        };
        let target = fields.target.unwrap_or_else(|| metadata.target().to_owned());
        let message = format!("{target}: {}{}", fields.message, fields.others);
        say(Line::new(level, "library", message).with("target", target));
    }
}
