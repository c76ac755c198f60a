//! The operators' guide: its commands are run as they are written, and its configuration is used as it stands.

use std::{
    collections::HashMap,
    fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use tests::{
    apiserver::Apiserver,
    case::{Needs, case},
    postgres::Postgres,
    programs::{Output, Program, binary, eventually, free_port, keep, root, run, scratch},
    raw::Raw,
    replicas::Replicas,
    stack::{Plan, Stack, note_secret},
};

use crate::oidc::Provider;

pub fn tests() -> Vec<Trial> {
    vec![
        case("operating::the_guide_works_as_it_is_written", Needs::Nothing, guide),
        case("operating::the_unit_runs_a_gateway_and_an_upgrade", Needs::Namespaces, unit),
        case("operating::the_compose_file_runs_a_gateway", Needs::Namespaces, compose),
        case("operating::a_broken_unit_or_compose_file_is_found", Needs::Namespaces, broken),
        case("operating::postgresql_keeps_what_was_made", Needs::Nothing, postgresql),
        case("operating::t12_one_machine_becomes_three_replicas", Needs::Nothing, replicas),
        case("operating::t12_the_compose_file_has_three_replicas_behind_nginx", Needs::Nothing, compose_of_replicas),
        case("operating::a1_an_issuer_of_the_operators_own", Needs::Nothing, issuer),
        case("operating::t12_haproxy_passes_over_a_replica_that_stops", Needs::Nothing, haproxy),
        case("operating::the_balancer_passes_users_and_every_carrier", Needs::Nothing, balancer),
    ]
}

/// How long a walk may take.
const WALK: Duration = Duration::from_secs(240);

/// The text of OPERATING.md.
struct Guide(String);

impl Guide {
    fn read() -> anyhow::Result<Self> {
        Ok(Self(fs::read_to_string(root().join("OPERATING.md"))?))
    }

    /// What stands below a heading, to the next one.
    fn section(&self, heading: &str) -> anyhow::Result<Self> {
        let start = format!("\n## {heading}\n");
        let (_, text) = self.0.split_once(&start).with_context(|| format!("the guide has no section {heading:?}"))?;
        Ok(Self(text.split("\n## ").next().unwrap_or_default().to_owned()))
    }

    /// Its blocks of a kind, such as `sh` or `sh postgres`, in order.
    fn blocks(&self, kind: &str) -> anyhow::Result<Vec<String>> {
        let fence = format!("\n```{kind}\n");
        let blocks = self.0.split(&fence).skip(1);
        let blocks: Option<Vec<_>> = blocks.map(|block| Some(block.split_once("\n```")?.0.to_owned())).collect();
        let blocks = blocks.context("a block of the guide has no end")?;
        ensure!(!blocks.is_empty(), "the guide has no blocks of {kind}");
        Ok(blocks)
    }

    /// The commands of its blocks for a console, without the prompts.
    fn commands(&self) -> anyhow::Result<Vec<Vec<String>>> {
        let command = |line: &str| line.strip_prefix("# ").or(line.strip_prefix("$ ")).map(str::to_owned);
        let blocks = self.blocks("console")?;
        let blocks: Option<Vec<_>> = blocks.iter().map(|block| block.lines().map(command).collect()).collect();
        blocks.context("a line for a console without a prompt")
    }

    /// How every walk begins: a new gateway with its owner signed in.
    fn beginning(&self) -> anyhow::Result<String> {
        Ok(self.section("A new gateway")?.blocks("sh")?.join("\n"))
    }
}

/// A walk through the guide in a scratch folder.
struct Walk {
    // Away from what is swept for secrets: accounts and keys are in it. What the gateway logs is kept for that.
    folder: tempfile::TempDir,
    listen: String,
    url: String,
    more: HashMap<&'static str, String>,
}

impl Walk {
    fn new() -> anyhow::Result<Self> {
        let listen = free()?;
        let url = format!("https://{listen}");
        Ok(Self { folder: tempfile::tempdir()?, listen, url, more: HashMap::new() })
    }

    fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// Runs the blocks as one script; what it printed.
    fn run(&self, name: &str, script: &str) -> anyhow::Result<String> {
        let begin = "set -euo pipefail\nset -m\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n";
        let dir = self.dir();
        let mut command = Command::new("bash");
        command.args(["-c", &format!("{begin}{script}")]).env("PATH", path()?).env("dir", dir);
        command.env("listen", &self.listen).env("url", &self.url).env("TOWLINE_CONFIG_DIR", dir.join("config"));
        command.envs(&self.more);
        let output = run(&mut command, WALK)?;
        note_secrets(dir)?;
        let log = fs::read_to_string(dir.join("gateway.log")).unwrap_or_default();
        keep(&scratch(name).join("gateway.log"), &log);
        output.ok().with_context(|| format!("the gateway's log:\n{log}"))
    }
}

/// Our programs before all others.
fn path() -> anyhow::Result<String> {
    let programs = binary("towline-gateway");
    let folder = programs.parent().context("no folder of programs")?;
    Ok(format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default()))
}

