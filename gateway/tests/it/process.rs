//! The program: exit codes and what it says.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use crate::world::{World, config};

fn check(file: &std::path::Path) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_towline-gateway"))
        .args(["check-config", "--config"])
        .arg(file)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn check_config_reports_all_faults_and_exits_with_2() {
    let world = World::new().await;
    let file = world.dir.path().join("gateway.toml");
    let (code, text) = check(&file);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("no faults"), "{text}");
    let bad = config("[limits]\nnonsense = 1").replace("tls.key", "missing.key").replace("cluster = ", "clutser = ");
    std::fs::write(&file, bad).unwrap();
    let (code, text) = check(&file);
    assert_eq!(code, 2, "{text}");
    for part in ["gateway.toml", "limits.nonsense", "grants[0].cluster", "grants[0].clutser", "known here"] {
        assert!(text.contains(part), "{part} not in {text}");
    }
    std::fs::write(&file, config("").replace("tls.key", "missing.key")).unwrap();
    let (code, text) = check(&file);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("tls.key_file") && text.contains("missing.key"), "{text}");
    std::fs::write(&file, config("").replace("url = \"https://issuer.test\"", "url = \"http://issuer.test\"")).unwrap();
    let (code, text) = check(&file);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("issuers"), "{text}");
}

/// Local users of a gateway that was set up by `init`, as its operator makes them.
#[test]
fn s1_local_users_are_added_disabled_and_removed_by_the_operator() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("gateway");
    let file = folder.join("gateway.toml");
    let gateway = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_towline-gateway"));
        let output = command.args(args).output().unwrap();
        let code = output.status.code().unwrap();
        (code, serde_json::from_slice(&output.stdout).unwrap_or(serde_json::Value::Null), output.stderr)
    };
    let made = gateway(&["init", "--url", "https://gateway.test", "--directory", folder.to_str().unwrap()]);
    assert_eq!(made.0, 0, "{}", String::from_utf8_lossy(&made.2));
    let user = |args: &[&str]| gateway(&[&["user", "--config", file.to_str().unwrap()], args].concat());

    let (code, ann, _) = user(&["add", "ann", "--group", "ops"]);
    assert_eq!((code, &ann["groups"], &ann["disabled"]), (0, &serde_json::json!(["ops"]), &false.into()));
    assert!(ann["password"].as_str().is_some_and(|password| password.len() > 20), "made, and told once");
    let given = dir.path().join("password");
    std::fs::write(&given, "a password of their own\n").unwrap();
    let (code, again, _) = user(&["add", "ann", "--password-file", given.to_str().unwrap()]);
    assert_eq!((code, &again["objectId"], again.get("password")), (0, &ann["objectId"], None), "the same user");
    assert_eq!(user(&["disable", "ann"]).1["disabled"], true);
    assert_eq!(user(&["list"]).1[0]["disabled"], true);
    assert_eq!(user(&["enable", "ann"]).1["disabled"], false);
    assert_eq!(user(&["remove", "ann"]).0, 0);
    assert_eq!(user(&["list"]).1, serde_json::json!([]));
    let (code, _, told) = user(&["remove", "ann"]);
    assert!(code == 1 && String::from_utf8_lossy(&told).contains("no user \"ann\""));
    assert_ne!(user(&["add", "ann"]).1["objectId"], ann["objectId"], "somebody else");
    let (code, _, told) = user(&["add", "a:b"]);
    assert!(code == 1 && String::from_utf8_lossy(&told).contains("not a name of a user"));
}

