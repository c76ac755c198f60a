//! What must hold for a gateway to start: one list, gone through by the start before it makes or binds anything, and by
//! `check-config`. Neither can find a fault that the other does not see. Nothing here changes a file.

use std::{
    io,
    net::{TcpListener, UdpSocket},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::Arc,
    time::SystemTime,
};

use auth::token::{self, Direct, RawIssuer, Verifier};
use certs::{Bundle, Credentials, Roots};
use daemon::{
    chain,
    settings::{BadFile, Faults},
};
use url::Url;

use crate::{
    catalogue::Edition,
    config::{Config, api::Api},
    files::writable_folder,
    issuer::Issuer,
    issuer_state,
    store::{
        Store,
        look::Found,
        protect::{ProtectError, Protector},
    },
    trust::{Trust, TrustError},
};

/// A check notes what it finds.
type Check = fn(&Config, &mut Faults);

/// What is looked at of files and addresses, in order. The store is looked at after them.
const CHECKS: [Check; 9] = [
    certificates,
    certificate_name,
    certificate_authority,
    private_keys,
    issuers,
    built_in_issuer,
    catalogue,
    addresses,
    replica,
];
/// What a reload takes as well.
const RELOADED: [Check; 3] = [certificate_name, certificate_authority, private_keys];

/// The whole list.
///
/// # Errors
/// Every fault, each with the setting that it is about.
pub async fn all(config: &Config) -> Result<(), BadFile> {
    let mut faults = of(config, &CHECKS);
    if let Some(api) = &config.api {
        store(config, api, &mut faults).await;
    }
    found(config, faults)
}

/// The list without the store.
///
/// # Errors
/// As [`all`].
pub fn files(config: &Config) -> Result<(), BadFile> {
    found(config, of(config, &CHECKS))
}

/// What of the list is about settings that a reload takes.
///
/// # Errors
/// As [`all`].
pub fn reloaded(config: &Config) -> Result<(), BadFile> {
    found(config, of(config, &RELOADED))
}

fn of(config: &Config, checks: &[Check]) -> Faults {
    let mut faults = Faults::default();
    checks.iter().for_each(|check| check(config, &mut faults));
    faults
}

fn found(config: &Config, faults: Faults) -> Result<(), BadFile> {
    if faults.is_empty() {
        return Ok(());
    }
    Err(faults.of(config.file.as_deref().unwrap_or(Path::new("the configuration"))))
}

/// Certificates, keys and authorities can be read and belong together.
fn certificates(config: &Config, faults: &mut Faults) {
    if let Err(error) = Trust::load(config) {
        faults.push("tls", chain(&error));
    }
}

/// The certificate of `[tls]` is one for the host of `[api] url`, or clients would refuse it.
fn certificate_name(config: &Config, faults: &mut Faults) {
    let host = config.api.as_ref().and_then(|api| Url::parse(&api.url).ok());
    let host = host.as_ref().and_then(Url::host_str);
    // Files that cannot be read are another check's.
    let own = Credentials::load(&config.tls.certificate_file, &config.tls.key_file);
    if config.listen.tls_ends_before {
        return;
    }
    if let (Some(host), Ok(own)) = (host, own)
        && let Err(why) = certificate_for(&own, host)
    {
        faults.push("tls.certificate_file", why);
    }
}

/// The certificate of `[tls]` is of an authority in `[api] ca_file`. Users' kubeconfigs and agents get that file from the
/// gateway and trust nothing else, so they would refuse every connection. Only another authority is a fault: when the
/// certificate is valid, and for what, is not looked at here.
fn certificate_authority(config: &Config, faults: &mut Faults) {
    let Some(api) = &config.api else { return };
    // In kubeconfigs and agents an empty file stands for what their machines trust.
    let Some(file) = api.ca_file.as_ref().filter(|_| api.ca.as_ref().is_some_and(|ca| !ca.is_empty())) else { return };
    // Files that cannot be read are another check's.
    let own = Credentials::load(&config.tls.certificate_file, &config.tls.key_file);
    let Some(own) = own.ok().filter(|_| !config.listen.tls_ends_before) else { return };
    // A self-signed certificate that is trusted itself needs no authority.
    if Bundle::read(file).is_ok_and(|trusted| trusted.holds(&own.chain()[0])) {
        return;
    }
    match Roots::load(file) {
        Err(error) => faults.push("api.ca_file", error),
        Ok(roots) if roots.are_strangers_to_server(&own, SystemTime::now()) => faults.push(
            "tls.certificate_file",
            format_args!(
                "the certificate is of no authority in {} ([api] ca_file), which is all that users' kubeconfigs and agents \
                 trust: they would refuse it. Put the certificate's authority into that file, or remove ca_file if users' \
                 machines and clusters trust that authority; certificates between the authority and this one belong in \
                 certificate_file, after it; behind a balancer that ends TLS and shows a certificate of its own, set \
                 [listen] tls_ends_before = true",
                file.display()
            ),
        ),
        Ok(_) => {}
    }
}

