//! Guard as pods of the real cluster, installed and set up by the commands of docs/guard.md as they stand there, and
//! asked by another apiserver of that cluster (docs/features.md Z1, Z7, Z8, Z10, B1).

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime},
};

use anyhow::{Context, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use certs::{Authority, Credentials, Validity};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    case::{Needs, full, installs},
    cluster::{AnotherApiserver, cluster},
    kubectl::{Kubectl, Protocol, pod},
    programs::{Output, binary, eventually, root, run, scratch},
    stack::note_secret,
};

use crate::connect::{GROUP, Site, pods, same, settled, with_pods};

const SEEN: &str = "guard-seen";
const PODS: &str = "app.kubernetes.io/name=towline-guard";
const DAY: Duration = Duration::from_secs(86_400);

pub fn tests() -> Vec<Trial> {
    vec![installs(
        "guard_pods::z1_z7_z8_z10_b1_pods_answer_an_apiserver_by_the_commands_of_the_guide",
        Needs::Pods,
        guide,
    )]
}

/// The blocks of commands of the guide, in their order, and the flags of the apiserver.
struct Guide {
    install: String,
    files: String,
    flags: String,
    users: String,
    look: String,
    replace: String,
}

impl Guide {
    fn read() -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(root().join("docs/guard.md"))?;
        let block = |rest: &str| {
            Some(rest.split("```").next()?.lines().map(|line| line.trim_start().to_owned() + "\n").collect())
        };
        let blocks: Vec<String> = text.split("```sh\n").skip(1).filter_map(block).collect();
        let [install, files, users, look, replace] = blocks
            .try_into()
            .map_err(|found: Vec<String>| anyhow::anyhow!("{} blocks of commands in the guide", found.len()))?;
        let flags =
            text.split("```\n").filter(|block| block.trim_start().starts_with("--authentication-token-webhook"));
        let flags = flags.map(str::to_owned).next().context("no flags in the guide")?;
        Ok(Self { install, files, flags, users, look, replace })
    }
}

/// Where the commands are typed, on a machine of an apiserver that has the cluster's administrator.
struct Desk<'a> {
    site: &'a Site,
    folder: PathBuf,
    /// Of the other apiserver, once there is one.
    server: String,
}

impl Desk<'_> {
    /// In place of `/etc/kubernetes/guard`.
    fn files(&self) -> String {
        self.folder.join("etc").display().to_string()
    }

    fn typed(&self, block: &str) -> String {
        block
            .replace("GROUP", GROUP)
            .replace("CLUSTER", "c1")
            .replace("NAMESPACE", SEEN)
            .replace("USER", "viewer")
            .replace("/etc/kubernetes/guard", &self.files())
            .replace("https://10.0.0.10:6443", &self.server)
            .replace("/path/to/ca.crt", cluster().get("CLUSTER_CA"))
    }

    fn try_in(&self, block: &str, kubeconfig: &Path) -> anyhow::Result<Output> {
        let folder = |program: &Path| program.parent().map(|dir| dir.display().to_string()).unwrap_or_default();
        let path = format!("{}:{}", folder(&binary("towline")), folder(Path::new(cluster().get("CLUSTER_KUBECTL"))));
        let mut command = Command::new("sh");
        command.args(["-eux", "-c", &self.typed(block)]).current_dir(&self.folder);
        for (name, value) in self.site.command(&[]).get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        command.env("PATH", format!("{path}:/usr/bin:/bin")).env("KUBECONFIG", kubeconfig);
        run(&mut command, Duration::from_secs(400))
    }

    fn type_in(&self, block: &str, kubeconfig: &Path) -> anyhow::Result<Output> {
        let output = self.try_in(block, kubeconfig)?;
        output.ok().with_context(|| format!("{block}\n{}\n{}", output.err, pods()))?;
        Ok(output)
    }

    /// The cluster's administrator straight at the other apiserver.
    fn admin_file(&self) -> anyhow::Result<PathBuf> {
        let text = cluster().admin().ok(&["config", "view", "--raw", "--flatten", "-o", "json"])?;
        let mut config: Value = serde_json::from_str(&text)?;
        config["clusters"][0]["cluster"]["server"] = self.server.as_str().into();
        let file = self.folder.join("admin.kubeconfig");
        std::fs::write(&file, config.to_string())?;
        Ok(file)
    }

    /// A user of the gateway's issuer straight at the other apiserver, with a token that they have got already.
    fn user(&self, id: &str, name: &str) -> anyhow::Result<Kubectl> {
        let file = self.folder.join(format!("{name}.kubeconfig"));
        let stack = &self.site.stack;
        let password = stack.state().join(format!("users/{name}.password")).display().to_string();
        let (shown, url, gateway_ca) = (file.display().to_string(), stack.text("url"), stack.text("ca"));
        let whom = ["--server", &url, "--ca", &gateway_ca, "--user", name, "--password-file", &password];
        let straight = ["--direct", &self.server, "--certificate-authority", cluster().get("CLUSTER_CA")];
        let kubeconfig = ["kubeconfig", "--cluster", id, "--file", &shown, "--embed-token"];
        self.site.ok(&[&kubeconfig[..], &whom, &straight].concat())?;
        let config: Value = serde_json::from_str(&Kubectl::new(&file).ok(&["config", "view", "--raw", "-o", "json"])?)?;
        note_secret(config["users"][0]["user"]["token"].as_str().context("no token")?)?;
        Ok(Kubectl::new(&file).home(self.folder.join(format!("{name}-home"))))
    }

    /// The apiserver, started with the flags of the guide; what it remembers ends after a second, so that changes show.
    fn start(&self, guide: &Guide, port: Option<u16>) -> anyhow::Result<AnotherApiserver> {
        let typed = self.typed(&guide.flags);
        let mut flags: Vec<String> =
            typed.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect();
        flags.extend(
            [
                "authentication-token-webhook-cache-ttl",
                "authorization-webhook-cache-authorized-ttl",
                "authorization-webhook-cache-unauthorized-ttl",
            ]
            .map(|name| format!("--{name}=1s")),
        );
        AnotherApiserver::start(&self.site.stack.dir, port, &flags)
    }
}

