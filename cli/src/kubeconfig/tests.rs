use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use serde_yaml::Value;

use super::{file::Merged, *};
use crate::{failure::Outcome, yaml::tests::TEXTS};

fn merge(text: &str, entry: &Entry) -> anyhow::Result<String> {
    super::merge(text.as_bytes(), entry, Parts::ALL)
}

async fn merge_file(file: &Path, entry: &Entry) -> Outcome<Merged> {
    merge_files(&[file.to_owned()], entry).await
}

fn entry() -> Entry {
    Entry {
        cluster: "towline-dev".into(),
        user: "towline-dev-admin".into(),
        context: "towline-dev-admin".into(),
        server: "https://gw.example/0123".into(),
        tls_server_name: None,
        ca: Some("PEM".into()),
        proxy_url: None,
        credential: UserEntry::Exec {
            api_version: "client.authentication.k8s.io/v1beta1",
            command: "/usr/bin/towline".into(),
            args: vec!["token".into(), "--exec-credential".into()],
            env: Vec::new(),
        },
    }
}

const FOREIGN: &str = r#"apiVersion: v1
clusters:
- cluster:
    certificate-authority: /a/b
    extension-of-others: {x: [1, two]}
    server: https://other
  name: other
contexts:
- context:
    cluster: other
    namespace: "123"
    user: other
  name: other
current-context: other
kind: Config
preferences: {}
users:
- name: other
  user:
    password: "0123"
    username: yes-man
extensions-of-others:
  deep: true
"#;

#[test]
fn a_new_kubeconfig_is_made() {
    let text = merge("", &entry()).unwrap();
    let value: Value = serde_yaml::from_str(&text).unwrap();
    assert_eq!(value["kind"], "Config");
    assert_eq!(value["current-context"], "towline-dev-admin");
    assert_eq!(value["clusters"][0]["cluster"]["certificate-authority-data"], "UEVN");
    assert!(value["clusters"][0]["cluster"].get("tls-server-name").is_none());
    let named = Entry { tls_server_name: Some("k.example".into()), ..entry() };
    let value: Value = serde_yaml::from_str(&merge(&text, &named).unwrap()).unwrap();
    assert_eq!(value["clusters"][0]["cluster"]["tls-server-name"], "k.example");
    assert_eq!(value["users"][0]["user"]["exec"]["args"][1], "--exec-credential");
    assert_eq!(value["users"][0]["user"]["exec"]["interactiveMode"], "Never");
}

#[test]
fn entries_of_others_stay_as_and_where_they_are() {
    let before: Value = serde_yaml::from_str(FOREIGN).unwrap();
    let merged = merge(FOREIGN, &entry()).unwrap();
    let mut after: Value = serde_yaml::from_str(&merged).unwrap();
    for list in ["clusters", "contexts", "users"] {
        let entries = after[list].as_sequence_mut().unwrap();
        assert_eq!(entries.len(), 2);
        entries.pop();
    }
    after["current-context"] = "other".into();
    assert_eq!(after, before);
    let order = |value: &Value| value.as_mapping().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(order(&after), order(&before));
    assert_eq!(merge(&merged, &entry()).unwrap(), merged, "merging again changes nothing");
}

#[test]
fn entries_of_the_same_name_are_replaced_where_they_stand() {
    let mut mine = entry();
    (mine.cluster, mine.user, mine.context) = ("other".into(), "other".into(), "other".into());
    mine.credential = UserEntry::Token { token: "t".into(), certificate: Some(("certificate".into(), "key".into())) };
    let after: Value = serde_yaml::from_str(&merge(FOREIGN, &mine).unwrap()).unwrap();
    assert_eq!(after["clusters"].as_sequence().unwrap().len(), 1);
    assert_eq!(after["clusters"][0]["cluster"]["server"], "https://gw.example/0123");
    let user = after["users"][0]["user"].as_mapping().unwrap();
    assert_eq!(
        user.keys().map(|key| key.as_str().unwrap()).collect::<Vec<_>>(),
        ["token", "client-certificate-data", "client-key-data"]
    );
}

#[test]
fn what_is_no_kubeconfig_is_left_alone_and_not_quoted() {
    for bad in ["- a", "geheim: [", "clusters: geheim", "kind: Pod\nname: geheim"] {
        let error = format!("{:#}", merge(bad, &entry()).unwrap_err());
        assert!(!error.contains("geheim"), "{error}");
    }
    for empty in ["", "clusters: null\nusers:\ncontexts: []", "# a comment only"] {
        assert!(merge(empty, &entry()).is_ok(), "{empty}");
    }
}

#[tokio::test]
async fn the_file_is_private_and_a_link_stays_one() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("real"), dir.path().join("config"));
    fs::write(&file, FOREIGN).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let merged = merge_file(&link, &entry()).await.unwrap();
    assert_eq!(merged.were_open, [file.as_path()]);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(merge_file(&link, &entry()).await.unwrap().were_open.is_empty());
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "no lock and no half-written file is left: {names:?}");
}

