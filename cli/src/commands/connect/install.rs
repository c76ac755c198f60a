//! Makes, applies and waits. Whatever is made is noted before it is asked for, and each request is waited for to its
//! end, so that a run that fails or is interrupted takes back all of it (docs/features.md I3).

use std::time::Duration;

use anyhow::anyhow;
use serde_json::Value;
use types::api::ResourceId;

use super::{
    Args,
    key::OnboardingKey,
    network,
    precheck::{Prepared, stays},
    put::put,
    resource::{self, group_of},
    token::{self, OneTime, is_doubtful},
    wait,
};
use crate::{
    commands::{diagnoser::Diagnoser, interrupt::Interrupt, steps::Steps},
    failure::{Advised, Failure, Outcome},
    kubernetes::{
        Place,
        installed::{Installed, RUN_ANNOTATION, Whole, is_definition},
        place::{DEPLOYMENT, NAMESPACE, SECRET},
        turn::Turn,
    },
    manifests::{self, IDENTITY_SECRET, ONBOARDING_SECRET},
    terminal::say,
};

/// How long a definition may take to be served.
pub const ESTABLISHED: Duration = Duration::from_secs(60);

/// Why a run did not come to its end.
pub enum Stopped {
    /// The user pressed Ctrl+C.
    Interrupted,
    /// A step failed.
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
    /// The resource group, where the gateway said that it is new: one that others made in between is theirs.
    group: Option<ResourceId>,
    /// The resource's public key.
    resource: Option<String>,
    /// By a one-time token: who holds it deletes nothing, and goes on from the key that is there.
    enrolled: Enrolled,
    /// Whether the namespace was asked for: if this run made it, it says so by an annotation.
    namespace: bool,
    objects: Vec<Place>,
    /// Held until all is taken back.
    turn: Option<Turn>,
}

/// What became of a one-time token.
#[derive(Default, PartialEq, Eq, Clone, Copy)]
enum Enrolled {
    /// It was not used, or there is none.
    #[default]
    Not,
    /// It was sent, and what was made of it is not known.
    Perhaps,
    /// It is used up.
    Done,
}

impl Made {
    /// Lets other runs have their turn.
    pub async fn give_up_turn(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.give_up().await;
        }
    }

    /// Whether what this run made in the cluster may be taken away by it: nobody else has the turn.
    async fn may_take_back(&mut self) -> anyhow::Result<bool> {
        match &mut self.turn {
            Some(turn) if turn.has_begun() => turn.holds().await,
            // It failed or was stopped before its turn: what may be there is an empty namespace.
            Some(turn) => turn.try_once().await,
            None => Ok(false),
        }
    }

    fn is_nothing(&self) -> bool {
        self.group.is_none()
            && self.resource.is_none()
            && self.enrolled == Enrolled::Not
            && !self.namespace
            && self.objects.is_empty()
    }
}

