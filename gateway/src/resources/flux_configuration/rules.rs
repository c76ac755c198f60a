//! What a flux configuration must be beside the shape of its JSON (docs/features.md G1): each text by itself, and what
//! fits together. Faults name their place.

use std::collections::HashMap;

use ::catalogue::range::Range;
use serde_json::{Map, Value};
use types::{agent_api::decode, api::ErrorDetail, known_hosts, ssh_private};
use url::Url;

use super::{
    BLOB_KIND, BLOB_SINCE, DEPENDENCIES, LONGEST_NAME, OCI, OCI_VERSIONS, PROTECTED, SOURCES, THROUGH_GATEWAY, is_label,
};
use crate::config::egress::{Destination, Egress};

/// Characters of a label, of the name of another Kubernetes object, of an address and of a path at most.
const LABEL: usize = 63;
const OBJECT_NAME: usize = 253;
const ADDRESS: usize = 2048;
const PATH: usize = 2048;
/// Characters of the name of a branch, tag, bucket or container.
const REFERENCE: usize = 255;
/// How long a reconciliation may be waited for, in seconds: a day.
const LONGEST_WAIT: u64 = 24 * 3600;

/// Protected settings that mean something.
const SETTINGS: &[&str] = &[SSH_KEY, "httpsKey", "bucketSecretKey"];
const SSH_KEY: &str = "sshPrivateKey";
/// What `az` also calls one of them.
const ALIAS: (&str, &str) = ("secretKey", "bucketSecretKey");

type Faults = Vec<ErrorDetail>;

fn fault(faults: &mut Faults, code: &str, message: String, at: &str) {
    faults.push(ErrorDetail::new(code, message).at(format!("properties.{at}")));
}

/// A label of Kubernetes (RFC 1123).
///
/// # Errors
/// What it must be.
pub fn label(text: &str) -> Result<(), String> {
    if is_label(text, LABEL) {
        return Ok(());
    }
    Err(format!("1 to {LABEL} lower-case letters, digits and '-', the first and the last a letter or digit"))
}

/// The name of a Secret, ConfigMap or ServiceAccount (RFC 1123 subdomain).
pub(super) fn object_name(text: &str) -> Result<(), String> {
    if text.len() <= OBJECT_NAME && text.split('.').all(|part| is_label(part, OBJECT_NAME)) {
        return Ok(());
    }
    Err(format!("the name of a Kubernetes object: 1 to {OBJECT_NAME} lower-case letters, digits, '-' and '.'"))
}

/// Base64 of something. Line breaks do not count, as in Azure: programs that write base64 break its lines.
///
/// # Errors
/// What it must be.
pub fn base64(text: &str) -> Result<(), String> {
    match decode(&text.replace(['\r', '\n'], "")) {
        Some(bytes) if !bytes.is_empty() => Ok(()),
        _ => Err("base64 (RFC 4648 section 4) of something".to_owned()),
    }
}

/// A protected setting, by its name: base64, and a private key of SSH one that Flux can use.
///
/// # Errors
/// What it must be.
pub fn setting(name: &str, text: &str) -> Result<(), String> {
    base64(text)?;
    if name != SSH_KEY {
        return Ok(());
    }
    let key = decode(&text.replace(['\r', '\n'], "")).and_then(|bytes| String::from_utf8(bytes).ok());
    ssh_private::check(key.as_deref().unwrap_or_default())
        .map_err(|why| format!("base64 of a private key of SSH without a passphrase: {why}"))
}

fn is_visible(text: &str, longest: usize) -> bool {
    (1..=longest).contains(&text.chars().count()) && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

pub(super) fn reference(text: &str) -> Result<(), String> {
    // A range of versions, such as `>=1.0.0 <2.0.0`, has blanks.
    let text = text.replace(' ', "_");
    if is_visible(&text, REFERENCE) {
        return Ok(());
    }
    Err(format!("a text of 1 to {REFERENCE} characters, none of them a control character"))
}

/// The name of a branch or a tag, as `git check-ref-format` takes it behind `refs/heads/` and `refs/tags/`.
pub(super) fn git_name(text: &str) -> Result<(), String> {
    let bad = |c: char| c.is_control() || c.is_whitespace() || "~^:?*[\\".contains(c);
    let part = |part: &str| {
        let is_lock = part.len() >= 5 && part.ends_with(".lock");
        !part.is_empty() && !part.starts_with('.') && !is_lock
    };
    let is_name = is_visible(text, REFERENCE)
        && !text.contains(bad)
        && !text.contains("..")
        && !text.contains("@{")
        && text != "@"
        && !text.starts_with('-')
        && !text.ends_with('.')
        && text.split('/').all(part);
    if is_name {
        return Ok(());
    }
    Err(format!(
        "a name that git takes (git check-ref-format) of at most {REFERENCE} characters, without blanks, '..', '@{{' and ~ ^ : ? * [ \\"
    ))
}

/// A tag of an OCI artifact.
pub(super) fn oci_tag(text: &str) -> Result<(), String> {
    const LONGEST: usize = 128;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let first = text.bytes().next().is_some_and(plain);
    if first && text.len() <= LONGEST && text.bytes().all(|b| plain(b) || matches!(b, b'.' | b'-')) {
        return Ok(());
    }
    Err(format!("a tag of at most {LONGEST} letters, digits and _ . -, the first a letter, a digit or '_'"))
}

/// A range of semantic versions: Flux and helm read them with the same library.
pub(super) fn range(text: &str) -> Result<(), String> {
    match text.parse::<Range>() {
        Ok(_) => Ok(()),
        Err(_) => {
            Err("a range of semantic versions, such as '1.x', '~1.2', '>=1.0.0 <2.0.0' or '1.2 - 1.4 || ^3'".to_owned())
        }
    }
}

/// Lines of `known_hosts`, as base64.
///
/// # Errors
/// What it must be.
pub fn hosts(text: &str) -> Result<(), String> {
    let lines = decode(&text.replace(['\r', '\n'], "")).and_then(|bytes| String::from_utf8(bytes).ok());
    let wanted = "base64 (RFC 4648 section 4) of lines of known_hosts, as ssh-keyscan prints them";
    match lines.as_deref().map(known_hosts::check) {
        Some(Ok(())) => Ok(()),
        Some(Err(why)) => Err(format!("{wanted}: {why}")),
        None => Err(wanted.to_owned()),
    }
}

/// The name of a variable that is substituted.
fn variable(text: &str) -> bool {
    let letter = |b: u8| b.is_ascii_alphabetic() || b == b'_';
    text.bytes().next().is_some_and(letter) && text.bytes().all(|b| letter(b) || b.is_ascii_digit())
}

pub(super) fn commit(text: &str) -> Result<(), String> {
    if (7..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(());
    }
    Err("the id of a commit: 7 to 64 hexadecimal digits".to_owned())
}

pub(super) fn digest(text: &str) -> Result<(), String> {
    let hex = text.strip_prefix("sha256:").unwrap_or_default();
    if hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(());
    }
    Err("a digest: 'sha256:' and 64 hexadecimal digits".to_owned())
}

