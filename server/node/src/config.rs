//! The server's configuration: flag over environment over file over default.

use std::{
    fmt, fs,
    net::{SocketAddr, ToSocketAddrs},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::Context;
use clap::{ArgMatches, parser::ValueSource};
use reprise_base::{
    limits::{CALL_TIME_MAX_MS, DEPLOY_TIME_MAX_S, IDEMPOTENCY_KEEP_DEFAULT},
    memory::memory_kept_back,
};
use reprise_database::{AfterImage, CommitMode, LogPolicy, RecoverFrom, memory_max_default};
use reprise_http::{Auth, ConnectionLimits, Origins, Token};
use serde::Deserialize;

use crate::{
    cli::{self, ServeArgs},
    output::{Failure, usage},
};

/// In the data directory.
const DEFAULT_FILE: &str = "reprise.toml";
const SLOW_CALL_MS_DEFAULT: u32 = 100;
const DEFAULT_DATA_DIR: &str = "./reprise-data";
const DEFAULT_LISTEN: &str = "127.0.0.1:8080";

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Flag,
    Environment,
    File,
    /// What the database was made with.
    Database,
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::File => "file",
            Self::Database => "database",
            Self::Default => "default",
        })
    }
}

/// A value and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    pub value: T,
    pub source: Source,
}

/// What the server runs with.
pub struct ServeConfig {
    pub data_dir: Setting<PathBuf>,
    pub listen: Setting<SocketAddr>,
    /// None: what the database has, or the number of cores for a new one.
    pub partitions: Option<Setting<u16>>,
    pub sites: Option<Setting<u16>>,
    pub log: Setting<LogPolicy>,
    pub log_differential: Setting<AfterImage>,
    pub recover_from: Setting<RecoverFrom>,
    pub commit: Setting<CommitMode>,
    pub group_commit_us: Setting<u64>,
    /// Of calls whose procedures declare none; 0: no limit.
    pub call_time_max_ms: Setting<u32>,
    pub deploy_time_max_s: Setting<u32>,
    /// Bytes.
    pub memory_ready: Setting<u64>,
    /// From which on a call is told as slow; 0: none is.
    pub slow_call_ms: Setting<u32>,
    pub idempotency_keep_s: Setting<u64>,
    pub memory_max: Setting<u64>,
    pub otlp_endpoint: Option<Setting<String>>,
    pub http: ConnectionLimits,
    pub checkpoints: CheckpointSettings,
    pub read_only: bool,
    /// Backups of the running server go there.
    pub backup_dir: Setting<PathBuf>,
    pub archive: Option<Setting<PathBuf>>,
    /// Days; none: for ever.
    pub archive_keep: Option<Setting<u32>>,
    pub auth: Auth,
    pub tokens: Vec<TokenNote>,
    /// Sites whose pages may ask.
    origins: Vec<String>,
    file: Option<PathBuf>,
}

/// `reprise.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    data_dir: Option<PathBuf>,
    listen: Option<String>,
    partitions: Option<u16>,
    sites: Option<u16>,
    /// A mode, or `LogEntry`.
    log: Option<toml::Value>,
    commit: Option<String>,
    group_commit_us: Option<u64>,
    call_time_max_ms: Option<u32>,
    deploy_time_max_s: Option<u32>,
    slow_call_ms: Option<u32>,
    otlp_endpoint: Option<String>,
    #[serde(default)]
    http: HttpEntry,
    checkpoint_every: Option<u64>,
    checkpoint_log_mib: Option<u64>,
    recovery_target_s: Option<u64>,
    checkpoints_kept: Option<u64>,
    idempotency_keep_s: Option<u64>,
    backup_dir: Option<PathBuf>,
    archive: Option<PathBuf>,
    archive_keep: Option<u32>,
    /// As the flag takes it, or bytes.
    memory_ready: Option<toml::Value>,
    memory_max: Option<toml::Value>,
    #[serde(default)]
    tokens: Vec<TokenEntry>,
}

/// `[log]`; `log = MODE` is short for its `mode` alone.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LogEntry {
    mode: Option<String>,
    differential: Option<bool>,
    recover_from: Option<String>,
}

