//! The certificates of guard and of the apiserver that asks it (docs/features.md Z10): made, kept where the next pod
//! finds them, and renewed without anybody's doing; and the two files that an apiserver is started with.
//!
//! Those files have the apiserver's certificate in them, which lives ten years ([`certs::webhook`]): an apiserver reads
//! them once. The next ones are made in the last year, and guard takes both. It sees which certificate an apiserver
//! shows, and warns from 30 days before that one ends.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use arc_swap::ArcSwapOption;
use aws_lc_rs::digest::{SHA256, digest};
use certs::webhook::{Kept, Webhook};
use daemon::{Backoff, atomic, random_unit, settings::read_bounded};
use k8s_openapi::{
    ByteString,
    api::core::v1::{Event, Secret},
};
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use rustls::pki_types::CertificateDer;
use serde_json::{Map, Value, json};
use tokio::{sync::watch, time};
use tokio_rustls::TlsAcceptor;
use types::instants::unix_seconds;

use super::answer;
use crate::{
    chain,
    identity::{clock::SharedClock, spell},
    metrics,
    roles::{health::Reporter, kube_aad_proxy::authorize::Authorizer, kubernetes::problem},
    tunnel::api::AGAIN,
};

/// The Secret of the agents' namespace that keeps certificates and keys; the chart makes it, empty.
pub const SECRET: &str = "towline-guard-certificate";
/// The Secret that has the files for the apiserver, and its namespace; the chart makes it, empty.
pub const MANIFESTS: &str = "towline-guard-manifests";
/// The namespace of [`MANIFESTS`].
pub const MANIFESTS_NAMESPACE: &str = "kube-system";
/// The file of `--authentication-token-webhook-config-file`.
pub const TOKENS_FILE: &str = "guard-authn-webhook.yaml";
/// The file of `--authorization-webhook-config-file`.
pub const ACCESS_FILE: &str = "guard-authz-webhook.yaml";
/// The common name of the apiserver's certificate.
pub const CLIENT: &str = "towline-guard-apiserver";
const FILES: [&str; 6] = ["ca.crt", "ca.key", "client.crt", "client.key", "tls.crt", "tls.key"];
/// Who writes them, in their managed fields.
const MANAGER: &str = super::NAME;
/// How often the certificates are looked at. After somebody has emptied the Secret, every pod has new ones this soon.
pub(super) const LOOK: Duration = Duration::from_secs(60);
/// How long a certificate is remembered that an apiserver showed: longer than a connection lives
/// ([`super::CONNECTION_LIFE`]), because an apiserver that keeps its connections shows none for that long.
const SHOWN: Duration = Duration::from_secs(25 * 3600);
/// By how much this pod's clock is behind the apiserver's before it leaves certificates alone. They begin an hour before
/// they are made.
const BEHIND: Duration = Duration::from_secs(3600);
/// How long a pod that decides by roles and assignments waits for the first it knows of them before it is ready: until
/// then it denies all users of the gateway, and apiservers remember that.
pub(super) const SNAPSHOT_WAIT: Duration = Duration::from_secs(20);
/// Certificates of apiservers that are remembered at most; guard's authorities sign two.
const SHOWN_MAX: usize = 16;
/// How often a warning that still holds is told as an Event again: a cluster keeps those for an hour.
const TELL_AGAIN: Duration = Duration::from_secs(86_400);
/// Characters of an Event's message at most, as Kubernetes takes them.
const EVENT_CHARS: usize = 1024;
/// The reason of these Events.
const EVENT_REASON: &str = "GuardCertificates";
/// How long before a certificate ends it is warned of.
const WARN: Duration = Duration::from_secs(30 * 86_400);

/// What connections are accepted by; nothing before there are certificates.
#[derive(Clone, Default)]
pub struct Published {
    config: Arc<ArcSwapOption<rustls::ServerConfig>>,
    authorities: watch::Sender<Authorities>,
    presented: Arc<Mutex<BTreeMap<SystemTime, time::Instant>>>,
}

/// Whose certificates are taken.
#[derive(Default)]
struct Authorities {
    trusted: Vec<CertificateDer<'static>>,
    /// How often one of them has gone.
    gone: u64,
}

/// Tells when connections must end that were accepted until now.
pub struct Withdrawal {
    authorities: watch::Receiver<Authorities>,
    gone: u64,
}

