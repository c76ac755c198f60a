//! Places of connections to hosts that this gateway reaches for clusters: of one configuration, of one cluster, of the
//! clusters of one subscription, and of all. So nobody who may use some keeps others from theirs.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use types::ids::{ClusterId, ClusterKey};

/// Connections of one configuration at once: a source has one or two while it is fetched.
pub const OF_CONFIGURATION: usize = 8;
/// Connections of one cluster at once.
pub const OF_CLUSTER: usize = 32;
/// Connections of all clusters of one subscription at once.
pub const OF_SUBSCRIPTION: usize = 512;
/// Connections of all clusters at once.
pub const OF_ALL: usize = 1024;

/// Places of connections. Clones share them.
#[derive(Clone, Default)]
pub struct WaysOut(Arc<Mutex<Taken>>);

/// Places that are taken, by who has them. Who has none is forgotten, so none of these has more than [`OF_ALL`] entries.
#[derive(Default)]
struct Taken {
    all: usize,
    subscriptions: HashMap<String, usize>,
    clusters: HashMap<ClusterKey, usize>,
    configurations: HashMap<(ClusterKey, String), usize>,
}

/// A place; dropping it gives it back.
pub struct WayOut {
    of: WaysOut,
    cluster: ClusterKey,
    subscription: String,
    configuration: String,
}

impl WaysOut {
    /// Takes a place.
    ///
    /// # Errors
    /// Which limit is reached.
    pub fn take(&self, cluster: &ClusterId, key: ClusterKey, configuration: &str) -> Result<WayOut, String> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let subscription = cluster.subscription().to_owned();
        let owner = (key, configuration.to_owned());
        let limits = [
            (taken.configurations.get(&owner), OF_CONFIGURATION, "this configuration"),
            (taken.clusters.get(&key), OF_CLUSTER, "this cluster"),
            (taken.subscriptions.get(&subscription), OF_SUBSCRIPTION, "this subscription"),
            (Some(&taken.all), OF_ALL, "all clusters"),
        ];
        if let Some((_, limit, whose)) = limits.iter().find(|(open, limit, _)| open.is_some_and(|open| open >= limit)) {
            return Err(format!("{limit} connections of {whose}"));
        }
        taken.all += 1;
        *taken.subscriptions.entry(subscription.clone()).or_default() += 1;
        *taken.clusters.entry(key).or_default() += 1;
        let (_, configuration) = owner.clone();
        *taken.configurations.entry(owner).or_default() += 1;
        drop(taken);
        Ok(WayOut { of: self.clone(), cluster: key, subscription, configuration })
    }
}

impl Drop for WayOut {
    fn drop(&mut self) {
        fn less<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
            if let Some(count) = counts.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(key);
                }
            }
        }
        let mut taken = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all -= 1;
        less(&mut taken.subscriptions, &self.subscription);
        less(&mut taken.clusters, &self.cluster);
        less(&mut taken.configurations, &(self.cluster, std::mem::take(&mut self.configuration)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(subscription: u32, name: usize) -> ClusterId {
        let text = format!(
            "/subscriptions/00000000-0000-0000-0000-{subscription:012}/resourceGroups/fleet/providers/Microsoft.Kubernetes/connectedClusters/c{name}"
        );
        text.parse().unwrap()
    }

    #[test]
    fn n1_neither_a_configuration_nor_a_cluster_nor_a_subscription_takes_the_places_of_others() {
        let places = WaysOut::default();
        let take = |subscription: u32, name: usize, configuration: &str| {
            let cluster = cluster(subscription, name);
            places.take(&cluster, cluster.key(), configuration)
        };
        let mut held: Vec<_> = (0..OF_CONFIGURATION).map(|_| take(1, 0, "a").unwrap()).collect();
        assert_eq!(take(1, 0, "a").err().as_deref(), Some("8 connections of this configuration"));
        for configuration in ["b", "c", "d"] {
            held.extend((0..OF_CONFIGURATION).map(|_| take(1, 0, configuration).unwrap()));
        }
        assert_eq!(take(1, 0, "e").err().as_deref(), Some("32 connections of this cluster"));
        // The same name in another cluster is another configuration.
        held.extend(
            (1..16)
                .flat_map(|name| (0..OF_CLUSTER).map(move |number| (name, number / OF_CONFIGURATION)))
                .map(|(name, configuration)| take(1, name, &configuration.to_string()).unwrap()),
        );
        assert_eq!(held.len(), OF_SUBSCRIPTION);
        assert_eq!(take(1, 16, "a").err().as_deref(), Some("512 connections of this subscription"));
        held.extend((0..OF_SUBSCRIPTION).map(|number| take(2, number / 32, &(number % 32 / 8).to_string()).unwrap()));
        assert_eq!(take(3, 0, "a").err().as_deref(), Some("1024 connections of all clusters"));
        drop(held.pop());
        drop(take(3, 0, "a").unwrap());
        drop(held);
        let taken = places.0.lock().unwrap();
        assert_eq!(
            (taken.all, taken.subscriptions.len(), taken.clusters.len(), taken.configurations.len()),
            (0, 0, 0, 0)
        );
    }
}
