//! What a site does beside running batches: it announces jobs over several partitions, brings its partitions to meetings and
//! to strict gatherings, runs jobs over what is held, and goes on with what waited.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    batch::CallBatch,
    desk::{Arrival, MEETING_JOBS_MAX, Meeting},
    gather::{Gathering, Lead},
    home::{Due, Traveller},
    site::{ExclusivePartitions, Site, SiteMessage},
};

/// Strict gatherings that a site runs before it looks after its own partitions again.
const JOBS_IN_A_ROW_MAX: usize = 64;

impl Site {
    fn now_ns(&self) -> u64 {
        self.tools.shared.clock.monotonic_ns()
    }

    /// True when nothing of this site is away or waits.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.home.is_quiet()
    }

    /// Does one thing that concerns other sites, if there is one.
    pub(crate) fn attend(&mut self) -> bool {
        if let Ok(arrival) = self.home.arrivals.try_recv() {
            self.welcome(arrival);
            return true;
        }
        if self.bring_as_host(false) {
            return true;
        }
        self.call_if_due();
        !self.home.arrivals.is_empty()
    }

    /// Goes on with messages that waited, up to the first one that takes time. False: no one's turn has come.
    pub(crate) fn act_if_due(&mut self) -> bool {
        for acted in 0..MEETING_JOBS_MAX {
            let Some(due) = self.home.take_due() else {
                return acted > 0;
            };
            let is_announcement = matches!(due, Due::Announce(_));
            self.act(due);
            if !is_announcement {
                break;
            }
        }
        true
    }

    /// Takes gatherings from the inbox up to the first message that is none. Others wait for what this site announces.
    pub(crate) fn take_gatherings(&mut self) -> bool {
        for taken in 0..MEETING_JOBS_MAX {
            if self.held_back.is_some() {
                return taken > 0;
            }
            match self.inbox.try_recv() {
                Ok(SiteMessage::Gather(gathering)) => self.join(&gathering),
                Ok(other) => self.held_back = Some(other),
                Err(_) => return taken > 0,
            }
        }
        true
    }

    /// As `attend`, of a site that has nothing else to do: its meetings need not wait.
    pub(crate) fn attend_idle(&mut self) -> bool {
        if self.is_quiet() {
            return false;
        }
        let shared = self.tools.shared.clone();
        shared.desk.set_idle(self.id, true);
        self.call_if_due();
        !self.home.arrivals.is_empty() || self.bring_as_host(true)
    }

    fn call_if_due(&self) {
        self.tools.shared.desk.call_if_due(self.id, || self.now_ns());
    }

    pub(crate) fn welcome(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Home(traveller) => {
                let put = self.home.put(traveller);
                assert!(put.is_ok(), "a partition is sent to its own site");
            }
            Arrival::Called(meeting) if meeting.host == self.id => self.called.push_back(meeting),
            Arrival::Called(meeting) => self.attend_meeting(&meeting),
        }
    }

    /// As the host of a meeting, brings this site's partitions once all others are there, or when it has nothing else to do.
    fn bring_as_host(&mut self, is_idle: bool) -> bool {
        let may_begin =
            |meeting: &Arc<Meeting>| is_idle || meeting.brought().lacks() == self.home.touched_count(&meeting.touched);
        let Some(at) = self.called.iter().position(may_begin) else {
            return false;
        };
        // Jobs that have arrived meanwhile may run in the same meeting.
        self.take_gatherings();
        let meeting = self.called.remove(at).expect("found above");
        self.attend_meeting(&meeting);
        true
    }

    fn attend_meeting(&mut self, meeting: &Meeting) {
        for traveller in self.home.take_called(&meeting.touched) {
            if let Some(lead) = meeting.brought().bring(traveller) {
                self.hold_meeting(meeting, lead);
            }
        }
    }

    /// Runs the ripe jobs over the partitions, all of them being here, and sends these home.
    fn hold_meeting(&mut self, meeting: &Meeting, mut lead: Lead) {
        let shared = self.tools.shared.clone();
        let jobs = shared.desk.take_jobs(&meeting.touched, self.now_ns());
        self.run_over(&mut lead, jobs.iter().map(|gathering| gathering.take_job()));
        let done: Arc<[Arc<Gathering>]> = jobs.into();
        for (partition, mut luggage) in lead.partitions.into_iter().zip(lead.luggage) {
            luggage.done = done.clone();
            self.send_home(Traveller { partition, luggage });
        }
        shared.desk.release(&meeting.touched, self.id, self.now_ns());
    }

    fn send_home(&mut self, traveller: Traveller) {
        if let Err(traveller) = self.home.put(traveller) {
            let home = traveller.luggage.home;
            self.tools.shared.desk.send(home, Arrival::Home(traveller));
        }
    }

    /// Takes a gathering for the partitions of this site that it touches.
    pub(crate) fn join(&mut self, gathering: &Arc<Gathering>) {
        let mut due = Vec::new();
        self.home.take_gathering(gathering, &mut due);
        due.into_iter().for_each(|due| self.act(due));
    }

    #[inline]
    pub(crate) fn take_batch(&mut self, batch: Box<CallBatch>) {
        let id = batch.partition.expect("a multi-partition call comes as a job");
        match self.home.take_batch(batch, id) {
            Some(Due::Run(batch)) => self.run_batch(batch),
            Some(due) => self.act(due),
            None => {}
        }
    }

    fn act(&mut self, due: Due) {
        match due {
            Due::Run(batch) => self.run_batch(batch),
            Due::Announce(gathering) => {
                self.tools.shared.desk.announce(&gathering, self.now_ns());
            }
            Due::Bring(gathering, traveller) => self.bring(&gathering, traveller),
        }
    }

    /// Brings a partition to a strict gathering; if it was the last one, runs the job and sends the partitions on. One whose
    /// next message is another strict gathering goes straight there, so that jobs in a row change threads once and not each
    /// time.
    fn bring(&mut self, gathering: &Arc<Gathering>, traveller: Traveller) {
        let lead = gathering.bring(traveller);
        let mut leads: VecDeque<_> = lead.map(|lead| (gathering.clone(), lead)).into_iter().collect();
        let mut jobs = 0;
        while let Some((gathering, mut lead)) = leads.pop_front() {
            jobs += 1;
            self.run_over(&mut lead, std::iter::once(gathering.take_job()));
            for (partition, mut luggage) in lead.partitions.into_iter().zip(lead.luggage) {
                let next = match jobs < JOBS_IN_A_ROW_MAX {
                    true => luggage.take_next_strict(),
                    false => None,
                };
                let traveller = Traveller { partition, luggage };
                match next {
                    None => self.send_home(traveller),
                    Some(next) => leads.extend(next.bring(traveller).map(|lead| (next, lead))),
                }
            }
        }
    }

    fn run_over(&mut self, lead: &mut Lead, jobs: impl Iterator<Item = crate::gather::Job>) {
        self.tools.refresh_if_due();
        let sink = &*self.tools.sink;
        lead.partitions.iter_mut().for_each(|partition| {
            partition.settle(sink);
            partition.note_change();
        });
        for job in jobs {
            job(&mut ExclusivePartitions {
                partitions: &mut lead.partitions,
                tools: &mut self.tools,
            });
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.tools.shared.desk.forget(self.id);
    }
}
