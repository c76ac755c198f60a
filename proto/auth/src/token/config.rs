//! An issuer in a configuration file, and its conversion: everything is checked once, and all faults are told at once.

mod keys;
mod raw;

use std::{collections::BTreeMap, path::Path, time::Duration};

use certs::Roots;
use daemon::settings::{self, Section};
use url::{Host, Url};

pub use self::keys::ISSUER_KEYS;
pub use self::raw::{Fault, Faults, IssuerKind, OneOrMore, Pop, RawIssuer, Tokens};
use super::{
    error::KeySetError,
    jwk::{Algorithm, KeySet},
    names,
};

/// Bytes of a file of keys.
const KEYS_FILE_BYTES: u64 = 1024 * 1024;
/// The largest clock skew that can be configured.
const SKEW_MAX: Duration = Duration::from_secs(600);

/// Where the user name comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Username {
    Claim(String),
    /// `upn`, or `oid` where there is none (docs/features.md A3).
    Entra,
}

/// Where the keys come from.
#[derive(Debug, Clone)]
pub(super) enum KeySource {
    Static(KeySet),
    Discovered,
    Pinned(KeySet),
}

/// Where Kubernetes keeps the id of an issuer's user that role assignments name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectId {
    /// In the user's `uid`.
    Uid,
    /// In the extra of this key.
    Extra(String),
}

/// A valid issuer.
#[derive(Debug, Clone)]
pub struct Issuer {
    pub(super) name: String,
    pub(super) url: String,
    pub(super) audiences: Vec<String>,
    pub(super) api_audiences: Vec<String>,
    pub(super) authorized_parties: Vec<String>,
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) roots: Option<Roots>,
    pub(super) keys: KeySource,
    pub(super) jwks_url: Option<Url>,
    pub(super) http_loopback: bool,
    pub(super) keys_max_age: Duration,
    pub(super) username: Username,
    pub(super) username_prefix: String,
    pub(super) groups_claim: Option<String>,
    pub(super) groups_prefix: String,
    pub(super) uid_claim: Option<String>,
    pub(super) extra: BTreeMap<String, String>,
    pub(super) required: Vec<(String, Vec<String>)>,
    pub(super) skew: Duration,
    pub(super) pop: Pop,
    pub(super) pop_validity: Duration,
    pub(super) tokens: Tokens,
    pub(super) reserved: Vec<String>,
    /// Prefixes that other issuers' user names begin with, where this one has none.
    pub(super) others_names: Vec<String>,
    /// The same of groups.
    pub(super) others_groups: Vec<String>,
    /// Whether the two prefixes were written down.
    prefixes_said: (bool, bool),
}

impl Issuer {
    /// Its name in logs, audit and grants.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its user names begin with.
    pub fn username_prefix(&self) -> &str {
        &self.username_prefix
    }

    /// Where a user, as Kubernetes knows them, has the id that role assignments call them by: a SubjectAccessReview has
    /// the user and not the token. `None`: nowhere.
    pub fn object_id(&self) -> Option<ObjectId> {
        let claim = match &self.username {
            Username::Entra => "oid",
            Username::Claim(_) => "sub",
        };
        if self.uid_claim.as_deref() == Some(claim) {
            return Some(ObjectId::Uid);
        }
        let key = self.extra.iter().find(|(_, from)| *from == claim).map(|(key, _)| key.clone());
        key.map(ObjectId::Extra)
    }

    /// The issuer's URL, which its tokens have as `iss`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether its keys are those that are written down here, or vouched for by one of them: whoever answers at its
    /// address cannot bring others.
    pub fn has_own_keys(&self) -> bool {
        !matches!(self.keys, KeySource::Discovered)
    }

    /// Checks a list of issuers, each alone and all together.
    ///
    /// # Errors
    /// All faults of all of them.
    pub fn all(raws: Vec<RawIssuer>) -> Result<Vec<Self>, Faults> {
        let (mut issuers, mut faults) = (Vec::<Self>::new(), Vec::new());
        for raw in raws {
            match Self::try_from(raw) {
                Ok(issuer) => {
                    issuers.iter().for_each(|other| apart(other, &issuer, &mut faults));
                    issuers.push(issuer);
                }
                Err(Faults(more)) => faults.extend(more),
            }
        }
        let foreign: Vec<(String, String)> =
            issuers.iter().map(|issuer| (issuer.username_prefix.clone(), issuer.groups_prefix.clone())).collect();
        for issuer in &mut issuers {
            let others = |prefix: &String, own: &String| (own.is_empty() && !prefix.is_empty()).then(|| prefix.clone());
            let (users, groups) = (&issuer.username_prefix, &issuer.groups_prefix);
            issuer.others_names = foreign.iter().filter_map(|(prefix, _)| others(prefix, users)).collect();
            issuer.others_groups = foreign.iter().filter_map(|(_, prefix)| others(prefix, groups)).collect();
        }
        if faults.is_empty() { Ok(issuers) } else { Err(Faults(faults)) }
    }

