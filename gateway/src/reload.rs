//! Loading the configuration again while running. What cannot be taken whole is not taken at all: the old one stays,
//! and the log and the admin listener say why.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use auth::token::RawIssuer;
use daemon::settings::BadFile;
use tunnel::transport::quic::Listener;

use crate::{
    checks::{self, IssuersError},
    config::{Config, Dynamic, api::StoreAt},
    core::Core,
    files::Stamp,
    named,
    snapshot::Snapshot,
    store::address::NewUrl,
    trust::TrustError,
};

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why the old configuration stays.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The gateway was made without a file.
    #[error("this gateway has no configuration file to read again")]
    NoFile,
    /// The file has faults.
    #[error(transparent)]
    Config(#[from] BadFile),
    /// A certificate or CA file has.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// An issuer cannot be set up.
    #[error(transparent)]
    Issuers(#[from] IssuersError),
    /// The file of audit records, which has another name now. All else was taken.
    #[error(
        "the configuration was reloaded, and the file of audit records cannot be opened again; they go on to the former one"
    )]
    Audit(#[source] std::io::Error),
}

/// Reloads a gateway's configuration.
pub struct Reloader {
    core: Arc<Core>,
    quic: Arc<Listener>,
    config: ArcSwap<Config>,
    /// What the gateway began with, of which a reload replaces a part.
    started: Config,
    /// As the issuers' own files (CA, keys) were when the verifier was made.
    issuer_files: ArcSwap<Vec<Option<Stamp>>>,
    /// As all files were before this gateway read them.
    first: Vec<Option<Stamp>>,
    one_at_a_time: tokio::sync::Mutex<()>,
}

impl Reloader {
    /// Of a gateway that began with `config`, and with the files that it names as [`first_looks`] says.
    pub fn new(core: Arc<Core>, quic: Arc<Listener>, config: Config, first: Vec<Option<Stamp>>) -> Self {
        Self {
            core,
            quic,
            first,
            issuer_files: ArcSwap::from_pointee(issuer_looks(&config.dynamic)),
            started: config.clone(),
            config: ArcSwap::from_pointee(config),
            one_at_a_time: tokio::sync::Mutex::new(()),
        }
    }

    /// Reads the file again: clusters, issuers, grants, disabled users, sessions, limits, the files of certificates, and
    /// the file with the database's address. Audit records go to a new file where theirs was moved away, whatever comes of
    /// the rest.
    pub async fn reload(&self) -> Result<(), ReloadError> {
        let _alone = self.one_at_a_time.lock().await;
        let reopened = self.core.audit.reopen().await;
        let result = self.try_reload();
        match &result {
            Ok(()) => tracing::info!(generation = self.core.snapshots.generation(), "configuration reloaded"),
            Err(error) => {
                self.core.metrics.reloads_failed.increment(1);
                tracing::error!(error = %error, "configuration not reloaded; the old one stays");
            }
        }
        if let Err(error) = &reopened {
            self.core.metrics.reloads_failed.increment(1);
            tracing::error!(%error, "the file of audit records cannot be opened again; they go on to the former one");
        }
        result.and(reopened.map_err(ReloadError::Audit))
    }

    fn try_reload(&self) -> Result<(), ReloadError> {
        let old = self.config.load();
        let next = Config::load(old.file.as_deref().ok_or(ReloadError::NoFile)?)?;
        checks::reloaded(&next)?;
        let snapshot = self.snapshot(&old.dynamic, &next.dynamic)?;
        self.core.trust.reload(&next, Some(&self.quic))?;
        self.core.snapshots.replace(snapshot.trusting(self.core.roots()));
        self.core.snapshots.load().warn_of_shadowed();
        self.core.limits.store(Arc::new(next.limits.clone()));
        self.take_database_address(&next);
        let fixed = fixed(&old, &next);
        if !fixed.is_empty() {
            tracing::warn!("changes in {} take effect at the next start", fixed.join(", "));
        }
        self.warn_of_other_replicas(&next);
        self.tell_replicas(&next);
        self.config.store(Arc::new(next));
        Ok(())
    }

    /// Has new connections to the database made with the address that is in its file now.
    fn take_database_address(&self, next: &Config) {
        let (Some(control), Some(StoreAt::Postgres { url, file })) =
            (&self.core.control, next.api.as_ref().map(|api| &api.store))
        else {
            return;
        };
        // Never the address itself, in which there is a password.
        let file = file.display();
        match control.store.use_url(url) {
            Ok(NewUrl::Same) => {}
            Ok(NewUrl::Taken) => {
                tracing::info!(%file, "new connections to the database are made with the address that is in the file now");
            }
            Ok(NewUrl::OtherDatabase) => {
                tracing::warn!(%file, "the address in the file leads to another database: it takes effect at the next start");
            }
            Err(error) => {
                tracing::warn!(%file, %error, "the address of the database in the file cannot be used; the former one stays");
            }
        }
    }

