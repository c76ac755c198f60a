//! A flux configuration as Flux's objects and the Secrets that they name (source.toolkit.fluxcd.io/v1,
//! kustomize.toolkit.fluxcd.io/v1). Pure: nothing is asked and written here.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use types::known_hosts;

use super::{
    key::KeyPair,
    spec::{AzureBlob, Bucket, Git, Kustomization, Oci, Properties, Scope, Secrets, Verify, bytes, seconds},
};
use crate::roles::{egress_proxy::Credentials, objects::state::Problem};

/// On what is made here.
pub const MANAGED: &str = "app.kubernetes.io/managed-by";
/// The value of the label [`MANAGED`].
pub const MANAGER: &str = "towline";
/// Names the configuration that something was made for.
pub const OWNER: &str = "towline.io/fluxconfig";
/// The same of a source control configuration. An agent from before these were known takes whatever has [`OWNER`] for a
/// flux configuration's, and removes it with what it applied where there is no such one.
pub const SOURCE_CONTROL_OWNER: &str = "towline.io/gitconfig";
/// What the names of a source control configuration's objects begin with, and in this process what it is called as an owner.
/// Flux configurations have no dot in their names, so that no object of theirs has such a name.
pub const SOURCE_CONTROL: &str = "git.";
/// On a kustomization that leaves a configuration: names of the kustomizations that it waits for, with commas between them.
pub const REPLACED_BY: &str = "towline.io/replaced-by";
/// The service account that applies what is pulled.
pub const APPLIER: &str = "flux-applier";
/// The group of sources, with the version that is written.
pub const SOURCE: &str = "source.toolkit.fluxcd.io/v1";
/// The group of kustomizations, with the version that is written.
pub const KUSTOMIZE: &str = "kustomize.toolkit.fluxcd.io/v1";
/// Flux pulls at once when this changes.
const REQUESTED: &str = "reconcile.fluxcd.io/requestedAt";
/// Characters of the name of a source or kustomization: Flux writes it into labels.
const NAME_CHARS: usize = 63;

/// What a configuration is in the cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Rendered {
    /// The namespace of everything.
    pub namespace: String,
    /// Whose rights the applier has.
    pub scope: Scope,
    /// Secrets by name: data by key.
    pub secrets: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// `GitRepository`, `Bucket` or `OCIRepository`.
    pub source: Value,
    /// Kustomizations, by the name that they have in the configuration.
    pub kustomizations: BTreeMap<String, Value>,
}

/// A configuration that is to be rendered.
pub struct Configuration<'a> {
    /// The configuration's name.
    pub name: &'a str,
    /// Of what is wanted: another one makes Flux pull at once.
    pub generation: i64,
    /// What is wanted, without protected settings.
    pub properties: &'a Properties,
    /// Values of protected settings by their names.
    pub secrets: &'a Secrets,
    /// A key that was made in the cluster, for a repository over SSH without one of its own.
    pub generated: Option<&'a KeyPair>,
    /// The way to the source through the gateway, where it is reached so.
    pub proxy: Option<&'a Proxy>,
}

/// The way to a source through the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proxy {
    /// `http://address:port`, in the cluster.
    pub address: String,
    /// Who uses it.
    pub credentials: Credentials,
}

/// What a configuration is called, by the label of its objects.
pub fn called(owner: &str) -> String {
    match owner.strip_prefix(SOURCE_CONTROL) {
        Some(name) => format!("source control configuration {name}"),
        None => format!("configuration {owner}"),
    }
}

/// The label that names an owner, and its value.
pub fn label_of(owner: &str) -> (&'static str, &str) {
    match owner.strip_prefix(SOURCE_CONTROL) {
        Some(name) => (SOURCE_CONTROL_OWNER, name),
        None => (OWNER, owner),
    }
}

/// The labels of what is made for an owner.
pub fn labels_of(owner: &str) -> Value {
    let (key, value) = label_of(owner);
    json!({ MANAGED: MANAGER, key: value })
}

/// The owner that an object's labels name.
pub fn owner_of(labels: Option<&BTreeMap<String, String>>) -> Option<String> {
    let labels = labels?;
    let old = || Some(format!("{SOURCE_CONTROL}{}", labels.get(SOURCE_CONTROL_OWNER)?));
    labels.get(OWNER).cloned().or_else(old)
}

fn invalid(message: impl Into<String>) -> Problem {
    Problem::stays("InvalidConfiguration", message)
}

/// Members that have a value.
fn some<const N: usize>(members: [(&str, Option<Value>); N]) -> Value {
    let members = members.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    Value::Object(members.collect::<Map<_, _>>())
}

fn text(text: Option<&String>) -> Option<Value> {
    text.filter(|text| !text.is_empty()).map(|text| json!(text))
}

fn named(name: Option<&str>) -> Option<Value> {
    name.map(|name| json!({ "name": name }))
}

/// Whether an address is one of SSH, in either spelling.
pub fn is_ssh(url: &str) -> bool {
    url.starts_with("ssh://") || (!url.contains("://") && scp(url).is_some())
}

/// `user@host:path`, which Flux does not take, as a URL.
fn scp(url: &str) -> Option<String> {
    let (host, path) = url.split_once(':')?;
    let is_host = host.contains('@') && !host.contains('/');
    is_host.then(|| format!("ssh://{host}/{}", path.trim_start_matches('/')))
}