fn unknown(kubectl: &Kubectl) -> anyhow::Result<()> {
    eventually("nobody of the gateway gets in", Duration::from_secs(60), || {
        let told = kubectl.run(&["get", "configmaps", "-n", SEEN])?.refused();
        Ok(told.is_ok_and(|told| told.contains("Unauthorized") || told.contains("provide credentials")))
    })
    .map(drop)
}

fn sees(kubectl: &Kubectl) -> anyhow::Result<()> {
    eventually("a viewer sees what an assignment says", Duration::from_secs(60), || {
        Ok(kubectl.run(&["get", "configmaps", "-n", SEEN, "-o", "name"])?.text().contains("configmap/one"))
    })
    .with_context(pods)
    .map(drop)
}

fn refused(kubectl: &Kubectl, args: &[&str]) -> anyhow::Result<()> {
    let told = kubectl.run(args)?.refused()?;
    ensure!(told.contains("User does not have access to the resource in Azure."), "{args:?}: {told}");
    Ok(())
}

fn guide() -> anyhow::Result<()> {
    let guide = Guide::read()?;
    let site = with_pods("guard-pods")?;
    let admin = cluster().admin();
    let before = settled()?;
    admin.ok(&["create", "namespace", SEEN])?;
    let seen = admin.clone().namespace(SEEN);
    seen.ok(&["create", "configmap", "one"])?;
    seen.apply(&pod("here", "sleep 3600"))?;
    // A folder of this name is left out when everything that was written is read for secrets.
    let folder = scratch("guard-pods-desk").join("state");
    std::fs::create_dir_all(&folder)?;
    let mut desk = Desk { site: &site, folder, server: String::new() };

    desk.type_in(&guide.install, cluster().admin_kubeconfig())?;
    eventually("guard has handed its files out", Duration::from_secs(30), || {
        let files = ["-n", "kube-system", "get", "secret", "towline-guard-manifests", "-o", "jsonpath={.data}"];
        Ok(admin.ok(&files)?.contains("guard-authz-webhook.yaml"))
    })
    .with_context(pods)?;
    desk.type_in(&guide.files, cluster().admin_kubeconfig())?;
    let apiserver = desk.start(&guide, None)?;
    desk.server.clone_from(&apiserver.url);
    let own_file = desk.folder.join("own.kubeconfig");
    desk.type_in(&guide.users, &own_file)?;
    let whole =
        "towline role assignment create -g GROUP -n CLUSTER --role \"Azure Arc Kubernetes Cluster Admin\" --assignee";
    desk.type_in(&format!("{whole} owner\n{whole} admin\n"), cluster().admin_kubeconfig())?;
    eventually("an owner gets through by the guide's kubeconfig", Duration::from_secs(60), || {
        Ok(desk.try_in("kubectl get namespaces", &own_file)?.code == Some(0))
    })
    .with_context(pods)?;

    let id = site.clusters()?[0]["id"].as_str().context("no id")?.to_owned();
    let (owner, viewer, stranger) = (desk.user(&id, "admin")?, desk.user(&id, "viewer")?, desk.user(&id, "stranger")?);
    straight(&owner, &viewer, &stranger)?;
    troubleshoot(&desk, &guide)?;

    // The gateway is gone: what it said last holds, for pods that start now as well, and so do tokens that were given
    // before.
    eventually("guard has kept its snapshot", Duration::from_secs(60), || {
        let kept = ["-n", "towline", "get", "secret", "towline-guard-snapshot", "-o", "jsonpath={.data}"];
        Ok(admin.ok(&kept)?.contains("snapshot.json.gz"))
    })
    .with_context(pods)?;
    site.stack.kill_gateway();
    sees(&viewer)?;
    admin.ok(&["-n", "towline", "delete", "pods", "-l", PODS, "--force", "--grace-period=0"])?;
    sees(&viewer)?;
    refused(&viewer, &["get", "secrets", "-n", SEEN])?;
    exec(&owner)?;
    site.stack.restart_gateway()?;

    let own = Kubectl::new(&desk.admin_file()?);
    killed(&viewer, &own)?;
    // Certificates that ended and files that are replaced need guard, and an apiserver, to start again: the long run.
    if full() {
        renewed(&viewer)?;
        killed(&viewer, &own)?;
        replaced(&desk, &guide, apiserver, (&viewer, &own))?;
    }

    admin.ok(&["delete", "namespace", SEEN])?;
    site.ok(&["delete", "-n", "c1", "-g", GROUP, "-y"])?;
    same(&before)
}

