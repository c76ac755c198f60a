//! Makes the cluster what is wanted, one extension after the other, because helm runs one at a time: installs, upgrades,
//! repairs and takes down. What is begun is written down first, so that whoever comes after a killed agent knows it.

use std::{
    collections::BTreeMap,
    sync::PoisonError,
    time::{Duration, Instant, SystemTime},
};

use catalogue::{index::Scope, verify::Verified};
use futures_util::future::BoxFuture;
use kube::Client;
use serde_json::Value;
use types::agent_api::{ObjectState, codes};

use super::{
    Extensions, agents,
    explain::{self, Finding, Look},
    helm::{Acting, Helm, HelmError, Install, On, Others},
    locks, place,
    plan::{self, Action, Circumstances, Facts, Properties, Recovery, Target},
    releases::{self, FINGERPRINT, OWNER, Release, Releases, Stage, VERSION},
    state::{Extension, Fault, Happened, Installed, Phase, Problem, Record, Status},
    store::Store,
    values,
};
use crate::{
    config,
    identity::{clock::SharedClock, spell},
    roles::{
        catalogue::{Catalogue, Known, gateway::Library},
        health::Reporter,
        objects::{
            follow::Follow,
            hidden::Hidden,
            progress::{Progress, WAIT, operation, working},
        },
    },
};

/// How often releases are looked at though nothing changed: what somebody changed with helm is seen in this time.
const LOOK: Duration = Duration::from_secs(30);
/// How soon again while something waits.
const LOOK_SOON: Duration = Duration::from_secs(3);
/// Changes that come together are one.
const TOGETHER: Duration = Duration::from_millis(200);
/// How often everything is read anew from the apiserver.
const RELOAD: Duration = Duration::from_secs(60);
/// Lifetime of cached facts of the cluster.
const FACTS: Duration = Duration::from_secs(120);
/// How long the gateway is asked for a newer index before what this one has not is told to have failed.
const ASKED: Duration = Duration::from_secs(8);
/// How often a running helm's objects are looked at.
const WATCH: Duration = Duration::from_secs(3);
/// Characters of a label's value.
const LABEL_CHARS: usize = 63;

/// Makes the cluster what is wanted.
pub struct Converge<'a, G> {
    /// To the apiserver.
    pub client: &'a Client,
    /// What is wanted, and how far it is.
    pub store: &'a Store,
    /// What may be installed.
    pub catalogue: &'a Catalogue<'a, G>,
    /// Why protected settings are not here.
    pub follow: &'a Follow<'a, G, Extensions>,
    /// Runs Helm, one command at a time.
    pub helm: &'a Helm,
    /// What the operator of the cluster allows.
    pub settings: &'a config::Extensions,
    /// The distribution, where the operator named it.
    pub distribution: Option<String>,
    /// Writes down how far each is.
    pub progress: Progress<'a, Extensions>,
    /// The time of day.
    pub clock: SharedClock,
    /// How the role fares.
    pub health: Reporter,
}

/// What is being installed.
struct Job<'a> {
    extension: &'a Extension,
    target: &'a Target,
    verified: &'a Verified,
    phase: Phase,
    recovery: Option<Recovery>,
    /// There is no revision to go back to.
    fresh: bool,
    /// Changes by others are put right, or only reported.
    others: Others,
}

/// What helm needs.
struct Prepared {
    acting: Acting,
    archive: std::sync::Arc<catalogue::verify::VerifiedChart>,
    values: Value,
    hidden: Hidden,
}

/// How a run of helm ended.
enum Ran {
    Done(Result<(), HelmError>),
    /// Something else is wanted by now.
    Superseded,
}

