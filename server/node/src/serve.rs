//! `reprise serve`: wiring, recovery, signals.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Context;
use clap::ArgMatches;
use reprise_catalog::{Catalog, CatalogEntry};
use reprise_database::{
    Database, LogPolicy, OpenError, ReadersConfig, RecoveryReport, bring_home, list_cuts, set_hash_secret,
    stored_partitions,
};
use reprise_env::{DiskLock, entropy, ignore_signals, make_private_dirs};
use reprise_http::{AppState, HttpOptions};
use reprise_net_tls::{Identity, use_ring};
use reprise_router::{NodePhase, RecoveryStage, Router};
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    sync::{oneshot, watch},
};

use crate::{
    activity::Activity,
    announce,
    certificate::CertificateWatch,
    config::{
        ServeArgs, ServeConfig, Setting, Source, by_default,
        place::{cores, sites_or_default},
    },
    descriptors,
    directory::lock_root,
    divergence,
    files::{Files, warn_of_missing_catalog},
    lease::ServerLease,
    members,
    output::{self, ProgressLine, VerbFailure, VerbResult, bytes, grouped, usage},
    reload::{Notes, ReloadContext, Reloader},
    server_output::{self, Line},
    spans::Spans,
    standby::{self, Primary},
};

const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// Interval at which a standby checks whether it can still follow its primary.
const PARTED_POLL_INTERVAL: Duration = Duration::from_millis(500);

pub fn run(args: ServeArgs, matches: &ArgMatches) -> VerbResult {
    server_output::start().context("start the thread that writes the output")?;
    // The format comes first, because an error of reading the file is printed in it.
    server_output::set_format(args.telemetry.log_format.unwrap_or_default());
    let config = ServeConfig::load(args.clone(), matches)?;
    server_output::set_format(config.telemetry.log_format.value);
    ignore_signals();
    let may_be_open = descriptors::raise();
    hide_hashes()?;
    config.warn_of_other_file();
    use_ring();
    let name = standby::name_of(&config.replication, config.address.port());
    let identity = config.tls.identity()?;
    let mut certificate = CertificateWatch::new(identity.clone());
    certificate.warn_if_near();
    let net = standby::net_of(&config.replication, identity.as_ref())?;
    let mut primary = Primary::of(&config.replication, &net, &name)?;
    let begun = primary.as_mut().map(|primary| begin_as_standby(primary, &config));
    let begun = begun.transpose()?;
    let partitions = partitions(&config)?;
    let sites = Setting {
        value: sites_or_default(config.place.sites.value, partitions.value)?,
        source: config.place.sites.source,
    };
    let version = env!("CARGO_PKG_VERSION");
    server_output::say(Line::info("started", format!("reprise {version}")).with("version", version));
    server_output::say(config.describe(&partitions, &sites));

    let runtime = start_http()?;
    // A SIGHUP before this is ignored.
    let hangup = runtime
        .block_on(async { signal(SignalKind::hangup()) })
        .context("listen for SIGHUP")?;
    // The address is bound first, so that a taken address is detected before the log is opened.
    let listener = runtime.block_on(listen(config.address, identity.is_some()))?;
    // Missing memory is detected early too, before any file is made.
    config.memory.check()?;
    let files = Files::prepare(&config)?;
    let database = open_database(&config, &files, (partitions.value, sites.value), primary.is_some())?;
    drop(begun); // the open log keeps others away from here on
    let activity = Activity::start(database.router().clone(), certificate).context("start a thread")?;
    let address = listener.local_addr().context("ask for the address")?;
    let url = own_url(&config, address, identity.is_some());
    database.set_cuts(list_cuts(&standby::cuts_of(&config.place.data_dir.value)));
    standby::serve_standbys(&database, (&config.replication, net), (&name, url.clone()))?;
    let catalog = files.open_catalog();
    let (options, spans) = http_options(&config, identity.clone(), may_be_open)?;
    let notes = Notes::of(&config);
    let state = AppState::new(database.clone(), catalog.clone(), config.tokens.auth, options);
    let opening = OpenRequest {
        dir: config.place.data_dir.value,
        read_only: config.read_only,
        readers: config.replication.readers(sites.value, config.memory.memory_max.value),
        lease: ServerLease::of(&config.replication, &config.tls, &name, url.clone()),
        primary: primary.map(|primary| primary.with_url(url)),
    };
    let (recovery, recovering) = recover(database.clone(), catalog, opening)?;
    // Without a lease, an operator may have promoted the wrong one. Other records stay until an operator starts this server again.
    let cuts_by_itself = config.replication.lease_etcd.value.is_some();
    let reloading = ReloadContext {
        reloader: Reloader::new(args, matches.clone(), (notes, identity)),
        database: database.clone(),
    };
    let outcome = runtime.block_on(serve(listener, state, recovery, hangup, (reloading, cuts_by_itself)));
    spans.iter().for_each(Spans::stop);
    let closed = wind_up(&database, &outcome, recovering, activity);
    // The answers are written and the log is closed. A thread may still wait for the disk of the backups, which may hang.
    runtime.shutdown_background();
    closed.and(outcome)
}

