//! The manifests' values: what was typed, and what the gateway says of itself.

use std::net::IpAddr;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Map, Value};
use types::agent_api::{ENROLMENT_PREFIX, InstallSettings};

use super::{
    extensions::{self, CatalogueArgs},
    image::split_image,
    proxy::{AgentProxyArgs, Typed},
};
use crate::{
    client::Client,
    commands::names,
    failure::{Failure, Outcome},
    kubernetes::kept::{Kept, KeptGuard, KeptUpgrades},
    manifests::{self, HostAlias, Image, Values},
};

/// What `--distribution` knows.
const DISTRIBUTIONS: [&str; 18] = [
    "generic",
    "openshift",
    "rancher_rke",
    "kind",
    "k3s",
    "minikube",
    "gke",
    "eks",
    "aks",
    "aks_management",
    "aks_workload",
    "capz",
    "aks_engine",
    "tkg",
    "canonical",
    "karbon",
    "aks_edge_k3s",
    "aks_edge_k8s",
];

const INFRASTRUCTURES: [&str; 9] = [
    "generic",
    "azure",
    "aws",
    "gcp",
    "azure_stack_hci",
    "azure_stack_hub",
    "azure_stack_edge",
    "vsphere",
    "windows_server",
];

/// What is installed. What is not typed is as it was, where there are agents.
#[derive(Debug, clap::Args, Clone, Default)]
pub struct AgentArgs {
    /// How they get to the gateway.
    #[command(flatten)]
    pub proxy: AgentProxyArgs,
    /// The image, REPOSITORY[:TAG] or REPOSITORY@sha256:...
    #[arg(long, value_name = "NAME", value_parser = names::image, help_heading = "Agents")]
    pub image: Option<String>,
    /// The namespace; made if it is not there
    #[arg(long, value_name = "NAME", value_parser = names::namespace, default_value = manifests::NAMESPACE, help_heading = "Agents")]
    pub namespace: String,
    /// How many pods hold a tunnel each
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=25), help_heading = "Agents")]
    pub replicas: Option<u32>,
    /// Pin the carrier of the tunnel
    #[arg(long, value_name = "NAME", value_parser = ["auto", "quic", "h2", "websocket"], help_heading = "Agents")]
    pub carrier: Option<String>,
    /// A line of the pods' /etc/hosts, ADDRESS=NAME[,NAME]; repeat for more; "" for none
    #[arg(long = "host-alias", value_name = "ADDRESS=NAME", value_parser = host_alias_or_none, help_heading = "Agents")]
    pub host_aliases: Vec<Option<(IpAddr, Vec<String>)>>,
    /// Let the gateway's roles and assignments decide single Kubernetes calls too, beside the cluster's own RBAC
    #[arg(
        long,
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        help_heading = "Agents"
    )]
    pub azure_rbac: Option<bool>,
    /// Answer the apiserver itself about tokens and rights, as its webhook (docs/guard.md); it has to be started for that
    #[arg(
        long,
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        help_heading = "Agents"
    )]
    pub guard: Option<bool>,
    /// With guard: what the apiserver dials, https://HOST:PORT, instead of the Service's address; "" for that
    #[arg(long, value_name = "URL", help_heading = "Agents")]
    pub guard_server: Option<String>,
    /// Leave the agents' version to people; else they follow the signed catalogue, where the gateway has one
    #[arg(
        long,
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        help_heading = "Agents"
    )]
    pub disable_auto_upgrade: Option<bool>,
    /// Install extensions: helm charts of a signed catalogue, by an agent that is an administrator of the cluster
    #[arg(
        long,
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        help_heading = "Extensions"
    )]
    pub extensions: Option<bool>,
    #[command(flatten)]
    pub catalogue: CatalogueArgs,
    /// The cluster's distribution, instead of what its nodes look like
    #[arg(long, value_name = "NAME", value_parser = DISTRIBUTIONS, help_heading = "Agents")]
    pub distribution: Option<String>,
    /// What it runs on, instead of what its nodes look like
    #[arg(long, value_name = "NAME", value_parser = INFRASTRUCTURES, help_heading = "Agents")]
    pub infrastructure: Option<String>,
}

