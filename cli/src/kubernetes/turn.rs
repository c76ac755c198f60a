//! One run at a time: `connect`, `delete`, `update` and `troubleshoot` take turns in a namespace, by a Lease as leader
//! elections of Kubernetes have it. So a run that fails takes back what it made, and nobody else is in the middle of
//! using it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use anyhow::{Context, anyhow};
use daemon::TaskGroup;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};
use time::{OffsetDateTime, macros::format_description};

use super::{Error, Kubernetes, Place, place::LEASE};
use crate::{
    failure::Advised,
    terminal::{line, say},
};

/// The Lease's name.
const NAME: &str = "towline-run";
/// How often a run says that it is still there.
const RENEW: Duration = Duration::from_secs(5);
/// A run that has not said so for this time is gone. It is measured here: clocks of two machines are not compared.
const GONE: Duration = Duration::from_secs(20);
/// Between looks at another run's Lease.
const PAUSE: Duration = Duration::from_secs(1);

/// Longest wait for the apiserver's answer when a turn is given up: a run that ends does not hang on it.
const GIVE_UP: Duration = Duration::from_secs(5);

/// This run's turn in a namespace. Whatever ends the run, [`Self::give_up`] has to be awaited after [`Self::take`] was
/// begun, or the next run waits for [`GONE`].
pub struct Turn {
    cluster: Kubernetes,
    place: Place,
    what: String,
    /// Tells this run from others, also where the answer to a request of it was lost.
    run: String,
    state: State,
    renewal: Option<TaskGroup>,
    is_lost: Arc<AtomicBool>,
}

/// What is known of the Lease.
#[derive(Debug, PartialEq, Eq)]
enum State {
    /// None of this run's was made.
    Idle,
    /// It was asked for, and there is no answer yet.
    Asked,
    /// It is this run's, by its uid.
    Held(String),
    /// The apiserver has no Leases: nobody takes turns.
    NoLeases,
}

