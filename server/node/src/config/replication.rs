//! Which standbys follow this server, or which primary it follows.

use std::{net::ToSocketAddrs, time::Duration};

use reprise_base::{
    Safety, check_node_name,
    limits::{FUEL_MAX, FUEL_SLICE, PROCEDURE_FUEL_MAX},
    memory::parse_size,
    named_enum,
};
use reprise_database::{LogPolicy, ReadersConfig, ShipForm};

use super::{
    device::DeviceKind,
    setting::{SettingEntry, Show, Source, bounded, settings},
};
use crate::{
    etcd::EtcdEndpoint,
    output::{VerbFailure, usage},
};

/// Bytes of log that are kept for standbys that are behind, unless configured.
const HOLD_MAX_DEFAULT: u64 = 4 << 30;
/// Seconds between two comparisons of all tables, unless configured, and at most.
const COMPARE_EVERY_DEFAULT: u64 = 60;
const COMPARE_EVERY_MAX: u64 = 7 * 24 * 3600;

/// How long a lease lasts, unless configured, and at least: etcd gives no less.
const LEASE_TTL_MS_DEFAULT: u64 = 5_000;
const LEASE_TTL_MS_MIN: u64 = 2_000;
const LEASE_TTL_MS_MAX: u64 = 60_000;

/// Readers of a standby: at least, unless configured, and at most.
const READERS_DEFAULT_MIN: u16 = 2;
const READERS_MAX: u16 = 256;
/// Milliseconds for which a view is held by default. The second constant is the highest setting.
const VIEW_TIME_MAX_MS_DEFAULT: u64 = 10_000;
const VIEW_TIME_MAX_MS_MAX: u64 = 3_600_000;
/// Bytes that are kept for views, unless configured.
const VIEW_MEMORY_MAX_DEFAULT: u64 = 1 << 30;
/// And this part of all memory at most.
const VIEW_MEMORY_PART: u64 = 8;

/// A secret: never shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secret(pub String);

impl Show for Secret {
    fn shown(&self) -> String {
        "(kept secret)".into()
    }

    fn hidden(&self) -> String {
        self.0.clone()
    }
}

/// Servers of etcd.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoints(pub Vec<EtcdEndpoint>);

impl Show for Endpoints {
    fn shown(&self) -> String {
        let addresses: Vec<_> = self.0.iter().map(EtcdEndpoint::address).collect();
        addresses.join(",")
    }

    fn hidden(&self) -> String {
        let users: Vec<_> = self.0.iter().map(EtcdEndpoint::user_and_password).collect();
        users.join(",")
    }
}

named_enum! {
    /// The transport that carries the log to standbys.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Transport {
        Tcp => "tcp",
        Rdma => "rdma",
    }
}

