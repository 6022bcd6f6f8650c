//! Hands the log's records to the sites.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use crossbeam_channel::{Receiver, Sender};
use reprise_base::{Lsn, PartitionId, named_enum};
use reprise_partition::{Job, MultiPartitionTxn, Rendezvous, Shared, Site, SiteMessage, TxnPartitions};
use reprise_txn::{Compiler, ModuleId};
use reprise_wire::{ChangesRef, CommandRef, PartitionSet, RawRecord, RawRecords, RecordRef};

use crate::{
    assist::{Assist, EarlyRedo},
    batch::ReplayBatch,
    command::{CommandKey, LoggedChanges, LoggedCommand, replay_multi},
    error::ReplayError,
    feed::{WindowRest, release},
    outcome::{Remember, ReplayOutcome},
    redo::{PartitionProgress, RedoPart},
    run::{OpenRun, without_parts},
    snapshot_point::SnapshotPoints,
    window::Window,
};

/// Number of jobs in flight at most, over all sites. It bounds memory while the reader is ahead. It is never less than two for each site,
/// because a job of one site may wait for jobs of the others.
const JOBS_IN_FLIGHT: usize = 64;
/// Number of windows that were fed and not replayed yet, at most. Their memory is not available to the tables.
const WINDOWS_IN_FLIGHT: usize = 4;

named_enum! {
    /// Which record is applied of a transaction that was logged both ways. One that was logged one way is applied that way.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub enum RecoverFrom {
        /// The command is run again, and its digest compared.
        #[default]
        Command => "command",
        /// The changed rows, put in place without running anything.
        Changes => "physiological",
    }
}

/// Called at the mark behind which everything before an LSN is replayed. It returns the job for that point, with all partitions held.
pub type AtMark = Box<dyn FnMut(Lsn) -> Option<Job> + Send>;

/// Hands records to the sites as they are fed, until no more come. Between two batches a site serves other messages: transactions that
/// read, and slices of a checkpoint.
pub struct Replayer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) compiler: Arc<dyn Compiler>,
    from: RecoverFrom,
    quarantine: BTreeSet<(ModuleId, u16)>,
    pub(crate) sites: Vec<SiteFeed>,
    /// Something that is gathered and not sent yet is with several sites: what goes to one of them has to go to all.
    has_rendezvous: bool,
    /// The command before, which may turn out to have been logged by its changes, too.
    held: Option<(LoggedCommand, CommandTarget)>,
    /// The transaction whose parts were fed, and not the record that makes them count.
    pub(crate) run: Option<OpenRun>,
    /// Probable end of the log: tables reserve room for the records to come.
    log_end: Lsn,
    /// Behind the last record that was fed.
    pub(crate) fed: Lsn,
    pub(crate) outcome: Arc<ReplayOutcome>,
    /// Batches that were done, for their memory.
    spares: (Sender<ReplayBatch>, Receiver<ReplayBatch>),
    /// Windows that may be filled.
    pub(crate) windows: (Sender<Window>, Receiver<Window>),
    /// A token per job that may yet be sent.
    tokens: (Sender<()>, Receiver<()>),
    /// Number of all tokens.
    tokens_count: usize,
    /// None: the sites get everything at once.
    pub(crate) points: Option<SnapshotPoints>,
    pub(crate) has_barrier: bool,
    /// Jobs over several sites until now; each may change the tables.
    jobs: u64,
    pub(crate) assist: Arc<Assist>,
    /// Batches on their way that may be demultiplexed before their sites reach them, the next ones first.
    pub(crate) aheads: VecDeque<Arc<EarlyRedo>>,
    pub(crate) at_mark: Option<AtMark>,
    /// The rest of the last window, which begins with a deployment.
    pub(crate) rest: Option<WindowRest>,
}

/// Messages for one site.
pub(crate) struct SiteFeed {
    inbox: Sender<SiteMessage>,
    /// The batch that is gathered for it and not sent yet.
    pending: ReplayBatch,
    progress: Arc<SiteProgress>,
}

#[derive(Default)]
struct SiteProgress {
    /// Jobs that were sent and not done yet.
    in_flight: AtomicUsize,
    /// Everything before it is done.
    done: AtomicU64,
}

