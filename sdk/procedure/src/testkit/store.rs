//! The test kit's tables on one partition: rows by number, an ordered map per index, an undo list.

use std::{collections::BTreeMap, ops::Bound};

use reprise_abi::{
    ModuleSchema, OpError, Partitioning, RowLayout, ScanFlags, ScanRequest, TablePlacement, TableSchema,
    key::KEY_BYTES_MAX, schema::is_valid_name,
};

pub fn guest(message: impl Into<String>) -> OpError {
    OpError::Guest(message.into())
}

/// Refuses a module that a server would refuse to deploy.
pub fn check(schema: &ModuleSchema) -> Result<(), String> {
    for table in &schema.tables {
        check_name("table", &table.name)?;
        if let Some(column) = table.columns.iter().find(|column| !is_valid_name(&column.name)) {
            return Err(format!("column name {:?} is not valid", column.name));
        }
        if schema.tables.iter().filter(|other| other.name == table.name).count() > 1 {
            return Err(format!("two tables are named {}", table.name));
        }
    }
    schema.retiring.iter().try_for_each(check_retiring)?;
    for procedure in &schema.procedures {
        check_name("procedure", &procedure.name)?;
        if let Partitioning::By(params) = &procedure.partitioning {
            for param in params {
                let param = &procedure.params[*param as usize];
                if !param.ty.can_name_partitions() {
                    return Err(format!(
                        "{} can't be partitioned by {}: neither a scalar nor a list of scalars",
                        procedure.name, param.name
                    ));
                }
            }
        }
    }
    Ok(())
}

fn check_retiring(table: &TableSchema) -> Result<(), String> {
    let name = &table.name;
    if table.shared || table.was.is_some() || !table.indexes.is_empty() {
        return Err(format!(
            "the retiring table {name} is under its stored name, without indexes"
        ));
    }
    let names_row = |number: u16| table.primary_key.contains(&number) || table.placement == TablePlacement::By(number);
    let mut others = (0..).zip(&table.columns).filter(|(number, _)| !names_row(*number));
    match others.find(|(_, column)| !column.nullable && column.default.is_none()) {
        None => Ok(()),
        Some((_, column)) => Err(format!(
            "column {} of the retiring table {name} may be gone: make it nullable",
            column.name
        )),
    }
}

fn check_name(what: &str, name: &str) -> Result<(), String> {
    if is_valid_name(name) {
        Ok(())
    } else {
        Err(format!("{what} name {name:?} is not valid"))
    }
}

/// Position of a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowPosition {
    pub partition: usize,
    pub table: usize,
    pub number: usize,
}

impl RowPosition {
    pub fn of(partition: usize, table: usize, number: usize) -> Self {
        Self {
            partition,
            table,
            number,
        }
    }
}

/// Bounds of a scan in an index.
#[derive(Clone, Debug)]
pub struct KeyRange {
    pub lower: Bound<Vec<u8>>,
    pub upper: Bound<Vec<u8>>,
    pub reverse: bool,
}

impl KeyRange {
    /// Bounds compare with the first bytes of each key, so an inclusive upper bound reaches to the next longer prefix.
    pub fn of(request: &ScanRequest<'_>) -> Result<Self, OpError> {
        if !request.flags.is_known() {
            return Err(guest("unknown scan flags"));
        }
        let lower = match request.flags.has(ScanFlags::LOWER_EXCLUSIVE) {
            false => Bound::Included(request.lower.to_vec()),
            // Behind every key that begins so; nothing is behind a prefix of all ones, or behind the empty one.
            true => successor(request.lower).map_or(Bound::Unbounded, Bound::Included),
        };
        let nothing_above = request.flags.has(ScanFlags::LOWER_EXCLUSIVE) && lower == Bound::Unbounded;
        let upper = match request.flags.has(ScanFlags::UPPER_EXCLUSIVE) {
            _ if nothing_above => Bound::Excluded(Vec::new()),
            true => Bound::Excluded(request.upper.to_vec()),
            false => successor(request.upper).map_or(Bound::Unbounded, Bound::Excluded),
        };
        Ok(Self {
            lower,
            upper,
            reverse: request.flags.has(ScanFlags::REVERSE),
        })
    }

    fn is_empty(&self) -> bool {
        match (&self.lower, &self.upper) {
            (Bound::Included(lower), Bound::Excluded(upper)) => lower >= upper,
            (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
            (_, Bound::Excluded(upper)) => upper.is_empty(),
            _ => false,
        }
    }
}

/// The least key that is greater than every key beginning with `prefix`.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut next = prefix[..=last].to_vec();
    next[last] += 1;
    Some(next)
}

/// Numbers of rows, in the order of an index.
pub type IndexEntries<'a> = Box<dyn Iterator<Item = usize> + 'a>;

struct TestIndex {
    columns: Vec<u16>,
    unique: bool,
    scannable: bool,
    entries: BTreeMap<Vec<u8>, usize>,
}

