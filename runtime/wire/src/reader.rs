//! The one decoder of changes. A caller that reads many wants no error texts, because an error value costs each read. To report an error, a
//! caller reads the bad change once more.

use reprise_abi::row::{COLUMNS_MAX, ROW_BYTES_MAX};
use reprise_base::{
    PartitionId, TxnId,
    limits::{PARTITIONS_MAX, RECORD_BYTES_MAX, TABLES_MAX},
};

use crate::{
    PartitionSet, WireError,
    caller::HAS_PRINCIPAL,
    changes::{
        Change, ChangeSink, ChangesRef, DELETE, INSERT, OP_MASK, PATCH, PatchColumns, REPLACE, number_bytes,
        number_bytes_of,
    },
    corrupt,
};

/// An error about bytes that are no change.
pub(crate) trait DecodeFault: Sized {
    fn of(what: &'static str, expected: &'static str, found: usize) -> Self;
}

/// Nothing: an error costs no more than a jump.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnnamedFault;

impl DecodeFault for UnnamedFault {
    #[inline(always)]
    fn of(_: &'static str, _: &'static str, _: usize) -> Self {
        Self
    }
}

impl DecodeFault for WireError {
    #[cold]
    fn of(what: &'static str, expected: &'static str, found: usize) -> Self {
        corrupt(what, expected, found)
    }
}

/// The longest length, with its 1 more for a value that is there, has three bytes as a varint.
const _: () = assert!(ROW_BYTES_MAX < 1 << 21 && RECORD_BYTES_MAX <= 1 << 32);

#[derive(Clone, Debug)]
pub(crate) struct ByteReader<'a> {
    bytes: &'a [u8],
    pub at: usize,
}

impl<'a> ByteReader<'a> {
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    #[inline]
    pub fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// Nothing is read any more.
    pub fn skip_rest(&mut self) {
        self.at = self.bytes.len();
    }

    #[cold]
    fn cut<F: DecodeFault>(&self) -> F {
        F::of("record body", "more or other bytes after it", self.at)
    }

    #[inline(always)]
    fn byte<F: DecodeFault>(&mut self) -> Result<u8, F> {
        let Some(byte) = self.bytes.get(self.at) else {
            return Err(self.cut());
        };
        self.at += 1;
        Ok(*byte)
    }

    /// Reads a number of one to three bytes, which is enough for every number in changes.
    #[inline(always)]
    fn varint<F: DecodeFault>(&mut self) -> Result<usize, F> {
        let first = self.byte()? as usize;
        if first < 0x80 {
            return Ok(first);
        }
        let second = self.byte()? as usize;
        match second {
            1..0x80 => Ok(first & 0x7f | second << 7),
            0x80.. => {
                let third = self.byte()? as usize;
                let value = first & 0x7f | (second & 0x7f) << 7 | third << 14;
                match (1..0x80).contains(&third) {
                    true => Ok(value),
                    false => Err(self.cut()),
                }
            }
            _ => Err(self.cut()),
        }
    }

    #[inline(always)]
    fn take<F: DecodeFault>(&mut self, count: usize) -> Result<&'a [u8], F> {
        // A length has 21 bits: no sum of places overflows.
        let Some(taken) = self.bytes.get(self.at..self.at + count) else {
            return Err(self.cut());
        };
        self.at += count;
        Ok(taken)
    }

    #[inline(always)]
    fn bytes<F: DecodeFault>(&mut self, what: &'static str, max: usize) -> Result<&'a [u8], F> {
        let count = self.varint()?;
        if count > max {
            return Err(F::of(what, "at most as many bytes as there may be", count));
        }
        self.take(count)
    }

    #[inline(always)]
    fn number<F: DecodeFault>(&mut self) -> Result<u64, F> {
        let word = self.take(8)?;
        Ok(u64::from_le_bytes(word.try_into().expect("8 bytes were taken")))
    }

    /// The number of the changed row.
    #[inline(always)]
    fn row_number<F: DecodeFault>(&mut self, op: u8) -> Result<u64, F> {
        let Some(bytes) = number_bytes_of(op) else {
            return Err(Self::no_change(op));
        };
        let rest = &self.bytes[self.at..];
        let number = match rest.first_chunk() {
            Some(word) => u64::from_le_bytes(*word) & u64::MAX >> (64 - 8 * bytes),
            None if rest.len() < bytes => return Err(self.cut()),
            None => {
                let digits = rest[..bytes].iter().rev();
                digits.fold(0, |number, digit| number << 8 | u64::from(*digit))
            }
        };
        self.at += bytes;
        match number_bytes(number) == bytes {
            true => Ok(number),
            false => Err(F::of("bytes of a row's number", "as few as it needs", bytes)),
        }
    }

    #[cold]
    fn no_change<F: DecodeFault>(op: u8) -> F {
        F::of("change of a row", "1 to 4, and 1 to 8 times 16", op.into())
    }

    /// The next change, handed to `sink`. `KNOWN`: the bytes were read before and hold nothing else, so that the columns of a
    /// patch are not checked again.
    #[inline(always)]
    pub fn change<F: DecodeFault, S: ChangeSink<'a>, const KNOWN: bool>(&mut self, sink: S) -> Result<S::Out, F> {
        let op = self.byte()?;
        let table = self.varint()?;
        if table >= TABLES_MAX {
            return Err(F::of("changed table", "below 4096", table));
        }
        let table = table as u16;
        match op & OP_MASK {
            INSERT => {
                let number = self.row_number(op)?;
                let row = self.bytes("row", ROW_BYTES_MAX)?;
                Ok(sink.take(self.at, Change::Insert { table, number, row }))
            }
            PATCH => {
                let number = self.row_number(op)?;
                let columns = match KNOWN {
                    true => self.rest_of_patch()?,
                    false => self.columns()?,
                };
                Ok(sink.take(self.at, Change::Patch { table, number, columns }))
            }
            REPLACE => {
                let number = self.row_number(op)?;
                let row = self.bytes("row", ROW_BYTES_MAX)?;
                Ok(sink.take(self.at, Change::Replace { table, number, row }))
            }
            DELETE => {
                let number = self.row_number(op)?;
                Ok(sink.take(self.at, Change::Delete { table, number }))
            }
            _ => Err(Self::no_change(op)),
        }
    }

    #[inline(always)]
    fn columns<F: DecodeFault>(&mut self) -> Result<PatchColumns<'a>, F> {
        let count = self.varint()?;
        if count == 0 || count > COLUMNS_MAX {
            return Err(F::of("columns of a patch", "1 to 256", count));
        }
        let start = self.at;
        let mut next = 0;
        for _ in 0..count {
            let (column, _) = self.column()?;
            if column < next {
                return Err(F::of("columns of a patch", "growing", column.into()));
            }
            next = column + 1;
        }
        Ok(PatchColumns {
            count: count as u16,
            bytes: &self.bytes[start..self.at],
        })
    }

    #[inline(always)]
    fn rest_of_patch<F: DecodeFault>(&mut self) -> Result<PatchColumns<'a>, F> {
        let count = self.varint()? as u16;
        let bytes = &self.bytes[self.at..];
        self.at = self.bytes.len();
        Ok(PatchColumns { count, bytes })
    }

    #[inline(always)]
    pub fn column<F: DecodeFault>(&mut self) -> Result<(u16, Option<&'a [u8]>), F> {
        let column = self.varint()?;
        if column >= COLUMNS_MAX {
            return Err(F::of("changed column", "below 256", column));
        }
        let value = match self.varint()? {
            0 => None,
            length if length <= ROW_BYTES_MAX + 1 => Some(self.take(length - 1)?),
            length => {
                return Err(F::of(
                    "changed column's value",
                    "at most as many bytes as a row",
                    length - 1,
                ));
            }
        };
        Ok((column as u16, value))
    }
}

