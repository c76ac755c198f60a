//! Whom the cluster lets somebody be (`--as`, and its constrained form of KEP-5284): through the tunnel as next to the
//! apiserver, with the rights that the chart gives the agent.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, ensure};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    case::{Needs, case},
    cluster::cluster,
    programs::{eventually, root, run, run_with_input, scratch},
    stack::{Plan, Stack, note_secret},
};

pub fn tests() -> Vec<Trial> {
    vec![case(
        "impersonation::decisions_are_those_of_the_apiserver",
        Needs::Cluster,
        decisions_are_those_of_the_apiserver,
    )]
}

const NAMESPACE: &str = "impersonation";
const USER: &str = "viewer";

/// Who may be asked for. `Impersonate-` is in front of each header's name.
const WISHES: [&[(&str, &str)]; 21] = [
    &[("User", "con")],
    &[("User", "con"), ("Group", "con-group")],
    &[("User", "con"), ("Group", "other-group")],
    &[("User", "con"), ("Group", "a"), ("Group", "b"), ("Group", "c"), ("Group", "d")],
    &[("User", "con"), ("Uid", "con-uid")],
    &[("User", "con"), ("Uid", "other-uid")],
    &[("User", "con"), ("Extra-example.com%2fteam", "red")],
    &[("User", "con"), ("Extra-example.com%2fteam", "red"), ("Extra-example.com%2fteam", "blue")],
    &[("User", "con"), ("Extra-oid", "plain")],
    &[("User", "all"), ("Group", "a"), ("Group", "b"), ("Group", "c"), ("Group", "d")],
    &[("User", "plain")],
    &[("User", "plain"), ("Group", "plain-group")],
    &[("User", "plain"), ("Group", "con-group")],
    &[("User", "nobody")],
    &[("User", "system:serviceaccount:impersonation:con")],
    &[("User", "system:serviceaccount:impersonation:con"), ("Group", "con-group")],
    &[("User", "system:serviceaccount:impersonation:plain")],
    &[("User", "system:serviceaccount:impersonation:other")],
    &[("User", "system:serviceaccount:impersonation:a:b")],
    &[("User", "system:node:con")],
    &[("User", "system:node:con"), ("Group", "con-group")],
];

/// What is then asked of the apiserver. Resources that there are none of: what may be seen of them is 404 at once,
/// watches too.
const CALLS: [(&str, &str); 17] = [
    ("GET", "/api/v1/namespaces/impersonation/listed"),
    ("GET", "/api/v1/listed"),
    ("GET", "/api/v1/namespaces/impersonation/listed?watch=1"),
    ("GET", "/api/v1/namespaces/impersonation/listed?%77atch=1"),
    ("GET", "/api/v1/namespaces/impersonation/listed?watch=1;x"),
    ("GET", "/api/v1/namespaces/impersonation/watched?watch="),
    ("GET", "/api/v1/watch/namespaces/impersonation/watched"),
    ("GET", "/api/v1/namespaces/impersonation/named/one"),
    ("GET", "/api/v1/namespaces/impersonation/named/two"),
    ("GET", "/api/v1/namespaces/impersonation/named?fieldSelector=metadata.name%3Done"),
    ("GET", "/api/v1/namespaces/impersonation/named?fieldSelector=a!%3Db%5C,metadata.name%3Done"),
    ("GET", "/apis/example.com/v1/namespaces/impersonation/named?labelSelector=a%3Db"),
    ("GET", "/api/v1/namespaces/impersonation/named/one/log"),
    ("POST", "/api/v1/namespaces/impersonation/listed"),
    ("DELETE", "/api/v1/namespaces/impersonation/listed"),
    ("GET", "/version"),
    ("GET", "/api"),
];

