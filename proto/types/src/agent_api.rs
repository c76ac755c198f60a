//! What an agent and its gateway say to each other beside users' requests (docs/agent.md): JSON bodies of plain HTTP
//! exchanges. Before a cluster has a certificate they go over HTTPS to the gateway's public listener, below
//! [`ENROLMENT_PREFIX`]; with one, over streams of role [`ROLE`] on the cluster's tunnel, where the cluster's id is
//! that of the certificate and no message names it.
//!
//! Unknown members are ignored, so that either side may be newer.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde::{Deserialize, Serialize};

use crate::ids::ClusterId;

/// The role of streams that an agent opens for its own exchanges.
pub const ROLE: &str = "agent-api";
/// The role of streams by which an agent reaches the source of a flux configuration through its gateway (docs/gitops.md):
/// method CONNECT, target [`EGRESS_PATH`] with `?configuration=<name>&to=<host:port>`. After an answer of 200 the stream
/// carries bytes both ways; any other answer is an error in the shape of the resource API.
pub const EGRESS_ROLE: &str = "egress";
/// The path of streams of role [`EGRESS_ROLE`].
pub const EGRESS_PATH: &str = "/v1/egress";
/// Where a cluster without a certificate asks for one, at the public listener.
pub const ENROLMENT_PREFIX: &str = "/.towline/agent";
/// Minor versions behind a gateway's own whose agents it serves (docs/features.md U4), and that agents go back at most.
pub const MINORS_BEHIND: u64 = 1;
/// How many minor versions agents may be ahead of their gateway.
pub const MINORS_AHEAD: u64 = 1;
/// Largest body of a message either way, in bytes, but for metrics and logs.
pub const BODY_BYTES: usize = 256 * 1024;

/// Deployments of the agents, as clusters have them and as agents and gateway name them to each other and to people.
pub mod deployments {
    /// Holds users' tunnel.
    pub const CLUSTERCONNECT_AGENT: &str = "clusterconnect-agent";
    /// Has a certificate, reports facts, fetches what is wanted.
    pub const CONTROLLER_MANAGER: &str = "controller-manager";
    /// Installs extensions.
    pub const EXTENSION_MANAGER: &str = "extension-manager";
    /// Applies flux configurations.
    pub const FLUXCONFIG_AGENT: &str = "fluxconfig-agent";
    /// Sends what Flux's controllers log.
    pub const FLUX_LOGS_AGENT: &str = "flux-logs-agent";
    /// Answers the apiserver's questions of who somebody is and what they may do.
    pub const GUARD: &str = "guard";
    /// Replaces the agents by newer ones.
    pub const UPGRADER: &str = "upgrader";
}

/// Paths below [`ENROLMENT_PREFIX`].
pub mod enrolment_paths {
    /// POST [`super::ChallengeRequest`] → [`super::Challenge`].
    pub const CHALLENGE: &str = "/challenge";
    /// POST [`super::Enrolment`] → [`super::Certificate`].
    pub const CERTIFICATE: &str = "/certificate";
    /// POST [`super::TokenEnrolment`] → [`super::TokenEnrolled`] (docs/features.md R14).
    pub const ENROL: &str = "/enrol";
    /// POST [`EnrolledQuestion`](super::EnrolledQuestion) → [`super::TokenEnrolled`] (R14).
    pub const ENROLLED: &str = "/enrolled";
    /// GET → [`super::InstallSettings`].
    pub const SETTINGS: &str = "/settings";
}

