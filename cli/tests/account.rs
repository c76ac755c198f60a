//! Signing in, staying signed in, and what goes wrong (docs/features.md I1, I2, K10, S3, B3).
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use serde_json::{Value, json};
use support::{
    site::{Site, Talking, failed, mode},
    tls_of_its_own, towline,
};

/// What lies in the folder of accounts.
fn kept(site: &Site) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(site.dir.path().join("config/accounts")).into_iter().flatten();
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .collect()
}

#[test]
fn i1_a_service_principal_signs_in_and_works_with_groups() {
    let site = Site::start(&[]);
    let secret = site.file("secret", site.text("clientSecret"));
    let (url, ca, id) = (site.text("url"), site.text("ca"), site.text("clientId"));
    let login = ["login", url, "--ca", ca, "--service-principal", "-u", id, "--secret-file", &secret];
    let shown = site.json(&login);
    assert_eq!(shown["subscription"]["id"], site.info["subscription"]);
    assert_eq!((&shown["type"], &shown["user"]), (&json!("servicePrincipal"), &site.info["clientId"]));
    assert!(!shown.to_string().contains(site.text("clientSecret")));
    let file = &kept(&site)[0];
    assert_eq!((mode(file), mode(file.parent().unwrap())), (0o600, 0o700));
    // From here on no option says where or who.
    assert_eq!(site.ok(&["group", "exists", "-g", "web"]), "false");
    let made = site.json(&["group", "create", "-g", "web", "-l", "eastus", "--tags", "team=x", "stage=a=b"]);
    assert_eq!((&made["name"], &made["tags"]), (&json!("web"), &json!({"team": "x", "stage": "a=b"})));
    assert_eq!(site.ok(&["group", "exists", "-g", "web"]), "true");
    let table = site.ok(&["group", "list"]);
    assert_eq!(table, "NAME  LOCATION  STATE      TAGS\nweb   eastus    Succeeded  stage=a=b, team=x");
    assert_eq!(site.ok(&["group", "list", "-o", "tsv"]), "web\teastus\tSucceeded\tstage=a=b, team=x");
    assert_eq!(site.ok(&["group", "list", "--query", "[].{n:name,t:tags.team}", "-o", "tsv"]), "web\tx");
    assert_eq!(site.ok(&["group", "list", "--query", "[0].name"]), "web");
    assert_eq!(site.ok(&["group", "show", "-g", "web", "-o", "yaml", "--query", "tags"]), "stage: a=b\nteam: x");
    assert!(site.fails(2, &["group", "list", "--query", "[}"]).contains("hint: jmespath.org"));
    assert_eq!(site.ok(&["list"]), "", "no clusters, and nothing to print");
    assert_eq!(site.json(&["list"]), json!([]));
    let asks = site.fails(2, &["group", "delete", "-g", "web"]);
    assert!(asks.contains("hint: --yes"), "{asks}");
    site.ok(&["group", "delete", "-g", "web", "-y"]);
    assert_eq!(site.ok(&["group", "exists", "-g", "web"]), "false");
    let gone = site.fails(1, &["group", "show", "-g", "web"]);
    assert!(
        gone.contains("ResourceGroupNotFound") && gone.contains("hint: make it: towline group create -g web"),
        "{gone}"
    );
}

/// On its way it is percent-encoded.
#[test]
fn group_of_any_alphabet_is_made_found_and_deleted() {
    let site = Site::start(&[]);
    let secret = site.file("secret", site.text("clientSecret"));
    let (url, ca, id) = (site.text("url"), site.text("ca"), site.text("clientId"));
    site.json(&["login", url, "--ca", ca, "--service-principal", "-u", id, "--secret-file", &secret]);
    let made = site.json(&["group", "create", "-n", "Entwicklung-ü", "-l", "eastus"]);
    assert_eq!(made["name"], "Entwicklung-ü");
    assert_eq!(site.ok(&["group", "exists", "-g", "ENTWICKLUNG-Ü"]), "true");
    assert_eq!(site.ok(&["group", "list", "--query", "[0].name"]), "Entwicklung-ü");
    assert_eq!(site.json(&["list", "-g", "entwicklung-ü"]), json!([]));
    site.ok(&["group", "delete", "-g", "entwicklung-Ü", "-y"]);
    assert_eq!(site.ok(&["group", "exists", "-g", "Entwicklung-ü"]), "false");
    let refused = site.fails(2, &["group", "create", "-n", "a\u{202e}b", "-l", "eastus"]);
    assert!(refused.contains("1 to 90 letters"), "{refused}");
}

