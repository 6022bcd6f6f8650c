//! A plan that moves some columns between rows and runs of chosen columns, computed once for many rows.
//!
//! Columns that lie side by side in the row do so in the run, too: they are moved by one copy.

use alloc::vec::Vec;

use crate::{
    columns::{ColumnSet, ColumnsMalformed},
    copy::{copy_first, copy_short},
    row::RowLayout,
    types::ScalarType,
};

/// Columns of fixed width that lie side by side.
#[derive(Clone, Copy)]
struct ColumnSpan {
    /// Byte in the row, and in the run.
    from: u32,
    to: u32,
    bytes: u32,
}

impl ColumnSpan {
    #[inline(always)]
    fn read(&self, row: &[u8], out: &mut [u8]) {
        copy_span(row, self.from, out, self.to, self.bytes);
    }

    #[inline(always)]
    fn write(&self, row: &mut [u8], values: &[u8]) {
        copy_span(values, self.to, row, self.from, self.bytes);
    }
}

/// Copies bytes from a place in one run to a place in another; mostly those of one number.
#[inline(always)]
fn copy_span(source: &[u8], from: u32, target: &mut [u8], to: u32, bytes: u32) {
    let (from, to, bytes) = (from as usize, to as usize, bytes as usize);
    let (source, target) = (&source[from..from + bytes], &mut target[to..to + bytes]);
    match bytes {
        8 => copy_first::<8>(source, target),
        4 => copy_first::<4>(source, target),
        2 => copy_first::<2>(source, target),
        1 => target[0] = source[0],
        _ => copy_short(source, target),
    }
}

/// A nullable column: its bit in the null bitmaps of both, and its slot.
struct NullableColumn {
    from: u16,
    to: u16,
    /// The slot in the run.
    slot: u32,
    bytes: u32,
}

/// Columns of text or bytes whose data lie side by side.
struct TextColumns {
    /// Slot in the row with the beginning of the data. None: the start of the data area.
    before: Option<u32>,
    /// Slot in the row with their end.
    last: u32,
    /// Index of its first slot in `ColumnPlan::ends`.
    first_end: usize,
    end_count: usize,
}

/// See the module's header. It holds for one layout.
pub struct ColumnPlan {
    set: ColumnSet,
    nullable: Vec<NullableColumn>,
    spans: Vec<ColumnSpan>,
    texts: Vec<TextColumns>,
    /// Slots of text, in the row and in the run.
    ends: Vec<(u32, u32)>,
    /// Places in the run that hold 0 or 1.
    bools: Vec<u32>,
    bitmap_bytes: u32,
    /// Bytes of the run without data.
    fixed_bytes: u32,
    /// Offset of the row's data.
    data_offset: u32,
    /// The bytes of the row among which `write` changes some.
    written: (u32, u32),
    /// A short form of `write`, for simple plans.
    one_span: Option<OneSpan>,
    /// A short form of `read`, for simple plans.
    one_run: Option<OneRun>,
    /// Range of the row that holds the bitmap, the slots, and the slots that locate data.
    head: (u32, u32),
}

impl ColumnPlan {
    /// The set fits the layout.
    pub fn new(layout: &RowLayout, set: ColumnSet) -> Self {
        let slots = || set.positions().map(|at| &layout.columns[at]);
        let bitmap_bytes = slots().filter(|slot| slot.is_nullable()).count().div_ceil(8) as u32;
        let mut plan = Self {
            set,
            nullable: Vec::new(),
            spans: Vec::new(),
            texts: Vec::new(),
            ends: Vec::new(),
            bools: Vec::new(),
            bitmap_bytes,
            fixed_bytes: bitmap_bytes,
            data_offset: layout.fixed_bytes() as u32,
            written: (0, 0),
            one_span: None,
            one_run: None,
            head: (0, 0),
        };
        for slot in slots() {
            let (to, bytes) = (plan.fixed_bytes, slot.ty.slot_bytes() as u32);
            if slot.is_nullable() {
                plan.nullable.push(NullableColumn {
                    from: slot.null_bit,
                    to: plan.nullable.len() as u16,
                    slot: to,
                    bytes,
                });
            }
            if slot.ty == ScalarType::Bool {
                plan.bools.push(to);
            }
            match slot.ty.is_variable() {
                true => plan.add_text(slot.previous(), slot.offset),
                false => plan.add_fixed(slot.offset, bytes),
            }
            plan.fixed_bytes += bytes;
        }
        plan.written = plan.range_of(false);
        plan.head = plan.range_of(true);
        plan.one_span = OneSpan::of(&plan.spans, &plan.nullable);
        plan.one_run = OneRun::of(&plan);
        plan
    }