impl Withdrawal {
    /// Completes when an authority is not trusted any more, be it the connection's own or not: it is seldom, and an
    /// apiserver that is still trusted connects again. Cancel-safe.
    pub async fn withdrawn(&mut self) {
        let gone = self.gone;
        if self.authorities.wait_for(|authorities| authorities.gone != gone).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Published {
    /// Accepts connections by what holds now.
    pub fn acceptor(&self) -> Option<TlsAcceptor> {
        self.config.load_full().map(TlsAcceptor::from)
    }

    /// An apiserver showed this certificate.
    pub fn presented(&self, own: &CertificateDer<'_>) {
        let ends = certs::authority_facts(own).1;
        {
            let mut shown = self.shown();
            shown.insert(ends, time::Instant::now());
            if shown.len() > SHOWN_MAX {
                shown.pop_last();
            }
        }
        self.earliest_shown();
    }

    /// Tells when what is accepted by [`Self::acceptor`] after this call must end.
    pub fn withdrawal(&self) -> Withdrawal {
        let authorities = self.authorities.subscribe();
        let gone = authorities.borrow().gone;
        Withdrawal { authorities, gone }
    }

    fn publish(&self, config: rustls::ServerConfig, trusted: Vec<CertificateDer<'static>>) {
        self.config.store(Some(Arc::new(config)));
        self.authorities.send_if_modified(|known| {
            let gone = known.trusted.iter().any(|authority| !trusted.contains(authority));
            known.gone += u64::from(gone);
            known.trusted = trusted;
            gone
        });
    }

    /// By their ends, when certificates were last shown by apiservers.
    fn shown(&self) -> MutexGuard<'_, BTreeMap<SystemTime, time::Instant>> {
        self.presented.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The earliest end of a certificate that an apiserver showed of late: of several apiservers, the one that is to be
    /// seen to first.
    fn earliest_shown(&self) -> Option<SystemTime> {
        let mut shown = self.shown();
        shown.retain(|_, last| last.elapsed() < SHOWN);
        let earliest = shown.keys().next().copied();
        if let Some(earliest) = earliest {
            metrics::guard_certificate_ends("presented", earliest);
        }
        earliest
    }
}

/// Where certificates and files are kept.
pub enum Store {
    /// In two Secrets of the cluster, [`SECRET`] and [`MANIFESTS`].
    Cluster(Client),
    /// In a folder.
    Directory(PathBuf),
}

/// Looks after them.
pub struct Keeper {
    /// What connections are accepted by.
    pub published: Published,
    /// The names of the server.
    pub names: Vec<String>,
    /// Host and port that the apiserver dials.
    pub server: (String, u16),
    /// Where they are kept.
    pub store: Store,
    /// The time of day.
    pub clock: SharedClock,
    /// What people are told.
    pub health: Reporter,
    /// What decides by roles and assignments; none where the cluster's own RBAC decides alone.
    pub authorizer: Option<Arc<Authorizer>>,
}

/// What is kept.
struct Loaded {
    kept: Kept,
    /// The version of the Secret.
    version: Option<String>,
    /// When it was written last, by the apiserver's clock.
    written: Option<SystemTime>,
}

/// What a warning is about, whatever times, numbers and addresses it names: its text up to the first colon, without digits.
fn kind_of(warning: &str) -> String {
    let about = warning.split_once(": ").map_or(warning, |(about, _)| about);
    about.chars().filter(|c| !c.is_ascii_digit()).take(EVENT_CHARS).collect()
}

impl Keeper {
    /// Keeps them fresh, for ever.
    pub async fn keep(&self) {
        let mut backoff = Backoff::new(AGAIN);
        let mut told = Vec::new();
        let mut events = BTreeMap::new();
        let mut waits = self.authorizer.as_ref();
        loop {
            let (wait, warnings) = match self.look().await {
                Ok(warnings) => {
                    backoff.reset();
                    (LOOK, warnings)
                }
                Err(problem) => {
                    let wait = backoff.failed(Instant::now(), 0.5 + random_unit() / 2.0).min(LOOK);
                    if self.published.acceptor().is_none() {
                        tracing::warn!(error = problem, "guard has no certificates yet");
                        self.health.failing("CertificateNotKept", &problem);
                        time::sleep(wait).await;
                        continue;
                    }
                    (wait, vec![format!("guard's certificates cannot be looked after: {problem}")])
                }
            };
            if told != warnings {
                warnings
                    .iter()
                    .for_each(|warning| tracing::warn!(warning, "something is wrong with guard's certificates"));
                told.clone_from(&warnings);
            }
            self.tell(&warnings, &mut events).await;
            self.health.warnings(warnings);
            if let Some(authorizer) = waits.take()
                && time::timeout(SNAPSHOT_WAIT, authorizer.told()).await.is_err()
            {
                tracing::warn!(
                    "nothing is known of roles and assignments yet: users of the gateway are denied until then"
                );
            }
            // What was published is served, whatever else fails: a pod that said otherwise would be taken from the
            // Service, and all of them fail alike.
            self.health.running();
            time::sleep(wait).await;
        }
    }

    /// Makes a Kubernetes Event of each kind of warning, once a day. `told` holds the day on which each kind was told last.
    /// All pods name an Event of one kind and day alike, so that one of them makes it.
    pub(super) async fn tell(&self, warnings: &[String], told: &mut BTreeMap<String, u64>) {
        let now = self.clock.now();
        let day = unix_seconds(now) / TELL_AGAIN.as_secs();
        told.retain(|kind, on| *on == day && warnings.iter().any(|warning| kind_of(warning) == *kind));
        for warning in warnings {
            let kind = kind_of(warning);
            if told.contains_key(&kind) {
                continue;
            }
            let digest = digest(&SHA256, format!("{day} {kind}").as_bytes());
            let name = format!("{SECRET}-{}", &types::ids::hex(digest.as_ref())[..16]);
            match self.store.tell(&name, warning, now).await {
                Ok(()) => drop(told.insert(kind, day)),
                Err(problem) => {
                    tracing::warn!(error = problem, "a warning of guard's cannot be made an Event; it is in this log");
                }
            }
        }
    }

    /// Renews what is to be renewed, and sees that it is kept and that the apiserver's files are there. What people
    /// should know of.
    ///
    /// # Errors
    /// What was tried and why it failed. What is kept and holds is in use all the same.
    pub async fn look(&self) -> Result<Vec<String>, String> {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let Loaded { kept, version, written } = self.store.load().await?;
        let mut webhook = Webhook::read(&kept);
        let now = self.clock.now();
        // A pod that has just started answers by what is kept, also while nothing can be written.
        if self.published.acceptor().is_none() && webhook.holds(now) {
            self.publish(&webhook)?;
        }
        // Others would have to follow this pod's clock.
        if let Some(written) = written.filter(|written| *written > now + BEHIND)
            && webhook.begins_after(now + BEHIND)
        {
            return Err(format!(
                "this machine's clock says {}, and the certificates were written at {} by the apiserver's: they are left as they are; put the clock right. Where the apiserver's was wrong then, delete the Secret {SECRET} and give the apiservers other files (docs/guard.md)",
                spell(now),
                spell(written)
            ));
        }
        let changed = webhook.renew(CLIENT, &names, now).map_err(|err| chain(&err))?;
        if changed {
            self.must_be_timely(&webhook.kept()).await?;
            // Kept first: of two pods that make an authority at once, the one that is refused here takes the other's.
            self.store.save(&webhook.kept(), version).await?;
            tracing::info!("guard has new certificates");
        }
        self.publish(&webhook)?;
        self.store.hand_out(&self.files(&webhook).ok_or("there is no certificate for the apiserver")?).await?;
        Ok(self.warnings(&webhook, now))
    }

    /// Certificates of a clock that is wrong are of no use to the other pods and to apiservers: those would make others,
    /// and each would replace what the other has made. The apiserver's clock, by which this is judged, is in its answer.
    async fn must_be_timely(&self, kept: &Kept) -> Result<(), String> {
        let Some(there) = self.store.time(kept).await else { return Ok(()) };
        let here = self.clock.now();
        if here + BEHIND < there || there + BEHIND < here {
            return Err(format!(
                "this machine's clock says {}, and the apiserver's {}: no certificates are made until both say the same; put the clock right that is wrong",
                spell(here),
                spell(there)
            ));
        }
        Ok(())
    }

    fn publish(&self, webhook: &Webhook) -> Result<(), String> {
        let clock = self.clock.clone();
        let shown = webhook.shown(Arc::new(move || clock.now()));
        let roots = webhook.roots().map_err(|err| chain(&err))?;
        let config = certs::tls::server_inside_for(shown, &roots, CLIENT).map_err(|err| chain(&err))?;
        self.published.publish(config, webhook.authorities());
        Ok(())
    }

    fn warnings(&self, webhook: &Webhook, now: SystemTime) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(begins) = webhook.begins(now) {
            warnings.push(format!(
                "an authority of guard's begins ahead of this machine's clock: at {}; it was made while a clock was wrong, or this one is behind. It is kept, and signs nothing until then",
                spell(begins)
            ));
        }
        let mut soon = |ends: SystemTime, what: &str, to_do: &str| {
            if ends < now + WARN {
                warnings.push(format!("{what} ends at {}; {to_do}", spell(ends)));
            }
        };
        if let Some((client, server)) = webhook.ends() {
            metrics::guard_certificate_ends("client", client);
            metrics::guard_certificate_ends("server", server);
            soon(server, "guard's own certificate", "it should have been renewed long ago: see the errors before this");
        }
        if let Some(presented) = self.published.earliest_shown() {
            let to_do = format!(
                "give the apiserver the files of Secret {MANIFESTS} in {MANIFESTS_NAMESPACE} again and restart it"
            );
            soon(presented, "the certificate that an apiserver shows", &to_do);
        }
        warnings
    }

    /// The two files of the apiserver: kubeconfigs, of which each names what it asks.
    fn files(&self, webhook: &Webhook) -> Option<BTreeMap<&'static str, String>> {
        let (authorities, certificate, key) = webhook.client()?;
        let (host, port) = &self.server;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let file = |path: &str| {
            let encoded = |text: &str| types::agent_api::encode(text.as_bytes());
            // JSON is YAML.
            let file = json!({
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "guard", "cluster": {
                    "server": format!("https://{host}:{port}{path}"),
                    "certificate-authority-data": encoded(&authorities),
                }}],
                "users": [{"name": "apiserver", "user": {
                    "client-certificate-data": encoded(certificate),
                    "client-key-data": encoded(key),
                }}],
                "contexts": [{"name": "webhook", "context": {"cluster": "guard", "user": "apiserver"}}],
                "current-context": "webhook",
            });
            serde_json::to_string_pretty(&file).unwrap_or_default() + "\n"
        };
        Some([(TOKENS_FILE, file(answer::TOKENS)), (ACCESS_FILE, file(answer::ACCESS))].into())
    }
}