/// How long things may take, and wait.
struct TimeSettings {
    group_commit_us: Setting<u64>,
    call_max_ms: Setting<u32>,
    deploy_max_s: Setting<u32>,
    slow_call_ms: Setting<u32>,
}

impl TimeSettings {
    fn pick(args: &ServeArgs, file: &ConfigFile, source_of: &dyn Fn(&str) -> Source) -> Self {
        let group_commit_us = pick(args.group_commit_us, source_of("group_commit_us"), file.group_commit_us);
        let of = |name, given, written, default| {
            let picked = pick(given, source_of(name), written);
            picked.unwrap_or_else(|| by_default(default))
        };
        let (call, deploy) = (args.call_time_max_ms, args.deploy_time_max_s);
        Self {
            group_commit_us: group_commit_us.unwrap_or_else(|| by_default(0)),
            call_max_ms: of("call_time_max_ms", call, file.call_time_max_ms, CALL_TIME_MAX_MS),
            deploy_max_s: of("deploy_time_max_s", deploy, file.deploy_time_max_s, DEPLOY_TIME_MAX_S),
            slow_call_ms: of(
                "slow_call_ms",
                args.slow_call_ms,
                file.slow_call_ms,
                SLOW_CALL_MS_DEFAULT,
            ),
        }
    }
}

struct LogSettings {
    mode: Setting<LogPolicy>,
    differential: Setting<AfterImage>,
    recover_from: Setting<RecoverFrom>,
}

impl LogSettings {
    fn pick(
        args: &ServeArgs,
        in_file: Option<toml::Value>,
        source_of: &dyn Fn(&str) -> Source,
    ) -> Result<Self, String> {
        let entry = match in_file {
            None => LogEntry::default(),
            Some(toml::Value::String(mode)) => LogEntry {
                mode: Some(mode),
                ..LogEntry::default()
            },
            Some(table) => LogEntry::deserialize(table).map_err(|e| e.message().to_owned())?,
        };
        let differential = entry.differential.map(|is_differential| match is_differential {
            true => AfterImage::Changed,
            false => AfterImage::Whole,
        });
        let mode = entry.mode.map(|text| cli::log_mode(&text)).transpose()?;
        let from = entry.recover_from.map(|text| cli::recover_from(&text)).transpose()?;
        Ok(Self {
            mode: pick(args.log, source_of("log"), mode).unwrap_or_else(|| by_default(LogPolicy::Command)),
            differential: pick(args.log_differential, source_of("log_differential"), differential)
                .unwrap_or_else(|| by_default(AfterImage::default())),
            recover_from: pick(args.recover_from, source_of("recover_from"), from)
                .unwrap_or_else(|| by_default(RecoverFrom::default())),
        })
    }
}

/// What is left out stays as it is.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpEntry {
    connections_max: Option<u32>,
    header_wait_s: Option<u32>,
    body_wait_s: Option<u32>,
    batch_idle_s: Option<u32>,
    write_wait_s: Option<u32>,
    connections_per_peer_max: Option<u32>,
    #[serde(default)]
    origins: Vec<String>,
}

/// Beyond any number of file descriptors.
const CONNECTIONS_MAX: u32 = 1 << 20;

impl HttpEntry {
    fn origins(&self) -> Result<Origins, String> {
        Origins::new(&self.origins).map_err(|error| error.to_string())
    }