/// What a walk left that nobody may log.
fn note_secrets(dir: &Path) -> anyhow::Result<()> {
    for (file, name) in [
        ("owner.json", "clientSecret"),
        ("owner-2.json", "clientSecret"),
        ("owner-3.json", "clientSecret"),
        ("ann.json", "password"),
    ] {
        let Ok(text) = fs::read_to_string(dir.join(file)) else { continue };
        let Ok(told) = serde_json::from_str::<Value>(&text) else { continue };
        note_secret(told[name].as_str().with_context(|| format!("no {name} in {file}"))?)?;
    }
    Ok(())
}

fn guide() -> anyhow::Result<()> {
    let blocks = Guide::read()?.blocks("sh")?;
    ensure!(blocks.len() >= 5, "{} blocks of commands", blocks.len());
    let told = Walk::new()?.run("operating", &blocks.join("\n"))?;
    ensure!(told.contains("edge"), "{told}");
    Ok(())
}

fn postgresql() -> anyhow::Result<()> {
    const PASSWORD: &str = "a-pass-word-of-postgres";
    let guide = Guide::read()?;
    let section = guide.section("PostgreSQL")?;
    let server = Postgres::start(&scratch("operating-postgres").join("server.log"))?;
    // It asks for the password; the test has nobody to type it.
    for line in section.commands()?.concat() {
        let line = line.replace("runuser -u postgres -- ", "");
        server.administer(&line.replace(" --pwprompt", ""))?;
    }
    server.administer(&format!("psql -qc \"ALTER ROLE towline PASSWORD '{PASSWORD}'\" postgres"))?;
    note_secret(PASSWORD)?;
    let mut walk = Walk::new()?;
    walk.more.insert("postgres", server.url("towline", PASSWORD, "towline"));
    let mut blocks = section.blocks("sh postgres")?;
    ensure!(blocks.len() == 2, "{} blocks for PostgreSQL", blocks.len());
    // Between the copy and its return: what came later is gone then.
    let (copy, back) = blocks[1].split_once('\n').context("no copy")?;
    blocks[1] =
        format!("{copy}\ntowline group create -n later -l here\n{back}\ntowline group list -o tsv >\"$dir/groups\"");
    blocks.push("kill %1 && wait %1".to_owned());
    walk.run("operating-postgres", &format!("{}\n{}", guide.beginning()?, blocks.join("\n")))?;
    let groups = fs::read_to_string(walk.dir().join("groups"))?;
    ensure!(groups.contains("edge") && !groups.contains("later"), "{groups}");
    let kept = server.administer("psql -Atc 'SELECT count(*) FROM resources' towline")?;
    ensure!(kept.trim().parse::<u32>()? > 0, "{kept}");
    Ok(())
}

