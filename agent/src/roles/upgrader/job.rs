//! The Job that carries an upgrade out. It is made of the upgrader's own pod: image, places and bounds are the same. Its
//! containers run one after the other, and hand on what they found by a folder in memory:
//!
//! | container | image | token of the service account | what it does |
//! |---|---|---|---|
//! | `gather` | the one that runs now | yes | reads what the agents were told |
//! | `render` | of the new version | no | writes that version's objects: an image that is not there, or does not start, is found before anything is changed |
//! | `upgrade` | the one that runs now, which is known to work | yes | changes the cluster |

use std::time::Duration;

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Event, Pod},
};
use serde_json::{Value, json};

use super::state::NODE_LOST;

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
const IMAGE: [&str; 7] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
];
/// Why a container waits before it is tried to start it.
const NOT_YET: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// How long preparing may take at least, however short new pods are waited for: an image is pulled meanwhile.
const PREPARING_MIN: Duration = Duration::from_secs(60);
/// How long a pod may take to go, or a Job with its pods, before its machine counts as lost.
const GOING_MAX: Duration = Duration::from_secs(120);
/// Steps of an upgrade that may each take the timeout and the window: preparing, four gates, going back; and as many again
/// for those that successors of a pod take anew.
const STEPS: u32 = 12;
/// What a Job may take beyond that, such as while the apiserver does not answer.
const SLACK: Duration = Duration::from_secs(3600);

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
    let times = match work {
        Work::Upgrade(Plan { window, timeout, .. }) | Work::Finish { window, timeout } => *window + *timeout,
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
            // Whatever it hangs in, it ends: another one goes on or back.
            "activeDeadlineSeconds": (times * STEPS + SLACK).as_secs(),
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
    let (mut broken, mut found, mut lost) = (Vec::new(), None, None);
    for pod in pods {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let Some(status) = &pod.status else { continue };
        let has_ended = status.phase.as_deref().is_some_and(|phase| phase == "Succeeded" || phase == "Failed");
        if pod.metadata.deletion_timestamp.is_some() && !has_ended {
            let machine = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or("none");
            let message = format!("pod {name} on node {machine} is deleted and does not end");
            lost = Some(Trouble { reason: NODE_LOST, message, is_final: false });
            continue;
        }
        let unplaced =
            status.conditions.iter().flatten().find(|one| one.type_ == "PodScheduled" && one.status == "False");
        if let Some(condition) = unplaced {
            let why = condition.message.clone().unwrap_or_default();
            found = Some(Trouble { reason: "NoNode", message: format!("pod {name}: {why}"), is_final: false });
        }
        for container in status.init_container_statuses.iter().chain(&status.container_statuses).flatten() {
            let Some(state) = &container.state else { continue };
            if let Some(waiting) = &state.waiting
                && let Some(reason) = waiting.reason.as_deref().filter(|reason| !NOT_YET.contains(reason))
            {
                let why = waiting.message.clone().unwrap_or_default();
                let (kind, message) = if IMAGE.contains(&reason) {
                    ("ImagePull", format!("the image {} cannot be pulled: {reason}: {why}", container.image))
                } else {
                    (
                        "DoesNotStart",
                        format!("container {} of pod {name} cannot be started: {reason}: {why}", container.name),
                    )
                };
                found = Some(Trouble { reason: kind, message, is_final: false });
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
        // No other pod is made before that one has ended.
        _ if lost.is_some() => lost,
        // Once may be an accident: an eviction, an apiserver that was away.
        Some(message) => Some(Trouble { reason: "DoesNotStart", message, is_final: !broken.is_empty() }),
        None => found,
    }
}

/// What a Job does that has not come to its end in its time, as far as its pods and events say it.
pub fn unended(pods: &[Pod], events: &[Event]) -> Trouble {
    let Some(pod) = pods.last() else {
        let refused = events.iter().rfind(|event| event.reason.as_deref() == Some("FailedCreate"));
        let why = refused.and_then(|event| event.message.clone()).unwrap_or_else(|| {
            format!("look for a quota, a limit range, Pod Security or a webhook that refuses it: kubectl describe job {NAME}")
        });
        let message = format!("no pod of the Job {NAME} is made: {why}");
        return Trouble { reason: "NoPod", message, is_final: true };
    };
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let statuses = pod.status.iter().flat_map(|status| [&status.init_container_statuses, &status.container_statuses]);
    let open = statuses.flatten().flatten().find_map(|container| {
        let state = container.state.as_ref()?;
        let what = match (&state.running, &state.waiting) {
            (Some(_), _) => "runs and does not come to its end".to_owned(),
            (None, Some(waiting)) => format!("waits: {}", waiting.reason.as_deref().unwrap_or("for no reason")),
            (None, None) => return None,
        };
        Some(format!("container {} of image {} in pod {name} {what}", container.name, container.image))
    });
    let message = open.unwrap_or_else(|| format!("pod {name} does not come to its end"));
    Trouble { reason: "DoesNotStart", message, is_final: true }
}

/// What is seen of a Job at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// How long it has been seen.
    pub age: Duration,
    /// Whether it was deleted, and how long it has been going.
    pub going: Option<Duration>,
    /// Whether it has come to its end, well or not.
    pub has_ended: bool,
    /// What is wrong, and how long it has been.
    pub trouble: Option<(Trouble, Duration)>,
    /// How long no pod of it has been at work; none while one is.
    pub idle: Option<Duration>,
    /// Whether objects may be those of the new version.
    pub has_changed: bool,
    /// Whether the gateway still wants the version.
    pub is_wanted: bool,
}

/// What is to be done about a Job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// It goes its way.
    Wait,
    /// It is removed, when its pods have ended; another one follows where that is needed.
    Remove,
    /// It is removed at once: its pods have no machine that could say that they have ended. What one of them still does
    /// is refused, because how far the upgrade is has changed.
    Drop,
    /// Nothing was changed, and it is not to go on, for this reason.
    TakeBack(Trouble),
    /// The same; its pods and events tell the reason.
    TakeBackUnended,
    /// Nothing was changed yet, and the gateway no longer wants this version: the upgrade is dropped.
    Forget,
}