    fn limits(&self) -> Result<ConnectionLimits, String> {
        let default = ConnectionLimits::default();
        let connections_max = self.connections_max.unwrap_or(default.connections_max);
        if !(1..=CONNECTIONS_MAX).contains(&connections_max) {
            return Err(format!("connections_max is from 1 to {CONNECTIONS_MAX}"));
        }
        let wait = |name: &str, seconds: Option<u32>, default: Duration| match seconds {
            None => Ok(default),
            Some(0) => Err(format!("{name} is at least 1")),
            Some(seconds) => Ok(Duration::from_secs(seconds.into())),
        };
        let per_peer_max = self.connections_per_peer_max.unwrap_or(connections_max.div_ceil(2));
        if !(1..=connections_max).contains(&per_peer_max) {
            return Err(format!("connections_per_peer_max is from 1 to {connections_max}"));
        }
        Ok(ConnectionLimits {
            connections_max,
            connections_per_peer_max: per_peer_max,
            header_wait: wait("header_wait_s", self.header_wait_s, default.header_wait)?,
            body_wait: wait("body_wait_s", self.body_wait_s, default.body_wait)?,
            batch_idle: wait("batch_idle_s", self.batch_idle_s, default.batch_idle)?,
            write_wait: wait("write_wait_s", self.write_wait_s, default.write_wait)?,
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    name: String,
    role: String,
    sha256: String,
}

impl ServeConfig {
    /// Joins the layers. `matches` are those of `serve`: they know which value came from a flag.
    pub fn load(args: ServeArgs, matches: &ArgMatches) -> Result<Self, Failure> {
        let file_path = file_of(&args);
        let file = match &file_path {
            Some(path) => read_file(path)?,
            None => ConfigFile::default(),
        };
        if args.config.is_none()
            && let (Some(path), Some(named)) = (&file_path, &file.data_dir)
        {
            return Err(usage(format!(
                "{}: data_dir: this file lies in a data directory and is read because of that; to use {}, start with --data-dir, or \
                 name the file with --config",
                path.display(),
                named.display()
            )));
        }
        let source_of = |id: &str| match matches.value_source(id) {
            Some(ValueSource::EnvVariable) => Source::Environment,
            _ => Source::Flag,
        };
        Self::join(args, file, file_path, &source_of)
    }

    fn join(
        args: ServeArgs,
        file: ConfigFile,
        file_path: Option<PathBuf>,
        source_of: &dyn Fn(&str) -> Source,
    ) -> Result<Self, Failure> {
        let in_file = |name: &str, error: String| {
            let path = file_path.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
            usage(format!("{}: {name}: {error}", path.display()))
        };
        let checkpoints = CheckpointSettings::pick(&args, &file, source_of).map_err(|(name, e)| in_file(name, e))?;
        let keep_s = keep_setting(&args, &file, source_of).map_err(|e| in_file("idempotency_keep_s", e))?;
        let archive_keep = archive_keep(&args, &file, source_of).map_err(|e| in_file("archive_keep", e))?;
        let times = TimeSettings::pick(&args, &file, source_of);
        let log = LogSettings::pick(&args, file.log, source_of).map_err(|e| in_file("log", e))?;
        let commit = text_in_file(file.commit, cli::commit_mode).map_err(|e| in_file("commit", e))?;
        check_number(file.partitions, cli::partitions).map_err(|e| in_file("partitions", e))?;
        check_number(file.sites, cli::sites).map_err(|e| in_file("sites", e))?;
        check_number(file.group_commit_us, cli::group_commit_us).map_err(|e| in_file("group_commit_us", e))?;
        let otlp_endpoint =
            text_in_file(file.otlp_endpoint, cli::otlp_endpoint).map_err(|e| in_file("otlp_endpoint", e))?;
        let memory_ready =
            size_in_file(file.memory_ready.as_ref(), cli::size).map_err(|e| in_file("memory_ready", e))?;
        let memory_max =
            size_in_file(file.memory_max.as_ref(), cli::memory_max).map_err(|e| in_file("memory_max", e))?;
        let http = file.http.limits().map_err(|e| in_file("http", e))?;
        let (auth, tokens) = read_tokens(&file.tokens).map_err(|e| in_file("tokens", e))?;

        let listen = listen_of(pick(args.listen, source_of("listen"), file.listen))?;
        let data_dir = pick(args.data_dir, source_of("data_dir"), file.data_dir)
            .unwrap_or_else(|| by_default(DEFAULT_DATA_DIR.into()));
        let backups = pick(args.backup_dir, source_of("backup_dir"), file.backup_dir);
        let config = Self {
            backup_dir: below(&data_dir, backups),
            archive: pick(args.archive, source_of("archive"), file.archive),
            archive_keep,
            data_dir,
            read_only: args.read_only,
            listen,
            partitions: pick(args.partitions, source_of("partitions"), file.partitions),
            sites: pick(args.sites, source_of("sites"), file.sites),
            log: log.mode,
            log_differential: log.differential,
            recover_from: log.recover_from,
            commit: pick(args.commit, source_of("commit"), commit).unwrap_or_else(|| by_default(CommitMode::Sync)),
            group_commit_us: times.group_commit_us,
            call_time_max_ms: times.call_max_ms,
            deploy_time_max_s: times.deploy_max_s,
            slow_call_ms: times.slow_call_ms,
            memory_ready: pick(args.memory_ready, source_of("memory_ready"), memory_ready)
                .unwrap_or_else(|| by_default(0)),
            idempotency_keep_s: keep_s,
            memory_max: pick(args.memory_max, source_of("memory_max"), memory_max)
                .unwrap_or_else(|| by_default(memory_max_default())),
            otlp_endpoint: pick(args.otlp_endpoint, source_of("otlp_endpoint"), otlp_endpoint),
            http,
            checkpoints,
            auth: auth.with_origins(file.http.origins().map_err(|e| in_file("http", e))?),
            tokens,
            origins: file.http.origins,
            file: file_path,
        };
        config.check_listen(config.listen.value)?;
        Ok(config)
    }

    /// A file that was meant, perhaps, is told with the way on.
    pub fn warn_of_other_file(&self) {
        let same = |one: &Path| fs::canonicalize(one).ok();
        let here = Path::new(DEFAULT_FILE);
        if here.exists() && self.file.as_deref().and_then(same) != same(here) {
            eprintln!(
                "warning: ./{DEFAULT_FILE} is not read: move it to {}, or start with --config ./{DEFAULT_FILE}",
                self.data_dir.value.join(DEFAULT_FILE).display()
            );
        }
    }

    /// Memory that is made ready must be there, and it counts: with all of it nothing could be written.
    pub fn check_memory(&self) -> Result<(), Failure> {
        reprise_database::judge_memory(self.memory_ready.value).context("memory-ready")?;
        let max = self.memory_max.value;
        let ready_max = max - memory_kept_back(max);
        match self.memory_ready.value < ready_max {
            true => Ok(()),
            false => Err(usage(format!(
                "memory-ready leaves nothing of what memory-max ({} MiB) lets the data grow to, {} MiB",
                max >> 20,
                ready_max >> 20
            ))),
        }
    }

    /// Without tokens everybody who reaches the server may do everything.
    pub fn check_listen(&self, address: SocketAddr) -> Result<(), Failure> {
        if !self.auth.is_open() || address.ip().is_loopback() {
            return Ok(());
        }
        Err(usage(format!(
            "without tokens the server listens on loopback only, and {address} is not: configure [[tokens]] in {DEFAULT_FILE}, or listen on 127.0.0.1:{}",
            address.port()
        )))
    }

    /// The effective configuration, a line a setting. Of a token it tells name and role.
    pub fn describe(&self, partitions: &Setting<u16>, sites: &Setting<u16>) -> String {
        let title = match &self.file {
            Some(path) => format!("configuration (file {})", path.display()),
            None => "configuration".to_owned(),
        };
        let line = |entry: Entry| {
            let (value, source) = match entry.name {
                "partitions" => (partitions.value.to_string(), partitions.source),
                "sites" => (sites.value.to_string(), sites.source),
                _ => (entry.value, entry.source),
            };
            format!("  {:<18} {value}  ({source})", entry.name)
        };
        let shown = self.entries().into_iter().filter(|entry| entry.is_shown);
        let lines: Vec<_> = std::iter::once(title).chain(shown.map(line)).collect();
        lines.join("\n")
    }

    /// Each setting in words.
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = vec![
            Entry::of("data-dir", &self.data_dir, |dir| dir.display().to_string()),
            Entry::of("listen", &self.listen, ToString::to_string),
            Entry::of_option("partitions", self.partitions.as_ref(), ToString::to_string),
            Entry::of_option("sites", self.sites.as_ref(), ToString::to_string),
            Entry::of("log", &self.log, |mode| log_name(*mode).into()),
            Entry::of("log-differential", &self.log_differential, |images| {
                (*images == AfterImage::Changed).to_string()
            })
            .where_said(),
            Entry::of("recover-from", &self.recover_from, |from| match from {
                RecoverFrom::Command => "command".into(),
                RecoverFrom::Changes => "physiological".into(),
            })
            .where_said(),
            Entry::of("commit", &self.commit, |mode| commit_name(*mode).into()),
            Entry::of("group-commit-us", &self.group_commit_us, ToString::to_string),
            Entry::of("call-time-max-ms", &self.call_time_max_ms, ToString::to_string).live(),
            Entry::of("deploy-time-max-s", &self.deploy_time_max_s, ToString::to_string).live(),
            Entry::of("slow-call-ms", &self.slow_call_ms, ToString::to_string).live(),
        ];
        if let Some(endpoint) = &self.otlp_endpoint {
            entries.push(Entry::of("otlp-endpoint", endpoint, Clone::clone));
        }
        let of_file = |name, value: String, is_default| Entry {
            source: if is_default { Source::Default } else { Source::File },
            is_shown: !is_default,
            ..Entry::of(name, &by_default(()), |()| value)
        };
        entries.push(of_file(
            "http",
            format!("{:?}", self.http),
            self.http == ConnectionLimits::default(),
        ));
        entries.push(of_file("origins", self.origins.join(", "), self.origins.is_empty()).live());
        for (name, setting) in [
            ("checkpoint-every", &self.checkpoints.every),
            ("checkpoint-log-mib", &self.checkpoints.log_mib),
            ("recovery-target-s", &self.checkpoints.target_s),
            ("checkpoints-kept", &self.checkpoints.kept),
            ("memory-ready", &self.memory_ready),
            ("memory-max", &self.memory_max),
        ] {
            entries.push(Entry::of(name, setting, ToString::to_string));
        }
        entries.push(Entry::of("idempotency-keep-s", &self.idempotency_keep_s, ToString::to_string).live());
        entries.push(Entry::of("backup-dir", &self.backup_dir, |dir| {
            dir.display().to_string()
        }));
        if let Some(archive) = &self.archive {
            entries.push(Entry::of("archive", archive, |dir| dir.display().to_string()));
            let keep = self.archive_keep.as_ref();
            entries.push(match keep {
                Some(days) => Entry::of("archive-keep", days, |days| format!("{days} days")),
                None => Entry::of("archive-keep", &by_default(()), |()| "for ever".into()),
            });
        }
        let names: Vec<_> = self.tokens.iter().map(|token| token.name.as_str()).collect();
        let (tokens, source) = match names.is_empty() {
            true => ("none: loopback only".to_owned(), Source::Default),
            false => (names.join(", "), Source::File),
        };
        entries.push(Entry::of("tokens", &Setting { value: tokens, source }, Clone::clone).live());
        entries
    }
}

/// A setting in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: &'static str,
    pub value: String,
    pub source: Source,
    /// It can be changed while the server runs.
    pub is_live: bool,
    is_shown: bool,
}

impl Entry {
    fn of<T>(name: &'static str, setting: &Setting<T>, text: impl FnOnce(&T) -> String) -> Self {
        Self {
            name,
            value: text(&setting.value),
            source: setting.source,
            is_live: false,
            is_shown: true,
        }
    }

