//! The load on a server: one thread, many connections, single calls or batches.

use std::{
    cell::{Cell, RefCell},
    io::Write as _,
    rc::Rc,
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::{runtime::Runtime, task::LocalSet};

use crate::{
    BenchError, OnProgress, Progress,
    client::{Client, Session, problem, push_body},
    control::integer,
    failed,
    http1::{Answer, Connection},
    measure::{Meter, Verdict},
    options::{Options, RemoteOptions, Via},
    random::Random,
    report::{Report, Subject},
    workload::Workload,
};

/// A line of the server's metrics: bytes written to the log.
const FLUSHED_BYTES: &str = "reprise_log_flushed_bytes_total ";
const PROGRESS_EVERY: Duration = Duration::from_millis(200);
/// The runtime's timer counts milliseconds: closer than this the open loop yields until a call is due.
const TIMER_MIN: Duration = Duration::from_millis(2);
/// Time after the window in which the driver still sends calls that were due. It counts the rest as unsent.
const DRAIN_MAX: Duration = Duration::from_secs(5);

pub(crate) fn run<W: Workload>(
    mut workload: W,
    options: &Options,
    remote: &RemoteOptions,
    on_progress: OnProgress<'_>,
) -> Result<Report, BenchError> {
    let runtime = runtime()?;
    let session = Rc::new(Session::new(remote)?);
    let mut client = Client::new(&runtime, session.clone(), W::NAME);
    let status = client.get("/v1/status")?;
    client.partitions = integer(&status, "partitions")? as u16;
    on_progress(Progress::Preparing("deploying the module"));
    client.deploy(options)?;
    workload.prepare(&mut client, on_progress)?;

    let load = Rc::new(Load::new(workload, options, remote, session));
    let log_bytes = drive(&runtime, &load, options, on_progress)?;
    load.count_unsent();
    let meter = load.meter.borrow();

    on_progress(Progress::Checking);
    meter.refuse_failures()?;
    let mut checked = load.workload.check_state(&mut client)?;
    checked.extend(load.workload.check(&mut client, options.seed, &meter.whole)?);
    let text = |member: &str| status[member].as_str().unwrap_or_default().to_owned();
    let subject = Subject {
        via: remote.via.name(),
        log: text("log"),
        commit: text("commit"),
        native: false,
        partitions: client.partitions,
        sites: integer(&status, "sites")? as u16,
        log_bytes,
        batch: match remote.via {
            Via::Single => 1,
            Via::Batch => remote.batch,
        },
        in_flight: remote.connections,
        pipeline: remote.pipeline,
        prepared: false,
        device: status["device"].as_str().map(str::to_owned),
        flush: status["nvram"]["flush"].as_str().map(str::to_owned),
        nvram_delay_ns: 0,
    };
    Ok(Report::new(subject, options, &load.workload, &meter, checked))
}

/// Checks what the server holds.
pub(crate) fn check<W: Workload>(workload: &W, remote: &RemoteOptions) -> Result<Vec<String>, BenchError> {
    let runtime = runtime()?;
    let mut client = Client::new(&runtime, Rc::new(Session::new(remote)?), W::NAME);
    workload.check_state(&mut client)
}

fn runtime() -> Result<Runtime, BenchError> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| failed("start a runtime", error))
}

/// When the next calls are due.
struct Schedule {
    rate: Option<f64>,
    /// Calls given out; the lock makes one connection wait for the next call's time, the others for the lock.
    next: tokio::sync::Mutex<u64>,
    begun: Instant,
    closes: Instant,
}

struct Slot {
    count: usize,
    due: Instant,
    spacing: Duration,
}

impl Schedule {
    /// The next calls, at most `batch`, once they are due; None when the time is over.
    async fn take(&self, batch: usize) -> Option<Slot> {
        let Some(rate) = self.rate else {
            let now = Instant::now();
            let slot = Slot {
                count: batch,
                due: now,
                spacing: Duration::ZERO,
            };
            return (now < self.closes).then_some(slot);
        };
        let mut next = self.next.lock().await;
        let due = self.begun + Duration::from_secs_f64(*next as f64 / rate);
        if due >= self.closes {
            return None;
        }
        if Instant::now() > self.closes + DRAIN_MAX {
            return None;
        }
        wait_until(due).await;
        let due_by_now = (self.begun.elapsed().as_secs_f64() * rate) as u64 + 1;
        let count = due_by_now.saturating_sub(*next).clamp(1, batch as u64);
        *next += count;
        Some(Slot {
            count: count as usize,
            due,
            spacing: Duration::from_secs_f64(1.0 / rate),
        })
    }
}

