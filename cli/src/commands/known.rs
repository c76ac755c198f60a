//! Faults that are known by their words (docs/features.md B3): cause and remedy, a line each.

/// Words of an event, a state or a log; and what they mean.
const KNOWN: &[(&str, &str)] = &[
    ("exceeded quota", "raise the ResourceQuota of the namespace, or use another: --namespace NAME"),
    (
        "failed calling webhook",
        "an admission webhook of the cluster does not answer: kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations",
    ),
    (
        "admission webhook",
        "an admission webhook of the cluster refuses the pods, and says why: what it wants is its owner's to say",
    ),
    ("InvalidImageName", "that is not a name of an image: towline connect --image REPOSITORY:TAG"),
    ("node(s) were unschedulable", "every node is cordoned: kubectl uncordon NODE"),
    (
        "ErrImageNeverPull",
        "the node does not have the agents' image and may not pull it: load it there, or towline connect --image",
    ),
    (
        "ImagePullBackOff",
        "the agents' image cannot be pulled: check its name and the nodes' way to the registry, or towline connect --image",
    ),
    (
        "ErrImagePull",
        "the agents' image cannot be pulled: check its name and the nodes' way to the registry, or towline connect --image",
    ),
    ("Insufficient cpu", "no node has the CPU that the agents ask for: add a node, or free some"),
    ("Insufficient memory", "no node has the memory that the agents ask for: add a node, or free some"),
    (
        "untolerated taint",
        "every node has a taint that the agents do not tolerate: remove it from one, or install by helm with tolerations",
    ),
    (
        "violates PodSecurity",
        "the namespace's pod security standard refuses the pods: label it pod-security.kubernetes.io/enforce=restricted",
    ),
    (
        "unable to validate against any security context constraint",
        "OpenShift's constraints refuse the pods' user: oc adm policy add-scc-to-user nonroot-v2 -z clusterconnect-agent -z controller-manager",
    ),
    ("OOMKilled", "a pod needs more memory than its limit: install by helm with higher resources.limits"),
    (
        "InvalidProof",
        "the onboarding key is not that of the resource: connect again with the same name and group; to a resource that another run made, towline connect --existing",
    ),
    (
        "AlreadyConnected",
        "this cluster is connected as another resource, which the message names: delete one of the two",
    ),
    ("ResourceDeleted", "the resource was deleted: towline connect makes it again, towline delete removes the agents"),
    (
        "CertificateExpired",
        "the certificate ended while the gateway was away: towline connect again with the same name and group",
    ),
    (
        "UnknownIssuer",
        "something between cluster and gateway shows a certificate of its own: towline connect --proxy-cert FILE with its authority",
    ),
    ("407", "the proxy wants a user name and a password: towline connect --proxy-https http://user:password@host:port"),
    (
        "Name or service not known",
        "the gateway's name does not resolve in the cluster: its DNS, or towline connect --host-alias ADDRESS=NAME",
    ),
    (
        "failed to lookup address",
        "the gateway's name does not resolve in the cluster: its DNS, or towline connect --host-alias ADDRESS=NAME",
    ),
    ("Connection refused", "nothing listens at the gateway's address, or a firewall says so: check address and port"),
    ("not yet valid", "the clock of a node is wrong: set it by NTP"),
];

/// What is known of a text.
pub fn remedies(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (words, remedy) in KNOWN {
        if text.contains(words) && !found.iter().any(|one| one == remedy) {
            found.push((*remedy).to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b3_known_words_have_a_remedy_each_once() {
        assert_eq!(remedies("a; ImagePullBackOff; ErrImagePull: x").len(), 1);
        assert!(remedies("all is well").is_empty());
    }
}
