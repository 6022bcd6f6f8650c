//! Room for long answers, over all connections: whoever writes one waits for it, and gives it back once the client has taken
//! the last byte, or is cut off for being slow.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::{TEXT_BYTES_COUNTED, TEXTS_BYTES_MAX};

/// A unit of room.
const UNIT_BYTES: u64 = 1 << 10;

pub struct Texts(Arc<Semaphore>);

/// So much room, while it is held.
pub type Room = OwnedSemaphorePermit;

impl Default for Texts {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new((TEXTS_BYTES_MAX / UNIT_BYTES) as usize)))
    }
}

impl Texts {
    /// Waits for room for a text of at most so many bytes. None is needed for a short one.
    pub async fn room(semaphore: Arc<Semaphore>, bytes_max: u64) -> Room {
        let units = bytes_max.min(TEXTS_BYTES_MAX).div_ceil(UNIT_BYTES) as u32;
        semaphore.acquire_many_owned(units).await.expect("never closed")
    }

    /// Where a text of so many bytes has to wait for its room.
    pub fn asked(&self, bytes_max: u64) -> Option<Arc<Semaphore>> {
        (bytes_max > TEXT_BYTES_COUNTED).then(|| self.0.clone())
    }
}

/// A text that holds its room as long as it lives.
struct Held {
    text: Vec<u8>,
    _room: Room,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

pub fn held(text: Vec<u8>, room: Option<Room>) -> Bytes {
    match room {
        None => text.into(),
        Some(room) => Bytes::from_owner(Held { text, _room: room }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_comes_back_with_the_text() {
        let texts = Texts::default();
        assert!(texts.asked(TEXT_BYTES_COUNTED).is_none());
        let all = texts.0.available_permits();
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let asked = texts.asked(u64::MAX).expect("a long one waits");
        let room = runtime.block_on(Texts::room(asked, u64::MAX));
        assert_eq!(texts.0.available_permits(), 0);
        let body = held(b"text".to_vec(), Some(room));
        let part = body.slice(1..2);
        drop(body);
        assert_eq!(texts.0.available_permits(), 0);
        drop(part);
        assert_eq!(texts.0.available_permits(), all);
    }
}
