//! Reads the fields of a record's body, every read checked.

use reprise_abi::{schema::NAME_BYTES_MAX, value::ValueReader};

use crate::{WireError, corrupt};

/// Bytes of a table's name with its module's name at most.
pub(crate) const TABLE_NAME_BYTES_MAX: usize = 2 * NAME_BYTES_MAX + 1;

pub(crate) struct BodyReader<'a> {
    reader: ValueReader<'a>,
    length: usize,
}

impl<'a> BodyReader<'a> {
    pub fn new(body: &'a [u8]) -> Self {
        Self {
            reader: ValueReader::new(body),
            length: body.len(),
        }
    }

    fn cut(&self) -> WireError {
        let at = format!("{} bytes", self.reader.offset());
        corrupt("record body", "more or other bytes after it", at)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        self.reader.array().map_err(|_| self.cut())
    }

    pub fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn varint(&mut self) -> Result<u32, WireError> {
        self.reader.varint().map_err(|_| self.cut())
    }

    pub fn varint_u16(&mut self) -> Result<u16, WireError> {
        let value = self.varint()?;
        u16::try_from(value).map_err(|_| corrupt("number in record", "at most 65535", value))
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        self.reader.take(count).map_err(|_| self.cut())
    }

    /// The last field.
    pub fn rest(&mut self, what: &'static str, max: usize) -> Result<&'a [u8], WireError> {
        let count = self.length - self.reader.offset();
        if count > max {
            return Err(corrupt(what, format!("at most {max} bytes"), count));
        }
        self.take(count)
    }

    /// The last field, as text.
    pub fn rest_text(&mut self, what: &'static str, max: usize) -> Result<&'a str, WireError> {
        let bytes = self.rest(what, max)?;
        std::str::from_utf8(bytes).map_err(|_| corrupt(what, "UTF-8", bytes.escape_ascii()))
    }

    pub fn name(&mut self) -> Result<&'a str, WireError> {
        let length = self.array::<1>()?[0] as usize;
        if length > NAME_BYTES_MAX {
            return Err(corrupt("name length", format!("at most {NAME_BYTES_MAX}"), length));
        }
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes).map_err(|_| corrupt("name", "UTF-8", bytes.escape_ascii()))
    }

    /// A table's name, which may be that of a module and its own with a dot between.
    pub fn table_name(&mut self) -> Result<&'a str, WireError> {
        let length = self.array::<1>()?[0] as usize;
        if length > TABLE_NAME_BYTES_MAX {
            let bound = format!("at most {TABLE_NAME_BYTES_MAX}");
            return Err(corrupt("table name length", bound, length));
        }
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes).map_err(|_| corrupt("table name", "UTF-8", bytes.escape_ascii()))
    }

    /// Its length, 0 to 255, and its bytes.
    pub fn short_bytes(&mut self) -> Result<&'a [u8], WireError> {
        let [length] = self.array()?;
        self.take(length as usize)
    }

    /// A principal's number, 1 or more, and its name.
    pub fn principal(&mut self) -> Result<(u32, &'a str), WireError> {
        match self.varint()? {
            0 => Err(corrupt("number of a principal", "1 or more", 0)),
            number => Ok((number, self.principal_name()?)),
        }
    }

    /// Its length, 1 to 255, and its bytes.
    pub fn principal_name(&mut self) -> Result<&'a str, WireError> {
        match self.short_bytes()? {
            [] => Err(corrupt("length of a principal's name", "1 to 255", 0)),
            name => std::str::from_utf8(name).map_err(|_| corrupt("name of a principal", "UTF-8", name.escape_ascii())),
        }
    }

    /// Its length, 1 to 255, and its bytes.
    pub fn scope(&mut self) -> Result<&'a [u8], WireError> {
        match self.short_bytes()? {
            [] => Err(corrupt("length of a key's scope", "1 to 255", 0)),
            scope => Ok(scope),
        }
    }

    /// Its length, 1 to 255, and its bytes.
    pub fn idempotency_key(&mut self) -> Result<&'a [u8], WireError> {
        match self.array::<1>()?[0] {
            0 => Err(corrupt("idempotency key length", "1 to 255", 0)),
            length => self.take(length as usize),
        }
    }

    /// Reads a length and as many bytes.
    pub fn bytes(&mut self, what: &'static str, max: usize) -> Result<&'a [u8], WireError> {
        let length = self.varint()? as usize;
        if length > max {
            return Err(corrupt(what, format!("at most {max} bytes"), length));
        }
        self.take(length)
    }

    /// Reads a length and as many bytes of text.
    pub fn text(&mut self, what: &'static str, max: usize) -> Result<&'a str, WireError> {
        let bytes = self.bytes(what, max)?;
        std::str::from_utf8(bytes).map_err(|_| corrupt(what, "UTF-8", bytes.escape_ascii()))
    }

    pub fn is_at_end(&self) -> bool {
        self.reader.offset() == self.length
    }

    pub fn finish(&self) -> Result<(), WireError> {
        self.reader.finish().map_err(|_| self.cut())
    }
}
