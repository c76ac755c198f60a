//! What agents manage in a cluster, as the cluster itself tells it: their custom resources, helm's releases and Flux's
//! objects, by the labels that agents put there. It also shows what agents no longer say anything of, because its custom
//! resource went with the former agents.

use std::collections::{BTreeMap, BTreeSet};

use agent::roles::{
    extension_manager::releases::{self, OWNER, Stage},
    fluxconfig_agent::{
        left::KINDS,
        render::{self, MANAGED, MANAGER, SOURCE_CONTROL, SOURCE_CONTROL_OWNER, owner_of},
        views::FluxKind,
    },
};
use anyhow::Context as _;
use kube::{
    Api,
    api::{DynamicObject, ListParams},
};

use super::{
    Error, Kubernetes, Place,
    place::{EXTENSION_CONFIG, FLUX_CONFIG, GIT_CONFIG, Kind},
};

/// Flux's objects of one page of a list, and pages that are read of each kind.
const PAGE: u32 = 500;
const PAGES: usize = 20;

/// What is managed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// A helm chart.
    Extension,
    /// A flux configuration.
    Flux,
    /// A configuration of the time of Flux 1.
    SourceControl,
}

impl What {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Extension, Self::Flux, Self::SourceControl];

    /// The kind of the custom resource by which agents know it.
    pub fn kind(self) -> Kind {
        match self {
            Self::Extension => EXTENSION_CONFIG,
            Self::Flux => FLUX_CONFIG,
            Self::SourceControl => GIT_CONFIG,
        }
    }

    /// The label that names it on what was made for it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Extension => OWNER,
            Self::Flux => render::OWNER,
            Self::SourceControl => SOURCE_CONTROL_OWNER,
        }
    }
}

/// One of them, as far as it is in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct There {
    /// Whether the agents' namespace has its custom resource.
    pub has_resource: bool,
    /// Namespaces and names of helm's releases.
    pub releases: BTreeSet<(String, String)>,
    /// Namespaces of Flux's objects, by the plural names of their kinds with their groups, as kubectl takes them where
    /// another group has a kind of that name. A kustomization comes first: it is deleted first.
    pub objects: Vec<(String, BTreeSet<String>)>,
}

/// By kind and name.
pub type Managed = BTreeMap<(What, String), There>;

impl Kubernetes {
    /// What agents in this namespace manage or what former ones managed, but for what is being deleted.
    ///
    /// # Errors
    /// What the apiserver refuses.
    pub async fn managed(&self, namespace: &str) -> anyhow::Result<Managed> {
        let mut found = Managed::new();
        let mut going = BTreeSet::new();
        for what in What::ALL {
            for object in self.list(&Place::within(what.kind(), namespace, ""), "").await? {
                let Some(name) = object["metadata"]["name"].as_str() else { continue };
                let key = (what, name.to_owned());
                if object["spec"]["deleting"] == true || !object["metadata"]["deletionTimestamp"].is_null() {
                    going.insert(key);
                } else {
                    found.entry(key).or_default().has_resource = true;
                }
            }
        }
        let all = releases::selected(&self.client, None, &format!(",{OWNER}")).await;
        let all = all.map_err(Error::from).context("helm's releases cannot be read")?;
        for ((namespace, name), release) in all {
            // One that was taken down and left its history does nothing.
            let Some(owner) = release.owner.clone().filter(|_| release.last().stage != Stage::Uninstalled) else {
                continue;
            };
            found.entry((What::Extension, owner)).or_default().releases.insert((namespace, name));
        }
        for kind in KINDS {
            let resource = kind.resource();
            for (key, namespaces) in self.of_flux(kind).await? {
                found
                    .entry(key)
                    .or_default()
                    .objects
                    .push((format!("{}.{}", resource.plural, resource.group), namespaces));
            }
        }
        found.retain(|key, _| !going.contains(key));
        Ok(found)
    }