/// Draws the secret of this process's hash indexes, so that no client can choose keys that all hash alike.
fn hide_hashes() -> VerbResult {
    let bytes: [u8; 24] = entropy().context("draw the secret of the hash indexes")?;
    let (words, _) = bytes.as_chunks::<8>();
    set_hash_secret([0, 1, 2].map(|at| u64::from_le_bytes(words[at])));
    Ok(())
}

/// Closes the log after the last answer, unless it is still being replayed.
fn wind_up(database: &Database, outcome: &VerbResult, recovering: JoinHandle<()>, activity: Activity) -> VerbResult {
    if matches!(database.router().phase(), NodePhase::Recovering { .. }) {
        // Nothing was written yet, and the replay can't be interrupted, so it is left.
        let status = outcome
            .as_ref()
            .err()
            .map_or(0, |failure| output::print_failure(failure, false));
        server_output::drain();
        std::process::exit(status.into());
    }
    if matches!(outcome, Ok(()) | Err(VerbFailure::Again(_))) {
        // The recovery thread may still write the catalog, which must not be left half made.
        let _ = recovering.join(); // the thread has reported its result
        database.close().context("close the log")?;
    }
    drop(activity);
    Ok(())
}

fn start_http() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let builder = builder.enable_all().worker_threads(http_threads()).thread_name("http");
    builder.build().context("start the HTTP threads")
}

/// Returns one fewer than the cores that the engine and the log share. On two cores, calls were faster through one thread than through two.
fn http_threads() -> usize {
    let cores = std::thread::available_parallelism();
    cores.map_or(1, |cores| cores.get().saturating_sub(1)).max(1)
}

/// Opens the database with this many partitions and sites, unless another server leads it.
fn open_database(
    config: &ServeConfig,
    files: &Files,
    counts: (u16, u16),
    is_standby: bool,
) -> Result<Arc<Database>, VerbFailure> {
    let is_encrypted = config.tls.tls_cert.value.is_some();
    members::check(config, is_encrypted)?;
    let opened = config.database(files.log_dir.clone(), counts.0, counts.1);
    let has_lease = config.replication.lease_etcd.value.is_some();
    let open = match (is_standby, config.read_only) {
        (true, _) => Database::open_standby,
        (false, true) => Database::open_read_only,
        (false, false) if has_lease => Database::open_any,
        (false, false) => Database::open,
    };
    let data_dir = config.place.data_dir.value.display();
    let database = open(opened).with_context(|| format!("open the database under {data_dir}"))?;
    let database = set_up(database, config)?;
    members::watch(&database, &config.replication, is_encrypted).context("start a thread")?;
    Ok(database)
}

