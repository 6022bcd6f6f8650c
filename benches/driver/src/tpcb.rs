//! The workload `tpcb`: tellers book amounts to accounts, of their own branch or of another.

use std::collections::BTreeMap;

use reprise_abi::Field;
use reprise_procedure::native::NativeModule;
use reprise_txn::partition_of_field;
use tpcb::{ACCOUNTS_PER_BRANCH, BRANCHES_MAX, TELLERS_PER_BRANCH, first_account, first_teller};

use crate::{
    BenchError, OnProgress, Progress,
    control::{Arg, Control, ManyCalls, integer},
    kernel::Kernel,
    measure::Tally,
    options::Options,
    random::{Random, below},
    workload::{Workload, push_i64},
};

pub(crate) const NAME: &str = "tpcb";

/// Branches of a partition where `--scale` says nothing.
const BRANCHES_PER_PARTITION: u32 = 10;
/// Clause 5.3.5: the account is of another branch than the teller's.
pub const REMOTE_PERCENT: u8 = 15;
pub const DELTA_MAX: u32 = 999_999;
const LOAD_ACCOUNTS: i32 = 2_000;

const BOOKED: usize = 0;
const BOOKED_APART: usize = 1;

pub(crate) struct Tpcb {
    scale: Option<u32>,
    remote_percent: u8,
    branches: Vec<Branch>,
    history_before: u64,
}

#[derive(Clone, Copy)]
struct Branch {
    id: i32,
    partition: u16,
}

#[derive(Clone, Copy)]
pub(crate) struct BookCall {
    branch: i32,
    teller: i32,
    account_branch: i32,
    account: i32,
    delta: i32,
    /// The two branches lie on two partitions.
    is_apart: bool,
}

/// Sums of all branches.
#[derive(Default)]
struct Sums {
    branches: i128,
    accounts: i128,
    by_branch: BTreeMap<i64, i128>,
}

impl Tpcb {
    /// Places an equal number of branches on each partition, with the lowest numbers that belong there.
    fn place_branches(&mut self, partitions: u16) -> Result<(), BenchError> {
        let partitions_count = partitions as u32;
        let default = BRANCHES_PER_PARTITION * partitions_count;
        let wanted = self.scale.unwrap_or(default);
        let most = wanted.div_ceil(partitions_count);
        let mut counts = vec![0; partitions as usize];
        self.branches.clear();
        for id in 1..=BRANCHES_MAX {
            if self.branches.len() == wanted as usize {
                break;
            }
            let partition = partition_of_field(&Field::Int(id as i64), partitions).0;
            let count = &mut counts[partition as usize];
            if *count < most {
                *count += 1;
                self.branches.push(Branch { id, partition });
            }
        }
        match self.branches.len() == wanted as usize && wanted > 0 {
            true => Ok(()),
            false => Err(BenchError::Usage(format!(
                "--scale is the number of branches, from 1 to {}",
                BRANCHES_MAX as u32 / partitions_count / 2
            ))),
        }
    }

    /// Any branch but `home`, which is the `at`th.
    fn other_branch(&self, at: usize, bits: u32) -> Branch {
        let other = below(bits, self.branches.len() as u32 - 1) as usize;
        self.branches[other + (other >= at) as usize]
    }

    /// Returns the sums of the existing branches; `--scale` of this run or of an earlier one made them.
    fn sums(control: &mut dyn Control) -> Result<Sums, BenchError> {
        let mut branches = Vec::new();
        control.visit_integers("tpcb_branches", &["branch_id"], &mut |row| branches.push(row[0]))?;
        let mut sums = Sums::default();
        for branch in branches {
            let held = control.call("check_branch", &[("branch_id", Arg::I32(branch as i32))])?;
            let value = |member| integer(&held, member);
            let (balance, tellers) = (value("branch_balance")?, value("teller_sum")?);
            if balance != tellers {
                return Err(BenchError::Checks(format!(
                    "branch {branch} holds {balance}, its tellers {tellers}"
                )));
            }
            let counts = (value("tellers")?, value("accounts")?);
            if counts != (TELLERS_PER_BRANCH as i64, ACCOUNTS_PER_BRANCH as i64) {
                return Err(BenchError::Checks(format!(
                    "branch {branch} has {counts:?} tellers and accounts"
                )));
            }
            sums.branches += balance as i128;
            sums.accounts += value("account_sum")? as i128;
            sums.by_branch.insert(branch, balance as i128);
        }
        if sums.branches != sums.accounts {
            return Err(BenchError::Checks(format!(
                "all branches hold {}, all accounts {}",
                sums.branches, sums.accounts
            )));
        }
        Ok(sums)
    }

