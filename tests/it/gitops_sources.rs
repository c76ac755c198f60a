//! Sources other than Git, charts, and objects of two configurations, with real servers, Flux's own controllers and the
//! real agents (docs/features.md G1, G4, G6). One cluster serves for all of it, because an installation takes a minute.

use std::{process::Command, time::Duration};

use anyhow::{Context, ensure};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    case::{Needs, full, installs},
    cluster::cluster,
    programs::{root, run_with_input, scratch},
    registry::{CREDENTIALS, Registry},
};

use crate::{
    clients::python_with_clients,
    gitops::{FIRST, Gitops, INTERVAL, SOON, kustomization},
};

pub fn tests() -> Vec<Trial> {
    vec![installs(
        "gitops_sources::g1_g4_g6_artifacts_charts_and_shared_objects_are_followed_and_read_by_the_azure_sdk",
        Needs::Pods,
        all,
    )]
}

fn all() -> anyhow::Result<()> {
    let gitops = Gitops::start("gitops-sources", &[])?;
    let registry = Registry::start_at(cluster().get("CLUSTER_HOST_IP"), &scratch("gitops-registry"))?;
    gitops.admin.apply(HELM_RELEASES)?;
    gitops.admin.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: gitops}\n")?;
    g4_artifact_of_a_registry_is_followed_by_digest(&gitops, &registry)?;
    // More of the same source, and a second look at each of two configurations: the long run.
    let mut made = vec!["artifact", "charts"];
    if full() {
        g4_ranges_of_versions_and_passwords_are_followed(&gitops, &registry)?;
        g6_object_of_two_configurations_is_said_on_both(&gitops, &registry)?;
        made.push("twin");
    }
    let commit = g6_chart_is_shown_as_its_controller_says(&gitops)?;
    sdk(&gitops, &commit, &made)?;
    for name in made {
        gitops.delete(name)?;
    }
    gitops.end()
}

/// A ConfigMap of the namespace of the configurations.
fn map(name: &str, greeting: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: gitops}}\ndata: {{greeting: {greeting}}}\n"
    )
}

/// Gives the cluster what pulls from the registry, with this password.
fn pull_secret(gitops: &Gitops, registry: &Registry, password: &str) -> anyhow::Result<()> {
    let config = registry.docker_config().to_string();
    let (user, right) = CREDENTIALS;
    let config = config
        .replace(right, password)
        .replace(&BASE64.encode(format!("{user}:{right}")), &BASE64.encode(format!("{user}:{password}")));
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
        "metadata": {"name": "pull", "namespace": "gitops"}, "data": {".dockerconfigjson": BASE64.encode(config)},
    });
    gitops.admin.apply(&secret.to_string()).map(drop)
}

fn artifact(registry: &Registry, reference: &Value) -> Value {
    json!({
        "scope": "cluster", "namespace": "gitops", "sourceKind": "OCIRepository",
        "ociRepository": {
            "url": registry.url("team/fleet"), "repositoryRef": reference, "localAuthRef": "pull",
            "syncIntervalInSeconds": INTERVAL, "timeoutInSeconds": 60,
            "tlsConfig": {"caCertificate": BASE64.encode(&registry.ca)},
        },
        "kustomizations": {"apps": kustomization("apps")},
    })
}

/// Makes an artifact whose only object greets with this word.
fn push(registry: &Registry, tag: &str, greeting: &str) -> anyhow::Result<String> {
    registry.push("team/fleet", tag, &[("apps/web.yaml", &map("web", greeting))])
}

/// Whether the cluster has the object with this word.
fn greets(gitops: &Gitops, greeting: &str) -> anyhow::Result<bool> {
    Ok(gitops.field("gitops", "configmap/web", "{.data.greeting}")? == greeting)
}