settings! {
    /// Which standbys follow this server, or which primary it follows.
    ReplicationSettings from ReplicationArgs under "Replication" {
        /// Follow the primary at this URL as a standby: receive its log, replay it, serve reads [default: none]
        standby_of: String {
            env: "REPRISE_STANDBY_OF",
            takes: "URL",
            check: url,
            marks: [where_said],
        }
        /// Token with the role admin that a standby sends to its primary [default: none]
        standby_token: crate::config::replication::Secret {
            env: "REPRISE_STANDBY_TOKEN",
            takes: "TOKEN",
            check: secret,
            marks: [where_said],
        }
        /// PEM file with CA certificates that a standby trusts besides the system's, if the primary's URL begins with https://
        /// [default: none]
        standby_ca_cert: std::path::PathBuf {
            env: "REPRISE_STANDBY_CA_CERT",
            takes: "FILE",
            marks: [where_said],
        }
        /// Name of this server among the primary and its standbys [default: the host's name and the port]
        name: String {
            env: "REPRISE_NAME",
            takes: "NAME",
            check: name,
            marks: [where_said],
        }
        /// URL at which clients and other servers reach this server [default: the address of listen, unless that is every address]
        advertise: String {
            env: "REPRISE_ADVERTISE",
            takes: "URL",
            check: url,
            marks: [where_said],
        }
        /// Address and port to which standbys connect. Every row passes here, encrypted only if tls-cert is set [default: none]
        ship_listen: String {
            env: "REPRISE_SHIP_LISTEN",
            takes: "ADDR",
            check: ship_listen,
            marks: [where_said],
        }
        /// Form in which standbys get a transaction. as-logged: as the log holds it. changes: its changes by row number, which standbys
        /// write. command: its command, which standbys run and compare [default: as-logged]
        ship: ShipForm {
            env: "REPRISE_SHIP",
            takes: "FORM",
            default: ShipForm::AsLogged,
            marks: [where_said],
        }
        /// Transport of the log to standbys: tcp, or rdma, which writes into their memory. Both sides need the same [default: tcp]
        transport: crate::config::replication::Transport {
            env: "REPRISE_TRANSPORT",
            takes: "KIND",
            default: Transport::Tcp,
            marks: [where_said],
        }
        /// RDMA card to use, by name, or by name and GID index (mlx5_0, mlx5_0:3) [default: the card with the connection's address]
        rdma_device: String {
            env: "REPRISE_RDMA_DEVICE",
            takes: "CARD",
            marks: [where_said],
        }
        /// Durability that a write has when the server acknowledges it: 1-safe (here), 2-safe (and on the standbys that are in sync),
        /// quorum (on more than half of all servers), very-safe (on all that count) [default: the cluster's, else as --commit says]
        safety: reprise_base::Safety {
            env: "REPRISE_SAFETY",
            takes: "LEVEL",
            check: safety,
            marks: [where_said],
        }
        /// etcd endpoints, as http://HOST:PORT or https://USER:PASSWORD@HOST:PORT, separated by commas. A lease in etcd decides which
        /// server is the primary. When it ends, a standby in sync takes over. It needs safety 2-safe, quorum or very-safe
        /// [default: none; you promote by hand]
        lease_etcd: crate::config::replication::Endpoints {
            env: "REPRISE_LEASE_ETCD",
            takes: "URL[,URL]",
            check: endpoints,
            marks: [where_said],
        }
        /// PEM file with CA certificates to trust for etcd besides the system's, if its URL begins with https://. If etcd asks for a
        /// client certificate, the server sends tls-cert [default: none]
        lease_ca_cert: std::path::PathBuf {
            env: "REPRISE_LEASE_CA_CERT",
            takes: "FILE",
            marks: [where_said],
        }
        /// Milliseconds that a lease lasts. They must be whole seconds, because etcd counts in seconds [default: 5000]
        lease_ttl_ms: u64 {
            env: "REPRISE_LEASE_TTL_MS",
            takes: "N",
            check: lease_ttl,
            default: LEASE_TTL_MS_DEFAULT,
            marks: [where_said],
        }
        /// Number of threads on a standby that run read-only calls and read pages of rows [default: number of sites, at least 2]
        readers: u16 {
            env: "REPRISE_READERS",
            takes: "N",
            check: readers,
            marks: [where_said],
        }
        /// Milliseconds for which a read on a standby may hold its view of the tables. A procedure may declare less [default: 10000]
        view_time_max_ms: u64 {
            env: "REPRISE_VIEW_TIME_MAX_MS",
            takes: "N",
            check: view_time,
            default: VIEW_TIME_MAX_MS_DEFAULT,
            marks: [where_said],
        }
        /// Largest fuel of a read-only call on a standby, unless its procedure declares fuel-max. It may differ between servers
        /// [default: 100000000]
        view_fuel_max: u64 {
            env: "REPRISE_VIEW_FUEL_MAX",
            takes: "N",
            check: view_fuel,
            default: FUEL_MAX,
            marks: [where_said],
        }
        /// Largest memory for old rows that reads on a standby still need: bytes, or a number with KiB, MiB or GiB [default: 1 GiB, at
        /// most an eighth of memory-max]
        view_memory_max: u64 {
            env: "REPRISE_VIEW_MEMORY_MAX",
            takes: "SIZE",
            check: parse_size,
            default: VIEW_MEMORY_MAX_DEFAULT,
            marks: [where_said],
        }
        /// Largest log that the primary keeps for standbys that are behind: bytes, or a number with KiB, MiB or GiB [default: 4 GiB]
        hold_max: u64 {
            env: "REPRISE_HOLD_MAX",
            takes: "SIZE",
            check: parse_size,
            default: HOLD_MAX_DEFAULT,
            marks: [where_said],
        }
        /// Seconds between two comparisons of a standby's tables with the primary's; 0: never [default: 60]
        compare_every: u64 {
            env: "REPRISE_COMPARE_EVERY",
            takes: "SECONDS",
            check: compare_every,
            default: COMPARE_EVERY_DEFAULT,
            marks: [where_said],
        }
    }
}

