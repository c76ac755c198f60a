//! The gateway's chart, installed with real helm into the real cluster: three replicas on a real PostgreSQL, behind a
//! Service.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use tests::{
    case::{Needs, case, full, installs},
    cluster::cluster,
    kubectl::Kubectl,
    postgres::Postgres,
    programs::{Output, binary, eventually, pause_after, root, run, scratch},
    stack::note_secret,
};

use crate::chart::load_image;

const NAMESPACE: &str = "towline-gateway";
const NAME: &str = "gateway-towline-gateway";
const PASSWORD: &str = "pass-word-of-three-replicas";

pub fn tests() -> Vec<Trial> {
    vec![
        case("gateway_chart::every_section_of_the_reference_can_be_given", Needs::Nothing, sections),
        installs("gateway_chart::t12_three_replicas_serve_while_one_is_deleted", Needs::Pods, replicas),
    ]
}

/// Sections that the chart writes whole.
const NOT_FOR_VALUES: &[&str] = &["tls"];

/// `config` of the values takes each section of the gateway's reference.
fn sections() -> anyhow::Result<()> {
    let schema = std::fs::read_to_string(root().join("docker/chart/towline-gateway/values.schema.json"))?;
    let schema: Value = serde_json::from_str(&schema)?;
    let known = schema["properties"]["config"]["properties"].as_object().context("no sections")?;
    let reference = std::fs::read_to_string(root().join("gateway/reference.toml"))?;
    let named = reference.lines().map(|line| line.trim_start_matches('#')).filter(|line| line.starts_with('['));
    // Tables below a section are within it.
    let mut named: Vec<&str> =
        named.map(|line| line.trim_matches(['[', ']']).split('.').next().unwrap_or_default()).collect();
    named.sort_unstable();
    named.dedup();
    ensure!(named.len() > 10, "{named:?}");
    for section in &named {
        let excused = NOT_FOR_VALUES.contains(section);
        ensure!(known.contains_key(*section) != excused, "{section}: in the schema {}, excused {excused}", !excused);
    }
    let unknown: Vec<_> = known.keys().filter(|section| !named.contains(&section.as_str())).collect();
    ensure!(unknown.is_empty(), "the gateway has no section {unknown:?}");
    Ok(())
}

/// Who installs the gateway, and signs in at it.
struct Operator {
    dir: PathBuf,
    /// Left out when everything that was written is read for secrets.
    home: PathBuf,
    admin: Kubectl,
}

impl Operator {
    fn new() -> anyhow::Result<Self> {
        let home = scratch("gateway-chart-home").join("state");
        std::fs::create_dir_all(&home)?;
        Ok(Self { dir: scratch("gateway-chart"), home, admin: cluster().admin().namespace(NAMESPACE) })
    }

    fn towline(&self, args: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(binary("towline"));
        command.args(args).env("TOWLINE_CONFIG_DIR", self.home.join("config")).env("HOME", &self.home);
        command.env("KUBECONFIG", cluster().admin_kubeconfig()).stdin(Stdio::null());
        run(&mut command, Duration::from_secs(300))?.ok().with_context(|| format!("towline {}", args.join(" ")))
    }

    fn helm(&self, args: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(cluster().get("CLUSTER_HELM"));
        command.args(["--kubeconfig", cluster().get("KUBECONFIG"), "--namespace", NAMESPACE]).args(args);
        let done = run(&mut command, Duration::from_secs(200))?.ok();
        done.with_context(|| format!("helm {}", args.join(" "))).with_context(|| self.pods())
    }

    fn secret(&self, name: &str, files: &[(&str, &Path)]) -> anyhow::Result<()> {
        let files: Vec<String> =
            files.iter().map(|(key, file)| format!("--from-file={key}={}", file.display())).collect();
        let mut args = vec!["create", "secret", "generic", name];
        args.extend(files.iter().map(String::as_str));
        self.admin.ok(&args).map(drop)
    }

    /// What the pods say, for a failure's text.
    fn pods(&self) -> String {
        let said = |args: &[&str]| self.admin.run(args).map(|out| out.text() + &out.err).unwrap_or_default();
        said(&["get", "pods", "-o", "wide"])
            + &said(&["get", "events"])
            + &said(&["logs", "--selector", "app.kubernetes.io/name=towline-gateway", "--tail", "30"])
    }

    fn names(&self) -> anyhow::Result<Vec<String>> {
        let selector = "app.kubernetes.io/name=towline-gateway";
        let listed = self.admin.ok(&["get", "pods", "-l", selector, "-o", "name"])?;
        Ok(listed.lines().map(str::to_owned).collect())
    }
}

