//! Several gateways on one PostgreSQL, as an operator has them: each a process of its own with a copy of the folder that
//! `towline-gateway init` made, all behind one address. Agents run on this machine and come in at that address.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use rcgen::{KeyPair, PKCS_RSA_SHA256, PublicKeyData as _};
use serde_json::{Value, json};
use types::ids::ClusterId;

use crate::{
    postgres::Postgres,
    programs::{Program, binary, eventually, keep, run, scratch},
    raw::{Answer, Raw},
    stack::{admin_call, enrolled, note_secret},
};

/// The user of the database, and its name.
const DATABASE: &str = "towline";
/// Groups of processes that can be cut off: this, and the port of each.
const FIRST_GROUP: u32 = 700_000;
/// The resource group that clusters are in.
const GROUP: &str = "edge";

/// One of the gateways.
struct Replica {
    name: String,
    /// Where users and agents reach it.
    listen: String,
    admin: String,
    /// Where other replicas reach it.
    peers: String,
    /// The group that its process has for itself.
    group: Option<u32>,
    folder: PathBuf,
    program: Mutex<Option<Program>>,
}

/// Several gateways on one PostgreSQL, behind one front.
pub struct Replicas {
    /// All files, logs included; folders with keys are elsewhere.
    pub dir: PathBuf,
    /// What is in front of them.
    pub front: Front,
    /// The database that they share.
    pub postgres: Postgres,
    /// What `init` printed.
    made: Value,
    replicas: Vec<Replica>,
    private: tempfile::TempDir,
}

/// Nothing gets through to a replica and from it; see [`Replicas::cut_off`].
pub struct CutOff {
    /// The rules that drop it.
    table: String,
}

impl Drop for CutOff {
    fn drop(&mut self) {
        let _ = Command::new("nft").args(["delete", "table", "inet", &self.table]).status();
    }
}

/// A cluster, with its agent.
pub struct Site {
    /// ARM id of the cluster's resource.
    pub id: ClusterId,
    /// The agent's process.
    pub agent: Mutex<Program>,
    /// The agent's configuration file.
    pub config: PathBuf,
    /// What proves the cluster when it asks for certificates.
    key: KeyPair,
    kubeconfig: PathBuf,
    carrier: String,
}

impl Replicas {
    /// Starts `count`, of which each has the settings `more` beside those that they need.
    pub fn start(name: &str, count: usize, more: &str) -> anyhow::Result<Self> {
        Self::start_with(name, count, more, str::to_owned)
    }

    /// The same, where what `init` wrote is changed first.
    pub fn start_with(name: &str, count: usize, more: &str, edit: impl Fn(&str) -> String) -> anyhow::Result<Self> {
        let dir = scratch(name);
        let postgres = Postgres::start(&dir.join("postgres.log"))?;
        let port = postgres.port();
        Self::start_on(dir, (postgres, port), count, more, edit)
    }

    /// Starts `count` that can be cut off ([`Self::cut_off`]), for which one must be root.
    pub fn start_apart(name: &str, count: usize, more: &str) -> anyhow::Result<Self> {
        let dir = scratch(name);
        let postgres = Postgres::start(&dir.join("postgres.log"))?;
        let port = postgres.port();
        Self::made_on(dir, (postgres, port), count, more, str::to_owned, true)
    }

    /// As [`Self::start_with`], on a database that was started already, which they reach at another port of this machine.
    pub fn start_on(
        dir: PathBuf,
        database: (Postgres, u16),
        count: usize,
        more: &str,
        edit: impl Fn(&str) -> String,
    ) -> anyhow::Result<Self> {
        Self::made_on(dir, database, count, more, edit, false)
    }

