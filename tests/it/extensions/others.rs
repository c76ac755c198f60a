//! Charts that others wrote and publish within Go modules: installed, upgraded and removed as extensions (docs/features.md
//! E1). Their images are not there, so their Deployments have no replicas; all their other objects are made.

use std::{collections::BTreeSet, process::Command};

use super::*;

/// A chart in two versions of a Go module.
struct Published {
    name: &'static str,
    module: &'static str,
    /// In the module.
    folder: &'static str,
    /// The versions of the module without `v`, which are those of the packed chart, each with the hash of its content.
    versions: [(&'static str, &'static str); 2],
    /// Settings that leave out what would need images.
    settings: &'static [(&'static str, &'static str)],
    /// An object of each version, and a path in it that differs.
    shown: (&'static str, &'static str),
}

const ALL: [Published; 3] = [
    Published {
        name: "metrics-server",
        module: "sigs.k8s.io/metrics-server",
        folder: "charts/metrics-server",
        versions: [
            ("0.7.2", "h1:0t1FhxdEHKHF/SduSRdkNHIYb24TpHqew2B/64GzOq8="),
            ("0.8.0", "h1:Zlsi3sBWEtFKCD3+xSysThvXyLQ363rUAlqpnsY5JwI="),
        ],
        settings: &[("replicas", "0"), ("apiService.create", "false")],
        shown: ("deployment/metrics-server", "0"),
    },
    Published {
        name: "node-feature-discovery",
        module: "sigs.k8s.io/node-feature-discovery",
        folder: "deployment/helm/node-feature-discovery",
        versions: [
            ("0.18.2", "h1:n9HJNr4IXiL65nPOHp1LBz9luKh1S6lPvoASpuPdWos="),
            ("0.18.3", "h1:q5/qpyxrasI/F6838lflFNGAUszpMNRuFwornPLYdxQ="),
        ],
        settings: &[
            ("master.replicaCount", "0"),
            ("worker.enable", "false"),
            ("gc.enable", "false"),
            // A Job with an image.
            ("postDeleteCleanup", "false"),
        ],
        shown: ("deployment/node-feature-discovery-master", "0"),
    },
    Published {
        name: "jobset",
        module: "sigs.k8s.io/jobset",
        folder: "charts/jobset",
        versions: [
            ("0.8.0", "h1:80cJcPld+IMdKFOqzEW4et3Y6lGAPcP8YmBZ+aiKGYA="),
            ("0.8.1", "h1:FwosQQyjmYgOKy8sD3ERpfil1BDLNpYUOJdIqmZSz3s="),
        ],
        settings: &[("controller.replicas", "0")],
        shown: ("deployment/jobset-controller", "0"),
    },
];

/// The folder of a module, as Go's proxy has it; its content is that of the hash.
fn module(name: &str, version: &str, sum: &str, dir: &std::path::Path) -> anyhow::Result<String> {
    let mut go = Command::new("go");
    go.args(["mod", "download", "-json", &format!("{name}@v{version}")])
        .current_dir(dir)
        .env("GONOSUMDB", "sigs.k8s.io");
    let told: Value = serde_json::from_str(&run(&mut go, Duration::from_secs(120))?.ok()?)?;
    ensure!(told["Sum"] == sum, "{name} {version} is another one: {told}");
    told["Dir"].as_str().map(str::to_owned).with_context(|| format!("{told}"))
}

impl Catalogue {
    fn add_published(&self, chart: &Published, at: usize) -> anyhow::Result<()> {
        let (version, sum) = chart.versions[at];
        let folder = format!("{}/{}", module(chart.module, version, sum, &self.dir)?, chart.folder);
        let mut pack = Command::new(cluster().get("CLUSTER_HELM"));
        let to = self.dir.display().to_string();
        pack.args(["package", &folder, "--version", version, "--app-version", version, "--destination", &to]);
        run(&mut pack, Duration::from_secs(60))?.ok()?;
        let file = self.path(&format!("{}-{version}.tgz", chart.name));
        let kind = format!("published.{}", chart.name);
        self.towline(&["add", &file, "--type", &kind, "--train", "Stable", "--release-namespace", chart.name])
    }
}

impl Site {
    /// Objects of the cluster, and those that charts put in other namespaces than their own.
    fn wide_objects(&self) -> anyhow::Result<BTreeSet<String>> {
        let kinds = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations,apiservices,namespaces,priorityclasses";
        let wide = self.admin.ok(&["get", kinds, "-o", "name"])?;
        let places = "jsonpath={range .items[*]}{.kind} {.metadata.namespace} {.metadata.name}{'\\n'}{end}";
        let placed = self.admin.ok(&["get", "roles,rolebindings,services,deployments", "-A", "-o", places])?;
        Ok(wide.lines().chain(placed.lines()).map(str::to_owned).collect())
    }
}

pub(super) fn published() -> anyhow::Result<()> {
    let catalogue = Catalogue::new("extensions-published-catalogue")?;
    for chart in &ALL {
        catalogue.add_published(chart, 0)?;
    }
    catalogue.sign()?;
    let site = Site::start("extensions-published", catalogue)?;
    let before = site.wide_objects()?;
    let definitions = || site.admin.ok(&["get", "crd", "-o", "name"]);
    let defined = definitions()?;
    for chart in &ALL {
        let settings: serde_json::Map<String, Value> =
            chart.settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
        let kind = format!("published.{}", chart.name);
        site.put(chart.name, &json!({"extensionType": kind, "configurationSettings": settings}))?;
    }
    for chart in &ALL {
        let shown = site.await_state(chart.name, "Succeeded")?;
        ensure!(shown["currentVersion"] == chart.versions[0].0, "{}: {shown:#}", chart.name);
        let (object, replicas) = chart.shown;
        ensure!(site.field(chart.name, object, "{.spec.replicas}")? == replicas, "{}", chart.name);
    }
    for chart in &ALL {
        site.catalogue.add_published(chart, 1)?;
    }
    site.catalogue.sign()?;
    for chart in &ALL {
        let mut shown = Value::Null;
        eventually(&format!("{} is upgraded", chart.name), Duration::from_secs(180), || {
            shown = site.call("GET", chart.name, &Value::Null)?["properties"].clone();
            Ok(shown["currentVersion"] == chart.versions[1].0 && shown["provisioningState"] == "Succeeded")
        })
        .with_context(|| format!("{shown:#}\n{}", site.stack.agent.lock().unwrap().tail()))?;
        let label = site.field(chart.name, chart.shown.0, "{.metadata.labels.helm\\.sh/chart}")?;
        ensure!(label == format!("{}-{}", chart.name, chart.versions[1].0), "{label}");
    }
    for chart in &ALL {
        site.delete(chart.name)?;
    }
    // As with helm everywhere, definitions of a chart's folder `crds` stay, with what is of them.
    for name in definitions()?.lines().filter(|name| !defined.contains(*name)) {
        site.admin.ok(&["delete", name])?;
    }
    let mut after = BTreeSet::new();
    eventually("nothing is left of the charts", Duration::from_secs(60), || {
        after = site.wide_objects()?;
        Ok(after == before)
    })
    .with_context(|| format!("left: {:?}", after.symmetric_difference(&before).collect::<Vec<_>>()))?;
    site.nothing_left()
}
