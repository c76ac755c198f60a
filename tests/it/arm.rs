//! The resource API as its clients see it: the Azure SDKs and the stock `az`, unmodified, and what a role opens at a
//! cluster (docs/features.md R1-R3, R10-R12, Z2, S1).

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, ensure};
use auth::rbac::call::{VERBS, verb_group};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    apiserver::{Apiserver, answer},
    case::{Needs, case, full},
    cluster::cluster,
    programs::{eventually, root, run_with_input, scratch},
    raw::{Answer, Raw},
    stack::{Plan, Resource, Stack},
};

use crate::clients::python_with_clients;

const CLUSTERS: &str = "Microsoft.Kubernetes/connectedClusters";
const CLUSTER_USER: &str = "00493d72-78f6-4148-b6c5-d3ce8e4799dd";

pub fn tests() -> Vec<Trial> {
    vec![
        case("arm::the_azure_sdks_for_python_drive_it_unmodified", Needs::Nothing, sdk),
        case("arm::stock_az_signs_in_and_works", Needs::Nothing, az),
        case("arm::properties_of_the_open_api_document_hold", Needs::Nothing, properties),
        case("arm::z2_a_role_opens_a_cluster_and_its_end_closes_sessions", Needs::Nothing, role),
        case("arm::k5_who_is_deleted_is_cut_off_at_clusters", Needs::Nothing, deleted_principal),
        case("arm::z9_a_viewer_of_a_namespace_works_without_apiserver_flags", Needs::Cluster, kubernetes_roles),
        case("arm::acknowledged_writes_survive_kill_9", Needs::Nothing, killed),
    ]
}

/// The SDKs' script, whose steps each print a line when they held.
fn sdk() -> anyhow::Result<()> {
    let (_apiserver, stack) = Stack::scripted("arm-sdk")?;
    let mut command = Command::new(python_with_clients()?);
    command.arg(root().join("tests/it/azure_sdk.py"));
    for key in ["url", "ca", "tenant", "subscription", "clientId"] {
        command.arg(stack.text(key));
    }
    let secret = format!("{}\n", stack.text("clientSecret"));
    let text = run_with_input(&mut command, Some(secret.as_bytes()), Duration::from_secs(300))?.ok()?;
    ensure!(text.lines().filter(|line| line.starts_with("held: ")).count() == 6, "{text}");
    Ok(())
}

/// `az` with a configuration of its own.
struct Az<'a> {
    stack: &'a Stack,
    program: std::path::PathBuf,
    config: std::path::PathBuf,
}

impl Az<'_> {
    fn ok(&self, args: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(&self.program);
        command.args(args).env("AZURE_CONFIG_DIR", &self.config).env("REQUESTS_CA_BUNDLE", self.stack.ca());
        command.env("AZURE_CORE_COLLECT_TELEMETRY", "0").env("AZURE_CORE_NO_COLOR", "1");
        run_with_input(&mut command, None, Duration::from_secs(180))?.ok()
    }

    fn json(&self, args: &[&str]) -> anyhow::Result<Value> {
        let text = self.ok(args)?;
        serde_json::from_str(&text).with_context(|| format!("az {args:?}: {text}"))
    }
}

