//! `reprise replication`: the positions of the standbys, and the promotion of one of them.

use reprise_api::{Comparison, Lease, LeaseState, LostRange, Replication, Standby, StandbyState};

use crate::{
    cli::{Output, ReplicationCommand},
    output::{VerbResult, bytes, grouped, print_json, print_pairs, print_table, print_text, table},
    remote::{connect, failure},
};

pub fn run(command: &ReplicationCommand, output: Output) -> VerbResult {
    match command {
        ReplicationCommand::Status { server } => {
            let replication = connect(server)?.replication().map_err(failure)?;
            match output {
                Output::Json => print_json(&replication)?,
                Output::Text => show(&replication)?,
            }
        }
        ReplicationCommand::Forget { name, server } => {
            connect(server)?.forget_standby(name).map_err(failure)?;
            match output {
                Output::Json => print_json(&serde_json::json!({ "name": name, "forgotten": true }))?,
                Output::Text => print_text(&format!(
                    "{name} is forgotten; no log is kept for it. At quorum and very-safe it counts until the other standbys have what it may have"
                ))?,
            }
        }
        ReplicationCommand::Promote {
            force,
            accept_loss,
            server,
        } => {
            let promoted = connect(server)?.promote(*force, *accept_loss).map_err(failure)?;
            match output {
                Output::Json => print_json(&promoted)?,
                Output::Text => print_text(&format!(
                    "this server is the primary now: epoch {}, from LSN {} on; the old one {}{}",
                    promoted.epoch,
                    grouped(promoted.lsn.0),
                    match promoted.stepped_down {
                        true => "stepped down, and nothing is lost",
                        false => "was not asked to step down: it must stay stopped",
                    },
                    promoted.may_be_lost.as_ref().map(lost).unwrap_or_default()
                ))?,
            }
        }
    }
    Ok(())
}

/// Describes the records that a promotion may have lost.
fn lost(range: &LostRange) -> String {
    let from = grouped(range.from_lsn.0);
    let known = match &range.known_to_lsn {
        Some(known_to) => format!("it is known to have had everything before LSN {}", grouped(known_to.0)),
        None => "how far it was is not known".to_owned(),
    };
    match range.proven {
        true => format!(". What it had from LSN {from} on is lost ({known})"),
        false => format!(". What it answered from LSN {from} on may be lost ({known})"),
    }
}

/// Prints the facts that hold for some servers alone.
fn show_notes(replication: &Replication) -> std::io::Result<()> {
    if let Some(other) = &replication.other_primary {
        let text = format!("{} at {}, in epoch {}", other.name, other.url, other.epoch);
        print_pairs(&[("leads, too", text)])?;
    }
    if let Some(lease) = &replication.lease {
        print_pairs(&[("lease", lease_text(lease))])?;
    }
    if let Some(what) = &replication.waits_for {
        print_pairs(&[("its replay", what.clone())])?;
    }
    for laggard in &replication.out_of_sync {
        let from = grouped(laggard.from_lsn.0);
        print_pairs(&[("out of sync", format!("{}, from LSN {from} on", laggard.name))])?;
    }
    Ok(())
}

fn show(replication: &Replication) -> std::io::Result<()> {
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".to_owned());
    print_pairs(&[
        ("role", replication.role.clone()),
        ("epoch", replication.epoch.to_string()),
        ("safety", safety(replication)),
        ("primary", or_none(&replication.primary)),
        ("standbys connect to", or_none(&replication.ship_address)),
        ("they get transactions", replication.ship.clone()),
        ("durable LSN", grouped(replication.durable_lsn.0)),
        ("acked LSN", grouped(replication.acked_lsn.0)),
        ("committed LSN", grouped(replication.committed_lsn.0)),
    ])?;
    show_notes(replication)?;
    show_cuts(replication)?;
    if replication.standbys.is_empty() {
        return Ok(());
    }
    let mut table = table(&[
        "standby",
        "state",
        "in sync",
        "shipped",
        "persisted",
        "replayed",
        "view",
        "lag",
        "behind",
        "freshness",
    ]);
    for standby in &replication.standbys {
        table.add_row([
            standby.name.clone(),
            state_word(standby.state).to_owned(),
            in_sync_word(standby.in_sync).to_owned(),
            grouped(standby.shipped_lsn.0),
            grouped(standby.persisted_lsn.0),
            grouped(standby.replayed_lsn.0),
            grouped(standby.view_lsn.0),
            lag(standby),
            format!("{} records, {}", grouped(standby.lag_txns), bytes(standby.lag_bytes)),
            standby
                .freshness
                .map_or_else(|| "-".to_owned(), |share| format!("{:.2} %", share * 100.0)),
        ]);
    }
    print_table(&table)?;
    // The error stands below the table, because a long line stays readable there.
    for standby in &replication.standbys {
        if let Some(error) = &standby.error {
            let name = format!("{} says", standby.name);
            print_pairs(&[(&*name, error.clone())])?;
        }
    }
    for standby in &replication.standbys {
        if let Some(compared) = &standby.compared {
            let name = format!("{} compared", standby.name);
            print_pairs(&[(&*name, comparison_text(compared))])?;
        }
    }
    Ok(())
}

