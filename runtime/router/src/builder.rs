//! A client's batch on its way in (`BatchBuilder`) and its answers on their way out (`BatchReply`).

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use reprise_base::{Lsn, PartitionId, TxnId, limits::IDEMPOTENCY_SCOPE_BYTES_MAX};
use reprise_partition::{CallBatch, Deadline, SlotOutcome, Stream};
use reprise_txn::{Bound, Deployed, Failure, Module};

use crate::{
    idempotency::{Begin, Fingerprint, Remembered, ScopedKey},
    router::Router,
};

/// What became of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyOutcome {
    Committed,
    Failed(Failure),
    /// The module version was replaced meanwhile: encode the call again for the one in service and submit it again.
    Superseded,
    Overloaded {
        retry_after_s: u32,
    },
    /// The idempotency key was used with another procedure or other arguments.
    IdempotencyConflict,
    /// There is no room to remember an outcome under another key. The call did not run.
    IdempotencyFull,
    /// The log can't be written; nothing of the call was kept.
    LogUnavailable(Arc<str>),
    /// The log failed while it wrote the call's record: whether that is kept shows after a restart.
    OutcomeUnknown(Arc<str>),
    /// The node was opened for reads alone.
    ReadOnly(Arc<str>),
    /// The procedure is kept from running.
    Quarantined(Arc<str>),
    /// The node is recovering or stopping.
    Unavailable(Arc<str>),
}

/// One answer of a [`BatchReply`].
pub struct CallReply<'a> {
    pub outcome: &'a ReplyOutcome,
    /// Encoded by the procedure's result type; empty unless committed.
    pub result: &'a [u8],
    /// The module version that encoded `result`, where it is another than the call was made for.
    pub recorded_by: Option<&'a Arc<Module>>,
    pub txn_id: TxnId,
    pub lsn: Lsn,
    /// None for a multi-partition call.
    pub partition: Option<PartitionId>,
    /// True when the answer is that of an earlier call with the same idempotency key.
    pub replayed: bool,
}

/// Where the answer to a call will be.
#[derive(Clone, Copy)]
enum Place {
    /// Part and slot.
    Slot(u32, u32),
    /// In `ready`, from the start or once the first call with the key has ended.
    Ready(u32),
}

/// An answer that comes from no slot of this batch.
enum Ready {
    Refused(ReplyOutcome),
    Remembered(Remembered),
    /// Filled when the first call with this key ends.
    Awaited(Option<Arc<str>>, Box<str>),
}

/// A part of a batch: calls of one partition, or one multi-partition call.
pub(crate) struct Part {
    pub batch: Box<CallBatch>,
    pub touched: Bound,
}

/// Calls of one client, in order. Calls of one partition run in the order in which they were added, and a
/// multi-partition call after all that were added before it.
pub struct BatchBuilder {
    router: Router,
    deployed: Arc<Deployed>,
    parts: Vec<Part>,
    /// Positions in `parts` that still take calls; none is older than the last multi-partition call.
    open: Vec<usize>,
    places: Vec<Place>,
    ready: Vec<Ready>,
    args: Vec<u8>,
    stream: Option<Stream>,
    /// Within which the idempotency keys of its calls count.
    scope: Option<Arc<str>>,
    /// Of the calls that are added now, by the node's clock.
    deadline_ns: Option<u64>,
    /// Of calls that have one, by their index.
    deadlines: Vec<(usize, Arc<Deadline>)>,
    is_bounded: bool,
    submitted: bool,
}

impl BatchBuilder {
    pub fn new(deployed: Arc<Deployed>, router: &Router) -> Self {
        Self {
            router: router.clone(),
            deployed,
            parts: Vec::new(),
            open: Vec::new(),
            places: Vec::new(),
            ready: Vec::new(),
            args: Vec::new(),
            stream: None,
            scope: None,
            deadline_ns: None,
            deadlines: Vec::new(),
            is_bounded: false,
            submitted: false,
        }
    }

    /// Its calls keep their order with those of other batches of the stream.
    pub fn in_stream(mut self, stream: Stream) -> Self {
        self.stream = Some(stream);
        self
    }

    /// The idempotency keys of calls that are added from now on count within this scope alone. It has 255 bytes at most.
    pub fn set_scope(&mut self, scope: Option<Arc<str>>) {
        let bytes = scope.as_deref().map_or(0, str::len);
        assert!(bytes <= IDEMPOTENCY_SCOPE_BYTES_MAX, "a scope is a token's name");
        self.scope = scope;
    }

