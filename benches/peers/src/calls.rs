//! The calls of each workload, and the sums that their answers add up to.

use anyhow::{Result, ensure};
use reprise_driver::{BANK_AMOUNT_MAX, NUMBERS_PER_AREA, REPEATED_PHONES, Random, TPCB_DELTA_MAX, TPCB_REMOTE_PERCENT};
pub use reprise_driver::{CONTESTANTS, VOTES_PER_PHONE_MAX};
use tpcb::{ACCOUNTS_PER_BRANCH, TELLERS_PER_BRANCH, first_account, first_teller};

use crate::orders::Order;

/// Large enough that a popular account pays for a whole run.
pub const OPENING_BALANCE: i64 = 1_000_000;

const NO_CONTESTANT: i32 = 999;
/// Exponent of the skewed transfers.
const ZIPF: f64 = 1.5;

/// The calls that a run makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    Voter,
    /// Transfers between accounts that chance chooses evenly.
    Transfer,
    /// Transfers between accounts of which a few take part in most.
    Zipf,
    Tpcb,
    NewOrder,
}

/// The names that `--figure` takes.
pub const WORKLOADS: [(&str, Workload); 5] = [
    ("voter", Workload::Voter),
    ("transfer", Workload::Transfer),
    ("zipf", Workload::Zipf),
    ("tpcb", Workload::Tpcb),
    ("new-order", Workload::NewOrder),
];

/// One call. Peers get the same ones, in the same order on each connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Call {
    Vote { phone: i64, contestant: i32 },
    Transfer { payer: i64, payee: i64, amount: i64 },
    Book(Booking),
    Order(Order),
}

/// An amount that a teller books to an account of its own or of another branch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Booking {
    pub branch: i32,
    pub teller: i32,
    pub account_branch: i32,
    pub account: i32,
    pub delta: i64,
}

/// The answer to a call that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The procedure changed nothing: no such contestant, a phone over its limit, an account without funds.
    Rejected,
}

/// Answers of a run, from which the rows that it leaves follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub done: i64,
    pub rejected: i64,
    /// The sum of the booked amounts.
    pub booked: i64,
    /// Lines of the orders, and the units of all lines.
    pub lines: i64,
    pub units: i64,
}

impl Tally {
    pub fn add(&mut self, call: &Call, outcome: Outcome) {
        match outcome {
            Outcome::Rejected => self.rejected += 1,
            Outcome::Done => {
                self.done += 1;
                match call {
                    Call::Book(booking) => self.booked += booking.delta,
                    Call::Order(order) => {
                        self.lines += order.lines().len() as i64;
                        self.units += order.units();
                    }
                    Call::Vote { .. } | Call::Transfer { .. } => {}
                }
            }
        }
    }

    pub fn join(&mut self, other: &Self) {
        self.done += other.done;
        self.rejected += other.rejected;
        self.booked += other.booked;
        self.lines += other.lines;
        self.units += other.units;
    }
}

impl Workload {
    /// The sums over a peer's rows that its check compares.
    pub fn sums(self) -> &'static [&'static str] {
        match self {
            Self::Voter => &["votes counted", "votes stored"],
            Self::Transfer | Self::Zipf => &["accounts", "sum of balances"],
            Self::Tpcb => &[
                "sum of branches",
                "sum of tellers",
                "sum of accounts",
                "rows of the history",
            ],
            Self::NewOrder => &["orders numbered", "orders", "order lines", "units taken from stock"],
        }
    }

    /// The SQL of these sums.
    pub fn sum_queries(self) -> &'static [&'static str] {
        match self {
            Self::Voter => &[
                "SELECT coalesce(sum(votes), 0) FROM vote_counts",
                "SELECT count(*) FROM votes",
            ],
            Self::Transfer | Self::Zipf => &["SELECT count(*) FROM accounts", "SELECT sum(balance) FROM accounts"],
            Self::Tpcb => &[
                "SELECT sum(balance) FROM branches",
                "SELECT sum(balance) FROM tellers",
                "SELECT sum(balance) FROM accounts",
                "SELECT count(*) FROM history",
            ],
            Self::NewOrder => &[
                "SELECT sum(d_next_o_id - 3001) FROM district",
                "SELECT count(*) FROM orders",
                "SELECT count(*) FROM order_line",
                "SELECT sum(s_ytd) FROM stock",
            ],
        }
    }
}

