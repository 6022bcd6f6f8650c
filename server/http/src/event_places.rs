//! Places of event streams. Once all are taken, a token with few streams gets the oldest place of the token with the most.

use std::{
    cmp::Reverse,
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::sync::Notify;

use crate::limits::EVENT_STREAMS_MAX;

#[derive(Clone, Default)]
pub struct EventPlaces(Arc<Mutex<TakenPlaces>>);

#[derive(Default)]
struct TakenPlaces {
    /// The oldest first.
    places: Vec<TakenPlace>,
    next_number: u64,
}

struct TakenPlace {
    number: u64,
    token: Arc<str>,
    leave: Arc<Notify>,
}

/// The place of one stream; a drop gives it back.
pub struct EventPlace {
    number: u64,
    leave: Arc<Notify>,
    places: EventPlaces,
}

impl EventPlaces {
    fn lock(&self) -> MutexGuard<'_, TakenPlaces> {
        self.0.lock().expect("no code panics under this lock")
    }

    /// Takes a place for a stream of this token. None: all are taken, and no token has two streams more than this one.
    pub fn take(&self, token: &str) -> Option<EventPlace> {
        let mut taken = self.lock();
        if taken.places.len() >= EVENT_STREAMS_MAX {
            let streams_of = |name: &str| taken.places.iter().filter(|place| &*place.token == name).count();
            let all = taken.places.iter().enumerate();
            let (most, Reverse(oldest)) = all.map(|(at, place)| (streams_of(&place.token), Reverse(at))).max()?;
            // With one more alone, two tokens would take places from each other in turn.
            if most < streams_of(token) + 2 {
                return None;
            }
            taken.places.remove(oldest).leave.notify_one();
        }
        let (number, leave) = (taken.next_number, Arc::new(Notify::new()));
        taken.next_number += 1;
        taken.places.push(TakenPlace {
            number,
            token: token.into(),
            leave: Arc::clone(&leave),
        });
        Some(EventPlace {
            number,
            leave,
            places: self.clone(),
        })
    }
}

impl EventPlace {
    /// Waits until another token got the place.
    pub async fn until_lost(&self) {
        self.leave.notified().await;
    }
}

impl Drop for EventPlace {
    fn drop(&mut self) {
        self.places.lock().places.retain(|place| place.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn a_token_with_all_places_gives_its_oldest_one_to_another() {
        let places = EventPlaces::default();
        let take = |token| places.take(token);
        let hoarded: Vec<_> = (0..EVENT_STREAMS_MAX).map(|_| take("reader").expect("free")).collect();
        assert!(take("reader").is_none(), "it has enough");
        let console = take("console").expect("the reader's oldest one");
        let is_lost = |place: &EventPlace| place.until_lost().now_or_never().is_some();
        assert_eq!(hoarded.iter().map(is_lost).position(|is_lost| is_lost), Some(0));
        assert!(hoarded[1..].iter().all(|place| !is_lost(place)) && !is_lost(&console));
        drop(hoarded);
        assert_eq!(places.lock().places.len(), 1);
        drop(console);
        assert!(places.lock().places.is_empty());
    }

    #[test]
    fn two_tokens_do_not_take_places_from_each_other_in_turn() {
        let places = EventPlaces::default();
        let halves = ["a", "b"].map(|token| (0..EVENT_STREAMS_MAX / 2).map(move |_| token));
        let held: Vec<_> = halves.into_iter().flatten().map(|token| places.take(token)).collect();
        assert!(held.iter().all(Option::is_some));
        assert!(places.take("a").is_none() && places.take("b").is_none());
        assert!(places.take("c").is_some());
    }
}
