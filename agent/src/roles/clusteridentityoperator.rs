//! Looks after the identity of the cluster: gets its certificate with the onboarding key, keeps
//! it, renews it over the tunnel from half of its life on, and says what is wrong when it cannot.

pub mod enrol;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use daemon::{Backoff, BackoffPolicy, Shutdown, random_unit};
use futures_util::future::BoxFuture;
use secrecy::ExposeSecret as _;
use tunnel::wire::close::CloseCode;
use types::{
    agent_api::{CONNECT_AGAIN, Certificate, Renewal, codes, paths},
    ids::ClusterId,
};

use self::enrol::{Enrol, Enroller};
use super::{Entry, Role, health::Reporter, kubernetes};
use crate::{
    chain,
    config::Deployment,
    identity::{Identities, Identity, Stored, clock::SharedClock, request::KeyRequest, spell, store::Store},
    metrics,
    tunnel::{
        api::{AGAIN, AgentApi, ApiError, Refused},
        deleted_again,
        status::StatusBoard,
    },
};

/// This role's name.
pub const NAME: &str = crate::identity::OPERATOR;

/// In the list of roles.
pub const ENTRY: Entry = Entry {
    name: NAME,
    module: module_path!(),
    runs_in: &[Deployment::ControllerManager],
    build: |parts| {
        let Some((managed, store)) = parts.managed()? else { return Ok(None) };
        let enroller = managed.onboarding_key_file.clone().map(|key_file| {
            let (connector, cluster) = (parts.connector.clone(), parts.cluster.clone());
            Box::new(Enroller::new(connector, cluster, key_file, parts.clock.clone())) as Box<dyn Enrol>
        });
        Ok(Some(Arc::new(ClusterIdentityOperator {
            cluster: parts.cluster.clone(),
            store,
            identities: parts.identities.clone(),
            enroller,
            api: parts.api.clone(),
            status: parts.status.clone(),
            health: parts.health.of(NAME),
            clock: parts.clock.clone(),
            uid: cluster_uid(parts.kubernetes.clone()),
        })))
    },
};

/// The clock is looked at at least this often: machines sleep, and clocks are set.
const LOOK: Duration = Duration::from_secs(3600);
/// While the gateway says no, it is asked this seldom; the onboarding key's file is looked at much more often.
const REFUSED_AGAIN: Duration = Duration::from_secs(600);
/// How often the file is looked at then.
const KEY_LOOK: Duration = Duration::from_secs(30);
/// Failed renewals over the tunnel after which the onboarding key is tried as well.
const RENEWALS: u32 = 3;
/// Waits before asking because the gateway does not take a certificate; refusals are forgotten once a certificate was
/// accepted for `steady_after`.
const REFUSALS: BackoffPolicy = BackoffPolicy {
    first: Duration::from_secs(1),
    quick_cap: Duration::from_secs(600),
    quick_for: Duration::ZERO,
    cap: Duration::from_secs(600),
    steady_after: Duration::from_secs(600),
};
/// The longest wait that a gateway can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// What people are told of a deleted resource.
const DELETED: &str = "the resource of this cluster was deleted; these agents ask only once an hour. Remove them, or connect \
                       the cluster again with `towline connect`";

/// Tells the UID of the namespace `kube-system`.
pub type ClusterUid = Arc<dyn Fn() -> BoxFuture<'static, Result<String, String>> + Send + Sync>;

fn cluster_uid(client: Option<kube::Client>) -> ClusterUid {
    Arc::new(move || {
        let client = client.clone();
        Box::pin(async move {
            match client {
                Some(client) => kubernetes::kube_system_uid(&client).await,
                None => Err("there is no way to the apiserver; set [cluster] kubeconfig".to_owned()),
            }
        })
    })
}

/// Gets, keeps and renews the certificate of the cluster's identity.
pub struct ClusterIdentityOperator {
    /// The cluster that the certificate must name.
    pub cluster: ClusterId,
    /// Where the identity is kept.
    pub store: Store,
    /// Where a new certificate is published for all that use it.
    pub identities: Identities,
    /// Asks with the onboarding key, where there is one.
    pub enroller: Option<Box<dyn Enrol>>,
    /// Asks over the tunnel.
    pub api: AgentApi,
    /// What the gateway says of the tunnel.
    pub status: Arc<StatusBoard>,
    /// What people are told.
    pub health: Reporter,
    /// The time of day.
    pub clock: SharedClock,
    /// Which cluster this is.
    pub uid: ClusterUid,
}

/// Why another certificate is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// There is none.
    None,
    /// Half of its life is over.
    Due,
    /// The gateway does not take it.
    Refused,
}

impl Role for ClusterIdentityOperator {
    fn reports(&self) -> bool {
        true
    }

    fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            shutdown.until_draining(self.work()).await;
        })
    }
}