/// Paths of streams of role [`ROLE`].
pub mod paths {
    /// POST [`super::Renewal`] → [`super::Certificate`] (docs/features.md R8).
    pub const RENEW: &str = "/v1/certificate";
    /// POST [`super::Heartbeat`] → [`super::HeartbeatAnswer`] (C6).
    pub const HEARTBEAT: &str = "/v1/heartbeat";
    /// GET `?after=<revision>` → [`super::Desired`]; waits up to a minute for something newer.
    pub const DESIRED: &str = "/v1/desired";
    /// POST [`super::TokenRequest`] → [`super::Token`] (R9).
    pub const TOKEN: &str = "/v1/token";
    /// GET `?after=<etag>` → `auth::rbac::snapshot::Signed` (Z9); 204 when it is still the same after a minute.
    pub const POLICY: &str = "/v1/policy";
    /// POST: metrics of the agent's processes, Prometheus text (D1).
    pub const METRICS: &str = "/v1/metrics";
    /// POST: log lines, one JSON object each (D2).
    pub const LOGS: &str = "/v1/logs";
    /// GET `?after=<position>&kind=<full type>` → [`super::Objects`]: what is wanted in this cluster, such as extensions
    /// (E1); waits up to a minute for something newer. Without `after`: from the beginning. Without `kind`: of all kinds;
    /// positions are comparable only between questions for the same.
    pub const OBJECTS: &str = "/v1/objects";
    /// POST [`super::ProtectedQuestion`] → [`super::ProtectedSettings`] (E6).
    pub const PROTECTED: &str = "/v1/objects/protected";
    /// POST [`super::ObjectStatuses`] → [`super::ObjectStatusesAnswer`] (E1, E9, D4).
    pub const STATUSES: &str = "/v1/objects/statuses";
    /// POST [`super::LogLines`]: what controllers in the cluster logged of objects (D5). GET → [`super::LogPositions`]:
    /// up to where the gateway has them.
    pub const OBJECT_LOGS: &str = "/v1/objects/logs";
    /// GET → [`super::CatalogueIndex`] (E2). `?known=<hex of the SHA-256 digest of index.json>`: 204 if it is still that.
    pub const CATALOGUE: &str = "/v1/catalogue";
    /// GET `?sha256=<hex>` → the bytes of a chart's archive (E2).
    pub const CHART: &str = "/v1/catalogue/chart";
}

/// `POST <prefix>/challenge`: asks for something fresh to sign.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChallengeRequest {
    /// The cluster's ARM id.
    pub cluster_id: String,
}

/// A fresh challenge, good for one enrolment. It says nothing of whether the cluster exists.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Challenge {
    /// An opaque text in base64, which the signature has to cover.
    pub challenge: String,
    /// How long it is good for.
    pub expires_in_seconds: u64,
}

/// `POST <prefix>/certificate`: proves possession of the onboarding key (R6) and asks for a certificate (R7).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Enrolment {
    /// The cluster's ARM id.
    pub cluster_id: String,
    /// The challenge as it came.
    pub challenge: String,
    /// Base64 of the DER of a PKCS#10 request for a P-256 key. Its subject is empty or the cluster's own; it names no
    /// other.
    pub csr: String,
    /// UID of the namespace `kube-system`: one cluster is one resource (R4).
    pub kube_system_uid: String,
    /// Base64 of an RSA signature (PKCS#1 v1.5, SHA-256) over [`enrolment_message`] by the onboarding key.
    pub signature: String,
    /// The agent's version.
    pub agent_version: String,
}

/// What an enrolment's signature is over: every part with its length in front, so that no two enrolments are alike.
pub fn enrolment_message(cluster: &ClusterId, challenge: &str, csr: &str, kube_system_uid: &str) -> Vec<u8> {
    signed_parts(b"towline enrolment 1\0", &[cluster.as_str(), challenge, csr, kube_system_uid])
}

fn signed_parts(what: &[u8], parts: &[&str]) -> Vec<u8> {
    let mut message = what.to_vec();
    for part in parts {
        message.extend_from_slice(&(part.len() as u64).to_be_bytes());
        message.extend_from_slice(part.as_bytes());
    }
    message
}

/// A new certificate for the same cluster, asked for with the old one (R8).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Renewal {
    /// A request for a certificate, as in [`Enrolment::csr`].
    pub csr: String,
}

/// The certificate of a cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificate {
    /// PEM, own certificate first.
    pub certificate: String,
    /// PEM: every authority that the agent is to trust from now on, also the next one while they change.
    pub roots: String,
    /// When it begins, RFC 3339.
    pub not_before: String,
    /// When it ends, RFC 3339.
    pub not_after: String,
    /// Object id of the cluster's identity.
    pub principal_id: String,
    /// Id of the tenant.
    pub tenant_id: String,
}

