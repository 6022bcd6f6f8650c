//! Permits for operations that block a thread. Each kind has its own, by the resource that it waits for. A disk or a server that hangs therefore
//! holds up one kind alone.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use reprise_api::{Problem, ProblemKind};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::{
    limits::{
        ANSWERS_MAX, BACKUP_OPERATIONS_MAX, BACKUP_WAIT_MAX, COMPILATIONS_MAX, LOG_READS_MAX, MEMBERSHIP_CHANGES_MAX,
        OPERATION_PLACE_WAIT_MAX, OTHER_OPERATIONS_MAX, PROMOTIONS_MAX, REMOVALS_MAX, ROWS_READS_MAX, ROWS_WAIT_MAX,
        STATS_READS_MAX,
    },
    refusal::Refusal,
};

/// Operations, by the resource that they wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Processors, then every partition, and a few seconds for the standbys.
    Deploy,
    /// The deployment under way, and then what it waits for: removals of modules and tables.
    Remove,
    /// The disk of the data directory.
    ReadLog,
    /// Partitions, which may be busy.
    ReadRows,
    /// Nothing for long.
    ReadStats,
    /// The disk of the backups, which may be another machine's and may hang.
    Backup,
    /// Other servers, and the store of the lease: promotions and hand-overs.
    Promote,
    /// The node's document in the data directory: promises to others, and standbys that are forgotten.
    Membership,
    /// Partitions and the disk of the data directory: checkpoints, and names of tokens for the log.
    Other,
    /// Processors: a step of an answer, between two waits.
    Answer,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Deploy => "deployment",
            Self::Remove => "removal",
            Self::ReadLog => "look into the log",
            Self::ReadRows => "page of rows",
            Self::ReadStats => "look at the tables",
            Self::Backup => "operation on backups",
            Self::Promote => "promotion or hand-over",
            Self::Membership => "change of the members",
            Self::Other => "operation",
            Self::Answer => "answer",
        }
    }

    /// Returns the longest wait for an answer. None: no limit, because the work is done anyway.
    pub fn answer_wait_max(self) -> Option<Duration> {
        match self {
            Self::ReadRows => Some(ROWS_WAIT_MAX),
            Self::Backup => Some(BACKUP_WAIT_MAX),
            Self::Deploy
            | Self::Remove
            | Self::ReadLog
            | Self::ReadStats
            | Self::Promote
            | Self::Membership
            | Self::Other
            | Self::Answer => None,
        }
    }

    /// Returns the refusal of an operation that did not end within `answer_wait_max`. It keeps its place and may still end.
    pub fn too_late(self) -> Refusal {
        if self != Self::Backup {
            return self.too_busy("did not come to its turn");
        }
        let mut refusal = Refusal::unavailable(&format!(
            "the disk of the backups did not answer within {} s. If it answers later, the server still carries the operation out: list the backups \
             before you repeat it",
            BACKUP_WAIT_MAX.as_secs()
        ));
        refusal.problem.retry_after_ms = Some(5_000);
        refusal
    }

    pub fn too_busy(self, why: &str) -> Refusal {
        let detail = format!("this {} {why}; try again after the given time", self.name());
        let mut problem = Problem::new(ProblemKind::Overloaded, detail);
        problem.retry_after_ms = Some(200);
        problem.into()
    }
}

pub struct OperationPermits {
    deploy: Arc<Semaphore>,
    remove: Arc<Semaphore>,
    read_log: Arc<Semaphore>,
    read_rows: Arc<Semaphore>,
    read_stats: Arc<Semaphore>,
    backup: Arc<Semaphore>,
    promote: Arc<Semaphore>,
    membership: Arc<Semaphore>,
    other: Arc<Semaphore>,
    answer: Arc<Semaphore>,
}

impl Default for OperationPermits {
    fn default() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self {
            deploy: places(COMPILATIONS_MAX),
            remove: places(REMOVALS_MAX),
            read_log: places(LOG_READS_MAX),
            read_rows: places(ROWS_READS_MAX),
            read_stats: places(STATS_READS_MAX),
            backup: places(BACKUP_OPERATIONS_MAX),
            promote: places(PROMOTIONS_MAX),
            membership: places(MEMBERSHIP_CHANGES_MAX),
            other: places(OTHER_OPERATIONS_MAX),
            answer: places(ANSWERS_MAX),
        }
    }
}

impl OperationPermits {
    fn of(&self, kind: Operation) -> Arc<Semaphore> {
        let places = match kind {
            Operation::Deploy => &self.deploy,
            Operation::Remove => &self.remove,
            Operation::ReadLog => &self.read_log,
            Operation::ReadRows => &self.read_rows,
            Operation::ReadStats => &self.read_stats,
            Operation::Backup => &self.backup,
            Operation::Promote => &self.promote,
            Operation::Membership => &self.membership,
            Operation::Other => &self.other,
            Operation::Answer => &self.answer,
        };
        Arc::clone(places)
    }