    /// None: not said by anybody.
    fn of_option<T>(name: &'static str, setting: Option<&Setting<T>>, text: impl FnOnce(&T) -> String) -> Self {
        match setting {
            Some(setting) => Self::of(name, setting, text),
            None => Self::of(name, &by_default(()), |()| "as it is made, or found".into()),
        }
    }

    fn live(mut self) -> Self {
        self.is_live = true;
        self
    }

    /// Shown where somebody said it.
    fn where_said(mut self) -> Self {
        self.is_shown = self.source != Source::Default;
        self
    }
}

/// A token as the report names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenNote {
    /// Name and role.
    pub name: String,
    pub digest: [u8; 32],
}

fn archive_keep(
    args: &ServeArgs,
    file: &ConfigFile,
    source_of: &dyn Fn(&str) -> Source,
) -> Result<Option<Setting<u32>>, String> {
    check_number(file.archive_keep, cli::archive_keep)?;
    Ok(pick(args.archive_keep, source_of("archive_keep"), file.archive_keep))
}

fn keep_setting(
    args: &ServeArgs,
    file: &ConfigFile,
    source_of: &dyn Fn(&str) -> Source,
) -> Result<Setting<u64>, String> {
    check_number(file.idempotency_keep_s, cli::idempotency_keep_s)?;
    let source = source_of("idempotency_keep_s");
    let picked = pick(args.idempotency_keep_s, source, file.idempotency_keep_s);
    Ok(picked.unwrap_or_else(|| by_default(IDEMPOTENCY_KEEP_DEFAULT.as_secs())))
}