/// The target of a command.
pub(crate) enum CommandTarget {
    One(PartitionId),
    /// Over these, all held.
    Gathered(TxnPartitions),
}

/// A record and its place.
pub(crate) struct FedRecord<'a> {
    pub window: &'a Arc<Window>,
    pub lsn: Lsn,
    pub end: Lsn,
    /// Place in the window.
    pub at: usize,
    pub bytes: usize,
}

impl FedRecord<'_> {
    /// The record's own bytes.
    pub fn record(&self) -> &[u8] {
        &self.window.bytes()[self.at..self.at + self.bytes]
    }
}

/// A batch on its way through a site.
struct SiteJob {
    batch: ReplayBatch,
    outcome: Arc<ReplayOutcome>,
    assist: Arc<Assist>,
    spares: Sender<ReplayBatch>,
    windows: Sender<Window>,
    done: Box<dyn FnOnce() + Send>,
    token: Sender<()>,
}

impl SiteJob {
    fn run(mut self, site: &mut Site) {
        if !self.batch.run(site, &self.assist, &self.outcome) {
            return site.resume_with(move |site| self.run(site));
        }
        let window = self.batch.take_window();
        window.into_iter().for_each(|window| release(window, &self.windows));
        let _ = self.spares.send(self.batch); // the replay may have ended with an error
        (self.done)();
        let _ = self.token.send(());
    }
}

impl Replayer {
    /// Creates a replayer. `remember` gets the outcomes of calls with idempotency keys.
    pub fn new(
        shared: Arc<Shared>,
        inboxes: Vec<Sender<SiteMessage>>,
        compiler: Arc<dyn Compiler>,
        remember: Remember,
    ) -> Self {
        shared.replay_failed.store(false, Ordering::Release);
        let tokens_count = JOBS_IN_FLIGHT.max(2 * inboxes.len());
        let tokens = crossbeam_channel::unbounded();
        for _ in 0..tokens_count {
            tokens.0.send(()).expect("the receiver is beside it");
        }
        let windows = crossbeam_channel::bounded(WINDOWS_IN_FLIGHT);
        for _ in 0..WINDOWS_IN_FLIGHT {
            windows.0.send(Window::default()).expect("the channel has room for all");
        }
        let feed = |inbox| SiteFeed {
            inbox,
            pending: ReplayBatch::default(),
            progress: Arc::default(),
        };
        Self {
            from: RecoverFrom::default(),
            quarantine: BTreeSet::new(),
            sites: inboxes.into_iter().map(feed).collect(),
            has_rendezvous: false,
            held: None,
            run: None,
            log_end: Lsn(0),
            fed: Lsn(0),
            spares: crossbeam_channel::unbounded(),
            outcome: Arc::new(ReplayOutcome::new(shared.clone(), remember)),
            jobs: 0,
            assist: Arc::new(Assist::new(shared.threads.clone())),
            aheads: VecDeque::new(),
            at_mark: None,
            rest: None,
            shared,
            compiler,
            windows,
            tokens,
            tokens_count,
            points: None,
            has_barrier: false,
        }
    }

    /// Chooses among the records of transactions that were logged both ways.
    pub fn set_from(&mut self, from: RecoverFrom) {
        self.from = from;
    }

    /// Sets the end of the records that will be fed, so that tables can prepare for them. Only speed depends on it.
    pub fn set_log_end(&mut self, end: Lsn) {
        self.log_end = end;
    }

    /// Asked at each mark that is fed from now on.
    pub fn set_at_mark(&mut self, at_mark: AtMark) {
        self.at_mark = Some(at_mark);
    }

    /// Sets the procedures, by version and number, of which changes are applied wherever they were logged.
    pub fn set_quarantine(&mut self, quarantine: BTreeSet<(ModuleId, u16)>) {
        self.quarantine = quarantine;
    }

    /// State that all sites share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The compiler of the modules that the log holds.
    pub fn compiler(&self) -> &Arc<dyn Compiler> {
        &self.compiler
    }

    pub(crate) fn recover_from(&self, command: &LoggedCommand) -> RecoverFrom {
        match self.quarantine.contains(&(command.module_id, command.procedure)) {
            true => RecoverFrom::Changes,
            false => self.from,
        }
    }

