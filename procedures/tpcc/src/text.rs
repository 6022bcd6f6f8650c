//! Random text of the initial population, and names (clauses 4.3.2 and 4.3.3).

use reprise_procedure::prelude::*;

const SYLLABLES: [&str; 10] = [
    "BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING",
];
const CHARACTERS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
const LONGEST: usize = 500;

/// The last name of a number from 0 to 999.
pub fn last_name(number: u32) -> SmallText<16> {
    let mut bytes = [0; 16];
    let mut end = 0;
    for digit in [number / 100 % 10, number / 10 % 10, number % 10] {
        let syllable = SYLLABLES.get(digit as usize).unwrap_or(&"").as_bytes();
        if let Some(room) = bytes.get_mut(end..end + syllable.len()) {
            room.copy_from_slice(syllable);
            end += syllable.len();
        }
    }
    small(bytes.get(..end).unwrap_or(&[]))
}

/// Draws for the population. Bits of one draw serve several characters: a warehouse has fifty million of them.
pub struct Draw<'t, 'h> {
    tx: &'t Txn<'h>,
    bits: u64,
    left: u32,
}

impl<'t, 'h> Draw<'t, 'h> {
    pub fn new(tx: &'t Txn<'h>) -> Self {
        Self { tx, bits: 0, left: 0 }
    }

    fn take(&mut self, bits: u32) -> u64 {
        if self.left < bits {
            self.bits = self.tx.random();
            self.left = 64;
        }
        let taken = self.bits & ((1 << bits) - 1);
        self.bits >>= bits;
        self.left -= bits;
        taken
    }

    /// A number from `low` to `high`, both included; their distance is below 2^24.
    pub fn number(&mut self, low: i64, high: i64) -> i64 {
        let span = (high - low + 1) as u64;
        low + ((self.take(32) * span) >> 32) as i64
    }

    fn fill(&mut self, out: &mut [u8], digits: bool) {
        for byte in out {
            *byte = if digits {
                b'0' + ((self.take(16) * 10) >> 16) as u8
            } else {
                CHARACTERS.get(self.take(6) as usize).copied().unwrap_or(b'0')
            };
        }
    }

    /// `a-string [low..high]`.
    pub fn text<const N: usize>(&mut self, low: usize, high: usize) -> SmallText<N> {
        let mut bytes = [0; N];
        let length = self.number(low as i64, high as i64) as usize;
        match bytes.get_mut(..length) {
            Some(out) => {
                self.fill(out, false);
                small(out)
            }
            None => SmallText::default(),
        }
    }

    /// `n-string` of this length.
    pub fn digits<const N: usize>(&mut self) -> SmallText<N> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, true);
        small(&bytes)
    }

    /// Two letters.
    pub fn state(&mut self) -> SmallText<2> {
        let mut letter = || b'A' + self.number(0, 25) as u8;
        let letters = [letter(), letter()];
        small(&letters)
    }

    /// Four digits and `11111`.
    pub fn zip(&mut self) -> SmallText<9> {
        let mut bytes = *b"000011111";
        if let Some(digits) = bytes.first_chunk_mut::<4>() {
            self.fill(digits, true);
        }
        small(&bytes)
    }

    /// Text of 26 to 50 characters; one in ten has `ORIGINAL` somewhere in it.
    pub fn data(&mut self) -> SmallText<50> {
        let mut bytes = [0; 50];
        let length = self.number(26, 50) as usize;
        let out = bytes.get_mut(..length).unwrap_or_default();
        self.fill(out, false);
        if self.number(1, 10) == 1 {
            let at = self.number(0, length as i64 - 8) as usize;
            if let Some(room) = out.get_mut(at..at + 8) {
                room.copy_from_slice(b"ORIGINAL");
            }
        }
        small(out)
    }

    /// Text of 300 to 500 characters.
    pub fn long(&mut self) -> String {
        let mut bytes = [0; LONGEST];
        let length = self.number(300, LONGEST as i64) as usize;
        let out = bytes.get_mut(..length).unwrap_or_default();
        self.fill(out, false);
        std::str::from_utf8(out).unwrap_or("").to_owned()
    }

    /// `NURand(255, 0, 999)` with the constant of the load (clause 2.1.6).
    pub fn last_name_number(&mut self) -> u32 {
        let either = self.number(0, 255) | self.number(0, 999);
        ((either + LAST_NAME_C_LOAD) % 1_000) as u32
    }

    /// The numbers from 1 to `count` in random order.
    pub fn permutation(&mut self, count: i32) -> Vec<i32> {
        let mut numbers: Vec<i32> = (1..=count).collect();
        for end in (1..numbers.len()).rev() {
            let other = self.number(0, end as i64) as usize;
            numbers.swap(end, other);
        }
        numbers
    }
}

/// `C` of `NURand(255, 0, 999)` in the initial population. A run has another one, 65 to 119 apart and neither 96 nor 112.
pub const LAST_NAME_C_LOAD: i64 = 123;

/// ASCII that fits.
fn small<const N: usize>(bytes: &[u8]) -> SmallText<N> {
    std::str::from_utf8(bytes)
        .ok()
        .and_then(SmallText::new)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_names_are_three_syllables() {
        assert_eq!(last_name(0).as_str(), "BARBARBAR");
        assert_eq!(last_name(371).as_str(), "PRICALLYOUGHT");
        assert_eq!(last_name(999).as_str(), "EINGEINGEING");
        assert!((0..1_000).all(|number| last_name(number).len() >= 9));
    }
}
