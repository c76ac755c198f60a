//! `Microsoft.KubernetesConfiguration/extensionTypes`: what the gateway's catalogue offers (docs/features.md E2), in the
//! shapes of api-version 2024-11-01-preview. At a location of a subscription: all of it. At a connected cluster: what
//! works on its Kubernetes version and distribution, as far as its agents have told them.

use ::catalogue::{
    choice::{self, Cluster, Filter},
    index::{ExtensionType, Index, Release, Scope},
    version::{KubernetesVersion, Version},
};
use http::{Response, StatusCode};
use serde_json::{Map, Value, json};
use types::api::{InvalidId, ResourceId};

use super::{Call, json_aside, read};
use crate::{
    answers::Body,
    api_error::ApiError,
    resources::{connected_cluster, extension},
    store::agents::Agent,
};

/// The full type.
pub const NAME: &str = "Microsoft.KubernetesConfiguration/extensionTypes";
/// What one must be allowed at the subscription, or at the cluster.
const READ: &str = "Microsoft.KubernetesConfiguration/extensionTypes/read";
/// Versions of the API that are answered.
pub const API_VERSIONS: &[&str] = &["2023-05-01-preview", "2024-11-01-preview"];
/// What clusters are called in the filter `clusterType` and in `supportedClusterTypes`.
const CLUSTER_TYPE: &str = "connectedClusters";

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The subscription, or the cluster.
    pub scope: ResourceId,
    /// The location, if the scope is a subscription.
    location: Option<String>,
    which: Which,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Which {
    Types,
    Type(String),
    Versions(String),
    Version(String, String),
}

/// Reads a path; `words` are its segments in lower case. `None`: it is another one.
pub fn question(segments: &[&str], words: &[&str]) -> Result<Option<Question>, InvalidId> {
    const NAMESPACE: &str = "microsoft.kubernetesconfiguration";
    let (scope, location, at) = match words {
        ["subscriptions", _, "providers", NAMESPACE, "locations", _, "extensiontypes", ..] => {
            (ResourceId::top(segments[1])?, Some(segments[5].to_owned()), 7)
        }
        _ => {
            let here = |three: &[&str]| matches!(three, ["providers", NAMESPACE, "extensiontypes"]);
            let Some(at) = words.windows(3).position(here) else { return Ok(None) };
            (ResourceId::parse(&format!("/{}", segments[..at].join("/")))?, None, at + 3)
        }
    };
    let name = |at: usize| segments[at].to_owned();
    let which = match &words[at..] {
        [] => Which::Types,
        [_] => Which::Type(name(at)),
        [_, "versions"] => Which::Versions(name(at)),
        [_, "versions", _] => Which::Version(name(at), name(at + 2)),
        _ => return Ok(None),
    };
    Ok(Some(Question { scope, location, which }))
}

/// Answers what the catalogue offers, for callers that may read extension types at the scope.
pub async fn serve(call: &Call<'_>, question: &Question) -> Result<Response<Body>, ApiError> {
    version(call)?;
    let scope = &question.scope;
    call.authorize(READ, scope)?;
    read::in_subscription(call, scope)?;
    let known = if question.location.is_some() { Facts::default() } else { facts(call, scope).await? };
    let filters = Filters::of(call)?;
    let edition = match &call.control.catalogue {
        Some(catalogue) => catalogue.newest().await,
        None => None,
    };
    let base = match &question.location {
        Some(location) => {
            format!("{}/providers/{}", scope.as_str(), NAME.replace('/', &format!("/locations/{location}/")))
        }
        None => format!("{}/providers/{NAME}", scope.as_str()),
    };
    let which = question.which.clone();
    // A catalogue has up to 4 MiB, and what is asked for may be in none of its releases.
    json_aside(move || {
        let index = edition.as_deref().map(|edition| edition.index.as_ref());
        let offered = Offered { index, cluster: known.cluster(), base };
        offered.answer(&which, &filters)
    })
    .await
}

/// The api-version, one of ours.
fn version(call: &Call<'_>) -> Result<(), ApiError> {
    let asked = call.any_version()?;
    if API_VERSIONS.iter().any(|known| known.eq_ignore_ascii_case(asked)) {
        return Ok(());
    }
    let message = format!(
        "The api-version '{asked}' is not supported for type '{NAME}'. The supported api-versions are '{}'.",
        API_VERSIONS.join(", ")
    );
    Err(ApiError::bad_request("NoRegisteredProviderFound", message).at("api-version"))
}

/// What is known of a cluster.
#[derive(Default)]
struct Facts {
    kubernetes: Option<KubernetesVersion>,
    distribution: Option<String>,
    platforms: Vec<String>,
}

