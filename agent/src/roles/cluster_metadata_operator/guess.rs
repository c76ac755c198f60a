//! Which distribution a cluster is and what it runs on, by what its nodes look like.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use types::agent_api::PLATFORMS_MAX;

/// Labels that only one distribution gives its nodes.
const LABELS: [(&str, &str); 6] = [
    ("node.openshift.io/os_id", "openshift"),
    ("kubernetes.azure.com/node-image-version", "aks"),
    ("cloud.google.com/gke-nodepool", "gke"),
    ("cloud.google.com/gke-os-distribution", "gke"),
    ("eks.amazonaws.com/nodegroup", "eks"),
    ("minikube.k8s.io/version", "minikube"),
];
/// An annotation whose value is the distribution.
const EDGE: &str = "node.aksedge.io/distro";
/// What annotations of one distribution begin with.
const RANCHER: &str = "rke.cattle.io/";
/// Schemes of providers' ids that are infrastructures by another name, and those that are by their own.
const INFRASTRUCTURES: [(&str, &str); 8] = [
    ("azure", "azure"),
    ("gce", "gcp"),
    ("aws", "aws"),
    ("k3s", "generic"),
    ("kind", "generic"),
    ("vsphere", "vsphere"),
    ("azure_stack_hci", "azure_stack_hci"),
    ("azure_stack_hub", "azure_stack_hub"),
];
/// Characters of a node's operating system, and of its architecture: all there are have fewer.
const WORD_CHARS: usize = 60;
/// Where nothing is known.
pub(super) const GENERIC: &str = "generic";

/// What counts of a node.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    provider: String,
    millicores: Option<u64>,
    platform: Option<String>,
}

/// What the labels, annotations and providers of the nodes suggest about the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Guess {
    pub distribution: String,
    pub infrastructure: String,
    pub version: Option<String>,
    pub cores: Option<u32>,
}

/// The operating system and the architecture of a node, such as `linux/amd64`, as its kubelet says. None: it says nothing
/// that is one.
pub(crate) fn platform(node: &Node) -> Option<String> {
    let info = node.status.as_ref()?.node_info.as_ref()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_word = |text: &String| (1..=WORD_CHARS).contains(&text.len()) && text.chars().all(plain);
    let is_said = is_word(&info.operating_system) && is_word(&info.architecture);
    is_said.then(|| format!("{}/{}", info.operating_system, info.architecture))
}

/// Platforms of all nodes. None: one of them does not say, or there are too many.
pub(super) fn platforms(nodes: &[Seen]) -> Vec<String> {
    let all: Option<BTreeSet<&str>> = nodes.iter().map(|node| node.platform.as_deref()).collect();
    let all = all.filter(|all| all.len() <= PLATFORMS_MAX).unwrap_or_default();
    all.into_iter().map(str::to_owned).collect()
}

impl Seen {
    pub(super) fn of(node: Node) -> Self {
        let platform = platform(&node);
        let capacity = node.status.and_then(|status| status.capacity).unwrap_or_default();
        Self {
            platform,
            labels: node.metadata.labels.unwrap_or_default(),
            annotations: node.metadata.annotations.unwrap_or_default(),
            provider: node.spec.and_then(|spec| spec.provider_id).unwrap_or_default(),
            millicores: capacity.get("cpu").and_then(|cpu| millicores(&cpu.0)),
        }
    }

    fn distribution(&self) -> Option<&str> {
        if let Some((_, name)) = LABELS.iter().find(|(label, _)| self.labels.contains_key(*label)) {
            return Some(name);
        }
        if let Some(edge @ ("aks_edge_k3s" | "aks_edge_k8s")) = self.annotations.get(EDGE).map(String::as_str) {
            return Some(edge);
        }
        match self.scheme() {
            Some("kind") => Some("kind"),
            Some("k3s") => Some("k3s"),
            _ => self.annotations.keys().any(|key| key.starts_with(RANCHER)).then_some("rancher_rke"),
        }
    }

    fn scheme(&self) -> Option<&str> {
        self.provider.split_once("://").map(|(scheme, _)| scheme)
    }

    fn infrastructure(&self) -> Option<&'static str> {
        let scheme = self.scheme()?;
        INFRASTRUCTURES.iter().find(|(known, _)| *known == scheme).map(|(_, name)| *name)
    }
}

/// The first node that tells something is believed. Cores are known if those of every node are.
pub(super) fn guess(nodes: &[Seen], version: Option<&str>) -> Guess {
    let millicores: Option<u64> = nodes.iter().map(|node| node.millicores).sum();
    Guess {
        distribution: nodes.iter().find_map(Seen::distribution).unwrap_or(GENERIC).to_owned(),
        infrastructure: nodes.iter().find_map(Seen::infrastructure).unwrap_or(GENERIC).to_owned(),
        // `v1.30.4+k3s1`, `v1.29.3-eks-adc7111`: the distribution's own mark is a part of it.
        version: version.filter(|version| version.contains(['+', '-'])).map(str::to_owned),
        cores: millicores.and_then(|millicores| u32::try_from(millicores.div_ceil(1000)).ok()),
    }
}

