//! The environment of a run in this process: for programs that are compared with the product and no part of it.

use std::sync::Arc;

use reprise_database::{Database, Environment};

use crate::BenchError;

/// Observes a run, or changes what it runs in. Each part does nothing by itself.
pub trait Around {
    /// Before the database is opened: puts something else in the place of what it is to run in.
    fn change(&self, _around: &mut Environment) {}

    /// Threads that work all the time beside the engine's own: where there is no core left, the generator of the load spins for nothing.
    fn busy_threads(&self) -> usize {
        0
    }

    /// The database is open, and not recovered.
    fn opened(&self, _database: &Arc<Database>) -> Result<(), BenchError> {
        Ok(())
    }

    /// The tables are filled, and nothing is measured yet.
    fn filled(&self, _database: &Arc<Database>) -> Result<(), BenchError> {
        Ok(())
    }

    /// The last call was answered; the workload's checks follow.
    fn ran(&self, _database: &Arc<Database>) -> Result<(), BenchError> {
        Ok(())
    }
}

/// Changes the environment alone.
impl<F: Fn(&mut Environment)> Around for F {
    fn change(&self, around: &mut Environment) {
        self(around)
    }
}

/// The product alone.
pub(crate) struct Nothing;

impl Around for Nothing {}