    /// Returns the range from the first to the last byte of the row in the bitmap, a span or (`with_texts`) the slot of a text.
    fn range_of(&self, with_texts: bool) -> (u32, u32) {
        let spans = self.spans.iter().map(|span| (span.from, span.from + span.bytes));
        let slots = self.ends.iter().map(|(slot, _)| *slot);
        let slots = slots.chain(self.texts.iter().filter_map(|texts| texts.before));
        let slots = slots.filter(|_| with_texts).map(|slot| (slot, slot + 4));
        let all = spans
            .chain(slots)
            .reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)));
        let (start, end) = all.unwrap_or((0, 0));
        (if self.nullable.is_empty() { start } else { 0 }, end)
    }

    fn add_fixed(&mut self, from: u32, bytes: u32) {
        let to = self.fixed_bytes;
        match self.spans.last_mut() {
            Some(last) if last.from + last.bytes == from && last.to + last.bytes == to => {
                last.bytes += bytes;
            }
            _ => self.spans.push(ColumnSpan { from, to, bytes }),
        }
    }

    fn add_text(&mut self, before: Option<u32>, slot: u32) {
        match self.texts.last_mut() {
            Some(texts) if before == Some(texts.last) => {
                texts.last = slot;
                texts.end_count += 1;
            }
            _ => self.texts.push(TextColumns {
                before,
                last: slot,
                first_end: self.ends.len(),
                end_count: 1,
            }),
        }
        self.ends.push((slot, self.fixed_bytes));
    }

    /// The columns.
    #[inline]
    pub fn set(&self) -> ColumnSet {
        self.set
    }

    /// All columns are of fixed width: every run has `fixed_bytes` bytes.
    #[inline]
    pub fn is_fixed(&self) -> bool {
        self.texts.is_empty()
    }

    /// Bytes of the columns, without the data of texts.
    #[inline]
    pub fn fixed_bytes(&self) -> usize {
        self.fixed_bytes as usize
    }

    /// Bytes of the columns of a valid row.
    #[inline]
    pub fn bytes(&self, row: &[u8]) -> usize {
        let data = match &self.texts[..] {
            [] => 0,
            [texts] => texts.bytes(row),
            all => all.iter().map(|texts| texts.bytes(row)).sum(),
        };
        self.fixed_bytes as usize + data
    }

    /// The bytes of a row that `read` touches.
    #[inline]
    pub fn prefetch(&self) -> ReadSpan<'_> {
        ReadSpan {
            start: self.head.0 as usize,
            end: self.head.1 as usize,
            rest: (!self.is_fixed()).then_some(self),
        }
    }

    /// The data of a valid row among which those of the columns lie.
    #[inline]
    fn data<'r>(&self, row: &'r [u8]) -> &'r [u8] {
        let (Some(first), Some(last)) = (self.texts.first(), self.texts.last()) else {
            return &[];
        };
        let at = |end: u32| (self.data_offset + end) as usize;
        row.get(at(first.range(row).0)..at(last.range(row).1)).unwrap_or(&[])
    }

    /// Offset and width of the plan's only column, if that is a number that is never null.
    #[inline]
    pub fn number(&self) -> Option<(usize, usize)> {
        match (&self.spans[..], self.nullable.is_empty() && self.is_fixed()) {
            ([span], true) => Some((span.from as usize, span.bytes as usize)),
            _ => None,
        }
    }

    /// Copies the columns of a valid row to `out`, which is `bytes` long.
    #[inline(always)]
    pub fn read(&self, row: &[u8], out: &mut [u8]) {
        match (&self.spans[..], &self.texts[..]) {
            ([span], []) => {
                match &self.nullable[..] {
                    [] => {}
                    [column] => out[0] = bit(row, column.from),
                    _ => self.read_nulls(row, out),
                }
                span.read(row, out);
            }
            ([span], [texts]) if self.nullable.is_empty() => {
                span.read(row, out);
                let (slots, data) = out.split_at_mut(self.fixed_bytes as usize);
                self.read_run(texts, 0, row, slots, data);
            }
            _ => self.read_any(row, out),
        }
    }

    /// Copies the columns of a valid row to the front of `room` if they fit. Returns their bytes either way.
    #[inline(always)]
    pub fn read_within(&self, row: &[u8], room: &mut [u8]) -> usize {
        match &self.one_run {
            Some(run) if run.text_count > 0 => self.read_run_within(run, row, room),
            Some(run) if room.len() >= run.fixed => {
                run.span.read(row, room);
                run.fixed
            }
            _ => self.read_any_within(row, room),
        }
    }

    #[inline(always)]
    fn read_run_within(&self, run: &OneRun, row: &[u8], room: &mut [u8]) -> usize {
        let start = match run.before {
            NOWHERE => 0,
            slot => read_u32(row, slot),
        };
        let end = read_u32(row, run.last);
        let bytes = run.fixed + (end - start) as usize;
        if bytes <= room.len() {
            run.span.read(row, room);
            let (slots, data) = room.split_at_mut(run.fixed);
            // The last one ends at the end of the data.
            for (from, to) in &run.inner[..run.text_count - 1] {
                write_u32(slots, *to, read_u32(row, *from).wrapping_sub(start));
            }
            write_u32(slots, run.last_to, end - start);
            let from = &row[(self.data_offset + start) as usize..(self.data_offset + end) as usize];
            copy_short(from, &mut data[..from.len()]);
        }
        bytes
    }

    fn read_any_within(&self, row: &[u8], room: &mut [u8]) -> usize {
        let bytes = self.bytes(row);
        if let Some(room) = room.get_mut(..bytes) {
            self.read(row, room);
        }
        bytes
    }

    fn read_any(&self, row: &[u8], out: &mut [u8]) {
        if !self.nullable.is_empty() {
            self.read_nulls(row, out);
        }
        for span in &self.spans {
            span.read(row, out);
        }
        if !self.texts.is_empty() {
            self.read_texts(row, out);
        }
    }

    fn read_nulls(&self, row: &[u8], out: &mut [u8]) {
        for (byte, columns) in out.iter_mut().zip(self.nullable.chunks(8)) {
            let bits = columns.iter().enumerate();
            *byte = bits.fold(0, |bits, (at, column)| bits | bit(row, column.from) << at);
        }
    }

    #[inline]
    fn read_texts(&self, row: &[u8], out: &mut [u8]) {
        let (slots, data) = out.split_at_mut(self.fixed_bytes as usize);
        let mut filled = 0;
        for texts in &self.texts {
            filled = self.read_run(texts, filled, row, slots, data);
        }
    }

    /// Copies texts that lie side by side, the data before them being `filled` bytes; how many they are then.
    #[inline(always)]
    fn read_run(&self, texts: &TextColumns, filled: usize, row: &[u8], slots: &mut [u8], data: &mut [u8]) -> usize {
        let (start, end) = texts.range(row);
        let moved = (filled as u32).wrapping_sub(start);
        for (from, to) in &self.ends[texts.first_end..texts.first_end + texts.end_count] {
            let end = read_u32(row, *from).wrapping_add(moved);
            write_u32(slots, *to, end);
        }
        let from = &row[(self.data_offset + start) as usize..(self.data_offset + end) as usize];
        let to = filled + from.len();
        copy_short(from, &mut data[filled..to]);
        to
    }

    /// Bytes that the values at the front of `values` take, their data included.
    #[inline]
    pub fn values_len(&self, values: &[u8]) -> Result<usize, ColumnsMalformed> {
        let fixed = self.fixed_bytes as usize;
        if fixed > values.len() {
            return Err(ColumnsMalformed);
        }
        let data = match self.ends.last() {
            None => 0,
            Some((_, to)) => read_u32(values, *to) as usize,
        };
        match data <= values.len() - fixed {
            true => Ok(fixed + data),
            false => Err(ColumnsMalformed),
        }
    }

    /// How many rows' values there are, one behind the other, before one that does not pass `check`.
    pub fn fitting(&self, values: &[u8]) -> usize {
        let each = self.fixed_bytes as usize;
        let rows = values.len().checked_div(each).unwrap_or(usize::MAX);
        let has_checks = !self.is_fixed() || !self.nullable.is_empty() || !self.bools.is_empty();
        if !has_checks || each == 0 {
            return rows;
        }
        let first_nulls = values.iter().step_by(each).take(rows);
        if self.is_fixed()
            && self.bools.is_empty()
            && self.bitmap_bytes == 1
            && first_nulls.fold(0, |all, nulls| all | nulls) == 0
        {
            return rows;
        }
        let refused = values.chunks_exact(each).position(|values| self.check(values).is_err());
        refused.unwrap_or(rows)
    }

    /// Checks values for `write`: their length, that a null's slot is zero, and that a bool is 0 or 1. For a set of columns
    /// of fixed width.
    #[inline]
    pub fn check(&self, values: &[u8]) -> Result<(), ColumnsMalformed> {
        if !self.is_fixed() || values.len() != self.fixed_bytes as usize {
            return Err(ColumnsMalformed);
        }
        // Without a null, no slot must be zero.
        let has_null = match &values[..self.bitmap_bytes as usize] {
            [] => false,
            [nulls] => *nulls != 0,
            nulls => nulls.iter().any(|byte| *byte != 0),
        };
        match has_null || !self.bools.is_empty() {
            true => self.check_values(values),
            false => Ok(()),
        }
    }

    fn check_values(&self, values: &[u8]) -> Result<(), ColumnsMalformed> {
        let used = self.nullable.len() % 8;
        let has_unused_bits = used != 0 && values[self.bitmap_bytes as usize - 1] >> used != 0;
        let is_null_set = self.nullable.iter().any(|column| {
            let slot = &values[column.slot as usize..][..column.bytes as usize];
            bit(values, column.to) == 1 && slot.iter().any(|byte| *byte != 0)
        });
        let is_bool_odd = self.bools.iter().any(|at| values[*at as usize] > 1);
        match has_unused_bits || is_null_set || is_bool_odd {
            true => Err(ColumnsMalformed),
            false => Ok(()),
        }
    }

    /// Returns the range of a row's bytes that contains all bytes changed by `write`.
    #[inline]
    pub fn written(&self) -> core::ops::Range<usize> {
        self.written.0 as usize..self.written.1 as usize
    }

    /// Writes checked values into a valid row, whose length stays.
    #[inline(always)]
    pub fn write(&self, row: &mut [u8], values: &[u8]) {
        match &self.one_span {
            Some(span) => span.write(row, values),
            None => self.write_any(row, values),
        }
    }

    fn write_any(&self, row: &mut [u8], values: &[u8]) {
        for column in &self.nullable {
            let byte = &mut row[column.from as usize / 8];
            let mask = 1 << (column.from % 8);
            *byte = *byte & !mask | bit(values, column.to) << (column.from % 8);
        }
        for span in &self.spans {
            span.write(row, values);
        }
    }
}

