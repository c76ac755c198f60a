//! What is told while a cluster makes a configuration so: how the extension `microsoft.flux` comes, which came with the
//! first configuration (docs/features.md G2), and what Flux's own objects say.

use serde_json::Value;

use super::{Configuration, message};
use crate::{
    api::{at, versions},
    commands::extension::{self, EXTENSIONS},
    terminal::{line, shortened},
};

/// The extension type of Flux.
const TYPE: &str = "microsoft.flux";
/// Kinds whose objects say how far a configuration is; what they apply is counted in their messages.
const TOLD: &[&str] = &[
    "GitRepository",
    "Bucket",
    "AzureBlob",
    "OCIRepository",
    "HelmRepository",
    "HelmChart",
    "HelmRelease",
    "Kustomization",
];
/// Characters of a message at most.
const MESSAGE: usize = 400;

/// What there is to tell now, oldest first; `None` where the gateway does not answer.
pub async fn lines(open: &Configuration) -> Option<Vec<String>> {
    let shown = open.api.get(&open.target).await.ok()?;
    let mut told = of_extension(open).await;
    told.extend(of_configuration(&shown));
    Some(told)
}

/// How Flux is being installed; nothing once it is there, or where it may not be seen.
async fn of_extension(open: &Configuration) -> Vec<String> {
    let target = at(format!("{}/providers/{EXTENSIONS}", open.cluster), versions::EXTENSIONS);
    let all = open.api.list(&target).await.unwrap_or_default();
    let is_flux =
        |one: &&Value| one["properties"]["extensionType"].as_str().is_some_and(|kind| kind.eq_ignore_ascii_case(TYPE));
    let Some(flux) = all.iter().find(is_flux) else { return Vec::new() };
    let (name, state) = (text(&flux["name"]), text(&flux["properties"]["provisioningState"]));
    if state == "Succeeded" {
        return Vec::new();
    }
    let first = format!("extension {name} ({TYPE}): {state}");
    std::iter::once(first)
        .chain(extension::lines(flux).into_iter().map(|line| format!("extension {name}: {line}")))
        .collect()
}

/// What Flux's objects say of the configuration, and what comes of them together.
pub fn of_configuration(shown: &Value) -> Vec<String> {
    let properties = &shown["properties"];
    let statuses = properties["statuses"].as_array().into_iter().flatten();
    let told = statuses.filter(|status| status["kind"].as_str().is_some_and(|kind| TOLD.contains(&kind)));
    let mut lines: Vec<String> = told
        .map(|status| {
            let message = message(status);
            let gap = if message.is_empty() { "" } else { ": " };
            format!(
                "{} {}/{}: {}{gap}{}",
                text(&status["kind"]),
                text(&status["namespace"]),
                text(&status["name"]),
                text(&status["complianceState"]),
                shortened(&message, MESSAGE)
            )
        })
        .collect();
    if let Some(state) = properties["complianceState"].as_str() {
        let commit = properties["sourceSyncedCommitId"].as_str().map(|id| format!(" at {}", line(id)));
        lines.push(format!("{}{}", line(state), commit.unwrap_or_default()));
    }
    lines
}

fn text(value: &Value) -> String {
    line(value.as_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn g6_objects_of_flux_are_told_and_what_they_apply_is_not() {
        let condition = |kind: &str, message: &str| json!({"type": kind, "status": "False", "message": message});
        let shown = json!({"properties": {
            "complianceState": "Non-Compliant",
            "sourceSyncedCommitId": "main@sha1:0f",
            "statuses": [
                {"kind": "GitRepository", "namespace": "apps", "name": "fleet", "complianceState": "Compliant"},
                {"kind": "Kustomization", "namespace": "apps", "name": "fleet-web", "complianceState": "Non-Compliant",
                 "statusConditions": [condition("Healthy", "x"), condition("Ready", "bad\u{1b}[31m yaml")]},
                {"kind": "Deployment", "namespace": "apps", "name": "web", "complianceState": "Compliant"},
            ],
        }});
        let expected = [
            "GitRepository apps/fleet: Compliant",
            "Kustomization apps/fleet-web: Non-Compliant: bad\u{fffd}[31m yaml",
            "Non-Compliant at main@sha1:0f",
        ];
        assert_eq!(of_configuration(&shown), expected);
        assert!(of_configuration(&json!({"properties": {}})).is_empty());
    }
}
