//! The path of a request to the resource API, parsed into what is meant: a resource, a list, an action, an operation,
//! or a document that is the same for everybody. Nothing is looked up here, so that nothing depends on who asks.

use super::events;
use super::{extension_types, graph, service_principals};
use crate::resources;
use http::Method;
use types::api::{
    InvalidId, ResourceId,
    id::{ID_BYTES, NAME_CHARACTERS, RESOURCE_GROUPS, SUBSCRIPTIONS},
};

/// The longest path, decoded: an id, and an action or the type of a collection behind it.
const PATH_BYTES: usize = ID_BYTES + 2 * NAME_CHARACTERS;

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// `/metadata/endpoints`: where everything is; needs no sign-in.
    Metadata,
    /// The OpenAPI document.
    OpenApi,
    /// `/tenants`: the gateway's one tenant.
    Tenants,
    /// The id of one resource.
    Resource(ResourceId),
    /// Those of a kind in a scope.
    Collection {
        /// In what; `None` is everywhere.
        scope: Option<ResourceId>,
        /// The full type as written.
        kind: String,
    },
    /// Those of every kind in a scope: `<scope>/resources`.
    Everything(ResourceId),
    /// What happens to clusters in a scope: `<scope>/providers/Microsoft.Kubernetes/events`.
    Events(ResourceId),
    /// `.../providers/Microsoft.KubernetesConfiguration/extensionTypes...`: what the catalogue offers.
    ExtensionTypes(extension_types::Question),
    /// `POST <resource>/<action>`, or another method for one that there is.
    Action(ResourceId, String),
    /// `.../providers` or `.../providers/<namespace>`: resource providers and their types.
    Providers {
        /// In which subscription; `None`: `/providers`.
        subscription: Option<String>,
        /// Namespace of the resource provider; `None`: all providers.
        namespace: Option<String>,
    },
    /// `POST .../providers/<namespace>/register` or `unregister`.
    Register {
        /// In which subscription.
        subscription: String,
        /// Namespace of the resource provider.
        namespace: String,
        /// Or unregister it.
        registered: bool,
    },
    /// `/providers/<namespace>/operations`: what a provider can do.
    Operations(String),
    /// `.../locations/<location>/operationStatuses/<id>`: how far an operation is.
    OperationStatus(String, String),
    /// `<resource>/operations/<id>`: the same, of an operation on this resource.
    OperationOf(ResourceId, String),
    /// `.../locations/<location>/operationResults/<id>`: what an operation came to.
    OperationResult(String, String),
    /// `/subscriptions/<id>/locations`: the locations of a subscription.
    Locations(String),
    /// `/v1.0/...`: the part of Microsoft Graph that clients look up names by.
    Graph(graph::Question),
    /// `/providers/Microsoft.Authorization/servicePrincipals...`: service principals of the built-in issuer.
    ServicePrincipals(service_principals::Question),
    /// `/providers/Microsoft.Kubernetes/sessions...`: open sessions, or one action of theirs.
    Sessions(Option<String>),
}

impl Route {
    /// The subscription that it is in, as written.
    pub fn subscription(&self) -> Option<&str> {
        match self {
            Self::Resource(id)
            | Self::Everything(id)
            | Self::Events(id)
            | Self::Action(id, _)
            | Self::OperationOf(id, _) => Some(id.subscription()),
            Self::ExtensionTypes(question) => Some(question.scope.subscription()),
            Self::Collection { scope, .. } => scope.as_ref().map(ResourceId::subscription),
            Self::Providers { subscription, .. } => subscription.as_deref(),
            Self::Register { subscription, .. }
            | Self::OperationStatus(subscription, _)
            | Self::OperationResult(subscription, _)
            | Self::Locations(subscription) => Some(subscription),
            _ => None,
        }
    }
}