fn decisions_are_those_of_the_apiserver() -> anyhow::Result<()> {
    let dir = scratch("impersonation");
    grant()?;
    let stack = Stack::start(&Plan {
        carrier: Some("h2"),
        apiserver: agents_kubeconfig(&dir)?,
        agent_config: "\n[impersonation]\nextras = [\"oid\", \"example.com/team\"]\nallow_reserved = [\"system:node:con\"]\n",
        ..Plan::real("impersonation")
    })?;
    let (key, certificate) = certificate(&dir)?;
    let direct = Way {
        url: cluster().get("CLUSTER_API").to_owned(),
        options: format!(
            "cacert = \"{}\"\ncert = \"{}\"\nkey = \"{}\"\n",
            cluster().get("CLUSTER_CA"),
            certificate.display(),
            key.display()
        ),
    };
    let through = Way {
        url: format!("https://{}/{}", stack.authority(), stack.key()),
        options: format!(
            "cacert = \"{}\"\nheader = \"Authorization: Bearer {}\"\n",
            stack.ca().display(),
            stack.token(USER)?
        ),
    };
    // Rights reach the apiserver's authorizer when it has seen them.
    eventually("the apiserver knows the rights", Duration::from_secs(20), || {
        Ok(direct.statuses(&dir, &[("GET", "/api/v1/namespaces/impersonation/listed")], WISHES[10])? == [404])
    })?;
    let mut allowed = 0;
    for wish in WISHES {
        let [direct, through] = [&direct, &through].map(|way| way.statuses(&dir, &CALLS, wish));
        let (direct, through) = (direct?, through?);
        for ((call, direct), through) in CALLS.iter().zip(direct).zip(through) {
            ensure!(direct == through, "{wish:?} {call:?}: {direct} by the apiserver, {through} through the tunnel");
            allowed += usize::from(direct != 403);
        }
    }
    // Else there was nothing to compare.
    ensure!((60..240).contains(&allowed), "{allowed} of {} were allowed", WISHES.len() * CALLS.len());
    // As whom it went on.
    for wish in [WISHES[0], WISHES[1], WISHES[10], WISHES[14], WISHES[19]] {
        let [mut direct, mut through] = [direct.whoami(&dir, wish)?, through.whoami(&dir, wish)?];
        let original = through["extra"].as_object_mut().and_then(|extra| extra.remove("towline.io/original-user"));
        ensure!(original == Some(json!([USER])), "{wish:?}: {through}");
        for of in [&mut direct, &mut through] {
            if of["extra"].as_object().is_none_or(serde_json::Map::is_empty) {
                of["extra"] = Value::Null;
            }
        }
        ensure!(direct == through, "{wish:?}: {direct} by the apiserver, {through} through the tunnel");
    }
    Ok(())
}

/// The rights of who asks. All who may be asked for may do everything, so that nothing else is decided about.
fn grant() -> anyhow::Result<()> {
    let constrained = "authentication.k8s.io";
    let rule = |group: &str, resources: &str, names: &str, verbs: &str| {
        format!("- {{apiGroups: ['{group}'], resources: [{resources}], resourceNames: [{names}], verbs: [{verbs}]}}\n")
    };
    let on = |verb: &str| format!("'impersonate-on:user-info:{verb}'");
    let account = "'impersonate:serviceaccount'";
    let mut rules = String::new();
    rules += &rule(constrained, "users", "con, all", "'impersonate:user-info'");
    rules += &rule(constrained, "groups", "con-group", "'impersonate:user-info'");
    rules += &rule(constrained, "uids", "con-uid", "'impersonate:user-info'");
    rules += &rule(constrained, "userextras/example.com/team", "red", "'impersonate:user-info'");
    rules += &rule(constrained, "serviceaccounts", "con", account);
    rules += &rule(constrained, "nodes", "con", "'impersonate:arbitrary-node'");
    rules += &rule("", "users", "plain", "impersonate");
    rules += &rule("", "groups", "plain-group", "impersonate");
    rules += &rule("", "serviceaccounts", "plain", "impersonate");
    rules += &rule("", "named, named/log", "one", &format!("{}, {}", on("get"), on("list")));
    rules += "- {nonResourceURLs: [/version], verbs: ['impersonate-on:user-info:get', 'impersonate-on:serviceaccount:get']}\n\
              - {apiGroups: [authentication.k8s.io], resources: [selfsubjectreviews], verbs: ['impersonate-on:user-info:create', 'impersonate-on:serviceaccount:create', 'impersonate-on:arbitrary-node:create']}\n";
    let mut manifest = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}}}\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: impersonation-test}}\nrules:\n{rules}---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{name: impersonation-test}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: impersonation-test}}\n\
         subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {USER}}}]\n---\n"
    );
    // In one namespace only, so that the right to it is none to the whole cluster.
    write!(
        manifest,
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{name: impersonation-test, namespace: {NAMESPACE}}}\nrules:\n\
         - {{apiGroups: [''], resources: [listed], verbs: ['impersonate-on:user-info:list', 'impersonate-on:user-info:create', 'impersonate-on:user-info:deletecollection', 'impersonate-on:serviceaccount:list', 'impersonate-on:arbitrary-node:list']}}\n\
         - {{apiGroups: [''], resources: [watched], verbs: ['impersonate-on:user-info:watch']}}\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{name: impersonation-test, namespace: {NAMESPACE}}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: impersonation-test}}\n\
         subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {USER}}}]\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: impersonation-all}}\nrules:\n\
         - {{apiGroups: [authentication.k8s.io], resources: [groups], resourceNames: ['*'], verbs: ['impersonate:user-info']}}\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{name: impersonation-asked}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}}\nsubjects:\n"
    )?;
    for name in ["con", "all", "plain", "system:node:con"] {
        writeln!(manifest, "- {{apiGroup: rbac.authorization.k8s.io, kind: User, name: '{name}'}}")?;
    }
    for name in ["con", "plain"] {
        writeln!(manifest, "- {{kind: ServiceAccount, namespace: {NAMESPACE}, name: {name}}}")?;
    }
    cluster().admin().apply(&manifest)?;
    Ok(())
}

