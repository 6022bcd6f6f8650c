//! A client's batch on its way in (`BatchBuilder`) and its answers on their way out (`BatchReply`).

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use reprise_base::{Lsn, PartitionId, Role, TxnId};
use reprise_partition::{CallBatch, CallKey, CallTimes, Caller, Deadline, ReplyOutcome, Stream};
use reprise_txn::{CallPartitions, Deployed, Module, call_hash};

use crate::{
    key_entry::{Begin, CallDigests, CommittedOutcome},
    ready::{AwaitedOutcome, Ready},
    router::Router,
    scoped_key::ScopedKey,
};

/// One answer of a [`BatchReply`].
pub struct CallReply<'a> {
    pub outcome: &'a ReplyOutcome,
    /// Result, encoded by the procedure's type; empty unless committed.
    pub result: &'a [u8],
    /// The module version that encoded `result`, if it is not the one that the call was made for.
    pub recorded_by: Option<&'a Arc<Module>>,
    pub txn_id: TxnId,
    pub lsn: Lsn,
    /// None for a multi-partition call.
    pub partition: Option<PartitionId>,
    /// True when the answer is that of an earlier call with the same idempotency key.
    pub replayed: bool,
}

/// The place of a call's future answer.
#[derive(Clone, Copy)]
enum AnswerPlace {
    /// Part and slot that answer the call.
    Slot(u32, u32),
    /// Position in `ready`. The answer is there from the start, or once the first call with the key has ended.
    Ready(u32),
}

/// The terms under which a call was added, beside its procedure and arguments.
#[derive(Clone, Copy)]
pub struct CallTerms<'a> {
    pub key: Option<&'a str>,
    pub caller: Option<&'a Caller>,
    /// Time of the node's clock until which its client waits. None: for ever.
    pub deadline_ns: Option<u64>,
}

/// The callback that gets the whole reply once, on an engine or log thread. It must only hand the reply over.
pub type OnReply = Box<dyn FnOnce(BatchReply) + Send + Sync>;

/// Fuel of single-partition calls that run while a batch's calls of several partitions hold their partition. These calls stand between the
/// others. The fuel is worth some microseconds, less than to hand the partitions over once more.
const BETWEEN_FUEL_MAX: u64 = 128;
/// The least fuel that counts for a call in that limit.
const CALL_FUEL_MIN: u64 = 8;

/// A part of a batch: calls of one partition, or calls of several partitions with those between them.
pub(crate) struct BatchPart {
    pub batch: Box<CallBatch>,
    pub touched: CallPartitions,
}

impl BatchPart {
    fn touches(&self, id: PartitionId) -> bool {
        match &self.touched {
            CallPartitions::One(one) => *one == id,
            CallPartitions::Several(list) => list.contains(&id),
            CallPartitions::All => true,
        }
    }
}

