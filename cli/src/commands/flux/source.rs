//! Options of a source as the properties of the API: one table says for each option which kinds of source have it, and
//! where it stands.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use clap::{ValueEnum, builder::PossibleValue};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Map, Value, json};

use super::typed::{self, Options, secret, span};
use crate::failure::{Failure, Outcome};

/// Where configurations come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Git,
    Bucket,
    AzBlob,
    Oci,
}

const ALL: &[Kind] = &[Kind::Git, Kind::Bucket, Kind::AzBlob, Kind::Oci];
const GIT: &[Kind] = &[Kind::Git];
const BUCKET: &[Kind] = &[Kind::Bucket];
const AZBLOB: &[Kind] = &[Kind::AzBlob];
const OCI: &[Kind] = &[Kind::Oci];
const TAGGED: &[Kind] = &[Kind::Git, Kind::Oci];
/// The object of protected settings.
const PROTECTED: &str = "configurationProtectedSettings";

impl Kind {
    /// As the command has it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Git => "git",
            Self::Bucket => "bucket",
            Self::AzBlob => "azblob",
            Self::Oci => "oci",
        }
    }

    /// As `sourceKind` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Git => "GitRepository",
            Self::Bucket => "Bucket",
            Self::AzBlob => "AzureBlob",
            Self::Oci => "OCIRepository",
        }
    }

    /// The kind of a `sourceKind`.
    pub fn of(name: &str) -> Option<Self> {
        ALL.iter().copied().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }

    /// The property with its settings.
    fn property(self) -> &'static str {
        match self {
            Self::Git => "gitRepository",
            Self::Bucket => "bucket",
            Self::AzBlob => "azureBlob",
            Self::Oci => "ociRepository",
        }
    }

    /// Ways to say which version: one of them stands.
    fn references(self) -> &'static [&'static str] {
        match self {
            Self::Git => &["branch", "tag", "semver", "commit"],
            Self::Oci => &["tag", "semver", "digest"],
            Self::Bucket | Self::AzBlob => &[],
        }
    }
}

impl ValueEnum for Kind {
    fn value_variants<'a>() -> &'a [Self] {
        ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.word()))
    }
}

/// A source, and how to get at it.
#[derive(Debug, clap::Args, Default)]
#[command(next_help_heading = "Source")]
pub struct Source {
    /// The kind of source; git without this
    #[arg(long, value_enum, ignore_case = true, value_name = "git|bucket|azblob|oci")]
    pub kind: Option<Kind>,
    /// Where it is: https://, ssh:// or git@ for git, https:// for bucket and azblob, oci:// for oci
    #[arg(short = 'u', long, value_name = "URL")]
    pub url: Option<String>,
    /// How long one fetch may take, such as 10m
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub timeout: Option<u64>,
    /// How often it is looked at, such as 10m
    #[arg(long, visible_alias = "sync-interval", value_name = "SPAN", value_parser = span)]
    pub interval: Option<u64>,
    /// A Secret of the configuration's namespace that says how to sign in, instead of the options below
    #[arg(long, alias = "local-ref", value_name = "SECRET")]
    pub local_auth_ref: Option<String>,
    /// Reach it through the gateway: for a source that the gateway reaches and the cluster does not
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    pub through_gateway: Option<bool>,
    /// Git and OCI.
    #[command(flatten)]
    pub repository: Repository,
    /// Options of buckets.
    #[command(flatten)]
    pub bucket: Bucket,
    /// Azure Blob Storage.
    #[command(flatten)]
    pub blob: Blob,
}