fn texts(kept: &Kept) -> [&str; 6] {
    let Kept { authorities, clients, server } = kept;
    [&authorities.0, &authorities.1, &clients.0, &clients.1, &server.0, &server.1]
}

fn kept([ca, ca_key, client, client_key, server, server_key]: [String; 6]) -> Kept {
    Kept { authorities: (ca, ca_key), clients: (client, client_key), server: (server, server_key) }
}

impl Store {
    async fn load(&self) -> Result<Loaded, String> {
        match self {
            Self::Cluster(client) => {
                let secret = Api::<Secret>::default_namespaced(client.clone()).get(SECRET).await;
                let secret = secret.map_err(|err| problem(&format!("Secret {SECRET}"), &err))?;
                let data = secret.data.unwrap_or_default();
                let text = |key: &str| {
                    let bytes = data.get(key).map(|ByteString(bytes)| bytes.clone()).unwrap_or_default();
                    String::from_utf8(bytes).unwrap_or_default()
                };
                let written = written(&secret.metadata);
                Ok(Loaded { kept: kept(FILES.map(text)), version: secret.metadata.resource_version, written })
            }
            Self::Directory(dir) => {
                let mut found = <[String; 6]>::default();
                for (name, text) in FILES.iter().zip(&mut found) {
                    match read_bounded(&dir.join(name)) {
                        Ok(read) => *text = read,
                        Err(err) if err.kind() == io::ErrorKind::NotFound => {}
                        Err(err) => return Err(format!("{}: {err}", dir.join(name).display())),
                    }
                }
                Ok(Loaded { kept: kept(found), version: None, written: None })
            }
        }
    }

