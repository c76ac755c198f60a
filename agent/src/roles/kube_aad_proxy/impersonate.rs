//! From a proved identity to `Impersonate-*`, on the fresh header map of admission. The only file that writes those
//! headers.
//!
//! An [`UpstreamHead`] cannot be made without a [`Principal`]: a request that carries the agent's own credential and
//! impersonates nobody is not expressible, but for the reviews that [`UpstreamHead::review`] spells out.
//!
//! What RBAC cannot refuse is refused here: names that Kubernetes reserves (`system:`, docs/threats.md TH8). RBAC for
//! the agent: `impersonate` on `users`, `groups`, `serviceaccounts`, and in `authentication.k8s.io` on `uids`,
//! `userextras/<key>` for each configured key and for [`ORIGINAL_USER`].

use std::collections::{BTreeMap, BTreeSet};

use auth::{
    kubernetes::RequestInfo,
    rbac::call::{RESERVED_PREFIX, verb_group},
    token::Identity,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header, uri::PathAndQuery};
use secrecy::{ExposeSecret as _, SecretString};
use tunnel::exchange;
use types::limits;

use super::{
    Refusal,
    admit::{Admitted, Asked, is_plain_name},
    target::Target,
};
use crate::config;

/// The stage's name in logs, metrics and refusals.
pub const STAGE: &str = "impersonate";

/// The extra that names the real user behind a nested impersonation.
pub const ORIGINAL_USER: &str = "towline.io/original-user";

/// The extra that role guard gives to users, and nobody else: by which issuer's token they came to the apiserver.
pub const ISSUER: &str = "towline.io/issuer";

const USER: HeaderName = HeaderName::from_static("impersonate-user");
const UID: HeaderName = HeaderName::from_static("impersonate-uid");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");

/// The header of the extra [`ORIGINAL_USER`], whose `/` is percent-encoded.
const ORIGINAL: HeaderName = HeaderName::from_static("impersonate-extra-towline.io%2foriginal-user");
/// The header of the extra [`PROBE_EXTRA`], whose `/` is percent-encoded.
const PROBE: HeaderName = HeaderName::from_static("impersonate-extra-towline.io%2fprobe");

/// The prefix of names that Kubernetes keeps for itself.
const RESERVED: &str = "system:";
/// How the user name of a service account begins.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";
/// How the user name of a node begins, and the group of all nodes.
const NODE: &str = "system:node:";
const NODES: &str = "system:nodes";
/// The namespace whose service accounts are as good as cluster-admin.
const KUBE_SYSTEM: &str = "kube-system";
/// What the agent asks in its own name, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Review {
    /// What another user may do.
    Subject,
    /// What the agent may do.
    Own,
    /// Who the apiserver takes [`PROBE_USER`] for.
    Probe,
}

/// Whom the agent impersonates to find out whether the apiserver has constrained impersonation: nobody.
pub(super) const PROBE_USER: &str = "towline.io:probe";
/// The extra that it brings along, which the agent may impersonate by the rights of constrained impersonation alone.
pub(super) const PROBE_EXTRA: &str = "towline.io/probe";
/// That extra's value.
pub(super) const PROBE_VALUE: &str = "constrained-impersonation";

impl Review {
    fn path(self) -> &'static str {
        match self {
            Self::Subject => "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            Self::Own => "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            Self::Probe => "/apis/authentication.k8s.io/v1/selfsubjectreviews",
        }
    }
}

/// Whose names may be impersonated.
#[derive(Debug, Clone, Default)]
pub struct Names {
    extras: BTreeSet<String>,
    allow_reserved: BTreeSet<String>,
}

impl Names {
    /// The names that the configuration allows.
    pub fn new(settings: &config::Impersonation) -> Self {
        Self {
            extras: settings.extras.iter().cloned().collect(),
            allow_reserved: settings.allow_reserved.iter().cloned().collect(),
        }
    }

