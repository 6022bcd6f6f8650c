//! Replay arrays (Query Fresh, sections 3.2 and 3.3): while views are open, replay notes a patch and builds no row. By record id the array holds the
//! row's newest note, and each note where the row's previous one is, so that a reader finds what its view sees. Whoever builds a row puts its notes
//! in place, the oldest first.
//!
//! A note holds a copy of the patch's columns: the window that they came in goes with its replay.

use std::collections::VecDeque;

use reprise_wire::PatchColumns;

use crate::{apply::PlainRows, indirection::Rid};

/// Record ids of a page of the array.
const PAGE_RIDS: usize = 1 << 6;
/// Notes that are let go together.
const PIECE_NOTES: usize = 1 << 10;
/// Notes ahead of which a row is asked for that is to be built.
const AHEAD: usize = 16;
/// Bytes of a patch, about.
const PATCH_BYTES: usize = 16;
/// Notes of a row behind which replay builds it.
pub(crate) const ROW_NOTES_MAX: usize = 16;
/// Notes are numbered anew, once all are built, behind this number.
const NUMBER_MAX: u32 = u32::MAX / 2;

/// Bytes from which on pages without notes are let go.
const KEPT_BYTES: usize = 1 << 20;

/// No note has this number.
const NONE: u32 = 0;

/// A row that came, or a patch of plain columns: no index and no length depends on them.
#[derive(Clone, Copy)]
pub(crate) struct Note {
    pub rid: Rid,
    /// The row's previous one; `NONE`.
    before: u32,
    /// The newest view when it came: this one and older ones do not see it.
    pub hidden_from: u64,
    /// The patch's columns in the bytes of the piece.
    start: u32,
    bytes: u32,
    /// Columns; 0: the row came.
    count: u16,
    /// Of the row, this one included, as many as there were when it came.
    depth: u8,
    is_built: bool,
}

impl Note {
    pub fn is_new_row(&self) -> bool {
        self.count == 0
    }
}

struct Page {
    /// By record id: the number of the newest note that is not built; `NONE`.
    newest: [u32; PAGE_RIDS],
    /// Rows that have one.
    rows: usize,
}

struct Piece {
    notes: Vec<Note>,
    columns: Vec<u8>,
    /// Notes that are not built.
    left: usize,
}

/// Of one table.
#[derive(Default)]
pub(crate) struct ReplayArray {
    /// By record id, in pages that are made when they are needed.
    pages: Vec<Option<Box<Page>>>,
    pieces: VecDeque<Piece>,
    /// An empty one, for the next.
    spare: Option<Piece>,
    /// Numbers of the pieces that went, in notes.
    gone: u32,
    left: usize,
    bytes: usize,
    /// Of them, those of notes.
    notes_bytes: usize,
    /// As of the last `take_growth`.
    bytes_told: usize,
}

