//! The TPC-B module on the test kit.
#![allow(clippy::unwrap_used)]

use reprise_procedure::{
    abi::RowLayout,
    testkit::{TestDb, TestError},
};
use tpcb::{ACCOUNTS_PER_BRANCH, AccountBalance, BankCheck, BranchCheck, MODULE};

fn loaded(branches: i32, accounts: i32) -> TestDb {
    let mut db = TestDb::new(&MODULE);
    for branch in 1..=branches {
        db.call::<()>("load_branch", (branch,)).unwrap();
        db.call::<()>("load_accounts", (branch, 0, accounts)).unwrap();
    }
    db
}

fn book(
    db: &mut TestDb,
    branch: i32,
    teller: i32,
    account_branch: i32,
    account: i32,
    delta: i64,
) -> Result<i64, TestError> {
    let booked = db.call::<AccountBalance>("account_update", (branch, teller, account_branch, account, delta));
    booked.map(|account| account.balance)
}

#[test]
fn a_booking_changes_account_teller_branch_and_history() {
    let mut db = loaded(2, 10);
    assert_eq!(book(&mut db, 1, 3, 1, 5, 70), Ok(70));
    assert_eq!(book(&mut db, 1, 3, 1, 5, -20), Ok(50));
    let far = tpcb::first_account(2) + 9;
    assert_eq!(book(&mut db, 1, 10, 2, far, 7), Ok(7));
    assert_eq!(
        db.call("check_branch", (1,)),
        Ok(BranchCheck {
            branch_balance: 57,
            tellers: 10,
            teller_sum: 57,
            accounts: 10,
            account_sum: 50
        })
    );
    let bank = db.call::<BankCheck>("check", (2,)).unwrap();
    assert_eq!(
        bank,
        BankCheck {
            is_consistent: true,
            branches: 2,
            branch_sum: 57,
            tellers: 20,
            teller_sum: 57,
            accounts: 20,
            account_sum: 57,
            history_rows: 3,
            history_sum: 57
        }
    );
}

#[test]
fn missing_rows_are_refused_and_leave_nothing() {
    let mut db = loaded(2, 10);
    let mut refused = |branch, teller, account_branch, account, code: &str| {
        let refusal = book(&mut db, branch, teller, account_branch, account, 5).unwrap_err();
        assert_eq!(refusal.code(), Some(code));
    };
    refused(1, 11, 1, 1, "unknown_teller"); // of branch 2
    refused(1, 1, 1, 11, "unknown_account");
    refused(1, 1, 2, 1, "unknown_account"); // of branch 1
    refused(3, 1, 1, 1, "unknown_teller");
    refused(i32::MIN, i32::MAX, i32::MAX, i32::MIN, "unknown_account");
    let bank = db.call::<BankCheck>("check", (2,)).unwrap();
    assert_eq!((bank.history_rows, bank.account_sum), (0, 0));
}

#[test]
fn loading_twice_changes_nothing_and_ranges_are_checked() {
    let mut db = loaded(1, 10);
    book(&mut db, 1, 1, 1, 1, 9).unwrap();
    db.call::<()>("load_branch", (1,)).unwrap();
    db.call::<()>("load_accounts", (1, 0, 12)).unwrap();
    let branch = db.call::<BranchCheck>("check_branch", (1,)).unwrap();
    assert_eq!((branch.accounts, branch.account_sum), (12, 9));
    for (branch, from, count, code) in [
        (0, 0, 1, "unknown_branch"),
        (i32::MAX, 0, 1, "unknown_branch"),
        (1, -1, 1, "bad_range"),
        (1, ACCOUNTS_PER_BRANCH - 1, 2, "bad_range"),
        (1, i32::MAX, 10, "bad_range"),
        (1, 0, -1, "bad_range"),
    ] {
        let refusal = db.call::<()>("load_accounts", (branch, from, count));
        assert_eq!(refusal.unwrap_err().code(), Some(code));
    }
}

#[test]
fn rows_are_as_long_as_the_specification_says() {
    let schema = MODULE.schema();
    let bytes: Vec<_> = schema
        .tables
        .iter()
        .zip([84, 80, 80, 18])
        .map(|(table, filler)| RowLayout::of_table(table).fixed_bytes() + filler)
        .collect();
    assert_eq!(bytes, [100, 100, 100, 50]);
}
