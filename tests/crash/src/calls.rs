//! The calls of TPC-C, TPC-B and TATP that are made under kill -9, and the counters that they raise by one each.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{model::number, rng::Rng, server::Server};

const WAREHOUSES: u64 = 2;
const DISTRICTS: u64 = 10;
const ITEMS: u64 = 100_000;
const SUBSCRIBERS: u64 = 100_000;
/// Subscribers whose location one client alone notes.
const OWN_SUBSCRIBERS: u64 = 20;

/// Between two tellings of a table's rows.
const TOLD_APART: Duration = Duration::from_millis(150);
const TELLINGS_MAX: u32 = 400;

/// Returns the driver's arguments for the size of the data.
pub fn sizes(workload: &str) -> &'static [&'static str] {
    match workload {
        "tpcc" => &["--warehouses", "2"],
        "tpcb" => &["--scale", "2"],
        _ => &["--scale", "1"],
    }
}

/// A call, and the counter that it raises by one.
pub struct Planned {
    pub path: String,
    pub args: Value,
    pub counter: Option<usize>,
}

/// One client, and the counts of its calls since the last look at the counters.
pub struct Client {
    workload: String,
    number: u64,
    /// Acknowledged calls by counter.
    acknowledged: Vec<u64>,
    unknown: Vec<u64>,
    /// TATP: the last answer about each own subscriber's place.
    locations: Vec<u64>,
    /// TPC-B: the branches that the driver made, as many on each partition.
    branches: Vec<u64>,
    all_acknowledged: Arc<AtomicU64>,
}

/// All clients, and the counters at the last look.
pub struct Load {
    workload: String,
    pub clients: Vec<Client>,
    stood: Vec<u64>,
    pub acknowledged: Arc<AtomicU64>,
    all_unknown: u64,
    found: u64,
}

impl Load {
    pub fn new(workload: &str, clients: usize, server: &Server) -> Result<Self> {
        if workload == "tatp" {
            (0..clients as u64 * OWN_SUBSCRIBERS).try_for_each(|at| note_location(server, at, 0))?;
        }
        let stood = counters(workload, clients, server)?;
        let branches = if workload == "tpcb" {
            branches(server)?
        } else {
            Vec::new()
        };
        let acknowledged = Arc::new(AtomicU64::new(0));
        let client = |number| Client {
            workload: workload.into(),
            number,
            acknowledged: vec![0; stood.len()],
            unknown: vec![0; stood.len()],
            locations: vec![0; OWN_SUBSCRIBERS as usize],
            branches: branches.clone(),
            all_acknowledged: acknowledged.clone(),
        };
        Ok(Self {
            workload: workload.into(),
            clients: (0..clients as u64).map(client).collect(),
            stood: stood.clone(),
            acknowledged,
            all_unknown: 0,
            found: 0,
        })
    }

    /// Compares the counters with the acknowledged calls, and begins anew from the counters.
    pub fn settle(&mut self, server: &Server) -> Result<()> {
        let found = counters(&self.workload, self.clients.len(), server)?;
        for (counter, (stood, found)) in self.stood.iter().zip(&found).enumerate() {
            let acknowledged: u64 = self.clients.iter().map(|client| client.acknowledged[counter]).sum();
            let unknown: u64 = self.clients.iter().map(|client| client.unknown[counter]).sum();
            let least = stood + acknowledged;
            ensure!(
                *found >= least,
                "lost: counter {counter} stood at {stood}, {acknowledged} calls were acknowledged since, and it stands at {found}"
            );
            ensure!(
                *found <= least + unknown,
                "twice: counter {counter} stood at {stood}, {acknowledged} calls were acknowledged since, {unknown} are unknown, and it stands at {found}"
            );
            self.all_unknown += unknown;
            self.found += found - least;
        }
        for client in &mut self.clients {
            client.acknowledged.fill(0);
            client.unknown.fill(0);
            let own = client.number as usize * OWN_SUBSCRIBERS as usize;
            if self.workload == "tatp" {
                client
                    .locations
                    .copy_from_slice(&found[own..own + OWN_SUBSCRIBERS as usize]);
            }
        }
        self.stood = found;
        Ok(())
    }

    /// Counted calls that were acknowledged, that are unknown, and those of the unknown ones that took place.
    pub fn counts(&self) -> (u64, u64, u64) {
        (self.acknowledged.load(Ordering::Relaxed), self.all_unknown, self.found)
    }
}