/// Files of private keys, passwords and secrets are readable by nobody else.
fn private_keys(config: &Config, faults: &mut Faults) {
    let authority = config.agents.authority.as_ref().map(|files| ("agents.authority_dir", files.key.as_path()));
    let secrets = config.api.iter().flat_map(|api| &api.secret_files);
    let secrets = secrets.map(|(key, path)| (*key, path.as_path()));
    for (key, path) in std::iter::once(("tls.key_file", config.tls.key_file.as_path())).chain(authority).chain(secrets)
    {
        if let Err(why) = private(path) {
            faults.push(key, why);
        }
    }
}

/// Why there is no verifier for the configuration's issuers.
#[derive(Debug, thiserror::Error)]
pub enum IssuersError {
    /// Settings of issuers.
    #[error("{0}")]
    Settings(String),
    /// Their certificate authorities.
    #[error(transparent)]
    Trust(#[from] TrustError),
}

/// A verifier for a configuration's issuers.
///
/// # Errors
/// When a setting of theirs, or a file that it names, is not usable.
pub fn verifier(issuers: &[RawIssuer]) -> Result<Arc<Verifier>, IssuersError> {
    let issuers = token::Issuer::all(issuers.to_vec()).map_err(|faults| IssuersError::Settings(faults.to_string()))?;
    Ok(Arc::new(Verifier::new(issuers, Arc::new(Direct)).map_err(TrustError::from)?))
}

/// Whoever issues users' tokens can be asked for keys.
fn issuers(config: &Config, faults: &mut Faults) {
    if let Err(error) = verifier(&config.dynamic.issuers) {
        faults.push("issuers", chain(&error));
    }
}

/// The folder of the built-in issuer can be used, and has its signing key where there are users or sign-ins.
fn built_in_issuer(config: &Config, faults: &mut Faults) {
    let Some(own) = &config.issuer else { return };
    // A shared store has what it knows, or takes it over.
    let looked = match issuer_state::shared(config) {
        Some(_) => Issuer::look_at_copy(&own.state_dir),
        None => Issuer::look(&own.state_dir),
    };
    if let Err(error) = looked {
        faults.push("issuer.state_dir", chain(&error));
    }
}

/// The catalogue's folder can be read, and its index and signatures are well-formed. Whether the signatures are right is
/// for clusters to say.
fn catalogue(config: &Config, faults: &mut Faults) {
    let folder = config.api.as_ref().and_then(|api| api.catalogue_dir.as_deref());
    if let Some(Err(error)) = folder.map(Edition::read) {
        faults.push("api.catalogue_dir", chain(&error));
    }
}

/// The addresses are this machine's. One that is in use is a running gateway's, and the right to a low port is a
/// service manager's to give, which an operator who runs `check-config` has not.
fn addresses(config: &Config, faults: &mut Faults) {
    let listen = &config.listen;
    let tcp = [("listen.public", listen.public), ("listen.admin", listen.admin)];
    let tcp = tcp.map(|(key, address)| (key, address, TcpListener::bind(address).map(drop)));
    let udp = ("listen.tunnel", listen.tunnel.unwrap_or(listen.public));
    let udp = (udp.0, udp.1, UdpSocket::bind(udp.1).map(drop));
    for (key, address, bound) in tcp.into_iter().chain([udp]) {
        match bound {
            Err(error) if !matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied) => {
                faults.push(key, format_args!("{address} cannot be listened on: {error}"));
            }
            _ => {}
        }
    }
}

