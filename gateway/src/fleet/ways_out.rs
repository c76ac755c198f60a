//! Places of connections to hosts that this gateway reaches for clusters: of one configuration, of one cluster, of the
//! clusters of one subscription, and of all. So nobody who may use some keeps others from theirs.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use daemon::shares::share;
use types::ids::{ClusterId, ClusterKey};

/// Connections of one configuration at once: a source has one or two while it is fetched.
pub const OF_CONFIGURATION: usize = 8;
/// Connections of one cluster at once.
pub const OF_CLUSTER: usize = 32;
/// Connections of all clusters at once. Those of one subscription have a share of what is free of them, and so there is
/// a place for one that has none, however many others fill theirs.
pub const OF_ALL: usize = 4096;
/// Connections that a subscription may have where that is more than its share.
const LEAST_OF_SUBSCRIPTION: u32 = 1;

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
        let counted = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let own = share(counted(OF_ALL), counted(taken.all), LEAST_OF_SUBSCRIPTION) as usize;
        let limits = [
            (taken.configurations.get(&owner), OF_CONFIGURATION, "this configuration"),
            (taken.clusters.get(&key), OF_CLUSTER, "this cluster"),
            (taken.subscriptions.get(&subscription), own, "this subscription, its share of those that are free"),
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

impl WayOut {
    /// The subscription whose place it is.
    pub fn subscription(&self) -> &str {
        &self.subscription
    }
}

/// One less of what is counted by a key; who has none is forgotten.
fn less<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Drop for WayOut {
    fn drop(&mut self) {
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
            (1..4)
                .flat_map(|name| (0..OF_CLUSTER).map(move |number| (name, number / OF_CONFIGURATION)))
                .map(|(name, configuration)| take(1, name, &configuration.to_string()).unwrap()),
        );
        drop(held);
        let taken = places.0.lock().unwrap();
        assert_eq!(
            (taken.all, taken.subscriptions.len(), taken.clusters.len(), taken.configurations.len()),
            (0, 0, 0, 0)
        );
    }

    /// Two subscriptions took all places, and a third one got none.
    #[test]
    fn n1_subscription_that_has_no_place_gets_one_however_much_others_take() {
        let places = WaysOut::default();
        let take = |subscription: u32, number: usize| {
            let cluster = cluster(subscription, number / OF_CLUSTER);
            places.take(&cluster, cluster.key(), &(number % OF_CLUSTER / OF_CONFIGURATION).to_string())
        };
        let mut held = Vec::new();
        for subscription in 1..=100 {
            let own: Vec<_> = (0..OF_ALL).map_while(|number| take(subscription, number).ok()).collect();
            assert!(!own.is_empty() && own.len() < OF_ALL / 8, "{subscription} has {}", own.len());
            held.extend(own);
        }
        let refused = take(1, OF_ALL).err().unwrap();
        assert!(refused.contains("this subscription"), "{refused}");
        drop(take(101, 0).unwrap());
    }
}