pub(super) fn path(text: &str) -> Result<(), String> {
    let climbs = text.split(['/', '\\']).any(|part| part == "..");
    if text.chars().count() <= PATH && !climbs && !text.contains(char::is_control) {
        return Ok(());
    }
    Err(format!("a path in the source of at most {PATH} characters, without '..' and control characters"))
}

/// An address with one of these schemes and a host. Who writes a password into it would have it shown to everybody.
fn is_address(text: &str, schemes: &[&str], user: bool) -> bool {
    let Some(url) = is_visible(text, ADDRESS).then(|| Url::parse(text).ok()).flatten() else { return false };
    // The parser also takes `https:host` and `HTTPS://host`, which Flux does not.
    let written = schemes.iter().any(|scheme| text.strip_prefix(scheme).is_some_and(|rest| rest.starts_with("://")));
    let secret = url.password().is_some() || (!user && !url.username().is_empty());
    written && url.host_str().is_some_and(|host| !host.is_empty()) && !secret
}

/// The scheme, the host and the port of an address of any source, as `https://example.com:443`: what is kept for one is
/// sent to no other.
pub fn origin(text: &str) -> String {
    if let Some((host, _)) = text.strip_prefix("git@").and_then(|rest| rest.split_once(':')) {
        return format!("ssh://{}:22", host.to_ascii_lowercase());
    }
    let Ok(url) = url::Url::parse(text) else { return text.to_owned() };
    let port = url.port_or_known_default().or_else(|| (url.scheme() == "ssh").then_some(22)).unwrap_or(443);
    format!("{}://{}:{port}", url.scheme(), url.host_str().unwrap_or_default().to_ascii_lowercase())
}

/// The address of the source, of whatever kind.
pub(super) fn address(own: &Map<String, Value>) -> Option<&str> {
    SOURCES.iter().find_map(|(_, source)| own.get(*source)?.get("url")?.as_str())
}

/// Where the source is, if its address is one of TLS.
pub(super) fn destination(own: &Map<String, Value>) -> Option<Destination> {
    Destination::of_url(address(own)?)
}

/// What goes through the gateway is protected by TLS between Flux and the source, is at one host, and that is one that the
/// gateway's operator has allowed. A source that went there `before` may be written again as it is, whatever the operator
/// allows by now: else nothing else of the configuration could be changed, and each connection is judged when it is dialled.
pub(super) fn through_gateway(
    own: &Map<String, Value>,
    before: Option<&Map<String, Value>>,
    egress: &Egress,
    faults: &mut Faults,
) {
    if own.get(THROUGH_GATEWAY).is_none_or(|goes| *goes != true) {
        return;
    }
    let (Some(kind), Some(url)) = (own.get("sourceKind").and_then(Value::as_str), address(own)) else { return };
    let went = before.is_some_and(|before| {
        let same = |name: &str| before.get(name) == own.get(name);
        same(THROUGH_GATEWAY) && same("sourceKind") && address(before) == Some(url)
    });
    let source = SOURCES.iter().find(|(known, _)| *known == kind).and_then(|(_, name)| own.get(*name));
    let given = |name: &str| source.and_then(|source| source.get(name)).is_some_and(|value| !value.is_null());
    let is = |name: &str, words: &[&str]| {
        let text = source.and_then(|source| source.get(name)).and_then(Value::as_str);
        text.is_some_and(|text| words.iter().any(|word| text.eq_ignore_ascii_case(word)))
    };
    let on = |name: &str| source.and_then(|source| source.get(name)).is_some_and(|value| *value == true);
    // Whoever signs in elsewhere needs another host, which no configuration names.
    let elsewhere = match kind {
        "GitRepository" if is("provider", &["azure", "github"]) => Some("provider"),
        "AzureBlob" => ["servicePrincipal", "managedIdentity"].into_iter().find(|name| given(name)),
        OCI if on("useWorkloadIdentity") => Some("useWorkloadIdentity"),
        _ => None,
    };
    let why = match destination(own) {
        _ if url.starts_with("ssh://") || !url.contains("://") => {
            "a repository over ssh cannot be reached through the gateway: give its https:// address".to_owned()
        }
        _ if kind == OCI && on("insecure") => {
            "what goes through the gateway is protected by TLS: leave 'insecure' out".to_owned()
        }
        None => {
            "what goes through the gateway is protected by TLS: give an address that begins with https:// or oci://"
                .to_owned()
        }
        Some(_) if elsewhere.is_some() => {
            let name = elsewhere.unwrap_or_default();
            format!("'{name}' signs in at another host, and only the source's own host is reached through the gateway")
        }
        Some(_) if went => return,
        Some(_) if egress.is_off() => {
            "this gateway reaches no hosts for clusters; its operator lists them in [egress] hosts of its configuration"
                .to_owned()
        }
        Some(to) if !egress.allows(&to) => {
            format!(
                "this gateway does not reach {to} for clusters; its operator lists hosts in [egress] hosts of its configuration"
            )
        }
        Some(_) => return,
    };
    let message = format!("The property 'properties.{THROUGH_GATEWAY}' cannot be true: {why}.");
    fault(faults, "InvalidThroughGateway", message, THROUGH_GATEWAY);
}

/// The address of a Git repository, in each form that `git` and `az` take.
///
/// # Errors
/// What it must be.
pub fn git_url(text: &str) -> Result<(), String> {
    // As `git` and `az` take it, without a scheme.
    let short = text.strip_prefix("git@").and_then(|rest| rest.split_once(':')).is_some_and(|(host, path)| {
        is_visible(text, ADDRESS)
            && !path.is_empty()
            && !host.is_empty()
            && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
    });
    if short || is_address(text, &["http", "https"], false) || is_address(text, &["ssh"], true) {
        return Ok(());
    }
    Err("the address of a git repository: https://, http:// or ssh://, or git@host:path; a user and a password of https belong into httpsUser and httpsKey".to_owned())
}

pub(super) fn http_url(text: &str) -> Result<(), String> {
    if is_address(text, &["http", "https"], false) {
        return Ok(());
    }
    Err("an address that begins with https:// or http://, without a user and a password".to_owned())
}

pub(super) fn oci_url(text: &str) -> Result<(), String> {
    if is_address(text, &["oci"], false) {
        return Ok(());
    }
    Err("an address that begins with oci://, without a user and a password".to_owned())
}

/// A duration of ISO 8601, without years and months, whose length nobody knows.
pub(super) fn duration(text: &str) -> Result<(), String> {
    if seconds_of(text).is_some_and(|seconds| (1..=LONGEST_WAIT).contains(&seconds)) {
        return Ok(());
    }
    Err("a duration of ISO 8601 of at most a day, such as PT5M, PT1H or P1D".to_owned())
}