/// Reads a decoded path (percent-encoding undone once, no dot segments). `None`: nothing of ours.
pub fn parse(method: &Method, path: &str) -> Result<Option<Route>, InvalidId> {
    // Clients put a scope that begins with a slash behind a slash.
    let path = path.trim_start_matches('/');
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.len() > PATH_BYTES {
        return Err(InvalidId::TooLong);
    }
    let mut segments: Vec<&str> = path.split('/').collect();
    without_empty_parents(&mut segments);
    let lower: Vec<String> = segments.iter().map(|segment| segment.to_ascii_lowercase()).collect();
    let words: Vec<&str> = lower.iter().map(String::as_str).collect();
    let post = method == Method::POST;
    let named = |at: usize| segments[at].to_owned();
    if let Some(question) = extension_types::question(&segments, &words)? {
        return Ok(Some(Route::ExtensionTypes(question)));
    }
    Ok(Some(match words.as_slice() {
        ["metadata", "endpoints"] => Route::Metadata,
        ["openapi.json"] => Route::OpenApi,
        ["tenants"] => Route::Tenants,
        ["subscriptions"] => Route::Collection { scope: None, kind: SUBSCRIPTIONS.to_owned() },
        ["providers"] => Route::Providers { subscription: None, namespace: None },
        ["providers", _] => Route::Providers { subscription: None, namespace: Some(named(1)) },
        ["providers", "microsoft.authorization", "serviceprincipals", rest @ ..] => match rest {
            [] => Route::ServicePrincipals(service_principals::Question::All),
            [_] => Route::ServicePrincipals(service_principals::Question::One(named(3))),
            [_, "rotate"] if post => Route::ServicePrincipals(service_principals::Question::Rotate(named(3))),
            _ => return Ok(None),
        },
        ["providers", "microsoft.kubernetes", "sessions"] => Route::Sessions(None),
        ["providers", "microsoft.kubernetes", "sessions", _] => Route::Sessions(Some(named(3))),
        ["providers", _, "operations"] => Route::Operations(named(1)),
        ["subscriptions", _, "locations"] => Route::Locations(named(1)),
        ["subscriptions", _, "providers"] => Route::Providers { subscription: Some(named(1)), namespace: None },
        ["subscriptions", _, "providers", _] => {
            Route::Providers { subscription: Some(named(1)), namespace: Some(named(3)) }
        }
        ["subscriptions", _, "providers", _, "register" | "unregister"] if post => {
            Route::Register { subscription: named(1), namespace: named(3), registered: words[4] == "register" }
        }
        ["subscriptions", _, "providers", _, "locations", _, "operationstatuses", _] => {
            Route::OperationStatus(named(1), named(7))
        }
        ["subscriptions", _, "providers", _, "locations", _, "operationresults", _] => {
            Route::OperationResult(named(1), named(7))
        }
        ["subscriptions", _, "resourcegroups"] => {
            Route::Collection { scope: Some(ResourceId::top(segments[1])?), kind: RESOURCE_GROUPS.to_owned() }
        }
        ["subscriptions", _, "tagnames"] => {
            let scope = Some(ResourceId::top(segments[1])?);
            Route::Collection { scope, kind: super::read::TAG_NAMES.to_owned() }
        }
        ["v1.0", rest @ ..] => return Ok(graph::Question::of(rest).map(Route::Graph)),
        ["subscriptions", ..] => return resource(post, &segments, &words).map(Some),
        _ => return Ok(None),
    }))
}

/// `az resource` puts the path of a parent between namespace and type, where there is one or not. Only there an empty
/// segment means nothing; everywhere else it is no name.
fn without_empty_parents(segments: &mut Vec<&str>) {
    let mut at = 2;
    while at + 1 < segments.len() {
        let behind_namespace = segments[at - 2].eq_ignore_ascii_case("providers") && !segments[at - 1].is_empty();
        if segments[at].is_empty() && behind_namespace && !segments[at + 1].is_empty() {
            segments.remove(at);
        }
        at += 1;
    }
}

/// What ends in a name is a resource, what ends in a type a collection, and behind a resource a POST names an action.
fn resource(post: bool, segments: &[&str], words: &[&str]) -> Result<Route, InvalidId> {
    let join = |segments: &[&str]| ResourceId::parse(&format!("/{}", segments.join("/")));
    let (last, rest) = segments.split_last().expect("it begins with /subscriptions");
    if post {
        // A resource itself takes no POST, which is said where it is served.
        let action = join(rest).map(|id| Route::Action(id, (*last).to_owned()));
        return action.or_else(|error| join(segments).map(Route::Resource).map_err(|_| error));
    }
    if words.last() == Some(&"resources")
        && let Ok(scope) = join(rest)
        && (scope.is(SUBSCRIPTIONS) || scope.is(RESOURCE_GROUPS))
    {
        return Ok(Route::Everything(scope));
    }
    match join(segments) {
        Ok(id) => Ok(match resources::operation_of(&id) {
            Some((resource, operation)) => Route::OperationOf(resource, operation.to_owned()),
            None => Route::Resource(id),
        }),
        Err(error) => match join(rest) {
            Ok(id) if has_action(&id, last) => Ok(Route::Action(id, (*last).to_owned())),
            _ => collection(segments, words)?.ok_or(error),
        },
    }
}

/// Asked with another method than POST it is refused as what it is.
fn has_action(id: &ResourceId, action: &str) -> bool {
    super::read::kind_of(id).is_ok_and(|kind| kind.actions().iter().any(|known| known.eq_ignore_ascii_case(action)))
}