/// As in the paper's evaluation (A, section V).
const CHECKPOINT_EVERY_DEFAULT: u64 = 180;
const CHECKPOINT_LOG_MIB_DEFAULT: u64 = 1024;
const RECOVERY_TARGET_S_DEFAULT: u64 = 0;
const CHECKPOINTS_KEPT_DEFAULT: u64 = 2;

/// When checkpoints are taken, and how many are kept.
pub struct CheckpointSettings {
    /// Seconds; 0: not by time.
    pub every: Setting<u64>,
    /// MiB of log; 0: not by length.
    pub log_mib: Setting<u64>,
    /// Seconds that a restart may take; 0: whatever it takes.
    pub target_s: Setting<u64>,
    pub kept: Setting<u64>,
}

impl CheckpointSettings {
    fn pick(
        args: &ServeArgs,
        file: &ConfigFile,
        source_of: &dyn Fn(&str) -> Source,
    ) -> Result<Self, (&'static str, String)> {
        type Rule = fn(&str) -> Result<u64, String>;
        let one = |name, given: Option<u64>, in_file: Option<u64>, rule: Rule, default| {
            check_number(in_file, rule).map_err(|error| (name, error))?;
            let picked = pick(given, source_of(name), in_file);
            Ok(picked.unwrap_or_else(|| by_default(default)))
        };
        Ok(Self {
            every: one(
                "checkpoint_every",
                args.checkpoint_every,
                file.checkpoint_every,
                cli::checkpoint_every,
                CHECKPOINT_EVERY_DEFAULT,
            )?,
            log_mib: one(
                "checkpoint_log_mib",
                args.checkpoint_log_mib,
                file.checkpoint_log_mib,
                cli::checkpoint_log_mib,
                CHECKPOINT_LOG_MIB_DEFAULT,
            )?,
            target_s: one(
                "recovery_target_s",
                args.recovery_target_s,
                file.recovery_target_s,
                cli::recovery_target_s,
                RECOVERY_TARGET_S_DEFAULT,
            )?,
            kept: one(
                "checkpoints_kept",
                args.checkpoints_kept,
                file.checkpoints_kept,
                cli::checkpoints_kept,
                CHECKPOINTS_KEPT_DEFAULT,
            )?,
        })
    }
}

