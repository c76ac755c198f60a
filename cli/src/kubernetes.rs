//! The Kubernetes cluster of the user's kubeconfig, which `connect`, `delete` and `troubleshoot` work in. The only
//! place of this program that names the kube library.
//!
//! | module | what it holds |
//! |---|---|
//! | [`place`] | which object: kind, namespace, name |
//! | [`error`] | what an apiserver refused, in one sentence |
//! | [`apply`] | server-side apply, and what this run made of it |
//! | [`compare`] | what a new version of the agents needs that an upgrade may not give |
//! | [`installed`] | the agents that are there |
//! | [`kept`] | what the agents that are there were told |
//! | [`left`] | what agents manage, and what former ones left |
//! | [`rights`] | what the user may do |
//! | [`pods`] | which pods are there, and which are not ready |
//! | [`reasons`] | why they are not |
//! | [`turn`] | one run at a time |

pub mod apply;
pub mod compare;
pub mod error;
pub mod installed;
pub mod kept;
pub mod left;
pub mod place;
pub mod pods;
pub mod reasons;
pub mod rights;
pub mod turn;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow};
use gateway::answers::REQUEST_ID;
use http::Uri;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Config,
    api::{DynamicObject, ListParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use types::ids::ClusterKey;

pub use self::{error::Error, place::Place};
use crate::{
    failure::Advised,
    kubeconfig::{AddressForm, form_of},
};

/// How long the apiserver may take to be reached, and for one answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Objects of a list that are looked at.
pub const LIST: u32 = 2000;

/// Which Kubernetes cluster: the context of a kubeconfig.
#[derive(Debug, clap::Args, Clone)]
pub struct KubeArgs {
    /// The kubeconfig by which the cluster is reached; KUBECONFIG or ~/.kube/config without this
    #[arg(long, value_name = "FILE", help_heading = "Kubernetes")]
    pub kube_config: Option<PathBuf>,
    /// Its context; the current one without this
    #[arg(long, value_name = "NAME", help_heading = "Kubernetes")]
    pub kube_context: Option<String>,
}

/// A cluster by a context of a kubeconfig.
#[derive(Clone)]
pub struct Kubernetes {
    client: Client,
    /// The context's name.
    pub context: String,
    /// The apiserver's URL.
    pub server: String,
    /// `tls-server-name` of the kubeconfig.
    server_name: Option<String>,
    /// The number after `1.` of its version, once that was asked for.
    pub minor: u32,
}

/// What `GET /version` says.
pub struct Version {
    /// Such as `v1.36.2`.
    pub text: String,
    /// The number after `1.`.
    pub minor: u32,
}

impl Kubernetes {
    /// Reads a kubeconfig; KUBECONFIG, else `~/.kube/config`, without a file. Connects to nothing yet.
    ///
    /// # Errors
    /// When it cannot be read, or has no such context.
    pub async fn open(file: Option<&Path>, context: Option<&str>) -> anyhow::Result<Self> {
        let mut kubeconfig = match file {
            Some(file) => {
                Kubeconfig::read_from(file).with_context(|| format!("cannot read the kubeconfig {}", file.display()))?
            }
            None => Kubeconfig::read().context("cannot read the kubeconfig")?,
        };
        agent::roles::kubeconfig::unwrap_data(&mut kubeconfig);
        let context = context
            .map(str::to_owned)
            .or_else(|| kubeconfig.current_context.clone().filter(|name| !name.is_empty()))
            .ok_or_else(|| anyhow!("the kubeconfig has no current context: --kube-context NAME"))?;
        let proxy = proxy_of(&kubeconfig, &context)?;
        let options = KubeConfigOptions { context: Some(context.clone()), ..KubeConfigOptions::default() };
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .with_context(|| format!("cannot use context {context} of the kubeconfig"))?;
        agent::roles::kubeconfig::certificate(&config.auth_info)
            .map_err(|why| anyhow!("context {context} of the kubeconfig: {why}"))?;
        // HTTPS_PROXY is for what is far away, and NO_PROXY is not known here: what is said of this cluster counts.
        config.proxy_url = proxy;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(ANSWER_TIMEOUT);
        let server = config.cluster_url.to_string();
        let server_name = config.tls_server_name.clone();
        let client =
            Client::try_from(config).with_context(|| format!("cannot use context {context} of the kubeconfig"))?;
        Ok(Self { client, context, server, server_name, minor: 0 })
    }

    /// As the service account of the pod that this runs in.
    ///
    /// # Errors
    /// When this is no pod, or the apiserver does not answer.
    pub async fn of_pod() -> anyhow::Result<Self> {
        let client = agent::roles::kubernetes::client(&agent::config::Cluster::of_pod()).await?;
        let context = "of the pod".to_owned();
        let mut this = Self { client, context, server: String::new(), server_name: None, minor: 0 };
        this.minor = this.version().await?.minor;
        Ok(this)
    }

    /// How far an upgrade of the agents is, in the namespace of the pod.
    pub fn upgrade(&self) -> agent::roles::upgrader::state::Kept {
        agent::roles::upgrader::state::Kept::new(&self.client)
    }

    /// One that nobody answers for.
    #[cfg(test)]
    pub fn nowhere() -> Self {
        let config = Config::new(Uri::from_static("http://127.0.0.1:9"));
        let client = Client::try_from(config).unwrap();
        Self { client, context: String::new(), server: String::new(), server_name: None, minor: 30 }
    }

    /// One that a test answers for.
    #[cfg(test)]
    pub fn answered_by(client: Client) -> Self {
        Self { client, ..Self::nowhere() }
    }

    /// Whether the kubeconfig leads through a gateway: what is done in the cluster must not need the agents that it is
    /// done to. Its address may not tell, as that of `towline proxy` does not; then the answer to `GET /version` does,
    /// which the gateway gives a header of its own.
    pub async fn leads_through_a_gateway(&self) -> bool {
        if form_of(&self.server, self.server_name.as_deref()).is_some() {
            return true;
        }
        let Ok(request) = http::Request::get("/version").body(Vec::new()) else { return false };
        // Whoever goes on is told by the next request why there is no answer.
        self.client.send(request.map(Into::into)).await.is_ok_and(|answer| answer.headers().contains_key(REQUEST_ID))
    }

    /// The apiserver's version.
    pub async fn version(&self) -> anyhow::Result<Version> {
        let info = self.client.apiserver_version().await.map_err(Error::from)?;
        let digits: String = info.minor.chars().take_while(char::is_ascii_digit).collect();
        Ok(Version { text: info.git_version, minor: digits.parse().unwrap_or(0) })
    }

    /// Lists the nodes, at most [`LIST`] of them.
    pub async fn nodes(&self) -> Result<Vec<NodeState>, Error> {
        let nodes = Api::<Node>::all(self.client.clone()).list(&ListParams::default().limit(LIST)).await?;
        Ok(nodes.items.iter().map(NodeState::of).collect())
    }

    /// Whether something is there that adds nodes for pods that wait for one, as far as can be seen.
    pub async fn adds_nodes(&self) -> bool {
        for sign in autoscalers() {
            if matches!(self.get(&sign).await, Ok(Some(_))) {
                return true;
            }
        }
        false
    }

    /// An object; none if there is none, or no such kind.
    pub async fn get(&self, place: &Place) -> Result<Option<Value>, Error> {
        match self.api(place).get(&place.name).await {
            Ok(object) => Ok(Some(plain(object))),
            Err(error) => Error::from(error).unless_missing(None),
        }
    }

    /// Objects of the kind and the namespace of `place`, by labels.
    pub async fn list(&self, place: &Place, labels: &str) -> Result<Vec<Value>, Error> {
        match self.api(place).list(&ListParams::default().labels(labels).limit(LIST)).await {
            Ok(list) => Ok(list.items.into_iter().map(plain).collect()),
            Err(error) => Error::from(error).unless_missing(Vec::new()),
        }
    }

    fn api(&self, place: &Place) -> Api<DynamicObject> {
        let resource = place.kind.resource();
        match &place.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }
}

/// The contexts of the user's kubeconfig, KUBECONFIG or `~/.kube/config`, that lead to a cluster through a gateway.
pub fn contexts_of(key: &ClusterKey) -> Vec<(String, AddressForm)> {
    // Without one there is nothing to say of it.
    Kubeconfig::read().map(|kubeconfig| contexts_in(&kubeconfig, key)).unwrap_or_default()
}

fn contexts_in(kubeconfig: &Kubeconfig, key: &ClusterKey) -> Vec<(String, AddressForm)> {
    let form = |name: &str| {
        let cluster = kubeconfig.clusters.iter().find(|cluster| cluster.name == name)?.cluster.as_ref()?;
        let (form, found) = form_of(cluster.server.as_deref()?, cluster.tls_server_name.as_deref())?;
        (found == *key).then_some(form)
    };
    let contexts = kubeconfig.contexts.iter();
    contexts.filter_map(|named| Some((named.name.clone(), form(&named.context.as_ref()?.cluster)?))).collect()
}

/// What is known of a node.
pub struct NodeState {
    /// Name of the node.
    pub name: String,
    /// `linux`; empty where the label is missing.
    pub system: String,
    /// Why the agents' pods cannot go there now.
    pub closed: Option<Closed>,
}

/// Why pods cannot go to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// The reason, as the end of a sentence that begins with the node's name.
    pub why: String,
    /// Whether it is closed by what the node is for, such as the control plane: that does not change by itself.
    pub by_role: bool,
}

