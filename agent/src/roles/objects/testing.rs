//! An apiserver that is a map, as far as roles use one.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard},
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};

/// Objects by path, collections that are answered with an error, what somebody else is about to create, and what was
/// written: paths and bodies.
#[derive(Clone, Default)]
pub struct Map(
    Arc<Mutex<BTreeMap<String, Value>>>,
    Arc<Mutex<Option<(&'static str, StatusCode)>>>,
    Arc<Mutex<Option<(String, Value)>>>,
    Arc<Mutex<Vec<(String, Value)>>>,
);

/// Plural names of what is kept.
const COLLECTIONS: [&str; 14] = [
    "extensionconfigs",
    "fluxconfigs",
    "gitconfigs",
    "secrets",
    "namespaces",
    "serviceaccounts",
    "rolebindings",
    "clusterrolebindings",
    "gitrepositories",
    "buckets",
    "ocirepositories",
    "kustomizations",
    "helmreleases",
    "leases",
];

/// A merge patch (RFC 7396).
fn merge(into: &mut Value, patch: Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    into.remove(&key);
                } else {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (into, patch @ Value::Object(_)) => {
            *into = json!({});
            merge(into, patch);
        }
        (into, patch) => *into = patch,
    }
}

/// Whether an object has these labels: `a=b,c`, as a query has them.
fn is_selected(object: &Value, query: &str) -> bool {
    let Some((_, selector)) = query.split_once("labelSelector=") else { return true };
    let selector = selector.split('&').next().unwrap_or_default();
    let selector = selector.replace("%2F", "/").replace("%3D", "=").replace("%2C", ",");
    selector.split(',').all(|one| match one.split_once('=') {
        Some((key, value)) => object["metadata"]["labels"][key] == value,
        None => !object["metadata"]["labels"][one].is_null(),
    })
}