/// How long preparing may take, and later a pod that follows on one that has gone until it is at work.
pub fn preparing_max(window: Duration, timeout: Duration) -> Duration {
    timeout.max(PREPARING_MIN) + window
}

/// How long an upgrade may take that no pod of is cut off, by the `activeDeadlineSeconds` of its Job.
pub fn usual_max(deadline: Duration) -> Duration {
    deadline.saturating_sub(SLACK) / 2
}

/// Decides about a Job that is there.
pub fn next(seen: Seen, window: Duration, timeout: Duration) -> Next {
    if let Some(going) = seen.going {
        return if going > GOING_MAX { Next::Drop } else { Next::Wait };
    }
    let patience = preparing_max(window, timeout);
    if let Some((trouble, stands)) = &seen.trouble
        && trouble.reason == NODE_LOST
    {
        return if *stands > GOING_MAX { Next::Drop } else { Next::Wait };
    }
    if seen.has_changed {
        // The kept objects are enough to go on or back: the new image is not asked for again.
        // A pod that was drained has none in its place for a while, however long the Job has been there.
        let is_stuck = seen.trouble.is_some_and(|(_, stands)| stands > window) || seen.idle > Some(patience);
        return if seen.has_ended || is_stuck { Next::Remove } else { Next::Wait };
    }
    if !seen.is_wanted {
        return Next::Forget;
    }
    match seen.trouble {
        Some((trouble, stands)) if trouble.is_final || stands > window.min(timeout) => Next::TakeBack(trouble),
        trouble if seen.has_ended => Next::TakeBack(trouble.map_or_else(
            || Trouble {
                reason: "JobFailed",
                message: format!("the Job {NAME} ended before it had begun to change anything"),
                is_final: true,
            },
            |(trouble, _)| trouble,
        )),
        _ if seen.age > patience => Next::TakeBackUnended,
        _ => Next::Wait,
    }
}

