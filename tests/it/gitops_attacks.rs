//! What a repository, its server or a tenant of the cluster may try through GitOps (docs/threats.md TH40-TH46), against Flux's own
//! controllers and the real agents. One cluster serves for all attempts, because an installation takes a minute.

use std::{
    net::TcpListener,
    os::unix::fs::symlink,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, ensure};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use libtest_mimic::Trial;
use serde_json::Value;
use tests::{
    case::{Needs, installs},
    cluster::cluster,
    git::{Redirector, Repository},
    programs::{eventually, run},
    tls,
};

use crate::{
    connect::GROUP,
    gitops::{FIRST, Gitops, SOON},
};

/// A token that every pod of the controllers has.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// An address of this machine besides that of the cluster's network (RFC 5737), for the time of the test.
const OTHER_HOST: &str = "198.51.100.77";
const TEAM: (&str, &str) = ("namespace", "team");

pub fn tests() -> Vec<Trial> {
    vec![installs(
        "gitops_attacks::attack_th40_th41_th42_th43_th44_th46_repositories_and_tenants_stay_within_their_bounds",
        Needs::Pods,
        all,
    )]
}

/// Each attempt begins before the first is looked at: all wait for the same intervals.
fn all() -> anyhow::Result<()> {
    let gitops = Gitops::start("gitops-attacks", &[])?;
    let create = ["extension", "create", "-g", GROUP, "-c", "c1", "-n", "flux", "--type", "microsoft.flux"];
    gitops.site.ok(&[&create[..], &["--set", "source-controller.workSize=48Mi"]].concat())?;
    let good = gitops.server.repository("good")?;
    let first = good.push(&[("apps/web.yaml", Some(&map("web", "hello")))])?;
    gitops.put("good", &gitops.folders(&good, TEAM, &["apps"]))?;
    gitops.await_compliant("good", &first, FIRST)?;

    let links = attack_th40_files_outside_of_the_repository_are_not_read(&gitops)?;
    let (remote, reached) = attack_th41_nothing_is_fetched_for_a_kustomization(&gitops)?;
    let code = attack_th46_a_kustomization_runs_no_program(&gitops)?;
    let redirect = attack_th43_credentials_do_not_follow_a_redirect(&gitops)?;
    let large = attack_th44_repository_that_is_too_large_is_said_and_harms_no_other(&gitops)?;
    let file = attack_th44_file_that_is_too_large_is_said_and_harms_no_other(&gitops)?;
    attack_th42_tenant_acts_as_nobody_else(&gitops)?;
    for attempt in [&links, &remote, &code] {
        attempt.is_refused(&gitops)?;
    }
    ensure!(reached.load(Ordering::SeqCst) == 0, "kustomize-controller fetched what a repository named");
    redirect.is_refused(&gitops)?;
    large.is_refused(&gitops)?;
    file.is_refused(&gitops)?;

    // Nothing of all that was applied, and the configuration that is good goes on.
    let again = good.push(&[("apps/web.yaml", Some(&map("web", "again")))])?;
    gitops.await_compliant("good", &again, SOON)?;
    let made = gitops.admin.ok(&["-n", "team", "get", "configmaps", "-o", "name"])?;
    let mut made: Vec<&str> = made.lines().filter(|name| *name != "configmap/kube-root-ca.crt").collect();
    made.sort_unstable();
    ensure!(made == ["configmap/web"], "{made:?}");
    gitops.call("DELETE", "fluxConfigurations", "good", &Value::Null)?;
    for name in [links.name, remote.name, code.name, redirect.name, large.name, file.name] {
        gitops.call("DELETE", "fluxConfigurations", name, &Value::Null)?;
    }
    for name in ["good", links.name, remote.name, code.name, redirect.name, large.name, file.name] {
        gitops.delete(name)?;
    }
    gitops.end()
}

fn map(name: &str, greeting: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{greeting: {greeting}}}\n")
}

