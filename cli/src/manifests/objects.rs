//! The objects, in the order in which they are applied: what pods use exists before the pods.

use agent::roles::upgrader::state;
use aws_lc_rs::digest;
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use secrecy::ExposeSecret;
use serde_json::{Map, Value, json};

use super::{
    AGENT, CONFIG_FILE, EXTENSIONS, GUARD, GUARD_MANIFESTS, GUARD_MANIFESTS_NAMESPACE, GUARD_SECRET, GUARD_SNAPSHOT,
    MANAGED_BY, MANAGER, SERVING_CA, SERVING_SECRET, TOKENS_SERVICE, UPGRADER, VERSION_LABEL, Values,
    config::{self, Files},
    parts::{Part, account_name, object},
    rights,
};

const CRD: &str = include_str!("../../../docker/chart/towline-agent/files/crd.yaml");
const EXTENSION_CRD: &str = include_str!("../../../docker/chart/towline-agent/files/extensionconfigs.yaml");
const FLUX_CRD: &str = include_str!("../../../docker/chart/towline-agent/files/fluxconfigs.yaml");
const SOURCE_CONTROL_CRD: &str = include_str!("../../../docker/chart/towline-agent/files/gitconfigs.yaml");
/// How long, in seconds, a pod may take at least that is told to end while it runs helm.
const EXTENSION_GRACE_SECONDS: u64 = 60;
/// Whom Secrets and ConfigMaps are readable for within a pod: everybody there, which is one container of a user whom
/// the cluster may choose.
const MODE_ALL: u32 = 0o444;

/// Says of objects that they are another version's than this program's, whose image they have.
pub fn relabel(objects: &mut [Value], version: &str) {
    for object in objects {
        if let Some(label) = object["metadata"]["labels"].get_mut(VERSION_LABEL) {
            *label = version.into();
        }
    }
}

/// The namespace, for where there is none yet. The pods keep to the strictest of the standards.
pub fn namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {
            "app.kubernetes.io/managed-by": MANAGED_BY,
            "pod-security.kubernetes.io/enforce": "restricted",
        }},
    })
}

/// Everything but the namespace.
pub fn objects(values: &Values, namespace: &str) -> Vec<Value> {
    let agent_files = config::agent_files(values);
    let manager_files = config::manager_files(values, namespace);
    let definition =
        |text: &str| serde_yaml::from_str(text).expect("the chart's definitions are YAML: a test reads them");
    let mut all = vec![definition(CRD)];
    if values.extensions.enabled {
        all.push(definition(EXTENSION_CRD));
        all.push(definition(FLUX_CRD));
        all.push(definition(SOURCE_CONTROL_CRD));
    }
    all.extend(rights::rights(values, namespace));
    all.extend(secrets(values, namespace));
    all.push(config_map(Part::Agent, &agent_files, namespace));
    all.push(config_map(Part::Manager, &manager_files, namespace));
    all.push(service(values, namespace));
    if values.network_policy.enabled {
        all.push(network_policy(values, namespace));
    }
    if values.identity_tokens.enabled {
        all.extend(identity_tokens(namespace));
    }
    if values.guard.enabled {
        all.extend(guard(values, namespace));
    }
    all.push(agent(values, namespace, &agent_files));
    all.push(manager(values, namespace, &manager_files));
    if values.extensions.enabled {
        let files = config::extension_files(values, namespace);
        all.push(config_map(Part::Extensions, &files, namespace));
        all.push(extension_manager(values, namespace, &files));
        all.push(config_map(Part::Gitops, &config::gitops_files(values, namespace), namespace));
        all.push(config_map(Part::FluxLogs, &config::flux_logs_files(values, namespace), namespace));
    }
    if values.upgrades.enabled {
        all.extend(upgrader(values, namespace));
    }
    all.extend(budgets(values, namespace));
    all
}

fn secrets(values: &Values, namespace: &str) -> Vec<Value> {
    let secret = |name: &str, part: Part, data: &[(&str, &str)]| {
        let mut made = object("v1", "Secret", name, Some(namespace), part);
        made["type"] = "Opaque".into();
        let data = data.iter().map(|(key, text)| ((*key).to_owned(), BASE64.encode(text).into()));
        made["data"] = Value::Object(data.collect());
        made
    };
    let mut all = Vec::new();
    let key = values.identity.onboarding_key.expose_secret();
    if !key.is_empty() {
        all.push(secret(values.onboarding_secret(), Part::Manager, &[("key.pem", key)]));
    }
    let proxy = &values.proxy;
    if let Some(name) = values.proxy_secret().filter(|_| proxy.existing_secret.is_empty()) {
        let password = proxy.password.expose_secret();
        all.push(secret(&name, Part::Agent, &[("username", &proxy.username), ("password", password)]));
    }
    all
}

