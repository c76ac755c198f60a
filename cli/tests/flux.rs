//! Flux configurations as somebody types them (docs/features.md G1, G2, G4, G9, G11), at a gateway whose cluster has no
//! agent.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use catalogue::testing::{chart, metadata};
use serde_json::{Value, json};
use support::site::Site;

const CLUSTERS: &str = "providers/Microsoft.Kubernetes/connectedClusters";
const SHOP: [&str; 4] = ["-g", "edge", "-c", "shop"];
const FLEET: [&str; 6] = ["-g", "edge", "-c", "shop", "-n", "fleet"];
const GIT: [&str; 4] = ["-u", "https://git.test/fleet.git", "--branch", "main"];

/// Makes a catalogue with `microsoft.flux` 1.0.0.
fn make_catalogue(folder: &Path) {
    let towline = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_towline"));
        command.arg("catalogue").args(args).args(["--catalogue", "c"]).current_dir(folder);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    towline(&["init", "--key", "k"]);
    fs::write(folder.join("flux.tgz"), chart(&metadata("microsoft.flux", "1.0.0"), &[])).unwrap();
    let place = ["--train", "Stable", "--release-namespace", "flux-system"];
    towline(&[&["add", "flux.tgz", "--type", "microsoft.flux"], &place[..]].concat());
    towline(&["sign", "--key", "k"]);
}

fn site() -> (tempfile::TempDir, Site) {
    let folder = tempfile::tempdir().unwrap();
    make_catalogue(folder.path());
    let setting = format!("api.catalogue_dir={}", folder.path().join("c").display());
    let site = Site::signed_in(&["--set", &setting]);
    site.ok(&["group", "create", "-g", "edge", "-l", "eastus"]);
    let url = format!("/subscriptions/{{subscription}}/resourceGroups/edge/{CLUSTERS}/shop?api-version=2026-05-01");
    let body = json!({"location": "eastus", "identity": {"type": "SystemAssigned"},
        "properties": {"agentPublicKeyCertificate": "", "distribution": "k3s"}});
    let body = site.file("body.json", &body.to_string());
    site.ok(&["rest", "-m", "put", "-u", &url, "-b", &format!("@{body}")]);
    (folder, site)
}

/// `towline flux <verb>` of the configuration `fleet`.
fn line<'a>(verb: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [&["flux"], verb, &FLEET[..], more].concat()
}

#[test]
fn g1_g2_configuration_is_created_changed_and_deleted_by_name() {
    let (_folder, site) = site();
    let run = |verb: &[&str], more: &[&str]| site.json(&line(verb, more));
    let kustomizations = [
        "-k",
        "name=infra",
        "path=./infra",
        "-k",
        "name=apps",
        "depends_on=[\"infra\"]",
        "prune=true",
        "timeout=1h30m",
    ];
    let place = ["--scope", "namespace", "--namespace", "shop", "--interval", "1m", "--no-wait"];
    // Scripts for az name the type of the cluster.
    let of_az = ["-t", "connectedClusters"];
    let made = run(&["create"], &[&GIT[..], &place, &kustomizations, &of_az].concat());
    let properties = &made["properties"];
    assert_eq!(properties["gitRepository"]["repositoryRef"], json!({"branch": "main"}), "{made}");
    assert_eq!(properties["gitRepository"]["syncIntervalInSeconds"], 60);
    assert_eq!((&properties["scope"], &properties["namespace"]), (&json!("namespace"), &json!("shop")));
    assert_eq!(properties["kustomizations"]["apps"]["dependsOn"], json!(["infra"]));
    assert_eq!(properties["kustomizations"]["apps"]["timeoutInSeconds"], 5400);
    let extensions = site.ok(&[&["extension", "list"], &SHOP[..]].concat());
    assert!(extensions.contains("microsoft.flux"), "{extensions}");

    let table = site.ok(&[&["flux", "list"], &SHOP[..]].concat());
    let titles: Vec<_> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(titles, ["NAME", "NAMESPACE", "COMPLIANCE", "COMMIT", "STATE", "ERROR"]);
    let row: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row, ["fleet", "shop", "Pending", "Creating"]);

    let changed = run(&["update"], &["--tag", "v1", "--suspend", "--no-wait"]);
    assert_eq!(changed["properties"]["gitRepository"]["repositoryRef"], json!({"tag": "v1"}), "{changed}");
    assert_eq!(changed["properties"]["gitRepository"]["syncIntervalInSeconds"], 60);
    assert_eq!(changed["properties"]["suspend"], true);
    let nothing = site.fails(2, &line(&["update"], &[]));
    assert!(nothing.contains("hint: such as --branch main"), "{nothing}");

    let asked = site.fails(2, &line(&["delete"], &["--no-wait"]));
    assert!(asked.contains("what its kustomizations apps made is deleted in the cluster (prune)"), "{asked}");
    site.ok(&line(&["delete"], &["--force", "--yes"]));
    assert_eq!(site.json(&[&["flux", "list"], &SHOP[..]].concat()), json!([]));
    let gone = site.fails(1, &line(&["show"], &[]));
    assert!(gone.contains("hint: see which there are: towline flux list -g edge -c shop"), "{gone}");
    site.ok(&line(&["delete"], &["--yes"]));
}

