//! Clients that open accounts and move money one by one, and note every answer.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Connection, Server};
use serde_json::{Value, json};

/// Accounts of a client begin at its number times this; the first two are its payer and payee.
pub const CLIENT_SPAN: i64 = 1 << 32;
pub const FIRST_BALANCE: i64 = 1 << 40;
/// Transfers of a batch. A batch that fills a memory or a disk has more openings: transfers between partitions take long, and no room.
const MOVES_MAX: usize = 1_000;

/// The outcomes of one client's calls.
#[derive(Debug, Default)]
pub struct Tally {
    pub client: i64,
    /// Opened accounts.
    pub acknowledged: Vec<i64>,
    pub refused: Vec<i64>,
    pub unknown: Vec<i64>,
    /// Transfers of 1.
    pub moved: i64,
    pub moves_unknown: i64,
    /// Types of the problems met.
    pub problems: BTreeSet<String>,
    next: i64,
}

impl Tally {
    pub fn new(client: i64) -> Self {
        Self {
            client,
            next: client * CLIENT_SPAN + 2,
            ..Self::default()
        }
    }

    pub fn pair(&self) -> [i64; 2] {
        [self.client * CLIENT_SPAN, self.client * CLIENT_SPAN + 1]
    }

    /// One batch of openings with transfers between the first of them. False: the connection is at its end.
    pub fn batch(&mut self, connection: &mut Connection, openings: usize) -> Result<bool> {
        let [from, to] = self.pair();
        let unknown_before = (self.unknown.len(), self.moves_unknown);
        let mut accounts = Vec::new();
        let mut body = String::new();
        for at in 0..openings {
            accounts.push(self.next);
            let args = json!({"account": self.next, "balance": 0});
            body += &format!("{}\n", json!({"module": "bank", "procedure": "open", "args": args}));
            if at < MOVES_MAX {
                let args = json!({"from": from, "to": to, "amount": 1});
                body += &format!("{}\n", json!({"module": "bank", "procedure": "transfer", "args": args}));
            }
            self.next += 1;
        }
        let (text, is_whole) = match connection.request("POST", "/v1/batch", &[], body.as_bytes()) {
            Ok(answer) => {
                ensure!(answer.status == 200, "batch: {} {}", answer.status, answer.text());
                (answer.body, true)
            }
            Err(cut) => (cut.body, false),
        };
        let end = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let mut lines = text[..end].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        for (at, account) in accounts.into_iter().enumerate() {
            self.take_opening(account, lines.next())?;
            if at < MOVES_MAX {
                self.take_move(lines.next())?;
            }
        }
        ensure!(
            !is_whole || (self.unknown.len(), self.moves_unknown) == unknown_before,
            "a whole answer lacks lines"
        );
        Ok(is_whole)
    }

    fn take_opening(&mut self, account: i64, line: Option<&[u8]>) -> Result<()> {
        let list = match line.map(|line| self.is_committed(line)).transpose()? {
            None => &mut self.unknown,
            Some(true) => &mut self.acknowledged,
            Some(false) => &mut self.refused,
        };
        list.push(account);
        Ok(())
    }

    fn take_move(&mut self, line: Option<&[u8]>) -> Result<()> {
        match line.map(|line| self.is_committed(line)).transpose()? {
            None => self.moves_unknown += 1,
            Some(true) => self.moved += 1,
            Some(false) => {}
        }
        Ok(())
    }

    fn is_committed(&mut self, line: &[u8]) -> Result<bool> {
        let answer: Value = serde_json::from_slice(line).context("a line of a batch is not JSON")?;
        let problem = &answer["problem"];
        if problem.is_null() {
            return Ok(true);
        }
        let is_refused = problem["status"] == 503 || problem["status"] == 507;
        ensure!(is_refused, "a call failed: {answer}");
        self.problems
            .insert(problem["type"].as_str().unwrap_or_default().to_owned());
        Ok(false)
    }
}

/// Clients at work, each on a thread and a connection of its own.
pub struct Load {
    threads: Vec<JoinHandle<Result<Tally>>>,
    is_over: Arc<AtomicBool>,
    /// Clients that had a call refused.
    refused: Arc<AtomicUsize>,
}

impl Load {
    pub fn start(server: &Server, clients: i64, openings: usize) -> Self {
        Self::resume(server, (1..=clients).map(Tally::new).collect(), openings)
    }

    /// Continues with clients that ended, whatever happened to their server.
    pub fn resume(server: &Server, tallies: Vec<Tally>, openings: usize) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let refused = Arc::new(AtomicUsize::new(0));
        let client = |mut tally: Tally| {
            let (address, is_over) = (server.address.clone(), is_over.clone());
            let refused = refused.clone();
            thread::spawn(move || {
                let mut connection = Connection::open(&address).context("connect")?;
                while !is_over.load(Ordering::Acquire) {
                    let was_refused = !tally.refused.is_empty();
                    if !tally.batch(&mut connection, openings)? {
                        break;
                    }
                    if !was_refused && !tally.refused.is_empty() {
                        refused.fetch_add(1, Ordering::Release);
                    }
                }
                Ok(tally)
            })
        };
        Self {
            threads: tallies.into_iter().map(client).collect(),
            is_over: is_over.clone(),
            refused,
        }
    }

    /// Waits until every client had a call refused.
    pub fn wait_refused(&self, wait_max: Duration) -> Result<()> {
        let until = Instant::now() + wait_max;
        while self.refused.load(Ordering::Acquire) < self.threads.len() {
            ensure!(Instant::now() < until, "not every client is refused");
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Lets each client end its batch.
    pub fn stop(self) -> Result<Vec<Tally>> {
        self.is_over.store(true, Ordering::Release);
        self.wait()
    }

    /// Waits until every client has lost its server.
    pub fn wait(self) -> Result<Vec<Tally>> {
        let tallies = self
            .threads
            .into_iter()
            .map(|thread| thread.join().expect("a client panicked"));
        tallies.collect()
    }
}

/// Deploys `bank` and opens every client's pair.
pub fn prepare(server: &Server, clients: i64) -> Result<()> {
    server.deploy("bank")?;
    for client in 1..=clients {
        for account in Tally::new(client).pair() {
            let args = json!({"account": account, "balance": FIRST_BALANCE});
            let answer = server.call("bank/open", &args.to_string())?;
            ensure!(answer.status == 200, "open: {} {}", answer.status, answer.text());
        }
    }
    Ok(())
}

/// Prepares one client and has it open accounts, in batches.
pub fn open_accounts(server: &Server, batches: usize) -> Result<Tally> {
    prepare(server, 1)?;
    let mut tally = Tally::new(1);
    let mut connection = server.connect()?;
    for _ in 0..batches {
        ensure!(tally.batch(&mut connection, 50)?, "the server is gone");
    }
    ensure!(tally.refused.is_empty(), "calls were refused: {:?}", tally.problems);
    Ok(tally)
}
