//! Objects that the gateway wants, as they are kept in the cluster: custom resources and Secrets in the agents' namespace
//! (docker/chart/towline-agent/files). They are the state; what is in memory is read from them at the start and once a
//! minute.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use k8s_openapi::{
    ByteString,
    api::core::v1::Secret,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use super::{
    Kind,
    state::{Acknowledged, Fault, Item, Origin, Problem, Status, Wanted},
};
use crate::chain;

/// Objects of one page of a list.
const PAGE: u32 = 100;
/// Attempts at a write that somebody else's came between.
const CONFLICTS: usize = 5;
/// Where Secrets of ours hold what they hold.
pub(crate) const CONTENT: &str = "content.json";
/// Names the protected settings that a Secret holds.
const TAG: &str = "towline.io/protected";
/// On custom resources: who wants them ([`Origin`]).
const IDENTITY: &str = "towline.io/cluster-identity";
const POSITION: &str = "towline.io/gateway-position";
const ADOPTED: &str = "towline.io/adopted";
/// On Secrets of protected settings.
const PART: &str = "towline.io/part";

/// The custom resources and the Secrets.
pub struct Store<K: Kind> {
    client: Client,
    kind: ApiResource,
    all: Mutex<BTreeMap<String, Item<K>>>,
    /// Tags of the protected settings that are here, by object.
    tags: Mutex<BTreeMap<String, String>>,
    changed: watch::Sender<u64>,
    /// Held while the apiserver is asked, so that what is in memory does not go back to something older.
    turn: tokio::sync::Mutex<()>,
    /// Somebody else removed a custom resource.
    pub lost: Notify,
    /// The apiserver has no such kind.
    missing: AtomicBool,
    /// Everything was read at least once.
    loaded: AtomicBool,
}

/// What the apiserver said.
pub(crate) fn wrong(what: &str, err: &kube::Error) -> String {
    match err {
        kube::Error::Api(status) if status.code == 403 => {
            format!("{what}: {}; give the agents the rights that the chart makes", status.message)
        }
        other => format!("{what}: {}", chain(other)),
    }
}

/// A problem with something that a role makes or reads for an object.
pub(crate) fn failed(what: &str, err: &kube::Error) -> Problem {
    let message = match err {
        // The client library shows the whole answer in the language's notation; what the apiserver says is its message.
        kube::Error::Api(status) if !status.message.is_empty() => format!("{what}: {}", status.message),
        _ => format!("{what}: {}", chain(err)),
    };
    match err {
        kube::Error::Api(status) if status.code == 403 && status.message.contains("is being terminated") => {
            let message = format!("{message}; wait for its end, and see what keeps it");
            Problem::of(Fault::Cluster, "NamespaceTerminating", message)
        }
        kube::Error::Api(status) if status.code == 403 => Problem::passes("Forbidden", message),
        kube::Error::Api(status) if matches!(status.code, 400 | 422) => Problem::passes("ApiserverRefused", message),
        _ => Problem::of(Fault::Cluster, "ApiserverFailed", message),
    }
}

