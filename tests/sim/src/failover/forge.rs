//! Frames, and answers of other nodes, as a node with a known bug gives them.

use std::sync::Arc;

use reprise_base::{Epoch, Lsn, Role};
use reprise_router::{HandOverPoint, PromiseAnswer, PromiseQuestion, ReplicationError, ReplicationService};
use reprise_wire::{Frame, MemberSeen, SetPart, SyncUpdate};

use super::{
    around::{Around, NAMES},
    mutant::FailoverMutant,
};

/// Returns the form of a frame in which a node with the mutant's bug sends it.
pub fn forge_frame(mutant: FailoverMutant, bytes: Vec<u8>) -> Vec<u8> {
    match (Frame::decode(&bytes), mutant) {
        (Ok(Frame::Progress(mut progress)), FailoverMutant::AcknowledgesReceived) => {
            progress.persisted = progress.received;
            Frame::Progress(progress).encode()
        }
        (Ok(Frame::Heartbeat(mut beat)), FailoverMutant::TellsUncommitted) => {
            beat.committed = beat.durable;
            Frame::Heartbeat(beat).encode()
        }
        (Ok(Frame::Standing(status)), FailoverMutant::TellsSetOfOne) => {
            let told = status.members().map(|member| MemberSeen {
                set: SetPart::default(),
                ..member
            });
            encode_status(&status, told)
        }
        (Ok(Frame::Standing(status)), FailoverMutant::OmitsLostStandbys) => {
            encode_status(&status, status.members().filter(|member| member.is_in_sync))
        }
        _ => bytes,
    }
}

/// Returns the frame of a sync status that says this of the other standbys.
fn encode_status<'a>(status: &SyncUpdate<'_>, members: impl Iterator<Item = MemberSeen<'a>>) -> Vec<u8> {
    let packed = SyncUpdate::pack(members);
    Frame::Standing(SyncUpdate::new(status.number, status.in_sync, status.set, &packed)).encode()
}

/// Asks a node for a promise.
pub fn ask_promise(
    around: &Around,
    (asker, own_epoch): (usize, Epoch),
    node: usize,
    question: &PromiseQuestion,
) -> Result<PromiseAnswer, Arc<str>> {
    if around.comes_late((asker, node), question) {
        return Err("it does not answer in time".into());
    }
    let told = around.ask((asker, node), |service| service.promise(question));
    let told = told.map_err(|refused| Arc::from(refused.text()));
    if question.is_withdrawn {
        return told;
    }
    match (told, around.mutant) {
        (Ok(answer), Some(FailoverMutant::PromiseHidesEnd)) => Ok(PromiseAnswer {
            epoch: Epoch::new(0, 0),
            end: Lsn(0),
            ..answer
        }),
        (Ok(answer), Some(FailoverMutant::ComparesLengths)) => Ok(PromiseAnswer {
            epoch: own_epoch,
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
            epoch: Epoch::new(0, 0),
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
    if mutant != Some(FailoverMutant::HandsOverAndStays) {
        return service.step_down(name, Some(url.into()));
    }
    let info = service.info();
    match info.role {
        Role::Primary => Ok(HandOverPoint {
            epoch: info.epoch,
            lsn: info.durable,
        }),
        _ => Err(ReplicationError::NotPrimary(None)),
    }
}
