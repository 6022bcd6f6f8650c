//! A document in one of the two formats, as the schema-driven reader sees it: token by token, nothing built.

use std::{borrow::Cow, fmt};

/// Greatest depth of nested values that are skipped. Values that are read are as deep as their schema.
pub const DEPTH_MAX: usize = 128;

/// Text that is no document of its format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct SyntaxError {
    /// Description of the mistake.
    pub what: &'static str,
    /// Offset in the document, in bytes.
    pub at: usize,
}

/// Bytes that are known to be UTF-8. They borrow from the document unless it has them in pieces or with escapes.
#[derive(Clone, Debug)]
pub struct Text<'t>(pub(super) Cow<'t, [u8]>);

impl Text<'_> {
    /// Returns the bytes, in UTF-8.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("checked when it was read")
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A whole scalar, or the beginning of a list or a map.
pub enum DocumentToken<'t> {
    /// Nothing.
    Null,
    /// A truth value.
    Bool(bool),
    /// An integer.
    Integer(i128),
    /// A JSON number that is no short integer: what may lose digits is read from its text.
    Number(&'t str),
    /// A float of CBOR.
    Float(f64),
    /// A text.
    Text(Text<'t>),
    /// A byte string of CBOR.
    Bytes(Cow<'t, [u8]>),
    /// Its items follow.
    List(ItemsLeft),
    /// Its members follow.
    Map(ItemsLeft),
    /// A value that no schema asks for.
    Other(&'static str),
}

/// How far a list or a map is read.
pub struct ItemsLeft {
    /// Number of items left. None: only the end of the list or map tells.
    pub(super) left: Option<u64>,
    pub(super) is_first: bool,
}

/// A document that is read once, from its beginning.
pub trait TokenSource<'t> {
    /// The next value, or the beginning of one.
    fn token(&mut self) -> Result<DocumentToken<'t>, SyntaxError>;

    /// False at the list's end; otherwise its next item is to be read.
    fn next_item(&mut self, items: &mut ItemsLeft) -> Result<bool, SyntaxError>;

    /// The next member's name; None at the map's end. Then its value is to be read.
    fn next_name(&mut self, items: &mut ItemsLeft) -> Result<Option<Text<'t>>, SyntaxError>;

    /// Returns whether the next member has this name, and its value is to be read. False says nothing, and nothing was read.
    fn next_name_is(&mut self, items: &mut ItemsLeft, name: &str) -> bool;

    /// Moves past one value, checking its form.
    fn skip(&mut self) -> Result<(), SyntaxError>;

    /// Moves past one value, and returns its place.
    fn raw(&mut self) -> Result<std::ops::Range<usize>, SyntaxError>;

    /// Nothing more may follow.
    fn end(&mut self) -> Result<(), SyntaxError>;

    /// Returns the offset of the next byte.
    fn position(&self) -> usize;

    /// Copies everything that was read.
    fn copy_read(&self, out: &mut Vec<u8>);

    /// Moves past the rest of a list.
    fn skip_items(&mut self, mut items: ItemsLeft) -> Result<(), SyntaxError> {
        while self.next_item(&mut items)? {
            self.skip()?;
        }
        Ok(())
    }

    /// Moves past the rest of a map.
    fn skip_members(&mut self, mut items: ItemsLeft) -> Result<(), SyntaxError> {
        while self.next_name(&mut items)?.is_some() {
            self.skip()?;
        }
        Ok(())
    }
}
