//! A Flux that somebody else installed is used where its version fits, and never touched (docs/features.md G2).

use std::{process::Command, time::Duration};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use tests::{
    case::{Needs, installs},
    cluster::cluster,
    programs::{eventually, run},
};

use crate::{
    connect::{GROUP, pods},
    gitops::{FIRST, Gitops, SHOP, SOON, chart, clean, config_map},
};

pub fn tests() -> Vec<Trial> {
    vec![installs(
        "gitops_foreign::g2_flux_of_somebody_else_is_used_and_not_touched_and_one_too_old_is_refused",
        Needs::Pods,
        foreign,
    )]
}

/// What another tool has installed: the controllers of the chart without the agents, and no mark of helm or of the chart.
fn manifests() -> anyhow::Result<Vec<String>> {
    let chart = chart()?.display().to_string();
    let mut helm = Command::new(cluster().get("CLUSTER_HELM"));
    helm.args(["template", "flux", &chart, "--namespace", "flux-system", "--set"]);
    helm.arg("global.towline.namespace=towline,global.towline.agentImage=none,source-controller.advertise=address");
    let rendered = run(&mut helm, Duration::from_secs(60))?.ok()?;
    let documents = rendered.split("\n---\n").filter(|text| text.contains("kind: "));
    let theirs = documents.filter(|text| !text.contains("fluxconfig-agent") && !text.contains("flux-logs-agent"));
    let mark = |line: &&str| !line.contains("towline.io/chart") && !line.contains("helm.sh/");
    let plain = theirs.map(|text| text.lines().filter(mark).collect::<Vec<_>>().join("\n"));
    let plain: Vec<_> = plain.map(|text| text.replace("managed-by: Helm", "managed-by: somebody-else")).collect();
    ensure!(plain.len() > 10, "{} objects of Flux", plain.len());
    Ok(plain)
}

/// Kind, name, identity, generation, labels and annotations of everything that they have installed.
fn theirs(gitops: &Gitops) -> anyhow::Result<Vec<String>> {
    let kinds = "customresourcedefinitions,clusterroles,clusterrolebindings,deployments,services,serviceaccounts,roles,rolebindings,networkpolicies";
    let listed: Value = serde_json::from_str(&gitops.admin.ok(&[
        "get",
        kinds,
        "-A",
        "-l",
        "app.kubernetes.io/managed-by=somebody-else",
        "-o",
        "json",
    ])?)?;
    let definitions = gitops.admin.ok(&["get", "customresourcedefinitions", "-o", "json"])?;
    let definitions: Value = serde_json::from_str(&definitions)?;
    let is_of_flux =
        |one: &&Value| one["spec"]["group"].as_str().is_some_and(|group| group.ends_with("toolkit.fluxcd.io"));
    let all = listed["items"].as_array().into_iter().flatten();
    let all = all.chain(definitions["items"].as_array().into_iter().flatten().filter(is_of_flux));
    let mut all: Vec<_> = all
        .map(|one| {
            let meta = &one["metadata"];
            let mut annotations = meta["annotations"].clone();
            // The controller of Deployments counts there how often it has rolled out.
            if let Some(annotations) = annotations.as_object_mut() {
                annotations.remove("deployment.kubernetes.io/revision");
            }
            format!(
                "{} {} {} {} {} {annotations}",
                one["kind"], meta["name"], meta["uid"], meta["generation"], meta["labels"]
            )
        })
        .collect();
    all.sort_unstable();
    ensure!(all.len() > 10, "{all:#?}");
    Ok(all)
}

fn foreign() -> anyhow::Result<()> {
    let gitops = Gitops::start("gitops-foreign", &[])?;
    let admin = &gitops.admin;
    admin.ok(&["create", "namespace", "flux-system"])?;
    let documents = manifests()?;
    // Definitions are too long for the annotation that an apply from the client writes.
    let all = documents.join("\n---\n");
    admin.run_with(&["apply", "--server-side", "-f", "-"], all.as_bytes())?.ok()?;
    admin
        .ok(&["-n", "flux-system", "rollout", "status", "deployment", "--timeout=120s"])
        .with_context(|| gitops.state())?;
    let before = theirs(&gitops)?;

    let repository = gitops.server.repository("shop")?;
    let commit = repository.push(&[
        ("apps/namespace.yaml", Some(SHOP)),
        ("apps/web.yaml", Some(&config_map("web", "hello"))),
        ("other/db.yaml", Some(&config_map("db", "one"))),
    ])?;
    gitops.put("shop", &gitops.properties(&repository))?;
    gitops.await_compliant("shop", &commit, FIRST)?;
    gitops.await_field("configmap/web", "hello", SOON)?;
    let used = || anyhow::Ok(theirs(&gitops)? == before);
    ensure!(used()?, "Flux was changed: {before:#?} {:#?}", theirs(&gitops)?);
    let deployments = admin.ok(&["-n", "flux-system", "get", "deployments", "-o", "name"])?;
    ensure!(deployments.lines().count() == 2, "{deployments}");
    gitops.delete("shop")?;
    let end = ["extension", "delete", "-g", GROUP, "-c", "c1", "-n", "flux", "--yes"];
    gitops.site.ok(&end).with_context(pods)?;
    ensure!(used()?, "Flux was changed with the extension: {before:#?} {:#?}", theirs(&gitops)?);

    // One that does not know the version of the API that the agent writes.
    let old = r#"[{"op": "replace", "path": "/spec/versions/0/served", "value": false}]"#;
    let name = "gitrepositories.source.toolkit.fluxcd.io";
    let first = admin.ok(&["get", "customresourcedefinition", name, "-o", "jsonpath={.spec.versions[0].name}"])?;
    ensure!(first == "v1", "{first} is the first version of {name}");
    admin.ok(&["patch", "customresourcedefinition", name, "--type=json", "-p", old])?;
    let before = theirs(&gitops)?;
    let create = ["extension", "create", "-g", GROUP, "-c", "c1", "-n", "flux", "--type", "microsoft.flux"];
    let refused = gitops.site.run(&create)?;
    ensure!(refused.code != Some(0) && refused.err.contains("is too old"), "{refused:?}");
    ensure!(theirs(&gitops)? == before, "a Flux that is too old was changed");
    gitops.site.ok(&end).with_context(pods)?;

    admin.run_with(&["delete", "--wait=false", "--ignore-not-found", "-f", "-"], all.as_bytes())?.ok()?;
    eventually("the Flux of somebody else is gone", SOON, || {
        Ok(admin.run(&["-n", "flux-system", "get", "deployments", "-o", "name"])?.text().trim().is_empty())
    })?;
    gitops.site.ok(&["delete", "-n", "c1", "-g", GROUP, "-y"])?;
    clean(admin)
}
