//! What a user sees when something is not as it should be: a Kubernetes `Status`, with what to do.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use tests::{
    apiserver::Apiserver,
    case::{Needs, case},
    curl::{VERSIONS, curl},
    programs::scratch,
    raw::Answer,
    stack::{CARRIERS, Plan, Stack, shared},
};

pub fn tests() -> Vec<Trial> {
    let mut trials = vec![
        case("errors::no_token_is_401_without_detail", Needs::Nothing, no_token),
        case("errors::forbidden_and_unknown_cluster_look_alike", Needs::Nothing, alike),
        case("errors::no_agent_is_503_at_once", Needs::Nothing, no_agent),
        case("errors::heads_over_the_limit_are_431", Needs::Nothing, large_heads),
        case("errors::kubectl_prints_them_well", Needs::Cluster, kubectl_prints),
        case("errors::answers_of_the_apiserver_arrive_unchanged", Needs::Nothing, unchanged),
    ];
    for carrier in CARRIERS {
        let name = format!("errors::three_hundred_groups_work::{carrier}");
        trials.push(case(name, Needs::Cluster, move || three_hundred_groups(carrier)));
    }
    trials
}

pub fn status(answer: &Answer, code: u16, reason: &str) -> anyhow::Result<serde_json::Value> {
    let body = answer.json()?;
    ensure!(answer.status == code, "{}\n{body}", answer.head);
    ensure!(
        body["kind"] == "Status" && body["apiVersion"] == "v1" && body["code"] == code && body["reason"] == reason,
        "{body}"
    );
    Ok(body)
}

fn scripted(name: &str) -> anyhow::Result<(Apiserver, Stack)> {
    let apiserver = Apiserver::plain(&scratch(name))?;
    let stack = Stack::start(&Plan::scripted(name, &apiserver))?;
    Ok((apiserver, stack))
}

fn no_token() -> anyhow::Result<()> {
    let (_apiserver, stack) = scripted("no-token")?;
    let mut raw = stack.raw()?;
    raw.send(format!("GET /{}/api HTTP/1.1\r\nHost: {}\r\n\r\n", stack.key(), stack.authority()).as_bytes())?;
    let body = status(&raw.answer()?, 401, "Unauthorized")?;
    ensure!(body["message"] == "Unauthorized", "{body}");
    // The connection is still HTTP, and the next request on it is judged by itself.
    let token = stack.token("admin")?;
    raw.send(
        format!(
            "GET /{}/api HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\r\n",
            stack.key(),
            stack.authority()
        )
        .as_bytes(),
    )?;
    ensure!(raw.answer()?.status == 200);
    Ok(())
}

fn alike() -> anyhow::Result<()> {
    let (_apiserver, stack) = scripted("alike")?;
    let ask = |token: &str, key: &str| {
        let mut raw = stack.raw()?;
        raw.send(
            format!(
                "GET /{key}/api/v1/pods HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\r\n",
                stack.authority()
            )
            .as_bytes(),
        )?;
        raw.answer()
    };
    // With a token for the very cluster: one that is there and forbidden, one that is not there.
    let guessed = stack.info["clusters"][0]["id"].as_str().unwrap_or_default().to_owned() + "-guessed";
    let guessed_key = guessed.parse::<types::ids::ClusterId>()?.key().hex();
    let known = ask(&stack.token("stranger")?, &stack.key())?;
    let unknown = ask(
        &stack.token_for_audience("stranger", &guessed.parse::<types::ids::ClusterId>()?.audience())?,
        &guessed_key,
    )?;
    status(&known, 403, "Forbidden")?;
    // With a token for another cluster.
    stack.towline(&["dev", "add-cluster", "other"])?.ok()?;
    let other = stack.token_for("stranger", "other")?;
    let (known_to_other, unknown_to_other) = (ask(&other, &stack.key())?, ask(&other, &"ab".repeat(32))?);
    status(&known_to_other, 401, "Unauthorized")?;
    let strip = |answer: &Answer| -> anyhow::Result<String> {
        let date = answer.header("date").unwrap_or("none").to_owned();
        let mut body = answer.head.replace(&date, "DATE") + &answer.json()?.to_string();
        for key in [stack.key(), guessed_key.clone(), "ab".repeat(32)] {
            body = body.replace(&key, "KEY");
        }
        let id = regex_id(&body);
        Ok(body.replace(&id, "ID"))
    };
    for (known, unknown) in [(&known, &unknown), (&known_to_other, &unknown_to_other)] {
        ensure!(known.status == unknown.status, "{} {}", known.head, unknown.head);
        ensure!(strip(known)? == strip(unknown)?, "{}\n{}", strip(known)?, strip(unknown)?);
    }
    Ok(())
}

