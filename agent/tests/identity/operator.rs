//! The clusteridentityoperator, its days in virtual time.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use agent::{
    identity::{
        Identities, Identity, Stored,
        clock::{Clock, TokioClock},
        request::KeyRequest,
        store::Store,
    },
    roles::{
        Role as _,
        clusteridentityoperator::{ClusterIdentityOperator, enrol::Enrol},
        health::{Health, State},
    },
    tunnel::{
        api::{AgentApi, ApiError, Refused},
        status::StatusBoard,
    },
};
use daemon::{Shutdown, TaskGroup};
use futures_util::future::BoxFuture;
use http::{HeaderMap, StatusCode};
use secrecy::SecretString;
use tokio::sync::watch;
use tunnel::{transport::TunnelHandle, wire::close::CloseCode};
use types::agent_api::{Renewal, paths};

use crate::gateway::{Answer, CLUSTER, Ca, DAY, Scripted as Gateway, refusal};

/// What enrolment answers: a status, or a certificate.
#[derive(Default)]
struct Script {
    refuse: Mutex<Option<(u16, &'static str, Option<Duration>)>>,
    key: Mutex<String>,
    asked: AtomicUsize,
}

struct Scripted {
    script: Arc<Script>,
    ca: Arc<Ca>,
    clock: Arc<TokioClock>,
}

impl Enrol for Scripted {
    fn enrol<'a>(&'a self, uid: &'a str) -> BoxFuture<'a, Result<Stored, ApiError>> {
        Box::pin(async move {
            assert_eq!(uid, "uid-of-this-cluster");
            self.script.asked.fetch_add(1, Ordering::SeqCst);
            if let Some((status, code, retry_after)) = *self.script.refuse.lock().unwrap() {
                let message = "as the test says".to_owned();
                return Err(Refused { status, code: code.to_owned(), message, retry_after }.into());
            }
            let request = KeyRequest::new().unwrap();
            let certificate = self.ca.certify(&request.csr, CLUSTER, self.clock.now());
            Ok(Stored::new(certificate, request.key, self.clock.now()).unwrap())
        })
    }

    fn key_text(&self) -> Option<SecretString> {
        Some(self.script.key.lock().unwrap().clone().into())
    }
}

struct World {
    ca: Arc<Ca>,
    clock: Arc<TokioClock>,
    begin: SystemTime,
    script: Arc<Script>,
    identities: Identities,
    current: watch::Sender<Option<TunnelHandle>>,
    status: Arc<StatusBoard>,
    health: Health,
    shutdown: Shutdown,
    store: Store,
    asked: Arc<Mutex<Vec<(String, bytes::Bytes)>>>,
    tasks: TaskGroup,
    _dir: tempfile::TempDir,
}

impl World {
    /// `skew`: how far the agent's clock is ahead of the gateway's, in seconds.
    async fn new(enrols: bool, renews: bool, skew: i64) -> Self {
        let begin = SystemTime::UNIX_EPOCH + 20_000 * DAY;
        let ca = Arc::new(Ca::new("authority"));
        let gateway_clock = Arc::new(TokioClock::new(begin));
        let own = if skew >= 0 {
            begin + Duration::from_secs(skew as u64)
        } else {
            begin - Duration::from_secs(-skew as u64)
        };
        let clock = Arc::new(TokioClock::new(own));
        let script = Arc::new(Script::default());
        let dir = tempfile::tempdir().unwrap();
        let store = Store::Directory(dir.path().join("identity"));
        let (issues, time) = (ca.clone(), gateway_clock.clone());
        let answer: Answer = Box::new(move |path, body| {
            assert_eq!(path, paths::RENEW);
            if !renews {
                return (StatusCode::SERVICE_UNAVAILABLE, HeaderMap::new(), refusal("Busy"));
            }
            let renewal: Renewal = serde_json::from_slice(body).unwrap();
            let certificate = issues.certify(&renewal.csr, CLUSTER, time.now());
            (StatusCode::OK, HeaderMap::new(), serde_json::to_vec(&certificate).unwrap())
        });
        let asked = Arc::default();
        let current = watch::Sender::new(Some(Gateway::tunnel(answer, Arc::clone(&asked))));
        let world = Self {
            ca: ca.clone(),
            clock: gateway_clock.clone(),
            begin,
            script: script.clone(),
            identities: Identities::default(),
            current: current.clone(),
            status: Arc::default(),
            health: Health::default(),
            shutdown: Shutdown::new(),
            store: store.clone(),
            asked,
            tasks: TaskGroup::new("test"),
            _dir: dir,
        };
        let enroller: Option<Box<dyn Enrol>> =
            if enrols { Some(Box::new(Scripted { script, ca, clock: gateway_clock })) } else { None };
        let operator = ClusterIdentityOperator {
            cluster: CLUSTER.parse().unwrap(),
            store,
            identities: world.identities.clone(),
            enroller,
            api: AgentApi::new(current.subscribe()),
            status: world.status.clone(),
            health: world.health.of("clusteridentityoperator"),
            clock,
            uid: Arc::new(|| Box::pin(async { Ok("uid-of-this-cluster".to_owned()) })),
        };
        let shutdown = world.shutdown.clone();
        world.tasks.spawn("operator", async move { operator.run(shutdown).await });
        world
    }