fn git_url(url: &str) -> String {
    match scp(url) {
        Some(spelled) if !url.contains("://") => spelled,
        _ => url.to_owned(),
    }
}

fn missing(what: &str) -> Problem {
    invalid(format!("the configuration has no {what}"))
}

/// The source of a configuration.
enum Source<'a> {
    Git(&'a Git),
    Bucket(&'a Bucket),
    AzureBlob(&'a AzureBlob),
    Oci(&'a Oci),
}

impl<'a> Source<'a> {
    fn of(properties: &'a Properties) -> Result<Self, Problem> {
        let kind = match properties.source_kind.as_deref() {
            Some(kind) => kind,
            None if properties.bucket.is_some() => "Bucket",
            None if properties.azure_blob.is_some() => "AzureBlob",
            None if properties.oci_repository.is_some() => "OCIRepository",
            None => "GitRepository",
        };
        match kind {
            "GitRepository" => {
                properties.git_repository.as_ref().map(Self::Git).ok_or_else(|| missing("gitRepository"))
            }
            "Bucket" => properties.bucket.as_ref().map(Self::Bucket).ok_or_else(|| missing("bucket")),
            "AzureBlob" => properties.azure_blob.as_ref().map(Self::AzureBlob).ok_or_else(|| missing("azureBlob")),
            "OCIRepository" => {
                properties.oci_repository.as_ref().map(Self::Oci).ok_or_else(|| missing("ociRepository"))
            }
            other => Err(invalid(format!("the sourceKind {other:?} is not known"))),
        }
    }
}

/// The Secret with credentials that a configuration names and does not make.
pub fn named_secret(properties: &Properties) -> Option<&str> {
    match Source::of(properties).ok()? {
        Source::Git(git) => git.pull.auth(),
        Source::Bucket(bucket) => bucket.pull.auth(),
        Source::AzureBlob(blob) => blob.pull.auth(),
        Source::Oci(oci) => oci.pull.auth(),
    }
}

/// Where a configuration pulls from: one text, by which it is allowed.
///
/// # Errors
/// When it has no source.
pub fn repository(properties: &Properties) -> Result<String, Problem> {
    let with = |url: &str, name: &str| format!("{}/{name}", url.trim_end_matches('/'));
    Ok(match Source::of(properties)? {
        Source::Git(git) => git_url(&git.url),
        Source::Oci(oci) => oci.url.clone(),
        Source::AzureBlob(blob) => with(&blob.url, &blob.container_name),
        Source::Bucket(bucket) => {
            let scheme = if is_insecure(bucket) { "http" } else { "https" };
            with(&format!("{scheme}://{}", endpoint(&bucket.url)), &bucket.bucket_name)
        }
    })
}

/// Where a source of Flux pulls from, as [`repository`] has it.
pub fn repository_of(spec: &Value) -> Option<String> {
    let text = |key: &str| spec[key].as_str();
    let (Some(endpoint), Some(bucket)) = (text("endpoint"), text("bucketName")) else {
        return text("url").map(str::to_owned);
    };
    let scheme = match spec["insecure"].as_bool() {
        // The endpoint of Azure Blob is a whole address.
        _ if endpoint.contains("://") => "",
        Some(true) => "http://",
        _ => "https://",
    };
    Some(format!("{scheme}{}/{bucket}", endpoint.trim_end_matches('/')))
}

/// The host and the port of a source that is reached through the gateway, as `git.example.org:443`.
///
/// # Errors
/// TLS does not protect it, or the address cannot be read.
pub fn destination(properties: &Properties) -> Result<String, Problem> {
    let clear = || {
        invalid(
            "what goes through the gateway is protected by TLS: give an address that begins with https:// or oci://, without insecure",
        )
    };
    let (url, insecure) = match Source::of(properties)? {
        Source::Git(git) => (git.url.clone(), false),
        Source::Oci(oci) => (oci.url.clone(), oci.insecure.unwrap_or(false)),
        Source::AzureBlob(blob) => (blob.url.clone(), false),
        Source::Bucket(bucket) => (bucket.url.clone(), is_insecure(bucket)),
    };
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("oci://")).filter(|_| !insecure);
    let authority = rest.ok_or_else(clear)?.split(['/', '?', '#']).next().unwrap_or_default();
    let authority: http::uri::Authority = authority.parse().map_err(|_| clear())?;
    if authority.as_str().contains('@') || authority.host().is_empty() {
        return Err(clear());
    }
    Ok(format!("{}:{}", authority.host().to_ascii_lowercase(), authority.port_u16().unwrap_or(443)))
}

/// Whether a repository over SSH needs a key of its own: none is given and no Secret named.
pub fn needs_key(properties: &Properties, secrets: &Secrets) -> bool {
    let git = matches!(properties.source_kind.as_deref(), None | Some("GitRepository"))
        .then_some(properties.git_repository.as_ref())
        .flatten();
    git.is_some_and(|git| is_ssh(&git.url) && git.pull.auth().is_none() && secrets.plain("sshPrivateKey").is_none())
}

/// The address of an S3 server without scheme, as Flux wants it.
fn endpoint(url: &str) -> &str {
    let url = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")).unwrap_or(url);
    url.trim_end_matches('/')
}

/// A scheme says more than the flag, whose default is that HTTP will do.
fn is_insecure(bucket: &Bucket) -> bool {
    match () {
        () if bucket.url.starts_with("https://") => false,
        () if bucket.url.starts_with("http://") => true,
        () => bucket.insecure.unwrap_or(true),
    }
}

type Files = BTreeMap<String, Vec<u8>>;

/// A source as Flux's object: kind, spec, and the files of the Secrets `<configuration>-<suffix>`.
struct Made {
    kind: &'static str,
    spec: Value,
    secrets: Vec<(&'static str, Files)>,
}

impl Configuration<'_> {
    /// The name of a kustomization of the configuration.
    pub fn kustomization(&self, name: &str) -> String {
        format!("{}-{name}", self.name)
    }

    /// The configuration in the cluster.
    ///
    /// # Errors
    /// What does not fit.
    pub fn render(&self) -> Result<Rendered, Problem> {
        let (scope, namespace) = (self.properties.scope()?, self.properties.namespace().to_owned());
        let mut made = match Source::of(self.properties)? {
            Source::Git(git) => self.git(git)?,
            Source::Bucket(bucket) => self.bucket(bucket)?,
            Source::AzureBlob(blob) => self.azure_blob(blob)?,
            Source::Oci(oci) => self.oci(oci)?,
        };
        let mut spec = made.spec;
        spec["suspend"] = self.suspend().into();
        if let Some(Proxy { address, credentials: Credentials { user, password } }) = self.proxy {
            spec["proxySecretRef"] = json!({ "name": format!("{}-proxy", self.name) });
            let files = [("address", address), ("username", user), ("password", password)];
            let files = files.map(|(name, text)| (name.to_owned(), text.clone().into_bytes()));
            made.secrets.push(("proxy", files.into()));
        }
        let mut source = self.object(SOURCE, made.kind, self.name, &namespace, spec);
        source["metadata"]["annotations"] = json!({ REQUESTED: format!("generation-{}", self.generation) });
        let secrets = made.secrets.into_iter().map(|(suffix, files)| (format!("{}-{suffix}", self.name), files));
        let secrets = secrets.filter(|(_, files)| !files.is_empty()).collect();
        let mut kustomizations = BTreeMap::new();
        for (name, one) in self.properties.kustomizations() {
            let object = self.kustomize(name, one, made.kind, scope, &namespace)?;
            kustomizations.insert(name.clone(), object);
        }
        Ok(Rendered { namespace, scope, secrets, source, kustomizations })
    }

    fn suspend(&self) -> bool {
        self.properties.suspend.unwrap_or(false)
    }

    fn object(&self, version: &str, kind: &str, name: &str, namespace: &str, spec: Value) -> Value {
        json!({
            "apiVersion": version, "kind": kind,
            "metadata": { "name": name, "namespace": namespace, "labels": labels_of(self.name) },
            "spec": spec,
        })
    }

    fn auth(&self, files: &Files, named_by_user: Option<&str>) -> Option<Value> {
        let own = format!("{}-auth", self.name);
        named(named_by_user.or((!files.is_empty()).then_some(own.as_str())))
    }

    fn git(&self, git: &Git) -> Result<Made, Problem> {
        let url = git_url(&git.url);
        let files = match git.pull.auth() {
            Some(_) => Files::new(),
            None if is_ssh(&url) => self.ssh(git)?,
            None => self.https(git)?,
        };
        let reference = git.repository_ref.as_ref().map(|one| {
            let all = [("branch", &one.branch), ("tag", &one.tag), ("semver", &one.semver), ("commit", &one.commit)];
            some(all.map(|(key, value)| (key, text(value.as_ref()))))
        });
        let provider = match git.provider.as_deref() {
            None | Some("" | "Generic" | "generic") => None,
            Some("Azure" | "azure") => Some("azure"),
            Some("GitHub" | "github") => Some("github"),
            Some(other) => return Err(invalid(format!("the provider {other:?} is not known"))),
        };
        let spec = some([
            ("url", Some(json!(url))),
            ("interval", Some(json!(git.pull.interval()))),
            ("timeout", Some(json!(git.pull.timeout()))),
            ("ref", reference.filter(|one| one.as_object().is_some_and(|one| !one.is_empty()))),
            ("secretRef", self.auth(&files, git.pull.auth())),
            ("provider", provider.map(|provider| json!(provider))),
        ]);
        Ok(Made { kind: "GitRepository", spec, secrets: vec![("auth", files)] })
    }

    fn ssh(&self, git: &Git) -> Result<Files, Problem> {
        let hosts = git.ssh_known_hosts.as_deref().filter(|hosts| !hosts.trim().is_empty());
        let hosts = hosts.map(|hosts| bytes("sshKnownHosts", hosts)).transpose()?;
        let built_in = || known_hosts::built_in(&git.url).map(String::into_bytes);
        let hosts = hosts.filter(|hosts| !hosts.trim_ascii().is_empty()).or_else(built_in).ok_or_else(|| {
            Problem::stays(
                "KnownHostsMissing",
                "the repository is reached over SSH, and the configuration has no known hosts (sshKnownHosts, sshKnownHostsContents): give the lines of known_hosts for its host (`ssh-keyscan HOST`, compared with what the server's owner publishes), or name a Secret that has them (localAuthRef)",
            )
        })?;
        let mut files = Files::from([("known_hosts".to_owned(), hosts)]);
        match (self.secrets.bytes("sshPrivateKey")?, self.generated) {
            (Some(key), _) => {
                if let Some(public) = KeyPair::public_of(&key) {
                    files.insert("identity.pub".to_owned(), public.into_bytes());
                }
                files.insert("identity".to_owned(), key);
            }
            (None, Some(pair)) => {
                files.insert("identity".to_owned(), pair.private.clone().into_bytes());
                files.insert("identity.pub".to_owned(), pair.public.clone().into_bytes());
            }
            (None, None) => return Err(invalid("the repository is reached over SSH, and there is no key for it")),
        }
        Ok(files)
    }

    fn https(&self, git: &Git) -> Result<Files, Problem> {
        let mut files = Files::new();
        let key = self.secrets.bytes("httpsKey")?;
        match (git.https_user.as_deref().filter(|user| !user.is_empty()), key) {
            (Some(user), key) => {
                files.insert("username".to_owned(), user.as_bytes().to_vec());
                files.insert("password".to_owned(), key.unwrap_or_default());
            }
            (None, Some(key)) => drop(files.insert("bearerToken".to_owned(), key)),
            (None, None) => {}
        }
        if !files.is_empty() && git.url.starts_with("http://") {
            return Err(invalid("a user or a key would be sent in clear text: give the repository's https:// address"));
        }
        if let Some(ca) = git.https_ca_cert.as_deref().filter(|ca| !ca.is_empty()) {
            files.insert("ca.crt".to_owned(), bytes("httpsCACert", ca)?);
        }
        Ok(files)
    }

    fn bucket(&self, bucket: &Bucket) -> Result<Made, Problem> {
        let mut files = Files::new();
        let secret = match self.secrets.bytes("bucketSecretKey")? {
            Some(secret) => Some(secret),
            None => self.secrets.bytes("secretKey")?,
        };
        if bucket.pull.auth().is_none()
            && let Some(secret) = secret
        {
            let id = bucket.access_key.clone().ok_or_else(|| invalid("bucket.accessKey belongs to the secret key"))?;
            files.insert("accesskey".to_owned(), id.into_bytes());
            files.insert("secretkey".to_owned(), secret);
        }
        let spec = some([
            ("provider", Some(json!("generic"))),
            ("endpoint", Some(json!(endpoint(&bucket.url)))),
            ("bucketName", Some(json!(bucket.bucket_name))),
            ("insecure", Some(json!(is_insecure(bucket)))),
            ("interval", Some(json!(bucket.pull.interval()))),
            ("timeout", Some(json!(bucket.pull.timeout()))),
            ("secretRef", self.auth(&files, bucket.pull.auth())),
        ]);
        Ok(Made { kind: "Bucket", spec, secrets: vec![("auth", files)] })
    }

    fn azure_blob(&self, blob: &AzureBlob) -> Result<Made, Problem> {
        let files = if blob.pull.auth().is_some() { Files::new() } else { self.azure_files(blob)? };
        let spec = some([
            ("provider", Some(json!("azure"))),
            ("endpoint", Some(json!(blob.url))),
            ("bucketName", Some(json!(blob.container_name))),
            ("interval", Some(json!(blob.pull.interval()))),
            ("timeout", Some(json!(blob.pull.timeout()))),
            ("secretRef", self.auth(&files, blob.pull.auth())),
        ]);
        Ok(Made { kind: "Bucket", spec, secrets: vec![("auth", files)] })
    }

    fn azure_files(&self, blob: &AzureBlob) -> Result<Files, Problem> {
        let mut files = Files::new();
        let mut put = |name: &str, value: Option<&[u8]>| {
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                files.insert(name.to_owned(), value.to_vec());
            }
        };
        let plain = |name: &str| self.secrets.plain(&format!("azureBlob.{name}")).map(|text| text.trim().as_bytes());
        put("accountKey", plain("accountKey"));
        put("sasKey", plain("sasToken"));
        if let Some(principal) = &blob.service_principal {
            put("tenantId", principal.tenant_id.as_deref().map(str::as_bytes));
            put("clientId", principal.client_id.as_deref().map(str::as_bytes));
            put("clientSecret", plain("servicePrincipal.clientSecret"));
            // PEM or PKCS #12, which is no text.
            let certificate = self.secrets.bytes("azureBlob.servicePrincipal.clientCertificate")?;
            put("clientCertificate", certificate.as_deref());
            let password = self.secrets.plain("azureBlob.servicePrincipal.clientCertificatePassword");
            put("clientCertificatePassword", password.map(str::as_bytes));
            let chain = principal.client_certificate_send_chain.unwrap_or(false);
            put("clientCertificateSendChain", chain.then_some(b"1"));
        }
        if let Some(identity) = &blob.managed_identity {
            put("clientId", identity.client_id.as_deref().map(str::as_bytes));
        }
        Ok(files)
    }

    fn oci(&self, oci: &Oci) -> Result<Made, Problem> {
        let mut tls = Files::new();
        if let Some(config) = &oci.tls_config {
            let key = self.secrets.bytes("ociRepository.tlsConfig.privateKey")?;
            let given = |what: &str, text: Option<&String>| text.map(|text| bytes(what, text)).transpose();
            let all = [
                ("ca.crt", given("tlsConfig.caCertificate", config.ca_certificate.as_ref())?),
                ("tls.crt", given("tlsConfig.clientCertificate", config.client_certificate.as_ref())?),
                ("tls.key", key),
            ];
            tls.extend(all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        }
        let reference = oci.repository_ref.as_ref().map(|one| {
            let all = [("tag", &one.tag), ("semver", &one.semver), ("digest", &one.digest)];
            some(all.map(|(key, value)| (key, text(value.as_ref()))))
        });
        let layer = oci.layer_selector.as_ref().map(|one| {
            some([("mediaType", text(one.media_type.as_ref())), ("operation", text(one.operation.as_ref()))])
        });
        let (verify, keys) = match &oci.verify {
            Some(verify) => self.verify(verify)?,
            None => (None, Files::new()),
        };
        let has_tls = !tls.is_empty();
        let spec = some([
            ("url", Some(json!(oci.url))),
            ("interval", Some(json!(oci.pull.interval()))),
            ("timeout", Some(json!(oci.pull.timeout()))),
            ("ref", reference),
            ("layerSelector", layer),
            ("insecure", Some(json!(oci.insecure.unwrap_or(false)))),
            ("provider", oci.use_workload_identity.unwrap_or(false).then(|| json!("azure"))),
            ("serviceAccountName", text(oci.service_account_name.as_ref())),
            ("secretRef", named(oci.pull.auth())),
            ("certSecretRef", has_tls.then(|| json!({ "name": format!("{}-tls", self.name) }))),
            ("verify", verify),
        ]);
        Ok(Made { kind: "OCIRepository", spec, secrets: vec![("tls", tls), ("verify", keys)] })
    }

    fn verify(&self, verify: &Verify) -> Result<(Option<Value>, Files), Problem> {
        let mut files = Files::new();
        for (name, text) in verify.verification_config.iter().flatten() {
            files.insert(name.clone(), bytes("verify.verificationConfig", text)?);
        }
        let identities = verify.identities.as_ref().filter(|all| !all.is_empty()).map(|all| {
            let one = |one: &super::spec::OidcIdentity| json!({ "issuer": one.issuer, "subject": one.subject });
            Value::Array(all.iter().map(one).collect())
        });
        let spec = some([
            ("provider", Some(json!(verify.provider.as_deref().unwrap_or("cosign").to_ascii_lowercase()))),
            ("secretRef", (!files.is_empty()).then(|| json!({ "name": format!("{}-verify", self.name) }))),
            ("matchOIDCIdentity", identities),
        ]);
        Ok((Some(spec), files))
    }

    fn kustomize(
        &self,
        name: &str,
        one: &Kustomization,
        source: &str,
        scope: Scope,
        namespace: &str,
    ) -> Result<Value, Problem> {
        let full = self.kustomization(name);
        if full.len() > NAME_CHARS {
            return Err(invalid(format!("the name {full} of a kustomization has more than {NAME_CHARS} characters")));
        }
        let after: Vec<_> =
            one.depends_on.iter().flatten().map(|on| json!({ "name": self.kustomization(on) })).collect();
        let post = one.post_build.as_ref().map(|post| {
            some([
                ("substitute", post.substitute.as_ref().map(|all| json!(all))),
                ("substituteFrom", post.substitute_from.as_ref().map(|all| json!(all))),
            ])
        });
        let spec = some([
            ("sourceRef", Some(json!({ "kind": source, "name": self.name }))),
            ("serviceAccountName", Some(json!(APPLIER))),
            ("targetNamespace", (scope == Scope::Namespace).then(|| json!(namespace))),
            ("path", text(one.path.as_ref())),
            ("dependsOn", (!after.is_empty()).then_some(Value::Array(after))),
            ("interval", Some(json!(seconds(one.sync_interval_in_seconds)))),
            ("timeout", Some(json!(seconds(one.timeout_in_seconds)))),
            ("retryInterval", one.retry_interval_in_seconds.map(|retry| json!(seconds(Some(retry))))),
            ("prune", Some(json!(one.prune.unwrap_or(false)))),
            ("force", Some(json!(one.force.unwrap_or(false)))),
            ("wait", Some(json!(one.wait.unwrap_or(true)))),
            ("suspend", Some(json!(self.suspend()))),
            ("postBuild", post.filter(|post| post.as_object().is_some_and(|post| !post.is_empty()))),
        ]);
        Ok(self.object(KUSTOMIZE, "Kustomization", &full, namespace, spec))
    }
}

#[cfg(test)]
mod tests {
    use types::agent_api::encode;

    use super::*;

    fn render(properties: Value, secrets: &[(&str, &str)]) -> Result<Rendered, Problem> {
        let properties = Properties::read(&properties)?;
        let secrets = Secrets(secrets.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect());
        let pair = needs_key(&properties, &secrets)
            .then(|| KeyPair { private: "private".to_owned(), public: "ssh-ed25519 A".to_owned() });
        let configuration = Configuration {
            name: "web",
            generation: 3,
            properties: &properties,
            secrets: &secrets,
            generated: pair.as_ref(),
            proxy: None,
        };
        configuration.render()
    }

    #[test]
    fn n1_a_source_through_the_gateway_names_a_secret_with_the_proxy() {
        let properties =
            Properties::read(&json!({"throughGateway": true, "gitRepository": {"url": "https://git.test/a"}}));
        let (properties, secrets) = (properties.unwrap(), Secrets::default());
        assert_eq!(properties.through_gateway, Some(true));
        let credentials = Credentials { user: "web".to_owned(), password: "pw".to_owned() };
        let proxy = Proxy { address: "http://10.0.0.9:3128".to_owned(), credentials };
        let configuration = Configuration {
            name: "web",
            generation: 3,
            properties: &properties,
            secrets: &secrets,
            generated: None,
            proxy: Some(&proxy),
        };
        let rendered = configuration.render().unwrap();
        assert_eq!(rendered.source["spec"]["proxySecretRef"], json!({"name": "web-proxy"}));
        let expected = [("address", "http://10.0.0.9:3128"), ("password", "pw"), ("username", "web")];
        assert_eq!(files(&rendered, "web-proxy"), pairs(&expected));
    }

    #[test]
    fn n1_a_destination_is_that_of_the_gateway() {
        let of = |properties: Value| destination(&Properties::read(&properties).unwrap()).ok();
        for (properties, expected) in [
            (json!({"gitRepository": {"url": "https://Git.test/a.git"}}), Some("git.test:443")),
            (json!({"gitRepository": {"url": "https://git.test:8443/a"}}), Some("git.test:8443")),
            (json!({"gitRepository": {"url": "https://[2001:db8::1]/a"}}), Some("[2001:db8::1]:443")),
            (json!({"ociRepository": {"url": "oci://r.test/x"}}), Some("r.test:443")),
            (json!({"bucket": {"url": "https://s3.test", "bucketName": "b", "insecure": true}}), Some("s3.test:443")),
            (json!({"azureBlob": {"url": "https://b.test/", "containerName": "c"}}), Some("b.test:443")),
            (json!({"gitRepository": {"url": "http://git.test/a"}}), None),
            (json!({"gitRepository": {"url": "ssh://git@git.test/a"}}), None),
            (json!({"gitRepository": {"url": "https://u@git.test/a"}}), None),
            (json!({"ociRepository": {"url": "oci://r.test/x", "insecure": true}}), None),
            (json!({"bucket": {"url": "s3.test", "bucketName": "b"}}), None),
        ] {
            assert_eq!(of(properties.clone()).as_deref(), expected, "{properties}");
        }
    }

    fn files(rendered: &Rendered, name: &str) -> Vec<(String, String)> {
        let files = rendered.secrets.get(name).into_iter().flatten();
        files.map(|(name, bytes)| (name.clone(), String::from_utf8(bytes.clone()).unwrap())).collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn g3_git_over_https() {
        let rendered = render(
            json!({
                "scope": "namespace", "namespace": "team", "sourceKind": "GitRepository", "suspend": true,
                "gitRepository": {
                    "url": "https://git.example.org/app", "repositoryRef": {"branch": "main", "commit": "abc", "tag": null},
                    "syncIntervalInSeconds": 30, "timeoutInSeconds": 60, "httpsUser": "u",
                    "httpsCACert": encode(b"PEM"), "provider": "GitHub",
                },
                "kustomizations": {
                    "infra": {"path": "./infra", "prune": true},
                    "apps": {"path": "", "dependsOn": ["infra"], "timeoutInSeconds": 10, "syncIntervalInSeconds": 20,
                        "retryIntervalInSeconds": 5, "force": true, "wait": false,
                        "postBuild": {"substitute": {"a": "b"}, "substituteFrom": [{"kind": "Secret", "name": "s", "optional": true}]}},
                },
            }),
            &[("httpsKey", &encode(b"pa55"))],
        )
        .unwrap();
        let labels = json!({"app.kubernetes.io/managed-by": "towline", "towline.io/fluxconfig": "web"});
        assert_eq!(
            rendered.source,
            json!({
                "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
                "metadata": {"name": "web", "namespace": "team", "labels": labels,
                    "annotations": {"reconcile.fluxcd.io/requestedAt": "generation-3"}},
                "spec": {"url": "https://git.example.org/app", "interval": "30s", "timeout": "60s", "provider": "github",
                    "ref": {"branch": "main", "commit": "abc"}, "secretRef": {"name": "web-auth"}, "suspend": true},
            })
        );
        assert_eq!(files(&rendered, "web-auth"), pairs(&[("ca.crt", "PEM"), ("password", "pa55"), ("username", "u")]));
        assert_eq!(
            rendered.kustomizations["apps"],
            json!({
                "apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
                "metadata": {"name": "web-apps", "namespace": "team", "labels": labels},
                "spec": {"sourceRef": {"kind": "GitRepository", "name": "web"}, "serviceAccountName": "flux-applier",
                    "targetNamespace": "team", "dependsOn": [{"name": "web-infra"}], "interval": "20s", "timeout": "10s",
                    "retryInterval": "5s", "prune": false, "force": true, "wait": false, "suspend": true,
                    "postBuild": {"substitute": {"a": "b"}, "substituteFrom": [{"kind": "Secret", "name": "s", "optional": true}]}},
            })
        );
        let infra = &rendered.kustomizations["infra"]["spec"];
        assert_eq!((&infra["path"], &infra["prune"], &infra["wait"]), (&json!("./infra"), &json!(true), &json!(true)));
    }

    #[test]
    fn g3_credentials_of_git() {
        let git = |url: &str, more: Value| {
            let mut git = json!({"url": url});
            git.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"gitRepository": git})
        };
        let (https, ssh) = ("https://git.example.org/app", "ssh://git@git.example.org/app");
        let (token, hosts) = (encode(b"token"), json!({"sshKnownHosts": encode(b"host ssh-ed25519 B")}));
        let key = encode(b"-----BEGIN X");
        type Case<'a> = (&'a str, Value, Vec<(&'a str, &'a str)>, Vec<(&'a str, &'a str)>);
        let all: Vec<Case<'_>> = vec![
            (https, json!({}), vec![], vec![]),
            (https, json!({}), vec![("httpsKey", &token)], vec![("bearerToken", "token")]),
            (https, json!({"localAuthRef": "mine", "httpsUser": "u"}), vec![("httpsKey", &token)], vec![]),
            (
                ssh,
                hosts.clone(),
                vec![("sshPrivateKey", &key)],
                vec![("identity", "-----BEGIN X"), ("known_hosts", "host ssh-ed25519 B")],
            ),
            (
                ssh,
                hosts.clone(),
                vec![],
                vec![("identity", "private"), ("identity.pub", "ssh-ed25519 A"), ("known_hosts", "host ssh-ed25519 B")],
            ),
            (
                "git@git.example.org:team/app",
                hosts,
                vec![],
                vec![("identity", "private"), ("identity.pub", "ssh-ed25519 A"), ("known_hosts", "host ssh-ed25519 B")],
            ),
        ];
        for (url, more, secrets, expected) in all {
            let rendered = render(git(url, more.clone()), &secrets).unwrap();
            assert_eq!(files(&rendered, "web-auth"), pairs(&expected), "{url} {more}");
            let named = match more["localAuthRef"].as_str() {
                Some(name) => json!({"name": name}),
                None if expected.is_empty() => Value::Null,
                None => json!({"name": "web-auth"}),
            };
            assert_eq!(rendered.source["spec"]["secretRef"], named, "{url} {more}");
        }
        let spelled = render(git("git@h:/a/b", json!({"sshKnownHosts": encode(b"h")})), &[]).unwrap();
        assert_eq!(spelled.source["spec"]["url"], "ssh://git@h/a/b");
        // Servers that everybody knows need no known hosts, and others that are given count.
        let known = |more: Value| {
            let rendered = render(git("git@github.com:team/app", more), &[]).unwrap();
            let hosts = files(&rendered, "web-auth").into_iter().find(|(name, _)| name == "known_hosts").unwrap().1;
            hosts.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(known(json!({})), ["github.com"; 3]);
        assert_eq!(known(json!({"sshKnownHosts": encode(b"own ssh-ed25519 B")})), ["own"]);
        type Bad<'a> = (&'a str, Value, Vec<(&'a str, &'a str)>, &'a str);
        let bad: Vec<Bad<'_>> = vec![
            (ssh, json!({}), vec![], "KnownHostsMissing"),
            (ssh, json!({"sshKnownHosts": "%"}), vec![], "InvalidConfiguration"),
            (https, json!({}), vec![("httpsKey", "not base64!")], "InvalidConfiguration"),
            ("http://git.example.org/app", json!({"httpsUser": "u"}), vec![], "InvalidConfiguration"),
        ];
        for (url, more, secrets, code) in bad {
            let problem = render(git(url, more), &secrets).unwrap_err();
            assert_eq!(problem.code, code, "{}", problem.message);
            assert!(!problem.message.contains("not base64!"));
        }
    }

    #[test]
    fn g4_buckets_blobs_and_oci() {
        let bucket = |url: &str, insecure: Value| json!({"sourceKind": "Bucket", "bucket": {"url": url, "bucketName": "b", "accessKey": "id", "insecure": insecure}});
        for (url, insecure, expected) in [
            ("https://s3.example.org/", json!(true), false),
            ("http://s3.example.org", json!(false), true),
            ("s3.example.org", json!(null), true),
            ("s3.example.org", json!(false), false),
        ] {
            let rendered = render(bucket(url, insecure), &[("secretKey", &encode(b"secret"))]).unwrap();
            let spec = &rendered.source["spec"];
            assert_eq!((&spec["endpoint"], &spec["insecure"]), (&json!("s3.example.org"), &json!(expected)), "{url}");
            assert_eq!(files(&rendered, "web-auth"), pairs(&[("accesskey", "id"), ("secretkey", "secret")]));
        }
        let blob = json!({"sourceKind": "AzureBlob", "azureBlob": {"url": "https://a.blob.example.org", "containerName": "c",
            "servicePrincipal": {"clientId": "i", "tenantId": "t", "clientCertificateSendChain": true}},
            "kustomizations": {"k": {}}});
        let certificate = encode(b"PEM");
        let rendered = render(
            blob,
            &[("azureBlob.sasToken", "?sas"), ("azureBlob.servicePrincipal.clientCertificate", &certificate)],
        )
        .unwrap();
        let spec = &rendered.source["spec"];
        assert_eq!(
            (&rendered.source["kind"], &spec["provider"], &spec["bucketName"]),
            (&json!("Bucket"), &json!("azure"), &json!("c"))
        );
        assert_eq!(rendered.kustomizations["k"]["spec"]["sourceRef"]["kind"], "Bucket");
        assert_eq!(
            files(&rendered, "web-auth"),
            pairs(&[
                ("clientCertificate", "PEM"),
                ("clientCertificateSendChain", "1"),
                ("clientId", "i"),
                ("sasKey", "?sas"),
                ("tenantId", "t")
            ])
        );
        // What PKCS #12 begins with is no UTF-8.
        let principal = json!({"sourceKind": "AzureBlob", "azureBlob": {"url": "u", "containerName": "c",
            "servicePrincipal": {"clientId": "i", "tenantId": "t"}}});
        let archive = [0x30, 0x82, 0x09, 0xff];
        let settings = [
            ("azureBlob.servicePrincipal.clientCertificate", encode(&archive)),
            ("azureBlob.servicePrincipal.clientCertificatePassword", "p ".to_owned()),
        ];
        let rendered = render(principal.clone(), &settings.each_ref().map(|(name, value)| (*name, value.as_str())));
        let secret = &rendered.unwrap().secrets["web-auth"];
        assert_eq!(
            (&secret["clientCertificate"][..], &secret["clientCertificatePassword"][..]),
            (&archive[..], &b"p "[..])
        );
        let text = render(principal, &[("azureBlob.servicePrincipal.clientCertificate", "-----BEGIN")]).unwrap_err();
        assert!(text.message.contains("clientCertificate is not base64"), "{}", text.message);
        let shared = json!({"sourceKind": "AzureBlob", "azureBlob": {"url": "https://a.blob.example.org", "containerName": "c"}});
        let rendered = render(shared, &[("azureBlob.accountKey", "a2V5\n")]).unwrap();
        assert_eq!(files(&rendered, "web-auth"), pairs(&[("accountKey", "a2V5")]));
        assert_eq!(rendered.source["spec"]["secretRef"]["name"], "web-auth");
        let managed = json!({"sourceKind": "AzureBlob", "azureBlob": {"url": "u", "containerName": "c", "managedIdentity": {"clientId": "m"}}});
        assert_eq!(files(&render(managed, &[]).unwrap(), "web-auth"), pairs(&[("clientId", "m")]));
        let oci = json!({"sourceKind": "OCIRepository", "ociRepository": {"url": "oci://r.example.org/x",
            "repositoryRef": {"semver": ">1"}, "layerSelector": {"mediaType": "m", "operation": "copy"},
            "insecure": false, "useWorkloadIdentity": true, "serviceAccountName": "puller", "localAuthRef": "pull",
            "verify": {"provider": "Cosign", "verificationConfig": {"a.pub": encode(b"KEY")},
                "matchOidcIdentity": [{"issuer": "i", "subject": "s"}]},
            "tlsConfig": {"caCertificate": encode(b"CA")}}});
        let rendered = render(oci, &[]).unwrap();
        assert_eq!(
            rendered.source["spec"],
            json!({"url": "oci://r.example.org/x", "interval": "600s", "timeout": "600s",
            "ref": {"semver": ">1"}, "layerSelector": {"mediaType": "m", "operation": "copy"}, "insecure": false,
            "provider": "azure", "serviceAccountName": "puller", "secretRef": {"name": "pull"},
            "certSecretRef": {"name": "web-tls"}, "suspend": false,
            "verify": {"provider": "cosign", "secretRef": {"name": "web-verify"},
                "matchOIDCIdentity": [{"issuer": "i", "subject": "s"}]}})
        );
        assert_eq!(files(&rendered, "web-tls"), pairs(&[("ca.crt", "CA")]));
        assert_eq!(files(&rendered, "web-verify"), pairs(&[("a.pub", "KEY")]));
    }

    #[test]
    fn g7_what_is_allowed_is_judged_by_one_text() {
        let all = [
            (json!({"gitRepository": {"url": "git@h:a/b"}}), "ssh://git@h/a/b"),
            (json!({"sourceKind": "Bucket", "bucket": {"url": "s3:9000/", "bucketName": "b"}}), "http://s3:9000/b"),
            (json!({"sourceKind": "Bucket", "bucket": {"url": "https://s3", "bucketName": "b"}}), "https://s3/b"),
            (
                json!({"sourceKind": "AzureBlob", "azureBlob": {"url": "https://a/", "containerName": "c"}}),
                "https://a/c",
            ),
            (json!({"ociRepository": {"url": "oci://r/x"}}), "oci://r/x"),
        ];
        for (properties, expected) in all {
            assert_eq!(repository(&Properties::read(&properties).unwrap()).unwrap(), expected);
        }
        assert!(repository(&Properties::default()).is_err());
        let long = json!({"gitRepository": {"url": "https://h"}, "kustomizations": {"k".repeat(60): {}}});
        assert_eq!(render(long, &[]).unwrap_err().code, "InvalidConfiguration");
    }
}