fn az() -> anyhow::Result<()> {
    let (_apiserver, stack) = Stack::scripted("arm-az")?;
    let program = python_with_clients()?.with_file_name("az");
    // Away from what is swept for secrets: az keeps its tokens there.
    let config = tempfile::tempdir()?;
    let az = Az { stack: &stack, program, config: config.path().to_owned() };
    let (url, tenant) = (stack.text("url"), stack.text("tenant"));
    az.ok(&["cloud", "register", "-n", "towline", "--endpoint-resource-manager", &url])?;
    az.ok(&["cloud", "set", "-n", "towline"])?;
    az.ok(&["config", "set", "core.instance_discovery=false", "--only-show-errors"])?;
    let (id, secret) = (stack.text("clientId"), stack.text("clientSecret"));
    let account = az.json(&["login", "--service-principal", "-u", &id, "-p", &secret, "-t", &tenant])?;
    ensure!(account[0]["id"] == stack.info["subscription"], "{account}");

    let group = az.json(&["group", "create", "-n", "Edge", "-l", "eastus", "--tags", "a=b"])?;
    ensure!(group["tags"] == json!({"a": "b"}), "{group}");
    ensure!(az.ok(&["group", "exists", "-n", "edge"])?.trim() == "true");
    let cluster = format!("/subscriptions/{}/resourceGroups/Edge/providers/{CLUSTERS}/c1", stack.text("subscription"));
    let at = format!("{cluster}?api-version=2024-01-01");
    let made = az.json(&["rest", "--method", "put", "--url", &at, "--body", &new_cluster().to_string()])?;
    ensure!(made["properties"]["provisioningState"] == "Provisioning", "{made}");
    let shown = az.json(&["resource", "show", "--ids", &cluster])?;
    ensure!(shown["id"] == cluster && shown["properties"]["distribution"] == "k3s", "{shown}");
    let listed = az.json(&["resource", "list", "-g", "Edge"])?;
    ensure!(listed.as_array().is_some_and(|all| all.len() == 1), "{listed}");
    az_groups(&az, &cluster)?;

    let principal = "11111111-2222-4333-8444-555555555555";
    let role = "Azure Arc Enabled Kubernetes Cluster User Role";
    let assign = ["role", "assignment"];
    let with = |verb: &'static str, more: &[&'static str]| [&assign[..], &[verb], more].concat();
    let mut create = with("create", &["--assignee-object-id", principal, "--assignee-principal-type"]);
    create.extend(["ServicePrincipal", "--role", role, "--scope", &cluster]);
    ensure!(az.json(&create)?["properties"]["principalId"] == principal);
    let mut list = with("list", &["--assignee", principal]);
    list.extend(["--scope", &cluster]);
    let found = az.json(&list)?;
    ensure!(found[0]["roleDefinitionName"] == role && found.as_array().is_some_and(|all| all.len() == 1), "{found}");
    let mut delete = with("delete", &["--assignee", principal]);
    delete.extend(["--scope", &cluster]);
    az.ok(&delete)?;
    ensure!(az.json(&list)? == json!([]));

    az.ok(&["resource", "delete", "--ids", &cluster])?;
    az.ok(&["group", "delete", "-n", "Edge", "-y"])?;
    ensure!(az.ok(&["group", "exists", "-n", "Edge"])?.trim() == "false");
    Ok(())
}

/// The rest of what `az` does with groups, and what it finds by tags.
fn az_groups(az: &Az<'_>, cluster: &str) -> anyhow::Result<()> {
    let updated = az.json(&["group", "update", "-n", "edge", "--set", "tags.c=it's"])?;
    ensure!(updated["tags"] == json!({"a": "b", "c": "it's"}), "{updated}");
    ensure!(az.json(&["group", "show", "-n", "EDGE"])?["tags"] == updated["tags"]);
    az.ok(&["group", "wait", "-n", "Edge", "--exists", "--interval", "1"])?;
    for (tag, found) in [("a=b", 1), ("A=b", 1), ("a", 1), ("a=c", 0), ("x", 0)] {
        let groups = az.json(&["group", "list", "--tag", tag])?;
        ensure!(groups.as_array().is_some_and(|all| all.len() == found), "{tag}: {groups}");
    }
    let tagged = format!("{cluster}?api-version=2024-01-01");
    az.ok(&["rest", "--method", "patch", "--url", &tagged, "--body", &json!({"tags": {"site": "one"}}).to_string()])?;
    for (tag, found) in [("site=one", 1), ("site=two", 0)] {
        let resources = az.json(&["resource", "list", "--tag", tag])?;
        ensure!(resources.as_array().is_some_and(|all| all.len() == found), "{tag}: {resources}");
    }
    let named = az.json(&["resource", "list", "-g", "Edge", "--resource-type", CLUSTERS, "-l", "eastus"])?;
    ensure!(named[0]["id"] == cluster, "{named}");
    Ok(())
}

