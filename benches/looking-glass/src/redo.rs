//! Repeating the log: each record, applied to its page once.

use crate::{
    log::{Record, RecordKind},
    page::{Page, PageKind},
    tree::Rid,
};

/// Applies a record to its page, if the page does not have it yet. False where the two do not fit together.
pub fn redo(page: &mut Page, record: &Record) -> bool {
    if page.lsn() >= record.lsn {
        return true;
    }
    let (site, slot) = (record.site, record.site.slot as usize);
    let (before, after) = (&record.before[..], &record.after[..]);
    let fits = match site.kind {
        RecordKind::Format => {
            let kind = match site.extra {
                1 => PageKind::Heap,
                2 => PageKind::Node,
                _ => PageKind::Free,
            };
            page.format(kind, site.slot as u8);
            true
        }
        RecordKind::Image => {
            page.put_ends(before, after);
            true
        }
        RecordKind::Link => {
            page.set_next(Rid::unpack(site.extra).page);
            true
        }
        RecordKind::Put => page.put(slot, after, false),
        RecordKind::Change => {
            let room = page.record_mut(slot).get_mut(site.extra as usize..);
            let room = room.and_then(|room| room.get_mut(..after.len()));
            room.map(|room| room.copy_from_slice(after)).is_some()
        }
        RecordKind::Replace => page.replace(slot, after, false),
        RecordKind::Forward => page.replace(slot, after, true),
        RecordKind::Hide | RecordKind::Show => {
            page.set_hidden(slot, site.kind == RecordKind::Hide);
            true
        }
        RecordKind::Clear => {
            page.clear(slot);
            true
        }
        RecordKind::NodeInsert => page.insert(slot, before, after),
        RecordKind::NodeRemove => {
            page.remove(slot);
            true
        }
        RecordKind::Begin | RecordKind::Commit | RecordKind::Abort | RecordKind::Move => true,
    };
    page.set_lsn(record.lsn);
    fits
}
