//! `reprise table rows` and `table groups`: the rows of tables, and sums over them.

use std::{fmt, io};

use clap::{Args, ValueEnum};
use reprise_api::{CSV_MEDIA_TYPE, GroupsPage, NDJSON_MEDIA_TYPE, RowGroup, RowsPage};
use reprise_client::{Client, RowsQuery, RowsText};
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
  reprise table rows tickets.seats --limit 20 --index state --prefix 1,held
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

/// Prints rows as CSV or as lines of JSON.
fn stream(client: &Client, args: &RowsArgs, query: RowsQuery, media_type: &str) -> VerbResult {
    let ask = |query: &RowsQuery| client.rows_text(&args.table, query, media_type).map_err(failure);
    let is_csv = media_type == CSV_MEDIA_TYPE;
    let cursor = text_pages(args.limit, query, is_csv, ask, output::print_rows)?;
    print_cursor(cursor.as_deref());
    Ok(())
}

/// Prints page after page as it comes, until `limit` rows are there; of CSV the line of names once. Returns the cursor of further rows.
fn text_pages(
    limit: u64,
    mut query: RowsQuery,
    is_csv: bool,
    mut ask: impl FnMut(&RowsQuery) -> Result<RowsText, VerbFailure>,
    mut print: impl FnMut(&str) -> io::Result<()>,
) -> Result<Option<String>, VerbFailure> {
    let (mut left, mut is_first) = (limit, true);
    loop {
        let page = ask(&query)?;
        let rows = match is_csv {
            true => page.text.split_once("\r\n").map_or("", |(_, rows)| rows),
            false => page.text.as_str(),
        };
        let text = if is_first { page.text.as_str() } else { rows };
        if !text.is_empty() {
            print(text)?;
        }
        // With conditions a page may have fewer rows than the limit of its query, and still a cursor.
        left = left.saturating_sub(count_rows(rows, is_csv));
        if left == 0 || page.next_cursor.is_none() {
            return Ok(page.next_cursor);
        }
        (is_first, query.cursor) = (false, page.next_cursor);
        query.limit = Some(left.min(PAGE_ROWS) as u32);
    }
}

/// Counts rows of text. A quoted field of CSV may have line ends of its own.
fn count_rows(rows: &str, is_csv: bool) -> u64 {
    let mut is_quoted = false;
    let ends = rows.bytes().filter(|byte| {
        is_quoted ^= is_csv && *byte == b'"';
        *byte == b'\n' && !is_quoted
    });
    ends.count() as u64
}

pub fn groups(args: &GroupsArgs, output: Output) -> VerbResult {
    let client = connect(&args.server)?;
    let all = group_pages(args.limit, args.range.query(args.limit), |query| {
        client
            .groups(&args.table, query, args.by, args.sum.as_deref())
            .map_err(failure)
    })?;
    match output {
        Output::Json => print_json(&all)?,
        Output::Text => print_groups(&all)?,
    }
    Ok(())
}

/// Asks page after page until `limit` groups are there, the last one with all of its rows.
fn group_pages(
    limit: u64,
    mut query: RowsQuery,
    mut ask: impl FnMut(&RowsQuery) -> Result<GroupsPage, VerbFailure>,
) -> Result<GroupsPage, VerbFailure> {
    let mut all = ask(&query)?;
    while let Some(cursor) = all.next_cursor.take() {
        let room = limit.saturating_sub(all.groups.len() as u64);
        if room == 0 && !all.continues {
            all.next_cursor = Some(cursor);
            break;
        }
        query.cursor = Some(cursor);
        // The first group of the page may be the rest of the last one.
        let asked = room.saturating_add(u64::from(all.continues));
        query.limit = Some(asked.min(PAGE_ROWS) as u32);
        let page = ask(&query)?;
        if room == 0 && !page.groups.is_empty() && !has_rest(&all, &page) {
            // The last group had all of its rows. The page has the groups after the limit.
            (all.continues, all.next_cursor) = (false, query.cursor.take());
            break;
        }
        join(&mut all, page);
    }
    Ok(all)
}

/// True if the page begins with the rest of the last group.
fn has_rest(all: &GroupsPage, page: &GroupsPage) -> bool {
    let ends = all.groups.last().zip(page.groups.first());
    ends.is_some_and(|(last, first)| last.key.get() == first.key.get())
}

