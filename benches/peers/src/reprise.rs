//! Reprise: sample modules as wasm, called over HTTP.

use std::{
    cell::Cell,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use reprise_api::BatchCall;
use reprise_client::{Client, RowsQuery};
use serde_json::{Value, json};
use tpcb::ACCOUNTS_PER_BRANCH;

use crate::{
    calls::{CONTESTANTS, Inputs, OPENING_BALANCE, Workload},
    http::HttpWire,
    load::{Connection, Load, Measured, Way, over_connections},
    orders::{DISTRICTS, FIRST_ORDER},
    peer::{Durability, Installed, Missing, Running, Start},
    server::{Server, find_program, first_line, free_port},
};

/// Calls of one batch that fills tables.
const FILLED_AT_ONCE: usize = 1_000;
/// Accounts of one call that fills a branch.
const LOADED_ACCOUNTS: i32 = 2_000;
/// Items of one call that fills them.
const LOADED_ITEMS: u32 = 10_000;
const PAGE_ROWS: u32 = 1_000;
/// Partitions tell their rows from time to time: two equal answers in a row count.
const COUNT_AGAIN_AFTER: Duration = Duration::from_millis(200);
const COUNTS_MAX: u32 = 25;

struct Reprise {
    program: PathBuf,
    modules: PathBuf,
    version: String,
}

/// Reprise, by the program beside this one or in PATH, and the modules of this folder.
///
/// # Errors
/// The server or the modules are not built.
pub fn reprise(modules: Option<&Path>) -> Result<Box<dyn Installed>, Missing> {
    let missing = || Missing {
        name: "Reprise",
        install: "cargo build --release -p reprise-node && cargo xtask wasm",
    };
    let own = std::env::current_exe().map_err(|_| missing())?;
    let folder = own.parent().ok_or_else(missing)?;
    let program = find_program("reprise", &[folder.to_owned()]).ok_or_else(missing)?;
    let version = first_line(&program, &["--version"]).map_err(|_| missing())?;
    let modules = modules.map_or_else(|| folder.join("procedures"), Path::to_owned);
    if !modules.join("tpcb.wasm").is_file() {
        return Err(missing());
    }
    Ok(Box::new(Reprise {
        program,
        modules,
        version,
    }))
}

/// Module and procedure of a workload's calls.
fn procedure_of(workload: Workload) -> [&'static str; 2] {
    match workload {
        Workload::Voter => ["voter", "vote"],
        Workload::Transfer | Workload::Zipf => ["bank", "transfer"],
        Workload::Tpcb => ["tpcb", "account_update"],
        Workload::NewOrder => ["tpcc", "new_order"],
    }
}

impl Installed for Reprise {
    fn name(&self) -> &'static str {
        "Reprise"
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn ways(&self) -> &'static [Way] {
        &[Way::Plain, Way::Keyed, Way::Ahead, Way::Batches]
    }

    fn start(&self, start: &Start<'_>) -> Result<Box<dyn Running>> {
        let port = free_port()?;
        let mut command = Command::new(&self.program);
        // No configuration but ours.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("REPRISE_")) {
            command.env_remove(name);
        }
        command
            .current_dir(start.dir)
            .arg("serve")
            .arg("--data-dir")
            .arg(start.dir.join("data"));
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        command.args(match start.durability {
            Durability::Commit => ["--log", "command", "--commit", "sync"].as_slice(),
            Durability::Second => &["--log", "command", "--commit", "async"],
            Durability::None => &["--log", "none"],
        });
        let url = format!("http://127.0.0.1:{port}");
        let client = Client::new(&url, None)?;
        let is_ready = |_: u16| client.status().is_ok();
        let server = Server::start(&mut command, start.dir, port, libc::SIGTERM, &is_ready)?;
        let [module, _] = procedure_of(start.inputs.workload);
        let path = self.modules.join(module).with_extension("wasm");
        let wasm = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        client.deploy_module(module, wasm, &[])?;
        let mut running = RunningReprise {
            client,
            module,
            inputs: start.inputs.clone(),
            runs: Cell::new(0),
            loaded: [0; 2],
            server,
        };
        running.fill()?;
        Ok(Box::new(running))
    }
}

struct RunningReprise {
    client: Client,
    module: &'static str,
    inputs: Arc<Inputs>,
    /// Connections that were made, for their idempotency keys.
    runs: Cell<u64>,
    /// Orders and order lines that the tables began with.
    loaded: [i64; 2],
    server: Server,
}

impl RunningReprise {
    fn fill(&mut self) -> Result<()> {
        match self.inputs.workload {
            Workload::Voter => self
                .call("initialize", &json!({ "contestants": CONTESTANTS }))
                .map(drop),
            Workload::Transfer | Workload::Zipf => {
                let accounts = 0..self.inputs.accounts;
                self.call_many(
                    "open",
                    accounts.map(|account| json!({ "account": account, "balance": OPENING_BALANCE })),
                )
            }
            Workload::Tpcb => {
                let branches = 1..=self.inputs.branches;
                self.call_many(
                    "load_branch",
                    branches.clone().map(|branch| json!({ "branch_id": branch })),
                )?;
                let parts = branches.flat_map(|branch| {
                    let from = (0..ACCOUNTS_PER_BRANCH).step_by(LOADED_ACCOUNTS as usize);
                    from.map(move |from| json!({ "branch_id": branch, "from": from, "count": LOADED_ACCOUNTS }))
                });
                self.call_many("load_accounts", parts)
            }
            Workload::NewOrder => self.fill_warehouses(),
        }
    }