#[tokio::test]
async fn many_at_once_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sub/config");
    let merges = (0..8).map(|n| {
        let mut mine = entry();
        mine.context = format!("context-{n}");
        let file = file.clone();
        async move { merge_file(&file, &mine).await.map(|_| ()).map_err(|failure| format!("{failure:?}")) }
    });
    for result in futures_util::future::join_all(merges).await {
        result.unwrap();
    }
    let after: Value = serde_yaml::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(after["contexts"].as_sequence().unwrap().len(), 8);
}

/// What somebody said of an entry besides, by hand or by `kubectl config`, is not ours to take.
#[test]
fn entry_written_again_keeps_what_was_added_to_it() {
    let added = merge("", &entry()).unwrap();
    let added = added.replace(
        "    server:",
        "    proxy-url: socks5://p:1080\n    tls-server-name: gw\n    x: {y: [z]}\n    server:",
    );
    let added = added.replace("    cluster: towline-dev\n", "    cluster: towline-dev\n    namespace: shop\n");
    let added =
        added.replace("      env: null", "      env: [{name: HTTPS_PROXY, value: p}]\n      installHint: ask ann");
    let added = added.replace("    exec:", "    as: bob\n    exec:");
    let mut again = entry();
    again.ca = Some("other".into());
    if let UserEntry::Exec { env, .. } = &mut again.credential {
        env.push((CONFIG_DIR.into(), "/c".into()));
    }
    let after: Value = serde_yaml::from_str(&merge(&added, &again).unwrap()).unwrap();
    let (cluster, context) = (&after["clusters"][0]["cluster"], &after["contexts"][0]["context"]);
    assert_eq!(cluster["proxy-url"], "socks5://p:1080");
    assert_eq!(cluster["tls-server-name"], "gw");
    assert_eq!(cluster["x"]["y"][0], "z");
    assert_eq!(cluster["certificate-authority-data"], "b3RoZXI=");
    assert_eq!(context["namespace"], "shop");
    let user = &after["users"][0]["user"];
    assert_eq!((&user["as"], &user["exec"]["installHint"]), (&"bob".into(), &"ask ann".into()));
    assert_eq!(user["exec"]["env"].as_sequence().unwrap().len(), 2, "{user:?}");
    // Of another address the name of the server is not.
    again.server = "https://other".into();
    again.proxy_url = Some("http://q:1".into());
    let after: Value = serde_yaml::from_str(&merge(&added, &again).unwrap()).unwrap();
    let cluster = &after["clusters"][0]["cluster"];
    assert!(cluster.get("tls-server-name").is_none() && cluster["proxy-url"] == "http://q:1", "{cluster:?}");
}

/// A credential that is left beside a new one would be used instead of it.
#[test]
fn entry_written_again_keeps_no_other_credential() {
    let mut mine = entry();
    mine.credential = UserEntry::Token { token: "t".into(), certificate: Some(("c".into(), "k".into())) };
    let tokens = merge("", &mine).unwrap();
    let after: Value = serde_yaml::from_str(&merge(&tokens, &entry()).unwrap()).unwrap();
    let user = after["users"][0]["user"].as_mapping().unwrap();
    assert_eq!(user.keys().map(|key| key.as_str().unwrap()).collect::<Vec<_>>(), ["exec"]);
    mine.ca = None;
    let after: Value = serde_yaml::from_str(&merge(&tokens, &mine).unwrap()).unwrap();
    assert!(after["clusters"][0]["cluster"].get("certificate-authority-data").is_none());
}

#[test]
fn kubeconfig_that_kubectl_takes_is_merged_into() {
    let wide =
        |text: &str| [0xfeff].into_iter().chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    for (case, text) in [
        ("a byte order mark", format!("\u{feff}{FOREIGN}").into_bytes()),
        ("UTF-16, as some shells write it", wide(FOREIGN)),
        ("a key twice: the last one counts", format!("current-context: x\n{FOREIGN}").into_bytes()),
        ("several documents: the first one counts", format!("---\n{FOREIGN}---\nkind: Pod\n---\n{{").into_bytes()),
        (
            "anchors",
            FOREIGN
                .replace("name: other\ncontexts", "name: &o other\ncontexts")
                .replace("user: other", "user: *o")
                .into_bytes(),
        ),
    ] {
        let merged = super::merge(&text, &entry(), Parts::ALL).unwrap_or_else(|error| panic!("{case}: {error:#}"));
        let after: Value = serde_yaml::from_str(&merged).unwrap();
        assert_eq!(after["contexts"][0]["context"]["user"], "other", "{case}");
        assert_eq!(after["users"][0]["user"]["password"], "0123", "{case}");
        assert_eq!(after["clusters"].as_sequence().unwrap().len(), 2, "{case}");
        assert_eq!(merged.matches("kind:").count(), 1, "{case}");
    }
}