    /// Returns the LSN behind the last fed record; 0 before the first. The last records may be parts of a transaction.
    pub fn fed(&self) -> Lsn {
        self.fed
    }

    /// Returns the number of transactions that the sites have replayed.
    pub fn replayed(&self) -> u64 {
        self.outcome.replayed()
    }

    /// Returns the LSN before which everything that touches the partition is replayed.
    pub fn position(&self, partition: PartitionId) -> Lsn {
        let feed = &self.sites[partition.site(self.shared.sites_count).index()];
        let is_idle = feed.progress.in_flight.load(Ordering::Acquire) == 0;
        match is_idle && feed.pending.is_empty() && self.held.is_none() {
            true => self.whole_end(),
            false => Lsn(feed.progress.done.load(Ordering::Acquire)),
        }
    }

    /// An empty window. Waits for a free one while many are in use, and assists the sites meanwhile.
    pub fn window(&mut self) -> Result<Window, ReplayError> {
        loop {
            if let Ok(window) = self.windows.1.try_recv() {
                return Ok(window);
            }
            match self.aheads.pop_front() {
                Some(ahead) => ahead.demultiplex(&self.assist, &self.outcome),
                None => return self.assist.receive(&self.windows.1).ok_or(ReplayError::Stopped),
            }
        }
    }

    /// Takes the next record; `behind` are the records that follow in its block.
    #[inline]
    pub(crate) fn feed_record(
        &mut self,
        place: &FedRecord<'_>,
        record: &RawRecord<'_>,
        behind: &RawRecords<'_>,
    ) -> Result<(), ReplayError> {
        if self.run.is_some() {
            return self.feed_in_run(place, record, behind);
        }
        if self.held.is_none()
            && let Some((txn_id, changes)) = record.plain_changes()
        {
            let partition = self.check_partition(place.lsn, PartitionId(txn_id.origin()))?;
            let part = part_of(place, partition, changes);
            self.push_part(place, part, txn_id.tick(), true);
            return Ok(());
        }
        if self.is_passed_over(record, behind) {
            return Ok(());
        }
        self.feed_any(place, record)
    }

    fn feed_any(&mut self, place: &FedRecord<'_>, record: &RawRecord<'_>) -> Result<(), ReplayError> {
        let lsn = place.lsn;
        let malformed = |error| ReplayError::Malformed { lsn, error };
        if self.held.is_none() && record.is_changes() {
            return self.feed_changes(place, &record.changes().map_err(malformed)?);
        }
        let decoded = record.decode().map_err(malformed)?;
        if let RecordRef::Changes(changes) = &decoded
            && let Some((mut command, target)) = self.take_twin(changes)
        {
            command.end = place.end;
            return match self.recover_from(&command) {
                RecoverFrom::Command => self.dispatch(command, target),
                RecoverFrom::Changes => self.feed_changes(place, changes),
            };
        }
        self.release_held()?;
        match &decoded {
            RecordRef::Changes(changes) => return self.feed_changes(place, changes),
            RecordRef::Part(part) => return self.begin_run(place, part),
            _ => {}
        }
        match decoded {
            RecordRef::Command(command) => self.feed_command(lsn, place.end, &command),
            RecordRef::Deploy(deploy) => self.feed_deploy(lsn, place.end, &deploy),
            RecordRef::Remove(removal) => self.feed_remove(place.end, &removal),
            RecordRef::Checkpoint(mark) => self.feed_mark(place.end, &mark),
            RecordRef::DropTable(drop) => self.feed_drop(lsn, place.end, &drop),
            RecordRef::Quarantine(found) => self.feed_quarantine(lsn, place.end, &found),
            RecordRef::Principal(principal) => self.feed_principal(lsn, place.end, &principal),
            RecordRef::Control(control) => self.feed_control(place.end, &control),
            RecordRef::Genesis(_) | RecordRef::Changes(_) | RecordRef::Part(_) | RecordRef::Void => Ok(()),
        }
    }

    /// True for a command whose changes follow and are applied in its place.
    pub(crate) fn is_passed_over(&self, record: &RawRecord<'_>, behind: &RawRecords<'_>) -> bool {
        if self.from == RecoverFrom::Command || self.held.is_some() || record.is_changes() {
            return false;
        }
        behind
            .clone()
            .next()
            .is_some_and(|next| next.is_ok_and(|next| next.is_beside(record)))
    }

