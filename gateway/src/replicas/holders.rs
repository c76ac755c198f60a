//! Which other replicas have tunnels of which clusters, in memory: where a request goes that has no tunnel here. Kept
//! as small as it can be, because there may be a hundred thousand clusters.

use dashmap::{DashMap, mapref::entry::Entry};
use types::ids::ClusterKey;

/// Tunnels of one cluster at one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Tunnels that take requests of users.
    pub users: u16,
    /// Tunnels that only carry what agents ask.
    pub others: u16,
}

impl Count {
    /// Whether the replica has no tunnel of the cluster.
    pub fn is_zero(self) -> bool {
        self == Self::default()
    }

    /// Tunnels of both kinds.
    pub fn all(self) -> usize {
        usize::from(self.users) + usize::from(self.others)
    }
}

/// Number of a start of another replica, given here in memory. Small, because there is one for each cluster and holder.
pub(super) type Number = u32;

type Slot = (Number, Count);

/// The holders of one cluster. Two machine words: there may be a hundred thousand of them, nearly all with one holder.
enum Held {
    One(Slot),
    // Not `Box<[Slot]>`, which takes a word more.
    #[expect(clippy::box_collection, reason = "a Vec takes three words in each entry, and few have more than one slot")]
    Many(Box<Vec<Slot>>),
}

impl Held {
    fn slots(&self) -> &[Slot] {
        match self {
            Self::One(slot) => std::slice::from_ref(slot),
            Self::Many(slots) => slots,
        }
    }

    /// Sets what one replica has. Whether anything is left.
    fn set(&mut self, number: Number, count: Count) -> bool {
        let mut slots: Vec<Slot> = self.slots().iter().copied().filter(|(of, _)| *of != number).collect();
        if !count.is_zero() {
            slots.push((number, count));
        }
        match slots[..] {
            [] => return false,
            [one] => *self = Self::One(one),
            _ => {
                slots.shrink_to_fit();
                *self = Self::Many(Box::new(slots));
            }
        }
        true
    }
}

/// Clusters with tunnels at other replicas.
#[derive(Default)]
pub(super) struct Holders(DashMap<ClusterKey, Held>);

impl Holders {
    /// Sets how many tunnels of a cluster a replica has.
    pub fn set(&self, number: Number, key: ClusterKey, count: Count) {
        match self.0.entry(key) {
            Entry::Occupied(mut there) => {
                if !there.get_mut().set(number, count) {
                    there.remove();
                }
            }
            Entry::Vacant(free) => {
                if !count.is_zero() {
                    free.insert(Held::One((number, count)));
                }
            }
        }
    }

    /// Forgets everything of a replica.
    pub fn forget(&self, number: Number) {
        self.0.retain(|_, held| {
            let has = held.slots().iter().any(|(of, _)| *of == number);
            !has || held.set(number, Count::default())
        });
        self.0.shrink_to_fit();
    }

    /// Looks at what replicas have of a cluster.
    pub fn each(&self, key: &ClusterKey, mut look: impl FnMut(Number, Count)) {
        if let Some(held) = self.0.get(key) {
            held.slots().iter().for_each(|(number, count)| look(*number, *count));
        }
    }

    /// All tunnels for users elsewhere.
    pub fn users(&self) -> usize {
        let of = |held: &Held| held.slots().iter().map(|(_, count)| usize::from(count.users)).sum::<usize>();
        self.0.iter().map(|held| of(held.value())).sum()
    }

    /// Clusters with tunnels elsewhere.
    pub fn clusters(&self) -> usize {
        self.0.len()
    }
}
