//! The load: connections in a closed loop, the same for every peer, and what they measured.

use std::{
    cell::RefCell,
    fs, io,
    net::TcpStream,
    rc::Rc,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use hdrhistogram::Histogram;
use reprise_driver::Random;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::LocalSet,
};

use crate::calls::{Call, Inputs, Outcome, Tally};

/// Longest latency that is told apart, in nanoseconds.
const LATENCY_NS_MAX: u64 = 600_000_000_000;
const DIGITS: u8 = 3;
const READ_BYTES: usize = 16 << 10;
/// A peer that answers nothing for this long after the window ends the run.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(60);
/// Parts of a second in which Linux counts processor time for programs, on every platform that we know.
const TICKS_PER_S: f64 = 100.0;

/// Calls sent before their answers are read: series of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// One at a time on each connection.
    Plain,
    /// One at a time, each with an idempotency key.
    Keyed,
    /// Sixteen requests, then their answers.
    Ahead,
    /// One request with 64 calls.
    Batches,
}

impl Way {
    /// Calls that a connection sends together.
    fn calls(self) -> usize {
        match self {
            Self::Plain | Self::Keyed => 1,
            Self::Ahead => 16,
            Self::Batches => 64,
        }
    }

    pub fn suffix(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Keyed => " keyed",
            Self::Ahead => " 16 ahead",
            Self::Batches => " batches of 64",
        }
    }
}

/// The load that each peer gets.
#[derive(Clone)]
pub struct Load {
    pub inputs: Arc<Inputs>,
    pub connections: usize,
    pub threads: usize,
    pub seconds: f64,
    pub seed: u64,
}

/// Columns of the figures.
pub const COLUMNS: [&str; 6] = [
    "calls a second",
    "p50 us",
    "p99 us",
    "p99.9 us",
    "server us a call",
    "client us a call",
];

/// The figures of one run of one way.
pub struct Measured {
    /// In the order of `COLUMNS`; none where it has no meaning.
    pub cells: [Option<f64>; 6],
    /// All calls of the run, those outside of the window too.
    pub tally: Tally,
}

/// The bytes of a protocol: how calls are asked for, and how their answers are read.
pub trait Wire {
    /// Appends the bytes that ask for these calls.
    fn ask(&mut self, calls: &[Call], out: &mut Vec<u8>);

    /// Reads the answers that arrived whole, appends their outcomes, and returns how many bytes they took.
    ///
    /// # Errors
    /// An answer that is none, or a failure that the workload does not know.
    fn read(&mut self, received: &[u8], outcomes: &mut Vec<Outcome>) -> Result<usize>;
}

/// A connection that is ready for calls.
pub struct Connection {
    pub stream: TcpStream,
    pub wire: Box<dyn Wire + Send>,
}

/// The part of a run that is measured.
#[derive(Clone, Copy)]
pub struct Window {
    opens: Instant,
    pub closes: Instant,
}

/// Answers that came, those inside the window with their latency.
pub struct Meter {
    window: Window,
    latency_ns: Histogram<u64>,
    tally: Tally,
}

impl Window {
    /// Begins now, with a tenth of its length to warm up.
    pub fn new(seconds: f64) -> Self {
        let opens = Instant::now() + Duration::from_secs_f64(seconds / 10.0);
        Self {
            opens,
            closes: opens + Duration::from_secs_f64(seconds),
        }
    }

    fn seconds(&self) -> f64 {
        (self.closes - self.opens).as_secs_f64()
    }

    /// Sleeps until the window closes; returns the processor seconds that were taken inside it, a wall second.
    fn watch(&self, server: Option<u32>) -> Result<Processors> {
        let taken = || -> Result<Processors> {
            Ok(Processors {
                server: server.map(server_s).transpose()?,
                own: own_s()?,
            })
        };
        thread::sleep(self.opens.saturating_duration_since(Instant::now()));
        let (begun, first) = (Instant::now(), taken()?);
        thread::sleep(self.closes.saturating_duration_since(Instant::now()));
        let (elapsed, last) = (begun.elapsed().as_secs_f64(), taken()?);
        let of_server = last.server.zip(first.server);
        Ok(Processors {
            server: of_server.map(|(last, first)| (last - first) / elapsed),
            own: (last.own - first.own) / elapsed,
        })
    }
}

/// Processor seconds of the server, if it is a process of its own, and of this one.
struct Processors {
    server: Option<f64>,
    own: f64,
}

