//! The cluster's own webhook (docs/features.md Z1, Z7, Z8): kubectl goes straight to a real apiserver that asks guard
//! about tokens and rights, and no tunnel is on the way.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    case::{Needs, case},
    cluster::OwnCluster,
    kubectl::Kubectl,
    programs::{Program, binary, eventually, free_port, scratch},
    stack::{Resource, Stack},
};

use crate::arm::{api, new_cluster, owner_token};

/// How long a slow guard takes: less than an apiserver waits for.
const SLOW: Duration = Duration::from_secs(3);
/// Azure Arc Kubernetes Viewer, and Cluster Admin.
const VIEWER: &str = "63f0a09d-1495-4db4-a681-037d84835eb4";
const ADMIN: &str = "8393591c-06b9-48a2-a542-1bd6b377f6a2";

pub fn tests() -> Vec<Trial> {
    vec![case("guard::z1_kubectl_goes_straight_to_an_apiserver_that_asks_guard", Needs::Cluster, straight)]
}

/// Guard as a process beside the apiserver; its files are in `dir`.
struct Guard {
    program: Program,
    config: PathBuf,
    dir: PathBuf,
}

impl Guard {
    /// With the settings of the stack's agent.
    fn start(stack: &Stack) -> anyhow::Result<Self> {
        let config = PathBuf::from(stack.info["clusters"][0]["agent_config"].as_str().context("no agent_config")?);
        let dir = stack.dir.join("guard");
        let port = free_port("127.0.0.1")?;
        let text = std::fs::read_to_string(&config)?;
        let text = format!(
            "roles = \"guard\"\n{text}\n[azure_rbac]\nissuer = \"towline\"\n\n[guard]\nlisten = \"127.0.0.1:{port}\"\n\
             server_names = [\"guard.test\"]\nserver = \"https://127.0.0.1:{port}\"\ndirectory = \"{}\"\n",
            dir.display()
        );
        let config = config.with_file_name("guard.toml");
        std::fs::write(&config, text)?;
        let program = run_guard(stack, &config)?;
        let guard = Self { program, config, dir };
        eventually("guard has written the apiserver's files", Duration::from_secs(20), || {
            Ok(["guard-authn-webhook.yaml", "guard-authz-webhook.yaml"]
                .iter()
                .all(|file| guard.dir.join(file).exists()))
        })
        .with_context(|| guard.program.tail())?;
        Ok(guard)
    }

    /// Another process in its place, which has nothing but what is in the folder.
    fn replaced(self, stack: &Stack) -> anyhow::Result<Self> {
        let Self { program, config, dir } = self;
        drop(program);
        Ok(Self { program: run_guard(stack, &config)?, config, dir })
    }

    /// What an apiserver is started with, so that changes show within a second.
    fn flags(&self) -> Vec<String> {
        let file = |name: &str| self.dir.join(name).display().to_string();
        vec![
            format!("--authentication-token-webhook-config-file={}", file("guard-authn-webhook.yaml")),
            "--authentication-token-webhook-version=v1".to_owned(),
            "--authentication-token-webhook-cache-ttl=1s".to_owned(),
            "--authorization-mode=Node,RBAC,Webhook".to_owned(),
            format!("--authorization-webhook-config-file={}", file("guard-authz-webhook.yaml")),
            "--authorization-webhook-version=v1".to_owned(),
            "--authorization-webhook-cache-authorized-ttl=1s".to_owned(),
            "--authorization-webhook-cache-unauthorized-ttl=1s".to_owned(),
        ]
    }
}

fn run_guard(stack: &Stack, config: &Path) -> anyhow::Result<Program> {
    let mut command = Command::new(binary("towline-agent"));
    command.arg("run").arg("--config").arg(config).stdout(Stdio::null());
    Program::start("guard", command, &stack.dir.join("guard.log"))
}

/// A kubeconfig of a user for the apiserver itself.
fn direct(stack: &Stack, own: &OwnCluster, user: &str) -> anyhow::Result<Kubectl> {
    let admin: Value = serde_json::from_str(&own.admin().ok(&["config", "view", "--raw", "-o", "json"])?)?;
    let cluster = &admin["clusters"][0]["cluster"];
    let (server, ca) = (cluster["server"].as_str().context("no server")?, stack.dir.join("apiserver-ca.crt"));
    match cluster["certificate-authority-data"].as_str() {
        Some(encoded) => std::fs::write(&ca, BASE64.decode(encoded)?)?,
        None => {
            let file = cluster["certificate-authority"].as_str().context("no authority")?;
            let file = own.admin_kubeconfig().parent().unwrap_or(Path::new("/")).join(file);
            std::fs::copy(file, &ca)?;
        }
    }
    let path = stack.dir.join(format!("{user}-direct.kubeconfig"));
    let (file, ca) = (path.display().to_string(), ca.display().to_string());
    let args = ["kubeconfig", "--user", user, "--cluster", "dev", "--file", &file, "--direct", server];
    stack.towline(&[&args[..], &["--certificate-authority", &ca]].concat())?.ok()?;
    Ok(Kubectl::new(&path))
}

