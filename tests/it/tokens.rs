//! The token check in full, end to end: what is not a good token of this cluster is a 401, and rights that go away end
//! what they had allowed (docs/identity.md). The cases of A1 and A5 one by one are beside the verifier.

use std::{
    io::Read,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use tests::{
    apiserver::Apiserver,
    case::{Needs, case, waits},
    cluster::cluster,
    kubectl::pod,
    programs::{eventually, scratch},
    stack::{Plan, Stack, grant_in_cluster, shared},
};

pub fn tests() -> Vec<Trial> {
    vec![
        case("tokens::tampered_tokens_are_401", Needs::Nothing, tampered),
        case("tokens::a_token_of_another_cluster_is_401", Needs::Nothing, other_cluster),
        case("tokens::keys_rotated_in_mid_run", Needs::Nothing, rotated),
        case("tokens::service_account_tokens_pass_unchanged", Needs::Cluster, service_account),
        case("tokens::an_expired_token_ends_watch_and_exec_when_sessions_may_not_outlive_it", Needs::Nothing, expired),
        waits("tokens::a_withdrawn_right_ends_watch_and_exec", Needs::Pods, withdrawn),
    ]
}

fn scripted(name: &str) -> anyhow::Result<(Apiserver, Stack)> {
    let apiserver = Apiserver::plain(&scratch(name))?;
    let stack = Stack::start(&Plan::scripted(name, &apiserver))?;
    Ok((apiserver, stack))
}

fn tampered() -> anyhow::Result<()> {
    let (apiserver, stack) = scripted("tampered")?;
    let token = stack.token("admin")?;
    ensure!(stack.get_with(&token, "/api/good")?.status == 200);
    let parts: Vec<&str> = token.split('.').collect();
    let flipped = |part: &str| {
        let mut bytes = part.as_bytes().to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] = if bytes[middle] == b'A' { b'B' } else { b'A' };
        String::from_utf8(bytes).unwrap()
    };
    for (n, bad) in [
        format!("{}.{}.{}", parts[0], parts[1], flipped(parts[2])),
        format!("{}.{}.{}", parts[0], flipped(parts[1]), parts[2]),
        format!("{}.{}.", parts[0], parts[1]),
        format!("{}.{}", parts[0], parts[1]),
        format!("{token}.x"),
        format!("eyJhbGciOiJub25lIn0.{}.", parts[1]),
        "x".repeat(100_000),
        String::from("%00"),
    ]
    .iter()
    .enumerate()
    {
        let status = stack.get_with(bad, &format!("/api/bad-{n}"))?.status;
        ensure!(status == 401 || status == 431, "{n}: {status}");
    }
    ensure!(
        !apiserver.received().iter().any(|request| request.text().contains("/api/bad-")),
        "a bad token reached the apiserver"
    );
    Ok(())
}

fn other_cluster() -> anyhow::Result<()> {
    let (_one, first) = scripted("cluster-a")?;
    first.towline(&["dev", "add-cluster", "other"])?.ok()?;
    let token = first.towline(&["token", "--user", "admin", "--cluster", "other"])?.ok()?.trim().to_owned();
    tests::stack::note_secret(&token)?;
    ensure!(first.get_with(&token, "/api")?.status == 401);
    Ok(())
}

fn rotated() -> anyhow::Result<()> {
    let (_apiserver, stack) = scripted("rotated")?;
    let old = stack.token("admin")?;
    stack.towline(&["dev", "rotate-keys"])?.ok()?;
    let mut new = old.clone();
    eventually("the issuer signs with the new key", Duration::from_secs(15), || {
        new = stack.token("admin")?;
        Ok(new.split('.').next() != old.split('.').next())
    })?;
    eventually("gateway and agent take the new key", Duration::from_secs(15), || {
        Ok(stack.get_with(&new, "/api")?.status == 200)
    })?;
    ensure!(stack.get_with(&old, "/api")?.status == 200, "tokens of the old key go on until they end");
    Ok(())
}

fn service_account() -> anyhow::Result<()> {
    let stack = shared("websocket");
    let admin = cluster().admin();
    admin.run(&["create", "serviceaccount", "passes"])?;
    let token = admin.ok(&["create", "token", "passes"])?.trim().to_owned();
    tests::stack::note_secret(&token)?;
    let file = stack.dir.join("passes.key");
    std::fs::write(&file, &token)?;
    let path = stack.dir.join("passes.kubeconfig");
    let arguments = [
        "kubeconfig",
        "--cluster",
        "dev",
        "--service-account-token",
        &file.display().to_string(),
        "--file",
        &path.display().to_string(),
    ]
    .map(str::to_owned);
    stack.towline(&arguments.iter().map(String::as_str).collect::<Vec<_>>())?.ok()?;
    let kubectl = tests::kubectl::Kubectl::new(&path);
    let who = kubectl.ok(&["auth", "whoami", "-o", "json"])?;
    ensure!(who.contains("system:serviceaccount:default:passes"), "{who}");
    let error = kubectl.run(&["get", "secrets", "-A"])?.refused()?;
    ensure!(error.contains("system:serviceaccount:default:passes"), "{error}");
    // Without the client certificate the same token is nothing.
    ensure!(stack.get_with(&token, "/api")?.status == 401);
    Ok(())
}

