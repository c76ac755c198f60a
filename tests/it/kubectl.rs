//! What `kubectl` does with the API, through the tunnel as next to the apiserver (docs/features.md K6).

use std::time::Duration;

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use tests::{
    case::{Needs, alone, case, full, installs},
    cluster::cluster,
    curl::{VERSIONS, curl},
    kubectl::Kubectl,
    leftovers::{gone, remove},
    programs::eventually,
    raw::Answer,
    stack::{CARRIERS, Stack, shared},
};

/// What a test does on a carrier.
type Run = fn(&'static str) -> anyhow::Result<()>;

/// Each test on one carrier, in turn; on all of them in the long run.
pub fn spread(tests: &[(&'static str, Needs, Run)], turn: usize) -> Vec<Trial> {
    let mut trials = Vec::new();
    for (index, &(name, needs, run)) in tests.iter().enumerate() {
        for (place, carrier) in CARRIERS.into_iter().enumerate() {
            if full() || (index + turn) % CARRIERS.len() == place {
                trials.push(case(format!("{name}::{carrier}"), needs, move || run(carrier)));
            }
        }
    }
    trials
}

/// What a verb of kubectl is tried on.
struct Site {
    stack: &'static Stack,
    carrier: &'static str,
    /// The version under test, in the namespace.
    kubectl: Kubectl,
    /// The same version, not through the tunnel.
    direct: Kubectl,
    old: bool,
}

/// A machine that is busy with something else takes its time.
const SLOW: Duration = Duration::from_secs(180);

type Verb = fn(&Site) -> anyhow::Result<()>;

/// What both kubectls do: the cluster's version, and Debian's 1.20.
const VERBS: [(&str, Needs, Verb); 9] = [
    ("get_table_and_yaml", Needs::Cluster, get_table_and_yaml),
    ("create_apply_patch_delete", Needs::Cluster, create_apply_patch_delete),
    ("server_side_apply_conflicts", Needs::Cluster, server_side_apply_conflicts),
    ("list_in_chunks", Needs::Cluster, list_in_chunks),
    ("watch_shows_events_as_they_happen", Needs::Cluster, watch_shows_events),
    ("rollout_status_and_wait", Needs::Pods, rollout_and_wait),
    ("explain_and_api_resources", Needs::Cluster, explain),
    ("large_custom_resource", Needs::Cluster, large_custom_resource),
    ("kubectl_proxy", Needs::Cluster, kubectl_proxy),
];

pub fn tests() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (turn, old) in [false, true].into_iter().enumerate() {
        for (index, (name, needs, verb)) in VERBS.into_iter().enumerate() {
            for (place, carrier) in CARRIERS.into_iter().enumerate() {
                if full() || (index + turn) % CARRIERS.len() == place {
                    let name = format!("{}{name}", if old { "old_" } else { "" });
                    let title = format!("kubectl::{name}::{carrier}");
                    trials.push(case(title, needs, move || verb(&site(&name.replace('_', "-"), carrier, old)?)));
                }
            }
        }
    }
    trials.extend(spread(
        &[
            ("kubectl::errors_and_warnings_unchanged", Needs::Cluster, errors_and_warnings),
            ("kubectl::protobuf_bodies", Needs::Cluster, protobuf_bodies),
            ("kubectl::as_another_user", Needs::Cluster, as_another_user),
        ],
        0,
    ));
    // For minutes discovery is never whole: with old clients all others would time out.
    let turn = VERBS.len() % CARRIERS.len();
    for carrier in
        CARRIERS.into_iter().enumerate().filter(|&(place, _)| full() || place == turn).map(|(_, carrier)| carrier)
    {
        let title = format!("kubectl::discovery_of_150_groups::{carrier}");
        trials.push(installs(title, Needs::Cluster, move || discovery_of_150_groups(carrier)));
    }
    // An APIService is one for the whole cluster: on one carrier only, and while it comes and goes discovery is not
    // whole.
    trials.push(alone("kubectl::aggregated_api::h2", Needs::Pods, || aggregated_api("h2")));
    trials
}

fn site(test: &str, carrier: &'static str, old: bool) -> anyhow::Result<Site> {
    let (kubectl, name) = admin(carrier, test)?;
    let (kubectl, direct) = (kubectl.within(SLOW), cluster().admin().namespace(&name).within(SLOW));
    let (kubectl, direct) = if old { (kubectl.old(), direct.old()) } else { (kubectl, direct) };
    Ok(Site { stack: shared(carrier), carrier, kubectl, direct, old })
}

/// A namespace for one test on one carrier, made anew.
pub fn namespace(test: &str, carrier: &str) -> anyhow::Result<String> {
    let name = format!("{test}-{carrier}");
    let admin = cluster().admin();
    admin.run(&["delete", "namespace", &name, "--ignore-not-found", "--wait=true"])?;
    admin.ok(&["create", "namespace", &name])?;
    eventually("the namespace's service account", Duration::from_secs(20), || {
        Ok(admin.run(&["-n", &name, "get", "serviceaccount", "default"])?.code == Some(0))
    })?;
    Ok(name)
}

fn admin(carrier: &str, test: &str) -> anyhow::Result<(Kubectl, String)> {
    let name = namespace(test, carrier)?;
    Ok((shared(carrier).kubectl("admin")?.namespace(&name), name))
}

fn get_table_and_yaml(site: &Site) -> anyhow::Result<()> {
    site.kubectl.ok(&["create", "configmap", "a", "--from-literal=x=1"])?;
    for args in [
        &["get", "namespaces", "default", "kube-system", "--no-headers"][..],
        &["get", "namespace", "kube-system", "-o", "yaml"],
        &["get", "configmap", "a", "-o", "yaml"],
        &["get", "configmap", "a", "-o", "wide"],
        &["describe", "configmap", "a"],
    ] {
        let (through, direct) = (site.kubectl.ok(args)?, site.direct.ok(args)?);
        ensure!(without_ages(&through) == without_ages(&direct), "through the tunnel:\n{through}\ndirectly:\n{direct}");
    }
    let table = site.kubectl.ok(&["get", "namespaces", "default", "kube-system", "--no-headers"])?;
    ensure!(table.lines().count() == 2 && table.contains("Active"), "{table}");
    // Four thousand names are a request target of more than 32 KiB.
    site.kubectl.ok(&["label", "configmap", "a", "n=n3999"])?;
    let names: Vec<String> = (0..4000).map(|number| format!("n{number}")).collect();
    let wanted = format!("n in ({})", names.join(","));
    let found = site.kubectl.ok(&["get", "configmaps", "-l", &wanted, "-o", "name"])?;
    ensure!(found == "configmap/a\n", "{found}");
    Ok(())
}

/// Words of each line but ages such as `3m12s`, which differ from one look to the next.
fn without_ages(text: &str) -> Vec<Vec<&str>> {
    let age = |word: &&str| {
        word.starts_with(|c: char| c.is_ascii_digit())
            && word.ends_with(['s', 'm', 'h', 'd'])
            && word.chars().all(|c| c.is_ascii_digit() || "smhd".contains(c))
    };
    text.lines().map(|line| line.split_whitespace().filter(|word| !age(word)).collect()).collect()
}

fn create_apply_patch_delete(site: &Site) -> anyhow::Result<()> {
    let kubectl = &site.kubectl;
    kubectl.ok(&["create", "configmap", "a", "--from-literal=x=1"])?;
    kubectl.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\ndata: {x: '1'}\n")?;
    kubectl.ok(&["patch", "configmap", "b", "--type=merge", "-p", r#"{"data":{"y":"2"}}"#])?;
    kubectl.ok(&["patch", "configmap", "b", "--type=json", "-p", r#"[{"op":"remove","path":"/data/x"}]"#])?;
    ensure!(kubectl.ok(&["get", "configmap", "b", "-o", "jsonpath={.data}"])? == r#"{"y":"2"}"#);
    kubectl.ok(&["delete", "configmap", "a", "b"])?;
    let error = kubectl.run(&["get", "configmap", "a"])?.refused()?;
    ensure!(error.contains("NotFound"), "{error}");
    Ok(())
}

fn server_side_apply_conflicts(site: &Site) -> anyhow::Result<()> {
    let kubectl = &site.kubectl;
    let manifest =
        |value: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: s}}\ndata: {{x: '{value}'}}\n");
    kubectl.run_with(&["apply", "--server-side", "--field-manager=one", "-f", "-"], manifest("1").as_bytes())?.ok()?;
    let error = kubectl
        .run_with(&["apply", "--server-side", "--field-manager=two", "-f", "-"], manifest("2").as_bytes())?
        .refused()?;
    ensure!(error.contains("conflict"), "{error}");
    kubectl
        .run_with(
            &["apply", "--server-side", "--force-conflicts", "--field-manager=two", "-f", "-"],
            manifest("2").as_bytes(),
        )?
        .ok()?;
    Ok(())
}

fn list_in_chunks(site: &Site) -> anyhow::Result<()> {
    let kubectl = &site.kubectl;
    let many: String =
        (0..120).map(|n| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c{n}}}\n---\n")).collect();
    kubectl.run_with(&["create", "-f", "-"], many.as_bytes())?.ok()?;
    let output = kubectl.run(&["get", "configmaps", "--chunk-size=10", "-o", "name", "-v=8"])?;
    output.ok()?;
    let pages = output.err.matches("continue=").count();
    ensure!(pages >= 11, "{pages} pages seen");
    ensure!(output.text().lines().filter(|line| line.starts_with("configmap/c")).count() == 120);
    Ok(())
}

fn watch_shows_events(site: &Site) -> anyhow::Result<()> {
    use std::io::{BufRead, BufReader};
    let kubectl = &site.kubectl;
    let mut child = kubectl
        .command(&["get", "configmaps", "--watch-only", "-o", "name"])
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    let (line, lines) = std::sync::mpsc::channel();
    let out = BufReader::new(child.stdout.take().unwrap());
    std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|text| line.send(text)));
    // A watch begins at some moment after the start: make objects until one is seen, then each must be seen by itself.
    let mut seen = 0;
    for number in 0..200 {
        kubectl.ok(&["create", "configmap", &format!("w{number}")])?;
        let wait = if seen == 0 { Duration::from_millis(200) } else { Duration::from_secs(10) };
        match lines.recv_timeout(wait) {
            Ok(text) => {
                ensure!(text.starts_with("configmap/"), "{text}");
                seen += 1;
            }
            Err(_) if seen == 0 => {}
            Err(error) => return Err(error).context("an event did not arrive before the next was made"),
        }
        if seen == 5 {
            break;
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    ensure!(seen == 5, "no event was seen");
    Ok(())
}

fn rollout_and_wait(site: &Site) -> anyhow::Result<()> {
    let kubectl = &site.kubectl;
    let image = cluster().get("CLUSTER_IMAGE");
    kubectl.apply(&format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d}}\nspec:\n  replicas: 2\n  selector: {{matchLabels: {{app: d}}}}\n  template:\n    metadata: {{labels: {{app: d}}}}\n    spec:\n      terminationGracePeriodSeconds: 0\n      containers:\n      - {{name: main, image: '{image}', imagePullPolicy: Never, command: [sleep, '100000']}}\n"
    ))?;
    kubectl.ok(&["rollout", "status", "deployment/d", "--timeout=50s"])?;
    kubectl.ok(&["wait", "--for=condition=Available", "deployment/d", "--timeout=30s"])?;
    kubectl.ok(&["delete", "deployment", "d", "--wait=true"])?;
    Ok(())
}

fn explain(site: &Site) -> anyhow::Result<()> {
    let kubectl = &site.kubectl;
    // Other tests make and remove groups meanwhile, and what goes in the middle of a discovery fails it.
    let settled = |kubectl: &Kubectl, args: &[&str]| {
        let mut answer = String::new();
        eventually("api groups stand still", SLOW, || Ok(kubectl.ok(args).map(|text| answer = text).is_ok()))
            .with_context(|| format!("{args:?}"))?;
        anyhow::Ok(answer)
    };
    for (args, holds) in [
        (&["explain", "deployment.spec.replicas"][..], "replicas"),
        (&["explain", "pods", "--recursive"], "containers"),
        (&["api-versions"], "apps/v1"),
        (&["api-resources", "--api-group=apps"], "deployments"),
    ] {
        let (through, direct) = (settled(kubectl, args)?, settled(&site.direct, args)?);
        let known = |text: &str| text.lines().filter(|line| !line.contains("towline.test")).count();
        ensure!(known(&through) == known(&direct) && known(&through) >= 3, "{args:?}: {through}\n{direct}");
        ensure!(through.contains(holds), "{args:?}: {through}");
    }
    ensure!(settled(kubectl, &["api-resources"])?.contains("deployments"));
    ensure!(kubectl.ok(&["version", "-o", "json"])?.contains("serverVersion"));
    // By its TLS server name the cluster has no path prefix, which the old one drops here.
    ensure!(kubectl.ok(&["get", "--raw", "/readyz"])? == "ok");
    Ok(())
}

fn crd(group: &str) -> String {
    format!(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: things.{group}, labels: {{towline.test/group: things}}}}\nspec:\n  group: {group}\n  scope: Namespaced\n  names: {{plural: things, singular: thing, kind: Thing}}\n  versions:\n  - name: v1\n    served: true\n    storage: true\n    schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}\n---\n"
    )
}