/// What an autoscaler of nodes has in a cluster: the ConfigMap in which cluster-autoscaler writes how it is, and the
/// definition of Karpenter's node pools.
fn autoscalers() -> [Place; 2] {
    [
        Place::within(place::CONFIG_MAP, "kube-system", "cluster-autoscaler-status"),
        Place::of(place::DEFINITION, "nodepools.karpenter.sh"),
    ]
}

impl NodeState {
    fn of(node: &Node) -> Self {
        let label = |name: &str| node.metadata.labels.as_ref()?.get(name).cloned();
        let spec = node.spec.as_ref();
        let taints = spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
        // Those of Kubernetes itself and of cloud providers say how the node is, and go by themselves.
        let taint = { taints }
            .filter(|taint| taint.effect != "PreferNoSchedule" && !taint.key.starts_with("node."))
            .map(|taint| Closed {
                why: format!(
                    "has the taint {}={}:{}",
                    taint.key,
                    taint.value.as_deref().unwrap_or_default(),
                    taint.effect
                ),
                by_role: taint.key.starts_with("node-role.kubernetes.io/"),
            })
            .max_by_key(|closed| closed.by_role);
        let cordoned = || Closed { why: "is cordoned".to_owned(), by_role: false };
        let is_cordoned = spec.and_then(|spec| spec.unschedulable).unwrap_or(false);
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            system: label("kubernetes.io/os").unwrap_or_default(),
            closed: taint.or_else(|| is_cordoned.then(cordoned)),
        }
    }
}

