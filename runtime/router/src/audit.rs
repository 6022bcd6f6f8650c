//! The audit: control operations as records of the log, so that they outlive the server and reach its standbys.

use std::{sync::Arc, time::Duration};

use crossbeam_channel::Sender;
use reprise_base::Role;
use reprise_partition::{
    CallBatch, ExclusivePartitions, Job, LogRefusal, MultiPartitionTxn, NewRecords, Partition, TxnPartitions,
};
use reprise_wire::{ControlRef, RecordBatch, RecordRef, SUBJECT_BYTES_MAX};

use crate::router::Router;

/// A control operation that was carried out or refused.
#[derive(Clone, Debug)]
pub struct EndedControl {
    /// Name of the token, 1 to 255 bytes; `anonymous` on a server without tokens.
    pub principal: String,
    pub operation: &'static str,
    /// Object of the operation. It is cut to 512 bytes.
    pub subject: String,
    /// `done`, or the slug of the problem.
    pub outcome: &'static str,
    pub took: Duration,
}

impl Router {
    /// Appends a record of a control operation, and waits until it is committed, at most `wait_max`. A record that takes longer follows.
    /// A server that does not lead writes none, nor one without a log.
    ///
    /// # Errors
    /// Why the log does not take it.
    pub fn log_control(&self, ended: EndedControl, wait_max: Duration) -> Result<(), Arc<str>> {
        if self.role() != Role::Primary || !self.has_log() {
            return Ok(());
        }
        self.check_ready().map_err(|unavailable| unavailable.0)?;
        let (sender, receiver) = crossbeam_channel::bounded(1);
        let job: Job = Box::new(move |held| {
            if let Err(reason) = append(held, &ended, sender.clone()) {
                let _ = sender.send(Err(reason.to_string().into())); // the caller may wait no longer
            }
        });
        let shared = &self.0.config.shared;
        let (count, sent_ns) = (shared.partitions_count, shared.clock.monotonic_ns());
        let stream = self.new_stream();
        self.send_multi(MultiPartitionTxn::in_stream(
            TxnPartitions::All,
            count,
            stream,
            sent_ns,
            job,
        ));
        shared.threads.receive_for(&receiver, wait_max).unwrap_or(Ok(()))
    }
}

fn append(
    held: &mut ExclusivePartitions<'_>,
    ended: &EndedControl,
    committed: Sender<Result<(), Arc<str>>>,
) -> Result<(), LogRefusal> {
    let subject = &ended.subject[..ended.subject.floor_char_boundary(SUBJECT_BYTES_MAX)];
    let record = RecordBatch::of(&RecordRef::Control(ControlRef {
        txn_id: held.tools.next_multi_id(held.partitions),
        took_us: u32::try_from(ended.took.as_micros()).unwrap_or(u32::MAX),
        principal: &ended.principal,
        operation: ended.operation,
        outcome: ended.outcome,
        subject,
    }));
    let mut waiting = Box::new(CallBatch::new(None));
    waiting.done = Some(Box::new(move |_| {
        let _ = committed.send(Ok(())); // the caller may wait no longer
    }));
    let mut partitions: Vec<&mut Partition> = held.partitions.iter_mut().map(|part| &mut **part).collect();
    let published = held
        .tools
        .sink
        .publish(NewRecords::Whole(&record), &mut partitions, waiting);
    published.map_err(|(reason, _)| reason)
}
