//! TPC-C's transactions that read alone, for standbys.

use super::{
    PROCEDURES,
    inputs::{Inputs, Kind},
    wire,
};
use crate::{BenchError, random::Random};

/// Calls of Order-Status and Stock-Level in turn (Query Fresh, section 4.3).
pub struct Reads {
    inputs: Inputs,
    random: Random,
    is_stock_next: bool,
}

impl Reads {
    /// Reads of a database that the workload `tpcc` filled with this seed.
    pub fn new(warehouses: u32, partitions: u16, seed: u64) -> Result<Self, BenchError> {
        Ok(Self {
            inputs: Inputs::new(warehouses, partitions, None, seed)?,
            random: Random::new(seed ^ 0x7265_6164),
            is_stock_next: false,
        })
    }

    /// Appends the next call's encoded arguments; the procedure's name.
    pub fn next(&mut self, args: &mut Vec<u8>) -> &'static str {
        let kind = match self.is_stock_next {
            true => Kind::StockLevel,
            false => Kind::OrderStatus,
        };
        self.is_stock_next = !self.is_stock_next;
        wire::encode(&self.inputs.of_kind(kind, &mut self.random), args);
        PROCEDURES[kind as usize]
    }
}