    /// Keeps the command until the next record is known.
    pub(crate) fn feed_command(&mut self, lsn: Lsn, end: Lsn, record: &CommandRef<'_>) -> Result<(), ReplayError> {
        let place = match &record.partitions {
            PartitionSet::One(partition) => CommandTarget::One(self.check_partition(lsn, *partition)?),
            PartitionSet::All => CommandTarget::Gathered(TxnPartitions::All),
            PartitionSet::Several(list) => {
                let checked = list.iter().map(|partition| self.check_partition(lsn, partition));
                CommandTarget::Gathered(TxnPartitions::Some(checked.collect::<Result<_, _>>()?))
            }
        };
        let mut args = match &place {
            CommandTarget::One(partition) => self.sites[partition.site(self.shared.sites_count).index()]
                .pending
                .args(),
            CommandTarget::Gathered(_) => Vec::new(),
        };
        args.extend_from_slice(record.args);
        let command = LoggedCommand {
            lsn,
            end,
            txn_id: record.txn_id,
            module_id: ModuleId(record.module_id),
            procedure: record.procedure,
            digest: record.digest,
            args,
            principal: record.principal,
            keyed: record.keyed.as_ref().map(CommandKey::of),
            twin: None,
        };
        self.held = Some((command, place));
        Ok(())
    }

    /// The command that was held, if these are its changes: both of a transaction stand side by side.
    pub(crate) fn take_command(&mut self, changes: &ChangesRef<'_>) -> Option<(LoggedCommand, CommandTarget)> {
        self.held.take_if(|(command, _)| command.txn_id == changes.txn_id)
    }

    /// Takes the command like `take_command`, together with its changes.
    fn take_twin(&mut self, changes: &ChangesRef<'_>) -> Option<(LoggedCommand, CommandTarget)> {
        let (mut command, place) = self.take_command(changes)?;
        if self.from == RecoverFrom::Command {
            let groups = changes.groups().map(|(id, changes)| (id, changes.into()));
            command.twin = Some(LoggedChanges {
                groups: groups.collect(),
            });
        }
        Some((command, place))
    }

    /// Sends the held command to its site.
    pub(crate) fn release_held(&mut self) -> Result<(), ReplayError> {
        match self.held.take() {
            Some((command, place)) => {
                self.drop_run_of(command.txn_id);
                self.dispatch(command, place)
            }
            None => Ok(()),
        }
    }

    pub(crate) fn dispatch(&mut self, command: LoggedCommand, place: CommandTarget) -> Result<(), ReplayError> {
        let touched = match place {
            CommandTarget::One(partition) => {
                let site = partition.site(self.shared.sites_count).index();
                self.sites[site].pending.push_command(partition, command);
                return self.send_if_full(site);
            }
            CommandTarget::Gathered(touched) => touched,
        };
        self.push_multi(touched, command)
    }

    /// Adds the command to the work of all of its sites: the last site to reach it runs it.
    fn push_multi(&mut self, touched: TxnPartitions, command: LoggedCommand) -> Result<(), ReplayError> {
        let outcome = self.outcome.clone();
        let job: Job = Box::new(move |held| {
            if !outcome.has_failed_before(command.end) {
                outcome.count(1);
                outcome.record(replay_multi(held, command));
            }
        });
        let sites = touched.sites(self.shared.sites_count);
        match self.rendezvous_before(&touched, &sites) {
            Some(rendezvous) => {
                rendezvous.push(job);
                sites.iter().for_each(|site| self.sites[*site].pending.record_joined());
            }
            None => {
                let rendezvous = Rendezvous::in_log_order(touched, self.shared.partitions_count);
                rendezvous.push(job);
                let rendezvous = Arc::new(rendezvous);
                for site in &sites {
                    self.sites[*site].pending.push_rendezvous(rendezvous.clone());
                }
                self.has_rendezvous = true;
            }
        }
        match sites.iter().any(|site| self.sites[*site].pending.is_full()) {
            true => self.send_all_pending(),
            false => Ok(()),
        }
    }

