//! Why an installation does not come to its end: what of the release is not ready, what the cluster says of it, and what
//! to do. helm alone says "context deadline exceeded".

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet},
    batch::v1::Job,
    core::v1::{ContainerStatus, Event, Pod},
};
use kube::{
    Api, Client,
    api::{ListParams, LogParams},
    core::ObjectMeta,
};

use super::state::{Fault, Problem, bounded};
use crate::roles::objects::hidden::Hidden;

/// Objects of a kind that are looked at, findings that are told, events of one, and lines and bytes of a log.
const OBJECTS: u32 = 500;
const FINDINGS_MAX: usize = 8;
const EVENTS_MAX: usize = 3;
const LOG_LINES: i64 = 10;
const LOG_BYTES: i64 = 2000;
const TEXT_CHARS: usize = 600;

/// Something that is not ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The Kubernetes object, such as `Pod web/web-0`.
    pub object: String,
    /// A word for programs.
    pub code: &'static str,
    /// What is wrong with it.
    pub message: String,
    /// The end of its log, where it ended badly.
    pub log: Option<String>,
}

/// What is looked at.
pub struct Look<'a> {
    /// Reads the release's objects and their events from the apiserver.
    pub client: &'a Client,
    /// The release's namespace.
    pub namespace: &'a str,
    /// Name of the Helm release.
    pub release: &'a str,
    /// What was made before this is of no hook of this run, RFC 3339.
    pub since: &'a str,
    /// What is in no finding.
    pub hidden: &'a Hidden,
}

fn text(text: Option<&str>, hidden: &Hidden) -> String {
    bounded(hidden.hide(text.unwrap_or_default().trim()).as_str(), TEXT_CHARS)
}

fn owner(meta: &ObjectMeta) -> impl Iterator<Item = &str> {
    meta.owner_references.iter().flatten().map(|owner| owner.uid.as_str())
}

async fn list<K>(client: &Client, namespace: &str) -> Vec<K>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let params = ListParams::default().limit(OBJECTS);
    // What cannot be read explains nothing.
    api.list(&params).await.map(|found| found.items).unwrap_or_default()
}

