//! Who may come in: connections and handshakes at once, in all and from one address.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use types::limits;

use crate::{
    config::Limits,
    places::{Admission, Counts, SHARE_MIN, enter},
};

/// Answers of ours that one connection may have waiting for its windows with their bodies.
const UNREAD: u32 = 128;
/// The same for all connections: about 100 MB.
const UNREAD_ALL: u32 = 32 * 1024;

/// Requests to the built-in issuer at once, whose forms may take their time, without a credential.
const SIGN_INS: u32 = 4096;
/// The same from one address.
pub const SIGN_INS_PER_ADDRESS: u32 = 128;

/// Requests of agents at once that have no certificate yet.
const ENROLMENTS: u32 = 4096;
/// The same from one address: many clusters may be behind one.
pub const ENROLMENTS_PER_ADDRESS: u32 = 256;

/// The same of the few places for long targets.
const LONG_TARGETS_MIN: u32 = limits::LONG_TARGETS_PER_ADDRESS;
/// Of the files that the process may open, this part is kept for tunnels, the admin listener, issuers and what is
/// written, within [`FILES_KEPT`].
const FILES_KEPT_PART: u64 = 4;
/// Least and greatest number of files that [`FILES_KEPT_PART`] keeps.
const FILES_KEPT: std::ops::RangeInclusive<u64> = 64..=1024;

/// Counts of what is open.
#[derive(Default)]
pub struct Admissions {
    /// Connections that the process may open files for; `None`: as many as one likes.
    files: Option<u32>,
    connections: Arc<Counts>,
    handshakes: Arc<Counts>,
    sign_ins: Arc<Counts>,
    enrolments: Arc<Counts>,
    long_targets: Arc<Counts>,
    unread: Arc<AtomicU32>,
}

/// The answers of ours that one connection has not taken yet.
#[derive(Default, Clone)]
pub struct Unread(Arc<AtomicU32>);

/// One of them, until its body is taken or dropped.
pub struct UnreadAnswer([Arc<AtomicU32>; 2]);