fn seconds_of(text: &str) -> Option<u64> {
    let (days, time) = text
        .strip_prefix('P')?
        .split_once('T')
        .map_or((text.strip_prefix('P')?, None), |(days, time)| (days, Some(time)));
    let mut seconds = 0_u64;
    for (mut rest, units) in
        [(days, [('D', 86_400)].as_slice()), (time.unwrap_or_default(), &[('H', 3600), ('M', 60), ('S', 1)])]
    {
        for (unit, worth) in units {
            let Some((number, after)) = rest.split_once(*unit) else { continue };
            let plain = (1..=9).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
            seconds += number.parse::<u64>().ok().filter(|_| plain)? * worth;
            rest = after;
        }
        if !rest.is_empty() {
            return None;
        }
    }
    (time != Some("")).then_some(seconds)
}

/// One source, of the kind that is named. Who knows no source of OCI, or of Azure's blobs, neither makes one nor keeps it
/// beside another.
pub(super) fn source(
    own: &mut Map<String, Value>,
    old: Option<&Map<String, Value>>,
    version: &str,
    faults: &mut Faults,
) {
    let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
    own.retain(|name, value| !(is_empty(value) && SOURCES.iter().any(|(_, property)| property == name)));
    let kind_of = |of: &Map<String, Value>| of.get("sourceKind").and_then(Value::as_str).map(str::to_owned);
    let later = [
        (OCI, "ociRepository", OCI_VERSIONS.contains(&version), OCI_VERSIONS.join(", ")),
        (BLOB_KIND, "azureBlob", version >= BLOB_SINCE, format!("{BLOB_SINCE} and later ones")),
    ];
    let given =
        |own: &Map<String, Value>| SOURCES.iter().filter(|(_, name)| own.contains_key(*name)).collect::<Vec<_>>();
    let kind = match (kind_of(own), given(own).as_slice()) {
        (Some(kind), _) => kind,
        (None, [(kind, _)]) => (*kind).to_owned(),
        (None, _) => {
            let message = "The property 'properties.sourceKind' is required, with the source of that kind.".to_owned();
            return fault(faults, "MissingRequiredProperty", message, "sourceKind");
        }
    };
    own.insert("sourceKind".to_owned(), kind.as_str().into());
    for (of, property, _, needed) in later.iter().filter(|(_, _, is_known, _)| !is_known) {
        if kind != *of {
            own.remove(*property);
        } else if old.and_then(kind_of).as_deref() != Some(*of) {
            let message = format!("The source kind {of} needs one of the api-versions {needed}.");
            return fault(faults, "InvalidSource", message, "sourceKind");
        }
    }
    for (other, name) in given(own).into_iter().filter(|(other, _)| *other != kind) {
        let message = format!("A configuration has one source: sourceKind is {kind}, and '{name}' is that of {other}.");
        fault(faults, "InvalidSource", message, name);
    }
    let wanted = SOURCES.iter().find(|(known, _)| *known == kind).map_or("", |(_, name)| name);
    if !own.contains_key(wanted) {
        let message = format!("The property 'properties.{wanted}' is required where sourceKind is {kind}.");
        fault(faults, "MissingRequiredProperty", message, wanted);
    }
}

/// What is followed of a repository is named in one way.
pub(super) fn references(own: &Map<String, Value>, faults: &mut Faults) {
    for source in ["gitRepository", "ociRepository"] {
        let reference = own.get(source).and_then(|source| source.get("repositoryRef")?.as_object());
        let names: Vec<_> = reference.into_iter().flat_map(Map::keys).map(String::as_str).collect();
        if names.len() > 1 {
            let message = format!("A repositoryRef names one of its properties; this one names {}.", names.join(", "));
            fault(faults, "InvalidRepositoryReference", message, &format!("{source}.repositoryRef"));
        }
    }
}

/// Keys by which artifacts are verified, as base64 of something; those of cosign are PEM.
pub(super) fn verification(own: &Map<String, Value>, faults: &mut Faults) {
    let Some(verify) = own.get("ociRepository").and_then(|oci| oci.get("verify")) else { return };
    let is_pem = verify.get("provider").and_then(Value::as_str).is_none_or(|provider| provider == "cosign");
    for (name, value) in verify.get("verificationConfig").and_then(Value::as_object).into_iter().flatten() {
        let text = value.as_str().unwrap_or_default().replace(['\r', '\n'], "");
        let key = decode(&text).unwrap_or_default();
        let begins = key.trim_ascii_start().starts_with(b"-----BEGIN ");
        if key.is_empty() || (is_pem && !begins) {
            let shown: String = name.chars().take(LABEL).collect();
            let at = format!("ociRepository.verify.verificationConfig.{shown}");
            let wanted = if is_pem { "a public key as PEM" } else { "something" };
            let message = format!("The property 'properties.{at}' must be base64 (RFC 4648 section 4) of {wanted}.");
            fault(faults, "InvalidRequestContent", message, &at);
        }
    }
}

/// Protected settings that mean something, as base64.
pub(super) fn protected(own: &mut Map<String, Value>, faults: &mut Faults) {
    let Some(Value::Object(settings)) = own.get_mut(PROTECTED) else { return };
    settings.retain(|_, value| !value.is_null());
    let (alias, name) = ALIAS;
    if let Some(value) = settings.remove(alias) {
        settings.entry(name).or_insert(value);
    }
    for (name, value) in settings {
        let shown: String = name.chars().take(64).collect();
        let at = format!("{PROTECTED}.{shown}");
        if !SETTINGS.contains(&name.as_str()) {
            let message = format!("The protected setting '{shown}' is not known; known are {}.", SETTINGS.join(", "));
            fault(faults, "UnknownProperty", message, &at);
        } else if let Err(wanted) = setting(name, value.as_str().unwrap_or_default()) {
            let message = format!("The property 'properties.{at}' must be {wanted}.");
            fault(faults, "InvalidRequestContent", message, &at);
        }
    }
}

/// What a write does with credentials that are there already.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Before<'a> {
    /// The configuration as it was; none: it is a new one.
    pub own: Option<&'a Map<String, Value>>,
    /// Whether the gateway still has anything that was given of them.
    pub is_kept: bool,
    /// Whether the gateway or the cluster has.
    pub is_there: bool,
}

/// Credentials of Azure's blobs, of which one kind is used.
const BLOB_CREDENTIALS: &[&str] = &["accountKey", "sasToken", "servicePrincipal", "managedIdentity", "localAuthRef"];
/// Those of them that are never shown.
const BLOB_SECRETS: &[&str] = &["accountKey", "sasToken"];
/// By which a service principal proves who it is.
const PROOFS: &[&str] = &["clientSecret", "clientCertificate"];

fn is_given(value: &Value) -> bool {
    !(value.is_null() || *value == "")
}