pub struct TestTable {
    pub schema: TableSchema,
    pub layout: RowLayout,
    rows: Vec<Option<Vec<u8>>>,
    indexes: Vec<TestIndex>,
}

/// A write as it is taken back: the row as it was before.
struct TestUndo {
    table: usize,
    row: usize,
    before: Option<Vec<u8>>,
}

pub struct TestStore {
    tables: Vec<TestTable>,
    undo: Vec<TestUndo>,
}

impl TestTable {
    fn new(schema: &TableSchema) -> Self {
        let primary = TestIndex {
            columns: schema.primary_key.clone(),
            unique: !schema.primary_key.is_empty(),
            scannable: schema.primary_kind == reprise_abi::IndexKind::Ordered,
            entries: BTreeMap::new(),
        };
        let secondary = schema.indexes.iter().map(|index| TestIndex {
            columns: index.columns.clone(),
            unique: index.unique,
            scannable: true,
            entries: BTreeMap::new(),
        });
        Self {
            layout: RowLayout::of_table(schema),
            indexes: [primary].into_iter().chain(secondary).collect(),
            rows: Vec::new(),
            schema: schema.clone(),
        }
    }

    /// Returns the entry of a row in an index. It is the row's key. If that is not unique, the primary key and the row's number follow.
    fn entry(&self, index: &TestIndex, row: &[u8], number: usize) -> Vec<u8> {
        let mut key = Vec::new();
        self.layout.push_key(row, &index.columns, &mut key);
        if !index.unique {
            self.layout.push_key(row, &self.schema.primary_key, &mut key);
            key.extend_from_slice(&(number as u64).to_be_bytes());
        }
        key
    }

    /// Checks the keys of a row, index by index like a server. Err: the first index in which the key is too long, or another row has it.
    fn check_keys(&self, row: &[u8], number: usize) -> Result<(), OpError> {
        for (at, index) in self.indexes.iter().enumerate() {
            let mut key = Vec::new();
            self.layout.push_key(row, &index.columns, &mut key);
            if key.len() > KEY_BYTES_MAX {
                return Err(self.key_too_long(at));
            }
            let holder = index.entries.get(&key).filter(|_| index.unique);
            if holder.is_some_and(|holder| *holder != number) {
                return Err(OpError::DuplicateKey { index: at as u16 });
            }
        }
        Ok(())
    }

    fn key_too_long(&self, index: usize) -> OpError {
        let name = match index.checked_sub(1) {
            None => "the primary key".to_owned(),
            Some(at) => format!("the key in index {}", self.schema.indexes[at].name),
        };
        OpError::KeyTooLong {
            key: format!("{name} of {}", self.schema.name),
        }
    }

    fn replace(&mut self, number: usize, after: Option<Vec<u8>>) -> Option<Vec<u8>> {
        let mut indexes = std::mem::take(&mut self.indexes);
        let before = self.rows[number].take();
        for index in &mut indexes {
            if let Some(row) = &before {
                let entry = self.entry(index, row, number);
                index.entries.remove(&entry);
            }
            if let Some(row) = &after {
                let entry = self.entry(index, row, number);
                index.entries.insert(entry, number);
            }
        }
        self.indexes = indexes;
        self.rows[number] = after;
        before
    }

    /// The columns that an index is ordered by, those of the primary key at its end.
    pub fn order(&self, index: u16) -> Vec<u16> {
        let columns = match index {
            0 => &[][..],
            secondary => &self.indexes[secondary as usize].columns,
        };
        [columns, &self.schema.primary_key].concat()
    }

    /// The columns of an index.
    pub fn columns(&self, index: u16) -> Option<&[u16]> {
        Some(&self.indexes.get(index as usize)?.columns)
    }

    pub fn is_indexed(&self, column: u16) -> bool {
        self.indexes.iter().any(|index| index.columns.contains(&column))
    }
}