fn large_custom_resource(site: &Site) -> anyhow::Result<()> {
    let kubectl = &site.kubectl;
    let group = format!("{}.{}.large.towline.test", site.carrier, if site.old { "old" } else { "new" });
    kubectl.apply(&crd(&group))?;
    kubectl.ok(&["wait", "--for=condition=Established", &format!("crd/things.{group}"), "--timeout=2m"])?;
    let data = "0123456789abcdef".repeat(1_400_000 / 16);
    let object = serde_json::json!({"apiVersion": format!("{group}/v1"), "kind": "Thing", "metadata": {"name": "big"}, "data": data});
    eventually("the resource is served", SLOW, || {
        Ok(kubectl.run(&["get", &format!("things.{group}")])?.code == Some(0))
    })?;
    kubectl.run_with(&["create", "-f", "-"], object.to_string().as_bytes())?.ok()?;
    let back: serde_json::Value =
        serde_json::from_str(&kubectl.ok(&["get", &format!("things.{group}"), "big", "-o", "json"])?)?;
    ensure!(back["data"] == object["data"], "1.4 MB came back changed");
    remove(kubectl, &[&format!("things.{group}")], &[])
}

/// All groups arrive, with every client, and nothing of ours holds a client back: neither a 429, nor a pace of so many
/// requests in a second, as the throttle of a client in the path would have.
fn discovery_of_150_groups(carrier: &'static str) -> anyhow::Result<()> {
    let kubectl = shared(carrier).kubectl("admin")?.within(Duration::from_secs(180));
    let groups: Vec<_> = (0..150).map(|n| format!("g{n}.{carrier}.many.towline.test")).collect();
    let all: String = groups.iter().map(|group| crd(group)).collect();
    kubectl.run_with(&["create", "-f", "-"], all.as_bytes())?.ok()?;
    let outcome = discovered(carrier, &kubectl, &groups);
    let names: Vec<_> = groups.iter().map(|group| format!("things.{group}")).collect();
    let all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?labelSelector=towline.test/group%3Dthings";
    kubectl.ok(&["delete", "--raw", all])?;
    gone(&kubectl.within(SLOW), &names.iter().map(String::as_str).collect::<Vec<_>>(), &[])?;
    eventually("no group is served any more", Duration::from_secs(120), || {
        let served = cluster().admin().ok(&["get", "--raw", "/apis"])?;
        Ok(!groups.iter().any(|group| served.contains(group.as_str())))
    })?;
    outcome
}

