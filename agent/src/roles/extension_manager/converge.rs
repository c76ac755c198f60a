//! Makes the cluster what is wanted, one extension after the other, because helm runs one at a time: installs, upgrades,
//! repairs and takes down. What is begun is written down first, so that whoever comes after a killed agent knows it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use catalogue::{index::Scope, verify::Verified};
use futures_util::future::BoxFuture;
use kube::Client;
use serde_json::Value;
use types::agent_api::ObjectState;

use super::{
    catalogue::{Catalogue, Known},
    explain::{self, Finding, Look},
    follow::Follow,
    gateway::Gateway,
    helm::{Acting, Helm, HelmError, Install, On},
    place,
    plan::{self, Action, Circumstances, Facts, Properties, Recovery, Target},
    releases::{self, FINGERPRINT, OWNER, Release, Releases, Stage},
    state::{Extension, Happened, Installed, Phase, Problem, Status},
    store::Store,
    values,
};
use crate::{
    config::Extensions,
    identity::{clock::SharedClock, spell},
    roles::health::Reporter,
};

/// How often releases are looked at though nothing changed: what somebody changed with helm is seen in this time.
const LOOK: Duration = Duration::from_secs(30);
/// How soon again while something waits.
const LOOK_SOON: Duration = Duration::from_secs(3);
/// Changes that come together are one.
const TOGETHER: Duration = Duration::from_millis(200);
/// How often everything is read anew from the apiserver.
const RELOAD: Duration = Duration::from_secs(60);
/// How long what the cluster is is believed.
const FACTS: Duration = Duration::from_secs(120);
/// How long an extension waits for the catalogue or its protected settings before it is told to have failed.
const WAIT: Duration = Duration::from_secs(180);
/// How often a running helm's objects are looked at.
const WATCH: Duration = Duration::from_secs(3);

/// Makes the cluster what is wanted.
pub struct Converge<'a, G> {
    /// To the apiserver.
    pub client: &'a Client,
    /// What is wanted, and how far it is.
    pub store: &'a Store,
    /// What may be installed.
    pub catalogue: &'a Catalogue<'a, G>,
    /// Why protected settings are not here.
    pub follow: &'a Follow<'a, G>,
    /// The program.
    pub helm: &'a Helm,
    /// What the operator of the cluster allows.
    pub settings: &'a Extensions,
    /// The distribution, where the operator named it.
    pub distribution: Option<String>,
    /// The time of day.
    pub clock: SharedClock,
    /// How the role fares.
    pub health: Reporter,
    /// Since when an extension waits, by name and generation.
    pub waits: Mutex<HashMap<(String, i64), Instant>>,
}

/// What is being installed.
struct Job<'a> {
    extension: &'a Extension,
    target: &'a Target,
    verified: &'a Verified,
    phase: Phase,
    recovery: Option<Recovery>,
    attempt: &'a str,
}

/// How a run of helm ended.
enum Ran {
    Done(Result<(), HelmError>),
    /// Something else is wanted by now.
    Superseded,
}

fn operation(extension: &Extension) -> Option<&str> {
    extension.wanted.operation.as_deref()
}