/// Calls that schemathesis makes up of the served document: no 500, and no answer outside of it.
fn properties() -> anyhow::Result<()> {
    let (_apiserver, stack) = Stack::scripted("arm-properties")?;
    let token = owner_token(&stack)?;
    let (url, subscription, tenant) = (stack.text("url"), stack.text("subscription"), stack.text("tenant"));
    let dir = scratch("arm-properties-settings");
    let settings = dir.join("schemathesis.toml");
    let examples = if full() { 60 } else { 4 };
    std::fs::write(
        &settings,
        format!(
            "base-url = \"{url}\"\ntls-verify = \"{}\"\nheaders = {{ Authorization = \"Bearer ${{TOWLINE_TEST_TOKEN}}\" }}\nseed = 4\n\
             [parameters]\n\"path.subscriptionId\" = \"{subscription}\"\n\"path.tenantId\" = \"{tenant}\"\n\"path.resourceGroupName\" = \"made\"\n\
             \"path.clusterName\" = \"c\"\n\"path.namespace\" = \"dev\"\n[generation]\nmax-examples = {examples}\n",
            stack.ca().display()
        ),
    )?;
    let program = python_with_clients()?.with_file_name("schemathesis");
    let mut command = Command::new(program);
    command.arg("--config-file").arg(&settings).arg("run").arg(format!("{url}/openapi.json"));
    command.args(["--phases", "coverage,fuzzing", "--no-color", "--checks"]);
    command.arg("not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance");
    if !full() {
        // What is the same code at another scope or mount.
        command.args(["--exclude-operation-id-regex", "(-[34]|^issuer-.*-2)$"]);
    }
    command.current_dir(&dir).env("TOWLINE_TEST_TOKEN", &token).env_remove("REQUESTS_CA_BUNDLE");
    let output = run_with_input(&mut command, None, Duration::from_secs(if full() { 3600 } else { 900 }))?;
    let text = output.text();
    let told: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    ensure!(output.code == Some(0), "{}", told[..told.len().min(120)].join("\n"));
    ensure!(text.contains("Tested: "), "{}", told.join("\n"));
    Ok(())
}

pub fn new_cluster() -> Value {
    json!({
        "location": "eastus",
        "identity": {"type": "SystemAssigned"},
        "properties": {"agentPublicKeyCertificate": "", "distribution": "k3s"},
    })
}

/// A request to the resource API over a connection of its own.
pub fn api(stack: &Stack, token: &str, method: &str, path: &str, body: &Value) -> anyhow::Result<Answer> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut raw = stack.raw()?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        stack.authority(),
        body.len()
    );
    raw.send(format!("{head}{body}").as_bytes())?;
    raw.answer()
}

/// A token of the service principal that owns the subscription, for the API.
pub fn owner_token(stack: &Stack) -> anyhow::Result<String> {
    principal_token(stack, (&stack.text("clientId"), &stack.text("clientSecret")), &stack.text("url"))
}

/// A token of a service principal, by its client id and secret, for an audience.
fn principal_token(stack: &Stack, (id, secret): (&str, &str), audience: &str) -> anyhow::Result<String> {
    let scope = format!("{audience}/.default").replace(':', "%3A").replace('/', "%2F");
    // Neither of these two holds a character that a form escapes.
    let form = format!("grant_type=client_credentials&client_id={id}&client_secret={secret}&scope={scope}");
    let mut raw = stack.raw()?;
    raw.send(
        format!(
            "POST /{}/oauth2/v2.0/token HTTP/1.1\r\nHost: {}\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
            stack.text("tenant"),
            stack.authority(),
            form.len()
        )
        .as_bytes(),
    )?;
    let answer = raw.answer()?;
    let token: Value = serde_json::from_slice(&answer.body)?;
    let token = token["access_token"].as_str().with_context(|| format!("no token: {}", answer.head))?.to_owned();
    tests::stack::note_secret(&token)?;
    Ok(token)
}

/// A watch at a path of the cluster that has begun.
fn watched_at(stack: &Stack, token: &str, path: &str) -> anyhow::Result<Raw> {
    let mut watch = stack.raw()?;
    let (key, host) = (stack.key(), stack.authority());
    let head = format!("GET /{key}{path}?watch=1 HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n");
    watch.send(head.as_bytes())?;
    ensure!(watch.head()?.starts_with("HTTP/1.1 200"));
    Ok(watch)
}

/// Whether a body broke off: nothing that came for so long that the reader gave up is none.
fn is_cut(chunk: anyhow::Result<Option<Vec<u8>>>) -> bool {
    use std::io::{Error, ErrorKind};
    let Err(error) = chunk else { return false };
    let waited = |cause: &(dyn std::error::Error + 'static)| {
        let kind = cause.downcast_ref::<Error>().map(Error::kind);
        matches!(kind, Some(ErrorKind::WouldBlock | ErrorKind::TimedOut))
    };
    !error.chain().any(waited)
}