/// Asks the gateway where it is, whom it trusts and with which keys.
pub async fn settings(client: &Client) -> Outcome<InstallSettings> {
    let path = format!("{}{ENROLMENT_PREFIX}/settings", client.address().path);
    let answer = client.ask(Request::get(path).body(Full::new(Bytes::new()))?).await?;
    if !answer.status().is_success() {
        let error = anyhow!("the gateway answers {} when asked for what agents need", answer.status());
        return Err(Failure::from(error).hint("is it a Towline gateway, of a version that this command fits?"));
    }
    Ok(serde_json::from_slice(answer.body()).context("cannot read what the gateway says that agents need")?)
}

/// All of them, but for the private key: what was typed, over what agents that are there were told before. And what to
/// say of them.
pub fn values(
    cluster_id: &str,
    args: &AgentArgs,
    mut kept: Option<Kept>,
    proxy: Typed,
    extensions: &extensions::Typed,
    settings: &InstallSettings,
) -> Outcome<(Values, Vec<String>)> {
    let mut values = Values::default();
    let kept_extensions = kept.as_mut().and_then(|kept| kept.extensions.take());
    let said = extensions.apply(&mut values, kept_extensions, settings)?;
    let kept_upgrades = kept.as_mut().map(|kept| kept.upgrades.take());
    upgrade_by_themselves(&mut values, args.disable_auto_upgrade, kept_upgrades, settings)?;
    let kept_guard = kept.as_mut().and_then(|kept| kept.guard.take());
    answer_the_apiserver(&mut values, args, kept_guard)?;
    let azure_rbac = args.azure_rbac.unwrap_or(kept.as_ref().is_some_and(|kept| kept.azure_rbac));
    if let Some(kept) = kept {
        keep(&mut values, kept);
    }
    of_gateway(&mut values, cluster_id, settings)?;
    if values.guard.enabled {
        refuse_one_prefix(&values.issuers)?;
    }
    if azure_rbac {
        decide_by_roles(&mut values)?;
    }
    proxy.apply(&mut values)?;
    if let Some(image) = &args.image {
        values.image = Values::default().image;
        set_image(&mut values.image, image);
    }
    values.replicas = args.replicas.unwrap_or(values.replicas);
    if let Some(carrier) = &args.carrier {
        values.gateway.carrier.clone_from(carrier);
    }
    if !args.host_aliases.is_empty() {
        let alias = |(ip, hostnames): &(std::net::IpAddr, Vec<String>)| HostAlias {
            ip: ip.to_string(),
            hostnames: hostnames.clone(),
        };
        values.host_aliases = args.host_aliases.iter().flatten().map(alias).collect();
    }
    for (known, typed) in [
        (&mut values.metadata.distribution, &args.distribution),
        (&mut values.metadata.infrastructure, &args.infrastructure),
    ] {
        if let Some(typed) = typed {
            known.clone_from(typed);
        }
    }
    Ok((values, said))
}

/// The first minor version in which `unhealthyPodEvictionPolicy` of a PodDisruptionBudget cannot be off (KEP-3017). In
/// 1.26 it was off, and in OpenShift up to 4.17 (1.30); an apiserver drops the field then without a word.
const EVICTS_UNHEALTHY: u32 = 31;

/// Leaves out what the cluster may not know. Without that policy a budget would hold up every drain of a
/// node while the gateway is away.
pub fn fit(values: &mut Values, kubernetes_minor: u32) {
    values.pod_disruption_budget.enabled &= kubernetes_minor >= EVICTS_UNHEALTHY;
}