    /// Namespaces of Flux's objects of a kind, by what they were made for.
    async fn of_flux(&self, kind: FluxKind) -> Result<BTreeMap<(What, String), BTreeSet<String>>, Error> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind.resource());
        let mut params = ListParams::default().labels(&format!("{MANAGED}={MANAGER}")).limit(PAGE);
        let mut found = BTreeMap::<_, BTreeSet<String>>::new();
        for _ in 0..PAGES {
            let page = match api.list_metadata(&params).await {
                Ok(page) => page,
                // A cluster without Flux.
                Err(error) => return Error::from(error).unless_missing(found),
            };
            for object in page.items.into_iter().map(|object| object.metadata) {
                let Some(owner) = owner_of(object.labels.as_ref()).filter(|_| object.deletion_timestamp.is_none())
                else {
                    continue;
                };
                let key = match owner.strip_prefix(SOURCE_CONTROL) {
                    Some(name) => (What::SourceControl, name.to_owned()),
                    None => (What::Flux, owner),
                };
                found.entry(key).or_default().extend(object.namespace);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => break,
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
pub mod tests {
    use std::convert::Infallible;

    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// A cluster whose lists are these, by path; others are of kinds that it does not have.
    pub fn cluster(lists: Vec<(&'static str, Value)>) -> Kubernetes {
        let service = tower::service_fn(move |request: Request<Body>| {
            let list = lists.iter().find(|(path, _)| *path == request.uri().path()).map(|(_, items)| items.clone());
            async move {
                let (code, body) = match list {
                    Some(items) => (
                        StatusCode::OK,
                        json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}),
                    ),
                    None => (
                        StatusCode::NOT_FOUND,
                        json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "none"}),
                    ),
                };
                let answer = Response::builder().status(code).header("content-type", "application/json");
                Ok::<_, Infallible>(answer.body(Body::from(body.to_string().into_bytes())).unwrap())
            }
        });
        Kubernetes::answered_by(kube::Client::new(service, "towline"))
    }

    /// What two former extensions, a former configuration of each kind, and one that is being deleted left.
    pub fn left() -> Vec<(&'static str, Value)> {
        let custom = |kind: &str, name: &str, deleting: bool| json!({"apiVersion": "towline.io/v1alpha1", "kind": kind, "metadata": {"name": name, "namespace": "towline"}, "spec": {"deleting": deleting}});
        let release = |name: &str, number: u32, status: &str| {
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {
                "name": format!("sh.helm.release.v1.{name}.v{number}"), "namespace": "web",
                "creationTimestamp": "2026-11-27T10:00:00Z",
                "labels": {"owner": "helm", "name": name, "version": number.to_string(), "status": status, OWNER: name},
            }})
        };
        let flux = |name: &str, label: &str, owner: &str| json!({"metadata": {"name": name, "namespace": "fleet", "labels": {MANAGED: MANAGER, label: owner}}});
        let (own, old) = (What::Flux.label(), What::SourceControl.label());
        vec![
            (
                "/apis/towline.io/v1alpha1/namespaces/towline/extensionconfigs",
                json!([custom("ExtensionConfig", "alone", false), custom("ExtensionConfig", "going", true)]),
            ),
            (
                "/api/v1/secrets",
                json!([
                    release("web", 1, "superseded"),
                    release("web", 2, "deployed"),
                    release("past", 1, "uninstalled"),
                    release("going", 1, "deployed"),
                ]),
            ),
            (
                "/apis/kustomize.toolkit.fluxcd.io/v1/kustomizations",
                json!([flux("fleet-apps", own, "fleet"), flux("git.old-a", old, "old"), flux("theirs", "a", "b")]),
            ),
            ("/apis/source.toolkit.fluxcd.io/v1/gitrepositories", json!([flux("fleet", own, "fleet")])),
        ]
    }

    #[tokio::test]
    async fn g11_what_former_agents_managed_is_found_by_its_labels() {
        let found = cluster(left()).managed("towline").await.unwrap();
        let names: Vec<_> = found.keys().map(|(what, name)| (*what, name.as_str())).collect();
        let expected =
            [(What::Extension, "alone"), (What::Extension, "web"), (What::Flux, "fleet"), (What::SourceControl, "old")];
        assert_eq!(names, expected, "neither what is being deleted, nor an uninstalled release, nor others' objects");
        assert!(found[&(What::Extension, "alone".to_owned())].has_resource);
        let web = &found[&(What::Extension, "web".to_owned())];
        assert_eq!((web.has_resource, web.releases.len()), (false, 1), "{web:?}");
        let fleet: Vec<_> =
            found[&(What::Flux, "fleet".to_owned())].objects.iter().map(|(kind, _)| kind.as_str()).collect();
        assert_eq!(fleet, ["kustomizations.kustomize.toolkit.fluxcd.io", "gitrepositories.source.toolkit.fluxcd.io"]);
        assert!(cluster(Vec::new()).managed("towline").await.is_err(), "Secrets that cannot be listed are no answer");
    }
}