fn discovered(carrier: &'static str, kubectl: &Kubectl, groups: &[String]) -> anyhow::Result<()> {
    let stack = shared(carrier);
    let listed = |text: &str| groups.iter().filter(|group| text.contains(group.as_str())).count();
    eventually("all groups are served", Duration::from_secs(90), || {
        Ok(listed(&cluster().admin().ok(&["api-resources", "--cached=false"])?) == groups.len())
    })?;
    // The new one asks for all at once, the old one for each group by itself.
    for kubectl in [kubectl.clone(), kubectl.clone().old()] {
        let mut output = kubectl.run(&["api-resources", "--cached=false", "-v=6"])?;
        // What goes in the middle of a discovery fails it.
        eventually("api groups stand still", Duration::from_secs(120), || {
            if output.err.contains("unable to retrieve the complete list") {
                output = kubectl.run(&["api-resources", "--cached=false", "-v=6"])?;
            }
            Ok(output.code == Some(0))
        })
        .with_context(|| output.err.chars().rev().take(2000).collect::<String>().chars().rev().collect::<String>())?;
        ensure!(listed(&output.text()) == groups.len(), "{} groups in {}", listed(&output.text()), output.text());
        // Not `429` alone: an answer may take that many milliseconds.
        ensure!(!output.err.contains("Too Many Requests"), "{}", output.err);
    }
    let token = stack.token("admin")?;
    let paths: Vec<String> = groups.iter().map(|group| format!("/apis/{group}/v1")).collect();
    let paths: Vec<String> = (0..6).flat_map(|_| paths.clone()).collect();
    for version in VERSIONS {
        let start = std::time::Instant::now();
        let answers = curl(stack, version, &token, &paths, None)?;
        let took = start.elapsed();
        for (path, answer) in paths.iter().zip(&answers) {
            ensure!(answer.status == 200, "{path}: {}", answer.head);
            let body: serde_json::Value = serde_json::from_slice(&answer.body)?;
            ensure!(
                format!("/apis/{}", body["groupVersion"].as_str().unwrap_or_default()) == *path
                    && body["resources"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == "things")),
                "{path}: {body}"
            );
        }
        // At 10 a second, twice what client libraries allow themselves, it would be 90 s.
        ensure!(took < Duration::from_secs(60), "{version:?}: 900 requests took {took:?}");
    }
    let metrics = stack.admin_get("/metrics")?;
    ensure!(!metrics.contains("status=\"429\""), "{metrics}");
    Ok(())
}