fn straight() -> anyhow::Result<()> {
    let (_apiserver, stack) = Stack::scripted("guard")?;
    let token = owner_token(&stack)?;
    let put = |path: &str, version: &str, body: &Value| -> anyhow::Result<()> {
        let answer = api(&stack, &token, "PUT", &format!("{path}?api-version={version}"), body)?;
        ensure!(matches!(answer.status, 200 | 201), "{path}: {}", String::from_utf8_lossy(&answer.body));
        Ok(())
    };
    let mut body = new_cluster();
    body["properties"]["aadProfile"] = json!({"enableAzureRBAC": true});
    let Resource { id, .. } = stack.connect_as_resource(body, |path, body| {
        put(path, if path.contains("/providers/") { "2026-05-01" } else { "2024-03-01" }, body)
    })?;
    let assign = |number: u32, role: &str, user: &str, scope: &str| -> anyhow::Result<()> {
        let path = format!("/v1.0/users?$filter=userPrincipalName%20eq%20'{user}'");
        let users: Value = serde_json::from_slice(&api(&stack, &token, "GET", &path, &Value::Null)?.body)?;
        let principal = users["value"][0]["id"].as_str().with_context(|| users.to_string())?;
        let at =
            format!("{scope}/providers/Microsoft.Authorization/roleAssignments/55555555-5555-4555-8555-{number:012}");
        let role = format!("/providers/Microsoft.Authorization/roleDefinitions/{role}");
        let given = json!({"roleDefinitionId": role, "principalId": principal, "principalType": "User"});
        put(&at, "2022-04-01", &json!({"properties": given}))
    };
    assign(1, ADMIN, "admin", &id)?;
    assign(2, VIEWER, "viewer", &format!("{id}/namespaces/seen"))?;
    let guard = Guard::start(&stack)?;
    let own = OwnCluster::up(&scratch("guard-cluster"), &guard.flags())?;
    own.admin().apply(
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: seen}\n---\n\
         apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one, namespace: seen}\n---\n\
         apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: widgets.example.com}\n\
         spec:\n  group: example.com\n  scope: Namespaced\n  names: {kind: Widget, plural: widgets}\n  versions:\n\
         \x20 - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}\n",
    )?;
    let [admin, viewer, stranger] = ["admin", "viewer", "stranger"].map(|user| direct(&stack, &own, user));
    let (admin, viewer, stranger) = (admin?, viewer?, stranger?);
    let refused = |kubectl: &Kubectl, args: &[&str]| -> anyhow::Result<()> {
        let told = kubectl.run(args)?.refused()?;
        ensure!(told.contains("User does not have access to the resource in Azure."), "{args:?}: {told}");
        Ok(())
    };

    eventually("an owner gets through", Duration::from_secs(20), || {
        Ok(admin.run(&["get", "namespaces"])?.code == Some(0))
    })
    .with_context(|| guard.program.tail())?;
    ensure!(admin.ok(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"])? == "admin");
    ensure!(admin.ok(&["get", "--raw", "/metrics"])?.contains("apiserver_"));
    admin.apply("apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w, namespace: seen}\n")?;
    admin.ok(&["create", "clusterrole", "all", "--verb=*", "--resource=*"]).context("an owner may escalate")?;
    ensure!(viewer.ok(&["get", "configmaps", "-n", "seen", "-o", "name"])?.contains("configmap/one"));
    for forbidden in [
        &["get", "secrets", "-n", "seen"][..],
        &["get", "configmaps", "-n", "default"],
        &["get", "configmaps", "-A"],
        &["get", "widgets.example.com", "-n", "seen"],
        &["delete", "configmap", "one", "-n", "seen"],
        &["get", "configmaps", "-n", "seen", "--as", "admin"],
        &["get", "--raw", "/metrics"],
    ] {
        refused(&viewer, forbidden)?;
    }
    // Who may do everything by assignments may ask for nobody whom the apiserver asks nobody about.
    for group in ["system:masters", "towline.io:rbac:escalate"] {
        refused(&admin, &["get", "configmaps", "-n", "seen", "--as", "somebody", "--as-group", group])?;
    }
    refused(&stranger, &["get", "configmaps", "-n", "seen"])?;
    ensure!(stranger.ok(&["get", "--raw", "/apis"])?.contains("APIGroupList"), "discovery is for everybody");
    let listed = viewer.run(&["auth", "can-i", "--list", "-n", "seen"])?;
    ensure!(listed.code == Some(0) && listed.err.contains("incomplete"), "{}", listed.err);
    ensure!(viewer.ok(&["auth", "can-i", "list", "configmaps", "-n", "seen"])?.contains("yes"));
    let account = own.admin().ok(&["create", "token", "default", "-n", "seen"])?;
    tests::stack::note_secret(account.trim())?;
    let account = ["--token".to_owned(), account.trim().to_owned()];
    let as_account = |args: &[&str]| {
        let config = own.admin().ok(&["config", "view", "--raw", "-o", "json"])?;
        let mut config: Value = serde_json::from_str(&config)?;
        config["users"][0]["user"] = json!({"token": account[1]});
        let file = own_file(&stack, "account.kubeconfig", &config)?;
        Kubectl::new(&file).run(args)
    };
    let told = as_account(&["get", "configmaps", "-n", "seen"])?.refused()?;
    ensure!(told.contains("Azure does not have opinion for this user."), "{told}");
    ensure!(as_account(&["auth", "whoami"])?.text().contains("system:serviceaccount:seen:default"));

    // Users of Kubernetes' own parts have what the cluster gives them, and guard says nothing about the rest.
    for who in [&["--as", "system:kube-scheduler"][..], &["--as", "system:node:n1", "--as-group", "system:nodes"]] {
        let told = own.admin().run(&[&["get", "configmaps", "-n", "seen"][..], who].concat())?.refused()?;
        ensure!(told.contains("Azure does not have opinion for this user."), "{who:?}: {told}");
    }
    own.admin().ok(&["get", "pods", "-A", "--as", "system:kube-scheduler"])?;

    // The gateway is gone: what it said last holds, and so do tokens that were given before.
    stack.kill_gateway();
    ensure!(viewer.ok(&["get", "configmaps", "-n", "seen", "-o", "name"])?.contains("configmap/one"));
    refused(&viewer, &["get", "secrets", "-n", "seen"])?;

    // Another guard, which never hears the gateway, goes on by what this one kept.
    ensure!(guard.dir.join("snapshot.json.gz").exists(), "{}", guard.program.tail());
    let guard = guard.replaced(&stack)?;
    eventually("a viewer sees what the kept snapshot says", Duration::from_secs(30), || {
        Ok(viewer.run(&["get", "configmaps", "-n", "seen", "-o", "name"])?.text().contains("configmap/one"))
    })
    .with_context(|| guard.program.tail())?;
    refused(&viewer, &["get", "secrets", "-n", "seen"])?;
    refused(&stranger, &["get", "configmaps", "-n", "seen"])?;

    // Guard answers after seconds: the apiserver waits for it. Nothing was asked about services before.
    guard.program.signal("STOP")?;
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let begun = Instant::now();
        let asked = scope.spawn(|| viewer.run(&["get", "services", "-n", "seen"]));
        eventually("seconds have passed", 2 * SLOW, || Ok(begun.elapsed() >= SLOW))?;
        let is_answered = asked.is_finished();
        guard.program.signal("CONT")?;
        let told = asked.join().map_err(|_| anyhow::anyhow!("it panicked"))??;
        ensure!(!is_answered, "the apiserver answered without guard: {}{}", told.text(), told.err);
        ensure!(told.code == Some(0), "{}", told.err);
        Ok(())
    })?;

    // Guard does not answer: the apiserver gives up after 30 s, and its own users wait for nothing.
    guard.program.signal("STOP")?;
    let patient = viewer.clone().within(Duration::from_secs(120));
    // What it remembers of guard ends after a second.
    eventually("the apiserver gives up", Duration::from_secs(300), || {
        std::thread::scope(|scope| -> anyhow::Result<bool> {
            let asked = scope.spawn(|| patient.run(&["get", "configmaps", "-n", "seen", "-o", "name"]));
            ensure!(own.admin().ok(&["get", "configmaps", "-n", "seen", "-o", "name"])?.contains("configmap/one"));
            let told = asked.join().map_err(|_| anyhow::anyhow!("it panicked"))??;
            Ok(told.code != Some(0) && !told.text().contains("configmap/one"))
        })
    })?;
    guard.program.signal("CONT")?;
    eventually("guard answers again", Duration::from_secs(60), || {
        Ok(viewer.run(&["get", "configmaps", "-n", "seen"])?.code == Some(0))
    })?;

    // Guard is gone too: nobody of the gateway gets in, and nobody of the cluster's own is locked out.
    drop(guard);
    // What the apiserver remembers of it ends after a second.
    eventually("nobody of the gateway gets in", Duration::from_secs(30), || {
        let told = viewer.run(&["get", "configmaps", "-n", "seen"])?.refused();
        Ok(told.is_ok_and(|told| told.contains("Unauthorized") || told.contains("provide credentials")))
    })?;
    ensure!(own.admin().ok(&["get", "configmaps", "-n", "seen", "-o", "name"])?.contains("configmap/one"));
    own.admin().ok(&[
        "create",
        "rolebinding",
        "view",
        "-n",
        "seen",
        "--clusterrole=view",
        "--serviceaccount=seen:default",
    ])?;
    eventually("a service account has what RBAC gives", Duration::from_secs(10), || {
        Ok(as_account(&["get", "configmaps", "-n", "seen", "-o", "name"])?.code == Some(0))
    })?;
    Ok(())
}

fn own_file(stack: &Stack, name: &str, config: &Value) -> anyhow::Result<PathBuf> {
    let path = stack.dir.join(name);
    std::fs::write(&path, config.to_string())?;
    Ok(path)
}