    /// The apiserver's time of day, as it would write it down beside these; nothing where it does not say it. Nothing is
    /// kept.
    async fn time(&self, kept: &Kept) -> Option<SystemTime> {
        let Self::Cluster(client) = self else { return None };
        let patch = json!({"data": encoded(FILES.into_iter().zip(texts(kept)))});
        let secrets = Api::<Secret>::default_namespaced(client.clone());
        let tried = secrets.patch(SECRET, &PatchParams { dry_run: true, ..params() }, &Patch::Merge(&patch)).await;
        match tried {
            Ok(secret) => written(&secret.metadata),
            // Such as a webhook of the cluster's that takes no trials.
            Err(err) => {
                tracing::debug!(error = chain(&err), "the apiserver's time of day is not known");
                None
            }
        }
    }

    /// Keeps them, if nobody else has since `version`.
    async fn save(&self, kept: &Kept, version: Option<String>) -> Result<(), String> {
        let files = FILES.into_iter().zip(texts(kept));
        match self {
            Self::Cluster(client) => {
                let mut patch = json!({"data": encoded(files)});
                if let Some(version) = version {
                    patch["metadata"] = json!({"resourceVersion": version});
                }
                let secrets = Api::<Secret>::default_namespaced(client.clone());
                let saved = secrets.patch(SECRET, &params(), &Patch::Merge(&patch)).await;
                saved.map(drop).map_err(|err| problem(&format!("Secret {SECRET}"), &err))
            }
            Self::Directory(dir) => write_all(dir, files.rev()),
        }
    }

