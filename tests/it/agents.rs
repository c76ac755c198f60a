//! What the agents do for the cluster that they run in (docs/features.md R9, A7, M4).

use std::{process::Command, time::Duration};

use anyhow::{Context, ensure};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    case::{Needs, installs},
    cluster::cluster,
    programs::{eventually, run},
    stack::note_secret,
};

use crate::connect::{Site, call, with_pods};

const NAMESPACE: &str = "towline";
const APPS: &str = "identity-apps";
/// What RBAC lets the service account of this test ask for.
const UNKNOWN: &str = "https://unknown.example.org";

pub fn tests() -> Vec<Trial> {
    vec![installs("agents::r9_what_runs_in_the_cluster_gets_tokens_of_its_identity", Needs::Pods, tokens)]
}

fn tokens() -> anyhow::Result<()> {
    let site = with_pods("agents")?;
    let admin = cluster().admin();
    let made = site.ok(&["connect", "-n", "c1", "-g", "edge", "--replicas", "1", "-o", "json"])?;
    let made: Value = serde_json::from_str(&made.text())?;
    // M4: with the first heartbeat, which is seconds away.
    eventually("the cluster's facts are known", Duration::from_secs(30), || {
        let shown = site.ok(&["show", "-n", "c1", "-g", "edge", "-o", "json"])?.text();
        let shown: Value = serde_json::from_str(&shown)?;
        Ok(shown["properties"]["kubernetesVersion"].is_string() && shown["properties"]["totalCoreCount"].is_number())
    })?;

    let url = site.stack.text("url");
    let audience = url.trim_end_matches('/').to_owned();
    admin.apply(&rights(&audience))?;
    let token = |audience: &str| -> anyhow::Result<String> {
        let made = admin.ok(&["-n", APPS, "create", "token", "backup", "--audience", audience])?.trim().to_owned();
        note_secret(&made)?;
        Ok(made)
    };
    let ask = asker(&site)?;
    let backup = token("towline.io/identity")?;
    let mut given = Value::Null;
    eventually("a token is given", Duration::from_secs(30), || {
        let (status, body) = ask(&backup, &json!({ "audience": audience }))?;
        given = body;
        Ok(status == 200)
    })
    .with_context(|| given.to_string())?;
    let text = given["access_token"].as_str().context("no token")?;
    note_secret(text)?;
    let claims = URL_SAFE_NO_PAD.decode(text.split('.').nth(1).context("no JWT")?)?;
    let claims: Value = serde_json::from_slice(&claims)?;
    ensure!(claims["oid"] == made["identity"]["principalId"] && claims["aud"] == audience.as_str(), "{claims}");
    // The gateway's API knows who that is, and that they have no role.
    let path = format!("/subscriptions/{}/resourcegroups?api-version=2024-03-01", site.stack.text("subscription"));
    let answer = call(&site.stack, text, "GET", &path, &Value::Null)?;
    ensure!(answer.status == 403 || answer.status == 200, "{}", answer.status);

    for (shown, wanted, status, code) in [
        (backup.as_str(), UNKNOWN, 400, "InvalidAudience"),
        (&backup, "https://not-allowed.example.org", 403, "Forbidden"),
        // The apiserver's own audience: whoever gets hold of such a token must not become the cluster by it.
        (&token("https://kubernetes.default.svc")?, &audience, 401, "Unauthenticated"),
        ("nobody", &audience, 401, "Unauthenticated"),
    ] {
        let (found, body) = ask(shown, &json!({ "audience": wanted }))?;
        ensure!(found == status && body["error"]["code"] == code, "{wanted}: {found} {body}");
    }

    admin.ok(&["delete", "namespace", APPS, "--wait=false"])?;
    site.ok(&["delete", "-n", "c1", "-g", "edge", "-y"])?;
    let left = admin.run(&["get", "namespace", NAMESPACE])?;
    ensure!(left.code != Some(0), "the namespace is still there: {left:?}");
    Ok(())
}

