//! The workload `bank`: four transfers to one read of a balance, over accounts chosen at random.

use reprise_abi::Field;
use reprise_procedure::native::NativeModule;
use reprise_txn::partition_of_field;
use serde_json::Value;

use crate::{
    BenchError, OnProgress, Progress,
    control::{Arg, Control, ManyCalls, integer},
    measure::Tally,
    options::Options,
    random::{Random, below},
    workload::{Workload, push_i64},
};

pub(crate) const NAME: &str = "bank";

const ACCOUNTS: u32 = 100_000;
const OPENING_BALANCE: i64 = 1_000;
pub const AMOUNT_MAX: u32 = 200;
/// Transfers of 2^32 calls; the rest asks for a balance.
const TRANSFER_SHARE: u32 = u32::MAX / 5 * 4;

const TRANSFER: usize = 0;
const BALANCE: usize = 1;
const TRANSFERRED: usize = 0;
const INSUFFICIENT: usize = 1;
const ANSWERED: usize = 2;

pub(crate) struct Bank {
    remote_percent: Option<u8>,
    partitions: u16,
    /// Accounts by partition; empty where chance chooses.
    accounts_of: Vec<Vec<u32>>,
    before: Total,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Total {
    accounts: i64,
    sum: i64,
}

/// An amount of 0 stands for a read of the balance of `from`.
#[derive(Clone, Copy)]
pub(crate) struct BankCall {
    from: u32,
    to: u32,
    amount: u32,
}

impl Bank {
    fn total(control: &mut dyn Control) -> Result<Total, BenchError> {
        let total = control.call("total", &[])?;
        Ok(Total {
            accounts: integer(&total, "accounts")?,
            sum: integer(&total, "sum")?,
        })
    }

    fn partition_of(&self, account: u32) -> u16 {
        partition_of_field(&Field::Int(account as i64), self.partitions).0
    }

    /// Sorts the accounts by partition, where the share of remote transfers was asked for.
    fn place_accounts(&mut self) -> Result<(), BenchError> {
        let Some(percent) = self.remote_percent else {
            return Ok(());
        };
        if self.partitions == 1 && percent > 0 {
            let text = "with one partition no transfer is remote: leave --remote out, or take --partitions 2";
            return Err(BenchError::Usage(text.into()));
        }
        self.accounts_of = vec![Vec::new(); self.partitions as usize];
        for account in 0..ACCOUNTS {
            let partition = self.partition_of(account);
            self.accounts_of[partition as usize].push(account);
        }
        if self.accounts_of.iter().any(|accounts| accounts.len() < 2) {
            return Err(BenchError::Usage("too many partitions for --remote".into()));
        }
        Ok(())
    }

