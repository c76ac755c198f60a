//! What a scripted apiserver has been told to keep: enough of Kubernetes for a command that reads, lists, applies and
//! deletes objects, with a hook at each that is applied.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};

use crate::apiserver::{Connection, Received, Script, answer};

/// Called with the path of an object that is to be applied; what it returns is why that is refused.
pub type Hook = Box<dyn FnMut(&str) -> Option<String> + Send>;

/// Objects by path.
#[derive(Default)]
pub struct Objects {
    kept: Mutex<BTreeMap<String, Value>>,
    hook: Mutex<Option<Hook>>,
}

impl Objects {
    /// Nothing is kept yet.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// What an apiserver answers that keeps these. What they have not is asked of `others`.
    pub fn script(self: &Arc<Self>, others: Arc<Script>) -> Arc<Script> {
        let this = Arc::clone(self);
        Arc::new(move |request, io| match this.answered(request) {
            Some((status, body)) => answer(io, status, body.to_string().as_bytes()),
            None => others(request, io as &mut Connection),
        })
    }

    /// Calls this for each object that is applied from now on.
    pub fn at_each(&self, hook: impl FnMut(&str) -> Option<String> + Send + 'static) {
        *self.hook.lock().unwrap() = Some(Box::new(hook));
    }

    /// Takes all that comes.
    pub fn willing(&self) {
        *self.hook.lock().unwrap() = None;
    }

    /// Paths of all objects that are kept.
    pub fn paths(&self) -> Vec<String> {
        self.kept.lock().unwrap().keys().cloned().collect()
    }

    /// An object by its path.
    pub fn get(&self, path: &str) -> Option<Value> {
        self.kept.lock().unwrap().get(path).cloned()
    }

    /// Keeps an object.
    pub fn put(&self, path: &str, object: Value) {
        self.kept.lock().unwrap().insert(path.to_owned(), object);
    }

    /// Forgets every object. The hook stays.
    pub fn clear(&self) {
        self.kept.lock().unwrap().clear();
    }

    fn answered(&self, request: &Received) -> Option<(&'static str, Value)> {
        let target = String::from_utf8_lossy(request.target()).into_owned();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let text = request.text();
        if text.starts_with("PATCH ") {
            let refused = self.hook.lock().unwrap().as_mut().and_then(|hook| hook(path));
            if let Some(message) = refused {
                let said = status("Failure", &message, 507);
                return Some(("507 Insufficient Storage", said));
            }
            let mut body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
            if body["kind"] == "CustomResourceDefinition" {
                body["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
            }
            self.put(path, body.clone());
            return Some(("200 OK", body));
        }
        if text.starts_with("POST ") && path == "/api/v1/namespaces" {
            let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
            self.put(&format!("{path}/{}", body["metadata"]["name"].as_str().unwrap_or_default()), body.clone());
            return Some(("201 Created", body));
        }
        let mut kept = self.kept.lock().unwrap();
        if text.starts_with("DELETE ") {
            kept.remove(path)?;
            // A namespace goes with what is in it.
            kept.retain(|other, _| !path.contains("/namespaces/") || !other.starts_with(&format!("{path}/")));
            return Some(("200 OK", status("Success", "", 200)));
        }
        if let Some(object) = kept.get(path).filter(|_| text.starts_with("GET ")) {
            return Some(("200 OK", object.clone()));
        }
        let (above, plural) = path.rsplit_once('/')?;
        let is_one = |other: &str| {
            let mut words = other.rsplit('/');
            words.next().is_some() && words.next() == Some(plural) && other.starts_with(above)
        };
        let items: Vec<Value> = kept
            .iter()
            .filter(|(other, object)| is_one(other) && is_labelled(object, query))
            .map(|(_, object)| object.clone())
            .collect();
        (text.starts_with("GET ") && !items.is_empty())
            .then(|| ("200 OK", json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items})))
    }
}

fn is_labelled(object: &Value, query: &str) -> bool {
    let query = query.replace("%2C", ",").replace("%3D", "=").replace("%2F", "/");
    let selector = query.split('&').find_map(|part| part.strip_prefix("labelSelector=")).unwrap_or_default();
    { selector.split(',') }
        .filter_map(|one| one.split_once('='))
        .all(|(label, value)| object["metadata"]["labels"][label] == value)
}

fn status(what: &str, message: &str, code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": what, "message": message, "code": code})
}