/// The kubeconfig of an agent with the rights that the chart gives it, and no others.
fn agents_kubeconfig(dir: &Path) -> anyhow::Result<PathBuf> {
    let chart = root().join("docker/chart/towline-agent").display().to_string();
    let rbac = run(
        Command::new(cluster().get("CLUSTER_HELM"))
            .args(["template", "towline-agent", &chart, "--show-only", "templates/rbac.yaml", "--namespace", NAMESPACE])
            .args(["--set", "impersonation.extras={oid,example.com/team}", "--set", "gateway.url=https://localhost"])
            .args(["--set", "identity.existingSecret=none"])
            .env("HOME", dir),
        Duration::from_secs(60),
    )?
    .ok()?;
    let admin = cluster().admin().namespace(NAMESPACE);
    admin.apply(&rbac)?;
    let token = admin.ok(&["create", "token", "towline-agent"])?.trim().to_owned();
    note_secret(&token)?;
    let ca = BASE64.encode(std::fs::read(cluster().get("CLUSTER_CA"))?);
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "agent",
        "clusters": [{"name": "agent", "cluster": {"server": cluster().get("CLUSTER_API"), "certificate-authority-data": ca}}],
        "users": [{"name": "agent", "user": {"token": token}}],
        "contexts": [{"name": "agent", "context": {"cluster": "agent", "user": "agent"}}],
    });
    let file = dir.join("agent.kubeconfig");
    std::fs::write(&file, kubeconfig.to_string())?;
    Ok(file)
}

/// Key and certificate by which the apiserver itself knows the user.
fn certificate(dir: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    let (key, request, certificate) = (dir.join("user.key"), dir.join("user.csr"), dir.join("user.crt"));
    let [key_file, request_file] = [&key, &request].map(|path| path.display().to_string());
    run(
        Command::new("openssl")
            .args(["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
            .args(["-subj", &format!("/CN={USER}"), "-keyout", &key_file, "-out", &request_file]),
        Duration::from_secs(60),
    )?
    .ok()?;
    let (admin, name) = (cluster().admin(), format!("impersonation-{}", std::process::id()));
    let request = BASE64.encode(std::fs::read(request)?);
    admin.apply(&format!(
        "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {{name: {name}}}\n\
         spec: {{request: {request}, signerName: kubernetes.io/kube-apiserver-client, usages: [client auth]}}\n"
    ))?;
    admin.ok(&["certificate", "approve", &name])?;
    let mut issued = String::new();
    eventually("the cluster's authority signs", Duration::from_secs(30), || {
        issued = admin.ok(&["get", "csr", &name, "-o", "jsonpath={.status.certificate}"])?;
        Ok(!issued.is_empty())
    })?;
    admin.ok(&["delete", "csr", &name])?;
    std::fs::write(&certificate, BASE64.decode(issued.trim())?)?;
    Ok((key, certificate))
}

/// A way to the apiserver: where, and with which credential.
struct Way {
    url: String,
    options: String,
}

impl Way {
    fn config(&self, wish: &[(&str, &str)]) -> anyhow::Result<String> {
        let mut config = format!("silent\nshow-error\nmax-time = 60\nhttp1.1\n{}", self.options);
        for (name, value) in wish {
            writeln!(config, "header = \"Impersonate-{name}: {value}\"")?;
        }
        Ok(config)
    }

    fn curl(config: &str) -> anyhow::Result<String> {
        run_with_input(Command::new("curl").args(["--config", "-"]), Some(config.as_bytes()), Duration::from_secs(150))?
            .ok()
    }

    /// The status of each call.
    fn statuses(&self, dir: &Path, calls: &[(&str, &str)], wish: &[(&str, &str)]) -> anyhow::Result<Vec<u16>> {
        let mut config = String::new();
        for (method, path) in calls {
            if !config.is_empty() {
                config += "next\n";
            }
            write!(
                config,
                "{}request = \"{method}\"\nurl = \"{}{path}\"\noutput = \"{}\"\nwrite-out = \"%{{response_code}}\\n\"\n",
                self.config(wish)?,
                self.url,
                dir.join("answer").display()
            )?;
        }
        let lines = Self::curl(&config)?;
        let statuses = lines.lines().map(str::parse).collect::<Result<Vec<u16>, _>>().context(lines.clone())?;
        ensure!(statuses.len() == calls.len(), "{lines}");
        Ok(statuses)
    }

    /// Whom the apiserver takes the caller for.
    fn whoami(&self, dir: &Path, wish: &[(&str, &str)]) -> anyhow::Result<Value> {
        let body = dir.join("review.json");
        std::fs::write(&body, "{\"apiVersion\":\"authentication.k8s.io/v1\",\"kind\":\"SelfSubjectReview\"}")?;
        let answer = Self::curl(&format!(
            "{}header = \"Content-Type: application/json\"\ndata-binary = \"@{}\"\nurl = \"{}/apis/authentication.k8s.io/v1/selfsubjectreviews\"\n",
            self.config(wish)?,
            body.display(),
            self.url
        ))?;
        let answer: Value = serde_json::from_str(&answer).context(answer.clone())?;
        ensure!(answer["status"]["userInfo"].is_object(), "{wish:?}: {answer}");
        Ok(answer["status"]["userInfo"].clone())
    }
}