    /// Makes a warning an Event of the Secret of the certificates, where there is a cluster to make it in and no other pod
    /// has made it.
    async fn tell(&self, name: &str, warning: &str, now: SystemTime) -> Result<(), String> {
        let Self::Cluster(client) = self else { return Ok(()) };
        let (namespace, now) = (client.default_namespace(), spell(now));
        let message: String = warning.chars().take(EVENT_CHARS).collect();
        let event = json!({
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {"apiVersion": "v1", "kind": "Secret", "namespace": namespace, "name": SECRET},
            "type": "Warning", "reason": EVENT_REASON, "message": message, "count": 1,
            "firstTimestamp": now, "lastTimestamp": now,
            "source": {"component": MANAGER}, "reportingComponent": MANAGER, "reportingInstance": "",
        });
        let event: Event = serde_json::from_value(event).map_err(|err| err.to_string())?;
        let made = Api::<Event>::default_namespaced(client.clone()).create(&PostParams::default(), &event).await;
        match made {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            made => made.map(drop).map_err(|err| problem("an Event", &err)),
        }
    }

    /// Has the apiserver's files where people fetch them.
    async fn hand_out(&self, files: &BTreeMap<&'static str, String>) -> Result<(), String> {
        match self {
            Self::Cluster(client) => {
                let what = format!("Secret {MANIFESTS} of {MANIFESTS_NAMESPACE}");
                let secrets = Api::<Secret>::namespaced(client.clone(), MANIFESTS_NAMESPACE);
                let known = secrets.get(MANIFESTS).await.map_err(|err| problem(&what, &err))?.data.unwrap_or_default();
                let same =
                    |(name, text): (&&str, &String)| known.get(*name).is_some_and(|known| known.0 == text.as_bytes());
                if files.iter().all(same) {
                    return Ok(());
                }
                let patch = json!({"data": encoded(files.iter().map(|(name, text)| (*name, text.as_str())))});
                let saved = secrets.patch(MANIFESTS, &params(), &Patch::Merge(&patch)).await;
                saved.map(drop).map_err(|err| problem(&what, &err))
            }
            Self::Directory(dir) => write_all(dir, files.iter().map(|(name, text)| (*name, text.as_str()))),
        }
    }
}

/// When guard's pods have written an object last, by the apiserver's clock.
fn written(metadata: &ObjectMeta) -> Option<SystemTime> {
    let fields = metadata.managed_fields.iter().flatten();
    let own = fields.filter(|fields| fields.manager.as_deref() == Some(MANAGER));
    own.filter_map(|fields| Some(SystemTime::from(fields.time.as_ref()?.0))).max()
}

fn encoded<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Map<String, Value> {
    files.map(|(name, text)| (name.to_owned(), types::agent_api::encode(text.as_bytes()).into())).collect()
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}

/// All of them have a key inside or beside them: readable for their owner only.
fn write_all<'a>(dir: &Path, files: impl Iterator<Item = (&'a str, &'a str)>) -> Result<(), String> {
    for (name, text) in files {
        if read_bounded(&dir.join(name)).is_ok_and(|known| known == text) {
            continue;
        }
        atomic::replace_in(dir, name, text.as_bytes(), atomic::PRIVATE).map_err(|err| chain(&err))?;
    }
    Ok(())
}
