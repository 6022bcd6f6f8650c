//! Replay arrays (Query Fresh, sections 3.2 and 3.3). While views are open, replay notes a patch and builds no row. By record id, the array
//! holds the row's newest note. Each note names the row's previous one, so that a reader finds the state of its view. A thread that builds
//! a row puts its notes in place, the oldest first.
//!
//! A note holds a copy of the patch's columns, because the window that brought them ends with its replay. Views come and go, and few rows
//! have notes at one time, so the array is a hash table.

use std::{
    collections::VecDeque,
    hash::{BuildHasherDefault, Hasher},
};

use hashbrown::HashMap;
use reprise_wire::PatchColumns;

use crate::{apply::PlainRows, indirection::Rid};

/// Number of notes that are released together.
const PIECE_NOTES: usize = 1 << 7;
/// Distance in notes at which a row that will be built is prefetched.
const AHEAD: usize = 16;
/// Bytes of a patch: an estimate.
const PATCH_BYTES: usize = 16;
/// Number of notes of a row at which replay builds it.
pub(crate) const ROW_NOTES_MAX: usize = 16;
/// Number after which notes are numbered anew, once all are built.
const NUMBER_MAX: u32 = u32::MAX / 2;
/// Bytes of an empty array that are kept for the next notes.
const KEPT_BYTES: usize = 1 << 14;
/// Bytes of the hash table for each row that it has room for.
const ENTRY_BYTES: usize = 2 * size_of::<u32>() + 1;

/// The number of no note.
const NONE: u32 = 0;

/// A row that was inserted, or a patch of plain columns: no index and no length depends on them.
#[derive(Clone, Copy)]
pub(crate) struct Note {
    pub rid: Rid,
    /// The row's previous note, or `NONE`.
    before: u32,
    /// The newest view when the note was made. This view and older ones do not see it.
    pub hidden_from: u64,
    /// Beginning of the patch's columns in the bytes of the piece.
    start: u32,
    bytes: u32,
    /// On a row's first note: the bytes of a copy of the row.
    row_bytes: u32,
    /// Number of columns; 0: the row was inserted.
    count: u16,
    /// Number of the row's notes when this one was added, this one included.
    depth: u8,
    is_built: bool,
}

impl Note {
    pub fn is_new_row(&self) -> bool {
        self.count == 0
    }
}

struct NotePiece {
    notes: Vec<Note>,
    columns: Vec<u8>,
    /// Number of notes that are not built.
    left: usize,
}

impl NotePiece {
    fn new() -> Self {
        Self {
            notes: Vec::with_capacity(PIECE_NOTES),
            columns: Vec::with_capacity(PIECE_NOTES * PATCH_BYTES),
            left: 0,
        }
    }

    fn bytes(&self) -> usize {
        self.notes.capacity() * size_of::<Note>() + self.columns.capacity()
    }
}

/// The replay array of one table.
#[derive(Default)]
pub(crate) struct ReplayArray {
    /// The number of the newest note by record id, for rows with notes that are not built.
    newest: HashMap<u32, u32, BuildHasherDefault<RidHasher>>,
    pieces: VecDeque<NotePiece>,
    /// Number of notes in the released pieces.
    gone: u32,
    left: usize,
    /// Bytes of the pieces.
    bytes: usize,
    /// Estimate of the bytes that copies of the rows with notes take.
    rows_bytes: usize,
    /// Bytes at the last `take_growth`.
    bytes_told: usize,
}

/// A cheap hash: record ids are dense, and no client chooses them.
#[derive(Default)]
struct RidHasher(u64);