#[test]
fn i1_what_was_typed_wrongly_is_told_with_what_to_type() {
    let error = String::from_utf8(towline(&["list", "--resource-grup", "x"]).output().unwrap().stderr).unwrap();
    assert!(error.contains("--resource-group") && error.contains("--help"), "{error}");
    let help = String::from_utf8(towline(&["--help"]).output().unwrap().stdout).unwrap();
    assert!(help.contains("Exit codes: 0 done; 1 failed; 2 ") && help.contains("130 ended by Ctrl+C"), "{help}");
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| towline(args).env("TOWLINE_CONFIG_DIR", dir.path()).output().unwrap();
    for args in [&["list", "--nonsense"][..], &["lisst"], &["group"], &["show", "-n", "x"], &["list", "-o", "xml"]] {
        failed(2, run(args), args);
    }
    let nobody = failed(1, run(&["list"]), &["list"]);
    assert!(nobody.contains("no user is signed in") && nobody.contains("hint: sign in: towline login"), "{nobody}");
    assert!(failed(2, run(&["login"]), &[]).contains("towline login https://GATEWAY"));
    assert!(failed(2, run(&["login", "http://x"]), &[]).contains("https://"));
    let homeless = towline(&["list"]).output().unwrap();
    assert!(failed(2, homeless, &[]).contains("hint: TOWLINE_CONFIG_DIR"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was left behind");
}

#[tokio::test(flavor = "multi_thread")]
async fn b3_a_gateway_that_is_not_reached_or_trusted_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| towline(args).env("TOWLINE_CONFIG_DIR", dir.path()).output().unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let (tls, ca) = tls_of_its_own();
    let task = tokio::task::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let _ = tls.accept(stream).await;
        }
    });
    let other = dir.path().join("other.crt");
    std::fs::write(&other, tls_of_its_own().1).unwrap();
    for args in [vec!["login", &url], vec!["login", &url, "--ca", other.to_str().unwrap()]] {
        let error = tokio::task::block_in_place(|| failed(1, run(&args), &args));
        assert!(error.contains("SHA-256 fingerprint ") && error.contains("hint: --ca FILE"), "{error}");
        let shown = error.split("fingerprint ").nth(1).unwrap();
        assert_eq!(shown.chars().take_while(|c| c.is_ascii_hexdigit() || *c == ':').count(), 96, "{error}");
    }
    std::fs::write(&other, &ca).unwrap();
    task.abort();
    let _ = task.await;
    let error = tokio::task::block_in_place(|| failed(1, run(&["login", &url]), &[]));
    assert!(error.contains("was not reached") && error.contains("hint: check address and port"), "{error}");
    let bad = tokio::task::block_in_place(|| failed(2, run(&["login", &url, "--ca", "/nonexistent"]), &[]));
    assert!(bad.contains("--ca: cannot read /nonexistent"), "{bad}");
}

#[test]
fn b3_a_wrong_secret_or_tenant_keeps_nothing_and_is_not_repeated() {
    let site = Site::start(&[]);
    let (url, ca, id) = (site.text("url"), site.text("ca"), site.text("clientId"));
    let secret = site.file("secret", "geheim-und-falsch");
    let login = ["login", url, "--ca", ca, "--service-principal", "-u", id, "--secret-file", &secret];
    let error = site.fails(1, &login);
    assert!(error.contains("invalid_client") && error.contains("hint: check client id"), "{error}");
    assert!(!error.contains("geheim"), "{error}");
    let elsewhere = site.fails(1, &[&login[..], &["--tenant", "b0000000-0000-4000-8000-00000000000b"]].concat());
    assert!(
        elsewhere.contains("there is no tenant b0000000") && elsewhere.contains(site.text("tenant")),
        "{elsewhere}"
    );
    assert!(site.fails(2, &["login", url, "--service-principal"]).contains("--username"));
    let none = site.fails(2, &["login", url, "--ca", ca, "--service-principal", "-u", id]);
    assert!(none.contains("TOWLINE_CLIENT_SECRET"), "{none}");
    assert!(kept(&site).is_empty());
}

