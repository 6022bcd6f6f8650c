//! The point at which the histories of two logs part. A former primary, or the standby of a lost one, asks its new primary.

use std::time::Duration;

use crossbeam_channel::never;
use reprise_base::Lsn;
use reprise_env::NetError;
use reprise_log::{EpochStart, Position};
use reprise_wire::{EpochSeen, Frame, Wants};

use crate::{
    connection::{HEARTBEAT, SILENCE_MAX, wait},
    link::{Link, LinkConfig, LinkError, StandbyFiles},
};

/// A primary's answer about a position of another log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForkAnswer {
    /// The primary has the same records before it.
    pub is_same: bool,
    /// Everything before it is durable on the primary.
    pub durable: Lsn,
    /// The newest epochs of its log, the oldest first.
    pub epochs: Vec<EpochStart>,
}

/// A question that is on its way.
pub struct AskingFork(Link);

impl Link {
    /// Connects, to ask whether the primary has this history. Waits for the answer, 3 s at most behind the connection.
    pub fn fork(config: &LinkConfig, known: &StandbyFiles, position: Position) -> Result<ForkAnswer, LinkError> {
        let mut asking = Self::ask_fork(config, known, position)?;
        let wake = never();
        loop {
            if let Some(answer) = asking.step()? {
                return Ok(answer);
            }
            let frames = &asking.0.connection.frames;
            wait(frames, &wake, HEARTBEAT.min(Duration::from_millis(20)));
        }
    }

    /// Connects, to ask the same question. Waits for no answer.
    pub fn ask_fork(config: &LinkConfig, known: &StandbyFiles, position: Position) -> Result<AskingFork, LinkError> {
        Self::connect(config, Wants::Fork, Some((known, position))).map(AskingFork)
    }
}

impl AskingFork {
    /// Returns the answer, if it has come. Err: among others, it has not come for 3 s.
    pub fn step(&mut self) -> Result<Option<ForkAnswer>, LinkError> {
        let Some(bytes) = self.0.next(SILENCE_MAX)? else {
            return Ok(None);
        };
        match Frame::decode(&bytes)? {
            Frame::Epochs(answer) => Ok(Some(ForkAnswer {
                is_same: answer.is_same,
                durable: answer.durable,
                epochs: answer.epochs().map(start_of).collect(),
            })),
            Frame::Refused(refused) => Err(LinkError::Refused {
                refusal: refused.refusal,
                reason: refused.reason.to_owned(),
            }),
            _ => Err(NetError::Closed.into()),
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
