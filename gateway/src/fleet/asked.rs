//! How much clusters' agents ask: rates by cluster, and by address of who has proved nothing; exchanges of one cluster
//! at once.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use daemon::shares::{address, network};
use http::{StatusCode, header};
use tokio::{sync::Semaphore, time::Instant};
use types::ids::ClusterKey;

use super::ways_out::WaysOut;
use crate::{
    api_error::ApiError,
    rate::{Rate, Rates},
};

/// Exchanges of one cluster at once, however many tunnels it has.
pub const EXCHANGES_OF_CLUSTER: usize = 64;
/// Of these, such whose bodies are held.
const BODIES: usize = 8;
/// Clusters whose tunnels are gone are not looked for among fewer than twice so many.
const SWEEP_LEAST: usize = 64;

/// What the agents of all clusters ask.
#[derive(Default)]
pub struct Asked {
    clusters: Mutex<Clusters>,
    rates: Rates<(ClusterKey, &'static str), ClusterKey>,
    configurations: Rates<(ClusterKey, String), ClusterKey>,
    /// Places of connections to hosts that this gateway reaches.
    pub ways_out: WaysOut,
    addresses: Rates<(IpAddr, &'static str), IpAddr>,
}

#[derive(Default)]
struct Clusters {
    /// By cluster, as long as a tunnel of it is up.
    known: HashMap<ClusterKey, Weak<OfCluster>>,
    /// With so many entries those whose tunnels are gone are looked for: when they have doubled, so that each tunnel of
    /// a fleet that comes back does not look at all others.
    sweep_at: usize,
}

/// What the agents of one cluster ask, over all of its tunnels.
pub struct OfCluster {
    /// Places of exchanges.
    pub places: Arc<Semaphore>,
    /// Places of those whose bodies are held.
    pub bodies: Semaphore,
}

impl Asked {
    /// What the agents of this cluster ask.
    pub fn of(&self, key: &ClusterKey) -> Arc<OfCluster> {
        let mut clusters = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = clusters.known.get(key).and_then(Weak::upgrade) {
            return known;
        }
        if clusters.known.len() >= clusters.sweep_at {
            clusters.known.retain(|_, other| other.strong_count() > 0);
            clusters.sweep_at = 2 * clusters.known.len().max(SWEEP_LEAST);
        }
        let places = Arc::new(Semaphore::new(EXCHANGES_OF_CLUSTER));
        let new = Arc::new(OfCluster { places, bodies: Semaphore::new(BODIES) });
        clusters.known.insert(*key, Arc::downgrade(&new));
        new
    }

    /// Counts a question of an address that has proved nothing: each by itself, for many clusters may be behind one
    /// address, and whoever asks one too often keeps nobody from another.
    pub fn by_address(&self, peer: IpAddr, path: &'static str, rate: Rate) -> Result<(), ApiError> {
        let taken = self.addresses.take(&network(peer), &(address(peer), path), rate, Instant::now());
        taken.map(drop).map_err(|seconds| too_often("Your address", seconds))
    }

    /// Takes back that a question was counted: whose it was has been proved.
    pub fn not_of_address(&self, peer: IpAddr, path: &'static str) {
        self.addresses.give_back(&(address(peer), path));
    }

    /// Counts a question of a cluster for one of its configurations, each by itself.
    pub fn by_configuration(&self, cluster: ClusterKey, name: &str, rate: Rate) -> Result<(), ApiError> {
        let taken = self.configurations.take(&cluster, &(cluster, name.to_owned()), rate, Instant::now());
        taken.map(drop).map_err(|seconds| too_often("This configuration", seconds))
    }

    /// Counts a question of a cluster that has proved that it is the one.
    pub fn by_cluster(&self, cluster: ClusterKey, path: &'static str, rate: Rate) -> Result<(), ApiError> {
        let taken = self.rates.take(&cluster, &(cluster, path), rate, Instant::now());
        taken.map(drop).map_err(|seconds| too_often("This cluster", seconds))
    }
}

/// 429: asked too often, by one who is named.
fn too_often(who: &str, seconds: u64) -> ApiError {
    let message = format!("{who} asks this too often; wait {seconds} s.");
    ApiError::of(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
        .with(header::RETRY_AFTER, &seconds.max(1).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> ClusterKey {
        ClusterKey::from_hex(format!("{number:064x}").as_bytes()).unwrap()
    }

    fn known(asked: &Asked) -> (usize, usize) {
        let clusters = asked.clusters.lock().unwrap();
        (clusters.known.len(), clusters.sweep_at)
    }

    /// Each tunnel that came up looked at the clusters of all others: a storm of 10,000 took 10,000 looks each.
    #[test]
    fn a_fleet_that_comes_back_looks_for_gone_clusters_only_when_there_are_twice_as_many() {
        let asked = Asked::default();
        for number in 0..10_000 {
            drop(asked.of(&key(number)));
        }
        assert!(known(&asked).0 <= 2 * SWEEP_LEAST, "{:?}", known(&asked));
        let up: Vec<_> = (0..10_000).map(|number| asked.of(&key(number))).collect();
        let (entries, sweep_at) = known(&asked);
        assert!(entries >= up.len() && sweep_at > entries && sweep_at <= 2 * entries, "{entries} {sweep_at}");
        assert!(Arc::ptr_eq(&up[7], &asked.of(&key(7))));
        drop(up);
        for number in 0..20_000 {
            drop(asked.of(&key(10_000 + number)));
        }
        assert!(known(&asked).0 <= 2 * SWEEP_LEAST, "{:?}", known(&asked));
    }
}
