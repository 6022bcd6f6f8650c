//! A connection while it carries plain calls. The server takes the calls ahead of their answers, all that one read brings, and writes the
//! answers together.
//!
//! Hyper serves a connection's requests one after the other, and each waits for its durable commit. A pipeline hands all calls that have
//! arrived to the engine as one batch, and answers in their order. It knows nothing else of HTTP. At the first request that is no plain
//! call, it answers the calls that it has taken. From then on the connection is hyper's, and that request comes first.
//!
//! The pipeline bounds the memory of a client: calls on their way, bytes of their requests, answers not yet written. The rest of the input
//! stays in the socket.

pub(crate) mod answer;
pub(crate) mod request;
mod run;
mod take;

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    io,
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use reprise_base::Grant;
use reprise_router::Stream;
use tokio::{
    io::{AsyncRead, AsyncWriteExt, ReadBuf},
    sync::watch,
    time::{Instant, Sleep, sleep_until},
};

use crate::{
    limits::{
        BYTES_COUNTED, COUNTED_STEP_BYTES, PIPELINE_ANSWER_BYTES, PIPELINE_BYTES_IN_FLIGHT_MAX,
        PIPELINE_CALLS_IN_FLIGHT_MAX, PIPELINE_PARTIAL_WAIT_MAX, PIPELINE_REQUEST_BYTES_MAX, REQUEST_BYTES_SURE,
    },
    stall::StallGuard,
    state::AppState,
    submission::named_safety,
    texts::Room,
};
use answer::Answers;
use request::KnownHead;
use run::{AnswerProgress, CallRun};
use take::TakeOutcome;

const READ_BYTES: usize = 32 << 10;
/// Longest head that is remembered to recognise the next one like it.
const KNOWN_HEAD_BYTES_MAX: usize = 1 << 10;
/// Buffers longer than this are given back once they were written: a connection that is kept alive holds little.
const KEPT_BYTES_MAX: usize = 8 << 10;

const _: () = assert!(PIPELINE_REQUEST_BYTES_MAX <= PIPELINE_BYTES_IN_FLIGHT_MAX);

/// Serves calls as long as there is nothing else. Returns the stream if hyper has to continue with it.
pub async fn serve(stream: StallGuard, state: &AppState) -> Option<StallGuard> {
    let mut pipeline = Pipeline::new(stream, state.clone());
    let end = poll_fn(|cx| pipeline.poll(cx)).await;
    let Pipeline { mut stream, input, .. } = pipeline;
    match end {
        PipelineEnd::Over => {
            let _ = stream.shutdown().await; // the peer may have gone already, or take nothing until its time is over
            None
        }
        PipelineEnd::Broken(error) => {
            tracing::debug!(%error, "connection ended");
            None
        }
        PipelineEnd::Other => {
            stream.put_back(input);
            Some(stream)
        }
    }
}

enum PipelineEnd {
    Over,
    Broken(io::Error),
    /// There is a request that is hyper's.
    Other,
}

/// The input that the peer may still send.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Intake {
    Open,
    /// The peer sends nothing more.
    Ended,
    /// The input is no plain call, or does not become one.
    Other,
    /// The server stops. Calls that have not begun get no answer.
    Closed,
}

/// The event that the pipeline waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PipelineWait {
    /// The engine, or the peer to take its answers: others watch these.
    Not,
    /// A request.
    Idle,
    /// The rest of one.
    Part,
}

struct Pipeline {
    state: AppState,
    stream: StallGuard,
    intake: Intake,
    /// Read and not yet taken.
    input: Vec<u8>,
    /// The runs, in the order of their requests.
    runs: VecDeque<CallRun>,
    /// The last run that was answered, for its memory.
    spare: Option<CallRun>,
    /// Keeps their calls in order in the engine.
    order: Stream,
    /// Weight of the calls in `runs`, and bytes of their requests.
    in_flight: usize,
    in_flight_bytes: usize,
    /// Bytes of the requests, counted among those of all connections once they are not few.
    grant: Option<Grant>,
    /// Answers, written up to `written`. They stay until the stream has flushed them.
    out: Vec<u8>,
    written: usize,
    body: Vec<u8>,
    /// Room for the answers in `out`, held as long as they are.
    room: Option<Room>,
    known: Option<KnownHead>,
    quiet: PipelineWait,
    since: Instant,
    timer: Option<Pin<Box<Sleep>>>,
    draining: watch::Receiver<bool>,
    /// Wakes the pipeline when the server begins to drain.
    drain: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_drain_watched: bool,
}

/// How far a write or a read got.
enum IoProgress {
    On,
    Blocked,
}