/// The signing keys of a gateway that was set up by `init`, as its operator replaces and revokes them.
#[test]
fn issuer_keys_are_listed_replaced_and_revoked_by_the_operator() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("gateway");
    let file = folder.join("gateway.toml");
    let gateway = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_towline-gateway")).args(args).output().unwrap();
        let told = serde_json::from_slice(&output.stdout).unwrap_or(serde_json::Value::Null);
        (output.status.code().unwrap(), told, String::from_utf8(output.stderr).unwrap())
    };
    let issuer = |args: &[&str]| gateway(&[&["issuer", "--config", file.to_str().unwrap()], args].concat());
    let made = gateway(&["init", "--url", "https://gateway.test", "--directory", folder.to_str().unwrap()]);
    assert_eq!(made.0, 0, "{}", made.2);
    let states = |told: &serde_json::Value| {
        let keys = told["keys"].as_array().unwrap().iter();
        keys.map(|key| key["state"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = issuer(&["keys"]).1;
    assert_eq!(states(&first), ["signs"]);
    let second = issuer(&["rotate-key"]).1;
    assert_eq!(states(&second), ["signs", "replaced"]);
    assert!(second["keys"][0].get("verifiesUntil").is_none() && second["keys"][1]["verifiesUntil"].is_string());
    let newest = second["keys"][0]["kid"].as_str().unwrap();
    let (code, third, _) = issuer(&["revoke-key", newest]);
    assert_eq!((code, states(&third)), (0, ["signs", "revoked", "replaced"].map(str::to_owned).to_vec()));
    assert_eq!(issuer(&["keys"]).1, third);
    // An id may begin with a hyphen.
    let (code, _, told) = issuer(&["revoke-key", "-nothing"]);
    assert!(code == 1 && told.contains("no key \"-nothing\"") && told.contains(newest), "{told}");
}

/// A shell's usual 1024 let one address keep everybody else out.
#[tokio::test]
async fn as_many_files_are_opened_as_the_system_allows() {
    let world = World::new().await;
    // As a shell or systemd would start it; `exec` keeps the process.
    let mut gateway = Command::new("sh")
        .args(["-c", "ulimit -S -n 256; exec \"$0\" --config \"$1\"", env!("CARGO_BIN_EXE_towline-gateway")])
        .arg(world.dir.path().join("gateway.toml"))
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(gateway.stderr.take().unwrap()).lines();
    let serves = lines.any(|line| line.is_ok_and(|line| line.contains("gateway serves")));
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", gateway.id())).unwrap();
    gateway.kill().unwrap();
    gateway.wait().unwrap();
    assert!(serves);
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let numbers: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(numbers[0], numbers[1], "soft and hard limit");
    assert_ne!(numbers[0], "256");
}

/// Paths were taken as the configuration's folder has them, not as they were given.
#[test]
fn init_with_relative_paths_writes_a_configuration_without_faults() {
    let dir = tempfile::tempdir().unwrap();
    let authority = certs::Authority::create("public", certs::Validity::days(9)).unwrap();
    std::fs::create_dir(dir.path().join("own")).unwrap();
    let pair = |name: &str| {
        let issued = authority.issue_server(&[name], certs::Validity::days(9)).unwrap();
        issued.save(&dir.path().join("own/tls.crt"), &dir.path().join("own/tls.key")).unwrap();
    };
    let gateway = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_towline-gateway"));
        let output = command.args(args).current_dir(dir.path()).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    };
    let init = ["init", "--url", "https://gateway.test", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let init =
        [&init[..], &["--certificate", "own/tls.crt", "--key", "own/tls.key", "--directory", "made/here"]].concat();
    pair("other.test");
    let (code, text) = gateway(&init);
    assert!(code == 2 && text.contains("other.test"), "{text}");
    assert!(!dir.path().join("made").exists(), "nothing is made");
    pair("gateway.test");
    let (code, text) = gateway(&init);
    assert_eq!(code, 0, "{text}");
    let (code, text) = gateway(&["check-config", "--config", "made/here/gateway.toml"]);
    assert_eq!(code, 0, "{text}");
    // Of a gateway whose configuration is gone nothing is made anew beside its store.
    std::fs::create_dir(dir.path().join("old")).unwrap();
    std::fs::write(dir.path().join("old/towline.db"), "").unwrap();
    let (code, text) = gateway(&["init", "--url", "https://gateway.test", "--directory", "old"]);
    assert!(code == 2 && text.contains("towline.db is there already"), "{text}");
}

/// It waited for a database that did not answer, and heard nothing meanwhile.
#[test]
fn a_start_that_waits_ends_when_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("gateway");
    let gateway = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_towline-gateway"));
        command.args(args).stderr(Stdio::piped()).stdout(Stdio::null());
        command
    };
    let init = ["init", "--url", "https://gateway.test", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let made = gateway(&[&init[..], &["--directory", folder.to_str().unwrap()]].concat()).status().unwrap();
    assert!(made.success());
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://u:p@{}/d", silent.local_addr().unwrap());
    let (file, secret) = (folder.join("gateway.toml"), folder.join("postgres.url"));
    std::fs::copy(folder.join("tls/tls.key"), &secret).unwrap();
    std::fs::write(&secret, url).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("store_file = \"towline.db\"", "postgres_url_file = \"postgres.url\"");
    std::fs::write(&file, text).unwrap();
    let mut running = gateway(&["--config", file.to_str().unwrap()]).spawn().unwrap();
    let (_held, _) = silent.accept().unwrap();
    let told = Command::new("kill").args(["-TERM", &running.id().to_string()]).status().unwrap();
    assert!(told.success());
    let begun = std::time::Instant::now();
    let mut said = String::new();
    std::io::Read::read_to_string(running.stderr.as_mut().unwrap(), &mut said).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(0), "{said}");
    assert!(begun.elapsed() < std::time::Duration::from_secs(5) && said.contains("before it served"), "{said}");
}
