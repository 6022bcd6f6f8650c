//! How a call ended.

use std::fmt;

use reprise_abi::{EndReason, OpError, key::KEY_BYTES_MAX};
use reprise_base::limits::KEY_BYTES_LIMIT;

/// The outcome of one call of a procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallOutcome {
    pub kind: Result<GuestExit, Box<Fault>>,
    /// Fuel burnt by the guest; the same for the same call on every replica.
    pub fuel_used: u64,
}

/// The end of a procedure that was not stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestExit {
    /// The procedure returned. Its result, if any, was handed to `HostOps::set_result`.
    Returned,
    /// The procedure asked for an abort. Code and message were handed to `HostOps::abort`.
    Aborted,
}

/// The party that caused a fault, in the terms of the API's errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The wasm trapped.
    Trap,
    /// A limit of one transaction was reached.
    Limit,
    /// The guest broke the contract of a host call.
    Guest,
    /// None: the call was ended from outside.
    Ended(EndReason),
}

/// Name of the trap of a guest whose program gave up with a message.
pub const PANIC_TRAP: &str = "panic";

/// Why a call was stopped. No part of its transaction may stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    /// Name of the limit, for `FaultKind::Limit`.
    pub limit: Option<&'static str>,
    /// Value of the limit; 0 without one.
    pub max: u64,
    pub message: String,
    /// Short machine name of the trap, for `FaultKind::Trap` and for the two limits that wasm itself enforces.
    pub trap: Option<String>,
    /// Names of the guest's functions, innermost first.
    pub backtrace: Vec<String>,
}

impl Fault {
    pub fn trap(name: &str, message: impl Into<String>) -> Box<Self> {
        Box::new(Self {
            kind: FaultKind::Trap,
            limit: None,
            max: 0,
            message: message.into(),
            trap: Some(name.to_owned()),
            backtrace: Vec::new(),
        })
    }

    pub fn limit(limit: &'static str, max: u64) -> Box<Self> {
        Box::new(Self {
            kind: FaultKind::Limit,
            limit: Some(limit),
            max,
            message: format!("limit {limit} of {max} reached"),
            trap: None,
            backtrace: Vec::new(),
        })
    }

    /// Returns the fault that memory, stack or a table of the guest is used up.
    pub fn used_up(what: &str, trap: &str, limit: &'static str, max: u64) -> Box<Self> {
        let mut fault = Self::limit(limit, max);
        fault.message = format!("{what}: limit {limit} of {max} reached");
        fault.trap = Some(trap.to_owned());
        fault
    }

    /// Returns the fault that a key is too long, because of the call's arguments or of values that the procedure makes from them.
    pub fn key_too_long(key: &str) -> Box<Self> {
        let mut fault = Self::limit(KEY_BYTES_LIMIT, KEY_BYTES_MAX as u64);
        fault.message = format!("{key} is longer than {KEY_BYTES_MAX} bytes");
        fault
    }

    /// Returns the fault that the call has burned all its fuel.
    pub fn fuel(max: u64) -> Box<Self> {
        let mut fault = Self::limit("fuel", max);
        fault.message = "all fuel consumed by WebAssembly".to_owned();
        fault.trap = Some("out_of_fuel".to_owned());
        fault
    }

    /// Returns the fault of a procedure that a host call's error ends, where no guest has handled it.
    pub fn of_op(error: OpError) -> Box<Self> {
        match error {
            OpError::Limit { limit, max } => Self::limit(limit, max),
            OpError::KeyTooLong { key } => Self::key_too_long(&key),
            OpError::Guest(message) => Self::guest(message),
            OpError::Ended(ended) => Self::ended(ended),
            OpError::DuplicateKey { index } => Self::guest(format!("duplicate key in index {index} not handled")),
        }
    }

    pub fn ended(ended: EndReason) -> Box<Self> {
        Box::new(Self {
            kind: FaultKind::Ended(ended),
            limit: None,
            max: 0,
            message: match ended {
                EndReason::Cancelled => "the call was cancelled".to_owned(),
                EndReason::Deadline => "the call did not end within the time that its client allows".to_owned(),
            },
            trap: None,
            backtrace: Vec::new(),
        })
    }

    pub fn guest(message: impl Into<String>) -> Box<Self> {
        Box::new(Self {
            kind: FaultKind::Guest,
            limit: None,
            max: 0,
            message: message.into(),
            trap: None,
            backtrace: Vec::new(),
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        for (depth, name) in self.backtrace.iter().enumerate() {
            f.write_str(if depth == 0 { " in " } else { " < " })?;
            f.write_str(name)?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}