#[test]
fn g1_kustomizations_are_changed_one_by_one() {
    let (_folder, site) = site();
    let made = site.json(&line(&["create"], &[&GIT[..], &["--no-wait"]].concat()));
    assert!(made["properties"]["kustomizations"]["kustomization-1"].is_object(), "{made}");
    let one = |verb: &str, name: &str, more: &[&str]| {
        site.json(&line(&["kustomization", verb], &[&["-k", name], more].concat()))
    };
    let created = one("create", "web", &["--path", "./web", "--depends-on", "kustomization-1", "--no-wait"]);
    assert_eq!((&created["path"], &created["dependsOn"]), (&json!("./web"), &json!(["kustomization-1"])), "{created}");
    let again = site.fails(1, &line(&["kustomization", "create"], &["-k", "web"]));
    assert!(again.contains("has a kustomization web already"), "{again}");
    let updated = one("update", "web", &["--prune", "--interval", "5m", "--disable-health-check", "--no-wait"]);
    assert_eq!((&updated["prune"], &updated["wait"], &updated["path"]), (&json!(true), &json!(false), &json!("./web")));
    assert_eq!(one("show", "web", &[])["syncIntervalInSeconds"], 300);
    let names = ["--query", "[].name", "-o", "tsv"];
    assert_eq!(site.ok(&line(&["kustomization", "list"], &names)), "kustomization-1\nweb");
    site.ok(&line(&["kustomization", "delete"], &["-k", "web", "--yes", "--no-wait"]));
    let gone = site.fails(1, &line(&["kustomization", "show"], &["-k", "web"]));
    assert!(gone.contains("Kustomization with name 'web' does not exist on configuration 'fleet'."), "{gone}");
}

#[test]
fn g4_kind_of_source_changes_after_a_question() {
    let (_folder, site) = site();
    site.ok(&line(&["create"], &[&GIT[..], &["--no-wait"]].concat()));
    let bucket = ["--kind", "bucket", "-u", "https://s3.test", "--bucket-name", "b", "--no-wait"];
    let asked = site.fails(2, &line(&["update"], &bucket));
    assert!(asked.contains("takes its content from bucket instead of git"), "{asked}");
    let key = site.file("key", "geheim\n");
    let signed = ["--bucket-access-key", "id", "--bucket-secret-key-file", &key, "--yes"];
    let changed = site.json(&line(&["update"], &[&bucket[..], &signed].concat()));
    let properties = &changed["properties"];
    assert_eq!((&properties["sourceKind"], &properties["bucket"]["accessKey"]), (&json!("Bucket"), &json!("id")));
    assert_eq!(properties["bucket"]["insecure"], false);
    assert!(properties["gitRepository"].is_null(), "{changed}");
    let wrong = site.fails(2, &line(&["update"], &["--branch", "main"]));
    assert!(wrong.contains("--branch belongs to --kind git; this is bucket"), "{wrong}");
}