impl Drop for UnreadAnswer {
    fn drop(&mut self) {
        for count in &self.0 {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Places for long request targets, as one connection takes them.
#[derive(Clone)]
pub struct LongTargets {
    counts: Arc<Counts>,
    peer: IpAddr,
}

impl LongTargets {
    /// A place; `None`: there are too many in all, or from this address.
    pub fn take(&self) -> Option<Admission> {
        let (limit, by_address) = (limits::LONG_TARGETS, limits::LONG_TARGETS_PER_ADDRESS);
        enter(&self.counts, self.peer, limit, by_address, LONG_TARGETS_MIN)
    }
}

impl Admissions {
    /// Limits for a process that may open `open_files` files; `None`: any number. Otherwise the shares of what is free
    /// would be reckoned from more than there is, and a few addresses would take the last file.
    pub fn within(open_files: Option<u64>) -> Self {
        let kept = |files: u64| (files / FILES_KEPT_PART).clamp(*FILES_KEPT.start(), *FILES_KEPT.end());
        let files = open_files.map(|files| u32::try_from(files.saturating_sub(kept(files))).unwrap_or(u32::MAX));
        Self { files, ..Self::default() }
    }

    /// How many user connections there may be.
    pub fn connections(&self, limits: &Limits) -> u32 {
        self.files.map_or(limits.connections, |files| files.min(limits.connections))
    }

    /// A place for a connection; `None`: too many.
    pub fn connection(&self, peer: IpAddr, limits: &Limits) -> Option<Admission> {
        enter(&self.connections, peer, self.connections(limits), limits.connections_per_address, SHARE_MIN)
    }

    /// A place for a handshake (TLS, hello); `None`: too many.
    pub fn handshake(&self, peer: IpAddr, limits: &Limits) -> Option<Admission> {
        enter(&self.handshakes, peer, limits.handshakes, limits.handshakes_per_address, SHARE_MIN)
    }

    /// A place for a request to the built-in issuer; `None`: too many.
    pub fn sign_in(&self, peer: IpAddr) -> Option<Admission> {
        enter(&self.sign_ins, peer, SIGN_INS, SIGN_INS_PER_ADDRESS, SHARE_MIN)
    }

    /// A place for a request of an agent without a certificate; `None`: too many.
    pub fn enrolment(&self, peer: IpAddr) -> Option<Admission> {
        enter(&self.enrolments, peer, ENROLMENTS, ENROLMENTS_PER_ADDRESS, SHARE_MIN)
    }

    /// Places for long request targets of a connection.
    pub fn long_targets(&self, peer: IpAddr) -> LongTargets {
        LongTargets { counts: Arc::clone(&self.long_targets), peer }
    }

    /// A place for the body of one more answer; `None`: too many wait, and this one goes without.
    pub fn unread(&self, connection: &Unread) -> Option<UnreadAnswer> {
        // Counted first and looked at then: the guard gives both back.
        let before = [&connection.0, &self.unread].map(|count| count.fetch_add(1, Ordering::Relaxed));
        let place = UnreadAnswer([Arc::clone(&connection.0), Arc::clone(&self.unread)]);
        (before[0] < UNREAD && before[1] < UNREAD_ALL).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use daemon::shares::address;

    use super::*;

    #[test]
    fn places_are_bounded_in_all_and_by_address_and_given_back() {
        let limits = Limits { connections: 3, connections_per_address: 2, ..Limits::default() };
        let admissions = Admissions::default();
        let (a, b): (IpAddr, IpAddr) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let first = admissions.connection(a, &limits).unwrap();
        let _second = admissions.connection(a, &limits).unwrap();
        assert!(admissions.connection(a, &limits).is_none());
        let third = admissions.connection(b, &limits).unwrap();
        assert!(admissions.connection(b, &limits).is_none());
        drop(first);
        let _fourth = admissions.connection(a, &limits).unwrap();
        drop(third);
        assert_eq!(admissions.connections.by_address.len(), 1);
        let (x, y) = ("2001:db8::1".parse().unwrap(), "2001:db8::ffff".parse::<IpAddr>().unwrap());
        assert_eq!(address(x), address(y));
    }

    /// By the defaults two addresses could take all places.
    #[test]
    fn no_few_addresses_take_all_places() {
        for (attackers, left_at_least) in [(2, 16_000), (10, 8_000), (100, 1_400)] {
            let (limits, admissions) = (Limits::default(), Admissions::default());
            let address = |n: u32| IpAddr::from(Ipv4Addr::from(0x0a00_0000 + n));
            let mut held = Vec::new();
            // Each takes what it gets, in turn, until none gets any more.
            loop {
                let before = held.len();
                held.extend((0..attackers).filter_map(|n| admissions.connection(address(n), &limits)));
                if held.len() == before {
                    break;
                }
            }
            let left = limits.connections as usize - held.len();
            assert!(left >= left_at_least, "{attackers} leave {left}");
            let users = (1000..1020).filter_map(|n| admissions.connection(address(n), &limits)).count();
            assert_eq!(users, 20, "others come in");
        }
    }

    /// A network is rented as a whole: each of its addresses had a share of its own.
    #[test]
    fn no_network_takes_all_places() {
        let (limits, admissions) = (Limits::default(), Admissions::default());
        let address = |n: u32| IpAddr::from(Ipv4Addr::from(0x0a00_0000 + n));
        let held: Vec<_> = (0..256)
            .flat_map(|n| (0..2_000).map_while(move |_| Some(n)))
            .filter_map(|n| admissions.connection(address(n), &limits))
            .collect();
        assert!(held.len() <= 4_500, "{}", held.len());
        assert!(admissions.connection(address(999), &limits).is_some());
    }

    /// Some hundreds of networks took all places, sixteen each.
    #[test]
    fn of_many_networks_the_last_places_are_for_those_who_have_none() {
        let (limits, admissions) = (Limits::default(), Admissions::default());
        let network = |n: u32| IpAddr::from(Ipv4Addr::from(0x0a00_0000 + n * 256));
        let mut held = Vec::new();
        for _ in 0..100 {
            held.extend((0..2_000).filter_map(|n| admissions.connection(network(n), &limits)));
        }
        assert!(held.len() < limits.connections as usize, "{}", held.len());
        assert!(admissions.connection(network(2_000), &limits).is_some());
        drop(held);
        assert!(admissions.connections.by_network.is_empty() && admissions.connections.by_address.is_empty());
    }

    /// The defaults are for a process that may open as many files as it likes: with 1024 three addresses took them all,
    /// and neither users nor operators came in any more.
    #[test]
    fn no_few_addresses_take_the_last_file() {
        for (files, most, attackers) in [(1024, 768, 3), (1024, 768, 100), (4096, 3072, 100), (20_000, 18_976, 100)] {
            let (limits, admissions) = (Limits::default(), Admissions::within(Some(files)));
            let address = |n: u32| IpAddr::from(Ipv4Addr::from(0x0a00_0000 + n));
            let mut held = Vec::new();
            for n in 0..attackers {
                held.extend((0..2_000).map_while(|_| admissions.connection(address(n), &limits)));
            }
            assert_eq!(admissions.connections(&limits), most);
            assert!(held.len() <= most as usize);
            let user = admissions.connection(address(1000), &limits);
            assert_eq!(user.is_some(), held.len() < most as usize, "{files} files, {attackers} addresses");
            assert!(attackers > 3 || user.is_some());
        }
        let unbounded = Admissions::within(None);
        assert_eq!(unbounded.connections(&Limits::default()), 20_000);
    }

    /// Each holds a mebibyte, and nobody has shown a credential yet.
    #[test]
    fn long_targets_are_bounded_in_all_and_no_network_takes_them_all() {
        let admissions = Admissions::default();
        let take = |n: u32| admissions.long_targets(IpAddr::from(Ipv4Addr::from(0x0a00_0000 + n))).take();
        let one: Vec<_> = (0..100).map_while(|_| take(1)).collect();
        assert!((2..=limits::LONG_TARGETS_PER_ADDRESS as usize).contains(&one.len()), "{}", one.len());
        let network: Vec<_> = (2..200).filter_map(take).collect();
        let all = one.len() + network.len();
        assert!(all <= limits::LONG_TARGETS as usize / 2, "{all}");
        assert!(take(256).is_some(), "another network");
        let many: Vec<_> = (1..1000).filter_map(|n| take(n * 256)).collect();
        assert!(all + many.len() <= limits::LONG_TARGETS as usize);
        drop((one, network, many));
        assert_eq!(admissions.long_targets.all.load(Ordering::Relaxed), 0);
    }

    /// Many people behind one address of a company must be able to work.
    #[test]
    fn one_address_has_room_for_a_company() {
        let (limits, admissions) = (Limits::default(), Admissions::default());
        let company: IpAddr = [192, 0, 2, 1].into();
        let held: Vec<_> = (0..2_000).map_while(|_| admissions.connection(company, &limits)).collect();
        assert_eq!(held.len(), 2_000);
    }

    /// Forms that never arrive were held for 10 s each, 4096 on each connection.
    #[test]
    fn sign_ins_at_once_are_bounded_by_address() {
        let admissions = Admissions::default();
        let (a, b): (IpAddr, IpAddr) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let held: Vec<_> = (0..SIGN_INS_PER_ADDRESS).map(|_| admissions.sign_in(a).unwrap()).collect();
        assert!(admissions.sign_in(a).is_none() && admissions.sign_in(b).is_some());
        drop(held);
        assert!(admissions.sign_in(a).is_some());
    }

    #[test]
    fn answers_that_nobody_takes_are_bounded_and_given_back() {
        let admissions = Admissions::default();
        let (one, other) = (Unread::default(), Unread::default());
        let held: Vec<_> = (0..UNREAD).map(|_| admissions.unread(&one).unwrap()).collect();
        assert!(admissions.unread(&one).is_none());
        assert!(admissions.unread(&other).is_some());
        drop(held);
        assert!(admissions.unread(&one).is_some());
        assert_eq!(admissions.unread.load(Ordering::Relaxed), 0);
    }
}