    /// Whether its address is that of a gateway's own issuer.
    fn is_own(&self) -> bool {
        Url::parse(&self.url).is_ok_and(|url| url.path() == OWN_ISSUER_PATH)
    }

    /// Reads `[[issuers]]` of a settings file, as written and as checked.
    pub fn read_all(root: &mut Section, faults: &mut settings::Faults) -> (Vec<RawIssuer>, Vec<Self>) {
        let required =
            [("name", "its name in logs, audit and grants"), ("url", "its address, as tokens have it in iss")];
        let sections = root.sections("issuers", faults);
        let mut raws: Vec<RawIssuer> =
            sections.into_iter().filter_map(|section| section.into(&required, faults)).collect();
        raws.iter_mut().for_each(|raw| raw.resolve_paths(root.base()));
        match Self::all(raws.clone()) {
            Ok(issuers) => (raws, issuers),
            Err(Faults(found)) => {
                for Fault { issuer, key, message } in found {
                    faults.push(format!("issuers ({issuer}).{key}"), message);
                }
                (raws, Vec::new())
            }
        }
    }
}

/// The path of the address of a gateway's own issuer.
pub const OWN_ISSUER_PATH: &str = "/.towline/issuer";

/// Two issuers must not give the same names without anybody having said so. A prefix that another one begins with says
/// nothing: what an issuer puts behind the shorter one is a name of the longer one. The gateway's own issuer may be
/// without a prefix beside others, because its tokens with names that begin with another issuer's prefix are refused
/// (see [`Issuer::all`]).
fn apart(one: &Issuer, other: &Issuer, faults: &mut Vec<Fault>) {
    let mut fault = |key, message| faults.push(Fault { issuer: other.name.clone(), key, message });
    if one.name == other.name {
        fault("name", "is there twice".to_owned());
    }
    if one.url == other.url {
        fault("url", format!("is the url of issuer {:?} too", one.name));
    }
    let mut prefixes = |key, (a, b): (&str, &str), both_said: bool| {
        let message = if a == b && (a.is_empty() || !both_said) {
            format!(
                "gives the same names as issuer {:?}; set different prefixes, or the same {key} explicitly on both, not empty",
                one.name
            )
        } else if a != b && (a.is_empty() && !one.is_own() || b.is_empty() && !other.is_own()) {
            let (bare, prefixed, prefix) = if a.is_empty() { (one, other, b) } else { (other, one, a) };
            format!(
                "issuer {:?} has no {key}, so that it could give the names of issuer {:?}, which begin with {prefix:?}; set one that none of the two begins with",
                bare.name, prefixed.name
            )
        } else if a != b && !a.is_empty() && !b.is_empty() && (a.starts_with(b) || b.starts_with(a)) {
            format!(
                "{b:?} and {a:?} of issuer {:?} begin alike, so that one issuer could give the other's names; set prefixes of which none begins with the other",
                one.name
            )
        } else {
            return;
        };
        fault(key, message);
    };
    let said = (&one.prefixes_said, &other.prefixes_said);
    prefixes("username_prefix", (&one.username_prefix, &other.username_prefix), said.0.0 && said.1.0);
    if one.groups_claim.is_some() && other.groups_claim.is_some() {
        prefixes("groups_prefix", (&one.groups_prefix, &other.groups_prefix), said.0.1 && said.1.1);
    }
}

/// Collects faults while values are read.
struct Check {
    issuer: String,
    faults: Vec<Fault>,
}

impl Check {
    fn fault(&mut self, key: &'static str, message: impl Into<String>) {
        self.faults.push(Fault { issuer: self.issuer.clone(), key, message: message.into() });
    }

    fn duration(&mut self, key: &'static str, raw: Option<String>, default: Duration, max: Duration) -> Duration {
        match raw.as_deref().map(settings::duration) {
            None => default,
            Some(Ok(value)) if value <= max => value,
            Some(_) => {
                let most = settings::spell(max);
                self.fault(key, format!("expected a duration such as 30s, 15m or 24h, at most {most}"));
                default
            }
        }
    }

    fn address(&mut self, key: &'static str, text: &str, http_loopback: bool) -> Option<Url> {
        match acceptable_url(text, http_loopback) {
            Ok(url) if key == "url" && url.query().is_some() => {
                self.fault(key, "must have no query");
                None
            }
            Ok(url) => Some(url),
            Err(message) => {
                self.fault(key, message);
                None
            }
        }
    }

