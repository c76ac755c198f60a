//! Guard, where it is on: whether its pods answer, how long its certificates hold, and whether the apiserver asks it
//! (docs/guard.md).

use std::time::{Duration, SystemTime};

use agent::roles::guard::{
    access::NO_OPINION,
    answer::{ACCESS, TOKENS},
    keeper::{MANIFESTS, MANIFESTS_NAMESPACE, SECRET as CERTIFICATES},
};
use auth::token::TokenError;
use base64::{
    Engine,
    engine::general_purpose::{STANDARD as BASE64, URL_SAFE_NO_PAD},
};
use certs::webhook::{Kept, Webhook};
use serde_json::{Value, json};
use types::instants::{rfc3339_seconds, unix_seconds};

use super::{Finding, State};
use crate::{
    kubernetes::{
        Kubernetes, Place,
        place::{CONFIG_MAP, DEPLOYMENT, SECRET},
        pods::short,
        rights::Opinions,
    },
    manifests::{CONFIG_FILE, GUARD},
};

/// A certificate that ends sooner is a failure: guard renews its own 45 days before, and warns of the apiserver's.
const AHEAD: Duration = Duration::from_secs(30 * 86_400);
const AGAIN: &str = "give the apiserver the files again and restart it: docs/guard.md, steps 2 and 3";

/// Its checks; none where it is off.
pub async fn run(cluster: &Kubernetes, namespace: &str, all: &mut Vec<Finding>) {
    if matches!(cluster.get(&Place::within(DEPLOYMENT, namespace, GUARD)).await, Ok(Some(_))) {
        all.push(pods(cluster, namespace).await);
        all.push(certificates(cluster, namespace).await);
        all.push(apiserver(cluster, namespace).await);
        all.push(tokens(cluster, namespace).await);
    }
}

/// A pod is ready by what it says itself.
async fn pods(cluster: &Kubernetes, namespace: &str) -> Finding {
    const NAME: &str = "guard_pods_check";
    let pods = match cluster.agents(namespace).await {
        Ok(pods) => pods,
        Err(error) => return Finding::untried(NAME, &error),
    };
    let own: Vec<_> = pods.iter().filter(|pod| pod.name.starts_with("guard-") && !pod.going).collect();
    let ready = own.iter().filter(|pod| pod.ready).count();
    if ready > 0 {
        return Finding::new(NAME, State::Passed, format!("{ready} of {} pods are ready", own.len()));
    }
    let states: Vec<String> = own.iter().map(|pod| format!("{}: {}", pod.name, pod.state)).collect();
    let said = if own.is_empty() { "guard has no pods".to_owned() } else { states.join("; ") };
    Finding::new(NAME, State::Failed, said)
        .remedy(
            "until a pod is ready no user of the gateway gets in straight at the apiserver; through the tunnel they do",
        )
        .remedy(format!(
            "kubectl -n {namespace} describe deployment {GUARD}; kubectl -n {namespace} logs deployment/{GUARD}"
        ))
}

async fn certificates(cluster: &Kubernetes, namespace: &str) -> Finding {
    const NAME: &str = "guard_certificate_check";
    let kept = match cluster.get(&Place::within(SECRET, namespace, CERTIFICATES)).await {
        Ok(kept) => kept.unwrap_or_default(),
        Err(error) => return Finding::untried(NAME, &error),
    };
    judge(NAME, &kept["data"], namespace, SystemTime::now())
}

fn judge(name: &'static str, data: &Value, namespace: &str, now: SystemTime) -> Finding {
    let text = |key: &str| {
        let bytes = data[key].as_str().and_then(|text| BASE64.decode(text).ok()).unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_default()
    };
    let kept = Kept {
        authorities: (text("ca.crt"), text("ca.key")),
        clients: (text("client.crt"), text("client.key")),
        server: (text("tls.crt"), text("tls.key")),
    };
    let see = format!("see why: kubectl -n {namespace} logs deployment/{GUARD}");
    let Some((client, server)) = Webhook::read(&kept).ends() else {
        let said = format!("there are no certificates in Secret {CERTIFICATES} yet");
        return Finding::new(name, State::Failed, said).remedy(see);
    };
    let spell = rfc3339_seconds;
    let said = format!("guard's own until {}, the apiserver's until {}", spell(server), spell(client));
    if server < now + AHEAD {
        return Finding::new(name, State::Failed, said).remedy(see);
    }
    if client < now + AHEAD {
        return Finding::new(name, State::Failed, said).remedy(AGAIN);
    }
    Finding::new(name, State::Passed, said)
}

