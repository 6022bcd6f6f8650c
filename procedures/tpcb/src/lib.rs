//! The sample module `tpcb`: the bank of the TPC-B benchmark, whose one transaction books an amount to an account.
//! Owns: the tables `tpcb_branches`, `tpcb_tellers`, `tpcb_accounts`, `tpcb_history` and the procedures on them.
//! Does not: know partitions; every row is on its branch's partition, and an account may belong to another branch than its teller.
//! Invariants: a branch's balance is the sum of its tellers' and of its history; all accounts together hold what all branches do.
//! Called by: users of the sample, the driver, benchmarks.
//!
//! Rows have the specification's lengths (clause 3.2: 100 bytes, history 50), made up with a filler. Branches are
//! numbered from 1; tellers and accounts count on from branch to branch (see [`first_teller`], [`first_account`]).
#![deny(unsafe_code)]

use reprise_procedure::prelude::*;

pub const TELLERS_PER_BRANCH: i32 = 10;
pub const ACCOUNTS_PER_BRANCH: i32 = 100_000;
/// Most branches: the accounts of more have no number in 32 bits.
pub const BRANCHES_MAX: i32 = i32::MAX / ACCOUNTS_PER_BRANCH;
/// The accounts that a call of `load_accounts` takes at most.
pub const LOADED_ACCOUNTS_MAX: i32 = 10_000;

const FILLER: &str = "------------------------------------------------------------------------------------";

/// A branch.
#[table(name = "tpcb_branches", primary_key(branch_id), hash, partition_by = branch_id)]
#[derive(Clone, Debug, PartialEq)]
pub struct Branch {
    pub branch_id: i32,
    pub balance: i64,
    pub filler: SmallText<84>,
}

/// A teller, who works at a branch.
#[table(name = "tpcb_tellers", primary_key(branch_id, teller_id), hash, partition_by = branch_id)]
#[derive(Clone, Debug, PartialEq)]
pub struct Teller {
    pub branch_id: i32,
    pub teller_id: i32,
    pub balance: i64,
    pub filler: SmallText<80>,
}

/// An account, kept by a branch.
#[table(name = "tpcb_accounts", primary_key(branch_id, account_id), hash, partition_by = branch_id)]
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    pub branch_id: i32,
    pub account_id: i32,
    pub balance: i64,
    pub filler: SmallText<80>,
}

/// The bookings, in order. `branch_id` is the teller's.
#[table(name = "tpcb_history", partition_by = branch_id)]
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    pub branch_id: i32,
    pub teller_id: i32,
    pub account_id: i32,
    pub delta: i64,
    pub time: Timestamp,
    pub filler: SmallText<18>,
}

/// The answer of `account_update`: the account's balance after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ProcedureStruct)]
pub struct AccountBalance {
    pub balance: i64,
}

/// The sums of one branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ProcedureStruct)]
pub struct BranchCheck {
    pub branch_balance: i64,
    pub tellers: i64,
    pub teller_sum: i64,
    pub accounts: i64,
    pub account_sum: i64,
}

/// The sums of the bank, at one point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ProcedureStruct)]
pub struct BankCheck {
    /// Each branch's balance is the sum of its tellers' and of its history; branches, accounts and history have one sum.
    pub is_consistent: bool,
    pub branches: i64,
    pub branch_sum: i64,
    pub tellers: i64,
    pub teller_sum: i64,
    pub accounts: i64,
    pub account_sum: i64,
    pub history_rows: i64,
    pub history_sum: i64,
}

/// Tellers of a branch: this one and the next nine.
pub const fn first_teller(branch_id: i32) -> i32 {
    (branch_id - 1) * TELLERS_PER_BRANCH + 1
}

/// Accounts of a branch: this one and the next 99,999.
pub const fn first_account(branch_id: i32) -> i32 {
    (branch_id - 1) * ACCOUNTS_PER_BRANCH + 1
}

