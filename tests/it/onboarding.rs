//! Clusters that come to be in other ways than by who may make them at that moment: attached to a resource that was
//! made before, by a one-time token (R14), at another gateway than before (R4); and what agents that are there
//! keep and change (R3, T13).

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, ensure};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    apiserver::Apiserver,
    case::{Needs, case, installs},
    cluster::cluster,
    objects::Objects,
    programs::{Output, eventually, run, scratch},
    proxy::{CREDENTIALS, Manner, Proxy},
    stack::note_secret,
};

use crate::connect::{
    CLUSTERS, GROUP, Site, VERSION, call, group, objects, pods, same, settled, token, willing, with_pods,
};

pub fn tests() -> Vec<Trial> {
    vec![
        installs("onboarding::r13_agents_are_attached_to_a_resource_that_was_made_before", Needs::Pods, attached),
        installs("onboarding::r4_agents_of_another_gateway_are_not_replaced_unasked", Needs::Pods, elsewhere),
        installs("onboarding::t13_agents_keep_their_proxy_until_another_is_typed", Needs::Pods, proxies),
        installs("onboarding::r14_a_one_time_token_stands_in_for_an_account", Needs::Pods, by_token),
        case(
            "onboarding::r14_a_run_that_broke_off_is_gone_on_with_and_the_gateway_is_asked",
            Needs::Nothing,
            by_token_again,
        ),
    ]
}

/// An RSA key: its file, and the public half as resources have it.
fn rsa_key(dir: &Path, name: &str) -> anyhow::Result<(String, String)> {
    let (key, public) = (dir.join(name), dir.join(format!("{name}.pub")));
    let openssl = |args: &[&str]| run(Command::new("openssl").args(args), Duration::from_secs(60))?.ok();
    let file = key.display().to_string();
    openssl(&["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", &file])?;
    let shown = public.display().to_string();
    openssl(&["rsa", "-in", &file, "-RSAPublicKey_out", "-outform", "DER", "-out", &shown])?;
    Ok((file, BASE64.encode(std::fs::read(public)?)))
}

fn attached() -> anyhow::Result<()> {
    let site = with_pods("attach")?;
    let before = settled()?;
    let (key, public) = rsa_key(&site.home, "right.key")?;
    let (other, _) = rsa_key(&site.home, "other.key")?;
    let owner = token(&site.stack, &site.stack.text("clientId"), &site.stack.text("clientSecret"))?;
    let target = format!("{}/{CLUSTERS}/c1?{VERSION}", group(&site.stack));
    let body = json!({
        "location": "eastus", "tags": {"made": "before"}, "identity": {"type": "SystemAssigned"},
        "properties": {"agentPublicKeyCertificate": public},
    });
    let made = call(&site.stack, &owner, "PUT", &target, &body)?;
    ensure!(made.status == 201, "{}", String::from_utf8_lossy(&made.body));
    let principal = made.json()?["identity"]["principalId"].clone();

    let connect = ["connect", "-n", "c1", "-g", GROUP, "--replicas", "1", "-o", "json"];
    site.refused(&connect, "corresponds to a different Kubernetes cluster")?;
    let wrong = [&connect[..], &["--existing", "--key-file", &other]].concat();
    site.refused(&wrong, "agents with this key would be refused (401 InvalidProof)")?;
    same(&before).context("after refusals")?;
    let there = [&connect[..], &["--existing", "--key-file", &key]].concat();
    let made: Value = serde_json::from_str(&site.ok(&there).with_context(pods)?.text())?;
    ensure!(made["properties"]["connectivityStatus"] == "Connected", "{made}");
    ensure!(made["identity"]["principalId"] == principal && made["tags"]["made"] == "before", "{made}");
    site.ok(&["delete", "-n", "c1", "-g", GROUP, "-y"])?;
    same(&before)
}

/// As somebody who has never signed in.
fn stranger(site: &Site, file: &Path, name: &str) -> anyhow::Result<Output> {
    stranger_with(site, file, name, &[])
}