fn config_map(part: Part, files: &Files, namespace: &str) -> Value {
    let mut made = object("v1", "ConfigMap", part.name(), Some(namespace), part);
    made["data"] = json!(files);
    made
}

/// The controller-manager reaches the gateway through the pods that hold users' tunnel, so that these alone need a way
/// out. They have no certificate before it has got one, and are not ready: it must find them all the same.
fn service(values: &Values, namespace: &str) -> Value {
    let mut made = object("v1", "Service", AGENT, Some(namespace), Part::Agent);
    let port = values.controller_manager.port;
    made["spec"] = json!({
        "type": "ClusterIP",
        "publishNotReadyAddresses": true,
        "selector": Part::Agent.selector(),
        "ports": [{"name": "forward", "port": port, "targetPort": "forward", "protocol": "TCP"}],
    });
    made
}

/// Only pods of the release get a way out through those that hold users' tunnel. Probes and metrics are for everybody.
fn network_policy(values: &Values, namespace: &str) -> Value {
    let mut from = vec![json!({"podSelector": {"matchLabels": Part::Manager.selector()}})];
    if values.extensions.enabled {
        from.push(json!({"podSelector": {"matchLabels": Part::Extensions.selector()}}));
        // These pods are of another release.
        for part in [Part::Gitops, Part::FluxLogs] {
            from.push(json!({"podSelector": {"matchLabels": {"app.kubernetes.io/name": part.app()}}}));
        }
    }
    if values.guard.enabled {
        from.push(json!({"podSelector": {"matchLabels": Part::Guard.selector()}}));
    }
    if values.upgrades.enabled {
        from.push(json!({"podSelector": {"matchLabels": Part::Upgrader.selector()}}));
    }
    let mut made = object("networking.k8s.io/v1", "NetworkPolicy", AGENT, Some(namespace), Part::Agent);
    made["spec"] = json!({
        "podSelector": {"matchLabels": Part::Agent.selector()},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": from, "ports": [{"port": "forward", "protocol": "TCP"}]},
            {"ports": [{"port": "admin", "protocol": "TCP"}]},
        ],
    });
    made
}

/// The certificate of the listener for tokens, and what it is trusted by, which the controller-manager fills in; and
/// the Service in front.
fn identity_tokens(namespace: &str) -> [Value; 3] {
    let of = |kind: &str, name: &str| object("v1", kind, name, Some(namespace), Part::Manager);
    let mut secret = of("Secret", SERVING_SECRET);
    secret["type"] = "Opaque".into();
    let mut service = of("Service", TOKENS_SERVICE);
    service["spec"] = json!({
        "type": "ClusterIP",
        "selector": Part::Manager.selector(),
        "ports": [{"name": "tokens", "port": 443, "targetPort": "tokens", "protocol": "TCP"}],
    });
    [secret, of("ConfigMap", SERVING_CA), service]
}

fn agent(values: &Values, namespace: &str, files: &Files) -> Value {
    let proxy = values.proxy_secret();
    let pod = Pod {
        part: Part::Agent,
        values,
        account: account_name(Part::Agent, &values.service_account),
        service_links: false,
        ports: &[("admin", values.admin.port), ("forward", values.controller_manager.port)],
        resources: &values.resources,
        secrets: &proxy.iter().map(|secret| ("proxy", "/etc/towline-proxy", secret.as_str())).collect::<Vec<_>>(),
        files,
        digest: secrets_digest(values, true),
        image: values.image_name(),
        grace_seconds: grace_seconds(&values.limits.drain_grace),
        work_size: None,
    };
    let mut made = object("apps/v1", "Deployment", AGENT, Some(namespace), Part::Agent);
    made["spec"] = json!({
        "replicas": values.replicas,
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": Part::Agent.selector()},
        // A new pod holds its tunnel before an old one lets go of its own.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": pod.template(),
    });
    spread(values, Part::Agent, &mut made);
    made
}

