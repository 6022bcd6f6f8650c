//! Rows that a call will read, by its procedure's declaration. They are found from the encoded arguments alone, so that they can be
//! prefetched while earlier calls still run. This is a hint: only time depends on it.

use reprise_abi::{ModuleSchema, PrefetchKey, PrefetchPart, ProcedureSchema, ScalarType, Type};
use reprise_storage::{PrefetchState, Store, TableId};

use crate::module::TableBinding;

/// A declared key, ready to be filled from arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefetchRow {
    table: TableId,
    key_bytes: usize,
    /// The key's constant parts, its first byte the most significant one.
    constant: u128,
    parts: Vec<KeyMove>,
    args_bytes_min: usize,
}

/// An integer that goes from the arguments (little endian) to the key (big endian, sign flipped).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeyMove {
    from: usize,
    /// Bits by which its value moves up to the end of a word, whatever follows it there.
    left: u32,
    /// Its sign bit in that word.
    flip: u64,
    /// Number of key bits before it.
    right: u32,
}

/// Returns the eight bytes at `at`, or as many as there are.
#[inline(always)]
fn word_at(args: &[u8], at: usize) -> u64 {
    match args.get(at..).and_then(<[u8]>::first_chunk) {
        Some(word) => u64::from_le_bytes(*word),
        None => last_word_at(args, at),
    }
}

#[inline(never)]
fn last_word_at(args: &[u8], at: usize) -> u64 {
    let rest = args.get(at..).unwrap_or(&[]);
    rest.iter().rev().fold(0, |word, byte| word << 8 | *byte as u64)
}

impl KeyMove {
    /// Returns its bits of the key. They are made in registers, because a key that is written to memory in pieces is slow to read as a
    /// whole. The steps are the same for each width, because a processor can't predict the width if calls differ.
    #[inline(always)]
    fn bits(&self, args: &[u8]) -> u128 {
        let word = word_at(args, self.from) << self.left ^ self.flip;
        (word as u128) << u64::BITS >> self.right
    }
}

impl PrefetchRow {
    fn new(
        prefetch: &PrefetchKey,
        procedure: &ProcedureSchema,
        schema: &ModuleSchema,
        tables: &[TableBinding],
    ) -> Option<Self> {
        let declared = schema.tables.get(prefetch.table as usize)?;
        let mut row = Self {
            table: tables.get(prefetch.table as usize)?.table,
            key_bytes: 0,
            constant: 0,
            parts: Vec::new(),
            args_bytes_min: 0,
        };
        for (part, column) in prefetch.key.iter().zip(&declared.primary_key) {
            row.add(*part, declared.columns.get(*column as usize)?.ty, procedure)?;
        }
        Some(row)
    }

    /// Adds a part that goes to a column of the type.
    fn add(&mut self, part: PrefetchPart, ty: ScalarType, procedure: &ProcedureSchema) -> Option<()> {
        let width = ty.slot_bytes();
        if ty.is_variable() || width > size_of::<u64>() {
            return None;
        }
        let (left, right) = (u64::BITS - 8 * width as u32, 8 * self.key_bytes as u32);
        self.key_bytes += width;
        if self.key_bytes > size_of::<u128>() {
            return None;
        }
        let flip = if is_signed(ty) { 1 << (u64::BITS - 1) } else { 0 };
        match part {
            PrefetchPart::Int(value) => {
                let word = (value as u64) << left ^ flip;
                self.constant |= (word as u128) << u64::BITS >> right;
            }
            PrefetchPart::Param(position) => {
                let from = offset_of(procedure, position)?;
                if procedure.params.get(position as usize)?.ty != Type::Scalar(ty) {
                    return None;
                }
                self.args_bytes_min = self.args_bytes_min.max(from + width);
                self.parts.push(KeyMove {
                    from,
                    left,
                    flip,
                    right,
                });
            }
        }
        Some(())
    }