impl ReplicationSettings {
    /// Returns the entries to show. A server with standbys, and a standby, show all that are in effect.
    pub fn shown_entries(&self) -> Vec<SettingEntry> {
        let replicates = self.ship_listen.value.is_some() || self.standby_of.value.is_some();
        let mut entries = self.entries();
        for entry in &mut entries {
            entry.is_shown |= replicates && entry.value != None::<String>.shown();
        }
        entries
    }

    /// Returns how a standby with `sites` engine threads reads beside its replay. `memory_max`: bytes that the server may take in all.
    pub fn readers(&self, sites: u16, memory_max: u64) -> ReadersConfig {
        let view_bytes_max = self.view_memory_max.value;
        let is_said = self.view_memory_max.source != Source::Default;
        ReadersConfig {
            // The readers run as many reads at once as engine threads would. One more serves beside a long read; an idle one costs 8 KiB.
            threads: self
                .readers
                .value
                .unwrap_or(sites.clamp(READERS_DEFAULT_MIN, READERS_MAX)),
            view_time_max: Duration::from_millis(self.view_time_max_ms.value),
            view_fuel_max: self.view_fuel_max.value,
            view_bytes_max: match is_said {
                true => view_bytes_max,
                false => view_bytes_max.min(memory_max / VIEW_MEMORY_PART),
            },
        }
    }

    /// Settings that do not go together are refused.
    pub fn check(&self, log: LogPolicy, device: DeviceKind, read_only: bool) -> Result<(), VerbFailure> {
        let (standby_of, ship) = (&self.standby_of.value, &self.ship_listen.value);
        // A flag is of this start; files and variables may serve a primary and its standbys alike.
        for (is_flag, name) in [
            (self.standby_token.source == Source::Flag, "standby-token"),
            (self.standby_ca_cert.source == Source::Flag, "standby-ca-cert"),
        ] {
            if is_flag && standby_of.is_none() && ship.is_none() {
                return Err(usage(format!("{name} needs standby-of or ship-listen")));
            }
        }
        if self.rdma_device.value.is_some() && self.transport.value != Transport::Rdma {
            return Err(usage("rdma-device needs transport rdma"));
        }
        if read_only && standby_of.is_some() {
            return Err(usage(
                "a read-only server changes no table, and a standby follows its primary: take read-only or standby-of",
            ));
        }
        if read_only && ship.is_some() {
            return Err(usage(
                "a read-only server changes no table, so standbys have nothing to follow: take read-only or ship-listen",
            ));
        }
        if let Some(level) = self.safety.value
            && level.asks_standbys()
            && ship.is_none()
        {
            return Err(usage(format!(
                "safety {level} needs standbys: set the address to which they connect (ship-listen)"
            )));
        }
        self.check_lease(read_only)?;
        self.check_ship(log, device)?;
        match log != LogPolicy::None || (standby_of.is_none() && ship.is_none()) {
            true => Ok(()),
            false => Err(usage(
                "standbys need a log: take another --log than none, or remove standby-of and ship-listen",
            )),
        }
    }
}

impl ReplicationSettings {
    fn check_ship(&self, log: LogPolicy, device: DeviceKind) -> Result<(), VerbFailure> {
        let form = self.ship.value.name();
        match (self.ship.value, log, device) {
            (ShipForm::AsLogged, _, _) => Ok(()),
            _ if self.ship_listen.value.is_none() => Err(usage(format!(
                "ship {form} needs standbys: set the address to which they connect (ship-listen)"
            ))),
            (_, LogPolicy::Both, _) => Err(usage(format!(
                "ship {form}: the server ships a log of both forms as it is. Take another --log, or ship as-logged"
            ))),
            (_, _, DeviceKind::Nvram) => Err(usage(format!(
                "ship {form}: the server ships a log in NVRAM as it is. Set the form with --log instead"
            ))),
            _ => Ok(()),
        }
    }

