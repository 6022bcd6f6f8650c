//! The server's place: its data directory, its address, its threads.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    path::{Path, PathBuf},
    thread,
};

use super::setting::settings;
use crate::output::{VerbFailure, usage};

pub const DEFAULT_DATA_DIR: &str = "./reprise-data";
const DEFAULT_LISTEN: &str = "127.0.0.1:8080";

settings! {
    /// The settings of the server's place.
    PlaceSettings from PlaceArgs under "Place" {
        /// Data directory, for the log, checkpoints and modules [default: ./reprise-data]
        data_dir: std::path::PathBuf {
            env: "REPRISE_DATA_DIR",
            takes: "DIR",
            default: DEFAULT_DATA_DIR.into(),
        }
        /// Address and port to listen on; port 0 takes a free port [default: 127.0.0.1:8080]
        listen: String {
            env: "REPRISE_LISTEN",
            takes: "ADDR",
            default: DEFAULT_LISTEN.to_owned(),
        }
        /// Number of partitions of the data, fixed when the database is created [default: number of cores]
        partitions: u16 {
            env: "REPRISE_PARTITIONS",
            takes: "N",
            check: partitions,
            show: shown_count,
        }
        /// Number of engine threads. It may change at each start [default: number of cores, at most one for each partition]
        sites: u16 {
            env: "REPRISE_SITES",
            takes: "N",
            check: sites,
            show: shown_count,
        }
    }
}

impl PlaceSettings {
    /// Returns the address that `listen` names.
    pub fn address(&self) -> Result<SocketAddr, VerbFailure> {
        let text = &self.listen.value;
        let refused = |why: String| {
            usage(format!(
                "listen: {text:?} is not an address to listen on ({why}); write ADDR:PORT"
            ))
        };
        let mut found = text.to_socket_addrs().map_err(|error| refused(error.to_string()))?;
        found.next().ok_or_else(|| refused("no such host".into()))
    }
}

fn shown_count(count: &Option<u16>) -> String {
    count.map_or_else(|| "as it is made, or found".into(), |count| count.to_string())
}

fn count(text: &str, what: &str, max: u16) -> Result<u16, String> {
    match text.parse() {
        Ok(number) if (1..=max).contains(&number) => Ok(number),
        _ => Err(format!("the number of {what} must be from 1 to {max}")),
    }
}

pub fn partitions(text: &str) -> Result<u16, String> {
    count(text, "partitions", reprise_base::limits::PARTITIONS_MAX)
}

pub fn sites(text: &str) -> Result<u16, String> {
    count(text, "sites", reprise_base::limits::SITES_MAX)
}

/// The path, or the nearest folder above it that is there.
pub fn nearest_directory(path: &Path) -> PathBuf {
    let here = PathBuf::from(".");
    let mut folders = path.ancestors().filter(|folder| !folder.as_os_str().is_empty());
    folders.find(|folder| folder.is_dir()).map_or(here, Path::to_owned)
}

/// The sites that were asked for; without, as many as there are cores, at most one a partition.
pub fn sites_or_default(asked: Option<u16>, partitions: u16) -> Result<u16, VerbFailure> {
    match asked {
        Some(asked) if asked > partitions => Err(usage(format!(
            "{asked} sites are more than {partitions} partitions need: take at most {partitions}"
        ))),
        Some(asked) => Ok(asked),
        None => Ok(cores().min(partitions)),
    }
}

/// Cores that this process may use.
pub fn cores() -> u16 {
    let cores = thread::available_parallelism().map_or(1, |count| count.get());
    cores.min(reprise_base::limits::SITES_MAX as usize) as u16
}
