//! `reprise node` and `reprise standby`: a data directory's part in its cluster, read and changed while no server runs on it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use clap::Subcommand;
use reprise_base::Safety;
use reprise_database::{DirHealth, NODE_NAME, NodeFile, OpenError, RegionNote, VIEW_NAME};
use reprise_env::{Disk, DiskLock, RealDisk};
use reprise_nvram::{MapRegions, OpenMemory, PmemError, Region};
use serde_json::json;

use crate::{
    cli::Output,
    output::{VerbFailure, VerbResult, print_json, print_pairs, print_text},
    standby::{ARRIVED, FOLDERS},
};

#[derive(Subcommand)]
pub enum NodeCommand {
    /// Show the part of a data directory in its cluster, and what a start on it would do
    #[command(after_help = "Example:\n  reprise node show ./reprise-data")]
    Show {
        /// The data directory
        dir: PathBuf,
    },
    /// Have the next start without --standby-of lead, though this directory is a standby's or gave its place away
    #[command(after_help = "Example:\n  reprise node lead ./reprise-data --accept-loss")]
    Lead {
        /// The data directory
        dir: PathBuf,
        /// Accept that writes which this directory does not have are lost
        #[arg(long)]
        accept_loss: bool,
    },
    /// Show whether the tables of a data directory may be served, or say that they may
    #[command(
        after_help = "Examples:\n  reprise node health ./reprise-data\n  reprise node health ./reprise-data --clear"
    )]
    Health {
        /// The data directory
        dir: PathBuf,
        /// Open the tables from now on, although they were not those of the primary
        #[arg(long)]
        clear: bool,
    },
}

#[derive(Subcommand)]
pub enum StandbyCommand {
    /// Remove the log, the checkpoints and the NVRAM records of a standby, so that it begins again from its primary
    #[command(after_help = "Example:\n  reprise standby reset ./standby-data")]
    Reset {
        /// The data directory
        dir: PathBuf,
    },
}

pub fn run_node(command: &NodeCommand, output: Output) -> VerbResult {
    match command {
        NodeCommand::Show { dir } => show(dir, output),
        NodeCommand::Lead { dir, accept_loss } => lead(dir, *accept_loss, output),
        NodeCommand::Health { dir, clear } => health(dir, *clear, output),
    }
}

pub fn run_standby(StandbyCommand::Reset { dir }: &StandbyCommand, output: Output) -> VerbResult {
    reset(dir)?;
    print_result(output, &json!({ "reset": true }), || {
        format!(
            "{} holds no log any more: start it with --standby-of, and it fetches its first files",
            dir.display()
        )
    })
}

fn print_result(output: Output, value: &serde_json::Value, text: impl FnOnce() -> String) -> VerbResult {
    match output {
        Output::Json => Ok(print_json(value)?),
        Output::Text => Ok(print_text(&text())?),
    }
}

fn root(dir: &Path) -> Result<Arc<dyn Disk>, VerbFailure> {
    Ok(Arc::new(
        RealDisk::open(dir).with_context(|| format!("open {}", dir.display()))?,
    ))
}

/// Keeps a reset, and another standby's start, away from a directory while its first files come, or its log is cut back.
pub fn lock_root(dir: &Path) -> Result<DiskLock, VerbFailure> {
    Ok(root(dir)?
        .lock()
        .with_context(|| format!("lock {}: does a standby begin on it?", dir.display()))?)
}

/// Keeps servers away from the directory. None: it holds no log.
fn lock(dir: &Path) -> Result<Option<DiskLock>, VerbFailure> {
    let log = dir.join("log");
    if !log.exists() {
        return Ok(None);
    }
    let locked = RealDisk::open(&log).and_then(|log| log.lock());
    Ok(Some(locked.with_context(|| {
        format!("lock {}: does a server run on it?", log.display())
    })?))
}

fn describe(health: &DirHealth) -> String {
    match health {
        DirHealth::Good => "good".to_owned(),
        DirHealth::TablesDiffer(what) => format!("its tables were not its primary's: {what}"),
        DirHealth::MustBootstrap(why) => format!("it must begin again: {why}"),
    }
}