/// The apiserver that the kubeconfig names, by what its authorizers say of a user who is nobody. It remembers answers,
/// so that each question is about another one.
async fn apiserver(cluster: &Kubernetes, namespace: &str) -> Finding {
    const NAME: &str = "guard_apiserver_check";
    let user = format!("towline-troubleshoot-{}", unix_seconds(SystemTime::now()));
    match cluster.opinions_of(&user).await {
        Ok(opinions) => judge_opinions(NAME, &opinions, &cluster.server, namespace),
        Err(error) => Finding::new(NAME, State::Incomplete, format!("{}: {error}", cluster.server))
            .remedy("the right to create subjectaccessreviews.authorization.k8s.io is needed for this check"),
    }
}

/// The same of tokens: one of the first issuer that guard knows, which nobody has signed.
async fn tokens(cluster: &Kubernetes, namespace: &str) -> Finding {
    const NAME: &str = "guard_token_check";
    let place = Place::within(CONFIG_MAP, namespace, GUARD);
    let issuer = match cluster.get(&place).await {
        Ok(map) => first_issuer(map.unwrap_or_default()["data"][CONFIG_FILE].as_str().unwrap_or_default()),
        Err(error) => return Finding::new(NAME, State::Incomplete, format!("read {place}: {error}")),
    };
    let Some(issuer) = issuer else {
        return Finding::new(NAME, State::Incomplete, format!("{place} names no issuer"))
            .remedy("towline connect again writes it");
    };
    match cluster.refusal_of(&unsigned(&issuer, SystemTime::now())).await {
        Ok(refusal) => judge_refusal(NAME, &refusal, &cluster.server, namespace),
        Err(error) => Finding::new(NAME, State::Incomplete, format!("{}: {error}", cluster.server))
            .remedy("the right to create tokenreviews.authentication.k8s.io is needed for this check"),
    }
}

fn first_issuer(config: &str) -> Option<String> {
    let config: toml::Table = config.parse().ok()?;
    Some(config.get("issuers")?.as_array()?.first()?.get("url")?.as_str()?.to_owned())
}

/// A token that guard refuses for its algorithm, whatever keys it knows: another one each second, for apiservers remember
/// what came of a token.
fn unsigned(issuer: &str, now: SystemTime) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let claims = json!({"iss": issuer, "sub": "towline-troubleshoot", "exp": unix_seconds(now)});
    format!("{}.{}.AA", part(&json!({"alg": "none"})), part(&claims))
}

fn judge_refusal(name: &'static str, refusal: &str, server: &str, namespace: &str) -> Finding {
    if refusal.contains(&TokenError::Algorithm("none").to_string()) {
        return Finding::new(name, State::Passed, format!("{server} asks guard about tokens, and guard answers"));
    }
    if refusal.contains(TOKENS) {
        return Finding::new(name, State::Failed, format!("{server} asks guard about tokens and gets no answer: {}", short(refusal)))
            .remedy(format!("if its pods are ready: does this apiserver reach Service {GUARD} in {namespace}? docs/guard.md tells of apiservers without kube-proxy"))
            .remedy(format!("if the certificate is refused: {AGAIN}"));
    }
    let other = if refusal.is_empty() { String::new() } else { format!(": {}", short(refusal)) };
    Finding::new(name, State::Failed, format!("{server} does not ask guard about tokens{other}")).remedy(format!(
        "start this apiserver with the files of Secret {MANIFESTS} in {MANIFESTS_NAMESPACE} and the flags of docs/guard.md, or turn guard off: towline disable-features --features guard"
    ))
}

