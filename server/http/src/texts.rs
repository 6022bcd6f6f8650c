//! Room for long answers, over all connections. A task that writes one waits for room. It returns the room when the client has taken the
//! last byte, or was disconnected because it is slow.

use std::{future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use reprise_base::{Budget, Grant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::{BYTES_COUNTED, TEXT_BYTES_SURE};

/// A unit of room.
const UNIT_BYTES: u64 = 1 << 10;

/// The room for texts, handed out in the order of the requests, and its count.
pub struct Texts {
    units: Arc<Semaphore>,
    budget: Arc<Budget>,
}

/// Room for a text, while it is held. A short text waits for none and is only counted.
pub struct Room {
    units: Option<OwnedSemaphorePermit>,
    grant: Grant,
}

/// The wait of a long text for its room.
pub type WaitForRoom = Pin<Box<dyn Future<Output = Room> + Send>>;

impl Texts {
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self {
            units: Arc::new(Semaphore::new((budget.limit() / UNIT_BYTES) as usize)),
            budget: budget.clone(),
        }
    }

    /// Waits for room for a text of at most this many bytes, or for all the room that there is. None: a short text needs none.
    pub fn asked(&self, bytes_max: u64) -> Option<impl Future<Output = Room> + Send + use<>> {
        (bytes_max > TEXT_BYTES_SURE).then(|| {
            let (units, budget) = (self.units.clone(), self.budget.clone());
            let bytes = bytes_max.min(budget.limit() / UNIT_BYTES * UNIT_BYTES);
            async move {
                let units = units.acquire_many_owned(bytes.div_ceil(UNIT_BYTES) as u32).await;
                Room {
                    units: Some(units.expect("never closed")),
                    grant: budget.take(bytes),
                }
            }
        })
    }

    /// Counts a text that needs no room. None: it is not worth it.
    pub fn counted(&self, bytes: usize) -> Option<Room> {
        (bytes as u64 > BYTES_COUNTED).then(|| Room {
            units: None,
            grant: self.budget.take(bytes as u64),
        })
    }

    /// A text that is counted as long as it lives, and holds its room.
    pub fn hold(&self, text: impl Into<Bytes>, room: Option<Room>) -> Bytes {
        let text = text.into();
        match room.or_else(|| self.counted(text.len())) {
            None => text,
            Some(mut room) => {
                room.fit(text.len());
                Bytes::from_owner(CountedText { text, _room: room })
            }
        }
    }
}

impl Room {
    /// Reduces the room to the bytes that are really held, and leaves the rest to others.
    pub fn fit(&mut self, bytes: usize) {
        let needed = bytes.div_ceil(UNIT_BYTES as usize);
        if let Some(units) = &mut self.units
            && let Some(more) = units.num_permits().checked_sub(needed)
        {
            drop(units.split(more));
        }
        self.grant.resize(bytes as u64);
    }
}

/// A text that holds its room as long as it lives.
struct CountedText {
    text: Bytes,
    _room: Room,
}

impl AsRef<[u8]> for CountedText {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_comes_back_with_the_text() {
        let budget = Budget::new(1 << 20);
        let texts = Texts::new(&budget);
        assert!(texts.asked(TEXT_BYTES_SURE).is_none());
        let all = texts.units.available_permits();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let room = runtime.block_on(texts.asked(u64::MAX).expect("a long one waits"));
        assert_eq!((texts.units.available_permits(), budget.used()), (0, 1 << 20));
        let body = texts.hold(b"text".to_vec(), Some(room));
        assert_eq!((texts.units.available_permits(), budget.used()), (all - 1, 4));
        let part = body.slice(1..2);
        drop(body);
        assert_eq!(texts.units.available_permits(), all - 1);
        drop(part);
        assert_eq!((texts.units.available_permits(), budget.used()), (all, 0));
    }

    #[test]
    fn a_text_that_is_longer_than_was_thought_is_counted() {
        let budget = Budget::new(1 << 20);
        let texts = Texts::new(&budget);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let room = runtime.block_on(texts.asked(TEXT_BYTES_SURE + 1).expect("a long one waits"));
        let body = texts.hold(vec![0; 2 << 20], Some(room));
        assert_eq!(budget.used(), 2 << 20);
        drop(body);
        assert_eq!((budget.used(), texts.units.available_permits()), (0, 1 << 10));
    }
    #[test]
    fn short_texts_are_counted_and_wait_for_nothing() {
        let budget = Budget::new(1 << 20);
        let texts = Texts::new(&budget);
        let all = texts.units.available_permits();
        let little = texts.hold(vec![0; BYTES_COUNTED as usize], None);
        assert_eq!(budget.used(), 0);
        let short = texts.hold(vec![0; TEXT_BYTES_SURE as usize], None);
        assert_eq!((budget.used(), texts.units.available_permits()), (TEXT_BYTES_SURE, all));
        drop((little, short));
        assert_eq!(budget.used(), 0);
    }
}