fn stranger_with(site: &Site, file: &Path, name: &str, more: &[&str]) -> anyhow::Result<Output> {
    let (url, ca) = (site.stack.text("url"), site.stack.text("ca"));
    let token = file.display().to_string();
    let mut command = site.command(&["connect", "-n", name, "--token-file", &token, "--server", &url, "--ca", &ca]);
    command.args(more).args(["--replicas", "1", "-o", "json"]).env("TOWLINE_CONFIG_DIR", site.home.join("nobody"));
    run(&mut command, Duration::from_secs(300))
}

/// The Secret of the onboarding key.
const KEY: &str = "/api/v1/namespaces/towline/secrets/towline-onboarding";

/// R14: the token is good once, so what is needed to go on is in the cluster before it is used; and whether it was used
/// the gateway says.
fn by_token_again() -> anyhow::Result<()> {
    let objects = Objects::new();
    let apiserver = Apiserver::start(&scratch("broken-off"), true, objects.script(Arc::new(willing)))?;
    let site = Arc::new(Site::start("broken-off", "127.0.0.1:0", apiserver.kubeconfig.clone())?);
    site.ok(&["group", "create", "-g", GROUP, "-l", "eastus"])?;
    let file = site.home.join("token");
    let new_token = || {
        let shown = file.display().to_string();
        // No secret is written over.
        let _ = std::fs::remove_file(&file);
        site.ok(&["enrolment-token", "create", "-g", GROUP, "-n", "c1", "--secret-file", &shown])?;
        note_secret(std::fs::read_to_string(&file)?.trim().rsplit('.').next().unwrap_or_default())
    };
    let connect = |name: &str| {
        let kubeconfig = apiserver.kubeconfig.display().to_string();
        stranger_with(&site, &file, name, &["--kube-config", &kubeconfig, "--skip-network-check", "--no-wait"])
    };
    let failed = |output: &Output, texts: &[&str]| {
        ensure!(output.code == Some(1), "{output:?}");
        for text in texts {
            ensure!(output.err.contains(text), "{text}: {output:?}");
        }
        Ok(())
    };

    new_token()?;
    failed(&connect("c2")?, &["it is still good", "hint: "])?;
    ensure!(objects.paths().is_empty(), "a refused token leaves nothing: {:?}", objects.paths());

    // It breaks off behind the token's use.
    objects.at_each(|path| path.contains("customresourcedefinitions").then(|| "no room".to_owned()));
    failed(&connect("c1")?, &["no room", "the token is used up", "the same command again"])?;
    let key = objects.get(KEY).context("the key is not there")?["data"].clone();
    let there = site.clusters()?;
    ensure!(there.len() == 1 && there[0]["name"] == "c1", "{there:?}");
    objects.willing();
    let again = connect("c1")?;
    ensure!(again.code == Some(0) && again.err.contains("the cluster is enrolled already"), "{again:?}");
    let made: Value = serde_json::from_str(&again.text())?;
    ensure!(made["identity"]["principalId"] == there[0]["identity"]["principalId"], "{made} {there:?}");
    ensure!(objects.get(KEY).is_some_and(|secret| secret["data"] == key) && site.clusters()?.len() == 1);

    // What is here says nothing of what is there: the resource was deleted at the gateway.
    let owner = token(&site.stack, &site.stack.text("clientId"), &site.stack.text("clientSecret"))?;
    let target = format!("{}/{CLUSTERS}/c1?{VERSION}", group(&site.stack));
    ensure!(call(&site.stack, &owner, "DELETE", &target, &Value::Null)?.status == 202);
    eventually("the resource is gone", Duration::from_secs(60), || Ok(site.clusters()?.is_empty()))?;
    let gone = connect("c1")?;
    ensure!(!gone.err.contains("enrolled already;"), "{gone:?}");
    failed(&gone, &["The enrolment token is not valid", "towline enrolment-token create -g edge"])?;
    new_token()?;
    let identity = KEY.replace("towline-onboarding", "towline-identity-certificate");
    objects.put(
        &identity,
        json!({"kind": "Secret", "metadata": {"name": "towline-identity-certificate", "namespace": "towline"}}),
    );
    let anew = connect("c1")?;
    ensure!(anew.code == Some(0) && anew.err.contains("the cluster is enrolled again"), "{anew:?}");
    ensure!(site.clusters()?.len() == 1 && objects.get(&identity).is_none(), "the old certificate is another's");
    without_an_answer(&site, &objects, &connect, &new_token)
}

