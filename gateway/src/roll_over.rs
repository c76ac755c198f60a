//! One certificate authority follows another (docs/features.md R8). `begin` makes the new one: both are trusted from
//! then on, the new one issues, and agents renew as soon as they hear of it. `finish` takes the old one away once
//! nothing lives on it. Each step is files that are replaced whole, in an order in which whoever is stopped between two
//! of them has a gateway that works and a command that goes on from there.
//!
//! The folder of the authority holds during that: `ca.crt` with both certificates, `ca.key` with the key of the one
//! that issues, which says which one that is.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use auth::token::RawIssuer;
use certs::{Authority, AuthorityError, Bundle, Credentials, LoadError, Roots, Validity};
use daemon::atomic;
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use time::OffsetDateTime;
use types::instants::{milliseconds, rfc3339};

use crate::{
    config::{Config, agents::AuthorityFiles},
    init::{AUTHORITY_DAYS, SERVER_DAYS},
    named::{self, NamedError},
    renew::{self, RenewError},
    store::{Store, StoreError},
};

/// The key of an authority that does not issue yet, beside the other's.
const NEXT_KEY: &str = "next.key";
/// Clusters that are named.
const NAMED: u32 = 20;
/// What the name of an authority that follows another has behind that of the first.
const SINCE: &str = " since ";

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum RollOverError {
    /// The configuration has no authority to issue with.
    #[error(
        "[agents] has no authority_dir: clusters' certificates come from elsewhere; append the new authority to [agents] ca_file, renew them there, and take the old one out"
    )]
    NoAuthority,
    /// One is under way.
    #[error(
        "one authority follows another already: `towline-gateway roll-over status` says how far that is, `roll-over finish` ends it"
    )]
    UnderWay,
    /// None is under way.
    #[error("no authority follows another: begin with `towline-gateway roll-over begin`")]
    NotBegun,
    /// It was stopped before the new one issued.
    #[error("`roll-over begin` was stopped before it was done: run it again")]
    HalfBegun,
    /// Somebody would be cut off.
    #[error(
        "clusters that still live on the old authority: {count} ({}{}). Agents renew within minutes of being connected; wait until they are back, delete those that are gone for good, or cut them off with --force, after which each must be connected again (`towline connect`)",
        .named.join(", "),
        if u64::try_from(.named.len()).is_ok_and(|named| named < *.count) { ", ..." } else { "" }
    )]
    Living {
        /// Number of such clusters, also of those that `named` leaves out.
        count: u64,
        /// The ids of the first ones.
        named: Vec<String>,
    },
    /// Nobody knows who would be cut off.
    #[error(
        "the store of [api] is not there, so it is not known which clusters still use the old authority: run this where the gateway's configuration names its store (with PostgreSQL, postgres_url_file), or give --force if no gateway has ever started on it"
    )]
    NoStore,
    /// Files of certificates.
    #[error("cannot read or write the certificates")]
    Certificates(#[from] LoadError),
    /// A key that could not take its place.
    #[error("{0} cannot be put in its place, or removed")]
    Key(PathBuf, #[source] std::io::Error),
    /// Making the new one.
    #[error("cannot make the new certificate authority")]
    Authority(#[from] AuthorityError),
    /// The gateway's own certificate.
    #[error("cannot issue the gateway's own certificate anew")]
    Renew(#[from] RenewError),
    /// The certificate of clusters' server names.
    #[error(transparent)]
    Named(#[from] NamedError),
    /// The store cannot be opened, read or changed.
    #[error("cannot read or change the store")]
    Store(#[from] StoreError),
}

/// What the files say.
struct State<'a> {
    files: &'a AuthorityFiles,
    /// The one that issues.
    present: Authority,
    /// Certificates of the others in its file: the one before; the next one, if it does not issue yet.
    others: Vec<CertificateDer<'static>>,
    /// Where the key of one that does not issue yet is.
    next_key: PathBuf,
}

impl<'a> State<'a> {
    fn read(config: &'a Config) -> Result<Self, RollOverError> {
        let files = config.agents.authority.as_ref().ok_or(RollOverError::NoAuthority)?;
        let present = files.load()?;
        let mut others = Bundle::read(&files.certificate)?.certificates();
        others.retain(|other| other != present.certificate());
        Ok(Self { files, present, others, next_key: files.key.with_file_name(NEXT_KEY) })
    }

    /// The next one, where a `begin` was stopped before it issued.
    fn half_begun(&self) -> Option<Authority> {
        if self.next_key.exists() { Authority::load_files(&self.files.certificate, &self.next_key).ok() } else { None }
    }

    /// What the present one is called in what is kept.
    fn id(&self) -> Result<String, RollOverError> {
        Ok(self.present.roots()?.ids().pop().unwrap_or_default())
    }
}

/// Makes the new authority, and has it issue.
///
/// # Errors
/// [`RollOverError`].
pub fn begin(config: &Config, now: SystemTime) -> Result<Value, RollOverError> {
    let state = State::read(config)?;
    let next = match state.half_begun() {
        Some(next) => next,
        None if !state.others.is_empty() => return Err(RollOverError::UnderWay),
        None => {
            let next = Authority::create(&name(&state.present, now), validity(now))?;
            next.save_key(&state.next_key)?;
            next
        }
    };
    // Users who do not know the new one yet go on finding clusters by their server names.
    if let Some(suffix) = &config.listen.server_name_suffix {
        let life = Duration::from_secs(u64::from(SERVER_DAYS) * 86_400);
        named::keep(suffix, state.files, &state.present, life, now)?;
    }
    // Whatever trusts the old one trusts both before the new one issues. The file of the authority first: from then on
    // the key belongs to something, and who comes again goes on with it.
    let others = bundles(config, state.present.certificate());
    for mut bundle in [Bundle::read(&state.files.certificate)?].into_iter().chain(others) {
        bundle.add(next.certificate_pem());
        bundle.write()?;
    }
    atomic::rename(&state.next_key, &state.files.key)
        .map_err(|error| RollOverError::Key(state.next_key, error.source))?;
    Ok(json!({
        "authority": shown(next.certificate()),
        "follows": shown(state.present.certificate()),
        "ca": config.api.as_ref().and_then(|api| api.ca_file.clone()),
        "next": "Give users the new file of authorities. Agents that are connected renew within minutes. Then `towline-gateway roll-over finish`.",
    }))
}

/// How far it is.
///
/// # Errors
/// [`RollOverError`].
pub async fn status(config: &Config, store: Option<&Store>, now: SystemTime) -> Result<Value, RollOverError> {
    let state = State::read(config)?;
    let half_begun = state.half_begun().is_some();
    let (count, named) = living(&state, store, now).await?;
    let word = match (half_begun, state.others.is_empty()) {
        (true, _) => "stopped while it began",
        (false, true) => "none",
        (false, false) => "under way",
    };
    Ok(json!({
        "rollOver": word,
        "authority": shown(state.present.certificate()),
        "follows": state.others.iter().map(shown).collect::<Vec<_>>(),
        "clustersOnOther": count,
        "first": named,
    }))
}

/// Takes the old one away.
///
/// # Errors
/// [`RollOverError`]; unless `force`, [`RollOverError::Living`] while clusters live on it, and [`RollOverError::NoStore`]
/// where there is no store to ask.
pub async fn finish(
    config: &Config,
    store: Option<&Store>,
    now: SystemTime,
    force: bool,
) -> Result<Value, RollOverError> {
    let state = State::read(config)?;
    if state.half_begun().is_some() {
        return Err(RollOverError::HalfBegun);
    }
    if state.others.is_empty() {
        return Err(RollOverError::NotBegun);
    }
    if config.api.is_some() && store.is_none() && !force {
        return Err(RollOverError::NoStore);
    }
    let (count, named) = living(&state, store, now).await?;
    if count > 0 && !force {
        return Err(RollOverError::Living { count, named });
    }
    // Who has renewed trusts both, so that the gateway may show a certificate of either.
    let own = Credentials::load(&config.tls.certificate_file, &config.tls.key_file)?;
    let of_old = Roots::from_der(state.others.clone())?.vouch_for_server(&own);
    let renewed = of_old.then(|| renew::reissue(config, &state.present, &own, now)).transpose()?;
    named::forget(state.files).map_err(|(path, error)| RollOverError::Key(path, error))?;
    // The file of the authority last: it says what there is to be taken out of the others.
    for old in &state.others {
        for mut bundle in bundles(config, old).into_iter().chain([Bundle::read(&state.files.certificate)?]) {
            bundle.remove(old);
            bundle.write()?;
        }
    }
    Ok(json!({
        "authority": shown(state.present.certificate()),
        "removed": state.others.iter().map(shown).collect::<Vec<_>>(),
        "certificate": renewed,
        "cutOff": count,
        "named": config.dynamic.clusters.len(),
    }))
}

async fn living(
    state: &State<'_>,
    store: Option<&Store>,
    now: SystemTime,
) -> Result<(u64, Vec<String>), RollOverError> {
    let Some(store) = store else { return Ok((0, Vec::new())) };
    let now_ms = milliseconds(now);
    Ok(store.on_other_authorities(&state.id()?, now_ms, NAMED).await?)
}

/// The files of authorities that the configuration names and that hold this one, each once, but for the authority's
/// own.
fn bundles(config: &Config, holds: &CertificateDer<'_>) -> Vec<Bundle> {
    let own = config.agents.authority.as_ref().map(|files| whole(&files.certificate));
    let api = config.api.as_ref().and_then(|api| api.ca_file.as_deref());
    let issuers = config.dynamic.issuers.iter().flat_map(RawIssuer::files);
    let named = std::iter::once(config.agents.ca_file.as_path()).chain(api).chain(issuers);
    let mut seen: Vec<PathBuf> = own.into_iter().collect();
    let mut found = Vec::new();
    for path in named {
        let at = whole(path);
        if !seen.contains(&at)
            && let Some(bundle) = Bundle::read(path).ok().filter(|bundle| bundle.holds(holds))
        {
            found.push(bundle);
        }
        seen.push(at);
    }
    found
}

fn whole(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Another name than that of the one before, because some programs look for an issuer by its name alone.
fn name(present: &Authority, now: SystemTime) -> String {
    let name = present.name().unwrap_or_else(|| "Towline".to_owned());
    let first = name.split(SINCE).next().unwrap_or_default();
    let date = OffsetDateTime::from(now).date();
    let new = format!("{first}{SINCE}{date}");
    if new == name { format!("{new}, {}", OffsetDateTime::from(now).time()) } else { new }
}

fn validity(now: SystemTime) -> Validity {
    let life = Duration::from_secs(u64::from(AUTHORITY_DAYS) * 86_400);
    Validity::at(now, life, life * 2)
}

fn shown(certificate: &CertificateDer<'static>) -> Value {
    let (name, end) = certs::authority_facts(certificate);
    json!({"name": name, "ends": rfc3339(end)})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::{CONFIG_FILE, Plan, init};

    fn made(dir: &Path) -> PathBuf {
        let plan = Plan {
            directory: dir.to_owned(),
            url: "https://gateway.example.org:8443".to_owned(),
            listen: "0.0.0.0:8443".parse().unwrap(),
            admin: "127.0.0.1:9090".parse().unwrap(),
            certificate: None,
        };
        init(&plan).unwrap();
        dir.join(CONFIG_FILE)
    }

    fn present(config: &Config) -> Authority {
        config.agents.authority.as_ref().unwrap().load().unwrap()
    }

    #[tokio::test]
    async fn r8_what_init_made_rolls_over_with_the_gateways_own_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let file = made(&dir.path().join("g"));
        let config = Config::load(&file).unwrap();
        let (old, now) = (present(&config), SystemTime::now());
        begin(&config, now).unwrap();
        let config = Config::load(&file).unwrap();
        crate::checks::files(&config).unwrap();
        let roots = Roots::load(&config.agents.ca_file).unwrap();
        assert!(
            roots.holds(&old) && roots.holds(&present(&config)) && present(&config).certificate() != old.certificate()
        );
        assert_ne!(present(&config).name(), old.name());
        assert!(matches!(renew::certificate(&config, now), Err(RenewError::UnderWay)));
        // On a folder alone, such as that of a gateway in Kubernetes, nobody knows of its clusters.
        assert!(matches!(finish(&config, None, now, false).await, Err(RollOverError::NoStore)));
        let done = finish(&config, None, now, true).await.unwrap();
        assert_eq!(done["certificate"]["names"][0], "gateway.example.org");
        let config = Config::load(&file).unwrap();
        crate::checks::files(&config).unwrap();
        let own = Credentials::load(&config.tls.certificate_file, &config.tls.key_file).unwrap();
        assert!(present(&config).is_issuer_of(&own) && !old.is_issuer_of(&own));
        assert!(!Roots::load(&config.agents.ca_file).unwrap().holds(&old));
        renew::certificate(&config, now).unwrap();
        // And once more, on the same day.
        let second = present(&config);
        begin(&config, now).unwrap();
        assert_ne!(present(&config).name(), second.name());
    }

    /// Stopped between any two of its files: the gateway starts, and the command goes on.
    #[tokio::test]
    async fn r8_a_beginning_that_was_cut_short_is_gone_on_with() {
        for bundled in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let file = made(&dir.path().join("g"));
            let config = Config::load(&file).unwrap();
            let (old, now) = (present(&config), SystemTime::now());
            let files = config.agents.authority.clone().unwrap();
            let next = Authority::create("next", Validity::days(9)).unwrap();
            next.save_key(&files.key.with_file_name(NEXT_KEY)).unwrap();
            if bundled {
                let mut bundle = Bundle::read(&files.certificate).unwrap();
                bundle.add(next.certificate_pem());
                bundle.write().unwrap();
                assert!(matches!(finish(&config, None, now, true).await, Err(RollOverError::HalfBegun)));
                assert_eq!(status(&config, None, now).await.unwrap()["rollOver"], "stopped while it began");
            }
            let config = Config::load(&file).unwrap();
            crate::checks::files(&config).unwrap();
            assert_eq!(present(&config).certificate(), old.certificate());
            begin(&config, now).unwrap();
            let config = Config::load(&file).unwrap();
            crate::checks::files(&config).unwrap();
            assert_eq!(present(&config).certificate() == next.certificate(), bundled);
            assert_eq!(status(&config, None, now).await.unwrap()["rollOver"], "under way");
            assert!(!files.key.with_file_name(NEXT_KEY).exists());
        }
    }
}