fn withdrawn() -> anyhow::Result<()> {
    grant_in_cluster()?;
    let stack = Stack::start(&Plan { carrier: Some("h2"), ..Plan::real("withdrawn") })?;
    let admin = cluster().admin().namespace("view-only");
    // For this test viewer may exec too.
    admin.apply(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: towline-test-edits, namespace: view-only}\n\
         roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}\n\
         subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: viewer}]\n",
    )?;
    admin.apply(&pod("p", "sleep 100000"))?;
    admin.ok(&["wait", "--for=condition=Ready", "pod/p", "--timeout=180s"])?;
    let outcome = withdrawn_from(&stack);
    admin.ok(&["delete", "rolebinding", "towline-test-edits"])?;
    admin.ok(&["delete", "pod", "p", "--wait=false"])?;
    outcome
}

fn withdrawn_from(stack: &Stack) -> anyhow::Result<()> {
    for (user, how) in [("admin", "revoke"), ("viewer", "disable-user")] {
        let kubectl = stack.kubectl(user)?.namespace("view-only");
        let mut watch = kubectl
            .command(&["get", "--raw", "/api/v1/namespaces/view-only/configmaps?watch=true"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut out = watch.stdout.take().unwrap();
        let mut first = [0; 1];
        out.read_exact(&mut first)?;
        let script = "echo begun; read -r line; echo got $line";
        let mut exec = kubectl
            .command(&["exec", "-i", "p", "--", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut begun = [0; 6];
        exec.stdout.as_mut().context("no standard output")?.read_exact(&mut begun)?;
        ensure!(begun == *b"begun\n" && watch.try_wait()?.is_none());
        let mut arguments = vec!["dev", how];
        if how == "revoke" {
            arguments.extend(["--user", user, "--cluster", "dev"]);
        } else {
            arguments.push(user);
        }
        stack.towline(&arguments)?.ok()?;
        let ended = eventually("watch and exec end", Duration::from_secs(35), || {
            Ok(watch.try_wait()?.is_some() && exec.try_wait()?.is_some_and(|status| !status.success()))
        });
        for child in [&mut watch, &mut exec] {
            let _ = child.kill();
            let _ = child.wait();
        }
        ended?;
        let error = kubectl.run(&["get", "configmaps"])?.refused()?;
        ensure!(error.contains("orbidden") || error.contains("nauthorized"), "{error}");
    }
    Ok(())
}

fn expired() -> anyhow::Result<()> {
    use std::io::Write;
    let apiserver = Apiserver::start(
        &scratch("expired"),
        false,
        std::sync::Arc::new(|request, connection| {
            if request.target().starts_with(b"/exec") {
                connection.write_all(
                    b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\r\nbegun",
                )?;
                connection.flush()?;
                let _ = connection.read(&mut [0]);
                return Ok(false);
            }
            if request.target().starts_with(b"/silent") {
                connection.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
                connection.flush()?;
                // Until the other side goes away.
                let _ = connection.read(&mut [0]);
                return Ok(false);
            }
            tests::apiserver::answer(connection, "200 OK", b"{}")
        }),
    )?;
    let strict =
        ["--token-ttl", "10s", "--set", "sessions.outlive_token=\"0s\"", "--set", "sessions.reauthorise_every=\"1s\""];
    let stack = Stack::start(&Plan { dev_args: &strict, ..Plan::scripted("expired", &apiserver) })?;
    let token = stack.token("admin")?;
    let open = |path: &str, lines: &str| -> anyhow::Result<tests::raw::Raw> {
        let mut raw = stack.raw()?;
        raw.read_timeout(Duration::from_secs(90))?;
        raw.send(
            format!(
                "GET /{}{path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n{lines}\r\n",
                stack.key(),
                stack.authority()
            )
            .as_bytes(),
        )?;
        Ok(raw)
    };
    let mut watch = open("/silent?watch=true", "")?;
    ensure!(watch.head()?.contains(" 200 "));
    let mut exec = open("/exec", "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n")?;
    ensure!(exec.answer()?.status == 101);
    ensure!(exec.exactly(5)? == b"begun");
    let start = Instant::now();
    for raw in [&mut watch, &mut exec] {
        // Broken off, never a clean end of the watch: no last chunk.
        let rest = raw.some().unwrap_or_default();
        ensure!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
        // The end, and not the end of this test's patience.
        ensure!(start.elapsed() < Duration::from_secs(80), "the session went on without a token");
    }
    // For as long as clocks may differ it is taken, and what it opens may end before there is an answer.
    eventually("the token itself is refused", Duration::from_secs(90), || {
        Ok(stack.get_with(&token, "/api").is_ok_and(|answer| answer.status == 401))
    })?;
    Ok(())
}
