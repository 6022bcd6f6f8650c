//! The layout of the memory that a peer writes, and the ring in it.
//!
//! ```text
//! 0    word: how many pieces the peer took (ReadyToReceive, Query Fresh section 3.2)
//! 64   ring: pieces, each from a multiple of 8 on; one may go on at the ring's start
//!        piece: sequence (4), payload bytes and flags (4), payload
//! ```
//! A frame is one piece, or several where it is longer than a piece may be. The immediate value of a write is the payload's length
//! (Query Fresh, section 3.1). The memory that is sent from has the same layout, with the word that is written at the peer.

/// The beginning of the ring: the word has a cache line of its own.
pub const RING_AT: usize = 64;
/// Before each piece.
pub const PIECE_HEAD_BYTES: usize = 8;
/// Number of pieces that may be in flight: as many receives are posted.
pub const PIECES_MAX: u32 = 256;
/// Limits of a ring's bytes.
pub const RING_BYTES_MIN: usize = 64 << 10;
pub const RING_BYTES_MAX: usize = 4 << 20;

/// Flag: the frame continues in the next piece.
const MORE: u32 = 1 << 31;
/// Nothing comes behind it.
const END: u32 = 1 << 30;

/// Returns the bytes of a ring for frames of at most `frame_bytes_max`. It holds several frames if they are short, and a part of one if
/// they are long.
pub fn ring_bytes(frame_bytes_max: usize) -> usize {
    let wanted = frame_bytes_max.saturating_mul(16);
    wanted.clamp(RING_BYTES_MIN, RING_BYTES_MAX).next_power_of_two()
}

/// Payload of one piece at most: four fit into the ring.
pub fn piece_bytes_max(ring_bytes: usize) -> usize {
    ring_bytes / 4 - PIECE_HEAD_BYTES
}

/// Bytes of the ring that a piece takes.
pub fn span(payload: usize) -> usize {
    (PIECE_HEAD_BYTES + payload).next_multiple_of(8)
}

/// The head before a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceHead {
    /// Number of the piece, from 0; it begins anew behind 2^32.
    pub sequence: u32,
    pub payload: usize,
    pub is_more: bool,
    pub is_end: bool,
}

impl PieceHead {
    pub fn encode(&self) -> [u8; PIECE_HEAD_BYTES] {
        let flags = if self.is_more { MORE } else { 0 } | if self.is_end { END } else { 0 };
        let mut bytes = [0; PIECE_HEAD_BYTES];
        bytes[..4].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[4..].copy_from_slice(&(self.payload as u32 | flags).to_le_bytes());
        bytes
    }

    pub fn decode(bytes: [u8; PIECE_HEAD_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        let word = u32::from_le_bytes([e, f, g, h]);
        Self {
            sequence: u32::from_le_bytes([a, b, c, d]),
            payload: (word & !(MORE | END)) as usize,
            is_more: word & MORE != 0,
            is_end: word & END != 0,
        }
    }
}

/// The peer's ring, and the part of it that is known to be free.
#[derive(Debug)]
pub struct PeerRing {
    ring_bytes: u64,
    /// Behind the last piece, counted from the connection's start.
    head: u64,
    /// Behind the last piece that the peer took.
    freed: u64,
    posted: u64,
    taken: u64,
    /// Ends of the pieces on their way, by number.
    ends: Box<[u64]>,
}

impl PeerRing {
    pub fn new(ring_bytes: usize, pieces_max: u32) -> Self {
        Self {
            ring_bytes: ring_bytes as u64,
            head: 0,
            freed: 0,
            posted: 0,
            taken: 0,
            ends: vec![0; pieces_max as usize].into(),
        }
    }

    /// Records how many pieces the peer took. Err: it can't be.
    pub fn record_taken(&mut self, taken: u64) -> Result<(), String> {
        if taken < self.taken || taken > self.posted {
            let (before, posted) = (self.taken, self.posted);
            return Err(format!(
                "the peer tells that it took {taken} pieces; {posted} were sent, and it told of {before} before"
            ));
        }
        if taken > self.taken {
            self.freed = self.ends[((taken - 1) % self.ends.len() as u64) as usize];
            self.taken = taken;
        }
        Ok(())
    }

    pub fn has_room(&self, payload: usize) -> bool {
        let used = self.head - self.freed + span(payload) as u64;
        self.posted - self.taken < self.ends.len() as u64 && used <= self.ring_bytes
    }

    /// Number of the next piece, and its offset in the ring.
    pub fn next(&self) -> (u32, usize) {
        (self.posted as u32, (self.head % self.ring_bytes) as usize)
    }

    /// Takes room for the next piece. There must be room.
    pub fn push(&mut self, payload: usize) {
        debug_assert!(self.has_room(payload));
        self.head += span(payload) as u64;
        self.ends[(self.posted % self.ends.len() as u64) as usize] = self.head;
        self.posted += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_head_is_what_it_was() {
        for (is_more, is_end) in [(false, false), (true, false), (false, true)] {
            let head = PieceHead {
                sequence: 0xfedc_ba98,
                payload: RING_BYTES_MAX,
                is_more,
                is_end,
            };
            assert_eq!(PieceHead::decode(head.encode()), head);
        }
        let golden = PieceHead {
            sequence: 1,
            payload: 5,
            is_more: true,
            is_end: false,
        };
        assert_eq!(golden.encode(), [1, 0, 0, 0, 5, 0, 0, 0x80]);
    }

    #[test]
    fn nothing_is_written_that_was_not_taken() {
        let mut ring = PeerRing::new(RING_BYTES_MIN, 4);
        let payload = piece_bytes_max(RING_BYTES_MIN);
        for piece in 0..4 {
            assert!(ring.has_room(payload));
            assert_eq!(ring.next(), (piece, piece as usize * RING_BYTES_MIN / 4));
            ring.push(payload);
        }
        assert!(!ring.has_room(0));
        ring.record_taken(1).expect("one of four");
        assert!(ring.has_room(payload));
        assert_eq!(ring.next(), (4, 0));
        ring.push(payload);
        assert!(ring.record_taken(0).is_err() && ring.record_taken(6).is_err());
        ring.record_taken(5).expect("all");
        assert!(ring.has_room(payload));
    }

    #[test]
    fn short_pieces_are_counted_too() {
        let mut ring = PeerRing::new(RING_BYTES_MIN, 4);
        for _ in 0..4 {
            ring.push(1);
        }
        assert!(!ring.has_room(1));
        ring.record_taken(2).expect("two of four");
        assert!(ring.has_room(1));
    }

    #[test]
    fn rings_have_a_size_for_their_frames() {
        assert_eq!(ring_bytes(1 << 10), RING_BYTES_MIN);
        assert_eq!(ring_bytes(32 << 20), RING_BYTES_MAX);
        assert_eq!(ring_bytes(usize::MAX), RING_BYTES_MAX);
        assert_eq!(span(0), 8);
        assert_eq!(span(1), 16);
    }
}