/// By the guide: the files that were handed out open nothing once others are made, and an apiserver works with those.
fn replaced(
    desk: &Desk<'_>,
    guide: &Guide,
    apiserver: AnotherApiserver,
    (viewer, own): (&Kubectl, &Kubectl),
) -> anyhow::Result<()> {
    let admin = cluster().admin();
    let handed_out = || {
        let version = [
            "-n",
            "kube-system",
            "get",
            "secret",
            "towline-guard-manifests",
            "-o",
            "jsonpath={.metadata.resourceVersion}",
        ];
        admin.ok(&version)
    };
    let old = handed_out()?;
    let told = desk.type_in(&guide.replace, cluster().admin_kubeconfig())?.text();
    ensure!(told.contains(&old), "the version of the old files: {told}");
    eventually("guard has handed other files out", Duration::from_secs(90), || Ok(handed_out()? != old))
        .with_context(pods)?;
    unknown(viewer).context("the old files open nothing any more")?;
    ensure!(own.run(&["get", "configmaps", "-n", SEEN])?.code == Some(0), "the cluster's own are not locked out");
    desk.type_in(&guide.files, cluster().admin_kubeconfig())?;
    let port = apiserver.port();
    drop(apiserver);
    let _apiserver = desk.start(guide, port)?;
    sees(viewer)
}