/// Those of agents that are there, with nothing but their proxy and extensions changed: the images too stay what they
/// are, where `version` is the one that installed them.
pub fn again(
    cluster_id: &str,
    kept: Kept,
    version: Option<&str>,
    guard: Option<bool>,
    proxy: Typed,
    extensions: &extensions::Typed,
    settings: &InstallSettings,
) -> Outcome<(Values, Vec<String>)> {
    let args = AgentArgs { guard, ..AgentArgs::default() };
    let digests = (kept.digest.clone(), kept.extensions.as_ref().and_then(|kept| kept.digest.clone()));
    let of_extensions = kept.extensions.as_ref().and_then(|kept| kept.image.clone());
    let (mut values, said) = values(cluster_id, &args, Some(kept), proxy, extensions, settings)?;
    let Some(version) = version else { return Ok((values, said)) };
    let extensions = &mut values.extensions.image;
    // Another image than the one that is there has another digest.
    let is_kept = of_extensions.is_some_and(|image| image == extensions.repository);
    let pins = [digests.0, digests.1.filter(|_| is_kept)].map(Option::unwrap_or_default);
    let tags = [(&mut values.image.tag, &values.image.digest), (&mut extensions.tag, &extensions.digest)];
    for ((tag, digest), pin) in tags.into_iter().zip(pins) {
        if tag.is_empty() && digest.is_empty() {
            // A name may have a tag and a digest; then the digest alone counts for who pulls it.
            *tag = format!("{version}{pin}");
        }
    }
    Ok((values, said))
}

/// Those of agents that are there, all of it as it is: for this program's version, and its images.
pub fn values_again(cluster_id: &str, kept: Kept, settings: &InstallSettings) -> Outcome<Values> {
    again(cluster_id, kept, None, None, Typed::default(), &extensions::Typed::default(), settings)
        .map(|(values, _)| values)
}

fn keep(values: &mut Values, kept: Kept) {
    values.proxy = kept.proxy;
    values.extra_ca = kept.extra_ca;
    values.host_aliases = kept.host_aliases;
    if !kept.carrier.is_empty() {
        values.gateway.carrier = kept.carrier;
    }
    if let Some(image) = kept.image {
        set_image(&mut values.image, &image);
    }
    values.replicas = kept.replicas.filter(|count| *count > 0).unwrap_or(values.replicas);
    values.metadata.distribution = kept.distribution;
    values.metadata.infrastructure = kept.infrastructure;
}

fn of_gateway(values: &mut Values, cluster_id: &str, settings: &InstallSettings) -> Outcome<()> {
    values.gateway.urls.clone_from(&settings.urls);
    values.gateway.ca.clone_from(&settings.roots);
    values.identity.cluster_id = cluster_id.to_owned();
    let issuers: Result<Vec<Map<String, Value>>, _> =
        settings.issuers.iter().map(|issuer| serde_json::from_value(issuer.clone())).collect();
    values.issuers = issuers.context("cannot use the issuers that the gateway names")?;
    Ok(())
}

/// An issuer's value of the chart, which is how the gateway spells it for agents.
const USERNAME_PREFIX: &str = "usernamePrefix";

/// As guard itself refuses it at its start: pods of it would be made that never run.
fn refuse_one_prefix(issuers: &[Map<String, Value>]) -> Outcome<()> {
    let text =
        |issuer: &Map<String, Value>, key: &str| issuer.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    for (at, one) in issuers.iter().enumerate() {
        let prefix = text(one, USERNAME_PREFIX);
        let Some(other) = issuers[..at].iter().find(|other| text(other, USERNAME_PREFIX) == prefix) else { continue };
        let error = anyhow!(
            "guard cannot tell the users of issuers {:?} and {:?} from each other: both have the prefix {prefix:?} of user names (username_prefix)",
            text(other, "name"),
            text(one, "name")
        );
        return Err(Failure::from(error)
            .hint("give them different prefixes in the gateway's settings; or leave guard off (--guard=false)"));
    }
    Ok(())
}

