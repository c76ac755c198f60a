//! The previous release beside this one (docs/features.md U4): its agent at this gateway, and this agent at its gateway, on
//! every carrier. `make test-full` builds the previous release from its commit and names the folder of its programs.

use std::{path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    case::{Needs, case, full},
    programs::run,
    replicas::Replicas,
    stack::{CARRIERS, Plan, Stack, grant_in_cluster, note_secret},
};

/// The folder of the previous release's programs.
const PROGRAMS: &str = "TOWLINE_PREVIOUS_PROGRAMS";
/// A machine that is busy with something else takes its time.
const SLOW: Duration = Duration::from_secs(180);

pub fn tests() -> Vec<Trial> {
    if !full() {
        return Vec::new();
    }
    let of_carrier = |carrier: &'static str| {
        [
            case(
                format!("released::u4_the_previous_agent_is_served_by_this_gateway::{carrier}"),
                Needs::Cluster,
                move || beside(carrier, false),
            ),
            case(
                format!("released::u4_this_agent_is_served_by_the_previous_gateway::{carrier}"),
                Needs::Cluster,
                move || beside(carrier, true),
            ),
        ]
    };
    let database =
        case("released::t12_the_previous_gateway_is_refused_by_a_database_of_this_one", Needs::Nothing, database);
    CARRIERS.into_iter().flat_map(of_carrier).chain([database]).collect()
}

fn previous() -> anyhow::Result<PathBuf> {
    let folder = std::env::var_os(PROGRAMS).map(PathBuf::from);
    folder.with_context(|| format!("{PROGRAMS} names no folder: run `make test-full`"))
}

/// The previous release does not start on tables that this one has changed: it says so, changes nothing, and the gateway
/// that runs there goes on.
fn database() -> anyhow::Result<()> {
    let replicas = Replicas::start("released-database", 1, "")?;
    let owner = replicas.owner()?;
    let group = format!("/subscriptions/{}/resourceGroups/g?api-version=2021-04-01", replicas.text("subscription"));
    let at = replicas.address(0);
    let said = replicas.call(at, &owner, "PUT", &group, &json!({"location": "local"}))?;
    ensure!(said.status == 201, "{}", said.head);
    let tables = || {
        let said = "SELECT version, checksum FROM _sqlx_migrations ORDER BY version";
        replicas.postgres.administer(&format!("psql -Atc '{said}' towline"))
    };
    let before = tables()?;
    let (program, private) = (previous()?.join("towline-gateway"), tempfile::tempdir()?);
    let folder = private.path().join("gateway");
    let mut init = Command::new(&program);
    init.args([
        "init",
        "--url",
        "https://gateway.example.org:8443",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    ]);
    let made: Value = serde_json::from_str(&run(init.arg("--directory").arg(&folder), SLOW)?.ok()?)?;
    note_secret(made["clientSecret"].as_str().context("no clientSecret")?)?;
    std::fs::copy(replicas.folder(0).join("postgres.url"), folder.join("postgres.url"))?;
    let config = folder.join("gateway.toml");
    let text = std::fs::read_to_string(&config)?;
    let store = text.lines().find(|line| line.starts_with("store_file")).context("no store_file")?;
    std::fs::write(&config, text.replace(store, "postgres_url_file = \"postgres.url\""))?;
    let ended = run(Command::new(&program).arg("--config").arg(&config), SLOW)?;
    let said = ended.err.as_str();
    eprintln!("   {}", said.lines().last().unwrap_or_default());
    ensure!(ended.code != Some(0) && said.contains("migration"), "{said}");
    ensure!(tables()? == before, "it changed the tables");
    ensure!(replicas.call(at, &owner, "GET", &group, &Value::Null)?.status == 200, "the gateway goes on");
    Ok(())
}

fn beside(carrier: &'static str, older_gateway: bool) -> anyhow::Result<()> {
    let folder = previous()?;
    grant_in_cluster()?;
    let name = format!("released-{}-{carrier}", if older_gateway { "gateway" } else { "agent" });
    let (gateway_of, agent_of) =
        if older_gateway { (Some(folder.as_path()), None) } else { (None, Some(folder.as_path())) };
    let stack = Stack::start(&Plan { carrier: Some(carrier), gateway_of, agent_of, ..Plan::real(&name) })?;
    let kubectl = stack.kubectl("admin")?.within(SLOW);
    let namespace = name.as_str();
    kubectl.ok(&["create", "namespace", namespace])?;
    let kubectl = kubectl.namespace(namespace);
    kubectl.ok(&["create", "configmap", "settings", "--from-literal=colour=green"])?;
    let colour = kubectl.ok(&["get", "configmap", "settings", "-o", "jsonpath={.data.colour}"])?;
    ensure!(colour.trim() == "green", "{colour}");
    kubectl.ok(&["label", "configmap", "settings", "seen=true"])?;
    kubectl.ok(&["wait", "--for=jsonpath={.metadata.labels.seen}=true", "configmap/settings", "--timeout=60s"])?;
    kubectl.ok(&["auth", "can-i", "delete", "configmaps"])?;
    kubectl.ok(&["delete", "namespace", namespace, "--wait=false"])?;
    if !older_gateway {
        let metrics = stack.admin_get("/metrics")?;
        let told = format!("gateway_hellos_total{{state=\"{}\"}}", "Outdated");
        ensure!(metrics.contains(&told), "an older agent is counted as one:\n{metrics}");
    }
    Ok(())
}
