//! A transaction that was logged in parts: they are kept until the record comes that makes them count. Whatever else comes before it says that
//! it never will: the program that wrote them was stopped, or its disk was full.

use std::sync::{Arc, atomic::Ordering};

use reprise_base::{Lsn, PartitionId, TxnId, limits::RUN_BYTES_MAX};
use reprise_wire::{ChangesRef, CommandRef, PartRef, PartitionSet, RawRecord, RawRecords, RecordRef, WireError};

use crate::{
    command::LoggedChanges,
    error::ReplayError,
    redo::RedoPart,
    replayer::{FedRecord, RecoverFrom, Replayer},
    window::Window,
};

/// A transaction of which some parts were fed.
pub(crate) struct OpenRun {
    txn_id: TxnId,
    module_id: u32,
    procedure: u16,
    /// The first part.
    start: Lsn,
    parts: u32,
    /// Has their changes, one partition's behind the other's.
    window: Window,
    groups: Vec<(PartitionId, ByteRange)>,
}

/// Range of a partition's changes in a window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ByteRange {
    pub at: usize,
    pub len: usize,
}

/// A transaction in parts that is whole.
pub(crate) struct WholeRun {
    /// Behind the changes of the parts it has the record that ends them.
    pub window: Arc<Window>,
    /// Offset of that record.
    pub record: usize,
    pub groups: Vec<(PartitionId, ByteRange)>,
}

impl OpenRun {
    /// Begins a run with its first part, which lies at `lsn`.
    pub fn begin(lsn: Lsn, part: &PartRef<'_>) -> Result<Self, ReplayError> {
        let mut run = Self {
            txn_id: part.txn_id,
            module_id: part.module_id,
            procedure: part.procedure,
            start: lsn,
            parts: 0,
            window: Window::default(),
            groups: Vec::new(),
        };
        match part.number {
            0 => run.push(lsn, part).map(|()| run),
            number => Err(unfit(lsn, "0, or the next one of its transaction", number)),
        }
    }

    /// True for what may follow these parts: the next one, what ends them, or the command that stands beside that.
    pub fn is_continued_by(&self, record: &RecordRef<'_>) -> bool {
        let called = |module_id, procedure| (module_id, procedure) == (self.module_id, self.procedure);
        match record {
            RecordRef::Part(part) => part.txn_id == self.txn_id && part.number > 0,
            RecordRef::Changes(changes) => changes.txn_id == self.txn_id && changes.parts > 0,
            RecordRef::Command(CommandRef {
                txn_id,
                module_id,
                procedure,
                ..
            }) => *txn_id == self.txn_id && called(*module_id, *procedure),
            _ => false,
        }
    }

    /// The next part.
    pub fn push(&mut self, lsn: Lsn, part: &PartRef<'_>) -> Result<(), ReplayError> {
        if part.number != self.parts || part.module_id != self.module_id || part.procedure != self.procedure {
            return Err(unfit(lsn, self.parts, part.number));
        }
        self.parts += 1;
        for (id, changes) in part.groups() {
            self.push_group(lsn, id, changes)?;
        }
        Ok(())
    }

    fn push_group(&mut self, lsn: Lsn, id: PartitionId, changes: &[u8]) -> Result<(), ReplayError> {
        let bytes = self.window.bytes().len() + changes.len();
        if bytes > RUN_BYTES_MAX {
            let error = WireError {
                what: "changes of a transaction in parts",
                expected: format!("at most {RUN_BYTES_MAX} bytes"),
                found: bytes.to_string(),
            };
            return Err(ReplayError::Malformed { lsn, error });
        }
        let at = self.window.extend(changes);
        match self.groups.last_mut() {
            Some((last, place)) if *last == id => place.len += changes.len(),
            Some((last, _)) if *last > id => {
                let error = WireError {
                    what: "partition of a part",
                    expected: format!("{} or one behind it", last.0),
                    found: id.0.to_string(),
                };
                return Err(ReplayError::Malformed { lsn, error });
            }
            _ => self.groups.push((id, ByteRange { at, len: changes.len() })),
        }
        Ok(())
    }

    /// Ends with `record`, whose changes follow those of the parts.
    pub fn end(mut self, place: &FedRecord<'_>, record: &ChangesRef<'_>) -> Result<WholeRun, ReplayError> {
        let lsn = place.lsn;
        if record.parts != self.parts || record.module_id != self.module_id || record.procedure != self.procedure {
            return Err(unfit(lsn, self.parts, record.parts));
        }
        for (id, changes) in record.groups() {
            self.push_group(lsn, id, changes)?;
        }
        let at = self.window.push_run(lsn..place.end, place.record());
        Ok(WholeRun {
            window: Arc::new(self.window),
            record: at,
            groups: self.groups,
        })
    }
}

impl WholeRun {
    /// Range of a partition's changes; empty if it has none.
    pub fn place(&self, id: PartitionId) -> ByteRange {
        let found = self.groups.iter().find(|(partition, _)| *partition == id);
        found.map_or(ByteRange::default(), |(_, place)| *place)
    }

    pub fn changes(&self, place: ByteRange) -> &[u8] {
        &self.window.bytes()[place.at..place.at + place.len]
    }

    /// Returns the changes as logged beside a command.
    pub fn logged(&self) -> LoggedChanges {
        let groups = self.groups.iter();
        LoggedChanges {
            groups: groups.map(|(id, place)| (*id, self.changes(*place).into())).collect(),
        }
    }
}