impl Hasher for RidHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    fn write_u32(&mut self, rid: u32) {
        let mixed = (self.0 ^ u64::from(rid)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Puts a noted patch in place.
pub(crate) fn put(table: &mut PlainRows<'_>, rid: Rid, columns: PatchColumns<'_>) {
    let is_put = table.put(rid, columns);
    assert!(is_put, "a patch is checked when its note is recorded");
}

/// Numbers of a row's notes, the oldest first.
pub(crate) struct Chain {
    numbers: [u32; ROW_NOTES_MAX],
    first: usize,
}

impl Chain {
    pub fn numbers(&self) -> &[u32] {
        &self.numbers[self.first..]
    }
}

impl ReplayArray {
    /// Estimates the memory that it takes.
    pub fn bytes(&self) -> usize {
        self.bytes + self.newest.capacity() * ENTRY_BYTES
    }

    /// Returns the bytes to copy if all of its rows were kept for a view.
    pub fn rows_bytes(&self) -> usize {
        self.rows_bytes
    }

    /// Returns by how many bytes its memory has grown since the last call.
    #[inline]
    pub fn take_growth(&mut self) -> isize {
        let bytes = self.bytes();
        let before = std::mem::replace(&mut self.bytes_told, bytes);
        bytes as isize - before as isize
    }

    /// Returns the number of notes that are not built.
    #[inline]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Returns the row's newest note.
    #[inline]
    fn newest(&self, rid: Rid) -> u32 {
        self.newest.get(&rid.0).copied().unwrap_or(NONE)
    }

    /// True if the row has notes that are not built.
    #[inline]
    pub fn has(&self, rid: Rid) -> bool {
        self.left > 0 && self.newest(rid) != NONE
    }

    /// False if the row must be built before it gets another note.
    #[inline]
    pub fn has_room(&self, rid: Rid) -> bool {
        match self.newest(rid) {
            NONE => true,
            number => (self.note(number).depth as usize) < ROW_NOTES_MAX,
        }
    }

    /// True if there are numbers for more notes.
    pub fn has_numbers(&self) -> bool {
        self.gone < NUMBER_MAX
    }

    #[inline]
    fn place(&self, number: u32) -> (usize, usize) {
        let at = (number - 1 - self.gone) as usize;
        (at / PIECE_NOTES, at % PIECE_NOTES)
    }

    #[inline]
    pub fn note(&self, number: u32) -> &Note {
        let (piece, at) = self.place(number);
        &self.pieces[piece].notes[at]
    }

    /// Returns the columns that the patch of a note writes. None for an inserted row.
    pub fn columns(&self, number: u32) -> Option<PatchColumns<'_>> {
        let (piece, at) = self.place(number);
        let NotePiece { notes, columns, .. } = &self.pieces[piece];
        let note = &notes[at];
        let bytes = &columns[note.start as usize..][..note.bytes as usize];
        (!note.is_new_row()).then(|| PatchColumns::again(note.count, bytes))
    }

    /// Adds the row's next note, if there is room for it: a patch of these columns, or None for an inserted row. The view `hidden_from` and
    /// older ones do not see it. A copy of the row takes `row_bytes`.
    #[inline]
    pub fn push(&mut self, (rid, row_bytes): (Rid, u32), columns: Option<PatchColumns<'_>>, hidden_from: u64) {
        if self.pieces.back().is_none_or(|piece| piece.notes.len() == PIECE_NOTES) {
            let piece = NotePiece::new();
            self.bytes += piece.bytes();
            self.pieces.push_back(piece);
        }
        let (count, patch) = columns.map_or((0, &[][..]), PatchColumns::parts);
        let full = (self.pieces.len() - 1) * PIECE_NOTES;
        let in_last = self.pieces.back().map_or(0, |piece| piece.notes.len());
        let number = self.gone + (full + in_last) as u32 + 1;
        let before = self.newest.insert(rid.0, number).unwrap_or(NONE);
        let (depth, row_bytes) = match before {
            NONE => (1, row_bytes),
            before => (self.note(before).depth + 1, 0),
        };
        let piece = self.pieces.back_mut().expect("it was just seen to");
        piece.notes.push(Note {
            rid,
            before,
            hidden_from,
            start: piece.columns.len() as u32,
            bytes: patch.len() as u32,
            row_bytes,
            count,
            depth,
            is_built: false,
        });
        let room = piece.columns.capacity();
        piece.columns.extend_from_slice(patch);
        self.bytes += piece.columns.capacity() - room;
        piece.left += 1;
        self.left += 1;
        self.rows_bytes += row_bytes as usize;
    }

    /// Returns the row's notes.
    pub fn chain(&self, rid: Rid) -> Chain {
        let mut chain = Chain {
            numbers: [NONE; ROW_NOTES_MAX],
            first: ROW_NOTES_MAX,
        };
        let mut number = self.newest(rid);
        while number != NONE {
            chain.first -= 1;
            chain.numbers[chain.first] = number;
            number = self.note(number).before;
        }
        chain
    }

    /// True if the row was inserted after this view, which therefore does not see it. The notes that the view sees must be built.
    #[inline]
    pub fn hides(&self, rid: Rid, view: u64) -> bool {
        let chain = self.chain(rid);
        let oldest = chain.numbers().first().map(|number| self.note(*number));
        oldest.is_some_and(|oldest| oldest.is_new_row() && oldest.hidden_from >= view)
    }

    /// Records that the first `count` notes of the row's chain are in place.
    pub fn set_built(&mut self, rid: Rid, chain: &Chain, count: usize) {
        let (built, rest) = chain.numbers().split_at(count);
        for number in built {
            let (piece, at) = self.place(*number);
            let piece = &mut self.pieces[piece];
            piece.notes[at].is_built = true;
            piece.left -= 1;
            self.rows_bytes -= piece.notes[at].row_bytes as usize;
        }
        self.left -= count;
        match rest.first() {
            None => _ = self.newest.remove(&rid.0),
            Some(oldest) => {
                let (piece, at) = self.place(*oldest);
                self.pieces[piece].notes[at].before = NONE;
            }
        }
    }

    /// Returns the view after which all views see all notes of the oldest piece. None if there is no piece.
    pub fn oldest_hidden_from(&self) -> Option<u64> {
        Some(self.pieces.front()?.notes.last()?.hidden_from)
    }

    /// Returns the rows with notes in the oldest piece that are not built. A row with two such notes occurs twice.
    pub fn oldest_rows(&self) -> Vec<Rid> {
        let notes = self.pieces.front().map_or(&[][..], |piece| &piece.notes[..]);
        let left = notes.iter().filter(|note| !note.is_built);
        left.map(|note| note.rid).collect()
    }

    /// Puts all notes in place, in the order in which they were made. It serves rows that no view needs in an older state.
    pub fn put_all(&mut self, table: &mut PlainRows<'_>) {
        for NotePiece { notes, columns, .. } in &self.pieces {
            for (at, note) in notes.iter().enumerate() {
                if let Some(coming) = notes.get(at + AHEAD).filter(|note| !note.is_new_row()) {
                    table.rows.touch(coming.rid);
                }
                if !note.is_built && !note.is_new_row() {
                    let bytes = &columns[note.start as usize..][..note.bytes as usize];
                    put(table, note.rid, PatchColumns::again(note.count, bytes));
                }
            }
        }
        self.pieces.iter_mut().for_each(|piece| piece.left = 0);
        self.newest.clear();
        (self.left, self.rows_bytes) = (0, 0);
        self.release_built();
    }

    /// Releases the oldest pieces, if all of their notes are built.
    pub fn release_built(&mut self) {
        while let Some(piece) = self.pieces.pop_front_if(|piece| piece.left == 0) {
            self.gone += piece.notes.len() as u32;
            self.bytes -= piece.bytes();
        }
        if self.pieces.is_empty() {
            self.gone = 0;
            if self.bytes() > KEPT_BYTES {
                self.newest = HashMap::default();
            }
        }
    }
}