impl Look<'_> {
    fn is_ours(&self, meta: &ObjectMeta) -> bool {
        let note = |key: &str| meta.annotations.as_ref().and_then(|all| all.get(key)).map(String::as_str);
        let made = meta.creation_timestamp.as_ref().map(|time| time.0.to_string()).unwrap_or_default();
        let hook = note("helm.sh/hook").is_some() && made.as_str() >= self.since;
        note("meta.helm.sh/release-name") == Some(self.release) || hook
    }

    /// What is not ready.
    pub async fn findings(&self) -> Vec<Finding> {
        let (client, namespace) = (self.client, self.namespace);
        let mut ours = BTreeMap::new();
        let mut stuck = Vec::new();
        let mut own = |kind: &str, meta: &ObjectMeta| {
            if self.is_ours(meta)
                && let (Some(uid), Some(name)) = (&meta.uid, &meta.name)
            {
                ours.insert(uid.clone(), format!("{kind} {namespace}/{name}"));
                return true;
            }
            false
        };
        for one in list::<Deployment>(client, namespace).await {
            let is_own = own("Deployment", &one.metadata);
            let conditions = one.status.and_then(|status| status.conditions).unwrap_or_default();
            let failed = conditions.into_iter().find(|one| one.type_ == "ReplicaFailure" && one.status == "True");
            if let Some(failed) = failed.filter(|_| is_own) {
                stuck.push((one.metadata.name.unwrap_or_default(), text(failed.message.as_deref(), self.hidden)));
            }
        }
        for one in list::<StatefulSet>(client, namespace).await {
            own("StatefulSet", &one.metadata);
        }
        for one in list::<DaemonSet>(client, namespace).await {
            own("DaemonSet", &one.metadata);
        }
        for one in list::<Job>(client, namespace).await {
            own("Job", &one.metadata);
        }
        let mut findings: Vec<_> = stuck
            .into_iter()
            .map(|(name, message)| finding(format!("Deployment {namespace}/{name}"), message, None))
            .collect();
        for set in list::<ReplicaSet>(client, namespace).await {
            if owner(&set.metadata).any(|uid| ours.contains_key(uid))
                && let (Some(uid), Some(name)) = (set.metadata.uid, set.metadata.name)
            {
                ours.insert(uid, format!("ReplicaSet {namespace}/{name}"));
            }
        }
        let mut with_pods = BTreeSet::new();
        let pods = list::<Pod>(client, namespace).await;
        for pod in &pods {
            let owners: Vec<_> =
                owner(&pod.metadata).filter(|uid| ours.contains_key(*uid)).map(str::to_owned).collect();
            if owners.is_empty() && !self.is_ours(&pod.metadata) {
                continue;
            }
            with_pods.extend(owners);
            if let Some(found) = self.of_pod(pod).await {
                findings.push(found);
            }
        }
        findings.extend(self.of_events(&ours, &with_pods).await);
        findings.dedup_by(|a, b| a.message == b.message);
        findings.truncate(FINDINGS_MAX);
        findings
    }

    async fn of_pod(&self, pod: &Pod) -> Option<Finding> {
        let name = pod.metadata.name.clone()?;
        let object = format!("Pod {}/{name}", self.namespace);
        let status = pod.status.as_ref()?;
        if status.phase.as_deref() == Some("Succeeded") || pod.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let scheduled =
            status.conditions.iter().flatten().find(|one| one.type_ == "PodScheduled" && one.status == "False");
        if let Some(condition) = scheduled {
            let message = format!("it finds no node: {}", text(condition.message.as_deref(), self.hidden));
            return Some(Finding { object, code: "Unschedulable", message, log: None });
        }
        let containers: Vec<_> =
            status.init_container_statuses.iter().chain(&status.container_statuses).flatten().collect();
        for container in containers {
            let Some((message, ended_badly)) = of_container(container, self.hidden) else { continue };
            let log = if ended_badly { self.log(&name, container).await } else { None };
            return Some(finding(object, message, log));
        }
        None
    }

    async fn log(&self, pod: &str, container: &ContainerStatus) -> Option<String> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), self.namespace);
        let params = LogParams {
            container: Some(container.name.clone()),
            tail_lines: Some(LOG_LINES),
            limit_bytes: Some(LOG_BYTES),
            previous: container.restart_count > 0
                && container.state.as_ref().is_none_or(|state| state.terminated.is_none()),
            ..LogParams::default()
        };
        let log = api.logs(pod, &params).await.ok()?;
        // A line that was cut may end with a part of what is hidden.
        let whole = log.rfind('\n').filter(|_| i64::try_from(log.len()).is_ok_and(|bytes| bytes >= LOG_BYTES));
        let log = whole.map_or(log.as_str(), |end| &log[..end]);
        Some(text(Some(log), self.hidden)).filter(|log| !log.is_empty())
    }

    /// What controllers say of those that have no pods.
    async fn of_events(&self, ours: &BTreeMap<String, String>, with_pods: &BTreeSet<String>) -> Vec<Finding> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), self.namespace);
        let params = ListParams::default().fields("type=Warning").limit(OBJECTS);
        let events = api.list(&params).await.map(|found| found.items).unwrap_or_default();
        let about = |event: &Event| {
            let uid = event.involved_object.uid.as_deref()?;
            let object = ours.get(uid).filter(|_| !with_pods.contains(uid))?;
            Some(finding(object.clone(), text(event.message.as_deref(), self.hidden), None))
        };
        let mut found: Vec<_> = events.iter().rev().filter_map(about).filter(|one| one.code != "NotReady").collect();
        found.truncate(EVENTS_MAX);
        found
    }
}

/// What is wrong with a container, and whether it has a log that says why.
fn of_container(container: &ContainerStatus, hidden: &Hidden) -> Option<(String, bool)> {
    let name = &container.name;
    let state = container.state.as_ref();
    let ended = |state: Option<&k8s_openapi::api::core::v1::ContainerState>| state?.terminated.clone();
    let last = ended(container.last_state.as_ref()).or_else(|| ended(state));
    if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
        let reason = waiting.reason.as_deref().unwrap_or_default();
        if matches!(reason, "" | "ContainerCreating" | "PodInitializing") {
            return None;
        }
        let image = if reason.contains("Image") { format!(" (image {})", container.image) } else { String::new() };
        let exit = last.map(|last| format!("; it exits with {}", last.exit_code)).unwrap_or_default();
        let message = text(waiting.message.as_deref(), hidden);
        return Some((format!("the container {name} waits: {reason}{image}: {message}{exit}"), !exit.is_empty()));
    }
    if let Some(ended) = ended(state).filter(|ended| ended.exit_code != 0) {
        let reason = text(ended.reason.as_deref(), hidden);
        return Some((format!("the container {name} ended with {} ({reason})", ended.exit_code), true));
    }
    if !container.ready && state.is_some_and(|state| state.running.is_some()) {
        return Some((format!("the container {name} runs and is not ready (its readiness probe fails)"), true));
    }
    None
}

