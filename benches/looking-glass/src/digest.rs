//! A digest of rows that does not depend on where they lie or in which order they came.

/// The sum of the rows' hashes, table by table, and how many rows there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowsDigest {
    /// By table: rows, and the sum of their hashes.
    tables: Vec<(u64, u128)>,
}

impl RowsDigest {
    /// Takes in a row of a table.
    pub fn add(&mut self, table: usize, row: &[u8]) {
        if self.tables.len() <= table {
            self.tables.resize(table + 1, (0, 0));
        }
        let (count, sum) = &mut self.tables[table];
        *count += 1;
        *sum = sum.wrapping_add((hash(1, row) as u128) << 64 | hash(2, row) as u128);
    }

    /// All rows.
    pub fn rows(&self) -> u64 {
        self.tables.iter().map(|(count, _)| count).sum()
    }
}

impl std::fmt::Display for RowsDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.tables
            .iter()
            .try_for_each(|(count, sum)| write!(f, "{count}:{sum:032x} "))
    }
}

fn hash(seed: u64, row: &[u8]) -> u64 {
    let mix = |a: u64, b: u64| {
        let product = (a ^ 0x2d35_8dcc_aa6c_78a5) as u128 * (b ^ 0x8bb8_4b93_962e_acc9) as u128;
        product as u64 ^ (product >> 64) as u64
    };
    let (words, rest) = row.as_chunks::<8>();
    let state = words.iter().fold(seed ^ (row.len() as u64) << 8, |state, word| {
        mix(state, u64::from_le_bytes(*word))
    });
    mix(state, rest.iter().fold(1, |word, byte| word << 8 | *byte as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_count_in_any_order_with_their_tables_and_every_byte() {
        let of = |rows: &[(usize, &[u8])]| {
            let mut digest = RowsDigest::default();
            rows.iter().for_each(|(table, row)| digest.add(*table, row));
            digest
        };
        let whole = of(&[(0, b"a"), (1, b"abcdefghij"), (1, b"b")]);
        assert_eq!(whole, of(&[(1, b"b"), (1, b"abcdefghij"), (0, b"a")]));
        assert_eq!(whole.rows(), 3);
        for other in [
            of(&[(1, b"a"), (1, b"abcdefghij"), (1, b"b")]),
            of(&[(0, b"a"), (1, b"abcdefghik"), (1, b"b")]),
            of(&[(0, b"a"), (1, b"abcdefghij\0"), (1, b"b")]),
            of(&[(0, b"a"), (1, b"abcdefghij"), (1, b"b"), (1, b"b")]),
        ] {
            assert_ne!(whole, other);
        }
    }
}
