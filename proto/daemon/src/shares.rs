//! Tables that many share and that have a bound. Whoever fills one keeps nobody else out: places are counted by
//! network, and of a full table the network with most of them gives way, its oldest entry first. A newcomer always gets
//! a place. Of networks that have equally many one is chosen by a hash with a key of this process, so that nobody can
//! choose addresses that never give way: it is the same one until their numbers change, and not the one whose entries
//! are the oldest.
//!
//! One address is too little to count by: a hostile party has as many as its network has (a /24 of IPv4 is rented by
//! the hour, an IPv6 customer has a /48). Where there are no addresses, what has a share is a user, a cluster or a
//! subscription.
//!
//! | what | for |
//! |---|---|
//! | [`Shared`] | what is remembered: codes, counts, buckets |
//! | [`Queue`] | what waits for a turn |
//! | [`share`] | what is held and cannot be taken away: connections, requests |

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{BuildHasher as _, Hash, RandomState},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

/// Bits of the network that one party has.
const NETWORK_V4: u32 = 24;
/// The same of IPv6.
const NETWORK_V6: u32 = 48;
/// Bits of what counts as one address of IPv6: a link has a /64.
const ADDRESS_V6: u32 = 64;

/// The network of an address: its /24, or the /48 of IPv6.
pub fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from(u32::from(v4) & !(u32::MAX >> NETWORK_V4))),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from(u128::from(v6) & !(u128::MAX >> NETWORK_V6))),
    }
}

/// What counts as one address: all of IPv4, the /64 of IPv6.
pub fn address(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        v4 @ IpAddr::V4(_) => v4,
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from(u128::from(v6) & !(u128::MAX >> ADDRESS_V6))),
    }
}

/// One owner gets at most one part in `PART` of what is free.
const PART: u32 = 8;
/// The last places, one part in `KEPT_PART` of all, are for owners that hold none.
const KEPT_PART: u32 = 16;
/// A table of fewer places is too small to keep some.
const KEPT_FROM: u32 = 256;

/// How many places of a table with `limit` of them one party may hold while `taken` are: an eighth of what is free, at
/// least `least`; and one of the last sixteenth, so that many parties at once leave some too.
pub fn share(limit: u32, taken: u32, least: u32) -> u32 {
    let free = limit.saturating_sub(taken);
    if limit >= KEPT_FROM && free <= limit / KEPT_PART { 1 } else { (free / PART).max(least) }
}

/// A bounded table of entries by their keys; each belongs to an owner that has a share.
pub struct Shared<K, V, N = IpAddr> {
    entries: HashMap<K, Entry<V, N>>,
    /// The entries of each by age, the oldest first.
    of: HashMap<N, BTreeMap<u64, K>>,
    /// How many each has, with what chooses among equals: nobody can name themselves so that others go first.
    weights: BTreeSet<(usize, u64, N)>,
    most: usize,
    next: u64,
    hasher: RandomState,
}

struct Entry<V, N> {
    of: N,
    age: u64,
    value: V,
}

impl<K: Hash + Eq + Clone, V, N: Hash + Ord + Clone> Shared<K, V, N> {
    /// An empty table of at most `most` entries, and at least one.
    pub fn new(most: usize) -> Self {
        Self {
            entries: HashMap::new(),
            of: HashMap::new(),
            weights: BTreeSet::new(),
            most: most.max(1),
            next: 0,
            hasher: RandomState::new(),
        }
    }

    /// Keeps an entry of somebody, in place of one of the same key. Returns what had to give way: the oldest entry of
    /// whoever had most.
    pub fn insert(&mut self, of: N, key: K, value: V) -> Option<(K, V)> {
        self.remove(&key);
        let gone = if self.entries.len() >= self.most { self.give_way() } else { None };
        let age = self.next;
        self.next += 1;
        self.weigh(&of, |own| drop(own.insert(age, key.clone())));
        self.entries.insert(key, Entry { of, age, value });
        gone
    }

    fn give_way(&mut self) -> Option<(K, V)> {
        let heaviest = &self.weights.last()?.2;
        let oldest = self.oldest(heaviest)?.clone();
        let value = self.remove(&oldest)?;
        Some((oldest, value))
    }