/// The `proxy-url` of the context's cluster, if it has one. Errors do not quote it: it may hold a password.
fn proxy_of(kubeconfig: &Kubeconfig, context: &str) -> anyhow::Result<Option<Uri>> {
    let cluster =
        kubeconfig.contexts.iter().find(|named| named.name == context).and_then(|named| named.context.as_ref());
    let Some(cluster) = cluster.map(|context| context.cluster.as_str()) else { return Ok(None) };
    let found = kubeconfig.clusters.iter().find(|named| named.name == cluster).and_then(|named| named.cluster.as_ref());
    let url = found.and_then(|cluster| cluster.proxy_url.as_deref()).filter(|url| !url.is_empty());
    let Some(url) = url else { return Ok(None) };
    let uri = url.parse::<Uri>().ok().filter(|uri| uri.host().is_some());
    match uri.as_ref().and_then(Uri::scheme_str) {
        Some("http" | "socks5") => Ok(uri),
        scheme => Err(Advised::new(
            format!(
                "cluster {cluster} of the kubeconfig: its proxy-url {}",
                match scheme {
                    Some(scheme) =>
                        format!("begins with {scheme}://; a cluster is reached through http:// and socks5:// proxies"),
                    None => "is not a URL such as http://proxy.example.org:3128".to_owned(),
                }
            ),
            format!(
                "kubectl config set clusters.{cluster}.proxy-url http://HOST:PORT; or --kube-config FILE without it"
            ),
        )
        .into()),
    }
}

