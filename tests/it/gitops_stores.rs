//! Buckets of S3 and containers of Azure Blob Storage, with the servers that stand in for both: moto and Azurite
//! (docs/features.md G4). Only in the long run, because both are installed from registries for it.

use std::{
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    case::{Needs, full, installs},
    cluster::cluster,
    programs::{Program, eventually, free_port, root, run, run_with_input, scratch},
    stack::note_secret,
};

use crate::gitops::{FIRST, Gitops, INTERVAL, SOON, kustomization};

/// A host that is only known to source-controller; its first part is the account that every Azurite has.
const ACCOUNT_HOST: &str = "devstoreaccount1.blob.test";
const PFX_PASSWORD: &str = "a password of PKCS 12";

pub fn tests() -> Vec<Trial> {
    if !full() {
        return Vec::new();
    }
    vec![installs("gitops_stores::g4_buckets_and_containers_of_blobs_are_followed", Needs::Pods, stores)]
}

/// A Python with the servers' clients and moto, made below the target folder.
fn python() -> anyhow::Result<PathBuf> {
    let folder = root().join("target/stores-python");
    let python = folder.join("bin/python");
    let has_all = |python: &Path| {
        let mut look = Command::new(python);
        look.args(["-c", "import boto3, moto.server, azure.storage.blob"]);
        run(&mut look, Duration::from_secs(60)).is_ok_and(|output| output.code == Some(0))
    };
    if !has_all(&python) {
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder), Duration::from_secs(120))?.ok()?;
        let mut install = Command::new(&python);
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        install.args(["moto[s3,server]==5.2.1", "azure-storage-blob==12.27.1"]);
        run(&mut install, Duration::from_secs(600))?.ok()?;
    }
    Ok(python)
}

/// The program of Azurite, installed below the target folder.
fn azurite() -> anyhow::Result<PathBuf> {
    let folder = root().join("target/stores-node");
    let program = folder.join("node_modules/azurite/dist/src/blob/main.js");
    if !program.exists() {
        std::fs::create_dir_all(&folder)?;
        let mut install = Command::new("npm");
        install.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]).arg(&folder).arg("azurite@3.35.0");
        run(&mut install, Duration::from_secs(600))?.ok()?;
    }
    Ok(program)
}

/// A running server; ended when dropped.
struct Server {
    url: String,
    _program: Program,
}

impl Server {
    fn start(name: &str, make: impl FnOnce(SocketAddr) -> Command) -> anyhow::Result<Self> {
        let ip = cluster().get("CLUSTER_HOST_IP");
        let address: SocketAddr = (ip.parse::<std::net::IpAddr>()?, free_port(ip)?).into();
        let mut command = make(address);
        command.stdout(Stdio::null());
        let program = Program::start(name, command, &scratch(&format!("gitops-{name}")).join("log"))?;
        eventually(&format!("{name} listens"), Duration::from_secs(60), || Ok(TcpStream::connect(address).is_ok()))
            .with_context(|| program.tail())?;
        Ok(Self { url: format!("http://{address}"), _program: program })
    }

    /// Writes an object; what the program said.
    fn write(&self, python: &Path, kind: &str, name: &str, content: &str) -> anyhow::Result<String> {
        let mut command = Command::new(python);
        command.arg(root().join("tests/it/stores.py")).args([kind, &self.url, name]);
        run_with_input(&mut command, Some(content.as_bytes()), Duration::from_secs(60))?.ok()
    }
}

fn map(name: &str, greeting: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: gitops}}\ndata: {{greeting: {greeting}}}\n"
    )
}

fn stores() -> anyhow::Result<()> {
    let (python, azurite) = (python()?, azurite()?);
    let gitops = Gitops::start("gitops-stores", &[])?;
    let s3 = Server::start("moto", |at| {
        let mut command = Command::new(&python);
        command.args(["-m", "moto.server", "-H", &at.ip().to_string(), "-p", &at.port().to_string()]);
        command
    })?;
    let blobs = Server::start("azurite", |at| {
        let mut command = Command::new("node");
        command.arg(&azurite).args(["--silent", "--skipApiVersionCheck", "--disableTelemetry"]);
        command
            .args(["--blobHost", &at.ip().to_string(), "--blobPort", &at.port().to_string(), "--location"])
            .arg(scratch("gitops-azurite-data"));
        command
    })?;
    s3.write(&python, "s3", "apps/bucket.yaml", &map("bucket", "one"))?;
    let printed = blobs.write(&python, "blob", "apps/blob.yaml", &map("blob", "one"))?;
    let (sas, account_key) = printed.trim().split_once('\n').context("no token and no key")?;
    let (sas, account_key) = (sas.trim().to_owned(), account_key.trim().to_owned());
    note_secret(&sas)?;
    note_secret(&account_key)?;
    let of = |kind: &str, source: &str, settings: Value| {
        json!({
            "scope": "cluster", "namespace": "gitops", "sourceKind": kind, source: settings,
            "kustomizations": {"apps": kustomization("apps")},
        })
    };
    let mut bucket = of(
        "Bucket",
        "bucket",
        json!({
            "url": s3.url, "bucketName": "fleet", "accessKey": "id", "syncIntervalInSeconds": INTERVAL, "timeoutInSeconds": 60,
        }),
    );
    bucket["configurationProtectedSettings"] = json!({"bucketSecretKey": BASE64.encode("secret")});
    let blob = of(
        "AzureBlob",
        "azureBlob",
        json!({
            "url": format!("{}/devstoreaccount1", blobs.url), "containerName": "fleet", "sasToken": sas,
            "syncIntervalInSeconds": INTERVAL, "timeoutInSeconds": 60,
        }),
    );
    gitops.put("bucket", &bucket)?;
    gitops.put("blob", &blob)?;
    let is = |name: &str, greeting: &str, within: Duration| -> anyhow::Result<()> {
        let shown = gitops.await_compliant(name, "sha256:", within)?;
        ensure!(!shown.to_string().contains(&sas), "{shown:#}");
        eventually(&format!("{name} says {greeting}"), SOON, || {
            Ok(gitops.field("gitops", &format!("configmap/{name}"), "{.data.greeting}")? == greeting)
        })
        .with_context(|| gitops.state())
        .map(drop)
    };
    is("bucket", "one", FIRST)?;
    is("blob", "one", FIRST)?;
    s3.write(&python, "s3", "apps/bucket.yaml", &map("bucket", "two"))?;
    blobs.write(&python, "blob", "apps/blob.yaml", &map("blob", "two"))?;
    is("bucket", "two", SOON)?;
    is("blob", "two", SOON)?;
    gitops.delete("bucket")?;
    gitops.delete("blob")?;
    account(&gitops, &blobs, &account_key)?;
    principal(&gitops, &blobs, &blobs.write(&python, "pfx", "-", PFX_PASSWORD)?)?;
    gitops.end()
}

