//! A map of which a changed copy costs little, however much is in it: parts are shared between copies, and a change
//! copies the one part that it is in.

use std::{
    borrow::Borrow,
    collections::HashMap,
    hash::{BuildHasher, Hash, RandomState},
    sync::Arc,
};

/// Parts of a map. Of 10,000 entries a change copies some 40, and 256 pointers.
const PARTS: u64 = 256;

/// A hash map in parts. A clone shares them all, and a change copies only the part that it touches.
#[derive(Clone)]
pub struct Shards<K, V> {
    parts: Vec<Arc<HashMap<K, V>>>,
    hasher: RandomState,
    entries: usize,
}

impl<K, V> Default for Shards<K, V> {
    fn default() -> Self {
        let parts = (0..PARTS).map(|_| Arc::default()).collect();
        Self { parts, hasher: RandomState::new(), entries: 0 }
    }
}

impl<K: Hash + Eq + Clone, V: Clone> Shards<K, V> {
    fn part<Q: Hash + ?Sized>(&self, key: &Q) -> usize {
        usize::try_from(self.hasher.hash_one(key) % PARTS).unwrap_or_default()
    }

    /// The entry of a key.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.parts[self.part(key)].get(key)
    }

    /// Adds an entry, in place of one of the same key.
    pub fn insert(&mut self, key: K, value: V) {
        let part = self.part(&key);
        if Arc::make_mut(&mut self.parts[part]).insert(key, value).is_none() {
            self.entries += 1;
        }
    }

    /// Takes the entry of a key out.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let part = self.part(key);
        // What is not there is no reason to copy anything.
        self.parts[part].get(key)?;
        let removed = Arc::make_mut(&mut self.parts[part]).remove(key);
        self.entries -= usize::from(removed.is_some());
        removed
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.parts.iter().flat_map(|part| part.iter())
    }

    /// All values, in no order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map_and_copies_do_not_know_of_later_changes(
            steps in prop::collection::vec((any::<bool>(), 0u16..300, any::<u8>()), 0..600),
        ) {
            let (mut shards, mut model) = (Shards::default(), HashMap::new());
            let mut copies = Vec::new();
            for (at, (put, key, value)) in steps.into_iter().enumerate() {
                if at % 100 == 0 {
                    copies.push((shards.clone(), model.clone()));
                }
                if put {
                    shards.insert(key, value);
                    model.insert(key, value);
                } else {
                    prop_assert_eq!(shards.remove(&key), model.remove(&key));
                }
            }
            copies.push((shards, model));
            for (shards, model) in copies {
                prop_assert_eq!((shards.len(), shards.is_empty()), (model.len(), model.is_empty()));
                let found: HashMap<u16, u8> = shards.iter().map(|(key, value)| (*key, *value)).collect();
                prop_assert_eq!(&found, &model);
                prop_assert!(model.iter().all(|(key, value)| shards.get(key) == Some(value)));
            }
        }
    }

    #[test]
    fn a_change_copies_one_part() {
        let mut shards = Shards::default();
        (0..10_000).for_each(|n| shards.insert(n, n));
        let mut changed = shards.clone();
        changed.insert(7, 8);
        changed.remove(&10_001);
        let shared = shards.parts.iter().zip(&changed.parts).filter(|(one, other)| Arc::ptr_eq(one, other)).count();
        assert_eq!(shared, 255);
    }
}
