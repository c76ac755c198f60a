//! Clusters by name, roles, features, and the way of kubectl to a cluster.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use serde_json::{Value, json};
use support::site::{Site, failed};

const CLUSTERS: &str = "providers/Microsoft.Kubernetes/connectedClusters";

/// A gateway with a resource group and a cluster in it that has no agent.
fn site() -> Site {
    let site = Site::signed_in(&[]);
    site.ok(&["group", "create", "-g", "web", "-l", "eastus"]);
    add_cluster(&site, "one");
    site
}

fn add_cluster(site: &Site, name: &str) {
    let url = format!("/subscriptions/{{subscription}}/resourceGroups/web/{CLUSTERS}/{name}?api-version=2026-05-01");
    let body = json!({"location": "eastus", "identity": {"type": "SystemAssigned"}, "properties": {"agentPublicKeyCertificate": ""}});
    let body = site.file("body.json", &body.to_string());
    site.ok(&["rest", "-m", "put", "-u", &url, "-b", &format!("@{body}")]);
}

fn claims(token: &str) -> Value {
    serde_json::from_slice(&BASE64.decode(token.split('.').nth(1).unwrap()).unwrap()).unwrap()
}

/// What the gateway or the command's own version forbids is refused before anything is asked of a cluster.
#[test]
fn u3_agents_are_upgraded_by_hand_only_while_they_do_not_upgrade_themselves() {
    let site = site();
    let upgrade = ["upgrade", "-n", "one", "-g", "web", "--kube-config", "/nowhere"];
    let refused = site.fails(1, &upgrade);
    assert!(refused.contains("is only supported when auto-upgrade is set to false."), "{refused}");
    assert!(refused.contains("hint: towline update -g web -n one --auto-upgrade false"), "{refused}");
    let other = [&upgrade[..], &["--agent-version", "0.0.1"]].concat();
    assert!(site.fails(1, &other).contains("is only supported when auto-upgrade is set to false."));
    site.ok(&["update", "-n", "one", "-g", "web", "--auto-upgrade", "false"]);
    assert!(site.fails(2, &other).contains("/nowhere"), "whether they upgrade themselves is to be seen in the cluster");
    let rights = site.fails(2, &[&other[..], &["--rights-only"]].concat());
    assert!(rights.contains("gives agents that version alone"), "{rights}");
    assert!(rights.contains("hint: use towline of version 0.0.1"), "{rights}");
    assert!(site.fails(2, &upgrade).contains("/nowhere"), "it goes on to the cluster");
}

#[test]
fn i1_clusters_are_listed_shown_and_changed_by_name() {
    let site = site();
    add_cluster(&site, "two");
    assert_eq!(site.ok(&["list", "-g", "web", "--query", "[].name", "-o", "tsv"]), "one\ntwo");
    let table = site.ok(&["list"]);
    let mut lines = table.lines();
    assert!(lines.next().unwrap().starts_with("NAME  RESOURCEGROUP  LOCATION  STATUS"), "{table}");
    assert!(lines.next().unwrap().starts_with("one   web            eastus    AgentNotInstalled"), "{table}");
    let shown = site.ok(&["show", "-n", "ONE", "-g", "Web"]);
    assert!(shown.contains("Status               AgentNotInstalled"), "{shown}");
    let changed = site.json(&["update", "-n", "one", "-g", "web", "--tags", "a=b", "--distribution", "k3s"]);
    assert_eq!((&changed["tags"], &changed["properties"]["distribution"]), (&json!({"a": "b"}), &json!("k3s")));
    let changed = site.json(&["update", "-n", "one", "-g", "web", "--auto-upgrade", "false"]);
    assert_eq!(changed["properties"]["arcAgentProfile"]["agentAutoUpgrade"], "Disabled");
    assert_eq!(changed["tags"], json!({"a": "b"}), "the rest stays");
    assert_eq!(site.json(&["update", "-n", "one", "-g", "web", "--tags", ""])["tags"], json!({}));
    assert!(site.fails(2, &["update", "-n", "one", "-g", "web"]).contains("hint: such as --tags"));
    let unknown = site.fails(1, &["show", "-n", "three", "-g", "web"]);
    assert!(
        unknown.contains("ResourceNotFound")
            && unknown.contains("hint: see which clusters there are: towline list -g web"),
        "{unknown}"
    );
    assert!(unknown.contains("request id "), "{unknown}");
    assert!(site.fails(2, &["show", "-n", "../x", "-g", "web"]).contains("--name"), "no path is made of a name");
    let id = "11111111-2222-4333-8444-555555555555";
    site.ok(&["list", "--correlation-id", id]);
    let audit = std::fs::read_to_string(site.text("audit")).unwrap_or_default();
    assert!(!audit.contains(site.text("clientSecret")));
}

