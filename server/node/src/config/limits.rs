//! How long things may take, and are kept.

use std::time::Duration;

use reprise_base::limits::{CALL_TIME_MAX_MS, DEPLOY_TIME_MAX_S, IDEMPOTENCY_KEEP_DEFAULT};
use reprise_database::Database;

use super::setting::{bounded, settings};

settings! {
    /// How long things may take, and are kept.
    LimitSettings from LimitArgs under "Limits" {
        /// Milliseconds that a call may run, unless its procedure declares its own limit; 0: no limit [default: 1000]
        call_time_max_ms: u32 {
            env: "REPRISE_CALL_TIME_MAX_MS",
            takes: "N",
            default: CALL_TIME_MAX_MS,
            marks: [live],
        }
        /// Seconds that a deployment may take to change tables and run its migration, while calls wait; 0: no limit
        /// [default: 60]
        deploy_time_max_s: u32 {
            env: "REPRISE_DEPLOY_TIME_MAX_S",
            takes: "N",
            default: DEPLOY_TIME_MAX_S,
            marks: [live],
        }
        /// Seconds for which the server keeps the outcome of a call with an idempotency key, and answers repeats with it
        /// [default: 86400]
        idempotency_keep_s: u64 {
            env: "REPRISE_IDEMPOTENCY_KEEP_S",
            takes: "SECONDS",
            check: idempotency_keep_s,
            default: IDEMPOTENCY_KEEP_DEFAULT.as_secs(),
            marks: [live],
        }
    }
}

impl LimitSettings {
    /// Applies the limits at the start, and after each SIGHUP.
    pub fn apply(&self, database: &Database) {
        let router = database.router();
        router.set_call_time_max_ms(self.call_time_max_ms.value);
        router.set_deploy_time_max_s(self.deploy_time_max_s.value);
        database.set_idempotency_keep(Duration::from_secs(self.idempotency_keep_s.value));
    }
}

fn idempotency_keep_s(text: &str) -> Result<u64, String> {
    bounded(text, "the seconds for which outcomes are kept", 1, 365 * 24 * 3600)
}