/// Calls of one client, in order. Calls of one partition run in the order in which they were added. A multi-partition call runs after all
/// calls that were added before it.
pub struct BatchBuilder {
    router: Router,
    deployed: Arc<Deployed>,
    parts: Vec<BatchPart>,
    /// Positions in `parts` that still take calls. None is older than the last multi-partition call.
    open: Vec<usize>,
    /// The part of several partitions that still takes calls. It comes with the fuel of the single-partition calls since the last call of
    /// several.
    open_multi: Option<(usize, u64)>,
    places: Vec<AnswerPlace>,
    ready: Vec<Ready>,
    args: Vec<u8>,
    stream: Option<Stream>,
    /// The caller of calls that are added now. None without tokens.
    caller: Option<Caller>,
    /// Deadline of the calls that are added now, by the node's clock.
    deadline_ns: Option<u64>,
    /// Deadlines of the calls that have one, by the calls' index.
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
            open_multi: None,
            places: Vec::new(),
            ready: Vec::new(),
            args: Vec::new(),
            stream: None,
            caller: None,
            deadline_ns: None,
            deadlines: Vec::new(),
            is_bounded: false,
            submitted: false,
        }
    }

    /// Keeps the order of its calls with those of other batches of the stream.
    pub fn in_stream(mut self, stream: Stream) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Sets the caller of calls that are added from now on ([`Router::caller`]).
    pub fn set_caller(&mut self, caller: Option<Caller>) {
        self.caller = caller;
    }

    /// Sets the time until which clients of later calls wait (`Router::deadline_in`). None: for ever.
    pub fn set_deadline(&mut self, deadline_ns: Option<u64>) {
        self.deadline_ns = deadline_ns;
    }

    /// Returns the deadlines of the added calls, by index. A thread that expires one answers for the call, which does not begin any more.
    pub fn take_deadlines(&mut self) -> Vec<(usize, Arc<Deadline>)> {
        std::mem::take(&mut self.deadlines)
    }

    fn add_deadline(&mut self) -> Option<Arc<Deadline>> {
        let deadline = Deadline::new(self.deadline_ns?);
        self.deadlines.push((self.places.len(), deadline.clone()));
        Some(deadline)
    }

    /// Bounds its results by the memory for results on their way to clients. If those take all of it, the calls of this batch are refused.
    pub fn bounded(mut self) -> Self {
        self.is_bounded = true;
        self
    }

    /// Returns the router that takes its calls.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Returns the modules for which the calls are encoded.
    pub fn deployed(&self) -> &Arc<Deployed> {
        &self.deployed
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Takes memory for this many bytes of results of each part, and touches it. The engine then takes none for them.
    pub fn make_room_for_results(&mut self, bytes: usize) {
        for part in &mut self.parts {
            part.batch.results.resize(bytes, 0);
            part.batch.results.clear();
        }
    }

    /// Adds a call of `module`'s procedure number `procedure`; `encode` appends the encoded arguments. Returns its index. For a key that was
    /// used, `module` is the version that ran under it ([`crate::Idempotency::version_of`]).
    /// Err: what `encode` found; nothing is added.
    pub fn push<E>(
        &mut self,
        module: &Arc<Module>,
        procedure: usize,
        key: Option<CallKey<'_>>,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<usize, E> {
        // A call that writes nothing may run again, so no outcome of it is kept.
        let key = key.filter(|_| !module.schema.procedures[procedure].read_only);
        if let Some(key) = key.filter(|_| !self.router.is_standby())
            && let Some(begun) = self.router.idempotency().repeat(self.scoped(key.key), key.fingerprint)
        {
            self.place_begun(begun, key);
            return Ok(self.places.len() - 1);
        }
        let mut args = std::mem::take(&mut self.args);
        args.clear();
        let encoded = encode(&mut args);
        match (&encoded, key) {
            (Ok(()), key) => self.add(module, procedure, key, &args),
            // The version that ran under the key could not have had these arguments.
            (Err(_), Some(key)) if self.router.idempotency().version_of(self.scoped(key.key)).is_some() => {
                self.args = args;
                self.place_begun(Begin::Conflict, key);
                return Ok(self.places.len() - 1);
            }
            (Err(_), _) => {}
        }
        self.args = args;
        encoded.map(|()| self.places.len() - 1)
    }

    /// The `push` variant for a call whose encoded arguments touch this partition alone, and which must not wait for calls of other
    /// batches. Returns `None` and adds nothing if a call with its key came before, or if there is no room for the key.
    pub fn push_routed(
        &mut self,
        module: &Arc<Module>,
        procedure: usize,
        key: Option<CallKey<'_>>,
        partition: PartitionId,
        args: &[u8],
    ) -> Option<usize> {
        let key = key.filter(|_| !module.schema.procedures[procedure].read_only);
        match (self.unserved(module, procedure), key) {
            (Some(refused), None) => self.place_ready(Ready::Refused(refused)),
            // The key may have an outcome, which `push` looks for.
            (Some(_), Some(_)) => return None,
            (None, key) => {
                if let Some(key) = key
                    && !matches!(self.begin_key(module, procedure, key, args), Begin::Run)
                {
                    return None;
                }
                self.place(module, procedure, key, args, CallPartitions::One(partition));
            }
        }
        Some(self.places.len() - 1)
    }

    /// Returns the refusal of a call whose procedure is quarantined, and of a call that writes on a standby.
    fn unserved(&self, module: &Module, procedure: usize) -> Option<ReplyOutcome> {
        let quarantined = self.deployed.quarantined(module.id, procedure);
        let writes = !module.schema.procedures[procedure].read_only;
        let has_no_number = self.caller.as_ref().is_some_and(|caller| caller.number == 0);
        match quarantined.map(|why| ReplyOutcome::Quarantined(why.into())) {
            None if self.router.is_standby() && writes => Some(ReplyOutcome::NotPrimary(self.router.primary_url())),
            None if has_no_number && writes && self.router.role() == Role::Primary => Some(self.router.unnamed()),
            quarantined => quarantined,
        }
    }

    fn add(&mut self, module: &Arc<Module>, procedure: usize, key: Option<CallKey<'_>>, args: &[u8]) {
        if let Some(refused) = self.unserved(module, procedure) {
            // A repeat learns what its call did, also where no call is taken now. A standby does not know that.
            let key = key.filter(|_| !self.router.is_standby());
            let digests = key.map(|key| (key, Self::digests(module, procedure, key, args)));
            let keys = self.router.idempotency();
            let earlier = digests.and_then(|(key, digests)| Some((keys.earlier(self.scoped(key.key), digests)?, key)));
            return match earlier {
                Some((begun, key)) => self.place_begun(begun, key),
                None => self.place_ready(Ready::Refused(refused)),
            };
        }
        if let Some(key) = key {
            match self.begin_key(module, procedure, key, args) {
                Begin::Run => {}
                begun => return self.place_begun(begun, key),
            }
        }
        let partitions_count = self.router.partitions_count();
        let touched = match module.route(procedure, args, partitions_count) {
            Ok(touched) => touched,
            Err(error) => unreachable!("arguments are encoded by their schema: {error}"),
        };
        self.place(module, procedure, key, args, touched);
    }

    /// Takes the key for a call with these encoded arguments, or returns the earlier use of the key.
    fn begin_key(&self, module: &Module, procedure: usize, key: CallKey<'_>, args: &[u8]) -> Begin {
        let digests = Self::digests(module, procedure, key, args);
        let keys = self.router.idempotency();
        keys.begin(self.scoped(key.key), digests, module.id, procedure)
    }

    fn digests(module: &Module, procedure: usize, key: CallKey<'_>, args: &[u8]) -> CallDigests {
        let name = &module.schema.procedures[procedure].name;
        CallDigests {
            fingerprint: key.fingerprint,
            args_hash: call_hash(&module.name, name, args),
        }
    }

    fn place(
        &mut self,
        module: &Module,
        procedure: usize,
        key: Option<CallKey<'_>>,
        args: &[u8],
        touched: CallPartitions,
    ) {
        let single = match &touched {
            CallPartitions::One(partition) => Some(*partition),
            _ => None,
        };
        let part = self.open_multi_for(&touched).unwrap_or_else(|| match touched {
            CallPartitions::One(partition) => self.open_part(partition),
            several => {
                self.open.clear();
                self.open_multi = Some((self.parts.len(), 0));
                self.add_part(None, several)
            }
        });
        let deadline = self.add_deadline();
        let batch = &mut self.parts[part].batch;
        match batch.partition {
            Some(_) => batch.push(module.id, procedure as u16, args, key),
            None => batch.push_among(single, (module.id, procedure as u16), args, key),
        }
        if let Some(deadline) = deadline {
            batch.set_deadline(deadline);
        }
        self.places
            .push(AnswerPlace::Slot(part as u32, batch.calls.len() as u32 - 1));
    }

    /// Returns a key within the scope of calls that are added now.
    pub fn scoped<'k>(&'k self, key: &'k str) -> ScopedKey<'k> {
        scoped(&self.caller, key)
    }

    /// Answers a call that does not run, because its key was used before or finds no room.
    fn place_begun(&mut self, begun: Begin, key: CallKey<'_>) {
        let ready = match begun {
            Begin::Run => unreachable!("the call is to run"),
            Begin::Done(outcome) => Ready::of(&self.router, outcome),
            Begin::Conflict => Ready::Refused(ReplyOutcome::IdempotencyConflict),
            Begin::Running => {
                self.add_deadline(); // this waiter has no influence on the awaited call
                Ready::Awaited(AwaitedOutcome {
                    caller: self.caller.clone(),
                    key: key.key.into(),
                    deadline_ns: self.deadline_ns,
                    failed: None,
                })
            }
            Begin::Full => Ready::Refused(ReplyOutcome::IdempotencyFull),
        };
        self.place_ready(ready);
    }

    fn place_ready(&mut self, ready: Ready) {
        if let Ready::Refused(outcome) = &ready {
            self.router.count_refusal(outcome);
        }
        self.places.push(AnswerPlace::Ready(self.ready.len() as u32));
        self.ready.push(ready);
    }

    /// Returns the part of several partitions that takes this call: a call of the same partitions, or a short one on one of them.
    fn open_multi_for(&mut self, touched: &CallPartitions) -> Option<usize> {
        let (at, between) = self.open_multi.take()?;
        let part = &self.parts[at];
        let between = match touched {
            CallPartitions::One(partition) if part.touches(*partition) => {
                between + self.router.fuel(*partition).max(CALL_FUEL_MIN)
            }
            several if *several == part.touched => 0,
            _ => return None,
        };
        let takes = between <= BETWEEN_FUEL_MAX && !part.batch.is_full() && part.batch.caller == self.caller;
        takes.then(|| {
            self.open_multi = Some((at, between));
            at
        })
    }

    fn open_part(&mut self, partition: PartitionId) -> usize {
        let found = self.open.iter().position(|&part| {
            let batch = &self.parts[part].batch;
            batch.partition == Some(partition) && batch.caller == self.caller
        });
        if let Some(at) = found {
            let part = self.open[at];
            if !self.parts[part].batch.is_full() {
                return part;
            }
            self.open.swap_remove(at);
        }
        let part = self.add_part(Some(partition), CallPartitions::One(partition));
        self.open.push(part);
        part
    }

    fn add_part(&mut self, partition: Option<PartitionId>, touched: CallPartitions) -> usize {
        let mut batch = Box::new(CallBatch::new(partition));
        batch.caller = self.caller.clone();
        self.parts.push(BatchPart { batch, touched });
        self.parts.len() - 1
    }

    /// Hands the parts to `dispatch` in order. `done` is called once, when all are answered.
    pub(crate) fn submit(mut self, done: OnReply, mut dispatch: impl FnMut(BatchPart)) {
        self.submitted = true;
        let mut parts = std::mem::take(&mut self.parts);
        if self.stream.is_none() && parts.iter().any(|part| part.batch.partition.is_none()) {
            self.stream = Some(self.router.new_stream());
        }
        for part in &mut parts {
            part.batch.stream = self.stream;
            part.batch.answers = self.is_bounded.then(|| self.router.answers().clone());
        }
        let accepted_ns = self.router.monotonic_ns();
        for part in &mut parts {
            part.batch.times.accepted_ns = accepted_ns;
        }
        let pending = PendingBatch {
            accepted_ns,
            deployed: self.deployed.clone(),
            reply: BatchReply {
                parts: Vec::with_capacity(parts.len()),
                places: std::mem::take(&mut self.places),
                ready: std::mem::take(&mut self.ready),
            },
            done,
        };
        let has_awaited = pending
            .reply
            .ready
            .iter()
            .any(|ready| matches!(ready, Ready::Awaited(_)));
        match (has_awaited, &mut parts[..]) {
            (false, [_]) => {
                let part = parts.pop().expect("one part");
                dispatch(pending.of_one(&self.router, part));
            }
            _ => Collector::dispatch(&self.router, pending, parts, dispatch),
        }
    }
}