/// Other replicas can dial this one, and are known by certificates of an authority that all of them have.
fn replica(config: &Config, faults: &mut Faults) {
    let Some(replicas) = &config.replicas else { return };
    if replicas.address.is_none() {
        faults.push(
            "replicas.address",
            "is missing: the host and port that other replicas dial, for listen has no specific address (or --replica-address)",
        );
    }
    if config.agents.authority.is_none() {
        faults.push(
            "replicas",
            "needs [agents] authority_dir, the same at all replicas: their certificates for one another are of that authority",
        );
    }
    if let Err(error) = TcpListener::bind(replicas.listen).map(drop)
        && !matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied)
    {
        faults.push("replicas.listen", format_args!("{} cannot be listened on: {error}", replicas.listen));
    }
}

/// The store can be opened, is whole, is of no newer program, and its key file is the one that it was used with.
async fn store(config: &Config, api: &Api, faults: &mut Faults) {
    let url = api.store.url();
    let key = if api.store_key_file.exists() {
        Protector::open(&api.store_key_file).map(Some)
    } else {
        let folder = api.store_key_file.parent().unwrap_or(Path::new("."));
        let fault = |source| ProtectError::File { path: api.store_key_file.clone(), source };
        writable_folder(folder).map(|()| None).map_err(fault)
    };
    let found = Store::look(&url).await;
    if let Err(error) = &found {
        faults.push(api.store.setting(), chain(error));
    }
    match (key, found) {
        (Err(error), _) => faults.push("api.store_key_file", chain(&error)),
        (Ok(None), Ok(Found::Store)) => {
            faults.push("api.store_key_file", ProtectError::Lost { path: api.store_key_file.clone() });
        }
        (Ok(Some(key)), Ok(Found::Store)) => match Store::exchanged(&url, &key, &api.store_key_file).await {
            Ok(None) => {
                if let Some((_, own)) = issuer_state::shared(config)
                    && let Err(error) = Issuer::look_at_store(&url, &key, &own.state_dir).await
                {
                    faults.push("issuer.state_dir", chain(&error));
                }
            }
            Ok(Some(error)) => faults.push("api.store_key_file", error),
            Err(error) => faults.push(api.store.setting(), chain(&error)),
        },
        _ => {}
    }
}

/// Whether clients accept a certificate for `host`.
///
/// # Errors
/// Why not, for people.
pub fn certificate_for(own: &Credentials, host: &str) -> Result<(), String> {
    if own.is_for(host) {
        return Ok(());
    }
    let names = own.server_names();
    let names = if names.is_empty() { "no name at all".to_owned() } else { names.join(", ") };
    Err(format!(
        "the certificate is for {names}, and users and agents write {host} ([api] url): have one issued for that name \
         (`towline-gateway init` and `renew-certificate` make such), or correct the url; behind a balancer that ends TLS \
         and shows a certificate of its own, set [listen] tls_ends_before = true"
    ))
}