fn g4_artifact_of_a_registry_is_followed_by_digest(gitops: &Gitops, registry: &Registry) -> anyhow::Result<()> {
    ensure!(registry.status_without_credentials("team/fleet")? == "401");
    pull_secret(gitops, registry, CREDENTIALS.1)?;
    let first = push(registry, "stable", "one")?;
    let properties = artifact(registry, &json!({"tag": "stable"}));
    gitops.put("artifact", &properties)?;
    let shown = gitops.await_compliant("artifact", &first, FIRST)?;
    ensure!(shown["sourceSyncedCommitId"] == format!("stable@{first}"), "{shown:#}");
    ensure!(greets(gitops, "one")? && !shown.to_string().contains(CREDENTIALS.1), "{shown:#}");
    // The tag is another artifact now.
    let second = push(registry, "stable", "two")?;
    gitops.await_compliant("artifact", &second, SOON)?;
    ensure!(greets(gitops, "two")?);

    // A layer that leaves its folder is not unpacked.
    let outside = catalogue::testing::archive(&[("../../tmp/outside.yaml", b"x: 1\n")]);
    registry.push_layer("team/fleet", "stable", &catalogue::testing::gzip(&outside))?;
    gitops.await_shown("artifact", "is not unpacked", SOON, |shown| {
        shown["complianceState"] == "Non-Compliant" && shown.to_string().contains("invalid name")
    })?;
    let right = push(registry, "stable", "three")?;
    gitops.await_compliant("artifact", &right, SOON).map(drop)
}

fn g4_ranges_of_versions_and_passwords_are_followed(gitops: &Gitops, registry: &Registry) -> anyhow::Result<()> {
    // A range of versions takes the newest one, and the next that comes.
    let version = push(registry, "1.2.0", "a range")?;
    gitops.put("artifact", &artifact(registry, &json!({"semver": ">=1.0.0 <2.0.0"})))?;
    gitops.await_compliant("artifact", &version, SOON)?;
    push(registry, "2.0.0", "of another major version")?;
    let next = push(registry, "1.3.0", "four")?;
    gitops.await_compliant("artifact", &next, SOON)?;
    ensure!(greets(gitops, "four")?);

    // Another password is refused, and said without the password.
    let wrong = "another-pass-word-of-tests";
    pull_secret(gitops, registry, wrong)?;
    let shown = gitops.await_shown("artifact", "is refused by the registry", SOON, |shown| {
        shown["complianceState"] == "Non-Compliant" && shown.to_string().to_lowercase().contains("unauthorized")
    })?;
    ensure!(!shown.to_string().contains(wrong), "{shown:#}");
    ensure!(greets(gitops, "four")?, "what was applied stays");
    pull_secret(gitops, registry, CREDENTIALS.1)?;
    gitops.await_compliant("artifact", &next, SOON).map(drop)
}

fn g6_object_of_two_configurations_is_said_on_both(gitops: &Gitops, registry: &Registry) -> anyhow::Result<()> {
    let repository = gitops.server.repository("twin")?;
    let commit = repository
        .push(&[("apps/web.yaml", Some(&map("web", "four"))), ("apps/own.yaml", Some(&map("own", "one")))])?;
    let digest = registry.push("team/fleet", "1.3.1", &[("apps/web.yaml", &map("web", "four"))])?;
    gitops.put("twin", &gitops.folders(&repository, ("cluster", "gitops"), &["apps"]))?;
    gitops.await_compliant("twin", &commit, SOON)?;
    gitops.await_compliant("artifact", &digest, SOON)?;
    for (name, other) in [("twin", "artifact"), ("artifact", "twin")] {
        let shown = gitops.await_shown(name, "tells of the other one", SOON, |shown| {
            let said = shown["errorMessage"].as_str().unwrap_or_default();
            said.contains("ConfigMap gitops/web") && said.contains(&format!("configuration {other}"))
        })?;
        let object = status(&shown, "ConfigMap", "web")?;
        ensure!(object["statusConditions"][0]["type"] == "Shared", "{object:#}");
    }
    // It is said no more once one of them leaves it.
    let alone = repository.push(&[("apps/web.yaml", None)])?;
    gitops.await_compliant("twin", &alone, SOON)?;
    for name in ["twin", "artifact"] {
        gitops.await_shown(name, "is alone", SOON, |shown| {
            !shown.to_string().contains("also applied by") && shown["complianceState"] == "Compliant"
        })?;
    }
    Ok(())
}

/// The part of helm-controller's definition that counts: the group, the version, and a status of its own. The controller
/// is not to be had as a Go module, so the test writes what it would say.
const HELM_RELEASES: &str = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: helmreleases.helm.toolkit.fluxcd.io}
spec:
  group: helm.toolkit.fluxcd.io
  scope: Namespaced
  names: {kind: HelmRelease, listKind: HelmReleaseList, plural: helmreleases, singular: helmrelease, shortNames: [hr]}
  versions:
  - name: v2
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
";