/// From the key to a connected cluster; returns the resource.
pub async fn run(
    args: &Args,
    prepared: &mut Prepared,
    made: &mut Made,
    steps: &mut Steps,
    interrupt: &mut Interrupt,
) -> Result<Value, Stopped> {
    // The turn comes first: a run that has to wait has made nothing at the gateway.
    let begun = interrupt.unless_heard(begin(prepared, made)).await;
    begun.ok_or(Stopped::Interrupted)??;
    if !args.skip_network_check {
        network(args, prepared, made, steps, interrupt).await?;
    }
    let key = tokio::select! {
        biased;
        () = interrupt.heard() => return Err(Stopped::Interrupted),
        key = steps.run("Making the onboarding key", key(prepared)) => key?,
    };
    if prepared.makes_group {
        let group = group_of(&prepared.id)?;
        let making = resource::put_group(&prepared.api, &group, &prepared.location);
        if steps.run("Making the resource group", making).await? {
            made.group = Some(group);
        }
    }
    go_on(made, interrupt)?;
    prepared.values.identity.onboarding_key = key.private.clone();
    if prepared.token.is_some() && prepared.key.is_none() && prepared.replaced.is_some() {
        // The new key goes where theirs is, before the token is used.
        steps.run("Removing the agents that are there", remove_replaced(prepared)).await?;
        go_on(made, interrupt)?;
    }
    let made_resource = resource(args, prepared, made, &key, steps).await?;
    go_on(made, interrupt)?;
    steps.begin("Installing the agents");
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

/// Before anything is made at the gateway: whether pods reach it. The namespace stays for what follows.
async fn network(
    args: &Args,
    prepared: &Prepared,
    made: &mut Made,
    steps: &mut Steps,
    interrupt: &mut Interrupt,
) -> Result<(), Stopped> {
    let (cluster, namespace) = (&prepared.cluster, &prepared.namespace);
    let diagnoser = Diagnoser::of_values(cluster, &prepared.values, namespace);
    // What is taken back goes in the other order.
    made.objects = diagnoser.places().into_iter().rev().collect();
    let checking =
        steps.run("Checking the network from inside the cluster", network::check(&diagnoser, args.onboarding_timeout));
    let told = tokio::select! {
        biased;
        () = interrupt.heard() => return Err(Stopped::Interrupted),
        told = checking => told?,
    };
    told.iter().for_each(|line| steps.note(line));
    diagnoser.remove().await?;
    made.objects.clear();
    go_on(made, interrupt)
}

/// Makes or updates the resource, as somebody or by a one-time token; returns it.
async fn resource(
    args: &Args,
    prepared: &Prepared,
    made: &mut Made,
    key: &OnboardingKey,
    steps: &mut Steps,
) -> Outcome<Value> {
    match &prepared.token {
        Some(token) => match &prepared.enrolled {
            Some(enrolled) => {
                steps.note("the cluster is enrolled already; the token is not needed");
                made.enrolled = Enrolled::Done;
                Ok(enrolled.clone())
            }
            None => enrol(token, args, prepared, made, key, steps).await,
        },
        None => {
            if prepared.before.resource.is_none() {
                made.resource = Some(key.public.clone());
            }
            let put = put(prepared, args, &key.public);
            steps.run("Making the resource", put).await
        }
    }
}

/// The token is good once: the key is in the cluster before it is used, so that a run that breaks off behind that is
/// gone on with.
async fn enrol(
    token: &OneTime,
    args: &Args,
    prepared: &Prepared,
    made: &mut Made,
    key: &OnboardingKey,
    steps: &mut Steps,
) -> Outcome<Value> {
    // One that was typed is in its file.
    if prepared.key.is_none() {
        keep_key(prepared, made).await?;
    }
    let mut result = steps
        .run("Enrolling by the token", token.enrol(&prepared.api, &prepared.id, &prepared.location, args, &key.public))
        .await;
    made.enrolled = match &result {
        Ok(_) => Enrolled::Done,
        Err(failure) if is_doubtful(failure) => Enrolled::Perhaps,
        Err(_) => Enrolled::Not,
    };
    if made.enrolled == Enrolled::Perhaps {
        let asking = token::enrolled(&prepared.api, &prepared.id, key);
        // Only a yes tells anything: what was sent may be done later.
        if let Ok(Some(resource)) = steps.run("Asking whether the cluster is enrolled", asking).await {
            (made.enrolled, result) = (Enrolled::Done, Ok(resource));
        }
    }
    result
}

/// Removes agents that are replaced, their key first: a run that breaks off here leaves none that another takes for its
/// own.
async fn remove_replaced(prepared: &mut Prepared) -> Outcome<()> {
    let Some(there) = prepared.replaced.take() else { return Ok(()) };
    prepared.cluster.delete(&Place::within(SECRET, &there.namespace, ONBOARDING_SECRET)).await?;
    prepared.cluster.uninstall_within(&there.namespace).await?;
    Ok(())
}

/// Makes the namespace where there is none, with a mark of this run. Of two runs that ask for it at once one has made
/// it.
async fn make_namespace(prepared: &Prepared, made: &mut Made, run: &str) -> Outcome<()> {
    let (cluster, namespace) = (&prepared.cluster, &prepared.namespace);
    let place = Place::of(NAMESPACE, namespace);
    if let Some(there) = cluster.get(&place).await? {
        return stays(&there);
    }
    made.namespace = true;
    let mut manifest = manifests::namespace(namespace);
    manifest["metadata"]["annotations"][RUN_ANNOTATION] = run.into();
    match cluster.create(&place, &manifest).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_conflict() => {
            let there = cluster.get(&place).await?;
            there.as_ref().map_or_else(|| Err(error.into()), stays)
        }
        Err(error) => Err(anyhow!(error).context(format!("cannot make {place}")).into()),
    }
}

/// Begins to work in the cluster, before anything but its namespace is made anywhere: from here on no other run works
/// there.
async fn begin(prepared: &Prepared, made: &mut Made) -> Outcome<()> {
    let turn = Turn::new(&prepared.cluster, &prepared.namespace, format!("connect {}", prepared.id.name()))?;
    let run = turn.run().to_owned();
    made.turn = Some(turn);
    make_namespace(prepared, made, &run).await?;
    let Some(turn) = &mut made.turn else { return Ok(()) };
    let taken = turn.take().await;
    let begun = match taken {
        Ok(()) => match prepared.cluster.refuse_during_an_upgrade(&prepared.namespace).await {
            Ok(()) => unchanged(prepared).await,
            Err(failure) => Err(failure),
        },
        Err(error) if error.downcast_ref::<Advised>().is_some() => Err(error.into()),
        Err(error) => return Err(error.into()),
    };
    if begun.is_err() {
        // Who has the turn, or had it in between, uses the namespace too, whichever of the two made it.
        made.namespace = false;
    }
    begun
}

/// Whether what was found before the turn still holds.
async fn unchanged(prepared: &Prepared) -> Outcome<()> {
    let of = |there: &Installed| (there.namespace.clone(), there.cluster_id.clone());
    let before = prepared.installed.as_ref().or(prepared.replaced.as_ref()).map(of);
    if prepared.cluster.installed().await?.as_ref().map(of) == before {
        return Ok(());
    }
    let error = anyhow!("agents were installed or removed in this cluster by another run in between");
    Err(Failure::from(error).hint("run the command again: it begins with what is there now"))
}