    fn made_on(
        dir: PathBuf,
        (postgres, port): (Postgres, u16),
        count: usize,
        more: &str,
        edit: impl Fn(&str) -> String,
        apart: bool,
    ) -> anyhow::Result<Self> {
        let private = tempfile::tempdir()?;
        let password = "a-pass-word-of-replicas";
        note_secret(password)?;
        postgres.administer(&format!(
            "createuser {DATABASE}\ncreatedb --owner {DATABASE} {DATABASE}\n\
             psql -qc \"ALTER ROLE {DATABASE} PASSWORD '{password}'\" postgres"
        ))?;
        let front = Front::listen()?;
        let url = format!("https://{}", front.address);
        let first = private.path().join("first");
        let (listen, admin) = (free()?, free()?);
        let mut init = Command::new(binary("towline-gateway"));
        init.args(["init", "--url", &url, "--listen", &listen, "--admin", &admin, "--directory"]).arg(&first);
        let made: Value = serde_json::from_str(&run(&mut init, Duration::from_secs(30))?.ok()?)?;
        note_secret(made["clientSecret"].as_str().context("no clientSecret")?)?;
        let database = first.join("postgres.url");
        std::fs::write(&database, postgres.url_at(port, DATABASE, password, DATABASE))?;
        private_file(&database)?;
        let config = first.join("gateway.toml");
        let text = std::fs::read_to_string(&config)?;
        let store = text.lines().find(|line| line.starts_with("store_file")).context("no store_file")?.to_owned();
        let text = edit(&text.replace(&store, "postgres_url_file = \"postgres.url\""));
        let mut this = Self { dir, front, postgres, made, replicas: Vec::new(), private };
        for number in 0..count {
            let folder = match number {
                0 => first.clone(),
                number => {
                    // As it is after the first start, which has made what all of them share.
                    let folder = this.private.path().join(format!("replica-{number}"));
                    run(Command::new("cp").arg("-r").arg(&first).arg(&folder), Duration::from_secs(30))?.ok()?;
                    // Records are each one's own.
                    std::fs::remove_file(folder.join("audit.jsonl"))?;
                    folder
                }
            };
            let (own, own_admin, peers) = match number {
                0 => (listen.clone(), admin.clone(), free()?),
                _ => (free()?, free()?, free()?),
            };
            let name = format!("replica-{number}");
            let text = text.replace(&listen, &own).replace(&admin, &own_admin);
            let section = format!("\n[replicas]\nname = \"{name}\"\nlisten = \"{peers}\"\n");
            std::fs::write(folder.join("gateway.toml"), format!("{text}{section}{more}\n"))?;
            let group = apart.then(|| FIRST_GROUP + u32::from(own_port(&own).unwrap_or_default()));
            let program = Mutex::default();
            this.replicas.push(Replica { name, listen: own, admin: own_admin, peers, group, folder, program });
            this.start_again(number)?;
        }
        Ok(this)
    }

    /// How many there are, running or not.
    pub fn count(&self) -> usize {
        self.replicas.len()
    }

    /// The name of one.
    pub fn name(&self, number: usize) -> &str {
        &self.replicas[number].name
    }

    /// The address of one, past what is in front of all.
    pub fn address(&self, number: usize) -> &str {
        &self.replicas[number].listen
    }

    /// The admin listener of one.
    pub fn admin(&self, number: usize) -> &str {
        &self.replicas[number].admin
    }

    /// The authority of their certificates.
    pub fn ca(&self) -> PathBuf {
        self.private.path().join("first/ca/ca.crt")
    }

    /// The folder of the authority of clusters' certificates.
    pub fn authority(&self) -> PathBuf {
        self.private.path().join("first/ca")
    }

    /// The folder of one, with its configuration.
    pub fn folder(&self, number: usize) -> &Path {
        &self.replicas[number].folder
    }

    /// The process of one that runs.
    pub fn pid(&self, number: usize) -> anyhow::Result<u32> {
        let replica = &self.replicas[number];
        Ok(hold(&replica.program).as_ref().with_context(|| format!("{} does not run", replica.name))?.pid())
    }

    /// A text of what `init` printed.
    pub fn text(&self, key: &str) -> String {
        self.made[key].as_str().unwrap_or_default().to_owned()
    }

    /// Starts one and waits until it is ready; connections in front go there too from then on.
    pub fn start_again(&self, number: usize) -> anyhow::Result<()> {
        let replica = &self.replicas[number];
        let mut command = Command::new(binary("towline-gateway"));
        command.arg("--config").arg(replica.folder.join("gateway.toml")).stdout(Stdio::null());
        if let Some(group) = replica.group {
            command.gid(group);
        }
        let program = Program::start("towline-gateway", command, &self.dir.join(format!("{}.log", replica.name)))?;
        eventually(&format!("{} is ready", replica.name), Duration::from_secs(60), || {
            Ok(admin_call(&replica.admin, "GET", "/readyz").is_ok_and(|body| body.trim() == "ready"))
        })
        .with_context(|| program.tail())?;
        *hold(&replica.program) = Some(program);
        self.front.add(replica.listen.parse()?);
        Ok(())
    }

    /// Ends one as `kill -9` does. What is in front of it finds out by itself.
    pub fn kill(&self, number: usize) {
        *hold(&self.replicas[number].program) = None;
    }

