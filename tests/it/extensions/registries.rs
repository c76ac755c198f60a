//! Charts and images from a registry of the cluster's own (docs/features.md X5): a real one, Debian's `docker-registry`,
//! with TLS of an authority of its own and a password. The gateway has the index and not one chart.

use std::fs;

use tests::registry::Registry;

use super::*;

/// The images of a chart are at no registry that can be reached; the node has them as those of `towline.test`.
const ELSEWHERE: &str = "greeting: hello\ncount: 1\npassword: none\nimage: registry.invalid/busybox:1\n";
const GREETS: &str = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: \"{{ .Release.Name }}-greets\", annotations: {helm.sh/hook: pre-install}}\n\
    spec:\n  backoffLimit: 0\n  template:\n    spec:\n      restartPolicy: Never\n      terminationGracePeriodSeconds: 0\n\
    \x20     initContainers: [{name: first, image: 'registry.invalid/busybox:1', imagePullPolicy: IfNotPresent, command: [\"true\"]}]\n\
    \x20     containers: [{name: hook, image: \"registry.invalid/busybox:1\", imagePullPolicy: IfNotPresent, command: [\"true\"]}]\n";
const FILES: &[(&str, &str)] = &[
    ("values.yaml", ELSEWHERE),
    ("templates/settings.yaml", CONFIG_MAP),
    ("templates/pod.yaml", POD),
    ("templates/greets.yaml", GREETS),
];
const SECRET: &str = "extensions-test-registry";

pub(super) fn own_registry() -> anyhow::Result<()> {
    let folder = scratch("extensions-registry");
    let registry = Registry::start_at("127.0.0.1", &folder)?;
    let catalogue = Catalogue::new("extensions-registry-catalogue")?;
    catalogue.add(&web("1.0.0", FILES), &[])?;
    catalogue.add(&web("1.1.0", FILES), &[])?;
    catalogue.sign()?;
    let (first, second) = (catalogue.path("web-1.0.0.tgz"), catalogue.path("web-1.1.0.tgz"));
    for entry in fs::read_dir(catalogue.path("catalogue/charts"))? {
        fs::remove_file(entry?.path())?;
    }
    let helm = cluster().get("CLUSTER_HELM");
    registry.push_chart(helm, &first, "charts")?;
    cluster().admin().ok(&["delete", "secret", SECRET, "--ignore-not-found"])?;
    let settings = [
        format!("extensions.chart_registry=\"{}\"", registry.url("charts")),
        format!("extensions.registry_secret=\"{SECRET}\""),
        "extensions.local_registry=\"towline.test\"".to_owned(),
    ];
    let site = Site::start_within("extensions-registry", catalogue, TIMEOUT, &settings)?;
    let failed = |code: &str, parts: &[&str]| -> anyhow::Result<()> {
        let shown = site.await_state("web", "Failed")?;
        let message = shown["errorInfo"]["message"].as_str().unwrap_or_default();
        ensure!(shown["errorInfo"]["code"] == code, "{shown:#}");
        for part in parts {
            ensure!(message.contains(part), "{part} in {message}");
        }
        Ok(())
    };
    // Without what signs in, and with what the registry does not take.
    site.put("web", &json!({"extensionType": "example.web", "version": "1.0.0"}))?;
    failed("RegistrySecretMissing", &[SECRET, "kubectl create secret docker-registry"])?;
    let wrong = registry.docker_config().to_string().replace(&registry.address.to_string(), "other.test");
    let secret = |config: &str| -> anyhow::Result<()> {
        let data = json!({".dockerconfigjson": config, "ca.crt": registry.ca});
        let kind = "kubernetes.io/dockerconfigjson";
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": {"name": SECRET}, "stringData": data});
        site.admin.apply(&secret.to_string()).map(drop)
    };
    secret(&wrong)?;
    site.put(
        "web",
        &json!({"extensionType": "example.web", "version": "1.0.0", "configurationSettings": {"count": "2"}}),
    )?;
    failed("ChartNotFetched", &["web 1.0.0", &registry.url("charts/web"), "What to do"])?;
    secret(&registry.docker_config().to_string())?;
    site.put("web", &json!({"extensionType": "example.web", "version": "1.0.0"}))?;
    site.await_state("web", "Succeeded")?;
    let image = |of: &str| site.field("web", of, "{.spec.template.spec.containers[0].image}");
    ensure!(image("deployment/web")? == "towline.test/busybox:1", "{}", image("deployment/web")?);
    let ready = site.field("web", "deployment/web", "{.status.readyReplicas}")?;
    ensure!(ready == "1", "the pod runs: {ready}");
    let hook = site.field("web", "job/web-greets", "{.spec.template.spec..image}")?;
    ensure!(hook == "towline.test/busybox:1 towline.test/busybox:1", "{hook}");
    ensure!(site.field("web", "configmap/web-settings", "{.data.greeting}")? == "hello", "the rest is the chart's");

    // A version that is not there, then one that is another chart than the signed one.
    site.put("web", &json!({"extensionType": "example.web", "version": "1.1.0"}))?;
    failed("ChartNotFetched", &["web 1.1.0", "helm push charts/web-1.1.0.tgz"])?;
    let forged = folder.join("forged");
    fs::create_dir_all(forged.join("templates"))?;
    fs::write(forged.join("Chart.yaml"), "apiVersion: v2\nname: web\nversion: 1.1.0\n")?;
    fs::write(forged.join("templates/role.yaml"), CLUSTER_ROLE)?;
    let mut pack = std::process::Command::new(helm);
    pack.args(["package", &forged.display().to_string(), "--destination", &folder.display().to_string()]);
    run(&mut pack, Duration::from_secs(60))?.ok()?;
    registry.push_chart(helm, &folder.join("web-1.1.0.tgz").display().to_string(), "charts")?;
    site.put(
        "web",
        &json!({"extensionType": "example.web", "version": "1.1.0", "configurationSettings": {"count": "3"}}),
    )?;
    failed("ChartNotFetched", &["web 1.1.0", "in the signed catalogue"])?;
    ensure!(site.field("", "clusterrole/web-all", "{.metadata.name}")?.is_empty(), "what nobody signed is not there");
    registry.push_chart(helm, &second, "charts")?;
    site.put("web", &json!({"extensionType": "example.web", "version": "1.1.0"}))?;
    site.await_state("web", "Succeeded")?;
    ensure!(site.field("web", "configmap/web-settings", "{.data.version}")? == "1.1.0");
    let work = site.catalogue.dir.join("towline-extensions");
    ensure!(!work.join("pulled").exists(), "what signs in is not left behind");
    site.delete("web")?;
    site.admin.ok(&["delete", "secret", SECRET])?;
    site.nothing_left()
}