impl ClusterIdentityOperator {
    async fn work(&self) {
        if self.identities.current().is_none() {
            self.load().await;
        }
        let mut refused = Backoff::new(REFUSALS);
        loop {
            let begun = self.clock.now();
            let need = match self.identities.current() {
                None => Need::None,
                Some(identity) => self.wait(&identity).await,
            };
            if need == Need::Refused {
                // A gateway that issues certificates and takes none of them must not be asked in a tight loop.
                refused.lived(self.clock.now().duration_since(begun).unwrap_or_default());
                tokio::time::sleep(refused.failed(Instant::now(), spread())).await;
                if self.status.refusals().borrow().is_none() {
                    continue;
                }
            }
            if let Some(stored) = self.obtain(need).await {
                self.keep(&stored).await;
            }
        }
    }

    /// What is kept, if it is of this cluster.
    async fn load(&self) {
        let mut backoff = Backoff::new(AGAIN);
        let kept = loop {
            match self.store.load().await {
                Ok(kept) => break kept,
                Err(err) => {
                    let error = chain(&err);
                    tracing::warn!(error, "the cluster's certificate cannot be read");
                    self.health.failing("StoreUnreadable", &error);
                    tokio::time::sleep(backoff.failed(Instant::now(), spread())).await;
                }
            }
        };
        match kept.map(|stored| Identity::new(stored, &self.cluster)) {
            None => {}
            Some(Ok(identity)) => self.publish(identity),
            Some(Err(err)) => {
                tracing::warn!(
                    error = chain(&err),
                    "what is kept is not a certificate of this cluster: asking for one"
                );
            }
        }
    }

    fn publish(&self, identity: Identity) {
        let stored = &identity.stored;
        metrics::certificate_ends(stored.not_after);
        tracing::info!(
            from = spell(stored.not_before),
            until = spell(stored.not_after),
            principal = stored.principal_id,
            "the cluster has a certificate"
        );
        self.identities.publish(identity);
    }

    /// Waits until the certificate is to be renewed, or the gateway takes it no more.
    async fn wait(&self, identity: &Identity) -> Need {
        self.health.running();
        let unit = random_unit();
        let mut refusals = self.status.refusals();
        refusals.mark_unchanged();
        let mut unwanted = self.identities.unwanted();
        loop {
            // A refusal from before is looked at too: it may have come while the certificate was being kept.
            if refusals.borrow_and_update().is_some() && self.enroller.is_some() {
                return Need::Refused;
            }
            let now = self.clock.now();
            let mut due = identity.renew_at(now, unit);
            if *unwanted.borrow_and_update() == identity.generation {
                due = due.min(identity.renew_soon_at(now));
            }
            let left = due.duration_since(now).unwrap_or_default();
            if left.is_zero() {
                return Need::Due;
            }
            tokio::select! {
                biased;
                changed = refusals.changed() => if changed.is_err() { tokio::time::sleep(LOOK).await },
                Ok(()) = unwanted.changed() => {}
                () = tokio::time::sleep(left.min(LOOK)) => {}
            }
        }
    }

    /// Asks until there is another certificate; `None` if the old one is good after all.
    async fn obtain(&self, need: Need) -> Option<Stored> {
        let mut backoff = Backoff::new(AGAIN);
        let mut failures = 0;
        loop {
            let tried = match self.identities.current() {
                Some(identity) if need == Need::Due => self.renew(&identity, failures).await,
                _ => self.enrol().await,
            };
            let err = match tried {
                Ok(stored) => return Some(stored),
                Err(err) => err,
            };
            failures += 1;
            let (mut reason, mut message) = self.explain(&err, need);
            // To who shows no certificate the gateway does not say what exists; the tunnel's end has said it.
            if self.status.is_deleted() && err.refused().is_some_and(|refused| refused.status == 401) {
                (reason, message) = (codes::RESOURCE_DELETED, DELETED.to_owned());
            }
            let deleted = reason == codes::RESOURCE_DELETED;
            if deleted {
                self.status.refused(CloseCode::Deleted);
            }
            self.health.failing(reason, &message);
            let lasting = err.refused().is_some_and(|refused| matches!(refused.status, 400..=428))
                || matches!(err, ApiError::Local(_));
            let wait = backoff.failed(Instant::now(), spread());
            let hint = err.retry_after().map(|hint| hint.min(RETRY_AFTER_MAX));
            let wait = match lasting {
                _ if deleted => deleted_again(random_unit()),
                true => REFUSED_AGAIN + wait,
                false => hint.unwrap_or_default() + wait,
            };
            tracing::warn!(reason, error = message, again_in_s = wait.as_secs(), "no certificate");
            let waited = self.pause(wait, lasting, need).await;
            if waited == Waited::Accepted {
                return None;
            }
        }
    }

    /// Waits; a new onboarding key or a tunnel that came up ends it sooner.
    async fn pause(&self, wait: Duration, lasting: bool, need: Need) -> Waited {
        let key = self.key();
        let mut refusals = self.status.refusals();
        let new_key = async {
            loop {
                tokio::time::sleep(KEY_LOOK).await;
                if lasting && self.key() != key {
                    tracing::info!("there is a new onboarding key: asking with it");
                    return;
                }
            }
        };
        let accepted = async {
            if need != Need::Refused || refusals.wait_for(Option::is_none).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = accepted => Waited::Accepted,
            () = new_key => Waited::Again,
            () = tokio::time::sleep(wait) => Waited::Again,
        }
    }