impl Meter {
    pub fn new(window: Window) -> Self {
        Self {
            window,
            latency_ns: Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS).expect("bounds in order"),
            tally: Tally::default(),
        }
    }

    pub fn add(&mut self, call: &Call, outcome: Outcome, sent: Instant, ended: Instant) {
        self.tally.add(call, outcome);
        if self.window.opens <= ended && ended < self.window.closes {
            let ns = (ended - sent).as_nanos().clamp(1, u128::from(LATENCY_NS_MAX)) as u64;
            self.latency_ns.saturating_record(ns);
        }
    }

    fn join(&mut self, other: &Self) {
        self.tally.join(&other.tally);
        let joined = self.latency_ns.add(&other.latency_ns);
        joined.expect("both have the same bounds");
    }

    /// The run's figures, with the processor seconds of server and client a wall second. A window without an answer has none.
    pub fn measured(&self, server: Option<f64>, client: Option<f64>) -> Measured {
        if self.latency_ns.is_empty() {
            return Measured {
                cells: [None; COLUMNS.len()],
                tally: self.tally,
            };
        }
        let per_s = self.latency_ns.len() as f64 / self.window.seconds();
        let us = |part: f64| Some(self.latency_ns.value_at_quantile(part) as f64 / 1_000.0);
        let a_call = |share: f64| share / per_s * 1e6;
        Measured {
            cells: [
                Some(per_s),
                us(0.5),
                us(0.99),
                us(0.999),
                server.map(a_call),
                client.map(a_call),
            ],
            tally: self.tally,
        }
    }
}

/// Runs the load on a server over connections that `open` makes.
///
/// # Errors
/// A connection that fails, or an answer that is none.
pub fn over_connections(load: &Load, way: Way, server: u32, open: &dyn Fn() -> Result<Connection>) -> Result<Measured> {
    let opened = (0..load.connections).map(|_| open()).collect::<Result<Vec<_>>>()?;
    let mut connections: Vec<_> = (load.seed * 10_000..).zip(opened).collect();
    let window = Window::new(load.seconds);
    let of_thread = load.connections.div_ceil(load.threads.max(1));
    let mut threads = Vec::new();
    while !connections.is_empty() {
        let rest = connections.split_off(of_thread.min(connections.len()));
        let mine = std::mem::replace(&mut connections, rest);
        let load = load.clone();
        threads.push(thread::spawn(move || run_thread(&load, way, window, mine)));
    }
    let processors = window.watch(Some(server))?;
    let mut meter = Meter::new(window);
    for thread in threads {
        let of_thread = thread.join().map_err(|_| anyhow!("a client's thread panicked"))?;
        meter.join(&of_thread?);
    }
    Ok(meter.measured(processors.server, Some(processors.own)))
}

/// Runs `step` in this thread until the window closes: the load of a peer in this process.
///
/// # Errors
/// The first error of a step.
pub fn in_process(load: &Load, mut step: impl FnMut(&Call) -> Result<Outcome>) -> Result<Measured> {
    let window = Window::new(load.seconds);
    let mut meter = Meter::new(window);
    let mut random = Random::new(load.seed * 10_000);
    let watched = thread::scope(|scope| {
        let watcher = scope.spawn(move || window.watch(None));
        let mut sent = Instant::now();
        while sent < window.closes {
            let call = load.inputs.next(&mut random);
            let outcome = step(&call)?;
            let ended = Instant::now();
            meter.add(&call, outcome, sent, ended);
            sent = ended;
        }
        watcher.join().map_err(|_| anyhow!("the watching thread panicked"))?
    });
    // One process is server and client.
    Ok(meter.measured(Some(watched?.own), None))
}

/// Serves some of the connections with one thread.
fn run_thread(load: &Load, way: Way, window: Window, connections: Vec<(u64, Connection)>) -> Result<Meter> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    let meter = Rc::new(RefCell::new(Meter::new(window)));
    let tasks: Vec<_> = connections
        .into_iter()
        .map(|(seed, connection)| {
            let (inputs, meter) = (load.inputs.clone(), meter.clone());
            local.spawn_local(async move { converse(&inputs, way, connection, seed, &meter).await })
        })
        .collect();
    let all = local.run_until(async {
        for task in tasks {
            task.await.context("run a connection")??;
        }
        Ok::<(), anyhow::Error>(())
    });
    let until = window.closes.saturating_duration_since(Instant::now()) + ANSWER_WAIT_MAX;
    let done = runtime.block_on(async { tokio::time::timeout(until, all).await });
    done.context("the server does not answer")??;
    drop(local);
    let meter = Rc::try_unwrap(meter).map_err(|_| anyhow!("a connection is still at work"))?;
    Ok(meter.into_inner())
}