    /// Adds the whole history up, by branch; how many rows it has.
    fn check_history(control: &mut dyn Control, sums: &Sums) -> Result<u64, BenchError> {
        let mut by_branch = BTreeMap::<i64, i128>::new();
        let mut read = 0_u64;
        control.visit_integers("tpcb_history", &["branch_id", "delta"], &mut |row| {
            *by_branch.entry(row[0]).or_default() += row[1] as i128;
            read += 1;
        })?;
        for (branch, balance) in &sums.by_branch {
            let booked = by_branch.remove(branch).unwrap_or(0);
            if booked != *balance {
                return Err(BenchError::Checks(format!(
                    "branch {branch} holds {balance}, its history {booked}"
                )));
            }
        }
        if let Some(branch) = by_branch.keys().next() {
            return Err(BenchError::Checks(format!(
                "there is history of branch {branch}, and there is no such branch"
            )));
        }
        let rows = control.checked_row_count("tpcb_history", &|rows| rows == read)?;
        match read == rows {
            true => Ok(rows),
            false => Err(BenchError::Checks(format!(
                "the history counts {rows} rows and shows {read}"
            ))),
        }
    }
}

impl Workload for Tpcb {
    type Call = BookCall;
    const NAME: &'static str = NAME;
    const PROCEDURES: &'static [&'static str] = &["account_update"];
    const OUTCOMES: &'static [&'static str] = &["booked", "booked_on_two_partitions"];

    fn new(options: &Options) -> Result<Self, BenchError> {
        options.check_sizes(&["--remote", "--scale"])?;
        Ok(Self {
            scale: options.scale,
            remote_percent: options.remote_percent.unwrap_or(REMOTE_PERCENT),
            branches: Vec::new(),
            history_before: 0,
        })
    }

    fn native() -> &'static NativeModule {
        &tpcb::MODULE
    }

    fn prepare(&mut self, control: &mut dyn Control, on_progress: OnProgress<'_>) -> Result<(), BenchError> {
        self.place_branches(control.partitions())?;
        let count = self.branches.len() as u64;
        let branch = |at: u64| ("branch_id", Arg::I32(self.branches[at as usize].id));
        control.call_many(&ManyCalls::new("load_branch", count, &|at| vec![branch(at)]))?;
        let pieces = (ACCOUNTS_PER_BRANCH / LOAD_ACCOUNTS) as u64;
        let piece = |at: u64| {
            let from = (at % pieces) as i32 * LOAD_ACCOUNTS;
            vec![
                branch(at / pieces),
                ("from", Arg::I32(from)),
                ("count", Arg::I32(LOAD_ACCOUNTS)),
            ]
        };
        let on_done = |done| {
            on_progress(Progress::Loading {
                done: done * LOAD_ACCOUNTS as u64,
                total: count * ACCOUNTS_PER_BRANCH as u64,
            })
        };
        on_done(0);
        control.call_many(&ManyCalls {
            on_done: &on_done,
            ..ManyCalls::new("load_accounts", count * pieces, &piece)
        })?;
        self.history_before = control.row_count("tpcb_history")?;
        Ok(())
    }

    #[inline]
    fn generate(&self, random: &mut Random) -> BookCall {
        let (place, account, kind) = (random.next_u64(), random.next_u64(), random.next_u64());
        let at = below(place as u32, self.branches.len() as u32) as usize;
        let home = self.branches[at];
        let is_remote = below(kind as u32, 100) < self.remote_percent as u32;
        let of = match is_remote && self.branches.len() > 1 {
            true => self.other_branch(at, (account >> 32) as u32),
            false => home,
        };
        let teller = below((place >> 32) as u32, TELLERS_PER_BRANCH as u32) as i32;
        let delta = below((kind >> 32) as u32, 2 * DELTA_MAX + 1) as i32;
        BookCall {
            branch: home.id,
            teller: first_teller(home.id) + teller,
            account_branch: of.id,
            account: first_account(of.id) + below(account as u32, ACCOUNTS_PER_BRANCH as u32) as i32,
            delta: delta - DELTA_MAX as i32,
            is_apart: of.partition != home.partition,
        }
    }

    #[inline]
    fn procedure(_: &BookCall) -> usize {
        0
    }

    #[inline]
    fn encode(call: &BookCall, out: &mut Vec<u8>) {
        let mut args = [0; 24];
        args[..4].copy_from_slice(&call.branch.to_le_bytes());
        args[4..8].copy_from_slice(&call.teller.to_le_bytes());
        args[8..12].copy_from_slice(&call.account_branch.to_le_bytes());
        args[12..16].copy_from_slice(&call.account.to_le_bytes());
        args[16..].copy_from_slice(&(call.delta as i64).to_le_bytes());
        out.extend_from_slice(&args);
    }

    fn write_json(call: &BookCall, out: &mut Vec<u8>) {
        let members = [
            (&b"{\"branch_id\":"[..], call.branch),
            (b",\"teller_id\":", call.teller),
            (b",\"account_branch_id\":", call.account_branch),
            (b",\"account_id\":", call.account),
            (b",\"delta\":", call.delta),
        ];
        for (name, value) in members {
            out.extend_from_slice(name);
            push_i64(out, value as i64);
        }
        out.push(b'}');
    }

    #[inline]
    fn outcome(call: &BookCall, _: &[u8]) -> usize {
        if call.is_apart { BOOKED_APART } else { BOOKED }
    }

    fn outcome_json(call: &BookCall, _: &[u8]) -> usize {
        Self::outcome(call, &[])
    }

    fn outcome_of_abort(_: &str) -> Option<usize> {
        None
    }

    fn kernel(&mut self, partitions: u16) -> Result<Option<Box<dyn Kernel<BookCall>>>, BenchError> {
        self.place_branches(partitions)?;
        let last = self.branches.iter().map(|branch| branch.id).max();
        let branches = last.unwrap_or(0) as usize + 1;
        Ok(Some(Box::new(BookKernel {
            branches: vec![Held::new(); branches],
            tellers: vec![Held::new(); branches * TELLERS_PER_BRANCH as usize + 1],
            accounts: vec![Held::new(); branches * ACCOUNTS_PER_BRANCH as usize + 1],
            history: Vec::new(),
        })))
    }

    fn liberties(&self) -> Vec<String> {
        [
            "branches are not scaled with the rate: the specification wants one for each transaction a second",
            "the account's branch is an argument: the caller knows where an account is kept",
            "no terminals, no think times: a closed loop, or the rate that --rate offers",
        ]
        .map(String::from)
        .into()
    }

    fn check_state(&self, control: &mut dyn Control) -> Result<Vec<String>, BenchError> {
        let sums = Self::sums(control)?;
        let rows = Self::check_history(control, &sums)?;
        Ok(vec![
            format!(
                "each of {} branches holds what its tellers hold; all branches = all accounts = {}",
                sums.by_branch.len(),
                sums.branches
            ),
            format!("each branch holds what its history adds up to, {rows} rows in all"),
        ])
    }

    fn check(&self, control: &mut dyn Control, _: u64, whole: &Tally) -> Result<Vec<String>, BenchError> {
        let expected = self.history_before + whole.committed;
        let rows = control.checked_row_count("tpcb_history", &|rows| rows == expected)?;
        if rows != expected {
            return Err(BenchError::Checks(format!(
                "the history has {rows} rows, but there were {} and {} calls committed",
                self.history_before, whole.committed
            )));
        }
        Ok(vec![format!(
            "the history has a row for each of {} committed calls",
            whole.committed
        )])
    }
}

