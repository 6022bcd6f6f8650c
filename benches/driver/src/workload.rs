//! The interface of a workload: a generator of calls, their form on each way in, and checks of the rows they leave.

use std::collections::BTreeMap;

use reprise_procedure::native::NativeModule;

use crate::{
    BenchError, OnProgress, control::Control, kernel::Kernel, measure::Tally, options::Options, random::Random,
};

pub(crate) trait Workload: Sized + Send + Sync + 'static {
    /// One call. Small: it is kept until its answer comes.
    type Call: Copy + Send + Sync + 'static;
    /// The workload's and its module's name.
    const NAME: &'static str;
    /// The procedures that the measured calls name.
    const PROCEDURES: &'static [&'static str];
    /// Possible outcomes of their calls, by name.
    const OUTCOMES: &'static [&'static str];

    /// Refuses the options that it has no use for (`Options::check_sizes`).
    fn new(options: &Options) -> Result<Self, BenchError>;
    /// The module's procedures compiled into this program.
    fn native() -> &'static NativeModule;

    /// Fills what the calls need. Not measured.
    fn prepare(&mut self, control: &mut dyn Control, on_progress: OnProgress<'_>) -> Result<(), BenchError>;

    fn generate(&self, random: &mut Random) -> Self::Call;
    /// Position in `PROCEDURES`.
    fn procedure(call: &Self::Call) -> usize;
    /// Appends the encoded arguments.
    fn encode(call: &Self::Call, out: &mut Vec<u8>);
    /// Appends the arguments as JSON, in the order of the parameters.
    fn write_json(call: &Self::Call, out: &mut Vec<u8>);

    /// Position in `OUTCOMES` of a committed call's encoded result.
    fn outcome(call: &Self::Call, result: &[u8]) -> usize;
    /// The `outcome` variant for an answer that holds the result as JSON.
    fn outcome_json(call: &Self::Call, answer: &[u8]) -> usize;
    /// Position in `OUTCOMES` of an abort; None for a code that the workload does not expect.
    fn outcome_of_abort(code: &str) -> Option<usize>;

    /// Its transactions in plain Rust over the same data, once `prepare` would have filled it on `partitions`; None: there
    /// is no such kernel.
    fn kernel(&mut self, _partitions: u16) -> Result<Option<Box<dyn Kernel<Self::Call>>>, BenchError> {
        Ok(None)
    }

    /// Differences of the workload from the description that it is named after, in words; they join the report.
    fn liberties(&self) -> Vec<String>;

    /// Figures of the workload's own, from what came back inside the window of `seconds`; they join the report.
    fn figures(&self, _window: &Tally, _seconds: f64) -> BTreeMap<String, f64> {
        BTreeMap::new()
    }

    /// Checks what holds of any database that the workload filled, at rest, whatever became of its runs: after a kill and a
    /// recovery as well. Ok: what was checked, in words.
    fn check_state(&self, control: &mut dyn Control) -> Result<Vec<String>, BenchError>;

    /// Checks what all calls of this run left, the warm-up's too. Ok: what was checked, in words.
    fn check(&self, control: &mut dyn Control, seed: u64, whole: &Tally) -> Result<Vec<String>, BenchError>;
}

/// Appends a number in decimal.
#[inline]
pub(crate) fn push_i64(out: &mut Vec<u8>, value: i64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

/// True where `text` lies in the first `within` bytes of `bytes`.
#[inline]
pub(crate) fn has_prefetch(bytes: &[u8], within: usize, text: &[u8]) -> bool {
    bytes[..bytes.len().min(within)]
        .windows(text.len())
        .any(|window| window == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_whole() {
        for value in [0, 7, -7, 1_000_000, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            push_i64(&mut out, value);
            assert_eq!(String::from_utf8(out).expect("digits"), value.to_string());
        }
    }
}