/// Options of git and oci.
#[derive(Debug, clap::Args, Default)]
#[command(next_help_heading = "Git and OCI")]
pub struct Repository {
    /// The branch to follow (git)
    #[arg(long, value_name = "NAME")]
    pub branch: Option<String>,
    /// The tag to follow (git, oci)
    #[arg(long, value_name = "NAME")]
    pub tag: Option<String>,
    /// The range of versions to follow, such as ">=1.2 <2" (git, oci)
    #[arg(long, value_name = "RANGE")]
    pub semver: Option<String>,
    /// The one commit (git)
    #[arg(long, value_name = "SHA")]
    pub commit: Option<String>,
    /// The one artifact, such as sha256:... (oci)
    #[arg(long, value_name = "DIGEST")]
    pub digest: Option<String>,
    /// The private key for ssh in Base64; others on this machine can read it: better --ssh-private-key-file
    #[arg(long, value_name = "BASE64")]
    pub ssh_private_key: Option<SecretString>,
    /// File with the private key for ssh; - is standard input
    #[arg(long, value_name = "FILE")]
    pub ssh_private_key_file: Option<PathBuf>,
    /// Keys of ssh hosts in Base64, as in ~/.ssh/known_hosts
    #[arg(long, value_name = "BASE64")]
    pub known_hosts: Option<SecretString>,
    /// File with keys of ssh hosts
    #[arg(long, value_name = "FILE")]
    pub known_hosts_file: Option<PathBuf>,
    /// User for https
    #[arg(long, value_name = "NAME")]
    pub https_user: Option<String>,
    /// Password or token for https; others on this machine can read it: better --https-key-file
    #[arg(long, value_name = "TEXT")]
    pub https_key: Option<SecretString>,
    /// File with the password or token for https; - is standard input
    #[arg(long, value_name = "FILE")]
    pub https_key_file: Option<PathBuf>,
    /// Authorities of the server's certificate, PEM in Base64
    #[arg(long, value_name = "BASE64")]
    pub https_ca_cert: Option<SecretString>,
    /// File with the authorities of the server's certificate, PEM
    #[arg(long, value_name = "FILE")]
    pub https_ca_cert_file: Option<PathBuf>,
    /// Who signs in for git
    #[arg(long, value_name = "generic|azure|github", ignore_case = true, value_parser = ["generic", "azure", "github"])]
    pub provider: Option<String>,
    /// Speak http to the registry (oci)
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    pub oci_insecure: Option<bool>,
    /// The first layer of this media type is taken (oci)
    #[arg(long, alias = "oci-layer-selector-media-type", value_name = "TYPE")]
    pub oci_media_type: Option<String>,
    /// What is done with that layer (oci)
    #[arg(long, alias = "oci-layer-selector-operation", value_name = "extract|copy", value_parser = ["extract", "copy"])]
    pub oci_operation: Option<String>,
    /// The service account whose image pull secrets are used (oci)
    #[arg(long, value_name = "NAME")]
    pub service_account_name: Option<String>,
    /// Sign in by Azure's workload identity (oci)
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    pub use_workload_identity: Option<bool>,
    /// What checks the artifact's signature (oci)
    #[arg(long, value_name = "cosign|notation", ignore_case = true, value_parser = ["cosign", "notation"])]
    pub verification_provider: Option<String>,
    /// A public key, trust policy or certificate for that, as NAME=FILE; repeat for several (oci)
    #[arg(long, value_name = "NAME=FILE", value_parser = named_file)]
    pub verification_config_file: Vec<(String, PathBuf)>,
    /// Who must have signed without a key, as ISSUER=SUBJECT, both regular expressions, split at the first = ; repeat for
    /// several (oci)
    #[arg(long, value_name = "ISSUER=SUBJECT", value_parser = signer)]
    pub match_oidc_identity: Vec<Value>,
    /// File with the authorities of the registry's certificate, PEM (oci)
    #[arg(long, value_name = "FILE")]
    pub tls_ca_certificate_file: Option<PathBuf>,
    /// File with the certificate that is shown to the registry, PEM (oci)
    #[arg(long, value_name = "FILE")]
    pub tls_client_certificate_file: Option<PathBuf>,
    /// File with its private key, PEM; - is standard input (oci)
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<PathBuf>,
}

/// Parses `NAME=FILE`.
fn named_file(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, file)) if !name.is_empty() && !file.is_empty() => Ok((name.to_owned(), file.into())),
        _ => Err("expected NAME=FILE, such as cosign.pub=./cosign.pub".to_owned()),
    }
}

