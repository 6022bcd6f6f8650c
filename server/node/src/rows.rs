//! `reprise table rows` and `table groups`: the rows of tables, and sums over them.

use std::{fmt, io};

use clap::{Args, ValueEnum};
use reprise_api::{CSV_MEDIA_TYPE, GroupsPage, NDJSON_MEDIA_TYPE, RowGroup, RowsPage};
use reprise_client::{Client, RowsQuery};
use reprise_codec::decimal;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::{
    cli::{Output, ServerArgs},
    output::{self, VerbFailure, VerbResult, grouped, print_json, print_note, print_table, print_text, table},
    remote::{connect, failure},
};

/// Rows asked for at once.
const PAGE_ROWS: u64 = 1000;

pub const ROWS_EXAMPLE: &str = "Examples:
  reprise table rows votes --limit 20 --prefix 2125550123
  reprise table rows orders --index by_time --from 2026-03-01T00:00:00Z --reverse --where state:eq:2 --columns order,total
  reprise table rows orders --limit 1000000 --form csv > orders.csv

A condition is COLUMN:OP:VALUE. OP is eq, ne, lt, le, gt or ge; for text also starts.";

pub const GROUPS_EXAMPLE: &str = "Examples:
  reprise table groups orders --index by_state --sum total
  reprise table groups orders --by 0 --where total:gt:100         count all rows that match";

/// A range of rows, and conditions on them.
#[derive(Args)]
pub struct RangeArgs {
    /// Name of the index [default: the primary key]
    #[arg(long)]
    pub index: Option<String>,
    /// Leading key values, separated by commas, or a JSON array
    #[arg(long)]
    pub prefix: Option<String>,
    /// First row to read: values of the columns after the prefix, inclusive
    #[arg(long, value_name = "VALUES")]
    pub from: Option<String>,
    /// Last row to read: values of the columns after the prefix, inclusive
    #[arg(long, value_name = "VALUES")]
    pub to: Option<String>,
    /// Only rows that meet this condition. You may give it more than once
    #[arg(long = "where", value_name = "COLUMN:OP:VALUE")]
    pub conditions: Vec<String>,
}