/// Columns of which none may be null: one span, and then texts whose data lie side by side, if there are any.
struct OneRun {
    span: ColumnSpan,
    text_count: usize,
    /// Slot before the texts, see `TextColumns`; `NOWHERE` for none.
    before: u32,
    last: u32,
    /// Slots of the texts but the last, in the row and in the run.
    inner: [(u32, u32); RUN_TEXTS_MAX - 1],
    /// Slot of the last text in the run.
    last_to: u32,
    fixed: usize,
}

/// Text columns of a `OneRun`, at most.
const RUN_TEXTS_MAX: usize = 4;
const NOWHERE: u32 = u32::MAX;

impl OneRun {
    fn of(plan: &ColumnPlan) -> Option<Self> {
        let ([span], [] | [_], []) = (&plan.spans[..], &plan.texts[..], &plan.nullable[..]) else {
            return None;
        };
        let texts = plan.texts.first();
        let mut inner = [(0, 0); RUN_TEXTS_MAX - 1];
        let last_to = match plan.ends.split_last() {
            Some(((_, last_to), ends)) => {
                inner.get_mut(..ends.len())?.copy_from_slice(ends);
                *last_to
            }
            None => 0,
        };
        Some(Self {
            span: *span,
            text_count: plan.ends.len(),
            before: texts.and_then(|texts| texts.before).unwrap_or(NOWHERE),
            last: texts.map_or(0, |texts| texts.last),
            inner,
            last_to,
            fixed: plan.fixed_bytes(),
        })
    }
}

