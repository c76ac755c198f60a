//! Follows what the gateway wants and writes it down in the cluster: custom resources, and Secrets with protected
//! settings. What the gateway says is bounded and judged here: objects of another cluster, of no known kind or with
//! names that the kind cannot have are not taken.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Mutex,
    time::{Duration, Instant, SystemTime},
};

use daemon::{Backoff, random_unit};
use types::{
    agent_api::{Object, ObjectError, ObjectState, ObjectStatus, Objects, ProtectedQuestion, StatusLine, codes},
    ids::ClusterId,
};

use super::{
    Kind,
    gateway::Gateway,
    state::{Fault, Item, Origin, Problem, Wanted},
    store::{Store, size},
};
use crate::{chain, identity::spell, metrics, tunnel::api::AGAIN};

/// Objects of other kinds and refused ones are counted in a whole listing too.
const OBJECTS_MAX: usize = 20_000;
/// Refusals that are told at once.
const REFUSALS_MAX: usize = 200;
/// Bytes of one object's properties: the custom resource must fit into etcd, with room for its status; and of those of
/// all, which are in memory.
const PROPERTIES_BYTES: usize = 256 * 1024;
const ALL_BYTES: usize = 32 * 1024 * 1024;
/// Between two questions, however soon the gateway answers.
const PAUSE: Duration = Duration::from_millis(200);
/// An answer without news that came sooner than this is from a gateway that does not wait.
const PATIENT: Duration = Duration::from_secs(20);
const IMPATIENT: Duration = Duration::from_secs(10);
/// Names in a message.
const SHOWN: usize = 10;
/// How often protected settings that did not come are asked for again.
const PROTECTED_AGAIN: Duration = Duration::from_secs(15);

/// Follows the gateway.
pub struct Follow<'a, G, K: Kind> {
    gateway: &'a G,
    store: &'a Store<K>,
    cluster: &'a ClusterId,
    /// Objects that cannot be: they are told to have failed, and have no custom resource.
    pub refused: Mutex<Vec<ObjectStatus>>,
    /// What does not work.
    pub problem: Mutex<Option<String>>,
    /// How many objects there were when one more was refused for want of room: it is asked for again once there are
    /// fewer. None: there was room for all.
    crowded: Mutex<Option<usize>>,
    /// When the gateway began to list all that is wanted, the last time that it came to an end.
    pub listed: Mutex<Option<Instant>>,
    /// Objects that the gateway did not list, and of which it did not say that they were deleted. They stay as they are:
    /// another cluster's resource wanted them, or the gateway's database was restored.
    left: Mutex<BTreeSet<String>>,
    /// Protected settings that are not to be had, by object: the tag and why.
    pub unprotected: Mutex<Vec<(String, String, Problem)>>,
}

/// Where a listing stands.
#[derive(Debug, Default)]
struct Place {
    position: Option<i64>,
    /// Names of a listing of all that is wanted, which has not ended.
    listing: Option<HashSet<String>>,
    /// Deleted by the pages of that listing, and on none of its later ones: what was made again is not taken down first.
    gone: BTreeMap<String, (Object, Option<String>, i64)>,
    began: Option<Instant>,
    counted: usize,
}

/// Whether an object is one of ours: its name.
fn admit<K: Kind>(object: &Object, cluster: &ClusterId) -> Result<String, &'static str> {
    if !object.kind.eq_ignore_ascii_case(K::TYPE) {
        return Err("is of another kind");
    }
    let id = object.id.to_ascii_lowercase();
    let prefix = format!("{}/providers/{}/", cluster.as_str(), K::TYPE).to_ascii_lowercase();
    let name = id.strip_prefix(&prefix).ok_or("is of another cluster")?;
    let inner = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    let ends = !name.starts_with('-') && !name.ends_with('-');
    if name.is_empty() || name.len() > K::NAME_CHARS || !inner || !ends {
        return Err(K::UNNAMEABLE);
    }
    Ok(name.to_owned())
}

impl<'a, G: Gateway, K: Kind> Follow<'a, G, K> {
    /// For the objects of this cluster.
    pub fn new(gateway: &'a G, store: &'a Store<K>, cluster: &'a ClusterId) -> Self {
        Self {
            gateway,
            store,
            cluster,
            refused: Mutex::default(),
            problem: Mutex::default(),
            crowded: Mutex::default(),
            listed: Mutex::default(),
            left: Mutex::default(),
            unprotected: Mutex::default(),
        }
    }

    fn says(&self, problem: Option<String>) {
        let mut said = self.problem.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *said = problem;
    }

    /// Follows for ever.
    pub async fn run(&self) {
        tokio::join!(self.objects(), self.protected());
    }

