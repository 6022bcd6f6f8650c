//! Frames, and answers of other nodes, as a node with a known bug gives them.

use std::{collections::BTreeMap, sync::Arc};

use reprise_base::{Epoch, Lsn, Role, Safety};
use reprise_router::{HandOverPoint, PromiseAnswer, PromiseQuestion, ReplicationError, ReplicationService};
use reprise_wire::{Epochs, Frame, MemberSeen, SetPart, SyncUpdate};

use super::{
    around::{Around, NAMES},
    mutant::FailoverMutant,
};

/// Changes the frames of all nodes as a mutant does.
pub struct ForgedFrames {
    pub mutant: FailoverMutant,
    /// Number of the newest sync status that was sent to each standby since its welcome.
    pub sent_status: BTreeMap<String, u64>,
}

impl ForgedFrames {
    /// Returns the form of a frame in which it is sent instead.
    pub fn forge(&mut self, from: &str, to: &str, bytes: Vec<u8>) -> Vec<u8> {
        let Ok(frame) = Frame::decode(&bytes) else { return bytes };
        match (frame, self.mutant) {
            (Frame::Progress(mut progress), FailoverMutant::AcknowledgesReceived) => {
                progress.persisted = progress.received;
                Frame::Progress(progress).encode()
            }
            (Frame::Welcome(_), FailoverMutant::ConfirmsUnsaved) => {
                self.sent_status.remove(to);
                bytes
            }
            (Frame::Standing(status), FailoverMutant::ConfirmsUnsaved) => {
                self.sent_status.insert(to.to_owned(), status.number);
                bytes
            }
            (Frame::Progress(mut progress), FailoverMutant::ConfirmsUnsaved) => {
                let sent = self.sent_status.get(from).copied().unwrap_or_default();
                progress.saved_status = progress.saved_status.max(sent);
                Frame::Progress(progress).encode()
            }
            (Frame::Heartbeat(mut beat), FailoverMutant::TellsUncommitted) => {
                beat.committed = beat.durable;
                Frame::Heartbeat(beat).encode()
            }
            (Frame::Standing(status), mutant) => match forge_status(&status, mutant) {
                Some((in_sync, members)) => {
                    let packed = SyncUpdate::pack(members.into_iter());
                    Frame::Standing(SyncUpdate::new(status.number, in_sync, status.set, &packed)).encode()
                }
                None => bytes,
            },
            (Frame::Welcome(mut welcome), FailoverMutant::TellsStricterLevel) => {
                welcome.safety = Safety::VerySafe;
                Frame::Welcome(welcome).encode()
            }
            (Frame::Epochs(told), FailoverMutant::HidesNewestEpoch) => {
                let mut epochs: Vec<_> = told.epochs().collect();
                let newest = epochs.pop();
                let durable = newest.map_or(told.durable, |newest| newest.start.min(told.durable));
                let packed = Epochs::pack(epochs.into_iter());
                Frame::Epochs(Epochs::new(false, durable, &packed)).encode()
            }
            _ => bytes,
        }
    }
}

/// Returns whether the standby is told to be in sync, and what it is told of the others. None: as the primary has it.
fn forge_status<'a>(status: &SyncUpdate<'a>, mutant: FailoverMutant) -> Option<(bool, Vec<MemberSeen<'a>>)> {
    let members = status.members();
    match mutant {
        FailoverMutant::TellsAllInSync => {
            let told = members.map(|member| MemberSeen {
                is_in_sync: true,
                ..member
            });
            Some((true, told.collect()))
        }
        FailoverMutant::TellsSetOfOne => {
            let told = members.map(|member| MemberSeen {
                set: SetPart::default(),
                ..member
            });
            Some((status.in_sync, told.collect()))
        }
        FailoverMutant::OmitsLostStandbys => {
            Some((status.in_sync, members.filter(|member| member.is_in_sync).collect()))
        }
        _ => None,
    }
}

/// Asks a node for a promise.
pub fn ask_promise(
    around: &Around,
    (asker, own_epoch): (usize, Epoch),
    node: usize,
    question: &PromiseQuestion,
) -> Result<PromiseAnswer, Arc<str>> {
    let told = around.ask((asker, node), |service| service.promise(question));
    let told = told.map_err(|refused| Arc::from(refused.text()));
    if question.is_withdrawn {
        return told;
    }
    match (told, around.mutant) {
        (Ok(answer), Some(FailoverMutant::PromiseHidesEnd)) => Ok(PromiseAnswer {
            epoch: Epoch(0),
            end: Lsn(0),
            ..answer
        }),
        (Ok(answer), Some(FailoverMutant::ComparesLengths)) => Ok(PromiseAnswer {
            epoch: own_epoch,
            ..answer
        }),
        (Ok(answer), Some(FailoverMutant::AnswersForMember)) => Ok(PromiseAnswer {
            has_been_in_sync: true,
            ..answer
        }),
        (Ok(answer), Some(FailoverMutant::PromiseForgotten)) => {
            let withdrawal = PromiseQuestion {
                is_withdrawn: true,
                ..question.clone()
            };
            // A node that is gone by now has nothing to forget.
            let _ = around.ask((asker, node), |service| service.promise(&withdrawal));
            Ok(answer)
        }
        (Err(_), Some(FailoverMutant::SilencePromises)) => Ok(PromiseAnswer {
            name: NAMES[node].to_owned(),
            epoch: Epoch(0),
            end: Lsn(0),
            has_been_in_sync: true,
            status: None,
            promises: vec![(question.epoch, question.name.clone())],
        }),
        (told, _) => told,
    }
}

/// Answers as a primary that is asked to step down.
pub fn step_down(
    service: &dyn ReplicationService,
    mutant: Option<FailoverMutant>,
    (name, url): (&str, String),
) -> Result<HandOverPoint, ReplicationError> {
    let info = service.info();
    match mutant {
        Some(FailoverMutant::HandsOverAndStays) if info.role == Role::Primary => Ok(HandOverPoint {
            epoch: info.epoch,
            lsn: info.durable,
        }),
        _ => service.step_down(name, Some(url.into())),
    }
}
