#![cfg_attr(test, allow(clippy::unwrap_used, clippy::disallowed_methods))]
//! The signed catalogue of helm charts: which extension types there are, in which versions, and which chart each version
//! installs. A cluster that pins the catalogue's keys installs nothing else, whatever its gateway says. No IO, no task, no
//! clock: bytes and the time come in as arguments. Stands on no other crate of this workspace.
//!
//! A catalogue is a folder: [`index`](INDEX_FILE), its [signatures](SIGNATURE_FILE), and [charts](CHART_FOLDER).
//!
//! | module | what it holds |
//! |---|---|
//! | [`index`] | the signed document: types, versions, charts by digest, keys |
//! | [`key`] | Ed25519 keys and their files |
//! | [`signature`] | signatures over the exact bytes of an index |
//! | [`verify`] | what a cluster pins, and what it accepts by that |
//! | [`chart`] | reads a chart's archive within bounds |
//! | [`choice`] | which version is installed, and what it is upgraded to |
//! | [`range`] | version constraints as helm reads them |
//! | [`version`] | versions of charts and of Kubernetes |
//! | [`digest`] | SHA-256 |
//! | [`limits`] | every bound, by name |

pub mod chart;
pub mod choice;
pub mod digest;
pub mod index;
pub mod key;
pub mod limits;
pub mod range;
pub mod signature;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod verify;
pub mod version;

/// The index in a catalogue's folder.
pub const INDEX_FILE: &str = "index.json";
/// The signatures of the index in a catalogue's folder.
pub const SIGNATURE_FILE: &str = "index.sig";
/// The folder of charts in a catalogue's folder.
pub const CHART_FOLDER: &str = "charts";
