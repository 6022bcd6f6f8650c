//! Body -> chunks of calls.

use std::{collections::VecDeque, sync::Arc};

use bytes::{Bytes, BytesMut};
use reprise_base::{Budget, Grant};
use reprise_codec::{Format, ItemScanner};
use reprise_router::{Caller, Stream};

use super::{
    ChunkBatch,
    line::{Chunk, LineParser},
};
use crate::{
    body::requests_full,
    limits::{BATCH_CHUNK_CALLS_MAX, CALL_BODY_BYTES_MAX, REQUEST_BYTES_SURE},
    principal::Principal,
    refusal::Refusal,
    state::AppState,
};

/// A piece of the body, or its end.
pub enum BodyPiece {
    Data(Bytes),
    End,
    /// Nothing more will come.
    Broken(Refusal),
}

/// The calls of the next chunk, at most, and the bytes of their lines.
pub struct CallsAhead {
    pub calls: usize,
    pub bytes: usize,
}

/// A batch's calls, on their way from the body to the engine.
pub struct Input {
    format: Format,
    /// Keeps the calls of all chunks in order in the engine.
    order: Stream,
    /// None without tokens.
    caller: Option<Caller>,
    /// Time until which the client waits for the calls.
    deadline_ns: Option<u64>,
    parser: LineParser,
    /// The beginning of a call whose end has not come yet.
    rest: BytesMut,
    /// Bytes of a long rest, counted among the requests of all connections.
    rest_grant: Option<Grant>,
    /// True while the rest of a line that is too long passes by.
    skipping: bool,
    scanner: ItemScanner,
    /// Whole calls, and the beginning of the next one.
    text: Bytes,
    at: usize,
    /// Ends of the items in `text`; lines find their own.
    ends: VecDeque<usize>,
    /// Stands after all of `text`.
    refusal: Option<Refusal>,
}

impl Input {
    pub fn new(format: Format, order: Stream, caller: Option<Caller>, deadline_ns: Option<u64>) -> Self {
        Self {
            format,
            order,
            caller,
            deadline_ns,
            parser: LineParser::default(),
            rest: BytesMut::new(),
            rest_grant: None,
            skipping: false,
            scanner: ItemScanner::default(),
            text: Bytes::new(),
            at: 0,
            ends: VecDeque::new(),
            refusal: None,
        }
    }

    /// Takes a piece, once everything before it is cut. True: it was the last.
    pub fn take(&mut self, piece: BodyPiece, requests: &Arc<Budget>) -> bool {
        debug_assert!(self.at >= self.text.len() && self.refusal.is_none());
        self.set_text(Bytes::new());
        let is_last = self.take_piece(piece);
        if !self.text.is_empty() {
            self.text = HeldText::counted(self.text.split_off(0), requests);
        }
        if is_last || self.rest.len() as u64 <= REQUEST_BYTES_SURE {
            self.rest_grant = None;
            return is_last;
        }
        let grant = self.rest_grant.get_or_insert_with(|| requests.take(0));
        let more = (self.rest.capacity() as u64).saturating_sub(grant.bytes());
        if grant.try_grow(more) {
            return false;
        }
        (self.rest, self.rest_grant) = (BytesMut::new(), None);
        self.refusal = Some(requests_full());
        true
    }

    fn take_piece(&mut self, piece: BodyPiece) -> bool {
        match (piece, self.format) {
            (BodyPiece::Data(data), Format::Json) => self.take_lines(data),
            (BodyPiece::Data(data), Format::Cbor) => return self.take_items(&data),
            (BodyPiece::Broken(refusal), _) => {
                self.refusal = Some(refusal);
                return true;
            }
            (BodyPiece::End, Format::Json) => {
                let last = self.rest.split().freeze();
                self.set_text(last);
                return true;
            }
            (BodyPiece::End, Format::Cbor) => {
                if !self.rest.is_empty() {
                    let detail = "the sequence ends inside an item";
                    self.refusal = Some(Refusal::malformed(detail));
                }
                return true;
            }
        }
        false
    }

    /// Nothing that was read and not cut is to run.
    pub fn refuse_rest(&mut self, refusal: Refusal) {
        self.rest.clear();
        self.ends.clear();
        self.set_text(Bytes::new());
        self.refusal = Some(refusal);
    }

    fn set_text(&mut self, text: Bytes) {
        self.text = text;
        self.at = 0;
    }

    fn take_lines(&mut self, mut data: Bytes) {
        if self.skipping {
            match memchr::memchr(b'\n', &data) {
                None => return,
                Some(end) => data = data.slice(end + 1..),
            }
            self.skipping = false;
        }
        match memchr::memrchr(b'\n', &data) {
            None => self.rest.extend_from_slice(&data),
            Some(end) if self.rest.is_empty() => {
                self.rest.extend_from_slice(&data[end + 1..]);
                self.set_text(data.slice(..end));
            }
            Some(end) => {
                self.rest.extend_from_slice(&data[..end]);
                let lines = self.rest.split().freeze();
                self.rest.extend_from_slice(&data[end + 1..]);
                self.set_text(lines);
            }
        }
        if self.rest.len() > CALL_BODY_BYTES_MAX {
            self.rest.clear();
            self.skipping = true;
            self.refusal = Some(too_large(self.format));
        }
    }

