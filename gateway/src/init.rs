//! Makes the folder of a new gateway: a configuration that works as it is, with an authority for agents, the built-in
//! issuer, SQLite, and one service principal that owns the subscription.

use std::{
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use certs::{Authority, AuthorityError, Credentials, LoadError, Validity};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use url::Url;

use crate::{
    checks,
    files::{FileError, create_private_dir, write_private},
    guid,
    issuer::{
        KEYS_FILE, Keys, KeysError, MOUNT, PRINCIPALS_FILE, Principals, PrincipalsError, principals::SECRET_LIFE,
    },
};

/// The name of the configuration file.
pub const CONFIG_FILE: &str = "gateway.toml";
/// How long the authority is good for.
pub const AUTHORITY_DAYS: u32 = 3650;
/// How long the certificate of the gateway itself is good for, where it has none of another authority.
pub const SERVER_DAYS: u32 = 825;
/// Where resources are kept, in the folder.
const STORE_FILE: &str = "towline.db";
/// The key of protected settings, in the folder.
const STORE_KEY_FILE: &str = "store.key";
/// The owner's name.
const OWNER: &str = "owner";

/// What is asked for.
pub struct Plan {
    /// The folder; nothing of ours may be in it yet.
    pub directory: PathBuf,
    /// How users and agents address the gateway: `https://host[:port]`.
    pub url: String,
    /// The address that the gateway listens on.
    pub listen: SocketAddr,
    /// The operators' listener.
    pub admin: SocketAddr,
    /// Certificate chain and key of a public authority, in place of one of our own.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// Why nothing was made.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// `--url` is not a usable address.
    #[error("--url {0:?} must be https://<host>[:<port>], as users and agents will write it")]
    Url(String),
    /// There is one already.
    #[error("{} is there already: it is a gateway's, and stays as it is; choose another --directory", .0.display())]
    Exists(PathBuf),
    /// The certificate authority cannot be made, or cannot issue a certificate.
    #[error("cannot make the certificate authority, or issue a certificate")]
    Authority(#[from] AuthorityError),
    /// Files of certificates.
    #[error("cannot read or write the certificates")]
    Certificates(#[from] LoadError),
    /// The certificate or key of `--certificate` and `--key`.
    #[error("--certificate and --key cannot be used: {0}")]
    Given(String),
    /// A file or folder cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The service principal of the owner cannot be made.
    #[error("cannot make the owner's service principal")]
    Principals(#[from] PrincipalsError),
    /// The key that tokens are signed with.
    #[error("cannot make the issuer's key")]
    Keys(#[from] KeysError),
    /// The operating system gave no random bytes.
    #[error(transparent)]
    Random(#[from] guid::NoRandom),
}

/// Makes it; what to sign in with, once: the secret is kept nowhere else. Relative paths are relative to the current
/// directory, and are absolute in what is written.
pub fn init(plan: &Plan) -> Result<Value, InitError> {
    let absolute = |path: &Path| std::path::absolute(path).map_err(FileError::io("resolve", path));
    let directory = absolute(&plan.directory)?;
    let given = match &plan.certificate {
        Some((certificate, key)) => Some((absolute(certificate)?, absolute(key)?)),
        None => None,
    };
    let host = Url::parse(&plan.url)
        .ok()
        .filter(|url| {
            url.scheme() == "https" && url.path() == "/" && url.query().is_none() && url.username().is_empty()
        })
        .and_then(|url| url.host_str().map(str::to_owned))
        .ok_or_else(|| InitError::Url(plan.url.clone()))?;
    let url = plan.url.trim_end_matches('/');
    let file = directory.join(CONFIG_FILE);
    let (ca, issuer) = (directory.join("ca"), directory.join("issuer"));
    // Also what the configuration will name and the first start would make: it is another gateway's.
    let names = [STORE_FILE, STORE_KEY_FILE, "tls"].map(|name| directory.join(name));
    if let Some(there) = [&file, &ca, &issuer].into_iter().chain(&names).find(|path| path.exists()) {
        return Err(InitError::Exists(there.clone()));
    }
    if let Some((certificate, key)) = &given {
        let own = Credentials::load(certificate, key)?;
        checks::certificate_for(&own, &host).and_then(|()| checks::private(key)).map_err(InitError::Given)?;
    }
    create_private_dir(&directory)?;
    let authority = Authority::create(&format!("Towline at {host}"), Validity::days(AUTHORITY_DAYS))?;
    create_private_dir(&ca)?;
    authority.save(&ca)?;
    let ours = given.is_none();
    let (certificate, key) = match given {
        Some(files) => files,
        None => {
            let tls = directory.join("tls");
            create_private_dir(&tls)?;
            let files = (tls.join("tls.crt"), tls.join("tls.key"));
            // By the second name the gateway reaches itself, where its public one leads elsewhere.
            let own = own_address(plan).to_string();
            let names = [host.trim_matches(['[', ']']), own.as_str()];
            authority.issue_server(&names, Validity::days(SERVER_DAYS))?.save(&files.0, &files.1)?;
            files
        }
    };
    let (tenant, subscription, owner) = (guid::random()?, guid::random()?, guid::random()?);
    create_private_dir(&issuer)?;
    Keys::load_or_create(&issuer.join(KEYS_FILE))?;
    let made = Principals::edit(&issuer.join(PRINCIPALS_FILE), |principals| {
        principals.create_as(OWNER, owner.clone(), SECRET_LIFE, SystemTime::now())
    })?;
    let ids = Ids { tenant: &tenant, subscription: &subscription, owner: &owner };
    let within = |path: &Path| path.strip_prefix(&directory).unwrap_or(path).to_owned();
    let text = config(plan, url, &ids, &within(&certificate), &within(&key), ours);
    write_private(&file, text.as_bytes())?;
    Ok(json!({
        "url": url,
        "config": file,
        "ca": ours.then(|| ca.join("ca.crt")),
        "tenant": tenant,
        "subscription": subscription,
        "clientId": made.0.client_id,
        "clientSecret": made.1.secret.expose_secret(),
        "secretExpiresInDays": SECRET_LIFE.as_secs() / Duration::from_secs(86_400).as_secs(),
    }))
}

/// Where the gateway reaches itself.
fn own_address(plan: &Plan) -> IpAddr {
    match plan.listen.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

struct Ids<'a> {
    tenant: &'a str,
    subscription: &'a str,
    owner: &'a str,
}

/// The configuration file. Paths are relative to it.
fn config(plan: &Plan, url: &str, ids: &Ids<'_>, certificate: &Path, key: &Path, ours: bool) -> String {
    // A TOML basic string is a JSON one.
    let within = |path: &Path| json!(path).to_string();
    let Ids { tenant, subscription, owner } = ids;
    let mut text = String::new();
    let mut line = |args: std::fmt::Arguments<'_>| {
        let _ = writeln!(text, "{args}");
    };
    line(format_args!(
        "# Made by `towline-gateway init`. `towline-gateway check-config` names every fault; SIGHUP reads it again.\n"
    ));
    line(format_args!("[listen]\npublic = \"{}\"        # TCP, and UDP for agents over QUIC", plan.listen));
    line(format_args!("admin = \"{}\"       # health, metrics, drain; for operators alone\n", plan.admin));
    line(format_args!("[tls]\ncertificate_file = {}\nkey_file = {}\n", within(certificate), within(key)));
    line(format_args!("[agents]                         # the authority that clusters' certificates come from"));
    line(format_args!("ca_file = \"ca/ca.crt\"\nauthority_dir = \"ca\"\n"));
    line(format_args!("[api]\nurl = {}", json!(url)));
    if ours {
        line(format_args!("ca_file = \"ca/ca.crt\"            # what clients check [tls] against"));
    }
    line(format_args!(
        "tenant = \"{tenant}\"\nstore_file = \"{STORE_FILE}\"        # or postgres_url_file, for several gateways"
    ));
    line(format_args!(
        "store_key_file = \"{STORE_KEY_FILE}\"     # made at the first start; keep it apart from backups of the store"
    ));
    line(format_args!(
        "owners = [\"{owner}\"]\n\n[[api.subscriptions]]\nid = \"{subscription}\"\nname = \"default\"\n"
    ));
    line(format_args!("[issuer]                         # the built-in one\nstate_dir = \"issuer\"\n"));
    line(format_args!("[[issuers]]                      # who may issue users' tokens; add your own beside it"));
    line(format_args!(
        "name = \"towline\"\nurl = {}\nusername_claim = \"preferred_username\"",
        json!(format!("{url}{MOUNT}"))
    ));
    if ours {
        let keys = format!("https://{}{MOUNT}/keys", SocketAddr::new(own_address(plan), plan.listen.port()));
        line(format_args!("jwks_url = {}\nca_file = \"ca/ca.crt\"", json!(keys)));
    }
    line(format_args!("\n[audit]\nfile = \"audit.jsonl\""));
    text
}

/// A folder with a configuration for tests; its file.
#[cfg(test)]
pub(crate) fn made(dir: &Path) -> PathBuf {
    let plan = Plan {
        directory: dir.to_owned(),
        url: "https://gateway.example.org:8443".to_owned(),
        listen: "127.0.0.1:0".parse().unwrap(),
        admin: "127.0.0.1:0".parse().unwrap(),
        certificate: None,
    };
    init(&plan).unwrap();
    dir.join(CONFIG_FILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn plan(directory: &Path) -> Plan {
        Plan {
            directory: directory.to_owned(),
            url: "https://gateway.example.org:8443/".to_owned(),
            listen: "0.0.0.0:8443".parse().unwrap(),
            admin: "127.0.0.1:9090".parse().unwrap(),
            certificate: None,
        }
    }

    #[test]
    fn what_is_made_has_no_faults_and_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("towline");
        let made = init(&plan(&at)).unwrap();
        let config = Config::load(&at.join(CONFIG_FILE)).unwrap();
        let api = config.api.clone().unwrap();
        assert_eq!(api.url, "https://gateway.example.org:8443");
        assert_eq!(made["subscription"], api.subscriptions[0].id.as_str());
        crate::checks::files(&config).unwrap();
        let text = std::fs::read_to_string(at.join(CONFIG_FILE)).unwrap();
        assert!(!text.contains(made["clientSecret"].as_str().unwrap()), "the secret is told once and kept nowhere");
        assert!(matches!(init(&plan(&at)), Err(InitError::Exists(_))));
        assert_eq!(std::fs::read_to_string(at.join(CONFIG_FILE)).unwrap(), text);
    }

    #[test]
    fn an_address_that_is_none_makes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for bad in ["gateway.example.org", "http://gateway.example.org", "https://gateway.example.org/x", "https://"] {
            let plan = Plan { url: bad.to_owned(), ..plan(&dir.path().join("t")) };
            assert!(matches!(init(&plan), Err(InitError::Url(_))), "{bad}");
        }
        assert!(!dir.path().join("t").exists());
    }
}