    /// The clients of calls that are added from now on wait until then (`Router::deadline_in`); none: for ever.
    pub fn set_deadline(&mut self, deadline_ns: Option<u64>) {
        self.deadline_ns = deadline_ns;
    }

    /// The deadlines of the calls so far, by index. Who expires one answers for the call: it does not begin any more.
    pub fn take_deadlines(&mut self) -> Vec<(usize, Arc<Deadline>)> {
        std::mem::take(&mut self.deadlines)
    }

    fn add_deadline(&mut self) -> Option<Arc<Deadline>> {
        let deadline = Deadline::new(self.deadline_ns?);
        self.deadlines.push((self.places.len(), deadline.clone()));
        Some(deadline)
    }

    /// Its results count among those that are on their way to clients: where those take all that they may, its calls are refused.
    pub fn bounded(mut self) -> Self {
        self.is_bounded = true;
        self
    }

    /// The modules for which the calls are encoded.
    pub fn deployed(&self) -> &Arc<Deployed> {
        &self.deployed
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Makes memory for so many bytes of results of each of its parts, and touches it: the engine then takes none for them.
    pub fn make_room_for_results(&mut self, bytes: usize) {
        for part in &mut self.parts {
            part.batch.results.resize(bytes, 0);
            part.batch.results.clear();
        }
    }

    /// Adds a call of `module`'s procedure number `procedure`; `encode` appends the encoded arguments. Returns its index.
    /// Err: what `encode` found; nothing is added.
    pub fn push<E>(
        &mut self,
        module: &Arc<Module>,
        procedure: usize,
        idempotency_key: Option<&str>,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut args = std::mem::take(&mut self.args);
        args.clear();
        let encoded = encode(&mut args);
        if encoded.is_ok() {
            self.add(module, procedure, idempotency_key, &args);
        }
        self.args = args;
        encoded.map(|()| self.places.len() - 1)
    }

    fn add(&mut self, module: &Arc<Module>, procedure: usize, key: Option<&str>, args: &[u8]) {
        if let Some(reason) = self.router.quarantined(module.id, procedure) {
            return self.place_ready(Ready::Refused(ReplyOutcome::Quarantined(reason)));
        }
        // What writes nothing may run again: nothing is kept of it.
        let key = key.filter(|_| !module.schema.procedures[procedure].read_only);
        if let Some(key) = key
            && let Some(ready) = self.begin_key(module, procedure, key, args)
        {
            if matches!(ready, Ready::Awaited(..)) {
                self.add_deadline(); // what it waits for begins or not, whoever waits
            }
            return self.place_ready(ready);
        }
        let partitions_count = self.router.partitions_count();
        let touched = match module.route(procedure, args, partitions_count) {
            Ok(touched) => touched,
            Err(error) => unreachable!("arguments are encoded by their schema: {error}"),
        };
        let part = match touched {
            Bound::One(partition) => self.open_part(partition),
            several => {
                self.open.clear();
                self.add_part(None, several)
            }
        };
        let deadline = self.add_deadline();
        let batch = &mut self.parts[part].batch;
        batch.push(module.id, procedure as u16, args, key);
        if let Some(deadline) = deadline {
            batch.set_deadline(deadline);
        }
        self.places.push(Place::Slot(part as u32, batch.calls.len() as u32 - 1));
    }

    /// The answer to a call whose key was seen before, or None where it is to run.
    fn begin_key(&self, module: &Arc<Module>, procedure: usize, key: &str, args: &[u8]) -> Option<Ready> {
        let name = &module.schema.procedures[procedure].name;
        let fingerprint = Fingerprint::new(&module.name, name, args);
        match self.router.idempotency().begin(scoped(&self.scope, key), fingerprint) {
            Begin::Run => None,
            Begin::Done(outcome) => Some(Ready::Remembered(outcome)),
            Begin::Conflict => Some(Ready::Refused(ReplyOutcome::IdempotencyConflict)),
            Begin::Running => Some(Ready::Awaited(self.scope.clone(), key.into())),
            Begin::Full => Some(Ready::Refused(ReplyOutcome::IdempotencyFull)),
        }
    }

    fn place_ready(&mut self, ready: Ready) {
        self.places.push(Place::Ready(self.ready.len() as u32));
        self.ready.push(ready);
    }

    fn open_part(&mut self, partition: PartitionId) -> usize {
        let found = self.open.iter().position(|&part| {
            let batch = &self.parts[part].batch;
            batch.partition == Some(partition) && batch.scope == self.scope
        });
        if let Some(at) = found {
            let part = self.open[at];
            if !self.parts[part].batch.is_full() {
                return part;
            }
            self.open.swap_remove(at);
        }
        let part = self.add_part(Some(partition), Bound::One(partition));
        self.open.push(part);
        part
    }

    fn add_part(&mut self, partition: Option<PartitionId>, touched: Bound) -> usize {
        let mut batch = Box::new(CallBatch::new(partition));
        batch.scope = self.scope.clone();
        self.parts.push(Part { batch, touched });
        self.parts.len() - 1
    }

    /// Hands the parts to `dispatch` one after the other; `done` is called once all are answered.
    pub(crate) fn submit(mut self, done: Box<dyn FnOnce(BatchReply) + Send>, mut dispatch: impl FnMut(Part)) {
        self.submitted = true;
        let mut parts = std::mem::take(&mut self.parts);
        if self.stream.is_none() && parts.iter().any(|part| part.batch.partition.is_none()) {
            self.stream = Some(self.router.new_stream());
        }
        for part in &mut parts {
            part.batch.stream = self.stream;
            part.batch.answers = self.is_bounded.then(|| self.router.answers().clone());
        }
        let ready = std::mem::take(&mut self.ready);
        let awaited: Vec<(usize, Option<Arc<str>>, Box<str>)> = ready
            .iter()
            .enumerate()
            .filter_map(|(at, ready)| match ready {
                Ready::Awaited(scope, key) => Some((at, scope.clone(), key.clone())),
                _ => None,
            })
            .collect();
        let reply = BatchReply {
            parts: Vec::with_capacity(parts.len()),
            outcomes: Vec::new(),
            places: std::mem::take(&mut self.places),
            ready,
        };
        if let (true, [_]) = (awaited.is_empty(), &parts[..]) {
            let part = parts.into_iter().next().expect("one part");
            return dispatch(answer_alone(&self.router, part, reply, done));
        }
        let collector = Arc::new(Collector {
            left: AtomicUsize::new(parts.len() + awaited.len() + 1),
            state: Mutex::new(Some((reply, done))),
            slots: parts.iter().map(|_| Mutex::new(None)).collect(),
        });
        for (at, mut part) in parts.into_iter().enumerate() {
            let (collector, router) = (collector.clone(), self.router.clone());
            part.batch.done = Some(Box::new(move |batch| {
                router.settle_keys(&batch);
                *collector.slots[at].lock().expect("held for a store alone") = Some(batch);
                collector.arrive();
            }));
            dispatch(part);
        }
        for (at, scope, key) in awaited {
            let collector = collector.clone();
            let waiter = Box::new(move |answer| {
                collector.fill_ready(at, answer);
                collector.arrive();
            });
            self.router.idempotency().wait(scoped(&scope, &key), waiter);
        }
        collector.arrive();
    }
}

fn scoped<'k>(scope: &'k Option<Arc<str>>, key: &'k str) -> ScopedKey<'k> {
    let scope = scope.as_deref().unwrap_or("");
    ScopedKey { scope, key }
}

/// The common case of one part: no collector.
fn answer_alone(
    router: &Router,
    mut part: Part,
    mut reply: BatchReply,
    done: Box<dyn FnOnce(BatchReply) + Send>,
) -> Part {
    let router = router.clone();
    part.batch.done = Some(Box::new(move |batch| {
        router.settle_keys(&batch);
        reply.take_part(batch);
        done(reply);
    }));
    part
}

impl Drop for BatchBuilder {
    /// A batch that is dropped unsent frees the keys that it had begun.
    fn drop(&mut self) {
        if self.submitted {
            return;
        }
        for part in &self.parts {
            for (_, key) in part.batch.keys() {
                let key = scoped(&part.batch.scope, key);
                self.router.idempotency().release(key, &ReplyOutcome::Superseded);
            }
        }
    }
}

type Finish = (BatchReply, Box<dyn FnOnce(BatchReply) + Send>);

/// Waits for all parts of a batch.
struct Collector {
    left: AtomicUsize,
    state: Mutex<Option<Finish>>,
    slots: Vec<Mutex<Option<Box<CallBatch>>>>,
}

impl Collector {
    fn fill_ready(&self, at: usize, answer: Result<Remembered, ReplyOutcome>) {
        let mut state = self.state.lock().expect("no code panics under this lock");
        let (reply, _) = state.as_mut().expect("taken by the last arrival alone");
        reply.ready[at] = match answer {
            Ok(outcome) => Ready::Remembered(outcome),
            Err(refusal) => Ready::Refused(refusal),
        };
    }