    /// Returns the key of these arguments, if they have it.
    #[inline(always)]
    fn key(&self, args: &[u8]) -> Option<u128> {
        if args.len() < self.args_bytes_min {
            return None;
        }
        let parts = self.parts.iter();
        Some(parts.fold(self.constant, |key, part| key | part.bits(args)))
    }

    /// Does the first step: prefetches the memory that a look-up of the row reads first, if these arguments have its key. The result of
    /// each step is for the next one.
    #[inline(always)]
    pub fn touch(&self, store: &Store, args: &[u8]) -> PrefetchState {
        match self.key(args) {
            Some(key) => store.touch(self.table, self.key_bytes, key),
            None => PrefetchState::Nothing,
        }
    }

    /// Does the second step: prefetches the entry with the probable place of the row. Each step reads the memory that the step before it
    /// brought. So other work must be done between two of them.
    #[inline(always)]
    pub fn touch_place<'a>(
        &self,
        store: &Store,
        found: PrefetchState,
        args: impl FnOnce() -> Option<&'a [u8]>,
    ) -> PrefetchState {
        store.touch_place(self.table, found, || self.key(args()?))
    }

    /// Does the last step: prefetches the row.
    #[inline(always)]
    pub fn touch_row(&self, store: &Store, found: PrefetchState) {
        store.touch_row(self.table, found);
    }
}

/// Returns the rows of each procedure. It leaves out rows that can't be found from arguments alone.
pub(crate) fn rows_of(schema: &ModuleSchema, tables: &[TableBinding]) -> Vec<Vec<PrefetchRow>> {
    let of_procedure = |procedure: &ProcedureSchema| {
        let rows = procedure.prefetch.iter();
        rows.filter_map(|prefetch| PrefetchRow::new(prefetch, procedure, schema, tables))
            .collect()
    };
    schema.procedures.iter().map(of_procedure).collect()
}

fn is_signed(ty: ScalarType) -> bool {
    !matches!(ty, ScalarType::U8 | ScalarType::U16 | ScalarType::U32 | ScalarType::U64)
}

