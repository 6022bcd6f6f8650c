//! One client's knowledge of the database: its pairs of accounts, the accounts it opened, its votes.

use std::collections::VecDeque;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::rng::Rng;

/// Calls of one request at most.
pub const CALLS_MAX: usize = 20;
/// Pairs of accounts of one client.
pub const PAIRS_COUNT: usize = 6;
/// Balance of every account of a pair at first: more than all transfers of one request move.
pub const FIRST_BALANCE: i64 = 1 << 50;
/// Acknowledged calls with keys of which a client remembers the answers.
const REMEMBERED_MAX: usize = 500;
/// Accounts of one client begin at its number times this.
const CLIENT_SPAN: i64 = 1 << 32;

const _: () = assert!(FIRST_BALANCE > 2 * (1 << (2 * CALLS_MAX)));

/// Two accounts between which one client alone moves money.
#[derive(Clone, Debug)]
pub struct Pair {
    pub accounts: [i64; 2],
    pub balances: [i64; 2],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Opens an account with nothing on it.
    Open { account: i64 },
    /// Moves 4^digit from side `payer` of a pair to the other. No two calls of one request have the same digit, so the balance shows which
    /// of them took place. A digit 1 is once, 2 or 3 more than once.
    Transfer { pair: usize, payer: usize, digit: u32 },
    /// The only vote of this number that is ever accepted.
    Vote { phone: i64 },
}

#[derive(Clone, Debug)]
pub struct Call {
    pub effect: Effect,
    pub key: Option<String>,
}

/// A call with a key that was answered with 200.
#[derive(Clone, Debug)]
pub struct Acknowledged {
    pub call: Call,
    pub result: Value,
    pub txn_id: u64,
}

pub struct Model {
    pub id: usize,
    pub pairs: Vec<Pair>,
    /// Opened accounts, whether acknowledged or found.
    pub opened: Vec<i64>,
    /// Accepted votes, whether acknowledged or found.
    pub votes: i64,
    /// Calls whose connection died before the answer.
    pub unknown: Vec<Call>,
    pub remembered: VecDeque<Acknowledged>,
    /// Ids of acknowledged transactions that wrote, with the position of each.
    pub txns: Vec<(u64, u64)>,
    pub counts: Counts,
    next_account: i64,
    next_phone: i64,
    next_key: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub acknowledged: u64,
    pub unknown: u64,
    /// Unknown ones that had committed.
    pub found: u64,
    /// Answered with 503.
    pub refused: u64,
    /// Keyed calls that were sent again.
    pub repeated: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.acknowledged += other.acknowledged;
        self.unknown += other.unknown;
        self.found += other.found;
        self.refused += other.refused;
        self.repeated += other.repeated;
    }
}

pub fn amount(digit: u32) -> i64 {
    1 << (2 * digit)
}

impl Call {
    pub fn procedure(&self) -> (&'static str, &'static str) {
        match self.effect {
            Effect::Open { .. } => ("bank", "open"),
            Effect::Transfer { .. } => ("bank", "transfer"),
            Effect::Vote { .. } => ("voter", "vote"),
        }
    }
}

impl Model {
    pub fn new(id: usize) -> Self {
        let first = (id as i64 + 1) * CLIENT_SPAN;
        // A stride that lays both accounts on one partition for some pairs and apart for others.
        let pair = |number: usize| Pair {
            accounts: [first + number as i64 * 2, first + number as i64 * 2 + 1],
            balances: [FIRST_BALANCE; 2],
        };
        Self {
            id,
            pairs: (0..PAIRS_COUNT).map(pair).collect(),
            opened: Vec::new(),
            votes: 0,
            unknown: Vec::new(),
            remembered: VecDeque::new(),
            txns: Vec::new(),
            counts: Counts::default(),
            next_account: first + 2 * PAIRS_COUNT as i64,
            next_phone: (id as i64 + 1) * 1_000_000,
            next_key: 0,
        }
    }

    /// The contestant that this client votes for.
    pub fn contestant(&self) -> i64 {
        self.id as i64 + 1
    }

