//! The calls of the simulation: chosen at random, encoded, and what they answer decoded.

use reprise_abi::value::{ValueError, ValueReader};
use reprise_env::sim::FaultRandom;
use reprise_procedure::{scratch::Scratch, value::Decode};

use crate::module::second::{Everywhere, Here};

/// Items that calls work on.
pub const IDS: u64 = 24;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Put {
        ids: Vec<i64>,
        values: Vec<Option<i64>>,
        note: u32,
        abort: bool,
    },
    Add {
        id: i64,
        amount: i64,
    },
    Sweep {
        id: i64,
        below: i64,
        limit: u32,
    },
    Draw {
        id: i64,
    },
    Announce {
        value: i64,
    },
    Read {
        ids: Vec<i64>,
    },
}

/// The answer of a committed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ret {
    Values(Vec<Option<i64>>),
    Number(i64),
    Ids(Vec<i64>),
    Nothing,
}

impl Op {
    pub fn random(random: &mut FaultRandom, notes_max: u32) -> Self {
        let id = random.below(IDS) as i64;
        match random.below(20) {
            0..7 => {
                let ids = some_ids(random);
                Self::Put {
                    values: ids
                        .iter()
                        .map(|_| (random.below(5) > 0).then(|| random.below(100) as i64))
                        .collect(),
                    note: match random.below(4) {
                        0 => random.below(notes_max as u64) as u32,
                        _ => 0,
                    },
                    abort: random.below(10) == 0,
                    ids,
                }
            }
            7..12 => Self::Add {
                id,
                amount: random.below(30) as i64 - 10,
            },
            12 => Self::Sweep {
                id,
                below: random.below(40) as i64,
                limit: 1 + random.below(4) as u32,
            },
            13..15 => Self::Draw { id },
            15..17 => Self::Announce {
                value: random.below(1000) as i64,
            },
            _ => Self::Read { ids: some_ids(random) },
        }
    }

    pub fn procedure(&self) -> &'static str {
        match self {
            Self::Put { .. } => "put",
            Self::Add { .. } => "add",
            Self::Sweep { .. } => "sweep",
            Self::Draw { .. } => "draw",
            Self::Announce { .. } => "announce",
            Self::Read { .. } => "read",
        }
    }

    pub fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. })
    }

    pub fn encode(&self, nonce: i64, out: &mut Vec<u8>) {
        let mut args = Scratch::new();
        match self {
            Self::Put {
                ids,
                values,
                note,
                abort,
            } => {
                args.push_value(ids);
                args.push_value(&nonce);
                args.push_value(values);
                args.push_value(note);
                args.push_value(abort);
            }
            Self::Add { id, amount } => {
                [id, &nonce, amount].iter().for_each(|number| args.push_value(*number));
            }
            Self::Sweep { id, below, limit } => {
                [id, &nonce, below].iter().for_each(|number| args.push_value(*number));
                args.push_value(limit);
            }
            Self::Draw { id } => [id, &nonce].iter().for_each(|number| args.push_value(*number)),
            Self::Announce { value } => {
                [&nonce, value].iter().for_each(|number| args.push_value(*number));
            }
            Self::Read { ids } => args.push_value(ids),
        }
        out.extend_from_slice(args.as_slice());
    }

    pub fn decode(&self, result: &[u8]) -> Result<Ret, ValueError> {
        match self {
            Self::Put { .. } | Self::Read { .. } => decode(result).map(Ret::Values),
            Self::Add { .. } | Self::Draw { .. } => decode(result).map(Ret::Number),
            Self::Sweep { .. } => decode(result).map(Ret::Ids),
            Self::Announce { .. } => Ok(Ret::Nothing),
        }
    }
}

/// One item, or several that differ.
fn some_ids(random: &mut FaultRandom) -> Vec<i64> {
    let count = match random.below(3) {
        0 => 2 + random.below(3),
        _ => 1,
    };
    let mut ids: Vec<_> = (0..count).map(|_| random.below(IDS) as i64).collect();
    let mut seen = std::collections::BTreeSet::new();
    ids.retain(|id| seen.insert(*id));
    ids
}

fn decode<T: for<'a> Decode<'a>>(bytes: &[u8]) -> Result<T, ValueError> {
    let mut reader = ValueReader::new(bytes);
    let value = T::decode(&mut reader)?;
    reader.finish()?;
    Ok(value)
}

pub fn decode_everywhere(bytes: &[u8]) -> Result<Everywhere, ValueError> {
    decode(bytes)
}

pub fn decode_here(bytes: &[u8]) -> Result<Here, ValueError> {
    decode(bytes)
}