/// What became of requests that ran one after the other.
#[derive(Default)]
struct Counts {
    good: usize,
    /// What kubectl said where a second try was answered: its connection may have been made while the pod was on its way
    /// out of the Service.
    again: Vec<String>,
    failed: Vec<String>,
}

impl Counts {
    fn add(&mut self, asked: &impl Fn() -> anyhow::Result<Output>) {
        let once = || match asked() {
            Ok(out) if out.code == Some(0) => None,
            Ok(out) => Some(out.err),
            Err(error) => Some(format!("{error:#}")),
        };
        if let Some(said) = once() {
            match once() {
                None => self.again.push(said),
                Some(more) => return self.failed.push(format!("{said}; again: {more}")),
            }
        }
        self.good += 1;
    }
}

/// Deletes a pod (the long run: each in turn), and then has helm replace all of them.
fn under_load(operator: &Operator, install: &dyn Fn(&[&str]) -> anyhow::Result<String>) -> anyhow::Result<()> {
    let rollout = ["rollout", "status", &format!("deployment/{NAME}"), "--timeout=90s"];
    // Whoever has no tunnel of the cluster reaches it through one that has.
    for name in operator.names()?.into_iter().take(if full() { usize::MAX } else { 1 }) {
        operator.admin.ok(&["delete", &name, "--wait=false"])?;
        operator.admin.ok(&rollout).with_context(|| format!("{name} was deleted"))?;
    }
    let before = operator.names()?;
    install(&["--set", "log.level=debug", "--wait", "--timeout", "180s"])?;
    operator.admin.ok(&rollout)?;
    eventually("the pods of before are gone", Duration::from_secs(60), || {
        let now = operator.names()?;
        Ok(now.len() == 3 && !now.iter().any(|name| before.contains(name)))
    })
    .map(drop)
}

