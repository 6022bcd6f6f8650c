//! SQLite as a peer: its procedures are code of this program, on one connection in one thread.

use std::rc::Rc;

use anyhow::{Context, Result, bail};
use tpcb::{ACCOUNTS_PER_BRANCH, TELLERS_PER_BRANCH};

use crate::{
    calls::{Booking, CONTESTANTS, Call, OPENING_BALANCE, Outcome, VOTES_PER_PHONE_MAX, Workload},
    embedded_order,
    load::{Load, Measured, Way, in_process},
    peer::{Durability, Installed, Missing, Running, Start},
    sqlite::{Database, Sqlite, Statement, Value},
};

const VOTER: &str = "
CREATE TABLE contestants (contestant_number INTEGER PRIMARY KEY, contestant_name TEXT NOT NULL);
CREATE TABLE votes (phone_number INTEGER, vote_number INTEGER, contestant_number INTEGER NOT NULL, state TEXT NOT NULL,
  PRIMARY KEY (phone_number, vote_number)) WITHOUT ROWID;
CREATE TABLE vote_counts (contestant_number INTEGER, area_code INTEGER, state TEXT NOT NULL, votes INTEGER NOT NULL,
  PRIMARY KEY (contestant_number, area_code)) WITHOUT ROWID;";
const TRANSFER: &str = "CREATE TABLE accounts (account INTEGER PRIMARY KEY, balance INTEGER NOT NULL);";
const TPCB: &str = "
CREATE TABLE branches (branch_id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, filler TEXT);
CREATE TABLE tellers (teller_id INTEGER PRIMARY KEY, branch_id INTEGER NOT NULL, balance INTEGER NOT NULL, filler TEXT);
CREATE TABLE accounts (account_id INTEGER PRIMARY KEY, branch_id INTEGER NOT NULL, balance INTEGER NOT NULL, filler TEXT);
CREATE TABLE history (branch_id INTEGER, teller_id INTEGER, account_id INTEGER, delta INTEGER, time INTEGER, filler TEXT);";

/// The name of its series.
pub const NAME: &str = "SQLite in process";

struct Embedded(Sqlite);

/// SQLite, by the system's library.
///
/// # Errors
/// It is not installed.
pub fn sqlite() -> Result<Box<dyn Installed>, Missing> {
    match Sqlite::load() {
        Ok(sqlite) => Ok(Box::new(Embedded(sqlite))),
        Err(_) => Err(Missing {
            name: "SQLite",
            install: "apt-get install libsqlite3-0",
        }),
    }
}

impl Installed for Embedded {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> &str {
        &self.0.version
    }

    fn ways(&self) -> &'static [Way] {
        &[Way::Plain]
    }

    /// It syncs at each commit, at checkpoints or never: none of them is a second.
    fn offers(&self, durability: Durability) -> bool {
        durability != Durability::Second
    }

    fn start(&self, start: &Start<'_>) -> Result<Box<dyn Running>> {
        Ok(Box::new(RunningSqlite::open(&self.0, start)?))
    }
}

/// The prepared statements of a workload.
struct Statements {
    begin: Statement,
    commit: Statement,
    rollback: Statement,
    /// By workload, in the order of `statements_of`.
    own: Vec<Statement>,
}

/// The statements that each call of a workload runs some of.
fn statements_of(workload: Workload) -> &'static [&'static str] {
    match workload {
        Workload::Voter => &[
            "SELECT 1 FROM contestants WHERE contestant_number = ?",
            "INSERT OR IGNORE INTO votes VALUES (?, ?, ?, ?)",
            "SELECT count(*) FROM votes WHERE phone_number = ?",
            "INSERT INTO vote_counts VALUES (?, ?, ?, 1)
             ON CONFLICT (contestant_number, area_code) DO UPDATE SET votes = votes + 1",
        ],
        Workload::Transfer | Workload::Zipf => {
            &["UPDATE accounts SET balance = balance + ? WHERE account = ? RETURNING balance"]
        }
        Workload::Tpcb => &[
            "UPDATE accounts SET balance = balance + ? WHERE account_id = ? RETURNING balance",
            "UPDATE tellers SET balance = balance + ? WHERE teller_id = ?",
            "UPDATE branches SET balance = balance + ? WHERE branch_id = ?",
            "INSERT INTO history VALUES (?, ?, ?, ?, unixepoch(), '------------------')",
        ],
        Workload::NewOrder => &embedded_order::STATEMENTS,
    }
}