/// A configuration that follows the container by these credentials.
fn container(url: &str, credentials: &Value) -> Value {
    let mut source = json!({
        "url": url, "containerName": "fleet", "syncIntervalInSeconds": INTERVAL, "timeoutInSeconds": 60,
    });
    for (name, value) in credentials.as_object().into_iter().flatten() {
        source[name] = value.clone();
    }
    json!({
        "scope": "cluster", "namespace": "gitops", "sourceKind": "AzureBlob", "azureBlob": source,
        "kustomizations": {"apps": kustomization("apps")},
    })
}

/// The key of the account, whose name is the first part of the host: source-controller is told the address of that host.
fn account(gitops: &Gitops, blobs: &Server, key: &str) -> anyhow::Result<()> {
    let refused = gitops.put("shared", &container(&blobs.url, &json!({ "accountKey": key }))).err();
    let refused = refused.map(|error| error.to_string()).unwrap_or_default();
    ensure!(refused.contains("400") && refused.contains("this host is an IP address"), "{refused}");
    ensure!(!refused.contains(key));

    let port = blobs.url.rsplit(':').next().unwrap_or_default();
    let aliases = json!([{"ip": cluster().get("CLUSTER_HOST_IP"), "hostnames": [ACCOUNT_HOST]}]);
    let patch = json!({"spec": {"template": {"spec": {"hostAliases": aliases}}}}).to_string();
    let controller = ["-n", "flux-system", "deployment/source-controller"];
    gitops.admin.ok(&["patch", controller[2], controller[0], controller[1], "-p", &patch])?;
    gitops.admin.ok(&["rollout", "status", controller[2], controller[0], controller[1], "--timeout=180s"])?;

    let url = format!("http://{ACCOUNT_HOST}:{port}");
    // As programs write base64 into files.
    gitops.put("shared", &container(&url, &json!({"accountKey": format!("{key}\n")})))?;
    let shown = gitops.await_compliant("shared", "sha256:", FIRST)?;
    ensure!(!shown.to_string().contains(key), "{shown:#}");
    ensure!(gitops.field("gitops", "configmap/blob", "{.data.greeting}")? == "two");
    let other = BASE64.encode([7; 64]);
    note_secret(&other)?;
    gitops.put("shared", &container(&url, &json!({ "accountKey": other })))?;
    let shown = gitops.await_shown("shared", "is refused", SOON, |shown| {
        shown["complianceState"] == "Non-Compliant" && shown.to_string().contains("AuthorizationFailure")
    })?;
    ensure!(!shown.to_string().contains(&other), "{shown:#}");
    gitops.put("shared", &container(&url, &json!({ "accountKey": key })))?;
    gitops.await_compliant("shared", "sha256:", SOON)?;
    gitops.delete("shared")
}

/// A service principal, whose sign-in is at a host of Azure that no test has: what there is to see is that source-controller
/// reads its certificate, and sends nothing in clear text.
fn principal(gitops: &Gitops, blobs: &Server, pfx: &str) -> anyhow::Result<()> {
    let of = |password: &str| {
        container(
            &format!("{}/devstoreaccount1", blobs.url),
            &json!({"servicePrincipal": {
                "clientId": "00000000-0000-4000-8000-000000000001", "tenantId": "00000000-0000-4000-8000-000000000002",
                "clientCertificate": pfx, "clientCertificatePassword": password,
            }}),
        )
    };
    let is_told = |what: &'static str| {
        gitops.await_shown("principal", what, SOON, |shown| {
            shown["complianceState"] == "Non-Compliant" && shown.to_string().contains(what)
        })
    };
    gitops.put("principal", &of("another"))?;
    is_told("failed to parse client certificates")?;
    gitops.put("principal", &of(PFX_PASSWORD))?;
    let shown = is_told("requests are not permitted for non-TLS protected")?;
    ensure!(!shown.to_string().contains(PFX_PASSWORD), "{shown:#}");
    gitops.delete("principal")
}