    /// Has nothing get through any more between one and the database and the others, not even the end of a connection, until
    /// what this returns is dropped. Users and agents still reach it.
    pub fn cut_off(&self, number: usize) -> anyhow::Result<CutOff> {
        let own = &self.replicas[number];
        let group = own.group.context("it has no group of its own: start_apart")?;
        let mut ports = vec![self.postgres.port()];
        for other in self.replicas.iter().filter(|other| other.name != own.name) {
            ports.push(own_port(&other.peers)?);
        }
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        let (ports, peers) = (ports.join(", "), own_port(&own.peers)?);
        let cut = CutOff { table: format!("towline-cut-{peers}") };
        let rules = format!(
            "table inet {} {{ chain out {{ type filter hook output priority 0; \
             meta skgid {group} tcp dport {{ {ports} }} drop; tcp dport {peers} drop; tcp sport {peers} drop; }} }}",
            cut.table
        );
        run(Command::new("nft").arg(rules), Duration::from_secs(30))?.ok()?;
        Ok(cut)
    }

    /// Sends one a signal by name: `STOP` and `CONT` let it stand still.
    pub fn signal(&self, number: usize, name: &str) -> anyhow::Result<()> {
        hold(&self.replicas[number].program).as_ref().context("it runs")?.signal(name)
    }

    /// Ends one in order, as a rolling restart does: no new connections in front, then a drain.
    pub fn stop(&self, number: usize) -> anyhow::Result<()> {
        let replica = &self.replicas[number];
        self.front.remove(replica.listen.parse()?);
        let mut program = hold(&replica.program).take().context("it runs")?;
        program.signal("TERM")?;
        let code = program.wait(Duration::from_secs(60))?;
        ensure!(code == Some(0), "{} ended with {code:?}: {}", replica.name, program.tail());
        Ok(())
    }

    /// The last lines of all logs.
    pub fn tails(&self) -> String {
        let tail = |replica: &Replica| hold(&replica.program).as_ref().map(Program::tail).unwrap_or_default();
        self.replicas.iter().map(|replica| format!("{}:\n{}\n", replica.name, tail(replica))).collect()
    }

    /// GET at an admin listener.
    pub fn admin_get(&self, number: usize, path: &str) -> anyhow::Result<String> {
        admin_call(&self.replicas[number].admin, "GET", path)
    }

    /// The audit records of one.
    pub fn audit(&self, number: usize) -> anyhow::Result<Vec<Value>> {
        let text = std::fs::read_to_string(self.replicas[number].folder.join("audit.jsonl"))?;
        text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    /// Runs `towline-gateway` with the configuration of one.
    pub fn command(&self, number: usize, args: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(binary("towline-gateway"));
        command.args(args).arg("--config").arg(self.replicas[number].folder.join("gateway.toml"));
        run(&mut command, Duration::from_secs(60))?.ok()
    }

    /// One request at an address: that in front, or of one.
    pub fn ask(&self, at: &str, method: &str, path: &str, headers: &str, body: &str) -> anyhow::Result<Answer> {
        let mut raw = Raw::connect(at, &self.ca(), &[b"http/1.1"])?;
        // A gateway gives a statement to its database 30 s, and then answers that it cannot.
        raw.read_timeout(Duration::from_secs(60))?;
        let host = self.front.address;
        let length = body.len();
        raw.send(
            format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Content-Length: {length}\r\n\r\n{body}")
                .as_bytes(),
        )?;
        raw.answer()
    }

    /// A token of a service principal from the issuer at an address, for an audience.
    pub fn token_of(&self, at: &str, (id, secret): (&str, &str), audience: &str) -> anyhow::Result<String> {
        let scope = format!("{audience}/.default").replace(':', "%3A").replace('/', "%2F");
        let form = format!("grant_type=client_credentials&client_id={id}&client_secret={secret}&scope={scope}");
        let path = format!("/{}/oauth2/v2.0/token", self.text("tenant"));
        let answer = self.ask(at, "POST", &path, "Content-Type: application/x-www-form-urlencoded\r\n", &form)?;
        let told = answer.json()?;
        let token = told["access_token"].as_str().with_context(|| format!("no token: {told}"))?;
        note_secret(token)?;
        Ok(token.to_owned())
    }

    /// A token of the owner for the resource API.
    pub fn owner(&self) -> anyhow::Result<String> {
        self.owner_for(&self.text("url"))
    }

    /// A token of the owner for an audience.
    pub fn owner_for(&self, audience: &str) -> anyhow::Result<String> {
        let at = self.front.address.to_string();
        self.token_of(&at, (&self.text("clientId"), &self.text("clientSecret")), audience)
    }

    /// A call of the resource API at an address.
    pub fn call(&self, at: &str, token: &str, method: &str, path: &str, body: &Value) -> anyhow::Result<Answer> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let headers = format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n");
        self.ask(at, method, path, &headers, &body)
    }