    fn may(&self, kind: &str, name: &str) -> Result<(), Refusal> {
        if !is_plain_name(name) {
            return Err(Refusal::forbidden(STAGE, format!("a {kind} name is empty, too long or not plain text")));
        }
        // Groups of this prefix carry rights in the cluster, which the agent alone gives (Z9).
        if name.get(..RESERVED_PREFIX.len()).is_some_and(|front| front.eq_ignore_ascii_case(RESERVED_PREFIX)) {
            return Err(Refusal::forbidden(STAGE, format!("{kind} {name:?} is reserved and cannot be impersonated")));
        }
        // Compared without case: nobody may come close to a reserved name.
        let reserved = name.get(..RESERVED.len()).is_some_and(|front| front.eq_ignore_ascii_case(RESERVED));
        if reserved && !self.allow_reserved.contains(name) {
            return Err(Refusal::forbidden(STAGE, format!("{kind} {name:?} is reserved and cannot be impersonated")));
        }
        Ok(())
    }

    /// What a nested impersonation may ask for beyond that, when the cluster's own RBAC says so: service accounts and
    /// their groups, but for those of kube-system.
    fn may_ask(&self, kind: &str, name: &str) -> Result<(), Refusal> {
        let harmless = name == "system:authenticated" || name == "system:serviceaccounts";
        let namespace = match kind {
            "user" => account_of(name).map(|(namespace, _)| namespace),
            _ => name.strip_prefix("system:serviceaccounts:"),
        };
        let elsewhere = namespace.is_some_and(|namespace| !namespace.is_empty() && namespace != KUBE_SYSTEM);
        if is_plain_name(name) && ((kind == "group" && harmless) || elsewhere) { Ok(()) } else { self.may(kind, name) }
    }

    /// Whether what an apiserver asks about the verb `impersonate` may be asked for at all: it asks of each part of
    /// `kubectl --as` by a review of its own, and [`Subject::may_be_asked`] says the same of all parts at once. A
    /// question without a name is about every name, also the reserved ones.
    pub fn may_be_reviewed(&self, asked: &RequestInfo) -> bool {
        const AUTHENTICATION: &str = "authentication.k8s.io";
        let name = asked.name.as_str();
        match (&*asked.api_group, &*asked.resource, &*asked.subresource) {
            ("", "users", "") => self.may_ask("user", name).is_ok(),
            ("", "groups", "") => self.may_ask("group", name).is_ok(),
            ("", "serviceaccounts", "") => {
                self.may_ask("user", &format!("{SERVICE_ACCOUNT}{}:{name}", asked.namespace)).is_ok()
            }
            (AUTHENTICATION, "uids", "") => is_plain_name(name),
            (AUTHENTICATION, "userextras", key) => !is_agents_own(key) && is_plain_name(name),
            _ => false,
        }
    }
}

/// Somebody who may be impersonated: proved by a token, or allowed by the cluster for somebody who was.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Subject {
    user: String,
    uid: Option<String>,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl Subject {
    /// The user of a verified token, if none of the names is reserved. All groups or none: a group left out would be a
    /// wrong authorisation (docs/threats.md TH9).
    pub fn of(identity: &Identity, names: &Names) -> Result<Self, Refusal> {
        let extra = identity.extra.iter().filter(|(key, _)| names.extras.contains(*key) && !is_agents_own(key));
        let subject = Self {
            user: identity.username.clone(),
            uid: identity.uid.clone(),
            groups: identity.groups.clone(),
            extra: extra.map(|(key, values)| (key.clone(), values.clone())).collect(),
        };
        subject.checked(names)
    }

    fn checked(self, names: &Names) -> Result<Self, Refusal> {
        names.may("user", &self.user)?;
        self.groups.iter().try_for_each(|group| names.may("group", group))?;
        if self.uid.as_ref().is_some_and(|uid| !is_plain_name(uid)) {
            return Err(Refusal::forbidden(STAGE, "the uid is empty, too long or not plain text"));
        }
        if let Some((key, _)) = self.extra.iter().find(|(_, values)| !values.iter().all(|value| is_plain_name(value))) {
            return Err(Refusal::forbidden(STAGE, format!("extra {key:?} is not plain text")));
        }
        Ok(self)
    }

    /// Checks names that a client asks for; whether this user may have them is for the cluster to say.
    pub fn may_be_asked(asked: &Asked, names: &Names) -> Result<(), Refusal> {
        names.may_ask("user", &asked.user)?;
        asked.groups.iter().try_for_each(|group| names.may_ask("group", group))?;
        if let Some(key) = asked.extra.keys().find(|key| is_agents_own(key)) {
            return Err(Refusal::forbidden(STAGE, format!("extra {key:?} is reserved")));
        }
        Ok(())
    }

    /// The one that was asked for. Only [`super::review`] calls this, after the cluster allowed each part.
    pub(super) fn nested(asked: Asked, original: &Self) -> Self {
        let Asked { user, uid, groups, mut extra } = asked;
        extra.insert(ORIGINAL_USER.to_owned(), vec![original.user.clone()]);
        Self { user, uid, groups, extra }
    }

    /// A node that was asked for by its name alone, with the group that an apiserver gives it where constrained
    /// impersonation allows that.
    pub(super) fn nested_node(asked: Asked, original: &Self) -> Self {
        let mut node = Self::nested(asked, original);
        node.groups.push(NODES.to_owned());
        node
    }

    /// With the groups that carry these verbs in the cluster, for one call that roles and assignments allow.
    pub(super) fn with_verbs(mut self, verbs: &[&str]) -> Self {
        self.groups.extend(verbs.iter().map(|verb| verb_group(verb)));
        self
    }

    /// The user name.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Value of `Impersonate-Uid`; absent if the token, or the client's own request to impersonate, gives none.
    pub fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }

    /// Values of `Impersonate-Group`, including the groups that carry verbs in the cluster.
    pub fn groups(&self) -> &[String] {
        &self.groups
    }

    /// Values of `Impersonate-Extra-*`, by key.
    pub fn extra(&self) -> &BTreeMap<String, Vec<String>> {
        &self.extra
    }
}