/// `ISSUER=SUBJECT` of a keyless signature.
fn signer(text: &str) -> Result<Value, String> {
    match text.split_once('=') {
        Some((issuer, subject)) if !issuer.is_empty() && !subject.is_empty() => {
            Ok(json!({"issuer": issuer, "subject": subject}))
        }
        _ => {
            Err("expected ISSUER=SUBJECT, such as ^https://issuer.example.org$=^https://git.example.org/team/"
                .to_owned())
        }
    }
}

/// Options of buckets.
#[derive(Debug, clap::Args, Default)]
#[command(next_help_heading = "Bucket")]
pub struct Bucket {
    /// The bucket
    #[arg(long, value_name = "NAME")]
    pub bucket_name: Option<String>,
    /// The id of its access key
    #[arg(long, value_name = "ID")]
    pub bucket_access_key: Option<String>,
    /// The secret of the access key; others on this machine can read it: better --bucket-secret-key-file
    #[arg(long, value_name = "TEXT")]
    pub bucket_secret_key: Option<SecretString>,
    /// File with the secret of the access key; - is standard input
    #[arg(long, value_name = "FILE")]
    pub bucket_secret_key_file: Option<PathBuf>,
    /// Speak http to the bucket
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    pub bucket_insecure: Option<bool>,
}

/// Options of Azure Blob Storage.
#[derive(Debug, clap::Args, Default)]
#[command(next_help_heading = "Azure Blob Storage")]
pub struct Blob {
    /// The container
    #[arg(long, value_name = "NAME")]
    pub container_name: Option<String>,
    /// The account's key; others on this machine can read it: better --account-key-file
    #[arg(long, value_name = "TEXT")]
    pub account_key: Option<SecretString>,
    /// File with the account's key; - is standard input
    #[arg(long, value_name = "FILE")]
    pub account_key_file: Option<PathBuf>,
    /// A shared access signature; others on this machine can read it: better --sas-token-file
    #[arg(long, value_name = "TEXT")]
    pub sas_token: Option<SecretString>,
    /// File with a shared access signature; - is standard input
    #[arg(long, value_name = "FILE")]
    pub sas_token_file: Option<PathBuf>,
    /// A service principal's client id
    #[arg(long, alias = "service-principal-client-id", value_name = "ID")]
    pub sp_client_id: Option<String>,
    /// Its tenant
    #[arg(long, alias = "service-principal-tenant-id", value_name = "ID")]
    pub sp_tenant_id: Option<String>,
    /// Its secret; others on this machine can read it: better --sp-client-secret-file
    #[arg(long, alias = "service-principal-client-secret", value_name = "TEXT")]
    pub sp_client_secret: Option<SecretString>,
    /// File with its secret; - is standard input
    #[arg(long, value_name = "FILE")]
    pub sp_client_secret_file: Option<PathBuf>,
    /// Its certificate and key in Base64; others on this machine can read it: better --sp-client-cert-file
    #[arg(long, alias = "service-principal-client-certificate", value_name = "BASE64")]
    pub sp_client_cert: Option<SecretString>,
    /// File with its certificate and key, PEM; - is standard input
    #[arg(long, value_name = "FILE")]
    pub sp_client_cert_file: Option<PathBuf>,
    /// The password of that; others on this machine can read it: better --sp-cert-password-file
    #[arg(long, alias = "service-principal-client-certificate-password", value_name = "TEXT")]
    pub sp_cert_password: Option<SecretString>,
    /// File with the password of that; - is standard input
    #[arg(long, value_name = "FILE")]
    pub sp_cert_password_file: Option<PathBuf>,
    /// Send the chain of the certificate
    #[arg(long, alias = "service-principal-client-certificate-send-chain", value_name = "true|false",
        num_args = 0..=1, default_missing_value = "true")]
    pub sp_cert_send_chain: Option<bool>,
    /// A managed identity's client id
    #[arg(long, alias = "managed-identity-client-id", value_name = "ID")]
    pub mi_client_id: Option<String>,
}

