//! Costs of a procedure's calls in either form of the log, measured while they run.
//!
//! One call of many is measured, and its changes are made even if the log holds commands. At a later measured call, the site finds the kept
//! changes in its tables again, as a recovery would. Other calls have used the caches since. The command costs a second run at
//! recovery, and its bytes. Changes cost the time in which they are made and found, and their bytes.
//! Source: Malviya and others, "Rethinking Main Memory OLTP Recovery", section V.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU8, Ordering},
};

use reprise_base::PartitionId;
use reprise_env::Clock;
use reprise_storage::{RedoScratch, Store};
use reprise_wire::{PartitionSet, groups_of};

use crate::log_form::LogForm;

/// Bytes of a record beside arguments or changes.
const HEAD_BYTES: f64 = 24.0;
/// Factor by which the other form must be cheaper to be chosen. It keeps the choice from changing to and fro.
const HYSTERESIS: f64 = 1.3;
/// Changes of more bytes are found again at once: they are more than the caches nearest to the processor hold.
const KEPT_BYTES_MAX: usize = 4 << 10;

/// Which calls are measured. Neither number is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRate {
    /// Number of calls of a procedure on a partition's thread of which one is measured.
    pub every: u32,
    /// Number of measured calls with changes after which the server reviews the choice.
    pub window: u32,
}

impl Default for SampleRate {
    fn default() -> Self {
        let (every, window) = (100, 16);
        Self { every, window }
    }
}

/// The measured costs of one procedure's calls. Times are medians, except for `redo_ns`, and sizes are means.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CallCosts {
    /// Number of measured calls whose changes were made.
    pub calls: u32,
    /// Time for which it runs.
    pub run_ns: f64,
    /// Bytes of its arguments.
    pub args_bytes: f64,
    /// Bytes of its changes.
    pub changes_bytes: f64,
    /// Rows that it changes.
    pub rows: f64,
    /// Time in which its changes are made, beside its run.
    pub make_ns: f64,
    /// Time in which its changed rows are found in the tables.
    pub redo_ns: f64,
    /// Time in which the log's device takes one more byte.
    pub byte_ns: f64,
}

impl CallCosts {
    /// Returns the bytes of its command in the log, about.
    pub fn command_bytes(&self) -> f64 {
        HEAD_BYTES + self.args_bytes
    }

    /// Returns the bytes of its changes in the log, about.
    pub fn changed_bytes(&self) -> f64 {
        HEAD_BYTES + self.changes_bytes
    }

    /// Returns the nanoseconds that a call costs by its command: its bytes in the log, and its second run at recovery.
    pub fn command_ns(&self) -> f64 {
        self.run_ns + self.command_bytes() * self.byte_ns
    }

    /// Returns the nanoseconds that a call costs by its changes.
    pub fn changes_ns(&self) -> f64 {
        self.make_ns + self.redo_ns + self.changed_bytes() * self.byte_ns
    }

    /// Returns the form that costs less. It returns `now` unless the other one is cheaper by `HYSTERESIS`.
    fn better(&self, now: LogForm) -> LogForm {
        let (command, changes) = (self.command_ns(), self.changes_ns());
        match now {
            LogForm::Command if changes * HYSTERESIS < command => LogForm::Changes,
            LogForm::Changes if command * HYSTERESIS < changes => LogForm::Command,
            kept => kept,
        }
    }
}

/// The measurements of a procedure, as they are now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredCosts {
    /// The form that costs less, once a window is full. Before, the form in which the procedure began.
    pub better: LogForm,
    /// Calls measured in the present window.
    pub measured: u32,
    /// Calls of a full window.
    pub window: u32,
    /// The costs by the last full window.
    pub costs: Option<CallCosts>,
}