#[derive(Args)]
pub struct RowsArgs {
    /// Name of the table
    table: String,
    /// Largest number of rows to print
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Continue at this cursor, which an earlier command printed
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    range: RangeArgs,
    /// Read from the last row to the first
    #[arg(long)]
    reverse: bool,
    /// Columns to print, separated by commas [default: all]
    #[arg(long)]
    columns: Option<String>,
    /// Format of the rows. --output json prints one JSON document instead
    #[arg(long, value_enum, default_value_t = Form::Table)]
    form: Form,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Form {
    Table,
    Csv,
    /// One JSON object on each line
    Ndjson,
}

#[derive(Args)]
pub struct GroupsArgs {
    /// Name of the table
    table: String,
    /// Number of leading columns of the index that make a group; 0: all rows are one group
    #[arg(long, value_name = "N", default_value_t = 1)]
    by: u32,
    /// Numeric columns to add up, separated by commas
    #[arg(long)]
    sum: Option<String>,
    /// Largest number of groups to print
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    #[command(flatten)]
    range: RangeArgs,
    #[command(flatten)]
    server: ServerArgs,
}

impl RangeArgs {
    fn query(&self, limit: u64) -> RowsQuery {
        RowsQuery {
            limit: Some(limit.min(PAGE_ROWS) as u32),
            index: self.index.clone(),
            prefix: self.prefix.clone(),
            from: self.from.clone(),
            to: self.to.clone(),
            conditions: self.conditions.clone(),
            ..RowsQuery::default()
        }
    }
}

pub fn list(args: &RowsArgs, output: Output) -> VerbResult {
    let client = connect(&args.server)?;
    let query = RowsQuery {
        cursor: args.cursor.clone(),
        reverse: args.reverse,
        columns: args.columns.clone(),
        ..args.range.query(args.limit)
    };
    match args.form {
        _ if output == Output::Json => Ok(print_json(&pages(&client, args, query)?)?),
        Form::Table => {
            let page = pages(&client, args, query)?;
            print_rows(&page)?;
            print_cursor(page.next_cursor.as_deref());
            Ok(())
        }
        Form::Csv => stream(&client, args, query, CSV_MEDIA_TYPE),
        Form::Ndjson => stream(&client, args, query, NDJSON_MEDIA_TYPE),
    }
}

fn print_cursor(cursor: Option<&str>) {
    if let Some(cursor) = cursor {
        print_note(&format!("more rows: --cursor {cursor}"));
    }
}

/// Pages until `limit` rows are there.
fn pages(client: &Client, args: &RowsArgs, mut query: RowsQuery) -> Result<RowsPage, VerbFailure> {
    let mut all = client.rows(&args.table, &query).map_err(failure)?;
    while let Some(cursor) = all.next_cursor.take() {
        let left = args.limit.saturating_sub(all.rows.len() as u64);
        if left == 0 {
            all.next_cursor = Some(cursor);
            break;
        }
        query.cursor = Some(cursor);
        query.limit = Some(left.min(PAGE_ROWS) as u32);
        let mut page = client.rows(&args.table, &query).map_err(failure)?;
        all.rows.append(&mut page.rows);
        all.next_cursor = page.next_cursor;
    }
    Ok(all)
}

/// Prints page after page as it comes; of CSV the line of names once.
fn stream(client: &Client, args: &RowsArgs, mut query: RowsQuery, media_type: &str) -> VerbResult {
    let heads = usize::from(media_type == CSV_MEDIA_TYPE);
    let (mut left, mut is_first) = (args.limit, true);
    loop {
        let page = client.rows_text(&args.table, &query, media_type).map_err(failure)?;
        let body = match (is_first, heads) {
            (false, 1) => page.text.split_once("\r\n").map_or("", |(_, rest)| rest),
            _ => &page.text,
        };
        if !body.is_empty() {
            output::print_rows(body)?;
        }
        // Quoted fields may have line ends of their own, so the requested number of rows is an upper bound.
        left = left.saturating_sub(query.limit.unwrap_or_default().into());
        (is_first, query.cursor) = (false, page.next_cursor);
        match (&query.cursor, left) {
            (None, _) => return Ok(()),
            (Some(cursor), 0) => {
                print_cursor(Some(cursor));
                return Ok(());
            }
            _ => query.limit = Some(left.min(PAGE_ROWS) as u32),
        }
    }
}

pub fn groups(args: &GroupsArgs, output: Output) -> VerbResult {
    let client = connect(&args.server)?;
    let mut query = args.range.query(args.limit);
    let ask = |query: &RowsQuery| {
        client
            .groups(&args.table, query, args.by, args.sum.as_deref())
            .map_err(failure)
    };
    let mut all = ask(&query)?;
    while let Some(cursor) = all.next_cursor.take() {
        let is_full = all.groups.len() as u64 >= args.limit && !all.continues;
        if is_full {
            all.next_cursor = Some(cursor);
            break;
        }
        query.cursor = Some(cursor);
        // The first group of the page may be the rest of the last one.
        let left = args.limit - all.groups.len() as u64 + u64::from(all.continues);
        query.limit = Some(left.min(PAGE_ROWS) as u32);
        let page = ask(&query)?;
        join(&mut all, page);
    }
    match output {
        Output::Json => print_json(&all)?,
        Output::Text => print_groups(&all)?,
    }
    Ok(())
}

/// A group that ended a page may continue on the next.
fn join(all: &mut GroupsPage, page: GroupsPage) {
    let mut groups = page.groups.into_iter().peekable();
    if let (true, Some(last), Some(first)) = (all.continues, all.groups.last_mut(), groups.peek())
        && last.key.get() == first.key.get()
    {
        add(last, first);
        groups.next();
    }
    all.groups.extend(groups);
    (all.continues, all.next_cursor, all.lsn) = (page.continues, page.next_cursor, page.lsn);
}

fn add(to: &mut RowGroup, from: &RowGroup) {
    to.count.0 += from.count.0;
    for (name, value) in &from.sums {
        if let Some(sum) = to.sums.get_mut(name) {
            *sum = plus(sum, value);
        }
    }
}

/// Texts are whole numbers, or decimals of one scale.
fn plus(one: &Value, other: &Value) -> Value {
    let units = |text: &str| text.replace('.', "").parse::<i128>().ok();
    match (one, other) {
        (Value::String(one), Value::String(other)) => {
            let scale = one.split_once('.').map_or(0, |(_, part)| part.len() as u8);
            let sum = units(one)
                .zip(units(other))
                .and_then(|(one, other)| one.checked_add(other));
            sum.map_or(Value::Null, |sum| Value::String(decimal(sum, scale)))
        }
        (one, other) => Value::from(one.as_f64().unwrap_or_default() + other.as_f64().unwrap_or_default()),
    }
}

fn print_groups(page: &GroupsPage) -> io::Result<()> {
    let Some(first) = page.groups.first() else {
        return print_text("no rows");
    };
    let keys = |group: &RowGroup| serde_json::from_str::<Members>(group.key.get()).map_err(io::Error::other);
    let mut names: Vec<String> = keys(first)?.0.into_iter().map(|(name, _)| name).collect();
    names.push("count".into());
    names.extend(first.sums.keys().map(|name| format!("sum of {name}")));
    let mut out = table(&names.iter().map(String::as_str).collect::<Vec<_>>());
    for group in &page.groups {
        let values = keys(group)?.0;
        let cells = values.iter().map(|(_, value)| cell(value));
        let sums = group.sums.values().map(cell);
        out.add_row(cells.chain([grouped(group.count.0)]).chain(sums));
    }
    print_table(&out)
}

fn print_rows(page: &RowsPage) -> io::Result<()> {
    let mut rows = Vec::new();
    for row in &page.rows {
        rows.push(serde_json::from_str::<Members>(row.get()).map_err(io::Error::other)?.0);
    }
    let Some(first) = rows.first() else {
        return print_text("no rows");
    };
    let names: Vec<_> = first.iter().map(|(name, _)| name.as_str()).collect();
    let mut out = table(&names);
    for row in &rows {
        out.add_row(row.iter().map(|(_, value)| cell(value)));
    }
    print_table(&out)
}

/// An object's members in the order in which they came.
struct Members(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Members, M::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(MembersVisitor)
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "null".into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_goes_on_is_added_up() {
        let page = |key: &str, count: u64, sum: &str, continues: bool| GroupsPage {
            groups: vec![
                serde_json::from_str(&format!(
                    r#"{{"key": {{"state": {key}}}, "count": "{count}", "sums": {{"total": "{sum}"}}}}"#
                ))
                .expect("a group"),
            ],
            continues,
            next_cursor: None,
            lsn: reprise_api::U64(1),
        };
        let mut all = page("1", 2, "-0.75", true);
        join(&mut all, page("1", 3, "1.00", true));
        join(&mut all, page("2", 1, "5.00", false));
        assert_eq!(all.groups.len(), 2);
        assert_eq!(
            (all.groups[0].count.0, &all.groups[0].sums["total"]),
            (5, &Value::from("0.25"))
        );
    }
}