/// Columns side by side of which one may be null.
struct OneSpan {
    span: ColumnSpan,
    /// Byte and bit of the nullable column in the null bitmap; no bit: no column may be null.
    null_byte: u32,
    null_bit: u8,
}

impl OneSpan {
    /// Makes the plan. None if there are more spans, or more columns that may be null.
    fn of(spans: &[ColumnSpan], nullable: &[NullableColumn]) -> Option<Self> {
        let ([ColumnSpan { from, to, bytes }], [] | [_]) = (spans, nullable) else {
            return None;
        };
        let null = nullable.first().map(|column| column.from);
        Some(Self {
            span: ColumnSpan {
                from: *from,
                to: *to,
                bytes: *bytes,
            },
            null_byte: null.map_or(0, |bit| bit as u32 / 8),
            null_bit: null.map_or(0, |bit| 1 << (bit % 8)),
        })
    }

    /// Writes like `ColumnPlan::write`.
    #[inline(always)]
    fn write(&self, row: &mut [u8], values: &[u8]) {
        if self.null_bit != 0 {
            let byte = &mut row[self.null_byte as usize];
            let null = if values[0] & 1 == 0 { 0 } else { self.null_bit };
            *byte = *byte & !self.null_bit | null;
        }
        self.span.write(row, values);
    }
}