impl Pipeline {
    fn new(stream: StallGuard, state: AppState) -> Self {
        let draining = state.draining.subscribe();
        let mut drained = state.draining.subscribe();
        let drain = async move {
            let _ = drained.wait_for(|draining| *draining).await; // the sender lives as long as the state
        };
        Self {
            order: state.router.new_stream(),
            state,
            stream,
            intake: Intake::Open,
            input: Vec::new(),
            runs: VecDeque::new(),
            spare: None,
            in_flight: 0,
            in_flight_bytes: 0,
            grant: None,
            out: Vec::new(),
            written: 0,
            body: Vec::new(),
            room: None,
            known: None,
            quiet: PipelineWait::Not,
            since: Instant::now(),
            timer: None,
            draining,
            drain: Box::pin(drain),
            is_drain_watched: false,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<PipelineEnd> {
        self.watch_drain(cx);
        loop {
            let is_full = self.take_answers(cx);
            match self.poll_write(cx) {
                Ok(IoProgress::On) if is_full => continue,
                Ok(_) => {}
                Err(error) => return Poll::Ready(PipelineEnd::Broken(error)),
            }
            if self.runs.is_empty()
                && self.out.is_empty()
                && let Some(end) = self.end()
            {
                return Poll::Ready(end);
            }
            if self.take_calls() {
                self.quiet = PipelineWait::Not;
                continue;
            }
            match self.poll_read(cx) {
                Ok(IoProgress::On) => {}
                Ok(IoProgress::Blocked) if self.is_late(cx) => {}
                Ok(IoProgress::Blocked) => return Poll::Pending,
                Err(error) => return Poll::Ready(PipelineEnd::Broken(error)),
            }
        }
    }

    /// Polled once, the future keeps this task's waker; from then on the version alone shows a change.
    fn watch_drain(&mut self, cx: &mut Context<'_>) {
        let is_draining = match self.is_drain_watched {
            true => self.draining.has_changed().unwrap_or(true),
            false => self.drain.as_mut().poll(cx).is_ready(),
        };
        self.is_drain_watched = true;
        if is_draining {
            self.intake = Intake::Closed;
        }
    }

    /// Returns the end of a connection with nothing on its way.
    fn end(&self) -> Option<PipelineEnd> {
        match self.intake {
            Intake::Open => None,
            Intake::Closed => Some(PipelineEnd::Over),
            Intake::Ended if self.input.is_empty() => Some(PipelineEnd::Over),
            Intake::Ended | Intake::Other => Some(PipelineEnd::Other),
        }
    }

    /// True if more calls may be on their way beside calls of this weight and this many bytes.
    fn has_room_beside(&self, weight: usize, bytes: usize) -> bool {
        !self.runs.front().is_some_and(CallRun::is_coalesced)
            && self.in_flight + weight < PIPELINE_CALLS_IN_FLIGHT_MAX
            && self.has_room_for_bytes(self.in_flight_bytes + bytes)
            && self.out.len() < PIPELINE_ANSWER_BYTES
    }

    /// True while there is room for more bytes of requests. Once all connections together reach the limit, each may have few.
    fn has_room_for_bytes(&self, bytes: usize) -> bool {
        let most = PIPELINE_BYTES_IN_FLIGHT_MAX;
        bytes < REQUEST_BYTES_SURE as usize || bytes < most && self.state.requests().has_room(most as u64)
    }

    /// Counts the requests on their way, and the beginning of the next one, among those of all connections.
    fn count_requests(&mut self) {
        let bytes = match (self.in_flight_bytes + self.input.len()) as u64 {
            ..=BYTES_COUNTED => 0,
            bytes => bytes.next_multiple_of(COUNTED_STEP_BYTES),
        };
        match (bytes, &mut self.grant) {
            (0, grant) => *grant = None,
            (bytes, Some(grant)) if grant.bytes() == bytes => {}
            (bytes, Some(grant)) => grant.resize(bytes),
            (bytes, grant) => *grant = Some(self.state.requests().take(bytes)),
        }
    }

    /// Counts the answers that are here among those of all connections.
    fn count_answers(&mut self) {
        let bytes = self.out.capacity() + self.body.capacity();
        match &mut self.room {
            Some(room) => room.fit(bytes),
            // The kept part of the buffers is not counted anew with each answer.
            None if self.out.len() as u64 <= BYTES_COUNTED => {}
            None => self.room = self.state.texts.counted(bytes),
        }
    }

    /// Hands calls that were read to the engine, while there is room. True: there is a new run.
    fn take_calls(&mut self) -> bool {
        let is_read = matches!(self.intake, Intake::Open | Intake::Ended);
        if !is_read || self.input.is_empty() || !self.has_room_beside(0, 0) {
            return false;
        }
        let mut run = self.spare.take().unwrap_or_else(|| CallRun::in_order(self.order));
        let deployed = self.state.router.deployed();
        let input = std::mem::take(&mut self.input);
        while run.bytes() < input.len() && !run.asks_safety() && self.has_room_beside(run.weight, run.held_bytes()) {
            match self.take_call(&input[run.bytes()..], &mut run, &deployed) {
                TakeOutcome::Call => {}
                TakeOutcome::Part | TakeOutcome::Later => break,
                TakeOutcome::Other => {
                    self.intake = Intake::Other;
                    break;
                }
            }
        }
        if run.is_empty() {
            (self.input, self.spare) = (input, Some(run));
            if self.input.len() as u64 > BYTES_COUNTED {
                self.count_requests();
            }
            return self.intake == Intake::Other;
        }
        run.text = input;
        self.input = run.text.split_off(run.bytes());
        // With other runs on their way, a coalescer might leave after calls that were submitted behind it.
        run.submit(&self.state, &deployed, self.runs.is_empty());
        run.counted_bytes = run.held_bytes();
        self.in_flight += run.weight;
        self.in_flight_bytes += run.counted_bytes;
        self.count_requests();
        self.runs.push_back(run);
        true
    }

    /// Takes the answers that are there, in order. True: stopped by their size, and there may be more.
    fn take_answers(&mut self, cx: &mut Context<'_>) -> bool {
        let mut left = self.runs.len();
        let reports_age = self.state.router.reports_age();
        let safety = Some(named_safety(&self.state));
        while let Some(run) = self.runs.front_mut() {
            let is_last = left == 1 && self.intake == Intake::Closed;
            let mut answers = Answers {
                out: &mut self.out,
                body: &mut self.body,
                room: &mut self.room,
                router: reports_age.then_some(&self.state.router),
                safety,
            };
            let progress = run.poll(cx, &self.state, &mut answers, is_last);
            let (weight, bytes) = (run.weight, run.counted_bytes);
            self.count_answers();
            match progress {
                AnswerProgress::Done => {}
                AnswerProgress::Full => return true,
                AnswerProgress::Waits => return false,
            }
            self.in_flight -= weight;
            self.in_flight_bytes -= bytes;
            if let Some(run) = self.runs.pop_front() {
                self.keep(run);
            }
            self.count_requests();
            left -= 1;
        }
        false
    }

    /// Keeps the memory of a run that was answered.
    fn keep(&mut self, mut run: CallRun) {
        let mut text = run.clear();
        if self.input.is_empty() && text.capacity() <= KEPT_BYTES_MAX / 8 {
            text.clear();
            self.input = text;
        }
        self.spare = Some(run);
    }

    /// Sends the answers in `out`, and gives back their memory and their room. `On`: there are none left, neither here nor in the stream.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> io::Result<IoProgress> {
        if self.out.is_empty() {
            return Ok(IoProgress::On);
        }
        match self.stream.poll_send(cx, &self.out, &mut self.written) {
            Poll::Ready(sent) => sent?,
            Poll::Pending => return Ok(IoProgress::Blocked),
        }
        self.written = 0;
        self.room = None;
        for buffer in [&mut self.out, &mut self.body] {
            buffer.clear();
            buffer.shrink_to(KEPT_BYTES_MAX);
        }
        Ok(IoProgress::On)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> io::Result<IoProgress> {
        if self.intake != Intake::Open || !self.has_room_beside(0, 0) {
            return Ok(IoProgress::Blocked);
        }
        let mut space = [const { MaybeUninit::uninit() }; READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut space);
        match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
            Poll::Pending => return Ok(IoProgress::Blocked),
            Poll::Ready(Err(error)) => return Err(error),
            Poll::Ready(Ok(())) => {}
        }
        if buffer.filled().is_empty() {
            self.intake = Intake::Ended;
        }
        self.input.extend_from_slice(buffer.filled());
        Ok(IoProgress::On)
    }

    /// True once a request has been waited for, or its rest, for too long: the connection ends, or hyper has it.
    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        let is_idle = self.runs.is_empty() && self.out.is_empty() && self.intake == Intake::Open;
        let (quiet, wait_max) = match (is_idle, self.input.is_empty()) {
            (false, _) => (PipelineWait::Not, Duration::MAX),
            (true, true) => (PipelineWait::Idle, self.state.limits.header_wait),
            (true, false) => (
                PipelineWait::Part,
                PIPELINE_PARTIAL_WAIT_MAX.min(self.state.limits.header_wait),
            ),
        };
        if quiet != self.quiet {
            (self.quiet, self.since) = (quiet, Instant::now());
        }
        if quiet == PipelineWait::Not {
            return false;
        }
        let deadline = self.since + wait_max;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        // One that ends too early is cheaper than one that is set for every request.
        if timer.deadline() > deadline || timer.is_elapsed() {
            timer.as_mut().reset(deadline);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= deadline {
                self.intake = match quiet {
                    PipelineWait::Part => Intake::Other,
                    _ => Intake::Closed,
                };
                return true;
            }
            timer.as_mut().reset(deadline);
        }
        false
    }
}