fn errors_and_warnings(carrier: &'static str) -> anyhow::Result<()> {
    let (kubectl, namespace) = admin(carrier, "errors")?;
    let direct = cluster().admin().namespace(&namespace);
    let bad = "apiVersion: v1\nkind: Pod\nmetadata: {name: UPPER}\nspec: {containers: []}\n".as_bytes();
    let (ours, theirs) = (
        kubectl.run_with(&["create", "--validate=false", "-f", "-"], bad)?,
        direct.run_with(&["create", "--validate=false", "-f", "-"], bad)?,
    );
    ensure!(ours.err == theirs.err && ours.code == theirs.code, "ours: {}\ntheirs: {}", ours.err, theirs.err);
    // The apiserver warns of unknown fields with a Warning header, which kubectl prints.
    let odd = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: odd}\nnosuchfield: 1\n".as_bytes();
    let output = kubectl.run_with(&["create", "--validate=warn", "-f", "-"], odd)?;
    output.ok()?;
    ensure!(output.err.contains("Warning: unknown field \"nosuchfield\""), "{}", output.err);
    Ok(())
}

/// By TLS server name as in front of the apiserver itself, in path form with the key in the path; and redirects of the
/// apiserver lead to where they would lead there.
fn kubectl_proxy(site: &Site) -> anyhow::Result<()> {
    let by_path = Kubectl::new(&site.stack.kubeconfig_by("path", "admin")?);
    let by_path = if site.old { by_path.old() } else { by_path };
    proxied(&site.kubectl, &["proxy", "--port=0"], "")?;
    if site.old {
        // It cannot append the path of the server's address: who calls its proxy writes it.
        proxied(&by_path, &["proxy", "--port=0"], &format!("/{}", site.stack.key()))
    } else {
        proxied(&by_path, &["proxy", "--port=0", "--append-server-path"], "")
    }
}