pub fn log_name(mode: LogPolicy) -> &'static str {
    match mode {
        LogPolicy::Command => "command",
        LogPolicy::Physiological => "physiological",
        LogPolicy::Auto => "auto",
        LogPolicy::Both => "both",
        LogPolicy::None => "none",
    }
}

pub fn commit_name(mode: CommitMode) -> &'static str {
    match mode {
        CommitMode::Sync => "sync",
        CommitMode::Async => "async",
    }
}

/// Cores that this process may use.
pub fn cores() -> u16 {
    let cores = thread::available_parallelism().map_or(1, |count| count.get());
    cores.min(reprise_base::limits::SITES_MAX as usize) as u16
}

pub fn by_default<T>(value: T) -> Setting<T> {
    Setting {
        value,
        source: Source::Default,
    }
}

/// Backups lie in the data directory unless a place is named.
fn below(data_dir: &Setting<PathBuf>, backup_dir: Option<Setting<PathBuf>>) -> Setting<PathBuf> {
    backup_dir.unwrap_or_else(|| by_default(data_dir.value.join("backups")))
}

/// The first layer that has a value.
fn pick<T>(given: Option<T>, given_source: Source, file: Option<T>) -> Option<Setting<T>> {
    let given = given.map(|value| Setting {
        value,
        source: given_source,
    });
    given.or_else(|| {
        file.map(|value| Setting {
            value,
            source: Source::File,
        })
    })
}