/// Gives an opened database its settings before it recovers.
fn set_up(database: Database, config: &ServeConfig) -> Result<Arc<Database>, VerbFailure> {
    database
        .set_memory_ready(config.memory.memory_ready.value)
        .context("memory-ready")?;
    config.apply(&database);
    if let Some(level) = config.change_safety {
        database.change_safety(level).context("change-safety")?;
    }
    database.set_safety(config.replication.safety.value).context("safety")?;
    let level = database.router().safety().0;
    let (ship, primary) = (
        &config.replication.ship_listen.value,
        &config.replication.standby_of.value,
    );
    if level.asks_standbys() && ship.is_none() && primary.is_none() && !config.read_only {
        return Err(usage(format!(
            "the safety level of this cluster is {level}, and needs standbys: set the address to which they connect (ship-listen)"
        )));
    }
    announce::nvram(&database);
    let keeps_archive = !config.read_only;
    config
        .backup
        .begin(&database, &config.place.data_dir.value, keeps_archive)?;
    Ok(Arc::new(database))
}

/// Gets the first files of a new standby, before anything is opened. The lock keeps others away until the log is open.
fn begin_as_standby(primary: &mut Primary, config: &ServeConfig) -> Result<DiskLock, VerbFailure> {
    let dir = &config.place.data_dir.value;
    make_private_dirs(dir).with_context(|| format!("create {}", dir.display()))?;
    let lock = lock_root(dir)?;
    // The comparison with the primary reads files. All settings except the directory are those of any opening.
    let home = bring_home(&config.database(Some(dir.clone()), 1, 1));
    home.with_context(|| format!("bring the NVRAM of {} to its log's files", dir.display()))?;
    primary.begin_process(dir)?;
    primary.cut_back(dir)?;
    primary.bootstrap(dir)?;
    Ok(lock)
}

/// Returns the URL at which others reach this server, if it is known.
fn own_url(config: &ServeConfig, address: SocketAddr, is_encrypted: bool) -> Option<Arc<str>> {
    let advertised = config.replication.advertise.value.clone();
    let own = || (!address.ip().is_unspecified()).then(|| url_of(address, is_encrypted));
    advertised.or_else(own).map(Into::into)
}

fn url_of(address: SocketAddr, is_encrypted: bool) -> String {
    let scheme = if is_encrypted { "https" } else { "http" };
    format!("{scheme}://{address}")
}

/// Returns the settings of HTTP, and the collector of its spans.
fn http_options(
    config: &ServeConfig,
    tls: Option<Arc<Identity>>,
    may_be_open: u64,
) -> Result<(HttpOptions, Option<Spans>), VerbFailure> {
    let endpoint = config.telemetry.otlp_endpoint.value.as_ref();
    let spans = endpoint.map(|endpoint| Spans::start(endpoint)).transpose()?;
    let takes_standbys = config.replication.ship_listen.value.is_some();
    let options = HttpOptions {
        limits: descriptors::bound(config.http.limits, may_be_open, takes_standbys),
        tracer: spans.as_ref().map(Spans::tracer),
        tls,
    };
    Ok((options, spans))
}

/// Returns the number of partitions: as configured, as the database has, or one for each core for a new database.
fn partitions(config: &ServeConfig) -> Result<Setting<u16>, VerbFailure> {
    let asked = config.place.partitions.said();
    let dir = &config.place.data_dir.value;
    let stored = stored_partitions(dir).with_context(|| format!("look into {}", dir.display()))?;
    if config.log.log.value == LogPolicy::None {
        if stored.is_some() {
            let dir = dir.display();
            let text = format!("without a log the server begins empty; the log under {dir} stays as it is");
            server_output::info("without_log", text);
        }
        return Ok(asked.unwrap_or_else(|| by_default(cores())));
    }
    match (asked, stored) {
        (Some(asked), Some(stored)) if asked.value != stored => Err(usage(format!(
            "the database was made with {stored} partitions, and that number is fixed: leave --partitions {} out, or take another data \
             directory",
            asked.value
        ))),
        (Some(asked), _) => Ok(asked),
        (None, Some(stored)) => Ok(Setting {
            value: stored,
            source: Source::Database,
        }),
        (None, None) => Ok(by_default(cores())),
    }
}

async fn listen(address: SocketAddr, is_encrypted: bool) -> Result<TcpListener, VerbFailure> {
    if !is_encrypted {
        announce::listeners(address);
    }
    let listener = TcpListener::bind(address).await;
    Ok(listener.with_context(|| format!("listen on {address}"))?)
}