impl<G: Gateway> Converge<'_, G> {
    /// Works for ever.
    pub async fn run(&self) {
        let (mut changes, mut known) = (self.store.changes(), self.catalogue.known());
        let (mut loaded, mut facts): (Option<Instant>, Option<(Instant, Facts)>) = (None, None);
        let mut helm = None;
        loop {
            changes.mark_unchanged();
            known.mark_unchanged();
            let mut problem = None;
            if helm.is_none() {
                match self.helm.version().await {
                    Ok(version) => helm = Some(version),
                    Err(err) => problem = Some(("HelmMissing", err.to_string())),
                }
            }
            if loaded.is_none_or(|at| at.elapsed() >= RELOAD) {
                match self.store.load().await {
                    Ok(()) => loaded = Some(Instant::now()),
                    Err(err) => problem = problem.or(Some(("NotLoaded", err))),
                }
            }
            if facts.as_ref().is_none_or(|(at, _)| at.elapsed() >= FACTS) {
                match place::facts(self.client, self.distribution.clone()).await {
                    Ok(found) => facts = Some((Instant::now(), found)),
                    Err(err) => problem = problem.or(Some((err.code, err.message))),
                }
            }
            let mut waits = false;
            if let (Some(_), Some((_, facts)), Some(_)) = (loaded, &facts, &helm) {
                match releases::list(self.client, None, &format!(",{OWNER}")).await {
                    Ok(releases) => waits = self.pass(facts, &releases).await,
                    Err(err) => problem = problem.or(Some(("ReleasesNotRead", err))),
                }
            }
            self.says(problem, &known.borrow());
            let wait = if waits { LOOK_SOON } else { LOOK };
            let changed = async {
                tokio::select! {
                    _ = changes.changed() => {}
                    _ = known.changed() => {}
                }
                tokio::time::sleep(TOGETHER).await;
            };
            let _ = tokio::time::timeout(wait, changed).await;
        }
    }

    fn says(&self, problem: Option<(&'static str, String)>, known: &Known) {
        let follow = self.follow.problem.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let catalogue = known.problem.as_ref().map(|problem| (problem.code, problem.message.clone()));
        let first = problem.or_else(|| follow.map(|message| ("NotFollowed", message))).or(catalogue);
        match first {
            Some((reason, message)) => self.health.failing(reason, &message),
            None => self.health.running(),
        }
    }

    /// Looks at each; whether one waits for something.
    async fn pass(&self, facts: &Facts, releases: &Releases) -> bool {
        let mut waits = false;
        for extension in self.store.all() {
            // What changed since is looked at in the next pass, and what helm does now is long.
            let Some(extension) = self.store.get(&extension.name) else { continue };
            waits |= if extension.wanted.deleting {
                let deleted: BoxFuture<'_, bool> = Box::pin(self.delete(&extension));
                deleted.await
            } else {
                self.step(&extension, facts, releases).await
            };
        }
        let generations: HashMap<_, _> =
            self.store.all().into_iter().map(|one| (one.name.clone(), one.wanted.generation)).collect();
        let mut waiting = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|(name, generation), _| generations.get(name) == Some(generation));
        waits
    }

    async fn save(&self, name: &str, status: &Status) {
        if let Err(problem) = self.store.set_status(name, status).await {
            tracing::warn!(extension = name, problem, "the status of an extension is not written");
        }
    }

    async fn fail(&self, extension: &Extension, attempt: &str, problem: &Problem) {
        let (now, generation) = (self.clock.now(), extension.wanted.generation);
        let known = self.store.get(&extension.name).map(|one| one.status).unwrap_or_else(|| extension.status.clone());
        let told = known.error_info.as_ref().is_some_and(|error| error.code == problem.code);
        let same = known.state == Some(ObjectState::Failed) && known.observed_generation == generation && told;
        if same && known.is_put_off(attempt, now) {
            return;
        }
        let mut status = known;
        status.failed(generation, attempt, problem, now);
        let phase = phase_of(extension);
        let happened = Happened { phase, warning: true, reason: problem.code, message: &problem.message, object: None };
        status.event(operation(extension), &happened, now);
        tracing::warn!(
            extension = extension.name,
            code = problem.code,
            problem = problem.message,
            "an extension failed"
        );
        self.save(&extension.name, &status).await;
    }

    /// It is being worked at.
    fn begun(&self, extension: &Extension) -> Status {
        let mut status = extension.status.clone();
        status.observed_generation = extension.wanted.generation;
        status.state = Some(if extension.wanted.deleting {
            ObjectState::Deleting
        } else if status.current_version.is_some() {
            ObjectState::Updating
        } else {
            ObjectState::Creating
        });
        status.error_info = None;
        status
    }

    /// Waits for something that comes by itself; not for ever.
    async fn wait(&self, extension: &Extension, code: &str, problem: Problem, at_once: bool) -> bool {
        let key = (extension.name.clone(), extension.wanted.generation);
        let since = *self.waits.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_insert_with(Instant::now);
        if at_once || since.elapsed() >= WAIT {
            let attempt = format!("{code}/{}", extension.wanted.generation);
            self.fail(extension, &attempt, &problem).await;
            return false;
        }
        if extension.status.state != Some(ObjectState::Failed)
            || extension.status.observed_generation != extension.wanted.generation
        {
            let mut status = self.begun(extension);
            status.line(code, "Waiting", "Information", &problem.message, self.clock.now());
            self.save(&extension.name, &status).await;
        }
        true
    }

    async fn step(&self, extension: &Extension, facts: &Facts, releases: &Releases) -> bool {
        let generation = extension.wanted.generation;
        let properties = match Properties::of(extension) {
            Ok(properties) => properties,
            Err(problem) => {
                self.fail(extension, &format!("properties/{generation}"), &problem).await;
                return false;
            }
        };
        let known = self.catalogue.usable();
        let Some(verified) = known.verified else {
            let is_settled = extension.status.observed_generation == generation
                && extension.status.state.is_some_and(ObjectState::is_end);
            if is_settled {
                return false;
            }
            self.catalogue.look_soon();
            let none = || Problem::passes("CatalogueUnreachable", "the gateway's catalogue has not come yet");
            let problem = known.problem.unwrap_or_else(none);
            let at_once = !problem.passes;
            return self.wait(extension, "WaitingForCatalogue", problem, at_once).await;
        };
        let others = self.store.all();
        let here = Circumstances {
            index: verified.index(),
            facts,
            others: &others,
            namespace: self.store.namespace(),
            allowed: self.settings.allows(&properties.extension_type),
        };
        let target = match Target::of(extension, &properties, &here) {
            Ok(target) => target,
            Err(problem) => {
                if matches!(problem.code, "UnknownType" | "UnknownVersion" | "NoVersion") && !self.is_failed(extension)
                {
                    // The gateway may have a newer index than this cluster knows.
                    self.catalogue.look_soon();
                }
                let attempt = format!("target/{generation}/{}", verified.index().revision);
                self.fail(extension, &attempt, &problem).await;
                return false;
            }
        };
        let attempt = target.attempt(extension, verified.index());
        if extension.status.is_put_off(&attempt, self.clock.now()) {
            return false;
        }
        if let Some(tag) = &extension.wanted.protected
            && self.store.tag(&extension.name).as_ref() != Some(tag)
        {
            let why = self.follow.why_unprotected(&extension.name, tag);
            let at_once = why.as_ref().is_some_and(|why| why.code == "ProtectedSettingsGone");
            let none = || Problem::passes("ProtectedSettingsNotFetched", "the protected settings have not come yet");
            return self.wait(extension, "WaitingForProtectedSettings", why.unwrap_or_else(none), at_once).await;
        }
        self.compare(extension, &properties, &target, &attempt, &verified, releases).await;
        false
    }

    fn is_failed(&self, extension: &Extension) -> bool {
        extension.status.state == Some(ObjectState::Failed)
            && extension.status.observed_generation == extension.wanted.generation
    }

    async fn compare(
        &self,
        extension: &Extension,
        properties: &Properties,
        target: &Target,
        attempt: &str,
        verified: &Verified,
        releases: &Releases,
    ) {
        let name = &extension.name;
        let key = (target.namespace.clone(), name.clone());
        let reports = properties.only_reports();
        let first = plan::compare(extension, target, releases.get(&key), reports);
        // Before anything is done: what is there now, also of others.
        let action = match first {
            Ok(Action::Settled(revision)) => Ok(Action::Settled(revision)),
            _ => match releases::one(self.client, &target.namespace, name).await {
                Ok(now) => plan::compare(extension, target, now.as_ref(), reports),
                Err(err) => Err(Problem::passes("ReleasesNotRead", err)),
            },
        };
        match action {
            Err(problem) => self.fail(extension, attempt, &problem).await,
            Ok(Action::Settled(revision)) => self.settled(extension, target, revision).await,
            Ok(Action::Drifted(revision)) => self.drifted(extension, revision).await,
            Ok(Action::Run(phase, recovery)) => {
                let job = Job { extension, target, verified, phase, recovery, attempt };
                let installed: BoxFuture<'_, ()> = Box::pin(self.install(&job));
                installed.await;
            }
        }
    }

    async fn settled(&self, extension: &Extension, target: &Target, revision: u64) {
        let mut status = extension.status.clone();
        status.succeeded(extension.wanted.generation);
        status.record.drifted = None;
        let version = target.offered.version.to_string();
        status.current_version = Some(version.clone());
        status.record.installed = Some(Installed {
            namespace: target.namespace.clone(),
            namespaced: target.scope == Scope::Namespace,
            version,
            fingerprint: target.fingerprint.clone(),
            revision,
        });
        if status == extension.status {
            return;
        }
        self.installed_line(&mut status, target);
        self.save(&extension.name, &status).await;
    }

    fn installed_line(&self, status: &mut Status, target: &Target) {
        let message = format!(
            "the chart {} {} is installed in the namespace {}",
            target.offered.chart.name, target.offered.version, target.namespace
        );
        status.statuses.retain(|line| line.level != "Error" && !line.code.starts_with("Waiting"));
        status.line("Installed", "Installed", "Information", &message, self.clock.now());
    }

    async fn drifted(&self, extension: &Extension, revision: Option<u64>) {
        let seen = revision.unwrap_or(0);
        let settled = extension.status.observed_generation == extension.wanted.generation;
        if extension.status.record.drifted == Some(seen) && settled {
            return;
        }
        let mut status = extension.status.clone();
        status.succeeded(extension.wanted.generation);
        status.record.drifted = Some(seen);
        let message = match revision {
            Some(revision) => {
                format!("somebody changed the release: it has revision {revision}, which is not of this extension")
            }
            None => "somebody removed the release".to_owned(),
        };
        let message = format!("{message}; it is not put right, because reconcile is \"report\"");
        let now = self.clock.now();
        status.line("Drifted", "Changed by somebody else", "Warning", &message, now);
        let happened =
            Happened { phase: Phase::Repair, warning: true, reason: "Drifted", message: &message, object: None };
        status.event(operation(extension), &happened, now);
        self.save(&extension.name, &status).await;
    }

    async fn install(&self, job: &Job<'_>) {
        let (extension, target) = (job.extension, job.target);
        let chart = format!("the chart {} {}", target.offered.chart.name, target.offered.version);
        let step = match job.phase {
            Phase::Create => format!("the installation of {chart}"),
            Phase::Repair => format!("the repair of {chart}"),
            _ => format!("the upgrade to {chart}"),
        };
        let mut status = self.begun(extension);
        let now = self.clock.now();
        status.line("Working", "Working", "Information", &format!("{step} in the namespace {}", target.namespace), now);
        let happened = Happened { phase: job.phase, warning: false, reason: "Started", message: &step, object: None };
        status.event(operation(extension), &happened, now);
        self.save(&extension.name, &status).await;
        tracing::info!(extension = extension.name, version = %target.offered.version, namespace = target.namespace, phase = job.phase.as_str(), "helm installs a chart");
        let before = status.record.installed.clone().filter(|installed| installed.revision > 0);
        let ended = match self.prepare(job).await {
            Ok((acting, archive, values)) => {
                self.run_helm(job, &mut status, &step, &acting, archive.bytes(), &values).await
            }
            Err(problem) => Err(Some(problem)),
        };
        match ended {
            Ok(()) => self.finished(job, status, &step).await,
            // Something else is wanted: the next pass does that.
            Err(None) => {}
            Err(Some(problem)) => self.rolled_back(job, problem, before).await,
        }
    }

    async fn prepare(
        &self,
        job: &Job<'_>,
    ) -> Result<(Acting, std::sync::Arc<catalogue::verify::VerifiedChart>, Value), Problem> {
        let (extension, target) = (job.extension, job.target);
        let archive = self.catalogue.chart(job.verified, &target.extension_type, &target.offered).await?;
        let mut settings: BTreeMap<String, String> = target.settings.clone();
        if extension.wanted.protected.is_some() {
            let protected = self.store.protected(&extension.name).await;
            let protected = protected.map_err(|err| Problem::passes("ProtectedSettingsNotRead", err))?;
            if let Some(kind) = job.verified.index().extension_type(&target.extension_type) {
                plan::judge_settings(kind, &protected)?;
            }
            settings.extend(protected);
        }
        let values = values::nested(&settings, archive.chart().values_schema.as_ref());
        let values = values.map_err(|why| Problem::stays("InvalidSettings", why))?;
        place::namespace(self.client, &target.namespace, &extension.name).await?;
        let acting = match target.scope {
            Scope::Cluster => Acting::Self_,
            Scope::Namespace => place::acting(self.client, &target.namespace, &extension.name).await?,
        };
        Ok((acting, archive, values))
    }

    async fn run_helm(
        &self,
        job: &Job<'_>,
        status: &mut Status,
        step: &str,
        acting: &Acting,
        archive: &[u8],
        values: &Value,
    ) -> Result<(), Option<Problem>> {
        let (extension, target) = (job.extension, job.target);
        let on = On { release: &extension.name, namespace: &target.namespace, acting };
        if let Some(recovery) = job.recovery {
            self.recover(extension, status, &on, recovery).await.map_err(Some)?;
        }
        status.record.installed = Some(Installed {
            namespace: target.namespace.clone(),
            namespaced: target.scope == Scope::Namespace,
            version: target.offered.version.to_string(),
            fingerprint: target.fingerprint.clone(),
            revision: 0,
        });
        self.save(&extension.name, status).await;
        let labels = [(OWNER, extension.name.clone()), (FINGERPRINT, target.fingerprint.clone())];
        let install = Install { chart: archive, values, labels: &labels };
        let since = spell(self.clock.now() - Duration::from_secs(1));
        let look = Look { client: self.client, namespace: &target.namespace, release: &extension.name, since: &since };
        let mut seen = Vec::new();
        match self.watched(job, status, &look, &mut seen, Box::pin(self.helm.upgrade(&on, &install))).await {
            Ran::Done(Ok(())) => Ok(()),
            Ran::Superseded => Err(None),
            Ran::Done(Err(err)) => {
                if seen.is_empty() {
                    seen = look.findings().await;
                }
                Err(Some(explained(step, &err, &seen)))
            }
        }
    }

    /// Runs helm, and meanwhile tells what is not ready.
    async fn watched(
        &self,
        job: &Job<'_>,
        status: &mut Status,
        look: &Look<'_>,
        seen: &mut Vec<Finding>,
        mut run: BoxFuture<'_, Result<(), HelmError>>,
    ) -> Ran {
        let (extension, mut changes) = (job.extension, self.store.changes());
        let mut ticks = tokio::time::interval(WATCH);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks.reset();
        loop {
            tokio::select! {
                biased;
                ended = &mut run => return Ran::Done(ended),
                _ = changes.changed() => {
                    let now = self.store.get(&extension.name);
                    let same = |now: Extension| {
                        let (now, then) = (now.wanted, &extension.wanted);
                        now.generation == then.generation && now.deleting == then.deleting && now.id == then.id
                    };
                    if !now.is_some_and(same) {
                        tracing::info!(extension = extension.name, "something else is wanted: helm is ended");
                        return Ran::Superseded;
                    }
                }
                _ = ticks.tick() => {
                    let found = look.findings().await;
                    if found.is_empty() || found == *seen {
                        continue;
                    }
                    let now = self.clock.now();
                    for one in &found {
                        let object = Some(one.object.as_str());
                        let happened = Happened { phase: job.phase, warning: true, reason: one.code, message: &one.message, object };
                        status.event(operation(extension), &happened, now);
                    }
                    let first = &found[0];
                    status.line("NotReady", "Not ready yet", "Warning", &format!("{}: {}", first.object, first.message), now);
                    self.save(&extension.name, status).await;
                    *seen = found;
                }
            }
        }
    }

    async fn recover(
        &self,
        extension: &Extension,
        status: &mut Status,
        on: &On<'_>,
        recovery: Recovery,
    ) -> Result<(), Problem> {
        let (message, done) = match recovery {
            Recovery::Rollback(revision) => {
                let message = format!("an upgrade was cut off: back to revision {revision}");
                (message, self.helm.rollback(on, revision).await)
            }
            Recovery::Uninstall => (
                "an installation was cut off or failed: what there is of it is taken down".to_owned(),
                self.helm.uninstall(on).await,
            ),
        };
        tracing::info!(extension = extension.name, message, "a release is recovered");
        let happened =
            Happened { phase: Phase::Rollback, warning: true, reason: "Recovered", message: &message, object: None };
        status.event(operation(extension), &happened, self.clock.now());
        done.map_err(|err| explained("the recovery of a release that was cut off", &err, &[]))
    }

    async fn finished(&self, job: &Job<'_>, mut status: Status, step: &str) {
        let (extension, target) = (job.extension, job.target);
        let release = releases::one(self.client, &target.namespace, &extension.name).await;
        let revision = match release {
            Ok(Some(release)) if release.last().stage == Stage::Deployed => release.last().number,
            // The next pass sees what it is.
            _ => 0,
        };
        if let Some(installed) = &mut status.record.installed {
            installed.revision = revision;
        }
        status.current_version = Some(target.offered.version.to_string());
        status.record.drifted = None;
        status.succeeded(extension.wanted.generation);
        status.statuses.retain(|line| !matches!(line.code.as_str(), "Working" | "NotReady"));
        self.installed_line(&mut status, target);
        let message = format!("{step} is done");
        let happened =
            Happened { phase: job.phase, warning: false, reason: "Succeeded", message: &message, object: None };
        status.event(operation(extension), &happened, self.clock.now());
        tracing::info!(extension = extension.name, version = %target.offered.version, revision, "a chart is installed");
        self.save(&extension.name, &status).await;
    }

    /// helm failed: what is there now is what it went back to.
    async fn rolled_back(&self, job: &Job<'_>, mut problem: Problem, before: Option<Installed>) {
        let (extension, target) = (job.extension, job.target);
        let Some(known) = self.store.get(&extension.name) else { return };
        let mut status = known.status;
        let release = releases::one(self.client, &target.namespace, &extension.name).await.ok().flatten();
        let last = release.as_ref().map(Release::last).filter(|last| last.stage == Stage::Deployed);
        let back = before.zip(last).filter(|(before, last)| last.fingerprint.as_deref() == Some(&before.fingerprint));
        match back {
            Some((before, last)) => {
                if last.number != before.revision && job.phase != Phase::Repair {
                    // It was tried, and the one from before runs again.
                    problem.passes = false;
                    let message = format!("{} is installed again", before.version);
                    problem.message.push_str(&format!(
                        "\nThe version {message}; {} is not tried again until the extension or the catalogue changes.",
                        target.offered.version
                    ));
                    let happened = Happened {
                        phase: Phase::Rollback,
                        warning: true,
                        reason: "RolledBack",
                        message: &message,
                        object: None,
                    };
                    status.event(operation(extension), &happened, self.clock.now());
                }
                status.current_version = Some(before.version.clone());
                status.record.installed = Some(Installed { revision: last.number, ..before });
            }
            None if release.is_none() => {
                status.current_version = None;
                status.record.installed = None;
            }
            None => {}
        }
        status.statuses.retain(|line| !matches!(line.code.as_str(), "Working" | "NotReady"));
        self.save(&extension.name, &status).await;
        self.fail(extension, job.attempt, &problem).await;
    }

    /// Takes an extension down.
    async fn delete(&self, extension: &Extension) -> bool {
        let generation = extension.wanted.generation;
        if extension.status.state == Some(ObjectState::Deleted) && extension.status.observed_generation == generation {
            return false;
        }
        let attempt = format!("delete/{}", extension.wanted.generation);
        if extension.status.is_put_off(&attempt, self.clock.now()) {
            return false;
        }
        let mut status = self.begun(extension);
        let now = self.clock.now();
        status.line("Working", "Working", "Information", "it is being taken down", now);
        let happened = Happened {
            phase: Phase::Delete,
            warning: false,
            reason: "Started",
            message: "it is being taken down",
            object: None,
        };
        status.event(operation(extension), &happened, now);
        self.save(&extension.name, &status).await;
        tracing::info!(extension = extension.name, "an extension is taken down");
        if let Err(problem) = self.take_down(extension).await {
            self.fail(extension, &attempt, &problem).await;
            return false;
        }
        status.succeeded(extension.wanted.generation);
        status.state = Some(ObjectState::Deleted);
        status.current_version = None;
        status.record.installed = None;
        status.statuses.clear();
        let happened =
            Happened { phase: Phase::Delete, warning: false, reason: "Succeeded", message: "it is gone", object: None };
        status.event(operation(extension), &happened, self.clock.now());
        self.save(&extension.name, &status).await;
        false
    }

    /// Where its release is, and whether helm acts with the rights of that namespace alone. Never by a label that others
    /// can write: helm removes whatever a release's Secret says.
    fn whereabouts(&self, extension: &Extension) -> Option<(String, bool)> {
        if let Some(installed) = &extension.status.record.installed {
            return Some((installed.namespace.clone(), installed.namespaced));
        }
        let verified = self.catalogue.known().borrow().verified.clone()?;
        let properties = Properties::of(extension).ok()?;
        let kind = verified.index().extension_type(&properties.extension_type)?;
        let (scope, namespace) = plan::place(kind, &properties).ok()?;
        plan::judge_namespace(&namespace, self.store.namespace()).ok()?;
        Some((namespace, scope == Scope::Namespace))
    }

    async fn take_down(&self, extension: &Extension) -> Result<(), Problem> {
        let name = &extension.name;
        if let Some((namespace, namespaced)) = self.whereabouts(extension) {
            let release = releases::one(self.client, &namespace, name).await;
            let release = release.map_err(|err| Problem::passes("ReleasesNotRead", err))?;
            if release.is_some_and(|release| release.owner.as_deref() == Some(name)) {
                let acting = match namespaced {
                    true => place::acting(self.client, &namespace, name).await?,
                    false => Acting::Self_,
                };
                let on = On { release: name, namespace: &namespace, acting: &acting };
                let removed = self.helm.uninstall(&on).await;
                removed.map_err(|err| explained("taking the release down", &err, &[]))?;
            }
            place::clean(self.client, &namespace, name).await?;
        }
        self.store.unprotect(name).await.map_err(|err| Problem::passes("SecretNotRemoved", err))
    }
}

fn phase_of(extension: &Extension) -> Phase {
    if extension.wanted.deleting {
        Phase::Delete
    } else if extension.status.current_version.is_some() {
        Phase::Upgrade
    } else {
        Phase::Create
    }
}

fn explained(step: &str, err: &HelmError, seen: &[Finding]) -> Problem {
    match err {
        HelmError::Failed(_) | HelmError::Late(_) => explain::explain(step, &err.to_string(), seen),
        other => Problem::passes("HelmNotRun", format!("{step} failed: {other}")),
    }
}
