//! The two kinds of questions of an apiserver: TokenReview and SubjectAccessReview, in the versions `v1` and `v1beta1`,
//! which differ in one field. An answer has the version of its question.

use std::collections::BTreeMap;

use auth::kubernetes::RequestInfo;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Map, Value, json};

const VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// Why a question is none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The body is not JSON, or too deep.
    #[error("the body is not a review: {0}")]
    Json(#[from] types::json::JsonError),
    /// Another kind or version.
    #[error("expected a {kind} of {group}/v1 or {group}/v1beta1")]
    Kind {
        /// What is asked for at this path.
        kind: &'static str,
        /// The API group that the question has.
        group: &'static str,
    },
    /// A field that is missing, or of another type.
    #[error("the spec of the review cannot be read")]
    Spec,
    /// Neither of the two kinds of attributes, or both.
    #[error("the spec must have either resourceAttributes or nonResourceAttributes")]
    Attributes,
}

/// A kind of question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Whose a token is.
    Token,
    /// What somebody may do.
    Access,
}

impl Kind {
    /// As a label of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Access => "access",
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Token => "TokenReview",
            Self::Access => "SubjectAccessReview",
        }
    }

    fn group(self) -> &'static str {
        match self {
            Self::Token => "authentication.k8s.io",
            Self::Access => "authorization.k8s.io",
        }
    }

    /// The spec of a question of this kind, and the version that it was asked in.
    ///
    /// # Errors
    /// [`Malformed`] for everything else.
    pub fn read(self, body: &[u8]) -> Result<(&'static str, Value), Malformed> {
        let mut review = types::json::object(body)?;
        let other = || Malformed::Kind { kind: self.kind(), group: self.group() };
        if review.get("kind").and_then(Value::as_str) != Some(self.kind()) {
            return Err(other());
        }
        let asked = review.get("apiVersion").and_then(Value::as_str).and_then(|version| version.split_once('/'));
        let version = asked.filter(|(group, _)| *group == self.group());
        let version = VERSIONS.iter().find(|known| version.is_some_and(|(_, version)| version == **known));
        let version = version.ok_or_else(other)?;
        match review.remove("spec") {
            Some(spec @ Value::Object(_)) => Ok((version, spec)),
            _ => Err(Malformed::Spec),
        }
    }

    /// The answer with this status.
    pub fn answer(self, version: &str, status: &Value) -> Value {
        json!({
            "apiVersion": format!("{}/{version}", self.group()), "kind": self.kind(), "metadata": {}, "status": status,
        })
    }
}

/// The token of a TokenReview.
///
/// # Errors
/// [`Malformed::Spec`] without one.
pub fn token(spec: &Value) -> Result<SecretString, Malformed> {
    spec.get("token").and_then(Value::as_str).map(SecretString::from).ok_or(Malformed::Spec)
}