type RecoveryEnd = oneshot::Receiver<anyhow::Result<()>>;

/// Replays the log on a thread of its own. HTTP reports the progress meanwhile.
fn recover(
    database: Arc<Database>,
    catalog: Option<Catalog>,
    opening: OpenRequest,
) -> Result<(RecoveryEnd, JoinHandle<()>), VerbFailure> {
    let (sender, receiver) = oneshot::channel();
    let work = move || {
        let outcome = open(&database, catalog.as_ref(), opening);
        let _ = sender.send(outcome); // a stopping server no longer listens
    };
    let spawned = thread::Builder::new().name("recovery".into()).spawn(work);
    Ok((receiver, spawned.context("start the recovery thread")?))
}

/// Opens the database. A primary takes the lease before it replays. A standby learns who had it last before it follows a primary, and
/// follows while it replays.
fn open(database: &Arc<Database>, catalog: Option<&Catalog>, mut opening: OpenRequest) -> anyhow::Result<()> {
    opening.lease.take().map_or(Ok(()), |lease| lease.keep(database))?;
    let Some(primary) = opening.primary.take() else {
        return replay(database, catalog, &opening);
    };
    database.set_readers(opening.readers);
    primary.follow(database)?;
    replay(database, catalog, &opening)
}

/// The database to open, and its role.
struct OpenRequest {
    dir: PathBuf,
    read_only: bool,
    /// Readers of a standby.
    readers: ReadersConfig,
    /// The lease by which it is the primary, or may become it.
    lease: Option<ServerLease>,
    /// The primary that it follows once it is open.
    primary: Option<Primary>,
}

impl OpenRequest {
    fn recover(&self, database: &Database) -> Result<RecoveryReport, OpenError> {
        let recovered = match self.read_only {
            false => database.recover(),
            true => database.recover_read_only().map(|opened| {
                if let Some(found) = &opened.divergence {
                    server_output::error("divergence", found.to_string());
                    divergence::report(database, &self.dir, found);
                }
                match &opened.differed {
                    None => server_output::info("read_only", "read-only: writes are refused"),
                    Some(what) => server_output::warning(
                        "read_only",
                        format!(
                            "read-only: writes are refused. These tables, a standby's, were not as its primary's: {what}"
                        ),
                    ),
                }
                opened.report
            }),
        };
        if let Some(found) = recovered.as_ref().err().and_then(divergence::of) {
            divergence::report(database, &self.dir, found);
        }
        recovered
    }
}

fn replay(database: &Database, catalog: Option<&Catalog>, opening: &OpenRequest) -> anyhow::Result<()> {
    let is_over = AtomicBool::new(false);
    let report = thread::scope(|scope| {
        let progress = scope.spawn(|| show_progress(database.router(), &is_over));
        let report = opening.recover(database);
        is_over.store(true, Ordering::Release);
        progress.thread().unpark();
        report
    })
    .context("recover the database")?;
    announce::recovery(&report);
    // The server answers calls already, and none of them needs the catalog.
    if let Some(catalog) = catalog
        && let Err(error) = reconcile_catalog(database.router(), catalog, report.module_versions)
    {
        warn_of_missing_catalog(&format!("{error:#}"));
    }
    Ok(())
}

fn show_progress(router: &Router, is_over: &AtomicBool) {
    let line = ProgressLine::new();
    while !is_over.load(Ordering::Acquire) {
        if let NodePhase::Recovering {
            step,
            replayed,
            bytes_done,
            bytes_total,
        } = router.phase()
            && bytes_total > 0
        {
            let percent = 100.0 * bytes_done as f64 / bytes_total as f64;
            let (done, total) = (bytes(bytes_done), bytes(bytes_total));
            line.show(match step {
                RecoveryStage::Checkpoint => {
                    format!("loading the checkpoint: {percent:.0} %, {done} of {total}")
                }
                RecoveryStage::Log => format!(
                    "replaying the log: {percent:.0} %, {done} of {total}, {} transactions",
                    grouped(replayed)
                ),
            });
        }
        thread::park_timeout(PROGRESS_EVERY);
    }
    line.clear();
}

