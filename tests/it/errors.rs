//! What a user sees when something is not as it should be: a Kubernetes `Status`, with what to do.

use std::time::{Duration, Instant};

use anyhow::ensure;
use libtest_mimic::Trial;
use tests::{
    apiserver::Apiserver,
    case::{Needs, case},
    programs::scratch,
    raw::Answer,
    stack::{Plan, Stack, shared},
};

pub fn tests() -> Vec<Trial> {
    vec![
        case("errors::no_token_is_401_without_detail", Needs::Nothing, no_token),
        case("errors::forbidden_and_unknown_cluster_look_alike", Needs::Nothing, alike),
        case("errors::no_agent_is_503_at_once", Needs::Nothing, no_agent),
        case("errors::heads_over_the_limit_are_431", Needs::Nothing, large_heads),
        case("errors::kubectl_prints_them_well", Needs::Cluster, kubectl_prints),
        case("errors::three_hundred_groups_work", Needs::Cluster, three_hundred_groups),
    ]
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
    let guessed_key = guessed.parse::<proto::ids::ClusterId>()?.key().hex();
    let known = ask(&stack.token("stranger")?, &stack.key())?;
    let unknown = ask(
        &stack.token_for_audience("stranger", &guessed.parse::<proto::ids::ClusterId>()?.audience())?,
        &guessed_key,
    )?;
    status(&known, 403, "Forbidden")?;
    // With a token for another cluster.
    stack.towline(&["dev", "add-cluster", "other"])?.ok()?;
    let other = stack.token_for("stranger", "other")?;
    let (known_to_other, unknown_to_other) = (ask(&other, &stack.key())?, ask(&other, &"ab".repeat(32))?);
    status(&known_to_other, 401, "Unauthorized")?;
    let strip = |answer: &Answer| -> anyhow::Result<String> {
        let mut body = answer.json()?.to_string();
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
    raw.answer()?;
    let start = Instant::now();
    raw.send(request.as_bytes())?;
    let answer = raw.answer()?;
    let took = start.elapsed();
    let body = status(&answer, 503, "ServiceUnavailable")?;
    ensure!(body["message"].as_str().unwrap_or_default().contains("no agent is connected"), "{body}");
    ensure!(
        answer.header("retry-after").and_then(|value| value.parse::<u32>().ok()).is_some_and(|seconds| seconds >= 1),
        "{}",
        answer.head
    );
    ensure!(took < Duration::from_millis(50), "took {took:?}");
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

fn three_hundred_groups() -> anyhow::Result<()> {
    let stack = shared("quic");
    let groups: Vec<String> = (0..300).map(|n| format!("{n:03}-{}", "g".repeat(96))).collect();
    let user = "many-groups";
    let mut args = vec!["dev", "add-user", user, "--grant", "dev"];
    for group in &groups {
        args.extend(["--group", group]);
    }
    stack.towline(&args)?.ok()?;
    let mut text = String::new();
    tests::programs::eventually("the new user may", Duration::from_secs(10), || {
        let output = stack.kubectl(user)?.run(&["auth", "whoami", "-o", "json"])?;
        text = format!("{} {}", output.text(), output.err);
        Ok(output.code == Some(0))
    })
    .map_err(|error| error.context(text.clone()))?;
    ensure!(groups.iter().all(|group| text.contains(group)), "not all groups arrived");
    // kubectl speaks HTTP/2; the same over HTTP/1.1.
    let answer = stack.get(user, "/api")?;
    ensure!(answer.status == 200, "{}", answer.head);
    Ok(())
}