async fn keep_key(prepared: &Prepared, made: &mut Made) -> Outcome<()> {
    let (cluster, namespace) = (&prepared.cluster, &prepared.namespace);
    let place = Place::within(SECRET, namespace, prepared.values.onboarding_secret());
    let manifests = manifests::objects(&prepared.values, namespace);
    let manifest = manifests.iter().find(|manifest| Place::of_manifest(manifest).as_ref() == Some(&place));
    let manifest = manifest.ok_or_else(|| anyhow!("the manifests have no {place}"))?;
    if cluster.get(&place).await.map_err(|error| anyhow!(error).context(format!("cannot read {place}")))?.is_none() {
        made.objects.push(place);
    }
    cluster.apply(manifest).await?;
    Ok(())
}

/// Between two steps: whether this run goes on.
fn go_on(made: &Made, interrupt: &Interrupt) -> Result<(), Stopped> {
    if interrupt.is_heard() {
        return Err(Stopped::Interrupted);
    }
    if made.turn.as_ref().is_some_and(Turn::is_lost) {
        let error = anyhow!("another run works in the cluster by now: this one was not heard of for too long");
        return Err(Failure::from(error).hint("run the command again when that one has ended").into());
    }
    Ok(())
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
        cluster.uninstall_within(&there.namespace).await?;
    }
    if !prepared.is_key_of_cluster {
        // A certificate of an earlier key is another cluster's by now.
        cluster.delete(&Place::within(SECRET, namespace, IDENTITY_SECRET)).await?;
    }
    let manifests = manifests::objects(&prepared.values, namespace);
    for manifest in &manifests {
        go_on(made, interrupt)?;
        let place = Place::of_manifest(manifest).ok_or_else(|| anyhow!("a manifest of an unknown kind"))?;
        let new = cluster
            .get(&place)
            .await
            .map_err(|error| anyhow!(error).context(format!("cannot read {place}")))?
            .is_none();
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
        cluster.restart_gitops(namespace, &manifests).await?;
    }
    Ok(())
}

/// Takes back what was made; says what could not be.
pub async fn take_back(prepared: &Prepared, made: &mut Made, interrupt: &mut Interrupt) -> Option<String> {
    if made.is_nothing() {
        return None;
    }
    let (group, name) = (prepared.id.resource_group().unwrap_or_default(), prepared.id.name());
    if made.enrolled == Enrolled::Perhaps {
        return Some(format!(
            "warning: whether the token was used is not known; the key of {name} stays in namespace {}\nhint: run the same command again to continue from here, whether it was used or not",
            prepared.namespace
        ));
    }
    if made.enrolled == Enrolled::Done {
        return Some(format!(
            "warning: the token is used up, {name} is made, and what was installed stays\nhint: run the same command again to continue from here; who may delete it takes it back: towline delete --force -n {name} -g {group}"
        ));
    }
    say("Taking back what was made; Ctrl+C again leaves it.");
    let twice = interrupt.is_heard();
    let left = tokio::select! {
        biased;
        () = async { if twice { interrupt.insisted().await } else { interrupt.heard().await } } => {
            Some("it was not waited for".to_owned())
        }
        result = undo(prepared, made) => result.err().map(|failure| format!("{:#}", failure.into_error())),
    };
    left.map(|why| {
        format!(
            "warning: not all that was made is taken back: {why}\nhint: towline delete --force -n {name} -g {group}"
        )
    })
}

async fn undo(prepared: &Prepared, made: &mut Made) -> Outcome<()> {
    // The resource first: agents stop to ask at once. One failing does not keep the other.
    let resource = match &made.resource {
        Some(key) => resource::take_back(&prepared.api, &prepared.id, key).await,
        None => Ok(()),
    };
    let cluster = undo_in_cluster(prepared, made).await;
    resource?;
    cluster?;
    match &made.group {
        Some(group) => resource::take_back_group(&prepared.api, group).await,
        None => Ok(()),
    }
}

/// Only while nobody else works there: another run may have taken over what this one made.
async fn undo_in_cluster(prepared: &Prepared, made: &mut Made) -> Outcome<()> {
    let objects: Vec<Place> = made.objects.iter().rev().cloned().collect();
    let namespace = &prepared.namespace;
    if !made.namespace && objects.is_empty() {
        return Ok(());
    }
    if !made.may_take_back().await? {
        say(&format!("another run works in namespace {namespace} by now: what this run made there stays"));
        return Ok(());
    }
    let run = made.turn.as_ref().map(Turn::run).filter(|_| made.namespace);
    let whole = run.map_or(Whole::Stays, Whole::Run);
    let left = prepared.cluster.remove(&objects, namespace, whole, true, false).await?;
    match left.first().filter(|_| made.namespace) {
        Some(left) => Err(anyhow!("namespace {namespace} holds what others made: {left}").into()),
        None => Ok(()),
    }
}