impl TestStore {
    pub fn new<'t>(tables: impl Iterator<Item = &'t TableSchema>) -> Self {
        Self {
            tables: tables.map(TestTable::new).collect(),
            undo: Vec::new(),
        }
    }

    pub fn table(&self, table: usize) -> Result<&TestTable, OpError> {
        self.tables
            .get(table)
            .ok_or_else(|| guest(format!("table {table} is not declared")))
    }

    fn index(&self, table: usize, index: u16) -> Result<&TestIndex, OpError> {
        let found = self.table(table)?.indexes.get(index as usize);
        found.ok_or_else(|| guest(format!("index {index} is not declared")))
    }

    /// Takes all rows out of a table, without undo.
    pub fn clear(&mut self, table: usize) {
        self.tables[table] = TestTable::new(&self.tables[table].schema);
    }

    pub fn rows_count(&self, table: usize) -> usize {
        self.tables[table].rows.iter().flatten().count()
    }

    pub fn sorted_rows(&self, table: usize) -> Vec<&[u8]> {
        let mut rows: Vec<_> = self.tables[table].rows.iter().flatten().map(Vec::as_slice).collect();
        rows.sort_unstable();
        rows
    }

    pub fn row(&self, table: usize, number: usize) -> Result<&[u8], OpError> {
        let row = self.table(table)?.rows.get(number).and_then(Option::as_deref);
        row.ok_or_else(|| guest("the row of this handle is deleted"))
    }

    /// The first row with this whole key.
    pub fn find(&self, table: usize, index: u16, key: &[u8]) -> Result<Option<usize>, OpError> {
        let index = self.index(table, index)?;
        if index.unique {
            return Ok(index.entries.get(key).copied());
        }
        let first = index
            .entries
            .range::<[u8], _>((Bound::Included(key), Bound::Unbounded))
            .next();
        Ok(first
            .filter(|(entry, _)| entry.starts_with(key))
            .map(|(_, number)| *number))
    }

    /// The entries of a range, in its order.
    pub fn entries<'a>(&'a self, table: usize, index: u16, range: &'a KeyRange) -> Result<IndexEntries<'a>, OpError> {
        let index = self.index(table, index)?;
        if !index.scannable {
            return Err(guest("a hash index has no order: it can't be scanned"));
        }
        if range.is_empty() {
            return Ok(Box::new(std::iter::empty()));
        }
        let bounds = (
            range.lower.as_ref().map(Vec::as_slice),
            range.upper.as_ref().map(Vec::as_slice),
        );
        let entries = index.entries.range::<[u8], _>(bounds);
        let entries = entries.map(|(_, number)| *number);
        Ok(if range.reverse {
            Box::new(entries.rev())
        } else {
            Box::new(entries)
        })
    }

    /// Stores a new row and returns its number.
    pub fn insert(&mut self, table: usize, row: &[u8]) -> Result<usize, OpError> {
        let number = self.table(table)?.rows.len();
        self.tables[table].rows.push(None);
        self.write(table, number, Some(row))?;
        Ok(number)
    }

    /// Replaces a row (`None` deletes it), unless its key is taken.
    pub fn write(&mut self, table: usize, number: usize, after: Option<&[u8]>) -> Result<(), OpError> {
        let target = &mut self.tables[table];
        if let Some(row) = after {
            target.layout.validate(row).map_err(|error| guest(error.to_string()))?;
            target.check_keys(row, number)?;
        }
        let before = target.replace(number, after.map(<[u8]>::to_vec));
        self.undo.push(TestUndo {
            table,
            row: number,
            before,
        });
        Ok(())
    }

    pub fn undo_len(&self) -> usize {
        self.undo.len()
    }

    /// Table and number of each row that was written after the first `len` writes.
    pub fn written_since(&self, len: usize) -> impl Iterator<Item = (usize, usize)> {
        let undo = self.undo.iter().skip(len);
        undo.map(|undo| (undo.table, undo.row))
    }

    /// Takes back every write after the first `len`.
    pub fn undo_to(&mut self, len: usize) {
        while self.undo.len() > len {
            if let Some(undo) = self.undo.pop() {
                self.tables[undo.table].replace(undo.row, undo.before);
            }
        }
    }

    pub fn forget_undo(&mut self) {
        self.undo.clear();
    }
}

#[cfg(test)]
mod tests {
    use reprise_abi::{ColumnSchema, Field, IndexSchema, ScalarType};

    use super::*;

    #[test]
    fn first_index_that_refuses_a_row_says_why() {
        let columns = vec![
            ColumnSchema::new("id", ScalarType::I64),
            ColumnSchema::new("note", ScalarType::Text),
            ColumnSchema::new("code", ScalarType::I64),
        ];
        let schema = TableSchema {
            indexes: vec![
                IndexSchema::new("by_note", &[1], false),
                IndexSchema::new("by_code", &[2], true),
            ],
            ..TableSchema::new("notes", columns, &[0])
        };
        let (layout, long) = (RowLayout::of_table(&schema), "x".repeat(KEY_BYTES_MAX + 1));
        let row = |id, note, code| layout.build(&[Field::Int(id), Field::Text(note), Field::Int(code)]);
        let mut store = TestStore::new([&schema].into_iter());
        assert_eq!(store.insert(0, &row(1, "a", 1)), Ok(0));
        let too_long = OpError::KeyTooLong {
            key: "the key in index by_note of notes".to_owned(),
        };
        for (note, code, expected) in [
            (&*long, 1, OpError::DuplicateKey { index: 0 }),
            ("a", 2, OpError::DuplicateKey { index: 0 }),
        ] {
            assert_eq!(store.insert(0, &row(1, note, code)), Err(expected));
        }
        assert_eq!(store.insert(0, &row(2, &long, 1)), Err(too_long));
        let taken = OpError::DuplicateKey { index: 2 };
        assert_eq!(store.insert(0, &row(2, "a", 1)), Err(taken));
        assert_eq!(store.write(0, 0, Some(&row(1, "b", 1))), Ok(()), "its own keys");
    }
}
