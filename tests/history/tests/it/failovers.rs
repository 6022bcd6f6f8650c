//! Histories of registers across failovers of real servers, checked by `todc-utils`. The answers of one primary and the next must be those
//! of one register. A call whose outcome is not known may have taken place at any later time, or never.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{By, Connection, FailoverConfig, Server, Witness, has_etcd, run_failovers_before, skip};
use serde_json::{Value, json};
use todc_utils::{
    linearizability::{
        WGLChecker,
        history::{Action, History},
    },
    specifications::Specification,
};

const REGISTERS: usize = 6;
const CLIENTS: usize = 4;
/// Calls of one client in one window at most: so the checker ends.
const CALLS_MAX: usize = 60;
/// Calls with an unknown outcome of one register in one window.
const OPEN_MAX: usize = 12;
/// Between two calls of a client.
const PAUSE: Duration = Duration::from_millis(15);
/// Time after which a call without an answer is left open.
const ANSWER_WAIT: Duration = Duration::from_secs(20);
/// How long clients go on once another one is the primary, at most.
const AFTER_MAX: Duration = Duration::from_secs(60);

/// Ends of the types of problems after which nothing of a call is kept.
const REFUSED: [&str; 4] = [
    "/not-primary",
    "/log-unavailable",
    "/standby-unavailable",
    "/lease-lost",
];

/// A register, alone.
struct Register;

/// The known facts about one call.
#[derive(Clone, Debug)]
enum Step {
    Start(Option<i64>),
    /// A read (None), or a write of a value. The answer is the value before, if there was one.
    Call(Option<i64>, Option<Option<i64>>),
}

impl Specification for Register {
    type State = Option<i64>;
    type Operation = Step;

    fn init() -> Option<i64> {
        None
    }

    fn apply(step: &Step, state: &Option<i64>) -> (bool, Option<i64>) {
        match step {
            Step::Start(value) => (true, *value),
            Step::Call(written, answer) => {
                let is_right = answer.is_none_or(|before| before == *state);
                (is_right, written.or(*state))
            }
        }
    }
}

/// A call on one register.
#[derive(Clone, Debug)]
struct Seen {
    client: usize,
    register: usize,
    written: Option<i64>,
    invoked: u64,
    /// When it was answered, and with what. None: whether it took place is not known.
    answered: Option<(u64, Option<i64>)>,
}

/// Whether one register, which held `start`, could have answered so.
fn is_linearizable(start: Option<i64>, seen: &[Seen]) -> bool {
    let (mut events, mut clients) = (Vec::new(), CLIENTS);
    for one in seen {
        // An open call never ends: its client continues as another one.
        let client = match one.answered {
            Some(_) => one.client,
            None => {
                clients += 1;
                clients
            }
        };
        let step = Step::Call(one.written, one.answered.map(|(_, before)| before));
        let returned = one.answered.map_or(u64::MAX, |(returned, _)| returned);
        events.push((one.invoked, client, Action::Call(step.clone())));
        events.push((returned, client, Action::Response(step)));
    }
    events.sort_by_key(|(at, ..)| *at);
    let start = Step::Start(start);
    let mut actions = vec![(0, Action::Call(start.clone())), (0, Action::Response(start))];
    actions.extend(events.into_iter().map(|(_, client, action)| (client + 1, action)));
    WGLChecker::<Register>::is_linearizable(History::from_actions(actions))
}

#[test]
fn the_checker_refuses_what_no_register_answers() {
    let seen = |client, written, invoked, answered| Seen {
        client,
        register: 0,
        written,
        invoked,
        answered,
    };
    let check = |all: &[Seen], expected, what: &str| {
        assert_eq!(is_linearizable(Some(1), all), expected, "{what}");
    };
    let write = seen(0, Some(2), 0, Some((1, Some(1))));
    check(
        &[write.clone(), seen(1, None, 2, Some((3, Some(2))))],
        true,
        "what was written",
    );
    check(
        &[write, seen(1, None, 2, Some((3, Some(1))))],
        false,
        "an acknowledged write is lost",
    );
    let open = seen(0, Some(2), 0, None);
    for (first, second, expected) in [(1, 1, true), (1, 2, true), (2, 2, true), (2, 1, false)] {
        let reads = [
            seen(1, None, 1, Some((2, Some(first)))),
            seen(2, None, 3, Some((4, Some(second)))),
        ];
        let all = [std::slice::from_ref(&open), &reads[..]].concat();
        check(&all, expected, &format!("open, then {first} and {second}"));
    }
    let (both, other) = (
        seen(0, Some(2), 0, Some((5, Some(1)))),
        seen(1, Some(3), 0, Some((5, Some(1)))),
    );
    check(&[both, other], false, "two primaries wrote over the same value");
}

