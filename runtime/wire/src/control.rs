//! Control operations in the log: who did what beside calls, and how it ended.

use reprise_abi::value::push_varint;
use reprise_base::{TxnId, limits::IDEMPOTENCY_SCOPE_BYTES_MAX};

use crate::{
    WireError,
    body::BodyReader,
    corrupt,
    record::{RecordKind, begin, push_name, push_short, varint_bytes},
};

/// Longest subject of a control operation, in bytes.
pub const SUBJECT_BYTES_MAX: usize = 512;

/// A control operation that was carried out or refused. A replay does nothing for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlRef<'a> {
    pub txn_id: TxnId,
    /// Duration in microseconds. The largest number also stands for longer ones.
    pub took_us: u32,
    /// Name of the token, 1 to 255 bytes; `anonymous` on a server without tokens.
    pub principal: &'a str,
    /// Name of the operation, 1 to 63 bytes.
    pub operation: &'a str,
    /// `done`, or the slug of the problem; 1 to 63 bytes.
    pub outcome: &'a str,
    /// Object of the operation, at most [`SUBJECT_BYTES_MAX`]. May be empty.
    pub subject: &'a str,
}

impl<'a> ControlRef<'a> {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let principal = self.principal.as_bytes();
        assert!((1..=IDEMPOTENCY_SCOPE_BYTES_MAX).contains(&principal.len()));
        assert!(!self.operation.is_empty() && !self.outcome.is_empty(), "both are names");
        assert!(self.subject.len() <= SUBJECT_BYTES_MAX, "{} bytes", self.subject.len());
        let names = 3 + principal.len() + self.operation.len() + self.outcome.len();
        let body_bytes = 8 + varint_bytes(self.took_us) + names + self.subject.len();
        begin(out, RecordKind::Control, body_bytes);
        out.extend_from_slice(&self.txn_id.0.to_le_bytes());
        push_varint(out, self.took_us);
        push_short(out, principal);
        push_name(out, self.operation);
        push_name(out, self.outcome);
        out.extend_from_slice(self.subject.as_bytes());
    }

    pub(crate) fn decode(body: &mut BodyReader<'a>) -> Result<Self, WireError> {
        let read = Self {
            txn_id: TxnId(body.u64()?),
            took_us: body.varint()?,
            principal: body.principal_name()?,
            operation: body.name()?,
            outcome: body.name()?,
            subject: body.rest_text("subject of a control operation", SUBJECT_BYTES_MAX)?,
        };
        if read.operation.is_empty() || read.outcome.is_empty() {
            return Err(corrupt(
                "control operation",
                "the names of operation and outcome",
                "none",
            ));
        }
        Ok(read)
    }
}