/// Heads of records in their usual form; None for others, which `RecordRef::decode` reads.
impl<'a> ByteReader<'a> {
    /// Kind and body of the next record.
    #[inline(always)]
    pub fn record(&mut self) -> Option<&'a [u8]> {
        let content = self.bytes::<UnnamedFault>("record", RECORD_BYTES_MAX - 3).ok()?;
        (!content.is_empty()).then_some(content)
    }

    /// The body of a record of changes: of the partition that gave out its id, and without a key. The changes themselves are not
    /// read.
    #[inline]
    pub fn changes(&mut self) -> Option<ChangesRef<'a>> {
        self.plain_changes::<UnnamedFault>().ok()
    }

    #[inline(always)]
    fn plain_changes<F: DecodeFault>(&mut self) -> Result<ChangesRef<'a>, F> {
        let flags = self.byte()?;
        let (txn_id, digest) = (TxnId(self.number()?), self.number()?);
        let (module_id, procedure) = (self.varint()?, self.varint()?);
        let principal = match flags & HAS_PRINCIPAL {
            0 => 0,
            _ => self.varint()?,
        };
        let has_other = flags & !HAS_PRINCIPAL != 0 || flags != 0 && principal == 0;
        let origin = txn_id.origin();
        if has_other || procedure > u16::MAX as usize || origin >= PARTITIONS_MAX {
            return Err(self.cut());
        }
        Ok(ChangesRef {
            txn_id,
            partitions: PartitionSet::One(PartitionId(origin)),
            module_id: module_id as u32,
            procedure: procedure as u16,
            digest,
            principal: principal as u32,
            parts: 0,
            keyed: None,
            changes: &self.bytes[self.at..],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Changes;

    /// The reader without error texts accepts and refuses the same bytes. Each accepted change has one form only.
    #[test]
    fn errors_cost_a_name_and_change_nothing() {
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
            let mut walk = Changes::new(&bytes);
            let quick = walk.next().expect("there are bytes");
            let mut reader = ByteReader::new(&bytes);
            let named = reader.change::<WireError, _, false>(WithEnd);
            let Ok((change, end)) = named else {
                assert_eq!(quick, Err(named.expect_err("refused")), "{bytes:?}");
                assert_eq!(walk.next(), None, "nothing follows an error");
                refused += 1;
                continue;
            };
            assert_eq!((quick, walk.offset()), (Ok(change), end), "{bytes:?}");
            let own = &bytes[..end];
            assert_eq!(Change::again(own), Some(change), "{bytes:?}");
            let mut encoded = Vec::new();
            change.encode(&mut encoded);
            assert_eq!(encoded, own, "{change:?}");
            taken += 1;
        }
        assert!(taken > 1_000 && refused > 1_000, "{taken}, {refused}");
    }

    struct WithEnd;

    impl<'a> ChangeSink<'a> for WithEnd {
        type Out = (Change<'a>, usize);

        fn take(self, end: usize, change: Change<'a>) -> Self::Out {
            (change, end)
        }
    }
}