/// Each as they are through the tunnel.
fn straight(owner: &Kubectl, viewer: &Kubectl, stranger: &Kubectl) -> anyhow::Result<()> {
    sees(viewer)?;
    ensure!(owner.ok(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"])? == "admin");
    ensure!(owner.ok(&["get", "--raw", "/metrics"])?.contains("apiserver_"));
    exec(owner)?;
    for forbidden in [
        &["get", "secrets", "-n", SEEN][..],
        &["get", "configmaps", "-n", "default"],
        &["exec", "-n", SEEN, "here", "--", "id"],
        &["delete", "configmap", "one", "-n", SEEN],
        &["get", "configmaps", "-n", SEEN, "--as", "admin"],
    ] {
        refused(viewer, forbidden)?;
    }
    refused(stranger, &["get", "configmaps", "-n", SEEN])?;
    let listed = viewer.run(&["auth", "can-i", "--list", "-n", SEEN])?;
    ensure!(listed.code == Some(0) && listed.err.contains("incomplete"), "{}", listed.err);
    ensure!(viewer.ok(&["auth", "can-i", "list", "configmaps", "-n", SEEN])?.contains("yes"));
    ensure!(viewer.run(&["auth", "can-i", "create", "pods/exec", "-n", SEEN])?.text().contains("no"));
    Ok(())
}

fn exec(owner: &Kubectl) -> anyhow::Result<()> {
    cluster().admin().ok(&["wait", "-n", SEEN, "pod/here", "--for=condition=Ready", "--timeout=50s"])?;
    for protocol in Protocol::ALL {
        let said = owner.clone().protocol(protocol).ok(&["exec", "-n", SEEN, "here", "--", "echo", "straight"])?;
        ensure!(said.trim() == "straight", "{protocol:?}: {said}");
    }
    Ok(())
}

/// Of the apiserver that asks guard all is well; the other one is said not to ask.
fn troubleshoot(desk: &Desk<'_>, guide: &Guide) -> anyhow::Result<()> {
    let block = guide.look.trim_end().to_owned() + " -o json";
    let found = |kubeconfig: &Path| -> anyhow::Result<Vec<Value>> {
        Ok(serde_json::from_str(&desk.try_in(&block, kubeconfig)?.text())?)
    };
    let of = |all: &[Value], check: &str| all.iter().find(|one| one["check"] == check).cloned().unwrap_or_default();
    let all = found(&desk.admin_file()?)?;
    for check in ["guard_pods_check", "guard_certificate_check", "guard_apiserver_check", "guard_token_check"] {
        ensure!(of(&all, check)["state"] == "Passed", "{check}: {all:?}");
    }
    let all = found(cluster().admin_kubeconfig())?;
    for check in ["guard_apiserver_check", "guard_token_check"] {
        let asks = of(&all, check);
        ensure!(
            asks["state"] == "Failed"
                && asks["remedies"][0].as_str().is_some_and(|text| text.contains("docs/guard.md")),
            "{asks}"
        );
    }
    Ok(())
}

/// Nobody of the gateway gets in, and nobody of the cluster's own is locked out.
fn killed(viewer: &Kubectl, own: &Kubectl) -> anyhow::Result<()> {
    let guards = cluster().admin().namespace("towline");
    guards.ok(&["scale", "deployment", "guard", "--replicas=0"])?;
    guards.ok(&["delete", "pods", "-l", PODS, "--force", "--grace-period=0"])?;
    unknown(viewer)?;
    ensure!(own.run(&["get", "configmaps", "-n", SEEN])?.code == Some(0), "{}", pods());
    Ok(())
}

/// Guard finds its certificate ended, as after three months without power, and makes another one: an apiserver needs
/// no other files.
fn renewed(viewer: &Kubectl) -> anyhow::Result<()> {
    let guards = cluster().admin().namespace("towline");
    let kept = || -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&guards.ok(&[
            "get",
            "secret",
            "towline-guard-certificate",
            "-o",
            "jsonpath={.data}",
        ])?)?)
    };
    let text = |data: &Value, key: &str| -> anyhow::Result<String> {
        Ok(String::from_utf8(BASE64.decode(data[key].as_str().with_context(|| format!("no {key}"))?)?)?)
    };
    let data = kept()?;
    let authority = Authority::from_pem(&text(&data, "ca.crt")?, &text(&data, "ca.key")?)?;
    let good = Credentials::from_pem(text(&data, "tls.crt")?.as_bytes(), text(&data, "tls.key")?.as_bytes())?;
    let names = good.server_names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let now = SystemTime::now();
    let ended = authority.issue_server(&names, Validity { not_before: now - 91 * DAY, not_after: now - DAY })?;
    let patch =
        json!({"data": {"tls.crt": BASE64.encode(&ended.certificate_pem), "tls.key": BASE64.encode(ended.key_pem())}});
    guards.ok(&["patch", "secret", "towline-guard-certificate", "--type", "merge", "-p", &patch.to_string()])?;
    guards.ok(&["scale", "deployment", "guard", "--replicas=2"])?;
    sees(viewer)?;
    let data = kept()?;
    let renewed = Credentials::from_pem(text(&data, "tls.crt")?.as_bytes(), text(&data, "tls.key")?.as_bytes())?;
    ensure!(renewed.not_after() > now + 80 * DAY, "{}", pods());
    Ok(())
}
