//! The choice of the record that a transaction leaves in the log: its command, its changes, or both.
//!
//! A procedure's own declaration overrides the server's setting. `auto` compares both forms by measurements of the procedure's calls: the
//! time that a record costs at recovery, and its bytes in the log.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering},
    },
};

use reprise_abi::LogDeclaration;
use reprise_base::limits::PART_BYTES;
use reprise_env::Clock;
use reprise_storage::AfterImage;
use reprise_txn::{Module, ModuleId};
use reprise_wire::TwoForms;

/// The server's choice of the log's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LogPolicy {
    /// The command, unless the procedure says otherwise.
    #[default]
    Command,
    /// The changed rows, unless the procedure says otherwise.
    Physiological,
    /// The form that costs less by measurement, unless the procedure says otherwise.
    Auto,
    /// Each transaction in both forms, whatever its procedure declares. It serves to compare them.
    Both,
    /// There is no log.
    None,
}

impl LogPolicy {
    /// Returns the name in the setting.
    pub fn name(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Physiological => "physiological",
            Self::Auto => "auto",
            Self::Both => "both",
            Self::None => "none",
        }
    }
}

/// The form in which standbys get a transaction, whatever form this server's own log has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ShipForm {
    /// The form of the log.
    #[default]
    AsLogged,
    /// Changes, which name rows by their numbers. Replay searches no index for an update, and runs no procedure.
    Changes,
    /// The command. Replay runs it again and compares its digest.
    Command,
}

impl ShipForm {
    /// Returns the name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::AsLogged => "as-logged",
            Self::Changes => "changes",
            Self::Command => "command",
        }
    }
}

/// The form of a transaction in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogForm {
    /// The command, which replay runs again.
    Command,
    /// The rows that it changed.
    Changes,
    /// Both, in one append.
    Both,
    /// One form here, and the other form for standbys.
    Apart(TwoForms),
    /// Neither: there is no log.
    Nothing,
}

impl LogForm {
    /// Returns the form for a server whose standbys get `shipped`.
    #[inline]
    pub fn shipped_as(self, shipped: ShipForm) -> Self {
        match (self, shipped) {
            (Self::Command, ShipForm::Changes) => Self::Apart(TwoForms::CommandHere),
            (Self::Changes, ShipForm::Command) => Self::Apart(TwoForms::ChangesHere),
            _ => self,
        }
    }

    /// True if the log or the standbys need the changes of a transaction.
    #[inline]
    pub fn has_changes(self) -> bool {
        matches!(self, Self::Changes | Self::Both | Self::Apart(_))
    }
}

/// The log's settings, and the measurements for `auto`. All sites share them.
pub struct LogSettings {
    /// The server's setting.
    pub rule: LogPolicy,
    /// How changed rows are written.
    pub images: AfterImage,
    /// The sampling of `LogPolicy::Auto`.
    pub sampling: SampleRate,
    /// Changes of a transaction that take more bytes are logged in parts of this many bytes, or of one change.
    pub part_bytes: usize,
    /// The form that standbys get of transactions that begin from now on.
    shipped: AtomicU8,
    choices: Mutex<BTreeMap<(ModuleId, u16), Arc<AutoChoice>>>,
}

/// Which calls are measured for `auto`. Neither number is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRate {
    /// Number of calls of a procedure on a partition's thread of which one is measured.
    pub every: u32,
    /// Number of measured calls after which the server reviews the choice.
    pub window: u32,
}

impl Default for SampleRate {
    fn default() -> Self {
        let (every, window) = (32, 64);
        Self { every, window }
    }
}

/// Redo of one row: look-up, write and cache misses. The value is a little above that of a vote of two rows in `docs/PERFORMANCE.md`.
const ROW_REDO_NS: f64 = 250.0;
/// Cost of making one row's change at run time: an estimate.
const ROW_CHANGE_NS: f64 = 40.0;
/// Cost of a byte of log, written and read again, at 400 MB/s.
const LOG_BYTE_NS: f64 = 2.5;
/// Bytes of a record beside arguments or changes.
const HEAD_BYTES: f64 = 24.0;
/// Factor by which the other form must be cheaper to be chosen. It keeps the choice from changing to and fro.
const HYSTERESIS: f64 = 1.3;

/// The measured costs of one procedure's calls, as means.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CallCosts {
    /// Number of measured calls.
    pub calls: u32,
    /// Time for which it ran.
    pub run_ns: f64,
    /// Bytes of its arguments.
    pub args_bytes: f64,
    /// Bytes of its changes.
    pub changes_bytes: f64,
    /// Rows that it changed.
    pub rows: f64,
}

impl CallCosts {
    /// Returns the nanoseconds that a call costs by its command: its bytes in the log, and its second run at recovery.
    pub fn command_ns(&self) -> f64 {
        self.run_ns + (HEAD_BYTES + self.args_bytes) * LOG_BYTE_NS
    }

    /// Returns the cost of a replay by its changes.
    pub fn changes_ns(&self) -> f64 {
        self.rows * (ROW_REDO_NS + ROW_CHANGE_NS) + (HEAD_BYTES + self.changes_bytes) * LOG_BYTE_NS
    }
}