#[test]
fn i2_an_empty_list_says_so_to_people_and_nothing_to_scripts() {
    let site = Site::signed_in(&[]);
    let said = |args: &[&str]| {
        let output = site.command(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap().trim().to_owned())
    };
    for (list, says) in [
        (&["list"][..], "no connected clusters; towline connect makes one"),
        (&["group", "list"], "no resource groups; towline group create makes one"),
        (&["sessions", "list"], "no sessions are open"),
        (&["role", "assignment", "list"], "no role assignments"),
        (
            &["extension", "types", "list"],
            "no extension types; the gateway's catalogue is a folder that its configuration names",
        ),
    ] {
        assert_eq!(said(list), ["", says], "{list:?}");
        assert_eq!(said(&[list, &["-o", "json"]].concat()), ["[]", ""], "{list:?}");
        assert_eq!(said(&[list, &["-o", "tsv"]].concat()), ["", ""], "{list:?}");
    }
    let ended = site.fails(1, &["sessions", "end", "nope"]);
    assert!(ended.contains("hint: see which are open: towline sessions list"), "{ended}");
}

#[test]
fn k9_features_are_switched_by_name() {
    let site = site();
    let asks = site.fails(2, &["disable-features", "-n", "one", "-g", "web", "--features", "cluster-connect"]);
    assert!(asks.contains("--yes"), "{asks}");
    let off = site.json(&["disable-features", "-n", "one", "-g", "web", "--features", "cluster-connect", "-y"]);
    let list = off["properties"]["arcAgentryConfigurations"].clone();
    assert_eq!(list[0]["settings"]["enabled"], "false", "{list}");
    let on = site.json(&["enable-features", "-n", "one", "-g", "web", "--features", "cluster-connect", "azure-rbac"]);
    assert_eq!(on["properties"]["arcAgentryConfigurations"][0]["settings"]["enabled"], "true");
    assert_eq!(on["properties"]["aadProfile"]["enableAzureRBAC"], true);
    let unknown = site.fails(2, &["enable-features", "-n", "one", "-g", "web", "--features", "nonsense"]);
    assert!(unknown.contains("cluster-connect"), "what there is, is told: {unknown}");
}

#[test]
fn z2_roles_are_given_and_taken_by_name() {
    let site = site();
    let create = ["role", "assignment", "create", "--assignee", "viewer", "--role", "Reader", "-g", "web"];
    let made = site.json(&create);
    assert_eq!((&made["principalName"], &made["roleDefinitionName"]), (&json!("viewer"), &json!("Reader")));
    let twice = site.fails(1, &create);
    assert!(twice.contains("RoleAssignmentExists"), "{twice}");
    let list = ["role", "assignment", "list", "-g", "web", "--assignee", "viewer"];
    assert_eq!(site.ok(&[&list[..], &["--query", "[].roleDefinitionName", "-o", "tsv"]].concat()), "Reader");
    let nobody = site.fails(1, &["role", "assignment", "create", "--assignee", "nobody", "--role", "Reader"]);
    assert!(nobody.contains("has no account called \"nobody\"") && nobody.contains("--assignee ID"), "{nobody}");
    let role = site.fails(1, &["role", "assignment", "create", "--assignee", "viewer", "--role", "Raeder"]);
    assert!(role.contains("hint: towline role definition list"), "{role}");
    site.ok(&["role", "assignment", "delete", "--assignee", "viewer", "--role", "reader", "-g", "web", "-y"]);
    assert_eq!(site.json(&list), json!([]));
    let own = json!({"Name": "Tagger", "Actions": ["Microsoft.Kubernetes/connectedClusters/read"]}).to_string();
    let file = site.file("role.json", &own);
    site.ok(&["role", "definition", "create", "--role-definition", &file]);
    assert_eq!(
        site.ok(&[
            "role",
            "definition",
            "list",
            "--custom-role-only",
            "--query",
            "[].properties.roleName",
            "-o",
            "tsv"
        ]),
        "Tagger"
    );
    assert_eq!(site.json(&["role", "definition", "show", "--name", "tagger"])["properties"]["type"], "CustomRole");
    let asks = site.fails(2, &["role", "definition", "delete", "--name", "Tagger"]);
    assert!(asks.contains("Delete the role Tagger?") && asks.contains("--yes"), "{asks}");
    site.ok(&["role", "definition", "delete", "--name", "Tagger", "--yes"]);
    assert!(site.fails(1, &["role", "definition", "delete", "--name", "Tagger"]).contains("there is no role"));
}