    /// The receiving account of a transfer from `from`.
    fn receiver(&self, from: u32, random: &mut Random) -> u32 {
        let bits = random.next_u64();
        let Some(percent) = self.remote_percent else {
            return below(bits as u32, ACCOUNTS);
        };
        let home = self.partition_of(from);
        let is_remote = below((bits >> 32) as u32, 100) < percent as u32;
        let partition = match is_remote {
            false => home as usize,
            true => {
                let other = below(random.next_u64() as u32, self.partitions as u32 - 1) as u16;
                (other + (other >= home) as u16) as usize
            }
        };
        let accounts = &self.accounts_of[partition];
        accounts[below(bits as u32, accounts.len() as u32) as usize]
    }
}

impl Workload for Bank {
    type Call = BankCall;
    const NAME: &'static str = NAME;
    const PROCEDURES: &'static [&'static str] = &["transfer", "balance"];
    const OUTCOMES: &'static [&'static str] = &["transferred", "insufficient_funds", "answered"];

    fn new(options: &Options) -> Result<Self, BenchError> {
        options.check_sizes(&["--remote"])?;
        Ok(Self {
            remote_percent: options.remote_percent,
            partitions: 1,
            accounts_of: Vec::new(),
            before: Total::default(),
        })
    }

    fn native() -> &'static NativeModule {
        &bank::MODULE
    }

    fn prepare(&mut self, control: &mut dyn Control, on_progress: OnProgress<'_>) -> Result<(), BenchError> {
        self.partitions = control.partitions();
        self.place_accounts()?;
        let total = ACCOUNTS as u64;
        on_progress(Progress::Loading { done: 0, total });
        let args = |account: u64| {
            vec![
                ("account", Arg::I64(account as i64)),
                ("balance", Arg::I64(OPENING_BALANCE)),
            ]
        };
        control.call_many(&ManyCalls {
            tolerated: "account_exists",
            on_done: &|done| on_progress(Progress::Loading { done, total }),
            ..ManyCalls::new("open", total, &args)
        })?;
        self.before = Self::total(control)?;
        Ok(())
    }

    #[inline]
    fn generate(&self, random: &mut Random) -> BankCall {
        let (account, kind) = (random.next_u64(), random.next_u64());
        let from = below(account as u32, ACCOUNTS);
        if (kind >> 32) as u32 > TRANSFER_SHARE {
            return BankCall {
                from,
                to: from,
                amount: 0,
            };
        }
        BankCall {
            from,
            to: self.receiver(from, random),
            amount: 1 + below(kind as u32, AMOUNT_MAX),
        }
    }

    fn procedure(call: &BankCall) -> usize {
        if call.amount == 0 { BALANCE } else { TRANSFER }
    }

    #[inline]
    fn encode(call: &BankCall, out: &mut Vec<u8>) {
        out.extend_from_slice(&(call.from as i64).to_le_bytes());
        if call.amount > 0 {
            out.extend_from_slice(&(call.to as i64).to_le_bytes());
            out.extend_from_slice(&(call.amount as i64).to_le_bytes());
        }
    }

    fn write_json(call: &BankCall, out: &mut Vec<u8>) {
        if call.amount == 0 {
            out.extend_from_slice(b"{\"account\":");
            push_i64(out, call.from as i64);
        } else {
            out.extend_from_slice(b"{\"from\":");
            push_i64(out, call.from as i64);
            out.extend_from_slice(b",\"to\":");
            push_i64(out, call.to as i64);
            out.extend_from_slice(b",\"amount\":");
            push_i64(out, call.amount as i64);
        }
        out.push(b'}');
    }

    fn outcome(call: &BankCall, _: &[u8]) -> usize {
        if call.amount == 0 { ANSWERED } else { TRANSFERRED }
    }

    fn outcome_json(call: &BankCall, _: &[u8]) -> usize {
        if call.amount == 0 { ANSWERED } else { TRANSFERRED }
    }

    fn outcome_of_abort(code: &str) -> Option<usize> {
        (code == "insufficient_funds").then_some(INSUFFICIENT)
    }

    fn liberties(&self) -> Vec<String> {
        Vec::new() // named after no description
    }

    fn check_state(&self, control: &mut dyn Control) -> Result<Vec<String>, BenchError> {
        let total = Self::total(control)?;
        let (mut rows, mut sum, mut lowest) = (0, 0, i64::MAX);
        control.visit_rows("accounts", &mut |row: &Value| {
            let balance = integer(row, "balance").unwrap_or(i64::MIN);
            rows += 1;
            sum += balance as i128;
            lowest = lowest.min(balance);
        })?;
        if lowest < 0 {
            return Err(BenchError::Checks(format!("an account's balance is {lowest}")));
        }
        if (rows, sum) != (total.accounts, total.sum as i128) {
            return Err(BenchError::Checks(format!(
                "{rows} stored accounts hold {sum}, but total says {} and {}",
                total.accounts, total.sum
            )));
        }
        Ok(vec![format!(
            "no balance of {rows} is negative; the lowest is {lowest}"
        )])
    }

    fn check(&self, control: &mut dyn Control, _: u64, _: &Tally) -> Result<Vec<String>, BenchError> {
        let after = Self::total(control)?;
        if after != self.before {
            return Err(BenchError::Checks(format!(
                "{} accounts held {} before the run, and {} hold {} after it",
                self.before.accounts, self.before.sum, after.accounts, after.sum
            )));
        }
        Ok(vec![format!(
            "the sum of {} balances is {} before and after",
            after.accounts, after.sum
        )])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_remote(percent: u8) {
        let options = Options {
            remote_percent: Some(percent),
            ..Options::in_process(NAME)
        };
        let mut bank = Bank::new(&options).expect("--remote is its option");
        bank.partitions = 4;
        bank.place_accounts().expect("accounts lie on every partition");
        let mut random = Random::new(3);
        let (mut transfers, mut remote) = (0, 0);
        for _ in 0..20_000 {
            let call = bank.generate(&mut random);
            if call.amount > 0 {
                transfers += 1;
                remote += (bank.partition_of(call.from) != bank.partition_of(call.to)) as u32;
            }
        }
        let share = remote * 100 / transfers;
        assert!(share.abs_diff(percent as u32) <= 1, "{share} of {percent}");
        assert!((75..85).contains(&(transfers * 100 / 20_000)));
    }

    #[test]
    fn remote_transfers_have_the_asked_share() {
        check_remote(0);
        check_remote(10);
        check_remote(100);
    }
}
