//! An issuer that is somebody else's program: a real OpenID provider, which gateway and agent read by discovery, and
//! whose ID tokens with groups open the real cluster (docs/features.md A1, A2; docs/identity.md).

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};
use certs::{Authority, Validity};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    case::{Needs, case},
    cluster::cluster,
    kubectl::Kubectl,
    programs::{Output, Program, binary, eventually, free_port, keep, root, run, run_with_input, scratch},
    stack::{Plan, Stack, note_secret},
};

pub fn tests() -> Vec<Trial> {
    vec![
        case("oidc::a1_people_of_a_real_provider_work_by_their_groups", Needs::Cluster, people),
        case("oidc::a1_people_of_a_real_provider_sign_in_with_the_command", Needs::Cluster, sign_in),
    ]
}

/// Where the provider's package is; installed when nobody has.
fn modules() -> anyhow::Result<PathBuf> {
    if let Some(modules) = std::env::var_os("TOWLINE_NODE_MODULES") {
        return Ok(modules.into());
    }
    let dir = root().join("target/node");
    let mut install = Command::new("npm");
    install.args([
        "install",
        "--silent",
        "--no-audit",
        "--no-fund",
        "--no-package-lock",
        "--install-links",
        "--prefix",
    ]);
    run(install.arg(&dir).arg(root().join("tests")), Duration::from_secs(300))?.ok()?;
    Ok(dir.join("node_modules"))
}

/// How long the provider's tokens live where a test does not wait for their end.
const HOUR: u32 = 3600;

/// The provider, and a browser for its pages.
pub struct Provider {
    _program: Program,
    folder: tempfile::TempDir,
    pub issuer: String,
    pub ca: PathBuf,
    tokens: Value,
}

impl Provider {
    /// With the ID tokens of users. Tokens live `seconds`; access tokens of the client `towline` are for `gateway`.
    pub fn start(users: &[&str], seconds: u32, gateway: &str) -> anyhow::Result<Self> {
        // Away from what is swept for secrets: it has keys, and the package's own tests of keys are in it.
        let folder = tempfile::tempdir()?;
        let dir = folder.path();
        let authority = Authority::create("provider", Validity::days(1))?;
        let (certificate, key, ca) = (dir.join("tls.crt"), dir.join("tls.key"), dir.join("ca.crt"));
        authority.issue_server(&["127.0.0.1"], Validity::days(1))?.save(&certificate, &key)?;
        std::fs::write(&ca, authority.certificate_pem())?;
        // A module is found beside the script that asks for it.
        for script in ["oidc_provider.mjs", "oidc_browser.mjs"] {
            std::fs::copy(root().join("tests/it").join(script), dir.join(script))?;
        }
        std::os::unix::fs::symlink(modules()?, dir.join("node_modules"))?;
        let mut command = Command::new("node");
        // It says nothing of where it is to be found behind a proxy, and none is wanted.
        command
            .arg("--preserve-symlinks")
            .arg(dir.join("oidc_provider.mjs"))
            .arg(&certificate)
            .arg(&key)
            .args([&seconds.to_string(), gateway])
            .args(users)
            .env_remove("NODE_OPTIONS");
        command.env("NODE_EXTRA_CA_CERTS", &ca).stdout(Stdio::piped());
        let mut program = Program::start("provider", command, &scratch("oidc-provider").join("log"))?;
        let line: Value = serde_json::from_str(&program.first_line(Duration::from_secs(60))?)?;
        let issuer = line["issuer"].as_str().context("no issuer")?.to_owned();
        for token in line["tokens"].as_object().into_iter().flat_map(|tokens| tokens.values()) {
            note_secret(token.as_str().context("no token")?)?;
        }
        Ok(Self { _program: program, folder, issuer, ca, tokens: line["tokens"].clone() })
    }

    /// A program that signs `user` in at the page that it is given, as `BROWSER`.
    pub fn browser(&self, user: &str) -> anyhow::Result<PathBuf> {
        let (program, script) =
            (self.folder.path().join(format!("browser-{user}")), self.folder.path().join("oidc_browser.mjs"));
        let text = format!(
            "#!/bin/sh\nNODE_OPTIONS= NODE_EXTRA_CA_CERTS='{}' exec node '{}' '{user}' \"$1\"\n",
            self.ca.display(),
            script.display()
        );
        std::fs::write(&program, text)?;
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        Ok(program)
    }

    /// As in either configuration file.
    fn table(&self) -> String {
        format!(
            "\n[[issuers]]\nname = \"staff\"\nurl = \"{}\"\nca_file = \"{}\"\naudiences = [\"towline-cli\", \"towline\"]\n\
             username_claim = \"preferred_username\"\nusername_prefix = \"staff:\"\ngroups_claim = \"groups\"\ngroups_prefix = \"staff:\"\n",
            self.issuer,
            self.ca.display()
        )
    }