/// The address of the Service that is there stays: it is in the files that the apiserver was started with.
fn answer_the_apiserver(values: &mut Values, args: &AgentArgs, kept: Option<KeptGuard>) -> Outcome<()> {
    let guard = &mut values.guard;
    guard.enabled = args.guard.unwrap_or(kept.is_some());
    if !guard.enabled {
        return match &args.guard_server {
            Some(_) => Err(Failure::usage(anyhow!("--guard-server is for agents with guard")).hint("add --guard")),
            None => Ok(()),
        };
    }
    let kept = kept.unwrap_or_default();
    guard.server = args.guard_server.clone().unwrap_or(kept.server);
    (guard.cluster_ip, guard.skip_users) = (kept.cluster_ip, kept.skip_users);
    guard.cache_entries = kept.cache_entries.unwrap_or(guard.cache_entries);
    keep_text(&mut guard.cache_allowed_for, kept.cache_allowed_for);
    keep_text(&mut guard.cache_denied_for, kept.cache_denied_for);
    Ok(())
}

/// Whether the agents upgrade themselves, and by whose word: the keys are pinned when that is decided, as those of
/// extensions are, and never taken from the gateway again by themselves. `kept` is there where there are agents.
fn upgrade_by_themselves(
    values: &mut Values,
    disable: Option<bool>,
    kept: Option<Option<KeptUpgrades>>,
    settings: &InstallSettings,
) -> Outcome<()> {
    let of_gateway = settings.catalogue.as_ref().filter(|named| !named.keys.is_empty());
    let extensions = (values.extensions.catalogue_keys.clone(), values.extensions.catalogue_id.clone());
    let as_it_is = kept.as_ref().map_or(of_gateway.is_some(), Option::is_some);
    if disable.map_or(!as_it_is, |disable| disable) {
        return Ok(());
    }
    let kept = kept.flatten().unwrap_or_default();
    let pins = [(kept.keys.clone(), kept.catalogue.clone()), extensions];
    let mut pins = pins.into_iter().chain(of_gateway.map(|named| (named.keys.clone(), named.id.clone())));
    let Some((keys, catalogue)) = pins.find(|(keys, _)| !keys.is_empty()) else {
        let error = anyhow!(
            "the agents cannot upgrade themselves: the gateway serves no catalogue, whose keys would be pinned"
        );
        return Err(Failure::usage(error).hint("set catalogue_dir in [api] of the gateway's configuration first"));
    };
    let upgrades = &mut values.upgrades;
    (upgrades.enabled, upgrades.catalogue_keys, upgrades.catalogue_id) = (true, keys, catalogue);
    keep_text(&mut upgrades.interval, kept.interval);
    keep_text(&mut upgrades.window, kept.window);
    keep_text(&mut upgrades.timeout, kept.timeout);
    Ok(())
}

/// Keeps what the agents that are there were told; empty: they were told nothing.
fn keep_text(value: &mut String, kept: String) {
    if !kept.is_empty() {
        *value = kept;
    }
}

fn decide_by_roles(values: &mut Values) -> Outcome<()> {
    let pinned = |issuer: &&Map<String, Value>| issuer.contains_key("pinnedKeys");
    let name = values.issuers.iter().find(pinned).and_then(|issuer| issuer.get("name")).and_then(Value::as_str);
    let Some(name) = name else {
        return Err(Failure::usage(anyhow!(
            "--azure-rbac: the gateway has no issuer of its own whose keys could be pinned in the cluster, so roles and assignments cannot be verified"
        )));
    };
    name.clone_into(&mut values.azure_rbac.issuer);
    values.azure_rbac.enabled = true;
    Ok(())
}

/// `REPOSITORY[:TAG]` or `REPOSITORY@DIGEST`; a registry's port is no tag.
fn set_image(image: &mut Image, name: &str) {
    let (repository, tag, digest) = split_image(name);
    image.repository = repository;
    if !tag.is_empty() {
        image.tag = tag;
    }
    if !digest.is_empty() {
        image.digest = digest;
    }
}

fn host_alias_or_none(text: &str) -> Result<Option<(IpAddr, Vec<String>)>, String> {
    if text.is_empty() { Ok(None) } else { host_alias(text).map(Some) }
}