/// The object, with the type that lists leave out.
fn plain(object: DynamicObject) -> Value {
    serde_json::to_value(object).unwrap_or_else(|_| json!({}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn kubeconfig_of_each_address_form_leads_through_a_gateway() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        let key = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c"
            .parse::<types::ids::ClusterId>()
            .unwrap()
            .key();
        let (hex, base32) = (key.hex(), key.base32());
        for (server, name, through) in [
            (format!("https://gw.example/{hex}"), String::new(), true),
            (format!("https://{base32}.gw.example:8443"), String::new(), true),
            ("https://gw.example:8443".to_owned(), format!("{base32}.clusters.towline.internal"), true),
            ("https://10.0.0.1:6443".to_owned(), "kubernetes.default".to_owned(), false),
            ("https://10.0.0.1:6443".to_owned(), String::new(), false),
        ] {
            let name = if name.is_empty() { name } else { format!(", tls-server-name: {name}") };
            let text = format!(
                "{{clusters: [{{name: a, cluster: {{server: '{server}'{name}}}}}], contexts: [{{name: a, context: {{cluster: a, user: a}}}}], users: [{{name: a, user: {{token: x}}}}], current-context: a}}"
            );
            std::fs::write(&file, text).unwrap();
            let cluster = Kubernetes::open(Some(&file), None).await.unwrap();
            let form = form_of(&cluster.server, cluster.server_name.as_deref());
            assert_eq!(form.map(|(_, found)| found == key), through.then_some(true), "{server}{name}");
            let used = contexts_in(&Kubeconfig::read_from(&file).unwrap(), &key);
            assert_eq!(used.first().map(|(name, form)| (name.as_str(), *form)), form.map(|(form, _)| ("a", form)));
        }
    }

    /// Its address is one of this machine.
    #[tokio::test]
    async fn kubeconfig_of_towline_proxy_is_known_by_the_gateways_answer() {
        use std::io::{Read as _, Write as _};
        for (header, through) in [("X-Towline-Request-Id: 0af7\r\n", true), ("Audit-Id: 0af7\r\n", false)] {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let server = format!("http://{}", listener.local_addr().unwrap());
            let answering = std::thread::spawn(move || {
                let (mut socket, _) = listener.accept().unwrap();
                let mut asked = [0; 1024];
                let length = socket.read(&mut asked).unwrap();
                assert!(asked[..length].starts_with(b"GET /version HTTP/1.1\r\n"));
                let answer =
                    format!("HTTP/1.1 401 Unauthorized\r\n{header}Content-Length: 0\r\nConnection: close\r\n\r\n");
                socket.write_all(answer.as_bytes()).unwrap();
            });
            let client = Client::try_from(Config::new(server.parse().unwrap())).unwrap();
            let cluster = Kubernetes { client, context: "a".to_owned(), server, server_name: None, minor: 0 };
            assert_eq!(cluster.leads_through_a_gateway().await, through, "{header}");
            answering.join().unwrap();
        }
    }

    #[test]
    fn n3_a_kubeconfigs_proxy_is_that_of_its_cluster_and_others_are_named() {
        let proxy = |url: &str| {
            let text = format!(
                "{{clusters: [{{name: a, cluster: {{server: 'https://a', proxy-url: '{url}'}}}}, {{name: b, cluster: {{server: 'https://b'}}}}], contexts: [{{name: a, context: {{cluster: a}}}}, {{name: b, context: {{cluster: b}}}}]}}"
            );
            Kubeconfig::from_yaml(&text).unwrap()
        };
        let of = |url: &str, context: &str| proxy_of(&proxy(url), context);
        assert_eq!(of("http://p:3128", "a").unwrap().unwrap().authority().unwrap().as_str(), "p:3128");
        assert!(of("socks5://p:1080", "a").unwrap().is_some());
        assert!(of("", "a").unwrap().is_none() && of("http://p:3128", "b").unwrap().is_none());
        for (wrong, says) in
            [("https://u:geheim@p", "begins with https://"), ("socks4://p", "socks4://"), ("p:x:y", "not a URL")]
        {
            let error = format!("{:#}", of(wrong, "a").unwrap_err());
            assert!(error.contains(says) && !error.contains("geheim"), "{error}");
        }
    }

    #[test]
    fn node_is_closed_by_its_role_or_only_for_now() {
        let of = |spec: serde_json::Value| {
            let node = serde_json::json!({"metadata": {"name": "n"}, "spec": spec});
            NodeState::of(&serde_json::from_value(node).unwrap()).closed
        };
        let taint = |key: &str| serde_json::json!({"key": key, "effect": "NoSchedule"});
        let control = "node-role.kubernetes.io/control-plane";
        assert!(of(serde_json::json!({"taints": [taint("a"), taint(control)]})).unwrap().by_role);
        assert!(of(serde_json::json!({"unschedulable": true, "taints": [taint(control)]})).unwrap().by_role);
        assert!(!of(serde_json::json!({"taints": [taint("role")]})).unwrap().by_role);
        assert!(!of(serde_json::json!({"unschedulable": true})).unwrap().by_role);
        assert_eq!(of(serde_json::json!({"taints": [taint("node.kubernetes.io/not-ready")]})), None);
    }
}
