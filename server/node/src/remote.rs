//! The verbs that ask a server.

use std::{
    fs,
    io::{self, BufRead, Read},
    path::Path,
};

use anyhow::Context;
use reprise_api::{BatchCall, IndexInfo, Json, ModuleDetail, ModuleInstalled, PartitioningInfo, TableInfo};
use reprise_client::{CallOptions, Client, ClientError, LinesQuery, LogQuery};
use serde_json::value::RawValue;

use crate::{
    cli::{CallArgs, IdempotencyCommand, LogCommand, ModuleCommand, Output, ServerArgs, TableCommand},
    output::{
        VerbFailure, VerbResult, bytes, grouped, print_json, print_json_line, print_note, print_pairs, print_table,
        print_text, table, usage, wrapped,
    },
    plan::{self, PlanArgs},
    rows,
};

/// Calls of a file that travel in one request.
const FILE_BATCH: usize = 1_000;

pub fn connect(server: &ServerArgs) -> Result<Client, VerbFailure> {
    client(&server.url, server.token.as_deref(), server.ca_cert.as_deref())
}

/// Makes a client of a server, whose certificate the certificates in the file may sign.
pub fn client(url: &str, token: Option<&str>, ca_cert: Option<&Path>) -> Result<Client, VerbFailure> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("read the certificates of {}", path.display()));
    let ca_cert = ca_cert.map(read).transpose()?;
    Client::trusting(url, token, ca_cert.as_deref()).map_err(failure)
}

pub fn failure(error: ClientError) -> VerbFailure {
    match error {
        ClientError::Problem(problem) => VerbFailure::Problem(problem),
        other => VerbFailure::Other(other.into()),
    }
}

pub fn module(command: &ModuleCommand, output: Output) -> VerbResult {
    match command {
        ModuleCommand::Deploy {
            file,
            name,
            ask,
            server,
        } => deploy(file, name.as_deref(), ask, server, output),
        ModuleCommand::Rollback {
            module,
            version,
            ask,
            server,
        } => rollback(module, *version, ask, server, output),
        ModuleCommand::List { server } => list_modules(server, output),
        ModuleCommand::Show { module, server } => {
            let detail = connect(server)?.module(module).map_err(failure)?;
            match output {
                Output::Json => print_json(&detail)?,
                Output::Text => print_module(&detail)?,
            }
            Ok(())
        }
        ModuleCommand::Remove {
            module,
            consents,
            server,
        } => {
            let removed = connect(server)?.remove_module(module, &consents.allow);
            removed.map_err(|error| plan::refused(module, error, output))?;
            match output {
                Output::Json => print_json(&serde_json::json!({ "module": module, "removed": true }))?,
                Output::Text => print_text(&format!("removed {module} from service; its tables stay"))?,
            }
            Ok(())
        }
    }
}

fn deploy(file: &Path, name: Option<&str>, ask: &PlanArgs, server: &ServerArgs, output: Output) -> VerbResult {
    let wasm = fs::read(file).with_context(|| format!("read {}", file.display()))?;
    let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let name = name.map_or_else(|| stem.replace('-', "_"), str::to_owned);
    let (client, allow) = (connect(server)?, &ask.consents.allow);
    if ask.dry_run {
        let planned = client.plan_module(&name, wasm, allow).map_err(failure)?;
        return plan::show(&name, &planned, output);
    }
    let installed = client.deploy_module(&name, wasm, allow);
    print_installed(installed.map_err(|error| plan::refused(&name, error, output))?, output)
}

fn rollback(module: &str, version: Option<u32>, ask: &PlanArgs, server: &ServerArgs, output: Output) -> VerbResult {
    let (client, allow) = (connect(server)?, &ask.consents.allow);
    if ask.dry_run {
        let planned = client.plan_rollback(module, version, allow).map_err(failure)?;
        return plan::show(module, &planned, output);
    }
    let installed = client.rollback_module(module, version, allow);
    print_installed(installed.map_err(|error| plan::refused(module, error, output))?, output)
}