fn scoped<'k>(caller: &'k Option<Caller>, key: &'k str) -> ScopedKey<'k> {
    let scope = caller.as_ref().map_or("", |caller| &*caller.scope);
    ScopedKey { scope, key }
}

/// A batch on its way.
struct PendingBatch {
    reply: BatchReply,
    accepted_ns: u64,
    /// The deployment for which its calls were encoded.
    deployed: Arc<Deployed>,
    done: OnReply,
}

impl PendingBatch {
    /// Completes a batch of one part, the common case.
    fn of_one(self, router: &Router, mut part: BatchPart) -> BatchPart {
        let router = router.clone();
        part.batch.done = Some(Box::new(move |mut batch| {
            router.on_answered(&self.deployed, &mut batch);
            let durable_ns = batch.times.durable_ns;
            self.finish(&router, durable_ns, Some(batch));
        }));
        part
    }

    /// Completes a batch whose parts are all back.
    fn finish(mut self, router: &Router, now_ns: u64, parts: impl IntoIterator<Item = Box<CallBatch>>) {
        self.reply.parts.extend(parts);
        let took = Duration::from_nanos(now_ns.saturating_sub(self.accepted_ns));
        router.record_answered(self.reply.len() as u64, took);
        (self.done)(self.reply);
    }
}

