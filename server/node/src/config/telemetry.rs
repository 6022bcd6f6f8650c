//! The server's reports about calls, and their receivers.

use reprise_database::Database;

use super::setting::settings;
use crate::server_output::LogFormat;

const SLOW_CALL_MS_DEFAULT: u32 = 100;

settings! {
    /// The settings of reports about calls.
    TelemetrySettings from TelemetryArgs under "Telemetry" {
        /// Milliseconds that a call may run and hold its partitions before the server prints a line about it; 0: no lines
        /// [default: 100]
        slow_call_ms: u32 {
            env: "REPRISE_SLOW_CALL_MS",
            takes: "N",
            default: SLOW_CALL_MS_DEFAULT,
            marks: [live],
        }
        /// Format of the server's output: text, or json with one object on each line [default: text]
        log_format: crate::server_output::LogFormat {
            env: "REPRISE_LOG_FORMAT",
            takes: "KIND",
            default: LogFormat::Text,
            marks: [where_said],
        }
        /// OpenTelemetry collector that gets a span of every call, http://HOST:4318 [default: none]
        otlp_endpoint: String {
            env: "REPRISE_OTLP_ENDPOINT",
            takes: "URL",
            check: otlp_endpoint,
            marks: [where_said],
        }
    }
}

impl TelemetrySettings {
    /// Applies the settings at the start, and after each SIGHUP.
    pub fn apply(&self, database: &Database) {
        database.router().notices().set_slow_call_ms(self.slow_call_ms.value);
    }
}

fn otlp_endpoint(text: &str) -> Result<String, String> {
    crate::spans::endpoint(text).map_err(|error| error.to_string())
}
