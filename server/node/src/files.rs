//! The directories of a server's files, and its catalog.

use std::path::PathBuf;

use anyhow::Context;
use reprise_catalog::Catalog;
use reprise_database::LogPolicy;
use reprise_env::make_private_dirs;

use crate::{announce, config::ServeConfig, output::VerbFailure, server_output};

/// The directories of this run's files.
pub struct Files {
    /// The log's directory. None without a log.
    pub log_dir: Option<PathBuf>,
    /// The catalog's directory. None without a log, and if nothing may be written: this run then makes no catalog.
    catalog_dir: Option<PathBuf>,
}

impl Files {
    pub fn prepare(config: &ServeConfig) -> Result<Self, VerbFailure> {
        let dir = &config.place.data_dir.value;
        let has_log = config.log.log.value != LogPolicy::None;
        let has_catalog = has_log && !config.read_only;
        if has_catalog {
            make_private_dirs(dir).with_context(|| format!("create {}", dir.display()))?;
            announce::readers(dir);
        }
        Ok(Self {
            log_dir: has_log.then(|| dir.clone()),
            catalog_dir: has_catalog.then(|| dir.join("catalog")),
        })
    }

    /// Opens the catalog. None: this run has none, or it can't be opened, which a warning says. The server starts all the same.
    pub fn open_catalog(&self) -> Option<Catalog> {
        let dir = self.catalog_dir.as_deref()?;
        match Catalog::open(dir) {
            Ok(opened) => {
                if let Some(set_aside) = &opened.set_aside {
                    let place = set_aside.display();
                    let text = format!(
                        "the catalog could not be read; it lies in {place} now, and is made again from the log"
                    );
                    server_output::warning("catalog", text);
                }
                Some(opened.catalog)
            }
            Err(error) => {
                warn_of_missing_catalog(&format!("{}: {error}", dir.display()));
                None
            }
        }
    }
}

/// Warns that the catalog can't be used. No request reads it: a full or a broken disk therefore ends no server because of it.
pub fn warn_of_missing_catalog(reason: &str) {
    let text = format!(
        "the server runs without its catalog, a copy for look-ups that no request reads, until a later start fills it: {reason}"
    );
    server_output::warning("catalog", text);
}