    /// A place, which is free again when it is dropped. Waits for it, within bounds.
    pub async fn take(&self, kind: Operation, wait_max: Duration) -> Result<OwnedSemaphorePermit, Refusal> {
        match timeout(wait_max, self.of(kind).acquire_owned()).await {
            Ok(place) => Ok(place.expect("never closed")),
            Err(_) => Err(kind.too_busy("found no place: as many as there may be are under way")),
        }
    }

    /// Makes an answer. Each step, from one wait to the next, has a place and a thread that serves no connection. A long step therefore holds up
    /// no other request. A waiting answer holds neither.
    pub async fn answer<T>(&self, answer: impl Future<Output = T>) -> Result<T, Refusal> {
        let mut answer = pin!(answer);
        let mut place = self.take(Operation::Answer, OPERATION_PLACE_WAIT_MAX).await?;
        loop {
            let step = poll_fn(|cx| Poll::Ready(tokio::task::block_in_place(|| answer.as_mut().poll(cx))));
            if let Poll::Ready(made) = step.await {
                return Ok(made);
            }
            drop(place);
            until_woken().await;
            // The operation has begun and may have changed something, so this wait has no bound.
            place = self.of(Operation::Answer).acquire_owned().await.expect("never closed");
        }
    }
}

/// Waits until something wakes this task.
async fn until_woken() {
    let mut is_asleep = false;
    poll_fn(|_| match std::mem::replace(&mut is_asleep, true) {
        false => Poll::Pending,
        true => Poll::Ready(()),
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_own_places_and_waits_for_them_within_bounds() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(check_places());
    }

    async fn check_places() {
        const KINDS: [Operation; 10] = [
            Operation::Deploy,
            Operation::Remove,
            Operation::ReadLog,
            Operation::ReadRows,
            Operation::ReadStats,
            Operation::Backup,
            Operation::Promote,
            Operation::Membership,
            Operation::Other,
            Operation::Answer,
        ];
        let places = OperationPermits::default();
        let wait_max = Duration::from_millis(1);
        for full in KINDS {
            let mut taken = Vec::new();
            for _ in 0..places.of(full).available_permits() {
                taken.push(places.take(full, wait_max).await.expect("free"));
            }
            let refusal = places.take(full, wait_max).await.expect_err("none is free");
            assert_eq!((refusal.slug(), refusal.problem.status), ("overloaded", 503));
            assert_eq!(refusal.problem.retry_after_ms, Some(200));
            for kind in KINDS.into_iter().filter(|kind| *kind != full) {
                taken.push(places.take(kind, wait_max).await.expect("another kind's"));
            }
            drop(taken);
            let _place = places.take(full, wait_max).await.expect("free again");
        }
    }

    #[test]
    fn disk_of_the_backups_that_hangs_is_named_by_the_refusal() {
        assert_eq!(Operation::Backup.answer_wait_max(), Some(BACKUP_WAIT_MAX));
        let refusal = Operation::Backup.too_late();
        assert_eq!((refusal.slug(), refusal.problem.status), ("unavailable", 503));
        assert!(
            refusal
                .problem
                .detail
                .contains("the disk of the backups did not answer within 60 s")
        );
        assert_eq!(Operation::ReadRows.too_late().slug(), "overloaded");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn answers_in_the_making_keep_no_thread_from_others() {
        let places = Arc::new(OperationPermits::default());
        let (sender, ends) = std::sync::mpsc::channel::<()>();
        let ends = Arc::new(std::sync::Mutex::new(ends));
        let begun = Arc::new(Semaphore::new(0));
        // There are more answers than places, and each works until it gets its message.
        let answers: Vec<_> = (0..ANSWERS_MAX + 2)
            .map(|_| {
                let (places, ends, begun) = (places.clone(), ends.clone(), begun.clone());
                tokio::spawn(async move {
                    let answer = async {
                        tokio::task::yield_now().await;
                        begun.add_permits(1);
                        ends.lock()
                            .expect("no code panics under this lock")
                            .recv()
                            .expect("told to end");
                    };
                    places.answer(answer).await.expect("made");
                })
            })
            .collect();
        let all_places = begun.acquire_many(ANSWERS_MAX as u32).await.expect("never closed");
        // The one thread that there is for connections still serves them.
        assert_eq!(tokio::spawn(async { 7 }).await.expect("no panic"), 7);
        assert_eq!(begun.available_permits(), 0, "no more are made than there are places");
        all_places.forget();
        answers.iter().for_each(|_| sender.send(()).expect("an answer waits"));
        for answer in answers {
            answer.await.expect("no panic");
        }
        assert_eq!(places.answer.available_permits(), ANSWERS_MAX);
    }
}