impl Client {
    pub fn acknowledge(&mut self, planned: &Planned) {
        if let Some(counter) = planned.counter {
            self.acknowledged[counter] += 1;
            self.all_acknowledged.fetch_add(1, Ordering::Relaxed);
            if self.workload == "tatp" {
                self.locations[counter - (self.number * OWN_SUBSCRIBERS) as usize] += 1;
            }
        }
    }

    pub fn unknown(&mut self, planned: &Planned) {
        if let Some(counter) = planned.counter {
            self.unknown[counter] += 1;
        }
    }

    pub fn plan(&self, rng: &mut Rng) -> Planned {
        let (procedure, args, counter) = match self.workload.as_str() {
            "tpcc" => plan_tpcc(rng),
            "tpcb" => plan_tpcb(rng, &self.branches),
            _ => self.plan_tatp(rng),
        };
        Planned {
            path: format!("/v1/call/{}/{procedure}", self.workload),
            args,
            counter,
        }
    }

    fn plan_tatp(&self, rng: &mut Rng) -> (&'static str, Value, Option<usize>) {
        let s_id = 1 + rng.below(SUBSCRIBERS);
        let (sf_type, start_time) = (1 + rng.below(4), 8 * rng.below(3));
        match rng.below(10) {
            0..4 => {
                let own = rng.below(OWN_SUBSCRIBERS);
                let at = self.number * OWN_SUBSCRIBERS + own;
                let args = location(at, self.locations[own as usize] + 1);
                ("update_location", args, Some(at as usize))
            }
            4..6 => {
                let args = json!({
                    "home": s_id, "sub_nbr": sub_nbr(s_id), "sf_type": sf_type, "start_time": start_time,
                    "end_time": start_time + 1 + rng.below(8), "numberx": "012345678901234",
                });
                ("insert_call_forwarding", args, None)
            }
            6..8 => {
                let args =
                    json!({"home": s_id, "sub_nbr": sub_nbr(s_id), "sf_type": sf_type, "start_time": start_time});
                ("delete_call_forwarding", args, None)
            }
            8 => {
                let args =
                    json!({"s_id": s_id, "bit_1": rng.percent(50), "sf_type": sf_type, "data_a": rng.below(256)});
                ("update_subscriber_data", args, None)
            }
            _ => ("get_subscriber_data", json!({"s_id": s_id}), None),
        }
    }
}

/// Counters: orders of each district, then all payments.
fn plan_tpcc(rng: &mut Rng) -> (&'static str, Value, Option<usize>) {
    let (w_id, d_id) = (1 + rng.below(WAREHOUSES), 1 + rng.below(DISTRICTS));
    let c_id = 1 + rng.below(3_000);
    let elsewhere = |rng: &mut Rng, percent| if rng.percent(percent) { 3 - w_id } else { w_id };
    match rng.below(100) {
        0..45 => {
            let lines = 5 + rng.below(11);
            let mut i_ids: Vec<u64> = (0..lines).map(|_| 1 + rng.below(ITEMS)).collect();
            if rng.percent(5) {
                i_ids[lines as usize - 1] = ITEMS + 1;
            }
            let supply: Vec<u64> = (0..lines).map(|_| elsewhere(rng, 5)).collect();
            let quantities: Vec<u64> = (0..lines).map(|_| 1 + rng.below(10)).collect();
            let args = json!({
                "w_id": w_id, "d_id": d_id, "c_id": c_id,
                "i_ids": i_ids, "supply_w_ids": supply, "quantities": quantities,
            });
            ("new_order", args, Some(district_at(w_id, d_id)))
        }
        45..88 => {
            let args = json!({
                "w_id": w_id, "d_id": d_id, "c_w_id": elsewhere(rng, 15), "c_d_id": 1 + rng.below(DISTRICTS),
                "c_id": c_id, "h_amount": (100 + rng.below(499_901)).to_string(),
            });
            ("payment", args, Some((WAREHOUSES * DISTRICTS) as usize))
        }
        88..92 => ("order_status", json!({"w_id": w_id, "d_id": d_id, "c_id": c_id}), None),
        92..96 => (
            "delivery",
            json!({"w_id": w_id, "o_carrier_id": 1 + rng.below(10)}),
            None,
        ),
        _ => (
            "stock_level",
            json!({"w_id": w_id, "d_id": d_id, "threshold": 10 + rng.below(11)}),
            None,
        ),
    }
}

