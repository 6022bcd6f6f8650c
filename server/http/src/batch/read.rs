//! Body -> chunks -> engine.

use std::sync::{Arc, atomic::Ordering};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use reprise_router::BatchBuilder;
use tokio::sync::mpsc;

use super::{
    Pace, Pending,
    line::{Chunk, LineParser, SlotState},
};
use crate::{
    body,
    limits::{BATCH_BYTES_IN_FLIGHT_MAX, BATCH_IDLE_MAX, CALL_BODY_BYTES_MAX},
    refusal::Refusal,
    state::AppState,
    submit::submit,
};

/// The writer is gone: nobody waits for further answers.
struct Gone;

pub(super) struct Reader {
    state: AppState,
    may_write: bool,
    sender: mpsc::Sender<Pending>,
    pace: Arc<Pace>,
    parser: LineParser,
    /// The beginning of a line whose end has not come yet.
    rest: BytesMut,
    /// True while the rest of a line that is too long passes by.
    skipping: bool,
}

impl Reader {
    pub fn new(
        state: AppState,
        may_write: bool,
        sender: mpsc::Sender<Pending>,
        pace: Arc<Pace>,
    ) -> Self {
        Self {
            state,
            may_write,
            sender,
            pace,
            parser: LineParser::default(),
            rest: BytesMut::new(),
            skipping: false,
        }
    }

    pub async fn run(mut self, mut body: Body) {
        let _ = self.read_to_end(&mut body).await; // Gone: there is nobody left to tell
    }

    async fn read_to_end(&mut self, body: &mut Body) -> Result<(), Gone> {
        loop {
            match body::next_data(body, BATCH_IDLE_MAX).await {
                Ok(Some(data)) => self.take(data).await?,
                Ok(None) => {
                    let last = self.rest.split().freeze();
                    return self.run_lines(last).await;
                }
                Err(refusal) => return self.send_refusal(refusal).await,
            }
        }
    }

    async fn take(&mut self, mut data: Bytes) -> Result<(), Gone> {
        if self.skipping {
            match memchr::memchr(b'\n', &data) {
                None => return Ok(()),
                Some(end) => data = data.slice(end + 1..),
            }
            self.skipping = false;
        }
        match memchr::memrchr(b'\n', &data) {
            None => self.rest.extend_from_slice(&data),
            Some(end) if self.rest.is_empty() => {
                self.rest.extend_from_slice(&data[end + 1..]);
                self.run_lines(data.slice(..end)).await?;
            }
            Some(end) => {
                self.rest.extend_from_slice(&data[..end]);
                let lines = self.rest.split().freeze();
                self.rest.extend_from_slice(&data[end + 1..]);
                self.run_lines(lines).await?;
            }
        }
        if self.rest.len() > CALL_BODY_BYTES_MAX {
            self.rest.clear();
            self.skipping = true;
            self.send_refusal(Refusal::too_large("a line of a batch", CALL_BODY_BYTES_MAX))
                .await?;
        }
        Ok(())
    }

    /// Runs whole lines, in as many chunks as the pace asks for.
    async fn run_lines(&mut self, text: Bytes) -> Result<(), Gone> {
        let mut at = 0;
        while at < text.len() {
            let (chunk, batch, after) = self.gather(&text, at);
            at = after;
            if !chunk.slots.is_empty() {
                self.send(chunk, batch).await?;
            }
        }
        Ok(())
    }

    fn gather(&mut self, text: &Bytes, mut at: usize) -> (Chunk, BatchBuilder, usize) {
        let mut chunk = Chunk::new(text.clone());
        let mut batch = BatchBuilder::new(self.state.router.deployed(), &self.state.router);
        let calls_max = self.pace.calls_max();
        while at < text.len() && chunk.slots.len() < calls_max {
            let end = memchr::memchr(b'\n', &text[at..]).map_or(text.len(), |length| at + length);
            if end - at > CALL_BODY_BYTES_MAX {
                chunk.refuse(Refusal::too_large("a line of a batch", CALL_BODY_BYTES_MAX).problem);
            } else if !text[at..end].trim_ascii().is_empty() {
                let line = at as u32..end as u32;
                chunk.add(line, &mut batch, &mut self.parser, self.may_write);
            }
            at = end + 1;
        }
        (chunk, batch, at)
    }

    async fn send(&mut self, chunk: Chunk, batch: BatchBuilder) -> Result<(), Gone> {
        let lines_bytes: u32 = chunk
            .slots
            .iter()
            .map(|slot| slot.line.end - slot.line.start)
            .sum();
        let bytes = lines_bytes.min(BATCH_BYTES_IN_FLIGHT_MAX as u32);
        let bytes = self
            .pace
            .bytes
            .clone()
            .acquire_many_owned(bytes)
            .await
            .expect("never closed");
        // A place in the queue first: what is submitted is sure to be answered in its order.
        let place = self.sender.reserve().await.map_err(|_| Gone)?;
        let calls = chunk
            .slots
            .iter()
            .filter(|slot| matches!(slot.state, SlotState::Called { .. }))
            .count();
        let reply = if calls == 0 {
            None
        } else {
            let permits = self.state.batch_calls.clone();
            let permit = permits
                .acquire_many_owned(calls as u32)
                .await
                .expect("never closed");
            self.state
                .counts
                .batch_calls
                .fetch_add(calls as u64, Ordering::Relaxed);
            Some(submit(&self.state.router, batch, Some(permit)))
        };
        place.send(Pending {
            chunk,
            reply,
            _bytes: bytes,
        });
        Ok(())
    }

    async fn send_refusal(&mut self, refusal: Refusal) -> Result<(), Gone> {
        let mut chunk = Chunk::new(Bytes::new());
        chunk.refuse(refusal.problem);
        let batch = BatchBuilder::new(self.state.router.deployed(), &self.state.router);
        self.send(chunk, batch).await
    }
}