impl Drop for BatchBuilder {
    /// Frees the keys of a batch that is dropped unsent.
    fn drop(&mut self) {
        if self.submitted {
            return;
        }
        for part in &self.parts {
            for (_, key) in part.batch.keys() {
                let key = scoped(&part.batch.caller, key);
                self.router.idempotency().release(key, &ReplyOutcome::Superseded);
            }
        }
    }
}

/// Gathers all parts of a batch, and the calls whose answers it shares.
struct Collector {
    router: Router,
    deployed: Arc<Deployed>,
    left: AtomicUsize,
    pending: Mutex<Option<PendingBatch>>,
    slots: Vec<Mutex<Option<Box<CallBatch>>>>,
}

impl Collector {
    fn dispatch(router: &Router, pending: PendingBatch, parts: Vec<BatchPart>, mut dispatch: impl FnMut(BatchPart)) {
        let awaited: Vec<(usize, Option<Caller>, Box<str>)> = pending
            .reply
            .ready
            .iter()
            .enumerate()
            .filter_map(|(at, ready)| match ready {
                Ready::Awaited(awaited) => Some((at, awaited.caller.clone(), awaited.key.clone())),
                _ => None,
            })
            .collect();
        let collector = Arc::new(Self {
            router: router.clone(),
            deployed: pending.deployed.clone(),
            left: AtomicUsize::new(parts.len() + awaited.len() + 1),
            pending: Mutex::new(Some(pending)),
            slots: parts.iter().map(|_| Mutex::new(None)).collect(),
        });
        for (at, mut part) in parts.into_iter().enumerate() {
            let collector = collector.clone();
            part.batch.done = Some(Box::new(move |mut batch| {
                collector.router.on_answered(&collector.deployed, &mut batch);
                *collector.slots[at].lock().expect("held for a store alone") = Some(batch);
                collector.arrive();
            }));
            dispatch(part);
        }
        for (at, caller, key) in awaited {
            let collector = collector.clone();
            let waiter = Box::new(move |answer| {
                collector.fill_awaited(at, answer);
                collector.arrive();
            });
            router.idempotency().wait(scoped(&caller, &key), waiter);
        }
        collector.arrive();
    }