/// Asks for tokens of an extension's identity as a service account of its chart, as the namespace's default one, and as
/// one of another namespace; and shows the token at the gateway, where a role assignment counts for it.
pub fn extension_tokens(
    site: &Site,
    cluster_id: &str,
    principal: &Value,
    extension: &str,
    (namespace, account): (&str, &str),
) -> anyhow::Result<()> {
    let admin = cluster().admin();
    let token = |namespace: &str, account: &str| -> anyhow::Result<String> {
        let made = admin
            .ok(&["-n", namespace, "create", "token", account, "--audience", "towline.io/identity"])?
            .trim()
            .to_owned();
        note_secret(&made)?;
        Ok(made)
    };
    let url = site.stack.text("url");
    let ask = asker(site)?;
    let wanted = |extension: &str| json!({"audience": url.trim_end_matches('/'), "extension": extension});
    let (mut given, own) = (Value::Null, token(namespace, account)?);
    eventually("a token of the extension is given", Duration::from_secs(60), || {
        let (status, body) = ask(&own, &wanted(extension))?;
        given = body;
        Ok(status == 200)
    })
    .with_context(|| given.to_string())?;
    let text = given["access_token"].as_str().context("no token")?;
    note_secret(text)?;
    let claims = URL_SAFE_NO_PAD.decode(text.split('.').nth(1).context("no JWT")?)?;
    let claims: Value = serde_json::from_slice(&claims)?;
    ensure!(claims["oid"] == *principal && principal.is_string(), "{claims} {principal}");
    for (namespace, account, extension) in
        [(namespace, "default", extension), ("default", "default", extension), (namespace, account, "another")]
    {
        let (status, body) = ask(&token(namespace, account)?, &wanted(extension))?;
        ensure!(status == 403 && body["error"]["code"] == "Forbidden", "{namespace}/{account}: {status} {body}");
    }
    let path = format!("{cluster_id}?api-version=2024-01-01");
    let seen = || anyhow::Ok(call(&site.stack, text, "GET", &path, &Value::Null)?.status);
    ensure!(seen()? == 403, "{}", seen()?);
    let principal = principal.as_str().unwrap_or_default();
    site.ok(&["role", "assignment", "create", "--assignee", principal, "--role", "Reader", "--scope", cluster_id])?;
    ensure!(seen()? == 200, "{}", seen()?);
    Ok(())
}

/// A service account, and what it may ask for.
fn rights(audience: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {APPS}}}\n---\n\
         apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: backup, namespace: {APPS}}}\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{name: tokens-for-backup, namespace: {NAMESPACE}}}\n\
         rules: [{{apiGroups: [towline.io], resources: [identitytokens], verbs: [create], resourceNames: [\"{audience}\", \"{UNKNOWN}\"]}}]\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{name: tokens-for-backup, namespace: {NAMESPACE}}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: tokens-for-backup}}\n\
         subjects: [{{kind: ServiceAccount, name: backup, namespace: {APPS}}}]\n"
    )
}

/// Asks for a token through the Service, with what the ConfigMap says is to be trusted, which any service account may
/// read.
fn asker(site: &Site) -> anyhow::Result<impl Fn(&str, &Value) -> anyhow::Result<(u16, Value)>> {
    let admin = cluster().admin();
    let anybody = "system:serviceaccount:default:default";
    let groups = ["--as-group", "system:serviceaccounts", "--as-group", "system:authenticated"];
    let read = ["-n", NAMESPACE, "get", "configmap", "towline-serving-ca", "-o", "jsonpath={.data.ca\\.crt}"];
    let mut ca = String::new();
    eventually("what to trust is published", Duration::from_secs(30), || {
        ca = admin.ok(&[&read[..], &["--as", anybody], &groups].concat())?;
        Ok(ca.contains("BEGIN CERTIFICATE"))
    })?;
    let file = site.stack.dir.join("serving-ca.crt");
    std::fs::write(&file, ca)?;
    let service = ["-n", NAMESPACE, "get", "service", "cluster-identity", "-o", "jsonpath={.spec.clusterIP}"];
    let address = admin.ok(&service)?.trim().to_owned();
    let resolve = format!("cluster-identity.{NAMESPACE}.svc:443:{address}");
    Ok(move |token: &str, asked: &Value| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "30", "--noproxy", "*", "--write-out", "\n%{http_code}"]);
        curl.args(["--resolve", &resolve, "--cacert"]).arg(&file);
        curl.args(["--header", &format!("Authorization: Bearer {token}")]);
        curl.args(["--data", &asked.to_string()]);
        curl.arg(format!("https://cluster-identity.{NAMESPACE}.svc/v1/token"));
        let answer = run(&mut curl, Duration::from_secs(60))?;
        let text = answer.ok()?;
        let (body, status) = text.rsplit_once('\n').context("no status")?;
        Ok((status.trim().parse()?, serde_json::from_str(body)?))
    })
}
