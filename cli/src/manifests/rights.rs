//! Service accounts, roles and bindings: what each of the Deployments may do, and nothing more.

use agent::roles::upgrader::{job, state};
use auth::rbac::call::{VERBS, verb_group};
use serde_json::{Value, json};

use super::{
    AGENT, EXTENSIONS, FLUX_LOGS, GITOPS, GUARD, GUARD_MANIFESTS, GUARD_MANIFESTS_NAMESPACE, GUARD_SECRET,
    GUARD_SNAPSHOT, IDENTITY_SECRET, MANAGER, SERVING_CA, SERVING_SECRET, TOKENS_SERVICE, UPGRADER, Values,
    parts::{Part, account_name, object},
    values::Account,
};

const API: &str = "rbac.authorization.k8s.io";
/// The ClusterRole that allows everything.
pub const CLUSTER_ADMIN: &str = "cluster-admin";

/// All of them.
pub fn rights(values: &Values, namespace: &str) -> Vec<Value> {
    let agent = Subject { part: Part::Agent, account: &values.service_account, namespace };
    let manager = Subject { part: Part::Manager, account: &values.controller_manager.service_account, namespace };
    let extensions = Subject { part: Part::Extensions, account: &values.extensions.service_account, namespace };
    let extensions = values.extensions.enabled.then_some(extensions);
    let guard = Subject { part: Part::Guard, account: &values.guard.service_account, namespace };
    let guard = values.guard.enabled.then_some(guard);
    let upgrader = Subject { part: Part::Upgrader, account: &values.upgrades.service_account, namespace };
    let upgrader = values.upgrades.enabled.then_some(upgrader);
    let mut all = Vec::new();
    for subject in [&agent, &manager].into_iter().chain(&extensions).chain(&guard).chain(&upgrader) {
        if subject.account.create {
            all.push(subject.service_account());
        }
    }
    if values.rbac.create {
        all.extend(agent.may_in_cluster(impersonation(values)));
        // A version for tests of upgrades, which needs more than the one before.
        let more = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]);
        if daemon::release::has_fault("rights") {
            all.extend(agent.may_in_cluster_as("more", more));
        }
        all.extend(agent.may_in_namespace(json!([
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [IDENTITY_SECRET],
             "verbs": ["get", "patch", "watch"]},
        ])));
        if values.azure_rbac.enabled {
            all.extend(VERBS.iter().flat_map(|verb| agent.verb(verb)));
        }
        all.extend(manager.may_in_cluster(facts(values)));
        all.extend(manager.may_in_namespace(keeping(values)));
        if values.identity_tokens.enabled {
            all.extend(manager.published());
        }
        all.extend(extensions.as_ref().map(Subject::administers));
        all.extend(guard.iter().flat_map(Subject::hands_out));
        all.extend(upgrader.iter().flat_map(Subject::upgrades));
    }
    all
}

/// What the controller-manager reads of the cluster, and asks the apiserver of who wants tokens: of an extension's
/// identity, a service account that its chart made.
fn facts(values: &Values) -> Value {
    let mut rules = vec![
        json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}),
        json!({"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"]}),
    ];
    if values.identity_tokens.enabled {
        let create = |group: &str, kind: &str| json!({"apiGroups": [group], "resources": [kind], "verbs": ["create"]});
        rules.push(create("authentication.k8s.io", "tokenreviews"));
        rules.push(create("authorization.k8s.io", "subjectaccessreviews"));
    }
    if values.identity_tokens.enabled && values.extensions.enabled {
        rules.push(json!({"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["get"]}));
    }
    rules.into()
}

/// What it keeps in its namespace.
fn keeping(values: &Values) -> Value {
    let mut rules = vec![
        json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]}),
        json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": [IDENTITY_SECRET],
               "verbs": ["get", "update", "patch", "watch"]}),
    ];
    if values.identity_tokens.enabled {
        rules.push(json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": [SERVING_SECRET],
                          "verbs": ["get", "patch"]}));
        rules.push(json!({"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [SERVING_CA],
                          "verbs": ["patch"]}));
    }
    if values.identity_tokens.enabled && values.extensions.enabled {
        rules.push(json!({"apiGroups": ["towline.io"], "resources": ["extensionconfigs"], "verbs": ["get"]}));
    }
    rules.extend([json!({"apiGroups": ["towline.io"], "resources": ["connectedclusters", "connectedclusters/status"],
               "verbs": ["get", "list", "watch", "create", "update", "patch"]})]);
    if values.upgrades.enabled {
        rules.push(json!({"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [state::OBJECT],
                          "verbs": ["get"]}));
    }
    rules.extend([
        json!({"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}),
        json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}),
    ]);
    rules.into()
}

