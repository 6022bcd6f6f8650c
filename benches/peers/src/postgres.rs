//! PostgreSQL: functions in PL/pgSQL behind a prepared statement.

use std::{
    fs,
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use tpcb::{ACCOUNTS_PER_BRANCH, TELLERS_PER_BRANCH};

use crate::{
    calls::{CONTESTANTS, Inputs, OPENING_BALANCE, Workload},
    load::{Connection, Load, Measured, Way, over_connections},
    orders::{CUSTOMERS, DISTRICTS, FIRST_ORDER},
    peer::{Durability, Installed, Missing, Running, Start},
    pg::{PgClient, PgWire, USER},
    server::{Server, find_program, first_line, free_port},
};

/// Debian's place of the programs, with a folder for each version.
const DEBIAN: &str = "/usr/lib/postgresql";
/// Settings of a machine that serves nothing else, without replication, and without a checkpoint inside a run.
const SETTINGS: [&str; 10] = [
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "shared_buffers=1GB",
    "max_wal_size=16GB",
    "checkpoint_timeout=1h",
    "wal_level=minimal",
    "max_wal_senders=0",
    "jit=off",
    "logging_collector=off",
    "fsync=on",
];

struct Postgres {
    /// Folder of `initdb` and `postgres`.
    programs: PathBuf,
    version: String,
    /// Ids of the user and group that the server runs as, where we are root: it refuses to be root.
    runs_as: Option<(u32, u32)>,
}

/// PostgreSQL, by the newest `postgres` of the machine.
///
/// # Errors
/// It is not installed.
pub fn postgres() -> Result<Box<dyn Installed>, Missing> {
    let missing = || Missing {
        name: "PostgreSQL",
        install: "apt-get install postgresql",
    };
    let program = find_program("initdb", &debian_folders()).ok_or_else(missing)?;
    let programs = program.parent().ok_or_else(missing)?.to_owned();
    let line = first_line(&programs.join("postgres"), &["--version"]).map_err(|_| missing())?;
    let number = line.split_once(") ").map_or("", |(_, rest)| rest);
    Ok(Box::new(Postgres {
        programs,
        version: format!("PostgreSQL {}", number.split(' ').next().unwrap_or_default()),
        runs_as: unprivileged(),
    }))
}

/// Debian's folders of programs, the newest version first.
fn debian_folders() -> Vec<PathBuf> {
    let entries = fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let mut versions: Vec<_> = entries.map(|entry| entry.path()).collect();
    let number = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
    versions.sort_by_key(|path| std::cmp::Reverse(number(path)));
    versions.into_iter().map(|version| version.join("bin")).collect()
}

/// Ids of the user `postgres`, or else of the unprivileged user, if we are root.
fn unprivileged() -> Option<(u32, u32)> {
    // SAFETY: it reads a number of this process.
    if unsafe { libc::geteuid() } != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let ids = |name: &str| {
        let mut lines = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let fields = lines.find(|fields| fields.first() == Some(&name))?;
        Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
    };
    ids(USER).or_else(|| ids("nobody"))
}

impl Postgres {
    fn command(&self, program: &str, dir: &Path) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.current_dir(dir);
        if let Some((user, group)) = self.runs_as {
            command.uid(user).gid(group);
        }
        command
    }

    /// Lets the server's user write in a folder.
    fn give_away(&self, dir: &Path) -> Result<()> {
        let Some((user, group)) = self.runs_as else {
            return Ok(());
        };
        chown(dir, Some(user), Some(group)).with_context(|| format!("give {} away", dir.display()))
    }

    /// Makes an empty database cluster: a copy of the first one, which takes a second to make.
    fn make_cluster(&self, dir: &Path, data: &Path) -> Result<()> {
        let first = dir.with_file_name("postgresql");
        if !first.exists() {
            fs::create_dir(&first).with_context(|| format!("create {}", first.display()))?;
            self.give_away(&first)?;
            let mut initdb = self.command("initdb", &first);
            initdb.args([
                "--auth=trust",
                "--no-sync",
                "--encoding=UTF8",
                "--no-locale",
                "--username",
                USER,
            ]);
            run(initdb.arg("--pgdata").arg(first.join("data")))?;
        }
        self.give_away(dir)?;
        run(Command::new("cp").arg("-a").arg(first.join("data")).arg(data))
    }
}

/// Runs a program to its end.
fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("run {program}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program}: {stderr}");
    Ok(())
}

impl Installed for Postgres {
    fn name(&self) -> &'static str {
        "PostgreSQL"
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn start(&self, start: &Start<'_>) -> Result<Box<dyn Running>> {
        let (data, port) = (start.dir.join("data"), free_port()?);
        self.make_cluster(start.dir, &data)?;
        let mut command = self.command("postgres", start.dir);
        command.arg("-D").arg(&data).arg("-p").arg(port.to_string());
        SETTINGS.iter().for_each(|setting| {
            command.args(["-c", *setting]);
        });
        let waits = if start.durability == Durability::Commit {
            "on"
        } else {
            "off"
        };
        command.args(["-c", &format!("synchronous_commit={waits}")]);
        command.args(["-c", &format!("max_connections={}", start.connections + 20)]);
        let is_ready = |port| PgClient::connect(port).is_ok();
        // SIGQUIT: at once, without a checkpoint of files that are removed then.
        let server = Server::start(&mut command, start.dir, port, libc::SIGQUIT, &is_ready)?;
        let mut client = PgClient::connect(port)?;
        fill(&mut client, start)?;
        Ok(Box::new(RunningPostgres {
            client,
            inputs: start.inputs.clone(),
            server,
        }))
    }
}