impl MeasuredCosts {
    /// Returns the better form's name in the setting.
    pub fn better_name(&self) -> &'static str {
        match self.better {
            LogForm::Changes => "physiological",
            _ => "command",
        }
    }

    /// Returns the choice and its reason with the numbers, for people.
    pub fn explain(&self) -> String {
        let name = self.better_name();
        let Some(costs) = self.costs else {
            return format!("{name}: {} of {} calls measured so far", self.measured, self.window);
        };
        format!(
            "{name}: of the last {} measured calls, one runs {:.1} us on {:.0} bytes of arguments and changes {:.1} rows in {:.0} \
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

/// The measurements of one procedure on all sites, and the form for which they speak.
pub(crate) struct CostMeter {
    window: u32,
    /// 0: command, 1: changes.
    better: AtomicU8,
    measured: Mutex<CostWindow>,
}

#[derive(Default)]
struct CostWindow {
    /// Run times of calls without and with their changes, in ns.
    plain_ns: Vec<u64>,
    made_ns: Vec<u64>,
    args_bytes: f64,
    changes_bytes: f64,
    rows: f64,
    redo_ns: f64,
    redo_rows: f64,
    /// Time to find a changed row, by all windows that measured one.
    row_redo_ns: Option<f64>,
    /// The costs by the last full window.
    last: Option<CallCosts>,
}

impl CostWindow {
    /// Ends the window and returns its costs. None: no changed row was found again yet, so nothing is known of their redo.
    fn end(&mut self, byte_ns: f64) -> Option<CallCosts> {
        let calls = self.made_ns.len();
        let mean = |sum: f64| sum / calls as f64;
        if self.redo_rows > 0.0 {
            self.row_redo_ns = Some(self.redo_ns / self.redo_rows);
        }
        let (made_ns, plain_ns) = (median(&mut self.made_ns)?, median(&mut self.plain_ns));
        let rows = mean(self.rows);
        let row_redo_ns = if rows > 0.0 { self.row_redo_ns } else { Some(0.0) };
        let costs = row_redo_ns.map(|row_redo_ns| CallCosts {
            calls: calls as u32,
            run_ns: plain_ns.unwrap_or(made_ns),
            args_bytes: mean(self.args_bytes),
            changes_bytes: mean(self.changes_bytes),
            rows,
            make_ns: plain_ns.map_or(0.0, |plain_ns| (made_ns - plain_ns).max(0.0)),
            redo_ns: rows * row_redo_ns,
            byte_ns,
        });
        *self = Self {
            row_redo_ns: self.row_redo_ns,
            last: costs.or(self.last),
            ..Self::default()
        };
        costs
    }
}

fn median(times: &mut [u64]) -> Option<f64> {
    let at = times.len() / 2;
    (!times.is_empty()).then(|| *times.select_nth_unstable(at).1 as f64)
}

impl CostMeter {
    pub fn new(sampling: SampleRate, begins: LogForm) -> Self {
        Self {
            window: sampling.window,
            better: AtomicU8::new((begins == LogForm::Changes) as u8),
            measured: Mutex::default(),
        }
    }

    /// Returns the form that costs less, as far as it is measured.
    #[inline]
    fn better(&self) -> LogForm {
        match self.better.load(Ordering::Relaxed) {
            0 => LogForm::Command,
            _ => LogForm::Changes,
        }
    }

    pub fn costs(&self) -> MeasuredCosts {
        let measured = self.measured.lock().expect("held for a short time");
        MeasuredCosts {
            better: self.better(),
            measured: measured.made_ns.len() as u32,
            window: self.window,
            costs: measured.last,
        }
    }

    fn record_plain(&self, run_ns: u64) {
        let mut measured = self.measured.lock().expect("held for sums");
        // Calls with changes end a window. One that never writes would fill the list.
        if measured.plain_ns.len() < self.window as usize {
            measured.plain_ns.push(run_ns);
        }
    }

    fn record_made(&self, run_ns: u64, call: &MeasuredCall<'_>, redo: Option<FoundAgain>) {
        let mut measured = self.measured.lock().expect("held for sums");
        measured.made_ns.push(run_ns);
        measured.args_bytes += call.args_bytes as f64;
        measured.changes_bytes += call.changes.len() as f64;
        measured.rows += f64::from(call.rows);
        if let Some(redo) = redo {
            measured.redo_ns += redo.ns as f64;
            measured.redo_rows += f64::from(redo.rows);
        }
        if measured.made_ns.len() >= self.window as usize
            && let Some(costs) = measured.end(call.byte_ns)
        {
            let better = costs.better(self.better());
            self.better.store((better == LogForm::Changes) as u8, Ordering::Relaxed);
        }
    }
}

/// A measured call that was committed.
pub(crate) struct MeasuredCall<'a> {
    pub args_bytes: usize,
    /// Its changes, as a record of these partitions holds them.
    pub changes: &'a [u8],
    pub partitions: PartitionSet<'a>,
    pub rows: u32,
    /// The tables of the site's partitions.
    pub stores: &'a dyn Fn(PartitionId) -> Option<&'a Store>,
    /// Time in which the log's device takes one more byte.
    pub byte_ns: f64,
}

/// The changes of a measured call, until they are found again.
struct KeptChanges {
    /// None: of several partitions.
    partition: Option<PartitionId>,
    bytes: Vec<u8>,
}

/// Rows that were found again, and the time for all.
struct FoundAgain {
    rows: u32,
    ns: u64,
}

impl MeasuredCall<'_> {
    /// Finds the rows of changes again. None: a partition is not here, or no row is left.
    fn find_again(&self, partitions: PartitionSet<'_>, bytes: &[u8], clock: &dyn Clock) -> Option<FoundAgain> {
        let mut scratch = RedoScratch::default();
        let (mut rows, began_ns) = (0, clock.monotonic_ns());
        for (partition, changes) in groups_of(partitions, bytes) {
            rows += (self.stores)(partition)?.find_changed(changes, &mut scratch);
        }
        let ns = clock.monotonic_ns().saturating_sub(began_ns);
        (rows > 0).then_some(FoundAgain { rows, ns })
    }
}

