//! The workload `voter`: phone votes from random area codes, one in a hundred for a contestant that does not exist.

use reprise_procedure::{native::NativeModule, types::SmallText};

use crate::{
    BenchError, OnProgress, Progress,
    control::{Arg, Control, integer},
    kernel::{IntMap, Kernel},
    measure::Tally,
    options::Options,
    random::{Random, below},
    workload::{Workload, has_prefetch, push_i64},
};

pub(crate) const NAME: &str = "voter";

pub const CONTESTANTS: [&str; 6] = [
    "Ada Lindqvist",
    "Bruno Okafor",
    "Chiara Novak",
    "Dmitri Alvarez",
    "Esther Nakamura",
    "Farid Holloway",
];
pub const VOTES_PER_PHONE_MAX: i64 = 2;
/// Votes of 2^32 for a contestant that does not exist.
const INVALID_SHARE: u32 = u32::MAX / 100;
/// Votes of 2^32 from phones that vote again and again, so that the limit is met.
const REPEATED_SHARE: u32 = u32::MAX / 100;
pub const REPEATED_PHONES: u32 = 1_000;
pub const NUMBERS_PER_AREA: u32 = 10_000_000;
/// Phones of the run's first calls whose rows the check reads, beside all that vote again.
const PHONES_CHECKED: usize = 1_000;
/// Valid votes after which the phones that vote again are over the limit: sixteen each at a hundredth.
const VOTES_MANY: u64 = 16 * 100 * REPEATED_PHONES as u64;

const ACCEPTED: usize = 0;
const INVALID: usize = 1;
const OVER_LIMIT: usize = 2;
const UNKNOWN: usize = 3;

pub(crate) struct Voter {
    area_codes: Vec<u16>,
    votes_before: i64,
    rows_before: u64,
}

#[derive(Clone, Copy)]
pub(crate) struct VoteCall {
    phone_number: i64,
    contestant_number: i32,
}

impl Voter {
    /// The `at`th of the phones that vote again and again.
    fn repeated_phone(&self, at: u32) -> i64 {
        let area = self.area_codes[at as usize % self.area_codes.len()];
        area as i64 * NUMBERS_PER_AREA as i64 + at as i64
    }

    fn votes(control: &mut dyn Control) -> Result<i64, BenchError> {
        let results = control.call("results", &[])?;
        let lines = results.as_array().map_or(&[][..], Vec::as_slice);
        lines.iter().map(|line| integer(line, "votes")).sum()
    }
}