    fn token(&self, user: &str) -> &str {
        self.tokens[user].as_str().unwrap_or_default()
    }
}

fn kubectl(stack: &Stack, dir: &Path, user: &str, token: &str) -> anyhow::Result<Kubectl> {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {
            "server": format!("{}/{}", stack.text("url"), stack.key()), "certificate-authority": stack.ca(),
        }}],
        "users": [{"name": "u", "user": {"token": token}}],
    });
    let path = dir.join(format!("{user}.kubeconfig"));
    std::fs::write(&path, config.to_string())?;
    Ok(Kubectl::new(&path))
}

fn people() -> anyhow::Result<()> {
    let provider = Provider::start(&["ann", "bob"], HOUR, "https://gateway.test")?;
    let agents = provider.table();
    let stack = Stack::start(&Plan { agent_config: &agents, ..Plan::real("oidc") })?;
    stack.towline(&["dev", "grant", "--cluster", "dev", "--group", "staff:devs"])?.ok()?;
    let gateway = stack.state().join("gateway.toml");
    std::fs::write(&gateway, std::fs::read_to_string(&gateway)? + &provider.table())?;
    cluster().admin().apply(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: towline-test-oidc}\n\
         roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}\n\
         subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: 'staff:devs'}]\n",
    )?;
    let dir = scratch("oidc-users");
    let ann = kubectl(&stack, &dir, "ann", provider.token("ann"))?;
    eventually("the gateway has taken the issuer", Duration::from_secs(15), || {
        Ok(ann.run(&["version"])?.code == Some(0))
    })?;
    ann.ok(&["get", "pods", "-A"])?;
    let who: Value = serde_json::from_str(&ann.ok(&["auth", "whoami", "-o", "json"])?)?;
    let info = &who["status"]["userInfo"];
    ensure!(info["username"] == "staff:ann", "{who}");
    let groups = info["groups"].as_array().context("no groups")?;
    ensure!(["staff:devs", "staff:everybody"].iter().all(|group| groups.contains(&json!(group))), "{who}");
    let error = ann.run(&["get", "secrets", "-A"])?.refused()?;
    ensure!(error.contains("User \"staff:ann\" cannot list"), "{error}");
    // In no group that may come through; and a group of the same name is another issuer's without the prefix.
    let bob = kubectl(&stack, &dir, "bob", provider.token("bob"))?;
    ensure!(bob.run(&["get", "pods"])?.refused()?.to_lowercase().contains("forbidden"));
    // What somebody changed in a token that the provider signed.
    let (signed, signature) = provider.token("ann").rsplit_once('.').context("no token")?;
    let other: String = signature.chars().rev().collect();
    let forged = kubectl(&stack, &dir, "forged", &format!("{signed}.{other}"))?;
    let error = forged.run(&["get", "pods"])?.refused()?;
    ensure!(error.contains("Unauthorized") || error.contains("must be logged in"), "{error}");
    Ok(())
}

/// Somebody at a machine of their own.
struct Person<'a> {
    stack: &'a Stack,
    provider: &'a Provider,
    name: &'a str,
    home: PathBuf,
}

impl<'a> Person<'a> {
    fn new(stack: &'a Stack, provider: &'a Provider, name: &'a str) -> anyhow::Result<Self> {
        // A folder of this name is left out when everything that was written is read for secrets.
        let home = scratch(&format!("oidc-{name}")).join("state");
        std::fs::create_dir_all(&home)?;
        Ok(Self { stack, provider, name, home })
    }

    fn command(&self, args: &[&str]) -> anyhow::Result<Command> {
        let mut command = Command::new(binary("towline"));
        command.args(args).env("TOWLINE_CONFIG_DIR", self.home.join("config")).env("HOME", &self.home);
        command.env("BROWSER", self.provider.browser(self.name)?);
        Ok(command)
    }

    fn run(&self, args: &[&str]) -> anyhow::Result<Output> {
        let output = run(&mut self.command(args)?, Duration::from_secs(120))?;
        keep(&self.stack.dir.join("towline.stderr"), &output.err);
        Ok(output)
    }