/// Another kind of credentials for a blob takes the place of the former one, which nobody could take away who does not see
/// it. `said`: what the client gives; `old`: the configuration as it was.
pub(super) fn take_places(own: &mut Map<String, Value>, said: &Map<String, Value>, old: Option<&Map<String, Value>>) {
    let old = old.and_then(|old| old.get("azureBlob")?.as_object());
    let said = said.get("azureBlob").and_then(Value::as_object);
    let Some((said, blob)) = said.zip(own.get_mut("azureBlob").and_then(Value::as_object_mut)) else { return };
    let given = |of: &Map<String, Value>, name: &str| of.get(name).is_some_and(is_given);
    let kinds: Vec<_> = BLOB_CREDENTIALS.iter().filter(|name| given(said, name)).collect();
    if let [kind] = kinds.as_slice()
        && old.is_some_and(|old| !given(old, kind))
    {
        for other in BLOB_CREDENTIALS.iter().filter(|other| other != kind) {
            match BLOB_SECRETS.contains(other) {
                true => drop(blob.insert((*other).to_owned(), Value::Null)),
                false => drop(blob.remove(*other)),
            }
        }
    }
    let principal = said.get("servicePrincipal").and_then(Value::as_object);
    let kept = blob.get_mut("servicePrincipal").and_then(Value::as_object_mut);
    let Some((principal, kept)) = principal.zip(kept) else { return };
    let proofs: Vec<_> = PROOFS.iter().copied().filter(|name| given(principal, name)).collect();
    match proofs.as_slice() {
        ["clientSecret"] => {
            for other in ["clientCertificate", "clientCertificatePassword"] {
                kept.entry(other).or_insert(Value::Null);
            }
        }
        ["clientCertificate"] => drop(kept.insert("clientSecret".to_owned(), Value::Null)),
        _ => {}
    }
}

/// Credentials that the source can use, and of which none is left out in the cluster without a word.
pub(super) fn credentials(own: &Map<String, Value>, before: Before<'_>, faults: &mut Faults) {
    let kind = own.get("sourceKind").and_then(Value::as_str).unwrap_or_default();
    let Some((_, name)) = SOURCES.iter().find(|(known, _)| *known == kind) else { return };
    let Some(source) = own.get(*name).and_then(Value::as_object) else { return };
    let has = |at: &str| source.get(at).is_some_and(is_given);
    let settings = own.get(PROTECTED).and_then(Value::as_object);
    let sealed = |at: &str| settings.and_then(|settings| settings.get(at)).is_some_and(is_given);
    // Protected settings are replaced as a whole. Without any, those from before stay, which the cluster may have when
    // nobody else has them any more.
    let may_be_kept = settings.is_none() && before.own.is_some();
    let mut refuse = |at: String, why: &str| {
        let message = format!("The property 'properties.{at}' cannot be used: {why}.");
        fault(faults, "InvalidCredentials", message, &at);
    };

    let url = source.get("url").and_then(Value::as_str).unwrap_or_default().to_ascii_lowercase();
    let is_http = url.starts_with("https://") || url.starts_with("http://");
    let (usable, why): (&[&str], _) = match kind {
        "GitRepository" if is_http => (&["httpsKey"], "the repository's address is not one of ssh"),
        "GitRepository" => (&["sshPrivateKey"], "the repository's address is not one of https"),
        "Bucket" => (&["bucketSecretKey"], "a bucket has only a bucketSecretKey"),
        _ => {
            (&[], "a source of this kind has none of the protected settings; its secrets have properties of their own")
        }
    };
    for setting in SETTINGS.iter().filter(|setting| sealed(setting) && !usable.contains(setting)) {
        refuse(format!("{PROTECTED}.{setting}"), why);
    }
    if kind == "GitRepository" {
        let wrong: &[&str] = if is_http { &["sshKnownHosts"] } else { &["httpsUser", "httpsCACert"] };
        wrong.iter().filter(|at| has(at)).for_each(|at| refuse(format!("{name}.{at}"), why));
        let clear = "it would be sent in clear text; give the repository's https:// address";
        if url.starts_with("http://") && has("httpsUser") {
            refuse(format!("{name}.httpsUser"), clear);
        }
        if url.starts_with("http://") && sealed("httpsKey") {
            refuse(format!("{PROTECTED}.httpsKey"), clear);
        }
        if is_http && has("httpsUser") && !sealed("httpsKey") && !may_be_kept {
            refuse(format!("{name}.httpsUser"), "its password or token is missing, the protected setting httpsKey");
        }
    }
    let needs_hosts = kind == "GitRepository" && !is_http && !has("sshKnownHosts") && !has("localAuthRef");
    if let Some(why) = unknown_host(&url).filter(|_| needs_hosts) {
        refuse(format!("{name}.sshKnownHosts"), &why);
    }
    if kind == "Bucket" && !has("localAuthRef") {
        let needs = "it needs the other half of the pair";
        match (has("accessKey"), sealed("bucketSecretKey")) {
            (true, false) if !may_be_kept => {
                refuse(format!("{name}.accessKey"), &format!("{needs}, the protected setting bucketSecretKey"));
            }
            (false, true) => refuse(format!("{PROTECTED}.bucketSecretKey"), &format!("{needs}, bucket.accessKey")),
            _ => {}
        }
    }
    if kind == OCI && source.get("insecure").is_some_and(|insecure| *insecure == true) {
        let tls = source.get("tlsConfig").and_then(Value::as_object);
        let tls = tls.is_some_and(|tls| before.is_there || tls.values().any(is_given));
        let beside = [(tls, "tlsConfig"), (has("localAuthRef"), "localAuthRef")].into_iter().find(|(is, _)| *is);
        if let Some((_, beside)) = beside {
            let why = format!("it goes without TLS, and '{beside}' is for TLS alone or would be sent in clear text");
            refuse(format!("{name}.insecure"), &why);
        }
    }
    if has("localAuthRef") {
        let beside: &[&str] = match kind {
            "GitRepository" => &["httpsUser", "httpsCACert", "sshKnownHosts"],
            "Bucket" => &["accessKey"],
            "AzureBlob" => &["accountKey", "sasToken", "servicePrincipal", "managedIdentity"],
            _ => &[],
        };
        let why = "localAuthRef names a Secret in the cluster that has all credentials";
        beside.iter().filter(|at| has(at)).for_each(|at| refuse(format!("{name}.{at}"), why));
        usable.iter().filter(|at| sealed(at)).for_each(|at| refuse(format!("{PROTECTED}.{at}"), why));
    }
    // Flux takes the account's name from there, and an address of IP has none: the storage would refuse the signature.
    if kind == "AzureBlob" && has("accountKey") && is_ip(&url) {
        let why = "an account key signs for the account that the first part of the host of the address names, as in https://account.blob.core.windows.net, and this host is an IP address; give a sasToken";
        refuse(format!("{name}.accountKey"), why);
    }
    if kind == BLOB_KIND && url.starts_with("http://") && !is_emulator(&url) {
        let why =
            "over http:// it, or what it signs, is open to everybody on the way; give the container's https:// address";
        let open = ["accountKey", "sasToken", "servicePrincipal"].into_iter().filter(|at| has(at));
        open.for_each(|at| refuse(format!("{name}.{at}"), why));
    }
    if kind == BLOB_KIND && !has("localAuthRef") {
        let mut given = BLOB_CREDENTIALS.iter().filter(|at| has(at));
        if let Some(first) = given.next() {
            let why = format!("a container has one kind of credentials, and '{first}' is there too");
            given.for_each(|at| refuse(format!("{name}.{at}"), &why));
        }
    }
    if let Some(principal) = source.get("servicePrincipal").and_then(Value::as_object) {
        service_principal(principal, before, &mut |at, why| refuse(format!("{name}.servicePrincipal.{at}"), why));
    }
}

