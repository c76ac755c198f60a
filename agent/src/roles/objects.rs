//! What the gateway wants in a cluster beside its agents, kind by kind: extensions (docs/features.md E1) and flux
//! configurations (G1, G10). A role that looks after a [`Kind`] follows what is wanted, does it in a way of its own, and tells
//! how far it is; all but the middle is here.
//!
//! | part | what it does |
//! |---|---|
//! | [`follow`] | what is wanted, into custom resources and Secrets |
//! | [`gateway`] | what is asked of the gateway |
//! | [`hidden`] | protected settings that are in no text |
//! | [`namespace`] | where nothing is made, whatever is wanted |
//! | [`parts`] | what was told of an object's parts, and what has changed since |
//! | [`progress`] | what is begun, waits and fails, into custom resources |
//! | [`report`] | how far objects are, to the gateway |
//! | [`state`] | what is known of one object |
//! | [`store`] | the custom resources and Secrets |

pub mod follow;
pub mod gateway;
pub mod hidden;
pub mod namespace;
pub mod parts;
pub mod progress;
pub mod report;
pub mod state;
pub mod store;
#[cfg(test)]
pub mod testing;

use std::fmt::Debug;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use self::state::Status;

/// A kind of objects that a role looks after.
pub trait Kind: Debug + Clone + Default + PartialEq + Eq + Send + Sync + 'static {
    /// The full type, `Microsoft.KubernetesConfiguration/extensions`.
    const TYPE: &'static str;
    /// Kind and plural name of the custom resource, in `towline.io/v1alpha1`.
    const RESOURCE: (&'static str, &'static str);
    /// One object in messages.
    const NOUN: &'static str;
    /// Several objects in messages.
    const NOUNS: &'static str;
    /// The field manager of what the role writes.
    const MANAGER: &'static str;
    /// Secrets with protected settings are named `<SECRET>-<object>-protected`.
    const SECRET: &'static str;
    /// Objects of a cluster at most.
    const MAX: usize;
    /// The error code of one object more.
    const TOO_MANY: &'static str;
    /// Characters of a name at most.
    const NAME_CHARS: usize;
    /// What is wrong with a name that is longer, or holds other characters.
    const UNNAMEABLE: &'static str;

    /// What the custom resource shows of this kind beside what every kind shows, at the top of `status`.
    type Shown: Debug + Clone + Default + PartialEq + Eq + Send + Sync + Serialize + DeserializeOwned;
    /// What the role needs to know of this kind after a restart, in `status.record`.
    type Own: Debug + Clone + Default + PartialEq + Eq + Send + Sync + Serialize + DeserializeOwned;

    /// Whether it was made before, so that a change is an update.
    fn is_there(status: &Status<Self>) -> bool {
        status.current_version.is_some()
    }

    /// What is told of it beside what is told of every kind
    /// ([`ObjectStatus::details`](types::agent_api::ObjectStatus::details)).
    fn details(status: &Status<Self>) -> Option<Value> {
        let _ = status;
        None
    }
}

/// [`Kind::Shown`] or [`Kind::Own`] of a kind that has none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Nothing {}