/// The gateway goes away while the token is on its way.
fn without_an_answer(
    site: &Arc<Site>,
    objects: &Objects,
    connect: &dyn Fn(&str) -> anyhow::Result<Output>,
    new_token: &dyn Fn() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    site.ok(&["group", "delete", "-g", GROUP, "-y"])?;
    site.ok(&["group", "create", "-g", GROUP, "-l", "eastus"])?;
    objects.clear();
    new_token()?;
    let killing = Arc::clone(site);
    objects.at_each(move |path| {
        if path == KEY {
            killing.stack.kill_gateway();
        }
        None
    });
    let lost = connect("c1")?;
    let says = lost.err.contains("whether the token was used is not known") && lost.err.contains("hint: ");
    ensure!(lost.code == Some(1) && says, "{lost:?}");
    let key = objects.get(KEY).context("the key is not there")?["data"].clone();
    objects.willing();
    site.stack.restart_gateway()?;
    let again = connect("c1")?;
    ensure!(again.code == Some(0), "{again:?}");
    let listed = site.clusters()?;
    ensure!(listed.len() == 1 && objects.get(KEY).is_some_and(|secret| secret["data"] == key), "{listed:?}");
    Ok(())
}

fn by_token() -> anyhow::Result<()> {
    let site = with_pods("one-time-token")?;
    let before = settled()?;
    let file: PathBuf = site.home.join("token");
    let shown = file.display().to_string();
    let create = ["enrolment-token", "create", "-g", GROUP, "-n", "c1", "--ttl", "30m", "-o", "json"];
    let made = site.ok(&[&create[..], &["--secret-file", &shown]].concat())?.text();
    let token = std::fs::read_to_string(&file)?.trim().to_owned();
    note_secret(token.rsplit('.').next().unwrap_or_default())?;
    ensure!(token.starts_with("towline-enrol.") && !made.contains(&token), "{made}");

    let refused = |name: &str, text: &str| {
        let output = stranger(&site, &file, name)?;
        ensure!(output.code == Some(1) && output.err.contains(text) && output.err.contains("hint: "), "{output:?}");
        same(&before).with_context(|| format!("{name} was refused"))
    };
    refused("c2", "it is still good")?;
    let made: Value = serde_json::from_str(&stranger(&site, &file, "c1")?.ok().with_context(pods)?)?;
    ensure!(made["properties"]["connectivityStatus"] == "Connected", "{made}");
    let listed = site.clusters()?;
    let status = &listed[0]["properties"]["connectivityStatus"];
    ensure!(listed.len() == 1 && status == "Connected" && listed[0]["location"] == "eastus", "{listed:?}");
    ensure!(listed[0]["identity"]["principalId"] == made["identity"]["principalId"], "{listed:?} {made}");
    // A run that broke off is gone on with, though the token is used up.
    let again = stranger(&site, &file, "c1")?;
    ensure!(again.code == Some(0) && again.err.contains("the cluster is enrolled already"), "{again:?}");
    site.ok(&["delete", "-n", "c1", "-g", GROUP, "-y"])?;
    same(&before)?;
    refused("c1", "towline enrolment-token create -g edge")
}