/// An apiserver whose watches stay open and say nothing.
fn watched(name: &str) -> anyhow::Result<Apiserver> {
    Apiserver::start(
        &scratch(name),
        false,
        Arc::new(|request, connection| {
            if request.target().ends_with(b"watch=1") {
                connection.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
                connection.flush()?;
                // Until the peer goes away, which is what the test waits for.
                let _ = connection.read(&mut [0]);
                return Ok(false);
            }
            answer(connection, "200 OK", b"{}")
        }),
    )
}

/// The cluster as a resource, for roles: its id.
fn as_resource(stack: &Stack, token: &str) -> anyhow::Result<String> {
    let put = |path: &str, body: &Value| {
        let version = if path.contains("/providers/") { "2024-01-01" } else { "2024-03-01" };
        let made = api(stack, token, "PUT", &format!("{path}?api-version={version}"), body)?;
        ensure!(made.status == 201, "{}", String::from_utf8_lossy(&made.body));
        Ok(())
    };
    Ok(stack.connect_as_resource(new_cluster(), put)?.id)
}

/// A token lives on for an hour; who it is of was deleted. Nothing of the policy changes with that.
fn deleted_principal() -> anyhow::Result<()> {
    let apiserver = watched("arm-deleted-apiserver")?;
    let stack = Stack::start(&Plan::scripted("arm-deleted", &apiserver))?;
    let owner = owner_token(&stack)?;
    let id = as_resource(&stack, &owner)?;
    let principals = "/providers/Microsoft.Authorization/servicePrincipals";
    let made =
        api(&stack, &owner, "POST", &format!("{principals}?api-version=2022-04-01"), &json!({"displayName": "ci"}))?;
    let made: Value = serde_json::from_slice(&made.body)?;
    let text = |name: &str| made[name].as_str().map(str::to_owned).with_context(|| format!("{name} is missing"));
    let (client, object, secret) = (text("clientId")?, text("objectId")?, text("clientSecret")?);
    tests::stack::note_secret(&secret)?;
    let assignment = format!(
        "{id}/providers/Microsoft.Authorization/roleAssignments/44444444-4444-4444-8444-444444444444?api-version=2022-04-01"
    );
    let given = json!({"properties": {
        "roleDefinitionId": format!("/providers/Microsoft.Authorization/roleDefinitions/{CLUSTER_USER}"),
        "principalId": object,
        "principalType": "ServicePrincipal",
    }});
    ensure!(api(&stack, &owner, "PUT", &assignment, &given)?.status == 201);
    let token = principal_token(&stack, (&client, &secret), &format!("towline:cluster:{id}"))?;
    ensure!(stack.get_with(&token, "/version")?.status == 200, "with a role, a moment after it was made");
    let mut watch = watched_at(&stack, &token, "/api/v1/pods")?;
    let gone = api(&stack, &owner, "DELETE", &format!("{principals}/{client}?api-version=2022-04-01"), &Value::Null)?;
    ensure!(gone.status == 200, "{}", gone.head);
    ensure!(is_cut(watch.chunk()), "the watch of a deleted principal goes on");
    ensure!(stack.get_with(&token, "/version")?.status == 403, "a deleted principal");
    Ok(())
}

fn role() -> anyhow::Result<()> {
    let apiserver = watched("arm-role-apiserver")?;
    let stack = Stack::start(&Plan::scripted("arm-role", &apiserver))?;
    let token = owner_token(&stack)?;
    ensure!(stack.get("stranger", "/version")?.status == 403, "without a role");
    let id = as_resource(&stack, &token)?;
    let shown = api(&stack, &token, "GET", &format!("{id}?api-version=2024-01-01"), &Value::Null)?;
    let shown: Value = serde_json::from_slice(&shown.body)?;
    ensure!(shown["properties"]["connectivityStatus"] == "Connected", "{shown}");

    let users = api(&stack, &token, "GET", "/v1.0/users?$filter=userPrincipalName%20eq%20'stranger'", &Value::Null)?;
    let users: Value = serde_json::from_slice(&users.body)?;
    let stranger = users["value"][0]["id"].as_str().with_context(|| users.to_string())?;
    let assignment = format!(
        "{id}/providers/Microsoft.Authorization/roleAssignments/33333333-3333-4333-8333-333333333333?api-version=2022-04-01"
    );
    let given = json!({"properties": {
        "roleDefinitionId": format!("/providers/Microsoft.Authorization/roleDefinitions/{CLUSTER_USER}"),
        "principalId": stranger,
        "principalType": "User",
    }});
    let made = api(&stack, &token, "PUT", &assignment, &given)?;
    ensure!(made.status == 201, "{}", String::from_utf8_lossy(&made.body));
    ensure!(stack.get("stranger", "/version")?.status == 200, "a right that was acknowledged holds");

    let mut watch = watched_at(&stack, &stack.token("stranger")?, "/api/v1/pods")?;
    ensure!(api(&stack, &token, "DELETE", &assignment, &Value::Null)?.status == 200);
    // The session ends, which a reader of chunks sees as a fault and never as the end of the list.
    ensure!(is_cut(watch.chunk()), "the watch goes on, or ended as if nothing had happened");
    ensure!(stack.get("stranger", "/version")?.status == 403, "a right that was taken back");
    // The token of a service principal that is removed has an hour to go.
    let subscriptions = || api(&stack, &token, "GET", "/subscriptions?api-version=2022-12-01", &Value::Null);
    ensure!(subscriptions()?.status == 200);
    stack.towline(&["dev", "remove-principal", "owner"])?.ok()?;
    ensure!(subscriptions()?.status == 401, "a removed service principal");
    Ok(())
}