    /// Takes an entry out.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let Entry { of, age, value } = self.entries.remove(key)?;
        self.weigh(&of, |own| drop(own.remove(&age)));
        Some(value)
    }

    /// Changes what somebody has, and what it weighs.
    fn weigh(&mut self, of: &N, change: impl FnOnce(&mut BTreeMap<u64, K>)) {
        let lot = self.hasher.hash_one(of);
        let own = self.of.entry(of.clone()).or_default();
        let before = own.len();
        change(own);
        let after = own.len();
        if after == 0 {
            self.of.remove(of);
        }
        self.weights.remove(&(before, lot, of.clone()));
        if after > 0 {
            self.weights.insert((after, lot, of.clone()));
        }
    }

    /// The value that is kept for a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|entry| &entry.value)
    }

    /// An entry, to be changed.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|entry| &mut entry.value)
    }

    /// Takes the oldest entries of somebody out for as long as they are over. Whoever keeps what ends in the order in
    /// which it began forgets all that is over.
    pub fn expire(&mut self, of: &N, over: impl Fn(&V) -> bool) {
        while let Some(oldest) = self.oldest(of).cloned() {
            if !self.get(&oldest).is_some_and(&over) {
                return;
            }
            self.remove(&oldest);
        }
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, entry)| (key, &entry.value))
    }

    /// What somebody has, the oldest first.
    pub fn of(&self, of: &N) -> impl Iterator<Item = &V> {
        self.of.get(of).into_iter().flat_map(BTreeMap::values).filter_map(|key| self.get(key))
    }

    /// The oldest entry of somebody.
    pub fn oldest(&self, of: &N) -> Option<&K> {
        self.of.get(of)?.first_key_value().map(|(_, key)| key)
    }

    /// How many entries somebody has.
    pub fn count(&self, of: &N) -> usize {
        self.of.get(of).map_or(0, BTreeMap::len)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Who takes turns: a network, a user.
pub trait Party: Hash + Ord + Clone {}

impl<N: Hash + Ord + Clone> Party for N {}

/// Turns for work of which a limited amount is done at once. Parties take turns: a party's first entry waits for at
/// most one entry of each other party. When the queue is full, the party with the most entries loses its oldest. Work that
/// has begun and waits for another turn takes no place of those, and never gives way.
pub struct Queue<N: Party = IpAddr>(Arc<Mutex<Waiting<N>>>);

struct Waiting<N: Party> {
    free: usize,
    tickets: u64,
    waiting: Shared<u64, Waits<N>, N>,
    /// Those that have had a turn before.
    begun: Shared<u64, Waits<N>, N>,
    /// Parties that wait, in the order of their turns, and where each of them is in it.
    order: BTreeMap<u64, N>,
    places: HashMap<N, u64>,
}

/// A party that waits, and how it is told.
type Waits<N> = (N, oneshot::Sender<Turn<N>>);

/// The right to work, given on when it is dropped.
pub struct Turn<N: Party = IpAddr>(Arc<Mutex<Waiting<N>>>);

impl Queue {
    /// As [`Queue::turn_of`], for the network of `peer`.
    pub async fn turn(&self, peer: IpAddr) -> Option<Turn> {
        self.turn_of(network(peer)).await
    }

    /// As [`Queue::turn_of_begun`], for the network of `peer`.
    pub async fn turn_again(&self, peer: IpAddr) -> Turn {
        self.turn_of_begun(network(peer)).await
    }
}

impl<N: Party> Queue<N> {
    /// At most `at_once` pieces of work at once, and `waiting` callers that wait for a turn.
    pub fn new(at_once: usize, waiting: usize) -> Self {
        Self(Arc::new(Mutex::new(Waiting {
            free: at_once,
            tickets: 0,
            waiting: Shared::new(waiting),
            begun: Shared::new(usize::MAX),
            order: BTreeMap::new(),
            places: HashMap::new(),
        })))
    }

    /// Waits for a turn. `None`: this party has most of those who wait, and there are too many. Who stops waiting has no
    /// turn any more.
    pub async fn turn_of(&self, party: N) -> Option<Turn<N>> {
        self.next(party, false).await
    }

    /// Waits for a further turn for work that has had one: it cannot be undone, so that it is not turned away either. How
    /// many such callers there are is for whoever lets work begin to bound.
    pub async fn turn_of_begun(&self, party: N) -> Turn<N> {
        let Some(turn) = self.next(party, true).await else { unreachable!("what has begun never gives way") };
        turn
    }

    async fn next(&self, party: N, begun: bool) -> Option<Turn<N>> {
        let (ticket, told) = {
            let mut queue = locked(&self.0);
            if queue.free > 0 {
                queue.free -= 1;
                drop(queue);
                return Some(Turn(Arc::clone(&self.0)));
            }
            queue.wait(party, begun)
        };
        let _gone = Ticket { queue: &self.0, ticket };
        told.await.ok()
    }

    /// Number of callers that wait for a turn.
    pub fn waiting(&self) -> usize {
        let queue = locked(&self.0);
        queue.waiting.len() + queue.begun.len()
    }
}

impl<N: Party> Waiting<N> {
    fn wait(&mut self, party: N, begun: bool) -> (u64, oneshot::Receiver<Turn<N>>) {
        let (tell, told) = oneshot::channel();
        let ticket = self.number();
        let table = if begun { &mut self.begun } else { &mut self.waiting };
        // Who gives way hears that nobody is left to tell them.
        if let Some((_, (other, _))) = table.insert(party.clone(), ticket, (party.clone(), tell)) {
            self.settle(other);
        }
        self.settle(party);
        (ticket, told)
    }

    fn number(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// A party has a turn for as long as somebody of it waits.
    fn settle(&mut self, party: N) {
        match (self.waiting.count(&party) + self.begun.count(&party), self.places.get(&party)) {
            (0, Some(place)) => {
                self.order.remove(place);
                self.places.remove(&party);
            }
            (1.., None) => {
                let place = self.number();
                self.order.insert(place, party.clone());
                self.places.insert(party, place);
            }
            _ => {}
        }
    }

    fn remove(&mut self, ticket: u64) {
        if let Some((party, _)) = self.take(ticket) {
            self.settle(party);
        }
    }

    fn take(&mut self, ticket: u64) -> Option<Waits<N>> {
        self.waiting.remove(&ticket).or_else(|| self.begun.remove(&ticket))
    }

    /// The caller that has the next turn.
    fn pop(&mut self) -> Option<oneshot::Sender<Turn<N>>> {
        let (_, party) = self.order.pop_first()?;
        self.places.remove(&party);
        // Tickets rise, so that within a party nobody passes another.
        let oldest = [self.waiting.oldest(&party), self.begun.oldest(&party)].into_iter().flatten().min().copied()?;
        let (_, tell) = self.take(oldest)?;
        // Behind all others.
        self.settle(party);
        Some(tell)
    }
}

impl<N: Party> Drop for Turn<N> {
    fn drop(&mut self) {
        let next = {
            let mut queue = locked(&self.0);
            let next = queue.pop();
            queue.free += usize::from(next.is_none());
            next
        };
        if let Some(next) = next {
            // Who has gone away meanwhile drops it, and the one behind is next.
            let _ = next.send(Self(Arc::clone(&self.0)));
        }
    }
}

/// One who waits.
struct Ticket<'a, N: Party> {
    queue: &'a Mutex<Waiting<N>>,
    ticket: u64,
}

impl<N: Party> Drop for Ticket<'_, N> {
    fn drop(&mut self) {
        locked(self.queue).remove(self.ticket);
    }
}