/// The nginx of `docker/compose.replicas.yaml`, in front of these gateways.
fn nginx_of_replicas(dir: &Path, front: &str, gateways: &[String; 3]) -> anyhow::Result<PathBuf> {
    let mut text = fs::read_to_string(root().join("docker/replicas.nginx.conf"))?;
    for (name, address) in ["gateway-a:8443", "gateway-b:8443", "gateway-c:8443"].into_iter().zip(gateways) {
        let looked_up = format!("{name} resolve");
        ensure!(text.contains(&looked_up), "{looked_up} is not in {text}");
        text = text.replace(&looked_up, address);
    }
    // Debian's nginx is older than the look-up of names at run time (1.27.3), and here are addresses.
    let resolver = "resolver 127.0.0.11 valid=5s;";
    ensure!(text.contains(resolver) && text.contains("worker_processes auto"), "{text}");
    let text = text.replace(resolver, "").replace("worker_processes auto", "worker_processes 2");
    ensure!(text.matches("listen 443").count() == 2, "{text}");
    let text = text.replace("listen 443", &format!("listen {front}"));
    let file = dir.join("nginx.conf");
    let module = "/usr/lib/nginx/modules/ngx_stream_module.so";
    fs::write(&file, format!("load_module {module};\ndaemon off;\npid nginx.pid;\nerror_log stderr;\n{text}"))?;
    Ok(file)
}

/// An address of this machine that is free.
fn free() -> anyhow::Result<String> {
    Ok(format!("127.0.0.1:{}", free_port("127.0.0.1")?))
}

fn replicas() -> anyhow::Result<()> {
    const PASSWORD: &str = "another-pass-word-of-postgres";
    let guide = Guide::read()?;
    let blocks = guide.section("Several gateways")?.blocks("sh replicas")?;
    ensure!(blocks.len() == 2, "{} blocks for replicas", blocks.len());
    let server = Postgres::start(&scratch("operating-replicas").join("server.log"))?;
    server.administer("createuser towline\ncreatedb --owner towline towline")?;
    server.administer(&format!("psql -qc \"ALTER ROLE towline PASSWORD '{PASSWORD}'\" postgres"))?;
    note_secret(PASSWORD)?;
    let mut walk = Walk::new()?;
    walk.more.insert("postgres", server.url("towline", PASSWORD, "towline"));
    let gateways = [free()?, free()?, free()?];
    nginx_of_replicas(walk.dir(), &walk.listen, &gateways)?;
    for (name, address) in ["public_a", "public_b", "public_c"].into_iter().zip(&gateways) {
        walk.more.insert(name, address.clone());
    }
    for name in ["peers_a", "peers_b", "peers_c"] {
        walk.more.insert(name, free()?);
    }
    // Three machines are three configurations in one folder, each with addresses of its own.
    let own_address = guide.section("Several gateways")?.commands()?.concat();
    let own_address = own_address.iter().find(|line| line.starts_with("sed ")).context("no address of its own")?;
    let own_address = own_address
        .replace("192.0.2.7:8444", "'${!peers}'")
        .replace("/var/lib/towline/gateway.toml", "\"$dir/gateway/$1.toml\"");
    let start = r#"start() {
        public=public_$1 peers=peers_$1
        sed "s/^public = .*/public = \"${!public}\"/" "$dir/gateway/gateway.toml" >"$dir/gateway/$1.toml"
        OWN_ADDRESS
        echo "listen = \"${!peers}\"" >>"$dir/gateway/$1.toml"
        grep -qx "address = \"${!peers}\"" "$dir/gateway/$1.toml"
        towline-gateway --config "$dir/gateway/$1.toml" --log-json --replica-name "$1" 2>>"$dir/gateway.log" &
        eval "pid_$1=$!"
    }
    nginx -p "$dir" -c "$dir/nginx.conf" -e stderr 2>"$dir/nginx.log" &
    nginx=$!"#
        .replace("OWN_ADDRESS", &own_address);
    // One is killed: what it had is written at others, and read there.
    let killed = r#"kill -9 "$pid_a"
    until towline group create -n later -l here; do sleep 0.2; done
    for _ in 1 2 3 4 5 6; do towline group show -n later -o tsv; done
    kill "$pid_b" "$pid_c"
    wait "$pid_b" && wait "$pid_c"
    kill "$nginx""#;
    let script = [&guide.beginning()?, &blocks[0], &start, &blocks[1], killed].map(str::to_owned).join("\n");
    walk.run("operating-replicas", &script)?;
    let moved: Value = serde_json::from_str(&fs::read_to_string(walk.dir().join("moved.json"))?)?;
    ensure!(moved["rows"]["resources"].as_i64().is_some_and(|rows| rows > 0), "{moved}");
    let kept = server.administer("psql -Atc 'SELECT resource_key FROM resources' towline")?;
    ensure!(kept.contains("/edge") && kept.contains("/later"), "{kept}");
    Ok(())
}