/// Whether a container of it runs.
pub fn is_at_work(pod: &Pod) -> bool {
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
        let of = |reason: &str| {
            let waits = container(json!({"waiting": {"reason": reason, "message": "m"}}));
            trouble(&[pod(json!({"initContainerStatuses": [waits]}))]).map(|trouble| trouble.reason)
        };
        assert_eq!((of("ContainerCreating"), of("PodInitializing")), (None, None));
        for (reason, expected) in [
            ("SignatureValidationFailed", "ImagePull"),
            ("CreateContainerError", "DoesNotStart"),
            ("New", "DoesNotStart"),
        ] {
            assert_eq!(of(reason), Some(expected), "{reason}");
        }
    }

    const WINDOW: Duration = Duration::from_secs(180);
    const TIMEOUT: Duration = Duration::from_secs(600);

    fn decided(seen: Seen) -> Next {
        next(seen, WINDOW, TIMEOUT)
    }

    /// A version whose program hangs, and a cluster that makes no pod, held every later upgrade up.
    #[test]
    fn u1_a_job_that_does_not_end_is_taken_back_with_what_holds_it_up() {
        let seen = Seen { is_wanted: true, ..Seen::default() };
        let late = preparing_max(WINDOW, TIMEOUT) + Duration::from_secs(1);
        assert_eq!(decided(Seen { age: late - Duration::from_secs(2), ..seen.clone() }), Next::Wait);
        assert_eq!(decided(Seen { age: late, ..seen.clone() }), Next::TakeBackUnended);
        assert_eq!(decided(Seen { age: late, has_changed: true, ..seen.clone() }), Next::Wait, "it is at work");
        let idle = |time| Seen { age: 10 * late, idle: Some(time), has_changed: true, ..seen.clone() };
        assert_eq!(decided(idle(Duration::from_secs(10))), Next::Wait, "the pod that follows on a drained one goes on");
        assert_eq!(decided(idle(late)), Next::Remove, "another Job goes back");

        let event = |reason: &str, message: &str| Event {
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            ..Event::default()
        };
        let refused = unended(&[], &[event("FailedCreate", "exceeded quota: q"), event("Other", "o")]);
        assert!(refused.reason == "NoPod" && refused.message.contains("exceeded quota: q"), "{refused:?}");
        assert!(unended(&[], &[]).message.contains("kubectl describe job towline-upgrade"));
        let hangs: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "status": {"initContainerStatuses": [
            {"name": "gather", "image": "a:2", "imageID": "", "ready": true, "restartCount": 0, "state": {"terminated": {"exitCode": 0}}},
            {"name": "render", "image": "a:3", "imageID": "", "ready": false, "restartCount": 0, "state": {"running": {}}},
        ]}}))
        .unwrap();
        let hangs = unended(&[hangs], &[]);
        assert!(hangs.reason == "DoesNotStart" && hangs.message.contains("container render of image a:3"), "{hangs:?}");
    }

    #[test]
    fn u1_a_job_is_forgotten_that_the_gateway_wants_no_more_before_it_changed_anything() {
        let seen = Seen::default();
        assert_eq!(decided(seen.clone()), Next::Forget);
        assert_eq!(decided(Seen { is_wanted: true, ..seen.clone() }), Next::Wait);
        assert_eq!(decided(Seen { has_changed: true, ..seen }), Next::Wait, "what has begun comes to its end");
    }

    /// A pod on a machine that died stays for ever, and the Job with it.
    #[test]
    fn u1_a_job_on_a_lost_machine_is_dropped_for_another_one() {
        let lost: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "deletionTimestamp": "2026-11-28T10:00:00Z"}, "spec": {"nodeName": "n1", "containers": []},
            "status": {"phase": "Running", "containerStatuses": [{"name": "upgrade", "image": "a:2", "imageID": "",
                "ready": true, "restartCount": 0, "state": {"running": {}}}]},
        }))
        .unwrap();
        let found = trouble(std::slice::from_ref(&lost)).unwrap();
        assert!(found.reason == NODE_LOST && found.message.contains("node n1"), "{found:?}");
        let mut ended = lost.clone();
        ended.status.as_mut().unwrap().phase = Some("Failed".to_owned());
        assert_eq!(trouble(&[ended]), None, "its Job makes another one");
        let (short, long) = (GOING_MAX, GOING_MAX + Duration::from_secs(1));
        let after = |stands| Seen { trouble: Some((found.clone(), stands)), is_wanted: true, ..Seen::default() };
        for has_changed in [false, true] {
            assert_eq!(decided(Seen { has_changed, ..after(short) }), Next::Wait);
            assert_eq!(decided(Seen { has_changed, ..after(long) }), Next::Drop);
        }
        let going = |time| Seen { going: Some(time), ..after(long) };
        assert_eq!((decided(going(short)), decided(going(long))), (Next::Wait, Next::Drop));
    }

    #[test]
    fn u1_a_job_ends_by_itself_after_all_that_its_steps_may_take() {
        let job = manifest(&upgrader(), "towline", &Work::Finish { window: WINDOW, timeout: TIMEOUT });
        let deadline = job["spec"]["activeDeadlineSeconds"].as_u64().unwrap();
        assert!(deadline > 6 * (WINDOW + TIMEOUT).as_secs() && deadline < 24 * 3600, "{deadline}");
        assert_eq!(usual_max(Duration::from_secs(deadline)), 6 * (WINDOW + TIMEOUT));
    }
}