/// `POST <prefix>/enrol`: creates a cluster by a one-time token in place of a role; certificates follow as for any
/// other. The token comes from `POST <resource group>/createEnrolmentToken`. Does not print it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenEnrolment {
    /// The one-time enrolment token.
    pub token: String,
    /// The name of the cluster that is to be.
    pub name: String,
    /// The onboarding key's public half, as `agentPublicKeyCertificate` has it.
    pub public_key: String,
    /// The location; that of the group where it is empty.
    #[serde(default)]
    pub location: String,
    /// Tags of the new cluster.
    #[serde(default)]
    pub tags: serde_json::Map<String, serde_json::Value>,
}

impl std::fmt::Debug for TokenEnrolment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenEnrolment").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The cluster that was created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenEnrolled {
    /// ARM id of the cluster.
    pub cluster_id: String,
    /// Object id of its identity.
    pub principal_id: String,
    /// Id of the tenant.
    pub tenant_id: String,
}

/// `POST <prefix>/enrolled`: whether a cluster is there and has this onboarding key, asked by who signs with it. A run
/// of `towline connect` that broke off goes on when it is.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnrolledQuestion {
    /// The cluster's ARM id.
    pub cluster_id: String,
    /// The challenge as it came.
    pub challenge: String,
    /// Base64 of an RSA signature (PKCS#1 v1.5, SHA-256) over [`enrolled_message`] by the onboarding key.
    pub signature: String,
}

/// What the signature of an [`EnrolledQuestion`] is over. No certificate is to be had for it.
pub fn enrolled_message(cluster: &ClusterId, challenge: &str) -> Vec<u8> {
    signed_parts(b"towline enrolled 1\0", &[cluster.as_str(), challenge])
}

/// `GET <prefix>/settings`: what whoever installs agents needs to know of a gateway. Public.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstallSettings {
    /// Addresses of the gateway, `https://host[:port]` (the chart's `gateway.urls`).
    pub urls: Vec<String>,
    /// PEM: the authorities of the gateway's certificate; empty: public ones (the chart's `gateway.ca`).
    pub roots: String,
    /// Who issues users' tokens, as the chart's `issuers` has it; the keys of the gateway's own issuer are pinned.
    pub issuers: Vec<serde_json::Value>,
    /// The gateway's version: agents of the same one fit.
    pub version: String,
    /// Id of the tenant.
    pub tenant_id: String,
    /// The catalogue of extensions that the gateway serves, if it has one: what a cluster may pin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalogue: Option<CatalogueTrust>,
}

/// Whose catalogue it is, and which keys sign it (E2). Whoever installs agents decides whether clusters pin these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CatalogueTrust {
    /// The catalogue's id.
    pub id: String,
    /// PEM: the public keys that its index names.
    pub keys: Vec<String>,
}

/// Platforms of nodes that are told at most: a cluster of more says none.
pub const PLATFORMS_MAX: usize = 16;

/// What an agent tells every few minutes (C6, M1-M5, D7). Absent facts are not known, which is not zero.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Heartbeat {
    /// The agent's version.
    pub agent_version: String,
    /// UID of the namespace `kube-system`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kube_system_uid: Option<String>,
    /// As `GET /version` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes_version: Option<String>,
    /// Number of nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_node_count: Option<u32>,
    /// Cores of all nodes, their capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_core_count: Option<u32>,
    /// k3s, kind, eks, ... by the heuristics of `az connectedk8s connect`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution: Option<String>,
    /// The distribution's version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution_version: Option<String>,
    /// aws, azure, gcp, ... or generic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infrastructure: Option<String>,
    /// Platforms of all nodes, such as `linux/amd64`, sorted and each once. Empty: they are not known, or the agent is older.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub platforms: Vec<String>,
    /// What does not work, newest first (`arcAgentProfile.agentErrors`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<AgentError>,
    /// Health of each role by name: `Running`, `Failing`, `Starting`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub roles: BTreeMap<String, String>,
    /// The revision of the desired state that the agent works with.
    pub desired_revision: i64,
    /// How far the last upgrade of the agents has come (U1); absent: there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<Upgrade>,
}