/// A quantity of processors: `4`, `3920m`, `1.5`.
fn millicores(text: &str) -> Option<u64> {
    if let Some(milli) = text.strip_suffix('m') {
        return milli.parse().ok();
    }
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let part = format!("{part:0<3}");
    let (whole, part) = (whole.parse::<u64>().ok()?, part.get(..3)?.parse::<u64>().ok()?);
    whole.checked_mul(1000)?.checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(label: Option<&str>, annotation: Option<(&str, &str)>, provider: &str) -> Seen {
        Seen {
            labels: label.map(|label| (label.to_owned(), "x".to_owned())).into_iter().collect(),
            annotations: annotation.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().collect(),
            provider: provider.to_owned(),
            millicores: Some(3920),
            platform: None,
        }
    }

    #[test]
    fn e12_platforms_are_those_of_all_nodes_or_none() {
        let of = |system: &str, architecture: &str| {
            let info = serde_json::json!({
                "operatingSystem": system, "architecture": architecture, "machineID": "", "systemUUID": "", "bootID": "",
                "kernelVersion": "", "osImage": "", "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "",
            });
            let node = serde_json::json!({"metadata": {"name": "n"}, "status": {"nodeInfo": info}});
            Seen::of(serde_json::from_value(node).unwrap())
        };
        let (arm, amd, windows) = (of("linux", "arm64"), of("linux", "amd64"), of("windows", "amd64"));
        let all = [arm.clone(), windows, amd, arm.clone()];
        assert_eq!(platforms(&all), ["linux/amd64", "linux/arm64", "windows/amd64"]);
        for unknown in [of("", "arm64"), of("linux", ""), of("linux", "arm/v7"), of("a\u{7}", "b"), Seen::default()] {
            assert!(platforms(&[arm.clone(), unknown]).is_empty(), "what one node has is not known");
        }
        let many: Vec<_> = (0..=PLATFORMS_MAX).map(|number| of("linux", &number.to_string())).collect();
        assert!(platforms(&many).is_empty());
        assert_eq!(platforms(&many[1..]).len(), PLATFORMS_MAX);
    }

    #[test]
    fn m3_distribution_and_infrastructure_follow_from_labels_annotations_and_provider_ids() {
        for (seen, distribution, infrastructure) in [
            (node(Some("node.openshift.io/os_id"), None, ""), "openshift", "generic"),
            (node(Some("kubernetes.azure.com/node-image-version"), None, "azure:///subscriptions/s"), "aks", "azure"),
            (node(Some("cloud.google.com/gke-nodepool"), None, "gce://p/z/n"), "gke", "gcp"),
            (node(Some("cloud.google.com/gke-os-distribution"), None, "gce://p/z/n"), "gke", "gcp"),
            (node(Some("eks.amazonaws.com/nodegroup"), None, "aws:///z/i"), "eks", "aws"),
            (node(Some("minikube.k8s.io/version"), None, ""), "minikube", "generic"),
            (node(None, Some((EDGE, "aks_edge_k8s")), ""), "aks_edge_k8s", "generic"),
            (node(None, Some((EDGE, "strange")), ""), "generic", "generic"),
            (node(None, Some(("rke.cattle.io/internal-ip", "1")), ""), "rancher_rke", "generic"),
            (node(None, None, "kind://docker/kind/n"), "kind", "generic"),
            (node(None, None, "k3s://n"), "k3s", "generic"),
            (node(None, None, "vsphere://4200"), "generic", "vsphere"),
            (node(None, None, "no scheme"), "generic", "generic"),
        ] {
            let guessed = guess(&[Seen::default(), seen.clone()], None);
            assert_eq!((&*guessed.distribution, &*guessed.infrastructure), (distribution, infrastructure), "{seen:?}");
        }
        assert_eq!(guess(&[], Some("v1.30.4+k3s1")).version.as_deref(), Some("v1.30.4+k3s1"));
        assert_eq!(guess(&[], Some("v1.34.1")).version, None);
    }

    #[test]
    fn m2_cores_are_those_of_all_nodes_and_not_known_if_one_is_not() {
        let with = |millicores| Seen { millicores, ..Seen::default() };
        assert_eq!(guess(&[with(Some(4000)), with(Some(3920))], None).cores, Some(8));
        assert_eq!(guess(&[with(Some(4000)), with(None)], None).cores, None);
        assert_eq!(guess(&[], None).cores, Some(0));
        for (text, expected) in [("4", Some(4000)), ("3920m", Some(3920)), ("1.5", Some(1500)), ("x", None)] {
            assert_eq!(millicores(text), expected, "{text}");
        }
    }
}
