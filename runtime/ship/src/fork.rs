//! Where the histories of two logs part: a server that was a primary, or the standby of one that is gone, asks its new primary.

use std::time::Duration;

use crossbeam_channel::never;
use reprise_base::Lsn;
use reprise_env::NetError;
use reprise_log::{EpochStart, Position};
use reprise_wire::{EpochSeen, Frame, Wants};

use crate::{
    connection::{HEARTBEAT, SILENCE_MAX, wait},
    link::{Known, Link, LinkConfig, LinkError},
};

/// What a primary says of a position of another log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForkAnswer {
    /// It has the same records before it.
    pub is_same: bool,
    /// Everything before it is durable on the primary.
    pub durable: Lsn,
    /// The newest epochs of its log, the oldest first.
    pub epochs: Vec<EpochStart>,
}

impl Link {
    /// Connects, to ask whether the primary has this history. Waits for the answer, 3 s at most behind the connection.
    pub fn fork(config: &LinkConfig, known: &Known, position: Position) -> Result<ForkAnswer, LinkError> {
        let mut link = Self::connect(config, Wants::Fork, Some((known, position)))?;
        let wake = never();
        loop {
            let Some(bytes) = link.next(SILENCE_MAX)? else {
                wait(&link.connection.frames, &wake, HEARTBEAT.min(Duration::from_millis(20)));
                continue;
            };
            return match Frame::decode(&bytes)? {
                Frame::Epochs(told) => Ok(ForkAnswer {
                    is_same: told.is_same,
                    durable: told.durable,
                    epochs: told.epochs().map(start_of).collect(),
                }),
                Frame::Refused(refused) => Err(LinkError::Refused {
                    refusal: refused.refusal,
                    reason: refused.reason.to_owned(),
                }),
                _ => Err(NetError::Closed.into()),
            };
        }
    }
}

fn start_of(seen: EpochSeen) -> EpochStart {
    EpochStart {
        epoch: seen.epoch,
        start: seen.start,
        history: seen.history,
    }
}