/// The route of a collection, `<scope>/providers/<namespace>/<type>`; `None` for another path.
fn collection(segments: &[&str], words: &[&str]) -> Result<Option<Route>, InvalidId> {
    let Some(at) = words.len().checked_sub(3).filter(|at| words[*at] == "providers") else { return Ok(None) };
    let scope = ResourceId::parse(&format!("/{}", segments[..at].join("/")))?;
    if events::NAME.eq_ignore_ascii_case(&format!("{}/{}", words[at + 1], words[at + 2])) {
        return Ok(Some(Route::Events(scope)));
    }
    Ok(Some(Route::Collection { scope: Some(scope), kind: format!("{}/{}", segments[at + 1], segments[at + 2]) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str) -> Option<Route> {
        parse(&Method::GET, path).unwrap()
    }

    const CLUSTER: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c";

    #[test]
    fn paths_of_real_clients() {
        assert_eq!(get("/metadata/endpoints"), Some(Route::Metadata));
        assert_eq!(get("/subscriptions/"), Some(Route::Collection { scope: None, kind: SUBSCRIPTIONS.to_owned() }));
        assert_eq!(get("//subscriptions/S"), Some(Route::Resource(ResourceId::top("S").unwrap())));
        let cluster = ResourceId::parse(CLUSTER).unwrap();
        assert_eq!(get(&CLUSTER.to_uppercase()), Some(Route::Resource(cluster.clone())));
        let clusters = "Microsoft.Kubernetes/connectedClusters".to_owned();
        let group = ResourceId::parse("/subscriptions/s/resourceGroups/g").unwrap();
        assert_eq!(
            get("/subscriptions/s/resourcegroups/g/providers/Microsoft.Kubernetes/connectedClusters"),
            Some(Route::Collection { scope: Some(group.clone()), kind: clusters })
        );
        assert_eq!(get("/subscriptions/s/resourceGroups/g/resources"), Some(Route::Everything(group)));
        let assignments = format!("{CLUSTER}/providers/Microsoft.Authorization/roleAssignments");
        assert!(matches!(get(&assignments), Some(Route::Collection { scope: Some(scope), .. }) if scope == cluster));
        let post = parse(&Method::POST, &format!("{CLUSTER}/listClusterUserCredential")).unwrap();
        assert_eq!(post, Some(Route::Action(cluster, "listClusterUserCredential".to_owned())));
        assert_eq!(
            get(&format!("{CLUSTER}/providers/microsoft.kubernetes/Events")),
            Some(Route::Events(ResourceId::parse(CLUSTER).unwrap()))
        );
        assert_eq!(get("/api/v1/pods"), None);
    }

    /// `az resource show -g G -n N --resource-type T`.
    #[test]
    fn an_empty_parent_behind_a_namespace_means_nothing() {
        let cluster = ResourceId::parse(CLUSTER).unwrap();
        let doubled = CLUSTER.replace("Microsoft.Kubernetes/", "Microsoft.Kubernetes//");
        assert_eq!(get(&doubled), Some(Route::Resource(cluster.clone())));
        let post = parse(&Method::POST, &format!("{doubled}/listClusterUserCredential")).unwrap();
        assert_eq!(post, Some(Route::Action(cluster, "listClusterUserCredential".to_owned())));
        let (all, once) = (doubled.trim_end_matches("/c"), CLUSTER.trim_end_matches("/c"));
        assert_eq!(get(all), get(once));
        for bad in [
            CLUSTER.replace("resourceGroups/", "resourceGroups//"),
            CLUSTER.replace("providers/", "providers//"),
            CLUSTER.replace("Microsoft.Kubernetes/", "Microsoft.Kubernetes///"),
            CLUSTER.replace("connectedClusters/", "connectedClusters//"),
            format!("{CLUSTER}//providers/Microsoft.Authorization/roleAssignments/x"),
        ] {
            assert!(parse(&Method::GET, &bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for bad in
            ["/subscriptions/s/x", "/subscriptions/s/resourceGroups/g/providers/a", &format!("{CLUSTER}/{CLUSTER}")]
        {
            assert!(parse(&Method::GET, bad).is_err(), "{bad}");
        }
        assert!(matches!(parse(&Method::POST, CLUSTER), Ok(Some(Route::Resource(_)))));
        // Nothing of ours is that long, and it is not taken apart to find out.
        assert_eq!(parse(&Method::GET, &"/a".repeat(PATH_BYTES)), Err(InvalidId::TooLong));
    }

    proptest::proptest! {
        #[test]
        fn any_path_is_read_or_refused(path in "(/(subscriptions|resourceGroups|providers|a|x|\\PC{0,3})){0,9}") {
            for method in [Method::GET, Method::POST] {
                let _ = parse(&method, &path);
            }
        }
    }
}