fn elsewhere() -> anyhow::Result<()> {
    let one = with_pods("one-gateway")?;
    let before = settled()?;
    let connect = ["connect", "-n", "c1", "-g", GROUP, "--replicas", "1", "-o", "json"];
    one.ok(&connect).with_context(pods)?;
    let there = objects()?;
    let two = with_pods("other-gateway")?;
    two.refused(&connect, "agents of another gateway (")?;
    two.refused(&["update", "-n", "c1", "-g", GROUP, "--proxy-https", "http://192.0.2.1:1"], "does not correspond")?;
    two.refused(&["delete", "-n", "c1", "-g", GROUP, "-y"], "does not correspond")?;
    // What agents make by and by comes on top.
    let now = objects()?;
    let gone: Vec<_> = there.iter().filter(|line| !now.contains(line)).collect();
    ensure!(gone.is_empty() && two.clusters()?.is_empty(), "what was refused changed something: {gone:?}");
    let forced = two.ok(&[&connect[..], &["--force"]].concat()).with_context(pods)?;
    let made: Value = serde_json::from_str(&forced.text())?;
    ensure!(made["properties"]["connectivityStatus"] == "Connected", "{made}");
    two.ok(&["delete", "-n", "c1", "-g", GROUP, "-y"])?;
    same(&before)
}

/// The settings of the agents that are there.
fn settings() -> anyhow::Result<String> {
    let map = ["-n", "towline", "get", "configmap", "clusterconnect-agent", "-o", "jsonpath={.data.agent\\.toml}"];
    cluster().admin().ok(&map)
}

fn proxies() -> anyhow::Result<()> {
    let site = with_pods("keep")?;
    let before = settled()?;
    let proxy = Proxy::start_at(cluster().get("CLUSTER_HOST_IP"), &site.stack.dir, true, Manner::Good)?;
    let (user, password) = CREDENTIALS;
    let (url, file) = (format!("https://{user}@{}", proxy.address), site.home.join("proxy-password"));
    std::fs::write(&file, password)?;
    let ca = proxy.ca.as_ref().context("no authority")?.display().to_string();
    let of = ["-n", "c1", "-g", GROUP];
    let connect = [&["connect"][..], &of, &["-o", "json"]].concat();
    let alias = ["--replicas", "1", "--host-alias", "192.0.2.7=gw.example.org", "--azure-rbac"];
    site.ok(&[&connect[..], &alias].concat()).with_context(pods)?;
    ensure!(!settings()?.contains("[proxy]") && proxy.connects() == 0);

    let update = [&["update"][..], &of].concat();
    let shown = file.display().to_string();
    let through = ["--proxy-https", &url, "--proxy-cert", &ca, "--proxy-password-file", &shown];
    site.ok(&[&update[..], &through, &["--proxy-skip-range", "10.250.0.0/16"]].concat()).with_context(pods)?;
    let asked = proxy.connects();
    ensure!(asked >= 1 && settings()?.contains("10.250.0.0/16"), "{asked}: {}", settings()?);
    // What is not typed again stays, all of it, and nothing is made anew.
    let uids = || {
        let kinds = "deployments,secrets,replicasets";
        cluster().admin().ok(&["-n", "towline", "get", kinds, "-o", "jsonpath={.items[*].metadata.uid}"])
    };
    let there = (settings()?, uids()?);
    let again: Value = serde_json::from_str(&site.ok(&connect)?.text())?;
    ensure!(again["properties"]["aadProfile"]["enableAzureRBAC"] == true, "{again}");
    ensure!((settings()?, uids()?) == there, "{}", settings()?);
    let both = [&update[..], &["--disable-proxy", "--proxy-https", &url]].concat();
    site.refused(&both, "Conflict: --disable-proxy")?;
    site.ok(&[&update[..], &["--disable-proxy"]].concat()).with_context(pods)?;
    ensure!(!settings()?.contains("[proxy]") && settings()?.contains("[azure_rbac]"), "{}", settings()?);
    let pod = "jsonpath={.spec.template.spec.hostAliases[0].ip}";
    let pod = cluster().admin().ok(&["-n", "towline", "get", "deployment", "clusterconnect-agent", "-o", pod])?;
    ensure!(pod == "192.0.2.7", "{pod}");
    let secrets = cluster().admin().ok(&["-n", "towline", "get", "secrets", "-o", "name"])?;
    ensure!(!secrets.contains("proxy"), "its password is gone too: {secrets}");
    site.ok(&["delete", "-n", "c1", "-g", GROUP, "-y"])?;
    same(&before)
}