fn comparison_text(compared: &Comparison) -> String {
    let (lsn, at) = (grouped(compared.lsn.0), &compared.at);
    match &compared.difference {
        None => format!("all tables are equal, at LSN {lsn}, {at}"),
        Some(what) => format!("tables differ, {at}: {what}"),
    }
}

fn lease_text(lease: &Lease) -> String {
    let holder = lease.holder.as_deref().unwrap_or("nobody");
    let state = match lease.state {
        LeaseState::Held => format!("held, for {} ms from now", lease.left_ms),
        LeaseState::Over => "over: this server answers nothing alone".to_owned(),
        LeaseState::Elsewhere => format!("{holder} has it"),
        LeaseState::Free => "nobody has it".to_owned(),
        LeaseState::Unknown => format!("not known; {holder} had it last"),
    };
    let in_sync = match (lease.in_sync.is_empty(), lease.state) {
        (false, _) => lease.in_sync.join(", "),
        // The last primary may have records that no other server has.
        (true, LeaseState::Free) => {
            "nobody by itself (the last primary: promote it by force, or start it without --standby-of)".to_owned()
        }
        (true, _) => "nobody".to_owned(),
    };
    let error = lease.error.as_ref().map(|error| format!("; {}: {error}", lease.store));
    format!("{state}; may take it over: {in_sync}{}", error.unwrap_or_default())
}

/// Prints the records that were cut off this server's log.
fn show_cuts(replication: &Replication) -> std::io::Result<()> {
    if replication.cuts.is_empty() {
        return Ok(());
    }
    let mut table = table(&["cut off, in cuts", "from LSN", "to LSN", "answered as committed", "at"]);
    for cut in &replication.cuts {
        let acknowledged = if cut.acknowledged {
            "some of it, perhaps"
        } else {
            "none of it"
        };
        table.add_row([
            cut.name.clone(),
            grouped(cut.from_lsn.0),
            grouped(cut.to_lsn.0),
            acknowledged.to_owned(),
            cut.at.clone(),
        ]);
    }
    print_table(&table)
}

fn safety(replication: &Replication) -> String {
    // A standby has its own level once it is the primary.
    match replication.role != "primary" || replication.reached == replication.safety {
        true => replication.safety.clone(),
        false => format!(
            "{} (now {}: standbys are missing)",
            replication.safety, replication.reached
        ),
    }
}

fn lag(standby: &Standby) -> String {
    let least = if standby.lag_known { "" } else { "at least " };
    format!("{least}{:.1} ms", standby.lag_ms)
}

/// Returns the API's word for the state. A cell of several words makes the table too wide for a terminal.
fn state_word(state: StandbyState) -> &'static str {
    match state {
        StandbyState::Joining => "joining",
        StandbyState::CatchingUp => "catching-up",
        StandbyState::Streaming => "streaming",
        StandbyState::Lost => "lost",
    }
}

/// Returns whether the standby is in sync. It does not know it until its primary says so.
fn in_sync_word(in_sync: Option<bool>) -> &'static str {
    match in_sync {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_of_a_standby_is_the_one_word_of_the_api() {
        for state in [
            StandbyState::Joining,
            StandbyState::CatchingUp,
            StandbyState::Streaming,
            StandbyState::Lost,
        ] {
            assert_eq!(serde_json::json!(state), state_word(state));
            assert!(!state_word(state).contains(' '));
        }
    }
}