fn district_at(w_id: u64, d_id: u64) -> usize {
    ((w_id - 1) * DISTRICTS + d_id - 1) as usize
}

/// One counter: the rows of the history.
fn plan_tpcb(rng: &mut Rng, branches: &[u64]) -> (&'static str, Value, Option<usize>) {
    let any = |rng: &mut Rng| branches[rng.below(branches.len() as u64) as usize];
    let branch = any(rng);
    let other = if rng.percent(30) { any(rng) } else { branch };
    let args = json!({
        "branch_id": branch,
        "teller_id": (branch - 1) * 10 + 1 + rng.below(10),
        "account_branch_id": other,
        "account_id": (other - 1) * 100_000 + 1 + rng.below(100_000),
        "delta": (rng.below(2_000_000) as i64 - 1_000_000).to_string(),
    });
    ("account_update", args, Some(0))
}

fn counters(workload: &str, clients: usize, server: &Server) -> Result<Vec<u64>> {
    match workload {
        "tpcc" => {
            let mut counters = Vec::new();
            for w_id in 1..=WAREHOUSES {
                let held = result(server, "tpcc/check_warehouse", &json!({"w_id": w_id}))?;
                let districts = held["districts"].as_array().context("districts")?;
                for district in districts {
                    let next = number(&district["d_next_o_id"]).context("d_next_o_id")?;
                    counters.push(next as u64);
                }
            }
            counters.push(rows(server, "history")?);
            Ok(counters)
        }
        "tpcb" => Ok(vec![rows(server, "tpcb_history")?]),
        _ => (0..clients as u64 * OWN_SUBSCRIBERS)
            .map(|at| {
                let row = result(server, "tatp/get_subscriber_data", &json!({"s_id": own_id(at)}))?;
                let location = number(&row["vlr_location"]);
                location
                    .map(|location| location as u64)
                    .with_context(|| format!("subscriber {} is {row}", own_id(at)))
            })
            .collect(),
    }
}

fn branches(server: &Server) -> Result<Vec<u64>> {
    let answer = server.get("/v1/tables/tpcb_branches/rows?limit=100")?;
    let page = answer.json();
    let rows = page["rows"].as_array().with_context(|| answer.text())?;
    let ids: Vec<_> = rows
        .iter()
        .filter_map(|row| number(&row["branch_id"]))
        .map(|id| id as u64)
        .collect();
    ensure!(!ids.is_empty(), "no branches: {}", answer.text());
    Ok(ids)
}

/// Returns the number of a table's rows, while no client writes. The server may report an older number than that of its answers, so the
/// test asks until it stays.
fn rows(server: &Server, table: &str) -> Result<u64> {
    let mut before = told_rows(server, table)?;
    for _ in 0..TELLINGS_MAX {
        thread::sleep(TOLD_APART);
        let now = told_rows(server, table)?;
        if now == before {
            return Ok(now);
        }
        before = now;
    }
    bail!("{table}: its rows change, and nobody writes")
}

fn told_rows(server: &Server, table: &str) -> Result<u64> {
    let answer = server.get(&format!("/v1/tables/{table}"))?;
    let rows = number(&answer.json()["rows"]);
    rows.map(|rows| rows as u64)
        .with_context(|| format!("{table}: {}", answer.text()))
}

fn result(server: &Server, procedure: &str, args: &Value) -> Result<Value> {
    let answer = server.call(procedure, &args.to_string())?;
    ensure!(
        answer.status == 200,
        "{procedure} {args}: {} {}",
        answer.status,
        answer.text()
    );
    Ok(answer.json()["result"].clone())
}

/// The subscriber at this position among those whose places are noted: not all next to each other.
fn own_id(at: u64) -> u64 {
    1 + at * 997 % SUBSCRIBERS
}

fn sub_nbr(s_id: u64) -> String {
    format!("{s_id:015}")
}

fn location(at: u64, vlr_location: u64) -> Value {
    json!({"home": own_id(at), "sub_nbr": sub_nbr(own_id(at)), "vlr_location": vlr_location})
}

fn note_location(server: &Server, at: u64, vlr_location: u64) -> Result<()> {
    let change = result(server, "tatp/update_location", &location(at, vlr_location))?;
    ensure!(change == "done", "location {at}: {change}");
    Ok(())
}
