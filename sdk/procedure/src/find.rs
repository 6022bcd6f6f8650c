//! Searches of texts and numbers without branches that the processor mispredicts.

/// Bytes that are compared at once.
const STEP: usize = 8;
const ONES: u64 = u64::from_le_bytes([1; STEP]);

/// Whether `word` lies in the first `length` bytes of `place`. What lies behind them does not matter.
#[inline(always)]
pub(crate) fn holds<const N: usize>(place: &[u8; N], length: usize, word: &[u8]) -> bool {
    let [first, second, ..] = *word else {
        return holds_anywhere(place.get(..length).unwrap_or(&[]), word);
    };
    if N <= STEP {
        return holds_anywhere(place.get(..length).unwrap_or(&[]), word);
    }
    // There is one branch in all: the end of the text is checked only after the word's first two bytes were found.
    let mut found = pairs(place, N - STEP - 1, first, second);
    let mut at = 0;
    while at < N - STEP - 1 {
        found |= pairs(place, at, first, second);
        at += STEP;
    }
    found != 0 && holds_anywhere(place.get(..length).unwrap_or(&[]), word)
}

/// Returns a value other than 0 if the two bytes follow each other at one of eight places from `at` on.
#[inline(always)]
fn pairs<const N: usize>(place: &[u8; N], at: usize, first: u8, second: u8) -> u64 {
    let eight = |at: usize| {
        let bytes = place.get(at..).and_then(|bytes| bytes.first_chunk());
        u64::from_le_bytes(bytes.copied().unwrap_or_default())
    };
    // A byte is zero where both match.
    let others = eight(at) ^ (ONES * u64::from(first)) | eight(at + 1) ^ (ONES * u64::from(second));
    others.wrapping_sub(ONES) & !others & (ONES << 7)
}

/// Whether `word` lies in `text`.
#[cold]
#[inline(never)]
pub(crate) fn holds_anywhere(text: &[u8], word: &[u8]) -> bool {
    word.is_empty() || text.windows(word.len()).any(|bytes| bytes == word)
}

/// Each number once, in the order of first occurrence; `most` is the maximum count of numbers, each read once.
///
/// Earlier numbers are in a hash table that is at most half full, because a search in the list would be slow.
#[inline(always)]
pub fn distinct(numbers: impl IntoIterator<Item = i32>, most: usize) -> Vec<i32> {
    const NONE: u32 = u32::MAX;
    let mut list = Vec::with_capacity(most);
    // Each place holds a position in the list; a number is at its hash or behind it, going around.
    let mut places = vec![NONE; (2 * most + 1).next_power_of_two()];
    let mask = places.len() - 1;
    for number in numbers.into_iter().take(most) {
        let mut at = (number as u32).wrapping_mul(0x9e37_79b9) as usize >> 8;
        while let Some(place) = places.get_mut(at & mask) {
            if *place == NONE {
                *place = list.len() as u32;
                list.push(number);
                break;
            }
            if list.get(*place as usize) == Some(&number) {
                break;
            }
            at += 1;
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::TextRef;

    fn check<const N: usize>(word: &str) {
        for length in 0..N + 10 {
            for at in 0..=length.saturating_sub(word.len()) {
                let mut text = vec![b'O'; length];
                let fits = at + word.len() <= length;
                if fits {
                    text[at..at + word.len()].copy_from_slice(word.as_bytes());
                }
                let expected = std::str::from_utf8(&text).expect("ASCII").contains(word);
                let found = TextRef::<N>::from(std::str::from_utf8(&text).expect("ASCII")).contains(word);
                assert_eq!(found, expected, "{word} at {at} of {length} in {N}");
                if let (true, Some(place)) = (fits, text.first_chunk::<N>()) {
                    // Bytes behind the text are no part of it.
                    let end = (at + word.len()).saturating_sub(1);
                    let inside = std::str::from_utf8(&text[..end.min(N)]).expect("ASCII").contains(word);
                    assert_eq!(holds(place, end.min(N), word.as_bytes()), inside);
                }
            }
        }
    }

    #[test]
    fn words_are_found_wherever_they_lie() {
        for word in ["ORIGINAL", "OO", "xy", "z", ""] {
            check::<4>(word);
            check::<9>(word);
            check::<24>(word);
            check::<50>(word);
        }
    }

    #[test]
    fn each_number_is_listed_once() {
        let numbers: Vec<i32> = (0..300).map(|n| n * n % 97 - 40).collect();
        let mut expected = Vec::new();
        for number in &numbers {
            if !expected.contains(number) {
                expected.push(*number);
            }
        }
        assert_eq!(distinct(numbers, 300), expected);
        assert_eq!(distinct(1..=300, 300), (1..=300).collect::<Vec<i32>>());
        assert_eq!(distinct(1..=300, 0), [0; 0]);
    }
}