/// The ClusterRoles of the chart, one verb each.
fn verb_roles() -> String {
    let role = |verb: &&str| {
        let (name, group) = (format!("towline-test-verb:{verb}"), verb_group(verb));
        format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: '{name}'}}\n\
             rules: [{{apiGroups: ['*'], resources: ['*'], verbs: [{verb}]}}]\n---\n\
             apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{name: '{name}'}}\n\
             roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: '{name}'}}\n\
             subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: Group, name: '{group}'}}]\n---\n"
        )
    };
    VERBS.iter().map(role).collect()
}

/// A role at a namespace opens that namespace of a real cluster whose apiserver knows nothing of it.
fn kubernetes_roles() -> anyhow::Result<()> {
    const VIEWER: &str = "63f0a09d-1495-4db4-a681-037d84835eb4";
    let config = "\n[azure_rbac]\nissuer = \"towline\"\n";
    let stack = Stack::start(&Plan { agent_config: config, ..Plan::real("azure-rbac") })?;
    let token = owner_token(&stack)?;
    let admin = cluster().admin();
    admin.apply(&format!(
        "{}apiVersion: v1\nkind: Namespace\nmetadata: {{name: z9-dev}}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: seen, namespace: z9-dev}}\n",
        verb_roles()
    ))?;
    let put = |path: &str, version: &str, body: &Value| -> anyhow::Result<()> {
        let answer = api(&stack, &token, "PUT", &format!("{path}?api-version={version}"), body)?;
        ensure!(matches!(answer.status, 200 | 201), "{path}: {}", String::from_utf8_lossy(&answer.body));
        Ok(())
    };
    let mut body = new_cluster();
    body["properties"]["aadProfile"] = json!({"enableAzureRBAC": true});
    let made = stack.connect_as_resource(body, |path, body| {
        put(path, if path.contains("/providers/") { "2026-05-01" } else { "2024-03-01" }, body)
    })?;
    let Resource { id, mut body } = made;
    let users = api(&stack, &token, "GET", "/v1.0/users?$filter=userPrincipalName%20eq%20'stranger'", &Value::Null)?;
    let users: Value = serde_json::from_slice(&users.body)?;
    let stranger = users["value"][0]["id"].as_str().with_context(|| users.to_string())?;
    let assign = |number: u32, role: &str, scope: &str| -> anyhow::Result<String> {
        let at =
            format!("{scope}/providers/Microsoft.Authorization/roleAssignments/44444444-4444-4444-8444-{number:012}");
        let role = format!("/providers/Microsoft.Authorization/roleDefinitions/{role}");
        let given = json!({"properties": {"roleDefinitionId": role, "principalId": stranger, "principalType": "User"}});
        put(&at, "2022-04-01", &given)?;
        Ok(format!("{at}?api-version=2022-04-01"))
    };
    assign(1, CLUSTER_USER, &id)?;
    let kubectl = stack.kubectl("stranger")?;
    let listed = || kubectl.run(&["get", "configmaps", "-n", "z9-dev", "-o", "name"]);
    ensure!(listed()?.refused()?.contains("forbidden"), "no role within the cluster yet");
    let viewer = assign(2, VIEWER, &format!("{id}/namespaces/z9-dev"))?;
    eventually("the role opens the namespace", Duration::from_secs(10), || {
        Ok(listed()?.text().contains("configmap/seen"))
    })?;
    ensure!(kubectl.ok(&["auth", "whoami"])?.contains("stranger"));
    for forbidden in [
        &["get", "secrets", "-n", "z9-dev"][..],
        &["get", "configmaps", "-n", "default"],
        &["get", "configmaps", "-A"],
        &["delete", "configmap", "seen", "-n", "z9-dev"],
        &["create", "configmap", "made", "-n", "z9-dev"],
        &["get", "configmaps", "-n", "z9-dev", "--as", "x", "--as-group", "towline.io:rbac:list"],
    ] {
        let told = kubectl.run(forbidden)?.refused()?;
        ensure!(told.to_lowercase().contains("forbidden"), "{forbidden:?}: {told}");
    }
    // Taken back: an open watch ends, as a fault and not as the end of the list.
    let mut watch = watched_at(&stack, &stack.token("stranger")?, "/api/v1/namespaces/z9-dev/configmaps")?;
    ensure!(api(&stack, &token, "DELETE", &viewer, &Value::Null)?.status == 200);
    let end = loop {
        match watch.chunk() {
            Ok(Some(_)) => {}
            end => break end,
        }
    };
    ensure!(is_cut(end), "the watch goes on, or ended as if nothing had happened");
    eventually("the namespace is closed again", Duration::from_secs(10), || {
        Ok(listed()?.refused().is_ok_and(|told| told.to_lowercase().contains("forbidden")))
    })?;
    // Switched off, the cluster's own RBAC decides alone.
    assign(3, VIEWER, &id)?;
    eventually("a role at the cluster opens it", Duration::from_secs(10), || Ok(listed()?.code == Some(0)))?;
    body["properties"]["aadProfile"] = json!({"enableAzureRBAC": false});
    put(&id, "2026-05-01", &body)?;
    eventually("roles are not asked any more", Duration::from_secs(10), || {
        Ok(listed()?.refused().is_ok_and(|told| told.to_lowercase().contains("forbidden")))
    })?;
    Ok(())
}