fn print_installed(installed: ModuleInstalled, output: Output) -> VerbResult {
    if output == Output::Json {
        return Ok(print_json(&installed)?);
    }
    let what = match (installed.unchanged, installed.replaced) {
        (true, _) => "was in service already; nothing changed".to_owned(),
        (false, Some(before)) => format!("is in service in place of version {before}"),
        (false, None) => "is in service".to_owned(),
    };
    let bytes = installed
        .rolled_back_to
        .map_or_else(String::new, |version| format!(", with the bytes of version {version}"));
    print_text(&format!(
        "{} version {} {what}{bytes}",
        installed.module, installed.version
    ))?;
    let mut pairs = vec![
        ("  procedures", installed.procedures.join(", ")),
        ("  tables", installed.tables.join(", ")),
        ("  sha-256", installed.hash),
    ];
    let destroyed: Vec<_> = installed.destroyed.iter().map(plan::destroyed_line).collect();
    if !destroyed.is_empty() {
        pairs.push(("  destroyed", destroyed.join(", ")));
    }
    Ok(print_pairs(&pairs)?)
}

fn list_modules(server: &ServerArgs, output: Output) -> VerbResult {
    let list = connect(server)?.modules().map_err(failure)?;
    if output == Output::Json {
        return Ok(print_json(&list)?);
    }
    let mut table = table(&["module", "version", "installed", "size", "procedures", "tables"]);
    for module in list.modules {
        table.add_row([
            module.module,
            module.version.to_string(),
            module.installed_at,
            bytes(module.wasm_bytes),
            module.procedures.len().to_string(),
            module.tables.len().to_string(),
        ]);
    }
    Ok(print_table(&table)?)
}

fn print_module(detail: &ModuleDetail) -> io::Result<()> {
    print_pairs(&[
        ("module", detail.module.clone()),
        ("version", detail.version.to_string()),
        ("installed", detail.installed_at.clone()),
        ("size", bytes(detail.wasm_bytes)),
        ("sha-256", detail.hash.clone()),
        ("tables", wrapped(&detail.tables.join(", "), 11).trim_start().to_owned()),
    ])?;
    if !detail.migrations.is_empty() {
        print_pairs(&[("migrations", detail.migrations.join(", "))])?;
    }
    print_text("")?;
    for procedure in &detail.procedures {
        let partitions = match &procedure.partitioning {
            PartitioningInfo::By { parameters } => format!("by {}", parameters.join(", ")),
            PartitioningInfo::All => "all".into(),
            PartitioningInfo::Any => "any one".into(),
        };
        let access = if procedure.read_only { ", read-only" } else { "" };
        let log = procedure.log.reason.as_ref().unwrap_or(&procedure.log.kind);
        print_text(&wrapped(&procedure.signature, 0))?;
        print_text(&wrapped(&format!("partitions: {partitions}{access}; log: {log}"), 4))?;
        if let Some(line) = procedure.docs.lines().next() {
            print_text(&wrapped(line, 4))?;
        }
        if let Some(fuel_max) = procedure.fuel_max {
            print_text(&wrapped(&format!("fuel: at most {fuel_max}"), 4))?;
        }
        for abort in &procedure.aborts {
            let colon = if abort.docs.is_empty() { "" } else { ": " };
            print_text(&wrapped(&format!("aborts: {}{colon}{}", abort.code, abort.docs), 4))?;
        }
    }
    let mut versions = table(&["version", "installed", "size", "in service", "kept", "sha-256"]);
    for version in &detail.versions {
        versions.add_row([
            version.version.to_string(),
            version.installed_at.clone(),
            bytes(version.wasm_bytes),
            if version.in_service { "yes" } else { "no" }.to_owned(),
            if version.kept { "yes" } else { "no" }.to_owned(),
            version.hash.clone(),
        ]);
    }
    print_text("")?;
    print_table(&versions)
}

pub fn call(args: &CallArgs, output: Output) -> VerbResult {
    let target = args.procedure.as_deref().map(split_procedure).transpose()?;
    if let Some(file) = &args.file {
        return call_file(&connect(&args.server)?, target, file, output);
    }
    let Some((module, procedure)) = target else {
        return Err(usage("name the procedure as MODULE.PROCEDURE, or give --file"));
    };
    let text = match args.args.as_deref() {
        None => "{}".to_owned(),
        Some("-") => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).context("read standard input")?;
            text
        }
        Some(text) => text.to_owned(),
    };
    let arguments = arguments(&text)?;
    let options = CallOptions {
        idempotency_key: args.idempotency_key.as_deref(),
        safety: args.safety.as_deref(),
        ..CallOptions::default()
    };
    let answer = connect(&args.server)?
        .call_with(module, procedure, &*arguments, &options)
        .map_err(failure)?;
    match output {
        Output::Json => print_json(&answer)?,
        Output::Text => print_json(&answer.answer.result)?,
    }
    Ok(())
}