    /// Takes items from the input. True: the beginning of the next item can't be known any more.
    fn take_items(&mut self, data: &Bytes) -> bool {
        self.rest.extend_from_slice(data);
        let mut whole = 0;
        let lost = loop {
            match self.scanner.advance(&self.rest) {
                Ok(Some(end)) => {
                    self.ends.push_back(end);
                    whole = end;
                }
                Ok(None) if self.rest.len() - whole <= CALL_BODY_BYTES_MAX => break None,
                Ok(None) => break Some(too_large(self.format)),
                Err(error) => {
                    let detail = format!("the sequence is not CBOR: {error}");
                    break Some(Refusal::malformed(detail));
                }
            }
        };
        self.scanner.forget(whole);
        let text = self.rest.split_to(whole).freeze();
        self.set_text(text);
        self.refusal = lost;
        self.refusal.is_some()
    }

    /// Returns what the next chunk may hold. None if all of it is cut.
    pub fn ahead(&self) -> Option<CallsAhead> {
        let text = self.text.get(self.at..).unwrap_or_default();
        if text.is_empty() {
            return self.refusal.is_some().then_some(CallsAhead { calls: 0, bytes: 0 });
        }
        let (calls, end) = match self.format {
            Format::Json => {
                let ends = memchr::memchr_iter(b'\n', text).take(BATCH_CHUNK_CALLS_MAX);
                let (count, last) = ends.fold((0, 0), |(count, _), end| (count + 1, end));
                match count < BATCH_CHUNK_CALLS_MAX {
                    true => (count + 1, text.len()),
                    false => (count, last),
                }
            }
            Format::Cbor => {
                let count = self.ends.len().clamp(1, BATCH_CHUNK_CALLS_MAX);
                (count, self.ends.get(count - 1).map_or(text.len(), |end| end - self.at))
            }
        };
        Some(CallsAhead { calls, bytes: end })
    }

    /// Returns the next chunk of the taken calls. None if all of it is cut.
    pub fn cut(&mut self, state: &AppState, principal: &Principal, calls_max: usize) -> Option<ChunkBatch> {
        if self.at >= self.text.len() && self.refusal.is_none() {
            return None;
        }
        let begin = self.at;
        let mut chunk = Chunk::new(self.text.clone(), self.format, self.order);
        let mut batch = chunk.calls.batch(state, state.router.deployed());
        batch.set_caller(self.caller.clone());
        batch.set_deadline(self.deadline_ns);
        self.parser.begin_chunk();
        while self.at < self.text.len() && has_place(&chunk, calls_max) {
            let (end, after) = self.next_end();
            if end - self.at > CALL_BODY_BYTES_MAX {
                chunk.calls.refuse(too_large(self.format), 0..0);
            } else if self.format == Format::Cbor || !is_blank(&self.text[self.at..end]) {
                let line = self.at as u32..end as u32;
                chunk.add(line, &mut batch, &mut self.parser, principal);
            }
            self.at = after;
        }
        chunk.line_bytes = self.at.min(self.text.len()) - begin;
        if self.at >= self.text.len()
            && let Some(refusal) = self.refusal.take()
        {
            chunk.calls.refuse(refusal, 0..0);
        }
        let is_empty = chunk.calls.slots().is_empty();
        (!is_empty).then_some(ChunkBatch { chunk, batch })
    }

    /// The end of the call that begins at `at`, and the beginning of the next one.
    fn next_end(&mut self) -> (usize, usize) {
        if self.format == Format::Cbor {
            let end = self.ends.pop_front().unwrap_or(self.text.len());
            return (end, end);
        }
        let rest = &self.text[self.at..];
        let end = memchr::memchr(b'\n', rest).map_or(self.text.len(), |length| self.at + length);
        (end, end + 1)
    }
}

/// Calls as they came. They count among the requests of all connections for as long as a chunk has one of them: blank lines and answered calls
/// beside it stay in memory, too.
struct HeldText {
    text: Bytes,
    _grant: Grant,
}

impl AsRef<[u8]> for HeldText {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl HeldText {
    fn counted(text: Bytes, requests: &Arc<Budget>) -> Bytes {
        let _grant = requests.take(text.len() as u64);
        Bytes::from_owner(Self { text, _grant })
    }
}

/// Many calls go together where their results are sure to be small.
fn has_place(chunk: &Chunk, calls_max: usize) -> bool {
    let calls = chunk.calls.slots().len();
    calls < calls_max.min(BATCH_CHUNK_CALLS_MAX) || calls < BATCH_CHUNK_CALLS_MAX && chunk.calls.has_small_results()
}

fn is_blank(line: &[u8]) -> bool {
    !matches!(line.first(), Some(b'{')) && line.trim_ascii().is_empty()
}

fn too_large(format: Format) -> Refusal {
    let what = match format {
        Format::Json => "a line of a batch",
        Format::Cbor => "an item of a batch",
    };
    Refusal::too_large(what, CALL_BODY_BYTES_MAX)
}