/// Plans of one layout, made when first asked for.
pub struct Plans {
    plans: Vec<ColumnPlan>,
    /// Index of a set's plan, by the hash of the set; it may belong to another set.
    slots: [u8; HASH_SLOTS],
}

/// Plans that are kept. More sets than this replace them all.
const PLANS_MAX: usize = 64;
const HASH_SLOTS: usize = 256;

impl Default for Plans {
    fn default() -> Self {
        Self {
            plans: Vec::new(),
            slots: [0; HASH_SLOTS],
        }
    }
}

impl Plans {
    /// The plan of a set that fits the layout, which is always the same one.
    #[inline]
    pub fn of(&mut self, layout: &RowLayout, set: ColumnSet) -> &ColumnPlan {
        let slot = (set.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - HASH_SLOTS.ilog2())) as usize;
        let at = self.slots[slot] as usize;
        match self.plans.get(at) {
            Some(plan) if plan.set == set => &self.plans[at],
            _ => self.seek(layout, set, slot),
        }
    }

    #[inline(never)]
    fn seek(&mut self, layout: &RowLayout, set: ColumnSet, slot: usize) -> &ColumnPlan {
        let found = self.plans.iter().position(|plan| plan.set == set);
        let at = found.unwrap_or_else(|| {
            if self.plans.len() >= PLANS_MAX {
                self.plans.clear();
            }
            self.plans.push(ColumnPlan::new(layout, set));
            self.plans.len() - 1
        });
        self.slots[slot] = at as u8;
        &self.plans[at]
    }
}

/// Bytes of a row that will be read, for prefetching many rows: first the fixed part, then the rest, which the first part locates.
#[derive(Clone, Copy)]
pub struct ReadSpan<'a> {
    start: usize,
    end: usize,
    rest: Option<&'a ColumnPlan>,
}

/// A row that is no longer than this is asked for as a whole.
const SHORT_ROW_BYTES: usize = 192;

impl ReadSpan<'_> {
    /// All bytes.
    pub const ALL: Self = Self {
        start: 0,
        end: usize::MAX,
        rest: None,
    };

    /// Bytes of a valid row that are read first.
    #[inline(always)]
    pub fn first<'r>(&self, row: &'r [u8]) -> &'r [u8] {
        if self.rest.is_some() && row.len() <= SHORT_ROW_BYTES {
            return row;
        }
        let end = self.end.min(row.len());
        &row[self.start.min(end)..end]
    }

    /// True if more than `first` is read.
    #[inline(always)]
    pub fn has_rest(&self) -> bool {
        self.rest.is_some()
    }

    /// Bytes of a valid row that are read after `first`.
    #[inline(always)]
    pub fn rest<'r>(&self, row: &'r [u8]) -> &'r [u8] {
        match self.rest {
            Some(plan) if row.len() > SHORT_ROW_BYTES => plan.data(row),
            _ => &[],
        }
    }
}

impl TextColumns {
    /// Bytes of the data in a valid row.
    #[inline(always)]
    fn bytes(&self, row: &[u8]) -> usize {
        let (start, end) = self.range(row);
        end as usize - start as usize
    }

    /// Range of the texts in the data of a valid row.
    #[inline(always)]
    fn range(&self, row: &[u8]) -> (u32, u32) {
        let start = match self.before {
            None => 0,
            Some(slot) => read_u32(row, slot),
        };
        (start, read_u32(row, self.last))
    }
}

#[inline]
fn bit(bitmap: &[u8], at: u16) -> u8 {
    bitmap[at as usize / 8] >> (at % 8) & 1
}

#[inline(always)]
fn write_u32(bytes: &mut [u8], at: u32, value: u32) {
    copy_first::<4>(&value.to_le_bytes(), &mut bytes[at as usize..]);
}

#[inline(always)]
fn read_u32(bytes: &[u8], at: u32) -> u32 {
    let at = at as usize;
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}