/// RBAC cannot say "any user but the reserved ones": the agent refuses names that begin with `system:` itself.
fn impersonation(values: &Values) -> Value {
    let extras = values.impersonation.extras.iter().map(|extra| format!("userextras/{extra}"));
    let fixed = ["uids", "userextras/towline.io/original-user"].map(str::to_owned);
    let resources: Vec<String> = fixed.into_iter().chain(extras).collect();
    json!([
        {"apiGroups": [""], "resources": ["users", "groups", "serviceaccounts"], "verbs": ["impersonate"]},
        {"apiGroups": ["authentication.k8s.io"], "resources": resources, "verbs": ["impersonate"]},
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
        // By these the agent finds out whether the apiserver has constrained impersonation: it may be nobody, for one
        // question about itself.
        {"apiGroups": ["authentication.k8s.io"], "resources": ["users"], "resourceNames": ["towline.io:probe"],
         "verbs": ["impersonate:user-info"]},
        {"apiGroups": ["authentication.k8s.io"], "resources": ["userextras/towline.io/probe"],
         "resourceNames": ["constrained-impersonation"], "verbs": ["impersonate:user-info"]},
        {"apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"],
         "verbs": ["impersonate-on:user-info:create"]},
    ])
}

struct Subject<'a> {
    part: Part,
    account: &'a Account,
    namespace: &'a str,
}