impl Turn {
    /// Not taken yet. `what` says for others what is done in it.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn new(cluster: &Kubernetes, namespace: &str, what: String) -> anyhow::Result<Self> {
        Ok(Self {
            cluster: cluster.clone(),
            place: Place::within(LEASE, namespace, NAME),
            what,
            run: gateway::guid::random()?,
            state: State::Idle,
            renewal: None,
            is_lost: Arc::default(),
        })
    }

    /// What tells this run from others.
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Takes the turn in its namespace, which must be there; nothing where this run has it already. Waits while another
    /// run's Lease may be one that was left behind. Cancel-safe: [`Self::give_up`] finds a Lease whose answer was not
    /// awaited.
    ///
    /// # Errors
    /// When another run has it, or the apiserver refuses.
    pub async fn take(&mut self) -> anyhow::Result<()> {
        while !self.try_once().await? {
            let Some(dead) = self.cluster.is_abandoned(&self.place).await? else { continue };
            // Another may have been faster: then there is another one by now.
            self.cluster.delete_exactly(&self.place, &dead).await?;
        }
        Ok(())
    }

    /// Takes it unless there is a Lease of another run; tells whether this run has it now.
    ///
    /// # Errors
    /// When the apiserver refuses.
    pub async fn try_once(&mut self) -> anyhow::Result<bool> {
        if self.has_begun() {
            return Ok(true);
        }
        let namespace = self.place.namespace.clone().unwrap_or_default();
        let manifest = lease(&namespace, &self.run, &self.what)?;
        self.state = State::Asked;
        let uid = match self.cluster.create(&self.place, &manifest).await {
            Ok(made) => uid_of(&made),
            Err(error) if error.is_passing() || error.is_conflict() => match self.own().await {
                Ok(Some(uid)) => uid,
                Ok(None) if error.is_conflict() => {
                    self.state = State::Idle;
                    return Ok(false);
                }
                // Whether it was made is not known.
                _ => return Err(anyhow!(error).context(format!("cannot make {}", self.place))),
            },
            Err(error) if error.is_missing() && !error.is_of_missing_namespace(&namespace) => {
                self.state = State::NoLeases;
                return Ok(true);
            }
            Err(error) => {
                self.state = State::Idle;
                return Err(anyhow!(error).context(format!("cannot make {}", self.place)));
            }
        };
        self.state = State::Held(uid.clone());
        let renewal = TaskGroup::new("turn");
        renewal.spawn("renew", renew(self.cluster.clone(), self.place.clone(), uid, self.is_lost.clone()));
        self.renewal = Some(renewal);
        Ok(true)
    }

    /// Whether it was taken, or there are none to take.
    pub fn has_begun(&self) -> bool {
        matches!(self.state, State::Held(_) | State::NoLeases)
    }

    /// Whether another run has taken it over, because this one was not heard of for [`GONE`]: it was stopped, or cut
    /// off.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Whether this run has it still, as the apiserver knows: what is taken back may be in use by another one
    /// otherwise.
    ///
    /// # Errors
    /// When the apiserver cannot be asked.
    pub async fn holds(&self) -> anyhow::Result<bool> {
        match &self.state {
            State::NoLeases => Ok(true),
            State::Held(uid) => Ok(self.own().await?.as_ref() == Some(uid)),
            State::Idle | State::Asked => Ok(false),
        }
    }

    /// Lets the next run have it. Nothing where this one has none.
    pub async fn give_up(&mut self) {
        self.renewal = None;
        let state = std::mem::replace(&mut self.state, State::Idle);
        let giving = async {
            let uid = match state {
                State::Idle | State::NoLeases => return Ok(()),
                State::Held(uid) => uid,
                State::Asked => match self.own().await? {
                    Some(uid) => uid,
                    None => return Ok(()),
                },
            };
            self.cluster.delete_exactly(&self.place, &uid).await
        };
        match tokio::time::timeout(GIVE_UP, giving).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!("{} is left behind: {error:#}", self.place),
            Err(_) => tracing::debug!("{} is left behind: no answer", self.place),
        }
    }

    /// The uid of the Lease, if it is this run's.
    async fn own(&self) -> anyhow::Result<Option<String>> {
        let there = self.cluster.get(&self.place).await.with_context(|| format!("cannot read {}", self.place))?;
        Ok(there.filter(|lease| lease["spec"]["holderIdentity"] == self.run.as_str()).as_ref().map(uid_of))
    }
}

impl Kubernetes {
    /// Makes an object, if there is none of its name.
    ///
    /// # Errors
    /// A conflict where there is one.
    pub async fn create(&self, place: &Place, manifest: &Value) -> Result<Value, Error> {
        let object = serde_json::from_value(manifest.clone()).map_err(kube::Error::SerdeError)?;
        Ok(super::plain(self.api(place).create(&PostParams::default(), &object).await?))
    }

