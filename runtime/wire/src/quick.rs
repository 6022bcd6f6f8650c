//! Reads changes without error values: what redo does for every row. Whatever is not well-formed is None, and then read again by
//! the reader that says what is wrong.

use reprise_abi::{
    key::KEY_BYTES_MAX,
    row::{COLUMNS_MAX, ROW_BYTES_MAX},
};
use reprise_base::{
    PartitionId, TxnId,
    limits::{PARTITIONS_MAX, RECORD_BYTES_MAX, TABLES_MAX},
};

use crate::{
    PartitionSet,
    changes::{
        Change, ChangesRef, DELETE, INSERT, NumberForm, OP_MASK, PATCH, PatchColumns, REPLACE, RowName, number_bytes,
    },
};

pub(crate) struct QuickReader<'a> {
    bytes: &'a [u8],
    pub at: usize,
}

impl<'a> QuickReader<'a> {
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    #[inline]
    pub fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    #[inline(always)]
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// Of one or two bytes; longer ones are rare, and left to the other reader but for lengths.
    #[inline(always)]
    fn varint(&mut self) -> Option<usize> {
        let first = self.byte()? as usize;
        if first < 0x80 {
            return Some(first);
        }
        let second = self.byte()? as usize;
        match second {
            1..0x80 => Some(first & 0x7f | second << 7),
            0x80.. => {
                let third = self.byte()? as usize;
                let value = first & 0x7f | (second & 0x7f) << 7 | third << 14;
                (1..0x80).contains(&third).then_some(value)
            }
            _ => None,
        }
    }