    fn arrive(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let finish = self.state.lock().expect("no code panics under this lock").take();
        let (mut reply, done) = finish.expect("the last arrival comes once");
        for slot in &self.slots {
            let batch = slot.lock().expect("held for a store alone").take();
            reply.take_part(batch.expect("every part has arrived"));
        }
        done(reply);
    }
}

/// The answers to a batch, by the index that `BatchBuilder::push` returned.
pub struct BatchReply {
    parts: Vec<Box<CallBatch>>,
    /// Outcomes of each part's slots, in the words of this interface.
    outcomes: Vec<Vec<ReplyOutcome>>,
    places: Vec<Place>,
    ready: Vec<Ready>,
}

static COMMITTED: ReplyOutcome = ReplyOutcome::Committed;
static SUPERSEDED: ReplyOutcome = ReplyOutcome::Superseded;

impl BatchReply {
    /// Bytes of the results of that part whose results are longest.
    pub fn result_bytes(&self) -> usize {
        let parts = self.parts.iter();
        parts.map(|part| part.results.len()).max().unwrap_or(0)
    }

    fn take_part(&mut self, mut batch: Box<CallBatch>) {
        let all_committed = batch.calls.iter().all(|slot| slot.outcome == SlotOutcome::Committed);
        let outcomes = match all_committed {
            true => Vec::new(),
            false => batch
                .calls
                .iter_mut()
                .map(|slot| outcome_of(&mut slot.outcome))
                .collect(),
        };
        self.outcomes.push(outcomes);
        self.parts.push(batch);
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The answer to call `index`. Panics where there was no such call.
    pub fn get(&self, index: usize) -> CallReply<'_> {
        match self.places[index] {
            Place::Slot(part, slot) => self.of_slot(part as usize, slot as usize),
            Place::Ready(at) => self.of_ready(&self.ready[at as usize]),
        }
    }

