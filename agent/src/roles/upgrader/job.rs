//! The Job that carries an upgrade out. It is made of the upgrader's own pod: image, places and bounds are the same. Its
//! containers run one after the other, and hand on what they found by a folder in memory:
//!
//! | container | image | token of the service account | what it does |
//! |---|---|---|---|
//! | `gather` | the one that runs now | yes | reads what the agents were told |
//! | `render` | of the new version | no | writes that version's objects: an image that is not there, or does not start, is found before anything is changed |
//! | `upgrade` | the one that runs now, which is known to work | yes | changes the cluster |

use std::time::Duration;

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use serde_json::{Value, json};

/// The Job's name, and the label of its pods.
pub const NAME: &str = "towline-upgrade";
/// Where both containers see the objects.
const FOLDER: &str = "/work";
/// Where programs look for the token of a service account, and the volume that has it.
const TOKEN_FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const TOKEN: &str = "token";
/// How long the token lives before the kubelet writes another one, as in pods that have it by themselves.
const TOKEN_SECONDS: u32 = 3607;
/// Bytes of objects.
const FOLDER_SIZE: &str = "16Mi";
/// Pods that may fail before the Job has.
const RETRIES: u32 = 4;
/// A Job that nobody removes goes after this time.
const KEPT_SECONDS: u32 = 24 * 3600;
/// Characters of what a container said last.
const SAID_CHARS: usize = 600;
/// Why a container waits for its image.
const IMAGE: [&str; 4] = ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"];

/// What the Job is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The new version.
    pub version: String,
    /// The agents' image of that version.
    pub agent: String,
    /// The image of extension-manager; none where it is not there.
    pub extension_manager: Option<String>,
    /// How long new pods are watched once they are ready.
    pub window: Duration,
    /// How long they may take for that.
    pub timeout: Duration,
}

/// How long the Job's pod has to end.
const GRACE_SECONDS: u32 = 2;

/// What the Job is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Install another version.
    Upgrade(Plan),
    /// Go on with one that was cut off, or go back, by what is kept: the new image may not be there any more.
    Finish {
        /// As [`Plan::window`].
        window: Duration,
        /// As [`Plan::timeout`].
        timeout: Duration,
    },
}

/// The Job, of the upgrader's own Deployment.
pub fn manifest(upgrader: &Deployment, namespace: &str, work: &Work) -> Value {
    let template = upgrader.spec.as_ref().map(|spec| &spec.template);
    let mut pod = serde_json::to_value(template.and_then(|template| template.spec.as_ref())).unwrap_or_default();
    let own = pod["containers"][0].clone();
    let container = |name: &str, image: &Value, args: &[String], has_token: bool| {
        let mut mounts = vec![json!({"name": "work", "mountPath": FOLDER})];
        if has_token {
            mounts.push(json!({"name": TOKEN, "mountPath": TOKEN_FOLDER, "readOnly": true}));
        }
        json!({
            "name": name,
            "image": image,
            "imagePullPolicy": own["imagePullPolicy"],
            "args": args,
            "resources": own["resources"],
            "securityContext": own["securityContext"],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": mounts,
        })
    };
    let texts = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let seconds = |time: &Duration| time.as_secs().to_string();
    let (told, file) = (format!("{FOLDER}/told.json"), format!("{FOLDER}/objects.json"));
    let (window, timeout) = match work {
        Work::Upgrade(plan) => (seconds(&plan.window), seconds(&plan.timeout)),
        Work::Finish { window, timeout } => (seconds(window), seconds(timeout)),
    };
    let mut run = texts(&["upgrade", "run", "--namespace", namespace, "--window", &window, "--timeout", &timeout]);
    let mut labels = json!({"app.kubernetes.io/name": NAME, "app.kubernetes.io/managed-by": super::NAME});
    if let Work::Upgrade(plan) = work {
        let gather = texts(&["upgrade", "gather", "--namespace", namespace, "--out", &told]);
        let mut render = texts(&["upgrade", "render", "--namespace", namespace, "--told", &told, "--out", &file]);
        render.extend(texts(&["--agent-version", &plan.version, "--image", &plan.agent]));
        if let Some(image) = &plan.extension_manager {
            render.extend(texts(&["--extension-image", image]));
        }
        run.extend(texts(&["--objects", &file, "--told", &told]));
        labels["app.kubernetes.io/version"] = plan.version.as_str().into();
        pod["initContainers"] = json!([
            container("gather", &own["image"], &gather, true),
            container("render", &json!(plan.agent), &render, false),
        ]);
    }
    pod["containers"] = json!([container("upgrade", &own["image"], &run, true)]);
    // The kubelet would give the token to every container.
    pod["automountServiceAccountToken"] = false.into();
    pod["volumes"] = json!([
        {"name": "work", "emptyDir": {"medium": "Memory", "sizeLimit": FOLDER_SIZE}},
        {"name": TOKEN, "projected": {"defaultMode": 0o444, "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
        ]}},
    ]);
    pod["restartPolicy"] = "Never".into();
    // What it does is written down before it is begun: nothing is gained by waiting for it.
    pod["terminationGracePeriodSeconds"] = GRACE_SECONDS.into();
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": NAME, "namespace": namespace, "labels": labels},
        "spec": {
            "backoffLimit": RETRIES,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            // Two at once would apply and take back at the same time.
            "podReplacementPolicy": "Failed",
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    })
}