    fn key(&self) -> Option<String> {
        let text = self.enroller.as_ref()?.key_text()?;
        // Only compared; not kept longer than the wait.
        Some(text.expose_secret().to_owned())
    }

    /// Over the tunnel; by the onboarding key where that fails again and again, or the certificate has ended.
    async fn renew(&self, identity: &Identity, failures: u32) -> Result<Stored, ApiError> {
        let ended = identity.has_ended(self.clock.now());
        if ended && !self.api.is_up() && self.enroller.is_some() {
            return self.enrol().await;
        }
        let request = KeyRequest::new().map_err(|err| ApiError::Local(chain(&err)))?;
        let renewal = Renewal { csr: request.csr };
        let err = match self.api.post::<Certificate>(paths::RENEW, &renewal).await {
            Ok(certificate) => {
                let stored = Stored::new(certificate, request.key, self.clock.now());
                return self.checked(stored.map_err(|err| ApiError::Unreadable(chain(&err)))?);
            }
            Err(err) => err,
        };
        let deleted = err.refused().is_some_and(|refused| refused.status == 410);
        if deleted || self.enroller.is_none() || (failures + 1 < RENEWALS && !ended) {
            return Err(err);
        }
        tracing::warn!(error = chain(&err), "no renewal over the tunnel: asking with the onboarding key");
        self.enrol().await
    }

    async fn enrol(&self) -> Result<Stored, ApiError> {
        let Some(enroller) = &self.enroller else {
            let hint = "set identity.onboarding_key_file, or connect the cluster again with `towline connect`";
            return Err(ApiError::Local(format!("there is no certificate and no onboarding key: {hint}")));
        };
        let uid =
            (self.uid)().await.map_err(|problem| ApiError::Unreachable(format!("which cluster this is: {problem}")))?;
        self.checked(enroller.enrol(&uid).await?)
    }

    fn checked(&self, stored: Stored) -> Result<Stored, ApiError> {
        match Identity::new(stored.clone(), &self.cluster) {
            Ok(_) => Ok(stored),
            Err(err) => Err(ApiError::Unreadable(format!("the certificate that the gateway sent: {}", chain(&err)))),
        }
    }

    /// One word, and a sentence with what to do.
    fn explain(&self, err: &ApiError, need: Need) -> (&'static str, String) {
        let told = chain(err);
        let Some(Refused { status, code, .. }) = err.refused() else {
            let reason = match err {
                ApiError::Local(_) => "NoOnboardingKey",
                ApiError::Unreadable(_) => "BadAnswer",
                _ if need == Need::None => "Enrolling",
                _ => "Unreachable",
            };
            return (reason, told);
        };
        let (reason, hint) = match (*status, code.as_str()) {
            (410, _) => (codes::RESOURCE_DELETED, DELETED),
            (409, _) => (
                codes::ALREADY_CONNECTED,
                "this cluster is connected as another resource; delete that one or remove these agents",
            ),
            (_, codes::CERTIFICATE_EXPIRED) => (codes::CERTIFICATE_EXPIRED, CONNECT_AGAIN),
            (401, _) => (
                codes::INVALID_PROOF,
                "the onboarding key is not that of the resource; connect the cluster again with `towline connect`",
            ),
            (403, _) => (codes::FOREIGN_REQUEST, "check identity.cluster_id"),
            (429 | 500.., _) => ("GatewayBusy", "it is asked again"),
            _ => ("Refused", "check that agents and gateway are of versions that fit"),
        };
        (reason, format!("{told}; {hint}"))
    }

    /// Uses it, and keeps it, however long that takes: it is the only one.
    async fn keep(&self, stored: &Stored) {
        match Identity::new(stored.clone(), &self.cluster) {
            Ok(identity) => self.publish(identity),
            Err(err) => return tracing::error!(error = chain(&err), "a certificate that was checked is none"),
        }
        self.status.accepted();
        let mut backoff = Backoff::new(AGAIN);
        while let Err(err) = self.store.save(stored).await {
            let error = chain(&err);
            tracing::error!(error, "the cluster's certificate cannot be kept; it is used by this process alone");
            self.health.failing("NotKept", &error);
            tokio::time::sleep(backoff.failed(Instant::now(), spread())).await;
        }
    }

    /// When the certificate in use is to be renewed, for people; the jitter is not in it.
    pub fn renew_after(identity: &Identity, now: SystemTime) -> SystemTime {
        identity.renew_at(now, 0.0)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Waited {
    Again,
    Accepted,
}

/// At least half of a wait, so that nothing is asked in a tight loop.
fn spread() -> f64 {
    0.5 + random_unit() / 2.0
}