fn finding(object: String, message: String, log: Option<String>) -> Finding {
    let code = classify(&message).map_or("NotReady", |(code, _)| code);
    Finding { object, code, message, log }
}

/// A cause: what stands in the text, its word, what to do, and whether it may pass by itself.
struct Cause {
    texts: &'static [&'static str],
    code: &'static str,
    hint: &'static str,
    passes: bool,
}

/// The first that is found counts.
const CAUSES: &[Cause] = &[
    Cause {
        texts: &["values don't meet the specifications of the schema"],
        code: "InvalidSettings",
        hint: "change configurationSettings to what the chart's schema allows",
        passes: false,
    },
    Cause {
        texts: &["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"],
        code: "ImagePullFailed",
        hint: "see that the image's name is right, and that the nodes reach its registry and may pull from it",
        passes: true,
    },
    Cause {
        texts: &[
            "exceeded quota",
            "must specify limits",
            "must specify requests",
            "forbidden: maximum",
            "forbidden: minimum",
        ],
        code: "QuotaExceeded",
        hint: "raise the namespace's ResourceQuota or LimitRange, or ask for less by the extension's settings",
        passes: true,
    },
    Cause {
        texts: &["admission webhook"],
        code: "AdmissionRefused",
        hint: "the webhook that is named refuses it: change the extension's settings or the webhook's policy",
        passes: false,
    },
    Cause {
        texts: &["failed calling webhook"],
        code: "WebhookFailed",
        hint: "the webhook that is named does not answer: put it right or remove its configuration",
        passes: true,
    },
    Cause {
        texts: &["violates PodSecurity", "ValidatingAdmissionPolicy"],
        code: "AdmissionRefused",
        hint: "the namespace's pod security level or an admission policy refuses it: change the extension's settings or the policy",
        passes: false,
    },
    Cause {
        texts: &["is being terminated", "NamespaceTerminating"],
        code: "NamespaceTerminating",
        hint: "wait for the namespace's end, and see what keeps it",
        passes: true,
    },
    Cause {
        texts: &["field is immutable", "updates to statefulset spec", "may not change once set", "cannot be changed"],
        code: "ImmutableField",
        hint: "the new version changes what Kubernetes does not let be changed: delete the object that is named, or delete the extension and create it again",
        passes: false,
    },
    Cause {
        texts: &["invalid ownership metadata", "exists and cannot be imported"],
        code: "ObjectInUse",
        hint: "the object that is named is of another release or was made by hand: remove it, or give the extension another name or namespace",
        passes: false,
    },
    Cause {
        texts: &["Apply failed with", "conflict with"],
        code: "FieldConflict",
        hint: "another manager owns the named fields: let only one of both set them, or let the extension put right what others change (reconcile \"repair\")",
        passes: false,
    },
    Cause {
        texts: &["no matches for kind", "ensure CRDs are installed first"],
        code: "KindMissing",
        hint: "the chart uses a kind that the cluster does not have: install what defines it first",
        passes: true,
    },
    Cause {
        texts: &["is incompatible with Kubernetes", "chart requires kubeVersion"],
        code: "VersionNotSupported",
        hint: "choose a version of the extension that supports the cluster's Kubernetes",
        passes: false,
    },
    Cause {
        texts: &[
            "is forbidden",
            "cannot patch resource",
            "cannot create resource",
            "attempting to grant RBAC permissions",
        ],
        code: "Forbidden",
        hint: "an extension with scope namespace may not do what is named: it has the rights of ClusterRole admin in its namespace alone",
        passes: false,
    },
    Cause {
        texts: &[
            "pre-install",
            "post-install",
            "pre-upgrade",
            "post-upgrade",
            "pre-delete",
            "post-delete",
            "pre-rollback",
        ],
        code: "HookFailed",
        hint: "a hook of the chart failed",
        passes: true,
    },
    Cause {
        texts: &["Unschedulable", "finds no node", "nodes are available"],
        code: "Unschedulable",
        hint: "add nodes, or let the pods ask for less or tolerate the nodes' taints",
        passes: true,
    },
    Cause {
        texts: &["CrashLoopBackOff", "ended with", "readiness probe"],
        code: "PodFailed",
        hint: "the program in the pod fails: see its log",
        passes: true,
    },
    Cause {
        texts: &["parse error", "execution error at", "template:", "YAML parse error"],
        code: "ChartFailed",
        hint: "the chart cannot be rendered with these settings",
        passes: false,
    },
    Cause {
        texts: &[
            "connection refused",
            "i/o timeout",
            "Kubernetes cluster unreachable",
            "TLS handshake timeout",
            "etcdserver",
        ],
        code: "ApiserverFailed",
        hint: "the apiserver did not answer helm",
        passes: true,
    },
    Cause {
        texts: &["deadline exceeded", "timed out", "not ready"],
        code: "TimedOut",
        hint: "its objects were not ready in time: see which, or raise timeout in [extensions] of the agents",
        passes: true,
    },
];

