//! The names of callers, by their numbers in records.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
};

/// A dictionary that only grows: record 14 of the log defines a number before the first record that uses it.
#[derive(Default)]
pub struct Principals(RwLock<Names>);

#[derive(Default)]
struct Names {
    /// Number 1 comes first.
    by_number: Vec<Arc<str>>,
    numbers: BTreeMap<Arc<str>, u32>,
}

impl Principals {
    fn names(&self) -> RwLockReadGuard<'_, Names> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of a name that has one.
    pub fn number(&self, name: &str) -> Option<u32> {
        self.names().numbers.get(name).copied()
    }

    /// Returns the name with a number. Number 0 has no name.
    pub fn name(&self, number: u32) -> Option<Arc<str>> {
        let at = (number as usize).checked_sub(1)?;
        self.names().by_number.get(at).cloned()
    }

    /// Returns the number that the next name gets.
    pub fn next_number(&self) -> u32 {
        self.names().by_number.len() as u32 + 1
    }

    /// Returns all names, number 1 first.
    pub fn all(&self) -> Vec<Arc<str>> {
        self.names().by_number.clone()
    }

    /// Gives a name its number, which must be the next one. Err: the next number, if it is another.
    pub fn define(&self, number: u32, name: &str) -> Result<(), u32> {
        let mut names = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let next = names.by_number.len() as u32 + 1;
        match names.numbers.get(name) {
            Some(known) if *known == number => return Ok(()),
            None if number == next => {}
            _ => return Err(next),
        }
        let name: Arc<str> = name.into();
        names.by_number.push(name.clone());
        names.numbers.insert(name, number);
        Ok(())
    }

    /// Forgets all names. The next replay defines them anew.
    pub fn clear(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Names::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_each_other_and_stay() {
        let principals = Principals::default();
        assert_eq!((principals.number("ci"), principals.next_number()), (None, 1));
        assert_eq!(principals.define(2, "ci"), Err(1));
        assert_eq!(principals.define(1, "ci"), Ok(()));
        assert_eq!(principals.define(1, "ci"), Ok(()), "a replay defines it once more");
        assert_eq!(principals.define(1, "app"), Err(2));
        assert_eq!(principals.define(2, "ci"), Err(2));
        assert_eq!(principals.define(2, "app"), Ok(()));
        let name = |number| principals.name(number).map(|name| name.to_string());
        assert_eq!(
            (name(0), name(1), name(2), name(3)),
            (None, Some("ci".into()), Some("app".into()), None)
        );
        principals.clear();
        assert_eq!((principals.number("ci"), principals.all().len()), (None, 0));
    }
}