    async fn objects(&self) {
        let mut backoff = Backoff::new(AGAIN);
        let mut place = Place::default();
        loop {
            self.gateway.up().await;
            let asked = Instant::now();
            let answer = tokio::select! {
                answer = self.gateway.objects(K::TYPE, place.position) => answer.map_err(|err| (chain(&err), err.retry_after())),
                // Somebody removed a custom resource, or there is room for what was refused: what is wanted is asked for
                // from the beginning.
                () = self.anew() => { place = Place::default(); continue }
            };
            let taken = match answer {
                Ok(Some(page)) => {
                    let news = place.position != Some(page.position) || page.more;
                    self.take(page, &mut place).await.map(|()| news).map_err(|problem| (problem, None))
                }
                Ok(None) => Ok(false),
                Err(err) => Err(err),
            };
            let wait = match taken {
                Ok(news) => {
                    backoff.reset();
                    self.says(None);
                    if news || asked.elapsed() >= PATIENT { PAUSE } else { IMPATIENT }
                }
                Err((problem, after)) => {
                    tracing::debug!(problem, kind = K::TYPE, "what is wanted is not known");
                    self.says(Some(problem));
                    let wait = backoff.failed(Instant::now(), 0.5 + random_unit() / 2.0);
                    after.unwrap_or(wait).max(wait)
                }
            };
            let _ = tokio::time::timeout(wait, self.anew()).await.map(|()| place = Place::default());
        }
    }