/// Rows that the workloads begin with.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub accounts: u32,
    pub branches: u32,
    pub warehouses: u32,
    pub items: u32,
}

/// Draws the calls of one workload of one size.
pub struct Inputs {
    pub workload: Workload,
    /// Accounts of the transfers, numbered from 0.
    pub accounts: u32,
    /// Branches of TPC-B, numbered from 1.
    pub branches: u32,
    /// Warehouses and items of New-Order, numbered from 1.
    pub warehouses: u32,
    pub items: u32,
    area_codes: Vec<u16>,
    /// By account: the share of transfers up to it. Empty where chance chooses evenly.
    cumulative: Vec<f64>,
}

impl Inputs {
    pub fn new(workload: Workload, sizes: Sizes) -> Self {
        let Sizes {
            accounts,
            branches,
            warehouses,
            items,
        } = sizes;
        let cumulative = match workload {
            Workload::Zipf => zipf(accounts),
            _ => Vec::new(),
        };
        Self {
            workload,
            accounts,
            branches,
            warehouses,
            items,
            area_codes: voter::area_codes().map(|(code, _)| code).collect(),
            cumulative,
        }
    }

    pub fn next(&self, random: &mut Random) -> Call {
        match self.workload {
            Workload::Voter => self.vote(random),
            Workload::Transfer | Workload::Zipf => self.transfer(random),
            Workload::Tpcb => Call::Book(self.booking(random)),
            Workload::NewOrder => Call::Order(Order::draw(random, self.warehouses, self.items)),
        }
    }

    fn vote(&self, random: &mut Random) -> Call {
        let (place, choice, kind) = (random.next_u64(), random.next_u64(), random.next_u64());
        let areas = self.area_codes.len() as u32;
        let again = below(kind, 100) == 0;
        let (area, number) = match again {
            true => {
                let number = below(place, REPEATED_PHONES);
                (number % areas, number)
            }
            false => (below(place >> 32, areas), below(place, NUMBERS_PER_AREA)),
        };
        let is_invalid = below(kind >> 32, 100) == 0;
        Call::Vote {
            phone: i64::from(self.area_codes[area as usize]) * i64::from(NUMBERS_PER_AREA) + i64::from(number),
            contestant: match is_invalid {
                true => NO_CONTESTANT,
                false => 1 + below(choice, CONTESTANTS.len() as u32) as i32,
            },
        }
    }

    fn transfer(&self, random: &mut Random) -> Call {
        let payer = self.account(random);
        let payee = self.account(random);
        // A transfer between two accounts: the next one stands in for the payer itself.
        let payee = if payee == payer {
            (payee + 1) % self.accounts
        } else {
            payee
        };
        Call::Transfer {
            payer: payer.into(),
            payee: payee.into(),
            amount: i64::from(1 + below(random.next_u64(), BANK_AMOUNT_MAX)),
        }
    }

    fn account(&self, random: &mut Random) -> u32 {
        let bits = random.next_u64();
        if self.cumulative.is_empty() {
            return below(bits, self.accounts);
        }
        let share = (bits >> 11) as f64 / (1_u64 << 53) as f64;
        let rank = self.cumulative.partition_point(|up_to| *up_to <= share) as u32;
        rank.min(self.accounts - 1)
    }

    fn booking(&self, random: &mut Random) -> Booking {
        let (place, account, kind) = (random.next_u64(), random.next_u64(), random.next_u64());
        let home = below(place, self.branches);
        let of = match self.branches > 1 && below(kind, 100) < u32::from(TPCB_REMOTE_PERCENT) {
            true => (home + 1 + below(account >> 32, self.branches - 1)) % self.branches,
            false => home,
        };
        let (branch, account_branch) = (home as i32 + 1, of as i32 + 1);
        Booking {
            branch,
            teller: first_teller(branch) + below(place >> 32, TELLERS_PER_BRANCH as u32) as i32,
            account_branch,
            account: first_account(account_branch) + below(account, ACCOUNTS_PER_BRANCH as u32) as i32,
            delta: i64::from(below(kind >> 32, 2 * TPCB_DELTA_MAX + 1)) - i64::from(TPCB_DELTA_MAX),
        }
    }

