//! Calls of `registers`, chosen at random.

use reprise_abi::value::{ValueError, ValueReader, push_varint};

/// One call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    Read(Vec<i64>),
    Write {
        ids: Vec<i64>,
        values: Vec<Option<i64>>,
        abort: bool,
    },
    Rotate(Vec<i64>),
    All,
}

/// The answer of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ret {
    Values(Vec<Option<i64>>),
    Rows(Vec<(i64, i64)>),
    Aborted,
}

impl Op {
    pub fn procedure(&self) -> &'static str {
        match self {
            Self::Read(_) => "read",
            Self::Write { .. } => "write",
            Self::Rotate(_) => "rotate",
            Self::All => "all",
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::All => {}
            Self::Read(ids) | Self::Rotate(ids) => encode_ids(ids, out),
            Self::Write { ids, values, abort } => {
                encode_ids(ids, out);
                push_varint(out, values.len() as u32);
                for value in values {
                    out.push(value.is_some() as u8);
                    out.extend(value.iter().flat_map(|value| value.to_le_bytes()));
                }
                out.push(*abort as u8);
            }
        }
    }

    /// Decodes the answer of a committed call.
    pub fn decode(&self, result: &[u8]) -> Result<Ret, ValueError> {
        let mut reader = ValueReader::new(result);
        let number = |reader: &mut ValueReader<'_>| reader.array().map(i64::from_le_bytes);
        let count = reader.list_len()?;
        let ret = match self {
            Self::All => {
                let mut row = || Ok((number(&mut reader)?, number(&mut reader)?));
                Ret::Rows((0..count).map(|_| row()).collect::<Result<_, _>>()?)
            }
            _ => {
                let mut value = || match reader.flag()? {
                    true => number(&mut reader).map(Some),
                    false => Ok(None),
                };
                Ret::Values((0..count).map(|_| value()).collect::<Result<_, _>>()?)
            }
        };
        reader.finish()?;
        Ok(ret)
    }
}

fn encode_ids(ids: &[i64], out: &mut Vec<u8>) {
    push_varint(out, ids.len() as u32);
    out.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
}

/// A stream of calls: over `registers` registers, `several_percent` of them naming more than one.
pub struct Mix {
    pub registers: u64,
    pub several_percent: u64,
    /// Calls on all registers at once; per mille.
    pub all_permille: u64,
    state: u64,
    written: i64,
}

impl Mix {
    /// `client` makes the values written distinct among clients.
    pub fn new(seed: u64, client: usize, registers: u64, several_percent: u64) -> Self {
        let state = (seed << 8 | client as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self {
            registers,
            several_percent,
            all_permille: 10,
            state,
            written: (client as i64 + 1) * 1_000_000,
        }
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) % bound
    }

    fn ids(&mut self) -> Vec<i64> {
        let count = match self.below(100) < self.several_percent {
            true => 2 + self.below(3),
            false => 1,
        };
        (0..count).map(|_| self.below(self.registers) as i64).collect()
    }

    fn value(&mut self) -> Option<i64> {
        self.written += 1;
        (self.below(8) > 0).then_some(self.written)
    }
}

impl Iterator for Mix {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        if self.below(1_000) < self.all_permille {
            return Some(Op::All);
        }
        let ids = self.ids();
        Some(match self.below(10) {
            0..4 => Op::Read(ids),
            4..6 => Op::Rotate(ids),
            _ => Op::Write {
                values: ids.iter().map(|_| self.value()).collect(),
                abort: self.below(8) == 0,
                ids,
            },
        })
    }
}
