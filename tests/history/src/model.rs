//! The registers, one call after the other.

use std::collections::BTreeMap;

use crate::op::{Op, Ret};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Model(pub BTreeMap<i64, i64>);

impl Model {
    pub fn apply(&mut self, op: &Op) -> Ret {
        match op {
            Op::All => Ret::Rows(self.0.iter().map(|(id, value)| (*id, *value)).collect()),
            Op::Read(ids) => Ret::Values(self.read(ids)),
            Op::Write { abort: true, .. } => Ret::Aborted,
            Op::Write { ids, values, .. } => {
                let puts = ids.iter().zip(values);
                Ret::Values(puts.map(|(id, value)| self.put(*id, *value)).collect())
            }
            Op::Rotate(ids) => {
                let before = self.read(ids);
                for (at, id) in ids.iter().enumerate() {
                    self.put(*id, before[(at + 1) % before.len()]);
                }
                Ret::Values(before)
            }
        }
    }

    fn read(&self, ids: &[i64]) -> Vec<Option<i64>> {
        ids.iter().map(|id| self.0.get(id).copied()).collect()
    }

    fn put(&mut self, id: i64, value: Option<i64>) -> Option<i64> {
        match value {
            Some(value) => self.0.insert(id, value),
            None => self.0.remove(&id),
        }
    }
}