#[test]
fn k2_a_kubeconfig_by_name_gets_its_tokens_from_the_account() {
    let site = site();
    let file = site.path("kubeconfig");
    site.ok(&["kubeconfig", "-n", "one", "-g", "web", "-f", &file, "--kube-context", "one"]);
    assert_eq!(support::site::mode(std::path::Path::new(&file)), 0o600);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains(site.text("clientSecret")), "nothing secret is in it");
    let value: serde_yaml::Value = serde_yaml::from_str(&text).unwrap();
    let cluster = &value["clusters"][0]["cluster"];
    let name = cluster["tls-server-name"].as_str().unwrap();
    assert_eq!((cluster["server"].as_str(), name.split_once('.').unwrap().0.len()), (Some(site.text("url")), 52));
    let by_path = site.path("by-path");
    site.ok(&["kubeconfig", "-n", "one", "-g", "web", "-f", &by_path, "--address", "path"]);
    let by_path: serde_yaml::Value = serde_yaml::from_str(&std::fs::read_to_string(&by_path).unwrap()).unwrap();
    let cluster = &by_path["clusters"][0]["cluster"];
    let (url, key) = cluster["server"].as_str().unwrap().rsplit_once('/').unwrap();
    assert_eq!((url, key.len(), cluster.get("tls-server-name")), (site.text("url"), 64, None));
    let refused = site.fails(2, &["kubeconfig", "-n", "one", "-g", "web", "-f", "-", "--address", "host"]);
    assert!(refused.contains("domain"), "{refused}");
    let exec = &value["users"][0]["user"]["exec"];
    assert_eq!(exec["env"][0]["value"].as_str(), Some(site.path("config").as_str()));
    let args: Vec<&str> = exec["args"].as_sequence().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
    let credential = |version: &str| -> Value {
        let mut command = support::towline(&args);
        command.env("TOWLINE_CONFIG_DIR", site.path("config"));
        command.env("KUBERNETES_EXEC_INFO", json!({"apiVersion": version, "kind": "ExecCredential"}).to_string());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let first = credential("client.authentication.k8s.io/v1");
    let second = credential("client.authentication.k8s.io/v1beta1");
    assert_eq!(second["apiVersion"], "client.authentication.k8s.io/v1beta1");
    assert_eq!(first["status"]["token"], second["status"]["token"], "a token is kept while it is good");
    let said = claims(first["status"]["token"].as_str().unwrap());
    let audience = format!(
        "towline:cluster:/subscriptions/{}/resourcegroups/web/{}/one",
        site.text("subscription"),
        CLUSTERS.to_lowercase()
    );
    assert_eq!(said["aud"], audience.as_str());
    assert!(site.fails(1, &["kubeconfig", "-n", "three", "-g", "web", "-f", &file]).contains("ResourceNotFound"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text, "a failure changes nothing");
    assert!(site.fails(2, &["kubeconfig", "-n", "one", "-f", &file]).contains("--resource-group"));
    assert!(site.fails(2, &["kubeconfig", "-f", &file]).contains("hint: -n NAME -g GROUP"));
    assert!(site.ok(&["whoami", "--json"]).contains("\"account\""));
    let user = site.ok(&["whoami", "--query", "user", "-o", "tsv"]);
    assert_eq!(user, site.text("clientId"));
    assert!(site.fails(2, &["whoami", "--json", "-o", "yaml"]).contains("--json"));
}

/// A terminal of its own: Ctrl+C goes to whoever is in the foreground of it.
const CTRL_C: &str = r#"
import os, pty, signal, sys
signal.alarm(120)
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
seen = b''
while b'[y/N] ' not in seen:
    seen += os.read(terminal, 1024)
os.write(terminal, b'\x03')
try:
    while os.read(terminal, 1024):
        pass
except OSError:
    pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

#[test]
fn i6_an_interrupt_at_a_question_ends_the_command_and_changes_nothing() {
    let site = site();
    let program = env!("CARGO_BIN_EXE_towline");
    for question in [
        &["delete", "-n", "one", "-g", "web", "--force", "--kube-config", "/none"][..],
        &["group", "delete", "-g", "web"],
    ] {
        let own = site.command(&[]);
        let own = own.get_envs().filter_map(|(name, value)| Some((name, value?)));
        let mut python = std::process::Command::new("python3");
        let output = python.envs(own).args(["-c", CTRL_C, program]).args(question).output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{question:?}: {output:?}");
    }
    assert_eq!(site.ok(&["list", "-g", "web", "--query", "[].name", "-o", "tsv"]), "one");
}

#[test]
fn k3_proxies_by_name_run_side_by_side() {
    let site = site();
    add_cluster(&site, "two");
    let file = site.path("kubeconfig");
    let start = |name: &str| {
        let mut running = support::Running::start(site.command(&["proxy", "-n", name, "-g", "web", "-f", &file]));
        assert!(running.line().starts_with("Proxy is listening on port "));
        running
    };
    let (_one, _two, mut again) = (start("one"), start("two"), start("one"));
    let value: serde_yaml::Value = serde_yaml::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let servers: std::collections::HashSet<_> =
        value["clusters"].as_sequence().unwrap().iter().map(|one| one["cluster"]["server"].as_str().unwrap()).collect();
    assert_eq!(servers.len(), 3, "{servers:?}");
    again.signal("INT");
    assert_eq!(again.code(), Some(130));
    let gone = failed(1, site.run(&["proxy", "-n", "three", "-g", "web", "-f", &file]), &[]);
    assert!(gone.contains("ResourceNotFound"), "{gone}");
}

#[test]
fn s1_what_somebody_may_not_is_told_with_who_can_change_it() {
    let site = site();
    let secret =
        |name: &str| std::fs::read_to_string(site.dir.path().join(format!("state/principals/{name}.secret"))).unwrap();
    support::ok(&["dev", "add-principal", "--state", site.text("state"), "ci"]);
    let id = site.json(&["rest", "-u", "/v1.0/servicePrincipals?$filter=displayName%20eq%20'ci'"])["value"][0]["appId"]
        .as_str()
        .unwrap()
        .to_owned();
    let file = site.file("ci-secret", &secret("ci"));
    let login = ["login", site.text("url"), "--service-principal", "-u", &id, "--secret-file", &file, "--name", "ci"];
    assert!(site.ok(&login).contains("ci"));
    let subscription = site.text("subscription");
    let refused = site.fails(1, &["group", "create", "-g", "mine", "-l", "x", "--subscription", subscription]);
    assert!(
        refused.contains("AuthorizationFailed")
            && refused.contains("Microsoft.Resources/subscriptions/resourceGroups/write"),
        "{refused}"
    );
    assert!(
        refused.contains("hint: an owner can give the right: towline role assignment create --assignee"),
        "{refused}"
    );
    // Two accounts at one gateway: an option chooses, and what is current is changed by name.
    let owner = format!("{}@{}", site.text("clientId"), site.text("url").trim_start_matches("https://"));
    assert_eq!(site.ok(&["group", "exists", "-g", "web", "--account", &owner]), "true");
    site.ok(&["account", "set", &owner]);
    assert_eq!(site.ok(&["group", "exists", "-g", "web"]), "true");
    assert!(
        site.fails(1, &["account", "set", "--subscription", "c0000000-0000-4000-8000-00000000000c"])
            .contains("sees no subscription")
    );
}

#[test]
fn i1_shells_are_told_how_to_complete() {
    for (shell, sign) in
        [("bash", "complete -F _towline"), ("zsh", "#compdef towline"), ("fish", "complete -c towline")]
    {
        assert!(support::ok(&["completion", shell]).contains(sign), "{shell}");
    }
    support::fails(2, &["completion", "tcsh"]);
}

#[test]
fn s3_service_principals_are_made_rotated_and_deleted_by_owners_alone() {
    let site = site();
    let file = site.path("ci-secret");
    let made =
        site.json(&["sp", "create", "ci", "--role", "Reader", "-g", "web", "--secret-file", &file, "--ttl", "1h"]);
    assert_eq!(made["clientSecret"], Value::Null, "it is in the file alone");
    assert_eq!(support::site::mode(std::path::Path::new(&file)), 0o600);
    let id = made["clientId"].as_str().unwrap().to_owned();
    let twice = site.fails(1, &["sp", "create", "ci"]);
    assert!(twice.contains("ServicePrincipalExists"), "{twice}");
    assert!(site.fails(2, &["sp", "create", "x", "--secret-file", &file]).contains("--secret-file"));
    let other = site.path("other-secret");
    site.fails(1, &["sp", "create", "y", "--role", "Raeder", "--secret-file", &other]);
    assert!(!std::path::Path::new(&other).exists(), "half of what was asked for is nothing");
    assert_eq!(site.ok(&["sp", "list", "--query", "[].displayName", "-o", "tsv"]), "owner\nci");
    let shown = site.ok(&["sp", "show", "ci", "-o", "json"]);
    let secret = std::fs::read_to_string(&file).unwrap().trim().to_owned();
    assert!(!shown.contains(&secret) && !shown.contains("hash") && !shown.contains("salt"), "{shown}");
    let login = ["login", site.text("url"), "--service-principal", "-u", &id, "--name", "ci", "--secret-file"];
    site.ok(&[&login[..], &[&file]].concat());
    assert_eq!(site.ok(&["group", "exists", "-g", "web", "--subscription", site.text("subscription")]), "true");
    // Who does not own the gateway sees and changes none of them.
    for args in
        [&["sp", "list"][..], &["sp", "create", "z"], &["sp", "rotate", "owner"], &["sp", "delete", "owner", "-y"]]
    {
        let refused = site.fails(1, args);
        assert!(
            refused.contains("AuthorizationFailed") && refused.contains("Microsoft.Authorization/servicePrincipals/"),
            "{refused}"
        );
    }
    let owner = format!("{}@{}", site.text("clientId"), site.text("url").trim_start_matches("https://"));
    site.ok(&["account", "set", &owner]);
    let fresh = site.json(&["sp", "rotate", "ci"])["clientSecret"].as_str().unwrap().to_owned();
    assert!(site.fails(1, &[&login[..], &[&file]].concat()).contains("invalid_client"), "the old secret is no good");
    let file = site.file("fresh", &fresh);
    site.ok(&[&login[..], &[&file]].concat());
    site.ok(&["account", "set", &owner]);
    let appended = site.json(&["sp", "rotate", "ci", "--append"]);
    assert_eq!(appended["secrets"].as_array().unwrap().len(), 2);
    let asks = site.fails(2, &["sp", "delete", "ci"]);
    assert!(asks.contains("Delete the service principal ci") && asks.contains("--yes"), "{asks}");
    site.ok(&["sp", "show", "ci"]);
    site.ok(&["sp", "delete", "ci", "--yes"]);
    let gone = site.fails(1, &["group", "list", "--account", "ci", "--subscription", site.text("subscription")]);
    assert!(gone.contains("hint: "), "{gone}");
    assert!(site.fails(1, &["sp", "show", "ci"]).contains("ServicePrincipalNotFound"));
}

#[test]
fn i1_sessions_are_ones_own_or_seen_with_a_right() {
    let site = site();
    assert_eq!(site.json(&["sessions", "list"]), json!([]));
    let none = site.fails(1, &["sessions", "end", "00112233445566778899aabbccddeeff"]);
    assert!(none.contains("SessionNotFound"), "{none}");
    site.fails(1, &["sessions", "end", "../x"]);
    site.ok(&["sessions", "end", "--user", "nobody"]);
    site.fails(2, &["sessions", "end", "x", "--user", "nobody"]);
    site.fails(2, &["sessions", "end"]);
    assert_eq!(site.json(&["sessions", "list", "-n", "one", "-g", "web"]), json!([]));
}

#[test]
fn c8_events_are_listed_and_followed() {
    let site = site();
    let mut running = support::Running::start(site.command(&["events", "--follow", "--after", "0", "-o", "tsv"]));
    let line = running.line();
    assert!(line.contains("io.towline.cluster.") && line.ends_with("/connectedClusters/one"), "{line}");
    running.signal("INT");
    assert_eq!(running.code(), Some(130));
    assert!(site.ok(&["events", "-n", "one", "-g", "web"]).starts_with("ID  TIME"));
}

#[test]
fn r14_enrolment_tokens_are_made_for_a_group_and_what_is_none_is_told() {
    let site = site();
    let made = site.json(&["enrolment-token", "create", "-g", "web", "--ttl", "2h"]);
    let token = made["token"].as_str().unwrap();
    assert!(token.starts_with("towline-enrol.") && made["gateway"] == site.text("url"), "the token is shown once");
    let fails =
        |args: &[&str]| site.fails(2, &[&["connect", "-n", "one", "--server", site.text("url")][..], args].concat());
    assert!(fails(&["--token", "x"]).contains("this is not an enrolment token"));
    let elsewhere = fails(&["--token", token, "-g", "other"]);
    assert!(elsewhere.contains("is for resource group web, not other") && !elsewhere.contains(token), "{elsewhere}");
    assert!(fails(&["--token", token, "--existing"]).contains("cannot be used with"));
    assert!(site.fails(2, &["connect", "-n", "one"]).contains("--resource-group <GROUP>"));
    let missing = site.fails(1, &["enrolment-token", "create", "-g", "none"]);
    assert!(missing.contains("hint: make it: towline group create"), "{missing}");
    let file = site.path("token");
    site.fails(1, &["enrolment-token", "create", "-g", "none", "--secret-file", &file]);
    assert!(!std::path::Path::new(&file).exists(), "no file of a token that was not made");
    let short = site.fails(1, &["enrolment-token", "create", "-g", "web", "--ttl", "5s"]);
    assert!(short.contains("expiresInSeconds must be from 60"), "{short}");
}

#[test]
fn r14_enrolment_tokens_are_listed_without_their_secrets_and_withdrawn() {
    let site = site();
    let make = || site.json(&["enrolment-token", "create", "-g", "web", "-n", "two"]);
    let (one, two) = (make(), make());
    let list = ["enrolment-token", "list", "-g", "web", "-o", "json"];
    let listed = site.ok(&list);
    for made in [&one, &two] {
        let secret = made["token"].as_str().unwrap().rsplit('.').next().unwrap();
        assert!(!listed.contains(secret) && listed.contains(made["id"].as_str().unwrap()), "{listed}");
    }
    let tagged = site.json(&["enrolment-token", "create", "-g", "web", "--tags", "ring=canary", "site=eu"]);
    let tags = site.ok(&["enrolment-token", "list", "-g", "web", "--query", "[].tags.ring", "-o", "tsv"]);
    assert_eq!(tags.trim(), "canary");
    site.ok(&["enrolment-token", "withdraw", "-g", "web", tagged["id"].as_str().unwrap()]);
    let id = one["id"].as_str().unwrap();
    site.ok(&["enrolment-token", "withdraw", "-g", "web", id]);
    let left = site.ok(&["enrolment-token", "list", "-g", "web", "--query", "[].id", "-o", "tsv"]);
    assert_eq!(left, two["id"].as_str().unwrap());
    let gone = site.fails(1, &["enrolment-token", "withdraw", "-g", "web", id]);
    assert!(gone.contains("EnrolmentTokenNotFound") && gone.contains("hint: list the valid ones"), "{gone}");
}