/// What a SubjectAccessReview asks about.
#[derive(Debug, PartialEq, Eq)]
pub struct Question {
    /// The user's name.
    pub user: String,
    /// Their uid; empty for none.
    pub uid: String,
    /// The user's groups.
    pub groups: Vec<String>,
    /// What else is known of them.
    pub extra: BTreeMap<String, Vec<String>>,
    /// What they want to do; of no resource, its path is [`Self::path`].
    pub info: RequestInfo,
    /// The path of what is no resource; else empty.
    pub path: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Spec {
    user: Option<String>,
    uid: Option<String>,
    groups: Option<Vec<String>>,
    /// The name of [`Self::groups`] in `v1beta1`.
    group: Option<Vec<String>>,
    extra: Option<BTreeMap<String, Option<Vec<String>>>>,
    resource_attributes: Option<ResourceAttributes>,
    non_resource_attributes: Option<NonResourceAttributes>,
}

/// A field that is null counts as empty, as in an apiserver, which Go decodes so.
#[derive(Deserialize, Default)]
#[serde(default)]
struct ResourceAttributes {
    namespace: Option<String>,
    verb: Option<String>,
    group: Option<String>,
    version: Option<String>,
    resource: Option<String>,
    subresource: Option<String>,
    name: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NonResourceAttributes {
    path: Option<String>,
    verb: Option<String>,
}

impl Question {
    /// Reads the spec of a SubjectAccessReview of `version`.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn read(version: &str, spec: Value) -> Result<Self, Malformed> {
        let spec: Spec = serde_json::from_value(spec).map_err(|_| Malformed::Spec)?;
        let (info, path) = match (spec.resource_attributes, spec.non_resource_attributes) {
            (Some(resource), None) => (resource.into(), String::new()),
            (None, Some(NonResourceAttributes { path, verb })) => {
                let verb = verb.unwrap_or_default().to_ascii_lowercase();
                (RequestInfo { verb: verb.into(), ..RequestInfo::default() }, path.unwrap_or_default())
            }
            _ => return Err(Malformed::Attributes),
        };
        let groups = if version == "v1beta1" { spec.group } else { spec.groups };
        Ok(Self {
            user: spec.user.unwrap_or_default(),
            uid: spec.uid.unwrap_or_default(),
            groups: groups.unwrap_or_default(),
            extra: spec.extra.unwrap_or_default().into_iter().map(|(k, v)| (k, v.unwrap_or_default())).collect(),
            info,
            path,
        })
    }
}

impl From<ResourceAttributes> for RequestInfo {
    fn from(asked: ResourceAttributes) -> Self {
        let ResourceAttributes { namespace, verb, group, version, resource, subresource, name } = asked;
        Self {
            verb: verb.unwrap_or_default().into(),
            is_resource: true,
            api_group: group.unwrap_or_default(),
            api_version: version.unwrap_or_default(),
            resource: resource.unwrap_or_default(),
            subresource: subresource.unwrap_or_default(),
            namespace: namespace.unwrap_or_default(),
            name: name.unwrap_or_default(),
            ..Self::default()
        }
    }
}

/// A field of a status, unless it says nothing.
pub fn put(status: &mut Map<String, Value>, key: &str, value: Value) {
    if !matches!(&value, Value::Null) {
        status.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn body(version: &str, kind: &str, spec: &Value) -> Vec<u8> {
        json!({"apiVersion": version, "kind": kind, "metadata": {"creationTimestamp": null}, "spec": spec})
            .to_string()
            .into_bytes()
    }

    #[test]
    fn z1_both_versions_are_read_and_answered_in_their_own() {
        let spec = json!({"user": "ann", "uid": "1", "groups": ["new"], "group": ["old"], "extra": {"oid": ["1"]},
            "resourceAttributes": {"namespace": "dev", "verb": "get", "version": "v1", "resource": "pods", "subresource": "log",
                "name": "p", "labelSelector": {"rawSelector": "a=b"}}});
        for (version, group) in [("v1", "new"), ("v1beta1", "old")] {
            let read =
                Kind::Access.read(&body(&format!("authorization.k8s.io/{version}"), "SubjectAccessReview", &spec));
            let (asked, spec) = read.unwrap();
            assert_eq!(asked, version);
            let question = Question::read(asked, spec).unwrap();
            assert_eq!((question.user.as_str(), question.groups), ("ann", vec![group.to_owned()]));
            assert_eq!((&*question.info.verb, question.info.resource_path().as_ref()), ("get", "pods/log"));
            let answer = Kind::Access.answer(asked, &json!({"allowed": false}));
            assert_eq!(answer["apiVersion"], format!("authorization.k8s.io/{version}"));
        }
    }

    #[test]
    fn z1_null_is_nothing_as_for_a_reader_in_go() {
        let null = json!({"user": "ann", "uid": null, "groups": null, "extra": null, "nonResourceAttributes": null,
            "resourceAttributes": {"namespace": null, "verb": "get", "group": null, "version": null, "resource": "pods",
                "subresource": null, "name": null}});
        let without = json!({"user": "ann", "resourceAttributes": {"verb": "get", "resource": "pods"}});
        assert_eq!(Question::read("v1", null).unwrap(), Question::read("v1", without).unwrap());
        let path = json!({"user": "ann", "nonResourceAttributes": {"path": null, "verb": null}});
        assert_eq!(Question::read("v1", path).unwrap().path, "");
    }

    #[test]
    fn z1_anything_else_is_malformed() {
        let spec = json!({"token": "t"});
        for (version, kind) in [
            ("authentication.k8s.io/v1alpha1", "TokenReview"),
            ("authentication.k8s.io/v2", "TokenReview"),
            ("authorization.k8s.io/v1", "TokenReview"),
            ("v1", "TokenReview"),
            ("authentication.k8s.io/v1", "SubjectAccessReview"),
            ("authentication.k8s.io/v1/v1", "TokenReview"),
        ] {
            assert!(
                matches!(Kind::Token.read(&body(version, kind, &spec)), Err(Malformed::Kind { .. })),
                "{version} {kind}"
            );
        }
        let v1 = "authentication.k8s.io/v1";
        assert_eq!(Kind::Token.read(&body(v1, "TokenReview", &Value::Null)), Err(Malformed::Spec));
        assert_eq!(token(&json!({"token": 7})).unwrap_err(), Malformed::Spec);
        let deep = format!("{{\"kind\": {}1{}}}", "[".repeat(10_000), "]".repeat(10_000));
        assert!(matches!(
            Kind::Token.read(deep.as_bytes()),
            Err(Malformed::Json(types::json::JsonError::Depth { .. }))
        ));
        let twice =
            br#"{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"a","token":"b"}}"#;
        assert!(matches!(Kind::Token.read(twice), Err(Malformed::Json(types::json::JsonError::Duplicate { .. }))));
        for spec in [
            json!({}),
            json!({"user": "a", "resourceAttributes": {}, "nonResourceAttributes": {}}),
            json!({"user": 1, "resourceAttributes": {}}),
        ] {
            assert!(Question::read("v1", spec).is_err());
        }
    }

    proptest! {
        #[test]
        fn z1_no_bytes_are_more_than_malformed(bytes in proptest::collection::vec(any::<u8>(), 0..512), cut in 0_usize..400) {
            for kind in [Kind::Token, Kind::Access] {
                let _ = kind.read(&bytes);
            }
            let whole = body("authorization.k8s.io/v1", "SubjectAccessReview", &json!({"user": "a", "extra": {"oid": null},
                "resourceAttributes": {"verb": "get", "resource": "pods"}}));
            let mut changed = whole.clone();
            let at = cut % changed.len();
            changed.splice(at..at, bytes);
            for text in [&whole[..at], &changed] {
                if let Ok((version, spec)) = Kind::Access.read(text) {
                    let _ = Question::read(version, spec);
                }
            }
        }
    }
}