fn replicas() -> anyhow::Result<()> {
    tests::stack::grant_in_cluster()?;
    load_image("gateway")?;
    load_image("agent")?;
    let operator = Operator::new()?;
    let (admin, host) = (&operator.admin, cluster().get("CLUSTER_HOST_IP"));
    let server = Postgres::start_at(host, &operator.dir.join("postgres.log"))?;
    server.let_in(cluster().get("CLUSTER_PODS"))?;
    // Pods may also come with their node's address.
    server.let_in(&format!("{}/32", cluster().get("CLUSTER_NODE_IP")))?;
    server.administer("createuser towline; createdb --owner towline towline")?;
    server.administer(&format!("psql -qc \"ALTER ROLE towline PASSWORD '{PASSWORD}'\" postgres"))?;
    note_secret(PASSWORD)?;

    cluster().admin().apply(&format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}, labels: {{pod-security.kubernetes.io/enforce: restricted}}}}\n"
    ))?;
    let chart = root().join("docker/chart/towline-gateway").display().to_string();
    let (values, fixed_values) = (operator.home.join("values.yaml"), operator.home.join("fixed.yaml"));
    let install = |values: &Path, more: &[&str]| {
        let (values, fixed) = (values.display().to_string(), fixed_values.display().to_string());
        let files = ["upgrade", "--install", "gateway", &chart, "--values", &fixed, "--values", &values];
        operator.helm(&[&files[..], more].concat())
    };
    let fixed = "tls: {existingSecret: gateway-tls}\nauthority: {existingSecret: gateway-authority}\n\
                 storeKey: {existingSecret: gateway-store-key}\nissuer: {existingSecret: gateway-issuer}\n\
                 store: {postgres: {existingSecret: gateway-database}}\nservice: {type: ClusterIP}\n\
                 image: {pullPolicy: Never}\nresources: {requests: {cpu: 10m, memory: 64Mi}}\ndrainGrace: 5s\n";
    // There is no DNS here: the address is known when the Service is there. The pods wait for their Secrets.
    let guid = "00000000-0000-4000-8000-000000000001";
    let first =
        format!("url: https://gateway.example.org\ntenant: {guid}\nsubscriptions: [{{id: {guid}}}]\nreplicas: 1\n");
    std::fs::write(&fixed_values, fixed)?;
    std::fs::write(&values, first)?;
    install(&values, &[])?;
    let url = format!("https://{}", admin.ok(&["get", "service", NAME, "-o", "jsonpath={.spec.clusterIP}"])?.trim());

    // As the guide has it.
    let folder = operator.home.join("towline");
    let mut init = Command::new(binary("towline-gateway"));
    let made = run(init.args(["init", "--url", &url, "--directory"]).arg(&folder), Duration::from_secs(60))?.ok()?;
    let made: Value = serde_json::from_str(&made)?;
    let key = run(Command::new("openssl").args(["rand", "-base64", "32"]), Duration::from_secs(10))?.ok()?;
    std::fs::write(folder.join("store.key"), key)?;
    let database = folder.join("postgres.url");
    let address = format!(
        "postgres://towline:{PASSWORD}@{host}:{}/towline?sslmode=verify-full&sslrootcert=/etc/towline-database/ca.crt",
        server.port()
    );
    std::fs::write(&database, address)?;
    operator
        .secret("gateway-tls", &[("tls.crt", &folder.join("tls/tls.crt")), ("tls.key", &folder.join("tls/tls.key"))])?;
    operator
        .secret("gateway-authority", &[("ca.crt", &folder.join("ca/ca.crt")), ("ca.key", &folder.join("ca/ca.key"))])?;
    operator.secret("gateway-store-key", &[("store.key", &folder.join("store.key"))])?;
    operator.secret(
        "gateway-issuer",
        &[("keys.json", &folder.join("issuer/keys.json")), ("principals.json", &folder.join("issuer/principals.json"))],
    )?;
    operator.secret("gateway-database", &[("url", &database), ("ca.crt", &server.ca())])?;
    let config = std::fs::read_to_string(folder.join("gateway.toml"))?;
    let owners = config.lines().find(|line| line.starts_with("owners = ")).context("no owners")?;
    let text = |key: &str| made[key].as_str().with_context(|| format!("no {key}: init"));
    let second = serde_json::json!({
        "url": url, "tenant": text("tenant")?, "subscriptions": [{"id": text("subscription")?, "name": "default"}],
        "owners": serde_json::from_str::<Value>(owners.trim_start_matches("owners = "))?,
        "ca": std::fs::read_to_string(folder.join("ca/ca.crt"))?, "replicas": 3,
    });
    std::fs::write(&values, serde_json::to_string(&second)?)?;
    // The first one makes the tables and takes the issuer's files over.
    install(&values, &["--wait", "--timeout", "180s"])?;
    eventually("three pods and no more", Duration::from_secs(60), || Ok(operator.names()?.len() == 3))?;

    let secret = operator.home.join("owner.key");
    std::fs::write(&secret, text("clientSecret")?)?;
    note_secret(text("clientSecret")?)?;
    let (secret, ca) = (secret.display().to_string(), folder.join("ca/ca.crt").display().to_string());
    let id = text("clientId")?;
    operator.towline(&["login", &url, "--ca", &ca, "--service-principal", "-u", id, "--secret-file", &secret])?;
    operator.towline(&["group", "create", "-n", "edge", "-l", "here"])?;
    operator.towline(&["connect", "-n", "c1", "-g", "edge", "-o", "json"]).with_context(|| operator.pods())?;
    let role = "Azure Arc Enabled Kubernetes Cluster User Role";
    let assignee = ["--assignee", id, "--assignee-type", "ServicePrincipal"];
    operator.towline(&[&["role", "assignment", "create", "--role", role, "-g", "edge"][..], &assignee].concat())?;
    let file = operator.home.join("c1.kubeconfig").display().to_string();
    operator.towline(&["kubeconfig", "-n", "c1", "-g", "edge", "--file", &file])?;
    let asked = || {
        let mut command = Command::new(cluster().get("CLUSTER_KUBECTL"));
        let programs = binary("towline");
        let folder = programs.parent().map(|folder| folder.display().to_string()).unwrap_or_default();
        command.env("PATH", format!("{folder}:{}", std::env::var("PATH").unwrap_or_default()));
        command.env("TOWLINE_CONFIG_DIR", operator.home.join("config")).env("HOME", &operator.home);
        run(command.args(["--kubeconfig", &file, "get", "--raw", "/version"]), Duration::from_secs(60))
    };
    eventually("kubectl gets through", Duration::from_secs(60), || Ok(asked()?.code == Some(0)))
        .with_context(|| operator.pods())?;

    let (stop, counts) = (AtomicBool::new(false), Mutex::new(Counts::default()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                counts.lock().unwrap().add(&asked);
                pause_after(begun);
            }
        });
        let outcome = under_load(&operator, &|more| install(&values, more));
        stop.store(true, Ordering::Relaxed);
        outcome
    })
    .with_context(|| operator.pods())?;
    let Counts { good, again, failed } = counts.into_inner().unwrap();
    eprintln!("   {good} of kubectl answered, of these {} at the second try: {again:#?}", again.len());
    ensure!(good > 20 && failed.is_empty(), "{} of {good} failed: {failed:#?}", failed.len());
    operator.towline(&["group", "show", "-n", "edge", "-o", "tsv"])?;
    operator.towline(&["delete", "-n", "c1", "-g", "edge", "-y"])?;
    operator.helm(&["uninstall", "gateway", "--wait"])?;
    cluster().admin().ok(&["delete", "namespace", NAMESPACE]).map(drop)
}