    fn warn_of_other_replicas(&self, next: &Config) {
        let (Some(replicas), Some(stale_for)) = (&self.core.replicas, next.replicas.as_ref().map(|own| own.stale_for))
        else {
            return;
        };
        let names = replicas.others_than(stale_for);
        if !names.is_empty() {
            tracing::warn!(
                ?stale_for,
                replicas = names.join(", "),
                "replicas have another [replicas] stale_for: it is to be the same at all"
            );
        }
    }

    /// Has other replicas compare the settings that are in force now.
    fn tell_replicas(&self, next: &Config) {
        if let (Some(replicas), Some(control)) = (&self.core.replicas, &self.core.control) {
            replicas.set_fingerprint(control.fingerprint(&in_force(&self.started, next)));
        }
    }

    /// Takes other clusters, issuers and grants, for programs that hold the configuration themselves.
    pub async fn replace(&self, dynamic: Dynamic) -> Result<(), ReloadError> {
        let _alone = self.one_at_a_time.lock().await;
        let old = self.config.load();
        let next = self.snapshot(&old.dynamic, &dynamic)?;
        self.core.snapshots.replace(next.trusting(self.core.roots()));
        self.core.snapshots.load().warn_of_shadowed();
        let next = Config { dynamic, ..Config::clone(&old) };
        self.tell_replicas(&next);
        self.config.store(Arc::new(next));
        Ok(())
    }

    /// Issuers that did not change, nor their files, keep their verifier and with it the key sets that it has read.
    fn snapshot(&self, old: &Dynamic, next: &Dynamic) -> Result<Snapshot, ReloadError> {
        let files = issuer_looks(next);
        let same = format!("{:?}", old.issuers) == format!("{:?}", next.issuers) && files == **self.issuer_files.load();
        let verifier =
            if same { Arc::clone(&self.core.snapshots.load().verifier) } else { checks::verifier(&next.issuers)? };
        self.issuer_files.store(Arc::new(files));
        Ok(Snapshot::new(next, verifier))
    }

    /// Reloads whenever one of the files changes, until the gateway drains.
    pub async fn watch(self: Arc<Self>) {
        let mut seen = self.first.clone();
        while self.core.shutdown.until_draining(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
            self.core.trust.renew_named(SystemTime::now());
            let now = looks(&self.config.load());
            if now != seen {
                seen = now;
                // The result is in the log.
                let _ = self.reload().await;
            }
        }
    }
}

/// Keeps the keys of the current issuers fresh, so that no request waits for an issuer, until the gateway stops.
pub async fn keep_keys_fresh(core: Arc<Core>) {
    let mut changes = core.snapshots.watch();
    loop {
        let verifier = Arc::clone(&core.snapshots.load().verifier);
        tokio::select! {
            biased;
            () = core.shutdown.closed() => return,
            _ = changes.changed() => {}
            () = verifier.keep_fresh() => {}
        }
    }
}

/// As the files are before any of them is read, and its own file before the configuration was: who changes one while a
/// gateway starts has changed it.
pub fn first_looks(config: &Config) -> Vec<Option<Stamp>> {
    let mut looks = looks(config);
    if config.file.is_some() {
        looks[0] = config.looked;
    }
    looks
}

/// The settings in force after a reload: those that it does not take are as they were at the start, see [`fixed`].
fn in_force(started: &Config, next: &Config) -> Config {
    let mut now = Config {
        agents: next.agents.clone(),
        limits: next.limits.clone(),
        dynamic: next.dynamic.clone(),
        ..started.clone()
    };
    if let (Some(now), Some(next)) = (&mut now.api, &next.api) {
        now.ca.clone_from(&next.ca);
    }
    now
}

/// Sections that a reload does not take and that have changed.
fn fixed(old: &Config, next: &Config) -> Vec<&'static str> {
    // The authorities of the gateway's certificate and the file with the database's address are taken by a reload.
    let api = |config: &Config| {
        let mut api = config.api.clone()?;
        api.ca = None;
        api.secret_files.retain(|(setting, _)| *setting != api.store.setting());
        Some(api)
    };
    let sections = |config: &Config| {
        [
            ("[listen]", format!("{:?}", config.listen)),
            ("[audit]", format!("{:?}", config.audit)),
            ("[api]", format!("{:?}", api(config))),
            ("[issuer]", format!("{:?}", config.issuer)),
            // Name and address may be the command line's.
            ("[replicas]", format!("{:?}", config.replicas.as_ref().map(|own| (own.listen, own.stale_for)))),
        ]
    };
    let changed = sections(old).into_iter().zip(sections(next)).filter(|(old, next)| old != next);
    changed.map(|((name, _), _)| name).collect()
}

fn looks(config: &Config) -> Vec<Option<Stamp>> {
    let authority = config.agents.authority.as_ref();
    let api = config.api.as_ref();
    let files: [Option<&PathBuf>; 8] = [
        config.file.as_ref(),
        Some(&config.tls.certificate_file),
        Some(&config.tls.key_file),
        Some(&config.agents.ca_file),
        api.and_then(|api| api.ca_file.as_ref()),
        api.and_then(|api| api.store.url_file()),
        authority.map(|files| &files.certificate),
        authority.map(|files| &files.key),
    ];
    let kept = authority.map(named::kept_files);
    let kept = kept.iter().flat_map(|(certificate, key)| [certificate, key]);
    files.into_iter().flatten().chain(kept).map(|path| stamp(path)).chain(issuer_looks(&config.dynamic)).collect()
}