/// A procedure's choice as one engine thread sees it.
pub(crate) struct Choice {
    kind: LogForm,
    is_auto: bool,
    meter: Option<Arc<CostMeter>>,
    every: u32,
    until_sample: u32,
    /// The next measured call makes its changes, whatever the log holds.
    makes_next: bool,
    kept: Option<KeptChanges>,
}

/// A call that is measured.
pub(crate) struct CostSample {
    began_ns: u64,
    /// Its changes are made.
    pub makes_changes: bool,
}

impl Choice {
    pub fn new(kind: LogForm, is_auto: bool, meter: Option<Arc<CostMeter>>, every: u32) -> Self {
        Self {
            kind,
            is_auto,
            meter,
            every,
            until_sample: every,
            makes_next: true,
            kept: None,
        }
    }

    #[inline]
    pub fn kind(&self) -> LogForm {
        match &self.meter {
            Some(meter) if self.is_auto => meter.better(),
            _ => self.kind,
        }
    }

    /// Begins a sample if the beginning call is to be measured.
    #[inline]
    pub fn sample(&mut self, clock: &dyn Clock) -> Option<CostSample> {
        self.meter.as_ref()?;
        self.until_sample -= 1;
        if self.until_sample > 0 {
            return None;
        }
        self.until_sample = self.every;
        let makes_changes = self.makes_next;
        self.makes_next = !makes_changes;
        Some(CostSample {
            began_ns: clock.monotonic_ns(),
            makes_changes,
        })
    }

    /// Records a sample, whose call has just ended.
    #[cold]
    pub fn record(&mut self, sample: &CostSample, call: &MeasuredCall<'_>, clock: &dyn Clock) {
        let Some(meter) = self.meter.clone() else { return };
        let run_ns = clock.monotonic_ns().saturating_sub(sample.began_ns);
        if !sample.makes_changes {
            return meter.record_plain(run_ns);
        }
        let redo = self.find_kept(call, clock);
        meter.record_made(run_ns, call, redo);
    }

