//! The bank module on the test kit.
#![allow(clippy::unwrap_used)]

use bank::{Balance, MODULE, Total, Transferred};
use reprise_procedure::testkit::{TestDb, TestError};

fn opened(accounts: &[(i64, i64)]) -> TestDb {
    let mut db = TestDb::new(&MODULE);
    for (account, balance) in accounts {
        db.call::<()>("open", (*account, *balance)).unwrap();
    }
    db
}

fn balance(db: &mut TestDb, account: i64) -> i64 {
    db.call::<Balance>("balance", (account,)).unwrap().balance
}

fn transfer(db: &mut TestDb, from: i64, to: i64, amount: i64) -> Result<Transferred, TestError> {
    db.call("transfer", (from, to, amount))
}

#[test]
fn a_transfer_moves_money_and_changes_no_sum() {
    let mut db = opened(&[(1, 100), (2, 50)]);
    let moved = transfer(&mut db, 1, 2, 30).unwrap();
    assert_eq!(
        moved,
        Transferred {
            from_balance: 70,
            to_balance: 80
        }
    );
    assert_eq!((balance(&mut db, 1), balance(&mut db, 2)), (70, 80));
    assert_eq!(db.call("total", ()), Ok(Total { accounts: 2, sum: 150 }));
    transfer(&mut db, 1, 2, 70).unwrap();
    transfer(&mut db, 2, 1, 0).unwrap();
    assert_eq!(balance(&mut db, 1), 0);
}

#[test]
fn refused_transfer_leaves_nothing() {
    let mut db = opened(&[(1, 100), (2, i64::MAX)]);
    let mut refused = |from, to, amount, code: &str| {
        assert_eq!(transfer(&mut db, from, to, amount).unwrap_err().code(), Some(code));
    };
    refused(1, 2, 101, "insufficient_funds");
    refused(1, 1, 101, "insufficient_funds");
    refused(1, 2, -1, "negative_amount");
    refused(1, 2, i64::MIN, "negative_amount");
    refused(1, 3, 1, "unknown_account");
    refused(3, 1, 1, "unknown_account");
    refused(1, 2, 1, "balance_overflow");
    assert_eq!((balance(&mut db, 1), balance(&mut db, 2)), (100, i64::MAX));
}

#[test]
fn a_transfer_to_oneself_changes_nothing() {
    let mut db = opened(&[(1, 100)]);
    assert_eq!(
        transfer(&mut db, 1, 1, 40).unwrap(),
        Transferred {
            from_balance: 100,
            to_balance: 100
        }
    );
    assert_eq!(balance(&mut db, 1), 100);
}

#[test]
fn accounts_are_opened_once_and_not_in_debt() {
    let mut db = opened(&[(1, 0), (i64::MIN, 5)]);
    assert_eq!(
        db.call::<()>("open", (1_i64, 9_i64)).unwrap_err().code(),
        Some("account_exists")
    );
    assert_eq!(
        db.call::<()>("open", (2_i64, -1_i64)).unwrap_err().code(),
        Some("negative_amount")
    );
    assert_eq!(
        db.call::<Balance>("balance", (2_i64,)).unwrap_err().code(),
        Some("unknown_account")
    );
    assert_eq!(db.call("total", ()), Ok(Total { accounts: 2, sum: 5 }));
}

#[test]
fn a_sum_beyond_64_bits_is_an_abort() {
    let mut db = opened(&[(1, i64::MAX), (2, 1)]);
    assert_eq!(db.call::<Total>("total", ()).unwrap_err().code(), Some("sum_overflow"));
}
