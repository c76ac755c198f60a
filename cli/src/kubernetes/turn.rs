//! One run at a time: `connect`, `delete`, `update` and `troubleshoot` take turns in a namespace, by a Lease as leader elections
//! of Kubernetes have it. So a run that fails takes back what it made, and nobody else is in the middle of using it.

use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use proto::process::TaskGroup;
use serde_json::{Value, json};
use time::{OffsetDateTime, macros::format_description};

use super::{Error, Kubernetes, Place, place::LEASE};
use crate::{
    failure::Advised,
    output::{line, say},
};

/// The Lease's name.
const NAME: &str = "towline-run";
/// How often a run says that it is still there.
const RENEW: Duration = Duration::from_secs(5);
/// A run that has not said so for this time is gone. It is measured here: clocks of two machines are not compared.
const GONE: Duration = Duration::from_secs(20);
/// Between looks at another run's Lease.
const PAUSE: Duration = Duration::from_secs(1);

/// The turn of this run, until it is given up or the process ends.
pub struct Turn {
    cluster: Kubernetes,
    place: Place,
    uid: String,
    _renewal: TaskGroup,
}

impl Turn {
    /// Takes the turn in a namespace, which must be there. `what` says for others what is done in it.
    ///
    /// # Errors
    /// When another run has it, or the apiserver refuses. None where the apiserver has no Leases.
    pub async fn take(cluster: &Kubernetes, namespace: &str, what: &str) -> anyhow::Result<Option<Self>> {
        let place = Place::within(LEASE, namespace, NAME);
        let run = gateway::issuer::guid::random()?;
        let uid = loop {
            let made = cluster.create(&place, &lease(namespace, &run, what)?).await;
            match made {
                Ok(made) => break uid_of(&made),
                Err(error) if error.is_conflict() => {}
                Err(error) if error.is_missing() => return Ok(None),
                Err(error) => return Err(anyhow!(error).context(format!("make {place}"))),
            }
            let Some(dead) = cluster.is_abandoned(&place).await? else { continue };
            // Another may have been faster: then there is another one by now.
            cluster.delete_exactly(&place, &dead).await?;
        };
        let renewal = TaskGroup::new("turn");
        renewal.spawn("renew", renew(cluster.clone(), place.clone(), uid.clone()));
        Ok(Some(Self { cluster: cluster.clone(), place, uid, _renewal: renewal }))
    }

    /// Lets the next one have it.
    pub async fn give_up(self) {
        if let Err(error) = self.cluster.delete_exactly(&self.place, &self.uid).await {
            tracing::debug!("{error:#}");
        }
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
            Err(error) => Err(anyhow!(error).context(format!("delete {place}"))),
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
            let Some(now) = self.get(place).await.with_context(|| format!("read {place}"))? else { return Ok(None) };
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

/// Says again and again that the run is there, of this very Lease alone.
async fn renew(cluster: Kubernetes, place: Place, uid: String) {
    loop {
        tokio::time::sleep(RENEW).await;
        let Ok(now) = now() else { return };
        let patch = json!({"metadata": {"uid": uid}, "spec": {"renewTime": now}});
        let renewed = cluster.api(&place).patch(&place.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        match renewed.map_err(Error::from) {
            Ok(_) => {}
            Err(error) if error.is_passing() => {}
            // It is gone, or another's.
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

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
                made["metadata"]["uid"] = gateway::issuer::guid::random().unwrap().into();
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

    #[tokio::test(start_paused = true)]
    async fn turn_of_a_run_that_is_there_is_not_taken_and_then_is() {
        let store = Arc::default();
        let (one, two) = (cluster(&store), cluster(&store));
        let first = Turn::take(&one, "towline", "connect shop").await.unwrap().unwrap();
        let refused = Turn::take(&two, "towline", "delete shop").await.err().unwrap().to_string();
        assert!(refused.contains("another run is at work in namespace towline"), "{refused}");
        assert!(refused.contains("connect shop") && refused.contains("nothing was changed"), "{refused}");
        first.give_up().await;
        assert!(store.lock().unwrap().is_none());
        Turn::take(&two, "towline", "delete shop").await.unwrap().unwrap().give_up().await;
    }

    /// Its process was killed: it renews nothing and takes nothing back.
    #[tokio::test(start_paused = true)]
    async fn turn_of_a_run_that_is_gone_is_taken_by_one_of_two() {
        let store = Arc::default();
        drop(Turn::take(&cluster(&store), "towline", "connect shop").await.unwrap());
        let (one, two) = (cluster(&store), cluster(&store));
        let taken = tokio::join!(Turn::take(&one, "towline", "a"), Turn::take(&two, "towline", "b"));
        assert!(taken.0.is_ok() != taken.1.is_ok(), "one has it, and one is told");
    }

    /// A run that gives its turn up late does not delete the Lease of the next run.
    #[tokio::test(start_paused = true)]
    async fn turn_that_was_lost_is_not_given_up_for_another() {
        let store = Arc::default();
        let lost = Turn::take(&cluster(&store), "towline", "a").await.unwrap().unwrap();
        *store.lock().unwrap() = None;
        let other = Turn::take(&cluster(&store), "towline", "b").await.unwrap().unwrap();
        lost.give_up().await;
        assert!(store.lock().unwrap().is_some());
        other.give_up().await;
    }
}