    fn fill_awaited(&self, at: usize, answer: Result<CommittedOutcome, ReplyOutcome>) {
        let mut pending = self.pending.lock().expect("no code panics under this lock");
        let pending = pending.as_mut().expect("taken by the last arrival alone");
        match (&mut pending.reply.ready[at], answer) {
            (ready, Ok(remembered)) => *ready = Ready::of(&self.router, remembered),
            (Ready::Awaited(awaited), Err(outcome)) => awaited.failed = Some(outcome),
            (Ready::Refused(_) | Ready::Remembered(_) | Ready::Unconfirmed(..), Err(_)) => {}
        }
    }

    fn arrive(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let pending = self.pending.lock().expect("no code panics under this lock").take();
        let parts = self.slots.iter().map(|slot| {
            let batch = slot.lock().expect("held for a store alone").take();
            batch.expect("every part has arrived")
        });
        let (pending, now_ns) = (
            pending.expect("the last arrival comes once"),
            self.router.monotonic_ns(),
        );
        pending.finish(&self.router, now_ns, parts);
    }
}

/// The answers to a batch, by the index that `BatchBuilder::push` returned.
pub struct BatchReply {
    parts: Vec<Box<CallBatch>>,
    places: Vec<AnswerPlace>,
    ready: Vec<Ready>,
}

impl BatchReply {
    /// Returns the bytes of results of the part with the longest results.
    pub fn result_bytes(&self) -> usize {
        let parts = self.parts.iter();
        parts.map(|part| part.results.len()).max().unwrap_or(0)
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// True if some call must be encoded and submitted again.
    pub fn has_superseded(&self) -> bool {
        let mut calls = self.parts.iter().flat_map(|part| &part.calls);
        calls.any(|call| call.outcome == ReplyOutcome::Superseded)
            || self
                .ready
                .iter()
                .any(|ready| *ready.outcome() == ReplyOutcome::Superseded)
    }

    /// Returns the answer to call `index`. It panics if there was no such call.
    pub fn get(&self, index: usize) -> CallReply<'_> {
        match self.places[index] {
            AnswerPlace::Slot(part, slot) => self.of_slot(part as usize, slot as usize),
            AnswerPlace::Ready(at) => self.ready[at as usize].reply(),
        }
    }

    /// Returns the terms of a call that ran or waited for another call's answer. For a call that was refused before, they are empty.
    pub fn terms(&self, index: usize) -> CallTerms<'_> {
        match self.places[index] {
            AnswerPlace::Slot(part, slot) => {
                let (batch, slot) = (&self.parts[part as usize], slot as usize);
                CallTerms {
                    key: batch.key(slot),
                    caller: batch.caller.as_ref(),
                    deadline_ns: batch.deadline_ns(slot),
                }
            }
            AnswerPlace::Ready(at) => self.ready[at as usize].terms(),
        }
    }

    /// Returns the times of a call's batch. None for a call that did not run itself.
    pub fn times(&self, index: usize) -> Option<&CallTimes> {
        match self.places[index] {
            AnswerPlace::Slot(part, _) => Some(&self.parts[part as usize].times),
            AnswerPlace::Ready(_) => None,
        }
    }

    fn of_slot(&self, part: usize, at: usize) -> CallReply<'_> {
        let batch = &self.parts[part];
        let slot = &batch.calls[at];
        CallReply {
            outcome: &slot.outcome,
            result: batch.result(at),
            recorded_by: None,
            txn_id: slot.txn_id,
            lsn: slot.lsn,
            partition: batch.partition_of(at),
            replayed: false,
        }
    }
}