    /// The commands over the same partitions that come right before, for each of their sites, and were not sent.
    fn rendezvous_before(&self, touched: &TxnPartitions, sites: &[usize]) -> Option<&Arc<Rendezvous>> {
        let before = self.sites[*sites.first()?].pending.last_rendezvous()?;
        let is_last = |site: &usize| {
            let last = self.sites[*site].pending.last_rendezvous();
            last.is_some_and(|last| Arc::ptr_eq(last, before))
        };
        (before.touched() == touched && sites.iter().all(is_last)).then_some(before)
    }

    /// Hands each touched partition its part. No barrier: the parts do not see each other.
    fn feed_changes(&mut self, place: &FedRecord<'_>, record: &ChangesRef<'_>) -> Result<(), ReplayError> {
        let (lsn, txn_id) = (place.lsn, record.txn_id);
        if record.parts > 0 {
            return Err(without_parts(lsn, record.parts));
        }
        let is_multi = !matches!(record.partitions, PartitionSet::One(_));
        if is_multi {
            let multi_tick = &self.shared.multi_tick;
            multi_tick.fetch_max(txn_id.tick(), Ordering::AcqRel);
        }
        let mut groups = record.groups().peekable();
        let mut is_first = true;
        let mut hand = |replayer: &mut Self, id: PartitionId| {
            let partition = replayer.check_partition(lsn, id)?;
            let changes = groups.next_if(|(changed, _)| *changed == id);
            let changes = changes.map_or(&[][..], |(_, changes)| changes);
            let mut part = part_of(place, partition, changes);
            let counts = std::mem::take(&mut is_first);
            part.is_keyed = counts && record.keyed.is_some();
            replayer.push_part(place, part, txn_id.tick(), counts);
            Ok(())
        };
        match &record.partitions {
            PartitionSet::One(id) => hand(self, *id),
            PartitionSet::Several(list) => list.iter().try_for_each(|id| hand(self, id)),
            PartitionSet::All => {
                let count = self.shared.partitions_count;
                (0..count).try_for_each(|id| hand(self, PartitionId(id)))?;
                groups
                    .next()
                    .map_or(Ok(()), |(id, _)| self.check_partition(lsn, id).map(drop))
            }
        }
    }

    #[inline]
    pub(crate) fn push_part(&mut self, place: &FedRecord<'_>, part: RedoPart, tick: u64, counts: bool) {
        let site = part.partition.site(self.shared.sites_count).index();
        let seen = PartitionProgress { tick, end: place.end };
        self.sites[site].pending.push_part(part, counts, seen, place.window);
    }

    #[inline]
    pub(crate) fn check_partition(&self, lsn: Lsn, partition: PartitionId) -> Result<PartitionId, ReplayError> {
        if partition.0 < self.shared.partitions_count {
            return Ok(partition);
        }
        Err(ReplayError::Partition {
            lsn,
            partition: partition.0,
            found: self.shared.partitions_count,
        })
    }

    /// Waits until the sites have replayed all that was fed. Err: as of `feed`.
    pub fn drain(&mut self) -> Result<(), ReplayError> {
        self.release_held()?;
        self.send_all_pending()?;
        self.wait_for_sites()?;
        match self.outcome.has_failed() {
            true => Err(self.outcome.take_error()),
            false => Ok(()),
        }
    }

    fn wait_for_sites(&mut self) -> Result<(), ReplayError> {
        self.send_held_back()?;
        for _ in 0..self.tokens_count {
            self.assist.receive(&self.tokens.1).ok_or(ReplayError::Stopped)?;
        }
        for _ in 0..self.tokens_count {
            self.tokens.0.send(()).map_err(|_| ReplayError::Stopped)?;
        }
        Ok(())
    }

    /// Returns the earliest failure, once everything before it is replayed.
    #[cold]
    pub(crate) fn fail(&mut self, found: Option<ReplayError>) -> ReplayError {
        if matches!(found, Some(ReplayError::Stopped)) {
            return ReplayError::Stopped; // no site is left to wait for
        }
        found.into_iter().for_each(|error| self.outcome.fail(error));
        let waited = self.send_all_pending().and_then(|()| self.wait_for_sites());
        waited.map_or_else(|stopped| stopped, |()| self.outcome.take_error())
    }