/// Returns the beginning of a parameter's value in the arguments, if all before it have a fixed length.
fn offset_of(procedure: &ProcedureSchema, position: u16) -> Option<usize> {
    let before = procedure.params.get(..position as usize)?;
    before.iter().try_fold(0, |offset, param| match &param.ty {
        Type::Scalar(scalar) if !scalar.is_variable() => Some(offset + scalar.slot_bytes()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use reprise_abi::{ColumnSchema, IndexKind, Parameter, Partitioning, RowLayout, TablePlacement, TableSchema};

    use super::*;

    const INTS: [ScalarType; 4] = [ScalarType::I64, ScalarType::U16, ScalarType::I32, ScalarType::I8];

    /// A module of one table with this primary key, and a procedure with these parameters that reads one row.
    fn module(columns: &[ScalarType], params: &[Type], key: Vec<PrefetchPart>) -> (ModuleSchema, Vec<TableBinding>) {
        let table = TableSchema {
            primary_kind: IndexKind::Hash,
            ..TableSchema::new(
                "t",
                columns
                    .iter()
                    .enumerate()
                    .map(|(at, ty)| ColumnSchema::new(format!("c{at}"), *ty))
                    .collect(),
                &(0..columns.len() as u16).collect::<Vec<_>>(),
            )
        };
        let binding = TableBinding {
            is_own: true,
            table: TableId(0),
            placement: TablePlacement::Local,
            indexes: vec![0],
            places: vec![None],
            keys: Vec::new(),
            layout: RowLayout::of_table(&table),
            projection: None,
        };
        let param = |(at, ty): (usize, &Type)| Parameter {
            name: format!("p{at}"),
            ty: ty.clone(),
        };
        let procedure = ProcedureSchema {
            docs: String::new(),
            name: "p".into(),
            params: params.iter().enumerate().map(param).collect(),
            returns: Type::Unit,
            read_only: false,
            partitioning: Partitioning::All,
            log: reprise_abi::LogDeclaration::Server,
            time_max_ms: None,
            fuel_max: None,
            aborts: Vec::new(),
            prefetch: vec![PrefetchKey { table: 0, key }],
        };
        let schema = ModuleSchema {
            abi: reprise_abi::ABI_VERSION,
            tables: vec![table],
            procedures: vec![procedure],
            ..ModuleSchema::default()
        };
        (schema, vec![binding])
    }

    fn key_of(row: &PrefetchRow, args: &[u8]) -> Option<Vec<u8>> {
        let key = row.key(args)?;
        Some(key.to_be_bytes()[..row.key_bytes].to_vec())
    }

    #[test]
    fn prefetched_key_equals_the_key_of_the_look_up() {
        use reprise_abi::key::{push_i8, push_i32, push_i64, push_u16};
        let params = INTS.map(Type::Scalar);
        for values in [
            [7, 9, -3, 5],
            [-1, 0, i32::MIN as i64, -128],
            [i64::MAX, 65_535, 1, 127],
        ] {
            let [a, b, c, d] = values;
            let mut args = a.to_le_bytes().to_vec();
            args.extend((b as u16).to_le_bytes());
            args.extend((c as i32).to_le_bytes());
            args.extend((d as i8).to_le_bytes());
            let mut expected = Vec::new();
            push_i64(&mut expected, a);
            push_u16(&mut expected, b as u16);
            push_i32(&mut expected, c as i32);
            push_i8(&mut expected, d as i8);
            let named = (0..4).map(PrefetchPart::Param).collect();
            let given = values.map(PrefetchPart::Int).to_vec();
            for key in [named, given] {
                let (schema, tables) = module(&INTS, &params, key);
                let rows = rows_of(&schema, &tables);
                assert_eq!(key_of(&rows[0][0], &args), Some(expected.clone()));
            }
        }
    }

    #[test]
    fn keys_that_arguments_do_not_give_are_left_out() {
        let text = [Type::Scalar(ScalarType::Text), Type::Scalar(ScalarType::I64)];
        let (schema, tables) = module(&[ScalarType::I64], &text, vec![PrefetchPart::Param(1)]);
        assert_eq!(rows_of(&schema, &tables), [vec![]], "behind a text");
        let other = [Type::Scalar(ScalarType::U64)];
        let (schema, tables) = module(&[ScalarType::I64], &other, vec![PrefetchPart::Param(0)]);
        assert_eq!(rows_of(&schema, &tables), [vec![]], "another type");
        let wide = [ScalarType::I64; 3];
        let (schema, tables) = module(&wide, &[], vec![PrefetchPart::Int(1); 3]);
        assert_eq!(rows_of(&schema, &tables), [vec![]], "a long key");
        for ty in [ScalarType::Uuid, ScalarType::Text] {
            let (schema, tables) = module(&[ty], &[], vec![PrefetchPart::Int(1)]);
            assert_eq!(rows_of(&schema, &tables), [vec![]], "no integer");
        }
    }

    #[test]
    fn arguments_of_any_length_are_taken() {
        let params = [Type::Scalar(ScalarType::I64)];
        let (schema, tables) = module(&[ScalarType::I64], &params, vec![PrefetchPart::Param(0)]);
        let rows = rows_of(&schema, &tables);
        let mut store = Store::new();
        store.create_table(schema.tables[0].clone()).expect("a table");
        for len in 0..10 {
            let found = rows[0][0].touch(&store, &vec![0xff; len]);
            assert_eq!(found != PrefetchState::Nothing, len >= 8);
            let found = rows[0][0].touch_place(&store, found, || None);
            assert!(!matches!(found, PrefetchState::Row(_)), "the table is empty");
            rows[0][0].touch_row(&store, found);
        }
    }
}
