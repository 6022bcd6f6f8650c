//! The runs of one figure: peers, ways and durabilities in turn, round by round, each checked.

use std::{fs, path::Path, sync::Arc};

use anyhow::{Context, Result};
use reprise_bench_figures::{Table, TableClaim, TableGroup, TableRow};

use crate::{
    calls::{Inputs, Sizes, Tally, Workload},
    embedded,
    load::{COLUMNS, Load, Way},
    peer::{Durability, Installed, Missing, Start},
};

/// How the figures are measured.
pub struct Settings<'a> {
    /// A folder that others may enter: a server may run as another user.
    pub dir: &'a Path,
    pub peers: &'a [Box<dyn Installed>],
    pub missing: &'a [Missing],
    pub durabilities: &'a [Durability],
    pub connections: usize,
    pub threads: usize,
    pub seconds: f64,
    pub runs: u32,
    pub sizes: Sizes,
    /// Machine, build, length.
    pub conditions: String,
}

/// A series in a group, with the figures of each round by column.
struct Series {
    durability: Durability,
    peer: &'static str,
    way: Way,
    cells: [Vec<f64>; COLUMNS.len()],
}

impl Series {
    fn is_in_process(&self) -> bool {
        self.peer == embedded::NAME
    }

    fn row(&self) -> TableRow {
        TableRow {
            name: format!("{}{}", self.peer, self.way.suffix()),
            cells: self.cells.to_vec(),
        }
    }
}

impl Settings<'_> {
    /// Measures a workload.
    ///
    /// # Errors
    /// A peer failed, or the check of its rows did: there is no figure then.
    pub fn measure(&self, name: &str, workload: Workload) -> Result<Table> {
        let inputs = Arc::new(Inputs::new(workload, self.sizes));
        let mut all = Vec::new();
        for round in 0..self.runs {
            for durability in self.durabilities {
                let offering = self.peers.iter().filter(|peer| peer.offers(*durability));
                for peer in offering {
                    let what = format!("{name}: round {} of {}, {}", round + 1, self.runs, durability.name());
                    eprintln!("{what}, {}", peer.name());
                    let measured = self.measure_peer(peer.as_ref(), *durability, &inputs, round, &mut all);
                    measured.with_context(|| format!("{what}, {}", peer.name()))?;
                }
            }
        }
        Ok(self.table(name, workload, &all))
    }

    /// Starts one peer, runs all its ways, and checks the rows that they leave.
    fn measure_peer(
        &self,
        peer: &dyn Installed,
        durability: Durability,
        inputs: &Arc<Inputs>,
        round: u32,
        all: &mut Vec<Series>,
    ) -> Result<()> {
        let dir = self.dir.join("peer");
        fs::create_dir(&dir).with_context(|| format!("create {}", dir.display()))?;
        let start = Start {
            dir: &dir,
            inputs,
            durability,
            connections: self.connections,
        };
        let mut running = peer.start(&start)?;
        let mut tally = Tally::default();
        for way in peer.ways() {
            let load = Load {
                inputs: inputs.clone(),
                connections: self.connections,
                threads: self.threads,
                seconds: self.seconds,
                // Each way makes calls of its own, the same ones with every peer.
                seed: 1 + u64::from(round) * 10 + *way as u64,
            };
            let measured = running.run(&load, *way)?;
            tally.join(&measured.tally);
            let series = series(all, durability, peer.name(), *way);
            for (runs, cell) in series.cells.iter_mut().zip(measured.cells) {
                runs.extend(cell);
            }
        }
        inputs.check(peer.name(), &tally, &running.totals()?)?;
        drop(running);
        fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))
    }

    fn table(&self, name: &str, workload: Workload, all: &[Series]) -> Table {
        let mut groups = Vec::new();
        for is_in_process in [false, true] {
            let prefix = if is_in_process { "in process and " } else { "" };
            for durability in self.durabilities {
                let rows = of(all, *durability).filter(|series| series.is_in_process() == is_in_process);
                let rows: Vec<_> = rows.map(Series::row).collect();
                if !rows.is_empty() {
                    let name = format!("{prefix}{}", durability.name());
                    groups.push(TableGroup { name, rows });
                }
            }
        }
        Table {
            name: format!("peers-{name}"),
            title: title_of(workload).into(),
            columns: &COLUMNS,
            groups,
            claims: self
                .durabilities
                .iter()
                .flat_map(|durability| claims(all, *durability))
                .collect(),
            notes: self.notes(),
            conditions: self.conditions.clone(),
        }
    }

    fn notes(&self) -> Vec<String> {
        let versions: Vec<_> = self.peers.iter().map(|peer| peer.version()).collect();
        let mut notes = vec![
            format!(
                "{}. {} connections, {} client threads. Bars: calls a second by powers of ten, with the least and the most of the rounds.",
                versions.join(", "),
                self.connections,
                self.threads
            ),
            "Latency counts from when a request was sent: 16 ahead and batches wait for the calls before them.".into(),
            "SQLite has one connection and one thread in the client's process, whose processor time is shown.".into(),
        ];
        notes.extend(self.missing.iter().map(|missing| {
            format!(
                "{} was not installed, so it has no rows ({}).",
                missing.name, missing.install
            )
        }));
        notes
    }
}

