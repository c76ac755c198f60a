//! What the resource API answers beside resources: where everything is, providers, operations, events, service
//! principals, sessions, and what `az` asks Microsoft Graph. The test compares with [`super::super::route`].

use serde_json::{Map, Value, json};

use super::{content, error_schema, names, responses};

const SUBSCRIPTION: &str = "/subscriptions/{subscriptionId}";
const GROUP: &str = "/subscriptions/{subscriptionId}/resourceGroups/{resourceGroupName}";
const CLUSTER: &str = "/subscriptions/{subscriptionId}/resourceGroups/{resourceGroupName}/providers/Microsoft.Kubernetes/connectedClusters/{clusterName}";
const PRINCIPALS: &str = "/providers/Microsoft.Authorization/servicePrincipals";
const SESSIONS: &str = "/providers/Microsoft.Kubernetes/sessions";
const LOCATION: &str = "/subscriptions/{subscriptionId}/providers/Microsoft.Kubernetes/locations/{location}";

/// The paths with their operations.
pub fn paths() -> Map<String, Value> {
    let mut paths = Map::new();
    for (path, item) in
        [open(), providers(), operations(), lists(), extension_types(), principals(), sessions(), graph()]
            .into_iter()
            .flatten()
    {
        paths.insert(path, item);
    }
    paths
}

type Items = Vec<(String, Value)>;

/// What needs no sign-in.
fn open() -> Items {
    let free = |id: &str, schema: Value| json!({"parameters": [], "get": {"operationId": id, "security": [], "responses": responses(&[("200", schema)], false)}});
    let text = || json!({"type": "string"});
    let metadata = json!({
        "type": "object",
        "required": ["resourceManager", "authentication"],
        "properties": {
            "name": text(), "resourceManager": text(), "portal": text(), "graph": text(),
            "authentication": {"type": "object", "properties": {
                "loginEndpoint": text(), "audiences": {"type": "array", "items": text()}, "tenant": text(), "identityProvider": text(),
            }},
            "suffixes": {"type": "object"},
        },
    });
    let key = json!({"type": "object", "required": ["token", "name", "publicKey", "location"], "properties": {
        "token": text(), "name": text(), "publicKey": text(), "location": text(), "tags": {"type": "object"},
    }});
    let made = json!({"type": "object", "required": ["clusterId", "principalId", "tenantId"], "properties": {
        "clusterId": text(), "principalId": text(), "tenantId": text(),
    }});
    let settings = json!({"type": "object", "required": ["urls", "issuers", "version", "tenantId"], "properties": {
        "urls": {"type": "array", "items": text()}, "roots": text(), "version": text(), "tenantId": text(),
        "issuers": {"type": "array", "items": {"type": "object"}},
        "catalogue": {"type": "object", "required": ["id", "keys"], "properties": {
            "id": text(), "keys": {"type": "array", "items": text()},
        }},
    }});
    let enrol = json!({"parameters": [], "post": {
        "operationId": "enrol-by-token", "security": [],
        "description": "Creates a connected cluster by a one-time enrolment token.",
        "requestBody": content(&key), "responses": responses(&[("200", made.clone())], true),
    }});
    let question = json!({"type": "object", "required": ["clusterId", "challenge", "signature"], "properties": {
        "clusterId": text(), "challenge": text(), "signature": text(),
    }});
    let enrolled = json!({"parameters": [], "post": {
        "operationId": "ask-whether-enrolled", "security": [],
        "description": "Tells who signs a fresh challenge with a cluster's onboarding key that the cluster is there.",
        "requestBody": content(&question), "responses": responses(&[("200", made)], true),
    }});
    vec![
        ("/metadata/endpoints".to_owned(), free("get-metadata", metadata)),
        ("/openapi.json".to_owned(), free("get-openapi", json!({"type": "object", "required": ["openapi", "paths"]}))),
        ("/.towline/agent/settings".to_owned(), free("get-install-settings", settings)),
        ("/.towline/agent/enrol".to_owned(), enrol),
        ("/.towline/agent/enrolled".to_owned(), enrolled),
    ]
}

