//! `towline dev` as a script uses it: one JSON line, tokens, edits while it runs, the same state at the next start.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, SystemTime},
};

use auth::token::{Direct, Identity, Issuer, RawIssuer, TokenError, Verifier};
use serde_json::Value;
use support::{Running, fails, in_state, ok, text, towline};

struct Dev {
    running: Running,
    info: Value,
    dir: PathBuf,
}

fn start(dir: &Path, more: &[&str]) -> Dev {
    let state = text(dir);
    let args = ["dev", "--state", &state, "--json", "--admin-listen", "127.0.0.1:0"];
    let mut running = Running::start(towline(&[&args[..], more].concat()));
    let info: Value = serde_json::from_str(&running.line()).unwrap();
    Dev { running, info, dir: dir.to_owned() }
}

impl Dev {
    fn text(&self, key: &str) -> String {
        self.info[key].as_str().unwrap().to_owned()
    }

    fn state(&self) -> String {
        text(&self.dir)
    }

    fn token(&self, user: &str, cluster: &str) -> String {
        ok(&["token", "--state", &self.state(), "--user", user, "--cluster", cluster]).trim().to_owned()
    }

    fn edit(&self, args: &[&str]) {
        ok(&[&["dev", args[0], "--state", &self.state()], &args[1..]].concat());
    }

    /// A verifier as an agent has it: only the pinned keys and what they vouch for.
    fn verifier(&self, cluster: usize) -> Verifier {
        let config = PathBuf::from(self.info["clusters"][cluster]["agent_config"].as_str().unwrap());
        let table: toml::Table = std::fs::read_to_string(&config).unwrap().parse().unwrap();
        let mut issuer: RawIssuer = table["issuers"][0].clone().try_into().unwrap();
        issuer.resolve_paths(config.parent().unwrap());
        Verifier::new(Issuer::all(vec![issuer]).unwrap(), Arc::new(Direct)).unwrap()
    }

    fn audience(&self, cluster: usize) -> String {
        let id = self.info["clusters"][cluster]["id"].as_str().unwrap();
        format!("towline:cluster:{}", id.to_lowercase())
    }