const HELM_RELEASE: &str = "apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: site, namespace: gitops}
spec: {interval: 1m, chart: {spec: {chart: site, sourceRef: {kind: HelmRepository, name: charts}}}}
";

fn g6_chart_is_shown_as_its_controller_says(gitops: &Gitops) -> anyhow::Result<String> {
    let repository = gitops.server.repository("charts")?;
    let commit =
        repository.push(&[("charts/site.yaml", Some(HELM_RELEASE)), ("maps/one.yaml", Some(&map("one", "hello")))])?;
    let mut properties = gitops.folders(&repository, ("cluster", "gitops"), &["charts", "maps"]);
    // Otherwise the kustomization itself waits for the chart.
    properties["kustomizations"]["charts"]["wait"] = false.into();
    gitops.put("charts", &properties)?;
    gitops.await_shown("charts", "has a chart", SOON, |shown| status(shown, "HelmRelease", "site").is_ok())?;
    let says = |ready: &str, reason: &str, message: &str, more: &Value| {
        let mut status = json!({
            "observedGeneration": 1,
            "conditions": [{
                "type": "Ready", "status": ready, "reason": reason, "message": message,
                "lastTransitionTime": "2026-11-27T10:00:00Z", "observedGeneration": 1,
            }],
            "helmChart": "gitops/gitops-site",
        });
        status.as_object_mut().context("an object")?.extend(more.as_object().cloned().unwrap_or_default());
        let patch = json!({ "status": status }).to_string();
        gitops.admin.ok(&[
            "-n",
            "gitops",
            "patch",
            "helmrelease",
            "site",
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ])
    };
    says(
        "False",
        "InstallFailed",
        "Helm install failed: no such image",
        &json!({"failures": 2, "installFailures": 1}),
    )?;
    let shown = gitops.await_shown("charts", "tells of a chart that fails", SOON, |shown| {
        shown["complianceState"] == "Non-Compliant" && shown["errorMessage"].to_string().contains("no such image")
    })?;
    let chart = status(&shown, "HelmRelease", "site")?;
    let expected = json!({"failureCount": 2, "installFailureCount": 1, "helmChartRef": {"namespace": "gitops", "name": "gitops-site"}});
    for (name, value) in expected.as_object().context("an object")? {
        ensure!(chart["helmReleaseProperties"][name] == *value, "{name}: {chart:#}");
    }
    says(
        "True",
        "InstallSucceeded",
        "Helm install succeeded",
        &json!({"failures": 0, "installFailures": 0, "upgradeFailures": 0, "history": [{"version": 3}, {"version": 2}]}),
    )?;
    let shown = gitops.await_compliant("charts", &commit, SOON)?;
    let chart = status(&shown, "HelmRelease", "site")?;
    ensure!(chart["helmReleaseProperties"]["lastRevisionApplied"] == 3, "{chart:#}");
    ensure!(chart["appliedBy"]["name"] == "charts-charts" && chart["complianceState"] == "Compliant", "{chart:#}");
    Ok(commit)
}

fn status(shown: &Value, kind: &str, name: &str) -> anyhow::Result<Value> {
    let mut all = shown["statuses"].as_array().into_iter().flatten();
    let found = all.find(|one| one["kind"] == kind && one["name"] == name);
    found.cloned().with_context(|| format!("no {kind} {name}: {shown:#}"))
}

/// The Azure SDK, unmodified, reads what a real agent told of the configuration `charts`, and lists all of them.
fn sdk(gitops: &Gitops, commit: &str, made: &[&str]) -> anyhow::Result<()> {
    let stack = &gitops.site.stack;
    let mut command = Command::new(python_with_clients()?);
    command.arg(root().join("tests/it/azure_flux_agent.py"));
    for key in ["url", "ca", "tenant", "subscription", "clientId"] {
        command.arg(stack.text(key));
    }
    command.args([crate::connect::GROUP, "c1", commit, &made.join(",")]);
    let secret = format!("{}\n", stack.text("clientSecret"));
    let text = run_with_input(&mut command, Some(secret.as_bytes()), Duration::from_secs(300))?.ok()?;
    ensure!(text.lines().filter(|line| line.starts_with("held: ")).count() == 4, "{text}");
    Ok(())
}