    /// GET of a cluster's path at an address.
    pub fn get(&self, at: &str, site: &Site, token: &str, path: &str) -> anyhow::Result<Answer> {
        let headers = format!("Authorization: Bearer {token}\r\n");
        self.ask(at, "GET", &format!("/{}{path}", site.id.key()), &headers, "")
    }

    /// Creates a cluster in the API, gets its agent a certificate and starts that in front of an apiserver, with more
    /// lines of configuration.
    pub fn connect(&self, name: &str, kubeconfig: &Path, carrier: &str, more: &str) -> anyhow::Result<Site> {
        let front = self.front.address.to_string();
        let owner = self.owner()?;
        let group = format!("/subscriptions/{}/resourceGroups/{GROUP}", self.text("subscription"));
        let made = self.call(
            &front,
            &owner,
            "PUT",
            &format!("{group}?api-version=2021-04-01"),
            &json!({"location": "local"}),
        )?;
        ensure!(matches!(made.status, 200 | 201), "{}", String::from_utf8_lossy(&made.body));
        let id = format!("{group}/providers/Microsoft.Kubernetes/connectedClusters/{name}");
        let key = KeyPair::generate_for(&PKCS_RSA_SHA256)?;
        let body = json!({
            "location": "local", "identity": {"type": "SystemAssigned"},
            "properties": {"agentPublicKeyCertificate": BASE64.encode(key.subject_public_key_info())},
        });
        let made = self.call(&front, &owner, "PUT", &format!("{id}?api-version=2024-01-01"), &body)?;
        ensure!(matches!(made.status, 200 | 201), "{}", String::from_utf8_lossy(&made.body));
        let id: ClusterId = id.parse()?;
        let folder = self.private.path().join(format!("agent-{name}"));
        std::fs::create_dir(&folder)?;
        self.certify(&folder, &id, &key)?;
        std::fs::copy(self.ca(), folder.join("ca.crt"))?;
        let keys = self.ask(&front, "GET", "/.towline/issuer/keys", "", "")?;
        std::fs::write(folder.join("issuer-keys.json"), &keys.body)?;
        let config = folder.join("agent.toml");
        std::fs::write(
            &config,
            format!(
                "[gateway]\nurl = \"https://{front}\"\nca_file = \"ca.crt\"\ncertificate_file = \"tls.crt\"\n\
                 key_file = \"tls.key\"\n\n[[issuers]]\nname = \"towline\"\nurl = \"https://{front}/.towline/issuer\"\n\
                 ca_file = \"ca.crt\"\nusername_claim = \"preferred_username\"\n\
                 pinned_keys_file = \"issuer-keys.json\"\n\n[admin]\nlisten = \"127.0.0.1:0\"\n{more}\n"
            ),
        )?;
        let agent = self.agent(name, &config, carrier, kubeconfig)?;
        let (kubeconfig, carrier) = (kubeconfig.to_owned(), carrier.to_owned());
        let site = Site { id, agent: Mutex::new(agent), config, key, kubeconfig, carrier };
        let token = self.owner_for(&site.id.audience())?;
        eventually("a request gets through", Duration::from_secs(30), || {
            Ok(self.get(&front, &site, &token, "/version").is_ok_and(|answer| answer.status == 200))
        })
        .with_context(|| format!("agent:\n{}\n{}", hold(&site.agent).tail(), self.tails()))?;
        Ok(site)
    }

    /// Gives an agent's folder a certificate from whichever replica answers.
    fn certify(&self, folder: &Path, id: &ClusterId, key: &KeyPair) -> anyhow::Result<()> {
        let front = self.front.address.to_string();
        let (certificate, own) = enrolled(|| Raw::connect(&front, &self.ca(), &[b"http/1.1"]), &front, id, key)?;
        std::fs::write(folder.join("tls.crt"), certificate)?;
        std::fs::write(folder.join("tls.key"), own)?;
        private_file(&folder.join("tls.key"))
    }

    fn agent(&self, name: &str, config: &Path, carrier: &str, kubeconfig: &Path) -> anyhow::Result<Program> {
        let mut command = Command::new(binary("towline-agent"));
        command.args(["run", "--carrier", carrier, "--config"]).arg(config).arg("--kubeconfig").arg(kubeconfig);
        command.stdout(Stdio::null());
        Program::start("towline-agent", command, &self.dir.join(format!("agent-{name}.log")))
    }