impl Subject<'_> {
    fn service_account(&self) -> Value {
        let name = account_name(self.part, self.account);
        let mut made = object("v1", "ServiceAccount", name, Some(self.namespace), self.part);
        made["automountServiceAccountToken"] = false.into();
        if !self.account.annotations.is_empty() {
            made["metadata"]["annotations"] = json!(self.account.annotations);
        }
        made
    }

    fn may_in_cluster(&self, rules: Value) -> [Value; 2] {
        let name = format!("{}:{}", self.namespace, self.part.name());
        self.may(&name, None, ["ClusterRole", "ClusterRoleBinding"], rules)
    }

    fn may_in_cluster_as(&self, what: &str, rules: Value) -> [Value; 2] {
        let name = format!("{}:{}:{what}", self.namespace, self.part.name());
        self.may(&name, None, ["ClusterRole", "ClusterRoleBinding"], rules)
    }

    /// A chart with cluster scope makes objects of any kind in any namespace, roles among them, and RBAC lets nobody give
    /// rights that they do not have. Which charts these are, the pinned keys of the catalogue decide.
    fn administers(&self) -> Value {
        let name = format!("{}:{}", self.namespace, self.part.name());
        let [_, mut binding] = self.may(&name, None, ["ClusterRole", "ClusterRoleBinding"], Value::Null);
        binding["roleRef"]["name"] = CLUSTER_ADMIN.into();
        binding
    }

    /// One verb on everything, for a group that only the agent gives to a call.
    fn verb(&self, verb: &str) -> [Value; 2] {
        let mut rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": [verb]}]);
        if let Some(rules) = rules.as_array_mut().filter(|_| verb == "get") {
            rules.push(json!({"nonResourceURLs": ["*"], "verbs": ["get"]}));
        }
        let name = format!("{}:{}:{verb}", self.namespace, self.part.name());
        let [role, mut binding] = self.may(&name, None, ["ClusterRole", "ClusterRoleBinding"], rules);
        binding["subjects"] = json!([{"kind": "Group", "apiGroup": API, "name": verb_group(verb)}]);
        [role, binding]
    }

    /// What the listener for tokens is trusted by is no secret: everything that runs in the cluster may read it.
    fn published(&self) -> [Value; 2] {
        let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [SERVING_CA],
                            "verbs": ["get", "watch"]}]);
        let [role, mut binding] = self.may(SERVING_CA, Some(self.namespace), ["Role", "RoleBinding"], rules);
        binding["subjects"] = json!([{"kind": "Group", "apiGroup": API, "name": "system:serviceaccounts"}]);
        [role, binding]
    }

    /// Guard's certificates, its snapshot of roles and assignments, and the files that an apiserver is started with. It asks the apiserver nothing.
    fn hands_out(&self) -> [Value; 4] {
        let secrets = |names: &[&str], verbs: &[&str]| json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": names, "verbs": verbs});
        let own = json!([
            secrets(&[GUARD_SECRET, GUARD_SNAPSHOT], &["get", "patch"]),
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
            secrets(&[IDENTITY_SECRET], &["get", "patch", "watch"]),
        ]);
        let [role, binding] = self.may_in_namespace(own);
        let handed = json!([secrets(&[GUARD_MANIFESTS], &["get", "patch"])]);
        let within = Some(GUARD_MANIFESTS_NAMESPACE);
        let [role_there, binding_there] = self.may(GUARD_MANIFESTS, within, ["Role", "RoleBinding"], handed);
        [role, binding, role_there, binding_there]
    }

    /// The agents' own objects, by name, and the Job that changes them; roles and definitions are only read.
    fn upgrades(&self) -> [Value; 4] {
        let own = |group: &str, resource: &str, names: &[&str], verbs: &[&str]| json!({"apiGroups": [group], "resources": [resource], "resourceNames": names, "verbs": verbs});
        let any = |group: &str, resource: &str, verbs: &[&str]| json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
        let deployments = [AGENT, MANAGER, EXTENSIONS, GUARD, UPGRADER];
        let maps = [AGENT, MANAGER, EXTENSIONS, GITOPS, FLUX_LOGS, GUARD, SERVING_CA, state::OBJECT, UPGRADER];
        let change = ["get", "patch"];
        let [role, binding] = self.may_in_namespace(json!([
            own("", "secrets", &[IDENTITY_SECRET], &["get", "watch"]),
            own("apps", "deployments", &deployments, &change),
            own("", "configmaps", &maps, &change),
            own("", "services", &[TOKENS_SERVICE, AGENT, GUARD], &change),
            own("networking.k8s.io", "networkpolicies", &[AGENT], &change),
            own("policy", "poddisruptionbudgets", &[AGENT, GUARD], &change),
            own("", "serviceaccounts", &deployments, &["get"]),
            any("batch", "jobs", &["create"]),
            own("batch", "jobs", &[job::NAME], &["get", "delete"]),
            any("", "pods", &["get", "list"]),
            any("", "events", &["create", "list"]),
            own("towline.io", "connectedclusters", &["clustermetadata"], &["get"]),
        ]));
        let [read, reads] = self.may_in_cluster(json!([
            {"apiGroups": [API], "resources": ["clusterroles", "clusterrolebindings", "roles", "rolebindings"],
             "verbs": ["get"]},
            {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get"]},
        ]));
        [read, reads, role, binding]
    }

    fn may_in_namespace(&self, rules: Value) -> [Value; 2] {
        self.may(self.part.name(), Some(self.namespace), ["Role", "RoleBinding"], rules)
    }

    fn may(&self, name: &str, within: Option<&str>, [role, binding]: [&str; 2], rules: Value) -> [Value; 2] {
        let version = format!("{API}/v1");
        let mut allowed = object(&version, role, name, within, self.part);
        allowed["rules"] = rules;
        let mut bound = object(&version, binding, name, within, self.part);
        bound["roleRef"] = json!({"apiGroup": API, "kind": role, "name": name});
        let account = account_name(self.part, self.account);
        bound["subjects"] = json!([{"kind": "ServiceAccount", "name": account, "namespace": self.namespace}]);
        [allowed, bound]
    }
}