/// An upgrade of a cluster's agents, as the cluster tells of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Upgrade {
    /// The version that was wanted.
    pub version: String,
    /// `Waiting`: it is not begun, and `message` says what for. `Running`. `Succeeded`. `RolledBack`: the agents have their
    /// old version again. `Failed`: neither came to an end. A gateway takes another word as `Running`.
    pub state: String,
    /// Why, in one word such as `ImagePull`; empty where all is well.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What was tried, why it failed, what to do; empty where all is well.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Since when, RFC 3339.
    pub time: String,
}

/// Something that does not work in a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentError {
    /// What was tried, why it failed, what to do.
    pub message: String,
    /// `Error` or `Warning`.
    pub severity: String,
    /// Name of the role that reports it.
    pub component: String,
    /// Since when, RFC 3339.
    pub time: String,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeartbeatAnswer {
    /// The gateway's time, RFC 3339: `lastConnectivityTime` of the cluster.
    pub received: String,
    /// When to send the next one; an agent waits at most five minutes whatever it says.
    pub next_in_seconds: u64,
    /// The newest revision of the desired state.
    pub desired_revision: i64,
    /// Whether the agent is to renew its certificate now: it is of an authority that another one follows (R8).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renew_certificate: bool,
}

/// What the control plane wants of a cluster's agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Desired {
    /// Rises with every change; `after` of the next question.
    pub revision: i64,
    /// Whether users may come through (feature `cluster-connect`, K9).
    pub cluster_connect: bool,
    /// Whether calls are decided by roles and assignments before impersonation (feature `azure-rbac`, Z9).
    pub azure_rbac: bool,
    /// The version that agents should have; absent: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// Whether the gateway chooses that version by itself (`agentAutoUpgrade`). Absent: the gateway is older, or the cluster
    /// is one of its configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_upgrade: Option<bool>,
}

/// Bytes of a page of [`Objects`] at most: one object, however large, is on a page.
pub const OBJECTS_BYTES: usize = 2 * 1024 * 1024;
/// Objects of a page at most.
pub const OBJECTS_AT_ONCE: u32 = 100;

/// What is wanted in a cluster beside its agents: a page, in the order of positions. Each object has its newest form
/// alone; one that was changed twice is there once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Objects {
    /// `after` of the next question.
    pub position: i64,
    /// The object id of the first identity of the cluster's resource, which stays where a new key gives it another one:
    /// another one here is another resource, also where it has the same id. Absent: the gateway is older, or the cluster is
    /// one of its configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Whether this is the first page of all that is wanted, from the beginning. Such a page may follow any question. What
    /// is on none of its pages is not known here, which does not say that somebody deleted it: deletions that are
    /// remembered are on the pages as objects without a spec.
    #[serde(default)]
    pub whole: bool,
    /// Whether there are more pages now.
    #[serde(default)]
    pub more: bool,
    /// The objects of this page.
    pub objects: Vec<Object>,
}

/// Something that is wanted in a cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Object {
    /// Its ARM id, as it was created.
    pub id: String,
    /// The full type: `Microsoft.KubernetesConfiguration/extensions`.
    pub kind: String,
    /// Rises with every change of what is wanted; what is told of it names the one that it is about. Of an object without
    /// a spec: the position at which it was deleted.
    pub generation: i64,
    /// What is wanted: the properties that clients write, protected ones left out. Absent: it is gone, and nobody waits
    /// for it to be taken down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<serde_json::Value>,
    /// It is to be taken down; then `Deleted` is told.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
    /// Names its protected settings of now: another text, other settings; absent: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protected: Option<String>,
    /// The operation that wanted it so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// The object id of its identity, if it has one (E11).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal_id: Option<String>,
}

/// Asks for the protected settings of an object of this cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProtectedQuestion {
    /// The object's ARM id.
    pub id: String,
    /// As [`Object::protected`] named them.
    pub protected: String,
}