#[test]
fn g1_secret_comes_from_a_file_or_standard_input_and_is_shown_nowhere() {
    let (_folder, site) = site();
    let create =
        line(&["create"], &[&GIT[..], &["--https-user", "reader", "--https-key-file", "-", "--no-wait"]].concat());
    let mut child = site.command(&[&create[..], &["-o", "json"]].concat());
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"geheim-4711\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let shown = site.ok(&line(&["show"], &["-o", "json"]));
    for text in [text, shown] {
        assert!(!text.contains("geheim-4711") && !text.contains(&BASE64.encode("geheim-4711")), "{text}");
        assert!(text.contains("reader"), "{text}");
    }
    let key = site.file("key", "geheim-4711\n");
    let twice = site.fails(2, &line(&["update"], &["--https-key", "geheim-4712", "--https-key-file", &key]));
    assert!(twice.contains("say the same") && !twice.contains("geheim"), "{twice}");
    let two = ["--https-key-file", "-", "--ssh-private-key-file", "-"];
    assert!(site.fails(2, &line(&["update"], &two)).contains("standard input can be read once"));
}

#[test]
fn g1_what_cannot_be_is_refused_before_the_cluster_is_asked() {
    let (_folder, site) = site();
    let fails = |code: i32, more: &[&str]| site.fails(code, &line(&["create"], &[more, &["--no-wait"]].concat()));
    assert!(fails(2, &["--branch", "main"]).contains("--kind git needs --url"));
    assert!(fails(2, &["-u", "https://git.test/a"]).contains("one of --branch, --tag, --semver and --commit"));
    assert!(fails(2, &[&GIT[..], &["--tag", "v1"]].concat()).contains("says which version"));
    assert!(fails(2, &[&GIT[..], &["--bucket-name", "b"]].concat()).contains("belongs to --kind bucket"));
    assert!(fails(2, &[&GIT[..], &["--known-hosts", "?"]].concat()).contains("--known-hosts is not Base64"));
    assert!(fails(2, &[&GIT[..], &["-k", "path=./a"]].concat()).contains("name=NAME is missing"));
    let cycle = ["-k", "name=a", "depends_on=b", "-k", "name=b", "depends_on=a"];
    let refused = fails(1, &[&GIT[..], &cycle].concat());
    assert!(refused.contains("(400 "), "{refused}");
}

#[test]
fn g9_object_that_is_not_there_is_refused_in_the_words_of_az() {
    let (_folder, site) = site();
    site.ok(&line(&["create"], &[&GIT[..], &["--no-wait"]].concat()));
    let object: Value = site.json(&line(&["deployed-object", "list"], &[]));
    assert_eq!(object, json!([]));
    let named = ["--object-name", "web", "--object-namespace", "shop", "--object-kind", "Deployment"];
    let missing = site.fails(1, &line(&["deployed-object", "show"], &named));
    let words = "Error! Deployed object with name 'web', namespace 'shop', and kind 'Deployment' does not exist on configuration 'fleet'.";
    assert!(missing.contains(words), "{missing}");
}