    async fn verify(&self, verifier: &Verifier, token: &str) -> Result<Arc<Identity>, TokenError> {
        verifier.verify(token, &self.audience(0), SystemTime::now()).await
    }
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn the_json_line_tells_a_script_all_and_secrets_are_private() {
    let dir = tempfile::tempdir().unwrap();
    let mut dev = start(dir.path(), &["--listen", "127.0.0.1:0", "--cluster", "one", "--cluster", "Two"]);
    for key in ["url", "ca", "issuer", "admin", "state"] {
        assert!(!dev.text(key).is_empty(), "{key}");
    }
    assert_eq!(dev.info["clusters"][1]["name"], "two");
    let key = dev.info["clusters"][0]["key"].as_str().unwrap();
    assert_eq!(dev.info["clusters"][0]["url"], format!("{}/{key}", dev.text("url")));
    let names: Vec<_> =
        dev.info["users"].as_array().unwrap().iter().map(|user| user["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["admin", "viewer", "stranger"]);
    for secret in [
        "ca/ca.key",
        "tls/tls.key",
        "issuer/keys.json",
        "issuer/users.json",
        "users/admin.password",
        "agents/one/tls.key",
        "agents/one/values.yaml",
    ] {
        assert_eq!(mode(&in_state(dir.path(), secret)), 0o600, "{secret}");
    }
    for file in ["agents/two/agent.toml", "agents/two/tls.crt", "agents/two/ca.crt", "agents/two/issuer-keys.json"] {
        assert!(in_state(dir.path(), file).exists(), "{file}");
    }
    assert!(fails(1, &["dev", "--state", &dev.state(), "--json"]).contains("another towline dev"));
    dev.running.signal("TERM");
    assert_eq!(dev.running.code(), Some(0), "SIGTERM is the orderly end");
}

#[test]
fn service_principals_have_a_secret_file_and_an_owner_is_there_from_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut dev = start(dir.path(), &["--listen", "127.0.0.1:0"]);
    let read = |name: &str| std::fs::read_to_string(in_state(dir.path(), name)).unwrap();
    assert_eq!(read("principals/owner.secret"), dev.text("clientSecret"));
    assert_eq!(mode(&in_state(dir.path(), "principals/owner.secret")), 0o600);
    assert_eq!(mode(&in_state(dir.path(), "issuer/principals.json")), 0o600);
    assert!(dev.info["clusters"][0]["id"].as_str().unwrap().contains(&dev.text("subscription")));
    dev.edit(&["add-principal", "ci", "--grant", "dev"]);
    let first = read("principals/ci.secret");
    assert!(fails(2, &["dev", "add-principal", "--state", &dev.state(), "ci"]).contains("already"));
    let error = fails(2, &["dev", "rotate-principal", "--state", &dev.state(), "cd"]);
    assert!(error.contains("no service principal") && error.contains("add-principal"), "{error}");
    dev.edit(&["rotate-principal", "ci", "--append"]);
    let file = read("issuer/principals.json");
    assert_ne!(read("principals/ci.secret"), first);
    assert!(!file.contains(&first) && !file.contains(&dev.text("clientSecret")), "only hashes are kept");
    dev.running.signal("KILL");
    dev.running.code();
    let kept = dev.info;
    let dev = start(dir.path(), &[]);
    for key in ["tenant", "subscription", "clientId", "clientSecret"] {
        assert_eq!(dev.info[key], kept[key], "{key}");
    }
    let names: Vec<_> = dev.info["principals"].as_array().unwrap().iter().map(|known| known["name"].clone()).collect();
    assert_eq!(names, ["owner", "ci"]);
    dev.edit(&["remove-principal", "ci"]);
    assert!(!in_state(dir.path(), "principals/ci.secret").exists() && !read("gateway.toml").contains(&first));
    dev.edit(&["remove-principal", "owner"]);
    assert!(read("gateway.toml").contains("owners = []"), "nobody's id is no owner's");
    drop(dev);
    let dev = start(dir.path(), &[]);
    assert_ne!(dev.info["clientId"], kept["clientId"], "a removed one does not come back");
    assert_ne!(dev.info["principals"][0]["objectId"], kept["principals"][0]["objectId"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_what_an_agent_takes_and_only_for_their_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let dev = start(dir.path(), &["--listen", "127.0.0.1:0", "--cluster", "one", "--cluster", "two"]);
    let verifier = dev.verifier(0);
    let identity = dev.verify(&verifier, &dev.token("admin", "one")).await.unwrap();
    assert_eq!((identity.username.as_str(), identity.groups.as_slice()), ("admin", &["admins".to_owned()][..]));
    assert!(dev.verify(&verifier, &dev.token("admin", "two")).await.is_err(), "another cluster's token is nothing");
    dev.edit(&["add-user", "bob", "--group", "g1", "--group", "g2", "--grant", "one"]);
    let identity = dev.verify(&verifier, &dev.token("bob", "one")).await.unwrap();
    assert_eq!(identity.groups, ["g1", "g2"]);
    dev.edit(&["disable-user", "bob"]);
    let error = fails(1, &["token", "--state", &dev.state(), "--user", "bob", "--cluster", "one"]);
    assert!(error.contains("invalid_grant"), "{error}");
    dev.edit(&["enable-user", "bob"]);
    dev.token("bob", "one");
    let wrong = text(&dir.path().join("wrong"));
    std::fs::write(&wrong, "geheim").unwrap();
    let error =
        fails(1, &["token", "--state", &dev.state(), "--user", "bob", "--cluster", "one", "--password-file", &wrong]);
    assert!(error.contains("invalid_grant") && !error.contains("geheim"), "{error}");
    let error = fails(2, &["token", "--state", &dev.state(), "--user", "bob", "--cluster", "three"]);
    assert!(error.contains("one, two") && error.contains("add-cluster"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rotated_keys_are_taken_by_who_pinned_the_first_and_foreign_ones_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let dev = start(dir.path(), &["--listen", "127.0.0.1:0"]);
    let (awake, asleep) = (dev.verifier(0), dev.verifier(0));
    let old = dev.token("admin", "dev");
    dev.verify(&awake, &old).await.unwrap();
    for _ in 0..3 {
        dev.edit(&["rotate-keys"]);
    }
    let new = dev.token("admin", "dev");
    // One that slept through all rotations finds the whole chain.
    dev.verify(&asleep, &new).await.unwrap();
    dev.verify(&asleep, &old).await.unwrap();
    let foreign = tempfile::tempdir().unwrap();
    gateway::issuer::Keys::load_or_create(&foreign.path().join("keys.json")).unwrap();
    std::fs::copy(foreign.path().join("keys.json"), dir.path().join("issuer/keys.json")).unwrap();
    let forged = dev.token("admin", "dev");
    let fresh = dev.verifier(0);
    dev.verify(&fresh, &forged).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_key_is_refused_by_who_pinned_it_from_its_successors_first_token_on() {
    use gateway::issuer::Keys;
    let dir = tempfile::tempdir().unwrap();
    let dev = start(dir.path(), &["--listen", "127.0.0.1:0"]);
    let verifier = dev.verifier(0);
    let old = dev.token("admin", "dev");
    dev.verify(&verifier, &old).await.unwrap();
    let keys = dir.path().join("issuer/keys.json");
    let first = Keys::load(&keys).unwrap().newest().to_owned();
    Keys::revoke(&keys, &first).unwrap();
    dev.verify(&verifier, &dev.token("admin", "dev")).await.unwrap();
    assert_eq!(dev.verify(&verifier, &old).await.unwrap_err(), TokenError::UnknownKey);
    // Started again, with what was kept; the key set is not even read.
    let again = dev.verifier(0);
    again.learn(&verifier.learned().unwrap()).unwrap();
    assert!(dev.verify(&again, &old).await.is_err());
    // A cluster that is made now pins the newest key alone.
    dev.edit(&["add-cluster", "later"]);
    let text = std::fs::read_to_string(in_state(dir.path(), "agents/later/issuer-keys.json")).unwrap();
    let pinned: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(pinned["keys"].as_array().unwrap().len(), 1);
    assert_ne!(pinned["keys"][0]["kid"], first.as_str());
}

#[test]
fn a_restart_keeps_addresses_authority_keys_and_users() {
    let dir = tempfile::tempdir().unwrap();
    let mut dev = start(dir.path(), &["--listen", "127.0.0.1:0", "--set", "sessions.reauthorise_every=1s"]);
    dev.edit(&["add-user", "bob"]);
    dev.edit(&["add-cluster", "other"]);
    let before = dev.info.clone();
    let kept = ["ca/ca.crt", "issuer/keys.json", "agents/dev/tls.crt", "users/admin.password"];
    let read = |name: &str| std::fs::read(in_state(dir.path(), name)).unwrap();
    let contents: Vec<_> = kept.iter().map(|name| read(name)).collect();
    let agent = in_state(dir.path(), "agents/dev/agent.toml");
    let edited = std::fs::read_to_string(&agent).unwrap() + "\n[sessions]\noutlive_token = \"0s\"\n";
    std::fs::write(&agent, &edited).unwrap();
    dev.running.signal("KILL");
    dev.running.code();
    let dev = start(dir.path(), &[]);
    for key in ["url", "admin", "issuer", "ca"] {
        assert_eq!(dev.info[key], before[key]);
    }
    assert_eq!(contents, kept.iter().map(|name| read(name)).collect::<Vec<_>>());
    assert_eq!(std::fs::read_to_string(&agent).unwrap(), edited, "what was added by hand stays");
    assert!(std::fs::read_to_string(in_state(dir.path(), "gateway.toml")).unwrap().contains("reauthorise_every"));
    assert_eq!(dev.info["clusters"][1]["name"], "other");
    dev.token("bob", "other");
}

#[test]
fn a_mistyped_setting_is_refused_and_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let state = text(dir.path());
    // The second one contradicts what the state says itself, so that there is no file to find the fault in.
    for setting in ["sessions.reauthorize_every=1s", "listen.public.port=1"] {
        let refused = fails(2, &["dev", "--state", &state, "--listen", "127.0.0.1:0", "--set", setting]);
        assert!(refused.contains(setting.split('=').next().unwrap()), "{refused}");
    }
    let mut dev = start(dir.path(), &["--listen", "127.0.0.1:0", "--set", "sessions.reauthorise_every=1s"]);
    dev.running.signal("KILL");
    dev.running.code();
    fails(2, &["dev", "--state", &state, "--set", "sessions.reauthorise_every=often"]);
    start(dir.path(), &[]);
    assert!(
        std::fs::read_to_string(in_state(dir.path(), "gateway.toml")).unwrap().contains("reauthorise_every = \"1s\"")
    );
}

#[test]
fn edits_reach_the_running_gateway() {
    let dir = tempfile::tempdir().unwrap();
    let dev = start(dir.path(), &["--listen", "127.0.0.1:0"]);
    let who = |user: &str| {
        let output = support::run(&["whoami", "--state", &dev.state(), "--user", user, "--json"]);
        serde_json::from_slice::<Value>(&output.stdout).map(|answer| answer["gateway"].clone()).unwrap_or_default()
    };
    assert_eq!(who("admin")["allowed"], true);
    assert_eq!(who("stranger")["accepted"], true, "the token is good");
    assert_eq!(who("stranger")["allowed"], false, "its user has no grant");
    dev.edit(&["grant", "--cluster", "dev", "--user", "stranger"]);
    dev.edit(&["revoke", "--cluster", "dev", "--user", "viewer"]);
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while who("stranger")["allowed"] != true || who("viewer")["allowed"] != false {
        assert!(std::time::Instant::now() < deadline, "the gateway did not take the change");
    }
}

#[test]
fn kubectl_is_given_a_credential_and_the_token_is_kept_between_calls() {
    let dir = tempfile::tempdir().unwrap();
    let dev = start(dir.path(), &["--listen", "127.0.0.1:0"]);
    let file = text(&dir.path().join("kubeconfig"));
    ok(&["kubeconfig", "--state", &dev.state(), "--user", "admin", "--file", &file]);
    let kubeconfig: serde_yaml::Value = serde_yaml::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let exec = &kubeconfig["users"][0]["user"]["exec"];
    let call = |version: &str| {
        let mut command = Command::new(exec["command"].as_str().unwrap());
        command.args(exec["args"].as_sequence().unwrap().iter().map(|arg| arg.as_str().unwrap())).env_clear();
        let info = serde_json::json!({"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": false}});
        command.env("KUBERNETES_EXEC_INFO", info.to_string()).output().unwrap()
    };
    let answer = |version| serde_json::from_slice::<Value>(&call(version).stdout).unwrap();
    let first = answer("client.authentication.k8s.io/v1");
    assert_eq!(first["apiVersion"], "client.authentication.k8s.io/v1");
    assert!(first["status"]["expirationTimestamp"].is_string());
    let second = answer("client.authentication.k8s.io/v1beta1");
    assert_eq!(second["apiVersion"], "client.authentication.k8s.io/v1beta1");
    assert_eq!(first["status"]["token"], second["status"]["token"], "no second sign-in");
    assert!(!call("client.authentication.k8s.io/v9").status.success());
    dev.edit(&["add-user", "admin", "--group", "others"]);
    let third = answer("client.authentication.k8s.io/v1");
    assert_ne!(third["status"]["token"], first["status"]["token"], "a new password is a new sign-in");
}

#[test]
fn a_service_account_gets_a_certificate_beside_its_token() {
    let dir = tempfile::tempdir().unwrap();
    let dev = start(dir.path(), &["--listen", "127.0.0.1:0"]);
    let token = text(&dir.path().join("sa"));
    std::fs::write(&token, "opaque-token\n").unwrap();
    let out = ok(&["kubeconfig", "--state", &dev.state(), "--service-account-token", &token, "-f", "-"]);
    let kubeconfig: serde_yaml::Value = serde_yaml::from_str(&out).unwrap();
    let user = &kubeconfig["users"][0]["user"];
    assert_eq!(user["token"], "opaque-token");
    let pem = |key: &str| {
        let data = user[key].as_str().unwrap();
        base64::Engine::decode(&base64::engine::general_purpose::STANDARD, data).unwrap()
    };
    let pair = certs::Credentials::from_pem(&pem("client-certificate-data"), &pem("client-key-data")).unwrap();
    let roots = certs::Roots::load(&in_state(dir.path(), "ca/ca.crt")).unwrap();
    let peer = certs::PeerIdentity::from_der(pair.chain(), &roots, SystemTime::now()).unwrap();
    assert!(format!("{peer:?}").contains("Access"), "{peer:?}");
    assert!(pair.not_after() < SystemTime::now() + Duration::from_secs(13 * 3600));
}

#[test]
fn what_is_typed_wrongly_is_refused_with_what_is_meant_and_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let state = text(&dir.path().join("state"));
    let refused = |more: &[&str], said: &[&str]| {
        let args = ["dev", "--state", &state, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--json"];
        let args: Vec<&str> =
            if more[0] == "--listen" { [&["dev", "--state", &state], more].concat() } else { [&args, more].concat() };
        let error = fails(2, &args);
        for text in said {
            assert!(error.contains(text), "{more:?}: {text:?} in {error}");
        }
    };
    refused(&["--listen", "8443"], &["127.0.0.1:8443 for this machine alone"]);
    refused(&["--agent-set", "gateway.carier=h2"], &["agent.toml", "gateway.carier: is not known", "carrier"]);
    refused(&["--agent-set", "gateway.carrier=pigeon"], &["gateway.carrier: is \"pigeon\": expected auto, quic, h2"]);
    refused(&["--agent-set", "sessions.outlive_token=8"], &["sessions.outlive_token: is 8, must be a duration"]);
    refused(
        &["--set", "limits.idle_timeout=0"],
        &["limits.idle_timeout: is 0, must be a duration", "from 100ms to 1h"],
    );
    refused(&["--kubeconfig", "/nonexistent/kubeconfig"], &["/nonexistent/kubeconfig", "hint: "]);
    refused(&["--token-ttl", "0"], &["more than 0"]);
    let settings = ["--agent-set", "gateway.carrier=h2", "--agent-set", "limits.drain_grace=5s"];
    let mut dev = start(&dir.path().join("state"), &[&["--listen", "127.0.0.1:0"], &settings[..]].concat());
    let values = std::fs::read_to_string(in_state(&dev.dir, "agents/dev/values.yaml")).unwrap();
    let unquoted = values.replace('"', "");
    assert!(
        unquoted.contains("carrier: h2") && unquoted.contains("drainGrace: 5s"),
        "helm gets other settings: {values}"
    );
    let config = std::fs::read_to_string(in_state(&dev.dir, "agents/dev/agent.toml")).unwrap();
    assert!(!config.contains("carier") && !config.contains("pigeon"), "{config}");
    dev.running.signal("TERM");
    assert_eq!(dev.running.code(), Some(0));
}