    /// Deletes an object if it is still this very one, by its uid.
    ///
    /// # Errors
    /// When the apiserver refuses for another reason.
    pub async fn delete_exactly(&self, place: &Place, uid: &str) -> anyhow::Result<()> {
        let uid = Some(uid.to_owned()).filter(|uid| !uid.is_empty());
        let preconditions = uid.map(|uid| Preconditions { uid: Some(uid), resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        match self.api(place).delete(&place.name, &params).await.map_err(Error::from) {
            Ok(_) => Ok(()),
            Err(error) if error.is_missing() || error.is_conflict() => Ok(()),
            Err(error) => Err(anyhow!(error).context(format!("cannot delete {place}"))),
        }
    }

    /// The uid of a Lease whose run is gone; none if the Lease is gone itself.
    ///
    /// # Errors
    /// When its run is there.
    async fn is_abandoned(&self, place: &Place) -> anyhow::Result<Option<String>> {
        let namespace = place.namespace.as_deref().unwrap_or_default();
        say(&format!("  another run has begun in namespace {namespace}: looking whether it is still there ..."));
        let mut first: Option<Value> = None;
        let end = tokio::time::Instant::now() + GONE;
        loop {
            let Some(now) = self.get(place).await.with_context(|| format!("cannot read {place}"))? else {
                return Ok(None);
            };
            let then = first.get_or_insert_with(|| now.clone());
            let is_same = |part: &str, name: &str| then[part][name] == now[part][name];
            if !is_same("metadata", "uid") || !is_same("spec", "renewTime") {
                return Err(busy(&now));
            }
            if tokio::time::Instant::now() > end {
                return Ok(Some(uid_of(&now)));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// That another run is at work.
fn busy(lease: &Value) -> anyhow::Error {
    let text = |value: &Value| line(value.as_str().unwrap_or("unknown"));
    let namespace = text(&lease["metadata"]["namespace"]);
    Advised::new(
        format!(
            "another run is at work in namespace {namespace} of this cluster since {}: {}; nothing was changed",
            text(&lease["spec"]["acquireTime"]),
            text(&lease["metadata"]["annotations"]["towline.io/run"])
        ),
        "run the command again when that one has ended",
    )
    .into()
}

fn uid_of(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

fn lease(namespace: &str, run: &str, what: &str) -> anyhow::Result<Value> {
    let now = now()?;
    Ok(json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": LEASE.name,
        "metadata": {"name": NAME, "namespace": namespace, "annotations": {"towline.io/run": what}},
        "spec": {"holderIdentity": run, "acquireTime": now, "renewTime": now, "leaseDurationSeconds": GONE.as_secs()},
    }))
}

/// As `MicroTime` of Kubernetes has it: six digits of a second, no more and no fewer.
fn now() -> anyhow::Result<String> {
    let micro = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");
    Ok(OffsetDateTime::from(SystemTime::now()).format(micro)?)
}

/// Says again and again that the run is there, of this very Lease alone, until that is gone.
async fn renew(cluster: Kubernetes, place: Place, uid: String, is_lost: Arc<AtomicBool>) {
    loop {
        tokio::time::sleep(RENEW).await;
        let Ok(now) = now() else { return };
        let patch = json!({"metadata": {"uid": uid}, "spec": {"renewTime": now}});
        let renewed = cluster.api(&place).patch(&place.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        match renewed.map_err(Error::from) {
            // It is gone, or another's.
            Err(error) if error.is_missing() || error.is_conflict() => {
                is_lost.store(true, Ordering::Relaxed);
                return;
            }
            // Without an answer, or a right that was taken away: the Lease may still be there.
            Ok(_) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use http::{Method, Request, Response};
    use http_body_util::BodyExt;
    use kube::{Client, client::Body};

    use super::*;

    /// An apiserver of one Lease.
    async fn answer(
        store: Arc<Mutex<Option<Value>>>,
        request: Request<Body>,
    ) -> Result<Response<Body>, std::io::Error> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
        let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
        let mut there = store.lock().unwrap();
        let status = |code: u16| (code, json!({"kind": "Status", "status": "Failure", "message": "m", "code": code}));
        let (code, body) = match (head.method, there.clone()) {
            (Method::POST, Some(_)) => status(409),
            (Method::POST, None) => {
                let mut made = sent;
                made["metadata"]["uid"] = gateway::guid::random().unwrap().into();
                *there = Some(made.clone());
                (201, made)
            }
            (_, None) => status(404),
            (Method::GET, Some(lease)) => (200, lease),
            (Method::PATCH, Some(lease)) if lease["metadata"]["uid"] != sent["metadata"]["uid"] => status(409),
            (Method::PATCH, Some(mut lease)) => {
                lease["spec"]["renewTime"] = sent["spec"]["renewTime"].clone();
                *there = Some(lease.clone());
                (200, lease)
            }
            (Method::DELETE, Some(lease)) if lease["metadata"]["uid"] != sent["preconditions"]["uid"] => status(409),
            (Method::DELETE, Some(lease)) => {
                *there = None;
                (200, lease)
            }
            _ => status(405),
        };
        let body = Body::from(serde_json::to_vec(&body).unwrap());
        Ok(Response::builder().status(code).header("content-type", "application/json").body(body).unwrap())
    }

    fn cluster(store: &Arc<Mutex<Option<Value>>>) -> Kubernetes {
        let store = store.clone();
        let service = tower::service_fn(move |request| answer(store.clone(), request));
        Kubernetes {
            client: Client::new(service, "default"),
            context: String::new(),
            server: String::new(),
            server_name: None,
            minor: 30,
        }
    }

    async fn taken(store: &Arc<Mutex<Option<Value>>>, what: &str) -> anyhow::Result<Turn> {
        let mut turn = Turn::new(&cluster(store), "towline", what.to_owned())?;
        turn.take().await.map(|()| turn)
    }

    #[tokio::test(start_paused = true)]
    async fn turn_of_a_run_that_is_there_is_not_taken_and_then_is() {
        let store = Arc::default();
        let mut first = taken(&store, "connect shop").await.unwrap();
        let refused = taken(&store, "delete shop").await.err().unwrap().to_string();
        assert!(refused.contains("another run is at work in namespace towline"), "{refused}");
        assert!(refused.contains("connect shop") && refused.contains("nothing was changed"), "{refused}");
        assert!(first.holds().await.unwrap() && !first.is_lost());
        first.give_up().await;
        assert!(store.lock().unwrap().is_none());
        taken(&store, "delete shop").await.unwrap().give_up().await;
        assert!(store.lock().unwrap().is_none());
    }

    /// Its process was killed: it renews nothing and takes nothing back.
    #[tokio::test(start_paused = true)]
    async fn turn_of_a_run_that_is_gone_is_taken_by_one_of_two() {
        let store = Arc::default();
        drop(taken(&store, "connect shop").await.unwrap());
        let both = tokio::join!(taken(&store, "a"), taken(&store, "b"));
        assert!(both.0.is_ok() != both.1.is_ok(), "one has it, and one is told");
    }

    /// A run that gives its turn up late does not delete the Lease of the next run.
    #[tokio::test(start_paused = true)]
    async fn turn_that_was_lost_is_known_and_not_given_up_for_another() {
        let store = Arc::default();
        let mut lost = taken(&store, "a").await.unwrap();
        *store.lock().unwrap() = None;
        let mut other = taken(&store, "b").await.unwrap();
        tokio::time::sleep(2 * RENEW).await;
        assert!(lost.is_lost() && !lost.holds().await.unwrap(), "what it made is the other run's by now");
        lost.give_up().await;
        assert!(store.lock().unwrap().is_some() && other.holds().await.unwrap());
        other.give_up().await;
    }

    /// Ctrl+C between the request and its answer.
    #[tokio::test(start_paused = true)]
    async fn turn_whose_answer_was_not_awaited_is_given_up() {
        let store = Arc::default();
        let mut turn = Turn::new(&cluster(&store), "towline", "connect shop".to_owned()).unwrap();
        *store.lock().unwrap() = Some(lease("towline", turn.run(), "connect shop").unwrap());
        turn.state = State::Asked;
        turn.give_up().await;
        assert!(store.lock().unwrap().is_none());
    }

    /// An apiserver says 404 of a namespace that went in between, too.
    #[tokio::test(start_paused = true)]
    async fn turn_in_a_namespace_that_went_is_no_turn() {
        let missing = |message: &'static str| {
            let service = tower::service_fn(move |_: Request<Body>| async move {
                let body = json!({"kind": "Status", "status": "Failure", "message": message, "code": 404});
                let body = Body::from(serde_json::to_vec(&body).unwrap());
                Ok::<_, std::io::Error>(Response::builder().status(404).body(body).unwrap())
            });
            let cluster = Kubernetes { client: Client::new(service, "default"), ..cluster(&Arc::default()) };
            Turn::new(&cluster, "towline", String::new()).unwrap()
        };
        assert!(missing("namespaces \"towline\" not found").take().await.is_err());
        let mut none = missing("the server could not find the requested resource");
        none.take().await.unwrap();
        assert!(none.holds().await.unwrap(), "this apiserver has no Leases");
    }
}