async fn wait_until(due: Instant) {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        if left > TIMER_MIN {
            tokio::time::sleep(left - TIMER_MIN).await;
        } else {
            std::thread::yield_now(); // the server shares these cores
            tokio::task::yield_now().await;
        }
    }
}

/// The state that the connections share.
struct Load<W: Workload> {
    workload: W,
    session: Rc<Session>,
    via: Via,
    batch: usize,
    connections: usize,
    headers: CallHeaders,
    schedule: Schedule,
    random: RefCell<Random>,
    meter: RefCell<Meter>,
    /// Connections at work.
    busy: Cell<usize>,
}

impl<W: Workload> Load<W> {
    fn new(workload: W, options: &Options, remote: &RemoteOptions, session: Rc<Session>) -> Self {
        let meter = Meter::new::<W>(options);
        Self {
            workload,
            session,
            via: remote.via,
            batch: match remote.via {
                Via::Single => remote.pipeline,
                Via::Batch => remote.batch,
            },
            connections: remote.connections,
            headers: CallHeaders {
                run: remote.keyed.then_some(options.seed),
                next_key: Cell::new(0),
                timeout_ms: remote.timeout_ms,
            },
            schedule: Schedule {
                rate: options.rate,
                next: tokio::sync::Mutex::new(0),
                begun: meter.begun,
                closes: meter.closes,
            },
            random: RefCell::new(Random::new(options.seed)),
            meter: RefCell::new(meter),
            busy: Cell::new(remote.connections),
        }
    }

    /// Counts what was due and not sent by the end of the run.
    fn count_unsent(&self) {
        let Some(rate) = self.schedule.rate else {
            return;
        };
        let (begun, closes) = (self.schedule.begun, self.schedule.closes);
        let due = ((closes - begun).as_secs_f64() * rate) as u64;
        let sent = self.schedule.next.try_lock().map_or(due, |next| *next);
        let first = begun + Duration::from_secs_f64(sent as f64 / rate);
        let spacing = Duration::from_secs_f64(1.0 / rate);
        let unsent = due.saturating_sub(sent);
        let mut meter = self.meter.borrow_mut();
        meter.add_unsent(first, spacing, unsent, Instant::now());
    }

    async fn connection(self: Rc<Self>) -> Result<(), BenchError> {
        let address = &self.session.address;
        let outcome = self.converse().await;
        self.busy.set(self.busy.get() - 1);
        outcome.map_err(|error| match error {
            Ended::Connection(error) => failed(&format!("talk to {address}"), error),
            Ended::Answer(text) => BenchError::Failed(text),
        })
    }

    async fn converse(&self) -> Result<(), Ended> {
        let mut connection = Connection::open(&self.session.address)
            .await
            .map_err(Ended::Connection)?;
        let mut writer = RequestWriter::new::<W>(self.via, &self.session);
        let mut calls: Vec<W::Call> = Vec::new();
        while let Some(slot) = self.schedule.take(self.batch).await {
            calls.clear();
            if self.schedule.rate.is_some() {
                let late = Instant::now().saturating_duration_since(slot.due);
                let mut meter = self.meter.borrow_mut();
                meter.late = meter.late.max(late);
            }
            {
                let mut random = self.random.borrow_mut();
                calls.extend((0..slot.count).map(|_| self.workload.generate(&mut random)));
            }
            let request = writer.write::<W>(&calls, &self.headers);
            match self.via {
                Via::Single => {
                    let sent = connection.send(request).await;
                    sent.map_err(Ended::Connection)?;
                    self.complete_singles(&slot, &calls, &mut connection).await?;
                }
                Via::Batch => {
                    let answer = connection.exchange(request).await;
                    let answer = answer.map_err(Ended::Connection)?;
                    self.complete_batch(&slot, &calls, &answer, Instant::now())?;
                }
            }
            if connection.is_closing() {
                connection = Connection::open(&self.session.address)
                    .await
                    .map_err(Ended::Connection)?;
            }
        }
        Ok(())
    }

    fn count(meter: &mut Meter, slot: &Slot, at: usize, call: &W::Call, verdict: &Verdict, ended: Instant) {
        meter.add(W::procedure(call), verdict, meter.part(ended));
        if !matches!(verdict, Verdict::Refused) {
            meter.latency(slot.due + slot.spacing * at as u32, ended, 1);
        }
    }