/// What a service principal needs to sign in, and no more.
fn service_principal(principal: &Map<String, Value>, before: Before<'_>, refuse: &mut dyn FnMut(&str, &str)) {
    let has = |at: &str| principal.get(at).is_some_and(is_given);
    let was_there = || before.own?.get("azureBlob")?.get("servicePrincipal")?.as_object();
    let may_be_kept = before.is_there && was_there().is_some();
    for at in ["clientId", "tenantId"].into_iter().filter(|at| !has(at)) {
        refuse(at, "it is missing, and a service principal signs in with its clientId and tenantId together");
    }
    match (has("clientSecret"), has("clientCertificate")) {
        (true, true) => refuse("clientCertificate", "clientSecret is there too, and one of both signs in"),
        (false, false) if !may_be_kept => {
            refuse("clientSecret", "it is missing; give it, or clientCertificate");
        }
        _ => {}
    }
    let is_kept = before.is_kept && was_there().is_some();
    if has("clientCertificatePassword") && !has("clientCertificate") && !is_kept {
        refuse("clientCertificatePassword", "its clientCertificate is not kept, or no longer kept; give both");
    }
}

/// Why a server of SSH would not be trusted, if it is none that everybody knows.
pub fn unknown_host(url: &str) -> Option<String> {
    if known_hosts::built_in(url).is_some() {
        return None;
    }
    Some("it is missing, and the keys of this server are not built in: give the lines of known_hosts for it (ssh-keyscan HOST, compared with what the server's owner publishes) as base64".to_owned())
}

/// Whether an address is that of the account that every storage emulator has, whose key is published.
fn is_emulator(url: &str) -> bool {
    const ACCOUNT: &str = "devstoreaccount1";
    let Ok(url) = Url::parse(url) else { return false };
    let of_host = url.host_str().is_some_and(|host| host.split('.').next() == Some(ACCOUNT));
    of_host || url.path().split('/').nth(1) == Some(ACCOUNT)
}

/// Whether the host of an address is an IP address.
fn is_ip(url: &str) -> bool {
    let host = url.parse::<http::Uri>().ok().and_then(|uri| uri.host().map(str::to_owned)).unwrap_or_default();
    host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>().is_ok()
}

/// Names that fit into those of the objects in the cluster, and dependencies that can be waited for.
pub(super) fn kustomizations(configuration: &str, own: &Map<String, Value>, faults: &mut Faults) {
    let Some(Value::Object(all)) = own.get("kustomizations") else { return };
    let mut dependencies = Vec::with_capacity(all.len());
    let places: HashMap<&str, usize> = all.keys().enumerate().map(|(place, name)| (name.as_str(), place)).collect();
    for (name, kustomization) in all {
        let at = format!("kustomizations.{name}");
        let length = configuration.len() + name.len();
        if length > LONGEST_NAME {
            let message = format!(
                "The names '{configuration}' and '{name}', which together name the kustomization in the cluster, have {length} characters; {LONGEST_NAME} is the limit."
            );
            fault(faults, "InvalidKustomization", message, &at);
        }
        let substitutes = kustomization.get("postBuild").and_then(|post| post.get("substitute")?.as_object());
        for other in substitutes.into_iter().flat_map(Map::keys).filter(|other| !variable(other)) {
            let shown: String = other.chars().take(LABEL).collect();
            let message = format!(
                "The name '{shown}' is none of a variable: letters, digits and '_', the first no digit. Manifests name it as ${{NAME}}."
            );
            fault(faults, "InvalidKustomization", message, &format!("{at}.postBuild.substitute.{shown}"));
        }
        let named: Vec<&str> = kustomization
            .get("dependsOn")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let at = format!("{at}.dependsOn");
        if named.len() > DEPENDENCIES {
            let message = format!("A kustomization depends on {DEPENDENCIES} others at most.");
            fault(faults, "InvalidKustomization", message, &at);
        }
        let mut known = Vec::new();
        for other in named.into_iter().take(DEPENDENCIES) {
            match places.get(other) {
                Some(place) => known.push(*place),
                None => {
                    let message = format!("There is no kustomization '{other}' that '{name}' could depend on.");
                    fault(faults, "InvalidDependency", message, &at);
                }
            }
        }
        dependencies.push(known);
    }
    if let Some(circle) = circle(&dependencies) {
        let names: Vec<&str> = all.keys().map(String::as_str).collect();
        let shown: Vec<&str> = circle.iter().chain(circle.first()).map(|place| names[*place]).collect();
        let message = format!("Kustomizations that depend on each other would wait forever: {}.", shown.join(" -> "));
        let at = format!("kustomizations.{}.dependsOn", shown[0]);
        fault(faults, "InvalidDependency", message, &at);
    }
}

