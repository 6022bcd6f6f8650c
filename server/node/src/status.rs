//! `reprise status`: the state of a server, for people.

use std::io;

use reprise_api::{ArchiveInfo, NvramStatus, Phase, RecoveryStep, RestartEstimate, Status};

use crate::{
    cli::{Output, ServerArgs},
    output::{VerbResult, bytes, grouped, print_json, print_pairs},
    remote::{connect, failure},
};

pub fn status(server: &ServerArgs, output: Output) -> VerbResult {
    let status = connect(server)?.status().map_err(failure)?;
    match output {
        Output::Json => print_json(&status)?,
        Output::Text => print_status(&status)?,
    }
    Ok(())
}

/// Describes the time of a restart, and its parts.
pub fn describe_restart(restart: &RestartEstimate) -> String {
    let part = |what: &str, bytes_of: u64, seconds: Option<f64>| match seconds {
        _ if bytes_of == 0 => format!("nothing to {what}"),
        Some(seconds) => format!("{what} {} in {seconds:.2} s", bytes(bytes_of)),
        None => format!("{what} {}, at an unknown speed", bytes(bytes_of)),
    };
    let parts = [restart.load_seconds, restart.replay_seconds, restart.other_seconds];
    let seconds: Option<f64> = parts.into_iter().sum();
    let whole = seconds.map_or("would take an unknown time".into(), |seconds| {
        format!(
            "would take about {:.1} s",
            seconds + restart.check_seconds.unwrap_or(0.0)
        )
    });
    let target = restart.target_seconds;
    format!(
        "{whole}: {}, {}, {}{}{}",
        part("check", restart.check_bytes, restart.check_seconds),
        part("load", restart.load_bytes, restart.load_seconds),
        part("replay", restart.replay_bytes, restart.replay_seconds),
        restart
            .other_seconds
            .map_or(String::new(), |other| format!(", {other:.2} s for the rest")),
        target.map_or(String::new(), |target| format!("; target {target} s"))
    )
}

fn describe_archive(archive: &ArchiveInfo) -> String {
    let from = archive.oldest_checkpoint_lsn.map_or("nothing yet".to_owned(), |lsn| {
        format!("from LSN {lsn}, {} in {} files", bytes(archive.bytes), archive.files)
    });
    let failed = archive
        .error
        .as_ref()
        .map_or(String::new(), |error| match archive.ends_at_lsn {
            Some(end) => format!("; GIVEN UP, the archive ends at LSN {end}: {error}"),
            None => format!(
                "; FAILS, and the data directory keeps its files meanwhile ({} of at most {}): {error}",
                bytes(archive.held_bytes),
                bytes(archive.held_bytes_max)
            ),
        });
    format!("{}: {from}{failed}", archive.directory)
}

fn describe_phase(phase: &Phase) -> String {
    match phase {
        Phase::Recovering {
            step: RecoveryStep::Checkpoint,
            percent,
            bytes_done,
            bytes_total,
            ..
        } => format!(
            "recovering: loaded {percent:.1} % of the checkpoint, {} of {}",
            bytes(*bytes_done),
            bytes(*bytes_total)
        ),
        Phase::Recovering {
            step: RecoveryStep::Log,
            percent,
            replayed,
            bytes_done,
            bytes_total,
        } => format!(
            "recovering: replayed {percent:.1} % of the log, {} transactions, {} of {}",
            grouped(*replayed),
            bytes(*bytes_done),
            bytes(*bytes_total)
        ),
        Phase::Ready => "ready".into(),
        Phase::Failed { report } => format!("failed: {report}"),
        Phase::Stopping => "stopping".into(),
    }
}

/// Describes the place of the NVRAM, its fill, and its faults.
fn describe_nvram(nvram: &NvramStatus) -> String {
    let fullest = nvram.rings.iter().map(|ring| {
        let of = |used: u64, max: u64| used * 100 / max.max(1);
        of(ring.entries, ring.entries_max).max(of(ring.bytes, ring.bytes_max))
    });
    let warning = nvram
        .warning
        .as_ref()
        .map_or_else(String::new, |warning| format!("; warning: {warning}"));
    format!(
        "{} ({}, {}, flush {}), {} records not copied, fullest ring {} %{warning}",
        nvram.path,
        bytes(nvram.bytes),
        nvram.persistence,
        nvram.flush,
        grouped(nvram.records_waiting),
        fullest.max().unwrap_or(0),
    )
}

fn print_status(status: &Status) -> io::Result<()> {
    let phase = describe_phase(&status.phase);
    let device = status.device.as_deref().unwrap_or("no device");
    let log = match &status.log_error {
        Some(error) => format!("{} on {}; refuses writes: {error}", status.log, device),
        None => format!("{} on {}, commit {}", status.log, device, status.commit),
    };
    print_pairs(&[
        (
            "role",
            match status.epoch {
                Some(epoch) => format!("{} in epoch {epoch}", status.role),
                None => status.role.clone(),
            },
        ),
        ("phase", phase),
        ("log", log),
        (
            "LSN",
            format!(
                "committed {}, durable {}, checkpointed {}",
                status.committed_lsn,
                status.durable_lsn,
                status.checkpointed_lsn.map_or("-".into(), |lsn| lsn.to_string())
            ),
        ),
        ("NVRAM", status.nvram.as_ref().map_or("none".into(), describe_nvram)),
        ("restart", status.restart.as_ref().map_or("-".into(), describe_restart)),
        (
            "archive",
            status.archive.as_ref().map_or("none".into(), describe_archive),
        ),
        (
            "engine",
            format!("{} partitions on {} sites", status.partitions, status.sites),
        ),
        (
            "up",
            format!("{} s, since {}", grouped(status.uptime_s), status.started_at),
        ),
        ("version", status.version.clone()),
        ("database", status.database_id.clone()),
    ])
}