    /// Finds the changes of the last measured call again, and keeps those of this one for the next.
    fn find_kept(&mut self, call: &MeasuredCall<'_>, clock: &dyn Clock) -> Option<FoundAgain> {
        if call.changes.len() > KEPT_BYTES_MAX {
            return call.find_again(call.partitions, call.changes, clock);
        }
        let Some(kept) = &mut self.kept else {
            self.kept = KeptChanges::of(call, Vec::new());
            return None;
        };
        let redo = call.find_again(
            kept.partition.map_or(PartitionSet::All, PartitionSet::One),
            &kept.bytes,
            clock,
        );
        // Changes of another partition wait for a call there.
        if kept
            .partition
            .is_none_or(|partition| (call.stores)(partition).is_some())
        {
            self.kept = KeptChanges::of(call, std::mem::take(&mut kept.bytes));
        }
        redo
    }
}

impl KeptChanges {
    /// Keeps a call's changes, in memory that held others. None: it changed nothing.
    fn of(call: &MeasuredCall<'_>, mut bytes: Vec<u8>) -> Option<Self> {
        bytes.clear();
        bytes.extend_from_slice(call.changes);
        let partition = match call.partitions {
            PartitionSet::One(partition) => Some(partition),
            PartitionSet::Several(_) | PartitionSet::All => None,
        };
        (!bytes.is_empty()).then_some(Self { partition, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call's costs where a row is found in 200 ns and the device takes 2 ns a byte.
    fn costs(run_us: f64, args_bytes: f64, rows: f64, changes_bytes: f64) -> CallCosts {
        CallCosts {
            calls: 16,
            run_ns: run_us * 1e3,
            args_bytes,
            changes_bytes,
            rows,
            make_ns: 40.0 * rows,
            redo_ns: 200.0 * rows,
            byte_ns: 2.0,
        }
    }

    #[test]
    fn long_computation_with_few_writes_is_logged_by_its_changes() {
        let heavy = costs(200.0, 40.0, 2.0, 90.0);
        let vote = costs(0.4, 20.0, 2.0, 70.0);
        assert_eq!(heavy.better(LogForm::Command), LogForm::Changes);
        assert_eq!(vote.better(LogForm::Command), LogForm::Command);
        assert_eq!(vote.better(LogForm::Changes), LogForm::Command);
        // Large arguments and few changed rows: the bytes decide.
        let upload = costs(3.0, 100_000.0, 1.0, 40.0);
        assert_eq!(upload.better(LogForm::Command), LogForm::Changes);
    }

    #[test]
    fn a_small_difference_changes_nothing() {
        let even = costs(0.9, 0.0, 2.0, 200.0);
        let ratio = even.command_ns() / even.changes_ns();
        assert!((1.0 / HYSTERESIS..HYSTERESIS).contains(&ratio), "{ratio}");
        assert_eq!(even.better(LogForm::Command), LogForm::Command);
        assert_eq!(even.better(LogForm::Changes), LogForm::Changes);
    }

    #[test]
    fn choice_is_made_by_medians_once_redo_was_measured_and_says_why() {
        let meter = CostMeter::new(SampleRate::default(), LogForm::Command);
        let call = MeasuredCall {
            args_bytes: 30,
            changes: &[0; 80],
            partitions: PartitionSet::All,
            rows: 2,
            stores: &|_| None,
            byte_ns: 1.0,
        };
        let window = SampleRate::default().window;
        let fill = |redo: fn() -> Option<FoundAgain>| {
            for at in 0..window {
                // One call of a window waited for the processor.
                let late_ns = if at == 3 { 50_000_000 } else { 0 };
                meter.record_plain(300_000 + late_ns);
                meter.record_made(301_000 + late_ns, &call, redo());
            }
        };
        fill(|| None);
        assert_eq!(
            (meter.better(), meter.costs().costs),
            (LogForm::Command, None),
            "no redo is known"
        );
        fill(|| Some(FoundAgain { rows: 4, ns: 1_000 }));
        let found = meter.costs();
        let costs = found.costs.expect("a full window");
        assert_eq!(
            (costs.run_ns, costs.make_ns, costs.redo_ns),
            (300_000.0, 1_000.0, 500.0)
        );
        assert_eq!(found.better, LogForm::Changes);
        let text = found.explain();
        assert!(
            text.starts_with("physiological: of the last 16 measured calls, one runs 300.0 us"),
            "{text}"
        );
    }
}