/// As docker reads it: the replicas differ by their names alone, which the proxy and the flags have.
fn compose_of_replicas() -> anyhow::Result<()> {
    let dir = scratch("operating-compose-replicas");
    fs::write(dir.join("postgres.password"), "")?;
    let mut command = Command::new("docker-compose");
    command.arg("-f").arg(root().join("docker/compose.replicas.yaml")).arg("config").env("TOWLINE_DIR", &dir);
    let shown = run(&mut command, Duration::from_secs(60))?.ok()?;
    for name in ["gateway-a", "gateway-b", "gateway-c"] {
        ensure!(shown.contains(&format!("  {name}:\n")), "{shown}");
        ensure!(
            shown.contains(&format!("- --replica-name\n    - {name}\n    - --replica-address\n    - {name}:8444")),
            "{shown}"
        );
    }
    ensure!(
        shown.matches("read_only: true").count() >= 3 && shown.matches("- no-new-privileges:true").count() == 3,
        "{shown}"
    );
    ensure!(shown.matches("published: 443").count() == 2, "{shown}");
    let file = nginx_of_replicas(&dir, &free()?, &[free()?, free()?, free()?])?;
    let mut command = Command::new("nginx");
    command.arg("-t").arg("-p").arg(&dir).arg("-c").arg(&file).args(["-e", "stderr"]);
    run(&mut command, Duration::from_secs(30))?.ok()?;
    folder_of_compose()
}

/// The folder that the guide makes for the compose file is one that three replicas start with.
fn folder_of_compose() -> anyhow::Result<()> {
    let blocks = Guide::read()?.section("Several gateways")?.blocks("sh compose")?;
    let server = Postgres::start(&scratch("operating-compose-replicas").join("server.log"))?;
    let mut walk = Walk::new()?;
    walk.run("operating-compose-folder", &format!("cd \"$dir\"\n{}", blocks.join("\n")))?;
    let folder = walk.dir().join("towline");
    let password = fs::read_to_string(folder.join("postgres.password"))?.trim().to_owned();
    note_secret(&password)?;
    server.administer("createuser towline\ncreatedb --owner towline towline")?;
    server.administer(&format!("psql -qc \"ALTER ROLE towline PASSWORD '{password}'\" postgres"))?;
    let url = fs::read_to_string(folder.join("postgres.url"))?;
    ensure!(url.trim() == format!("postgres://towline:{password}@database/towline?sslmode=disable"), "{url}");
    let config = fs::read_to_string(folder.join("gateway.toml"))?;
    let public = "public = \"0.0.0.0:8443\"";
    ensure!(config.contains(public) && config.contains("admin = \"0.0.0.0:9090\""), "{config}");
    walk.more.insert("database", server.url("towline", &password, "towline"));
    // Three containers are three addresses of this machine.
    let mut script = "echo \"$database\" >\"$dir/towline/postgres.url\"\n\
        towline-gateway check-config --config \"$dir/towline/gateway.toml\"\n"
        .to_owned();
    for name in ["gateway-a", "gateway-b", "gateway-c"] {
        let (own, admin, peers) = (free()?, free()?, free()?);
        let config = config.replace("0.0.0.0:8443", &own).replace("0.0.0.0:9090", &admin);
        fs::write(folder.join(format!("{name}.toml")), format!("{config}listen = \"{peers}\"\n"))?;
        let command = format!("towline-gateway --config \"$dir/towline/{name}.toml\" --log-json --replica-name {name}");
        script += &format!("{command} --replica-address {peers} 2>>\"$dir/gateway.log\" &\n");
        script += &format!("until curl -sf http://{admin}/readyz; do sleep 0.2; done\n");
    }
    walk.run("operating-compose-folder", &(script + "kill $(jobs -p) && wait"))?;
    Ok(())
}