/// Appends a page. A group that ended a page may continue on the next one. A page without groups does not end it.
fn join(all: &mut GroupsPage, page: GroupsPage) {
    let has_rest = has_rest(all, &page);
    let still_continues = all.continues && page.groups.is_empty() && page.next_cursor.is_some();
    let mut groups = page.groups.into_iter();
    if has_rest && let (Some(last), Some(first)) = (all.groups.last_mut(), groups.next()) {
        add(last, &first);
    }
    all.groups.extend(groups);
    all.continues = page.continues || still_continues;
    (all.next_cursor, all.lsn) = (page.next_cursor, page.lsn);
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

    /// A page of one group.
    fn page(key: &str, count: u64, sum: &str, continues: bool, next_cursor: Option<&str>) -> GroupsPage {
        let group = format!(r#"{{"key": {{"state": {key}}}, "count": "{count}", "sums": {{"total": "{sum}"}}}}"#);
        GroupsPage {
            groups: vec![serde_json::from_str(&group).expect("a group")],
            continues,
            next_cursor: next_cursor.map(str::to_owned),
            lsn: reprise_api::U64(1),
        }
    }

    /// Asks for groups, with these pages as the answers. Returns the limits of the queries, too.
    fn pages_of_groups<const N: usize>(limit: u64, pages: [GroupsPage; N]) -> (GroupsPage, Vec<Option<u32>>) {
        let (mut pages, mut limits) = (pages.into_iter(), Vec::new());
        let query = RowsQuery {
            limit: Some(limit as u32),
            ..RowsQuery::default()
        };
        let all = group_pages(limit, query, |query| {
            limits.push(query.limit);
            Ok(pages.next().expect("a page that is asked for"))
        });
        (all.expect("groups"), limits)
    }

    #[test]
    fn a_group_that_goes_on_is_added_up() {
        let mut all = page("1", 2, "-0.75", true, None);
        join(&mut all, page("1", 3, "1.00", true, None));
        join(&mut all, page("2", 1, "5.00", false, None));
        assert_eq!(all.groups.len(), 2);
        assert_eq!(
            (all.groups[0].count.0, &all.groups[0].sums["total"]),
            (5, &Value::from("0.25"))
        );
    }

    #[test]
    fn groups_end_at_the_limit_if_the_next_page_begins_with_another_group() {
        let first = page("1", 2, "1.00", true, Some("a"));
        let (all, limits) = pages_of_groups(1, [first, page("2", 1, "1.00", true, Some("b"))]);
        assert_eq!((all.groups.len(), all.groups[0].count.0), (1, 2));
        assert_eq!((all.continues, all.next_cursor.as_deref()), (false, Some("a")));
        assert_eq!(limits, [Some(1), Some(1)]);
    }

    #[test]
    fn group_continues_behind_a_page_without_groups() {
        let empty = GroupsPage {
            groups: Vec::new(),
            ..page("1", 0, "0.00", false, Some("b"))
        };
        let first = page("1", 2, "1.00", true, Some("a"));
        let (all, limits) = pages_of_groups(1, [first, empty, page("1", 3, "1.00", false, Some("c"))]);
        assert_eq!((all.groups.len(), all.groups[0].count.0), (1, 5));
        assert_eq!((all.continues, all.next_cursor.as_deref()), (false, Some("c")));
        assert_eq!(limits, [Some(1); 3]);
    }

    #[test]
    fn text_pages_count_the_rows_that_they_have() {
        let pages = [
            ("a,b\r\n", Some("1")),
            ("a,b\r\n1,\"x\n\"\"\r\ny\"\r\n", Some("2")),
            ("a,b\r\n2,\r\n3,z\r\n", Some("3")),
        ];
        let (mut pages, mut limits, mut printed) = (pages.into_iter(), Vec::new(), String::new());
        let query = RowsQuery {
            limit: Some(3),
            ..RowsQuery::default()
        };
        let ask = |query: &RowsQuery| {
            limits.push(query.limit);
            let (text, cursor) = pages.next().expect("a page that is asked for");
            Ok(RowsText {
                text: text.to_owned(),
                next_cursor: cursor.map(str::to_owned),
            })
        };
        let print = |text: &str| {
            printed.push_str(text);
            Ok(())
        };
        let cursor = text_pages(3, query, true, ask, print).expect("rows");
        assert_eq!(cursor.as_deref(), Some("3"));
        assert_eq!(limits, [Some(3), Some(3), Some(2)]);
        assert_eq!(printed, "a,b\r\n1,\"x\n\"\"\r\ny\"\r\n2,\r\n3,z\r\n");
        // A quote in a line of JSON opens no field.
        assert_eq!(count_rows("{\"a\":\"\\\"\"}\n{\"a\":\"x\"}\n", false), 2);
    }
}