/// Opens a branch and its tellers; there already: changes nothing.
#[procedure(partition_by(branch_id))]
pub fn load_branch(tx: &Txn, branch_id: i32) -> Result<(), Abort> {
    check_branch_id(branch_id)?;
    if Branch::exists(tx, branch_id) {
        return Ok(());
    }
    let filler = filler();
    Branch::insert(
        tx,
        &Branch {
            branch_id,
            balance: 0,
            filler,
        },
    )?;
    let first = first_teller(branch_id);
    for teller_id in first..first + TELLERS_PER_BRANCH {
        let filler = self::filler();
        Teller::insert(
            tx,
            &Teller {
                branch_id,
                teller_id,
                balance: 0,
                filler,
            },
        )?;
    }
    Ok(())
}

/// Opens `count` accounts of a branch from its `from`th (from 0) on; those there already stay as they are.
#[procedure(partition_by(branch_id), time_max_ms = 60_000)]
pub fn load_accounts(tx: &Txn, branch_id: i32, from: i32, count: i32) -> Result<(), Abort> {
    check_branch_id(branch_id)?;
    let is_inside = from >= 0 && (0..=LOADED_ACCOUNTS_MAX).contains(&count) && from <= ACCOUNTS_PER_BRANCH - count;
    if !is_inside {
        abort!(
            "bad_range",
            "a branch has {ACCOUNTS_PER_BRANCH} accounts, of which one call opens at most {LOADED_ACCOUNTS_MAX}"
        );
    }
    let first = first_account(branch_id) + from;
    for account_id in first..first + count {
        if !Account::exists(tx, (branch_id, account_id)) {
            let filler = filler();
            Account::insert(
                tx,
                &Account {
                    branch_id,
                    account_id,
                    balance: 0,
                    filler,
                },
            )?;
        }
    }
    Ok(())
}

/// The benchmark's transaction (clause 1.2): a teller of `branch_id` books `delta`, a deposit or a withdrawal, to an account
/// of `account_branch_id`.
#[procedure(
    partition_by(branch_id, account_branch_id),
    prefetch(Account(account_branch_id, account_id))
)]
pub fn account_update(
    tx: &Txn,
    branch_id: i32,
    teller_id: i32,
    account_branch_id: i32,
    account_id: i32,
    delta: i64,
) -> Result<AccountBalance, Abort> {
    let account = (account_branch_id, account_id);
    let balance = Account::add_balance(tx, account, delta).ok_or_else(no_account)?;
    Teller::add_balance(tx, (branch_id, teller_id), delta).ok_or_else(no_teller)?;
    Branch::add_balance(tx, branch_id, delta).ok_or_else(no_teller)?;
    let time = tx.now();
    let booked = History {
        branch_id,
        teller_id,
        account_id,
        delta,
        time,
        filler: filler(),
    };
    History::insert(tx, &booked)?;
    Ok(AccountBalance { balance })
}

/// The balance of one account.
#[procedure(partition_by(branch_id), read_only, prefetch(Account(branch_id, account_id)))]
pub fn account_balance(tx: &Txn, branch_id: i32, account_id: i32) -> Result<AccountBalance, Abort> {
    let account = Account::get(tx, (branch_id, account_id)).ok_or_else(no_account)?;
    Ok(AccountBalance {
        balance: account.balance,
    })
}

/// One branch's balance and what its tellers and accounts hold.
#[procedure(partition_by(branch_id), read_only, time_max_ms = 60_000)]
pub fn check_branch(tx: &Txn, branch_id: i32) -> Result<BranchCheck, Abort> {
    check_branch_id(branch_id)?;
    let branch = Branch::get(tx, branch_id).ok_or_else(no_branch)?;
    let (tellers, teller_sum) = tellers_of(tx, branch_id)?;
    let (accounts, account_sum) = accounts_of(tx, branch_id)?;
    Ok(BranchCheck {
        branch_balance: branch.balance,
        tellers,
        teller_sum,
        accounts,
        account_sum,
    })
}