#[test]
fn k10_automation_needs_no_login_and_keeps_nothing() {
    let site = Site::start(&[]);
    let secret = site.file("secret", site.text("clientSecret"));
    let with = |pairs: &[(&str, &str)], args: &[&str]| {
        let mut command = site.command(args);
        command.env("TOWLINE_GATEWAY", site.text("url")).env("TOWLINE_CA_FILE", site.text("ca"));
        command.envs(pairs.iter().copied()).output().unwrap()
    };
    let id = ("TOWLINE_CLIENT_ID", site.text("clientId"));
    let subscription = ("TOWLINE_SUBSCRIPTION", site.text("subscription"));
    let args = ["group", "create", "-g", "ci", "-l", "eastus", "-o", "json"];
    let done = with(&[id, subscription, ("TOWLINE_CLIENT_SECRET", site.text("clientSecret"))], &args);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let done = with(&[id, subscription, ("TOWLINE_CLIENT_SECRET_FILE", &secret)], &["group", "exists", "-g", "ci"]);
    assert_eq!(done.stdout, b"true\n");
    assert!(!site.dir.path().join("config").exists(), "nothing was kept");
    let missing = failed(2, with(&[id], &["list"]), &[]);
    assert!(missing.contains("TOWLINE_CLIENT_SECRET is not"), "{missing}");
    let wrong = failed(1, with(&[id, subscription, ("TOWLINE_CLIENT_SECRET", "geheim")], &["list"]), &[]);
    assert!(wrong.contains("invalid_client") && !wrong.contains("geheim"), "{wrong}");
    let unchosen = with(&[id, ("TOWLINE_CLIENT_SECRET_FILE", &secret)], &["list"]);
    assert!(failed(2, unchosen, &[]).contains("no subscription is chosen"));
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_a_person_signs_in_by_device_code_and_stays_signed_in() {
    let site = Site::signed_in(&["--token-ttl", "4s"]);
    let login = ["login", site.text("url"), "--name", "me", "--device-code", "-o", "json"];
    let mut talking = Talking::start(site.command(&login));
    let line = talking.line_with("enter the code");
    let code = line.rsplit(' ').next().unwrap().to_owned();
    assert!(line.contains(&format!("{}/.towline/issuer/device", site.text("url"))), "{line}");
    let page = site.browser().device(&code, "admin", &site.password("admin"), "allow").await;
    assert!(page.contains("Signed in"), "{page}");
    let (exit, out, err) = tokio::task::block_in_place(|| talking.end());
    assert_eq!(exit, Some(0), "{err}");
    assert!(err.contains("has no right at any subscription yet"), "{err}");
    let account: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&account["name"], &account["user"]), (&json!("me"), &json!("admin")));
    // Both accounts are there, and the last one is current.
    assert_eq!(site.ok(&["account", "list", "--query", "[?current].name", "-o", "tsv"]), "me");
    assert_eq!(site.json(&["account", "list"]).as_array().unwrap().len(), 2);
    // Tokens of four seconds: these are renewed by refresh tokens that are good once, by many commands at the same
    // time.
    let tokens = || {
        let all: Vec<_> = (0..4)
            .map(|_| {
                site.command(&["account", "token", "-o", "tsv"]).stdout(std::process::Stdio::piped()).spawn().unwrap()
            })
            .collect();
        all.into_iter()
            .map(|child| child.wait_with_output().unwrap())
            .map(|out| {
                assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
                String::from_utf8(out.stdout).unwrap()
            })
            .collect::<Vec<_>>()
    };
    let first = tokio::task::block_in_place(tokens);
    let file = kept(&site).into_iter().find(|path| path.ends_with("me.json")).unwrap();
    let mut stored: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let refresh = stored["signsIn"]["refreshToken"].clone();
    // As if their time were over.
    stored["tokens"] = json!({});
    std::fs::write(&file, stored.to_string()).unwrap();
    let second = tokio::task::block_in_place(tokens);
    assert!(first.iter().all(|token| !second.contains(token)), "they were renewed");
    let stored: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_ne!(stored["signsIn"]["refreshToken"], refresh, "and so was what renews them");
    // A user who is disabled is told so in the end, with what to type.
    support::ok(&["dev", "disable-user", "--state", site.text("state"), "admin"]);
    let mut stored = stored;
    stored["tokens"] = json!({});
    std::fs::write(&file, stored.to_string()).unwrap();
    let over = tokio::task::block_in_place(|| site.fails(1, &["account", "token"]));
    assert!(
        over.contains("the sign-in of me is no longer valid") && over.contains("hint: sign in again: towline login"),
        "{over}"
    );
    assert!(!over.contains(stored["signsIn"]["refreshToken"].as_str().unwrap()));
    site.ok(&["logout"]);
    assert_ne!(site.ok(&["account", "show", "--query", "name"]), "me", "another account is the current one");
    site.ok(&["logout", "--all"]);
    assert!(kept(&site).is_empty());
    assert!(site.fails(1, &["account", "show"]).contains("no user is signed in"));
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_a_sign_in_that_is_refused_or_interrupted_leaves_nothing() {
    let site = Site::start(&[]);
    let login = ["login", site.text("url"), "--ca", site.text("ca")];
    let mut talking = Talking::start(site.command(&login));
    let line = talking.line_with("enter the code");
    site.browser().device(line.rsplit(' ').next().unwrap(), "", "", "deny").await;
    let (exit, out, err) = tokio::task::block_in_place(|| talking.end());
    assert_eq!((exit, out.as_str()), (Some(1), ""), "{err}");
    assert!(err.contains("was refused on the page"), "{err}");
    let mut talking = Talking::start(site.command(&login));
    talking.line_with("enter the code");
    let id = talking.child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-s", "INT", &id]).status().unwrap().success());
    let (exit, out, _) = tokio::task::block_in_place(|| talking.end());
    assert_eq!((exit, out.as_str()), (Some(130), ""));
    assert!(kept(&site).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_a_browser_brings_the_code_back_to_this_machine() {
    let site = Site::start(&[]);
    // Stands in for a browser: notes the address that it is to show.
    let noted = site.path("address");
    let program =
        site.file("browser", &format!("#!/bin/sh\nprintf %s \"$1\" > {noted}.new && mv {noted}.new {noted}\n"));
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = site.command(&["login", site.text("url"), "--ca", site.text("ca"), "--browser"]);
    let mut talking = Talking::start({
        command.env("BROWSER", &program).env("PATH", "/usr/bin:/bin");
        command
    });
    talking.line_with("Sign in with the browser");
    let address = talking.line_with("https://");
    let path = address.strip_prefix(site.text("url")).unwrap();
    let mut browser = site.browser();
    let page = browser.send("GET", path, &[]).await;
    let flow = support::site::hidden(&page, "flow");
    let password = site.password("admin");
    let fields = [("flow", flow.as_str()), ("username", "admin"), ("password", &password), ("decision", "allow")];
    let answer = browser.send("POST", "/.towline/issuer/authorize", &fields).await;
    let to =
        answer.lines().find_map(|line| line.strip_prefix("location: ").or(line.strip_prefix("Location: "))).unwrap();
    let (_, rest) = to.trim().split_once("http://127.0.0.1:").unwrap();
    let (port, query) = rest.split_once('/').unwrap();
    let get = async |target: &str| {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port.parse::<u16>().unwrap())).await.unwrap();
        stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    };
    assert!(get("/favicon.ico").await.starts_with("HTTP/1.1 404"));
    assert!(get("/?code=x&state=y").await.starts_with("HTTP/1.1 404"), "a code of somebody else is not taken");
    assert!(get(&format!("/{query}")).await.contains("You are signed in"));
    let (exit, _, err) = tokio::task::block_in_place(|| talking.end());
    assert_eq!(exit, Some(0), "{err}");
    assert_eq!(site.ok(&["account", "show", "--query", "user"]), "admin");
}