impl<G: Library> Converge<'_, G> {
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
            let mut waits = None;
            if let (Some(_), Some((_, facts)), Some(_)) = (loaded, &facts, &helm) {
                match releases::list(self.client, None, &format!(",{OWNER}")).await {
                    Ok(releases) => waits = Some(self.pass(facts, &releases).await),
                    Err(err) => problem = problem.or(Some(("ReleasesNotRead", err))),
                }
            }
            if waits.is_none()
                && let Some((code, message)) = problem.as_ref().map(|(code, message)| (*code, message.as_str()))
            {
                self.held_up(code, message).await;
            }
            self.says(problem, &known.borrow());
            let wait = if waits == Some(true) { LOOK_SOON } else { LOOK };
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
        self.health.warnings(self.follow.left_behind(std::iter::empty()).into_iter().collect());
    }

    /// Nothing can be done for any of them now: those that are not as they are wanted say why.
    async fn held_up(&self, code: &'static str, message: &str) {
        for extension in self.store.all() {
            let generation = extension.wanted.generation;
            let has_ended = extension.status.state.is_some_and(ObjectState::is_end);
            if has_ended && extension.status.observed_generation == generation {
                continue;
            }
            let problem = Problem::of(Fault::Cluster, code, message);
            self.progress.fail(&extension, &format!("cluster/{generation}"), &problem).await;
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
        self.progress.forget_waits();
        waits
    }

    /// Takes down what an extension of this name before it left.
    async fn replace(&self, extension: &Extension, since: i64) -> bool {
        let attempt = format!("replace/{}", extension.wanted.generation);
        if extension.status.is_put_off(&attempt, self.clock.now()) {
            return false;
        }
        let status = self.progress.begun(extension);
        self.progress.save(&extension.name, &status).await;
        tracing::info!(extension = extension.name, "an extension that had this name before is taken down");
        if let Err(problem) = self.take_down(extension).await {
            self.progress.fail(extension, &attempt, &problem).await;
            return false;
        }
        let record = Record { since: Some(since), last_event: status.record.last_event, ..Record::default() };
        let fresh = Status { events: status.events, record, ..Status::default() };
        self.progress.save(&extension.name, &working(fresh, &extension.wanted)).await;
        true
    }

    async fn step(&self, extension: &Extension, facts: &Facts, releases: &Releases) -> bool {
        let generation = extension.wanted.generation;
        if let Some(since) = extension.wanted.since.filter(|since| extension.status.record.since != Some(*since)) {
            let replaced: BoxFuture<'_, bool> = Box::pin(self.replace(extension, since));
            return replaced.await;
        }
        let read_back = read_back(extension, releases);
        let extension = read_back.as_ref().unwrap_or(extension);
        let properties = match Properties::of(extension) {
            Ok(properties) => properties,
            Err(problem) => {
                self.progress.fail(extension, &format!("properties/{generation}"), &problem).await;
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
            if self.progress.waited(extension) < WAIT {
                self.catalogue.look_soon();
            }
            let none = || Problem::of(Fault::Gateway, "CatalogueUnreachable", "the catalogue has not come yet");
            let problem = known.problem.unwrap_or_else(none);
            let at_once = !problem.passes;
            return self.progress.wait(extension, "WaitingForCatalogue", problem, at_once).await;
        };
        let others = self.store.all();
        let here = Circumstances {
            index: verified.index(),
            facts,
            others: &others,
            namespace: self.store.namespace(),
            operator: self.settings,
            now_ms: now_ms(self.clock.now()),
        };
        let target = match Target::of(extension, &properties, &here) {
            Ok(target) => target,
            Err(problem) => {
                if matches!(problem.code, "UnknownType" | "UnknownVersion" | "NoVersion") && !self.is_failed(extension)
                {
                    // The gateway may have a newer index than this cluster knows: it is asked first.
                    self.catalogue.look_soon();
                    if self.progress.waited(extension) < ASKED {
                        return self.progress.wait(extension, "WaitingForCatalogue", problem, false).await;
                    }
                }
                let attempt = format!("target/{generation}/{}", verified.index().revision);
                self.progress.fail(extension, &attempt, &problem).await;
                return false;
            }
        };
        let attempt = target.attempt(extension, verified.index());
        if plan::is_left_alone(extension, &attempt, releases, properties.only_reports(), self.clock.now()) {
            return false;
        }
        if let Some(tag) = &extension.wanted.protected
            && self.store.tag(&extension.name).as_ref() != Some(tag)
        {
            let why = self.follow.why_unprotected(&extension.name, tag);
            let at_once = why.as_ref().is_some_and(|why| why.code == codes::PROTECTED_SETTINGS_GONE);
            let message = "the protected settings have not come yet";
            let none = || Problem::of(Fault::Gateway, "ProtectedSettingsNotFetched", message);
            return self
                .progress
                .wait(extension, "WaitingForProtectedSettings", why.unwrap_or_else(none), at_once)
                .await;
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
        // A helm that was begun before this has ended.
        let lately = self.clock.now().checked_sub(self.helm.deadline()).unwrap_or(SystemTime::UNIX_EPOCH);
        let first = plan::compare(extension, target, releases.get(&key), reports, lately);
        let mut fresh = false;
        // Before anything is done: what is there now, also of others.
        let action = match first {
            Ok(Action::Settled(revision)) => Ok(Action::Settled(revision)),
            _ => match releases::one(self.client, &target.namespace, name).await {
                Ok(now) => {
                    fresh = now.is_none();
                    plan::compare(extension, target, now.as_ref(), reports, lately)
                }
                Err(err) => Err(Problem::of(Fault::Cluster, "ReleasesNotRead", err)),
            },
        };
        match action {
            Err(problem) => self.progress.fail(extension, attempt, &problem).await,
            Ok(Action::Settled(revision)) => self.settled(extension, target, revision).await,
            Ok(Action::Drifted(revision)) => self.drifted(extension, revision).await,
            Ok(Action::Run(phase, recovery)) => {
                let fresh = fresh || recovery == Some(Recovery::Uninstall);
                let others = if reports { Others::Kept } else { Others::Overruled };
                let job = Job { extension, target, verified, phase, recovery, fresh, others };
                let installed: BoxFuture<'_, ()> = Box::pin(self.install(&job));
                installed.await;
            }
        }
    }

    async fn settled(&self, extension: &Extension, target: &Target, revision: u64) {
        let mut status = extension.status.clone();
        status.succeeded(extension.wanted.generation);
        status.record.own.drifted = None;
        let version = target.offered.version.to_string();
        status.current_version = Some(version.clone());
        status.record.own.installed = Some(Installed {
            namespace: target.namespace.clone(),
            namespaced: target.scope == Scope::Namespace,
            version,
            fingerprint: target.fingerprint.clone(),
            revision,
            good: revision,
        });
        let is_same = status == extension.status;
        if !is_same {
            self.installed_line(&mut status, target);
        }
        later_line(&mut status, target, self.clock.now());
        if !is_same || status != extension.status {
            self.progress.save(&extension.name, &status).await;
        }
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
        if extension.status.record.own.drifted == Some(seen) && settled {
            return;
        }
        let mut status = extension.status.clone();
        status.succeeded(extension.wanted.generation);
        status.record.own.drifted = Some(seen);
        let message = match revision {
            Some(revision) => {
                format!(
                    "the release was changed from outside: it has revision {revision}, which this extension did not make"
                )
            }
            None => "the release was removed from outside".to_owned(),
        };
        let message = format!("{message}; it is not put right, because reconcile is \"report\"");
        let now = self.clock.now();
        status.line("Drifted", "Changed by somebody else", "Warning", &message, now);
        let happened =
            Happened { phase: Phase::Repair, warning: true, reason: "Drifted", message: &message, object: None };
        status.event(operation(extension), &happened, now);
        self.progress.save(&extension.name, &status).await;
    }

    async fn install(&self, job: &Job<'_>) {
        let (extension, target) = (job.extension, job.target);
        let chart = format!("the chart {} {}", target.offered.chart.name, target.offered.version);
        let step = match job.phase {
            Phase::Create => format!("the installation of {chart}"),
            Phase::Repair => format!("the repair of {chart}"),
            _ => format!("the upgrade to {chart}"),
        };
        let mut status = self.progress.begun(extension);
        let now = self.clock.now();
        status.line("Working", "Working", "Information", &format!("{step} in the namespace {}", target.namespace), now);
        let happened = Happened { phase: job.phase, warning: false, reason: "Started", message: &step, object: None };
        status.event(operation(extension), &happened, now);
        self.progress.save(&extension.name, &status).await;
        tracing::info!(extension = extension.name, version = %target.offered.version, namespace = target.namespace, phase = job.phase.as_str(), "helm installs a chart");
        let before = status.record.own.installed.clone().filter(|installed| installed.revision > 0);
        let ended = match self.prepare(job).await {
            Ok(prepared) => self.run_helm(job, &mut status, &step, &prepared).await,
            Err(problem) => Err(Some(problem)),
        };
        match ended {
            Ok(()) => self.finished(job, status, &step).await,
            // Something else is wanted: the next pass does that.
            Err(None) => {}
            Err(Some(problem)) => self.rolled_back(job, problem, before).await,
        }
    }

    async fn prepare(&self, job: &Job<'_>) -> Result<Prepared, Problem> {
        let (extension, target) = (job.extension, job.target);
        let archive = self.catalogue.chart(job.verified, &target.extension_type, &target.offered).await?;
        let mut settings: BTreeMap<String, String> = target.settings.clone();
        let mut hidden = Hidden::default();
        if extension.wanted.protected.is_some() {
            let protected = self.store.protected(&extension.name).await;
            let protected = protected.map_err(|err| Problem::of(Fault::Cluster, "ProtectedSettingsNotRead", err))?;
            hidden = Hidden::of(&protected);
            if let Some(kind) = job.verified.index().extension_type(&target.extension_type) {
                plan::judge_settings(kind, &protected)?;
            }
            locks::judge(&target.extension_type, &target.offered, self.settings, &protected)?;
            settings.extend(protected);
        }
        let values = values::nested(&settings, archive.chart().values_schema.as_ref());
        let mut values = values.map_err(|why| Problem::stays("InvalidSettings", why))?;
        if let Some(agents) = &target.agents {
            values[agents::GLOBAL][agents::NAME] = agents.clone();
        }
        place::namespace(self.client, &target.namespace, &extension.name).await?;
        let acting = match target.scope {
            Scope::Cluster => Acting::Self_,
            Scope::Namespace => place::acting(self.client, &target.namespace, &extension.name).await?,
        };
        Ok(Prepared { acting, archive, values, hidden })
    }

    async fn run_helm(
        &self,
        job: &Job<'_>,
        status: &mut Status,
        step: &str,
        prepared: &Prepared,
    ) -> Result<(), Option<Problem>> {
        let (extension, target) = (job.extension, job.target);
        let Prepared { acting, archive, values, hidden } = prepared;
        let on = On { release: &extension.name, namespace: &target.namespace, acting };
        if let Some(recovery) = job.recovery {
            self.recover(job, status, &on, recovery, hidden).await.map_err(Some)?;
        }
        let good = status.record.own.installed.as_ref().filter(|_| !job.fresh).map_or(0, |before| before.good);
        status.record.own.installed = Some(Installed {
            namespace: target.namespace.clone(),
            namespaced: target.scope == Scope::Namespace,
            version: target.offered.version.to_string(),
            fingerprint: target.fingerprint.clone(),
            revision: 0,
            good,
        });
        self.progress.save(&extension.name, status).await;
        let mut labels = vec![(OWNER, extension.name.clone()), (FINGERPRINT, target.fingerprint.clone())];
        let version = target.offered.version.to_string().replace('+', "_");
        if version.len() <= LABEL_CHARS {
            labels.push((VERSION, version));
        }
        let (images, others) = (target.images.as_ref(), job.others);
        let install = Install { chart: archive.bytes(), values, labels: &labels, images, others };
        let since = spell(self.clock.now() - Duration::from_secs(1));
        let (namespace, release) = (target.namespace.as_str(), extension.name.as_str());
        let look = Look { client: self.client, namespace, release, since: &since, hidden };
        let mut seen = Vec::new();
        match self.watched(job, status, &look, &mut seen, Box::pin(self.helm.upgrade(&on, &install))).await {
            Ran::Done(Ok(())) => Ok(()),
            Ran::Superseded => Err(None),
            Ran::Done(Err(err)) => {
                if seen.is_empty() {
                    seen = look.findings().await;
                }
                Err(Some(explained(step, &err, &seen, hidden)))
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
                    // The same in a newer generation is told when this ends.
                    let same = |now: Extension| now.wanted.is_same_wish(&extension.wanted);
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
                    self.progress.save(&extension.name, status).await;
                    *seen = found;
                }
            }
        }
    }

    async fn recover(
        &self,
        job: &Job<'_>,
        status: &mut Status,
        on: &On<'_>,
        recovery: Recovery,
        hidden: &Hidden,
    ) -> Result<(), Problem> {
        let (message, done) = match recovery {
            Recovery::Rollback(revision) => {
                let message = format!("an upgrade was cut off: back to revision {revision}");
                (message, self.helm.rollback(on, revision, job.others).await)
            }
            Recovery::Uninstall => (
                "an installation was cut off or failed: what there is of it is taken down".to_owned(),
                self.helm.uninstall(on).await,
            ),
        };
        tracing::info!(extension = job.extension.name, message, "a release is recovered");
        let happened =
            Happened { phase: Phase::Rollback, warning: true, reason: "Recovered", message: &message, object: None };
        status.event(operation(job.extension), &happened, self.clock.now());
        done.map_err(|err| explained("the recovery of a release that was cut off", &err, &[], hidden))?;
        let release = releases::one(self.client, on.namespace, on.release).await;
        let release = release.map_err(|err| Problem::of(Fault::Cluster, "ReleasesNotRead", err))?;
        went_back(status, release.as_ref());
        Ok(())
    }

    async fn finished(&self, job: &Job<'_>, mut status: Status, step: &str) {
        let (extension, target) = (&self.progress.newest(job.extension), job.target);
        let release = releases::one(self.client, &target.namespace, &extension.name).await;
        let revision = match release {
            Ok(Some(release)) if release.last().stage == Stage::Deployed => release.last().number,
            // The next pass sees what it is.
            _ => 0,
        };
        if let Some(installed) = &mut status.record.own.installed {
            installed.revision = revision;
            if revision > 0 {
                installed.good = revision;
            }
        }
        status.current_version = Some(target.offered.version.to_string());
        status.record.own.drifted = None;
        status.succeeded(extension.wanted.generation);
        status.statuses.retain(|line| !matches!(line.code.as_str(), "Working" | "NotReady"));
        self.installed_line(&mut status, target);
        let message = format!("{step} is done");
        let happened =
            Happened { phase: job.phase, warning: false, reason: "Succeeded", message: &message, object: None };
        status.event(operation(extension), &happened, self.clock.now());
        tracing::info!(extension = extension.name, version = %target.offered.version, revision, "a chart is installed");
        self.progress.save(&extension.name, &status).await;
    }

    /// helm failed: what is there now is what it went back to.
    async fn rolled_back(&self, job: &Job<'_>, mut problem: Problem, before: Option<Installed>) {
        let (extension, target) = (&self.progress.newest(job.extension), job.target);
        let attempt = target.attempt(extension, job.verified.index());
        let Some(known) = self.store.get(&extension.name) else { return };
        let mut status = known.status;
        let release = match releases::one(self.client, &target.namespace, &extension.name).await {
            Ok(release) => release,
            // What is there is not known: the record stays, and the next attempt sees.
            Err(_) => return self.progress.fail(extension, &attempt, &problem).await,
        };
        let last = release.as_ref().map(Release::last).filter(|last| last.stage == Stage::Deployed);
        let back = before.zip(last).filter(|(before, last)| last.fingerprint.as_deref() == Some(&before.fingerprint));
        match back {
            Some((before, last)) => {
                if last.number != before.revision && job.phase != Phase::Repair {
                    // It was tried, and the one from before runs again.
                    (problem.passes, problem.fault) = (false, Fault::Object);
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
                status.record.own.installed = Some(Installed { revision: last.number, good: last.number, ..before });
            }
            None if release.is_none() => {
                status.current_version = None;
                status.record.own.installed = None;
            }
            None => went_back(&mut status, release.as_ref()),
        }
        status.statuses.retain(|line| !matches!(line.code.as_str(), "Working" | "NotReady"));
        self.progress.save(&extension.name, &status).await;
        self.progress.fail(extension, &attempt, &problem).await;
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
        let mut status = self.progress.begun(extension);
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
        self.progress.save(&extension.name, &status).await;
        tracing::info!(extension = extension.name, "an extension is taken down");
        if let Err(problem) = self.take_down(extension).await {
            self.progress.fail(extension, &attempt, &problem).await;
            return false;
        }
        let extension = &self.progress.newest(extension);
        status.succeeded(extension.wanted.generation);
        status.state = Some(ObjectState::Deleted);
        status.current_version = None;
        status.record.own.installed = None;
        status.statuses.clear();
        let happened =
            Happened { phase: Phase::Delete, warning: false, reason: "Succeeded", message: "it is gone", object: None };
        status.event(operation(extension), &happened, self.clock.now());
        self.progress.save(&extension.name, &status).await;
        false
    }

    /// Where its release is, and whether helm acts with the rights of that namespace alone. Never by a label that others
    /// can write: helm removes whatever a release's Secret says.
    fn whereabouts(&self, extension: &Extension) -> Option<(String, bool)> {
        if let Some(installed) = &extension.status.record.own.installed {
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
        let not_read = |err| Problem::of(Fault::Cluster, "ReleasesNotRead", err);
        let place = self.whereabouts(extension);
        if extension.status.record.own.installed.is_none() {
            // The record was lost, or nothing was begun.
            let found = releases::list(self.client, None, &format!(",name={name},{OWNER}={name}")).await;
            let found = found.map_err(not_read)?;
            let known = place.as_ref().map(|(namespace, _)| namespace);
            if let Some(elsewhere) = found.into_values().find(|release| Some(&release.namespace) != known) {
                let message = format!(
                    "the namespace {0} has a release of this extension, and it is not known with whose rights it was made, because the catalogue or its type is not here: it is looked for again; helm uninstall {name} -n {0} removes it by hand",
                    elsewhere.namespace
                );
                return Err(Problem::of(Fault::Cluster, "PlaceUnknown", message));
            }
        }
        if let Some((namespace, namespaced)) = place {
            let release = releases::one(self.client, &namespace, name).await.map_err(not_read)?;
            if release.is_some_and(|release| release.owner.as_deref() == Some(name)) {
                let hidden = Hidden::of(&self.store.protected(name).await.unwrap_or_default());
                let acting = match namespaced {
                    true => place::acting(self.client, &namespace, name).await?,
                    false => Acting::Self_,
                };
                let on = On { release: name, namespace: &namespace, acting: &acting };
                let removed = self.helm.uninstall(&on).await;
                removed.map_err(|err| explained("taking the release down", &err, &[], &hidden))?;
            }
            let is_gone = |owner: &str| self.store.get(owner).is_none_or(|one| one.wanted.deleting);
            place::clean(self.client, &namespace, name, is_gone).await?;
        }
        if !extension.wanted.deleting && self.store.tag(name) == extension.wanted.protected {
            // They are of the one that comes after it.
            return Ok(());
        }
        let removed = self.store.unprotect(name).await;
        removed.map_err(|err| Problem::of(Fault::Cluster, "SecretNotRemoved", err))
    }
}

fn now_ms(now: SystemTime) -> i64 {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Says which version waits for the maintenance window, or that none does.
fn later_line(status: &mut Status, target: &Target, now: SystemTime) {
    const CODE: &str = "UpgradeWaits";
    let Some(later) = &target.later else { return status.statuses.retain(|line| line.code != CODE) };
    let message = format!("the upgrade to {later} begins when the maintenance window (autoUpgradeWindow) opens");
    // Where it is said already, it keeps its place and time.
    if !status.statuses.iter().any(|line| line.code == CODE && line.message == message) {
        status.line(CODE, "Waits for the maintenance window", "Information", &message, now);
    }
}

/// helm went back to the good revision, which has another number now.
fn went_back(status: &mut Status, release: Option<&Release>) {
    if let Some(installed) = &mut status.record.own.installed
        && let Some(good) = release.and_then(|release| release.back_to(installed.good))
    {
        installed.good = good;
    }
}

/// The extension with the version of its release, where the custom resource that knew it was lost.
fn read_back(extension: &Extension, releases: &Releases) -> Option<Extension> {
    let status = &extension.status;
    if status.current_version.is_some() || status.record.own.installed.is_some() {
        return None;
    }
    let is_own = |release: &&Release| release.owner.as_deref() == Some(&extension.name);
    let own = releases.iter().filter(|((_, name), _)| *name == extension.name).map(|(_, release)| release);
    let version = own.filter(is_own).find_map(|release| release.ran()?.version.clone())?;
    let status = Status { current_version: Some(version), ..status.clone() };
    Some(Extension { status, ..extension.clone() })
}

fn explained(step: &str, err: &HelmError, seen: &[Finding], hidden: &Hidden) -> Problem {
    match err {
        HelmError::Failed(_) | HelmError::Late(_) => explain::explain(step, &hidden.hide(&err.to_string()), seen),
        other => Problem::of(Fault::Cluster, "HelmNotRun", format!("{step} failed: {other}")),
    }
}