fn host_alias(text: &str) -> Result<(IpAddr, Vec<String>), String> {
    let wrong = || "expected ADDRESS=NAME[,NAME], such as 192.0.2.7=gateway.example.org".to_owned();
    let (address, names) = text.split_once('=').ok_or_else(wrong)?;
    let hosts: Vec<String> = names.split(',').map(|name| name.trim().to_owned()).collect();
    match (address.parse(), hosts.iter().all(|name| names::is_host(name))) {
        (Ok(address), true) => Ok((address, hosts)),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In 1.26, and in OpenShift up to 1.30, the policy that lets pods without a tunnel be evicted is off.
    #[test]
    fn there_is_no_budget_where_it_could_hold_up_a_drain() {
        let budgets = |minor: u32| {
            let mut values = Values { replicas: 2, ..Values::default() };
            fit(&mut values, minor);
            crate::manifests::objects(&values, "towline")
                .into_iter()
                .filter(|object| object["kind"] == "PodDisruptionBudget")
                .map(|budget| budget["spec"]["unhealthyPodEvictionPolicy"].clone())
                .collect::<Vec<_>>()
        };
        assert!([25, 26, 30].into_iter().all(|minor| budgets(minor).is_empty()));
        assert_eq!(budgets(31), ["AlwaysAllow"]);
    }

    #[test]
    fn t13_an_update_keeps_the_image_and_an_upgrade_gives_this_programs() {
        let settings = InstallSettings {
            urls: vec!["https://gw".to_owned()],
            roots: String::new(),
            issuers: Vec::new(),
            version: String::new(),
            tenant_id: String::new(),
            catalogue: None,
        };
        let image = |image: &str, version: Option<&str>| {
            let kept = Kept {
                proxy: Values::default().proxy,
                extra_ca: String::new(),
                carrier: String::new(),
                host_aliases: Vec::new(),
                azure_rbac: false,
                image: Some(image.to_owned()),
                digest: version.filter(|version| *version == "0.0.8").map(|_| "@sha256:a".to_owned()),
                version: None,
                replicas: None,
                distribution: String::new(),
                infrastructure: String::new(),
                guard: None,
                extensions: None,
                upgrades: None,
            };
            let extensions = extensions::Typed::default();
            again("/c", kept, version, None, Typed::default(), &extensions, &settings).unwrap().0.image_name()
        };
        assert_eq!(image("r:5000/agent", Some("0.0.9")), "r:5000/agent:0.0.9");
        assert_eq!(image("r:5000/agent", Some("0.0.8")), "r:5000/agent:0.0.8@sha256:a", "what was pinned stays pinned");
        assert_eq!(image("r:5000/agent", None), format!("r:5000/agent:{}", crate::manifests::version()));
        assert_eq!(image("r:5000/agent:mine", Some("0.0.9")), "r:5000/agent:mine");
        assert_eq!(image("r:5000/agent@sha256:a", Some("0.0.9")), "r:5000/agent@sha256:a");
    }

    #[test]
    fn u2_agents_upgrade_themselves_where_a_catalogue_is_unless_told_otherwise() {
        use types::agent_api::CatalogueTrust;
        let named = |keys: &[&str]| CatalogueTrust {
            id: "of the gateway".to_owned(),
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        };
        let pinned = |disable, kept: Option<Option<&str>>, catalogue: Option<CatalogueTrust>| {
            let settings = InstallSettings { catalogue, ..settings() };
            let kept =
                kept.map(|kept| kept.map(|key| KeptUpgrades { keys: vec![key.to_owned()], ..KeptUpgrades::default() }));
            let mut values = Values::default();
            upgrade_by_themselves(&mut values, disable, kept, &settings)
                .map(|()| values.upgrades.enabled.then(|| values.upgrades.catalogue_keys.join(",")))
        };
        let key = |text: &str| Some(text.to_owned());
        assert_eq!(pinned(None, None, Some(named(&["a"]))).unwrap(), key("a"));
        assert_eq!(pinned(None, None, None).unwrap(), None);
        assert_eq!(pinned(Some(true), None, Some(named(&["a"]))).unwrap(), None);
        // Agents that are there stay as they are, and their keys too.
        assert_eq!(pinned(None, Some(None), Some(named(&["a"]))).unwrap(), None);
        assert_eq!(pinned(None, Some(Some("b")), Some(named(&["a"]))).unwrap(), key("b"));
        assert_eq!(pinned(Some(false), Some(None), Some(named(&["a"]))).unwrap(), key("a"));
        assert_eq!(pinned(Some(true), Some(Some("b")), None).unwrap(), None);
        assert!(pinned(Some(false), None, Some(named(&[]))).is_err(), "no key that could be pinned");
    }

    fn settings() -> InstallSettings {
        InstallSettings {
            urls: vec!["https://gw".to_owned()],
            roots: String::new(),
            issuers: Vec::new(),
            version: String::new(),
            tenant_id: String::new(),
            catalogue: None,
        }
    }

    #[test]
    fn z1_guard_stays_on_with_the_address_that_the_apiserver_has() {
        let there = KeptGuard { cluster_ip: "10.96.0.20".to_owned(), ..KeptGuard::default() };
        let guard = |typed: Option<bool>, server: Option<&str>, kept: Option<&KeptGuard>| {
            let args = AgentArgs { guard: typed, guard_server: server.map(str::to_owned), ..AgentArgs::default() };
            let mut values = Values::default();
            answer_the_apiserver(&mut values, &args, kept.cloned()).map(|()| values.guard)
        };
        let on = guard(None, None, Some(&there)).unwrap();
        assert!(on.enabled && on.cluster_ip == "10.96.0.20");
        assert!(!guard(Some(false), None, Some(&there)).unwrap().enabled && !guard(None, None, None).unwrap().enabled);
        assert_eq!(guard(Some(true), Some("https://a:1"), None).unwrap().server, "https://a:1");
        assert!(guard(None, Some("https://a:1"), None).is_err());
    }

    #[test]
    fn z1_guard_with_two_issuers_of_one_prefix_is_refused_before_anything_is_made() {
        let issuers = |prefixes: &[Option<&str>]| -> Vec<Map<String, Value>> {
            let issuer = |(at, prefix): (usize, &Option<&str>)| {
                let mut issuer = Map::from_iter([("name".to_owned(), Value::from(format!("i{at}")))]);
                issuer.extend(prefix.map(|prefix| ("usernamePrefix".to_owned(), prefix.into())));
                issuer
            };
            prefixes.iter().enumerate().map(issuer).collect()
        };
        let schema = include_str!("../../../../docker/chart/towline-agent/values.schema.json");
        let schema: Value = serde_json::from_str(schema).unwrap();
        assert!(schema["properties"]["issuers"]["items"]["properties"][USERNAME_PREFIX].is_object());
        assert!(refuse_one_prefix(&issuers(&[None, Some("a:"), Some("b:")])).is_ok());
        for same in [&[Some("a:"), Some("b:"), Some("a:")][..], &[None, Some("")], &[None, None]] {
            let failure = refuse_one_prefix(&issuers(same)).unwrap_err();
            assert!(format!("{:#}", failure.error()).contains("\"i0\" and \"i"), "{same:?}");
        }
    }

    #[test]
    fn i3_an_image_has_a_repository_and_a_tag_or_a_digest() {
        for (name, expected) in [
            ("registry.example.org:5000/agent", ("registry.example.org:5000/agent", "", "")),
            ("registry.example.org:5000/agent:1", ("registry.example.org:5000/agent", "1", "")),
            ("agent@sha256:a", ("agent", "", "sha256:a")),
        ] {
            let mut image = Values::default().image;
            set_image(&mut image, name);
            assert_eq!((image.repository.as_str(), image.tag.as_str(), image.digest.as_str()), expected);
        }
    }

    #[test]
    fn i3_a_host_alias_is_an_address_and_names() {
        let (address, names) = host_alias("192.0.2.7=a.example.org,b").unwrap();
        assert_eq!(
            (address.to_string().as_str(), names),
            ("192.0.2.7", vec!["a.example.org".to_owned(), "b".to_owned()])
        );
        for wrong in ["", "a", "a=b", "192.0.2.7=", "192.0.2.7=a,", "192.0.2.7=a b"] {
            assert!(host_alias(wrong).is_err(), "{wrong}");
        }
    }
}
