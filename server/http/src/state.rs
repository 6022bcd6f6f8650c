//! The state that every handler sees.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use arc_swap::{ArcSwap, Guard};
use opentelemetry_sdk::trace::SdkTracer;
use reprise_api::{Phase, integers_are_numbers, with_integers};
use reprise_base::{Budget, MemoryKind};
use reprise_catalog::Catalog;
use reprise_database::Database;
use reprise_net_tls::Identity;
use reprise_observe::RefusalReason;
use reprise_router::Router;
use tokio::sync::{Semaphore, watch};

use crate::{
    auth::Auth,
    coalescer::Coalescers,
    control::ControlLog,
    event_places::EventPlaces,
    limits::{BATCH_CALLS_IN_FLIGHT_MAX, ConnectionLimits, DOWNLOADS_MAX, OPERATION_PLACE_WAIT_MAX},
    metrics::Metrics,
    module_openapi::Documents,
    permits::{Operation, OperationPermits},
    refusal::Refusal,
    status,
    texts::Texts,
};

/// The server's parts; cheap to clone.
#[derive(Clone)]
pub struct AppState(Arc<Parts>);

/// Options with defaults.
#[derive(Default)]
pub struct HttpOptions {
    /// Limits of connections.
    pub limits: ConnectionLimits,
    /// The tracer that takes the spans, if any.
    pub tracer: Option<SdkTracer>,
    /// The certificate shown to clients; None: plain HTTP.
    pub tls: Option<Arc<Identity>>,
}

pub struct Parts {
    /// The database, for an operator's requests; calls go to its router.
    pub database: Arc<Database>,
    pub router: Router,
    /// A copy of the module versions, which no request reads. None: this server goes without it.
    pub catalog: Option<Catalog>,
    /// Exchanged whole when the configuration is read anew.
    auth: ArcSwap<Auth>,
    pub limits: ConnectionLimits,
    /// The tracer for the spans of calls. None if no collector is set.
    pub tracer: Option<SdkTracer>,
    /// The certificate shown to clients; None: plain HTTP.
    pub tls: Option<Arc<Identity>>,
    pub metrics: Metrics,
    pub counts: HttpCounts,
    pub coalescers: Coalescers,
    /// Calls of batches that may yet be given to the engine.
    pub batch_calls: Arc<Semaphore>,
    pub places: OperationPermits,
    /// The operations beside calls.
    pub controls: ControlLog,
    pub texts: Texts,
    pub documents: Documents,
    pub event_places: EventPlaces,
    pub downloads: Arc<Semaphore>,
    /// True once the server stops.
    pub draining: watch::Sender<bool>,
}

/// Counts of this crate's own.
#[derive(Default)]
pub struct HttpCounts {
    pub connections_open: AtomicU64,
    pub connections: AtomicU64,
    /// Answers by the first digit of their status.
    pub answers: [AtomicU64; 6],
    pub batch_calls: AtomicU64,
}

impl HttpCounts {
    fn answered(&self, status: u16) {
        let class = (status / 100).min(5) as usize;
        self.answers[class].fetch_add(1, Ordering::Relaxed);
    }
}

impl Parts {
    /// Counts an answer; by its slug also a refusal that the engine has not counted.
    pub fn count_answer(&self, status: u16, refusal: Option<&str>) {
        self.counts.answered(status);
        let reason = |slug| RefusalReason::ALL.into_iter().find(|reason| reason.name() == slug);
        if let Some(reason) = refusal.and_then(reason) {
            self.router.refusals().count(reason);
        }
    }

    pub fn count_refusal(&self, refusal: &Refusal) {
        let slug = (!refusal.is_counted).then(|| refusal.slug());
        self.count_answer(refusal.problem.status, slug);
    }
}

impl AppState {
    /// Makes the state for a database whose router takes calls. A server without a catalog answers every request.
    pub fn new(database: Arc<Database>, catalog: impl Into<Option<Catalog>>, auth: Auth, options: HttpOptions) -> Self {
        let router = database.router().clone();
        let coalescers = Coalescers::new(router.partitions_count());
        let texts = Texts::new(router.memory().texts());
        Self(Arc::new(Parts {
            database,
            router,
            catalog: catalog.into(),
            auth: ArcSwap::from_pointee(auth.encrypted(options.tls.is_some())),
            limits: options.limits,
            tracer: options.tracer,
            tls: options.tls,
            metrics: Metrics::new(),
            counts: HttpCounts::default(),
            coalescers,
            batch_calls: Arc::new(Semaphore::new(BATCH_CALLS_IN_FLIGHT_MAX)),
            places: OperationPermits::default(),
            controls: ControlLog::default(),
            texts,
            documents: Documents::default(),
            event_places: EventPlaces::default(),
            downloads: Arc::new(Semaphore::new(DOWNLOADS_MAX)),
            draining: watch::Sender::new(false),
        }))
    }

    /// Sets the tokens by which requests are checked from now on, also those of open connections.
    pub fn set_auth(&self, auth: Auth) {
        self.auth.store(Arc::new(auth.encrypted(self.tls.is_some())));
    }

    /// Refuses requests before the last record is replayed, because a missing row may still appear.
    pub fn check_open(&self) -> Result<(), Refusal> {
        if self.router.is_recovered() {
            return Ok(());
        }
        match status::phase(self.router.phase()) {
            phase @ Phase::Recovering { .. } => Err(Refusal::recovering(phase)),
            Phase::Failed { .. } => Err(Refusal::unavailable(
                "the server could not open the database; GET /readyz has the report",
            )),
            Phase::Stopping => Err(Refusal::unavailable("the server is stopping")),
            Phase::Ready => Ok(()), // the server has become ready meanwhile
        }
    }

    /// Runs an operation that may block on a thread of its own. A few of its kind run at once; the others wait. It keeps its place until it
    /// ends, even if its client disconnects or gets the answer that it takes too long.
    pub async fn blocking<T: Send + 'static>(
        &self,
        kind: Operation,
        operation: impl FnOnce(&Parts) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let place = self.places.take(kind, OPERATION_PLACE_WAIT_MAX).await?;
        let parts = self.0.clone();
        let are_numbers = integers_are_numbers();
        let task = tokio::task::spawn_blocking(move || {
            let _place = place;
            with_integers(are_numbers, || operation(&parts))
        });
        let ended = match kind.answer_wait_max() {
            None => task.await,
            Some(wait_max) => match tokio::time::timeout(wait_max, task).await {
                Ok(ended) => ended,
                Err(_) => return Err(kind.too_late()),
            },
        };
        ended.map_err(|error| Refusal::internal(&format!("run operation: {error}")))
    }
}

impl Parts {
    /// The tokens in force.
    pub fn auth(&self) -> Guard<Arc<Auth>> {
        self.auth.load()
    }

    /// Returns the budget for requests on their way, over all connections.
    pub fn requests(&self) -> &Arc<Budget> {
        self.router.memory().kind(MemoryKind::Requests)
    }
}

impl std::ops::Deref for AppState {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}
