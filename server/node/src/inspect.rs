//! The contents of a checkpoint's file, read without a server.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, anyhow};
use clap::Args;
use reprise_abi::{TableSchema, row::RowLayout};
use reprise_api::U64;
use reprise_base::Lsn;
use reprise_checkpoint::{CheckpointReader, Checkpoints, parse_checkpoint_name};
use reprise_codec::{hex, rfc3339, row_json};
use reprise_env::RealDisk;
use reprise_host::stored_descriptions::read_module;
use reprise_wire::{CheckpointBlockKind, CheckpointRows};
use serde::Serialize;

use crate::{
    cli::Output,
    output::{
        VerbFailure, VerbResult, bytes, grouped, print_json, print_json_line, print_line, print_pairs, print_table,
        print_text, table, usage,
    },
};

pub const EXAMPLE: &str = "Examples:
  reprise checkpoint show ./reprise-data
  reprise checkpoint show ./reprise-data/checkpoints/checkpoint-0000000000012400.ckpt
  reprise checkpoint show ./reprise-data --rows votes --limit 10 --output json";

#[derive(Args)]
pub struct ShowArgs {
    /// A checkpoint file; or a data directory or a backup, to show its newest checkpoint
    pub path: PathBuf,
    /// Show the checkpoint at this LSN
    #[arg(long, value_name = "N")]
    pub lsn: Option<u64>,
    /// Print the rows of this table
    #[arg(long, value_name = "TABLE")]
    pub rows: Option<String>,
    /// Only rows of this partition
    #[arg(long, value_name = "N", requires = "rows")]
    pub partition: Option<u16>,
    /// Largest number of rows to print
    #[arg(long, value_name = "N", requires = "rows")]
    pub limit: Option<u64>,
}

#[derive(Serialize)]
struct CheckpointFacts {
    file: String,
    lsn: U64,
    database_id: String,
    partitions: u16,
    /// The time of its mark in the log.
    taken_at: String,
    txn_id: U64,
    settings_hash: String,
    rows: u64,
    row_bytes: u64,
    file_bytes: u64,
    idempotency_keys: u64,
    tables: Vec<ShownTable>,
    modules: Vec<ShownModule>,
}

#[derive(Serialize)]
struct ShownTable {
    table: String,
    rows: u64,
    /// Before compression.
    row_bytes: u64,
    stored_bytes: u64,
    /// Rows of each partition.
    partition_rows: Vec<u64>,
    columns: Vec<String>,
}

#[derive(Serialize)]
struct ShownModule {
    module: String,
    version: u32,
    in_service: bool,
    wasm_bytes: u32,
    hash: String,
}

pub fn show(args: &ShowArgs, output: Output) -> VerbResult {
    let reader = open(&args.path, args.lsn)?;
    if let Some(name) = &args.rows {
        return print_rows(&reader, name, args, output);
    }
    let shown = shown(&reader)?;
    match output {
        Output::Json => print_json(&shown)?,
        Output::Text => print_shown(&shown)?,
    }
    Ok(())
}

fn open(path: &Path, lsn: Option<u64>) -> Result<CheckpointReader, VerbFailure> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let (folder, found) = match parse_checkpoint_name(name) {
        Some(found) if path.is_file() => (path.parent().unwrap_or(Path::new(".")).to_owned(), Some(found)),
        _ if path.is_file() => {
            return Err(usage(format!("{name:?} is not the name of a checkpoint file")));
        }
        _ if path.join("checkpoints").is_dir() => (path.join("checkpoints"), None),
        _ => (path.to_owned(), None),
    };
    if let (Some(asked), Some(found)) = (lsn, found)
        && asked != found.0
    {
        return Err(usage(format!(
            "the file is the checkpoint at LSN {found}, and not at LSN {asked}"
        )));
    }
    let folder = if folder.as_os_str().is_empty() {
        PathBuf::from(".")
    } else {
        folder
    };
    let disk = RealDisk::open(&folder).context("look for checkpoints")?;
    let files = Checkpoints::new(Arc::new(disk));
    let stored = files.list().context("list the checkpoints")?;
    let wanted = found.or(lsn.map(Lsn)).or(stored.last().copied());
    match wanted.filter(|lsn| stored.contains(lsn)) {
        Some(lsn) => Ok(files.open(lsn).context("open the checkpoint")?),
        None => Err(VerbFailure::Other(match lsn {
            Some(lsn) => anyhow!("there is no checkpoint at LSN {lsn} in {}", folder.display()),
            None => anyhow!("there is no checkpoint in {}", folder.display()),
        })),
    }
}

fn tables_of(reader: &CheckpointReader) -> Result<Vec<TableSchema>, VerbFailure> {
    let described = reader.tables().iter().map(|json| {
        let schema = read_module(json).map_err(|error| anyhow!("{}: {error}", reader.name()))?;
        Ok(schema.tables.into_iter().next().unwrap_or_else(TableSchema::dropped))
    });
    described.collect()
}