    fn json(&self, args: &[&str]) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.run(args)?.ok().with_context(|| format!("towline {args:?}"))?)?)
    }

    /// As a client of the provider.
    fn login(&self, client: &str, more: &[&str]) -> anyhow::Result<Command> {
        let (url, ca, issuer_ca) = (self.stack.text("url"), self.stack.ca(), self.provider.ca.display().to_string());
        let mut command = self.command(&["login", &url, "-o", "json", "--issuer", &self.provider.issuer])?;
        command.arg("--ca").arg(ca).args(["--issuer-ca", &issuer_ca, "--client-id", client]);
        command.args(["--scope", "openid profile groups offline_access"]).args(more);
        Ok(command)
    }

    /// By a page of this machine.
    fn by_browser(&self, client: &str, more: &[&str]) -> anyhow::Result<(Value, String)> {
        let output = run(self.login(client, more)?.arg("--browser"), Duration::from_secs(120))?;
        keep(&self.stack.dir.join("towline.stderr"), &output.err);
        Ok((serde_json::from_str(&output.ok()?)?, output.err))
    }

    /// By a code that is typed on another machine.
    fn by_device_code(&self, client: &str, more: &[&str]) -> anyhow::Result<Value> {
        let log = self.home.join("login.log");
        let mut command = self.login(client, more)?;
        command.arg("--device-code").stdout(Stdio::null());
        let mut program = Program::start("towline login", command, &log)?;
        let mut page = None;
        eventually("a code is shown", Duration::from_secs(60), || {
            let said = std::fs::read_to_string(&log)?;
            page = said.lines().find_map(|line| Some(line.strip_prefix("or open ")?.trim().to_owned()));
            Ok(page.is_some())
        })
        .with_context(|| program.tail())?;
        let mut browser = Command::new(self.provider.browser(self.name)?);
        run(browser.arg(page.unwrap_or_default()), Duration::from_secs(60))?.ok()?;
        ensure!(program.wait(Duration::from_secs(120))? == Some(0), "{}", program.tail());
        keep(&self.stack.dir.join("towline.stderr"), &std::fs::read_to_string(&log)?);
        self.json(&["account", "show", "-o", "json"])
    }

    /// The secret that keeps an account signed in, which nobody shows.
    fn refresh_token(&self, account: &str) -> anyhow::Result<String> {
        for entry in std::fs::read_dir(self.home.join("config/accounts"))? {
            let Ok(found) = serde_json::from_slice::<Value>(&std::fs::read(entry?.path())?) else { continue };
            if found["name"] == account {
                return Ok(found["signsIn"]["refreshToken"].as_str().context("no refresh token")?.to_owned());
            }
        }
        anyhow::bail!("no file of the account {account}")
    }
}

/// Gateway and agent that take the provider's people, and the cluster as a resource of group `dev`.
fn site(provider: &Provider, listen: &str) -> anyhow::Result<Stack> {
    let agents = provider.table();
    let stack = Stack::start(&Plan { agent_config: &agents, listen, ..Plan::real("oidc-login") })?;
    let gateway = stack.state().join("gateway.toml");
    // Tokens of the one client are for the API by their audience, those of the other because the gateway is told so.
    let table = provider.table() + "api_audiences = [\"towline-cli\"]\n";
    std::fs::write(&gateway, std::fs::read_to_string(&gateway)? + &table)?;
    eventually("the gateway has taken the issuer", Duration::from_secs(30), || {
        Ok(std::fs::read_to_string(stack.dir.join("gateway.log"))?.contains("read the issuer's keys issuer=\"staff\""))
    })?;
    let body = json!({
        "location": "local", "identity": {"type": "SystemAssigned"}, "properties": {"agentPublicKeyCertificate": ""},
    });
    stack.connect_as_resource(body, |path, body| {
        let args = match path.contains("/providers/") {
            true => {
                let url = format!("{path}?api-version=2024-01-01");
                ["rest", "--method", "PUT", "--url", &url, "--body", &body.to_string()].map(str::to_owned).to_vec()
            }
            false => ["group", "create", "-n", "dev", "-l", "local"].map(str::to_owned).to_vec(),
        };
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        run(&mut owner(&stack, &args), Duration::from_secs(60))?.ok().map(drop)
    })?;
    let user = "Azure Arc Enabled Kubernetes Cluster User Role";
    let assign = ["role", "assignment", "create", "--assignee", "staff:devs", "--assignee-type", "Group", "--role"];
    for args in [[&assign[..], &["Reader"]].concat(), [&assign[..], &[user, "-g", "dev"]].concat()] {
        run(&mut owner(&stack, &args), Duration::from_secs(60))?.ok()?;
    }
    Ok(stack)
}

/// The owner of the subscription, who is a program.
fn owner(stack: &Stack, args: &[&str]) -> Command {
    let mut command = Command::new(binary("towline"));
    command.args(args).env("TOWLINE_GATEWAY", stack.text("url")).env("TOWLINE_CA_FILE", stack.ca());
    command.env("TOWLINE_CLIENT_ID", stack.text("clientId")).env("TOWLINE_CLIENT_SECRET", stack.text("clientSecret"));
    command.env("TOWLINE_SUBSCRIPTION", stack.text("subscription"));
    command
}