/// The server's answer to a call.
enum Told {
    /// The value before the call.
    Was(Option<i64>),
    /// The call did not run.
    Refused,
    Unknown,
}

fn told(connection: &mut Connection, register: usize, written: Option<i64>) -> Told {
    // A read writes the present value again. So a primary alone answers it, as it answers writes.
    let (procedure, args) = match written {
        Some(value) => ("write", json!({ "ids": [register], "values": [value], "abort": false })),
        None => ("rotate", json!({ "ids": [register] })),
    };
    let path = format!("/v1/call/registers/{procedure}");
    let Ok(answer) = connection.request("POST", &path, &[], args.to_string().as_bytes()) else {
        return Told::Unknown;
    };
    let body = answer.json();
    let kind = body["type"].as_str().unwrap_or_default();
    match answer.status {
        200 => Told::Was(number(&body["result"][0])),
        _ if REFUSED.iter().any(|slug| kind.ends_with(slug)) => Told::Refused,
        _ => Told::Unknown,
    }
}

/// 64-bit numbers come as text.
fn number(value: &Value) -> Option<i64> {
    let text = value.as_str().and_then(|text| text.parse().ok());
    text.or_else(|| value.as_i64())
}

#[derive(Default)]
struct Registers {
    /// Source of values that differ.
    written: AtomicU64,
    events: AtomicU64,
    windows: usize,
    answered: usize,
    open: usize,
    refused: AtomicUsize,
    /// Windows in which more than one server answered.
    across: usize,
}

/// Clients of one window.
struct Window<'a> {
    registers: &'a Registers,
    addresses: &'a [String],
    is_over: AtomicBool,
    /// Number of calls that each server answered.
    answers: Vec<AtomicUsize>,
    seen: Mutex<Vec<Seen>>,
}

impl Window<'_> {
    fn client(&self, client: usize) {
        let mut server = client % self.addresses.len();
        let mut connection: Option<Connection> = None;
        for turn in 0..CALLS_MAX {
            thread::sleep(PAUSE);
            // The client finds the next primary by asking one server after the other.
            while !self.is_over.load(Ordering::Acquire) {
                connection = connection.take().or_else(|| self.connect(server));
                if let Some(mut open) = connection.take()
                    && self.call((client, turn), server, &mut open)
                {
                    connection = Some(open);
                    break;
                }
                server = (server + 1) % self.addresses.len();
                thread::sleep(PAUSE);
            }
        }
    }

    fn connect(&self, server: usize) -> Option<Connection> {
        let mut connection = Connection::open(&self.addresses[server]).ok()?;
        connection.set_wait(ANSWER_WAIT).ok()?;
        Some(connection)
    }

    /// Makes a call. Returns whether the server answered as a primary does.
    fn call(&self, (client, turn): (usize, usize), server: usize, connection: &mut Connection) -> bool {
        let register = (client * 7 + turn * 3 + turn / 5) % REGISTERS;
        let value = self.registers.written.fetch_add(1, Ordering::Relaxed) as i64;
        let written = (turn % 3 > 0).then_some(value);
        let invoked = self.registers.events.fetch_add(1, Ordering::SeqCst);
        let told = told(connection, register, written);
        let returned = self.registers.events.fetch_add(1, Ordering::SeqCst);
        let answered = match told {
            Told::Refused => {
                self.registers.refused.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            Told::Was(before) => {
                self.answers[server].fetch_add(1, Ordering::Relaxed);
                Some((returned, before))
            }
            Told::Unknown => None,
        };
        let seen = Seen {
            client,
            register,
            written,
            invoked,
            answered,
        };
        self.seen.lock().expect("no client panics").push(seen);
        answered.is_some()
    }
}