impl Workload for Voter {
    type Call = VoteCall;
    const NAME: &'static str = NAME;
    const PROCEDURES: &'static [&'static str] = &["vote"];
    const OUTCOMES: &'static [&'static str] = &["accepted", "invalid_contestant", "over_limit", "unknown"];

    fn new(options: &Options) -> Result<Self, BenchError> {
        options.check_sizes(&[])?;
        Ok(Self {
            area_codes: voter::area_codes().map(|(code, _)| code).collect(),
            votes_before: 0,
            rows_before: 0,
        })
    }

    fn native() -> &'static NativeModule {
        &voter::MODULE
    }

    fn prepare(&mut self, control: &mut dyn Control, on_progress: OnProgress<'_>) -> Result<(), BenchError> {
        on_progress(Progress::Preparing("naming the contestants"));
        control.call("initialize", &[("contestants", Arg::Texts(CONTESTANTS.to_vec()))])?;
        self.votes_before = Self::votes(control)?;
        let before = self.votes_before;
        self.rows_before = control.checked_row_count("votes", &|rows| rows as i64 == before)?;
        Ok(())
    }

    #[inline]
    fn generate(&self, random: &mut Random) -> VoteCall {
        let (phone, choice) = (random.next_u64(), random.next_u64());
        let area = self.area_codes[below((phone >> 32) as u32, self.area_codes.len() as u32) as usize];
        let share = (choice >> 32) as u32;
        let any = area as i64 * NUMBERS_PER_AREA as i64 + below(phone as u32, NUMBERS_PER_AREA) as i64;
        VoteCall {
            phone_number: match share >= u32::MAX - REPEATED_SHARE {
                true => self.repeated_phone(below(phone as u32, REPEATED_PHONES)),
                false => any,
            },
            contestant_number: match share <= INVALID_SHARE {
                true => 999,
                false => 1 + below(choice as u32, CONTESTANTS.len() as u32) as i32,
            },
        }
    }

    fn procedure(_: &VoteCall) -> usize {
        0
    }

    #[inline]
    fn encode(call: &VoteCall, out: &mut Vec<u8>) {
        let mut args = [0; 20];
        args[..8].copy_from_slice(&call.phone_number.to_le_bytes());
        args[8..12].copy_from_slice(&call.contestant_number.to_le_bytes());
        args[12..].copy_from_slice(&VOTES_PER_PHONE_MAX.to_le_bytes());
        out.extend_from_slice(&args);
    }

    fn write_json(call: &VoteCall, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"phone_number\":");
        push_i64(out, call.phone_number);
        out.extend_from_slice(b",\"contestant_number\":");
        push_i64(out, call.contestant_number as i64);
        out.extend_from_slice(b",\"max_votes_per_phone\":");
        push_i64(out, VOTES_PER_PHONE_MAX);
        out.push(b'}');
    }

    #[inline]
    fn outcome(_: &VoteCall, result: &[u8]) -> usize {
        match result {
            [0] => ACCEPTED,
            [1] => INVALID,
            [2] => OVER_LIMIT,
            _ => UNKNOWN,
        }
    }

    fn outcome_json(_: &VoteCall, answer: &[u8]) -> usize {
        const NEAR: usize = 96;
        if has_prefetch(answer, NEAR, b"\"accepted\"") {
            ACCEPTED
        } else if has_prefetch(answer, NEAR, b"\"invalid_contestant\"") {
            INVALID
        } else if has_prefetch(answer, NEAR, b"\"over_limit\"") {
            OVER_LIMIT
        } else {
            UNKNOWN
        }
    }

    fn outcome_of_abort(_: &str) -> Option<usize> {
        None
    }

    fn kernel(&mut self, _: u16) -> Result<Option<Box<dyn Kernel<VoteCall>>>, BenchError> {
        Ok(Some(Box::new(VoteKernel::default())))
    }

    fn liberties(&self) -> Vec<String> {
        [
            "one call in a hundred comes from one of 1,000 phones, so that over_limit is met: among all numbers chance repeats none",
            "area codes are compiled into the procedure: no look-up in a replicated table",
            "a local table of counters by contestant and area code stands in for the two views",
            "the limit is found by inserting the phone's next vote by number, not by a count",
        ]
        .map(String::from)
        .into()
    }

    fn check_state(&self, control: &mut dyn Control) -> Result<Vec<String>, BenchError> {
        let counted = Self::votes(control)?;
        let stored = control.checked_row_count("votes", &|rows| rows as i64 == counted)?;
        if counted != stored as i64 {
            return Err(BenchError::Checks(format!(
                "results counts {counted} votes, and {stored} are stored"
            )));
        }
        for at in 0..REPEATED_PHONES {
            Self::check_phone(control, self.repeated_phone(at))?;
        }
        Ok(vec![
            format!("votes counted = votes stored = {stored}"),
            format!(
                "no phone of the {REPEATED_PHONES} that vote again and again has more than {VOTES_PER_PHONE_MAX} votes, and each votes by number"
            ),
        ])
    }

    fn check(&self, control: &mut dyn Control, seed: u64, whole: &Tally) -> Result<Vec<String>, BenchError> {
        let failed = |text| Err(BenchError::Checks(text));
        if whole.outcomes[UNKNOWN] > 0 {
            return failed(format!("{} votes came to an unknown outcome", whole.outcomes[UNKNOWN]));
        }
        let accepted = whole.outcomes[ACCEPTED];
        let counted = Self::votes(control)? - self.votes_before;
        if counted != accepted as i64 {
            return failed(format!(
                "results counts {counted} votes of this run, but {accepted} were accepted"
            ));
        }
        let before = self.rows_before;
        let stored = control.checked_row_count("votes", &|rows| rows == before + accepted)? as i64 - before as i64;
        if stored != accepted as i64 {
            return failed(format!(
                "{stored} votes of this run are stored, but {accepted} were accepted"
            ));
        }
        let (over, valid) = (whole.outcomes[OVER_LIMIT], whole.committed - whole.outcomes[INVALID]);
        let least = valid / 200;
        if valid >= VOTES_MANY && over < least {
            return failed(format!(
                "of {valid} valid votes {over} were over the limit: with those of phones that vote again there must be {least} at least"
            ));
        }
        let phones = self.check_phones(control, seed, whole)?;
        Ok(vec![
            format!("votes stored by this run = votes accepted = {accepted}; {over} were over the limit"),
            format!("the phones of the first {phones} calls keep to the limit as well"),
        ])
    }
}

impl Voter {
    /// Reads the phones of the run's first calls, which the seed makes again.
    fn check_phones(&self, control: &mut dyn Control, seed: u64, whole: &Tally) -> Result<usize, BenchError> {
        let mut random = Random::new(seed);
        let mut stored_at_all = 0;
        let answered = whole.committed.min(PHONES_CHECKED as u64) as usize;
        for _ in 0..answered {
            let phone = self.generate(&mut random).phone_number;
            stored_at_all += Self::check_phone(control, phone)?;
        }
        if answered == PHONES_CHECKED && stored_at_all == 0 && whole.refused == 0 {
            return Err(BenchError::Checks(format!(
                "none of the first {answered} votes is stored"
            )));
        }
        Ok(answered)
    }