/// As a file is now; none where it may not be looked at.
fn stamp(path: &Path) -> Option<Stamp> {
    Stamp::of(path).ok()
}

fn issuer_looks(dynamic: &Dynamic) -> Vec<Option<Stamp>> {
    dynamic.issuers.iter().flat_map(RawIssuer::files).map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Extras, Gateway,
        init::{CONFIG_FILE, Plan, init},
    };

    /// Settings of these sections were left as they were without a word.
    #[test]
    fn what_waits_for_the_next_start_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        let url = "https://gateway.example.org:8443".to_owned();
        let plan = Plan { directory: dir.path().join("g"), url, listen, admin: listen, certificate: None };
        init(&plan).unwrap();
        let mut old = Config::load(&plan.directory.join(CONFIG_FILE)).unwrap();
        let replicas = |stale_for| crate::config::replicas::Replicas {
            name: "a".to_owned(),
            listen,
            address: None,
            stale_for: Duration::from_secs(stale_for),
        };
        old.replicas = Some(replicas(300));
        let changed = |change: fn(&mut Config)| {
            let mut next = old.clone();
            change(&mut next);
            fixed(&old, &next)
        };
        assert_eq!(changed(|_| {}), Vec::<&str>::new());
        assert_eq!(changed(|next| next.issuer.as_mut().unwrap().token_lifetime *= 2), ["[issuer]"]);
        assert_eq!(changed(|next| next.replicas.as_mut().unwrap().stale_for = Duration::ZERO), ["[replicas]"]);
        assert_eq!(changed(|next| next.replicas = None), ["[replicas]"]);
        // Of the command line in `old`.
        assert_eq!(changed(|next| next.replicas.as_mut().unwrap().name = "b".to_owned()), Vec::<&str>::new());
        let both = |next: &mut Config| {
            next.api = None;
            next.listen.domain = Some("clusters.example.org".to_owned());
        };
        assert_eq!(changed(both), ["[listen]", "[api]"]);
        assert_eq!(changed(|next| on_server(next, "one", "one.url")), ["[api]"]);
        // Taken by a reload.
        let taken = |next: &mut Config| {
            next.agents.statement_lifetime *= 2;
            next.limits.connections += 1;
        };
        assert_eq!(changed(taken), Vec::<&str>::new());
        // What waits is not in force, and all else is.
        let mut next = old.clone();
        both(&mut next);
        taken(&mut next);
        next.api = old.api.clone();
        next.api.as_mut().unwrap().ca = Some("another".to_owned());
        next.api.as_mut().unwrap().operation_timeout *= 2;
        let now = in_force(&old, &next);
        assert_eq!(fixed(&old, &now), Vec::<&str>::new());
        assert_eq!(fixed(&now, &next), ["[listen]", "[api]"]);
        assert_eq!((&now.agents, now.limits.connections), (&next.agents, next.limits.connections));
        assert_eq!(now.api.unwrap().ca.as_deref(), Some("another"));
        let (mut one, mut two) = (old.clone(), old.clone());
        on_server(&mut one, "one", "one.url");
        on_server(&mut two, "two", "two.url");
        assert_eq!(fixed(&one, &two), Vec::<&str>::new());
        assert_eq!(looks(&one).len(), looks(&old).len() + 1, "the file is watched");
    }

    /// Puts the store into PostgreSQL.
    fn on_server(config: &mut Config, password: &str, file: &str) {
        let (api, url) = (config.api.as_mut().unwrap(), format!("postgres://u:{password}@localhost/d"));
        api.store = StoreAt::Postgres { url, file: file.into() };
        api.secret_files = vec![(api.store.setting(), file.into())];
    }

    /// A change between the reading of the file and the first look at it was never taken.
    #[tokio::test]
    async fn what_is_changed_while_a_gateway_starts_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        let url = "https://gateway.example.org:8443".to_owned();
        let plan = Plan { directory: dir.path().join("g"), url, listen, admin: listen, certificate: None };
        init(&plan).unwrap();
        let file = plan.directory.join(CONFIG_FILE);
        let config = Config::load(&file).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("{text}\n[limits]\nconnections = 777\n")).unwrap();
        let gateway = Gateway::build(config, Extras::default()).await.unwrap();
        let handle = gateway.handle();
        assert_ne!(handle.core().limits.load().connections, 777);
        let running = tokio::spawn(gateway.run());
        let taken = async {
            let mut look = tokio::time::interval(Duration::from_millis(50));
            while handle.core().limits.load().connections != 777 {
                look.tick().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), taken).await.unwrap();
        handle.drain();
        running.await.unwrap();
    }
}
