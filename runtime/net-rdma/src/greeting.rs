//! The greeting that both ends exchange over TCP before the first write: 128 bytes each way.
//!
//! ```text
//! 0   magic, with the version (8)
//! 8   kind: 1 a queue pair, 2 a refusal        then of a queue pair
//! 9   MTU (1)   10 LID (2)   12 queue pair (4)   16 first packet (4)   20 GID (16)
//! 36  address of the memory (8)   44 its key (4)   48 bytes of the ring (4)   52 pieces on their way (4)
//!                                              of a refusal
//! 9   bytes of its text (1)   10 the text
//! ```

use std::io::{self, Read, Write};

use crate::{
    layout::{PIECES_MAX, RING_BYTES_MAX, RING_BYTES_MIN},
    verbs::{PairAddress, RemoteMemory},
};

pub const GREETING_BYTES: usize = 128;
const MAGIC: [u8; 8] = *b"RpsRdma1";
const PAIR: u8 = 1;
const REFUSAL: u8 = 2;
const TEXT_AT: usize = 10;
/// One byte behind the greeting: this end can be written to.
const READY: u8 = 0x52;

/// An end of a connection, as it tells the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    pub pair: PairAddress,
    /// Begins with the word; the ring follows.
    pub memory: RemoteMemory,
    pub ring_bytes: u32,
    /// Pieces that may be on their way to it.
    pub pieces_max: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum GreetingError {
    #[error("it ended the connection before it greeted: does it use the transport rdma?")]
    Silent,
    #[error("its greeting is not one of this version of the transport rdma")]
    Foreign,
    #[error("{0}")]
    Refused(String),
    #[error("its greeting names {0}")]
    Unfit(&'static str),
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for GreetingError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Silent,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Io(io::Error::new(
                io::ErrorKind::TimedOut,
                "it did not greet in time: does it use the transport rdma?",
            )),
            _ => Self::Io(error),
        }
    }
}

impl Greeting {
    pub fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(8, &[PAIR, self.pair.mtu]);
        put(10, &self.pair.lid.to_le_bytes());
        put(12, &self.pair.queue_pair.to_le_bytes());
        put(16, &self.pair.first_packet.to_le_bytes());
        put(20, &self.pair.gid);
        put(36, &self.memory.address.to_le_bytes());
        put(44, &self.memory.key.to_le_bytes());
        put(48, &self.ring_bytes.to_le_bytes());
        put(52, &self.pieces_max.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; GREETING_BYTES]) -> Result<Self, GreetingError> {
        if bytes[..8] != MAGIC {
            return Err(GreetingError::Foreign);
        }
        match bytes[8] {
            PAIR => Self::check(Self {
                pair: PairAddress {
                    mtu: bytes[9],
                    lid: u16::from_le_bytes(field(bytes, 10)),
                    queue_pair: u32::from_le_bytes(field(bytes, 12)),
                    first_packet: u32::from_le_bytes(field(bytes, 16)),
                    gid: field(bytes, 20),
                },
                memory: RemoteMemory {
                    address: u64::from_le_bytes(field(bytes, 36)),
                    key: u32::from_le_bytes(field(bytes, 44)),
                },
                ring_bytes: u32::from_le_bytes(field(bytes, 48)),
                pieces_max: u32::from_le_bytes(field(bytes, 52)),
            }),
            REFUSAL => Err(GreetingError::Refused(refusal_text(bytes))),
            _ => Err(GreetingError::Foreign),
        }
    }

    fn check(self) -> Result<Self, GreetingError> {
        let ring = self.ring_bytes as usize;
        let end = (RING_BYTES_MAX as u64 * 2).checked_add(self.memory.address);
        if !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring) || !ring.is_power_of_two() {
            return Err(GreetingError::Unfit("a ring of another size"));
        }
        if !(1..=PIECES_MAX).contains(&self.pieces_max) {
            return Err(GreetingError::Unfit("another number of pieces"));
        }
        if !(1..=5).contains(&self.pair.mtu) {
            return Err(GreetingError::Unfit("an MTU that does not exist"));
        }
        if self.pair.queue_pair >> 24 != 0 || self.pair.first_packet >> 24 != 0 {
            return Err(GreetingError::Unfit("a queue pair that does not exist"));
        }
        if end.is_none() || !self.memory.address.is_multiple_of(8) {
            return Err(GreetingError::Unfit("memory that does not exist"));
        }
        Ok(self)
    }
}

