//! The replicas as operators see them: `towline-gateway replicas` and the admin listener's `/replicas`.

use serde_json::{Value, json};

use crate::store::replicas::Overview;

/// The rows of the store, one object a replica.
pub fn overview(overview: &Overview) -> Value {
    let replicas: Vec<Value> = overview
        .rows
        .iter()
        .map(|row| {
            let (tunnels, clusters) = overview
                .tunnels
                .iter()
                .find(|(name, ..)| *name == row.name)
                .map_or((0, 0), |(_, tunnels, clusters)| (*tunnels, *clusters));
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
            })
        })
        .collect();
    json!({ "revision": overview.revision, "replicas": replicas })
}
