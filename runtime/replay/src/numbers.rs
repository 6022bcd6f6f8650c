//! Where a log goes on in a format in which changes name rows by their numbers, and before in one in which keys did: there the number of a row
//! could be another one in each replay. So the rows of tables with a primary key are numbered anew at that place, in the order of their keys,
//! and the place is the same in every replay, whatever checkpoint it began with.

use reprise_partition::ExclusivePartitions;
use reprise_wire::NUMBERS_NAME_FROM;

use crate::{error::ReplayError, replayer::Replayer};

impl Replayer {
    /// What follows is of a file of this format version: a checkpoint, before its tables are made, or the log.
    #[inline]
    pub fn note_version(&mut self, version: u32) -> Result<(), ReplayError> {
        match (version < NUMBERS_NAME_FROM, self.has_old_numbers) {
            (true, false) => self.forget_numbers(),
            (false, true) => self.number_rows(),
            _ => Ok(()),
        }
    }

    #[cold]
    fn forget_numbers(&mut self) -> Result<(), ReplayError> {
        self.release_held()?;
        self.has_old_numbers = true;
        let forget = |held: &mut ExclusivePartitions<'_>| {
            held.partitions.iter_mut().for_each(|part| part.store.forget_numbers());
        };
        self.gather_barrier(Box::new(forget))
    }

    /// Behind all that was fed: from here on changes name rows by their numbers, whoever makes them.
    pub fn number_rows(&mut self) -> Result<(), ReplayError> {
        if !std::mem::take(&mut self.has_old_numbers) {
            return Ok(());
        }
        self.release_held()?;
        let outcome = self.outcome.clone();
        let renumber = move |held: &mut ExclusivePartitions<'_>| {
            if !outcome.has_failed() {
                held.partitions.iter_mut().for_each(|part| part.store.renumber());
            }
        };
        self.gather_barrier(Box::new(renumber))
    }
}