fn issuer() -> anyhow::Result<()> {
    let guide = Guide::read()?;
    let section = guide.section("An issuer of your own")?;
    let mut walk = Walk::new()?;
    let provider = Provider::start(&[], 3600, &walk.url)?;
    fs::copy(&provider.ca, walk.dir().join("issuer-ca.crt"))?;
    walk.more.insert("issuer", provider.issuer.clone());
    walk.more.insert("BROWSER", provider.browser("ann")?.display().to_string());
    let table = section.blocks("toml")?.concat();
    let example = "https://login.example.org/realms/staff";
    ensure!(table.contains(example), "{table}");
    let table = table.replace(example, &provider.issuer) + "\nca_file = \"../issuer-ca.crt\"\n";
    fs::write(walk.dir().join("issuer.toml"), table)?;
    let script = [
        guide.beginning()?,
        "cat \"$dir/issuer.toml\" >>\"$dir/gateway/gateway.toml\"".to_owned(),
        section.blocks("sh issuer")?.join("\n"),
        "kill %1 && wait %1".to_owned(),
    ];
    let told = walk.run("operating-issuer", &script.join("\n"))?;
    ensure!(told.contains("staff:ann") && told.contains("devs") && told.contains("edge"), "{told}");
    Ok(())
}

/// haproxy with the file beside the compose file's nginx in front of three: a request gets through whichever stops.
fn haproxy() -> anyhow::Result<()> {
    let replicas = Replicas::start("operating-haproxy", 3, "")?;
    let (dir, front) = (scratch("operating-haproxy-front"), free()?);
    let mut text = fs::read_to_string(root().join("docker/replicas.haproxy.cfg"))?;
    for (number, name) in ["gateway-a:8443", "gateway-b:8443", "gateway-c:8443"].into_iter().enumerate() {
        let (written, admin) = (format!("{name} port 9090"), replicas.admin(number));
        ensure!(text.contains(&written), "{written} is not in {text}");
        let port = admin.rsplit(':').next().context("no port")?;
        text = text.replace(&written, &format!("{} port {port}", replicas.address(number)));
    }
    ensure!(text.matches("bind :443").count() == 1, "{text}");
    let file = dir.join("haproxy.cfg");
    fs::write(&file, text.replace("bind :443", &format!("bind {front}")).replace("maxconn 100000", "maxconn 1000"))?;
    let mut checked = Command::new("haproxy");
    run(checked.arg("-c").arg("-f").arg(&file), Duration::from_secs(30))?.ok()?;
    let mut command = Command::new("haproxy");
    command.arg("-db").arg("-f").arg(&file).stdout(Stdio::null());
    let proxy = Program::start("haproxy", command, &dir.join("haproxy.log"))?;
    let through = |what: &str| {
        eventually(what, Duration::from_secs(30), || {
            Ok(replicas.ask(&front, "GET", "/.towline/issuer/keys", "", "").is_ok_and(|answer| answer.status == 200))
        })
        .with_context(|| proxy.tail())
    };
    through("users get through haproxy")?;
    for number in 0..replicas.count() {
        replicas.stop(number)?;
        for _ in 0..4 {
            through(&format!("users get through without {}", replicas.name(number)))?;
        }
        replicas.start_again(number)?;
    }
    without_one_that_admits_nothing(&replicas, &front).with_context(|| proxy.tail())
}