    /// Waits until all that is wanted is to be asked for again.
    async fn anew(&self) {
        let room = async {
            let mut changes = self.store.changes();
            loop {
                changes.mark_unchanged();
                if self.has_room() {
                    return;
                }
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            () = self.store.lost.notified() => {}
            () = room => {}
        }
    }

    /// Whether there is room by now for what was refused: once.
    fn has_room(&self) -> bool {
        let mut crowded = self.crowded.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        crowded.take_if(|then| self.store.counts().0 < *then).is_some()
    }

    /// Takes a page. One that cannot be written down is asked for again.
    async fn take(&self, page: Objects, place: &mut Place) -> Result<(), String> {
        let mut listing = if page.whole {
            // From the beginning, also in the middle of another listing.
            (place.counted, place.began) = (0, Some(Instant::now()));
            place.gone.clear();
            self.store.tell_anew().await?;
            Some(HashSet::new())
        } else {
            place.listing.take()
        };
        place.counted += page.objects.len();
        if listing.is_some() && place.counted > OBJECTS_MAX {
            *place = Place::default();
            return Err(format!("the gateway lists more than {OBJECTS_MAX} objects of this cluster"));
        }
        for object in page.objects {
            match admit::<K>(&object, self.cluster) {
                Ok(name) => {
                    if let Some(listing) = &mut listing {
                        if object.spec.is_some() {
                            listing.insert(name.clone());
                            place.gone.remove(&name);
                        } else {
                            // Removed before or while it was listed.
                            listing.remove(&name);
                            place.gone.insert(name, (object, page.identity.clone(), page.position));
                            continue;
                        }
                    }
                    let written = self.write(&name, object, &page.identity, page.position).await;
                    if let Err(problem) = written {
                        // From the beginning: what is missing is in no later page.
                        *place = Place::default();
                        return Err(problem);
                    }
                }
                Err(reason) => {
                    let id: String = object.id.chars().take(300).collect();
                    tracing::warn!(object = id, "an object that the gateway wants here {reason}, and is not taken");
                    metrics::object_refused(K::RESOURCE.1, reason);
                    if reason == K::UNNAMEABLE {
                        self.refuse(&object, "InvalidName", format!("the {} {reason}", K::NOUN));
                    }
                }
            }
        }
        if let Some(names) = listing {
            if page.more {
                place.listing = Some(names);
            } else {
                for (name, (object, identity, position)) in std::mem::take(&mut place.gone) {
                    if let Err(problem) = self.write(&name, object, &identity, position).await {
                        *place = Place::default();
                        return Err(problem);
                    }
                }
                // That they are absent does not say that somebody deleted them: no object is taken down for that.
                let absent = self.store.besides(&names).into_iter().filter(|one| !one.wanted.deleting);
                self.leave(absent.map(|one| one.name).collect());
                *self.listed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = place.began;
                // For whoever waits for the end of a listing.
                self.store.nudge();
            }
        }
        place.position = Some(page.position);
        Ok(())
    }

    fn leave(&self, names: BTreeSet<String>) {
        let mut left = self.left.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let new: Vec<_> = names.difference(&left).take(SHOWN).collect();
        if !new.is_empty() {
            tracing::warn!(
                objects = ?new,
                all = names.len(),
                kind = K::TYPE,
                "the gateway does not know objects that are here, and nobody deleted them: they stay as they are"
            );
        }
        *left = names;
    }

    /// What is said of objects that the gateway does not know; nothing where there are none. `others`: names of such that
    /// have no custom resource.
    pub fn left_behind(&self, others: impl Iterator<Item = String>) -> Option<String> {
        let left = self.left.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let all: BTreeSet<_> = left.iter().cloned().chain(others).collect();
        let names: Vec<_> = all.iter().take(SHOWN).map(String::as_str).collect();
        let more = if all.len() > names.len() { ", ..." } else { "" };
        (!names.is_empty()).then(|| {
            format!(
                "{} {} go on that the gateway does not know, of a former connection of this cluster or from before its database was restored: {}{more}. Nothing of them is removed; one of the same name takes over what is there, and its deletion removes it",
                all.len(),
                K::NOUNS,
                names.join(", ")
            )
        })
    }

    async fn write(
        &self,
        name: &str,
        mut object: Object,
        identity: &Option<String>,
        position: i64,
    ) -> Result<(), String> {
        let known = self.store.get(name);
        let is_gone = object.spec.is_none();
        if is_gone && !object.deleting && known.is_none() {
            return Ok(());
        }
        object.deleting |= is_gone;
        let is_strange = known.as_ref().is_some_and(|known| self.is_strange(&known.wanted, identity.as_deref()));
        if let Some(known) = known.as_ref().filter(|known| object.deleting && !known.wanted.deleting) {
            // Of a resource that is not the one that is here; or there is a newer one of its name, which a restored
            // database does not know.
            let is_past = match is_gone {
                // An older gateway does not say when it was deleted.
                true => object.generation > 0 && object.generation < known.wanted.origin.position,
                false => object.generation < known.wanted.generation,
            };
            if is_strange || is_past {
                tracing::warn!(
                    object = name,
                    kind = K::TYPE,
                    "another object of this name was deleted, and the one that is here stays"
                );
                if !is_gone {
                    self.say(status(&object, ObjectState::Deleted));
                }
                return Ok(());
            }
        }
        let mut bytes = object.spec.as_ref().map_or(0, size);
        if let Some(known) = known.as_ref().filter(|_| object.deleting) {
            // What it was is what is taken down.
            object.spec = Some(known.wanted.properties.clone());
            bytes = 0;
        }
        let others = || self.store.all_bytes(name);
        let (count, going) = self.store.counts();
        // Whether it is for want of room, which comes when another one is gone.
        let refusal = if known.is_none() && count >= K::MAX {
            Some((true, K::TOO_MANY, format!("a cluster takes at most {} {}", K::MAX, K::NOUNS)))
        } else if bytes > PROPERTIES_BYTES {
            let message = format!("the {}'s settings have more than {PROPERTIES_BYTES} bytes", K::NOUN);
            Some((false, "SettingsTooLarge", message))
        } else if bytes > 0 && others().saturating_add(bytes) > ALL_BYTES {
            let message = format!("the settings of all {} of the cluster have more than {ALL_BYTES} bytes", K::NOUNS);
            Some((true, "SettingsTooLarge", message))
        } else {
            None
        };
        match refusal {
            Some((for_room, code, message)) => {
                if for_room {
                    *self.crowded.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(count);
                }
                if for_room && going > 0 && !object.deleting {
                    let message =
                        format!("{message}, and {going} of them are being deleted: it begins when one is gone");
                    self.put_off(&object, known.is_some(), &message);
                } else {
                    self.refuse(&object, code, message);
                }
                Ok(())
            }
            None => {
                let mut wanted = Wanted::of(object);
                wanted.origin = Origin { identity: identity.clone(), position, adopted: None };
                let wanted = match &known {
                    Some(known) => wanted.after(&known.wanted, is_strange),
                    None => wanted,
                };
                self.store.want(name, wanted).await?;
                self.left.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(name);
                Ok(())
            }
        }
    }

    /// Whether what was wanted is not of the resource of the cluster that wants something now.
    fn is_strange(&self, known: &Wanted, identity: Option<&str>) -> bool {
        let is_other = known.origin.identity.as_deref().zip(identity).is_some_and(|(one, other)| one != other);
        let prefix = format!("{}/providers/", self.cluster.as_str());
        let is_here = known.id.is_empty()
            || known.id.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(&prefix));
        is_other || !is_here
    }

    fn refuse(&self, object: &Object, code: &str, message: String) {
        let state = if object.deleting { ObjectState::Deleted } else { ObjectState::Failed };
        let error = (!object.deleting).then(|| ObjectError { code: code.to_owned(), message });
        self.say(ObjectStatus { error, ..status(object, state) });
    }

    /// Tells why an object is not begun yet. `is_there`: it is there as it was wanted before.
    fn put_off(&self, object: &Object, is_there: bool, message: &str) {
        let line = StatusLine {
            code: "Waiting".to_owned(),
            display_status: "Waiting".to_owned(),
            level: "Warning".to_owned(),
            message: message.to_owned(),
            time: spell(SystemTime::now()),
        };
        let state = if is_there { ObjectState::Updating } else { ObjectState::Creating };
        self.say(ObjectStatus { statuses: vec![line], ..status(object, state) });
    }

