//! A real OCI registry, Debian's `docker-registry`, behind TLS of an authority of its own and basic authentication, and
//! artifacts pushed to it as `flux push artifact` does.

use std::{
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, ensure};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use catalogue::{
    digest::Sha256,
    testing::{archive, gzip},
};
use certs::{Authority, Validity};
use serde_json::{Value, json};

use crate::programs::{Program, eventually, free_port, run, run_with_input};

/// User name and password of the one user.
pub const CREDENTIALS: (&str, &str) = ("oci-user", "oci-pass-word-of-tests");
/// The same in `htpasswd`: bcrypt, which is all that the registry reads.
const ACCEPTED: &str = "oci-user:$2y$05$towlinetestsoftowline.gp19CmGfDHCNa4Dvm9oYVpn/51XB.xG\n";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A running registry; it ends when dropped.
pub struct Registry {
    /// Where it listens.
    pub address: SocketAddr,
    /// PEM of its authority.
    pub ca: String,
    folder: PathBuf,
    _program: Program,
}

impl Registry {
    /// Starts one with its files in `folder`.
    pub fn start_at(ip: &str, folder: &Path) -> anyhow::Result<Self> {
        crate::stack::note_secret(CREDENTIALS.1)?;
        let port = free_port(ip)?;
        let address: SocketAddr = (ip.parse::<std::net::IpAddr>()?, port).into();
        let path = |name: &str| folder.join(name);
        let authority = Authority::create("the registry's own authority", Validity::days(1))?;
        authority.issue_server(&[ip], Validity::days(1))?.save(&path("tls.crt"), &path("tls.key"))?;
        std::fs::write(path("ca.crt"), authority.certificate_pem())?;
        std::fs::write(path("accepted"), ACCEPTED)?;
        let settings = json!({
            "version": "0.1", "log": {"level": "warn", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": path("blobs")}},
            "http": {"addr": address.to_string(), "tls": {"certificate": path("tls.crt"), "key": path("tls.key")}},
            "auth": {"htpasswd": {"realm": "tests", "path": path("accepted")}},
        });
        // JSON is YAML.
        std::fs::write(path("settings.yml"), settings.to_string())?;
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(path("settings.yml")).stdout(std::process::Stdio::null());
        let program = Program::start("docker-registry", command, &path("registry.log"))?;
        eventually("the registry listens", Duration::from_secs(20), || Ok(TcpStream::connect(address).is_ok()))
            .with_context(|| program.tail())?;
        Ok(Self { address, ca: authority.certificate_pem().into(), folder: folder.to_owned(), _program: program })
    }

    /// Where an artifact is pulled, without its tag.
    pub fn url(&self, name: &str) -> String {
        format!("oci://{}/{name}", self.address)
    }

    /// The content of a Secret of the type `kubernetes.io/dockerconfigjson` that pulls from here.
    pub fn docker_config(&self) -> Value {
        let (user, password) = CREDENTIALS;
        let auth = BASE64.encode(format!("{user}:{password}"));
        json!({"auths": {(self.address.to_string()): {"username": user, "password": password, "auth": auth}}})
    }

    /// Pushes files as an artifact of Flux; its digest, `sha256:...`.
    pub fn push(&self, name: &str, tag: &str, files: &[(&str, &str)]) -> anyhow::Result<String> {
        let files: Vec<(&str, &[u8])> = files.iter().map(|(path, text)| (*path, text.as_bytes())).collect();
        self.push_layer(name, tag, &gzip(&archive(&files)))
    }

    /// Pushes an artifact whose one layer is this archive; its digest.
    pub fn push_layer(&self, name: &str, tag: &str, layer: &[u8]) -> anyhow::Result<String> {
        let config = self.blob(name, b"{}")?;
        let layer = self.blob(name, layer)?;
        let of =
            |kind: &str, (digest, size): (String, usize)| json!({"mediaType": kind, "digest": digest, "size": size});
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": of("application/vnd.cncf.flux.config.v1+json", config),
            "layers": [of("application/vnd.cncf.flux.content.v1.tar+gzip", layer)],
            "annotations": {"org.opencontainers.image.created": "2026-11-28T00:00:00Z"},
        })
        .to_string();
        let url = format!("https://{}/v2/{name}/manifests/{tag}", self.address);
        self.curl(
            &["-X", "PUT", "-H", &format!("Content-Type: {MANIFEST}"), "--data-binary", "@-", &url],
            manifest.as_bytes(),
        )?;
        Ok(format!("sha256:{}", Sha256::of(manifest.as_bytes())))
    }

    /// Pushes a chart's archive below a path, with this helm.
    pub fn push_chart(&self, helm: &str, file: &str, path: &str) -> anyhow::Result<()> {
        let mut push = Command::new(helm);
        push.args(["push", file, &self.url(path), "--username", CREDENTIALS.0, "--password", CREDENTIALS.1]);
        push.arg("--ca-file").arg(self.folder.join("ca.crt")).env("HOME", &self.folder);
        run(&mut push, Duration::from_secs(60))?.ok().map(drop)
    }

    /// Uploads bytes; their digest and how many they are.
    fn blob(&self, name: &str, bytes: &[u8]) -> anyhow::Result<(String, usize)> {
        let begin = format!("https://{}/v2/{name}/blobs/uploads/", self.address);
        let head = self.curl(&["-X", "POST", "-D", "-", &begin], b"")?;
        let location = head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case("location").then(|| value.trim().to_owned())
        });
        let location = location.with_context(|| format!("no place for a blob: {head}"))?;
        ensure!(location.starts_with("https://"), "{location}");
        let digest = format!("sha256:{}", Sha256::of(bytes));
        let url = format!("{location}{}digest={digest}", if location.contains('?') { '&' } else { '?' });
        let octets = "Content-Type: application/octet-stream";
        self.curl(&["-X", "PUT", "-H", octets, "--data-binary", "@-", &url], bytes)?;
        Ok((digest, bytes.len()))
    }

    fn curl(&self, args: &[&str], input: &[u8]) -> anyhow::Result<String> {
        let mut command = Command::new("curl");
        command
            .args(["--silent", "--show-error", "--fail", "--noproxy", "*", "--cacert"])
            .arg(self.folder.join("ca.crt"));
        command.args(["--user", &format!("{}:{}", CREDENTIALS.0, CREDENTIALS.1)]).args(args);
        run_with_input(&mut command, Some(input), Duration::from_secs(60))?.ok()
    }

    /// What the registry answers to a request without credentials.
    pub fn status_without_credentials(&self, name: &str) -> anyhow::Result<String> {
        let url = format!("https://{}/v2/{name}/tags/list", self.address);
        let mut command = Command::new("curl");
        command.args(["--silent", "--noproxy", "*", "-o", "/dev/null", "-w", "%{http_code}", "--cacert"]);
        command.arg(self.folder.join("ca.crt")).arg(&url);
        run(&mut command, Duration::from_secs(30))?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifact_is_pulled_with_the_right_password_and_not_without() {
        if !Path::new("/usr/bin/docker-registry").exists() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::start_at("127.0.0.1", folder.path()).unwrap();
        let digest = registry.push("team/fleet", "1.0.0", &[("a.yaml", "x: 1\n")]).unwrap();
        let url = format!("https://{}/v2/team/fleet/manifests/{digest}", registry.address);
        let manifest = registry.curl(&["-H", &format!("Accept: {MANIFEST}"), &url], b"").unwrap();
        assert!(manifest.contains("vnd.cncf.flux.content"), "{manifest}");
        assert_eq!(registry.status_without_credentials("team/fleet").unwrap(), "401");
    }
}
