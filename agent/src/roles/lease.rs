//! Of several pods of a Deployment one works, by a Lease (`coordination.k8s.io/v1`) as leader elections of Kubernetes have
//! it. Two are there at once while one replaces the other, and while a node is cut off: its pod is given up and another one
//! made, and goes on without knowing it.
//!
//! The holder writes into the Lease every [`RENEW`]. One that could not for [`STOP`] ends its work. Another one takes the
//! Lease that did not change for [`DURATION`], so that the first has ended by then. Each measures by its own clock since it
//! saw the last change: clocks of two nodes are not compared. What the first had sent before may still arrive at the
//! apiserver meanwhile, for which the time between the two is.

use std::{
    future::Future,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::{
    api::coordination::v1::{Lease as Object, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use types::{ids::hex, random};

use crate::{chain, identity::clock::SharedClock};

/// How often the holder says that it is there.
const RENEW: Duration = Duration::from_secs(5);
/// A holder that could not say so for this time ends its work.
const STOP: Duration = Duration::from_secs(10);
/// After this time without a change the Lease is another's.
const DURATION: Duration = Duration::from_secs(15);
/// [`DURATION`] in seconds, as the Lease states it for other programs.
const DURATION_SECONDS: i32 = 15;
/// Between two looks at the Lease of another one, and after an attempt that failed.
const AGAIN: Duration = Duration::from_secs(2);
/// Longest wait for one answer of the apiserver.
const ANSWER: Duration = Duration::from_secs(5);
/// Between two looks of one that works without the right to the Lease.
const RIGHT_AGAIN: Duration = Duration::from_secs(30);

/// How one of several stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It has the Lease, and works.
    Works,
    /// It may not have a Lease, because its rights are those of an older chart; it works as before there was one. Why.
    Unguarded(String),
    /// This other one has the Lease.
    Waits(String),
    /// The Lease cannot be read or written, or was lost. Why.
    Fails(String),
}

/// Why the Lease is not ours.
enum Miss {
    /// Another one has it.
    Others(String),
    /// The right is missing.
    Forbidden(String),
    /// It may be ours at the next attempt.
    Failed(String),
}

/// A Lease of another holder, as this process observes it. The holder is gone once the Lease has not changed for
/// [`DURATION`]: its own times are by another machine's clock, so they do not count.
#[derive(Default)]
struct Observed {
    /// The version that was read last, and since when it is that one.
    last: Option<(Option<String>, Instant)>,
}

impl Observed {
    /// Notes the version that was just read: for how long it has been the same.
    fn unchanged_for(&mut self, version: Option<String>) -> Duration {
        let since = match &self.last {
            Some((known, since)) if *known == version => *since,
            _ => self.last.insert((version, Instant::now())).1,
        };
        since.elapsed()
    }
}

/// A Lease that this process takes and gives back.
pub struct Lease {
    api: Api<Object>,
    name: &'static str,
    /// What this process is called in it.
    holder: String,
    clock: SharedClock,
    /// As the apiserver has it, while it is ours.
    mine: Mutex<Option<Object>>,
}

impl Lease {
    /// One of this name in the client's namespace. Nothing is asked for yet.
    ///
    /// # Errors
    /// When the system has no random numbers, which tell this process from others.
    pub fn new(client: &Client, name: &'static str, clock: SharedClock) -> Result<Self, random::NoRandom> {
        let pod = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let pod: String = pod.trim().chars().take(63).collect();
        // Not the pod's name alone: two processes of one machine may have that in common.
        let holder = format!("{pod}_{}", hex(&random::bytes::<8>()?));
        Ok(Self { api: Api::default_namespaced(client.clone()), name, holder, clock, mine: Mutex::default() })
    }

    /// Works while the Lease is ours, and begins again when it is so again; until the work ends by itself. `says` hears how
    /// this process stands, once for each change.
    pub async fn hold<W: Future<Output = ()>>(&self, says: impl Fn(&Standing), mut work: impl FnMut() -> W) {
        let last = Mutex::<Option<Standing>>::default();
        let tell = |standing: Standing| {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.as_ref() != Some(&standing) {
                says(&standing);
                *last = Some(standing);
            }
        };
        loop {
            let since = self.take(&tell).await;
            tokio::select! {
                biased;
                lost = self.keep(since, &tell) => tell(lost),
                () = work() => return,
            }
        }
    }

    /// Gives the Lease back if it is ours, so that the next one need not wait. What was done in it has ended.
    pub async fn release(&self) {
        let Some(mut lease) = self.mine().take() else { return };
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.renew_time = Some(self.now());
        let params = PostParams::default();
        match timeout(ANSWER, self.api.replace(self.name, &params, &lease)).await {
            Ok(Ok(_)) => {}
            Ok(Err(err)) => tracing::debug!(lease = self.name, problem = chain(&err), "a Lease was not given back"),
            Err(_) => tracing::debug!(lease = self.name, "a Lease was not given back: no answer"),
        }
    }

    fn mine(&self) -> std::sync::MutexGuard<'_, Option<Object>> {
        self.mine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> MicroTime {
        MicroTime(Timestamp::try_from(self.clock.now()).unwrap_or(Timestamp::UNIX_EPOCH))
    }

    /// Waits until the Lease is ours: since when; nothing where there is no right to it.
    async fn take(&self, tell: &impl Fn(Standing)) -> Option<Instant> {
        let mut observed = Observed::default();
        loop {
            let asked = Instant::now();
            match self.attempt(&mut observed).await {
                Ok(()) => {
                    tell(Standing::Works);
                    return Some(asked);
                }
                Err(Miss::Forbidden(why)) => {
                    tell(Standing::Unguarded(why));
                    return None;
                }
                Err(Miss::Others(holder)) => tell(Standing::Waits(holder)),
                Err(Miss::Failed(why)) => tell(Standing::Fails(why)),
            }
            sleep(AGAIN).await;
        }
    }

    /// Takes the Lease if nobody has it, or its holder is gone.
    async fn attempt(&self, observed: &mut Observed) -> Result<(), Miss> {
        let mut lease = self.read().await?;
        let version = lease.metadata.resource_version.clone();
        let spec = lease.spec.get_or_insert_default();
        let holder = spec.holder_identity.clone().filter(|holder| !holder.is_empty());
        if let Some(other) = holder.filter(|holder| *holder != self.holder) {
            if observed.unchanged_for(version) < DURATION {
                return Err(Miss::Others(other));
            }
            tracing::warn!(lease = self.name, holder = other, "the holder of a Lease is gone");
        }
        let now = self.now();
        *spec = LeaseSpec {
            holder_identity: Some(self.holder.clone()),
            lease_duration_seconds: Some(DURATION_SECONDS),
            lease_transitions: Some(spec.lease_transitions.unwrap_or(0).saturating_add(1)),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            ..LeaseSpec::default()
        };
        self.write(lease).await
    }

    /// As the apiserver has it; one that nobody has where there was none.
    async fn read(&self) -> Result<Object, Miss> {
        let read = async {
            if let Some(found) = self.api.get_opt(self.name).await? {
                return Ok(found);
            }
            // The right to create is one to this name, which only an apply says.
            let empty = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": self.name },
            });
            self.api.patch(self.name, &PatchParams::apply(self.name), &Patch::Apply(&empty)).await
        };
        self.answer(read).await
    }

    /// Writes what was read, unless somebody else wrote meanwhile.
    async fn write(&self, lease: Object) -> Result<(), Miss> {
        let params = PostParams::default();
        let written = self.answer(self.api.replace(self.name, &params, &lease)).await?;
        *self.mine() = Some(written);
        Ok(())
    }

    async fn answer(&self, asked: impl Future<Output = kube::Result<Object>>) -> Result<Object, Miss> {
        let failed = |why: String| format!("the Lease {} cannot be used: {why}", self.name);
        match timeout(ANSWER, asked).await {
            Ok(Ok(lease)) => Ok(lease),
            Ok(Err(err)) => {
                let why = failed(chain(&err));
                match err {
                    kube::Error::Api(status) if status.code == 403 => Err(Miss::Forbidden(why)),
                    _ => Err(Miss::Failed(why)),
                }
            }
            Err(_) => Err(Miss::Failed(failed("the apiserver is too slow".to_owned()))),
        }
    }

    /// Keeps the Lease until it is lost: how this process stands then. `since`: when it was written last.
    async fn keep(&self, since: Option<Instant>, tell: &impl Fn(Standing)) -> Standing {
        let mut since = match since {
            Some(since) => since,
            None => match self.await_right(tell).await {
                Ok(since) => since,
                Err(holder) => return Standing::Waits(holder),
            },
        };
        let (mut wait, mut problem) = (RENEW, String::new());
        loop {
            let end = since + STOP;
            tokio::time::sleep_until(end.min(Instant::now() + wait)).await;
            let asked = Instant::now();
            let renewed = match asked < end {
                true => tokio::time::timeout_at(end, self.renew()).await.ok(),
                false => None,
            };
            match renewed {
                Some(Ok(())) => (since, wait) = (asked, RENEW),
                Some(Err(Miss::Failed(why))) => (problem, wait) = (why, AGAIN),
                Some(Err(Miss::Others(holder))) => {
                    self.mine().take();
                    return Standing::Waits(holder);
                }
                Some(Err(Miss::Forbidden(why))) => {
                    self.mine().take();
                    return Standing::Fails(why);
                }
                None => {
                    self.mine().take();
                    let last = if problem.is_empty() { "no answer" } else { &problem };
                    let why = format!(
                        "the Lease {} was not renewed for {} seconds, and another pod may have it: {last}",
                        self.name,
                        STOP.as_secs()
                    );
                    return Standing::Fails(why);
                }
            }
        }
    }

    /// Says that this process is there.
    async fn renew(&self) -> Result<(), Miss> {
        let Some(mut lease) = self.mine().clone() else {
            return Err(Miss::Others("nobody".to_owned()));
        };
        lease.spec.get_or_insert_default().renew_time = Some(self.now());
        match self.write(lease).await {
            Err(Miss::Failed(why)) => {
                // Somebody may have written beside: who has it now is read, and where it is ours still, the next attempt
                // is one at that version.
                let there = self.answer(async { Ok(self.api.get_opt(self.name).await?.unwrap_or_default()) }).await?;
                let holder = there.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default();
                if holder != self.holder {
                    return Err(Miss::Others(if holder.is_empty() { "nobody".to_owned() } else { holder }));
                }
                *self.mine() = Some(there);
                Err(Miss::Failed(why))
            }
            written => written,
        }
    }

    /// Waits until there is a right to the Lease, and it is ours: since when. Otherwise the one that has it.
    async fn await_right(&self, tell: &impl Fn(Standing)) -> Result<Instant, String> {
        let mut observed = Observed::default();
        loop {
            sleep(RIGHT_AGAIN).await;
            let asked = Instant::now();
            match self.attempt(&mut observed).await {
                Ok(()) => {
                    tell(Standing::Works);
                    return Ok(asked);
                }
                Err(Miss::Others(holder)) => return Err(holder),
                Err(Miss::Forbidden(_) | Miss::Failed(_)) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{
            Arc,
            atomic::{AtomicBool, AtomicUsize, Ordering},
        },
    };

    use http::{Request, StatusCode};

    use super::*;
    use crate::{identity::clock::SystemClock, roles::objects::testing::Map};

    const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/towline/leases/works";

    /// One of two pods: whether its node is cut off, and how it stands.
    struct Pod {
        lease: Lease,
        is_cut_off: Arc<AtomicBool>,
        standings: Mutex<Vec<Standing>>,
        is_at_work: AtomicBool,
    }

    /// How many work now, and did so at most at the same time.
    #[derive(Default)]
    struct AtWork {
        now: AtomicUsize,
        most: AtomicUsize,
    }

    struct Shift<'a>(&'a Pod, &'a AtWork);

    impl<'a> Shift<'a> {
        fn begin(pod: &'a Pod, all: &'a AtWork) -> Self {
            let now = all.now.fetch_add(1, Ordering::SeqCst) + 1;
            all.most.fetch_max(now, Ordering::SeqCst);
            pod.is_at_work.store(true, Ordering::SeqCst);
            Self(pod, all)
        }
    }

    impl Drop for Shift<'_> {
        fn drop(&mut self) {
            self.1.now.fetch_sub(1, Ordering::SeqCst);
            self.0.is_at_work.store(false, Ordering::SeqCst);
        }
    }

    impl Pod {
        fn of(map: &Map) -> Self {
            let is_cut_off = Arc::new(AtomicBool::new(false));
            let (client, cut) = (map.client(), is_cut_off.clone());
            let service = tower::service_fn(move |request: Request<kube::client::Body>| {
                let (client, cut) = (client.clone(), cut.clone());
                async move {
                    if cut.load(Ordering::SeqCst) {
                        std::future::pending::<()>().await;
                    }
                    Ok::<_, Infallible>(client.send(request).await.unwrap())
                }
            });
            let client = Client::new(service, "towline");
            let lease = Lease::new(&client, "works", Arc::new(SystemClock)).unwrap();
            Self { lease, is_cut_off, standings: Mutex::default(), is_at_work: AtomicBool::new(false) }
        }

        async fn run(&self, all: &AtWork) {
            let says = |standing: &Standing| self.standings.lock().unwrap().push(standing.clone());
            self.lease
                .hold(says, || async {
                    let _shift = Shift::begin(self, all);
                    std::future::pending::<()>().await;
                })
                .await;
        }

        fn works(&self) -> bool {
            self.is_at_work.load(Ordering::SeqCst)
        }

        fn last(&self) -> Standing {
            self.standings.lock().unwrap().last().cloned().unwrap()
        }
    }

    async fn until(what: &str, within: Duration, holds: impl Fn() -> bool) {
        let end = Instant::now() + within;
        while !holds() {
            assert!(Instant::now() < end, "not within {within:?}: {what}");
            sleep(Duration::from_millis(100)).await;
        }
    }

    fn holder(map: &Map) -> String {
        map.all()[PATH]["spec"]["holderIdentity"].as_str().unwrap().to_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_two_pods_works_also_while_a_node_is_cut_off_and_when_one_gives_up() {
        let (map, all) = (Map::default(), AtWork::default());
        let (one, two) = (Pod::of(&map), Pod::of(&map));
        let stop = tokio_util::sync::CancellationToken::new();
        let second = async {
            sleep(Duration::from_secs(1)).await;
            tokio::select! {
                () = stop.cancelled() => {}
                () = two.run(&all) => {}
            }
            two.lease.release().await;
            std::future::pending::<()>().await;
        };
        let script = async {
            until("one works", Duration::from_secs(1), || one.works()).await;
            // The other one waits, however long.
            sleep(Duration::from_secs(3600)).await;
            assert!(one.works() && !two.works());
            assert_eq!(two.last(), Standing::Waits(one.lease.holder.clone()));
            assert_eq!(holder(&map), one.lease.holder);
            // Its node is cut off: it ends its work before the other one begins.
            one.is_cut_off.store(true, Ordering::SeqCst);
            until("one has ended", STOP, || !one.works()).await;
            assert!(!two.works());
            until("two works", RENEW + DURATION + AGAIN, || two.works()).await;
            assert!(matches!(one.last(), Standing::Fails(_)), "{:?}", one.last());
            one.is_cut_off.store(false, Ordering::SeqCst);
            sleep(Duration::from_secs(60)).await;
            assert!(two.works());
            assert_eq!(one.last(), Standing::Waits(two.lease.holder.clone()));
            // One that ends in order gives it back, and nobody waits for the time of a holder that is gone.
            stop.cancel();
            until("one works again", AGAIN + Duration::from_secs(1), || one.works()).await;
            assert_eq!(map.all()[PATH]["spec"]["leaseTransitions"], 3);
        };
        tokio::select! {
            () = one.run(&all) => {}
            () = second => {}
            () = script => {}
        }
        assert_eq!(all.most.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_others_change_or_remove_is_kept_or_lost() {
        let (map, all) = (Map::default(), AtWork::default());
        let one = Pod::of(&map);
        let script = async {
            until("one works", Duration::from_secs(1), || one.works()).await;
            // Somebody writes a label: the version is another one, and the holder is not.
            map.change(PATH, json!({"metadata": {"labels": {"a": "b"}, "resourceVersion": "label"}}));
            sleep(Duration::from_secs(60)).await;
            assert_eq!(*one.standings.lock().unwrap(), [Standing::Works]);
            assert_eq!(map.all()[PATH]["metadata"]["labels"]["a"], "b");
            // An apiserver that refuses for a moment.
            map.refuse(Some(("leases", StatusCode::SERVICE_UNAVAILABLE)));
            sleep(Duration::from_secs(3)).await;
            map.refuse(None);
            sleep(Duration::from_secs(60)).await;
            assert_eq!(*one.standings.lock().unwrap(), [Standing::Works]);
            // Somebody else writes themselves into it.
            let version = "other";
            map.change(PATH, json!({"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": "other"}}));
            until("it has ended", RENEW + AGAIN, || !one.works()).await;
            until("it is ours again", DURATION + AGAIN * 2, || one.works()).await;
            // It is removed: work begins anew with a new one.
            map.all().remove(PATH);
            until("there is one again", RENEW + AGAIN * 2, || map.all().contains_key(PATH)).await;
            until("it works", AGAIN, || one.works() && holder(&map) == one.lease.holder).await;
        };
        tokio::select! {
            () = one.run(&all) => {}
            () = script => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_the_right_to_a_lease_one_works_until_another_has_it() {
        let (map, all) = (Map::default(), AtWork::default());
        map.refuse(Some(("leases", StatusCode::FORBIDDEN)));
        let one = Pod::of(&map);
        let script = async {
            until("one works", Duration::from_secs(1), || one.works()).await;
            assert!(matches!(one.last(), Standing::Unguarded(why) if why.contains("works")));
            sleep(Duration::from_secs(600)).await;
            assert!(one.works());
            let theirs = json!({
                "metadata": {"name": "works", "resourceVersion": "1"}, "spec": {"holderIdentity": "other"},
            });
            map.all().insert(PATH.to_owned(), theirs);
            map.refuse(None);
            until("it has ended", RIGHT_AGAIN, || !one.works()).await;
            assert_eq!(one.last(), Standing::Waits("other".to_owned()));
        };
        tokio::select! {
            () = one.run(&all) => {}
            () = script => {}
        }
    }
}