/// Why a Job does not come on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The cause as one word for programs, such as `ErrImagePull`.
    pub reason: &'static str,
    /// In the words of Kubernetes and of the container.
    pub message: String,
    /// Whether waiting does not help.
    pub is_final: bool,
}

/// What is wrong with the Job's pods, as far as they say it.
pub fn trouble(pods: &[Pod]) -> Option<Trouble> {
    // One that failed is no trouble while another one works.
    if pods.iter().any(is_at_work) {
        return None;
    }
    let mut broken = Vec::new();
    let mut found = None;
    for pod in pods {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let Some(status) = &pod.status else { continue };
        let unplaced =
            status.conditions.iter().flatten().find(|one| one.type_ == "PodScheduled" && one.status == "False");
        if let Some(condition) = unplaced {
            let why = condition.message.clone().unwrap_or_default();
            found = Some(Trouble { reason: "NoNode", message: format!("pod {name}: {why}"), is_final: false });
        }
        for container in status.init_container_statuses.iter().chain(&status.container_statuses).flatten() {
            let Some(state) = &container.state else { continue };
            if let Some(waiting) = &state.waiting
                && let Some(reason) = waiting.reason.as_deref().filter(|reason| IMAGE.contains(reason))
            {
                let why = waiting.message.clone().unwrap_or_default();
                let message = format!("the image {} cannot be pulled: {reason}: {why}", container.image);
                found = Some(Trouble { reason: "ImagePull", message, is_final: false });
            }
            if let Some(ended) = state.terminated.as_ref().filter(|ended| ended.exit_code != 0) {
                let said: String =
                    ended.message.as_deref().unwrap_or("nothing").trim().chars().take(SAID_CHARS).collect();
                let why = ended.reason.as_deref().unwrap_or("Error");
                let message = format!(
                    "container {} of image {} ended with exit code {} ({why}); it said: {said}",
                    container.name, container.image, ended.exit_code
                );
                broken.push(message);
            }
        }
    }
    match broken.pop() {
        // Once may be an accident: an eviction, an apiserver that was away.
        Some(message) => Some(Trouble { reason: "DoesNotStart", message, is_final: !broken.is_empty() }),
        None => found,
    }
}