fn is(err: &kube::Error, code: u16) -> bool {
    matches!(err, kube::Error::Api(status) if status.code == code)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn post<K: Kind>() -> PostParams {
    PostParams { field_manager: Some(K::MANAGER.to_owned()), ..PostParams::default() }
}

fn patch<K: Kind>() -> PatchParams {
    PatchParams { field_manager: Some(K::MANAGER.to_owned()), ..PatchParams::default() }
}

/// Who wants an object, as annotations have it: the definition may be older than this program.
fn noted(meta: &ObjectMeta) -> Origin {
    let text = |key: &str| meta.annotations.as_ref().and_then(|all| all.get(key)).filter(|text| !text.is_empty());
    let number = |key: &str| text(key).and_then(|text| text.parse().ok());
    Origin {
        identity: text(IDENTITY).cloned(),
        position: number(POSITION).unwrap_or_default(),
        adopted: number(ADOPTED),
    }
}

fn note(origin: &Origin, meta: &mut ObjectMeta) {
    let adopted = origin.adopted.map(|generation| generation.to_string());
    let position = Some(origin.position.to_string());
    let all = [(IDENTITY, origin.identity.clone()), (POSITION, position), (ADOPTED, adopted)];
    let annotations = meta.annotations.get_or_insert_default();
    for (key, value) in all {
        match value {
            Some(value) => drop(annotations.insert(key.to_owned(), value)),
            None => drop(annotations.remove(key)),
        }
    }
}

fn read<K: Kind>(object: DynamicObject) -> Option<Item<K>> {
    let part = |name: &str| object.data.get(name).cloned().unwrap_or(Value::Null);
    let status = part("status");
    let told = serde_json::from_value(status["told"].clone()).unwrap_or_default();
    let wanted: Wanted = serde_json::from_value(part("spec")).unwrap_or_default();
    let wanted = Wanted { origin: noted(&object.metadata), ..wanted };
    Some(Item {
        bytes: size(&wanted.properties),
        name: object.metadata.name?,
        uid: object.metadata.uid?,
        created: object.metadata.creation_timestamp.map(|time| time.0.to_string()).unwrap_or_default(),
        wanted,
        status: serde_json::from_value(status).unwrap_or_default(),
        told,
    })
}

/// Bytes of properties.
pub fn size(properties: &Value) -> usize {
    serde_json::to_vec(properties).map_or(usize::MAX, |bytes| bytes.len())
}

impl<K: Kind> Store<K> {
    /// In the client's default namespace.
    pub fn new(client: Client) -> Self {
        let (kind, plural) = K::RESOURCE;
        let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("towline.io", "v1alpha1", kind), plural);
        Self {
            client,
            kind,
            all: Mutex::default(),
            tags: Mutex::default(),
            changed: watch::Sender::new(0),
            turn: tokio::sync::Mutex::default(),
            lost: Notify::new(),
            missing: AtomicBool::new(false),
            loaded: AtomicBool::new(false),
        }
    }

    /// The agents' namespace.
    pub fn namespace(&self) -> &str {
        self.client.default_namespace()
    }

    fn configs(&self) -> Api<DynamicObject> {
        Api::default_namespaced_with(self.client.clone(), &self.kind)
    }

    pub(crate) fn secrets(&self) -> Api<Secret> {
        Api::default_namespaced(self.client.clone())
    }

    /// Tells of changes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Something that is told of an object, and not kept here, has changed.
    pub fn nudge(&self) {
        self.tell();
    }

    fn tell(&self) {
        self.changed.send_modify(|changes| *changes += 1);
    }

    /// All that are known, by name.
    pub fn all(&self) -> Vec<Item<K>> {
        locked(&self.all).values().cloned().collect()
    }

    /// How many there are, and how many of these are being taken down.
    pub fn counts(&self) -> (usize, usize) {
        let all = locked(&self.all);
        (all.len(), all.values().filter(|one| one.wanted.deleting).count())
    }

    /// Bytes of the properties of all but one.
    pub fn all_bytes(&self, besides: &str) -> usize {
        locked(&self.all).values().filter(|one| one.name != besides).map(|one| one.bytes).sum()
    }

    /// One of them.
    pub fn get(&self, name: &str) -> Option<Item<K>> {
        locked(&self.all).get(name).cloned()
    }

    /// The tag of the protected settings that are here.
    pub fn tag(&self, name: &str) -> Option<String> {
        locked(&self.tags).get(name).cloned()
    }

    /// Whether the last [`load`](Self::load) found that the definition is missing: there are none.
    pub fn is_missing(&self) -> bool {
        self.missing.load(Ordering::Relaxed)
    }

    /// Whether everything was read at least once.
    pub fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Relaxed)
    }

    /// Reads everything anew.
    pub async fn load(&self) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        let (mut found, mut params) = (BTreeMap::new(), ListParams::default().limit(PAGE));
        loop {
            let page = self.configs().list(&params).await;
            self.missing.store(page.as_ref().err().is_some_and(|err| is(err, 404)), Ordering::Relaxed);
            let page = match page {
                Ok(page) => page,
                Err(err) if is(&err, 404) => {
                    return Err(format!(
                        "the definition {}.towline.io is missing: apply the agents' chart or manifests again",
                        K::RESOURCE.1
                    ));
                }
                Err(err) => return Err(wrong(&format!("the custom resources {} cannot be read", K::RESOURCE.1), &err)),
            };
            found.extend(page.items.into_iter().filter_map(read::<K>).map(|one| (one.name.clone(), one)));
            match page.metadata.continue_.filter(|token| !token.is_empty() && found.len() <= K::MAX) {
                Some(token) => params.continue_token = Some(token),
                None => break,
            }
        }
        let params = ListParams::default().labels(&format!("{PART}={}", part::<K>()));
        let secrets = self.secrets().list_metadata(&params).await;
        let secrets = secrets.map_err(|err| wrong("the Secrets of protected settings cannot be read", &err))?;
        let tags = secrets.items.into_iter().filter_map(|secret| {
            let name = secret.metadata.name?;
            let name = name.strip_prefix(K::SECRET)?.strip_prefix('-')?.strip_suffix("-protected")?.to_owned();
            Some((name, secret.metadata.annotations?.remove(TAG)?))
        });
        *locked(&self.tags) = tags.collect();
        let mut all = locked(&self.all);
        let lost = all.keys().any(|name| !found.contains_key(name));
        let changed = *all != found;
        *all = found;
        drop(all);
        self.loaded.store(true, Ordering::Relaxed);
        if lost {
            self.lost.notify_one();
        }
        if changed {
            self.tell();
        }
        Ok(())
    }

    /// This is wanted from now on.
    pub async fn want(&self, name: &str, wanted: Wanted) -> Result<(), String> {
        if self.get(name).is_some_and(|known| known.wanted == wanted) {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        let (api, what) = (self.configs(), format!("the custom resource {name} cannot be written"));
        let spec = serde_json::to_value(&wanted).map_err(|err| err.to_string())?;
        for _ in 0..CONFLICTS {
            let written = match api.get_opt(name).await.map_err(|err| wrong(&what, &err))? {
                // As a whole: a patch would keep settings that are no more.
                Some(mut object) => {
                    object.data["spec"] = spec.clone();
                    note(&wanted.origin, &mut object.metadata);
                    api.replace(name, &post::<K>(), &object).await
                }
                None => {
                    let mut object = DynamicObject::new(name, &self.kind).data(json!({ "spec": spec }));
                    note(&wanted.origin, &mut object.metadata);
                    api.create(&post::<K>(), &object).await
                }
            };
            match written {
                Ok(object) => {
                    if let Some(item) = read::<K>(object) {
                        let mut all = locked(&self.all);
                        match all.get_mut(name) {
                            Some(known) if known.uid == item.uid => {
                                (known.wanted, known.bytes) = (wanted, item.bytes);
                            }
                            _ => drop(all.insert(name.to_owned(), item)),
                        }
                    }
                    self.tell();
                    return Ok(());
                }
                Err(err) if is(&err, 409) || is(&err, 404) => {}
                Err(err) => return Err(wrong(&what, &err)),
            }
        }
        Err(format!("{what}: another writer changed it at the same time"))
    }

    /// So far it is from now on. Memory has it at once; the custom resource may get it later.
    pub async fn set_status(&self, name: &str, status: &Status<K>) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        match locked(&self.all).get_mut(name) {
            Some(known) if known.status == *status => return Ok(()),
            Some(known) => known.status = status.clone(),
            None => return Ok(()),
        }
        self.tell();
        let value = serde_json::to_value(status).map_err(|err| err.to_string())?;
        self.write(name, json!({ "status": value })).await
    }

    /// This was told.
    pub async fn set_told(&self, name: &str, told: &Acknowledged) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        match locked(&self.all).get_mut(name) {
            Some(known) => known.told = told.clone(),
            None => return Ok(()),
        }
        self.write(name, json!({ "status": { "told": told } })).await
    }

    /// The gateway may not know any more what it was told: everything is told again.
    pub async fn tell_anew(&self) -> Result<(), String> {
        for item in self.all().into_iter().filter(|one| one.told != Acknowledged::default()) {
            self.set_told(&item.name, &Acknowledged::default()).await?;
        }
        self.tell();
        Ok(())
    }

    async fn write(&self, name: &str, value: Value) -> Result<(), String> {
        match self.configs().patch_status(name, &patch::<K>(), &Patch::Merge(value)).await {
            Ok(_) => Ok(()),
            Err(err) if is(&err, 404) => {
                locked(&self.all).remove(name);
                self.lost.notify_one();
                Ok(())
            }
            Err(err) => Err(wrong(&format!("the status of the custom resource {name} cannot be written"), &err)),
        }
    }

    /// It is gone: its custom resource and its protected settings go too, unless something else is wanted by now.
    pub async fn remove(&self, item: &Item<K>) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        let (name, api) = (&item.name, self.configs());
        let what = format!("the custom resource {name} cannot be removed");
        for _ in 0..CONFLICTS {
            let Some(object) = api.get_opt(name).await.map_err(|err| wrong(&what, &err))? else { break };
            let exact = Preconditions {
                uid: object.metadata.uid.clone(),
                resource_version: object.metadata.resource_version.clone(),
            };
            if read::<K>(object).is_some_and(|now| now.wanted != item.wanted) {
                return Ok(());
            }
            let params = DeleteParams { preconditions: Some(exact), ..DeleteParams::default() };
            match api.delete(name, &params).await {
                Ok(_) => break,
                Err(err) if is(&err, 404) => break,
                Err(err) if is(&err, 409) => {}
                Err(err) => return Err(wrong(&what, &err)),
            }
        }
        if api.get_opt(name).await.map_err(|err| wrong(&what, &err))?.is_some() {
            return Err(format!("{what}: it is still there"));
        }
        self.unprotect(name).await?;
        locked(&self.all).remove(name);
        self.tell();
        Ok(())
    }

    /// What goes with the custom resource of an object names it so.
    pub(crate) fn owner(&self, item: &Item<K>) -> OwnerReference {
        OwnerReference {
            api_version: self.kind.api_version.clone(),
            kind: self.kind.kind.clone(),
            name: item.name.clone(),
            uid: item.uid.clone(),
            ..OwnerReference::default()
        }
    }

    /// Whether something goes with the custom resource of an object that is there now.
    pub(crate) fn is_owned(&self, meta: &ObjectMeta, item: &Item<K>) -> bool {
        meta.owner_references.iter().flatten().any(|owner| owner.uid == item.uid)
    }

    /// Keeps protected settings.
    pub async fn protect(&self, item: &Item<K>, tag: &str, settings: &BTreeMap<String, String>) -> Result<(), String> {
        let mut secret = content(&secret_name::<K>(&item.name), settings)?;
        secret.metadata.labels = Some([(PART.to_owned(), part::<K>())].into());
        secret.metadata.annotations = Some([(TAG.to_owned(), tag.to_owned())].into());
        // It goes with the custom resource, however that goes.
        secret.metadata.owner_references = Some(vec![self.owner(item)]);
        self.keep(secret, "the Secret of protected settings").await?;
        locked(&self.tags).insert(item.name.clone(), tag.to_owned());
        self.tell();
        Ok(())
    }

    /// Protected settings that are here.
    pub async fn protected(&self, name: &str) -> Result<BTreeMap<String, String>, String> {
        let what = "the Secret of protected settings cannot be read";
        let secret = self.secrets().get(&secret_name::<K>(name)).await.map_err(|err| wrong(what, &err))?;
        let meta = secret.metadata;
        let content = secret.data.and_then(|mut data| data.remove(CONTENT)).unwrap_or_default();
        // Nothing of its contents is told.
        let settings = serde_json::from_slice(&content.0).map_err(|_| format!("{what}: it was changed"))?;
        // The custom resource may have been made anew: they would go with the one from before.
        let tag = meta.annotations.as_ref().and_then(|all| all.get(TAG));
        if let (Some(item), Some(tag)) = (self.get(name), tag)
            && !self.is_owned(&meta, &item)
        {
            self.protect(&item, tag, &settings).await?;
        }
        Ok(settings)
    }

    /// Removes protected settings.
    pub async fn unprotect(&self, name: &str) -> Result<(), String> {
        match self.secrets().delete(&secret_name::<K>(name), &DeleteParams::default()).await {
            Ok(_) => {}
            Err(err) if is(&err, 404) => {}
            Err(err) => return Err(wrong("the Secret of protected settings cannot be removed", &err)),
        }
        locked(&self.tags).remove(name);
        Ok(())
    }

    /// Writes a Secret that is not there yet; false where somebody else was first, whose one stays.
    pub(crate) async fn keep_first(&self, secret: &Secret, what: &str) -> Result<bool, String> {
        match self.secrets().create(&post::<K>(), secret).await {
            Ok(_) => Ok(true),
            Err(err) if is(&err, 409) => Ok(false),
            Err(err) => Err(wrong(&format!("{what} cannot be written"), &err)),
        }
    }

    pub(crate) async fn keep(&self, secret: Secret, what: &str) -> Result<(), String> {
        let (api, what) = (self.secrets(), format!("{what} cannot be written"));
        let name = secret.metadata.name.clone().unwrap_or_default();
        let applied = PatchParams::apply(K::MANAGER).force();
        api.patch(&name, &applied, &Patch::Apply(&secret)).await.map(|_| ()).map_err(|err| wrong(&what, &err))
    }

    /// All that are not among `names`.
    pub fn besides(&self, names: &HashSet<String>) -> Vec<Item<K>> {
        locked(&self.all).values().filter(|one| !names.contains(&one.name)).cloned().collect()
    }
}

/// On Secrets with protected settings of this kind.
fn part<K: Kind>() -> String {
    format!("{}-protected-settings", K::SECRET)
}

fn secret_name<K: Kind>(name: &str) -> String {
    format!("{}-{name}-protected", K::SECRET)
}

pub(crate) fn content(name: &str, value: &impl serde::Serialize) -> Result<Secret, String> {
    let bytes = serde_json::to_vec(value).map_err(|err| err.to_string())?;
    let mut secret = Secret { data: Some([(CONTENT.to_owned(), ByteString(bytes))].into()), ..Secret::default() };
    secret.metadata.name = Some(name.to_owned());
    Ok(secret)
}