fn proxied(kubectl: &Kubectl, args: &[&str], prefix: &str) -> anyhow::Result<()> {
    use std::io::{BufRead, BufReader};
    // The apiserver redirects to the same with a slash at its end. A cluster without root has no node: nothing to be
    // proxied to.
    let node = kubectl.ok(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"])?;
    let mut child = kubectl.command(args).stdout(std::process::Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line)?;
    let address = line.trim().rsplit(' ').next().unwrap_or_default().to_owned();
    let curl = |args: &[&str]| {
        tests::programs::run(std::process::Command::new("curl").arg("-sS").args(args), Duration::from_secs(20))
    };
    let answer = curl(&[&format!("http://{address}{prefix}/api/v1/namespaces/default")]);
    let proxied = format!("http://{address}{prefix}/api/v1/nodes/{}/proxy", node.trim());
    let shown = "%{num_redirects} %{url_effective} %{redirect_url}";
    let redirected = curl(&["-o", "/dev/null", "-L", "-w", shown, &proxied]);
    let _ = child.kill();
    let _ = child.wait();
    ensure!(answer?.ok()?.replace(' ', "").contains("\"name\":\"default\""));
    let redirected = redirected?.ok()?;
    ensure!(node.is_empty() || redirected.trim() == format!("1 {proxied}/"), "{redirected}");
    Ok(())
}

/// What comes as protobuf is what the apiserver wrote, and goes back as protobuf.
fn protobuf_bodies(carrier: &'static str) -> anyhow::Result<()> {
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    let (kubectl, name) = admin(carrier, "protobuf")?;
    kubectl.ok(&["create", "configmap", "a", "--from-literal=x=before"])?;
    let stack = shared(carrier);
    let token = stack.token("admin")?;
    let mut raw = stack.raw()?;
    let mut call = |method: &str, body: &[u8]| -> anyhow::Result<Answer> {
        let head = format!(
            "{method} /{}/api/v1/namespaces/{name}/configmaps/a HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\
             Accept: {PROTOBUF}\r\nContent-Type: {PROTOBUF}\r\nContent-Length: {}\r\n\r\n",
            stack.key(),
            stack.authority(),
            body.len()
        );
        raw.send(&[head.as_bytes(), body].concat())?;
        let answer = raw.answer()?;
        ensure!(answer.status == 200 && answer.header("content-type") == Some(PROTOBUF), "{}", answer.head);
        ensure!(answer.body.starts_with(b"k8s\0"), "no protobuf magic");
        Ok(answer)
    };
    let mut object = call("GET", b"")?.body;
    let at = object.windows(6).position(|window| window == b"before").context("no value in the protobuf")?;
    object[at..at + 6].copy_from_slice(b"behind");
    call("PUT", &object)?;
    ensure!(kubectl.ok(&["get", "configmap", "a", "-o", "jsonpath={.data.x}"])? == "behind");
    Ok(())
}

fn as_another_user(carrier: &'static str) -> anyhow::Result<()> {
    let kubectl = shared(carrier).kubectl("admin")?;
    ensure!(
        kubectl
            .ok(&["auth", "whoami", "-o", "json", "--as", "someone", "--as-group", "some-group"])?
            .contains("\"someone\"")
    );
    let error = kubectl.run(&["get", "secrets", "-A", "--as", "someone"])?.refused()?;
    ensure!(error.contains("someone") && error.contains("forbidden"), "{error}");
    // Not for those whom the cluster does not let impersonate.
    let error =
        shared(carrier).kubectl("viewer")?.run(&["get", "pods", "-n", "view-only", "--as", "someone"])?.refused()?;
    ensure!(error.to_lowercase().contains("forbidden") && error.contains("impersonate"), "{error}");
    // Nor reserved names for anybody.
    let error = kubectl.run(&["get", "nodes", "--as", "x", "--as-group", "system:masters"])?.refused()?;
    ensure!(error.to_lowercase().contains("forbidden"), "{error}");
    Ok(())
}

/// An API that another server than the apiserver serves, behind it.
fn aggregated_api(carrier: &'static str) -> anyhow::Result<()> {
    use tests::programs::{Program, run, scratch};
    let (cluster, dir) = (cluster(), scratch("aggregated"));
    run(
        std::process::Command::new(tests::programs::root().join("tests/cluster/cluster"))
            .args(["build", "sample-apiserver"]),
        Duration::from_secs(600),
    )?
    .ok()?;
    let port = tests::programs::free_port(cluster.get("CLUSTER_HOST_IP"))?;
    let kubeconfig = cluster.get("KUBECONFIG");
    let mut server = std::process::Command::new(cluster.get("CLUSTER_SAMPLE_APISERVER"));
    server
        .args(["--etcd-servers", cluster.get("CLUSTER_ETCD"), "--cert-dir", &dir.display().to_string()])
        .args(["--bind-address", cluster.get("CLUSTER_HOST_IP"), "--secure-port", &port.to_string()])
        .args([
            "--kubeconfig",
            kubeconfig,
            "--authentication-kubeconfig",
            kubeconfig,
            "--authorization-kubeconfig",
            kubeconfig,
        ])
        .stdout(std::process::Stdio::null());
    let server = Program::start("sample-apiserver", server, &dir.join("sample.log"))?;
    let kubectl = shared(carrier).kubectl("admin")?;
    kubectl.apply(&format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: sample, namespace: default}}\nspec: {{ports: [{{port: 443, targetPort: {port}}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: sample, namespace: default, labels: {{kubernetes.io/service-name: sample}}}}\n\
         addressType: IPv4\nports: [{{port: {port}}}]\nendpoints: [{{addresses: [{}]}}]\n---\n\
         apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {{name: v1alpha1.wardle.example.com}}\n\
         spec: {{group: wardle.example.com, version: v1alpha1, groupPriorityMinimum: 1000, versionPriority: 15, insecureSkipTLSVerify: true, service: {{name: sample, namespace: default}}}}\n",
        cluster.get("CLUSTER_HOST_IP")
    ))?;
    let outcome = eventually("the aggregated API is served", Duration::from_secs(40), || {
        Ok(kubectl.run(&["get", "flunders.wardle.example.com"])?.code == Some(0))
    })
    .with_context(|| server.tail())
    .and_then(|_| {
        kubectl
            .run_with(
                &["create", "-n", "default", "-f", "-"],
                b"apiVersion: wardle.example.com/v1alpha1\nkind: Flunder\nmetadata: {name: f}\n",
            )?
            .ok()?;
        ensure!(kubectl.ok(&["get", "flunders", "-n", "default", "-o", "name"])?.contains("flunder"));
        kubectl.ok(&["delete", "flunder", "f", "-n", "default"])
    });
    kubectl.ok(&["delete", "apiservice", "v1alpha1.wardle.example.com"])?;
    outcome.map(drop)
}