fn manager(values: &Values, namespace: &str, files: &Files) -> Value {
    let mut ports = vec![("admin", values.admin.port)];
    if values.identity_tokens.enabled {
        ports.push(("tokens", values.identity_tokens.port));
    }
    let pod = Pod {
        part: Part::Manager,
        values,
        account: account_name(Part::Manager, &values.controller_manager.service_account),
        // Where a cluster has no DNS, the Service is found by its variables.
        service_links: true,
        ports: &ports,
        resources: &values.controller_manager.resources,
        secrets: &[("onboarding", "/etc/towline-onboarding", values.onboarding_secret())],
        files,
        digest: secrets_digest(values, false),
        image: values.image_name(),
        grace_seconds: grace_seconds(&values.limits.drain_grace),
        work_size: None,
    };
    let mut made = object("apps/v1", "Deployment", MANAGER, Some(namespace), Part::Manager);
    made["spec"] = json!({
        "replicas": 1,
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": Part::Manager.selector()},
        // Two of them would ask for certificates side by side.
        "strategy": {"type": "Recreate"},
        "template": pod.template(),
    });
    made
}

/// What the apiserver asks about tokens and rights: the Secrets that it fills in, the Service in front, and the pods.
fn guard(values: &Values, namespace: &str) -> [Value; 6] {
    let secret = |name: &str, namespace: &str| {
        let mut made = object("v1", "Secret", name, Some(namespace), Part::Guard);
        made["type"] = "Opaque".into();
        made
    };
    let guard = &values.guard;
    let mut service = object("v1", "Service", GUARD, Some(namespace), Part::Guard);
    service["spec"] = json!({
        "type": "ClusterIP",
        "selector": Part::Guard.selector(),
        "ports": [{"name": "reviews", "port": 443, "targetPort": "reviews", "protocol": "TCP"}],
    });
    if !guard.cluster_ip.is_empty() {
        service["spec"]["clusterIP"] = guard.cluster_ip.as_str().into();
    }
    let files = config::guard_files(values, namespace);
    let proxy = values.proxy_secret();
    let pod = Pod {
        part: Part::Guard,
        values,
        account: account_name(Part::Guard, &guard.service_account),
        // The address of its own Service, which the apiserver is told, is known by its variables.
        service_links: true,
        ports: &[("admin", values.admin.port), ("reviews", guard.port)],
        resources: &guard.resources,
        secrets: &proxy.iter().map(|secret| ("proxy", "/etc/towline-proxy", secret.as_str())).collect::<Vec<_>>(),
        files: &files,
        digest: guard_secrets_digest(values),
        image: values.image_name(),
        grace_seconds: grace_seconds(&values.limits.drain_grace),
        work_size: None,
    };
    let mut made = object("apps/v1", "Deployment", GUARD, Some(namespace), Part::Guard);
    made["spec"] = json!({
        "replicas": guard.replicas,
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": Part::Guard.selector()},
        // The apiserver asks for each token: one always answers.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": pod.template(),
    });
    spread(values, Part::Guard, &mut made);
    [
        config_map(Part::Guard, &files, namespace),
        secret(GUARD_SECRET, namespace),
        secret(GUARD_SNAPSHOT, namespace),
        secret(GUARD_MANIFESTS, GUARD_MANIFESTS_NAMESPACE),
        service,
        made,
    ]
}

fn extension_manager(values: &Values, namespace: &str, files: &Files) -> Value {
    let extensions = &values.extensions;
    let pod = Pod {
        part: Part::Extensions,
        values,
        account: account_name(Part::Extensions, &extensions.service_account),
        service_links: true,
        ports: &[("admin", values.admin.port)],
        resources: &extensions.resources,
        secrets: &[],
        files,
        // No Secret of ours: the certificate is read from the apiserver.
        digest: digest_of(&["certificate", "key"].map(|key| (key.to_owned(), String::new())).into()),
        image: values.extension_image_name(),
        grace_seconds: grace_seconds(&values.limits.drain_grace).max(EXTENSION_GRACE_SECONDS),
        work_size: Some(&extensions.work_size),
    };
    let mut made = object("apps/v1", "Deployment", EXTENSIONS, Some(namespace), Part::Extensions);
    made["spec"] = json!({
        "replicas": 1,
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": Part::Extensions.selector()},
        // Two of them would change the same helm release side by side.
        "strategy": {"type": "Recreate"},
        "template": pod.template(),
    });
    made
}