/// The 32 hex digits of the request id in a body.
fn regex_id(body: &str) -> String {
    body.split(|c: char| !c.is_ascii_hexdigit()).find(|part| part.len() == 32).unwrap_or("none").to_owned()
}

fn no_agent() -> anyhow::Result<()> {
    let (_apiserver, stack) = scripted("no-agent")?;
    let token = stack.token("admin")?;
    stack.agent.lock().unwrap().kill();
    tests::programs::eventually("the gateway knows", Duration::from_secs(30), || {
        Ok(stack.get_with(&token, "/api").is_ok_and(|answer| answer.status == 503))
    })?;
    let mut raw = stack.raw()?;
    let request = format!(
        "GET /{}/api HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\r\n",
        stack.key(),
        stack.authority()
    );
    raw.send(request.as_bytes())?;
    let mut answer = raw.answer()?;
    // The fastest: a machine that is busy with something else delays most of them, a wait of ours delays all.
    let mut took: Vec<Duration> = Vec::new();
    for _ in 0..21 {
        let start = Instant::now();
        raw.send(request.as_bytes())?;
        answer = raw.answer()?;
        took.push(start.elapsed());
    }
    took.sort_unstable();
    let body = status(&answer, 503, "ServiceUnavailable")?;
    ensure!(body["message"].as_str().unwrap_or_default().contains("no agent is connected"), "{body}");
    ensure!(
        answer.header("retry-after").and_then(|value| value.parse::<u32>().ok()).is_some_and(|seconds| seconds >= 1),
        "{}",
        answer.head
    );
    ensure!(took[0] < Duration::from_millis(50), "took {took:?}");
    Ok(())
}

fn large_heads() -> anyhow::Result<()> {
    let (_apiserver, stack) = scripted("large-heads")?;
    let token = stack.token("admin")?;
    let ask = |size: usize| {
        let mut raw = stack.raw()?;
        raw.send(
            format!(
                "GET /{}/api HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nX-Filler: {}\r\n\r\n",
                stack.key(),
                stack.authority(),
                "x".repeat(size)
            )
            .as_bytes(),
        )?;
        raw.answer()
    };
    ensure!(ask(90_000)?.status == 200);
    ensure!(ask(300_000)?.status == 431);
    Ok(())
}

fn kubectl_prints() -> anyhow::Result<()> {
    let stack = shared("h2");
    let viewer = stack.kubectl("viewer")?;
    ensure!(viewer.run(&["get", "pods", "-n", "view-only"])?.code == Some(0));
    let error = viewer.run(&["get", "secrets", "-n", "kube-system"])?.refused()?;
    ensure!(
        error.contains("Error from server (Forbidden)") && error.contains("cannot list resource \"secrets\""),
        "{error}"
    );
    let error = stack.kubectl("stranger")?.run(&["get", "pods"])?.refused()?;
    ensure!(error.contains("orbidden"), "{error}");
    Ok(())
}

