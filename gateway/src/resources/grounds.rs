//! What a kind decides a write by, other than the resource itself: whether other resources exist, and how many there are.
//!
//! A kind reads that before the write is stored, and another request may write in between. So what was read becomes part
//! of the batch of the write. The store compares it within the transaction, while no other transaction writes, and
//! refuses the batch where it has changed. The kind then decides again, and refuses what it would refuse of a later write.

use std::{
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use types::api::id::fold;

use super::Writing;
use crate::store::{
    StoreError,
    batch::{AtMost, Batch},
};

/// What a write was decided by.
#[derive(Debug, Default)]
pub struct Grounds(Mutex<Asked>);

#[derive(Debug, Default)]
struct Asked {
    as_read: Vec<(String, Option<i64>)>,
    at_most: Vec<AtMost>,
}

impl Grounds {
    /// Makes all that was read a condition of a batch.
    pub fn put_into(&self, batch: &mut Batch) {
        let Asked { as_read, at_most } = mem::take(&mut *self.asked());
        batch.as_read.extend(as_read);
        batch.at_most.extend(at_most);
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writing<'_> {
    /// Those of these keys that have a resource. The write becomes conditional on all of them: those without a resource
    /// still have none, and the others have the same version.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn taken(&self, mut keys: Vec<String>) -> Result<Vec<String>, StoreError> {
        let found = self.control.store.revisions_of(&keys).await?;
        let as_read = keys.iter().map(|key| (key.clone(), found.get(key).copied()));
        self.grounds.asked().as_read.extend(as_read);
        keys.retain(|key| found.contains_key(key));
        Ok(keys)
    }

    /// Whether the parent of the new resource has fewer than `most` children of a kind. The store will refuse the write if
    /// the parent would have more than `most` after it, because others wrote at the same time.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn has_room(&self, kind: &str, most: u64) -> Result<bool, StoreError> {
        let bound = AtMost { kind: fold(kind), parent: self.id.parent_key().to_owned(), count: most };
        let count = self.control.store.count_children(&bound.kind, &bound.parent).await?;
        self.grounds.asked().at_most.push(bound);
        Ok(count < most)
    }
}
