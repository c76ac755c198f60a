//! Makes, applies and waits. Whatever is made is noted before it is asked for, and each request is waited for to its end, so
//! that a run that fails or is interrupted takes back all of it (features row I3).

use std::time::Duration;

use anyhow::anyhow;
use proto::api::ResourceId;
use serde_json::{Value, json};

use super::{
    key::OnboardingKey,
    precheck::Prepared,
    resource::{self, group_of},
    wait,
};
use crate::{
    api::{Wait, at, versions},
    args::ConnectArgs,
    commands::{interrupt::Interrupt, steps::Steps},
    failure::{Failure, Outcome},
    kubernetes::{
        Place,
        installed::is_definition,
        place::{DEPLOYMENT, NAMESPACE, SECRET},
    },
    manifests::{self, IDENTITY_SECRET},
    output::say,
};

/// How long a definition may take to be served.
const ESTABLISHED: Duration = Duration::from_secs(60);

/// Why a run did not come to its end.
pub enum Stopped {
    /// Ctrl+C.
    Interrupted,
    /// Something failed.
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for Stopped {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// What this run made, to be taken back if it fails.
#[derive(Default)]
pub struct Made {
    group: Option<ResourceId>,
    /// The resource's public key.
    resource: Option<String>,
    /// By a one-time token, which is used up: who holds it deletes nothing, and goes on from what is there.
    is_enrolled: bool,
    namespace: bool,
    objects: Vec<Place>,
}

impl Made {
    fn is_nothing(&self) -> bool {
        self.group.is_none()
            && self.resource.is_none()
            && !self.is_enrolled
            && !self.namespace
            && self.objects.is_empty()
    }
}

/// From the key to a connected cluster; returns the resource.
pub async fn run(
    args: &ConnectArgs,
    prepared: &mut Prepared,
    made: &mut Made,
    steps: &mut Steps,
    interrupt: &mut Interrupt,
) -> Result<Value, Stopped> {
    let key = tokio::select! {
        biased;
        () = interrupt.heard() => return Err(Stopped::Interrupted),
        key = steps.run("Making the onboarding key", key(prepared)) => key?,
    };
    if prepared.makes_group {
        let group = group_of(&prepared.id)?;
        steps.begin("Making the resource group");
        made.group = Some(group.clone());
        prepared.api.put(&at(&group, versions::RESOURCES), &json!({"location": prepared.location})).await?;
        steps.end("done");
    }
    go_on(interrupt)?;
    let made_resource = resource(args, prepared, made, &key, steps).await?;
    go_on(interrupt)?;
    steps.begin("Installing the agents");
    prepared.values.identity.onboarding_key = key.private;
    apply(prepared, made, interrupt).await?;
    steps.end("done");
    if args.no_wait {
        return Ok(made_resource);
    }
    steps.begin("Waiting for the agents to connect");
    let resource = tokio::select! {
        biased;
        () = interrupt.heard() => return Err(Stopped::Interrupted),
        connected = wait::connected(args, prepared, made_resource, steps) => connected?,
    };
    steps.end("connected");
    Ok(resource)
}

/// Makes or updates the resource, as somebody or by a one-time token; returns it.
async fn resource(
    args: &ConnectArgs,
    prepared: &Prepared,
    made: &mut Made,
    key: &OnboardingKey,
    steps: &mut Steps,
) -> Outcome<Value> {
    match &prepared.token {
        // An earlier run used the token up and did not come to its end: its key is in the cluster.
        Some(_) if prepared.key.is_some() && prepared.installed.is_some() => {
            steps.note("the cluster is enrolled already; the token is not needed");
            Ok(json!({"id": prepared.id.as_str(), "name": prepared.id.name(), "properties": {}}))
        }
        Some(token) => {
            let resource = steps.run("Enrolling by the token", token.enrol(prepared, args, &key.public)).await?;
            made.is_enrolled = true;
            Ok(resource)
        }
        None => {
            if prepared.before.resource.is_none() {
                made.resource = Some(key.public.clone());
            }
            let put = resource::put(prepared, args, &key.public);
            Ok(steps.run("Making the resource", put).await?.body)
        }
    }
}

fn go_on(interrupt: &Interrupt) -> Result<(), Stopped> {
    if interrupt.is_heard() { Err(Stopped::Interrupted) } else { Ok(()) }
}

async fn key(prepared: &Prepared) -> Outcome<OnboardingKey> {
    match &prepared.key {
        Some(key) => Ok(OnboardingKey { private: key.private.clone(), public: key.public.clone() }),
        None => Ok(OnboardingKey::generate().await?),
    }
}

async fn apply(prepared: &Prepared, made: &mut Made, interrupt: &Interrupt) -> Result<(), Stopped> {
    let (cluster, namespace) = (&prepared.cluster, &prepared.namespace);
    if let Some(there) = &prepared.replaced {
        cluster.uninstall(&there.namespace, true, false).await?;
    }
    // Removing agents may have removed their namespace.
    if prepared.makes_namespace || cluster.get(&Place::of(NAMESPACE, namespace)).await?.is_none() {
        made.namespace = true;
        cluster.apply(&manifests::namespace(namespace)).await?;
    }
    if !prepared.is_key_of_cluster {
        // A certificate of an earlier key is another cluster's by now.
        cluster.delete(&Place::within(SECRET, namespace, IDENTITY_SECRET)).await?;
    }
    let manifests = manifests::objects(&prepared.values, namespace);
    for manifest in &manifests {
        go_on(interrupt)?;
        let place = Place::of_manifest(manifest).ok_or_else(|| anyhow!("a manifest of an unknown kind"))?;
        let new = cluster.get(&place).await.map_err(|error| anyhow!(error).context(format!("read {place}")))?.is_none();
        if new {
            if place.kind == DEPLOYMENT {
                // What its pods make.
                made.objects.push(Place::within(SECRET, namespace, IDENTITY_SECRET));
            }
            made.objects.push(place.clone());
        }
        cluster.apply(manifest).await?;
        if is_definition(manifest) {
            cluster.await_established(&place.name, ESTABLISHED).await?;
        }
    }
    if prepared.installed.is_some() {
        cluster.prune(namespace, &manifests).await?;
    }
    Ok(())
}

/// Takes back what was made; says what could not be.
pub async fn take_back(prepared: &Prepared, made: Made, interrupt: &mut Interrupt) -> Option<String> {
    if made.is_nothing() {
        return None;
    }
    let (group, name) = (prepared.id.resource_group().unwrap_or_default(), prepared.id.name());
    if made.is_enrolled {
        return Some(format!(
            "warning: the token is used up, {name} is made, and what was installed stays\nhint: the same command again goes on from here; who may delete it takes it back: towline delete --force -n {name} -g {group}"
        ));
    }
    say("Taking back what was made; Ctrl+C again leaves it.");
    let twice = interrupt.is_heard();
    let left = tokio::select! {
        biased;
        () = async { if twice { interrupt.insisted().await } else { interrupt.heard().await } } => {
            Some("it was not waited for".to_owned())
        }
        result = undo(prepared, &made) => result.err().map(|failure| format!("{:#}", failure.into_error())),
    };
    left.map(|why| {
        format!(
            "warning: not all that was made is taken back: {why}\nhint: towline delete --force -n {name} -g {group}"
        )
    })
}

async fn undo(prepared: &Prepared, made: &Made) -> Outcome<()> {
    let objects: Vec<Place> = made.objects.iter().rev().cloned().collect();
    let cluster = async {
        let namespace = &prepared.namespace;
        if made.namespace || !objects.is_empty() {
            let left = prepared.cluster.remove(&objects, namespace, true, false).await?;
            if let Some(left) = left.first().filter(|_| made.namespace) {
                return Err(anyhow!("namespace {namespace} holds what others made: {left}").into());
            }
        }
        Ok(())
    };
    // The resource first: agents stop to ask at once. One failing does not keep the other.
    let resource = match &made.resource {
        Some(key) => resource::take_back(&prepared.api, &prepared.id, key).await,
        None => Ok(()),
    };
    let cluster: Outcome<()> = cluster.await;
    resource?;
    cluster?;
    if let Some(group) = &made.group {
        let resources = prepared.api.list(&at(format!("{group}/resources"), versions::RESOURCES)).await?;
        if resources.is_empty() {
            let answer = prepared.api.delete(&at(group, versions::RESOURCES)).await?;
            prepared.api.follow(&answer, "deleting the resource group", Wait::default()).await?;
        }
    }
    Ok(())
}