/// The whole bank at one point in time: branches up to `branch_max`, of which some may be missing. A bank too large for one
/// transaction is `limit-exceeded`: ask `check_branch` for each branch then.
#[procedure(all_partitions, read_only, time_max_ms = 60_000)]
pub fn check(tx: &Txn, branch_max: i32) -> Result<BankCheck, Abort> {
    check_branch_id(branch_max)?;
    let mut bank = BankCheck::default();
    let mut by_branch = vec![0_i64; branch_max as usize + 1];
    for booked in History::scan(tx) {
        let sum = by_branch.get_mut(booked.branch_id as usize).ok_or_else(no_branch)?;
        *sum = plus(*sum, booked.delta)?;
        bank.history_rows += 1;
        bank.history_sum = plus(bank.history_sum, booked.delta)?;
    }
    let mut is_consistent = true;
    for (branch_id, history) in (1..=branch_max).zip(by_branch.into_iter().skip(1)) {
        let Some(branch) = Branch::get(tx, branch_id) else {
            is_consistent &= history == 0;
            continue;
        };
        let (tellers, teller_sum) = tellers_of(tx, branch_id)?;
        let (accounts, account_sum) = accounts_of(tx, branch_id)?;
        is_consistent &= branch.balance == teller_sum && branch.balance == history;
        bank.branches += 1;
        bank.branch_sum = plus(bank.branch_sum, branch.balance)?;
        bank.tellers += tellers;
        bank.teller_sum = plus(bank.teller_sum, teller_sum)?;
        bank.accounts += accounts;
        bank.account_sum = plus(bank.account_sum, account_sum)?;
    }
    bank.is_consistent = is_consistent && bank.branch_sum == bank.account_sum && bank.branch_sum == bank.history_sum;
    Ok(bank)
}

/// Number of a branch's tellers and the sum of their balances.
fn tellers_of(tx: &Txn, branch_id: i32) -> Result<(i64, i64), Abort> {
    let first = first_teller(branch_id);
    let (mut count, mut sum) = (0, 0);
    for teller_id in first..first + TELLERS_PER_BRANCH {
        if let Some(teller) = Teller::get(tx, (branch_id, teller_id)) {
            count += 1;
            sum = plus(sum, teller.balance)?;
        }
    }
    Ok((count, sum))
}

/// Returns the number and the sum of its accounts.
fn accounts_of(tx: &Txn, branch_id: i32) -> Result<(i64, i64), Abort> {
    let first = first_account(branch_id);
    let (mut count, mut sum) = (0, 0);
    for account_id in first..first + ACCOUNTS_PER_BRANCH {
        if let Some(account) = Account::get(tx, (branch_id, account_id)) {
            count += 1;
            sum = plus(sum, account.balance)?;
        }
    }
    Ok((count, sum))
}

fn plus(sum: i64, value: i64) -> Result<i64, Abort> {
    sum.checked_add(value)
        .ok_or_else(|| Abort::new("sum_overflow", "a sum of balances exceeds 64 bits"))
}

fn check_branch_id(branch_id: i32) -> Result<(), Abort> {
    match (1..=BRANCHES_MAX).contains(&branch_id) {
        true => Ok(()),
        false => Err(no_branch()),
    }
}

/// Returns text that makes a row as long as the specification wants it.
#[inline]
fn filler<const N: usize>() -> SmallText<N> {
    FILLER.get(..N).and_then(SmallText::new).unwrap_or_default()
}

#[cold]
fn no_branch() -> Abort {
    Abort::new("unknown_branch", "there is no branch with this number")
}

#[cold]
fn no_teller() -> Abort {
    Abort::new("unknown_teller", "the branch has no teller with this number")
}

#[cold]
fn no_account() -> Abort {
    Abort::new("unknown_account", "the branch has no account with this number")
}

reprise_procedure::module! {
    tables: [Branch, Teller, Account, History],
    procedures: [load_branch, load_accounts, account_update, account_balance, check_branch, check],
}
