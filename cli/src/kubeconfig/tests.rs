use super::*;

fn entry() -> Entry {
    Entry {
        cluster: "towline-dev".into(),
        user: "towline-dev-admin".into(),
        context: "towline-dev-admin".into(),
        server: "https://gw.example/0123".into(),
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
        user.keys().map(|k| k.as_str().unwrap()).collect::<Vec<_>>(),
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
    assert!(merged.was_open);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!merge_file(&link, &entry()).await.unwrap().was_open);
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