/// In whose name a request goes to the apiserver.
#[derive(Debug)]
pub enum Principal {
    /// The agent's own credential, impersonating this subject.
    Impersonated(Subject),
    /// A token that the agent cannot judge (docs/features.md A6): the apiserver does, also what it asks to impersonate.
    PassThrough {
        /// The service-account token, which goes to the apiserver unchanged.
        token: SecretString,
        /// `--as` of that service account.
        asked: Option<Asked>,
    },
}

impl Principal {
    /// How many headers name it, at the most.
    fn lines(&self) -> usize {
        let lines = |groups: &[String], extra: &BTreeMap<String, Vec<String>>| {
            2 + groups.len() + extra.values().map(Vec::len).sum::<usize>()
        };
        match self {
            Self::Impersonated(subject) => lines(&subject.groups, &subject.extra),
            Self::PassThrough { asked, .. } => asked.as_ref().map_or(0, |asked| lines(&asked.groups, &asked.extra)),
        }
    }
}

/// The head of a request to the apiserver. Made only here.
#[derive(Debug, Clone)]
pub struct UpstreamHead {
    method: Method,
    target: Target,
    headers: HeaderMap,
    upgrade: bool,
    own_credential: bool,
}

impl UpstreamHead {
    /// An admitted request in the name of `principal`.
    pub fn new(admitted: Admitted, principal: &Principal) -> Result<Self, Refusal> {
        let Admitted { method, target, mut headers, upgrade, content_length, .. } = admitted;
        // Admission took these out; this is the last line.
        exchange::remove_where(&mut headers, names_somebody);
        // With what is written here and in `authorize`: more is refused below, and a map that grows is copied.
        headers.reserve((principal.lines() + 3).min(limits::HEADER_COUNT));
        match principal {
            Principal::Impersonated(subject) => write_subject(&mut headers, subject)?,
            Principal::PassThrough { token, asked } => {
                let mut value = HeaderValue::try_from(format!("Bearer {}", token.expose_secret()))
                    .map_err(|_| Refusal::unauthorized(STAGE, "the token is not a header value"))?;
                value.set_sensitive(true);
                headers.insert(header::AUTHORIZATION, value);
                if let Some(Asked { user, uid, groups, extra }) = asked.clone() {
                    write_subject(&mut headers, &Subject { user, uid, groups, extra })?;
                }
            }
        }
        if let Some(value) = &upgrade {
            headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(header::UPGRADE, value.clone());
        } else if let Some(length) = content_length {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        if headers.len() > limits::HEADER_COUNT {
            return Err(Refusal::new(
                STAGE,
                http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "RequestHeaderFieldsTooLarge",
                format!("more than {} headers with the user's groups", limits::HEADER_COUNT),
            ));
        }
        let own_credential = matches!(principal, Principal::Impersonated(_));
        Ok(Self { method, target, headers, upgrade: upgrade.is_some(), own_credential })
    }

    /// What the agent may ask in its own name.
    pub(super) fn review(review: Review, body_bytes: usize) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body_bytes));
        if review == Review::Probe {
            headers.insert(USER, HeaderValue::from_static(PROBE_USER));
            headers.insert(PROBE, HeaderValue::from_static(PROBE_VALUE));
        }
        let target = Target::Plain(PathAndQuery::from_static(review.path()));
        Self { method: Method::POST, target, headers, upgrade: false, own_credential: true }
    }

    /// The client's method, or POST for an access review.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// Path and query.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Gives up the memory of a long target once it was handed to the connection. A request that has one is never sent
    /// again.
    pub(super) fn forget_target(&mut self) {
        if matches!(self.target, Target::Long(_)) {
            self.target = Target::Plain(PathAndQuery::from_static("/"));
        }
    }

    /// With the agent's own credential, of which there is no other.
    pub(super) fn authorize(&mut self, own: HeaderValue) {
        self.headers.insert(header::AUTHORIZATION, own);
    }

    /// The headers, without `host`; with the agent's credential once the request is on its way.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Whether an upgrade is asked for.
    pub fn is_upgrade(&self) -> bool {
        self.upgrade
    }

    /// Identifies the user for limits that users share: the user's name (with `--as`, the name of the user who asks for
    /// it), or the token that is passed through.
    pub fn asks(&self) -> Option<&HeaderValue> {
        if !self.own_credential {
            return self.headers.get(header::AUTHORIZATION);
        }
        self.headers.get(ORIGINAL).or_else(|| self.headers.get(USER))
    }

    /// Whether the agent's own credential goes with it.
    pub fn needs_own_credential(&self) -> bool {
        self.own_credential
    }
}