    fn send_if_full(&mut self, site: usize) -> Result<(), ReplayError> {
        match (self.sites[site].pending.is_full(), self.has_rendezvous) {
            (true, true) => self.send_all_pending(),
            (true, false) => self.send_pending(site),
            (false, _) => Ok(()),
        }
    }

    fn send_pending(&mut self, site: usize) -> Result<(), ReplayError> {
        if self.sites[site].pending.is_empty() {
            return Ok(());
        }
        self.take_token()?;
        let next = self.spares.1.try_recv().unwrap_or_default();
        let mut batch = std::mem::replace(&mut self.sites[site].pending, next);
        batch.log_end = self.log_end;
        self.aheads.extend(batch.close(self.jobs));
        let job = SiteJob {
            batch,
            outcome: self.outcome.clone(),
            assist: self.assist.clone(),
            spares: self.spares.0.clone(),
            windows: self.windows.0.clone(),
            done: Box::new(self.begin_job(site)),
            token: self.tokens.0.clone(),
        };
        self.send(site, SiteMessage::Job(Box::new(move |site| job.run(site))))
    }

    fn send(&mut self, site: usize, message: SiteMessage) -> Result<(), ReplayError> {
        match &mut self.points {
            Some(points) => points.held_back.push((site, message)),
            None => return self.send_now(site, message),
        }
        Ok(())
    }

    pub(crate) fn send_now(&self, site: usize, message: SiteMessage) -> Result<(), ReplayError> {
        self.sites[site].inbox.send(message).map_err(|_| {
            self.outcome.fail(ReplayError::Stopped); // no thread waits for a site that has ended
            ReplayError::Stopped
        })
    }

    /// A job goes to a site; to be called once it is done.
    fn begin_job(&self, site: usize) -> impl FnOnce() + Send + use<> {
        let (progress, fed) = (self.sites[site].progress.clone(), self.whole_end().0);
        progress.in_flight.fetch_add(1, Ordering::AcqRel);
        move || {
            progress.done.fetch_max(fed, Ordering::AcqRel);
            progress.in_flight.fetch_sub(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn send_all_pending(&mut self) -> Result<(), ReplayError> {
        self.has_rendezvous = false;
        (0..self.sites.len()).try_for_each(|site| self.send_pending(site))
    }

    /// Gathers a job over all partitions like `gather`, for a job that changes tables or modules.
    pub(crate) fn gather_barrier(&mut self, job: Job) -> Result<(), ReplayError> {
        self.has_barrier = true;
        self.gather(TxnPartitions::All, job)
    }

    /// Runs a job over these partitions, after all that was fed before.
    pub fn gather(&mut self, touched: TxnPartitions, job: Job) -> Result<(), ReplayError> {
        self.send_all_pending()?;
        self.jobs += 1;
        self.take_token()?;
        let sites = touched.sites(self.shared.sites_count);
        let done: Vec<_> = sites.iter().map(|site| self.begin_job(*site)).collect();
        let token = self.tokens.0.clone();
        let job: Job = Box::new(move |held| {
            job(held);
            done.into_iter().for_each(|done| done());
            let _ = token.send(()); // as in `send_pending`
        });
        let txn = Arc::new(MultiPartitionTxn::barrier(touched, self.shared.partitions_count, job));
        sites
            .into_iter()
            .try_for_each(|site| self.send(site, SiteMessage::Multi(txn.clone())))
    }

    /// Waits for permission to send a job. Between two cuts, which bound the jobs in flight, held-back jobs return no token, so this makes
    /// one more.
    fn take_token(&mut self) -> Result<(), ReplayError> {
        if self.points.is_none() {
            return self.assist.receive(&self.tokens.1).ok_or(ReplayError::Stopped);
        }
        if self.tokens.1.try_recv().is_err() {
            self.tokens_count += 1;
        }
        Ok(())
    }
}

#[inline]
fn part_of(place: &FedRecord<'_>, partition: PartitionId, changes: &[u8]) -> RedoPart {
    let at = if changes.is_empty() {
        0
    } else {
        place.window.place_of(changes)
    };
    RedoPart {
        partition,
        is_keyed: false,
        record: place.at as u32,
        at: at as u32,
        len: changes.len() as u32,
    }
}