/// A replica whose name another process has taken runs on, and takes no connection.
fn without_one_that_admits_nothing(replicas: &Replicas, front: &str) -> anyhow::Result<()> {
    let (number, address) = (1, replicas.address(1));
    // As another process does that has this name and is alive.
    let taken = || {
        replicas.postgres.administer(&format!(
            "psql -qc \"UPDATE replicas SET generation = generation + 1, \
             renewed_ms = (extract(epoch FROM clock_timestamp()) * 1000)::bigint WHERE name = '{}'\" towline",
            replicas.name(number)
        ))
    };
    eventually("it is superseded", Duration::from_secs(30), || {
        taken()?;
        Ok(replicas.admin_get(number, "/readyz")?.contains("superseded"))
    })?;
    eventually("it refuses connections", Duration::from_secs(30), || {
        taken()?;
        Ok(TcpStream::connect(address).is_err())
    })?;
    eventually("users get to the others each time", Duration::from_secs(30), || {
        taken()?;
        let ask = || replicas.ask(front, "GET", "/.towline/issuer/keys", "", "");
        Ok((0..20).all(|_| ask().is_ok_and(|answer| answer.status == 200)))
    })?;
    eventually("it has its name again, and takes connections", Duration::from_secs(60), || {
        let ready = replicas.admin_get(number, "/readyz")?.trim() == "ready";
        Ok(ready && TcpStream::connect(address).is_ok())
    })?;
    Ok(())
}

/// nginx with the guide's `stream` in front of a gateway: users over TLS, agents over each carrier.
fn balancer() -> anyhow::Result<()> {
    let dir = scratch("operating-balancer");
    let apiserver = Apiserver::plain(&dir)?;
    // The gateway says this address in its certificate; nginx listens at another port of it.
    let stack = Stack::start(&Plan::scripted("operating-balancer", &apiserver))?;
    let front = free()?;
    let text = Guide::read()?.section("Proxies and balancers")?.blocks("nginx")?.concat();
    ensure!(text.contains("192.0.2.7:8443") && text.matches("listen 443").count() == 2, "{text}");
    let text = text.replace("192.0.2.7:8443", &stack.authority()).replace("listen 443", &format!("listen {front}"));
    let file = dir.join("nginx.conf");
    let module = "/usr/lib/nginx/modules/ngx_stream_module.so";
    let begin = format!(
        "load_module {module};\ndaemon off;\npid nginx.pid;\nerror_log stderr;\nworker_processes 2;\nevents {{}}\n"
    );
    fs::write(&file, begin + &text + "\n")?;
    let mut command = Command::new("nginx");
    command.arg("-p").arg(&dir).arg("-c").arg(&file).args(["-e", "stderr"]).stdout(Stdio::null());
    let nginx = Program::start("nginx", command, &dir.join("nginx.log"))?;
    let through = || {
        let mut raw = Raw::connect(&front, &stack.ca(), &[b"http/1.1"])?;
        let token = stack.token("admin")?;
        let head =
            format!("GET /{}/version HTTP/1.1\r\nHost: {front}\r\nAuthorization: Bearer {token}\r\n\r\n", stack.key());
        raw.send(head.as_bytes())?;
        raw.answer()
    };
    eventually("users get through nginx", Duration::from_secs(30), || {
        Ok(through().is_ok_and(|answer| answer.status == 200))
    })
    .with_context(|| nginx.tail())?;
    let config = PathBuf::from(stack.info["clusters"][0]["agent_config"].as_str().context("no agent_config")?);
    let text = fs::read_to_string(&config)?;
    ensure!(text.contains(&stack.authority()), "{text}");
    fs::write(&config, text.replace(&stack.authority(), &front.to_string()))?;
    for carrier in tests::stack::CARRIERS {
        {
            let mut agent = stack.agent.lock().unwrap();
            agent.signal("TERM")?;
            agent.wait(Duration::from_secs(60))?;
        }
        eventually("the tunnel of before is gone", Duration::from_secs(60), || Ok(stack.tunnels()?.is_empty()))?;
        let mut command = Command::new(binary("towline-agent"));
        command.args(["run", "--carrier", carrier, "--config"]).arg(&config).arg("--kubeconfig");
        command.arg(&apiserver.kubeconfig).stdout(Stdio::null());
        *stack.agent.lock().unwrap() = Program::start("towline-agent", command, &stack.dir.join("agent.log"))?;
        eventually(&format!("{carrier} through nginx"), Duration::from_secs(60), || {
            let up = stack.tunnels()?.iter().any(|tunnel| tunnel["carrier"] == carrier);
            Ok(up && through().is_ok_and(|answer| answer.status == 200))
        })
        .with_context(|| stack.agent.lock().unwrap().tail())?;
    }
    Ok(())
}