    /// Reads the answers to requests that were sent together.
    async fn complete_singles(&self, slot: &Slot, calls: &[W::Call], connection: &mut Connection) -> Result<(), Ended> {
        for (at, call) in calls.iter().enumerate() {
            let answer = connection.receive().await.map_err(Ended::Connection)?;
            let ended = Instant::now();
            let verdict = match answer.status {
                200 => Verdict::Committed(W::outcome_json(call, answer.body)),
                status => verdict_of::<W>(status, &serde_json::from_slice(answer.body).unwrap_or_default())?,
            };
            let mut meter = self.meter.borrow_mut();
            Self::count(&mut meter, slot, at, call, &verdict, ended);
        }
        Ok(())
    }

    fn complete_batch(&self, slot: &Slot, calls: &[W::Call], answer: &Answer<'_>, ended: Instant) -> Result<(), Ended> {
        let mut meter = self.meter.borrow_mut();
        if answer.status != 200 {
            return Err(Ended::Answer(format!(
                "POST /v1/batch: {}",
                problem(answer.status, answer.body)
            )));
        }
        let mut answered = 0;
        let mut begin = 0;
        let ends = memchr::memchr_iter(b'\n', answer.body).chain([answer.body.len()]);
        for end in ends {
            let line = &answer.body[std::mem::replace(&mut begin, end + 1)..end];
            if line.is_empty() {
                continue;
            }
            let Some(call) = calls.get(answered) else {
                return Err(Ended::Answer("a batch has more answers than calls".into()));
            };
            let verdict = if line.starts_with(b"{\"result\":") {
                Verdict::Committed(W::outcome_json(call, line))
            } else {
                verdict_of_line::<W>(call, line)?
            };
            Self::count(&mut meter, slot, answered, call, &verdict, ended);
            answered += 1;
        }
        match answered == calls.len() {
            true => Ok(()),
            false => Err(Ended::Answer(format!("{} calls have {answered} answers", calls.len()))),
        }
    }
}

/// Why a connection stopped before its time.
enum Ended {
    Connection(std::io::Error),
    Answer(String),
}

/// Any answer of a batch that does not begin with its result.
fn verdict_of_line<W: Workload>(call: &W::Call, line: &[u8]) -> Result<Verdict, Ended> {
    let answer: Value = serde_json::from_slice(line)
        .map_err(|error| Ended::Answer(format!("an answer of a batch is no JSON: {error}")))?;
    match &answer["problem"] {
        Value::Null => Ok(Verdict::Committed(W::outcome_json(
            call,
            answer["result"].to_string().as_bytes(),
        ))),
        problem => verdict_of::<W>(problem["status"].as_u64().unwrap_or(0) as u16, problem),
    }
}

fn verdict_of<W: Workload>(status: u16, problem: &Value) -> Result<Verdict, Ended> {
    let slug = problem["type"].as_str().and_then(|uri| uri.strip_prefix("/problems/"));
    let detail = problem["detail"].as_str().unwrap_or_default();
    let code = problem["code"].as_str().unwrap_or_default();
    match slug {
        Some("overloaded") => Ok(Verdict::Refused),
        Some("procedure-aborted") => Ok(match W::outcome_of_abort(code) {
            Some(outcome) => Verdict::Aborted(outcome),
            None => Verdict::Failed(format!("aborted with {code}: {detail}")),
        }),
        Some(slug @ ("procedure-trapped" | "limit-exceeded")) => Ok(Verdict::Failed(format!("{slug}: {detail}"))),
        _ => Err(Ended::Answer(format!("a call was answered with {status}: {problem}"))),
    }
}

/// Headers of a single call, beside those that all requests have.
struct CallHeaders {
    /// Names the run in its idempotency keys; None: calls have no keys.
    run: Option<u64>,
    next_key: Cell<u64>,
    timeout_ms: Option<u64>,
}

impl CallHeaders {
    fn push(&self, request: &mut Vec<u8>) {
        if let Some(run) = self.run {
            let key = self.next_key.replace(self.next_key.get() + 1);
            let _ = write!(request, "Idempotency-Key: {run:016x}-{key:012}\r\n"); // memory takes all
        }
        if let Some(timeout_ms) = self.timeout_ms {
            let _ = write!(request, "Reprise-Timeout-Ms: {timeout_ms}\r\n");
        }
    }
}

/// Makes requests in memory that is used again.
struct RequestWriter {
    via: Via,
    /// By procedure; one for batches.
    heads: Vec<Vec<u8>>,
    /// By procedure: what a line of a batch begins with.
    lines: Vec<Vec<u8>>,
    body: Vec<u8>,
    request: Vec<u8>,
}