impl Statements {
    fn of(workload: Workload, database: &Rc<Database>) -> Result<Self> {
        let own = statements_of(workload).iter().map(|sql| database.prepare(sql));
        Ok(Self {
            begin: database.prepare("BEGIN IMMEDIATE")?,
            commit: database.prepare("COMMIT")?,
            rollback: database.prepare("ROLLBACK")?,
            own: own.collect::<Result<_>>()?,
        })
    }
}

struct RunningSqlite {
    statements: Statements,
    workload: Workload,
    database: Rc<Database>,
}

impl RunningSqlite {
    /// Makes a database with the workload's rows.
    fn open(sqlite: &Sqlite, start: &Start<'_>) -> Result<Self> {
        let database = sqlite.open(&start.dir.join("database"))?;
        let synchronous = match start.durability {
            Durability::Commit => "FULL",
            Durability::Second | Durability::None => "OFF",
        };
        database.exec("PRAGMA journal_mode = WAL; PRAGMA cache_size = -262144; PRAGMA locking_mode = EXCLUSIVE")?;
        database.exec(&format!("PRAGMA synchronous = {synchronous}"))?;
        let workload = start.inputs.workload;
        database.exec(match workload {
            Workload::Voter => VOTER,
            Workload::Transfer | Workload::Zipf => TRANSFER,
            Workload::Tpcb => TPCB,
            Workload::NewOrder => embedded_order::SCHEMA,
        })?;
        let running = Self {
            statements: Statements::of(workload, &database)?,
            workload,
            database,
        };
        running.fill(start)?;
        Ok(running)
    }

    fn fill(&self, start: &Start<'_>) -> Result<()> {
        let numbers = |first: i64, last: i64| {
            format!(
                "WITH RECURSIVE numbers(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM numbers WHERE n < {last})"
            )
        };
        let branches = i64::from(start.inputs.branches);
        match self.workload {
            Workload::Voter => {
                let rows = (1..)
                    .zip(CONTESTANTS)
                    .map(|(number, name): (i32, _)| format!("({number}, '{name}')"));
                let rows: Vec<_> = rows.collect();
                self.database
                    .exec(&format!("INSERT INTO contestants VALUES {}", rows.join(", ")))?;
            }
            Workload::Transfer | Workload::Zipf => {
                let numbers = numbers(0, i64::from(start.inputs.accounts) - 1);
                let sql = format!("{numbers} INSERT INTO accounts SELECT n, {OPENING_BALANCE} FROM numbers");
                self.database.exec(&sql)?;
            }
            Workload::Tpcb => {
                for (table, each, length) in [
                    ("branches", 1, 84),
                    ("tellers", TELLERS_PER_BRANCH, 80),
                    ("accounts", ACCOUNTS_PER_BRANCH, 80),
                ] {
                    let branch = if each == 1 {
                        String::new()
                    } else {
                        format!("(n - 1) / {each} + 1, ")
                    };
                    let filler = "-".repeat(length);
                    let numbers = numbers(1, branches * i64::from(each));
                    let sql = format!("{numbers} INSERT INTO {table} SELECT n, {branch}0, '{filler}' FROM numbers");
                    self.database.exec(&sql)?;
                }
            }
            Workload::NewOrder => embedded_order::fill(&self.database, start.inputs.warehouses, start.inputs.items)?,
        }
        self.database.exec("PRAGMA wal_checkpoint(TRUNCATE)")
    }

    /// One transaction.
    fn call(&self, call: &Call) -> Result<Outcome> {
        self.statements.begin.run(&[])?;
        let outcome = match *call {
            Call::Vote { phone, contestant } => self.vote(phone, contestant)?,
            Call::Transfer { payer, payee, amount } => self.transfer(payer, payee, amount)?,
            Call::Book(booking) => self.book(&booking)?,
            Call::Order(ref order) => embedded_order::place(&self.statements.own, order)?,
        };
        let end = match outcome {
            Outcome::Done => &self.statements.commit,
            Outcome::Rejected => &self.statements.rollback,
        };
        end.run(&[])?;
        Ok(outcome)
    }