    #[inline(always)]
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(taken)
    }

    #[inline(always)]
    fn bytes(&mut self, max: usize) -> Option<&'a [u8]> {
        let count = self.varint()?;
        if count > max {
            return None;
        }
        self.take(count)
    }

    #[inline(always)]
    fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// The row's number, where the change has one.
    #[inline(always)]
    fn row_number(&mut self, op: u8) -> Option<Option<u64>> {
        let bytes = match NumberForm::of(op)? {
            NumberForm::None => return Some(None),
            NumberForm::Wide => return Some(Some(self.number()?)),
            NumberForm::Short(bytes) => bytes,
        };
        let rest = self.bytes.get(self.at..)?;
        let number = match rest.first_chunk() {
            Some(word) => u64::from_le_bytes(*word) & u64::MAX >> (64 - 8 * bytes),
            None => {
                let digits = rest.get(..bytes)?.iter().rev();
                digits.fold(0, |number, digit| number << 8 | u64::from(*digit))
            }
        };
        self.at += bytes;
        (number_bytes(number) == bytes).then_some(Some(number))
    }

    #[inline(always)]
    fn name(&mut self, op: u8) -> Option<RowName<'a>> {
        Some(match self.row_number(op)? {
            None => RowName::Key(self.bytes(KEY_BYTES_MAX)?),
            Some(number) => RowName::Number(number),
        })
    }

    /// Kind and body of the next record.
    #[inline(always)]
    pub fn record(&mut self) -> Option<&'a [u8]> {
        let content = self.bytes(RECORD_BYTES_MAX - 3)?;
        (!content.is_empty()).then_some(content)
    }

    /// The body of a record of changes in its usual form: of the partition that gave out its id, and without a key. The changes
    /// themselves are not looked at.
    #[inline]
    pub fn changes(&mut self) -> Option<ChangesRef<'a>> {
        if self.byte()? != 0 {
            return None;
        }
        let (txn_id, digest) = (TxnId(self.number()?), self.number()?);
        let (module_id, procedure) = (self.varint()?, self.varint()?);
        let origin = txn_id.origin();
        if procedure > u16::MAX as usize || origin >= PARTITIONS_MAX {
            return None;
        }
        Some(ChangesRef {
            txn_id,
            partitions: PartitionSet::One(PartitionId(origin)),
            module_id: module_id as u32,
            procedure: procedure as u16,
            digest,
            keyed: None,
            changes: &self.bytes[self.at..],
        })
    }

    /// The next change, if it is an insertion with a number: its table, number and row.
    #[inline(always)]
    pub fn row(&mut self) -> Option<(u16, u64, &'a [u8])> {
        let op = self.byte()?;
        if op & OP_MASK != INSERT {
            return None;
        }
        let table = self.varint()?;
        let number = self.row_number(op)??;
        let row = self.bytes(ROW_BYTES_MAX)?;
        (table < TABLES_MAX).then_some((table as u16, number, row))
    }

    /// The next change, if it is a patch.
    #[inline(always)]
    pub fn patch(&mut self) -> Option<(u16, RowName<'a>, PatchColumns<'a>)> {
        let op = self.byte()?;
        let table = self.varint()?;
        if op & OP_MASK != PATCH || table >= TABLES_MAX {
            return None;
        }
        Some((table as u16, self.name(op)?, self.columns()?))
    }

    #[inline]
    pub fn change(&mut self) -> Option<Change<'a>> {
        let op = self.byte()?;
        let table = self.varint()?;
        if table >= TABLES_MAX {
            return None;
        }
        let table = table as u16;
        Some(match op & OP_MASK {
            INSERT => {
                let number = self.row_number(op)?;
                let row = self.bytes(ROW_BYTES_MAX)?;
                Change::Insert { table, number, row }
            }
            REPLACE => {
                let name = self.name(op)?;
                let row = self.bytes(ROW_BYTES_MAX)?;
                Change::Replace { table, name, row }
            }
            PATCH => {
                let name = self.name(op)?;
                let columns = self.columns()?;
                Change::Patch { table, name, columns }
            }
            DELETE => Change::Delete {
                table,
                name: self.name(op)?,
            },
            _ => return None,
        })
    }

    /// As `change`, of bytes that were read by it before and hold nothing else: what is known of them is not looked at again.
    #[inline]
    pub fn whole_change(mut self) -> Option<Change<'a>> {
        let op = self.byte()?;
        let table = self.varint()? as u16;
        match op & OP_MASK {
            INSERT => {
                let number = self.row_number(op)?;
                let row = self.bytes(ROW_BYTES_MAX)?;
                Some(Change::Insert { table, number, row })
            }
            PATCH => Some(Change::Patch {
                table,
                name: self.name(op)?,
                columns: PatchColumns {
                    count: self.varint()? as u16,
                    bytes: &self.bytes[self.at..],
                },
            }),
            _ => QuickReader::new(self.bytes).change(),
        }
    }

    /// As `whole_change`, of a patch alone.
    #[inline(always)]
    pub fn whole_patch(mut self) -> Option<(RowName<'a>, PatchColumns<'a>)> {
        let op = self.byte()?;
        if op & OP_MASK != PATCH {
            return None;
        }
        self.varint()?;
        let name = self.name(op)?;
        let count = self.varint()? as u16;
        let bytes = self.bytes.get(self.at..)?;
        Some((name, PatchColumns { count, bytes }))
    }

    #[inline(always)]
    fn columns(&mut self) -> Option<PatchColumns<'a>> {
        let count = self.varint()?;
        if count == 0 || count > COLUMNS_MAX {
            return None;
        }
        let start = self.at;
        let mut next = 0;
        for _ in 0..count {
            let (column, _) = self.column()?;
            if column < next {
                return None;
            }
            next = column + 1;
        }
        Some(PatchColumns {
            count: count as u16,
            bytes: &self.bytes[start..self.at],
        })
    }

    #[inline(always)]
    pub fn column(&mut self) -> Option<(u16, Option<&'a [u8]>)> {
        let column = self.varint()?;
        if column >= COLUMNS_MAX {
            return None;
        }
        let value = match self.varint()? {
            0 => None,
            length if length <= ROW_BYTES_MAX + 1 => Some(self.take(length - 1)?),
            _ => return None,
        };
        Some((column as u16, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Changes;

    /// The quick reader takes nothing that the other refuses, and reads the same.
    #[test]
    fn both_readers_agree_on_any_bytes() {
        let mut state = 88_172_645_463_325_252_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..200_000 {
            let length = next() as usize % 24 + 1;
            let mut bytes: Vec<u8> = (0..length).map(|_| (next() % 12) as u8).collect();
            let forms = [0, 8, 16, 16, 32, 48, 128, 144];
            bytes[0] = 1 + (next() % 5) as u8 + forms[next() as usize % forms.len()];
            if next() % 4 == 0 {
                let at = next() as usize % length;
                bytes[at] = next() as u8;
            }
            let mut quick = QuickReader::new(&bytes);
            let found = quick.change();
            let slow = Change::read_whole(&bytes);
            if let Ok((expected, end)) = &slow {
                assert_eq!(Change::again(&bytes[..*end]), Some(*expected), "{bytes:?}");
                let patch = match *expected {
                    Change::Patch { name, columns, .. } => Some((name, columns)),
                    _ => None,
                };
                assert_eq!(Change::patch_again(&bytes[..*end]), patch, "{bytes:?}");
            }
            match (found, &slow) {
                (Some(found), Ok((expected, end))) => {
                    assert_eq!((found, quick.at), (*expected, *end), "{bytes:?}");
                    taken += 1;
                }
                (Some(found), Err(error)) => panic!("{bytes:?}: {found:?}, {error}"),
                (None, _) => refused += 1,
            }
            assert_eq!(Changes::new(&bytes).next().map(|c| c.is_ok()), Some(slow.is_ok()));
            let mut walk = Changes::new(&bytes);
            let row = walk.next_row().map(|(table, number, row)| Change::Insert {
                table,
                number: Some(number),
                row,
            });
            let patch = |walk: &mut Changes<'_>| {
                let (table, name, columns) = walk.next_patch()?;
                // What it names is in the bytes.
                Some((table, format!("{name:?} {columns:?}")))
            };
            match (row, &slow) {
                (Some(row), Ok((expected, end))) => {
                    assert_eq!((row, walk.offset()), (*expected, *end), "{bytes:?}");
                }
                (Some(row), Err(error)) => panic!("{bytes:?}: {row:?}, {error}"),
                (None, _) => assert_eq!(walk.offset(), 0),
            }
            let mut walk = Changes::new(&bytes);
            match (patch(&mut walk), &slow) {
                (Some((found, text)), Ok((Change::Patch { table, name, columns }, end))) => {
                    assert_eq!((found, walk.offset()), (*table, *end), "{bytes:?}");
                    assert_eq!(text, format!("{name:?} {columns:?}"), "{bytes:?}");
                }
                (Some(patch), _) => panic!("{bytes:?}: {patch:?}"),
                (None, _) => assert_eq!(walk.offset(), 0),
            }
        }
        assert!(taken > 1_000 && refused > 1_000, "{taken}, {refused}");
    }
}
