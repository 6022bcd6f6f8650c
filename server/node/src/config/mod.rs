//! The server's configuration: flag over environment over file over default. A file for each subject, in which each of its settings is
//! declared once; here they are put together.

mod backup;
mod checkpoints;
pub mod device;
mod http;
mod limits;
pub mod log;
pub mod memory;
pub mod place;
pub mod replication;
mod setting;
mod telemetry;
pub mod tls;
mod tokens;

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use clap::{ArgMatches, Args, parser::ValueSource};
use reprise_base::{Safety, limits::SEGMENT_BYTES};
use reprise_database::{BatchLimits, Database, DatabaseConfig, DeviceConfig};

use crate::{
    output::{VerbFailure, VerbResult, usage},
    server_output::{self, Line},
};
pub use place::DEFAULT_DATA_DIR;
use setting::Layers;
pub use setting::{Setting, SettingEntry, Source, by_default};
pub use tokens::{TokenEntry, TokenNote, check_tokens};

/// Name of the file in the data directory.
pub const DEFAULT_FILE: &str = "reprise.toml";

pub const EXAMPLE: &str = "Example:
  reprise serve --data-dir ./reprise-data --listen 127.0.0.1:8080

You can also set every flag in the environment (REPRISE_DATA_DIR, …) or in reprise.toml in the data directory:
  listen = \"127.0.0.1:8080\"   # before you listen on other addresses, set tls_cert and tls_key (docs/security.md)

  [[tokens]]
  name = \"deploy\"
  role = \"admin\"        # admin, write or read
  scope = \"deploy\"      # scope of its idempotency keys; default: the name
  sha256 = \"…\"          # `reprise token new NAME --role ROLE` adds such an entry

  [http]                 # limits of connections, with their defaults; _s: seconds
  connections_max = 4096
  header_wait_s = 75
  body_wait_s = 30
  batch_idle_s = 300
  write_wait_s = 60
  connections_per_peer_max = 2048   # connections of one address; default: half of connections_max
  origins = []           # other sites whose pages may send requests: [\"https://db.example\"] behind a proxy with TLS

A flag overrides the environment, and the environment overrides the file. On SIGHUP the server reads the file again. It applies
tokens, the certificate, origins, call_time_max_ms, deploy_time_max_s, slow_call_ms and idempotency_keep_s at once. It names the
settings that need a restart.";

/// The flags of `reprise serve`.
#[derive(Args, Clone, Default)]
pub struct ServeArgs {
    /// Configuration file [default: reprise.toml in the data directory, if there is one]
    #[arg(long, env = "REPRISE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Serve reads only. If a log record can't be replayed, serve the tables as they were before that record
    #[arg(long, env = "REPRISE_READ_ONLY")]
    pub read_only: bool,
    /// Give the cluster the safety level of --safety, if it has another one
    #[arg(long)]
    pub change_safety: bool,
    #[command(flatten)]
    place: place::PlaceArgs,
    #[command(flatten)]
    log: log::LogArgs,
    #[command(flatten)]
    device: device::DeviceArgs,
    #[command(flatten)]
    limits: limits::LimitArgs,
    #[command(flatten)]
    memory: memory::MemoryArgs,
    #[command(flatten)]
    checkpoints: checkpoints::CheckpointArgs,
    #[command(flatten)]
    backup: backup::BackupArgs,
    #[command(flatten)]
    replication: replication::ReplicationArgs,
    #[command(flatten)]
    tls: tls::TlsArgs,
    #[command(flatten)]
    pub telemetry: telemetry::TelemetryArgs,
}