fn show(dir: &Path, output: Output) -> VerbResult {
    let root = root(dir)?;
    let document = match NodeFile::open(root) {
        Ok(node) => node.document(),
        Err(OpenError::NodeUnknown { reason }) => {
            return print_result(output, &json!({ "unknown": reason }), || {
                format!("the document of this directory can't be read: {reason}")
            });
        }
        Err(error) => return Err(anyhow::Error::from(error).into()),
    };
    let has_log = dir.join("log").exists();
    let (as_primary, as_standby) = (document.as_primary(has_log), document.as_standby(has_log));
    if output == Output::Json {
        let mut value = serde_json::to_value(&document).context("write the document as JSON")?;
        value["as_primary"] = as_primary.into();
        value["as_standby"] = as_standby.into();
        return Ok(print_json(&value)?);
    }
    let mut pairs = vec![
        ("identity", document.identity().to_owned()),
        ("health", describe(&document.health)),
        ("safety", document.safety().map_or("none yet", Safety::name).to_owned()),
        ("part", document.part()),
    ];
    pairs.extend(document.members().map(|member| ("standby", member)));
    pairs.push(("a start without --standby-of", as_primary));
    pairs.push(("a start with --standby-of", as_standby));
    Ok(print_pairs(&pairs)?)
}

fn lead(dir: &Path, accepts_loss: bool, output: Output) -> VerbResult {
    let _lock = lock(dir)?.with_context(|| format!("{} holds no log to lead with", dir.display()))?;
    let root = root(dir)?;
    let node = match NodeFile::open(root.clone()) {
        Err(OpenError::NodeUnknown { .. }) if accepts_loss => NodeFile::replace(root),
        opened => opened.context("read the document of the directory")?,
    };
    match node.health() {
        DirHealth::Good => {}
        DirHealth::MustBootstrap(why) => {
            return Err(anyhow::anyhow!("this directory has no log that can be used: {why}").into());
        }
        DirHealth::TablesDiffer(what) => {
            return Err(anyhow::anyhow!(
                "the tables of this directory were not as its primary's: {what}. If you know that they are right, say so with                  reprise node health {} --clear first",
                dir.display()
            )
            .into());
        }
    }
    if !accepts_loss {
        return Err(anyhow::anyhow!(
            "{}. Another server may have answered writes that are not in this directory, and they would be lost: --accept-loss accepts that. \
             Make sure that no other server of this database leads",
            node.document().part()
        )
        .into());
    }
    node.make_primary().context("save the document")?;
    print_result(output, &json!({ "leads": true }), || {
        "the next start without --standby-of leads, in a new epoch; start every other server of this database with --standby-of".to_owned()
    })
}

fn health(dir: &Path, clear: bool, output: Output) -> VerbResult {
    let node = NodeFile::open(root(dir)?).context("read the document of the directory")?;
    if clear {
        let _lock = lock(dir)?;
        if let DirHealth::MustBootstrap(why) = node.health() {
            return Err(anyhow::anyhow!("a standby that must begin again has no tables to open: {why}").into());
        }
        node.set_health(DirHealth::Good).context("save the document")?;
    }
    let health = node.health();
    print_result(output, &json!({ "health": health }), || describe(&health))
}

/// Removes the files that a standby fetches anew. After an interruption, a second run or a start as a standby completes it.
fn reset(dir: &Path) -> VerbResult {
    let root = root(dir)?;
    if !dir.join(NODE_NAME).exists() {
        return Err(anyhow::anyhow!(
            "{} is no standby's directory: it has no {NODE_NAME}. Nothing was removed",
            dir.display()
        )
        .into());
    }
    let _root = lock_root(dir)?;
    let lock = lock(dir)?;
    let node = match NodeFile::open(root.clone()) {
        Err(OpenError::NodeUnknown { .. }) => NodeFile::replace(root.clone()),
        opened => opened.context("read the document of the directory")?,
    };
    let document = node.document();
    if lock.is_some() && document.is_primary() {
        return Err(anyhow::anyhow!(
            "{} is a primary's directory: {}. Its log may be the only one with what was answered, so nothing was removed. If another server \
             leads, start this one with --standby-of it first",
            dir.display(),
            document.part()
        )
        .into());
    }
    node.begin_again("an operator reset it").context("save the document")?;
    erase_region(&*root)?;
    drop(lock);
    clear_useless(dir).with_context(|| format!("clear {}", dir.display()))?;
    Ok(())
}

/// Erases the records of the NVRAM region that the directory names, unless the region is another one by now.
fn erase_region(root: &dyn Disk) -> VerbResult {
    let Some(note) = RegionNote::load(root).context("read which NVRAM region is in use")? else {
        return Ok(());
    };
    let opened = MapRegions::default().open(&note.path, None);
    match opened {
        Ok(memory) => {
            let region = Region::open(memory.clone()).ok().flatten();
            if region.is_some_and(|region| note.is_of(region.owner())) {
                Region::erase(&*memory);
            }
        }
        // The region is gone, and its records with it.
        Err(PmemError::File { error, .. }) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            return Err(anyhow::Error::from(error)
                .context(format!("erase the NVRAM region {}", note.path.display()))
                .into());
        }
    }
    RegionNote::remove(root).context("forget the NVRAM region")?;
    Ok(())
}