/// Makes the catalog agree with the log. Deployments continue meanwhile, and write to both.
fn reconcile_catalog(router: &Router, catalog: &Catalog, recovered: usize) -> anyhow::Result<()> {
    const TRIES: u32 = 5;
    const PAUSE: Duration = Duration::from_millis(20);
    for _ in 0..TRIES {
        let deployed = router.deployed();
        let expected: Vec<_> = deployed
            .versions
            .iter()
            .map(|module| CatalogEntry::of(module))
            .collect();
        let in_service: BTreeMap<_, _> = deployed
            .current
            .values()
            .map(|module| (module.name.clone(), module.id.0))
            .collect();
        let differences = catalog
            .differences(&expected, &in_service)
            .context("compare the catalog with the log")?;
        if differences.is_empty() {
            return Ok(());
        }
        if expected.len() > recovered {
            thread::sleep(PAUSE); // a new deployment may be in the log and not yet in the catalog
            continue;
        }
        // A restored log has no catalog yet.
        match catalog.versions().context("list the catalog")?.is_empty() {
            true => server_output::info(
                "catalog",
                format!("the catalog is made from the log: {} module versions", expected.len()),
            ),
            false => server_output::info(
                "catalog",
                format!(
                    "the catalog, a copy for look-ups, is made again from the log, as is normal after a deployment: {}",
                    differences.join("; ")
                ),
            ),
        }
        catalog
            .rebuild(&expected, &in_service)
            .context("make the catalog again")?;
    }
    Ok(()) // new deployments kept arriving; the next start checks again
}

/// Serves until a signal, or until the recovery failed.
async fn serve(
    listener: TcpListener,
    state: AppState,
    recovered: RecoveryEnd,
    mut hangup: Signal,
    (mut reloading, cuts_by_itself): (ReloadContext, bool),
) -> VerbResult {
    let address = listener.local_addr().context("ask for the address")?;
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let (stop, mut stopped) = watch::channel(false);
    let shutdown = async move {
        let _ = stopped.wait_for(|stopped| *stopped).await; // the sender lives until the end
    };
    let mut server = tokio::spawn(reprise_http::serve(listener, state.clone(), shutdown));
    server_output::result(format!("listening on {}", url_of(address, state.tls.is_some())));
    tokio::pin!(recovered);
    let mut is_recovered = false;
    let mut poll = tokio::time::interval(PARTED_POLL_INTERVAL);
    let outcome = loop {
        tokio::select! {
            ended = &mut recovered, if !is_recovered => match ended {
                Ok(Ok(())) => is_recovered = true,
                Ok(Err(error)) => break Err(VerbFailure::Other(error)),
                Err(_) => break Err(VerbFailure::Other(anyhow::anyhow!("the recovery thread is gone"))),
            },
            _ = hangup.recv() => {
                reloading.reloader.reload(address, &state, &reloading.database);
            }
            _ = poll.tick(), if cuts_by_itself => {
                if let Some(reason) = reloading.database.parted() {
                    break Err(VerbFailure::Again(parted(&reason)));
                }
            }
            _ = terminate.recv() => break Ok(()),
            _ = interrupt.recv() => break Ok(()),
            ended = &mut server => return http_ended(ended),
        }
    };
    if outcome.is_ok() {
        server_output::info(
            "stopping",
            "stopping: requests under way are finished, then the log is closed",
        );
    }
    stop.send_replace(true);
    http_ended(server.await)?;
    outcome
}

/// Returns the last line of a standby whose log and the primary's have parted.
fn parted(reason: &str) -> String {
    format!(
        "this standby ends, to be started again (exit status 75): its start keeps aside and cuts off what the new primary does not hold. {reason}"
    )
}

fn http_ended(ended: Result<Result<(), reprise_http::ServeError>, tokio::task::JoinError>) -> VerbResult {
    Ok(ended.context("the HTTP server is gone")?.context("serve HTTP")?)
}