/// Makes the tables and functions of the workload, fills them, and writes them to disk before the run.
fn fill(client: &mut PgClient, start: &Start<'_>) -> Result<()> {
    let (schema, rows) = match start.inputs.workload {
        Workload::Voter => (include_str!("sql/voter.sql"), voter_rows()),
        Workload::Transfer | Workload::Zipf => (
            include_str!("sql/transfer.sql"),
            format!(
                "INSERT INTO accounts SELECT n, {OPENING_BALANCE} FROM generate_series(0, {} - 1) n",
                start.inputs.accounts
            ),
        ),
        Workload::Tpcb => (include_str!("sql/tpcb.sql"), tpcb_rows(start.inputs.branches)),
        Workload::NewOrder => (include_str!("sql/new_order.sql"), order_rows(start.inputs)),
    };
    let schema = match start.durability {
        // Their rows are in no log, and gone after a failure.
        Durability::None => schema.replace("CREATE TABLE", "CREATE UNLOGGED TABLE"),
        _ => schema.to_owned(),
    };
    client.query(&schema)?;
    client.query(&rows)?;
    client.query("VACUUM ANALYZE")?;
    client.query("CHECKPOINT")?;
    Ok(())
}

fn voter_rows() -> String {
    let contestants = (1..)
        .zip(CONTESTANTS)
        .map(|(number, name): (i32, _)| format!("({number}, '{name}')"));
    let states = voter::area_codes().map(|(code, state)| format!("({code}, '{state}')"));
    let list = |rows: Vec<String>| rows.join(", ");
    format!(
        "INSERT INTO contestants VALUES {}; INSERT INTO area_codes VALUES {}",
        list(contestants.collect()),
        list(states.collect())
    )
}

fn tpcb_rows(branches: u32) -> String {
    let [tellers, accounts] = [TELLERS_PER_BRANCH, ACCOUNTS_PER_BRANCH];
    format!(
        "INSERT INTO branches SELECT n, 0, '-' FROM generate_series(1, {branches}) n;
         INSERT INTO tellers SELECT n, (n - 1) / {tellers} + 1, 0, '-' FROM generate_series(1, {branches} * {tellers}) n;
         INSERT INTO accounts SELECT n, (n - 1) / {accounts} + 1, 0, '-' FROM generate_series(1, {branches} * {accounts}) n"
    )
}

fn order_rows(inputs: &Inputs) -> String {
    let (warehouses, items) = (inputs.warehouses, inputs.items);
    format!(
        "INSERT INTO warehouse SELECT w, w * 37 % 2001, repeat('-', 80) FROM generate_series(1, {warehouses}) w;
         INSERT INTO district SELECT w, d, d * 41 % 2001, {FIRST_ORDER}, repeat('-', 80)
           FROM generate_series(1, {warehouses}) w, generate_series(1, {DISTRICTS}) d;
         INSERT INTO customer SELECT w, d, c, c % 5001, 'BARBARBAR', 'GC', repeat('-', 500)
           FROM generate_series(1, {warehouses}) w, generate_series(1, {DISTRICTS}) d, generate_series(1, {CUSTOMERS}) c;
         INSERT INTO item SELECT i, 100 + i % 9901, repeat('n', 19), repeat('d', 38) FROM generate_series(1, {items}) i;
         INSERT INTO stock SELECT w, i, 10 + i % 91, 0, 0, 0, array_fill(repeat('s', 24), ARRAY[{DISTRICTS}]), repeat('d', 38)
           FROM generate_series(1, {warehouses}) w, generate_series(1, {items}) i"
    )
}

struct RunningPostgres {
    client: PgClient,
    inputs: Arc<Inputs>,
    server: Server,
}

impl Running for RunningPostgres {
    fn run(&mut self, load: &Load, way: Way) -> Result<Measured> {
        let statement = match self.inputs.workload {
            Workload::Voter => "SELECT vote($1, $2, $3)",
            Workload::Transfer | Workload::Zipf => "SELECT transfer($1, $2, $3)",
            Workload::Tpcb => "SELECT account_update($1, $2, $3, $4)",
            Workload::NewOrder => "SELECT place_order($1, $2, $3, $4, $5, $6)",
        };
        let (port, answers_verdict) = (self.server.port, self.inputs.workload == Workload::Voter);
        let open = || -> Result<Connection> {
            let stream = PgClient::connect(port)?.prepare(statement)?;
            let wire = Box::new(PgWire::new(answers_verdict));
            Ok(Connection { stream, wire })
        };
        over_connections(load, way, self.server.id(), &open)
    }

    fn totals(&mut self) -> Result<Vec<i64>> {
        let mut sums = Vec::new();
        for query in self.inputs.workload.sum_queries() {
            let rows = self.client.query(query)?;
            let sum = rows.first().and_then(|text| text.parse().ok());
            sums.push(sum.with_context(|| format!("{query}: {rows:?}"))?);
        }
        Ok(sums)
    }
}