/// One option: its name, the kinds that have it, where its value stands below the kind's property or, for `*name`, the
/// name of the protected setting, and the value if it was given.
type Given = (&'static str, &'static [Kind], &'static str, Option<Value>);

impl Source {
    /// Puts what was given of a source of this kind into properties.
    pub fn fill(&self, properties: &mut Map<String, Value>, kind: Kind) -> Outcome<()> {
        let mut own = Map::new();
        let mut protected = Map::new();
        for (option, kinds, place, value) in self.given()? {
            let Some(value) = value else { continue };
            if !kinds.contains(&kind) {
                let of: Vec<_> = kinds.iter().map(|kind| kind.word()).collect();
                let error = anyhow!("{option} belongs to --kind {}; this is {}", of.join(" or "), kind.word());
                return Err(Failure::usage(error));
            }
            match place.strip_prefix('*') {
                Some(name) => drop(protected.insert(name.to_owned(), value)),
                None => put(&mut own, place, value),
            }
        }
        if own.get("repositoryRef").and_then(Value::as_object).is_some_and(|reference| reference.len() > 1) {
            let names: Vec<_> = kind.references().iter().map(|name| format!("--{name}")).collect();
            let error = anyhow!("one of {} says which version", names.join(", "));
            return Err(Failure::usage(error).hint("give one of them"));
        }
        if !own.is_empty() {
            properties.insert(kind.property().to_owned(), own.into());
        }
        if !protected.is_empty() {
            properties.insert(PROTECTED.to_owned(), protected.into());
        }
        properties.extend(self.through_gateway.map(|through| ("throughGateway".to_owned(), through.into())));
        Ok(())
    }

    /// What a new source needs.
    pub fn check(&self, kind: Kind) -> Outcome<()> {
        let missing = |option: &str, hint: &str| {
            Err(Failure::usage(anyhow!("--kind {} needs {option}", kind.word())).hint(hint.to_owned()))
        };
        if self.url.is_none() {
            return missing("--url", "--url https://git.example.org/team/fleet.git");
        }
        let Repository { https_user, https_key, https_key_file, .. } = &self.repository;
        if https_user.is_some() != (https_key.is_some() || https_key_file.is_some()) {
            return Err(Failure::usage(anyhow!("--https-user and --https-key-file belong together")));
        }
        let refers = [&self.repository.branch, &self.repository.tag, &self.repository.semver, &self.repository.commit];
        match kind {
            Kind::Git if refers.iter().all(|given| given.is_none()) => {
                missing("one of --branch, --tag, --semver and --commit", "--branch main")
            }
            Kind::Bucket if self.bucket.bucket_name.is_none() => missing("--bucket-name", "--bucket-name NAME"),
            Kind::AzBlob if self.blob.container_name.is_none() => missing("--container-name", "--container-name NAME"),
            _ => Ok(()),
        }
    }

    fn given(&self) -> Outcome<Vec<Given>> {
        self.standard_input_once()?;
        let mut given = vec![
            ("--url", ALL, "url", text(self.url.as_ref())),
            ("--timeout", ALL, "timeoutInSeconds", self.timeout.map(Value::from)),
            ("--interval", ALL, "syncIntervalInSeconds", self.interval.map(Value::from)),
            ("--local-auth-ref", ALL, "localAuthRef", text(self.local_auth_ref.as_ref())),
        ];
        given.extend(self.repository.given()?);
        given.extend(self.bucket.given()?);
        given.extend(self.blob.given()?);
        Ok(given)
    }

    fn standard_input_once(&self) -> Outcome<()> {
        let Self { repository, bucket, blob, .. } = self;
        let files = [
            &repository.ssh_private_key_file,
            &repository.known_hosts_file,
            &repository.https_key_file,
            &repository.https_ca_cert_file,
            &repository.tls_private_key_file,
            &bucket.bucket_secret_key_file,
            &blob.account_key_file,
            &blob.sas_token_file,
            &blob.sp_client_secret_file,
            &blob.sp_client_cert_file,
            &blob.sp_cert_password_file,
        ];
        if files.iter().filter(|file| file.as_deref() == Some(Path::new("-"))).count() > 1 {
            return Err(Failure::usage(anyhow!("standard input can be read once: one file can be -")));
        }
        Ok(())
    }
}

impl Repository {
    fn given(&self) -> Outcome<Vec<Given>> {
        let provider = self.provider.as_deref().map(|name| match name.to_ascii_lowercase().as_str() {
            "azure" => "Azure".into(),
            "github" => "GitHub".into(),
            _ => "Generic".into(),
        });
        let ssh = Options { typed: "--ssh-private-key", file: "--ssh-private-key-file" };
        let ssh_key = encoded(self.ssh_private_key.as_ref(), self.ssh_private_key_file.as_ref(), ssh)?;
        let hosts = Options { typed: "--known-hosts", file: "--known-hosts-file" };
        let known_hosts = encoded(self.known_hosts.as_ref(), self.known_hosts_file.as_ref(), hosts)?;
        let https = Options { typed: "--https-key", file: "--https-key-file" };
        let https_key = secret(self.https_key.as_ref(), self.https_key_file.as_ref(), https)?;
        let ca = Options { typed: "--https-ca-cert", file: "--https-ca-cert-file" };
        let authorities = encoded(self.https_ca_cert.as_ref(), self.https_ca_cert_file.as_ref(), ca)?;
        let of_file = |file: Option<&PathBuf>, option| encoded(None, file, Options { typed: option, file: option });
        let tls_ca = of_file(self.tls_ca_certificate_file.as_ref(), "--tls-ca-certificate-file")?;
        let tls_own = of_file(self.tls_client_certificate_file.as_ref(), "--tls-client-certificate-file")?;
        let tls_key = of_file(self.tls_private_key_file.as_ref(), "--tls-private-key-file")?;
        let mut configs = Map::new();
        for (name, file) in &self.verification_config_file {
            let text = of_file(Some(file), "--verification-config-file")?.unwrap_or_default();
            if configs.insert(name.clone(), text).is_some() {
                return Err(Failure::usage(anyhow!("--verification-config-file: {name} is there twice")));
            }
        }
        let configs = (!configs.is_empty()).then_some(Value::Object(configs));
        let signers = &self.match_oidc_identity;
        let signers = (!signers.is_empty()).then(|| Value::Array(signers.clone()));
        let verifier = self.verification_provider.as_deref().map(|name| Value::from(name.to_ascii_lowercase()));
        Ok(vec![
            ("--branch", GIT, "repositoryRef.branch", text(self.branch.as_ref())),
            ("--tag", TAGGED, "repositoryRef.tag", text(self.tag.as_ref())),
            ("--semver", TAGGED, "repositoryRef.semver", text(self.semver.as_ref())),
            ("--commit", GIT, "repositoryRef.commit", text(self.commit.as_ref())),
            ("--digest", OCI, "repositoryRef.digest", text(self.digest.as_ref())),
            (ssh.typed, GIT, "*sshPrivateKey", ssh_key),
            (hosts.typed, GIT, "sshKnownHosts", known_hosts),
            ("--https-user", GIT, "httpsUser", text(self.https_user.as_ref())),
            (https.typed, GIT, "*httpsKey", https_key.as_ref().map(sealed)),
            (ca.typed, GIT, "httpsCACert", authorities),
            ("--provider", GIT, "provider", provider),
            ("--oci-insecure", OCI, "insecure", self.oci_insecure.map(Value::from)),
            ("--oci-media-type", OCI, "layerSelector.mediaType", text(self.oci_media_type.as_ref())),
            ("--oci-operation", OCI, "layerSelector.operation", text(self.oci_operation.as_ref())),
            ("--service-account-name", OCI, "serviceAccountName", text(self.service_account_name.as_ref())),
            ("--use-workload-identity", OCI, "useWorkloadIdentity", self.use_workload_identity.map(Value::from)),
            ("--verification-provider", OCI, "verify.provider", verifier),
            ("--verification-config-file", OCI, "verify.verificationConfig", configs),
            ("--match-oidc-identity", OCI, "verify.matchOidcIdentity", signers),
            ("--tls-ca-certificate-file", OCI, "tlsConfig.caCertificate", tls_ca),
            ("--tls-client-certificate-file", OCI, "tlsConfig.clientCertificate", tls_own),
            ("--tls-private-key-file", OCI, "tlsConfig.privateKey", tls_key),
        ])
    }
}

impl Bucket {
    fn given(&self) -> Outcome<Vec<Given>> {
        let options = Options { typed: "--bucket-secret-key", file: "--bucket-secret-key-file" };
        let key = secret(self.bucket_secret_key.as_ref(), self.bucket_secret_key_file.as_ref(), options)?;
        Ok(vec![
            ("--bucket-name", BUCKET, "bucketName", text(self.bucket_name.as_ref())),
            ("--bucket-access-key", BUCKET, "accessKey", text(self.bucket_access_key.as_ref())),
            (options.typed, BUCKET, "*bucketSecretKey", key.as_ref().map(sealed)),
            ("--bucket-insecure", BUCKET, "insecure", self.bucket_insecure.map(Value::from)),
        ])
    }
}

impl Blob {
    fn given(&self) -> Outcome<Vec<Given>> {
        let account = Options { typed: "--account-key", file: "--account-key-file" };
        let account_key = secret(self.account_key.as_ref(), self.account_key_file.as_ref(), account)?;
        let sas = Options { typed: "--sas-token", file: "--sas-token-file" };
        let sas_token = secret(self.sas_token.as_ref(), self.sas_token_file.as_ref(), sas)?;
        let principal = Options { typed: "--sp-client-secret", file: "--sp-client-secret-file" };
        let client_secret = secret(self.sp_client_secret.as_ref(), self.sp_client_secret_file.as_ref(), principal)?;
        let cert = Options { typed: "--sp-client-cert", file: "--sp-client-cert-file" };
        let certificate = encoded(self.sp_client_cert.as_ref(), self.sp_client_cert_file.as_ref(), cert)?;
        let of_cert = Options { typed: "--sp-cert-password", file: "--sp-cert-password-file" };
        let password = secret(self.sp_cert_password.as_ref(), self.sp_cert_password_file.as_ref(), of_cert)?;
        let chain = self.sp_cert_send_chain.map(Value::from);
        Ok(vec![
            ("--container-name", AZBLOB, "containerName", text(self.container_name.as_ref())),
            (account.typed, AZBLOB, "accountKey", account_key.as_ref().map(plain)),
            (sas.typed, AZBLOB, "sasToken", sas_token.as_ref().map(plain)),
            ("--sp-client-id", AZBLOB, "servicePrincipal.clientId", text(self.sp_client_id.as_ref())),
            ("--sp-tenant-id", AZBLOB, "servicePrincipal.tenantId", text(self.sp_tenant_id.as_ref())),
            (principal.typed, AZBLOB, "servicePrincipal.clientSecret", client_secret.as_ref().map(plain)),
            (cert.typed, AZBLOB, "servicePrincipal.clientCertificate", certificate),
            (of_cert.typed, AZBLOB, "servicePrincipal.clientCertificatePassword", password.as_ref().map(plain)),
            ("--sp-cert-send-chain", AZBLOB, "servicePrincipal.clientCertificateSendChain", chain),
            ("--mi-client-id", AZBLOB, "managedIdentity.clientId", text(self.mi_client_id.as_ref())),
        ])
    }
}

/// Takes away what a source has (of the properties that are `there`) and what does not go with those that are given: as one
/// version takes the place of another, so does one way of signing in. Null is what PATCH takes away.
pub fn give_way(properties: &mut Map<String, Value>, kind: Kind, there: &Value) {
    let credentials: &[&str] = match kind {
        Kind::Git => &["httpsUser", "httpsCACert", "sshKnownHosts"],
        Kind::Bucket => &["accessKey"],
        Kind::AzBlob => &["accountKey", "sasToken", "servicePrincipal", "managedIdentity"],
        Kind::Oci => &[],
    };
    let there = &there[kind.property()];
    let is_set = |own: Option<&Value>| own.is_some_and(|value| !value.is_null());
    let gives_sealed = properties.get(PROTECTED).is_some();
    let mut own = match properties.remove(kind.property()) {
        Some(Value::Object(own)) => own,
        _ => Map::new(),
    };
    let gives = |name: &str| is_set(own.get(name));
    let mut gone: Vec<&str> = Vec::new();
    if gives("localAuthRef") {
        gone.extend(credentials);
    } else if gives_sealed || credentials.iter().any(|name| gives(name)) {
        gone.push("localAuthRef");
    }
    let is_http = |url: &str| url.starts_with("https://") || url.starts_with("http://");
    if let (Kind::Git, Some(new), Some(old)) = (kind, own.get("url").and_then(Value::as_str), there["url"].as_str()) {
        match (is_http(old), is_http(new)) {
            (true, false) => gone.extend(["httpsUser", "httpsCACert"]),
            (false, true) => gone.push("sshKnownHosts"),
            _ => {}
        }
    }
    gone.retain(|name| !gives(name) && (is_set(there.get(*name)) || kind == Kind::AzBlob));
    own.extend(gone.into_iter().map(|name| (name.to_owned(), Value::Null)).collect::<Vec<_>>());
    if !own.is_empty() {
        properties.insert(kind.property().to_owned(), own.into());
    }
}

/// A text as a property; an empty one takes the property away.
fn text(text: Option<&String>) -> Option<Value> {
    text.map(|text| if text.is_empty() { Value::Null } else { text.as_str().into() })
}

fn encoded(typed: Option<&SecretString>, file: Option<&PathBuf>, options: Options) -> Outcome<Option<Value>> {
    Ok(typed::encoded(typed, file, options)?.map(Value::from))
}

/// A secret as a property.
fn plain(secret: &SecretString) -> Value {
    secret.expose_secret().into()
}

/// A secret as a protected setting, which is Base64.
fn sealed(secret: &SecretString) -> Value {
    BASE64.encode(secret.expose_secret()).into()
}

/// Puts a value at `a.b`.
fn put(own: &mut Map<String, Value>, place: &str, value: Value) {
    match place.split_once('.') {
        None => drop(own.insert(place.to_owned(), value)),
        Some((above, name)) => {
            let inner = own.entry(above).or_insert_with(|| json!({}));
            inner[name] = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(source: &Source, kind: Kind) -> Result<Value, String> {
        let mut properties = Map::new();
        source.fill(&mut properties, kind).map_err(|failure| format!("{:#}", failure.error()))?;
        Ok(properties.into())
    }

    #[test]
    fn g1_options_become_properties_of_the_kind_and_secrets_protected_settings() {
        let text = |text: &str| Some(text.to_owned());
        let repository = Repository {
            branch: text("main"),
            https_user: text("reader"),
            https_key: Some("geheim".into()),
            provider: text("github"),
            ..Repository::default()
        };
        let source = Source { url: text("https://git.test/a"), interval: Some(60), repository, ..Source::default() };
        let expected = json!({
            "gitRepository": {
                "url": "https://git.test/a", "syncIntervalInSeconds": 60, "repositoryRef": {"branch": "main"},
                "httpsUser": "reader", "provider": "GitHub",
            },
            "configurationProtectedSettings": {"httpsKey": BASE64.encode("geheim")},
        });
        assert_eq!(filled(&source, Kind::Git).unwrap(), expected);
        assert!(filled(&source, Kind::Bucket).unwrap_err().contains("belongs to --kind git; this is bucket"));
        let through = Source { through_gateway: Some(false), ..Source::default() };
        assert_eq!(filled(&through, Kind::Oci).unwrap(), json!({"throughGateway": false}));
    }

    #[test]
    fn g4_options_of_other_kinds_stand_where_the_api_has_them() {
        let text = |text: &str| Some(text.to_owned());
        let blob = Blob {
            container_name: text("c"),
            sp_client_id: text("id"),
            sp_tenant_id: text("t"),
            sp_client_secret: Some("geheim".into()),
            ..Blob::default()
        };
        let source = Source { url: text("https://a.test"), blob, ..Source::default() };
        let principal = json!({"clientId": "id", "tenantId": "t", "clientSecret": "geheim"});
        let expected =
            json!({"azureBlob": {"url": "https://a.test", "containerName": "c", "servicePrincipal": principal}});
        assert_eq!(filled(&source, Kind::AzBlob).unwrap(), expected);
        let repository = Repository { digest: text("sha256:0"), tag: text("1"), ..Repository::default() };
        let both = Source { repository, ..Source::default() };
        assert!(filled(&both, Kind::Oci).unwrap_err().contains("one of --tag, --semver, --digest"));
    }

    #[test]
    fn g4_signatures_and_certificates_of_a_registry_are_read_from_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, name).unwrap();
            path
        };
        let repository = Repository {
            verification_provider: Some("Cosign".to_owned()),
            verification_config_file: vec![("cosign.pub".to_owned(), file("public"))],
            match_oidc_identity: vec![signer("^https://i$=^s=1$").unwrap()],
            tls_ca_certificate_file: Some(file("ca")),
            tls_client_certificate_file: Some(file("own")),
            tls_private_key_file: Some(file("key")),
            use_workload_identity: Some(true),
            ..Repository::default()
        };
        let source = Source { repository, ..Source::default() };
        let encoded = |text: &str| BASE64.encode(text);
        let expected = json!({"ociRepository": {
            "verify": {
                "provider": "cosign", "verificationConfig": {"cosign.pub": encoded("public")},
                "matchOidcIdentity": [{"issuer": "^https://i$", "subject": "^s=1$"}],
            },
            "tlsConfig": {"caCertificate": encoded("ca"), "clientCertificate": encoded("own"), "privateKey": encoded("key")},
            "useWorkloadIdentity": true,
        }});
        assert_eq!(filled(&source, Kind::Oci).unwrap(), expected);
        assert!(named_file("cosign.pub").is_err() && signer("issuer").is_err());
    }

    #[test]
    fn g3_one_way_of_signing_in_takes_the_place_of_another() {
        let after = |given: Value, there: Value| {
            let mut properties = given.as_object().unwrap().clone();
            give_way(&mut properties, Kind::Git, &json!({"gitRepository": there}));
            Value::Object(properties)
        };
        let git = |own: Value| json!({"gitRepository": own});
        let https =
            json!({"url": "https://git.test/a", "httpsUser": "u", "httpsCACert": "YQ==", "sshKnownHosts": null});
        assert_eq!(
            after(git(json!({"localAuthRef": "mine"})), https.clone()),
            git(json!({"localAuthRef": "mine", "httpsUser": null, "httpsCACert": null}))
        );
        let named = json!({"url": "https://git.test/a", "localAuthRef": "mine"});
        assert_eq!(
            after(git(json!({"httpsUser": "u"})), named.clone()),
            git(json!({"httpsUser": "u", "localAuthRef": null}))
        );
        let sealed = json!({"configurationProtectedSettings": {"httpsKey": "YQ=="}});
        assert_eq!(after(sealed, named.clone())["gitRepository"], json!({"localAuthRef": null}));
        assert_eq!(
            after(git(json!({"url": "git@git.test:a", "sshKnownHosts": "YQ=="})), https.clone()),
            git(json!({"url": "git@git.test:a", "sshKnownHosts": "YQ==", "httpsUser": null, "httpsCACert": null}))
        );
        // What says nothing of signing in changes nothing of it.
        for there in [https, named] {
            assert_eq!(
                after(git(json!({"url": "https://git.test/b"})), there.clone()),
                git(json!({"url": "https://git.test/b"}))
            );
            assert_eq!(after(json!({}), there), json!({}));
        }
        assert_eq!(super::text(Some(&String::new())), Some(Value::Null));
    }

    #[test]
    fn g1_what_a_kind_needs_is_asked_for() {
        let url = || Source { url: Some("https://git.test/a".to_owned()), ..Source::default() };
        for kind in ALL {
            assert!(Source::default().check(*kind).is_err());
            assert_eq!(url().check(*kind).is_ok(), *kind == Kind::Oci, "{kind:?}");
        }
        let of = |key: Option<&str>| Repository {
            branch: Some("main".to_owned()),
            https_user: Some("reader".to_owned()),
            https_key: key.map(SecretString::from),
            ..Repository::default()
        };
        assert!(Source { repository: of(None), ..url() }.check(Kind::Git).is_err());
        assert!(Source { repository: of(Some("geheim")), ..url() }.check(Kind::Git).is_ok());
    }
}