/// Protected settings: names and values as they were given. Does not print. 410 `ProtectedSettingsGone`: they were kept
/// as long as they may be, and must be given again; 409 `ProtectedSettingsChanged`: there are others by now.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProtectedSettings {
    /// Values of the settings by their names.
    pub settings: BTreeMap<String, String>,
}

impl std::fmt::Debug for ProtectedSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProtectedSettings").field("names", &self.settings.len()).finish_non_exhaustive()
    }
}

/// How far an object is in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObjectState {
    /// It is being made.
    Creating,
    /// It is being changed.
    Updating,
    /// It is being taken down.
    Deleting,
    /// It is as it was wanted.
    Succeeded,
    /// It is not, and nothing more is tried before it is changed, or what was missing is there.
    Failed,
    /// It is gone from the cluster.
    Deleted,
}

impl ObjectState {
    /// Whether nothing more comes by itself.
    pub fn is_end(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Deleted)
    }
}

/// What is told of objects: of each the newest alone. It is told again until the gateway has answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectStatuses {
    /// The newest status of each object.
    pub objects: Vec<ObjectStatus>,
}

/// What is told of one object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectStatus {
    /// ARM id of the object.
    pub id: String,
    /// About which [`Object::generation`].
    pub generation: i64,
    /// How far it is.
    pub state: ObjectState,
    /// The version that is installed now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_version: Option<String>,
    /// Why it failed; `message` says what was tried, what was found and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ObjectError>,
    /// `statuses` of the resource: the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statuses: Vec<StatusLine>,
    /// What happened (D4): the oldest first, those that were not told yet or may not have been.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<ObjectEvent>,
    /// What its kind shows beside: an object, [`DETAILS_BYTES`] at most. Of a flux configuration (G6): `complianceState`,
    /// `repositoryPublicKey`, `sourceSyncedCommitId`, `sourceUpdatedAt`, `statusUpdatedAt` and `errorMessage`, each as the
    /// resource shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<serde_json::Value>,
    /// What is told of its parts, if something of them has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Parts>,
}

/// Bytes of [`ObjectStatus::details`] at most.
pub const DETAILS_BYTES: usize = 16 * 1024;
/// Parts of an object at most, of which a cluster tells.
pub const PARTS_OF_AN_OBJECT: usize = 10_000;
/// Bytes of the name of a part at most.
pub const PART_NAME_BYTES: usize = 600;
/// Bytes of what is told of one part at most, as JSON.
pub const PART_BYTES: usize = 4 * 1024;

/// What is told of the parts of an object, such as the Kubernetes objects that a flux configuration applied (G6): those
/// that have changed since the last message about it. More than one message takes follow one another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Parts {
    /// [`Parts::position`] of the message on which this one builds. Absent: on none; what was told before is forgotten.
    /// Where the gateway knows another, it takes no parts of this message and wants them again
    /// ([`ObjectStatusesAnswer::again`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Names this message: another number than of all before.
    pub position: u64,
    /// What is told of each part, by a name that is its own among the parts of the object; `null`: it is there no more.
    /// Of a flux configuration: what the resource shows in `statuses`.
    pub values: BTreeMap<String, Option<serde_json::Value>>,
}

/// An error as ARM has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectError {
    /// A word for programs, such as `ExtensionOperationFailed`.
    pub code: String,
    /// A sentence for people.
    pub message: String,
}

/// A line of `statuses` of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusLine {
    /// A word for programs.
    pub code: String,
    /// A few words for people.
    pub display_status: String,
    /// `Error`, `Warning` or `Information`.
    pub level: String,
    /// A sentence for people.
    pub message: String,
    /// When it was observed, RFC 3339.
    pub time: String,
}

/// Something that happened in an operation (D4). One that happens over and over is told once, with a count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectEvent {
    /// Rises by one with each event of the object; a count that rises leaves it as it is.
    pub number: u64,
    /// In which operation, if the gateway named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// `Create`, `Upgrade`, `Rollback`, `Delete` or `Repair`.
    pub phase: String,
    /// `Normal` or `Warning`.
    pub level: String,
    /// A word for programs.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// The Kubernetes object that it is about, `Pod web/web-0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// When it first happened, RFC 3339.
    pub first: String,
    /// When it last happened.
    pub last: String,
    /// Number of times that it happened, at least 1.
    pub count: u32,
}