    fn keys(&mut self, key: &'static str, path: Option<&Path>) -> Option<KeySet> {
        match read_keys(path?) {
            Ok(set) => Some(set),
            Err(message) => {
                self.fault(key, format!("{}: {message}", path?.display()));
                None
            }
        }
    }

    fn prefix(&mut self, key: &'static str, raw: Option<String>) -> String {
        let prefix = raw.unwrap_or_default();
        if names::has_forbidden(&prefix) || prefix.starts_with(' ') || prefix.len() > 128 {
            self.fault(key, "is too long or has control characters or a space in front");
        }
        prefix
    }

    fn claim(&mut self, key: &'static str, name: Option<String>) -> Option<String> {
        if name.as_deref() == Some("") {
            self.fault(key, "is empty");
        }
        name
    }
}

/// https, or http on loopback where allowed; no user and no fragment.
pub(super) fn acceptable_url(text: &str, http_loopback: bool) -> Result<Url, &'static str> {
    let url = Url::parse(text).map_err(|_| "expected an address such as https://issuer.example.org")?;
    let loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => return Err("expected an address with a host"),
    };
    match url.scheme() {
        "https" => {}
        "http" if http_loopback && loopback => {}
        "http" if loopback => return Err("http is taken on a loopback address only with allow_http_loopback = true"),
        _ => return Err("must begin with https://"),
    }
    if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
        return Err("must have no user and no fragment");
    }
    Ok(url)
}

fn read_keys(path: &Path) -> Result<KeySet, String> {
    let unreadable = |e: std::io::Error| format!("cannot be read ({})", e.kind());
    if std::fs::metadata(path).map_err(unreadable)?.len() > KEYS_FILE_BYTES {
        return Err(format!("is larger than {KEYS_FILE_BYTES} bytes"));
    }
    let bytes = std::fs::read(path).map_err(unreadable)?;
    let set = KeySet::read(&bytes).map_err(|e: KeySetError| format!("is no JWKS document: {e}"))?;
    match set.left_out.1 {
        Some(why) => Err(format!("{} of its keys cannot be used: {why}", set.left_out.0)),
        None if set.keys.is_empty() => Err("has no key".to_owned()),
        None => Ok(set),
    }
}

impl TryFrom<RawIssuer> for Issuer {
    type Error = Faults;

    fn try_from(raw: RawIssuer) -> Result<Self, Faults> {
        let mut check = Check { issuer: raw.name.clone(), faults: Vec::new() };
        let kind = raw.kind.unwrap_or_default();
        identity_of(&raw, kind, &mut check);
        let keys = keys_of(&raw, &mut check);
        let roots = raw.ca_file.as_deref().and_then(|path| match Roots::load(path) {
            Ok(roots) => Some(roots),
            Err(e) => {
                check.fault("ca_file", e.to_string());
                None
            }
        });
        let prefixes_said = (raw.username_prefix.is_some(), raw.groups_prefix.is_some());
        let day = Duration::from_secs(86_400);
        let this = Self {
            algorithms: algorithms_of(&raw.algorithms, &mut check),
            jwks_url: raw.jwks_url.as_deref().and_then(|u| check.address("jwks_url", u, raw.allow_http_loopback)),
            keys_max_age: check.duration("keys_max_age", raw.keys_max_age, day, 30 * day),
            username: username_of(raw.username_claim, kind, &mut check),
            username_prefix: check.prefix("username_prefix", raw.username_prefix),
            groups_claim: raw.groups_claim.map_or_else(|| Some("groups".to_owned()), |c| (!c.is_empty()).then_some(c)),
            groups_prefix: check.prefix("groups_prefix", raw.groups_prefix),
            uid_claim: match raw.uid_claim.as_deref() {
                None => Some("sub".to_owned()),
                Some("") => None,
                Some(_) => check.claim("uid_claim", raw.uid_claim),
            },
            extra: extra_of(raw.extra, kind, &mut check),
            required: required_of(raw.required_claims, kind, &raw.url, &mut check),
            skew: check.duration("clock_skew", raw.clock_skew, Duration::from_secs(30), SKEW_MAX),
            pop: raw.pop.unwrap_or_default(),
            pop_validity: check.duration("pop_validity", raw.pop_validity, Duration::from_secs(900), day),
            tokens: raw.tokens.unwrap_or_default(),
            name: raw.name,
            url: raw.url,
            audiences: raw.audiences,
            api_audiences: raw.api_audiences,
            authorized_parties: raw.authorized_parties,
            roots,
            keys,
            http_loopback: raw.allow_http_loopback,
            reserved: raw.allow_reserved,
            others_names: Vec::new(),
            others_groups: Vec::new(),
            prefixes_said,
        };
        if check.faults.is_empty() { Ok(this) } else { Err(Faults(check.faults)) }
    }
}