/// Providers, tenants and locations.
fn providers() -> Items {
    let text = || json!({"type": "string"});
    let provider = json!({
        "type": "object",
        "required": ["id", "namespace", "registrationState", "resourceTypes"],
        "properties": {
            "id": text(), "namespace": text(), "registrationState": text(), "registrationPolicy": text(),
            "resourceTypes": {"type": "array", "items": {"type": "object"}},
        },
    });
    let mut items = vec![
        one("/tenants", "list-tenants", list_of(json!({"type": "object"}))),
        one(&format!("{SUBSCRIPTION}/locations"), "list-locations", list_of(json!({"type": "object"}))),
        one(
            "/providers/{providerNamespace}/operations",
            "list-provider-operations",
            list_of(json!({"type": "object"})),
        ),
    ];
    for (scope, suffix) in [("", ""), (SUBSCRIPTION, "-2")] {
        items.push(one(&format!("{scope}/providers"), &format!("list-providers{suffix}"), list_of(provider.clone())));
        let at = format!("{scope}/providers/{{providerNamespace}}");
        items.push(one(&at, &format!("get-provider{suffix}"), provider.clone()));
    }
    for action in ["register", "unregister"] {
        let path = format!("{SUBSCRIPTION}/providers/{{providerNamespace}}/{action}");
        let operation = json!({"operationId": format!("{action}-provider"), "responses": responses(&[("200", provider.clone())], true)});
        items.push((path.clone(), json!({"parameters": parameters(&path, &[]), "post": operation})));
    }
    items
}

/// How far a long-running operation is.
pub(super) fn operation_status() -> Value {
    let instant = || json!({"type": "string", "format": "date-time"});
    json!({
        "type": "object",
        "required": ["id", "name", "status", "startTime"],
        "properties": {
            "id": {"type": "string"}, "name": {"type": "string"},
            "status": {"type": "string", "enum": ["InProgress", "Succeeded", "Failed", "Canceled"]},
            "startTime": instant(), "endTime": instant(), "percentComplete": {"type": "number"},
            "error": error_schema()["properties"]["error"],
        },
    })
}

/// Paths of long-running operations.
fn operations() -> Items {
    let status = operation_status();
    let result = format!("{LOCATION}/operationResults/{{operationId}}");
    let ends = responses(&[("200", json!({})), ("202", json!({}))], true);
    vec![
        one(&format!("{LOCATION}/operationStatuses/{{operationId}}"), "get-operation-status", status),
        (
            result.clone(),
            json!({"parameters": parameters(&result, &[]), "get": {"operationId": "get-operation-result", "responses": ends}}),
        ),
    ]
}