fn sign_in() -> anyhow::Result<()> {
    // The provider must know the gateway's address, and the gateway the provider's.
    let listen = format!("127.0.0.1:{}", free_port("127.0.0.1")?);
    let provider = Provider::start(&[], 20, &format!("https://{listen}"))?;
    let stack = site(&provider, &listen)?;
    cluster().admin().apply(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: towline-test-oidc-login}\n\
         roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}\n\
         subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: 'staff:devs'}]\n",
    )?;
    let ann = Person::new(&stack, &provider, "ann")?;
    let (short, said) = ann.by_browser("towline", &["--name", "short"])?;
    ensure!(short["objectId"] == "staff:ann" && said.contains("no refresh token"), "{short} {said}");
    let (page, _) = ann.by_browser("towline", &["--name", "page", "--prompt", "consent"])?;
    ensure!(page["user"] == "ann" && page["subscription"]["id"] == stack.text("subscription"), "{page}");
    let code = ann.by_device_code("towline-cli", &["--name", "code"])?;
    ensure!(code["name"] == "code" && code["objectId"] == "staff:ann", "{code}");
    for account in ["page", "code"] {
        works(&ann, account).with_context(|| format!("account {account}"))?;
    }
    // In no group that has a role.
    let bob = Person::new(&stack, &provider, "bob")?;
    let (account, said) = bob.by_browser("towline-cli", &["--prompt", "consent"])?;
    ensure!(account["objectId"] == "staff:bob" && said.contains("--assignee staff:bob --assignee-type User"), "{said}");
    let subscription = stack.text("subscription");
    let error = bob.run(&["list", "--subscription", &subscription])?.refused()?;
    ensure!(error.contains("AuthorizationFailed") || error.contains("does not have authorization"), "{error}");
    ends(&ann)
}

/// The API and the cluster, by the roles of the group.
fn works(ann: &Person<'_>, account: &str) -> anyhow::Result<()> {
    let whoami = || ann.json(&["whoami", "--account", account, "--json"]);
    let who = whoami()?;
    ensure!(who["objectId"] == "staff:ann" && who["groups"] == json!(["devs", "everybody"]), "{who}");
    let listed = ann.json(&["list", "--account", account, "-o", "json"])?;
    ensure!(listed.as_array().is_some_and(|list| list.len() == 1) && listed[0]["name"] == "dev", "{listed}");
    let file = ann.home.join(format!("{account}.kubeconfig"));
    let shown = file.display().to_string();
    ann.run(&["kubeconfig", "--account", account, "-n", "dev", "-g", "dev", "-f", &shown])?.ok()?;
    let kubectl = Kubectl::new(&file);
    kubectl.ok(&["get", "pods", "-A"])?;
    let who: Value = serde_json::from_str(&kubectl.ok(&["auth", "whoami", "-o", "json"])?)?;
    ensure!(who["status"]["userInfo"]["username"] == "staff:ann", "{who}");
    let error = kubectl.run(&["get", "secrets", "-A"])?.refused()?;
    ensure!(error.contains("User \"staff:ann\" cannot list"), "{error}");
    // The tokens end, and others come without a word.
    let first = whoami()?["tokenExpires"].clone();
    eventually("the token is renewed", Duration::from_secs(120), || Ok(whoami()?["tokenExpires"] != first))?;
    kubectl.ok(&["get", "pods", "-A"])?;
    Ok(())
}

/// What the provider takes back is over once the token is, and a sign-out at once.
fn ends(ann: &Person<'_>) -> anyhow::Result<()> {
    let form = format!("token={}&client_id=towline-cli", ann.refresh_token("code")?);
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--fail", "--noproxy", "*", "--cacert"]).arg(&ann.provider.ca);
    curl.args(["-d", "@-"]).arg(format!("{}/token/revocation", ann.provider.issuer));
    run_with_input(&mut curl, Some(form.as_bytes()), Duration::from_secs(30))?.ok()?;
    let list = ["list", "--account", "code"];
    eventually("a sign-in that was taken back is over", Duration::from_secs(120), || {
        let output = ann.run(&list)?;
        Ok(output.code == Some(1) && output.err.contains("hint: sign in again: towline login"))
    })?;
    ann.run(&["logout", "page"])?.ok()?;
    let error = ann.run(&["list", "--account", "page"])?.refused()?;
    ensure!(error.contains("towline login") || error.contains("towline account list"), "{error}");
    let left = ann.json(&["account", "list", "-o", "json"])?;
    ensure!(!left.to_string().contains("\"page\""), "{left}");
    Ok(())
}