    /// Checks the other settings that `--change-safety` needs.
    pub fn check_change(&self, is_change: bool, read_only: bool) -> Result<(), VerbFailure> {
        let is_standby = self.standby_of.value.is_some();
        match is_change && (self.safety.value.is_none() || is_standby || read_only) {
            true => Err(usage(
                "--change-safety is for a primary, and needs the new level: --safety LEVEL. Standbys get it from their primary",
            )),
            false => Ok(()),
        }
    }

    fn check_lease(&self, read_only: bool) -> Result<(), VerbFailure> {
        if self.lease_etcd.value.is_none() {
            return match self.lease_ca_cert.value {
                Some(_) => Err(usage("lease-ca-cert needs lease-etcd")),
                None => Ok(()),
            };
        }
        if read_only {
            return Err(usage(
                "a read-only server can't become the primary, and lease-etcd may make it one: take read-only or lease-etcd",
            ));
        }
        if !matches!(
            self.safety.value,
            Some(Safety::TwoSafe | Safety::Quorum | Safety::VerySafe)
        ) {
            return Err(usage(
                "lease-etcd needs safety 2-safe, quorum or very-safe: only then a standby can have every acknowledged write when it takes over",
            ));
        }
        Ok(())
    }
}

fn endpoints(text: &str) -> Result<Endpoints, String> {
    let read: Option<Vec<_>> = text.split(',').map(EtcdEndpoint::read).collect();
    // The text may hold a password.
    let shown = text.rsplit('@').next().unwrap_or_default();
    read.map(Endpoints).ok_or_else(|| {
        format!("{shown:?} is not a list of etcd endpoints; write http://HOST:PORT, separated by commas")
    })
}

fn compare_every(text: &str) -> Result<u64, String> {
    bounded(text, "the seconds between comparisons", 0, COMPARE_EVERY_MAX)
}

fn lease_ttl(text: &str) -> Result<u64, String> {
    let ms = bounded(text, "the milliseconds of a lease", LEASE_TTL_MS_MIN, LEASE_TTL_MS_MAX)?;
    match ms % 1000 {
        0 => Ok(ms),
        _ => Err(format!("{ms} ms are not whole seconds, and etcd counts in seconds")),
    }
}

fn url(text: &str) -> Result<String, String> {
    let is_http = text.starts_with("http://") || text.starts_with("https://");
    match is_http && !text.contains(char::is_whitespace) {
        true => Ok(text.trim_end_matches('/').to_owned()),
        false => Err(format!("{text:?} is not the URL of a server; write http://HOST:PORT")),
    }
}

fn secret(text: &str) -> Result<Secret, String> {
    match text.is_empty() {
        true => Err("the token is empty".into()),
        false => Ok(Secret(text.to_owned())),
    }
}

fn name(text: &str) -> Result<String, String> {
    check_node_name(text).map(|()| text.to_owned())
}

fn safety(text: &str) -> Result<Safety, String> {
    let level = Safety::from_name(text).filter(|level| *level >= Safety::OneSafe);
    level.ok_or_else(|| format!("{text:?} is not a safety level; take 1-safe, 2-safe, quorum or very-safe"))
}

fn ship_listen(text: &str) -> Result<String, String> {
    match text.to_socket_addrs().map(|mut found| found.next().is_some()) {
        Ok(true) => Ok(text.to_owned()),
        Ok(false) => Err(format!("{text:?} is not an address to listen on; write ADDR:PORT")),
        Err(error) => Err(format!(
            "{text:?} is not an address to listen on ({error}); write ADDR:PORT"
        )),
    }
}

fn readers(text: &str) -> Result<u16, String> {
    bounded(text, "the number of readers", 1, READERS_MAX.into()).map(|count| count as u16)
}

fn view_fuel(text: &str) -> Result<u64, String> {
    bounded(text, "the fuel of a read", FUEL_SLICE, PROCEDURE_FUEL_MAX)
}

fn view_time(text: &str) -> Result<u64, String> {
    bounded(text, "the milliseconds of a view", 1, VIEW_TIME_MAX_MS_MAX)
}
