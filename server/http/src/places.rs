//! Places for operations that block a thread: each kind has its own, so that none waits for what another kind waits for.

use std::{sync::Arc, time::Duration};

use reprise_api::{Problem, ProblemKind};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::{
    limits::{COMPILATIONS_MAX, LOG_READS_MAX, OTHER_OPERATIONS_MAX, ROWS_READS_MAX, ROWS_WAIT_MAX, STATS_READS_MAX},
    refusal::Refusal,
};

/// What operations wait for.
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
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Deploy => "deployment",
            Self::ReadLog => "look into the log",
            Self::ReadRows => "page of rows",
            Self::ReadStats => "look at the tables",
            Self::Other => "operation",
        }
    }

    /// How long an answer is waited for. None: as long as it takes, for what it does is done anyway.
    pub fn answer_wait_max(self) -> Option<Duration> {
        match self {
            Self::ReadRows => Some(ROWS_WAIT_MAX),
            Self::Deploy | Self::ReadLog | Self::ReadStats | Self::Other => None,
        }
    }

    pub fn too_busy(self, why: &str) -> Refusal {
        let detail = format!("this {} {why}; try again after the given time", self.name());
        let mut problem = Problem::new(ProblemKind::Overloaded, detail);
        problem.retry_after_ms = Some(200);
        problem.into()
    }
}

pub struct Places {
    deploy: Arc<Semaphore>,
    read_log: Arc<Semaphore>,
    read_rows: Arc<Semaphore>,
    read_stats: Arc<Semaphore>,
    other: Arc<Semaphore>,
}

impl Default for Places {
    fn default() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self {
            deploy: places(COMPILATIONS_MAX),
            read_log: places(LOG_READS_MAX),
            read_rows: places(ROWS_READS_MAX),
            read_stats: places(STATS_READS_MAX),
            other: places(OTHER_OPERATIONS_MAX),
        }
    }
}

impl Places {
    /// A place, which is free again when it is dropped. Waits for it, within bounds.
    pub async fn take(&self, kind: Operation, wait_max: Duration) -> Result<OwnedSemaphorePermit, Refusal> {
        let places = match kind {
            Operation::Deploy => &self.deploy,
            Operation::ReadLog => &self.read_log,
            Operation::ReadRows => &self.read_rows,
            Operation::ReadStats => &self.read_stats,
            Operation::Other => &self.other,
        };
        match timeout(wait_max, places.clone().acquire_owned()).await {
            Ok(place) => Ok(place.expect("never closed")),
            Err(_) => Err(kind.too_busy("found no place: as many as there may be are under way")),
        }
    }
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
        let places = Places::default();
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
        ] {
            taken.push(places.take(kind, wait_max).await.expect("another kind's"));
        }
        drop(taken);
        let _place = places.take(Operation::Deploy, wait_max).await.expect("free again");
    }
}