impl Registers {
    /// Reads each register from the primary.
    fn look(addresses: &[String]) -> Result<Vec<Option<i64>>> {
        let until = Instant::now() + AFTER_MAX;
        let mut server = 0;
        let mut found: Vec<Option<i64>> = Vec::new();
        while found.len() < REGISTERS {
            ensure!(Instant::now() < until, "nobody tells what the registers hold");
            let connection = Connection::open(&addresses[server]);
            let told = connection.map(|mut connection| told(&mut connection, found.len(), None));
            match told {
                Ok(Told::Was(value)) => found.push(value),
                _ => {
                    server = (server + 1) % addresses.len();
                    thread::sleep(PAUSE);
                }
            }
        }
        Ok(found)
    }

    fn judge(&mut self, start: &[Option<i64>], seen: Vec<Seen>) -> Result<()> {
        let mut by_register: BTreeMap<usize, Vec<Seen>> = BTreeMap::new();
        for one in seen {
            by_register.entry(one.register).or_default().push(one);
        }
        for (register, seen) in by_register {
            let open = seen.iter().filter(|one| one.answered.is_none()).count();
            self.open += open;
            self.answered += seen.len() - open;
            // With many open calls, the checker has no end in sight, and little to refuse.
            if open <= OPEN_MAX {
                ensure!(
                    is_linearizable(start[register], &seen),
                    "no register answers so: register {register} held {:?}: {seen:#?}",
                    start[register]
                );
            }
        }
        self.windows += 1;
        Ok(())
    }
}

impl Witness for Registers {
    fn begin(&mut self, primary: &Server) -> Result<()> {
        primary.deploy_until_known("registers")
    }

    fn watch(&mut self, addresses: &[String], failover: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let start = Self::look(addresses)?;
        let window = Window {
            registers: &*self,
            addresses,
            is_over: AtomicBool::new(false),
            answers: addresses.iter().map(|_| AtomicUsize::default()).collect(),
            seen: Mutex::default(),
        };
        let failed_over = thread::scope(|scope| {
            for client in 0..CLIENTS {
                let window = &window;
                scope.spawn(move || window.client(client));
            }
            let before: Vec<usize> = counts(&window.answers);
            let failed_over = failover();
            let until = Instant::now() + AFTER_MAX;
            let at_takeover: Vec<usize> = counts(&window.answers);
            // The window stays open until the new primary has answered some calls, if clients are left that ask.
            while failed_over.is_ok() && counts(&window.answers) == at_takeover && Instant::now() < until {
                let asked: usize = counts(&window.answers).iter().sum();
                if asked >= before.iter().sum::<usize>() + CLIENTS * CALLS_MAX {
                    break;
                }
                thread::sleep(PAUSE);
            }
            window.is_over.store(true, Ordering::Release);
            failed_over
        });
        failed_over?;
        let across = window
            .answers
            .iter()
            .filter(|count| count.load(Ordering::Relaxed) > 0)
            .count();
        let seen = std::mem::take(&mut *window.seen.lock().expect("no client panics"));
        self.across += usize::from(across > 1);
        self.judge(&start, seen).context("a history across a failover")
    }
}

fn counts(answers: &[AtomicUsize]) -> Vec<usize> {
    answers.iter().map(|count| count.load(Ordering::Relaxed)).collect()
}

fn check(by: By, seed: u64, safety: &str) {
    let config = FailoverConfig {
        safety: safety.into(),
        keeps: true,
        ..FailoverConfig::new(by, 4, seed)
    };
    let mut registers = Registers::default();
    let report = run_failovers_before(&config, &mut registers).unwrap_or_else(|error| panic!("{error:#}"));
    let refused = registers.refused.load(Ordering::Relaxed);
    println!(
        "{report}\n{} windows, {} of them answered by two servers; {} calls answered, {} open, {refused} refused",
        registers.windows, registers.across, registers.answered, registers.open
    );
    assert!(registers.windows == 4 && registers.across > 0 && registers.answered > 0);
}

#[test]
fn registers_are_linearizable_across_failovers_by_hand_at_2_safe() {
    check(By::Hand, 11, "2-safe");
}

#[test]
fn registers_are_linearizable_across_failovers_by_lease() {
    const NAME: &str = "registers_are_linearizable_across_failovers_by_lease";
    match has_etcd() {
        Ok(()) => check(By::Lease, 13, "2-safe"),
        Err(why) => skip(NAME, &why),
    }
}