    /// Ends a cluster's agent, gives it a new certificate, and starts it again.
    pub fn restart_agent(&self, site: &Site) -> anyhow::Result<()> {
        hold(&site.agent).kill();
        self.certify(site.config.parent().context("a folder")?, &site.id, &site.key)?;
        let agent = self.agent(site.id.name(), &site.config, &site.carrier, &site.kubeconfig)?;
        *hold(&site.agent) = agent;
        Ok(())
    }

    /// The replicas that have tunnels of a cluster, by number.
    pub fn holders(&self, site: &Site) -> Vec<usize> {
        let has = |number: &usize| {
            let Ok(text) = self.admin_get(*number, "/tunnels") else { return false };
            let told: Value = serde_json::from_str(&text).unwrap_or_default();
            let tunnels = told["tunnels"].as_array().cloned().unwrap_or_default();
            tunnels.iter().any(|tunnel| tunnel.to_string().contains(site.id.as_str()))
        };
        (0..self.count()).filter(has).collect()
    }

    /// A kubeconfig with a token for a cluster at an address.
    pub fn kubeconfig(&self, at: &str, site: &Site, token: &str) -> anyhow::Result<PathBuf> {
        let path = self.private.path().join(format!("{}.kubeconfig", at.replace(':', "-")));
        let ca = BASE64.encode(std::fs::read(self.ca())?);
        let server = format!("https://{at}/{}", site.id.key());
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority-data": ca}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&path, text.to_string())?;
        Ok(path)
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        for (number, replica) in self.replicas.iter().enumerate() {
            // For the sweep for secrets.
            keep(&self.dir.join("metrics"), &self.admin_get(number, "/metrics").unwrap_or_default());
            let audit = std::fs::read_to_string(replica.folder.join("audit.jsonl")).unwrap_or_default();
            keep(&self.dir.join("audit"), &audit);
        }
    }
}

fn hold<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn own_port(address: &str) -> anyhow::Result<u16> {
    Ok(address.parse::<SocketAddr>()?.port())
}

fn private_file(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?)
}

/// An address of this machine that is free; nobody else is told of it. Its port is none of those that connections get
/// which somebody opens before it is listened at.
fn free() -> anyhow::Result<String> {
    const PORTS: std::ops::Range<u32> = 10_000..15_000;
    static TRIED: AtomicUsize = AtomicUsize::new(0);
    // Processes of other tests look at the same time.
    let first = std::process::id().wrapping_mul(97);
    for _ in PORTS {
        let tried = u32::try_from(TRIED.fetch_add(1, Ordering::Relaxed)).unwrap_or_default();
        let port = PORTS.start + first.wrapping_add(tried) % (PORTS.end - PORTS.start);
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", u16::try_from(port)?)) {
            return Ok(listener.local_addr()?.to_string());
        }
    }
    anyhow::bail!("no port of 127.0.0.1 from {} to {} is free", PORTS.start, PORTS.end)
}

/// A balancer of TCP connections: each goes to the next of those that are there and take it.
pub struct Front {
    /// Where it listens.
    pub address: SocketAddr,
    behind: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Front {
    fn listen() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let behind = Arc::<Mutex<Vec<SocketAddr>>>::default();
        let (known, turn) = (Arc::clone(&behind), AtomicUsize::new(0));
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let mut there = hold(&known).clone();
                let first = turn.fetch_add(1, Ordering::Relaxed);
                if there.is_empty() {
                    continue;
                }
                let count = there.len();
                there.rotate_left(first % count);
                std::thread::spawn(move || {
                    let upstream = there.iter().find_map(|address| TcpStream::connect(address).ok());
                    upstream.map_or(Ok(()), |upstream| passed_on(socket, upstream))
                });
            }
        });
        Ok(Self { address, behind })
    }

    fn add(&self, address: SocketAddr) {
        let mut behind = hold(&self.behind);
        if !behind.contains(&address) {
            behind.push(address);
        }
    }

    fn remove(&self, address: SocketAddr) {
        hold(&self.behind).retain(|there| *there != address);
    }
}

/// Bytes both ways until both ends are over.
fn passed_on(one: TcpStream, other: TcpStream) -> std::io::Result<()> {
    let way = |mut from: TcpStream, mut to: TcpStream| {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return to.shutdown(Shutdown::Write),
                Ok(read) => to.write_all(&buffer[..read])?,
                Err(error) => {
                    // Whoever is killed leaves its peers at once.
                    let _ = to.shutdown(Shutdown::Both);
                    return Err(error);
                }
            }
        }
    };
    one.set_nodelay(true)?;
    other.set_nodelay(true)?;
    let (back_from, back_to) = (other.try_clone()?, one.try_clone()?);
    let back = std::thread::spawn(move || way(back_from, back_to));
    let forth = way(one, other);
    let _ = back.join();
    forth
}