    /// The sums that a peer's rows must have after these answers.
    fn expected(&self, tally: &Tally) -> Vec<i64> {
        let accounts = i64::from(self.accounts);
        match self.workload {
            Workload::Voter => vec![tally.done; 2],
            Workload::Transfer | Workload::Zipf => vec![accounts, accounts * OPENING_BALANCE],
            Workload::Tpcb => [vec![tally.booked; 3], vec![tally.done]].concat(),
            Workload::NewOrder => vec![tally.done, tally.done, tally.lines, tally.units],
        }
    }

    /// Compares a peer's rows with what its answers add up to.
    ///
    /// # Errors
    /// They differ: the figures of the run mean nothing.
    pub fn check(&self, peer: &str, tally: &Tally, found: &[i64]) -> Result<()> {
        let (expected, names) = (self.expected(tally), self.workload.sums());
        ensure!(
            expected == found,
            "the check of {peer} failed: its rows have {found:?}, and its answers add up to {expected:?} ({})",
            names.join(", ")
        );
        ensure!(
            tally.done > 0,
            "the check of {peer} failed: it did nothing that was asked"
        );
        Ok(())
    }
}

/// For each account, the share of choices that fall on it or one before it.
fn zipf(accounts: u32) -> Vec<f64> {
    let weights = (1..=accounts).map(|rank| f64::from(rank).powf(-ZIPF));
    let mut sum = 0.0;
    let sums: Vec<_> = weights
        .map(|weight| {
            sum += weight;
            sum
        })
        .collect();
    sums.into_iter().map(|up_to| up_to / sum).collect()
}

/// The low 32 bits as a number below `bound`.
pub fn below(bits: u64, bound: u32) -> u32 {
    ((bits & 0xffff_ffff) * u64::from(bound) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes {
        accounts: 1_000,
        branches: 3,
        warehouses: 2,
        items: 1_000,
    };

    fn drawn(workload: Workload) -> Vec<Call> {
        let inputs = Inputs::new(workload, SIZES);
        let mut random = Random::new(5);
        (0..20_000).map(|_| inputs.next(&mut random)).collect()
    }

    #[test]
    fn transfers_are_even_or_skewed_as_their_name_says() {
        for (workload, share) in [(Workload::Transfer, 0.0..0.01), (Workload::Zipf, 0.35..0.42)] {
            let calls = drawn(workload);
            let of_first = calls
                .iter()
                .filter(|call| matches!(call, Call::Transfer { payer: 0, .. }));
            let first = of_first.count() as f64 / calls.len() as f64;
            assert!(share.contains(&first), "{workload:?}: {first}");
            for call in &calls {
                let Call::Transfer { payer, payee, amount } = call else {
                    panic!("{call:?}");
                };
                assert!(payer != payee && (0..1_000).contains(payer) && (0..1_000).contains(payee));
                assert!((1..=200).contains(amount));
            }
        }
    }

    #[test]
    fn bookings_and_votes_have_the_shares_of_their_workload() {
        let apart = |call: &&Call| matches!(call, Call::Book(booking) if booking.branch != booking.account_branch);
        let remote = drawn(Workload::Tpcb).iter().filter(apart).count();
        assert!((2_700..3_300).contains(&remote), "{remote}");
        let votes = drawn(Workload::Voter);
        let invalid = |call: &&Call| {
            matches!(
                call,
                Call::Vote {
                    contestant: NO_CONTESTANT,
                    ..
                }
            )
        };
        let invalid = votes.iter().filter(invalid).count();
        assert!((120..280).contains(&invalid), "{invalid}");
    }

    #[test]
    fn a_check_fails_when_a_row_is_missing_or_nothing_was_answered() {
        let inputs = Inputs::new(Workload::Voter, SIZES);
        let tally = Tally {
            done: 3,
            ..Tally::default()
        };
        assert!(inputs.check("x", &tally, &[3, 3]).is_ok());
        let error = inputs.check("x", &tally, &[3, 2]).expect_err("a vote is missing");
        assert!(error.to_string().contains("the check of x failed"), "{error}");
        let none = Tally::default();
        assert!(inputs.check("x", &none, &[0, 0]).is_err());
    }
}