fn title_of(workload: Workload) -> &'static str {
    match workload {
        Workload::Voter => "Voter: votes beside other databases",
        Workload::Transfer => "Transfers between accounts chosen evenly",
        Workload::Zipf => "Transfers between accounts of which few take part in most (Zipf 1.5)",
        Workload::Tpcb => "TPC-B: bookings of tellers",
        Workload::NewOrder => "TPC-C: New-Orders alone",
    }
}

/// The series of a peer's way in a group, made where there is none.
fn series<'a>(all: &'a mut Vec<Series>, durability: Durability, peer: &'static str, way: Way) -> &'a mut Series {
    let is_it = |series: &Series| (series.durability, series.peer, series.way) == (durability, peer, way);
    let at = all.iter().position(is_it).unwrap_or(all.len());
    if at == all.len() {
        all.push(Series {
            durability,
            peer,
            way,
            cells: Default::default(),
        });
    }
    &mut all[at]
}

/// The series of a group.
fn of(all: &[Series], durability: Durability) -> impl Iterator<Item = &Series> {
    all.iter().filter(move |series| series.durability == durability)
}

/// Our calls a second to each peer's by the same way, divided within a round.
fn claims(all: &[Series], durability: Durability) -> Vec<TableClaim> {
    let mut claims = Vec::new();
    let others = of(all, durability).filter(|series| series.peer != "Reprise" && !series.is_in_process());
    for series in others {
        let ours = of(all, durability).find(|ours| ours.peer == "Reprise" && ours.way == series.way);
        // A round without an answer inside the window has no rate.
        let Some(ours) = ours.filter(|ours| ours.cells[0].len() == series.cells[0].len()) else {
            continue;
        };
        let rounds = ours.cells[0].iter().zip(&series.cells[0]);
        claims.push(TableClaim {
            text: format!(
                "Reprise{way} to {}{way} {}, times",
                series.peer,
                durability.name(),
                way = series.way.suffix()
            ),
            paper: None,
            ours: rounds.map(|(ours, theirs)| ours / theirs).collect(),
        });
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_made_within_a_round_and_way() {
        let mut all = Vec::new();
        for (peer, way, rates) in [
            ("Reprise", Way::Plain, [10.0, 30.0]),
            ("Reprise", Way::Keyed, [1.0, 1.0]),
            ("Redis", Way::Plain, [5.0, 10.0]),
        ] {
            series(&mut all, Durability::Commit, peer, way).cells[0].extend(rates);
        }
        let claims = claims(&all, Durability::Commit);
        assert_eq!(claims.len(), 1);
        assert_eq!(claims[0].text, "Reprise to Redis durable at each commit, times");
        assert_eq!(claims[0].ours, [2.0, 3.0]);
    }
}