/// Resources of every kind in a scope, and events.
fn lists() -> Items {
    let resource = json!({"type": "object", "required": ["id", "name", "type"], "properties": {
        "id": {"type": "string"}, "name": {"type": "string"}, "type": {"type": "string"},
        "location": {"type": "string"}, "tags": {"type": "object"},
    }});
    let top =
        || json!({"name": "$top", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": u32::MAX}});
    let text = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string"}});
    let mut items = Vec::new();
    for (scope, suffix) in [(SUBSCRIPTION, ""), (GROUP, "-2")] {
        let path = format!("{scope}/resources");
        let query = [top(), text("$skipToken"), text("$filter")];
        items.push(with_query(&path, &format!("list-resources{suffix}"), list_of(resource.clone()), &query));
    }
    for (scope, suffix) in [(SUBSCRIPTION, ""), (GROUP, "-2"), (CLUSTER, "-3")] {
        let path = format!("{scope}/providers/{}", crate::api::events::NAME);
        let after = json!({"name": "after", "in": "query", "schema": {"type": "integer", "minimum": 0, "maximum": i64::MAX}, "description": "the id of the event behind which the page begins; if some behind it are no longer kept, or it is not known, the first event of the page is of the type io.towline.events.gap"});
        let (path, mut item) = with_query(&path, &format!("list-events{suffix}"), list_of(event()), &[top(), after]);
        item["get"]["description"] = "With Accept: text/event-stream a stream of server-sent events, which begins behind the header Last-Event-ID and does not end by itself.".into();
        items.push((path, item));
    }
    items
}

/// The schema of an event in the form of a CloudEvent.
fn event() -> Value {
    let text = || json!({"type": "string"});
    let mut types = crate::store::events::Kind::ALL.map(crate::store::events::type_of).to_vec();
    types.push(crate::events::GAP.to_owned());
    json!({
        "type": "object",
        "required": ["specversion", "id", "source", "type", "subject", "time", "data"],
        "properties": {
            "specversion": {"type": "string", "enum": ["1.0"]},
            "id": text(), "source": text(), "subject": text(), "datacontenttype": text(),
            "type": {"type": "string", "enum": types},
            "time": {"type": "string", "format": "date-time"},
            "data": {"type": "object", "required": ["resourceId"], "properties": {
                "resourceId": text(), "status": text(), "previousStatus": text(),
                "reason": {"type": "string", "description": "of a gap: which events are missing, and why; of an upgrade: why it is where it is, in a word"},
                "agentVersion": text(), "gatewayVersion": text(), "message": text(),
            }},
        },
    })
}

/// What the catalogue of extensions offers, by location and by cluster.
fn extension_types() -> Items {
    let text = || json!({"type": "string"});
    let texts = || json!({"type": "array", "items": {"type": "string"}});
    let named = |properties: Value| {
        json!({"type": "object", "required": ["id", "name", "type", "properties"], "properties": {
            "id": text(), "name": text(), "type": text(), "properties": properties,
        }})
    };
    let scopes = json!({"type": "object", "required": ["defaultScope"], "properties": {
        "defaultScope": text(), "scopes": texts(),
        "clusterScopeSettings": {"type": "object", "properties": {"properties": {"type": "object", "properties": {
            "allowMultipleInstances": {"type": "boolean"}, "defaultReleaseNamespace": text(),
        }}}},
    }});
    let kind = named(json!({"type": "object", "properties": {
        "isSystemExtension": {"type": "boolean"}, "isManagedIdentityRequired": {"type": "boolean"},
        "description": text(), "publisher": text(), "supportedClusterTypes": texts(), "supportedScopes": scopes,
        "releaseTrains": texts(),
    }}));
    let unsupported = json!({"type": "object", "properties": {
        "connectedCluster": {"type": "array", "items": {"type": "object", "properties": {
            "distributions": texts(), "unsupportedVersions": texts(),
        }}},
    }});
    let version = named(json!({"type": "object", "required": ["version"], "properties": {
        "version": text(), "supportedClusterTypes": texts(), "unsupportedKubernetesVersions": unsupported,
        "releaseTrains": texts(), "deprecated": {"type": "boolean"}, "platforms": texts(),
        "supportedDistributions": texts(), "kubeVersion": text(),
    }}));
    let filter = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string"}});
    let of_types = ["publisherId", "offerId", "planId", "releaseTrain", "clusterType"].map(filter);
    let of_versions = [
        filter("releaseTrain"),
        filter("clusterType"),
        json!({"name": "majorVersion", "in": "query", "schema": {"type": "integer", "minimum": 0, "maximum": u32::MAX}}),
        json!({"name": "showLatest", "in": "query", "schema": {"type": "string", "enum": ["true", "false"]}}),
    ];
    let location =
        format!("{SUBSCRIPTION}/providers/Microsoft.KubernetesConfiguration/locations/{{location}}/extensionTypes");
    let cluster = format!("{CLUSTER}/providers/{}", crate::api::extension_types::NAME);
    let mut items = Vec::new();
    for (list, suffix) in [(location, ""), (cluster, "-2")] {
        let item = format!("{list}/{{extensionType}}");
        let versions = format!("{item}/versions");
        let id = |what: &str| format!("{what}{suffix}");
        items.push(with_query(&list, &id("list-extensionTypes"), list_of(kind.clone()), &of_types));
        items.push(one(&item, &id("get-extensionType"), kind.clone()));
        items.push(with_query(&versions, &id("list-extensionTypeVersions"), list_of(version.clone()), &of_versions));
        items.push(one(&format!("{versions}/{{version}}"), &id("get-extensionTypeVersion"), version.clone()));
    }
    items
}

/// Service principals of the built-in issuer.
fn principals() -> Items {
    let text = || json!({"type": "string"});
    let instant = || json!({"type": "string", "format": "date-time"});
    let secret = json!({"type": "object", "required": ["id"], "properties": {"id": text(), "created": instant(), "expires": instant()}});
    let shown = json!({
        "type": "object",
        "required": ["displayName", "objectId", "clientId", "disabled", "secrets"],
        "properties": {
            "displayName": text(), "objectId": text(), "clientId": text(), "disabled": {"type": "boolean"},
            "secrets": {"type": "array", "items": secret},
            "clientSecret": {"type": "string", "description": "only in the answer that made it"}, "secretId": text(),
        },
    });
    let life = json!({"type": "integer", "minimum": 1, "description": "seconds that the secret is good for; a year if absent"});
    let new = json!({"type": "object", "required": ["displayName"], "properties": {"displayName": text(), "secretLifetimeSeconds": life.clone()}});
    let rotate =
        json!({"type": "object", "properties": {"keepExisting": {"type": "boolean"}, "secretLifetimeSeconds": life}});
    let item = format!("{PRINCIPALS}/{{servicePrincipal}}");
    let done = |good: &[(&str, Value)]| responses(good, true);
    let (all, mut list) = one(PRINCIPALS, "list-servicePrincipals", list_of(shown.clone()));
    list["post"] = json!({"operationId": "create-servicePrincipal", "requestBody": content(&new), "responses": done(&[("201", shown.clone())])});
    let (item, mut single) = one(&item, "get-servicePrincipal", shown.clone());
    single["delete"] = json!({"operationId": "delete-servicePrincipal", "responses": done(&[("200", shown.clone()), ("204", json!({}))])});
    let again = format!("{item}/rotate");
    let rotation = json!({"parameters": parameters(&again, &[]), "post": {
        "operationId": "rotate-servicePrincipal", "requestBody": content(&rotate), "responses": done(&[("200", shown)]),
    }});
    vec![(all, list), (item, single), (again, rotation)]
}

/// Paths of open sessions.
fn sessions() -> Items {
    let text = || json!({"type": "string"});
    let session = json!({
        "type": "object",
        "required": ["id", "user", "own", "cluster", "what", "started"],
        "properties": {
            "id": text(), "user": text(), "own": {"type": "boolean"}, "cluster": text(), "what": text(),
            "started": {"type": "string", "format": "date-time"},
            "ends": {"type": ["string", "null"], "format": "date-time"},
            "replica": text(),
        },
    });
    let of = json!({"name": "cluster", "in": "query", "schema": {"type": "string"}, "description": "only sessions of this cluster, by its id"});
    let by = json!({"name": "user", "in": "query", "schema": {"type": "string"}, "description": "only sessions of this user, by the name that the list shows"});
    let mut list = list_of(session.clone());
    list["properties"]["total"] = json!({"type": "integer"});
    list["properties"]["incomplete"] = json!({
        "type": "array",
        "description": "gateways of which sessions are missing, and why",
        "items": {
            "type": "object",
            "required": ["replica", "reason"],
            "properties": {"replica": text(), "reason": text()},
        },
    });
    let (at, mut item) = one(&format!("{SESSIONS}/{{sessionId}}"), "get-session", session);
    item["delete"] = json!({"operationId": "end-session", "responses": responses(&[("204", json!({}))], true)});
    vec![with_query(SESSIONS, "list-sessions", list, &[of, by]), (at, item)]
}

/// The few questions of Microsoft Graph.
fn graph() -> Items {
    let found = list_of(json!({"type": "object", "required": ["id", "displayName"]}));
    let filter = || [json!({"name": "$filter", "in": "query", "schema": {"type": "string"}})];
    let unversioned = |path: &str, id: &str| {
        let get = json!({"operationId": id, "responses": responses(&[("200", found.clone())], false)});
        (path.to_owned(), json!({"parameters": filter(), "get": get}))
    };
    let ids = json!({"type": "object", "required": ["ids"], "properties": {
        "ids": {"type": "array", "items": {"type": "string"}, "maxItems": 1000},
    }});
    let by_ids = json!({"parameters": [], "post": {
        "operationId": "graph-by-ids", "requestBody": content(&ids), "responses": responses(&[("200", found.clone())], true),
    }});
    let caller = json!({"type": "object", "required": ["id", "displayName", "userPrincipalName"]});
    let me = json!({"parameters": [], "get": {"operationId": "graph-me", "responses": responses(&[("200", caller)], false)}});
    vec![
        ("/v1.0/me".to_owned(), me),
        unversioned("/v1.0/users", "graph-users"),
        unversioned("/v1.0/servicePrincipals", "graph-servicePrincipals"),
        ("/v1.0/directoryObjects/getByIds".to_owned(), by_ids),
    ]
}

fn one(path: &str, id: &str, schema: Value) -> (String, Value) {
    with_query(path, id, schema, &[])
}

fn with_query(path: &str, id: &str, schema: Value, query: &[Value]) -> (String, Value) {
    let get = json!({"operationId": id, "responses": responses(&[("200", schema)], false)});
    (path.to_owned(), json!({"parameters": parameters(path, query), "get": get}))
}

/// The names in a path, and any api-version.
fn parameters(path: &str, more: &[Value]) -> Value {
    let version = json!({"name": "api-version", "in": "query", "required": true, "schema": {
        "type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}(-preview)?$", "example": "2024-01-01",
    }});
    names(path).into_iter().chain([version]).chain(more.iter().cloned()).collect()
}

fn list_of(item: Value) -> Value {
    json!({"type": "object", "required": ["value"], "properties": {
        "value": {"type": "array", "items": item},
        "nextLink": {"type": "string", "format": "uri"},
    }})
}

#[cfg(test)]
mod tests {
    use http::Method;

    use crate::api::route::{self, Route};

    /// One word for each thing that is answered; a new one does not compile without.
    fn word(route: &Route) -> &'static str {
        match route {
            Route::Metadata => "metadata",
            Route::OpenApi => "document",
            Route::Tenants => "tenants",
            Route::Resource(_) => "resource",
            Route::Collection { .. } => "collection",
            Route::Everything(_) => "everything",
            Route::Events(_) => "events",
            Route::ExtensionTypes(_) => "extension types",
            Route::Action(..) => "action",
            Route::Providers { subscription: None, namespace: None } => "providers",
            Route::Providers { subscription: None, namespace: Some(_) } => "provider",
            Route::Providers { subscription: Some(_), namespace: None } => "providers of a subscription",
            Route::Providers { subscription: Some(_), namespace: Some(_) } => "provider of a subscription",
            Route::Register { .. } => "register",
            Route::Operations(_) => "operations",
            Route::OperationStatus(..) | Route::OperationOf(..) => "status",
            Route::OperationResult(..) => "result",
            Route::Locations(_) => "locations",
            Route::Graph(_) => "graph",
            Route::ServicePrincipals(_) => "service principals",
            Route::Sessions(None) => "sessions",
            Route::Sessions(Some(_)) => "session",
        }
    }

    #[test]
    fn the_document_names_whatever_is_answered_and_nothing_else() {
        let mut words = std::collections::BTreeSet::new();
        let document = super::super::document();
        for (path, item) in document["paths"].as_object().unwrap() {
            if path.starts_with("/.towline/") || path.starts_with("/{tenantId}/") {
                continue;
            }
            let mut given = path.replace("{subscriptionId}", "11111111-1111-4111-8111-111111111111");
            while let Some((before, rest)) = given.clone().split_once('{') {
                given = format!("{before}x{}", rest.split_once('}').unwrap().1);
            }
            for method in ["get", "post"].iter().filter(|method| item.get(**method).is_some()) {
                let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
                let route = route::parse(&method, &given).unwrap();
                words.insert(word(&route.unwrap_or_else(|| panic!("{method} {path} leads nowhere"))));
            }
        }
        assert_eq!(words.len(), 22, "{words:?}");
        for (path, action) in
            [("connectedClusters/{name}", "listClusterUserCredential"), ("{resourceGroupName}", "createEnrolmentToken")]
        {
            let ends = format!("{path}/{action}");
            assert!(document["paths"].as_object().unwrap().keys().any(|path| path.ends_with(&ends)), "{ends}");
        }
    }
}