/// The choice for one procedure, and why.
pub struct AutoChoice {
    window: u32,
    /// 0: command, 1: changes.
    kind: AtomicU8,
    measured: Mutex<CostWindow>,
}

#[derive(Default)]
struct CostWindow {
    /// Sums of the current window.
    sums: CallCosts,
    /// Means of the last full window.
    last: Option<CallCosts>,
}

impl AutoChoice {
    fn new(sampling: SampleRate) -> Self {
        Self {
            window: sampling.window,
            kind: AtomicU8::new(0),
            measured: Mutex::default(),
        }
    }

    /// Returns the choice at this moment.
    #[inline]
    pub fn kind(&self) -> LogForm {
        match self.kind.load(Ordering::Relaxed) {
            0 => LogForm::Command,
            _ => LogForm::Changes,
        }
    }

    fn record(&self, run_ns: u64, args_bytes: usize, changes_bytes: usize, rows: u32) {
        let mut measured = self.measured.lock().expect("held for sums");
        let sums = &mut measured.sums;
        sums.calls += 1;
        sums.run_ns += run_ns as f64;
        sums.args_bytes += args_bytes as f64;
        sums.changes_bytes += changes_bytes as f64;
        sums.rows += rows as f64;
        if sums.calls >= self.window {
            let means = means(std::mem::take(sums));
            measured.last = Some(means);
            let kind = choose(&means, self.kind());
            self.kind.store((kind == LogForm::Changes) as u8, Ordering::Relaxed);
        }
    }

    /// Returns the choice and its reason with the numbers, for people.
    pub fn explain(&self) -> String {
        let kind = match self.kind() {
            LogForm::Changes | LogForm::Both | LogForm::Apart(TwoForms::ChangesHere) => "physiological",
            LogForm::Command | LogForm::Apart(TwoForms::CommandHere) | LogForm::Nothing => "command",
        };
        let measured = self.measured.lock().expect("held for a short time");
        let Some(costs) = measured.last else {
            let calls = measured.sums.calls;
            return format!("{kind}: {calls} of {} calls measured so far", self.window);
        };
        format!(
            "{kind}: of the last {} measured calls, one runs {:.1} us on {:.0} bytes of arguments and changes {:.1} rows in {:.0} \
             bytes; at the log's and recovery's expense that is {:.1} us by command and {:.1} us by changes",
            costs.calls,
            costs.run_ns / 1e3,
            costs.args_bytes,
            costs.rows,
            costs.changes_bytes,
            costs.command_ns() / 1e3,
            costs.changes_ns() / 1e3,
        )
    }
}

fn means(sums: CallCosts) -> CallCosts {
    let calls = f64::from(sums.calls.max(1));
    CallCosts {
        calls: sums.calls,
        run_ns: sums.run_ns / calls,
        args_bytes: sums.args_bytes / calls,
        changes_bytes: sums.changes_bytes / calls,
        rows: sums.rows / calls,
    }
}

/// Returns the form that costs less. It returns the current form unless the other one is cheaper by `HYSTERESIS`.
fn choose(costs: &CallCosts, now: LogForm) -> LogForm {
    let (command, changes) = (costs.command_ns(), costs.changes_ns());
    match now {
        LogForm::Command if changes * HYSTERESIS < command => LogForm::Changes,
        LogForm::Changes if command * HYSTERESIS < changes => LogForm::Command,
        kept => kept,
    }
}

impl Default for LogSettings {
    fn default() -> Self {
        Self::new(LogPolicy::default(), AfterImage::default(), SampleRate::default())
    }
}

impl LogSettings {
    /// Makes settings without measurements.
    pub fn new(rule: LogPolicy, images: AfterImage, sampling: SampleRate) -> Self {
        Self {
            rule,
            images,
            sampling,
            part_bytes: PART_BYTES,
            shipped: AtomicU8::new(0),
            choices: Mutex::default(),
        }
    }

    /// Sets the size of the parts in which large changes are logged.
    pub fn with_parts_of(self, part_bytes: usize) -> Self {
        Self { part_bytes, ..self }
    }

    /// Sets the form that standbys get of transactions that begin from now on. Only for a log that consists of files and holds one form.
    pub fn set_shipped(&self, form: ShipForm) {
        self.shipped.store(form as u8, Ordering::Relaxed);
    }

    /// Returns the form that standbys get of a transaction that begins now.
    #[inline]
    pub fn shipped(&self) -> ShipForm {
        match self.shipped.load(Ordering::Relaxed) {
            0 => ShipForm::AsLogged,
            1 => ShipForm::Changes,
            _ => ShipForm::Command,
        }
    }

    /// Returns the form in which a procedure's calls are logged now, with the reason if it was chosen by measurement.
    pub fn explain(&self, module: &Module, procedure: u16) -> (&'static str, Option<String>) {
        let declared = module.schema.procedures[procedure as usize].log;
        match (self.rule, declared) {
            (LogPolicy::None, _) => ("none", None),
            (LogPolicy::Both, _) => ("both", None),
            (_, LogDeclaration::Command) | (LogPolicy::Command, LogDeclaration::Server) => ("command", None),
            (_, LogDeclaration::Physiological) | (LogPolicy::Physiological, LogDeclaration::Server) => {
                ("physiological", None)
            }
            (LogPolicy::Auto, LogDeclaration::Server) | (_, LogDeclaration::Auto) => {
                ("auto", Some(self.auto_choice(module.id, procedure).explain()))
            }
        }
    }