/// The answer: what of it the gateway does not know, and need not be told again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectStatusesAnswer {
    /// Ids of objects that are none of this cluster, or no more.
    #[serde(default)]
    pub unknown: Vec<String>,
    /// Ids of objects of whose [`Parts`] the gateway has lost something: they are to be told from the beginning.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub again: Vec<String>,
}

/// Log lines of one message at most.
pub const LOG_LINES_AT_ONCE: usize = 200;
/// Bytes of the message of a log line at most.
pub const LOG_MESSAGE_BYTES: usize = 4096;
/// Bytes of each other text of a log line at most: a name in Kubernetes has up to 253.
pub const LOG_WORD_BYTES: usize = 260;
/// Sources of which the gateway knows how far it has their lines; of more, those whose last line is the newest.
pub const LOG_SOURCES: usize = 64;

/// Log lines of controllers about objects that the gateway wants (D5). They are sent again until the gateway has answered,
/// which takes each once.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogLines {
    /// Those of one source in the order of their positions.
    pub lines: Vec<LogLine>,
}

/// A log line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogLine {
    /// The ARM id of the object that it is about, such as a flux configuration.
    pub id: String,
    /// Who logged it: the UID of a pod.
    pub source: String,
    /// Where it is among the lines of its source. A line that is not behind the last one of its source was taken before.
    pub position: LogPosition,
    /// How bad it is.
    pub level: LogLevel,
    /// The controller, such as `kustomize-controller`.
    #[serde(default)]
    pub controller: String,
    /// The kind of the Kubernetes object that it is about.
    #[serde(default)]
    pub kind: String,
    /// Namespace of the Kubernetes object.
    #[serde(default)]
    pub namespace: String,
    /// Name of the Kubernetes object.
    #[serde(default)]
    pub name: String,
    /// What was logged, with the error.
    #[serde(default)]
    pub message: String,
    /// Lines of the same object before this one that were left out, because there were too many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Where a line is among those of its source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogPosition {
    /// When it was logged, in nanoseconds since 1970.
    pub nanos: i64,
    /// Which of the lines of that instant it is, from 1.
    pub nth: u32,
}

/// How bad what a log line says is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// For those who look for a fault in the controller.
    Debug,
    /// Something that the controller did.
    Info,
    /// What it could not do.
    Error,
}

impl LogLevel {
    /// The word that JSON has for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Error => "error",
        }
    }
}

/// The position of the last line that the gateway took, by source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogPositions {
    /// By the UID of a pod, [`LOG_SOURCES`] at most.
    #[serde(default)]
    pub sources: BTreeMap<String, LogPosition>,
}

/// Bytes of a chart's archive at most, as the catalogue has it.
pub const CHART_BYTES: usize = 20 * 1024 * 1024;
/// Bytes of an answer with the catalogue's index at most: base64 of the index and of its signatures.
pub const CATALOGUE_BYTES: usize = 6 * 1024 * 1024;

/// The catalogue's signed index, as the gateway has it. The cluster verifies it; nothing of it is believed before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CatalogueIndex {
    /// Base64 of `index.json`, byte for byte.
    pub index: String,
    /// Base64 of `index.sig`.
    pub signatures: String,
}

/// Asks for a token as the cluster's identity (R9), or as that of an extension in it (E11).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenRequest {
    /// Whom it is for.
    pub audience: String,
    /// The extension's name; absent: the cluster itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extension: Option<String>,
}

/// A token of the cluster's identity. Does not print.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Token {
    /// The token, for `Authorization: Bearer`.
    pub token: String,
    /// Seconds since 1970.
    pub expires_on: u64,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("expires_on", &self.expires_on).finish_non_exhaustive()
    }
}