/// Whether a container of it runs.
fn is_at_work(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|status| [&status.init_container_statuses, &status.container_statuses]);
    let runs = statuses.flatten().flatten().any(|one| one.state.as_ref().is_some_and(|state| state.running.is_some()));
    runs && pod.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upgrader() -> Deployment {
        serde_json::from_value(json!({"spec": {"selector": {}, "template": {"spec": {
            "serviceAccountName": "upgrader", "nodeSelector": {"a": "b"}, "securityContext": {"runAsNonRoot": true},
            "volumes": [{"name": "config", "configMap": {"name": "upgrader"}}],
            "containers": [{"name": "upgrader", "image": "r/agent:0.2.0", "imagePullPolicy": "Never",
                "securityContext": {"readOnlyRootFilesystem": true}, "resources": {"limits": {"memory": "1Mi"}},
                "volumeMounts": [{"name": "config", "mountPath": "/etc/towline"}], "args": ["run"]}],
        }}}}))
        .unwrap()
    }

    #[test]
    fn u1_new_image_renders_and_the_old_one_changes_the_cluster() {
        let plan = Plan {
            version: "0.3.0".to_owned(),
            agent: "r/agent:0.3.0".to_owned(),
            extension_manager: None,
            window: Duration::from_secs(60),
            timeout: Duration::from_secs(120),
        };
        let job = manifest(&upgrader(), "towline", &Work::Upgrade(plan));
        let pod = &job["spec"]["template"]["spec"];
        let containers = [&pod["initContainers"][0], &pod["initContainers"][1], &pod["containers"][0]];
        let seen = containers.map(|one| {
            let has_token =
                one["volumeMounts"].as_array().unwrap().iter().any(|mount| mount["mountPath"] == TOKEN_FOLDER);
            (one["name"].as_str().unwrap(), one["image"].as_str().unwrap(), has_token)
        });
        let expected =
            [("gather", "r/agent:0.2.0", true), ("render", "r/agent:0.3.0", false), ("upgrade", "r/agent:0.2.0", true)];
        assert_eq!(seen, expected, "what is not known to work yet has no token");
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert_eq!((&pod["serviceAccountName"], &pod["restartPolicy"]), (&json!("upgrader"), &json!("Never")));
        assert_eq!((&pod["nodeSelector"]["a"], pod["volumes"].as_array().unwrap().len()), (&json!("b"), 2));
        assert!(pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] == true);
        serde_json::from_value::<k8s_openapi::api::batch::v1::Job>(job.clone()).unwrap();
        let times = Duration::from_secs(1);
        let job = manifest(&upgrader(), "towline", &Work::Finish { window: times, timeout: times });
        assert!(job["spec"]["template"]["spec"]["initContainers"].is_null(), "the new image is not needed to go back");
    }

    #[test]
    fn u1_trouble_of_the_job_is_told_in_the_words_of_kubernetes() {
        let pod = |status: Value| {
            serde_json::from_value::<Pod>(json!({"metadata": {"name": "p"}, "status": status})).unwrap()
        };
        let container = |state: Value| json!({"name": "render", "image": "r/agent:0.3.0", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        let waits = container(json!({"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}));
        let pulls = trouble(&[pod(json!({"initContainerStatuses": [waits]}))]).unwrap();
        assert!(pulls.reason == "ImagePull" && pulls.message.contains("r/agent:0.3.0") && !pulls.is_final, "{pulls:?}");
        let ended = container(json!({"terminated": {"exitCode": 2, "reason": "Error", "message": "unknown word"}}));
        let failed = pod(json!({"initContainerStatuses": [ended]}));
        let once = trouble(std::slice::from_ref(&failed)).unwrap();
        assert!(once.reason == "DoesNotStart" && once.message.contains("unknown word") && !once.is_final, "{once:?}");
        assert!(trouble(&[failed.clone(), failed.clone()]).unwrap().is_final);
        let works = pod(json!({"containerStatuses": [{"name": "upgrade", "image": "a:2", "imageID": "", "ready": true,
            "restartCount": 0, "state": {"running": {}}}]}));
        assert_eq!(trouble(&[failed.clone(), failed, works]), None, "another one goes on");
        let good = container(json!({"terminated": {"exitCode": 0}}));
        assert_eq!(trouble(&[pod(json!({"initContainerStatuses": [good]}))]), None);
    }
}