/// A configuration that must not comply.
struct Attempt {
    name: &'static str,
    /// Objects of Flux, and what each must say.
    refusals: Vec<(String, &'static str)>,
}

impl Attempt {
    /// Begins one: each folder is a kustomization of its own, and must be refused in these words.
    fn begin(
        gitops: &Gitops,
        name: &'static str,
        repository: &Repository,
        refusals: &[(&str, &'static str)],
    ) -> anyhow::Result<Self> {
        let folders: Vec<&str> = refusals.iter().map(|(folder, _)| *folder).collect();
        gitops.put(name, &gitops.folders(repository, TEAM, &folders))?;
        let refusals = refusals.iter().map(|(folder, said)| (format!("{name}-{folder}"), *said)).collect();
        Ok(Self { name, refusals })
    }

    fn is_refused(&self, gitops: &Gitops) -> anyhow::Result<()> {
        let said = |shown: &Value, object: &str, words: &str| {
            let mut statuses = shown["statuses"].as_array().into_iter().flatten();
            statuses.any(|one| {
                one["name"] == object && one["complianceState"] == "Non-Compliant" && one.to_string().contains(words)
            })
        };
        gitops.await_shown(self.name, &format!("is refused: {:?}", self.refusals), SOON, |shown| {
            self.refusals.iter().all(|(object, words)| said(shown, object, words))
        })?;
        Ok(())
    }
}

/// TH40: links and paths that lead out of the repository, to the token of the controller that builds it.
fn attack_th40_files_outside_of_the_repository_are_not_read(gitops: &Gitops) -> anyhow::Result<Attempt> {
    let repository = gitops.server.repository("links")?;
    let steals = |from: &str| {
        format!(
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nconfigMapGenerator:\n- {{name: stolen, files: [\"{from}\"]}}\n"
        )
    };
    for folder in ["link", "absolute", "above"] {
        std::fs::create_dir_all(repository.work.join(folder))?;
    }
    symlink(TOKEN, repository.work.join("link/token"))?;
    symlink("/", repository.work.join("folder"))?;
    repository.push(&[
        ("link/kustomization.yaml", Some(&steals("token"))),
        ("absolute/kustomization.yaml", Some(&steals(&format!("token={TOKEN}")))),
        ("above/kustomization.yaml", Some(&steals(&format!("token=../../../../../../../..{TOKEN}")))),
    ])?;
    Attempt::begin(
        gitops,
        "links",
        &repository,
        &[
            ("link", "no such file"),
            ("absolute", "fs-security-constraint"),
            ("above", "fs-security-constraint"),
            ("folder", "path not found"),
        ],
    )
}

/// TH41: a kustomization names what is to be fetched: the metadata service of a cloud at its link-local address, a server of
/// the cluster's network, metrics of the controller's own pod, and the artifact of another configuration, which
/// source-controller serves without credentials.
fn attack_th41_nothing_is_fetched_for_a_kustomization(gitops: &Gitops) -> anyhow::Result<(Attempt, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind((cluster().get("CLUSTER_HOST_IP"), 0))?;
    let address = listener.local_addr()?;
    let reached = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reached);
    std::thread::spawn(move || {
        for _connection in listener.incoming().flatten() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let artifact = gitops.field("team", "gitrepository/good", "{.status.artifact.url}")?;
    ensure!(artifact.starts_with("http://"), "the artifact of another configuration is at {artifact:?}");
    let repository = gitops.server.repository("remote")?;
    let with = |text: String| format!("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n{text}\n");
    let steals =
        |generator: &str, from: &str| with(format!("{generator}:\n- {{name: stolen, files: [\"it={from}\"]}}"));
    let web = map("patched", "hello");
    let attempts = [
        ("metadata", with("resources: [\"http://169.254.169.254/latest/meta-data/\"]".into())),
        ("file", steals("configMapGenerator", &format!("http://{address}/it"))),
        ("secure", with(format!("resources: [\"https://{address}/it.yaml\"]"))),
        ("base", with(format!("resources: [\"git::http://{address}/team/base.git?ref=main\"]"))),
        ("component", with(format!("components: [\"http://{address}/team/base.git?ref=main\"]"))),
        ("schema", with(format!("resources: [web.yaml]\nopenapi: {{path: \"http://{address}/schema.json\"}}"))),
        ("patch", with(format!("resources: [web.yaml]\npatches: [{{path: \"http://{address}/patch.yaml\"}}]"))),
        ("replacement", with(format!("resources: [web.yaml]\nreplacements: [{{path: \"http://{address}/it.yaml\"}}]"))),
        ("transformer", with(format!("resources: [web.yaml]\ntransformers: [\"http://{address}/it.yaml\"]"))),
        ("metrics", steals("secretGenerator", "http://127.0.0.1:8080/metrics")),
        ("artifact", steals("configMapGenerator", &artifact)),
    ];
    let files: Vec<(String, &str)> = attempts
        .iter()
        .flat_map(|(folder, text)| {
            [(format!("{folder}/kustomization.yaml"), text.as_str()), (format!("{folder}/web.yaml"), web.as_str())]
        })
        .collect();
    let files: Vec<(&str, Option<&str>)> = files.iter().map(|(path, text)| (path.as_str(), Some(*text))).collect();
    repository.push(&files)?;
    let refusals: Vec<_> = attempts.iter().map(|(folder, _)| (*folder, "is not fetched")).collect();
    Ok((Attempt::begin(gitops, "remote", &repository, &refusals)?, reached))
}

/// TH46: plug-ins of kustomize, and charts that it would have helm inflate.
fn attack_th46_a_kustomization_runs_no_program(gitops: &Gitops) -> anyhow::Result<Attempt> {
    let repository = gitops.server.repository("code")?;
    let with = |text: &str| format!("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n{text}\n");
    let plugin = "apiVersion: example.org/v1\nkind: Plugin\nmetadata:\n  name: run\n  annotations:\n    config.kubernetes.io/function: |\n      exec: {path: ./run.sh}\n";
    repository.push(&[
        ("exec/kustomization.yaml", Some(&with("generators: [plugin.yaml]"))),
        ("exec/plugin.yaml", Some(plugin)),
        ("exec/run.sh", Some("#!/bin/sh\nid\n")),
        (
            "helm/kustomization.yaml",
            Some(&with("helmCharts:\n- {name: web, repo: \"https://charts.example.org\", version: 1.0.0}")),
        ),
    ])?;
    Attempt::begin(
        gitops,
        "code",
        &repository,
        &[("exec", "external plugins disabled"), ("helm", "must specify --enable-helm")],
    )
}

/// TH42: what a repository of a namespace, and somebody who may write Flux's objects there, try in order to act as
/// somebody else (the kind of CVE-2026-41050 and CVE-2026-44935).
fn attack_th42_tenant_acts_as_nobody_else(gitops: &Gitops) -> anyhow::Result<()> {
    let kustomization = |name: &str, more: &str| {
        format!(
            "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {{name: {name}, namespace: team}}\n\
             spec: {{interval: 10s, retryInterval: 10s, prune: false, path: ./apps, sourceRef: {{kind: GitRepository, name: good}}, {more}}}\n"
        )
    };
    // Of a repository none is taken, whatever it says.
    let repository = gitops.server.repository("tenant")?;
    repository.push(&[("flux/other.yaml", Some(&kustomization("from-repository", "serviceAccountName: deployer")))])?;
    let attempt = Attempt::begin(gitops, "tenant", &repository, &[("flux", "forbidden")])?;
    // Who may write them in the namespace is an administrator of the cluster by none of them.
    gitops.admin.ok(&["-n", "team", "create", "serviceaccount", "deployer"])?;
    let bind = ["create", "clusterrolebinding", "gitops-attacks", "--clusterrole=cluster-admin"];
    gitops.admin.ok(&[&bind[..], &["--serviceaccount=team:deployer", "--serviceaccount=team:default"]].concat())?;
    let refused = [
        ("as-another", "serviceAccountName: deployer"),
        ("as-default", "force: false"),
        ("elsewhere", "serviceAccountName: flux-applier, targetNamespace: kube-system"),
    ];
    for (name, more) in refused {
        gitops.admin.apply(&kustomization(name, more))?;
    }
    for (name, _) in refused {
        let object = format!("kustomization/{name}");
        let mut said = String::new();
        eventually(&format!("{object} is refused"), SOON, || {
            said = gitops.field("team", &object, "{.status.conditions[*].message}")?;
            Ok(said.contains("dry-run failed (Forbidden)"))
        })
        .with_context(|| format!("{said}\n{}", gitops.state()))?;
        gitops.admin.ok(&["-n", "team", "delete", &object])?;
    }
    attempt.is_refused(gitops)?;
    gitops.admin.ok(&["delete", "clusterrolebinding", "gitops-attacks"])?;
    gitops.delete("tenant")
}

/// An address of this machine that goes again.
struct Address(&'static str);

impl Address {
    fn add(ip: &'static str) -> anyhow::Result<Self> {
        run(
            Command::new("ip").args(["address", "replace", &format!("{ip}/32"), "dev", "lo"]),
            Duration::from_secs(10),
        )?
        .ok()?;
        Ok(Self(ip))
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["address", "delete", &format!("{}/32", self.0), "dev", "lo"]).status();
    }
}

/// TH43: the server of a repository sends who fetches on to another host, which would get the password.
struct Redirected {
    name: &'static str,
    from: Redirector,
    to: Redirector,
    _address: Address,
}

fn attack_th43_credentials_do_not_follow_a_redirect(gitops: &Gitops) -> anyhow::Result<Redirected> {
    let host = cluster().get("CLUSTER_HOST_IP");
    let address = Address::add(OTHER_HOST)?;
    // One authority for both: TLS is no obstacle on the way.
    let server = tls::server_at(&[host, OTHER_HOST], "the authority of both hosts")?;
    let to = Redirector::start_at(OTHER_HOST, server.clone(), None)?;
    let from = Redirector::start_at(host, server, Some(format!("https://{}", to.address)))?;
    let repository = gitops.server.repository("redirect")?;
    let mut properties = gitops.folders(&repository, TEAM, &["apps"]);
    properties["gitRepository"]["url"] = format!("https://{}/redirect.git", from.address).into();
    properties["gitRepository"]["httpsCACert"] = BASE64.encode(&from.ca).into();
    gitops.put("redirect", &properties)?;
    Ok(Redirected { name: "redirect", from, to, _address: address })
}

impl Redirected {
    fn is_refused(&self, gitops: &Gitops) -> anyhow::Result<()> {
        gitops.await_shown(self.name, "is refused", SOON, |shown| shown["complianceState"] == "Non-Compliant")?;
        let (first, second) = (self.from.seen(), self.to.seen());
        ensure!(
            first.iter().any(|one| one.starts_with("Basic ")),
            "the repository's own host is shown the password: {first:?}"
        );
        ensure!(!second.is_empty(), "nobody came to the other host");
        ensure!(second.iter().all(String::is_empty), "the other host was shown {second:?}");
        Ok(())
    }
}

/// A repository with files of so many MiB. They are zeros, so that they are large for source-controller alone, and nothing
/// waits for a network or a compression.
fn with_files(gitops: &Gitops, name: &'static str, sizes: &[u64]) -> anyhow::Result<()> {
    let repository = gitops.server.repository(name)?;
    let files: Vec<_> = sizes.iter().map(|mib| repository.work.join(format!("{mib}.bin"))).collect();
    for (file, mib) in files.iter().zip(sizes) {
        std::fs::File::create(file)?.set_len(mib * 1024 * 1024)?;
    }
    repository.push(&[("apps/web.yaml", Some(&map(name, "hello")))])?;
    // What is left is read for secrets at the end of a run, byte by byte.
    files.iter().try_for_each(std::fs::remove_file)?;
    gitops.put(name, &gitops.folders(&repository, TEAM, &["apps"]))
}

/// TH44: more than there is room for, which source-controller says of this one, and goes on with the others.
fn attack_th44_repository_that_is_too_large_is_said_and_harms_no_other(gitops: &Gitops) -> anyhow::Result<Attempt> {
    with_files(gitops, "large", &[18, 19, 20])?;
    Ok(Attempt { name: "large", refusals: vec![("large".to_owned(), "no space left on device")] })
}

/// TH44: one file that would take all memory of source-controller, which has 1 GiB.
fn attack_th44_file_that_is_too_large_is_said_and_harms_no_other(gitops: &Gitops) -> anyhow::Result<Attempt> {
    with_files(gitops, "file", &[65])?;
    Ok(Attempt { name: "file", refusals: vec![("file".to_owned(), "a file of 65 MiB is too large")] })
}
