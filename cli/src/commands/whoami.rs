//! `towline whoami`: what gateway and agent each make of a token, and why not. A 401 does not tell.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use http::{Request, StatusCode, header};
use http_body_util::Full;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use types::instants::rfc3339_seconds;

use super::{
    print,
    target::{AccessArgs, CertificateArgs, Target},
};
use crate::{
    account::SignsIn,
    context::Context,
    failure::{FAILED, Outcome},
    output::{self, Format, OutputArgs},
    token::claims,
};

/// Life of the access certificate that is made for one question about a service-account token.
const ACCESS_TTL: Duration = Duration::from_secs(300);

/// What is shown of both sides apart from text.
const SIDES: &[output::Column] = &[
    ("Gateway", "/gateway/accepted"),
    ("Allowed", "/gateway/allowed"),
    ("Agent", "/agent/accepted"),
    ("User", "/gateway/user"),
];

/// Tell what gateway and agent each make of a token, and why not
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which cluster, as whom, and how to get there. Without a cluster: who is signed in.
    #[command(flatten)]
    pub at: AccessArgs,
    /// Ask about the token in this file; - is standard input
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The right to come with a service-account token.
    #[command(flatten)]
    pub certificate: CertificateArgs,
    /// Print the answer as it came
    #[arg(long, conflicts_with_all = ["output", "query"])]
    pub json: bool,
    /// How the answer is printed.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Asks below the cluster's address. The exit code is 0 if both take the token.
pub async fn run(args: Args) -> Outcome {
    let cluster = &args.at.cluster;
    let named = [&cluster.name, &cluster.cluster, &cluster.server].iter().any(|option| option.is_some());
    if !named && cluster.state.is_none() {
        return account(&args).await;
    }
    let target = Target::new(&args.at).await?;
    let source = target.source(args.token_file.as_deref(), &args.at.user)?;
    let token = source.obtain().await?;
    let credentials = target.credentials(&args.certificate, &source, ACCESS_TTL).await?;
    let client = target.client(credentials.as_ref())?;
    let mut bearer = header::HeaderValue::try_from(format!("Bearer {}", token.secret.expose_secret()))
        .map_err(|_| anyhow!("the token has characters that no token has"))?;
    bearer.set_sensitive(true);
    let request = Request::get(format!("{}/{}/.towline/whoami", target.server.path, target.key.hex()))
        .header(header::AUTHORIZATION, bearer)
        .header(header::ACCEPT, "application/json")
        .body(Full::default())?;
    let (head, body) = client.request(request).await?.into_parts();
    let answer = read(head.status, &body)?;
    let accepted = ["gateway", "agent"].iter().all(|side| answer[side]["accepted"] == true)
        && answer["gateway"]["allowed"] != false;
    match args.output.query.is_none() && args.output.output == Format::Table {
        true => print(&if args.json { output::json_line(&answer) } else { text(&answer) })?,
        false => output::print(&answer, &args.output, SIDES)?,
    }
    Ok(ExitCode::from(if accepted { 0 } else { FAILED }))
}

/// Who is signed in, by the token that the gateway's API gets.
async fn account(args: &Args) -> Outcome {
    let context = Context::open(&args.at.cluster.context).await?;
    let token = context.api_token().await?;
    let account = context.account();
    let said = claims(token.secret.expose_secret()).unwrap_or_default();
    let value = json!({
        "account": account.name,
        "user": account.user,
        "objectId": match &account.signs_in {
            // As role assignments name them, which the gateway said.
            SignsIn::User { external: Some(_), .. } => Some(account.object_id.as_str()),
            _ => said["oid"].as_str().or(said["sub"].as_str()),
        },
        "groups": said["groups"],
        "gateway": account.gateway,
        "tenantId": account.tenant,
        "subscriptionId": context.subscription().ok().map(|id| id.name().to_owned()),
        "tokenExpires": token.expires.map(rfc3339_seconds),
    });
    let columns: &[output::Column] = &[
        ("Account", "/account"),
        ("User", "/user"),
        ("ObjectId", "/objectId"),
        ("Groups", "/groups"),
        ("Gateway", "/gateway"),
        ("Tenant", "/tenantId"),
        ("Subscription", "/subscriptionId"),
        ("TokenExpires", "/tokenExpires"),
    ];
    let json = OutputArgs { output: Format::Json, query: None };
    output::print(&value, if args.json { &json } else { &args.output }, columns)?;
    Ok(ExitCode::SUCCESS)
}

fn read(status: StatusCode, body: &[u8]) -> anyhow::Result<Value> {
    let answer: Value =
        serde_json::from_slice(body).with_context(|| format!("the gateway answered {status}, no JSON"))?;
    if answer.get("gateway").is_none() {
        let message = answer["message"].as_str().unwrap_or("no reason given");
        bail!("the gateway answered {status}: {message}");
    }
    Ok(answer)
}

/// For people: one paragraph for each side.
fn text(answer: &Value) -> String {
    let mut lines = Vec::new();
    for side in ["gateway", "agent"] {
        let Some(said) = answer.get(side).filter(|said| said.is_object()) else {
            lines.push(format!("{side}: did not say"));
            continue;
        };
        let verdict = match (said["accepted"].as_bool(), said["allowed"].as_bool()) {
            (Some(true), Some(false)) => "accepts the token, and lets its user not reach this cluster",
            (Some(true), _) => "accepts the token",
            (Some(false), _) => "refuses the token",
            (None, _) => "does not know",
        };
        lines.push(format!("{side}: {verdict}"));
        for (key, value) in said.as_object().into_iter().flatten() {
            match value {
                Value::Null => {}
                Value::Bool(_) if key == "accepted" || key == "allowed" => {}
                Value::Array(list) if list.is_empty() => {}
                Value::Object(map) if map.is_empty() => {}
                Value::String(text) => lines.push(format!("  {key}: {text}")),
                other => lines.push(format!("  {key}: {other}")),
            }
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_are_told() {
        let answer = json!({
            "gateway": {"accepted": true, "user": "ann", "groups": ["a", "b"], "why": null},
            "agent": {"accepted": false, "why": "expired"},
        });
        assert_eq!(
            text(&answer),
            "gateway: accepts the token\n  groups: [\"a\",\"b\"]\n  user: ann\nagent: refuses the token\n  why: expired"
        );
        let denied = text(&json!({"gateway": {"accepted": true, "allowed": false}}));
        assert!(denied.contains("not reach this cluster"), "{denied}");
        assert!(text(&json!({"gateway": {}})).contains("agent: did not say"));
    }

    #[test]
    fn a_status_is_an_error_with_its_message() {
        let error = read(StatusCode::SERVICE_UNAVAILABLE, br#"{"kind":"Status","message":"no agent"}"#).unwrap_err();
        assert!(error.to_string().contains("no agent"), "{error}");
    }
}