fn judge_opinions(name: &'static str, opinions: &Opinions, server: &str, namespace: &str) -> Finding {
    if opinions.reason.contains(NO_OPINION) {
        return Finding::new(name, State::Passed, format!("{server} asks guard about rights, and guard answers"));
    }
    if opinions.error.contains(ACCESS) {
        return Finding::new(name, State::Failed, format!("{server} asks guard and gets no answer: {}", short(&opinions.error)))
            .remedy(format!("if its pods are ready: does this apiserver reach Service {GUARD} in {namespace}? docs/guard.md tells of apiservers without kube-proxy"))
            .remedy(format!("if the certificate is refused: {AGAIN}"));
    }
    let other = if opinions.error.is_empty() { String::new() } else { format!(": {}", short(&opinions.error)) };
    Finding::new(name, State::Failed, format!("{server} does not ask guard about rights{other}")).remedy(format!(
        "start this apiserver with the files of Secret {MANIFESTS} in {MANIFESTS_NAMESPACE} and the flags of docs/guard.md, or turn guard off: towline disable-features --features guard"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn z10_certificates_that_end_soon_or_are_missing_do_not_pass() {
        let now = SystemTime::now();
        let mut made = Webhook::default();
        made.renew("apiserver", &["guard"], now).unwrap();
        let kept = made.kept();
        let encode = |text: &str| BASE64.encode(text);
        let data = json!({
            "ca.crt": encode(&kept.authorities.0), "ca.key": encode(&kept.authorities.1),
            "client.crt": encode(&kept.clients.0), "client.key": encode(&kept.clients.1),
            "tls.crt": encode(&kept.server.0), "tls.key": encode(&kept.server.1),
        });
        let day = |days: u64| now + Duration::from_secs(days * 86_400);
        assert_eq!(judge("c", &data, "towline", now).state, State::Passed);
        assert_eq!(judge("c", &data, "towline", day(59)).state, State::Passed);
        let late = judge("c", &data, "towline", day(61));
        assert!(
            late.state == State::Failed && late.remedies[0].contains("logs deployment/guard"),
            "{:?}",
            late.remedies
        );
        for broken in [json!(null), json!({}), json!({"tls.crt": "%%%"})] {
            assert_eq!(judge("c", &broken, "towline", now).state, State::Failed, "{broken}");
        }
    }

    #[test]
    fn z1_what_becomes_of_a_token_that_nobody_signed_tells_whether_guard_is_asked() {
        let judged = |refusal: &str| {
            let finding = judge_refusal("t", refusal, "https://10.0.0.10:6443", "towline");
            (finding.state, finding.detail)
        };
        let told = format!("[invalid bearer token, {}]", TokenError::Algorithm("none"));
        assert_eq!(judged(&told).0, State::Passed);
        let (state, detail) = judged(
            r#"[invalid bearer token, Post "https://10.96.0.20:443/tokenreviews?timeout=30s": connection refused]"#,
        );
        assert!(state == State::Failed && detail.contains("no answer"), "{detail}");
        for other in ["", "invalid bearer token"] {
            let (state, detail) = judged(other);
            assert!(state == State::Failed && detail.contains("does not ask"), "{detail}");
        }
        let config =
            "roles = \"guard\"\n[[issuers]]\nname = \"a\"\nurl = \"https://a/i\"\n[[issuers]]\nurl = \"https://b\"\n";
        assert_eq!(first_issuer(config).as_deref(), Some("https://a/i"));
        assert!(first_issuer("x").is_none() && first_issuer("").is_none());
        assert_eq!(unsigned("https://a", SystemTime::UNIX_EPOCH).split('.').count(), 3);
    }

    #[test]
    fn z1_what_the_authorizers_say_tells_whether_guard_is_asked() {
        let judged = |reason: &str, error: &str| {
            let opinions = Opinions { reason: reason.to_owned(), error: error.to_owned() };
            let finding = judge_opinions("a", &opinions, "https://10.0.0.10:6443", "towline");
            (finding.state, finding.detail, finding.remedies.join("; "))
        };
        assert_eq!(judged(NO_OPINION, "").0, State::Passed);
        let (state, detail, remedies) = judged(
            "",
            r#"Post "https://10.96.0.20:443/subjectaccessreviews?timeout=30s": dial tcp 10.96.0.20:443: connect: connection refused"#,
        );
        assert!(
            state == State::Failed && detail.contains("gets no answer") && remedies.contains("reach Service guard")
        );
        let (state, detail, remedies) = judged("", "");
        assert!(state == State::Failed && detail.contains("does not ask") && remedies.contains("docs/guard.md"));
        let (_, detail, _) = judged("", "role \"x\" not found");
        assert!(
            detail.contains("does not ask") && detail.contains("not found"),
            "what else is wrong is told: {detail}"
        );
    }
}
