//! Makes, applies and waits. Whatever is made is noted before it is asked for, and each request is waited for to its end, so
//! that a run that fails or is interrupted takes back all of it (features row I3).

use std::time::{Duration, Instant};

use anyhow::anyhow;
use proto::api::ResourceId;
use serde_json::{Value, json};

use super::{
    key::OnboardingKey,
    precheck::Prepared,
    resource::{self, find, group_of},
};
use crate::{
    api::{Wait, at, versions},
    args::ConnectArgs,
    commands::{interrupt::Interrupt, steps::Steps},
    failure::{Failure, Outcome},
    kubernetes::{
        Place,
        installed::is_definition,
        place::{DEPLOYMENT, SECRET},
    },
    manifests::{self, IDENTITY_SECRET},
    output::say,
};

/// Between looks at what agents and gateway make of each other.
const PAUSE: Duration = Duration::from_secs(1);
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
    namespace: bool,
    objects: Vec<Place>,
}

impl Made {
    fn is_nothing(&self) -> bool {
        self.group.is_none() && self.resource.is_none() && !self.namespace && self.objects.is_empty()
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
    if prepared.before.resource.is_none() {
        made.resource = Some(key.public.clone());
    }
    let answer = steps.run("Making the resource", resource::put(prepared, args, &key.public)).await?;
    go_on(interrupt)?;
    steps.begin("Installing the agents");
    prepared.values.identity.onboarding_key = key.private;
    apply(prepared, made, interrupt).await?;
    steps.end("done");
    if args.no_wait {
        return Ok(answer.body);
    }
    steps.begin("Waiting for the agents to connect");
    let resource = tokio::select! {
        biased;
        () = interrupt.heard() => return Err(Stopped::Interrupted),
        connected = connected(args, prepared, steps) => connected?,
    };
    steps.end("connected");
    Ok(resource)
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
    if prepared.makes_namespace {
        made.namespace = true;
        cluster.apply(&manifests::namespace(namespace)).await?;
    }
    if prepared.key.is_none() {
        // A certificate of an earlier key is another cluster's by now.
        cluster.delete(&Place::within(SECRET, namespace, IDENTITY_SECRET)).await?;
    }
    for manifest in manifests::objects(&prepared.values, namespace) {
        go_on(interrupt)?;
        let place = Place::of_manifest(&manifest).ok_or_else(|| anyhow!("a manifest of an unknown kind"))?;
        let new = cluster.get(&place).await.map_err(|error| anyhow!(error).context(format!("read {place}")))?.is_none();
        if new {
            if place.kind == DEPLOYMENT {
                // What its pods make.
                made.objects.push(Place::within(SECRET, namespace, IDENTITY_SECRET));
            }
            made.objects.push(place.clone());
        }
        cluster.apply(&manifest).await?;
        if is_definition(&manifest) {
            cluster.await_established(&place.name, ESTABLISHED).await?;
        }
    }
    Ok(())
}

/// Until the gateway says so.
async fn connected(args: &ConnectArgs, prepared: &Prepared, steps: &mut Steps) -> Outcome<Value> {
    let end = Instant::now() + args.onboarding_timeout;
    let mut last = String::new();
    loop {
        let (resource, status) = match find(&prepared.api, &prepared.id).await {
            Ok(found) => {
                let resource = found.resource.unwrap_or_default();
                let status = resource["properties"]["connectivityStatus"].as_str().unwrap_or("gone").to_owned();
                (resource, status)
            }
            // A gateway or a network that is away for a moment takes nothing back that was made.
            Err(failure) if !failure.api().is_some_and(|error| error.status.is_client_error()) => {
                (Value::Null, "not known, the gateway does not answer".to_owned())
            }
            Err(failure) => return Err(failure),
        };
        if status == "Connected" {
            return Ok(resource);
        }
        let agents = prepared.cluster.agents(&prepared.namespace).await.unwrap_or_default();
        let ready = agents.iter().filter(|pod| pod.ready).count();
        let state = format!("{status}; {ready} of {} pods are ready", agents.len());
        if state != last {
            steps.note(&state);
            last = state;
        }
        if Instant::now() > end {
            let why = prepared.cluster.why_not_ready(&prepared.namespace).await.join("\n");
            let error = anyhow!(
                "the agents have not connected within {} s: the resource is {status}\n{why}",
                args.onboarding_timeout.as_secs()
            );
            return Err(Failure::from(error).hint(
                "towline connect --no-wait leaves the agents there to be looked at: towline troubleshoot; --onboarding-timeout waits for longer",
            ));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Takes back what was made; says what could not be.
pub async fn take_back(prepared: &Prepared, made: Made, interrupt: &mut Interrupt) -> Option<String> {
    if made.is_nothing() {
        return None;
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
        let (group, name) = (prepared.id.resource_group().unwrap_or_default(), prepared.id.name());
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
