//! Rows, keys, arguments and results.

use std::sync::LazyLock;

use reprise_abi::{ColumnSet, RowLayout, ScalarType, StructField, Type, key::KeyReader, value::ValueReader};

/// Every scalar type, nullable in turn.
pub(crate) const SCALARS: [ScalarType; 15] = [
    ScalarType::Bool,
    ScalarType::I8,
    ScalarType::I16,
    ScalarType::I32,
    ScalarType::I64,
    ScalarType::U8,
    ScalarType::U16,
    ScalarType::U32,
    ScalarType::U64,
    ScalarType::F64,
    ScalarType::Decimal { scale: 2 },
    ScalarType::Text,
    ScalarType::Bytes,
    ScalarType::Timestamp,
    ScalarType::Uuid,
];

pub(crate) static LAYOUTS: LazyLock<[RowLayout; 3]> = LazyLock::new(|| {
    let all = SCALARS.iter().enumerate().map(|(at, ty)| (*ty, at % 3 == 0));
    let texts = [
        (ScalarType::Text, false),
        (ScalarType::I64, true),
        (ScalarType::Bytes, true),
    ];
    let fixed = [
        (ScalarType::I64, false),
        (ScalarType::F64, false),
        (ScalarType::Bool, true),
    ];
    [
        RowLayout::from_types(all),
        RowLayout::from_types(texts.into_iter()),
        RowLayout::from_types(fixed.into_iter()),
    ]
});

/// The first byte chooses the layout.
pub fn row(bytes: &[u8]) {
    let Some((which, row)) = bytes.split_first() else {
        return;
    };
    let layout = &LAYOUTS[*which as usize % LAYOUTS.len()];
    if layout.validate(row).is_err() {
        return;
    }
    let columns = [SCALARS.len(), 3, 3][*which as usize % LAYOUTS.len()] as u16;
    let fields: Vec<_> = (0..columns).map(|column| layout.field(row, column)).collect();
    assert_eq!(layout.build(&fields), row, "one form for one row");
    let mut key = Vec::new();
    layout.push_key(row, &(0..columns).collect::<Vec<_>>(), &mut key);
    let every = ColumnSet((1 << columns) - 1);
    let mut values = vec![0; layout.columns_bytes(every, row)];
    layout.read_columns(every, row, &mut values);
    assert_eq!(layout.columns_len(every, &values), Ok(values.len()));
    let mut patched = Vec::new();
    layout
        .patch_row(every, row, &values, &mut patched)
        .expect("its own values");
    assert_eq!(patched, row);
}

/// Columns patched into a row: the first two bytes choose layout and columns, the third splits row and values.
pub fn columns(bytes: &[u8]) {
    let [which, set, split, rest @ ..] = bytes else {
        return;
    };
    let layout = &LAYOUTS[*which as usize % LAYOUTS.len()];
    let set = ColumnSet(*set as u64);
    let (row, values) = rest.split_at((*split as usize).min(rest.len()));
    if !set.fits(layout) || layout.validate(row).is_err() {
        return;
    }
    let mut patched = Vec::new();
    if layout.patch_row(set, row, values, &mut patched).is_ok() {
        let _ = layout.validate(&patched);
    }
}

/// Encodes keys. The first byte chooses the beginnings of the columns, and whether they may be null.
pub fn key(bytes: &[u8]) {
    let Some((which, rest)) = bytes.split_first() else {
        return;
    };
    let mut reader = KeyReader::new(rest);
    for at in 0..SCALARS.len() {
        let ty = SCALARS[(at + *which as usize) % SCALARS.len()];
        let Some(value) = reader.next_column(ty, which & 0x80 != 0) else {
            return;
        };
        if let Some(value) = value.filter(|_| !ty.is_variable()) {
            assert_eq!(value.len(), ty.slot_bytes());
        }
        if reader.is_at_end() {
            return;
        }
    }
}

pub(crate) static TYPES: LazyLock<Vec<Type>> = LazyLock::new(|| {
    let scalar = Type::Scalar;
    let field = |name: &str, ty: Type| StructField { name: name.into(), ty };
    let pair = Type::Struct(
        vec![
            field("left", scalar(ScalarType::Text)),
            field("right", Type::Option(Box::new(scalar(ScalarType::I64)))),
        ]
        .into(),
    );
    let mut types: Vec<_> = SCALARS.into_iter().map(scalar).collect();
    types.push(Type::List(Box::new(pair.clone())));
    types.push(Type::Option(Box::new(Type::List(Box::new(scalar(ScalarType::F64))))));
    types.push(Type::Enum(vec!["one".into(), "two".into(), "three".into()]));
    types.push(pair);
    types
});

/// The first byte chooses the type.
pub fn value(bytes: &[u8]) {
    let Some((which, rest)) = bytes.split_first() else {
        return;
    };
    let ty = &TYPES[*which as usize % TYPES.len()];
    let mut reader = ValueReader::new(rest);
    let skipped = reader.skip(ty);
    assert!(reader.offset() <= rest.len());
    if skipped.is_ok() {
        let _ = reader.finish();
    }
}