/// What upgrades the others, and the ConfigMap in which it says how far it is.
fn upgrader(values: &Values, namespace: &str) -> [Value; 3] {
    let files = config::upgrader_files(values, namespace);
    let pod = Pod {
        part: Part::Upgrader,
        values,
        account: account_name(Part::Upgrader, &values.upgrades.service_account),
        service_links: true,
        ports: &[("admin", values.admin.port)],
        resources: &values.upgrades.resources,
        secrets: &[],
        files: &files,
        // No Secret of ours: the certificate is read from the apiserver.
        digest: digest_of(&["certificate", "key"].map(|key| (key.to_owned(), String::new())).into()),
        image: values.image_name(),
        grace_seconds: grace_seconds(&values.limits.drain_grace),
        work_size: None,
    };
    let mut made = object("apps/v1", "Deployment", UPGRADER, Some(namespace), Part::Upgrader);
    made["spec"] = json!({
        "replicas": 1,
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": Part::Upgrader.selector()},
        // Two of them would begin the same upgrade.
        "strategy": {"type": "Recreate"},
        "template": pod.template(),
    });
    let progress = object("v1", "ConfigMap", state::OBJECT, Some(namespace), Part::Upgrader);
    [config_map(Part::Upgrader, &files, namespace), progress, made]
}

/// Of each Deployment that has several pods. Of guard one stays: without any, the apiserver refuses every user of the gateway
/// who goes straight to it.
fn budgets(values: &Values, namespace: &str) -> Vec<Value> {
    let budget = &values.pod_disruption_budget;
    let of = |name: &str, part: Part, min_available: &Value| {
        let mut made = object("policy/v1", "PodDisruptionBudget", name, Some(namespace), part);
        made["spec"] = json!({
            "minAvailable": min_available,
            // Pods without a tunnel protect nobody: a node is drained of them also while the gateway does not answer.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": part.selector()},
        });
        made
    };
    let mut all = Vec::new();
    if budget.enabled && values.replicas > 1 {
        all.push(of(AGENT, Part::Agent, &json!(budget.min_available)));
    }
    if budget.enabled && values.guard.enabled && values.guard.replicas > 1 {
        all.push(of(GUARD, Part::Guard, &json!(1)));
    }
    all
}

/// Pods of one Deployment are on several machines where there is a choice.
fn spread(values: &Values, part: Part, deployment: &mut Value) {
    let spread = &values.topology_spread;
    if spread.enabled {
        deployment["spec"]["template"]["spec"]["topologySpreadConstraints"] = json!([{
            "maxSkew": 1,
            "topologyKey": spread.topology_key,
            "whenUnsatisfiable": spread.when_unsatisfiable,
            "labelSelector": {"matchLabels": part.selector()},
        }]);
    }
}

/// What the pods of the Deployments differ in.
struct Pod<'a> {
    part: Part,
    values: &'a Values,
    account: &'a str,
    service_links: bool,
    ports: &'a [(&'a str, u16)],
    resources: &'a Value,
    /// Volume, where it is mounted, and the Secret in it.
    secrets: &'a [(&'a str, &'a str, &'a str)],
    files: &'a Files,
    digest: String,
    image: String,
    grace_seconds: u64,
    /// Memory at `/tmp`: charts and values while helm runs. Values may be secret, and no disk sees them.
    work_size: Option<&'a str>,
}