    /// Keeps a certificate as if it had come at the beginning.
    async fn kept(&self) {
        let request = KeyRequest::new().unwrap();
        let certificate = self.ca.certify(&request.csr, CLUSTER, self.begin);
        self.store.save(&Stored::new(certificate, request.key, self.begin).unwrap()).await.unwrap();
    }

    async fn identity(&self) -> Arc<Identity> {
        let mut identities = self.identities.subscribe();
        identities.wait_for(Option::is_some).await.unwrap().clone().unwrap()
    }

    async fn day(&self, day: u32) {
        let at = self.begin + day * DAY;
        tokio::time::sleep(at.duration_since(self.clock.now()).unwrap()).await;
    }

    async fn failing(&self, reason: &str) -> String {
        let mut changes = self.health.changes();
        loop {
            if let Some(role) = self.health.all().get("clusteridentityoperator")
                && role.state == State::Failing
                && role.reason == reason
            {
                return role.message.clone();
            }
            changes.changed().await.unwrap();
        }
    }

    fn renewals(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    fn enrolments(&self) -> usize {
        self.script.asked.load(Ordering::SeqCst)
    }
}

#[tokio::test(start_paused = true)]
async fn r8_a_certificate_is_renewed_over_the_tunnel_on_day_46_and_kept() {
    let world = World::new(true, true, 0).await;
    let first = world.identity().await;
    assert_eq!(world.enrolments(), 1);
    world.day(45).await;
    assert_eq!(world.renewals(), 0);
    world.day(46).await;
    assert_eq!(world.renewals(), 1);
    let second = world.identity().await;
    assert_ne!(first.credentials.chain(), second.credentials.chain());
    assert_ne!(first.stored.certificate, second.stored.certificate);
    let kept = world.store.load().await.unwrap().unwrap();
    assert_eq!(kept.certificate, second.stored.certificate);
    assert_eq!(kept.principal_id, "00000000-0000-0000-0000-00000000000a");
    world.day(200).await;
    assert!((4..=5).contains(&world.renewals()), "{}", world.renewals());
    assert_eq!(world.enrolments(), 1);
    assert!(!second.has_ended(world.begin + 91 * DAY));
}

/// One authority follows another: what is of the old one is renewed now, each once however often the gateway says so.
#[tokio::test(start_paused = true)]
async fn r8_what_the_gateway_wants_renewed_is_renewed_before_half_of_its_life_is_over() {
    let world = World::new(true, true, 0).await;
    let first = world.identity().await;
    world.day(3).await;
    let mut identities = world.identities.subscribe();
    world.identities.ask_renewal();
    let second = identities.wait_for(|now| now.as_ref().is_some_and(|now| now.generation == 2)).await.unwrap().clone();
    assert_ne!(second.unwrap().stored.certificate, first.stored.certificate);
    assert_eq!((world.renewals(), world.enrolments()), (1, 1));
    // What the gateway says while the tunnel of before is about to end is not taken for the new one.
    world.identities.ask_renewal();
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(world.renewals(), 1);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(world.renewals(), 2);
    world.day(40).await;
    assert_eq!(world.renewals(), 2, "and then as always");
}

#[tokio::test(start_paused = true)]
async fn r8_an_agent_whose_clock_is_a_day_off_enrols_and_renews_all_the_same() {
    for skew in [86_400, -86_400] {
        let world = World::new(true, true, skew).await;
        world.identity().await;
        world.day(44).await;
        assert_eq!((world.renewals(), world.enrolments()), (0, 1));
        world.day(48).await;
        assert_eq!((world.renewals(), world.enrolments()), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn x1_a_cluster_that_was_offline_until_day_89_renews_once_the_tunnel_is_back() {
    let world = World::new(false, true, 0).await;
    world.kept().await;
    let tunnel = world.current.send_replace(None);
    let first = world.identity().await;
    world.day(89).await;
    assert_eq!(world.renewals(), 0);
    let message = world.failing("Unreachable").await;
    assert!(message.contains("no tunnel to the gateway"), "{message}");
    world.current.send_replace(tunnel);
    world.day(90).await;
    assert_eq!(world.renewals(), 1);
    assert_ne!(world.identity().await.stored.certificate, first.stored.certificate);
}

#[tokio::test(start_paused = true)]
async fn r8_where_the_tunnel_does_not_renew_the_onboarding_key_does() {
    let world = World::new(true, false, 0).await;
    world.identity().await;
    world.day(46).await;
    assert!(world.renewals() >= 3);
    assert_eq!(world.enrolments(), 2);
}

#[tokio::test(start_paused = true)]
async fn c4_a_certificate_that_has_ended_is_said_so_and_asked_for_slowly() {
    let world = World::new(true, false, 0).await;
    world.kept().await;
    world.identity().await;
    *world.script.refuse.lock().unwrap() = Some((401, "CertificateExpired", None));
    world.current.send_replace(None);
    world.day(91).await;
    let message = world.failing("CertificateExpired").await;
    assert!(message.contains("run `towline connect`"), "{message}");
    let before = world.enrolments();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(world.enrolments() - before <= 6, "{}", world.enrolments() - before);
    // It is connected again with a new key: at once.
    *world.script.refuse.lock().unwrap() = None;
    *world.script.key.lock().unwrap() = "new".to_owned();
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert!(!world.identity().await.has_ended(world.clock.now()));
}

#[tokio::test(start_paused = true)]
async fn r10_after_resource_deleted_the_gateway_is_asked_once_an_hour() {
    let world = World::new(true, true, 0).await;
    *world.script.refuse.lock().unwrap() = Some((410, "ResourceDeleted", None));
    let message = world.failing("ResourceDeleted").await;
    assert!(message.contains("was deleted"), "{message}");
    assert_eq!(world.enrolments(), 1);
    world.day(1).await;
    assert!((16..=25).contains(&world.enrolments()), "{}", world.enrolments());
    assert!(world.status.is_deleted());
    *world.script.refuse.lock().unwrap() = None;
    *world.script.key.lock().unwrap() = "new".to_owned();
    world.identity().await;
    assert!(!world.status.is_deleted());
}

#[tokio::test(start_paused = true)]
async fn r10_a_tunnel_that_is_refused_for_a_deleted_cluster_leads_to_one_question_an_hour() {
    // Whoever shows no certificate is not told what exists.
    for answer in [(410, "ResourceDeleted", None), (401, "InvalidProof", None)] {
        let world = World::new(true, true, 0).await;
        world.identity().await;
        *world.script.refuse.lock().unwrap() = Some(answer);
        world.status.refused(CloseCode::Deleted);
        world.failing("ResourceDeleted").await;
        world.day(1).await;
        assert!((17..=26).contains(&world.enrolments()), "{}", world.enrolments());
        assert_eq!(world.renewals(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn r10_a_cluster_that_was_made_again_gets_a_certificate_of_its_new_resource() {
    let world = World::new(true, true, 0).await;
    let old = world.identity().await;
    world.status.refused(CloseCode::Unauthorised);
    let mut identities = world.identities.subscribe();
    let new = identities.wait_for(|now| now.as_ref().is_some_and(|now| now.generation == 2)).await.unwrap().clone();
    assert_ne!(new.unwrap().stored.certificate, old.stored.certificate);
    assert_eq!(world.enrolments(), 2);
}

/// A gateway that issues certificates and refuses tunnels with each of them.
#[tokio::test(start_paused = true)]
async fn n5_certificates_that_are_never_taken_are_asked_for_ever_more_seldom() {
    let world = World::new(true, true, 0).await;
    let (status, mut identities) = (world.status.clone(), world.identities.subscribe());
    world.tasks.spawn("gateway", async move {
        while identities.changed().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
            status.refused(CloseCode::Unauthorised);
        }
    });
    world.day(1).await;
    assert!((100..=400).contains(&world.enrolments()), "{}", world.enrolments());
    world.tasks.abort();
}

#[tokio::test(start_paused = true)]
async fn r4_and_r6_what_the_gateway_refuses_for_good_is_said_with_a_hint_and_asked_seldom() {
    for (status, code, hint) in [
        (409, "AlreadyConnected", "connected as another resource"),
        (401, "InvalidProof", "onboarding key is not that of the resource"),
        (403, "ForeignRequest", "identity.cluster_id"),
    ] {
        let world = World::new(true, true, 0).await;
        *world.script.refuse.lock().unwrap() = Some((status, code, None));
        let message = world.failing(code).await;
        assert!(message.contains(hint), "{message}");
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!((2..=7).contains(&world.enrolments()), "{}", world.enrolments());
    }
}

#[tokio::test(start_paused = true)]
async fn n5_a_busy_gateway_sets_the_pace() {
    let world = World::new(true, true, 0).await;
    *world.script.refuse.lock().unwrap() = Some((503, "", Some(Duration::from_secs(120))));
    world.failing("GatewayBusy").await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!((3..=6).contains(&world.enrolments()), "{}", world.enrolments());
    *world.script.refuse.lock().unwrap() = None;
    world.identity().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_is_used_after_a_restart_and_nothing_is_asked() {
    let world = World::new(false, true, 0).await;
    world.kept().await;
    let identity = world.identity().await;
    assert_eq!(identity.stored.not_before, world.begin);
    world.shutdown.drain();
    world.tasks.join().await.unwrap();
    assert_eq!((world.enrolments(), world.renewals()), (0, 0));
}