/// Holds a number of the file to the rule of its flag.
fn check_number<T: ToString>(number: Option<T>, rule: impl Fn(&str) -> Result<T, String>) -> Result<(), String> {
    number.map_or(Ok(()), |number| rule(&number.to_string()).map(drop))
}

/// A setting that stands in the file as text.
fn text_in_file<T>(text: Option<String>, parse: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>, String> {
    text.map(|text| parse(&text)).transpose()
}

fn size_in_file(value: Option<&toml::Value>, rule: fn(&str) -> Result<u64, String>) -> Result<Option<u64>, String> {
    let read = |value: &toml::Value| match value {
        toml::Value::String(text) => rule(text),
        other => rule(&other.to_string()),
    };
    value.map(read).transpose()
}

/// The file that is named, or the data directory's, if it has one. Not the working directory's: that may be anybody's.
fn file_of(args: &ServeArgs) -> Option<PathBuf> {
    let data_dir = args.data_dir.as_deref().unwrap_or(Path::new(DEFAULT_DATA_DIR));
    let own = || Some(data_dir.join(DEFAULT_FILE)).filter(|path| path.exists());
    args.config.clone().or_else(own)
}

fn read_file(path: &Path) -> Result<ConfigFile, Failure> {
    let text = fs::read_to_string(path).map_err(|error| usage(format!("read {}: {error}", path.display())))?;
    toml::from_str(&text).map_err(|error| usage(format!("{}: {error}", path.display())))
}

fn read_tokens(entries: &[TokenEntry]) -> Result<(Auth, Vec<TokenNote>), String> {
    let mut tokens = Vec::new();
    let mut names = Vec::new();
    for entry in entries {
        let name = format!("{} ({})", entry.name, entry.role);
        if entries.iter().filter(|other| other.name == entry.name).count() > 1 {
            return Err(format!("two tokens are named {}", entry.name));
        }
        let token = Token::new(&entry.name, &entry.role, &entry.sha256);
        let token = token.map_err(|error| error.to_string())?;
        names.push(TokenNote {
            name,
            digest: token.digest,
        });
        tokens.push(token);
    }
    let auth = if tokens.is_empty() {
        Auth::open()
    } else {
        Auth::with_tokens(tokens)
    };
    Ok((auth, names))
}

fn listen_of(given: Option<Setting<String>>) -> Result<Setting<SocketAddr>, Failure> {
    let listen = given.unwrap_or_else(|| by_default(DEFAULT_LISTEN.to_owned()));
    let (value, source) = (resolve(&listen.value)?, listen.source);
    Ok(Setting { value, source })
}

fn resolve(text: &str) -> Result<SocketAddr, Failure> {
    let refused = |why: String| {
        usage(format!(
            "listen: {text:?} is no address to listen on ({why}); write ADDR:PORT"
        ))
    };
    let mut found = text.to_socket_addrs().map_err(|error| refused(error.to_string()))?;
    found.next().ok_or_else(|| refused("no such host".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_args() -> ServeArgs {
        ServeArgs {
            data_dir: None,
            listen: None,
            partitions: None,
            sites: None,
            log: None,
            log_differential: None,
            recover_from: None,
            commit: None,
            group_commit_us: None,
            call_time_max_ms: None,
            deploy_time_max_s: None,
            slow_call_ms: None,
            otlp_endpoint: None,
            checkpoint_every: None,
            checkpoint_log_mib: None,
            recovery_target_s: None,
            checkpoints_kept: None,
            backup_dir: None,
            archive: None,
            archive_keep: None,
            memory_ready: None,
            idempotency_keep_s: None,
            memory_max: None,
            read_only: false,
            config: None,
        }
    }

    fn load(args: ServeArgs, file: &str) -> Result<ServeConfig, String> {
        let file = toml::from_str(file).map_err(|error| error.to_string())?;
        ServeConfig::join(args, file, None, &|_| Source::Flag).map_err(|error| error.to_string())
    }

    #[test]
    fn a_flag_goes_over_the_file_and_the_file_over_the_default() {
        let mut args = no_args();
        args.sites = Some(3);
        let config = load(args, "sites = 2\npartitions = 4\ncommit = \"async\"").expect("valid");
        assert_eq!(
            config.sites,
            Some(Setting {
                value: 3,
                source: Source::Flag
            })
        );
        assert_eq!(
            config.partitions,
            Some(Setting {
                value: 4,
                source: Source::File
            })
        );
        assert!(matches!(config.commit.value, CommitMode::Async));
        assert_eq!(config.listen.value.to_string(), DEFAULT_LISTEN);
        assert_eq!(config.memory_ready, by_default(0));
        assert_eq!(config.idempotency_keep_s, by_default(24 * 3600));
        assert!(load(no_args(), "idempotency_keep_s = 0").is_err());
        assert_eq!(config.call_time_max_ms, by_default(1_000));
        let config = load(no_args(), "call_time_max_ms = 0").expect("valid");
        assert_eq!(config.call_time_max_ms.value, 0);
        for text in ["memory_ready = \"2GiB\"", "memory_ready = 2147483648"] {
            let config = load(no_args(), &format!("memory_max = \"8GiB\"\n{text}")).expect("valid");
            assert_eq!(config.memory_ready.value, 2 << 30);
            let told = config.describe(&by_default(2), &by_default(1));
            assert!(told.contains("memory-ready       2147483648  (file)"), "{told}");
            assert!(told.contains("memory-max         8589934592  (file)"), "{told}");
        }
        let config = load(no_args(), "memory_max = \"1GiB\"\nmemory_ready = \"950MiB\"").expect("valid by itself");
        assert!(config.check_memory().is_err());
    }

    #[test]
    fn mistakes_in_the_file_are_named() {
        for (file, part) in [
            ("data-dir = \"x\"", "unknown field `data-dir`"),
            ("sites = 0", "sites: the number of sites is from 1"),
            ("log = \"physical\"", "log: the log is command, physiological"),
            ("[log]\nmodus = \"auto\"", "log: unknown field `modus`"),
            ("[log]\nrecover_from = \"none\"", "log: recover from command"),
            ("[[tokens]]\nname = \"a\"\nrole = \"root\"\nsha256 = \"00\"", "token a"),
            ("[http]\nbody_wait_s = 0", "http: body_wait_s is at least 1"),
            ("otlp_endpoint = \"x\"", "otlp_endpoint: \"x\" is no collector"),
            ("memory_ready = \"2 GB\"", "memory_ready: \"2 GB\" is no size"),
            ("memory_ready = -1", "memory_ready: \"-1\" is no size"),
            (
                "memory_max = \"63MiB\"",
                "memory_max: the limit of memory is 64 MiB at least",
            ),
            ("listen = \"nowhere\"", "no address to listen on"),
        ] {
            let error = load(no_args(), file).err().expect(file);
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_log_is_a_mode_or_a_table() {
        let config = load(no_args(), "log = \"both\"").expect("valid");
        assert_eq!(config.log.value, LogPolicy::Both);
        let file = "[log]\nmode = \"physiological\"\ndifferential = false";
        let config = load(no_args(), file).expect("valid");
        assert_eq!(config.log.value, LogPolicy::Physiological);
        assert_eq!(config.log_differential.value, AfterImage::Whole);
        let text = config.describe(&by_default(2), &by_default(1));
        assert!(text.contains("log-differential   false  (file)"), "{text}");
    }

    #[test]
    fn an_open_server_listens_on_loopback_only() {
        let error = load(no_args(), "listen = \"0.0.0.0:80\"").err().expect("refused");
        assert!(error.contains("loopback only"), "{error}");
        let token = format!(
            "listen = \"0.0.0.0:80\"\n[[tokens]]\nname = \"ci\"\nrole = \"write\"\nsha256 = \"{}\"",
            "0f".repeat(32)
        );
        let config = load(no_args(), &token).expect("valid");
        let text = config.describe(&by_default(2), &by_default(1));
        assert!(text.contains("ci (write)") && !text.contains("0f0f"), "{text}");
    }
}