/// A machine of its own, where our programs and the folder `docker` are at hand as in a checkout.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    fn new() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let place = folder.path().join("here");
        fs::create_dir(&place)?;
        for program in ["towline", "towline-gateway"] {
            std::os::unix::fs::symlink(binary(program), place.join(program))?;
        }
        run(Command::new("cp").arg("-r").arg(root().join("docker")).arg(&place), Duration::from_secs(60))?.ok()?;
        Ok(Self { folder })
    }

    fn here(&self) -> PathBuf {
        self.folder.path().join("here")
    }

    fn run(&self, script: &str) -> anyhow::Result<Output> {
        let mut command = Command::new(root().join("tests/it/machine/machine"));
        command.arg(self.folder.path().join("machine")).args(["bash", "-euo", "pipefail", "-c", script]);
        command.current_dir(self.here()).env("PATH", path()?).env("HOME", self.here());
        let output = run(command.env_remove("TOWLINE_GATEWAY"), WALK)?;
        note_secrets(&self.here())?;
        Ok(output)
    }

    /// What the service or the container wrote.
    fn log(&self) -> String {
        let machine = self.folder.path().join("machine");
        let read = |name: &str| fs::read_to_string(machine.join(name)).unwrap_or_default();
        read("towline-gateway.log") + &read("gateway.log")
    }

    fn ok(&self, name: &str, script: &str) -> anyhow::Result<String> {
        let output = self.run(script)?;
        keep(&scratch(name).join("gateway.log"), &self.log());
        output.ok().with_context(|| format!("the gateway's log:\n{}", self.log()))
    }
}

/// The owner signs in with what `init` printed, and makes a group.
fn owner(ca: &str) -> String {
    format!(
        "export TOWLINE_CLIENT_SECRET=$(jq -r .clientSecret owner.json)\n\
         tries=0\n\
         until towline login https://gateway.example.org --ca {ca} --service-principal -u \"$(jq -r .clientId owner.json)\"; do\n\
         [ $((tries += 1)) -lt 300 ]; sleep 0.1; done\n\
         towline group create -n edge -l here\n"
    )
}

/// After another start the group is still there.
const STILL_THERE: &str =
    "tries=0\nuntil towline group show -n edge -o tsv; do [ $((tries += 1)) -lt 300 ]; sleep 0.1; done\n";