/// One connection: sends calls, reads their answers, and sends the next ones until the window closes.
async fn converse(inputs: &Inputs, way: Way, connection: Connection, seed: u64, meter: &RefCell<Meter>) -> Result<()> {
    let Connection { stream, mut wire } = connection;
    stream.set_nonblocking(true)?;
    let mut stream = tokio::net::TcpStream::from_std(stream)?;
    let mut random = Random::new(seed);
    let closes = meter.borrow().window.closes;
    let (mut request, mut received) = (Vec::new(), Vec::new());
    let (mut calls, mut outcomes) = (Vec::new(), Vec::new());
    loop {
        let sent = Instant::now();
        if sent >= closes {
            return Ok(());
        }
        calls.clear();
        calls.extend((0..way.calls()).map(|_| inputs.next(&mut random)));
        request.clear();
        wire.ask(&calls, &mut request);
        stream.write_all(&request).await?;
        let mut answered = 0;
        while answered < calls.len() {
            received.reserve(READ_BYTES);
            if stream.read_buf(&mut received).await? == 0 {
                bail!("the server closed the connection");
            }
            let used = wire.read(&received, &mut outcomes)?;
            received.drain(..used);
            let ended = Instant::now();
            for outcome in outcomes.drain(..) {
                let call = calls.get(answered).context("the server sent more answers than calls")?;
                meter.borrow_mut().add(call, outcome, sent, ended);
                answered += 1;
            }
        }
    }
}

/// Processor seconds of this process, without its children.
fn own_s() -> Result<f64> {
    let ticks = ticks(&stat("self")?, 2).context("a process without times")?;
    Ok(ticks as f64 / TICKS_PER_S)
}

fn stat(process: &str) -> io::Result<String> {
    fs::read_to_string(format!("/proc/{process}/stat"))
}

/// Processor seconds that a process and its children took since they began.
fn server_s(process: u32) -> Result<f64> {
    let own = stat(&process.to_string()).with_context(|| format!("read the processor time of process {process}"))?;
    // With those of children that ended.
    let mut ticks = ticks(&own, 4).context("a process without times")?;
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(id) = name
            .to_str()
            .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        else {
            continue;
        };
        let Ok(text) = stat(id) else {
            continue; // it ended since the list was made
        };
        let parent = fields(&text).nth(1).and_then(|parent| parent.parse::<u32>().ok());
        if parent == Some(process) {
            ticks += self::ticks(&text, 2).unwrap_or_default();
        }
    }
    Ok(ticks as f64 / TICKS_PER_S)
}

/// Fields behind the name of the program, which may contain spaces: state, parent, and so on.
fn fields(stat: &str) -> impl Iterator<Item = &str> {
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_ascii_whitespace()
}

/// The sum of the first `count` of: own user and system time, those of children that ended.
fn ticks(stat: &str, count: usize) -> Option<u64> {
    let times: Vec<_> = fields(stat).skip(11).take(count).collect();
    (times.len() == count).then_some(())?;
    times.iter().map(|time| time.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_behind_a_name_with_brackets() {
        let stat = "7 (a) (b c) S 3 7 7 0 -1 0 0 0 0 0 11 22 33 44 20 0";
        assert_eq!(fields(stat).nth(1), Some("3"));
        assert_eq!((ticks(stat, 2), ticks(stat, 4)), (Some(33), Some(110)));
        assert_eq!(ticks("7 (a) S 3", 2), None);
        let (own, all) = (own_s(), server_s(std::process::id()));
        assert!(own.is_ok_and(|own| own >= 0.0) && all.is_ok_and(|all| all >= 0.0));
    }

    #[test]
    fn latencies_count_inside_the_window_alone() {
        let window = Window::new(1.0);
        let mut meter = Meter::new(window);
        assert_eq!(meter.measured(Some(0.5), None).cells, [None; 6], "no answer yet");
        let call = Call::Vote {
            phone: 1,
            contestant: 1,
        };
        let inside = window.opens + Duration::from_millis(10);
        meter.add(&call, Outcome::Done, window.opens, inside);
        meter.add(&call, Outcome::Rejected, inside, window.closes);
        let measured = meter.measured(Some(0.5), None);
        assert_eq!((measured.tally.done, measured.tally.rejected), (1, 1));
        assert_eq!(measured.cells[0], Some(1.0));
        assert_eq!((measured.cells[4], measured.cells[5]), (Some(500_000.0), None));
        assert!(measured.cells[1].is_some_and(|us| (us - 10_000.0).abs() < 20.0));
    }
}
