//! The directories of a server's files.

use std::path::PathBuf;

use anyhow::Context;
use reprise_database::LogPolicy;
use reprise_env::make_private_dirs;

use crate::{announce, config::ServeConfig, output::VerbFailure};

/// The directories of this run's files.
pub struct Files {
    /// The log's directory. None without a log.
    pub log_dir: Option<PathBuf>,
    pub catalog_dir: PathBuf,
    /// Without a log, the catalog is as temporary as the tables. If nothing may be written, it is made from the log each time.
    _temporary: Option<tempfile::TempDir>,
}

impl Files {
    pub fn prepare(config: &ServeConfig) -> Result<Self, VerbFailure> {
        let dir = &config.place.data_dir.value;
        let has_log = config.log.log.value != LogPolicy::None;
        if config.read_only || !has_log {
            let temporary = tempfile::tempdir().context("create a temporary directory")?;
            return Ok(Self {
                log_dir: has_log.then(|| dir.clone()),
                catalog_dir: temporary.path().join("catalog"),
                _temporary: Some(temporary),
            });
        }
        make_private_dirs(dir).with_context(|| format!("create {}", dir.display()))?;
        announce::readers(dir);
        let catalog_dir = dir.join("catalog");
        make_private_dirs(&catalog_dir).with_context(|| format!("create {}", catalog_dir.display()))?;
        Ok(Self {
            log_dir: Some(dir.clone()),
            catalog_dir,
            _temporary: None,
        })
    }
}