impl Facts {
    fn cluster(&self) -> Cluster<'_> {
        Cluster { kubernetes: self.kubernetes, distribution: self.distribution.as_deref(), platforms: &self.platforms }
    }
}

/// What its agents told, and before that what the resource says.
async fn facts(call: &Call<'_>, id: &ResourceId) -> Result<Facts, ApiError> {
    let kind = read::kind_of(id)?;
    if !id.is(connected_cluster::NAME) {
        let message =
            format!("Extensions are of connected clusters ({}), not of '{}'.", connected_cluster::NAME, kind.name());
        return Err(ApiError::of(StatusCode::NOT_FOUND, "InvalidResourceType", message));
    }
    let stored = read::present(call, id).await?;
    let agent = call.control.store.agent(&stored.key).await?;
    let told = agent.as_ref().map(|Agent { facts, .. }| facts);
    let of = |name: &str| {
        let told = told.and_then(|facts| facts.get(name)?.as_str());
        told.or_else(|| stored.body.pointer(&format!("/properties/{name}"))?.as_str()).filter(|text| !text.is_empty())
    };
    Ok(Facts {
        kubernetes: of("kubernetesVersion").and_then(|text| text.parse().ok()),
        distribution: of("distribution").map(str::to_owned),
        platforms: told.map(extension::platforms).unwrap_or_default(),
    })
}

/// The query's filters.
struct Filters {
    publisher: Option<String>,
    /// Whether a marketplace plan is asked for, which no type of a catalogue has.
    plan: bool,
    train: Option<String>,
    cluster_type: Option<String>,
    major: Option<u64>,
    show_latest: bool,
}

impl Filters {
    fn of(call: &Call<'_>) -> Result<Self, ApiError> {
        let text = |name: &str| Ok::<_, ApiError>(call.parameter(name)?.filter(|text| !text.is_empty()));
        let wrong = |name: &str, must: &str| {
            let message = format!("The query parameter '{name}' must be {must}.");
            ApiError::bad_request("InvalidQueryParameterValue", message).at(name)
        };
        let major = text("majorVersion")?.map(str::parse::<u64>).transpose();
        let show_latest = match text("showLatest")? {
            None => false,
            Some(word) if word.eq_ignore_ascii_case("true") => true,
            Some(word) if word.eq_ignore_ascii_case("false") => false,
            Some(_) => return Err(wrong("showLatest", "true or false")),
        };
        Ok(Self {
            publisher: text("publisherId")?.map(str::to_owned),
            plan: text("offerId")?.is_some() || text("planId")?.is_some(),
            train: text("releaseTrain")?.map(str::to_owned),
            cluster_type: text("clusterType")?.map(str::to_owned),
            major: major.map_err(|_| wrong("majorVersion", "a whole number, such as 1"))?,
            show_latest,
        })
    }

    /// Whether clusters of the wanted type are those that extensions are for here.
    fn is_here(&self) -> bool {
        self.cluster_type.as_ref().is_none_or(|wanted| wanted.eq_ignore_ascii_case(CLUSTER_TYPE))
    }

    fn takes(&self, kind: &ExtensionType) -> bool {
        let is_of = |wanted: &String| wanted.eq_ignore_ascii_case(&kind.publisher);
        !self.plan && self.is_here() && self.publisher.as_ref().is_none_or(is_of)
    }
}

/// What a catalogue offers at a scope.
struct Offered<'a> {
    index: Option<&'a Index>,
    cluster: Cluster<'a>,
    /// The address of the collection.
    base: String,
}