/// Namespace and name of the service account whose user name this is. As in Kubernetes a user name that only begins
/// like one is anybody's.
pub(super) fn account_of(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT)?.split_once(':')?;
    (namespace.len() <= 63 && is_label(namespace) && is_subdomain(name)).then_some((namespace, name))
}

/// The name of the node whose user name this is.
pub(super) fn node_of(user: &str) -> Option<&str> {
    user.strip_prefix(NODE).filter(|name| is_subdomain(name))
}

/// Extras by which the cluster knows what only the agents can say. An apiserver reads keys without case.
fn is_agents_own(key: &str) -> bool {
    [ORIGINAL_USER, ISSUER].iter().any(|own| own.eq_ignore_ascii_case(key))
}

/// A DNS subdomain as Kubernetes reads it (RFC 1123).
pub(super) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

fn is_label(text: &str) -> bool {
    let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(plain) && bytes.last().is_some_and(plain) && bytes.iter().all(|b| plain(b) || *b == b'-')
}

fn names_somebody(name: &str) -> bool {
    name == "authorization" || name.starts_with("impersonate") || name.starts_with("x-remote-")
}

fn write_subject(headers: &mut HeaderMap, subject: &Subject) -> Result<(), Refusal> {
    let value = |text: &str| {
        HeaderValue::from_bytes(text.as_bytes())
            .map_err(|_| Refusal::forbidden(STAGE, "a name of the identity is not a header value"))
    };
    headers.insert(USER, value(&subject.user)?);
    if let Some(uid) = &subject.uid {
        headers.insert(UID, value(uid)?);
    }
    for group in &subject.groups {
        headers.append(GROUP, value(group)?);
    }
    for (key, values) in &subject.extra {
        let name = HeaderName::try_from(format!("impersonate-extra-{}", encode_key(key)))
            .map_err(|_| Refusal::forbidden(STAGE, "a key of the identity's extra is not a header name"))?;
        for text in values {
            headers.append(name.clone(), value(text)?);
        }
    }
    Ok(())
}

/// An extra's key as the apiserver decodes it: lower-case, and percent-encoded but for letters, digits, `-` and `.`, so
/// that no proxy in between takes offence (`_` is dropped by some).
fn encode_key(key: &str) -> String {
    let mut out = String::with_capacity(key.len());
    for byte in key.to_ascii_lowercase().bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02x}"));
        }
    }
    out
}

#[cfg(test)]
mod tests;