impl RequestWriter {
    fn new<W: Workload>(via: Via, session: &Session) -> Self {
        let single = |name: &&str| session.head("POST", &format!("/v1/call/{}/{name}", W::NAME), "application/json");
        let line =
            |name: &&str| format!("{{\"module\":\"{}\",\"procedure\":\"{name}\",\"args\":", W::NAME).into_bytes();
        Self {
            via,
            heads: match via {
                Via::Single => W::PROCEDURES.iter().map(single).collect(),
                Via::Batch => vec![session.head("POST", "/v1/batch", "application/x-ndjson")],
            },
            lines: W::PROCEDURES.iter().map(line).collect(),
            body: Vec::new(),
            request: Vec::new(),
        }
    }

    fn write<W: Workload>(&mut self, calls: &[W::Call], headers: &CallHeaders) -> &[u8] {
        self.body.clear();
        let head = match self.via {
            Via::Single => {
                self.request.clear();
                for call in calls {
                    self.body.clear();
                    W::write_json(call, &mut self.body);
                    push_body(
                        &mut self.request,
                        &self.heads[W::procedure(call)],
                        &self.body,
                        |request| headers.push(request),
                    );
                }
                return &self.request;
            }
            Via::Batch => {
                for call in calls {
                    self.body.extend_from_slice(&self.lines[W::procedure(call)]);
                    W::write_json(call, &mut self.body);
                    self.body.extend_from_slice(b"}\n");
                }
                &self.heads[0]
            }
        };
        self.request.clear();
        push_body(&mut self.request, head, &self.body, |_| {});
        &self.request
    }
}

/// Runs all connections to the end of the window; the bytes that the log grew by inside it.
fn drive<W: Workload>(
    runtime: &Runtime,
    load: &Rc<Load<W>>,
    options: &Options,
    on_progress: OnProgress<'_>,
) -> Result<u64, BenchError> {
    let local = LocalSet::new();
    let tasks: Vec<_> = (0..load.connections)
        .map(|_| local.spawn_local(load.clone().connection()))
        .collect();
    let watched = local.run_until(watch(load, options, on_progress));
    let log_bytes = runtime.block_on(watched)?;
    runtime.block_on(local.run_until(async {
        for task in tasks {
            task.await.map_err(|error| failed("run a connection", error))??;
        }
        Ok(log_bytes)
    }))
}

/// Reports the progress, and reads the size of the log when the window opens and closes.
async fn watch<W: Workload>(load: &Load<W>, options: &Options, on_progress: OnProgress<'_>) -> Result<u64, BenchError> {
    let talk = |error| failed(&format!("talk to {}", load.session.address), error);
    let mut connection = Connection::open(&load.session.address).await.map_err(talk)?;
    let (begun, closes) = (load.schedule.begun, load.schedule.closes);
    let opens = begun + Duration::from_secs_f64(options.warmup_s);
    let mut first = None;
    loop {
        let now = Instant::now();
        let is_over = now >= closes || load.busy.get() == 0;
        if first.is_none() && now >= opens {
            first = Some(log_bytes(&mut connection, &load.session).await?);
        }
        if is_over {
            let end = log_bytes(&mut connection, &load.session).await?;
            return Ok(end - first.unwrap_or(end));
        }
        on_progress(Progress::Running {
            elapsed: now - begun,
            total: closes - begun,
            committed: load.meter.borrow().whole.committed,
        });
        let next = if first.is_none() { opens } else { closes };
        tokio::time::sleep(PROGRESS_EVERY.min(next.saturating_duration_since(now))).await;
    }
}

/// Bytes written to the log since the server was started.
async fn log_bytes(connection: &mut Connection, session: &Session) -> Result<u64, BenchError> {
    let mut request = Vec::new();
    push_body(
        &mut request,
        &session.head("GET", "/metrics", "text/plain"),
        b"",
        |_| {},
    );
    let answer = connection
        .exchange(&request)
        .await
        .map_err(|error| failed("ask for the metrics", error))?;
    let text = String::from_utf8_lossy(answer.body);
    let mut values = text.lines().filter_map(|line| line.strip_prefix(FLUSHED_BYTES));
    let value = values.find_map(|value| value.trim().parse().ok());
    value.ok_or_else(|| BenchError::Failed(format!("the server's metrics lack {FLUSHED_BYTES}")))
}
