//! The replicas as operators see them: `towline-gateway replicas` and the admin listener's `/replicas`.

use serde_json::{Map, Value, json};

use crate::{config::common::Fingerprint, store::replicas::Overview};

/// The rows of the store, one object a replica.
pub fn overview(overview: &Overview) -> Value {
    // Of those that run, in the order of the rows.
    let fingerprints: Vec<Option<Fingerprint>> = overview
        .rows
        .iter()
        .map(|row| row.settings.as_deref().filter(|_| row.alive).and_then(Fingerprint::parse))
        .collect();
    let replicas: Vec<Value> = overview
        .rows
        .iter()
        .zip(&fingerprints)
        .map(|(row, fingerprint)| {
            let (tunnels, clusters) = overview
                .tunnels
                .iter()
                .find(|(name, ..)| *name == row.name)
                .map_or((0, 0), |(_, tunnels, clusters)| (*tunnels, *clusters));
            let others = overview.rows.iter().map(|other| other.name.as_str()).zip(&fingerprints);
            json!({
                "name": row.name,
                "alive": row.alive,
                "version": row.version,
                "address": row.address,
                "generation": row.generation,
                "started_ms": row.started_ms,
                "lease_age_ms": row.age_ms,
                "applied": row.applied,
                "revision_lag": overview.revision.saturating_sub(row.applied).max(0),
                "tunnels": tunnels,
                "clusters": clusters,
                "settings_differ_from": fingerprint.as_ref().map(|own| differences(own, others)),
            })
        })
        .collect();
    json!({ "revision": overview.revision, "replicas": replicas })
}

/// Groups of settings that all replicas are to share and that differ from another one's, by the name of that one; `null` for
/// one that cannot be compared.
fn differences<'a>(
    own: &Fingerprint,
    others: impl Iterator<Item = (&'a str, &'a Option<Fingerprint>)>,
) -> Map<String, Value> {
    let differ = others.filter_map(|(name, theirs)| {
        let groups = own.differences(theirs.as_ref()?);
        groups.as_ref().is_none_or(|groups| !groups.is_empty()).then(|| (name.to_owned(), json!(groups)))
    });
    differ.collect()
}
