//! The sample module `bank`: accounts, and transfers between them that may lie on two partitions.
//! Owns: the table `accounts` and the procedures `open`, `transfer`, `balance`, `total`.
//! Does not: know partitions; it names the parameters that choose them.
//! Invariants: no balance is negative; a transfer changes no sum.
//! Called by: users of the sample, the driver, the crash and process tests.
#![deny(unsafe_code)]

use reprise_procedure::prelude::*;

/// An account, placed by its number.
#[table(name = "accounts", primary_key(account), partition_by = account)]
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    pub account: i64,
    pub balance: i64,
}

/// The answer of `balance`.
#[derive(Clone, Copy, Debug, PartialEq, ProcedureStruct)]
pub struct Balance {
    pub balance: i64,
}

/// The answer of `transfer`: both balances after it.
#[derive(Clone, Copy, Debug, PartialEq, ProcedureStruct)]
pub struct Transferred {
    pub from_balance: i64,
    pub to_balance: i64,
}

/// The answer of `total`.
#[derive(Clone, Copy, Debug, PartialEq, ProcedureStruct)]
pub struct Total {
    pub accounts: i64,
    pub sum: i64,
}

/// Opens an account.
#[procedure(partition_by(account), prefetch(Account(account)))]
pub fn open(tx: &Txn, account: i64, balance: i64) -> Result<(), Abort> {
    if balance < 0 {
        abort!("negative_amount", "an account can't be opened with a negative balance");
    }
    if Account::insert(tx, &Account { account, balance }).is_err() {
        abort!("account_exists", "there is already an account {account}");
    }
    Ok(())
}

/// Moves an amount from one account to another, or to the same one.
#[procedure(
    partition_by(from, to),
    aborts(insufficient_funds = "The payer has less than the amount", unknown_account),
    prefetch(Account(from), Account(to))
)]
pub fn transfer(tx: &Txn, from: i64, to: i64, amount: i64) -> Result<Transferred, Abort> {
    if amount < 0 {
        abort!("negative_amount", "the amount of a transfer can't be negative");
    }
    let mut payee = find(tx, to)?;
    if from == to {
        check_funds(payee.balance - amount)?;
        return Ok(Transferred {
            from_balance: payee.balance,
            to_balance: payee.balance,
        });
    }
    // Neither is negative, so this can't overflow. An abort takes it back.
    let from_balance = Account::add_balance(tx, from, -amount).ok_or_else(unknown)?;
    check_funds(from_balance)?;
    if payee.balance.checked_add(amount).is_none() {
        abort!("balance_overflow", "the receiving account can't hold the amount");
    }
    let to_balance = payee.add(tx, Account::BALANCE, amount);
    Ok(Transferred {
        from_balance,
        to_balance,
    })
}

/// The balance of one account.
#[procedure(partition_by(account), read_only, prefetch(Account(account)))]
pub fn balance(tx: &Txn, account: i64) -> Result<Balance, Abort> {
    find(tx, account).map(|row| Balance { balance: row.balance })
}

/// The number of accounts and the sum of their balances, at one point in time over all partitions.
#[procedure(all_partitions, read_only)]
pub fn total(tx: &Txn) -> Result<Total, Abort> {
    let mut total = Total { accounts: 0, sum: 0 };
    for account in Account::scan(tx) {
        let Some(sum) = total.sum.checked_add(account.balance) else {
            abort!("sum_overflow", "the sum of all balances exceeds 64 bits");
        };
        total.sum = sum;
        total.accounts += 1;
    }
    Ok(total)
}

fn find(tx: &Txn, account: i64) -> Result<Row<Account>, Abort> {
    Account::get(tx, account).ok_or_else(unknown)
}

/// Checks the balance that a transfer leaves.
#[inline]
fn check_funds(left: i64) -> Result<(), Abort> {
    match left {
        0.. => Ok(()),
        _ => Err(insufficient()),
    }
}

#[cold]
fn unknown() -> Abort {
    Abort::new("unknown_account", "there is no account with this number")
}

#[cold]
fn insufficient() -> Abort {
    Abort::new("insufficient_funds", "the balance is smaller than the amount")
}

reprise_procedure::module! {
    tables: [Account],
    procedures: [open, transfer, balance, total],
}