impl Map {
    /// All that is there.
    pub fn all(&self) -> MutexGuard<'_, BTreeMap<String, Value>> {
        self.0.lock().unwrap()
    }

    /// Answers for this collection with this code from now on; for none.
    pub fn refuse(&self, collection: Option<(&'static str, StatusCode)>) {
        *self.1.lock().unwrap() = collection;
    }

    /// Somebody else creates this at a path just before the next creation there.
    pub fn precede(&self, path: &str, object: Value) {
        *self.2.lock().unwrap() = Some((path.to_owned(), object));
    }

    /// What was written, in order: paths and bodies.
    pub fn written(&self) -> Vec<(String, Value)> {
        self.3.lock().unwrap().clone()
    }

    /// Changes what is at a path.
    pub fn change(&self, path: &str, patch: Value) {
        merge(self.all().get_mut(path).unwrap(), patch);
    }

    /// A client whose namespace is `towline`.
    pub fn client(&self) -> kube::Client {
        let map = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let map = map.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let applies =
                    head.headers.get("content-type").is_some_and(|kind| kind == "application/apply-patch+yaml");
                let query = head.uri.query().unwrap_or_default();
                let (status, text) = if query.contains("watch=true") {
                    (StatusCode::OK, String::new())
                } else {
                    let (status, value) = map.answer(&head.method, (head.uri.path(), query), &body, applies);
                    (status, value.to_string())
                };
                let response = Response::builder().status(status).header("content-type", "application/json");
                Ok::<_, Infallible>(response.body(Full::new(Bytes::from(text))).unwrap())
            }
        });
        kube::Client::new(service, "towline")
    }

    fn answer(&self, method: &Method, (path, query): (&str, &str), body: &[u8], applies: bool) -> (StatusCode, Value) {
        let mut objects = self.all();
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let none = (
            StatusCode::NOT_FOUND,
            json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "none"}),
        );
        let path = path.trim_end_matches("/status");
        let (parent, plural) = path.rsplit_once('/').unwrap_or_default();
        let refused = *self.1.lock().unwrap();
        if let Some((_, code)) = refused.filter(|(collection, _)| path.split('/').any(|part| part == *collection)) {
            let status = json!({"kind": "Status", "status": "Failure", "code": code.as_u16(), "message": "refused"});
            return (code, status);
        }
        if method != Method::GET {
            self.3.lock().unwrap().push((path.to_owned(), body.clone()));
        }
        let number = objects.len();
        let made = |mut object: Value, name: &str| {
            let meta = &mut object["metadata"];
            meta["name"] = name.into();
            meta["uid"] = format!("uid-{number}-{name}").into();
            meta["resourceVersion"] = "1".into();
            meta["generation"] = 1.into();
            meta["creationTimestamp"] = "2026-11-27T10:00:00Z".into();
            object
        };
        match (method, COLLECTIONS.contains(&plural)) {
            (&Method::GET, true) => {
                // Of one namespace, or of all.
                let (own, any) = (format!("{path}/"), format!("/{plural}/"));
                let is_below = |key: &str| {
                    key.starts_with(&own) || (key.starts_with(&format!("{parent}/namespaces/")) && key.contains(&any))
                };
                let found = objects.iter().filter(|(key, one)| is_below(key) && is_selected(one, query));
                let items: Vec<_> = found.map(|(_, one)| one.clone()).collect();
                let meta = json!({"resourceVersion": "1"});
                (StatusCode::OK, json!({"kind": "List", "apiVersion": "v1", "metadata": meta, "items": items}))
            }
            (&Method::POST, _) => {
                let name = body["metadata"]["name"].as_str().unwrap().to_owned();
                let path = format!("{path}/{name}");
                if let Some((_, first)) = self.2.lock().unwrap().take_if(|(of, _)| *of == path) {
                    objects.insert(path.clone(), first);
                }
                if objects.contains_key(&path) {
                    let status = json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "AlreadyExists", "message": "exists"});
                    return (StatusCode::CONFLICT, status);
                }
                let object = made(body, &name);
                objects.insert(path, object.clone());
                (StatusCode::CREATED, object)
            }
            (&Method::GET, false) => objects.get(path).map_or(none, |object| (StatusCode::OK, object.clone())),
            (&Method::DELETE, _) => {
                let done = (StatusCode::OK, json!({"kind": "Status", "status": "Success"}));
                match objects.get_mut(path) {
                    Some(object) if object["metadata"]["finalizers"].is_array() => {
                        let meta = &mut object["metadata"];
                        if meta["deletionTimestamp"].is_null() {
                            meta["deletionTimestamp"] = crate::identity::spell(std::time::SystemTime::now()).into();
                        }
                        done
                    }
                    Some(_) => {
                        objects.remove(path);
                        done
                    }
                    None => none,
                }
            }
            (&Method::PUT, _) => {
                let version = objects.get(path).map(|one| one["metadata"]["resourceVersion"].clone());
                let (Some(version), mut body) = (version, body) else { return none };
                if version != body["metadata"]["resourceVersion"] {
                    let status = json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict", "message": "changed"});
                    return (StatusCode::CONFLICT, status);
                }
                body["metadata"]["resourceVersion"] = format!("{}+", version.as_str().unwrap_or_default()).into();
                objects.insert(path.to_owned(), body.clone());
                (StatusCode::OK, body)
            }
            _ if objects.contains_key(path) => {
                let object = objects.get_mut(path).unwrap();
                let before = object["spec"].clone();
                merge(object, body);
                if object["spec"] != before {
                    object["metadata"]["generation"] =
                        (object["metadata"]["generation"].as_i64().unwrap_or(0) + 1).into();
                }
                let object = object.clone();
                let is_free = object["metadata"]["finalizers"].is_null();
                if is_free && !object["metadata"]["deletionTimestamp"].is_null() {
                    objects.remove(path);
                }
                (StatusCode::OK, object)
            }
            _ if applies => {
                let object = made(body, plural);
                objects.insert(path.to_owned(), object.clone());
                (StatusCode::OK, object)
            }
            _ => none,
        }
    }
}