/// The configuration that the server runs with.
pub struct ServeConfig {
    pub place: place::PlaceSettings,
    /// The address that `listen` names.
    pub address: SocketAddr,
    pub log: log::LogSettings,
    device: device::DeviceSettings,
    /// The configuration that `device` leads to.
    device_config: DeviceConfig,
    limits: limits::LimitSettings,
    pub memory: memory::MemorySettings,
    checkpoints: checkpoints::CheckpointSettings,
    pub backup: backup::BackupSettings,
    pub replication: replication::ReplicationSettings,
    pub tls: tls::TlsSettings,
    pub telemetry: telemetry::TelemetrySettings,
    pub http: http::HttpSettings,
    pub tokens: tokens::TokenSettings,
    pub read_only: bool,
    /// The cluster gets this level instead of its own.
    pub change_safety: Option<Safety>,
    /// The file that was read.
    pub file: Option<PathBuf>,
}

impl ServeConfig {
    /// Joins the layers. `matches` are those of `serve`: they know which value came from a flag.
    pub fn load(args: ServeArgs, matches: &ArgMatches) -> Result<Self, VerbFailure> {
        let path = file_of(&args)?;
        let file = path.as_deref().map(read_file).transpose()?.unwrap_or_default();
        if args.config.is_none()
            && let (Some(path), Some(named)) = (&path, file.get("data_dir"))
        {
            return Err(usage(format!(
                "{}: data_dir: the server reads this file because it lies in the data directory. To use {named}, start with --data-dir, or \
                 name the file with --config",
                path.display(),
            )));
        }
        let source_of = |id: &str| match matches.value_source(id) {
            Some(ValueSource::EnvVariable) => Source::Environment,
            _ => Source::Flag,
        };
        Self::join(args, file, path, &source_of)
    }

    fn join(
        args: ServeArgs,
        file: toml::Table,
        path: Option<PathBuf>,
        source_of: &dyn Fn(&str) -> Source,
    ) -> Result<Self, VerbFailure> {
        let mut layers = Layers::new(source_of, path.as_deref().unwrap_or(Path::new(DEFAULT_FILE)), file);
        let place = place::PlaceSettings::pick(args.place, &mut layers)?;
        let log = log::LogSettings::pick(args.log, &mut layers)?;
        let device = device::DeviceSettings::pick(args.device, &mut layers)?;
        let limits = limits::LimitSettings::pick(args.limits, &mut layers)?;
        let memory = memory::MemorySettings::pick(args.memory, &mut layers)?;
        let checkpoints = checkpoints::CheckpointSettings::pick(args.checkpoints, &mut layers)?;
        let backup = backup::BackupSettings::pick(args.backup, &mut layers)?;
        let replication = replication::ReplicationSettings::pick(args.replication, &mut layers)?;
        let tls = tls::TlsSettings::pick(args.tls, &mut layers)?;
        let telemetry = telemetry::TelemetrySettings::pick(args.telemetry, &mut layers)?;
        let http = http::HttpSettings::pick(&mut layers)?;
        let tokens = tokens::TokenSettings::pick(&mut layers, http.origins.clone())?;
        layers.finish()?;
        replication.check(log.log.value, device.device.value, args.read_only)?;
        tls.check()?;
        let (change, safety) = (args.change_safety, replication.safety.value);
        replication.check_change(change, args.read_only)?;
        let config = Self {
            address: place.address()?,
            place,
            log,
            device_config: device.config()?,
            device,
            limits,
            memory,
            checkpoints,
            backup,
            replication,
            tls,
            telemetry,
            http,
            tokens,
            change_safety: change.then_some(safety).flatten(),
            read_only: args.read_only,
            file: path,
        };
        config.check_listen(config.address)?;
        Ok(config)
    }

    /// Returns the configuration of the database. `dir`: None without a log.
    pub fn database(&self, dir: Option<PathBuf>, partitions: u16, sites: u16) -> DatabaseConfig {
        DatabaseConfig {
            dir,
            partitions,
            sites,
            log: self.log.log.value,
            redo: self.log.redo(),
            device: self.device_config.clone(),
            commit: self.log.commit.value,
            batch_limits: BatchLimits {
                group_delay_us: self.log.group_commit_us.value,
                ..BatchLimits::default()
            },
            segment_bytes: SEGMENT_BYTES,
            checkpoints: self.checkpoints.config(),
            memory_max_bytes: self.memory.memory_max.value,
        }
    }