    /// How many votes a phone has: not more than it may, numbered from 1.
    fn check_phone(control: &mut dyn Control, phone: i64) -> Result<usize, BenchError> {
        let votes = control.call("phone_votes", &[("phone_number", Arg::I64(phone))])?;
        let votes = votes.as_array().map_or(&[][..], Vec::as_slice);
        let numbers = votes.iter().map(|vote| integer(vote, "vote_number"));
        let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
        let expected: Vec<i64> = (1..=numbers.len() as i64).collect();
        match numbers.len() as i64 <= VOTES_PER_PHONE_MAX && numbers == expected {
            true => Ok(numbers.len()),
            false => Err(BenchError::Checks(format!(
                "phone {phone} may vote {VOTES_PER_PHONE_MAX} times and has the votes {numbers:?}"
            ))),
        }
    }
}

/// A vote as the kernel stores it.
#[cfg_attr(not(test), expect(dead_code, reason = "written as a database would; tests read it"))]
struct StoredVote {
    phone_number: i64,
    contestant_number: i32,
    vote_number: i32,
    state: SmallText<2>,
}

/// Votes in an array, how many each phone has in a map, tallies by contestant and area code in an array.
#[derive(Default)]
struct VoteKernel {
    votes: Vec<StoredVote>,
    by_phone: IntMap<i64, i32>,
    tallies: Vec<i64>,
}

impl Kernel<VoteCall> for VoteKernel {
    #[inline]
    fn run(&mut self, call: &VoteCall) -> usize {
        const AREAS: usize = 1_000;
        let contestant = call.contestant_number as usize;
        if !(1..=CONTESTANTS.len()).contains(&contestant) {
            return INVALID;
        }
        let votes = self.by_phone.entry(call.phone_number).or_default();
        if *votes as i64 >= VOTES_PER_PHONE_MAX {
            return OVER_LIMIT;
        }
        *votes += 1;
        self.votes.push(StoredVote {
            phone_number: call.phone_number,
            contestant_number: call.contestant_number,
            vote_number: *votes,
            state: voter::state_of(call.phone_number),
        });
        let area = voter::area_code_of(call.phone_number) as usize % AREAS;
        self.tallies.resize((CONTESTANTS.len() + 1) * AREAS, 0);
        self.tallies[contestant * AREAS + area] += 1;
        ACCEPTED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn votes_come_from_real_area_codes() {
        let workload = Voter::new(&Options::in_process(NAME)).expect("no sizes");
        let mut random = Random::new(1);
        let (mut invalid, mut repeated) = (0, 0);
        let again: Vec<i64> = (0..REPEATED_PHONES).map(|at| workload.repeated_phone(at)).collect();
        for _ in 0..10_000 {
            let call = workload.generate(&mut random);
            assert_ne!(voter::state_of(call.phone_number).as_str(), "XX");
            invalid += (call.contestant_number == 999) as u32;
            repeated += again.contains(&call.phone_number) as u32;
        }
        assert!((50..200).contains(&invalid), "{invalid}");
        assert!((50..200).contains(&repeated), "{repeated}");
    }

    #[test]
    fn the_kernel_counts_as_the_module_does() {
        let workload = Voter::new(&Options::in_process(NAME)).expect("no sizes");
        let (mut kernel, mut random) = (VoteKernel::default(), Random::new(4));
        let first = workload.generate(&mut random);
        let outcomes: Vec<_> = (0..3).map(|_| kernel.run(&first)).collect();
        assert_eq!(outcomes, [ACCEPTED, ACCEPTED, OVER_LIMIT]);
        let none = VoteCall {
            contestant_number: 999,
            ..first
        };
        assert_eq!(kernel.run(&none), INVALID);
        assert_eq!(kernel.tallies.iter().sum::<i64>(), 2);
        let last = &kernel.votes[1];
        assert_eq!((last.vote_number, last.phone_number), (2, first.phone_number));
        assert_eq!(last.contestant_number, first.contestant_number);
        assert_ne!(last.state.as_str(), "XX");
    }

    #[test]
    fn json_is_what_the_api_takes() {
        let mut json = Vec::new();
        let call = VoteCall {
            phone_number: 2_125_550_123,
            contestant_number: 3,
        };
        Voter::write_json(&call, &mut json);
        let value: Value = serde_json::from_slice(&json).expect("JSON");
        assert_eq!(value["phone_number"], 2_125_550_123_i64);
        assert_eq!(value["max_votes_per_phone"], 2);
        let answer = br#"{"result":{"outcome":"over_limit"},"txn_id":"1"}"#;
        assert_eq!(Voter::outcome_json(&call, answer), OVER_LIMIT);
    }
}