    fn vote(&self, phone: i64, contestant: i32) -> Result<Outcome> {
        let [find, insert, count, tally] = &self.statements.own[..] else {
            bail!("a vote takes four statements");
        };
        let contestant = Value::Integer(contestant.into());
        if find.run(&[contestant])?.is_none() {
            return Ok(Outcome::Rejected);
        }
        let state = voter::state_of(phone);
        let state = Value::Text(state.as_str());
        let phone_number = Value::Integer(phone);
        // The first vote of a phone is the usual one, and its row is the look-up.
        insert.run(&[phone_number, Value::Integer(1), contestant, state])?;
        if self.database.changes() == 0 {
            let votes = count.run(&[phone_number])?.unwrap_or_default();
            if votes >= VOTES_PER_PHONE_MAX {
                return Ok(Outcome::Rejected);
            }
            insert.run(&[phone_number, Value::Integer(votes + 1), contestant, state])?;
        }
        let area = Value::Integer(voter::area_code_of(phone).into());
        tally.run(&[contestant, area, state])?;
        Ok(Outcome::Done)
    }

    fn transfer(&self, payer: i64, payee: i64, amount: i64) -> Result<Outcome> {
        let [add] = &self.statements.own[..] else {
            bail!("a transfer takes one statement");
        };
        let left = add.run(&[Value::Integer(-amount), Value::Integer(payer)])?;
        add.run(&[Value::Integer(amount), Value::Integer(payee)])?;
        match left.context("there is no such account")? {
            0.. => Ok(Outcome::Done),
            _ => Ok(Outcome::Rejected),
        }
    }

    fn book(&self, booking: &Booking) -> Result<Outcome> {
        let [account, teller, branch, history] = &self.statements.own[..] else {
            bail!("a booking takes four statements");
        };
        let delta = Value::Integer(booking.delta);
        let [branch_id, teller_id, account_id] =
            [booking.branch, booking.teller, booking.account].map(|id| Value::Integer(id.into()));
        account.run(&[delta, account_id])?;
        teller.run(&[delta, teller_id])?;
        branch.run(&[delta, branch_id])?;
        history.run(&[branch_id, teller_id, account_id, delta])?;
        Ok(Outcome::Done)
    }
}

impl Running for RunningSqlite {
    fn run(&mut self, load: &Load, _: Way) -> Result<Measured> {
        in_process(load, |call| self.call(call))
    }

    fn totals(&mut self) -> Result<Vec<i64>> {
        let sum = |query: &&str| -> Result<i64> { Ok(self.database.prepare(query)?.run(&[])?.unwrap_or_default()) };
        self.workload.sum_queries().iter().map(sum).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::calls::{Inputs, Sizes};

    #[test]
    fn check_fails_when_a_row_was_changed_beside_the_calls() {
        let Ok(sqlite) = Sqlite::load() else {
            return eprintln!("SQLite is not installed: apt-get install libsqlite3-0");
        };
        for (workload, spoil) in [
            (
                Workload::Voter,
                "UPDATE vote_counts SET votes = votes + 1 WHERE area_code = 212",
            ),
            (
                Workload::Transfer,
                "UPDATE accounts SET balance = balance + 1 WHERE account = 3",
            ),
            (Workload::Tpcb, "DELETE FROM history WHERE rowid = 1"),
            (
                Workload::NewOrder,
                "UPDATE stock SET s_ytd = s_ytd + 1 WHERE s_i_id = 3",
            ),
        ] {
            let dir = tempfile::tempdir().expect("a folder");
            let sizes = Sizes {
                accounts: 100,
                branches: 1,
                warehouses: 1,
                items: 100,
            };
            let inputs = Arc::new(Inputs::new(workload, sizes));
            let start = Start {
                dir: dir.path(),
                inputs: &inputs,
                durability: Durability::None,
                connections: 1,
            };
            let mut running = RunningSqlite::open(&sqlite, &start).expect("a database");
            let load = Load {
                inputs: inputs.clone(),
                connections: 1,
                threads: 1,
                seconds: 0.1,
                seed: 1,
            };
            let measured = running.run(&load, Way::Plain).expect("a run");
            let found = running.totals().expect("sums");
            inputs
                .check("SQLite", &measured.tally, &found)
                .expect("the rows are those of the calls");
            running.database.exec(spoil).expect("a change");
            let found = running.totals().expect("sums");
            let error = inputs
                .check("SQLite", &measured.tally, &found)
                .expect_err("a row differs");
            assert!(error.to_string().contains("the check of SQLite failed"), "{error}");
        }
    }
}
