//! The work of a site beside batches. The site prepares its partitions for transactions over several partitions, and hands them over at rendezvous.
//! It runs jobs over the partitions that it holds, and then takes the messages that waited.

use std::sync::Arc;

use crate::{
    batch::CallBatch,
    coordinator::{Arrival, RENDEZVOUS_TXNS_MAX},
    partition_table::{Due, Handoff},
    rendezvous::{Job, MultiPartitionTxn, Rendezvous},
    site::{ExclusivePartitions, Partition, Site, SiteMessage},
};

impl Site {
    pub(crate) fn now_ns(&self) -> u64 {
        self.tools.shared.clock.monotonic_ns()
    }

    /// True when nothing of this site is away or waits.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.table.is_quiet()
    }

    /// Does one thing that concerns other sites, if there is one.
    pub(crate) fn attend(&mut self) -> bool {
        if let Ok(arrival) = self.table.arrivals.try_recv() {
            self.welcome(arrival);
            return true;
        }
        if self.bring_as_leader(false) {
            return true;
        }
        self.call_if_due();
        !self.table.arrivals.is_empty()
    }

    /// Takes messages that waited, up to the first one that takes time. False: no message is due.
    pub(crate) fn act_if_due(&mut self) -> bool {
        for acted in 0..RENDEZVOUS_TXNS_MAX {
            let Some(due) = self.table.take_due() else {
                return acted > 0;
            };
            let is_prepared = matches!(due, Due::Prepared(_));
            self.act(due);
            if !is_prepared {
                break;
            }
        }
        true
    }

    /// Takes transactions over several partitions from the inbox, up to the first message of another kind. Other sites wait for the partitions that
    /// this site prepares.
    pub(crate) fn take_multis(&mut self) -> bool {
        for taken in 0..RENDEZVOUS_TXNS_MAX {
            if self.held_back.is_some() {
                return taken > 0;
            }
            match self.inbox.try_recv() {
                Ok(SiteMessage::Multi(txn)) => self.take_multi(&txn),
                Ok(other) => self.held_back = Some(other),
                Err(_) => return taken > 0,
            }
        }
        true
    }

    /// Does the same as `attend`, for a site that has nothing else to do: its rendezvous need not wait.
    pub(crate) fn attend_idle(&mut self) -> bool {
        if self.is_quiet() {
            return false;
        }
        self.set_idle(true);
        self.call_if_due();
        !self.table.arrivals.is_empty() || self.bring_as_leader(true)
    }

    /// Tells the coordinator whether this site has anything to do except work that waits for other sites.
    pub(crate) fn set_idle(&mut self, is_idle: bool) {
        if self.is_idle != is_idle {
            self.is_idle = is_idle;
            self.tools.shared.coordinator.set_idle(self.id, is_idle);
        }
    }

    fn call_if_due(&self) {
        self.tools.shared.coordinator.call_if_due(self.id, || self.now_ns());
    }

    pub(crate) fn welcome(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Home(handoff) => {
                let put = self.table.put(handoff);
                assert!(put.is_ok(), "a partition is sent to its own site");
            }
            Arrival::Called(rendezvous) if rendezvous.leader == Some(self.id) => self.called.push_back(rendezvous),
            Arrival::Called(rendezvous) => self.join(&rendezvous),
        }
    }

    /// Brings this site's partitions to a rendezvous that it leads, once all others are there or the site has nothing else to do.
    fn bring_as_leader(&mut self, is_idle: bool) -> bool {
        let may_begin =
            |called: &Arc<Rendezvous>| is_idle || called.lacks() == self.table.touched_count(&called.touched);
        let Some(at) = self.called.iter().position(may_begin) else {
            return false;
        };
        // Transactions that arrived meanwhile may run at the same rendezvous.
        self.take_multis();
        let rendezvous = self.called.remove(at).expect("found above");
        self.join(&rendezvous);
        true
    }

    /// Hands over this site's touched partitions. They come home when the jobs over them have run. The site that hands over the last partition runs
    /// the jobs. The caller has all its partitions at home, or was called to this rendezvous.
    pub fn join(&mut self, rendezvous: &Rendezvous) {
        for handoff in self.table.hand_over(&rendezvous.touched) {
            if let Some(handoffs) = rendezvous.bring(handoff) {
                self.lead(rendezvous, handoffs);
            }
        }
    }

    /// True while a partition of this site is elsewhere.
    pub fn has_away(&self) -> bool {
        self.table.has_away()
    }

    /// Runs the job once all partitions are home. The site does nothing else before.
    pub fn resume_with(&mut self, job: impl FnOnce(&mut Site) + Send + 'static) {
        assert!(self.held_back.is_none(), "a job goes on before anything else is taken");
        self.held_back = Some(SiteMessage::Job(Box::new(job)));
    }

    /// Runs the jobs over the partitions, which are all here, and sends the partitions home.
    fn lead(&mut self, rendezvous: &Rendezvous, handoffs: Vec<Handoff>) {
        if let Some(jobs) = rendezvous.take_jobs() {
            return self.run_over(handoffs, jobs.into_iter(), Arc::default());
        }
        let shared = self.tools.shared.clone();
        let txns = shared.coordinator.take_ready(&rendezvous.touched, self.now_ns());
        let jobs: Vec<Job> = txns.iter().map(|txn| txn.take_job()).collect();
        self.run_over(handoffs, jobs.into_iter(), txns.into());
        shared.coordinator.release(&rendezvous.touched, self.id, self.now_ns());
    }

    fn run_over(
        &mut self,
        handoffs: Vec<Handoff>,
        jobs: impl Iterator<Item = Job>,
        done: Arc<[Arc<MultiPartitionTxn>]>,
    ) {
        self.tools.refresh_if_due();
        let (mut partitions, homes): (Vec<Box<Partition>>, Vec<_>) = handoffs
            .into_iter()
            .map(|handoff| (handoff.partition, handoff.home))
            .unzip();
        for partition in &mut partitions {
            partition.release_undo(&*self.tools.sink, &self.tools.shared.gate);
            partition.record_change();
        }
        for job in jobs {
            job(&mut ExclusivePartitions {
                partitions: &mut partitions,
                tools: &mut self.tools,
                limit: None,
            });
        }
        for (partition, home) in partitions.into_iter().zip(homes) {
            let done = done.clone();
            self.send_home(Handoff { partition, home, done });
        }
    }

    fn send_home(&mut self, handoff: Handoff) {
        if let Err(handoff) = self.table.put(handoff) {
            let home = handoff.home;
            self.tools.shared.coordinator.send(home, Arrival::Home(handoff));
        }
    }

    /// Takes a transaction for the partitions of this site that it touches. It runs at once if it touches no others, and waits for nothing.
    pub(crate) fn take_multi(&mut self, txn: &Arc<MultiPartitionTxn>) {
        if self.table.is_free_for(&txn.touched) {
            let handoffs = self.table.hand_over(&txn.touched);
            return self.run_over(handoffs, std::iter::once(txn.take_job()), Arc::default());
        }
        let mut due = Vec::new();
        self.table.take_multi(txn, &mut due);
        due.into_iter().for_each(|due| self.act(due));
    }

    #[inline]
    pub(crate) fn take_batch(&mut self, batch: Box<CallBatch>) {
        let id = batch.partition.expect("a multi-partition call comes as a job");
        match self.table.take_batch(batch, id) {
            Some(Due::Run(batch)) => self.run_batch(batch),
            Some(due) => self.act(due),
            None => {}
        }
    }

    fn act(&mut self, due: Due) {
        match due {
            Due::Run(batch) => self.run_batch(batch),
            Due::Prepared(txn) => self.tools.shared.coordinator.prepare(&txn, self.now_ns()),
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.tools.shared.coordinator.forget(self.id);
    }
}
