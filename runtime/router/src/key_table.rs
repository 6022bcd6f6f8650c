//! The entries of idempotency keys by name.
//!
//! A sorted map compares a name with some forty others, and each one is a cache miss. A hash table compares it with one. The table is in parts: a part
//! that grows moves its entries alone, so no call waits until a million entries have moved.

use hashbrown::{HashTable, hash_table::Entry};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::scoped_key::ScopedName;

const PARTS: usize = 256;

struct NamedValue<T> {
    hash: u64,
    name: ScopedName,
    value: T,
}

/// Values by name.
pub(crate) struct KeyTable<T> {
    parts: Vec<HashTable<NamedValue<T>>>,
    /// Clients choose the keys, and do not know this.
    secret: u64,
}

impl<T> KeyTable<T> {
    /// Makes an empty table. A client that chooses names must not know `secret`.
    pub fn new(secret: u64) -> Self {
        Self {
            parts: (0..PARTS).map(|_| HashTable::new()).collect(),
            secret,
        }
    }

    fn hash(&self, name: &[u8]) -> u64 {
        xxh3_64_with_seed(name, self.secret)
    }

    /// Returns the position of the part. The part's own table uses the other bits.
    fn part(hash: u64) -> usize {
        (hash >> 20) as usize % PARTS
    }

    pub fn get(&self, name: &[u8]) -> Option<&T> {
        let hash = self.hash(name);
        let found = self.parts[Self::part(hash)].find(hash, |named| named.hash == hash && *named.name == *name);
        found.map(|named| &named.value)
    }

    /// Returns the value with the name under which it is kept.
    pub fn get_mut(&mut self, name: &[u8]) -> Option<(&ScopedName, &mut T)> {
        let hash = self.hash(name);
        let part = &mut self.parts[Self::part(hash)];
        let found = part.find_mut(hash, |named| named.hash == hash && *named.name == *name);
        found.map(|named| (&named.name, &mut named.value))
    }

    /// Puts a value in the place of the one with this name, if there is one.
    pub fn insert(&mut self, name: ScopedName, value: T) {
        let hash = self.hash(&name);
        let is_same = |named: &NamedValue<T>| named.hash == hash && named.name == name;
        match self.parts[Self::part(hash)].entry(hash, is_same, |named| named.hash) {
            Entry::Occupied(mut occupied) => occupied.get_mut().value = value,
            Entry::Vacant(vacant) => drop(vacant.insert(NamedValue { hash, name, value })),
        }
    }

    pub fn remove(&mut self, name: &[u8]) -> Option<T> {
        let hash = self.hash(name);
        let part = &mut self.parts[Self::part(hash)];
        let found = part.find_entry(hash, |named| named.hash == hash && *named.name == *name);
        found.ok().map(|entry| entry.remove().0.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scoped_key::ScopedKey;

    #[test]
    fn names_are_found_in_their_scope_alone_while_the_table_grows_and_shrinks() {
        let mut table = KeyTable::new(7);
        let long = "k".repeat(200);
        let keys: Vec<String> = (0..5_000)
            .map(|at| format!("{}{at}", if at % 7 == 0 { &long } else { "k" }))
            .collect();
        let name = |scope, key| ScopedKey { scope, key }.name();
        for (at, key) in keys.iter().enumerate() {
            table.insert(name("a", key), at);
            table.insert(name("", key), at + 1);
            table.insert(name("", key), at + 2);
        }
        for (at, key) in keys.iter().enumerate() {
            assert_eq!(table.get(&name("a", key)), Some(&at));
            assert_eq!(table.remove(&name("", key)), Some(at + 2));
            assert_eq!((table.get(&name("", key)), table.get(&name("b", key))), (None, None));
            let (kept, value) = table.get_mut(&name("a", key)).expect("it is kept");
            assert_eq!(kept, &name("a", key));
            *value += 1;
            assert_eq!(table.remove(&name("a", key)), Some(at + 1));
        }
        assert!(table.parts.iter().all(HashTable::is_empty));
    }
}