#[test]
fn g10_source_control_configurations_are_listed_shown_and_deleted() {
    let (_folder, site) = site();
    let url = format!(
        "/subscriptions/{{subscription}}/resourceGroups/edge/{CLUSTERS}/shop/providers/Microsoft.KubernetesConfiguration/sourceControlConfigurations/fleet?api-version=2021-03-01"
    );
    let body =
        json!({"properties": {"repositoryUrl": "https://git.test/fleet.git", "operatorParams": "--git-readonly"}});
    let body = site.file("old.json", &body.to_string());
    site.ok(&["rest", "-m", "put", "-u", &url, "-b", &format!("@{body}")]);
    let verb = |verb: &'static str| ["source-control", verb];
    let table = site.ok(&[&["flux"], &verb("list")[..], &SHOP[..]].concat());
    let row: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row, ["fleet", "default", "https://git.test/fleet.git", "Pending", "Accepted"], "{table}");
    let shown = site.json(&line(&verb("show"), &[]));
    assert_eq!(shown["properties"]["operatorParams"], "--git-readonly", "{shown}");
    site.fails(2, &line(&verb("delete"), &["--no-wait"]));
    // Without an agent there is nothing to take down.
    site.ok(&line(&verb("delete"), &["--yes"]));
    assert_eq!(site.json(&[&["flux"], &verb("list")[..], &SHOP[..]].concat()), json!([]));
    let gone = site.fails(1, &line(&verb("show"), &[]));
    assert!(gone.contains("hint: see which there are: towline flux source-control list -g edge -c shop"), "{gone}");
    site.ok(&line(&verb("delete"), &["--yes"]));
}

/// The second `apply` is what waves are for.
#[test]
fn g13_apply_again_keeps_the_bounds_of_a_rollout_and_asks_before_wider_ones() {
    let (_folder, site) = site();
    let file = site.file("fleet.yaml", "namespace: fleet\ngitRepository:\n  url: https://git.test/fleet.git\n  repositoryRef: {branch: main}\nkustomizations:\n  infra: {path: ./infra}\n");
    let apply = |more: &[&'static str]| [&["flux", "apply", "-g", "edge", "-n", "ro", "-f", &file], more].concat();
    let (ring, bounds) = (["--selector", "ring=zz"], ["--percent", "5", "--max-failures", "1%"]);
    let output = site.run(&apply(&[&ring[..], &bounds].concat()));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("warning: there is no cluster with ring=zz now"), "{said}");
    let rollout =
        || site.json(&["flux", "assignment", "show", "-g", "edge", "-n", "ro"])["properties"]["rollout"].clone();
    let first = json!({"maxConcurrentPercent": 5, "maxFailuresPercent": 1, "paused": false});
    assert_eq!(rollout(), first);
    site.ok(&apply(&ring));
    assert_eq!(rollout(), first, "what is not named stays");
    let wide = [&ring[..], &["--percent", "100"]].concat();
    let asked = site.fails(2, &apply(&wide));
    assert!(
        asked.contains("It goes to 5% of the clusters at one time, with a pause when more than 1% failed."),
        "{asked}"
    );
    assert_eq!(rollout(), first);
    site.ok(&["flux", "assignment", "pause", "-g", "edge", "-n", "ro"]);
    let output = site.run(&apply(&[&wide[..], &["--yes"]].concat()));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("it is paused, and goes on with: towline flux assignment resume -g edge -n ro"), "{said}");
    assert_eq!(rollout(), json!({"maxConcurrentPercent": 100, "maxFailuresPercent": 1, "paused": true}));
    let several = site.fails(2, &apply(&["--selector", "ring=zz,env=prod"]));
    assert!(several.contains("--selector ring=zz --selector env=prod"), "{several}");
}

#[test]
fn g3_ssh_key_with_a_passphrase_or_none_at_all_is_refused() {
    let (_folder, site) = site();
    let sealed = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nYQ==\n-----END RSA PRIVATE KEY-----\n";
    for (text, why) in [(sealed, "it has a passphrase"), ("hello", "it is no private key")] {
        let key = site.file("key", text);
        let ssh = ["-u", "git@github.com:team/fleet", "--branch", "main", "--ssh-private-key-file", &key, "--no-wait"];
        let refused = site.fails(1, &line(&["create"], &ssh));
        assert!(refused.contains(why) && refused.contains("sshPrivateKey"), "{refused}");
    }
}
