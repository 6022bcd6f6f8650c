//! Commands over the same partitions of several sites, one behind the other, met by each site in the order of its own work: it
//! brings its partitions and waits, and the site that comes last runs them all. The order of both is known, so nobody has to be
//! asked when it may be.

use std::{
    mem,
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use reprise_partition::{ExclusivePartitions, Partition, Site, Touched};

use crate::{
    command::{Command, replay_multi},
    outcome::Outcome,
};

/// How long a site looks for the end before it sleeps: others that want the processor come first, and to wake a thread takes
/// longer than most commands.
const LOOK: Duration = Duration::from_millis(2);
/// A site that sleeps looks that often whether another one failed, which then never comes.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

pub(crate) struct Joint {
    touched: Touched,
    partitions_count: usize,
    table: Mutex<Table>,
    /// The command was run; who waits finds its partitions on the table.
    is_over: AtomicBool,
    over: Condvar,
}

struct Table {
    /// In the log's order; none once somebody runs them.
    commands: Vec<Command>,
    partitions: Vec<Box<Partition>>,
    /// Sites that wait and look no longer.
    sleepers: usize,
}

impl Joint {
    pub fn new(touched: Touched, partitions_count: usize, command: Command) -> Self {
        let table = Table {
            commands: vec![command],
            partitions: Vec::with_capacity(partitions_count),
            sleepers: 0,
        };
        Self {
            touched,
            partitions_count,
            table: Mutex::new(table),
            is_over: AtomicBool::new(false),
            over: Condvar::new(),
        }
    }

    /// Adds a command over the same partitions, which follows in the work of all sites. Nobody was sent to it yet.
    pub fn push(&self, command: Command) {
        self.lock().commands.push(command);
    }

    pub fn touched(&self) -> &Touched {
        &self.touched
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("nothing panics under this lock")
    }

    /// Brings the partitions of `site`, and has them back when the command was run or something failed anywhere.
    pub fn join(&self, site: &mut Site, outcome: &Outcome) {
        let lead = {
            let mut table = self.lock();
            site.lend(&self.touched, &mut table.partitions);
            let are_here = table.partitions.len() == self.partitions_count;
            are_here.then(|| (mem::take(&mut table.partitions), mem::take(&mut table.commands)))
        };
        match lead {
            Some((partitions, commands)) => self.lead(site, outcome, partitions, commands),
            None => self.wait(site, outcome),
        }
    }

    fn lead(&self, site: &mut Site, outcome: &Outcome, mut partitions: Vec<Box<Partition>>, commands: Vec<Command>) {
        partitions.sort_unstable_by_key(|partition| partition.id);
        let mut held = ExclusivePartitions {
            partitions: &mut partitions,
            tools: &mut site.tools,
        };
        for command in commands {
            if outcome.has_failed() {
                break;
            }
            outcome.note(replay_multi(&mut held, command));
            outcome.count(1);
        }
        site.take_back(&mut partitions);
        let mut table = self.lock();
        table.partitions = partitions;
        self.is_over.store(true, Ordering::Release);
        if table.sleepers > 0 {
            self.over.notify_all();
        }
    }

    fn wait(&self, site: &mut Site, outcome: &Outcome) {
        let is_over = || self.is_over.load(Ordering::Acquire);
        let has_seen = site.tools.shared.threads.look(LOOK, &is_over);
        let mut table = self.lock();
        if !has_seen {
            table.sleepers += 1;
            // Who runs it comes to its end; who failed before it does not come at all.
            while !is_over() && !(outcome.has_failed() && !table.commands.is_empty()) {
                let slept = self.over.wait_timeout(table, LOOK_AGAIN);
                table = slept.expect("as in `lock`").0;
            }
        }
        site.take_back(&mut table.partitions);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicU64, AtomicUsize},
        },
        thread,
    };

    use reprise_base::{Lsn, MemoryLedger, PartitionId, SiteId, TxnId};
    use reprise_env::{RealClock, RealThreads};
    use reprise_observe::{RecentLines, Registry};
    use reprise_partition::{Coordinator, ExecContext, Logging, NoLog, Shared};
    use reprise_txn::ModuleId;

    use super::*;
    use crate::ReplayError;

    const PARTITIONS: u16 = 5;
    const SITES: u16 = 3;

    fn shared() -> Arc<Shared> {
        Arc::new(Shared {
            deployed: Default::default(),
            generation: AtomicU64::new(0),
            memory: MemoryLedger::unlimited(),
            clock: Arc::new(RealClock::new()),
            threads: Arc::new(RealThreads),
            secret: [1, 2],
            partitions_count: PARTITIONS,
            sites_count: SITES,
            waiting: (0..PARTITIONS).map(|_| AtomicUsize::new(0)).collect(),
            multi_tick: AtomicU64::new(0),
            copying: AtomicUsize::new(0),
            binaries: Mutex::default(),
            lines: Arc::new(RecentLines::new()),
            notices: Default::default(),
            logging: Logging::default(),
            calls: Arc::default(),
            coordinator: Coordinator::new(PARTITIONS, SITES),
            told: reprise_partition::Told::new(PARTITIONS, SITES),
        })
    }

    /// Of a module that there is not: whoever runs it finds that it diverges.
    fn command(lsn: u64) -> Command {
        Command {
            lsn: Lsn(lsn),
            end: Lsn(lsn + 1),
            txn_id: TxnId(lsn),
            module_id: ModuleId(0),
            procedure: 0,
            digest: 0,
            args: Vec::new(),
            idempotency_key: None,
            idempotency_scope: Box::default(),
            twin: None,
        }
    }

    /// Brings each of `sites` to the joint, on a thread of its own, and looks whether it has all of its partitions behind it.
    fn join(joint: &Joint, outcome: &Outcome, sites: &[u16], meanwhile: impl FnOnce()) {
        let shared = shared();
        thread::scope(|scope| {
            for id in sites {
                let shared = shared.clone();
                scope.spawn(move || {
                    let tools = ExecContext::new(shared, Box::new(NoLog), Registry::new().recorder());
                    let (_sender, inbox) = crossbeam_channel::unbounded();
                    let mut site = Site::new(SiteId(*id), tools, inbox);
                    joint.join(&mut site, outcome);
                    for partition in (*id..PARTITIONS).step_by(SITES as usize) {
                        let id = PartitionId(partition);
                        assert_eq!(site.partition(id).id, id);
                    }
                });
            }
            meanwhile();
        });
    }

    fn touched(partitions: &[u16]) -> Touched {
        Touched::Some(partitions.iter().map(|id| PartitionId(*id)).collect())
    }

    #[test]
    fn the_last_site_runs_all_commands_and_every_site_has_its_partitions_back() {
        for partitions in [&[0, 1][..], &[0, 1, 2, 3, 4], &[0, 1, 4], &[0, 3]] {
            let mut sites: Vec<u16> = partitions.iter().map(|id| id % SITES).collect();
            sites.sort_unstable();
            sites.dedup();
            let joint = Joint::new(touched(partitions), partitions.len(), command(7));
            joint.push(command(8));
            let outcome = Outcome::new(MemoryLedger::unlimited(), Arc::new(|_| {}));
            join(&joint, &outcome, &sites, || {});
            // The first of the two was run, and what fails ends it.
            let error = outcome.take_error();
            assert!(matches!(error, ReplayError::Diverged(found) if found.lsn == Lsn(7)));
        }
    }

    #[test]
    fn who_waits_for_a_site_that_failed_before_goes_home() {
        let joint = Joint::new(touched(&[0, 1, 2]), 3, command(7));
        let outcome = Outcome::new(MemoryLedger::unlimited(), Arc::new(|_| {}));
        join(&joint, &outcome, &[0, 2], || {
            outcome.fail(ReplayError::Stopped);
        });
        // One that comes late finds nobody.
        join(&joint, &outcome, &[1], || {});
        assert_eq!(joint.lock().partitions.len(), 0);
        assert_eq!(joint.lock().commands.len(), 1);
    }
}