    /// The calls of the next request.
    pub fn plan(&mut self, rng: &mut Rng, count: usize) -> Vec<Call> {
        let pair = rng.below(PAIRS_COUNT as u64) as usize;
        let [first, second] = self.pairs[pair].balances;
        let payer = usize::from(second > first);
        let plan = |digit: usize| {
            let effect = match rng.below(10) {
                0 => {
                    self.next_account += 1;
                    Effect::Open {
                        account: self.next_account,
                    }
                }
                1..3 => {
                    self.next_phone += 1;
                    // Area codes of all states in turn.
                    let phone = (200 + self.next_phone % 800) * 10_000_000 + self.next_phone;
                    Effect::Vote { phone }
                }
                _ => Effect::Transfer {
                    pair,
                    payer,
                    digit: digit as u32,
                },
            };
            self.next_key += 1;
            let key = rng.percent(40).then(|| format!("c{}-{}", self.id, self.next_key));
            Call { effect, key }
        };
        (0..count).map(plan).collect()
    }

    pub fn args(&self, call: &Call) -> Value {
        match &call.effect {
            Effect::Open { account } => json!({"account": account, "balance": 0}),
            Effect::Transfer { pair, payer, digit } => {
                let accounts = self.pairs[*pair].accounts;
                json!({"from": accounts[*payer], "to": accounts[1 - payer], "amount": amount(*digit)})
            }
            Effect::Vote { phone } => json!({
                "phone_number": phone, "contestant_number": self.contestant(), "max_votes_per_phone": 1
            }),
        }
    }

    /// Takes up that a call took place.
    pub fn apply(&mut self, call: &Call) {
        match call.effect {
            Effect::Open { account } => self.opened.push(account),
            Effect::Transfer { pair, payer, digit } => {
                let balances = &mut self.pairs[pair].balances;
                balances[payer] -= amount(digit);
                balances[1 - payer] += amount(digit);
            }
            Effect::Vote { .. } => self.votes += 1,
        }
    }

    /// Takes up the answer 200 to a call: `{result, txn_id, lsn, partition}`.
    pub fn acknowledge(&mut self, call: &Call, answer: &Value) -> Result<()> {
        self.check_result(call, &answer["result"])?;
        let (txn_id, lsn) = ids(answer)?;
        self.txns.push((txn_id, lsn));
        self.counts.acknowledged += 1;
        self.apply(call);
        if call.key.is_some() {
            if self.remembered.len() == REMEMBERED_MAX {
                self.remembered.pop_front();
            }
            self.remembered.push_back(Acknowledged {
                call: call.clone(),
                result: answer["result"].clone(),
                txn_id,
            });
        }
        Ok(())
    }

    /// Checks the parts of a result that do not depend on other calls.
    pub fn check_result(&self, call: &Call, result: &Value) -> Result<()> {
        match &call.effect {
            Effect::Open { .. } => ensure!(result.is_null(), "open answered {result}"),
            Effect::Transfer { pair, .. } => {
                let parts = [&result["from_balance"], &result["to_balance"]].map(number);
                let [Some(from), Some(to)] = parts else {
                    anyhow::bail!("transfer answered {result}");
                };
                let sum: i64 = self.pairs[*pair].balances.iter().sum();
                ensure!(
                    from + to == sum,
                    "half a transfer: {call:?} answered {result}, the pair has {sum}"
                );
            }
            Effect::Vote { .. } => ensure!(
                result["outcome"] == "accepted",
                "{call:?} answered {result}: counted before"
            ),
        }
        Ok(())
    }
}

/// A 64-bit integer in an answer: a string, or a number.
pub fn number(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

/// `txn_id` and `lsn` of an answer.
pub fn ids(answer: &Value) -> Result<(u64, u64)> {
    let id = |name: &str| answer[name].as_str().and_then(|text| text.parse().ok());
    let ids = id("txn_id").zip(id("lsn"));
    ids.with_context(|| format!("an answer without its ids: {answer}"))
}
