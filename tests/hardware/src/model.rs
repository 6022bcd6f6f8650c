//! The calls of a client, and the expected rows after a number of them: a function of its number and their count alone.

use std::collections::BTreeMap;

/// Calls before the first transfer: two accounts to move money between.
const OPENED_FIRST: u64 = 2;
const FIRST_BALANCE: i64 = 1_000;

/// The call with this number, counted from 0.
pub enum Step {
    Open { account: i64, balance: i64 },
    Transfer { from: i64, to: i64, amount: i64 },
}

/// Accounts of this client lie apart from all others', and over all partitions.
fn account(client: u64, number: u64) -> i64 {
    (client * 1_000_000_000 + number) as i64
}

/// Odd calls move money between the newest two accounts of the client, which may lie on two partitions.
pub fn step(client: u64, number: u64) -> Step {
    if number < OPENED_FIRST || number.is_multiple_of(2) {
        return Step::Open {
            account: account(client, number),
            balance: FIRST_BALANCE,
        };
    }
    let (newest, older) = (number - 1, number.saturating_sub(3));
    Step::Transfer {
        from: account(client, newest),
        to: account(client, older),
        amount: 1 + (number % 5) as i64,
    }
}

/// The client's accounts after its first `count` calls.
pub fn accounts_after(client: u64, count: u64) -> BTreeMap<i64, i64> {
    let mut accounts = BTreeMap::new();
    for number in 0..count {
        match step(client, number) {
            Step::Open { account, balance } => {
                accounts.insert(account, balance);
            }
            Step::Transfer { from, to, amount } => {
                *accounts.entry(from).or_default() -= amount;
                *accounts.entry(to).or_default() += amount;
            }
        }
    }
    accounts
}

/// Returns the number of the client's calls that took place, from its present accounts. None: no number of calls leaves these accounts.
pub fn count_of(client: u64, found: &BTreeMap<i64, i64>) -> Option<u64> {
    let opened = found.len() as u64;
    // Each account but the first two came with an even call, and at most one call without an account followed.
    let least = match opened {
        0 => 0,
        1 => 1,
        _ => 2 * (opened - OPENED_FIRST) + OPENED_FIRST.saturating_sub(u64::from(opened > OPENED_FIRST)),
    };
    (least..=least + 2).find(|count| accounts_after(client, *count) == *found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_of_calls_is_told_from_what_it_leaves() {
        for count in 0..200 {
            assert_eq!(count_of(3, &accounts_after(3, count)), Some(count));
        }
    }

    #[test]
    fn a_state_between_two_calls_is_no_state() {
        let mut half = accounts_after(1, 40);
        *half.values_mut().next().expect("it has accounts") += 1;
        assert_eq!(count_of(1, &half), None);
    }
}