fn field<const N: usize>(bytes: &[u8; GREETING_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}

fn refusal_text(bytes: &[u8; GREETING_BYTES]) -> String {
    let end = (TEXT_AT + bytes[9] as usize).min(GREETING_BYTES);
    let text = String::from_utf8_lossy(&bytes[TEXT_AT..end]);
    text.chars().filter(|c| !c.is_control()).collect()
}

/// A greeting that says why there is no queue pair. A reason that is too long is cut.
pub fn refusal(reason: &str) -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    let mut end = reason.len().min(GREETING_BYTES - TEXT_AT);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    bytes[..8].copy_from_slice(&MAGIC);
    (bytes[8], bytes[9]) = (REFUSAL, end as u8);
    bytes[TEXT_AT..TEXT_AT + end].copy_from_slice(&reason.as_bytes()[..end]);
    bytes
}

pub fn read(stream: &mut impl Read) -> Result<Greeting, GreetingError> {
    let mut bytes = [0; GREETING_BYTES];
    stream.read_exact(&mut bytes)?;
    Greeting::decode(&bytes)
}

/// Tells that this end can be written to, and waits for the same of the other.
pub fn make_ready(stream: &mut (impl Read + Write)) -> Result<(), GreetingError> {
    stream.write_all(&[READY])?;
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    match byte {
        [READY] => Ok(()),
        _ => Err(GreetingError::Foreign),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting() -> Greeting {
        Greeting {
            pair: PairAddress {
                queue_pair: 17,
                first_packet: 0x0012_3456,
                lid: 3,
                mtu: 3,
                gid: [9; 16],
            },
            memory: RemoteMemory {
                address: 0x7f00_1234_5000,
                key: 0xdead_beef,
            },
            ring_bytes: RING_BYTES_MIN as u32,
            pieces_max: PIECES_MAX,
        }
    }

    #[test]
    fn a_greeting_is_what_it_was() {
        let bytes = greeting().encode();
        assert_eq!(Greeting::decode(&bytes).expect("its own"), greeting());
        assert_eq!(&bytes[..12], b"RpsRdma1\x01\x03\x03\x00");
        assert_eq!(bytes[48..56], [0, 0, 1, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn greeting_mismatch_is_named() {
        type Spoil = fn(&mut Greeting);
        let cases: [(Spoil, &str); 6] = [
            (|it| it.ring_bytes = u32::MAX, "a ring of another size"),
            (|it| it.ring_bytes = 0, "a ring of another size"),
            (|it| it.pieces_max = 1 << 30, "another number of pieces"),
            (|it| it.pair.mtu = 9, "an MTU that does not exist"),
            (|it| it.pair.queue_pair = u32::MAX, "a queue pair that does not exist"),
            (|it| it.memory.address = u64::MAX - 7, "memory that does not exist"),
        ];
        for (spoil, named) in cases {
            let mut spoilt = greeting();
            spoil(&mut spoilt);
            let refused = Greeting::decode(&spoilt.encode()).map_err(|error| error.to_string());
            assert_eq!(refused, Err(format!("its greeting names {named}")));
        }
    }

    #[test]
    fn refusal_is_reported_and_truncated() {
        let reason_of = |reason: &str| match Greeting::decode(&refusal(reason)) {
            Err(GreetingError::Refused(reason_of)) => reason_of,
            other => panic!("{other:?}"),
        };
        assert_eq!(reason_of("no card"), "no card");
        assert_eq!(reason_of("no\ncard\u{1b}"), "nocard");
        assert_eq!(reason_of(&"é".repeat(100)), "é".repeat(59));
    }

    #[test]
    fn other_bytes_are_no_greeting() {
        let mut state = 7_u64;
        for _ in 0..10_000 {
            let mut bytes = greeting().encode();
            for _ in 0..4 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                bytes[(state >> 33) as usize % GREETING_BYTES] = (state >> 24) as u8;
            }
            let _ = Greeting::decode(&bytes);
        }
        let cut = read(&mut &b"RpsRdma1"[..]).expect_err("it is cut");
        assert!(matches!(cut, GreetingError::Silent));
    }
}