    fn fill_warehouses(&mut self) -> Result<()> {
        let items = self.inputs.items;
        let ranges = (1..=items).step_by(LOADED_ITEMS as usize);
        let range = |first: u32| json!({ "first": first, "last": items.min(first + LOADED_ITEMS - 1) });
        self.call_many("load_item_range", ranges.map(range))?;
        let warehouses = 1..=self.inputs.warehouses;
        let parts = (1..=DISTRICTS).flat_map(|part| warehouses.clone().map(move |warehouse| (warehouse, part)));
        let part = |(warehouse, part): (u32, i16)| json!({ "w_id": warehouse, "part": part });
        self.call_many("load_warehouse", parts.map(part))?;
        // The module fills its tables with orders, as the specification has it.
        self.loaded = [self.rows("orders")?, self.rows("order_line")?];
        Ok(())
    }

    /// The sum of a column over all rows.
    fn sum(&self, table: &str, column: &str) -> Result<i64> {
        let mut query = RowsQuery {
            limit: Some(PAGE_ROWS),
            columns: Some(column.to_owned()),
            ..RowsQuery::default()
        };
        let mut sum = 0;
        loop {
            let page = self.client.rows(table, &query)?;
            for row in &page.rows {
                sum += integer(&serde_json::from_str(row.get())?, column)?;
            }
            query.cursor = page.next_cursor;
            if query.cursor.is_none() {
                return Ok(sum);
            }
        }
    }

    fn order_totals(&self) -> Result<Vec<i64>> {
        let districts = i64::from(self.inputs.warehouses) * i64::from(DISTRICTS);
        let numbered = self.sum("district", "d_next_o_id")? - districts * FIRST_ORDER;
        let [orders, lines] = self.loaded;
        Ok(vec![
            numbered,
            self.rows("orders")? - orders,
            self.rows("order_line")? - lines,
            self.sum("stock", "s_ytd")?,
        ])
    }

    fn call(&self, procedure: &str, args: &Value) -> Result<Value> {
        let response = self.client.call(self.module, procedure, args)?;
        Ok(serde_json::from_str(response.answer.result.get())?)
    }

    fn call_many(&self, procedure: &str, args: impl Iterator<Item = Value>) -> Result<()> {
        let all: Vec<_> = args.collect();
        for part in all.chunks(FILLED_AT_ONCE) {
            let calls = part.iter().map(|args| -> Result<BatchCall> {
                let call = json!({ "module": self.module, "procedure": procedure, "args": args });
                Ok(serde_json::from_str(&call.to_string())?)
            });
            for answer in self.client.batch(&calls.collect::<Result<Vec<_>>>()?)? {
                let answer = answer?;
                let answer_text = serde_json::to_string(&answer)?;
                ensure!(
                    answer.problem.is_none(),
                    "{procedure} of a batch did not commit: {answer_text}"
                );
            }
        }
        Ok(())
    }

    /// Rows of a table.
    fn rows(&self, table: &str) -> Result<i64> {
        let mut before = None;
        for _ in 0..COUNTS_MAX {
            let rows = self.client.table(table)?.rows;
            if before == Some(rows) {
                return Ok(i64::try_from(rows)?);
            }
            before = Some(rows);
            thread::sleep(COUNT_AGAIN_AFTER);
        }
        bail!("the rows of {table} are never the same twice")
    }

    fn bank_totals(&self) -> Result<Vec<i64>> {
        let (mut branches, mut tellers, mut accounts) = (0, 0, 0);
        for branch in 1..=self.inputs.branches {
            let held = self.call("check_branch", &json!({ "branch_id": branch }))?;
            branches += integer(&held, "branch_balance")?;
            tellers += integer(&held, "teller_sum")?;
            accounts += integer(&held, "account_sum")?;
        }
        Ok(vec![branches, tellers, accounts, self.rows("tpcb_history")?])
    }
}

/// A member that is an integer, as a number or as a text.
fn integer(object: &Value, member: &str) -> Result<i64> {
    let value = &object[member];
    let number = value.as_i64().or_else(|| value.as_str()?.parse().ok());
    number.with_context(|| format!("no integer {member:?} in {object}"))
}

impl Running for RunningReprise {
    fn run(&mut self, load: &Load, way: Way) -> Result<Measured> {
        let address = format!("127.0.0.1:{}", self.server.port);
        let names = procedure_of(self.inputs.workload);
        let open = || -> Result<Connection> {
            let stream = std::net::TcpStream::connect(&address)?;
            stream.set_nodelay(true)?;
            let run = self.runs.replace(self.runs.get() + 1);
            let wire = Box::new(HttpWire::new(&address, names, way, format!("peers-{run:06}")));
            Ok(Connection { stream, wire })
        };
        over_connections(load, way, self.server.id(), &open)
    }

    fn totals(&mut self) -> Result<Vec<i64>> {
        match self.inputs.workload {
            Workload::Voter => {
                let results = self.call("results", &json!({}))?;
                let lines = results.as_array().context("results are a list")?;
                let counted = lines.iter().map(|line| integer(line, "votes")).sum::<Result<i64>>()?;
                Ok(vec![counted, self.rows("votes")?])
            }
            Workload::Transfer | Workload::Zipf => {
                let total = self.call("total", &json!({}))?;
                Ok(vec![integer(&total, "accounts")?, integer(&total, "sum")?])
            }
            Workload::Tpcb => self.bank_totals(),
            Workload::NewOrder => self.order_totals(),
        }
    }
}