/// Puts a noted patch in place.
pub(crate) fn put(table: &mut PlainRows<'_>, rid: Rid, columns: PatchColumns<'_>) {
    let is_put = table.put(rid, columns);
    assert!(is_put, "a patch is judged when it is noted");
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
    /// Memory that it takes, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Of that, what notes take.
    pub fn notes_bytes(&self) -> usize {
        self.notes_bytes
    }

    /// By how many bytes that grew since it was asked for last.
    #[inline]
    pub fn take_growth(&mut self) -> isize {
        let before = std::mem::replace(&mut self.bytes_told, self.bytes);
        self.bytes as isize - before as isize
    }

    /// Notes that are not built.
    pub fn left(&self) -> usize {
        self.left
    }

    /// The row's newest note.
    #[inline]
    fn newest(&self, rid: Rid) -> u32 {
        let page = self.pages.get(rid.0 as usize / PAGE_RIDS).and_then(Option::as_deref);
        page.map_or(NONE, |page| page.newest[rid.0 as usize % PAGE_RIDS])
    }

    /// True where something of the row is to be built.
    #[inline]
    pub fn has(&self, rid: Rid) -> bool {
        self.left > 0 && self.newest(rid) != NONE
    }

    /// False where the row is to be built before another note of it comes.
    #[inline]
    pub fn has_room(&self, rid: Rid) -> bool {
        match self.newest(rid) {
            NONE => true,
            number => (self.note(number).depth as usize) < ROW_NOTES_MAX,
        }
    }

    /// True where notes can be numbered on.
    pub fn has_numbers(&self) -> bool {
        self.gone < NUMBER_MAX
    }

    /// Sets the row's newest note, of which there is one; what it was before.
    #[inline]
    fn put_newest(&mut self, rid: Rid, number: u32) -> u32 {
        let at = rid.0 as usize / PAGE_RIDS;
        if self.pages.get(at).is_none_or(Option::is_none) {
            self.make_page(at);
        }
        let page = self.pages[at].as_deref_mut().expect("it was just seen to");
        let before = std::mem::replace(&mut page.newest[rid.0 as usize % PAGE_RIDS], number);
        page.rows += (before == NONE) as usize;
        before
    }

    #[cold]
    fn make_page(&mut self, at: usize) {
        if self.pages.len() <= at {
            self.pages.resize_with(at + 1, || None);
        }
        self.pages[at] = Some(Box::new(Page {
            newest: [NONE; PAGE_RIDS],
            rows: 0,
        }));
        self.bytes += size_of::<Page>();
    }

    /// The row has no note that is not built. Pages are kept for the next ones, unless all of it takes much.
    fn forget_newest(&mut self, rid: Rid) {
        let at = rid.0 as usize / PAGE_RIDS;
        let Some(page) = &mut self.pages[at] else { return };
        page.newest[rid.0 as usize % PAGE_RIDS] = NONE;
        page.rows -= 1;
        if page.rows == 0 && self.bytes > KEPT_BYTES {
            self.pages[at] = None;
            self.bytes -= size_of::<Page>();
        }
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

    #[inline]
    fn note_mut(&mut self, number: u32) -> &mut Note {
        let (piece, at) = self.place(number);
        &mut self.pieces[piece].notes[at]
    }

    /// The columns that the patch of a note writes; none of a row that came.
    pub fn columns(&self, number: u32) -> Option<PatchColumns<'_>> {
        let (piece, at) = self.place(number);
        let Piece { notes, columns, .. } = &self.pieces[piece];
        let note = &notes[at];
        let bytes = &columns[note.start as usize..][..note.bytes as usize];
        (!note.is_new_row()).then(|| PatchColumns::again(note.count, bytes))
    }

    /// Adds the row's next note, where there is room for it: a patch of these columns, or none of a row that came. This view and older ones do
    /// not see it.
    #[inline]
    pub fn push(&mut self, rid: Rid, columns: Option<PatchColumns<'_>>, hidden_from: u64) {
        if self.pieces.back().is_none_or(|piece| piece.notes.len() == PIECE_NOTES) {
            self.begin_piece();
        }
        let (count, patch) = columns.map_or((0, &[][..]), PatchColumns::parts);
        let full = (self.pieces.len() - 1) * PIECE_NOTES;
        let in_last = self.pieces.back().map_or(0, |piece| piece.notes.len());
        let before = self.put_newest(rid, self.gone + (full + in_last) as u32 + 1);
        let depth = match before {
            NONE => 1,
            before => self.note(before).depth + 1,
        };
        let piece = self.pieces.back_mut().expect("it was just seen to");
        piece.notes.push(Note {
            rid,
            before,
            hidden_from,
            start: piece.columns.len() as u32,
            bytes: patch.len() as u32,
            count,
            depth,
            is_built: false,
        });
        let room = piece.columns.capacity();
        piece.columns.extend_from_slice(patch);
        let grown = piece.columns.capacity() - room;
        (self.bytes, self.notes_bytes) = (self.bytes + grown, self.notes_bytes + grown);
        piece.left += 1;
        self.left += 1;
    }

    #[cold]
    fn begin_piece(&mut self) {
        let piece = self.spare.take().unwrap_or_else(|| {
            let piece = Piece {
                notes: Vec::with_capacity(PIECE_NOTES),
                columns: Vec::with_capacity(PIECE_NOTES * PATCH_BYTES),
                left: 0,
            };
            self.bytes += piece.bytes();
            piece
        });
        self.notes_bytes += piece.bytes();
        self.pieces.push_back(piece);
    }

    /// The row's notes.
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

    /// True where the row came and this view does not see that, once what the view sees of it is built.
    #[inline]
    pub fn hides(&self, rid: Rid, view: u64) -> bool {
        if !self.has(rid) {
            return false;
        }
        let oldest = self.note(self.chain(rid).numbers()[0]);
        oldest.is_new_row() && oldest.hidden_from >= view
    }

    /// The first `count` notes of the row's chain are in place.
    pub fn set_built(&mut self, rid: Rid, chain: &Chain, count: usize) {
        let (built, rest) = chain.numbers().split_at(count);
        for number in built {
            let (piece, _) = self.place(*number);
            self.note_mut(*number).is_built = true;
            self.pieces[piece].left -= 1;
        }
        self.left -= count;
        match rest.first() {
            None => self.forget_newest(rid),
            Some(oldest) => self.note_mut(*oldest).before = NONE,
        }
    }

    /// Views behind this one see all notes of the oldest piece; none where there is no piece.
    pub fn oldest_hidden_from(&self) -> Option<u64> {
        Some(self.pieces.front()?.notes.last()?.hidden_from)
    }

    /// Rows with notes in the oldest piece, as far as they are not built. Twice those of which there are two.
    pub fn oldest_rows(&self) -> Vec<Rid> {
        let notes = self.pieces.front().map_or(&[][..], |piece| &piece.notes[..]);
        let left = notes.iter().filter(|note| !note.is_built);
        left.map(|note| note.rid).collect()
    }

    /// Puts all notes in place, in the order in which they came: for rows that no view sees otherwise.
    pub fn put_all(&mut self, table: &mut PlainRows<'_>) {
        for Piece { notes, columns, .. } in &self.pieces {
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
        for page in self.pages.iter_mut().flatten().filter(|page| page.rows > 0) {
            page.newest.fill(NONE);
            page.rows = 0;
        }
        for piece in &mut self.pieces {
            piece.left = 0;
        }
        self.left = 0;
        self.let_go();
    }

    /// Lets go of the oldest pieces of which all notes are built.
    pub fn let_go(&mut self) {
        while let Some(mut piece) = self.pieces.pop_front_if(|piece| piece.left == 0) {
            self.gone += piece.notes.len() as u32;
            self.notes_bytes -= piece.bytes();
            if self.spare.is_some() {
                self.bytes -= piece.bytes();
                continue;
            }
            piece.notes.clear();
            piece.columns.clear();
            self.spare = Some(piece);
        }
        if self.pieces.is_empty() {
            self.gone = 0;
        }
    }
}

impl Piece {
    fn bytes(&self) -> usize {
        self.notes.capacity() * size_of::<Note>() + self.columns.capacity()
    }
}