fn unit() -> anyhow::Result<()> {
    let guide = Guide::read()?;
    let install = guide.section("A new gateway")?.commands()?;
    let install = install.first().context("no commands for systemd")?.join("\n");
    let upgrade = guide.section("Upgrades")?.commands()?.concat().join("\n");
    ensure!(
        install.contains("systemctl enable --now") && upgrade.contains("systemctl restart"),
        "{install}\n{upgrade}"
    );
    // The store as version 2 of its schema left it: without what the migrations since then make.
    let older = "import sqlite3\n\
         store = sqlite3.connect('/var/lib/towline/towline.db')\n\
         for table in ('events', 'event_numbers', 'departed', 'webhooks', 'deleted_identities', 'protecting_key', 'rows_named', 'statuses', 'protected_until', 'parts', 'parts_told', 'log_lines', 'log_positions', 'upgrades', 'replicas', 'tunnels', 'held', 'documents', 'tickets', 'counts', 'operations_begun', 'event_groups', 'event_subscriptions'):\n    \
             store.execute(f'DROP TABLE {table}')\n\
         for index in ('agents_by_end', 'agents_by_key', 'agents_by_claim', 'agents_by_uid', 'tombstones_by_kind'):\n    \
             store.execute(f'DROP INDEX {index}')\n\
         for column in ('principal', 'certificate_authority', 'claimant', 'told_version', 'told_upgrade'):\n    \
             store.execute(f'ALTER TABLE agents DROP COLUMN {column}')\n\
         store.execute('DROP INDEX operations_by_work')\n\
         store.execute('DROP INDEX operations_by_resource')\n\
         store.execute('DROP INDEX resources_by_change')\n\
         for column in ('work_kind', 'next_ms', 'claimed_by', 'tries', 'due_ms', 'woken'):\n    \
             store.execute(f'ALTER TABLE operations DROP COLUMN {column}')\n\
         store.execute('CREATE UNIQUE INDEX agents_by_uid ON agents (kube_system_uid)')\n\
         store.execute('DELETE FROM _sqlx_migrations WHERE version > 2')\n\
         store.commit()\n";
    let script = [
        install,
        owner("/var/lib/towline/ca/ca.crt"),
        // As nobody special: the user of the unit, and the one capability.
        "pid=$(cat \"$MACHINE/towline-gateway.pid\")\n\
         [ \"$(stat -c %U /proc/$pid)\" = towline ]\n\
         [ \"$(awk '/^CapEff/ { print $2 }' /proc/$pid/status)\" = 0000000000000400 ]\n\
         [ \"$(awk '/^NoNewPrivs/ { print $2 }' /proc/$pid/status)\" = 1 ]\n\
         systemctl reload towline-gateway\n\
         systemctl stop towline-gateway"
            .to_owned(),
        format!("runuser -u towline -- python3 -c \"{older}\"\nsystemctl start towline-gateway"),
        STILL_THERE.to_owned(),
        upgrade,
        STILL_THERE.to_owned(),
        "[ -s /var/lib/towline/before.db ]\nsystemctl stop towline-gateway".to_owned(),
    ];
    let machine = Machine::new()?;
    machine.ok("operating-unit", &script.join("\n"))?;
    ensure!(machine.log().contains("configuration reloaded"), "{}", machine.log());
    Ok(())
}

fn compose() -> anyhow::Result<()> {
    let commands = Guide::read()?.section("A new gateway")?.commands()?;
    let commands = commands.get(1).context("no commands for the compose file")?.join("\n");
    ensure!(commands.contains("up -d") && commands.contains(" cp gateway:"), "{commands}");
    // The certificate is there before the container is up.
    let script = [
        commands,
        owner("ca.crt"),
        "pid=$(cat \"$MACHINE/gateway.pid\")\n\
         [ \"$(awk '/^CapEff/ { print $2 }' /proc/$pid/status)\" = 0000000000000000 ]\n\
         docker compose -f docker/compose.yaml restart"
            .to_owned(),
        STILL_THERE.to_owned(),
        "docker compose -f docker/compose.yaml stop".to_owned(),
    ];
    Machine::new()?.ok("operating-compose", &script.join("\n"))?;
    Ok(())
}

/// What stands in for systemd and docker takes nothing that these would not take.
fn broken() -> anyhow::Result<()> {
    let commands = Guide::read()?.section("A new gateway")?.commands()?;
    for (commands, file, from, to, says) in [
        (&commands[0], "docker/towline-gateway.service", "NoNewPrivileges=", "NoNewPrivilege=", "NoNewPrivilege"),
        (&commands[0], "docker/towline-gateway.service", "/var/lib/towline/gateway.toml", "/etc/none.toml", ""),
        (&commands[1], "docker/compose.yaml", "read_only:", "readonly:", "readonly"),
        (&commands[1], "docker/compose.yaml", "8443/tcp", "8444/tcp", ""),
    ] {
        let machine = Machine::new()?;
        let file = machine.here().join(file);
        let text = fs::read_to_string(&file)?;
        ensure!(text.contains(from), "{from} is not in {}", file.display());
        fs::write(&file, text.replace(from, to))?;
        // It is refused, or nobody is there to be asked.
        let ask = "for _ in $(seq 30); do curl -sk https://gateway.example.org/ && exit 0; sleep 0.1; done; exit 1";
        let output = machine.run(&format!("{}\n{ask}", commands.join("\n")))?;
        let error = output.refused().with_context(|| format!("{from} became {to}"))?;
        ensure!(error.contains(says), "{from} became {to}: {error}");
    }
    Ok(())
}
