//! The deletion of what takes long to go: a resource that was marked as being deleted goes, with all that it holds.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{Step, Work};
use crate::{
    control::Control,
    store::{
        batch::{Batch, Expect},
        operations::Operation,
    },
};

pub struct Delete;

impl Work for Delete {
    fn name(&self) -> &'static str {
        "delete"
    }

    fn go_on<'a>(&'a self, control: &'a Arc<Control>, operation: &'a Operation) -> BoxFuture<'a, Result<Step, String>> {
        Box::pin(async move {
            let mut batch = Batch::default();
            match control.store.get(&operation.resource).await {
                Ok(Some(stored)) if stored.is_deleting() => {
                    batch.deletes.push((stored.key, Expect::Revision(stored.revision)));
                }
                // Deleted by another operation; what is there now was created since.
                Ok(_) => {}
                Err(error) => return Err(daemon::chain(&error)),
            }
            Ok(Step::Ends(batch))
        })
    }
}