/// A circle of dependencies, if there is one. Each is looked at once: Kahn's algorithm takes away what depends on nothing
/// that is left.
fn circle(dependencies: &[Vec<usize>]) -> Option<Vec<usize>> {
    let mut open: Vec<usize> = dependencies.iter().map(Vec::len).collect();
    let mut dependents = vec![Vec::new(); dependencies.len()];
    for (place, others) in dependencies.iter().enumerate() {
        others.iter().for_each(|other| dependents[*other].push(place));
    }
    let mut free: Vec<usize> = (0..open.len()).filter(|place| open[*place] == 0).collect();
    while let Some(place) = free.pop() {
        for dependent in &dependents[place] {
            open[*dependent] -= 1;
            if open[*dependent] == 0 {
                free.push(*dependent);
            }
        }
    }
    // Of what is left each depends on something that is left: who follows that comes back.
    let mut at = open.iter().position(|open| *open > 0)?;
    let mut seen: Vec<usize> = Vec::new();
    loop {
        if let Some(begin) = seen.iter().position(|place| *place == at) {
            return Some(seen.split_off(begin));
        }
        seen.push(at);
        at = *dependencies[at].iter().find(|other| open[**other] > 0)?;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use types::agent_api::encode;

    use super::*;

    #[test]
    fn g1_addresses_have_the_schemes_of_their_source() {
        for good in [
            "https://github.com/Azure/gitops-flux2-kustomize-helm-mt",
            "http://10.0.0.1:8080/repo.git",
            "ssh://git@example.com:2222/a/b",
            "git@github.com:org/repo.git",
            "https://[::1]/x",
        ] {
            assert!(git_url(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "github.com/org/repo",
            "file:///etc",
            "ftp://host/x",
            "oci://host/x",
            "https:host/x",
            "HTTPS://host/x",
            "https://",
            "https://user:word@host/x",
            "https://token@host/x",
            "ssh://git:word@host/x",
            "git@host",
            "git@:path",
            "git@ho st:path",
            "https://host/a b",
            "https://host/\u{7}",
            &format!("https://host/{}", "x".repeat(2048)),
        ] {
            assert!(git_url(bad).is_err(), "{bad}");
        }
        assert!(
            http_url("http://minio:9000").is_ok() && http_url("s3://minio").is_err() && http_url("ssh://h/x").is_err()
        );
        assert!(oci_url("oci://ghcr.io/org/x").is_ok() && oci_url("https://ghcr.io/org/x").is_err());
        assert!(oci_url("oci://u:p@ghcr.io/org/x").is_err());
    }

    #[test]
    fn g1_texts_are_what_flux_takes() {
        for good in ["", "./apps", "apps/staging", "/", "a..b/c"] {
            assert!(path(good).is_ok(), "{good}");
        }
        for bad in ["..", "../x", "a/../b", "a\\..\\b", "a\n", &"x".repeat(2049)] {
            assert!(path(bad).is_err(), "{bad}");
        }
        for good in ["PT5M", "PT1H", "P1D", "PT1H30M", "PT90S", "P0DT10M"] {
            assert!(duration(good).is_ok(), "{good}");
        }
        for bad in
            ["", "P", "PT", "5M", "PT0S", "P2D", "P1M", "PT5", "PT1M1H", "PT-5M", "P1DT", "pt5m", "PT9999999999S"]
        {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert!(base64("aGVs\r\nbG8=\n").is_ok() && base64("\n").is_err() && base64("no base64").is_err());
        assert!(setting("httpsKey", "aGk=").is_ok() && setting("httpsKey", "!").is_err());
        let (key, why) = (
            "LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQpaMlZvWldsdExUST0KLS0tLS1FTkQgUlNBIFBSSVZBVEUgS0VZLS0tLS0K",
            "no private key",
        );
        assert!(setting(SSH_KEY, key).is_ok() && setting(SSH_KEY, "aGVsbG8=").unwrap_err().contains(why));
        assert!(base64("aGk=").is_ok() && base64("").is_err() && base64("hi!").is_err() && base64("aGk").is_err());
        assert!(commit("0123abc").is_ok() && commit("0123abz").is_err() && commit("abc").is_err());
        assert!(digest(&format!("sha256:{}", "a".repeat(64))).is_ok() && digest("sha256:aa").is_err());
        assert!(reference("a b").is_ok() && reference("").is_err() && reference("a\nb").is_err());
        assert!(object_name("a.b-c").is_ok() && object_name("a..b").is_err() && object_name("A").is_err());
    }

    #[test]
    fn g1_names_of_git_and_ranges_are_those_that_flux_can_use() {
        for good in ["main", "release/1.2", "v1.0.0", "a.b_c+d", "feature/\u{fc}", "@a", "x.locked"] {
            assert!(git_name(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "a..b",
            "a b",
            "a~b",
            "a^b",
            "a:b",
            "a?b",
            "a*b",
            "a[b",
            "a\\b",
            "a..b~^:",
            "/a",
            "a/",
            "a//b",
            ".a",
            "a/.b",
            "a.lock",
            "a.lock/b",
            "a.",
            "a@{b",
            "@",
            "-a",
            "a\u{7f}b",
            &"x".repeat(256),
        ] {
            assert!(git_name(bad).is_err(), "{bad}");
        }
        for good in ["latest", "1.0", "_a.b-c", &"x".repeat(128)] {
            assert!(oci_tag(good).is_ok(), "{good}");
        }
        for bad in ["", ".a", "-a", "a/b", "a:b", "a b", "\u{fc}", &"x".repeat(129)] {
            assert!(oci_tag(bad).is_err(), "{bad}");
        }
        for good in [
            "*",
            "1.x",
            "1.2.X",
            "v1.2.3",
            "1.2.3-rc.1+build.5",
            ">=1.0.0 <2.0.0",
            ">= 1.0.0, < 2.0.0",
            "~1.2",
            "~> 1.2.3",
            "^0.2",
            "=1",
            "!=1.4",
            "=>1",
            "=<2",
            "1.2 - 1.4.5",
            ">=3.1.0-rc.1 <3.2.0",
            "1.2 - 1.4 || ^3 || >5,<6",
            "<2 >1",
        ] {
            assert!(range(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            " ",
            "not a range!!",
            "latest",
            ">=",
            ">> 1",
            "1.2.3.4",
            "1..2",
            "1 ||",
            "|| 1",
            "- 1",
            "1 -",
            "1 - 2 - 3",
            ">1 - 2",
            "1 - >2",
            "1.2.3-",
            "1.2.3-a..b",
            "1.2.3+",
            "01a",
            "+1",
            "99999999999999999999",
            "1; 2",
        ] {
            assert!(range(bad).is_err(), "{bad}");
        }
        for good in ["A", "_a", "site_1", "Z9"] {
            assert!(variable(good), "{good}");
        }
        for bad in ["", "a-b", "1a", "a.b", "a b", "\u{e4}"] {
            assert!(!variable(bad), "{bad}");
        }
        let lines = |text: &str| hosts(&encode(text.as_bytes()));
        assert!(lines(&known_hosts::built_in("git@github.com:x").unwrap()).is_ok());
        assert!(lines("git.test ssh-ed25519 AAAA").is_err() && hosts("AAEC").is_err() && hosts("no base64").is_err());
    }

    #[test]
    fn g1_another_kind_of_credentials_for_a_blob_takes_the_place_of_the_former_one() {
        let taken = |own: Value, said: Value, old: Value| {
            let mut own = json!({"azureBlob": own}).as_object().unwrap().clone();
            let [said, old] = [said, old].map(|blob| json!({"azureBlob": blob}).as_object().unwrap().clone());
            take_places(&mut own, &said, Some(&old));
            own.remove("azureBlob").unwrap()
        };
        let sas = json!({"sasToken": "s"});
        assert_eq!(taken(sas.clone(), sas.clone(), json!({})), json!({"sasToken": "s", "accountKey": null}));
        let both = json!({"sasToken": "s", "servicePrincipal": {"clientId": "i"}, "managedIdentity": {}});
        let old = json!({"servicePrincipal": {"clientId": "i"}, "managedIdentity": {}});
        assert_eq!(taken(both, sas, old), json!({"sasToken": "s", "accountKey": null}));
        // What was there already has taken its place.
        let principal = json!({"servicePrincipal": {"clientId": "i"}});
        assert_eq!(taken(principal.clone(), principal.clone(), principal.clone()), principal);
        // Nor does what contradicts itself take any.
        let two = json!({"sasToken": "s", "accountKey": "a"});
        assert_eq!(taken(two.clone(), two.clone(), json!({})), two);
        let secret = json!({"servicePrincipal": {"clientSecret": "s"}});
        let changed = taken(secret.clone(), secret, principal);
        let wanted = json!({"clientSecret": "s", "clientCertificate": null, "clientCertificatePassword": null});
        assert_eq!(changed["servicePrincipal"], wanted);
    }

    #[test]
    fn g1_a_circle_is_found_wherever_it_is() {
        assert_eq!(circle(&[]), None);
        assert_eq!(circle(&[vec![], vec![0], vec![0, 1, 1]]), None);
        assert_eq!(circle(&[vec![0]]), Some(vec![0]));
        // 0 depends on the circle 1 -> 2 -> 1 and is none of it.
        assert_eq!(circle(&[vec![1], vec![2], vec![1]]), Some(vec![1, 2]));
        // Linear in what depends on what.
        let all: Vec<Vec<usize>> = (0..100).map(|place| (0..place).collect()).collect();
        assert_eq!(circle(&all), None);
    }

    #[test]
    fn g1_credentials_are_those_that_the_source_can_use() {
        let bucket = |own: Value, sealed: Value| json!({"sourceKind": "Bucket", "bucket": own, PROTECTED: sealed});
        let oci = |own: Value| json!({"sourceKind": OCI, "ociRepository": own});
        let principal = |more: Value| {
            let mut own = json!({"clientId": "i", "tenantId": "t"});
            own.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
            json!({"sourceKind": "AzureBlob", "azureBlob": {"servicePrincipal": own}})
        };
        let blob = |url: &str, key: &str| json!({"sourceKind": "AzureBlob", "azureBlob": {"url": url, "containerName": "c", "accountKey": key}});
        let faults = |own: Value, kept: Option<bool>| {
            let mut faults = Vec::new();
            let own = own.as_object().unwrap();
            let before = kept.map(|is_kept| Before { own: Some(own), is_kept, is_there: true });
            credentials(own, before.unwrap_or_default(), &mut faults);
            let places = faults.into_iter().filter_map(|fault| fault.target);
            places.map(|at| at.trim_start_matches("properties.").to_owned()).collect::<Vec<_>>()
        };
        let git = |url: &str, more: Value, sealed: Value| {
            let mut source = more;
            source["url"] = url.into();
            json!({"sourceKind": "GitRepository", "gitRepository": source, PROTECTED: sealed})
        };
        let (https, ssh) = ("https://h/x", "git@h:x");
        let none: &[&str] = &[];
        for (own, before, wanted) in [
            (git(https, json!({"httpsUser": "u", "httpsCACert": "YQ=="}), json!({"httpsKey": "YQ=="})), None, none),
            (git(https, json!({}), json!({"httpsKey": "YQ=="})), None, none),
            (git(ssh, json!({"sshKnownHosts": "YQ=="}), json!({"sshPrivateKey": "YQ=="})), None, none),
            (git(ssh, json!({}), json!({})), None, &["gitRepository.sshKnownHosts"]),
            (git("ssh://git@h:2222/x", json!({"localAuthRef": "mine"}), Value::Null), None, none),
            (git("git@github.com:org/x", json!({}), json!({})), None, none),
            (git(https, json!({"httpsUser": "u"}), json!({})), Some(true), &["gitRepository.httpsUser"]),
            (git(https, json!({"httpsUser": "u"}), Value::Null), None, &["gitRepository.httpsUser"]),
            (git(https, json!({"httpsUser": "u"}), Value::Null), Some(false), none),
            (git(https, json!({"httpsUser": ""}), Value::Null), None, none),
            (
                git(https, json!({"sshKnownHosts": "YQ=="}), json!({"sshPrivateKey": "YQ=="})),
                None,
                &["configurationProtectedSettings.sshPrivateKey", "gitRepository.sshKnownHosts"],
            ),
            (
                git(ssh, json!({"httpsUser": "u", "sshKnownHosts": "YQ=="}), json!({"httpsKey": "YQ=="})),
                None,
                &["configurationProtectedSettings.httpsKey", "gitRepository.httpsUser"],
            ),
            (
                git("http://h/x", json!({}), json!({"httpsKey": "YQ=="})),
                None,
                &["configurationProtectedSettings.httpsKey"],
            ),
            (git(https, json!({"localAuthRef": "mine"}), Value::Null), None, none),
            (
                git(https, json!({"localAuthRef": "mine", "httpsCACert": "YQ=="}), json!({"httpsKey": "YQ=="})),
                None,
                &["gitRepository.httpsCACert", "configurationProtectedSettings.httpsKey"],
            ),
            (
                bucket(json!({"accessKey": "a"}), json!({"httpsKey": "YQ=="})),
                None,
                &["configurationProtectedSettings.httpsKey", "bucket.accessKey"],
            ),
            (
                json!({"sourceKind": "AzureBlob", "azureBlob": {"localAuthRef": "mine", "accountKey": "a"}}),
                None,
                &["azureBlob.accountKey"],
            ),
            (blob("http://10.0.0.1:10000/a", "k"), None, &["azureBlob.accountKey", "azureBlob.accountKey"]),
            (blob("http://a.blob.example.org", "k"), None, &["azureBlob.accountKey"]),
            (blob("http://devstoreaccount1.blob.test:10000", "k"), None, none),
            (
                json!({"sourceKind": "AzureBlob", "azureBlob": {"url": "http://a.test/c", "sasToken": "s"}}),
                None,
                &["azureBlob.sasToken"],
            ),
            (
                json!({"sourceKind": "AzureBlob", "azureBlob": {"url": "http://a.test/devstoreaccount1", "sasToken": "s"}}),
                None,
                none,
            ),
            (
                json!({"sourceKind": "AzureBlob", "azureBlob": {"url": "http://a.test", "servicePrincipal": {
                    "clientId": "i", "tenantId": "t", "clientSecret": "s",
                }}}),
                None,
                &["azureBlob.servicePrincipal"],
            ),
            (blob("https://[2001:db8::1]/a", "k"), None, &["azureBlob.accountKey"]),
            (blob("https://10.0.0.1/a", ""), None, none),
            (blob("https://a.blob.example.org", "k"), None, none),
            (
                principal(json!({"clientCertificatePassword": "p"})),
                Some(false),
                &["azureBlob.servicePrincipal.clientCertificatePassword"],
            ),
            (principal(json!({"clientCertificatePassword": "p"})), Some(true), none),
            (principal(json!({"clientCertificate": "YQ==", "clientCertificatePassword": "p"})), None, none),
            (principal(json!({"clientSecret": "s"})), None, none),
            (principal(json!({})), None, &["azureBlob.servicePrincipal.clientSecret"]),
            (principal(json!({})), Some(false), none),
            (principal(json!({"clientId": "", "clientSecret": "s"})), None, &["azureBlob.servicePrincipal.clientId"]),
            (
                principal(json!({"clientSecret": "s", "clientCertificate": "YQ=="})),
                None,
                &["azureBlob.servicePrincipal.clientCertificate"],
            ),
            (
                json!({"sourceKind": "AzureBlob", "azureBlob": {"servicePrincipal": {"clientCertificateSendChain": false}}}),
                None,
                &[
                    "azureBlob.servicePrincipal.clientId",
                    "azureBlob.servicePrincipal.tenantId",
                    "azureBlob.servicePrincipal.clientSecret",
                ],
            ),
            (
                json!({"sourceKind": "AzureBlob", "azureBlob": {"accountKey": "k", "sasToken": "s", "managedIdentity": {}}}),
                None,
                &["azureBlob.sasToken", "azureBlob.managedIdentity"],
            ),
            (bucket(json!({"accessKey": "a"}), json!({"bucketSecretKey": "YQ=="})), None, none),
            (bucket(json!({"accessKey": "a"}), Value::Null), None, &["bucket.accessKey"]),
            (bucket(json!({"accessKey": "a"}), json!({})), Some(true), &["bucket.accessKey"]),
            (bucket(json!({"accessKey": "a"}), Value::Null), Some(false), none),
            (
                bucket(json!({}), json!({"bucketSecretKey": "YQ=="})),
                None,
                &["configurationProtectedSettings.bucketSecretKey"],
            ),
            (bucket(json!({"localAuthRef": "mine"}), Value::Null), None, none),
            (oci(json!({"insecure": true})), None, none),
            (oci(json!({"insecure": true, "tlsConfig": {}})), None, none),
            (oci(json!({"insecure": true, "tlsConfig": {}})), Some(true), &["ociRepository.insecure"]),
            (oci(json!({"insecure": true, "tlsConfig": {"privateKey": "YQ=="}})), None, &["ociRepository.insecure"]),
            (oci(json!({"insecure": true, "localAuthRef": "mine"})), None, &["ociRepository.insecure"]),
            (oci(json!({"insecure": false, "localAuthRef": "mine"})), None, none),
            (
                json!({"sourceKind": OCI, "ociRepository": {}, PROTECTED: {"bucketSecretKey": "YQ=="}}),
                None,
                &["configurationProtectedSettings.bucketSecretKey"],
            ),
        ] {
            assert_eq!(faults(own.clone(), before), wanted, "{own}");
        }
    }

    #[test]
    fn n1_only_a_source_by_tls_at_an_allowed_host_goes_through_the_gateway() {
        let list = |hosts: &str| {
            let mut faults = daemon::settings::Faults::default();
            let text = format!("[egress]\nhosts = {hosts}");
            let mut root = daemon::settings::Section::parse(&text, std::path::Path::new("/")).unwrap();
            Egress::read(root.section("egress", &mut faults), &mut faults)
        };
        let (none, some) = (list("[]"), list("[\"git.test:443\", \"*.corp.test:443\"]"));
        let told = |mut own: Value, egress: &Egress| {
            own[THROUGH_GATEWAY] = true.into();
            let mut faults = Vec::new();
            through_gateway(own.as_object().unwrap(), None, egress, &mut faults);
            faults.pop().map(|fault| fault.message)
        };
        let git = |url: &str| json!({"sourceKind": "GitRepository", "gitRepository": {"url": url}});
        let oci = |more: Value| {
            let mut source = more;
            source["url"] = "oci://r.corp.test/x".into();
            json!({"sourceKind": OCI, "ociRepository": source})
        };
        let blob = |more: Value| {
            let mut source = more;
            source["url"] = "https://b.corp.test".into();
            json!({"sourceKind": "AzureBlob", "azureBlob": source})
        };
        for good in [
            git("https://git.test/a"),
            git("https://GIT.test:443/a"),
            oci(json!({})),
            blob(json!({})),
            json!({"sourceKind": "Bucket", "bucket": {"url": "https://s3.corp.test", "insecure": true}}),
        ] {
            assert_eq!(told(good.clone(), &some), None, "{good}");
        }
        for (bad, why) in [
            (git("ssh://git@git.test/a"), "over ssh"),
            (git("git@git.test:a"), "over ssh"),
            (git("http://git.test/a"), "protected by TLS"),
            (oci(json!({"insecure": true})), "leave 'insecure' out"),
            (git("https://git.test:8443/a"), "does not reach git.test:8443"),
            (git("https://other.test/a"), "does not reach other.test:443"),
            (oci(json!({"useWorkloadIdentity": true})), "'useWorkloadIdentity' signs in"),
            (blob(json!({"managedIdentity": {"clientId": "i"}})), "'managedIdentity' signs in"),
        ] {
            let message = told(bad.clone(), &some).unwrap_or_default();
            assert!(message.contains(why), "{bad}: {message}");
        }
        assert!(told(git("https://git.test/a"), &none).unwrap().contains("[egress] hosts"));
        let mut faults = Vec::new();
        through_gateway(git("ssh://git.test/a").as_object().unwrap(), None, &none, &mut faults);
        assert!(faults.is_empty(), "{faults:?}");
    }

    #[test]
    fn n1_what_goes_through_the_gateway_can_be_changed_but_for_its_source_when_its_host_is_not_allowed_any_more() {
        let none = Egress::default();
        let of = |url: &str| json!({"sourceKind": "GitRepository", "gitRepository": {"url": url}, THROUGH_GATEWAY: true, "suspend": true});
        let told = |before: Value, own: Value| {
            let mut faults = Vec::new();
            through_gateway(own.as_object().unwrap(), before.as_object(), &none, &mut faults);
            faults.len()
        };
        let (here, mut direct) = ("https://git.test/a", of("https://git.test/a"));
        assert_eq!(told(of(here), of(here)), 0);
        assert_eq!(told(of("https://git.test/b"), of(here)), 1);
        direct[THROUGH_GATEWAY] = false.into();
        assert_eq!(told(direct, of(here)), 1);
    }

    #[test]
    fn g1_only_the_kind_of_source_that_is_named_is_there() {
        let faults = |own: Value, version: &str| {
            let (mut own, mut faults) = (own.as_object().unwrap().clone(), Vec::new());
            source(&mut own, None, version, &mut faults);
            (own, faults.into_iter().filter_map(|fault| fault.target).collect::<Vec<_>>())
        };
        let (own, none) = faults(json!({"gitRepository": {"url": "u"}, "bucket": {}}), "2025-04-01");
        assert!(none.is_empty() && own["sourceKind"] == "GitRepository" && !own.contains_key("bucket"));
        let both = json!({"sourceKind": "Bucket", "gitRepository": {"url": "u"}, "bucket": {"url": "u"}});
        assert_eq!(faults(both, "2025-04-01").1, ["properties.gitRepository"]);
        assert_eq!(faults(json!({}), "2025-04-01").1, ["properties.sourceKind"]);
        assert_eq!(faults(json!({"sourceKind": "AzureBlob"}), "2025-04-01").1, ["properties.azureBlob"]);
        let oci = json!({"sourceKind": "OCIRepository", "ociRepository": {"url": "u"}});
        assert_eq!(faults(oci.clone(), "2024-11-01").1, ["properties.sourceKind"]);
        assert!(faults(oci, "2024-04-01-preview").1.is_empty());
        let blob = json!({"sourceKind": "AzureBlob", "azureBlob": {"url": "u"}});
        assert_eq!(faults(blob.clone(), "2022-03-01").1, ["properties.sourceKind"]);
        assert!(faults(blob, "2022-07-01").1.is_empty());
        let unseen =
            json!({"sourceKind": "GitRepository", "gitRepository": {"url": "u"}, "ociRepository": {"url": "u"}});
        assert!(faults(unseen.clone(), "2024-11-01").1.is_empty());
        assert_eq!(faults(unseen, "2025-04-01").1, ["properties.ociRepository"]);
    }
}
