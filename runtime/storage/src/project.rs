//! Converts rows between two versions of a table. A module that was compiled before columns were added sees the columns that it knows.

use reprise_abi::{
    ColumnSchema, Field, RowError, RowLayout, ScalarType,
    value::{ValueError, ValueReader},
};

/// The error that a column has no value for rows that lack it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum DefaultError {
    #[error("column {0} is not nullable and has no default")]
    Missing(String),
    #[error("the default of column {0} is not a value of its type")]
    Malformed(String),
}

/// Converts between rows of a table's first columns and rows of all of them.
#[derive(Clone, Debug)]
pub struct RowProjection {
    narrow: RowLayout,
    wide: RowLayout,
    /// The columns that only the wide row has.
    added: Vec<ColumnSchema>,
}

impl RowProjection {
    /// Makes the projection. `wide` begins with the `narrow_count` columns of the narrow rows.
    pub fn new(wide: &[ColumnSchema], narrow_count: usize) -> Result<Self, DefaultError> {
        let (narrow, added) = wide.split_at(narrow_count);
        for column in added {
            default_field(column)?;
        }
        Ok(Self {
            narrow: RowLayout::new(narrow),
            wide: RowLayout::new(wide),
            added: added.to_vec(),
        })
    }

    /// Returns the narrow row of a stored one.
    pub fn narrow(&self, stored: &[u8]) -> Vec<u8> {
        let fields: Vec<_> = (0..self.narrow.columns.len() as u16)
            .map(|column| self.wide.field(stored, column))
            .collect();
        self.narrow.build(&fields)
    }

    /// Returns the stored form of a new narrow row: added columns get their default.
    pub fn widen_insert(&self, row: &[u8]) -> Result<Vec<u8>, RowError> {
        self.narrow.validate(row)?;
        let mut fields = self.narrow_fields(row);
        fields.extend(
            self.added
                .iter()
                .map(|column| default_field(column).expect("defaults were checked when the projection was made")),
        );
        Ok(self.wide.build(&fields))
    }

    /// Returns the stored form of a changed narrow row: added columns keep the values of the stored row.
    pub fn widen_update(&self, row: &[u8], stored: &[u8]) -> Result<Vec<u8>, RowError> {
        self.narrow.validate(row)?;
        let mut fields = self.narrow_fields(row);
        let added = self.narrow.columns.len()..self.wide.columns.len();
        fields.extend(added.map(|column| self.wide.field(stored, column as u16)));
        Ok(self.wide.build(&fields))
    }

    fn narrow_fields<'a>(&self, row: &'a [u8]) -> Vec<Field<'a>> {
        (0..self.narrow.columns.len() as u16)
            .map(|column| self.narrow.field(row, column))
            .collect()
    }
}

/// Returns the value that rows written before the column existed have in it.
pub(crate) fn default_field(column: &ColumnSchema) -> Result<Field<'_>, DefaultError> {
    match &column.default {
        Some(bytes) => decode(column.ty, bytes).map_err(|_| DefaultError::Malformed(column.name.clone())),
        None if column.nullable => Ok(Field::Null),
        None => Err(DefaultError::Missing(column.name.clone())),
    }
}

/// Checks that a default, if there is one, is a value of its column.
pub(crate) fn check_default(column: &ColumnSchema) -> Result<(), DefaultError> {
    match column.default {
        Some(_) => default_field(column).map(drop),
        None => Ok(()),
    }
}

fn decode(ty: ScalarType, bytes: &[u8]) -> Result<Field<'_>, ValueError> {
    let mut reader = ValueReader::new(bytes);
    macro_rules! int {
        ($type:ty) => {
            <$type>::from_le_bytes(reader.array()?).into()
        };
    }
    let field = match ty {
        ScalarType::Bool => Field::Bool(reader.flag()?),
        ScalarType::I8 => Field::Int(int!(i8)),
        ScalarType::I16 => Field::Int(int!(i16)),
        ScalarType::I32 => Field::Int(int!(i32)),
        ScalarType::I64 | ScalarType::Timestamp => Field::Int(int!(i64)),
        ScalarType::U8 => Field::Uint(int!(u8)),
        ScalarType::U16 => Field::Uint(int!(u16)),
        ScalarType::U32 => Field::Uint(int!(u32)),
        ScalarType::U64 => Field::Uint(int!(u64)),
        ScalarType::F64 => Field::F64(int!(f64)),
        ScalarType::Decimal { .. } => Field::Decimal(int!(i128)),
        ScalarType::Uuid => Field::Uuid(reader.array()?),
        ScalarType::Text => Field::Text(reader.text()?),
        ScalarType::Bytes => Field::Bytes(reader.bytes()?),
    };
    reader.finish()?;
    Ok(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, ty: ScalarType, nullable: bool, default: Option<&[u8]>) -> ColumnSchema {
        ColumnSchema {
            nullable,
            default: default.map(Into::into),
            ..ColumnSchema::new(name, ty)
        }
    }

    #[test]
    fn rows_go_wide_and_back() {
        let columns = [
            column("id", ScalarType::I32, false, None),
            column("name", ScalarType::Text, true, None),
            column("city", ScalarType::Text, false, Some(b"\x02ab")),
            column("age", ScalarType::I16, true, None),
            column("size", ScalarType::U16, false, Some(b"\x05\x00")),
        ];
        let projection = RowProjection::new(&columns, 2).expect("defaults are there");
        let narrow = projection.narrow.build(&[Field::Int(7), Field::Text("x")]);
        let wide = projection.widen_insert(&narrow).expect("row is valid");
        let layout = RowLayout::new(&columns);
        assert_eq!(layout.validate(&wide), Ok(()));
        let fields = |row: &[u8]| {
            (0..5)
                .map(|c| format!("{:?}", layout.field(row, c)))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            fields(&wide),
            ["Int(7)", "Text(\"x\")", "Text(\"ab\")", "Null", "Uint(5)"]
        );
        assert_eq!(projection.narrow(&wide), narrow);

        let stored = layout.build(&[
            Field::Int(7),
            Field::Null,
            Field::Text("q"),
            Field::Int(3),
            Field::Uint(1),
        ]);
        let updated = projection.widen_update(&narrow, &stored).expect("row is valid");
        assert_eq!(
            fields(&updated),
            ["Int(7)", "Text(\"x\")", "Text(\"q\")", "Int(3)", "Uint(1)"]
        );
        assert!(projection.widen_insert(&narrow[1..]).is_err());
    }

    #[test]
    fn defaults_are_checked() {
        let check = |column: ColumnSchema| RowProjection::new(&[column], 0).map(drop);
        let name = || "c".to_owned();
        assert_eq!(
            check(column("c", ScalarType::I32, false, None)),
            Err(DefaultError::Missing(name()))
        );
        for (ty, bytes) in [
            (ScalarType::I32, &b"\0\0\0"[..]),
            (ScalarType::I32, b"\0\0\0\0\0"),
            (ScalarType::Text, b"\x02a"),
            (ScalarType::Text, b"\x01\xff"),
            (ScalarType::Bool, b"\x02"),
        ] {
            let found = check(column("c", ty, true, Some(bytes)));
            assert_eq!(found, Err(DefaultError::Malformed(name())));
        }
    }
}