/// Writers are acknowledged while the gateway is killed again and again; what was acknowledged must be there, and of
/// what was not no more than was under way.
fn killed() -> anyhow::Result<()> {
    let (_apiserver, stack) = Stack::scripted("arm-kill")?;
    let token = owner_token(&stack)?;
    let subscription = stack.text("subscription");
    let rounds = 100;
    let acknowledged: Mutex<BTreeSet<String>> = Mutex::default();
    let mut tried = 0;
    for round in 0..rounds {
        let target = acknowledged.lock().unwrap().len() + 3 + round % 7;
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2)
                .map(|writer| {
                    let (stack, token, acknowledged, subscription) = (&stack, &token, &acknowledged, &subscription);
                    scope.spawn(move || {
                        for number in 0.. {
                            let name = format!("r{round}-{writer}-{number}");
                            let path =
                                format!("/subscriptions/{subscription}/resourceGroups/{name}?api-version=2024-03-01");
                            match api(stack, token, "PUT", &path, &json!({"location": "x"})) {
                                Ok(answer) if answer.status == 201 => acknowledged.lock().unwrap().insert(name),
                                // The gateway was killed before it answered.
                                _ => return number + 1,
                            };
                        }
                        0
                    })
                })
                .collect();
            eventually("writes are acknowledged", Duration::from_secs(60), || {
                Ok(acknowledged.lock().unwrap().len() >= target)
            })?;
            stack.kill_gateway();
            for writer in writers {
                tried += writer.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?;
            }
            stack.restart_gateway()
        })?;
    }
    let mut found = BTreeSet::new();
    let mut next = format!("/subscriptions/{subscription}/resourcegroups?api-version=2024-03-01&$top=500");
    loop {
        let answer = api(&stack, &token, "GET", &next, &Value::Null)?;
        let page: Value = serde_json::from_slice(&answer.body)?;
        let names = page["value"].as_array().with_context(|| page.to_string())?;
        found.extend(names.iter().filter_map(|group| Some(group["name"].as_str()?.to_owned())));
        match page["nextLink"].as_str() {
            Some(link) => next = link.trim_start_matches(&stack.text("url")).to_owned(),
            None => break,
        }
    }
    let acknowledged = acknowledged.lock().unwrap();
    let lost: Vec<_> = acknowledged.difference(&found).collect();
    ensure!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    ensure!(found.len() <= tried, "{} found of {tried} tried", found.len());
    Ok(())
}