/// A refusal: status 400 (the message cannot be read; `AgentTooOld`, `AgentTooNew`), 401 (`InvalidProof`, `CertificateExpired`), 403
/// (`ForeignRequest`), 409 (`AlreadyConnected`: the cluster is another resource, R4), 410 (`ResourceDeleted`: stop and
/// do not ask again), 429 and 503 (with `Retry-After`). The body is the resource API's error envelope.
///
/// A hello that is refused, and the close of a tunnel that was good until then, say the same in their message, which
/// then begins with the code and a colon; a deleted resource has a `CloseCode` of its own.
pub mod codes {
    /// The signature, the key or the challenge is not right.
    pub const INVALID_PROOF: &str = "InvalidProof";
    /// The cluster's certificate has ended: connect it again.
    pub const CERTIFICATE_EXPIRED: &str = "CertificateExpired";
    /// The request names another subject than the cluster.
    pub const FOREIGN_REQUEST: &str = "ForeignRequest";
    /// This cluster is connected as another resource.
    pub const ALREADY_CONNECTED: &str = "AlreadyConnected";
    /// The resource is gone.
    pub const RESOURCE_DELETED: &str = "ResourceDeleted";
    /// The agents' version is older than the gateway serves.
    pub const AGENT_TOO_OLD: &str = "AgentTooOld";
    /// The agents' version is newer than the gateway serves: the gateway is upgraded first.
    pub const AGENT_TOO_NEW: &str = "AgentTooNew";
    /// The gateway keeps the protected settings no more, which the cluster has not fetched in time.
    pub const PROTECTED_SETTINGS_GONE: &str = "ProtectedSettingsGone";
    /// The gateway has no catalogue.
    pub const NO_CATALOGUE: &str = "NoCatalogue";
    /// The gateway's folder lacks the file of a chart that its catalogue names, or has another file in its place.
    pub const CHART_UNAVAILABLE: &str = "ChartUnavailable";
    /// The extension has no identity yet.
    pub const IDENTITY_MISSING: &str = "IdentityMissing";
}

/// The type of the catalogue whose versions are the agents' own.
pub const AGENTS_TYPE: &str = "towline.agent";

/// Where an upgrade stands: [`Upgrade::state`].
pub mod upgrade_states {
    /// It waits for something, which the message names.
    pub const WAITING: &str = "Waiting";
    /// It has begun and has not ended.
    pub const RUNNING: &str = "Running";
    /// The agents have the new version.
    pub const SUCCEEDED: &str = "Succeeded";
    /// The agents have the old version again, or still.
    pub const ROLLED_BACK: &str = "RolledBack";
    /// Neither version runs as it should.
    pub const FAILED: &str = "Failed";
}

/// Whether what Flux applies is as it is wanted: the property `complianceState`.
pub mod compliance {
    /// It is as it is wanted.
    pub const COMPLIANT: &str = "Compliant";
    /// It is not as it is wanted.
    pub const NON_COMPLIANT: &str = "Non-Compliant";
    /// It is not known yet.
    pub const PENDING: &str = "Pending";
    /// Flux does not look, because the configuration suspends it.
    pub const SUSPENDED: &str = "Suspended";
    /// The cluster has told nothing of it.
    pub const UNKNOWN: &str = "Unknown";
}

/// What helps a cluster whose certificate has ended, in messages.
pub const CONNECT_AGAIN: &str =
    "run `towline connect` for the cluster again (the resource and what belongs to it stay)";

/// Base64 of a message's binary member.
pub fn encode(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// A message's binary member; `None` if it is no base64.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    BASE64.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enrolments_that_differ_in_where_a_part_ends_are_not_alike() {
        let id = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c";
        let id: ClusterId = id.parse().unwrap();
        assert_ne!(enrolment_message(&id, "ab", "c", "d"), enrolment_message(&id, "a", "bc", "d"));
        assert_ne!(enrolment_message(&id, "a", "b", "cd"), enrolment_message(&id, "a", "bc", "d"));
    }

    #[test]
    fn absent_facts_are_left_out_and_unknown_members_are_ignored() {
        let text = serde_json::to_string(&Heartbeat::default()).unwrap();
        assert!(!text.contains("totalNodeCount"), "{text}");
        let read: Heartbeat = serde_json::from_str(r#"{"agentVersion":"1","newer":true,"totalNodeCount":0}"#).unwrap();
        assert_eq!(read.total_node_count, Some(0));
    }
}