fn shown(reader: &CheckpointReader) -> Result<CheckpointFacts, VerbFailure> {
    let (header, size, database) = (reader.header(), reader.size(), reader.database());
    let partitions = database.genesis.partitions;
    let tables = tables_of(reader)?
        .into_iter()
        .enumerate()
        .filter(|(_, schema)| !schema.is_dropped())
        .map(|(number, schema)| {
            let mut shown = ShownTable {
                table: schema.full_name(),
                rows: 0,
                row_bytes: 0,
                stored_bytes: 0,
                partition_rows: vec![0; partitions as usize],
                columns: schema.columns.iter().map(|column| column.name.clone()).collect(),
            };
            let is_of_it = |kind, table| kind == CheckpointBlockKind::Rows && table == number;
            for entry in reader.entries().iter().filter(|e| is_of_it(e.kind, e.table as usize)) {
                shown.rows += entry.items_count as u64;
                shown.row_bytes += entry.raw_bytes as u64;
                shown.stored_bytes += entry.stored_bytes as u64;
                shown.partition_rows[entry.partition.index()] += entry.items_count as u64;
            }
            shown
        });
    let modules = reader.modules().iter().map(|module| {
        let module = module.get();
        ShownModule {
            module: module.name.to_owned(),
            version: module.version,
            in_service: module.in_service,
            wasm_bytes: module.wasm_bytes,
            hash: hex(&module.hash),
        }
    });
    Ok(CheckpointFacts {
        file: reader.name().to_owned(),
        lsn: U64(header.lsn.0),
        database_id: hex(&header.database_id),
        partitions,
        taken_at: rfc3339(header.txn_id.time_us()),
        txn_id: U64(header.txn_id.0),
        settings_hash: format!("{:016x}", header.settings_hash),
        rows: size.rows,
        row_bytes: size.row_bytes,
        file_bytes: size.file_bytes,
        idempotency_keys: database.keys,
        tables: tables.collect(),
        modules: modules.collect(),
    })
}

fn print_shown(shown: &CheckpointFacts) -> std::io::Result<()> {
    print_pairs(&[
        ("checkpoint", shown.file.clone()),
        ("LSN", shown.lsn.to_string()),
        ("taken", format!("{} as transaction {}", shown.taken_at, shown.txn_id)),
        (
            "database",
            format!("{}, {} partitions", shown.database_id, shown.partitions),
        ),
        ("settings", shown.settings_hash.clone()),
        (
            "rows",
            format!(
                "{}, {} in {}",
                grouped(shown.rows),
                bytes(shown.row_bytes),
                bytes(shown.file_bytes)
            ),
        ),
        ("keys", grouped(shown.idempotency_keys)),
    ])?;
    let mut tables = table(&["table", "rows", "size", "stored", "columns"]);
    for found in &shown.tables {
        tables.add_row([
            found.table.clone(),
            grouped(found.rows),
            bytes(found.row_bytes),
            bytes(found.stored_bytes),
            found.columns.join(" "),
        ]);
    }
    print_text("")?;
    print_table(&tables)?;
    let mut modules = table(&["module", "version", "in service", "size", "sha-256"]);
    for found in &shown.modules {
        modules.add_row([
            found.module.clone(),
            found.version.to_string(),
            if found.in_service { "yes" } else { "no" }.to_owned(),
            bytes(u64::from(found.wasm_bytes)),
            found.hash.clone(),
        ]);
    }
    print_text("")?;
    print_table(&modules)
}

fn print_rows(reader: &CheckpointReader, name: &str, args: &ShowArgs, output: Output) -> VerbResult {
    let tables = tables_of(reader)?;
    let Some(number) = tables
        .iter()
        .position(|table| table.full_name() == name || table.name == name)
    else {
        let known = tables.iter().filter(|table| !table.is_dropped());
        let known: Vec<_> = known.map(TableSchema::full_name).collect();
        return Err(VerbFailure::Other(anyhow!(
            "the checkpoint has no table {name:?}; it has {}",
            known.join(", ")
        )));
    };
    let schema = &tables[number];
    let layout = RowLayout::of_table(schema);
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut blocks = reader.blocks();
    for (at, entry) in reader.entries().iter().enumerate() {
        let is_asked = args.partition.is_none_or(|partition| partition == entry.partition.0);
        let is_of_it = entry.kind == CheckpointBlockKind::Rows && entry.table as usize == number;
        if !(is_asked && is_of_it) {
            continue;
        }
        let raw = blocks.read(at).context("read the checkpoint")?;
        for row in CheckpointRows::new(raw) {
            if left == 0 {
                return Ok(());
            }
            left -= 1;
            let (row, row_number) = row.map_err(|error| anyhow!(reader.corrupt(entry, error)))?;
            let shown = row_json(schema, &layout, row);
            let shown = shown.ok_or_else(|| anyhow!("{}: a row that does not fit its table", reader.name()))?;
            match output {
                Output::Json => print_json_line(&serde_json::json!({
                    "partition": entry.partition.0,
                    "number": row_number.to_string(),
                    "row": shown,
                }))?,
                Output::Text => print_line(&format!("{:>4}  {}", entry.partition.0, shown.get()))?,
            }
        }
    }
    Ok(())
}