/// Whether a file is readable by its owner, and at most by readers of its group: a mounted secret may be.
///
/// # Errors
/// That others may use it, for people.
pub fn private(path: &Path) -> Result<(), String> {
    // What cannot be looked at cannot be read either, which others say.
    let mode = std::fs::metadata(path).map_or(0, |facts| facts.permissions().mode() & 0o777);
    if mode & 0o037 == 0 {
        return Ok(());
    }
    Err(format!(
        "{} has mode {mode:o}: other accounts of this machine may use it; `chmod 600` it, and replace the key if they have",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    mod authority;

    use std::{fs, path::PathBuf, time::Duration};

    use sqlx::Connection as _;

    use super::*;
    use crate::{
        BuildError, Extras, Gateway,
        files::writable,
        init::{CONFIG_FILE, made},
        lost::{self, LostError},
    };

    async fn start(file: &Path) -> Result<(), BuildError> {
        let gateway = Gateway::build(Config::load(file).unwrap(), Extras::default()).await?;
        if let Some(control) = &gateway.core.control {
            control.store.close().await;
        }
        Ok(())
    }

    fn mode(path: PathBuf, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// What was found by the start alone, or by nobody.
    #[tokio::test]
    async fn check_config_and_start_find_the_same_faults() {
        type Break = fn(&Path);
        let faults: [(&str, &str, Break); 15] = [
            ("tls.key_file", "chmod 600", |dir| mode(dir.join("tls/tls.key"), 0o644)),
            ("agents.authority_dir", "chmod 600", |dir| mode(dir.join("ca/ca.key"), 0o640 | 0o004)),
            ("tls.certificate_file", "gateway.example.org", |dir| {
                let other = certs::Authority::load(&dir.join("ca")).unwrap();
                let issued = other.issue_server(&["other.example.org"], certs::Validity::days(1)).unwrap();
                issued.save(&dir.join("tls/tls.crt"), &dir.join("tls/tls.key")).unwrap();
            }),
            ("tls.certificate_file", "[api] ca_file", |dir| {
                let other = certs::Authority::create("other", certs::Validity::days(9)).unwrap();
                let issued = other.issue_server(&["gateway.example.org"], certs::Validity::days(1)).unwrap();
                issued.save(&dir.join("tls/tls.crt"), &dir.join("tls/tls.key")).unwrap();
            }),
            ("api.store_key_file", "line 1", |dir| {
                fs::write(dir.join("store.key"), "garbage\n").unwrap();
                mode(dir.join("store.key"), 0o600);
            }),
            ("api.store_key_file", "644", |dir| mode(dir.join("store.key"), 0o644)),
            ("api.store_key_file", "missing", |dir| fs::remove_file(dir.join("store.key")).unwrap()),
            ("api.store_key_file", "not the one of this store", |dir| {
                fs::remove_file(dir.join("store.key")).unwrap();
                Protector::open_or_create(&dir.join("store.key")).unwrap();
            }),
            ("api.store_file", "not a database", |dir| fs::write(dir.join("towline.db"), [b'x'; 5000]).unwrap()),
            ("api.store_file", "towline.db", |dir| {
                fs::remove_file(dir.join("towline.db")).unwrap();
                fs::create_dir(dir.join("towline.db")).unwrap();
            }),
            ("api.store_file", "No such file", |dir| {
                set(dir, "store_file = \"towline.db\"", "store_file = \"none/towline.db\"");
            }),
            ("issuer.state_dir", "is missing", |dir| fs::remove_file(dir.join("issuer/keys.json")).unwrap()),
            ("issuer.state_dir", "keys.json", |dir| fs::write(dir.join("issuer/keys.json"), "{}").unwrap()),
            ("issuer.state_dir", "users.json", |dir| fs::write(dir.join("issuer/users.json"), "[]").unwrap()),
            ("listen.public", "192.0.2.1", |dir| {
                set(dir, "public = \"127.0.0.1:0\"", "public = \"192.0.2.1:0\"");
            }),
        ];
        for (key, part, fault) in faults {
            let dir = tempfile::tempdir().unwrap();
            let file = made(&dir.path().join("g"));
            all(&Config::load(&file).unwrap()).await.unwrap();
            start(&file).await.unwrap();
            all(&Config::load(&file).unwrap()).await.unwrap();
            fault(&dir.path().join("g"));
            let before = listing(&dir.path().join("g"));
            let found = all(&Config::load(&file).unwrap()).await.unwrap_err();
            let told = found.faults.iter().find(|fault| fault.key == key).map(|fault| fault.problem.clone());
            assert!(told.as_ref().is_some_and(|told| told.contains(part)), "{key}: {found}");
            match start(&file).await {
                Err(BuildError::Checks(at_start)) => assert_eq!(at_start, found),
                other => panic!("{key}: {other:?}"),
            }
            assert_eq!(listing(&dir.path().join("g")), before, "{key}: nothing is made");
        }
    }

    fn set(dir: &Path, from: &str, to: &str) {
        let text = fs::read_to_string(dir.join(CONFIG_FILE)).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(dir.join(CONFIG_FILE), text.replace(from, to)).unwrap();
    }

    /// The files, but for those that SQLite makes for as long as it reads.
    fn listing(dir: &Path) -> Vec<PathBuf> {
        let mut all = Vec::new();
        for folder in [dir.to_owned(), dir.join("issuer"), dir.join("tls"), dir.join("ca")] {
            all.extend(fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
        }
        all.retain(|path| !path.to_string_lossy().contains("towline.db-"));
        all.sort();
        all
    }

    #[test]
    fn an_audit_file_that_cannot_be_made_is_a_fault() {
        let dir = tempfile::tempdir().unwrap();
        writable(&dir.path().join("audit.jsonl")).unwrap();
        assert!(!dir.path().join("audit.jsonl").exists(), "nothing is made");
        assert_eq!(writable(dir.path()).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(writable(&dir.path().join("none/audit.jsonl")).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(writable(&dir.path().join("file/audit.jsonl")).is_err());
    }

    /// It ended with "pool timed out" after 10 s.
    #[tokio::test]
    async fn a_damaged_store_says_why_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("towline.db");
        fs::write(&path, [7; 9000]).unwrap();
        let opened = tokio::time::timeout(Duration::from_secs(5), Store::open_file(&path)).await.unwrap();
        let error = opened.err().unwrap().to_string();
        assert!(error.contains("not a database") && error.contains("backup"), "{error}");
    }

    #[tokio::test]
    async fn a_key_that_is_lost_is_replaced_only_when_told_and_only_then() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("g");
        let file = made(&folder);
        start(&file).await.unwrap();
        let config = Config::load(&file).unwrap();
        assert!(matches!(lost::store_key(&config).await, Err(LostError::NotLost(_))));
        assert!(matches!(lost::issuer_key(&config).await, Err(LostError::NotLost(_))));
        // What cannot be read is not lost.
        let keys = folder.join("issuer/keys.json");
        let aside = folder.join("issuer/aside.json");
        fs::rename(&keys, &aside).unwrap();
        fs::create_dir(&keys).unwrap();
        assert!(matches!(lost::issuer_key(&config).await, Err(LostError::Keys(_))), "it is a folder");
        fs::remove_dir(&keys).unwrap();
        fs::rename(&aside, &keys).unwrap();
        let key = fs::read(folder.join("store.key")).unwrap();
        fs::remove_file(folder.join("store.key")).unwrap();
        fs::write(folder.join("issuer/keys.json"), "{").unwrap();
        assert!(start(&file).await.is_err());
        lost::store_key(&config).await.unwrap();
        lost::issuer_key(&config).await.unwrap();
        start(&file).await.unwrap();
        assert_ne!(fs::read(folder.join("store.key")).unwrap(), key);
        assert!(folder.join("issuer/keys.json.unusable-1").exists());
        // The one of before came back, too late.
        fs::write(folder.join("store.key"), key).unwrap();
        assert!(start(&file).await.is_err());
    }

    /// Users see the balancer's certificate.
    #[tokio::test]
    async fn certificate_for_another_name_is_no_fault_where_tls_ends_before() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("g");
        let file = made(&folder);
        let own = certs::Authority::load(&folder.join("ca")).unwrap();
        let issued = own.issue_server(&["gateway.internal"], certs::Validity::days(1)).unwrap();
        issued.save(&folder.join("tls/tls.crt"), &folder.join("tls/tls.key")).unwrap();
        let found = all(&Config::load(&file).unwrap()).await.unwrap_err().to_string();
        assert!(found.contains("tls_ends_before"), "it says what to do: {found}");
        set(&folder, "[listen]\n", "[listen]\ntls_ends_before = true\n");
        all(&Config::load(&file).unwrap()).await.unwrap();
        start(&file).await.unwrap();
    }

    /// All of a large store was read several times at a start, and by each command.
    #[tokio::test]
    async fn only_a_look_reads_all_of_a_store() {
        let dir = tempfile::tempdir().unwrap();
        let file = made(&dir.path().join("g"));
        start(&file).await.unwrap();
        let path = dir.path().join("g/towline.db");
        let url = crate::store::sqlite_url(&path);
        // Its page is the last one, and no question here needs it.
        let mut own = sqlx::AnyConnection::connect(&url).await.unwrap();
        let more = "CREATE TABLE unneeded (x TEXT); PRAGMA wal_checkpoint(TRUNCATE)";
        sqlx::raw_sql(more).execute(&mut own).await.unwrap();
        own.close().await.unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 4096;
        bytes[last..].fill(0xff);
        fs::write(&path, bytes).unwrap();
        assert_eq!(Store::found(&url).await.unwrap(), Found::Store);
        let damaged = Store::look(&url).await.unwrap_err();
        assert!(matches!(damaged, crate::store::StoreError::Damaged { .. }), "{damaged}");
    }
}