fn split_procedure(text: &str) -> Result<(&str, &str), VerbFailure> {
    match text.split_once('.') {
        Some((module, procedure)) if !module.is_empty() && !procedure.is_empty() => Ok((module, procedure)),
        _ => Err(usage(format!(
            "{text:?} is not MODULE.PROCEDURE, for example voter.results"
        ))),
    }
}

/// An object of arguments, passed on as it is written.
fn arguments(text: &str) -> Result<Json, VerbFailure> {
    let raw: Box<RawValue> =
        serde_json::from_str(text.trim()).map_err(|error| usage(format!("the arguments are not JSON: {error}")))?;
    if !raw.get().starts_with('{') {
        return Err(usage(
            "the arguments must be a JSON object by name, for example '{\"account\": 7}'",
        ));
    }
    Ok(raw)
}

/// Each line a transaction of its own; the answers are printed a line each.
fn call_file(client: &Client, target: Option<(&str, &str)>, file: &Path, output: Output) -> VerbResult {
    let reader: Box<dyn BufRead> = match file.to_str() {
        Some("-") => Box::new(io::stdin().lock()),
        _ => {
            let opened = fs::File::open(file).with_context(|| format!("open {}", file.display()))?;
            Box::new(io::BufReader::new(opened))
        }
    };
    let mut calls = Vec::new();
    let (mut done, mut refused) = (0_u64, 0_u64);
    for (number, line) in reader.lines().enumerate() {
        let line = line.with_context(|| format!("read {}", file.display()))?;
        if line.trim().is_empty() {
            continue;
        }
        calls.push(parse_line(&line, target).map_err(|why| usage(format!("line {}: {why}", number + 1)))?);
        if calls.len() == FILE_BATCH {
            refused += send_batch(client, &calls)?;
            done += calls.len() as u64;
            calls.clear();
        }
    }
    if !calls.is_empty() {
        refused += send_batch(client, &calls)?;
        done += calls.len() as u64;
    }
    if output == Output::Text {
        print_note(&format!(
            "{} of {} calls committed",
            grouped(done - refused),
            grouped(done)
        ));
    }
    if refused == 0 { Ok(()) } else { Err(VerbFailure::No) }
}

fn parse_line(line: &str, target: Option<(&str, &str)>) -> Result<BatchCall, String> {
    match target {
        None => serde_json::from_str(line).map_err(|error| error.to_string()),
        Some((module, procedure)) => Ok(BatchCall {
            module: module.to_owned(),
            procedure: procedure.to_owned(),
            args: Some(arguments(line).map_err(|error| error.to_string())?),
            id: None,
            idempotency_key: None,
        }),
    }
}

/// Prints the answers; how many of them are no commits.
fn send_batch(client: &Client, calls: &[BatchCall]) -> Result<u64, VerbFailure> {
    let answers = client.batch(calls).map_err(failure)?;
    let mut refused = 0;
    for answer in answers {
        let answer = answer.map_err(failure)?;
        refused += answer.problem.is_some() as u64;
        print_json_line(&answer)?;
    }
    Ok(refused)
}

pub fn tables(command: &TableCommand, output: Output) -> VerbResult {
    match command {
        TableCommand::List { server } => {
            let list = connect(server)?.tables().map_err(failure)?;
            match output {
                Output::Json => print_json(&list)?,
                Output::Text => print_tables(&list.tables)?,
            }
            Ok(())
        }
        TableCommand::Show { table, server } => {
            let info = connect(server)?.table(table).map_err(failure)?;
            match output {
                Output::Json => print_json(&info)?,
                Output::Text => print_table_info(&info)?,
            }
            Ok(())
        }
        TableCommand::Drop { table, server } => {
            connect(server)?.drop_table(table).map_err(failure)?;
            match output {
                Output::Json => print_json(&serde_json::json!({ "table": table, "dropped": true }))?,
                Output::Text => print_text(&format!("dropped {table} and its rows"))?,
            }
            Ok(())
        }
        TableCommand::Rows(args) => rows::list(args, output),
        TableCommand::Groups(args) => rows::groups(args, output),
    }
}