impl Pod<'_> {
    fn template(&self) -> Value {
        let mut labels = self.part.labels();
        put_all(&mut labels, self.values.pod_labels.iter().map(|(key, value)| (key, json!(value))));
        let mut annotations = json!({"towline.io/config": digest_of(self.files), "towline.io/secrets": self.digest});
        put_all(&mut annotations, self.values.pod_annotations.iter().map(|(key, value)| (key, json!(value))));
        json!({"metadata": {"labels": labels, "annotations": annotations}, "spec": self.spec()})
    }

    fn spec(&self) -> Value {
        let mut volumes = vec![json!({
            "name": "config",
            "configMap": {"name": self.part.name(), "defaultMode": MODE_ALL},
        })];
        volumes.extend(
            self.secrets.iter().map(
                |(name, _, secret)| json!({"name": name, "secret": {"secretName": secret, "defaultMode": MODE_ALL}}),
            ),
        );
        if let Some(size) = self.work_size {
            volumes.push(json!({"name": "work", "emptyDir": {"medium": "Memory", "sizeLimit": size}}));
        }
        let mut spec = json!({
            "serviceAccountName": self.account,
            "automountServiceAccountToken": true,
            "enableServiceLinks": self.service_links,
            "terminationGracePeriodSeconds": self.grace_seconds,
            "securityContext": security_context(self.values),
            "containers": [self.container()],
            "volumes": volumes,
        });
        let values = self.values;
        let pull_secrets: Vec<_> = values.image.pull_secrets.iter().map(|name| json!({"name": name})).collect();
        for (key, value) in [
            ("hostAliases", json!(values.host_aliases)),
            ("imagePullSecrets", json!(pull_secrets)),
            ("nodeSelector", json!(values.node_selector)),
            ("tolerations", json!(values.tolerations)),
            ("affinity", json!(values.affinity)),
            ("priorityClassName", json!(values.priority_class_name)),
        ] {
            if !is_empty(&value) {
                spec[key] = value;
            }
        }
        spec
    }

    fn container(&self) -> Value {
        let ports = self.ports.iter();
        let ports = ports.map(|(name, port)| json!({"name": name, "containerPort": port, "protocol": "TCP"}));
        let mut mounts = vec![json!({"name": "config", "mountPath": "/etc/towline", "readOnly": true})];
        mounts.extend(
            self.secrets.iter().map(|(name, path, _)| json!({"name": name, "mountPath": path, "readOnly": true})),
        );
        if self.work_size.is_some() {
            mounts.push(json!({"name": "work", "mountPath": "/tmp"}));
        }
        // A node that has too much to do is slow to answer for all its pods: those that are stopped for it make it worse.
        let probe = |path: &str, period: u32, timeout: u32, failures: u32| json!({"httpGet": {"path": path, "port": "admin"}, "periodSeconds": period, "timeoutSeconds": timeout, "failureThreshold": failures});
        json!({
            "name": self.part.name(),
            "image": self.image,
            "imagePullPolicy": self.values.image.pull_policy,
            "args": ["run", "--config", "/etc/towline/agent.toml"],
            "livenessProbe": probe("/healthz", 10, 5, 6),
            "readinessProbe": probe("/readyz", 2, 2, 2),
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]},
            },
            "ports": ports.collect::<Vec<_>>(),
            "resources": self.resources,
            "volumeMounts": mounts,
        })
    }
}

/// No user of its own: the image's is not root, and OpenShift gives each namespace users of its own (SCC
/// restricted-v2).
fn security_context(values: &Values) -> Value {
    let mut context = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    let more = &values.pod_security_context;
    put_all(&mut context, more.iter().map(|(key, value)| (key, value.clone())));
    context
}

fn put_all<'a>(into: &mut Value, entries: impl Iterator<Item = (&'a String, Value)>) {
    if let Some(into) = into.as_object_mut() {
        into.extend(entries.map(|(key, value)| (key.clone(), value)));
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
        || value.as_object().is_some_and(Map::is_empty)
        || value.as_str() == Some("")
}

/// The drain and a little more. The configuration's durations are 0 or a number with one of ms, s, m, h, d.
fn grace_seconds(drain: &str) -> u64 {
    let digits = drain.find(|c: char| !c.is_ascii_digit()).unwrap_or(drain.len());
    let number: u64 = drain[..digits].parse().unwrap_or(0);
    10 + match &drain[digits..] {
        "ms" => number / 1000,
        "s" => number,
        "m" => number * 60,
        "h" => number * 3600,
        "d" => number * 86_400,
        _ => 0,
    }
}

/// A private key among them keeps a digest of them from telling a short password.
fn secrets_digest(values: &Values, with_proxy: bool) -> String {
    let mut files = Files::new();
    let mut put = |key: &str, text: &str| files.insert(key.to_owned(), text.to_owned());
    put("onboarding", values.identity.onboarding_key.expose_secret());
    put("certificate", "");
    put("key", "");
    if with_proxy {
        put("username", &values.proxy.username);
        put("password", values.proxy.password.expose_secret());
    }
    digest_of(&files)
}

/// The same without the onboarding key, which is not for guard.
fn guard_secrets_digest(values: &Values) -> String {
    let proxy = &values.proxy;
    let texts = [
        ("certificate", ""),
        ("key", ""),
        ("username", proxy.username.as_str()),
        ("password", proxy.password.expose_secret()),
    ];
    digest_of(&texts.map(|(key, text)| (key.to_owned(), text.to_owned())).into())
}

/// As the chart's `agent.digest`, which does not know of the line that ends the configuration.
fn digest_of(files: &Files) -> String {
    let text = |key: &str, text: &'_ str| sha256(if key == CONFIG_FILE { text.trim_end_matches('\n') } else { text });
    let lines: Vec<_> = files.iter().map(|(key, value)| format!("{key}={}", text(key, value))).collect();
    sha256(&lines.join("\n"))
}

fn sha256(text: &str) -> String {
    types::ids::hex(digest::digest(&digest::SHA256, text.as_bytes()).as_ref())
}
