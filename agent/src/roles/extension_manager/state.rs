//! What is known of one extension ([`objects::state`](crate::roles::objects::state)), and what only extensions have.

use serde::{Deserialize, Serialize};

use super::Extensions;
pub use crate::roles::objects::state::{Acknowledged, Fault, Happened, Phase, Problem, Wanted, bounded};

/// An extension. Its name is also that of its release.
pub type Extension = crate::roles::objects::state::Item<Extensions>;
/// How far an extension is.
pub type Status = crate::roles::objects::state::Status<Extensions>;
/// What the role needs to know of an extension after a restart.
pub type Record = crate::roles::objects::state::Record<Extensions>;

/// What is kept of an extension beside what every kind keeps.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Own {
    /// What is installed, or was begun.
    pub installed: Option<Installed>,
    /// A revision that is not ours and was reported.
    pub drifted: Option<u64>,
}

/// What is installed, as the role left it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Installed {
    /// The release's namespace.
    pub namespace: String,
    /// Whether helm ran with the rights of that namespace alone.
    pub namespaced: bool,
    /// The chart's version.
    pub version: String,
    /// What it was made of: [`super::plan::Target::fingerprint`].
    pub fingerprint: String,
    /// The release's revision; 0 before helm has ended.
    pub revision: u64,
    /// The last revision that this role saw run, to which it goes back; 0: none. Labels of releases say nothing of it:
    /// whoever may write Secrets of the namespace writes those too.
    #[serde(default)]
    pub good: u64,
}