    fn auto_choice(&self, module: ModuleId, procedure: u16) -> Arc<AutoChoice> {
        let mut choices = self.choices.lock().expect("held for a short time");
        let new = || Arc::new(AutoChoice::new(self.sampling));
        choices.entry((module, procedure)).or_insert_with(new).clone()
    }

    /// Returns the choices by position in the module's schema.
    pub(crate) fn choices_of(&self, module: &Module) -> Vec<Choice> {
        let procedures = module.schema.procedures.iter().enumerate();
        let choices = procedures.map(|(at, procedure)| {
            let (kind, is_auto) = match (self.rule, procedure.log) {
                (LogPolicy::None, _) => (LogForm::Nothing, false),
                (LogPolicy::Both, _) => (LogForm::Both, false),
                (_, LogDeclaration::Command) => (LogForm::Command, false),
                (_, LogDeclaration::Physiological) => (LogForm::Changes, false),
                (_, LogDeclaration::Auto) | (LogPolicy::Auto, LogDeclaration::Server) => {
                    (LogForm::Command, !procedure.read_only)
                }
                (LogPolicy::Command, LogDeclaration::Server) => (LogForm::Command, false),
                (LogPolicy::Physiological, LogDeclaration::Server) => (LogForm::Changes, false),
            };
            Choice {
                kind,
                auto: is_auto.then(|| self.auto_choice(module.id, at as u16)),
                every: self.sampling.every,
                until_sample: self.sampling.every,
            }
        });
        choices.collect()
    }
}

/// A procedure's choice as one engine thread sees it.
pub(crate) struct Choice {
    kind: LogForm,
    auto: Option<Arc<AutoChoice>>,
    every: u32,
    until_sample: u32,
}

/// A call that is measured.
pub(crate) struct CostSample {
    began_ns: u64,
}

impl Choice {
    #[inline]
    pub fn kind(&self) -> LogForm {
        match &self.auto {
            None => self.kind,
            Some(auto) => auto.kind(),
        }
    }

    /// Begins a sample if the beginning call is to be measured.
    #[inline]
    pub fn sample(&mut self, clock: &dyn Clock) -> Option<CostSample> {
        self.auto.as_ref()?;
        self.until_sample -= 1;
        if self.until_sample > 0 {
            return None;
        }
        self.until_sample = self.every;
        Some(CostSample {
            began_ns: clock.monotonic_ns(),
        })
    }

    /// Records a sample. `now_ns` is the time at which the call ended.
    pub fn record(&self, sample: &CostSample, now_ns: u64, args_bytes: usize, changes_bytes: usize, rows: u32) {
        if let Some(auto) = &self.auto {
            let run_ns = now_ns.saturating_sub(sample.began_ns);
            auto.record(run_ns, args_bytes, changes_bytes, rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(run_us: f64, args_bytes: f64, rows: f64, changes_bytes: f64) -> CallCosts {
        CallCosts {
            calls: 64,
            run_ns: run_us * 1e3,
            args_bytes,
            changes_bytes,
            rows,
        }
    }

    #[test]
    fn long_computation_with_few_writes_is_logged_by_its_changes() {
        let heavy = costs(200.0, 40.0, 2.0, 90.0);
        let vote = costs(0.5, 20.0, 2.0, 70.0);
        assert_eq!(choose(&heavy, LogForm::Command), LogForm::Changes);
        assert_eq!(choose(&vote, LogForm::Command), LogForm::Command);
        assert_eq!(choose(&vote, LogForm::Changes), LogForm::Command);
        // Large arguments and few changed rows: the bytes decide.
        let upload = costs(3.0, 100_000.0, 1.0, 40.0);
        assert_eq!(choose(&upload, LogForm::Command), LogForm::Changes);
    }

    #[test]
    fn a_small_difference_changes_nothing() {
        let even = costs(1.0, 0.0, 2.0, 200.0);
        let ratio = even.command_ns() / even.changes_ns();
        assert!((1.0 / HYSTERESIS..HYSTERESIS).contains(&ratio), "{ratio}");
        assert_eq!(choose(&even, LogForm::Command), LogForm::Command);
        assert_eq!(choose(&even, LogForm::Changes), LogForm::Changes);
    }

    #[test]
    fn a_choice_is_made_after_a_window_and_says_why() {
        let auto = AutoChoice::new(SampleRate::default());
        for call in 0..SampleRate::default().window {
            assert_eq!(auto.kind(), LogForm::Command, "call {call}");
            auto.record(300_000, 30, 80, 1);
        }
        assert_eq!(auto.kind(), LogForm::Changes);
        let text = auto.explain();
        assert!(
            text.starts_with("physiological: of the last 64 measured calls, one runs 300.0 us"),
            "{text}"
        );
    }
}
