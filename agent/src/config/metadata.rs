//! What is known of the cluster beforehand.

use daemon::settings::{
    Faults, Section,
    reference::{Key, Table},
};

/// The longest name of a distribution or an infrastructure.
const METADATA_MAX: usize = 64;

/// In the reference.
pub(super) const TABLE: Table = Table::once(
    "metadata",
    false,
    "What the agents would guess from the nodes.",
    &[
        Key::example("distribution", "\"k3s\"", "The distribution."),
        Key::example("infrastructure", "\"vsphere\"", "The infrastructure."),
    ],
);

/// What is known of the cluster beforehand; goes before what the nodes look like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The Kubernetes distribution.
    pub distribution: Option<String>,
    /// What it runs on.
    pub infrastructure: Option<String>,
}

pub(super) fn read(mut section: Section, out: &mut Faults) -> Metadata {
    let mut word = |name: &'static str| {
        section.parsed(name, out, |text| {
            let plain = text.len() <= METADATA_MAX && !text.chars().any(char::is_control);
            if plain { Ok(text.to_owned()) } else { Err("expected a short word such as k3s") }
        })
    };
    let metadata = Metadata { distribution: word("distribution"), infrastructure: word("infrastructure") };
    section.end(out);
    metadata
}
