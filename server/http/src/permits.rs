//! Permits for operations that block a thread: each kind has its own, so that none waits for what another kind waits for.

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
        ANSWERS_MAX, COMPILATIONS_MAX, LOG_READS_MAX, OPERATION_PLACE_WAIT_MAX, OTHER_OPERATIONS_MAX, ROWS_READS_MAX,
        ROWS_WAIT_MAX, STATS_READS_MAX,
    },
    refusal::Refusal,
};

/// Operations, by the resource that they wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Processors, and every partition at the end.
    Deploy,
    /// The disk.
    ReadLog,
    /// Partitions, which may be busy.
    ReadRows,
    /// Nothing for long.
    ReadStats,
    /// Partitions and the disk: removals, checkpoints, backups.
    Other,
    /// Processors: a step of an answer, between two waits.
    Answer,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Deploy => "deployment",
            Self::ReadLog => "look into the log",
            Self::ReadRows => "page of rows",
            Self::ReadStats => "look at the tables",
            Self::Other => "operation",
            Self::Answer => "answer",
        }
    }

    /// Returns the longest wait for an answer. None: no limit, because the work is done anyway.
    pub fn answer_wait_max(self) -> Option<Duration> {
        match self {
            Self::ReadRows => Some(ROWS_WAIT_MAX),
            Self::Deploy | Self::ReadLog | Self::ReadStats | Self::Other | Self::Answer => None,
        }
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
    read_log: Arc<Semaphore>,
    read_rows: Arc<Semaphore>,
    read_stats: Arc<Semaphore>,
    other: Arc<Semaphore>,
    answer: Arc<Semaphore>,
}

impl Default for OperationPermits {
    fn default() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self {
            deploy: places(COMPILATIONS_MAX),
            read_log: places(LOG_READS_MAX),
            read_rows: places(ROWS_READS_MAX),
            read_stats: places(STATS_READS_MAX),
            other: places(OTHER_OPERATIONS_MAX),
            answer: places(ANSWERS_MAX),
        }
    }
}

impl OperationPermits {
    fn of(&self, kind: Operation) -> Arc<Semaphore> {
        let places = match kind {
            Operation::Deploy => &self.deploy,
            Operation::ReadLog => &self.read_log,
            Operation::ReadRows => &self.read_rows,
            Operation::ReadStats => &self.read_stats,
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
        let places = OperationPermits::default();
        let wait_max = Duration::from_millis(1);
        let mut taken = Vec::new();
        for _ in 0..COMPILATIONS_MAX {
            taken.push(places.take(Operation::Deploy, wait_max).await.expect("free"));
        }
        let refusal = places
            .take(Operation::Deploy, wait_max)
            .await
            .expect_err("none is free");
        assert_eq!(refusal.problem.status, 503);
        assert_eq!(refusal.problem.retry_after_ms, Some(200));
        for kind in [
            Operation::ReadLog,
            Operation::ReadRows,
            Operation::ReadStats,
            Operation::Other,
            Operation::Answer,
        ] {
            taken.push(places.take(kind, wait_max).await.expect("another kind's"));
        }
        drop(taken);
        let _place = places.take(Operation::Deploy, wait_max).await.expect("free again");
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