    /// Applies the settings that can change while the server runs, except tokens.
    pub fn apply(&self, database: &Database) {
        self.limits.apply(database);
        self.telemetry.apply(database);
    }

    /// Warns about a file of another name that was perhaps meant, with the remedy.
    pub fn warn_of_other_file(&self) {
        let same = |one: &Path| fs::canonicalize(one).ok();
        let here = Path::new(DEFAULT_FILE);
        if here.exists() && self.file.as_deref().and_then(same) != same(here) {
            server_output::warning(
                "configuration",
                format!(
                    "the server does not read ./{DEFAULT_FILE}: move it to {}, or start with --config ./{DEFAULT_FILE}",
                    self.place.data_dir.value.join(DEFAULT_FILE).display()
                ),
            );
        }
    }

    /// Checks the address, because without tokens everyone who reaches the server may do everything.
    pub fn check_listen(&self, address: SocketAddr) -> VerbResult {
        if !self.tokens.auth.is_open() || address.ip().is_loopback() {
            return Ok(());
        }
        Err(usage(format!(
            "without tokens the server listens on loopback addresses only, and {address} is none: configure [[tokens]] in {DEFAULT_FILE}, or \
             listen on 127.0.0.1:{}",
            address.port()
        )))
    }

    /// The effective configuration, a line a setting. Of a token it tells name and role.
    pub fn describe(&self, partitions: &Setting<u16>, sites: &Setting<u16>) -> Line {
        let title = match &self.file {
            Some(path) => format!("configuration (file {})", path.display()),
            None => "configuration".to_owned(),
        };
        let line = |entry: SettingEntry| {
            let (value, source) = match entry.name.as_str() {
                "partitions" => (partitions.value.to_string(), partitions.source),
                "sites" => (sites.value.to_string(), sites.source),
                _ => (entry.value, entry.source),
            };
            format!("  {:<18} {value}  ({source})", entry.name)
        };
        let shown = self.entries().into_iter().filter(|entry| entry.is_shown);
        Line::info("configuration", title).and_lines(shown.map(line))
    }

    /// Each setting in words.
    pub fn entries(&self) -> Vec<SettingEntry> {
        let subjects = [
            self.place.entries(),
            self.log.entries(),
            self.device.entries(),
            self.limits.entries(),
            self.memory.entries(),
            self.checkpoints.entries(),
            self.backup.entries(),
            self.replication.shown_entries(),
            self.tls.entries(),
            self.telemetry.entries(),
            self.http.entries(),
            self.tokens.entries(),
        ];
        subjects.into_iter().flatten().collect()
    }
}

/// Returns the named file, or the data directory's, if it has one. It does not search the working directory, which may belong to anyone.
///
/// # Errors
/// The directory may have the file, but can't be searched for it. Without the file the server would start with the defaults.
fn file_of(args: &ServeArgs) -> Result<Option<PathBuf>, VerbFailure> {
    if let Some(named) = &args.config {
        return Ok(Some(named.clone()));
    }
    let data_dir = args
        .place
        .data_dir
        .as_deref()
        .unwrap_or(Path::new(place::DEFAULT_DATA_DIR));
    let own = data_dir.join(DEFAULT_FILE);
    // A link counts as the file, even if its target is missing: the read reports that.
    match fs::symlink_metadata(&own) {
        Ok(_) => Ok(Some(own)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(usage(format!("read {}: {error}", own.display()))),
    }
}

fn read_file(path: &Path) -> Result<toml::Table, VerbFailure> {
    let text = fs::read_to_string(path).map_err(|error| match fs::read_link(path) {
        Ok(target) if error.kind() == io::ErrorKind::NotFound => usage(format!(
            "read {}: it is a link to {}, which is missing",
            path.display(),
            target.display()
        )),
        _ => usage(format!("read {}: {error}", path.display())),
    })?;
    text.parse()
        .map_err(|error: toml::de::Error| usage(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests;
