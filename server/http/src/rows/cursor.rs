//! The end of a page, in the form that clients get.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use reprise_abi::TableSchema;
use sha2::{Digest, Sha256};

/// The walk that a cursor belongs to: this index of this table, whose keys have these columns. A deployment may drop the index, or make
/// another of its name, and a place in it would then be wrong.
pub type CursorScope = [u8; 8];

pub fn walk_of(id: u16, table: &TableSchema, index: u16) -> CursorScope {
    let own = index.checked_sub(1).and_then(|at| table.indexes.get(at as usize));
    let keys = own.map_or(&[][..], |own| &own.columns).iter().chain(&table.primary_key);
    let columns: Vec<_> = keys
        .map(|at| &table.columns[*at as usize])
        .map(|column| (&column.name, column.ty, column.nullable))
        .collect();
    let kind = own.map(|own| (&own.name, own.unique));
    let walk = format!(
        "{id} {index} {} {kind:?} {:?} {columns:?}",
        table.full_name(),
        table.primary_kind
    );
    let digest = Sha256::digest(walk.as_bytes());
    *digest.first_chunk().expect("a digest is longer")
}

pub fn pack_cursor(walk: CursorScope, cursor: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode([&walk[..], cursor].concat())
}

pub fn unpack_cursor(walk: CursorScope, text: &str) -> Option<Vec<u8>> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (own, cursor) = bytes.split_first_chunk::<8>()?;
    (*own == walk).then(|| cursor.to_vec())
}

#[cfg(test)]
mod tests {
    use reprise_abi::{ColumnSchema, IndexSchema, ScalarType, TablePlacement};

    use super::*;

    fn table(indexes: &[(&str, u16)]) -> TableSchema {
        let column = |name: &str| ColumnSchema::new(name, ScalarType::I64);
        let index = |(name, column): &(&str, u16)| IndexSchema::new(*name, &[*column], false);
        TableSchema {
            owner: "m".into(),
            indexes: indexes.iter().map(index).collect(),
            placement: TablePlacement::By(0),
            ..TableSchema::new("t", ["id", "a", "b"].map(column).into(), &[0])
        }
    }

    #[test]
    fn cursors_belong_to_their_walk() {
        let now = table(&[("by_a", 1), ("by_b", 2)]);
        let cursor = pack_cursor(walk_of(3, &now, 1), b"key");
        let read = |id: u16, table: &TableSchema, index: u16| unpack_cursor(walk_of(id, table, index), &cursor);
        assert_eq!(read(3, &now, 1).as_deref(), Some(&b"key"[..]));
        assert_eq!(read(3, &now, 0), None);
        assert_eq!(read(2, &now, 1), None);
        // An index that came in its place, by name or by number, is another one; what else changes is no matter.
        assert_eq!(read(3, &table(&[("by_b", 2)]), 1), None);
        assert_eq!(read(3, &table(&[("by_a", 2)]), 1), None);
        assert!(read(3, &table(&[("by_a", 1)]), 1).is_some());
        for bad in ["", "!", "AAAA", "AA==", "AAAAAAAAAAAAAAAA"] {
            assert_eq!(unpack_cursor(walk_of(0, &now, 0), bad), None, "{bad}");
        }
    }
}