fn classify(text: &str) -> Option<(&'static str, &'static Cause)> {
    let found = CAUSES.iter().find(|cause| cause.texts.iter().any(|one| text.contains(one)));
    found.map(|cause| (cause.code, cause))
}

/// Puts together what helm said and what was seen of the release before helm gave up.
pub fn explain(step: &str, said: &str, findings: &[Finding]) -> Problem {
    let seen: Vec<_> = findings.iter().map(|one| one.message.as_str()).collect();
    // What the cluster says of a pod tells more than that helm waited for it in vain.
    let waited = ["deadline exceeded", "timed out", "not ready", "was ended after", "-install", "-upgrade"];
    let vague = waited.iter().any(|one| said.contains(one));
    let of_findings = seen.iter().find_map(|message| classify(message));
    let of_helm = classify(said);
    let chosen = match (of_findings, of_helm) {
        (Some(("PodFailed" | "NotReady", _)), Some(("HookFailed", cause))) => Some(("HookFailed", cause)),
        (found, told) if vague => found.or(told),
        (found, told) => told.or(found),
    };
    let mut message = format!("{step} failed: {}", bounded(said, 2 * TEXT_CHARS));
    for one in findings.iter().take(FINDINGS_MAX / 2) {
        message.push_str(&format!("\n{}: {}", one.object, one.message));
        if let Some(log) = &one.log {
            message.push_str(&format!("\n  the end of its log: {log}"));
        }
    }
    match chosen {
        Some((code, cause)) => {
            message.push_str(&format!("\nWhat to do: {}.", cause.hint));
            let fault = match code {
                "ApiserverFailed" | "NamespaceTerminating" => Fault::Cluster,
                _ => Fault::Object,
            };
            Problem { code, message, passes: cause.passes, fault }
        }
        None => Problem::passes("HelmFailed", message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e9_causes_are_told_from_each_other() {
        for (said, code) in [
            (
                "UPGRADE FAILED: values don't meet the specifications of the schema(s) in the following chart(s):\nweb:\n- at '/replicas': got string, want integer",
                "InvalidSettings",
            ),
            ("admission webhook \"policy.example.org\" denied the request: no", "AdmissionRefused"),
            (
                "Unable to continue with install: ConfigMap \"x\" in namespace \"y\" exists and cannot be imported into the current release: invalid ownership metadata",
                "ObjectInUse",
            ),
            (
                "cannot patch \"web\" with kind StatefulSet: updates to statefulset spec for fields other than",
                "ImmutableField",
            ),
            (
                "clusterroles.rbac.authorization.k8s.io \"x\" is forbidden: User \"system:serviceaccount:a:b\" cannot get resource",
                "Forbidden",
            ),
            ("pods \"x\" is forbidden: exceeded quota: small, requested: pods=1", "QuotaExceeded"),
            ("unable to create new content in namespace x because it is being terminated", "NamespaceTerminating"),
            ("something of a newer helm", "HelmFailed"),
        ] {
            assert_eq!(explain("the installation", said, &[]).code, code, "{said}");
        }
    }

    #[test]
    fn e9_pods_tell_more_than_that_helm_waited() {
        let pulled = finding(
            "Pod web/web-0".to_owned(),
            "the container web waits: ImagePullBackOff (image x.invalid/y:1): Back-off pulling".to_owned(),
            Some("log".to_owned()),
        );
        let problem = explain("the installation of web 1.0.0", "context deadline exceeded", &[pulled]);
        assert_eq!((problem.code, problem.passes), ("ImagePullFailed", true));
        for part in ["web 1.0.0", "Pod web/web-0", "x.invalid/y:1", "log", "registry"] {
            assert!(problem.message.contains(part), "{part} in {}", problem.message);
        }
    }
}