/// A balance in a row of the specification's length.
#[derive(Clone)]
struct Held {
    balance: i64,
    _filler: [u8; 92],
}

impl Held {
    fn new() -> Self {
        Self {
            balance: 0,
            _filler: [b'-'; 92],
        }
    }
}

/// One booking, as long as the specification says.
#[cfg_attr(not(test), expect(dead_code, reason = "written as a database would; tests read it"))]
struct Booked {
    call: BookCall,
    _filler: [u8; 26],
}

/// Arrays by number.
struct BookKernel {
    branches: Vec<Held>,
    tellers: Vec<Held>,
    accounts: Vec<Held>,
    history: Vec<Booked>,
}

impl Kernel<BookCall> for BookKernel {
    #[inline]
    fn run(&mut self, call: &BookCall) -> usize {
        let delta = call.delta as i64;
        self.accounts[call.account as usize].balance += delta;
        self.tellers[call.teller as usize].balance += delta;
        self.branches[call.branch as usize].balance += delta;
        self.history.push(Booked {
            call: *call,
            _filler: [b'-'; 26],
        });
        BOOKED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(scale: Option<u32>, remote: Option<u8>, partitions: u16) -> Tpcb {
        let options = Options {
            scale,
            remote_percent: remote,
            ..Options::in_process(NAME)
        };
        let mut workload = Tpcb::new(&options).expect("its options");
        workload.place_branches(partitions).expect("branches");
        workload
    }

    #[test]
    fn every_partition_has_as_many_branches() {
        let workload = placed(None, None, 7);
        let of = |partition| {
            let there = workload.branches.iter();
            there.filter(|branch| branch.partition == partition).count()
        };
        assert!((0..7).all(|partition| of(partition) == 10));
        assert_eq!(placed(Some(3), None, 2).branches.len(), 3);
        let mut none = placed(None, None, 1);
        for scale in [0, u32::MAX] {
            none.scale = Some(scale);
            assert!(none.place_branches(4).is_err());
        }
    }

    #[test]
    fn the_kernel_books_on_all_sides() {
        let mut workload = placed(Some(3), None, 2);
        let kernel = workload.kernel(2).expect("three branches");
        let (mut kernel, mut random) = (kernel.expect("a kernel"), Random::new(8));
        for _ in 0..100 {
            let call = workload.generate(&mut random);
            assert_eq!(kernel.run(&call), BOOKED);
        }
        let mut own = BookKernel {
            branches: vec![Held::new(); 4],
            tellers: vec![Held::new(); 31],
            accounts: vec![Held::new(); 300_001],
            history: Vec::new(),
        };
        let call = workload.generate(&mut random);
        own.run(&call);
        own.run(&call);
        let sum = |held: &[Held]| held.iter().map(|held| held.balance).sum::<i64>();
        let sums = [sum(&own.branches), sum(&own.tellers), sum(&own.accounts)];
        assert_eq!(sums, [2 * call.delta as i64; 3]);
        assert_eq!(own.history[1].call.account, call.account);
    }

    #[test]
    fn accounts_of_other_branches_have_the_asked_share() {
        for (remote, expected) in [(None, 15), (Some(0), 0), (Some(100), 100)] {
            let workload = placed(Some(8), remote, 2);
            let mut random = Random::new(5);
            let (mut remote, mut apart) = (0, 0);
            for _ in 0..20_000 {
                let call = workload.generate(&mut random);
                let teller = call.teller - first_teller(call.branch);
                assert!((0..TELLERS_PER_BRANCH).contains(&teller));
                let account = call.account - first_account(call.account_branch);
                assert!((0..ACCOUNTS_PER_BRANCH).contains(&account));
                assert!(call.delta.unsigned_abs() <= DELTA_MAX);
                remote += (call.branch != call.account_branch) as u32;
                apart += call.is_apart as u32;
            }
            let share = remote * 100 / 20_000;
            assert!(share.abs_diff(expected) <= 1, "{share} of {expected}");
            assert!((apart * 7).abs_diff(remote * 4) <= remote / 2, "{apart}");
        }
    }
}