    fn of_slot(&self, part: usize, at: usize) -> CallReply<'_> {
        let batch = &self.parts[part];
        let slot = &batch.calls[at];
        let outcome = self.outcomes[part].get(at).unwrap_or(&COMMITTED);
        CallReply {
            outcome,
            result: batch.result(at),
            recorded_by: None,
            txn_id: slot.txn_id,
            lsn: slot.lsn,
            partition: batch.partition,
            replayed: false,
        }
    }

    fn of_ready<'a>(&'a self, ready: &'a Ready) -> CallReply<'a> {
        let (outcome, remembered) = match ready {
            Ready::Refused(outcome) => (outcome, None),
            Ready::Remembered(remembered) => (&COMMITTED, Some(remembered)),
            Ready::Awaited(..) => (&SUPERSEDED, None),
        };
        CallReply {
            outcome,
            result: remembered.map_or(&[], |r| &r.result),
            recorded_by: remembered.map(|r| &r.module),
            txn_id: remembered.map_or(TxnId(0), |r| r.txn_id),
            lsn: remembered.map_or(Lsn(0), |r| r.lsn),
            partition: remembered.and_then(|r| r.partition),
            replayed: remembered.is_some(),
        }
    }
}

/// A slot's outcome in the words of this interface.
pub(crate) fn outcome_of(outcome: &mut SlotOutcome) -> ReplyOutcome {
    match std::mem::take(outcome) {
        SlotOutcome::Committed => ReplyOutcome::Committed,
        SlotOutcome::Failed(failure) => ReplyOutcome::Failed(*failure),
        SlotOutcome::Superseded => ReplyOutcome::Superseded,
        SlotOutcome::LogUnavailable(reason) => ReplyOutcome::LogUnavailable(reason),
        SlotOutcome::OutcomeUnknown(reason) => ReplyOutcome::OutcomeUnknown(reason),
        SlotOutcome::ReadOnly(reason) => ReplyOutcome::ReadOnly(reason),
        SlotOutcome::Overloaded { retry_after_s } => ReplyOutcome::Overloaded { retry_after_s },
        SlotOutcome::AnswersFull => ReplyOutcome::Overloaded { retry_after_s: 1 },
        SlotOutcome::Unavailable(reason) => ReplyOutcome::Unavailable(reason),
        SlotOutcome::Waiting => unreachable!("every call of a finished batch has run"),
    }
}