impl Offered<'_> {
    fn answer(&self, which: &Which, filters: &Filters) -> Result<Value, ApiError> {
        Ok(match which {
            Which::Types => json!({"value": self.types(filters)}),
            Which::Type(name) => self.shown(self.of_name(name)?),
            Which::Versions(name) => json!({"value": self.versions(self.of_name(name)?, filters)?}),
            Which::Version(name, version) => self.version(self.of_name(name)?, version)?,
        })
    }

    fn types(&self, filters: &Filters) -> Vec<Value> {
        let all = self.index.iter().flat_map(|index| &index.types);
        let works = |kind: &&ExtensionType| {
            let mut releases = kind.versions.iter();
            releases.any(|one| {
                filters.train.as_deref().is_none_or(|train| one.is_in(train)) && one.fits(&self.cluster).is_ok()
            })
        };
        all.filter(|kind| filters.takes(kind)).filter(works).map(|kind| self.shown(kind)).collect()
    }

    /// The type of that name, if a version of it works here.
    fn of_name(&self, name: &str) -> Result<&ExtensionType, ApiError> {
        let not_found = |message| ApiError::of(StatusCode::NOT_FOUND, "ExtensionTypeNotFound", message);
        let shown: String = name.chars().take(90).collect();
        let index = self.index.ok_or_else(|| {
            not_found(format!(
                "The extension type '{shown}' was not found: this gateway has no catalogue of extensions."
            ))
        })?;
        let kind = index.extension_type(name).ok_or_else(|| {
            not_found(format!("The extension type '{shown}' was not found in the catalogue of this gateway."))
        })?;
        let mut newest = None;
        for release in choice::list(kind, &Filter::default()).unwrap_or_default() {
            match release.fits(&self.cluster) {
                Ok(()) => return Ok(kind),
                Err(why) => newest = newest.or(Some((release, why))),
            }
        }
        Err(not_found(match newest {
            Some((release, why)) => {
                format!("No version of '{}' works on this cluster. Of {}: {why}.", kind.name, release.version)
            }
            None => format!("The extension type '{}' has no version.", kind.name),
        }))
    }

    fn shown(&self, kind: &ExtensionType) -> Value {
        let scopes = &kind.supported_scopes;
        let mut supported = json!({"defaultScope": scopes.default_scope.to_string()});
        if let Some(settings) = &scopes.cluster_scope_settings {
            supported["clusterScopeSettings"] = json!({"properties": {
                "allowMultipleInstances": settings.allow_multiple_instances,
                "defaultReleaseNamespace": settings.default_release_namespace,
            }});
        }
        supported["scopes"] = scopes.scopes.iter().map(Scope::to_string).collect();
        let trains = kind.versions.iter().flat_map(|release| &release.release_trains);
        let trains: std::collections::BTreeSet<_> = trains.collect();
        json!({
            "id": format!("{}/{}", self.base, kind.name),
            "name": kind.name,
            "type": NAME,
            "properties": {
                "isSystemExtension": false,
                "isManagedIdentityRequired": false,
                "description": kind.description,
                "publisher": kind.publisher,
                "supportedClusterTypes": [CLUSTER_TYPE],
                "supportedScopes": supported,
                "releaseTrains": trains,
            },
        })
    }

    fn versions(&self, kind: &ExtensionType, filters: &Filters) -> Result<Vec<Value>, ApiError> {
        if !filters.is_here() {
            return Ok(Vec::new());
        }
        let (train, major, show_latest) = (filters.train.as_deref(), filters.major, filters.show_latest);
        let filter = Filter { train, major, show_latest, cluster: self.cluster };
        let found = choice::list(kind, &filter).map_err(|error| {
            let message = format!("The extension type '{}': {error}.", kind.name);
            ApiError::bad_request("InvalidReleaseTrain", message).at("releaseTrain")
        })?;
        Ok(found.into_iter().map(|release| self.shown_version(kind, release)).collect())
    }

    fn version(&self, kind: &ExtensionType, text: &str) -> Result<Value, ApiError> {
        let not_found = |why: String| ApiError::of(StatusCode::NOT_FOUND, "ExtensionTypeVersionNotFound", why);
        let version: Version = text.parse().map_err(|error| not_found(format!("{error}.")))?;
        let release = kind.release(&version).ok_or_else(|| {
            not_found(format!("The version {version} of the extension type '{}' was not found.", kind.name))
        })?;
        release.fits(&self.cluster).map_err(|why| {
            not_found(format!("The version {version} of '{}' does not work on this cluster: {why}.", kind.name))
        })?;
        Ok(self.shown_version(kind, release))
    }

    fn shown_version(&self, kind: &ExtensionType, release: &Release) -> Value {
        let mut properties = Map::new();
        let mut put = |name: &str, value: Value| drop(properties.insert(name.to_owned(), value));
        put("version", release.version.to_string().into());
        put("supportedClusterTypes", json!([CLUSTER_TYPE]));
        let unsupported = release.unsupported_kubernetes_versions.iter().map(|one| {
            let versions: Vec<_> = one.unsupported_versions.iter().map(ToString::to_string).collect();
            json!({"distributions": one.distributions, "unsupportedVersions": versions})
        });
        put("unsupportedKubernetesVersions", json!({"connectedCluster": unsupported.collect::<Vec<_>>()}));
        put("releaseTrains", json!(release.release_trains));
        put("deprecated", release.deprecated.into());
        put("platforms", json!(release.platforms));
        put("supportedDistributions", json!(release.supported_distributions));
        if let Some(range) = &release.kube_version {
            put("kubeVersion", range.to_string().into());
        }
        json!({
            "id": format!("{}/{}/versions/{}", self.base, kind.name, release.version),
            "name": release.version.to_string(),
            "type": format!("{NAME}/versions"),
            "properties": properties,
        })
    }
}