/// Readers differ in what a text without quotes is: it stays without them, and one with quotes stays a text.
#[test]
fn entries_of_others_mean_the_same_to_every_reader() {
    let theirs = "clusters:\n- name: other\n  cluster: {insecure-skip-tls-verify: yes, x: 'yes', y: 0o7, z: 1:30}\n";
    let merged = merge(theirs, &entry()).unwrap();
    for kept in ["insecure-skip-tls-verify: yes\n", "x: \"yes\"\n", "y: 0o7\n", "z: 1:30\n"] {
        assert!(merged.contains(kept), "{kept}: {merged}");
    }
}

#[tokio::test]
async fn link_to_a_file_that_is_not_there_stays_one() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("sub/real"), dir.path().join("config"));
    std::os::unix::fs::symlink("sub/real", &link).unwrap();
    let merged = merge_file(&link, &entry()).await.unwrap();
    assert_eq!(merged.path, file);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && file.is_file());
    let circle = dir.path().join("circle");
    std::os::unix::fs::symlink("circle", &circle).unwrap();
    assert!(merge_file(&circle, &entry()).await.is_err());
}

/// kubectl locks the name that it was given, also that of a link.
#[tokio::test(start_paused = true)]
async fn file_that_kubectl_has_locked_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("real"), dir.path().join("config"));
    fs::write(&file, FOREIGN).unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for name in ["config.lock", "real.lock"] {
        fs::write(dir.path().join(name), "").unwrap();
        assert!(merge_file(&link, &entry()).await.is_err(), "{name}");
        fs::remove_file(dir.path().join(name)).unwrap();
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), FOREIGN);
    merge_file(&link, &entry()).await.unwrap();
}

/// As `kubectl config` has it: an entry is changed where it is, a new one goes into the first file that exists.
#[tokio::test]
async fn several_files_have_each_entry_changed_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let files = ["none", "first", "second", "last"].map(|name| dir.path().join(name));
    let [none, first, second, last] = &files;
    fs::write(first, "kind: Config\n").unwrap();
    fs::write(second, FOREIGN).unwrap();
    let mut mine = entry();
    (mine.cluster, mine.user) = ("other".into(), "other".into());
    merge_files(&files, &mine).await.unwrap();
    assert!(!none.exists() && !last.exists());
    let read = |file: &Path| serde_yaml::from_str::<Value>(&fs::read_to_string(file).unwrap()).unwrap();
    let (one, two) = (read(first), read(second));
    assert!(one.get("clusters").is_none() && one["current-context"] == "towline-dev-admin", "{one:?}");
    assert_eq!(one["contexts"][0]["context"]["cluster"], "other");
    assert_eq!(two["clusters"][0]["cluster"]["server"], "https://gw.example/0123");
    assert_eq!((&two["current-context"], two["users"].as_sequence().unwrap().len()), (&"other".into(), 1));
    merge_files(&[none.clone(), last.clone()], &mine).await.unwrap();
    assert!(!none.exists() && last.exists(), "of those that are not there the last one is made");
}

#[tokio::test]
async fn device_is_not_replaced_by_a_kubeconfig() {
    let failure = merge_file(Path::new("/dev/null"), &entry()).await.err().unwrap();
    assert!(format!("{:#}", failure.into_error()).contains("not a file"));
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
}

/// kubectl, if it was built for the tests' cluster.
fn kubectl() -> Option<Command> {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?.join("tests/cluster/cluster");
    let program = Command::new(tool).args(["program", "kubectl"]).output().ok()?;
    let program = String::from_utf8(program.stdout).ok()?.trim().to_owned();
    Path::new(&program).is_file().then(|| Command::new(program))
}

/// Its reader is Go's, of YAML 1.1 with words and numbers of its own.
#[test]
fn kubeconfig_with_any_names_is_read_by_kubectl() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config");
    let mut text = String::new();
    for name in TEXTS.iter().filter(|name| !name.is_empty()) {
        let mut mine = entry();
        (mine.cluster, mine.user, mine.context) = ((*name).into(), (*name).into(), (*name).into());
        mine.credential = UserEntry::Token { token: (*name).into(), certificate: None };
        text = merge(&text, &mine).unwrap();
    }
    fs::write(&file, &text).unwrap();
    let Some(mut kubectl) = kubectl() else { return };
    let out = kubectl.args(["config", "view", "--raw", "-o", "json", "--kubeconfig"]).arg(&file).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let read: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let mut names: Vec<&str> = TEXTS.iter().copied().filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    for (list, key, value) in
        [("clusters", "name", "name"), ("contexts", "context", "user"), ("users", "user", "token")]
    {
        let of = |entry: &serde_json::Value| match key {
            "name" => entry[key].as_str().unwrap().to_owned(),
            key => entry[key][value].as_str().unwrap().to_owned(),
        };
        let mut found: Vec<String> = read[list].as_array().unwrap().iter().map(of).collect();
        found.sort_unstable();
        assert_eq!(found, names, "{list}");
    }
}