impl Replayer {
    /// Drops the parts of a command's changes. A command without changes behind it goes to its site; the parts, if there are any, serve
    /// nodes that have the changes.
    pub(crate) fn drop_run_of(&mut self, txn_id: TxnId) {
        self.run.take_if(|run| run.txn_id == txn_id);
    }

    /// Returns the LSN before which everything is replayed once the fed records are. It excludes a transaction of which only parts were
    /// fed.
    pub(crate) fn whole_end(&self) -> Lsn {
        self.open_since().unwrap_or(self.fed)
    }

    /// Returns the first record of the transaction of which only parts were fed.
    pub fn open_since(&self) -> Option<Lsn> {
        self.run.as_ref().map(|run| run.start)
    }

    /// Takes the first part of a transaction.
    pub(crate) fn begin_run(&mut self, place: &FedRecord<'_>, part: &PartRef<'_>) -> Result<(), ReplayError> {
        self.run = Some(OpenRun::begin(place.lsn, part)?);
        // Whether the transaction counts or not, its id is taken.
        self.hand_parts(place, part.txn_id, part.partitions, |partition| {
            RedoPart::none(partition, place.at)
        })
    }

    /// Takes the record behind a part.
    #[cold]
    pub(crate) fn feed_in_run(
        &mut self,
        place: &FedRecord<'_>,
        raw: &RawRecord<'_>,
        behind: &RawRecords<'_>,
    ) -> Result<(), ReplayError> {
        let decoded = raw
            .decode()
            .map_err(|error| ReplayError::Malformed { lsn: place.lsn, error })?;
        let Some(run) = self.run.as_mut().filter(|run| run.is_continued_by(&decoded)) else {
            self.run = None;
            return self.feed_record(place, raw, behind);
        };
        match decoded {
            RecordRef::Part(part) => run.push(place.lsn, &part),
            RecordRef::Changes(changes) => self.end_run(place, &changes),
            RecordRef::Command(_) if self.is_passed_over(raw, behind) => Ok(()),
            RecordRef::Command(command) => self.feed_command(place.lsn, place.end, &command),
            _ => unreachable!("nothing else continues a run"),
        }
    }

    fn end_run(&mut self, place: &FedRecord<'_>, record: &ChangesRef<'_>) -> Result<(), ReplayError> {
        let run = self.run.take().expect("it is continued");
        let whole = run.end(place, record)?;
        let Some((mut command, target)) = self.take_command(record) else {
            self.release_held()?;
            return self.feed_run(place, record, &whole);
        };
        command.end = place.end;
        match self.recover_from(&command) {
            RecoverFrom::Changes => self.feed_run(place, record, &whole),
            RecoverFrom::Command => {
                command.twin = Some(whole.logged());
                self.dispatch(command, target)
            }
        }
    }

    /// Hands each touched partition its changes: a window of their own, for their sites alone.
    fn feed_run(
        &mut self,
        place: &FedRecord<'_>,
        record: &ChangesRef<'_>,
        whole: &WholeRun,
    ) -> Result<(), ReplayError> {
        self.send_all_pending()?;
        let (mut is_first, mut left) = (true, whole.groups.len());
        let window = &whole.window;
        let of_run = FedRecord { window, ..*place };
        self.hand_parts(&of_run, record.txn_id, record.partitions, |partition| {
            let place = whole.place(partition);
            left -= usize::from(place.len > 0);
            RedoPart {
                is_keyed: std::mem::take(&mut is_first) && record.keyed.is_some(),
                at: place.at as u32,
                len: place.len as u32,
                ..RedoPart::none(partition, whole.record)
            }
        })?;
        if left > 0 {
            let (expected, what) = (
                "none that the transaction does not touch".into(),
                "partitions of its parts",
            );
            let found = format!("{left} more");
            let error = WireError { what, expected, found };
            return Err(ReplayError::Malformed { lsn: place.lsn, error });
        }
        self.send_all_pending()
    }

    /// Passes the part that `part` makes to each partition of a transaction.
    fn hand_parts(
        &mut self,
        place: &FedRecord<'_>,
        txn_id: TxnId,
        partitions: PartitionSet<'_>,
        mut part: impl FnMut(PartitionId) -> RedoPart,
    ) -> Result<(), ReplayError> {
        if !matches!(partitions, PartitionSet::One(_)) {
            let multi_tick = &self.shared.multi_tick;
            multi_tick.fetch_max(txn_id.tick(), Ordering::AcqRel);
        }
        let mut is_first = true;
        let mut hand = |replayer: &mut Self, id: PartitionId| {
            let part = part(replayer.check_partition(place.lsn, id)?);
            let is_counted = std::mem::take(&mut is_first) && place.window.is_run();
            replayer.push_part(place, part, txn_id.tick(), is_counted);
            Ok(())
        };
        match &partitions {
            PartitionSet::One(id) => hand(self, *id),
            PartitionSet::Several(list) => list.iter().try_for_each(|id| hand(self, id)),
            PartitionSet::All => (0..self.shared.partitions_count).try_for_each(|id| hand(self, PartitionId(id))),
        }
    }
}

/// A record that ends parts which are not there.
pub(crate) fn without_parts(lsn: Lsn, found: u32) -> ReplayError {
    unfit(lsn, "none", found)
}

#[cold]
fn unfit(lsn: Lsn, expected: impl ToString, found: u32) -> ReplayError {
    let error = WireError {
        what: "parts of a transaction before it",
        expected: expected.to_string(),
        found: found.to_string(),
    };
    ReplayError::Malformed { lsn, error }
}
