//! The file's section `[http]`: what one client may take, and whose pages may ask. None of it is a flag.

use std::time::Duration;

use reprise_http::{AllowedOrigins, ConnectionLimits};
use serde::Deserialize;

use super::setting::{Layers, SettingEntry, Source};
use crate::output::VerbFailure;

/// Beyond any number of file descriptors.
const CONNECTIONS_MAX: u32 = 1 << 20;

/// The section `[http]`. A limit that it leaves out keeps its default.
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

/// How HTTP is served.
pub struct HttpSettings {
    pub limits: ConnectionLimits,
    /// Sites whose pages may ask.
    pub origins: AllowedOrigins,
    origin_names: Vec<String>,
}

impl HttpSettings {
    pub fn pick(layers: &mut Layers<'_>) -> Result<Self, VerbFailure> {
        let entry = match layers.take("http") {
            None => HttpEntry::default(),
            Some(section) => HttpEntry::deserialize(section).map_err(|e| layers.refused("http", e.message()))?,
        };
        Ok(Self {
            limits: entry.limits().map_err(|error| layers.refused("http", error))?,
            origins: AllowedOrigins::new(&entry.origins).map_err(|error| layers.refused("http", error))?,
            origin_names: entry.origins,
        })
    }

    /// Each in words.
    pub fn entries(&self) -> Vec<SettingEntry> {
        let source_of = |is_default| if is_default { Source::Default } else { Source::File };
        let limits_source = source_of(self.limits == ConnectionLimits::default());
        let origins_source = source_of(self.origin_names.is_empty());
        vec![
            SettingEntry::new("http", format!("{:?}", self.limits), limits_source).where_said(),
            SettingEntry::new("origins", self.origin_names.join(", "), origins_source)
                .live()
                .where_said(),
        ]
    }
}

impl HttpEntry {
    fn limits(&self) -> Result<ConnectionLimits, String> {
        let default = ConnectionLimits::default();
        let connections_max = self.connections_max.unwrap_or(default.connections_max);
        if !(1..=CONNECTIONS_MAX).contains(&connections_max) {
            return Err(format!("connections_max must be from 1 to {CONNECTIONS_MAX}"));
        }
        let wait = |name: &str, seconds: Option<u32>, default: Duration| match seconds {
            None => Ok(default),
            Some(0) => Err(format!("{name} must be at least 1 (second)")),
            Some(seconds) => Ok(Duration::from_secs(seconds.into())),
        };
        let per_peer_max = self.connections_per_peer_max.unwrap_or(connections_max.div_ceil(2));
        if !(1..=connections_max).contains(&per_peer_max) {
            return Err(format!("connections_per_peer_max must be from 1 to {connections_max}"));
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