/// Removes files that are of no use by the directory's document. Interrupted, it is done again.
pub fn clear_useless(dir: &Path) -> anyhow::Result<()> {
    let node = NodeFile::open(Arc::new(RealDisk::open(dir)?))?;
    if !matches!(node.health(), DirHealth::MustBootstrap(_)) {
        return Ok(());
    }
    for folder in FOLDERS.into_iter().chain([ARRIVED]) {
        match fs::remove_dir_all(dir.join(folder)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    match fs::remove_file(dir.join(VIEW_NAME)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    fs::File::open(dir)?.sync_all()?;
    Ok(node.set_health(DirHealth::Good)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_differed_are_opened_by_an_operators_word_and_a_useless_log_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = || NodeFile::open(Arc::new(RealDisk::open(dir.path()).expect("there"))).expect("read");
        open().set_health(DirHealth::TablesDiffer("t".into())).expect("saved");
        health(dir.path(), false, Output::Json).unwrap_or_else(|_| panic!("shown"));
        assert_eq!(open().health(), DirHealth::TablesDiffer("t".into()));
        fs::create_dir(dir.path().join("log")).expect("made");
        let refused = lead(dir.path(), true, Output::Json).expect_err("refused").to_string();
        assert!(refused.contains("--clear first"), "{refused}");
        health(dir.path(), true, Output::Json).unwrap_or_else(|_| panic!("cleared"));
        assert_eq!(open().health(), DirHealth::Good);
        let useless = DirHealth::MustBootstrap("nothing is left".into());
        open().set_health(useless.clone()).expect("saved");
        assert!(health(dir.path(), true, Output::Json).is_err());
        assert_eq!(open().health(), useless);
    }

    #[test]
    fn reset_directory_holds_no_log_and_keeps_its_identity() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |path: &str| dir.path().join(path);
        for made in ["log", "checkpoints", "bootstrap/log", "cuts"] {
            fs::create_dir_all(at(made)).expect("make");
        }
        fs::write(at("view"), [0; 16]).expect("write");
        let open = || NodeFile::open(Arc::new(RealDisk::open(dir.path()).expect("there"))).expect("read");
        open().set_health(DirHealth::TablesDiffer("t".into())).expect("saved");
        let identity = open().document().identity().to_owned();
        for _ in 0..2 {
            reset(dir.path()).unwrap_or_else(|_| panic!("reset"));
            for gone in ["log", "checkpoints", "bootstrap", "view"] {
                assert!(!at(gone).exists(), "{gone}");
            }
            assert!(at("cuts").exists());
            assert_eq!(
                (open().health(), open().document().identity()),
                (DirHealth::Good, &*identity)
            );
        }
        fs::write(at("node.json"), "{").expect("write");
        reset(dir.path()).unwrap_or_else(|_| panic!("also where the document is damaged"));
        assert_ne!(open().document().identity(), identity, "it is another node");
    }

    #[test]
    fn reset_is_refused_while_the_region_can_not_be_erased_and_goes_on_without_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |path: &str| dir.path().join(path);
        let node = NodeFile::open(Arc::new(RealDisk::open(dir.path()).expect("there"))).expect("read");
        node.set_health(DirHealth::TablesDiffer("t".into())).expect("saved");
        // A folder in the region's place.
        fs::create_dir(at("region")).expect("make");
        let note = serde_json::json!({"path": at("region"), "region_id": "0".repeat(32)});
        fs::write(at("nvram.json"), note.to_string()).expect("write");
        let failure = reset(dir.path()).expect_err("refused").to_string();
        assert!(failure.contains("erase the NVRAM region"), "{failure}");
        assert!(at("nvram.json").exists());
        if reprise_nvram::library().is_ok() {
            fs::remove_dir(at("region")).expect("removed");
            reset(dir.path()).unwrap_or_else(|_| panic!("reset"));
            assert!(!at("nvram.json").exists());
        }
    }

    #[test]
    fn reset_is_refused_if_the_directory_has_no_document_or_is_a_primary_s() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("log").join("syslog");
        fs::create_dir(dir.path().join("log")).expect("make");
        fs::write(&file, "text").expect("write");
        let refused = |words: &str| {
            let failure = reset(dir.path()).expect_err("refused");
            assert!(failure.to_string().contains(words), "{failure}");
            assert!(file.exists());
        };
        refused("is no standby's directory");
        assert!(!dir.path().join(NODE_NAME).exists());
        let node = NodeFile::open(Arc::new(RealDisk::open(dir.path()).expect("there"))).expect("read");
        node.make_primary().expect("saved");
        refused("is a primary's directory");
        // Without a log there is nothing to lose.
        fs::remove_dir_all(dir.path().join("log")).expect("removed");
        reset(dir.path()).unwrap_or_else(|_| panic!("reset"));
    }
}