/// The apiserver is told all groups of such a user and no others, whatever the user's protocol and the tunnel's
/// carrier.
fn three_hundred_groups(carrier: &'static str) -> anyhow::Result<()> {
    let stack = shared(carrier);
    let mut groups: Vec<String> = (0..300).map(|n| format!("{n:03}-{}", "g".repeat(96))).collect();
    let user = "many-groups";
    let mut args = vec!["dev", "add-user", user, "--grant", "dev"];
    for group in &groups {
        args.extend(["--group", group]);
    }
    stack.towline(&args)?.ok()?;
    groups.push("system:authenticated".to_owned());
    groups.sort();
    let same = |user: &Value, text: &str| -> anyhow::Result<()> {
        let mut seen: Vec<_> = user["groups"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        seen.sort_unstable();
        ensure!(seen == groups, "{} groups arrived: {text}", seen.len());
        Ok(())
    };
    let mut text = String::new();
    tests::programs::eventually("the new user may", Duration::from_secs(20), || {
        let output = stack.kubectl(user)?.run(&["auth", "whoami", "-o", "json"])?;
        text = format!("{} {}", output.text(), output.err);
        Ok(output.code == Some(0))
    })
    .map_err(|error| error.context(text.clone()))?;
    let who: Value = serde_json::from_str(text.trim())?;
    same(&who["status"]["userInfo"], &text)?;
    let review = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;
    for version in VERSIONS {
        let path = ["/apis/authentication.k8s.io/v1/selfsubjectreviews".to_owned()];
        for answer in curl(stack, version, &stack.token(user)?, &path, Some(review))? {
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            ensure!(answer.status == 201, "{version:?}: {}{text}", answer.head);
            let who: Value = serde_json::from_str(&text)?;
            same(&who["status"]["userInfo"], &text).with_context(|| format!("{version:?}"))?;
        }
    }
    Ok(())
}

/// What an apiserver answers when it refuses, and its warnings: status, headers and body as they were sent, over both
/// versions of HTTP.
fn unchanged() -> anyhow::Result<()> {
    use std::io::Write;
    let codes = [
        "200 OK",
        "400 Bad Request",
        "401 Unauthorized",
        "403 Forbidden",
        "404 Not Found",
        "405 Method Not Allowed",
        "409 Conflict",
        "410 Gone",
        "415 Unsupported Media Type",
        "422 Unprocessable Entity",
        "429 Too Many Requests",
        "500 Internal Server Error",
        "503 Service Unavailable",
        "504 Gateway Timeout",
    ];
    let warnings = [r#"299 - "first: \"quoted\", with a comma""#, r#"299 - "second été""#, r#"299 - "first again""#];
    let body =
        |code: &str| format!("{{\"kind\": \"Status\",  \"message\": \"the apiserver's own words on {code}\"}}\n");
    let script = std::sync::Arc::new(
        move |request: &tests::apiserver::Received, connection: &mut tests::apiserver::Connection| {
            let path = String::from_utf8_lossy(request.target()).into_owned();
            let Some(code) = codes.iter().find(|code| path.ends_with(&format!("/answers/{}", &code[..3]))) else {
                return tests::apiserver::answer(connection, "200 OK", b"{}");
            };
            let body = body(code);
            let mut head =
                format!("HTTP/1.1 {code}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n", body.len());
            for warning in warnings {
                head += &format!("warning: {warning}\r\n");
            }
            head += "retry-after: 7\r\naudit-id: 5ca1ab1e\r\nx-kubernetes-pf-flowschema-uid: f10\r\n\r\n";
            connection.write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
            connection.flush()?;
            Ok(true)
        },
    );
    let apiserver = Apiserver::start(&scratch("unchanged"), false, script)?;
    let stack = Stack::start(&Plan::scripted("unchanged", &apiserver))?;
    let token = stack.token("admin")?;
    let paths: Vec<String> = codes.iter().map(|code| format!("/answers/{}", &code[..3])).collect();
    for version in VERSIONS {
        for (code, answer) in codes.iter().zip(curl(&stack, version, &token, &paths, None)?) {
            let shown = format!("{version:?}: {}{}", answer.head, String::from_utf8_lossy(&answer.body));
            ensure!(answer.status.to_string() == code[..3], "{code}: {shown}");
            ensure!(answer.body == body(code).as_bytes(), "{code}: {shown}");
            ensure!(answer.headers("warning") == warnings, "{code}: {shown}");
            ensure!(answer.headers("retry-after") == ["7"], "{code}: {shown}");
            ensure!(answer.headers("audit-id") == ["5ca1ab1e"], "{code}: {shown}");
            ensure!(answer.headers("x-kubernetes-pf-flowschema-uid") == ["f10"], "{code}: {shown}");
            ensure!(answer.headers("content-type") == ["application/json"], "{code}: {shown}");
        }
    }
    Ok(())
}
