//! Metrics of the process under Prometheus's names, of the server's version, and of calls that did not run, by reason.

use std::fmt::Write;

use reprise_base::{Epoch, Role};
use reprise_observe::RefusalReason;

use crate::state::Parts;

/// The kernel counts processor time for readers in hundredths of a second, whatever its own ticks are.
const TICKS_PER_SECOND: f64 = 100.0;

/// Name, kind, meaning.
type MetricText = (&'static str, &'static str, &'static str);

#[rustfmt::skip]
const FIGURES: [MetricText; 8] = [
    ("process_cpu_seconds_total", "counter", "Processor time that the process has used, in seconds"),
    ("process_max_fds", "gauge", "Limit of open file descriptors of the process"),
    ("process_open_fds", "gauge", "File descriptors that the process has open"),
    ("process_resident_memory_bytes", "gauge", "Resident memory of the process"),
    ("process_start_time_seconds", "gauge", "Time of the server's start, in seconds since 1970"),
    ("process_threads", "gauge", "Threads of the process"),
    ("process_virtual_memory_bytes", "gauge", "Virtual memory of the process"),
    ("reprise_memory_uncounted_bytes", "gauge", "Resident memory beyond what reprise_memory_bytes counts: code, stacks, and what nothing counts"),
];
const BUILD: MetricText = (
    "reprise_build_info",
    "gauge",
    "1, with the program's `version` and the `settings` under which modules are compiled",
);
const EPOCH: MetricText = (
    "reprise_epoch",
    "gauge",
    "Count of the epoch in which a primary writes, or of a standby's last record; 0 without a log",
);
const ROLE: MetricText = (
    "reprise_role",
    "gauge",
    "1 for the server's current `role`, 0 for the others",
);
const OTHER_PRIMARY: MetricText = (
    "reprise_other_primary",
    "gauge",
    "1 while another server leads this database beside this primary; else 0",
);
const REFUSED: MetricText = (
    "reprise_calls_refused_total",
    "counter",
    "Calls and requests that the server refused, or that found no memory, by `reason`: the slug of the problem",
);

/// Figures of the process that the kernel reports.
#[derive(Debug, Default, PartialEq)]
struct Figures {
    cpu_seconds: f64,
    max_fds: u64,
    open_fds: u64,
    resident_bytes: u64,
    threads: u64,
    virtual_bytes: u64,
}

impl Figures {
    fn read() -> Self {
        let text = |file: &str| std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
        let open_fds = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64);
        Self::of(&text("stat"), &text("status"), &text("limits"), open_fds)
    }

    fn of(stat: &str, status: &str, limits: &str, open_fds: u64) -> Self {
        // The name, in parentheses, may hold anything.
        let behind_name = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
        let ticks = |field: usize| -> u64 {
            let found = behind_name.split_ascii_whitespace().nth(field);
            found.and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        let number = |text: &str, key: &str, at: usize| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            let found = line.and_then(|line| line.split_ascii_whitespace().nth(at));
            found.and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        Self {
            cpu_seconds: (ticks(11) + ticks(12)) as f64 / TICKS_PER_SECOND,
            max_fds: number(limits, "Max open files", 0),
            open_fds,
            resident_bytes: number(status, "VmRSS:", 0) << 10,
            threads: number(status, "Threads:", 0),
            virtual_bytes: number(status, "VmSize:", 0) << 10,
        }
    }
}

fn push_head(described: MetricText, out: &mut String) {
    let (name, kind, what) = described;
    let _ = writeln!(out, "# HELP {name} {what}\n# TYPE {name} {kind}"); // a write to a string never fails
}

/// Appends them all, in the text format of Prometheus.
pub fn push(parts: &Parts, out: &mut Vec<u8>) {
    let (figures, status) = (Figures::read(), parts.router.status());
    let started_s = status.started_unix_us as f64 / 1e6;
    let uncounted = figures.resident_bytes.saturating_sub(parts.router.memory().used());
    let values = [
        figures.cpu_seconds,
        figures.max_fds as f64,
        figures.open_fds as f64,
        figures.resident_bytes as f64,
        started_s,
        figures.threads as f64,
        figures.virtual_bytes as f64,
        uncounted as f64,
    ];
    let mut text = String::new();
    for (described, value) in FIGURES.into_iter().zip(values) {
        push_head(described, &mut text);
        let _ = writeln!(text, "{} {value}", described.0);
    }
    push_head(BUILD, &mut text);
    let (version, settings) = (env!("CARGO_PKG_VERSION"), status.settings_hash);
    let _ = writeln!(
        text,
        "{}{{version=\"{version}\",settings=\"{settings:016x}\"}} 1",
        BUILD.0
    );
    push_head(EPOCH, &mut text);
    let _ = writeln!(text, "{} {}", EPOCH.0, status.epoch.map_or(0, Epoch::count));
    push_head(ROLE, &mut text);
    for role in [Role::Primary, Role::Standby, Role::ReadOnly] {
        let is_it = u8::from(role == status.role);
        let _ = writeln!(text, "{}{{role=\"{}\"}} {is_it}", ROLE.0, role.name());
    }
    push_head(OTHER_PRIMARY, &mut text);
    let is_beside = u8::from(parts.router.other_primary().is_some());
    let _ = writeln!(text, "{} {is_beside}", OTHER_PRIMARY.0);
    push_head(REFUSED, &mut text);
    for reason in RefusalReason::ALL {
        let count = parts.router.refusals().get(reason);
        let _ = writeln!(text, "{}{{reason=\"{}\"}} {count}", REFUSED.0, reason.name());
    }
    out.extend_from_slice(text.as_bytes());
}

/// Name, kind and meaning of each, for the documentation.
#[cfg(test)]
pub fn described() -> impl Iterator<Item = (String, &'static str, &'static str)> {
    let all = FIGURES.into_iter().chain([BUILD, EPOCH, ROLE, OTHER_PRIMARY, REFUSED]);
    all.map(|(name, kind, what)| (name.to_owned(), kind, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_read_whatever_the_process_is_called() {
        let stat = "7 (a) b) c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 100 1000 200 18446744073709551615";
        let status = "Name:\tx\nVmSize:\t  2048 kB\nVmRSS:\t   1024 kB\nThreads:\t9\n";
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 4096                 files\n";
        let expected = Figures {
            cpu_seconds: 3.0,
            max_fds: 1024,
            open_fds: 5,
            resident_bytes: 1 << 20,
            threads: 9,
            virtual_bytes: 2 << 20,
        };
        assert_eq!(Figures::of(stat, status, limits, 5), expected);
        assert_eq!(Figures::of("", "", "", 0), Figures::default());
        let own = Figures::read();
        assert!(
            own.resident_bytes > 0 && own.threads > 0 && own.open_fds > 0 && own.max_fds > 0,
            "{own:?}"
        );
    }
}