    fn say(&self, status: ObjectStatus) {
        let mut refused = self.refused.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        refused.retain(|one| one.id != status.id);
        if refused.len() < REFUSALS_MAX {
            refused.push(status);
        }
        drop(refused);
        // Wakes the task that sends statuses to the gateway.
        self.store.nudge();
    }

    /// Fetches protected settings that are not here.
    async fn protected(&self) {
        let mut changes = self.store.changes();
        loop {
            changes.mark_unchanged();
            let mut missing = false;
            for item in self.store.all() {
                let Some(tag) = item.wanted.protected.clone() else {
                    if self.store.tag(&item.name).is_some() {
                        missing |= self.store.unprotect(&item.name).await.is_err();
                    }
                    continue;
                };
                if item.wanted.deleting || self.store.tag(&item.name).as_ref() == Some(&tag) {
                    continue;
                }
                self.gateway.up().await;
                missing |= self.fetch(&item, &tag).await.is_err();
            }
            let again = if missing { PROTECTED_AGAIN } else { Duration::from_secs(3600) };
            let _ = tokio::time::timeout(again, changes.changed()).await;
            if missing {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }

    async fn fetch(&self, item: &Item<K>, tag: &str) -> Result<(), ()> {
        let question = ProtectedQuestion { id: item.wanted.id.clone(), protected: tag.to_owned() };
        let problem = match self.gateway.protected(&question).await {
            Ok(settings) => match self.store.protect(item, tag, &settings.settings).await {
                Ok(()) => None,
                Err(problem) => Some(Problem::of(Fault::Cluster, "ProtectedSettingsNotKept", problem)),
            },
            Err(err) if err.refused().is_some_and(|refused| refused.status == 410) => Some(Problem::passes(
                codes::PROTECTED_SETTINGS_GONE,
                "the gateway keeps protected settings for 48 hours only, and this cluster did not fetch them in that time: give configurationProtectedSettings again",
            )),
            Err(err) => Some(Problem::of(Fault::Gateway, "ProtectedSettingsNotFetched", chain(&err))),
        };
        let mut told = self.unprotected.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        told.retain(|(name, _, _)| *name != item.name);
        match problem {
            Some(problem) => {
                tracing::debug!(object = item.name, kind = K::TYPE, problem = problem.message, "no protected settings");
                told.push((item.name.clone(), tag.to_owned(), problem));
                Err(())
            }
            None => Ok(()),
        }
    }

    /// Why the protected settings that `tag` names are not here.
    pub fn why_unprotected(&self, name: &str, tag: &str) -> Option<Problem> {
        let told = self.unprotected.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        told.iter().find(|(one, of, _)| one == name && of == tag).map(|(_, _, problem)| problem.clone())
    }
}

/// What is told of an object that has no custom resource.
fn status(object: &Object, state: ObjectState) -> ObjectStatus {
    ObjectStatus {
        id: object.id.clone(),
        generation: object.generation,
        state,
        current_version: None,
        error: None,
        statuses: Vec::new(),
        events: Vec::new(),
        details: None,
        parts: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roles::extension_manager::Extensions;

    const KIND: &str = Extensions::TYPE;
    const CLUSTER: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c";

    fn object(id: &str, kind: &str) -> Object {
        Object {
            id: id.to_owned(),
            kind: kind.to_owned(),
            generation: 1,
            spec: None,
            deleting: false,
            protected: None,
            operation: None,
            principal_id: None,
        }
    }

    #[test]
    fn objects_of_others_are_not_taken() {
        let cluster: ClusterId = CLUSTER.parse().unwrap();
        let name = |id: &str| admit::<Extensions>(&object(id, KIND), &cluster).ok();
        let below = |name: &str| format!("{CLUSTER}/providers/{KIND}/{name}");
        assert_eq!(name(&below("web")).as_deref(), Some("web"));
        assert_eq!(name(&below("Web").to_uppercase()).as_deref(), Some("web"));
        for bad in ["", "-a", "a-", "a.b", "a/b", "a_b", &"a".repeat(54), "ä"] {
            assert_eq!(name(&below(bad)), None, "{bad}");
        }
        assert_eq!(name(&below("web").replace("connectedClusters/c", "connectedClusters/d")), None);
        assert_eq!(name(&format!("{CLUSTER}2/providers/{KIND}/web")), None);
        assert!(
            admit::<Extensions>(
                &object(&below("web"), "Microsoft.KubernetesConfiguration/fluxConfigurations"),
                &cluster
            )
            .is_err()
        );
    }
}