fn identity_of(raw: &RawIssuer, kind: IssuerKind, check: &mut Check) {
    let plain = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if raw.name.is_empty() || raw.name.len() > 64 || !plain(&raw.name) {
        check.fault("name", "expected 1 to 64 of the characters a-z A-Z 0-9 - _ .");
    }
    let url = check.address("url", &raw.url, raw.allow_http_loopback);
    for (key, audiences) in [("audiences", &raw.audiences), ("api_audiences", &raw.api_audiences)] {
        if audiences.iter().any(String::is_empty) {
            check.fault(key, "has an empty entry");
        }
    }
    if raw.allow_reserved.iter().any(|name| !names::is_reserved(name)) {
        check.fault("allow_reserved", "every entry must begin with system:");
    }
    if let Some(segments) = url.filter(|_| kind == IssuerKind::Entra).as_ref().and_then(Url::path_segments) {
        let tenants = ["common", "organizations", "consumers"];
        if segments.into_iter().any(|segment| tenants.iter().any(|t| segment.eq_ignore_ascii_case(t))) {
            check.fault("url", "must name one tenant; common, organizations and consumers stand for many");
        }
    }
}

fn keys_of(raw: &RawIssuer, check: &mut Check) -> KeySource {
    let keys = check.keys("keys_file", raw.keys_file.as_deref());
    let pinned = check.keys("pinned_keys_file", raw.pinned_keys_file.as_deref());
    if raw.keys_file.is_some() && (raw.pinned_keys_file.is_some() || raw.jwks_url.is_some()) {
        check.fault("keys_file", "stands alone: remove pinned_keys_file and jwks_url, or keys_file");
    }
    match (keys, pinned) {
        (Some(keys), _) => KeySource::Static(keys),
        (None, Some(pinned)) => KeySource::Pinned(pinned),
        (None, None) => KeySource::Discovered,
    }
}

fn algorithms_of(names: &[String], check: &mut Check) -> Vec<Algorithm> {
    if names.is_empty() {
        return vec![Algorithm::Rs256, Algorithm::Es256];
    }
    let mut out = Vec::new();
    for name in names {
        match Algorithm::from_name(name) {
            Some(algorithm) => out.push(algorithm),
            None => {
                let known = Algorithm::ALL.map(Algorithm::name).join(", ");
                check.fault("algorithms", format!("{name:?} is not one of {known}"));
            }
        }
    }
    out
}

fn username_of(claim: Option<String>, kind: IssuerKind, check: &mut Check) -> Username {
    match (check.claim("username_claim", claim), kind) {
        (Some(claim), _) => Username::Claim(claim),
        (None, IssuerKind::Entra) => Username::Entra,
        (None, IssuerKind::Oidc) => Username::Claim("sub".to_owned()),
    }
}

fn extra_of(mut extra: BTreeMap<String, String>, kind: IssuerKind, check: &mut Check) -> BTreeMap<String, String> {
    if kind == IssuerKind::Entra {
        extra.entry("oid".to_owned()).or_insert_with(|| "oid".to_owned());
    }
    for (key, claim) in &extra {
        let domain = key.split('/').next().unwrap_or_default();
        let ours = ["towline.io", "kubernetes.io", "k8s.io"]
            .iter()
            .any(|d| domain.strip_suffix(d).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')));
        if key.is_empty() || key.len() > 128 || key.bytes().any(|b| !b.is_ascii_graphic() || b.is_ascii_uppercase()) {
            check.fault("extra", format!("key {key:?} must be of visible ASCII characters without upper case"));
        } else if ours && key.contains('/') {
            check.fault("extra", format!("key {key:?} is reserved"));
        }
        if claim.is_empty() {
            check.fault("extra", format!("the claim of {key:?} is empty"));
        }
    }
    extra
}

fn required_of(
    raw: BTreeMap<String, OneOrMore>,
    kind: IssuerKind,
    url: &str,
    check: &mut Check,
) -> Vec<(String, Vec<String>)> {
    let mut out = Vec::new();
    for (claim, values) in raw {
        let values = match values {
            OneOrMore::One(value) => vec![value],
            OneOrMore::More(values) => values,
        };
        if values.is_empty() || claim.is_empty() {
            check.fault("required_claims", format!("{claim:?} needs a name and at least one value"));
        }
        out.push((claim, values));
    }
    // Entra: the tenant in the claim must be the tenant in the issuer's address (tenant confusion).
    let tenant = url.trim_end_matches('/').trim_end_matches("/v2.0").rsplit('/').next().unwrap_or_default();
    if kind == IssuerKind::Entra && tenant.len() == 36 && !out.iter().any(|(claim, _)| claim == "tid") {
        out.push(("tid".to_owned(), vec![tenant.to_owned()]));
    }
    out
}

#[cfg(test)]
mod tests;