fn print_tables(tables: &[TableInfo]) -> io::Result<()> {
    let mut out = table(&[
        "table",
        "rows",
        "bytes",
        "bytes/row",
        "primary key",
        "partition",
        "modules",
    ]);
    for info in tables {
        out.add_row([
            info.name.clone(),
            grouped(info.rows),
            bytes(info.bytes),
            info.bytes
                .checked_div(info.rows)
                .map_or_else(String::new, |each| each.to_string()),
            info.primary_key.join(", "),
            placement(info),
            info.modules.join(" "),
        ]);
    }
    print_table(&out)
}

fn placement(info: &TableInfo) -> String {
    match (&info.partition_column, info.placement) {
        (Some(column), _) => format!("by {column}"),
        (None, reprise_api::Placement::Replicated) => "replicated".into(),
        (None, _) => "local".into(),
    }
}

fn print_table_info(info: &TableInfo) -> io::Result<()> {
    print_pairs(&[
        ("table", info.name.clone()),
        ("is", info.docs.lines().next().unwrap_or_default().to_owned()),
        ("rows", grouped(info.rows)),
        (
            "bytes",
            format!(
                "{} (rows {}, indexes {})",
                bytes(info.bytes),
                bytes(info.row_bytes),
                bytes(info.index_bytes)
            ),
        ),
        ("partition", placement(info)),
        ("modules", info.modules.join(", ")),
    ])?;
    let mut columns = table(&["column", "type", "null", "default"]);
    for column in &info.columns {
        columns.add_row([
            column.name.clone(),
            column.ty.to_string(),
            if column.nullable { "yes" } else { "no" }.to_owned(),
            column
                .default
                .as_ref()
                .map_or_else(String::new, |value| value.get().to_owned()),
        ]);
    }
    print_text("")?;
    print_table(&columns)?;
    let mut indexes = table(&["index", "columns", "unique", "order"]);
    for IndexInfo {
        name,
        columns,
        unique,
        ordered,
    } in &info.indexes
    {
        indexes.add_row([
            name.clone(),
            columns.join(", "),
            if *unique { "yes" } else { "no" }.to_owned(),
            if *ordered { "ordered" } else { "hash" }.to_owned(),
        ]);
    }
    print_text("")?;
    print_table(&indexes)
}

pub fn log(command: &LogCommand, output: Output) -> VerbResult {
    match command {
        LogCommand::Tail {
            limit,
            partition,
            kind,
            filter,
            follow,
            server,
        } => {
            let query = LogQuery {
                transaction: filter.transaction,
                module: filter.module.clone(),
                procedure: filter.procedure.clone(),
                key: filter.key.clone(),
                arguments: filter.arguments.clone(),
                since: filter.since.clone(),
                until: filter.until.clone(),
                newest: true,
                limit: Some(*limit as u32),
                partition: *partition,
                kind: kind.clone(),
                ..LogQuery::default()
            };
            crate::tail::run(&connect(server)?, query, *follow, output)
        }
        LogCommand::Output {
            limit,
            module,
            procedure,
            level,
            transaction,
            follow,
            server,
        } => {
            let query = LinesQuery {
                limit: Some(*limit),
                module: module.clone(),
                procedure: procedure.clone(),
                level: level.clone(),
                transaction: *transaction,
                since: None,
            };
            crate::lines::run(&connect(server)?, query, *follow, output)
        }
        LogCommand::Show {
            lsn, dir: Some(dir), ..
        } => crate::logfile::show(dir, *lsn, output),
        LogCommand::Show { lsn, dir: None, server } => {
            let record = connect(server)?.log_record(*lsn).map_err(failure)?;
            print_json(&record)?;
            Ok(())
        }
        LogCommand::Verify { dir } => crate::logfile::verify(dir, output),
        LogCommand::Dump { dir, from, limit } => crate::logfile::dump(dir, *from, *limit, output),
    }
}

pub fn idempotency(command: &IdempotencyCommand, output: Output) -> VerbResult {
    let IdempotencyCommand::Show { key, server } = command;
    let kept = connect(server)?.idempotency(key).map_err(failure)?;
    if output == Output::Json {
        return Ok(print_json(&kept)?);
    }
    let partition = kept
        .partition
        .map_or("several".into(), |partition| partition.to_string());
    Ok(print_pairs(&[
        (
            "call",
            format!("{}.{} (version {})", kept.module, kept.procedure, kept.version),
        ),
        ("result", kept.result.get().to_owned()),
        ("transaction", format!("{} at {}", kept.txn_id.0, kept.time)),
        ("lsn", kept.lsn.0.to_string()),
        ("partition", partition),
        ("kept until", kept.expires_at),
    ])?)
}