fn locked<N: Party>(queue: &Mutex<Waiting<N>>) -> MutexGuard<'_, Waiting<N>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn v4(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_is_a_24_or_a_48() {
        assert_eq!(network(v4("192.0.2.77")), v4("192.0.2.0"));
        assert_eq!(network(v4("::ffff:192.0.2.77")), v4("192.0.2.0"));
        assert_eq!(network(v4("2001:db8:1:ffff::1")), v4("2001:db8:1::"));
        assert_eq!(address(v4("2001:db8:1:2:3::1")), v4("2001:db8:1:2::"));
        assert_eq!(address(v4("::ffff:192.0.2.77")), v4("192.0.2.77"));
    }

    #[test]
    fn the_heaviest_gives_way_and_a_newcomer_gets_a_place() {
        let mut shared = Shared::new(4);
        for n in 0..4 {
            assert_eq!(shared.insert("many", n, ()), None);
        }
        assert_eq!(shared.insert("one", 10, ()), Some((0, ())), "the oldest of who has most");
        assert_eq!(shared.insert("many", 4, ()), Some((1, ())), "who has most makes room for themselves");
        assert!(shared.get(&10).is_some());
        assert_eq!((shared.count(&"many"), shared.count(&"one"), shared.len()), (3, 1, 4));
        assert_eq!(shared.insert("one", 10, ()), None, "the same key takes no place");
    }

    #[test]
    fn what_is_over_is_forgotten_oldest_first() {
        let mut shared = Shared::new(9);
        for n in 0..4 {
            shared.insert("a", n, n);
        }
        shared.expire(&"a", |n| *n < 2);
        assert_eq!((shared.len(), shared.get(&1), shared.get(&2)), (2, None, Some(&2)));
    }

    #[test]
    fn many_parties_leave_the_last_places_to_those_who_have_none() {
        let limit = 1024;
        let mut held: Vec<u32> = vec![0; 500];
        loop {
            let before: u32 = held.iter().sum();
            for n in 0..held.len() {
                let taken = held.iter().sum();
                if taken < limit && held[n] < share(limit, taken, 16) {
                    held[n] += 1;
                }
            }
            if held.iter().sum::<u32>() == before {
                break;
            }
        }
        let taken: u32 = held.iter().sum();
        assert!(taken < limit && share(limit, taken, 16) == 1, "{taken}");
    }

    proptest! {
        #[test]
        fn it_is_a_bounded_map(steps in prop::collection::vec((0u8..6, 0u16..40, any::<bool>()), 0..400)) {
            let mut shared = Shared::new(16);
            let mut model: HashMap<u16, u8> = HashMap::new();
            for (of, key, put) in steps {
                if put {
                    if let Some((gone, ())) = shared.insert(of, key, ()) {
                        let whose = model.remove(&gone).unwrap();
                        let most = (0..6).map(|n| model.values().filter(|is| **is == n).count()).max().unwrap();
                        let had = model.values().filter(|is| **is == whose).count() + 1;
                        prop_assert!(had >= most);
                    }
                    model.insert(key, of);
                } else {
                    prop_assert_eq!(shared.remove(&key).is_some(), model.remove(&key).is_some());
                }
                prop_assert!(shared.len() <= 16);
                prop_assert_eq!(shared.len(), model.len());
                for of in 0..6 {
                    prop_assert_eq!(shared.count(&of), model.values().filter(|is| **is == of).count());
                }
                prop_assert_eq!(shared.weights.iter().map(|(count, ..)| *count).sum::<usize>(), shared.len());
            }
        }
    }

    #[tokio::test]
    async fn networks_take_turns_and_who_is_gone_is_passed_over() {
        let queue = Arc::new(Queue::<IpAddr>::new(1, 3));
        let first = queue.turn(v4("192.0.2.1")).await.unwrap();
        let (order, waiting) = (Arc::new(Mutex::new(Vec::new())), Arc::clone(&queue));
        let mut tasks = Vec::new();
        for (n, peer) in ["192.0.2.1", "192.0.2.2", "198.51.100.1"].into_iter().enumerate() {
            let (queue, order) = (Arc::clone(&queue), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let turn = queue.turn(v4(peer)).await;
                order.lock().unwrap().push((n, turn.is_some()));
            }));
            while waiting.waiting() < n + 1 {
                tokio::task::yield_now().await;
            }
        }
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [(0, true), (2, true), (1, true)]);
    }

    #[tokio::test]
    async fn of_a_full_queue_the_heaviest_gives_way() {
        let queue = Arc::new(Queue::<IpAddr>::new(1, 2));
        let first = queue.turn(v4("192.0.2.1")).await.unwrap();
        let wait = |peer: &'static str| {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move { queue.turn(v4(peer)).await.is_some() })
        };
        let until = |n: usize| {
            let queue = Arc::clone(&queue);
            async move {
                while queue.waiting() < n {
                    tokio::task::yield_now().await;
                }
            }
        };
        let oldest = wait("192.0.2.2");
        until(1).await;
        let second = wait("192.0.2.3");
        until(2).await;
        let newcomer = wait("198.51.100.1");
        assert!(!oldest.await.unwrap(), "it gives way");
        second.abort();
        let _ = second.await;
        drop(first);
        assert!(newcomer.await.unwrap());
        assert!(queue.turn(v4("203.0.113.1")).await.is_some(), "the turn came back");
    }

    #[tokio::test]
    async fn what_has_begun_waits_in_its_order_and_never_gives_way() {
        let queue = Queue::<IpAddr>::new(1, 2);
        let peer = v4("192.0.2.1");
        let first = queue.turn(peer).await.unwrap();
        let order = Mutex::new(Vec::new());
        let wait = async |name: &'static str, begun: bool| {
            let turn = if begun { Some(queue.turn_again(peer).await) } else { queue.turn(peer).await };
            order.lock().unwrap().push((name, turn.is_some()));
        };
        // In this order they come, and the full queue has room for two that have not begun.
        let come = async {
            while order.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            drop(first);
        };
        tokio::join!(wait("a", true), wait("b", false), wait("c", true), wait("d", false), wait("e", false), come);
        let expected = [("b", false), ("a", true), ("c", true), ("d", true), ("e", true)];
        assert_eq!(*order.lock().unwrap(), expected);
        // Who stops waiting has no turn any more.
        let held = queue.turn(peer).await.unwrap();
        {
            let mut gone = Box::pin(queue.turn_again(peer));
            let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(gone.as_mut().poll(cx).is_pending()));
            assert!(polled.await);
            assert_eq!(queue.waiting(), 1);
        }
        assert_eq!(queue.waiting(), 0);
        drop(held);
        assert!(queue.turn(peer).await.is_some());
    }
}
